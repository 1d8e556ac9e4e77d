//! What can go wrong with images, and what to do about it.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};

use crate::base::hash::ContentHash;

/// Why an image could not be read, written, kept or removed.
///
/// # Examples
///
/// ```
/// use pagefork_image::{ImageError, ImageLimits, ImageReader};
///
/// let text = Box::new(b"no image, but a text that is longer than a header. ".repeat(3));
/// let error = ImageReader::open(text, &ImageLimits::default()).unwrap_err();
/// assert!(matches!(error, ImageError::NotAnImage));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// The system refused something.
    #[error("could not {action}: {error}")]
    Io {
        /// What was tried.
        action: String,
        /// Why it failed.
        #[source]
        error: io::Error,
    },
    /// The bytes begin otherwise than an image.
    #[error("this is no image of Pagefork: its first bytes are others")]
    NotAnImage,
    /// An image of another version.
    #[error(
        "the {what} has version {found}, and this build reads version {supported}: use the build \
         that made it, or make it anew"
    )]
    Version {
        /// Of what the version is.
        what: &'static str,
        /// The version that was found.
        found: u32,
        /// The version that can be read.
        supported: u32,
    },
    /// Bytes that were cut, altered or never right.
    #[error("the image is damaged: {0}")]
    Damaged(String),
    /// More than is accepted.
    #[error("{what} of {size} exceeds the limit of {limit}: raise it if the source is trusted")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// How large it is.
        size: u64,
        /// The limit.
        limit: u64,
    },
    /// What was asked for cannot be.
    #[error("{0}")]
    Invalid(String),
    /// An image with live frames that no trusted key has signed.
    #[error(
        "image {image} has frames of running code, and none of its {signatures} signatures is of a \
         trusted key: such an image is as powerful as native code. Trust the key of who made it, or \
         use an image of a guest that is not running"
    )]
    Untrusted {
        /// The image.
        image: ContentHash,
        /// How many have signed it.
        signatures: usize,
    },
    /// An image that came with machine code, and that no trusted key has signed.
    #[error(
        "image {image} comes with machine code, and none of its {signatures} signatures is of a \
         trusted key: trust the key of who made it, or have it signed there"
    )]
    NotSigned {
        /// The image.
        image: ContentHash,
        /// How many have signed it.
        signatures: usize,
    },
    /// Nothing has this hash.
    #[error("the store has no {what} {hash}")]
    NotFound {
        /// What was looked for.
        what: &'static str,
        /// Its hash.
        hash: ContentHash,
    },
    /// Another image has the name.
    #[error(
        "the name {name:?} is taken: image {image} has it; give another one, or remove it there"
    )]
    NameTaken {
        /// The name.
        name: String,
        /// The image that has it.
        image: ContentHash,
    },
    /// Something that cannot be removed yet.
    #[error("{what} {hash} is in use: {why}")]
    InUse {
        /// What was to be removed.
        what: &'static str,
        /// Its hash.
        hash: ContentHash,
        /// By whom or what.
        why: String,
    },
    /// A directory or file that cannot be trusted with images.
    #[error("{path} cannot be a store of images: {why}")]
    StoreRefused {
        /// The directory or file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// What gives the contents failed.
    #[error("the contents could not be read: {0}")]
    Source(#[source] Box<dyn Error + Send + Sync>),
}

impl ImageError {
    /// The error of a source of contents.
    pub fn source_failed(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Source(error.into())
    }

    pub(crate) fn io(action: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let action = action.into();
        move |error| Self::Io { action, error }
    }

    pub(crate) fn of_path(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |error| Self::Io { action: format!("{action} {}", path.display()), error }
    }

    pub(crate) fn damaged(what: impl Into<String>) -> Self {
        Self::Damaged(what.into())
    }
}
