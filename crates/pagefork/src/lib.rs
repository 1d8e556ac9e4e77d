//! A WebAssembly runtime in which an instance is one run of pages: its stack, its
//! state, its tables and its memory lie side by side in one *slot* of address
//! space, and nothing that the guest can see or change lies anywhere else.
//!
//! ```
//! use pagefork::{Engine, Linker, Module, Result, Store};
//!
//! # fn main() -> Result<()> {
//! let engine = Engine::default();
//! let module = Module::new(
//!     &engine,
//!     r#"(module
//!         (import "host" "double" (func $double (param i32) (result i32)))
//!         (func (export "run") (param i32) (result i32)
//!             (i32.add (call $double (local.get 0)) (i32.const 1))))"#,
//! )?;
//! let mut linker = Linker::new(&engine);
//! linker.func_wrap("host", "double", |x: i32| x * 2)?;
//! let mut store = Store::new(&engine, ());
//! let instance = linker.instantiate(&mut store, &module)?;
//! let run = instance.get_typed_func::<i32, i32>(&mut store, "run")?;
//! assert_eq!(run.call(&mut store, 20)?, 41);
//! # Ok(())
//! # }
//! ```

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!("pagefork runs guests on Linux on x86-64 only");

/// Which proposals are accepted, and how much room guests get.
mod config;
/// What modules are compiled with.
mod engine;
/// Types of functions, by number.
mod types;
/// Compiled modules, and how their instances start.
mod module;
/// Compiled modules in files.
mod code_file;
/// Compiled modules that later processes find again.
mod cache;
/// Machine code, mapped.
mod code_memory;
/// Names of functions, for profilers.
mod profile;

/// Stores with the embedder's data, and how they are borrowed.
mod store;
/// Stores without it: the group of slots, and what the host keeps about them.
mod group;
/// How much a store may use.
mod limits;

/// Definitions by name, for imports.
mod linker;
/// Names that were perhaps meant.
mod similar;
/// Instances and their exports.
mod instance;
/// Making instances, in the specification's order.
mod instantiate;
/// Modules with their imports, and instances in stores of their own.
mod pre;
/// Stores as at first.
mod reset;
/// Stores as at some other time.
mod snapshot;
/// What is kept for the next instance.
mod pool;
/// Slots that are overwritten on purpose.
mod audit;

/// Functions, and what they know of their callers.
mod func;
/// Closures as functions.
mod host_func;
/// Functions whose type the compiler knows.
mod typed;
/// Linear memories.
mod memory;
/// Tables.
mod table;
/// Globals.
mod global;
/// Tags of exceptions.
mod tag;
/// Exceptions, thrown by guests and by the host.
mod exception;
/// Where they lie.
mod exception_zone;
/// Values, and the cells in which host and guest pass them.
mod value;
/// References to values of the host.
mod externref;

/// What compiled code and assembly read of a store.
mod activation;
/// From the host to the guest and back.
mod enter;
/// What each thread has: its signal stack, and the end of its own.
mod thread;
/// What the runtime does for guests.
mod services;
/// Interrupts from other threads, and timeouts.
mod interrupt;
/// Guests as nothing but pages.
#[doc(hidden)]
pub mod suspend;

/// Traps that the hardware raises.
mod signals;
/// Why guests stop.
mod trap;
/// Where they stopped.
mod backtrace;
/// Names as the source has them.
mod demangle;
/// Lines of source code.
mod source;
/// What a guest was when it trapped, as a file.
mod core_dump;
/// Everything that can go wrong.
mod error;

pub use crate::backtrace::{Frame, WasmBacktrace};
pub use crate::cache::{Cache, CacheRefusal, CacheStats};
/// Makes the steps of writing into a cache fail: for tests, in builds with debug
/// assertions.
#[cfg(debug_assertions)]
#[doc(hidden)]
pub use crate::cache::{Step as CacheStep, on_step as on_cache_step};
pub use crate::config::Config;
pub use crate::engine::Engine;
#[cfg(feature = "wat")]
pub use crate::error::TextError;
#[doc(hidden)]
pub use crate::error::macros;
pub use crate::error::{
    Context, Error, ErrorKind, LimitError, LimitSource, LinkError, Result, SystemError, UsageError,
};
pub use crate::exception::{Exception, ExnRef};
pub use crate::externref::ExternRef;
pub use crate::func::{Caller, Func};
pub use crate::global::Global;
pub use crate::host_func::{IntoFunc, WasmRet};
pub use crate::instance::{Export, Extern, Instance};
pub use crate::interrupt::{InterruptHandle, Interruption};
pub use crate::limits::StoreLimits;
pub use crate::linker::Linker;
pub use crate::memory::{LocalMemory, Memory, MemoryAccessError};
pub use crate::module::{ExportType, ImportType, Module};
pub use crate::pre::InstancePre;
pub use crate::profile::Profile;
pub use crate::signals::handlers_on_guest_stacks;
pub use crate::snapshot::Snapshot;
pub use crate::source::SourceLocation;
pub use crate::store::{AsContext, AsContextMut, Store, StoreContext, StoreContextMut};
pub use crate::table::Table;
pub use crate::tag::Tag;
pub use crate::trap::{Trap, TrapCode};
pub use crate::typed::{TypedFunc, WasmTy, WasmValues};
pub use crate::value::Val;
pub use pagefork_compiler::file::CodeImageError;
pub use pagefork_compiler::{CompileError, Progress};
pub use pagefork_layout::module::{
    ExternType, FuncType, GlobalType, HeapType, MemoryType, RefType, TableType, ValType,
};
pub use pagefork_layout::text::OneLine;
pub use pagefork_pages::{
    Choice, CodeBounds, GrowthKind, PagesError, PoolConfig, PoolCounters, Reason, ResetKind,
    Strategies, StrategyConfig,
};
