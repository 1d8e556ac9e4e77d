//! References to host values as embedders make and read them.

use std::any::Any;
use std::sync::Arc;

use crate::api::store::{AsContext, AsContextMut, StoreContext};
use crate::base::error::{Result, UsageError};
use crate::store::references::ExternRef;

impl ExternRef {
    /// Gives `value` to `store`, and returns the reference to it.
    ///
    /// # Errors
    /// If the store holds 2^32 values already.
    pub fn new(mut store: impl AsContextMut, value: impl Any + Send + Sync) -> Result<Self> {
        let store = &mut store.as_context_mut().0.inner;
        let handle = store.references.insert(Arc::new(value))?;
        Ok(Self { store: store.id, handle })
    }

    /// The value.
    ///
    /// # Errors
    /// If the reference is of another store, or from before the store was reset.
    pub fn data<'a, T: 'static>(
        &self,
        store: impl Into<StoreContext<'a, T>>,
    ) -> Result<&'a (dyn Any + Send + Sync)> {
        let store = &store.into().0.inner;
        let value = store.references.get(self.handle(store)?);
        value.ok_or_else(|| UsageError::ReferenceGivenUp.into())
    }

    /// Whether both refer to the same value.
    ///
    /// # Errors
    /// If one of them is of another store.
    pub fn ptr_eq(store: impl AsContext, a: &Self, b: &Self) -> Result<bool> {
        let store = &store.as_context().0.inner;
        Ok(a.handle(store)? == b.handle(store)?)
    }
}
