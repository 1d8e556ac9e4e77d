//! Names and strings in debug information.

use gimli::{AttributeValue, EntriesRaw, Reader, Section, UnitOffset};

use super::budget::ReadBudget;
use super::units::{Unit, Units};
use super::{Dwarf, Slice};
use crate::demangle::{self, demangle};

/// Longer strings than this, in bytes, are cut off.
const STRING_MAX: usize = demangle::NAME_MAX;

/// Entries that refer to each other are followed this far for a name.
const REFERENCES_MAX: usize = 16;

/// An entry that is asked for its name is read this far: room for its strings.
const ENTRY_MAX: usize = 2 * STRING_MAX;

/// Bytes that are read for all names of a place, and bytes of names that are demangled.
const READ_MAX: usize = 256 << 10;
const DEMANGLED_MAX: usize = 32 << 10;

/// A string in a unit, or the start of a long one.
pub(super) fn read(
    dwarf: &Dwarf<'_>,
    unit: &Unit,
    value: AttributeValue<Slice<'_>>,
) -> Option<String> {
    let mut bytes = match value {
        AttributeValue::String(string) => string,
        AttributeValue::DebugStrRef(offset) => from(dwarf.debug_str.reader(), offset.0)?,
        AttributeValue::DebugLineStrRef(offset) => from(dwarf.debug_line_str.reader(), offset.0)?,
        AttributeValue::DebugStrOffsetsIndex(index) => {
            let offsets = &dwarf.debug_str_offsets;
            let offset = offsets.get_str_offset(unit.format, unit.string_offsets, index).ok()?;
            from(dwarf.debug_str.reader(), offset.0)?
        }
        _ => return None,
    };
    bytes.truncate(bytes.len().min(STRING_MAX)).ok()?;
    let bytes = bytes.slice();
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    Some(String::from_utf8_lossy(&bytes[..end]).into_owned())
}

fn from<'a>(section: &Slice<'a>, offset: usize) -> Option<Slice<'a>> {
    let mut bytes = *section;
    bytes.skip(offset).ok()?;
    Some(bytes)
}

/// Finds the names of the functions at a place. Nothing of it is kept, so that it is not
/// charged to the budget of the module, but bounded each time.
pub(super) struct Names<'a, 'd> {
    units: &'a Units,
    dwarf: &'a Dwarf<'d>,
    budget: &'a ReadBudget,
    read: usize,
    demangled: usize,
}

impl<'a, 'd> Names<'a, 'd> {
    pub(super) fn new(units: &'a Units, dwarf: &'a Dwarf<'d>, budget: &'a ReadBudget) -> Self {
        Self { units, dwarf, budget, read: 0, demangled: 0 }
    }

    /// The name of the function that an entry of a unit describes, or refers to.
    pub(super) fn of(&mut self, unit: usize, entry: u32) -> Option<String> {
        let (mut unit, mut entry) = (unit, entry as usize);
        for _ in 0..REFERENCES_MAX {
            let (name, next) = self.entry(unit, entry)?;
            if let Some(name) = name {
                self.demangled = self.demangled.saturating_add(name.len());
                return Some(match self.demangled <= DEMANGLED_MAX {
                    true => demangle(&name).into_owned(),
                    false => name,
                });
            }
            (unit, entry) = next?;
        }
        None
    }

    /// The name that an entry has, and the entry it refers to: unit and offset there.
    fn entry(
        &mut self,
        index: usize,
        entry: usize,
    ) -> Option<(Option<String>, Option<(usize, usize)>)> {
        let unit = self.units.get(index)?;
        let opened = self.units.open(unit, self.dwarf, self.budget).ok()?;
        let offset = UnitOffset(entry);
        let mut input = opened.header.range_from(offset..).ok()?;
        input.truncate(input.len().min(ENTRY_MAX)).ok()?;
        let (size, encoding) = (input.len(), opened.header.encoding());
        let mut entries = EntriesRaw::new(input, encoding, &opened.abbreviations, offset);
        let (mut name, mut next) = (None, None);
        for attribute in entries.read_abbreviation().ok()??.attributes() {
            self.read += 1;
            if self.read > READ_MAX {
                return None;
            }
            let attribute = entries.read_attribute(*attribute).ok()?;
            let value = attribute.value();
            match attribute.name() {
                gimli::DW_AT_linkage_name | gimli::DW_AT_MIPS_linkage_name => {
                    name = read(self.dwarf, unit, value).or(name);
                    break;
                }
                gimli::DW_AT_name => name = name.or_else(|| read(self.dwarf, unit, value)),
                gimli::DW_AT_abstract_origin | gimli::DW_AT_specification => {
                    next = match value {
                        AttributeValue::UnitRef(offset) => Some((index, offset.0)),
                        AttributeValue::DebugInfoRef(offset) => self.units.containing(offset.0),
                        _ => None,
                    };
                }
                _ => {}
            }
        }
        let left = size - entries.next_offset().0.saturating_sub(entry).min(size);
        self.read += size - left;
        Some((name, next))
    }
}
