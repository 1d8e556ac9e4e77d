//! What keeps images, wherever that is: a directory, or an object store.

use std::collections::{BTreeMap, BTreeSet};

use crate::base::bytes::ReadAt;
use crate::base::error::ImageError;
use crate::base::hash::ContentHash;
use crate::chain::ImageChain;
use crate::file::reader::ImageReader;

use super::collect::CollectReport;
use super::{ImageStore, StoredCode};

/// What keeps images by what they are, with their parents, their code and names.
///
/// [`ImageStore`] keeps them in a directory; other crates keep them elsewhere. What is put in is
/// verified on the way.
///
/// # Examples
///
/// ```
/// use pagefork_image::*;
///
/// # let path = std::env::temp_dir().join(format!("pagefork-copy-{}", std::process::id()));
/// let (here, there) = (ImageStore::open(path.join("a"))?, ImageStore::open(path.join("b"))?);
/// let image = here.save(ImageDraft::new(Manifest::default(), &PageRuns::default()))?;
/// copy_image(&here, &there, image.hash())?;
/// assert_eq!(ImageRepository::images(&there)?, [image.hash()]);
/// # std::fs::remove_dir_all(path).unwrap();
/// # Ok::<(), ImageError>(())
/// ```
pub trait ImageRepository {
    /// The hashes of all images, ascending.
    ///
    /// # Errors
    /// If what keeps them cannot be reached.
    fn images(&self) -> Result<Vec<ContentHash>, ImageError>;

    /// Opens an image with its ancestors. As long as the chain or one of its readers exists, no
    /// collection takes what it needs.
    ///
    /// # Errors
    /// [`ImageError::NotFound`]; as [`ImageReader::open`] and [`ImageChain::new`].
    fn open_chain(&self, hash: ContentHash) -> Result<ImageChain, ImageError>;

    /// Puts in a copy of one image. Its parent is there already.
    ///
    /// # Errors
    /// [`ImageError::Damaged`] if a byte of it was altered; [`ImageError::NotFound`] if its parent
    /// is not there; if what keeps images refuses it.
    fn put_image(&self, image: &ImageReader) -> Result<(), ImageError>;

    /// Opens a code image.
    ///
    /// # Errors
    /// [`ImageError::NotFound`]; if what keeps it cannot be reached.
    fn open_code(&self, hash: ContentHash) -> Result<Box<dyn ReadAt>, ImageError>;

    /// Puts in a copy of a code image.
    ///
    /// # Errors
    /// [`ImageError::Damaged`] if it has another hash; if what keeps it refuses it.
    fn put_code(&self, hash: ContentHash, bytes: &dyn ReadAt) -> Result<(), ImageError>;

    /// All names.
    ///
    /// # Errors
    /// If what keeps them cannot be reached.
    fn names(&self) -> Result<BTreeMap<String, ContentHash>, ImageError>;

    /// Gives an image a name, which may lead elsewhere so far.
    ///
    /// # Errors
    /// As [`ImageStore::set_name`].
    fn set_name(&self, name: &str, hash: ContentHash) -> Result<(), ImageError>;

    /// Takes a name away. Returns whether there was one.
    ///
    /// # Errors
    /// As [`ImageStore::remove_name`].
    fn remove_name(&self, name: &str) -> Result<bool, ImageError>;

    /// Removes what no name leads to and nobody uses.
    ///
    /// # Errors
    /// As [`ImageStore::collect`].
    fn collect(&self) -> Result<CollectReport, ImageError>;
}

/// Copies an image with its ancestors and their code, parents first. What is there already is not
/// copied.
///
/// # Errors
/// As the functions of [`ImageRepository`], which has an example. What was copied until then stays;
/// it is whole.
pub fn copy_image(
    from: &dyn ImageRepository,
    to: &dyn ImageRepository,
    hash: ContentHash,
) -> Result<(), ImageError> {
    copy_chain(&from.open_chain(hash)?, |code| from.open_code(code), to)
}

/// As [`copy_image`], of an image that is open; `open_code` gives its code.
///
/// # Errors
/// As of [`copy_image`].
///
/// # Examples
///
/// ```
/// use pagefork_image::{ImageDraft, ImageError, ImageStore, Manifest, PageRuns, copy_chain};
///
/// # let path = std::env::temp_dir().join(format!("pagefork-chain-{}", std::process::id()));
/// let (from, to) = (ImageStore::open(path.join("a"))?, ImageStore::open(path.join("b"))?);
/// let image = from.save(ImageDraft::new(Manifest::default(), &PageRuns::default()))?;
/// copy_chain(image.chain(), |code| Ok(from.load_code(code)?.into_bytes()), &to)?;
/// assert_eq!(to.images()?, [image.hash()]);
/// # std::fs::remove_dir_all(path).unwrap();
/// # Ok::<(), ImageError>(())
/// ```
pub fn copy_chain(
    chain: &ImageChain,
    open_code: impl Fn(ContentHash) -> Result<Box<dyn ReadAt>, ImageError>,
    to: &dyn ImageRepository,
) -> Result<(), ImageError> {
    let known: BTreeSet<ContentHash> = to.images()?.into_iter().collect();
    let mut done = BTreeSet::new();
    for image in chain.images().iter().rev() {
        for hash in image.manifest().kept_beside() {
            if !done.insert(hash) {
                continue;
            }
            match open_code(hash) {
                Ok(code) => to.put_code(hash, &*code)?,
                Err(ImageError::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        if !known.contains(&image.hash()) {
            to.put_image(image)?;
        }
    }
    Ok(())
}

/// Checks a name of an image: letters, digits and `.`, `_`, `-`, up to 128, a letter or digit
/// first, and no hash.
///
/// # Errors
/// [`ImageError::Invalid`] if it can be no name.
///
/// # Examples
///
/// ```
/// assert!(pagefork_image::check_name("python-3.14").is_ok());
/// assert!(pagefork_image::check_name("../images").is_err());
/// ```
pub fn check_name(name: &str) -> Result<(), ImageError> {
    const NAME_MAX: usize = 128;
    let is_inner = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let is_good = name.len() <= NAME_MAX
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(is_inner)
        && name.parse::<ContentHash>().is_err();
    match is_good {
        true => Ok(()),
        false => Err(ImageError::Invalid(format!(
            "{name:?} can be no name: letters, digits, `.`, `_` and `-` are allowed, up to \
             {NAME_MAX}, a letter or digit first, and it must be no hash"
        ))),
    }
}

impl ImageRepository for ImageStore {
    fn images(&self) -> Result<Vec<ContentHash>, ImageError> {
        Self::images(self)
    }

    fn open_chain(&self, hash: ContentHash) -> Result<ImageChain, ImageError> {
        Ok(self.load(hash)?.chain().clone())
    }

    fn put_image(&self, image: &ImageReader) -> Result<(), ImageError> {
        self.take_in(image).map(drop)
    }

    fn open_code(&self, hash: ContentHash) -> Result<Box<dyn ReadAt>, ImageError> {
        self.load_code(hash).map(StoredCode::into_bytes)
    }

    fn put_code(&self, hash: ContentHash, bytes: &dyn ReadAt) -> Result<(), ImageError> {
        self.take_in_code(hash, bytes).map(drop)
    }

    fn names(&self) -> Result<BTreeMap<String, ContentHash>, ImageError> {
        Self::names(self)
    }

    fn set_name(&self, name: &str, hash: ContentHash) -> Result<(), ImageError> {
        Self::set_name(self, name, hash)
    }

    fn remove_name(&self, name: &str) -> Result<bool, ImageError> {
        Self::remove_name(self, name)
    }

    fn collect(&self) -> Result<CollectReport, ImageError> {
        Self::collect(self)
    }
}
