//! Memories that grow by faults: a page past the size has no contents, so no access reaches it. That such
//! slots are as others after every mutation, failure and reset is in the tests of all strategies.

mod common;
#[path = "common/matrix.rs"]
mod matrix;

use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use common::*;
use matrix::*;
use pagefork_layout::module::MemoryType;
use pagefork_pages::{
    Absence, DeltaTracker, Discarded, GrowthKind, GrowthReason, Image, ImageForm, MemorySize,
    PagesError, ResetKind, Slot, Strategies, StrategyConfig,
};

const PAGES: u64 = WASM_PAGE / PAGE;

fn by(reset: ResetKind) -> Strategies {
    with(StrategyConfig { reset, ..Default::default() })
}

/// For code that relies on inaccessible pages alone.
fn with(config: StrategyConfig) -> Strategies {
    StrategyConfig { growth: GrowthKind::Fault, ..config }.check().unwrap()
}

fn case() -> Case {
    let (image, _) = dense_image(&layout(), 0x42, 3 * PAGE);
    Case::new("dense", layout(), image, (WASM_PAGE, 16 * WASM_PAGE))
}

fn two() -> Case {
    let layout = layout_of(&[MemoryType::new(0, None); 2]);
    let nothing = Image::new("nothing", layout.base..layout.base, []).unwrap();
    Case::new("two", layout, nothing, (WASM_PAGE, 4 * WASM_PAGE))
}

/// Whether this machine can do it; else the test says that it is none.
fn works() -> bool {
    let lack = GrowthKind::Fault.lack();
    if let Some(reason) = lack {
        eprintln!("NOT TESTED: {reason}");
    }
    lack.is_none()
}

/// A slot whose memories grow by faults.
fn spawn_by(case: &Case, strategies: &Strategies) -> Slot {
    let slot = case.spawn(strategies);
    assert_eq!(slot.growth().used, GrowthKind::Fault, "{}", slot.growth());
    slot
}

/// Which pages of a range of slot offsets have contents, as the kernel tells: nothing is touched.
fn present(slot: &Slot, range: std::ops::Range<u64>) -> Vec<u64> {
    let mut seen = vec![0u8; ((range.end - range.start) / PAGE) as usize];
    let start = slot.start().wrapping_add(range.start as usize);
    let length = (range.end - range.start) as usize;
    // SAFETY: the call writes a byte for each page of the range.
    assert_eq!(unsafe { libc::mincore(start.cast(), length, seen.as_mut_ptr()) }, 0);
    let pages = (0..).zip(seen).filter(|(_, seen)| seen & 1 != 0);
    pages.map(|(page, _)| range.start + page * PAGE).collect()
}

/// All that a memory could have, past its size.
fn past(case: &Case, slot: &Slot, index: usize) -> std::ops::Range<u64> {
    let start = case.memory(index);
    start + slot.memory_size(index)..start + slot.memory_max(index)
}

#[test]
fn nothing_beyond_the_size_can_be_read_at_any_size_and_what_is_new_is_zero() {
    if !works() {
        return;
    }
    for kind in ResetKind::ALL {
        let case = case();
        let mut slot = spawn_by(&case, &by(kind));
        let (base, most) = (case.memory(0), 16 * PAGES);
        for sizes in [&[16, 17, 40, most][..], &[most], &[], &[18, 19]] {
            slot.enter();
            let mut before = 16;
            for &pages in sizes {
                slot.grow_memory(0, pages * PAGE).unwrap();
                assert_eq!(slot.memory_accessible(0), pages * PAGE);
                for past in [0, 1, PAGE, WASM_PAGE] {
                    assert!(!accessible(&slot, base + pages * PAGE + past), "{kind} {pages}");
                }
                let grown = base + before * PAGE..base + pages * PAGE;
                assert!(read(&slot, grown.clone()).iter().all(|&byte| byte == 0), "{kind}");
                write(&slot, base, &pattern(7, pages * PAGE));
                assert_eq!(present(&slot, past(&case, &slot, 0)), [], "{kind} {pages}");
                before = pages;
            }
            slot.reset_for(OWNER).unwrap();
            assert!(!accessible(&slot, base + WASM_PAGE), "{kind}");
            assert_eq!(present(&slot, past(&case, &slot, 0)), [], "{kind}");
            case.assert_fresh(&slot, &by(kind), &kind.to_string());
        }
    }
}

/// Pages that are touched one after the other come in rows, and rows end where the memory does.
#[test]
fn pages_that_come_together_end_where_the_memory_does() {
    if !works() {
        return;
    }
    let case = case();
    for reads in [false, true] {
        let mut slot = spawn_by(&case, &by(ResetKind::Discard));
        slot.enter();
        let mut pages = PAGES;
        for more in [3, 1, 2, 5, 64, 65, 1, 31] {
            for page in pages..pages + more {
                slot.grow_memory(0, (pages + more) * PAGE).unwrap();
                let place = case.memory(0) + page * PAGE;
                match reads {
                    true => assert_eq!(read(&slot, place..place + 9), [0; 9]),
                    false => write(&slot, place, &[9; 9]),
                }
                assert_eq!(present(&slot, past(&case, &slot, 0)), [], "{pages} and {more}");
            }
            pages += more;
        }
        let all = case.memory(0) + WASM_PAGE..case.memory(0) + pages * PAGE;
        assert_eq!(present(&slot, all.clone()).len() as u64, (all.end - all.start) / PAGE);
        slot.reset_for(OWNER).unwrap();
        assert_eq!(present(&slot, past(&case, &slot, 0)), []);
    }
}

/// The kernel and the host, which wait for ranges that are longer than the memory.
#[test]
fn waiting_for_more_than_the_memory_has_touches_nothing_beyond() {
    if !works() {
        return;
    }
    let case = case();
    let mut slot = spawn_by(&case, &by(ResetKind::Auto));
    for pages in [PAGES, PAGES + 3, 40] {
        slot.grow_memory(0, pages * PAGE).unwrap();
        slot.wait(0, 0..u64::MAX).unwrap();
        slot.wait_at(0..usize::MAX).unwrap();
        assert_eq!(present(&slot, past(&case, &slot, 0)), []);
        let grown = case.memory(0) + WASM_PAGE..case.memory(0) + pages * PAGE;
        assert_eq!(present(&slot, grown).len() as u64, pages - PAGES);
    }
}

#[test]
#[cfg(debug_assertions)]
fn growth_makes_no_call_and_its_end_one_and_no_map_changes() {
    use pagefork_pages::Call;
    use pagefork_pages::inject::record;
    if !works() {
        return;
    }
    let case = case();
    let mut slot = spawn_by(&case, &by(ResetKind::Discard));
    let maps = attributes(&slot);
    for pages in [17, 100, 30] {
        slot.enter();
        let ((), calls) = record(|| slot.grow_memory(0, pages * PAGE).unwrap());
        assert_eq!(calls, []);
        write(&slot, case.memory(0), &pattern(3, pages * PAGE));
        assert_eq!(attributes(&slot), maps);
        let calls = record(|| slot.reset_for(OWNER).unwrap()).1;
        assert_eq!(calls, [Call::Discard, Call::Discard]);
        // Nothing to be emptied.
        assert_eq!(record(|| slot.reset_for(OWNER).unwrap()).1, [Call::Discard]);
        assert_eq!(attributes(&slot), maps);
    }
}

#[test]
fn what_grows_again_is_zero_and_what_an_earlier_run_had_is_not_there_before() {
    if !works() {
        return;
    }
    for kind in ResetKind::ALL {
        let case = two();
        let mut slot = spawn_by(&case, &by(kind));
        for round in 0..4u8 {
            slot.enter();
            for index in [0, 1] {
                let start = case.memory(index);
                slot.grow_memory(index, 2 * WASM_PAGE).unwrap();
                let grown = read(&slot, start + WASM_PAGE..start + 2 * WASM_PAGE);
                assert!(grown.iter().all(|&byte| byte == 0), "{kind} {round}");
                write(&slot, start, &pattern(round, 2 * WASM_PAGE));
            }
            slot.reset_for(OWNER).unwrap();
            for index in [0, 1] {
                assert_eq!(present(&slot, past(&case, &slot, index)), [], "{kind} {round}");
                // An access past the bound is not served.
                let address = slot.start().addr() + past(&case, &slot, index).start as usize;
                assert!(!pagefork_pages::serve_fault(address, true), "{kind} {round}");
                assert!(!pagefork_pages::serve_fault(address + PAGE as usize, false));
            }
        }
    }
}

/// A search of the whole slot would find the pages of the first, which go when it shrinks, and look at
/// them in the next reset.
#[test]
fn what_one_of_several_memories_has_grown_by_is_no_page_that_resets_know() {
    if !works() {
        return;
    }
    let searches = [
        ResetKind::Scan,
        ResetKind::Resident,
        ResetKind::Protect,
        ResetKind::Copy,
        ResetKind::Auto,
    ];
    for kind in searches {
        let case = two();
        let mut slot = spawn_by(&case, &by(kind));
        for round in 0..6 {
            slot.enter();
            slot.grow_memory(0, 3 * WASM_PAGE).unwrap();
            write(&slot, case.memory(0), &pattern(round, 3 * WASM_PAGE));
            write(&slot, case.memory(1), &pattern(round, PAGE));
            // Also where the kernel's notes of faults would do.
            slot.note_external_writer(pagefork_pages::ExternalWriter::UntilReset);
            let report = slot.reset_for(OWNER).unwrap();
            let most = case.layout.base + WASM_PAGE - case.layout.stack.start + PAGE;
            assert!(report.private.unwrap_or(0) <= most / PAGE, "{kind}: {report:?}");
            case.assert_fresh(&slot, &by(kind), &kind.to_string());
            // Without a run, whatever it knows is looked at again.
            slot.reset_for(OWNER).unwrap();
            case.assert_fresh(&slot, &by(kind), &kind.to_string());
        }
    }
}

#[test]
fn snapshots_have_what_memories_have_grown_by() {
    if !works() {
        return;
    }
    handle_refused_writes();
    for deltas in DeltaTracker::ALL {
        for kind in ResetKind::ALL {
            let what = format!("{deltas} {kind}");
            let case = case();
            let strategies =
                with(StrategyConfig { reset: kind, deltas, ..StrategyConfig::default() });
            let mut slot = spawn_by(&case, &strategies);
            slot.enter();
            slot.grow_memory(0, 9 * WASM_PAGE).unwrap();
            let page = |page: u64| case.memory(0) + page * PAGE;
            write(&slot, page(1), &pattern(1, PAGE));
            write(&slot, page(20), &pattern(2, PAGE));
            write(&slot, page(100) + 5, &[7]);
            assert_eq!(slot.changed_pages(), Ok(vec![page(1), page(20), page(100)]), "{what}");
            let first = slot.snapshot("first", &[], ImageForm::Branch).unwrap();
            case.assert_snapshot(&slot, &first, &what);
            // Written again, given back, and new.
            write(&slot, page(20), &pattern(0x55, PAGE));
            let range = 90 * PAGE..120 * PAGE;
            slot.discard_memory(0, range).unwrap();
            assert_eq!(read(&slot, page(100)..page(101)), vec![0; PAGE as usize], "{what}");
            slot.grow_memory(0, 10 * WASM_PAGE).unwrap();
            write(&slot, page(150), &[8]);
            let second = slot.snapshot("second", &[], ImageForm::Branch).unwrap();
            match deltas {
                DeltaTracker::Off => case.assert_snapshot(&slot, &second, &what),
                _ => {
                    let changed = vec![page(20), page(100), page(150)];
                    assert_eq!(second.changed_since(&first), Some(changed), "{what}");
                }
            }
            assert_eq!(present(&slot, past(&case, &slot, 0)), [], "{what}");
            // What is spawned from it grows on, and starts there after each reset.
            let size = MemorySize { initial: 10 * WASM_PAGE, maximum: 16 * WASM_PAGE };
            let there = read(&slot, page(0)..page(160));
            let mut spawned =
                Slot::with_strategies(&case.layout, &second, &[size], &strategies).unwrap();
            for _ in 0..3 {
                assert!(bytes(&spawned, page(0)..page(160)) == there, "{what}");
                assert!(!accessible(&spawned, page(160)), "{what}");
                spawned.enter();
                spawned.grow_memory(0, 11 * WASM_PAGE).unwrap();
                assert_eq!(read(&spawned, page(160)..page(176)), vec![0; 16 * PAGE as usize]);
                write(&spawned, page(159), &pattern(5, 3 * PAGE));
                write(&spawned, page(3), &[1]);
                spawned.reset_for(OWNER).unwrap();
            }
            slot.reset_for(OWNER).unwrap();
            case.assert_fresh(&slot, &strategies, &what);
        }
    }
}

#[test]
fn what_is_given_back_takes_no_memory_and_reads_zero_at_its_edges_too() {
    if !works() {
        return;
    }
    let case = case();
    let mut slot = spawn_by(&case, &by(ResetKind::Discard));
    slot.enter();
    slot.grow_memory(0, 8 * WASM_PAGE).unwrap();
    let start = case.memory(0);
    write(&slot, start, &vec![9; 8 * WASM_PAGE as usize]);
    // Around the place where the memory was at first.
    let range = WASM_PAGE / 2 + 100..4 * WASM_PAGE + 77;
    assert_eq!(slot.discard_memory(0, range.clone()), Ok(Discarded::Released));
    let released = start + WASM_PAGE..start + 4 * WASM_PAGE;
    assert_eq!(present(&slot, released), []);
    let found = read(&slot, start..start + 8 * WASM_PAGE);
    for (at, byte) in (0..).zip(found) {
        assert_eq!(byte, if range.contains(&at) { 0 } else { 9 }, "{at}");
    }
    assert_eq!(present(&slot, past(&case, &slot, 0)), []);
}

/// The kernel raises no signal: it gets an error before somebody has waited for the pages.
#[test]
fn the_kernel_reads_and_writes_what_was_waited_for() {
    if !works() {
        return;
    }
    let case = case();
    let mut slot = spawn_by(&case, &by(ResetKind::Auto));
    slot.grow_memory(0, 2 * WASM_PAGE).unwrap();
    let file = temporary_file(&[5; 100]);
    let at = case.memory(0) + 2 * WASM_PAGE - 100;
    let place = slot.start().wrapping_add(at as usize);
    // SAFETY: the pages are the slot's, and no other code uses them.
    let write_to = |place: *mut u8| unsafe { libc::pread(file.as_raw_fd(), place.cast(), 100, 0) };
    assert_eq!(write_to(place), -1);
    slot.wait_at(place.addr()..place.addr() + 100).unwrap();
    assert_eq!(write_to(place), 100);
    assert_eq!(read(&slot, at..at + 100), [5; 100]);
    // A byte more is past the end, however long it is waited for.
    let behind = place.wrapping_add(100);
    slot.wait_at(behind.addr()..behind.addr() + 100).unwrap();
    assert_eq!(write_to(behind), -1);
}

#[test]
fn threads_that_touch_new_pages_while_one_grows_see_zeros_and_what_they_wrote() {
    if !works() {
        return;
    }
    let case = case();
    let most = 16 * PAGES;
    for _ in 0..20 {
        let mut slot = spawn_by(&case, &by(ResetKind::Discard));
        let bounds = slot.bounds().clone();
        let start = slot.start().addr() + case.memory(0) as usize;
        let barrier = std::sync::Barrier::new(5);
        std::thread::scope(|scope| {
            for thread in 0..4u8 {
                let (barrier, bounds) = (&barrier, &bounds);
                scope.spawn(move || {
                    barrier.wait();
                    for page in PAGES..most {
                        while bounds.memory_size(0) <= page * PAGE {
                            std::hint::spin_loop();
                        }
                        let at = start + (page * PAGE) as usize + usize::from(thread) * 8;
                        let place: *mut u8 = std::ptr::with_exposed_provenance_mut(at);
                        // SAFETY: the memory has grown as far, and each thread has its own bytes.
                        unsafe {
                            assert_eq!(place.read_volatile(), 0);
                            place.write_volatile(thread + 1);
                        }
                    }
                });
            }
            barrier.wait();
            for page in PAGES..most {
                slot.grow_memory(0, (page + 1) * PAGE).unwrap();
                let behind = past(&case, &slot, 0);
                assert_eq!(present(&slot, behind), []);
            }
        });
        for page in PAGES..most {
            let at = case.memory(0) + page * PAGE;
            let found = read(&slot, at..at + 32);
            assert_eq!([found[0], found[8], found[16], found[24]], [1, 2, 3, 4], "{page}");
        }
    }
}

/// A child has zeros past the size where its parent has nothing: so it has none of it.
#[test]
fn forked_processes_leave_what_their_parent_has_as_it_is() {
    in_own_process("forked_processes_leave_what_their_parent_has_as_it_is", || {
        if !works() {
            return;
        }
        let case = case();
        let strategies = by(ResetKind::Discard);
        let mut slot = spawn_by(&case, &strategies);
        assert!(slot.is_bound());
        slot.enter();
        slot.grow_memory(0, 3 * WASM_PAGE).unwrap();
        let all = pattern(6, 3 * WASM_PAGE);
        write(&slot, case.memory(0), &all);
        // SAFETY: no other thread of this process does anything.
        match unsafe { libc::fork() } {
            0 => {
                let is_refused = |error: PagesError| match error {
                    PagesError::PageAbsent(absent) => absent.why == Absence::OfParent,
                    _ => false,
                };
                let refused = slot.check_process().is_err()
                    && is_refused(slot.reset().unwrap_err())
                    && is_refused(slot.grow_memory(0, 4 * WASM_PAGE).unwrap_err())
                    && is_refused(slot.discard().unwrap_err())
                    && is_refused(slot.discard_memory(0, 0..3 * WASM_PAGE).unwrap_err())
                    && is_refused(slot.changed_pages().unwrap_err())
                    && is_refused(slot.snapshot("child", &[], ImageForm::Whole).unwrap_err())
                    && is_refused(
                        slot.reset_to(&case.image, &case.sizes, OWNER).map(drop).unwrap_err(),
                    );
                drop(slot);
                // A slot of its own is as any.
                let mut own = case.spawn(&strategies);
                own.grow_memory(0, 3 * WASM_PAGE).unwrap();
                write(&own, case.memory(0), &pattern(1, 3 * WASM_PAGE));
                let is_whole = !accessible(&own, case.memory(0) + 3 * WASM_PAGE)
                    && own.reset().is_ok()
                    && own.is_whole()
                    && own.growth().used == GrowthKind::Fault;
                // SAFETY: concerns the child alone.
                unsafe { libc::_exit(i32::from(!refused || !is_whole)) }
            }
            child => {
                let mut status = 0;
                // SAFETY: waits for a child of this process.
                assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
                assert_eq!(status, 0);
            }
        }
        assert!(bytes(&slot, case.memory(0)..case.memory(0) + 3 * WASM_PAGE) == all);
        slot.reset_for(OWNER).unwrap();
        case.assert_fresh(&slot, &strategies, "the parent's");
    });
}

#[test]
fn it_needs_no_privilege() {
    in_own_process("it_needs_no_privilege", || {
        // SAFETY: no other test runs in this process.
        let is_nobody =
            unsafe { libc::geteuid() != 0 || libc::setgid(65534) == 0 && libc::setuid(65534) == 0 };
        assert!(is_nobody);
        if !works() {
            return;
        }
        let case = case();
        let mut slot = spawn_by(&case, &by(ResetKind::Auto));
        for _ in 0..3 {
            slot.enter();
            slot.grow_memory(0, 5 * WASM_PAGE).unwrap();
            write(&slot, case.memory(0), &pattern(1, 5 * WASM_PAGE));
            slot.reset_for(OWNER).unwrap();
            case.assert_fresh(&slot, &by(ResetKind::Auto), "nobody's");
            case.assert_bounded(&slot, &by(ResetKind::Auto), "nobody's");
        }
    });
}

/// A signal of the processor, that nobody makes anything of: at the first byte past the size, before a
/// memory has grown, and where an earlier run had grown to.
#[test]
fn a_touch_past_the_size_ends_a_process_that_makes_no_trap_of_it() {
    const MARK: &str = "PAGEFORK_TEST_TOUCH";
    if !works() {
        return;
    }
    let name = "a_touch_past_the_size_ends_a_process_that_makes_no_trap_of_it";
    if let Ok(touch) = std::env::var(MARK) {
        let case = case();
        let mut slot = spawn_by(&case, &by(ResetKind::Auto));
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: concerns this process alone.
        unsafe { libc::setrlimit(libc::RLIMIT_CORE, &none) };
        if touch == "after" {
            slot.enter();
            slot.grow_memory(0, 4 * WASM_PAGE).unwrap();
            write(&slot, case.memory(0), &pattern(1, 4 * WASM_PAGE));
            slot.reset_for(OWNER).unwrap();
        }
        let place = slot.start().wrapping_add((case.memory(0) + WASM_PAGE) as usize);
        // SAFETY: the byte before is the memory's; what follows ends the process.
        unsafe {
            place.wrapping_sub(1).read_volatile();
            eprintln!("the last byte was read");
            place.read_volatile();
        }
        eprintln!("and one more");
        return;
    }
    for touch in ["fresh", "after"] {
        let output = Command::new(std::env::current_exe().unwrap())
            .args([name, "--exact", "--nocapture", "--test-threads=1"])
            .env(MARK, touch)
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{touch}: {errors}");
        assert!(errors.contains("the last byte was read"), "{touch}: {errors}");
    }
}

/// A huge page around the end of a memory would be there beyond it, too.
#[test]
fn no_huge_page_forms_around_the_end_of_a_memory() {
    const HUGE: u64 = 2 * MIB;
    const MADV_COLLAPSE: libc::c_int = 25;
    if !works() {
        return;
    }
    let nothing = Image::new("nothing", layout().base..layout().base, []).unwrap();
    let case = Case::new("large", layout(), nothing, (WASM_PAGE, 8 * MIB));
    let mut slot = spawn_by(&case, &by(ResetKind::Discard));
    slot.enter();
    // The second is there but for its last pages.
    let start = (slot.start().addr() as u64 + case.memory(0)).next_multiple_of(HUGE) + HUGE;
    let first = start - slot.start().addr() as u64;
    let size = first + HUGE - case.memory(0) - 3 * PAGE;
    for more in [0, 2 * PAGE] {
        slot.grow_memory(0, size + more).unwrap();
        write(&slot, case.memory(0), &pattern(1, size + more));
        let place = std::ptr::with_exposed_provenance_mut(start as usize);
        // SAFETY: advice about pages of the slot, which keep their contents.
        let collapsed = unsafe { libc::madvise(place, HUGE as usize, MADV_COLLAPSE) };
        assert_eq!(present(&slot, past(&case, &slot, 0)), [], "{more}: {collapsed}");
        assert!(!accessible(&slot, case.memory(0) + size + more), "{more}: {collapsed}");
        assert!(read(&slot, case.memory(0)..case.memory(0) + size) == pattern(1, size));
    }
    slot.reset_for(OWNER).unwrap();
    assert_eq!(present(&slot, past(&case, &slot, 0)), []);
}

/// Locked memory has pages before they are touched, but for these.
#[test]
fn locked_memory_has_no_page_past_the_size() {
    in_own_process("locked_memory_has_no_page_past_the_size", || {
        if !works() {
            return;
        }
        let case = case();
        // Before there is a slot, and after.
        let mut before = spawn_by(&case, &by(ResetKind::Auto));
        // SAFETY: concerns this process alone.
        if unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) } != 0 {
            eprintln!("NOT TESTED: memory cannot be locked");
            return;
        }
        let mut after = case.spawn(&by(ResetKind::Auto));
        for slot in [&mut before, &mut after] {
            for _ in 0..2 {
                slot.enter();
                slot.grow_memory(0, 2 * WASM_PAGE).unwrap();
                write(slot, case.memory(0), &pattern(1, 2 * WASM_PAGE));
                assert_eq!(present(slot, past(&case, slot, 0)), []);
                assert!(!accessible(slot, case.memory(0) + 2 * WASM_PAGE));
                // The kernel discards nothing of it, so the slot is made anew by the next reset.
                let failed = slot.reset_for(OWNER);
                assert!(failed.is_ok() || !slot.is_whole());
                slot.reset_for(OWNER).unwrap();
                case.assert_fresh(slot, &by(ResetKind::Auto), "locked");
                case.assert_growth_is_zero(slot, "locked");
                let _ = slot.reset_for(OWNER);
                slot.reset_for(OWNER).unwrap();
                assert_eq!(present(slot, past(&case, slot, 0)), []);
            }
        }
    });
}

/// What is said of a machine on which nobody serves touches.
#[test]
fn without_a_handler_memories_grow_otherwise() {
    in_own_process("without_a_handler_memories_grow_otherwise", || {
        let case = case();
        let slot =
            Slot::with_strategies(&case.layout, &case.image, &case.sizes, &by(ResetKind::Auto));
        let choice = slot.unwrap().growth();
        assert_eq!((choice.asked, choice.used), (GrowthKind::Fault, GrowthKind::Mprotect));
        assert_eq!(choice.reason, GrowthReason::NoFaults);
        assert!(choice.to_string().contains("userfaultfd"), "{choice}");
    });
}

#[test]
fn where_writable_memory_counts_memories_grow_otherwise() {
    in_own_process("where_writable_memory_counts_memories_grow_otherwise", || {
        handle_refused_writes();
        if !works() {
            return;
        }
        let limit = libc::rlimit { rlim_cur: 4 << 30, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: the structure is valid; no other test runs in this process.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_DATA, &limit) }, 0);
        let case = case();
        let mut slot = case.spawn(&by(ResetKind::Auto));
        let choice = slot.growth();
        let reason = GrowthReason::WritableCounts;
        assert_eq!((choice.used, choice.reason), (GrowthKind::Mprotect, reason));
        assert_eq!(GrowthKind::Fault.lack(), Some(reason));
        slot.grow_memory(0, 16 * WASM_PAGE).unwrap();
        write(&slot, case.memory(0), &pattern(1, 16 * WASM_PAGE));
        slot.reset_for(OWNER).unwrap();
        case.assert_fresh(&slot, &by(ResetKind::Auto), "limited");
    });
}

#[cfg(debug_assertions)]
mod failures {
    use pagefork_pages::Call;
    use pagefork_pages::inject::{fail_all, fail_nth, pretend};

    use super::*;

    /// Of two memories the pages of one are gone when those of the other cannot be discarded.
    #[test]
    fn a_slot_whose_pages_are_not_discarded_is_not_whole_until_it_is_reset() {
        if !works() {
            return;
        }
        let case = two();
        for kind in ResetKind::ALL {
            let mut slot = spawn_by(&case, &by(kind));
            let mut failures = 0;
            for nth in 0..12 {
                slot.enter();
                for index in 0..2 {
                    slot.grow_memory(index, 3 * WASM_PAGE).unwrap();
                    write(&slot, case.memory(index), &pattern(1, 3 * WASM_PAGE));
                }
                let outcome = fail_nth(nth, libc::EINVAL, || slot.reset_for(OWNER));
                failures += u64::from(outcome.value.is_err());
                if outcome.value.is_err() && slot.is_whole() {
                    for index in 0..2 {
                        assert_eq!(slot.memory_size(index), 3 * WASM_PAGE, "{kind} {nth}");
                        let place = case.memory(index);
                        let found = bytes(&slot, place..place + 3 * WASM_PAGE);
                        assert!(found == pattern(1, 3 * WASM_PAGE), "{kind} {nth}");
                    }
                } else if outcome.value.is_err() {
                    let grown = slot.grow_memory(0, 4 * WASM_PAGE);
                    assert_eq!(grown, Err(PagesError::ResetIncomplete), "{kind} {nth}");
                }
                for index in (0..2).filter(|_| slot.is_whole()) {
                    assert_eq!(present(&slot, past(&case, &slot, index)), [], "{kind} {nth}");
                }
                slot.reset_for(OWNER).unwrap();
                case.assert_fresh(&slot, &by(kind), &format!("{kind} {nth}"));
                case.assert_bounded(&slot, &by(kind), &format!("{kind} {nth}"));
                for index in 0..2 {
                    assert_eq!(present(&slot, past(&case, &slot, index)), [], "{kind} {nth}");
                }
            }
            assert!(failures > 1, "{kind}");
        }
    }

    #[test]
    fn a_page_that_cannot_be_had_is_asked_for_again() {
        if !works() {
            return;
        }
        let case = case();
        let mut slot = spawn_by(&case, &by(ResetKind::Auto));
        slot.grow_memory(0, 16 * WASM_PAGE).unwrap();
        for (code, at) in [(libc::ENOMEM, 20), (libc::EAGAIN, 30), (libc::ENOENT, 60)] {
            let place = case.memory(0) + at * PAGE;
            let failed = fail_nth(0, code, || write(&slot, place, &[7]));
            assert_eq!(failed.failed, Some(Call::CopyPage));
            let failed = fail_nth(0, code, || read(&slot, place + PAGE..place + PAGE + 1));
            assert_eq!((failed.failed, failed.value), (Some(Call::CopyPage), vec![0]));
            assert_eq!(read(&slot, place..place + 2), [7, 0]);
        }
    }

    /// As behind a filter of system calls, or in an emulator.
    #[test]
    fn where_touches_raise_no_signals_memories_grow_otherwise() {
        in_own_process("failures::where_touches_raise_no_signals_memories_grow_otherwise", || {
            handle_refused_writes();
            let case = case();
            // What nothing works without is here; the filter comes later.
            pagefork_pages::HostFeatures::get().unwrap();
            let grows = |slot: &mut Slot| {
                let choice = slot.growth();
                let reason = GrowthReason::NoFaults;
                assert_eq!((choice.used, choice.reason), (GrowthKind::Mprotect, reason));
                slot.grow_memory(0, 3 * WASM_PAGE).unwrap();
                write(slot, case.memory(0), &pattern(1, 3 * WASM_PAGE));
                assert!(!accessible(slot, case.memory(0) + 3 * WASM_PAGE));
                slot.reset_for(OWNER).unwrap();
                case.assert_fresh(slot, &by(ResetKind::Scan), &choice.to_string());
            };
            let spawn = || case.spawn(&by(ResetKind::Scan));
            grows(&mut fail_all(Call::ServeFaults, libc::EPERM, spawn));
            grows(&mut pretend(Call::ServeFaults, spawn));
            if works() {
                assert_eq!(spawn().growth().used, GrowthKind::Fault);
            }
        });
    }
}
