//! What happens: guests are entered and left, instances are made, stores are reset.

pub(crate) mod enter;
pub(crate) mod signals;
mod signal_return;
pub(crate) mod services;
pub(crate) mod throw;
pub(crate) mod instantiate;
pub(crate) mod limiter;
pub(crate) mod epoch;
pub(crate) mod call_hook;
pub(crate) mod reset;
pub(crate) mod contents;
pub(crate) mod free_pages;
pub(crate) mod suspend;
pub(crate) mod ahead;
pub(crate) mod freeze;
pub(crate) mod save;
pub(crate) mod load;
pub(crate) mod manifest;
pub(crate) mod image_pages;
pub(crate) mod code_store;
pub(crate) mod task;
pub(crate) mod backtrace;
pub(crate) mod core_dump;
#[cfg(feature = "testing")]
pub(crate) mod poison;
