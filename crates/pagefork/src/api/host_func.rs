//! Closures as host functions.

use std::error::Error as StdError;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::thread;

use pagefork_layout::link::function_import;
use pagefork_layout::module::{FuncType, ValType};

use crate::api::func::Caller;
use crate::api::typed::{CellOwner, WasmTy, WasmValues};
use crate::base::cell::Cell;
use crate::base::error::{Error, Result, UsageError};
use crate::code::engine::Engine;
use crate::run::enter;
use crate::store::function_import::FunctionImport;
use crate::store::group::StoreGroup;
use crate::store::host_func::{DirectCall, HostCall, HostFunc};
use crate::store::value::Val;

impl HostFunc {
    fn typed<Params: WasmValues, Results: WasmValues>(
        engine: &Engine,
        call: Box<HostCall>,
        direct: DirectCall,
    ) -> Self {
        let function = Self::in_cells::<Params, Results>(engine, call);
        let direct = function_import::is_direct(&function.ty).then_some(direct);
        Self { direct, ..function }
    }

    /// A function that is never called directly.
    pub(crate) fn in_cells<Params: WasmValues, Results: WasmValues>(
        engine: &Engine,
        call: Box<HostCall>,
    ) -> Self {
        let ty = FuncType { params: Params::TYPES.into(), results: Results::TYPES.into() };
        let mut uses = engine.type_uses();
        let (type_id, ty) = uses.add_shared(ty);
        Self { type_id, ty, call, direct: None, names: OnceLock::new(), _uses: uses }
    }

    /// A function of a type that Rust does not know; it is never called directly.
    pub(crate) fn in_cells_of_type(
        engine: &Engine,
        ty: FuncType,
        call: impl FnOnce(&Arc<FuncType>) -> Box<HostCall>,
    ) -> Self {
        let mut uses = engine.type_uses();
        let (type_id, ty) = uses.add_shared(ty);
        let call = call(&ty);
        Self { type_id, ty, call, direct: None, names: OnceLock::new(), _uses: uses }
    }
}

/// What a shim answers: the verdict in rax, and the value in rdx or xmm0.
#[repr(C)]
pub(crate) struct DirectAnswer<R> {
    verdict: u64,
    value: R,
}

/// Ends a direct call. What does not just go on is passed in registers: so a call that does needs no frame.
///
/// # Safety
/// The record is that of the call, whose store's guest waits in it.
#[inline(always)]
pub(crate) unsafe fn answer<V: WasmValues>(
    record: *const FunctionImport,
    result: thread::Result<Result<V>>,
) -> DirectAnswer<V::Register> {
    // SAFETY: by this function's contract the record is valid, and with it the store.
    unsafe {
        match result {
            Ok(Ok(values)) => {
                let value = values.into_register();
                match enter::goes_on((*record).due()) {
                    true => DirectAnswer { verdict: 0, value },
                    false => answer_due::<V>(record, value),
                }
            }
            Ok(Err(error)) => answer_failed(record, Ok(error)),
            Err(payload) => answer_failed(record, Err(payload)),
        }
    }
}

/// Ends a direct call after which the guest may not just go on.
///
/// # Safety
/// As of [`answer`].
#[cold]
#[inline(never)]
unsafe fn answer_due<V: WasmValues>(
    record: *const FunctionImport,
    value: V::Register,
) -> DirectAnswer<V::Register> {
    let mut cell = Cell::default();
    // SAFETY: by this function's contract the store is valid, and its guest waits; types of direct
    // calls have one result at most.
    unsafe {
        let activation = (*record).activation();
        let owner = CellOwner::of_ordinal(&*(*activation).store, 0);
        let result = V::from_register(value).write(&raw mut cell, owner);
        let results = std::slice::from_raw_parts(&raw const cell, V::TYPES.len());
        let verdict = enter::after_direct_call(activation, Ok(result), results);
        DirectAnswer { verdict, value }
    }
}

/// Ends a direct call that has failed, or panicked.
///
/// # Safety
/// As of [`answer`].
#[cold]
#[inline(never)]
unsafe fn answer_failed<R: Default>(
    record: *const FunctionImport,
    why: thread::Result<Error>,
) -> DirectAnswer<R> {
    // SAFETY: by this function's contract.
    let verdict = unsafe { enter::after_direct_call((*record).activation(), why.map(Err), &[]) };
    DirectAnswer { verdict, value: R::default() }
}

/// Ends a direct call of a function that asks to be called later, if that can be.
///
/// # Safety
/// The record is that of the call, which had these arguments.
#[cold]
#[inline(never)]
unsafe fn put_off<A: WasmValues, R: Default>(
    record: *const FunctionImport,
    error: &Error,
    args: A,
) -> Option<DirectAnswer<R>> {
    // SAFETY: by this function's contract; there is a cell for each argument.
    unsafe {
        put_off_with(record, error, |store, base| {
            let mut cells = vec![Cell::default(); A::TYPES.len()];
            args.write(cells.as_mut_ptr(), CellOwner::of_base(store, base)).ok()?;
            Some(cells)
        })
    }
}

/// As [`put_off`], with the arguments that a store's instance at this base has given.
///
/// # Safety
/// The record is that of the call.
pub(crate) unsafe fn put_off_with<R: Default>(
    record: *const FunctionImport,
    error: &Error,
    args: impl FnOnce(&StoreGroup, usize) -> Option<Vec<Cell>>,
) -> Option<DirectAnswer<R>> {
    // SAFETY: by this function's contract the record is valid, and with it the store, whose guest
    // waits in the call.
    let verdict = unsafe {
        let (activation, function) = ((*record).activation(), (*record).host_function());
        let (store, base) = ((*activation).store, (*activation).guest_base);
        enter::put_direct_call_off(activation, error, function, || args(&*store, base))?
    };
    Some(DirectAnswer { verdict, value: R::default() })
}

/// The arguments of a call through cells, and behind them its results before they are set.
///
/// # Safety
/// As of [`HostCall`](crate::store::host_func::HostCall), for a function of this type. The store
/// and the cells are not changed while this is used.
pub(crate) unsafe fn values_of_call<'a>(
    store: &'a StoreGroup,
    cells: *const Cell,
    base: usize,
    ty: &'a FuncType,
) -> impl Iterator<Item = Val> + 'a {
    // SAFETY: by this function's contract the base is that of an instance of this store, or 0.
    let owner = unsafe { store.ordinal_of(base) };
    let params = ty.params.iter().enumerate().map(move |(index, ty)| {
        // SAFETY: by this function's contract there is a cell for each parameter, with a value of
        // its type.
        unsafe { Val::from_cell(cells.add(index).read(), *ty, store, owner) }
    });
    params.chain(ty.results.iter().map(|ty| unset(*ty)))
}

/// What a result of this type is before the host function sets it: a value of another type.
pub(crate) fn unset(ty: ValType) -> Val {
    match ty {
        ValType::Ref(_) => Val::I32(0),
        _ => Val::FuncRef(None),
    }
}

/// # Errors
/// If the value cannot be that result of a host function of this type.
pub(crate) fn check_result(
    store: &StoreGroup,
    ty: &FuncType,
    index: usize,
    value: &Val,
) -> Result<()> {
    let expected = ty.results[index];
    let found = match (value, unset(expected)) {
        (Val::FuncRef(None), Val::FuncRef(None)) | (Val::I32(0), Val::I32(0)) => "unset".to_owned(),
        _ => match value.check_type(store, expected, String::new) {
            Err(error) if matches!(error.downcast_ref(), Some(UsageError::TypeMismatch { .. })) => {
                value.ty().to_string()
            }
            other => return other,
        },
    };
    let (ty, expected) = (ty.to_string(), expected.to_string());
    Err(UsageError::HostResult { ty, index, expected, found }.into())
}

/// Closures that can be host functions: `Fn(A, B, ..) -> R` and
/// `Fn(Caller<'_, T>, A, B, ..) -> R` with up to 16 parameters of types that are
/// [`WasmTy`], and a result that is [`WasmRet`].
///
/// # Examples
///
/// ```
/// use pagefork::{Caller, Engine, Func, Store};
///
/// let mut store = Store::new(&Engine::default(), 0);
/// let add = Func::wrap(&mut store, |a: i32, b: i32| a + b);
/// let count = Func::wrap(&mut store, |mut caller: Caller<'_, i32>| *caller.data_mut() += 1);
/// count.typed::<(), ()>(&store)?.call(&mut store, ())?;
/// assert_eq!(*store.data(), 1);
/// # Ok::<(), pagefork::Error>(())
/// ```
pub trait IntoFunc<T, Params, Results>: Send + Sync + 'static {
    #[doc(hidden)]
    fn into_host_func(self, engine: &Engine) -> HostFunc;
}

/// What host functions may return: nothing, a value, a tuple of values, or a
/// [`Result`] of one of these.
///
/// # Examples
///
/// ```
/// use pagefork::{Engine, Func, Store};
///
/// let mut store = Store::new(&Engine::default(), ());
/// let nothing = Func::wrap(&mut store, || ());
/// let pair = Func::wrap(&mut store, || (1i32, 2i64));
/// let fallible = Func::wrap(&mut store, |text: i32| u8::try_from(text).map(i32::from));
/// assert!(fallible.typed::<i32, i32>(&store)?.call(&mut store, 256).is_err());
/// # Ok::<(), pagefork::Error>(())
/// ```
pub trait WasmRet {
    #[doc(hidden)]
    type Values: WasmValues;

    #[doc(hidden)]
    const IS_FALLIBLE: bool;

    #[doc(hidden)]
    fn into_result(self) -> Result<Self::Values>;
}

impl<R: WasmValues> WasmRet for R {
    type Values = R;
    const IS_FALLIBLE: bool = false;

    #[inline]
    fn into_result(self) -> Result<R> {
        Ok(self)
    }
}

impl<R: WasmValues, E: Into<Box<dyn StdError + Send + Sync>>> WasmRet for Result<R, E> {
    type Values = R;
    const IS_FALLIBLE: bool = true;

    #[inline]
    fn into_result(self) -> Result<R> {
        self.map_err(|error| Error::from_boxed(error.into()))
    }
}

macro_rules! into_func {
    ($($arg:ident)*) => {
        into_func!(@impl {} false $($arg)*);
        into_func!(@impl {caller: Caller<'_, T>} true $($arg)*);
    };
    // Without a caller a function cannot ask to be called later.
    (@impl {$($caller:ident: $caller_type:ty)?} $may_be_put_off:literal $($arg:ident)*) => {
        #[allow(non_snake_case, reason = "a type parameter and its value share a name")]
        #[allow(unused_mut, unused_variables, unused_assignments, reason = "without parameters")]
        impl<T, F, R, $($arg),*> IntoFunc<T, ($($caller_type,)? $($arg,)*), R> for F
        where
            T: 'static,
            F: Fn($($caller_type,)? $($arg),*) -> R + Send + Sync + 'static,
            R: WasmRet,
            $($arg: WasmTy,)*
        {
            fn into_host_func(self, engine: &Engine) -> HostFunc {
                let closure = Arc::new(self);
                let function = Arc::clone(&closure);
                let call = move |store: *mut StoreGroup, cells: *mut Cell, base: usize| {
                    // SAFETY: `HostCall` says that store, cells and base are of one store and function type.
                    unsafe {
                        let mut cell = cells;
                        $(
                            let $arg = $arg::read(cell, CellOwner::of_base(&*store, base));
                            cell = cell.add(1);
                        )*
                        $(let $caller = <$caller_type>::new(store, base);)?
                        let results = function($($caller,)? $($arg),*).into_result()?;
                        results.write(cells, CellOwner::of_base(&*store, base))
                    }
                };
                /// # Safety
                /// Called by the thunk of this record alone; the store's data are a `T`.
                #[allow(clippy::extra_unused_type_parameters, reason = "without a caller")]
                unsafe extern "C" fn shim<const KEEPS: bool, T: 'static, F, R, $($arg),*>(
                    record: *const FunctionImport,
                    $($arg: $arg::Register),*
                ) -> DirectAnswer<<R::Values as WasmValues>::Register>
                where
                    F: Fn($($caller_type,)? $($arg),*) -> R,
                    R: WasmRet,
                    $($arg: WasmTy,)*
                {
                    // SAFETY: by this function's contract the record is that of a closure of
                    // this type, and the activation that of the store whose guest called,
                    // which lends the store.
                    unsafe {
                        let function = &*(*record).closure::<F>();
                        let call = || {
                            $(
                                let activation = (*record).activation();
                                let (store, base) = ((*activation).store, (*activation).guest_base);
                                let $caller = <$caller_type>::of_direct_call(store, base);
                            )?
                            function($($caller,)? $($arg::from_register($arg)),*).into_result()
                        };
                        let result = catch_unwind(AssertUnwindSafe(call));
                        if KEEPS && let Ok(Err(error)) = &result {
                            let args = ($($arg::from_register($arg),)*);
                            if let Some(answer) = put_off(record, error, args) {
                                return answer;
                            }
                        }
                        answer(record, result)
                    }
                }
                let plain = shim::<false, T, F, R, $($arg),*> as *const () as usize;
                let keeping_shim = match $may_be_put_off && R::IS_FALLIBLE {
                    true => shim::<true, T, F, R, $($arg),*> as *const () as usize,
                    false => plain,
                };
                let direct = DirectCall { shim: plain, keeping_shim, closure, foreign: None };
                HostFunc::typed::<($($arg,)*), R::Values>(engine, Box::new(call), direct)
            }
        }
    };
}

into_func!();
into_func!(A);
into_func!(A B);
into_func!(A B C);
into_func!(A B C D);
into_func!(A B C D E);
into_func!(A B C D E G);
into_func!(A B C D E G H);
into_func!(A B C D E G H I);
into_func!(A B C D E G H I J);
into_func!(A B C D E G H I J K);
into_func!(A B C D E G H I J K L);
into_func!(A B C D E G H I J K L M);
into_func!(A B C D E G H I J K L M N);
into_func!(A B C D E G H I J K L M N O);
into_func!(A B C D E G H I J K L M N O P);
into_func!(A B C D E G H I J K L M N O P Q);
