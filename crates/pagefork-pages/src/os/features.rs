//! What this kernel can do, tried on real pages.

use std::os::fd::AsFd;
use std::ptr;
use std::sync::{Mutex, OnceLock};

use pagefork_layout::page::PAGE_SIZE;

use crate::os::error::{Feature, PagesError};
use crate::os::lock::lock;
use crate::os::memfd;
use crate::os::pagemap::{Finder, Method};
use crate::os::procmaps::{self, refuses_huge_pages};
use crate::os::reservation::{PageKind, Reservation};
use crate::os::sys;

/// What the kernel, or what stands in for it, can do: found by trying it on real
/// pages and looking at their contents, because some emulators report success
/// and do nothing.
///
/// # Examples
///
/// ```
/// let features = pagefork_pages::HostFeatures::get()?;
/// println!("PAGEMAP_SCAN finds private pages: {}", features.scan);
/// # Ok::<(), pagefork_pages::PagesError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostFeatures {
    /// `MADV_DONTNEED` brings image bytes and zeros back. Without it a slot can
    /// be used but not reset.
    pub discard: bool,
    /// Images can be sealed against execution (kernel 6.3).
    pub noexec_seal: bool,
    /// PAGEMAP_SCAN finds private pages (kernel 6.7).
    pub scan: bool,
    /// `/proc/self/pagemap` can be read and tells private pages from others.
    pub pagemap: bool,
    /// Huge pages can be kept out of a range, or there are none.
    pub small_pages: bool,
    /// Maps that are made for stacks have no huge pages (kernel 6.7).
    pub small_maps: bool,
    /// The process lets the kernel merge pages that are equal, also with the shared page
    /// of zeros (`PR_SET_MEMORY_MERGE`, kernel 6.4, which processes inherit).
    pub merges: bool,
}

impl HostFeatures {
    /// What this host can do; tried once a process.
    ///
    /// # Errors
    /// As [`HostFeatures::probe`].
    ///
    /// # Examples
    ///
    /// See [`HostFeatures`].
    pub fn get() -> Result<Self, PagesError> {
        // Only a success is kept: a failure may come from a limit that is lifted
        // later.
        static FEATURES: Tried<HostFeatures> = Tried::new();
        FEATURES.get(Self::probe)
    }

    /// How private pages are found; `None` if nothing tells. With `zeros` the shared page of zeros
    /// has to count as private.
    pub(crate) fn search_method(&self, zeros: bool) -> Option<Method> {
        match self {
            Self { scan: true, .. } => Some(Method::Scan { zeros: zeros || self.merges }),
            Self { pagemap: true, .. } => Some(Method::Read),
            _ => None,
        }
    }

    /// Tries everything anew.
    ///
    /// # Errors
    /// [`PagesError::Unsupported`] names a feature that nothing works without;
    /// other errors if a limit is in the way.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_pages::HostFeatures;
    ///
    /// // What was found once is what a new try finds, as long as the kernel is the same.
    /// assert_eq!(HostFeatures::get()?, HostFeatures::probe()?);
    /// # Ok::<(), pagefork_pages::PagesError>(())
    /// ```
    pub fn probe() -> Result<Self, PagesError> {
        let size = rustix::param::page_size();
        if size as u64 != PAGE_SIZE {
            return Err(PagesError::Unsupported {
                feature: Feature::PageSize,
                detail: "the pages of this kernel have another size",
            });
        }
        const IMAGE_BYTE: u8 = 0x5a;
        let (file, noexec_seal) = memfd::create("probe")?;
        sys::resize_image(file.as_fd(), PAGE_SIZE)?;
        sys::write_image(file.as_fd(), &[IMAGE_BYTE; PAGE_SIZE as usize], 0)?;
        memfd::seal(&file)?;
        if sys::write_image(file.as_fd(), &[0], 0).is_ok() {
            return Err(PagesError::Unsupported {
                feature: Feature::Seals,
                detail: "a sealed memfd could still be written",
            });
        }

        let mut pages = Reservation::new(2 * PAGE_SIZE, PAGE_SIZE)?;
        pages.commit(PAGE_SIZE..2 * PAGE_SIZE)?;
        pages.map_private(0..PAGE_SIZE, file.as_fd(), 0)?;
        let of_image = ptr::with_exposed_provenance_mut::<u8>(pages.start());
        let anonymous = of_image.wrapping_add(size);
        for page in [of_image, anonymous] {
            // SAFETY: both pages were made writable above and are ours alone.
            unsafe { page.write_volatile(0xff) };
        }
        pages.discard(0..2 * PAGE_SIZE)?;
        // SAFETY: the pages are still mapped, and readable as before.
        let found = unsafe { (of_image.read_volatile(), anonymous.read_volatile()) };
        let discard = found == (IMAGE_BYTE, 0);
        let (small_pages, small_maps) = refused_huge_pages();
        Ok(Self {
            discard,
            noexec_seal,
            scan: finds_private_pages(Method::Scan { zeros: false }).unwrap_or(false),
            pagemap: finds_private_pages(Method::Read).unwrap_or(false),
            small_pages,
            small_maps,
            merges: sys::merges_pages(),
        })
    }
}

/// The outcome of something that is tried until it has succeeded, by one thread at a time.
pub(crate) struct Tried<T> {
    outcome: OnceLock<T>,
    trying: Mutex<()>,
}

impl<T: Copy> Tried<T> {
    pub(crate) const fn new() -> Self {
        Self { outcome: OnceLock::new(), trying: Mutex::new(()) }
    }

    pub(crate) fn get<E>(&self, attempt: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        if let Some(&outcome) = self.outcome.get() {
            return Ok(outcome);
        }
        // Other threads wait: trying the same at the same time takes each of them longer.
        let _trying = lock(&self.trying);
        if let Some(&outcome) = self.outcome.get() {
            return Ok(outcome);
        }
        let outcome = attempt()?;
        Ok(*self.outcome.get_or_init(|| outcome))
    }
}

/// Whether huge pages can be kept out of a range by advice, or there are none; and whether maps that are
/// made for stacks have none.
fn refused_huge_pages() -> (bool, bool) {
    let advise = || {
        let mut page = Reservation::new(PAGE_SIZE, PAGE_SIZE).ok()?;
        page.commit(0..PAGE_SIZE).ok()?;
        let advised = page.refuse_huge_pages(0..PAGE_SIZE).ok()?;
        Some((page, advised))
    };
    let advised = advise();
    let stack = Reservation::of(PageKind::Small, PAGE_SIZE, PAGE_SIZE).ok();
    // Both are there when the kernel is asked, which takes longer than all else that is tried.
    let maps = procmaps::counted();
    let refuses =
        |map: &Reservation| maps.as_deref().and_then(|maps| refuses_huge_pages(maps, map.start()));
    let by_advice =
        advised.is_some_and(|(page, advised)| !advised || refuses(&page).unwrap_or(true));
    (by_advice, stack.is_some_and(|map| refuses(&map) == Some(true)))
}

/// Whether private pages are found, of an image and others, and no page of the
/// image is taken for one.
fn finds_private_pages(method: Method) -> Result<bool, PagesError> {
    let (file, _) = memfd::create("probe")?;
    sys::resize_image(file.as_fd(), 3 * PAGE_SIZE)?;
    sys::write_image(file.as_fd(), &[1; 3 * PAGE_SIZE as usize], 0)?;
    let mut pages = Reservation::new(6 * PAGE_SIZE, PAGE_SIZE)?;
    pages.commit(0..6 * PAGE_SIZE)?;
    pages.map_private(0..3 * PAGE_SIZE, file.as_fd(), 0)?;
    let place = |page: usize| {
        ptr::with_exposed_provenance_mut::<u8>(pages.start() + page * PAGE_SIZE as usize)
    };
    // Of both kinds, the first page is read, the second written, the third not
    // touched.
    for page in [0, 3] {
        // SAFETY: all pages were made accessible above and are ours alone.
        unsafe {
            place(page).read_volatile();
            place(page + 1).write_volatile(2);
        }
    }
    let start = pages.start() as u64;
    let mut regions = Vec::new();
    Finder::new(method)?.find(start..start + 6 * PAGE_SIZE, &mut regions)?;
    let found = |page: u64| {
        let address = start + page * PAGE_SIZE;
        regions.iter().any(|region| (region.start..region.end).contains(&address))
    };
    let zeros = method == Method::Read || !found(3);
    Ok(found(1) && found(4) && zeros && ![0, 2, 5].into_iter().any(found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_what_is_needed() {
        let features = HostFeatures::get().unwrap();
        assert!(features.discard);
        assert!(features.pagemap && features.small_pages);
    }

    #[test]
    fn what_many_threads_ask_for_is_tried_once_and_again_after_a_failure() {
        use std::sync::Barrier;
        use std::sync::atomic::{AtomicUsize, Ordering};
        const THREADS: usize = 100;
        const FAILURES: usize = 3;
        let (tried, attempts) = (Tried::new(), AtomicUsize::new(0));
        let barrier = Barrier::new(THREADS);
        let attempt = || {
            std::thread::yield_now();
            match attempts.fetch_add(1, Ordering::Relaxed) {
                count @ FAILURES.. => Ok(count),
                count => Err(count),
            }
        };
        let failed = std::thread::scope(|scope| {
            let ask = || {
                barrier.wait();
                tried.get(attempt).is_err()
            };
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(ask)).collect();
            threads.into_iter().map(|thread| usize::from(thread.join().unwrap())).sum::<usize>()
        });
        assert_eq!((failed, attempts.into_inner()), (FAILURES, FAILURES + 1));
        assert_eq!(tried.get(|| Err("tried again")), Ok(FAILURES));
    }

    /// Nothing is merged while this test runs: that takes a thread of the kernel's its time,
    /// if it is switched on at all.
    #[test]
    fn that_the_process_merges_pages_is_seen() {
        const PR_SET_MEMORY_MERGE: libc::c_int = 67;
        let set = |on: libc::c_ulong| {
            const NONE: libc::c_ulong = 0;
            // SAFETY: the call changes no contents of pages.
            unsafe { libc::prctl(PR_SET_MEMORY_MERGE, on, NONE, NONE, NONE) == 0 }
        };
        assert!(!sys::merges_pages());
        if !set(1) {
            eprintln!("NOT TESTED: this kernel does not merge pages, or not for this user");
            return;
        }
        let merges = sys::merges_pages();
        assert!(set(0) && merges && !sys::merges_pages());
    }

    #[cfg(debug_assertions)]
    #[test]
    fn what_does_not_find_private_pages_is_not_used() {
        use crate::Call;
        let features = crate::os::inject::pretend(Call::Scan, HostFeatures::probe).unwrap();
        assert!(!features.scan && features.pagemap);
        // In a chroot without /proc, or where a filter forbids it.
        let (features, calls) = crate::os::inject::record(|| HostFeatures::probe().unwrap());
        for (call, has) in [(Call::Scan, false), (Call::ReadPagemap, features.scan)] {
            let nth = calls.iter().position(|&made| made == call);
            if let Some(nth) = nth {
                let outcome =
                    crate::os::inject::fail_nth(nth as u64, libc::ENOTTY, HostFeatures::probe);
                let found = outcome.value.unwrap();
                assert_eq!(found.scan, has);
                assert_eq!(found.pagemap, call != Call::ReadPagemap);
            }
        }
    }

    #[cfg(debug_assertions)]
    #[test]
    fn a_discard_that_reports_success_and_does_nothing_is_noticed() {
        let features =
            crate::os::inject::pretend(crate::Call::Discard, HostFeatures::probe).unwrap();
        assert!(!features.discard);
    }

    #[cfg(debug_assertions)]
    #[test]
    fn seals_that_do_not_hold_are_noticed() {
        let error =
            crate::os::inject::pretend(crate::Call::SealImage, HostFeatures::probe).unwrap_err();
        assert!(matches!(error, PagesError::Unsupported { feature: Feature::Seals, .. }));
    }

    #[cfg(debug_assertions)]
    #[test]
    fn a_blocked_memfd_is_named_and_an_unknown_flag_is_left_out() {
        use crate::os::inject::fail_nth;
        let outcome = fail_nth(0, libc::ENOSYS, HostFeatures::probe);
        assert!(outcome.value.unwrap_err().to_string().contains("memfd_create"));
        let outcome = fail_nth(0, libc::EINVAL, HostFeatures::probe);
        assert_eq!(outcome.failed, Some(crate::Call::CreateImage));
        assert!(!outcome.value.unwrap().noexec_seal);
    }
}
