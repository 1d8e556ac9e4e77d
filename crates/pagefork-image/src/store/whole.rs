//! Full images that were made of deltas, each once: they stay as long as the deltas do.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

use crate::base::error::ImageError;
use crate::base::hash::ContentHash;

use super::directory::read_short;
use super::{ImageStore, StoredImage};

impl ImageStore {
    /// A full image with the contents of another one: that itself, if it is full; else what was
    /// made of it before, or is made now and kept as long as the other one. What is made is verified.
    ///
    /// # Errors
    /// As [`ImageStore::load`]; if it is made, as [`ImageStore::squash`].
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_image::*;
    ///
    /// # let path = std::env::temp_dir().join(format!("pagefork-whole-{}", std::process::id()));
    /// let store = ImageStore::open(&path)?;
    /// let parent = store.save(ImageDraft::new(Manifest::default(), &PageRuns::default()))?;
    /// let (manifest, pages) = (Manifest { fuel: 1, ..Manifest::default() }, PageRuns::default());
    /// let delta = store.save(parent.chain().delta(manifest, &pages)?)?;
    /// let full = store.load_whole(delta.hash())?;
    /// assert_eq!((full.chain().images().len(), full.chain().tip().manifest().fuel), (1, 1));
    /// assert_eq!(store.load_whole(delta.hash())?.hash(), full.hash());
    /// # std::fs::remove_dir_all(path).unwrap();
    /// # Ok::<(), ImageError>(())
    /// ```
    pub fn load_whole(&self, hash: ContentHash) -> Result<StoredImage, ImageError> {
        let held = self.directory.lock_shared()?;
        let image = self.directory.open_chain(hash, &self.limits)?;
        if image.chain().tip().manifest().parent.is_none() {
            return Ok(image);
        }
        if let Some(full) = read_hash(self.whole_path(hash))? {
            match self.directory.open_chain(full, &self.limits) {
                Err(ImageError::NotFound { .. }) => {}
                found => return found,
            }
        }
        drop(held);
        let full = self.squash(hash, &[])?;
        let mut file = self.directory.begin()?;
        file.append(format!("{}\n", full.hash()).as_bytes())?;
        file.sync()?;
        let _held = self.directory.lock_alone()?;
        self.directory.make_part(DIRECTORY)?;
        file.rename(&self.whole_path(hash))?;
        self.directory.sync_directory(&self.path().join(DIRECTORY))?;
        Ok(full)
    }

    /// The full image of each delta of which one was made. The caller holds the store's lock.
    pub(super) fn wholes(&self) -> Result<BTreeMap<ContentHash, ContentHash>, ImageError> {
        let path = self.path().join(DIRECTORY);
        let failed = || ImageError::of_path("list", &path);
        let entries = match fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(BTreeMap::new()),
            Err(error) => return Err(failed()(error)),
        };
        let mut wholes = BTreeMap::new();
        for entry in entries {
            let path = entry.map_err(failed())?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            if let Some(delta) = name.and_then(|name| name.parse().ok()) {
                // One that was damaged leads to nothing, and is written again.
                wholes.insert(delta, read_hash(path)?.unwrap_or_default());
            }
        }
        Ok(wholes)
    }

    /// Where the full image of a delta is named.
    pub(super) fn whole_path(&self, delta: ContentHash) -> PathBuf {
        self.path().join(DIRECTORY).join(delta.to_string())
    }
}

/// What names the full images: files by the hashes of deltas.
const DIRECTORY: &str = "whole";

fn read_hash(path: PathBuf) -> Result<Option<ContentHash>, ImageError> {
    match read_short(&path) {
        Ok(text) => Ok(text.strip_suffix('\n').and_then(|text| text.parse().ok())),
        Err(ImageError::Io { error, .. }) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
