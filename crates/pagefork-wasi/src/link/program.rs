//! The two kinds of modules in WASI: commands, which run once, and reactors, which are
//! initialized and then called.

use pagefork::{AsContextMut, Error, Instance};

/// The kind of a module, which its exports tell.
///
/// ```text
///               exports        calls
/// command       _start         _start, once; then the instance is used up
/// reactor       _initialize    _initialize, once; then any other export
///               neither        any export
/// ```
///
/// # Examples
///
/// ```
/// use pagefork::{Engine, Instance, Module, Store};
/// use pagefork_wasi::ProgramKind;
///
/// let engine = Engine::default();
/// let module = Module::new(&engine, r#"(module (func (export "_start")))"#)?;
/// let mut store = Store::new(&engine, ());
/// let instance = Instance::new(&mut store, &module, &[])?;
/// assert_eq!(pagefork_wasi::initialize(&mut store, &instance)?, ProgramKind::Command);
/// # Ok::<(), pagefork::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProgramKind {
    /// A program. It does its work in `_start`.
    Command,
    /// A library. Its state stays between calls of its functions.
    Reactor,
}

/// A module that is neither a command nor a reactor.
///
/// # Examples
///
/// ```
/// use pagefork::{Engine, Instance, Module, Store};
/// use pagefork_wasi::InitializeError;
///
/// let engine = Engine::default();
/// let module = r#"(module (func (export "_start")) (func (export "_initialize")))"#;
/// let mut store = Store::new(&engine, ());
/// let instance = Instance::new(&mut store, &Module::new(&engine, module)?, &[])?;
/// let error = pagefork_wasi::initialize(&mut store, &instance).unwrap_err();
/// assert_eq!(error.downcast_ref(), Some(&InitializeError::Both));
/// # Ok::<(), pagefork::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InitializeError {
    /// It exports the functions of both.
    #[error(
        "the module exports both `_start` and `_initialize`, so it is neither a command nor a \
         reactor; link it as one of the two"
    )]
    Both,
    /// Its `_start` or `_initialize` cannot be called.
    #[error("`{name}` must be a function without parameters and results; link the module again")]
    NotAFunction {
        /// The export.
        name: &'static str,
    },
}

/// Returns the kind of an instance. Calls `_initialize` of a reactor, so it must be called once,
/// before any function of the instance. A command has not run afterwards: call its `_start`.
///
/// # Errors
///
/// [`InitializeError`], and the errors of `_initialize`: a trap, or [`Exit`](crate::Exit).
///
/// # Panics
///
/// If the instance is of another store.
///
/// # Examples
///
/// ```
/// use pagefork::{Engine, Linker, Module, Store};
/// use pagefork_wasi::{ProgramKind, WasiCtx};
///
/// let engine = Engine::default();
/// let module = Module::new(&engine, r#"(module
///     (global $ready (mut i32) (i32.const 0))
///     (func (export "_initialize") (global.set $ready (i32.const 1)))
///     (func (export "ready") (result i32) (global.get $ready)))"#)?;
/// let mut linker = Linker::new(&engine);
/// pagefork_wasi::add_to_linker(&mut linker, |ctx: &mut WasiCtx| ctx)?;
/// let mut store = Store::new(&engine, WasiCtx::builder().build()?);
/// let instance = linker.instantiate(&mut store, &module)?;
///
/// assert_eq!(pagefork_wasi::initialize(&mut store, &instance)?, ProgramKind::Reactor);
/// let ready = instance.get_typed_func::<(), i32>(&mut store, "ready")?;
/// assert_eq!(ready.call(&mut store, ())?, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn initialize(mut store: impl AsContextMut, instance: &Instance) -> Result<ProgramKind, Error> {
    let mut exports = |name| match instance.get_export(&mut store, name) {
        None => Ok(false),
        Some(_) => match instance.get_typed_func::<(), ()>(&mut store, name) {
            Ok(_) => Ok(true),
            Err(_) => Err(Error::new(InitializeError::NotAFunction { name })),
        },
    };
    match (exports("_start")?, exports("_initialize")?) {
        (true, true) => Err(Error::new(InitializeError::Both)),
        (true, false) => Ok(ProgramKind::Command),
        (false, initialize) => {
            if initialize {
                let function = instance.get_typed_func::<(), ()>(&mut store, "_initialize")?;
                function.call(&mut store, ())?;
            }
            Ok(ProgramKind::Reactor)
        }
    }
}
