//! Calls of `pagefork.h`: what the C library has beyond the standard interface.

use std::ffi::{CString, c_char, c_void};
use std::path::PathBuf;
use std::{mem, ptr};

use super::declared::*;
use super::{
    Object, Value, Vector, act, attached, finalize, func_type, keep, object, step, store, with,
};

/// Modules that import what linkers define.
pub(super) const GUESTS: &[&str] = &[
    r#"(module (import "" "h" (func $h (param i32) (result i32)))
        (memory (export "m") 1 3) (global (export "g") (mut externref) (ref.null extern))
        (global $count (mut i32) (i32.const 0))
        (func (export "hold") (param externref) (global.set 0 (local.get 0)))
        (func (export "r") (param i32) (result i32)
            (i32.store (local.get 0) (i32.add (i32.load (local.get 0)) (i32.const 1)))
            (global.set $count (i32.add (call $h (local.get 0)) (call $h (i32.const 3))))
            (drop (memory.grow (i32.const 1)))
            (i32.add (global.get $count) (i32.load (local.get 0)))))"#,
    r#"(module (import "" "h" (func $h (param i32) (result i32))) (memory (export "m") 1)
        (func $start (i32.store (i32.const 0) (call $h (i32.const 1)))) (start $start)
        (func (export "r") (param i32) (result i32) (i32.load (i32.const 0))))"#,
    r#"(module (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
        (memory (export "memory") 1) (data (i32.const 0) "\10\00\00\00\10\00\00\00")
        (func (export "_start") (drop (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)))))"#,
];

/// Names of imports and exports.
const NAMES: &[&std::ffi::CStr] = &[c"h", c"h", c"r", c"f", c"m", c"g", c"hold", c"_start", c"t"];

/// Types that functions are called and wrapped by.
const SIGNATURES: &[&std::ffi::CStr] = &[c"i:i", c"iI:I", c":"];

/// What there is of other kinds than objects: none stands for another in C's types.
#[derive(Default)]
pub(super) struct Handles {
    lists: [Vec<Object>; Kind::COUNT],
    typed: Vec<(usize, usize)>,
    images: Vec<[u8; 32]>,
    directory: Option<PathBuf>,
}

#[derive(Clone, Copy)]
enum Kind {
    Linker,
    Pre,
    Snapshot,
    Images,
    Export,
    Interrupt,
    Wasi,
    Completion,
    Call,
}

impl Kind {
    const COUNT: usize = Self::Call as usize + 1;
    const ALL: [(Self, unsafe extern "C" fn(Object)); Self::COUNT] = [
        (Self::Linker, pagefork_linker_delete),
        (Self::Pre, pagefork_instance_pre_delete),
        (Self::Snapshot, pagefork_snapshot_delete),
        (Self::Images, pagefork_image_store_delete),
        (Self::Export, pagefork_export_delete),
        (Self::Interrupt, pagefork_interrupt_delete),
        (Self::Wasi, pagefork_wasi_config_delete),
        (Self::Completion, pagefork_completion_delete),
        (Self::Call, pagefork_call_delete),
    ];

    /// One of this kind, or null.
    fn any(self) -> Object {
        let which = step();
        with(|state| {
            let list = &state.handles.lists[self as usize];
            list.get(which % (list.len() + 1)).copied()
        })
        .unwrap_or(ptr::null_mut())
    }

    /// One of this kind, which is its owner's no longer; or null.
    fn take(self) -> Object {
        let which = step();
        with(|state| {
            let list = &mut state.handles.lists[self as usize];
            let count = list.len() + 1;
            (which % count < list.len()).then(|| list.swap_remove(which % count))
        })
        .unwrap_or(ptr::null_mut())
    }

    fn keep(self, object: Object) {
        if !object.is_null() {
            with(|state| state.handles.lists[self as usize].push(object));
        }
    }

    /// What a function makes of this kind.
    fn make(self, make: impl FnOnce(Out) -> Error) {
        let mut out = ptr::without_provenance_mut(1);
        told(make(&mut out));
        assert!(out.addr() != 1, "an out argument is written to, whatever happens");
        self.keep(out);
    }
}

impl Handles {
    /// Deletes all that there is, beginning with some kind.
    pub(super) fn delete(self, first: usize) {
        // SAFETY: each is deleted once.
        unsafe {
            for turn in 0..Kind::COUNT {
                let (kind, delete) = Kind::ALL[(first + turn) % Kind::COUNT];
                self.lists[kind as usize].iter().for_each(|object| delete(*object));
            }
            for (func, _) in self.typed {
                pagefork_typed_func_delete(ptr::with_exposed_provenance_mut(func));
            }
        }
        if let Some(directory) = self.directory {
            std::fs::remove_dir_all(directory).expect("it is this case's own");
        }
    }
}

/// Keeps an error, which must be no panic.
pub(super) fn told(error: Error) {
    if error.is_null() {
        return;
    }
    let mut text = Vector { size: 0, data: ptr::null_mut() };
    // SAFETY: the error is live, and the vector ours.
    unsafe {
        wasm_trap_message(error, &mut text);
        let bytes = match text.size {
            0 => &[][..],
            size => std::slice::from_raw_parts(text.data, size),
        };
        let shown = String::from_utf8_lossy(bytes);
        assert!(!shown.starts_with("internal error"), "{shown}");
        assert!(pagefork_error_kind(error) <= 8);
        pagefork_error_trap_code(error);
        pagefork_error_exit_status(error, ptr::null_mut());
        drop(shown);
        wasm_byte_vec_delete(&mut text);
    }
    keep(error);
}

/// Why functions failed that give no error: no panic.
pub(super) fn check_last_error() {
    // SAFETY: it takes nothing.
    told(unsafe { pagefork_last_error() });
}

fn make(make: impl FnOnce(Out) -> Error) {
    let mut out = ptr::without_provenance_mut(1);
    told(make(&mut out));
    assert!(out.addr() != 1, "an out argument is written to, whatever happens");
    keep(out);
}

/// An instance, if it is one, and its store, which are known from here on.
fn keep_store(store: Object) {
    if !store.is_null() {
        with(|state| state.stores.push(store));
    }
}

fn name() -> *const c_char {
    match step() % 16 {
        0 => ptr::null(),
        which => NAMES[which % NAMES.len()].as_ptr(),
    }
}

fn long_value() -> LongValue {
    let Value { kind, of } = super::value();
    let kind = if kind == 99 { 130 } else { kind };
    let of = if kind == 130 { object().expose_provenance() as u64 } else { of };
    LongValue { kind, of: [of, 0] }
}

fn long_values(count: usize) -> Vec<LongValue> {
    (0..count).map(|_| long_value()).collect()
}

/// What a function is called with, mostly as many as it takes.
fn args_of(func: Object) -> Vec<LongValue> {
    // SAFETY: it is null or live.
    let count = unsafe { wasm_func_param_arity(func) } + usize::from(step().is_multiple_of(16));
    (0..count).map(|_| if step().is_multiple_of(4) { long_value() } else { ZERO }).collect()
}

fn places_of(func: Object) -> Vec<LongValue> {
    // SAFETY: it is null or live.
    let count = unsafe { wasm_func_result_arity(func) } + usize::from(step().is_multiple_of(16));
    vec![ZERO; count]
}

/// Frees what was given, if it was.
fn free(values: Vec<LongValue>) {
    for value in values.iter().filter(|value| value.kind >= 128) {
        // SAFETY: the references are ours.
        unsafe { wasm_ref_delete(ptr::with_exposed_provenance_mut(value.of[0] as usize)) };
    }
}

fn free_if(given: Error, values: Vec<LongValue>) {
    if given.is_null() {
        free(values);
    }
    told(given);
}

/// Values that change hands.
fn owned_values(count: usize) -> Vec<LongValue> {
    let mut values = long_values(count);
    for value in values.iter_mut().filter(|value| value.kind >= 128) {
        // SAFETY: it is null or live.
        let copy = unsafe { wasm_ref_copy(ptr::with_exposed_provenance_mut(value.of[0] as usize)) };
        value.of[0] = copy.expose_provenance() as u64;
    }
    values
}

fn error() -> Error {
    // SAFETY: the text lives for ever.
    unsafe { pagefork_error_new(c"an error".as_ptr()) }
}

/// Some steps in a callback, which is not called too deep.
fn nested(caller: &Caller) {
    let is_deep = with(|state| {
        state.depth += 1;
        state.depth > 4
    });
    // SAFETY: the caller is lent, and with it its store.
    unsafe {
        match step() % 8 {
            0 => make(|out| pagefork_caller_export(caller, name(), out)),
            1 => keep_store(pagefork_store_copy(caller.store)),
            2 => drop(pagefork_caller_can_suspend(caller)),
            _ => {}
        }
    }
    if !is_deep {
        (0..step() % 4).for_each(|_| act());
    }
    with(|state| state.depth -= 1);
}

/// What a callback fails with, if it does.
fn failure(caller: &Caller) -> Error {
    // SAFETY: the caller is lent.
    unsafe {
        match step() % 12 {
            0 => wasm_ref_copy(object()),
            1 => error(),
            2..=4 => pagefork_caller_suspend_before(caller),
            5 => {
                told(pagefork_caller_suspend_after(caller));
                ptr::null_mut()
            }
            _ => ptr::null_mut(),
        }
    }
}

extern "C" fn callback(
    caller: &Caller,
    _: *const LongValue,
    _: usize,
    results: *mut LongValue,
    count: usize,
) -> Error {
    nested(caller);
    for index in 0..count {
        // SAFETY: there are as many places, which have their kinds.
        unsafe {
            let result = &mut *results.add(index);
            if result.kind >= 128 {
                result.of[0] = wasm_ref_copy(object()).expose_provenance() as u64;
            }
        }
    }
    failure(caller)
}

/// Of the type `[i32] -> [i32]`.
extern "C" fn raw_callback(caller: &Caller, cells: *mut [u64; 2]) -> Error {
    nested(caller);
    // SAFETY: there is a cell.
    unsafe { (*cells)[0] &= 0xff };
    failure(caller)
}

extern "C" fn wrapped(caller: &Caller, value: i32) -> i32 {
    nested(caller);
    let error = failure(caller);
    if !error.is_null() {
        // SAFETY: the caller is lent, and the error given away.
        unsafe { pagefork_raise(caller, error) };
    }
    value
}

extern "C" fn wrapped_long(caller: &Caller, first: i32, second: i64) -> i64 {
    i64::from(wrapped(caller, first)) + second
}

extern "C" fn wrapped_nothing(caller: &Caller) {
    wrapped(caller, 0);
}

extern "C" fn begin(caller: &Caller, _: *const LongValue, _: usize, completion: Object) {
    nested(caller);
    Kind::Completion.keep(completion);
    match step() % 4 {
        0 => complete(),
        1 => {
            let error = failure(caller);
            if !error.is_null() {
                // SAFETY: the caller is lent, and the error given away.
                unsafe { pagefork_raise(caller, error) };
            }
        }
        _ => {}
    }
}

/// Completes something.
fn complete() {
    // SAFETY: the completion is given away once, or lent.
    unsafe {
        match step() % 8 {
            0 => pagefork_completion_fail(Kind::Completion.take(), error()),
            1 => pagefork_completion_fail(Kind::Completion.take(), wasm_ref_copy(object())),
            2 => pagefork_completion_delete(Kind::Completion.take()),
            3 => {
                let completion = Kind::Completion.any();
                pagefork_completion_is_wanted(completion);
                pagefork_completion_on_cancel(completion, nothing, ptr::null_mut());
            }
            4 => {
                let values = owned_values(step() % 3);
                pagefork_completion_finish(Kind::Completion.take(), values.as_ptr(), values.len());
            }
            _ => pagefork_completion_finish(Kind::Completion.take(), &ZERO, 1),
        }
    }
}

extern "C" fn nothing(_: *mut c_void) {}

extern "C" fn keep_reference(_: *mut c_void, object: Object, out: Out) -> Error {
    // SAFETY: the object is lent, and the place is there.
    unsafe {
        match step() % 8 {
            0 => return error(),
            1 => act(),
            2 => *out = wasm_ref_copy(super::object()),
            3 => *out = pagefork_foreign_new(attached(), finalize),
            _ => *out = wasm_ref_copy(object),
        }
    }
    ptr::null_mut()
}

extern "C" fn save_reference(_: *mut c_void, _: Object, out: *mut Vector<u8>) -> Error {
    // SAFETY: the place is there.
    unsafe { wasm_byte_vec_new(out, 3, [1, 2, 3].as_ptr()) };
    if step().is_multiple_of(8) { error() } else { ptr::null_mut() }
}

extern "C" fn load_reference(_: *mut c_void, _: *const u8, size: usize, out: Out) -> Error {
    assert_eq!(size, 3);
    // SAFETY: the place is there.
    unsafe { *out = pagefork_foreign_new(attached(), finalize) };
    if step().is_multiple_of(8) { error() } else { ptr::null_mut() }
}

/// A type, and that of [`raw_callback`].
fn types(use_type: impl FnOnce(Object) -> Error) -> Error {
    let ty = match step() % 2 {
        0 => func_type(),
        _ => number_type(),
    };
    let error = use_type(ty);
    // SAFETY: it is ours.
    unsafe { wasm_functype_delete(ty) };
    error
}

fn number_type() -> Object {
    super::type_of(&[0], &[0])
}

fn signature() -> (*const c_char, *const c_void) {
    let which = step() % SIGNATURES.len();
    let functions =
        [wrapped as *const c_void, wrapped_long as *const c_void, wrapped_nothing as *const c_void];
    (SIGNATURES[which].as_ptr(), functions[which])
}

/// Gets a typed function, and calls one.
fn typed() {
    let which = step() % SIGNATURES.len();
    let mut func = ptr::null_mut();
    // SAFETY: what is called is live, and of the type that it was got by.
    unsafe {
        told(match step() % 3 {
            0 => pagefork_func_typed(object(), SIGNATURES[which].as_ptr(), &mut func),
            1 => {
                let signature = SIGNATURES[which].as_ptr();
                pagefork_instance_typed_func(object(), name(), signature, &mut func)
            }
            // Of whichever signature the export was found by: it is deleted at once.
            _ => {
                let mut other = ptr::null_mut();
                let error =
                    pagefork_instance_typed_export(object(), Kind::Export.any(), &mut other);
                pagefork_typed_func_delete(other);
                error
            }
        });
        if !func.is_null() {
            with(|state| state.handles.typed.push((func.expose_provenance(), which)));
        }
        let chosen = step();
        let Some((func, which)) = with(|state| {
            let typed = &state.handles.typed;
            (!typed.is_empty()).then(|| typed[chosen % typed.len()])
        }) else {
            return;
        };
        let func: *mut TypedFunc = ptr::with_exposed_provenance_mut(func);
        let call = (*func).call;
        match which {
            0 => drop(mem::transmute::<*const c_void, extern "C" fn(*mut TypedFunc, i32) -> i32>(
                call,
            )(func, 5)),
            1 => drop(mem::transmute::<
                *const c_void,
                extern "C" fn(*mut TypedFunc, i32, i64) -> i64,
            >(call)(func, 5, 6)),
            _ => mem::transmute::<*const c_void, extern "C" fn(*mut TypedFunc)>(call)(func),
        }
        told(mem::replace(&mut (*func).error, ptr::null_mut()));
    }
}

fn spawn_how(use_how: impl FnOnce(*const Spawn) -> Error) -> Error {
    let limits = Limits { sizes: [0, 3 << 16, 0, 0, 0, 0], ..Limits::default() };
    let how = Spawn {
        tenant: step() as u64 % 3,
        limits: if step().is_multiple_of(4) { &limits } else { ptr::null() },
        wasi: Kind::Wasi.any(),
        reserved: [u64::from(step().is_multiple_of(32)), 0, 0, 0],
    };
    use_how(if step().is_multiple_of(2) { &how } else { ptr::null() })
}

/// Deletes something that calls may use: while none runs.
fn delete() {
    if with(|state| state.depth) > 0 {
        return;
    }
    let (kind, delete) = Kind::ALL[step() % Kind::COUNT];
    // SAFETY: it is deleted once.
    unsafe { delete(kind.take()) };
}

/// Saves and loads: in a directory of the case's own.
fn image() {
    // SAFETY: all are live, or null.
    unsafe {
        match step() % 8 {
            0 => {
                let directory = with(|state| {
                    let name = format!("pagefork-fuzz-c-{}", std::process::id());
                    // In memory: images are written for good, and there are many.
                    let shared = PathBuf::from("/dev/shm").join(name);
                    state.handles.directory.get_or_insert(shared).clone()
                });
                let path = CString::new(directory.into_os_string().into_encoded_bytes());
                let path = path.expect("a path has no zeros");
                Kind::Images.make(|out| pagefork_image_store_open(path.as_ptr(), out));
            }
            1..=3 => {
                let named = NamedFunc { func: object(), module: c"".as_ptr(), name: name() };
                let how = Save {
                    state: [1, 2].as_ptr(),
                    state_size: step() % 3,
                    delta_of: Kind::Snapshot.any(),
                    signers: &[3; 32],
                    signer_count: step() % 2,
                    funcs: &named,
                    func_count: usize::from(step().is_multiple_of(8)),
                    save_reference: (step().is_multiple_of(2)).then_some(save_reference),
                    env: ptr::null_mut(),
                    reserved: [0; 4],
                };
                let how = if step().is_multiple_of(2) { &how } else { ptr::null() };
                let mut image = [0; 32];
                let error = pagefork_snapshot_save(
                    Kind::Snapshot.any(),
                    Kind::Images.any(),
                    how,
                    &mut image,
                );
                if error.is_null() {
                    with(|state| state.handles.images.push(image));
                }
                told(error);
            }
            4..=6 => {
                let modules = [object()];
                let how = Load {
                    modules: modules.as_ptr(),
                    module_count: usize::from(step().is_multiple_of(4)),
                    trusted: &[3; 32],
                    trusted_count: step() % 2,
                    load_reference: (step().is_multiple_of(2)).then_some(load_reference),
                    env: ptr::null_mut(),
                    continues: store(),
                    reserved: [0; 4],
                };
                let how = if step().is_multiple_of(2) { &how } else { ptr::null() };
                let which = step();
                let image = with(|state| {
                    let images = &state.handles.images;
                    images.get(which % (images.len() + 1)).copied().unwrap_or([9; 32])
                });
                Kind::Snapshot.make(|out| {
                    pagefork_snapshot_load(Kind::Linker.any(), Kind::Images.any(), &image, how, out)
                });
            }
            _ => {
                let (images, mut image) = (Kind::Images.any(), [0; 32]);
                told(pagefork_snapshot_image(Kind::Snapshot.any(), &mut image));
                told(pagefork_image_store_set_name(images, name(), &image));
                told(pagefork_image_store_find(images, name(), &mut image));
                told(pagefork_image_store_remove_name(images, name()));
                told(pagefork_image_store_collect(images));
                let mut state = Vector { size: 0, data: ptr::null_mut() };
                told(pagefork_snapshot_state(Kind::Snapshot.any(), &mut state));
                wasm_byte_vec_delete(&mut state);
            }
        }
    }
}

/// Guests that are suspended, and snapshots.
fn suspended() {
    let mut is_suspended = false;
    // SAFETY: all are live, or null.
    unsafe {
        match step() % 12 {
            0 | 1 => {
                let func = object();
                let (args, mut results) = (args_of(func), places_of(func));
                let (count, places) = (results.len(), results.as_mut_ptr());
                let error = pagefork_func_call_suspendable(
                    func,
                    args.as_ptr(),
                    args.len(),
                    places,
                    count,
                    &mut is_suspended,
                );
                free_if(error, if is_suspended { Vec::new() } else { results });
            }
            2 => {
                let mut results = vec![ZERO; step() % 3];
                let (store, count) = (store(), results.len());
                let error =
                    pagefork_store_resume(store, results.as_mut_ptr(), count, &mut is_suspended);
                free_if(error, if is_suspended { Vec::new() } else { results });
            }
            3 => {
                let (values, mut results) = (long_values(step() % 2), vec![ZERO; step() % 2]);
                let given = if step().is_multiple_of(4) { error() } else { ptr::null_mut() };
                let (store, count) = (store(), results.len());
                let error = pagefork_store_resume_with(
                    store,
                    values.as_ptr(),
                    values.len(),
                    given,
                    results.as_mut_ptr(),
                    count,
                    &mut is_suspended,
                );
                free_if(error, if is_suspended { Vec::new() } else { results });
            }
            4 => {
                let store = store();
                assert!(pagefork_store_suspended_at(store) <= 3);
                if step().is_multiple_of(4) {
                    told(pagefork_store_abandon(store));
                }
            }
            5 => {
                let mut args = vec![ZERO; step() % 3];
                let (mut func, store) = (ptr::null_mut(), store());
                let error =
                    pagefork_store_suspended_call(store, &mut func, args.as_mut_ptr(), args.len());
                keep(func);
                free_if(error, args);
            }
            6 => Kind::Snapshot.make(|out| pagefork_store_snapshot(store(), out)),
            7 => Kind::Snapshot.make(|out| {
                pagefork_store_snapshot_with(store(), keep_reference, ptr::null_mut(), out)
            }),
            8 => Kind::Pre.make(|out| pagefork_snapshot_instance_pre(Kind::Snapshot.any(), out)),
            9 => {
                let (store, snapshot) = (store(), Kind::Snapshot.any());
                told(pagefork_store_reset_to(store, snapshot, Kind::Wasi.any()));
            }
            10 => {
                let mut stores = [ptr::null_mut(); 2];
                let (store, count) = (store(), step() % 3);
                told(spawn_how(|how| pagefork_store_fork(store, how, stores.as_mut_ptr(), count)));
                stores.into_iter().for_each(keep_store);
            }
            _ => {
                make(|out| pagefork_store_counterpart(store(), object(), out));
                make(|out| pagefork_store_counterpart_instance(store(), object(), out));
            }
        }
    }
}

/// Calls that wait.
fn waiting() {
    // SAFETY: all are live, or null.
    unsafe {
        match step() % 8 {
            0 | 1 => {
                let func = object();
                let args = args_of(func);
                Kind::Call.make(|out| {
                    let (args, count) = (args.as_ptr(), args.len());
                    pagefork_func_call_async(func, args, count, nothing, attached(), finalize, out)
                });
            }
            2 if step().is_multiple_of(2) => Kind::Call.make(|out| {
                let (pre, env) = (Kind::Pre.any(), attached());
                spawn_how(|how| {
                    pagefork_instance_pre_spawn_async(pre, how, nothing, env, finalize, out)
                })
            }),
            2 => Kind::Call.make(|out| {
                let (linker, store, module) = (Kind::Linker.any(), store(), object());
                let env = attached();
                pagefork_linker_instantiate_async(
                    linker, store, module, nothing, env, finalize, out,
                )
            }),
            3 | 4 => drop(pagefork_call_poll(Kind::Call.any())),
            5 => {
                pagefork_call_wait(Kind::Call.any(), 0);
                make(|out| pagefork_call_instance(Kind::Call.any(), out));
                let (mut new, call) = (ptr::null_mut(), Kind::Call.any());
                make(|out| pagefork_call_spawned(call, &mut new, out));
                keep_store(new);
                let mut results = vec![ZERO; step() % 3];
                let count = results.len();
                let error = pagefork_call_results(Kind::Call.any(), results.as_mut_ptr(), count);
                free_if(error, results);
            }
            // A call may be deleted by what it calls.
            6 => pagefork_call_delete(Kind::Call.take()),
            _ => complete(),
        }
    }
}

/// Linkers, and what is made with them.
fn linking() {
    let linker = Kind::Linker.any();
    let empty = c"".as_ptr();
    // SAFETY: all are live, or null.
    unsafe {
        match step() % 16 {
            0 => {
                let engine = super::engine();
                Kind::Linker.make(|out| pagefork_linker_new(engine, out));
            }
            1 => told(pagefork_linker_define(linker, empty, name(), object())),
            2 => told(types(|ty| {
                pagefork_linker_func(linker, empty, name(), ty, callback, attached(), finalize)
            })),
            3 => {
                let ty = number_type();
                told(pagefork_linker_func_raw(
                    linker,
                    empty,
                    name(),
                    ty,
                    raw_callback,
                    attached(),
                    finalize,
                ));
                wasm_functype_delete(ty);
            }
            4 => {
                let (signature, function) = signature();
                let name = name();
                let env = attached();
                told(pagefork_linker_func_wrap(
                    linker, empty, name, signature, function, env, finalize,
                ));
            }
            5 => told(types(|ty| {
                pagefork_linker_func_async(linker, empty, name(), ty, begin, attached(), finalize)
            })),
            6 => match step() % 5 {
                0 => told(pagefork_linker_wasi(linker)),
                4 => told(pagefork_linker_memory_discard(linker)),
                1 => told(pagefork_linker_instance(linker, empty, object())),
                2 => pagefork_linker_allow_shadowing(linker, step().is_multiple_of(2)),
                _ => told(pagefork_linker_unknown_imports_as_traps(linker, object())),
            },
            7..=9 => make(|out| pagefork_linker_instantiate(linker, store(), object(), out)),
            10 => Kind::Pre.make(|out| pagefork_linker_instantiate_pre(linker, object(), out)),
            11 => Kind::Pre.make(|out| {
                let kinds = [step() as u8 % 7, step() as u8 % 5, step() as u8 % 4];
                let (clear_stack, no_copy_on_write) = (kinds[0].is_multiple_of(2), false);
                let (sizes, deltas, reserved) = ([0; 3], step() as u64 % 5, [0; 3]);
                let strategies =
                    Strategies { kinds, clear_stack, no_copy_on_write, sizes, deltas, reserved };
                pagefork_instance_pre_with_strategies(Kind::Pre.any(), &strategies, out)
            }),
            12..=14 => {
                let (mut new, pre) = (ptr::null_mut(), Kind::Pre.any());
                make(|out| spawn_how(|how| pagefork_instance_pre_spawn(pre, how, &mut new, out)));
                keep_store(new);
            }
            _ => {
                let which = step() % GUESTS.len();
                let engine = super::engine();
                let text = GUESTS[which].as_bytes();
                make(|out| pagefork_module_new(engine, text.as_ptr(), text.len(), out));
            }
        }
    }
}

/// Functions, values and exceptions.
fn values() {
    // SAFETY: all are live, or null.
    unsafe {
        match step() % 16 {
            0 => make(|out| {
                types(|ty| pagefork_func_new(store(), ty, callback, attached(), finalize, out))
            }),
            1 => make(|out| {
                types(|ty| pagefork_func_new_async(store(), ty, begin, attached(), finalize, out))
            }),
            2 => make(|out| {
                let ty = number_type();
                let error =
                    pagefork_func_new_raw(store(), ty, raw_callback, attached(), finalize, out);
                wasm_functype_delete(ty);
                error
            }),
            3 => make(|out| {
                let (signature, function) = signature();
                pagefork_func_wrap(store(), signature, function, attached(), finalize, out)
            }),
            4..=7 => {
                let func = object();
                let (args, mut results) = (args_of(func), places_of(func));
                let (count, places) = (results.len(), results.as_mut_ptr());
                free_if(
                    pagefork_func_call(func, args.as_ptr(), args.len(), places, count),
                    results,
                );
            }
            8 => {
                let func = object();
                let count = wasm_func_param_arity(func).max(wasm_func_result_arity(func));
                let mut cells = vec![[0; 2]; count + 1];
                told(pagefork_func_call_raw(func, cells.as_mut_ptr(), cells.len() - step() % 2));
            }
            9 => typed(),
            10 => {
                Kind::Export.make(|out| {
                    let signature =
                        if step().is_multiple_of(2) { ptr::null() } else { self::signature().0 };
                    pagefork_module_export(object(), name(), signature, out)
                });
                make(|out| pagefork_instance_export_at(object(), Kind::Export.any(), out));
            }
            11 => {
                let mut value = ZERO;
                free_if(pagefork_global_get(object(), &mut value), vec![value]);
                told(pagefork_global_set(object(), &long_value()));
            }
            12 => {
                make(|out| types(|ty| pagefork_tag_new(store(), ty, out)));
                let values = long_values(step() % 3);
                make(|out| pagefork_exception_new(object(), values.as_ptr(), values.len(), out));
                keep(pagefork_exception_tag(object()));
                let mut values = vec![ZERO; step() % 3];
                let count = values.len();
                free_if(pagefork_exception_values(object(), values.as_mut_ptr(), count), values);
            }
            13 => keep(pagefork_foreign_new(attached(), finalize)),
            14 => {
                let (mut used, mut why) = (0, Vector { size: 0, data: ptr::null_mut() });
                match step().is_multiple_of(2) {
                    true => told(pagefork_instance_strategy(object(), &mut used, &mut why)),
                    false => told(pagefork_instance_growth(object(), ptr::null_mut(), &mut why)),
                }
                wasm_byte_vec_delete(&mut why);
            }
            _ => make(|out| pagefork_instance_export(object(), name(), out)),
        }
    }
}

/// Settings of stores, interrupts and WASI.
fn settings() {
    // SAFETY: all are live, or null.
    unsafe {
        match step() % 12 {
            0 => {
                let limits = Limits {
                    sizes: [(step() as u64 % 3) << 16, 0, 9, 3, 0, 0],
                    ..Limits::default()
                };
                let limits = if step().is_multiple_of(2) { &limits } else { ptr::null() };
                told(pagefork_store_set_limits(store(), limits));
            }
            1 => told(pagefork_store_set_epoch_deadline(store(), step() as u64 % 4)),
            2 => pagefork_engine_increment_epoch(super::engine()),
            3 => {
                told(pagefork_store_set_fuel(store(), 1000));
                told(pagefork_store_fuel(store(), &mut 0));
            }
            4 => told(pagefork_store_set_yield_interval(store(), (step() as u64 % 2) << 40)),
            5 => pagefork_store_set_data(store(), attached(), finalize),
            6 => Kind::Interrupt.make(|out| pagefork_store_interrupt_handle(store(), out)),
            7 => pagefork_interrupt_suspend(Kind::Interrupt.any()),
            8 => pagefork_interrupt_guests(Kind::Interrupt.any()),
            9 => {
                let config = pagefork_wasi_config_new();
                if step().is_multiple_of(2) {
                    pagefork_wasi_config_await_stdin(config);
                }
                pagefork_wasi_config_capture_stdout(config, step());
                Kind::Wasi.keep(config);
            }
            10 => {
                told(pagefork_store_set_wasi(store(), Kind::Wasi.any()));
                let mut output = Vector { size: 0, data: ptr::null_mut() };
                told(pagefork_store_take_output(store(), step() as u8 % 4, &mut output));
                wasm_byte_vec_delete(&mut output);
            }
            _ => {
                told(pagefork_wasi_initialize(object()));
                told(pagefork_wasi_start(object()));
            }
        }
    }
}

/// Calls a function of `pagefork.h`.
pub(super) fn act_beyond() {
    match step() % 16 {
        0..=3 => linking(),
        4..=6 => values(),
        7..=9 => suspended(),
        10 | 11 => waiting(),
        12 => settings(),
        13 => image(),
        14 => delete(),
        _ => complete(),
    }
}
