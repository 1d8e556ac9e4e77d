//! Random numbers: from the kernel, so that copies of a guest share no state, or the embedder's
//! own.

use rustix::io::retry_on_intr;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::base::errno::Result;
use crate::base::guest_memory::{Buffer, GuestMemory};
use crate::state::ctx::WasiCtx;

/// Bytes that are made between two checks whether the guest must stop.
const PART_SIZE: usize = 1 << 20;

impl WasiCtx {
    /// `random_get`: fills a buffer with random bytes, which can serve as keys.
    ///
    /// # Errors
    ///
    /// [`Errno::Fault`](crate::Errno::Fault); then nothing was written.
    /// [`Errno::Intr`](crate::Errno::Intr) if the guest must stop.
    ///
    /// # Examples
    ///
    /// See [`WasiCtxBuilder::secure_random`](crate::WasiCtxBuilder::secure_random).
    pub fn random_get(&mut self, memory: &mut GuestMemory<'_>, buffer: u32, size: u32) -> Result {
        let stop = self.interrupt.and(memory.stops());
        memory.fill(Buffer { address: buffer, size }, |into| {
            let mut rest = &mut *into;
            while !rest.is_empty() {
                let part = rest.len().min(PART_SIZE);
                let filled = match &self.grants.shared.sources.random {
                    Some(own) => {
                        own(&mut rest[..part]);
                        part
                    }
                    None => {
                        retry_on_intr(|| getrandom(&mut rest[..part], GetRandomFlags::empty()))?
                    }
                };
                rest = &mut rest[filled..];
                stop.check()?;
            }
            Ok(into.len())
        })?;
        Ok(())
    }
}
