//! From byte offsets in modules to lines of source code, by the debug information
//! that a module carries.
//!
//! A module's author writes that information, and every backtrace reads it, so reading
//! it is bounded for all input: no recursion, so no depth of nesting
//! overflows a stack; every part of it is read once and put into tables that look-ups
//! search; and all that is read and kept is charged to a budget, which grows with
//! its size. What is beyond has no lines, and backtraces say so.

#![forbid(unsafe_code)]

mod demangle;
mod budget;
mod functions;
mod lines;
mod ranges;
mod strings;
mod units;

use std::fmt;

pub use crate::demangle::demangle;

use gimli::{EndianSlice, LittleEndian};

use pagefork_layout::code::DebugInfo;
use pagefork_layout::text::OneLine;

use self::budget::ReadBudget;
use self::strings::Names;
use self::units::Units;

/// A place in source code. The fields are as the module has them, which may be with any
/// characters; displayed, they are parts of one line: see [`OneLine`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct SourceLocation {
    /// The function, as the source names it; inlined ones are named here only.
    pub function: Option<String>,
    /// The file's path, as the compiler saw it.
    pub file: Option<String>,
    /// The line, from 1.
    pub line: Option<u32>,
    /// The column, from 1.
    pub column: Option<u32>,
}

impl fmt::Display for SourceLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(function) = &self.function {
            write!(f, "{} ", OneLine(function))?;
        }
        write!(f, "at {}", OneLine(self.file.as_deref().unwrap_or("<unknown file>")))?;
        for number in [self.line, self.column].into_iter().flatten() {
            write!(f, ":{number}")?;
        }
        Ok(())
    }
}

type Slice<'a> = EndianSlice<'a, LittleEndian>;
type Dwarf<'a> = gimli::Dwarf<Slice<'a>>;

/// Debug information, or a part of it, that makes no sense or is too large: it is for
/// people only, so that is no error.
#[derive(Clone, Copy, Debug)]
struct Unreadable;

impl From<gimli::Error> for Unreadable {
    fn from(_: gimli::Error) -> Self {
        Self
    }
}

/// What is known of the debug information of a module.
pub struct Sources {
    units: Units,
    budget: ReadBudget,
}

impl Sources {
    /// `None` if the module has no debug information.
    pub fn new(debug: &DebugInfo) -> Option<Self> {
        let size: usize = debug.dwarf.iter().map(|(_, bytes)| bytes.len()).sum();
        if size == 0 {
            return None;
        }
        let budget = ReadBudget::new(size as u64);
        Some(Self { units: Units::read(&dwarf(debug), &budget), budget })
    }

    /// Whether there is more than is read.
    pub fn is_exhausted(&self) -> bool {
        self.budget.is_exhausted()
    }

    /// Where what is at this offset in the text comes from: the innermost inlined
    /// function first. `debug` is what this was made of.
    pub fn locate(&self, debug: &DebugInfo, offset: u32) -> Vec<SourceLocation> {
        let source = debug.source_at(offset);
        let address = source.and_then(|source| source.checked_sub(debug.code_start));
        let Some(address) = address else { return Vec::new() };
        self.locate_address(debug, address)
    }

    fn locate_address(&self, debug: &DebugInfo, address: u32) -> Vec<SourceLocation> {
        let dwarf = dwarf(debug);
        let mut candidates = self.units.at(address);
        let found = candidates.find_map(|unit| {
            let tables = self.units.tables(unit, &dwarf, &self.budget);
            let row = tables.lines.find(address);
            let function = tables.functions.find(address);
            (row.is_some() || function.is_some()).then_some((unit, tables, row, function))
        });
        let Some((unit, tables, row, function)) = found else { return Vec::new() };
        let mut names = Names::new(&self.units, &dwarf, &self.budget);
        let mut place = row.unwrap_or_default();
        let mut locations = Vec::new();
        let mut add = |place: lines::LinePlace, function: Option<String>| {
            let file = tables.lines.file(place.file).map(str::to_owned);
            let line = (place.line > 0).then_some(place.line);
            let column = line.and((place.column > 0).then_some(place.column));
            locations.push(SourceLocation { function, file, line, column });
        };
        let Some(function) = function else {
            add(place, None);
            return locations;
        };
        for inlined in function.inlined.iter().rev() {
            add(place, names.of(unit, inlined.entry));
            place = inlined.call;
        }
        add(place, names.of(unit, function.entry));
        locations
    }
}

/// The sections. They are only borrowed here: what is kept of them has no lifetime.
fn dwarf(debug: &DebugInfo) -> Dwarf<'_> {
    let section = |id: gimli::SectionId| {
        let found = debug.dwarf.iter().find(|(name, _)| name == id.name());
        let bytes = found.map_or(&[][..], |(_, bytes)| bytes);
        Ok::<_, Unreadable>(EndianSlice::new(bytes, LittleEndian))
    };
    gimli::Dwarf::load(section).expect("a section that is not there is empty")
}
