//! Pages that cannot be written, so that writes to them are noticed: the bounds of what is noted, and
//! everybody who writes to them otherwise than a guest does.

use std::os::fd::AsRawFd;

use pagefork_pages::{DeltaTracker, ExternalWriter, faults_at_writes, procmaps, protects_writes};

use super::successive::{Run, tracked, write_by_kernel};
use super::*;

fn small() -> Case {
    let (image, _) = dense_image(&layout(), 0x42, 20 * PAGE);
    Case::new("protected", layout(), image, (4 * WASM_PAGE, 16 * WASM_PAGE))
}

fn run(case: &Case) -> Run<'_> {
    Run::new(case, DeltaTracker::Protect, ResetKind::Auto)
}

/// One by each tracker that notices writes by signals, where that works.
fn runs(case: &Case) -> Vec<Run<'_>> {
    let mut trackers = vec![DeltaTracker::Protect];
    match faults_at_writes() {
        true => trackers.push(DeltaTracker::Fault),
        false => eprintln!("NOT TESTED: this kernel raises no signals at writes"),
    }
    let run = |tracker| Run::new(case, tracker, ResetKind::Auto);
    let runs: Vec<_> = trackers.into_iter().map(run).collect();
    assert!(runs.iter().all(|run| run.tracker != DeltaTracker::Compare));
    runs
}

/// Ranges that are made writable have 1, 8, 64 and 512 pages, 64 of each; then everything is.
const RANGES: [u64; 4] = [1, 8, 64, 512];
const RANGES_A_SIZE: u64 = 64;

/// Pages whose writes take a range each.
fn apart(count: u64) -> Vec<u64> {
    let mut pages = Vec::new();
    // Further ones are as far apart as the largest.
    let sizes = RANGES.iter().flat_map(|size| [*size; RANGES_A_SIZE as usize]);
    let mut next = 512;
    for size in sizes.chain(std::iter::repeat(512)).take(count as usize) {
        next = u64::next_multiple_of(next, size);
        pages.push(next + size / 2);
        next += size;
    }
    pages
}

/// How many maps the kernel has of a slot.
fn maps_of(slot: &Slot) -> u64 {
    let whole = slot.bounds().slot();
    let maps = procmaps::read().unwrap();
    maps.iter().filter(|map| whole.contains(&(map.range.start as usize))).count() as u64
}

/// However many pages a run writes, no more maps are made than a bound, and all of them are found: up
/// to the last range that can be noted, and beyond it.
#[test]
fn protected_pages_take_few_maps_however_many_are_written() {
    const NAME: &str = "protected::protected_pages_take_few_maps_however_many_are_written";
    const NOTED: u64 = RANGES.len() as u64 * RANGES_A_SIZE;
    in_own_process(NAME, || {
        handle_refused_writes();
        let (image, _) = dense_image(&layout(), 0x42, PAGE);
        let case = Case::new("wide", layout(), image, (256 * MIB, 256 * MIB));
        let strategies = tracked(DeltaTracker::Protect, ResetKind::Discard);
        for count in [1, 64, 65, NOTED - 1, NOTED, NOTED + 1, NOTED + 40] {
            let mut slot = case.spawn(&strategies);
            slot.enter();
            let (start, fresh) = (slot.memory(0), maps_of(&slot));
            let place = |page: u64| start.wrapping_add((page * PAGE) as usize);
            let (pages, others) = (apart(count), 60_000..60_500);
            for page in others.clone() {
                // SAFETY: the memory is accessible, and nobody else uses it.
                unsafe { place(page).write(1) };
            }
            let first = slot.snapshot("first", &[], ImageForm::Whole).unwrap();
            let before = maps_of(&slot);
            for page in &pages {
                // SAFETY: as said above for the first pages.
                unsafe { place(*page).add(7).write(2) };
            }
            let maps = maps_of(&slot).saturating_sub(before);
            assert!(maps <= 2 * NOTED, "{maps} more maps by {count} writes");
            let second = slot.snapshot("second", &[], ImageForm::Branch).unwrap();
            let written: Vec<u64> = pages.iter().map(|page| case.memory(0) + page * PAGE).collect();
            assert_eq!(second.changed_since(&first).as_ref(), Some(&written), "{count}");
            let looked_at_besides = if count <= NOTED { 0 } else { others.end - others.start };
            assert_eq!(slot.compared(), count + looked_at_besides, "{count}");
            // And it begins anew.
            // SAFETY: as said above for the first pages.
            unsafe { place(pages[0]).write(3) };
            let third = slot.snapshot("third", &[], ImageForm::Branch).unwrap();
            let changed = third.changed_since(&second).unwrap();
            assert_eq!((changed, slot.compared()), (written[..1].to_vec(), 1), "{count}");
            slot.reset_for(OWNER).unwrap();
            assert_eq!(maps_of(&slot), fresh, "{count}");
        }
    });
}

/// A slot to whose memory somebody may write unnoticed is not read-only, until it was reset.
#[test]
fn what_others_may_write_to_is_not_protected() {
    let case = small();
    for mut run in runs(&case) {
        for page in 1..4 {
            run.write(page, &[1]);
        }
        run.snapshot(false);
        run.slot.note_external_writer(ExternalWriter::UntilReset);
        for page in [2, 3] {
            assert_eq!(run.slot.delta_tracker(), Ok(DeltaTracker::Compare));
            write_by_kernel(&run.slot, run.place(page), &[7; 9]);
            run.snapshot(false);
        }
        run.slot.reset_for(OWNER).unwrap();
        assert_eq!(run.slot.delta_tracker(), Ok(run.tracker));
    }
}

/// The kernel does not write to a page that is read-only: who has not said so gets an error, and
/// nothing is missed. It writes where that was said, as often as is liked, and as far as was said.
#[test]
fn the_kernel_writes_where_that_was_said() {
    let case = small();
    runs(&case).into_iter().for_each(write_where_that_was_said);
}

fn write_where_that_was_said(mut run: Run<'_>) {
    // Private pages, which each tracker protects.
    for page in 1..6 {
        run.write(page, &[1]);
    }
    run.snapshot(false);
    let file = temporary_file(&[5; 100]);
    let start = run.slot.start();
    let read = |at: u64| {
        let to = start.wrapping_add(at as usize).cast();
        // SAFETY: the pages are the slot's, and no other code uses them.
        let count = unsafe { libc::pread(file.as_raw_fd(), to, 100, 0) };
        if count < 0 { Err(std::io::Error::last_os_error().raw_os_error()) } else { Ok(count) }
    };
    assert_eq!(read(run.place(3)), Err(Some(libc::EFAULT)));
    run.snapshot(true);
    // More often than ranges can be noted.
    let place = run.place(3);
    let address = start.addr() + place as usize;
    for _ in 0..1000 {
        run.slot.note_external_write(address..address + 100);
        assert_eq!(read(place), Ok(100));
    }
    assert_eq!(read(run.place(4)), Err(Some(libc::EFAULT)));
    run.snapshot_after(1, false);
    // What lies outside the slot is nobody's, nor is nothing.
    let end = start.addr() + run.slot.bounds().slot().len();
    for range in [0..8, end..end + 8, address..address, end - 8..usize::MAX, 0..usize::MAX] {
        run.slot.note_external_write(range);
    }
    assert_eq!(read(place), Ok(100), "all was announced");
    run.snapshot(true);
}

/// Threads that write to one slot at the same time, which they share by turns of the embedder's.
#[test]
fn threads_that_write_at_the_same_time_lose_nothing() {
    let (image, _) = dense_image(&layout(), 0x42, PAGE);
    let case = Case::new("threads", layout(), image, (4 * MIB, 4 * MIB));
    let rounds = (0..20u64).flat_map(|round| runs(&case).into_iter().map(move |run| (round, run)));
    for (round, mut run) in rounds {
        for page in 0..480 {
            run.write(page, &[1]);
        }
        run.snapshot(false);
        let slot = &run.slot;
        let (first, barrier) = (run.place(0), std::sync::Barrier::new(4));
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    // The same pages, and pages that become writable with those of others.
                    for page in (0..100 + 20 * round).step_by(3) {
                        write(slot, first + page * PAGE + thread, &[thread as u8 + 1]);
                    }
                });
            }
        });
        run.snapshot(false);
    }
}

/// A forked process has read-only pages, too, and makes its own writable, however that is asked for.
/// What it does there changes nothing for its parent.
#[test]
fn forked_processes_make_their_own_pages_writable() {
    let case = small();
    runs(&case).into_iter().for_each(fork_and_write);
}

fn fork_and_write(mut run: Run<'_>) {
    for page in [1, 2, 5, 6, 9] {
        run.write(page, &[1]);
    }
    run.snapshot(false);
    run.write(2, &[2]);
    for way in 0..4 {
        // SAFETY: the child works on its own copy and exits; other threads of this process do not
        // hold the heap for long, and an alarm ends the child.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: concerns this child alone.
            unsafe { libc::alarm(20) };
            let works = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                match way {
                    0 => run.slot.note_external_writer(ExternalWriter::UntilReset),
                    1 => run.slot.note_external_writer(ExternalWriter::ForGood),
                    2 => {
                        let start = run.slot.start().addr() + run.place(5) as usize;
                        run.slot.note_external_write(start..start + 3);
                    }
                    // Other parts are made read-only then.
                    _ => {
                        run.slot.grow_memory(0, 8 * WASM_PAGE).unwrap();
                        run.snapshot(false);
                        run.slot.note_external_writer(ExternalWriter::UntilReset);
                    }
                }
                write_by_kernel(&run.slot, run.place(5), &[5; 3]);
                run.write(6, &[6]);
                run.snapshot(false);
                run.write(9, &[9]);
                drop(run);
            }));
            // SAFETY: ends this child.
            unsafe { libc::_exit(i32::from(works.is_err())) };
        }
        let mut status = 0;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "{way}");
    }
    run.snapshot_after(1, false);
}

/// Where what can be written counts against a limit, nothing is made read-only that might not become
/// writable again.
#[test]
fn nothing_is_protected_where_writable_pages_count_against_a_limit() {
    const NAME: &str = "protected::nothing_is_protected_where_writable_pages_count_against_a_limit";
    in_own_process(NAME, || {
        let case = small();
        let mut before = run(&case);
        before.write(1, &[1]);
        before.snapshot(false);
        assert!(protects_writes());
        let limit = libc::rlimit { rlim_cur: 8 << 30, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: concerns this process, which runs this test alone.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_DATA, &limit) }, 0);
        assert!(!protects_writes());
        for mut run in [before, run(&case)] {
            assert_eq!(run.slot.delta_tracker(), Ok(DeltaTracker::Compare));
            for page in [4, 5] {
                run.write(page, &[page as u8]);
                run.snapshot(false);
            }
            write_by_kernel(&run.slot, run.place(6), &[5; 3]);
            run.snapshot(false);
        }
    });
}

/// It needs nothing that a user without rights may not do.
#[test]
fn every_tracker_finds_pages_for_users_without_rights() {
    in_own_process("protected::every_tracker_finds_pages_for_users_without_rights", || {
        // SAFETY: this process has one test.
        let changed =
            unsafe { libc::geteuid() != 0 || libc::setgid(65534) == 0 && libc::setuid(65534) == 0 };
        assert!(changed && protects_writes());
        let case = small();
        for tracker in DeltaTracker::ALL.into_iter().filter(|tracker| *tracker != DeltaTracker::Off)
        {
            let mut run = Run::new(&case, tracker, ResetKind::Auto);
            for page in 1..9 {
                run.write(page, &[page as u8]);
            }
            run.snapshot(false);
            run.write(3, &[9]);
            run.write(30, &[9]);
            match tracker {
                DeltaTracker::Protect | DeltaTracker::Fault => run.snapshot_after(2, false),
                _ => drop(run.snapshot(false)),
            }
            assert_eq!(run.slot.delta_tracker(), Ok(run.tracker));
        }
    });
}

#[cfg(debug_assertions)]
mod failures {
    use pagefork_pages::Call;
    use pagefork_pages::inject::{fail_all, fail_nth, record};

    use super::*;

    /// How many calls a body makes.
    fn calls(body: impl FnOnce()) -> u64 {
        record(body).1.len() as u64
    }

    #[test]
    fn no_page_is_missed_where_the_kernel_refuses_to_protect() {
        let case = small();
        let mut run = run(&case);
        run.write(1, &[1]);
        fail_all(Call::GuardWrites, libc::EPERM, || run.snapshot(false));
        assert_eq!(run.slot.delta_tracker(), Ok(DeltaTracker::Compare));
        run.write(2, &[2]);
        run.snapshot(false);
        assert_eq!(run.slot.compared(), 2);
        assert_eq!(run.slot.delta_tracker(), Ok(run.tracker));
        // Now it does.
        run.write(3, &[3]);
        run.snapshot_after(1, false);
    }

    #[test]
    fn no_page_is_missed_where_the_kernel_refuses_to_lift() {
        let case = small();
        let mut run = run(&case);
        run.write(1, &[1]);
        run.snapshot(false);
        // The first write makes everything writable, where its page alone cannot be.
        let place = run.place(5);
        assert_eq!(calls(|| write(&run.slot, place, &[5])), 1);
        let place = run.place(7);
        let failed = fail_nth(0, libc::ENOMEM, || write(&run.slot, place, &[7])).failed;
        assert_eq!(failed, Some(Call::UnguardWrites));
        assert_eq!(calls(|| run.write(8, &[8])), 0);
        run.snapshot(false);
        assert_eq!(run.slot.compared(), 4);
        run.write(9, &[9]);
        run.snapshot_after(1, false);
        // Also for the kernel, and where nothing can be made writable at first.
        let address = run.slot.start().addr() + run.place(10) as usize;
        fail_nth(0, libc::ENOMEM, || run.slot.note_external_write(address..address + 9));
        write_by_kernel(&run.slot, run.place(10), &[10; 9]);
        run.snapshot(false);
        fail_all(Call::UnguardWrites, libc::ENOMEM, || {
            run.slot.note_external_writer(ExternalWriter::UntilReset);
        });
        run.write(11, &[11]);
        run.snapshot(false);
        assert_eq!(run.slot.delta_tracker(), Ok(DeltaTracker::Compare));
        write_by_kernel(&run.slot, run.place(12), &[12; 9]);
        run.snapshot(false);
    }

    #[test]
    fn a_reset_that_cannot_make_pages_writable_changes_nothing() {
        let case = small();
        let mut run = run(&case);
        run.write(1, &[1]);
        run.snapshot(false);
        let refused = fail_all(Call::UnguardWrites, libc::ENOMEM, || run.slot.reset());
        assert!(refused.is_err() && run.slot.is_whole(), "{refused:?}");
        run.write(2, &[2]);
        run.snapshot(false);
        run.slot.reset_for(OWNER).unwrap();
        case.assert_fresh(&run.slot, &tracked(run.tracker, ResetKind::Auto), &run.what);
    }
}
