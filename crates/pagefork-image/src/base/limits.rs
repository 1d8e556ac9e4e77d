//! How much of an image is accepted before anything is allocated for it.

use crate::base::error::ImageError;

/// What an image may have at most. All of it is checked before memory or space is taken for it,
/// so that a hostile image costs no more than these limits allow.
///
/// # Examples
///
/// ```
/// use pagefork_image::{ImageDraft, ImageError, ImageLimits, ImageReader, Manifest, PageRuns};
///
/// let mut file = std::io::Cursor::new(Vec::new());
/// ImageDraft::new(Manifest::default(), &PageRuns::default()).write(&mut file)?;
/// let limits = ImageLimits { manifest_size: 10, ..ImageLimits::default() };
/// let refused = ImageReader::open(Box::new(file.into_inner()), &limits).unwrap_err();
/// assert!(matches!(refused, ImageError::TooLarge { limit: 10, .. }));
/// # Ok::<(), ImageError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ImageLimits {
    /// Bytes of the manifest: 64 MiB by default.
    pub manifest_size: u64,
    /// Bytes of pages and attachments in one file, holes included: 64 GiB by default. Checking an
    /// image holds 64 bytes in memory for 16 KiB of these.
    pub data_size: u64,
    /// Signatures of an image: 16 by default.
    pub signatures: usize,
    /// Images of a chain, the full one included: 64 by default.
    pub chain_length: usize,
    /// Images and code images in one stream: 4,096 by default.
    pub stream_items: usize,
    /// Bytes of a code image: 1 GiB by default.
    pub code_size: u64,
}

impl Default for ImageLimits {
    fn default() -> Self {
        Self {
            manifest_size: 64 << 20,
            data_size: 64 << 30,
            signatures: 16,
            chain_length: 64,
            stream_items: 4096,
            code_size: 1 << 30,
        }
    }
}

/// # Errors
/// [`ImageError::TooLarge`] if `size` is beyond `limit`.
pub(crate) fn check(what: &'static str, size: u64, limit: u64) -> Result<(), ImageError> {
    match size <= limit {
        true => Ok(()),
        false => Err(ImageError::TooLarge { what, size, limit }),
    }
}
