//! A slot shows its own image and zeros, and nothing of who was there before.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use common::*;
use pagefork_pages::{Image, Slot};

/// CVE-2022-39393: an image stayed mapped when the next module had none.
#[test]
fn image_no_image_and_other_image_in_every_order() {
    let layout = layout();
    let size = 4 * WASM_PAGE;
    let kinds: [(Arc<Image>, u64); 4] = [
        (dense_image(&layout, 0x11, 2 * WASM_PAGE).0, size),
        (empty_image(&layout), size),
        (dense_image(&layout, 0xee, PAGE).0, PAGE),
        (empty_image(&layout), 0),
    ];
    for first in &kinds {
        for second in &kinds {
            for third in &kinds {
                for (image, size) in [first, second, third] {
                    let mut slot = spawn(&layout, image, *size, 8 * WASM_PAGE).unwrap();
                    assert_as_image(&layout, &slot, *size);
                    slot.grow_memory(0, 6 * WASM_PAGE).unwrap();
                    overwrite(&layout, &slot, 0xa5);
                }
            }
        }
    }
}

#[test]
fn a_reset_brings_every_byte_of_the_image_back_and_zeros_elsewhere() {
    let layout = layout();
    for image_memory in [0, PAGE, 3 * PAGE, WASM_PAGE] {
        let (image, bytes) = dense_image(&layout, 0x42, image_memory);
        let mut slot = spawn(&layout, &image, WASM_PAGE, 64 * WASM_PAGE).unwrap();
        for growth in [WASM_PAGE, 2 * WASM_PAGE, 64 * WASM_PAGE] {
            slot.grow_memory(0, growth).unwrap();
            overwrite(&layout, &slot, 0xff);
            slot.reset().unwrap();
            assert_as_image(&layout, &slot, WASM_PAGE);
            // Not by `Image::read` alone: against the bytes that were given.
            let at = (layout.image_start - layout.stack.start) as usize;
            assert!(contents(&layout, &slot)[at..at + bytes.len()] == bytes[..]);
            assert!(!accessible(&slot, layout.base + WASM_PAGE));
        }
    }
}

/// CVE-2026-34988: a slot that had grown was not protected again.
#[test]
fn grow_drop_and_reuse_smaller_leaves_nothing_readable_past_the_end() {
    let layout = layout();
    let image = empty_image(&layout);
    for small in [0, PAGE, WASM_PAGE] {
        let mut slot = spawn(&layout, &image, WASM_PAGE, 1 << 30).unwrap();
        slot.grow_memory(0, 256 * WASM_PAGE).unwrap();
        overwrite(&layout, &slot, 0x77);
        drop(slot);
        let mut slot = spawn(&layout, &image, small, 1 << 30).unwrap();
        for past in [0, 1, PAGE - 1, PAGE, WASM_PAGE, 255 * WASM_PAGE, 256 * WASM_PAGE] {
            assert!(!accessible(&slot, layout.base + small + past), "{small} + {past}");
        }
        // And what a growth uncovers is zero.
        slot.grow_memory(0, 256 * WASM_PAGE).unwrap();
        assert_as_image(&layout, &slot, 256 * WASM_PAGE);
    }
}

#[test]
fn growth_after_a_reset_uncovers_zeros() {
    let layout = layout();
    let (image, _) = dense_image(&layout, 3, PAGE);
    let mut slot = spawn(&layout, &image, WASM_PAGE, 16 * WASM_PAGE).unwrap();
    for _ in 0..3 {
        slot.grow_memory(0, 16 * WASM_PAGE).unwrap();
        assert_as_image(&layout, &slot, 16 * WASM_PAGE);
        overwrite(&layout, &slot, 0x99);
        slot.reset().unwrap();
    }
}

#[test]
fn slots_of_one_image_do_not_see_each_other() {
    let layout = layout();
    let (image, bytes) = dense_image(&layout, 7, WASM_PAGE);
    let slots: Vec<Slot> =
        (0..8).map(|_| spawn(&layout, &image, WASM_PAGE, WASM_PAGE).unwrap()).collect();
    for (index, slot) in slots.iter().enumerate() {
        overwrite(&layout, slot, index as u8);
    }
    for (index, slot) in slots.iter().enumerate() {
        assert!(contents(&layout, slot).iter().all(|&byte| byte == index as u8));
    }
    let mut read = vec![0; bytes.len()];
    image.read(layout.image_start, &mut read).unwrap();
    assert!(read == bytes, "the image itself has changed");
}

#[test]
fn a_sparse_image_is_whole_with_its_holes() {
    let layout = layout();
    let base = layout.base;
    let runs: Vec<(u64, Vec<u8>)> =
        [0, 3 * MIB + 5, 3 * MIB + 40 * PAGE - 2, 9 * MIB, 20 * MIB, 30 * MIB, 39 * MIB]
            .into_iter()
            .map(|at| (base + at, pattern(at as u8, 5000)))
            .chain([(base - 64, pattern(1, 64))])
            .collect();
    let extent = layout.image_start..base + 40 * MIB;
    let image = Image::new("sparse", extent, runs.iter().map(|(at, run)| (*at, &run[..]))).unwrap();
    let mut slot = spawn(&layout, &image, 48 * MIB, 48 * MIB).unwrap();
    assert_as_image(&layout, &slot, 48 * MIB);
    let found = contents(&layout, &slot);
    for (at, run) in &runs {
        let at = (at - layout.stack.start) as usize;
        assert!(found[at..at + run.len()] == run[..]);
    }
    overwrite(&layout, &slot, 0xcc);
    slot.reset().unwrap();
    assert_as_image(&layout, &slot, 48 * MIB);
}

/// Random sequences of everything a slot can do, against a map of bytes.
#[test]
fn random_operations_agree_with_a_model() {
    let layout = layout();
    let (image, _) = dense_image(&layout, 0x5c, 3 * PAGE);
    let (initial, max) = (WASM_PAGE, 32 * WASM_PAGE);
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = move |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let byte_of_image = |offset: u64| {
        let mut byte = [0];
        if image.extents().iter().any(|extent| extent.contains(&offset)) {
            image.read(offset, &mut byte).unwrap();
        }
        byte[0]
    };

    let mut slot = spawn(&layout, &image, initial, max).unwrap();
    let mut written: BTreeMap<u64, u8> = BTreeMap::new();
    let mut size = initial;
    for step in 0..20_000 {
        let offset = layout.stack.start + random(layout.base + size - layout.stack.start);
        match random(100) {
            0 => {
                slot.reset().unwrap();
                written.clear();
                size = initial;
            }
            1 => {
                slot = spawn(&layout, &image, initial, max).unwrap();
                written.clear();
                size = initial;
            }
            2..5 => {
                let wanted = size + PAGE * random(40);
                let fits = wanted <= max;
                assert_eq!(slot.grow_memory(0, wanted).is_ok(), fits);
                size = if fits { wanted } else { size };
            }
            5..50 => {
                let byte = random(256) as u8;
                poke(&slot, offset, byte);
                written.insert(offset, byte);
            }
            _ => {
                // Look where something was written before, half of the time.
                let known = written.range(offset..).next().map(|(&at, _)| at);
                let at = if step % 2 == 0 { known.unwrap_or(offset) } else { offset };
                let wanted = written.get(&at).copied().unwrap_or_else(|| byte_of_image(at));
                // SAFETY: the offset lies below the accessible end.
                let found = unsafe { slot.start().wrapping_add(at as usize).read_volatile() };
                assert_eq!(found, wanted, "step {step}, offset {at:#x}");
            }
        }
        assert_eq!(slot.memory_size(0), size);
    }
}
