//! Memories that grow in files of their own: what is theirs alone there. That such slots are as
//! others after every mutation, failure and reset is in the tests of all strategies.

mod common;
#[path = "common/matrix.rs"]
mod matrix;

use std::sync::Arc;

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
    StrategyConfig { growth: GrowthKind::Ftruncate, ..config }.check().unwrap()
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

fn growth_maps(slot: &Slot) -> usize {
    attributes(slot).iter().filter(|map| map.file == "growth").count()
}

#[test]
fn nothing_beyond_the_size_can_be_read_at_any_size_and_what_is_new_is_zero() {
    for kind in ResetKind::ALL {
        let case = case();
        let mut slot = case.spawn(&by(kind));
        assert_eq!(slot.growth().used, GrowthKind::Ftruncate, "{}", slot.growth());
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
                before = pages;
            }
            slot.reset_for(OWNER).unwrap();
            assert!(!accessible(&slot, base + WASM_PAGE), "{kind}");
            case.assert_fresh(&slot, &by(kind), &kind.to_string());
        }
    }
}

#[test]
#[cfg(debug_assertions)]
fn growth_and_its_end_take_one_call_each_and_change_no_map() {
    use pagefork_pages::Call;
    use pagefork_pages::inject::record;
    let case = case();
    let mut slot = case.spawn(&by(ResetKind::Discard));
    let maps = attributes(&slot);
    for pages in [17, 100, 30] {
        slot.enter();
        let ((), calls) = record(|| slot.grow_memory(0, pages * PAGE).unwrap());
        assert_eq!(calls, [Call::GrowFile]);
        write(&slot, case.memory(0), &pattern(3, pages * PAGE));
        assert_eq!(attributes(&slot), maps);
        let calls = record(|| slot.reset_for(OWNER).unwrap()).1;
        assert_eq!(calls, [Call::GrowFile, Call::Discard]);
        // Nothing to be emptied.
        assert_eq!(record(|| slot.reset_for(OWNER).unwrap()).1, [Call::Discard]);
        assert_eq!(attributes(&slot), maps);
    }
}

/// A reset that has emptied the file of one memory and fails at that of the next.
#[test]
#[cfg(debug_assertions)]
fn a_slot_of_which_one_memory_was_emptied_is_not_whole_until_it_is_reset() {
    use pagefork_pages::inject::fail_nth;
    let case = two();
    for kind in [ResetKind::Discard, ResetKind::Scan, ResetKind::Resident, ResetKind::Copy] {
        let mut slot = case.spawn(&by(kind));
        let mut failures = 0;
        for nth in 0..12 {
            slot.enter();
            for index in 0..2 {
                slot.grow_memory(index, 3 * WASM_PAGE).unwrap();
                write(&slot, case.memory(index), &pattern(1, 3 * WASM_PAGE));
            }
            let outcome = fail_nth(nth, libc::EIO, || slot.reset_for(OWNER));
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
            slot.reset_for(OWNER).unwrap();
            case.assert_fresh(&slot, &by(kind), &format!("{kind} {nth}"));
            case.assert_bounded(&slot, &by(kind), &format!("{kind} {nth}"));
        }
        assert!(failures > 1, "{kind}");
    }
}

#[test]
#[cfg(debug_assertions)]
fn a_growth_that_fails_leaves_the_memory_as_it_was() {
    use pagefork_pages::inject::fail_nth;
    let case = case();
    let mut slot = case.spawn(&by(ResetKind::Auto));
    slot.grow_memory(0, 2 * WASM_PAGE).unwrap();
    write(&slot, case.memory(0), &pattern(9, 2 * WASM_PAGE));
    let outcome = fail_nth(0, libc::EFBIG, || slot.grow_memory(0, 3 * WASM_PAGE));
    let error = outcome.value.unwrap_err();
    assert!(error.to_string().contains("RLIMIT_FSIZE"), "{error}");
    assert_eq!(slot.memory_size(0), 2 * WASM_PAGE);
    assert!(!accessible(&slot, case.memory(0) + 2 * WASM_PAGE));
    let place = case.memory(0);
    assert!(bytes(&slot, place..place + 2 * WASM_PAGE) == pattern(9, 2 * WASM_PAGE));
    slot.grow_memory(0, 3 * WASM_PAGE).unwrap();
    assert!(accessible(&slot, case.memory(0) + 3 * WASM_PAGE - 1));
}

/// Pages in a file are found though none is private, and those that nobody touched are not read.
#[test]
fn snapshots_have_what_memories_have_grown_by() {
    handle_refused_writes();
    for deltas in DeltaTracker::ALL {
        for kind in [ResetKind::Auto, ResetKind::Discard, ResetKind::Copy] {
            let what = format!("{deltas} {kind}");
            let case = case();
            let strategies =
                with(StrategyConfig { reset: kind, deltas, ..StrategyConfig::default() });
            let mut slot = case.spawn(&strategies);
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
            let discarded = slot.discard_memory(0, range).unwrap();
            let released =
                if kind == ResetKind::Discard { Discarded::Released } else { Discarded::Zeroed };
            assert_eq!(discarded, released, "{what}");
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
    let case = case();
    let mut slot = case.spawn(&by(ResetKind::Discard));
    slot.enter();
    slot.grow_memory(0, 8 * WASM_PAGE).unwrap();
    let start = case.memory(0);
    write(&slot, start, &vec![9; 8 * WASM_PAGE as usize]);
    // Around the place where the file begins.
    let range = WASM_PAGE / 2 + 100..4 * WASM_PAGE + 77;
    assert_eq!(slot.discard_memory(0, range.clone()), Ok(Discarded::Released));
    let found = read(&slot, start..start + 8 * WASM_PAGE);
    for (at, byte) in (0..).zip(found) {
        assert_eq!(byte, if range.contains(&at) { 0 } else { 9 }, "{at}");
    }
}

/// A huge page of a file in memory would be mapped as a whole, also beyond the file's end.
#[test]
fn what_memories_grow_by_has_no_huge_pages() {
    if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage/shmem_enabled").exists() {
        return;
    }
    for kind in ResetKind::ALL {
        let case = two();
        let mut slot = case.spawn(&by(kind));
        for _ in 0..2 {
            let maps = attributes(&slot);
            let grown: Vec<_> = maps.iter().filter(|map| map.file == "growth").collect();
            assert_eq!(grown.len(), 2, "{kind}");
            for map in grown {
                assert!(map.flags.split(' ').any(|flag| flag == "nh"), "{kind}: {map:?}");
            }
            slot.enter();
            slot.grow_memory(1, 2 * WASM_PAGE).unwrap();
            slot.reset().unwrap();
        }
    }
}

#[test]
fn address_space_maps_and_descriptors_are_given_back() {
    in_own_process("address_space_maps_and_descriptors_are_given_back", || {
        let case = two();
        let strategies = by(ResetKind::Scan);
        drop(case.spawn(&strategies));
        let before = held();
        for _ in 0..3 {
            let mut slots: Vec<_> = (0..5).map(|_| case.spawn(&strategies)).collect();
            assert_eq!(held().descriptors, before.descriptors + 10);
            for slot in &mut slots {
                slot.grow_memory(1, 2 * WASM_PAGE).unwrap();
                // A memory that cannot grow needs none.
                let fixed = MemorySize { initial: WASM_PAGE, maximum: WASM_PAGE };
                let free = MemorySize { initial: 0, maximum: WASM_PAGE };
                slot.reset_to(&case.image, &[fixed, free], OWNER).unwrap();
                assert_eq!(growth_maps(slot), 1);
            }
            assert_eq!(held().descriptors, before.descriptors + 5);
            drop(slots);
            assert_eq!(held(), before);
        }
    });
}

/// Beyond half of the descriptors memories grow by mprotect, and slots say so.
#[test]
fn slots_without_a_descriptor_grow_otherwise() {
    in_own_process("slots_without_a_descriptor_grow_otherwise", || {
        let limit = libc::rlimit { rlim_cur: 64, rlim_max: 64 };
        let case = case();
        let strategies = by(ResetKind::Auto);
        drop(case.spawn(&strategies));
        // SAFETY: the structure is valid; no other test runs in this process.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
        let mut slots: Vec<_> = (0..80).map(|_| case.spawn(&strategies)).collect();
        for (at, slot) in slots.iter_mut().enumerate() {
            let choice = slot.growth();
            assert_eq!(choice.asked, GrowthKind::Ftruncate);
            let (used, reason) = match at < 32 {
                true => (GrowthKind::Ftruncate, GrowthReason::Asked),
                false => (GrowthKind::Mprotect, GrowthReason::Descriptors),
            };
            assert_eq!((choice.used, choice.reason), (used, reason), "slot {at}");
            for _ in 0..2 {
                slot.enter();
                slot.grow_memory(0, 3 * WASM_PAGE).unwrap();
                write(slot, case.memory(0), &pattern(at as u8, 3 * WASM_PAGE));
                assert!(!accessible(slot, case.memory(0) + 3 * WASM_PAGE));
                slot.reset_for(OWNER).unwrap();
                case.assert_fresh(slot, &strategies, &choice.to_string());
                case.assert_bounded(slot, &strategies, &choice.to_string());
            }
        }
        // Those that go leave room.
        slots.truncate(10);
        assert_eq!(case.spawn(&strategies).growth().used, GrowthKind::Ftruncate);
    });
}

#[test]
fn where_files_may_not_be_as_long_memories_grow_otherwise() {
    in_own_process("where_files_may_not_be_as_long_memories_grow_otherwise", || {
        let case = case();
        let limit = libc::rlimit { rlim_cur: MIB / 2, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: the structure is valid; no other test runs in this process.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) }, 0);
        let mut slot = case.spawn(&by(ResetKind::Auto));
        let choice = slot.growth();
        assert_eq!((choice.used, choice.reason), (GrowthKind::Mprotect, GrowthReason::FileSize));
        slot.grow_memory(0, 16 * WASM_PAGE).unwrap();
        write(&slot, case.memory(0), &pattern(1, 16 * WASM_PAGE));
        slot.reset_for(OWNER).unwrap();
        case.assert_fresh(&slot, &by(ResetKind::Auto), "limited");
    });
}

/// The kernel would end the process by SIGXFSZ.
#[test]
fn a_growth_fails_where_files_may_no_longer_be_as_long() {
    in_own_process("a_growth_fails_where_files_may_no_longer_be_as_long", || {
        let case = case();
        let mut slot = case.spawn(&by(ResetKind::Auto));
        assert_eq!(slot.growth().used, GrowthKind::Ftruncate);
        let limit = libc::rlimit { rlim_cur: MIB / 2, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: the structure is valid; no other test runs in this process.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) }, 0);
        slot.grow_memory(0, 4 * WASM_PAGE).unwrap();
        let error = slot.grow_memory(0, 16 * WASM_PAGE).unwrap_err();
        let requested = 15 * WASM_PAGE;
        assert_eq!(error, PagesError::FileSizeLimit { requested, limit: MIB / 2 });
        assert_eq!(slot.memory_accessible(0), 4 * WASM_PAGE);
        slot.reset_for(OWNER).unwrap();
        case.assert_fresh(&slot, &by(ResetKind::Auto), "limited later");
    });
}

/// Kernels and filters that refuse files in memory, or only pretend to bound what is mapped.
#[test]
#[cfg(debug_assertions)]
fn where_files_do_not_bound_memories_they_grow_otherwise() {
    use pagefork_pages::Call;
    use pagefork_pages::inject::{fail_all, pretend};
    in_own_process("where_files_do_not_bound_memories_they_grow_otherwise", || {
        let case = case();
        // What nothing works without is here; the filter comes later.
        pagefork_pages::HostFeatures::get().unwrap();
        let grows = |slot: &mut Slot| {
            let choice = slot.growth();
            assert_eq!((choice.used, choice.reason), (GrowthKind::Mprotect, GrowthReason::NoFiles));
            slot.grow_memory(0, 3 * WASM_PAGE).unwrap();
            write(slot, case.memory(0), &pattern(1, 3 * WASM_PAGE));
            slot.reset_for(OWNER).unwrap();
            case.assert_fresh(slot, &by(ResetKind::Scan), &choice.to_string());
        };
        let spawn = || case.spawn(&by(ResetKind::Scan));
        grows(&mut fail_all(Call::CreateImage, libc::EPERM, spawn));
        grows(&mut pretend(Call::GrowFile, spawn));
        grows(&mut pretend(Call::Punch, spawn));
        assert!(pagefork_pages::grows_in_files());
        assert_eq!(spawn().growth().used, GrowthKind::Ftruncate);
    });
}

/// A child would write into the memory of its parent, and empty it.
#[test]
fn forked_processes_leave_what_their_parent_has_as_it_is() {
    in_own_process("forked_processes_leave_what_their_parent_has_as_it_is", || {
        let case = case();
        let strategies = by(ResetKind::Discard);
        let mut slot = case.spawn(&strategies);
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
                let is_whole = own.reset().is_ok() && own.is_whole();
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
        let case = case();
        let mut slot = case.spawn(&by(ResetKind::Auto));
        assert_eq!(slot.growth().used, GrowthKind::Ftruncate);
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

/// A slot whose guard goes on to guard another keeps no file.
#[test]
fn what_guards_another_slot_is_no_part_of_a_file() {
    let case = case();
    let strategies = by(ResetKind::Discard);
    let mut slots: Vec<_> = (0..6).map(|_| case.spawn(&strategies)).collect();
    slots.sort_by_key(|slot| slot.start());
    let above = slots.pop().unwrap();
    let below = slots.pop().unwrap();
    let guard = below.bounds().slot();
    drop(below);
    let maps = pagefork_pages::procmaps::read().unwrap();
    let (start, end) = (guard.start as u64, guard.end as u64);
    let there = maps.iter().filter(|map| map.range.start < end && start < map.range.end);
    for map in there {
        assert!(!map.name.contains("growth") || map.range.start >= end, "{map:?}");
    }
    let _: Arc<Image> = Arc::clone(above.image());
}
