//! Attributes and timestamps of files.

use std::path::Path;

use cap_std::fs::{Dir, File};
use rustix::fs::{AtFlags, OFlags as HostFlags, Stat, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};

use crate::base::abi::{self, FileType, LookupFlags, Rights, TimeFlags};
use crate::base::errno::{Errno, Result};
use crate::base::guest_memory::GuestMemory;
use crate::state::ctx::WasiCtx;
use crate::state::descriptor::Handle;
use crate::state::path::{LastComponent, OpenMode, locate, open_beneath};
use crate::state::sources::timespec_ns;

impl WasiCtx {
    /// `fd_filestat_get`: writes the attributes of an open file. For a standard stream or a
    /// socket, all are 0 but the type.
    ///
    /// # Errors
    ///
    /// [`Errno::Badf`], [`Errno::Notcapable`], [`Errno::Fault`], and host
    /// errors.
    ///
    /// # Examples
    ///
    /// See [`WasiCtx::path_filestat_get`].
    pub fn fd_filestat_get(
        &mut self,
        memory: &mut GuestMemory<'_>,
        fd: u32,
        result: u32,
    ) -> Result {
        let descriptor = self.table.get(fd)?;
        descriptor.require(Rights::FD_FILESTAT_GET)?;
        let stat = match descriptor.opened() {
            Some(file) => file_stat(&rustix::fs::fstat(file)?),
            None => [0, 0, descriptor.description.filetype as u64, 0, 0, 0, 0, 0],
        };
        memory.write_words(result, stat)
    }

    /// `fd_filestat_set_times`: sets the timestamps of an open file.
    ///
    /// # Errors
    ///
    /// [`Errno::Badf`], [`Errno::Notcapable`], [`Errno::Perm`],
    /// [`Errno::Inval`] for unknown or contradictory flags, and host errors.
    ///
    /// # Examples
    ///
    /// See [`WasiCtx::path_filestat_get`].
    pub fn fd_filestat_set_times(
        &mut self,
        _memory: &mut GuestMemory<'_>,
        fd: u32,
        accessed_ns: u64,
        modified_ns: u64,
        flags: u32,
    ) -> Result {
        let times = timestamps(accessed_ns, modified_ns, flags)?;
        let descriptor = self.table.get(fd)?;
        descriptor.require(Rights::FD_FILESTAT_SET_TIMES)?;
        descriptor.description.require_writable(&self.grants)?;
        match &descriptor.handle {
            // A handle for lookup alone (O_PATH) has times only as a path.
            Handle::Directory { dir, .. } => {
                Ok(rustix::fs::utimensat(dir, c".", &times, AtFlags::empty())?)
            }
            _ => Ok(rustix::fs::futimens(descriptor.opened().ok_or(Errno::Inval)?, &times)?),
        }
    }

    /// `path_filestat_get`: writes the attributes of a file.
    ///
    /// # Errors
    ///
    /// As [`WasiCtx::path_create_directory`].
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_wasi::{FileType, GuestMemory, Permissions, WasiCtx};
    ///
    /// # let host = std::env::temp_dir().join(format!("pagefork-stat-{}", std::process::id()));
    /// # std::fs::create_dir_all(&host)?;
    /// std::fs::write(host.join("a"), "hello")?;
    /// let mut builder = WasiCtx::builder();
    /// let mut ctx = builder.preopened_dir(&host, "/", Permissions::ReadWrite)?.build()?;
    /// // The directory is the descriptor 3, and the name is at 0.
    /// let mut bytes = [0; 72];
    /// bytes[0] = b'a';
    /// let memory = &mut GuestMemory::new(&mut bytes[..]);
    /// let (set_modified, seconds) = (4, 1_000_000_000);
    /// ctx.path_filestat_set_times(memory, 3, 0, 0, 1, 0, 7 * seconds, set_modified)?;
    /// ctx.path_filestat_get(memory, 3, 0, 0, 1, 8)?;
    /// // In the attributes the type is at 16, the size at 32, and the time of changes at 48.
    /// assert_eq!(memory.bytes(8 + 16, 1)?, [FileType::RegularFile as u8]);
    /// assert_eq!(memory.read_u32(8 + 32)?, 5);
    /// assert_eq!(memory.bytes(8 + 48, 8)?, (7 * seconds).to_le_bytes());
    ///
    /// // The same of what is open: here, of the directory.
    /// ctx.fd_filestat_set_times(memory, 3, 0, 9 * seconds, set_modified)?;
    /// ctx.fd_filestat_get(memory, 3, 8)?;
    /// assert_eq!(memory.bytes(8 + 48, 8)?, (9 * seconds).to_le_bytes());
    /// # std::fs::remove_dir_all(&host)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn path_filestat_get(
        &mut self,
        memory: &mut GuestMemory<'_>,
        fd: u32,
        flags: u32,
        path: u32,
        path_size: u32,
        result: u32,
    ) -> Result {
        memory.check_array(result, abi::FILESTAT_WORDS, 8)?;
        let flags = abi::flags(flags)?;
        let path = memory.path(path, path_size)?;
        let (_, dir) = self.directory(fd, Rights::PATH_FILESTAT_GET)?;
        let stat = match find(dir, &path, flags)? {
            StatTarget::Opened(file) => rustix::fs::fstat(file)?,
            StatTarget::Name(last) => {
                rustix::fs::statat(last.dir(), &last.name, AtFlags::SYMLINK_NOFOLLOW)?
            }
        };
        memory.write_words(result, file_stat(&stat))
    }

    /// `path_filestat_set_times`: sets the timestamps of a file.
    ///
    /// # Errors
    ///
    /// As [`WasiCtx::path_create_directory`], and [`Errno::Inval`] for unknown
    /// or contradictory flags.
    ///
    /// # Examples
    ///
    /// See [`WasiCtx::path_filestat_get`].
    pub fn path_filestat_set_times(
        &mut self,
        memory: &mut GuestMemory<'_>,
        fd: u32,
        lookup_flags: u32,
        path: u32,
        path_size: u32,
        accessed_ns: u64,
        modified_ns: u64,
        flags: u32,
    ) -> Result {
        let lookup_flags = abi::flags(lookup_flags)?;
        let times = timestamps(accessed_ns, modified_ns, flags)?;
        let path = memory.path(path, path_size)?;
        let dir = self.directory_to_change(fd, Rights::PATH_FILESTAT_SET_TIMES)?;
        match find(dir, &path, lookup_flags)? {
            StatTarget::Opened(file) => {
                rustix::fs::utimensat(&file, c"", &times, AtFlags::EMPTY_PATH)?;
            }
            StatTarget::Name(last) => {
                let flags = AtFlags::SYMLINK_NOFOLLOW;
                rustix::fs::utimensat(last.dir(), &last.name, &times, flags)?;
            }
        }
        Ok(())
    }
}

/// The file whose attributes a path asks for.
enum StatTarget<'a> {
    /// An open file, for its attributes alone.
    Opened(File),
    /// A name. If it is a symbolic link, the link itself is meant.
    Name(LastComponent<'a>),
}

fn find<'a>(dir: &'a Dir, path: &Path, flags: LookupFlags) -> Result<StatTarget<'a>> {
    let last = locate(dir, path)?;
    // A trailing slash asks for the directory behind a link.
    if !flags.contains(LookupFlags::SYMLINK_FOLLOW) && !last.trailing_slash {
        return Ok(StatTarget::Name(last));
    }
    // Opening with O_PATH needs no permission to read or write the file.
    let mode = OpenMode { read: true, write: false, directory: false, follow: true };
    Ok(StatTarget::Opened(open_beneath(dir, path, mode, HostFlags::PATH)?))
}

/// The words of a `filestat`. Times before 1970 become 1970.
fn file_stat(stat: &Stat) -> [u64; abi::FILESTAT_WORDS as usize] {
    let time = |seconds, nanos: u64| {
        timespec_ns(Timespec { tv_sec: seconds, tv_nsec: nanos.cast_signed() })
    };
    [
        stat.st_dev,
        stat.st_ino,
        FileType::from(stat) as u64,
        stat.st_nlink,
        u64::try_from(stat.st_size).unwrap_or(0),
        time(stat.st_atime, stat.st_atime_nsec),
        time(stat.st_mtime, stat.st_mtime_nsec),
        time(stat.st_ctime, stat.st_ctime_nsec),
    ]
}

fn timestamps(accessed_ns: u64, modified_ns: u64, flags: u32) -> Result<Timestamps> {
    const SECOND: u64 = 1_000_000_000;
    let flags: TimeFlags = abi::flags(flags)?;
    let time = |set, now, value: u64| match (flags.contains(set), flags.contains(now)) {
        (true, true) => Err(Errno::Inval),
        (true, false) => Ok(Timespec {
            // At most 2^64 / 10^9 seconds, so both fit.
            tv_sec: (value / SECOND).cast_signed(),
            tv_nsec: (value % SECOND).cast_signed(),
        }),
        (false, true) => Ok(Timespec { tv_sec: 0, tv_nsec: UTIME_NOW }),
        (false, false) => Ok(Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT }),
    };
    Ok(Timestamps {
        last_access: time(TimeFlags::ATIM, TimeFlags::ATIM_NOW, accessed_ns)?,
        last_modification: time(TimeFlags::MTIM, TimeFlags::MTIM_NOW, modified_ns)?,
    })
}
