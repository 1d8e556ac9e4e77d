//! Exports that are found once, in all instances of a module, and called with values in registers.

use std::panic::resume_unwind;

use pagefork_layout::module::{FuncType, Item};
use pagefork_layout::text::OneLine;

use crate::api::instance::Instance;
use crate::api::registers::{
    RegisterFunc, RegisterMasks, RegisterResult, RegisterValues, call_otherwise,
};
use crate::api::store::{AsContext, AsContextMut};
use crate::base::error::{Result, UsageError};
use crate::code::module::Module;
use crate::run::enter;
use crate::store::group::StoreGroup;
use crate::store::handle::{CallTarget, Func};

/// Where an exported function is in all instances of a module, and that it is of this type: see
/// [`Module::get_register_export`].
///
/// # Examples
///
/// See [`Module::get_register_export`].
#[derive(Clone, Copy, Debug)]
pub struct RegisterExport {
    module: u64,
    index: u32,
    masks: RegisterMasks,
}

impl RegisterExport {
    /// Whether it is one of this module.
    ///
    /// # Examples
    ///
    /// See [`Module::get_register_export`].
    pub fn is_of(&self, module: &Module) -> bool {
        self.module == module.number()
    }

    /// Calls what an instance exports there: as [`Instance::get_register_export`] and
    /// [`RegisterFunc::call`] do one after the other, for functions that are called once.
    ///
    /// # Errors
    /// As both.
    ///
    /// # Panics
    /// If a host function panics, with its payload.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Engine, FuncType, Linker, Module, RegisterValues, ValType};
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module (global $count (mut i64) (i64.const 0))
    ///     (func (export "add") (param i64) (result i64)
    ///         (global.set $count (i64.add (global.get $count) (local.get 0)))
    ///         (global.get $count)))"#)?;
    /// let ty = FuncType::new([ValType::I64], [ValType::I64]);
    /// let add = module.get_register_export("add", &ty)?;
    /// let pre = Linker::new(&engine).instantiate_pre(&module)?;
    /// let mut values = RegisterValues::default();
    /// values.ints[0] = 3;
    /// let (mut store, instance) = pre.spawn(())?;
    /// assert_eq!(add.call(&mut store, &instance, &values)?.int, 3);
    /// assert_eq!(add.call(&mut store, &instance, &values)?.int, 6);
    /// let other = Module::new(&engine, "(module)")?;
    /// let (mut store, instance) = Linker::new(&engine).instantiate_pre(&other)?.spawn(())?;
    /// assert!(add.call(&mut store, &instance, &values).is_err());
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    #[inline]
    pub fn call(
        &self,
        mut store: impl AsContextMut,
        instance: &Instance,
        values: &RegisterValues,
    ) -> Result<RegisterResult> {
        let mut store = store.as_context_mut();
        let whole = store.as_ptr();
        // SAFETY: the store is borrowed; this borrow ends before anything is called.
        let (func, target) = unsafe {
            let func = self.func(&*whole, instance)?;
            (func, func.entry(&*whole))
        };
        if let CallTarget::Guest(target) = &target
            // SAFETY: the store is borrowed.
            && unsafe { enter::enters_outermost(whole) }
        {
            // SAFETY: the store is borrowed, and so is its activation; the function is its own, of
            // the export's type, and nothing has happened since the check.
            return unsafe {
                let activation = (&raw const (*whole).activation).addr();
                self.masks
                    .enter(whole, activation, target, values)
                    .map_err(|left| left.reason().unwrap_or_else(|payload| resume_unwind(payload)))
            };
        }
        call_otherwise(&func, store, *values)
    }

    /// The function that an instance exports there.
    ///
    /// # Errors
    /// If the instance is of another store, or of another module than the export.
    #[inline(always)]
    fn func(&self, store: &StoreGroup, instance: &Instance) -> Result<Func> {
        let ordinal = instance.ordinal(store)?;
        if instance.module_in(store).number() != self.module {
            return Err(UsageError::WrongModule { what: "export" }.into());
        }
        // What is imported is of the same type: there are no subtypes of function types.
        Ok(Func { store: store.id, definition: store.function(ordinal, self.index) })
    }
}

impl Module {
    /// As [`Module::get_typed_export`], of a type that Rust does not know.
    ///
    /// # Errors
    /// As [`Module::get_typed_export`] and [`Func::with_registers`].
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Engine, FuncType, Linker, Module, RegisterValues, ValType};
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module (func (export "square")
    ///     (param i32) (result i32) (i32.mul (local.get 0) (local.get 0))))"#)?;
    /// let ty = FuncType::new([ValType::I32], [ValType::I32]);
    /// let square = module.get_register_export("square", &ty)?;
    /// assert!(square.is_of(&module));
    /// let pre = Linker::new(&engine).instantiate_pre(&module)?;
    /// for number in 0..3 {
    ///     let (mut store, instance) = pre.spawn(())?;
    ///     let square = instance.get_register_export(&store, &square)?;
    ///     let mut values = RegisterValues::default();
    ///     values.ints[0] = number;
    ///     assert_eq!(square.call(&mut store, values)?.int, number * number);
    /// }
    /// assert!(module.get_register_export("square", &FuncType::new([], [])).is_err());
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn get_register_export(&self, name: &str, ty: &FuncType) -> Result<RegisterExport> {
        let Some(Item::Func(index)) = self.export(name) else {
            return Err(UsageError::NoExport { kind: "function", name: name.to_owned() }.into());
        };
        let found = self.function_type(index);
        if found != ty {
            let what = format!("the exported function {:?}", OneLine(name));
            let (expected, found) = (ty.to_string(), found.to_string());
            return Err(UsageError::TypeMismatch { what, expected, found }.into());
        }
        Ok(RegisterExport { module: self.number(), index, masks: RegisterMasks::of(ty)? })
    }
}

impl Instance {
    /// The function that the instance exports there, to be called with values in registers.
    ///
    /// # Errors
    /// If the instance is of another store, or of another module than the export.
    ///
    /// # Examples
    ///
    /// See [`Module::get_register_export`].
    #[inline(always)]
    pub fn get_register_export(
        &self,
        store: impl AsContext,
        export: &RegisterExport,
    ) -> Result<RegisterFunc> {
        let store = &store.as_context().0.inner;
        Ok(RegisterFunc::new(export.func(store, self)?, store, export.masks))
    }
}
