//! One image: its bytes and what they mean.

/// What is to be written, and from where.
pub(crate) mod draft;
/// Writing data, index and header.
pub(crate) mod assemble;
/// Which pages a file has, and where.
pub(crate) mod plan;
/// Copying an image, checked on the way.
pub(crate) mod parts;
/// Reading an image.
pub(crate) mod reader;
/// All of an image but its pages.
pub(crate) mod head;
/// The manifest.
pub(crate) mod manifest;
/// Who else has an image.
pub(crate) mod holder;
/// Checking the shape of a manifest.
pub(crate) mod shape;
/// Keys and signatures.
pub(crate) mod signature;
/// The first bytes.
pub(crate) mod header;
