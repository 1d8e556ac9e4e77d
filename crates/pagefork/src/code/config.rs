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
        pub fn $name(&mut self, on: bool) -> &mut Self {
            self.compile.features.$feature = on;
            self
        }
    )*};
}

impl Config {
    /// The default configuration.
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes of stack that guests have, rounded up to pages: 1 MiB by default,
    /// 16 KiB at least, 1 GiB at most.
    pub fn stack_size(&mut self, bytes: u64) -> &mut Self {
        self.compile.limits.stack_size = bytes.min(1 << 30);
        self
    }

    /// How many elements a table whose module gives no maximum can grow to:
    /// 65,536 by default. Address space is reserved for them, memory is not.
    pub fn table_elements(&mut self, elements: u64) -> &mut Self {
        self.compile.limits.table_elements = elements;
        self
    }

    /// Bytes that a memory indexed by 64 bits whose module gives no smaller
    /// maximum can grow to: 4 GiB by default. Address space is reserved for them,
    /// memory is not. A larger initial size is still honoured.
    pub fn memory64_size(&mut self, bytes: u64) -> &mut Self {
        self.compile.limits.memory64_size = bytes;
        self
    }

    /// How long compiling a module may take; without a limit by default. When it is over, making
    /// the module fails with [`CompileError::TimedOut`](crate::CompileError::TimedOut). It is
    /// looked at between operators, functions and phases of a function, so that can be later by
    /// the time of one phase, which [`compile_work`](Self::compile_work) limits.
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
    #[cfg(feature = "compiler")]
    pub fn compile_work(&mut self, steps: u64) -> &mut Self {
        self.compile.cost.work = steps;
        self
    }

    /// Where another thread can see how far the engine is with what it compiles.
    #[cfg(feature = "compiler")]
    pub fn progress(&mut self, progress: Arc<Progress>) -> &mut Self {
        self.progress = Some(progress);
        self
    }

    /// What the profiler `perf` is told about compiled code: nothing by default.
    pub fn profile(&mut self, profile: Profile) -> &mut Self {
        self.profile = profile;
        self
    }

    /// Bytes that an instance whose module has tags has for the exceptions that it
    /// throws and that are still in use, rounded up to pages: 64 KiB by default,
    /// 4 KiB at least, 1 MiB at most. An exception takes 16 bytes and 16 for each
    /// value that it carries.
    pub fn exceptions_size(&mut self, bytes: u64) -> &mut Self {
        self.compile.limits.exceptions_size = bytes;
        self
    }

    /// Whether guests can be interrupted from another thread and by timeouts; on
    /// by default. It costs guests a comparison at function entries and loops. Without it
    /// [`Store::set_timeout`](crate::Store::set_timeout) and
    /// [`Store::interrupt_handle`](crate::Store::interrupt_handle) are errors.
    pub fn interruption(&mut self, on: bool) -> &mut Self {
        self.compile.interruptible = on;
        self
    }

    /// Whether guests pay fuel for what they do, and trap when it is used up; off
    /// by default. Stores start without fuel: see
    /// [`Store::set_fuel`](crate::Store::set_fuel). Each operator that does
    /// something costs one unit, operations on ranges one more for every 16 bytes.
    /// The same calls cost the same fuel on every machine.
    pub fn fuel(&mut self, on: bool) -> &mut Self {
        self.compile.fuel = on;
        self
    }

    /// Whether the results of instructions are the same on every machine: NaNs
    /// that arithmetic makes are the canonical one, and relaxed vector operators
    /// do what the vector proposal does, without fused multiplication. Off by
    /// default, because it costs float arithmetic time. What host functions, growth
    /// of memories and tables, and stack overflow do is up to the embedder.
    pub fn deterministic(&mut self, on: bool) -> &mut Self {
        self.compile.deterministic = on;
        self
    }

    /// How slots become equal to their images again, and how memories grow. It is
    /// checked when the engine is made; [`Engine::strategies`](crate::Engine::strategies)
    /// tells what this machine can do of it.
    pub fn strategies(&mut self, config: StrategyConfig) -> &mut Self {
        self.strategies = config;
        self
    }

    /// How much is kept for later instances when stores are dropped: everything, for a
    /// minute, by default.
    pub fn pool(&mut self, config: PoolConfig) -> &mut Self {
        self.pool = config;
        self
    }

    /// How much is kept for later instances at first.
    pub fn pool_config(&self) -> PoolConfig {
        self.pool
    }

    /// Bytes that slots of the engine may keep in memory between runs, in use and parked ones
    /// together, so that pages that are written again and again take no page fault: by default a
    /// quarter of the machine's memory, or of the control group's limit if that is less. What is
    /// beyond it is given back at each reset. A few pages of each slot's stack do not count.
    pub fn resident_max(&mut self, bytes: u64) -> &mut Self {
        self.resident_max = Some(bytes);
        self
    }

    /// What its slots keep, all together.
    pub(crate) fn budget(&self) -> Budget {
        self.resident_max.map_or_else(Budget::default, Budget::new)
    }

    /// Where compiled modules are kept for later processes; nowhere by default.
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
    pub fn sources(&mut self, on: bool) -> &mut Self {
        self.compile.sources = on;
        self
    }

    /// Switches off what came after WebAssembly 2.0.
    pub fn wasm_2_0(&mut self) -> &mut Self {
        self.compile.features = Features::WASM_2;
        self
    }

    /// Switches all proposals off: WebAssembly 1.0 remains.
    pub fn wasm_1_0(&mut self) -> &mut Self {
        self.compile.features = Features::NONE;
        self
    }

    switches! {
        wasm_bulk_memory, bulk_memory, "bulk memory operations";
        wasm_exceptions, exceptions, "exceptions";
        wasm_extended_const, extended_const, "arithmetic in constant expressions";
        wasm_function_references, function_references, "typed references to functions";
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
