//! Calls with C's own arguments and results, in both directions: they are in the same registers.

use std::ffi::{c_char, c_void};
use std::ptr;

use pagefork::{
    Caller, Func, FuncType, ModuleExport, RegisterCallee, RegisterExport, RegisterFunc,
    RegisterResult, RegisterValues, Result, ValType,
};

use crate::base::border::{BorderError, attempt, exported, given};
use crate::objects::callback::{pagefork_caller_t, raised};
use crate::objects::fallible::{OutBox, failed, fallible, make, string, text};
use crate::objects::host_info::{Finalizer, HostInfo};
use crate::objects::object::{wasm_ref_t, wasm_store_t};
use crate::objects::store::{HostData, StoreCell, StoreRef};
use crate::pagefork_h::functions::no_export;

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

/// The same, of a prototype without floats.
type IntFunction =
    extern "C-unwind" fn(*const pagefork_caller_t, u64, u64, u64, u64, u64) -> RegisterResult;

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

/// Whether there are floats among the parameters.
fn has_floats(ty: &FuncType) -> bool {
    ty.params.iter().any(|ty| matches!(ty, ValType::F32 | ValType::F64))
}

impl<const HAS_FLOATS: bool> RegisterCallee<HostData> for CFunction<HAS_FLOATS> {
    #[inline(always)]
    fn call(
        &self,
        mut caller: Caller<'_, HostData>,
        values: RegisterValues,
    ) -> Result<RegisterResult> {
        let [i0, i1, i2, i3, i4] = values.ints;
        let result = StoreCell::in_host_function(&mut caller, |store| {
            let caller = pagefork_caller_t::new(self.env.data(), wasm_store_t::lent(store));
            match HAS_FLOATS {
                true => {
                    let [f0, f1, f2, f3, f4, f5, f6, f7] = values.floats;
                    (self.function)(&caller, i0, i1, i2, i3, i4, f0, f1, f2, f3, f4, f5, f6, f7)
                }
                false => {
                    // SAFETY: the function has no float among its parameters, so that it looks at
                    // no register for them.
                    let function = unsafe {
                        std::mem::transmute::<RegisterFunction, IntFunction>(self.function)
                    };
                    function(&caller, i0, i1, i2, i3, i4)
                }
            }
        });
        match caller.data().raised.is_some() {
            false => Ok(result),
            true => caller.data_mut().raised.take().map_or(Ok(result), Err),
        }
    }
}

/// The type that a signature says: a letter a value, results behind a colon.
///
/// # Errors
/// If there is another letter.
pub(super) fn type_of(signature: *const c_char) -> Result<FuncType> {
    let text = string(signature, "signature")?;
    let (params, results) = match text.iter().position(|letter| *letter == b':') {
        Some(at) => (&text[..at], &text[at + 1..]),
        None => (text, &[][..]),
    };
    let value = |letter: &u8| match letter {
        b'i' => Ok(ValType::I32),
        b'I' => Ok(ValType::I64),
        b'f' => Ok(ValType::F32),
        b'F' => Ok(ValType::F64),
        other => Err(BorderError::Unfit(format!(
            "{:?} in a signature: i and I are integers of 32 and 64 bits, f and F floats",
            char::from(*other)
        ))),
    };
    let list = |letters: &[u8]| letters.iter().map(value).collect::<Result<Vec<_>, _>>();
    Ok(FuncType::new(list(params)?, list(results)?))
}

/// A function that C calls by a pointer to a function.
///
/// The header shows the first two fields.
#[repr(C)]
pub(super) struct pagefork_typed_func_t {
    call: RegisterCall,
    error: Option<Box<wasm_ref_t>>,
    func: RegisterFunc,
    store: StoreRef,
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
extern "C" fn call_typed(
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
    unsafe { call_with(this, RegisterValues { ints, floats }) }
}

extern "C" fn call_ints(
    this: *mut pagefork_typed_func_t,
    i0: u64,
    i1: u64,
    i2: u64,
    i3: u64,
    i4: u64,
) -> RegisterResult {
    // SAFETY: by the header's word.
    unsafe { call_with(this, RegisterValues { ints: [i0, i1, i2, i3, i4], floats: [0.0; 8] }) }
}

/// # Safety
/// It is the typed function that C has called, which is not deleted meanwhile.
#[inline(always)]
unsafe fn call_with(this: *mut pagefork_typed_func_t, values: RegisterValues) -> RegisterResult {
    // SAFETY: by this function's contract; the parts that are read do not change.
    let (func, store) = unsafe { (&(*this).func, (*this).store.keep()) };
    match attempt(|| func.call(&mut store.context()?, values)) {
        Ok(result) => result,
        Err(error) => {
            // SAFETY: by this function's contract.
            unsafe { call_failed(this, &store, error) };
            RegisterResult::default()
        }
    }
}

/// # Safety
/// As of [`call_with`].
#[cold]
#[inline(never)]
unsafe fn call_failed(this: *mut pagefork_typed_func_t, store: &StoreRef, error: pagefork::Error) {
    let error = failed(Some(store), error);
    // SAFETY: by the header's word nothing else uses the field meanwhile.
    let old = unsafe { ptr::replace(&raw mut (*this).error, error) };
    drop(old);
}

/// A function of this store, to be called by C.
fn typed(func: RegisterFunc, has_floats: bool, store: &StoreRef) -> Box<pagefork_typed_func_t> {
    let call = match has_floats {
        true => call_typed,
        // SAFETY: C calls it as a function of its type, with nothing in registers of floats.
        false => unsafe { std::mem::transmute::<IntCall, RegisterCall>(call_ints) },
    };
    Box::new(pagefork_typed_func_t { call, error: None, func, store: store.clone() })
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
        out: OutBox<'_, wasm_ref_t>,
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
        out: OutBox<'_, pagefork_typed_func_t>,
    ) {
        make(out, || {
            let object = given(func, FUNCTION)?;
            let (store, func) = (object.store()?, object.bare_func()?);
            let context = store.context()?;
            let (asked, found) = (type_of(signature)?, func.ty(&context));
            if asked != found {
                let text = format!("type mismatch: the function is {found}, expected {asked}");
                return Err(BorderError::Unfit(text).into());
            }
            Ok(typed(func.with_registers(&context)?, has_floats(&asked), store))
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
        out: OutBox<'_, wasm_ref_t>,
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
        out: OutBox<'_, pagefork_typed_func_t>,
    ) {
        make(out, || {
            let (instance, export) = (given(instance, "instance")?, given(export, "export")?);
            let store = instance.store()?;
            let (place, has_floats) = given(export.typed.as_ref(), "signature of the export")?;
            let func = instance.instance()?.get_register_export(&store.context()?, place)?;
            Ok(typed(func, *has_floats, store))
        })
    }
}

exported! {
    fn pagefork_typed_func_delete(func: Option<Box<pagefork_typed_func_t>>) {
        drop(func);
        Ok(())
    }

    fn pagefork_export_delete(export: Option<Box<pagefork_export_t>>) {
        drop(export);
        Ok(())
    }

    fn pagefork_raise(
        caller: Option<&pagefork_caller_t>,
        error: Option<Box<wasm_ref_t>>,
    ) {
        let error = raised(&*given(error, "error")?);
        given(caller, "caller")?.store().0.context()?.data_mut().raised = Some(error);
        Ok(())
    }
}
