//! Globals as embedders make, read and write them.

use pagefork_layout::module::{ConstExpr, GlobalType};

use crate::api::store::{AsContext, AsContextMut};
use crate::base::error::{Result, UsageError};
use crate::code::host_entity::HostEntity;
use crate::run::instantiate::spawn_alone;
use crate::store::group::{Entity, StoreGroup, StoreId};
use crate::store::handle::entity_handle;
use crate::store::value::Val;

/// A global variable of a store. Two are equal if they are the same variable.
///
/// # Examples
///
/// ```
/// use pagefork::{Engine, Global, GlobalType, Store, Val, ValType};
///
/// let mut store = Store::new(&Engine::default(), ());
/// let ty = GlobalType { content: ValType::I64, mutable: true };
/// let global = Global::new(&mut store, ty, Val::I64(1))?;
/// global.set(&mut store, Val::I64(-5))?;
/// assert_eq!(global.get(&mut store).i64(), Some(-5));
/// assert_eq!(global.ty(&store), ty);
/// assert!(global.set(&mut store, Val::I32(0)).is_err());
/// # Ok::<(), pagefork::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Global {
    store: StoreId,
    entity: Entity,
}

entity_handle!(Global, "global");

impl Global {
    /// Makes a global of the host, which has a slot of its own.
    ///
    /// # Errors
    /// If the value is not of the global's type or of another store, a limit of
    /// the store is met, or the system refuses address space.
    ///
    /// # Examples
    ///
    /// See [`Global`].
    pub fn new(mut store: impl AsContextMut, ty: GlobalType, value: Val) -> Result<Self> {
        let mut context = store.as_context_mut();
        let store = &mut context.0.inner;
        value.check_type(store, ty.content, || "the value of the global".to_owned())?;
        let next = store.next_ordinal();
        let cell = value.to_cell(store, next)?;
        let mut info = HostEntity::Global(ty).info();
        // References mean something in this store only, so they are no part of the image.
        if !ty.content.is_ref() {
            info.global_inits = vec![ConstExpr::Bits(cell.u128())];
        }
        // SAFETY: the store is borrowed, and the pointer is to the whole of it.
        let entity = unsafe { spawn_alone(context.as_ptr(), info)? };
        let store = &mut context.0.inner;
        if ty.content.is_ref() {
            store.instance_mut(entity.ordinal).initial_word = cell.low;
            store.set_global_word(entity, cell.low);
        }
        Ok(Self::from_entity(store, entity))
    }

    /// The global's type.
    ///
    /// # Panics
    /// If the global is of another store.
    ///
    /// # Examples
    ///
    /// See [`Global`].
    pub fn ty(&self, store: impl AsContext) -> GlobalType {
        let store = &store.as_context().0.inner;
        store.global_type(self.entity_or_panic(store))
    }

    /// The global's value.
    ///
    /// # Panics
    /// If the global is of another store.
    ///
    /// # Examples
    ///
    /// See [`Global`].
    pub fn get(&self, mut store: impl AsContextMut) -> Val {
        let store = &store.as_context_mut().0.inner;
        let entity = self.entity_or_panic(store);
        let ty = store.global_type(entity).content;
        Val::from_cell(store.global_cell(entity), ty, store, entity.ordinal)
    }

    /// Sets the global's value.
    ///
    /// # Errors
    /// If the global is immutable, or the value is of another type or store.
    ///
    /// # Examples
    ///
    /// See [`Global`].
    pub fn set(&self, mut store: impl AsContextMut, value: Val) -> Result<()> {
        let store = &mut store.as_context_mut().0.inner;
        let entity = self.entity(store)?;
        let ty = store.global_type(entity);
        if !ty.mutable {
            return Err(UsageError::ImmutableGlobal.into());
        }
        value.check_type(store, ty.content, || "the value of the global".to_owned())?;
        let cell = value.to_cell(store, entity.ordinal)?;
        store.note_writer();
        // SAFETY: the cell is in the state zone.
        unsafe { store.global_address(entity).write(cell) };
        Ok(())
    }
}
