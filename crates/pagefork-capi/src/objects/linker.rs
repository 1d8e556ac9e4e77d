//! Linkers, and modules whose imports are found.

use std::sync::Arc;

use pagefork::{Engine, InstancePre, Linker, Result, UsageError};

use crate::objects::saved_program::SavedProgram;
use crate::objects::store::HostData;

/// Definitions by two names.
pub(crate) struct pagefork_linker_t(pub(crate) Linker<HostData>);

impl pagefork_linker_t {
    /// # Errors
    /// If something is of another engine than the linker.
    pub(crate) fn check_engine(&self, engine: &Engine, what: &'static str) -> Result<()> {
        match Engine::same(self.0.engine(), engine) {
            true => Ok(()),
            false => Err(UsageError::WrongEngine { what }.into()),
        }
    }
}

/// A module with what its imports are, or what a snapshot has.
#[derive(Clone)]
pub(crate) struct pagefork_instance_pre_t {
    /// What spawns stores.
    pub(crate) pre: InstancePre<HostData>,
    /// What a WASI program had, if it is of a snapshot with one.
    pub(crate) program: Option<Arc<SavedProgram>>,
}
