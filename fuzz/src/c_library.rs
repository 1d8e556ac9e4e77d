//! Random sequences of calls of the C library, with valid objects, objects of other kinds and null.

use std::cell::RefCell;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use arbitrary::Unstructured;
use pagefork_capi as _;

mod declared;
mod pagefork_h;

/// A pointer to an object of whichever kind, or null.
type Object = *mut c_void;

/// A vector as C has it.
#[repr(C)]
struct Vector<T> {
    size: usize,
    data: *mut T,
}

/// A value of `wasm.h`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Value {
    kind: u8,
    of: u64,
}

#[repr(C)]
struct Limits {
    min: u32,
    max: u32,
}

type Callback = extern "C" fn(*mut c_void, *const Vector<Value>, *mut Vector<Value>) -> Object;
type Finalizer = extern "C" fn(*mut c_void);

unsafe extern "C" {
    fn wasm_engine_new() -> Object;
    fn wasm_engine_delete(engine: Object);
    fn wasm_store_new(engine: Object) -> Object;
    fn wasm_store_delete(store: Object);
    fn wasm_valtype_new(kind: u8) -> Object;
    fn wasm_functype_new(params: *mut Vector<Object>, results: *mut Vector<Object>) -> Object;
    fn wasm_functype_delete(ty: Object);
    fn wasm_globaltype_new(content: Object, mutability: u8) -> Object;
    fn wasm_globaltype_delete(ty: Object);
    fn wasm_tabletype_new(element: Object, limits: *const Limits) -> Object;
    fn wasm_tabletype_delete(ty: Object);
    fn wasm_memorytype_new(limits: *const Limits) -> Object;
    fn wasm_memorytype_delete(ty: Object);
    fn wasm_valtype_vec_new(out: *mut Vector<Object>, size: usize, data: *const Object);
    fn wasm_extern_vec_delete(vec: *mut Vector<Object>);
    fn wasm_frame_vec_delete(vec: *mut Vector<Object>);
    fn wasm_byte_vec_delete(vec: *mut Vector<u8>);
    fn wasm_val_delete(value: *mut Value);
    fn wasm_ref_copy(object: Object) -> Object;
    fn wasm_ref_delete(object: Object);
    fn wasm_ref_same(a: Object, b: Object) -> bool;
    fn wasm_ref_set_host_info_with_finalizer(object: Object, data: *mut c_void, f: Finalizer);
    fn wasm_ref_get_host_info(object: Object) -> *mut c_void;
    fn wasm_foreign_new(store: Object) -> Object;
    fn wasm_trap_new(store: Object, message: *const Vector<u8>) -> Object;
    fn wasm_trap_message(trap: Object, out: *mut Vector<u8>);
    fn wasm_trap_trace(trap: Object, out: *mut Vector<Object>);
    fn wasm_module_new(store: Object, binary: *const Vector<u8>) -> Object;
    fn wasm_instance_new(
        store: Object,
        module: Object,
        imports: *const Vector<Object>,
        trap: *mut Object,
    ) -> Object;
    fn wasm_instance_exports(instance: Object, out: *mut Vector<Object>);
    fn wasm_func_new_with_env(
        store: Object,
        ty: Object,
        callback: Callback,
        env: *mut c_void,
        finalizer: Finalizer,
    ) -> Object;
    fn wasm_func_call(
        func: Object,
        args: *const Vector<Value>,
        results: *mut Vector<Value>,
    ) -> Object;
    fn wasm_func_param_arity(func: Object) -> usize;
    fn wasm_func_result_arity(func: Object) -> usize;
    fn wasm_global_new(store: Object, ty: Object, value: *const Value) -> Object;
    fn wasm_global_get(global: Object, out: *mut Value);
    fn wasm_global_set(global: Object, value: *const Value);
    fn wasm_table_new(store: Object, ty: Object, init: Object) -> Object;
    fn wasm_table_get(table: Object, index: u32) -> Object;
    fn wasm_table_set(table: Object, index: u32, value: Object) -> bool;
    fn wasm_table_grow(table: Object, delta: u32, init: Object) -> bool;
    fn wasm_memory_new(store: Object, ty: Object) -> Object;
    fn wasm_memory_grow(memory: Object, delta: u32) -> bool;
    fn wasm_memory_data(memory: Object) -> *mut u8;
    fn wasm_memory_data_size(memory: Object) -> usize;
    fn pagefork_store_reset(store: Object, wasi: Object) -> Object;
    fn pagefork_store_collect(store: Object) -> usize;
}

/// What guests there are: alone, with all that can be exported, and with imports of all kinds.
const GUESTS: &[&str] = &[
    "(module (func (export \"f\")))",
    "(module (memory (export \"m\") 1 3) (table (export \"t\") 3 6 externref)
        (table (export \"u\") 3 6 funcref) (global (export \"g\") (mut externref) (ref.null extern))
        (global (export \"h\") (mut funcref) (ref.null func)) (global (export \"i\") (mut i64) (i64.const 3))
        (func (export \"r\") (param externref funcref) (result externref) (global.set 0 (local.get 0))
            (global.set 1 (local.get 1)) (table.get 0 (i32.const 1)))
        (func (export \"a\") (param i32 i64) (result i64) (i64.add (i64.extend_i32_s (local.get 0)) (local.get 1)))
        (func (export \"x\") (unreachable)))",
    "(module (import \"\" \"f\" (func $f (param i32) (result externref)))
        (import \"\" \"g\" (global $g (mut externref))) (import \"\" \"m\" (memory 1))
        (import \"\" \"t\" (table $t 2 externref))
        (func (export \"run\") (param i32) (result externref) (global.set $g (call $f (local.get 0)))
            (table.set $t (i32.const 1) (global.get $g)) (global.get $g)))",
];

/// Finalizers that are to be called, and those that were.
static ATTACHED: AtomicUsize = AtomicUsize::new(0);
static FINALIZED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn finalize(data: *mut c_void) {
    assert_eq!(data.addr(), 77);
    FINALIZED.fetch_add(1, Ordering::Relaxed);
}

fn attached() -> *mut c_void {
    ATTACHED.fetch_add(1, Ordering::Relaxed);
    ptr::without_provenance_mut(77)
}

/// What there is, and what is still to be done.
struct State {
    /// Objects of one are refused by the other.
    engines: [Object; 2],
    stores: Vec<Object>,
    objects: Vec<Object>,
    guests: Vec<Vec<u8>>,
    steps: Vec<u8>,
    depth: u32,
    handles: pagefork_h::Handles,
}

thread_local! {
    static STATE: RefCell<Option<State>> = const { RefCell::new(None) };
}

/// Uses the state for a moment, in which nothing of C is called.
fn with<R>(function: impl FnOnce(&mut State) -> R) -> R {
    STATE.with_borrow_mut(|state| function(state.as_mut().expect("a case runs")))
}

fn step() -> usize {
    with(|state| state.steps.pop().map_or(0, usize::from))
}

/// An engine; mostly the first.
fn engine() -> Object {
    let which = step();
    with(|state| state.engines[usize::from(which % 4 == 3)])
}

/// A store, or null.
fn store() -> Object {
    let which = step();
    with(|state| state.stores.get(which % (state.stores.len() + 1)).copied())
        .unwrap_or(ptr::null_mut())
}

/// An object of whichever kind, or null.
fn object() -> Object {
    let which = step();
    with(|state| state.objects.get(which % (state.objects.len() + 1)).copied())
        .unwrap_or(ptr::null_mut())
}

fn keep(object: Object) {
    if !object.is_null() {
        with(|state| state.objects.push(object));
    }
}

fn value() -> Value {
    let kind = [0, 1, 2, 3, 128, 129, 4, 99][step() % 8];
    let of = if kind >= 128 { object().expose_provenance() as u64 } else { step() as u64 };
    Value { kind, of }
}

/// A function of the host, which does some steps of its own.
extern "C" fn callback(
    _: *mut c_void,
    args: *const Vector<Value>,
    results: *mut Vector<Value>,
) -> Object {
    // SAFETY: both are vectors that the library lends.
    let (args, results) = unsafe { (&*args, &*results) };
    assert!(args.size <= 2 && results.size <= 2);
    let is_deep = with(|state| {
        state.depth += 1;
        state.depth > 4
    });
    if !is_deep {
        (0..step() % 4).for_each(|_| act());
    }
    with(|state| state.depth -= 1);
    if step().is_multiple_of(8) {
        // SAFETY: a trap, if it is one, changes hands.
        return unsafe { wasm_ref_copy(object()) };
    }
    for index in 0..results.size {
        // SAFETY: the vector has as many elements; references in it change hands.
        unsafe {
            let result = &mut *results.data.add(index);
            if result.kind >= 128 {
                result.of = wasm_ref_copy(object()).expose_provenance() as u64;
            }
        }
    }
    ptr::null_mut()
}

/// A type of functions with few parameters and results.
fn func_type() -> Object {
    let kinds = || (0..step() % 3).map(|_| [0, 1, 128, 129][step() % 4]).collect::<Vec<u8>>();
    type_of(&kinds(), &kinds())
}

/// The type of functions with such parameters and results.
fn type_of(params: &[u8], results: &[u8]) -> Object {
    let list = |kinds: &[u8]| {
        // SAFETY: kinds are numbers.
        let types: Vec<Object> =
            kinds.iter().map(|kind| unsafe { wasm_valtype_new(*kind) }).collect();
        let mut vector = Vector { size: 0, data: ptr::null_mut() };
        // SAFETY: the types are given away.
        unsafe { wasm_valtype_vec_new(&mut vector, types.len(), types.as_ptr()) };
        vector
    };
    let (mut params, mut results) = (list(params), list(results));
    // SAFETY: the vectors are given away.
    unsafe { wasm_functype_new(&mut params, &mut results) }
}

/// Calls a function of the library.
fn act() {
    match step() % 2 {
        0 => act_in_standard(),
        _ => pagefork_h::act_beyond(),
    }
    pagefork_h::check_last_error();
}

/// Calls a function of `wasm.h`.
fn act_in_standard() {
    let limits = || Limits { min: step() as u32 % 4, max: [3, 8, u32::MAX][step() % 3] };
    // SAFETY: each pointer is null or leads to a live object, of whichever kind.
    unsafe {
        match step() % 27 {
            0 => {
                let new = wasm_store_new(engine());
                with(|state| state.stores.push(new));
            }
            1 => {
                let which = step();
                let gone = with(|state| {
                    let count = state.stores.len();
                    (count > 1).then(|| state.stores.swap_remove(which % count))
                });
                gone.into_iter().for_each(|store| wasm_store_delete(store));
            }
            2 | 3 => {
                // Objects that calls use stay until these end.
                let which = step();
                let gone = with(|state| {
                    let count = state.objects.len();
                    (count > 0 && state.depth == 0)
                        .then(|| state.objects.swap_remove(which % count))
                });
                gone.into_iter().for_each(|object| wasm_ref_delete(object));
            }
            4 => keep(wasm_foreign_new(store())),
            5 => keep(wasm_trap_new(store(), &Vector { size: 0, data: ptr::null_mut() })),
            6 => {
                let mut bytes = Vector { size: 0, data: ptr::null_mut() };
                wasm_trap_message(object(), &mut bytes);
                wasm_byte_vec_delete(&mut bytes);
                let mut frames = Vector { size: 0, data: ptr::null_mut() };
                wasm_trap_trace(object(), &mut frames);
                wasm_frame_vec_delete(&mut frames);
            }
            7 => {
                let which = step();
                let mut bytes = with(|state| state.guests[which % state.guests.len()].clone());
                let binary = Vector { size: bytes.len(), data: bytes.as_mut_ptr() };
                keep(wasm_module_new(store(), &binary));
            }
            8..=10 => {
                let mut imports: Vec<Object> = (0..step() % 6).map(|_| object()).collect();
                let imports = Vector { size: imports.len(), data: imports.as_mut_ptr() };
                let mut trap = ptr::null_mut();
                keep(wasm_instance_new(store(), object(), &imports, &mut trap));
                pagefork_h::told(trap);
            }
            11 | 12 => {
                let mut exports = Vector { size: 0, data: ptr::null_mut() };
                wasm_instance_exports(object(), &mut exports);
                for index in 0..exports.size {
                    keep(ptr::replace(exports.data.add(index), ptr::null_mut()));
                }
                wasm_extern_vec_delete(&mut exports);
            }
            13 => {
                let ty = func_type();
                keep(wasm_func_new_with_env(store(), ty, callback, attached(), finalize));
                wasm_functype_delete(ty);
            }
            14..=16 => {
                let func = object();
                let count = wasm_func_param_arity(func) + usize::from(step().is_multiple_of(16));
                let mut args: Vec<Value> = (0..count).map(|_| value()).collect();
                let count = wasm_func_result_arity(func) + usize::from(step().is_multiple_of(16));
                let mut results = vec![Value { kind: 0, of: 0 }; count];
                let args = Vector { size: args.len(), data: args.as_mut_ptr() };
                let mut places = Vector { size: count, data: results.as_mut_ptr() };
                pagefork_h::told(wasm_func_call(func, &args, &mut places));
                results.iter_mut().for_each(|result| wasm_val_delete(result));
            }
            17 => {
                let ty = wasm_globaltype_new(wasm_valtype_new([0, 1, 128, 129][step() % 4]), 1);
                keep(wasm_global_new(store(), ty, &value()));
                wasm_globaltype_delete(ty);
            }
            18 => {
                let mut got = Value { kind: 0, of: 0 };
                wasm_global_get(object(), &mut got);
                wasm_val_delete(&mut got);
                wasm_global_set(object(), &value());
            }
            19 => {
                let element = wasm_valtype_new([128, 129][step() % 2]);
                let ty = wasm_tabletype_new(element, &limits());
                keep(wasm_table_new(store(), ty, object()));
                wasm_tabletype_delete(ty);
            }
            20 => {
                keep(wasm_table_get(object(), step() as u32 % 8));
                wasm_table_set(object(), step() as u32 % 8, object());
                wasm_table_grow(object(), step() as u32 % 3, object());
            }
            21 => {
                let ty = wasm_memorytype_new(&limits());
                keep(wasm_memory_new(store(), ty));
                wasm_memorytype_delete(ty);
            }
            22 => {
                let memory = object();
                wasm_memory_grow(memory, step() as u32 % 2);
                let (data, size) = (wasm_memory_data(memory), wasm_memory_data_size(memory));
                if size > 0 {
                    data.add(size - 1).write(1);
                }
            }
            23 => {
                let object = object();
                if !object.is_null() {
                    wasm_ref_set_host_info_with_finalizer(object, attached(), finalize);
                    let info = wasm_ref_get_host_info(object);
                    assert!(info.addr() == 77 || info.is_null());
                }
            }
            24 => {
                let copy = wasm_ref_copy(object());
                assert!(copy.is_null() || wasm_ref_same(copy, copy));
                keep(copy);
            }
            25 => use_deleted(),
            _ => {
                pagefork_store_collect(store());
                pagefork_h::told(pagefork_store_reset(store(), ptr::null_mut()));
            }
        }
    }
}

/// Uses objects that were deleted, of a store that lives: each use is an error.
fn use_deleted() {
    let (store, count) = (store(), step() % 24 + 1);
    if store.is_null() {
        return;
    }
    // SAFETY: the store is live, and stays so: what was deleted of it may be used until others take its
    // places, and nothing here makes any.
    unsafe {
        let deleted: Vec<Object> = (0..count).map(|_| wasm_foreign_new(store)).collect();
        deleted.iter().for_each(|object| wasm_ref_delete(*object));
        for object in deleted.iter().copied().filter(|object| !object.is_null()) {
            assert!(wasm_ref_copy(object).is_null());
            assert!(!wasm_ref_same(object, object) && !wasm_ref_same(object, deleted[0]));
            wasm_ref_set_host_info_with_finalizer(object, attached(), finalize);
            assert!(wasm_ref_get_host_info(object).is_null());
            assert_eq!(wasm_func_param_arity(object) + wasm_func_result_arity(object), 0);
            assert!(wasm_table_get(object, 0).is_null() && !wasm_table_set(object, 0, object));
            assert!(wasm_memory_data(object).is_null() && !wasm_memory_grow(object, 1));
            let mut exports = Vector { size: 1, data: ptr::null_mut() };
            wasm_instance_exports(object, &mut exports);
            assert_eq!(exports.size, 0);
            wasm_ref_delete(object);
        }
    }
}

/// Whatever is done with the library's objects, valid or not, is answered: no panic crosses into
/// C, nothing is used that was freed, and each finalizer is called once.
pub fn c_library(data: &[u8]) {
    let Ok(steps) = Unstructured::new(data).bytes(data.len()) else { return };
    let guests = GUESTS
        .iter()
        .chain(pagefork_h::GUESTS)
        .map(|text| wat::parse_str(text).expect("the text is right"));
    // SAFETY: it takes nothing.
    let engines = unsafe { [wasm_engine_new(), wasm_engine_new()] };
    let (attached, finalized) =
        (ATTACHED.load(Ordering::Relaxed), FINALIZED.load(Ordering::Relaxed));
    let state = State {
        engines,
        stores: Vec::new(),
        objects: Vec::new(),
        guests: guests.collect(),
        steps: steps.to_vec(),
        depth: 0,
        handles: pagefork_h::Handles::default(),
    };
    STATE.set(Some(state));
    // SAFETY: the engine is live.
    let first = unsafe { wasm_store_new(engines[0]) };
    with(|state| state.stores.push(first));
    while with(|state| !state.steps.is_empty()) {
        act();
    }
    let state = STATE.take().expect("a case runs");
    // In every order.
    let (first, is_last) = (data.len(), data.len().is_multiple_of(2));
    let mut handles = Some(state.handles);
    if !is_last {
        handles.take().into_iter().for_each(|handles| handles.delete(first));
    }
    // SAFETY: everything that there is is deleted once.
    unsafe {
        state.stores.into_iter().for_each(|store| wasm_store_delete(store));
        state.objects.into_iter().for_each(|object| wasm_ref_delete(object));
        handles.into_iter().for_each(|handles| handles.delete(first));
        engines.into_iter().for_each(|engine| wasm_engine_delete(engine));
    }
    let attached = ATTACHED.load(Ordering::Relaxed) - attached;
    let finalized = FINALIZED.load(Ordering::Relaxed) - finalized;
    assert_eq!(attached, finalized, "finalizers that were to be called, and that were");
}
