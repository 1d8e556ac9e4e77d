//! Linkers, and modules whose imports are found.

use std::sync::Arc;

use pagefork::{InstancePre, Linker};

use crate::objects::saved_program::SavedProgram;
use crate::objects::store::HostData;

/// Definitions by two names.
pub(crate) struct pagefork_linker_t(pub(crate) Linker<HostData>);

/// A module with what its imports are, or what a snapshot has.
#[derive(Clone)]
pub(crate) struct pagefork_instance_pre_t {
    /// What spawns stores.
    pub(crate) pre: InstancePre<HostData>,
    /// What a WASI program had, if it is of a snapshot with one.
    pub(crate) program: Option<Arc<SavedProgram>>,
}
