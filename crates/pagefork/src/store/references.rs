//! References to values of the host, and the values.

use std::any::Any;
use std::collections::HashSet;
use std::sync::Arc;

use crate::base::error::{LimitError, LimitSource, Result, UsageError};
use crate::store::group::{StoreGroup, StoreId};

/// A reference to a value of the host that guests can hold and pass on, but not
/// look into. Guests see a handle, never an address.
///
/// The value lives as long as the store, until the store is reset, or until
/// [`Store::collect_references`](crate::Store::collect_references) finds that no guest holds it.
///
/// # Examples
///
/// ```
/// use pagefork::{Engine, ExternRef, Store};
///
/// let mut store = Store::new(&Engine::default(), ());
/// let reference = ExternRef::new(&mut store, "a value of the host")?;
/// assert_eq!(reference.data(&store)?.downcast_ref(), Some(&"a value of the host"));
/// // Each is a value of its own, as the references that guests compare are.
/// let other = ExternRef::new(&mut store, "a value of the host")?;
/// assert!(!ExternRef::ptr_eq(&store, &reference, &other)?);
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
/// A handle is `generation << 32 | (index + 1)`: null is zero, and a handle of a value that was
/// given up means nothing, also when another value has its place.
#[derive(Clone, Default)]
pub(crate) struct References {
    values: Vec<HeldValue>,
    /// Places whose values were given up.
    free: Vec<u32>,
    /// Of the values that come next: greater than that of each value that was given up.
    generation: u32,
}

/// A place for a value.
#[derive(Clone)]
struct HeldValue {
    /// Absent once it was given up.
    value: Option<Arc<dyn Any + Send + Sync>>,
    generation: u32,
}

impl References {
    pub(crate) fn insert(&mut self, value: Arc<dyn Any + Send + Sync>) -> Result<u64> {
        let held = HeldValue { value: Some(value), generation: self.generation };
        let index = match self.free.pop() {
            Some(index) => {
                self.values[index as usize] = held;
                index
            }
            None => {
                let index = self.values.len() as u32;
                if index == u32::MAX {
                    return Err(LimitError {
                        what: "host references",
                        requested: 1 << 32,
                        limit: u32::MAX.into(),
                        source_of_limit: LimitSource::Index,
                    }
                    .into());
                }
                self.values.push(held);
                index
            }
        };
        Ok(u64::from(self.generation) << 32 | u64::from(index + 1))
    }

    /// Whether there are no values.
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Others under the same handles.
    ///
    /// # Errors
    /// What `other` fails with.
    pub(crate) fn map(
        &self,
        mut other: impl FnMut(&(dyn Any + Send + Sync)) -> Result<Arc<dyn Any + Send + Sync>>,
    ) -> Result<Self> {
        let other_value = |held: &HeldValue| {
            let value = held.value.as_deref().map(&mut other).transpose()?;
            Ok(HeldValue { value, ..*held })
        };
        let values = self.values.iter().map(other_value).collect::<Result<_>>()?;
        Ok(Self { values, free: self.free.clone(), generation: self.generation })
    }

    /// Values under these handles, if there can be such: each of a number of its own below `max`.
    pub(crate) fn of_handles(
        values: Vec<(u64, Arc<dyn Any + Send + Sync>)>,
        max: u32,
    ) -> Option<Self> {
        let mut references = Self::default();
        for (handle, value) in values {
            let index = (handle as u32).checked_sub(1).filter(|index| *index < max)? as usize;
            let generation = (handle >> 32) as u32;
            while references.values.len() <= index {
                references.values.push(HeldValue { value: None, generation: 0 });
            }
            let place = &mut references.values[index];
            if place.value.is_some() {
                return None;
            }
            *place = HeldValue { value: Some(value), generation };
            // What was given up before may have had any number up to that.
            references.generation = references.generation.max(generation.wrapping_add(1));
        }
        let free = references.values.iter().zip(0..).filter(|(held, _)| held.value.is_none());
        references.free = free.map(|(_, index)| index).collect();
        Some(references)
    }

    /// All values, with their handles.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &(dyn Any + Send + Sync))> {
        self.values.iter().zip(1u32..).filter_map(|(held, number)| {
            let handle = u64::from(held.generation) << 32 | u64::from(number);
            Some((handle, held.value.as_deref()?))
        })
    }

    /// Becomes the others; handles from before that are not theirs mean nothing.
    pub(crate) fn replace_by(&mut self, others: &Self) {
        let generation = self.generation.max(others.generation);
        *self = Self { generation, ..others.clone() };
    }

    /// Gives all values up: no handle means anything any more.
    pub(crate) fn clear(&mut self) {
        if !self.values.is_empty() {
            self.values.clear();
            self.free.clear();
            self.generation = self.generation.wrapping_add(1);
        }
    }

    /// Gives up all values but those with these handles; returns them.
    pub(crate) fn keep(&mut self, handles: &HashSet<u64>) -> Vec<Arc<dyn Any + Send + Sync>> {
        let mut given_up = Vec::new();
        for (held, index) in self.values.iter_mut().zip(0u32..) {
            let handle = u64::from(held.generation) << 32 | u64::from(index + 1);
            if !handles.contains(&handle)
                && let Some(value) = held.value.take()
            {
                given_up.push(value);
                self.free.push(index);
            }
        }
        if !given_up.is_empty() {
            self.generation = self.generation.wrapping_add(1);
        }
        given_up
    }

    /// How many values there are.
    pub(crate) fn len(&self) -> usize {
        self.values.len() - self.free.len()
    }

    pub(crate) fn get(&self, handle: u64) -> Option<&(dyn Any + Send + Sync)> {
        let index = (handle as u32).checked_sub(1)? as usize;
        let held = self.values.get(index)?;
        let current = (handle >> 32) as u32 == held.generation;
        held.value.as_deref().filter(|_| current)
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

    #[test]
    fn a_handle_of_a_value_that_was_given_up_names_none_that_takes_its_place() {
        let mut references = References::default();
        let [first, second] = [1, 2].map(|value| references.insert(Arc::new(value)).unwrap());
        assert_eq!(references.keep(&HashSet::from([second])).len(), 1);
        let third = references.insert(Arc::new(3)).unwrap();
        assert_eq!((first as u32, references.len()), (third as u32, 2));
        let get = |handle| references.get(handle).and_then(|value| value.downcast_ref::<i32>());
        assert_eq!([get(first), get(second), get(third)], [None, Some(&2), Some(&3)]);
    }
}
