//! Opening files and directories.

use std::path::{Path, PathBuf};

use cap_std::fs::{Dir, File};
use rustix::fs::OFlags as HostFlags;

use crate::abi::{Errno, FdFlags, FileType, LookupFlags, OFlags, Rights};
use crate::ctx::WasiCtx;
use crate::descriptor::{Description, Descriptor, OpenMode, Origin, handle_of, join, open_beneath};
use crate::guest_memory::GuestMemory;
use crate::waiting::{Blocking, Watch};

impl WasiCtx {
    /// `path_open`: opens a file or directory and writes its descriptor, the
    /// lowest number that is free and not of a standard stream.
    ///
    /// Of the rights asked for, those to read and to write decide how the file
    /// is opened. Apart from these it gets what means something for its type
    /// and the directory can pass on, whatever was asked: that is all that
    /// most hosts make of rights, and what programs rely on.
    ///
    /// # Errors
    ///
    /// [`Errno::Badf`], [`Errno::Notdir`], [`Errno::Fault`],
    /// [`Errno::Notcapable`] if rights are lacking, [`Errno::Perm`] if the path
    /// leads out of the directory or something would change in one for reading
    /// only, [`Errno::Isdir`] for a directory to be written, [`Errno::Inval`]
    /// for unknown flags or contradictory ones, and host errors.
    #[allow(clippy::too_many_arguments)]
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
    ) -> Result<(), Errno> {
        memory.check(result, 4)?;
        let lookup_flags = LookupFlags::from_guest(lookup_flags)?;
        let open_flags = OFlags::from_guest(open_flags)?;
        let flags = FdFlags::from_guest(fd_flags)?;
        let path = memory.path(path, path_size)?;
        let request = Request {
            open_flags,
            rights_base: Rights(rights_base),
            rights_inheriting: Rights(rights_inheriting),
        };

        let (parent, dir) = self.directory(fd, request.rights_needed()?)?;
        let parent = &parent.description;
        if !parent.rights_inheriting.contains(request.access()) {
            return Err(Errno::Notcapable);
        }
        if request.changes() {
            self.config.require_writable(parent)?;
        }
        let mode = OpenMode {
            read: request.rights_base.intersects(Rights::FD_READ | Rights::FD_READDIR),
            write: request.access().intersects(Rights::MUTATE_FILE),
            directory: open_flags.contains(OFlags::DIRECTORY),
            follow: lookup_flags.contains(LookupFlags::SYMLINK_FOLLOW),
        };
        let watch = Watch::new(memory.interruption(), self.interrupt.as_ref());
        let blocking = Blocking::new(flags.contains(FdFlags::NONBLOCK), watch);
        let file = open_when_ready(dir, &path, mode, request.host_flags(), blocking)?;
        let (handle, filetype) = handle_of(file)?;

        let (rights_base, rights_inheriting) = request.granted(parent, filetype);
        let mode = OpenMode { directory: filetype == FileType::Directory, ..mode };
        let origin = child_origin(&parent.origin, &path, mode)?;
        let description =
            Description { origin, filetype, flags, rights_base, rights_inheriting, offset: 0 };
        let opened = self.table.insert(Descriptor { description, handle })?;
        memory.write_u32(result, opened)
    }
}

/// Opens a file. Waits for a reader of a FIFO that is opened for writing alone, and for
/// whoever holds a lease of the file to give it up.
///
/// One that is opened for reading alone is open at once, and its first read waits.
fn open_when_ready(
    dir: &Dir,
    path: &Path,
    mode: OpenMode,
    flags: HostFlags,
    blocking: Blocking<'_>,
) -> Result<File, Errno> {
    let mut opened = open_beneath(dir, path, mode, flags);
    let waits = match opened {
        Err(Errno::Again) => true,
        // Or a device that is not there.
        Err(Errno::Nxio) => leads_to_fifo(dir, path, mode)?,
        _ => false,
    };
    if waits && matches!(blocking, Blocking::Until(_)) {
        blocking.wait_until(|_| {
            // No system call waits for either.
            std::thread::sleep(Watch::INTERVAL);
            opened = open_beneath(dir, path, mode, flags);
            Ok(!matches!(opened, Err(Errno::Again | Errno::Nxio)))
        })?;
    }
    opened
}

fn leads_to_fifo(dir: &Dir, path: &Path, mode: OpenMode) -> Result<bool, Errno> {
    // For lookup alone there is no access.
    let mode = OpenMode { read: true, write: false, ..mode };
    let found = open_beneath(dir, path, mode, HostFlags::PATH)?;
    let filetype = rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode);
    Ok(filetype == rustix::fs::FileType::Fifo)
}

/// What a guest asks of an open.
struct Request {
    open_flags: OFlags,
    rights_base: Rights,
    rights_inheriting: Rights,
}

impl Request {
    /// Rights that the directory must have.
    fn rights_needed(&self) -> Result<Rights, Errno> {
        let creating = OFlags::CREAT | OFlags::EXCL | OFlags::TRUNC;
        if self.open_flags.contains(OFlags::DIRECTORY) {
            if self.open_flags.intersects(creating) {
                return Err(Errno::Inval);
            }
            if self.rights_base.intersects(Rights::FD_WRITE) {
                return Err(Errno::Isdir);
            }
        }
        let mut rights = Rights::PATH_OPEN;
        if self.open_flags.contains(OFlags::CREAT) {
            rights = rights | Rights::PATH_CREATE_FILE;
        }
        if self.open_flags.contains(OFlags::TRUNC) {
            rights = rights | Rights::PATH_FILESTAT_SET_SIZE;
        }
        Ok(rights)
    }

    /// The rights asked for that decide how the host opens the file. Those to
    /// change its size mean nothing for a directory.
    fn access(&self) -> Rights {
        let access = self.rights_base & (Rights::FD_READ | Rights::MUTATE_FILE);
        if self.open_flags.contains(OFlags::DIRECTORY) {
            access.without(Rights::MUTATE_FILE)
        } else {
            access
        }
    }

    fn changes(&self) -> bool {
        self.access().intersects(Rights::MUTATE_FILE)
            || self.open_flags.intersects(OFlags::CREAT | OFlags::TRUNC)
    }

    fn host_flags(&self) -> HostFlags {
        let mut host = HostFlags::empty();
        if self.open_flags.contains(OFlags::CREAT) {
            host |= HostFlags::CREATE;
            // Without the other, it means nothing to Linux.
            if self.open_flags.contains(OFlags::EXCL) {
                host |= HostFlags::EXCL;
            }
        }
        if self.open_flags.contains(OFlags::TRUNC) {
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
            base = base.without(Rights::FD_READ);
        }
        if !asked.intersects(Rights::MUTATE_FILE) {
            base = base.without(Rights::MUTATE_FILE);
        } else if !asked.contains(Rights::FD_WRITE) {
            base = base.without(Rights::FD_WRITE);
        }
        (base, self.rights_inheriting & passed_on)
    }
}

/// How to reach a file from its preopened directory, given how to reach the
/// directory through which it was opened.
fn child_origin(parent: &Origin, path: &Path, mode: OpenMode) -> Result<Origin, Errno> {
    let (preopen, parent) = match parent {
        Origin::Preopen { index } => (*index, PathBuf::new()),
        Origin::Opened { preopen, path, .. } => (*preopen, path.clone()),
        Origin::Stdin
        | Origin::Stdout
        | Origin::Stderr
        | Origin::Listener { .. }
        | Origin::Connection { .. }
        | Origin::Accepted { .. } => return Err(Errno::Notdir),
    };
    Ok(Origin::Opened { preopen, path: join(&parent, path), mode })
}
