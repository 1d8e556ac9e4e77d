//! `pagefork restore`, and `--from` of other commands: goes on with a program that was saved.

use std::ffi::OsString;
use std::fmt;
use std::path::Path;
use std::process::ExitCode;

use pagefork::image::ImageStore;
use pagefork::{
    CallProgress, Config, Engine, Error, Instance, Linker, Snapshot, Store, StrategyConfig, Val,
};
use pagefork_serve::{ForkGuest, StartedProgram, add_fork_to_linker};
use pagefork_wasi::{OwnDir, ProgramState, RestoreNotice, WasiCtxBuilder};

use crate::arguments::{
    EnvironmentArguments, FromArguments, RestoreArguments, RunArguments, SessionArguments,
};
use crate::captured::{self, NamedImage};
use crate::run::{self, RunLimits};
use crate::{output, values};

pub(super) const SESSION_IS_SETTLED: &str =
    "the directories of a session are in the image already: leave out --session-dir";

/// A program from an image, as it was when it was captured.
pub(crate) struct RestoredProgram {
    pub(crate) snapshot: Snapshot<ForkGuest>,
    pub(crate) store: Store<ForkGuest>,
    pub(crate) instance: Instance,
    /// The files of its session.
    pub(crate) files: Option<OwnDir>,
    /// What its pages are of.
    pub(crate) image: NamedImage,
}

/// `pagefork restore`. The exit code is the program's.
pub(crate) fn restore(arguments: &RestoreArguments) -> Result<ExitCode, String> {
    let images = captured::open(arguments.store.store.as_deref())?;
    let engine = engine(&Config::new())?;
    let (name, environment) = (&arguments.image, &arguments.environment);
    let image = captured::find_coming(&images, name, &arguments.coming)?;
    let program = load(image, &images, name, environment, &engine)?;
    let limits = RunLimits { timeout: arguments.timeout, ..RunLimits::default() };
    go_on(program, name, &limits, arguments.invoke.as_deref(), &arguments.arguments)
}

/// `pagefork run --from`. The exit code is the program's.
pub(crate) fn run(arguments: &RunArguments) -> Result<ExitCode, String> {
    let refused = [
        ("--preload", !arguments.preloads.is_empty()),
        ("--tcplisten", !arguments.tcplisten.is_empty()),
        ("--listenfd", arguments.listenfd),
        ("--fuel", arguments.fuel.is_some()),
        ("--deterministic", arguments.deterministic),
        ("--profile", arguments.profile.is_some()),
        ("--growth", arguments.strategies.growth.is_given()),
        ("--say-strategies", arguments.say_strategies),
    ];
    if let Some((option, _)) = refused.iter().find(|(_, is_given)| *is_given) {
        return Err(format!("{option} is settled in an image already: leave it out"));
    }
    let image = &arguments.program.image;
    let name = image.from.as_deref().unwrap_or_default();
    let images = captured::open(image.store.store.as_deref())?;
    let mut config = Config::new();
    config.strategies(arguments.strategies.resets.strategies(StrategyConfig::default()));
    let engine = engine(&config)?;
    run::say_resets(&arguments.strategies.resets, &engine)?;
    let found = captured::find_coming(&images, name, &image.coming)?;
    let program = load(found, &images, name, &arguments.environment, &engine)?;
    let words = arguments.program.arguments();
    go_on(program, name, &arguments.into(), arguments.invoke.as_deref(), words)
}

/// A program of an image, to be forked as long as the image is kept.
pub(crate) fn started(
    image: &FromArguments,
    environment: &EnvironmentArguments,
    session: &SessionArguments,
    engine: &Engine,
) -> Result<(StartedProgram, NamedImage), String> {
    if !session.own_directories.is_empty() {
        return Err(SESSION_IS_SETTLED.to_owned());
    }
    let name = image.from.as_deref().unwrap_or_default();
    let images = captured::open(image.store.store.as_deref())?;
    let mut found = captured::find_coming(&images, name, &image.coming)?;
    let mut builder = WasiCtxBuilder::new();
    builder.inherit_stderr();
    preopen(&mut builder, environment)?;
    let failed = |error: &dyn fmt::Display| format!("{name}: {error}");
    let snapshot = found.load(&linker(engine)?, &images).map_err(|error| failed(&error))?;
    let place = captured::place_of_files();
    let started = StartedProgram::of_snapshot(snapshot, builder, Some(&place));
    Ok((started.map_err(|error| failed(&error))?, found))
}

/// Loads a program, with this process's standard streams. `name` is only shown.
pub(crate) fn load(
    mut image: NamedImage,
    images: &ImageStore,
    name: &str,
    environment: &EnvironmentArguments,
    engine: &Engine,
) -> Result<RestoredProgram, String> {
    let failed = |error: Error| format!("{name}: {error:#}");
    let loaded = image.load(&linker(engine)?, images);
    let snapshot: Snapshot<ForkGuest> = loaded.map_err(|error| format!("{name}: {error}"))?;
    let state = ProgramState::from_bytes(snapshot.state()).map_err(|error| error.to_string())?;
    let mut builder = WasiCtxBuilder::new();
    builder.inherit_stdio();
    preopen(&mut builder, environment)?;
    let files = match state.wasi.session_dirs().next() {
        None => None,
        Some(_) => {
            let own = OwnDir::new(captured::place_of_files()).map_err(|error| error.to_string())?;
            let captured = own.path().join("captured");
            let taken = builder.session_files_from(&snapshot, &state.wasi, captured, own.path());
            taken.map_err(failed)?;
            Some(own)
        }
    };
    let restored = builder.restore(&state.wasi).map_err(|error| format!("{name}: {error}"))?;
    for notice in &restored.notices {
        say_notice(notice);
    }
    // Where it asks for its number it is the original, which goes on.
    let guest = ForkGuest { ctx: restored.ctx, number: Some(0) };
    let spawned = snapshot.instance_pre().and_then(|pre| pre.spawn(guest));
    let (store, instance) = spawned.map_err(failed)?;
    Ok(RestoredProgram { snapshot, store, instance, files, image })
}

/// Runs a program to its end.
fn go_on(
    program: RestoredProgram,
    name: &str,
    limits: &RunLimits<'_>,
    invoked: Option<&str>,
    words: &[OsString],
) -> Result<ExitCode, String> {
    // The files go last.
    let RestoredProgram { files: _files, image, mut store, instance, .. } = program;
    store.set_timeout(limits.timeout).map_err(|error| error.to_string())?;
    let finished = match image.guests() {
        Some(guests) => guests.run(|| finish(&mut store, instance, invoked, words)),
        None => finish(&mut store, instance, invoked, words),
    };
    let outcome = match finished {
        Ok(results) => {
            let lines = results.iter().map(|result| values::show(result) + "\n");
            output::print(lines.collect::<String>()).map(|()| ExitCode::SUCCESS)
        }
        Err(error) => run::outcome(limits, Path::new(name), &store, &error),
    };
    // Nobody who waits for results waits for its good-bye.
    image.end();
    outcome
}

/// Resumes the guest, or calls a function where none is suspended.
fn finish(
    store: &mut Store<ForkGuest>,
    instance: Instance,
    invoked: Option<&str>,
    words: &[OsString],
) -> pagefork::Result<Vec<Val>> {
    match (store.suspended().is_some(), invoked) {
        (true, None) if words.is_empty() => match store.resume()? {
            CallProgress::Finished(results) => Ok(results),
            CallProgress::Suspended => Err(Error::msg("it was suspended again")),
        },
        (true, _) => Err(Error::msg(
            "a program is running in this image, which has its arguments: leave out `--invoke` and \
             what follows the image",
        )),
        (false, Some(name)) => {
            let none = || Error::msg(format!("no function is exported as {name:?}"));
            let function = instance.get_func(&mut *store, name).ok_or_else(none)?;
            run::call_with(store, function, name, words)
        }
        (false, None) => Err(Error::msg(
            "no program is running in this image: call one of its functions with `--invoke`",
        )),
    }
}

/// The engine of a program from an image.
pub(crate) fn engine(config: &Config) -> Result<Engine, String> {
    Engine::new(config).map_err(|error| format!("{error:#}"))
}

/// What programs that are captured and forked can import.
pub(crate) fn linker(engine: &Engine) -> Result<Linker<ForkGuest>, String> {
    let mut linker = Linker::new(engine);
    pagefork_wasi::add_to_linker(&mut linker, |guest: &mut ForkGuest| &mut guest.ctx)
        .and_then(|()| add_fork_to_linker(&mut linker))
        .and_then(|()| linker.define_memory_discard().map(drop))
        .map_err(|error| format!("{error:#}"))?;
    Ok(linker)
}

/// The directories of a program that has its variables already.
fn preopen(builder: &mut WasiCtxBuilder, environment: &EnvironmentArguments) -> Result<(), String> {
    if !environment.variables.is_empty() {
        return Err("a program in an image has its variables already: leave out --env".to_owned());
    }
    run::preopen(builder, environment)
}

fn say_notice(notice: &RestoreNotice) {
    output::say(match notice {
        RestoreNotice::NoTerminal { fd } => {
            format!("descriptor {fd} was a terminal when the program was captured, and is none now")
        }
        other => format!("otherwise than when the program was captured: {other:?}"),
    });
}
