//! Pages that do not come: whoever waits is told, in time, and nobody reads anything in their place.

use super::*;

const SHORT: Duration = Duration::from_millis(20);

fn absent<E: From<AbsentPage>>(group: u64, why: Absence) -> Result<(), E> {
    Err(AbsentPage { group, why }.into())
}

#[test]
fn who_waits_for_what_does_not_come_is_told_at_the_deadline() {
    let arriving = Arriving::with_patience(SHORT);
    let slot = arriving.spawn(&StrategyConfig::default());
    let address = slot.memory(0).addr() + 3 * PAGE_GROUP as usize + 9;
    assert_eq!(slot.wait_for_fault(address), Some(absent(3, Absence::Overdue)));
    assert_eq!(slot.wait(0, 0..SIZE), absent(0, Absence::Overdue));
    let mut byte = [0];
    let read = arriving.image.read(arriving.layout.base + 40_000, &mut byte);
    assert_eq!(read, absent(2, Absence::Overdue));
    assert!(!readable(address), "nothing is there in its place");
    // It can still come.
    arriving.install(3);
    assert_eq!(slot.wait_for_fault(address), Some(Ok(())));
    assert!(readable(address));
}

#[test]
fn what_is_given_up_is_an_error_at_once_for_who_waits_and_who_comes_later() {
    let arriving = Arriving::new();
    let slot = arriving.spawn(&StrategyConfig::default());
    arriving.install(0);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| slot.wait(0, 0..2 * PAGE_GROUP));
        while arriving.pages.take_wanted().is_empty() {
            thread::yield_now();
        }
        assert_eq!(arriving.pages.give_up(), GROUPS - 1);
        assert_eq!(waiting.join().unwrap(), absent(1, Absence::GivenUp));
    });
    let address = slot.memory(0).addr() + 2 * PAGE_GROUP as usize;
    assert_eq!(slot.wait_for_fault(address), Some(absent(2, Absence::GivenUp)));
    assert!(!readable(address), "nothing is there in its place");
    assert!(!arriving.pages.install(2, arriving.bytes(2)).unwrap(), "it is final");
    // What is here can be used.
    assert!(Running::new(&slot).page(0) == arriving.memory[..PAGE as usize]);
    assert_eq!(arriving.pages.wait_whole(), absent(1, Absence::GivenUp));
}

#[test]
fn what_is_given_up_stays_so_through_resets_and_refills() {
    for kind in mapping() {
        let arriving = Arriving::new();
        let mut slot = arriving.spawn(&by(kind));
        arriving.install(5);
        arriving.pages.give_up();
        slot.enter();
        Running::new(&slot).write(5 * PAGE_GROUP, 0xee);
        for round in 0..2 {
            slot.reset_for(Owner(1)).unwrap();
            let address = slot.memory(0).addr();
            assert_eq!(slot.wait_for_fault(address), Some(absent(0, Absence::GivenUp)), "{kind}");
            assert!(!readable(address), "{kind} {round}");
            slot.reset_to(&arriving.image, &[arriving.size()], Owner(1)).unwrap();
            assert!(!readable(slot.memory(0).addr()), "{kind} {round}");
        }
    }
}

#[test]
fn a_group_of_another_size_is_refused() {
    let pages = IncompletePages::new("sizes", 5 * PAGE, PATIENCE).unwrap();
    for (group, size, expected) in [(0, PAGE, PAGE_GROUP), (1, 2 * PAGE, PAGE), (1, 0, PAGE)] {
        let error = pages.install(group, &vec![1; size as usize]).unwrap_err();
        assert_eq!(error, PagesError::GroupSize { group, found: size, expected });
    }
    assert_eq!(pages.residency().present, 0);
}

#[test]
fn spans_that_the_pages_do_not_have_are_refused() {
    let pages = IncompletePages::new("spans", 2 * PAGE, PATIENCE).unwrap();
    for (file_offset, size) in [(0, 3 * PAGE), (PAGE, 2 * PAGE), (8 * PAGE, PAGE), (5, PAGE)] {
        let span = FileSpan { slot: 0..size, file_offset };
        let extent = span.slot.clone();
        let error = Image::from_incomplete(&pages, "spans", vec![extent], &[span], []);
        assert!(matches!(error, Err(PagesError::FileRefused(_))), "{file_offset} {error:?}");
    }
}

/// As where a filter forbids userfaultfd.
#[test]
#[cfg(debug_assertions)]
fn where_nothing_tells_of_absent_pages_all_come_first() {
    in_own_process("given_up::where_nothing_tells_of_absent_pages_all_come_first", || {
        let make = || {
            assert!(!serves_absent_pages());
            Arriving::with_patience(SHORT)
        };
        let arriving = inject::fail_all(Call::ServeFaults, libc::EPERM, make);
        assert!(!arriving.pages.runs_incomplete());
        let spawn = || Slot::new(&arriving.layout, &arriving.image, &[arriving.size()]);
        arriving.install(7);
        assert_eq!(
            spawn().unwrap_err(),
            PagesError::from(AbsentPage { group: 0, why: Absence::NotServed })
        );
        assert_eq!(arriving.pages.wait_whole(), absent(0, Absence::Overdue));
        assert_eq!(arriving.pages.take_wanted().len() as u64, GROUPS - 1);
        (0..GROUPS).filter(|group| *group != 7).for_each(|group| arriving.install(group));
        arriving.pages.wait_whole().unwrap();
        let slot = spawn().unwrap();
        arriving.assert_memory(&slot, &arriving.memory);
        assert_eq!(slot.differs_from_image(), Ok(None));
    });
}
