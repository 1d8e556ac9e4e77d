//! The configuration of engines.

#[cfg(feature = "compiler")]
use std::{sync::Arc, time::Duration};

#[cfg(feature = "compiler")]
use pagefork_compiler::Progress;
use pagefork_compiler::{CompileOptions, Features};

use pagefork_pages::{Budget, PoolConfig, StrategyConfig};

#[cfg(feature = "compiler")]
use crate::code::cache::Cache;
use crate::code::profile::Profile;

/// How an [`Engine`](crate::Engine) compiles modules and lays out their
/// instances. All of WebAssembly 3.0 is on by default, but for garbage collection.
///
/// # Examples
///
/// ```
/// use pagefork::{Config, Engine, Module};
///
/// let mut config = Config::new();
/// config.stack_size(256 << 10).fuel(true).wasm_exceptions(false);
/// let engine = Engine::new(&config)?;
/// assert!(Module::new(&engine, "(module (tag))").is_err());
/// # Ok::<(), pagefork::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Config {
    pub(crate) compile: CompileOptions,
    pub(crate) profile: Profile,
    #[cfg(feature = "compiler")]
    pub(crate) progress: Option<Arc<Progress>>,
    #[cfg(feature = "compiler")]
    pub(crate) cache: Option<Cache>,
    #[cfg(feature = "compiler")]
    pub(crate) cache_round_trip: bool,
    pub(crate) strategies: StrategyConfig,
    pub(crate) pool: PoolConfig,
    pub(crate) resident_max: Option<u64>,
    /// Whether slots are overwritten before they are handed out.
    #[cfg(feature = "testing")]
    pub(crate) poison: bool,
}

macro_rules! switches {
    ($($name:ident, $feature:ident, $doc:literal;)*) => {$(
        #[doc = concat!("Whether modules may use ", $doc, "; on by default.")]
        ///
        /// # Examples
        ///
        /// See [`Config`].
        pub fn $name(&mut self, on: bool) -> &mut Self {
            self.compile.features.$feature = on;
            self
        }
    )*};
}

impl Config {
    /// The default configuration.
    ///
    /// # Examples
    ///
    /// See [`Config`].
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes of stack that guests have, rounded up to pages: 1 MiB by default,
    /// 16 KiB at least, 1 GiB at most.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Config, Engine, Instance, Module, Store, Trap, TrapCode};
    ///
    /// let engine = Engine::new(Config::new().stack_size(64 << 10))?;
    /// let module = Module::new(&engine, r#"(module (func $down (export "down") (param i32)
    ///     (if (local.get 0) (then (call $down (i32.sub (local.get 0) (i32.const 1)))))))"#)?;
    /// let mut store = Store::new(&engine, ());
    /// let instance = Instance::new(&mut store, &module, &[])?;
    /// let down = instance.get_typed_func::<i32, ()>(&mut store, "down")?;
    /// down.call(&mut store, 100)?;
    /// let error = down.call(&mut store, 100_000).unwrap_err();
    /// assert_eq!(error.downcast_ref::<Trap>().map(Trap::code), Some(TrapCode::StackOverflow));
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn stack_size(&mut self, bytes: u64) -> &mut Self {
        self.compile.limits.stack_size = bytes.min(1 << 30);
        self
    }

    /// How many elements a table whose module gives no maximum can grow to:
    /// 65,536 by default. Address space is reserved for them, memory is not.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Config, Engine, RefType, Store, Table, TableType, Val};
    ///
    /// let engine = Engine::new(Config::new().table_elements(100))?;
    /// let mut store = Store::new(&engine, ());
    /// let table = Table::new(&mut store, TableType::new(RefType::FUNCREF, 90, None), Val::null_func_ref())?;
    /// assert!(table.grow(&mut store, 10, Val::null_func_ref()).is_ok());
    /// assert!(table.grow(&mut store, 1, Val::null_func_ref()).is_err());
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn table_elements(&mut self, elements: u64) -> &mut Self {
        self.compile.limits.table_elements = elements;
        self
    }

    /// Bytes that a memory indexed by 64 bits whose module gives no smaller
    /// maximum can grow to: 4 GiB by default. Address space is reserved for them,
    /// memory is not. A larger initial size is still honoured.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Config, Engine, Memory, MemoryType, Store};
    ///
    /// let engine = Engine::new(Config::new().memory64_size(1 << 20))?;
    /// let mut store = Store::new(&engine, ());
    /// let memory = Memory::new(&mut store, MemoryType::new64(15, None))?;
    /// assert!(memory.grow(&mut store, 1).is_ok());
    /// assert!(memory.grow(&mut store, 1).is_err());
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn memory64_size(&mut self, bytes: u64) -> &mut Self {
        self.compile.limits.memory64_size = bytes;
        self
    }

    /// How long compiling a module may take; without a limit by default. When it is over, making
    /// the module fails with [`CompileError::TimedOut`](crate::CompileError::TimedOut). It is
    /// looked at between operators, functions and phases of a function, so that can be later by
    /// the time of one phase, which [`compile_work`](Self::compile_work) limits.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use pagefork::{CompileError, Config, Engine, Module};
    ///
    /// let engine = Engine::new(Config::new().compile_timeout(Some(Duration::ZERO)))?;
    /// let error = Module::new(&engine, "(module (func (nop)))").unwrap_err();
    /// assert!(matches!(error.downcast_ref(), Some(CompileError::TimedOut { .. })), "{error}");
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    #[cfg(feature = "compiler")]
    pub fn compile_timeout(&mut self, time: Option<Duration>) -> &mut Self {
        self.compile.cost.time = time;
        self
    }

    /// Bytes that the functions of a module that are compiled at once may need together by
    /// estimate: 2 GiB by default. A function that needs more by itself is refused
    /// ([`CompileError::TooCostly`](crate::CompileError::TooCostly)); others wait for each other.
    /// Large functions of real programs need some 60 MiB. Finished code may take as much again;
    /// the module itself is not counted, and nothing stops what an estimate has missed.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Config, Engine, Module};
    ///
    /// // What compiles modules of strangers gives each engine a part of the machine.
    /// let engine = Engine::new(Config::new().compile_memory(256 << 20))?;
    /// Module::new(&engine, "(module (func (nop)))")?;
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    #[cfg(feature = "compiler")]
    pub fn compile_memory(&mut self, bytes: u64) -> &mut Self {
        self.compile.cost.memory = bytes;
        self
    }

    /// Steps that compiling a module may need by estimate of what grows faster than the module:
    /// values times the instructions that each is live for, and loops in loops. 2^30 by default,
    /// some 20 seconds of processor time; CPython needs 2^24, Ruby 2^27. A module that needs more,
    /// or a function that needs a quarter of them, is refused
    /// ([`CompileError::TooCostly`](crate::CompileError::TooCostly)).
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Config, Engine, Module};
    ///
    /// let engine = Engine::new(Config::new().compile_work(1 << 24))?;
    /// Module::new(&engine, "(module (func (nop)))")?;
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    #[cfg(feature = "compiler")]
    pub fn compile_work(&mut self, steps: u64) -> &mut Self {
        self.compile.cost.work = steps;
        self
    }

    /// Where another thread can see how far the engine is with what it compiles.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::Arc;
    /// use pagefork::{Config, Engine, Module, Progress};
    ///
    /// let progress = Arc::new(Progress::default());
    /// let engine = Engine::new(Config::new().progress(Arc::clone(&progress)))?;
    /// Module::new(&engine, "(module (func) (func))")?;
    /// assert_eq!(progress.done(), progress.total());
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    #[cfg(feature = "compiler")]
    pub fn progress(&mut self, progress: Arc<Progress>) -> &mut Self {
        self.progress = Some(progress);
        self
    }

    /// What the profiler `perf` is told about compiled code: nothing by default.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Config, Engine, Profile};
    ///
    /// let mut config = Config::new();
    /// // For `perf record`, in a process that is asked to be profiled.
    /// if std::env::var_os("PROFILE").is_some() {
    ///     config.profile(Profile::PerfMap);
    /// }
    /// Engine::new(&config)?;
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn profile(&mut self, profile: Profile) -> &mut Self {
        self.profile = profile;
        self
    }

    /// Bytes that an instance whose module has tags has for the exceptions that it
    /// throws and that are still in use, rounded up to pages: 64 KiB by default,
    /// 4 KiB at least, 1 MiB at most. An exception takes 16 bytes and 16 for each
    /// value that it carries.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Config, Engine};
    ///
    /// // Room for 256 exceptions that carry 3 values each.
    /// Engine::new(Config::new().exceptions_size(256 * 4 * 16))?;
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn exceptions_size(&mut self, bytes: u64) -> &mut Self {
        self.compile.limits.exceptions_size = bytes;
        self
    }

    /// Whether guests can be interrupted from another thread and by timeouts; on
    /// by default. It costs guests a comparison at function entries and loops. Without it
    /// [`Store::set_timeout`](crate::Store::set_timeout),
    /// [`Store::interrupt_handle`](crate::Store::interrupt_handle),
    /// [`Store::set_yield_interval`](crate::Store::set_yield_interval) and
    /// [`InstancePre::spawn_limited`](crate::InstancePre::spawn_limited), which gives such a
    /// handle, are errors, and [`Store::set_epoch_deadline`](crate::Store::set_epoch_deadline)
    /// panics.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use pagefork::{Config, Engine, Store, UsageError};
    ///
    /// let engine = Engine::new(Config::new().interruption(false))?;
    /// let error = Store::new(&engine, ()).set_timeout(Some(Duration::from_secs(1))).unwrap_err();
    /// assert_eq!(error.downcast_ref(), Some(&UsageError::NotInterruptible));
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn interruption(&mut self, on: bool) -> &mut Self {
        self.compile.interruptible = on;
        self
    }

    /// Whether guests pay fuel for what they do, and trap when it is used up; off
    /// by default. Stores start without fuel: see
    /// [`Store::set_fuel`](crate::Store::set_fuel). Each operator that does
    /// something costs one unit, operations on ranges one more for every 16 bytes.
    /// The same calls cost the same fuel on every machine.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Config, Engine, Instance, Module, Store, Trap, TrapCode};
    ///
    /// let engine = Engine::new(Config::new().fuel(true))?;
    /// let module = Module::new(&engine, r#"(module (func (export "spin") (loop (br 0))))"#)?;
    /// let mut store = Store::new(&engine, ());
    /// let instance = Instance::new(&mut store, &module, &[])?;
    /// store.set_fuel(1000)?;
    /// let error = instance.get_typed_func::<(), ()>(&mut store, "spin")?.call(&mut store, ()).unwrap_err();
    /// assert_eq!(error.downcast_ref::<Trap>().map(Trap::code), Some(TrapCode::OutOfFuel));
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn fuel(&mut self, on: bool) -> &mut Self {
        self.compile.fuel = on;
        self
    }

    /// Whether the results of instructions are the same on every machine: NaNs
    /// that arithmetic makes are the canonical one, and relaxed vector operators
    /// do what the vector proposal does, without fused multiplication. Off by
    /// default, because it costs float arithmetic time. What host functions, growth
    /// of memories and tables, and stack overflow do is up to the embedder.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Config, Engine, Instance, Module, Store};
    ///
    /// let engine = Engine::new(Config::new().deterministic(true))?;
    /// let module = Module::new(&engine, r#"(module (func (export "div") (param f32 f32) (result i32)
    ///     (i32.reinterpret_f32 (f32.div (local.get 0) (local.get 1)))))"#)?;
    /// let mut store = Store::new(&engine, ());
    /// let instance = Instance::new(&mut store, &module, &[])?;
    /// let div = instance.get_typed_func::<(f32, f32), u32>(&mut store, "div")?;
    /// assert_eq!(div.call(&mut store, (0.0, 0.0))?, 0x7fc0_0000);
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn deterministic(&mut self, on: bool) -> &mut Self {
        self.compile.deterministic = on;
        self
    }

    /// How slots become equal to their images again, and how memories grow. It is
    /// checked when the engine is made; [`Engine::strategies`](crate::Engine::strategies)
    /// tells what this machine can do of it.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Config, Engine, ResetKind, StrategyConfig};
    ///
    /// let strategies = StrategyConfig { reset: ResetKind::Discard, ..StrategyConfig::default() };
    /// let engine = Engine::new(Config::new().strategies(strategies))?;
    /// println!("slots are reset like this: {:?}", engine.strategies());
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn strategies(&mut self, config: StrategyConfig) -> &mut Self {
        self.strategies = config;
        self
    }

    /// How much is kept for later instances when stores are dropped: everything, for a
    /// minute, by default.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Config, Engine, Linker, Module, PoolConfig};
    ///
    /// let pool = PoolConfig { kept_max: 0, ..PoolConfig::default() };
    /// let engine = Engine::new(Config::new().pool(pool))?;
    /// let pre = Linker::new(&engine).instantiate_pre(&Module::new(&engine, "(module)")?)?;
    /// drop(pre.spawn(())?); // and with it its slot
    /// assert_eq!(engine.pool_counters().put, 0);
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn pool(&mut self, config: PoolConfig) -> &mut Self {
        self.pool = config;
        self
    }

    /// How much is kept for later instances at first.
    ///
    /// # Examples
    ///
    /// See [`Engine::config`](crate::Engine::config).
    pub fn pool_config(&self) -> PoolConfig {
        self.pool
    }

    /// Bytes that slots of the engine may keep in memory between runs, in use and parked ones
    /// together, so that pages that are written again and again take no page fault: by default a
    /// quarter of the machine's memory, or of the control group's limit if that is less. What is
    /// beyond it is given back at each reset. A few pages of each slot's stack do not count.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Config, Engine};
    ///
    /// // At most 64 MiB stay between runs, however many slots there are.
    /// Engine::new(Config::new().resident_max(64 << 20))?;
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn resident_max(&mut self, bytes: u64) -> &mut Self {
        self.resident_max = Some(bytes);
        self
    }

    /// What its slots keep, all together.
    pub(crate) fn budget(&self) -> Budget {
        self.resident_max.map_or_else(Budget::default, Budget::new)
    }

    /// Where compiled modules are kept for later processes; nowhere by default.
    ///
    /// # Examples
    ///
    /// See [`Cache`].
    #[cfg(feature = "compiler")]
    pub fn cache(&mut self, cache: Cache) -> &mut Self {
        self.cache = Some(cache);
        self
    }

    /// Whether every module must come from the cache, and be compiled for it where
    /// it is not there: what else is not fatal becomes an error. For tests.
    #[doc(hidden)]
    #[cfg(feature = "compiler")]
    pub fn cache_round_trip(&mut self, on: bool) -> &mut Self {
        self.cache_round_trip = on;
        self
    }

    /// Whether it is noted for every module where its code comes from, so that
    /// backtraces and core dumps have offsets in the module. Off by default: it
    /// takes some memory, and modules with debug information have it anyway.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Config, Engine, Instance, Module, Store};
    ///
    /// let engine = Engine::new(Config::new().sources(true))?;
    /// let module = Module::new(&engine, r#"(module (func (export "run") (unreachable)))"#)?;
    /// let mut store = Store::new(&engine, ());
    /// let instance = Instance::new(&mut store, &module, &[])?;
    /// let run = instance.get_typed_func::<(), ()>(&mut store, "run")?;
    /// let error = run.call(&mut store, ()).unwrap_err();
    /// assert!(error.backtrace().expect("a trap has one").frames()[0].module_offset().is_some());
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn sources(&mut self, on: bool) -> &mut Self {
        self.compile.sources = on;
        self
    }

    /// Switches off what came after WebAssembly 2.0.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Config, Engine, Module};
    ///
    /// let engine = Engine::new(Config::new().wasm_2_0())?;
    /// assert!(Module::new(&engine, "(module (memory 1) (memory 1))").is_err());
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn wasm_2_0(&mut self) -> &mut Self {
        self.compile.features = Features::WASM_2;
        self
    }

    /// Switches all proposals off: WebAssembly 1.0 remains.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Config, Engine, Module};
    ///
    /// let engine = Engine::new(Config::new().wasm_1_0())?;
    /// assert!(Module::new(&engine, "(module (func (result i32 i32) unreachable))").is_err());
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn wasm_1_0(&mut self) -> &mut Self {
        self.compile.features = Features::NONE;
        self
    }

    switches! {
        wasm_bulk_memory, bulk_memory, "bulk memory operations";
        wasm_exceptions, exceptions, "exceptions";
        wasm_extended_const, extended_const, "arithmetic in constant expressions";
        wasm_function_references, function_references, "typed references to functions";
        wasm_memory_control, memory_control,
            "`memory.discard` of the proposal \"memory control\", which is off by default";
        wasm_memory64, memory64, "memories and tables that are indexed by 64 bits";
        wasm_multi_memory, multi_memory, "several memories";
        wasm_multi_value, multi_value, "multiple results and block parameters";
        wasm_mutable_global, mutable_global, "imports and exports of mutable globals";
        wasm_reference_types, reference_types, "reference types and table instructions";
        wasm_saturating_float_to_int, saturating_float_to_int,
            "conversions from float to integer that do not trap";
        wasm_sign_extension, sign_extension, "sign-extension operators";
        wasm_relaxed_simd, relaxed_simd,
            "vector operators whose results may differ between machines";
        wasm_simd, simd, "128-bit vectors";
        wasm_tail_call, tail_call, "tail calls";
    }
}
