//! Exceptions as values: thrown by guests and by host functions.

use std::fmt;

use pagefork_layout::exception::{ExceptionRef, block};

use crate::base::error::{Error, ErrorKind, Result, UsageError};
use crate::store::group::{StoreGroup, StoreId};
use crate::store::handle::Tag;
use crate::store::value::Val;

/// An exception that a guest threw and no handler caught, or that a host function
/// throws by returning it as its error.
///
/// # Examples
///
/// ```
/// use pagefork::{Engine, Exception, Func, Instance, Module, Result, Store, Tag, Val, ValType};
///
/// # fn main() -> Result<()> {
/// let engine = Engine::default();
/// let module = Module::new(
///     &engine,
///     r#"(module
///         (import "host" "tag" (tag $tag (param i32)))
///         (import "host" "fail" (func $fail (param i32)))
///         (func (export "run") (param i32) (result i32)
///             (block $caught (result i32)
///                 (try_table (catch $tag $caught) (call $fail (local.get 0)))
///                 (i32.const 0)))
///         (func (export "throw") (param i32) (throw $tag (local.get 0))))"#,
/// )?;
/// let mut store = Store::new(&engine, ());
/// let ty = pagefork::FuncType { params: [ValType::I32].into(), results: [].into() };
/// let tag = Tag::new(&mut store, ty)?;
/// let fail = Func::wrap(&mut store, move |caller: pagefork::Caller<'_, ()>, code: i32| {
///     Err::<(), _>(Exception::new(&caller, &tag, &[Val::I32(code + 1)])?.into())
///         as Result<(), pagefork::Error>
/// });
/// let instance = Instance::new(&mut store, &module, &[tag.into(), fail.into()])?;
/// let run = instance.get_typed_func::<i32, i32>(&mut store, "run")?;
/// assert_eq!(run.call(&mut store, 41)?, 42);
///
/// let throw = instance.get_typed_func::<i32, ()>(&mut store, "throw")?;
/// let error = throw.call(&mut store, 5).unwrap_err();
/// assert_eq!(error.kind(), pagefork::ErrorKind::Exception);
/// let exception = error.downcast_ref::<Exception>().unwrap();
/// assert_eq!(*exception.tag(), tag);
/// assert_eq!(exception.payload()[0].i32(), Some(5));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Exception {
    pub(crate) tag: Tag,
    pub(crate) payload: Box<[Val]>,
}

impl fmt::Display for Exception {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("uncaught exception")?;
        for (i, value) in self.payload.iter().enumerate() {
            f.write_str(if i == 0 { " with " } else { ", " })?;
            write!(f, "{value:?}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Exception {}

impl Error {
    /// What part of the world it is about.
    ///
    /// This stands beside [`Exception`], which errors themselves know nothing of.
    ///
    /// # Examples
    ///
    /// See [`Error`].
    pub fn kind(&self) -> ErrorKind {
        match self.kind_of_cause() {
            ErrorKind::Host if self.cause().is::<Exception>() => ErrorKind::Exception,
            kind => kind,
        }
    }
}

/// A reference to an exception, which a guest gave to the host. The exception
/// stays as long as the store.
///
/// # Examples
///
/// ```
/// use pagefork::{Engine, Instance, Module, Store, Val};
///
/// let engine = Engine::default();
/// let module = Module::new(&engine, r#"(module (tag $tag (param i32))
///     (func (export "catch") (result i32 exnref)
///         (block $caught (result i32 exnref)
///             (try_table (catch_ref $tag $caught) (throw $tag (i32.const 3)))
///             (unreachable))))"#)?;
/// let mut store = Store::new(&engine, ());
/// let instance = Instance::new(&mut store, &module, &[])?;
/// let catch = instance.get_func(&mut store, "catch").expect("it is exported");
/// let mut results = [Val::I32(0), Val::ExnRef(None)];
/// catch.call(&mut store, &[], &mut results)?;
/// let reference = results[1].exnref().flatten().expect("it was caught");
/// assert_eq!(reference.exception(&mut store)?.payload()[0].i32(), Some(3));
/// # Ok::<(), pagefork::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ExnRef {
    store: StoreId,
    /// How often the store had been reset.
    resets: u64,
    /// Invariant: absolute, and of an exception that is marked as held.
    reference: ExceptionRef,
}

impl ExnRef {
    /// # Errors
    /// If the reference is of another store.
    pub(crate) fn reference(&self, store: &StoreGroup) -> Result<ExceptionRef> {
        store.check(self.store, "reference to an exception")?;
        match self.resets == store.resets {
            true => Ok(self.reference),
            false => Err(UsageError::ReferenceGivenUp.into()),
        }
    }

    /// What an absolute reference means; `None` for null.
    pub(crate) fn from_reference(store: &StoreGroup, reference: ExceptionRef) -> Option<Self> {
        if reference == ExceptionRef::NULL {
            return None;
        }
        let zone = store.exceptions(reference.ordinal());
        zone.exception(reference);
        zone.flag(reference.unit().into(), block::HELD);
        Some(Self { store: store.id, resets: store.resets, reference })
    }
}
