use std::error::Error as StdError;
use std::fmt;
use std::io;

use pagefork_compiler::CompileError;
use pagefork_compiler::file::CodeImageError;
use pagefork_layout::slot::SlotTooLarge;
use pagefork_layout::text::OneLine;
use pagefork_pages::PagesError;

use crate::backtrace::WasmBacktrace;
use crate::exception::Exception;
use crate::memory::MemoryAccessError;
use crate::trap::Trap;

/// A result whose error is an [`Error`] unless it says otherwise.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Whatever went wrong: its [kind](Error::kind), a cause that can be
/// [downcast](Error::downcast_ref), what it was done for, and the guest's frames
/// if a guest was running.
///
/// Displayed it is the outermost context alone; with `{:#}` all causes follow on
/// the same line, and with `{:?}` also the guest's frames.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    /// What was being done, innermost first.
    context: Vec<String>,
    cause: Box<dyn StdError + Send + Sync>,
    backtrace: Option<WasmBacktrace>,
}

/// What part of the world an [`Error`] is about.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A module was refused: [`CompileError`], [`TextError`] for its text, or
    /// [`CodeImageError`] for what was compiled before.
    Compile,
    /// Imports do not match: [`LinkError`].
    Link,
    /// The guest trapped: [`Trap`].
    Trap,
    /// A guest threw an exception that nobody caught: [`Exception`].
    Exception,
    /// A host function returned an error: whatever type it is of.
    Host,
    /// A limit of the store was met: [`LimitError`].
    Limit,
    /// The operating system refused something: [`PagesError`] or [`SystemError`].
    System,
    /// The embedder used a value or handle where it does not fit: [`UsageError`] or
    /// [`MemoryAccessError`].
    Usage,
}

/// Why imports could not be satisfied, or names not defined.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// Nothing is defined by that name.
    #[error(
        "unknown import: {:?} {:?} is not defined; a {expected} is needed",
        OneLine(.module), OneLine(.name)
    )]
    UnknownImport {
        /// First name of the import.
        module: String,
        /// Second name of the import.
        name: String,
        /// What it must be.
        expected: String,
    },
    /// What is given for an import is of another type.
    #[error(
        "incompatible import type for {:?} {:?}: expected {expected}, found {found}",
        OneLine(.module), OneLine(.name)
    )]
    IncompatibleImport {
        /// First name of the import.
        module: String,
        /// Second name of the import.
        name: String,
        /// What it must be.
        expected: String,
        /// What it is.
        found: String,
    },
    /// The list of imports is too long or too short.
    #[error("the module has {expected} imports, {found} are given")]
    ImportCount {
        /// Imports of the module.
        expected: usize,
        /// Imports given.
        found: usize,
    },
    /// A function was called that nothing defines; see
    /// [`Linker::define_unknown_imports_as_traps`](crate::Linker::define_unknown_imports_as_traps).
    #[error(
        "the imported function {:?} {:?} was called, but nothing defines it",
        OneLine(.module), OneLine(.name)
    )]
    UndefinedFunction {
        /// First name of the import.
        module: String,
        /// Second name of the import.
        name: String,
    },
    /// The name is defined, and shadowing is not allowed.
    #[error(
        "{:?} {:?} is already defined; `allow_shadowing` permits to replace it",
        OneLine(.module), OneLine(.name)
    )]
    AlreadyDefined {
        /// First name.
        module: String,
        /// Second name.
        name: String,
    },
}

/// The text format of a module is malformed: where and why.
#[cfg(feature = "wat")]
#[derive(Debug, thiserror::Error)]
#[error("malformed text of a module: {}", escape_lines(.0))]
pub struct TextError(wat::Error);

#[cfg(feature = "wat")]
impl TextError {
    pub(crate) fn new(error: wat::Error) -> Self {
        Self(error)
    }
}

/// The message, which quotes the text, line by line.
#[cfg(feature = "wat")]
fn escape_lines(error: &wat::Error) -> String {
    let message = error.to_string();
    let lines: Vec<String> = message.lines().map(|line| OneLine(line).to_string()).collect();
    lines.join("\n")
}

/// Which limit of a store was met.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{what}: {requested} would exceed the store's limit of {limit}")]
pub struct LimitError {
    /// What is limited, with its unit.
    pub what: &'static str,
    /// How much there would be.
    pub requested: u64,
    /// How much there may be.
    pub limit: u64,
}

impl LimitError {
    /// What [`StoreLimits::memory_total`](crate::StoreLimits::memory_total) limits.
    pub const MEMORY_TOTAL: &'static str = "bytes of all memories";
}

/// How the embedder used something where it does not fit.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UsageError {
    /// A reference to a host value from before its store was reset.
    #[error("the reference is from before its store was reset, and means nothing any more")]
    ReferenceGivenUp,
    /// A store whose reset has failed was used.
    #[error("the store's last reset has failed: reset it again, or drop it")]
    ResetIncomplete,
    /// A module is to be spawned some of whose imports belong to a store.
    #[error(
        "{:?} {:?} belongs to a store, and a spawned instance has one of its own: \
         instantiate the module in that store, or define a host function in the linker",
        OneLine(.module), OneLine(.name)
    )]
    ImportOfStore {
        /// First name of the import.
        module: String,
        /// Second name of the import.
        name: String,
    },
    /// A snapshot does not fit the store.
    #[error("the snapshot does not fit the store: {0}")]
    WrongSnapshot(&'static str),
    /// A store cannot be captured as it is.
    #[error("cannot take a snapshot: {0}")]
    NoSnapshot(&'static str),
    /// A handle of one store was used with another.
    #[error("a {what} of one store was used with another store")]
    WrongStore {
        /// What kind of handle.
        what: &'static str,
    },
    /// An object of one engine was used with another.
    #[error("a {what} of one engine was used with another engine")]
    WrongEngine {
        /// What kind of object.
        what: &'static str,
    },
    /// A function was called with too few or too many values.
    #[error("expected {expected} {what}, got {found}")]
    ValueCount {
        /// Parameters or results.
        what: &'static str,
        /// How many there must be.
        expected: usize,
        /// How many there were.
        found: usize,
    },
    /// A value of another type than needed.
    #[error("type mismatch: {what} is {found}, expected {expected}")]
    TypeMismatch {
        /// Which value.
        what: String,
        /// Type that it must have.
        expected: String,
        /// Type that it has.
        found: String,
    },
    /// A write to an immutable global.
    #[error("the global is immutable")]
    ImmutableGlobal,
    /// A range that is not all within a table.
    #[error("elements {start}..{end} lie outside a table of {length}")]
    OutsideTable {
        /// First element.
        start: u64,
        /// Element after the last.
        end: u64,
        /// Length of the table, in elements.
        length: u64,
    },
    /// A type that cannot exist.
    #[error("no such type: {0}")]
    InvalidType(String),
    /// Nothing is exported by that name, or something of another kind.
    #[error("there is no exported {kind} {:?}", OneLine(.name))]
    NoExport {
        /// What kind of export was wanted.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// The store's guest is suspended, and must be resumed first.
    #[error("the store's guest is suspended: resume it first")]
    Suspended,
    /// A timeout was set or an interrupt handle asked for, and the engine's code cannot be
    /// interrupted.
    #[error(
        "the engine's code cannot be interrupted, so no time limit would hold: leave \
         `Config::interruption` on"
    )]
    NotInterruptible,
    /// Fuel was set or asked for, and the engine does not meter.
    #[error("the engine does not meter fuel: switch it on with `Config::fuel`")]
    NotMetered,
    /// There is no suspended guest.
    #[error("the store has no suspended guest")]
    NotSuspended,
    /// Host functions run between the guest's frames.
    #[error("the guest cannot be suspended: it was called by a host function that it called")]
    Nested,
    /// The call was not one that can be suspended.
    #[error("the guest cannot be suspended: it was not called to be")]
    NotSuspendable,
    /// The target of a move already has instances.
    #[error("the store that a guest moves to must be empty")]
    TargetNotEmpty,
    /// A stack that is not what compiled code leaves.
    #[error("the suspended guest's chain of frames is broken: {0}")]
    BrokenFrames(&'static str),
}

/// What the operating system or the machine refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SystemError {
    /// Memory for code could not be mapped.
    #[error("cannot map {size} bytes of code: {source}")]
    CodeMemory {
        /// Bytes wanted.
        size: usize,
        /// Why.
        source: PagesError,
    },
    /// This thread cannot have a stack for signal handlers.
    #[error("cannot give this thread a signal stack: {0}")]
    SignalStack(#[source] io::Error),
    /// Where this thread's stack lies cannot be found out.
    #[error("cannot find out where this thread's stack lies: {0}")]
    StackUnknown(#[source] io::Error),
    /// Signal handlers could not be installed.
    #[error("cannot install signal handlers: {0}")]
    SignalHandler(#[source] io::Error),
    /// The thread is about to end: destructors of its locals run.
    #[error("guests cannot be called while their thread ends")]
    ThreadEnds,
    /// Pages are not 4 KiB.
    #[error("pages of {0} bytes are not supported, only of 4096")]
    PageSize(u64),
    /// The processor checks return addresses.
    #[error(
        "this process runs with hardware shadow stacks, which switching stacks would violate: \
         start it with GLIBC_TUNABLES=glibc.cpu.hwcaps=-SHSTK"
    )]
    ShadowStack,
    /// A thread could not be started.
    #[error("cannot start the thread that watches timeouts: {0}")]
    Watchdog(#[source] io::Error),
    /// A code image that nobody has said to trust.
    #[error(
        "{path:?} is machine code, which no sandbox holds, and not marked as executable: if you \
         trust where it comes from, use `chmod +x`"
    )]
    NotExecutable {
        /// Which file.
        path: std::path::PathBuf,
    },
    /// A file could not be written.
    #[error("cannot write {path:?}: {source}")]
    WriteFile {
        /// Which file.
        path: std::path::PathBuf,
        /// Why.
        source: io::Error,
    },
    /// What a profiler wants to know could not be written.
    #[error(
        "cannot write {path:?} for the profiler: {source}; it must be a place that this user may \
         write, and for a jitdump execute: JITDUMPDIR names its directory"
    )]
    Profile {
        /// Which file.
        path: std::path::PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file could not be read.
    #[error("cannot read {path:?}: {source}")]
    File {
        /// Which file.
        path: std::path::PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl Error {
    /// An error of a host function, with this cause.
    pub fn new(cause: impl StdError + Send + Sync + 'static) -> Self {
        Self::from_boxed(Box::new(cause))
    }

    /// An error of a host function that is a message and nothing else.
    pub fn msg(message: impl fmt::Display) -> Self {
        Self::from_boxed(message.to_string().into())
    }

    /// What a host function returned: an [`Error`] stays what it is.
    pub(crate) fn from_boxed(cause: Box<dyn StdError + Send + Sync>) -> Self {
        match cause.downcast::<Self>() {
            Ok(error) => *error,
            Err(cause) if cause.is::<Exception>() => Self::of_kind(ErrorKind::Exception, cause),
            Err(cause) => Self::of_kind(ErrorKind::Host, cause),
        }
    }

    fn of_kind(kind: ErrorKind, cause: Box<dyn StdError + Send + Sync>) -> Self {
        Self(Box::new(Inner { kind, context: Vec::new(), cause, backtrace: None }))
    }

    /// The same error, saying also what was being done.
    #[must_use]
    pub fn context(mut self, doing: impl fmt::Display) -> Self {
        self.0.context.push(doing.to_string());
        self
    }

    /// What part of the world it is about.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The frames of the guest that ran when it happened, innermost first, if one
    /// did.
    pub fn backtrace(&self) -> Option<&WasmBacktrace> {
        self.0.backtrace.as_ref()
    }

    /// Notes the guest's frames, unless they are known from further in.
    pub(crate) fn set_backtrace(&mut self, backtrace: impl FnOnce() -> WasmBacktrace) {
        if self.0.backtrace.is_none() {
            self.0.backtrace = Some(backtrace());
        }
    }

    /// Whether the cause, or a cause of the cause, is an `E`.
    pub fn is<E: StdError + 'static>(&self) -> bool {
        self.downcast_ref::<E>().is_some()
    }

    /// The cause, or the nearest cause of the cause, that is an `E`.
    pub fn downcast_ref<E: StdError + 'static>(&self) -> Option<&E> {
        let mut cause: Option<&(dyn StdError + 'static)> = Some(&*self.0.cause);
        while let Some(error) = cause {
            if let Some(found) = error.downcast_ref::<E>() {
                return Some(found);
            }
            cause = error.source();
        }
        None
    }

    /// The cause, if it is an `E`.
    ///
    /// # Errors
    /// This error, if the cause is not an `E`.
    pub fn downcast<E: StdError + Send + Sync + 'static>(self) -> Result<E> {
        let Inner { kind, context, cause, backtrace } = *self.0;
        match cause.downcast::<E>() {
            Ok(found) => Ok(*found),
            Err(cause) => Err(Self(Box::new(Inner { kind, context, cause, backtrace }))),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut contexts = self.0.context.iter().rev();
        if !f.alternate() {
            return match contexts.next() {
                Some(context) => f.write_str(context),
                None => write!(f, "{}", self.0.cause),
            };
        }
        for context in contexts {
            write!(f, "{context}: ")?;
        }
        write!(f, "{}", self.0.cause)?;
        let mut said = self.0.cause.to_string();
        let mut cause = self.0.cause.source();
        while let Some(error) = cause {
            // Some errors already tell their cause.
            let text = error.to_string();
            if !said.contains(&text) {
                write!(f, ": {text}")?;
                said = text;
            }
            cause = error.source();
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

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self.0.context.is_empty() {
            true => self.0.cause.source(),
            false => Some(&*self.0.cause),
        }
    }
}

impl From<Trap> for Error {
    fn from(trap: Trap) -> Self {
        let backtrace = trap.backtrace().clone();
        let mut error = Self::of_kind(ErrorKind::Trap, Box::new(trap));
        if !backtrace.frames().is_empty() {
            error.0.backtrace = Some(backtrace);
        }
        error
    }
}

macro_rules! from_enums {
    ($($kind:ident: $($ty:ty),*;)*) => {$($(
        impl From<$ty> for Error {
            fn from(error: $ty) -> Self {
                Self::of_kind(ErrorKind::$kind, Box::new(error))
            }
        }
    )*)*};
}

from_enums! {
    Compile: CompileError, CodeImageError;
    Exception: Exception;
    Link: LinkError;
    Limit: LimitError;
    System: PagesError, SystemError;
    Usage: UsageError, MemoryAccessError;
}

#[cfg(feature = "wat")]
impl From<TextError> for Error {
    fn from(error: TextError) -> Self {
        Self::of_kind(ErrorKind::Compile, Box::new(error))
    }
}

impl From<SlotTooLarge> for Error {
    fn from(error: SlotTooLarge) -> Self {
        CompileError::from(error).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error, PartialEq)]
    #[error("exit {0}")]
    struct Exit(i32);

    #[test]
    fn a_users_error_can_be_downcast_through_contexts_and_boxes() {
        let error = Error::new(Exit(3)).context("calling main");
        assert_eq!(error.downcast_ref::<Exit>(), Some(&Exit(3)));
        let boxed: Box<dyn StdError + Send + Sync> = Box::new(error);
        let error = Error::from_boxed(boxed);
        assert_eq!(error.kind(), ErrorKind::Host);
        assert_eq!(error.to_string(), "calling main");
        assert_eq!(format!("{error:#}"), "calling main: exit 3");
        assert_eq!(error.downcast::<Exit>().unwrap(), Exit(3));
    }

    #[test]
    fn kinds_follow_the_cause() {
        assert_eq!(Error::from(UsageError::Suspended).kind(), ErrorKind::Usage);
        let error = Error::msg("no");
        assert_eq!((error.kind(), error.to_string()), (ErrorKind::Host, "no".to_owned()));
        assert!(!error.is::<Exit>());
    }
}
