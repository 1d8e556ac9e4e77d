//! References to host values as embedders make and read them.

use std::any::Any;
use std::sync::Arc;

use crate::api::store::{AsContext, AsContextMut, Store, StoreContext, StoreContextMut};
use crate::base::error::{Result, UsageError};
use crate::store::references::ExternRef;

impl ExternRef {
    /// Gives `value` to `store`, and returns the reference to it.
    ///
    /// # Errors
    /// If the store holds 2^32 values already.
    ///
    /// # Examples
    ///
    /// See [`ExternRef`].
    pub fn new(mut store: impl AsContextMut, value: impl Any + Send + Sync) -> Result<Self> {
        let store = &mut store.as_context_mut().0.inner;
        let handle = store.references.insert(Arc::new(value))?;
        Ok(Self { store: store.id, handle })
    }

    /// The value.
    ///
    /// # Errors
    /// If the reference is of another store, or from before the store was reset.
    ///
    /// # Examples
    ///
    /// See [`ExternRef`].
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
    ///
    /// # Examples
    ///
    /// See [`ExternRef`].
    pub fn ptr_eq(store: impl AsContext, a: &Self, b: &Self) -> Result<bool> {
        let store = &store.as_context().0.inner;
        Ok(a.handle(store)? == b.handle(store)?)
    }
}

impl<T: 'static> Store<T> {
    /// Drops the host values that no guest of this store holds a [reference](ExternRef) to;
    /// returns how many. References to them mean nothing any more, those included that the
    /// embedder has kept. While a guest is in a host function or suspended, none is dropped.
    ///
    /// Each table and global that holds such references is read; nothing does this by itself.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Engine, ExternRef, Global, GlobalType, Mutability, Store, ValType};
    ///
    /// let mut store = Store::new(&Engine::default(), ());
    /// let (kept, other) = (ExternRef::new(&mut store, 1)?, ExternRef::new(&mut store, 2)?);
    /// let ty = GlobalType::new(ValType::EXTERNREF, Mutability::Var);
    /// Global::new(&mut store, ty, kept.into())?;
    /// assert_eq!(store.collect_references(), 1);
    /// assert!(kept.data(&store).is_ok() && other.data(&store).is_err());
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn collect_references(&mut self) -> usize {
        StoreContextMut::from(self).collect_references()
    }
}

impl<T: 'static> StoreContextMut<'_, T> {
    /// As [`Store::collect_references`].
    ///
    /// # Examples
    ///
    /// See [`Store::collect_references`].
    pub fn collect_references(&mut self) -> usize {
        self.0.inner.collect_references()
    }

    /// How many host values guests may hold references to.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{AsContextMut, Engine, ExternRef, Store};
    ///
    /// let mut store = Store::new(&Engine::default(), ());
    /// ExternRef::new(&mut store, "a value")?;
    /// let mut context = store.as_context_mut();
    /// assert_eq!(context.reference_count(), 1);
    /// context.collect_references();
    /// assert_eq!(context.reference_count(), 0);
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn reference_count(&self) -> usize {
        self.0.inner.references.len()
    }
}
