//! Snapshots of slots whose image is not all here.

use super::*;

/// The memory of a slot that has run: what it has written, and what is to come.
fn run(arriving: &Arriving, slot: &mut Slot, writes: &[(u64, u8)]) -> Vec<u8> {
    slot.enter();
    let mut expected = arriving.memory.clone();
    arriving.serving(|| {
        let running = Running::new(slot);
        for &(offset, byte) in writes {
            running.write(offset, byte);
            expected[offset as usize] = byte;
        }
    });
    expected
}

#[test]
fn a_branch_of_a_partly_resident_slot_has_nothing_come() {
    // SIGBUS has a handler here that also waits for pages.
    handle_refused_writes_by(&[libc::SIGSEGV]);
    for kind in mapping() {
        for deltas in DeltaTracker::ALL {
            let arriving = Arriving::new();
            let mut slot = arriving.spawn(&StrategyConfig { deltas, ..by(kind) });
            let writes = [(3 * PAGE_GROUP + 5, 0xee), (9 * PAGE_GROUP, 0xdd)];
            let expected = run(&arriving, &mut slot, &writes);
            let patch = (arriving.layout.base - 8, &[1, 2, 3, 4][..]);
            let free = arriving.layout.base + 30 * PAGE_GROUP..arriving.layout.base + SIZE;
            let branch =
                slot.snapshot_without("branch", &[patch], &[free], ImageForm::Branch).unwrap();
            assert_eq!(arriving.pages.residency().present, 2, "{kind}");
            assert_eq!(branch.own_pages().len(), 3, "{kind}");

            // Spawned, reset, and captured again, all before the rest is here.
            let size = arriving.size();
            let strategies = check(&by(kind));
            let mut other =
                Slot::with_strategies(&arriving.layout, &branch, &[size], &strategies).unwrap();
            run(&arriving, &mut other, &[(9 * PAGE_GROUP + 1, 7)]);
            other.reset_for(Owner(3)).unwrap();
            run(&arriving, &mut other, &[(12 * PAGE_GROUP, 8)]);
            let second = other.snapshot("second", &[], ImageForm::Branch).unwrap();
            assert_eq!(arriving.pages.residency().present, 3, "{kind}");
            other.reset_for(Owner(3)).unwrap();
            arriving.serving(|| arriving.assert_memory(&other, &expected));
            assert!(arriving.pages.is_whole());
            let mut read = vec![0; SIZE as usize];
            second.read(arriving.layout.base, &mut read).unwrap();
            let mut changed = expected;
            changed[12 * PAGE_GROUP as usize] = 8;
            assert!(read == changed, "{kind}");
        }
    }
}

/// As long as pages are absent nothing is made read-only, and from the first snapshot after that all is,
/// also in processes that are forked.
#[test]
fn pages_are_protected_once_all_are_here() {
    track_once_all_are_here(DeltaTracker::Protect);
    track_once_all_are_here(DeltaTracker::Fault);
}

/// As long as pages are absent all that a slot has of its own is compared; from the first snapshot after
/// that the kernel notes what is written.
#[test]
fn writes_are_noted_once_all_pages_are_here() {
    let config = StrategyConfig { deltas: DeltaTracker::Writes, ..by(ResetKind::Discard) };
    let arriving = Arriving::new();
    let slot = arriving.spawn(&config);
    arriving.serving(|| slot.wait(0, 0..SIZE).unwrap());
    if slot.delta_tracker().unwrap() != DeltaTracker::Writes {
        println!("NOT TESTED: this system does not note what is written");
        return;
    }
    track_once_all_are_here(DeltaTracker::Writes);
}

fn track_once_all_are_here(deltas: DeltaTracker) {
    // SIGBUS has a handler here that also waits for pages.
    handle_refused_writes_by(&[libc::SIGSEGV]);
    let arriving = Arriving::new();
    let mut slot = arriving.spawn(&StrategyConfig { deltas, ..by(ResetKind::Discard) });
    assert_eq!(slot.delta_tracker(), Ok(DeltaTracker::Compare));
    run(&arriving, &mut slot, &[(70, 0xee), (5 * PAGE_GROUP, 1)]);
    let first = slot.snapshot("first", &[], ImageForm::Branch).unwrap();
    run(&arriving, &mut slot, &[(71, 0xdd)]);
    let second = slot.snapshot("second", &[], ImageForm::Branch).unwrap();
    assert_eq!((second.changed_since(&first).unwrap().len(), slot.compared()), (1, 2));
    arriving.serving(|| slot.wait(0, 0..SIZE).unwrap());
    assert!(arriving.pages.is_whole());
    assert_eq!(slot.delta_tracker(), Ok(DeltaTracker::Compare), "nothing was tracked yet");
    // What was written before it is made read-only is in the snapshot that has it made so.
    run(&arriving, &mut slot, &[(72, 0xcc), (9 * PAGE_GROUP, 2)]);
    let third = slot.snapshot("third", &[], ImageForm::Branch).unwrap();
    assert_eq!((third.changed_since(&second).unwrap().len(), slot.compared()), (2, 3));
    assert_eq!(slot.delta_tracker(), Ok(deltas));
    // SAFETY: the child has one thread, and ends without ending what is the parent's.
    let child = unsafe { libc::fork() };
    // A forked process has read-only pages, and none that are registered.
    let compares = child == 0 && deltas != DeltaTracker::Protect;
    let mut write_and_take = || {
        run(&arriving, &mut slot, &[(9 * PAGE_GROUP, 3)]);
        let fourth = slot.snapshot("fourth", &[], ImageForm::Branch).unwrap();
        let compared = if compares { 3 } else { 1 };
        assert_eq!((fourth.changed_since(&third).unwrap().len(), slot.compared()), (1, compared));
    };
    if child == 0 {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(write_and_take));
        // SAFETY: it ends the process.
        unsafe { libc::_exit(i32::from(outcome.is_err())) };
    }
    let mut status = 0;
    // SAFETY: the place is ours.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(status, 0);
    write_and_take();
}

#[test]
fn a_whole_snapshot_has_the_rest_come() {
    let arriving = Arriving::new();
    let mut slot = arriving.spawn(&StrategyConfig::default());
    let expected = run(&arriving, &mut slot, &[(70, 0xee)]);
    let take = || slot.snapshot("whole", &[], ImageForm::Whole).unwrap();
    let (whole, brought) = arriving.serving(take);
    assert_eq!((whole.depth(), brought.len() as u64), (0, GROUPS - 1));
    let mut read = vec![0; SIZE as usize];
    whole.read(arriving.layout.base, &mut read).unwrap();
    assert!(read == expected);
}

#[test]
fn a_snapshot_that_needs_what_does_not_come_fails_and_changes_nothing() {
    let arriving = Arriving::new();
    let mut slot = arriving.spawn(&StrategyConfig::default());
    let expected = run(&arriving, &mut slot, &[(70, 0xee)]);
    arriving.pages.give_up();
    let error = slot.snapshot("whole", &[], ImageForm::Whole).unwrap_err();
    assert!(
        matches!(error, PagesError::PageAbsent(AbsentPage { why: Absence::GivenUp, .. })),
        "{error}"
    );
    assert!(slot.is_whole());
    assert!(Running::new(&slot).page(0) == expected[..PAGE as usize]);
    // What is here makes a branch.
    let branch = slot.snapshot("branch", &[], ImageForm::Branch).unwrap();
    assert_eq!(branch.own_pages(), [arriving.layout.base]);
}

#[test]
fn what_an_image_has_is_not_told_from_the_holes_of_its_file() {
    let arriving = Arriving::new();
    arriving.install(1);
    let all = arriving.layout.image_start..arriving.layout.base + SIZE;
    assert_eq!(arriving.image.contents().unwrap(), [all]);
    let page = [1; PAGE as usize];
    let extents = || arriving.image.extents().to_vec();
    let make = || {
        let runs = [(arriving.layout.base + 2 * PAGE_GROUP, &page[..])];
        Image::branch(&arriving.image, "branch", extents(), runs).unwrap()
    };
    let (branch, brought) = arriving.serving(make);
    assert_eq!(brought, [2], "it is compared with what it replaces");
    assert_eq!(branch.own_pages().len(), 1);
}
