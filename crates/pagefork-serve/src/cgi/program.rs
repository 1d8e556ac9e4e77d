//! CGI programs in WebAssembly: handlers that answer each request by a fresh instance.

use std::fmt;
use std::io::IoSlice;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use http::{Method, Uri};
use pagefork::{
    CodeBounds, Error, ErrorKind, GrowthKind, InstancePre, LimitError, Linker, Module, StoreLimits,
    StrategyConfig, TypedExport,
};
use pagefork_wasi::{
    BuildError, Environment, Errno, Exit, InputSource, OutputKind, OutputSink, Readable, StdinKind,
    WasiCtx, WasiTemplate,
};

use crate::cgi::{self, CgiOutput, Redirect, VariableOptions};
use crate::handler::failure::{Failure, FailureKind, Severity};
use crate::handler::lock::lock;
use crate::handler::request::{BodyReader, Request};
use crate::handler::response::ResponseWriter;
use crate::handler::{Handler, Phase, PoolGauges};

/// A request is redirected within the program this often at most.
const REDIRECTS_MAX: usize = 10;

/// Longest line of standard error, in bytes; longer ones are split.
const LINE_MAX: usize = 4096;

/// Bytes of standard error that one call takes at most: between calls, a program can be stopped.
const TAKEN_MAX: usize = 1 << 20;

/// Lines of standard error that reach the log for each request.
const LINES_MAX: usize = 1000;

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
    pre: InstancePre<WasiCtx>,
    start: TypedExport<(), ()>,
    template: WasiTemplate,
    options: ProgramOptions,
    /// Each instance that runs holds a clone.
    live: Arc<()>,
}

impl Program {
    /// The best setting for the engine of a program. Most programs grow their memory to the same
    /// size for each request: with this setting that costs no system call, and compiling takes
    /// twice as long.
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
    pub fn new(
        linker: &Linker<WasiCtx>,
        module: &Module,
        template: WasiTemplate,
        options: ProgramOptions,
    ) -> Result<Program, CgiProgramError> {
        let pre = linker.instantiate_pre(module).map_err(CgiProgramError::Instantiate)?;
        let start = module.get_typed_export("_start").map_err(|_| CgiProgramError::NoStart)?;
        let program = Program { pre, start, template, options, live: Arc::new(()) };
        let (stdin, output) = (StdinKind::Null, OutputKind::Null);
        let environment = program.template.environment();
        let context = program.template.context(environment, stdin, output.clone(), output);
        let spawned = program.pre.spawn_limited(0, context, program.limits(), drop);
        spawned.map_err(CgiProgramError::from_spawning)?;
        Ok(program)
    }

    /// The limits of an instance.
    fn limits(&self) -> StoreLimits {
        StoreLimits::new().memory_total(self.options.memory_max as usize)
    }

    /// Runs the program once, in a fresh instance.
    fn run(
        &self,
        request: &Request,
        response: &ResponseWriter,
    ) -> Result<Option<Redirect>, Failure> {
        let begun = Instant::now();
        let output = Arc::new(CgiStdout(Mutex::new(CgiOutput::new(response.clone()))));
        let context = self.context(request, response, &output)?;
        let _live = Arc::clone(&self.live);
        let mut guard = None;
        // A start function is the program's too.
        let spawned = self.pre.spawn_limited(0, context, self.limits(), |handle| {
            guard = Some(response.on_give_up(move || handle.interrupt()));
        });
        let (mut store, instance) = match spawned {
            Ok(spawned) => spawned,
            Err(error) if is_of_a_run(&error) => {
                return self.ended(Err(error), request, response, &output);
            }
            Err(error) => return Err(Failure::new(FailureKind::Spawn, format!("{error:#}"))),
        };
        let spawned = Instant::now();
        response.record(Phase::Spawn, spawned - begun);

        let called = if response.is_given_up() {
            Ok(())
        } else {
            let start = instance.get_typed_export(&store, &self.start);
            start.and_then(|start| start.call(&mut store, ()))
        };
        drop(guard);
        response.record(Phase::Run, spawned.elapsed());
        let ended = self.ended(called, request, response, &output);
        drop(store);
        ended
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
        request: &Request,
        response: &ResponseWriter,
        output: &Arc<CgiStdout>,
    ) -> Result<WasiCtx, Failure> {
        let mut environment = self.template.environment();
        self.set_variables(request, &mut environment)?;
        // After a redirect there is none, even if some of the body was not read.
        let stdin = match request.body_size {
            Some(0) => StdinKind::Null,
            _ => StdinKind::Source(Arc::new(RequestStdin(request.body.clone()))),
        };
        let stdout = OutputKind::Sink(Arc::clone(output) as Arc<dyn OutputSink>);
        let stderr = OutputKind::Sink(Arc::new(StderrLines::new(request, response)));
        let mut context = self.template.context(environment, stdin, stdout, stderr);
        let watched = response.clone();
        context.set_interrupt_check(move || watched.is_given_up());
        Ok(context)
    }

    fn set_variables(
        &self,
        request: &Request,
        environment: &mut Environment,
    ) -> Result<(), Failure> {
        environment.reserve(32, 1024);
        let fixed = &self.options.fixed;
        cgi::variables(request, self.options.variables, |name, value| {
            if fixed.iter().any(|fixed| fixed.as_bytes() == name) {
                return Ok(());
            }
            environment.push_parts(name, value).map_err(|error: BuildError| {
                Failure::new(FailureKind::BadRequest, error.to_string())
            })
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
        let counters = self.pre.module().engine().pool_counters();
        Some(PoolGauges {
            live: Arc::strong_count(&self.live) as u64 - 1,
            parked: counters.parked,
            resident_bytes: counters.resident,
            dirty_pages: Some(counters.written),
            warm: counters.taken,
            cold: counters.missed,
            trimmed: counters.trimmed,
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

/// The body of a request as standard input.
#[derive(Debug)]
struct RequestStdin(BodyReader);

impl InputSource for RequestStdin {
    fn read(&self, into: &mut [u8]) -> Result<Option<usize>, Errno> {
        self.0.try_read(into).map_err(|_| Errno::Io)
    }

    fn wait(&self, timeout: Option<Duration>) -> Option<Readable> {
        let (available, hangup) = self.0.wait(timeout)?;
        Some(Readable { available: available as u64, hangup })
    }
}

/// Standard output.
#[derive(Debug)]
struct CgiStdout(Mutex<CgiOutput>);

impl CgiStdout {}

impl OutputSink for CgiStdout {
    fn write(&self, slices: &[IoSlice<'_>]) -> Result<usize, Errno> {
        let mut output = lock(&self.0);
        let mut written = 0;
        for slice in slices {
            output.write(slice).map_err(|_| Errno::Io)?;
            written += slice.len();
        }
        Ok(written)
    }
}

/// Standard error, as lines of the server's log.
#[derive(Debug)]
struct StderrLines {
    id: http::HeaderValue,
    response: ResponseWriter,
    state: Mutex<StderrState>,
}

#[derive(Debug, Default)]
struct StderrState {
    line: Vec<u8>,
    count: usize,
}

impl StderrLines {
    fn new(request: &Request, response: &ResponseWriter) -> StderrLines {
        let (id, response) = (request.id.clone(), response.clone());
        StderrLines { id, response, state: Mutex::default() }
    }

    fn write_line(&self, state: &mut StderrState) {
        state.count += 1;
        if state.count <= LINES_MAX {
            let text = String::from_utf8_lossy(&state.line);
            self.response.log(Severity::Info, &self.id, &format!("stderr: {text}"));
        } else if state.count == LINES_MAX + 1 {
            let text = "stderr: (what follows is left out)";
            self.response.log(Severity::Info, &self.id, text);
        }
        state.line.clear();
    }
}

impl OutputSink for StderrLines {
    fn write(&self, slices: &[IoSlice<'_>]) -> Result<usize, Errno> {
        let mut state = lock(&self.state);
        let mut taken = 0;
        for byte in slices.iter().flat_map(|slice| slice.iter()).take(TAKEN_MAX) {
            taken += 1;
            if *byte == b'\n' || state.line.len() == LINE_MAX {
                self.write_line(&mut state);
            }
            if *byte != b'\n' {
                state.line.push(*byte);
            }
        }
        Ok(taken)
    }
}

impl Drop for StderrLines {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let mut state = std::mem::take(state);
        if !state.line.is_empty() {
            self.write_line(&mut state);
        }
    }
}
