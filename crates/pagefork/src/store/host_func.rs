//! Functions of the host, as a store keeps and calls them.

use std::any::Any;
use std::sync::{Arc, OnceLock};

use pagefork_layout::module::FuncType;

use crate::base::cell::Cell;
use crate::base::error::Result;
use crate::code::types::{TypeId, TypeUses};
use crate::store::foreign::ForeignCall;
use crate::store::group::StoreGroup;

/// A function of the host, ready to be called with cells.
pub struct HostFunc {
    pub(crate) ty: Arc<FuncType>,
    pub(crate) type_id: TypeId,
    pub(crate) call: Box<HostCall>,
    /// How guests call it directly, if they can.
    pub(crate) direct: Option<DirectCall>,
    /// By what two names a linker knew it first: in a file, that is what a function of the host is.
    pub(crate) names: OnceLock<HostFuncNames>,
    pub(crate) _uses: TypeUses,
}

/// The two names under which a linker knows a function of the host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct HostFuncNames {
    pub(crate) module: Box<str>,
    pub(crate) name: Box<str>,
}

/// How guests call a host function with arguments in registers.
pub(crate) struct DirectCall {
    /// Address of the shim: code made for the closure and its type, to be called as
    /// [`function_import`](pagefork_layout::link::function_import) says.
    pub(crate) shim: usize,
    /// As `shim`, but one that keeps the arguments, so that the call can be made again.
    pub(crate) keeping_shim: usize,
    /// What the shim calls.
    pub(crate) closure: Arc<dyn Any + Send + Sync>,
    /// The function of C's that guests call in its place, if there is one.
    pub(crate) foreign: Option<ForeignCall>,
}

/// What calls a host function.
///
/// # Safety
/// To be called with a store whose data are of the type that the function was
/// made for, exclusively the caller's, the pointer with the provenance of the
/// whole; with as many cells as it has parameters and as it has results, which
/// hold its arguments; and with the base of the calling instance of this store,
/// or 0. It replaces the arguments by the results.
pub(crate) type HostCall = dyn Fn(*mut StoreGroup, *mut Cell, usize) -> Result<()> + Send + Sync;
