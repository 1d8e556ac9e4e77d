//! Attributes and timestamps of files.

use cap_std::fs::{Metadata, MetadataExt};
use rustix::fs::{AtFlags, OFlags as HostFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};

use super::path::locate;
use crate::abi::{Errno, FileStat, FileType, FstFlags, LookupFlags, Rights};
use crate::ctx::WasiCtx;
use crate::descriptor::{Handle, OpenMode, open_beneath};
use crate::guest_memory::GuestMemory;

const NANOSECONDS: u64 = 1_000_000_000;

impl WasiCtx {
    /// `fd_filestat_get`: writes the attributes of an open file. Of a standard
    /// stream, only the type is told.
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
            Handle::Stdin | Handle::Stdout | Handle::Stderr => FileStat {
                device: 0,
                inode: 0,
                filetype: descriptor.description.filetype,
                link_count: 0,
                size: 0,
                accessed_ns: 0,
                modified_ns: 0,
                changed_ns: 0,
            },
            Handle::File(file) | Handle::Stream(file) => file_stat(&file.metadata()?),
            Handle::Directory { dir, .. } => file_stat(&dir.dir_metadata()?),
        };
        memory.write_bytes(result, &stat.to_bytes())
    }

    /// `fd_filestat_set_times`: sets the timestamps of an open file.
    ///
    /// # Errors
    ///
    /// [`Errno::Badf`], [`Errno::Notcapable`], [`Errno::Rofs`],
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
            Handle::Stdin | Handle::Stdout | Handle::Stderr => Err(Errno::Inval),
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
        // A trailing slash asks for the directory behind a link.
        let follow = flags.contains(LookupFlags::SYMLINK_FOLLOW)
            || path.as_os_str().as_encoded_bytes().ends_with(b"/");
        let metadata = if follow { dir.metadata(&path)? } else { dir.symlink_metadata(&path)? };
        memory.write_bytes(result, &file_stat(&metadata).to_bytes())
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
        let place = locate(dir, &path)?;
        if lookup_flags.contains(LookupFlags::SYMLINK_FOLLOW) || place.trailing_slash {
            // A handle that needs no permission to read or write the file.
            let mode = OpenMode { read: true, write: false, directory: false, follow: true };
            let file = open_beneath(dir, &path, mode, HostFlags::PATH)?;
            Ok(rustix::fs::utimensat(&file, c"", &times, AtFlags::EMPTY_PATH)?)
        } else {
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            Ok(rustix::fs::utimensat(place.dir(), &place.name, &times, flags)?)
        }
    }
}

fn file_stat(metadata: &Metadata) -> FileStat {
    // Times before 1970 cannot be said, and become 1970.
    let nanoseconds = |seconds: i64, fraction: i64| {
        let seconds = u64::try_from(seconds).ok()?;
        let fraction = u64::try_from(fraction).ok()?;
        Some(seconds.saturating_mul(NANOSECONDS).saturating_add(fraction))
    };
    let time = |seconds, fraction| nanoseconds(seconds, fraction).unwrap_or(0);
    FileStat {
        device: metadata.dev(),
        inode: metadata.ino(),
        filetype: FileType::from(rustix::fs::FileType::from_raw_mode(metadata.mode())),
        link_count: metadata.nlink(),
        size: metadata.size(),
        accessed_ns: time(metadata.atime(), metadata.atime_nsec()),
        modified_ns: time(metadata.mtime(), metadata.mtime_nsec()),
        changed_ns: time(metadata.ctime(), metadata.ctime_nsec()),
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
