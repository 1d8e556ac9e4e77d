//! The protocol by which an instance runs before its memory has arrived.
//!
//! A *memory node* has images; a *running node* asks for the groups of pages that its guests touch,
//! and for others ahead. Both sides are state machines without I/O, threads and clocks: bytes and
//! moments go in, bytes and deadlines come out. What carries the bytes has to authenticate both
//! sides. `docs/PROTOCOL.md` describes the messages.
//!
//! 1. Nothing that a peer sends is believed: each group is proved against its image's hash tree
//!    before it is given out.
//! 2. Whatever a peer asks is within limits that it was told; who asks for more is left.
//! 3. Every wait has a deadline, which the caller gives.
//! 4. Of an instance that migrates there is at most one owner at any time.
//!
//! ```text
//!   node       both sides of a connection: requests, answers, limits, leases
//!     |
//!   plan       which group next
//!     |
//!   migrate    handing an instance over
//!     |
//!   wire       messages, their bytes, tokens
//!     |
//!   base       errors, limits, moments
//! ```
//!
//! [`MemoryNode`] has an example of both sides.

#![forbid(unsafe_code)]
// Lists of one range are meant.
#![allow(clippy::single_range_in_vec_init)]

/// Both sides of a connection.
pub(crate) mod node;
/// Which groups to ask for.
pub(crate) mod plan;
/// Handing an instance over.
pub(crate) mod migrate;
/// Messages, their bytes, tokens.
pub(crate) mod wire;
/// Errors, limits, moments.
pub(crate) mod base;

pub use crate::base::error::{ProtocolError, TokenError};
pub use crate::base::limits::{FAREWELL_MAX, FetchLimits, MESSAGE_SIZE_MAX, ServeLimits};
pub use crate::base::moment::Moment;
pub use crate::migrate::source::{
    KnownRecords, MigrationSource, SourceInput, SourceOutput, SourceRecord, SourceState,
};
pub use crate::migrate::target::{
    MigrationTarget, TargetInput, TargetOutput, TargetRecord, TargetState,
};
pub use crate::node::memory::{MemoryInput, MemoryNode, MemoryOutput, PeerAccess, ServedImage};
pub use crate::node::running::{
    ConnectionId, HolderLoss, ImageKey, RunningInput, RunningNode, RunningOutput,
};
pub use crate::plan::layer::{PlanCounts, PlanLayer};
pub use crate::plan::planner::{FetchPlan, PlanReport};
pub use crate::wire::body::{BodyEncoder, GroupBody};
pub use crate::wire::frame::{FrameDecoder, Lane, encode};
pub use crate::wire::message::{
    EndReason, GroupRange, Hello, Message, PROTOCOL_VERSION, Priority, Welcome,
};
pub use crate::wire::migration::{MigrationId, MigrationMessage, MigrationStep};
pub use crate::wire::token::{ImageToken, TokenRights, TokenSubject};
