//! Programs that have been started once, up to where they read standard input or ask to be
//! captured, and go on from there any number of times.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use pagefork::image::{ContentHash, ImageStore, SavedHolder, SecretKey, TrustedKeys};
use pagefork::{
    CallProgress, Caller, Error, Instance, InstancePre, InterruptHandle, Linker, LoadOptions,
    Module, Result, SaveOptions, Snapshot, Store, StoreLimits, SuspendedAt,
};
use pagefork_wasi::{
    BuildError, Exit, OutputKind, OwnDir, ProgramState, ProgramStateError, RestoreError, SaveError,
    SessionArchive, SessionError, StdinKind, WasiCtx, WasiCtxBuilder, WasiState,
};

/// The data of a program that is forked: its WASI state, and which fork it is.
///
/// # Examples
///
/// See [`StartedProgram`].
#[derive(Debug)]
pub struct ForkGuest {
    /// The WASI state.
    pub ctx: WasiCtx,
    /// The fork's number, from 1; `None` in the original until it has been captured.
    pub number: Option<u32>,
}

/// The standard streams of a fork.
///
/// # Examples
///
/// See [`StartedProgram`].
#[derive(Debug)]
pub struct ForkStreams {
    /// Standard input, from its start.
    pub stdin: StdinKind,
    /// Standard output.
    pub stdout: OutputKind,
    /// Standard error.
    pub stderr: OutputKind,
}

/// A program that cannot be forked.
///
/// # Examples
///
/// ```
/// use pagefork::{Engine, Linker, Module};
/// use pagefork_serve::{ForkError, StartedProgram};
/// use pagefork_wasi::WasiCtxBuilder;
///
/// let engine = Engine::default();
/// // It ends at once, and reads nothing.
/// let module = Module::new(&engine, r#"(module (func (export "_start")))"#)?;
/// let started = StartedProgram::start(&Linker::new(&engine), &module, WasiCtxBuilder::new());
/// assert!(matches!(started, Err(ForkError::Ended(0))));
/// # Ok::<(), pagefork::Error>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ForkError {
    /// It has no `_start`.
    #[error(
        "the module exports no function `_start`, so it is no program; build it as a WASI \
         command (`wasm32-wasip1`)"
    )]
    NoStart,
    /// It has ended before it could be captured.
    #[error(
        "the program ended with exit code {0} before it read its standard input: a program is started once, up \
         to its first read or to where it calls `pagefork.snapshot`, and goes on from there"
    )]
    Ended(i32),
    /// It failed, or cannot be instantiated or captured.
    #[error("the program cannot be started: {0:?}")]
    Failed(Error),
    /// Its WASI state cannot be made.
    #[error("{0}")]
    Build(#[from] BuildError),
    /// What it has open cannot be opened again.
    #[error("the program cannot be captured: {0}")]
    Save(#[from] SaveError),
    /// What it has open cannot be opened again from a saved image.
    #[error("the program cannot be restored: {0}")]
    Restore(#[from] RestoreError),
    /// The image is of something else.
    #[error(transparent)]
    State(#[from] ProgramStateError),
    /// The files of its session cannot be copied out of the image.
    #[error("the files of the program's session cannot be restored: {0:?}")]
    Files(Error),
    /// There is no place for the files of sessions.
    #[error("no place for the files of sessions: {0}")]
    Place(#[from] SessionError),
}

/// Where the files of the session are as they were when the program was captured.
fn captured(files: &OwnDir) -> PathBuf {
    files.path().join("captured")
}

/// Defines the import `pagefork.snapshot`, by which a program says where it is to be captured. It
/// returns the fork's number, from 1, or 0 where the program is not forked.
///
/// # Errors
/// If the name is taken.
///
/// # Examples
///
/// See [`StartedProgram`].
pub fn add_fork_to_linker(linker: &mut Linker<ForkGuest>) -> Result<()> {
    linker.func_wrap(
        "pagefork",
        "snapshot",
        |mut caller: Caller<'_, ForkGuest>| -> Result<u32> {
            match caller.data().number {
                Some(number) => Ok(number),
                None if caller.can_suspend() => Err(caller.suspend_before()),
                None => Ok(0),
            }
        },
    )?;
    Ok(())
}

/// A program that has run to its first read of standard input, or to where it called
/// `pagefork.snapshot`. Each fork goes on from there, in a store of its own.
///
/// # Examples
///
/// ```
/// use pagefork::{CallProgress, Engine, Linker, Module};
/// use pagefork_serve::{ForkGuest, ForkStreams, StartedProgram, add_fork_to_linker};
/// use pagefork_wasi::{OutputKind, StdinKind, WasiCtxBuilder};
///
/// let engine = Engine::default();
/// // Prints what it reads.
/// let module = Module::new(&engine, r#"(module
///     (import "wasi_snapshot_preview1" "fd_read"
///         (func $read (param i32 i32 i32 i32) (result i32)))
///     (import "wasi_snapshot_preview1" "fd_write"
///         (func $write (param i32 i32 i32 i32) (result i32)))
///     (memory (export "memory") 1)
///     (data (i32.const 0) "\10\00\00\00\20\00\00\00")
///     (func (export "_start")
///         (drop (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 4)))
///         (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))))"#)?;
/// let mut linker = Linker::new(&engine);
/// pagefork_wasi::add_to_linker(&mut linker, |guest: &mut ForkGuest| &mut guest.ctx)?;
/// add_fork_to_linker(&mut linker)?;
/// let program = StartedProgram::start(&linker, &module, WasiCtxBuilder::new())?;
/// assert!(Module::same(program.module(), &module));
/// assert!(program.written().is_empty(), "it has printed nothing yet");
/// for number in 1..=3 {
///     let (printed, stdout) = OutputKind::pipe();
///     let stdin = StdinKind::bytes(format!("{:>8}", number * 100));
///     let streams = ForkStreams { stdin, stdout, stderr: OutputKind::Null };
///     let mut fork = program.fork(number, streams)?;
///     assert!(matches!(fork.resume()?, CallProgress::Finished(_)));
///     assert_eq!(printed.contents()[5..8], *format!("{number}00").as_bytes());
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct StartedProgram {
    snapshot: Snapshot<ForkGuest>,
    pre: InstancePre<ForkGuest>,
    state: WasiState,
    builder: WasiCtxBuilder,
    written: Vec<u8>,
    /// Number of forks so far: each is a tenant of its own, of whose stack no other finds a byte.
    forks: AtomicU64,
    /// The copies of what was the session's when the program was captured, and those of the forks.
    files: Option<OwnDir>,
}

impl StartedProgram {
    /// Starts a program. `linker` has its imports; `builder` its arguments, variables and
    /// directories, and its standard error, which forks get their own of.
    ///
    /// # Errors
    /// [`ForkError`].
    ///
    /// # Examples
    ///
    /// See [`StartedProgram`].
    pub fn start(
        linker: &Linker<ForkGuest>,
        module: &Module,
        builder: WasiCtxBuilder,
    ) -> Result<Self, ForkError> {
        Self::start_in(linker, module, builder, None)
    }

    /// As [`StartedProgram::start`], for a program that has
    /// [directories of its session](WasiCtxBuilder::session_dir). They are copied when it is captured,
    /// and each fork has copies of its own of that. The copies lie in the new directory `place`,
    /// which is removed with this.
    ///
    /// # Errors
    /// [`ForkError`].
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Engine, Linker, Module};
    /// use pagefork_serve::{ForkGuest, ForkStreams, StartedProgram, add_fork_to_linker};
    /// use pagefork_wasi::{OutputKind, StdinKind, WasiCtxBuilder};
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module
    ///     (import "pagefork" "snapshot" (func $snapshot (result i32)))
    ///     (func (export "_start") (drop (call $snapshot))))"#)?;
    /// let mut linker = Linker::new(&engine);
    /// pagefork_wasi::add_to_linker(&mut linker, |guest: &mut ForkGuest| &mut guest.ctx)?;
    /// add_fork_to_linker(&mut linker)?;
    /// # let here = std::env::temp_dir().join(format!("pagefork-started-{}", std::process::id()));
    /// # std::fs::create_dir_all(&here)?;
    /// std::fs::create_dir(here.join("work"))?;
    /// let mut builder = WasiCtxBuilder::new();
    /// builder.session_dir(here.join("work"), "/work")?;
    /// let program =
    ///     StartedProgram::start_with_files(&linker, &module, builder, here.join("copies"))?;
    ///
    /// let (stdin, stderr) = (StdinKind::Null, OutputKind::Null);
    /// let fork = program.fork(1, ForkStreams { stdin, stdout: OutputKind::Null, stderr })?;
    /// let (work, _, _) = fork.data().ctx.preopens().next().unwrap();
    /// assert_ne!(work, here.join("work"));
    /// # drop((fork, program));
    /// # assert!(!here.join("copies").exists());
    /// # std::fs::remove_dir_all(&here)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn start_with_files(
        linker: &Linker<ForkGuest>,
        module: &Module,
        builder: WasiCtxBuilder,
        place: impl AsRef<Path>,
    ) -> Result<Self, ForkError> {
        Self::start_in(linker, module, builder, Some(OwnDir::new(place)?))
    }

    fn start_in(
        linker: &Linker<ForkGuest>,
        module: &Module,
        mut builder: WasiCtxBuilder,
        files: Option<OwnDir>,
    ) -> Result<Self, ForkError> {
        let (output, stdout) = OutputKind::pipe();
        builder.stdin(StdinKind::Awaited).stdout(stdout);
        let guest = ForkGuest { ctx: builder.build()?, number: None };
        let mut store = Store::new(module.engine(), guest);
        let instance = linker.instantiate(&mut store, module).map_err(ended)?;
        let start = instance.get_func(&mut store, "_start").ok_or(ForkError::NoStart)?;
        match start.call_suspendable(&mut store, &[]).map_err(ended)? {
            CallProgress::Finished(_) => return Err(ForkError::Ended(0)),
            CallProgress::Suspended => {}
        }
        debug_assert_eq!(
            store.suspended().map(|suspended| suspended.at()),
            Some(SuspendedAt::BeforeHostCall),
            "nothing else suspends it"
        );
        let ctx = &store.data().ctx;
        let state = match &files {
            Some(files) => {
                let captured = captured(files);
                let state = ctx.save_with_files(&captured)?;
                builder.session_files(captured, files.path());
                state
            }
            None => ctx.save()?,
        };
        let snapshot = store.snapshot().map_err(ForkError::Failed)?;
        let pre = snapshot.instance_pre().map_err(ForkError::Failed)?;
        let (written, forks) = (output.contents(), AtomicU64::new(0));
        Ok(Self { snapshot, pre, state, builder, written, forks, files })
    }

    /// Saves what forks begin with in a store of images, with the files of its session, signed with
    /// these keys. Another process that trusts one of them can [load](StartedProgram::load) it.
    ///
    /// # Errors
    /// As [`Snapshot::save`], and as [`SessionArchive::pack`].
    ///
    /// # Examples
    ///
    /// See [`StartedProgram::load`].
    pub fn save(&self, images: &ImageStore, signers: &[SecretKey]) -> Result<ContentHash> {
        self.save_with_holders(images, signers, &[])
    }

    /// The same, and says [who else](SaveOptions::holders) will have the image.
    ///
    /// # Errors
    /// As of [`StartedProgram::save`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use pagefork::image::{ContentHash, ImageStore, SavedHolder};
    /// use pagefork_serve::StartedProgram;
    ///
    /// # fn example(program: &StartedProgram, images: &ImageStore) -> pagefork::Result<ContentHash> {
    /// let holders = [SavedHolder::Objects("s3://bucket/images".into())];
    /// program.save_with_holders(images, &[], &holders)
    /// # }
    /// ```
    pub fn save_with_holders(
        &self,
        images: &ImageStore,
        signers: &[SecretKey],
        holders: &[SavedHolder],
    ) -> Result<ContentHash> {
        let state = ProgramState { wasi: self.state.clone(), written: self.written.clone() };
        let options = SaveOptions::new().state(state.to_bytes()?).sign_with(signers);
        let options = options.holders(holders);
        match &self.files {
            None => self.snapshot.save(images, options),
            Some(files) => {
                let archive = SessionArchive::pack(&self.state, captured(files))?;
                self.snapshot.save(images, archive.attach(options))
            }
        }
    }

    /// A program that was started by another process and [saved](StartedProgram::save), or captured
    /// otherwise with a [`ProgramState`], while it was suspended. `linker` and `builder` are as of
    /// [`StartedProgram::start`]; arguments and variables are the saved ones.
    ///
    /// # Errors
    /// [`ForkError`].
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::image::{ImageStore, SecretKey, TrustedKeys};
    /// use pagefork::{Engine, Linker, Module};
    /// use pagefork_serve::{ForkGuest, StartedProgram, add_fork_to_linker};
    /// use pagefork_wasi::WasiCtxBuilder;
    ///
    /// fn linker(engine: &Engine) -> pagefork::Result<Linker<ForkGuest>> {
    ///     let mut linker = Linker::new(engine);
    ///     pagefork_wasi::add_to_linker(&mut linker, |guest: &mut ForkGuest| &mut guest.ctx)?;
    ///     add_fork_to_linker(&mut linker)?;
    ///     Ok(linker)
    /// }
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module
    ///     (import "pagefork" "snapshot" (func $snapshot (result i32)))
    ///     (func (export "_start") (drop (call $snapshot))))"#)?;
    /// let program = StartedProgram::start(&linker(&engine)?, &module, WasiCtxBuilder::new())?;
    /// let directory = std::env::temp_dir().join(format!("pagefork-saved-{}", std::process::id()));
    /// let (images, key) = (ImageStore::open(&directory)?, SecretKey::from_seed([7; 32]));
    /// let image = program.save(&images, std::slice::from_ref(&key))?;
    ///
    /// // As another process does, which has no module.
    /// let engine = Engine::default();
    /// let (linker, builder) = (linker(&engine)?, WasiCtxBuilder::new());
    /// let keys = TrustedKeys::from_iter([key.public()]);
    /// let program = StartedProgram::load(&linker, &images, image, builder, keys)?;
    /// assert_eq!(program.written(), b"");
    /// # std::fs::remove_dir_all(&directory)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn load(
        linker: &Linker<ForkGuest>,
        images: &ImageStore,
        image: ContentHash,
        builder: WasiCtxBuilder,
        keys: TrustedKeys,
    ) -> Result<Self, ForkError> {
        let snapshot = Snapshot::load(linker, images, image, LoadOptions::new().trust(keys));
        Self::of_snapshot(snapshot.map_err(ForkError::Failed)?, builder, None)
    }

    /// As [`StartedProgram::load`], for a program that has directories of its session, whose files are in
    /// the image. Its copies of them, and those of the forks, lie in the new directory `place`,
    /// which is removed with this; it is made if the program has any.
    ///
    /// # Errors
    /// [`ForkError`].
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::image::{ImageStore, SecretKey, TrustedKeys};
    /// use pagefork::{Engine, Linker, Module};
    /// use pagefork_serve::{ForkGuest, ForkStreams, StartedProgram, add_fork_to_linker};
    /// use pagefork_wasi::{OutputKind, StdinKind, WasiCtxBuilder};
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module
    ///     (import "pagefork" "snapshot" (func $snapshot (result i32)))
    ///     (func (export "_start") (drop (call $snapshot))))"#)?;
    /// let mut linker: Linker<ForkGuest> = Linker::new(&engine);
    /// add_fork_to_linker(&mut linker)?;
    /// # let here = std::env::temp_dir().join(format!("pagefork-with-files-{}", std::process::id()));
    /// # std::fs::create_dir_all(here.join("work"))?;
    /// std::fs::write(here.join("work/notes"), "some")?;
    /// let mut builder = WasiCtxBuilder::new();
    /// builder.session_dir(here.join("work"), "/work")?;
    /// let program = StartedProgram::start_with_files(&linker, &module, builder, here.join("copies"))?;
    /// let (images, key) = (ImageStore::open(here.join("images"))?, SecretKey::from_seed([7; 32]));
    /// let image = program.save(&images, std::slice::from_ref(&key))?;
    /// # drop(program);
    ///
    /// let (builder, keys) = (WasiCtxBuilder::new(), TrustedKeys::from_iter([key.public()]));
    /// let place = here.join("other copies");
    /// let program = StartedProgram::load_with_files(&linker, &images, image, builder, keys, place)?;
    /// let (stdin, stderr) = (StdinKind::Null, OutputKind::Null);
    /// let fork = program.fork(1, ForkStreams { stdin, stdout: OutputKind::Null, stderr })?;
    /// let (work, _, _) = fork.data().ctx.preopens().next().unwrap();
    /// assert_eq!(std::fs::read(work.join("notes"))?, b"some");
    /// # drop((fork, program));
    /// # assert!(!here.join("other copies").exists());
    /// # std::fs::remove_dir_all(&here)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn load_with_files(
        linker: &Linker<ForkGuest>,
        images: &ImageStore,
        image: ContentHash,
        builder: WasiCtxBuilder,
        keys: TrustedKeys,
        place: impl AsRef<Path>,
    ) -> Result<Self, ForkError> {
        let snapshot = Snapshot::load(linker, images, image, LoadOptions::new().trust(keys));
        Self::of_snapshot(snapshot.map_err(ForkError::Failed)?, builder, Some(place.as_ref()))
    }

    /// The program of a snapshot that was loaded, with `place` for
    /// [its files](StartedProgram::load_with_files), if it may have any. Where pages of the snapshot
    /// are [still to come](Snapshot::load_incomplete), forks wait for those that they touch.
    ///
    /// # Errors
    /// [`ForkError`].
    ///
    /// # Examples
    ///
    /// See [`StartedProgram::load`], which is this after [`Snapshot::load`].
    pub fn of_snapshot(
        snapshot: Snapshot<ForkGuest>,
        mut builder: WasiCtxBuilder,
        place: Option<&Path>,
    ) -> Result<Self, ForkError> {
        let ProgramState { wasi: state, written } = ProgramState::from_bytes(snapshot.state())?;
        let place = place.filter(|_| state.session_dirs().next().is_some());
        let files = place.map(OwnDir::new).transpose()?;
        if let Some(files) = &files {
            builder
                .session_files_from(&snapshot, &state, captured(files), files.path())
                .map_err(ForkError::Files)?;
        }
        // What is wrong with it is known before the first fork.
        builder.restore(&state)?;
        let pre = snapshot.instance_pre().map_err(ForkError::Failed)?;
        Ok(Self { snapshot, pre, state, builder, written, forks: AtomicU64::new(0), files })
    }

    /// The program's module.
    ///
    /// # Examples
    ///
    /// See [`StartedProgram`].
    pub fn module(&self) -> &Module {
        self.pre.module()
    }

    /// What the program had written to standard output when it was captured.
    ///
    /// # Examples
    ///
    /// See [`StartedProgram`].
    pub fn written(&self) -> &[u8] {
        &self.written
    }

    /// A store that goes on from where the program was captured, when it is
    /// [resumed](Store::resume). `number` is what `pagefork.snapshot` returns there.
    ///
    /// # Errors
    /// If a file that the program has open is not what it was; else as [`InstancePre::spawn`].
    ///
    /// # Examples
    ///
    /// See [`StartedProgram`].
    pub fn fork(&self, number: u32, streams: ForkStreams) -> Result<Store<ForkGuest>> {
        self.fork_limited(number, streams, || false, StoreLimits::default(), drop)
    }

    /// As [`StartedProgram::fork`], with limits, as [`InstancePre::spawn_limited`]. Waits end when
    /// `is_given_up` says so.
    ///
    /// # Errors
    /// As [`StartedProgram::fork`], and as [`InstancePre::spawn_limited`].
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::atomic::{AtomicBool, Ordering};
    /// use std::sync::Arc;
    ///
    /// use pagefork::{Engine, Linker, Module, StoreLimits};
    /// use pagefork_serve::{ForkGuest, ForkStreams, StartedProgram, add_fork_to_linker};
    /// use pagefork_wasi::{OutputKind, StdinKind, WasiCtxBuilder};
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module
    ///     (import "pagefork" "snapshot" (func $snapshot (result i32)))
    ///     (memory 1)
    ///     (func (export "_start") (drop (call $snapshot)) (loop (br 0))))"#)?;
    /// let mut linker = Linker::new(&engine);
    /// add_fork_to_linker(&mut linker)?;
    /// let program = StartedProgram::start(&linker, &module, WasiCtxBuilder::new())?;
    ///
    /// let (stdin, stdout, stderr) = (StdinKind::Null, OutputKind::Null, OutputKind::Null);
    /// let streams = ForkStreams { stdin, stdout, stderr };
    /// let limits = StoreLimits::new().memory_total(1 << 20);
    /// let given_up = Arc::new(AtomicBool::new(false));
    /// let mut handle = None;
    /// let mut fork = program.fork_limited(1, streams, {
    ///     let given_up = Arc::clone(&given_up);
    ///     move || given_up.load(Ordering::Relaxed)
    /// }, limits, |interrupts| handle = Some(interrupts))?;
    ///
    /// // Another thread gives the request up: waits end by the flag, loops by the interrupt.
    /// let handle = handle.expect("it is given before the fork runs");
    /// let (done, stop) = std::sync::mpsc::channel::<()>();
    /// let other_thread = std::thread::spawn(move || {
    ///     given_up.store(true, Ordering::Relaxed);
    ///     while stop.recv_timeout(std::time::Duration::from_millis(1)).is_err() {
    ///         handle.interrupt();
    ///     }
    /// });
    /// assert!(fork.resume().is_err());
    /// done.send(()).expect("the thread listens");
    /// other_thread.join().expect("it ends");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn fork_limited(
        &self,
        number: u32,
        streams: ForkStreams,
        is_given_up: impl Fn() -> bool + Send + Sync + 'static,
        limits: StoreLimits,
        watch: impl FnOnce(InterruptHandle),
    ) -> Result<Store<ForkGuest>> {
        Ok(self.fork_with_instance(number, streams, is_given_up, limits, watch)?.0)
    }

    /// As [`StartedProgram::fork_limited`], with the program's instance.
    ///
    /// # Errors
    /// As [`StartedProgram::fork_limited`].
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Engine, Linker, Module, StoreLimits};
    /// use pagefork_serve::{ForkGuest, ForkStreams, StartedProgram, add_fork_to_linker};
    /// use pagefork_wasi::{OutputKind, StdinKind, WasiCtxBuilder};
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module
    ///     (import "pagefork" "snapshot" (func $snapshot (result i32)))
    ///     (func (export "_start") (drop (call $snapshot))))"#)?;
    /// let mut linker = Linker::new(&engine);
    /// add_fork_to_linker(&mut linker)?;
    /// let program = StartedProgram::start(&linker, &module, WasiCtxBuilder::new())?;
    /// let (stdin, stdout, stderr) = (StdinKind::Null, OutputKind::Null, OutputKind::Null);
    /// let streams = ForkStreams { stdin, stdout, stderr };
    /// let limits = StoreLimits::default();
    /// let (fork, instance) = program.fork_with_instance(1, streams, || false, limits, drop)?;
    /// println!("forks are reset by {}", instance.strategy(&fork));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn fork_with_instance(
        &self,
        number: u32,
        streams: ForkStreams,
        is_given_up: impl Fn() -> bool + Send + Sync + 'static,
        limits: StoreLimits,
        watch: impl FnOnce(InterruptHandle),
    ) -> Result<(Store<ForkGuest>, Instance)> {
        let mut builder = self.builder.clone();
        let ForkStreams { stdin, stdout, stderr } = streams;
        builder.stdin(stdin).stdout(stdout).stderr(stderr);
        let restored = builder.restore(&self.state);
        let mut ctx = restored.map_err(|error: RestoreError| Error::new(error))?.ctx;
        ctx.set_interrupt_check(is_given_up);
        let guest = ForkGuest { ctx, number: Some(number) };
        let tenant = self.forks.fetch_add(1, Ordering::Relaxed);
        self.pre.spawn_limited(tenant, guest, limits, watch)
    }
}

/// Why a program did not get to where it is captured.
fn ended(error: Error) -> ForkError {
    match error.downcast_ref::<Exit>() {
        Some(exit) => ForkError::Ended(exit.0),
        None => ForkError::Failed(error),
    }
}

impl fmt::Debug for StartedProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StartedProgram")
            .field("written", &self.written.len())
            .finish_non_exhaustive()
    }
}
