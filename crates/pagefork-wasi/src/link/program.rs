//! The two kinds of modules that WASI knows: programs that run once, and
//! libraries that are set up and then called.

use pagefork::{AsContextMut, Error, Instance};

/// What a module is to WASI, told by its exports.
///
/// ```text
///               exports        to be called
/// command       _start         _start, once; the instance is then used up
/// reactor       _initialize    _initialize, once; then whatever else it exports
///               neither        whatever it exports
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProgramKind {
    /// A program: it does its work in `_start`.
    Command,
    /// A library: its functions are called one by one, and keep their state
    /// between the calls.
    Reactor,
}

/// A module that is neither a command nor a reactor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InitializeError {
    /// It would be both.
    #[error(
        "the module exports both `_start` and `_initialize`, so that it is neither a program nor \
         a library; link it as one of the two"
    )]
    Both,
    /// The function that it is to begin with is none.
    #[error("`{name}` must be a function without parameters and results; link the module anew")]
    NotAFunction {
        /// The export.
        name: &'static str,
    },
}

/// Tells what an instance is, and if it is a reactor, calls its `_initialize`:
/// to be done once, before anything else of it is called.
///
/// A command has not run yet: call its `_start`.
///
/// # Errors
///
/// [`InitializeError`], and what `_initialize` fails with: a trap, or
/// [`Exit`](crate::Exit).
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
