//! All of a captured store but its pages, as plain data: what is kept of it outside this process.

use pagefork_image::ContentHash;
use pagefork_layout::module::FuncType;
use serde::{Deserialize, Serialize};

use crate::code::host_entity::HostEntity;

/// What a store was, but for the pages of its instances and the embedder's data. It has no address
/// of the host, nor any number of this process.
///
/// It is trusted with nothing: what is made of it was checked by [`load`](crate::run::load).
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct StoreRecord {
    /// By ordinal, less one.
    pub(crate) instances: Vec<InstanceRecord>,
    /// Ordinal of the instance that spawning returns.
    pub(crate) main: u32,
    /// All of the store's, by their numbers.
    pub(crate) host_functions: Vec<HostFuncRecord>,
    pub(crate) references: Vec<ReferenceRecord>,
    pub(crate) fuel: i64,
    pub(crate) call: Option<CallRecord>,
}

/// What an instance was.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct InstanceRecord {
    pub(crate) origin: InstanceOrigin,
    /// What the module's slots are laid out by; see [`layout_words`](crate::run::save::layout_words).
    pub(crate) layout: Vec<u64>,
    /// In bytes.
    pub(crate) memory_sizes: Vec<u64>,
    /// In elements.
    pub(crate) table_lengths: Vec<u64>,
    pub(crate) imports: ImportsRecord,
    /// The part in use of the exceptions zone.
    pub(crate) exceptions: Vec<u8>,
}

/// What an instance is of.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) enum InstanceOrigin {
    Module {
        name: String,
        /// Hash of the module's bytes.
        module: ContentHash,
        /// Hash of its code image.
        code: ContentHash,
    },
    Host(HostEntity),
}

/// What an instance imports: definitions, in the order of each index space.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ImportsRecord {
    /// Absolute references.
    pub(crate) functions: Vec<u64>,
    /// Each the ordinal of an instance, and the number among those that it defines.
    pub(crate) tables: Vec<(u32, u32)>,
    pub(crate) memories: Vec<(u32, u32)>,
    pub(crate) globals: Vec<(u32, u32)>,
    pub(crate) tags: Vec<(u32, u32)>,
}

/// A function of the host, by the names that a linker knows it by.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct HostFuncRecord {
    pub(crate) module: String,
    pub(crate) name: String,
    /// Its type, if that means the same in every engine.
    pub(crate) ty: Option<FuncType>,
}

/// A value of the host that guests hold a reference to.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct ReferenceRecord {
    pub(crate) handle: u64,
    /// The embedder's.
    pub(crate) bytes: Vec<u8>,
}

/// A suspended guest. Its registers are in the page of its instance's save area.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct CallRecord {
    pub(crate) ordinal: u32,
    pub(crate) stack_owner: u32,
    /// A [`Suspension`](pagefork_layout::state::save::Suspension).
    pub(crate) kind: u32,
    /// The function that the embedder called: an absolute reference.
    pub(crate) function: u64,
    pub(crate) host_function: Option<u32>,
    /// What is left of the call's timeout.
    pub(crate) rest_ns: Option<u64>,
    /// The part in use of the stack; words that are addresses are zero.
    pub(crate) stack: Vec<u8>,
    /// Those words, innermost first.
    pub(crate) frames: Vec<FrameRecord>,
}

/// A word of a stack that is an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct FrameRecord {
    /// Bytes below the top of the stack.
    pub(crate) place: u32,
    pub(crate) word: FrameRecordWord,
}

/// What an address on a stack is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum FrameRecordWord {
    /// A saved frame pointer, in bytes below the top; `None` at the end of the chain.
    FramePointer(Option<u32>),
    /// The return address of a call.
    Return {
        /// The first instance that has this code.
        ordinal: u32,
        /// The number of the piece of code that called.
        piece: u32,
        /// The number of the call in it.
        call_site: u32,
    },
    /// A return address in the thunk through which the guest was entered.
    ReturnToHost,
}
