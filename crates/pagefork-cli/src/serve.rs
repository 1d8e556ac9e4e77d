use std::fs::OpenOptions;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;

use pagefork::{Config, Linker, Module, Store};
use pagefork_serve::cgi::VariableOptions;
use pagefork_serve::{AccessFormat, Output, Program, ProgramOptions, Server, Signals};
use pagefork_wasi::{Permissions, WasiCtx, WasiCtxBuilder};

use crate::arguments::{LogFormat, Serve, UnknownImports};
use crate::{program, run};

/// Serves a program until a signal says to stop.
pub(crate) fn serve(arguments: &Serve) -> Result<ExitCode, String> {
    // First of all, while there is one thread.
    let signals = Signals::block().map_err(|error| format!("cannot wait for signals: {error}"))?;
    let file = arguments.file();
    let program = make_program(arguments)?;
    let server = Server::start(config(arguments)?, program).map_err(|error| error.to_string())?;
    eprintln!("pagefork: {} answers at http://{}/", file.display(), server.address());
    if let Some(admin) = server.admin_address() {
        eprintln!("pagefork: its status is at http://{admin}/, metrics at http://{admin}/metrics");
    }

    let stop = server.stop_handle();
    let waiting = std::thread::Builder::new().name("pagefork-signals".to_owned());
    waiting
        .spawn(move || {
            if let Ok(signal) = signals.wait() {
                eprintln!("pagefork: {signal}: no further requests are accepted");
                stop.stop();
            }
            if let Ok(signal) = signals.wait() {
                eprintln!("pagefork: {signal} again: requests under way are interrupted");
                stop.stop_now();
            }
        })
        .map_err(|error| format!("cannot start a thread that waits for signals: {error}"))?;
    let summary = server.wait();
    eprintln!("pagefork: stopped after {} requests", summary.requests);
    match summary.left {
        0 => Ok(ExitCode::SUCCESS),
        left => Err(format!("{left} requests could not be interrupted")),
    }
}

fn make_program(arguments: &Serve) -> Result<Program, String> {
    let file = arguments.file();
    let mut config = Config::new();
    if !arguments.no_cache {
        config.cache(run::cache(arguments.cache_directory.as_deref()));
    }
    let module = program::load(config, file)?;
    let linker = linker(arguments, &module)?;
    let template = context(arguments)?.template().map_err(|error| error.to_string())?;
    let options = ProgramOptions {
        memory_max: arguments.memory_max,
        variables: VariableOptions { authorization: arguments.authorization },
        fixed: arguments.variables.iter().map(|(name, _)| name.clone()).collect(),
    };
    Program::new(&linker, &module, template, options)
        .map_err(|error| format!("{}: {error}", file.display()))
}

fn linker(arguments: &Serve, module: &Module) -> Result<Linker<WasiCtx>, String> {
    let engine = module.engine();
    let mut linker: Linker<WasiCtx> = Linker::new(engine);
    pagefork_wasi::add_to_linker(&mut linker, |context| context)
        .map_err(|error| format!("{error:#}"))?;
    if arguments.unknown_imports == UnknownImports::Trap {
        linker.define_unknown_imports_as_traps(module).map_err(|error| format!("{error:#}"))?;
    }
    let context = WasiCtx::builder().build().map_err(|error| error.to_string())?;
    let mut store = Store::new(engine, context);
    run::check_imports(arguments.file(), &linker, &mut store, module)?;
    Ok(linker)
}

/// What the program is given apart from requests.
fn context(arguments: &Serve) -> Result<WasiCtxBuilder, String> {
    let mut builder = WasiCtxBuilder::new();
    builder.arg(arguments.file().as_os_str().as_bytes());
    builder.args(arguments.arguments().iter().map(|argument| argument.as_bytes()));
    for (name, value) in &arguments.variables {
        builder.env(name.as_bytes(), value.as_bytes());
    }
    for directory in &arguments.directories {
        builder
            .preopened_dir(&directory.host, &directory.guest, Permissions::ReadWrite)
            .map_err(|error| error.to_string())?;
    }
    Ok(builder)
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
    config.name = arguments.file().display().to_string();
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
