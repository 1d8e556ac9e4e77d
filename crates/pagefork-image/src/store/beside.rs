//! Deltas in memory beside a store that has their ancestors: for what is on its way from one process
//! to another, and is not to wait for a disk.

use std::io::Cursor;
use std::sync::Arc;

use crate::base::error::ImageError;
use crate::chain::ImageChain;
use crate::file::draft::ImageDraft;
use crate::file::reader::ImageReader;
use crate::file::signature::TrustedKeys;

use super::{ImageStore, StoredImage};

/// Bytes for which there is room at once.
const ROOM: usize = 8 << 20;

impl ImageStore {
    /// Writes a delta of `parent` into memory. Nothing of it is in the store: who wants that
    /// [adopts](ImageStore::adopt) the bytes, which are returned with it.
    ///
    /// # Errors
    /// As [`ImageDraft::write`]; [`ImageError::Invalid`] if it is no delta of `parent`.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_image::*;
    ///
    /// # let path = std::env::temp_dir().join(format!("pagefork-beside-{}", std::process::id()));
    /// let (here, there) = (ImageStore::open(path.join("a"))?, ImageStore::open(path.join("b"))?);
    /// let pages = PageRuns::default();
    /// let key = SecretKey::from_seed([7; 32]); // Random bytes, in earnest.
    /// let first = here.save(ImageDraft::new(Manifest::default(), &pages).sign_with(&[key.clone()]))?;
    /// there.import(&here.export(&[first.hash()], Vec::new(), 1)?[..])?;
    ///
    /// let draft = first.chain().delta(Manifest { fuel: 1, ..Manifest::default() }, &pages)?;
    /// let (delta, bytes) = here.save_beside(draft.sign_with(&[key.clone()]), &first)?;
    /// assert_eq!(here.images()?, [first.hash()]);
    ///
    /// // Another process, which trusts the key and has the parent.
    /// let (first, keys) = (there.load(first.hash())?, TrustedKeys::from_iter([key.public()]));
    /// let found = there.open_beside(bytes, &first, &keys)?;
    /// assert_eq!((found.hash(), there.images()?.len()), (delta.hash(), 1));
    /// # std::fs::remove_dir_all(path).unwrap();
    /// # Ok::<(), ImageError>(())
    /// ```
    pub fn save_beside(
        &self,
        draft: ImageDraft<'_>,
        parent: &StoredImage,
    ) -> Result<(StoredImage, Arc<Vec<u8>>), ImageError> {
        // Most are no larger, and room that is never used costs nothing.
        let mut bytes = Cursor::new(Vec::with_capacity(ROOM));
        draft.with_limits(&self.limits).write(&mut bytes)?;
        let bytes = Arc::new(bytes.into_inner());
        let tip = ImageReader::open(Box::new(Arc::clone(&bytes)), &self.limits)?;
        Ok((self.chained(tip, parent)?, bytes))
    }

    /// A delta of `parent` in memory, from somebody whose code is not to be run: one of `keys` has to
    /// have signed it. All of it is verified.
    ///
    /// # Errors
    /// As [`ImageReader::open`] and [`ImageReader::verify`]; [`ImageError::NotSigned`];
    /// [`ImageError::Invalid`] if it is no delta of `parent`.
    ///
    /// # Examples
    ///
    /// See [`ImageStore::save_beside`].
    pub fn open_beside(
        &self,
        bytes: Arc<Vec<u8>>,
        parent: &StoredImage,
        keys: &TrustedKeys,
    ) -> Result<StoredImage, ImageError> {
        let tip = ImageReader::open(Box::new(bytes), &self.limits)?;
        if !tip.signers().iter().any(|signer| keys.contains(signer)) {
            let signatures = tip.signers().len();
            return Err(ImageError::NotSigned { image: tip.hash(), signatures });
        }
        tip.verify()?;
        self.chained(tip, parent)
    }

    fn chained(&self, tip: ImageReader, parent: &StoredImage) -> Result<StoredImage, ImageError> {
        let ancestors = parent.chain().images().iter().cloned();
        let images = std::iter::once(Arc::new(tip)).chain(ancestors).collect();
        Ok(StoredImage { chain: ImageChain::new(images, &self.limits)? })
    }
}
