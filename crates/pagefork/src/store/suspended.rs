//! What a store remembers of a suspended guest, and of the store that it is a copy of.

use std::ops::Range;
use std::time::Duration;

use pagefork_layout::reference::{FuncRef, HOST_ORDINAL};
use pagefork_layout::state::save::{self, Suspension};

use crate::base::error::{Result, UsageError};
use crate::store::group::{Entity, StoreGroup, StoreId};

/// What the host keeps about a suspended guest.
#[derive(Clone, Debug)]
pub(crate) struct Suspended {
    /// The instance whose save area holds the registers.
    pub(crate) ordinal: u32,
    /// The instance in whose slot the stack lies.
    pub(crate) stack_owner: u32,
    pub(crate) kind: Suspension,
    /// The function that the embedder called.
    pub(crate) function: FuncRef,
    /// The host function that is to be called, with its arguments in the save area, before the
    /// guest goes on; `None` if it has returned, or there is none.
    pub(crate) host_function: Option<u32>,
    /// What is left of the call's timeout.
    pub(crate) rest: Option<Duration>,
    /// Whether an asynchronous call waits for it, which alone can go on with it.
    pub(crate) of_task: bool,
}

impl Suspended {
    pub(crate) fn new(ordinal: u32, stack_owner: u32, kind: Suspension) -> Self {
        Self {
            ordinal,
            stack_owner,
            kind,
            function: FuncRef::NULL,
            host_function: None,
            rest: None,
            of_task: false,
        }
    }
}

impl StoreGroup {
    /// The part in use of the stack on which a guest is suspended: addresses.
    pub(crate) fn suspended_stack(&self) -> Option<Range<usize>> {
        let suspended = self.suspended.as_ref()?;
        let instance = self.instance(suspended.ordinal);
        let save_area = instance.at(instance.module.layout().state_parts.save_area.into());
        // SAFETY: the save area is in the state zone.
        let size = unsafe { save_area.byte_add(save::SP as usize).cast::<u64>().read() } as usize;
        let top = self.instance(suspended.stack_owner).slot.stack_top().expose_provenance();
        Some(top - size..top)
    }
}

/// A word of a suspended guest's stack that is an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameWord {
    /// Where it lies: an offset in the slot that has the stack.
    pub offset: u64,
    /// What it is.
    pub kind: FrameWordKind,
}

/// What an address on the stack is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameWordKind {
    /// A saved frame pointer, as a distance below the top of the stack; `None` at
    /// the end of the chain.
    FramePointer(Option<u64>),
    /// A return address: an offset in the text of the instance with this number.
    ReturnAddress {
        /// The first instance that has this code.
        ordinal: u32,
        /// Offset in its module's text.
        offset: u32,
    },
    /// A return address in the thunk through which the guest was entered.
    ReturnToHost,
}

/// What a store is a [copy](copy_to) of. As long as both stores have their identities,
/// the first instances and host functions are the same in both: only later ones are ever
/// taken back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copied {
    pub(crate) source: StoreId,
    /// How many instances were copied.
    pub(crate) instances: u32,
    /// How many host functions were copied.
    pub(crate) host_functions: u32,
}

impl Copied {
    /// # Errors
    /// If `target` is not a copy of that store.
    pub(crate) fn of_store(target: &StoreGroup, source: StoreId) -> Result<Self> {
        let copied = target.copied.filter(|copied| copied.source == source);
        copied.ok_or_else(|| UsageError::WrongStore { what: "copy" }.into())
    }

    /// # Errors
    /// If the instance was made after the copy.
    pub(crate) fn instance(self, ordinal: u32) -> Result<u32> {
        match ordinal <= self.instances {
            true => Ok(ordinal),
            false => Err(UsageError::WrongStore { what: "instance" }.into()),
        }
    }

    /// # Errors
    /// If the place is of an instance that was made after the copy.
    pub(crate) fn entity(self, entity: Entity) -> Result<Entity> {
        self.instance(entity.ordinal).map(|ordinal| Entity { ordinal, ..entity })
    }

    /// # Errors
    /// If the function was defined after the copy.
    pub(crate) fn function(self, function: FuncRef) -> Result<FuncRef> {
        match (function.ordinal(), function.index()) {
            (HOST_ORDINAL, Some(index)) if index < self.host_functions => Ok(function),
            (HOST_ORDINAL, _) => Err(UsageError::WrongStore { what: "function" }.into()),
            (ordinal, _) => self.instance(ordinal).map(|_| function),
        }
    }
}
