//! What is captured of a program, and how one that moves goes on from that.

use std::sync::Arc;

use pagefork::{SaveOptions, Snapshot};
use pagefork_image::{ContentHash, ImageStore, SavedHolder, SecretKey, check_name};
use pagefork_wasi::{OwnDir, ProgramState, SaveError, SessionArchive, WasiState};
use serde::{Deserialize, Serialize};

use super::host::ProgramHost;
use super::program::{HeldPages, NodeGuest, ReadyProgram};
use super::streams::StreamsRecord;
use super::wire::ProgramId;

/// The kind of the attachment that has a [`MovingRecord`].
const KIND: u32 = 16;

/// The form of these bytes.
const VERSION: u8 = 1;

/// Bytes of a record at most.
const SIZE_MAX: u64 = 1 << 20;

/// What goes with a program besides its pages, its WASI state and its files.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct MovingRecord {
    pub(super) program: ProgramId,
    pub(super) name: String,
    /// How often it was handed over before.
    pub(super) epoch: u64,
    pub(super) streams: StreamsRecord,
    /// Whether it has the node's listening sockets.
    pub(super) has_sockets: bool,
}

/// A program that rests, with all that is saved of it.
pub(super) struct CapturedProgram {
    pub(super) snapshot: Snapshot<NodeGuest>,
    wasi: WasiState,
    /// The files of its session, and their list.
    files: Option<(OwnDir, SessionArchive)>,
    /// What gives pages that are not here yet, also if the program ends meanwhile.
    #[expect(dead_code, reason = "they are kept")]
    pages: HeldPages,
}

/// What a program was handed over from. To give back its pages can take longer than all else for which it rests: an
/// image that differs in many pages has a file of all of them.
pub(super) struct SpentSnapshots {
    _captured: CapturedProgram,
    /// The last state that went ahead.
    _ahead: Option<Snapshot<NodeGuest>>,
}

impl SpentSnapshots {
    pub(super) fn new(captured: CapturedProgram, ahead: Option<Snapshot<NodeGuest>>) -> Self {
        Self { _captured: captured, _ahead: ahead }
    }
}

/// Why a program cannot be captured.
#[derive(Debug)]
pub(super) enum CaptureFailure {
    /// Because of what it has open now.
    Open(String),
    /// For good.
    Failed(String),
}

impl ProgramHost {
    /// Captures a program that rests; or one of which a state went ahead, and that is to leave: what has changed
    /// goes into that room.
    pub(super) fn capture(
        &self,
        ready: &mut ReadyProgram,
        leaves: Option<&mut Vec<u8>>,
    ) -> Result<CapturedProgram, CaptureFailure> {
        let failed = |error: pagefork::Error| CaptureFailure::Failed(format!("{error:#}"));
        let ctx = &ready.store.data().ctx;
        let (wasi, files) = match ctx.save() {
            Err(SaveError::NoPlaceForFiles { .. }) => {
                let own = self.own_directory().map_err(CaptureFailure::Failed)?;
                let copies = own.path().join("captured");
                let wasi = ctx.save_with_files(&copies).map_err(open_or_failed)?;
                let archive = SessionArchive::pack(&wasi, &copies);
                let archive = archive.map_err(|error| CaptureFailure::Failed(error.to_string()))?;
                (wasi, Some((own, archive)))
            }
            saved => (saved.map_err(open_or_failed)?, None),
        };
        let snapshot = match leaves {
            Some(room) => ready.store.snapshot_to_move_in(std::mem::take(room)),
            None => ready.store.snapshot(),
        };
        let snapshot = snapshot.map_err(failed)?;
        Ok(CapturedProgram { snapshot, wasi, files, pages: ready.pages.clone() })
    }

    /// The program of an image that came with a [`MovingRecord`].
    pub(super) fn read_moving(snapshot: &Snapshot<NodeGuest>) -> Result<MovingRecord, String> {
        let strange = || "it is no image of a program that moves".to_owned();
        let mut attachments = snapshot.attachments().iter();
        let index =
            attachments.position(|attachment| attachment.kind == KIND).ok_or_else(strange)?;
        let size = snapshot.attachments()[index].size;
        if size > SIZE_MAX {
            return Err(strange());
        }
        let mut bytes = vec![0; size as usize];
        let read = snapshot.read_attachment(index, 0, &mut bytes);
        read.map_err(|error| format!("{error:#}"))?;
        let record = bytes.strip_prefix(&[VERSION]).map(postcard::take_from_bytes);
        match record {
            Some(Ok((record, []))) => Some(record),
            _ => None,
        }
        .filter(|record: &MovingRecord| {
            !record.streams.is_excessive() && check_name(&record.name).is_ok()
        })
        .ok_or_else(strange)
    }
}

impl CapturedProgram {
    /// Saves all of it.
    pub(super) fn save(
        &self,
        record: &MovingRecord,
        images: &ImageStore,
        signer: &SecretKey,
    ) -> Result<ContentHash, String> {
        self.save_by(Some(record), signer, |options| self.snapshot.save(images, options))
    }

    /// Saves the program alone, as any command goes on with it: with streams of its own. The image names these
    /// holders.
    pub(super) fn save_alone(
        &self,
        images: &ImageStore,
        signer: &SecretKey,
        holders: &[SavedHolder],
    ) -> Result<ContentHash, String> {
        let save = |options: SaveOptions<'_>| self.snapshot.save(images, options.holders(holders));
        self.save_by(None, signer, save)
    }

    /// Saves what has changed since `parent`, in memory: in `room`, as far as that goes. Returns the bytes of
    /// the image, of which each part is shown as soon as it is known.
    pub(super) fn save_changes(
        &self,
        record: &MovingRecord,
        parent: &Snapshot<NodeGuest>,
        images: &ImageStore,
        signer: &SecretKey,
        room: Vec<u8>,
        show: &mut dyn FnMut(u64, &[u8]),
    ) -> Result<(ContentHash, Arc<Vec<u8>>), String> {
        self.save_by(Some(record), signer, |options| {
            self.snapshot.save_beside_in_parts(images, options.delta_of(parent), room, show)
        })
    }

    /// Bytes of the image that it was saved as.
    pub(super) fn size(&self) -> u64 {
        let saved = self.snapshot.stored_image();
        saved.map_or(0, |stored| stored.chain().tip().manifest().data_size)
    }

    fn save_by<T>(
        &self,
        record: Option<&MovingRecord>,
        signer: &SecretKey,
        save: impl FnOnce(SaveOptions<'_>) -> pagefork::Result<T>,
    ) -> Result<T, String> {
        let state = ProgramState { wasi: self.wasi.clone(), written: Vec::new() };
        let failed = |error: pagefork::Error| format!("{error:#}");
        let record = record.map(|record| postcard::to_extend(record, vec![VERSION]));
        let record = record.transpose().map_err(|error| error.to_string())?;
        let mut options = SaveOptions::new()
            .state(state.to_bytes().map_err(failed)?)
            .sign_with(std::slice::from_ref(signer));
        if let Some(record) = &record {
            options = options.attach("moving", KIND, record);
        }
        if let Some((_, archive)) = &self.files {
            options = archive.attach(options);
        }
        save(options).map_err(failed)
    }
}

fn open_or_failed(error: SaveError) -> CaptureFailure {
    match error {
        SaveError::Connection { .. } | SaveError::Pipe { .. } | SaveError::Unlinked { .. } => {
            CaptureFailure::Open(error.to_string())
        }
        other => CaptureFailure::Failed(other.to_string()),
    }
}
