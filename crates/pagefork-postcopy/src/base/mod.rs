//! What all of the crate uses.

/// When something happens.
pub(crate) mod moment;
/// Why a connection ends.
pub(crate) mod error;
/// How much a peer may ask.
pub(crate) mod limits;
