//! Making a state again from plain data, which is checked against what the embedder grants.

use std::fmt;
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cap_std::fs::Dir;
use rustix::fs::OFlags as HostFlags;

use crate::base::abi::{FdFlags, FileType, Rights};
use crate::base::errno::Result;
use crate::state::builder::WasiCtxBuilder;
use crate::state::ctx::WasiCtx;
use crate::state::descriptor::{Description, Descriptor, DescriptorOrigin, Handle};
use crate::state::grants::{Grants, Permissions, Preopen, SharedGrants};
use crate::state::identity::{FileChange, FileIdentity};
use crate::state::listing::Listing;
use crate::state::path::{OpenMode, open_beneath};
use crate::state::saved::{SavedDescriptor, SavedPreopen, WasiState};
use crate::state::session::restore_directory;
use crate::state::socket::Socket;
use crate::state::stdio::OutputStream;
use crate::state::strings::{Environment, Strings};
use crate::state::table::{DescriptorTable, STREAMS};
use crate::state::tree::{CopyBudget, SessionError};

/// A [`WasiCtx`] made of a saved state. [`WasiCtxBuilder::restore`] has an example.
#[derive(Debug)]
pub struct RestoredCtx {
    /// The state.
    pub ctx: WasiCtx,
    /// What is otherwise than when it was saved.
    pub notices: Vec<RestoreNotice>,
}

/// Something that a restored guest finds otherwise than it was.
///
/// # Examples
///
/// See [`ChangedFile`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RestoreNotice {
    /// A standard stream was a terminal and is none now. Programs that asked before go on as if
    /// it were: they write line by line, or colours.
    NoTerminal {
        /// The descriptor.
        fd: u32,
    },
    /// A file is not what it was, and the caller chose that the guest goes on with it.
    OpenedAnyway(ChangedFile),
    /// A file is not what it was, and the caller chose that its descriptor is closed.
    Closed(ChangedFile),
}

impl fmt::Display for RestoreNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RestoreNotice::NoTerminal { fd } => {
                write!(f, "descriptor {fd} was a terminal when the state was saved and is none now")
            }
            RestoreNotice::OpenedAnyway(file) => write!(f, "opened although changed: {file}"),
            RestoreNotice::Closed(file) => write!(f, "closed because changed: {file}"),
        }
    }
}

/// A file that is not what it was when the state was saved.
///
/// # Examples
///
/// ```
/// use pagefork_wasi::{
///     ChangedFile, FileChange, FileDecision, FilePolicy, GuestMemory, Permissions, Rights, WasiCtx,
/// };
///
/// # let host = std::env::temp_dir().join(format!("pagefork-changed-{}", std::process::id()));
/// # std::fs::create_dir_all(&host)?;
/// std::fs::write(host.join("log"), "one\n")?;
/// let mut builder = WasiCtx::builder();
/// builder.preopened_dir(&host, "/var", Permissions::ReadOnly)?;
/// let mut ctx = builder.build()?;
/// let mut bytes = *b"log.....";
/// let memory = &mut GuestMemory::new(&mut bytes[..]);
/// ctx.path_open(memory, 3, 0, 0, 3, 0, Rights::FD_READ.bits(), 0, 0, 4)?;
/// let state = ctx.save()?;
///
/// std::fs::write(host.join("log"), "one\ntwo\n")?;
/// let error = builder.restore(&state).unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "descriptor 4, the file `log` in `/var`, is not what it was: its size was 4 bytes and is \
///      now 8"
/// );
/// // Logs may have grown.
/// let mut decide = |file: &ChangedFile| match file.change {
///     FileChange::Size { saved, found } if found > saved => FileDecision::Open,
///     _ => FileDecision::Refuse,
/// };
/// let restored = builder.restore_with(&state, FilePolicy::Decide(&mut decide))?;
/// assert_eq!(restored.notices.len(), 1);
/// # std::fs::remove_dir_all(&host)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "descriptor {fd}, the file `{}` in `{guest_path}`, is not what it was: {change}",
    path.display()
)]
pub struct ChangedFile {
    /// The descriptor.
    pub fd: u32,
    /// The preopened directory, by its name in the guest.
    pub guest_path: String,
    /// Path relative to it.
    pub path: PathBuf,
    /// What is otherwise.
    pub change: FileChange,
}

/// What to do with files that are not what they were when the state was saved.
/// [`ChangedFile`] has an example.
#[derive(Default)]
pub enum FilePolicy<'a> {
    /// Fail with [`RestoreError::Changed`].
    #[default]
    Refuse,
    /// Open them all the same, and say so in a notice. Files that cannot be opened, or that are
    /// of another type now, are refused.
    Open,
    /// Ask for each.
    Decide(&'a mut dyn FnMut(&ChangedFile) -> FileDecision),
}

impl fmt::Debug for FilePolicy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FilePolicy::Refuse => "Refuse",
            FilePolicy::Open => "Open",
            FilePolicy::Decide(_) => "Decide",
        })
    }
}

/// What to do with one file that is not what it was. [`ChangedFile`] has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileDecision {
    /// Fail with [`RestoreError::Changed`].
    Refuse,
    /// Open it all the same. If it cannot be opened, or is of another type now, it is refused.
    Open,
    /// Leave the descriptor closed: calls of the guest fail with [`Errno::Badf`](crate::Errno::Badf).
    Close,
}

/// A state that cannot be restored.
///
/// # Examples
///
/// ```
/// use pagefork_wasi::{Permissions, RestoreError, WasiCtx};
///
/// let mut builder = WasiCtx::builder();
/// let ctx = builder.preopened_dir("/usr", "/data", Permissions::ReadOnly)?.build()?;
/// let error = WasiCtx::builder().restore(&ctx.save()?).unwrap_err();
/// assert!(matches!(error, RestoreError::MissingPreopen { guest_path } if guest_path == "/data"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// The guest had a directory that the builder has not.
    #[error("the guest was saved with a directory `{guest_path}`; preopen one under this name")]
    MissingPreopen {
        /// Its name in the guest.
        guest_path: String,
    },
    /// The builder has a directory that the guest had not, and would never look for, or that
    /// belonged to its session.
    #[error(
        "the guest was saved without a directory `{guest_path}`, or with one of its own session; \
         do not preopen it"
    )]
    UnknownPreopen {
        /// Its name in the guest.
        guest_path: String,
    },
    /// The guest had a directory of its session, of which there is no copy.
    #[error(
        "the directory `{guest_path}` belongs to the guest's session; say by `session_files` where \
         its copy is"
    )]
    NoSessionFiles {
        /// Its name in the guest.
        guest_path: String,
    },
    /// A directory of the guest's session cannot be copied.
    #[error("cannot restore the directory `{guest_path}` of the guest's session: {error}")]
    Session {
        /// Its name in the guest.
        guest_path: String,
        /// Why not.
        error: SessionError,
    },
    /// The guest had a listening socket that the builder has not.
    #[error(
        "descriptor {fd} was the listening socket that was given as number {index}, counted from \
         0; give one in its place"
    )]
    MissingListener {
        /// The descriptor.
        fd: u32,
        /// Its index among the sockets that were given.
        index: u32,
    },
    /// A file is not what it was.
    #[error(transparent)]
    Changed(#[from] ChangedFile),
    /// A file was open for writing in a directory that is for reading only now.
    #[error(
        "descriptor {fd}, the file `{}` in `{guest_path}`, is open for writing, and the directory \
         is for reading only now", path.display()
    )]
    ReadOnly {
        /// The descriptor.
        fd: u32,
        /// The preopened directory, by its name in the guest.
        guest_path: String,
        /// Path relative to it.
        path: PathBuf,
    },
    /// The guest had more descriptors open than it may have.
    #[error(
        "the guest has descriptor {fd} open, and may have {count_max}; raise `descriptors_max`"
    )]
    TooManyDescriptors {
        /// The descriptor.
        fd: u32,
        /// Numbers must be below this.
        count_max: u32,
    },
    /// The state is none that [`WasiCtx::save`] makes.
    #[error(
        "the saved state is damaged: {}{reason}",
        fd.map_or(String::new(), |fd| format!("descriptor {fd} "))
    )]
    Damaged {
        /// The descriptor, if it is about one.
        fd: Option<u32>,
        /// What is wrong.
        reason: &'static str,
    },
}

impl WasiCtxBuilder {
    /// Makes a state again that was saved, with what this builder grants.
    ///
    /// Of the builder are the preopened directories, which the guest finds by their names in the
    /// guest; listening sockets, by their order; the standard streams, read from their start; the
    /// limit of descriptors; and what is set in place of the host's clocks and random numbers.
    /// Arguments and environment are the saved state's, and those of the builder are not used.
    /// What the guest may do in a directory is what both states allow.
    ///
    /// Directories of the guest's session are copied: see [`WasiCtxBuilder::session_files`].
    ///
    /// Each file that the guest had open is opened again by its path beneath the preopened
    /// directory, and must be what it was: the same file, of the same size, not changed since.
    /// Of directories and devices only the first is asked.
    ///
    /// The monotonic clock goes on from where it was when the state was saved, also on another
    /// boot or host. The time of day is the host's, and random numbers are fresh.
    ///
    /// A `poll_oneoff` before which the guest is suspended waits for the rest of its timeouts when
    /// it is made again.
    ///
    /// [`WasiCtx::reset`] returns to the start of the program, not to the saved state.
    ///
    /// # Errors
    ///
    /// [`RestoreError`] names what is missing or otherwise.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_wasi::{GuestMemory, OutputKind, WasiCtx};
    ///
    /// let state = WasiCtx::builder().arg("greet").env("USER", "Ada").build()?.save()?;
    ///
    /// let (output, stdout) = OutputKind::pipe();
    /// let restored = WasiCtx::builder().stdout(stdout).restore(&state)?;
    /// assert!(restored.notices.is_empty());
    /// let mut bytes = [0; 32];
    /// let mut ctx = restored.ctx;
    /// ctx.environ_get(&mut GuestMemory::new(&mut bytes[..]), 0, 8)?;
    /// assert_eq!(&bytes[8..17], b"USER=Ada\0");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn restore(&self, state: &WasiState) -> Result<RestoredCtx, RestoreError> {
        self.restore_with(state, FilePolicy::Refuse)
    }

    /// Makes a state again as [`WasiCtxBuilder::restore`] does, with a choice for files that are
    /// not what they were. [`ChangedFile`] has an example.
    ///
    /// # Errors
    ///
    /// As [`WasiCtxBuilder::restore`].
    pub fn restore_with(
        &self,
        state: &WasiState,
        mut policy: FilePolicy<'_>,
    ) -> Result<RestoredCtx, RestoreError> {
        let preopens = self.match_preopens(&state.preopens)?;
        let args = restore_strings(&state.args, |_| true, "an argument contains a NUL")?;
        // Most guests take what follows the first equals sign for the value.
        let is_variable = |variable: &[u8]| variable.iter().position(|b| *b == b'=') > Some(0);
        let variables =
            restore_strings(&state.variables, is_variable, "a variable is no `name=value`")?;
        // A clock that is near its end would go back.
        if i64::try_from(state.monotonic_ns).is_err() {
            return Err(damaged(None, "its clock has run for centuries"));
        }
        let shared = SharedGrants {
            args,
            preopens,
            sockets: self.sockets.clone(),
            descriptors_max: self.descriptor_limit(),
            session_limits: self.session_limits,
            sources: self.sources.clone(),
        };
        let grants = Grants {
            shared: Arc::new(shared),
            variables: Environment(variables),
            stdin: self.stdin.clone(),
            stdout: self.stdout.clone(),
            stderr: self.stderr.clone(),
        };
        let mut restoring = Restoring { grants: &grants, policy: &mut policy, notices: Vec::new() };
        let entries = restoring.entries(&state.descriptors)?;
        let notices = restoring.notices;
        let table = DescriptorTable::from_entries(entries, &grants);
        let mut ctx = WasiCtx::with_table(grants, table);
        ctx.continue_clock(state.monotonic_ns);
        ctx.exit_code = state.exit_code;
        ctx.put_off_poll = state.put_off_poll;
        Ok(RestoredCtx { ctx, notices })
    }

    /// This builder's directories in the order of the saved ones, since descriptors name them by
    /// index.
    fn match_preopens(&self, saved: &[SavedPreopen]) -> Result<Vec<Preopen>, RestoreError> {
        let mut given: Vec<Option<&Preopen>> = self.preopens.iter().map(Some).collect();
        let mut budget = CopyBudget::new(self.session_limits);
        let mut find = |(number, saved): (usize, &SavedPreopen)| {
            if saved.is_session {
                return self.restore_session_dir(number, &saved.guest_path, &mut budget);
            }
            let is_it = |given: &&mut Option<_>| {
                given.is_some_and(|g: &Preopen| g.guest_path == saved.guest_path)
            };
            let found = given.iter_mut().find(is_it).and_then(Option::take);
            let Some(found) = found else {
                return Err(RestoreError::MissingPreopen { guest_path: saved.guest_path.clone() });
            };
            let read_only = Permissions::ReadOnly;
            let permissions =
                if saved.permissions == read_only { read_only } else { found.permissions };
            Ok(Preopen { permissions, ..found.clone() })
        };
        let preopens = saved.iter().enumerate().map(&mut find).collect::<Result<_, _>>()?;
        match given.into_iter().flatten().next() {
            Some(Preopen { guest_path, .. }) => {
                Err(RestoreError::UnknownPreopen { guest_path: guest_path.clone() })
            }
            None => Ok(preopens),
        }
    }

    fn restore_session_dir(
        &self,
        number: usize,
        guest_path: &str,
        budget: &mut CopyBudget,
    ) -> Result<Preopen, RestoreError> {
        let guest_path = guest_path.to_owned();
        let Some(files) = &self.session_files else {
            return Err(RestoreError::NoSessionFiles { guest_path });
        };
        match restore_directory(files, number, budget) {
            Ok((host_path, dir, session)) => Ok(Preopen {
                host_path,
                guest_path,
                permissions: Permissions::ReadWrite,
                dir: Arc::new(dir),
                session: Some(Arc::new(session)),
            }),
            Err(error) => Err(RestoreError::Session { guest_path, error }),
        }
    }
}

fn restore_strings(
    saved: &[Vec<u8>],
    is_good: impl Fn(&[u8]) -> bool,
    reason: &'static str,
) -> Result<Strings, RestoreError> {
    let mut strings = Strings::default();
    for string in saved {
        if string.contains(&0) || !is_good(string) {
            return Err(damaged(None, reason));
        }
        strings.push(string);
    }
    Ok(strings)
}

fn damaged(fd: impl Into<Option<u32>>, reason: &'static str) -> RestoreError {
    RestoreError::Damaged { fd: fd.into(), reason }
}

/// The descriptors on their way back.
struct Restoring<'a, 'b> {
    grants: &'a Grants,
    policy: &'a mut FilePolicy<'b>,
    notices: Vec<RestoreNotice>,
}

impl Restoring<'_, '_> {
    fn entries(
        &mut self,
        saved: &[SavedDescriptor],
    ) -> Result<Vec<Option<Descriptor>>, RestoreError> {
        let SharedGrants { sockets, preopens, descriptors_max, .. } = &*self.grants.shared;
        // Those that it is given, it has even if they are more than it may open.
        let given = u32::try_from(STREAMS + sockets.len() + preopens.len()).unwrap_or(u32::MAX);
        let count_max = given.max(*descriptors_max);
        let mut entries = Vec::new();
        for one in saved {
            let fd = one.fd;
            if fd >= count_max {
                return Err(RestoreError::TooManyDescriptors { fd, count_max });
            }
            if (fd as usize) < entries.len() {
                return Err(damaged(fd, "stands there twice, or out of order"));
            }
            entries.resize_with(fd as usize, || None);
            entries.push(self.descriptor(one)?);
        }
        // Files that the guest opens take the numbers behind.
        if entries.len() < STREAMS {
            entries.resize_with(STREAMS, || None);
        }
        Ok(entries)
    }

    /// `None` if the caller chose to close it.
    fn descriptor(&mut self, saved: &SavedDescriptor) -> Result<Option<Descriptor>, RestoreError> {
        let fd = saved.fd;
        let mut description = saved.description.clone();
        check_offset(&description).map_err(|reason| damaged(fd, reason))?;
        // Before anything is opened, which has an effect on some devices.
        check_rights(&description).map_err(|reason| damaged(fd, reason))?;
        let handle = match &description.origin {
            DescriptorOrigin::Stdin => {
                let filetype = self.grants.stdin.filetype();
                self.restore_stream(fd, &mut description, filetype);
                Handle::Stdin
            }
            DescriptorOrigin::Stdout => {
                self.restore_output(fd, &mut description, OutputStream::Stdout)
            }
            DescriptorOrigin::Stderr => {
                self.restore_output(fd, &mut description, OutputStream::Stderr)
            }
            DescriptorOrigin::Preopen { index } => {
                let preopen = self.grants.preopen(*index);
                let preopen = preopen.map_err(|_| damaged(fd, "is of no preopened directory"))?;
                description.filetype = FileType::Directory;
                Handle::directory(Arc::clone(&preopen.dir))
            }
            DescriptorOrigin::Listener { index } => {
                let index = *index;
                match self.grants.socket(index) {
                    Ok(socket @ Socket::Listener(_)) => {
                        description.filetype = FileType::SocketStream;
                        Handle::Socket(socket.clone())
                    }
                    _ => return Err(RestoreError::MissingListener { fd, index }),
                }
            }
            DescriptorOrigin::Connection { .. } | DescriptorOrigin::Accepted { .. } => {
                return Err(damaged(fd, "is a connection, which is never saved"));
            }
            DescriptorOrigin::Opened { .. } => match self.open(saved)? {
                Some(handle) => handle,
                None => return Ok(None),
            },
        };
        let handle = match (handle, &saved.listing) {
            (Handle::Directory { dir, .. }, Some(saved)) => {
                Handle::Directory { dir, listing: Listing::restore(saved) }
            }
            (handle, None) => handle,
            (_, Some(_)) => return Err(damaged(fd, "has a listing and is no directory")),
        };
        Ok(Some(Descriptor { description, handle }))
    }

    fn restore_output(
        &mut self,
        fd: u32,
        description: &mut Description,
        stream: OutputStream,
    ) -> Handle {
        let filetype = self.grants.output(stream).filetype(stream);
        self.restore_stream(fd, description, filetype);
        Handle::Output(stream)
    }

    /// A standard stream is the restorer's: of another type, perhaps, and at its start.
    fn restore_stream(&mut self, fd: u32, description: &mut Description, filetype: FileType) {
        description.offset = 0;
        let saved = mem::replace(&mut description.filetype, filetype);
        let terminal = FileType::CharacterDevice;
        if saved == terminal && filetype != terminal {
            self.notices.push(RestoreNotice::NoTerminal { fd });
        }
    }

    /// Opens a file that the guest had opened; `None` if the caller chose to close it.
    fn open(&mut self, saved: &SavedDescriptor) -> Result<Option<Handle>, RestoreError> {
        let SavedDescriptor { fd, description, file, .. } = saved;
        let fd = *fd;
        let DescriptorOrigin::Opened { preopen, path, mode } = &description.origin else {
            return Err(damaged(fd, "was not opened"));
        };
        let preopen = self.grants.preopen(*preopen);
        let preopen = preopen.map_err(|_| damaged(fd, "is in no preopened directory"))?;
        let file = match file {
            Some(file) if file.filetype == description.filetype => file,
            _ => {
                return Err(damaged(
                    fd,
                    "is a file without identity, or with that of another type",
                ));
            }
        };
        if mode.write && preopen.permissions == Permissions::ReadOnly {
            let guest_path = preopen.guest_path.clone();
            return Err(RestoreError::ReadOnly { fd, guest_path, path: path.clone() });
        }
        let changed = |change| {
            let (guest_path, path) = (preopen.guest_path.clone(), path.clone());
            ChangedFile { fd, guest_path, path, change }
        };
        // Looked at first: what the caller does not want is never opened.
        let (named, change) = match find(&preopen.dir, path, *mode) {
            // A copy has the contents, but another number and time.
            Ok(named) if preopen.is_copy() => (Some(named), file.change_in_copy(&named)),
            Ok(named) => (Some(named), file.change(&named)),
            Err(error) => (None, Some(FileChange::Unreachable(error))),
        };
        if let Some(change) = change {
            let changed = changed(change);
            let decision = match self.policy {
                FilePolicy::Refuse => FileDecision::Refuse,
                FilePolicy::Open => FileDecision::Open,
                FilePolicy::Decide(decide) => decide(&changed),
            };
            let can_open = !matches!(change, FileChange::Unreachable(_) | FileChange::Type { .. });
            match decision {
                FileDecision::Open if can_open => {}
                FileDecision::Open | FileDecision::Refuse => return Err(changed.into()),
                FileDecision::Close => {
                    self.notices.push(RestoreNotice::Closed(changed));
                    return Ok(None);
                }
            }
            self.notices.push(RestoreNotice::OpenedAnyway(changed));
        }
        let opened = open_beneath(&preopen.dir, path, *mode, HostFlags::empty());
        let opened = opened.and_then(|file| Ok((FileIdentity::of(&file)?, Handle::of_file(file)?)));
        match opened {
            Ok((found, (handle, _))) if named.is_some_and(|named| named.is_same_file(&found)) => {
                Ok(Some(handle))
            }
            Ok(_) => Err(changed(FileChange::Replaced).into()),
            Err(error) => Err(changed(FileChange::Unreachable(error)).into()),
        }
    }
}

/// What a path leads to now.
fn find(dir: &Dir, path: &Path, mode: OpenMode) -> Result<FileIdentity> {
    // O_PATH neither reads nor writes.
    let mode = OpenMode { read: true, write: false, ..mode };
    FileIdentity::of(open_beneath(dir, path, mode, HostFlags::PATH)?)
}

fn check_offset(description: &Description) -> Result<(), &'static str> {
    let fits = i64::try_from(description.offset).is_ok();
    if fits { Ok(()) } else { Err("has an offset that no file has") }
}

/// Checks that a guest can have the rights and flags of a descriptor of this origin and type.
fn check_rights(description: &Description) -> Result<(), &'static str> {
    let none = Rights::empty();
    let inheriting_max = Rights::DIRECTORY | Rights::FILE;
    let (base_max, inheriting_max) = match &description.origin {
        DescriptorOrigin::Stdin => (Rights::STREAM.difference(Rights::FD_WRITE), none),
        DescriptorOrigin::Stdout | DescriptorOrigin::Stderr => {
            (Rights::STREAM.difference(Rights::FD_READ), none)
        }
        DescriptorOrigin::Listener { .. } => (Rights::LISTENER, Rights::CONNECTION),
        DescriptorOrigin::Connection { .. } | DescriptorOrigin::Accepted { .. } => (none, none),
        DescriptorOrigin::Preopen { .. } => (Rights::DIRECTORY, inheriting_max),
        DescriptorOrigin::Opened { mode, .. } => {
            let mut base = match description.filetype {
                FileType::Directory => Rights::DIRECTORY,
                FileType::RegularFile | FileType::BlockDevice => Rights::FILE,
                _ => Rights::STREAM,
            };
            if !mode.read {
                base = base.difference(Rights::FD_READ);
            }
            if !mode.write {
                base = base.difference(Rights::MUTATE_FILE);
            }
            (base, inheriting_max)
        }
    };
    let flags_max = match description.origin {
        DescriptorOrigin::Listener { .. } => FdFlags::NONBLOCK,
        _ => FdFlags::all(),
    };
    let is_within = base_max.contains(description.rights_base)
        && inheriting_max.contains(description.rights_inheriting)
        && flags_max.contains(description.flags);
    if is_within { Ok(()) } else { Err("has rights or flags that its file cannot have") }
}
