//! Compiled code: text, descriptors, trap table, call sites.

use std::ops::Range;

use crate::module::DataSegment;
use crate::packed::PackedList;
use crate::trap::TrapCode;

/// Compiled code of a module, position-independent: it can be mapped at any
/// page-aligned address, readable and executable, as it is.
#[derive(Clone, PartialEq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct CodeImage {
    /// Machine code, then read-only data: the descriptors; behind them, from
    /// `code_end` on, what the following ranges say. Empty once it lies elsewhere, in
    /// memory that can be executed or in a file.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub text: Vec<u8>,
    /// Where the functions are in `text`: sorted by start, without overlap.
    #[cfg_attr(feature = "serde", serde(with = "crate::bytes::packed"))]
    pub functions: Vec<CodeRange>,
    /// Offset in `text` of the descriptors: [`descriptor::SIZE`] bytes each, one
    /// for null, then one for every function of the index space.
    pub descriptors: u32,
    /// For each canonical type, the offset of its entry stub, or `None` if no
    /// function of that type can be called from outside.
    pub entries: Vec<Option<u32>>,
    /// The same for entries with values in registers, where the type allows them.
    pub direct_entries: Vec<Option<u32>>,
    /// Where the text ends that can be executed: at the start of a page, or at the end of all. What
    /// lies behind is used where it lies, so that nothing of it is read before it is needed.
    pub code_end: u32,
    /// Where instructions that may trap by a signal are listed: (offset, reason), ascending,
    /// [packed](crate::packed).
    pub traps: Range<u32>,
    /// Where the return addresses of all calls are listed: ascending offsets, packed.
    pub call_sites: Range<u32>,
    /// Where the bytes of all data segments are.
    pub data: Range<u32>,
    /// Where [`DebugInfo`] is, encoded, up to the end. Empty if there is none.
    pub debug: Range<u32>,
    /// Where exceptions go on that leave a call, ascending by the call.
    pub handlers: Vec<LandingSite>,
}

/// Where an exception goes on that leaves a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LandingSite {
    /// The call's return address, as an offset.
    pub call_site: u32,
    /// Offset of the landing pad. rax: the exception, an absolute reference;
    /// every other register but rsp, rbp and r15 is free.
    pub landing: u32,
    /// How many bytes the stack pointer lies below the frame pointer there.
    pub frame_size: u32,
}

/// One piece of compiled code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CodeRange {
    /// Offset of its first byte in the text.
    pub start: u32,
    /// Its length in bytes.
    pub size: u32,
    /// What it is.
    pub kind: CodeKind,
}

/// What a piece of code is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CodeKind {
    /// The body of this function, or the stub of an imported one.
    Function(u32),
    /// The checked body of this function, which compares accesses with the sizes of memories; its
    /// other one is guarded. Each continues in the other if that is the right one
    /// ([`crate::link::ACCESSIBLE_PAST_SIZE`]).
    Checked(u32),
    /// Called by the host to enter a function of this canonical type: System V;
    /// rdi: the function's code. Arguments and results are in the state's cells.
    Entry(u32),
    /// The same for types whose values [fit registers](crate::link::function_import::is_direct):
    /// System V; rdi: the function's code, then come the arguments. The result comes second,
    /// after the address of the store's activation.
    DirectEntry(u32),
    /// Calls a foreign function reference of this canonical type.
    Foreign(u32),
    /// Calls a function of this canonical type of another instance: its code and
    /// base come before the arguments. In modules that catch exceptions, which
    /// must find their own base again.
    Cross(u32),
    /// Throws; its argument is [`crate::link::Service::Throw`] or
    /// [`crate::link::Service::Rethrow`], whose own arguments are in cells.
    Throw,
    /// Traps for this reason.
    Trap(TrapCode),
    /// Copies within this memory: destination, source, length, all of 32 bits.
    Copy(u32),
    /// Fills bytes of this memory: destination, byte, length, all of 32 bits.
    Fill(u32),
}

/// The static descriptor of a function.
pub mod descriptor {
    /// Offset of its code relative to the start of all descriptors: an `i32`.
    pub const CODE: u32 = 0;
    /// Offset of its canonical type index: a `u32`; [`NO_TYPE`] for null.
    pub const TYPE: u32 = 4;
    /// Bytes of a descriptor.
    pub const SIZE: u32 = 8;
    /// The type index of null: equal to no type's.
    pub const NO_TYPE: u32 = u32::MAX;
}

impl CodeImage {
    /// Whether functions have two bodies. There is a second table of descriptors then,
    /// right behind the first: of checked bodies, and of imports once more.
    pub fn is_dual(&self) -> bool {
        self.functions.iter().any(|range| matches!(range.kind, CodeKind::Checked(_)))
    }

    /// The piece of code that contains this offset.
    pub fn range_at(&self, offset: u32) -> Option<&CodeRange> {
        let after = self.functions.partition_point(|range| range.start <= offset);
        let range = &self.functions[after.checked_sub(1)?];
        (offset - range.start < range.size).then_some(range)
    }

    /// What of the text lies behind the code, while the text is here.
    pub fn behind(&self) -> &[u8] {
        &self.text[self.code_end as usize..]
    }

    /// One of the ranges of what lies behind the code, wherever that is.
    fn part<'a>(&self, behind: &'a [u8], range: &Range<u32>) -> &'a [u8] {
        &behind[(range.start - self.code_end) as usize..(range.end - self.code_end) as usize]
    }

    /// Instructions that may trap by a signal: (offset, reason), ascending.
    pub fn traps<'a>(&self, behind: &'a [u8]) -> PackedList<'a, (u32, TrapCode)> {
        PackedList::new(self.part(behind, &self.traps))
    }

    /// Return addresses of all calls, ascending offsets.
    pub fn call_sites<'a>(&self, behind: &'a [u8]) -> PackedList<'a, u32> {
        PackedList::new(self.part(behind, &self.call_sites))
    }

    /// The bytes of a data segment of the module.
    pub fn segment<'a>(&self, behind: &'a [u8], segment: &DataSegment) -> &'a [u8] {
        let all = self.part(behind, &self.data);
        &all[segment.bytes.start as usize..segment.bytes.end as usize]
    }

    /// [`DebugInfo`], encoded.
    pub fn debug<'a>(&self, behind: &'a [u8]) -> &'a [u8] {
        self.part(behind, &self.debug)
    }

    /// Why the instruction at this offset traps when it raises a signal.
    pub fn trap_at(&self, behind: &[u8], offset: u32) -> Option<TrapCode> {
        let traps = self.traps(behind);
        let at = traps.partition_point(|(listed, _)| *listed < offset);
        traps.get(at).filter(|(listed, _)| *listed == offset).map(|(_, code)| code)
    }

    /// Where an exception goes on that leaves the call with this return address.
    pub fn handler_at(&self, return_address: u32) -> Option<&LandingSite> {
        let at = self.handlers.binary_search_by_key(&return_address, |handler| handler.call_site);
        Some(&self.handlers[at.ok()?])
    }

    /// Offset in `text`, which is this image's wherever it lies, of the code of
    /// function `index` of the index space.
    ///
    /// # Panics
    /// If there is no such function.
    pub fn function_code(&self, text: &[u8], index: u32) -> u32 {
        let at = self.descriptors + (index + 1) * descriptor::SIZE + descriptor::CODE;
        let word = text[at as usize..][..4].try_into().expect("four bytes");
        self.descriptors.wrapping_add_signed(i32::from_le_bytes(word))
    }
}

/// What is kept of a module for people only: it lies behind the code, so that it
/// is not read before it is asked for.
#[derive(Clone, PartialEq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct DebugInfo {
    /// Where code comes from: (offset in the text, byte offset in the module),
    /// ascending, for the first byte of each function the module defines, for each
    /// instruction that may trap by a signal, and for each call's return address.
    #[cfg_attr(feature = "serde", serde(with = "crate::bytes::packed"))]
    pub sources: Vec<(u32, u32)>,
    /// Custom sections in the DWARF format, by name.
    #[cfg_attr(feature = "serde", serde(with = "crate::bytes::named"))]
    pub dwarf: Vec<(String, Box<[u8]>)>,
    /// Byte offset in the module of what the code section contains: addresses in
    /// `dwarf` count from there.
    pub code_start: u32,
}

impl DebugInfo {
    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.sources.is_empty() && self.dwarf.is_empty()
    }

    /// Where in the module what is at this offset in the text comes from: of a
    /// call, the offset that it returns to.
    pub fn source_at(&self, offset: u32) -> Option<u32> {
        let at = self.sources.binary_search_by_key(&offset, |(offset, _)| *offset).ok()?;
        Some(self.sources[at].1)
    }
}
