use std::any::Any;
use std::sync::Arc;

use crate::error::{Result, UsageError};
use crate::store::{AsContext, AsContextMut, StoreContext, StoreId, StoreInner};

/// A reference to a value of the host that guests can hold and pass on, but not
/// look into. Guests see a handle, never an address.
///
/// The value lives as long as the store, or until the store is reset.
#[derive(Clone, Copy, Debug)]
pub struct ExternRef {
    store: StoreId,
    handle: u64,
}

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

    pub(crate) fn handle(&self, store: &StoreInner) -> Result<u64> {
        match self.store == store.id {
            // A stale handle must not reach a guest, which could not tell it either.
            true if store.references.get(self.handle).is_none() => {
                Err(UsageError::ReferenceGivenUp.into())
            }
            true => Ok(self.handle),
            false => Err(UsageError::WrongStore { what: "host reference" }.into()),
        }
    }

    /// What a handle in a guest's page means; null for zero.
    pub(crate) fn from_handle(store: &StoreInner, handle: u64) -> Option<Self> {
        debug_assert!(handle == 0 || store.references.get(handle).is_some(), "a made-up handle");
        (handle != 0).then_some(Self { store: store.id, handle })
    }
}

/// The host values that a store's guests hold references to.
///
/// A handle is `generation << 32 | (index + 1)`: null is zero, and a handle from
/// before the values were given up means nothing.
#[derive(Clone, Default)]
pub(crate) struct References {
    values: Vec<Arc<dyn Any + Send + Sync>>,
    generation: u32,
}

impl References {
    fn insert(&mut self, value: Arc<dyn Any + Send + Sync>) -> Result<u64> {
        self.values.push(value);
        match u32::try_from(self.values.len()) {
            Ok(number) => Ok(u64::from(self.generation) << 32 | u64::from(number)),
            Err(_) => {
                self.values.pop();
                Err(crate::error::LimitError {
                    what: "host references",
                    requested: 1 << 32,
                    limit: u32::MAX.into(),
                    source_of_limit: crate::error::LimitSource::Index,
                }
                .into())
            }
        }
    }

    /// Gives all values up: no handle means anything any more.
    pub(crate) fn clear(&mut self) {
        if !self.values.is_empty() {
            self.values.clear();
            self.generation = self.generation.wrapping_add(1);
        }
    }

    fn get(&self, handle: u64) -> Option<&(dyn Any + Send + Sync)> {
        let index = (handle as u32).checked_sub(1)? as usize;
        let current = (handle >> 32) as u32 == self.generation;
        self.values.get(index).filter(|_| current).map(|value| &**value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_name_values_and_nothing_else() {
        let mut references = References::default();
        let seven = references.insert(Arc::new(7)).unwrap();
        let text = references.insert(Arc::new("text")).unwrap();
        let get = |handle| references.get(handle).and_then(|value| value.downcast_ref::<i32>());
        assert_eq!(get(seven), Some(&7));
        assert_eq!(get(text), None);
        assert!(references.get(0).is_none() && references.get(3).is_none());
        assert!(references.get(1 << 32 | 1).is_none());
    }
}
