//! Images that come group by group, in any order.

use std::fmt;
use std::sync::Arc;

use crate::base::error::ImageError;
use crate::file::assemble::DataWriter;
use crate::file::head::ImageHead;
use crate::tree::{ChainingValue, GroupTree};

use super::directory::TempFile;
use super::{ImageStore, StoredImage};

/// An image of which the head is known, and whose groups come in any order: they are written into a file of a store that
/// nobody looks for before all are there. Dropped before that, nothing of it stays.
///
/// # Examples
///
/// ```
/// use std::sync::Arc;
///
/// use pagefork_image::*;
///
/// # let path = std::env::temp_dir().join(format!("pagefork-unfinished-{}", std::process::id()));
/// let (here, there) = (ImageStore::open(path.join("a"))?, ImageStore::open(path.join("b"))?);
/// let instance = SavedInstance { extents: vec![0..1 << 16], ..SavedInstance::default() };
/// let manifest = Manifest { instances: vec![instance], ..Manifest::default() };
/// let pages = PageRuns::new(vec![vec![(0, vec![7; 1 << 16])]]);
/// let image = there.save(ImageDraft::new(manifest, &pages))?;
///
/// let head = Arc::new(ImageHead::read(image.chain().tip())?);
/// let mut unfinished = here.begin_image(&head)?;
/// for group in (0..head.group_count()).rev() {
///     unfinished.put(group, &image.chain().tip().read_group(group)?)?;
/// }
/// assert_eq!(unfinished.finish()?.hash(), image.hash());
/// here.verify(image.hash())?;
/// # std::fs::remove_dir_all(path).unwrap();
/// # Ok::<(), ImageError>(())
/// ```
pub struct UnfinishedImage {
    store: ImageStore,
    head: Arc<ImageHead>,
    data: DataWriter<TempFile>,
    /// What stands for each group that is here.
    leaves: Vec<Option<ChainingValue>>,
}

impl ImageStore {
    /// Begins with an image whose groups come later. Its parent, if it has one, has to be here when it is finished.
    ///
    /// # Errors
    /// [`ImageError::Io`].
    ///
    /// # Examples
    ///
    /// See [`UnfinishedImage`].
    pub fn begin_image(&self, head: &Arc<ImageHead>) -> Result<UnfinishedImage, ImageError> {
        let header = head.header();
        let file = self.directory.begin()?;
        let data = DataWriter::new(file, header.data_start(), header.data_size);
        let leaves = vec![None; head.group_count() as usize];
        Ok(UnfinishedImage { store: self.clone(), head: Arc::clone(head), data, leaves })
    }
}

impl UnfinishedImage {
    /// Writes a group, the first time that it comes. Whoever gives it has [proved](ImageHead::verify_group) it, or learns
    /// at the end that it is wrong.
    ///
    /// # Errors
    /// [`ImageError::Damaged`] if there is no such group, or it has another size; [`ImageError::Io`].
    ///
    /// # Examples
    ///
    /// See [`UnfinishedImage`].
    pub fn put(&mut self, group: u64, bytes: &[u8]) -> Result<(), ImageError> {
        if group >= self.head.group_count() || self.head.group_size(group) != bytes.len() as u64 {
            return Err(ImageError::damaged(format!(
                "it has no group {group} of {} bytes",
                bytes.len()
            )));
        }
        if self.leaves[group as usize].is_none() {
            self.leaves[group as usize] = Some(self.data.put(group, bytes)?);
        }
        Ok(())
    }

    /// Gives the image its name, now that all of it is here.
    ///
    /// # Errors
    /// [`ImageError::Damaged`] if a group is missing, or is not what the manifest says; [`ImageError::NotFound`] if its
    /// parent is not in this store; [`ImageError::Io`]. The store is then as it was.
    ///
    /// # Examples
    ///
    /// See [`UnfinishedImage`].
    pub fn finish(self) -> Result<StoredImage, ImageError> {
        let Self { store, head, data, leaves } = self;
        let missing = leaves.iter().filter(|leaf| leaf.is_none()).count();
        let (header, manifest) = (head.header(), head.manifest());
        let Some(leaves) = leaves.into_iter().collect::<Option<Vec<_>>>() else {
            return Err(ImageError::damaged(format!("{missing} of its groups are missing")));
        };
        let tree = GroupTree::new(header.data_size, leaves);
        if tree.root() != manifest.root {
            return Err(ImageError::damaged("its pages have another hash than its manifest says"));
        }
        let (before, signatures) = (head.manifest_bytes(), head.signature_bytes());
        let file = data.finish(&header, before, signatures, &tree)?;
        store.directory.commit_image(file, head.hash(), manifest.parent, &store.limits)
    }
}

impl fmt::Debug for UnfinishedImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnfinishedImage").field("image", &self.head.hash()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::hash::ContentHash;
    use crate::file::draft::{ImageDraft, PageRuns};
    use crate::file::manifest::{Manifest, SavedInstance};
    use crate::tree::GROUP_SIZE;

    #[test]
    fn only_what_is_whole_and_right_gets_a_name_and_of_the_rest_nothing_stays() {
        let path = std::env::temp_dir().join(format!("pagefork-unfinished-{}", std::process::id()));
        let [here, there] =
            ["here", "there"].map(|name| ImageStore::open(path.join(name)).unwrap());
        // A page, a hole, and a last group that is short and zero.
        let instance = SavedInstance {
            extents: vec![0..5 << 14, 1 << 20..(1 << 20) + 4096],
            ..<_>::default()
        };
        let manifest = Manifest { instances: vec![instance], ..Manifest::default() };
        let pages = PageRuns::new(vec![vec![(4096, vec![7; 4096]), (3 << 14, vec![9; 4096])]]);
        let image = there.save(ImageDraft::new(manifest, &pages)).unwrap();
        let head = Arc::new(ImageHead::read(image.chain().tip()).unwrap());
        let groups: Vec<_> = (0..head.group_count())
            .map(|group| image.chain().tip().read_group(group).unwrap())
            .collect();
        assert!(groups.len() > 3);
        let files = || std::fs::read_dir(path.join("here/unfinished")).unwrap().count();
        let begun = |order: &[usize]| {
            let mut unfinished = here.begin_image(&head).unwrap();
            for group in order {
                unfinished.put(*group as u64, &groups[*group]).unwrap();
            }
            unfinished
        };
        let count = groups.len();
        let all: Vec<usize> = (0..count).rev().collect();

        let damaged = |failed: Result<StoredImage, ImageError>| {
            assert!(matches!(failed.unwrap_err(), ImageError::Damaged(_)));
            assert_eq!((here.images().unwrap().len(), files()), (0, 0));
        };
        damaged(begun(&all[1..]).finish());
        // What comes behind it does not make it right: zeros are not written.
        let (mut wrong, zeros) = (
            begun(&all[..1]),
            groups.iter().position(|group| group[..] == [0; GROUP_SIZE as usize]),
        );
        wrong.put(zeros.unwrap() as u64, &[1; GROUP_SIZE as usize]).unwrap();
        groups.iter().enumerate().for_each(|(at, group)| wrong.put(at as u64, group).unwrap());
        damaged(wrong.finish());
        let mut unfinished = begun(&all[..2]);
        assert!(unfinished.put(count as u64, &groups[0]).is_err());
        assert!(unfinished.put(0, &groups[0][1..]).is_err());
        assert_eq!(files(), 1);
        drop(unfinished);
        assert_eq!(files(), 0);

        let mut twice = all.clone();
        twice.extend([0, 2]);
        assert_eq!(begun(&twice).finish().unwrap().hash(), image.hash());
        here.verify(image.hash()).unwrap();
        let same = |store: &ImageStore| {
            let name = ContentHash::to_string(&image.hash());
            std::fs::read(path.join(store.path().file_name().unwrap()).join("images").join(name))
                .unwrap()
        };
        assert!(same(&here) == same(&there), "the files differ");
        std::fs::remove_dir_all(path).unwrap();
    }
}
