//! Every system call is made to fail in turn: what was asked for happens wholly
//! or not at all, and nothing stays behind.
#![cfg(debug_assertions)]

mod common;

use common::*;
use pagefork_pages::inject::{fail_nth, record};
use pagefork_pages::{Call, HostFeatures, Image, PagesError, Slot};

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
        let layout = layout();
        let spawn = || {
            let bytes = pattern(1, PAGE);
            let runs = [(layout.base - PAGE, &bytes[..]), (layout.base + 9 * MIB, &bytes[..])];
            let image = Image::new("spawn", layout.image_start..layout.base + 10 * MIB, runs)?;
            let slot = Slot::new(&layout, &image, 10 * MIB, 16 * MIB)?;
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
    let fresh = || Slot::new(&layout, &image, WASM_PAGE, 16 * WASM_PAGE).unwrap();
    let slot = std::cell::RefCell::new(fresh());
    let grow = || slot.borrow_mut().grow_memory(4 * WASM_PAGE);
    each_failure(grow, |result, failed| {
        assert_eq!(result.is_err(), failed.is_some());
        let size = if failed.is_some() { WASM_PAGE } else { 4 * WASM_PAGE };
        assert_as_image(&layout, &slot.borrow(), size);
        assert!(!accessible(&slot.borrow(), layout.base + size));
    });
}

#[test]
fn a_failed_reset_leaves_the_slot_as_it_was_and_can_be_repeated() {
    let layout = layout();
    let (image, _) = dense_image(&layout, 8, PAGE);
    let grown = 4 * WASM_PAGE;
    let mut slot = Slot::new(&layout, &image, WASM_PAGE, 16 * WASM_PAGE).unwrap();
    HostFeatures::get().unwrap();
    for nth in 0.. {
        slot.grow_memory(grown).unwrap();
        scribble(&layout, &slot, 0x3c);
        let outcome = fail_nth(nth, libc::ENOMEM, || slot.reset());
        if outcome.failed.is_none() {
            outcome.value.unwrap();
            assert_as_image(&layout, &slot, WASM_PAGE);
            assert_eq!(nth, 2, "a reset of a grown slot makes two calls");
            break;
        }
        outcome.value.unwrap_err();
        assert_eq!(slot.memory_size(), grown);
        assert_eq!(slot.bounds().memory_size(), grown);
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
    let mut slot = Slot::new(&layout, &image, WASM_PAGE, 16 * WASM_PAGE).unwrap();
    slot.grow_memory(4 * WASM_PAGE).unwrap();
    scribble(&layout, &slot, 0x3c);
    HostFeatures::get().unwrap();
    let outcome = pagefork_pages::inject::fail_from(1, libc::ENOMEM, || slot.reset());
    outcome.value.unwrap_err();
    assert_eq!(slot.memory_size(), WASM_PAGE, "the size says what is accessible");
    assert!(!accessible(&slot, layout.base + WASM_PAGE));
    assert_eq!(slot.grow_memory(2 * WASM_PAGE), Err(PagesError::ResetIncomplete));
    slot.reset().unwrap();
    slot.grow_memory(4 * WASM_PAGE).unwrap();
    assert_as_image(&layout, &slot, 4 * WASM_PAGE);
}

#[test]
fn address_space_that_could_not_be_given_back_is_given_back_later() {
    in_own_process("address_space_that_could_not_be_given_back_is_given_back_later", || {
        let layout = layout();
        let image = empty_image(&layout);
        let new = || Slot::new(&layout, &image, 0, 0).unwrap();
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
    let (mut slot, calls) =
        record(|| Slot::new(&layout, &image, WASM_PAGE, 16 * WASM_PAGE).unwrap());
    assert_eq!(calls[calls.len() - 2..], [Call::Commit, Call::MapPrivate]);
    assert_eq!(record(|| slot.reset()).1, [Call::Discard]);
    assert_eq!(record(|| slot.grow_memory(2 * WASM_PAGE)).1, [Call::Commit]);
    assert_eq!(record(|| slot.reset()).1, [Call::Protect, Call::Discard]);
    assert_eq!(record(|| drop(slot)).1, [Call::Release]);
}
