//! Types and segments in words.

use pagefork_layout::module::{ConstExpr, Item, SegmentMode};

/// An entity by kind and index.
pub(super) fn item(item: Item) -> String {
    match item {
        Item::Func(index) => format!("function {index}"),
        Item::Global(index) => format!("global {index}"),
        Item::Table(index) => format!("table {index}"),
        Item::Memory(index) => format!("memory {index}"),
        Item::Tag(index) => format!("tag {index}"),
    }
}

/// The mode of a segment whose target is a `target`.
pub(super) fn mode(mode: &SegmentMode, target: &str) -> String {
    match mode {
        SegmentMode::Active { target: index, offset } => {
            format!("copied to {target} {index} at {}", place(offset))
        }
        SegmentMode::Passive => "passive".to_owned(),
        SegmentMode::Declared => "declared".to_owned(),
    }
}

fn place(offset: &ConstExpr) -> String {
    match offset {
        ConstExpr::Bits(bits) => format!("{bits:#x}"),
        ConstExpr::Global(index) => format!("what global {index} says"),
        _ => "a computed place".to_owned(),
    }
}
