//! Code in a slot gives pages back: they read zero, take no memory where no image lies below,
//! and a reset returns the image's bytes, by every strategy and growth, for every kind of image.

mod common;
#[path = "common/matrix.rs"]
mod matrix;

use std::collections::BTreeSet;

use common::*;
use matrix::*;
use pagefork_pages::{Discarded, ExternalWriter, PagesError, ResetKind, Slot, StrategyConfig};

/// Ranges of a memory of `size` bytes, in it and around its middle.
fn ranges(size: u64, image: u64) -> Vec<std::ops::Range<u64>> {
    let large = 5 * MIB;
    vec![
        0..size,
        0..size.min(large),
        size.saturating_sub(large)..size,
        size.saturating_sub(WASM_PAGE)..size,
        image.min(size)..size,
        image.saturating_sub(PAGE).min(size)..size,
        // Neither end at a page's.
        size.min(100)..size - size.min(77),
        size / 2..size / 2 + size.min(10),
        size..size,
    ]
}

/// The kernel's maps of a slot: where they start. A map can be listed twice while other threads
/// map and unmap, as proc(5) says of reads that are not whole; none is left out.
fn maps(slot: &Slot) -> BTreeSet<usize> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let starts = maps.lines().filter_map(|line| line.split('-').next());
    let starts = starts.filter_map(|start| usize::from_str_radix(start, 16).ok());
    starts.filter(|start| slot.bounds().slot().contains(start)).collect()
}

#[test]
fn it_reads_zero_and_a_reset_returns_the_image_under_every_strategy() {
    // One whose copies of pages lie where nothing is mapped.
    let sizes = (90 * WASM_PAGE, 95 * WASM_PAGE);
    let none = Case::new("nothing", layout(), empty_image(&layout()), sizes);
    let base = none.memory(0);
    let lone = none.branch("large branch of nothing", &[(base + PAGE, 1), (base + 3 * MIB, 2)]);
    for case in cases().into_iter().chain(branch_cases()).chain([lone]) {
        for strategies in all_strategies() {
            let mut slot = case.spawn(&strategies);
            for run in 0..4u8 {
                let what = format!("{} by {:?}, run {run}", case.name, strategies.config());
                case.assert_fresh(&slot, &strategies, &what);
                slot.enter();
                for (index, size) in case.sizes.clone().into_iter().enumerate() {
                    let longest = if run % 2 == 0 { size.maximum } else { size.initial };
                    slot.grow_memory(index, longest.max(slot.memory_size(index))).unwrap();
                    let (start, size) = (case.memory(index), slot.memory_size(index));
                    let of_image = case.image.extents().iter();
                    let image = of_image.map(|extent| extent.end.saturating_sub(start)).max();
                    let all = ranges(size, image.unwrap_or(0));
                    // Another one each time, and what lies around is written or untouched.
                    let range = all[(usize::from(run) * 5 + index) % all.len()].clone();
                    if run != 1 {
                        write(&slot, start, &pattern(run, size));
                    }
                    let before = read(&slot, start..start + size);
                    let maps_before = maps(&slot);
                    slot.discard_memory(index, range.clone()).unwrap();
                    assert_eq!(maps(&slot), maps_before, "{what}: no map changes");
                    let after = bytes(&slot, start..start + size);
                    let (from, to) = (range.start as usize, range.end as usize);
                    assert!(after[from..to].iter().all(|byte| *byte == 0), "{what}, {range:?}");
                    assert!(after[..from] == before[..from], "{what}, {range:?}: below");
                    assert!(after[to..] == before[to..], "{what}, {range:?}: above");
                    if run == 2 {
                        // A part is used again.
                        write(&slot, start + range.start, &pattern(9, (to - from) as u64 / 2));
                    }
                }
                slot.reset_for(OWNER).unwrap();
            }
            case.assert_fresh(&slot, &strategies, case.name);
        }
    }
}

/// Resident pages of a memory, as the kernel counts them.
fn resident(slot: &Slot, size: u64) -> u64 {
    let mut pages = vec![0u8; (size / PAGE) as usize];
    // SAFETY: the range is mapped, and the vector has a byte for each of its pages.
    let done = unsafe { libc::mincore(slot.memory(0).cast(), size as usize, pages.as_mut_ptr()) };
    assert_eq!(done, 0);
    pages.iter().filter(|page| **page & 1 == 1).count() as u64
}

#[test]
fn what_is_given_back_takes_no_memory_and_small_ranges_are_only_written() {
    let [none] = cases().into_iter().take(1).collect::<Vec<_>>().try_into().unwrap_or_else(|_| {
        panic!("there is a case without an image");
    });
    for reset in ResetKind::ALL {
        let strategies = StrategyConfig { reset, ..StrategyConfig::default() }.check().unwrap();
        let mut slot = none.spawn(&strategies);
        let size = slot.memory_max(0);
        slot.grow_memory(0, size).unwrap();
        slot.enter();
        write(&slot, none.memory(0), &pattern(3, size));
        let keeps = !matches!(reset, ResetKind::Remap | ResetKind::Discard | ResetKind::Fault);
        assert_eq!(slot.gains_by_discarding(size), !keeps || size >= 4 * MIB, "{reset}");
        assert_eq!(slot.discard_memory(0, 0..WASM_PAGE - 1).unwrap(), Discarded::Zeroed);
        let done = slot.discard_memory(0, 0..size).unwrap();
        if slot.gains_by_discarding(size) && slot.strategy().used != ResetKind::Remap {
            assert_eq!(done, Discarded::Released, "{reset}");
            assert_eq!(resident(&slot, size), 0, "{reset}");
        }
        let beyond = slot.discard_memory(0, 0..size + 1).unwrap_err();
        assert!(matches!(beyond, PagesError::MemorySize { .. }), "{beyond}");
    }
}

/// The kernel or another thread can write to what was given back, like to any page.
#[test]
fn pages_that_others_write_afterwards_are_restored() {
    for case in cases() {
        for strategies in all_strategies() {
            let mut slot = case.spawn(&strategies);
            for _ in 0..3 {
                slot.enter();
                slot.grow_memory(0, slot.memory_max(0)).unwrap();
                let (start, size) = (case.memory(0), slot.memory_size(0));
                write(&slot, start, &pattern(5, size));
                slot.discard_memory(0, 0..size).unwrap();
                slot.note_external_writer(ExternalWriter::UntilReset);
                let place = slot.memory(0) as usize;
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        let place = std::ptr::with_exposed_provenance_mut::<u8>(place);
                        // SAFETY: the memory is accessible, and this thread alone uses it.
                        unsafe {
                            place.add(size as usize / 2).write_bytes(0xcc, size as usize / 4)
                        };
                    });
                });
                slot.reset_for(OWNER).unwrap();
                case.assert_fresh(&slot, &strategies, case.name);
            }
        }
    }
}
