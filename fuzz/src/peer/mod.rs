//! Wasmtime, by the C API of its released library.

mod api;

use std::collections::HashMap;
use std::ffi::{c_char, c_void};
use std::path::{Path, PathBuf};
use std::ptr;

use wasmparser::{FuncType, ValType};

use crate::generate::{Case, MEMORY_SIZE_MAX, TABLE_LENGTH_MAX};
use crate::interface::Kind;
use crate::ours::STACK_SIZE;
use crate::peer::api::{
    Api, Bytes, Context, EngineHandle, ErrorHandle, ExternBits, ExternTypeHandle, Function,
    ImportTypes, InstanceHandle, ModuleHandle, Opaque, RawExtern, RawValue, Reference, StoreHandle,
    TrapHandle, ValueBits,
};
use crate::subject::{Ending, Engine, Failure, Outcome, State, Subject, host_call};
use crate::value::{Target, Value, target};

/// The release that cases are compared with, which `cargo xtask differential`
/// fetches.
pub const VERSION: &str = "48.0.0";

/// What says where the library is, if not among the fetched guests.
const VARIABLE: &str = "PAGEFORK_WASMTIME";
/// What a host function's error says.
const HOST_ERROR: &str = "the host function fails";

const KIND_FUNC: u8 = 0;
const KIND_GLOBAL: u8 = 1;
const KIND_TABLE: u8 = 2;
const KIND_MEMORY: u8 = 3;
const KIND_TAG: u8 = 5;

/// The library, and its engines.
pub struct Library {
    api: Api,
    /// By whether they are deterministic, then by whether they optimise: those that
    /// do not show an error of the optimiser, which Pagefork shares.
    engines: [[*mut EngineHandle; 2]; 2],
}

impl Library {
    /// Where the library should be.
    pub fn path() -> PathBuf {
        if let Some(path) = std::env::var_os(VARIABLE) {
            return path.into();
        }
        let guests = std::env::var_os("PAGEFORK_GUESTS").map_or_else(
            || Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/guests"),
            PathBuf::from,
        );
        guests.join("libwasmtime.so")
    }

    /// Opens the library, for as long as the process lives.
    ///
    /// # Errors
    /// If it is not there or not what it should be.
    pub fn open() -> Result<&'static Self, String> {
        let path = Self::path();
        if !path.exists() {
            return Err(format!(
                "the library of wasmtime {VERSION} is not at {}: `cargo xtask guests` fetches it; \
                 {VARIABLE} names another place",
                path.display()
            ));
        }
        // SAFETY: the file is what xtask fetched and verified by its digest.
        let api = unsafe { Api::open(&path) }.map_err(|error| format!("{path:?}: {error}"))?;
        // SAFETY: a configuration is made and used up.
        let engine = |deterministic: bool, optimise: bool| unsafe {
            let config = (api.wasm_config_new)();
            (api.wasmtime_config_cranelift_nan_canonicalization_set)(config, deterministic);
            (api.wasmtime_config_cranelift_opt_level_set)(config, optimise.into());
            (api.wasmtime_config_max_wasm_stack_set)(config, STACK_SIZE as usize);
            (api.wasmtime_config_parallel_compilation_set)(config, false);
            (api.wasmtime_config_wasm_exceptions_set)(config, true);
            (api.wasmtime_config_wasm_function_references_set)(config, true);
            (api.wasmtime_config_wasm_memory64_set)(config, true);
            (api.wasmtime_config_wasm_multi_memory_set)(config, true);
            (api.wasmtime_config_wasm_relaxed_simd_set)(config, true);
            (api.wasmtime_config_wasm_relaxed_simd_deterministic_set)(config, deterministic);
            (api.wasmtime_config_wasm_tail_call_set)(config, true);
            (api.wasm_engine_new_with_config)(config)
        };
        let engines = [false, true]
            .map(|deterministic| [false, true].map(|optimise| engine(deterministic, optimise)));
        if engines.iter().flatten().any(|engine| engine.is_null()) {
            return Err("wasmtime refuses its configuration".to_owned());
        }
        Ok(Box::leak(Box::new(Self { api, engines })))
    }

    /// Takes the text out of an error, which goes.
    ///
    /// # Safety
    /// The error is one, and the caller's alone.
    unsafe fn error_text(&self, error: *mut ErrorHandle) -> String {
        let mut bytes = Bytes { size: 0, data: ptr::null_mut() };
        // SAFETY: by this function's contract the error is ours; its text is copied before it
        // goes.
        unsafe {
            (self.api.wasmtime_error_message)(error, &mut bytes);
            (self.api.wasmtime_error_delete)(error);
            self.text(bytes)
        }
    }

    /// # Safety
    /// The bytes are as the library made them, and the caller's alone.
    unsafe fn text(&self, mut bytes: Bytes) -> String {
        // SAFETY: by this function's contract the library made the bytes.
        let text = unsafe { std::slice::from_raw_parts(bytes.data, bytes.size) };
        let text = String::from_utf8_lossy(text).trim_end_matches('\0').to_owned();
        // SAFETY: by this function's contract they are ours, and deleted once.
        unsafe { (self.api.wasm_byte_vec_delete)(&mut bytes) };
        text
    }

    /// Whether there was no error; an error goes.
    ///
    /// # Safety
    /// The error is null, or one that is the caller's alone.
    unsafe fn succeeded(&self, error: *mut ErrorHandle) -> bool {
        if !error.is_null() {
            // SAFETY: by this function's contract the error is ours.
            unsafe { (self.api.wasmtime_error_delete)(error) };
        }
        error.is_null()
    }
}

/// Wasmtime, with the store of one case.
pub struct Peer {
    library: &'static Library,
    engine: *mut EngineHandle,
    store: *mut StoreHandle,
    module: *mut ModuleHandle,
    imports_made: usize,
}

/// The data of such a store.
struct Data {
    state: State<Item>,
    /// Numbers of functions, by the library's pointers to them.
    functions: HashMap<usize, usize>,
    by_number: Vec<Function>,
}

/// A function, table, memory, global or tag of wasmtime.
#[derive(Clone, Copy)]
pub struct Item(RawExtern);

/// What a host function knows of itself.
struct HostFunction {
    library: &'static Library,
    /// Number of the module that imports it.
    module: usize,
    import: usize,
    ty: FuncType,
}

impl Peer {
    /// An empty store for this case.
    pub fn new(library: &'static Library, case: &Case) -> Self {
        let optimise = case.seed.is_multiple_of(4);
        let engine = library.engines[usize::from(case.deterministic)][usize::from(optimise)];
        let data = Box::new(Data {
            state: State::new(case.seed),
            functions: HashMap::new(),
            by_number: Vec::new(),
        });
        // SAFETY: the engine lives as long as the process; the data goes with the
        // store.
        let store = unsafe {
            let data = Box::into_raw(data).cast();
            let store = (library.api.wasmtime_store_new)(engine, data, Some(drop_box::<Data>));
            (library.api.wasmtime_store_limiter)(
                store,
                MEMORY_SIZE_MAX as i64,
                TABLE_LENGTH_MAX as i64,
                -1,
                -1,
                -1,
            );
            store
        };
        Self { library, engine, store, module: ptr::null_mut(), imports_made: 0 }
    }

    fn delete_module(&mut self) {
        if !self.module.is_null() {
            // SAFETY: the module is one, and instances have references of their own.
            unsafe { (self.library.api.wasmtime_module_delete)(self.module) };
            self.module = ptr::null_mut();
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.delete_module();
        // SAFETY: the store is one, and nothing uses it any more.
        unsafe { (self.library.api.wasmtime_store_delete)(self.store) };
    }
}

/// # Safety
/// `data` came out of a box of this type, and nothing else has it.
unsafe extern "C" fn drop_box<T>(data: *mut c_void) {
    // SAFETY: by this function's contract it is from such a box, and ours alone.
    drop(unsafe { Box::from_raw(data.cast::<T>()) });
}

/// # Safety
/// As wasmtime calls a `wasmtime_func_callback_t` whose data is a [`HostFunction`].
unsafe extern "C" fn callback(
    data: *mut c_void,
    caller: *mut c_void,
    arguments: *const RawValue,
    argument_count: usize,
    results: *mut RawValue,
    result_count: usize,
) -> *mut TrapHandle {
    // SAFETY: the data is the function's for as long as it can be called, and so
    // many values are there; wasmtime gives no null where there are none.
    let (function, arguments, results) = unsafe {
        (
            &*data.cast::<HostFunction>(),
            std::slice::from_raw_parts(arguments, argument_count),
            std::slice::from_raw_parts_mut(results, result_count),
        )
    };
    let api = &function.library.api;
    // SAFETY: the caller is one.
    let context = unsafe { (api.wasmtime_caller_context)(caller) };
    let mut access = Access { library: function.library, context, _store: Default::default() };
    let types = function.ty.params();
    let arguments =
        arguments.iter().zip(types).map(|(value, ty)| access.value_of(value, *ty)).collect();
    match host_call(&mut access, function.module, function.import, &function.ty, arguments) {
        Ending::Return(values) => {
            for ((result, value), ty) in results.iter_mut().zip(values).zip(function.ty.results()) {
                *result = access.raw(value, *ty);
            }
            ptr::null_mut()
        }
        Ending::Throw(tag, ty, values) => access.throw(&tag, &ty, &values),
        // SAFETY: the text is one, of this length.
        Ending::Fail => unsafe {
            (api.wasmtime_trap_new)(HOST_ERROR.as_ptr().cast::<c_char>(), HOST_ERROR.len())
        },
    }
}

impl Engine for Peer {
    type Item = Item;
    type Subject<'a> = Access<'a>;

    fn subject(&mut self) -> Access<'_> {
        // SAFETY: the store is one, and borrowed as long as the access.
        let context = unsafe { (self.library.api.wasmtime_store_context)(self.store) };
        Access { library: self.library, context, _store: Default::default() }
    }

    fn compile(&mut self, wasm: &[u8]) -> Result<(), String> {
        self.delete_module();
        let (api, engine) = (&self.library.api, self.engine);
        // SAFETY: the bytes are there, and the module is written where it may be.
        let error = unsafe {
            (api.wasmtime_module_new)(engine, wasm.as_ptr(), wasm.len(), &mut self.module)
        };
        match error.is_null() {
            true => Ok(()),
            // SAFETY: the error is one.
            false => Err(unsafe { self.library.error_text(error) }),
        }
    }

    fn provide(
        &mut self,
        number: usize,
        index: usize,
        kind: &Kind,
        value: Option<Value>,
    ) -> Option<Item> {
        let import = self.imports_made;
        self.imports_made += 1;
        let (library, module) = (self.library, self.module);
        let mut types = ImportTypes { size: 0, data: ptr::null_mut() };
        let mut access = self.subject();
        // SAFETY: the module is one; that many types are there, and they stay until
        // the list is deleted, after their last use.
        unsafe {
            (library.api.wasmtime_module_imports)(module, &mut types);
            assert!(index < types.size, "the module has this import");
            let ty = (library.api.wasm_importtype_type)(*types.data.add(index));
            let item = access.provide((number, import), ty, kind, value);
            (library.api.wasm_importtype_vec_delete)(&mut types);
            item
        }
    }

    fn instantiate(&mut self, imports: &[Item]) -> Result<Vec<Item>, Failure> {
        let (api, module) = (&self.library.api, self.module);
        let mut access = self.subject();
        let imports: Vec<RawExtern> = imports.iter().map(|item| item.0).collect();
        let (imports, count) = (imports.as_ptr(), imports.len());
        let mut instance = InstanceHandle::default();
        let mut trap = ptr::null_mut();
        let context = access.context;
        // SAFETY: module and context are there, that many imports, and room for what
        // comes of it, which is then ours alone.
        unsafe {
            let error = (api.wasmtime_instance_new)(
                context,
                module,
                imports,
                count,
                &mut instance,
                &mut trap,
            );
            access.check(error, trap, Failure::Link)?;
        }
        let mut exports = Vec::new();
        loop {
            let (mut name, mut size) = (ptr::null_mut(), 0);
            let mut item = RawExtern { kind: 0, of: ExternBits { other: [0; 3] } };
            // SAFETY: the instance is one, and there is room for what is written.
            let more = unsafe {
                (api.wasmtime_instance_export_nth)(
                    context,
                    &instance,
                    exports.len(),
                    &mut name,
                    &mut size,
                    &mut item,
                )
            };
            if !more {
                return Ok(exports);
            }
            exports.push(Item(item));
        }
    }

    fn name_function(&mut self, function: &Item) {
        let function = function.function();
        let mut access = self.subject();
        let data = access.data();
        let number = data.by_number.len();
        data.by_number.push(function);
        data.functions.entry(function.private).or_insert(number);
    }
}

impl Item {
    fn function(&self) -> Function {
        assert_eq!(self.0.kind, KIND_FUNC, "not a function");
        // SAFETY: the kind says that this is it.
        unsafe { self.0.of.function }
    }

    fn other(&self, kind: u8) -> Opaque {
        assert_eq!(self.0.kind, kind, "not of this kind");
        // SAFETY: the kind says that this is it.
        unsafe { self.0.of.other }
    }
}

/// Access to a store.
pub struct Access<'a> {
    library: &'static Library,
    /// Invariant: of a store that is borrowed as long as this lives.
    context: *mut Context,
    _store: std::marker::PhantomData<&'a mut ()>,
}

impl Access<'_> {
    fn data(&mut self) -> &mut Data {
        // SAFETY: every store's data is of this type; access to the store includes the
        // store to itself.
        unsafe { &mut *(self.library.api.wasmtime_context_get_data)(self.context).cast::<Data>() }
    }

    /// # Safety
    /// `ty` is the type of an import.
    unsafe fn provide(
        &mut self,
        (module, import): (usize, usize),
        ty: *const ExternTypeHandle,
        kind: &Kind,
        value: Option<Value>,
    ) -> Option<Item> {
        let (library, context) = (self.library, self.context);
        let api = &library.api;
        let mut of = ExternBits { other: [0; 3] };
        // SAFETY: by this function's contract it is the type of an import; what is made of it is
        // of its kind, and there is room for what is written.
        let (kind, error) = unsafe {
            match kind {
                Kind::Func(shape) => {
                    let function = HostFunction { library, module, import, ty: shape.clone() };
                    (api.wasmtime_func_new)(
                        context,
                        (api.wasm_externtype_as_functype_const)(ty),
                        callback,
                        Box::into_raw(Box::new(function)).cast(),
                        Some(drop_box::<HostFunction>),
                        &mut of.function,
                    );
                    (KIND_FUNC, ptr::null_mut())
                }
                Kind::Global(shape) => {
                    let value = self.raw(value?, shape.content_type);
                    let ty = (api.wasm_externtype_as_globaltype_const)(ty);
                    (KIND_GLOBAL, (api.wasmtime_global_new)(context, ty, &value, &mut of.other))
                }
                Kind::Table(shape) => {
                    let value = self.raw(value?, ValType::Ref(shape.element_type));
                    let ty = (api.wasm_externtype_as_tabletype_const)(ty);
                    (KIND_TABLE, (api.wasmtime_table_new)(context, ty, &value, &mut of.other))
                }
                Kind::Memory(_) => {
                    let ty = (api.wasm_externtype_as_memorytype_const)(ty);
                    (KIND_MEMORY, (api.wasmtime_memory_new)(context, ty, &mut of.other))
                }
                Kind::Tag(_) => {
                    let ty = (api.wasm_externtype_as_tagtype_const)(ty);
                    (KIND_TAG, (api.wasmtime_tag_new)(context, ty, &mut of.other))
                }
            }
        };
        if !error.is_null() {
            // SAFETY: the error is one.
            panic!("wasmtime cannot make an import: {}", unsafe { library.error_text(error) });
        }
        Some(Item(RawExtern { kind, of }))
    }

    /// The value as wasmtime gets it. What is rooted for it stays so until the
    /// store goes.
    fn raw(&mut self, value: Value, ty: ValType) -> RawValue {
        let null = Reference { store: 0, private: [0; 2], pointer: 0 };
        let (kind, of) = match value {
            Value::I32(bits) => (0, ValueBits { i32: bits }),
            Value::I64(bits) => (1, ValueBits { i64: bits }),
            Value::F32(bits) => (2, ValueBits { i32: bits }),
            Value::F64(bits) => (3, ValueBits { i64: bits }),
            Value::V128(bits) => (4, ValueBits { v128: bits.to_le_bytes() }),
            Value::Func(number) => {
                let number = number.expect("only known functions are passed");
                (5, ValueBits { function: self.data().by_number[number] })
            }
            Value::Extern(number) => {
                let mut reference = null;
                let data = ptr::without_provenance_mut(number as usize + 1);
                let api = &self.library.api;
                // SAFETY: the data is a number to us alone.
                let made = unsafe {
                    (api.wasmtime_externref_new)(self.context, data, None, &mut reference)
                };
                assert!(made, "wasmtime has no room for a host value");
                (6, ValueBits { reference })
            }
            Value::Null => match ty {
                ValType::Ref(ty) => match target(ty) {
                    Target::Func => (5, ValueBits { function: Function { store: 0, private: 0 } }),
                    Target::Extern => (6, ValueBits { reference: null }),
                    Target::Exception => (8, ValueBits { reference: null }),
                },
                _ => panic!("{ty} has no null"),
            },
            Value::Exception(_) => panic!("exceptions are not passed"),
        };
        RawValue { kind, of }
    }

    fn value_of(&mut self, value: &RawValue, ty: ValType) -> Value {
        // SAFETY: the kind says which of the bits there are.
        unsafe {
            match value.kind {
                0 => Value::I32(value.of.i32),
                1 => Value::I64(value.of.i64),
                2 => Value::F32(value.of.i32),
                3 => Value::F64(value.of.i64),
                4 => Value::V128(u128::from_le_bytes(value.of.v128)),
                5 if value.of.function.store == 0 => Value::Null,
                5 => {
                    let data = self.data();
                    data.state.function(data.functions.get(&value.of.function.private))
                }
                _ if value.of.reference.store == 0 => Value::Null,
                6 => {
                    let reference = value.of.reference;
                    let data = (self.library.api.wasmtime_externref_data)(self.context, &reference);
                    Value::Extern((data.addr() - 1) as u32)
                }
                8 => Value::exception(&self.payload(&value.of.reference)),
                kind => panic!("unknown value of type {ty}: kind {kind}"),
            }
        }
    }

    /// What an exception carries.
    fn payload(&mut self, exception: &Reference) -> Vec<Value> {
        let api = &self.library.api;
        let mut values = Vec::new();
        // SAFETY: the exception is one of this store, with that many fields.
        unsafe {
            for i in 0..(api.wasmtime_exnref_field_count)(self.context, exception) {
                let mut raw = RawValue { kind: 0, of: ValueBits { i32: 0 } };
                let error = (api.wasmtime_exnref_field)(self.context, exception, i, &mut raw);
                assert!(self.library.succeeded(error), "the exception has field {i}");
                values.push(self.take(raw, ValType::I32));
            }
        }
        values
    }

    /// Throws an exception out of a host function, which returns what this returns.
    fn throw(&mut self, tag: &Item, ty: &FuncType, values: &[Value]) -> *mut TrapHandle {
        let tag = tag.other(KIND_TAG);
        let values: Vec<RawValue> =
            values.iter().zip(ty.params()).map(|(value, ty)| self.raw(*value, *ty)).collect();
        let mut exception = Reference { store: 0, private: [0; 2], pointer: 0 };
        let (api, context) = (&self.library.api, self.context);
        // SAFETY: the tag is of this store, and takes these values; the exception is
        // used no more than once.
        unsafe {
            let (first, count) = (values.as_ptr(), values.len());
            let error = (api.wasmtime_exnref_new)(context, &tag, first, count, &mut exception);
            assert!(self.library.succeeded(error), "the exception is valid");
            (api.wasmtime_context_set_exception)(context, &exception)
        }
    }

    /// The same of a value that is ours, whose root goes.
    fn take(&mut self, mut value: RawValue, ty: ValType) -> Value {
        let taken = self.value_of(&value, ty);
        // SAFETY: the value is one, and used no more.
        unsafe { (self.library.api.wasmtime_val_unroot)(&mut value) };
        taken
    }

    /// What an error or a trap means; errors that are none of those known are
    /// `otherwise`.
    ///
    /// # Safety
    /// Both are null, or one that is the caller's alone.
    unsafe fn check(
        &mut self,
        error: *mut ErrorHandle,
        trap: *mut TrapHandle,
        otherwise: Failure,
    ) -> Result<(), Failure> {
        let api = &self.library.api;
        let mut exception = Reference { store: 0, private: [0; 2], pointer: 0 };
        // SAFETY: by this function's contract error and trap are ours. An uncaught exception that
        // caught is with the store, which gives it away once.
        unsafe {
            let mut thrown = None;
            if !(error.is_null() && trap.is_null())
                && (api.wasmtime_context_take_exception)(self.context, &mut exception)
            {
                thrown = Some(Failure::Exception(self.payload(&exception)));
                (api.wasmtime_exnref_unroot)(&mut exception);
            }
            if !error.is_null() {
                let text = self.library.error_text(error);
                return Err(match otherwise {
                    _ if thrown.is_some() => thrown.unwrap_or(Failure::Host),
                    _ if text.contains(HOST_ERROR) => Failure::Host,
                    Failure::Other(_) => Failure::Other(text),
                    known => known,
                });
            }
            if trap.is_null() {
                return Ok(());
            }
            let (mut code, mut text) = (0, Bytes { size: 0, data: ptr::null_mut() });
            let known = (api.wasmtime_trap_code)(trap, &mut code);
            (api.wasm_trap_message)(trap, &mut text);
            (api.wasm_trap_delete)(trap);
            let text = self.library.text(text);
            Err(match (thrown, known) {
                (Some(thrown), _) => thrown,
                (None, true) => trap_failure(code, text),
                (None, false) => Failure::Other(text),
            })
        }
    }
}

fn trap_failure(code: u8, text: String) -> Failure {
    Failure::Trap(match code {
        0 => return Failure::Exhausted("stack"),
        1 => "memory out of bounds",
        3 => "table out of bounds",
        4 => "indirect call to null",
        5 => "indirect call type mismatch",
        6 => "integer overflow",
        7 => "integer division by zero",
        8 => "bad conversion to integer",
        9 => "unreachable",
        13 => "null reference",
        _ => return Failure::Other(text),
    })
}

impl Subject for Access<'_> {
    type Item = Item;

    fn state(&mut self) -> &mut State<Item> {
        &mut self.data().state
    }

    fn call(&mut self, function: &Item, ty: &FuncType, arguments: &[Value]) -> Outcome {
        let function = function.function();
        let pairs = arguments.iter().zip(ty.params());
        let arguments: Vec<RawValue> = pairs.map(|(value, ty)| self.raw(*value, *ty)).collect();
        let empty = RawValue { kind: 0, of: ValueBits { i32: 0 } };
        let mut results = vec![empty; ty.results().len()];
        let mut trap = ptr::null_mut();
        // SAFETY: the function is of this store and of this type; that many values are
        // there, and what comes of it is ours alone.
        unsafe {
            let error = (self.library.api.wasmtime_func_call)(
                self.context,
                &function,
                arguments.as_ptr(),
                arguments.len(),
                results.as_mut_ptr(),
                results.len(),
                &mut trap,
            );
            for mut argument in arguments {
                (self.library.api.wasmtime_val_unroot)(&mut argument);
            }
            self.check(error, trap, Failure::Other(String::new()))?;
        }
        Ok(results.into_iter().zip(ty.results()).map(|(raw, ty)| self.take(raw, *ty)).collect())
    }

    fn global(&mut self, global: &Item) -> Value {
        let mut value = RawValue { kind: 0, of: ValueBits { i32: 0 } };
        let global = global.other(KIND_GLOBAL);
        // SAFETY: the global is of this store.
        unsafe { (self.library.api.wasmtime_global_get)(self.context, &global, &mut value) };
        self.take(value, ValType::I32)
    }

    fn set_global(&mut self, global: &Item, ty: ValType, value: Value) -> bool {
        let value = self.raw(value, ty);
        let global = global.other(KIND_GLOBAL);
        // SAFETY: the global is of this store, and the error is ours.
        unsafe {
            let error = (self.library.api.wasmtime_global_set)(self.context, &global, &value);
            self.library.succeeded(error)
        }
    }

    fn table_length(&mut self, table: &Item) -> u64 {
        let table = table.other(KIND_TABLE);
        // SAFETY: the table is of this store.
        unsafe { (self.library.api.wasmtime_table_size)(self.context, &table) }
    }

    fn element(&mut self, table: &Item, index: u64) -> (Value, Option<Item>) {
        let table = table.other(KIND_TABLE);
        let mut raw = RawValue { kind: 0, of: ValueBits { i32: 0 } };
        let api = &self.library.api;
        // SAFETY: the table is of this store.
        let found = unsafe { (api.wasmtime_table_get)(self.context, &table, index, &mut raw) };
        assert!(found, "the element is within the table");
        let value = self.take(raw, ValType::FUNCREF);
        let item = matches!(value, Value::Func(_)).then(|| {
            // SAFETY: only functions have such values.
            let of = ExternBits { function: unsafe { raw.of.function } };
            Item(RawExtern { kind: KIND_FUNC, of })
        });
        (value, item)
    }

    fn set_element(&mut self, table: &Item, ty: ValType, index: u64, value: Value) -> bool {
        let value = self.raw(value, ty);
        let table = table.other(KIND_TABLE);
        let api = &self.library.api;
        // SAFETY: the table is of this store, and the error is ours.
        unsafe {
            let error = (api.wasmtime_table_set)(self.context, &table, index, &value);
            self.library.succeeded(error)
        }
    }

    fn grow_table(&mut self, table: &Item, ty: ValType, delta: u64, value: Value) -> bool {
        let value = self.raw(value, ty);
        let table = table.other(KIND_TABLE);
        let (api, mut before) = (&self.library.api, 0);
        // SAFETY: the table is of this store, and the error is ours.
        unsafe {
            let error = (api.wasmtime_table_grow)(self.context, &table, delta, &value, &mut before);
            self.library.succeeded(error)
        }
    }

    fn memory(&mut self, memory: &Item) -> &mut [u8] {
        let memory = memory.other(KIND_MEMORY);
        let api = &self.library.api;
        // SAFETY: the memory is of this store, where that many bytes are, and nothing
        // runs in it while it is borrowed.
        unsafe {
            let data = (api.wasmtime_memory_data)(self.context, &memory);
            let size = (api.wasmtime_memory_data_size)(self.context, &memory);
            match size {
                0 => &mut [],
                _ => std::slice::from_raw_parts_mut(data, size),
            }
        }
    }

    fn grow_memory(&mut self, memory: &Item, delta: u64) -> bool {
        let memory = memory.other(KIND_MEMORY);
        let (api, mut before) = (&self.library.api, 0);
        // SAFETY: the memory is of this store, and the error is ours.
        unsafe {
            let error = (api.wasmtime_memory_grow)(self.context, &memory, delta, &mut before);
            self.library.succeeded(error)
        }
    }
}
