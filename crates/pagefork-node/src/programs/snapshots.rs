//! Images of programs that run on: they are captured between two instructions, and saved while they run.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use pagefork_image::{ContentHash, ImageError, SavedHolder, check_holders, check_name};
use serde::{Deserialize, Serialize};

use super::capture::{CaptureFailure, CapturedProgram};
use super::kept;
use super::node::ProgramNode;
use super::program::{AfterRest, NodeProgram, PATIENCE_MAX, ReadyProgram};
use super::wire::ProgramPhase;

/// Between two looks whether a program has closed what no image can have.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// How a program is captured that runs on.
/// [`ProgramClient::snapshot`](crate::ProgramClient::snapshot) has an example.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CaptureOptions {
    /// What the image is called in the node's store; no other image may have the name. Without one it is
    /// found by its hash, until it is collected.
    pub name: Option<String>,
    /// How long it is waited for: that the program comes to rest, and that it closes what no image can
    /// have, each: 10 s by default.
    pub patience: Duration,
    /// Who else will have the image, as its manifest is to say: at most what
    /// [`check_holders`](pagefork_image::check_holders) lets it.
    pub holders: Vec<SavedHolder>,
}

impl Default for CaptureOptions {
    fn default() -> Self {
        Self { name: None, patience: Duration::from_secs(10), holders: Vec::new() }
    }
}

/// An image of a program that runs on.
/// [`ProgramClient::snapshot`](crate::ProgramClient::snapshot) has an example.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CaptureReport {
    /// The image, in the node's store.
    pub image: ContentHash,
    /// Bytes of it: of pages, and of what lies among them.
    pub size: u64,
    /// How long the program rested for it.
    pub rested: Duration,
    /// How long it took then, while the program ran, until the image was in the store: all pages that
    /// were not at the node came meanwhile.
    pub saving: Duration,
}

/// Captures a program, and saves it while it runs on.
///
/// # Errors
/// Why there is no image of it. The program runs as it did.
pub(super) fn capture(
    node: &ProgramNode,
    program: &str,
    options: &CaptureOptions,
) -> Result<CaptureReport, String> {
    let CaptureOptions { name, patience, holders } = options;
    let patience = patience.min(&PATIENCE_MAX);
    let node_options = node.options();
    // Before the program rests.
    check_holders(holders).map_err(|error| error.to_string())?;
    if let Some(name) = name {
        check_free(node, name)?;
    }
    let program = node.find(program)?;
    check_runs(&program)?;
    let until = Instant::now() + *patience;
    let (captured, rested) = loop {
        match rest(node, &program, *patience)? {
            Ok(captured) => break captured,
            Err(CaptureFailure::Failed(why)) => return Err(why),
            Err(CaptureFailure::Open(why)) if Instant::now() >= until => {
                return Err(format!("it was waited for {} s: {why}", patience.as_secs()));
            }
            Err(CaptureFailure::Open(_)) => thread::sleep(LOOK_AGAIN),
        }
    };
    let began = Instant::now();
    // Collection spares it as long as `captured` is kept.
    let image = captured.save_alone(&node_options.images, &node_options.image_key, holders)?;
    if let Some(name) = name {
        node_options.images.set_new_name(name, image).map_err(|error| match error {
            ImageError::NameTaken { .. } => format!(
                "{error}; it was free before: what was captured is image {image}, without a name"
            ),
            other => other.to_string(),
        })?;
    }
    Ok(CaptureReport { image, size: captured.size(), rested, saving: began.elapsed() })
}

/// Has the program rest for as long as it takes to capture it.
fn rest(
    node: &ProgramNode,
    program: &Arc<NodeProgram>,
    patience: Duration,
) -> Result<Result<(CapturedProgram, Duration), CaptureFailure>, String> {
    let (host, known) = (node.clone(), Arc::clone(program));
    let job = move |ready: &mut ReadyProgram| {
        let began = Instant::now();
        // It may have been handed over since it was asked for.
        let captured = match check_runs(&known) {
            Ok(()) => host.host().capture(ready, None),
            Err(why) => Err(CaptureFailure::Failed(why)),
        };
        // Whether it runs on is for others to say, who may be about to move it.
        (AfterRest::AsBefore, captured.map(|captured| (captured, began.elapsed())))
    };
    program.at_rest(patience, job)
}

fn check_runs(program: &NodeProgram) -> Result<(), String> {
    match program.phase() {
        ProgramPhase::Running => Ok(()),
        ProgramPhase::Ended(_) => Err("it has ended, and there is nothing to capture".to_owned()),
        ProgramPhase::Lost(why) => Err(format!("it is lost: {why}")),
        ProgramPhase::Moving { .. } => {
            Err("it is on its way to another node: capture it when it is there".to_owned())
        }
        ProgramPhase::HandedOver { .. } | ProgramPhase::Declined { .. } => {
            Err("it was handed over to another node, and does not run here".to_owned())
        }
        ProgramPhase::Moved { .. } => {
            Err("it has moved to another node: capture it there".to_owned())
        }
    }
}

/// Before the program rests: what is known too late costs it a pause for nothing.
fn check_free(node: &ProgramNode, name: &str) -> Result<(), String> {
    check_name(name).map_err(|error| error.to_string())?;
    if kept::is_reserved(name) {
        return Err(format!("names like {name:?} are for images of programs that move"));
    }
    let names = node.options().images.names().map_err(|error| error.to_string())?;
    match names.get(name) {
        None => Ok(()),
        Some(image) => {
            Err(ImageError::NameTaken { name: name.to_owned(), image: *image }.to_string())
        }
    }
}
