//! Traps: why a guest stopped, and where.

use std::fmt;

pub use pagefork_layout::trap::TrapCode;
use pagefork_pages::AbsentPage;

use crate::base::frames::WasmBacktrace;

/// The guest trapped: why, and in which of its frames.
///
/// # Examples
///
/// ```
/// use pagefork::{Engine, Instance, Module, Store, Trap, TrapCode};
///
/// let engine = Engine::default();
/// let text = r#"(module (func $divide (export "divide") (param i32 i32) (result i32)
///     (i32.div_s (local.get 0) (local.get 1))))"#;
/// let mut store = Store::new(&engine, ());
/// let instance = Instance::new(&mut store, &Module::new(&engine, text)?, &[])?;
/// let divide = instance.get_typed_func::<(i32, i32), i32>(&mut store, "divide")?;
/// let error = divide.call(&mut store, (1, 0)).unwrap_err();
/// let trap = error.downcast_ref::<Trap>().expect("it is a trap");
/// assert_eq!(trap.code(), TrapCode::IntegerDivisionByZero);
/// assert_eq!(trap.backtrace().frames()[0].function_name(), Some("divide"));
/// # Ok::<(), pagefork::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Trap {
    code: TrapCode,
    backtrace: WasmBacktrace,
    /// Which page did not come, and why.
    cause: Option<AbsentPage>,
}

impl Trap {
    pub(crate) fn new(code: TrapCode, backtrace: WasmBacktrace) -> Self {
        Self { code, backtrace, cause: None }
    }

    /// As [`Trap::new`], for a page that did not come.
    pub(crate) fn caused_by(self, cause: Option<AbsentPage>) -> Self {
        Self { cause, ..self }
    }

    /// A trap that a host function raises itself, or that no frame is known of.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Trap, TrapCode};
    ///
    /// /// What a host function does that divides.
    /// fn divide(a: u32, b: u32) -> Result<u32, Trap> {
    ///     let trap = || Trap::without_backtrace(TrapCode::IntegerDivisionByZero);
    ///     a.checked_div(b).ok_or_else(trap)
    /// }
    /// assert_eq!(divide(1, 0).unwrap_err().code(), TrapCode::IntegerDivisionByZero);
    /// ```
    pub fn without_backtrace(code: TrapCode) -> Self {
        Self::new(code, WasmBacktrace::default())
    }

    /// As [`Trap::without_backtrace`], for a page of the guest's image that did not come.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Absence, AbsentPage, Trap, TrapCode};
    ///
    /// let trap = Trap::of_absent(AbsentPage { group: 7, why: Absence::GivenUp });
    /// assert_eq!(trap.code(), TrapCode::PageAbsent);
    /// assert!(trap.to_string().contains("group 7"));
    /// ```
    pub fn of_absent(absent: AbsentPage) -> Self {
        Self::without_backtrace(TrapCode::PageAbsent).caused_by(Some(absent))
    }

    /// Why the guest trapped.
    ///
    /// # Examples
    ///
    /// See [`Trap`].
    pub fn code(&self) -> TrapCode {
        self.code
    }

    /// Of [`TrapCode::PageAbsent`]: which page did not come, and why.
    ///
    /// # Examples
    ///
    /// See [`IncompleteImage`](crate::IncompleteImage).
    pub fn absent_page(&self) -> Option<&AbsentPage> {
        self.cause.as_ref()
    }

    /// The guest's frames, innermost first.
    ///
    /// # Examples
    ///
    /// See [`Trap`].
    pub fn backtrace(&self) -> &WasmBacktrace {
        &self.backtrace
    }
}

impl fmt::Display for Trap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "wasm trap: {}", self.code)?;
        self.cause.as_ref().map_or(Ok(()), |cause| write!(f, ": {cause}"))
    }
}

impl std::error::Error for Trap {}
