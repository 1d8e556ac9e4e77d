//! The head of an image: all that must be known of it before its first page is there.

use std::fmt;

use crate::base::error::ImageError;
use crate::base::hash::ContentHash;
use crate::base::limits::ImageLimits;
use crate::file::header::ImageHeader;
use crate::file::manifest::Manifest;
use crate::file::reader::ImageReader;
use crate::file::signature::{self, PublicKey, TrustedKeys};
use crate::tree::{self, GroupProof};

/// Manifest and signatures of an image whose pages lie elsewhere. With it, each group can be proved
/// as it comes, in any order and from anybody.
///
/// # Examples
///
/// ```
/// use pagefork_image::*;
///
/// let instance = SavedInstance { extents: vec![0..1 << 20], ..SavedInstance::default() };
/// let manifest = Manifest { instances: vec![instance], ..Manifest::default() };
/// let pages = PageRuns::new(vec![vec![(0, vec![7; 1 << 20])]]);
/// let mut file = std::io::Cursor::new(Vec::new());
/// ImageDraft::new(manifest, &pages).write(&mut file)?;
/// let limits = ImageLimits::default();
/// let image = ImageReader::open(Box::new(file.into_inner()), &limits)?;
///
/// // One side has the image.
/// let sent = ImageHead::read(&image)?;
/// let (manifest, signatures) = (sent.manifest_bytes().to_vec(), sent.signature_bytes().to_vec());
/// let (group, proof) = (image.read_group(3)?, image.proof(3)?);
/// // The other one knows its hash.
/// let head = ImageHead::decode(image.hash(), manifest, signatures, &limits)?;
/// head.verify_group(3, &group, &proof)?;
/// assert!(head.verify_group(4, &group, &proof).is_err());
/// # Ok::<(), ImageError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct ImageHead {
    hash: ContentHash,
    manifest_bytes: Vec<u8>,
    signature_bytes: Vec<u8>,
    manifest: Manifest,
    signers: Vec<PublicKey>,
}

impl ImageHead {
    /// The head of an image that is here.
    ///
    /// # Errors
    /// [`ImageError::Io`].
    pub fn read(image: &ImageReader) -> Result<Self, ImageError> {
        let (manifest_bytes, signature_bytes) = image.head()?;
        Ok(Self {
            hash: image.hash(),
            manifest_bytes,
            signature_bytes,
            manifest: image.manifest().clone(),
            signers: image.signers().to_vec(),
        })
    }

    /// The head of the image that is known as `hash`, from bytes that may be anything.
    ///
    /// # Errors
    /// [`ImageError::TooLarge`], [`ImageError::Version`]; [`ImageError::Damaged`] if the manifest
    /// has another hash or means what cannot be, or a signature is wrong.
    pub fn decode(
        hash: ContentHash,
        manifest_bytes: Vec<u8>,
        signature_bytes: Vec<u8>,
        limits: &ImageLimits,
    ) -> Result<Self, ImageError> {
        let mut header = ImageHeader {
            manifest_size: manifest_bytes.len() as u64,
            signatures_size: signature_bytes.len() as u64,
            data_size: 0,
            manifest_hash: hash,
        };
        header.check_limits(limits)?;
        if ContentHash::of(&manifest_bytes) != hash {
            return Err(ImageError::damaged(format!("the manifest is not that of image {hash}")));
        }
        let manifest = Manifest::decode(&manifest_bytes, limits)?;
        header.data_size = manifest.data_size;
        header.check_limits(limits)?;
        let signers = signature::check(&signature_bytes, hash)?;
        Ok(Self { hash, manifest_bytes, signature_bytes, manifest, signers })
    }

    /// The image's identity.
    pub fn hash(&self) -> ContentHash {
        self.hash
    }

    /// What the image is.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The manifest as it stands in a file.
    pub fn manifest_bytes(&self) -> &[u8] {
        &self.manifest_bytes
    }

    /// The signatures as they stand in a file.
    pub fn signature_bytes(&self) -> &[u8] {
        &self.signature_bytes
    }

    /// Whose signatures the image has. Each was checked.
    pub fn signers(&self) -> &[PublicKey] {
        &self.signers
    }

    /// What its file begins with.
    pub(crate) fn header(&self) -> ImageHeader {
        ImageHeader {
            manifest_size: self.manifest_bytes.len() as u64,
            signatures_size: self.signature_bytes.len() as u64,
            data_size: self.manifest.data_size,
            manifest_hash: self.hash,
        }
    }

    /// As [`ImageReader::check_trust`].
    ///
    /// # Errors
    /// [`ImageError::Untrusted`] for an image with live frames that none of `keys` has signed.
    pub fn check_trust(&self, keys: &TrustedKeys) -> Result<(), ImageError> {
        signature::check_trust(&self.manifest, self.hash, &self.signers, keys)
    }

    /// Number of groups that the data are.
    pub fn group_count(&self) -> u64 {
        tree::group_count(self.manifest.data_size)
    }

    /// Number of bytes of group `index`, from 0; zero if there is no such group.
    pub fn group_size(&self, index: u64) -> u64 {
        match index < self.group_count() {
            true => tree::group_size(self.manifest.data_size, index),
            false => 0,
        }
    }

    /// What stands for group `index` in the tree, if these are its bytes. Of other places the same bytes
    /// have other ones.
    ///
    /// # Errors
    /// [`ImageError::Damaged`] if the group has not that many bytes, or there is no such group.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_image::*;
    ///
    /// let instance = SavedInstance { extents: vec![0..1 << 20], ..SavedInstance::default() };
    /// let manifest = Manifest { instances: vec![instance], ..Manifest::default() };
    /// let pages = PageRuns::new(vec![vec![(0, vec![7; 1 << 20])]]);
    /// let mut file = std::io::Cursor::new(Vec::new());
    /// ImageDraft::new(manifest, &pages).write(&mut file)?;
    /// let image = ImageReader::open(Box::new(file.into_inner()), &ImageLimits::default())?;
    /// let head = ImageHead::read(&image)?;
    ///
    /// let leaves = image.leaves(3..5)?;
    /// assert_eq!(leaves, [head.leaf(3, &[7; 16384])?, head.leaf(4, &[7; 16384])?]);
    /// assert_ne!(leaves[0], leaves[1]);
    /// # Ok::<(), ImageError>(())
    /// ```
    pub fn leaf(&self, index: u64, bytes: &[u8]) -> Result<ContentHash, ImageError> {
        if bytes.is_empty() || bytes.len() as u64 != self.group_size(index) {
            return Err(ImageError::damaged(format!("group {index} has not so many bytes")));
        }
        let leaf = tree::hash_group(self.manifest.data_size, index, bytes);
        Ok(ContentHash::from_bytes(leaf))
    }

    /// Checks that `bytes` are group `index`.
    ///
    /// # Errors
    /// [`ImageError::Damaged`] if they are not.
    pub fn verify_group(
        &self,
        index: u64,
        bytes: &[u8],
        proof: &GroupProof,
    ) -> Result<(), ImageError> {
        proof.verify(self.manifest.root, self.manifest.data_size, index, bytes)
    }
}

impl fmt::Debug for ImageHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImageHead").field("hash", &self.hash).finish_non_exhaustive()
    }
}
