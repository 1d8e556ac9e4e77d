//! Instances and their exports.

use pagefork_layout::module::{ExternType, Item};
use pagefork_layout::text::OneLine;
use pagefork_pages::{Choice, GrowthChoice};

use crate::api::global::Global;
use crate::api::imports;
use crate::api::memory::Memory;
use crate::api::store::{AsContext, AsContextMut, StoreContext, StoreContextMut};
use crate::api::table::Table;
use crate::api::typed::{TypedFunc, WasmValues};
use crate::base::error::{Result, UsageError};
use crate::code::module::Module;
use crate::store::group::{StoreGroup, StoreId};
use crate::store::handle::{Func, Tag};
use crate::store::suspended::Copied;

/// A module in a store, with its memory, tables and globals. Two are equal if they are the
/// same instance.
///
/// # Examples
///
/// ```
/// use pagefork::{Engine, Instance, Module, Store};
///
/// let engine = Engine::default();
/// let module = Module::new(&engine, r#"(module (memory (export "memory") 1)
///     (func (export "answer") (result i32) (i32.const 42)))"#)?;
/// let mut store = Store::new(&engine, ());
/// let instance = Instance::new(&mut store, &module, &[])?;
/// let answer = instance.get_typed_func::<(), i32>(&mut store, "answer")?;
/// assert_eq!(answer.call(&mut store, ())?, 42);
/// assert!(instance.get_memory(&mut store, "memory").is_some());
/// assert!(instance.get_func(&mut store, "memory").is_none(), "it is no function");
/// assert!(Module::same(instance.module(&store), &module));
/// # Ok::<(), pagefork::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Instance {
    store: StoreId,
    ordinal: u32,
}

/// Something that can be imported and exported. Two are equal if they are the same thing.
///
/// # Examples
///
/// ```
/// use pagefork::{Engine, Extern, ExternType, Func, Instance, Module, Store};
///
/// let engine = Engine::default();
/// let module = Module::new(&engine, r#"(module (import "a" "b" (func (result i32)))
///     (memory (export "memory") 1) (table (export "table") 1 funcref)
///     (global (export "global") i32 (i32.const 7)) (tag (export "tag")))"#)?;
/// let mut store = Store::new(&engine, ());
/// let import: Extern = Func::wrap(&mut store, || 1i32).into();
/// assert!(import.into_func().is_some());
/// let instance = Instance::new(&mut store, &module, &[import])?;
///
/// let mut export = |name| instance.get_export(&mut store, name).expect("it is exported");
/// let memory = export("memory");
/// assert!(memory.into_memory().is_some() && memory.into_func().is_none());
/// assert!(export("table").into_table().is_some());
/// assert!(export("global").into_global().is_some() && export("tag").into_tag().is_some());
/// assert!(matches!(memory.ty(&store), ExternType::Memory(ty) if ty.minimum == 1));
/// # Ok::<(), pagefork::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Extern {
    /// A function.
    Func(Func),
    /// A global.
    Global(Global),
    /// A table.
    Table(Table),
    /// A memory.
    Memory(Memory),
    /// A tag of exceptions.
    Tag(Tag),
}

impl Extern {
    /// What in `store`, a copy of the store that this is of, corresponds to it.
    ///
    /// # Errors
    /// If `store` is none, or this was made after the copy.
    pub(crate) fn counterpart(&self, store: &StoreGroup) -> Result<Self> {
        Ok(match self {
            Self::Func(function) => {
                let copied = Copied::of_store(store, function.store)?;
                let function = Func::from_reference(store, copied.function(function.definition)?);
                function.expect("a definition is not null").into()
            }
            Self::Global(global) => global.counterpart(store)?.into(),
            Self::Table(table) => table.counterpart(store)?.into(),
            Self::Memory(memory) => memory.counterpart(store)?.into(),
            Self::Tag(tag) => tag.counterpart(store)?.into(),
        })
    }
}

macro_rules! externs {
    ($($variant:ident, $into:ident;)*) => {
        impl Extern {
            $(
                #[doc = concat!("The ", stringify!($variant), ", if it is one.")]
                ///
                /// # Examples
                ///
                /// See [`Extern`].
                pub fn $into(self) -> Option<$variant> {
                    if let Self::$variant(value) = self { Some(value) } else { None }
                }
            )*
        }

        $(
            impl From<$variant> for Extern {
                fn from(value: $variant) -> Self {
                    Self::$variant(value)
                }
            }
        )*
    };
}

externs! {
    Func, into_func;
    Global, into_global;
    Table, into_table;
    Memory, into_memory;
    Tag, into_tag;
}

impl Extern {
    /// Its type; a table's and a memory's has the present size as the minimum.
    ///
    /// # Panics
    /// If it is of another store.
    ///
    /// # Examples
    ///
    /// See [`Extern`].
    pub fn ty(&self, store: impl AsContext) -> ExternType {
        match self {
            Self::Func(function) => ExternType::Func(function.ty(store)),
            Self::Global(global) => ExternType::Global(global.ty(store)),
            Self::Table(table) => ExternType::Table(table.ty(store)),
            Self::Memory(memory) => ExternType::Memory(memory.ty(store)),
            Self::Tag(tag) => ExternType::Tag(tag.ty(store)),
        }
    }
}

/// An export of an instance.
///
/// # Examples
///
/// ```
/// use pagefork::{Engine, Instance, Module, Store};
///
/// let engine = Engine::default();
/// let module = Module::new(&engine, r#"(module (memory (export "memory") 1))"#)?;
/// let mut store = Store::new(&engine, ());
/// let instance = Instance::new(&mut store, &module, &[])?;
/// let export = instance.exports(&mut store).next().expect("there is one");
/// assert_eq!(export.name(), "memory");
/// assert!(export.into_extern().into_memory().is_some());
/// # Ok::<(), pagefork::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Export {
    name: String,
    value: Extern,
}

impl Export {
    /// Its name.
    ///
    /// # Examples
    ///
    /// See [`Export`].
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What is exported.
    ///
    /// # Examples
    ///
    /// See [`Export`].
    pub fn into_extern(self) -> Extern {
        self.value
    }
}

impl Instance {
    /// Instantiates a module with these imports, in the order of
    /// [`Module::imports`], and runs its start function.
    ///
    /// # Errors
    /// If the imports do not match, a limit is met, or the system refuses address
    /// space: nothing is left behind then. If a segment does not fit or the start
    /// function traps: what was written to imported tables and memories before
    /// stays written, as the specification says.
    ///
    /// # Panics
    /// If a host function panics that the start function calls.
    ///
    /// # Examples
    ///
    /// See [`Instance`].
    pub fn new(mut store: impl AsContextMut, module: &Module, imports: &[Extern]) -> Result<Self> {
        let mut store = store.as_context_mut();
        // SAFETY: the store is borrowed, and the pointer is to the whole of it.
        unsafe { imports::instantiate(store.as_ptr(), module, imports) }
    }

    pub(crate) fn from_ordinal(store: &StoreGroup, ordinal: u32) -> Self {
        Self { store: store.id, ordinal }
    }

    /// What in `store`, a copy of the store that this is of, corresponds to it.
    ///
    /// # Errors
    /// If `store` is none, or this was made after the copy.
    pub(crate) fn counterpart(&self, store: &StoreGroup) -> Result<Self> {
        let ordinal = Copied::of_store(store, self.store)?.instance(self.ordinal)?;
        Ok(Self::from_ordinal(store, ordinal))
    }

    #[inline]
    pub(crate) fn ordinal(&self, store: &StoreGroup) -> Result<u32> {
        store.check(self.store, "instance").map(|()| self.ordinal)
    }

    /// The instance's module.
    ///
    /// # Panics
    /// If the instance is of another store.
    ///
    /// # Examples
    ///
    /// See [`Instance`].
    pub fn module<'a, T: 'static>(&self, store: impl Into<StoreContext<'a, T>>) -> &'a Module {
        let store = &store.into().0.inner;
        self.assert_store(store);
        &store.instance(self.ordinal).module
    }

    /// The instance's module, where the store is known to be its own.
    pub(crate) fn module_in<'a>(&self, store: &'a StoreGroup) -> &'a Module {
        &store.instance(self.ordinal).module
    }

    /// How the instance's slot is reset, and why so: what [`ResetKind::Auto`] has come to by
    /// what it has seen of earlier runs.
    ///
    /// [`ResetKind::Auto`]: crate::ResetKind::Auto
    ///
    /// # Panics
    /// If the instance is of another store.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Config, Engine, Instance, Module, ResetKind, Store, StrategyConfig};
    ///
    /// let strategies = StrategyConfig { reset: ResetKind::Discard, ..StrategyConfig::default() };
    /// let engine = Engine::new(Config::new().strategies(strategies))?;
    /// let mut store = Store::new(&engine, ());
    /// let instance = Instance::new(&mut store, &Module::new(&engine, "(module)")?, &[])?;
    /// assert_eq!(instance.strategy(&store).used, ResetKind::Discard);
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn strategy(&self, store: impl AsContext) -> Choice {
        let store = &store.as_context().0.inner;
        self.assert_store(store);
        store.instance(self.ordinal).slot.strategy()
    }

    /// How the instance's memories grow, and why so.
    ///
    /// # Panics
    /// If the instance belongs to another store.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Config, Engine, GrowthKind, Instance, Module, Store, StrategyConfig};
    ///
    /// let growth = GrowthKind::Ftruncate;
    /// let strategies = StrategyConfig { growth, ..StrategyConfig::default() };
    /// let engine = Engine::new(Config::new().strategies(strategies))?;
    /// let mut store = Store::new(&engine, ());
    /// let instance = Instance::new(&mut store, &Module::new(&engine, "(module (memory 1))")?, &[])?;
    /// assert_eq!(instance.growth(&store).asked, growth);
    /// println!("memories grow by {}", instance.growth(&store));
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn growth(&self, store: impl AsContext) -> GrowthChoice {
        let store = &store.as_context().0.inner;
        self.assert_store(store);
        store.instance(self.ordinal).slot.growth()
    }

    /// What the instance exports by this name.
    ///
    /// # Panics
    /// If the instance is of another store.
    ///
    /// # Examples
    ///
    /// See [`Extern`].
    pub fn get_export(&self, mut store: impl AsContextMut, name: &str) -> Option<Extern> {
        let store = &store.as_context_mut().0.inner;
        self.assert_store(store);
        let item = store.instance(self.ordinal).module.export(name)?;
        Some(self.item(store, item))
    }

    /// The exported function `name`.
    ///
    /// # Panics
    /// If the instance is of another store.
    ///
    /// # Examples
    ///
    /// See [`Instance`].
    pub fn get_func(&self, store: impl AsContextMut, name: &str) -> Option<Func> {
        self.get_export(store, name)?.into_func()
    }

    /// The exported function `name`, with its type known to the compiler.
    ///
    /// # Errors
    /// If there is no such function, or it is of another type.
    ///
    /// # Panics
    /// If the instance is of another store.
    ///
    /// # Examples
    ///
    /// See [`Instance`].
    pub fn get_typed_func<Params: WasmValues, Results: WasmValues>(
        &self,
        mut store: impl AsContextMut,
        name: &str,
    ) -> Result<TypedFunc<Params, Results>> {
        let function = self.get_func(&mut store, name);
        let kind = "function";
        let function =
            function.ok_or_else(|| UsageError::NoExport { kind, name: name.to_owned() })?;
        function
            .typed(&store)
            .map_err(|error| error.about(format_args!("the exported function {:?}", OneLine(name))))
    }

    /// The exported memory `name`.
    ///
    /// # Panics
    /// If the instance is of another store.
    ///
    /// # Examples
    ///
    /// See [`Instance`].
    pub fn get_memory(&self, store: impl AsContextMut, name: &str) -> Option<Memory> {
        self.get_export(store, name)?.into_memory()
    }

    /// The exported table `name`.
    ///
    /// # Panics
    /// If the instance is of another store.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Engine, Instance, Module, Store};
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module
    ///     (table (export "handlers") 3 funcref) (global (export "version") i32 (i32.const 2))
    ///     (tag (export "failure")))"#)?;
    /// let mut store = Store::new(&engine, ());
    /// let instance = Instance::new(&mut store, &module, &[])?;
    /// let handlers = instance.get_table(&mut store, "handlers").expect("it is exported");
    /// assert_eq!(handlers.size(&store), 3);
    /// let version = instance.get_global(&mut store, "version").expect("it is exported");
    /// assert_eq!(version.get(&mut store).i32(), Some(2));
    /// let failure = instance.get_tag(&mut store, "failure").expect("it is exported");
    /// assert!(failure.ty(&store).params.is_empty());
    /// assert!(instance.get_table(&mut store, "version").is_none(), "it is no table");
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn get_table(&self, store: impl AsContextMut, name: &str) -> Option<Table> {
        self.get_export(store, name)?.into_table()
    }

    /// The exported global `name`.
    ///
    /// # Panics
    /// If the instance is of another store.
    ///
    /// # Examples
    ///
    /// See [`Instance::get_table`].
    pub fn get_global(&self, store: impl AsContextMut, name: &str) -> Option<Global> {
        self.get_export(store, name)?.into_global()
    }

    /// The exported tag `name`.
    ///
    /// # Panics
    /// If the instance is of another store.
    ///
    /// # Examples
    ///
    /// See [`Instance::get_table`].
    pub fn get_tag(&self, store: impl AsContextMut, name: &str) -> Option<Tag> {
        self.get_export(store, name)?.into_tag()
    }

    /// All exports, in the order of the module.
    ///
    /// # Panics
    /// If the instance is of another store.
    ///
    /// # Examples
    ///
    /// See [`Export`].
    pub fn exports(&self, mut store: impl AsContextMut) -> impl ExactSizeIterator<Item = Export> {
        let store = &store.as_context_mut().0.inner;
        self.assert_store(store);
        let info = store.instance(self.ordinal).module.info();
        let exports: Vec<Export> = info
            .exports
            .iter()
            .map(|export| Export {
                name: export.name.clone(),
                value: self.item(store, export.item),
            })
            .collect();
        exports.into_iter()
    }

    pub(crate) fn item(&self, store: &StoreGroup, item: Item) -> Extern {
        match item {
            Item::Func(index) => {
                let definition = store.function(self.ordinal, index);
                let function = Func::from_reference(store, definition);
                function.expect("a definition is not null").into()
            }
            Item::Global(index) => {
                Global::from_entity(store, store.global(self.ordinal, index)).into()
            }
            Item::Table(index) => {
                Table::from_entity(store, store.table(self.ordinal, index)).into()
            }
            Item::Memory(index) => {
                Memory::from_entity(store, store.memory(self.ordinal, index)).into()
            }
            Item::Tag(index) => Tag::from_entity(store, store.tag(self.ordinal, index)).into(),
        }
    }

    pub(crate) fn assert_store(&self, store: &StoreGroup) {
        store.assert_own(self.store, "instance");
    }
}

impl<T: 'static> StoreContextMut<'_, T> {
    /// Takes the instance that was made last back, for embedders that know that nobody needs it;
    /// whether that was done. It is not while a guest has frames, if another instance, memory,
    /// table, global or tag was made in the store after it, and if the store was spawned with it.
    ///
    /// # Safety
    /// Nothing knows anything of the instance: no handle of it, or of something in it, is used
    /// after this, and nothing that another instance can reach refers to one of its functions.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{AsContextMut, Engine, Instance, Module, Store};
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, "(module (memory 1))")?;
    /// let mut store = Store::new(&engine, ());
    /// // More than there is address space for.
    /// for _ in 0..40_000 {
    ///     let instance = Instance::new(&mut store, &module, &[])?;
    ///     // SAFETY: it exports nothing, and there is no other handle.
    ///     assert!(unsafe { store.as_context_mut().remove_latest_instance(&instance) });
    /// }
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub unsafe fn remove_latest_instance(&mut self, instance: &Instance) -> bool {
        let store = &mut self.0.inner;
        let is_latest = store.check(instance.store, "instance").is_ok()
            && instance.ordinal + 1 == store.next_ordinal();
        let is_free = !store.activation.is_active() && store.check_usable().is_ok();
        if !is_latest || !is_free || (instance.ordinal == 1 && store.home.is_some()) {
            return false;
        }
        store.forget_latest_instance();
        true
    }
}
