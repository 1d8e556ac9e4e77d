//! Definitions that are made up for imports which nothing defines.

use pagefork_layout::module::{ExternType, FuncType};

use crate::api::global::Global;
use crate::api::imports::describe;
use crate::api::instance::Extern;
use crate::api::linker::Linker;
use crate::api::memory::Memory;
use crate::api::store::AsContextMut;
use crate::api::table::Table;
use crate::base::error::{LinkError, Result};
use crate::code::module::{ImportType, Module};
use crate::store::handle::Tag;
use crate::store::value::Val;

impl<T: 'static> Linker<T> {
    /// Defines each import of `module` that is a function and not defined yet, as
    /// a function that ends the guest when it is called, with
    /// [`LinkError::UndefinedFunction`], which names it. Memories, tables,
    /// globals and tags cannot be made up: where one is not defined, instantiating the
    /// module is still an error that says so.
    ///
    /// # Errors
    /// Never; the result is that of the other definitions.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Engine, LinkError, Linker, Module, Store};
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module (import "env" "rare" (func $rare))
    ///     (func (export "run")) (func (export "run_rare") (call $rare)))"#)?;
    /// let mut store = Store::new(&engine, ());
    /// let mut linker = Linker::new(&engine);
    /// linker.define_unknown_imports_as_traps(&module)?;
    /// let instance = linker.instantiate(&mut store, &module)?;
    /// instance.get_typed_func::<(), ()>(&mut store, "run")?.call(&mut store, ())?;
    /// let rare = instance.get_typed_func::<(), ()>(&mut store, "run_rare")?;
    /// let error = rare.call(&mut store, ()).unwrap_err();
    /// let named = |error: &LinkError| matches!(error, LinkError::UndefinedFunction { name, .. } if name == "rare");
    /// assert!(error.downcast_ref().is_some_and(named));
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn define_unknown_imports_as_traps(&mut self, module: &Module) -> Result<()> {
        for import in module.imports() {
            let ExternType::Func(ty) = import.ty() else { continue };
            if self.defines(&import) {
                continue;
            }
            let error = LinkError::UndefinedFunction {
                module: import.module().to_owned(),
                name: import.name().to_owned(),
            };
            self.func_new(import.module(), import.name(), ty, move |_, _, _| {
                Err(error.clone().into())
            })?;
        }
        Ok(())
    }

    /// Defines each import of `module` that is not defined yet as something that does and
    /// holds nothing: a function that returns zeros and nulls, a global of zero or null, a
    /// table of nulls, a memory of zeros, a tag. All but functions are of `store`.
    ///
    /// # Errors
    /// [`LinkError::NoDefault`] where a reference must not be null; else as [`Memory::new`] and
    /// the others of its kind. What was defined before the error stays.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Engine, Linker, Module, Store};
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module
    ///     (import "env" "answer" (func $answer (result i32)))
    ///     (import "env" "memory" (memory 1))
    ///     (func (export "run") (result i32) (i32.add (call $answer) (i32.load (i32.const 8)))))"#)?;
    /// let mut store = Store::new(&engine, ());
    /// let mut linker = Linker::new(&engine);
    /// linker.define_unknown_imports_as_default_values(&mut store, &module)?;
    /// let instance = linker.instantiate(&mut store, &module)?;
    /// let run = instance.get_typed_func::<(), i32>(&mut store, "run")?;
    /// assert_eq!(run.call(&mut store, ())?, 0);
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn define_unknown_imports_as_default_values(
        &mut self,
        mut store: impl AsContextMut<Data = T>,
        module: &Module,
    ) -> Result<()> {
        for import in module.imports() {
            if self.defines(&import) {
                continue;
            }
            let ty = import.ty();
            let no_default = || LinkError::NoDefault {
                module: import.module().to_owned(),
                name: import.name().to_owned(),
                expected: describe(&ty),
            };
            let value: Extern = match &ty {
                ExternType::Func(function) => {
                    let zeros = zeros(function).ok_or_else(no_default)?;
                    let function = function.clone();
                    self.func_new(import.module(), import.name(), function, {
                        move |_, _, results| {
                            results.copy_from_slice(&zeros);
                            Ok(())
                        }
                    })?;
                    continue;
                }
                ExternType::Global(global) => {
                    let value = Val::default_for_ty(&global.content).ok_or_else(no_default)?;
                    Global::new(&mut store, *global, value)?.into()
                }
                ExternType::Table(table) => {
                    if !table.element.nullable {
                        return Err(no_default().into());
                    }
                    let null = Val::null_ref(&table.element.heap);
                    Table::new(&mut store, *table, null)?.into()
                }
                ExternType::Memory(memory) => Memory::new(&mut store, *memory)?.into(),
                ExternType::Tag(ty) => Tag::new(&mut store, ty.clone())?.into(),
            };
            self.define(&store, import.module(), import.name(), value)?;
        }
        Ok(())
    }

    fn defines(&self, import: &ImportType<'_>) -> bool {
        self.definition(import.module(), import.name()).is_some()
    }
}

/// What a function of this type returns that knows nothing; `None` if there is no such value.
fn zeros(ty: &FuncType) -> Option<Box<[Val]>> {
    ty.results.iter().map(Val::default_for_ty).collect()
}
