//! Copying and removing trees of files that a guest has made.
//!
//! A guest chooses names, depth and links in such a tree. So paths are never given to the kernel
//! as a whole: each directory is opened by its bare name in its parent, and no link is followed.

use std::collections::HashMap;
use std::ffi::{CStr, CString, OsStr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, Dir, FileType as HostType, Mode, OFlags, SeekFrom, Stat, Timespec, Timestamps,
};
use rustix::io::{Errno as Host, retry_on_intr};

use crate::base::abi::FileType;
use crate::base::errno::Errno;
use crate::state::identity::FileIdentity;

/// Directories in one another that are copied.
pub(crate) const DEPTH_MAX: usize = 256;

/// Bytes that the paths of a session's files may have on average, and those that they may have all
/// together in any case.
const PATH_SIZE: u64 = 256;
const PATHS_SIZE_MIN: u64 = 1 << 20;

/// Most bytes that one host call copies.
const COPY_SIZE: u64 = 1 << 30;

/// Size of the buffer for file systems that cannot copy by themselves, bytes.
pub(crate) const BUFFER_SIZE: usize = 1 << 16;

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// How much the directories of a session may hold, taken together, to be copied with a snapshot.
///
/// # Examples
///
/// ```
/// use pagefork_wasi::{SessionLimits, WasiCtx};
///
/// let limits = SessionLimits { bytes: 64 << 20, files: 1000 };
/// let ctx = WasiCtx::builder().session_limits(limits).build()?;
/// # Ok::<(), pagefork_wasi::BuildError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionLimits {
    /// Sizes of all files together, bytes. Holes in files count. The default is 1 GiB.
    pub bytes: u64,
    /// Count of names: files, directories and links. The default is 65,536.
    pub files: u64,
}

impl Default for SessionLimits {
    fn default() -> Self {
        SessionLimits { bytes: 1 << 30, files: 1 << 16 }
    }
}

/// A session's directory that cannot be copied. Paths are relative to the directory.
/// [`WasiCtx::save_with_files`](crate::WasiCtx::save_with_files) has an example.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// Its files are too large.
    #[error(
        "the session's files have more than {limit} bytes, with `{}`; remove some or raise \
         `session_limits`", path.display()
    )]
    Bytes {
        /// Size that all files may have, bytes.
        limit: u64,
        /// The file with which they have more.
        path: PathBuf,
    },
    /// Its files are too many.
    #[error(
        "the session has more than {limit} files, with `{}`; remove some or raise \
         `session_limits`", path.display()
    )]
    Files {
        /// Count of names that there may be.
        limit: u64,
        /// The name with which there are more.
        path: PathBuf,
    },
    /// Directories lie too deep in one another.
    #[error("directories of the session lie more than {DEPTH_MAX} deep; remove some")]
    TooDeep,
    /// Names are long, and directories deep.
    #[error("the paths of the session's files are too long together; remove some")]
    Paths,
    /// A pipe, socket or device.
    #[error("`{}` is a pipe, socket or device, which has no contents to copy", path.display())]
    Special {
        /// Path of the file.
        path: PathBuf,
    },
    /// The copy would lie in the directory itself.
    #[error("the copy would lie in `{}` of the directory itself; give it another place", path.display())]
    Inside {
        /// Path of the copy.
        path: PathBuf,
    },
    /// A file was changed by another process.
    #[error("`{}` was changed while it was copied; save again", path.display())]
    Changed {
        /// Path of the file.
        path: PathBuf,
    },
    /// An image has no files of the session.
    #[error(
        "the image has no files of the session: who saved it has not attached a `SessionArchive`"
    )]
    NotInImage,
    /// The list of files in an image was altered, or is of another version.
    #[error("the image's list of the session's files cannot be used: {reason}")]
    Damaged {
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The host refuses.
    #[error("cannot copy `{}` to or from the session's files: {error}", path.display())]
    Host {
        /// Path of the file.
        path: PathBuf,
        /// Why not.
        error: Errno,
    },
}

pub(crate) fn host(path: &Path) -> impl Fn(Host) -> SessionError + '_ {
    |error| SessionError::Host { path: path.to_owned(), error: error.into() }
}

/// What may still be copied.
#[derive(Debug)]
pub(crate) struct CopyBudget {
    limits: SessionLimits,
    left: SessionLimits,
    /// Bytes of paths: those of directories are kept until all is copied.
    paths_left: u64,
}

impl CopyBudget {
    pub(crate) fn new(limits: SessionLimits) -> CopyBudget {
        let paths_left = limits.files.saturating_mul(PATH_SIZE).max(PATHS_SIZE_MIN);
        CopyBudget { limits, left: limits, paths_left }
    }

    pub(crate) fn take_file(&mut self, path: &Path) -> Result<(), SessionError> {
        let limit = self.limits.files;
        let too_many = || SessionError::Files { limit, path: path.to_owned() };
        self.left.files = self.left.files.checked_sub(1).ok_or_else(too_many)?;
        let left = self.paths_left.checked_sub(path.as_os_str().len() as u64);
        self.paths_left = left.ok_or(SessionError::Paths)?;
        Ok(())
    }

    pub(crate) fn take_bytes(&mut self, size: u64, path: &Path) -> Result<(), SessionError> {
        let limit = self.limits.bytes;
        let too_many = || SessionError::Bytes { limit, path: path.to_owned() };
        self.left.bytes = self.left.bytes.checked_sub(size).ok_or_else(too_many)?;
        Ok(())
    }
}

/// Copies what lies in the directory `source` into the empty directory `target`: directories,
/// regular files with their links to each other, and symbolic links as they are; with times and
/// permissions, but those of owners and groups.
pub(crate) fn copy_tree(
    source: BorrowedFd<'_>,
    target: BorrowedFd<'_>,
    budget: &mut CopyBudget,
) -> Result<(), SessionError> {
    let target_root = rustix::fs::fstat(target).map_err(host(Path::new(".")))?;
    let mut copy = TreeCopy {
        source,
        target,
        target_root: FileIdentity::from(&target_root),
        budget,
        waiting: vec![PathBuf::new()],
        done: Vec::new(),
        links: HashMap::new(),
    };
    while let Some(path) = copy.waiting.pop() {
        copy.directory(&path)?;
    }
    // Writing into a directory changes its time, and may need a permission that it lacks.
    let TreeCopy { target, done, .. } = copy;
    for (path, stat) in done.iter().rev() {
        let attributes = || {
            let directory = open_below(target, path)?;
            rustix::fs::futimens(&directory, &times(stat))?;
            // Only this user's processes reach the copy.
            let all = if path.as_os_str().is_empty() { Mode::RWXU } else { permissions() };
            rustix::fs::fchmod(&directory, Mode::from_raw_mode(stat.st_mode) & all)
        };
        attributes().map_err(host(path))?;
    }
    Ok(())
}

/// Opens the directory in or of which a copy is made. The last name of the path may not be a link.
pub(crate) fn open_root(path: &Path) -> Result<OwnedFd, SessionError> {
    retry_on_intr(|| rustix::fs::open(path, DIRECTORY, Mode::empty())).map_err(host(path))
}

struct TreeCopy<'a> {
    source: BorrowedFd<'a>,
    target: BorrowedFd<'a>,
    target_root: FileIdentity,
    budget: &'a mut CopyBudget,
    /// Directories that are made and not filled.
    waiting: Vec<PathBuf>,
    /// Directories whose attributes are to be set.
    done: Vec<(PathBuf, Stat)>,
    /// The first name of each file that has several: by device and number.
    links: HashMap<(u64, u64), PathBuf>,
}

impl TreeCopy<'_> {
    fn directory(&mut self, path: &Path) -> Result<(), SessionError> {
        let source = open_below(self.source, path).map_err(host(path))?;
        let target = open_below(self.target, path).map_err(host(path))?;
        self.done.push((path.to_owned(), rustix::fs::fstat(&source).map_err(host(path))?));
        for entry in Dir::read_from(&source).map_err(host(path))? {
            let entry = entry.map_err(host(path))?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let path = path.join(OsStr::from_bytes(name.to_bytes()));
            self.budget.take_file(&path)?;
            self.entry(source.as_fd(), target.as_fd(), name, &path)?;
        }
        Ok(())
    }

    fn entry(
        &mut self,
        source: BorrowedFd<'_>,
        target: BorrowedFd<'_>,
        name: &CStr,
        path: &Path,
    ) -> Result<(), SessionError> {
        let stat = rustix::fs::statat(source, name, AtFlags::SYMLINK_NOFOLLOW);
        let stat = stat.map_err(host(path))?;
        match HostType::from_raw_mode(stat.st_mode) {
            HostType::Directory => {
                if path.components().count() > DEPTH_MAX {
                    return Err(SessionError::TooDeep);
                }
                if self.target_root.is_same_file(&FileIdentity::from(&stat)) {
                    return Err(SessionError::Inside { path: path.to_owned() });
                }
                rustix::fs::mkdirat(target, name, Mode::RWXU).map_err(host(path))?;
                self.waiting.push(path.to_owned());
                Ok(())
            }
            HostType::Symlink => {
                let link = rustix::fs::readlinkat(source, name, Vec::new());
                let made = link.and_then(|link| rustix::fs::symlinkat(&link, target, name));
                made.map_err(host(path))
            }
            HostType::RegularFile => self.file(source, target, name, path),
            _ => Err(SessionError::Special { path: path.to_owned() }),
        }
    }

    fn file(
        &mut self,
        source: BorrowedFd<'_>,
        target: BorrowedFd<'_>,
        name: &CStr,
        path: &Path,
    ) -> Result<(), SessionError> {
        let changed = || SessionError::Changed { path: path.to_owned() };
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let from = retry_on_intr(|| rustix::fs::openat(source, name, flags, Mode::empty()));
        let from = from.map_err(host(path))?;
        let before = rustix::fs::fstat(&from).map_err(host(path))?;
        if FileType::from(&before) != FileType::RegularFile {
            return Err(changed());
        }
        if before.st_nlink > 1 {
            let first = self.links.entry((before.st_dev, before.st_ino));
            if let std::collections::hash_map::Entry::Occupied(first) = &first {
                return link_to(self.target, first.get(), target, name).map_err(host(path));
            }
            first.or_insert_with(|| path.to_owned());
        }
        let size = before.st_size.cast_unsigned();
        self.budget.take_bytes(size, path)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let to = rustix::fs::openat(target, name, flags, Mode::RUSR | Mode::WUSR);
        let to = to.map_err(host(path))?;
        copy_contents(from.as_fd(), to.as_fd(), size).map_err(host(path))?;

        let same = || {
            let after = FileIdentity::from(&rustix::fs::fstat(&from)?);
            let copied = rustix::fs::fstat(&to)?.st_size.cast_unsigned();
            Ok(FileIdentity::from(&before).change(&after).is_none() && copied == size)
        };
        if !same().map_err(host(path))? {
            return Err(changed());
        }
        let mode = Mode::from_raw_mode(before.st_mode) & permissions();
        let set = rustix::fs::futimens(&to, &times(&before));
        set.and_then(|()| rustix::fs::fchmod(&to, mode)).map_err(host(path))
    }
}

/// Opens a directory by its path relative to `root`, component by component.
pub(crate) fn open_below(root: BorrowedFd<'_>, path: &Path) -> rustix::io::Result<OwnedFd> {
    let open = |parent: BorrowedFd<'_>, name: &OsStr| {
        retry_on_intr(|| rustix::fs::openat(parent, name, DIRECTORY, Mode::empty()))
    };
    let mut directory = open(root, OsStr::new("."))?;
    for name in path {
        directory = open(directory.as_fd(), name)?;
    }
    Ok(directory)
}

pub(crate) fn link_to(
    root: BorrowedFd<'_>,
    first: &Path,
    target: BorrowedFd<'_>,
    name: impl rustix::path::Arg,
) -> rustix::io::Result<()> {
    let parent = open_below(root, first.parent().unwrap_or(Path::new("")))?;
    let first = first.file_name().unwrap_or_default();
    rustix::fs::linkat(parent, first, target, name, AtFlags::empty())
}

/// Makes the empty file `to` as `from`, whose size is `size`: a clone, which shares blocks, where
/// the file system can.
fn copy_contents(from: BorrowedFd<'_>, to: BorrowedFd<'_>, size: u64) -> rustix::io::Result<()> {
    if size == 0 || rustix::fs::ioctl_ficlone(to, from).is_ok() {
        return Ok(());
    }
    rustix::fs::ftruncate(to, size)?;
    let mut at = 0;
    while at < size {
        let (start, end) = match rustix::fs::seek(from, SeekFrom::Data(at)) {
            Ok(start) => (start, rustix::fs::seek(from, SeekFrom::Hole(start))?),
            // A hole up to the end.
            Err(Host::NXIO) => break,
            Err(_) => (at, size),
        };
        let end = end.min(size);
        copy_range(from, to, start, end)?;
        // A file that shrinks has its end before.
        at = end.max(at + 1);
    }
    Ok(())
}

fn copy_range(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    start: u64,
    end: u64,
) -> rustix::io::Result<()> {
    let mut at = start;
    while at < end {
        let (mut read_at, mut write_at) = (at, at);
        let size = (end - at).min(COPY_SIZE) as usize;
        let copied =
            rustix::fs::copy_file_range(from, Some(&mut read_at), to, Some(&mut write_at), size);
        match copied {
            // The file has become shorter, which the caller notices.
            Ok(0) => return Ok(()),
            Ok(size) => at += size as u64,
            Err(Host::INTR) => {}
            // Between file systems, or not supported by this one.
            Err(Host::XDEV | Host::INVAL | Host::OPNOTSUPP | Host::NOSYS | Host::PERM) => {
                return copy_by_buffer(from, to, at, end);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn copy_by_buffer(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    start: u64,
    end: u64,
) -> rustix::io::Result<()> {
    let mut buffer = vec![0; BUFFER_SIZE.min((end - start) as usize)];
    let mut at = start;
    while at < end {
        let size = buffer.len().min((end - at) as usize);
        let size = retry_on_intr(|| rustix::io::pread(from, &mut buffer[..size], at))?;
        if size == 0 {
            break;
        }
        write_all(to, &buffer[..size], at)?;
        at += size as u64;
    }
    Ok(())
}

/// Writes all of `bytes` at `at`.
pub(crate) fn write_all(
    to: BorrowedFd<'_>,
    mut bytes: &[u8],
    mut at: u64,
) -> rustix::io::Result<()> {
    while !bytes.is_empty() {
        let written = retry_on_intr(|| rustix::io::pwrite(to, bytes, at))?;
        if written == 0 {
            return Err(Host::IO);
        }
        at += written as u64;
        bytes = &bytes[written..];
    }
    Ok(())
}

/// All bits but those that run a program as another user.
pub(crate) fn permissions() -> Mode {
    Mode::RWXU | Mode::RWXG | Mode::RWXO
}

fn times(stat: &Stat) -> Timestamps {
    let time = |tv_sec, nanoseconds: u64| Timespec { tv_sec, tv_nsec: nanoseconds.cast_signed() };
    Timestamps {
        last_access: time(stat.st_atime, stat.st_atime_nsec),
        last_modification: time(stat.st_mtime, stat.st_mtime_nsec),
    }
}

/// Removes a directory and all in it, however deep that lies: each directory is first moved up
/// into the uppermost one, so that neither stack nor descriptors are used up.
pub(crate) fn remove_tree(path: &Path) -> rustix::io::Result<()> {
    let root = rustix::fs::open(path, DIRECTORY, Mode::empty())?;
    let mut moved = 0_u64;
    loop {
        let directories = remove_files(root.as_fd())?;
        if directories.is_empty() {
            break;
        }
        for name in directories {
            let directory = open_to_remove(root.as_fd(), &name)?;
            for inner in remove_files(directory.as_fd())? {
                move_up(directory.as_fd(), &inner, root.as_fd(), &mut moved)?;
            }
            rustix::fs::unlinkat(&root, &name, AtFlags::REMOVEDIR)?;
        }
    }
    rustix::fs::rmdir(path)
}

/// Removes all but the directories from a directory, and returns their names.
fn remove_files(directory: BorrowedFd<'_>) -> rustix::io::Result<Vec<CString>> {
    let mut directories = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
            Ok(()) | Err(Host::NOENT) => {}
            // Linux and POSIX have different errors for a directory.
            Err(Host::ISDIR | Host::PERM) => directories.push(name.to_owned()),
            Err(error) => return Err(error),
        }
    }
    Ok(directories)
}

/// Opens a directory, and gives this user the permission to empty it.
fn open_to_remove(parent: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<OwnedFd> {
    let open = || rustix::fs::openat(parent, name, DIRECTORY, Mode::empty());
    let directory = match open() {
        Err(Host::ACCESS) => {
            rustix::fs::chmodat(parent, name, Mode::RWXU, AtFlags::empty())?;
            open()?
        }
        opened => opened?,
    };
    rustix::fs::fchmod(&directory, Mode::RWXU)?;
    Ok(directory)
}

fn move_up(
    from: BorrowedFd<'_>,
    name: &CStr,
    root: BorrowedFd<'_>,
    moved: &mut u64,
) -> rustix::io::Result<()> {
    // To move a directory, its own entry for the parent is written.
    open_to_remove(from, name)?;
    loop {
        *moved += 1;
        match rustix::fs::renameat(from, name, root, format!("{moved}")) {
            // Something has this name.
            Err(Host::EXIST | Host::NOTEMPTY | Host::NOTDIR) => {}
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(bytes: &[u8]) -> OwnedFd {
        let file = rustix::fs::memfd_create("file", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        assert_eq!(rustix::io::pwrite(&file, bytes, 0), Ok(bytes.len()));
        file
    }

    fn contents(file: &OwnedFd) -> Vec<u8> {
        let mut bytes = vec![0; rustix::fs::fstat(file).unwrap().st_size as usize];
        let mut filled = 0;
        while filled < bytes.len() {
            filled += rustix::io::pread(file, &mut bytes[filled..], filled as u64).unwrap();
        }
        bytes
    }

    #[test]
    fn files_are_copied_with_holes_and_by_every_way() {
        for size in [0, 1, BUFFER_SIZE - 1, BUFFER_SIZE, 3 * BUFFER_SIZE + 5] {
            let bytes: Vec<u8> = (0..size).map(|at| (at * 7) as u8).collect();
            let from = file(&bytes);
            let copied = file(b"");
            copy_contents(from.as_fd(), copied.as_fd(), size as u64).unwrap();
            let buffered = file(b"");
            copy_by_buffer(from.as_fd(), buffered.as_fd(), 0, size as u64).unwrap();
            assert!(contents(&copied) == bytes && contents(&buffered) == bytes, "{size}");
        }
        let from = file(b"start");
        rustix::io::pwrite(&from, b"middle", 5 << 20).unwrap();
        rustix::fs::ftruncate(&from, 10 << 20).unwrap();
        let to = file(b"");
        copy_contents(from.as_fd(), to.as_fd(), 10 << 20).unwrap();
        assert!(contents(&to) == contents(&from));
        assert!(rustix::fs::fstat(&to).unwrap().st_blocks < 2048, "the holes were filled");
    }

    #[test]
    fn a_file_that_has_become_shorter_ends_the_copy() {
        let (from, to) = (file(b"text"), file(b""));
        copy_contents(from.as_fd(), to.as_fd(), 1 << 20).unwrap();
        copy_range(from.as_fd(), to.as_fd(), 0, 1 << 20).unwrap();
        copy_by_buffer(from.as_fd(), to.as_fd(), 0, 1 << 20).unwrap();
        assert_eq!(contents(&to)[..5], *b"text\0");
    }
}
