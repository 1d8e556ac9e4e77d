//! References to values of the host, and the values.

use std::any::Any;
use std::sync::Arc;

use crate::base::error::{LimitError, LimitSource, Result, UsageError};
use crate::store::group::{StoreGroup, StoreId};

/// A reference to a value of the host that guests can hold and pass on, but not
/// look into. Guests see a handle, never an address.
///
/// The value lives as long as the store, or until the store is reset.
///
/// # Examples
///
/// ```
/// use pagefork::{Engine, ExternRef, Store};
///
/// let mut store = Store::new(&Engine::default(), ());
/// let reference = ExternRef::new(&mut store, "a value of the host")?;
/// assert_eq!(reference.data(&store)?.downcast_ref(), Some(&"a value of the host"));
/// # Ok::<(), pagefork::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ExternRef {
    pub(crate) store: StoreId,
    pub(crate) handle: u64,
}

impl ExternRef {
    pub(crate) fn handle(&self, store: &StoreGroup) -> Result<u64> {
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
    pub(crate) fn from_handle(store: &StoreGroup, handle: u64) -> Option<Self> {
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
    pub(crate) fn insert(&mut self, value: Arc<dyn Any + Send + Sync>) -> Result<u64> {
        self.values.push(value);
        match u32::try_from(self.values.len()) {
            Ok(number) => Ok(u64::from(self.generation) << 32 | u64::from(number)),
            Err(_) => {
                self.values.pop();
                Err(LimitError {
                    what: "host references",
                    requested: 1 << 32,
                    limit: u32::MAX.into(),
                    source_of_limit: LimitSource::Index,
                }
                .into())
            }
        }
    }

    /// Whether there are no values.
    pub(crate) fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Others under the same handles.
    ///
    /// # Errors
    /// What `other` fails with.
    pub(crate) fn map(
        &self,
        mut other: impl FnMut(&(dyn Any + Send + Sync)) -> Result<Arc<dyn Any + Send + Sync>>,
    ) -> Result<Self> {
        let values = self.values.iter().map(|value| other(&**value)).collect::<Result<_>>()?;
        Ok(Self { values, generation: self.generation })
    }

    /// Gives all values up: no handle means anything any more.
    pub(crate) fn clear(&mut self) {
        if !self.values.is_empty() {
            self.values.clear();
            self.generation = self.generation.wrapping_add(1);
        }
    }

    pub(crate) fn get(&self, handle: u64) -> Option<&(dyn Any + Send + Sync)> {
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
