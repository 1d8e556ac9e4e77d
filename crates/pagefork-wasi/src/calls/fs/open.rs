//! Opening files and directories.

use std::path::Path;

use cap_std::fs::{Dir, File};
use rustix::fs::OFlags as HostFlags;

use crate::base::abi::{self, FdFlags, FileType, LookupFlags, OpenFlags, Rights};
use crate::base::errno::{Errno, Result};
use crate::base::guest_memory::GuestMemory;
use crate::base::waiting::{Blocking, CHECK_INTERVAL};
use crate::state::ctx::WasiCtx;
use crate::state::descriptor::{Description, Descriptor, DescriptorOrigin, Handle};
use crate::state::path::{OpenMode, join, open_beneath};

impl WasiCtx {
    /// `path_open`: opens a file or directory and writes its descriptor, the lowest free number
    /// that does not belong to a standard stream.
    ///
    /// The rights to read and to write that the guest asks for determine how the file is
    /// opened. Of the other rights, the file gets all that its type can have and that the
    /// directory can pass on, whether the guest asks for them or not. Most hosts do the same,
    /// and programs rely on it.
    ///
    /// # Errors
    ///
    /// [`Errno::Badf`], [`Errno::Notdir`], [`Errno::Fault`], [`Errno::Notcapable`] if rights
    /// are lacking, [`Errno::Perm`] if the path leads out of the directory or the call would
    /// change a read-only one, [`Errno::Isdir`] for a directory to be written,
    /// [`Errno::Inval`] for unknown or contradictory flags, [`Errno::Mfile`] if the guest has
    /// as many descriptors as it may have, and host errors.
    ///
    /// # Examples
    ///
    /// See [`WasiCtx::fd_seek`].
    pub fn path_open(
        &mut self,
        memory: &mut GuestMemory<'_>,
        fd: u32,
        lookup_flags: u32,
        path: u32,
        path_size: u32,
        open_flags: u32,
        rights_base: u64,
        rights_inheriting: u64,
        fd_flags: u32,
        result: u32,
    ) -> Result {
        memory.check(result, 4)?;
        let lookup_flags: LookupFlags = abi::flags(lookup_flags)?;
        let open_flags: OpenFlags = abi::flags(open_flags)?;
        let flags: FdFlags = abi::flags(fd_flags)?;
        let path = memory.path(path, path_size)?;
        let request = OpenRequest {
            open_flags,
            rights_base: Rights::from_bits_retain(rights_base),
            rights_inheriting: Rights::from_bits_retain(rights_inheriting),
        };

        let (parent, dir) = self.directory(fd, request.rights_needed()?)?;
        let parent = &parent.description;
        if !parent.rights_inheriting.contains(request.access()) {
            return Err(Errno::Notcapable);
        }
        if request.changes() {
            parent.require_writable(&self.grants)?;
        }
        let mode = OpenMode {
            read: request.rights_base.intersects(Rights::FD_READ | Rights::FD_READDIR),
            write: request.access().intersects(Rights::MUTATE_FILE),
            directory: open_flags.contains(OpenFlags::DIRECTORY),
            follow: lookup_flags.contains(LookupFlags::SYMLINK_FOLLOW),
        };
        // Before a file is created or truncated.
        self.table.lowest_free()?;
        let stop = self.interrupt.and(memory.stops());
        let blocking = Blocking { waits: !flags.contains(FdFlags::NONBLOCK), stop };
        let file = open_when_ready(dir, &path, mode, request.host_flags(), blocking)?;
        let (handle, filetype) = Handle::of_file(file)?;

        let (rights_base, rights_inheriting) = request.granted(parent, filetype);
        let mode = OpenMode { directory: filetype == FileType::Directory, ..mode };
        let origin = child_origin(&parent.origin, &path, mode)?;
        let description = Description::new(origin, filetype, flags, rights_base, rights_inheriting);
        let opened = self.table.insert(Descriptor { description, handle })?;
        memory.write_u32(result, opened)
    }
}

/// Opens a file. Waits for a reader of a FIFO that is opened for writing alone, and for
/// another process to release its lease of the file.
///
/// A FIFO that is opened for reading alone is open at once, and its first read waits.
fn open_when_ready(
    dir: &Dir,
    path: &Path,
    mode: OpenMode,
    flags: HostFlags,
    blocking: Blocking<'_>,
) -> Result<File> {
    let mut opened = open_beneath(dir, path, mode, flags);
    let waits = match opened {
        Err(Errno::Again) => true,
        // A device that is absent gives the same error.
        Err(Errno::Nxio) => leads_to_fifo(dir, path, mode)?,
        _ => false,
    };
    if waits && blocking.waits {
        blocking.wait_until(|_| {
            // No system call waits for a reader or for the end of a lease.
            std::thread::sleep(CHECK_INTERVAL);
            opened = open_beneath(dir, path, mode, flags);
            Ok(!matches!(opened, Err(Errno::Again | Errno::Nxio)))
        })?;
    }
    opened
}

fn leads_to_fifo(dir: &Dir, path: &Path, mode: OpenMode) -> Result<bool> {
    // O_PATH neither reads nor writes.
    let mode = OpenMode { read: true, write: false, ..mode };
    let found = open_beneath(dir, path, mode, HostFlags::PATH)?;
    let mode = rustix::fs::fstat(&found)?.st_mode;
    Ok(rustix::fs::FileType::from_raw_mode(mode) == rustix::fs::FileType::Fifo)
}

/// The flags and rights that a guest passes to an open.
struct OpenRequest {
    open_flags: OpenFlags,
    rights_base: Rights,
    rights_inheriting: Rights,
}

impl OpenRequest {
    /// Rights that the directory must have.
    fn rights_needed(&self) -> Result<Rights> {
        let creating = OpenFlags::CREAT | OpenFlags::EXCL | OpenFlags::TRUNC;
        if self.open_flags.contains(OpenFlags::DIRECTORY) {
            if self.open_flags.intersects(creating) {
                return Err(Errno::Inval);
            }
            if self.rights_base.intersects(Rights::FD_WRITE) {
                return Err(Errno::Isdir);
            }
        }
        let mut rights = Rights::PATH_OPEN;
        if self.open_flags.contains(OpenFlags::CREAT) {
            rights |= Rights::PATH_CREATE_FILE;
        }
        if self.open_flags.contains(OpenFlags::TRUNC) {
            rights |= Rights::PATH_FILESTAT_SET_SIZE;
        }
        Ok(rights)
    }

    /// The rights asked for that determine how the host opens the file. A directory cannot
    /// have those to write.
    fn access(&self) -> Rights {
        let access = self.rights_base & (Rights::FD_READ | Rights::MUTATE_FILE);
        if self.open_flags.contains(OpenFlags::DIRECTORY) {
            access.difference(Rights::MUTATE_FILE)
        } else {
            access
        }
    }

    fn changes(&self) -> bool {
        self.access().intersects(Rights::MUTATE_FILE)
            || self.open_flags.intersects(OpenFlags::CREAT | OpenFlags::TRUNC)
    }

    fn host_flags(&self) -> HostFlags {
        let mut host = HostFlags::empty();
        if self.open_flags.contains(OpenFlags::CREAT) {
            host |= HostFlags::CREATE;
            // On Linux, it has an effect only beside the other flag.
            if self.open_flags.contains(OpenFlags::EXCL) {
                host |= HostFlags::EXCL;
            }
        }
        if self.open_flags.contains(OpenFlags::TRUNC) {
            host |= HostFlags::TRUNC;
        }
        host
    }

    /// Base and inheriting rights of the new descriptor.
    fn granted(&self, parent: &Description, filetype: FileType) -> (Rights, Rights) {
        let passed_on = parent.rights_inheriting;
        let meaningful = match filetype {
            FileType::Directory => return (passed_on & Rights::DIRECTORY, passed_on),
            FileType::RegularFile | FileType::BlockDevice => Rights::FILE,
            _ => Rights::STREAM,
        };
        let mut base = passed_on & meaningful;
        let asked = self.access();
        if !asked.contains(Rights::FD_READ) {
            base = base.difference(Rights::FD_READ);
        }
        if !asked.intersects(Rights::MUTATE_FILE) {
            base = base.difference(Rights::MUTATE_FILE);
        } else if !asked.contains(Rights::FD_WRITE) {
            base = base.difference(Rights::FD_WRITE);
        }
        (base, self.rights_inheriting & passed_on)
    }
}

/// Where a file comes from that was opened through the directory `parent`.
fn child_origin(
    parent: &DescriptorOrigin,
    path: &Path,
    mode: OpenMode,
) -> Result<DescriptorOrigin> {
    let (preopen, parent) = match parent {
        DescriptorOrigin::Preopen { index } => (*index, Path::new("")),
        DescriptorOrigin::Opened { preopen, path, .. } => (*preopen, path.as_path()),
        _ => return Err(Errno::Notdir),
    };
    Ok(DescriptorOrigin::Opened { preopen, path: join(parent, path), mode })
}
