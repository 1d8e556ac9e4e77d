//! Files that memories grow in.
//!
//! ```text
//!  | what a memory has at first       | grown       | reserved                    |
//!  |--image, private; anonymous pages-|------one shared map of a memfd------------|
//!                                     0        length                    maximum - initial
//! ```
//!
//! The length of the file is how far the memory has grown: a touch beyond is a SIGBUS. Growing and
//! shrinking are one call each that changes no map. No page in it is private, so resets that look
//! for private pages find none; emptying the file takes all of them.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use pagefork_layout::page::{PAGE_SIZE, round_down};
use rustix::process::{Resource, getrlimit};

use crate::os::error::PagesError;
use crate::os::features::Tried;
use crate::os::fork::this_process;
use crate::os::reservation::Reservation;
use crate::os::sys::{self, CallFailure};
use crate::os::{absent_pages, memfd};
use crate::pages::growth::GrowthReason;

/// The share of the descriptors that a process may have which these files may take, inverted.
const DESCRIPTORS_SHARE: u64 = 2;

/// Files of all slots of this process.
static OPEN: AtomicU64 = AtomicU64::new(0);

/// The file that one memory grows in.
#[derive(Debug)]
pub(crate) struct GrowthFile {
    file: OwnedFd,
    /// Bytes that it has.
    length: u64,
    /// The process whose memory it is: those that are forked share what is in it.
    process: u64,
    _open: GrowthDescriptor,
}

impl GrowthFile {
    /// An empty one, for a memory that may grow by `longest` bytes.
    ///
    /// # Errors
    /// Why the memory has to grow otherwise.
    pub(crate) fn new(longest: u64) -> Result<Self, GrowthReason> {
        if !grows_in_files() {
            return Err(GrowthReason::NoFiles);
        }
        // Going beyond would also raise a signal, which ends processes.
        if getrlimit(Resource::Fsize).current.is_some_and(|limit| limit < longest) {
            return Err(GrowthReason::FileSize);
        }
        let open = GrowthDescriptor::one_more().ok_or(GrowthReason::Descriptors)?;
        let (file, _) = memfd::create("growth").map_err(|error| match error {
            PagesError::TooManyDescriptors { .. } | PagesError::TooManyFiles => {
                GrowthReason::Descriptors
            }
            _ => GrowthReason::NoFiles,
        })?;
        Ok(Self { file, length: 0, process: this_process(), _open: open })
    }

    /// Makes it as long. What is new reads as zero, and what is beyond is gone.
    ///
    /// # Errors
    /// The limit that was met. Nothing has changed then.
    pub(crate) fn set_length(&mut self, length: u64) -> Result<(), CallFailure> {
        if length != self.length {
            sys::set_growth(self.file.as_fd(), length)?;
            self.length = length;
        }
        Ok(())
    }

    /// Whether it is of this process, and not of one that this was forked from.
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.process == this_process()
    }

    /// The parts of it that something was written to, or read from, in whole pages: ascending, apart.
    ///
    /// # Errors
    /// If the kernel does not tell.
    pub(crate) fn touched(&self) -> Result<Vec<Range<u64>>, CallFailure> {
        let mut parts = Vec::new();
        let mut at = 0;
        while let Some(part) = sys::find_data(self.file.as_fd(), at..self.length)? {
            at = part.end;
            parts.push(round_down(part.start)..part.end.next_multiple_of(PAGE_SIZE));
        }
        Ok(parts)
    }
}

impl AsFd for GrowthFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// One of the descriptors that growth may take.
#[derive(Debug)]
struct GrowthDescriptor;

impl GrowthDescriptor {
    fn one_more() -> Option<Self> {
        let max = getrlimit(Resource::Nofile).current.map(|limit| limit / DESCRIPTORS_SHARE);
        let one_more = |count: u64| max.is_none_or(|max| count < max).then_some(count + 1);
        OPEN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        Some(Self)
    }
}

impl Drop for GrowthDescriptor {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether memories can grow in files: [`GrowthKind::Ftruncate`](crate::GrowthKind::Ftruncate). It is
/// tried once a process.
///
/// # Examples
///
/// ```
/// println!("memories can grow in files: {}", pagefork_pages::grows_in_files());
/// ```
pub fn grows_in_files() -> bool {
    static GROWS: Tried<bool> = Tried::new();
    // What a limit was in the way of can work later.
    GROWS.get(|| if probe().unwrap_or(false) { Ok(true) } else { Err(()) }).is_ok()
}

/// Tries it: nothing beyond the end can be read, growth shows zeros, and so does what was taken out,
/// or was there before the file was emptied.
fn probe() -> Result<bool, PagesError> {
    const BYTE: u8 = 0x5a;
    const COUNT: u64 = 3;
    let (file, _) = memfd::create("probe")?;
    let file = file.as_fd();
    let mut pages = Reservation::new(COUNT * PAGE_SIZE, PAGE_SIZE)?;
    pages.map_shared(0..COUNT * PAGE_SIZE, file)?;
    pages.refuse_huge_pages(0..COUNT * PAGE_SIZE)?;
    let start = pages.start();
    let place =
        |page: u64| ptr::with_exposed_provenance_mut::<u8>(start + (page * PAGE_SIZE) as usize);
    // The kernel reads it, which is an error where code would get a signal.
    let ends_at = |count: u64| {
        let below = count == 0 || !absent_pages::is_refused(place(count - 1).addr())?;
        Ok::<_, PagesError>(below && absent_pages::is_refused(place(count).addr())?)
    };
    let mut works = ends_at(0)?;
    for _ in 0..2 {
        sys::set_growth(file, 2 * PAGE_SIZE)?;
        if !works || !ends_at(2)? {
            return Ok(false);
        }
        // SAFETY: `pages` owns the pages, and the kernel was asked for both.
        unsafe {
            works = (place(0).read_volatile(), place(1).read_volatile()) == (0, 0);
            place(0).write_volatile(BYTE);
            place(1).write_volatile(BYTE);
        }
        pages.punch(0..PAGE_SIZE)?;
        // SAFETY: `pages` owns the pages, and the file is as long as both.
        works &= unsafe { (place(0).read_volatile(), place(1).read_volatile()) } == (0, BYTE);
        sys::set_growth(file, 0)?;
        works &= ends_at(0)?;
    }
    Ok(works)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_shows_what_was_touched_and_is_zero_again_once_it_was_emptied() {
        let mut file = GrowthFile::new(1 << 20).unwrap();
        let mut pages = Reservation::new(1 << 20, PAGE_SIZE).unwrap();
        pages.map_shared(0..1 << 20, file.as_fd()).unwrap();
        for _ in 0..2 {
            assert!(file.touched().unwrap().is_empty());
            file.set_length(9 * PAGE_SIZE).unwrap();
            assert!(file.touched().unwrap().is_empty());
            for page in [2, 3, 8] {
                let place = pages.start() + (page * PAGE_SIZE) as usize;
                let place: *mut u8 = ptr::with_exposed_provenance_mut(place);
                // SAFETY: the file is that long, and nothing else uses it.
                unsafe {
                    assert_eq!(place.read_volatile(), 0);
                    place.write_volatile(1);
                }
            }
            let pages = |first: u64, last: u64| first * PAGE_SIZE..last * PAGE_SIZE;
            assert_eq!(file.touched().unwrap(), [pages(2, 4), pages(8, 9)]);
            file.set_length(0).unwrap();
        }
    }

    #[cfg(debug_assertions)]
    #[test]
    fn what_does_not_bound_memories_is_not_used() {
        use crate::os::error::Call;
        use crate::os::inject::{fail_all, pretend};
        assert_eq!(probe(), Ok(true));
        let fails = |outcome: Result<bool, PagesError>| assert!(!matches!(outcome, Ok(true)));
        fails(fail_all(Call::CreateImage, libc::EPERM, probe));
        fails(fail_all(Call::MapGrowth, libc::EPERM, probe));
        fails(fail_all(Call::GrowFile, libc::EPERM, probe));
        fails(fail_all(Call::Punch, libc::EOPNOTSUPP, probe));
        // Calls that report success and do nothing.
        fails(pretend(Call::GrowFile, probe));
        fails(pretend(Call::Punch, probe));
        assert!(grows_in_files());
    }
}
