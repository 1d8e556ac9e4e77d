//! What a program that moves needs of the node that is to have it: said with the offer, so that what is not
//! there is refused while the program runs.

use std::time::Duration;

use pagefork::IncompleteImage;
use pagefork_image::{Manifest, SavedCode, SavedInstance};
use pagefork_wasi::ProgramState;
use serde::{Deserialize, Serialize};

use super::host::ProgramHost;
use super::program::{AfterRest, NodeProgram, ReadyProgram};

/// Longer states are not said: they are read with the program.
const STATE_MAX: usize = 64 << 10;

/// Kinds of processors that code of one program is for, at most.
const PROCESSORS_MAX: usize = 16;

/// What a program needed when it was offered. It runs on, and may need more by the time it is handed over.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(super) struct ProgramNeeds {
    /// Bytes of all its memories.
    memory: u64,
    /// What its code and its runtime agree on.
    abi: u32,
    /// The processors that its code was made for.
    processors: Vec<String>,
    /// What it has of WASI, among it the files that it has open; not of a program with a session, whose files
    /// travel with it, and not while something is open that cannot be saved.
    wasi: Option<Vec<u8>>,
}

impl ProgramNeeds {
    /// Has a program rest for a moment, and looks.
    ///
    /// # Errors
    /// If it has ended before, or did not rest in time.
    pub(super) fn of(program: &NodeProgram, patience: Duration) -> Result<Self, String> {
        program.at_rest(patience, |ready| (AfterRest::GoesOn, Self::of_ready(ready)))
    }

    fn of_ready(ready: &ReadyProgram) -> Self {
        let wasi = ready.store.data().ctx.save().ok();
        let state = wasi.map(|wasi| ProgramState { wasi, written: Vec::new() }.to_bytes());
        let state = state.and_then(Result::ok).filter(|state| state.len() <= STATE_MAX);
        Self {
            memory: ready.store.memory_total(),
            abi: IncompleteImage::own_code().abi,
            processors: ready.store.processors(),
            wasi: state,
        }
    }

    /// Whether a node has what there is to be had.
    ///
    /// # Errors
    /// What it has not.
    pub(super) fn check(&self, host: &ProgramHost, has_sockets: bool) -> Result<(), String> {
        let limit = host.options.limits.memory;
        if self.memory > limit {
            return Err(format!(
                "the program has {} bytes of memory, and programs of this node may have {limit}",
                self.memory
            ));
        }
        if self.processors.len() > PROCESSORS_MAX {
            return Err(format!(
                "the program says that it needs {} processors",
                self.processors.len()
            ));
        }
        let code = |processor: &String| {
            let (abi, processor) = (self.abi, processor.clone());
            let code = SavedCode { abi, processor, ..SavedCode::default() };
            SavedInstance { code, ..SavedInstance::default() }
        };
        let instances = self.processors.iter().map(code).collect();
        let manifest = Manifest { instances, ..Manifest::default() };
        IncompleteImage::check_code(&manifest).map_err(|error| format!("{error:#}"))?;
        let Some(state) = &self.wasi else { return Ok(()) };
        let state = ProgramState::from_bytes(state).map_err(|error| error.to_string())?;
        host.check_state(&state.wasi, has_sockets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Transport;
    use crate::programs::tests::node;

    #[test]
    fn code_that_cannot_run_here_and_states_that_mean_nothing_are_refused() {
        let (node, _) = node("needs", Transport::Tls);
        let own = ProgramNeeds { abi: IncompleteImage::own_code().abi, ..ProgramNeeds::default() };
        let checked = |needs: ProgramNeeds| needs.check(node.host(), false);
        assert_eq!(checked(own.clone()), Ok(()));
        let processors = vec!["x86-64-v2".to_owned()];
        assert_eq!(checked(ProgramNeeds { processors, ..own.clone() }), Ok(()));
        let processors = vec!["x86-64-v2".to_owned(), "x86-64-v4".to_owned()];
        let why = checked(ProgramNeeds { processors: processors.clone(), ..own.clone() });
        assert!(why.unwrap_err().contains("for x86-64-v4 processors"));
        let why = checked(ProgramNeeds { processors, abi: own.abi + 1, ..own.clone() });
        assert!(why.unwrap_err().contains("ABI"));
        let many = vec!["x86-64-v2".to_owned(); PROCESSORS_MAX + 1];
        checked(ProgramNeeds { processors: many, ..own.clone() }).unwrap_err();
        let memory = node.host().options.limits.memory + 1;
        checked(ProgramNeeds { memory, ..own.clone() }).unwrap_err();
        checked(ProgramNeeds { wasi: Some(vec![7; 100]), ..own }).unwrap_err();
    }
}
