//! Functions on descriptors and on paths.

mod fd;
mod open;
mod path;
mod readdir;
mod stat;
mod transfer;

use cap_std::fs::Dir;

use crate::base::abi::Rights;
use crate::base::errno::{Errno, Result};
use crate::state::ctx::WasiCtx;
use crate::state::descriptor::{Descriptor, Handle};

impl WasiCtx {
    /// A directory that has these rights.
    fn directory(&self, fd: u32, rights: Rights) -> Result<(&Descriptor, &Dir)> {
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
    fn directory_to_change(&self, fd: u32, rights: Rights) -> Result<&Dir> {
        let (descriptor, dir) = self.directory(fd, rights)?;
        descriptor.description.require_writable(&self.grants)?;
        Ok(dir)
    }
}

/// Checks that the host, whose offsets are signed, can have this offset or size.
fn check_offset(offset: u64) -> Result {
    i64::try_from(offset).map(drop).map_err(|_| Errno::Inval)
}
