//! Linkers: definitions by name, for the imports of modules.

use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::Arc;

use pagefork_layout::module::{ExternType, FuncType, Item};
use pagefork_layout::text::OneLine;

use crate::api::func::Caller;
use crate::api::host_func::IntoFunc;
use crate::api::imports::describe;
use crate::api::instance::{Extern, Instance};
use crate::api::pre::InstancePre;
use crate::api::store::{AsContext, AsContextMut, Invariant};
use crate::api::untyped::on_values;
use crate::base::error::{Error, LinkError, Result, UsageError};
use crate::base::similar;
use crate::code::engine::Engine;
use crate::code::module::{ImportType, Module};
use crate::store::group::StoreGroup;
use crate::store::handle::Func;
use crate::store::host_func::{HostFunc, HostFuncNames};
use crate::store::value::Val;

/// Definitions by two names, with which modules' imports are satisfied.
///
/// Host functions that are defined here belong to no store and can be used in
/// any store with data of type `T`. Other definitions belong to their store.
///
/// # Examples
///
/// ```
/// use pagefork::{Engine, Linker, Module, Store};
///
/// let engine = Engine::default();
/// let module = Module::new(&engine, r#"(module
///     (import "host" "next" (func $next (result i32)))
///     (func (export "twice") (result i32) (i32.add (call $next) (call $next))))"#)?;
/// let mut linker: Linker<i32> = Linker::new(&engine);
/// linker.func_wrap("host", "next", |mut caller: pagefork::Caller<'_, i32>| {
///     *caller.data_mut() += 1;
///     *caller.data()
/// })?;
/// assert!(Engine::same(linker.engine(), &engine));
/// // Imports are looked up once, for all instances.
/// let pre = linker.instantiate_pre(&module)?;
/// for _ in 0..2 {
///     let mut store = Store::new(&engine, 20);
///     let instance = pre.instantiate(&mut store)?;
///     let twice = instance.get_typed_func::<(), i32>(&mut store, "twice")?;
///     assert_eq!(twice.call(&mut store, ())?, 21 + 22);
/// }
/// # Ok::<(), pagefork::Error>(())
/// ```
pub struct Linker<T> {
    engine: Engine,
    modules: HashMap<String, HashMap<String, Definition>>,
    allow_shadowing: bool,
    data: Invariant<T>,
}

#[derive(Clone)]
pub(crate) enum Definition {
    /// Something of a store.
    Extern(Extern),
    /// A host function of any store.
    HostFunc(Arc<HostFunc>),
}

impl Definition {
    /// What the definition is in `store`, which a host function becomes part of.
    pub(crate) fn in_store(&self, store: &mut StoreGroup) -> Extern {
        match self {
            Self::Extern(value) => *value,
            Self::HostFunc(function) => {
                let known =
                    store.host_functions().iter().rposition(|known| Arc::ptr_eq(known, function));
                let reference = match known {
                    Some(index) => pagefork_layout::reference::FuncRef::new(
                        pagefork_layout::reference::HOST_ORDINAL,
                        index as u32,
                    ),
                    None => store.add_host_function(Arc::clone(function)),
                };
                let function = Func::from_reference(store, reference);
                function.expect("a definition is not null").into()
            }
        }
    }
}

impl<T: 'static> Linker<T> {
    /// A linker without definitions.
    ///
    /// # Examples
    ///
    /// See [`Linker`].
    pub fn new(engine: &Engine) -> Self {
        Self {
            engine: engine.clone(),
            modules: HashMap::new(),
            allow_shadowing: false,
            data: PhantomData,
        }
    }

    /// The linker's engine.
    ///
    /// # Examples
    ///
    /// See [`Linker`].
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Whether a name may be defined again; without that it is an error.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Engine, Linker};
    ///
    /// let mut linker = Linker::<()>::new(&Engine::default());
    /// linker.func_wrap("host", "f", || 1i32)?;
    /// assert!(linker.func_wrap("host", "f", || 2i32).is_err());
    /// linker.allow_shadowing(true).func_wrap("host", "f", || 3i32)?;
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn allow_shadowing(&mut self, allow: bool) -> &mut Self {
        self.allow_shadowing = allow;
        self
    }

    /// Defines something of a store.
    ///
    /// # Errors
    /// If the name is defined already, and shadowing not allowed.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Engine, Linker, Memory, MemoryType, Module, Store};
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module (import "host" "memory" (memory 1))
    ///     (func (export "load") (result i32) (i32.load8_u (i32.const 0))))"#)?;
    /// let mut store = Store::new(&engine, ());
    /// let memory = Memory::new(&mut store, MemoryType::new(1, None))?;
    /// memory.write(&mut store, 0, &[42])?;
    /// let mut linker = Linker::new(&engine);
    /// linker.define(&store, "host", "memory", memory)?;
    /// let instance = linker.instantiate(&mut store, &module)?;
    /// assert_eq!(instance.get_typed_func::<(), i32>(&mut store, "load")?.call(&mut store, ())?, 42);
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn define(
        &mut self,
        _store: impl AsContext<Data = T>,
        module: &str,
        name: &str,
        value: impl Into<Extern>,
    ) -> Result<&mut Self> {
        self.insert(module, name, Definition::Extern(value.into()))
    }

    /// Defines a host function whose type follows from the closure's; see
    /// [`Func::wrap`].
    ///
    /// # Errors
    /// If the name is defined already, and shadowing not allowed.
    ///
    /// # Examples
    ///
    /// See [`Linker`].
    pub fn func_wrap<Params, Results>(
        &mut self,
        module: &str,
        name: &str,
        function: impl IntoFunc<T, Params, Results>,
    ) -> Result<&mut Self> {
        let function = function.into_host_func(&self.engine);
        self.insert(module, name, Definition::HostFunc(Arc::new(function)))
    }

    /// Defines a host function of any type; see [`Func::new`].
    ///
    /// # Errors
    /// If the name is defined already, and shadowing not allowed.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Engine, ExternType, Linker, Module, Store, Val};
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module (import "host" "zero" (func (result i64)))
    ///     (export "zero" (func 0)))"#)?;
    /// // A function of whatever type the module wants.
    /// let mut linker = Linker::new(&engine);
    /// for import in module.imports() {
    ///     let ExternType::Func(ty) = import.ty() else { continue };
    ///     let types = ty.results.clone();
    ///     linker.func_new(import.module(), import.name(), ty, move |_, _, results| {
    ///         for (result, ty) in results.iter_mut().zip(&types) {
    ///             *result = Val::default_for_ty(ty).expect("it can be null");
    ///         }
    ///         Ok(())
    ///     })?;
    /// }
    /// let mut store = Store::new(&engine, ());
    /// let instance = linker.instantiate(&mut store, &module)?;
    /// assert_eq!(instance.get_typed_func::<(), i64>(&mut store, "zero")?.call(&mut store, ())?, 0);
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn func_new(
        &mut self,
        module: &str,
        name: &str,
        ty: FuncType,
        function: impl Fn(Caller<'_, T>, &[Val], &mut [Val]) -> Result<()> + Send + Sync + 'static,
    ) -> Result<&mut Self> {
        let function = on_values(&self.engine, ty, function);
        self.define_host(module, name, function)
    }

    pub(crate) fn define_host(
        &mut self,
        module: &str,
        name: &str,
        function: HostFunc,
    ) -> Result<&mut Self> {
        self.insert(module, name, Definition::HostFunc(Arc::new(function)))
    }

    /// Defines all exports of an instance under the name `module`.
    ///
    /// # Errors
    /// If one of the names is defined already, and shadowing not allowed.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Engine, Linker, Module, Store};
    ///
    /// let engine = Engine::default();
    /// let library = Module::new(&engine, r#"(module (func (export "double") (param i32) (result i32)
    ///     (i32.mul (local.get 0) (i32.const 2))))"#)?;
    /// let program = Module::new(&engine, r#"(module
    ///     (import "library" "double" (func $double (param i32) (result i32)))
    ///     (func (export "run") (result i32) (call $double (i32.const 21))))"#)?;
    /// let mut store = Store::new(&engine, ());
    /// let mut linker = Linker::new(&engine);
    /// let library = linker.instantiate(&mut store, &library)?;
    /// linker.instance(&mut store, "library", library)?;
    /// let program = linker.instantiate(&mut store, &program)?;
    /// assert_eq!(program.get_typed_func::<(), i32>(&mut store, "run")?.call(&mut store, ())?, 42);
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn instance(
        &mut self,
        mut store: impl AsContextMut<Data = T>,
        module: &str,
        instance: Instance,
    ) -> Result<&mut Self> {
        instance.ordinal(&store.as_context().0.inner)?;
        for export in instance.exports(store.as_context_mut()) {
            let name = export.name().to_owned();
            self.insert(module, &name, Definition::Extern(export.into_extern()))?;
        }
        Ok(self)
    }

    /// Defines the exports of a module under the name `name`.
    ///
    /// A *reactor*, which is any module without the export `_start`, is instantiated, its
    /// `_initialize` is called if it exports that, and all exports of the instance are
    /// defined. Of a *command*, a module that exports `_start`, the functions are defined,
    /// and each call of one of them makes an instance of its own, which stays until the
    /// store goes.
    ///
    /// # Errors
    /// [`LinkError::ProgramKind`] if the module exports both, or one that is no function, or
    /// if a command exports what is no function, unless tools always do so; what
    /// `_initialize` fails with; else as [`Linker::instantiate`] and [`Linker::instance`].
    /// Errors of instances of a command arrive when its functions are called.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Engine, Linker, Module, Store};
    ///
    /// let engine = Engine::default();
    /// let counter = Module::new(&engine, r#"(module
    ///     (global $count (mut i32) (i32.const 0))
    ///     (func (export "_initialize") (global.set $count (i32.const 40)))
    ///     (func (export "next") (result i32)
    ///         (global.set $count (i32.add (global.get $count) (i32.const 1)))
    ///         (global.get $count)))"#)?;
    /// let mut store = Store::new(&engine, ());
    /// let mut linker = Linker::new(&engine);
    /// linker.module(&mut store, "counter", &counter)?;
    /// let next = linker.get(&mut store, "counter", "next")?.into_func().unwrap();
    /// let next = next.typed::<(), i32>(&store)?;
    /// assert_eq!((next.call(&mut store, ())?, next.call(&mut store, ())?), (41, 42));
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn module(
        &mut self,
        mut store: impl AsContextMut<Data = T>,
        name: &str,
        module: &Module,
    ) -> Result<&mut Self> {
        if is_command(module)? {
            return self.command(name, module);
        }
        let instance = self.instantiate(&mut store, module)?;
        if let Some(initialize) = instance.get_func(&mut store, "_initialize") {
            let initialize = initialize.typed::<(), ()>(&store);
            let called = initialize.and_then(|function| function.call(&mut store, ()));
            called.map_err(|error| error.about("`_initialize` of the reactor"))?;
        }
        self.instance(store, name, instance)
    }

    fn command(&mut self, name: &str, module: &Module) -> Result<&mut Self> {
        let pre = self.instantiate_pre(module)?;
        for export in module.exports() {
            let own = export.name().to_owned();
            match export.ty() {
                ExternType::Func(ty) => {
                    let pre = pre.clone();
                    self.func_new(name, export.name(), ty, move |mut caller, params, results| {
                        let instance = pre.instantiate(&mut caller)?;
                        let function = instance.get_func(&mut caller, &own);
                        let function = function.expect("its module exports this function");
                        function.call(&mut caller, params, results)
                    })?;
                }
                _ if EXPORTED_ANYWAY.contains(&export.name()) => (),
                other => {
                    let (own, found) = (OneLine(&own), describe(&other));
                    let why = format!("it exports `_start`, and {own:?}, a {found}");
                    return Err(LinkError::ProgramKind(why).into());
                }
            }
        }
        Ok(self)
    }

    /// The function that `module`, if it is one, does its work in: what is defined by
    /// this name and the empty one, or `_start`; else a function that does nothing.
    ///
    /// # Errors
    /// [`LinkError::ProgramKind`] if what is defined so is no function.
    ///
    /// # Panics
    /// If the store is of another engine.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Caller, Engine, Linker, Module, Store};
    ///
    /// let engine = Engine::default();
    /// let command = Module::new(&engine, r#"(module (import "host" "count" (func $count))
    ///     (func (export "_start") (call $count)))"#)?;
    /// let mut linker = Linker::new(&engine);
    /// linker.func_wrap("host", "count", |mut caller: Caller<'_, u32>| *caller.data_mut() += 1)?;
    /// let mut store = Store::new(&engine, 0);
    /// linker.module(&mut store, "", &command)?;
    /// let start = linker.get_default(&mut store, "")?.typed::<(), ()>(&store)?;
    /// start.call(&mut store, ())?;
    /// assert_eq!(*store.data(), 1);
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn get_default(
        &self,
        mut store: impl AsContextMut<Data = T>,
        module: &str,
    ) -> Result<Func> {
        for name in ["", "_start"] {
            if let Ok(found) = self.get(&mut store, module, name) {
                let why = || LinkError::ProgramKind(format!("its {name:?} is no function"));
                return found.into_func().ok_or_else(|| why().into());
            }
        }
        Ok(Func::wrap(store, || ()))
    }

    /// What is defined by these names, in `store`.
    ///
    /// # Errors
    /// [`LinkError::NotDefined`] if nothing is.
    ///
    /// # Panics
    /// If the store is of another engine.
    ///
    /// # Examples
    ///
    /// See [`Linker::get_by_import`].
    pub fn get(
        &self,
        mut store: impl AsContextMut<Data = T>,
        module: &str,
        name: &str,
    ) -> Result<Extern> {
        let store = &mut store.as_context_mut().0.inner;
        self.check_store(store);
        Ok(self.defined(module, name)?.in_store(store))
    }

    /// What is defined by the names of an import, in `store`; its type is not looked at.
    ///
    /// # Panics
    /// If the store is of another engine.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Engine, Linker, Module, Store};
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module
    ///     (import "host" "known" (func)) (import "host" "missing" (func)))"#)?;
    /// let mut linker = Linker::new(&engine);
    /// linker.func_wrap("host", "known", || ())?;
    /// let mut store = Store::new(&engine, ());
    /// assert!(linker.get(&mut store, "host", "known")?.into_func().is_some());
    /// let missing = |import: &pagefork::ImportType<'_>| linker.get_by_import(&mut store, import).is_none();
    /// let missing: Vec<_> = module.imports().filter(missing).map(|import| import.name()).collect();
    /// assert_eq!(missing, ["missing"]);
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn get_by_import(
        &self,
        store: impl AsContextMut<Data = T>,
        import: &ImportType<'_>,
    ) -> Option<Extern> {
        self.get(store, import.module(), import.name()).ok()
    }

    /// All definitions, each with its two names, in no particular order.
    ///
    /// # Panics
    /// If the store is of another engine.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Engine, Linker, Store};
    ///
    /// let engine = Engine::default();
    /// let mut linker = Linker::new(&engine);
    /// linker.func_wrap("host", "double", |x: i32| x * 2)?;
    /// linker.alias("host", "double", "env", "twice")?;
    /// linker.alias_module("host", "host_v2")?;
    /// let mut store = Store::new(&engine, ());
    /// let mut names: Vec<_> = linker.iter(&mut store).map(|(module, name, _)| (module, name)).collect();
    /// names.sort();
    /// assert_eq!(names, [("env", "twice"), ("host", "double"), ("host_v2", "double")]);
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn iter<'a: 'p, 'p>(
        &'a self,
        mut store: impl AsContextMut<Data = T> + 'p,
    ) -> impl Iterator<Item = (&'a str, &'a str, Extern)> + 'p {
        self.check_store(&store.as_context().0.inner);
        let all = self.modules.iter().flat_map(|(module, names)| {
            names.iter().map(move |(name, definition)| (module, name, definition))
        });
        all.map(move |(module, name, definition)| {
            let store = &mut store.as_context_mut().0.inner;
            (module.as_str(), name.as_str(), definition.in_store(store))
        })
    }

    /// Defines what `module` and `name` mean under two other names too.
    ///
    /// # Errors
    /// [`LinkError::NotDefined`] if they mean nothing; if the other names are defined already,
    /// and shadowing not allowed.
    ///
    /// # Examples
    ///
    /// See [`Linker::iter`].
    pub fn alias(
        &mut self,
        module: &str,
        name: &str,
        as_module: &str,
        as_name: &str,
    ) -> Result<&mut Self> {
        let definition = self.defined(module, name)?.clone();
        self.insert(as_module, as_name, definition)
    }

    /// Defines all that `module` has now under the first name `as_module` too.
    ///
    /// # Errors
    /// If one of the names is defined already, and shadowing not allowed.
    ///
    /// # Examples
    ///
    /// See [`Linker::iter`].
    pub fn alias_module(&mut self, module: &str, as_module: &str) -> Result<()> {
        for (name, definition) in self.modules.get(module).cloned().unwrap_or_default() {
            self.insert(as_module, &name, definition)?;
        }
        Ok(())
    }

    /// Instantiates a module, with the definitions for its imports.
    ///
    /// # Errors
    /// If an import is not defined; else as [`Instance::new`].
    ///
    /// # Panics
    /// If a host function panics that the start function calls.
    ///
    /// # Examples
    ///
    /// See [`Linker::instance`].
    pub fn instantiate(
        &self,
        store: impl AsContextMut<Data = T>,
        module: &Module,
    ) -> Result<Instance> {
        self.instantiate_pre(module)?.instantiate(store)
    }

    /// As [`Linker::instantiate`], with a start function that may wait: see
    /// [`InstancePre::instantiate_async`].
    ///
    /// # Errors
    /// The future's are those of [`Linker::instantiate`].
    ///
    /// # Panics
    /// As [`Linker::instantiate`], in a poll.
    ///
    /// # Examples
    ///
    /// See [`InstancePre::spawn_async`].
    pub async fn instantiate_async(
        &self,
        store: impl AsContextMut<Data = T>,
        module: &Module,
    ) -> Result<Instance> {
        self.instantiate_pre(module)?.instantiate_async(store).await
    }

    /// Looks the imports of a module up, for instantiating it many times.
    ///
    /// # Errors
    /// If an import is not defined, or is a host function of another type.
    ///
    /// # Examples
    ///
    /// See [`Linker`].
    pub fn instantiate_pre(&self, module: &Module) -> Result<InstancePre<T>> {
        if !Engine::same(&self.engine, module.engine()) {
            return Err(UsageError::WrongEngine { what: "module" }.into());
        }
        let mut imports = Vec::with_capacity(module.imports().len());
        for import in module.imports() {
            let definition = self.definition(import.module(), import.name());
            let definition = definition.ok_or_else(|| Error::from(self.unknown(&import)))?;
            if let Definition::HostFunc(function) = definition {
                let found = ExternType::Func((*function.ty).clone());
                let expected = import.ty();
                if found != expected {
                    return Err(LinkError::IncompatibleImport {
                        module: import.module().to_owned(),
                        name: import.name().to_owned(),
                        expected: describe(&expected),
                        found: describe(&found),
                    }
                    .into());
                }
            }
            imports.push(definition.clone());
        }
        Ok(InstancePre::new(module.clone(), imports))
    }

    /// The same definitions, with other things of stores.
    pub(crate) fn map_externs(&self, map: impl Fn(Extern) -> Result<Extern>) -> Result<Self> {
        let mut mapped = self.clone();
        for definition in mapped.modules.values_mut().flat_map(HashMap::values_mut) {
            if let Definition::Extern(value) = definition {
                *value = map(*value)?;
            }
        }
        Ok(mapped)
    }

    fn unknown(&self, import: &ImportType<'_>) -> LinkError {
        let wanted = (import.module(), import.name());
        let defined = self
            .modules
            .iter()
            .flat_map(|(module, names)| names.keys().map(|name| (module.as_str(), name.as_str())));
        let similar = similar::most_similar(wanted, defined);
        LinkError::UnknownImport {
            module: import.module().to_owned(),
            name: import.name().to_owned(),
            expected: describe(&import.ty()),
            similar: similar.map(|(module, name)| (module.to_owned(), name.to_owned())),
        }
    }

    /// The function of the host that is defined by these names, if one is.
    pub(crate) fn host_func(&self, module: &str, name: &str) -> Option<Arc<HostFunc>> {
        match self.definition(module, name)? {
            Definition::HostFunc(function) => Some(Arc::clone(function)),
            Definition::Extern(_) => None,
        }
    }

    pub(crate) fn definition(&self, module: &str, name: &str) -> Option<&Definition> {
        self.modules.get(module)?.get(name)
    }

    fn defined(&self, module: &str, name: &str) -> Result<&Definition, LinkError> {
        let error = || LinkError::NotDefined { module: module.to_owned(), name: name.to_owned() };
        self.definition(module, name).ok_or_else(error)
    }

    fn check_store(&self, store: &StoreGroup) {
        assert!(
            Engine::same(&self.engine, &store.engine),
            "a linker of one engine was used with another engine's store"
        );
    }

    fn insert(&mut self, module: &str, name: &str, definition: Definition) -> Result<&mut Self> {
        let names = self.modules.entry(module.to_owned()).or_default();
        if !self.allow_shadowing && names.contains_key(name) {
            let (module, name) = (module.to_owned(), name.to_owned());
            return Err(LinkError::AlreadyDefined { module, name }.into());
        }
        if let Definition::HostFunc(function) = &definition {
            let (module, name) = (module.into(), name.into());
            // Under further names it is the same function.
            function.names.get_or_init(|| HostFuncNames { module, name });
        }
        names.insert(name.to_owned(), definition);
        Ok(self)
    }
}

/// What tools make a command export that is no function.
const EXPORTED_ANYWAY: [&str; 7] = [
    "memory",
    "table",
    "__indirect_function_table",
    "__data_end",
    "__heap_base",
    "__dso_handle",
    "__rtti_base",
];

/// Whether a module is a command of WASI, of which each call gets an instance of its own, and not
/// a reactor, of which one instance answers all calls.
fn is_command(module: &Module) -> Result<bool, LinkError> {
    let exports = |name| match module.export(name) {
        None => Ok(false),
        Some(Item::Func(_)) => Ok(true),
        Some(_) => Err(LinkError::ProgramKind(format!("`{name}` is no function"))),
    };
    match (exports("_start")?, exports("_initialize")?) {
        (true, true) => {
            let why = "it exports both `_start` and `_initialize`".to_owned();
            Err(LinkError::ProgramKind(why))
        }
        (is_command, _) => Ok(is_command),
    }
}

impl<T: 'static> Default for Linker<T> {
    /// A linker of an engine of its own with the default configuration.
    ///
    /// # Panics
    /// As [`Engine::default`].
    fn default() -> Self {
        Self::new(&Engine::default())
    }
}

impl<T> Clone for Linker<T> {
    fn clone(&self) -> Self {
        Self {
            engine: self.engine.clone(),
            modules: self.modules.clone(),
            allow_shadowing: self.allow_shadowing,
            data: PhantomData,
        }
    }
}
