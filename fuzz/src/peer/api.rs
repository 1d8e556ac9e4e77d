//! Wasmtime's C API, as much of it as is needed, out of the released library. The
//! types' layouts and the functions' signatures are those of its headers.

use std::ffi::{c_char, c_void};
use std::path::Path;

use libloading::Library;

/// Types that are only pointed to.
macro_rules! opaque {
    ($($name:ident)*) => {$(
        #[repr(C)]
        pub(super) struct $name {
            _private: [u8; 0],
        }
    )*};
}

opaque! {
    Config Context EngineHandle ErrorHandle ExternTypeHandle FuncTypeHandle GlobalTypeHandle
    ImportTypeHandle MemoryTypeHandle ModuleHandle StoreHandle TableTypeHandle TagTypeHandle
    TrapHandle
}

/// `wasm_byte_vec_t`.
#[repr(C)]
pub(super) struct Bytes {
    pub(super) size: usize,
    pub(super) data: *mut u8,
}

/// `wasm_importtype_vec_t`.
#[repr(C)]
pub(super) struct ImportTypes {
    pub(super) size: usize,
    pub(super) data: *mut *mut ImportTypeHandle,
}

/// `wasmtime_func_t`; null if `store` is 0.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Function {
    pub(super) store: u64,
    pub(super) private: usize,
}

/// `wasmtime_externref_t` and its like; null if `store` is 0.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Reference {
    pub(super) store: u64,
    pub(super) private: [u32; 2],
    pub(super) pointer: usize,
}

/// `wasmtime_valunion_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) union ValueBits {
    pub(super) i32: u32,
    pub(super) i64: u64,
    pub(super) v128: [u8; 16],
    pub(super) function: Function,
    pub(super) reference: Reference,
}

/// `wasmtime_val_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct RawValue {
    pub(super) kind: u8,
    pub(super) of: ValueBits,
}

/// `wasmtime_table_t`, `wasmtime_memory_t`, `wasmtime_global_t`, `wasmtime_tag_t`.
pub(super) type Opaque = [u64; 3];

/// `wasmtime_extern_union_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) union ExternBits {
    pub(super) function: Function,
    pub(super) other: Opaque,
}

/// `wasmtime_extern_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct RawExtern {
    pub(super) kind: u8,
    pub(super) of: ExternBits,
}

/// `wasmtime_instance_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct InstanceHandle {
    pub(super) store: u64,
    pub(super) private: usize,
}

const _: () = assert!(size_of::<RawValue>() == 32 && size_of::<RawExtern>() == 32);
const _: () = assert!(size_of::<ValueBits>() == 24 && size_of::<ExternBits>() == 24);

/// `wasmtime_func_callback_t`.
pub(super) type Callback = unsafe extern "C" fn(
    *mut c_void,
    *mut c_void,
    *const RawValue,
    usize,
    *mut RawValue,
    usize,
) -> *mut TrapHandle;

/// Called with what was given for it when something goes.
pub(super) type Finalizer = unsafe extern "C" fn(*mut c_void);

macro_rules! api {
    ($(fn $name:ident($($ty:ty),*) $(-> $ret:ty)?;)*) => {
        /// The library's functions, by their names.
        pub(super) struct Api {
            $(pub(super) $name: unsafe extern "C" fn($($ty),*) $(-> $ret)?,)*
            /// Last, so that it is closed after everything else went.
            _library: Library,
        }

        impl Api {
            /// Opens the library.
            ///
            /// # Errors
            /// If it cannot be opened or lacks a function.
            ///
            /// # Safety
            /// It is wasmtime's, of the version that the declarations here are of.
            pub(super) unsafe fn open(path: &Path) -> Result<Self, libloading::Error> {
                // SAFETY: by this function's contract it is that library, whose
                // initialisers do no harm.
                let library = unsafe { Library::new(path)? };
                Ok(Self {
                    // SAFETY: by this function's contract it is of the version in which
                    // functions of these names have these signatures.
                    $($name: unsafe { *library.get(stringify!($name).as_bytes())? },)*
                    _library: library,
                })
            }
        }
    };
}

api! {
    fn wasm_byte_vec_delete(*mut Bytes);
    fn wasm_config_new() -> *mut Config;
    fn wasm_engine_new_with_config(*mut Config) -> *mut EngineHandle;
    fn wasm_externtype_as_functype_const(*const ExternTypeHandle) -> *const FuncTypeHandle;
    fn wasm_externtype_as_globaltype_const(*const ExternTypeHandle) -> *const GlobalTypeHandle;
    fn wasm_externtype_as_memorytype_const(*const ExternTypeHandle) -> *const MemoryTypeHandle;
    fn wasm_externtype_as_tabletype_const(*const ExternTypeHandle) -> *const TableTypeHandle;
    fn wasm_externtype_as_tagtype_const(*const ExternTypeHandle) -> *const TagTypeHandle;
    fn wasm_importtype_type(*const ImportTypeHandle) -> *const ExternTypeHandle;
    fn wasm_importtype_vec_delete(*mut ImportTypes);
    fn wasm_trap_delete(*mut TrapHandle);
    fn wasm_trap_message(*const TrapHandle, *mut Bytes);
    fn wasmtime_caller_context(*mut c_void) -> *mut Context;
    fn wasmtime_config_cranelift_nan_canonicalization_set(*mut Config, bool);
    fn wasmtime_config_cranelift_opt_level_set(*mut Config, u8);
    fn wasmtime_config_max_wasm_stack_set(*mut Config, usize);
    fn wasmtime_config_parallel_compilation_set(*mut Config, bool);
    fn wasmtime_config_wasm_exceptions_set(*mut Config, bool);
    fn wasmtime_config_wasm_function_references_set(*mut Config, bool);
    fn wasmtime_config_wasm_memory64_set(*mut Config, bool);
    fn wasmtime_config_wasm_multi_memory_set(*mut Config, bool);
    fn wasmtime_config_wasm_relaxed_simd_deterministic_set(*mut Config, bool);
    fn wasmtime_config_wasm_relaxed_simd_set(*mut Config, bool);
    fn wasmtime_config_wasm_tail_call_set(*mut Config, bool);
    fn wasmtime_context_get_data(*const Context) -> *mut c_void;
    fn wasmtime_context_set_exception(*mut Context, *const Reference) -> *mut TrapHandle;
    fn wasmtime_context_take_exception(*mut Context, *mut Reference) -> bool;
    fn wasmtime_error_delete(*mut ErrorHandle);
    fn wasmtime_error_message(*const ErrorHandle, *mut Bytes);
    fn wasmtime_exnref_field(*mut Context, *const Reference, usize, *mut RawValue) -> *mut ErrorHandle;
    fn wasmtime_exnref_field_count(*mut Context, *const Reference) -> usize;
    fn wasmtime_exnref_new(*mut Context, *const Opaque, *const RawValue, usize, *mut Reference) -> *mut ErrorHandle;
    fn wasmtime_exnref_unroot(*mut Reference);
    fn wasmtime_externref_data(*mut Context, *const Reference) -> *mut c_void;
    fn wasmtime_externref_new(*mut Context, *mut c_void, Option<Finalizer>, *mut Reference) -> bool;
    fn wasmtime_func_call(*mut Context, *const Function, *const RawValue, usize, *mut RawValue, usize, *mut *mut TrapHandle) -> *mut ErrorHandle;
    fn wasmtime_func_new(*mut Context, *const FuncTypeHandle, Callback, *mut c_void, Option<Finalizer>, *mut Function);
    fn wasmtime_global_get(*mut Context, *const Opaque, *mut RawValue);
    fn wasmtime_global_new(*mut Context, *const GlobalTypeHandle, *const RawValue, *mut Opaque) -> *mut ErrorHandle;
    fn wasmtime_global_set(*mut Context, *const Opaque, *const RawValue) -> *mut ErrorHandle;
    fn wasmtime_instance_export_nth(*mut Context, *const InstanceHandle, usize, *mut *mut c_char, *mut usize, *mut RawExtern) -> bool;
    fn wasmtime_instance_new(*mut Context, *const ModuleHandle, *const RawExtern, usize, *mut InstanceHandle, *mut *mut TrapHandle) -> *mut ErrorHandle;
    fn wasmtime_memory_data(*mut Context, *const Opaque) -> *mut u8;
    fn wasmtime_memory_data_size(*const Context, *const Opaque) -> usize;
    fn wasmtime_memory_grow(*mut Context, *const Opaque, u64, *mut u64) -> *mut ErrorHandle;
    fn wasmtime_memory_new(*mut Context, *const MemoryTypeHandle, *mut Opaque) -> *mut ErrorHandle;
    fn wasmtime_module_delete(*mut ModuleHandle);
    fn wasmtime_module_imports(*const ModuleHandle, *mut ImportTypes);
    fn wasmtime_module_new(*mut EngineHandle, *const u8, usize, *mut *mut ModuleHandle) -> *mut ErrorHandle;
    fn wasmtime_store_context(*mut StoreHandle) -> *mut Context;
    fn wasmtime_store_delete(*mut StoreHandle);
    fn wasmtime_store_limiter(*mut StoreHandle, i64, i64, i64, i64, i64);
    fn wasmtime_store_new(*mut EngineHandle, *mut c_void, Option<Finalizer>) -> *mut StoreHandle;
    fn wasmtime_table_get(*mut Context, *const Opaque, u64, *mut RawValue) -> bool;
    fn wasmtime_table_grow(*mut Context, *const Opaque, u64, *const RawValue, *mut u64) -> *mut ErrorHandle;
    fn wasmtime_table_new(*mut Context, *const TableTypeHandle, *const RawValue, *mut Opaque) -> *mut ErrorHandle;
    fn wasmtime_table_set(*mut Context, *const Opaque, u64, *const RawValue) -> *mut ErrorHandle;
    fn wasmtime_table_size(*const Context, *const Opaque) -> u64;
    fn wasmtime_tag_new(*mut Context, *const TagTypeHandle, *mut Opaque) -> *mut ErrorHandle;
    fn wasmtime_trap_code(*const TrapHandle, *mut u8) -> bool;
    fn wasmtime_trap_new(*const c_char, usize) -> *mut TrapHandle;
    fn wasmtime_val_unroot(*mut RawValue);
}
