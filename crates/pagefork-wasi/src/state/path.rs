//! Paths of guests: resolved beneath a directory, by cap-std.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use cap_std::fs::{Dir, File, OpenOptions, OpenOptionsExt};
use rustix::fs::{AtFlags, Mode, OFlags as HostFlags};
use serde::{Deserialize, Serialize};

use crate::base::abi::FileType;
use crate::base::errno::{Errno, Result};

/// The part of an open that is repeated when the file is opened again. Creating and
/// truncating are not. [`Description`](crate::Description) has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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

impl OpenMode {
    fn access(self) -> HostFlags {
        match (self.read, self.write) {
            (_, false) => HostFlags::RDONLY,
            (false, true) => HostFlags::WRONLY,
            (true, true) => HostFlags::RDWR,
        }
    }
}

/// Opens a path that must stay beneath `dir`, with host flags beyond those of `mode`.
pub(crate) fn open_beneath(
    dir: &Dir,
    path: &Path,
    mode: OpenMode,
    extra: HostFlags,
) -> Result<File> {
    let mut flags = extra;
    // The kernel refuses most flags on handles for lookup alone. No open may wait: for the
    // other end of a FIFO, the carrier of a terminal, or the holder of a lease.
    if !extra.contains(HostFlags::PATH) {
        flags |= HostFlags::NOCTTY | HostFlags::NONBLOCK;
    }
    if mode.directory {
        flags |= HostFlags::DIRECTORY;
    }
    if !mode.follow {
        let last = locate(dir, path)?;
        // A trailing slash asks for the directory behind a link.
        if !last.trailing_slash && last.name != "." {
            flags |= HostFlags::NOFOLLOW | HostFlags::CLOEXEC | mode.access();
            let opened = rustix::io::retry_on_intr(|| {
                rustix::fs::openat(last.dir(), &last.name, flags, Mode::from_raw_mode(0o666))
            })?;
            return Ok(File::from_std(opened.into()));
        }
    }
    let mut options = OpenOptions::new();
    options.read(mode.read || !mode.write).write(mode.write);
    options.custom_flags(flags.bits().cast_signed());
    Ok(dir.open_with(path, &options)?)
}

/// The last component of a path, and the open directory that holds it.
#[derive(Debug)]
pub(crate) struct LastComponent<'a> {
    parent: Parent<'a>,
    /// A single component, never `..`.
    pub(crate) name: OsString,
    /// Whether the path ended in a slash: then it names a directory.
    pub(crate) trailing_slash: bool,
}

#[derive(Debug)]
enum Parent<'a> {
    Given(&'a Dir),
    Opened(Dir),
}

/// Resolves a path as far as its last component.
///
/// # Errors
///
/// [`Errno::Perm`] if it is absolute or leads out of `dir`, and host errors from the
/// directories on the way.
pub(crate) fn locate<'a>(dir: &'a Dir, path: &Path) -> Result<LastComponent<'a>> {
    let bytes = path.as_os_str().as_bytes();
    let Some(end) = bytes.iter().rposition(|&byte| byte != b'/').map(|last| last + 1) else {
        return Err(if bytes.is_empty() { Errno::Noent } else { Errno::Perm });
    };
    let trailing_slash = end < bytes.len();
    let path = &bytes[..end];
    let (parent, name) = match path.iter().rposition(|&byte| byte == b'/') {
        Some(slash) => (&path[..=slash], &path[slash + 1..]),
        None => (&b""[..], path),
    };
    // Only a walk through `..` tells whether the directory that it names is beneath `dir`.
    let (parent, name) = if name == b".." { (path, &b"."[..]) } else { (parent, name) };
    let parent = if parent.is_empty() {
        Parent::Given(dir)
    } else {
        Parent::Opened(dir.open_dir(OsStr::from_bytes(parent))?)
    };
    Ok(LastComponent { parent, name: OsStr::from_bytes(name).to_owned(), trailing_slash })
}

impl LastComponent<'_> {
    /// The directory that holds the name.
    pub(crate) fn dir(&self) -> BorrowedFd<'_> {
        match &self.parent {
            Parent::Given(dir) => dir.as_fd(),
            Parent::Opened(dir) => dir.as_fd(),
        }
    }

    fn filetype(&self) -> Result<FileType> {
        let stat = rustix::fs::statat(self.dir(), &self.name, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(FileType::from(&stat))
    }

    /// Checks that the name is that of a directory, as a trailing slash demands.
    pub(crate) fn require_directory(&self) -> Result {
        match self.filetype()? {
            FileType::Directory => Ok(()),
            _ => Err(Errno::Notdir),
        }
    }

    /// Refuses a name followed by a slash, for a call that makes something other than a
    /// directory.
    pub(crate) fn require_no_slash(&self) -> Result {
        if !self.trailing_slash {
            return Ok(());
        }
        match self.filetype()? {
            FileType::Directory => Err(Errno::Exist),
            _ => Err(Errno::Notdir),
        }
    }
}

/// Joins the path of a directory and a path relative to it, without the components that
/// change nothing.
pub(crate) fn join(parent: &Path, child: &Path) -> PathBuf {
    // `Path::components` leaves out empty components and `.`, but not a `.` at the start.
    let path = parent.components().chain(child.components());
    let path: PathBuf = path.filter(|component| component.as_os_str() != ".").collect();
    if path.as_os_str().is_empty() { PathBuf::from(".") } else { path }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joined_paths_keep_what_matters() {
        let join = |a: &str, b: &str| join(Path::new(a), Path::new(b)).display().to_string();
        assert_eq!(join(".", "a//b/./c/"), "a/b/c");
        assert_eq!(join("a/b", "../c"), "a/b/../c");
        assert_eq!(join(".", "."), ".");
        assert_eq!(join("", "./a/.."), "a/..");
    }
}
