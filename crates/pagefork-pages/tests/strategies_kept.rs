//! What strategies keep between resets, and what they do not: resident pages, the
//! stack, descriptors, memory of the host; and what `Auto` makes of what it sees.
//! Without copy-on-write nothing is kept.
#![cfg(not(feature = "no-cow"))]

mod common;
#[path = "common/idle.rs"]
mod idle;
#[path = "common/matrix.rs"]
mod matrix;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use common::*;
use idle::on_an_idle_machine;
use matrix::*;
use pagefork_pages::{
    Budget, ExternalWriter, GrowthKind, Image, Owner, Reason, ResetKind, Slot, StrategyConfig,
    procmaps,
};

/// Counts what the current thread allocates.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: all is done by the system's allocator; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: by the contract of `GlobalAlloc::alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: by the contract of `GlobalAlloc::dealloc`: the system allocated it.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn case() -> Case {
    let (image, _) = dense_image(&layout(), 0x42, 4 * MIB);
    Case::new("dense", layout(), image, (4 * MIB, 8 * MIB))
}

#[test]
fn a_warm_reset_allocates_nothing() {
    let case = case();
    for kind in ResetKind::ALL.into_iter().filter(|&kind| kind != ResetKind::Remap) {
        let mut slot = case.spawn(&strategies(kind));
        // Also across the moves of `Auto`.
        for round in 0..100 {
            dirty(&case, &mut slot, 40);
            let before = ALLOCATIONS.get();
            let report = slot.reset_for(OWNER).unwrap();
            let count = ALLOCATIONS.get() - before;
            assert!(round < 3 || count == 0, "{kind}: {count} in round {round}, {report:?}");
        }
    }
}

/// Invariant 6.
#[test]
#[cfg(debug_assertions)]
fn a_warm_reset_makes_one_call_at_most() {
    use pagefork_pages::Call;
    use pagefork_pages::inject::record;
    let case = case();
    // Where page faults are noted in memory, not even that.
    let counting: &[Call] = match pagefork_pages::counts_faults_in_memory() {
        true => &[],
        false => &[Call::CountFaults],
    };
    for (kind, expected) in [
        (ResetKind::Discard, &[Call::Discard][..]),
        (ResetKind::Scan, &[Call::Scan]),
        (ResetKind::Copy, &[Call::Scan]),
        (ResetKind::Resident, counting),
    ] {
        for growth in [GrowthKind::Mprotect, GrowthKind::Checked { accessible: None }] {
            let code = pagefork_pages::CodeBounds::Checked;
            let config = StrategyConfig { reset: kind, growth, code, ..Default::default() };
            let mut slot = case.spawn(&config.check().unwrap());
            quiet(|| {
                dirty(&case, &mut slot, 16);
                let calls = record(|| slot.reset_for(OWNER).unwrap()).1;
                calls == expected
            });
            // Growth costs calls only where pages have to be made accessible.
            let calls = record(|| slot.grow_memory(0, 5 * MIB).unwrap()).1;
            let none = matches!(growth, GrowthKind::Checked { .. });
            assert_eq!(calls.is_empty(), none);
            let calls = record(|| slot.reset_for(OWNER).unwrap()).1;
            assert_eq!(calls.contains(&Call::Protect), !none, "{kind}: {calls:?}");
        }
    }
}

#[test]
#[cfg(debug_assertions)]
fn growing_as_far_as_an_earlier_run_takes_no_call() {
    use pagefork_pages::Call;
    use pagefork_pages::inject::record;
    let case = case();
    let code = pagefork_pages::CodeBounds::Dual;
    let growth = GrowthKind::Kept;
    let config = StrategyConfig { reset: ResetKind::Resident, growth, code, ..Default::default() };
    let mut slot = case.spawn(&config.check().unwrap());
    let initial = slot.memory_size(0);
    let mut grow = |to: u64| {
        slot.enter();
        let calls = record(|| slot.grow_memory(0, to).unwrap()).1;
        assert!(slot.memory_accessible(0) >= to);
        write(&slot, case.memory(0) + to - 1, &[1]);
        let resets = record(|| slot.reset_for(OWNER).unwrap()).1;
        assert_eq!(slot.memory_size(0), initial);
        (calls.contains(&Call::Commit), resets.contains(&Call::Protect), slot.memory_accessible(0))
    };
    assert_eq!(grow(5 * MIB), (true, false, 5 * MIB));
    assert_eq!(grow(5 * MIB), (false, false, 5 * MIB));
    assert_eq!(grow(6 * MIB), (true, false, 6 * MIB));
    for _ in 1..8 {
        assert_eq!(grow(4 * MIB), (false, false, 6 * MIB));
    }
    assert_eq!(grow(4 * MIB), (false, true, 4 * MIB), "what nobody needs is given back");
    case.assert_fresh(&slot, &config.check().unwrap(), "kept");
}

/// Where perf is forbidden, faults are counted by a system call, and as well.
#[test]
#[cfg(debug_assertions)]
fn without_a_ring_of_faults_a_system_call_counts_them() {
    use pagefork_pages::Call;
    use pagefork_pages::inject::{fail_all, record};
    // A thread of its own: each decides once.
    std::thread::spawn(|| {
        let case = case();
        let strategies = strategies(ResetKind::Resident);
        let mut slot = case.spawn(&strategies);
        fail_all(Call::WatchFaults, libc::EACCES, || {
            assert!(!pagefork_pages::counts_faults_in_memory());
        });
        quiet(|| {
            dirty(&case, &mut slot, 16);
            let calls = record(|| slot.reset_for(OWNER).unwrap()).1;
            case.assert_fresh(&slot, &strategies, "counted");
            calls == [Call::CountFaults]
        });
        dirty(&case, &mut slot, 17);
        assert!(slot.reset_for(OWNER).unwrap().scanned);
        case.assert_fresh(&slot, &strategies, "a further page");
    })
    .join()
    .unwrap();
}

/// Asserts that `body` is true soon: page faults of the test itself pass.
#[track_caller]
fn quiet(mut body: impl FnMut() -> bool) {
    assert!((0..20).any(|_| body()));
}

#[test]
fn resident_skips_the_scan_and_restores_every_page_that_was_ever_written() {
    let case = case();
    let strategies = strategies(ResetKind::Resident);
    let mut slot = case.spawn(&strategies);
    let mut random = Random(3);
    let mut skipped = 0;
    dirty(&case, &mut slot, 300);
    slot.reset_for(OWNER).unwrap();
    for _ in 0..300 {
        slot.enter();
        for _ in 0..random.below(5) {
            // Pages that are never written again are let go; these are not.
            let pages = if random.below(40) == 0 { 300 } else { 6 };
            write(&slot, case.memory(0) + random.below(pages * PAGE), &[1, 2, 3]);
        }
        let report = slot.reset_for(OWNER).unwrap();
        assert_eq!(report.by, ResetKind::Resident);
        skipped += u32::from(!report.scanned);
        case.assert_fresh(&slot, &strategies, "resident");
    }
    assert!(skipped > 50, "{skipped} of 300");
}

#[test]
fn resident_scans_whenever_something_else_could_have_written() {
    let case = case();
    let strategies = strategies(ResetKind::Resident);
    let mut slot = case.spawn(&strategies);
    let is_quiet = |slot: &mut Slot| {
        quiet(|| {
            dirty(&case, slot, 4);
            !slot.reset_for(OWNER).unwrap().scanned
        });
    };
    let far = case.memory(0) + 3 * MIB;
    let scans = |slot: &mut Slot, what: &str| {
        assert!(slot.reset_for(OWNER).unwrap().scanned, "{what}");
        case.assert_fresh(slot, &strategies, what);
    };
    is_quiet(&mut slot);
    write(&slot, far, &[1]);
    scans(&mut slot, "nobody has entered");

    is_quiet(&mut slot);
    slot.enter();
    for page in 1..250 {
        write(&slot, far + page * PAGE, &[1]);
    }
    scans(&mut slot, "many page faults");

    is_quiet(&mut slot);
    slot.enter();
    let writes = || {
        slot.enter();
        write(&slot, far + 200 * PAGE, &[1]);
    };
    std::thread::scope(|scope| scope.spawn(writes).join().unwrap());
    scans(&mut slot, "another thread has entered");

    is_quiet(&mut slot);
    let resets = || scans(&mut slot, "another thread resets");
    std::thread::scope(|scope| scope.spawn(resets).join().unwrap());

    is_quiet(&mut slot);
    slot.enter();
    slot.note_external_writer(ExternalWriter::UntilReset);
    scans(&mut slot, "a view");
    slot.note_external_writer(ExternalWriter::ForGood);
    for _ in 0..10 {
        dirty(&case, &mut slot, 4);
        scans(&mut slot, "a view for good");
    }
}

/// Few faults show which pages can have become private, from the very first one.
#[test]
fn few_faults_need_no_scan_and_every_page_is_restored() {
    let case = case();
    // A thread that has asked often has a ring.
    let lists = pagefork_pages::counts_faults_in_memory();
    let mut random = Random(7);
    for kind in [ResetKind::Resident, ResetKind::Auto] {
        let strategies = strategies(kind);
        let (mut counted, mut scans) = (0, 0);
        for round in 0..40 {
            let mut slot = case.spawn(&strategies);
            let other = case.spawn(&strategies);
            for reset in 0..2 {
                slot.enter();
                write(&slot, case.layout.link.start, &[1]);
                let accessible = case.parts(&slot)[0].clone();
                for _ in 0..random.below(9) {
                    let at = accessible.start + random.below(accessible.end - accessible.start);
                    match random.below(4) {
                        0 => drop(bytes(&slot, at..at + 1)),
                        1 => write(&other, at, &[random.below(256) as u8]),
                        _ => write(&slot, at, &[random.below(256) as u8]),
                    }
                }
                if round % 3 == 0 {
                    slot.grow_memory(0, 8 * MIB).unwrap();
                    write(&slot, case.memory(0) + 8 * MIB - 1, &[1]);
                }
                if round % 5 == 0 {
                    write(&slot, case.layout.stack.end - 8, &[1; 16]);
                }
                let report = slot.reset_for(OWNER).unwrap();
                let counts = reset == 0 || kind == ResetKind::Resident;
                counted += u32::from(counts);
                scans += u32::from(counts && report.scanned);
                case.assert_fresh(&slot, &strategies, "few faults");
                case.assert_growth_is_zero(&mut slot, "few faults");
                slot.reset_for(OWNER).unwrap();
            }
        }
        // Where the stack was written far down, or something else took many faults.
        assert!(!lists || scans * 4 < counted, "{kind}: {scans} of {counted} resets scanned");
    }
}

/// Locked memory is private without a fault: a reset restores it, or says that it cannot.
#[test]
fn pages_of_locked_memory_are_not_taken_for_fresh() {
    in_own_process("pages_of_locked_memory_are_not_taken_for_fresh", || {
        let case = case();
        drop(case.spawn(&strategies(ResetKind::Resident)));
        pagefork_pages::counts_faults_in_memory();
        // SAFETY: concerns this process alone.
        if unsafe { libc::mlockall(libc::MCL_FUTURE) } != 0 {
            return;
        }
        for kind in [ResetKind::Resident, ResetKind::Auto] {
            let strategies = strategies(kind);
            for written in [true, false] {
                let mut slot = case.spawn(&strategies);
                slot.enter();
                write(&slot, case.layout.link.start, &[1]);
                if written {
                    write(&slot, case.memory(0) + 5 * PAGE, &[1; 9]);
                }
                if slot.reset_for(OWNER).is_ok() {
                    case.assert_fresh(&slot, &strategies, "locked memory");
                }
            }
        }
    });
}

/// `Auto` restores pages in place, gives all back, and relies on faults again: pages of
/// runs that were longer than those in between are not forgotten to be private.
#[test]
fn auto_does_not_forget_pages_that_only_longer_runs_have() {
    let nothing = Image::new("nothing", layout().base..layout().base, []).unwrap();
    let case = Case::new("grows", layout(), nothing, (16 * PAGE, 4096 * PAGE));
    let high = case.memory(0) + 3900 * PAGE;
    let checked = GrowthKind::Checked { accessible: None };
    for growth in [GrowthKind::Mprotect, checked, GrowthKind::Kept] {
        let code = pagefork_pages::CodeBounds::Dual;
        let strategies = StrategyConfig { growth, code, ..Default::default() }.check().unwrap();
        let mut slot = case.spawn(&strategies);
        let begin = |slot: &mut Slot, grows: bool| {
            slot.enter();
            // Who runs code writes there first.
            write(slot, case.layout.link.start, &[1]);
            write(slot, case.memory(0), &[1]);
            if grows {
                slot.grow_memory(0, 4000 * PAGE).unwrap();
                write(slot, high, &[7]);
            }
        };
        for round in 0.. {
            if slot.strategy().used == ResetKind::Discard {
                break;
            }
            // Other pages each time, which is what moves it to giving back.
            begin(&mut slot, true);
            let others = (0..110).map(|i| 20 + (round * 110 + i) % 3850);
            others.for_each(|page| write(&slot, case.memory(0) + page * PAGE, &[7]));
            slot.reset_for(OWNER).unwrap();
            assert!(round < 10_000, "it never discards");
        }
        for _ in 0..1000 {
            if slot.strategy().used == ResetKind::Resident {
                break;
            }
            begin(&mut slot, false);
            slot.reset_for(OWNER).unwrap();
        }
        for round in 0..12 {
            begin(&mut slot, round > 3);
            slot.reset_for(OWNER).unwrap();
        }
        case.assert_growth_is_zero(&mut slot, "of a longer run");
    }
}

/// A page stays private when its memory shrinks, so a later write takes no fault.
#[test]
fn resident_does_not_forget_pages_of_a_memory_that_has_shrunk() {
    let case = case();
    let checked = GrowthKind::Checked { accessible: None };
    for growth in [GrowthKind::Mprotect, checked, GrowthKind::Kept] {
        let code = pagefork_pages::CodeBounds::Checked;
        let config =
            StrategyConfig { reset: ResetKind::Resident, growth, code, ..Default::default() };
        let strategies = config.check().unwrap();
        let mut slot = case.spawn(&strategies);
        for round in 0..30 {
            slot.enter();
            if round % 3 == 0 {
                slot.grow_memory(0, 8 * MIB).unwrap();
                write(&slot, case.memory(0) + 7 * MIB + round, &[round as u8 | 1]);
            }
            slot.reset_for(OWNER).unwrap();
            case.assert_fresh(&slot, &strategies, "shrunk");
            if round % 5 == 0 {
                case.assert_growth_is_zero(&mut slot, "shrunk");
                slot.reset_for(OWNER).unwrap();
            }
        }
        // A scan in between sees nothing of it, and must not forget it.
        let page = case.memory(0) + 6 * MIB;
        quiet(|| {
            slot.enter();
            slot.grow_memory(0, 8 * MIB).unwrap();
            write(&slot, page, &[1]);
            slot.reset_for(OWNER).unwrap();
            assert!(slot.reset_for(OWNER).unwrap().scanned, "nobody has entered");
            slot.enter();
            slot.grow_memory(0, 8 * MIB).unwrap();
            write(&slot, page, &[2]);
            let report = slot.reset_for(OWNER).unwrap();
            slot.grow_memory(0, 8 * MIB).unwrap();
            assert_eq!(bytes(&slot, page..page + 1), [0], "{report:?}");
            slot.reset_for(OWNER).unwrap();
            !report.scanned
        });
    }
}

/// A huge page takes writes to new pages without a fault.
#[test]
fn a_slot_whose_faults_may_be_counted_never_has_huge_pages() {
    let case = case();
    for kind in [ResetKind::Resident, ResetKind::Auto] {
        let mut slot = case.spawn(&strategies(kind));
        for round in 0..3 {
            let maps = attributes(&slot);
            assert!(maps.iter().all(|map| map.flags.contains("nh")), "{kind}: {maps:#?}");
            if round > 0 {
                until_resident(&case, &mut slot);
            }
            slot.enter();
            slot.grow_memory(0, 8 * MIB).unwrap();
            write(&slot, case.memory(0) + 4 * MIB, &pattern(1, 4 * MIB));
            assert!(!collapse(&slot, 2 * MIB, 6 * MIB), "{kind}");
            slot.reset_to(&case.image, &case.sizes, OWNER).unwrap();
        }
    }
}

/// Review of wasmtime PR 11372: pages written once were copied at every later reset.
#[test]
fn one_large_run_does_not_tax_later_ones() {
    on_an_idle_machine(no_large_run_taxes_later_ones);
}

fn no_large_run_taxes_later_ones() {
    let case = case();
    // What each reset looks at: not what is kept under protection.
    let looked_at = |slot: &mut Slot| {
        let report = slot.reset_for(OWNER).unwrap();
        report.private.unwrap() - report.discarded - report.protected
    };
    for kind in [ResetKind::Scan, ResetKind::Resident, ResetKind::Protect, ResetKind::Auto] {
        for large in [20, 63, 200, 500, 900] {
            let strategies = strategies(kind);
            let mut slot = case.spawn(&strategies);
            dirty(&case, &mut slot, 1);
            let usual = looked_at(&mut slot);
            // Also if there is one again and again, but so late that it never pays to keep pages.
            for between in [70, 70, 200, 70, 200, 70] {
                dirty(&case, &mut slot, large);
                slot.reset_for(OWNER).unwrap();
                let mut left = None;
                for run in 0..8 {
                    dirty(&case, &mut slot, 1);
                    left = Some(looked_at(&mut slot));
                    if large >= 200 {
                        assert_eq!(left, Some(usual), "{kind}, {large} pages, run {run}");
                    }
                }
                assert_eq!(left, Some(usual), "{kind}, {large} pages, {between}");
                case.assert_fresh(&slot, &strategies, "later");
                for _ in 8..between {
                    dirty(&case, &mut slot, 1);
                    slot.reset_for(OWNER).unwrap();
                }
            }
        }
    }
}

#[test]
fn large_runs_that_follow_on_each_other_keep_their_pages() {
    let case = case();
    for kind in [ResetKind::Scan, ResetKind::Resident, ResetKind::Auto] {
        let mut slot = case.spawn(&strategies(kind));
        for run in 0..20 {
            // The first of them is an exception, as far as anybody can tell.
            let pages = if run < 10 { 1 } else { 200 };
            dirty(&case, &mut slot, pages);
            let report = slot.reset_for(OWNER).unwrap();
            assert!(run < 12 || report.new == 0, "{kind}, run {run}: {report:?}");
        }
    }
}

/// Clearing what is zero makes a page private and leaves it as it was: to let such pages
/// go each time would cost a fault and a scan every few runs.
#[test]
fn pages_that_are_written_as_they_were_are_kept() {
    let case = case();
    let mut slot = case.spawn(&strategies(ResetKind::Resident));
    let mut scans = 0;
    for _ in 0..2000 {
        slot.enter();
        for page in 0..3 {
            let at = case.memory(0) + page * PAGE;
            let same = read(&slot, at..at + 1);
            write(&slot, at, &same);
        }
        scans += u64::from(slot.reset_for(OWNER).unwrap().scanned);
    }
    assert!(scans < 60, "{scans} scans");
}

#[test]
fn at_most_the_budget_stays_resident() {
    let case = case();
    for kind in [ResetKind::Scan, ResetKind::Resident, ResetKind::Protect] {
        for resident_max in [0, 8 * PAGE, 64 * PAGE] {
            let config = StrategyConfig { reset: kind, resident_max, ..Default::default() };
            let strategies = config.check().unwrap();
            let mut slot = case.spawn(&strategies);
            for pages in [1, 10, 500, 3] {
                dirty(&case, &mut slot, pages);
                slot.reset_for(OWNER).unwrap();
                case.assert_fresh(&slot, &strategies, "budget");
                slot.note_external_writer(ExternalWriter::UntilReset);
                let private = slot.reset_for(OWNER).unwrap().private.unwrap();
                assert!(private <= resident_max / PAGE, "{kind}: {private} of {resident_max}");
            }
        }
    }
}

#[test]
fn the_stack_shows_nobody_elses_bytes_and_keeps_few_pages() {
    let case = case();
    let stack = case.layout.stack.clone();
    let secret = pattern(0x5e, stack.end - stack.start);
    for all in all_strategies() {
        for (stack_kept, clear_stack) in
            [(0, false), (PAGE, false), (4 * PAGE, false), (4 * PAGE, true)]
        {
            let config = StrategyConfig { stack_kept, clear_stack, ..all.config() };
            let mut slot = case.spawn(&config.check().unwrap());
            let shown = |slot: &Slot| {
                let bytes = read(slot, stack.clone());
                let kept = (stack.end - stack.start - stack_kept) as usize;
                assert!(bytes[..kept].iter().all(|&byte| byte == 0), "{config:?}");
                bytes[kept..].iter().any(|&byte| byte != 0)
            };
            slot.hand_to(Owner(1));
            for round in 0..12u64 {
                let owner = Owner((round / 4).into());
                slot.enter();
                match round % 3 {
                    0 => write(&slot, stack.start, &secret),
                    1 => write(&slot, stack.end - 9, &secret[..9]),
                    _ => (),
                }
                slot.reset().unwrap();
                // The owner's own bytes may be there, in few pages.
                assert!(!(shown(&slot) && clear_stack), "{config:?}");
                slot.hand_to(owner);
                if round % 4 == 0 {
                    assert!(!shown(&slot), "{config:?}: another owner sees them");
                }
            }
            slot.enter();
            write(&slot, stack.start, &secret);
            let link = case.layout.link.clone();
            write(&slot, link.start, &secret[..(link.end - link.start) as usize]);
            slot.reset_for(Owner(99)).unwrap();
            assert!(!shown(&slot), "{config:?}");
            assert!(read(&slot, link).iter().all(|&byte| byte == 0), "{config:?}: link");
        }
    }
}

#[test]
fn slots_share_one_descriptor_and_closing_them_gives_everything_back() {
    in_own_process("slots_share_one_descriptor_and_closing_them_gives_everything_back", || {
        drop(case().spawn(&strategies(ResetKind::Auto)));
        let before = held();
        {
            let case = case();
            let with_image = held().descriptors;
            let mut slots: Vec<Slot> =
                (0..20).map(|_| case.spawn(&strategies(ResetKind::Auto))).collect();
            // The page map stays open once somebody has asked.
            assert_eq!(held().descriptors, with_image);
            for slot in &mut slots {
                dirty(&case, slot, 100);
                slot.reset_for(OWNER).unwrap();
            }
            let start = slots[0].start().addr() as u64;
            let maps = procmaps::within(start..start + case.layout.size).unwrap();
            assert!(maps.len() <= 6, "{maps:#?}");
        }
        let after = held();
        assert_eq!((after.descriptors, after.mapped), (before.descriptors, before.mapped));
    });
}

/// What is kept has no bound but the budget, however large the memory is.
#[test]
fn pages_that_each_run_writes_are_kept_however_many_there_are() {
    for size in [16 * MIB, 64 * MIB] {
        let nothing = Image::new("nothing", layout().base..layout().base, []).unwrap();
        let case = Case::new("large", layout(), nothing, (size, size));
        for pages in [1, 600, 1500, 4000] {
            let strategies = strategies(ResetKind::Auto);
            let mut slot = case.spawn(&strategies);
            // Slots of this size refuse huge pages only when runs are seen to be small.
            for _ in 0..40 {
                dirty(&case, &mut slot, pages);
                slot.reset_for(OWNER).unwrap();
            }
            quiet(|| {
                dirty(&case, &mut slot, pages);
                let report = slot.reset_for(OWNER).unwrap();
                let is_kept = report.private == Some(pages) && report.discarded + report.new == 0;
                is_kept && (!report.scanned || size > 16 * MIB && pages > 512)
            });
            case.assert_fresh(&slot, &strategies, "kept");
        }
    }
}

/// Each run writes other pages: so many of so many.
#[test]
fn pages_are_kept_where_they_return_soon_enough_and_else_not() {
    let case = case();
    for kind in [ResetKind::Resident, ResetKind::Protect, ResetKind::Auto] {
        for (count, of, is_kept) in [(3, 1000, false), (10, 1000, false), (400, 1000, true)] {
            let strategies = strategies(kind);
            let mut slot = case.spawn(&strategies);
            let mut random = Random(11);
            let (mut new, mut written) = (0, 0);
            for run in 0..400 {
                slot.enter();
                write(&slot, case.layout.link.start, &[1]);
                for _ in 0..count {
                    write(&slot, case.memory(0) + random.below(of) * PAGE + 5, &[7]);
                }
                let report = slot.reset_for(OWNER).unwrap();
                if run >= 200 {
                    (new, written) = (new + report.new + report.returned, written + count);
                }
            }
            // Of 400 draws some are of the same page.
            let all = new * 3 > written * 2;
            let few = new * 10 < written;
            assert!(if is_kept { few } else { all }, "{kind}, {count}: {new} new of {written}");
            case.assert_fresh(&slot, &strategies, "other pages");
        }
    }
}

#[test]
fn slots_that_share_a_budget_keep_no_more_than_it_has() {
    let case = case();
    let budget = Budget::new(300 * PAGE);
    for kind in [ResetKind::Scan, ResetKind::Resident, ResetKind::Protect, ResetKind::Auto] {
        let strategies = strategies(kind);
        let spawn = || {
            let (zones, sizes) = (&case.layout, &case.sizes);
            Slot::within(zones, &case.image, sizes, &strategies, &budget).unwrap()
        };
        let mut slots: Vec<Slot> = (0..3).map(|_| spawn()).collect();
        for pages in [1, 200, 200, 3, 900, 900, 20, 200] {
            for slot in &mut slots {
                dirty(&case, slot, pages);
                slot.reset_for(OWNER).unwrap();
                case.assert_fresh(slot, &strategies, "budget");
                assert!(budget.used() <= budget.max(), "{} of {}", budget.used(), budget.max());
            }
            let stacks = 3 * 16 * PAGE;
            let resident: u64 = slots.iter().map(Slot::resident).sum();
            assert!(resident <= budget.max() + stacks, "{kind}: {resident}");
        }
        slots.iter_mut().for_each(|slot| slot.discard().unwrap());
        assert!(budget.used() < 100 * PAGE, "{}", budget.used());
        drop(slots);
        assert_eq!(budget.used(), 0);
    }
}

/// The page map of a parent process says nothing about its child.
#[test]
fn a_forked_process_resets_its_own_slots() {
    let case = case();
    for kind in [ResetKind::Scan, ResetKind::Resident, ResetKind::Copy] {
        let strategies = strategies(kind);
        let mut slot = case.spawn(&strategies);
        for _ in 0..4 {
            dirty(&case, &mut slot, 3);
            slot.reset_for(OWNER).unwrap();
        }
        // SAFETY: the child works on its own copy and exits; this test's process may
        // have other threads, none of which is in this crate or holds the heap for
        // long, and an alarm ends the child.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: concerns this child alone.
            unsafe { libc::alarm(20) };
            dirty(&case, &mut slot, 50);
            let reset = slot.reset_for(OWNER).is_ok();
            let fresh = read(&slot, case.parts(&slot)[0].clone());
            let at = (case.layout.stack.end - case.layout.stack.start) as usize;
            let same = fresh[at..] == case.fresh[0][at..];
            // SAFETY: ends this child.
            unsafe { libc::_exit(i32::from(!(reset && same))) };
        }
        let mut status = 0;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "{kind}");
    }
}

#[test]
fn auto_counts_faults_once_nothing_is_new_and_goes_back_when_that_does_not_pay() {
    let case = case();
    let strategies = strategies(ResetKind::Auto);
    let mut slot = case.spawn(&strategies);
    assert_eq!((slot.strategy().used, slot.strategy().reason), (ResetKind::Scan, Reason::Start));
    for _ in 0..100 {
        dirty(&case, &mut slot, 5);
        slot.reset_for(OWNER).unwrap();
    }
    let choice = slot.strategy();
    assert_eq!(choice.used, ResetKind::Resident, "{choice}");
    assert!(matches!(choice.reason, Reason::NothingNew { .. }), "{choice}");
    assert!(choice.to_string().contains("auto"), "{choice}");
    for _ in 0..32 {
        // Each reset scans; where pages may be kept under protection it would look for lifted one alone.
        slot.note_external_writer(ExternalWriter::ForGood);
        dirty(&case, &mut slot, 5);
        slot.reset_for(OWNER).unwrap();
    }
    let choice = slot.strategy();
    assert_eq!(choice.used, ResetKind::Scan, "{choice}");
    assert!(matches!(choice.reason, Reason::ManyScans { .. }), "{choice}");
    case.assert_fresh(&slot, &strategies, "auto");
}

#[test]
fn auto_discards_what_no_run_writes_twice_and_tries_again() {
    let (image, _) = dense_image(&layout(), 0x42, 64 * MIB);
    let case = Case::new("wide", layout(), image, (64 * MIB, 64 * MIB));
    let strategies = strategies(ResetKind::Auto);
    let mut slot = case.spawn(&strategies);
    let mut seen = Vec::new();
    for round in 0..400 {
        slot.enter();
        for page in 0..300 {
            let place = (round * 300 + page) * 7 % (64 * MIB / PAGE);
            write(&slot, case.memory(0) + place * PAGE, &[0xab]);
        }
        slot.reset_for(OWNER).unwrap();
        let choice = slot.strategy();
        if seen.last() != Some(&choice.used) {
            seen.push(choice.used);
            eprintln!("{round}: {choice}");
        }
    }
    assert_eq!(seen[..3], [ResetKind::Scan, ResetKind::Discard, ResetKind::Scan]);
    case.assert_fresh(&slot, &strategies, "auto");
}
