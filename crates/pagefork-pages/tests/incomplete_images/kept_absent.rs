//! What is absent stays so, whatever happens to a slot: no reset, growth, refill or discard reads it,
//! or has zeros in its place.

use super::*;

/// Which groups of the image are not readable through a slot, as the kernel says.
fn unreadable(slot: &Slot) -> Vec<u64> {
    let address = |group: u64| slot.memory(0).addr() + (group * PAGE_GROUP) as usize;
    (0..GROUPS).filter(|group| !readable(address(*group))).collect()
}

fn absent(arriving: &Arriving) -> Vec<u64> {
    arriving.pages.missing().into_iter().flatten().collect()
}

#[test]
fn absence_survives_resets_growth_refills_and_discards_by_every_strategy() {
    for kind in mapping() {
        let arriving = Arriving::new();
        let mut slot = arriving.spawn(&by(kind));
        let mut here = 0;
        for round in 0..6u64 {
            slot.enter();
            let written = [round * 5 % GROUPS, 40 + round];
            let ((), brought) = arriving.serving(|| {
                let running = Running::new(&slot);
                written.iter().for_each(|group| running.write(group * PAGE_GROUP + 5000, 0xee));
                running.page(50 * PAGE_GROUP);
            });
            here += brought.len() as u64;
            slot.grow_memory(0, 2 * MIB + round * WASM_PAGE).unwrap();
            let check = |slot: &Slot, what: &str| {
                assert_eq!(unreadable(slot), absent(&arriving), "{kind} {round} {what}");
                assert_eq!(arriving.pages.residency().present, here, "{kind} {round} {what}");
            };
            check(&slot, "grown");
            match round % 3 {
                2 => slot.reset_to(&arriving.image, &[arriving.size()], Owner(7)).unwrap(),
                _ => slot.reset_for(Owner(7)).unwrap(),
            };
            check(&slot, "reset");
            slot.discard().unwrap();
            check(&slot, "discarded");
        }
        arriving.serving(|| arriving.assert_memory(&slot, &arriving.memory));
        assert!(arriving.pages.is_whole(), "{kind}");
        // As ever from then on.
        slot.enter();
        Running::new(&slot).write(77, 0xee);
        slot.reset_for(Owner(7)).unwrap();
        arriving.assert_memory(&slot, &arriving.memory);
        assert_eq!(slot.differs_from_image(), Ok(None), "{kind}");
    }
}

#[test]
fn a_strategy_that_copies_images_has_all_come_first() {
    let arriving = Arriving::new();
    let (slot, brought) = arriving.serving(|| arriving.spawn(&by(ResetKind::Copy)));
    assert_eq!(brought.len() as u64, GROUPS);
    arriving.assert_memory(&slot, &arriving.memory);
}

#[test]
fn what_came_is_private_in_no_slot() {
    let arriving = Arriving::new();
    let mut slot = arriving.spawn(&by(ResetKind::Resident));
    slot.enter();
    arriving.serving(|| arriving.assert_memory(&slot, &arriving.memory));
    let pagemap = std::fs::File::open("/proc/self/pagemap").unwrap();
    for page in (0..SIZE).step_by(PAGE as usize) {
        const PRESENT: u64 = 1 << 63;
        const OF_FILE: u64 = 1 << 61;
        let mut entry = [0; 8];
        let at = (slot.memory(0).addr() as u64 + page) / PAGE * 8;
        std::os::unix::fs::FileExt::read_exact_at(&pagemap, &mut entry, at).unwrap();
        let entry = u64::from_ne_bytes(entry);
        assert_eq!(entry & (PRESENT | OF_FILE), PRESENT | OF_FILE, "page {page:#x}");
    }
    assert_eq!(slot.changed_pages(), Ok(vec![]));
}

#[test]
fn zeroing_a_range_waits_for_what_is_below_it() {
    let arriving = Arriving::new();
    let mut slot = arriving.spawn(&StrategyConfig::default());
    slot.enter();
    let range = PAGE_GROUP / 2..20 * PAGE_GROUP;
    let ((), brought) = arriving.serving(|| {
        slot.discard_memory(0, range.clone()).unwrap();
    });
    assert_eq!(brought.len(), 20);
    let mut expected = arriving.memory.clone();
    expected[range.start as usize..range.end as usize].fill(0);
    arriving.serving(|| arriving.assert_memory(&slot, &expected));
}
