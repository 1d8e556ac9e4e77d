//! Directories that belong to a guest's session: they are copied with a saved state, and each
//! guest that is restored from it has a copy of its own.

use std::mem;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use cap_std::ambient_authority;
use cap_std::fs::Dir;
use rustix::fs::Mode;
use rustix::io::retry_on_intr;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::base::errno::Errno;
use crate::state::tree::{
    CopyBudget, SessionError, SessionLimits, copy_tree, open_root, remove_tree,
};

/// A directory that is the session's own.
#[derive(Debug)]
pub(crate) enum SessionDir {
    /// The embedder's, which stays.
    Given,
    /// A copy that was made when a state was restored.
    Copied(#[expect(dead_code, reason = "held for what its drop does")] OwnDir),
}

/// A directory that is removed with all in it when this is dropped: a place for the files of
/// sessions. A process that is killed leaves it behind.
///
/// # Examples
///
/// ```
/// use pagefork_wasi::OwnDir;
///
/// let path = std::env::temp_dir().join(format!("pagefork-files-{}", std::process::id()));
/// let own = OwnDir::new(&path)?;
/// std::fs::write(own.path().join("notes"), "some")?;
/// drop(own);
/// assert!(!path.exists());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct OwnDir(PathBuf);

impl OwnDir {
    /// Makes a directory that only this user can read.
    ///
    /// # Errors
    /// [`SessionError::Host`] if the host refuses, as where something has this name already.
    ///
    /// # Examples
    ///
    /// See [`OwnDir`].
    pub fn new(path: impl AsRef<Path>) -> Result<Self, SessionError> {
        // It is removed by this path, when the working directory may be another.
        let path = std::path::absolute(path.as_ref()).map_err(|error| SessionError::Host {
            path: path.as_ref().to_owned(),
            error: error.into(),
        })?;
        make_directory(&path)?;
        Ok(Self(path))
    }

    /// A directory that was made already.
    pub(crate) fn made(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// Leaves the directory where it is.
    pub(crate) fn keep(mut self) {
        // Its path is freed all the same.
        drop(mem::take(&mut self.0));
        mem::forget(self);
    }

    /// Where it is, from the root.
    ///
    /// # Examples
    ///
    /// See [`OwnDir`].
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for OwnDir {
    fn drop(&mut self) {
        // What cannot be removed stays, as all would if the process were killed.
        let _ = remove_tree(&self.0);
    }
}

/// Where copies of a session's directories come from and go to.
#[derive(Clone, Debug)]
pub(crate) struct SessionFiles {
    /// The directory that a state was saved with.
    pub(crate) saved: PathBuf,
    /// The directory in which each restored guest gets its copies.
    pub(crate) place: PathBuf,
}

/// Copies directories, each with the number by which it is found again, into the new directory
/// `copies`. Nothing stays of it if that fails.
pub(crate) fn save_directories<'a>(
    directories: impl Iterator<Item = (usize, &'a Dir)>,
    copies: &Path,
    limits: SessionLimits,
) -> Result<(), SessionError> {
    make_directory(copies)?;
    let unfinished = OwnDir::made(copies);
    let mut budget = CopyBudget::new(limits);
    for (number, directory) in directories {
        let copy = copy_path(copies, number);
        make_directory(&copy)?;
        copy_tree(directory.as_fd(), open_root(&copy)?.as_fd(), &mut budget)?;
    }
    unfinished.keep();
    Ok(())
}

/// Copies the directory with this number for a guest that is restored.
pub(crate) fn restore_directory(
    files: &SessionFiles,
    number: usize,
    budget: &mut CopyBudget,
) -> Result<(PathBuf, Dir, SessionDir), SessionError> {
    let path = make_unique_directory(&files.place)?;
    let own = OwnDir(path.clone());
    let saved = open_root(&copy_path(&files.saved, number))?;
    copy_tree(saved.as_fd(), open_root(&path)?.as_fd(), budget)?;
    match Dir::open_ambient_dir(&path, ambient_authority()) {
        Ok(dir) => Ok((path, dir, SessionDir::Copied(own))),
        Err(error) => Err(SessionError::Host { path, error: error.into() }),
    }
}

/// Where the copy of the directory with this number is.
pub(crate) fn copy_path(copies: &Path, number: usize) -> PathBuf {
    copies.join(number.to_string())
}

pub(crate) fn make_directory(path: &Path) -> Result<(), SessionError> {
    let made = rustix::fs::mkdir(path, Mode::RWXU);
    made.map_err(|error| SessionError::Host { path: path.to_owned(), error: error.into() })
}

fn make_unique_directory(place: &Path) -> Result<PathBuf, SessionError> {
    let failed = |error: Errno| SessionError::Host { path: place.to_owned(), error };
    // It is removed by this path, when the working directory may be another.
    let place = std::path::absolute(place).map_err(|error| failed(error.into()))?;
    loop {
        let mut bytes = [0; 8];
        retry_on_intr(|| getrandom(&mut bytes[..], GetRandomFlags::empty()))
            .map_err(|error| failed(error.into()))?;
        let path = place.join(format!("session-{:016x}", u64::from_le_bytes(bytes)));
        match make_directory(&path) {
            Err(SessionError::Host { error: Errno::Exist, .. }) => {}
            made => return made.map(|()| path),
        }
    }
}
