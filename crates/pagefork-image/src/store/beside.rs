//! Deltas in memory beside a store that has their ancestors: for what is on its way from one process
//! to another, and is not to wait for a disk.

use std::io::{self, Cursor, Seek, SeekFrom, Write};
use std::sync::Arc;

use crate::base::error::ImageError;
use crate::chain::ImageChain;
use crate::file::draft::ImageDraft;
use crate::file::reader::ImageReader;
use crate::file::signature::TrustedKeys;
use crate::tree::ComingGroups;

use super::{ImageStore, StoredImage};

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
        self.save_beside_in_parts(draft, parent, Vec::new(), &mut |_, _| ())
    }

    /// As [`ImageStore::save_beside`], and shows each part as soon as it is written, so that it can be
    /// on its way while the next ones are hashed: where it lies among the bytes, and itself. What no
    /// part covers is zero. The part at 0 is the last one: who has that has all.
    ///
    /// The bytes are written into `room`, whose contents are dropped: memory that was asked for and touched
    /// before costs no time now.
    ///
    /// # Errors
    /// As [`ImageStore::save_beside`].
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_image::*;
    ///
    /// # let path = std::env::temp_dir().join(format!("pagefork-parts-{}", std::process::id()));
    /// let store = ImageStore::open(&path)?;
    /// let pages = PageRuns::default();
    /// let first = store.save(ImageDraft::new(Manifest::default(), &pages))?;
    /// let draft = first.chain().delta(Manifest { fuel: 1, ..Manifest::default() }, &pages)?;
    ///
    /// let (mut copy, mut last) = (Vec::new(), None);
    /// let mut show = |place: u64, part: &[u8]| {
    ///     let range = place as usize..place as usize + part.len();
    ///     copy.resize(copy.len().max(range.end), 0);
    ///     copy[range].copy_from_slice(part);
    ///     last = Some(place);
    /// };
    /// let (_, bytes) = store.save_beside_in_parts(draft, &first, Vec::new(), &mut show)?;
    /// assert_eq!((copy, last), (bytes.to_vec(), Some(0)));
    /// # std::fs::remove_dir_all(path).unwrap();
    /// # Ok::<(), ImageError>(())
    /// ```
    pub fn save_beside_in_parts(
        &self,
        draft: ImageDraft<'_>,
        parent: &StoredImage,
        mut room: Vec<u8>,
        show: &mut dyn FnMut(u64, &[u8]),
    ) -> Result<(StoredImage, Arc<Vec<u8>>), ImageError> {
        room.clear();
        let mut out = ShownBytes { bytes: Cursor::new(room), show };
        draft.with_limits(&self.limits).write(&mut out)?;
        let bytes = Arc::new(out.bytes.into_inner());
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
        self.open_beside_hashed(bytes, parent, keys, &ComingGroups::default())
    }

    /// As [`ImageStore::open_beside`], of bytes that were given to `coming` as they came, which are not hashed again
    /// if that was in order.
    ///
    /// # Errors
    /// As of [`ImageStore::open_beside`].
    ///
    /// # Examples
    ///
    /// See [`ComingGroups`].
    pub fn open_beside_hashed(
        &self,
        bytes: Arc<Vec<u8>>,
        parent: &StoredImage,
        keys: &TrustedKeys,
        coming: &ComingGroups,
    ) -> Result<StoredImage, ImageError> {
        let tip = ImageReader::open(Box::new(bytes), &self.limits)?;
        if !tip.signers().iter().any(|signer| keys.contains(signer)) {
            let signatures = tip.signers().len();
            return Err(ImageError::NotSigned { image: tip.hash(), signatures });
        }
        tip.verify_hashed(coming)?;
        self.chained(tip, parent)
    }

    fn chained(&self, tip: ImageReader, parent: &StoredImage) -> Result<StoredImage, ImageError> {
        let ancestors = parent.chain().images().iter().cloned();
        let images = std::iter::once(Arc::new(tip)).chain(ancestors).collect();
        Ok(StoredImage { chain: ImageChain::new(images, &self.limits)? })
    }
}

/// Bytes in memory, which are shown when they are written.
struct ShownBytes<'a> {
    bytes: Cursor<Vec<u8>>,
    show: &'a mut dyn FnMut(u64, &[u8]),
}

impl Write for ShownBytes<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let place = self.bytes.position();
        let count = self.bytes.write(bytes)?;
        (self.show)(place, &bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for ShownBytes<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.bytes.seek(to)
    }
}
