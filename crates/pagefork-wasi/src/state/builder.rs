//! How an embedder builds the state of a guest.

use std::borrow::Borrow;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cap_std::ambient_authority;
use cap_std::fs::Dir;

use crate::state::build_error::BuildError;
use crate::state::ctx::WasiCtx;
use crate::state::grants::{Grants, Permissions, Preopen, SharedGrants};
use crate::state::session::{SessionDir, SessionFiles};
use crate::state::socket::Socket;
use crate::state::sources::{HostMonotonicClock, HostWallClock, OwnSources};
use crate::state::stdio::{OutputKind, StdinKind};
use crate::state::strings::{Environment, Strings};
use crate::state::tree::SessionLimits;

/// Count of descriptors that a guest can have if the embedder does not set another.
const DESCRIPTORS_MAX: u32 = 1024;

/// Builds a [`WasiCtx`]. By default, a guest gets no arguments, no environment, no directory,
/// no socket and empty input, and its output is discarded.
///
/// # Examples
///
/// ```
/// use pagefork_wasi::{OutputKind, Permissions, StdinKind, WasiCtx};
///
/// let (output, stdout) = OutputKind::pipe();
/// let mut builder = WasiCtx::builder();
/// builder.args(["count", "--lines"]).env("LANG", "C");
/// builder.stdin(StdinKind::bytes("one\ntwo\n")).stdout(stdout);
/// builder.preopened_dir(std::env::temp_dir(), "/tmp", Permissions::ReadWrite)?;
/// let ctx = builder.build()?;
/// # Ok::<(), pagefork_wasi::BuildError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct WasiCtxBuilder {
    args: Vec<Vec<u8>>,
    variables: Vec<(Vec<u8>, Vec<u8>)>,
    pub(super) preopens: Vec<Preopen>,
    pub(super) sockets: Vec<Socket>,
    descriptors_max: Option<u32>,
    pub(super) session_limits: SessionLimits,
    pub(super) session_files: Option<SessionFiles>,
    pub(super) sources: OwnSources,
    pub(super) stdin: StdinKind,
    pub(super) stdout: OutputKind,
    pub(super) stderr: OutputKind,
}

impl WasiCtx {
    /// A builder that grants nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// let ctx = pagefork_wasi::WasiCtx::builder().arg("greet").build()?;
    /// # Ok::<(), pagefork_wasi::BuildError>(())
    /// ```
    pub fn builder() -> WasiCtxBuilder {
        WasiCtxBuilder::new()
    }
}

impl WasiCtxBuilder {
    /// A builder that grants nothing, as [`WasiCtx::builder`] returns.
    ///
    /// # Examples
    ///
    /// See [`WasiCtxBuilder`].
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends an argument. The first is, by custom, the program's name.
    ///
    /// # Examples
    ///
    /// ```
    /// let ctx = pagefork_wasi::WasiCtx::builder().arg("sort").arg("-n").build()?;
    /// # Ok::<(), pagefork_wasi::BuildError>(())
    /// ```
    pub fn arg(&mut self, arg: impl Into<Vec<u8>>) -> &mut Self {
        self.args.push(arg.into());
        self
    }

    /// Appends arguments.
    ///
    /// # Examples
    ///
    /// ```
    /// let ctx = pagefork_wasi::WasiCtx::builder().args(["sort", "-n"]).build()?;
    /// # Ok::<(), pagefork_wasi::BuildError>(())
    /// ```
    pub fn args(&mut self, args: impl IntoIterator<Item = impl AsRef<[u8]>>) -> &mut Self {
        self.args.extend(args.into_iter().map(|arg| arg.as_ref().to_vec()));
        self
    }

    /// Appends the arguments of this process, the program's name included.
    ///
    /// # Examples
    ///
    /// ```
    /// let ctx = pagefork_wasi::WasiCtx::builder().inherit_args().build()?;
    /// # Ok::<(), pagefork_wasi::BuildError>(())
    /// ```
    pub fn inherit_args(&mut self) -> &mut Self {
        self.args.extend(std::env::args_os().map(OsString::into_vec));
        self
    }

    /// Sets an environment variable. A later value of the same name replaces an earlier one.
    ///
    /// # Examples
    ///
    /// ```
    /// let ctx = pagefork_wasi::WasiCtx::builder().env("LANG", "C").env("HOME", "/").build()?;
    /// # Ok::<(), pagefork_wasi::BuildError>(())
    /// ```
    pub fn env(&mut self, name: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> &mut Self {
        let (name, value) = (name.into(), value.into());
        match self.variables.iter_mut().find(|(other, _)| *other == name) {
            Some((_, old)) => *old = value,
            None => self.variables.push((name, value)),
        }
        self
    }

    /// Sets environment variables, given as pairs of a name and a value, as
    /// [`WasiCtxBuilder::env`].
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_wasi::WasiCtx;
    ///
    /// let ctx = WasiCtx::builder().envs(&[("LANG", "C"), ("HOME", "/")]).build()?;
    /// let ctx = WasiCtx::builder().envs(std::env::vars()).build()?;
    /// # Ok::<(), pagefork_wasi::BuildError>(())
    /// ```
    pub fn envs<Name: AsRef<[u8]>, Value: AsRef<[u8]>>(
        &mut self,
        variables: impl IntoIterator<Item = impl Borrow<(Name, Value)>>,
    ) -> &mut Self {
        for variable in variables {
            let (name, value) = variable.borrow();
            self.env(name.as_ref(), value.as_ref());
        }
        self
    }

    /// Passes on every environment variable of this process.
    ///
    /// # Examples
    ///
    /// ```
    /// let ctx = pagefork_wasi::WasiCtx::builder().inherit_env().build()?;
    /// # Ok::<(), pagefork_wasi::BuildError>(())
    /// ```
    pub fn inherit_env(&mut self) -> &mut Self {
        for (name, value) in std::env::vars_os() {
            self.env(name.into_vec(), value.into_vec());
        }
        self
    }

    /// Uses the three standard streams of this process.
    ///
    /// # Examples
    ///
    /// ```
    /// let ctx = pagefork_wasi::WasiCtx::builder().inherit_stdio().build()?;
    /// # Ok::<(), pagefork_wasi::BuildError>(())
    /// ```
    pub fn inherit_stdio(&mut self) -> &mut Self {
        self.inherit_stdin().inherit_stdout().inherit_stderr()
    }

    /// Uses the standard input of this process.
    ///
    /// # Examples
    ///
    /// See [`WasiCtxBuilder::inherit_stdio`].
    pub fn inherit_stdin(&mut self) -> &mut Self {
        self.stdin(StdinKind::Inherit)
    }

    /// Uses the standard output of this process.
    ///
    /// # Examples
    ///
    /// See [`WasiCtxBuilder::inherit_stdio`].
    pub fn inherit_stdout(&mut self) -> &mut Self {
        self.stdout(OutputKind::Inherit)
    }

    /// Uses the standard error of this process.
    ///
    /// # Examples
    ///
    /// See [`WasiCtxBuilder::inherit_stdio`].
    pub fn inherit_stderr(&mut self) -> &mut Self {
        self.stderr(OutputKind::Inherit)
    }

    /// Sets where standard input comes from.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_wasi::{StdinKind, WasiCtx};
    ///
    /// let ctx = WasiCtx::builder().stdin(StdinKind::bytes("3\n1\n2\n")).build()?;
    /// # Ok::<(), pagefork_wasi::BuildError>(())
    /// ```
    pub fn stdin(&mut self, kind: StdinKind) -> &mut Self {
        self.stdin = kind;
        self
    }

    /// Sets where standard output goes.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_wasi::{OutputKind, WasiCtx};
    ///
    /// let (output, stdout) = OutputKind::pipe();
    /// let ctx = WasiCtx::builder().stdout(stdout).build()?;
    /// assert!(output.contents().is_empty());
    /// # Ok::<(), pagefork_wasi::BuildError>(())
    /// ```
    pub fn stdout(&mut self, kind: OutputKind) -> &mut Self {
        self.stdout = kind;
        self
    }

    /// Sets where standard error goes.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_wasi::{OutputKind, WasiCtx};
    ///
    /// let ctx = WasiCtx::builder().stderr(OutputKind::Inherit).build()?;
    /// # Ok::<(), pagefork_wasi::BuildError>(())
    /// ```
    pub fn stderr(&mut self, kind: OutputKind) -> &mut Self {
        self.stderr = kind;
        self
    }

    /// Sets another clock for the time of day than the host's; see [`HostWallClock`]. The times
    /// of files stay the host's.
    ///
    /// A guest that waits until a time by this clock waits as long as it is until then when it
    /// begins to, by the host's clock.
    ///
    /// # Examples
    ///
    /// See [`HostWallClock`].
    pub fn wall_clock(&mut self, clock: impl HostWallClock + 'static) -> &mut Self {
        self.sources.wall_clock = Some(Arc::new(clock));
        self
    }

    /// Sets another clock that never goes back than the host's, for the time and, as
    /// [`WasiCtxBuilder::wall_clock`], for waits until a time. Waits of some duration are the
    /// host's.
    ///
    /// # Examples
    ///
    /// See [`HostMonotonicClock`].
    pub fn monotonic_clock(&mut self, clock: impl HostMonotonicClock + 'static) -> &mut Self {
        self.sources.monotonic_clock = Some(Arc::new(clock));
        self
    }

    /// Sets what fills buffers with random bytes in place of the kernel; guests take them for
    /// keys, too. States that are built from this builder share it.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_wasi::{GuestMemory, WasiCtx};
    ///
    /// // Every run of the guest is the same.
    /// let mut ctx = WasiCtx::builder().secure_random(|buffer| buffer.fill(4)).build()?;
    /// let mut bytes = [0; 8];
    /// ctx.random_get(&mut GuestMemory::new(&mut bytes[..]), 2, 3)?;
    /// assert_eq!(bytes, [0, 0, 4, 4, 4, 0, 0, 0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn secure_random(
        &mut self,
        random: impl Fn(&mut [u8]) + Send + Sync + 'static,
    ) -> &mut Self {
        self.sources.random = Some(Arc::new(random));
        self
    }

    /// Limits the descriptors that the guest can have open at one time: the numbers that
    /// `path_open` and `sock_accept` return are below `count`, else they fail with
    /// [`Errno::Mfile`](crate::Errno::Mfile). The default is 1024.
    ///
    /// The standard streams, sockets and directories that the guest is given count too, but
    /// the guest gets them even if they are more.
    ///
    /// # Examples
    ///
    /// ```
    /// let ctx = pagefork_wasi::WasiCtx::builder().descriptors_max(64).build()?;
    /// # Ok::<(), pagefork_wasi::BuildError>(())
    /// ```
    pub fn descriptors_max(&mut self, count: u32) -> &mut Self {
        self.descriptors_max = Some(count);
        self
    }

    /// Gives the guest a directory of the host under a name of its own.
    ///
    /// Directories get the descriptors 3, 4, ... in the order of these calls, or those that
    /// follow the sockets.
    ///
    /// # Errors
    ///
    /// [`BuildError::Preopen`] if the directory cannot be opened, [`BuildError::GuestPath`] if
    /// the name is empty or contains a NUL.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_wasi::{Permissions, WasiCtx};
    ///
    /// let mut builder = WasiCtx::builder();
    /// builder.preopened_dir("/usr", "/data", Permissions::ReadOnly)?;
    /// assert!(builder.preopened_dir("/no/such", "/more", Permissions::ReadOnly).is_err());
    /// # Ok::<(), pagefork_wasi::BuildError>(())
    /// ```
    pub fn preopened_dir(
        &mut self,
        host_path: impl AsRef<Path>,
        guest_path: impl Into<String>,
        permissions: Permissions,
    ) -> Result<&mut Self, BuildError> {
        let (host_path, guest_path) = (host_path.as_ref().to_owned(), guest_path.into());
        if guest_path.is_empty() || guest_path.contains('\0') {
            return Err(BuildError::GuestPath { guest_path });
        }
        match Dir::open_ambient_dir(&host_path, ambient_authority()) {
            Ok(dir) => {
                let dir = Arc::new(dir);
                let session = None;
                self.preopens.push(Preopen { host_path, guest_path, permissions, dir, session });
                Ok(self)
            }
            Err(source) => Err(BuildError::Preopen { host_path, guest_path, source }),
        }
    }

    /// Gives the guest a directory of the host, to read and write, that belongs to its session:
    /// it is copied when the state is saved, by [`WasiCtx::save_with_files`], and each guest that
    /// is restored has a copy of its own; see [`WasiCtxBuilder::session_files`]. Other
    /// directories are shared with the host and with all other guests that have them.
    ///
    /// The directory itself is the embedder's and stays. States that are built from this builder
    /// share it.
    ///
    /// # Errors
    ///
    /// As [`WasiCtxBuilder::preopened_dir`].
    ///
    /// # Examples
    ///
    /// ```
    /// # let host = std::env::temp_dir().join(format!("pagefork-own-{}", std::process::id()));
    /// # std::fs::create_dir_all(&host)?;
    /// let mut builder = pagefork_wasi::WasiCtx::builder();
    /// let ctx = builder.session_dir(&host, "/work")?.build()?;
    /// assert_eq!(ctx.preopens().next().unwrap().1, "/work");
    /// # std::fs::remove_dir_all(&host)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn session_dir(
        &mut self,
        host_path: impl AsRef<Path>,
        guest_path: impl Into<String>,
    ) -> Result<&mut Self, BuildError> {
        self.preopened_dir(host_path, guest_path, Permissions::ReadWrite)?;
        if let Some(preopen) = self.preopens.last_mut() {
            preopen.session = Some(Arc::new(SessionDir::Given));
        }
        Ok(self)
    }

    /// Limits what the directories of a session may hold to be copied, when a state is saved and
    /// when it is restored.
    ///
    /// # Examples
    ///
    /// See [`SessionLimits`].
    pub fn session_limits(&mut self, limits: SessionLimits) -> &mut Self {
        self.session_limits = limits;
        self
    }

    /// Says where the directories of a session come from when a state is restored that was saved
    /// by [`WasiCtx::save_with_files`]: from copies in `saved`, the directory that it was saved
    /// with. Each guest that is restored has copies of its own in new directories in `place`,
    /// which only this user can read. They are removed when its [`WasiCtx`] is dropped.
    ///
    /// Directories of a session that this builder was given before are not its own any more: the
    /// copies take their place. Nothing in `saved` is changed, so that any number of guests are restored from it. Where
    /// the file system can, copies share blocks with it until they are written.
    ///
    /// A process that is killed leaves the directories in `place` behind.
    ///
    /// # Examples
    ///
    /// See [`WasiCtx::save_with_files`].
    pub fn session_files(
        &mut self,
        saved: impl Into<PathBuf>,
        place: impl Into<PathBuf>,
    ) -> &mut Self {
        self.preopens.retain(|preopen| preopen.session.is_none());
        self.session_files = Some(SessionFiles { saved: saved.into(), place: place.into() });
        self
    }

    /// Gives the guest a socket: a [`TcpListener`](std::net::TcpListener) or
    /// [`UnixListener`](std::os::unix::net::UnixListener) on which it can accept, or a
    /// connected [`TcpStream`](std::net::TcpStream) or
    /// [`UnixStream`](std::os::unix::net::UnixStream).
    ///
    /// Sockets get the descriptors 3, 4, ... in the order of these calls, before the
    /// directories. A guest that was made for `LISTEN_FDS` looks for them there. The socket is
    /// put into non-blocking mode, for all processes that share it. Whether the guest blocks
    /// is a flag of its own descriptor.
    ///
    /// # Errors
    ///
    /// [`BuildError::Socket`] if it carries no byte stream.
    ///
    /// # Examples
    ///
    /// ```
    /// let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    /// let mut builder = pagefork_wasi::WasiCtx::builder();
    /// builder.preopened_socket(listener)?.env("LISTEN_FDS", "1");
    /// let ctx = builder.build()?;
    /// assert!(ctx.descriptors().any(|(fd, _)| fd == 3));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn preopened_socket(
        &mut self,
        socket: impl Into<OwnedFd>,
    ) -> Result<&mut Self, BuildError> {
        let index = self.sockets.len();
        let socket = Socket::new(socket.into());
        self.sockets.push(socket.map_err(|source| BuildError::Socket { index, source })?);
        Ok(self)
    }

    pub(super) fn descriptor_limit(&self) -> u32 {
        self.descriptors_max.unwrap_or(DESCRIPTORS_MAX)
    }

    /// Builds the state. The builder keeps its settings and can build another.
    ///
    /// # Errors
    ///
    /// [`BuildError::Argument`] and [`BuildError::Variable`] for a string that cannot be a C
    /// string.
    ///
    /// # Examples
    ///
    /// ```
    /// let mut builder = pagefork_wasi::WasiCtx::builder();
    /// let (one, other) = (builder.build()?, builder.build()?);
    /// assert!(builder.arg("\0").build().is_err());
    /// # Ok::<(), pagefork_wasi::BuildError>(())
    /// ```
    pub fn build(&self) -> Result<WasiCtx, BuildError> {
        let WasiTemplate { shared, variables } = self.template()?;
        let (stdin, stdout) = (self.stdin.clone(), self.stdout.clone());
        let stderr = self.stderr.clone();
        Ok(WasiCtx::new(Grants { shared, variables, stdin, stdout, stderr }))
    }

    /// The part that many states share: all but the standard streams, and an environment to
    /// begin with. A state made from it costs a few allocations.
    ///
    /// # Errors
    ///
    /// As [`WasiCtxBuilder::build`].
    ///
    /// # Examples
    ///
    /// See [`WasiTemplate`].
    pub fn template(&self) -> Result<WasiTemplate, BuildError> {
        let mut args = Strings::default();
        for (index, arg) in self.args.iter().enumerate() {
            if arg.contains(&0) {
                return Err(BuildError::Argument { index });
            }
            args.push(arg);
        }
        let mut variables = Environment::new();
        for (name, value) in &self.variables {
            variables.push(name, value)?;
        }
        let (preopens, sockets) = (self.preopens.clone(), self.sockets.clone());
        let descriptors_max = self.descriptor_limit();
        let sources = self.sources.clone();
        let session_limits = self.session_limits;
        let shared =
            SharedGrants { args, preopens, sockets, descriptors_max, session_limits, sources };
        let shared = Arc::new(shared);
        Ok(WasiTemplate { shared, variables })
    }
}

/// The part that many [`WasiCtx`] share, made by [`WasiCtxBuilder::template`].
///
/// # Examples
///
/// ```
/// use pagefork_wasi::{OutputKind, StdinKind, WasiCtx};
///
/// let template = WasiCtx::builder().arg("greet").template()?;
/// for user in ["Ada", "Grace"] {
///     let mut environment = template.environment();
///     environment.push(b"USER", user.as_bytes())?;
///     let (output, stdout) = OutputKind::pipe();
///     let ctx = template.context(environment, StdinKind::Null, stdout, OutputKind::Null);
/// }
/// # Ok::<(), pagefork_wasi::BuildError>(())
/// ```
#[derive(Clone, Debug)]
pub struct WasiTemplate {
    shared: Arc<SharedGrants>,
    variables: Environment,
}

impl WasiTemplate {
    /// The variables that were set in the builder. More can be appended.
    ///
    /// # Examples
    ///
    /// See [`WasiTemplate`].
    pub fn environment(&self) -> Environment {
        self.variables.clone()
    }

    /// A state with this environment and these standard streams.
    ///
    /// # Examples
    ///
    /// See [`WasiTemplate`].
    pub fn context(
        &self,
        environment: Environment,
        stdin: StdinKind,
        stdout: OutputKind,
        stderr: OutputKind,
    ) -> WasiCtx {
        let shared = Arc::clone(&self.shared);
        WasiCtx::new(Grants { shared, variables: environment, stdin, stdout, stderr })
    }
}
