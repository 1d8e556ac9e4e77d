//! A saved state: plain data, and nothing of the host but the numbers of files.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::state::descriptor::Description;
use crate::state::grants::Permissions;
use crate::state::identity::FileIdentity;

/// The state of a guest as plain data, made by [`WasiCtx::save`]. It is serialized by serde, and
/// a [`WasiCtx`] is made of it again by [`WasiCtxBuilder::restore`].
///
/// It has what the guest can see of itself: arguments, environment, every descriptor with its
/// rights, flags and offset, listings of directories that it has begun to read, how far its
/// monotonic clock is, how long it has waited in a call before which it is suspended, and its exit
/// code. It has no contents of files, no data of standard
/// streams, and neither the time of day nor random numbers, which are the host's.
/// [`WasiCtx::save_with_files`] copies files that belong to the session.
///
/// It is trusted with nothing: whatever it says, a guest restored from it reaches only what the
/// builder grants.
///
/// [`WasiCtx`]: crate::WasiCtx
/// [`WasiCtx::save`]: crate::WasiCtx::save
/// [`WasiCtx::save_with_files`]: crate::WasiCtx::save_with_files
/// [`WasiCtxBuilder::restore`]: crate::WasiCtxBuilder::restore
///
/// # Examples
///
/// ```
/// use pagefork_wasi::{WasiCtx, WasiState};
///
/// let state = WasiCtx::builder().arg("greet").build()?.save()?;
/// let bytes = postcard::to_allocvec(&state)?;
///
/// let state: WasiState = postcard::from_bytes(&bytes)?;
/// assert_eq!(state.descriptors().count(), 3);
/// assert_eq!((state.session_dirs().count(), state.exit_code()), (0, None));
/// let ctx = WasiCtx::builder().restore(&state)?.ctx;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WasiState {
    pub(crate) args: Vec<Vec<u8>>,
    /// Each as `name=value`.
    pub(crate) variables: Vec<Vec<u8>>,
    pub(crate) preopens: Vec<SavedPreopen>,
    /// By number.
    pub(crate) descriptors: Vec<SavedDescriptor>,
    /// What the guest's monotonic clock read, nanoseconds.
    pub(crate) monotonic_ns: u64,
    pub(crate) exit_code: Option<i32>,
    pub(crate) put_off_poll: Option<PutOffPoll>,
}

/// A `poll_oneoff` before which the guest is suspended, and that is made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PutOffPoll {
    /// Its arguments, by which it is known again.
    pub(crate) arguments: [u32; 4],
    /// How long it has waited, nanoseconds: timeouts that count from its beginning are shorter
    /// by this.
    pub(crate) waited_ns: u64,
}

/// A directory that the guest was given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedPreopen {
    pub(crate) guest_path: String,
    pub(crate) permissions: Permissions,
    /// Whether it belongs to the guest's session, and was copied.
    pub(crate) is_session: bool,
}

/// An open descriptor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedDescriptor {
    pub(crate) fd: u32,
    pub(crate) description: Description,
    /// Of a file that the guest opened.
    pub(crate) file: Option<FileIdentity>,
    /// Of a directory that the guest has begun to list.
    pub(crate) listing: Option<SavedListing>,
}

/// How far a guest has read a listing. The names are read again when it goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedListing {
    pub(crate) first_cookie: u64,
    /// The last name that the guest got, and the cookie after it.
    pub(crate) resume: Option<(Vec<u8>, u64)>,
}

impl WasiState {
    /// Every open descriptor, by number.
    ///
    /// # Examples
    ///
    /// See [`WasiState`].
    pub fn descriptors(&self) -> impl Iterator<Item = (u32, &Description)> {
        self.descriptors.iter().map(|saved| (saved.fd, &saved.description))
    }

    /// The names under which the guest knows the directories that it shares with the host, and
    /// what it may do there. [`WasiCtxBuilder::restore`](crate::WasiCtxBuilder::restore) needs a
    /// directory for each.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_wasi::{Permissions, WasiCtx};
    ///
    /// let mut builder = WasiCtx::builder();
    /// let ctx = builder.preopened_dir("/usr", "/data", Permissions::ReadOnly)?.build()?;
    /// let state = ctx.save()?;
    /// assert_eq!(state.preopens().next(), Some(("/data", Permissions::ReadOnly)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn preopens(&self) -> impl Iterator<Item = (&str, Permissions)> {
        let shared = self.preopens.iter().filter(|preopen| !preopen.is_session);
        shared.map(|preopen| (preopen.guest_path.as_str(), preopen.permissions))
    }

    /// The names under which the guest knows the directories that belong to its session;
    /// [`WasiCtxBuilder::session_files`](crate::WasiCtxBuilder::session_files) says where they
    /// come from.
    ///
    /// # Examples
    ///
    /// See [`WasiState`].
    pub fn session_dirs(&self) -> impl Iterator<Item = &str> {
        let own = self.preopens.iter().filter(|preopen| preopen.is_session);
        own.map(|preopen| preopen.guest_path.as_str())
    }

    /// How long the guest has waited in a `poll_oneoff` before which it is suspended.
    ///
    /// # Examples
    ///
    /// ```
    /// let state = pagefork_wasi::WasiCtx::builder().build()?.save()?;
    /// assert_eq!(state.waited(), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn waited(&self) -> Option<Duration> {
        self.put_off_poll.map(|poll| Duration::from_nanos(poll.waited_ns))
    }

    /// The code with which the guest had exited, if it had; see
    /// [`WasiCtx::exit_code`](crate::WasiCtx::exit_code).
    ///
    /// # Examples
    ///
    /// See [`WasiState`].
    pub fn exit_code(&self) -> Option<i32> {
        self.exit_code
    }
}
