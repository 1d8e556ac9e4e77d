//! Compilation units, and the addresses that they cover.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use gimli::{
    Abbreviations, AttributeValue, DebugAbbrev, DebugAddrBase, DebugInfoOffset, DebugLineOffset,
    DebugLocListsBase, DebugRngListsBase, DebugStrOffsetsBase, EndianSlice, Format, LittleEndian,
    Section, UnitHeader, UnitRef,
};

use super::budget::ReadBudget;
use super::functions::Functions;
use super::lines::Lines;
use super::ranges::{self, Extent, RangeAttributes};
use super::{Dwarf, Slice, Unreadable, strings};

/// Longer lists of abbreviations than this, in bytes, are not read: those of the largest
/// programs are shorter.
const ABBREVIATIONS_MAX: usize = 1 << 20;

/// Bytes that abbreviations take in memory, for each of theirs.
const ABBREVIATIONS_GROW: usize = 32;

/// The compilation units of a module, in the order in which they lie.
#[derive(Default)]
pub(super) struct Units {
    units: Vec<Unit>,
    extents: Vec<Extent<u32>>,
    /// Where abbreviations of some unit begin, ascending.
    abbreviation_starts: Vec<usize>,
    abbreviations: Mutex<HashMap<usize, Option<Arc<Abbreviations>>>>,
}

/// What is known of a unit without reading all of it.
pub(super) struct Unit {
    offset: usize,
    abbreviations: usize,
    low: u64,
    addresses: usize,
    range_lists: usize,
    pub(super) string_offsets: DebugStrOffsetsBase<usize>,
    pub(super) format: Format,
    pub(super) address_size: u8,
    /// Its line program.
    pub(super) lines: Option<DebugLineOffset<usize>>,
    /// In which it was compiled.
    pub(super) directory: Option<Box<str>>,
    tables: OnceLock<Tables>,
}

/// What is in a unit; empty where it makes no sense.
#[derive(Default)]
pub(super) struct Tables {
    pub(super) lines: Lines,
    pub(super) functions: Functions,
}

impl Units {
    /// Finds out where units are, and which code they are about.
    pub(super) fn read(dwarf: &Dwarf<'_>, budget: &ReadBudget) -> Self {
        let mut units = Self::default();
        let mut headers = dwarf.units();
        // What follows a unit that makes no sense cannot be found.
        while let Ok(Some(header)) = headers.next() {
            if units.add(&header, budget).is_err() {
                break;
            }
        }
        units.abbreviation_starts = units.units.iter().map(|unit| unit.abbreviations).collect();
        units.abbreviation_starts.sort_unstable();
        units.abbreviation_starts.dedup();
        let mut last = None;
        for index in 0..units.units.len() {
            let _ = units.read_root(index, dwarf, &mut last, budget);
        }
        units.extents.sort_unstable_by_key(|extent| extent.begin);
        units
    }

    fn add(
        &mut self,
        header: &UnitHeader<Slice<'_>>,
        budget: &ReadBudget,
    ) -> Result<(), Unreadable> {
        budget.read(header.size_of_header())?;
        budget.keep(size_of::<Unit>())?;
        let encoding = header.encoding();
        self.units.push(Unit {
            offset: header.debug_info_offset().ok_or(Unreadable)?.0,
            abbreviations: header.debug_abbrev_offset().0,
            low: 0,
            addresses: 0,
            range_lists: DebugRngListsBase::default_for_encoding_and_file(
                encoding,
                gimli::DwarfFileType::Main,
            )
            .0,
            string_offsets: DebugStrOffsetsBase::default_for_encoding_and_file(
                encoding,
                gimli::DwarfFileType::Main,
            ),
            format: encoding.format,
            address_size: encoding.address_size,
            lines: None,
            directory: None,
            tables: OnceLock::new(),
        });
        Ok(())
    }

    /// Reads the first entry of a unit, which is about all of it. `last` has the
    /// abbreviations of the unit before.
    fn read_root(
        &mut self,
        index: usize,
        dwarf: &Dwarf<'_>,
        last: &mut Option<(usize, Arc<Abbreviations>)>,
        budget: &ReadBudget,
    ) -> Result<(), Unreadable> {
        let at = self.units[index].abbreviations;
        let abbreviations = match last {
            Some((start, abbreviations)) if *start == at => Arc::clone(abbreviations),
            _ => Arc::new(self.parse_abbreviations(at, dwarf, budget)?),
        };
        *last = Some((at, Arc::clone(&abbreviations)));
        let mut opened = self.units[index].with(dwarf, abbreviations)?;
        let mut entries = opened.header.entries_raw(&opened.abbreviations, None)?;
        let attributes = entries.read_abbreviation()?.ok_or(Unreadable)?.attributes();
        budget.read(1 + attributes.len())?;
        let (mut ranges, mut directory) = (RangeAttributes::default(), None);
        let unit = &mut self.units[index];
        for attribute in attributes {
            let attribute = entries.read_attribute(*attribute)?;
            ranges.note(&attribute);
            match (attribute.name(), attribute.value()) {
                (gimli::DW_AT_stmt_list, AttributeValue::DebugLineRef(at)) => unit.lines = Some(at),
                (_, AttributeValue::DebugStrOffsetsBase(base)) => unit.string_offsets = base,
                (_, AttributeValue::DebugAddrBase(base)) => unit.addresses = base.0,
                (_, AttributeValue::DebugRngListsBase(base)) => unit.range_lists = base.0,
                (gimli::DW_AT_comp_dir, value) => directory = Some(value),
                _ => {}
            }
        }
        unit.directory =
            directory.and_then(|value| strings::read(dwarf, unit, value)).map(Box::from);
        budget.keep(unit.directory.as_ref().map_or(0, |directory| directory.len()))?;
        opened.addr_base = DebugAddrBase(unit.addresses);
        opened.rnglists_base = DebugRngListsBase(unit.range_lists);
        unit.low = ranges.low(UnitRef::new(dwarf, &opened)).unwrap_or(0);
        opened.low_pc = unit.low;

        let (unit, extents) = (&self.units[index], &mut self.extents);
        let mut add = |begin, end| {
            budget.keep(size_of::<Extent<u32>>())?;
            extents.push(Extent { begin, end, of: index as u32 });
            Ok(())
        };
        if ranges.are_given() {
            let unit = UnitRef::new(dwarf, &opened);
            return ranges.read(unit, budget, |range| add(range.start, range.end));
        }
        Lines::read(dwarf, unit, budget)?.ranges().try_for_each(|(begin, end)| add(begin, end))
    }

    pub(super) fn get(&self, index: usize) -> Option<&Unit> {
        self.units.get(index)
    }

    /// The units that may be about an address.
    pub(super) fn at(&self, address: u32) -> impl Iterator<Item = usize> {
        ranges::at(&self.extents, address).map(|unit| unit as usize)
    }

    /// The unit in which an offset of the section lies, and the offset there.
    pub(super) fn containing(&self, offset: usize) -> Option<(usize, usize)> {
        let next = self.units.partition_point(|unit| unit.offset <= offset);
        let index = next.checked_sub(1)?;
        Some((index, offset - self.units[index].offset))
    }

    /// What is in a unit, read when it is first asked for.
    pub(super) fn tables(&self, index: usize, dwarf: &Dwarf<'_>, budget: &ReadBudget) -> &Tables {
        let unit = &self.units[index];
        unit.tables.get_or_init(|| {
            let lines = Lines::read(dwarf, unit, budget).unwrap_or_default();
            let opened = self.open(unit, dwarf, budget);
            let functions = opened.and_then(|opened| Functions::read(dwarf, &opened, budget));
            Tables { lines, functions: functions.unwrap_or_default() }
        })
    }

    /// A unit as the reader wants it.
    pub(super) fn open<'d>(
        &self,
        unit: &Unit,
        dwarf: &Dwarf<'d>,
        budget: &ReadBudget,
    ) -> Result<gimli::Unit<Slice<'d>>, Unreadable> {
        let at = unit.abbreviations;
        let mut known = self.abbreviations.lock().unwrap_or_else(PoisonError::into_inner);
        let abbreviations = known.entry(at).or_insert_with(|| {
            let size = self.abbreviations_size(at, dwarf);
            budget.keep(size.saturating_mul(ABBREVIATIONS_GROW)).ok()?;
            Some(Arc::new(self.parse_abbreviations(at, dwarf, budget).ok()?))
        });
        let abbreviations = abbreviations.clone().ok_or(Unreadable)?;
        drop(known);
        unit.with(dwarf, abbreviations)
    }

    /// Abbreviations go as far as others begin, at most: no byte is read for two units
    /// that do not begin at the same.
    fn abbreviations_size(&self, at: usize, dwarf: &Dwarf<'_>) -> usize {
        let next = self.abbreviation_starts.partition_point(|start| *start <= at);
        let size = dwarf.debug_abbrev.reader().len();
        let end = self.abbreviation_starts.get(next).map_or(size, |next| size.min(*next));
        end.saturating_sub(at)
    }

    fn parse_abbreviations(
        &self,
        at: usize,
        dwarf: &Dwarf<'_>,
        budget: &ReadBudget,
    ) -> Result<Abbreviations, Unreadable> {
        let size = self.abbreviations_size(at, dwarf);
        budget.read(size)?;
        if size > ABBREVIATIONS_MAX {
            return Err(Unreadable);
        }
        let bytes = dwarf.debug_abbrev.reader().slice().get(at..at + size).ok_or(Unreadable)?;
        let bytes = DebugAbbrev::from(EndianSlice::new(bytes, LittleEndian));
        Ok(bytes.abbreviations(gimli::DebugAbbrevOffset(0))?)
    }
}

impl Unit {
    fn with<'d>(
        &self,
        dwarf: &Dwarf<'d>,
        abbreviations: Arc<Abbreviations>,
    ) -> Result<gimli::Unit<Slice<'d>>, Unreadable> {
        Ok(gimli::Unit {
            header: dwarf.debug_info.header_from_offset(DebugInfoOffset(self.offset))?,
            abbreviations,
            name: None,
            comp_dir: None,
            low_pc: self.low,
            str_offsets_base: self.string_offsets,
            addr_base: DebugAddrBase(self.addresses),
            loclists_base: DebugLocListsBase(0),
            rnglists_base: DebugRngListsBase(self.range_lists),
            line_program: None,
            dwo_id: None,
        })
    }
}
