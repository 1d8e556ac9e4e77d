//! `pagefork fork`: starts a program once, and runs many forks of it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::num::NonZero;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use pagefork::{
    CallProgress, Choice, Config, GrowthChoice, Linker, Module, Store, StoreLimits, StrategyConfig,
};
use pagefork_serve::{ForkGuest, ForkStreams, StartedProgram};
use pagefork_wasi::{Exit, OutputKind, StdinKind, WasiCtx, WasiCtxBuilder};

use crate::arguments::{
    EnvironmentArguments, ForkArguments, ProgramArguments, SessionArguments, UnknownImports,
    is_stdin,
};
use crate::captured::{self, NamedImage, restore};
use crate::program::{self, Loader};
use crate::{output, run};

/// So many times as many forks as run at once may have ended before one whose output comes first.
const AHEAD: u64 = 16;

/// Runs the forks. The exit code is 1 if one of them failed.
pub(crate) fn fork(arguments: &ForkArguments) -> Result<ExitCode, String> {
    let ForkArguments { program, environment, session, unknown_imports, .. } = arguments;
    let mut inputs = inputs(arguments)?;
    let mut config = Config::new();
    config.strategies(arguments.resets.strategies(StrategyConfig::default()));
    let (program, image) = if program.image.from.is_some() {
        let engine = restore::engine(&config)?;
        run::say_resets(&arguments.resets, &engine)?;
        let (started, image) = restore::started(&program.image, environment, session, &engine)?;
        (started, Some(image))
    } else {
        run::set_compiling(&mut config, program);
        let loader = Loader::new(config)?;
        run::say_resets(&arguments.resets, loader.engine())?;
        let module = loader.load(program.file())?;
        (start(program, environment, session, *unknown_imports, &module)?, None)
    };
    output::print(program.written())?;
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    let jobs = arguments.jobs.map_or(processors, usize::from);
    let last = Mutex::new(None);
    let board = Board { state: Mutex::default(), changed: Condvar::new() };
    let inputs = Mutex::new((0u64, &mut *inputs));
    let guests = image.as_ref().and_then(NamedImage::guests);
    thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while let Some((number, input)) = next_input(&inputs, &board) {
                    board.wait_for_turn(number, jobs as u64);
                    let run = || run_fork(arguments, &program, number, input, &last);
                    let printed = match &guests {
                        Some(guests) => guests.run(run),
                        None => run(),
                    };
                    board.put(number, printed);
                }
            });
        }
    });
    if let Some(image) = image {
        image.end();
    }
    if let Some((strategy, growth)) = last.into_inner().unwrap_or_else(PoisonError::into_inner) {
        run::say_strategies(&strategy, &growth);
    }
    let state = board.state.into_inner().unwrap_or_else(PoisonError::into_inner);
    match (state.failure, state.failed) {
        (Some(error), _) => Err(error),
        (None, true) => Ok(ExitCode::FAILURE),
        (None, false) => Ok(ExitCode::SUCCESS),
    }
}

/// What a program that is forked can import.
pub(crate) fn linker(
    program: &ProgramArguments,
    unknown_imports: UnknownImports,
    module: &Module,
) -> Result<Linker<ForkGuest>, String> {
    let mut linker = restore::linker(module.engine())?;
    // Only to look imports up.
    let ctx = WasiCtx::builder().build().map_err(|error| error.to_string())?;
    let mut store = Store::new(module.engine(), ForkGuest { ctx, number: None });
    run::complete(&mut linker, program.file(), unknown_imports, &mut store, module)?;
    Ok(linker)
}

/// Gives a program the directories of its session.
pub(crate) fn session_dirs(
    builder: &mut WasiCtxBuilder,
    session: &SessionArguments,
) -> Result<(), String> {
    for directory in &session.own_directories {
        builder
            .session_dir(&directory.host, &directory.guest)
            .map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Starts a program, to be forked.
pub(crate) fn start(
    program: &ProgramArguments,
    environment: &EnvironmentArguments,
    session: &SessionArguments,
    unknown_imports: UnknownImports,
    module: &Module,
) -> Result<StartedProgram, String> {
    let linker = linker(program, unknown_imports, module)?;
    let mut builder = WasiCtxBuilder::new();
    builder.inherit_stderr();
    run::surround(&mut builder, program, environment)?;
    session_dirs(&mut builder, session)?;
    let started = match session.own_directories.is_empty() {
        true => StartedProgram::start(&linker, module, builder),
        false => {
            let place = captured::place_of_files();
            StartedProgram::start_with_files(&linker, module, builder, place)
        }
    };
    started.map_err(|error| format!("{}: {error}", program::shown(program.file())))
}

/// What forks read, one after the other.
type Inputs = dyn Iterator<Item = io::Result<Vec<u8>>> + Send;

fn inputs(arguments: &ForkArguments) -> Result<Box<Inputs>, String> {
    let Some(path) = &arguments.inputs else {
        let count = arguments.count.unwrap_or(0);
        return Ok(Box::new((1..=count).map(|number| Ok(format!("{number}\n").into_bytes()))));
    };
    if is_stdin(path) {
        if is_stdin(arguments.program.file()) {
            return Err(
                "standard input is the program already: give the lines as a file".to_owned()
            );
        }
        return Ok(Box::new(lines(BufReader::new(io::stdin()))));
    }
    let file = File::open(path).map_err(|error| cannot_read(path, &error))?;
    if file.metadata().is_ok_and(|metadata| metadata.is_dir()) {
        return Err(format!("{} is a directory: name a file with lines", path.display()));
    }
    Ok(Box::new(lines(BufReader::new(file))))
}

fn cannot_read(path: &Path, error: &io::Error) -> String {
    format!("cannot read {}: {error}", path.display())
}

/// Each line, with its end.
fn lines(mut reader: impl BufRead + Send + 'static) -> impl Iterator<Item = io::Result<Vec<u8>>> {
    std::iter::from_fn(move || {
        let mut line = Vec::new();
        match reader.read_until(b'\n', &mut line) {
            Ok(0) => None,
            Ok(_) => Some(Ok(line)),
            Err(error) => Some(Err(error)),
        }
    })
}

/// The next input and its number, from 0; none once something has failed for all.
fn next_input(inputs: &Mutex<(u64, &mut Inputs)>, board: &Board) -> Option<(u64, Vec<u8>)> {
    let mut inputs = inputs.lock().unwrap_or_else(PoisonError::into_inner);
    if board.state().stopped {
        return None;
    }
    match inputs.1.next()? {
        Ok(input) => {
            let number = inputs.0;
            inputs.0 += 1;
            Some((number, input))
        }
        Err(error) => {
            board.fail(format!("cannot read the lines: {error}"));
            None
        }
    }
}

/// What a fork has printed, and whether it failed.
struct Printed {
    bytes: Vec<u8>,
    failed: bool,
}

/// Runs a fork. Of what is to be said at the end, `last` gets what was so when it had run.
fn run_fork(
    arguments: &ForkArguments,
    program: &StartedProgram,
    number: u64,
    input: Vec<u8>,
    last: &Mutex<Option<(Choice, GrowthChoice)>>,
) -> Printed {
    let (printed, stdout) = OutputKind::pipe();
    let streams =
        ForkStreams { stdin: StdinKind::bytes(input), stdout, stderr: OutputKind::Inherit };
    let number = number + 1;
    let resume = || -> pagefork::Result<()> {
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        let limits = StoreLimits::default();
        let (mut fork, instance) =
            program.fork_with_instance(number, streams, || false, limits, drop)?;
        fork.set_timeout(arguments.timeout)?;
        let resumed = fork.resume();
        if arguments.say_strategies {
            let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
            *last = Some((instance.strategy(&fork), instance.growth(&fork)));
        }
        match resumed? {
            CallProgress::Finished(_) => Ok(()),
            CallProgress::Suspended => Err(pagefork::Error::msg("it was suspended")),
        }
    };
    let failure = match resume() {
        Ok(()) => None,
        Err(error) => match error.downcast_ref::<Exit>() {
            Some(Exit(0)) => None,
            Some(exit) => Some(format!("exit code {}", exit.0)),
            None => Some(format!("{error:?}")),
        },
    };
    if let Some(failure) = &failure {
        output::say(format_args!("fork {number}: {failure}"));
    }
    Printed { bytes: printed.contents(), failed: failure.is_some() }
}

/// What was printed, brought into order.
struct Board {
    state: Mutex<BoardState>,
    /// Notified when more may be run ahead.
    changed: Condvar,
}

#[derive(Default)]
struct BoardState {
    /// The number whose output comes next.
    next: u64,
    waiting: BTreeMap<u64, Vec<u8>>,
    failed: bool,
    /// Why nothing can go on.
    failure: Option<String>,
    /// Whether no further fork is to be run.
    stopped: bool,
}

impl Board {
    fn state(&self) -> MutexGuard<'_, BoardState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fail(&self, error: String) {
        let mut state = self.state();
        state.failure.get_or_insert(error);
        state.stopped = true;
        drop(state);
        self.changed.notify_all();
    }

    /// Waits until this number is not too far ahead of what was printed.
    fn wait_for_turn(&self, number: u64, jobs: u64) {
        let is_ahead =
            |state: &mut BoardState| !state.stopped && number > state.next + jobs * AHEAD;
        drop(self.changed.wait_while(self.state(), is_ahead));
    }

    /// Prints what comes next, and keeps what comes later.
    fn put(&self, number: u64, printed: Printed) {
        let mut state = self.state();
        state.failed |= printed.failed;
        state.waiting.insert(number, printed.bytes);
        let mut out = io::stdout().lock();
        let mut result = Ok(());
        while let Some(bytes) = {
            let next = state.next;
            state.waiting.remove(&next)
        } {
            state.next += 1;
            if !state.stopped {
                result = result.and_then(|()| out.write_all(&bytes));
            }
        }
        match result.and_then(|()| out.flush()) {
            Ok(()) => {}
            // Who reads has seen what it wanted.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => state.stopped = true,
            Err(error) => {
                state.failure.get_or_insert(format!("cannot write the output: {error}"));
                state.stopped = true;
            }
        }
        drop(state);
        self.changed.notify_all();
    }
}
