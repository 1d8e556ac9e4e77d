//! What a running node knows of one of its images.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use pagefork_image::{ContentHash, GroupProof, ImageHead};

use crate::node::running::ConnectionId;
use crate::plan::planner::{FetchPlan, Planner};

/// An image that is being fetched.
#[derive(Debug)]
pub(crate) struct FetchedImage {
    pub(crate) name: String,
    /// What it is, once that is known.
    pub(crate) hash: Option<ContentHash>,
    pub(crate) plan: FetchPlan,
    /// Its head, and which groups to ask for: as soon as the head is here.
    pub(crate) open: Option<(Arc<ImageHead>, Planner)>,
    pub(crate) holders: BTreeMap<ConnectionId, Holder>,
    /// Groups that guests wait for, and until when.
    pub(crate) waits: BTreeMap<u64, Instant>,
    /// What would stand in its tree for contents that are here, by group.
    pub(crate) here: BTreeMap<u64, Vec<ContentHash>>,
    /// Groups that are being looked up here, by the word of peers that have left since: what stands for
    /// each, and its proof.
    pub(crate) said: BTreeMap<u64, (ContentHash, GroupProof)>,
    /// Whether it has ever had a holder.
    pub(crate) had_holder: bool,
    /// Whether its caller was told that nobody has it.
    pub(crate) is_stranded: bool,
}

/// A connection whose peer may have the image.
#[derive(Debug)]
pub(crate) struct Holder {
    pub(crate) token: Vec<u8>,
    pub(crate) stage: HolderStage,
}

/// How far a holder is.
#[derive(Debug)]
pub(crate) enum HolderStage {
    /// It has too many open images, or was not asked yet.
    Queued,
    /// It was asked.
    Opening { number: u32 },
    /// Its head comes.
    Head(ComingHead),
    /// Groups can be asked for.
    Ready { number: u32, renew_at: Option<Instant> },
}

/// A head of which not all is here.
#[derive(Debug)]
pub(crate) struct ComingHead {
    pub(crate) number: u32,
    /// What the holder says it is.
    pub(crate) hash: ContentHash,
    pub(crate) manifest_size: usize,
    /// Bytes of manifest and signatures.
    pub(crate) size: usize,
    pub(crate) bytes: Vec<u8>,
    /// Groups that follow it.
    pub(crate) certain: Vec<u64>,
    pub(crate) renew_at: Option<Instant>,
}

impl HolderStage {
    /// The image's number on the connection.
    pub(crate) fn number(&self) -> Option<u32> {
        match self {
            Self::Queued => None,
            Self::Opening { number } | Self::Ready { number, .. } => Some(*number),
            Self::Head(head) => Some(head.number),
        }
    }

    pub(crate) fn is_opening(&self) -> bool {
        matches!(self, Self::Opening { .. } | Self::Head(_))
    }
}

impl FetchedImage {
    pub(crate) fn new(name: String, hash: Option<ContentHash>, plan: FetchPlan) -> Self {
        Self {
            name,
            hash,
            plan,
            open: None,
            holders: BTreeMap::new(),
            waits: BTreeMap::new(),
            here: BTreeMap::new(),
            said: BTreeMap::new(),
            had_holder: false,
            is_stranded: false,
        }
    }

    /// When something of it is due.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let renewals = self.holders.values().filter_map(|holder| match holder.stage {
            HolderStage::Ready { renew_at, .. } => renew_at,
            _ => None,
        });
        renewals.chain(self.waits.values().copied()).min()
    }
}
