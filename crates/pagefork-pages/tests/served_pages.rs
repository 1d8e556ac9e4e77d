//! Slots by reset `Fault`: pages have the image's contents when they are first touched, however they
//! are touched, and whatever the kernel does of a copy.

mod common;
#[path = "common/matrix.rs"]
mod matrix;

use std::os::fd::AsRawFd;
use std::sync::Arc;

use common::*;
use matrix::*;
use pagefork_pages::{
    Absence, GrowthKind, HeldRun, Image, Owner, PagesError, Reason, ResetKind, Slot, Strategies,
    StrategyConfig, faults_at_touches, procmaps,
};

fn case() -> Case {
    let (image, _) = dense_image(&layout(), 0x42, 200 * PAGE);
    Case::new("served", layout(), image, (16 * WASM_PAGE, 20 * WASM_PAGE))
}

/// Runs a test in slots whose pages are served, where that works: by who touches them, by threads, and
/// all at once.
fn with_each_service(body: impl Fn(&Case, Slot, &Strategies)) {
    if !faults_at_touches() {
        return eprintln!("NOT TESTED: this kernel raises no signals at touches");
    }
    for strategies in fault_strategies(GrowthKind::Mprotect) {
        let case = case();
        let slot = case.spawn(&strategies);
        assert_eq!(slot.strategy().used, ResetKind::Fault);
        body(&case, slot, &strategies);
    }
}

/// How many threads of this process serve faults.
fn threads() -> usize {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let names = threads.map(|thread| std::fs::read_to_string(thread.unwrap().path().join("comm")));
    names.filter(|name| name.as_deref().is_ok_and(|name| name == "pagefork-faults\n")).count()
}

/// Asserts that so many do, soon: they name themselves, and the kernel lists for a moment what has ended.
fn assert_threads(count: usize) {
    let begun = std::time::Instant::now();
    while threads() != count {
        assert!(begun.elapsed().as_secs() < 20, "{} threads, not {count}", threads());
        std::thread::yield_now();
    }
}

/// Threads are shared by slots that are to have as many, and end with the last of these; a process has
/// no more of them however many slots there are, and none for slots that need none.
#[test]
fn as_many_threads_serve_faults_as_were_asked_for_and_end_with_the_last_slot() {
    let name = "as_many_threads_serve_faults_as_were_asked_for_and_end_with_the_last_slot";
    in_own_process(name, || {
        with_each_service(|case, slot, strategies| {
            let asked = strategies.config().fault_threads as usize;
            let before = std::fs::read_dir("/proc/self/fd").unwrap().count();
            let others: Vec<Slot> = (0..20).map(|_| case.spawn(strategies)).collect();
            assert_threads(asked);
            assert_eq!(std::fs::read_dir("/proc/self/fd").unwrap().count(), before);
            drop(slot);
            for other in &others {
                write(other, case.memory(0) + 9 * PAGE, &[1]);
            }
            drop(others);
            assert_threads(0);
            // And begin again.
            let slot = case.spawn(strategies);
            assert_threads(asked);
            case.assert_fresh(&slot, strategies, "begun again");
        });
    });
}

/// Bytes of the slot that are in memory, as the kernel counts them.
fn resident(slot: &Slot) -> usize {
    let whole = slot.bounds().slot();
    let mut seen = vec![0u8; whole.len() / PAGE as usize];
    // SAFETY: the call writes a byte for each page of the range.
    assert_eq!(unsafe { libc::mincore(slot.start().cast(), whole.len(), seen.as_mut_ptr()) }, 0);
    seen.iter().filter(|page| **page & 1 != 0).count()
}

/// Nothing is copied before it is touched, and a reset has nothing stay.
#[test]
fn pages_come_when_they_are_touched_and_go_at_a_reset() {
    with_each_service(|case, mut slot, strategies| {
        let all = case.image.extents().iter().map(|extent| (extent.end - extent.start) / PAGE);
        let untouched = if strategies.config().fault_eager { all.sum::<u64>() as usize } else { 0 };
        for round in 0..5u8 {
            assert_eq!(resident(&slot), untouched, "{round}");
            slot.enter();
            write(&slot, case.memory(0) + 50 * PAGE, &[round; 9]);
            assert_eq!(resident(&slot), untouched.max(1), "{round}");
            let report = slot.reset_for(Owner(7)).unwrap();
            assert_eq!(report.by, ResetKind::Fault);
            // What was copied at once counts as memory that the slot keeps, and can be given back.
            assert_eq!(slot.resident(), untouched as u64 * PAGE, "{round}");
        }
        case.assert_fresh(&slot, strategies, "at the end");
        slot.discard().unwrap();
        assert_eq!((slot.resident(), resident(&slot)), (0, 0));
    });
}

/// Pages that are here already, before and behind the one that is touched, stay as they are: the kernel
/// copies up to there (EAGAIN with a part), or nothing (EEXIST).
#[test]
fn copies_end_at_pages_that_are_here() {
    with_each_service(|case, mut slot, strategies| {
        for first in 0..12 {
            slot.enter();
            let page = |page: u64| case.memory(0) + page * PAGE;
            // From the last to the first: behind each one there are others.
            for at in (first..190).rev().step_by(3) {
                write(&slot, page(at), &[0xee; 16]);
            }
            // In a row, over and over them.
            for at in 0..200 {
                let is_written = at < 190 && at >= first && (189 - at).is_multiple_of(3);
                let mut wanted = vec![0; PAGE as usize];
                case.image.read(page(at), &mut wanted).unwrap();
                if is_written {
                    wanted[..16].fill(0xee);
                }
                assert!(read(&slot, page(at)..page(at + 1)) == wanted, "{first}: {at}");
            }
            slot.reset_for(Owner(7)).unwrap();
            case.assert_fresh(&slot, strategies, "after it");
        }
    });
}

#[test]
fn threads_that_touch_the_same_pages_at_the_same_time_see_the_image() {
    with_each_service(|case, mut slot, strategies| {
        for _ in 0..30 {
            let shared = &slot;
            let barrier = std::sync::Barrier::new(4);
            std::thread::scope(|scope| {
                for thread in 0..4u64 {
                    let (case, barrier) = (&case, &barrier);
                    scope.spawn(move || {
                        barrier.wait();
                        for at in 0..200 {
                            // Two up, two down.
                            let at = if thread % 2 == 0 { at } else { 199 - at };
                            let place = case.memory(0) + at * PAGE + thread * 8;
                            let mut wanted = [0; 8];
                            case.image.read(place, &mut wanted).unwrap();
                            assert_eq!(read(shared, place..place + 8), wanted);
                            write(shared, place, &[thread as u8; 8]);
                        }
                    });
                }
            });
            for at in 0..200 {
                let place = case.memory(0) + at * PAGE;
                let wanted: Vec<u8> = (0..4u8).flat_map(|thread| [thread; 8]).collect();
                assert_eq!(read(&slot, place..place + 32), wanted);
            }
            slot.reset_for(Owner(7)).unwrap();
        }
        case.assert_fresh(&slot, strategies, "at the end");
    });
}

/// The kernel raises no signal: it gets an error, and what was waited for.
#[test]
fn the_kernel_reads_and_writes_what_was_waited_for() {
    with_each_service(|case, slot, strategies| {
        let file = temporary_file(&[5; 100]);
        let place = slot.start().wrapping_add((case.memory(0) + 7 * PAGE - 50) as usize);
        // SAFETY: the pages are the slot's, and no other code uses them.
        let write_to = || unsafe { libc::pread(file.as_raw_fd(), place.cast(), 100, 0) };
        let is_there = strategies.config().fault_eager;
        assert_eq!(write_to(), if is_there { 100 } else { -1 });
        slot.wait_at(place.addr()..place.addr() + 100).unwrap();
        assert_eq!(write_to(), 100);
        // What lies outside is nobody's.
        let whole = slot.bounds().slot();
        for range in [0..8, whole.end..whole.end + 8, whole.start..whole.end, 0..usize::MAX] {
            slot.wait_at(range).unwrap();
        }
        let begin = case.memory(0) + 7 * PAGE - 50;
        assert_eq!(read(&slot, begin..begin + 100), [5; 100]);
    });
}

/// A child has the pages that were touched, and zeros for all others: so it has none.
#[test]
fn forked_processes_do_not_use_them() {
    with_each_service(|case, mut slot, strategies| {
        write(&slot, case.memory(0), &[1]);
        assert!(slot.is_bound());
        // SAFETY: the child works on its own copy and exits; an alarm ends it.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: concerns this child alone.
            unsafe { libc::alarm(20) };
            let works = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let refused = |error: PagesError| matches!(error, PagesError::PageAbsent(absent) if absent.why == Absence::OfParent);
                assert!(slot.check_process().is_err());
                assert!(refused(slot.reset().unwrap_err()));
                assert!(refused(slot.changed_pages().unwrap_err()));
                assert!(!pagefork_pages::serve_fault(slot.base().addr() + 9 * PAGE as usize, true));
                drop(slot);
                // Its own ones work.
                let mut own = case.spawn(strategies);
                write(&own, case.memory(0) + 9 * PAGE, &[1]);
                own.reset_for(Owner(7)).unwrap();
                case.assert_fresh(&own, strategies, "in a child");
            }));
            // SAFETY: ends this child.
            unsafe { libc::_exit(i32::from(works.is_err())) };
        }
        let mut status = 0;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
        slot.reset_for(Owner(7)).unwrap();
        case.assert_fresh(&slot, strategies, "in the parent");
    });
}

#[test]
fn it_needs_no_rights() {
    in_own_process("it_needs_no_rights", || {
        // SAFETY: this process has one test.
        let changed =
            unsafe { libc::geteuid() != 0 || libc::setgid(65534) == 0 && libc::setuid(65534) == 0 };
        assert!(changed);
        with_each_service(|case, mut slot, strategies| {
            write(&slot, case.memory(0) + 9 * PAGE, &[1]);
            slot.reset_for(Owner(7)).unwrap();
            case.assert_fresh(&slot, strategies, "without rights");
        });
    });
}

/// Whatever else is chosen, by hand or by measurement, no page is served: nothing comes to `Fault` by
/// itself, whatever runs do, and no thread begins though some are asked for.
#[test]
fn nothing_but_fault_has_pages_served() {
    in_own_process("nothing_but_fault_has_pages_served", || {
        // It could be had.
        handle_refused_writes();
        let case = case();
        for reset in ResetKind::ALL.into_iter().filter(|reset| *reset != ResetKind::Fault) {
            let config =
                StrategyConfig { fault_threads: 2, fault_eager: true, ..Default::default() };
            let strategies = StrategyConfig { reset, ..config }.check().unwrap();
            let mut slot = case.spawn(&strategies);
            // The same pages each time, others, many now and then, and none.
            for round in 0..400u64 {
                slot.enter();
                let (first, count) = match round / 100 {
                    0 => (3, 5),
                    1 => (round * 7 % 150, 30),
                    2 if round % 20 == 0 => (0, 190),
                    _ => (0, 0),
                };
                for page in first..first + count {
                    write(&slot, case.memory(0) + page * PAGE, &[round as u8]);
                }
                let report = slot.reset_for(Owner(7)).unwrap();
                assert_ne!(report.by, ResetKind::Fault, "{reset}, {round}");
                assert_ne!(slot.strategy().used, ResetKind::Fault, "{reset}, {round}");
            }
            assert!(!slot.is_bound(), "{reset}");
            assert_eq!(threads(), 0, "{reset}");
            case.assert_fresh(&slot, &strategies, "at the end");
        }
    });
}

/// Nobody serves faults: then what is nearest takes its place, and says so.
#[test]
fn without_a_handler_pages_are_discarded() {
    in_own_process("without_a_handler_pages_are_discarded", || {
        let asked = StrategyConfig { reset: ResetKind::Fault, ..StrategyConfig::default() };
        let choice = asked.check().unwrap().choice().unwrap();
        assert_eq!((choice.used, choice.reason), (ResetKind::Discard, Reason::NoFaults));
        assert!(choice.to_string().contains("userfaultfd"), "{choice}");
    });
}

#[cfg(debug_assertions)]
mod failures {
    use pagefork_pages::Call;
    use pagefork_pages::inject::{fail_all, fail_nth};

    use super::*;

    #[test]
    fn a_copy_that_fails_is_made_again() {
        if !faults_at_touches() {
            return eprintln!("NOT TESTED: this kernel raises no signals at touches");
        }
        let case = case();
        let slot = case.spawn(&strategies(ResetKind::Fault));
        for (code, at) in [(libc::ENOMEM, 3), (libc::EAGAIN, 30), (libc::ENOENT, 60)] {
            let place = case.memory(0) + at * PAGE;
            let failed = fail_nth(0, code, || read(&slot, place..place + 8));
            assert_eq!(failed.failed, Some(Call::CopyPage));
            let mut wanted = [0; 8];
            case.image.read(place, &mut wanted).unwrap();
            assert_eq!(failed.value, wanted);
        }
    }

    /// Each call that a slot needs whose pages are copied by threads, or all at once, may fail: then
    /// there is an error and no slot, or pages come when they are touched; and nothing stays.
    #[test]
    fn whatever_fails_of_making_a_slot_nothing_half_made_stays() {
        in_own_process("failures::whatever_fails_of_making_a_slot_nothing_half_made_stays", || {
            // Else threads have heaps of their own, which stay.
            // SAFETY: only sets a number.
            assert_eq!(unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) }, 1);
            let refused = std::cell::RefCell::new(Vec::new());
            with_each_service(|case, slot, strategies| {
                drop(slot);
                let before = held();
                for nth in 0.. {
                    let injected = fail_nth(nth, libc::EAGAIN, || {
                        Slot::with_strategies(&case.layout, &case.image, &case.sizes, strategies)
                    });
                    if let Ok(slot) = injected.value {
                        case.assert_fresh(&slot, strategies, "though a call has failed");
                    }
                    assert_threads(0);
                    assert_eq!(held(), before, "{nth}: {:?}", injected.failed);
                    match injected.failed {
                        Some(call) => refused.borrow_mut().push(call),
                        None => break,
                    }
                }
            });
            let refused = refused.into_inner();
            for call in [Call::StartThread, Call::ServeFaults, Call::CopyPage, Call::MakeSignal] {
                assert!(refused.contains(&call), "{call}");
            }
        });
    }

    /// As behind a filter of system calls.
    #[test]
    fn where_the_kernel_refuses_pages_are_discarded() {
        in_own_process("failures::where_the_kernel_refuses_pages_are_discarded", || {
            handle_refused_writes();
            fail_all(Call::ServeFaults, libc::EPERM, || {
                let case = case();
                let mut slot = case.spawn(&strategies(ResetKind::Fault));
                let choice = slot.strategy();
                assert_eq!((choice.used, choice.reason), (ResetKind::Discard, Reason::NoFaults));
                write(&slot, case.memory(0), &[1]);
                slot.reset_for(Owner(7)).unwrap();
                case.assert_fresh(&slot, &strategies(ResetKind::Fault), "refused");
            });
        });
    }
}

/// Pages of a memory of zeros, apart from each other by this many, are others, copied when they are touched or all
/// at once: they are many, the maps are few, and what is between them is zero.
#[test]
fn many_pages_that_lie_apart_cost_few_maps_and_what_is_between_them_is_zero() {
    if !faults_at_touches() {
        return eprintln!("NOT TESTED: this kernel raises no signals at touches");
    }
    for (count, apart, fault_eager) in [(3000, 2, false), (3000, 2, true), (100, 300, true)] {
        let layout = layout();
        let before = 4 * count * PAGE;
        let (root, _) = dense_image(&layout, 0x42, before);
        let start = layout.base + layout.memories[0].offset + before + PAGE;
        let bytes = Arc::new(pattern(7, count * PAGE));
        let runs: Vec<HeldRun> = (0..count)
            .map(|number| HeldRun {
                offset: start + apart * number * PAGE,
                bytes: Arc::clone(&bytes),
                part: (number * PAGE) as usize..((number + 1) * PAGE) as usize,
            })
            .collect();
        let extents = std::iter::once(layout.image_start..start + apart * count * PAGE).collect();
        let image = Image::of_shared_changes(&root, "apart", extents, &runs).unwrap();
        assert!(image.parent().is_some(), "it is a branch");
        let size = (start - layout.base).next_multiple_of(WASM_PAGE) + (apart + 1) * count * PAGE;
        let size = size.next_multiple_of(WASM_PAGE);
        let case = Case::new("apart", layout, image, (size, size + MIB));
        let config =
            StrategyConfig { reset: ResetKind::Fault, fault_eager, ..StrategyConfig::default() };
        let strategies = config.check().unwrap();
        let mut slot = case.spawn(&strategies);
        let start_of_slot = slot.start().addr() as u64;
        let whole = start_of_slot..start_of_slot + slot.bounds().slot().len() as u64;
        let maps = procmaps::read().unwrap();
        let is_of_slot =
            |map: &&procmaps::Map| map.range.start < whole.end && whole.start < map.range.end;
        let maps = maps.iter().filter(is_of_slot).count();
        assert!(maps < 40, "{maps} maps");
        case.assert_fresh(&slot, &strategies, "at first");
        for round in 0..2u8 {
            slot.enter();
            write(&slot, start + PAGE, &[round + 1; 9]);
            write(&slot, start + 2 * PAGE, &[round + 1; 9]);
            slot.reset_for(Owner(7)).unwrap();
        }
        case.assert_fresh(&slot, &strategies, "at the end");
    }
}
