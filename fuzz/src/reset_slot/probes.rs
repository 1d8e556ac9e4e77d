//! What images and slots hold, and which pages of slots are there, seen without their help.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use pagefork_pages::{Image, Slot};

use super::PAGE;

/// What a fresh slot has in `range`.
pub(super) fn fresh_bytes(image: &Image, range: Range<u64>) -> Vec<u8> {
    let mut bytes = vec![0; (range.end - range.start) as usize];
    for extent in image.extents() {
        let common = extent.start.max(range.start)..extent.end.min(range.end);
        if common.start < common.end {
            let at = (common.start - range.start) as usize;
            let length = (common.end - common.start) as usize;
            image.read(common.start, &mut bytes[at..at + length]).expect("images can be read");
        }
    }
    bytes
}

/// Accessible bytes of a slot, in place.
pub(super) fn bytes(slot: &Slot, range: Range<u64>) -> &[u8] {
    let from = slot.start().wrapping_add(range.start as usize);
    // SAFETY: callers ask for what is accessible, and nothing writes meanwhile.
    unsafe { std::slice::from_raw_parts(from, (range.end - range.start) as usize) }
}

/// Advice that keeps what pages hold, or is refused.
pub(super) fn advise(slot: &Slot, range: &Range<u64>, advice: i32) {
    let at = slot.start().wrapping_add(range.start as usize);
    // SAFETY: only such advice is given.
    unsafe { libc::madvise(at.cast(), (range.end - range.start) as usize, advice) };
}

/// Whether a byte can be read, found without a signal.
pub(super) fn accessible(slot: &Slot, at: u64) -> bool {
    let mut byte = 0u8;
    let from = slot.start().wrapping_add(at as usize);
    wait(slot, at, 1);
    let local = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let remote = libc::iovec { iov_base: from.cast(), iov_len: 1 };
    // SAFETY: the kernel checks the remote address; the local one is of this frame.
    unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) == 1 }
}

/// Writes by a system call of this thread.
pub(super) fn kernel_writes(slot: &Slot, at: u64, bytes: &[u8]) {
    let to = slot.start().wrapping_add(at as usize);
    wait(slot, at, bytes.len());
    let local = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let remote = libc::iovec { iov_base: to.cast(), iov_len: bytes.len() };
    // SAFETY: both are valid, and only this thread uses the slot.
    let written = unsafe { libc::process_vm_writev(libc::getpid(), &local, 1, &remote, 1, 0) };
    assert_eq!(written, bytes.len() as isize, "{}", std::io::Error::last_os_error());
}

/// Has pages get their contents that get them when they are touched: the kernel finds none there.
fn wait(slot: &Slot, at: u64, length: usize) {
    let start = slot.start().addr() + at as usize;
    slot.wait_at(start..start + length).expect("nothing is absent for good");
}

/// The pages of a range that are in memory or in swap space: all others are what
/// was mapped.
pub(super) fn populated(slot: &Slot, range: Range<u64>) -> Vec<Range<u64>> {
    let first = (slot.start().addr() as u64 + range.start) / PAGE;
    let mut entries = vec![0; ((range.end - range.start) / PAGE * 8) as usize];
    let map = File::open("/proc/self/pagemap").expect("the page map of this process");
    map.read_exact_at(&mut entries, first * 8).expect("the page map can be read");
    let mut runs: Vec<Range<u64>> = Vec::new();
    let (entries, _) = entries.as_chunks::<8>();
    for (page, entry) in range.step_by(PAGE as usize).zip(entries) {
        if u64::from_le_bytes(*entry) >> 62 != 0 {
            match runs.last_mut() {
                Some(last) if last.end == page => last.end += PAGE,
                _ => runs.push(page..page + PAGE),
            }
        }
    }
    runs
}
