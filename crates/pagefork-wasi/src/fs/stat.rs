//! Attributes and timestamps of files.

use std::path::Path;

use cap_std::fs::{Dir, File};
use rustix::fs::{AtFlags, OFlags as HostFlags, Stat, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};

use super::path::{Place, locate};
use crate::abi::{Errno, FileStat, FileType, FstFlags, LookupFlags, Rights};
use crate::ctx::WasiCtx;
use crate::descriptor::{Handle, OpenMode, open_beneath};
use crate::guest_memory::GuestMemory;

const NANOSECONDS: u64 = 1_000_000_000;

impl WasiCtx {
    /// `fd_filestat_get`: writes the attributes of an open file. Of a standard
    /// stream or a socket, only the type is told.
    ///
    /// # Errors
    ///
    /// [`Errno::Badf`], [`Errno::Notcapable`], [`Errno::Fault`], and host
    /// errors.
    pub fn fd_filestat_get(
        &mut self,
        memory: &mut GuestMemory<'_>,
        fd: u32,
        result: u32,
    ) -> Result<(), Errno> {
        let descriptor = self.table.get(fd)?;
        descriptor.require(Rights::FD_FILESTAT_GET)?;
        let stat = match &descriptor.handle {
            Handle::Stdin | Handle::Stdout | Handle::Stderr | Handle::Socket(_) => FileStat {
                device: 0,
                inode: 0,
                filetype: descriptor.description.filetype,
                link_count: 0,
                size: 0,
                accessed_ns: 0,
                modified_ns: 0,
                changed_ns: 0,
            },
            Handle::File(file) | Handle::Stream(file) => file_stat(&rustix::fs::fstat(file)?),
            Handle::Directory { dir, .. } => file_stat(&rustix::fs::fstat(dir)?),
        };
        memory.write_bytes(result, &stat.to_bytes())
    }

    /// `fd_filestat_set_times`: sets the timestamps of an open file.
    ///
    /// # Errors
    ///
    /// [`Errno::Badf`], [`Errno::Notcapable`], [`Errno::Perm`],
    /// [`Errno::Inval`] for unknown or contradictory flags, and host errors.
    pub fn fd_filestat_set_times(
        &mut self,
        _memory: &mut GuestMemory<'_>,
        fd: u32,
        accessed_ns: u64,
        modified_ns: u64,
        flags: u32,
    ) -> Result<(), Errno> {
        let times = timestamps(accessed_ns, modified_ns, flags)?;
        let descriptor = self.table.get(fd)?;
        descriptor.require(Rights::FD_FILESTAT_SET_TIMES)?;
        self.config.require_writable(&descriptor.description)?;
        match &descriptor.handle {
            Handle::Stdin | Handle::Stdout | Handle::Stderr | Handle::Socket(_) => {
                Err(Errno::Inval)
            }
            Handle::File(file) | Handle::Stream(file) => Ok(rustix::fs::futimens(file, &times)?),
            Handle::Directory { dir, .. } => {
                Ok(rustix::fs::utimensat(dir, c".", &times, AtFlags::empty())?)
            }
        }
    }

    /// `path_filestat_get`: writes the attributes of a file.
    ///
    /// # Errors
    ///
    /// As [`WasiCtx::path_create_directory`].
    pub fn path_filestat_get(
        &mut self,
        memory: &mut GuestMemory<'_>,
        fd: u32,
        flags: u32,
        path: u32,
        path_size: u32,
        result: u32,
    ) -> Result<(), Errno> {
        memory.check(result, FileStat::SIZE)?;
        let flags = LookupFlags::from_guest(flags)?;
        let path = memory.path(path, path_size)?;
        let (_, dir) = self.directory(fd, Rights::PATH_FILESTAT_GET)?;
        let stat = match find(dir, &path, flags)? {
            Found::Itself(file) => rustix::fs::fstat(file)?,
            Found::In(place) => {
                rustix::fs::statat(place.dir(), &place.name, AtFlags::SYMLINK_NOFOLLOW)?
            }
        };
        memory.write_bytes(result, &file_stat(&stat).to_bytes())
    }

    /// `path_filestat_set_times`: sets the timestamps of a file.
    ///
    /// # Errors
    ///
    /// As [`WasiCtx::path_create_directory`], and [`Errno::Inval`] for unknown
    /// or contradictory flags.
    #[allow(clippy::too_many_arguments)]
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
    ) -> Result<(), Errno> {
        let lookup_flags = LookupFlags::from_guest(lookup_flags)?;
        let times = timestamps(accessed_ns, modified_ns, flags)?;
        let path = memory.path(path, path_size)?;
        let dir = self.directory_to_change(fd, Rights::PATH_FILESTAT_SET_TIMES)?;
        match find(dir, &path, lookup_flags)? {
            Found::Itself(file) => {
                rustix::fs::utimensat(&file, c"", &times, AtFlags::EMPTY_PATH)?;
            }
            Found::In(place) => {
                let flags = AtFlags::SYMLINK_NOFOLLOW;
                rustix::fs::utimensat(place.dir(), &place.name, &times, flags)?;
            }
        }
        Ok(())
    }
}

/// A file whose attributes are meant.
enum Found<'a> {
    /// A handle to nothing but its attributes.
    Itself(File),
    /// A name that may be that of a symbolic link, which is meant itself.
    In(Place<'a>),
}

fn find<'a>(dir: &'a Dir, path: &Path, flags: LookupFlags) -> Result<Found<'a>, Errno> {
    let place = locate(dir, path)?;
    // A trailing slash asks for the directory behind a link.
    if !flags.contains(LookupFlags::SYMLINK_FOLLOW) && !place.trailing_slash {
        return Ok(Found::In(place));
    }
    // A handle that needs no permission to read or write the file.
    let mode = OpenMode { read: true, write: false, directory: false, follow: true };
    Ok(Found::Itself(open_beneath(dir, path, mode, HostFlags::PATH)?))
}

fn file_stat(stat: &Stat) -> FileStat {
    // Times before 1970 cannot be said, and become 1970.
    let time = |seconds: i64, fraction: u64| {
        let seconds = u64::try_from(seconds).ok();
        seconds.map_or(0, |s| s.saturating_mul(NANOSECONDS).saturating_add(fraction))
    };
    FileStat {
        device: stat.st_dev,
        inode: stat.st_ino,
        filetype: FileType::from(rustix::fs::FileType::from_raw_mode(stat.st_mode)),
        link_count: stat.st_nlink,
        size: u64::try_from(stat.st_size).unwrap_or(0),
        accessed_ns: time(stat.st_atime, stat.st_atime_nsec),
        modified_ns: time(stat.st_mtime, stat.st_mtime_nsec),
        changed_ns: time(stat.st_ctime, stat.st_ctime_nsec),
    }
}

fn timestamps(accessed_ns: u64, modified_ns: u64, flags: u32) -> Result<Timestamps, Errno> {
    let flags = FstFlags::from_guest(flags)?;
    let time = |set, now, value: u64| match (flags.contains(set), flags.contains(now)) {
        (true, true) => Err(Errno::Inval),
        (true, false) => Ok(Timespec {
            // At most 2^64 / 10^9 seconds, so both fit.
            tv_sec: (value / NANOSECONDS).cast_signed(),
            tv_nsec: (value % NANOSECONDS).cast_signed(),
        }),
        (false, true) => Ok(Timespec { tv_sec: 0, tv_nsec: UTIME_NOW }),
        (false, false) => Ok(Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT }),
    };
    Ok(Timestamps {
        last_access: time(FstFlags::ATIM, FstFlags::ATIM_NOW, accessed_ns)?,
        last_modification: time(FstFlags::MTIM, FstFlags::MTIM_NOW, modified_ns)?,
    })
}
