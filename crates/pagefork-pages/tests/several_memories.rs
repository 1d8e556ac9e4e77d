//! Slots with several memories: each has contents, size and bounds of its own,
//! and what is done to one is not seen in another.

mod common;

use std::sync::Arc;

use common::*;
use pagefork_layout::module::MemoryType;
use pagefork_layout::slot::{MEMORY_GUARD, MEMORY_RESERVATION, MEMORY64_GUARD, SlotLayout};
use pagefork_pages::{FaultPlace, Image, MemorySize, PagesError, SPAN_COUNT_MAX, Slot, procmaps};

const SIZES: [MemorySize; 4] = [
    MemorySize { initial: WASM_PAGE, maximum: 8 * WASM_PAGE },
    MemorySize { initial: 2 * WASM_PAGE, maximum: 5 * WASM_PAGE },
    MemorySize { initial: 0, maximum: 4 * WASM_PAGE },
    MemorySize { initial: WASM_PAGE, maximum: 2 * WASM_PAGE },
];

/// Memories of 32, 64, 32 and 64 bits. Of those of 64 bits, the first can become
/// 5 wasm pages and the other 2.
fn layout() -> SlotLayout {
    let memory = |maximum, memory64| MemoryType { minimum: 0, maximum, memory64 };
    layout_of(&[
        memory(None, false),
        memory(Some(5), true),
        memory(None, false),
        memory(Some(2), true),
    ])
}

fn initial() -> Vec<u64> {
    SIZES.iter().map(|size| size.initial).collect()
}

fn start(layout: &SlotLayout, index: usize) -> u64 {
    layout.base + layout.memories[index].offset
}

/// An image with contents in state, and in every memory but the empty one.
fn image(layout: &SlotLayout, seed: u8) -> Arc<Image> {
    let extents = vec![
        layout.image_start..layout.base + PAGE,
        start(layout, 1)..start(layout, 1) + 2 * WASM_PAGE,
        start(layout, 3)..start(layout, 3) + 3 * PAGE,
    ];
    let runs: Vec<(u64, Vec<u8>)> =
        [(layout.base - 100, 200), (start(layout, 1), WASM_PAGE + 5), (start(layout, 3) + PAGE, 7)]
            .into_iter()
            .zip(0..)
            .map(|((at, length), i)| (at, pattern(seed + i, length)))
            .collect();
    let runs = runs.iter().map(|(at, bytes)| (*at, &bytes[..]));
    Image::with_extents("several", extents, runs).unwrap()
}

fn fresh(layout: &SlotLayout) -> Slot {
    Slot::new(layout, &image(layout, 1), &SIZES).unwrap()
}

#[test]
fn each_memory_starts_as_its_part_of_the_image() {
    let layout = layout();
    let slot = fresh(&layout);
    assert_eq!(slot.memory_count(), 4);
    assert_as_image_with(&layout, &slot, &initial());
    for (index, size) in SIZES.iter().enumerate() {
        assert_eq!(
            slot.memory(index).addr() as u64,
            slot.start().addr() as u64 + start(&layout, index)
        );
        assert_eq!(slot.memory_max(index), size.maximum);
    }
    // Not by `Image::read` alone: against the bytes that were given.
    // SAFETY: two wasm pages are accessible there.
    let found = unsafe { std::slice::from_raw_parts(slot.memory(1), WASM_PAGE as usize + 5) };
    assert!(found == &pattern(2, WASM_PAGE + 5)[..]);
}

#[test]
fn every_boundary_of_every_memory_is_accessible_on_one_side_only() {
    let layout = layout();
    let mut slot = fresh(&layout);
    for step in 0..3 {
        for (index, size) in SIZES.iter().enumerate() {
            let size = (size.initial + step * PAGE).min(size.maximum);
            slot.grow_memory(index, size).unwrap();
        }
        for (index, size) in memory_sizes(&slot).into_iter().enumerate() {
            let (first, end) = (start(&layout, index), start(&layout, index) + size);
            let guard_end = layout.base + layout.memories[index].end();
            if size > 0 {
                assert!(accessible(&slot, first) && accessible(&slot, end - 1));
            }
            for outside in [end, end + 1, end + PAGE, guard_end - 1] {
                assert!(!accessible(&slot, outside), "memory {index}: {outside:#x}");
            }
            if index > 0 {
                assert!(!accessible(&slot, first - 1), "below memory {index}");
            }
        }
    }
}

#[test]
fn places_at_every_boundary_of_every_memory() {
    let layout = layout();
    let mut slot = fresh(&layout);
    let bounds = slot.bounds();
    let base = slot.start().addr();
    let check = |slot: &Slot| {
        let mut behind = layout.base;
        for (index, size) in memory_sizes(slot).into_iter().enumerate() {
            let place = layout.memories[index];
            let first = start(&layout, index);
            let end = layout.base + place.end();
            let ranges = [
                (behind..first, FaultPlace::Other),
                (first..first + size, FaultPlace::MemoryWithin),
                (first + size..end, FaultPlace::MemoryBeyond),
            ];
            for (range, expected) in ranges {
                if range.is_empty() {
                    continue;
                }
                for offset in [range.start, range.end - 1] {
                    let found = bounds.place(base + offset as usize);
                    assert_eq!(found, expected, "memory {index}: {offset:#x}");
                }
            }
            assert_eq!(bounds.memory_size(index), size);
            behind = end;
        }
        assert_eq!(bounds.place(base + behind as usize), FaultPlace::Other);
    };
    check(&slot);
    for index in [2, 0, 3, 1] {
        slot.grow_memory(index, SIZES[index].maximum).unwrap();
        check(&slot);
    }
    slot.reset().unwrap();
    check(&slot);
    for place in [layout.memories[0], layout.memories[2]] {
        assert_eq!((place.reservation, place.guard), (MEMORY_RESERVATION, MEMORY_GUARD));
    }
    for (place, pages) in [(layout.memories[1], 5), (layout.memories[3], 2)] {
        assert_eq!((place.reservation, place.guard), (pages * WASM_PAGE, MEMORY64_GUARD));
    }
}

#[test]
fn each_memory_grows_alone_and_up_to_its_own_maximum() {
    let layout = layout();
    for index in 0..4 {
        let mut slot = fresh(&layout);
        let mut sizes = initial();
        for size in [SIZES[index].initial, SIZES[index].initial + PAGE, SIZES[index].maximum] {
            slot.grow_memory(index, size).unwrap();
            sizes[index] = size;
            assert_as_image_with(&layout, &slot, &sizes);
        }
        for size in [SIZES[index].maximum - PAGE, SIZES[index].maximum + PAGE, u64::MAX] {
            let error = slot.grow_memory(index, size).unwrap_err();
            assert!(matches!(error, PagesError::MemorySize { .. }), "{error}");
        }
        assert_as_image_with(&layout, &slot, &sizes);
    }
}

#[test]
fn a_reset_brings_every_memory_back() {
    let layout = layout();
    let mut slot = fresh(&layout);
    for grown in 0..16 {
        for index in (0..4).filter(|index| grown >> index & 1 == 1) {
            slot.grow_memory(index, SIZES[index].maximum).unwrap();
        }
        overwrite(&layout, &slot, 0xd1);
        slot.reset().unwrap();
        assert_as_image_with(&layout, &slot, &initial());
        for (index, size) in SIZES.iter().enumerate() {
            assert!(!accessible(&slot, start(&layout, index) + size.initial));
        }
        // What a growth uncovers is zero again.
        for (index, size) in SIZES.iter().enumerate() {
            slot.grow_memory(index, size.maximum).unwrap();
        }
        let sizes: Vec<u64> = SIZES.iter().map(|size| size.maximum).collect();
        assert_as_image_with(&layout, &slot, &sizes);
        slot.reset().unwrap();
    }
}

#[test]
fn images_and_sizes_that_do_not_fit_are_refused() {
    let layout = layout();
    let empty = empty_image(&layout);
    for index in 0..4 {
        let mut sizes = SIZES;
        sizes[index].maximum = layout.memories[index].reservation + PAGE;
        let error = Slot::new(&layout, &empty, &sizes).unwrap_err();
        assert!(matches!(error, PagesError::MemorySize { .. }), "{error}");
    }
    // In no memory, across the end of one, and in the guard before one.
    let misfits = [
        layout.base + WASM_PAGE..layout.base + WASM_PAGE + PAGE,
        layout.base..layout.base + WASM_PAGE + PAGE,
        start(&layout, 1) - PAGE..start(&layout, 1) + PAGE,
        start(&layout, 1)..start(&layout, 1) + 3 * WASM_PAGE,
        start(&layout, 2)..start(&layout, 2) + PAGE,
        start(&layout, 3)..layout.size,
        layout.link.end - PAGE..layout.base,
    ];
    for extent in misfits {
        let image = Image::new("misfit", extent.clone(), []).unwrap();
        let error = Slot::new(&layout, &image, &SIZES).unwrap_err();
        assert!(matches!(error, PagesError::ImageMisfit { .. }), "{extent:#x?}: {error}");
    }
}

#[test]
#[should_panic(expected = "each memory has a size")]
fn a_slot_has_as_many_sizes_as_memories() {
    let layout = layout();
    let _ = Slot::new(&layout, &empty_image(&layout), &SIZES[..3]);
}

#[test]
fn a_further_memory_costs_two_maps_or_three_with_contents() {
    in_own_process("a_further_memory_costs_two_maps_or_three_with_contents", || {
        let count_of = |memories: usize, contents: bool| {
            let layout = layout_of(&vec![MemoryType::new(0, None); memories]);
            let state = layout.image_start..layout.base;
            let mut extents = vec![state];
            let mut runs = vec![(layout.base - 64, &b"state"[..])];
            for index in 0..memories {
                let first = start(&layout, index);
                if contents {
                    extents.push(first..first + PAGE);
                    runs.push((first, b"contents"));
                }
            }
            let image = Image::with_extents("maps", extents, runs).unwrap();
            let size = MemorySize { initial: WASM_PAGE, maximum: WASM_PAGE };
            let slot = Slot::new(&layout, &image, &vec![size; memories]).unwrap();
            let first = slot.start().addr() as u64;
            procmaps::within(first..first + layout.size).unwrap().len()
        };
        for memories in 1..6 {
            assert_eq!(count_of(memories, false), 5 + 2 * (memories - 1));
            assert_eq!(count_of(memories, true), 5 + 3 * (memories - 1));
        }
    });
}

#[test]
fn holes_within_a_memory_cost_maps_and_guards_between_memories_none() {
    in_own_process("holes_within_a_memory_cost_maps_and_guards_between_memories_none", || {
        let layout = layout_of(&[MemoryType::new(0, None); 2]);
        let mut runs = Vec::new();
        let mut extents = Vec::new();
        for index in 0..2 {
            let first = start(&layout, index);
            extents.push(first..first + 256 * MIB);
            runs.extend((0..100).map(|hole| (first + 2 * hole * MIB, &b"run"[..])));
        }
        let image = Image::with_extents("sparse", extents, runs).unwrap();
        let size = MemorySize { initial: 256 * MIB, maximum: 256 * MIB };
        let slot = Slot::new(&layout, &image, &[size; 2]).unwrap();
        let first = slot.start().addr() as u64;
        let maps = procmaps::within(first..first + layout.size).unwrap().len();
        // The low guard, the small zones, and for each memory its spans with what
        // is behind each, and its guard.
        assert_eq!(maps, 2 + 2 * (2 * SPAN_COUNT_MAX + 1));
        assert_as_image(&layout, &slot, 256 * MIB);
    });
}
