//! Every system call of every strategy is made to fail in turn, and what a kernel
//! lacks is replaced: no slot is handed out half reset.
#![cfg(debug_assertions)]

mod common;
#[path = "common/matrix.rs"]
mod matrix;

use std::sync::Arc;

use common::*;
use matrix::*;
use pagefork_layout::module::MemoryType;
#[cfg(not(feature = "no-cow"))]
use pagefork_pages::Reason;
#[cfg(not(feature = "no-cow"))]
use pagefork_pages::inject::{Times, fail_all, pretend, record, with_times};
use pagefork_pages::inject::{fail_from, fail_nth};
use pagefork_pages::{
    Call, HostFeatures, Image, ImageForm, PagesError, ResetKind, Slot, Strategies, StrategyConfig,
};

/// Two memories, contents in both, and more pages than are kept.
fn case() -> Case {
    let layout = layout_of(&[MemoryType::new(0, None); 2]);
    let bytes = pattern(5, 40 * PAGE);
    let starts: Vec<u64> = layout.memories.iter().map(|place| layout.base + place.offset).collect();
    let extents = starts.iter().map(|start| *start..start + 40 * PAGE).collect();
    let runs = starts.iter().map(|start| (*start, &bytes[..]));
    let image = Image::with_extents("two", extents, runs).unwrap();
    Case::new("two", layout, image, (64 * PAGE, 256 * PAGE))
}

/// As given, with a budget that [`change`] exceeds.
fn tight(strategies: &Strategies) -> Strategies {
    StrategyConfig { resident_max: 30 * PAGE, ..strategies.config() }.check().unwrap()
}

/// What every zone and every path of a reset sees: growth, more pages than are kept,
/// a deep stack.
fn change(case: &Case, slot: &mut Slot) {
    slot.enter();
    for index in 0..2 {
        slot.grow_memory(index, 128 * PAGE).unwrap();
    }
    for part in case.parts(slot) {
        write(slot, part.start, &vec![0x3c; (part.end - part.start) as usize]);
    }
}

#[test]
fn each_failure_of_a_reset_leaves_the_slot_as_before_or_unusable() {
    each_failure_of_a_reset(&case());
}

#[test]
fn each_failure_of_a_reset_to_a_branch_leaves_the_slot_as_before_or_unusable() {
    each_failure_of_a_reset(&branch_case());
}

#[test]
fn each_failure_of_a_reset_to_a_file_leaves_the_slot_as_before_or_unusable() {
    each_failure_of_a_reset(&parts_case());
}

/// Pages that the image has, pages that it has not, and zeros.
fn branch_case() -> Case {
    let case = case();
    let [first, second] = [case.memory(0), case.memory(1)];
    let pages = [
        (first + PAGE, 1),
        (first + 2 * PAGE, 2),
        (first + 39 * PAGE, 0),
        (first + 40 * PAGE, 3),
        (second, 0),
        (second + 63 * PAGE, 4),
    ];
    case.branch("branch", &pages)
}

fn each_failure_of_a_reset(case: &Case) {
    HostFeatures::get().unwrap();
    for strategies in all_strategies() {
        let strategies = tight(&strategies);
        let mut slot = case.spawn(&strategies);
        for all_later in [false, true] {
            for nth in 0.. {
                change(case, &mut slot);
                let sizes = memory_sizes(&slot);
                let what = format!("{:?}, call {nth}", strategies.config());
                let outcome = if all_later {
                    fail_from(nth, libc::ENOMEM, || slot.reset_for(OWNER))
                } else {
                    fail_nth(nth, libc::ENOMEM, || slot.reset_for(OWNER))
                };
                match &outcome.value {
                    // Nothing failed, or it did not matter.
                    Ok(_) => {
                        case.assert_fresh(&slot, &strategies, &what);
                        case.assert_bounded(&slot, &strategies, &what);
                        case.assert_growth_is_zero(&mut slot, &what);
                    }
                    Err(_) if slot.is_whole() && memory_sizes(&slot) == sizes => {
                        let all = case.parts(&slot).into_iter().flat_map(|part| read(&slot, part));
                        let same = all.into_iter().all(|byte| byte == 0x3c);
                        assert!(same, "{what}: neither as before nor refused");
                    }
                    Err(_) => {
                        let grown: Vec<_> =
                            (0..2).map(|index| slot.grow_memory(index, 200 * PAGE)).collect();
                        assert!(grown.contains(&Err(PagesError::ResetIncomplete)), "{what}");
                    }
                }
                // Failing once more changes nothing of that.
                if outcome.value.is_err() {
                    let again = fail_from(0, libc::EIO, || slot.reset_for(OWNER));
                    assert!(again.value.is_err(), "{what}");
                }
                slot.reset_for(OWNER).unwrap();
                case.assert_fresh(&slot, &strategies, &what);
                case.assert_bounded(&slot, &strategies, &what);
                case.assert_growth_is_zero(&mut slot, &what);
                slot.reset_for(OWNER).unwrap();
                if outcome.failed.is_none() {
                    assert!(nth > 0, "{what}: every strategy makes calls");
                    break;
                }
            }
        }
    }
}

#[test]
fn each_failure_of_filling_a_slot_again_leaves_it_as_before_or_unusable() {
    for case in [case(), branch_case(), parts_case()] {
        each_failure_of_filling(&case);
    }
}

fn each_failure_of_filling(case: &Case) {
    let other = Image::new("other", case.memory(0)..case.memory(0), []).unwrap();
    HostFeatures::get().unwrap();
    for strategies in all_strategies() {
        let mut slot = case.spawn(&strategies);
        for nth in 0.. {
            change(case, &mut slot);
            let outcome = fail_nth(nth, libc::ENOMEM, || slot.reset_to(&other, &case.sizes, OWNER));
            let what = format!("{:?}, call {nth}", strategies.config());
            // What cannot be copied ahead is copied when it is touched.
            let failed = outcome.failed.filter(|call| *call != Call::CopyPage);
            assert_eq!(outcome.value.is_err(), failed.is_some(), "{what}");
            if !slot.is_whole() {
                for index in 0..2 {
                    let error = slot.grow_memory(index, 200 * PAGE).unwrap_err();
                    assert_eq!(error, PagesError::ResetIncomplete, "{what}");
                }
                // Whatever it was to become, a reset makes it whole.
                slot.reset_for(OWNER).unwrap();
                assert!(slot.is_whole());
            }
            slot.reset_to(&case.image, &case.sizes, OWNER).unwrap();
            case.assert_fresh(&slot, &strategies, &what);
            case.assert_bounded(&slot, &strategies, &what);
            if outcome.failed.is_none() {
                break;
            }
        }
    }
}

/// What looks at a slot changes neither the slot nor its image.
#[test]
fn each_failure_of_a_snapshot_leaves_slot_and_image_as_they_were() {
    // Few pages are a branch, many are whole.
    let parts = (parts_case(), 3);
    for (case, pages) in
        [(case(), 3), (case(), 120), (branch_case(), 3), (branch_case(), 120), parts]
    {
        HostFeatures::get().unwrap();
        for strategies in all_strategies() {
            let mut slot = case.spawn(&strategies);
            let what = format!("{} {:?}", case.name, strategies.config());
            for nth in 0.. {
                slot.enter();
                slot.grow_memory(0, 128 * PAGE).unwrap();
                for page in 0..pages {
                    write(&slot, case.memory(0) + page * PAGE, &[0x2f; 20]);
                }
                let changed = fail_nth(nth, libc::EIO, || slot.changed_pages());
                // A page that could not be copied when it was touched is touched again.
                let fails =
                    |failed: Option<Call>| failed.is_some_and(|call| call != Call::CopyPage);
                assert_eq!(changed.value.is_err(), fails(changed.failed), "{what}");
                let outcome = fail_nth(nth, libc::ENOMEM, || {
                    slot.snapshot("snapshot", &[], ImageForm::Branch)
                });
                assert_eq!(outcome.value.is_err(), fails(outcome.failed), "{what}");
                assert_eq!(slot.changed_pages().unwrap(), case.changed_pages(&slot), "{what}");
                let again = slot.snapshot("snapshot", &[], ImageForm::Branch).unwrap();
                case.assert_snapshot(&slot, &again, &what);
                assert_eq!(again.parent().is_some(), pages == 3, "{what}");
                slot.reset_for(OWNER).unwrap();
                case.assert_fresh(&slot, &strategies, &what);
                case.assert_growth_is_zero(&mut slot, &what);
                slot.reset_for(OWNER).unwrap();
                if outcome.failed.is_none() {
                    break;
                }
            }
        }
    }
}

/// Also the maps and descriptors of the process.
#[test]
fn a_failed_branch_leaves_nothing() {
    in_own_process("a_failed_branch_leaves_nothing", || {
        let case = branch_case();
        let extents = case.image.extents().to_vec();
        let bytes = pattern(0x77, 40 * PAGE);
        for pages in [3, 40] {
            let runs = [(case.memory(0), &bytes[..pages * PAGE as usize])];
            let branch = || Image::branch(&case.image, "branch", extents.clone(), runs);
            let made = branch().unwrap();
            assert_eq!(made.parent().is_some(), pages == 3);
            drop(made);
            let before = held();
            for nth in 0.. {
                let outcome = fail_nth(nth, libc::ENOMEM, branch);
                assert_eq!(outcome.value.is_err(), outcome.failed.is_some());
                drop(outcome.value);
                assert_eq!(held(), before, "{:?}", outcome.failed);
                if outcome.failed.is_none() {
                    break;
                }
            }
        }
    });
}

#[test]
fn a_slot_that_is_not_whole_has_no_snapshot() {
    let case = branch_case();
    let mut slot = case.spawn(&strategies(ResetKind::Discard));
    change(&case, &mut slot);
    fail_from(1, libc::ENOMEM, || slot.reset()).value.unwrap_err();
    assert!(!slot.is_whole());
    assert_eq!(slot.changed_pages(), Err(PagesError::ResetIncomplete));
    for patches in [&[][..], &[(case.memory(0), &b"x"[..])]] {
        assert_eq!(
            slot.snapshot("n", patches, ImageForm::Branch).unwrap_err(),
            PagesError::ResetIncomplete
        );
    }
    slot.reset().unwrap();
    assert_eq!(slot.changed_pages(), Ok(Vec::new()));
}

#[test]
fn a_failed_spawn_leaves_maps_and_descriptors_as_they_were() {
    in_own_process("a_failed_spawn_leaves_maps_and_descriptors_as_they_were", || {
        let layout = layout();
        let bytes = pattern(1, PAGE);
        let sizes = [pagefork_pages::MemorySize { initial: WASM_PAGE, maximum: 4 * WASM_PAGE }];
        for strategies in all_strategies() {
            let spawn = || {
                let runs = [(layout.base - PAGE, &bytes[..])];
                let image = Image::new("spawn", layout.image_start..layout.base, runs)?;
                let mut slot = Slot::with_strategies(&layout, &image, &sizes, &strategies)?;
                slot.reset_to(&image, &sizes, OWNER)?;
                drop(slot);
                Ok::<_, PagesError>(())
            };
            spawn().unwrap();
            let before = held();
            for nth in 0.. {
                let outcome = fail_nth(nth, libc::ENOMEM, spawn);
                if outcome.failed == Some(Call::Release) {
                    // What a failed release leaves is retried with the next one.
                    spawn().unwrap();
                } else if let Some(Call::CreateImage | Call::Replace) = outcome.failed {
                    // Then an image cannot be made; a memory can grow otherwise, and what is
                    // dropped keeps a map until it is given back.
                    let grows = strategies.config().growth == pagefork_pages::GrowthKind::Ftruncate;
                    assert!(outcome.value.is_err() || grows);
                } else {
                    let what = format!("{:?}: {:?}", strategies.config(), outcome.failed);
                    assert_eq!(outcome.value.is_err(), outcome.failed.is_some(), "{what}");
                }
                assert_eq!(held(), before, "{:?}: {:?}", strategies.config(), outcome.failed);
                if outcome.failed.is_none() {
                    break;
                }
            }
        }
    });
}

/// Everything that [`change`] does, again and again, under what is there instead.
fn all_hold() {
    let mut cases = cases();
    cases.extend(branch_cases());
    cases.retain(|case| !["large", "branch of large"].contains(&case.name));
    cases.push(case());
    for case in &cases {
        for strategies in all_strategies() {
            let mut slot = case.spawn(&strategies);
            let what = format!("{}: {:?}, {}", case.name, strategies.config(), slot.strategy());
            for round in 0..4 {
                slot.enter();
                for index in 0..slot.memory_count() {
                    slot.grow_memory(index, case.sizes[index].maximum).unwrap();
                }
                for (step, part) in (1..).zip(case.parts(&slot)) {
                    for page in (part.start..part.end).step_by((step + round) * PAGE as usize) {
                        write(&slot, page, &[0xaa; 17]);
                    }
                }
                if round == 1 {
                    assert_eq!(slot.changed_pages().unwrap(), case.changed_pages(&slot), "{what}");
                    let snapshot = slot.snapshot("snapshot", &[], ImageForm::Branch).unwrap();
                    case.assert_snapshot(&slot, &snapshot, &what);
                }
                slot.reset_for(OWNER).unwrap();
                case.assert_fresh(&slot, &strategies, &what);
                case.assert_bounded(&slot, &strategies, &what);
                slot.reset_for(OWNER).unwrap();
                case.assert_fresh(&slot, &strategies, &what);
                case.assert_growth_is_zero(&mut slot, &what);
                slot.reset_for(OWNER).unwrap();
            }
        }
    }
}

#[cfg(not(feature = "no-cow"))]
fn used(kind: ResetKind) -> (ResetKind, Reason) {
    let choice = strategies(kind).choice().unwrap();
    (choice.used, choice.reason)
}

#[test]
#[cfg(not(feature = "no-cow"))]
fn without_pagemap_scan_the_page_map_is_read() {
    in_own_process("without_pagemap_scan_the_page_map_is_read", || {
        fail_all(Call::Scan, libc::ENOTTY, HostFeatures::get).unwrap();
        assert_eq!(used(ResetKind::Scan), (ResetKind::Scan, Reason::ReadsPageMap));
        all_hold();
        let case = case();
        let mut slot = case.spawn(&strategies(ResetKind::Scan));
        change(&case, &mut slot);
        let calls = record(|| slot.reset().unwrap()).1;
        assert!(calls.contains(&Call::ReadPagemap) && !calls.contains(&Call::Scan));
    });
}

/// A kernel before 6.7 where perf is forbidden, on which things take that long: what `Auto` uses after each
/// of `rounds` runs that write another page each time, and why; then of `large` runs that write a hundred.
#[cfg(not(feature = "no-cow"))]
fn auto_without_scans_and_counting(
    times: Times,
    rounds: u64,
    large: u64,
) -> Vec<(ResetKind, Reason)> {
    fail_all(Call::Scan, libc::ENOTTY, HostFeatures::get).unwrap();
    fail_all(Call::WatchFaults, libc::EACCES, || {
        assert!(!pagefork_pages::counts_faults_in_memory());
    });
    let (image, _) = dense_image(&layout_of(&[MemoryType::new(0, None)]), 0x42, 4 * MIB);
    let case = Case::new("wide", layout_of(&[MemoryType::new(0, None)]), image, (4 * MIB, 4 * MIB));
    let strategies = strategies(ResetKind::Auto);
    let mut slot = case.spawn(&strategies);
    let used = (0..rounds + large).map(|round| {
        slot.enter();
        for page in 0..if round < rounds { 1 } else { 100 } {
            let place = (round * 7 + page * 11) % (4 * MIB / PAGE) * PAGE;
            write(&slot, case.memory(0) + place, &[0xab]);
        }
        with_times(times, || slot.reset_for(OWNER).unwrap());
        (slot.strategy().used, slot.strategy().reason)
    });
    let used = used.collect();
    case.assert_fresh(&slot, &strategies, "auto");
    used
}

#[test]
#[cfg(not(feature = "no-cow"))]
fn where_reading_the_page_map_costs_more_all_is_discarded() {
    in_own_process("where_reading_the_page_map_costs_more_all_is_discarded", || {
        let quick = Times {
            fault: 1500,
            protected_fault: 1000,
            search: 20_000,
            search_all: 200_000,
            discard_all: 4000,
        };
        let used = auto_without_scans_and_counting(quick, 1000, 0);
        let blind = |(kind, _): &&(ResetKind, Reason)| *kind == ResetKind::Discard;
        assert!(used.iter().filter(blind).count() > 700, "{used:?}");
        assert!(used.iter().any(|(_, reason)| matches!(reason, Reason::Compared { .. })));
        assert!(!used[200..].iter().all(|used| blind(&used)), "it looks again");
    });
}

/// However long nothing else was tried.
#[test]
#[cfg(not(feature = "no-cow"))]
fn where_all_is_discarded_and_runs_come_to_write_much_it_is_looked_for_at_once() {
    in_own_process(
        "where_all_is_discarded_and_runs_come_to_write_much_it_is_looked_for_at_once",
        || {
            let quick = Times {
                fault: 2500,
                protected_fault: 1000,
                search: 20_000,
                search_all: 50_000,
                discard_all: 4000,
            };
            let used = auto_without_scans_and_counting(quick, 10_000, 300);
            let blind = |used: &[(ResetKind, Reason)]| {
                used.iter().filter(|(kind, _)| *kind == ResetKind::Discard).count()
            };
            let (before, then) = (blind(&used[9_000..10_000]), blind(&used[10_000..]));
            assert!(before > 900 && then < 50, "{before}, {then}");
            let last = used.last().unwrap().0;
            assert_eq!(last, ResetKind::Resident, "they write what others wrote");
        },
    );
}

#[test]
#[cfg(not(feature = "no-cow"))]
fn where_reading_the_page_map_costs_less_discarding_is_tried_less_and_less() {
    in_own_process(
        "where_reading_the_page_map_costs_less_discarding_is_tried_less_and_less",
        || {
            let dear = Times {
                fault: 1500,
                protected_fault: 1000,
                search: 1000,
                search_all: 1000,
                discard_all: 500_000,
            };
            let used = auto_without_scans_and_counting(dear, 3000, 0);
            let blind = |used: &[(ResetKind, Reason)]| {
                used.iter().filter(|(kind, _)| *kind == ResetKind::Discard).count()
            };
            let (first, last) = (blind(&used[..1000]), blind(&used[1000..]));
            assert!((1..=100).contains(&first) && last < first, "{first}, {last}");
        },
    );
}

#[test]
#[cfg(not(feature = "no-cow"))]
fn without_a_page_map_pages_are_discarded() {
    in_own_process("without_a_page_map_pages_are_discarded", || {
        fail_all(Call::OpenPagemap, libc::EACCES, HostFeatures::get).unwrap();
        for kind in [ResetKind::Scan, ResetKind::Resident, ResetKind::Auto] {
            assert_eq!(used(kind), (ResetKind::Discard, Reason::NoPageMap));
        }
        all_hold();
    });
}

/// Some emulators return success and do nothing.
#[test]
#[cfg(not(feature = "no-cow"))]
fn where_discarding_does_nothing_pages_are_mapped_anew() {
    in_own_process("where_discarding_does_nothing_pages_are_mapped_anew", || {
        pretend(Call::Discard, HostFeatures::get).unwrap();
        for kind in ResetKind::ALL {
            let (used, reason) = used(kind);
            match kind {
                ResetKind::Remap | ResetKind::Copy => assert_eq!(reason, Reason::Asked),
                _ => assert_eq!((used, reason), (ResetKind::Remap, Reason::DiscardDoesNothing)),
            }
        }
        pretend(Call::Discard, all_hold);
    });
}

#[test]
fn copy_on_write_can_be_switched_off_by_the_environment() {
    in_own_process("copy_on_write_can_be_switched_off_by_the_environment", || {
        // SAFETY: no other thread of this process reads the environment now.
        unsafe { std::env::set_var("PAGEFORK_COW", "0") };
        for kind in ResetKind::ALL {
            assert_eq!(strategies(kind).choice().unwrap().used, ResetKind::Copy);
        }
        all_hold();
        let case = case();
        let slot = case.spawn(&strategies(ResetKind::Auto));
        let maps = attributes(&slot);
        assert!(maps.iter().all(|map| !map.file.contains("memfd")), "{maps:#?}");
        assert!(Arc::ptr_eq(slot.image(), &case.image));
    });
}
