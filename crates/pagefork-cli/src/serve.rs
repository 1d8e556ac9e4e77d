//! `pagefork serve`: serves a program over HTTP.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pagefork::{Config, Engine, Store, StrategyConfig};
use pagefork_node::GuestClock;
use pagefork_serve::cgi::VariableOptions;
use pagefork_serve::{
    AccessFormat, Failure, Handler, LogHandle, LogOutput, PoolGauges, Program, ProgramOptions,
    Request, ResponseWriter, Server, Severity, Signals, StopHandle, record,
};
use pagefork_wasi::{WasiCtx, WasiCtxBuilder};

use crate::arguments::{LogFormat, ServeArguments};
use crate::captured::{NamedImage, restore};
use crate::program::{self, Loader};
use crate::{fork, run};

/// Serves a program until a signal says to stop.
pub(crate) fn serve(arguments: &ServeArguments) -> Result<ExitCode, String> {
    // First of all, while there is one thread.
    let signals = Signals::block().map_err(|error| format!("cannot wait for signals: {error}"))?;
    pagefork_host::limit_arenas();
    if let Err(error) = pagefork_serve::raise_descriptor_limit() {
        say(Severity::Warning, format_args!("the limit of descriptors stays as it is: {error}"));
    }
    let starting = Server::prepare(config(arguments)?).map_err(|error| error.to_string())?;
    if let Some(admin) = starting.admin_address() {
        say(
            Severity::Info,
            format_args!("its status is at http://{admin}/, metrics at http://{admin}/metrics"),
        );
    }
    let serves = Arc::new(AtomicBool::new(false));
    let waiting = std::thread::Builder::new().name("pagefork-signals".to_owned());
    let (stop, logs) = (starting.stop_handle(), starting.log_handle());
    let heeded = Arc::clone(&serves);
    waiting
        .spawn(move || heed(&signals, &heeded, &stop, &logs))
        .map_err(|error| format!("cannot start a thread that waits for signals: {error}"))?;
    let file = arguments.program.file();
    let (program, image) = make_program(arguments)?;
    let guests = image.as_ref().and_then(NamedImage::guests);
    let serving = match guests {
        Some(guests) => starting.serve(CountedProgram { program, guests }),
        None => starting.serve(program),
    };
    let server = serving.map_err(|error| error.to_string())?;
    serves.store(true, Ordering::SeqCst);
    say(
        Severity::Info,
        format_args!("{} answers at http://{}/", program::shown(file), server.address()),
    );
    let summary = server.wait();
    if let Some(image) = image {
        image.end();
    }
    say(Severity::Info, format_args!("stopped after {} requests", summary.requests));
    match summary.left {
        0 => Ok(ExitCode::SUCCESS),
        left => Err(format!("{left} requests could not be interrupted")),
    }
}

/// A program of which is counted what its requests take.
struct CountedProgram {
    program: Program,
    guests: GuestClock,
}

impl Handler for CountedProgram {
    fn handle(&self, request: Request, response: &ResponseWriter) -> Result<(), Failure> {
        self.guests.run(|| self.program.handle(request, response))
    }

    fn pool(&self) -> Option<PoolGauges> {
        self.program.pool()
    }
}

/// Waits for signals, and stops the server or reopens its logs.
fn heed(signals: &Signals, serves: &AtomicBool, stop: &StopHandle, logs: &LogHandle) {
    let mut is_stopping = false;
    while let Ok(signal) = signals.wait() {
        if signal == "SIGHUP" {
            logs.reopen();
            say(Severity::Info, format_args!("{signal}: the logs are reopened"));
        } else if !serves.load(Ordering::SeqCst) {
            // To compile a large program takes a while.
            say(Severity::Info, format_args!("{signal}: stopped before it served anything"));
            std::process::exit(1);
        } else if !std::mem::replace(&mut is_stopping, true) {
            stop.stop();
            say(Severity::Info, format_args!("{signal}: no further requests are accepted"));
        } else {
            stop.stop_now();
            say(Severity::Info, format_args!("{signal} again: requests under way are interrupted"));
        }
    }
}

/// A record on standard error, as the log has them; a failure is ignored.
fn say(severity: Severity, text: std::fmt::Arguments<'_>) {
    let _ = std::io::stderr().write_all(record(severity, &text.to_string()).as_bytes());
}

/// The program, and the image that it comes from, which is to be kept as long.
fn make_program(arguments: &ServeArguments) -> Result<(Program, Option<NamedImage>), String> {
    let options = ProgramOptions {
        memory_max: arguments.memory_max,
        variables: VariableOptions { authorization: arguments.authorization },
        fixed: arguments.environment.variables.iter().map(|(name, _)| name.clone()).collect(),
    };
    let image = &arguments.program.image;
    let file = arguments.program.file();
    let is_forked = image.from.is_some() || arguments.warm;
    if is_forked && arguments.strategies.growth.is_given() {
        return Err(
            "--growth is for programs that each request starts anew: forks have code that is \
                    running already"
                .to_owned(),
        );
    }
    // A code image has one body for each function unless it was compiled for more, and its memory
    // grows as usual; so does that of forks, whose frames have chosen their bodies already.
    let usual = match is_forked || program::is_code_image(file) {
        true => StrategyConfig::default(),
        false => Program::strategies(),
    };
    let mut config = Config::new();
    arguments.strategies.set(&mut config, usual);
    if image.from.is_some() {
        let engine = restore::engine(&config)?;
        say_strategies(arguments, &engine)?;
        let (environment, session) = (&arguments.environment, &arguments.session);
        let (started, image) = restore::started(image, environment, session, &engine)?;
        return Ok((Program::started(started, options), Some(image)));
    }
    run::set_compiling(&mut config, &arguments.program);
    let loader = Loader::new(config)?;
    say_strategies(arguments, loader.engine())?;
    let module = loader.load(file)?;
    if arguments.warm {
        let ServeArguments { program, environment, session, unknown_imports, .. } = arguments;
        let started = fork::start(program, environment, session, *unknown_imports, &module)?;
        return Ok((Program::started(started, options), None));
    }
    if !arguments.session.own_directories.is_empty() {
        return Err("--session-dir is for programs that are forked: give --warm, too".to_owned());
    }
    // Only to look imports up.
    let context = WasiCtx::builder().build().map_err(|error| error.to_string())?;
    let mut store = Store::new(module.engine(), context);
    let mut linker = run::linker(loader.engine())?;
    run::complete(&mut linker, file, arguments.unknown_imports, &mut store, &module)?;
    // The arguments, variables and directories do not depend on the request.
    let mut builder = WasiCtxBuilder::new();
    run::surround(&mut builder, &arguments.program, &arguments.environment)?;
    let template = builder.template().map_err(|error| error.to_string())?;
    Program::new(&linker, &module, template, options)
        .map(|program| (program, None))
        .map_err(|error| format!("{}: {error}", file.display()))
}

/// Says it if this machine cannot reset instances as the command line asks, or have memories grow so.
fn say_strategies(arguments: &ServeArguments, engine: &Engine) -> Result<(), String> {
    let strategies = &arguments.strategies;
    for notice in strategies.resets.notice(engine)?.into_iter().chain(strategies.growth.notice()) {
        say(Severity::Warning, format_args!("{notice}"));
    }
    Ok(())
}

fn config(arguments: &ServeArguments) -> Result<pagefork_serve::ServerConfig, String> {
    let mut config = pagefork_serve::ServerConfig::new(arguments.addr);
    config.admin = arguments.admin;
    config.connections_max = arguments.connections;
    config.concurrency = arguments.concurrency;
    config.queue = arguments.queue;
    config.queue_timeout = arguments.queue_timeout;
    config.timeout = arguments.timeout;
    config.client_timeout = arguments.client_timeout;
    config.body_max = arguments.body_max;
    config.grace = arguments.grace;
    config.keep_request_ids = arguments.keep_request_id;
    config.name = program::shown(arguments.program.file()).to_string();
    if let Some(path) = &arguments.log {
        config.log(output("log", path)?);
    }
    if let Some(path) = &arguments.access_log {
        let format = match arguments.log_format {
            LogFormat::Common => AccessFormat::Common,
            LogFormat::Json => AccessFormat::Json,
        };
        config.access_log(format, output("access log", path)?);
    }
    Ok(config)
}

fn output(what: &str, path: &Path) -> Result<LogOutput, String> {
    if path == Path::new("-") {
        return Ok(Box::new(std::io::stdout()).into());
    }
    LogOutput::file(path).map_err(|error| {
        format!(
            "cannot write the {what} {}: {error}; give a file in a directory that may be \
             written to, or `-` for standard output",
            path.display()
        )
    })
}
