//! Tags of exceptions as embedders make them.

use pagefork_layout::module::FuncType;

use crate::api::store::{AsContext, AsContextMut};
use crate::base::error::{Result, UsageError};
use crate::code::host_entity::HostEntity;
use crate::run::instantiate::spawn_alone;
use crate::store::handle::Tag;

impl Tag {
    /// Makes a tag of the host; exceptions with it carry values of the types of
    /// the parameters of `ty`.
    ///
    /// # Errors
    /// If the type has results, a limit of the store is met, or the system
    /// refuses address space.
    ///
    /// # Examples
    ///
    /// See [`Tag`].
    pub fn new(mut store: impl AsContextMut, ty: FuncType) -> Result<Self> {
        let mut context = store.as_context_mut();
        if !ty.results.is_empty() {
            return Err(UsageError::InvalidType(format!("a tag with results: {ty}")).into());
        }
        let info = HostEntity::Tag(ty).info();
        // SAFETY: the store is borrowed, and the pointer is to the whole of it.
        let entity = unsafe { spawn_alone(context.as_ptr(), info)? };
        Ok(Self::from_entity(&context.0.inner, entity))
    }

    /// The tag's type: exceptions carry its parameters.
    ///
    /// # Panics
    /// If the tag is of another store.
    ///
    /// # Examples
    ///
    /// See [`Tag`].
    pub fn ty(&self, store: impl AsContext) -> FuncType {
        let store = &store.as_context().0.inner;
        store.tag_type(self.entity_or_panic(store)).clone()
    }
}
