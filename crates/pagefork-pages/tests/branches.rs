//! Branches of images hold the pages that differ, and no others; slots are as they say under
//! every strategy. What a slot has otherwise than its image is found, and becomes an image.

mod common;
#[path = "common/conformance.rs"]
mod conformance;
#[path = "common/matrix.rs"]
mod matrix;
#[path = "common/states.rs"]
mod states;
#[path = "common/swap.rs"]
mod swap;
#[path = "branches/faulted.rs"]
mod faulted;
#[path = "branches/protected.rs"]
mod protected;
#[path = "branches/states.rs"]
mod states_between_snapshots;
#[path = "branches/successive.rs"]
mod successive;

use std::sync::Arc;

use common::*;
use conformance::*;
use matrix::*;
use pagefork_pages::{
    BRANCH_DEPTH_MAX, BRANCH_PAGES_MAX, HeldRun, Image, ImageForm, MemorySize, MemoryZone,
    PagesError, ResetKind, Slot, SlotConfig, StrategyConfig,
};

#[test]
fn after_every_mutation_a_slot_of_a_branch_is_as_a_fresh_one() {
    conformance(&branch_cases(), 2);
}

/// Branches of images that are overwritten soon.
fn small_cases() -> impl Iterator<Item = Case> {
    let small = |case: &Case| !["branch of large", "branch of sparse"].contains(&case.name);
    branch_cases().into_iter().filter(small)
}

/// Asserts that an image holds what a model says, however it is read.
#[track_caller]
fn assert_reads(case: &Case, image: &Image, fresh: &[Vec<u8>], what: &str) {
    let initial: Vec<u64> = case.sizes.iter().map(|size| size.initial).collect();
    let parts = parts(&case.layout, &initial);
    let mut random = Random(11);
    for extent in image.extents() {
        let index = parts.iter().position(|part| part.contains(&extent.start)).unwrap();
        let wanted = |from: u64, length: usize| {
            let at = (from - parts[index].start) as usize;
            &fresh[index][at..at + length]
        };
        let length = (extent.end - extent.start) as usize;
        let mut all = vec![0xee; length];
        image.read(extent.start, &mut all).unwrap();
        assert!(all == wanted(extent.start, length), "{what}");
        for _ in 0..200 {
            let from = extent.start + random.below(extent.end - extent.start);
            let length = random.below((extent.end - from).min(3 * PAGE) + 1) as usize;
            let mut some = vec![0xee; length];
            image.read(from, &mut some).unwrap();
            assert!(some == wanted(from, length), "{what}: {length} bytes from {from:#x}");
            // Where it is known to lie in memory, it lies there so.
            let (from, pages) = (from / PAGE * PAGE, random.below(6) + 1);
            let held = image.held(from, pages * PAGE);
            let wanted = || wanted(from, (pages * PAGE) as usize);
            assert!(held.is_none_or(|held| held == wanted()), "{what}: {pages} from {from:#x}");
        }
    }
}

#[test]
fn a_branch_reads_as_its_parent_but_for_its_pages() {
    for case in branch_cases() {
        assert_reads(&case, &case.image, &case.fresh, case.name);
        let (image, parent) = (&case.image, case.image.parent().unwrap());
        let end = image.extents().last().unwrap().end;
        let outside = image.read(end - 1, &mut [0; 2]).unwrap_err();
        assert!(matches!(outside, PagesError::OutsideImage { .. }), "{outside}");
        assert!(image.size() <= image.own_pages().len() as u64 * PAGE);
        // The pages that it says are its own are those, and all of them.
        let mut page = [0; PAGE as usize];
        let runs: Vec<(u64, Vec<u8>)> = image
            .own_pages()
            .iter()
            .map(|&own| {
                image.read(own, &mut page).unwrap();
                (own, page.to_vec())
            })
            .collect();
        let runs = runs.iter().map(|(own, bytes)| (*own, &bytes[..]));
        let extents = image.extents().to_vec();
        let same = Image::branch(parent, "same", extents, runs).unwrap();
        assert_reads(&case, &same, &case.fresh, case.name);
        assert_eq!((same.own_pages(), same.size()), (image.own_pages(), image.size()));
    }
}

#[test]
fn pages_that_are_as_in_the_parent_are_left_out_and_zeros_take_no_memory() {
    let layout = layout();
    let (root, bytes) = dense_image(&layout, 7, 8 * PAGE);
    let extents = vec![layout.image_start..layout.base + 20 * PAGE; 1];
    let at = (layout.base - layout.image_start) as usize;
    let (zeros, other) = (vec![0; 2 * PAGE as usize], pattern(5, PAGE));
    let runs = [
        // All of the memory as it is, and zeros behind it that are none of the root's.
        (layout.base, &bytes[at..]),
        (layout.base + 9 * PAGE, &zeros[..]),
        // What comes later holds.
        (layout.base + PAGE, &other[..]),
        (layout.base + PAGE, &zeros[..]),
        (layout.base + 5 * PAGE, &other[..]),
    ];
    let branch = Image::branch(&root, "branch", extents.clone(), runs).unwrap();
    let own = [1, 2, 5].map(|page| layout.base + page * PAGE);
    assert_eq!(branch.own_pages(), own);
    assert_eq!((branch.size(), branch.copied_pages()), (PAGE, 3));
    // As in the root again.
    let runs = [(layout.base, &bytes[at..])];
    let again = Image::branch(&branch, "again", extents, runs).unwrap();
    assert_eq!(again.own_pages(), own);
    assert_eq!((again.size(), again.copied_pages(), again.depth()), (0, 0, 2));
    assert!(Arc::ptr_eq(again.root(), &root) && Arc::ptr_eq(again.parent().unwrap(), &branch));
    assert!(Arc::ptr_eq(root.root(), &root) && root.parent().is_none());
}

#[test]
fn what_a_branch_cannot_be_of_is_refused() {
    let (root, _) = dense_image(&layout(), 7, 8 * PAGE);
    let extent = root.extents()[0].clone();
    let page = vec![1; PAGE as usize];
    for at in [extent.start - PAGE, extent.end, u64::MAX - PAGE + 1] {
        let runs = [(at, &page[..])];
        let error = Image::branch(&root, "outside", vec![extent.clone()], runs).unwrap_err();
        assert!(matches!(error, PagesError::OutsideImage { .. }), "{error}");
    }
    let panics = |extents: Vec<std::ops::Range<u64>>, at, length| {
        let bytes = vec![1; length];
        let runs = [(at, &bytes[..])];
        let make = || Image::branch(&root, "wrong", extents, runs);
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(make)).is_err()
    };
    assert!(panics(vec![extent.clone()], extent.start + 1, 4096), "no whole page");
    assert!(panics(vec![extent.clone()], extent.start, 4095), "no whole page");
    assert!(panics(vec![extent.start..extent.end - PAGE; 1], extent.start, 4096), "less");
}

#[test]
fn what_differs_too_much_or_is_too_deep_becomes_whole() {
    for root in cases().into_iter().filter(|case| ["large", "file"].contains(&case.name)) {
        let few = BRANCH_PAGES_MAX.min(root.image.size() as usize / PAGE as usize / 2).max(16);
        let initial = (root.sizes[0].initial / PAGE) as usize;
        for (count, is_branch) in [(few, true), (few + 1, false)] {
            assert!(count <= initial, "{}", root.name);
            // None is as in the root.
            let page = |at: usize| [&pattern(9, PAGE - 8)[..], &(!at).to_le_bytes()].concat();
            let bytes: Vec<Vec<u8>> = (0..count).map(page).collect();
            let base = root.memory(0);
            let runs = || bytes.iter().zip(0..).map(|(run, at)| (base + at * PAGE, &run[..]));
            let extents = vec![root.layout.image_start..base + root.sizes[0].initial; 1];
            let image = Image::branch(&root.image, "n", extents.clone(), runs()).unwrap();
            assert_eq!(image.parent().is_some(), is_branch, "{} pages", count);
            let mut fresh = root.fresh.clone();
            let at = (base - root.layout.stack.start) as usize;
            for (place, run) in fresh[0][at..].chunks_mut(PAGE as usize).zip(&bytes) {
                place.copy_from_slice(run);
            }
            assert_reads(&root, &image, &fresh, root.name);
            // The same in two steps.
            let half = Image::branch(&root.image, "n", extents.clone(), runs().step_by(2)).unwrap();
            assert!(half.parent().is_some());
            let both = Image::branch(&half, "n", extents, runs().skip(1).step_by(2)).unwrap();
            assert_eq!(both.parent().is_some(), is_branch, "{} pages", count);
            assert_reads(&root, &both, &fresh, root.name);
        }
    }
    let (root, _) = dense_image(&layout(), 7, 8 * PAGE);
    let extent = root.extents()[0].clone();
    let mut image = Arc::clone(&root);
    for depth in 1..=BRANCH_DEPTH_MAX + 1 {
        let page = pattern(depth as u8, PAGE);
        let runs = [(extent.start + u64::from(depth % 8) * PAGE, &page[..])];
        let next = Image::branch(&image, "deep", vec![extent.clone()], runs).unwrap();
        let is_branch = depth <= BRANCH_DEPTH_MAX;
        assert_eq!(next.depth(), if is_branch { depth } else { 0 });
        assert_eq!(next.parent().is_some(), is_branch);
        let mut bytes = vec![0; PAGE as usize];
        next.read(runs[0].0, &mut bytes).unwrap();
        assert_eq!(bytes, page);
        image = next;
    }
}

/// What was written by who goes on in one slot costs as much as that is, however much: it is copied to no
/// file, and held where it lies already.
#[test]
fn changes_are_a_branch_up_to_half_of_the_root_and_are_held_where_they_lie() {
    for root in cases().into_iter().filter(|case| case.name == "large") {
        let half = (root.image.size() / PAGE / 2) as usize;
        assert!(half > BRANCH_PAGES_MAX, "more than other branches may have");
        let base = root.memory(0);
        let extents = vec![root.layout.image_start..base + root.sizes[0].initial; 1];
        for (count, at, is_branch) in
            [(half, 16, true), (half, 1, true), (half, 0, true), (half + 1, 0, false)]
        {
            // The last one is zero.
            let length = count * PAGE as usize;
            let mut bytes = vec![0; at + length];
            bytes[at..][..length - PAGE as usize]
                .copy_from_slice(&pattern(9, (length as u64) - PAGE));
            let bytes = Arc::new(bytes);
            let middle = at + PAGE as usize..at + length;
            let runs = [(base, at..middle.start), (base + PAGE, middle)]
                .map(|(offset, part)| HeldRun { offset, bytes: Arc::clone(&bytes), part });
            let image = Image::of_shared_changes(&root.image, "n", extents.clone(), &runs).unwrap();
            drop(runs);
            assert_eq!(image.parent().is_some(), is_branch, "{count} pages");
            let is_aligned = bytes[at..].as_ptr().addr().is_multiple_of(8);
            let held = if is_branch && is_aligned { count - 1 } else { 0 };
            assert_eq!(Arc::strong_count(&bytes), 1 + held, "{count} pages from {at}");
            let mut fresh = root.fresh.clone();
            let place = (base - root.layout.stack.start) as usize;
            fresh[0][place..place + length].copy_from_slice(&bytes[at..]);
            drop(bytes);
            assert_reads(&root, &image, &fresh, root.name);
        }
    }
}

#[test]
fn a_thousand_branches_take_no_descriptor_and_no_map_and_what_they_wrote() {
    in_own_process("a_thousand_branches_take_no_descriptor_and_no_map_and_what_they_wrote", || {
        const COUNT: u64 = 1000;
        const WRITTEN: u64 = 20;
        let limit = libc::rlimit { rlim_cur: 256, rlim_max: 256 };
        // SAFETY: a system call with numbers.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
        let (root, _) = dense_image(&layout(), 7, 4 * MIB);
        let case = Case::new("root", layout(), root, (128 * WASM_PAGE, 256 * WASM_PAGE));
        let strategies = strategies(ResetKind::Auto);
        let mut slot = case.spawn(&strategies);
        slot.snapshot("nothing yet", &[], ImageForm::Branch).unwrap();
        let page = |number: u64, at: u64| case.memory(0) + (number * 7 + at * 31) % 2000 * PAGE;
        let write_all = |slot: &mut Slot, number: u64| {
            slot.enter();
            (0..WRITTEN).for_each(|at| write(slot, page(number, at), &number.to_le_bytes()));
        };
        write_all(&mut slot, 0);
        slot.reset().unwrap();
        // A process has one descriptor for the pages of all slots that are kept under protection.
        pagefork_pages::notes_writes();
        let (before, memory) = (held(), resident_memory());
        let mut images = Vec::new();
        for number in 0..COUNT {
            write_all(&mut slot, number);
            images.push(slot.snapshot("branch", &[], ImageForm::Branch).unwrap());
            slot.reset().unwrap();
        }
        let after = held();
        assert_eq!(after.descriptors, before.descriptors);
        assert!(after.maps <= before.maps + 8, "{before:?} {after:?}");
        let written = COUNT * WRITTEN * PAGE;
        // What the slot keeps for its next run is not of the images.
        let taken = resident_memory() - memory - slot.resident();
        assert!(taken < written * 11 / 10 + MIB, "{taken} bytes for {written}");
        // Branches of them, which share what they do not change.
        let mut deeper = Vec::new();
        for (number, image) in (0..).zip(&images) {
            slot.reset_to(image, &case.sizes, OWNER).unwrap();
            slot.enter();
            write(&slot, page(number, 3) + 100, b"deeper");
            deeper.push(slot.snapshot("deeper", &[], ImageForm::Branch).unwrap());
        }
        let taken = resident_memory() - memory;
        let written = written + COUNT * PAGE;
        assert!(taken < written * 11 / 10 + MIB, "{taken} bytes for {written}");
        drop(images);
        // All at once in slots, or few where each slot has a copy of all.
        if cfg!(feature = "no-cow") {
            deeper.truncate(20);
        }
        let spawn = |image| Slot::with_strategies(&case.layout, image, &case.sizes, &strategies);
        let slots: Vec<Slot> = deeper.iter().map(|image| spawn(image).unwrap()).collect();
        for (number, slot) in (0..COUNT).zip(&slots) {
            for at in 0..WRITTEN {
                assert_eq!(
                    read(slot, page(number, at)..page(number, at) + 8),
                    number.to_le_bytes()
                );
            }
            assert_eq!(bytes(slot, page(number, 3) + 100..page(number, 3) + 106), b"deeper");
            assert_eq!(slot.differs_from_image().unwrap(), None);
        }
        assert_eq!(held().descriptors, before.descriptors);
    });
}

/// Bytes of this process that are in memory.
fn resident_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * PAGE
}

/// What the page map says of each page of a slot's image.
fn page_map(case: &Case, slot: &Slot) -> Vec<u64> {
    use std::os::unix::fs::FileExt;
    let map = std::fs::File::open("/proc/self/pagemap").unwrap();
    let mut all = Vec::new();
    for part in case.image_parts(slot) {
        let mut entries = vec![0; ((part.end - part.start) / PAGE * 8) as usize];
        let first = (slot.start().addr() as u64 + part.start) / PAGE;
        map.read_exact_at(&mut entries, first * 8).unwrap();
        let (entries, _) = entries.as_chunks();
        all.extend(entries.iter().map(|entry| u64::from_le_bytes(*entry)));
    }
    all
}

#[test]
fn pages_that_were_not_touched_are_not_read() {
    for case in cases().into_iter().chain(branch_cases()) {
        let strategies = strategies(ResetKind::Scan);
        let mut slot = case.spawn(&strategies);
        slot.enter();
        write(&slot, case.memory(0) + 4 * PAGE, b"one");
        let before = page_map(&case, &slot);
        assert_eq!(slot.changed_pages().unwrap(), [case.memory(0) + 4 * PAGE], "{}", case.name);
        slot.snapshot("snapshot", &[], ImageForm::Branch).unwrap();
        assert!(page_map(&case, &slot) == before, "{}", case.name);
    }
}

#[test]
fn patches_hold_instead_of_what_the_slot_has() {
    for case in branch_cases() {
        let strategies = strategies(ResetKind::Auto);
        let mut slot = case.spawn(&strategies);
        let at = case.memory(0) + 3 * PAGE;
        slot.enter();
        write(&slot, at, b"changed");
        write(&slot, at + PAGE, b"more");
        let before = slot.changed_pages().unwrap();
        let (mut first, mut second) =
            (read(&slot, at..at + PAGE), read(&slot, at + PAGE..at + 2 * PAGE));
        let patches: [(u64, &[u8]); 4] =
            [(at + PAGE - 1, b"abc"), (at + 2, b"xy"), (at + 3, b"z"), (at, b"")];
        let image = slot.snapshot("patched", &patches, ImageForm::Branch).unwrap();
        first[PAGE as usize - 1] = b'a';
        first[2..4].copy_from_slice(b"xz");
        second[..2].copy_from_slice(b"bc");
        let mut found = vec![0; 2 * PAGE as usize];
        image.read(at, &mut found).unwrap();
        assert!(found == [first, second].concat(), "{}", case.name);
        assert_eq!(slot.changed_pages().unwrap(), before, "the slot stays as it is");

        // A page that patches make as in the image is none of the snapshot's, and one that only
        // patches change is.
        let mut fresh = vec![0; 2 * PAGE as usize];
        let initial = case.fresh[0].len() as u64 + case.layout.stack.start;
        assert!(at + 7 * PAGE <= initial);
        let from = (at - case.layout.stack.start) as usize;
        fresh.copy_from_slice(&case.fresh[0][from..from + 2 * PAGE as usize]);
        let other = [(at, &fresh[..]), (at + 6 * PAGE + 9, b"only")];
        let image = slot.snapshot("patched", &other, ImageForm::Branch).unwrap();
        assert_eq!(image.own_pages(), [at + 6 * PAGE], "{}", case.name);
        let image = slot.snapshot("patched", &[(at, &fresh[..])], ImageForm::Branch).unwrap();
        assert!(Arc::ptr_eq(&image, slot.image()), "{}: as before", case.name);

        let end = case.memory(0) + slot.memory_size(0);
        for (place, bytes) in [
            (end - 1, &b"ab"[..]),
            (end, b"a"),
            (case.layout.tables.start - 1, b"a"),
            (case.layout.stack.start, b"a"),
            (u64::MAX, b"a"),
        ] {
            let error = slot.snapshot("outside", &[(place, bytes)], ImageForm::Branch).unwrap_err();
            assert!(matches!(error, PagesError::OutsideImage { .. }), "{place:#x}: {error}");
        }
    }
}

/// The budget is kept by other pages where those of the branch stay in any case.
#[test]
fn copies_count_for_the_budget_and_stay() {
    let (image, _) = dense_image(&layout(), 0x42, 64 * PAGE);
    let case = Case::new("dense", layout(), image, (64 * PAGE, 64 * PAGE));
    let base = case.memory(0);
    let pages: Vec<(u64, u8)> = (0..10).map(|page| (base + (50 + page) * PAGE, 3)).collect();
    let case = case.branch("branch", &pages);
    let config = StrategyConfig { reset: ResetKind::Scan, ..Default::default() };
    let strategies = StrategyConfig { resident_max: 12 * PAGE, ..config }.check().unwrap();
    let mut slot = case.spawn(&strategies);
    for _ in 0..3 {
        slot.enter();
        (0..20).for_each(|page| write(&slot, base + page * PAGE, &[7]));
        slot.reset_for(OWNER).unwrap();
        case.assert_fresh(&slot, &strategies, "beyond the budget");
        if slot.strategy().used == ResetKind::Scan {
            // The link zone is kept, too.
            let link = case.layout.tables.start - case.layout.link.start / PAGE * PAGE;
            assert!(slot.resident() <= 12 * PAGE + link, "{}", slot.resident());
        }
    }
}

/// Pages that became zero are holes of a whole image.
#[test]
fn a_whole_snapshot_has_no_pages_of_zeros() {
    let (image, _) = dense_image(&layout(), 0x42, 8 * MIB);
    let case = Case::new("dense", layout(), image, (160 * WASM_PAGE, 160 * WASM_PAGE));
    let mut slot = case.spawn(&strategies(ResetKind::Auto));
    slot.enter();
    let base = case.memory(0);
    write(&slot, base + 8 * PAGE, &vec![0; 7 * MIB as usize]);
    let snapshot = slot.snapshot("zeros", &[], ImageForm::Branch).unwrap();
    assert_eq!(snapshot.parent().map(|_| ()), None);
    case.assert_snapshot(&slot, &snapshot, "zeros");
    assert!(snapshot.size() < 2 * MIB, "{}", snapshot.size());
}

/// Each memory is asked for once, and nothing else: pages that differ lie in ordinary memory.
#[test]
#[cfg(debug_assertions)]
fn a_snapshot_of_few_pages_takes_a_call_a_memory() {
    use pagefork_pages::inject::record;
    use pagefork_pages::{Call, HostFeatures};

    let cases = branch_cases();
    // A file is asked for its length, and read by calls.
    for case in cases.iter().filter(|case| !case.name.ends_with("a file")) {
        let mut slot = case.spawn(&strategies(ResetKind::Scan));
        slot.enter();
        write(&slot, case.memory(0), b"changed");
        slot.snapshot("the image is mapped for reading", &[], ImageForm::Branch).unwrap();
        write(&slot, case.memory(0) + PAGE, b"changed");
        let (snapshot, calls) = record(|| slot.snapshot("branch", &[], ImageForm::Branch).unwrap());
        assert!(snapshot.parent().is_some());
        if HostFeatures::get().unwrap().scan {
            assert_eq!(calls, vec![Call::Scan; slot.memory_count()], "{}", case.name);
        }
    }
}

/// What a memory had grown by, and what an earlier run left there.
#[test]
fn pages_of_grown_memory_are_changes_if_they_hold_something() {
    for case in small_cases() {
        for strategies in all_strategies() {
            let mut slot = case.spawn(&strategies);
            let what = format!("{} {:?}", case.name, strategies.config());
            for round in 0..3 {
                slot.enter();
                let MemorySize { initial, maximum } = case.sizes[0];
                slot.grow_memory(0, maximum).unwrap();
                let end = case.memory(0) + maximum;
                if round == 1 {
                    assert_eq!(slot.changed_pages().unwrap(), [], "{what}");
                    assert!(Arc::ptr_eq(
                        &slot.snapshot("same", &[], ImageForm::Branch).unwrap(),
                        &case.image
                    ));
                }
                write(&slot, case.memory(0) + initial, &[0; 100]);
                write(&slot, end - 1, &[1]);
                assert_eq!(slot.changed_pages().unwrap(), [end - PAGE], "{what}");
                let image = slot.snapshot("grown", &[], ImageForm::Branch).unwrap();
                case.assert_snapshot(&slot, &image, &what);
                // Where it was taken from goes on, and another one goes on from there.
                slot.reset_for(OWNER).unwrap();
                case.assert_fresh(&slot, &strategies, &what);
                let mut sizes = case.sizes.clone();
                sizes[0].initial = maximum;
                let layout = case.layout.clone();
                let mut other =
                    Slot::with_strategies(&layout, &image, &sizes, &strategies).unwrap();
                for _ in 0..3 {
                    assert_eq!(bytes(&other, end - 1..end), [1]);
                    assert_eq!(other.differs_from_image().unwrap(), None);
                    other.enter();
                    overwrite(&layout, &other, 0x77);
                    other.reset_for(OWNER).unwrap();
                }
                let fits = slot.reset_to(&image, &case.sizes, OWNER);
                assert!(matches!(fits, Err(PagesError::ImageMisfit { .. })), "{what}: {fits:?}");
            }
        }
    }
}

/// Memory that a pool gives back while a slot is parked.
#[test]
fn a_slot_of_a_branch_that_is_discarded_is_as_before() {
    for case in small_cases() {
        for strategies in all_strategies() {
            let mut slot = case.spawn(&strategies);
            let what = format!("{} {:?}", case.name, strategies.config());
            // By `Fault` they come when they are touched, as all others do.
            let copies = match slot.strategy().used {
                ResetKind::Fault => 0,
                _ => case.image.copied_pages() as u64 * PAGE,
            };
            assert!(slot.resident() >= copies, "{what}");
            for _ in 0..3 {
                slot.enter();
                overwrite(&case.layout, &slot, 0x5f);
                slot.reset_for(OWNER).unwrap();
                slot.discard().unwrap();
                case.assert_fresh(&slot, &strategies, &what);
                if slot.strategy().used != ResetKind::Copy {
                    assert_eq!(slot.resident(), copies, "{what}");
                }
                slot.enter();
                stores(&case, &mut slot, &mut Random(3));
                slot.reset_for(OWNER).unwrap();
                case.assert_fresh(&slot, &strategies, &what);
            }
        }
    }
}

#[test]
fn an_image_is_whole_if_that_is_wanted() {
    let base = 1 << 20;
    let config = SlotConfig {
        stack: 1 << 16..1 << 17,
        link: 1 << 17..1 << 18,
        image_floor: 1 << 18,
        base,
        memories: vec![MemoryZone { start: base, reservation: 1 << 20, guard: 1 << 20 }],
        size: 4 << 20,
    };
    let size = MemorySize { initial: 64 << 10, maximum: 64 << 10 };
    let image = Image::new("root", base..base + PAGE, [(base, &[7; 4096][..])]).unwrap();
    let mut slot = Slot::new(config.clone(), &image, &[size]).unwrap();
    slot.enter();
    // SAFETY: the memory is accessible, and no other code uses it.
    unsafe { slot.base().add(8192).write(9) };
    let whole = slot.snapshot("whole", &[], ImageForm::Whole).unwrap();
    assert!(whole.parent().is_none() && whole.own_pages().is_empty());
    let mut read = [0; 2];
    whole.read(base + 8191, &mut read).unwrap();
    assert_eq!(read, [0, 9]);
    // Also of a branch to which nothing was written.
    let branch = slot.snapshot("branch", &[], ImageForm::Branch).unwrap();
    let mut slot = Slot::new(config, &branch, &[size]).unwrap();
    assert!(slot.snapshot("same", &[], ImageForm::Branch).unwrap().parent().is_some());
    assert!(slot.snapshot("whole", &[], ImageForm::Whole).unwrap().parent().is_none());
}
