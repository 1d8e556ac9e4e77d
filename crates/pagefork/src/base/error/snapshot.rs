//! Why a snapshot could not be saved, or one that was saved is refused.

use pagefork_layout::text::OneLine;

/// Why a snapshot could not be saved, or one that was saved is refused.
///
/// # Examples
///
/// ```
/// use pagefork::{Error, ErrorKind, SnapshotError};
///
/// let error = Error::from(SnapshotError::NotTrusted);
/// assert_eq!(error.kind(), ErrorKind::Snapshot);
/// assert!(error.to_string().contains("a guest is suspended"));
/// ```
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// Guests know a function of the host that no linker has defined, so nothing says which it is.
    #[error(
        "host function {number} of type {ty} has no name, so it cannot be found again: define it \
         in a linker, or name it by `SaveOptions::name_host_function`"
    )]
    UnnamedHostFunction {
        /// Its number in the store.
        number: usize,
        /// Its type.
        ty: String,
    },
    /// A type of something of the host's own, or of a function of the host, means nothing outside
    /// this engine.
    #[error(
        "{what} is of type {ty}, which names a type of this engine and means nothing elsewhere"
    )]
    TypeOfEngine {
        /// What is of that type.
        what: &'static str,
        /// The type.
        ty: String,
    },
    /// Guests hold references to values of the host, and nothing says what takes their place.
    #[error("guests hold references to values of the host: say by `{hook}` what takes their place")]
    NoHook {
        /// What is missing.
        hook: &'static str,
    },
    /// The number of a reference to a value of the host is larger than files have it.
    #[error("a reference to a value of the host has number {0}, which is more than files can have")]
    ReferenceNumber(u32),
    /// What the snapshot is to be saved as a delta of was never saved, or is of other instances.
    #[error("the snapshot cannot be saved as a delta of that one: {0}")]
    NoDelta(&'static str),
    /// Frames are live in it, and nobody who is trusted has said that they are right.
    #[error(
        "a guest is suspended in the snapshot, so it is as trusted as machine code: it was not \
         made by this process, and is not signed by a key that is trusted here"
    )]
    NotTrusted,
    /// The code that its instances ran cannot be had.
    #[error("{} needs code image {hash} of module {}: {why}", OneLine(.name), OneLine(.module))]
    NoCode {
        /// The instance's name.
        name: String,
        /// Hash of the module.
        module: String,
        /// Hash of the code image.
        hash: String,
        /// What is the matter.
        why: String,
    },
    /// What is to be kept as a module of the snapshot is none of it.
    #[error("no instance of the snapshot is of module {0}, so it is not kept with it")]
    NotItsModule(
        /// Hash of the bytes.
        String,
    ),
    /// This engine lays the slots of a module out otherwise.
    #[error(
        "{} is laid out otherwise here: engines that share snapshots need the same settings \
         (stack, tables, memories, exceptions)",
        OneLine(.0)
    )]
    OtherLayout(String),
    /// A function of the host has another type than when the snapshot was saved.
    #[error(
        "the host function {:?} {:?} was of type {saved}, and is {found} here",
        OneLine(.module), OneLine(.name)
    )]
    OtherHostFunction {
        /// First name.
        module: String,
        /// Second name.
        name: String,
        /// Type of the one that guests know.
        saved: String,
        /// Type of the one that is given.
        found: String,
    },
    /// It was made by another version, in a form that this one does not read.
    #[error("what the runtime keeps in it is of form {found}, this version reads form {known}")]
    OtherForm {
        /// Its number.
        found: u32,
        /// The number of this version's.
        known: u32,
    },
    /// What it says cannot be: it is damaged, or was made to do harm.
    #[error("the snapshot is wrong about itself: {0}")]
    Inconsistent(String),
}

impl SnapshotError {
    pub(crate) fn inconsistent(what: impl Into<String>) -> Self {
        Self::Inconsistent(what.into())
    }
}
