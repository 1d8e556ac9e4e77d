//! Functions and tags as a store knows them: what handles of the embedder name.

use pagefork_layout::module::FuncType;
use pagefork_layout::reference::{FuncRef, HOST_ORDINAL};

use crate::base::cell::Cell;
use crate::base::error::Result;
use crate::store::frame::Target;
use crate::store::group::{Entity, StoreGroup, StoreId};
use crate::store::value::Val;

/// A function of a store: a guest's, or the host's. Two are equal if they are the same function,
/// by whatever import or export they were found.
///
/// # Examples
///
/// ```
/// use pagefork::{Engine, Func, FuncType, Store, Val, ValType};
///
/// let mut store = Store::new(&Engine::default(), ());
/// let add = Func::wrap(&mut store, |a: i32, b: i32| a + b);
/// assert_eq!(add.ty(&store), FuncType::new([ValType::I32; 2], [ValType::I32]));
/// let mut results = [Val::I32(0)];
/// add.call(&mut store, &[Val::I32(1), Val::I32(2)], &mut results)?;
/// assert_eq!(results[0].i32(), Some(3));
/// assert_eq!(add.typed::<(i32, i32), i32>(&store)?.call(&mut store, (3, 4))?, 7);
/// # Ok::<(), pagefork::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Func {
    pub(crate) store: StoreId,
    /// Invariant: absolute, and of a definition of that store, not of an import.
    pub(crate) definition: FuncRef,
}

impl Func {
    /// How the function is called.
    #[inline]
    pub(crate) fn entry(&self, store: &StoreGroup) -> CallTarget {
        match (self.definition.ordinal(), self.definition.index()) {
            (HOST_ORDINAL, Some(index)) => CallTarget::Host(index),
            _ => CallTarget::Guest(store.target(self.definition)),
        }
    }

    /// # Errors
    /// If the function is of another store.
    pub(crate) fn reference(&self, store: &StoreGroup) -> Result<FuncRef> {
        store.check(self.store, "function")?;
        Ok(self.definition)
    }

    /// What an absolute reference means; `None` for null.
    pub(crate) fn from_reference(store: &StoreGroup, reference: FuncRef) -> Option<Self> {
        let definition = store.definition(reference);
        (!definition.is_null()).then_some(Self { store: store.id, definition })
    }
}

/// How a function is called.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CallTarget {
    /// By entering a guest.
    Guest(Target),
    /// A host function, by its index in the store.
    Host(u32),
}

/// Where the arguments and results of an entry are.
#[inline]
pub(crate) fn cells(target: &Target) -> *mut Cell {
    std::ptr::with_exposed_provenance_mut(target.cells)
}

/// # Safety
/// `cells` has a cell for each of `values`, which can be written.
pub(crate) unsafe fn write_values(
    store: &StoreGroup,
    values: &[Val],
    cells: *mut Cell,
    owner: u32,
) -> Result<()> {
    for (i, value) in values.iter().enumerate() {
        let cell = value.to_cell(store, owner)?;
        // SAFETY: by this function's contract there is a cell for each of `values`.
        unsafe { cells.add(i).write(cell) };
    }
    Ok(())
}

/// # Safety
/// `cells` has a cell for each result of a function of type `ty`, with a value of its type, in a
/// place that belongs to `owner`.
pub(crate) unsafe fn read_results(
    store: &StoreGroup,
    ty: &FuncType,
    results: &mut [Val],
    cells: *mut Cell,
    owner: u32,
) {
    for (i, (result, ty)) in results.iter_mut().zip(&ty.results).enumerate() {
        // SAFETY: by this function's contract there is a cell for each result of the type.
        let cell = unsafe { cells.add(i).read() };
        *result = Val::from_cell(cell, *ty, store, owner);
    }
}

/// Gives a handle of a place that an instance defines, with the fields `store` and `entity`, what
/// all of them have.
macro_rules! entity_handle {
    ($handle:ident, $what:literal) => {
        impl $handle {
            pub(crate) fn from_entity(store: &StoreGroup, entity: Entity) -> Self {
                Self { store: store.id, entity }
            }

            /// # Errors
            /// If the handle is of another store.
            pub(crate) fn entity(&self, store: &StoreGroup) -> Result<Entity> {
                store.check(self.store, $what).map(|()| self.entity)
            }

            /// What corresponds to it in a copy of its store.
            ///
            /// # Errors
            /// If `store` is none, or this was made after the copy.
            pub(crate) fn counterpart(&self, store: &StoreGroup) -> Result<Self> {
                let copied = $crate::store::suspended::Copied::of_store(store, self.store)?;
                Ok(Self::from_entity(store, copied.entity(self.entity)?))
            }

            /// # Panics
            /// If the handle is of another store.
            pub(crate) fn entity_or_panic(&self, store: &StoreGroup) -> Entity {
                store.assert_own(self.store, $what);
                self.entity
            }
        }
    };
}

pub(crate) use entity_handle;

/// A tag of a store: what tells exceptions apart, and what they carry. Two are
/// equal if they are the same tag.
///
/// # Examples
///
/// ```
/// use pagefork::{Engine, FuncType, Store, Tag, ValType};
///
/// let mut store = Store::new(&Engine::default(), ());
/// let ty = FuncType { params: [ValType::I32].into(), results: [].into() };
/// let tag = Tag::new(&mut store, ty.clone())?;
/// assert_eq!(tag.ty(&store), ty);
/// # Ok::<(), pagefork::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tag {
    pub(crate) store: StoreId,
    pub(crate) entity: Entity,
}

entity_handle!(Tag, "tag");

impl StoreGroup {
    pub(crate) fn tag_type(&self, entity: Entity) -> &FuncType {
        let module = &self.instance(entity.ordinal).module;
        module.tag_type(module.info().imported_tags + entity.own_index)
    }
}
