//! Where page faults are not noted in memory, as for users without rights: pages that were written are
//! found by a search for lifted protection, whoever wrote them, and none is missed.

use pagefork_pages::Call;
use pagefork_pages::inject::{Times, fail_all, fail_nth, record, with_times};

use super::*;

/// Runs `body` on a thread whose page faults are counted by a system call, if pages can be protected.
fn counted_by_a_call(body: impl FnOnce() + Send) {
    if !can_protect() {
        return;
    }
    let refused = || {
        fail_all(Call::WatchFaults, libc::EACCES, || assert!(!counts_faults_in_memory()));
        on_an_idle_machine(body);
    };
    std::thread::scope(|scope| scope.spawn(refused).join().unwrap());
}

/// A slot with many protected pages, and others of the image that were only read.
fn with_protected_pages(case: &Case, kind: ResetKind) -> Slot {
    let mut slot = after_a_large_run(case, kind, 300);
    // The first search protects what was only read, the second finds nothing of it.
    for _ in 0..2 {
        drop(read(&slot, case.memory(0)..case.memory(0) + case.sizes[0].initial));
        run(case, &mut slot, 0..2);
    }
    slot
}

#[test]
fn every_state_of_a_page() {
    counted_by_a_call(|| {
        let kinds = [ResetKind::Resident, ResetKind::Protect, ResetKind::Auto];
        let lifted = super::every_state_of_a_page(kinds.into_iter().map(strategies), 40);
        for (kind, count) in lifted {
            match kind {
                ResetKind::Protect => assert!(count > 30, "{count}"),
                ResetKind::Auto => assert!(count > 5, "{count}"),
                _ => assert_eq!(count, 0, "{kind} protects nothing"),
            }
        }
    });
}

#[test]
fn other_pages_each_time_stay_private() {
    counted_by_a_call(|| {
        let case = case();
        for kind in [ResetKind::Protect, ResetKind::Auto] {
            for count in [1, 3, 30] {
                let strategies = strategies(kind);
                let mut slot = case.spawn(&strategies);
                let mut random = Random(count);
                let (mut new, mut returned, mut all, mut lifted) = (0, 0, 0, 0);
                let mut explained = false;
                let runs = 6000 / count + 200;
                for round in 0..runs {
                    let pages: Vec<u64> = (0..count).map(|_| random.below(600)).collect();
                    let report = run(&case, &mut slot, pages.into_iter());
                    lifted += u32::from(report.lifted);
                    if round > runs * 3 / 4 {
                        (new, returned) = (new + report.new, returned + report.returned);
                        all += u32::from(report.scanned && !report.lifted);
                    }
                    if round % 50 == 0 {
                        case.assert_fresh(&slot, &strategies, "others");
                    }
                    if let Reason::SeldomWrittenSearched { pages, search_ns, .. } =
                        slot.strategy().reason
                    {
                        let choice = slot.strategy();
                        assert_eq!(choice.used, ResetKind::Protect, "{choice}");
                        assert!(choice.to_string().contains("to find such pages"), "{choice}");
                        explained |= pages > 0 && search_ns > 0;
                    }
                }
                case.assert_fresh(&slot, &strategies, "others");
                let what = format!("{kind}, {count}: {new} new, {returned} returned, {lifted}");
                assert!(lifted > 0, "{what}");
                assert_eq!(explained, kind == ResetKind::Auto, "{what}");
                assert!(new * 10 < returned && all == 0, "{what}");
            }
        }
    });
}

/// `Auto` compares both searches.
#[test]
fn a_search_that_costs_more_than_it_spares_is_given_up() {
    counted_by_a_call(|| {
        let case = case();
        let strategies = strategies(ResetKind::Auto);
        let dear = Times {
            fault: 1500,
            protected_fault: 1000,
            search: 40_000,
            search_all: 6_000,
            discard_all: 4000,
        };
        let mut slot = case.spawn(&strategies);
        let mut random = Random(3);
        let mut one = |slot: &mut Slot| run(&case, slot, std::iter::once(random.below(600)));
        for _ in 0..2000 {
            one(&mut slot);
        }
        assert!(one(&mut slot).protected > 300);
        let lifted = with_times(dear, || {
            for _ in 0..100 {
                one(&mut slot);
            }
            (0..200).filter(|_| one(&mut slot).lifted).count()
        });
        assert!(lifted < 100, "{lifted} of 200 resets searched for what was lifted");
        case.assert_fresh(&slot, &strategies, "given up");
    });
}

/// A page that was protected when it was private, one that is the image's own and was read before, one
/// that no run has touched, and those of memory behind the image: written by the guest, by another
/// thread, and by the kernel.
#[test]
fn what_is_written_is_found_whoever_writes() {
    counted_by_a_call(|| {
        let case = case();
        let strategies = strategies(ResetKind::Protect);
        let mut slot = with_protected_pages(&case, ResetKind::Protect);
        for round in 0..10 {
            let pages = [100 + round, 400 + round, 900 + round];
            for by in 0..3 {
                slot.enter();
                write(&slot, case.layout.link.start, &[1]);
                slot.note_external_writer(ExternalWriter::UntilReset);
                for page in pages {
                    let address = slot.start().wrapping_add(at(&case, page) as usize);
                    match by {
                        0 => poke(&slot, at(&case, page), 1),
                        1 => std::thread::scope(|scope| {
                            let slot = &slot;
                            let case = &case;
                            scope.spawn(move || poke(slot, at(case, page), 2));
                        }),
                        // SAFETY: the call writes to a page of the slot, which this thread alone uses.
                        _ => assert_eq!(unsafe { libc::getrandom(address.cast(), 9, 0) }, 9),
                    }
                }
                let report = slot.reset_for(OWNER).unwrap();
                assert!(report.lifted, "{by}: {report:?}");
                assert!(report.restored + report.discarded >= 3, "{by}: {report:?}");
                case.assert_fresh(&slot, &strategies, &format!("{round}, by {by}"));
            }
        }
        // Who writes at any time may do so while pages are protected.
        slot.note_external_writer(ExternalWriter::ForGood);
        let report = run(&case, &mut slot, (0..3).chain(200..203));
        assert!(report.scanned && !report.lifted, "{report:?}");
        assert_eq!((report.protected, report.returned), (0, 0), "{report:?}");
        case.assert_fresh(&slot, &strategies, "for good");
        let report = run(&case, &mut slot, 0..3);
        assert_eq!(report.protected, 0, "{report:?}");
        case.assert_fresh(&slot, &strategies, "after a run with nothing else");
    });
}

/// The kernel reports one row for pages of the stack, the link zone and the tables.
#[test]
fn a_row_that_begins_deep_in_the_stack_is_found_to_its_end() {
    counted_by_a_call(|| {
        let case = case();
        let strategies = strategies(ResetKind::Protect);
        let mut slot = with_protected_pages(&case, ResetKind::Protect);
        for pages in [1, 8] {
            slot.enter();
            let row = case.layout.stack.start..case.layout.image_start + pages * PAGE;
            for address in row.step_by(PAGE as usize) {
                poke(&slot, address, 5);
            }
            let report = slot.reset_for(OWNER).unwrap();
            assert!(report.lifted, "{report:?}");
            case.assert_fresh(&slot, &strategies, &format!("{pages} pages of the image"));
        }
    });
}

#[test]
fn pages_far_apart_that_were_read_are_not_looked_at_one_by_one() {
    counted_by_a_call(|| {
        let case = case();
        let strategies = strategies(ResetKind::Protect);
        let mut slot = after_a_large_run(&case, ResetKind::Protect, 300);
        slot.enter();
        for page in (18..1024).step_by(18) {
            drop(read(&slot, at(&case, page)..at(&case, page) + 1));
        }
        poke(&slot, at(&case, 1000), 5);
        let (report, calls) = record(|| slot.reset_for(OWNER).unwrap());
        assert!(report.lifted, "{report:?}");
        let count = calls.iter().filter(|&&call| call == Call::Scan).count();
        assert!(count < 12, "{count} scans");
        case.assert_fresh(&slot, &strategies, "far apart");
    });
}

#[test]
fn runs_without_page_faults_are_not_searched() {
    counted_by_a_call(|| {
        let case = case();
        let mut slot = with_protected_pages(&case, ResetKind::Protect);
        let searched = (0..20).filter(|_| run(&case, &mut slot, 0..2).scanned).count();
        assert!(searched < 10, "{searched} of 20");
    });
}

/// Whatever call fails.
#[test]
fn after_each_failure_of_a_search_all_is_found() {
    counted_by_a_call(|| {
        let case = case();
        let strategies = strategies(ResetKind::Protect);
        let mut slot = with_protected_pages(&case, ResetKind::Protect);
        for nth in 0.. {
            slot.enter();
            write(&slot, case.layout.link.start, &[1]);
            // Known, protected, only read, and never touched; also deep in the stack.
            for page in [0, 50 + nth, 350 + nth, 450, 460 + nth, 700 + nth] {
                poke(&slot, at(&case, page), 3);
            }
            poke(&slot, case.layout.stack.start, 3);
            let outcome = fail_nth(nth, libc::ENOMEM, || slot.reset_for(OWNER).map(|_| ()));
            if outcome.value.is_err() {
                slot.reset_for(OWNER).unwrap();
            }
            case.assert_fresh(&slot, &strategies, &format!("call {nth}"));
            for pages in [300, 1, 300] {
                run(&case, &mut slot, 0..pages);
                case.assert_fresh(&slot, &strategies, &format!("after call {nth}"));
            }
            if outcome.failed.is_none() {
                assert!(nth > 4, "{nth} calls");
                break;
            }
        }
    });
}

/// Nothing is protected in a forked process: all is searched there.
#[test]
fn a_forked_process_restores_all() {
    in_own_process("by_search::a_forked_process_restores_all", || {
        counted_by_a_call(assert_forks_restore_all);
    });
}
