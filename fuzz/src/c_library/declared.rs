//! What `pagefork.h` declares, as far as random sequences call it.

use std::ffi::{c_char, c_void};

use super::{Finalizer, Object, Vector};

/// A value of `pagefork.h`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct LongValue {
    pub(super) kind: u8,
    pub(super) of: [u64; 2],
}

pub(super) const ZERO: LongValue = LongValue { kind: 0, of: [0; 2] };

/// Who has called a function.
#[repr(C)]
pub(super) struct Caller {
    pub(super) env: *mut c_void,
    pub(super) store: Object,
}

#[derive(Default)]
#[repr(C)]
pub(super) struct Limits {
    pub(super) sizes: [u64; 6],
    pub(super) traps: bool,
    pub(super) reserved: [u64; 4],
}

#[repr(C)]
pub(super) struct Strategies {
    pub(super) kinds: [u8; 3],
    pub(super) clear_stack: bool,
    pub(super) no_copy_on_write: bool,
    pub(super) sizes: [u64; 3],
    pub(super) deltas: u64,
    pub(super) reserved: [u64; 3],
}

#[repr(C)]
pub(super) struct Spawn {
    pub(super) tenant: u64,
    pub(super) limits: *const Limits,
    pub(super) wasi: Object,
    pub(super) reserved: [u64; 4],
}

#[repr(C)]
pub(super) struct NamedFunc {
    pub(super) func: Object,
    pub(super) module: *const c_char,
    pub(super) name: *const c_char,
}

#[repr(C)]
pub(super) struct Save {
    pub(super) state: *const u8,
    pub(super) state_size: usize,
    pub(super) delta_of: Object,
    pub(super) signers: *const [u8; 32],
    pub(super) signer_count: usize,
    pub(super) funcs: *const NamedFunc,
    pub(super) func_count: usize,
    pub(super) save_reference: Option<SaveHook>,
    pub(super) env: *mut c_void,
    pub(super) reserved: [u64; 4],
}

#[repr(C)]
pub(super) struct Load {
    pub(super) modules: *const Object,
    pub(super) module_count: usize,
    pub(super) trusted: *const [u8; 32],
    pub(super) trusted_count: usize,
    pub(super) load_reference: Option<LoadHook>,
    pub(super) env: *mut c_void,
    pub(super) continues: Object,
    pub(super) reserved: [u64; 4],
}

#[repr(C)]
pub(super) struct TypedFunc {
    pub(super) call: *const c_void,
    pub(super) error: Object,
}

pub(super) type Error = Object;
pub(super) type Out = *mut Object;
pub(super) type Callback =
    extern "C" fn(&Caller, *const LongValue, usize, *mut LongValue, usize) -> Error;
pub(super) type RawCallback = extern "C" fn(&Caller, *mut [u64; 2]) -> Error;
pub(super) type AsyncCallback = extern "C" fn(&Caller, *const LongValue, usize, Object);
pub(super) type Notify = extern "C" fn(*mut c_void);
pub(super) type KeepHook = extern "C" fn(*mut c_void, Object, Out) -> Error;
pub(super) type SaveHook = extern "C" fn(*mut c_void, Object, *mut Vector<u8>) -> Error;
pub(super) type LoadHook = extern "C" fn(*mut c_void, *const u8, usize, Out) -> Error;

unsafe extern "C" {
    pub(super) fn wasm_byte_vec_new(out: *mut Vector<u8>, size: usize, data: *const u8);
    pub(super) fn wasm_byte_vec_delete(vec: *mut Vector<u8>);
    pub(super) fn wasm_func_param_arity(func: Object) -> usize;
    pub(super) fn wasm_func_result_arity(func: Object) -> usize;
    pub(super) fn wasm_functype_delete(ty: Object);
    pub(super) fn wasm_ref_copy(object: Object) -> Object;
    pub(super) fn wasm_ref_delete(object: Object);
    pub(super) fn wasm_trap_message(trap: Object, out: *mut Vector<u8>);
    pub(super) fn pagefork_call_delete(call: Object);
    pub(super) fn pagefork_call_instance(call: Object, out: Out) -> Error;
    pub(super) fn pagefork_call_poll(call: Object) -> bool;
    pub(super) fn pagefork_call_results(
        call: Object,
        results: *mut LongValue,
        count: usize,
    ) -> Error;
    pub(super) fn pagefork_call_spawned(call: Object, store: Out, out: Out) -> Error;
    pub(super) fn pagefork_call_wait(call: Object, nanoseconds: u64) -> bool;
    pub(super) fn pagefork_caller_can_suspend(caller: &Caller) -> bool;
    pub(super) fn pagefork_caller_export(caller: &Caller, name: *const c_char, out: Out) -> Error;
    pub(super) fn pagefork_caller_suspend_after(caller: &Caller) -> Error;
    pub(super) fn pagefork_caller_suspend_before(caller: &Caller) -> Error;
    pub(super) fn pagefork_completion_delete(completion: Object);
    pub(super) fn pagefork_completion_fail(completion: Object, error: Error);
    pub(super) fn pagefork_completion_finish(
        completion: Object,
        results: *const LongValue,
        count: usize,
    );
    pub(super) fn pagefork_completion_is_wanted(completion: Object) -> bool;
    pub(super) fn pagefork_completion_on_cancel(
        completion: Object,
        cancel: Notify,
        env: *mut c_void,
    );
    pub(super) fn pagefork_engine_increment_epoch(engine: Object);
    pub(super) fn pagefork_error_exit_status(error: Object, out: *mut i32) -> bool;
    pub(super) fn pagefork_error_kind(error: Object) -> u8;
    pub(super) fn pagefork_error_new(message: *const c_char) -> Error;
    pub(super) fn pagefork_error_trap_code(error: Object) -> u8;
    pub(super) fn pagefork_exception_new(
        tag: Object,
        values: *const LongValue,
        count: usize,
        out: Out,
    ) -> Error;
    pub(super) fn pagefork_exception_tag(error: Object) -> Object;
    pub(super) fn pagefork_exception_values(
        error: Object,
        out: *mut LongValue,
        count: usize,
    ) -> Error;
    pub(super) fn pagefork_export_delete(export: Object);
    pub(super) fn pagefork_foreign_new(data: *mut c_void, f: Finalizer) -> Object;
    pub(super) fn pagefork_func_call(
        func: Object,
        args: *const LongValue,
        arg_count: usize,
        results: *mut LongValue,
        count: usize,
    ) -> Error;
    pub(super) fn pagefork_func_call_async(
        func: Object,
        args: *const LongValue,
        arg_count: usize,
        notify: Notify,
        env: *mut c_void,
        f: Finalizer,
        out: Out,
    ) -> Error;
    pub(super) fn pagefork_func_call_raw(func: Object, cells: *mut [u64; 2], count: usize)
    -> Error;
    pub(super) fn pagefork_func_call_suspendable(
        func: Object,
        args: *const LongValue,
        arg_count: usize,
        results: *mut LongValue,
        count: usize,
        suspended: *mut bool,
    ) -> Error;
    pub(super) fn pagefork_func_new(
        s: Object,
        ty: Object,
        c: Callback,
        env: *mut c_void,
        f: Finalizer,
        out: Out,
    ) -> Error;
    pub(super) fn pagefork_func_new_async(
        s: Object,
        ty: Object,
        c: AsyncCallback,
        env: *mut c_void,
        f: Finalizer,
        out: Out,
    ) -> Error;
    pub(super) fn pagefork_func_new_raw(
        s: Object,
        ty: Object,
        c: RawCallback,
        env: *mut c_void,
        f: Finalizer,
        out: Out,
    ) -> Error;
    pub(super) fn pagefork_func_typed(
        func: Object,
        signature: *const c_char,
        out: *mut *mut TypedFunc,
    ) -> Error;
    pub(super) fn pagefork_func_wrap(
        s: Object,
        signature: *const c_char,
        function: *const c_void,
        env: *mut c_void,
        f: Finalizer,
        out: Out,
    ) -> Error;
    pub(super) fn pagefork_global_get(global: Object, out: *mut LongValue) -> Error;
    pub(super) fn pagefork_global_set(global: Object, value: *const LongValue) -> Error;
    pub(super) fn pagefork_image_store_collect(images: Object) -> Error;
    pub(super) fn pagefork_image_store_delete(images: Object);
    pub(super) fn pagefork_image_store_find(
        images: Object,
        name: *const c_char,
        out: *mut [u8; 32],
    ) -> Error;
    pub(super) fn pagefork_image_store_open(directory: *const c_char, out: Out) -> Error;
    pub(super) fn pagefork_image_store_remove_name(images: Object, name: *const c_char) -> Error;
    pub(super) fn pagefork_image_store_set_name(
        images: Object,
        name: *const c_char,
        image: *const [u8; 32],
    ) -> Error;
    pub(super) fn pagefork_instance_export(
        instance: Object,
        name: *const c_char,
        out: Out,
    ) -> Error;
    pub(super) fn pagefork_instance_export_at(instance: Object, export: Object, out: Out) -> Error;
    pub(super) fn pagefork_instance_growth(
        instance: Object,
        used: *mut u8,
        why: *mut Vector<u8>,
    ) -> Error;
    pub(super) fn pagefork_instance_pre_delete(pre: Object);
    pub(super) fn pagefork_instance_pre_spawn_async(
        pre: Object,
        how: *const Spawn,
        notify: Notify,
        env: *mut c_void,
        finalizer: Finalizer,
        out: Out,
    ) -> Error;
    pub(super) fn pagefork_instance_pre_with_strategies(
        pre: Object,
        strategies: *const Strategies,
        out: Out,
    ) -> Error;
    pub(super) fn pagefork_instance_pre_spawn(
        pre: Object,
        how: *const Spawn,
        store: Out,
        out: Out,
    ) -> Error;
    pub(super) fn pagefork_instance_typed_export(
        instance: Object,
        export: Object,
        out: *mut *mut TypedFunc,
    ) -> Error;
    pub(super) fn pagefork_instance_typed_func(
        instance: Object,
        name: *const c_char,
        signature: *const c_char,
        out: *mut *mut TypedFunc,
    ) -> Error;
    pub(super) fn pagefork_instance_strategy(
        instance: Object,
        used: *mut u8,
        why: *mut Vector<u8>,
    ) -> Error;
    pub(super) fn pagefork_interrupt_delete(interrupt: Object);
    pub(super) fn pagefork_interrupt_guests(interrupt: Object);
    pub(super) fn pagefork_interrupt_suspend(interrupt: Object);
    pub(super) fn pagefork_last_error() -> Error;
    pub(super) fn pagefork_linker_allow_shadowing(linker: Object, allow: bool);
    pub(super) fn pagefork_linker_define(
        linker: Object,
        module: *const c_char,
        name: *const c_char,
        external: Object,
    ) -> Error;
    pub(super) fn pagefork_linker_delete(linker: Object);
    pub(super) fn pagefork_linker_func(
        linker: Object,
        module: *const c_char,
        name: *const c_char,
        ty: Object,
        c: Callback,
        env: *mut c_void,
        f: Finalizer,
    ) -> Error;
    pub(super) fn pagefork_linker_func_async(
        linker: Object,
        module: *const c_char,
        name: *const c_char,
        ty: Object,
        c: AsyncCallback,
        env: *mut c_void,
        f: Finalizer,
    ) -> Error;
    pub(super) fn pagefork_linker_func_raw(
        linker: Object,
        module: *const c_char,
        name: *const c_char,
        ty: Object,
        c: RawCallback,
        env: *mut c_void,
        f: Finalizer,
    ) -> Error;
    pub(super) fn pagefork_linker_func_wrap(
        linker: Object,
        module: *const c_char,
        name: *const c_char,
        signature: *const c_char,
        function: *const c_void,
        env: *mut c_void,
        f: Finalizer,
    ) -> Error;
    pub(super) fn pagefork_linker_instance(
        linker: Object,
        module: *const c_char,
        instance: Object,
    ) -> Error;
    pub(super) fn pagefork_linker_instantiate(
        linker: Object,
        store: Object,
        module: Object,
        out: Out,
    ) -> Error;
    pub(super) fn pagefork_linker_instantiate_async(
        linker: Object,
        store: Object,
        module: Object,
        notify: Notify,
        env: *mut c_void,
        f: Finalizer,
        out: Out,
    ) -> Error;
    pub(super) fn pagefork_linker_instantiate_pre(
        linker: Object,
        module: Object,
        out: Out,
    ) -> Error;
    pub(super) fn pagefork_linker_memory_discard(linker: Object) -> Error;
    pub(super) fn pagefork_linker_new(engine: Object, out: Out) -> Error;
    pub(super) fn pagefork_linker_unknown_imports_as_traps(linker: Object, module: Object)
    -> Error;
    pub(super) fn pagefork_linker_wasi(linker: Object) -> Error;
    pub(super) fn pagefork_module_export(
        module: Object,
        name: *const c_char,
        signature: *const c_char,
        out: Out,
    ) -> Error;
    pub(super) fn pagefork_module_new(
        engine: Object,
        bytes: *const u8,
        size: usize,
        out: Out,
    ) -> Error;
    pub(super) fn pagefork_raise(caller: &Caller, error: Error);
    pub(super) fn pagefork_snapshot_delete(snapshot: Object);
    pub(super) fn pagefork_snapshot_image(snapshot: Object, out: *mut [u8; 32]) -> Error;
    pub(super) fn pagefork_snapshot_instance_pre(snapshot: Object, out: Out) -> Error;
    pub(super) fn pagefork_snapshot_load(
        linker: Object,
        images: Object,
        image: *const [u8; 32],
        how: *const Load,
        out: Out,
    ) -> Error;
    pub(super) fn pagefork_snapshot_save(
        snapshot: Object,
        images: Object,
        how: *const Save,
        out: *mut [u8; 32],
    ) -> Error;
    pub(super) fn pagefork_snapshot_state(snapshot: Object, out: *mut Vector<u8>) -> Error;
    pub(super) fn pagefork_store_abandon(store: Object) -> Error;
    pub(super) fn pagefork_store_copy(store: Object) -> Object;
    pub(super) fn pagefork_store_counterpart(store: Object, of: Object, out: Out) -> Error;
    pub(super) fn pagefork_store_counterpart_instance(store: Object, of: Object, out: Out)
    -> Error;
    pub(super) fn pagefork_store_fork(
        store: Object,
        how: *const Spawn,
        stores: Out,
        count: usize,
    ) -> Error;
    pub(super) fn pagefork_store_fuel(store: Object, out: *mut u64) -> Error;
    pub(super) fn pagefork_store_interrupt_handle(store: Object, out: Out) -> Error;
    pub(super) fn pagefork_store_reset_to(store: Object, snapshot: Object, wasi: Object) -> Error;
    pub(super) fn pagefork_store_resume(
        store: Object,
        results: *mut LongValue,
        count: usize,
        suspended: *mut bool,
    ) -> Error;
    pub(super) fn pagefork_store_resume_with(
        store: Object,
        values: *const LongValue,
        value_count: usize,
        error: Error,
        results: *mut LongValue,
        count: usize,
        suspended: *mut bool,
    ) -> Error;
    pub(super) fn pagefork_store_set_data(store: Object, data: *mut c_void, f: Finalizer);
    pub(super) fn pagefork_store_set_epoch_deadline(store: Object, ticks: u64) -> Error;
    pub(super) fn pagefork_store_set_fuel(store: Object, fuel: u64) -> Error;
    pub(super) fn pagefork_store_set_limits(store: Object, limits: *const Limits) -> Error;
    pub(super) fn pagefork_store_set_wasi(store: Object, wasi: Object) -> Error;
    pub(super) fn pagefork_store_set_yield_interval(store: Object, nanoseconds: u64) -> Error;
    pub(super) fn pagefork_store_snapshot(store: Object, out: Out) -> Error;
    pub(super) fn pagefork_store_snapshot_with(
        store: Object,
        hook: KeepHook,
        env: *mut c_void,
        out: Out,
    ) -> Error;
    pub(super) fn pagefork_store_suspended_at(store: Object) -> u8;
    pub(super) fn pagefork_store_suspended_call(
        store: Object,
        out: Out,
        args: *mut LongValue,
        count: usize,
    ) -> Error;
    pub(super) fn pagefork_store_take_output(
        store: Object,
        stream: u8,
        out: *mut Vector<u8>,
    ) -> Error;
    pub(super) fn pagefork_tag_new(store: Object, ty: Object, out: Out) -> Error;
    pub(super) fn pagefork_typed_func_delete(func: *mut TypedFunc);
    pub(super) fn pagefork_wasi_config_await_stdin(config: Object);
    pub(super) fn pagefork_wasi_config_capture_stdout(config: Object, size_max: usize);
    pub(super) fn pagefork_wasi_config_delete(config: Object);
    pub(super) fn pagefork_wasi_config_new() -> Object;
    pub(super) fn pagefork_wasi_initialize(instance: Object) -> Error;
    pub(super) fn pagefork_wasi_start(instance: Object) -> Error;
}
