//! Exports that are found once in a module, and then in each of its instances without their names.

use std::marker::PhantomData;

use pagefork_layout::module::{FuncType, Item};
use pagefork_layout::text::OneLine;

use crate::api::func::Caller;
use crate::api::instance::{Extern, Instance};
use crate::api::store::{AsContext, AsContextMut};
use crate::api::typed::{TypedFunc, WasmValues};
use crate::base::error::{Result, UsageError};
use crate::code::module::Module;
use crate::store::group::StoreGroup;
use crate::store::handle::Func;

/// Where an export is in all instances of a module: see [`Module::get_export_index`].
///
/// It stays good when the module is dropped, and keeps nothing of it.
///
/// # Examples
///
/// See [`Module::get_export_index`].
#[derive(Clone, Copy, Debug)]
pub struct ModuleExport {
    module: u64,
    item: Item,
}

/// Where an exported function is in all instances of a module, and that it is of this type: see
/// [`Module::get_typed_export`].
///
/// # Examples
///
/// See [`Module::get_typed_export`].
pub struct TypedExport<Params, Results> {
    module: u64,
    index: u32,
    ty: PhantomData<fn(Params) -> Results>,
}

impl Module {
    /// Finds an export once, for all instances of the module:
    /// [`Instance::get_module_export`] gives it without looking its name up.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Engine, Linker, Module};
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module (memory (export "memory") 3))"#)?;
    /// let memory = module.get_export_index("memory").expect("it is exported");
    /// let pre = Linker::new(&engine).instantiate_pre(&module)?;
    /// for _ in 0..3 {
    ///     let (mut store, instance) = pre.spawn(())?;
    ///     let memory = instance.get_module_export(&mut store, &memory).expect("its module's");
    ///     assert_eq!(memory.into_memory().expect("a memory").size(&store), 3);
    /// }
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn get_export_index(&self, name: &str) -> Option<ModuleExport> {
        let item = self.export(name)?;
        Some(ModuleExport { module: self.number(), item })
    }

    /// Finds an exported function once, for all instances of the module, and checks its type:
    /// [`Instance::get_typed_export`] gives it without doing so again.
    ///
    /// # Errors
    /// If there is no such function, or it is of another type.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Engine, Linker, Module};
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module (func (export "square")
    ///     (param i32) (result i32) (i32.mul (local.get 0) (local.get 0))))"#)?;
    /// let square = module.get_typed_export::<i32, i32>("square")?;
    /// let pre = Linker::new(&engine).instantiate_pre(&module)?;
    /// for number in 0..3 {
    ///     let (mut store, instance) = pre.spawn(())?;
    ///     let square = instance.get_typed_export(&store, &square)?;
    ///     assert_eq!(square.call(&mut store, number)?, number * number);
    /// }
    /// assert!(module.get_typed_export::<i64, i32>("square").is_err());
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn get_typed_export<Params: WasmValues, Results: WasmValues>(
        &self,
        name: &str,
    ) -> Result<TypedExport<Params, Results>> {
        let Some(Item::Func(index)) = self.export(name) else {
            return Err(UsageError::NoExport { kind: "function", name: name.to_owned() }.into());
        };
        check_type::<Params, Results>(self.function_type(index)).map_err(|error| {
            error.about(format_args!("the exported function {:?}", OneLine(name)))
        })?;
        Ok(TypedExport { module: self.number(), index, ty: PhantomData })
    }
}

impl Instance {
    /// What the instance exports there; `None` if it is an instance of another module.
    ///
    /// # Panics
    /// If the instance is of another store.
    ///
    /// # Examples
    ///
    /// See [`Module::get_export_index`].
    pub fn get_module_export(
        &self,
        mut store: impl AsContextMut,
        export: &ModuleExport,
    ) -> Option<Extern> {
        let store = &store.as_context_mut().0.inner;
        self.assert_store(store);
        let is_its = self.module_in(store).number() == export.module;
        is_its.then(|| self.item(store, export.item))
    }

    /// The function that the instance exports there: two comparisons and a few loads.
    ///
    /// # Errors
    /// If the instance is of another store, or of another module than the export.
    ///
    /// # Examples
    ///
    /// See [`Module::get_typed_export`].
    #[inline]
    pub fn get_typed_export<Params: WasmValues, Results: WasmValues>(
        &self,
        store: impl AsContext,
        export: &TypedExport<Params, Results>,
    ) -> Result<TypedFunc<Params, Results>> {
        let store = &store.as_context().0.inner;
        let ordinal = self.ordinal(store)?;
        if self.module_in(store).number() != export.module {
            return Err(UsageError::WrongModule { what: "export" }.into());
        }
        Ok(typed(store, ordinal, export.index))
    }
}

impl<T: 'static> Caller<'_, T> {
    /// What the calling instance exports there; `None` if it is one of another module, also if
    /// the embedder called the function itself.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Caller, Engine, Extern, Linker, Module};
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module (import "host" "put" (func $put (param i32)))
    ///     (memory (export "memory") 1)
    ///     (func (export "run") (call $put (i32.const 8))))"#)?;
    /// // Found once, and not at each call of `put`.
    /// let memory = module.get_export_index("memory").expect("it is exported");
    /// let mut linker = Linker::new(&engine);
    /// linker.func_wrap("host", "put", move |mut caller: Caller<'_, ()>, at: u32| {
    ///     let Some(Extern::Memory(memory)) = caller.get_module_export(&memory) else { return };
    ///     memory.data_mut(&mut caller)[at as usize] = 7;
    /// })?;
    /// let (mut store, instance) = linker.instantiate_pre(&module)?.spawn(())?;
    /// instance.get_typed_func::<(), ()>(&mut store, "run")?.call(&mut store, ())?;
    /// assert_eq!(instance.get_memory(&mut store, "memory").unwrap().data(&store)[8], 7);
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn get_module_export(&mut self, export: &ModuleExport) -> Option<Extern> {
        self.instance()?.get_module_export(self, export)
    }
}

/// A function of an instance, of which it is known that it is of this type.
fn typed<Params, Results>(
    store: &StoreGroup,
    ordinal: u32,
    index: u32,
) -> TypedFunc<Params, Results> {
    // What is imported is of the same type: there are no subtypes of function types.
    let function = Func { store: store.id, definition: store.function(ordinal, index) };
    TypedFunc::new(function, store.id, function.entry(store))
}

/// # Errors
/// If the type of a function is not what these say.
pub(crate) fn check_type<Params: WasmValues, Results: WasmValues>(ty: &FuncType) -> Result<()> {
    if *ty.params == *Params::TYPES && *ty.results == *Results::TYPES {
        return Ok(());
    }
    let asked = FuncType { params: Params::TYPES.into(), results: Results::TYPES.into() };
    let what = "the function".to_owned();
    let (expected, found) = (asked.to_string(), ty.to_string());
    Err(UsageError::TypeMismatch { what, expected, found }.into())
}

impl<Params, Results> Clone for TypedExport<Params, Results> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<Params, Results> Copy for TypedExport<Params, Results> {}

impl<Params, Results> std::fmt::Debug for TypedExport<Params, Results> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TypedExport").field("index", &self.index).finish_non_exhaustive()
    }
}
