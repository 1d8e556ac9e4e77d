//! Functions on descriptors and on paths.

/// The table itself: flags, rights, offsets, sizes.
mod fd;
/// Opening.
mod open;
/// Names: creating, renaming, linking and removing them.
pub(crate) mod path;
/// Listing directories.
pub(crate) mod readdir;
/// Attributes and timestamps.
mod stat;
/// Reading and writing.
mod transfer;

use cap_std::fs::Dir;

use crate::abi::{Errno, Rights};
use crate::ctx::WasiCtx;
use crate::descriptor::{Descriptor, Handle};

impl WasiCtx {
    /// A directory that has these rights.
    fn directory(&self, fd: u32, rights: Rights) -> Result<(&Descriptor, &Dir), Errno> {
        let descriptor = self.table.get(fd)?;
        match &descriptor.handle {
            Handle::Directory { dir, .. } => {
                descriptor.require(rights)?;
                Ok((descriptor, dir))
            }
            _ => Err(Errno::Notdir),
        }
    }

    /// A directory that has these rights and whose contents may be changed.
    fn directory_to_change(&self, fd: u32, rights: Rights) -> Result<&Dir, Errno> {
        let (descriptor, dir) = self.directory(fd, rights)?;
        self.config.require_writable(&descriptor.description)?;
        Ok(dir)
    }
}
