//! Objects: what `wasm_ref_t` and all kinds of references in C lead to.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use pagefork::{ExternType, Func, Global, Instance, Memory, Module, Result, Table, Tag};

use crate::base::border::{BorderError, given};
use crate::base::c_vec::Element;
use crate::objects::engine::wasm_engine_t;
use crate::objects::host_info::{HostInfo, InfoPlace};
use crate::objects::store::{LazyShape, Shape, StoreRef};
use crate::objects::trap::TrapObject;
use crate::objects::types::{extern_kind, wasm_externtype_t};

/// An object of any kind, with the store that it keeps alive.
pub(crate) struct wasm_ref_t {
    /// Absent for modules that were made without one.
    store: Option<StoreRef>,
    object: Object,
}

/// What an object is. Two are equal if they are the same thing.
#[derive(Clone)]
pub(crate) enum Object {
    /// A function, with what its calls need.
    Func(Func, LazyShape),
    /// A global.
    Global(Global),
    /// A table.
    Table(Table),
    /// A memory.
    Memory(Memory),
    /// A tag.
    Tag(Tag),
    /// An instance.
    Instance(Instance),
    /// A module.
    Module(Arc<ModuleObject>),
    /// A trap.
    Trap(Arc<TrapObject>),
    /// Something of C's.
    Foreign(Arc<ForeignObject>),
}

/// A module, shared by all objects that are it.
pub(crate) struct ModuleObject {
    /// The module itself.
    pub(crate) module: Module,
    info: InfoPlace,
}

impl ModuleObject {
    /// A module for C.
    pub(crate) fn new(module: Module) -> Arc<Self> {
        Arc::new(Self { module, info: InfoPlace::default() })
    }
}

/// Something that means nothing but to C, which attaches what it is.
#[derive(Default)]
pub(crate) struct ForeignObject {
    info: InfoPlace,
}

impl ForeignObject {
    /// One with something attached.
    pub(crate) fn with_info(info: HostInfo) -> Arc<Self> {
        let foreign = Self::default();
        foreign.info.set(info);
        Arc::new(foreign)
    }
}

/// What tells objects apart.
#[derive(PartialEq, Eq, Hash)]
enum Identity {
    Func(Func),
    Global(Global),
    Table(Table),
    Memory(Memory),
    Tag(Tag),
    Instance(Instance),
    Address(usize),
}

impl Object {
    fn identity(&self) -> Identity {
        match self {
            Self::Func(func, _) => Identity::Func(*func),
            Self::Global(global) => Identity::Global(*global),
            Self::Table(table) => Identity::Table(*table),
            Self::Memory(memory) => Identity::Memory(*memory),
            Self::Tag(tag) => Identity::Tag(*tag),
            Self::Instance(instance) => Identity::Instance(*instance),
            Self::Module(module) => Identity::Address(Arc::as_ptr(module).addr()),
            Self::Trap(trap) => Identity::Address(Arc::as_ptr(trap).addr()),
            Self::Foreign(foreign) => Identity::Address(Arc::as_ptr(foreign).addr()),
        }
    }

    /// The name of the kind.
    pub(crate) fn kind_name(&self) -> &'static str {
        match self {
            Self::Func(..) => "function",
            Self::Global(_) => "global",
            Self::Table(_) => "table",
            Self::Memory(_) => "memory",
            Self::Tag(_) => "tag",
            Self::Instance(_) => "instance",
            Self::Module(_) => "module",
            Self::Trap(_) => "trap",
            Self::Foreign(_) => "foreign object",
        }
    }

    /// The place of what is attached, if the object has one of its own; that of others is in
    /// their store.
    fn own_info(&self) -> Option<&InfoPlace> {
        match self {
            Self::Module(module) => Some(&module.info),
            Self::Trap(trap) => Some(&trap.info),
            Self::Foreign(foreign) => Some(&foreign.info),
            _ => None,
        }
    }
}

impl PartialEq for Object {
    fn eq(&self, other: &Self) -> bool {
        self.identity() == other.identity()
    }
}

impl Eq for Object {}

impl Hash for Object {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.identity().hash(state);
    }
}

impl Element for wasm_ref_t {
    fn copy(&self) -> Self {
        self.note_known();
        Self { store: self.store.clone(), object: self.object.clone() }
    }
}

macro_rules! of_kind {
    ($($get:ident $variant:ident($ty:ty), $what:literal;)*) => {
        impl wasm_ref_t {
            $(
                #[doc = concat!("The ", $what, ".")]
                ///
                /// # Errors
                /// If it is something else.
                pub(crate) fn $get(&self) -> Result<&$ty> {
                    match &self.object {
                        Object::$variant(value) => Ok(value),
                        _ => Err(self.wrong_kind($what).into()),
                    }
                }
            )*
        }
    };
}

of_kind! {
    global Global(Global), "global";
    table Table(Table), "table";
    memory Memory(Memory), "memory";
    module Module(Arc<ModuleObject>), "module";
    trap Trap(Arc<TrapObject>), "trap";
    tag Tag(Tag), "tag";
}

impl wasm_ref_t {
    /// An object of a store.
    pub(crate) fn new(store: StoreRef, object: Object) -> Self {
        Self { store: Some(store), object }
    }

    /// An object without a store.
    pub(crate) fn without_store(object: Object) -> Self {
        Self { store: None, object }
    }

    /// What it is.
    pub(crate) fn object(&self) -> &Object {
        &self.object
    }

    /// Its store.
    ///
    /// # Errors
    /// If it was made without one.
    #[inline]
    pub(crate) fn store(&self) -> Result<&StoreRef> {
        given(self.store.as_ref(), "store of the object")
    }

    /// The instance, of which more is known from here on.
    ///
    /// # Errors
    /// If it is something else.
    pub(crate) fn instance(&self) -> Result<&Instance> {
        self.note_known();
        match &self.object {
            Object::Instance(instance) => Ok(instance),
            _ => Err(self.wrong_kind("instance").into()),
        }
    }

    /// Says that there is more of an instance than this object.
    fn note_known(&self) {
        if let (Object::Instance(instance), Some(store)) = (&self.object, &self.store) {
            store.note_known(instance);
        }
    }

    #[cold]
    fn wrong_kind(&self, expected: &'static str) -> BorderError {
        BorderError::WrongKind { expected, found: self.object.kind_name() }
    }

    /// The function, and what its calls need.
    ///
    /// # Errors
    /// If it is something else.
    #[inline]
    pub(crate) fn func(&self) -> Result<(&Func, Shape)> {
        match &self.object {
            Object::Func(func, shape) => Ok((func, shape.get(func, self.store()?)?)),
            _ => Err(self.wrong_kind("function").into()),
        }
    }

    /// The function alone.
    ///
    /// # Errors
    /// If it is something else.
    pub(crate) fn bare_func(&self) -> Result<&Func> {
        match &self.object {
            Object::Func(func, _) => Ok(func),
            _ => Err(self.wrong_kind("function").into()),
        }
    }

    /// What can be imported and exported of it.
    ///
    /// # Errors
    /// If it is nothing of that.
    pub(crate) fn external(&self) -> Result<pagefork::Extern> {
        Ok(match &self.object {
            Object::Func(func, _) => (*func).into(),
            Object::Global(global) => (*global).into(),
            Object::Table(table) => (*table).into(),
            Object::Memory(memory) => (*memory).into(),
            Object::Tag(tag) => (*tag).into(),
            _ => return Err(self.wrong_kind("function, global, table, memory or tag").into()),
        })
    }

    /// Which of the kinds of externals it is of.
    ///
    /// # Errors
    /// If it is none.
    pub(crate) fn extern_kind(&self) -> Result<u8> {
        Ok(match &self.object {
            Object::Func(..) => extern_kind::FUNC,
            Object::Global(_) => extern_kind::GLOBAL,
            Object::Table(_) => extern_kind::TABLE,
            Object::Memory(_) => extern_kind::MEMORY,
            Object::Tag(_) => extern_kind::TAG,
            _ => return Err(self.wrong_kind("function, global, table, memory or tag").into()),
        })
    }

    /// The type of what can be imported and exported.
    ///
    /// # Errors
    /// If it is nothing of that.
    pub(crate) fn external_type(&self) -> Result<wasm_externtype_t> {
        let ty: ExternType = self.external()?.ty(&self.store()?.context()?);
        Ok(wasm_externtype_t::new(ty))
    }

    /// Whether both are the same thing.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.object == other.object
    }

    /// What C attached to the thing, or null.
    pub(crate) fn info(&self) -> Result<*mut std::ffi::c_void> {
        match self.object.own_info() {
            Some(place) => Ok(place.get()),
            None => Ok(self.store()?.info(&self.object)),
        }
    }

    /// Attaches something to the thing; what was attached is finalized.
    pub(crate) fn set_info(&self, info: HostInfo) -> Result<()> {
        match self.object.own_info() {
            Some(place) => place.set(info),
            None => self.store()?.set_info(self.object.clone(), info),
        }
        Ok(())
    }
}

impl Drop for wasm_ref_t {
    fn drop(&mut self) {
        if let (Object::Instance(instance), Some(store)) = (&self.object, &self.store) {
            store.remove_if_unknown(instance);
        }
    }
}

/// A module that is of no store.
pub(crate) struct wasm_shared_module_t(pub(crate) Arc<ModuleObject>);

/// A store.
///
/// Invariant of the representation: nothing but its reference.
#[repr(transparent)]
pub(crate) struct wasm_store_t(pub(crate) StoreRef);

impl wasm_store_t {
    /// A store as C sees it, lent.
    pub(crate) fn lent(store: &StoreRef) -> &Self {
        // SAFETY: the representations are the same.
        unsafe { &*std::ptr::from_ref(store).cast() }
    }

    /// An empty store of an engine.
    pub(crate) fn new(engine: &wasm_engine_t) -> Self {
        Self(StoreRef::new(&engine.engine))
    }

    /// An object of the store, for C.
    pub(crate) fn own(&self, object: Object) -> Option<Box<wasm_ref_t>> {
        Some(Box::new(wasm_ref_t::new(self.0.clone(), object)))
    }
}
