//! What travels: messages, their bytes, and what they carry.

/// Bytes of messages on streams.
pub(crate) mod frame;
/// Messages.
pub(crate) mod message;
/// What source and target of a migration tell each other.
pub(crate) mod migration;
/// Contents of groups as they travel.
pub(crate) mod body;
/// Who may have which image.
pub(crate) mod token;
