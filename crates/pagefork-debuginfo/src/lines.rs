//! Lines of source code by address.

use gimli::{ColumnType, Reader};

use super::budget::ReadBudget;
use super::ranges::{self, Extent};
use super::units::Unit;
use super::{Dwarf, Slice, Unreadable, strings};

/// Longer lists of files than this, in bytes, are not read: each takes many times its
/// size while it is. Those of programs with ten thousands of files are shorter.
const HEADER_MAX: usize = 1 << 20;

/// Which line comes from where, in a unit: for each address from which on another line
/// is meant, its place. Sequences of addresses may lie anywhere.
#[derive(Default)]
pub(super) struct Lines {
    files: Box<[Box<str>]>,
    rows: Box<[LineRow]>,
    /// Of each sequence, its first row, and the row after its last.
    sequences: Box<[Extent<(u32, u32)>]>,
}

struct LineRow {
    address: u32,
    place: LinePlace,
}

/// A place in source code: lines and columns from 1, 0 for none.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct LinePlace {
    pub(super) file: u32,
    pub(super) line: u32,
    pub(super) column: u32,
}

impl Default for LinePlace {
    /// Nowhere: no list of files is as long.
    fn default() -> Self {
        Self { file: u32::MAX, line: 0, column: 0 }
    }
}

impl Lines {
    /// What the unit's line program says.
    pub(super) fn read(
        dwarf: &Dwarf<'_>,
        unit: &Unit,
        budget: &ReadBudget,
    ) -> Result<Self, Unreadable> {
        let start = unit.lines.ok_or(Unreadable)?;
        budget.read(program_size(dwarf, start)?)?;
        let program = dwarf.debug_line.program(start, unit.address_size, None, None)?;
        let files = files(dwarf, unit, program.header(), budget)?;

        let (mut rows, mut sequences) = (Vec::<LineRow>::new(), Vec::new());
        let mut first = 0;
        let mut program = program.rows();
        while let Some((_, row)) = program.next_row()? {
            budget.read(1)?;
            let Ok(address) = u32::try_from(row.address()) else { break };
            if row.end_sequence() {
                if let Some(begin) = rows.get(first).map(|row: &LineRow| row.address)
                    && 0 < begin
                    && begin < address
                {
                    budget.keep(size_of::<Extent<(u32, u32)>>())?;
                    let of = (first as u32, rows.len() as u32);
                    sequences.push(Extent { begin, end: address, of });
                } else {
                    rows.truncate(first);
                }
                first = rows.len();
                continue;
            }
            let number = |number: u64| u32::try_from(number).unwrap_or(0);
            let place = LinePlace {
                file: u32::try_from(row.file_index()).unwrap_or(u32::MAX),
                line: row.line().map_or(0, |line| number(line.get())),
                column: match row.column() {
                    ColumnType::LeftEdge => 0,
                    ColumnType::Column(column) => number(column.get()),
                },
            };
            match rows[first..].last_mut() {
                Some(last) if last.address == address => last.place = place,
                Some(last) if last.place == place => {}
                _ => {
                    budget.keep(size_of::<LineRow>())?;
                    rows.push(LineRow { address, place });
                }
            }
        }
        rows.truncate(first);
        sequences.sort_unstable_by_key(|sequence| sequence.begin);
        Ok(Self { files, rows: rows.into(), sequences: sequences.into() })
    }

    /// Where the code at an address comes from.
    pub(super) fn find(&self, address: u32) -> Option<LinePlace> {
        let (first, end) = ranges::at(&self.sequences, address).next()?;
        let rows = &self.rows[first as usize..end as usize];
        let next = rows.partition_point(|row| row.address <= address);
        Some(rows[next.checked_sub(1)?].place)
    }

    /// The path of a file.
    pub(super) fn file(&self, index: u32) -> Option<&str> {
        self.files.get(index as usize).map(|file| &**file).filter(|file| !file.is_empty())
    }

    /// Ranges of addresses that it knows.
    pub(super) fn ranges(&self) -> impl Iterator<Item = (u32, u32)> {
        self.sequences.iter().map(|sequence| (sequence.begin, sequence.end))
    }
}

/// Bytes of the line program that begins there, if its header is not too long.
fn program_size(
    dwarf: &Dwarf<'_>,
    start: gimli::DebugLineOffset<usize>,
) -> Result<usize, Unreadable> {
    let mut input = *gimli::Section::reader(&dwarf.debug_line);
    input.skip(start.0)?;
    let (size, format) = input.read_initial_length()?;
    let version = input.read_u16()?;
    if version >= 5 {
        input.skip(2)?;
    }
    match input.read_length(format)? {
        header if header <= HEADER_MAX => Ok(size),
        _ => Err(Unreadable),
    }
}

/// The paths of the files, by their numbers.
fn files(
    dwarf: &Dwarf<'_>,
    unit: &Unit,
    header: &gimli::LineProgramHeader<Slice<'_>>,
    budget: &ReadBudget,
) -> Result<Box<[Box<str>]>, Unreadable> {
    let mut files: Vec<Box<str>> = Vec::new();
    // Up to version 4 there is no file 0.
    let numbers = (0..).take_while(|number| *number == 0 || header.file(*number).is_some());
    for number in numbers {
        let mut path = String::new();
        if let Some(file) = header.file(number) {
            let text = |value| strings::read(dwarf, unit, value).unwrap_or_default();
            path = unit.directory.as_deref().unwrap_or_default().to_owned();
            // Directory 0 is the unit's own.
            if file.directory_index() != 0 {
                let directory = file.directory(header);
                join(&mut path, &directory.map(text).unwrap_or_default());
            }
            join(&mut path, &text(file.path_name()));
        }
        budget.read(path.len())?;
        budget.keep(path.len() + size_of::<Box<str>>())?;
        files.push(path.into());
    }
    Ok(files.into())
}

/// Goes on from a path, in the manner of the system that it is of.
fn join(path: &mut String, next: &str) {
    let is_rooted = |path: &str, separator: char| {
        path.starts_with(separator)
            || (path.get(1..2) == Some(":") && path[2..].starts_with(separator))
    };
    if is_rooted(next, '/') || is_rooted(next, '\\') {
        path.clear();
    }
    let separator = if is_rooted(path, '\\') { '\\' } else { '/' };
    if !path.is_empty() && !path.ends_with(separator) {
        path.push(separator);
    }
    path.push_str(next);
}

#[cfg(test)]
mod tests {
    #[test]
    fn paths_go_on_in_the_manner_of_their_system() {
        for (path, next, whole) in [
            ("", "a.c", "a.c"),
            ("/b", "a.c", "/b/a.c"),
            ("b/", "a.c", "b/a.c"),
            ("/b", "/c/a.c", "/c/a.c"),
            ("C:\\b", "a.c", "C:\\b\\a.c"),
            ("/b", "C:\\a.c", "C:\\a.c"),
            ("ü:x", "ä:", "ü:x/ä:"),
        ] {
            let mut joined = path.to_owned();
            super::join(&mut joined, next);
            assert_eq!(joined, whole);
        }
    }
}
