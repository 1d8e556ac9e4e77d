use pagefork_layout::module::{Export, FuncType, Item, ModuleInfo};

use crate::error::{Result, UsageError};
use crate::group::Place;
use crate::instantiate::spawn_alone;
use crate::module::Module;
use crate::store::{AsContext, AsContextMut, StoreId, StoreInner};

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
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tag {
    store: StoreId,
    place: Place,
}

impl Tag {
    /// Makes a tag of the host; exceptions with it carry values of the types of
    /// the parameters of `ty`.
    ///
    /// # Errors
    /// If the type has results, a limit of the store is met, or the system
    /// refuses address space.
    pub fn new(mut store: impl AsContextMut, ty: FuncType) -> Result<Self> {
        let store = &mut store.as_context_mut().0.inner;
        if !ty.results.is_empty() {
            return Err(UsageError::InvalidType(format!("a tag with results: {ty}")).into());
        }
        let info = ModuleInfo {
            types: vec![ty],
            tags: vec![0],
            exports: vec![Export { name: "tag".to_owned(), item: Item::Tag(0) }],
            ..ModuleInfo::default()
        };
        let module = Module::without_code(&store.engine, info)?;
        let ordinal = spawn_alone(store, &module)?;
        Ok(Self::from_place(store, Place { ordinal, own_index: 0 }))
    }

    pub(crate) fn from_place(store: &StoreInner, place: Place) -> Self {
        Self { store: store.id, place }
    }

    /// # Errors
    /// If the tag is of another store.
    pub(crate) fn place(&self, store: &StoreInner) -> Result<Place> {
        store.check(self.store, "tag").map(|()| self.place)
    }

    /// The tag's type: exceptions carry its parameters.
    ///
    /// # Panics
    /// If the tag is of another store.
    pub fn ty(&self, store: impl AsContext) -> FuncType {
        let store = &store.as_context().0.inner;
        assert!(self.store == store.id, "a tag of one store was used with another store");
        store.tag_type(self.place).clone()
    }
}

impl StoreInner {
    pub(crate) fn tag_type(&self, place: Place) -> &FuncType {
        let module = &self.instance(place.ordinal).module;
        module.tag_type(module.info().imported_tags + place.own_index)
    }
}
