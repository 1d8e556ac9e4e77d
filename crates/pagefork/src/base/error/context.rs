//! Context for errors, and macros that make errors from messages.

use std::convert::Infallible;
use std::fmt;

use crate::base::error::{Error, Result};

/// Says of an error what was being done, and makes an error of what is missing.
///
/// # Examples
///
/// ```
/// use pagefork::{Context, Engine, Instance, Module, Result, Store};
///
/// fn answer(text: &str) -> Result<i32> {
///     let engine = Engine::default();
///     let module = Module::new(&engine, text).context("the plugin is no module")?;
///     let mut store = Store::new(&engine, ());
///     let instance = Instance::new(&mut store, &module, &[])?;
///     let global = instance.get_global(&mut store, "answer").context("the plugin is no answer")?;
///     global.get(&mut store).i32().context("the answer is no number")
/// }
///
/// assert_eq!(answer(r#"(module (global (export "answer") i32 (i32.const 42)))"#)?, 42);
/// assert_eq!(answer("(module)").unwrap_err().to_string(), "the plugin is no answer");
/// let error = answer("(modul)").unwrap_err();
/// assert_eq!(error.to_string(), "the plugin is no module");
/// assert!(error.is::<pagefork::TextError>());
/// # Ok::<(), pagefork::Error>(())
/// ```
pub trait Context<T, E>: sealed::Sealed + Sized {
    /// The value, or the error with this context.
    ///
    /// # Errors
    /// If this is an error, or nothing.
    ///
    /// # Examples
    ///
    /// See [`Context`].
    fn context<C: fmt::Display + Send + Sync + 'static>(self, context: C) -> Result<T> {
        self.with_context(|| context)
    }

    /// As [`Context::context`], with a context that is only made if there is an error.
    ///
    /// # Errors
    /// If this is an error, or nothing.
    ///
    /// # Examples
    ///
    /// See [`Error`].
    fn with_context<C, F>(self, context: F) -> Result<T>
    where
        C: fmt::Display + Send + Sync + 'static,
        F: FnOnce() -> C;
}

impl<T, E: Into<Error>> Context<T, E> for Result<T, E> {
    fn with_context<C, F>(self, context: F) -> Result<T>
    where
        C: fmt::Display + Send + Sync + 'static,
        F: FnOnce() -> C,
    {
        self.map_err(|error| error.into().context(context()))
    }
}

impl<T> Context<T, Infallible> for Option<T> {
    fn with_context<C, F>(self, context: F) -> Result<T>
    where
        C: fmt::Display + Send + Sync + 'static,
        F: FnOnce() -> C,
    {
        self.ok_or_else(|| Error::msg(context()))
    }
}

mod sealed {
    pub trait Sealed {}

    impl<T, E> Sealed for Result<T, E> {}
    impl<T> Sealed for Option<T> {}
}

/// Makes an [`Error`] from a message, with arguments as of `format!`, or from another
/// error.
///
/// # Examples
///
/// ```
/// use pagefork::{Error, format_err};
///
/// let count = 3;
/// assert_eq!(format_err!("{count} of {}", 5).to_string(), "3 of 5");
/// assert!(format_err!(std::fmt::Error).is::<std::fmt::Error>());
/// assert_eq!(format_err!(String::from("a message")).to_string(), "a message");
/// ```
#[macro_export]
macro_rules! format_err {
    ($message:literal $(,)?) => {
        $crate::Error::msg(::std::format!($message))
    };
    ($message:literal, $($arguments:tt)*) => {
        $crate::Error::msg(::std::format!($message, $($arguments)*))
    };
    ($error:expr $(,)?) => {{
        use $crate::macros::{FromError as _, FromMessage as _};
        let error = $error;
        // The one of the two methods with fewer references is taken, where its type fits.
        (&&error).pagefork_constructor()(error)
    }};
}

/// Returns an [`Error`], made as by [`format_err!`](crate::format_err), from the function.
///
/// # Examples
///
/// ```
/// fn positive(x: i32) -> pagefork::Result<i32> {
///     if x <= 0 {
///         pagefork::bail!("{x} is not positive");
///     }
///     Ok(x)
/// }
/// assert_eq!(positive(-1).unwrap_err().to_string(), "-1 is not positive");
/// ```
#[macro_export]
macro_rules! bail {
    ($($arguments:tt)*) => {
        return ::std::result::Result::Err($crate::format_err!($($arguments)*))
    };
}

/// Returns an [`Error`], made as by [`format_err!`](crate::format_err), unless a condition
/// holds.
///
/// # Examples
///
/// ```
/// fn half(x: i32) -> pagefork::Result<i32> {
///     pagefork::ensure!(x % 2 == 0, "{x} is odd");
///     Ok(x / 2)
/// }
/// assert_eq!(half(4)?, 2);
/// assert_eq!(half(5).unwrap_err().to_string(), "5 is odd");
/// # Ok::<(), pagefork::Error>(())
/// ```
#[macro_export]
macro_rules! ensure {
    ($condition:expr $(,)?) => {
        $crate::ensure!($condition, ::std::concat!("condition failed: `", ::std::stringify!($condition), "`"))
    };
    ($condition:expr, $($arguments:tt)*) => {
        if !$condition {
            $crate::bail!($($arguments)*);
        }
    };
}

/// What `format_err!` chooses from: an error's own type is kept, all else is a message.
#[doc(hidden)]
pub mod macros {
    use super::{Error, fmt};

    pub trait FromError: Sized {
        fn pagefork_constructor(&self) -> fn(Self::Of) -> Error;

        type Of;
    }

    impl<E: Into<Error>> FromError for &E {
        type Of = E;

        fn pagefork_constructor(&self) -> fn(E) -> Error {
            E::into
        }
    }

    pub trait FromMessage: Sized {
        fn pagefork_constructor(&self) -> fn(Self::Of) -> Error;

        type Of;
    }

    impl<M: fmt::Display + Send + Sync + 'static> FromMessage for &&M {
        type Of = M;

        fn pagefork_constructor(&self) -> fn(M) -> Error {
            Error::msg
        }
    }
}
