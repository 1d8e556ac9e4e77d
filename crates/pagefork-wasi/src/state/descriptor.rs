//! A descriptor: a description, which is plain data, and the live handle that can be made from
//! it again.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;

use cap_std::fs::{Dir, File};
use rustix::fs::OFlags as HostFlags;
use serde::{Deserialize, Serialize};

use crate::base::abi::{FdFlags, FileType, Rights};
use crate::base::errno::{Errno, Result};
use crate::base::plain::path_bytes;
use crate::base::waiting::{Blocking, StopCheck};
use crate::state::grants::{Grants, Permissions};
use crate::state::listing::Listing;
use crate::state::path::{OpenMode, open_beneath};
use crate::state::socket::Socket;
use crate::state::stdio::OutputStream;

/// Where a descriptor comes from. With this and the preopened directories, its handle can be
/// made again. [`Description`] has an example.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DescriptorOrigin {
    /// Standard input.
    Stdin,
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// A preopened directory.
    Preopen {
        /// Its index among the preopened directories.
        index: u32,
    },
    /// A listening socket that the guest was given.
    Listener {
        /// Its index among the sockets that were given.
        index: u32,
    },
    /// A connected socket that the guest was given.
    Connection {
        /// Its index among the sockets that were given.
        index: u32,
    },
    /// A connection that the guest accepted.
    Accepted {
        /// Index of the listening socket on which it did.
        listener: u32,
    },
    /// Opened by the guest.
    Opened {
        /// Index of the preopened directory from which the path leads.
        preopen: u32,
        /// Path relative to it, as the guest gave it, links not resolved.
        #[serde(with = "path_bytes")]
        path: PathBuf,
        /// How it was opened.
        mode: OpenMode,
    },
}

/// Everything about a descriptor but its handle.
///
/// # Examples
///
/// ```
/// use pagefork_wasi::{
///     DescriptorOrigin, FileType, GuestMemory, OpenMode, Permissions, Rights, WasiCtx,
/// };
///
/// let mut builder = WasiCtx::builder();
/// let mut ctx = builder.preopened_dir("/proc", "/proc", Permissions::ReadOnly)?.build()?;
/// // A guest opens `version` in the directory, which is the descriptor 3, for reading.
/// let mut bytes = *b"version.";
/// let mut memory = GuestMemory::new(&mut bytes[..]);
/// ctx.path_open(&mut memory, 3, 0, 0, 7, 0, Rights::FD_READ.bits(), 0, 0, 4)?;
///
/// let (fd, file) = ctx.descriptors().last().expect("it was opened");
/// assert_eq!((fd, file.filetype, file.offset), (4, FileType::RegularFile, 0));
/// let mode = OpenMode { read: true, write: false, directory: false, follow: false };
/// let origin = DescriptorOrigin::Opened { preopen: 0, path: "version".into(), mode };
/// assert_eq!(file.origin, origin);
/// assert!(file.is_saveable() && file.preopen() == Some(0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// Where it comes from.
    pub origin: DescriptorOrigin,
    /// Type of the file.
    pub filetype: FileType,
    /// Flags in force.
    pub flags: FdFlags,
    /// What the descriptor may be used for.
    pub rights_base: Rights,
    /// What descriptors opened through it may be used for.
    pub rights_inheriting: Rights,
    /// Where the next read or write begins, bytes. The host's own offset is not used, so
    /// there is no other offset to save.
    /// For [`DescriptorOrigin::Stdin`] from bytes in memory: how many have been read.
    pub offset: u64,
}

/// The live part of a descriptor.
#[derive(Debug)]
pub(crate) enum Handle {
    Stdin,
    Output(OutputStream),
    /// A regular file or block device. The guest's offset stands in the description.
    File(File),
    /// A pipe or character device in a directory, which does not block.
    Stream(File),
    Socket(Socket),
    Directory {
        dir: Arc<Dir>,
        listing: Listing,
    },
}

impl Handle {
    pub(crate) fn directory(dir: Arc<Dir>) -> Handle {
        Handle::Directory { dir, listing: Listing::default() }
    }

    /// The handle for a file just opened, and its type.
    pub(crate) fn of_file(file: File) -> Result<(Handle, FileType)> {
        let filetype = FileType::from(&rustix::fs::fstat(&file)?);
        let handle = match filetype {
            FileType::Directory => Handle::directory(Arc::new(Dir::from_std_file(file.into_std()))),
            FileType::RegularFile | FileType::BlockDevice => Handle::File(file),
            _ => Handle::Stream(file),
        };
        Ok((handle, filetype))
    }
}

/// An open descriptor.
#[derive(Debug)]
pub(crate) struct Descriptor {
    pub(crate) description: Description,
    pub(crate) handle: Handle,
}

impl Descriptor {
    /// Checks rights. Without those to read or write, the error is the one of POSIX for a file
    /// that is not open for that.
    pub(crate) fn require(&self, rights: Rights) -> Result {
        let lacking = rights.difference(self.description.rights_base);
        if lacking.is_empty() {
            Ok(())
        } else if lacking.intersects(Rights::FD_READ | Rights::FD_WRITE) {
            Err(Errno::Badf)
        } else {
            Err(Errno::Notcapable)
        }
    }

    /// The file, for operations that need an offset or a size. POSIX has `Badf` for a
    /// directory and `Spipe` for a stream.
    pub(crate) fn file(&self) -> Result<&File> {
        match &self.handle {
            Handle::File(file) => Ok(file),
            Handle::Directory { .. } => Err(Errno::Badf),
            Handle::Stdin | Handle::Output(_) | Handle::Stream(_) | Handle::Socket(_) => {
                Err(Errno::Spipe)
            }
        }
    }

    /// The file, for an operation that needs rights.
    pub(crate) fn file_with(&self, rights: Rights) -> Result<&File> {
        let file = self.file()?;
        self.require(rights)?;
        Ok(file)
    }

    /// The host's file behind a descriptor that was opened by a path.
    pub(crate) fn opened(&self) -> Option<BorrowedFd<'_>> {
        match &self.handle {
            Handle::File(file) | Handle::Stream(file) => Some(file.as_fd()),
            Handle::Directory { dir, .. } => Some(dir.as_fd()),
            Handle::Stdin | Handle::Output(_) | Handle::Socket(_) => None,
        }
    }

    pub(crate) fn connection(&self) -> Result<BorrowedFd<'_>> {
        match &self.handle {
            Handle::Socket(Socket::Connection(socket)) => Ok(socket.as_fd()),
            Handle::Socket(Socket::Listener(_)) => Err(Errno::Notconn),
            _ => Err(Errno::Notsock),
        }
    }

    pub(crate) fn listener(&self) -> Result<BorrowedFd<'_>> {
        match &self.handle {
            Handle::Socket(Socket::Listener(socket)) => Ok(socket.as_fd()),
            Handle::Socket(Socket::Connection(_)) => Err(Errno::Inval),
            _ => Err(Errno::Notsock),
        }
    }

    pub(crate) fn is_directory(&self) -> bool {
        matches!(self.handle, Handle::Directory { .. })
    }

    /// How its reads and writes wait.
    pub(crate) fn blocking<'a>(&self, stop: StopCheck<'a>) -> Blocking<'a> {
        Blocking { waits: !self.description.flags.contains(FdFlags::NONBLOCK), stop }
    }
}

impl Description {
    /// A descriptor at its start, at offset 0.
    pub(crate) fn new(
        origin: DescriptorOrigin,
        filetype: FileType,
        flags: FdFlags,
        rights_base: Rights,
        rights_inheriting: Rights,
    ) -> Description {
        Description { origin, filetype, flags, rights_base, rights_inheriting, offset: 0 }
    }

    /// Index of the preopened directory to which it belongs, if any.
    ///
    /// # Examples
    ///
    /// See [`Description`].
    pub fn preopen(&self) -> Option<u32> {
        match self.origin {
            DescriptorOrigin::Preopen { index } => Some(index),
            DescriptorOrigin::Opened { preopen, .. } => Some(preopen),
            _ => None,
        }
    }

    /// Whether it is a file that was opened for writing.
    pub(crate) fn is_for_writing(&self) -> bool {
        matches!(self.origin, DescriptorOrigin::Opened { mode: OpenMode { write: true, .. }, .. })
    }

    /// Whether a description is all there is to save. It is not for a connection, whose state
    /// is in the kernel and at the peer.
    ///
    /// # Examples
    ///
    /// See [`Description`].
    pub fn is_saveable(&self) -> bool {
        let origin = &self.origin;
        !matches!(origin, DescriptorOrigin::Connection { .. } | DescriptorOrigin::Accepted { .. })
    }

    /// Checks that the embedder allows changes beneath the preopened directory.
    pub(crate) fn require_writable(&self, grants: &Grants) -> Result {
        match self.preopen().map(|index| grants.preopen(index)).transpose()? {
            Some(preopen) if preopen.permissions == Permissions::ReadOnly => Err(Errno::Perm),
            _ => Ok(()),
        }
    }

    /// Opens again what this describes.
    pub(crate) fn reopen(&self, grants: &Grants) -> Result<Handle> {
        match &self.origin {
            DescriptorOrigin::Stdin => Ok(Handle::Stdin),
            DescriptorOrigin::Stdout => Ok(Handle::Output(OutputStream::Stdout)),
            DescriptorOrigin::Stderr => Ok(Handle::Output(OutputStream::Stderr)),
            DescriptorOrigin::Preopen { index } => {
                Ok(Handle::directory(Arc::clone(&grants.preopen(*index)?.dir)))
            }
            DescriptorOrigin::Listener { index } | DescriptorOrigin::Connection { index } => {
                Ok(Handle::Socket(grants.socket(*index)?.clone()))
            }
            DescriptorOrigin::Accepted { .. } => Err(Errno::Notrecoverable),
            DescriptorOrigin::Opened { preopen, path, mode } => {
                let dir = &grants.preopen(*preopen)?.dir;
                let file = open_beneath(dir, path, *mode, HostFlags::empty())?;
                let (handle, filetype) = Handle::of_file(file)?;
                // Another file may have this name by now.
                if filetype == self.filetype { Ok(handle) } else { Err(Errno::Stale) }
            }
        }
    }
}
