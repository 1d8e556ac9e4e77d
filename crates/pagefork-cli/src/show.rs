//! Tables, sizes and names on a terminal.

use std::fmt::Write;

use pagefork::{ExternType, OneLine};
use pagefork_layout::page::WASM_PAGE_SIZE;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// A number of bytes for people: exact where it is a whole number of a unit.
pub(crate) fn size(bytes: u64) -> String {
    for (unit, name) in [(GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")] {
        if bytes >= unit {
            let whole = bytes / unit;
            return match bytes.is_multiple_of(unit) {
                true => format!("{whole} {name}"),
                false => format!("{:.1} {name}", bytes as f64 / unit as f64),
            };
        }
    }
    format!("{bytes} B")
}

/// An offset from the base, in hexadecimal with its sign.
pub(crate) fn offset(from_base: i64) -> String {
    let sign = if from_base < 0 { "-" } else { "" };
    format!("{sign}{:#x}", from_base.unsigned_abs())
}

/// A name out of a module, as a part of one line.
pub(crate) fn name(name: &str) -> String {
    OneLine(name).to_string()
}

/// Lists in messages have at most this many elements.
const LIST_MAX: usize = 50;

/// The first elements of a list, and a line about the number of the others, if there are any.
pub(crate) fn first_of<T>(list: &mut Vec<T>) -> Option<String> {
    let others = list.len().saturating_sub(LIST_MAX);
    list.truncate(LIST_MAX);
    (others > 0).then(|| format!("... and {others} more"))
}

/// A number of things: `1 page`, `2 pages`.
pub(crate) fn count(count: u64, thing: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {thing}{plural}")
}

/// The kind of something that is imported or exported.
pub(crate) fn extern_kind(ty: &ExternType) -> &'static str {
    match ty {
        ExternType::Func(_) => "function",
        ExternType::Global(_) => "global",
        ExternType::Table(_) => "table",
        ExternType::Memory(_) => "memory",
        ExternType::Tag(_) => "tag",
    }
}

/// The type of something that is imported or exported, without its kind.
pub(crate) fn extern_type(ty: &ExternType) -> String {
    match ty {
        ExternType::Func(ty) | ExternType::Tag(ty) => name(&ty.to_string()),
        ExternType::Global(ty) => {
            let mutable = if ty.mutable { "mutable" } else { "constant" };
            format!("{}, {mutable}", ty.content)
        }
        ExternType::Table(ty) => {
            let first = count(ty.minimum, "element");
            let most = ty.maximum.map_or("can grow".to_owned(), |most| format!("at most {most}"));
            format!("{}, {first}, {most}{}", ty.element, wide(ty.table64))
        }
        ExternType::Memory(ty) => {
            let first = count(ty.minimum, "page");
            let bytes = size(ty.minimum.saturating_mul(WASM_PAGE_SIZE));
            let most = ty.maximum.map_or("can grow".to_owned(), |most| format!("at most {most}"));
            format!("{first} ({bytes}), {most}{}", wide(ty.memory64))
        }
    }
}

fn wide(is_indexed_by_64_bits: bool) -> &'static str {
    if is_indexed_by_64_bits { ", 64-bit" } else { "" }
}

/// Columns are as wide as their widest cell, but no wider than this: one long name must
/// not widen a hundred thousand rows.
const WIDTH_MAX: usize = 72;

/// Rows whose columns are aligned, those in `right` to the right.
pub(crate) fn table(rows: &[Vec<String>], right: &[usize]) -> String {
    let width_of = |text: &str| text.chars().count();
    let mut widths = Vec::new();
    for row in rows {
        widths.resize(widths.len().max(row.len()), 0);
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(width_of(cell)).min(WIDTH_MAX);
        }
    }
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let (space, gap) = (widths[column], if column == 0 { "  " } else { "   " });
            let _ = match right.contains(&column) {
                true => write!(line, "{gap}{cell:>space$}"),
                false => write!(line, "{gap}{cell:<space$}"),
            };
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_exact_where_they_can_be() {
        assert_eq!(size(0), "0 B");
        assert_eq!(size(1023), "1023 B");
        assert_eq!(size(64 << 10), "64 KiB");
        assert_eq!(size((1 << 20) + 1), "1.0 MiB");
        assert_eq!(size(6 << 29), "3 GiB");
        assert_eq!(offset(-4096), "-0x1000");
        assert_eq!(offset(16), "0x10");
    }

    #[test]
    fn names_cannot_command_the_terminal() {
        assert_eq!(name("it's\u{1b}[2J\n"), "it's\\u{1b}[2J\\n");
        assert_eq!(name("grüße"), "grüße");
    }

    #[test]
    fn columns_are_aligned() {
        let rows = [vec!["a".into(), "10".into()], vec!["bcd".into(), "9".into()]];
        assert_eq!(table(&rows, &[1]), "  a     10\n  bcd    9\n");
    }

    #[test]
    fn a_long_cell_makes_one_row_long() {
        let mut rows = vec![vec!["a".into(), "b".into()]; 100];
        rows.push(vec!["x".repeat(500), "y".into()]);
        let text = table(&rows, &[]);
        assert!(text.len() < 100 * (WIDTH_MAX + 10) + 600, "{}", text.len());
        assert!(text.ends_with("xxx   y\n"));
    }
}
