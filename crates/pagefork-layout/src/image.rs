//! A module's initial image: the bytes that tables, state and memory start with.

/// The bytes that an instance starts with: what differs from zero in its tables,
/// state and memory, as runs placed relative to the base.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct InitialImage {
    /// Runs of bytes: (offset from the base, bytes), ascending, without overlap.
    pub runs: Vec<(i64, Vec<u8>)>,
}
