//! Room for exceptions: one zone in each slot whose module has tags. Exceptions
//! lie in guests' pages, so what tells free room from used lies there too; see
//! [`pagefork_layout::exception`].
//!
//! An exception that no guest has a reference to is freed when it is caught. The
//! others are searched for once a zone is full: what looks like a reference in
//! the stack in use, in states, tables and payloads is taken for one.
//!
//! # Safety
//!
//! As in `group`. Only the runtime writes these zones: guests cannot name their
//! bytes.

use std::ops::Range;
use std::ptr;

use pagefork_layout::exception::{ExceptionRef, UNIT, block, zone};
use pagefork_layout::module::HeapType;

use crate::base::cell::Cell;
use crate::store::group::{Entity, InstanceData, StoreGroup};

/// The exceptions zone of an instance.
///
/// Invariant: `start` is that of the zone of a mapped slot, `units` its size.
#[derive(Clone, Copy)]
pub(crate) struct ExceptionZone {
    start: *mut u8,
    units: u32,
}

/// The head of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub(crate) struct BlockHead {
    pub(crate) units: u16,
    pub(crate) stamp: u16,
    pub(crate) flags: u32,
    /// The tag, where the ordinal 0 stands for the zone's instance.
    pub(crate) tag: Entity,
}

const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<BlockHead>() as u64 == UNIT * block::HEAD_UNITS as u64);
    assert!(offset_of!(BlockHead, units) == block::UNITS as usize);
    assert!(offset_of!(BlockHead, stamp) == block::STAMP as usize);
    assert!(offset_of!(BlockHead, flags) == block::FLAGS as usize);
    assert!(offset_of!(BlockHead, tag.ordinal) == block::TAG_ORDINAL as usize);
    assert!(offset_of!(BlockHead, tag.own_index) == block::TAG_INDEX as usize);
    assert!(size_of::<Cell>() as u64 == UNIT);
};

impl BlockHead {
    fn free(units: u32) -> Self {
        let tag = Entity { ordinal: 0, own_index: 0 };
        Self { units: units as u16, stamp: 0, flags: 0, tag }
    }

    fn is_free(&self) -> bool {
        self.stamp == 0
    }
}

impl ExceptionZone {
    fn of(instance: &InstanceData) -> Self {
        let range = &instance.module.layout().exceptions;
        let start = instance.slot.start().wrapping_add(range.start as usize);
        Self { start, units: ((range.end - range.start) / UNIT) as u32 }
    }

    /// A word of the zone's header.
    fn word(self, field: u32) -> *mut u32 {
        self.start.wrapping_add(field as usize).cast()
    }

    /// A word of the header that names a unit; a zone of zeros begins behind it.
    fn unit_word(self, field: u32) -> u32 {
        // SAFETY: the header is in the zone.
        unsafe { self.word(field).read() }.max(zone::UNITS)
    }

    fn set_word(self, field: u32, value: u32) {
        // SAFETY: the header is in the zone.
        unsafe { self.word(field).write(value) };
    }

    fn end(self) -> u32 {
        self.unit_word(zone::END)
    }

    /// Where the zone starts, and how many units of it are in use.
    pub(crate) fn in_use(self) -> (*mut u8, u32) {
        (self.start, self.end())
    }

    fn place(self, unit: u32) -> *mut u8 {
        assert!(unit < self.units, "unit {unit} of an exceptions zone of {}", self.units);
        self.start.wrapping_add((u64::from(unit) * UNIT) as usize)
    }

    fn head(self, unit: u32) -> BlockHead {
        // SAFETY: a unit is in the zone.
        let head = unsafe { self.place(unit).cast::<BlockHead>().read() };
        assert!(head.units > 0, "a block of an exceptions zone has units");
        head
    }

    fn set_head(self, unit: u32, head: BlockHead) {
        // SAFETY: a unit is in the zone.
        unsafe { self.place(unit).cast::<BlockHead>().write(head) };
    }

    /// Shows the first word of each cell of every payload.
    pub(crate) fn each_word(self, mut look: impl FnMut(u64)) {
        if self.units == 0 {
            return;
        }
        for (unit, head) in self.blocks().filter(|(_, head)| !head.is_free()) {
            for index in 0..(u32::from(head.units) - block::HEAD_UNITS) as usize {
                // SAFETY: the payload is in the zone.
                look(unsafe { self.payload(unit, index).read() }.low);
            }
        }
    }

    /// Adds flags to a block's.
    pub(crate) fn flag(self, unit: u32, flags: u32) {
        let mut head = self.head(unit);
        head.flags |= flags;
        self.set_head(unit, head);
    }

    /// Value `index` of the payload of the block at `unit`.
    pub(crate) fn payload(self, unit: u32, index: usize) -> *mut Cell {
        self.place(unit + block::HEAD_UNITS + index as u32).cast()
    }

    /// Every block: its first unit and its head.
    fn blocks(self) -> impl Iterator<Item = (u32, BlockHead)> {
        let (mut unit, end) = (zone::UNITS, self.end());
        std::iter::from_fn(move || {
            let at = (unit < end).then_some(unit)?;
            let head = self.head(at);
            unit += u32::from(head.units);
            Some((at, head))
        })
    }

    /// The exception that a reference with this stamp and unit names.
    pub(crate) fn exception(self, reference: ExceptionRef) -> BlockHead {
        let head = self.head(reference.unit().into());
        assert!(head.stamp == reference.stamp(), "an exception that is in use was freed");
        head
    }

    /// Makes a block for an exception, if there is room; its first unit and stamp.
    fn allocate(self, values: usize, tag: Entity) -> Option<(u16, u16)> {
        let units = block::HEAD_UNITS + u32::try_from(values).ok()?;
        let end = self.end();
        let unit = if units <= self.units.saturating_sub(end) {
            self.set_word(zone::END, end + units);
            end
        } else {
            self.search(self.unit_word(zone::CURSOR), units)
                .or_else(|| self.search(zone::UNITS, units))?
        };
        // SAFETY: the header is in the zone.
        let stamp = unsafe { self.word(zone::STAMP).read() } % u32::from(u16::MAX) + 1;
        self.set_word(zone::STAMP, stamp);
        let head = BlockHead { units: units as u16, stamp: stamp as u16, flags: 0, tag };
        self.set_head(unit, head);
        Some((unit as u16, stamp as u16))
    }

    /// Takes the first free blocks from `unit` on that are together as large.
    fn search(self, mut unit: u32, units: u32) -> Option<u32> {
        let end = self.end();
        while unit < end {
            let mut size = u32::from(self.head(unit).units);
            if self.head(unit).is_free() {
                while unit + size < end && self.head(unit + size).is_free() {
                    size += u32::from(self.head(unit + size).units);
                }
                self.set_head(unit, BlockHead::free(size));
                if size >= units {
                    if size > units {
                        self.set_head(unit + units, BlockHead::free(size - units));
                    }
                    self.set_word(zone::CURSOR, unit + units);
                    return Some(unit);
                }
            }
            unit += size;
        }
        // No block that was joined with another is begun at.
        self.set_word(zone::CURSOR, zone::UNITS);
        None
    }

    /// Frees a block.
    pub(crate) fn free(self, unit: u32) {
        let units = u32::from(self.head(unit).units);
        if unit + units == self.end() {
            self.set_word(zone::END, unit);
            if self.unit_word(zone::CURSOR) > unit {
                self.set_word(zone::CURSOR, zone::UNITS);
            }
        } else {
            self.set_head(unit, BlockHead::free(units));
        }
    }

    /// Frees all exceptions but those that are marked.
    fn sweep(self, marks: &Marks) {
        let mut end = zone::UNITS;
        for (unit, head) in self.blocks() {
            if marks.units[unit as usize] != Mark::InUse {
                self.set_head(unit, BlockHead::free(head.units.into()));
            } else {
                end = unit + u32::from(head.units);
            }
        }
        self.set_word(zone::END, end);
        self.set_word(zone::CURSOR, zone::UNITS);
    }
}

/// What is known about a unit while a zone is searched for what is in use.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    /// No exception begins there.
    None,
    /// An exception begins there to which no reference was found.
    Unseen,
    /// An exception begins there that is in use.
    InUse,
}

/// What is known about a zone while it is searched for what is in use.
struct Marks {
    zone: ExceptionZone,
    /// One for each unit before the zone's end.
    units: Vec<Mark>,
}

/// The search for what is in use.
struct Collection {
    /// By ordinal, less one.
    zones: Vec<Marks>,
    /// Exceptions in use whose payload is still to be looked at: ordinal, unit.
    found: Vec<(u32, u32)>,
}

impl Collection {
    fn new(store: &StoreGroup) -> Self {
        let mut collection = Self { zones: Vec::new(), found: Vec::new() };
        for (instance, ordinal) in store.instances.iter().zip(1..) {
            let zone = ExceptionZone::of(instance);
            let mut units = Vec::new();
            if zone.units > 0 {
                units.resize(zone.end() as usize, Mark::None);
                for (unit, head) in zone.blocks().filter(|(_, head)| !head.is_free()) {
                    units[unit as usize] = Mark::Unseen;
                    if head.flags & block::HELD != 0 {
                        units[unit as usize] = Mark::InUse;
                        collection.found.push((ordinal, unit));
                    }
                }
            }
            collection.zones.push(Marks { zone, units });
        }
        collection
    }

    /// Looks at a word in a place that belongs to the instance `owner`, or to who
    /// knows whom.
    fn word(&mut self, word: u64, owner: Option<u32>) {
        let reference = ExceptionRef(word);
        if reference.stamp() == 0 {
            return;
        }
        match (reference.ordinal(), owner) {
            (0, Some(owner)) => self.mark(owner, reference),
            (0, None) => {
                for ordinal in 1..=self.zones.len() as u32 {
                    self.mark(ordinal, reference);
                }
            }
            (ordinal, _) => self.mark(ordinal, reference),
        }
    }

    fn mark(&mut self, ordinal: u32, reference: ExceptionRef) {
        let Some(marks) = self.zones.get_mut(ordinal as usize - 1) else { return };
        let unit = reference.unit().into();
        if let Some(mark) = marks.units.get_mut(unit as usize)
            && *mark == Mark::Unseen
            && marks.zone.head(unit).stamp == reference.stamp()
        {
            *mark = Mark::InUse;
            self.found.push((ordinal, unit));
        }
    }

    /// # Safety
    /// The addresses are multiples of 8 in readable memory that nothing writes meanwhile.
    unsafe fn words(&mut self, addresses: Range<usize>, owner: Option<u32>) {
        for address in addresses.step_by(8) {
            // SAFETY: by this function's contract the address is of a readable word.
            let word = unsafe { *ptr::with_exposed_provenance::<u64>(address) };
            self.word(word, owner);
        }
    }

    /// Looks at everything of an instance that can hold references, but for its cells: what
    /// is just being passed, who makes an exception says.
    fn instance(&mut self, store: &StoreGroup, ordinal: u32) {
        let instance = store.instance(ordinal);
        let (info, layout) = (instance.module.info(), instance.module.layout());
        let base = instance.base();
        let size = (layout.state.end - layout.state.start) as usize;
        // SAFETY: the state zone ends at the base.
        unsafe { self.words(base - size..base, Some(ordinal)) };
        let own = info.tables.iter().skip(info.imported_tables as usize);
        for (ty, own_index) in own.zip(0..) {
            if ty.element.heap.top() == HeapType::Exn {
                let table = Entity { ordinal, own_index };
                let length = store.table_length(table) as i64;
                let end = instance.at(layout.table_ends[own_index as usize].into()).addr();
                // SAFETY: the elements are in the tables zone.
                unsafe { self.words(end - 8 * length as usize..end, Some(ordinal)) };
            }
        }
    }

    /// Follows the payloads of what was found.
    fn follow(&mut self) {
        while let Some((ordinal, unit)) = self.found.pop() {
            let zone = self.zones[ordinal as usize - 1].zone;
            let values = u32::from(zone.head(unit).units) - block::HEAD_UNITS;
            for index in 0..values as usize {
                // SAFETY: the payload is in the zone.
                let cell = unsafe { zone.payload(unit, index).read() };
                self.word(cell.low, Some(ordinal));
            }
        }
    }
}

impl StoreGroup {
    /// The zone in which the exceptions of the instance `ordinal` lie.
    pub(crate) fn exceptions(&self, ordinal: u32) -> ExceptionZone {
        ExceptionZone::of(self.instance(ordinal))
    }

    /// Makes an exception with room for `values`, which it is about to carry, in the
    /// zone of the instance `ordinal`, which has tags and to which they belong. `stack`
    /// is what the guest still uses of it: addresses. `None` if there is no room.
    ///
    /// # Safety
    /// `stack` is the upper part of the stack zone in use.
    pub(crate) unsafe fn allocate_exception(
        &mut self,
        ordinal: u32,
        tag: Entity,
        values: &[Cell],
        stack: Range<usize>,
    ) -> Option<ExceptionRef> {
        let zone = self.exceptions(ordinal);
        let own = if tag.ordinal == ordinal { 0 } else { tag.ordinal };
        let tag = Entity { ordinal: own, ..tag };
        let (unit, stamp) = match zone.allocate(values.len(), tag) {
            Some(made) => made,
            None => {
                // SAFETY: by this function's contract, which is the same for `stack`.
                unsafe { self.collect_exceptions(ordinal, values, stack) };
                zone.allocate(values.len(), tag)?
            }
        };
        Some(ExceptionRef::new(ordinal, stamp, unit))
    }

    /// Frees every exception that cannot be reached, and that is not among these values of
    /// the instance `ordinal`, which may lie nowhere else.
    ///
    /// # Safety
    /// As for [`Self::allocate_exception`].
    #[cold]
    unsafe fn collect_exceptions(&mut self, ordinal: u32, values: &[Cell], stack: Range<usize>) {
        let mut collection = Collection::new(self);
        values.iter().for_each(|value| collection.word(value.low, Some(ordinal)));
        // SAFETY: by this function's contract `stack` is in the stack zone, which is readable
        // and of whole words.
        unsafe { collection.words(stack, None) };
        if let Some(suspended) = self.suspended_stack() {
            // SAFETY: so is the part in use of a suspended guest's stack.
            unsafe { collection.words(suspended, None) };
        }
        for ordinal in 1..self.next_ordinal() {
            collection.instance(self, ordinal);
        }
        collection.follow();
        for marks in &collection.zones {
            if marks.zone.units > 0 {
                marks.zone.sweep(marks);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAG: Entity = Entity { ordinal: 0, own_index: 3 };

    /// A zone of `units` units.
    fn zone(memory: &mut Vec<Cell>, units: u32) -> ExceptionZone {
        memory.resize(units as usize, Cell::default());
        ExceptionZone { start: memory.as_mut_ptr().cast(), units }
    }

    #[test]
    fn room_is_used_up_and_found_again_joined() {
        let mut memory = Vec::new();
        let zone = zone(&mut memory, 17);
        let made: Vec<_> = (0..8).map(|_| zone.allocate(1, TAG).unwrap()).collect();
        assert_eq!(made[7], (15, 8));
        assert_eq!(zone.allocate(0, TAG), None);
        for at in [1, 3, 2] {
            zone.free(made[at].0.into());
        }
        // Three neighbours are one, and what is left over is used as well.
        assert_eq!(zone.allocate(4, TAG), Some((3, 9)));
        assert_eq!(zone.allocate(0, TAG), Some((8, 10)));
        assert_eq!(zone.allocate(0, TAG), None);
        assert_eq!(zone.head(3), BlockHead { units: 5, stamp: 9, flags: 0, tag: TAG });
    }

    #[test]
    fn the_last_block_goes_without_a_trace() {
        let mut memory = Vec::new();
        let zone = zone(&mut memory, 17);
        for stamp in 1..100 {
            let (unit, found) = zone.allocate(2, TAG).unwrap();
            assert_eq!((unit, found), (1, stamp));
            zone.free(unit.into());
        }
        assert_eq!(zone.end(), 1);
    }

    #[test]
    fn a_random_sequence_never_hands_room_out_twice() {
        let mut memory = Vec::new();
        let zone = zone(&mut memory, 64);
        let mut random = 1u32;
        let mut used: Vec<(u32, usize)> = Vec::new();
        for _ in 0..20_000 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            if random >> 31 == 0 && !used.is_empty() {
                let (unit, _) = used.swap_remove(random as usize % used.len());
                zone.free(unit);
                continue;
            }
            let values = (random >> 8) as usize % 9;
            if let Some((unit, _)) = zone.allocate(values, TAG) {
                used.push((unit.into(), values));
            }
            let mut places = used.clone();
            places.sort_unstable();
            for pair in places.windows(2) {
                assert!(pair[0].0 + 1 + pair[0].1 as u32 <= pair[1].0, "{pair:?}");
            }
            for (unit, values) in &used {
                assert_eq!(usize::from(zone.head(*unit).units), values + 1);
            }
        }
    }
}
