//! What is saved of a program beside its pages.

use pagefork::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::state::saved::WasiState;

/// The form of these bytes.
const VERSION: u8 = 1;

/// What the host keeps of a program that was captured: it is saved with the image, as
/// [`SaveOptions::state`](pagefork::SaveOptions::state).
///
/// # Examples
///
/// ```
/// use pagefork_wasi::{ProgramState, WasiCtx};
///
/// let wasi = WasiCtx::builder().arg("program").build()?.save()?;
/// let state = ProgramState { wasi, written: b"ready\n".to_vec() };
/// assert_eq!(ProgramState::from_bytes(&state.to_bytes()?)?, state);
/// assert!(ProgramState::from_bytes(b"something else").is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProgramState {
    /// The WASI state.
    pub wasi: WasiState,
    /// What it had written to standard output that belongs to the output of each fork; or what else
    /// an embedder keeps of it.
    pub written: Vec<u8>,
}

/// An image is not one of a program.
///
/// # Examples
///
/// ```
/// use pagefork_wasi::{ProgramState, ProgramStateError};
///
/// assert_eq!(ProgramState::from_bytes(b"something else"), Err(ProgramStateError));
/// ```
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the image is of no program: its embedder has saved a state of another form with it")]
pub struct ProgramStateError;

impl ProgramState {
    /// The state as bytes. Files of its session are saved beside it: see
    /// [`SessionArchive`](crate::SessionArchive).
    ///
    /// # Errors
    /// If it cannot be written at all.
    ///
    /// # Examples
    ///
    /// See [`ProgramState`].
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        postcard::to_extend(self, vec![VERSION]).map_err(Error::new)
    }

    /// The state that these bytes are.
    ///
    /// # Errors
    /// [`ProgramStateError`] if they are none.
    ///
    /// # Examples
    ///
    /// See [`ProgramState`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ProgramStateError> {
        match bytes {
            [VERSION, state @ ..] => match postcard::take_from_bytes(state) {
                Ok((state, [])) => Ok(state),
                _ => Err(ProgramStateError),
            },
            _ => Err(ProgramStateError),
        }
    }
}
