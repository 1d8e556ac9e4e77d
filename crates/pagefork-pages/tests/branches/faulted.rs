//! Pages that are write-protected by userfaultfd, so that writes to them are noticed: what is noted,
//! at which cost in maps, and what is done where the kernel refuses.

use pagefork_pages::{DeltaTracker, faults_at_writes, procmaps};

use super::successive::{Run, tracked, write_by_kernel};
use super::*;

fn small() -> Case {
    let (image, _) = dense_image(&layout(), 0x42, 20 * PAGE);
    Case::new("faulted", layout(), image, (4 * WASM_PAGE, 16 * WASM_PAGE))
}

/// Runs a test where the kernel can do what it needs.
fn where_it_works(body: impl FnOnce()) {
    match faults_at_writes() {
        true => body(),
        false => eprintln!("NOT TESTED: this kernel raises no signals at writes"),
    }
}

fn run(case: &Case) -> Run<'_> {
    Run::new(case, DeltaTracker::Fault, ResetKind::Auto)
}

/// Every second page of many: each is noted alone, and no map is cut, however many there are.
#[test]
fn each_page_is_noted_alone_and_no_map_is_cut() {
    where_it_works(|| {
        let (image, _) = dense_image(&layout(), 0x42, PAGE);
        let case = Case::new("wide", layout(), image, (16 * MIB, 16 * MIB));
        let mut run = Run::new(&case, DeltaTracker::Fault, ResetKind::Discard);
        for page in 0..2000 {
            run.write(page, &[1]);
        }
        run.snapshot(false);
        let whole = run.slot.bounds().slot();
        let maps = || {
            let maps = procmaps::read().unwrap();
            maps.iter().filter(|map| whole.contains(&(map.range.start as usize))).count()
        };
        let before = maps();
        for page in (0..2000).step_by(2) {
            run.write(page, &[2]);
        }
        assert_eq!(maps(), before);
        run.snapshot_after(1000, false);
        assert_eq!(maps(), before);
    });
}

/// Of pages that are written one after the other at most twice as many are noted as were written.
#[test]
fn rows_of_pages_are_noted_together() {
    where_it_works(|| assert_rows_are_noted(true));
}

/// What each snapshot has is compared with a model; where nothing can be looked up, more pages may be read.
fn assert_rows_are_noted(is_looked_up: bool) {
    let (image, _) = dense_image(&layout(), 0x42, PAGE);
    let case = Case::new("wide", layout(), image, (4 * MIB, 4 * MIB));
    for count in [1, 2, 3, 7, 64, 200, 700] {
        let mut run = Run::new(&case, DeltaTracker::Fault, ResetKind::Discard);
        for page in 0..1024 {
            run.write(page, &[1]);
        }
        run.snapshot(false);
        for page in 100..100 + count {
            run.write(page, &[2]);
        }
        let read = run.snapshot(false);
        assert!(!is_looked_up || (count..=2 * count).contains(&read), "{read} for {count}");
        // The last pages of a memory have none behind them.
        for page in 1020..1024 {
            run.write(page, &[3]);
        }
        run.snapshot(false);
    }
}

/// What can be written counts against a limit, and pages are writable again at any time all the same.
#[test]
fn limits_of_writable_memory_do_not_matter() {
    in_own_process("faulted::limits_of_writable_memory_do_not_matter", || {
        where_it_works(|| {
            let limit = libc::rlimit { rlim_cur: 8 << 30, rlim_max: libc::RLIM_INFINITY };
            // SAFETY: concerns this process, which runs this test alone.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_DATA, &limit) }, 0);
            let case = small();
            let mut run = run(&case);
            run.write(1, &[1]);
            run.snapshot(false);
            run.write(1, &[2]);
            run.snapshot_after(1, false);
            assert_eq!(run.slot.delta_tracker(), Ok(DeltaTracker::Fault));
        });
    });
}

/// Pages of files cannot be registered: which tracker works says the slot before and after.
#[test]
fn pages_of_files_are_compared_and_the_slot_says_so() {
    let cases = cases();
    let case = cases.iter().find(|case| case.name.contains("file")).unwrap();
    let mut run = run(case);
    for page in 1..4 {
        assert_eq!(run.slot.delta_tracker(), Ok(DeltaTracker::Compare));
        run.write(page, &[7]);
        run.snapshot(false);
    }
}

/// A SIGBUS that has another reason is not taken for a write to a protected page for ever.
#[test]
fn signals_with_other_reasons_are_not_served_for_ever() {
    where_it_works(|| {
        let case = small();
        let mut run = run(&case);
        for page in 1..4 {
            run.write(page, &[1]);
        }
        run.snapshot(false);
        let address = |page: u64| run.slot.start().addr() + run.place(page) as usize;
        let served =
            (0..10_000).take_while(|_| pagefork_pages::serve_fault(address(2), true)).count();
        assert!((2..9_999).contains(&served), "{served}");
        // Others are.
        assert!(pagefork_pages::serve_fault(address(3), true));
        let whole = run.slot.bounds().slot();
        for outside in [0, whole.start, whole.end, whole.end - 1, usize::MAX] {
            assert!(!pagefork_pages::serve_fault(outside, true), "{outside:#x}");
        }
        run.write(1, &[2]);
        run.snapshot(false);
        drop(run.slot);
        assert!(!pagefork_pages::serve_fault(whole.start + case.memory(0) as usize, true));
    });
}

#[cfg(debug_assertions)]
mod failures {
    use pagefork_pages::inject::{fail_all, fail_nth};
    use pagefork_pages::{Call, ExternalWriter, HostFeatures};

    use super::*;

    /// Else what was lifted with them is found though it was not noted.
    #[test]
    fn rows_of_pages_are_noted_together_where_page_tables_are_hidden() {
        const NAME: &str =
            "faulted::failures::rows_of_pages_are_noted_together_where_page_tables_are_hidden";
        in_own_process(NAME, || {
            fail_all(Call::OpenPagemap, libc::EPERM, HostFeatures::get).unwrap();
            where_it_works(|| assert_rows_are_noted(false));
        });
    }

    #[test]
    fn no_page_is_missed_where_the_kernel_refuses_to_protect() {
        where_it_works(|| {
            let case = small();
            let mut run = run(&case);
            run.write(1, &[1]);
            fail_all(Call::FaultWrites, libc::EPERM, || run.snapshot(false));
            assert_eq!(run.slot.delta_tracker(), Ok(DeltaTracker::Compare));
            run.write(2, &[2]);
            run.snapshot(false);
            assert_eq!(run.slot.compared(), 2);
            assert_eq!(run.slot.delta_tracker(), Ok(run.tracker));
            // Now it does; and then not again.
            run.write(1, &[3]);
            fail_all(Call::FaultWrites, libc::ENOMEM, || run.snapshot(false));
            run.write(2, &[3]);
            run.snapshot(false);
            run.write(1, &[4]);
            run.snapshot_after(1, false);
        });
    }

    #[test]
    fn no_page_is_missed_where_the_kernel_refuses_to_lift() {
        where_it_works(|| {
            let case = small();
            let mut run = run(&case);
            for page in 1..10 {
                run.write(page, &[1]);
            }
            run.snapshot(false);
            // Where a page cannot be made writable alone everything is, and counts as written.
            let place = run.place(5);
            let failed = fail_nth(0, libc::ENOMEM, || write(&run.slot, place, &[5])).failed;
            assert_eq!(failed, Some(Call::UnfaultWrites));
            run.write(8, &[8]);
            run.snapshot(false);
            assert_eq!(run.slot.compared(), 9);
            run.write(9, &[9]);
            run.snapshot_after(1, false);
            // Also for the kernel, and where nothing can be made writable at first.
            let address = run.slot.start().addr() + run.place(7) as usize;
            fail_nth(0, libc::ENOMEM, || run.slot.note_external_write(address..address + 9));
            write_by_kernel(&run.slot, run.place(7), &[7; 9]);
            run.snapshot(false);
            fail_all(Call::UnfaultWrites, libc::ENOMEM, || {
                run.slot.note_external_writer(ExternalWriter::UntilReset);
            });
            run.write(6, &[11]);
            run.snapshot(false);
            assert_eq!(run.slot.delta_tracker(), Ok(DeltaTracker::Compare));
            write_by_kernel(&run.slot, run.place(4), &[12; 9]);
            run.snapshot(false);
        });
    }

    #[test]
    fn a_reset_that_cannot_make_pages_writable_changes_nothing() {
        where_it_works(|| {
            let case = small();
            let mut run = run(&case);
            run.write(1, &[1]);
            run.snapshot(false);
            let refused = fail_all(Call::UnfaultWrites, libc::ENOMEM, || run.slot.reset());
            assert!(refused.is_err() && run.slot.is_whole(), "{refused:?}");
            run.write(1, &[2]);
            run.snapshot(false);
            run.slot.reset_for(OWNER).unwrap();
            case.assert_fresh(&run.slot, &tracked(run.tracker, ResetKind::Auto), &run.what);
        });
    }
}
