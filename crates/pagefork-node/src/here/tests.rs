//! What is found of an image in others.

#![allow(clippy::single_range_in_vec_init)] // Extents of one range are meant.

use std::path::PathBuf;

use pagefork_image::{ImageDraft, PageRuns, SavedCode, SavedInstance};

use super::*;

const GROUP: u64 = GROUP_SIZE;

fn store(name: &str) -> (PathBuf, ImageStore) {
    let path = std::env::temp_dir().join(format!("pagefork-here-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    (path.clone(), ImageStore::open(path).unwrap())
}

/// A group that no other number has.
fn group(number: u64) -> Vec<u8> {
    (0..GROUP)
        .map(|at| (at as u8).wrapping_mul(31) ^ (number * 7 + 1) as u8 ^ (at >> 8) as u8)
        .collect()
}

/// An image with runs of groups, by their first groups in the slot, that runs some code.
fn save(store: &ImageStore, code: &[u8], runs: &[(u64, Vec<u64>)]) -> StoredImage {
    let code = SavedCode { hash: ContentHash::of(code), ..SavedCode::default() };
    let instance = SavedInstance { extents: vec![0..64 << 20], code, ..SavedInstance::default() };
    let manifest = Manifest { instances: vec![instance], ..Manifest::default() };
    let runs = runs.iter().map(|(first, numbers)| {
        (first * GROUP, numbers.iter().flat_map(|number| group(*number)).collect())
    });
    store.save(ImageDraft::new(manifest, &PageRuns::new(vec![runs.collect()]))).unwrap()
}

fn look(image: &StoredImage, store: &ImageStore) -> (ImageHead, GroupsHere) {
    let head = ImageHead::read(image.chain().tip()).unwrap();
    let here = GroupsHere::look(&head, store, Vec::new());
    (head, here)
}

/// Whether a group of the image is found, and right.
fn is_found(image: &StoredImage, here: &GroupsHere, at: u64) -> bool {
    let leaf = image.chain().tip().leaves(at..at + 1).unwrap()[0];
    let found = here.read(at, leaf);
    assert!(
        found.as_ref().is_none_or(|bytes| *bytes == image.chain().tip().read_group(at).unwrap())
    );
    assert_eq!(found.is_some(), here.hashes().contains(&(at, leaf)));
    found.is_some()
}

#[test]
fn groups_of_the_same_pages_are_found_wherever_they_lie_in_the_file() {
    let ((path, here), (other, there)) = (store("shifted"), store("shifted-there"));
    save(&here, b"code", &[(0, vec![1, 2, 3]), (1000, vec![4, 5, 6, 7])]);
    // The first run has become longer, so the second one lies elsewhere; of it one group is another one.
    let wanted = save(&there, b"code", &[(0, vec![1, 2, 3, 8]), (1000, vec![4, 9, 6, 7])]);
    let (_, found) = look(&wanted, &here);
    let is_here = (0..8).map(|at| is_found(&wanted, &found, at));
    assert!(is_here.eq([true, true, true, false, true, false, true, true]));
    // What the same pages have elsewhere in the slot is something else.
    let moved = save(&there, b"code", &[(20, vec![1, 2, 3])]);
    assert!(look(&moved, &here).1.hashes().is_empty());
    for path in [path, other] {
        std::fs::remove_dir_all(path).unwrap();
    }
}

#[test]
fn images_of_the_same_code_are_used_and_few_of_them() {
    let ((path, here), (other, there)) = (store("many"), store("many-there"));
    let same: Vec<_> = (0..USED_MAX as u64 + 2)
        .map(|number| save(&here, b"code", &[(0, vec![1, 20 + number])]).hash())
        .collect();
    let others = save(&here, b"other code", &[(0, vec![30, 2])]).hash();
    let wanted = save(&there, b"code", &[(0, vec![1, 2])]);
    let (_, found) = look(&wanted, &here);
    // What other code has is nothing that this peer is told of.
    assert!(is_found(&wanted, &found, 0) && !is_found(&wanted, &found, 1));
    assert_eq!(found.images.len(), USED_MAX);
    // What is used is spared; the others are not.
    let collected = here.collect().unwrap();
    assert_eq!(collected.images.len(), same.len() - USED_MAX + 1);
    assert!(collected.images.contains(&others));
    for path in [path, other] {
        std::fs::remove_dir_all(path).unwrap();
    }
}

#[test]
fn deltas_do_not_hide_full_images() {
    let ((path, here), (other, there)) = (store("deltas"), store("deltas-there"));
    let full = save(&here, b"code", &[(0, vec![1, 2])]);
    for number in 0..8 {
        let manifest = full.chain().tip().manifest().clone();
        let runs = PageRuns::new(vec![vec![(GROUP, group(number))]]);
        here.save(full.chain().delta(manifest, &runs).unwrap()).unwrap();
    }
    let wanted = save(&there, b"code", &[(0, vec![1, 3])]);
    let (_, found) = look(&wanted, &here);
    assert_eq!(found.images.len(), 1);
    assert!(is_found(&wanted, &found, 0));
    for path in [path, other] {
        std::fs::remove_dir_all(path).unwrap();
    }
}

#[test]
fn what_is_damaged_or_no_image_is_not_here() {
    let ((path, here), (other, there)) = (store("damaged"), store("damaged-there"));
    let image = save(&here, b"code", &[(0, vec![1, 2, 3])]);
    let (file, start) = (here.path().join("images").join(image.hash().to_string()), {
        image.chain().tip().data_start()
    });
    drop(image);
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[(start + GROUP) as usize + 9] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    std::fs::write(here.path().join("images").join(ContentHash::of(b"x").to_string()), b"x")
        .unwrap();
    let wanted = save(&there, b"code", &[(0, vec![1, 2, 4])]);
    let (_, found) = look(&wanted, &here);
    // Its index still says what it had.
    let leaf = wanted.chain().tip().leaves(1..2).unwrap()[0];
    assert!(found.hashes().contains(&(1, leaf)));
    assert_eq!(found.read(1, leaf), None);
    assert!(is_found(&wanted, &found, 0));
    for path in [path, other] {
        std::fs::remove_dir_all(path).unwrap();
    }
}
