//! The blocks of exceptions zones: each, its tag and its payload.

use std::collections::BTreeMap;

use pagefork_layout::exception::{ExceptionRef, UNIT, block, zone};
use pagefork_layout::module::ValType;

use crate::run::load::group::{Candidate, Group, Judged};

/// The exceptions of a zone, by their first units.
pub(super) type Blocks = BTreeMap<u16, LoadedException>;

/// What references to an exception are checked against.
pub(super) struct LoadedException {
    stamp: u16,
    /// Without this, whoever catches it frees it.
    may_be_referenced: bool,
}

/// The exceptions of an instance, if its blocks fill the part in use without a gap.
pub(super) fn blocks(instance: &Candidate) -> Judged<Blocks> {
    let room = &instance.module.layout().exceptions;
    let bytes = &instance.exceptions;
    let mut found = Blocks::new();
    if room.is_empty() {
        return match bytes.is_empty() {
            true => Ok(found),
            false => Err("has exceptions, and no room for any".to_owned()),
        };
    }
    let units = bytes.len() as u64 / UNIT;
    if !(bytes.len() as u64).is_multiple_of(UNIT)
        || units < zone::UNITS.into()
        || units > (room.end - room.start) / UNIT
    {
        return Err("has exceptions in more or less than their zone".to_owned());
    }
    let (end, cursor) = (u64::from(half(bytes, zone::END)), half(bytes, zone::CURSOR));
    if end.max(zone::UNITS.into()) != units {
        return Err("says of its exceptions that they end elsewhere".to_owned());
    }
    let mut unit = zone::UNITS;
    let mut is_at_block = cursor <= zone::UNITS || u64::from(cursor) >= units;
    while u64::from(unit) < units {
        is_at_block |= unit == cursor;
        let head = &bytes[at(unit)..][..UNIT as usize];
        let (size, stamp) = (quarter(head, block::UNITS), quarter(head, block::STAMP));
        let next = unit + u32::from(size);
        if size == 0 || u64::from(next) > units {
            return Err(format!("has an exception of an impossible size at unit {unit}"));
        }
        if stamp != 0 {
            let unit = u16::try_from(unit).map_err(|_| "has too many exceptions".to_owned())?;
            let may_be_referenced = half(head, block::FLAGS) != 0;
            found.insert(unit, LoadedException { stamp, may_be_referenced });
        }
        unit = next;
    }
    match is_at_block {
        true => Ok(found),
        false => Err("looks for room for exceptions within one".to_owned()),
    }
}

/// Checks the tags and payloads of an instance's exceptions.
pub(super) fn check(group: &Group, ordinal: u32, blocks: &[Blocks]) -> Judged {
    let instance = &group.instances[ordinal as usize - 1];
    let bytes = &instance.exceptions;
    for unit in blocks[ordinal as usize - 1].keys() {
        let unit = u32::from(*unit);
        let head = &bytes[at(unit)..][..UNIT as usize];
        if half(head, block::FLAGS) & !(block::REFERENCED | block::HELD) != 0 {
            return Err(format!("has an exception with unknown flags at unit {unit}"));
        }
        let no_tag = || format!("has an exception of a tag that is not there at unit {unit}");
        let owner = match half(head, block::TAG_ORDINAL) {
            0 => ordinal,
            own if own == ordinal => return Err(no_tag()),
            other => other,
        };
        let module = &group.candidate(owner).ok_or_else(no_tag)?.module;
        let info = module.info();
        let tag = half(head, block::TAG_INDEX).checked_add(info.imported_tags);
        let tag = tag.filter(|tag| (*tag as usize) < info.tags.len()).ok_or_else(no_tag)?;
        let params = &info.types[info.tags[tag as usize] as usize].params;
        let values = u32::from(quarter(head, block::UNITS)) - block::HEAD_UNITS;
        if values as usize != params.len() {
            return Err(format!("has an exception with another payload at unit {unit}"));
        }
        for (ty, cell) in params.iter().zip(unit + block::HEAD_UNITS..) {
            let ValType::Ref(ty) = ty else { continue };
            let word = u64::from_le_bytes(bytes[at(cell)..][..8].try_into().expect("8 bytes"));
            // The types are those of the tag's module, and the references relative to this one.
            group.check_reference((ordinal, owner), *ty, word, blocks)?;
        }
    }
    Ok(())
}

/// Checks a reference to an exception in a place of the instance `owner`.
pub(super) fn check_reference(owner: u32, word: u64, blocks: &[Blocks]) -> Judged {
    let reference = ExceptionRef(word);
    let unknown = || Err(format!("refers to an exception, {word:#x}, that is not there"));
    let ordinal = match reference.ordinal() {
        0 => owner,
        other if other == owner => return unknown(),
        other => other,
    };
    let found = (ordinal as usize).checked_sub(1).and_then(|index| blocks.get(index));
    match found.and_then(|blocks| blocks.get(&reference.unit())) {
        Some(block) if block.stamp == reference.stamp() && block.may_be_referenced => Ok(()),
        _ => unknown(),
    }
}

fn at(unit: u32) -> usize {
    (u64::from(unit) * UNIT) as usize
}

fn half(bytes: &[u8], offset: u32) -> u32 {
    u32::from_le_bytes(bytes[offset as usize..][..4].try_into().expect("4 bytes"))
}

fn quarter(bytes: &[u8], offset: u32) -> u16 {
    u16::from_le_bytes(bytes[offset as usize..][..2].try_into().expect("2 bytes"))
}
