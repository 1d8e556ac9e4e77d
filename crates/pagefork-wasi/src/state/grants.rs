//! What the embedder grants a guest. The guest never changes it.

use std::path::PathBuf;
use std::sync::Arc;

use cap_std::fs::Dir;
use serde::{Deserialize, Serialize};

use crate::base::errno::{Errno, Result};
use crate::state::session::SessionDir;
use crate::state::socket::Socket;
use crate::state::sources::OwnSources;
use crate::state::stdio::{OutputKind, OutputStream, StdinKind};
use crate::state::strings::{Environment, Strings};
use crate::state::tree::SessionLimits;

/// What a guest may do below a preopened directory.
///
/// # Examples
///
/// ```
/// use pagefork_wasi::{Permissions, WasiCtx};
///
/// let mut builder = WasiCtx::builder();
/// builder.preopened_dir("/usr/share", "/share", Permissions::ReadOnly)?;
/// builder.preopened_dir(std::env::temp_dir(), "/tmp", Permissions::ReadWrite)?;
/// # Ok::<(), pagefork_wasi::BuildError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Permissions {
    /// Read and list. A call that would change something fails with [`Errno::Perm`].
    ReadOnly,
    /// Read, list and change.
    ReadWrite,
}

/// A directory that the guest is given.
#[derive(Clone, Debug)]
pub(crate) struct Preopen {
    pub(crate) host_path: PathBuf,
    pub(crate) guest_path: String,
    pub(crate) permissions: Permissions,
    pub(crate) dir: Arc<Dir>,
    /// Set if it belongs to the guest's session.
    pub(crate) session: Option<Arc<SessionDir>>,
}

impl Preopen {
    /// Whether it is a copy of what the guest had when it was saved, with other file numbers.
    pub(crate) fn is_copy(&self) -> bool {
        matches!(self.session.as_deref(), Some(SessionDir::Copied(_)))
    }
}

/// The grants that all states of one template share.
#[derive(Debug)]
pub(crate) struct SharedGrants {
    pub(crate) args: Strings,
    pub(crate) preopens: Vec<Preopen>,
    pub(crate) sockets: Vec<Socket>,
    pub(crate) descriptors_max: u32,
    pub(crate) session_limits: SessionLimits,
    pub(crate) sources: OwnSources,
}

/// All grants of one state.
#[derive(Debug)]
pub(crate) struct Grants {
    pub(crate) shared: Arc<SharedGrants>,
    pub(crate) variables: Environment,
    pub(crate) stdin: StdinKind,
    pub(crate) stdout: OutputKind,
    pub(crate) stderr: OutputKind,
}

impl Grants {
    pub(crate) fn preopen(&self, index: u32) -> Result<&Preopen> {
        self.shared.preopens.get(index as usize).ok_or(Errno::Badf)
    }

    pub(crate) fn socket(&self, index: u32) -> Result<&Socket> {
        self.shared.sockets.get(index as usize).ok_or(Errno::Badf)
    }

    pub(crate) fn output(&self, stream: OutputStream) -> &OutputKind {
        match stream {
            OutputStream::Stdout => &self.stdout,
            OutputStream::Stderr => &self.stderr,
        }
    }
}
