//! Functions on a descriptor that transfer no data: flags, rights, offset, size.

use std::num::NonZeroU64;

use rustix::fd::AsFd;
use rustix::fs::{Advice, FallocateFlags, Mode, OFlags as HostFlags, SeekFrom};
use rustix::io::retry_on_intr;

use super::check_offset;
use crate::base::abi::{self, Rights};
use crate::base::errno::{Errno, Result};
use crate::base::guest_memory::GuestMemory;
use crate::calls::sock::socket_flags;
use crate::state::ctx::WasiCtx;
use crate::state::descriptor::{Description, DescriptorOrigin, Handle};

impl WasiCtx {
    /// `fd_advise`: announces how the guest will use a range of a file.
    ///
    /// # Errors
    ///
    /// [`Errno::Badf`], [`Errno::Spipe`], [`Errno::Notcapable`], and
    /// [`Errno::Inval`] for unknown advice.
    ///
    /// # Examples
    ///
    /// See [`WasiCtx::fd_allocate`].
    pub fn fd_advise(
        &mut self,
        _memory: &mut GuestMemory<'_>,
        fd: u32,
        offset: u64,
        size: u64,
        advice: u32,
    ) -> Result {
        let file = self.table.get(fd)?.file_with(Rights::FD_ADVISE)?;
        let advice = match advice {
            0 => Advice::Normal,
            1 => Advice::Sequential,
            2 => Advice::Random,
            3 => Advice::WillNeed,
            4 => Advice::DontNeed,
            5 => Advice::NoReuse,
            _ => return Err(Errno::Inval),
        };
        check_offset(offset)?;
        check_offset(size)?;
        Ok(rustix::fs::fadvise(file, offset, NonZeroU64::new(size), advice)?)
    }

    /// `fd_allocate`: reserves room for a range of a file on its device, and extends the file
    /// to the end of the range.
    ///
    /// # Errors
    ///
    /// [`Errno::Badf`], [`Errno::Spipe`], [`Errno::Notcapable`],
    /// [`Errno::Inval`] for an empty range or one beyond 2^63, and host errors such
    /// as [`Errno::Nospc`] or [`Errno::Notsup`].
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_wasi::{Errno, GuestMemory, Permissions, Rights, WasiCtx};
    ///
    /// # let host = std::env::temp_dir().join(format!("pagefork-room-{}", std::process::id()));
    /// # std::fs::create_dir_all(&host)?;
    /// let mut builder = WasiCtx::builder();
    /// let mut ctx = builder.preopened_dir(&host, "/", Permissions::ReadWrite)?.build()?;
    /// // The name of the file is at 0, and its descriptor will be 4.
    /// let mut bytes = *b"log.....";
    /// let memory = &mut GuestMemory::new(&mut bytes[..]);
    /// let create = 1;
    /// ctx.path_open(memory, 3, 0, 0, 3, create, Rights::FD_WRITE.bits(), 0, 0, 4)?;
    ///
    /// // It will be written from the start to the end: advice 1.
    /// ctx.fd_advise(memory, 4, 0, 0, 1)?;
    /// match ctx.fd_allocate(memory, 4, 0, 4096) {
    ///     Ok(()) => assert_eq!(host.join("log").metadata()?.len(), 4096),
    ///     // Not every file system can do it.
    ///     Err(error) => assert_eq!(error, Errno::Notsup),
    /// }
    /// ctx.fd_datasync(memory, 4)?;
    /// # std::fs::remove_dir_all(&host)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn fd_allocate(
        &mut self,
        _memory: &mut GuestMemory<'_>,
        fd: u32,
        offset: u64,
        size: u64,
    ) -> Result {
        let file = self.table.get(fd)?.file_with(Rights::FD_ALLOCATE)?;
        check_offset(offset)?;
        check_offset(size)?;
        if size == 0 {
            return Err(Errno::Inval);
        }
        Ok(retry_on_intr(|| rustix::fs::fallocate(file, FallocateFlags::empty(), offset, size))?)
    }

    /// `fd_close`: closes a descriptor, which may be a preopened directory.
    ///
    /// # Errors
    ///
    /// [`Errno::Badf`].
    ///
    /// # Examples
    ///
    /// See [`WasiCtx::fd_seek`].
    pub fn fd_close(&mut self, _memory: &mut GuestMemory<'_>, fd: u32) -> Result {
        self.table.remove(fd).map(drop)
    }

    /// `fd_datasync`: waits until the data is on stable storage.
    ///
    /// # Errors
    ///
    /// [`Errno::Badf`], [`Errno::Notcapable`], [`Errno::Inval`] for streams,
    /// and host errors.
    ///
    /// # Examples
    ///
    /// See [`WasiCtx::fd_allocate`].
    pub fn fd_datasync(&mut self, _memory: &mut GuestMemory<'_>, fd: u32) -> Result {
        self.sync(fd, Rights::FD_DATASYNC, |host| rustix::fs::fdatasync(host))
    }

    /// `fd_sync`: waits until data and attributes are on stable storage.
    ///
    /// # Errors
    ///
    /// As [`WasiCtx::fd_datasync`].
    ///
    /// # Examples
    ///
    /// See [`WasiCtx::fd_seek`].
    pub fn fd_sync(&mut self, _memory: &mut GuestMemory<'_>, fd: u32) -> Result {
        self.sync(fd, Rights::FD_SYNC, |host| rustix::fs::fsync(host))
    }

    /// `fd_fdstat_get`: writes type, flags and rights of a descriptor.
    ///
    /// # Errors
    ///
    /// [`Errno::Badf`], [`Errno::Fault`].
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_wasi::{Errno, FdFlags, GuestMemory, Rights, WasiCtx};
    ///
    /// let mut ctx = WasiCtx::builder().build()?;
    /// let mut bytes = [0; 24];
    /// let memory = &mut GuestMemory::new(&mut bytes[..]);
    /// ctx.fd_fdstat_set_flags(memory, 1, FdFlags::NONBLOCK.bits().into())?;
    /// ctx.fd_fdstat_set_rights(memory, 1, Rights::FD_WRITE.bits(), 0)?;
    ///
    /// // The flags are at 2, the rights at 8.
    /// ctx.fd_fdstat_get(memory, 1, 0)?;
    /// assert_eq!(memory.bytes(2, 2)?, FdFlags::NONBLOCK.bits().to_le_bytes());
    /// assert_eq!(memory.bytes(8, 8)?, Rights::FD_WRITE.bits().to_le_bytes());
    /// // What a guest has given away it does not get back.
    /// let more = (Rights::FD_READ | Rights::FD_WRITE).bits();
    /// assert_eq!(ctx.fd_fdstat_set_rights(memory, 1, more, 0), Err(Errno::Notcapable));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn fd_fdstat_get(&mut self, memory: &mut GuestMemory<'_>, fd: u32, result: u32) -> Result {
        let Description { filetype, flags, rights_base, rights_inheriting, .. } =
            self.table.get(fd)?.description;
        let stat = abi::fdstat(filetype, flags, rights_base, rights_inheriting);
        memory.write_words(result, stat)
    }

    /// `fd_fdstat_set_flags`: replaces the flags. A socket has only
    /// `FdFlags::NONBLOCK`.
    ///
    /// # Errors
    ///
    /// [`Errno::Badf`], [`Errno::Notcapable`], [`Errno::Inval`] for unknown
    /// flags.
    ///
    /// # Examples
    ///
    /// See [`WasiCtx::fd_fdstat_get`].
    pub fn fd_fdstat_set_flags(
        &mut self,
        _memory: &mut GuestMemory<'_>,
        fd: u32,
        flags: u32,
    ) -> Result {
        let descriptor = self.table.get_mut(fd)?;
        descriptor.require(Rights::FD_FDSTAT_SET_FLAGS)?;
        descriptor.description.flags = match descriptor.handle {
            Handle::Socket(_) => socket_flags(flags)?,
            _ => abi::flags(flags)?,
        };
        Ok(())
    }

    /// `fd_fdstat_set_rights`: gives up rights.
    ///
    /// # Errors
    ///
    /// [`Errno::Badf`], and [`Errno::Notcapable`] if a right would be gained.
    ///
    /// # Examples
    ///
    /// See [`WasiCtx::fd_fdstat_get`].
    pub fn fd_fdstat_set_rights(
        &mut self,
        _memory: &mut GuestMemory<'_>,
        fd: u32,
        base: u64,
        inheriting: u64,
    ) -> Result {
        let description = &mut self.table.get_mut(fd)?.description;
        let (base, inheriting) =
            (Rights::from_bits_retain(base), Rights::from_bits_retain(inheriting));
        if !description.rights_base.contains(base)
            || !description.rights_inheriting.contains(inheriting)
        {
            return Err(Errno::Notcapable);
        }
        description.rights_base = base;
        description.rights_inheriting = inheriting;
        Ok(())
    }

    /// `fd_filestat_set_size`: cuts or extends a file.
    ///
    /// # Errors
    ///
    /// [`Errno::Badf`], [`Errno::Inval`] for streams, files that are open for
    /// reading only and sizes beyond 2^63, [`Errno::Notcapable`], and host
    /// errors.
    ///
    /// # Examples
    ///
    /// See [`WasiCtx::fd_seek`].
    pub fn fd_filestat_set_size(
        &mut self,
        _memory: &mut GuestMemory<'_>,
        fd: u32,
        size: u64,
    ) -> Result {
        let descriptor = self.table.get(fd)?;
        let file = descriptor.file_with(Rights::FD_FILESTAT_SET_SIZE);
        let file = file.map_err(|error| match error {
            Errno::Spipe => Errno::Inval,
            Errno::Notcapable if !descriptor.description.is_for_writing() => Errno::Inval,
            error => error,
        })?;
        check_offset(size)?;
        Ok(retry_on_intr(|| rustix::fs::ftruncate(file, size))?)
    }

    /// `fd_prestat_get`: writes kind and name size of a preopened directory.
    ///
    /// A socket that was passed in has a kind of its own, and a name of size 0. C libraries
    /// search for directories up to the first descriptor that was not passed in, and skip kinds
    /// that they do not know. So they find the directories behind the sockets.
    ///
    /// # Errors
    ///
    /// [`Errno::Badf`] for any other descriptor, which ends the search of a C library;
    /// [`Errno::Fault`].
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_wasi::{Errno, GuestMemory, Permissions, WasiCtx};
    ///
    /// let mut builder = WasiCtx::builder();
    /// let mut ctx = builder.preopened_dir("/usr", "/data", Permissions::ReadOnly)?.build()?;
    /// let mut bytes = [0; 16];
    /// let memory = &mut GuestMemory::new(&mut bytes[..]);
    /// // As C libraries begin, from the descriptor 3 on up to the first error.
    /// ctx.fd_prestat_get(memory, 3, 0)?;
    /// let size = memory.read_u32(4)?;
    /// ctx.fd_prestat_dir_name(memory, 3, 8, size)?;
    /// assert_eq!(memory.bytes(8, size)?, b"/data");
    /// assert_eq!(ctx.fd_prestat_get(memory, 4, 0), Err(Errno::Badf));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn fd_prestat_get(&mut self, memory: &mut GuestMemory<'_>, fd: u32, result: u32) -> Result {
        let (kind, name) = self.preopen_name(fd)?;
        let size = u32::try_from(name.len()).map_err(|_| Errno::Overflow)?;
        let mut prestat = [kind, 0, 0, 0, 0, 0, 0, 0];
        prestat[4..8].copy_from_slice(&size.to_le_bytes());
        memory.write_bytes(result, &prestat)
    }

    /// `fd_prestat_dir_name`: writes the name of a preopened directory,
    /// without a NUL.
    ///
    /// # Errors
    ///
    /// As [`WasiCtx::fd_prestat_get`], and [`Errno::Nametoolong`] if the name
    /// does not fit into `size` bytes.
    ///
    /// # Examples
    ///
    /// See [`WasiCtx::fd_prestat_get`].
    pub fn fd_prestat_dir_name(
        &mut self,
        memory: &mut GuestMemory<'_>,
        fd: u32,
        address: u32,
        size: u32,
    ) -> Result {
        let (_, name) = self.preopen_name(fd)?;
        if name.len() > size as usize {
            return Err(Errno::Nametoolong);
        }
        memory.write_bytes(address, name.as_bytes())
    }

    /// `fd_renumber`: moves a descriptor to the number of another open one,
    /// which is closed.
    ///
    /// # Errors
    ///
    /// [`Errno::Badf`] if either is not open.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_wasi::{GuestMemory, OutputKind, WasiCtx};
    ///
    /// let (output, stderr) = OutputKind::pipe();
    /// let mut ctx = WasiCtx::builder().stderr(stderr).build()?;
    /// // An iovec at 0 names two bytes at 16.
    /// let mut bytes = *b"\x10\0\0\0\x02\0\0\0........hi";
    /// let memory = &mut GuestMemory::new(&mut bytes[..]);
    /// // Standard output goes where standard error went, as after a shell's `1>&2 2>&-`.
    /// ctx.fd_renumber(memory, 2, 1)?;
    /// ctx.fd_write(memory, 1, 0, 1, 8)?;
    /// assert_eq!((output.take(), ctx.descriptors().count()), (b"hi".to_vec(), 2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn fd_renumber(&mut self, _memory: &mut GuestMemory<'_>, from: u32, to: u32) -> Result {
        self.table.renumber(from, to)
    }

    /// `fd_seek`: moves the offset and writes the new one.
    ///
    /// # Errors
    ///
    /// [`Errno::Badf`], [`Errno::Spipe`] for streams, [`Errno::Notcapable`],
    /// [`Errno::Fault`], and [`Errno::Inval`] for an unknown `whence` or an
    /// offset that would lie before 0 or beyond 2^63.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_wasi::{GuestMemory, Permissions, Rights, WasiCtx};
    ///
    /// # let host = std::env::temp_dir().join(format!("pagefork-file-{}", std::process::id()));
    /// # std::fs::create_dir_all(&host)?;
    /// let mut builder = WasiCtx::builder();
    /// let mut ctx = builder.preopened_dir(&host, "/", Permissions::ReadWrite)?.build()?;
    /// // An iovec at 0 names two bytes at 16; the name of a file is at 16, too. Results go to 8.
    /// let mut bytes = *b"\x10\0\0\0\x02\0\0\0........hi";
    /// let memory = &mut GuestMemory::new(&mut bytes[..]);
    /// let (create, rights) = (1, (Rights::FD_READ | Rights::FD_WRITE).bits());
    /// ctx.path_open(memory, 3, 0, 16, 2, create, rights, 0, 0, 8)?;
    ///
    /// ctx.fd_write(memory, 4, 0, 1, 8)?;
    /// ctx.fd_pwrite(memory, 4, 0, 1, 3, 8)?;
    /// assert_eq!(std::fs::read(host.join("hi"))?, b"hi\0hi");
    /// // From 3 before the end on.
    /// ctx.fd_seek(memory, 4, -3, 2, 8)?;
    /// ctx.fd_read(memory, 4, 0, 1, 8)?;
    /// assert_eq!(memory.bytes(16, 2)?, b"\0h");
    /// ctx.fd_tell(memory, 4, 8)?;
    /// assert_eq!(memory.read_u32(8)?, 4);
    /// // From 3 after the beginning on; the offset stays.
    /// ctx.fd_pread(memory, 4, 0, 1, 3, 8)?;
    /// assert_eq!(memory.bytes(16, 2)?, b"hi");
    /// ctx.fd_filestat_set_size(memory, 4, 2)?;
    /// ctx.fd_sync(memory, 4)?;
    /// ctx.fd_close(memory, 4)?;
    /// # std::fs::remove_dir_all(&host)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn fd_seek(
        &mut self,
        memory: &mut GuestMemory<'_>,
        fd: u32,
        delta: i64,
        whence: u32,
        result: u32,
    ) -> Result {
        memory.check(result, 8)?;
        let descriptor = self.table.get_mut(fd)?;
        let file = descriptor.file()?;
        let stays = whence == 1 && delta == 0;
        if !(stays && descriptor.require(Rights::FD_TELL).is_ok()) {
            descriptor.require(Rights::FD_SEEK)?;
        }
        let start = match whence {
            0 => 0,
            1 => descriptor.description.offset,
            // The size that fstat reports is 0 for block devices.
            2 => rustix::fs::seek(file, SeekFrom::End(0))?,
            _ => return Err(Errno::Inval),
        };
        let offset = start.checked_add_signed(delta).ok_or(Errno::Inval)?;
        check_offset(offset)?;
        descriptor.description.offset = offset;
        memory.write_words(result, [offset])
    }

    /// `fd_tell`: writes the offset.
    ///
    /// # Errors
    ///
    /// [`Errno::Badf`], [`Errno::Spipe`], [`Errno::Notcapable`],
    /// [`Errno::Fault`].
    ///
    /// # Examples
    ///
    /// See [`WasiCtx::fd_seek`].
    pub fn fd_tell(&mut self, memory: &mut GuestMemory<'_>, fd: u32, result: u32) -> Result {
        let descriptor = self.table.get(fd)?;
        descriptor.file()?;
        if descriptor.require(Rights::FD_SEEK).is_err() {
            descriptor.require(Rights::FD_TELL)?;
        }
        memory.write_words(result, [descriptor.description.offset])
    }

    /// Kind and name of a directory or socket that the guest was given.
    fn preopen_name(&self, fd: u32) -> Result<(u8, &str)> {
        const DIRECTORY: u8 = 0;
        const SOCKET: u8 = 1;
        match self.table.get(fd)?.description.origin {
            DescriptorOrigin::Preopen { index } => {
                Ok((DIRECTORY, &self.grants.preopen(index)?.guest_path))
            }
            DescriptorOrigin::Listener { .. } | DescriptorOrigin::Connection { .. } => {
                Ok((SOCKET, ""))
            }
            _ => Err(Errno::Badf),
        }
    }

    fn sync(
        &self,
        fd: u32,
        right: Rights,
        host_sync: impl Fn(rustix::fd::BorrowedFd<'_>) -> rustix::io::Result<()>,
    ) -> Result {
        let descriptor = self.table.get(fd)?;
        descriptor.require(right)?;
        match &descriptor.handle {
            Handle::Stdin | Handle::Output(_) | Handle::Socket(_) => Err(Errno::Inval),
            Handle::File(file) | Handle::Stream(file) => {
                Ok(retry_on_intr(|| host_sync(file.as_fd()))?)
            }
            Handle::Directory { dir, .. } => {
                // A handle for lookup alone (O_PATH) cannot be synchronised with the device.
                let flags = HostFlags::RDONLY | HostFlags::DIRECTORY | HostFlags::CLOEXEC;
                let readable = rustix::fs::openat(dir, c".", flags, Mode::empty())?;
                Ok(retry_on_intr(|| host_sync(readable.as_fd()))?)
            }
        }
    }
}
