//! Handing over an instance, so that at no time two nodes own it.

/// The side that has the instance.
pub(crate) mod source;
/// The side that is to have it.
pub(crate) mod target;
