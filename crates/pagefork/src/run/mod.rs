//! What happens: guests are entered and left, instances are made, stores are reset.

/// From the host to the guest and back.
pub(crate) mod enter;
/// Traps that the hardware raises.
pub(crate) mod signals;
/// What the runtime does for guests.
pub(crate) mod services;
/// Exceptions on their way to a handler.
pub(crate) mod throw;
/// Making instances, in the specification's order.
pub(crate) mod instantiate;
/// Stores as at first.
pub(crate) mod reset;
/// What an instance holds, as references and as an image.
pub(crate) mod contents;
/// Suspended guests as pages.
pub(crate) mod suspend;
/// Capturing backtraces.
pub(crate) mod backtrace;
/// What a guest was when it trapped, as a file.
pub(crate) mod core_dump;
/// Slots that are overwritten on purpose.
pub(crate) mod poison;
