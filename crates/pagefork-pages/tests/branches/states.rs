//! Pages in every state between two snapshots, by every tracker: those that were write-protected when they went to
//! swap space too, and those that memories have grown by, in each way.

use pagefork_pages::{CodeBounds, DeltaTracker, GrowthKind};

use super::states::{PAGES, every_state};
use super::successive::{Run, TRACKERS};
use super::swap::{PROTECTED, SWAPPED, Swap, pages_with};
use super::*;

#[test]
fn every_state_of_a_page_between_two_snapshots_by_every_tracker() {
    let swap = Swap::on();
    let (image, _) = dense_image(&layout(), 0x42, 128 * PAGE);
    let case = Case::new("dense", layout(), image, (16 * WASM_PAGE, 32 * WASM_PAGE));
    // Of the image, at its end, behind it, and of what the memory grows by.
    let firsts = [3, 126 - PAGES / 2, 180, 16 * WASM_PAGE / PAGE + 5];
    for deltas in TRACKERS {
        for growth in [GrowthKind::Mprotect, GrowthKind::Ftruncate, GrowthKind::Fault] {
            let (mut swapped, mut protected) = (0, 0);
            let mut protects = false;
            for reset in [ResetKind::Auto, ResetKind::Discard, ResetKind::Copy, ResetKind::Fault] {
                let code = CodeBounds::Checked;
                let config = StrategyConfig { deltas, reset, growth, code, ..Default::default() };
                let strategies = config.check().unwrap();
                let what = format!("{deltas}, {reset}, {growth:?}");
                let mut run = Run::by(&case, &strategies, what);
                protects |= matches!(run.tracker, DeltaTracker::Writes | DeltaTracker::Fault);
                for round in 0..20 {
                    let has_grown = round % 10 > 1;
                    if has_grown {
                        run.slot.grow_memory(0, 24 * WASM_PAGE).unwrap();
                    }
                    run.slot.enter();
                    let firsts = &firsts[..if has_grown { 4 } else { 3 }];
                    every_state(&case, &mut run.slot, round, firsts);
                    for part in case.image_parts(&run.slot) {
                        swapped += pages_with(&run.slot, &part, SWAPPED);
                        protected += pages_with(&run.slot, &part, SWAPPED | PROTECTED);
                    }
                    run.snapshot(false);
                    if round % 10 == 9 {
                        run.slot.reset_for(OWNER).unwrap();
                        case.assert_fresh(&run.slot, &strategies, &run.what);
                        run.begin_anew();
                    }
                }
            }
            let what = format!("{deltas}, {growth:?}: {swapped} swapped, {protected} of them");
            assert!(swap.is_none() || swapped > 100, "{what}");
            assert!(swap.is_none() || !protects || protected > 10, "{what}");
        }
    }
}
