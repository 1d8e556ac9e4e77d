//! A directory of images, code images and names.
//!
//! ```text
//!   version         "1"
//!   lock            held by whoever opens or adds (shared, alone), and by collection (alone)
//!   images/HASH     images, by the hash of their manifest; a process that uses one has it locked
//!   code/HASH       code images, by the hash of their bytes; likewise
//!   names/NAME      the hash of an image
//!   unfinished/     files that are being written, locked by who writes them
//! ```
//!
//! A file gets its name when all of it is on the disk, and never changes after that. So whatever
//! happens while one is written, the store is whole. Locks are those of open files, which end with
//! the process, however it ends.

/// What is written and what it takes to be found later.
mod directory;
/// What nothing leads to is removed.
mod collect;
/// Names of images.
mod names;
/// Sending and receiving.
#[cfg(feature = "transport")]
mod exchange;
/// Steps of writing, for tests.
mod steps;
#[cfg(test)]
mod tests;

use std::fmt;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use crate::base::bytes::{FileBytes, ReadAt};
use crate::base::error::ImageError;
use crate::base::hash::ContentHash;
use crate::base::limits::{self, ImageLimits};
use crate::chain::ImageChain;
use crate::file::draft::ImageDraft;
use crate::file::plan;
use crate::file::reader::ImageReader;
use crate::file::signature::SecretKey;
use crate::tree::GROUP_SIZE;

use self::directory::{Directory, Kind};

pub use self::collect::CollectReport;

/// A directory that keeps images by what they are, with their parents and the code that they ran.
///
/// Images are verified when they come in, and believed from then on: only this user may write the
/// directory. Any number of threads and processes use it at the same time. What no name leads to and
/// nobody uses is garbage, which [`ImageStore::collect`] removes.
///
/// # Examples
///
/// ```
/// use pagefork_image::{ImageDraft, ImageStore, Manifest, PageRuns, SavedInstance};
///
/// # let path = std::env::temp_dir().join(format!("pagefork-store-{}", std::process::id()));
/// # let pages = PageRuns::new(vec![vec![(8192, vec![7; 4096])]]);
/// # let instance = SavedInstance { extents: vec![0..1 << 20], ..SavedInstance::default() };
/// # let manifest = Manifest { instances: vec![instance], ..Manifest::default() };
/// let store = ImageStore::open(&path)?;
/// let image = store.save(ImageDraft::new(manifest, &pages))?;
/// store.set_name("started", image.hash())?;
/// drop(image);
///
/// store.collect()?;
/// let image = store.load(store.find("started")?)?;
/// let mut bytes = [0; 4096];
/// image.chain().read(0, 8192, &mut bytes)?;
/// assert_eq!(bytes, [7; 4096]);
/// # std::fs::remove_dir_all(path).unwrap();
/// # Ok::<(), pagefork_image::ImageError>(())
/// ```
#[derive(Clone)]
pub struct ImageStore {
    directory: Arc<Directory>,
    limits: ImageLimits,
}

/// An image of a store with its ancestors, opened. As long as this, the chain or one of its
/// readers exists, no process collects what it needs. [`ImageStore`] has an example.
#[derive(Clone, Debug)]
pub struct StoredImage {
    chain: ImageChain,
}

impl StoredImage {
    /// The image's identity.
    pub fn hash(&self) -> ContentHash {
        self.chain.tip().hash()
    }

    /// The image and its ancestors.
    pub fn chain(&self) -> &ImageChain {
        &self.chain
    }
}

/// A code image of a store, opened. As long as this exists, no process collects it.
///
/// # Examples
///
/// ```
/// use pagefork_image::{ContentHash, ImageStore};
///
/// # let path = std::env::temp_dir().join(format!("pagefork-code-{}", std::process::id()));
/// let store = ImageStore::open(&path)?;
/// let code = store.save_code(b"code")?;
/// assert_eq!(code.hash(), ContentHash::of(b"code"));
/// assert_eq!(store.load_code(code.hash())?.size(), 4);
/// # std::fs::remove_dir_all(path).unwrap();
/// # Ok::<(), pagefork_image::ImageError>(())
/// ```
#[derive(Debug)]
pub struct StoredCode {
    hash: ContentHash,
    file: FileBytes,
    size: u64,
}

impl StoredCode {
    /// The hash of its bytes, which were checked when they came into the store.
    pub fn hash(&self) -> ContentHash {
        self.hash
    }

    /// Its file, which it is all of.
    pub fn file(&self) -> &File {
        self.file.file().expect("it is of a file")
    }

    /// Its bytes, at any place.
    pub fn bytes(&self) -> &dyn ReadAt {
        &self.file
    }

    /// Number of its bytes.
    pub fn size(&self) -> u64 {
        self.size
    }
}

impl ImageStore {
    /// Opens the store in a directory. It is made where there is none.
    ///
    /// # Errors
    /// [`ImageError::StoreRefused`] if others may write the directory, or it is something else;
    /// [`ImageError::Version`]; [`ImageError::Io`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ImageError> {
        Self::open_with(path, &ImageLimits::default())
    }

    /// The same with other limits for the images in it.
    ///
    /// # Errors
    /// As [`ImageStore::open`].
    pub fn open_with(path: impl AsRef<Path>, limits: &ImageLimits) -> Result<Self, ImageError> {
        let directory = Arc::new(Directory::open(path.as_ref())?);
        Ok(Self { directory, limits: limits.clone() })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// What images of it may have.
    pub fn limits(&self) -> &ImageLimits {
        &self.limits
    }

    /// Writes an image. It is there when this function returns, and not before.
    ///
    /// # Errors
    /// As [`ImageDraft::write`]; [`ImageError::NotFound`] if its parent is not in this store. The
    /// store is then as it was.
    pub fn save(&self, draft: ImageDraft<'_>) -> Result<StoredImage, ImageError> {
        let mut file = self.directory.begin()?;
        let written = draft.with_limits(&self.limits).write(&mut file)?;
        self.directory.commit_image(file, written.hash, written.manifest.parent, &self.limits)
    }

    /// Opens an image with its ancestors. None of its pages is read.
    ///
    /// # Errors
    /// [`ImageError::NotFound`]; as [`ImageReader::open`] and [`ImageChain::new`].
    pub fn load(&self, hash: ContentHash) -> Result<StoredImage, ImageError> {
        let _held = self.directory.lock_shared()?;
        self.directory.open_chain(hash, &self.limits)
    }

    /// Takes in an image from elsewhere, such as a path that a user gives. All of it is verified.
    ///
    /// # Errors
    /// As [`ImageReader::open`] and [`ImageReader::verify`]; [`ImageError::NotFound`] if its parent
    /// is not in this store.
    pub fn adopt(&self, bytes: impl ReadAt + 'static) -> Result<StoredImage, ImageError> {
        let foreign = ImageReader::open(Box::new(bytes), &self.limits)?;
        let mut file = self.directory.begin()?;
        // What is copied is verified, not what it is copied from, which may change meanwhile.
        let mut block = vec![0; GROUP_SIZE as usize];
        for start in (0..foreign.size()).step_by(GROUP_SIZE as usize) {
            let length = (foreign.size() - start).min(GROUP_SIZE) as usize;
            let block = &mut block[..length];
            foreign.read_raw(start, block)?;
            let is_last = start + length as u64 == foreign.size();
            match plan::is_zero(block) && !is_last {
                true => file.skip(length as u64)?,
                false => file.append(block)?,
            }
        }
        let copy = ImageReader::open(Box::new(file.bytes()?), &self.limits)?;
        copy.verify()?;
        let (hash, parent) = (copy.hash(), copy.manifest().parent);
        drop(copy);
        self.directory.commit_image(file, hash, parent, &self.limits)
    }

    /// Keeps a code image: once, for all images that need it.
    ///
    /// # Errors
    /// [`ImageError::TooLarge`]; [`ImageError::Io`].
    pub fn save_code(&self, bytes: &[u8]) -> Result<StoredCode, ImageError> {
        limits::check("a code image", bytes.len() as u64, self.limits.code_size)?;
        let hash = ContentHash::of(bytes);
        match self.load_code(hash) {
            Err(ImageError::NotFound { .. }) => {}
            other => return other,
        }
        let mut file = self.directory.begin()?;
        file.append(bytes)?;
        self.directory.commit_code(file, hash)
    }

    /// Opens a code image.
    ///
    /// # Errors
    /// [`ImageError::NotFound`]; [`ImageError::Io`].
    pub fn load_code(&self, hash: ContentHash) -> Result<StoredCode, ImageError> {
        let _held = self.directory.lock_shared()?;
        self.directory.open_code(hash)
    }

    /// Reads all of an image and its ancestors and checks them.
    ///
    /// # Errors
    /// As [`ImageStore::load`] and [`ImageReader::verify`].
    pub fn verify(&self, hash: ContentHash) -> Result<(), ImageError> {
        self.load(hash)?.chain.verify()
    }

    /// Reads all of a code image and checks it.
    ///
    /// # Errors
    /// [`ImageError::NotFound`]; [`ImageError::Damaged`]; [`ImageError::Io`].
    pub fn verify_code(&self, hash: ContentHash) -> Result<(), ImageError> {
        let code = self.load_code(hash)?;
        let mut hasher = blake3::Hasher::new();
        let mut block = vec![0; 64 << 10];
        let mut at = 0;
        while at < code.size {
            let length = (code.size - at).min(block.len() as u64) as usize;
            let block = &mut block[..length];
            let failed = ImageError::io("read a code image");
            code.file.read_exact_at(block, at).map_err(failed)?;
            hasher.update(block);
            at += length as u64;
        }
        match hasher.finalize().as_bytes() == hash.as_bytes() {
            true => Ok(()),
            false => Err(ImageError::damaged(format!("code image {hash} has another hash"))),
        }
    }

    /// Makes a full image of a delta. Its contents are verified on the way.
    ///
    /// # Errors
    /// As [`ImageStore::verify`] and [`ImageStore::save`].
    pub fn squash(
        &self,
        hash: ContentHash,
        signers: &[SecretKey],
    ) -> Result<StoredImage, ImageError> {
        let image = self.load(hash)?;
        image.chain.verify()?;
        self.save(image.chain.squash().sign_with(signers))
    }

    /// The hashes of all images, ascending.
    ///
    /// # Errors
    /// [`ImageError::Io`].
    pub fn images(&self) -> Result<Vec<ContentHash>, ImageError> {
        self.directory.list(Kind::Image)
    }

    /// The hashes of all code images, ascending.
    ///
    /// # Errors
    /// [`ImageError::Io`].
    pub fn codes(&self) -> Result<Vec<ContentHash>, ImageError> {
        self.directory.list(Kind::Code)
    }
}

impl fmt::Debug for ImageStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImageStore").field("path", &self.path()).finish_non_exhaustive()
    }
}
