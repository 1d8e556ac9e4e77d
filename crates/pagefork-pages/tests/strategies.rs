//! After a reset by any strategy a slot is as a fresh one, byte by byte and map by
//! map, whatever was done to it.

mod common;
#[path = "common/conformance.rs"]
mod conformance;
#[path = "common/matrix.rs"]
mod matrix;
#[path = "common/swap.rs"]
mod swap;

use std::sync::Arc;

use common::*;
use conformance::*;
use matrix::*;
use pagefork_pages::{CodeBounds, GrowthKind, ResetKind, StrategyConfig};
use swap::*;

#[test]
fn after_every_mutation_a_reset_slot_is_as_a_fresh_one() {
    conformance(&cases(), 3);
}

/// Each has to make what a thread needs; what the kernel can do is tried by one of them.
#[test]
fn three_hundred_threads_begin_at_once() {
    in_own_process("three_hundred_threads_begin_at_once", || {
        let layout = layout();
        let image = empty_image(&layout);
        let case = Case::new("none", layout, image, (WASM_PAGE, 4 * WASM_PAGE));
        let barrier = std::sync::Barrier::new(300);
        let begin = || {
            barrier.wait();
            let strategies = strategies(ResetKind::Auto);
            let mut slot = case.spawn(&strategies);
            for _ in 0..20 {
                slot.enter();
                write(&slot, case.layout.link.start, &[1]);
                write(&slot, case.memory(0) + 9, &[7; 5000]);
                slot.reset_for(OWNER).unwrap();
            }
            case.assert_fresh(&slot, &strategies, "at the end");
        };
        std::thread::scope(|scope| (0..300).for_each(|_| drop(scope.spawn(begin))));
    });
}

/// Wasmtime's scan stopped after 32 regions.
#[test]
fn a_thousand_disjoint_runs_are_all_found() {
    let (image, _) = dense_image(&layout(), 0x61, 4 * MIB);
    let case = Case::new("runs", layout(), image, (16 * MIB, 16 * MIB));
    for kind in ResetKind::ALL {
        let strategies = strategies(kind);
        let mut slot = case.spawn(&strategies);
        for step in [2, 3, 2] {
            slot.enter();
            for run in 0..1000 {
                write(&slot, case.memory(0) + step * run * PAGE + run, &[0xdd]);
            }
            let report = slot.reset_for(OWNER).unwrap();
            if report.scanned {
                assert!(report.private >= Some(1000), "{kind}: {report:?}");
            }
            case.assert_fresh(&slot, &strategies, &kind.to_string());
        }
    }
}

/// Wasmtime PR 14357: a scan for present pages missed those in swap space.
#[test]
fn pages_in_swap_space_are_restored() {
    let Some(_swap) = Swap::on() else { return };
    let swapped = ["none", "dense", "file", "branch of a branch"];
    let all = cases().into_iter().chain(branch_cases());
    for case in all.filter(|case| swapped.contains(&case.name)) {
        for strategies in all_strategies() {
            let config = strategies.config();
            let what = format!("{} {} {:?}", case.name, config.reset, config.growth);
            let mut slot = case.spawn(&strategies);
            for round in 0..3 {
                slot.enter();
                let mut random = Random(77 + round);
                everything(&case, &mut slot, &mut random);
                let mut swapped = 0;
                for part in case.parts(&slot) {
                    page_out(&slot, &part);
                    swapped += pages_with(&slot, &part, SWAPPED);
                }
                assert!(swapped > 10, "{what}: {swapped} pages in swap space");
                slot.reset_for(OWNER).unwrap();
                case.assert_fresh(&slot, &strategies, &what);
                // Kept pages go to swap space too, and come back as they were.
                for part in case.parts(&slot) {
                    page_out(&slot, &part);
                }
                slot.reset_for(OWNER).unwrap();
                case.assert_fresh(&slot, &strategies, &what);
                case.assert_growth_is_zero(&mut slot, &what);
                slot.reset_for(OWNER).unwrap();
            }
        }
    }
}

/// A signal of the processor, not only what the kernel says.
#[test]
fn a_read_beyond_a_smaller_size_after_growth_raises_a_signal() {
    let case = &cases()[1];
    for strategies in all_strategies() {
        let config = strategies.config();
        // That of a touch which is not served is no signal in the child that looks: in a test of their own.
        if config.growth == GrowthKind::Fault {
            continue;
        }
        let mut slot = case.spawn(&strategies);
        slot.enter();
        slot.grow_memory(0, case.sizes[0].maximum).unwrap();
        write(&slot, case.memory(0), &pattern(1, case.sizes[0].maximum));
        slot.reset_for(OWNER).unwrap();
        let end = accessible_bytes(&slot, 0, &strategies, case.sizes[0]);
        let place = slot.base().wrapping_add(end as usize);
        assert_eq!(signal_of_reading(place.wrapping_sub(1)), None, "{config:?}");
        // What lies behind the end of a file is another one.
        let ends = config.growth == GrowthKind::Ftruncate;
        let signal = if ends { libc::SIGBUS } else { libc::SIGSEGV };
        assert_eq!(signal_of_reading(place), Some(signal), "{config:?}");
    }
}

/// The signal that ends a process that reads a byte.
fn signal_of_reading(place: *const u8) -> Option<i32> {
    // SAFETY: the child reads one byte, which may end it, and exits.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            libc::setrlimit(libc::RLIMIT_CORE, &none);
            libc::signal(libc::SIGSEGV, libc::SIG_DFL);
            libc::signal(libc::SIGBUS, libc::SIG_DFL);
            place.read_volatile();
            libc::_exit(0);
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status))
    }
}

/// CVE-2022-39393, for slots that are filled again.
#[test]
fn image_no_image_and_other_image_in_every_order() {
    let one = layout();
    let other = dense_image(&one, 0xee, PAGE).0;
    let cases: Vec<Case> = cases().into_iter().filter(|case| case.sizes.len() == 1).collect();
    let mut cases: Vec<&Case> = cases.iter().filter(|case| case.name != "large").collect();
    let branches = branch_cases();
    let of_one = ["branch of dense", "branch of a branch", "branch of a file"];
    cases.extend(branches.iter().filter(|case| of_one.contains(&case.name)));
    let small = Case::new("other", layout(), other, (PAGE, PAGE));
    let nothing = Case::new("nothing", layout(), empty_image(&one), (0, 0));
    cases.extend([&small, &nothing]);
    for strategies in all_strategies() {
        let mut slot = cases[0].spawn(&strategies);
        let mut random = Random(5);
        for first in &cases {
            for second in &cases {
                for case in [first, second] {
                    let report = slot.reset_to(&case.image, &case.sizes, OWNER).unwrap();
                    assert_eq!(report.by, ResetKind::Remap);
                    let what = format!("{:?}: {}", strategies.config().reset, case.name);
                    case.assert_fresh(&slot, &strategies, &what);
                    case.assert_bounded(&slot, &strategies, &what);
                    slot.enter();
                    growth(case, &mut slot, &mut random);
                    everything(case, &mut slot, &mut random);
                    if random.below(2) == 0 {
                        slot.reset_for(OWNER).unwrap();
                        case.assert_fresh(&slot, &strategies, &what);
                        slot.enter();
                        stores(case, &mut slot, &mut random);
                    }
                }
            }
        }
    }
}

/// Access is a matter of whole pages: of a page that is not to be accessible as a whole,
/// nothing is.
#[test]
fn a_part_of_a_page_is_not_accessible_from_the_start() {
    let (image, _) = dense_image(&layout(), 0x42, 3 * PAGE);
    let case = Case::new("dense", layout(), image, (WASM_PAGE, 16 * WASM_PAGE));
    for accessible in [1, 5000, WASM_PAGE + 1, 2 * WASM_PAGE - 1, 2 * WASM_PAGE] {
        for reset in ResetKind::ALL {
            let growth = GrowthKind::Checked { accessible: Some(accessible) };
            let code = CodeBounds::Checked;
            let config = StrategyConfig { reset, growth, code, ..StrategyConfig::default() };
            let strategies = config.check().unwrap();
            let what = format!("{reset}, {accessible}");
            let mut slot = case.spawn(&strategies);
            for _ in 0..3 {
                case.assert_bounded(&slot, &strategies, &what);
                slot.enter();
                case.assert_growth_is_zero(&mut slot, &what);
                overwrite(&case.layout, &slot, 0x5c);
                slot.reset_for(OWNER).unwrap();
                case.assert_fresh(&slot, &strategies, &what);
            }
        }
    }
}

#[test]
fn a_slot_that_was_filled_again_has_no_resident_and_no_written_pages() {
    let (image, _) = dense_image(&layout(), 0x42, 3 * PAGE);
    let case = Case::new("dense", layout(), Arc::clone(&image), (WASM_PAGE, 16 * WASM_PAGE));
    let mut slot = case.spawn(&strategies(ResetKind::Scan));
    slot.enter();
    overwrite(&case.layout, &slot, 7);
    slot.reset_for(OWNER).unwrap();
    assert!(slot.resident() > 0 && slot.written() > 0);
    slot.reset_to(&image, &case.sizes, OWNER).unwrap();
    assert_eq!((slot.resident(), slot.written()), (0, 0));
}
