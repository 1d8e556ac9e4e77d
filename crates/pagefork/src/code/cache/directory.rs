//! The directory of a cache: entries by name, written whole or not at all, and the oldest
//! removed first.

use std::fmt;
use std::fs::{DirBuilder, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use pagefork_pages::{FileProblem, PagesError, check_writers};
use rustix::fs::{self, AtFlags, CWD, Dir, FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use super::CacheRefusal;
use super::steps::{self, Step};

/// Entries are never written again.
const ENTRY_MODE: Mode = Mode::RUSR;

/// How the names of files begin that are not entries yet, where the file system
/// knows no files without names.
const UNFINISHED: &str = ".unfinished-";

/// Age after which an unfinished file that no process holds is removed.
const UNFINISHED_AGE: Duration = Duration::from_secs(60);

/// When a use is noted again: the order of uses need not be finer.
const USE_INTERVAL: Duration = Duration::from_secs(60 * 60);

/// After how many own entries those of others are counted again.
const RECOUNT_AFTER: u64 = 256;

/// A private directory. If its path changes, this still means the
/// directory that was opened.
pub(super) struct CacheDirectory {
    fd: OwnedFd,
    /// Bytes that all entries take, as far as known; `u64::MAX` before they were
    /// counted.
    size: AtomicU64,
    /// Entries added since.
    added: AtomicU64,
    /// Numbers unfinished files.
    next: AtomicU64,
}

/// What there is by the name of an entry.
pub(super) enum FoundEntry {
    /// A file that only this user and root can write; whether it is a good entry
    /// is to be seen. While the file or a map of it exists, so does the entry.
    Entry(File),
    /// Nothing.
    Nothing,
    /// Something that cannot be an entry, and why.
    Strange(String),
}

impl CacheDirectory {
    /// Opens a directory, and makes it and those above it first where needed.
    pub(super) fn open(path: &Path) -> Result<Self, CacheRefusal> {
        let unusable = |error: &dyn fmt::Display| CacheRefusal::Unusable {
            path: path.to_owned(),
            message: error.to_string(),
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = || fs::openat(CWD, path, flags, Mode::empty());
        let fd = match open() {
            Err(Errno::NOENT) => {
                let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
                made.map_err(|error| unusable(&error))?;
                open()
            }
            other => other,
        };
        let fd = fd.map_err(|error| unusable(&error))?;
        check_writers(fd.as_fd()).map_err(|error| CacheRefusal::new(path, &error))?;
        let (size, added, next) = (u64::MAX.into(), 0.into(), 0.into());
        Ok(Self { fd, size, added, next })
    }

    /// Looks for an entry.
    ///
    /// # Errors
    /// If the system fails.
    pub(super) fn find(&self, name: &str) -> io::Result<FoundEntry> {
        let file = match self.open_entry(name) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(FoundEntry::Nothing),
            Err(Errno::LOOP) => return Ok(FoundEntry::Strange("it is a symbolic link".to_owned())),
            Err(error @ (Errno::ACCESS | Errno::NXIO | Errno::IO)) => {
                return Ok(FoundEntry::Strange(error.to_string()));
            }
            Err(error) => return Err(error.into()),
        };
        let stat = fs::fstat(&file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Ok(FoundEntry::Strange(FileProblem::NotRegular.to_string()));
        }
        match check_writers(file.as_fd()) {
            Ok(()) => {}
            Err(PagesError::FileRefused(problem)) => {
                return Ok(FoundEntry::Strange(problem.to_string()));
            }
            Err(error) => return Err(io::Error::other(error)),
        }
        // Lasts until neither a descriptor nor a map of this open file is left.
        let _ = fs::flock(&file, FlockOperation::NonBlockingLockShared);
        Ok(FoundEntry::Entry(File::from(file)))
    }

    /// Whether this file is still the entry of that name.
    pub(super) fn is_entry(&self, name: &str, file: &File) -> bool {
        let there = fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW);
        let same = |a: Stat, b: Stat| (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino);
        matches!((there, fs::fstat(file)), (Ok(there), Ok(here)) if same(there, here))
    }

    /// Notes that an entry was used now.
    pub(super) fn used(&self, file: &File) {
        let modified = file.metadata().and_then(|metadata| metadata.modified());
        if modified.is_ok_and(|modified| is_older(modified, USE_INTERVAL)) {
            // Who may not note it has not made it, and may not remove it either.
            let _ = file.set_modified(SystemTime::now());
        }
    }

    /// Removes what has the name of an entry.
    ///
    /// # Errors
    /// If it cannot be removed and is there.
    pub(super) fn remove(&self, name: &str) -> io::Result<()> {
        match fs::unlinkat(&self.fd, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Adds an entry of these bytes, and makes room for it within `limit` bytes.
    /// Until it is complete and on the disk, it has no name. Returns whether it
    /// was added: one that is too large is not, nor one that is there already.
    ///
    /// # Errors
    /// If the system fails; nothing is left then.
    pub(super) fn add(&self, name: &str, parts: &[&[u8]; 2], limit: u64) -> io::Result<bool> {
        let size = (parts[0].len() + parts[1].len()) as u64;
        if size > limit {
            return Ok(false);
        }
        // Asked first, because going beyond would also raise a signal.
        if getrlimit(Resource::Fsize).current.is_some_and(|limit| size > limit) {
            return Err(Errno::FBIG.into());
        }
        let file = Unfinished::new(self)?;
        steps::done(Step::Made)?;
        (&file.file).write_all(parts[0])?;
        steps::done(Step::HalfWritten)?;
        (&file.file).write_all(parts[1])?;
        steps::done(Step::Written)?;
        file.file.sync_all()?;
        steps::done(Step::Synced)?;
        let added = file.name(name)?;
        steps::done(Step::Named)?;
        if added {
            self.make_room(name, size, limit)?;
        }
        Ok(added)
    }

    /// Removes entries until all of them take at most `limit` bytes, those used
    /// last longest ago first. The one just added stays, and those in use stay.
    fn make_room(&self, added: &str, size: u64, limit: u64) -> io::Result<()> {
        let known = self.size.load(Relaxed);
        let count = self.added.fetch_add(1, Relaxed);
        if known != u64::MAX && count < RECOUNT_AFTER {
            self.size.fetch_add(size, Relaxed);
            if known.saturating_add(size) <= limit {
                return Ok(());
            }
        }
        let mut entries = Vec::new();
        for entry in Dir::read_from(&self.fd)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            let Ok(stat) = fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            if name.starts_with(UNFINISHED) {
                if is_older(modified(&stat), UNFINISHED_AGE) {
                    self.remove_unused(name);
                }
            } else if is_entry_name(name) {
                entries.push((modified(&stat), stat.st_size as u64, name.to_owned()));
            }
        }
        entries.sort();
        let mut total: u64 = entries.iter().map(|(_, size, _)| size).sum();
        for (_, size, name) in entries {
            if total <= limit {
                break;
            }
            if name != added && self.remove_unused(&name) {
                total -= size;
            }
        }
        self.size.store(total, Relaxed);
        self.added.store(0, Relaxed);
        Ok(())
    }

    /// Removes a file that no process holds, and says whether it did.
    fn remove_unused(&self, name: &str) -> bool {
        let Ok(file) = self.open_entry(name) else { return false };
        fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
            && self.remove(name).is_ok()
    }

    fn open_entry(&self, name: &str) -> rustix::io::Result<OwnedFd> {
        // Do not wait for a writer if it is a pipe.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        fs::openat(&self.fd, name, flags, Mode::empty())
    }
}

/// A file that is going to be an entry. Without a name it is gone when closed,
/// even if the process dies; with one, it is removed when dropped, or by others
/// who find its lock free.
struct Unfinished<'a> {
    directory: &'a CacheDirectory,
    file: File,
    name: Option<String>,
}

impl<'a> Unfinished<'a> {
    fn new(directory: &'a CacheDirectory) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let nameless = steps::done(Step::Begun).and_then(|()| {
            Ok(fs::openat(&directory.fd, ".", flags | OFlags::TMPFILE, ENTRY_MODE)?)
        });
        // A file system, or a system that knows no such files, says so in one of
        // these ways. The other way shows the real error.
        let (fd, name) = match nameless {
            Ok(fd) => (fd, None),
            Err(_) => {
                let (process, number) = (std::process::id(), directory.next.fetch_add(1, Relaxed));
                let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
                let now = now.unwrap_or_default().as_nanos();
                let name = format!("{UNFINISHED}{process}-{number}-{now:x}");
                let flags = flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
                (fs::openat(&directory.fd, &name, flags, ENTRY_MODE)?, Some(name))
            }
        };
        let unfinished = Self { directory, file: File::from(fd), name };
        if unfinished.name.is_some() {
            let _ = fs::flock(&unfinished.file, FlockOperation::NonBlockingLockExclusive);
        }
        // The umask of the process applies.
        fs::fchmod(&unfinished.file, ENTRY_MODE)?;
        Ok(unfinished)
    }

    /// Gives the file its name. An entry of that name that is there already is as
    /// good: it may stay, and this one goes.
    fn name(self, name: &str) -> io::Result<bool> {
        let directory = &self.directory.fd;
        let named = match &self.name {
            Some(own) => fs::renameat(directory, own, directory, name),
            None => {
                let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
                fs::linkat(CWD, path, directory, name, AtFlags::SYMLINK_FOLLOW)
            }
        };
        match named {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            let _ = self.directory.remove(name);
        }
    }
}

/// Whether this is 64 hexadecimal digits.
fn is_entry_name(name: &str) -> bool {
    name.len() == 64 && name.bytes().all(|c| c.is_ascii_digit() || (b'a'..=b'f').contains(&c))
}

fn modified(stat: &Stat) -> SystemTime {
    let (seconds, nanoseconds) = (stat.st_mtime.max(0) as u64, stat.st_mtime_nsec as u32);
    SystemTime::UNIX_EPOCH + Duration::new(seconds, nanoseconds.min(999_999_999))
}

fn is_older(time: SystemTime, age: Duration) -> bool {
    time.elapsed().is_ok_and(|elapsed| elapsed > age)
}
