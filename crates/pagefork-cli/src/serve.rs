use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};

use pagefork::{Config, Store};
use pagefork_serve::cgi::VariableOptions;
use pagefork_serve::{AccessFormat, Output, Program, ProgramOptions, Server, Signals, StopHandle};
use pagefork_wasi::{WasiCtx, WasiCtxBuilder};

use crate::arguments::{LogFormat, Serve};
use crate::program::{self, Loader};
use crate::run;

/// Serves a program until a signal says to stop.
pub(crate) fn serve(arguments: &Serve) -> Result<ExitCode, String> {
    // First of all, while there is one thread.
    let signals = Signals::block().map_err(|error| format!("cannot wait for signals: {error}"))?;
    let stop = Arc::new(OnceLock::new());
    let waiting = std::thread::Builder::new().name("pagefork-signals".to_owned());
    let heard = Arc::clone(&stop);
    waiting
        .spawn(move || heed(&signals, &heard))
        .map_err(|error| format!("cannot start a thread that waits for signals: {error}"))?;
    pagefork_pages::limit_arenas();
    let file = arguments.program.file();
    let program = make_program(arguments)?;
    let server = Server::start(config(arguments)?, program).map_err(|error| error.to_string())?;
    let _ = stop.set(server.stop_handle());
    say(format_args!("{} answers at http://{}/", file.display(), server.address()));
    if let Some(admin) = server.admin_address() {
        say(format_args!("its status is at http://{admin}/, metrics at http://{admin}/metrics"));
    }
    let summary = server.wait();
    say(format_args!("stopped after {} requests", summary.requests));
    match summary.left {
        0 => Ok(ExitCode::SUCCESS),
        left => Err(format!("{left} requests could not be interrupted")),
    }
}

/// Waits for signals that say to stop.
fn heed(signals: &Signals, stop: &OnceLock<StopHandle>) {
    if let Ok(signal) = signals.wait() {
        let Some(stop) = stop.get() else {
            // To compile a large program takes a while.
            say(format_args!("{signal}: stopped before it served anything"));
            std::process::exit(1);
        };
        stop.stop();
        say(format_args!("{signal}: no further requests are accepted"));
    }
    if let (Ok(signal), Some(stop)) = (signals.wait(), stop.get()) {
        stop.stop_now();
        say(format_args!("{signal} again: requests under way are interrupted"));
    }
}

/// A line for whoever looks; nobody need, so that it cannot be written is no error.
fn say(text: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "pagefork: {text}");
}

fn make_program(arguments: &Serve) -> Result<Program, String> {
    let file = arguments.program.file();
    let mut config = Config::new();
    run::set_cache(&mut config, &arguments.program);
    // What was compiled before has one body for each function, and memory grows as usual.
    if !program::is_code_image(file) {
        config.strategies(Program::strategies());
    }
    let loader = Loader::new(config)?;
    let module = loader.load(file)?;
    // Only to look imports up.
    let context = WasiCtx::builder().build().map_err(|error| error.to_string())?;
    let mut store = Store::new(module.engine(), context);
    let mut linker = run::linker(loader.engine())?;
    run::complete(&mut linker, file, arguments.unknown_imports, &mut store, &module)?;
    // What the program is given apart from requests.
    let mut builder = WasiCtxBuilder::new();
    run::surround(&mut builder, &arguments.program, &arguments.world)?;
    let template = builder.template().map_err(|error| error.to_string())?;
    let options = ProgramOptions {
        memory_max: arguments.memory_max,
        variables: VariableOptions { authorization: arguments.authorization },
        fixed: arguments.world.variables.iter().map(|(name, _)| name.clone()).collect(),
    };
    Program::new(&linker, &module, template, options)
        .map_err(|error| format!("{}: {error}", file.display()))
}

fn config(arguments: &Serve) -> Result<pagefork_serve::Config, String> {
    let mut config = pagefork_serve::Config::new(arguments.addr);
    config.admin = arguments.admin;
    config.connections_max = arguments.connections;
    config.concurrency = arguments.concurrency;
    config.queue = arguments.queue;
    config.queue_timeout = arguments.queue_timeout;
    config.timeout = arguments.timeout;
    config.client_timeout = arguments.client_timeout;
    config.body_max = arguments.body_max;
    config.grace = arguments.grace;
    config.name = arguments.program.file().display().to_string();
    if let Some(path) = &arguments.access_log {
        let format = match arguments.log_format {
            LogFormat::Common => AccessFormat::Common,
            LogFormat::Json => AccessFormat::Json,
        };
        config.access_log(format, access_log(path)?);
    }
    Ok(config)
}

fn access_log(path: &Path) -> Result<Output, String> {
    if path == Path::new("-") {
        return Ok(Box::new(std::io::stdout()));
    }
    let opened = OpenOptions::new().append(true).create(true).open(path);
    match opened {
        Ok(file) => Ok(Box::new(file)),
        Err(error) => Err(format!(
            "cannot write the access log {}: {error}; give a file in a directory that may be \
             written to, or `-` for standard output",
            path.display()
        )),
    }
}
