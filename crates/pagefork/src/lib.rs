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
//!
//! # Features
//!
//! - `compiler`, on by default, compiles modules. Without it Cranelift is not built, and modules
//!   come from code images alone, which an engine with the feature has made with
//!   [`Module::write_code_image_file`], or the command with `pagefork compile`:
//!   [`Module::from_code_image_file`] loads them. `Module::new`, `Cache` and the limits of
//!   compiling are not there then.
//! - `wat`, on by default, accepts the text format wherever a module is accepted.
//! - `tracing` opens spans of the crate `tracing`, of the target `pagefork`: `compile`,
//!   `instantiate`, `spawn`, `reset` and `park`, of level DEBUG, and `call`, of level TRACE, for
//!   each outermost call of a guest. Without it there is nothing of them.

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!("pagefork runs guests on Linux on x86-64 only");

// Layers, each of which uses only those below it.

mod api;
mod run;
mod store;
mod code;
mod base;

pub use crate::api::ahead::{SlotUses, SlotsAhead};
pub use crate::api::core_dump::WasmCoreDump;
pub use crate::api::export::{ModuleExport, TypedExport};
pub use crate::api::foreign::{ForeignData, ForeignFunction};
pub use crate::api::func::{CallOrigin, Caller, RunningGuest};
pub use crate::api::future::{AsyncHostFunc, AsyncUntypedFunc};
pub use crate::api::global::Global;
pub use crate::api::host_func::{IntoFunc, WasmRet};
pub use crate::api::incomplete::IncompleteImage;
pub use crate::api::instance::{Export, Extern, Instance};
pub use crate::api::linker::Linker;
pub use crate::api::memory::{LocalMemory, Memory};
pub use crate::api::pre::InstancePre;
pub use crate::api::raw::ValRaw;
pub use crate::api::register_export::RegisterExport;
pub use crate::api::registers::{RegisterCallee, RegisterFunc, RegisterResult, RegisterValues};
pub use crate::api::snapshot::Snapshot;
pub use crate::api::store::{AsContext, AsContextMut, Store, StoreContext, StoreContextMut};
pub use crate::api::stored::{LoadOptions, SaveOptions};
#[doc(hidden)]
pub use crate::api::suspend;
pub use crate::api::suspendable::{CallProgress, SuspendedAt, SuspendedCall};
pub use crate::api::table::Table;
pub use crate::api::typed::{TypedFunc, WasmTy, WasmValues};
#[cfg(feature = "wat")]
pub use crate::base::error::TextError;
#[doc(hidden)]
pub use crate::base::error::macros;
pub use crate::base::error::{
    Context, Error, ErrorKind, LimitError, LimitSource, LinkError, MemoryAccessError,
    MemoryAccessProblem, Result, SnapshotError, SystemError, UsageError,
};
pub use crate::base::frames::{Frame, WasmBacktrace};
pub use crate::base::trap::{Trap, TrapCode};
#[cfg(feature = "compiler")]
pub use crate::code::cache::{Cache, CacheRefusal, CacheStats};
/// Makes the steps of writing into a cache fail: for tests, in builds with debug
/// assertions.
#[cfg(all(debug_assertions, feature = "compiler"))]
#[doc(hidden)]
pub use crate::code::cache::{Step as CacheStep, on_step as on_cache_step};
pub use crate::code::config::Config;
pub use crate::code::engine::{Engine, EngineWeak};
pub use crate::code::memory_image::MemoryImage;
pub use crate::code::module::{ExportType, ImportType, Module};
pub use crate::code::profile::Profile;
pub use crate::code::serialized::Precompiled;
pub use crate::run::signals::handlers_on_guest_stacks;
pub use crate::store::call_hook::CallHook;
pub use crate::store::epoch::UpdateDeadline;
pub use crate::store::exception::{Exception, ExnRef};
pub use crate::store::handle::{Func, Tag};
pub use crate::store::interrupt::{InterruptHandle, Interruption};
pub use crate::store::limiter::ResourceLimiter;
pub use crate::store::limits::{StoreLimits, StoreLimitsBuilder};
pub use crate::store::references::ExternRef;
pub use crate::store::value::Val;
pub use pagefork_compiler::CompileError;
#[cfg(feature = "compiler")]
pub use pagefork_compiler::Progress;
pub use pagefork_compiler::file::CodeImageError;
pub use pagefork_debuginfo::SourceLocation;
/// Stores of images, in which snapshots are kept.
pub use pagefork_image as image;
pub use pagefork_layout::module::{
    ExternType, FuncType, GlobalType, HeapType, MemoryType, RefType, TableType, ValType,
};
pub use pagefork_layout::text::OneLine;
pub use pagefork_layout::types::Mutability;
pub use pagefork_pages::{
    Absence, AbsentPage, Choice, CodeBounds, DeltaTracker, Discarded, FAULT_THREADS_MAX,
    GrowthChoice, GrowthKind, GrowthReason, PagesError, PoolConfig, PoolCounters, Reason,
    ResetKind, ResidencyCounts, Strategies, StrategyConfig, faults_at_writes, grows_in_files,
    serves_absent_pages,
};
