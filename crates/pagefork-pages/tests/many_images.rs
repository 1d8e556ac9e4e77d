//! However many images there are, descriptors and maps stay few, and each image is
//! as final as one that has a file to itself.

mod common;

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use common::*;
use pagefork_layout::slot::SlotLayout;
use pagefork_pages::{
    Image, LARGE_IMAGE, MemorySize, OWN_FILES_LARGE_MAX, OWN_FILES_MAX, Owner, ResetKind, Slot,
    StrategyConfig,
};

/// An image of `size` bytes at the start of memory 0.
fn image(layout: &SlotLayout, seed: u8, size: u64) -> (Arc<Image>, Vec<u8>) {
    let bytes = pattern(seed, size);
    let extent = layout.base..layout.base + size.next_multiple_of(PAGE);
    (Image::new("many", extent, [(layout.base, &bytes[..])]).unwrap(), bytes)
}

/// As many small images as have memfds of their own.
fn crowd(layout: &SlotLayout) -> Vec<Arc<Image>> {
    (0..OWN_FILES_MAX).map(|seed| image(layout, seed as u8, 1).0).collect()
}

fn slot(layout: &SlotLayout, image: &Arc<Image>, reset: ResetKind) -> Slot {
    let sizes = [MemorySize { initial: 4 * WASM_PAGE, maximum: 4 * WASM_PAGE }];
    let strategies = StrategyConfig { reset, ..StrategyConfig::default() }.check().unwrap();
    Slot::with_strategies(layout, image, &sizes, &strategies).unwrap()
}

fn memory(slot: &Slot, length: usize) -> Vec<u8> {
    // SAFETY: so much is accessible, and only this thread uses it.
    unsafe { std::slice::from_raw_parts(slot.base(), length) }.to_vec()
}

fn limit_descriptors(count: u64) {
    let limit = libc::rlimit { rlim_cur: count, rlim_max: count };
    // SAFETY: only reads the structure.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
}

/// The memfds of this process that hold many images, opened for writing.
fn arenas() -> Vec<File> {
    let links = fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
    let open = |path| OpenOptions::new().read(true).write(true).open(path).unwrap();
    links
        .filter(|path| {
            fs::read_link(path).is_ok_and(|link| link.to_str().unwrap().contains("pagefork:images"))
        })
        .map(open)
        .collect()
}

#[test]
fn twenty_thousand_images_take_few_descriptors_and_maps() {
    in_own_process("twenty_thousand_images_take_few_descriptors_and_maps", || {
        const COUNT: usize = 20_000;
        limit_descriptors(OWN_FILES_MAX as u64 + 32);
        let layout = layout();
        // Strategies that restore in place read images: one in eight is read.
        let before = held();
        let mut slots = Vec::new();
        let mut images = Vec::new();
        for index in 0..COUNT {
            let size = 1 + (index as u64 * 7919) % (3 * PAGE);
            let (image, bytes) = image(&layout, index as u8, size);
            if index % 1000 == 999 {
                slots.push((slot(&layout, &image, ResetKind::Scan), bytes.clone()));
                slots.push((slot(&layout, &image, ResetKind::Copy), bytes));
            } else if index % 8 == 0 {
                drop(slot(&layout, &image, ResetKind::Scan));
            }
            images.push((image, index as u8, size));
        }
        let after = held();
        assert!(after.descriptors - before.descriptors < OWN_FILES_MAX + 16, "{after:?}");
        let maps = after.maps - before.maps;
        assert!(maps < 5 * slots.len() + OWN_FILES_MAX + 64, "{maps} maps");

        for (slot, bytes) in &mut slots {
            assert!(memory(slot, bytes.len()) == bytes[..]);
            overwrite(&layout, slot, 0x77);
            slot.reset_for(Owner(7)).unwrap();
            assert_as_image(&layout, slot, 4 * WASM_PAGE);
        }
        for (image, seed, size) in &images {
            let mut found = vec![0; *size as usize];
            image.read(layout.base, &mut found).unwrap();
            assert!(found == pattern(*seed, *size), "image {seed}");
            // Not a byte of a neighbour.
            let rest = size.next_multiple_of(PAGE) - size;
            let mut found = vec![1; rest as usize];
            image.read(layout.base + size, &mut found).unwrap();
            assert!(found.iter().all(|&byte| byte == 0));
        }
        drop(slots);
        drop(images);
        // But for the arena that takes the next image, and the page map of `Scan`.
        let last = held();
        assert!(last.descriptors <= before.descriptors + 2, "{before:?} {last:?}");
        assert!(last.maps <= before.maps + 8, "{before:?} {last:?}");
    });
}

#[test]
fn nothing_can_write_cut_or_grow_images_that_share() {
    in_own_process("nothing_can_write_cut_or_grow_images_that_share", || {
        let layout = layout();
        let _crowd = crowd(&layout);
        let (first, bytes) = image(&layout, 3, 3 * PAGE);
        let (_second, _) = image(&layout, 5, PAGE);
        let files = arenas();
        let [file] = &files[..] else { panic!("{files:?}") };
        let descriptor = file.as_raw_fd();
        let size = file.metadata().unwrap().len();
        // Anywhere in the file, in use or not.
        for place in [0, PAGE, 4 * PAGE, size - PAGE] {
            assert!(file.write_at(b"x", place).is_err());
            for mode in [
                libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
                libc::FALLOC_FL_ZERO_RANGE,
                libc::FALLOC_FL_COLLAPSE_RANGE,
            ] {
                // SAFETY: takes no address.
                let done = unsafe { libc::fallocate(descriptor, mode, place as i64, PAGE as i64) };
                assert_ne!(done, 0, "mode {mode:#x}");
            }
            let map = |access| {
                let (flags, place) = (libc::MAP_SHARED, place as i64);
                // SAFETY: the kernel picks the address; a map that comes to be is never
                // used.
                unsafe { libc::mmap(std::ptr::null_mut(), 4096, access, flags, descriptor, place) }
            };
            assert_eq!(map(libc::PROT_READ | libc::PROT_WRITE), libc::MAP_FAILED);
            let readable = map(libc::PROT_READ);
            assert_ne!(readable, libc::MAP_FAILED);
            // SAFETY: changes only the map made above.
            let writable =
                unsafe { libc::mprotect(readable, 4096, libc::PROT_READ | libc::PROT_WRITE) };
            assert_ne!(writable, 0);
            // SAFETY: unmaps the map made above, to which nothing points.
            unsafe { libc::munmap(readable, 4096) };
        }
        for length in [0, size - PAGE, size + PAGE] {
            assert!(file.set_len(length).is_err());
        }
        // Of what is in use, this process has no writable map itself.
        let maps = pagefork_pages::procmaps::read().unwrap();
        let windows: Vec<_> = maps
            .iter()
            .filter(|map| map.name.contains("pagefork:images") && map.write && map.shared)
            .collect();
        assert_eq!(windows.len(), 1, "{windows:?}");
        assert_eq!(windows[0].range.end - windows[0].range.start, size - 4 * PAGE);

        // What slots do stays in the slots.
        let slot = slot(&layout, &first, ResetKind::Discard);
        overwrite(&layout, &slot, 0xdd);
        let mut read = vec![0; bytes.len()];
        first.read(layout.base, &mut read).unwrap();
        assert!(read == bytes);
    });
}

#[test]
fn a_full_arena_is_sealed_for_good_and_goes_with_its_last_image() {
    in_own_process("a_full_arena_is_sealed_for_good_and_goes_with_its_last_image", || {
        let layout = layout();
        let _crowd = crowd(&layout);
        let small = |seed| image(&layout, seed, 800 << 10);
        let images: Vec<_> = (0..100).map(small).collect();
        let files = arenas();
        assert_eq!(files.len(), 2, "of 64 MiB, the second with room");
        // SAFETY: takes no address.
        let seals = |file: &File| unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        let write = |file: &&File| seals(file) & libc::F_SEAL_WRITE != 0;
        assert_eq!(files.iter().filter(write).count(), 1);
        let future = |file: &File| seals(file) & libc::F_SEAL_FUTURE_WRITE != 0;
        assert!(files.iter().all(future));
        for (image, bytes) in &images {
            let mut found = vec![0; bytes.len()];
            image.read(layout.base, &mut found).unwrap();
            assert!(found == *bytes);
        }
        drop(files);
        drop(images);
        assert_eq!(arenas().len(), 1, "the one that takes the next image");
        let more: Vec<_> = (0..10).map(small).collect();
        assert_eq!(arenas().len(), 1);
        drop(more);
        assert!(arenas().is_empty(), "too much of it was used");
        let (one, bytes) = small(1);
        let mut found = vec![0; bytes.len()];
        one.read(layout.base, &mut found).unwrap();
        assert!(found == bytes);
    });
}

#[test]
fn large_images_share_only_beyond_a_higher_number() {
    in_own_process("large_images_share_only_beyond_a_higher_number", || {
        let layout = layout();
        let _crowd = crowd(&layout);
        let large = |_| {
            let runs = [(layout.base, &b"a"[..]), (layout.base + LARGE_IMAGE - 1, b"z")];
            Image::new("large", layout.base..layout.base + LARGE_IMAGE, runs).unwrap()
        };
        let _own: Vec<_> = (OWN_FILES_MAX..OWN_FILES_LARGE_MAX).map(large).collect();
        assert!(arenas().is_empty());
        let shared: Vec<_> = (0..3).map(large).collect();
        assert_eq!(arenas().len(), 1);
        for image in shared {
            let mut found = vec![1; LARGE_IMAGE as usize];
            image.read(layout.base, &mut found).unwrap();
            assert!(found[0] == b'a' && found[found.len() - 1] == b'z');
            assert!(found[1..found.len() - 1].iter().all(|&byte| byte == 0));
        }
    });
}

#[test]
fn a_forked_process_cannot_write_where_its_parent_lays_images() {
    in_own_process("a_forked_process_cannot_write_where_its_parent_lays_images", || {
        let layout = layout();
        let _crowd = crowd(&layout);
        let (first, bytes) = image(&layout, 1, PAGE);
        // SAFETY: this process has no other thread that works: the test harness waits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let code = std::panic::catch_unwind(|| {
                let maps = pagefork_pages::procmaps::read().unwrap();
                let window = |map: &&pagefork_pages::procmaps::Map| {
                    map.name.contains("pagefork:images") && map.shared && map.write
                };
                assert_eq!(maps.iter().filter(window).count(), 0);
                let before = arenas().len();
                let (mine, bytes) = image(&layout, 2, PAGE);
                assert_eq!(arenas().len(), before + 1, "it has one of its own");
                let mut found = vec![0; bytes.len()];
                mine.read(layout.base, &mut found).unwrap();
                assert!(found == bytes);
            })
            .map_or(1, |()| 0);
            // SAFETY: ends the child without running the harness again.
            unsafe { libc::_exit(code) };
        }
        let (second, second_bytes) = image(&layout, 9, PAGE);
        let mut status = 0;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
        for (image, bytes) in [(first, bytes), (second, second_bytes)] {
            let mut found = vec![0; bytes.len()];
            image.read(layout.base, &mut found).unwrap();
            assert!(found == bytes);
        }
    });
}

#[cfg(debug_assertions)]
#[test]
fn whatever_fails_leaves_no_half_made_image() {
    use pagefork_pages::inject::{fail_nth, record};
    use pagefork_pages::{Call, PagesError};

    in_own_process("whatever_fails_leaves_no_half_made_image", || {
        let layout = layout();
        let _crowd = crowd(&layout);
        let make = || {
            let runs = [(layout.base, &b"abc"[..]), (layout.base + 5 * PAGE, b"def")];
            Image::new("shared", layout.base..layout.base + 8 * PAGE, runs)
        };
        let check = |image: &Image| {
            let mut found = vec![1; 8 * PAGE as usize];
            image.read(layout.base, &mut found).unwrap();
            let mut wanted = vec![0; 8 * PAGE as usize];
            wanted[..3].copy_from_slice(b"abc");
            wanted[5 * PAGE as usize..][..3].copy_from_slice(b"def");
            assert!(found == wanted);
        };
        // Once with an arena that is there, once with one to be made.
        for code in [libc::ENOMEM, libc::EMFILE, libc::EIO, libc::EINVAL] {
            for nth in 0.. {
                let before = held();
                let outcome = fail_nth(nth, code, make);
                match (&outcome.value, outcome.failed) {
                    (Ok(image), _) => check(image),
                    (Err(error), Some(_)) => {
                        let image = make().unwrap_or_else(|_| panic!("after {error}"));
                        check(&image);
                    }
                    (Err(error), None) => panic!("{error}"),
                }
                let image = outcome.value;
                let done = outcome.failed.is_none();
                drop(image);
                let held = held();
                assert!(held.descriptors <= before.descriptors + 1, "{:?}", outcome.failed);
                assert!(held.maps <= before.maps + 2, "{:?}", outcome.failed);
                if done {
                    break;
                }
            }
        }
        let (image, calls) = record(make);
        check(&image.unwrap());
        assert_eq!(calls, [Call::AllocateImage, Call::AllocateImage, Call::Release]);
        let outcome = fail_nth(0, libc::ENOSPC, make);
        assert_eq!(
            outcome.value.map(drop),
            Err(PagesError::OutOfMemory { call: Call::AllocateImage })
        );
        let (image, calls) = record(make);
        check(&image.unwrap());
        let seal = calls.iter().position(|&call| call == Call::SealImage).unwrap();
        fail_nth(0, libc::ENOSPC, make).value.unwrap_err();
        // Without seals against later writing there are no arenas.
        let outcome = fail_nth(seal as u64, libc::EINVAL, make);
        assert_eq!(outcome.failed, Some(Call::SealImage));
        check(&outcome.value.unwrap());
        let shared = arenas().len();
        assert_eq!(shared, 0, "it has a file of its own");
    });
}
