use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};

use crate::error::SystemError;

/// Machine code, mapped: a copy that was writable first and is executable now,
/// never both, or a file that never was writable. Unmapped when dropped; nothing
/// of it may run then.
#[derive(Debug)]
pub(crate) struct CodeMemory {
    /// Dangling if there is no code.
    start: NonNull<u8>,
    size: usize,
}

// SAFETY: the mapping is never written after `new`, so any thread may read and
// run it.
unsafe impl Send for CodeMemory {}
// SAFETY: as above.
unsafe impl Sync for CodeMemory {}

impl CodeMemory {
    /// Maps a copy of `text`, the first `code` bytes of it executable: all, or
    /// whole pages.
    ///
    /// # Errors
    /// If the system has no memory for it or does not let it be executed.
    pub(crate) fn new(text: &[u8], code: usize) -> Result<Self, SystemError> {
        let size = text.len();
        if size == 0 {
            return Ok(Self { start: NonNull::dangling(), size });
        }
        let failed = || SystemError::CodeMemory { size, source: std::io::Error::last_os_error() };
        // SAFETY: a fresh private mapping of `size` bytes, which nobody else
        // knows before this function returns.
        unsafe {
            let start = libc::mmap(
                ptr::null_mut(),
                size,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            if start == libc::MAP_FAILED {
                return Err(failed());
            }
            let start = NonNull::new_unchecked(start.cast::<u8>());
            // Whatever fails from here, the destructor unmaps.
            let own = Self { start, size };
            ptr::copy_nonoverlapping(text.as_ptr(), start.as_ptr(), size);
            if libc::mprotect(start.as_ptr().cast(), size, libc::PROT_READ) != 0 {
                return Err(failed());
            }
            own.make_executable(code)?;
            Ok(own)
        }
    }

    /// Maps code that lies in a file, without copying it: `size` bytes from byte
    /// `offset` on, a multiple of the page size, the first `code` bytes executable.
    ///
    /// # Errors
    /// If the system has no memory for it or does not let the file be executed.
    ///
    /// # Safety
    /// The file has the bytes, and they never change.
    pub(crate) unsafe fn map(
        file: BorrowedFd<'_>,
        offset: u64,
        size: usize,
        code: usize,
    ) -> Result<Self, SystemError> {
        if size == 0 {
            return Ok(Self { start: NonNull::dangling(), size });
        }
        let (place, flags) = (offset as libc::off_t, libc::MAP_PRIVATE);
        // SAFETY: a fresh mapping where the kernel finds room.
        let start = unsafe {
            libc::mmap(ptr::null_mut(), size, libc::PROT_READ, flags, file.as_raw_fd(), place)
        };
        if start == libc::MAP_FAILED {
            return Err(SystemError::CodeMemory { size, source: std::io::Error::last_os_error() });
        }
        // SAFETY: the kernel maps nothing at null unless it is asked to.
        let own = Self { start: unsafe { NonNull::new_unchecked(start.cast()) }, size };
        own.make_executable(code)?;
        Ok(own)
    }

    /// # Errors
    /// If the system does not let the code be executed.
    fn make_executable(&self, code: usize) -> Result<(), SystemError> {
        let size = self.size.min(code);
        let access = libc::PROT_READ | libc::PROT_EXEC;
        // SAFETY: the pages are ours, and nobody relies on their not being code.
        match unsafe { libc::mprotect(self.start.as_ptr().cast(), size, access) } {
            0 => Ok(()),
            _ => Err(SystemError::CodeMemory { size, source: std::io::Error::last_os_error() }),
        }
    }

    /// Address of the first byte.
    pub(crate) fn start(&self) -> usize {
        self.start.as_ptr().expose_provenance()
    }

    /// The code, and what lies behind it.
    pub(crate) fn text(&self) -> &[u8] {
        // SAFETY: the mapping is readable, and never written while it lives.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.size) }
    }

    /// Offset of the instruction at address `pc`, if it is in this code.
    pub(crate) fn offset_of(&self, pc: usize) -> Option<u32> {
        let offset = pc.wrapping_sub(self.start.as_ptr().addr());
        // Texts are smaller than 4 GiB: the compiler's distances have 32 bits.
        (offset < self.size).then_some(offset as u32)
    }
}

impl Drop for CodeMemory {
    fn drop(&mut self) {
        if self.size > 0 {
            // SAFETY: the mapping is ours; its users hold a reference to us.
            unsafe { libc::munmap(self.start.as_ptr().cast(), self.size) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_never_writable_and_executable() {
        // mov eax, 42; ret
        let code = CodeMemory::new(&[0xb8, 42, 0, 0, 0, 0xc3], 6).unwrap();
        let start = code.start();
        // SAFETY: the bytes above are a function of this type.
        let function: extern "C" fn() -> u32 = unsafe { std::mem::transmute(start) };
        assert_eq!(function(), 42);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let line = maps.lines().find(|line| line.starts_with(&format!("{start:x}-"))).unwrap();
        assert_eq!(line.split(' ').nth(1), Some("r-xp"));
        assert_eq!((code.offset_of(start + 5), code.offset_of(start + 6)), (Some(5), None));
    }

    #[test]
    fn no_code_is_no_mapping() {
        let code = CodeMemory::new(&[], 0).unwrap();
        assert_eq!(code.offset_of(code.start()), None);
    }
}
