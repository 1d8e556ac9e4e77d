//! What every stage uses: options, errors, limits of cost, the machine.

pub(crate) mod error;
pub(crate) mod options;
#[cfg(feature = "cranelift")]
pub(crate) mod progress;
#[cfg(feature = "cranelift")]
pub(crate) mod effort;
pub(crate) mod target;
pub(crate) mod image;
pub(crate) mod module;
pub(crate) mod threads;
