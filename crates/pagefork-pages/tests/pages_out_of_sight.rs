//! Pages that are private and that no reset sees now, because they lie beyond the memory or
//! became so with a huge page: they are known when page faults are counted.
#![cfg(not(feature = "no-cow"))]

mod common;
#[path = "common/matrix.rs"]
mod matrix;

use common::*;
use matrix::*;
#[cfg(debug_assertions)]
use pagefork_pages::{Call, inject::fail_all};
use pagefork_pages::{GrowthKind, Image, ResetKind, Slot, StrategyConfig};

/// Slots with much memory may have huge pages until their runs are seen to be small. What became
/// private with them is known when faults are counted, also what no run could see meanwhile.
#[test]
fn pages_that_huge_pages_made_private_are_not_forgotten_when_those_are_refused() {
    assert_that_huge_pages_hide_nothing();
}

/// Else a write to what was hidden is a fault, too.
#[test]
#[cfg(debug_assertions)]
fn where_no_page_can_be_protected_what_huge_pages_made_private_is_not_forgotten() {
    fail_all(Call::WatchWrites, libc::EPERM, assert_that_huge_pages_hide_nothing);
}

fn assert_that_huge_pages_hide_nothing() {
    let nothing = Image::new("nothing", layout().base..layout().base, []).unwrap();
    let case = Case::new("large", layout(), nothing, (24 * MIB, 32 * MIB));
    let strategies = strategies(ResetKind::Auto);
    let mut slot = case.spawn(&strategies);
    let high = case.memory(0) + 24 * MIB;
    let huge_at = |slot: &Slot| {
        let place = slot.start() as u64 + high;
        24 * MIB + (place.next_multiple_of(2 * MIB) - place)
    };
    let at = huge_at(&slot);
    slot.enter();
    slot.grow_memory(0, 32 * MIB).unwrap();
    write(&slot, case.memory(0) + at, &[1]);
    slot.reset_for(OWNER).unwrap();
    // As the kernel does by itself, at any time; the memory is shorter now.
    let collapsed = collapse(&slot, at, 2 * MIB);
    until_resident(&case, &mut slot);
    assert!(attributes(&slot).iter().all(|map| map.flags.contains("nh")), "refused");
    for round in 0..3 {
        slot.enter();
        slot.grow_memory(0, 32 * MIB).unwrap();
        for page in [1, 100, 511] {
            write(&slot, case.memory(0) + at + page * PAGE, &[7]);
        }
        slot.reset_for(OWNER).unwrap();
        case.assert_growth_is_zero(&mut slot, "of a huge page");
        slot.reset_for(OWNER).unwrap();
        eprintln!("round {round}, collapsed {collapsed}");
    }
    case.assert_fresh(&slot, &strategies, "of a huge page");
}

/// What is accessible beyond a memory's size may be private too, with a huge page around its end.
#[test]
fn a_huge_page_around_the_end_of_a_memory_is_not_forgotten_when_those_are_refused() {
    assert_that_ends_hide_nothing();
}

/// Else a write to what was hidden is a fault, too.
#[test]
#[cfg(debug_assertions)]
fn where_no_page_can_be_protected_a_huge_page_around_the_end_of_a_memory_is_not_forgotten() {
    fail_all(Call::WatchWrites, libc::EPERM, assert_that_ends_hide_nothing);
}

fn assert_that_ends_hide_nothing() {
    let base = layout().base;
    let middle = 24 * MIB + (base.next_multiple_of(2 * MIB) - base) + MIB;
    let nothing = Image::new("nothing", base..base, []).unwrap();
    let case = Case::new("large", layout(), nothing, (middle, 32 * MIB));
    let growth = GrowthKind::Checked { accessible: None };
    let code = pagefork_pages::CodeBounds::Dual;
    let config = StrategyConfig { growth, code, ..Default::default() };
    let strategies = config.check().unwrap();
    let mut slot = case.spawn(&strategies);
    slot.enter();
    write(&slot, case.memory(0) + middle - MIB, &[1]);
    // As the kernel does by itself, at any time.
    let collapsed = collapse(&slot, middle - MIB, 2 * MIB);
    slot.reset_for(OWNER).unwrap();
    until_resident(&case, &mut slot);
    for _ in 0..3 {
        slot.enter();
        slot.grow_memory(0, 32 * MIB).unwrap();
        for page in [1, 100, 255] {
            write(&slot, case.memory(0) + middle + page * PAGE, &[7]);
        }
        slot.reset_for(OWNER).unwrap();
        case.assert_growth_is_zero(&mut slot, "of a huge page");
        slot.reset_for(OWNER).unwrap();
    }
    case.assert_fresh(&slot, &strategies, "of a huge page");
    if !collapsed {
        eprintln!("NOT TESTED: this machine makes no huge pages");
    }
}

/// A discard sees no page, so it is no sign that runs are small.
#[test]
fn huge_pages_stay_where_runs_are_so_large_that_all_is_discarded() {
    let nothing = Image::new("nothing", layout().base..layout().base, []).unwrap();
    let case = Case::new("large", layout(), nothing, (128 * MIB, 128 * MIB));
    let mut slot = case.spawn(&strategies(ResetKind::Auto));
    let mut discards = 0;
    for run in 0..200 {
        slot.enter();
        for page in 0..600 {
            let page = (run * 600 + page) % (128 * MIB / PAGE);
            write(&slot, case.memory(0) + page * PAGE, &[7]);
        }
        discards += u32::from(slot.reset_for(OWNER).unwrap().by == ResetKind::Discard);
    }
    assert!(discards > 32, "{discards}, {}", slot.strategy());
    assert!(attributes(&slot).iter().all(|map| !map.flags.contains("nh")), "{}", slot.strategy());
}

/// Pages that are inaccessible after a run stay known, whatever fails.
#[test]
#[cfg(debug_assertions)]
fn pages_out_of_sight_are_not_forgotten_by_a_reset_that_fails() {
    let nothing = Image::new("nothing", layout().base..layout().base, []).unwrap();
    let case = Case::new("large", layout(), nothing, (24 * MIB, 32 * MIB));
    let strategies = strategies(ResetKind::Auto);
    // At one of these huge pages are refused.
    for failing in 12..20 {
        let mut slot = case.spawn(&strategies);
        let run = |slot: &mut Slot| {
            dirty(&case, slot, 1);
            slot.grow_memory(0, 32 * MIB).unwrap();
            for page in [1, 100, 511] {
                write(slot, case.memory(0) + 28 * MIB + page * PAGE, &[7]);
            }
        };
        for _ in 0..failing {
            run(&mut slot);
            slot.reset_for(OWNER).unwrap();
        }
        dirty(&case, &mut slot, 1);
        slot.grow_memory(0, 24 * MIB + PAGE).unwrap();
        fail_all(Call::Protect, libc::ENOMEM, || slot.reset_for(OWNER)).unwrap_err();
        slot.reset_for(OWNER).unwrap();
        until_resident(&case, &mut slot);
        run(&mut slot);
        slot.reset_for(OWNER).unwrap();
        case.assert_growth_is_zero(&mut slot, &format!("reset {failing}"));
        slot.reset_for(OWNER).unwrap();
        case.assert_fresh(&slot, &strategies, "after a failure");
    }
}

/// Also where the slot was to become another one then.
#[test]
#[cfg(debug_assertions)]
fn pages_out_of_sight_are_not_forgotten_by_an_image_that_does_not_fit() {
    let (image, _) = dense_image(&layout(), 0x42, 4 * MIB);
    let case = Case::new("dense", layout(), image, (4 * MIB, 8 * MIB));
    let misfit = dense_image(&layout(), 1, 9 * MIB).0;
    for kind in ResetKind::ALL {
        let strategies = strategies(kind);
        let mut slot = case.spawn(&strategies);
        let run = |slot: &mut Slot| {
            dirty(&case, slot, 1);
            write(slot, case.layout.link.start, &[1]);
            slot.grow_memory(0, 8 * MIB).unwrap();
            write(slot, case.memory(0) + 6 * MIB, &[7]);
        };
        for _ in 0..3 {
            run(&mut slot);
            slot.reset_for(OWNER).unwrap();
        }
        dirty(&case, &mut slot, 1);
        slot.grow_memory(0, 4 * MIB + PAGE).unwrap();
        let failed = fail_all(Call::Protect, libc::ENOMEM, || slot.reset_for(OWNER));
        assert_eq!(failed.is_err(), kind != ResetKind::Remap);
        slot.reset_to(&misfit, &case.sizes, OWNER).unwrap_err();
        for _ in 0..2 {
            slot.reset_for(OWNER).unwrap();
            dirty(&case, &mut slot, 1);
        }
        slot.reset_for(OWNER).unwrap();
        run(&mut slot);
        slot.reset_for(OWNER).unwrap();
        case.assert_growth_is_zero(&mut slot, &kind.to_string());
        slot.reset_for(OWNER).unwrap();
        case.assert_fresh(&slot, &strategies, "after a failure");
    }
}
