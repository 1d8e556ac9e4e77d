//! Why a state cannot be built.

use std::io;
use std::path::PathBuf;

/// A [`WasiCtx`](crate::WasiCtx) that cannot be built.
///
/// # Examples
///
/// ```
/// use pagefork_wasi::{BuildError, Permissions, WasiCtx};
///
/// let mut builder = WasiCtx::builder();
/// let error = builder.preopened_dir("/no/such", "/data", Permissions::ReadOnly).unwrap_err();
/// assert!(matches!(&error, BuildError::Preopen { guest_path, .. } if guest_path == "/data"));
/// let error = builder.env("A=B", "").build().unwrap_err();
/// assert!(matches!(error, BuildError::Variable { name } if name == "A=B"));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A directory to preopen cannot be opened.
    #[error(
        "cannot preopen the directory `{}` as `{guest_path}`: {source}; \
         it must exist, be a directory and be accessible",
        host_path.display()
    )]
    Preopen {
        /// The directory.
        host_path: PathBuf,
        /// Its name in the guest.
        guest_path: String,
        /// Why not.
        source: io::Error,
    },
    /// The name of a preopened directory cannot be passed to the guest.
    #[error(
        "the guest path {guest_path:?} of a preopened directory is empty or contains a NUL byte; \
         give it a name such as `/data`"
    )]
    GuestPath {
        /// The name.
        guest_path: String,
    },
    /// A socket cannot be passed to the guest.
    #[error(
        "cannot pass socket {index} to the guest: {source}; \
         it must be a TCP or Unix stream socket that listens or is connected"
    )]
    Socket {
        /// Its index among the sockets that were given.
        index: usize,
        /// Why not.
        source: io::Error,
    },
    /// This process has no sockets to pass on.
    #[error(
        "this process was given no sockets: `LISTEN_FDS` is not a count, or `LISTEN_PID` is of \
         another process; start it by socket activation, such as systemd's"
    )]
    NoListenFds,
    /// An argument cannot be passed as a C string.
    #[error("argument {index} contains a NUL byte, which a C string cannot hold; remove it")]
    Argument {
        /// Its index; 0 is the name of the program.
        index: usize,
    },
    /// An environment variable cannot be passed as a C string.
    #[error(
        "the environment variable {name:?} has a name that is empty or contains `=`, \
         or contains a NUL byte, which a C string cannot hold; rename or remove it"
    )]
    Variable {
        /// Its name.
        name: String,
    },
}
