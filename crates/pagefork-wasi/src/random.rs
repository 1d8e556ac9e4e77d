//! Random numbers, always from the kernel, so there is no state to share
//! between copies of a guest.

use rustix::rand::{GetRandomFlags, getrandom};

use crate::abi::Errno;
use crate::ctx::WasiCtx;
use crate::guest_memory::{Buffer, GuestMemory};

impl WasiCtx {
    /// `random_get`: fills a buffer with random bytes fit for keys.
    ///
    /// # Errors
    ///
    /// [`Errno::Fault`]; then nothing was written.
    pub fn random_get(
        &mut self,
        memory: &mut GuestMemory<'_>,
        buffer: u32,
        size: u32,
    ) -> Result<(), Errno> {
        memory.fill(Buffer { address: buffer, size }, |into| {
            let mut rest = &mut *into;
            while !rest.is_empty() {
                let filled =
                    rustix::io::retry_on_intr(|| getrandom(&mut *rest, GetRandomFlags::empty()))?;
                rest = &mut rest[filled..];
            }
            Ok(into.len())
        })?;
        Ok(())
    }
}
