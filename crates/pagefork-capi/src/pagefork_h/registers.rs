//! Calls with C's own arguments and results, in both directions: they are in the same registers.

use std::ffi::{c_char, c_void};
use std::ptr;

use pagefork::{
    Caller, Func, FuncType, RegisterCallee, RegisterFunc, RegisterResult, RegisterValues, Result,
    ValType,
};

use crate::base::border::{BorderError, attempt, exported, given};
use crate::objects::callback::{pagefork_caller_t, raised};
use crate::objects::fallible::{OutBox, failed, fallible, make, string};
use crate::objects::host_info::{Finalizer, HostInfo};
use crate::objects::object::{wasm_ref_t, wasm_store_t};
use crate::objects::store::{HostData, StoreCell, StoreRef};

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

/// A C function with its own arguments and result.
pub(super) struct CFunction {
    function: RegisterFunction,
    env: HostInfo,
}

impl CFunction {
    /// A function, whatever its prototype is, with an environment.
    ///
    /// # Errors
    /// If it is null.
    pub(super) fn new(function: Option<RegisterFunction>, env: HostInfo) -> Result<Self> {
        Ok(Self { function: given(function, FUNCTION)?, env })
    }
}

impl RegisterCallee<HostData> for CFunction {
    #[inline(always)]
    fn call(
        &self,
        mut caller: Caller<'_, HostData>,
        values: RegisterValues,
    ) -> Result<RegisterResult> {
        let [i0, i1, i2, i3, i4] = values.ints;
        let [f0, f1, f2, f3, f4, f5, f6, f7] = values.floats;
        let result = StoreCell::in_host_function(&mut caller, |store| {
            let caller = pagefork_caller_t::new(self.env.data(), wasm_store_t::lent(store));
            (self.function)(&caller, i0, i1, i2, i3, i4, f0, f1, f2, f3, f4, f5, f6, f7)
        });
        match caller.data_mut().raised.take() {
            None => Ok(result),
            Some(error) => Err(error),
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
    // SAFETY: the header says that it is called with the typed function that it is of, which is
    // not deleted meanwhile; the parts that are read do not change.
    let (func, store) = unsafe { (&(*this).func, (*this).store.keep()) };
    let values =
        RegisterValues { ints: [i0, i1, i2, i3, i4], floats: [f0, f1, f2, f3, f4, f5, f6, f7] };
    match attempt(|| func.call(&mut store.context()?, values)) {
        Ok(result) => result,
        Err(error) => {
            let error = failed(Some(&store), error);
            // SAFETY: by the header's word nothing else uses the field meanwhile.
            let old = unsafe { ptr::replace(&raw mut (*this).error, error) };
            drop(old);
            RegisterResult::default()
        }
    }
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
            let (ty, function) = (type_of(signature)?, CFunction::new(function, env)?);
            let func = Func::new_with_registers(&mut store.0.context()?, ty, function)?;
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
            let (store, (func, shape)) = (object.store()?, object.func()?);
            let (asked, found) = (type_of(signature)?, store.func_type(shape));
            if asked != *found {
                let text = format!("type mismatch: the function is {found}, expected {asked}");
                return Err(BorderError::Unfit(text).into());
            }
            let func = func.with_registers(&store.context()?)?;
            let store = store.clone();
            Ok(Box::new(pagefork_typed_func_t { call: call_typed, error: None, func, store }))
        })
    }
}

exported! {
    fn pagefork_typed_func_delete(func: Option<Box<pagefork_typed_func_t>>) {
        drop(func);
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
