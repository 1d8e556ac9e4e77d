//! Calls with C's own arguments and results, in both directions: they are in the same registers.

use std::ffi::{c_char, c_void};
use std::mem;
use std::ptr::{self, NonNull};

use pagefork::{
    Caller, ForeignFunction, Func, FuncType, ModuleExport, RegisterCallee, RegisterExport,
    RegisterFunc, RegisterResult, RegisterValues, Result, UsageError, ValType,
};

use crate::base::border::{BorderError, attempt, exported, given, note_error, panicked};
use crate::base::c_box::{CBox, Deletable};
use crate::base::guard::calling_last;
use crate::objects::callback::{pagefork_caller_t, raised};
use crate::objects::fallible::{OutBox, OutCBox, failed, fallible, make, string, text};
use crate::objects::host_functions::has_floats;
use crate::objects::host_info::{Finalizer, HostInfo};
use crate::objects::linker::pagefork_instance_pre_t;
use crate::objects::object::{wasm_ref_t, wasm_store_t};
use crate::objects::store::{HostData, StoreCell, StoreRef};
use crate::pagefork_h::fresh::FreshExport;
use crate::pagefork_h::functions::no_export;
use crate::pagefork_h::spawn::{PRE, Spawning, pagefork_spawn_t};

/// What is null, if it is.
const FUNCTION: &str = "function";

/// A C function of any prototype whose arguments and result are in registers: those that it has
/// none in it does not look at.
pub(super) type RegisterFunction = extern "C-unwind" fn(
    *const pagefork_caller_t,
    u64,
    u64,
    u64,
    u64,
    u64,
    f64,
    f64,
    f64,
    f64,
    f64,
    f64,
    f64,
    f64,
) -> RegisterResult;

/// What calls such a function.
type GuardedFunction = extern "C" fn(
    *const pagefork_caller_t,
    u64,
    u64,
    u64,
    u64,
    u64,
    f64,
    f64,
    f64,
    f64,
    f64,
    f64,
    f64,
    f64,
    RegisterFunction,
) -> RegisterResult;

/// What calls one of a prototype without floats.
type GuardedIntFunction = extern "C" fn(
    *const pagefork_caller_t,
    u64,
    u64,
    u64,
    u64,
    u64,
    RegisterFunction,
) -> RegisterResult;

/// A C function with its own arguments and result. Registers of floats are passed on if there are
/// any: to keep them across what comes before the call is most of what that costs.
pub(super) struct CFunction<const HAS_FLOATS: bool> {
    function: RegisterFunction,
    env: HostInfo,
}

/// A C function of a type that a signature says.
pub(super) enum AnyCFunction {
    /// With floats among its parameters.
    Floats(FuncType, CFunction<true>),
    /// Without.
    Ints(FuncType, CFunction<false>),
}

impl AnyCFunction {
    /// A function, whatever its prototype is, with an environment.
    ///
    /// # Errors
    /// If it is null, or the signature is none.
    pub(super) fn new(
        signature: *const c_char,
        function: Option<RegisterFunction>,
        env: HostInfo,
    ) -> Result<Self> {
        let (ty, function) = (type_of(signature)?, given(function, FUNCTION)?);
        Ok(match has_floats(&ty) {
            true => Self::Floats(ty, CFunction { function, env }),
            false => Self::Ints(ty, CFunction { function, env }),
        })
    }
}

impl<const HAS_FLOATS: bool> RegisterCallee<HostData> for CFunction<HAS_FLOATS> {
    const HAS_FLOATS: bool = HAS_FLOATS;

    #[inline(always)]
    fn call(
        &self,
        mut caller: Caller<'_, HostData>,
        values: RegisterValues,
    ) -> Result<RegisterResult> {
        let [i0, i1, i2, i3, i4] = values.ints;
        StoreCell::with_caller(&mut caller, self.env.data(), |cell, caller| {
            let function = self.function;
            let result = match HAS_FLOATS {
                true => {
                    let [f0, f1, f2, f3, f4, f5, f6, f7] = values.floats;
                    // SAFETY: the function takes what there is before it, as far as it has it, and returns so.
                    let call = unsafe { calling_last::<GuardedFunction>() };
                    call(caller, i0, i1, i2, i3, i4, f0, f1, f2, f3, f4, f5, f6, f7, function)
                }
                false => {
                    // SAFETY: the function takes the words before it, as far as it has them, and no float, and
                    // returns so.
                    let call = unsafe { calling_last::<GuardedIntFunction>() };
                    call(caller, i0, i1, i2, i3, i4, function)
                }
            };
            // It may be that it is to be called later, which is for who has called this.
            cell.take_raised().map_or(Ok(result), Err)
        })?
    }

    fn foreign(&self) -> Option<ForeignFunction<HostData>> {
        // SAFETY: by the header's word it is of the type that its signature says, takes a caller first, which
        // is those two words, is there as long as what it was made with, and returns.
        Some(unsafe { ForeignFunction::new(self.function as *const (), self.env.data()) })
    }
}

/// The letters of a signature: those of parameters, and of results behind a colon.
fn letters<'a>(signature: *const c_char) -> Result<(&'a [u8], &'a [u8])> {
    let text = string(signature, "signature")?;
    Ok(match text.iter().position(|letter| *letter == b':') {
        Some(at) => (&text[..at], &text[at + 1..]),
        None => (text, &[]),
    })
}

/// The type of values that a letter says.
fn value_type(letter: u8) -> Option<ValType> {
    Some(match letter {
        b'i' => ValType::I32,
        b'I' => ValType::I64,
        b'f' => ValType::F32,
        b'F' => ValType::F64,
        _ => return None,
    })
}

/// The type that a signature says: a letter a value, results behind a colon.
///
/// # Errors
/// If there is another letter.
pub(super) fn type_of(signature: *const c_char) -> Result<FuncType> {
    let (params, results) = letters(signature)?;
    let value = |letter: &u8| {
        value_type(*letter).ok_or_else(|| {
            BorderError::Unfit(format!(
                "{:?} in a signature: i and I are integers of 32 and 64 bits, f and F floats",
                char::from(*letter)
            ))
        })
    };
    let list = |letters: &[u8]| letters.iter().map(value).collect::<Result<Vec<_>, _>>();
    Ok(FuncType::new(list(params)?, list(results)?))
}

/// The letter of a type in signatures; 0 if it has none.
fn letter_of(ty: ValType) -> u8 {
    match ty {
        ValType::I32 => b'i',
        ValType::I64 => b'I',
        ValType::F32 => b'f',
        ValType::F64 => b'F',
        _ => 0,
    }
}

/// Whether a function is of the type that a signature says.
///
/// # Safety
/// The signature is a string with a zero behind.
unsafe fn is_of_type(ty: &FuncType, signature: *const c_char) -> bool {
    let mut next = signature.cast::<u8>();
    let mut says = |letter: u8| {
        // SAFETY: by this function's contract: nothing is read behind what is not as it should be, as the zero
        // is not, but where all ends.
        let is = unsafe { *next } == letter;
        if is && letter != 0 {
            // SAFETY: it is no zero, so there is another one.
            next = unsafe { next.add(1) };
        }
        is
    };
    ty.params.iter().all(|ty| letter_of(*ty) != 0 && says(letter_of(*ty)))
        && match &*ty.results {
            [] => says(0) || says(b':') && says(0),
            results => {
                says(b':')
                    && results.iter().all(|ty| letter_of(*ty) != 0 && says(letter_of(*ty)))
                    && says(0)
            }
        }
}

/// A function that C calls by a pointer to a function.
///
/// The header shows the first two fields.
#[repr(C)]
pub(super) struct pagefork_typed_func_t {
    call: RegisterCall,
    error: Option<CBox<wasm_ref_t>>,
    /// Absent once C has deleted the function, as is seen until something else is in its place; and
    /// where each call has a store of its own.
    store: Option<StoreRef>,
    callee: TypedCallee,
}

/// What a typed function calls. It is known from the function that C calls.
enum TypedCallee {
    /// A function of the store.
    Own(RegisterFunc),
    /// One of a fresh instance each time.
    Fresh(Box<FreshExport>),
    /// None: the typed function was deleted.
    Deleted,
}

impl Deletable for pagefork_typed_func_t {
    #[inline]
    unsafe fn delete(this: NonNull<Self>) {
        // SAFETY: by this function's contract C has given it away.
        let deleted = unsafe { &mut *this.as_ptr() };
        let (TypedCallee::Own(_), None, Some(store)) =
            (&deleted.callee, &deleted.error, &mut deleted.store)
        else {
            // SAFETY: by this function's contract.
            return unsafe { delete_more(this) };
        };
        // SAFETY: it is read once: nothing is left there.
        let store = unsafe { ptr::read(store) };
        // SAFETY: it is a place of the store's, which is there; what was in it has nothing to drop any more.
        unsafe {
            (&raw mut deleted.store).write(None);
            (&raw mut deleted.callee).write(TypedCallee::Deleted);
            deleted.call = call_of_deleted();
            StoreRef::give_place_back(Some(&store), this);
        }
    }
}

/// Deletes a typed function that has more than a function of its store, or was deleted.
///
/// # Safety
/// As of [`Deletable::delete`].
#[cold]
#[inline(never)]
unsafe fn delete_more(this: NonNull<pagefork_typed_func_t>) {
    // SAFETY: by this function's contract C has given it away.
    let deleted = unsafe { &mut *this.as_ptr() };
    let callee = mem::replace(&mut deleted.callee, TypedCallee::Deleted);
    if matches!(callee, TypedCallee::Deleted) {
        return note_deleted();
    }
    deleted.call = call_of_deleted();
    let (store, error) = (deleted.store.take(), deleted.error.take());
    // SAFETY: what was in it is moved out, and nothing leads to it any more.
    unsafe { StoreRef::give_place_back(store.as_ref(), this) };
    drop((error, callee));
}

/// What C calls once it has deleted the function.
fn call_of_deleted() -> RegisterCall {
    // SAFETY: it looks at none of its arguments.
    unsafe { mem::transmute::<DeletedCall, RegisterCall>(call_deleted) }
}

/// What C calls as a function of the type's prototype, with the typed function before its
/// arguments.
type RegisterCall = extern "C" fn(
    *mut pagefork_typed_func_t,
    u64,
    u64,
    u64,
    u64,
    u64,
    f64,
    f64,
    f64,
    f64,
    f64,
    f64,
    f64,
    f64,
) -> RegisterResult;

/// The same, of a type without floats among its parameters.
type IntCall = extern "C" fn(*mut pagefork_typed_func_t, u64, u64, u64, u64, u64) -> RegisterResult;

#[allow(clippy::too_many_arguments, reason = "each is a register")]
extern "C" fn call_typed<const FRESH: bool>(
    this: *mut pagefork_typed_func_t,
    i0: u64,
    i1: u64,
    i2: u64,
    i3: u64,
    i4: u64,
    f0: f64,
    f1: f64,
    f2: f64,
    f3: f64,
    f4: f64,
    f5: f64,
    f6: f64,
    f7: f64,
) -> RegisterResult {
    let (ints, floats) = ([i0, i1, i2, i3, i4], [f0, f1, f2, f3, f4, f5, f6, f7]);
    // SAFETY: by the header's word.
    unsafe { call_with::<FRESH>(this, RegisterValues { ints, floats }) }
}

extern "C" fn call_ints<const FRESH: bool>(
    this: *mut pagefork_typed_func_t,
    i0: u64,
    i1: u64,
    i2: u64,
    i3: u64,
    i4: u64,
) -> RegisterResult {
    let values = RegisterValues { ints: [i0, i1, i2, i3, i4], floats: [0.0; 8] };
    // SAFETY: by the header's word.
    unsafe { call_with::<FRESH>(this, values) }
}

/// What C calls for a type with floats among its parameters, or without.
fn register_call<const FRESH: bool>(has_floats: bool) -> RegisterCall {
    match has_floats {
        true => call_typed::<FRESH>,
        // SAFETY: C calls it as a function of its type, with nothing in registers of floats.
        false => unsafe { mem::transmute::<IntCall, RegisterCall>(call_ints::<FRESH>) },
    }
}

/// What is wrong with a typed function that was deleted.
const DELETED: &str = "the typed function was deleted";

/// A call of a function that was deleted.
type DeletedCall = extern "C" fn() -> RegisterResult;

extern "C" fn call_deleted() -> RegisterResult {
    note_deleted();
    RegisterResult::default()
}

#[cold]
fn note_deleted() {
    note_error(BorderError::Unfit(DELETED.to_owned()).into());
}

/// # Safety
/// It is the typed function that C has called, which is not deleted meanwhile; `FRESH` if it calls
/// a fresh instance.
#[inline(always)]
unsafe fn call_with<const FRESH: bool>(
    this: *mut pagefork_typed_func_t,
    values: RegisterValues,
) -> RegisterResult {
    // SAFETY: by this function's contract the part that is read does not change.
    match unsafe { &(*this).callee } {
        // SAFETY: by this function's contract.
        TypedCallee::Own(func) if !FRESH => unsafe { call_own(this, func, values) },
        // SAFETY: by this function's contract.
        TypedCallee::Fresh(export) if FRESH => unsafe { call_fresh(this, export, values) },
        // SAFETY: by this function's contract: C calls another function once it was deleted.
        _ => unsafe { std::hint::unreachable_unchecked() },
    }
}

/// # Safety
/// As of [`call_with`], of a function of a store.
#[inline(always)]
unsafe fn call_own(
    this: *mut pagefork_typed_func_t,
    func: &RegisterFunc,
    values: RegisterValues,
) -> RegisterResult {
    // SAFETY: by this function's contract there is a store; the part that is read does not change.
    let store = unsafe { (*this).store.as_ref().unwrap_unchecked().keep() };
    let mut context = match store.any_context() {
        Ok(context) => context,
        // SAFETY: by this function's contract.
        Err(error) => return unsafe { call_own_failed(this, error) },
    };
    func.call_then(&mut context, values, |called| match called {
        Ok(Ok(result)) => result,
        // SAFETY: by this function's contract.
        Ok(Err(error)) => unsafe { call_own_failed(this, error) },
        // SAFETY: by this function's contract.
        Err(payload) => unsafe { call_own_failed(this, panicked(&*payload)) },
    })
}

/// # Safety
/// As of [`call_with`], of a call that has failed.
#[cold]
#[inline(never)]
unsafe fn call_own_failed(
    this: *mut pagefork_typed_func_t,
    error: pagefork::Error,
) -> RegisterResult {
    // SAFETY: by this function's contract; nothing else uses the function's store meanwhile.
    unsafe { call_failed(this, (*this).store.as_ref(), error) }
}

/// # Safety
/// As of [`call_with`], of a function of fresh instances.
#[inline(always)]
unsafe fn call_fresh(
    this: *mut pagefork_typed_func_t,
    export: &FreshExport,
    values: RegisterValues,
) -> RegisterResult {
    let (mut store, mut result) = (None, RegisterResult::default());
    // What a panic may come from is apart: so the values are not moved for it.
    match attempt(|| export.call(&mut store, &values, &mut result)) {
        Ok(()) => result,
        // SAFETY: by this function's contract.
        Err(error) => unsafe { call_failed(this, store.as_ref(), error) },
    }
}

/// # Safety
/// As of [`call_with`].
#[cold]
#[inline(never)]
unsafe fn call_failed(
    this: *mut pagefork_typed_func_t,
    store: Option<&StoreRef>,
    error: pagefork::Error,
) -> RegisterResult {
    let error = failed(store, error);
    // SAFETY: by the header's word nothing else uses the field meanwhile.
    let old = unsafe { ptr::replace(&raw mut (*this).error, error) };
    drop(old);
    RegisterResult::default()
}

/// A function of this store, to be called by C. Always inline: it is made where it stays, part by part. What is
/// copied right after it was written is read in wider parts, for which a processor waits.
#[inline(always)]
fn typed(func: RegisterFunc, has_floats: bool, store: &StoreRef) -> CBox<pagefork_typed_func_t> {
    let (call, callee) = (register_call::<false>(has_floats), TypedCallee::Own(func));
    let (error, own) = (None, Some(store.clone()));
    let place = store.place(pagefork_typed_func_t { call, error, store: own, callee });
    // SAFETY: it is new, and in a place of its own.
    unsafe { CBox::new(place) }
}

/// A function of this store, to be called by C as one of the type that a signature says.
///
/// # Errors
/// If it is of another type, whose values may not fit registers.
#[inline(always)]
fn typed_as(
    func: &Func,
    signature: *const c_char,
    store: &StoreRef,
) -> Result<CBox<pagefork_typed_func_t>> {
    given((!signature.is_null()).then_some(()), "signature")?;
    let mut context = store.context()?;
    // First: nothing is at hand that would have to be kept meanwhile.
    context.expect_calls();
    // SAFETY: by the header's word it is a string with a zero behind.
    let is = |ty: &FuncType| unsafe { is_of_type(ty, signature) };
    match func.with_registers_if(&context, is)? {
        Some(func) => Ok(typed(func, func.has_floats(), store)),
        None => Err(other_type(func, signature, store)),
    }
}

/// A function is of another type than a signature says.
#[cold]
fn other_type(func: &Func, signature: *const c_char, store: &StoreRef) -> pagefork::Error {
    let says = || -> Result<_> {
        let (asked, found) = (type_of(signature)?, func.ty(&store.context()?));
        Ok(format!("type mismatch: the function is {found}, expected {asked}"))
    };
    says().map_or_else(|error| error, |text| BorderError::Unfit(text).into())
}

/// A function of fresh instances, to be called by C.
fn fresh(export: FreshExport, has_floats: bool) -> CBox<pagefork_typed_func_t> {
    let (call, callee) = (register_call::<true>(has_floats), TypedCallee::Fresh(Box::new(export)));
    let func = Box::new(pagefork_typed_func_t { call, error: None, store: None, callee });
    // SAFETY: it is new; `delete` frees the box of what has no store.
    unsafe { CBox::new(NonNull::from(Box::leak(func))) }
}

/// Where an export is in all instances of a module, and of what type it is if it was said.
struct pagefork_export_t {
    place: ModuleExport,
    typed: Option<(RegisterExport, bool)>,
}

fallible! {
    fn pagefork_func_wrap(
        store: Option<&wasm_store_t>,
        signature: *const c_char,
        function: Option<RegisterFunction>,
        env: *mut c_void,
        finalizer: Option<Finalizer>,
        out: OutCBox<'_, wasm_ref_t>,
    ) {
        let env = HostInfo::new(env, finalizer);
        make(out, || {
            let store = given(store, "store")?;
            let function = AnyCFunction::new(signature, function, env)?;
            let mut context = store.0.context()?;
            let func = match function {
                AnyCFunction::Floats(ty, function) => {
                    Func::new_with_registers(&mut context, ty, function)?
                }
                AnyCFunction::Ints(ty, function) => {
                    Func::new_with_registers(&mut context, ty, function)?
                }
            };
            store.0.own_func(func)
        })
    }

    fn pagefork_func_typed(
        func: Option<&wasm_ref_t>,
        signature: *const c_char,
        out: OutCBox<'_, pagefork_typed_func_t>,
    ) {
        make(out, || {
            let object = given(func, FUNCTION)?;
            typed_as(object.bare_func()?, signature, object.store()?)
        })
    }

    fn pagefork_instance_typed_func(
        instance: Option<&wasm_ref_t>,
        name: *const c_char,
        signature: *const c_char,
        out: OutCBox<'_, pagefork_typed_func_t>,
    ) {
        make(out, || {
            let instance = given(instance, "instance")?;
            let (store, name) = (instance.store()?, text(name, "name")?);
            let found = instance.instance()?.get_func(&mut store.context()?, name);
            let none = || UsageError::NoExport { kind: "function", name: name.to_owned() };
            typed_as(&found.ok_or_else(none)?, signature, store)
        })
    }

    fn pagefork_module_export(
        module: Option<&wasm_ref_t>,
        name: *const c_char,
        signature: *const c_char,
        out: OutBox<'_, pagefork_export_t>,
    ) {
        make(out, || {
            let (module, name) = (&given(module, "module")?.module()?.module, text(name, "name")?);
            let place = module.get_export_index(name).ok_or_else(|| no_export(name))?;
            let typed = match signature.is_null() {
                true => None,
                false => {
                    let ty = type_of(signature)?;
                    Some((module.get_register_export(name, &ty)?, has_floats(&ty)))
                }
            };
            Ok(Box::new(pagefork_export_t { place, typed }))
        })
    }

    fn pagefork_instance_export_at(
        instance: Option<&wasm_ref_t>,
        export: Option<&pagefork_export_t>,
        out: OutCBox<'_, wasm_ref_t>,
    ) {
        make(out, || {
            let (instance, export) = (given(instance, "instance")?, given(export, "export")?);
            let store = instance.store()?;
            let found = instance.instance()?.get_module_export(&mut store.context()?, &export.place);
            let other = || BorderError::Unfit("the export is one of another module".to_owned());
            store.own_extern(found.ok_or_else(other)?)
        })
    }

    fn pagefork_instance_typed_export(
        instance: Option<&wasm_ref_t>,
        export: Option<&pagefork_export_t>,
        out: OutCBox<'_, pagefork_typed_func_t>,
    ) {
        make(out, || {
            let (instance, export) = (given(instance, "instance")?, given(export, "export")?);
            let store = instance.store()?;
            let (place, has_floats) = given(export.typed.as_ref(), "signature of the export")?;
            let mut context = store.context()?;
            // First: nothing is at hand that would have to be kept meanwhile.
            context.expect_calls();
            let func = instance.instance()?.get_register_export(&context, place)?;
            Ok(typed(func, *has_floats, store))
        })
    }

    fn pagefork_instance_pre_typed_export(
        pre: Option<&pagefork_instance_pre_t>,
        how: Option<&pagefork_spawn_t<'_>>,
        data: *mut c_void,
        export: Option<&pagefork_export_t>,
        out: OutCBox<'_, pagefork_typed_func_t>,
    ) {
        make(out, || {
            let (pre, export) = (given(pre, PRE)?, given(export, "export")?);
            let (place, has_floats) = given(export.typed.as_ref(), "signature of the export")?;
            Ok(fresh(FreshExport::new(pre, &Spawning::of(how)?, data, *place)?, *has_floats))
        })
    }
}

exported! {
    fn pagefork_typed_func_delete(func: Option<CBox<pagefork_typed_func_t>>) {
        drop(func);
        Ok(())
    }

    fn pagefork_export_delete(export: Option<Box<pagefork_export_t>>) {
        drop(export);
        Ok(())
    }

    fn pagefork_raise(
        caller: Option<&pagefork_caller_t>,
        error: Option<CBox<wasm_ref_t>>,
    ) {
        let error = raised(&*given(error, "error")?);
        given(caller, "caller")?.store().0.raise(error)
    }
}
