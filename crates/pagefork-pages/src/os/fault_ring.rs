//! Page faults of a thread, which the kernel notes in memory.

use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use pagefork_layout::page::PAGE_SIZE;
use rustix::io::Errno;
use rustix::mm::{self, Advice, MapFlags, ProtFlags};
use rustix::time::{ClockId, clock_gettime};

use crate::os::error::Call;
use crate::os::fork::this_process;
use crate::os::sys::{CallFailure, attempt, last_error};

/// This many faults must show before they are relied on.
const FAULTS_TRIED: usize = 2000;

/// At most this many faults are listed; of more the kernel is asked what they made private. A page of
/// records has 256, which a fault of the reader must not overwrite.
const ADDRESSES_MAX: usize = 248;

/// Bytes that are written at a fault.
pub(crate) const RECORD_SIZE: u64 = 16;

/// Room for addresses of faults.
pub(crate) type Addresses = [u64; ADDRESSES_MAX];

/// Memory into which the kernel writes a record at every page fault that the thread takes
/// in its own code: a software event of perf with a period of one, in a ring that is
/// overwritten. Whether there was one, and where, is seen without a system call.
#[derive(Debug)]
pub(crate) struct FaultRing {
    /// A `perf_event_mmap_page` and a page of records.
    pages: *const u8,
    /// The process that has them: one that is forked does not.
    process: u64,
}

/// `perf_event_attr` as it was in its first version.
#[repr(C)]
struct EventAttributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_watermark: u32,
    breakpoint_type: u32,
    config1: u64,
}

const _: () = assert!(size_of::<EventAttributes>() == 64);

impl FaultRing {
    const SIZE: usize = 2 * PAGE_SIZE as usize;
    /// Offset of `data_head` in `perf_event_mmap_page`.
    const DATA_HEAD: usize = 1024;

    /// The ring of the current thread, which alone may use it. The kernel refuses it where
    /// perf is forbidden, or if too much memory is locked.
    pub(crate) fn new() -> Result<Self, CallFailure> {
        const SOFTWARE: u32 = 1;
        const PAGE_FAULTS: u64 = 2;
        const SAMPLE_ADDRESS: u64 = 1 << 3;
        const EXCLUDE_KERNEL: u64 = 1 << 5;
        const EXCLUDE_HYPERVISOR: u64 = 1 << 6;
        const WATERMARK: u64 = 1 << 14;
        let attributes = EventAttributes {
            kind: SOFTWARE,
            size: size_of::<EventAttributes>() as u32,
            config: PAGE_FAULTS,
            sample_period: 1,
            sample_type: SAMPLE_ADDRESS,
            read_format: 0,
            flags: EXCLUDE_KERNEL | EXCLUDE_HYPERVISOR | WATERMARK,
            // No thread polls it.
            wakeup_watermark: 1 << 30,
            breakpoint_type: 0,
            config1: 0,
        };
        attempt(Call::WatchFaults, 0, || {
            const CLOSE_ON_EXEC: u64 = 1 << 3;
            let (this_thread, any_processor, no_group) = (0, -1, -1);
            // SAFETY: the call reads the attributes, of the size that they say, and makes
            // a descriptor.
            let file = unsafe {
                let file = libc::syscall(
                    libc::SYS_perf_event_open,
                    &raw const attributes,
                    this_thread,
                    any_processor,
                    no_group,
                    CLOSE_ON_EXEC,
                );
                if file < 0 {
                    return Err(last_error());
                }
                OwnedFd::from_raw_fd(file as i32)
            };
            // The map keeps the event when the descriptor is closed.
            // SAFETY: maps fresh pages, for reading.
            let pages = unsafe {
                mm::mmap(ptr::null_mut(), Self::SIZE, ProtFlags::READ, MapFlags::SHARED, &file, 0)?
            };
            let ring = Self { pages: pages.cast(), process: this_process() };
            match ring.works() {
                true => Ok(ring),
                false => Err(Errno::NOSYS),
            }
        })
    }

    /// Bytes that have been written: more, if there was a fault.
    #[inline]
    pub(crate) fn written(&self) -> u64 {
        let head = self.pages.wrapping_add(Self::DATA_HEAD).cast::<u64>();
        // SAFETY: the page is mapped, and the kernel alone writes it, for this thread.
        unsafe { head.read_volatile() }
    }

    /// Copies the addresses of the faults since `before` bytes had been written, the first one
    /// first; says how many. `None` if there were more than there is room for, or the kernel has
    /// noted anything else.
    pub(crate) fn since(&self, before: u64, into: &mut Addresses) -> Option<usize> {
        /// A `perf_event_header`: of a sample, in user mode, and the size of the record.
        const SAMPLE: u64 = 9 | 2 << 32 | RECORD_SIZE << 48;

        let records = self.pages.wrapping_add(PAGE_SIZE as usize).cast::<u64>();
        let word = |at: u64| {
            // SAFETY: within the page of records, which is mapped, and which the kernel
            // writes for this thread alone.
            unsafe { records.wrapping_add((at % PAGE_SIZE) as usize / 8).read_volatile() }
        };
        let written = self.written() - before;
        let count = usize::try_from(written / RECORD_SIZE).ok()?;
        let places = into.get_mut(..count)?;
        for (at, place) in (before..).step_by(RECORD_SIZE as usize).zip(places) {
            if word(at) != SAMPLE {
                return None;
            }
            *place = word(at + 8);
        }
        // No fault of this function itself has overwritten any.
        let is_there = self.written() - before <= PAGE_SIZE;
        (written.is_multiple_of(RECORD_SIZE) && is_there).then_some(count)
    }

    /// Whether each of many faults shows: once a process, so that a kernel that samples them
    /// is noticed, and one a thread.
    fn works(&self) -> bool {
        static ALL_SHOW: OnceLock<bool> = OnceLock::new();
        *ALL_SHOW.get_or_init(|| self.shows_faults(FAULTS_TRIED)) && self.shows_faults(1)
    }

    /// Whether each of `count` faults in a row shows.
    fn shows_faults(&self, count: usize) -> bool {
        const PAGES: usize = 256;
        let pages = count.min(PAGES);
        let size = pages * PAGE_SIZE as usize;
        // SAFETY: fresh pages, each of which is discarded before it is written, and unmapped
        // again.
        unsafe {
            let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
            let Ok(start) = mm::mmap_anonymous(ptr::null_mut(), size, access, flags) else {
                return false;
            };
            // A huge page would take one fault for all. Kernels without them refuse this.
            let _ = mm::madvise(start, size, Advice::LinuxNoHugepage);
            let mut addresses = [0; ADDRESSES_MAX];
            let mut begun = thread_time();
            let all_show = (0..count).all(|i| {
                let discards = i.is_multiple_of(pages);
                if discards && i > 0 {
                    note_fresh_faults(thread_time() - begun, pages);
                    begun = thread_time();
                }
                let fresh = !discards || mm::madvise(start, size, Advice::LinuxDontNeed).is_ok();
                let before = self.written();
                let page = start.byte_add(i % pages * PAGE_SIZE as usize);
                page.cast::<u8>().write_volatile(1);
                let count = self.since(before, &mut addresses);
                let shown = count.map(|count| &addresses[..count]);
                fresh && shown.is_some_and(|shown| shown.contains(&(page.addr() as u64)))
            });
            let _ = mm::munmap(start, size);
            all_show
        }
    }
}

/// The least that a fault at a fresh page has taken in a row of them, in nanoseconds; 0: not
/// measured.
static FRESH_FAULT: AtomicU32 = AtomicU32::new(0);

fn note_fresh_faults(time: Duration, count: usize) {
    let each = u32::try_from(time.as_nanos() / count as u128).unwrap_or(u32::MAX).max(1);
    let _ = FRESH_FAULT
        .fetch_update(Relaxed, Relaxed, |least| (least == 0 || each < least).then_some(each));
}

/// What a fault at a fresh page takes on this machine, in nanoseconds, if that was measured.
pub(crate) fn fresh_fault_ns() -> Option<u32> {
    Some(FRESH_FAULT.load(Relaxed)).filter(|&time| time > 0)
}

/// Time that the current thread has had on its processors. What others have there is not of it.
pub(crate) fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

impl Drop for FaultRing {
    fn drop(&mut self) {
        if this_process() != self.process {
            return;
        }
        // SAFETY: the pages are the ring's own.
        let _ = unsafe { mm::munmap(self.pages.cast_mut().cast(), Self::SIZE) };
    }
}
