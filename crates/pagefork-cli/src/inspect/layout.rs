//! A drawing of an instance's slot.

use std::fmt::Write;
use std::ops::Range;

use pagefork_compiler::{CompiledModule, initial_image};
use pagefork_layout::link;
use pagefork_layout::module::ModuleInfo;
use pagefork_layout::page::WASM_PAGE_SIZE;
use pagefork_layout::slot::{MemoryPlace, SlotLayout};
use pagefork_layout::state::HEADER_SIZE;

use crate::show;

/// A zone of a slot, as it is drawn.
struct DrawnZone {
    /// Slot offsets, in bytes.
    range: Range<u64>,
    name: String,
    /// The kind of its pages.
    pages: &'static str,
    parts: Vec<ZonePart>,
}

/// Something in a zone.
struct ZonePart {
    /// Offset from the base, in bytes.
    offset: i64,
    size: u64,
    name: String,
}

/// Draws the slot of a module's instances, low addresses first.
pub(super) fn draw(module: &CompiledModule, behind_code: &[u8]) -> String {
    let (info, layout) = (&module.info, &module.layout);
    let zones = zones(info, layout);
    let from_base = |offset: u64| offset as i64 - layout.base as i64;
    let mut text = String::new();
    let _ = writeln!(
        text,
        "  {} of address space; offsets count from the base",
        show::size(layout.size)
    );
    text += &image(module, behind_code);

    let mut rows: Vec<BoxRow> = Vec::new();
    for zone in &zones {
        rows.push(if zone.range.start == layout.base { BoxRow::Base } else { BoxRow::Line });
        let size = show::size(zone.range.end - zone.range.start);
        let offset = show::offset(from_base(zone.range.start));
        rows.push(BoxRow::Cells([offset, size, zone.name.clone(), zone.pages.to_owned()]));
        for part in &zone.parts {
            let (offset, size) = (show::offset(part.offset), show::size(part.size));
            rows.push(BoxRow::Cells([offset, size, format!("  {}", part.name), String::new()]));
        }
    }
    rows.push(BoxRow::Line);
    text + &boxed(&rows)
}

enum BoxRow {
    Line,
    /// The line that everything is counted from.
    Base,
    Cells([String; 4]),
}

/// A box around rows, with lines between the zones.
fn boxed(rows: &[BoxRow]) -> String {
    let mut widths = [0; 4];
    for row in rows {
        if let BoxRow::Cells(cells) = row {
            for (width, cell) in widths.iter_mut().zip(cells) {
                *width = (*width).max(cell.chars().count());
            }
        }
    }
    let [offset_width, size_width, name_width, pages_width] = widths;
    let width = widths.iter().sum::<usize>() + 3 * 3 + 2;
    let (line, base) = ("-".repeat(width), "=".repeat(width));
    let mut text = String::new();
    for row in rows {
        let _ = match row {
            BoxRow::Line => writeln!(text, "  +{line}+"),
            BoxRow::Base => writeln!(text, "  +{base}+ base"),
            BoxRow::Cells([offset, size, name, pages]) => writeln!(
                text,
                "  | {offset:>offset_width$}   {size:>size_width$}   {name:<name_width$}   \
                 {pages:<pages_width$} |"
            ),
        };
    }
    text
}

/// The bytes that are not zero in a new instance.
fn image(module: &CompiledModule, behind_code: &[u8]) -> String {
    let info = &module.info;
    // Imported globals are not known here.
    let imported = &info.globals[..info.imported_globals as usize];
    let globals: Vec<_> =
        imported.iter().map(|global| (!global.content.is_ref()).then_some(0)).collect();
    let start = initial_image(module, behind_code, &globals);
    let bytes: u64 = start.image.runs.iter().map(|(_, bytes)| bytes.len() as u64).sum();
    let first = start.image.runs.first().map_or(0, |(offset, _)| *offset);
    let end = start.image.runs.last().map_or(0, |(offset, bytes)| offset + bytes.len() as i64);
    let mut text = format!(
        "  image: {} of pages that are not all zero, within {}..{}{}\n",
        show::size(bytes),
        show::offset(first),
        show::offset(end),
        if imported.is_empty() { "" } else { ", were imported globals zero" },
    );
    if !start.steps.is_empty() {
        let steps = show::count(start.steps.len() as u64, "step");
        let _ = writeln!(text, "  {steps} more at each start, which imports decide");
    }
    text
}

fn zones(info: &ModuleInfo, layout: &SlotLayout) -> Vec<DrawnZone> {
    let zone = |range: &Range<u64>, name: &str, pages, parts| DrawnZone {
        range: range.clone(),
        name: name.to_owned(),
        pages,
        parts,
    };
    let mut zones = vec![
        zone(&(0..layout.stack.start), "low guard", "no access", Vec::new()),
        zone(&layout.stack, "stack, grows down", "anonymous", Vec::new()),
        zone(&layout.link, "link", "anonymous, never in the image", link_parts(info, layout)),
        zone(&layout.exceptions, "exceptions", "anonymous", Vec::new()),
    ];
    // Below the image's start there is only room to grow.
    let Range { start, end } = layout.tables;
    let contents = layout.image_start.clamp(start, end);
    let (room, rest) = match contents == end {
        true => (table_parts(info, layout), Vec::new()),
        false => (Vec::new(), table_parts(info, layout)),
    };
    zones.push(zone(&(start..contents), "tables: room to grow", "anonymous", room));
    zones.push(zone(&(contents..end), "tables", "image, copy-on-write", rest));
    zones.push(zone(&layout.state, "state", "image, copy-on-write", state_parts(info, layout)));
    let mut end = layout.base;
    for (own, place) in layout.memories.iter().enumerate() {
        let start = layout.base + place.offset;
        zones.push(zone(&(end..start), "guard", "no access", Vec::new()));
        end = start + place.reservation;
        let index = info.imported_memories as usize + own;
        let (name, parts) = (format!("memory {index}"), memory_parts(info, index, place));
        zones.push(zone(&(start..end), &name, "image, then anonymous", parts));
    }
    zones.push(zone(&(end..layout.size), "guard", "no access", Vec::new()));
    zones.retain(|zone| !zone.range.is_empty());
    zones
}

fn link_parts(info: &ModuleInfo, layout: &SlotLayout) -> Vec<ZonePart> {
    let parts = layout.link_parts;
    let records = info.imported_memories + info.imported_tables + info.imported_globals;
    let part = |(range, name): (Range<u32>, String)| ZonePart {
        offset: i64::from(layout.link_offset()) + i64::from(range.start),
        size: range.len() as u64,
        name,
    };
    [
        (0..link::IMPORTS, "addresses of the host".to_owned()),
        (link::IMPORTS..parts.cells, show::count(records.into(), "record") + " of imports"),
        (parts.cells..parts.size, show::count(parts.cell_count.into(), "cell")),
    ]
    .into_iter()
    .filter(|(range, _)| !range.is_empty())
    .map(part)
    .collect()
}

/// The tables in the order of their places.
fn table_parts(info: &ModuleInfo, layout: &SlotLayout) -> Vec<ZonePart> {
    let part = |(own, (end, room)): (usize, (&i32, &u64))| {
        let table = info.imported_tables as usize + own;
        let first = info.tables[table].minimum;
        let size = 8 * room;
        let name = format!("table {table}: {first} now, room for {room}");
        ZonePart { offset: i64::from(*end) - size as i64, size, name }
    };
    let places = layout.table_ends.iter().zip(&layout.table_capacities);
    let mut parts: Vec<ZonePart> = places.enumerate().map(part).collect();
    parts.sort_by_key(|part| part.offset);
    parts
}

fn state_parts(info: &ModuleInfo, layout: &SlotLayout) -> Vec<ZonePart> {
    let parts = layout.state_parts;
    let own = |all: usize, imported: u32| all as u64 - u64::from(imported);
    let header = -i64::from(HEADER_SIZE);
    // Each ends where the next one begins.
    let mut places = [
        (parts.save_area, "registers while suspended".to_owned()),
        (
            parts.dropped,
            show::count((info.elements.len() + info.data.len()) as u64, "dropped-mark"),
        ),
        (parts.globals, show::count(own(info.globals.len(), info.imported_globals), "global")),
        (
            parts.table_lengths,
            show::count(own(info.tables.len(), info.imported_tables), "length") + " of tables",
        ),
        (
            parts.memory_sizes,
            show::count(own(info.memories.len(), info.imported_memories), "size") + " of memories",
        ),
    ]
    .map(|(offset, name)| (i64::from(offset), name))
    .to_vec();
    places.push((header, "header".to_owned()));
    let ends: Vec<i64> = places.iter().skip(1).map(|(offset, _)| *offset).chain([0]).collect();
    let part = |((offset, name), end): ((i64, String), i64)| ZonePart {
        offset,
        size: (end - offset) as u64,
        name,
    };
    places.into_iter().zip(ends).map(part).filter(|part| part.size > 0).collect()
}

fn memory_parts(info: &ModuleInfo, index: usize, place: &MemoryPlace) -> Vec<ZonePart> {
    let memory = &info.memories[index];
    let now = memory.minimum * WASM_PAGE_SIZE;
    let most = memory.maximum.unwrap_or(u64::MAX).min(place.pages_max()) * WASM_PAGE_SIZE;
    let start = place.offset as i64;
    let mut parts =
        vec![ZonePart { offset: start, size: now, name: "accessible at first".to_owned() }];
    if most > now {
        let (offset, size) = (start + now as i64, most - now);
        parts.push(ZonePart { offset, size, name: "room to grow".to_owned() });
    }
    parts
}
