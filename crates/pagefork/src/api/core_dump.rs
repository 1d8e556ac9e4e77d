//! Core dumps as embedders take and read them.

use crate::api::global::Global;
use crate::api::instance::Instance;
use crate::api::memory::Memory;
use crate::api::store::{AsContext, AsContextMut};
use crate::base::error::Error;
use crate::base::frames::WasmBacktrace;
use crate::code::module::Module;
use crate::run::core_dump;

/// What there is of a store's guests after a trap: where they were, and handles of all that they
/// have, exported or not. Their contents are read when they are asked for.
///
/// # Examples
///
/// ```
/// use pagefork::{Engine, Instance, Module, Store, WasmCoreDump};
///
/// let engine = Engine::default();
/// let module = Module::new(&engine, r#"(module $plugin (memory 1) (global $stage (mut i32) (i32.const 0))
///     (func (export "run") (global.set $stage (i32.const 3)) (unreachable)))"#)?;
/// let mut store = Store::new(&engine, ());
/// let instance = Instance::new(&mut store, &module, &[])?;
/// let run = instance.get_typed_func::<(), ()>(&mut store, "run")?;
/// let error = run.call(&mut store, ()).unwrap_err();
///
/// let dump = WasmCoreDump::capture(&mut store, &error).expect("a guest ran");
/// assert_eq!(dump.frames().frames().len(), 1);
/// assert_eq!((dump.modules().len(), dump.instances()), (1, &[instance][..]));
/// assert_eq!(dump.memories()[0].size(&store), 1);
/// assert_eq!(dump.globals()[0].get(&mut store).i32(), Some(3));
/// // The file is a WebAssembly module itself, which debuggers can open.
/// assert!(dump.serialize(&mut store, "plugin").starts_with(b"\0asm"));
/// # Ok::<(), pagefork::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct WasmCoreDump {
    backtrace: WasmBacktrace,
    modules: Vec<Module>,
    instances: Vec<Instance>,
    memories: Vec<Memory>,
    globals: Vec<Global>,
}

impl WasmCoreDump {
    /// Takes a dump of a store whose call has failed with `error`; `None` if no guest ran then, so
    /// that the error has no [backtrace](Error::backtrace). Nothing is copied.
    ///
    /// # Examples
    ///
    /// See [`WasmCoreDump`].
    pub fn capture(store: impl AsContext, error: &Error) -> Option<Self> {
        let backtrace = error.backtrace()?.clone();
        let store = &store.as_context().0.inner;
        let mut modules: Vec<Module> = Vec::new();
        for instance in &store.instances {
            if !modules.iter().any(|module| Module::same(module, &instance.module)) {
                modules.push(instance.module.clone());
            }
        }
        let ordinals = 1..store.next_ordinal();
        let instances = ordinals.map(|ordinal| Instance::from_ordinal(store, ordinal)).collect();
        let memories = core_dump::memories(store).into_iter();
        let memories = memories.map(|memory| Memory::from_entity(store, memory)).collect();
        let globals = core_dump::globals(store).into_iter();
        let globals = globals.map(|global| Global::from_entity(store, global)).collect();
        Some(Self { backtrace, modules, instances, memories, globals })
    }

    /// Where the guests were.
    ///
    /// # Examples
    ///
    /// See [`WasmCoreDump`].
    pub fn frames(&self) -> &WasmBacktrace {
        &self.backtrace
    }

    /// The modules of the instances, each once.
    ///
    /// # Examples
    ///
    /// See [`WasmCoreDump`].
    pub fn modules(&self) -> &[Module] {
        &self.modules
    }

    /// The instances, in the order in which they were made.
    ///
    /// # Examples
    ///
    /// See [`WasmCoreDump`].
    pub fn instances(&self) -> &[Instance] {
        &self.instances
    }

    /// The memories of the instances, each once.
    ///
    /// # Examples
    ///
    /// See [`WasmCoreDump`].
    pub fn memories(&self) -> &[Memory] {
        &self.memories
    }

    /// The globals of the instances, each once.
    ///
    /// # Examples
    ///
    /// See [`WasmCoreDump`].
    pub fn globals(&self) -> &[Global] {
        &self.globals
    }

    /// The dump as a file in WebAssembly's format, with what the store's guests hold now: see
    /// [`Store::core_dump`](crate::Store::core_dump).
    ///
    /// # Examples
    ///
    /// See [`WasmCoreDump`].
    pub fn serialize(&self, store: impl AsContextMut, name: &str) -> Vec<u8> {
        core_dump::write(&store.as_context().0.inner, name, &self.backtrace)
    }
}
