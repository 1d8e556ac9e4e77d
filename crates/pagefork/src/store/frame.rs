//! What entering and leaving a guest passes between host code and assembly.

use std::mem::offset_of;

use pagefork_layout::link::activation as contract;
use pagefork_layout::module::ValType;

use crate::store::activation::Activation;

/// What an entry leaves on the host stack, at `HOST_SP`.
#[repr(C)]
pub(crate) struct EntryFrame {
    pub(crate) activation: *mut Activation,
    /// The activation around this one: its `host_sp`, zero if there is none.
    pub(crate) outer_host_sp: usize,
    pub(crate) outer_guest_sp: usize,
    pub(crate) outer_guest_base: usize,
    unused: usize,
    /// r15, r14, r13, r12, rbx, rbp, return address.
    saved: [usize; 7],
}

const _: () = {
    assert!(size_of::<EntryFrame>() == 96);
    assert!(offset_of!(EntryFrame, outer_host_sp) == 8);
    assert!(offset_of!(EntryFrame, outer_guest_sp) == 16);
    assert!(offset_of!(EntryFrame, outer_guest_base) == 24);
    assert!(contract::HOST_SP == 0);
};

/// Addresses of the thunks.
pub(crate) struct Thunks {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) host_call: usize,
    pub(crate) interrupt: usize,
    pub(crate) trap: usize,
    /// Where the signal handler continues a guest that trapped.
    pub(crate) trapped: usize,
    pub(crate) bulk: BulkThunks,
    pub(crate) direct: DirectThunks,
}

/// Addresses of the thunks that move bytes and set them.
#[derive(Clone, Copy)]
pub(crate) struct BulkThunks {
    pub(crate) plain: [usize; 2],
    /// Those of stores that may have absent pages: they wait for them.
    pub(crate) waiting: [usize; 2],
}

/// Addresses of the thunks for direct host calls, by the kind of the result.
#[derive(Clone, Copy)]
pub(crate) struct DirectThunks {
    /// Those that clear what host code left in the register of the result alone.
    pub(crate) result: DirectThunkSet,
    /// Those that clear all registers that a call may change.
    pub(crate) all: DirectThunkSet,
    /// Those for functions of C's, which clear what is left of the result's register.
    pub(crate) foreign: DirectThunkSet,
    /// Those for functions of C's on cells that have at most one parameter.
    pub(crate) cell: DirectThunkSet,
    /// Those for functions of C's on cells that have more.
    pub(crate) cells: DirectThunkSet,
}

/// A thunk for each kind of result.
#[derive(Clone, Copy)]
pub(crate) struct DirectThunkSet {
    pub(crate) none: usize,
    pub(crate) i32: usize,
    pub(crate) i64: usize,
    pub(crate) f32: usize,
    pub(crate) f64: usize,
}

impl DirectThunkSet {
    /// The one for functions with these results, of which there is one at most.
    pub(crate) fn of(&self, results: &[ValType]) -> usize {
        match results {
            [] => self.none,
            [ValType::I32, ..] => self.i32,
            [ValType::F32, ..] => self.f32,
            [ValType::F64, ..] => self.f64,
            [..] => self.i64,
        }
    }

    fn all(&self) -> [usize; 5] {
        [self.none, self.i32, self.i64, self.f32, self.f64]
    }
}

impl Thunks {
    /// Whether the instruction at `pc` is one of theirs.
    pub(crate) fn contains(&self, pc: usize) -> bool {
        (self.start..self.end).contains(&pc)
    }

    /// Those that guests call.
    pub(crate) fn called_by_guests(&self) -> impl Iterator<Item = usize> {
        let Self { host_call, interrupt, trap, bulk, direct, .. } = self;
        let others = [*host_call, *interrupt, *trap];
        others
            .into_iter()
            .chain(bulk.plain)
            .chain(bulk.waiting)
            .chain(direct.result.all())
            .chain(direct.all.all())
            .chain(direct.foreign.all())
            .chain(direct.cell.all())
            .chain(direct.cells.all())
    }
}

/// A function to enter: addresses that are valid as long as the store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) base: usize,
    pub(crate) ordinal: u32,
    pub(crate) stack_top: usize,
    /// Where the instance's cells are.
    pub(crate) cells: usize,
    /// The entry stub of the function's type.
    pub(crate) entry: usize,
    /// The entry stub for values in registers, 0 if its type has none.
    pub(crate) direct_entry: usize,
    /// The function's code.
    pub(crate) code: usize,
}

impl Target {
    /// No function.
    pub(crate) const NONE: Self =
        Self { base: 0, ordinal: 0, stack_top: 0, cells: 0, entry: 0, direct_entry: 0, code: 0 };
}

/// Where a guest goes on that catches an exception: what the assembly reads.
#[derive(Clone, Copy, Default, Debug)]
#[repr(C)]
pub(crate) struct Landing {
    /// Stack pointer and frame pointer of the function that catches.
    pub(crate) sp: usize,
    pub(crate) fp: usize,
    /// Address of its landing pad.
    pub(crate) pc: usize,
    /// The exception, an absolute reference.
    pub(crate) exception: u64,
}
