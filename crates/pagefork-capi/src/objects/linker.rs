//! Linkers, and modules whose imports are found.

use pagefork::{InstancePre, Linker};

use crate::objects::store::HostData;

/// Definitions by two names.
pub(crate) struct pagefork_linker_t(pub(crate) Linker<HostData>);

/// A module with what its imports are.
pub(crate) struct pagefork_instance_pre_t(pub(crate) InstancePre<HostData>);
