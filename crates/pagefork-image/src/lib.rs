//! Instances of Pagefork as files.
//!
//! An image file holds what instances are at one moment: their pages, and a *manifest* that says
//! where the pages belong and what the host kept. Its identity is the hash of the manifest, which
//! has the root of a hash tree over all pages. So a name of 32 bytes stands for every byte, and
//! any 16 KiB can be checked alone. `docs/IMAGE.md` draws the bytes.
//!
//! The crate knows pages and hashes, and nothing of WebAssembly or of how memory is mapped: bytes
//! in, bytes out. It checks the *shape* of an image; whether the words in it make sense for code
//! is for the runtime to check.
//!
//! ```text
//!   store       a directory of images, code and names; who uses what; collection
//!     |
//!   transport   images as one compressed stream
//!     |
//!   chain       a delta with its ancestors: contents, squash, difference
//!     |
//!   file        header, manifest, signatures; reading and writing one image
//!     |
//!   tree        hashes over groups of 16 KiB, and their proofs
//!     |
//!   base        errors, hashes, limits, access to bytes
//! ```
//!
//! # Examples
//!
//! ```
//! use pagefork_image::{ImageDraft, ImageLimits, ImageReader, Manifest, PageRuns, SavedInstance};
//!
//! // One instance that covers 1 MiB, of which one page is not zero.
//! let instance = SavedInstance { extents: vec![0..1 << 20], ..SavedInstance::default() };
//! let manifest = Manifest { instances: vec![instance], ..Manifest::default() };
//! let pages = PageRuns::new(vec![vec![(8192, vec![7; 4096])]]);
//! let mut file = std::io::Cursor::new(Vec::new());
//! let written = ImageDraft::new(manifest, &pages).write(&mut file)?;
//!
//! let image = ImageReader::open(Box::new(file.into_inner()), &ImageLimits::default())?;
//! assert_eq!(image.hash(), written.hash);
//! assert_eq!(image.manifest().instances[0].spans[0].slot(), 8192..12288);
//! image.verify()?;
//! # Ok::<(), pagefork_image::ImageError>(())
//! ```

#![forbid(unsafe_code)]
// Lists of one range are meant.
#![allow(clippy::single_range_in_vec_init)]

/// A directory of images, code images and names.
pub(crate) mod store;
/// Images as one compressed stream.
#[cfg(feature = "transport")]
pub(crate) mod transport;
/// A delta with its ancestors.
pub(crate) mod chain;
/// One image: header, manifest, signatures, pages.
pub(crate) mod file;
/// Hashes over groups of pages.
pub(crate) mod tree;
/// Errors, hashes, limits, access to bytes.
pub(crate) mod base;

pub use pagefork_layout::page::PAGE_SIZE;

pub use crate::base::bytes::{FileBytes, ReadAt, read_code};
pub use crate::base::error::ImageError;
pub use crate::base::hash::ContentHash;
pub use crate::base::limits::ImageLimits;
pub use crate::chain::ImageChain;
pub use crate::chain::overlay::{OverlayContents, OverlayRun};
pub use crate::file::draft::{ImageDraft, PageRuns, PageSource, WrittenImage};
pub use crate::file::head::ImageHead;
pub use crate::file::holder::{SavedHolder, check_holders};
pub use crate::file::manifest::{
    Attachment, FrameTarget, Manifest, SavedCode, SavedFrameWord, SavedHostFunction, SavedInstance,
    SavedReference, SavedSpan, SavedSuspension,
};
pub use crate::file::parts::ImageParts;
pub use crate::file::plan::SPANS_PER_EXTENT_MAX;
pub use crate::file::reader::ImageReader;
pub use crate::file::signature::{PublicKey, SecretKey, TrustedKeys};
pub use crate::store::repository::{ImageRepository, check_name, copy_chain, copy_image};
pub use crate::store::unfinished::UnfinishedImage;
pub use crate::store::{CollectReport, ImageStore, StoredCode, StoredImage};
#[cfg(feature = "transport")]
pub use crate::transport::receive::{ReceivedItem, receive};
#[cfg(feature = "transport")]
pub use crate::transport::send::StreamWriter;
pub use crate::tree::{ComingGroups, GROUP_SIZE, GroupProof, group_count};
