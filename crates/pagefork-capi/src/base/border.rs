//! The border to C: arguments that may be wrong, failures as values, and panics that stay here.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use pagefork::{Error, Result};

/// What C has done wrong, or what cannot be said to C otherwise.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BorderError {
    /// A pointer that must lead to something is null.
    #[error("the {0} is null")]
    Null(&'static str),
    /// An object of another kind than is needed.
    #[error("a {expected} is needed, and this is a {found}")]
    WrongKind {
        /// The kind that is needed.
        expected: &'static str,
        /// The kind that was given.
        found: &'static str,
    },
    /// Too many or too few of something.
    #[error("{expected} {what} are needed, and {found} were given")]
    Count {
        /// Of what.
        what: &'static str,
        /// How many are needed.
        expected: usize,
        /// How many were given.
        found: usize,
    },
    /// A value or object that does not fit, and why.
    #[error("{0}")]
    Unfit(String),
    /// The store is in the middle of something that must not be disturbed.
    #[error("the store cannot be used now: {0}")]
    Busy(&'static str),
    /// Something in here has panicked.
    #[error("internal error: {0}")]
    Panic(String),
}

/// What a function answers when it has failed.
pub(crate) trait Refused {
    /// The answer.
    fn refused() -> Self;
}

macro_rules! refused {
    ($($ty:ty => $value:expr;)*) => {$(
        impl Refused for $ty {
            fn refused() -> Self {
                $value
            }
        }
    )*};
}

refused! {
    () => ();
    bool => false;
    u8 => 0;
    u32 => 0;
    u64 => 0;
    usize => 0;
}

impl<T> Refused for Option<T> {
    fn refused() -> Self {
        None
    }
}

impl<T> Refused for *mut T {
    fn refused() -> Self {
        std::ptr::null_mut()
    }
}

impl<T> Refused for *const T {
    fn refused() -> Self {
        std::ptr::null()
    }
}

thread_local! {
    static LAST_ERROR: RefCell<Option<Error>> = const { RefCell::new(None) };
}

/// Keeps the error for those who ask why a function of this thread has failed.
#[cold]
pub(crate) fn note_error(error: Error) {
    // A thread that is about to end has no place for it any more, and nobody asks.
    let _ = LAST_ERROR.try_with(|last| drop(last.replace(Some(error))));
}

/// The error that was last noted on this thread, which is forgotten.
pub(crate) fn take_last_error() -> Option<Error> {
    LAST_ERROR.try_with(RefCell::take).ok().flatten()
}

/// Runs what a function does: its failure is noted, and so is a panic.
#[inline]
pub(crate) fn border<T: Refused>(function: impl FnOnce() -> Result<T>) -> T {
    match attempt(function) {
        Ok(value) => value,
        Err(error) => {
            note_error(error);
            T::refused()
        }
    }
}

/// Runs what a function does; a panic becomes an error. Always inline: what the closure has captured
/// stays in registers.
#[inline(always)]
pub(crate) fn attempt<T>(function: impl FnOnce() -> Result<T>) -> Result<T> {
    // What a panic leaves half-done is a store's, which it breaks no more than in Rust.
    match catch_unwind(AssertUnwindSafe(function)) {
        Ok(result) => result,
        Err(payload) => Err(panicked(&*payload)),
    }
}

/// What a panic is for C.
#[cold]
pub(crate) fn panicked(payload: &(dyn Any + Send)) -> Error {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
    BorderError::Panic(text.unwrap_or("a panic without a message").to_owned()).into()
}

/// What an argument leads to.
///
/// # Errors
/// If it is null.
#[inline]
pub(crate) fn given<T>(argument: Option<T>, what: &'static str) -> Result<T> {
    argument.ok_or_else(|| BorderError::Null(what).into())
}

/// Defines functions that C calls. What each does, who owns what, and what it answers on failure
/// is said in the header that declares it.
///
/// Arguments are what the headers promise: `Option<&T>` is null or leads to a live `T`,
/// `Option<Box<T>>` is null or given away. The body is an expression of type [`Result`].
macro_rules! exported {
    ($(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $answer:ty)? $body:block)*) => {$(
        // SAFETY: the names are declared in our headers, and begin as ours do.
        #[unsafe(no_mangle)]
        extern "C" fn $name($($arg: $ty),*) $(-> $answer)? {
            $crate::base::border::border(move || $body)
        }
    )*};
}

pub(crate) use exported;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_and_panics_are_noted_and_answered() {
        assert_eq!(border(|| Ok(7u32)), 7);
        assert!(take_last_error().is_none());
        assert_eq!(border(|| given(None::<u32>, "number")), 0);
        assert_eq!(take_last_error().unwrap().to_string(), "the number is null");
        assert!(border::<Option<Box<u8>>>(|| panic!("oh")).is_none());
        assert_eq!(take_last_error().unwrap().to_string(), "internal error: oh");
        assert!(take_last_error().is_none());
    }
}
