//! Swap space of the tests' own, where the system has none, and what the page map says of pages.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]

use std::ffi::CString;
use std::fs::{self, File, Permissions};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use pagefork_pages::Slot;

use super::common::*;

/// A page in swap space, and one that is write-protected, there or in memory: bits of the page map.
pub const SWAPPED: u64 = 1 << 62;
pub const PROTECTED: u64 = 1 << 57;

/// A swap file, as long as this lives.
pub struct Swap(CString);

impl Swap {
    /// That of this process, which its tests share. `None`, and a notice, where this user may not have one.
    pub fn on() -> Option<Arc<Self>> {
        static ON: Mutex<Weak<Swap>> = Mutex::new(Weak::new());
        let mut on = ON.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(swap) = on.upgrade() {
            return Some(swap);
        }
        let swap = Arc::new(Self::make()?);
        *on = Arc::downgrade(&swap);
        Some(swap)
    }

    fn make() -> Option<Self> {
        const SIZE: u64 = 64 * MIB;
        // One that goes may still be there.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("pagefork-swap-{}-{number}", std::process::id()));
        let file = File::create(&path).unwrap();
        file.set_permissions(Permissions::from_mode(0o600)).unwrap();
        // A swap file has no holes.
        let zeros = vec![0; MIB as usize];
        for at in (0..SIZE).step_by(MIB as usize) {
            file.write_all_at(&zeros, at).unwrap();
        }
        // The header of version 1, as mkswap writes it.
        file.write_all_at(&1u32.to_le_bytes(), 1024).unwrap();
        file.write_all_at(&((SIZE / PAGE - 1) as u32).to_le_bytes(), 1028).unwrap();
        file.write_all_at(b"SWAPSPACE2", PAGE - 10).unwrap();
        file.sync_all().unwrap();
        let name = CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: a system call with a path.
        if unsafe { libc::swapon(name.as_ptr(), 0) } == 0 {
            let swap = Self(name);
            if takes_pages() {
                return Some(swap);
            }
            eprintln!("NOT TESTED: pages in swap space (none of this process go there)");
            return None;
        }
        let error = std::io::Error::last_os_error();
        eprintln!("NOT TESTED: pages in swap space (swapon: {error})");
        fs::remove_file(path).unwrap();
        None
    }
}

/// Whether pages of this process go to swap space: its group may have none (`memory.swap.max`).
fn takes_pages() -> bool {
    const COUNT: u64 = 64;
    let (size, both) = ((COUNT * PAGE) as usize, libc::PROT_READ | libc::PROT_WRITE);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a map of its own, which nobody else uses.
    unsafe {
        let place = libc::mmap(std::ptr::null_mut(), size, both, flags, -1, 0);
        assert_ne!(place, libc::MAP_FAILED);
        place.cast::<u8>().write_bytes(1, size);
        libc::madvise(place, size, libc::MADV_PAGEOUT);
        let swapped = entries(place.addr() as u64, COUNT).filter(|entry| entry & SWAPPED != 0);
        let count = swapped.count() as u64;
        libc::munmap(place, size);
        count > COUNT / 2
    }
}

/// What the page map says of so many pages.
fn entries(address: u64, count: u64) -> impl Iterator<Item = u64> {
    let map = File::open("/proc/self/pagemap").unwrap();
    let mut bytes = vec![0; (count * 8) as usize];
    map.read_exact_at(&mut bytes, address / PAGE * 8).unwrap();
    let entries: Vec<u64> =
        bytes.as_chunks().0.iter().map(|entry| u64::from_le_bytes(*entry)).collect();
    entries.into_iter()
}

impl Drop for Swap {
    fn drop(&mut self) {
        // SAFETY: system calls with a path.
        unsafe {
            libc::swapoff(self.0.as_ptr());
            libc::unlink(self.0.as_ptr());
        }
    }
}

/// Has the kernel put pages at slot offsets into swap space, where there is some.
pub fn page_out(slot: &Slot, part: &Range<u64>) {
    let place = slot.start().wrapping_add(part.start as usize);
    // SAFETY: this keeps the contents of pages.
    unsafe {
        libc::madvise(place.cast(), (part.end - part.start) as usize, libc::MADV_PAGEOUT);
    }
}

/// How many pages at slot offsets have all these bits in the page map.
pub fn pages_with(slot: &Slot, part: &Range<u64>, bits: u64) -> usize {
    let start = slot.start().addr() as u64 + part.start;
    entries(start, (part.end - part.start) / PAGE).filter(|entry| entry & bits == bits).count()
}
