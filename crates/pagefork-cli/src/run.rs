use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use pagefork::{
    Cache, Config, Error, ExternType, Instance, LinkError, Linker, Module, Store, Trap, Val,
};
use pagefork_wasi::{Exit, Permissions, WasiCtx, WasiCtxBuilder};

use crate::arguments::{Profile, Program, Run, UnknownImports, World};
use crate::{program, show, sockets, values};

/// What a shell shows for a process that ended by SIGABRT: a trap is told apart
/// from every exit code that programs choose themselves.
const TRAP_EXIT_CODE: u8 = 134;

/// Runs a program. Its exit code is ours.
pub(crate) fn run(arguments: &Run) -> Result<ExitCode, String> {
    let file = arguments.program.file();
    let module = program::load(config(arguments), file)?;
    let mut store = Store::new(module.engine(), context(arguments)?);
    let linker = linker(file, arguments.unknown_imports, &mut store, &module)?;
    if let Some(fuel) = arguments.fuel {
        store.set_fuel(fuel).map_err(|error| error.to_string())?;
    }
    if let Some(timeout) = arguments.timeout {
        store.set_timeout(Some(timeout));
        // A program that sleeps or waits for input runs no code that could trap.
        let start = Instant::now();
        store.data_mut().set_interrupt_check(move || start.elapsed() >= timeout);
    }
    let called = linker
        .instantiate(&mut store, &module)
        .and_then(|instance| call(arguments, &mut store, instance));
    match called {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => outcome(arguments, &store, &error),
    }
}

fn config(arguments: &Run) -> Config {
    let mut config = Config::new();
    config.profile(match arguments.profile {
        None => pagefork::Profile::None,
        Some(Profile::Perfmap) => pagefork::Profile::PerfMap,
        Some(Profile::Jitdump) => pagefork::Profile::JitDump,
    });
    config.fuel(arguments.fuel.is_some());
    config.deterministic(arguments.deterministic);
    // Frames of a dump are told by their offsets in the module.
    config.sources(arguments.core_dump.is_some());
    set_cache(&mut config, &arguments.program);
    config
}

/// Says where compiled programs are kept. What is wrong with a directory is said only
/// to those who asked for it: programs run without.
pub(crate) fn set_cache(config: &mut Config, program: &Program) {
    if program.no_cache {
        return;
    }
    let Some(directory) = &program.cache_directory else {
        config.cache(Cache::in_default_directory());
        return;
    };
    let cache = Cache::new(directory);
    if let Some(refused) = cache.stats().refused {
        eprintln!("pagefork: nothing is kept for later runs: {refused}");
    }
    config.cache(cache);
}

/// What programs can import. Refuses one that imports something else.
pub(crate) fn linker(
    file: &Path,
    unknown_imports: UnknownImports,
    store: &mut Store<WasiCtx>,
    module: &Module,
) -> Result<Linker<WasiCtx>, String> {
    let mut linker: Linker<WasiCtx> = Linker::new(module.engine());
    pagefork_wasi::add_to_linker(&mut linker, |context| context)
        .map_err(|error| format!("{error:#}"))?;
    if unknown_imports == UnknownImports::Trap {
        linker.define_unknown_imports_as_traps(module).map_err(|error| format!("{error:#}"))?;
    }
    check_imports(file, &linker, store, module)?;
    Ok(linker)
}

/// Names everything that is missing, where the linker would name the first.
fn check_imports(
    file: &Path,
    linker: &Linker<WasiCtx>,
    store: &mut Store<WasiCtx>,
    module: &Module,
) -> Result<(), String> {
    let (mut rows, mut others) = (Vec::new(), false);
    for import in module.imports() {
        if linker.get(&mut *store, import.module(), import.name()).is_none() {
            others |= !matches!(import.ty(), ExternType::Func(_));
            let kind = show::extern_kind(import.ty());
            let ty = show::extern_type(import.ty());
            let names = vec![show::name(import.module()), show::name(import.name())];
            rows.push([vec![kind.to_owned()], names, vec![ty]].concat());
        }
    }
    if rows.is_empty() {
        return Ok(());
    }
    let advice = match others {
        true => {
            "The command defines functions of WASI preview 1 (`wasi_snapshot_preview1`) and \
                 nothing else: such a module needs a host of its own, through the crate `pagefork`."
        }
        false => {
            "The command defines functions of WASI preview 1 (`wasi_snapshot_preview1`). \
                  `--unknown-imports trap` runs the program all the same; a call of one of these \
                  functions then traps."
        }
    };
    Err(format!(
        "{} imports what nothing here defines:\n{}{advice}",
        file.display(),
        show::table(&rows, &[])
    ))
}

fn context(arguments: &Run) -> Result<WasiCtx, String> {
    let mut builder = WasiCtxBuilder::new();
    builder.inherit_stdio();
    // First, so that a variable that is asked for prevails.
    sockets::pass(arguments, &mut builder)?;
    surround(&mut builder, &arguments.program, &arguments.world)?;
    builder.build().map_err(|error| error.to_string())
}

/// Gives a program its arguments, variables and directories.
pub(crate) fn surround(
    builder: &mut WasiCtxBuilder,
    program: &Program,
    world: &World,
) -> Result<(), String> {
    builder.arg(program.file().as_os_str().as_bytes());
    builder.args(program.arguments().iter().map(|argument| argument.as_bytes()));
    for (name, value) in &world.variables {
        builder.env(name.as_bytes(), value.as_bytes());
    }
    for directory in &world.directories {
        builder
            .preopened_dir(&directory.host, &directory.guest, Permissions::ReadWrite)
            .map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Calls the function that was asked for, or the program's own beginning. A
/// module that is a library is set up first.
fn call(arguments: &Run, store: &mut Store<WasiCtx>, instance: Instance) -> Result<(), Error> {
    pagefork_wasi::initialize(&mut *store, &instance)?;
    let name = arguments.invoke.as_deref().unwrap_or("_start");
    let function = instance.get_func(&mut *store, name).ok_or_else(|| {
        let exports = instance.exports(&mut *store);
        let functions: Vec<_> = exports
            .filter(|export| export.clone().into_extern().into_func().is_some())
            .map(|export| export.name().to_owned())
            .collect();
        Error::msg(match (&arguments.invoke, functions.join(", ")) {
            (Some(name), functions) => format!("no function is exported as {name:?}, only: {functions}"),
            (None, functions) => format!(
                "this module has no `_start`, so it is no program; call a function with `--invoke`: {functions}"
            ),
        })
    })?;
    if arguments.invoke.is_none() {
        return function.call(store, &[], &mut []);
    }

    let ty = function.ty(&*store);
    let (expected, found) = (ty.params.len(), arguments.program.arguments().len());
    if expected != found {
        return Err(Error::msg(format!("{name:?} takes {expected} arguments, {found} are given")));
    }
    let mut params = Vec::new();
    for (param, text) in ty.params.iter().zip(arguments.program.arguments()) {
        params.push(values::parse(&text.to_string_lossy(), *param).map_err(Error::msg)?);
    }
    let mut results = vec![Val::I32(0); ty.results.len()];
    function.call(store, &params, &mut results)?;
    for result in &results {
        println!("{}", values::show(result));
    }
    Ok(())
}

/// The exit code for a guest that did not simply return.
fn outcome(arguments: &Run, store: &Store<WasiCtx>, error: &Error) -> Result<ExitCode, String> {
    if let Some(exit) = error.downcast_ref::<Exit>() {
        // As a shell has it: the low eight bits.
        return Ok(ExitCode::from(exit.0 as u8));
    }
    let undefined = matches!(error.downcast_ref(), Some(LinkError::UndefinedFunction { .. }));
    if error.downcast_ref::<Trap>().is_none() && !undefined {
        return Err(format!("{}: {error:?}", arguments.program.file().display()));
    }
    eprintln!("pagefork: {}: {error:?}", arguments.program.file().display());
    if let Some(timeout) = arguments.timeout {
        eprintln!("pagefork: it may run for {timeout:?} (`--timeout`)");
    }
    if let Some(fuel) = arguments.fuel {
        let left = store.fuel().unwrap_or(0);
        eprintln!("pagefork: of {fuel} units of fuel {left} were left (`--fuel`)");
    }
    dump_core(arguments, store, error)?;
    Ok(ExitCode::from(TRAP_EXIT_CODE))
}

/// Writes what the guest was, where that was asked for.
fn dump_core(arguments: &Run, store: &Store<WasiCtx>, error: &Error) -> Result<(), String> {
    let (Some(file), Some(backtrace)) = (&arguments.core_dump, error.backtrace()) else {
        return Ok(());
    };
    let dump = store.core_dump(&arguments.program.file().display().to_string(), backtrace);
    // Only for its owner: it holds everything that the guest held.
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    options
        .open(file)
        .and_then(|mut opened| opened.write_all(&dump))
        .map_err(|error| format!("cannot write the core dump to {}: {error}", file.display()))?;
    eprintln!("pagefork: core dump in {}", file.display());
    Ok(())
}
