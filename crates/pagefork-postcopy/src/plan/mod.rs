//! Which groups to ask for, and in what order.

/// Layers: what they are and what they came to.
pub(crate) mod layer;
/// Guesses from the places of faults.
pub(crate) mod guess;
/// How many groups a round trip brings.
pub(crate) mod rate;
/// How many groups the background may have asked for.
pub(crate) mod window;
/// All layers of an image together.
pub(crate) mod planner;
