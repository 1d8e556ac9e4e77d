//! What every stage uses: options, errors, limits of cost, the machine.

pub(crate) mod error;
pub(crate) mod options;
pub(crate) mod progress;
pub(crate) mod effort;
pub(crate) mod target;
pub(crate) mod threads;
