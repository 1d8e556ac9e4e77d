//! Sending images of a store as one stream, and receiving them.

use std::collections::BTreeSet;
use std::io::{Read, Write};

use crate::base::error::ImageError;
use crate::base::hash::ContentHash;
use crate::file::signature::TrustedKeys;
use crate::transport::receive::{self, ReceivedItem};
use crate::transport::send::StreamWriter;

use super::directory::{Kind, TempFile};
use super::{ImageStore, StoredImage};

impl ImageStore {
    /// Writes images with their ancestors, and the code images and modules that the store has for them, into a
    /// stream. All of it is verified on the way. `level` is zstd's, from 1 to 22.
    ///
    /// # Errors
    /// [`ImageError::NotFound`]; [`ImageError::Damaged`] if a byte was altered in the store; what
    /// `out` fails with.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_image::*;
    ///
    /// # let path = std::env::temp_dir().join(format!("pagefork-export-{}", std::process::id()));
    /// let (here, there) = (ImageStore::open(path.join("a"))?, ImageStore::open(path.join("b"))?);
    /// let image = here.save(ImageDraft::new(Manifest::default(), &PageRuns::default()))?;
    /// let stream = here.export(&[image.hash()], Vec::new(), 3)?;
    /// let received = there.import(&stream[..])?;
    /// assert_eq!(received[0].hash(), image.hash());
    /// # std::fs::remove_dir_all(path).unwrap();
    /// # Ok::<(), ImageError>(())
    /// ```
    pub fn export<W: Write>(
        &self,
        images: &[ContentHash],
        out: W,
        level: i32,
    ) -> Result<W, ImageError> {
        let mut stream = StreamWriter::new(out, level)?;
        let (mut sent, mut sent_code) = (BTreeSet::new(), BTreeSet::new());
        for hash in images {
            let image = self.load(*hash)?;
            for part in image.chain().images().iter().rev() {
                if !sent.insert(part.hash()) {
                    continue;
                }
                for hash in part.manifest().kept_beside() {
                    if !sent_code.insert(hash) {
                        continue;
                    }
                    match self.load_code(hash) {
                        Ok(code) => stream.code(code.hash(), code.bytes())?,
                        Err(ImageError::NotFound { .. }) => {}
                        Err(error) => return Err(error),
                    }
                }
                stream.image(part)?;
            }
        }
        stream.finish()
    }

    /// Takes in all images and code images of a stream, or none. All of it is verified. Returns the
    /// images in the order of the stream, parents first.
    ///
    /// # Errors
    /// As [`receive`](crate::receive); [`ImageError::NotFound`] if the parent of an image is neither
    /// in the stream nor in the store.
    pub fn import(&self, input: impl Read) -> Result<Vec<StoredImage>, ImageError> {
        let items = receive::receive(input, &self.limits, || self.directory.begin())?;
        self.take_in_items(items)
    }

    /// As [`import`](Self::import), of a stream from somebody whose code is not to be run: takes in
    /// only images that one of `keys` has signed, with their ancestors and the code images that
    /// they name. A signature stands for these, since the manifest has their hashes.
    ///
    /// # Errors
    /// As [`import`](Self::import); [`ImageError::NotSigned`] if an image is neither signed nor the
    /// ancestor of one that is; [`ImageError::Damaged`] if no image names a code image.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_image::*;
    ///
    /// # let path = std::env::temp_dir().join(format!("pagefork-signed-{}", std::process::id()));
    /// let (here, there) = (ImageStore::open(path.join("a"))?, ImageStore::open(path.join("b"))?);
    /// let key = SecretKey::from_seed([7; 32]); // Random bytes, in earnest.
    /// let pages = PageRuns::default();
    /// let draft = ImageDraft::new(Manifest::default(), &pages).sign_with(&[key.clone()]);
    /// let stream = here.export(&[here.save(draft)?.hash()], Vec::new(), 3)?;
    ///
    /// let refused = there.import_signed(&stream[..], &TrustedKeys::default()).unwrap_err();
    /// assert!(matches!(refused, ImageError::NotSigned { signatures: 1, .. }));
    /// assert!(there.images()?.is_empty());
    /// there.import_signed(&stream[..], &TrustedKeys::from_iter([key.public()]))?;
    /// # std::fs::remove_dir_all(path).unwrap();
    /// # Ok::<(), ImageError>(())
    /// ```
    pub fn import_signed(
        &self,
        input: impl Read,
        keys: &TrustedKeys,
    ) -> Result<Vec<StoredImage>, ImageError> {
        let items = receive::receive(input, &self.limits, || self.directory.begin())?;
        check_signed(&items, keys)?;
        self.take_in_items(items)
    }

    fn take_in_items(
        &self,
        items: Vec<ReceivedItem<TempFile>>,
    ) -> Result<Vec<StoredImage>, ImageError> {
        let mut coming = BTreeSet::new();
        let mut parents = Vec::new();
        for item in &items {
            match item {
                ReceivedItem::Code { file, .. } => file.seal()?,
                ReceivedItem::Image { hash, file, parent, .. } => {
                    file.seal()?;
                    coming.insert(*hash);
                    parents.extend(*parent);
                }
            }
        }
        let held = self.directory.lock_alone()?;
        let is_there =
            |hash: &ContentHash| coming.contains(hash) || self.directory.has(Kind::Image, *hash);
        if let Some(hash) = parents.into_iter().find(|parent| !is_there(parent)) {
            return Err(ImageError::NotFound { what: "parent image", hash });
        }
        let mut hashes = Vec::new();
        for item in items {
            match item {
                ReceivedItem::Code { hash, file } => {
                    self.directory.name(file, Kind::Code, hash, &self.limits)?;
                }
                ReceivedItem::Image { hash, file, .. } => {
                    self.directory.name(file, Kind::Image, hash, &self.limits)?;
                    hashes.push(hash);
                }
            }
        }
        let open = |hash: ContentHash| self.directory.open_chain(hash, &self.limits);
        let images = hashes.into_iter().map(open).collect();
        drop(held);
        self.directory.record(Kind::Code)?;
        self.directory.record(Kind::Image)?;
        images
    }
}

/// Checks that a trusted signature stands for each item. Parents come before their children.
fn check_signed<F>(items: &[ReceivedItem<F>], keys: &TrustedKeys) -> Result<(), ImageError> {
    let mut ancestors = BTreeSet::new();
    let mut named = BTreeSet::<ContentHash>::new();
    for item in items.iter().rev() {
        let ReceivedItem::Image { hash, parent, signers, codes, .. } = item else { continue };
        if !ancestors.contains(hash) && !signers.iter().any(|signer| keys.contains(signer)) {
            return Err(ImageError::NotSigned { image: *hash, signatures: signers.len() });
        }
        ancestors.extend(*parent);
        named.extend(codes);
    }
    let is_strange = |item: &ReceivedItem<F>| match item {
        ReceivedItem::Code { hash, .. } => !named.contains(hash),
        ReceivedItem::Image { .. } => false,
    };
    match items.iter().any(is_strange) {
        true => Err(ImageError::damaged("the stream has a code image that no image in it names")),
        false => Ok(()),
    }
}
