//! Saving a state as plain data.

use std::path::{Path, PathBuf};

use rustix::fs::OFlags as HostFlags;

use crate::base::abi::FileType;
use crate::base::errno::{Errno, Result};
use crate::state::ctx::WasiCtx;
use crate::state::descriptor::{Descriptor, DescriptorOrigin, Handle};
use crate::state::grants::{Grants, Preopen, SharedGrants};
use crate::state::identity::FileIdentity;
use crate::state::path::{OpenMode, open_beneath};
use crate::state::saved::{SavedDescriptor, SavedPreopen, WasiState};
use crate::state::session::save_directories;
use crate::state::tree::SessionError;

/// A state that cannot be saved, because of a descriptor whose file cannot be opened again.
/// [`WasiCtx::check_saveable`] has an example.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SaveError {
    /// A connection.
    #[error(
        "descriptor {fd} is a connection ({origin:?}), whose state is in the kernel and at the \
         peer; the guest must close it before its state is saved"
    )]
    Connection {
        /// The descriptor.
        fd: u32,
        /// Where it comes from.
        origin: DescriptorOrigin,
    },
    /// A pipe.
    #[error(
        "descriptor {fd} is the pipe `{}` in `{guest_path}`, whose contents are in the kernel; \
         the guest must close it before its state is saved", path.display()
    )]
    Pipe {
        /// The descriptor.
        fd: u32,
        /// The preopened directory.
        guest_path: String,
        /// Path relative to it.
        path: PathBuf,
    },
    /// A file that was removed or renamed, so that its path leads nowhere or elsewhere.
    #[error(
        "descriptor {fd} is a file that was opened as `{}` in `{guest_path}`, and {}; the guest \
         must close it before its state is saved",
        path.display(),
        match error {
            Some(error) => format!("cannot be opened by this name any more: {error}"),
            None => "was removed or renamed since: another file has this name".to_owned(),
        }
    )]
    Unlinked {
        /// The descriptor.
        fd: u32,
        /// The preopened directory.
        guest_path: String,
        /// Path relative to it by which the guest opened the file.
        path: PathBuf,
        /// Why it cannot be opened by this path, if that does not lead to another file.
        error: Option<Errno>,
    },
    /// A directory of the session needs a place for its copy.
    #[error(
        "the directory `{guest_path}` belongs to the guest's session, so its files are saved too; \
         use `save_with_files`"
    )]
    NoPlaceForFiles {
        /// Its name in the guest.
        guest_path: String,
    },
    /// A directory of the session cannot be copied.
    #[error(transparent)]
    Session(#[from] SessionError),
}

impl WasiCtx {
    /// Saves the state as plain data. The state itself stays as it is.
    ///
    /// Files are saved by name and number, not by contents, but for those of the session: see
    /// [`WasiCtx::save_with_files`]. Restored, the guest must find them
    /// as they were; see [`WasiCtxBuilder::restore`](crate::WasiCtxBuilder::restore). The data of
    /// standard streams is not saved, nor what the guest was given to set in place of the host's
    /// clocks and random numbers, nor [`WasiCtx::set_interrupt_check`].
    ///
    /// # Errors
    ///
    /// [`SaveError`] names the first descriptor that could not be opened again: a connection, a
    /// pipe, or a file that was removed or renamed since it was opened.
    /// [`SaveError::NoPlaceForFiles`] if the guest has a directory of its session.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_wasi::{Errno, GuestMemory, WasiCtx};
    ///
    /// let mut ctx = WasiCtx::builder().arg("greet").build()?;
    /// ctx.fd_close(&mut GuestMemory::new(&mut [][..]), 2)?;
    /// let state = ctx.save()?;
    ///
    /// let mut copy = WasiCtx::builder().restore(&state)?.ctx;
    /// assert_eq!(copy.fd_close(&mut GuestMemory::new(&mut [][..]), 2), Err(Errno::Badf));
    /// assert_eq!(copy.fd_close(&mut GuestMemory::new(&mut [][..]), 1), Ok(()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn save(&self) -> Result<WasiState, SaveError> {
        let own = self.grants.shared.preopens.iter().find(|preopen| preopen.session.is_some());
        if let Some(Preopen { guest_path, .. }) = own {
            return Err(SaveError::NoPlaceForFiles { guest_path: guest_path.clone() });
        }
        self.save_state()
    }

    /// Saves the state as [`WasiCtx::save`] does, and copies the directories of the guest's
    /// session into the new directory `copies`, which belongs to the saved state from then on.
    /// The embedder removes it when the state is no more needed.
    ///
    /// Copied are directories, regular files and symbolic links, with times and permissions;
    /// links of one file under several names stay such. No link is followed. No other process
    /// should change the directories meanwhile.
    ///
    /// # Errors
    ///
    /// As [`WasiCtx::save`], and [`SaveError::Session`] if the directories hold more than
    /// [`WasiCtxBuilder::session_limits`](crate::WasiCtxBuilder::session_limits) allows, or
    /// something that cannot be copied, or the host refuses. Then nothing of `copies` stays.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_wasi::{SaveError, SessionError, SessionLimits, WasiCtx};
    ///
    /// # let host = std::env::temp_dir().join(format!("pagefork-session-{}", std::process::id()));
    /// # std::fs::create_dir_all(host.join("work"))?;
    /// # std::fs::create_dir_all(host.join("forks"))?;
    /// std::fs::write(host.join("work/notes"), "before")?;
    /// let mut builder = WasiCtx::builder();
    /// let ctx = builder.session_dir(host.join("work"), "/work")?.build()?;
    /// let state = ctx.save_with_files(host.join("saved"))?;
    /// std::fs::write(host.join("work/notes"), "after")?;
    ///
    /// let mut builder = WasiCtx::builder();
    /// builder.session_files(host.join("saved"), host.join("forks"));
    /// let fork = builder.restore(&state)?.ctx;
    /// let (work, _, _) = fork.preopens().next().unwrap();
    /// assert_eq!(std::fs::read(work.join("notes"))?, b"before");
    /// drop(fork);
    /// assert_eq!(std::fs::read_dir(host.join("forks"))?.count(), 0);
    ///
    /// let mut builder = WasiCtx::builder();
    /// builder.session_limits(SessionLimits { bytes: 3, files: 10 });
    /// let ctx = builder.session_dir(host.join("work"), "/work")?.build()?;
    /// let error = ctx.save_with_files(host.join("more")).unwrap_err();
    /// assert!(matches!(error, SaveError::Session(SessionError::Bytes { limit: 3, .. })));
    /// # std::fs::remove_dir_all(&host)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn save_with_files(&self, copies: impl AsRef<Path>) -> Result<WasiState, SaveError> {
        let state = self.save_state()?;
        let SharedGrants { preopens, session_limits, .. } = &*self.grants.shared;
        let own = preopens.iter().enumerate().filter(|(_, preopen)| preopen.session.is_some());
        let own = own.map(|(index, preopen)| (index, &*preopen.dir));
        save_directories(own, copies.as_ref(), *session_limits)?;
        Ok(state)
    }

    fn save_state(&self) -> Result<WasiState, SaveError> {
        let descriptors = self.save_descriptors()?;
        let Grants { shared, variables, .. } = &self.grants;
        let preopens = shared.preopens.iter().map(|preopen| SavedPreopen {
            guest_path: preopen.guest_path.clone(),
            permissions: preopen.permissions,
            is_session: preopen.session.is_some(),
        });
        Ok(WasiState {
            args: shared.args.iter().map(<[u8]>::to_vec).collect(),
            variables: variables.0.iter().map(<[u8]>::to_vec).collect(),
            preopens: preopens.collect(),
            descriptors,
            monotonic_ns: self.monotonic_ns(),
            exit_code: self.exit_code,
            put_off_poll: self.put_off_poll,
        })
    }

    /// Checks that the state can be saved: that the descriptors, as plain data, are all of it.
    ///
    /// # Errors
    ///
    /// As [`WasiCtx::save`].
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_wasi::SaveError;
    ///
    /// let (socket, _peer) = std::os::unix::net::UnixStream::pair()?;
    /// let mut builder = pagefork_wasi::WasiCtx::builder();
    /// assert!(builder.build()?.check_saveable().is_ok());
    /// let ctx = builder.preopened_socket(socket)?.build()?;
    /// assert!(matches!(ctx.check_saveable(), Err(SaveError::Connection { fd: 3, .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn check_saveable(&self) -> Result<(), SaveError> {
        self.save_descriptors().map(drop)
    }

    fn save_descriptors(&self) -> Result<Vec<SavedDescriptor>, SaveError> {
        let save = |(fd, descriptor): (u32, &Descriptor)| {
            let listing = match &descriptor.handle {
                Handle::Directory { listing, .. } => listing.save(),
                _ => None,
            };
            let file = self.save_file(fd, descriptor)?;
            let description = descriptor.description.clone();
            Ok(SavedDescriptor { fd, description, file, listing })
        };
        self.table.iter().map(save).collect()
    }

    /// The identity of the file that the guest opened, if this is one.
    fn save_file(
        &self,
        fd: u32,
        descriptor: &Descriptor,
    ) -> Result<Option<FileIdentity>, SaveError> {
        let description = &descriptor.description;
        if !description.is_saveable() {
            return Err(SaveError::Connection { fd, origin: description.origin.clone() });
        }
        let DescriptorOrigin::Opened { preopen, path, mode } = &description.origin else {
            return Ok(None);
        };
        let unlinked = |guest_path: &str, error| {
            let (guest_path, path) = (guest_path.to_owned(), path.clone());
            SaveError::Unlinked { fd, guest_path, path, error }
        };
        let preopen = self.grants.preopen(*preopen).map_err(|error| unlinked("", Some(error)))?;
        let Preopen { guest_path, dir, .. } = preopen;
        if matches!(descriptor.handle, Handle::Stream(_))
            && description.filetype != FileType::CharacterDevice
        {
            return Err(SaveError::Pipe { fd, guest_path: guest_path.clone(), path: path.clone() });
        }
        let find = || -> Result<_> {
            let open = descriptor.opened().ok_or(Errno::Badf)?;
            // O_PATH neither reads nor writes.
            let mode = OpenMode { read: true, write: false, ..*mode };
            let named = open_beneath(dir, path, mode, HostFlags::PATH)?;
            Ok((FileIdentity::of(open)?, FileIdentity::of(named)?))
        };
        match find() {
            Ok((open, named)) if open.is_same_file(&named) => Ok(Some(open)),
            Ok(_) => Err(unlinked(guest_path, None)),
            Err(error) => Err(unlinked(guest_path, Some(error))),
        }
    }
}
