//! Functions on names: create, read, rename, link and remove them.
//!
//! Each function finds the directory that holds the name. cap-std resolves the path to that
//! directory, so that it cannot lie outside. Then the function makes one system call with the
//! bare name, which the kernel does not follow if it is a symbolic link. With a trailing slash
//! it would, so the slash is removed, and the rules of POSIX for it are checked here.

use rustix::fs::{AtFlags, Mode};

use crate::base::abi::{self, LookupFlags, Rights};
use crate::base::errno::{Errno, Result};
use crate::base::guest_memory::GuestMemory;
use crate::state::ctx::WasiCtx;
use crate::state::path::{LastComponent, locate};

impl WasiCtx {
    /// `path_create_directory`: makes a directory.
    ///
    /// # Errors
    ///
    /// [`Errno::Badf`], [`Errno::Notdir`], [`Errno::Notcapable`] if a right is
    /// lacking, [`Errno::Perm`] if the path leads out or the directory is read-only,
    /// [`Errno::Fault`], and host errors. The other functions on paths fail likewise.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_wasi::{GuestMemory, Permissions, WasiCtx};
    ///
    /// # let host = std::env::temp_dir().join(format!("pagefork-paths-{}", std::process::id()));
    /// # std::fs::create_dir_all(&host)?;
    /// let mut builder = WasiCtx::builder();
    /// let mut ctx = builder.preopened_dir(&host, "/", Permissions::ReadWrite)?.build()?;
    /// // The directory is the descriptor 3. The names `a` and `b` lie at 0 and 1.
    /// let mut bytes = *b"ab......";
    /// let memory = &mut GuestMemory::new(&mut bytes[..]);
    /// ctx.path_create_directory(memory, 3, 0, 1)?;
    /// ctx.path_rename(memory, 3, 0, 1, 3, 1, 1)?;
    /// // A link `a` to `b`, whose target is read to 2, and its size to 4.
    /// ctx.path_symlink(memory, 1, 1, 3, 0, 1)?;
    /// ctx.path_readlink(memory, 3, 0, 1, 2, 1, 4)?;
    /// assert_eq!((memory.bytes(2, 1)?, memory.read_u32(4)?), (&b"b"[..], 1));
    /// ctx.path_unlink_file(memory, 3, 0, 1)?;
    /// ctx.path_remove_directory(memory, 3, 1, 1)?;
    /// assert_eq!(std::fs::read_dir(&host)?.count(), 0);
    /// # std::fs::remove_dir(&host)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn path_create_directory(
        &mut self,
        memory: &mut GuestMemory<'_>,
        fd: u32,
        path: u32,
        path_size: u32,
    ) -> Result {
        let last = self.locate(memory, fd, (path, path_size), Rights::PATH_CREATE_DIRECTORY)?;
        Ok(rustix::fs::mkdirat(last.dir(), &last.name, Mode::from_raw_mode(0o777))?)
    }

    /// `path_remove_directory`: removes an empty directory.
    ///
    /// # Errors
    ///
    /// As [`WasiCtx::path_create_directory`].
    ///
    /// # Examples
    ///
    /// See [`WasiCtx::path_create_directory`].
    pub fn path_remove_directory(
        &mut self,
        memory: &mut GuestMemory<'_>,
        fd: u32,
        path: u32,
        path_size: u32,
    ) -> Result {
        let last = self.locate(memory, fd, (path, path_size), Rights::PATH_REMOVE_DIRECTORY)?;
        Ok(rustix::fs::unlinkat(last.dir(), &last.name, AtFlags::REMOVEDIR)?)
    }

    /// `path_unlink_file`: removes a name that does not name a directory.
    ///
    /// # Errors
    ///
    /// As [`WasiCtx::path_create_directory`].
    ///
    /// # Examples
    ///
    /// See [`WasiCtx::path_create_directory`].
    pub fn path_unlink_file(
        &mut self,
        memory: &mut GuestMemory<'_>,
        fd: u32,
        path: u32,
        path_size: u32,
    ) -> Result {
        let last = self.locate(memory, fd, (path, path_size), Rights::PATH_UNLINK_FILE)?;
        if last.trailing_slash {
            last.require_directory()?;
        }
        Ok(rustix::fs::unlinkat(last.dir(), &last.name, AtFlags::empty())?)
    }

    /// `path_rename`: gives a file another name, in the same directory or another.
    ///
    /// # Errors
    ///
    /// As [`WasiCtx::path_create_directory`], and [`Errno::Xdev`] across file
    /// systems.
    ///
    /// # Examples
    ///
    /// See [`WasiCtx::path_create_directory`].
    pub fn path_rename(
        &mut self,
        memory: &mut GuestMemory<'_>,
        old_fd: u32,
        old_path: u32,
        old_path_size: u32,
        new_fd: u32,
        new_path: u32,
        new_path_size: u32,
    ) -> Result {
        let (old_path, new_path) = ((old_path, old_path_size), (new_path, new_path_size));
        let old = self.locate(memory, old_fd, old_path, Rights::PATH_RENAME_SOURCE)?;
        let new = self.locate(memory, new_fd, new_path, Rights::PATH_RENAME_TARGET)?;
        if old.trailing_slash || new.trailing_slash {
            old.require_directory()?;
        }
        Ok(rustix::fs::renameat(old.dir(), &old.name, new.dir(), &new.name)?)
    }

    /// `path_link`: gives a file a second name.
    ///
    /// # Errors
    ///
    /// As [`WasiCtx::path_rename`].
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_wasi::{GuestMemory, Permissions, WasiCtx};
    ///
    /// # let host = std::env::temp_dir().join(format!("pagefork-links-{}", std::process::id()));
    /// # std::fs::create_dir_all(&host)?;
    /// std::fs::write(host.join("a"), "contents")?;
    /// let mut builder = WasiCtx::builder();
    /// let mut ctx = builder.preopened_dir(&host, "/", Permissions::ReadWrite)?.build()?;
    /// // The directory is the descriptor 3. The names `a` and `b` lie at 0 and 1.
    /// let mut bytes = *b"ab";
    /// ctx.path_link(&mut GuestMemory::new(&mut bytes[..]), 3, 0, 0, 1, 3, 1, 1)?;
    /// assert_eq!(std::fs::read(host.join("b"))?, b"contents");
    /// # std::fs::remove_dir_all(&host)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn path_link(
        &mut self,
        memory: &mut GuestMemory<'_>,
        old_fd: u32,
        old_flags: u32,
        old_path: u32,
        old_path_size: u32,
        new_fd: u32,
        new_path: u32,
        new_path_size: u32,
    ) -> Result {
        let flags = abi::flags::<LookupFlags>(old_flags)?;
        let mut old_path = memory.path(old_path, old_path_size)?;
        let old_dir = self.directory_to_change(old_fd, Rights::PATH_LINK_SOURCE)?;
        if flags.contains(LookupFlags::SYMLINK_FOLLOW) {
            // The kernel would follow links out of the directory.
            old_path = old_dir.canonicalize(&old_path)?;
        }
        let old = locate(old_dir, &old_path)?;
        let new_path = (new_path, new_path_size);
        let new = self.locate(memory, new_fd, new_path, Rights::PATH_LINK_TARGET)?;
        if old.trailing_slash {
            old.require_directory()?;
        }
        new.require_no_slash()?;
        Ok(rustix::fs::linkat(old.dir(), &old.name, new.dir(), &new.name, AtFlags::empty())?)
    }

    /// `path_symlink`: makes a symbolic link. Its target need not exist, but may not be
    /// absolute.
    ///
    /// # Errors
    ///
    /// As [`WasiCtx::path_create_directory`].
    ///
    /// # Examples
    ///
    /// See [`WasiCtx::path_create_directory`].
    pub fn path_symlink(
        &mut self,
        memory: &mut GuestMemory<'_>,
        target: u32,
        target_size: u32,
        fd: u32,
        path: u32,
        path_size: u32,
    ) -> Result {
        let target = memory.path(target, target_size)?;
        let last = self.locate(memory, fd, (path, path_size), Rights::PATH_SYMLINK)?;
        if target.has_root() {
            return Err(Errno::Perm);
        }
        last.require_no_slash()?;
        Ok(rustix::fs::symlinkat(&target, last.dir(), &last.name)?)
    }

    /// `path_readlink`: writes the target of a symbolic link, cut off at `buffer_size`, and its
    /// size in bytes.
    ///
    /// # Errors
    ///
    /// As [`WasiCtx::path_create_directory`]; [`Errno::Inval`] if it is not a link, and
    /// [`Errno::Perm`] if its target is absolute, because that would reveal paths of the host.
    ///
    /// # Examples
    ///
    /// See [`WasiCtx::path_create_directory`].
    pub fn path_readlink(
        &mut self,
        memory: &mut GuestMemory<'_>,
        fd: u32,
        path: u32,
        path_size: u32,
        buffer: u32,
        buffer_size: u32,
        result: u32,
    ) -> Result {
        memory.check(result, 4)?;
        memory.check(buffer, buffer_size as usize)?;
        let path = memory.path(path, path_size)?;
        let (_, dir) = self.directory(fd, Rights::PATH_READLINK)?;
        let last = locate(dir, &path)?;
        if last.trailing_slash {
            // The slash follows the link to a file that is not a link.
            let behind = dir.metadata(&path)?;
            return Err(if behind.is_dir() { Errno::Inval } else { Errno::Notdir });
        }
        let target = rustix::fs::readlinkat(last.dir(), &last.name, Vec::new())?;
        let target = target.to_bytes();
        if target.first() == Some(&b'/') {
            return Err(Errno::Perm);
        }
        let size = target.len().min(buffer_size as usize);
        memory.write_bytes(buffer, &target[..size])?;
        memory.write_size(result, size)
    }

    /// Resolves a path in memory (address and size) beneath a directory that has this right
    /// and whose contents may be changed.
    fn locate(
        &self,
        memory: &GuestMemory<'_>,
        fd: u32,
        (path, path_size): (u32, u32),
        right: Rights,
    ) -> Result<LastComponent<'_>> {
        let path = memory.path(path, path_size)?;
        locate(self.directory_to_change(fd, right)?, &path)
    }
}
