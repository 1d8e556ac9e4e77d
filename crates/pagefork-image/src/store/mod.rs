//! A directory of images, code images and names.
//!
//! ```text
//!   version         "1"
//!   lock            held by whoever opens or adds (shared, alone), and by collection (alone)
//!   images/HASH     images, by the hash of their manifest; a process that uses one has it locked
//!   code/HASH       code images, by the hash of their bytes; likewise
//!   names/NAME      the hash of an image
//!   whole/HASH      the hash of the full image that was made of a delta
//!   touched/HASH    which groups runs of an image have touched first; the image need not be here
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
/// Full images that were made of deltas.
mod whole;
/// Deltas in memory.
mod beside;
/// What they share with what they come from.
mod share;
/// Images that come group by group.
pub(crate) mod unfinished;
/// What runs have touched.
mod touched;
/// What keeps images, wherever that is.
pub(crate) mod repository;
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

use crate::base::bytes::{FileBytes, ReadAt, read_code};
use crate::base::error::ImageError;
use crate::base::hash::ContentHash;
use crate::base::limits::{self, ImageLimits};
use crate::chain::ImageChain;
use crate::file::draft::ImageDraft;
use crate::file::manifest::Manifest;
use crate::file::plan;
use crate::file::reader::ImageReader;
use crate::file::signature::{self, SecretKey};
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

    /// The same, with all that keeps the code image in the store.
    pub fn into_bytes(self) -> Box<dyn ReadAt> {
        Box::new(self.file)
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
        self.take_in(&ImageReader::open(Box::new(bytes), &self.limits)?)
    }

    /// Takes in an image whose pages came one by one, of which there is no file: of
    /// [`ImageReader::of_head`]. All of it is verified.
    ///
    /// # Errors
    /// [`ImageError::Damaged`] if pages are not what the manifest says; [`ImageError::Io`];
    /// [`ImageError::NotFound`] if its parent is not in this store. The store is then as it was.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_image::*;
    ///
    /// # let path = std::env::temp_dir().join(format!("pagefork-collected-{}", std::process::id()));
    /// let (here, there) = (ImageStore::open(path.join("a"))?, ImageStore::open(path.join("b"))?);
    /// let instance = SavedInstance { extents: vec![0..1 << 16], ..SavedInstance::default() };
    /// let manifest = Manifest { instances: vec![instance], ..Manifest::default() };
    /// let pages = PageRuns::new(vec![vec![(0, vec![7; 4096])]]);
    /// let image = there.save(ImageDraft::new(manifest, &pages))?;
    ///
    /// let head = ImageHead::read(image.chain().tip())?;
    /// let group = image.chain().tip().read_group(0)?;
    /// let kept = here.adopt_pages(&ImageReader::of_head(&head, Box::new(group)))?;
    /// assert_eq!(kept.hash(), image.hash());
    /// here.verify(kept.hash())?;
    /// # std::fs::remove_dir_all(path).unwrap();
    /// # Ok::<(), ImageError>(())
    /// ```
    pub fn adopt_pages(&self, image: &ImageReader) -> Result<StoredImage, ImageError> {
        let mut file = self.directory.begin()?;
        let (_, signatures) = image.head()?;
        image.write_signed(&signatures, &mut file)?;
        let (hash, parent) = (image.hash(), image.manifest().parent);
        self.directory.commit_image(file, hash, parent, &self.limits)
    }

    /// Copies an image. What is copied is verified, not what is there before or after.
    fn take_in(&self, foreign: &ImageReader) -> Result<StoredImage, ImageError> {
        let mut file = self.directory.begin()?;
        let mut left = foreign.size();
        for part in foreign.parts() {
            for block in part?.chunks(GROUP_SIZE as usize) {
                left -= block.len() as u64;
                // The last byte gives the file its length.
                match plan::is_zero(block) && left > 0 {
                    true => file.skip(block.len() as u64)?,
                    false => file.append(block)?,
                }
            }
        }
        let (hash, parent) = (foreign.hash(), foreign.manifest().parent);
        self.directory.commit_image(file, hash, parent, &self.limits)
    }

    /// Keeps a code image, or the bytes of a module, from which code can be made for other machines: once, for all
    /// images that [name](crate::Manifest::codes) it. What none of them names goes with the next collection.
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
        self.directory.commit_code(file, hash, &self.limits)
    }

    /// Copies a code image and verifies it on the way.
    fn take_in_code(
        &self,
        hash: ContentHash,
        bytes: &dyn ReadAt,
    ) -> Result<StoredCode, ImageError> {
        let size = bytes.size().map_err(ImageError::io("ask for the size of a code image"))?;
        limits::check("a code image", size, self.limits.code_size)?;
        match self.load_code(hash) {
            Err(ImageError::NotFound { .. }) => {}
            other => return other,
        }
        let mut file = self.directory.begin()?;
        read_code(hash, bytes, |part| file.append(part))?;
        self.directory.commit_code(file, hash, &self.limits)
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
        read_code(hash, self.load_code(hash)?.bytes(), |_| Ok(()))
    }

    /// Makes a full image of a delta. Its contents are verified on the way. What it has as the full
    /// image that the delta comes from takes no room on the disk, where the file system can share
    /// blocks.
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
        let draft = || image.chain.squash().sign_with(signers);
        match self.squash_sharing(&image.chain, draft())? {
            Some(full) => Ok(full),
            None => self.save(draft()),
        }
    }

    /// Makes a full image that shares blocks with the root of its chain; `None` if the file system
    /// cannot.
    fn squash_sharing(
        &self,
        chain: &ImageChain,
        draft: ImageDraft<'_>,
    ) -> Result<Option<StoredImage>, ImageError> {
        let mut file = self.directory.begin()?;
        let failed = || ImageError::io("begin a file");
        if !share::can_share(file.file(), chain).map_err(failed())? {
            return Ok(None);
        }
        let mut runs = Vec::new();
        let written = draft.with_limits(&self.limits).write_but(&mut file, |manifest, start| {
            runs = share::runs(chain, manifest, start);
            runs.iter().map(share::SharedRun::place).collect()
        })?;
        if share::share(file.file(), chain, &runs).is_err() {
            return Ok(None);
        }
        // What the system has put there was not written by us.
        let bytes = FileBytes::new(file.file().try_clone().map_err(failed())?);
        ImageReader::open(Box::new(bytes), &self.limits)?.verify()?;
        self.directory.commit_image(file, written.hash, None, &self.limits).map(Some)
    }

    /// Adds signatures to an image, which nobody uses meanwhile.
    ///
    /// # Errors
    /// [`ImageError::InUse`] if somebody uses it; as [`ImageStore::verify`].
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_image::*;
    ///
    /// # let path = std::env::temp_dir().join(format!("pagefork-sign-{}", std::process::id()));
    /// let store = ImageStore::open(&path)?;
    /// let image = store.save(ImageDraft::new(Manifest::default(), &PageRuns::default()))?.hash();
    /// let key = SecretKey::from_seed([7; 32]); // Random bytes, in earnest.
    /// store.sign(image, &[key.clone()])?;
    /// assert_eq!(store.load(image)?.chain().tip().signers(), [key.public()]);
    /// # std::fs::remove_dir_all(path).unwrap();
    /// # Ok::<(), ImageError>(())
    /// ```
    pub fn sign(&self, hash: ContentHash, signers: &[SecretKey]) -> Result<(), ImageError> {
        let mut file = self.directory.begin()?;
        let image = self.load(hash)?;
        let tip = image.chain.tip();
        let parent = tip.manifest().parent;
        let new: Vec<u8> = signers.iter().flat_map(|key| key.sign(hash)).collect();
        tip.write_signed(&signature::union(&tip.head()?.1, &new), &mut file)?;
        drop(image);
        self.directory.commit_image(file, hash, parent, &self.limits).map(drop)
    }

    /// The hashes of all images, ascending.
    ///
    /// # Errors
    /// [`ImageError::Io`].
    pub fn images(&self) -> Result<Vec<ContentHash>, ImageError> {
        self.directory.list(Kind::Image)
    }

    /// Full images whose manifests are wanted, among the `count` images that came last, those first that came
    /// last. Each is opened when it is its turn, and those that cannot be are left out.
    ///
    /// # Errors
    /// [`ImageError::Io`] if the store cannot be listed.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_image::*;
    ///
    /// # let path = std::env::temp_dir().join(format!("pagefork-newest-{}", std::process::id()));
    /// let store = ImageStore::open(&path)?;
    /// let image = store.save(ImageDraft::new(Manifest::default(), &PageRuns::default()))?;
    /// let mut newest = store.newest_full_images(8, |manifest| manifest.instances.is_empty())?;
    /// assert_eq!(newest.next().map(|found| found.hash()), Some(image.hash()));
    /// assert!(store.newest_full_images(0, |_| true)?.next().is_none());
    /// # std::fs::remove_dir_all(path).unwrap();
    /// # Ok::<(), ImageError>(())
    /// ```
    pub fn newest_full_images<'a>(
        &'a self,
        count: usize,
        is_wanted: impl Fn(&Manifest) -> bool + 'a,
    ) -> Result<impl Iterator<Item = StoredImage> + 'a, ImageError> {
        let newest = self.directory.list_newest(Kind::Image, count)?.into_iter();
        Ok(newest.filter_map(move |hash| {
            let _held = self.directory.lock_shared().ok()?;
            let tip = self.directory.open_image(hash, &self.limits).ok()?;
            if tip.manifest().parent.is_some() || !is_wanted(tip.manifest()) {
                return None;
            }
            let chain = ImageChain::new(vec![Arc::new(tip)], &self.limits).ok()?;
            Some(StoredImage { chain })
        }))
    }

    /// The hashes of all code images and modules, ascending.
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
