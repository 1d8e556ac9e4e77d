//! Functions of a compilation unit, and what is inlined into them.

use gimli::{AttributeValue, EntriesRaw, UnitRef};

use super::budget::ReadBudget;
use super::lines::LinePlace;
use super::ranges::{self, Extent, RangeAttributes};
use super::{Dwarf, Slice, Unreadable};

/// What is inlined deeper than this counts as part of what it is inlined into.
const INLINED_MAX: usize = 32;

/// Functions within functions, and what is inlined, more than this deep: no compiler
/// writes that.
const NESTING_MAX: usize = 256;

/// The functions of a unit that have code, and what is inlined into them.
#[derive(Default)]
pub(super) struct Functions {
    functions: Box<[Extent<u32>]>,
    /// By function, then by level, then by address.
    inlined: Box<[(FunctionKey, Inlined)]>,
}

/// The function that something is inlined into, how deep, and where it begins.
type FunctionKey = (u32, u8, u32);

/// Something inlined: up to which address, the entry that says what, and from where it
/// was called.
#[derive(Clone, Copy)]
pub(super) struct Inlined {
    end: u32,
    pub(super) entry: u32,
    pub(super) call: LinePlace,
}

/// A function at an address, and what is inlined there, the outermost first. Entries
/// are offsets in the unit.
pub(super) struct FoundFunction {
    pub(super) entry: u32,
    pub(super) inlined: Vec<Inlined>,
}

/// An entry that encloses the next one.
struct OpenFunction {
    depth: isize,
    function: u32,
    /// Levels of inlined functions around its children.
    level: u8,
}

impl Functions {
    /// Reads the unit's entries, one after the other.
    pub(super) fn read(
        dwarf: &Dwarf<'_>,
        unit: &gimli::Unit<Slice<'_>>,
        budget: &ReadBudget,
    ) -> Result<Self, Unreadable> {
        let unit = UnitRef::new(dwarf, unit);
        budget.read(unit.header.unit_length())?;
        let (mut functions, mut inlined) = (Vec::new(), Vec::<(FunctionKey, Inlined)>::new());
        let mut open: Vec<OpenFunction> = Vec::new();
        let mut entries = unit.entries_raw(None)?;
        while !entries.is_empty() {
            let (entry, depth) = (entries.next_offset().0 as u32, entries.next_depth());
            let Some(abbreviation) = entries.read_abbreviation()? else {
                budget.read(1)?;
                continue;
            };
            let attributes = abbreviation.attributes();
            budget.read(1 + attributes.len())?;
            open.truncate(open.iter().rposition(|open| open.depth < depth).map_or(0, |i| i + 1));
            match abbreviation.tag() {
                gimli::DW_TAG_subprogram => {
                    let (ranges, _) = read_attributes(&mut entries, attributes)?;
                    ranges.read(unit, budget, |range| {
                        budget.keep(size_of::<Extent<u32>>())?;
                        functions.push(Extent { begin: range.start, end: range.end, of: entry });
                        Ok(())
                    })?;
                    open.push(OpenFunction { depth, function: entry, level: 0 });
                }
                gimli::DW_TAG_inlined_subroutine
                    if let Some(&OpenFunction { function, level, .. }) = open.last()
                        && usize::from(level) < INLINED_MAX =>
                {
                    let (ranges, call) = read_attributes(&mut entries, attributes)?;
                    ranges.read(unit, budget, |range| {
                        budget.keep(size_of::<(FunctionKey, Inlined)>())?;
                        let end = range.end;
                        inlined
                            .push(((function, level, range.start), Inlined { end, entry, call }));
                        Ok(())
                    })?;
                    open.push(OpenFunction { depth, function, level: level + 1 });
                }
                _ => entries.skip_attributes(attributes)?,
            }
            if open.len() > NESTING_MAX {
                return Err(Unreadable);
            }
        }
        functions.sort_unstable_by_key(|function| function.begin);
        inlined.sort_unstable_by_key(|(key, _)| *key);
        Ok(Self { functions: functions.into(), inlined: inlined.into() })
    }

    /// The function with the code at an address.
    pub(super) fn find(&self, address: u32) -> Option<FoundFunction> {
        let entry = ranges::at(&self.functions, address).next()?;
        let mut inlined = Vec::new();
        for level in 0..INLINED_MAX as u8 {
            let next = self.inlined.partition_point(|(key, _)| *key <= (entry, level, address));
            let Some(((function, at, _), found)) = next.checked_sub(1).map(|i| self.inlined[i])
            else {
                break;
            };
            if (function, at) != (entry, level) || found.end <= address {
                break;
            }
            inlined.push(found);
        }
        Some(FoundFunction { entry, inlined })
    }
}

/// The attributes of a function: which code it has, and from where it was called.
fn read_attributes<'a>(
    entries: &mut EntriesRaw<'_, Slice<'a>>,
    attributes: &[gimli::AttributeSpecification],
) -> Result<(RangeAttributes<'a>, LinePlace), Unreadable> {
    let mut ranges = RangeAttributes::default();
    let mut call = LinePlace::default();
    for attribute in attributes {
        let attribute = entries.read_attribute(*attribute)?;
        ranges.note(&attribute);
        let number = || attribute.udata_value().and_then(|value| u32::try_from(value).ok());
        match attribute.name() {
            gimli::DW_AT_call_file => {
                if let AttributeValue::FileIndex(file) = attribute.value() {
                    call.file = u32::try_from(file).unwrap_or(u32::MAX);
                }
            }
            gimli::DW_AT_call_line => call.line = number().unwrap_or(0),
            gimli::DW_AT_call_column => call.column = number().unwrap_or(0),
            _ => {}
        }
    }
    Ok((ranges, call))
}
