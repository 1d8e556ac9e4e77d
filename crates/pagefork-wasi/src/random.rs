//! Random numbers, always from the kernel, so there is no state to share
//! between copies of a guest.

use rustix::io::retry_on_intr;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::abi::Errno;
use crate::ctx::WasiCtx;
use crate::guest_memory::{Buffer, GuestMemory};
use crate::waiting::Watch;

/// How much is made between two looks whether the guest is to be stopped, bytes.
const PART_SIZE: usize = 1 << 20;

impl WasiCtx {
    /// `random_get`: fills a buffer with random bytes fit for keys.
    ///
    /// # Errors
    ///
    /// [`Errno::Fault`]; then nothing was written. [`Errno::Intr`] if the guest
    /// is to be stopped.
    pub fn random_get(
        &mut self,
        memory: &mut GuestMemory<'_>,
        buffer: u32,
        size: u32,
    ) -> Result<(), Errno> {
        let watch = Watch::new(memory.interruption(), self.interrupt.as_ref());
        let flags = GetRandomFlags::empty();
        memory.fill(Buffer { address: buffer, size }, |into| {
            let mut rest = &mut *into;
            while !rest.is_empty() {
                let part = rest.len().min(PART_SIZE);
                let filled = retry_on_intr(|| getrandom(&mut rest[..part], flags))?;
                rest = &mut rest[filled..];
                watch.check()?;
            }
            Ok(into.len())
        })?;
        Ok(())
    }
}
