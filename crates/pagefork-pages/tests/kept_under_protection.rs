//! Pages that stay private under write protection: faults show that they were written, resets do not
//! look at them until then, and whatever state pages are in, a reset slot is as a fresh one.
#![cfg(not(feature = "no-cow"))]

mod common;
#[path = "common/matrix.rs"]
mod matrix;
#[path = "common/states.rs"]
mod states;
#[path = "common/idle.rs"]
mod idle;
#[path = "common/swap.rs"]
mod swap;
#[cfg(debug_assertions)]
#[path = "kept_under_protection/by_search.rs"]
mod by_search;

use common::*;
use idle::on_an_idle_machine;
use matrix::*;
use pagefork_pages::{
    Budget, CodeBounds, DeltaTracker, ExternalWriter, GrowthKind, Image, Reason, ResetKind,
    ResetReport, Slot, Strategies, StrategyConfig, counts_faults_in_memory, notes_writes,
};
use states::*;
use swap::*;

fn case() -> Case {
    let (image, _) = dense_image(&layout(), 0x42, 2 * MIB);
    Case::new("dense", layout(), image, (4 * MIB, 8 * MIB))
}

/// Whether this kernel can; says so if not.
fn can_protect() -> bool {
    if !notes_writes() {
        eprintln!("NOT TESTED: this kernel does not note writes");
    }
    notes_writes()
}

/// A run that writes these pages of the memory, and its reset.
fn run(case: &Case, slot: &mut Slot, pages: impl Iterator<Item = u64>) -> ResetReport {
    slot.enter();
    write(slot, case.layout.link.start, &[1]);
    for page in pages {
        write(slot, case.memory(0) + page * PAGE + 7, &[page as u8 ^ 0xff]);
    }
    slot.reset_for(OWNER).unwrap()
}

/// A slot with small runs, then a large one of whose pages these are protected.
fn after_a_large_run(case: &Case, kind: ResetKind, pages: u64) -> Slot {
    let mut slot = case.spawn(&strategies(kind));
    for _ in 0..40 {
        run(case, &mut slot, 0..1);
    }
    let report = run(case, &mut slot, 0..pages);
    assert!(report.protected >= pages - 1, "{kind}: {report:?}");
    slot
}

/// The sentence that all rests on: a write to a protected page is a page fault which both ways to
/// count faults see.
#[test]
fn a_write_to_a_protected_page_is_counted() {
    if !can_protect() {
        return;
    }
    let case = case();
    let mut in_memory = after_a_large_run(&case, ResetKind::Protect, 500);
    if counts_faults_in_memory() {
        let seen = (0..20).any(|round| {
            let places = [100, 200, 300].map(|page| page + round);
            let report = run(&case, &mut in_memory, places.into_iter());
            case.assert_fresh(&in_memory, &strategies(ResetKind::Protect), "in memory");
            // The test itself takes faults, of which there is room for a few.
            assert!(report.returned == 3, "{report:?}");
            !report.scanned
        });
        assert!(seen, "each reset searched");
    }
    // A thread of its own, which decides once how it counts: by a system call.
    #[cfg(debug_assertions)]
    std::thread::spawn(move || {
        pagefork_pages::inject::fail_all(pagefork_pages::Call::WatchFaults, libc::EACCES, || {
            assert!(!counts_faults_in_memory());
        });
        let mut slot = after_a_large_run(&case, ResetKind::Protect, 500);
        let (mut searches, mut rests) = (0, 0);
        for round in 0..20 {
            let places = if round % 2 == 0 { 100 + 4 * round..103 + 4 * round } else { 0..0 };
            let count = places.end - places.start;
            let report = run(&case, &mut slot, places);
            assert_eq!(report.returned, count, "{report:?}");
            assert!(count == 0 || report.scanned, "{report:?}");
            searches += u32::from(report.scanned);
            rests += u32::from(!report.scanned);
            case.assert_fresh(&slot, &strategies(ResetKind::Protect), "by a call");
        }
        assert!(searches >= 10 && rests > 0, "{searches} searches, {rests} resets without");
    })
    .join()
    .unwrap();
}

#[test]
fn what_a_rare_large_run_wrote_is_not_looked_at_and_copies_nothing_the_next_time() {
    if !can_protect() {
        return;
    }
    on_an_idle_machine(|| {
        let case = case();
        let kinds = [ResetKind::Protect, ResetKind::Auto];
        // Here faults have to be noted in memory.
        for kind in kinds.into_iter().filter(|_| counts_faults_in_memory()) {
            let mut slot = after_a_large_run(&case, kind, 500);
            for round in 0..3 {
                for _ in 0..40 {
                    let report = run(&case, &mut slot, 0..1);
                    let looked_at = report.private.unwrap() - report.protected;
                    assert!(looked_at <= 8, "{kind}: {report:?}");
                }
                let report = run(&case, &mut slot, 0..500);
                assert!(report.returned >= 490 && report.new <= 9, "{kind}, {round}: {report:?}");
                assert!(report.protected >= 490, "{kind}: {report:?}");
                case.assert_fresh(&slot, &strategies(kind), "large");
            }
            assert!(slot.resident() >= 490 * PAGE);
            let choice = slot.strategy();
            assert_eq!(choice.used, ResetKind::Protect, "{choice}");
            if kind == ResetKind::Auto {
                let Reason::SeldomWritten { pages, look_ns, fault_ns } = choice.reason else {
                    panic!("{choice}")
                };
                assert!(pages >= 490 && look_ns > 0 && fault_ns > 0, "{choice}");
            }
            // All of it can be given back.
            slot.discard().unwrap();
            assert!(slot.resident() <= 64 * PAGE, "{}", slot.resident());
            case.assert_fresh(&slot, &strategies(kind), "given back");
            for pages in [500, 1, 500] {
                run(&case, &mut slot, 0..pages);
                case.assert_fresh(&slot, &strategies(kind), "after it was given back");
            }
        }
    });
}

/// Runs that write few pages, each others: after a while each page takes a short fault, and none is
/// made private anew. The model is the image.
#[test]
fn other_pages_each_time_stay_private() {
    if !can_protect() || !counts_faults_in_memory() {
        return;
    }
    on_an_idle_machine(|| {
        let case = case();
        for kind in [ResetKind::Protect, ResetKind::Auto] {
            for count in [1, 3, 30] {
                let strategies = strategies(kind);
                let mut slot = case.spawn(&strategies);
                let mut random = Random(count);
                let (mut new, mut returned) = (0, 0);
                let runs = 6000 / count + 200;
                for round in 0..runs {
                    let pages: Vec<u64> = (0..count).map(|_| random.below(600)).collect();
                    let report = run(&case, &mut slot, pages.into_iter());
                    if round > runs * 3 / 4 {
                        (new, returned) = (new + report.new, returned + report.returned);
                    }
                    if round % 50 == 0 {
                        case.assert_fresh(&slot, &strategies, "others");
                    }
                }
                case.assert_fresh(&slot, &strategies, "others");
                assert!(new * 10 < returned, "{kind}, {count}: {new} new, {returned} returned");
            }
        }
    });
}

/// Runs that write more protected pages than page faults can show: soon those pages are kept as
/// others, without being made private anew, and nothing is missed on the way.
#[test]
fn pages_that_return_too_often_are_protected_no_more() {
    if !can_protect() || !counts_faults_in_memory() {
        return;
    }
    on_an_idle_machine(|| {
        let case = case();
        let strategies = strategies(ResetKind::Auto);
        let mut slot = case.spawn(&strategies);
        let mut random = Random(7);
        let mut others = |count: u64| (0..count).map(|_| random.below(900)).collect::<Vec<_>>();
        for _ in 0..600 {
            run(&case, &mut slot, others(10).into_iter());
        }
        let report = run(&case, &mut slot, others(10).into_iter());
        assert!(report.protected > 600, "{report:?}");
        let (mut searches, mut new) = (0, 0);
        for round in 0..200 {
            let report = run(&case, &mut slot, others(300).into_iter());
            case.assert_fresh(&slot, &strategies, &format!("many, {round}"));
            new += report.new;
            searches += if round < 100 { 0 } else { u32::from(report.scanned) };
        }
        assert!(new < 300, "{new} pages were made private anew");
        assert!(searches < 50, "{searches} of 100 resets searched");
        for round in 0..100 {
            run(&case, &mut slot, others(3).into_iter());
            case.assert_fresh(&slot, &strategies, &format!("few again, {round}"));
        }
    });
}

/// Once the kernel refuses to protect a page, those that were protected are kept as others.
#[test]
#[cfg(debug_assertions)]
fn where_protecting_fails_all_pages_are_kept_as_others() {
    use pagefork_pages::{Call, inject::fail_all};
    if !can_protect() {
        return;
    }
    let case = case();
    let strategies = strategies(ResetKind::Protect);
    let mut slot = after_a_large_run(&case, ResetKind::Protect, 500);
    assert_eq!(slot.strategy().used, ResetKind::Protect);
    for _ in 0..4 {
        // Pages that one run writes and the next ones do not are to be protected again.
        fail_all(Call::WatchWrites, libc::ENOMEM, || run(&case, &mut slot, 100..110));
        case.assert_fresh(&slot, &strategies, "refused");
    }
    for _ in 0..80 {
        fail_all(Call::WatchWrites, libc::ENOMEM, || run(&case, &mut slot, 0..1));
    }
    for pages in [200..210, 200..210, 0..500, 300..301] {
        let report = run(&case, &mut slot, pages);
        assert_eq!((report.protected, report.returned), (0, 0), "{report:?}");
        case.assert_fresh(&slot, &strategies, "after it");
    }
    let choice = slot.strategy();
    assert_eq!((choice.asked, choice.used), (ResetKind::Protect, ResetKind::Resident));
    assert_eq!(choice.reason, Reason::ProtectionRefused, "{choice}");
    // Other pages are another try.
    slot.discard().unwrap();
    assert_eq!(slot.strategy().used, ResetKind::Protect);
}

/// Pages of the image and of zeros in every state, and in every state after they were protected (or
/// kept, or evicted, as the strategy has it), by every strategy; of small slots, and of such as may
/// have huge pages; and those that memories have grown by, in each way.
#[test]
fn every_state_of_a_page_by_every_strategy() {
    on_an_idle_machine(|| {
        let others = fault_strategies(GrowthKind::Mprotect).split_off(1);
        let of_growth = |growth| {
            ResetKind::ALL.map(|reset| {
                let code = CodeBounds::Checked;
                StrategyConfig { reset, growth, code, ..Default::default() }.check().unwrap()
            })
        };
        let grown = [GrowthKind::Ftruncate, GrowthKind::Fault].into_iter().flat_map(of_growth);
        let all = ResetKind::ALL.into_iter().map(strategies).chain(others).chain(grown);
        every_state_of_a_page(all, 0);
    });
}

/// Of each strategy, after as many runs that write one page. Returns how many resets searched for
/// nothing but lifted protection.
fn every_state_of_a_page(
    all: impl Iterator<Item = Strategies> + Clone,
    small_runs: u64,
) -> Vec<(ResetKind, u32)> {
    let swap = Swap::on();
    let (mut swapped, mut swapped_protected) = (0, 0);
    let mut lifted = Vec::new();
    let small = case();
    let (image, _) = dense_image(&layout(), 0x17, 2 * MIB);
    let large = Case::new("large", layout(), image, (20 * MIB, 24 * MIB));
    for case in [&small, &large] {
        for strategies in all.clone() {
            let config = strategies.config();
            let (kind, how, growth) = (config.reset, config.fault_threads, config.growth);
            let mut slot = case.spawn(&strategies);
            for number in 0..small_runs {
                run(case, &mut slot, number..number + 1);
            }
            lifted.push((kind, 0));
            for round in 0..70u64 {
                slot.enter();
                write(&slot, case.layout.link.start, &[1]);
                let initial = case.sizes[0].initial;
                // Of the image, whose contents end after 512 pages, behind it, and of what is new.
                let firsts = [3, 490, 700, initial / PAGE + 40];
                let has_grown = round % 4 == 1;
                if has_grown {
                    slot.grow_memory(0, initial + MIB).unwrap();
                }
                let firsts = &firsts[..if has_grown { 4 } else { 3 }];
                every_state(case, &mut slot, round, firsts);
                for first in firsts {
                    let part = at(case, *first)..at(case, first + PAGES);
                    swapped += pages_with(&slot, &part, SWAPPED);
                    swapped_protected += pages_with(&slot, &part, SWAPPED | PROTECTED);
                }
                if round % 8 == 5 {
                    for page in 100..700 {
                        poke(&slot, at(case, page), round as u8);
                    }
                }
                if round % 16 == 9 {
                    collapse(&slot, case.memory(0), 2 * MIB);
                    poke(&slot, at(case, 333), 1);
                }
                if round % 8 == 6 {
                    std::thread::scope(|scope| {
                        slot.note_external_writer(ExternalWriter::UntilReset);
                        let slot = &slot;
                        scope.spawn(move || {
                            (100..700).for_each(|page| poke(slot, at(case, page), 9))
                        });
                    });
                }
                if round % 8 == 7 {
                    // Also beyond what is watched.
                    slot.grow_memory(0, case.sizes[0].maximum).unwrap();
                    write(&slot, case.memory(0) + case.sizes[0].maximum - 9, &[5]);
                }
                let report = slot.reset_for(OWNER).unwrap();
                lifted.last_mut().unwrap().1 += u32::from(report.lifted);
                case.assert_fresh(
                    &slot,
                    &strategies,
                    &format!("{} {kind} {how} {growth:?}, {round}", case.name),
                );
                if round % 20 == 19 {
                    slot.discard().unwrap();
                    case.assert_fresh(&slot, &strategies, &format!("{kind}, {round}, discarded"));
                }
            }
        }
    }
    let what = format!("{swapped} pages in swap space, {swapped_protected} of them protected");
    assert!(swap.is_none() || swapped > 1000, "{what}");
    assert!(swap.is_none() || !notes_writes() || swapped_protected > 10, "{what}");
    lifted
}

/// What was protected when it went to swap space comes back so, and a write to it is found.
#[test]
fn protected_pages_go_to_swap_space_and_come_back() {
    let Some(_swap) = Swap::on().filter(|_| can_protect()) else { return };
    let case = case();
    let strategies = strategies(ResetKind::Protect);
    let mut slot = after_a_large_run(&case, ResetKind::Protect, 300);
    let written = at(&case, 0)..at(&case, 300);
    for round in 0..8 {
        page_out(&slot, &written);
        let protected = pages_with(&slot, &written, SWAPPED | PROTECTED);
        assert!(protected > 200, "{round}: {protected} protected pages in swap space");
        // Some are only read.
        drop(read(&slot, at(&case, 200)..at(&case, 210)));
        let report = run(&case, &mut slot, 100 + round..103 + round);
        assert!(report.returned + report.new + report.restored >= 3, "{round}: {report:?}");
        case.assert_fresh(&slot, &strategies, &format!("{round}"));
        // All are read there, and in memory again; those that were evicted are written anew.
        let report = run(&case, &mut slot, 0..300);
        case.assert_fresh(&slot, &strategies, &format!("{round}, all: {report:?}"));
        for _ in 0..40 {
            run(&case, &mut slot, 0..1);
        }
    }
}

/// Pages of a forked process are registered nowhere: what was protected is searched there.
#[test]
fn a_forked_process_has_no_protection_and_restores_all() {
    in_own_process("a_forked_process_has_no_protection_and_restores_all", || {
        if can_protect() {
            assert_forks_restore_all();
        }
    });
}

fn assert_forks_restore_all() {
    let case = case();
    let mut slot = after_a_large_run(&case, ResetKind::Protect, 300);
    // SAFETY: this process has no other thread that holds a lock, and the child only uses its slot.
    let child = unsafe { libc::fork() };
    for round in 0..4 {
        let from = if child == 0 { 50 } else { 150 };
        run(&case, &mut slot, from..from + 60 + round);
        let what = if child == 0 { "child" } else { "parent" };
        case.assert_fresh(&slot, &strategies(ResetKind::Protect), what);
    }
    if child == 0 {
        // SAFETY: ends the child without what the test harness would do.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: waits for the child, whose status is written.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
}

#[test]
fn protected_pages_leave_half_of_the_budget() {
    let case = case();
    let budget = Budget::new(600 * PAGE);
    let strategies = strategies(ResetKind::Protect);
    let spawn =
        || Slot::within(&case.layout, &case.image, &case.sizes, &strategies, &budget).unwrap();
    let mut slots: Vec<Slot> = (0..4).map(|_| spawn()).collect();
    for pages in [1, 1, 250, 1, 1, 250, 400, 1, 250] {
        for slot in &mut slots {
            run(&case, slot, 0..pages);
            case.assert_fresh(slot, &strategies, "budget");
            assert!(budget.used() <= budget.max());
        }
    }
    drop(slots);
    assert_eq!(budget.used(), 0);
}

/// What is nearest replaces it, and whatever call fails, pages are as the image.
#[test]
#[cfg(debug_assertions)]
fn without_protection_pages_are_discarded() {
    use pagefork_pages::Call;
    use pagefork_pages::inject::{fail_all, fail_nth};
    let case = case();
    let strategies = strategies(ResetKind::Protect);
    let mut slot = case.spawn(&strategies);
    for call in [Call::WatchWrites, Call::Scan] {
        fail_all(call, libc::EPERM, || {
            for pages in [1, 1, 300, 1, 300, 1] {
                slot.enter();
                dirty(&case, &mut slot, pages);
                if slot.reset_for(OWNER).is_ok() {
                    case.assert_fresh(&slot, &strategies, "refused");
                }
            }
        });
        slot.reset_for(OWNER).unwrap();
        case.assert_fresh(&slot, &strategies, "later");
        slot.discard().unwrap();
    }
    if !can_protect() {
        return;
    }
    // Each call of a reset that protects, in turn; ranges are few, or so many that one walk does.
    for step in [1, 2, 40] {
        for nth in 0.. {
            let mut slot = after_a_large_run(&case, ResetKind::Protect, 300);
            slot.enter();
            (0..512).step_by(step).for_each(|page| poke(&slot, at(&case, page), 3));
            let outcome = fail_nth(nth, libc::ENOMEM, || slot.reset_for(OWNER).map(|_| ()));
            if outcome.value.is_err() {
                slot.reset_for(OWNER).unwrap();
            }
            case.assert_fresh(&slot, &strategies, &format!("{step}, call {nth}"));
            for pages in [300, 1, 300] {
                run(&case, &mut slot, 0..pages);
                case.assert_fresh(&slot, &strategies, &format!("{step}, after call {nth}"));
            }
            if outcome.failed.is_none() {
                break;
            }
        }
    }
}

/// One userfaultfd watches a page for one purpose.
#[test]
fn slots_whose_writes_are_noted_for_snapshots_protect_nothing() {
    let case = case();
    let config = StrategyConfig {
        reset: ResetKind::Protect,
        deltas: DeltaTracker::Writes,
        ..StrategyConfig::default()
    };
    let strategies = config.check().unwrap();
    let mut slot = case.spawn(&strategies);
    assert_eq!(slot.strategy().used, ResetKind::Resident);
    assert_eq!(slot.strategy().reason, Reason::NoWriteProtection);
    for pages in [1, 1, 300, 1] {
        assert_eq!(run(&case, &mut slot, 0..pages).protected, 0);
        let snapshot: std::sync::Arc<Image> =
            slot.snapshot("none", &[], pagefork_pages::ImageForm::Branch).unwrap();
        assert!(snapshot.own_pages().is_empty());
        case.assert_fresh(&slot, &strategies, "snapshots");
    }
}
