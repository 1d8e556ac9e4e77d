//! `pagefork snapshot`: runs a program to some point, and saves what it is then.

use std::path::Path;
use std::process::ExitCode;
use std::thread;

use pagefork::image::{ContentHash, ImageStore, SecretKey};
use pagefork::{CallProgress, Config, Error, Instance, SaveOptions, Snapshot, Store};
use pagefork_serve::ForkGuest;
use pagefork_wasi::{Exit, ProgramState, WasiCtxBuilder};

use crate::arguments::{SessionArguments, SnapshotArguments, SnapshotPoint};
use crate::captured::restore::RestoredProgram;
use crate::captured::{self, keys, restore};
use crate::program::{self, Loader};
use crate::{fork, output, run};

/// Saves the program and says the hash of the image.
pub(crate) fn snapshot(arguments: &SnapshotArguments) -> Result<ExitCode, String> {
    let images = captured::open(arguments.program.image.store.store.as_deref())?;
    let key = keys::own()?;
    let signers = std::slice::from_ref(&key);
    let hash = match &arguments.program.image.from {
        Some(image) => later(arguments, image, &images, signers)?,
        None => first(arguments, &images, signers)?,
    };
    if let Some(name) = &arguments.name {
        images.set_name(name, hash).map_err(|error| error.to_string())?;
    }
    // Standard output is the program's.
    output::say(format_args!("image {hash}"));
    Ok(ExitCode::SUCCESS)
}

/// Starts a program, and saves it.
fn first(
    arguments: &SnapshotArguments,
    images: &ImageStore,
    signers: &[SecretKey],
) -> Result<ContentHash, String> {
    let SnapshotArguments { at, environment, unknown_imports, program, .. } = arguments;
    let file = program.file();
    let mut config = Config::new();
    run::set_compiling(&mut config, program);
    let module = Loader::new(config)?.load(file)?;
    if let SnapshotPoint::Read = at {
        let none = SessionArguments { own_directories: Vec::new() };
        let started = fork::start(program, environment, &none, *unknown_imports, &module)?;
        output::print(started.written())?;
        return started.save(images, signers).map_err(|error| shown(file, &error));
    }
    let linker = fork::linker(program, *unknown_imports, &module)?;
    let mut builder = WasiCtxBuilder::new();
    builder.inherit_stdio();
    run::surround(&mut builder, program, environment)?;
    let ctx = builder.build().map_err(|error| error.to_string())?;
    let mut store = Store::new(module.engine(), ForkGuest { ctx, number: None });
    let instantiated = linker.instantiate(&mut store, &module);
    let instance = instantiated.map_err(|error| ended(file, &error))?;
    reach(at, file, &mut store, instance)?;
    save(&mut store, images, signers, None).map_err(|error| shown(file, &error))
}

/// Goes on with a program from an image, and saves what has changed.
fn later(
    arguments: &SnapshotArguments,
    image: &str,
    images: &ImageStore,
    signers: &[SecretKey],
) -> Result<ContentHash, String> {
    if let SnapshotPoint::Read = arguments.at {
        return Err(
            "give --at as call:FUNCTION, export:FUNCTION or time:2s: a program from an image reads \
             what it is given"
                .to_owned(),
        );
    }
    let RestoredProgram { snapshot, mut store, instance } =
        restore::load(images, image, &arguments.environment)?;
    reach(&arguments.at, Path::new(image), &mut store, instance)?;
    let saved = save(&mut store, images, signers, Some(&snapshot));
    saved.map_err(|error| shown(Path::new(image), &error))
}

/// Runs a program to where it is to be captured.
fn reach(
    at: &SnapshotPoint,
    file: &Path,
    store: &mut Store<ForkGuest>,
    instance: Instance,
) -> Result<(), String> {
    match at {
        SnapshotPoint::Read => {}
        SnapshotPoint::Call { function, calls } => {
            let known = restore::linker(store.engine())?;
            if known.get(&mut *store, "wasi_snapshot_preview1", function).is_err() {
                return Err(format!("WASI preview 1 has no function {function:?}"));
            }
            store.data_mut().ctx.suspend_before(function, calls - 1);
        }
        SnapshotPoint::Export(name) => {
            return export(store, instance, name).map_err(|error| ended(file, &error));
        }
        SnapshotPoint::Time(time) => {
            let handle = store.interrupt_handle().map_err(|error| error.to_string())?;
            let time = *time;
            // It ends with this process, if the program ends before.
            thread::spawn(move || {
                thread::sleep(time);
                handle.suspend();
            });
        }
    }
    let progress = match store.suspended().is_some() {
        true => store.resume(),
        false => {
            let start = instance.get_func(&mut *store, "_start").ok_or_else(|| {
                let file = program::shown(file);
                format!("{file} has no `_start`, so it is no program; use --at export:FUNCTION")
            })?;
            start.call_suspendable(&mut *store, &[])
        }
    };
    match progress.map_err(|error| ended(file, &error))? {
        CallProgress::Suspended => Ok(()),
        CallProgress::Finished(_) => Err(too_early(file, 0)),
    }
}

/// Calls a function, of a library once it is initialized.
fn export(store: &mut Store<ForkGuest>, instance: Instance, name: &str) -> pagefork::Result<()> {
    if store.suspended().is_some() {
        return Err(Error::msg("a program is running in this image: no function can be called"));
    }
    pagefork_wasi::initialize(&mut *store, &instance)?;
    instance.get_typed_func::<(), ()>(&mut *store, name)?.call(store, ())
}

/// Saves the program as it is, of one from an image what has changed.
fn save(
    store: &mut Store<ForkGuest>,
    images: &ImageStore,
    signers: &[SecretKey],
    parent: Option<&Snapshot<ForkGuest>>,
) -> pagefork::Result<ContentHash> {
    let wasi = store.data().ctx.save().map_err(Error::new)?;
    let state = ProgramState { wasi, written: Vec::new() };
    let mut options = SaveOptions::new().state(state.to_bytes()?).sign_with(signers);
    if let Some(parent) = parent {
        options = options.delta_of(parent);
    }
    store.snapshot()?.save(images, options)
}

fn shown(file: &Path, error: &Error) -> String {
    format!("{}: {error:?}", program::shown(file))
}

/// Why a program did not come to where it is to be captured.
fn ended(file: &Path, error: &Error) -> String {
    match error.downcast_ref::<Exit>() {
        Some(exit) => too_early(file, exit.0),
        None => shown(file, error),
    }
}

fn too_early(file: &Path, code: i32) -> String {
    let file = program::shown(file);
    format!("{file} ended with exit code {code} before it came to where it is to be captured")
}
