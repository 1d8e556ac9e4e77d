//! Calls that may end suspended, and what becomes of the guest then.

use std::mem::MaybeUninit;

use pagefork::{CallProgress, Result, SuspendedAt, SuspendedCall, Val};

use crate::base::border::{border, exported, given};
use crate::base::c_box::CBox;
use crate::objects::callback::{given_values, pagefork_caller_t, raised, wrong_count};
use crate::objects::fallible::{OutCBox, elements, fallible, outcome_in, places};
use crate::objects::object::{Object, wasm_ref_t, wasm_store_t};
use crate::objects::store::StoreRef;
use crate::objects::trap::TrapObject;
use crate::objects::value::{CValue, OwnedValues, pagefork_val_t};

/// What is null, if it is.
const CALLER: &str = "caller";
/// What is null, if it is.
const PROGRESS: &str = "place for whether the guest is suspended";
/// What is null, if it is.
const STORE: &str = "store";

/// Where C is told whether a guest is suspended.
type SuspendedOut<'a> = Option<&'a mut MaybeUninit<bool>>;

/// The number by which the header says where a guest is suspended.
fn place_of(suspended: Option<&SuspendedCall>) -> u8 {
    match suspended.map(SuspendedCall::at) {
        None => 0,
        Some(SuspendedAt::BeforeHostCall) => 1,
        Some(SuspendedAt::AfterHostCall) => 2,
        Some(_) => 3,
    }
}

/// Gives C what a call has come to.
///
/// # Errors
/// If there are not as many places as the function has results.
fn tell(
    store: &StoreRef,
    progress: CallProgress,
    results: &mut [MaybeUninit<pagefork_val_t>],
    is_suspended: &mut bool,
) -> Result<()> {
    let values = match progress {
        CallProgress::Finished(values) => values,
        CallProgress::Suspended => {
            *is_suspended = true;
            return Ok(());
        }
    };
    if values.len() != results.len() {
        return Err(wrong_count("places for results", values.len(), results.len()));
    }
    let mut own = OwnedValues(Vec::with_capacity(values.len()));
    for value in values {
        own.0.push(pagefork_val_t::of_val(value, store)?);
    }
    for (place, value) in results.iter_mut().zip(own.0.drain(..)) {
        place.write(value);
    }
    Ok(())
}

// SAFETY: the name is declared in our header, and begins as ours do.
#[unsafe(no_mangle)]
extern "C" fn pagefork_func_call_suspendable(
    func: Option<&wasm_ref_t>,
    args: *const pagefork_val_t,
    arg_count: usize,
    results: *mut pagefork_val_t,
    result_count: usize,
    is_suspended: SuspendedOut<'_>,
) -> Option<CBox<wasm_ref_t>> {
    let is_suspended = is_suspended.map(|place| place.write(false));
    let store = given(func, "function").and_then(|func| func.store());
    outcome_in(store, |store| {
        let is_suspended = given(is_suspended, PROGRESS)?;
        let (func, shape) = given(func, "function")?.func()?;
        // A copy: the object may be deleted during the call.
        let (func, ty) = (*func, store.func_type(shape));
        if ty.results.len() != result_count {
            return Err(wrong_count("places for results", ty.results.len(), result_count));
        }
        let results = places(results, result_count)?;
        let params = given_values(elements(args, arg_count)?, ty, store)?;
        let progress = func.call_suspendable(&mut store.context()?, &params)?;
        tell(store, progress, results, is_suspended)
    })
}

// SAFETY: the name is declared in our header, and begins as ours do.
#[unsafe(no_mangle)]
extern "C" fn pagefork_store_resume(
    store: Option<&wasm_store_t>,
    results: *mut pagefork_val_t,
    result_count: usize,
    is_suspended: SuspendedOut<'_>,
) -> Option<CBox<wasm_ref_t>> {
    let is_suspended = is_suspended.map(|place| place.write(false));
    outcome_in(given(store, STORE).map(|store| &store.0), |store| {
        let is_suspended = given(is_suspended, PROGRESS)?;
        let results = places(results, result_count)?;
        let progress = store.with_store(|store| store.resume())?;
        tell(store, progress, results, is_suspended)
    })
}

// SAFETY: the name is declared in our header, and begins as ours do.
#[unsafe(no_mangle)]
extern "C" fn pagefork_store_resume_with(
    store: Option<&wasm_store_t>,
    values: *const pagefork_val_t,
    value_count: usize,
    error: Option<CBox<wasm_ref_t>>,
    results: *mut pagefork_val_t,
    result_count: usize,
    is_suspended: SuspendedOut<'_>,
) -> Option<CBox<wasm_ref_t>> {
    let is_suspended = is_suspended.map(|place| place.write(false));
    outcome_in(given(store, STORE).map(|store| &store.0), |store| {
        let is_suspended = given(is_suspended, PROGRESS)?;
        let results = places(results, result_count)?;
        let awaited = match &error {
            Some(_) => Vec::new(),
            None => awaited_results(store, elements(values, value_count)?)?,
        };
        let awaited = match &error {
            Some(error) => Err(raised(error)),
            None => Ok(&awaited[..]),
        };
        let progress = store.with_store(|store| store.resume_with(awaited))?;
        tell(store, progress, results, is_suspended)
    })
}

/// Values of C's as results of the host function that the suspended guest waits for.
///
/// # Errors
/// If they are not of the function's type.
fn awaited_results(store: &StoreRef, values: &[pagefork_val_t]) -> Result<Vec<Val>> {
    let suspended = store.with_store(|store| Ok(store.suspended()))?;
    let Some(function) = suspended.and_then(|suspended| suspended.host_function()) else {
        // The runtime says that there is no such guest.
        return Ok(Vec::new());
    };
    let ty = function.ty(&store.context()?);
    if ty.results.len() != values.len() {
        return Err(wrong_count("results", ty.results.len(), values.len()));
    }
    values.iter().zip(&ty.results).map(|(value, ty)| value.to_val(*ty, store)).collect()
}

fallible! {
    fn pagefork_store_abandon(store: Option<&wasm_store_t>) {
        given(store, STORE)?.0.with_store(|store| {
            store.abandon();
            Ok(())
        })
    }

    fn pagefork_store_suspended_call(
        store: Option<&wasm_store_t>,
        func: OutCBox<'_, wasm_ref_t>,
        args: *mut pagefork_val_t,
        arg_count: usize,
    ) {
        let out = given(func, "place for the function")?.write(None);
        let store = &given(store, STORE)?.0;
        let suspended = store.with_store(|store| Ok(store.suspended()))?;
        let call = suspended.as_ref().and_then(|call| Some((call.host_function()?, call)));
        let (function, call) = given(call, "call that the store's guest is suspended before")?;
        let values = call.arguments();
        if arg_count != values.len() {
            return Err(wrong_count("places for arguments", values.len(), arg_count));
        }
        let mut own = OwnedValues(Vec::with_capacity(values.len()));
        for value in values {
            own.0.push(pagefork_val_t::of_val(*value, store)?);
        }
        let function = store.own_func(function)?;
        for (place, value) in places(args, arg_count)?.iter_mut().zip(own.0.drain(..)) {
            place.write(value);
        }
        *out = Some(function);
        Ok(())
    }

    fn pagefork_caller_suspend_after(caller: Option<&pagefork_caller_t>) {
        given(caller, CALLER)?.store().0.any_context()?.suspend_after()
    }
}

exported! {
    fn pagefork_store_suspended_at(store: Option<&wasm_store_t>) -> u8 {
        let suspended = given(store, STORE)?.0.with_store(|store| Ok(store.suspended()))?;
        Ok(place_of(suspended.as_ref()))
    }

    fn pagefork_caller_can_suspend(caller: Option<&pagefork_caller_t>) -> bool {
        Ok(given(caller, CALLER)?.store().0.any_context()?.can_suspend())
    }
}

// SAFETY: the name is declared in our header, and begins as ours do.
#[unsafe(no_mangle)]
extern "C" fn pagefork_caller_suspend_before(
    caller: Option<&pagefork_caller_t>,
) -> Option<CBox<wasm_ref_t>> {
    border(|| {
        let error = given(caller, CALLER)?.store().0.any_context()?.suspend_before();
        Ok(Some(wasm_ref_t::without_store(Object::Trap(TrapObject::of(error)))))
    })
}
