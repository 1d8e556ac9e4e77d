//! Images of which pages are absent: who touches one waits, nobody reads zeros in its place, and
//! nothing that happens to a slot loses that.

#![allow(clippy::single_range_in_vec_init, reason = "lists of one range are meant")]

mod common;
#[path = "incomplete_images/given_up.rs"]
mod given_up;
#[path = "incomplete_images/kept_absent.rs"]
mod kept_absent;
#[path = "incomplete_images/maps.rs"]
mod maps;
#[path = "incomplete_images/snapshots.rs"]
mod snapshots;

use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};
use std::{ptr, thread};

use common::*;
use pagefork_layout::slot::SlotLayout;
use pagefork_pages::*;

/// Bytes of the memory that the image has.
const SIZE: u64 = MIB;
const GROUPS: u64 = SIZE / PAGE_GROUP;

/// Long enough for whatever comes.
const PATIENCE: Duration = Duration::from_secs(60);

/// An image of which the host has the pages below the base, and nobody those of the memory yet.
struct Arriving {
    layout: SlotLayout,
    pages: Arc<IncompletePages>,
    image: Arc<Image>,
    /// What comes.
    memory: Vec<u8>,
}

impl Arriving {
    fn new() -> Self {
        Self::with_patience(PATIENCE)
    }

    fn with_patience(patience: Duration) -> Self {
        let layout = layout();
        let pages = IncompletePages::new("arriving", SIZE, patience).unwrap();
        let held = pattern(9, layout.base - layout.image_start);
        let span = FileSpan { slot: layout.base..layout.base + SIZE, file_offset: 0 };
        let extents = vec![layout.image_start..layout.base + SIZE];
        let runs = [(layout.image_start, &held[..])];
        let image = Image::from_incomplete(&pages, "arriving", extents, &[span], runs).unwrap();
        Self { layout, pages, image, memory: pattern(5, SIZE) }
    }

    fn spawn(&self, strategies: &StrategyConfig) -> Slot {
        Slot::with_strategies(&self.layout, &self.image, &[self.size()], &check(strategies))
            .unwrap()
    }

    /// There is more room than the image has contents for.
    fn size(&self) -> MemorySize {
        MemorySize { initial: SIZE + WASM_PAGE, maximum: 4 * MIB }
    }

    fn bytes(&self, group: u64) -> &[u8] {
        let start = group * PAGE_GROUP;
        &self.memory[start as usize..][..self.pages.group_size(group) as usize]
    }

    fn install(&self, group: u64) {
        assert!(self.pages.install(group, self.bytes(group)).unwrap(), "{group}");
    }

    /// Brings what is asked for while `body` runs; returns which groups that were.
    fn serving<R>(&self, body: impl FnOnce() -> R) -> (R, Vec<u64>) {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let is_done = std::sync::atomic::AtomicBool::new(false);
        thread::scope(|scope| {
            let server = scope.spawn(|| {
                let mut brought = Vec::new();
                while !is_done.load(Ordering::Acquire) {
                    let signal = self.pages.wanted_signal();
                    let mut asked = [PollFd::from_borrowed_fd(signal, PollFlags::IN)];
                    let soon = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
                    poll(&mut asked, Some(&soon)).unwrap();
                    for group in self.pages.take_wanted() {
                        if self.pages.install(group, self.bytes(group)).unwrap() {
                            brought.push(group);
                        }
                    }
                }
                brought
            });
            /// Also when the body panics.
            struct Done<'a>(&'a std::sync::atomic::AtomicBool);
            impl Drop for Done<'_> {
                fn drop(&mut self) {
                    self.0.store(true, Ordering::Release);
                }
            }
            let done = Done(&is_done);
            let result = body();
            drop(done);
            (result, server.join().unwrap())
        })
    }

    /// The memory of a slot must be this, in all its pages.
    #[track_caller]
    fn assert_memory(&self, slot: &Slot, expected: &[u8]) {
        let running = Running::new(slot);
        for page in (0..SIZE).step_by(PAGE as usize) {
            let found = running.page(page);
            assert!(found == expected[page as usize..][..PAGE as usize], "page {page:#x}");
        }
    }
}

fn check(config: &StrategyConfig) -> Strategies {
    config.check().unwrap()
}

fn by(reset: ResetKind) -> StrategyConfig {
    StrategyConfig { reset, ..StrategyConfig::default() }
}

/// Those that map images, and do not copy them first.
fn mapping() -> impl Iterator<Item = ResetKind> {
    ResetKind::ALL.into_iter().filter(|kind| ![ResetKind::Copy, ResetKind::Fault].contains(kind))
}

/// The slot in which code of this thread "runs": a SIGBUS asks it.
static RUNNING: [AtomicPtr<Slot>; 16] = [const { AtomicPtr::new(ptr::null_mut()) }; 16];

struct Running<'a> {
    slot: &'a Slot,
    place: &'static AtomicPtr<Slot>,
}

impl<'a> Running<'a> {
    fn new(slot: &'a Slot) -> Self {
        static HANDLER: Once = Once::new();
        HANDLER.call_once(|| {
            // SAFETY: zeros are a value of the type, and the handler does what it may.
            unsafe {
                let mut action = std::mem::zeroed::<libc::sigaction>();
                action.sa_sigaction = on_bus_error as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
                assert_eq!(libc::sigaction(libc::SIGBUS, &action, ptr::null_mut()), 0);
            }
            pagefork_pages::serve_fault_is_called();
        });
        let own = ptr::from_ref(slot).cast_mut();
        let take = |place: &&AtomicPtr<Slot>| {
            place.compare_exchange(ptr::null_mut(), own, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        };
        let place = RUNNING.iter().find(take).expect("there are enough places");
        Self { slot, place }
    }

    /// A copy of a page of the memory, at a byte offset, read as a guest does.
    fn page(&self, offset: u64) -> Vec<u8> {
        let place = self.slot.memory(0).wrapping_add(offset as usize);
        // SAFETY: the memory is that large; if the page is absent, the handler has it come.
        (0..PAGE as usize).map(|at| unsafe { place.add(at).read_volatile() }).collect()
    }

    fn write(&self, offset: u64, byte: u8) {
        // SAFETY: as of `page`, and no other thread uses the slot.
        unsafe { self.slot.memory(0).add(offset as usize).write_volatile(byte) };
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.place.store(ptr::null_mut(), Ordering::SeqCst);
    }
}

extern "C" fn on_bus_error(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel gives a valid structure.
    let address = unsafe { (*info).si_addr().addr() };
    // Once all are here, pages may be protected.
    if pagefork_pages::serve_fault(address, true) {
        return;
    }
    // SAFETY: those who run keep their slots.
    let outcome = unsafe {
        let slots = RUNNING.iter().filter_map(|place| place.load(Ordering::SeqCst).as_ref());
        slots
            .filter(|slot| slot.bounds().slot().contains(&address))
            .find_map(|slot| slot.wait_for_fault(address))
    };
    if outcome != Some(Ok(())) {
        // SAFETY: it ends the process.
        unsafe { libc::abort() };
    }
}

#[test]
fn a_touch_of_an_absent_page_waits_until_it_is_here() {
    let arriving = Arriving::new();
    let slot = arriving.spawn(&StrategyConfig::default());
    let (found, brought) = arriving.serving(|| {
        let running = Running::new(&slot);
        [3 * PAGE_GROUP + PAGE, 3 * PAGE_GROUP, 60 * PAGE_GROUP].map(|at| (at, running.page(at)))
    });
    for (at, found) in found {
        assert!(found == arriving.memory[at as usize..][..PAGE as usize], "{at:#x}");
    }
    assert_eq!(brought, [3, 60], "nothing but what was touched");
    assert_eq!(arriving.pages.missing(), [0..3, 4..60, 61..GROUPS]);
    let counts = arriving.pages.residency();
    assert_eq!((counts.groups, counts.present, counts.waits), (GROUPS, 2, 2));
}

#[test]
fn a_write_to_an_absent_page_changes_this_byte_of_it_in_this_slot() {
    let arriving = Arriving::new();
    let mut slot = arriving.spawn(&StrategyConfig::default());
    let other = arriving.spawn(&StrategyConfig::default());
    slot.enter();
    let (_, brought) = arriving.serving(|| {
        Running::new(&slot).write(5 * PAGE_GROUP + 70, 0xee);
    });
    assert_eq!(brought, [5]);
    let (_, _) = arriving.serving(|| {
        let mut expected = arriving.memory.clone();
        expected[(5 * PAGE_GROUP + 70) as usize] = 0xee;
        arriving.assert_memory(&slot, &expected);
        arriving.assert_memory(&other, &arriving.memory);
    });
    assert!(arriving.pages.is_whole());
}

#[test]
fn many_slots_of_one_image_have_each_group_come_once() {
    let arriving = Arriving::new();
    let slots: Vec<_> = (0..8).map(|_| arriving.spawn(&StrategyConfig::default())).collect();
    let ((), mut brought) = arriving.serving(|| {
        thread::scope(|scope| {
            for slot in &slots {
                scope.spawn(|| arriving.assert_memory(slot, &arriving.memory));
            }
        });
    });
    brought.sort_unstable();
    assert!(brought.into_iter().eq(0..GROUPS));
    assert!(arriving.pages.is_whole());
}

#[test]
fn the_host_waits_for_ranges_and_asks_for_them_at_once() {
    let arriving = Arriving::new();
    let slot = arriving.spawn(&StrategyConfig::default());
    thread::scope(|scope| {
        let waiting = scope.spawn(|| slot.wait(0, 2 * PAGE_GROUP - 1..4 * PAGE_GROUP + 1));
        let mut asked = Vec::new();
        while asked.is_empty() {
            asked = arriving.pages.take_wanted();
            thread::yield_now();
        }
        // The signal may come between the requests.
        while asked.len() < 4 {
            asked.extend(arriving.pages.take_wanted());
        }
        assert_eq!(asked, [1, 2, 3, 4]);
        asked.into_iter().for_each(|group| arriving.install(group));
        assert_eq!(waiting.join().unwrap(), Ok(()));
    });
    // Below the base, behind what the image has, and beyond the memory nothing is absent.
    slot.wait(0, SIZE..u64::MAX).unwrap();
    slot.wait(0, 7..7).unwrap();
    assert_eq!(arriving.pages.residency().present, 4);
}

#[test]
fn as_a_user_without_rights() {
    in_own_process("as_a_user_without_rights", || {
        // SAFETY: this process has one test.
        let changed =
            unsafe { libc::geteuid() != 0 || libc::setgid(65534) == 0 && libc::setuid(65534) == 0 };
        assert!(changed);
        if !serves_absent_pages() {
            println!("NOT TESTED: this system has no userfaultfd for this user");
            return;
        }
        let arriving = Arriving::new();
        let slot = arriving.spawn(&StrategyConfig::default());
        arriving.serving(|| arriving.assert_memory(&slot, &arriving.memory));
        assert!(arriving.pages.is_whole());
    });
}

#[test]
fn what_is_known_of_waits_is_never_longer_than_what_was_waited() {
    let arriving = Arriving::new();
    let pages = &arriving.pages;
    // What one who brings groups can know of it: from when it hears of each until it has brought it.
    let (mut known, mut last) = (Duration::ZERO, Duration::ZERO);
    let whole = thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let began = Instant::now();
            pages.wait(0..4 * PAGE_GROUP).unwrap();
            began.elapsed()
        });
        let mut asked = Vec::new();
        // The signal may come between the requests.
        while asked.len() < 4 {
            asked.extend(pages.take_wanted());
        }
        let heard = Instant::now();
        assert_eq!(asked, [0, 1, 2, 3], "at once");
        for group in asked {
            // So that who waits for several does so for long.
            thread::sleep(Duration::from_millis(2));
            last = heard.elapsed();
            known += last;
            arriving.install(group);
        }
        waits.join().unwrap()
    });
    let found = pages.residency();
    assert!(found.waits == 4 && found.waited >= known, "{found:?}, of which {known:?} are known");
    // The thread itself could not go on for as long as the last of them took.
    assert!((last..=whole).contains(&found.blocked), "{found:?}: {last:?} to {whole:?}");
    // What was here was not waited for.
    pages.wait(0..4 * PAGE_GROUP).unwrap();
    assert_eq!(pages.residency(), found);
}
