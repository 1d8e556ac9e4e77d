//! Listing directories.

use std::sync::Arc;

use crate::base::abi::Rights;
use crate::base::errno::{Errno, Result};
use crate::base::guest_memory::GuestMemory;
use crate::state::ctx::WasiCtx;
use crate::state::descriptor::Handle;
use crate::state::listing::{Listing, NameList};

impl WasiCtx {
    /// `fd_readdir`: writes directory entries, as many as fit, from the one that `cookie`
    /// names (0 is the first), and their size in bytes. The last entry may be cut off. Fewer
    /// than `buffer_size` bytes are written only at the end.
    ///
    /// # Errors
    ///
    /// [`Errno::Badf`], [`Errno::Notdir`], [`Errno::Notcapable`], [`Errno::Fault`],
    /// [`Errno::Intr`] if the guest must stop, [`Errno::Nomem`] if the names take more than
    /// 64 MiB, and host errors.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_wasi::{GuestMemory, Permissions, WasiCtx};
    ///
    /// # let host = std::env::temp_dir().join(format!("pagefork-names-{}", std::process::id()));
    /// # std::fs::create_dir_all(&host)?;
    /// std::fs::write(host.join("notes.txt"), "")?;
    /// let mut builder = WasiCtx::builder();
    /// let mut ctx = builder.preopened_dir(&host, "/", Permissions::ReadOnly)?.build()?;
    /// let mut bytes = [0; 1024];
    /// let memory = &mut GuestMemory::new(&mut bytes[..]);
    /// // From the first entry on, into the bytes from 8 on.
    /// ctx.fd_readdir(memory, 3, 8, 1016, 0, 0)?;
    /// let size = memory.read_u32(0)?;
    /// assert!(size < 1016, "these are all entries");
    /// // Before each name there are 24 bytes, among them the cookie of the next entry.
    /// let entries = memory.bytes(8, size)?;
    /// assert!(entries.windows(9).any(|part| part == b"notes.txt"));
    /// # std::fs::remove_dir_all(&host)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn fd_readdir(
        &mut self,
        memory: &mut GuestMemory<'_>,
        fd: u32,
        buffer: u32,
        buffer_size: u32,
        cookie: u64,
        result: u32,
    ) -> Result {
        self.directory(fd, Rights::FD_READDIR)?;
        memory.check(result, 4)?;
        memory.check(buffer, buffer_size as usize)?;
        let (dir, listing) = self.listing(fd)?;
        if cookie == 0 {
            *listing = Listing::default();
        }
        if !listing.is_read() {
            let dir = Arc::clone(dir);
            let stop = self.interrupt.and(memory.stops());
            let names = NameList::read(&dir, stop, |size| self.table.make_room(size))?;
            self.listing(fd)?.1.set_names(names);
        }
        let listing = self.listing(fd)?.1;
        let size = listing.write(cookie, memory.bytes_mut(buffer, buffer_size)?);
        memory.write_size(result, size)
    }

    fn listing(&mut self, fd: u32) -> Result<(&Arc<cap_std::fs::Dir>, &mut Listing)> {
        match &mut self.table.get_mut(fd)?.handle {
            Handle::Directory { dir, listing } => Ok((dir, listing)),
            _ => Err(Errno::Notdir),
        }
    }
}
