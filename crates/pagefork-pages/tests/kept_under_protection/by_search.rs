//! Where page faults are not noted in memory, as for users without rights: pages that were written are
//! found by a search for lifted protection, whoever wrote them, and none is missed.

use pagefork_pages::Call;
use pagefork_pages::inject::{fail_all, fail_nth};

use super::*;

/// Runs `body` on a thread whose page faults are counted by a system call.
fn counted_by_a_call(body: impl FnOnce() + Send) {
    let refused = || {
        fail_all(Call::WatchFaults, libc::EACCES, || assert!(!counts_faults_in_memory()));
        body();
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
    if !can_protect() {
        return;
    }
    counted_by_a_call(|| {
        let kinds = [ResetKind::Resident, ResetKind::Protect, ResetKind::Auto];
        let lifted = super::every_state_of_a_page(kinds.into_iter().map(strategies), 40);
        for (kind, count) in lifted {
            match kind {
                ResetKind::Protect => assert!(count > 30, "{count}"),
                ResetKind::Auto => assert!(count > 0, "{count}"),
                _ => assert_eq!(count, 0, "{kind} protects nothing"),
            }
        }
    });
}

#[test]
fn other_pages_each_time_stay_private() {
    if !can_protect() {
        return;
    }
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
                // `Auto` tries it, and goes on where it costs less.
                if kind == ResetKind::Auto {
                    assert!(explained, "{what}");
                } else {
                    assert!(new * 10 < returned && all == 0, "{what}");
                }
            }
        }
    });
}

/// A page that was protected when it was private, one that is the image's own and was read before, one
/// that no run has touched, and those of memory behind the image: written by the guest, by another
/// thread, and by the kernel.
#[test]
fn what_is_written_is_found_whoever_writes() {
    if !can_protect() {
        return;
    }
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

#[test]
fn runs_without_page_faults_are_not_searched() {
    if !can_protect() {
        return;
    }
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
    if !can_protect() {
        return;
    }
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
        if can_protect() {
            counted_by_a_call(assert_forks_restore_all);
        }
    });
}
