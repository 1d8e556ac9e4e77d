//! What WASI programs had when they were captured, with the files of their sessions.

use std::path::{Path, PathBuf};

use pagefork::{Error, Result, Snapshot};
use pagefork_wasi::{OwnDir, SaveError, SessionArchive, WasiCtx, WasiCtxBuilder, WasiState};

use crate::base::border::BorderError;

/// What a program had when a snapshot of its store was taken. The snapshot has it, and each store
/// that goes on from there.
pub(crate) struct SavedProgram {
    pub(crate) state: WasiState,
    /// The place of its session's files: a copy of what they were, and one for each store.
    files: Option<OwnDir>,
}

impl SavedProgram {
    /// What a program has now. Files of its session are copied to the new directory `place`.
    ///
    /// # Errors
    /// If it has something that cannot be saved, or a session and there is no place.
    pub(crate) fn capture(wasi: &WasiCtx, place: Option<&Path>) -> Result<Self> {
        let Some(place) = place else {
            let state = wasi.save().map_err(|error| match error {
                SaveError::NoPlaceForFiles { .. } => Error::new(BorderError::Unfit(
                    "the program has files of a session: use pagefork_store_snapshot_with_files"
                        .to_owned(),
                )),
                error => Error::new(error),
            })?;
            return Ok(Self { state, files: None });
        };
        let files = OwnDir::new(place).map_err(Error::new)?;
        let state = wasi.save_with_files(captured(&files)).map_err(Error::new)?;
        let files = has_session(&state).then_some(files);
        Ok(Self { state, files })
    }

    /// What the program of a loaded snapshot had. Files of its session are copied to the new
    /// directory `place`.
    ///
    /// # Errors
    /// If the image has no such files, or they cannot be copied.
    pub(crate) fn load<T: 'static>(
        snapshot: &Snapshot<T>,
        state: WasiState,
        place: Option<&Path>,
    ) -> Result<Self> {
        let place = place.filter(|_| has_session(&state));
        let files = place.map(OwnDir::new).transpose().map_err(Error::new)?;
        if let Some(files) = &files {
            let mut builder = WasiCtxBuilder::new();
            builder.session_files_from(snapshot, &state, captured(files), files.path())?;
        }
        Ok(Self { state, files })
    }

    /// What an image has of the files, if the program has a session.
    ///
    /// # Errors
    /// If they were not loaded, or cannot be read.
    pub(crate) fn archive(&self) -> Result<Option<SessionArchive>> {
        let pack = |files| SessionArchive::pack(&self.state, captured(files)).map_err(Error::new);
        self.files()?.map(pack).transpose()
    }

    /// Has stores that go on from there get copies of the files.
    ///
    /// # Errors
    /// If they were not loaded.
    pub(crate) fn give_files(&self, builder: &mut WasiCtxBuilder) -> Result<()> {
        if let Some(files) = self.files()? {
            builder.session_files(captured(files), files.path());
        }
        Ok(())
    }

    /// The place of the files, if the program has a session.
    ///
    /// # Errors
    /// If they were not loaded.
    fn files(&self) -> Result<Option<&OwnDir>> {
        if self.files.is_none() && has_session(&self.state) {
            let text = "the files of the program's session were not loaded: use \
                        pagefork_snapshot_load_with_files";
            return Err(BorderError::Unfit(text.to_owned()).into());
        }
        Ok(self.files.as_ref())
    }
}

fn has_session(state: &WasiState) -> bool {
    state.session_dirs().next().is_some()
}

/// Where the files are as they were.
fn captured(files: &OwnDir) -> PathBuf {
    files.path().join("captured")
}
