//! Tables as embedders make, read and write them.

use pagefork_layout::module::{TableType, ValType};

use crate::api::store::{AsContext, AsContextMut};
use crate::base::cell::Cell;
use crate::base::error::{Result, UsageError};
use crate::code::host_entity::HostEntity;
use crate::run::instantiate::spawn_alone;
use crate::run::limiter;
use crate::store::group::{Entity, StoreGroup, StoreId};
use crate::store::handle::entity_handle;
use crate::store::value::Val;

/// A table of a store. Two are equal if they are the same table.
///
/// # Examples
///
/// ```
/// use pagefork::{Engine, Func, RefType, Store, Table, TableType, Val};
///
/// let mut store = Store::new(&Engine::default(), ());
/// let ty = TableType::new(RefType::FUNCREF, 2, None);
/// let table = Table::new(&mut store, ty, Val::FuncRef(None))?;
/// let function = Func::wrap(&mut store, || 7i32);
/// table.set(&mut store, 1, function.into())?;
/// assert!(table.get(&mut store, 1).is_some_and(|element| element.funcref().flatten().is_some()));
/// assert!(table.get(&mut store, 2).is_none());
///
/// assert_eq!(table.grow(&mut store, 6, Val::FuncRef(None))?, 2);
/// table.fill(&mut store, 4, function.into(), 4)?;
/// assert_eq!((table.size(&store), table.ty(&store).minimum), (8, 8));
/// # Ok::<(), pagefork::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Table {
    store: StoreId,
    entity: Entity,
}

entity_handle!(Table, "table");

impl Table {
    /// Makes a table of the host, which has a slot of its own, full of `element`.
    ///
    /// # Errors
    /// If the type is not possible, the element is of another type or store, a
    /// limit of the store is met, or the system refuses address space.
    ///
    /// # Examples
    ///
    /// See [`Table`].
    pub fn new(mut store: impl AsContextMut, ty: TableType, element: Val) -> Result<Self> {
        let mut context = store.as_context_mut();
        let store = &mut context.0.inner;
        if ty.maximum.is_some_and(|maximum| maximum < ty.minimum) {
            let maximum = ty.maximum.unwrap_or(u64::MAX);
            let what = format!("a table of {} to {maximum} times {}", ty.minimum, ty.element);
            return Err(UsageError::InvalidType(what).into());
        }
        element.check_type(store, ValType::Ref(ty.element), || "the element".to_owned())?;
        let word = element.to_cell(store, store.next_ordinal())?.low;
        let info = HostEntity::Table(ty).info();
        // SAFETY: the store is borrowed, and the pointer is to the whole of it.
        let entity = unsafe { spawn_alone(context.as_ptr(), info)? };
        let store = &mut context.0.inner;
        store.instance_mut(entity.ordinal).initial_word = word;
        if word != 0 {
            store.put_elements(entity, 0, (0..ty.minimum).map(|_| word));
        }
        Ok(Self::from_entity(store, entity))
    }

    /// The table's type, with the present length as its minimum.
    ///
    /// # Panics
    /// If the table is of another store.
    ///
    /// # Examples
    ///
    /// See [`Table`].
    pub fn ty(&self, store: impl AsContext) -> TableType {
        let store = &store.as_context().0.inner;
        store.table_type(self.entity_or_panic(store))
    }

    /// The table's length, in elements.
    ///
    /// # Panics
    /// If the table is of another store.
    ///
    /// # Examples
    ///
    /// See [`Table`].
    pub fn size(&self, store: impl AsContext) -> u64 {
        let store = &store.as_context().0.inner;
        store.table_length(self.entity_or_panic(store))
    }

    /// The element `index`; `None` beyond the end.
    ///
    /// # Panics
    /// If the table is of another store.
    ///
    /// # Examples
    ///
    /// See [`Table`].
    pub fn get(&self, mut store: impl AsContextMut, index: u64) -> Option<Val> {
        let store = &store.as_context_mut().0.inner;
        let entity = self.entity_or_panic(store);
        if index >= store.table_length(entity) {
            return None;
        }
        // SAFETY: the element is within the table.
        let word = unsafe { store.element(entity, index).read() };
        let ty = store.table_type(entity).element;
        Some(Val::from_cell(Cell::from_u64(word), ValType::Ref(ty), store, entity.ordinal))
    }

    /// Sets the element `index`.
    ///
    /// # Errors
    /// If it is beyond the end, or the value is of another type or store.
    ///
    /// # Examples
    ///
    /// See [`Table`].
    pub fn set(&self, store: impl AsContextMut, index: u64, element: Val) -> Result<()> {
        self.fill(store, index, element, 1)
    }

    /// Sets `length` elements from `start` on.
    ///
    /// # Errors
    /// If they are not all within the table, or the value is of another type or
    /// store; nothing is set then.
    ///
    /// # Examples
    ///
    /// See [`Table`].
    pub fn fill(
        &self,
        mut store: impl AsContextMut,
        start: u64,
        element: Val,
        length: u64,
    ) -> Result<()> {
        let store = &mut store.as_context_mut().0.inner;
        let entity = self.entity(store)?;
        let ty = ValType::Ref(store.table_type(entity).element);
        element.check_type(store, ty, || "the element".to_owned())?;
        let word = element.to_cell(store, entity.ordinal)?.low;
        let end = start.saturating_add(length);
        store.table_fill(entity, start, word, length).map_err(|_| {
            UsageError::OutsideTable { start, end, length: store.table_length(entity) }.into()
        })
    }

    /// Copies `length` elements from `source` of one table to `destination` of another, or of
    /// the same one: as if they lay elsewhere meanwhile.
    ///
    /// # Errors
    /// If they are not all within the tables, the elements of the one are none of the
    /// other's type, or a table is of another store; nothing is copied then.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Engine, ExternRef, RefType, Store, Table, TableType, Val};
    ///
    /// let mut store = Store::new(&Engine::default(), ());
    /// let ty = TableType::new(RefType::EXTERNREF, 3, None);
    /// let table = Table::new(&mut store, ty, Val::null_extern_ref())?;
    /// let seven = ExternRef::new(&mut store, 7)?;
    /// table.set(&mut store, 0, seven.into())?;
    /// Table::copy(&mut store, &table, 1, &table, 0, 2)?;
    /// assert!(table.get(&mut store, 1).unwrap().unwrap_externref().is_some());
    /// assert!(Table::copy(&mut store, &table, 1, &table, 0, 3).is_err());
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn copy(
        mut store: impl AsContextMut,
        to: &Self,
        destination: u64,
        from: &Self,
        source: u64,
        length: u64,
    ) -> Result<()> {
        let store = &mut store.as_context_mut().0.inner;
        let (to, from) = (to.entity(store)?, from.entity(store)?);
        let (expected, found) = (store.table_type(to).element, store.table_type(from).element);
        if !found.is_subtype(expected) {
            let what = "the element of the table to copy from".to_owned();
            let (expected, found) = (expected.to_string(), found.to_string());
            return Err(UsageError::TypeMismatch { what, expected, found }.into());
        }
        for (table, start) in [(from, source), (to, destination)] {
            let (end, length) = (start.saturating_add(length), store.table_length(table));
            if end > length {
                return Err(UsageError::OutsideTable { start, end, length }.into());
            }
        }
        store.note_writer();
        let copied = store.table_copy((to, from), destination, source, length);
        copied.expect("the ranges were checked");
        Ok(())
    }

    /// Makes the table `delta` elements longer, which are all `element`; returns
    /// the length before.
    ///
    /// # Errors
    /// If that is beyond the table's maximum, the room that its slot has, or the
    /// store's limit, if its limiter refuses it or fails, or the value is of another type or
    /// store.
    ///
    /// # Examples
    ///
    /// See [`Table`].
    pub fn grow(&self, mut store: impl AsContextMut, delta: u64, element: Val) -> Result<u64> {
        let mut context = store.as_context_mut();
        let store = &context.0.inner;
        let entity = self.entity(store)?;
        let ty = ValType::Ref(store.table_type(entity).element);
        element.check_type(store, ty, || "the element".to_owned())?;
        let word = element.to_cell(store, entity.ordinal)?.low;
        // SAFETY: the store is borrowed, and the pointer is to the whole of it.
        unsafe { limiter::grow_table(context.as_ptr(), entity, delta, word)? }
    }
}
