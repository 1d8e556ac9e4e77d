//! Objects: what `wasm_ref_t` and all kinds of references in C lead to.

use std::hash::{Hash, Hasher};
use std::mem;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use pagefork::{Error, ExternType, Func, Global, Instance, Memory, Module, Result, Table, Tag};

use crate::base::border::{BorderError, note_error};
use crate::base::c_box::{CBox, Deletable};
use crate::base::c_vec::Element;
use crate::objects::host_info::{HostInfo, InfoPlace};
use crate::objects::shape::{LazyShape, Shape};
use crate::objects::store::StoreRef;
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
    /// Nothing any more: C has deleted it, as is seen until something else is in its place.
    Deleted,
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
    Nothing,
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
            Self::Deleted => Identity::Nothing,
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
            Self::Deleted => "deleted object",
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

impl Element for Option<CBox<wasm_ref_t>> {
    fn copy(&self) -> Self {
        self.as_deref().and_then(wasm_ref_t::copy)
    }
}

impl Deletable for wasm_ref_t {
    #[inline]
    unsafe fn delete(this: NonNull<Self>) {
        // SAFETY: by this function's contract C has given it away.
        let deleted = unsafe { &mut *this.as_ptr() };
        match (&deleted.object, &mut deleted.store) {
            (
                Object::Func(..)
                | Object::Global(_)
                | Object::Table(_)
                | Object::Memory(_)
                | Object::Tag(_)
                | Object::Instance(_),
                Some(store),
            ) => {
                if let Object::Instance(instance) = &deleted.object {
                    store.remove_if_unknown(instance);
                }
                // SAFETY: it is read once: nothing is left there.
                let store = unsafe { ptr::read(store) };
                // SAFETY: it is a place of the store's, which is there; these kinds have nothing to drop.
                unsafe {
                    (&raw mut deleted.store).write(None);
                    (&raw mut deleted.object).write(Object::Deleted);
                    StoreRef::give_place_back(Some(&store), this);
                }
            }
            // SAFETY: by this function's contract.
            _ => unsafe { delete_more(this) },
        }
    }
}

/// Deletes an object that has more than its store, or was deleted.
///
/// # Safety
/// As of [`Deletable::delete`].
#[cold]
#[inline(never)]
unsafe fn delete_more(this: NonNull<wasm_ref_t>) {
    // SAFETY: by this function's contract C has given it away.
    let deleted = unsafe { &mut *this.as_ptr() };
    if let Object::Deleted = deleted.object {
        return note_error(deleted.wrong_kind("live object").into());
    }
    let store = deleted.store.take();
    let object = mem::replace(&mut deleted.object, Object::Deleted);
    // SAFETY: what was in it is moved out, and nothing leads to it any more.
    unsafe { StoreRef::give_place_back(store.as_ref(), this) };
    drop(object);
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
    #[inline(always)]
    pub(crate) fn new(store: &StoreRef, object: Object) -> CBox<Self> {
        let place = store.place(Self { store: Some(store.clone()), object });
        // SAFETY: it is new, and in a place of its own.
        unsafe { CBox::new(place) }
    }

    /// An object without a store.
    pub(crate) fn without_store(object: Object) -> CBox<Self> {
        let place = NonNull::from(Box::leak(Box::new(Self { store: None, object })));
        // SAFETY: it is new, and in a box of its own.
        unsafe { CBox::new(place) }
    }

    /// The same thing, as another object; `None` if it was deleted.
    pub(crate) fn copy(&self) -> Option<CBox<Self>> {
        self.note_known();
        let object = self.present().ok()?.object.clone();
        Some(match &self.store {
            Some(store) => Self::new(store, object),
            None => Self::without_store(object),
        })
    }

    /// The object.
    ///
    /// # Errors
    /// If it was deleted, and this is seen.
    pub(crate) fn present(&self) -> Result<&Self> {
        match self.object {
            Object::Deleted => Err(self.wrong_kind("live object").into()),
            _ => Ok(self),
        }
    }

    /// What it is.
    pub(crate) fn object(&self) -> &Object {
        &self.object
    }

    /// Its store.
    ///
    /// # Errors
    /// If it was made without one, or deleted.
    #[inline]
    pub(crate) fn store(&self) -> Result<&StoreRef> {
        self.store.as_ref().ok_or_else(|| self.no_store())
    }

    #[cold]
    fn no_store(&self) -> Error {
        match self.present() {
            Ok(_) => BorderError::Null("store of the object").into(),
            Err(error) => error,
        }
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
    #[inline(always)]
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
    ///
    /// # Errors
    /// If one was deleted: what it was is not known any more.
    pub(crate) fn is_same(&self, other: &Self) -> Result<bool> {
        Ok(self.present()?.object == other.present()?.object)
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

/// A module that is of no store.
pub(crate) struct wasm_shared_module_t(pub(crate) Arc<ModuleObject>);

/// A store, as C sees it: the same pointer for all that own it, and lent to callbacks.
pub(crate) struct wasm_store_t(pub(crate) StoreRef);

impl Deletable for wasm_store_t {
    #[inline]
    unsafe fn delete(this: NonNull<Self>) {
        // SAFETY: by this function's contract C has given away one of the references that lie here.
        drop(unsafe { this.read() });
    }
}

impl wasm_store_t {
    /// An object of the store, for C.
    pub(crate) fn own(&self, object: Object) -> Option<CBox<wasm_ref_t>> {
        Some(wasm_ref_t::new(&self.0, object))
    }
}
