//! What is inaccessible in a slot, what the maps of slots are, and where an
//! address lies.

mod common;

use common::*;
use pagefork_layout::slot::{LOW_GUARD, MEMORY_GUARD, MEMORY_RESERVATION, PRE_GUARD, SLOT_ALIGN};
use pagefork_pages::{FaultPlace, Image, PagesError, Slot, procmaps};

/// CVE-2022-39392: a maximum of zero pages gave a map without the guard that
/// compiled code relied on.
#[test]
fn a_memory_with_a_maximum_of_zero_has_its_full_guard() {
    let layout = layout();
    let image = empty_image(&layout);
    let mut slot = spawn(&layout, &image, 0, 0).unwrap();
    let base = slot.base().addr();
    let reach = base..base + (MEMORY_RESERVATION + MEMORY_GUARD) as usize;
    assert!(reach.end - reach.start >= 2 * u32::MAX as usize + 16);
    for map in procmaps::within(reach.start as u64..reach.end as u64).unwrap() {
        assert!(!map.read && !map.write && !map.execute, "{map:?}");
    }
    assert!(readable(base - 1), "the state ends at the base");
    let bounds = slot.bounds();
    for offset in [0, 1, 0xffff_ffff, 0x1_0000_0000, 0x1_ffff_fffe, 0x1_ffff_fffe + 16] {
        assert!(!readable(base + offset));
        assert_eq!(bounds.place(base + offset), FaultPlace::MemoryBeyond);
    }
    assert!(matches!(slot.grow_memory(0, PAGE), Err(PagesError::MemorySize { .. })));
}

#[test]
fn every_boundary_of_a_slot_is_accessible_on_one_side_only() {
    let layout = layout();
    let (image, _) = dense_image(&layout, 9, PAGE);
    let mut slot = spawn(&layout, &image, WASM_PAGE, 4 * WASM_PAGE).unwrap();
    for size in [WASM_PAGE, 3 * WASM_PAGE, 4 * WASM_PAGE] {
        slot.grow_memory(0, size).unwrap();
        let end = layout.base + size;
        let inside = [
            layout.stack.start,
            layout.stack.start + 1,
            layout.stack.end - 1,
            layout.link.start,
            layout.tables.start,
            layout.image_start - 1,
            layout.image_start,
            layout.base - 1,
            layout.base,
            layout.base + PAGE - 1,
            layout.base + PAGE,
            end - 1,
        ];
        for offset in inside {
            assert!(accessible(&slot, offset), "{offset:#x}");
        }
        let outside = [0, 1, LOW_GUARD - 1, end, end + 1, end + PAGE, layout.size - 1];
        for offset in outside {
            assert!(!accessible(&slot, offset), "{offset:#x}");
        }
    }
}

#[test]
fn places_at_every_boundary_of_a_real_slot() {
    let layout = layout();
    let (image, _) = dense_image(&layout, 9, PAGE);
    let mut slot = spawn(&layout, &image, WASM_PAGE, 4 * WASM_PAGE).unwrap();
    let bounds = slot.bounds();
    let start = slot.start().addr();
    assert!(start.is_multiple_of(SLOT_ALIGN as usize));
    assert_eq!(bounds.slot(), start..start + layout.size as usize);
    assert_eq!(slot.base().addr(), start + layout.base as usize);
    assert_eq!(slot.link().addr(), start + layout.link.start as usize);
    assert_eq!(slot.stack_top().addr(), start + layout.stack.end as usize);

    let beyond = layout.base + MEMORY_RESERVATION + MEMORY_GUARD;
    let check = |end: u64| {
        let ranges = [
            (0..layout.stack.start, FaultPlace::StackGuard),
            (layout.stack.start..layout.base, FaultPlace::Other),
            (layout.base..end, FaultPlace::MemoryWithin),
            (end..beyond, FaultPlace::MemoryBeyond),
            (beyond..layout.size, FaultPlace::Other),
        ];
        for (range, place) in ranges {
            for offset in [range.start, range.start + 1, range.end - 2, range.end - 1] {
                assert_eq!(bounds.place(start + offset as usize), place, "{offset:#x}");
            }
        }
        assert_eq!(bounds.place(start - 1), FaultPlace::Other);
        assert_eq!(bounds.place(start + layout.size as usize), FaultPlace::Other);
    };
    check(layout.base + WASM_PAGE);
    slot.grow_memory(0, 4 * WASM_PAGE).unwrap();
    check(layout.base + 4 * WASM_PAGE);
    slot.reset().unwrap();
    check(layout.base + WASM_PAGE);
}

/// CVE-2023-26489: miscompiled code added a negative offset. Below a slot lies a slot, whose
/// guard is larger, or nothing that is accessible.
#[test]
fn below_the_lowest_slot_two_gibibytes_are_inaccessible() {
    in_own_process("below_the_lowest_slot_two_gibibytes_are_inaccessible", || {
        let layouts = [layout(), layout_without_memory()];
        let mut slots: Vec<Option<Slot>> = Vec::new();
        for number in 0..60 {
            let layout = &layouts[usize::from(number / 20 == 1)];
            let image = empty_image(layout);
            let size = if layout.memories.is_empty() { 0 } else { WASM_PAGE };
            slots.push(Some(spawn(layout, &image, size, size).unwrap()));
            if number % 20 >= 5 {
                slots[number * 7 % (number + 1)] = None;
            }
            let mut spaces: Vec<_> =
                slots.iter().flatten().map(|slot| slot.bounds().slot()).collect();
            spaces.sort_by_key(|space| space.start);
            let mut below = 0;
            for space in &spaces {
                if below != space.start {
                    assert_inaccessible(space.start as u64 - PRE_GUARD..space.start as u64);
                }
                below = space.end;
            }
        }
    });
}

/// Asserts that it is reserved, and nothing in it accessible.
#[track_caller]
fn assert_inaccessible(range: std::ops::Range<u64>) {
    let mut at = range.start;
    for map in procmaps::within(range.clone()).unwrap() {
        assert!(map.range.start <= at, "a hole at {at:#x}");
        assert!(!map.read && !map.write && !map.execute, "{map:?}");
        at = map.range.end;
    }
    assert!(at >= range.end, "a hole at {at:#x}");
}

#[test]
fn a_slot_costs_four_maps_at_most() {
    in_own_process("a_slot_costs_four_maps_at_most", || {
        // What is tried once a process keeps a descriptor.
        pagefork_pages::HostFeatures::get().unwrap();
        const COUNT: usize = 50;
        let layout = layout();
        let (image, _) = dense_image(&layout, 9, PAGE);
        let before = held();
        let mut slots: Vec<Slot> = (0..COUNT)
            .map(|_| spawn(&layout, &image, WASM_PAGE, 16 * WASM_PAGE).unwrap())
            .collect();
        // One guard more than slots, and one that the first may leave unjoined.
        let budget = |what: &str| {
            let maps = held().maps - before.maps;
            assert!(maps <= 4 * COUNT + 2, "{maps} maps for {COUNT} slots, {what}");
        };
        budget("fresh");
        for slot in &mut slots {
            overwrite(&layout, slot, 1);
            slot.grow_memory(0, 16 * WASM_PAGE).unwrap();
            overwrite(&layout, slot, 2);
        }
        budget("grown and written");
        for slot in &mut slots {
            slot.reset().unwrap();
        }
        budget("reset");
        for slot in &mut slots {
            slot.grow_memory(0, 2 * WASM_PAGE).unwrap();
            overwrite(&layout, slot, 3);
        }
        budget("used again");
        drop(slots);
        assert_eq!(held(), before, "address space was given back");
    });
}

#[test]
fn a_sparse_image_costs_two_maps_a_hole_and_few_in_all() {
    in_own_process("a_sparse_image_costs_two_maps_a_hole_and_few_in_all", || {
        let layout = layout();
        let before = held();
        for (holes, maps) in [(0, 5), (1, 7), (3, 11), (100, 11)] {
            let runs: Vec<(u64, &[u8])> =
                (0..=holes).map(|index| (layout.base + index * 2 * MIB, &b"run"[..])).collect();
            let extent = layout.image_start..layout.base + 256 * MIB;
            let image = Image::new("sparse", extent, runs).unwrap();
            let slot = spawn(&layout, &image, 256 * MIB, 256 * MIB).unwrap();
            assert!(held().maps - before.maps <= maps, "{holes} holes");
            assert_as_image(&layout, &slot, 256 * MIB);
        }
        assert_eq!(held(), before);
    });
}

#[test]
fn the_maps_of_a_slot_are_those_of_the_picture() {
    in_own_process("the_maps_of_a_slot_are_those_of_the_picture", || {
        let layout = layout();
        let (image, _) = dense_image(&layout, 9, PAGE);
        let slot = spawn(&layout, &image, WASM_PAGE, WASM_PAGE).unwrap();
        let start = slot.start().addr() as u64;
        let maps = procmaps::within(start..start + layout.size).unwrap();
        let seen: Vec<(u64, bool, bool)> = maps
            .iter()
            .map(|map| {
                assert!(!map.execute && !map.shared);
                assert_eq!(map.read, map.write);
                let file = map.name.starts_with("/memfd:pagefork:dense");
                (map.range.start.saturating_sub(start), map.write, file)
            })
            .collect();
        let picture = [
            (0, false, false),
            (layout.stack.start, true, false),
            (layout.image_start, true, true),
            (layout.base + PAGE, true, false),
            (layout.base + WASM_PAGE, false, false),
        ];
        assert_eq!(seen, picture);
    });
}

#[test]
fn a_slot_without_memory_has_none() {
    let layout = layout_without_memory();
    let (image, _) = dense_image(&layout, 1, 0);
    let slot = spawn(&layout, &image, 0, 0).unwrap();
    assert_as_image(&layout, &slot, 0);
    assert!(!accessible(&slot, layout.base));
    assert_eq!(slot.bounds().place(slot.base().addr()), FaultPlace::Other);
    assert_eq!(slot.memory_count(), 0);
}

#[test]
fn impossible_sizes_and_images_are_refused() {
    let layout = layout();
    let (image, _) = dense_image(&layout, 1, WASM_PAGE);
    for (size, max) in [
        (PAGE - 1, WASM_PAGE),
        (2 * WASM_PAGE, WASM_PAGE),
        (WASM_PAGE, MEMORY_RESERVATION + PAGE),
        (WASM_PAGE, u64::MAX),
        (u64::MAX - 4095, u64::MAX - 4095),
    ] {
        let error = spawn(&layout, &image, size, max).unwrap_err();
        assert!(matches!(error, PagesError::MemorySize { .. }), "{error}");
    }
    let error = spawn(&layout, &image, 0, WASM_PAGE).unwrap_err();
    assert!(matches!(error, PagesError::ImageMisfit { .. }), "beyond the memory: {error}");
    let link = layout.link.end - PAGE;
    let low = Image::new("low", link..layout.base, [(link, &b"x"[..])]);
    let error = spawn(&layout, &low.unwrap(), 0, 0).unwrap_err();
    assert!(matches!(error, PagesError::ImageMisfit { .. }), "over the link zone: {error}");

    let mut slot = spawn(&layout, &image, WASM_PAGE, 2 * WASM_PAGE).unwrap();
    for size in [0, PAGE, WASM_PAGE + 1, 2 * WASM_PAGE + PAGE, u64::MAX] {
        let error = slot.grow_memory(0, size).unwrap_err();
        assert!(matches!(error, PagesError::MemorySize { .. }), "{error}");
    }
    assert_as_image(&layout, &slot, WASM_PAGE);
    slot.grow_memory(0, WASM_PAGE).unwrap();
    spawn(&layout, &image, MEMORY_RESERVATION, MEMORY_RESERVATION).unwrap();
}
