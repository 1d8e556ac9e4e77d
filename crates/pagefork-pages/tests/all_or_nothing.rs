//! Every system call is made to fail in turn: what was asked for happens wholly
//! or not at all, and nothing stays behind.
#![cfg(debug_assertions)]

mod common;

use std::cell::RefCell;
use std::sync::Arc;

use common::*;
use pagefork_layout::module::MemoryType;
use pagefork_layout::slot::SlotLayout;
use pagefork_pages::inject::{fail_from, fail_nth, half_way, record};
use pagefork_pages::{Call, HostFeatures, Image, PagesError};

/// Runs `body` with its first, second, ... system call failing, until one run
/// makes fewer calls; then `check` with what it returned.
fn each_failure<R>(mut body: impl FnMut() -> R, mut check: impl FnMut(R, Option<Call>)) -> usize {
    HostFeatures::get().unwrap();
    for nth in 0.. {
        for code in [libc::ENOMEM, libc::EMFILE, libc::EIO] {
            let outcome = fail_nth(nth, code, &mut body);
            let failed = outcome.failed;
            check(outcome.value, failed);
            if failed.is_none() {
                return nth as usize;
            }
        }
    }
    unreachable!()
}

#[test]
fn a_failed_spawn_leaves_maps_and_descriptors_as_they_were() {
    in_own_process("a_failed_spawn_leaves_maps_and_descriptors_as_they_were", || {
        // What is tried once a process keeps a descriptor.
        HostFeatures::get().unwrap();
        let layout = layout();
        let spawn = || {
            let bytes = pattern(1, PAGE);
            let runs = [(layout.base - PAGE, &bytes[..]), (layout.base + 9 * MIB, &bytes[..])];
            let image = Image::new("spawn", layout.image_start..layout.base + 10 * MIB, runs)?;
            let slot = spawn(&layout, &image, 10 * MIB, 16 * MIB)?;
            let mut found = [0; 2];
            slot.image().read(layout.base + 9 * MIB, &mut found)?;
            assert_eq!(found, bytes[..2]);
            Ok::<_, PagesError>(())
        };
        spawn().unwrap();
        let before = held();
        let calls = each_failure(spawn, |result, failed| {
            // What a failed release leaves is retried with the next one.
            if failed == Some(Call::Release) {
                spawn().unwrap();
            } else {
                assert_eq!(result.is_err(), failed.is_some(), "{failed:?}: {result:?}");
            }
            assert_eq!(held(), before, "after a failed {failed:?}");
        });
        assert!(calls >= 9, "{calls} calls");
    });
}

#[test]
fn a_failed_growth_leaves_the_memory_as_it_was() {
    let layout = layout();
    let (image, _) = dense_image(&layout, 8, PAGE);
    let fresh = || spawn(&layout, &image, WASM_PAGE, 16 * WASM_PAGE).unwrap();
    let slot = RefCell::new(fresh());
    let grow = || slot.borrow_mut().grow_memory(0, 4 * WASM_PAGE);
    each_failure(grow, |result, failed| {
        assert_eq!(result.is_err(), failed.is_some());
        let size = if failed.is_some() { WASM_PAGE } else { 4 * WASM_PAGE };
        assert_as_image(&layout, &slot.borrow(), size);
        assert!(!accessible(&slot.borrow(), layout.base + size));
    });
}

/// What grows or shrinks can lie in several maps, and the kernel may change one and not
/// the next.
#[test]
fn access_that_was_changed_half_way_is_changed_back() {
    let layout = layout();
    let (image, _) = dense_image(&layout, 8, PAGE);
    let mut slot = spawn(&layout, &image, WASM_PAGE, 16 * WASM_PAGE).unwrap();
    half_way(|| {
        let outcome = fail_nth(0, libc::ENOMEM, || slot.grow_memory(0, 4 * WASM_PAGE));
        outcome.value.unwrap_err();
        assert!(slot.is_whole() && !accessible(&slot, layout.base + WASM_PAGE));
        slot.grow_memory(0, 4 * WASM_PAGE).unwrap();
        overwrite(&layout, &slot, 0x3c);
        fail_nth(0, libc::ENOMEM, || slot.reset()).value.unwrap_err();
        assert!(contents(&layout, &slot).iter().all(|&byte| byte == 0x3c));
        slot.reset().unwrap();
        assert_as_image(&layout, &slot, WASM_PAGE);

        // Nor back: nothing is to run in it before it is filled again.
        let outcome = fail_from(0, libc::ENOMEM, || slot.grow_memory(0, 4 * WASM_PAGE));
        outcome.value.unwrap_err();
        assert!(!slot.is_whole());
        assert_eq!(slot.grow_memory(0, 2 * WASM_PAGE), Err(PagesError::ResetIncomplete));
        slot.reset().unwrap();
        assert!(slot.is_whole() && !accessible(&slot, layout.base + WASM_PAGE));
        assert_as_image(&layout, &slot, WASM_PAGE);
        slot.grow_memory(0, 4 * WASM_PAGE).unwrap();
        overwrite(&layout, &slot, 0x3c);
        fail_from(0, libc::ENOMEM, || slot.reset()).value.unwrap_err();
        assert!(!slot.is_whole());
        slot.reset().unwrap();
        assert_as_image(&layout, &slot, WASM_PAGE);
        assert!(!accessible(&slot, layout.base + WASM_PAGE));
    });
}

#[test]
fn a_failed_reset_leaves_the_slot_as_it_was_and_can_be_repeated() {
    let layout = layout();
    let (image, _) = dense_image(&layout, 8, PAGE);
    let grown = 4 * WASM_PAGE;
    let mut slot = spawn(&layout, &image, WASM_PAGE, 16 * WASM_PAGE).unwrap();
    HostFeatures::get().unwrap();
    for nth in 0.. {
        slot.grow_memory(0, grown).unwrap();
        overwrite(&layout, &slot, 0x3c);
        let outcome = fail_nth(nth, libc::ENOMEM, || slot.reset());
        if outcome.failed.is_none() {
            outcome.value.unwrap();
            assert_as_image(&layout, &slot, WASM_PAGE);
            assert_eq!(nth, 2, "a reset of a grown slot makes two calls");
            break;
        }
        outcome.value.unwrap_err();
        assert_eq!(slot.memory_size(0), grown);
        assert_eq!(slot.bounds().memory_size(0), grown);
        assert!(contents(&layout, &slot).iter().all(|&byte| byte == 0x3c));
        slot.reset().unwrap();
        assert_as_image(&layout, &slot, WASM_PAGE);
        assert!(!accessible(&slot, layout.base + WASM_PAGE));
    }
}

#[test]
fn a_reset_that_can_neither_go_on_nor_back_never_shows_old_bytes() {
    let layout = layout();
    let (image, _) = dense_image(&layout, 8, PAGE);
    let mut slot = spawn(&layout, &image, WASM_PAGE, 16 * WASM_PAGE).unwrap();
    slot.grow_memory(0, 4 * WASM_PAGE).unwrap();
    overwrite(&layout, &slot, 0x3c);
    HostFeatures::get().unwrap();
    let outcome = fail_from(1, libc::ENOMEM, || slot.reset());
    outcome.value.unwrap_err();
    assert_eq!(slot.memory_size(0), WASM_PAGE, "the size says what is accessible");
    assert!(!accessible(&slot, layout.base + WASM_PAGE));
    assert_eq!(slot.grow_memory(0, 2 * WASM_PAGE), Err(PagesError::ResetIncomplete));
    slot.reset().unwrap();
    slot.grow_memory(0, 4 * WASM_PAGE).unwrap();
    assert_as_image(&layout, &slot, 4 * WASM_PAGE);
}

#[test]
fn address_space_that_could_not_be_given_back_is_given_back_later() {
    in_own_process("address_space_that_could_not_be_given_back_is_given_back_later", || {
        let layout = layout();
        let image = empty_image(&layout);
        let new = || spawn(&layout, &image, 0, 0).unwrap();
        drop(new());
        let before = held();
        let slot = new();
        let outcome = fail_nth(0, libc::ENOMEM, || drop(slot));
        assert_eq!(outcome.failed, Some(Call::Release));
        assert!(held().mapped >= before.mapped + layout.size);
        drop(new());
        assert_eq!(held(), before);
    });
}

#[test]
fn the_common_calls_are_few() {
    let layout = layout();
    let (image, _) = dense_image(&layout, 8, PAGE);
    HostFeatures::get().unwrap();
    // Behind an aligned slot the next is aligned without trimming, but other
    // threads of this process may come between.
    let (mut slot, calls) = record(|| spawn(&layout, &image, WASM_PAGE, 16 * WASM_PAGE).unwrap());
    assert_eq!(calls[calls.len() - 2..], [Call::Commit, Call::MapPrivate]);
    assert_eq!(record(|| slot.reset()).1, [Call::Discard]);
    assert_eq!(record(|| slot.grow_memory(0, 2 * WASM_PAGE)).1, [Call::Commit]);
    assert_eq!(record(|| slot.reset()).1, [Call::Protect, Call::Discard]);
    assert_eq!(record(|| drop(slot)).1, [Call::Release]);
}

/// Three memories of one wasm page with contents in each, which can grow to four.
fn layout_with_three_memories() -> (SlotLayout, Arc<Image>) {
    let layout = layout_of(&[MemoryType::new(0, None); 3]);
    let bytes = pattern(5, PAGE);
    let starts: Vec<u64> =
        layout.memories.iter().map(|memory| layout.base + memory.offset).collect();
    let extents = starts.iter().map(|start| *start..start + PAGE).collect();
    let runs = starts.iter().map(|start| (*start, &bytes[..]));
    let image = Image::with_extents("three", extents, runs).unwrap();
    (layout, image)
}

#[test]
fn a_failed_spawn_of_several_memories_leaves_nothing() {
    in_own_process("a_failed_spawn_of_several_memories_leaves_nothing", || {
        // What is tried once a process keeps a descriptor.
        HostFeatures::get().unwrap();
        let (layout, image) = layout_with_three_memories();
        let spawn = || spawn(&layout, &image, WASM_PAGE, 4 * WASM_PAGE).map(drop);
        spawn().unwrap();
        let before = held();
        let calls = each_failure(spawn, |result, failed| {
            if failed == Some(Call::Release) {
                spawn().unwrap();
            } else {
                assert_eq!(result.is_err(), failed.is_some(), "{failed:?}: {result:?}");
            }
            assert_eq!(held(), before, "after a failed {failed:?}");
        });
        // One to reserve, three to commit, three to map, one to release.
        assert!(calls >= 8, "{calls} calls");
    });
}

#[test]
fn a_failed_growth_of_one_memory_changes_none() {
    let (layout, image) = layout_with_three_memories();
    for index in 0..3 {
        let slot = RefCell::new(spawn(&layout, &image, WASM_PAGE, 4 * WASM_PAGE).unwrap());
        let grow = || slot.borrow_mut().grow_memory(index, 4 * WASM_PAGE);
        each_failure(grow, |result, failed| {
            assert_eq!(result.is_err(), failed.is_some());
            let mut sizes = [WASM_PAGE; 3];
            if failed.is_none() {
                sizes[index] = 4 * WASM_PAGE;
            }
            assert_as_image_with(&layout, &slot.borrow(), &sizes);
            let end = layout.base + layout.memories[index].offset + sizes[index];
            assert!(!accessible(&slot.borrow(), end));
        });
    }
}

#[test]
fn a_failed_reset_of_several_memories_leaves_all_as_they_were() {
    let (layout, image) = layout_with_three_memories();
    let mut slot = spawn(&layout, &image, WASM_PAGE, 4 * WASM_PAGE).unwrap();
    HostFeatures::get().unwrap();
    for nth in 0.. {
        for (index, pages) in [(0, 2), (1, 4), (2, 3)] {
            slot.grow_memory(index, pages * WASM_PAGE).unwrap();
        }
        let grown = memory_sizes(&slot);
        overwrite(&layout, &slot, 0x3c);
        let outcome = fail_nth(nth, libc::ENOMEM, || slot.reset());
        if outcome.failed.is_none() {
            outcome.value.unwrap();
            assert_as_image(&layout, &slot, WASM_PAGE);
            assert_eq!(nth, 4, "a reset protects each memory and discards once");
            break;
        }
        outcome.value.unwrap_err();
        assert_eq!(memory_sizes(&slot), grown);
        assert!(contents(&layout, &slot).iter().all(|&byte| byte == 0x3c));
        slot.reset().unwrap();
        assert_as_image(&layout, &slot, WASM_PAGE);
    }
}

#[test]
fn a_reset_of_several_memories_that_fails_at_every_step_never_shows_old_bytes() {
    let (layout, image) = layout_with_three_memories();
    HostFeatures::get().unwrap();
    for from in 0..5 {
        let mut slot = spawn(&layout, &image, WASM_PAGE, 4 * WASM_PAGE).unwrap();
        for index in 0..3 {
            slot.grow_memory(index, 4 * WASM_PAGE).unwrap();
        }
        overwrite(&layout, &slot, 0x3c);
        let outcome = fail_from(from, libc::ENOMEM, || slot.reset());
        if outcome.failed.is_none() {
            assert_eq!(from, 4);
            continue;
        }
        outcome.value.unwrap_err();
        // The memories that were made inaccessible stay so; the others are as
        // before.
        for index in 0..3 {
            let size = slot.memory_size(index);
            let shrunk = (index as u64) < from;
            assert_eq!(size, if shrunk { WASM_PAGE } else { 4 * WASM_PAGE }, "{from}: {index}");
            assert!(!accessible(&slot, layout.base + layout.memories[index].offset + size));
            let growth = slot.grow_memory(index, 4 * WASM_PAGE);
            assert_eq!(growth, Err(PagesError::ResetIncomplete));
        }
        // It has to be filled again, whatever else fails.
        fail_from(0, libc::ENOMEM, || slot.reset()).value.unwrap_err();
        assert!(!slot.is_whole());
        slot.reset().unwrap();
        for index in 0..3 {
            slot.grow_memory(index, 4 * WASM_PAGE).unwrap();
        }
        assert_as_image(&layout, &slot, 4 * WASM_PAGE);
    }
}
