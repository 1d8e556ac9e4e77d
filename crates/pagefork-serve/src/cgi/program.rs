//! CGI programs in WebAssembly: handlers that answer each request by a fresh instance.

use std::fmt;
use std::io::IoSlice;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use http::{Method, Uri};
use pagefork::{
    CallProgress, Choice, CodeBounds, Error, ErrorKind, GrowthChoice, GrowthKind, Instance,
    InstancePre, InterruptHandle, LimitError, Linker, Module, Store, StoreLimits, StrategyConfig,
    TypedExport,
};
use pagefork_wasi::{
    BuildError, Environment, Exit, OutputKind, OutputSink, StdinKind, WasiCtx, WasiTemplate,
};

use crate::cgi::started::{ForkStreams, StartedProgram};
use crate::cgi::streams::{CgiStdout, RequestStdin, StderrLines};
use crate::cgi::{self, CgiOutput, Redirect, VariableOptions, scgi};
use crate::handler::failure::{Failure, FailureKind, Severity};
use crate::handler::lock::lock;
use crate::handler::request::Request;
use crate::handler::response::ResponseWriter;
use crate::handler::{Handler, Phase, PoolGauges};

/// A request is redirected within the program this often at most.
const REDIRECTS_MAX: usize = 10;

/// Limits of a program, and its variables.
///
/// # Examples
///
/// ```
/// use pagefork_serve::ProgramOptions;
///
/// let mut options = ProgramOptions { memory_max: 64 << 20, ..ProgramOptions::default() };
/// // What the embedder has set in the environment, requests do not change.
/// options.fixed.push("SERVER_NAME".to_owned());
/// options.variables.authorization = true;
/// ```
#[derive(Clone, Debug)]
pub struct ProgramOptions {
    /// Most bytes that all memories of an instance may have together.
    pub memory_max: u64,
    /// Variables that it gets on request.
    pub variables: VariableOptions,
    /// Names of variables that requests do not change.
    pub fixed: Vec<String>,
}

impl Default for ProgramOptions {
    /// 256 MiB of memory, and no variables on request.
    fn default() -> Self {
        Self { memory_max: 256 << 20, variables: VariableOptions::default(), fixed: Vec::new() }
    }
}

/// A program that cannot serve.
///
/// # Examples
///
/// ```
/// use pagefork::{Engine, Linker, Module};
/// use pagefork_serve::{CgiProgramError, Program, ProgramOptions};
/// use pagefork_wasi::WasiCtxBuilder;
///
/// let engine = Engine::default();
/// let module = Module::new(&engine, "(module)")?;
/// let template = WasiCtxBuilder::new().template()?;
/// let made = Program::new(&Linker::new(&engine), &module, template, ProgramOptions::default());
/// assert!(matches!(made, Err(CgiProgramError::NoStart)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CgiProgramError {
    /// It has no `_start`.
    #[error(
        "the module exports no function `_start`, so it is no program; build it as a WASI \
         command (`wasm32-wasip1`), which reads requests as CGI programs do"
    )]
    NoStart,
    /// It cannot be instantiated.
    #[error("the program cannot be started: {0:#}")]
    Instantiate(Error),
    /// Its memories are larger than they may be.
    #[error(
        "the program's memory has {size} bytes to begin with, and may have {limit}: \
         allow more, or build it with less"
    )]
    Memory {
        /// Bytes that it has.
        size: u64,
        /// Bytes that it may have.
        limit: u64,
    },
}

/// What is told how to interrupt an instance, before any of it runs.
type Watch<'a> = &'a mut dyn FnMut(InterruptHandle);

/// The limits of an instance.
fn limits(options: &ProgramOptions) -> StoreLimits {
    StoreLimits::new().memory_total(options.memory_max as usize)
}

/// Standard output and standard error of a request.
fn outputs(
    request: &Request,
    response: &ResponseWriter,
    output: &Arc<CgiStdout>,
) -> (OutputKind, OutputKind) {
    let stdout = OutputKind::Sink(Arc::clone(output) as Arc<dyn OutputSink>);
    let stderr = OutputKind::Sink(Arc::new(StderrLines::new(request, response)));
    (stdout, stderr)
}

/// Whether the program caused an error, and not the machine.
fn is_of_a_run(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Trap | ErrorKind::Exception | ErrorKind::Host)
}

impl CgiProgramError {
    fn from_spawning(error: Error) -> Self {
        match error.downcast_ref() {
            Some(&LimitError {
                what: LimitError::MEMORY_TOTAL, requested: size, limit, ..
            }) => Self::Memory { size, limit },
            _ => Self::Instantiate(error),
        }
    }
}

/// A CGI program. Each request gets a fresh instance of it.
///
/// # Examples
///
/// ```
/// use std::io::{Read, Write};
///
/// use pagefork::{Config, Engine, Linker, Module};
/// use pagefork_serve::{Program, ProgramOptions, Server, ServerConfig};
/// use pagefork_wasi::{WasiCtx, WasiCtxBuilder};
///
/// let engine = Engine::new(Config::new().strategies(Program::strategies()))?;
/// // Writes a head and a body: 26 and 5 bytes.
/// let module = Module::new(&engine, r#"(module
///     (import "wasi_snapshot_preview1" "fd_write"
///         (func $write (param i32 i32 i32 i32) (result i32)))
///     (memory (export "memory") 1)
///     (data (i32.const 0) "\10\00\00\00\1f\00\00\00")
///     (data (i32.const 16) "Content-Type: text/plain\0a\0ahello")
///     (func (export "_start")
///         (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))))"#)?;
/// let mut linker = Linker::new(&engine);
/// pagefork_wasi::add_to_linker(&mut linker, |context: &mut WasiCtx| context)?;
/// let template = WasiCtxBuilder::new().template()?;
/// let program = Program::new(&linker, &module, template, ProgramOptions::default())?;
///
/// let server = Server::start(ServerConfig::new(([127, 0, 0, 1], 0).into()), program)?;
/// let mut client = std::net::TcpStream::connect(server.address())?;
/// client.write_all(b"GET / HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")?;
/// let mut answer = String::new();
/// client.read_to_string(&mut answer)?;
/// assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("hello"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Program {
    beginning: Beginning,
    options: ProgramOptions,
    /// Each instance that runs holds a clone.
    live: Arc<()>,
    strategies: StrategiesSeen,
}

/// How an instance was reset and its memories grew, as the metrics and the status page say it. A
/// request notes it if somebody has looked since the last one that did, so that all others write
/// nothing that threads share.
struct StrategiesSeen {
    is_wanted: AtomicBool,
    last: Mutex<Option<(Choice, GrowthChoice)>>,
}

impl Default for StrategiesSeen {
    fn default() -> Self {
        Self { is_wanted: AtomicBool::new(true), last: Mutex::default() }
    }
}

impl StrategiesSeen {
    /// Notes it of an instance that has run.
    fn note<T: 'static>(&self, store: &Store<T>, instance: Instance) {
        if self.is_wanted.load(Ordering::Relaxed) {
            *lock(&self.last) = Some((instance.strategy(store), instance.growth(store)));
            self.is_wanted.store(false, Ordering::Relaxed);
        }
    }

    /// What was noted last.
    fn look(&self) -> (Option<Choice>, Option<GrowthChoice>) {
        self.is_wanted.store(true, Ordering::Relaxed);
        lock(&self.last).unzip()
    }
}

/// Where instances of a program come from.
enum Beginning {
    /// Each begins with `_start`.
    Fresh { pre: InstancePre<WasiCtx>, start: TypedExport<(), ()>, template: WasiTemplate },
    /// Each goes on from the program's first read of standard input; so many have so far.
    Started(Box<StartedProgram>, AtomicU32),
}

impl Program {
    /// The best setting for the engine of a program. Most programs grow their memory to the same
    /// size for each request: with this setting that costs no system call, and compiling takes
    /// twice as long.
    ///
    /// # Examples
    ///
    /// See [`Program`].
    pub fn strategies() -> StrategyConfig {
        StrategyConfig {
            growth: GrowthKind::Auto,
            code: CodeBounds::Dual,
            ..StrategyConfig::default()
        }
    }

    /// Makes a handler of a module. `linker` has the module's imports, and `template` the
    /// arguments, variables and directories that do not depend on the request.
    ///
    /// # Errors
    ///
    /// [`CgiProgramError`]: the program is instantiated once to find out.
    ///
    /// # Examples
    ///
    /// See [`Program`].
    pub fn new(
        linker: &Linker<WasiCtx>,
        module: &Module,
        template: WasiTemplate,
        options: ProgramOptions,
    ) -> Result<Program, CgiProgramError> {
        let pre = linker.instantiate_pre(module).map_err(CgiProgramError::Instantiate)?;
        let start = module.get_typed_export("_start").map_err(|_| CgiProgramError::NoStart)?;
        let (stdin, output) = (StdinKind::Null, OutputKind::Null);
        let context = template.context(template.environment(), stdin, output.clone(), output);
        let spawned = pre.spawn_limited(0, context, limits(&options), drop);
        spawned.map_err(CgiProgramError::from_spawning)?;
        let beginning = Beginning::Fresh { pre, start, template };
        Ok(Program {
            beginning,
            options,
            live: Arc::new(()),
            strategies: StrategiesSeen::default(),
        })
    }

    /// Makes a handler of a program that has been started: each request is answered by a fork of
    /// it, which goes on from the program's first read of standard input. It reads the request
    /// there: the variables as a netstring, as in SCGI, then the body. The size of a body that is
    /// not known in advance is empty: it ends with the input. What the program had printed before
    /// is the beginning of each response.
    ///
    /// # Examples
    ///
    /// [`StartedProgram`] has an example of how it is started.
    pub fn started(program: StartedProgram, options: ProgramOptions) -> Program {
        let beginning = Beginning::Started(Box::new(program), AtomicU32::new(0));
        Program { beginning, options, live: Arc::new(()), strategies: StrategiesSeen::default() }
    }

    /// Runs the program once, in a fresh instance.
    fn run(
        &self,
        request: &Request,
        response: &ResponseWriter,
    ) -> Result<Option<Redirect>, Failure> {
        let output = Arc::new(CgiStdout(Mutex::new(CgiOutput::new(response.clone()))));
        let _live = Arc::clone(&self.live);
        match &self.beginning {
            Beginning::Fresh { pre, start, template } => {
                let context = self.context(template, request, response, &output)?;
                let spawn = |watch: Watch<'_>| {
                    let limits = limits(&self.options);
                    pre.spawn_limited(0, context, limits, watch)
                };
                self.answer(request, response, &output, spawn, |(mut store, instance)| {
                    let start = instance.get_typed_export(&store, start);
                    let called = start.and_then(|start| start.call(&mut store, ()));
                    self.strategies.note(&store, instance);
                    called
                })
            }
            Beginning::Started(program, count) => {
                let number = count.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
                if let Err(error) = output.write(&[IoSlice::new(program.written())]) {
                    let detail = format!("what it printed when it was started: {error}");
                    return Err(Failure::new(FailureKind::BadResponse, detail));
                }
                let streams = self.fork_streams(request, response, &output)?;
                let spawn = |watch: Watch<'_>| {
                    let limits = limits(&self.options);
                    let watched = response.clone();
                    let given_up = move || watched.is_given_up();
                    program.fork_with_instance(number, streams, given_up, limits, watch)
                };
                self.answer(request, response, &output, spawn, |(mut store, instance)| {
                    let resumed = store.resume();
                    self.strategies.note(&store, instance);
                    match resumed? {
                        CallProgress::Finished(_) => Ok(()),
                        CallProgress::Suspended => Err(Error::msg("the program was suspended")),
                    }
                })
            }
        }
    }

    /// Spawns an instance and runs it; `spawn` has what interrupts it watched.
    fn answer<S>(
        &self,
        request: &Request,
        response: &ResponseWriter,
        output: &CgiStdout,
        spawn: impl FnOnce(Watch<'_>) -> Result<S, Error>,
        run: impl FnOnce(S) -> Result<(), Error>,
    ) -> Result<Option<Redirect>, Failure> {
        let begun = Instant::now();
        let mut guard = None;
        // A start function is the program's too.
        let spawned = spawn(&mut |handle| {
            guard = Some(response.on_give_up(move || handle.interrupt()));
        });
        let store = match spawned {
            Ok(store) => store,
            Err(error) if is_of_a_run(&error) => {
                return self.ended(Err(error), request, response, output);
            }
            Err(error) => return Err(Failure::new(FailureKind::Spawn, format!("{error:#}"))),
        };
        let spawned = Instant::now();
        response.record(Phase::Spawn, spawned - begun);
        // The instance goes when it has run, and its result is told after.
        let called = if response.is_given_up() { Ok(()) } else { run(store) };
        drop(guard);
        response.record(Phase::Run, spawned.elapsed());
        self.ended(called, request, response, output)
    }

    /// The result of a run.
    fn ended(
        &self,
        called: Result<(), Error>,
        request: &Request,
        response: &ResponseWriter,
        output: &CgiStdout,
    ) -> Result<Option<Redirect>, Failure> {
        let Err(error) = called else { return lock(&output.0).end() };
        let code = match error.downcast_ref() {
            Some(Exit(code)) => *code,
            // The front end knows better why.
            None if response.is_given_up() => return Ok(None),
            None => return Err(Failure::new(FailureKind::Trap, format!("{error:?}"))),
        };
        let ended = lock(&output.0).end();
        if code != 0 {
            let text = format!("the program exited with code {code}");
            let failed = |failure: Failure| {
                Failure::new(failure.kind(), format!("{text}; {}", failure.detail()))
            };
            return ended
                .inspect(|_| response.log(Severity::Warning, &request.id, &text))
                .map_err(failed);
        }
        ended
    }

    fn context(
        &self,
        template: &WasiTemplate,
        request: &Request,
        response: &ResponseWriter,
        output: &Arc<CgiStdout>,
    ) -> Result<WasiCtx, Failure> {
        let mut environment: Environment = template.environment();
        environment.reserve(32, 1024);
        self.variables(request, |name, value| {
            environment.push_parts(name, value).map_err(|error: BuildError| {
                Failure::new(FailureKind::BadRequest, error.to_string())
            })
        })?;
        // After a redirect there is none, even if some of the body was not read.
        let stdin = match request.body_size {
            Some(0) => StdinKind::Null,
            _ => StdinKind::Source(Arc::new(RequestStdin::new(
                Vec::new(),
                Some(request.body.clone()),
            ))),
        };
        let (stdout, stderr) = outputs(request, response, output);
        let mut context = template.context(environment, stdin, stdout, stderr);
        let watched = response.clone();
        context.set_interrupt_check(move || watched.is_given_up());
        Ok(context)
    }

    /// The streams of a fork: the request comes on standard input.
    fn fork_streams(
        &self,
        request: &Request,
        response: &ResponseWriter,
        output: &Arc<CgiStdout>,
    ) -> Result<ForkStreams, Failure> {
        let mut variables = Vec::with_capacity(1024);
        let size = request.body_size.map_or(String::new(), |size| size.to_string());
        scgi::push(&mut variables, b"CONTENT_LENGTH", &[size.as_bytes()])?;
        scgi::push(&mut variables, b"SCGI", &[b"1"])?;
        self.variables(request, |name, value| match name {
            b"CONTENT_LENGTH" => Ok(()),
            _ => scgi::push(&mut variables, name, value),
        })?;
        let body = (request.body_size != Some(0)).then(|| request.body.clone());
        let stdin = RequestStdin::new(scgi::netstring(&variables), body);
        let (stdout, stderr) = outputs(request, response, output);
        Ok(ForkStreams { stdin: StdinKind::Source(Arc::new(stdin)), stdout, stderr })
    }

    /// Calls `set` with each variable that requests set.
    fn variables(
        &self,
        request: &Request,
        mut set: impl FnMut(&[u8], &[&[u8]]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let fixed = &self.options.fixed;
        cgi::variables(request, self.options.variables, |name, value| {
            match fixed.iter().any(|fixed| fixed.as_bytes() == name) {
                true => Ok(()),
                false => set(name, value),
            }
        })
    }
}

impl Handler for Program {
    fn handle(&self, mut request: Request, response: &ResponseWriter) -> Result<(), Failure> {
        for _ in 0..=REDIRECTS_MAX {
            let Some(redirect) = self.run(&request, response)? else { return Ok(()) };
            request = redirected(request, &redirect)?;
        }
        let detail = format!("it redirected the request {REDIRECTS_MAX} times to paths of its own");
        Err(Failure::new(FailureKind::BadResponse, detail))
    }

    fn pool(&self) -> Option<PoolGauges> {
        let module = match &self.beginning {
            Beginning::Fresh { pre, .. } => pre.module(),
            Beginning::Started(program, _) => program.module(),
        };
        let counters = module.engine().pool_counters();
        let (strategy, growth) = self.strategies.look();
        Some(PoolGauges {
            live: Arc::strong_count(&self.live) as u64 - 1,
            parked: counters.parked,
            resident_bytes: counters.resident,
            dirty_pages: Some(counters.written),
            warm: counters.taken,
            cold: counters.missed,
            trimmed: counters.trimmed,
            strategy,
            growth,
        })
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program").field("options", &self.options).finish_non_exhaustive()
    }
}

/// A request after a redirect: for another path, and without a body.
fn redirected(mut request: Request, redirect: &Redirect) -> Result<Request, Failure> {
    request.head.uri = redirect.target.parse::<Uri>().map_err(|error| {
        let detail = format!("it redirected to {:?}: {error}", redirect.target);
        Failure::new(FailureKind::BadResponse, detail)
    })?;
    if request.head.method != Method::HEAD {
        request.head.method = Method::GET;
    }
    for name in [http::header::CONTENT_LENGTH, http::header::CONTENT_TYPE] {
        request.head.headers.remove(name);
    }
    request.body_size = Some(0);
    Ok(request)
}
