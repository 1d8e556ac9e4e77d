//! `pagefork snapshot`: runs a program to some point, and saves what it is then.

use std::path::Path;
use std::process::ExitCode;
use std::thread;

use pagefork::image::{ContentHash, ImageStore, SavedHolder, SecretKey, check_name};
use pagefork::{
    CallProgress, Config, DeltaTracker, Error, Instance, SaveOptions, Snapshot, Store,
    StrategyConfig,
};
use pagefork_serve::ForkGuest;
use pagefork_wasi::{Exit, OwnDir, ProgramState, SaveError, SessionArchive, WasiCtxBuilder};

use crate::arguments::{SnapshotArguments, SnapshotPoint};
use crate::captured::restore::RestoredProgram;
use crate::captured::{self, keys, restore};
use crate::node::holders;
use crate::program::{self, Loader};
use crate::{fork, output, run};

/// Saves the program and says the hash of each image.
pub(crate) fn snapshot(arguments: &SnapshotArguments) -> Result<ExitCode, String> {
    if let Some(name) = &arguments.name {
        // Known before the program has run, perhaps for long.
        check_name(name).map_err(|error| error.to_string())?;
    }
    let saving = Saving {
        arguments,
        images: captured::open(arguments.program.image.store.store.as_deref())?,
        key: keys::own()?,
        holders: holders::to_be_named(&arguments.holders)?,
    };
    match &arguments.program.image.from {
        Some(image) => later(&saving, image),
        None => first(&saving),
    }
}

/// Where images go, and how.
struct Saving<'a> {
    arguments: &'a SnapshotArguments,
    images: ImageStore,
    key: SecretKey,
    holders: Vec<SavedHolder>,
}

impl Saving<'_> {
    /// Says that there is an image, and gives it its name.
    fn note(&self, hash: ContentHash) -> Result<(), String> {
        if let Some(name) = &self.arguments.name {
            self.images.set_name(name, hash).map_err(|error| error.to_string())?;
        }
        // Standard output is the program's.
        output::say(format_args!("image {hash}"));
        Ok(())
    }

    /// Captures a program as often as it is to be, each time what has changed.
    fn capture(
        &self,
        file: &Path,
        store: &mut Store<ForkGuest>,
        instance: Instance,
        (module, mut parent): (Option<&[u8]>, Option<Snapshot<ForkGuest>>),
    ) -> Result<ExitCode, String> {
        let SnapshotArguments { at, count, .. } = self.arguments;
        for number in 0..*count {
            match reach(at, file, store, instance)? {
                None => {}
                Some(code) if number > 0 => {
                    let file = program::shown(file);
                    output::say(format_args!(
                        "{file} ended with exit code {code} after image {number} of {count}"
                    ));
                    break;
                }
                Some(code) => return Err(too_early(file, code)),
            }
            let saved = self.save(store, module, parent.as_ref());
            let (snapshot, hash) = saved.map_err(|error| shown(file, &error))?;
            self.note(hash)?;
            parent = Some(snapshot);
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Saves the program as it is, of one from an image what has changed.
    fn save(
        &self,
        store: &mut Store<ForkGuest>,
        module: Option<&[u8]>,
        parent: Option<&Snapshot<ForkGuest>>,
    ) -> pagefork::Result<(Snapshot<ForkGuest>, ContentHash)> {
        let Self { images, key, holders, .. } = self;
        let ctx = &store.data().ctx;
        // Until it is saved.
        let mut files = None;
        let (wasi, archive) = match ctx.save() {
            Err(SaveError::NoPlaceForFiles { .. }) => {
                let own = files.insert(OwnDir::new(captured::place_of_files())?);
                let copies = own.path().join("captured");
                let wasi = ctx.save_with_files(&copies)?;
                let archive = SessionArchive::pack(&wasi, &copies)?;
                (wasi, Some(archive))
            }
            saved => (saved?, None),
        };
        let state = ProgramState { wasi, written: Vec::new() };
        let mut options =
            SaveOptions::new().state(state.to_bytes()?).sign_with(std::slice::from_ref(key));
        options = options.holders(holders);
        if let Some(archive) = &archive {
            options = archive.attach(options);
        }
        if let Some(parent) = parent {
            options = options.delta_of(parent);
        }
        if let Some(bytes) = module {
            options = options.keep_module(bytes);
        }
        let snapshot = store.snapshot()?;
        let hash = snapshot.save(images, options)?;
        Ok((snapshot, hash))
    }
}

/// Starts a program, and saves it.
fn first(saving: &Saving<'_>) -> Result<ExitCode, String> {
    let SnapshotArguments { at, count, environment, session, unknown_imports, program, .. } =
        saving.arguments;
    let file = program.file();
    let mut config = config(saving.arguments);
    run::set_compiling(&mut config, program);
    let loader = Loader::new(config)?;
    // Where no function runs, other machines can compile it anew.
    let bytes = match at {
        SnapshotPoint::Export(_) if !program::is_code_image(file) => Some(program::read(file)?),
        _ => None,
    };
    let module = match &bytes {
        Some(bytes) => loader.compile(file, bytes)?,
        None => loader.load(file)?,
    };
    if let SnapshotPoint::Read = at {
        if *count > 1 {
            return Err(
                "a program is captured at its first read once: give --at with --count, as \
                        time:2s or call:FUNCTION"
                    .to_owned(),
            );
        }
        let started = fork::start(program, environment, session, *unknown_imports, &module)?;
        output::print(started.written())?;
        let Saving { images, key, holders, .. } = saving;
        let saved = started.save_with_holders(images, std::slice::from_ref(key), holders);
        saving.note(saved.map_err(|error| shown(file, &error))?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let linker = fork::linker(program, *unknown_imports, &module)?;
    let mut builder = WasiCtxBuilder::new();
    builder.inherit_stdio();
    run::surround(&mut builder, program, environment)?;
    fork::session_dirs(&mut builder, session)?;
    let ctx = builder.build().map_err(|error| error.to_string())?;
    let mut store = Store::new(module.engine(), ForkGuest { ctx, number: None });
    let instantiated = linker.instantiate(&mut store, &module);
    let instance = match instantiated {
        Ok(instance) => instance,
        Err(error) => return Err(too_early(file, ended(file, &error)?)),
    };
    saving.capture(file, &mut store, instance, (bytes.as_deref(), None))
}

/// Goes on with a program from an image, and saves what has changed.
fn later(saving: &Saving<'_>, image: &str) -> Result<ExitCode, String> {
    let arguments = saving.arguments;
    if let SnapshotPoint::Read = arguments.at {
        return Err(
            "give --at as call:FUNCTION, export:FUNCTION or time:2s: a program from an image reads \
             what it is given"
                .to_owned(),
        );
    }
    if !arguments.session.own_directories.is_empty() {
        return Err(restore::SESSION_IS_SETTLED.to_owned());
    }
    let engine = restore::engine(&config(arguments))?;
    let coming = &arguments.program.image.coming;
    let useless = [("--report", coming.report), ("--from-also", !coming.from_also.is_empty())];
    if let Some((option, _)) = useless.iter().find(|(_, is_given)| *is_given) {
        return Err(format!(
            "a program that is saved again is fetched whole first: leave out {option}"
        ));
    }
    let found = captured::find(&saving.images, image)?;
    let program = restore::load(found, &saving.images, image, &arguments.environment, &engine)?;
    // The files and the image go last.
    let RestoredProgram { image: _image, files: _files, snapshot, mut store, instance } = program;
    saving.capture(Path::new(image), &mut store, instance, (None, Some(snapshot)))
}

/// How a program runs that is captured several times.
fn config(arguments: &SnapshotArguments) -> Config {
    let deltas = match arguments.count {
        1 => DeltaTracker::Off,
        _ => arguments.deltas,
    };
    let mut config = Config::new();
    config.strategies(StrategyConfig { deltas, ..StrategyConfig::default() });
    config
}

/// Runs a program to where it is to be captured; its exit code, if it ends before.
fn reach(
    at: &SnapshotPoint,
    file: &Path,
    store: &mut Store<ForkGuest>,
    instance: Instance,
) -> Result<Option<i32>, String> {
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
            return match export(store, instance, name) {
                Ok(()) => Ok(None),
                Err(error) => ended(file, &error).map(Some),
            };
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
    match progress {
        Ok(CallProgress::Suspended) => Ok(None),
        Ok(CallProgress::Finished(_)) => Ok(Some(0)),
        Err(error) => ended(file, &error).map(Some),
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

fn shown(file: &Path, error: &Error) -> String {
    format!("{}: {error:?}", program::shown(file))
}

/// The exit code of a program that has ended.
///
/// # Errors
/// If it has failed.
fn ended(file: &Path, error: &Error) -> Result<i32, String> {
    error.downcast_ref::<Exit>().map(|exit| exit.0).ok_or_else(|| shown(file, error))
}

fn too_early(file: &Path, code: i32) -> String {
    let file = program::shown(file);
    format!("{file} ended with exit code {code} before it came to where it is to be captured")
}
