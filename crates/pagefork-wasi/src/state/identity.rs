//! What tells whether a file is the one that a state was saved with.

use std::os::fd::AsFd;

use rustix::fs::Stat;
use serde::{Deserialize, Serialize};

use crate::base::abi::FileType;
use crate::base::errno::{Errno, Result};

/// Number and attributes of a file when a state was saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileIdentity {
    device: u64,
    inode: u64,
    /// The device that a special file leads to.
    special_device: u64,
    pub(crate) filetype: FileType,
    size: u64,
    /// Seconds and nanoseconds since 1970.
    changed: (i64, u64),
}

/// Why a file is not what it was when the state was saved. [`ChangedFile`] has an example.
///
/// [`ChangedFile`]: crate::ChangedFile
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FileChange {
    /// It cannot be opened, which no choice of the caller changes.
    #[error("it cannot be opened: {0}")]
    Unreachable(Errno),
    /// It is of another type. The guest could not use it, so it is never opened.
    #[error("it was of the type {saved:?} and is now of the type {found:?}")]
    Type {
        /// Its type when the state was saved.
        saved: FileType,
        /// Its type now.
        found: FileType,
    },
    /// The path leads to another file: inode or device differ.
    #[error("another file has its name now")]
    Replaced,
    /// It has another size.
    #[error("its size was {saved} bytes and is now {found}")]
    Size {
        /// Its size when the state was saved, bytes.
        saved: u64,
        /// Its size now, bytes.
        found: u64,
    },
    /// Its contents or attributes were changed since: the time of its last change differs.
    ///
    /// Kernels advance this time in steps of some milliseconds. A change in the same step in
    /// which the state was saved that keeps the size is not noticed.
    #[error("it was changed since")]
    Modified,
}

impl FileIdentity {
    pub(crate) fn of(file: impl AsFd) -> Result<FileIdentity> {
        Ok(FileIdentity::from(&rustix::fs::fstat(file)?))
    }

    /// Whether both are the same file, whatever happened to its contents.
    pub(crate) fn is_same_file(&self, other: &FileIdentity) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }

    /// How the file that is found now differs from this one, if it does.
    ///
    /// Size and time of a directory change whenever a name in it does, so its number alone
    /// counts. So it is for devices, whose contents are not in the file system.
    pub(crate) fn change(&self, found: &FileIdentity) -> Option<FileChange> {
        if let Some(change) = self.type_change(found) {
            return Some(change);
        }
        if !self.is_same_file(found) || self.special_device != found.special_device {
            return Some(FileChange::Replaced);
        }
        if self.filetype != FileType::RegularFile {
            return None;
        }
        let modified = self.changed != found.changed;
        self.size_change(found).or(modified.then_some(FileChange::Modified))
    }

    /// How the file that is found in a copy of the directory differs from this one.
    pub(crate) fn change_in_copy(&self, found: &FileIdentity) -> Option<FileChange> {
        self.type_change(found).or_else(|| match self.filetype {
            FileType::RegularFile => self.size_change(found),
            _ => None,
        })
    }

    fn type_change(&self, found: &FileIdentity) -> Option<FileChange> {
        let (saved, found) = (self.filetype, found.filetype);
        (saved != found).then_some(FileChange::Type { saved, found })
    }

    fn size_change(&self, found: &FileIdentity) -> Option<FileChange> {
        let (saved, found) = (self.size, found.size);
        (saved != found).then_some(FileChange::Size { saved, found })
    }
}

impl From<&Stat> for FileIdentity {
    fn from(stat: &Stat) -> FileIdentity {
        FileIdentity {
            device: stat.st_dev,
            inode: stat.st_ino,
            special_device: stat.st_rdev,
            filetype: FileType::from(stat),
            size: stat.st_size.cast_unsigned(),
            changed: (stat.st_ctime, stat.st_ctime_nsec),
        }
    }
}
