//! A hash tree over groups of 16 KiB: its root is the ordinary BLAKE3 hash of all bytes, and each
//! group can be checked alone, by the hashes of its neighbours.

use blake3::Hasher;
use blake3::hazmat::{HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};

use crate::base::error::ImageError;
use crate::base::hash::ContentHash;

/// Bytes of a group, which is hashed, checked and sent as one. The last group of a file may have
/// fewer.
pub const GROUP_SIZE: u64 = 16 << 10;

/// What stands for a subtree within a larger one. It is not the hash of the subtree's bytes.
pub(crate) type ChainingValue = [u8; ContentHash::SIZE];

/// Number of groups that `size` bytes make.
///
/// # Examples
///
/// ```
/// use pagefork_image::{GROUP_SIZE, group_count};
///
/// assert_eq!([0, 1, GROUP_SIZE, GROUP_SIZE + 1].map(group_count), [0, 1, 1, 2]);
/// ```
pub fn group_count(size: u64) -> u64 {
    size.div_ceil(GROUP_SIZE)
}

/// Number of bytes of group `index`, where there are `size` bytes in all.
pub(crate) fn group_size(size: u64, index: u64) -> u64 {
    GROUP_SIZE.min(size - index * GROUP_SIZE)
}

/// The numbers of nodes by level, the groups' own first. Each level is half of the one before,
/// rounded up, where the last node stands for itself if it has no neighbour. The root is not in
/// it, and nothing is if there are no two groups.
///
/// ```text
///   level 2        .           .            merged, they are the root
///                /   \         |
///   level 1     .     .        .
///              / \   / \       |
///   level 0   0   1 2   3      4            groups
/// ```
fn level_counts(size: u64) -> impl Iterator<Item = u64> {
    let groups = Some(group_count(size)).filter(|count| *count > 1);
    std::iter::successors(groups, |count| (*count > 2).then(|| count.div_ceil(2)))
}

/// Bytes that the tree over `size` bytes takes in a file.
pub(crate) fn index_size(size: u64) -> u64 {
    level_counts(size).sum::<u64>() * ContentHash::SIZE as u64
}

/// What stands for group `index` in the tree. Of a lone group it is the root.
///
/// # Panics
/// If the group is empty.
pub(crate) fn hash_group(size: u64, index: u64, bytes: &[u8]) -> ChainingValue {
    if group_count(size) == 1 {
        return *blake3::hash(bytes).as_bytes();
    }
    hash_one_of_many(index, bytes)
}

/// The same, where it is not the only one.
fn hash_one_of_many(index: u64, bytes: &[u8]) -> ChainingValue {
    let mut hasher = Hasher::new();
    hasher.set_input_offset(index * GROUP_SIZE);
    hasher.update(bytes);
    hasher.finalize_non_root()
}

/// What stands for the groups of an image in its tree, found as its bytes come.
///
/// # Examples
///
/// ```
/// use std::sync::Arc;
///
/// use pagefork_image::*;
///
/// # let path = std::env::temp_dir().join(format!("pagefork-coming-{}", std::process::id()));
/// let store = ImageStore::open(&path)?;
/// let (instance, keys) = (SavedInstance { extents: vec![0..1 << 20], ..SavedInstance::default() }, [SecretKey::from_seed([7; 32])]);
/// let manifest = Manifest { instances: vec![instance], ..Manifest::default() };
/// let first = store.save(ImageDraft::new(manifest.clone(), &PageRuns::new(vec![vec![]])))?;
/// let pages = PageRuns::new(vec![vec![(0, vec![7; 1 << 20])]]);
/// let draft = first.chain().delta(manifest, &pages)?.sign_with(&keys);
///
/// let mut coming = ComingGroups::default();
/// let mut show = |at: u64, part: &[u8]| coming.take(at, part);
/// let (delta, bytes) = store.save_beside_in_parts(draft, &first, Vec::new(), &mut show)?;
/// let trusted = TrustedKeys::from_iter([keys[0].public()]);
/// let found = store.open_beside_hashed(Arc::clone(&bytes), &first, &trusted, &coming)?;
/// assert_eq!(found.hash(), delta.hash());
/// # std::fs::remove_dir_all(path).unwrap();
/// # Ok::<(), ImageError>(())
/// ```
#[derive(Clone, Default, Debug)]
pub struct ComingGroups {
    /// Where the first bytes have come, which are those of the first group.
    start: Option<u64>,
    /// Behind the last bytes that followed.
    end: u64,
    leaves: Vec<ChainingValue>,
    /// Something came otherwise than in order, so that this says nothing.
    is_broken: bool,
}

impl ComingGroups {
    /// Takes bytes of the file that an image is, from `at` on. What lies before the first bytes that came is no part
    /// of a group.
    pub fn take(&mut self, at: u64, bytes: &[u8]) {
        let start = *self.start.get_or_insert(at);
        let is_first = self.leaves.is_empty();
        if is_first && at == start {
            self.end = start;
        } else if at.checked_add(bytes.len() as u64).is_some_and(|end| end <= start) {
            return;
        }
        // No group follows one that is not whole.
        let is_next = at == self.end && (self.end - start).is_multiple_of(GROUP_SIZE);
        if self.is_broken || !is_next {
            self.is_broken = true;
            return;
        }
        for group in bytes.chunks(GROUP_SIZE as usize) {
            self.leaves.push(hash_one_of_many(self.leaves.len() as u64, group));
        }
        self.end += bytes.len() as u64;
    }

    /// The tree over `size` bytes from `start` on, if these have come in order.
    pub(crate) fn tree(&self, start: u64, size: u64) -> Option<GroupTree> {
        let is_all = self.start == Some(start) && self.end.checked_sub(start) == Some(size);
        // Of a lone group the hash is another one.
        let is_known = is_all && !self.is_broken && group_count(size) > 1;
        is_known.then(|| GroupTree::new(size, self.leaves.clone()))
    }
}

/// The tree over some bytes.
#[derive(PartialEq, Eq)]
pub(crate) struct GroupTree {
    levels: Vec<Vec<ChainingValue>>,
    root: ContentHash,
}

impl GroupTree {
    /// The tree over `size` bytes of which each group was given to [`hash_group`].
    ///
    /// # Panics
    /// If there is not one leaf for each group.
    pub(crate) fn new(size: u64, leaves: Vec<ChainingValue>) -> Self {
        assert_eq!(leaves.len() as u64, group_count(size), "each group has a leaf");
        match leaves[..] {
            [] => return Self { levels: Vec::new(), root: ContentHash::of(b"") },
            [only] => return Self { levels: Vec::new(), root: ContentHash::from_bytes(only) },
            _ => {}
        }
        let mut levels = vec![leaves];
        loop {
            let last = &levels[levels.len() - 1];
            if let [left, right] = &last[..] {
                let root = *merge_subtrees_root(left, right, Mode::Hash).as_bytes();
                return Self { levels, root: ContentHash::from_bytes(root) };
            }
            let merge = |pair: &[ChainingValue]| match pair {
                [left, right] => merge_subtrees_non_root(left, right, Mode::Hash),
                _ => pair[0],
            };
            levels.push(last.chunks(2).map(merge).collect());
        }
    }

    /// The ordinary BLAKE3 hash of all bytes.
    pub(crate) fn root(&self) -> ContentHash {
        self.root
    }

    /// All levels one behind the other, as they lie in a file.
    pub(crate) fn index(&self) -> Vec<u8> {
        self.levels.iter().flatten().flatten().copied().collect()
    }
}

/// That a group is part of some bytes: the hashes of its neighbours in the tree, from the bottom
/// up. With the root, which is trusted, it proves the group's bytes without any others.
///
/// # Examples
///
/// ```
/// # use pagefork_image::{ImageDraft, ImageLimits, ImageReader, Manifest, PageRuns, SavedInstance};
/// # let instance = SavedInstance { extents: vec![0..1 << 20], ..SavedInstance::default() };
/// # let manifest = Manifest { instances: vec![instance], ..Manifest::default() };
/// # let pages = PageRuns::new(vec![vec![(0, vec![7; 1 << 20])]]);
/// # let mut file = std::io::Cursor::new(Vec::new());
/// # ImageDraft::new(manifest, &pages).write(&mut file)?;
/// # let image = ImageReader::open(Box::new(file.into_inner()), &ImageLimits::default())?;
/// let (root, size) = (image.manifest().root, image.manifest().data_size);
/// let (mut bytes, proof) = (image.read_group(3)?, image.proof(3)?);
/// proof.verify(root, size, 3, &bytes)?;
/// bytes[0] ^= 1;
/// assert!(proof.verify(root, size, 3, &bytes).is_err());
/// # Ok::<(), pagefork_image::ImageError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GroupProof {
    /// The neighbours, from the bottom up, of levels on which there is one.
    pub neighbours: Vec<[u8; 32]>,
}

impl GroupProof {
    /// Where in an index of `size` bytes the neighbours of group `index` stand: byte offsets.
    pub(crate) fn places(size: u64, mut index: u64) -> impl Iterator<Item = u64> {
        let mut start = 0;
        level_counts(size).filter_map(move |count| {
            let neighbour = index ^ 1;
            let place = start + neighbour;
            (start, index) = (start + count, index / 2);
            (neighbour < count).then_some(place * ContentHash::SIZE as u64)
        })
    }

    /// Checks that `bytes` are group `index` of the `size` bytes that `root` is the hash of.
    ///
    /// # Errors
    /// [`ImageError::Damaged`] if they are not.
    pub fn verify(
        &self,
        root: ContentHash,
        size: u64,
        index: u64,
        bytes: &[u8],
    ) -> Result<(), ImageError> {
        let wrong = || ImageError::damaged(format!("group {index} has other bytes"));
        if index >= group_count(size) || bytes.len() as u64 != group_size(size, index) {
            return Err(wrong());
        }
        let mut value = hash_group(size, index, bytes);
        let mut neighbours = self.neighbours.iter();
        let mut place = index;
        for count in level_counts(size) {
            if place ^ 1 < count {
                let neighbour = neighbours.next().ok_or_else(wrong)?;
                let (left, right) = match place.is_multiple_of(2) {
                    true => (&value, neighbour),
                    false => (neighbour, &value),
                };
                value = match count {
                    2 => *merge_subtrees_root(left, right, Mode::Hash).as_bytes(),
                    _ => merge_subtrees_non_root(left, right, Mode::Hash),
                };
            }
            place /= 2;
        }
        match value == *root.as_bytes() && neighbours.next().is_none() {
            true => Ok(()),
            false => Err(wrong()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(size: u64) -> Vec<u8> {
        (0..size).map(|at| (at ^ (at >> 8) ^ (at >> 14).wrapping_mul(37)) as u8).collect()
    }

    fn tree(bytes: &[u8]) -> GroupTree {
        let size = bytes.len() as u64;
        let groups = bytes.chunks(GROUP_SIZE as usize).enumerate();
        let leaves = groups.map(|(index, group)| hash_group(size, index as u64, group)).collect();
        GroupTree::new(size, leaves)
    }

    /// Sizes around every shape of a tree of up to 40 groups.
    fn sizes() -> impl Iterator<Item = u64> {
        let of_groups = (0..40).flat_map(|count| [0, 1, 1024, 4096].map(|more| (count, more)));
        of_groups.map(|(count, more)| count * GROUP_SIZE + more)
    }

    #[test]
    fn the_root_is_the_ordinary_hash() {
        for size in sizes() {
            let bytes = bytes(size);
            let tree = tree(&bytes);
            assert_eq!(tree.root(), ContentHash::of(&bytes), "{size} bytes");
            assert_eq!(tree.index().len() as u64, index_size(size), "{size} bytes");
        }
    }

    #[test]
    fn each_group_is_proved_alone_and_no_other() {
        for size in sizes().filter(|size| *size > 0) {
            let bytes = bytes(size);
            let tree = tree(&bytes);
            let stored = tree.index();
            for (index, group) in bytes.chunks(GROUP_SIZE as usize).enumerate() {
                let index = index as u64;
                let neighbour = |place: u64| {
                    let place = place as usize;
                    stored[place..place + ContentHash::SIZE].try_into().unwrap()
                };
                let neighbours = GroupProof::places(size, index).map(neighbour).collect();
                let mut proof = GroupProof { neighbours };
                proof.verify(tree.root(), size, index, group).unwrap();
                assert!(proof.verify(tree.root(), size, index + 1, group).is_err());
                assert!(proof.verify(tree.root(), size, u64::MAX, group).is_err());
                assert!(proof.verify(tree.root(), size, index, &group[1..]).is_err());
                proof.neighbours.push([0; 32]);
                assert!(proof.verify(tree.root(), size, index, group).is_err());
                proof.neighbours.pop();
                if let Some(first) = proof.neighbours.first_mut() {
                    first[31] ^= 0x80;
                    assert!(proof.verify(tree.root(), size, index, group).is_err());
                    proof.neighbours.pop();
                    assert!(proof.verify(tree.root(), size, index, group).is_err());
                }
            }
        }
    }

    #[test]
    fn groups_that_came_in_order_make_the_tree_and_whatever_else_came_says_nothing() {
        const START: u64 = 4096;
        let part = GROUP_SIZE as usize * 3;
        for size in sizes() {
            let bytes = bytes(size);
            let mut coming = ComingGroups::default();
            let parts: Vec<(u64, &[u8])> =
                (START..).step_by(part).zip(bytes.chunks(part)).collect();
            parts.iter().for_each(|(at, bytes)| coming.take(*at, bytes));
            // What lies before.
            coming.take(64, &[1; 64]);
            coming.take(0, &[2; 64]);
            let found = coming.tree(START, size);
            assert_eq!(found.is_some(), group_count(size) > 1, "{size} bytes");
            assert!(found.is_none_or(|found| found == tree(&bytes)), "{size} bytes");
            assert!(coming.tree(START, size + 1).is_none());
            assert!(coming.tree(START + 1, size).is_none());
            if parts.len() < 3 {
                continue;
            }
            // Something came twice, otherwise than before perhaps; or not in order; or was cut elsewhere.
            let strange: [&[(u64, &[u8])]; 5] = [
                &[parts[0]],
                &[(START - 1, &[3; 2])],
                &[(START + size, &[])],
                &[(START + size + 1, &[4])],
                &[(START + size, &[5])],
            ];
            for more in strange {
                let mut coming = coming.clone();
                more.iter().for_each(|(at, bytes)| coming.take(*at, bytes));
                let is_nothing = more[0].1.is_empty() && size.is_multiple_of(GROUP_SIZE);
                assert_eq!(coming.tree(START, size).is_some(), is_nothing, "{size}: {more:?}");
            }
            let mut swapped = ComingGroups::default();
            [1, 0].into_iter().for_each(|part| swapped.take(parts[part].0, parts[part].1));
            parts[2..].iter().for_each(|(at, bytes)| swapped.take(*at, bytes));
            assert!(swapped.tree(START, size).is_none());
            let mut cut = ComingGroups::default();
            cut.take(START, &bytes[..100]);
            cut.take(START + 100, &bytes[100..]);
            assert!(cut.tree(START, size).is_none());
        }
    }
}
