//! `pagefork run`: runs a program, or one function of a module.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use pagefork::{
    Cache, Choice, Config, Engine, Error, ExternType, Func, GrowthChoice, Instance, LinkError,
    Linker, Module, Store, StrategyConfig, Trap, Val,
};
use pagefork_wasi::{Exit, WasiCtx, WasiCtxBuilder};

use crate::arguments::{
    EnvironmentArguments, ProfileFormat, ProgramArguments, ResetArguments, RunArguments,
    UnknownImports,
};
use crate::captured::restore;
use crate::program::{self, Loader};
use crate::{output, show, sockets, values};

/// What a shell shows for a process that ended by SIGABRT: a trap is told apart
/// from every exit code that programs choose themselves.
pub(crate) const TRAP_EXIT_CODE: u8 = 134;

/// Runs a program. Its exit code is ours.
pub(crate) fn run(arguments: &RunArguments) -> Result<ExitCode, String> {
    if arguments.program.image.from.is_some() {
        return restore::run(arguments);
    }
    let file = arguments.program.file();
    let loader = Loader::new(config(arguments))?;
    say_resets(&arguments.strategies.resets, loader.engine())?;
    if let Some(notice) = arguments.strategies.growth.notice() {
        output::say(notice);
    }
    let module = loader.load(file)?;
    let mut store = Store::new(loader.engine(), context(arguments)?);
    if let Some(fuel) = arguments.fuel {
        store.set_fuel(fuel).map_err(|error| error.to_string())?;
    }
    if let Some(timeout) = arguments.timeout {
        store.set_timeout(Some(timeout)).map_err(|error| error.to_string())?;
    }
    let mut linker = linker(loader.engine())?;
    for (name, file) in &arguments.preloads {
        let module = loader.load(file)?;
        complete(&mut linker, file, arguments.unknown_imports, &mut store, &module)?;
        if let Err(error) = linker.module(&mut store, name, &module) {
            return outcome(&arguments.into(), file, &store, &error);
        }
    }
    complete(&mut linker, file, arguments.unknown_imports, &mut store, &module)?;
    let called = linker.instantiate(&mut store, &module).and_then(|instance| {
        let called = call(arguments, &mut store, instance);
        if arguments.say_strategies {
            say_strategies(&instance.strategy(&store), &instance.growth(&store));
        }
        called
    });
    match called {
        Ok(results) => {
            let lines = results.iter().map(|result| values::show(result) + "\n");
            output::print(lines.collect::<String>())?;
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => outcome(&arguments.into(), file, &store, &error),
    }
}

/// What a program may use, and where it is written down if it fails.
#[derive(Default)]
pub(crate) struct RunLimits<'a> {
    pub(crate) timeout: Option<Duration>,
    pub(crate) fuel: Option<u64>,
    pub(crate) core_dump: Option<&'a Path>,
}

impl<'a> From<&'a RunArguments> for RunLimits<'a> {
    fn from(arguments: &'a RunArguments) -> Self {
        let RunArguments { timeout, fuel, core_dump, .. } = arguments;
        Self { timeout: *timeout, fuel: *fuel, core_dump: core_dump.as_deref() }
    }
}

fn config(arguments: &RunArguments) -> Config {
    let mut config = Config::new();
    config.profile(match arguments.profile {
        None => pagefork::Profile::None,
        Some(ProfileFormat::Perfmap) => pagefork::Profile::PerfMap,
        Some(ProfileFormat::Jitdump) => pagefork::Profile::JitDump,
    });
    config.fuel(arguments.fuel.is_some());
    config.deterministic(arguments.deterministic);
    // Frames of a dump are told by their offsets in the module.
    config.sources(arguments.core_dump.is_some());
    set_compiling(&mut config, &arguments.program);
    arguments.strategies.set(&mut config, StrategyConfig::default());
    config
}

/// Says it if this machine cannot reset instances as the command line asks.
pub(crate) fn say_resets(resets: &ResetArguments, engine: &Engine) -> Result<(), String> {
    if let Some(notice) = resets.notice(engine)? {
        output::say(notice);
    }
    Ok(())
}

/// Says how instances are reset and their memories grow, and why.
pub(crate) fn say_strategies(strategy: &Choice, growth: &GrowthChoice) {
    output::say(format_args!("instances are reset by {strategy}"));
    output::say(format_args!("memories grow by {growth}"));
}

/// Sets the time limit of compiling, and the cache of compiled programs. A cache that cannot be
/// used is reported only if the command line names it: programs run without.
pub(crate) fn set_compiling(config: &mut Config, program: &ProgramArguments) {
    config.compile_timeout(program.compile_timeout);
    if program.no_cache {
        return;
    }
    let Some(directory) = &program.cache_directory else {
        config.cache(Cache::in_default_directory());
        return;
    };
    let cache = Cache::new(directory);
    if let Some(refused) = cache.stats().refused {
        output::say(format_args!("nothing is kept for later runs: {refused}"));
    }
    config.cache(cache);
}

/// A linker with everything that programs can import.
pub(crate) fn linker(engine: &Engine) -> Result<Linker<WasiCtx>, String> {
    let mut linker: Linker<WasiCtx> = Linker::new(engine);
    pagefork_wasi::add_to_linker(&mut linker, |context| context)
        .map_err(|error| format!("{error:#}"))?;
    // Here is the original of every program.
    linker.func_wrap("pagefork", "snapshot", || 0).map_err(|error| format!("{error:#}"))?;
    linker.define_memory_discard().map_err(|error| format!("{error:#}"))?;
    Ok(linker)
}

/// Defines the unknown imports of a module where that was asked for. Refuses a module that
/// imports something else.
pub(crate) fn complete<T: 'static>(
    linker: &mut Linker<T>,
    file: &Path,
    unknown_imports: UnknownImports,
    store: &mut Store<T>,
    module: &Module,
) -> Result<(), String> {
    if unknown_imports == UnknownImports::Trap {
        linker.define_unknown_imports_as_traps(module).map_err(|error| format!("{error:#}"))?;
    }
    check_imports(file, linker, store, module)
}

/// Names everything that is missing, where the linker would name the first.
fn check_imports<T: 'static>(
    file: &Path,
    linker: &Linker<T>,
    store: &mut Store<T>,
    module: &Module,
) -> Result<(), String> {
    let (mut rows, mut others) = (Vec::new(), false);
    for import in module.imports() {
        if linker.get_by_import(&mut *store, &import).is_none() {
            others |= !matches!(import.ty(), ExternType::Func(_));
            let kind = show::extern_kind(&import.ty());
            let ty = show::extern_type(&import.ty());
            let names = vec![show::name(import.module()), show::name(import.name())];
            rows.push([vec![kind.to_owned()], names, vec![ty]].concat());
        }
    }
    if rows.is_empty() {
        return Ok(());
    }
    let advice = match others {
        true => {
            "The command defines functions of WASI preview 1 (`wasi_snapshot_preview1`); \
                 `--preload NAME=FILE` offers what a module exports. Otherwise such a module needs a \
                 host of its own, through the crate `pagefork`."
        }
        false => {
            "The command defines functions of WASI preview 1 (`wasi_snapshot_preview1`). \
                  `--preload NAME=FILE` offers what a module exports. `--unknown-imports trap` runs the program all the same; a call of one of these \
                  functions then traps."
        }
    };
    let others = show::first_of(&mut rows).map_or(String::new(), |others| format!("  {others}\n"));
    Err(format!(
        "{} imports what nothing here defines:\n{}{others}{advice}",
        program::shown(file),
        show::table(&rows, &[])
    ))
}

fn context(arguments: &RunArguments) -> Result<WasiCtx, String> {
    let mut builder = WasiCtxBuilder::new();
    builder.inherit_stdio();
    // First, so that a variable that is asked for prevails.
    sockets::pass(arguments, &mut builder)?;
    surround(&mut builder, &arguments.program, &arguments.environment)?;
    builder.build().map_err(|error| error.to_string())
}

/// Gives a program its arguments, variables and directories.
pub(crate) fn surround(
    builder: &mut WasiCtxBuilder,
    program: &ProgramArguments,
    environment: &EnvironmentArguments,
) -> Result<(), String> {
    builder.arg(program.file().as_os_str().as_bytes());
    builder.args(program.arguments().iter().map(|argument| argument.as_bytes()));
    for (name, value) in &environment.variables {
        builder.env(name.as_bytes(), value.as_bytes());
    }
    preopen(builder, environment)
}

/// Gives a program its directories.
pub(crate) fn preopen(
    builder: &mut WasiCtxBuilder,
    environment: &EnvironmentArguments,
) -> Result<(), String> {
    for directory in &environment.directories {
        builder
            .preopened_dir(&directory.host, &directory.guest, directory.permissions)
            .map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Calls the function that `--invoke` names, or `_start`, and gives its results. A library is
/// initialized first.
fn call(
    arguments: &RunArguments,
    store: &mut Store<WasiCtx>,
    instance: Instance,
) -> Result<Vec<Val>, Error> {
    pagefork_wasi::initialize(&mut *store, &instance)?;
    let has_begun = instance.module(&*store).compiled().info.start.is_some();
    let name = match &arguments.invoke {
        Some(name) => name,
        // The start function was the whole program.
        None if has_begun && instance.get_func(&mut *store, "_start").is_none() => {
            return Ok(Vec::new());
        }
        None => "_start",
    };
    let function = instance.get_func(&mut *store, name).ok_or_else(|| {
        let exports = instance.exports(&mut *store);
        let mut functions: Vec<_> = exports
            .filter(|export| export.clone().into_extern().into_func().is_some())
            .map(|export| show::name(export.name()))
            .collect();
        let others = show::first_of(&mut functions);
        functions.extend(others);
        Error::msg(match (&arguments.invoke, functions.join(", ")) {
            (Some(name), functions) => format!("no function is exported as {name:?}, only: {functions}"),
            (None, functions) => format!(
                "this module has no `_start`, so it is no program; call a function with `--invoke`: {functions}"
            ),
        })
    })?;
    match arguments.invoke {
        None => {
            function.call(store, &[], &mut [])?;
            Ok(Vec::new())
        }
        Some(_) => call_with(store, function, name, arguments.program.arguments()),
    }
}

/// Calls a function with arguments from the command line, and gives its results.
pub(crate) fn call_with<T: 'static>(
    store: &mut Store<T>,
    function: Func,
    name: &str,
    arguments: &[OsString],
) -> Result<Vec<Val>, Error> {
    let ty = function.ty(&*store);
    let (expected, found) = (ty.params.len(), arguments.len());
    if expected != found {
        return Err(Error::msg(format!("{name:?} takes {expected} arguments, {found} are given")));
    }
    let mut params = Vec::new();
    for (param, text) in ty.params.iter().zip(arguments) {
        params.push(values::parse(&text.to_string_lossy(), *param).map_err(Error::msg)?);
    }
    let mut results = vec![Val::I32(0); ty.results.len()];
    function.call(store, &params, &mut results)?;
    Ok(results)
}

/// The exit code for a guest that did not simply return; `file` is what it was made from.
pub(crate) fn outcome<T: 'static>(
    limits: &RunLimits<'_>,
    file: &Path,
    store: &Store<T>,
    error: &Error,
) -> Result<ExitCode, String> {
    if let Some(exit) = error.downcast_ref::<Exit>() {
        // As a shell has it: the low eight bits.
        return Ok(ExitCode::from(exit.0 as u8));
    }
    let file = program::shown(file);
    let undefined = matches!(error.downcast_ref(), Some(LinkError::UndefinedFunction { .. }));
    if error.downcast_ref::<Trap>().is_none() && !undefined {
        return Err(format!("{file}: {error:?}"));
    }
    output::say(format_args!("{file}: {error:?}"));
    if let Some(timeout) = limits.timeout {
        output::say(format_args!("it may run for {timeout:?} (`--timeout`)"));
    }
    if let Some(fuel) = limits.fuel {
        let left = store.fuel().unwrap_or(0);
        output::say(format_args!("of {fuel} units of fuel {left} were left (`--fuel`)"));
    }
    if let (Some(dump), Some(backtrace)) = (limits.core_dump, error.backtrace()) {
        // The exit code is the trap's, even if the dump cannot be written.
        match write_core(dump, &store.core_dump(&file.to_string(), backtrace)) {
            Ok(()) => output::say(format_args!("core dump in {}", dump.display())),
            Err(error) => output::say(format_args!(
                "cannot write the core dump to {}: {error}",
                dump.display()
            )),
        }
    }
    Ok(ExitCode::from(TRAP_EXIT_CODE))
}

/// Writes what the guest was, only for its owner: it holds everything that the guest held.
fn write_core(file: &Path, dump: &[u8]) -> std::io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    options.open(file)?.write_all(dump)
}
