//! When something is of a type that an import declares.

use pagefork_layout::module::{GlobalType, MemoryType, TableType};

pub(crate) fn global_matches(found: GlobalType, wanted: GlobalType) -> bool {
    found.mutable == wanted.mutable
        && found.content.is_subtype(wanted.content)
        // What both may write must be of the same type for both.
        && (!wanted.mutable || found.content == wanted.content)
}

pub(crate) fn table_matches(found: &TableType, wanted: &TableType) -> bool {
    found.element == wanted.element
        && found.table64 == wanted.table64
        && limits_match(found.minimum, found.maximum, wanted.minimum, wanted.maximum)
}

pub(crate) fn memory_matches(found: &MemoryType, wanted: &MemoryType) -> bool {
    found.memory64 == wanted.memory64
        && limits_match(found.minimum, found.maximum, wanted.minimum, wanted.maximum)
}

/// Whether something of the present size `minimum` and the maximum `maximum` is
/// within what an import declares.
fn limits_match(
    minimum: u64,
    maximum: Option<u64>,
    wanted_minimum: u64,
    wanted_maximum: Option<u64>,
) -> bool {
    let below = |wanted: u64| maximum.is_some_and(|maximum| maximum <= wanted);
    minimum >= wanted_minimum && wanted_maximum.is_none_or(below)
}
