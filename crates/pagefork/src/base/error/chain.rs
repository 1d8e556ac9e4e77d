//! The error type of every fallible function: a cause, its kind, and contexts.

use std::any::Any;
use std::error::Error as StdError;
use std::fmt;
use std::ops::Deref;

use pagefork_compiler::CompileError;
use pagefork_compiler::file::CodeImageError;
use pagefork_pages::PagesError;

use crate::base::error::{
    ErrorKind, LimitError, LinkError, MemoryAccessError, SnapshotError, SystemError, UsageError,
};
use crate::base::frames::WasmBacktrace;
use crate::base::trap::Trap;

/// A result whose error is an [`Error`] unless it says otherwise.
///
/// # Examples
///
/// ```
/// use pagefork::{Engine, Module, Result};
///
/// fn export_count(text: &str) -> Result<usize> {
///     Ok(Module::new(&Engine::default(), text)?.exports().len())
/// }
///
/// // Other errors are named.
/// fn even(x: u32) -> Result<u32, String> {
///     if x % 2 == 0 { Ok(x) } else { Err(format!("{x} is odd")) }
/// }
///
/// assert_eq!(export_count(r#"(module (memory (export "memory") 1))"#)?, 1);
/// assert!(export_count("").is_err() && even(1).is_err());
/// # Ok::<(), pagefork::Error>(())
/// ```
pub type Result<T, E = Error> = std::result::Result<T, E>;

type Boxed = Box<dyn StdError + Send + Sync>;

/// What went wrong: its [kind](Error::kind), a cause that can be
/// [downcast](Error::downcast_ref), what it was done for, and the guest's frames
/// if a guest was running.
///
/// Every error converts into one by `?`. [`Context`](crate::Context) says what was being done, and
/// [`bail!`](crate::bail), [`ensure!`](crate::ensure) and
/// [`format_err!`](crate::format_err) make errors that are messages. Because it converts
/// from every error it does not implement [`std::error::Error`] itself; it dereferences to
/// one, and converts into a boxed one.
///
/// Displayed it is the outermost context alone; with `{:#}` all causes follow on
/// the same line, and with `{:?}` also the guest's frames.
///
/// # Examples
///
/// ```
/// use pagefork::{Context, Error, ErrorKind, Result, UsageError, ensure};
///
/// fn port(text: &str) -> Result<u16> {
///     let port = text.parse::<u16>().with_context(|| format!("{text:?} is no port"))?;
///     ensure!(port != 0, "port {port} is reserved");
///     Ok(port)
/// }
///
/// let error = port("many").unwrap_err();
/// assert_eq!(error.to_string(), "\"many\" is no port");
/// assert_eq!(format!("{error:#}"), "\"many\" is no port: invalid digit found in string");
/// assert!(error.is::<std::num::ParseIntError>());
/// assert_eq!(port("0").unwrap_err().to_string(), "port 0 is reserved");
/// // What the engine refused is told from what the embedder found.
/// assert_eq!(error.kind(), ErrorKind::Host);
/// assert_eq!(Error::new(UsageError::Suspended).kind(), ErrorKind::Usage);
///
/// // A boxed error is what it was, and can be taken out again.
/// let boxed: Box<dyn std::error::Error + Send + Sync> = error.into();
/// let error = Error::from_boxed(boxed).context("no server");
/// assert_eq!(error.chain().count(), 3);
/// assert_eq!(error.root_cause().to_string(), "invalid digit found in string");
/// assert!(error.downcast::<std::num::ParseIntError>().is_ok());
/// assert_eq!(Error::msg("a message").to_string(), "a message");
/// ```
pub struct Error(Box<ErrorInner>);

struct ErrorInner {
    kind: ErrorKind,
    /// The cause, within a [`Contextual`] for each context, the latest outermost.
    error: Boxed,
    backtrace: Option<WasmBacktrace>,
}

/// An error with what was being done. Displayed it is only the latter.
#[derive(thiserror::Error)]
#[error("{context}")]
struct Contextual {
    context: Box<dyn Note>,
    #[source]
    error: Boxed,
}

/// A context: any value that can be displayed.
trait Note: fmt::Display + Any + Send + Sync {}

impl<C: fmt::Display + Any + Send + Sync> Note for C {}

/// An error that is a message and nothing else.
#[derive(thiserror::Error)]
#[error("{0}")]
struct MessageError<M: fmt::Display>(M);

/// An [`Error`] as an error for those who take boxed ones. Never seen outside but through
/// the standard trait.
struct AsStd(Error);

impl Error {
    /// An error with this cause, as `?` makes it. Its kind follows from the type of the
    /// cause; what the engine does not know is of the kind [`ErrorKind::Host`].
    ///
    /// # Examples
    ///
    /// See [`Error`].
    pub fn new(cause: impl StdError + Send + Sync + 'static) -> Self {
        Self::from_boxed(Box::new(cause))
    }

    /// An error that is a message and nothing else.
    ///
    /// # Examples
    ///
    /// See [`Error`].
    pub fn msg(message: impl fmt::Display + Send + Sync + 'static) -> Self {
        Self::of_kind(ErrorKind::Host, Box::new(MessageError(message)))
    }

    /// As [`Error::new`]. An [`Error`] that was boxed becomes what it was.
    ///
    /// # Examples
    ///
    /// See [`Error`].
    pub fn from_boxed(cause: Box<dyn StdError + Send + Sync + 'static>) -> Self {
        match cause.downcast::<AsStd>() {
            Ok(error) => error.0,
            Err(cause) => {
                let trap = cause.downcast_ref::<Trap>().map(|trap| trap.backtrace());
                let backtrace = trap.filter(|backtrace| !backtrace.frames().is_empty()).cloned();
                Self(Box::new(ErrorInner { kind: kind(&*cause), error: cause, backtrace }))
            }
        }
    }

    fn of_kind(kind: ErrorKind, error: Boxed) -> Self {
        Self(Box::new(ErrorInner { kind, error, backtrace: None }))
    }

    /// The same error, saying also what was being done. A context that is an error can be
    /// [downcast](Error::downcast_ref), too.
    ///
    /// # Examples
    ///
    /// See [`Error`].
    #[must_use]
    pub fn context(self, doing: impl fmt::Display + Send + Sync + 'static) -> Self {
        let ErrorInner { kind, error, backtrace } = *self.0;
        let error = Box::new(Contextual { context: Box::new(doing), error });
        Self(Box::new(ErrorInner { kind, error, backtrace }))
    }

    /// The same error, whose text begins with what it is about: unlike other contexts this
    /// one says what failed.
    #[must_use]
    pub(crate) fn about(self, what: impl fmt::Display) -> Self {
        let text = format!("{what}: {self}");
        self.context(text)
    }

    /// What part of the world it is about, as far as the type of its cause is known here.
    pub(crate) fn kind_of_cause(&self) -> ErrorKind {
        self.0.kind
    }

    /// What it is without its contexts.
    pub(crate) fn cause(&self) -> &(dyn StdError + 'static) {
        let mut error: &(dyn StdError + 'static) = &*self.0.error;
        while let Some(contextual) = error.downcast_ref::<Contextual>() {
            error = &*contextual.error;
        }
        error
    }

    /// The frames of the guest that ran when it happened, innermost first, if one
    /// did.
    ///
    /// # Examples
    ///
    /// See [`WasmBacktrace`].
    pub fn backtrace(&self) -> Option<&WasmBacktrace> {
        self.0.backtrace.as_ref()
    }

    /// Notes the guest's frames, unless they are known from further in.
    pub(crate) fn set_backtrace(&mut self, backtrace: impl FnOnce() -> WasmBacktrace) {
        if self.0.backtrace.is_none() {
            self.0.backtrace = Some(backtrace());
        }
    }

    /// The contexts, the latest first, the cause, and the causes of the cause.
    ///
    /// # Examples
    ///
    /// See [`Error`].
    pub fn chain(&self) -> impl Iterator<Item = &(dyn StdError + 'static)> {
        let mut next: Option<&(dyn StdError + 'static)> = Some(&*self.0.error);
        std::iter::from_fn(move || {
            let error = next?;
            next = error.source();
            Some(error)
        })
    }

    /// The last of the [chain](Error::chain).
    ///
    /// # Examples
    ///
    /// See [`Error`].
    pub fn root_cause(&self) -> &(dyn StdError + 'static) {
        self.chain().last().expect("there is a cause at least")
    }

    /// Whether a context, the cause, or a cause of the cause is an `E`.
    ///
    /// # Examples
    ///
    /// See [`Error`].
    pub fn is<E: StdError + 'static>(&self) -> bool {
        self.downcast_ref::<E>().is_some()
    }

    /// The first in the [chain](Error::chain) that is an `E`: a context, the cause, or
    /// a cause of the cause.
    ///
    /// # Examples
    ///
    /// See [`Trap`].
    pub fn downcast_ref<E: StdError + 'static>(&self) -> Option<&E> {
        self.chain().find_map(|error| match error.downcast_ref::<AsStd>() {
            // An error that was boxed and is the source of another one.
            Some(boxed) => boxed.0.downcast_ref(),
            None => match error.downcast_ref::<Contextual>() {
                Some(contextual) => (&*contextual.context as &dyn Any).downcast_ref(),
                None => error.downcast_ref(),
            },
        })
    }

    /// The latest context that is an `E`, or the cause, if it is one.
    ///
    /// # Errors
    /// This error, if neither is.
    ///
    /// # Examples
    ///
    /// See [`Error`].
    pub fn downcast<E: StdError + Send + Sync + 'static>(self) -> Result<E> {
        let ErrorInner { kind, error, backtrace } = *self.0;
        take(error).map_err(|error| Self(Box::new(ErrorInner { kind, error, backtrace })))
    }
}

/// Takes an `E` out of contexts and cause.
fn take<E: StdError + Send + Sync + 'static>(error: Boxed) -> Result<E, Boxed> {
    match error.downcast::<Contextual>() {
        Ok(contextual) => {
            let Contextual { context, error } = *contextual;
            if (&*context as &dyn Any).is::<E>() {
                let context: Box<dyn Any> = context;
                return Ok(*context.downcast().expect("it was just looked at"));
            }
            take(error).map_err(|error| Box::new(Contextual { context, error }) as Boxed)
        }
        Err(error) => error.downcast::<E>().map(|found| *found),
    }
}

/// What part of the world an error of this type is about.
fn kind(cause: &(dyn StdError + 'static)) -> ErrorKind {
    #[cfg(feature = "wat")]
    if cause.is::<crate::base::error::TextError>() {
        return ErrorKind::Compile;
    }
    match cause {
        _ if cause.is::<Trap>() => ErrorKind::Trap,
        _ if cause.is::<CompileError>() || cause.is::<CodeImageError>() => ErrorKind::Compile,
        _ if cause.is::<LinkError>() => ErrorKind::Link,
        _ if cause.is::<LimitError>() => ErrorKind::Limit,
        _ if cause.is::<PagesError>() || cause.is::<SystemError>() => ErrorKind::System,
        _ if cause.is::<UsageError>() || cause.is::<MemoryAccessError>() => ErrorKind::Usage,
        _ if cause.is::<SnapshotError>() => ErrorKind::Snapshot,
        _ => ErrorKind::Host,
    }
}

/// By `?`.
impl<E: StdError + Send + Sync + 'static> From<E> for Error {
    fn from(cause: E) -> Self {
        Self::new(cause)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.error)?;
        if !f.alternate() {
            return Ok(());
        }
        let mut said = self.0.error.to_string();
        for error in self.chain().skip(1) {
            // Some errors already tell their cause.
            let text = error.to_string();
            if !said.contains(&text) {
                write!(f, ": {text}")?;
                said = text;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:#}")?;
        match self.backtrace() {
            Some(backtrace) => write!(f, "\n{backtrace}"),
            None => Ok(()),
        }
    }
}

impl Deref for Error {
    type Target = dyn StdError + Send + Sync + 'static;

    fn deref(&self) -> &Self::Target {
        &*self.0.error
    }
}

impl AsRef<dyn StdError + Send + Sync + 'static> for Error {
    fn as_ref(&self) -> &(dyn StdError + Send + Sync + 'static) {
        &**self
    }
}

macro_rules! into_boxed {
    ($($boxed:ty),*) => {$(
        impl From<Error> for Box<$boxed> {
            fn from(error: Error) -> Self {
                Box::new(AsStd(error))
            }
        }
    )*};
}

into_boxed!(dyn StdError, dyn StdError + Send, dyn StdError + Send + Sync);

impl fmt::Display for AsStd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for AsStd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl StdError for AsStd {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.0.error.source()
    }
}

impl fmt::Debug for Contextual {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:?}", self.context, self.error)
    }
}

impl<M: fmt::Display> fmt::Debug for MessageError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::error::Context;
    use crate::base::trap::TrapCode;

    #[derive(Debug, thiserror::Error, PartialEq)]
    #[error("exit {0}")]
    struct Exit(i32);

    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] Error);

    #[test]
    fn a_users_error_can_be_downcast_through_contexts_and_boxes() {
        let error = Error::new(Exit(3)).context("calling main");
        assert_eq!(error.downcast_ref::<Exit>(), Some(&Exit(3)));
        let boxed: Box<dyn StdError + Send + Sync> = error.into();
        assert_eq!((boxed.to_string(), boxed.source().unwrap().to_string()), texts());
        let error = Error::from_boxed(boxed);
        assert_eq!(error.kind(), ErrorKind::Host);
        assert_eq!(error.to_string(), "calling main");
        assert_eq!(format!("{error:#}"), "calling main: exit 3");
        assert_eq!(error.downcast::<Exit>().unwrap(), Exit(3));
    }

    fn texts() -> (String, String) {
        ("calling main".to_owned(), "exit 3".to_owned())
    }

    #[test]
    fn an_error_that_is_the_source_of_another_is_found() {
        let error = Error::new(Outer(Error::new(Exit(3)).context("why"))).context("main");
        assert_eq!(format!("{error:#}"), "main: outer: why: exit 3");
        assert_eq!(error.chain().count(), 4);
        assert_eq!(error.root_cause().to_string(), "exit 3");
        assert_eq!(error.downcast_ref::<Exit>(), Some(&Exit(3)));
        // As a box within a box, too.
        let boxed: Box<dyn StdError + Send + Sync> = error.into();
        #[derive(Debug, thiserror::Error)]
        #[error("boxed")]
        struct Holder(#[source] Box<dyn StdError + Send + Sync>);
        let error = Error::new(Holder(boxed));
        assert_eq!(error.downcast_ref::<Exit>(), Some(&Exit(3)));
        assert_eq!(format!("{error:#}"), "boxed: main: outer: why: exit 3");
    }

    #[test]
    fn contexts_can_be_downcast_and_the_latest_comes_first() {
        let error = Error::msg("cause").context(Exit(1)).context("text").context(Exit(2));
        assert_eq!(error.downcast_ref::<Exit>(), Some(&Exit(2)));
        let error = error.downcast::<fmt::Error>().unwrap_err();
        assert_eq!(format!("{error:#}"), "exit 2: text: exit 1: cause");
        assert_eq!(error.downcast::<Exit>().unwrap(), Exit(2));
        assert_eq!(None::<()>.context("nothing").unwrap_err().to_string(), "nothing");
    }

    #[test]
    fn kinds_follow_the_cause_and_contexts_keep_them() {
        let kinds = [
            (Error::from(UsageError::Suspended), ErrorKind::Usage),
            (Error::from(std::io::Error::other("x")), ErrorKind::Host),
            (Error::from(Trap::without_backtrace(TrapCode::Interrupt)), ErrorKind::Trap),
            (Error::msg("no"), ErrorKind::Host),
        ];
        for (error, kind) in kinds {
            assert!(!error.is::<Exit>());
            let error = Err::<(), _>(error).context("doing it").unwrap_err();
            assert_eq!(error.kind(), kind, "{error:#}");
        }
    }
}
