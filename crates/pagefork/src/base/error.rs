//! Everything that can go wrong, by kinds.

use std::fmt;
use std::io;

use pagefork_layout::text::OneLine;
use pagefork_pages::{AbsentPage, PagesError};

mod chain;
mod context;
mod snapshot;

pub use self::chain::{Error, Result};
pub use self::context::{Context, macros};
pub use self::snapshot::SnapshotError;

/// What part of the world an [`Error`] is about.
///
/// # Examples
///
/// ```
/// use pagefork::{Engine, ErrorKind, Module};
///
/// let error = Module::new(&Engine::default(), "(module (func (result i32)))").unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::Compile);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A module was refused: [`CompileError`](crate::CompileError), [`TextError`] for its
    /// text, or [`CodeImageError`](crate::CodeImageError) for what was compiled before.
    Compile,
    /// Imports do not match: [`LinkError`].
    Link,
    /// The guest trapped: [`Trap`](crate::Trap).
    Trap,
    /// A guest threw an exception that no handler caught: [`Exception`](crate::Exception).
    Exception,
    /// The embedder's own: what a host function returned, or any error that is none of
    /// the others.
    Host,
    /// A limit of the store was met: [`LimitError`].
    Limit,
    /// The operating system refused something: [`PagesError`] or [`SystemError`].
    System,
    /// The embedder used a value or handle where it does not fit: [`UsageError`] or
    /// [`MemoryAccessError`](crate::MemoryAccessError).
    Usage,
    /// A snapshot could not be saved, or one that was saved is refused: [`SnapshotError`].
    Snapshot,
}

/// Why imports could not be satisfied, or names not defined.
///
/// # Examples
///
/// ```
/// use pagefork::{Engine, LinkError, Linker, Module, Store};
///
/// let engine = Engine::default();
/// let module = Module::new(&engine, r#"(module (import "a" "b" (func)))"#)?;
/// let error = Linker::new(&engine).instantiate(&mut Store::new(&engine, ()), &module).unwrap_err();
/// assert!(matches!(error.downcast_ref(), Some(LinkError::UnknownImport { .. })));
/// # Ok::<(), pagefork::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// Nothing is defined by that name.
    #[error(
        "unknown import: {:?} {:?} is not defined; a {expected} is needed{}",
        OneLine(.module), OneLine(.name), DidYouMean(.similar)
    )]
    UnknownImport {
        /// First name of the import.
        module: String,
        /// Second name of the import.
        name: String,
        /// What it must be.
        expected: String,
        /// Both names of what is defined and has nearly these names, if something is.
        similar: Option<(String, String)>,
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
    /// Nothing is defined by the names that were asked for.
    #[error("nothing is defined as {:?} {:?}", OneLine(.module), OneLine(.name))]
    NotDefined {
        /// First name.
        module: String,
        /// Second name.
        name: String,
    },
    /// Nothing can be made up for an import; see
    /// [`Linker::define_unknown_imports_as_default_values`](crate::Linker::define_unknown_imports_as_default_values).
    #[error(
        "{:?} {:?} has no default value: it is a {expected}", OneLine(.module), OneLine(.name)
    )]
    NoDefault {
        /// First name of the import.
        module: String,
        /// Second name of the import.
        name: String,
        /// What it must be.
        expected: String,
    },
    /// A module is neither a command nor a reactor; see
    /// [`Linker::module`](crate::Linker::module).
    #[error("the module is neither a command nor a reactor: {0}")]
    ProgramKind(String),
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

/// A name that was perhaps meant.
struct DidYouMean<'a>(&'a Option<(String, String)>);

impl fmt::Display for DidYouMean<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some((module, name)) => {
                write!(f, "; did you mean {:?} {:?}?", OneLine(module), OneLine(name))
            }
            None => Ok(()),
        }
    }
}

/// The text format of a module is malformed: where and why.
///
/// # Examples
///
/// ```
/// use pagefork::{Engine, Module, TextError};
///
/// let error = Module::new(&Engine::default(), "(module (func)").unwrap_err();
/// assert!(error.is::<TextError>());
/// ```
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

/// Which limit was met, and whose it is.
///
/// # Examples
///
/// ```
/// use pagefork::{Engine, LimitError, LimitSource, Memory, MemoryType, Store};
///
/// let mut store = Store::new(&Engine::default(), ());
/// let memory = Memory::new(&mut store, MemoryType::new(1, Some(2)))?;
/// let error = memory.grow(&mut store, 2).unwrap_err();
/// let limit = error.downcast_ref::<LimitError>().expect("a limit was met");
/// assert_eq!((limit.requested, limit.limit), (3, 2));
/// assert_eq!(limit.source_of_limit, LimitSource::Declared);
/// # Ok::<(), pagefork::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{what}: {requested} would exceed {source_of_limit} {limit}")]
pub struct LimitError {
    /// What is limited, with its unit.
    pub what: &'static str,
    /// How much there would be.
    pub requested: u64,
    /// How much there may be.
    pub limit: u64,
    /// What says so.
    pub source_of_limit: LimitSource,
}

/// What says how much there may be.
///
/// # Examples
///
/// ```
/// use pagefork::LimitSource;
///
/// assert_ne!(LimitSource::Store.to_string(), LimitSource::Declared.to_string());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum LimitSource {
    /// [`Store::set_limits`](crate::Store::set_limits).
    Store,
    /// [`ResourceLimiter`](crate::ResourceLimiter): the limit is the present size.
    Limiter,
    /// The type of the memory or table, which has a maximum.
    Declared,
    /// The room that a slot has for it: see
    /// [`Config::table_elements`](crate::Config::table_elements) and
    /// [`Config::memory64_size`](crate::Config::memory64_size).
    Slot,
    /// The type of what it is numbered by.
    Index,
}

impl fmt::Display for LimitSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Store => "the store's limit of",
            Self::Limiter => "what the store's limiter allows beyond",
            Self::Declared => "the maximum of its own type,",
            Self::Slot => "the room of its slot (`Config` sets it), which is",
            Self::Index => "what its index type can number, which is",
        })
    }
}

impl LimitError {
    /// What [`StoreLimits::memory_total`](crate::StoreLimits::memory_total) limits.
    pub const MEMORY_TOTAL: &'static str = "bytes of all memories";
}

/// How the embedder used something where it does not fit.
///
/// # Examples
///
/// ```
/// use pagefork::{Engine, Func, Store, UsageError};
///
/// let engine = Engine::default();
/// let (mut store, mut other) = (Store::new(&engine, ()), Store::new(&engine, ()));
/// let function = Func::wrap(&mut store, || ());
/// let error = function.call(&mut other, &[], &mut []).unwrap_err();
/// assert!(matches!(error.downcast_ref(), Some(UsageError::WrongStore { .. })));
/// ```
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
    /// A call that waits was made in a store whose guests can block their thread.
    #[error(
        "pages of the store's image are absent, and a guest that touches one blocks its thread: call \
         without waiting, have guests run elsewhere by `Store::run_turns_with`, or wait until the image \
         is whole"
    )]
    AbsentPages,
    /// A memory cannot start with an image of the embedder's.
    #[error("memory {:?} cannot start with an image: {why}", OneLine(.memory))]
    NoMemoryImage {
        /// The name by which the module exports it.
        memory: String,
        /// Why.
        why: &'static str,
    },
    /// A handle of one store was used with another.
    #[error("a {what} of one store was used with another store")]
    WrongStore {
        /// What kind of handle.
        what: &'static str,
    },
    /// What was found in one module was used with an instance of another.
    #[error("an {what} of one module was used with an instance of another module")]
    WrongModule {
        /// What was found.
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
    /// A host function that was made with a list of types, as by
    /// [`Func::new`](crate::Func::new), has not set one of its results, or to a value of
    /// another type.
    #[error("result {index} of a host function of type {ty} is {found}, expected {expected}")]
    HostResult {
        /// The function's type.
        ty: String,
        /// Which result, from 0.
        index: usize,
        /// Type that it must have.
        expected: String,
        /// Type that it has, or `unset`.
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
    /// The store's guest is suspended: it waits in a call that was made with `call_async`, or is
    /// to be [resumed](crate::Store::resume).
    #[error(
        "the store's guest is suspended: its call has to end first, or be dropped or abandoned"
    )]
    Suspended,
    /// What the embedder has guests of asynchronous calls run by has not run one.
    #[error("the store's runner has not run a turn of its guest, so the call cannot go on")]
    TurnNotRun,
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
    /// A host function asked to be called [later](crate::Caller::suspend_before) where that cannot
    /// be, since it was not called by a guest that can be suspended.
    #[error(
        "the host function asked to be called later, and was not called by a guest that can be \
         suspended"
    )]
    PutOff,
    /// A suspended guest was given results that it does not wait for.
    #[error("the suspended guest waits for no results: resume it without")]
    NoResultsWanted,
    /// There is no suspended guest.
    #[error("the store has no suspended guest")]
    NotSuspended,
    /// Host functions run between the guest's frames, or between it and the host function that would wait.
    #[error(
        "the guest cannot be suspended: it, or the host function that is to wait, was called by a host \
         function that it called"
    )]
    Nested,
    /// The call was not one that can be suspended.
    #[error(
        "the guest cannot be suspended: it was not called to be, with `call_suspendable` for \
         example"
    )]
    NotSuspendable,
    /// A guest that was not called with `call_async` was to let others run.
    #[error("only a guest that was called with `call_async` can yield at its deadline")]
    CannotYield,
    /// An asynchronous host function was called by a guest that was not called with `call_async`.
    #[error(
        "an asynchronous host function can only be called by a guest that was called with \
         `call_async`"
    )]
    NotAsync,
    /// A store that is to be filled with what was captured has instances, host functions or
    /// references to host values already.
    #[error("a store that is to be as another one was must be empty")]
    TargetNotEmpty,
    /// Internal: a stack that is not what compiled code leaves.
    #[error("the suspended guest's chain of frames is broken: {0}")]
    BrokenFrames(&'static str),
}

/// What the operating system or the machine refused.
///
/// # Examples
///
/// ```
/// use pagefork::{Engine, Module, SystemError};
///
/// let error = Module::from_file(&Engine::default(), "/no/such/file.wasm").unwrap_err();
/// assert!(matches!(error.downcast_ref(), Some(SystemError::File { .. })));
/// ```
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
    /// A code image that the embedder has not declared trusted.
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

/// An access to a memory's bytes that are not there.
///
/// # Examples
///
/// ```
/// use pagefork::{Engine, Memory, MemoryAccessProblem, MemoryType, Store};
///
/// let mut store = Store::new(&Engine::default(), ());
/// let memory = Memory::new(&mut store, MemoryType::new(1, None))?;
/// let error = memory.write(&mut store, 65_535, b"ab").unwrap_err();
/// assert_eq!((error.offset, error.length, error.size), (65_535, 2, 65_536));
/// assert_eq!(error.problem, MemoryAccessProblem::Outside);
/// # Ok::<(), pagefork::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{length} bytes at {offset} of a memory of {size} bytes {problem}")]
#[non_exhaustive]
pub struct MemoryAccessError {
    /// Where the access began.
    pub offset: u64,
    /// How many bytes it was of.
    pub length: u64,
    /// Bytes of the memory.
    pub size: u64,
    /// Why they are not there.
    pub problem: MemoryAccessProblem,
}

/// Why bytes of a memory are not there.
///
/// # Examples
///
/// See [`MemoryAccessError`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryAccessProblem {
    /// They are not all within the memory.
    #[error("lie outside it")]
    Outside,
    /// A page of the instance's image is absent, and did not come: see
    /// [`IncompleteImage`](crate::IncompleteImage).
    #[error("are not here: {0}")]
    Absent(AbsentPage),
    /// The file of an instance's image was cut short, or its disk cannot give them: the store has to
    /// be reset, which fails as long as the file is so.
    #[error("cannot be read: the file of the image was cut short, or its disk fails")]
    Unreadable,
}

impl MemoryAccessError {
    pub(crate) fn outside(offset: u64, length: u64, size: u64) -> Self {
        Self { offset, length, size, problem: MemoryAccessProblem::Outside }
    }
}
