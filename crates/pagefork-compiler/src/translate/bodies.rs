//! Dual bodies: each function has a *guarded* body, which relies on guard pages, and a *checked*
//! one, which compares accesses of the instance's own memories with their sizes. So a slot may
//! leave accessible what an earlier run had grown into; that costs comparisons until this run has
//! grown as far.
//!
//! Each body calls others of its kind. When it is entered, it tests whether it is the right one,
//! together with the test for interrupts. A memory never becomes smaller while code runs, so what
//! a guarded body relies on stays true while it runs. A checked body is right at any time.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{InstBuilder, types};
use pagefork_layout::code::descriptor;
use pagefork_layout::link;

use super::{ModuleContext, Symbol, Translator};
use crate::base::options::Bounds;

/// Which body of its function this is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BodyKind {
    /// The function has one body.
    Only,
    /// Relies on guard pages.
    Guarded,
    /// Compares accesses with sizes.
    Checked,
}

impl BodyKind {
    /// Both bodies of a function of a dual module.
    pub(crate) const DUAL: &[Self] = &[Self::Guarded, Self::Checked];

    /// What this body of a function is called by.
    pub(super) fn symbol(self, index: u32) -> Symbol {
        match self {
            Self::Only | Self::Guarded => Symbol::Function(index),
            Self::Checked => Symbol::Checked(index),
        }
    }
}

impl ModuleContext<'_> {
    /// Whether functions have two bodies: only if an access can differ between them.
    pub(crate) fn is_dual(&self) -> bool {
        let mut own = self.info.memories.iter().skip(self.info.imported_memories as usize);
        self.options.bounds == Bounds::Dual && own.any(|memory| !memory.memory64)
    }
}

impl Translator<'_> {
    /// What a function of the index space is called by here.
    pub(super) fn callee(&self, index: u32) -> Symbol {
        match index < self.module.info.imported_functions {
            true => Symbol::Function(index),
            false => self.body_kind.symbol(index),
        }
    }

    /// How far behind a descriptor that is which tells the code to be called here.
    pub(super) fn descriptor_distance(&self) -> u32 {
        match self.body_kind {
            BodyKind::Only | BodyKind::Guarded => 0,
            BodyKind::Checked => (self.module.info.functions.len() as u32 + 1) * descriptor::SIZE,
        }
    }

    /// Tests whether an interrupt is wanted, and whether the function is to go on in its
    /// other body: one test, if neither is so.
    pub(super) fn choose_body(&mut self, index: u32) {
        let (usual, other) = match self.body_kind {
            BodyKind::Only => return self.interruption_point(),
            BodyKind::Guarded => (0, Symbol::Checked(index)),
            BodyKind::Checked => (1, Symbol::Function(index)),
        };
        debug_assert_eq!(
            (link::ACCESSIBLE_PAST_SIZE + 4, link::ACCESSIBLE_PAST_SIZE % 8),
            (link::INTERRUPT, 0)
        );
        let entry = self.b.func.layout.entry_block().expect("a block is open from the start");
        let args = self.b.block_params(entry).to_vec();
        let width = if self.module.options.interruptible { types::I64 } else { types::I32 };
        let [unusual, leave, next] = std::array::from_fn(|_| self.b.create_block());
        self.b.set_cold_block(unusual);
        self.b.set_cold_block(leave);
        let word = self.link_word(width, link::ACCESSIBLE_PAST_SIZE);
        let differs = self.b.ins().icmp_imm_u(IntCC::NotEqual, word, usual);
        self.b.ins().brif(differs, unusual, &[], next, &[]);

        self.open_block(unusual);
        self.interruption_point();
        let uninterrupted = self.b.current_block().expect("one that is open");
        self.b.set_cold_block(uninterrupted);
        let beyond = self.link_word(types::I32, link::ACCESSIBLE_PAST_SIZE);
        let [here, there] = if usual == 0 { [next, leave] } else { [leave, next] };
        self.b.ins().brif(beyond, there, &[], here, &[]);

        self.open_block(leave);
        let other = self.symbol(other);
        self.b.ins().return_call(other, &args);
        self.open_block(next);
    }
}
