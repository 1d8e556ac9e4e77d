//! The descriptor table: for each number, how it was opened (plain data) and
//! the live handle that can be made from that again.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cap_std::fs::{Dir, File, OpenOptions, OpenOptionsExt};
use rustix::fs::OFlags as HostFlags;

use crate::abi::{Errno, FdFlags, FileType, Rights};
use crate::ctx::Config;
use crate::fs::readdir::Listing;
use crate::sock::Socket;
use crate::waiting::{Blocking, Watch};

/// How a descriptor came to be: enough, together with the preopened
/// directories, to make its handle again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Standard input.
    Stdin,
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// A preopened directory.
    Preopen {
        /// Its place in the order in which they were given.
        index: u32,
    },
    /// A listening socket that the guest was given.
    Listener {
        /// Its place in the order in which sockets were given.
        index: u32,
    },
    /// A connected socket that the guest was given.
    Connection {
        /// Its place in the order in which sockets were given.
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
        path: PathBuf,
        /// How it was opened.
        mode: OpenMode,
    },
}

/// The part of an open that is repeated when the file is opened again:
/// creating and truncating are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenMode {
    /// Open for reading.
    pub read: bool,
    /// Open for writing.
    pub write: bool,
    /// It is a directory.
    pub directory: bool,
    /// Follow a symbolic link that is the last component.
    pub follow: bool,
}

/// Everything about a descriptor but its handle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// How it came to be.
    pub origin: Origin,
    /// Type of the file.
    pub filetype: FileType,
    /// Flags in force.
    pub flags: FdFlags,
    /// What the descriptor may be used for.
    pub rights_base: Rights,
    /// What descriptors opened through it may be used for.
    pub rights_inheriting: Rights,
    /// Where the next read or write begins, bytes. The host's own offset is
    /// never used for files that have one, so this is all there is to save.
    /// For [`Origin::Stdin`] from bytes in memory: how many have been read.
    pub offset: u64,
}

/// The live part of a descriptor.
#[derive(Debug)]
pub(crate) enum Handle {
    Stdin,
    Stdout,
    Stderr,
    /// A regular file or block device: it has an offset, which is ours.
    File(File),
    /// A pipe or character device in a directory, which does not block.
    Stream(File),
    Socket(Socket),
    Directory {
        dir: Arc<Dir>,
        /// Names as `fd_readdir` last read them, until it begins anew.
        listing: Option<Listing>,
    },
}

/// An open descriptor.
#[derive(Debug)]
pub(crate) struct Descriptor {
    pub(crate) description: Description,
    pub(crate) handle: Handle,
}

impl Descriptor {
    /// Checks rights. Whoever reads what is not open for reading, or writes what is not open
    /// for writing, is told what POSIX has for it.
    pub(crate) fn require(&self, rights: Rights) -> Result<(), Errno> {
        let lacking = rights.without(self.description.rights_base);
        match lacking {
            Rights::NONE => Ok(()),
            _ if lacking.intersects(Rights::FD_READ | Rights::FD_WRITE) => Err(Errno::Badf),
            _ => Err(Errno::Notcapable),
        }
    }

    /// The file, for operations that need an offset or a size.
    ///
    /// `Badf` for a directory and `Spipe` for a stream are what POSIX has.
    pub(crate) fn file(&self) -> Result<&File, Errno> {
        match &self.handle {
            Handle::File(file) => Ok(file),
            Handle::Directory { .. } => Err(Errno::Badf),
            Handle::Stdin
            | Handle::Stdout
            | Handle::Stderr
            | Handle::Stream(_)
            | Handle::Socket(_) => Err(Errno::Spipe),
        }
    }

    /// The file, for an operation that a right is needed for.
    pub(crate) fn file_with(&self, right: Rights) -> Result<&File, Errno> {
        let file = self.file()?;
        self.require(right)?;
        Ok(file)
    }

    pub(crate) fn is_directory(&self) -> bool {
        matches!(self.handle, Handle::Directory { .. })
    }

    /// How its reads and writes wait.
    pub(crate) fn blocking<'a>(&self, watch: Watch<'a>) -> Blocking<'a> {
        Blocking::new(self.description.flags.contains(FdFlags::NONBLOCK), watch)
    }
}

impl Description {
    /// Index of the preopened directory that it belongs to, if any.
    pub fn preopen(&self) -> Option<u32> {
        match self.origin {
            Origin::Stdin
            | Origin::Stdout
            | Origin::Stderr
            | Origin::Listener { .. }
            | Origin::Connection { .. }
            | Origin::Accepted { .. } => None,
            Origin::Preopen { index } => Some(index),
            Origin::Opened { preopen, .. } => Some(preopen),
        }
    }

    /// Whether it is a file that was opened for writing.
    pub(crate) fn is_for_writing(&self) -> bool {
        matches!(self.origin, Origin::Opened { mode: OpenMode { write: true, .. }, .. })
    }

    /// Whether this is all there is to save: true of everything but
    /// connections, whose state lies with the kernel and the peer.
    pub fn is_saveable(&self) -> bool {
        !matches!(self.origin, Origin::Connection { .. } | Origin::Accepted { .. })
    }

    /// Opens again what this describes.
    pub(crate) fn reopen(&self, config: &Config) -> Result<Handle, Errno> {
        match &self.origin {
            Origin::Stdin => Ok(Handle::Stdin),
            Origin::Stdout => Ok(Handle::Stdout),
            Origin::Stderr => Ok(Handle::Stderr),
            Origin::Preopen { index } => {
                let dir = Arc::clone(&config.preopen(*index)?.dir);
                Ok(Handle::Directory { dir, listing: None })
            }
            Origin::Listener { index } | Origin::Connection { index } => {
                Ok(Handle::Socket(config.socket(*index)?.clone()))
            }
            Origin::Accepted { .. } => Err(Errno::Notrecoverable),
            Origin::Opened { preopen, path, mode } => {
                let dir = &config.preopen(*preopen)?.dir;
                let file = open_beneath(dir, path, *mode, HostFlags::empty())?;
                let (handle, filetype) = handle_of(file)?;
                // Something else may have taken the name meanwhile.
                if filetype == self.filetype { Ok(handle) } else { Err(Errno::Stale) }
            }
        }
    }
}

/// Opens a path that must stay beneath `dir`, with host flags beyond those of
/// `mode`.
pub(crate) fn open_beneath(
    dir: &Dir,
    path: &Path,
    mode: OpenMode,
    extra: HostFlags,
) -> Result<File, Errno> {
    let mut flags = extra;
    // The kernel refuses most flags on handles for lookup alone. Nothing here may wait: for
    // the other end of a FIFO, a terminal's carrier, or whoever holds a lease.
    if !extra.contains(HostFlags::PATH) {
        flags |= HostFlags::NOCTTY | HostFlags::NONBLOCK;
    }
    if mode.directory {
        flags |= HostFlags::DIRECTORY;
    }
    if !mode.follow {
        let place = crate::fs::path::locate(dir, path)?;
        // A trailing slash asks for the directory behind a link.
        if !place.trailing_slash && !place.is_current() {
            flags |= HostFlags::NOFOLLOW | HostFlags::CLOEXEC | mode.access();
            let create_mode = rustix::fs::Mode::from_raw_mode(0o666);
            let opened = rustix::io::retry_on_intr(|| {
                rustix::fs::openat(place.dir(), &place.name, flags, create_mode)
            })?;
            return Ok(File::from_std(opened.into()));
        }
    }
    let mut options = OpenOptions::new();
    options.read(mode.read || !mode.write).write(mode.write);
    options.custom_flags(flags.bits().cast_signed());
    Ok(dir.open_with(path, &options)?)
}

impl OpenMode {
    fn access(self) -> HostFlags {
        match (self.read, self.write) {
            (_, false) => HostFlags::RDONLY,
            (false, true) => HostFlags::WRONLY,
            (true, true) => HostFlags::RDWR,
        }
    }
}

/// The handle for a file just opened, by its type.
pub(crate) fn handle_of(file: File) -> Result<(Handle, FileType), Errno> {
    let stat = rustix::fs::fstat(&file)?;
    let filetype = FileType::from(rustix::fs::FileType::from_raw_mode(stat.st_mode));
    let handle = match filetype {
        FileType::Directory => {
            let dir = Arc::new(Dir::from_std_file(file.into_std()));
            Handle::Directory { dir, listing: None }
        }
        FileType::RegularFile | FileType::BlockDevice => Handle::File(file),
        _ => Handle::Stream(file),
    };
    Ok((handle, filetype))
}

/// Joins the path of a directory and a path relative to it, without the
/// components that change nothing.
pub(crate) fn join(parent: &Path, child: &Path) -> PathBuf {
    let joined = [parent.as_os_str().as_bytes(), child.as_os_str().as_bytes()].join(&b'/');
    let mut path: Vec<u8> = Vec::with_capacity(joined.len());
    for component in joined.split(|&byte| byte == b'/') {
        if component.is_empty() || component == b"." {
            continue;
        }
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(component);
    }
    if path.is_empty() {
        path.push(b'.');
    }
    PathBuf::from(OsStr::from_bytes(&path))
}

/// How many numbers belong to the standard streams.
const STREAMS: usize = 3;

/// Descriptors by number. All start with the standard streams.
#[derive(Debug)]
pub(crate) struct Table {
    entries: Vec<Option<Descriptor>>,
}

impl Table {
    /// The table with these descriptors at 0, 1, 2, ...: first the standard streams.
    pub(crate) fn from_entries(descriptors: Vec<Descriptor>) -> Self {
        Table { entries: descriptors.into_iter().map(Some).collect() }
    }

    pub(crate) fn get(&self, fd: u32) -> Result<&Descriptor, Errno> {
        self.entries.get(fd as usize).and_then(Option::as_ref).ok_or(Errno::Badf)
    }

    pub(crate) fn get_mut(&mut self, fd: u32) -> Result<&mut Descriptor, Errno> {
        self.entries.get_mut(fd as usize).and_then(Option::as_mut).ok_or(Errno::Badf)
    }

    /// Puts a descriptor at the lowest free number beyond those of the standard streams: what
    /// still writes to one that was closed would write into another file.
    pub(crate) fn insert(&mut self, descriptor: Descriptor) -> Result<u32, Errno> {
        let mut others = self.entries.iter().skip(STREAMS);
        let free = others.position(Option::is_none).map(|free| free + STREAMS);
        let free = free.unwrap_or(self.entries.len());
        let fd = u32::try_from(free).map_err(|_| Errno::Mfile)?;
        if free == self.entries.len() {
            self.entries.push(None);
        }
        self.entries[free] = Some(descriptor);
        Ok(fd)
    }

    pub(crate) fn remove(&mut self, fd: u32) -> Result<Descriptor, Errno> {
        self.entries.get_mut(fd as usize).and_then(Option::take).ok_or(Errno::Badf)
    }

    /// Moves `from` to `to`, which must be open too and is closed.
    pub(crate) fn renumber(&mut self, from: u32, to: u32) -> Result<(), Errno> {
        self.get(from)?;
        self.get(to)?;
        if from != to {
            self.entries[to as usize] = self.entries[from as usize].take();
        }
        Ok(())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Descriptor)> {
        // Numbers fit, because `insert` hands out no larger ones.
        let numbered = self.entries.iter().enumerate();
        numbered.filter_map(|(fd, entry)| Some((fd as u32, entry.as_ref()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(origin: Origin, handle: Handle) -> Descriptor {
        let description = Description {
            origin,
            filetype: FileType::Unknown,
            flags: FdFlags::NONE,
            rights_base: Rights::STREAM,
            rights_inheriting: Rights::NONE,
            offset: 0,
        };
        Descriptor { description, handle }
    }

    fn streams() -> Table {
        Table::from_entries(vec![
            stream(Origin::Stdin, Handle::Stdin),
            stream(Origin::Stdout, Handle::Stdout),
            stream(Origin::Stderr, Handle::Stderr),
        ])
    }

    #[test]
    fn the_lowest_free_number_is_taken_that_is_no_streams() {
        let mut table = streams();
        for fd in 3..7 {
            assert_eq!(table.insert(stream(Origin::Stdin, Handle::Stdin)), Ok(fd));
        }
        for fd in [1, 4] {
            table.remove(fd).unwrap();
            assert_eq!(table.remove(fd).unwrap_err(), Errno::Badf);
        }
        assert_eq!(table.insert(stream(Origin::Stdout, Handle::Stdout)), Ok(4));
        assert_eq!(table.insert(stream(Origin::Stdout, Handle::Stdout)), Ok(7));
        for fd in [1, 8, u32::MAX] {
            assert_eq!(table.get(fd).unwrap_err(), Errno::Badf);
        }
    }

    #[test]
    fn renumbering_needs_both_and_moves() {
        let mut table = streams();
        assert_eq!(table.renumber(0, 3), Err(Errno::Badf));
        assert_eq!(table.renumber(3, 0), Err(Errno::Badf));
        assert_eq!(table.renumber(1, 1), Ok(()));
        assert_eq!(table.renumber(1, 0), Ok(()));
        assert_eq!(table.get(0).unwrap().description.origin, Origin::Stdout);
        assert_eq!(table.get(1).unwrap_err(), Errno::Badf);
    }

    #[test]
    fn joined_paths_keep_what_matters() {
        let join = |a: &str, b: &str| join(Path::new(a), Path::new(b)).display().to_string();
        assert_eq!(join(".", "a//b/./c/"), "a/b/c");
        assert_eq!(join("a/b", "../c"), "a/b/../c");
        assert_eq!(join(".", "."), ".");
    }
}
