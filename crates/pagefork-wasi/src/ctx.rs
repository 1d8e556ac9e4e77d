//! The state of one guest's WASI world, and how an embedder builds it.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cap_std::ambient_authority;
use cap_std::fs::Dir;

use crate::abi::{Errno, FdFlags, FileType, Rights};
use crate::descriptor::{Description, Descriptor, Handle, Origin, Table};
use crate::sock::Socket;
use crate::stdio::{Output, OutputKind, StdinKind};
use crate::strings::{Environment, Strings};
use crate::waiting::InterruptCheck;

/// What a guest may do below a preopened directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Permissions {
    /// Read and list. Whatever would change something fails with
    /// [`Errno::Perm`].
    ReadOnly,
    /// Everything.
    ReadWrite,
}

/// A [`WasiCtx`] that cannot be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A directory to preopen cannot be opened.
    #[error(
        "cannot preopen the directory `{}` as `{guest_path}`: {source}; \
         it must exist, be a directory and be accessible",
        host_path.display()
    )]
    Preopen {
        /// The directory.
        host_path: PathBuf,
        /// Its name in the guest.
        guest_path: String,
        /// Why not.
        source: io::Error,
    },
    /// The name of a preopened directory cannot be passed to the guest.
    #[error(
        "the guest path {guest_path:?} of a preopened directory is empty or contains a NUL byte; \
         give it a name such as `/data`"
    )]
    GuestPath {
        /// The name.
        guest_path: String,
    },
    /// A socket cannot be passed to the guest.
    #[error(
        "cannot pass socket {index} to the guest: {source}; \
         it must be a TCP or Unix stream socket that listens or is connected"
    )]
    Socket {
        /// Its place in the order in which sockets were given.
        index: usize,
        /// Why not.
        source: io::Error,
    },
    /// This process was given no sockets to pass on.
    #[error(
        "this process was given no sockets: `LISTEN_FDS` is not a count, or `LISTEN_PID` is of \
         another process; start it by socket activation, such as systemd's"
    )]
    NoListenFds,
    /// An argument cannot be passed as a C string.
    #[error("argument {index} contains a NUL byte, which a C string cannot hold; remove it")]
    Argument {
        /// Its index; 0 is the name of the program.
        index: usize,
    },
    /// An environment variable cannot be passed as a C string.
    #[error(
        "the environment variable {name:?} has a name that is empty or contains `=`, \
         or contains a NUL byte, which a C string cannot hold; rename or remove it"
    )]
    Variable {
        /// Its name.
        name: String,
    },
}

/// A state that cannot be saved, because of a descriptor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "descriptor {fd} is a connection ({origin:?}), whose state lies with the kernel and the peer; \
     the guest must close it before its state is saved"
)]
pub struct Unsaveable {
    /// The descriptor.
    pub fd: u32,
    /// How it came to be.
    pub origin: Origin,
}

/// Builds a [`WasiCtx`]. As it stands, it gives a guest no arguments, no
/// environment, no directory, no socket, empty input and discarded output.
#[derive(Debug, Default)]
pub struct WasiCtxBuilder {
    args: Vec<Vec<u8>>,
    variables: Vec<(Vec<u8>, Vec<u8>)>,
    preopens: Vec<Preopen>,
    sockets: Vec<Socket>,
    stdin: StdinKind,
    stdout: OutputKind,
    stderr: OutputKind,
}

impl WasiCtxBuilder {
    /// A builder that grants nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends an argument. The first is, by custom, the program's name.
    pub fn arg(&mut self, arg: impl Into<Vec<u8>>) -> &mut Self {
        self.args.push(arg.into());
        self
    }

    /// Appends arguments.
    pub fn args(&mut self, args: impl IntoIterator<Item = impl Into<Vec<u8>>>) -> &mut Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Sets an environment variable; a later value of the same name replaces
    /// an earlier one.
    pub fn env(&mut self, name: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> &mut Self {
        let (name, value) = (name.into(), value.into());
        match self.variables.iter_mut().find(|(other, _)| *other == name) {
            Some((_, old)) => *old = value,
            None => self.variables.push((name, value)),
        }
        self
    }

    /// Passes on every environment variable of this process.
    pub fn inherit_env(&mut self) -> &mut Self {
        use std::os::unix::ffi::OsStringExt;
        for (name, value) in std::env::vars_os() {
            self.env(OsString::into_vec(name), OsString::into_vec(value));
        }
        self
    }

    /// Uses the three standard streams of this process.
    pub fn inherit_stdio(&mut self) -> &mut Self {
        self.stdin(StdinKind::Inherit).stdout(OutputKind::Inherit).stderr(OutputKind::Inherit)
    }

    /// Sets where standard input comes from.
    pub fn stdin(&mut self, kind: StdinKind) -> &mut Self {
        self.stdin = kind;
        self
    }

    /// Sets where standard output goes.
    pub fn stdout(&mut self, kind: OutputKind) -> &mut Self {
        self.stdout = kind;
        self
    }

    /// Sets where standard error goes.
    pub fn stderr(&mut self, kind: OutputKind) -> &mut Self {
        self.stderr = kind;
        self
    }

    /// Gives the guest a directory of the host under a name of the guest's.
    ///
    /// Directories get the descriptors 3, 4, ... in the order of these calls,
    /// or those that follow the sockets.
    ///
    /// # Errors
    ///
    /// [`BuildError::Preopen`] if the directory cannot be opened,
    /// [`BuildError::GuestPath`] if the name is empty or contains a NUL.
    pub fn preopened_dir(
        &mut self,
        host_path: impl AsRef<Path>,
        guest_path: impl Into<String>,
        permissions: Permissions,
    ) -> Result<&mut Self, BuildError> {
        let (host_path, guest_path) = (host_path.as_ref(), guest_path.into());
        if guest_path.is_empty() || guest_path.contains('\0') {
            return Err(BuildError::GuestPath { guest_path });
        }
        match Dir::open_ambient_dir(host_path, ambient_authority()) {
            Ok(dir) => {
                let host_path = host_path.to_owned();
                let dir = Arc::new(dir);
                self.preopens.push(Preopen { host_path, guest_path, permissions, dir });
                Ok(self)
            }
            Err(source) => {
                let host_path = host_path.to_owned();
                Err(BuildError::Preopen { host_path, guest_path, source })
            }
        }
    }

    /// Gives the guest a socket: a [`TcpListener`](std::net::TcpListener) or
    /// [`UnixListener`](std::os::unix::net::UnixListener) on which it can
    /// accept, or a connected [`TcpStream`](std::net::TcpStream) or
    /// [`UnixStream`](std::os::unix::net::UnixStream).
    ///
    /// Sockets get the descriptors 3, 4, ... in the order of these calls,
    /// before the directories: where a guest that was made for `LISTEN_FDS`
    /// looks for them. The socket is put into non-blocking mode, for all who
    /// share it; whether the guest blocks is a flag of its own descriptor.
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

    /// Builds the state. The builder keeps what it has and can build another.
    ///
    /// # Errors
    ///
    /// [`BuildError::Argument`] and [`BuildError::Variable`] for what cannot
    /// be a C string.
    pub fn build(&self) -> Result<WasiCtx, BuildError> {
        let template = self.template()?;
        let streams = (self.stdin.clone(), self.stdout.clone(), self.stderr.clone());
        Ok(template.context(template.environment(), streams.0, streams.1, streams.2))
    }

    /// What many states have in common: everything but the standard streams,
    /// and to begin with the environment. A state made from it costs a few
    /// allocations.
    ///
    /// # Errors
    ///
    /// As [`WasiCtxBuilder::build`].
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
        Ok(WasiTemplate {
            args: Arc::new(args),
            variables,
            preopens: self.preopens.clone().into(),
            sockets: self.sockets.clone().into(),
        })
    }
}

/// What many [`WasiCtx`] have in common; made by [`WasiCtxBuilder::template`].
#[derive(Clone, Debug)]
pub struct WasiTemplate {
    args: Arc<Strings>,
    variables: Environment,
    preopens: Arc<[Preopen]>,
    sockets: Arc<[Socket]>,
}

impl WasiTemplate {
    /// The variables that were set in the builder, for more to be appended.
    pub fn environment(&self) -> Environment {
        self.variables.clone()
    }

    /// A state with this environment and these standard streams.
    pub fn context(
        &self,
        environment: Environment,
        stdin: StdinKind,
        stdout: OutputKind,
        stderr: OutputKind,
    ) -> WasiCtx {
        WasiCtx::new(Config {
            args: Arc::clone(&self.args),
            variables: environment,
            preopens: Arc::clone(&self.preopens),
            sockets: Arc::clone(&self.sockets),
            stdin,
            stdout,
            stderr,
        })
    }
}

/// A directory that the guest was given.
#[derive(Clone, Debug)]
pub(crate) struct Preopen {
    pub(crate) host_path: PathBuf,
    pub(crate) guest_path: String,
    pub(crate) permissions: Permissions,
    pub(crate) dir: Arc<Dir>,
}

/// What the embedder granted: never changed by the guest.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) args: Arc<Strings>,
    pub(crate) variables: Environment,
    pub(crate) preopens: Arc<[Preopen]>,
    pub(crate) sockets: Arc<[Socket]>,
    pub(crate) stdin: StdinKind,
    pub(crate) stdout: OutputKind,
    pub(crate) stderr: OutputKind,
}

impl Config {
    pub(crate) fn preopen(&self, index: u32) -> Result<&Preopen, Errno> {
        self.preopens.get(index as usize).ok_or(Errno::Badf)
    }

    pub(crate) fn socket(&self, index: u32) -> Result<&Socket, Errno> {
        self.sockets.get(index as usize).ok_or(Errno::Badf)
    }

    /// Checks that what a descriptor leads to may be changed.
    pub(crate) fn require_writable(&self, description: &Description) -> Result<(), Errno> {
        match description.preopen() {
            None => Ok(()),
            Some(index) => match self.preopen(index)?.permissions {
                Permissions::ReadWrite => Ok(()),
                Permissions::ReadOnly => Err(Errno::Perm),
            },
        }
    }

    /// The table that a guest finds at its start.
    fn initial_table(&self) -> Table {
        let stream = |origin, handle, filetype, direction| {
            let rights = (Rights::STREAM & direction) | STREAM_COMMON;
            descriptor(origin, handle, filetype, rights, Rights::NONE)
        };
        let (stdout, stderr) =
            (self.stdout.filetype(Output::Stdout), self.stderr.filetype(Output::Stderr));
        let mut descriptors = vec![
            stream(Origin::Stdin, Handle::Stdin, self.stdin.filetype(), Rights::FD_READ),
            stream(Origin::Stdout, Handle::Stdout, stdout, Rights::FD_WRITE),
            stream(Origin::Stderr, Handle::Stderr, stderr, Rights::FD_WRITE),
        ];
        for (index, socket) in (0..).zip(self.sockets.iter()) {
            descriptors.push(socket.descriptor(index));
        }
        for (index, preopen) in (0..).zip(self.preopens.iter()) {
            let handle = Handle::Directory { dir: Arc::clone(&preopen.dir), listing: None };
            descriptors.push(descriptor(
                Origin::Preopen { index },
                handle,
                FileType::Directory,
                Rights::DIRECTORY,
                Rights::DIRECTORY | Rights::FILE,
            ));
        }
        Table::from_entries(descriptors)
    }
}

/// Rights of every standard stream, whichever its direction.
const STREAM_COMMON: Rights = Rights(Rights::STREAM.0 & !Rights::FD_READ.0 & !Rights::FD_WRITE.0);

fn descriptor(
    origin: Origin,
    handle: Handle,
    filetype: FileType,
    rights_base: Rights,
    rights_inheriting: Rights,
) -> Descriptor {
    let flags = FdFlags::NONE;
    let description =
        Description { origin, filetype, flags, rights_base, rights_inheriting, offset: 0 };
    Descriptor { description, handle }
}

/// The WASI state of one guest.
///
/// It consists of what the embedder granted, which never changes, and the
/// descriptor table, each of whose entries is plain data beside a handle that
/// can be opened again. Clocks and random numbers have no state.
#[derive(Debug)]
pub struct WasiCtx {
    pub(crate) config: Arc<Config>,
    pub(crate) table: Table,
    /// The embedder's, like the configuration.
    pub(crate) interrupt: Option<InterruptCheck>,
}

impl WasiCtx {
    /// A builder that grants nothing.
    pub fn builder() -> WasiCtxBuilder {
        WasiCtxBuilder::new()
    }

    /// Returns to the state at the start: descriptors that the guest opened
    /// are closed, and those that it closed are open again.
    ///
    /// What left the guest stays: changes of files, output, and input already
    /// taken from the process or from an [`InputPipe`](crate::InputPipe).
    /// Input from bytes in memory begins anew.
    pub fn reset(&mut self) {
        self.table = self.config.initial_table();
    }

    /// Sets what is asked, every 20 milliseconds, while the guest waits for
    /// anything; once it says `true`, the call fails with [`Errno::Intr`].
    /// It stays set over [`WasiCtx::reset`].
    ///
    /// Interrupts and timeouts of the guest's store end its waits without
    /// this, and make it trap. What is set here is the embedder's own reason
    /// to end a wait; the guest goes on.
    pub fn set_interrupt_check(&mut self, interrupted: impl Fn() -> bool + Send + Sync + 'static) {
        self.interrupt = Some(InterruptCheck::new(interrupted));
    }

    /// Every open descriptor, by number, as plain data.
    pub fn descriptors(&self) -> impl Iterator<Item = (u32, &Description)> {
        self.table.iter().map(|(fd, descriptor)| (fd, &descriptor.description))
    }

    /// Opens a descriptor's handle again from its description, and puts it in
    /// the place of the old one.
    ///
    /// # Errors
    ///
    /// [`Errno::Badf`] if `fd` is not open, [`Errno::Stale`] if the path now
    /// leads to a file of another type, and whatever opening the path can fail
    /// with, and [`Errno::Notrecoverable`] for a connection that the guest
    /// accepted; then the old handle stays.
    pub fn reopen(&mut self, fd: u32) -> Result<(), Errno> {
        let descriptor = self.table.get_mut(fd)?;
        descriptor.handle = descriptor.description.reopen(&self.config)?;
        Ok(())
    }

    /// Checks that the descriptors, as plain data, are all there is to save.
    ///
    /// # Errors
    ///
    /// [`Unsaveable`] names the first one whose state lies elsewhere: a
    /// connection.
    pub fn check_saveable(&self) -> Result<(), Unsaveable> {
        match self.descriptors().find(|(_, description)| !description.is_saveable()) {
            Some((fd, description)) => Err(Unsaveable { fd, origin: description.origin.clone() }),
            None => Ok(()),
        }
    }

    /// The directories that the guest was given: host path, guest path,
    /// permissions. Their order is that of [`Origin::Preopen`]'s index.
    pub fn preopens(&self) -> impl Iterator<Item = (&Path, &str, Permissions)> {
        self.config.preopens.iter().map(|preopen| {
            (preopen.host_path.as_path(), preopen.guest_path.as_str(), preopen.permissions)
        })
    }

    fn new(config: Config) -> Self {
        let table = config.initial_table();
        WasiCtx { config: Arc::new(config), table, interrupt: None }
    }
}
