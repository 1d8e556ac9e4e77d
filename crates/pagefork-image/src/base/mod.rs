//! What all of the crate uses.

/// Reading bytes at any place.
pub(crate) mod bytes;
/// What can go wrong.
pub(crate) mod error;
/// Hashes of contents.
pub(crate) mod hash;
/// How much is accepted.
pub(crate) mod limits;
