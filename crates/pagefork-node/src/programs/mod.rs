//! Programs that a node runs for clients.
//!
//! ```text
//!  attach     session     a client that has a program's streams; a client, on the node's side
//!     |          |
//!  client      node       asks; what a node has
//!     |       /    \
//!     |    host   program how programs begin; the thread of each
//!      \    |      |
//!       \   streams       standard streams, byte by byte
//!        \  |
//!         wire            what they say
//! ```

mod arriving;
mod attach;
mod capture;
mod client;
mod host;
mod kept;
mod move_control;
mod move_report;
mod moving;
mod needs;
mod node;
mod program;
mod records;
mod remembered;
mod sending;
mod session;
mod snapshots;
mod streams;
mod wire;

pub use arriving::ArrivalCounts;
pub use attach::{AttachStreams, attach_program};
pub use client::ProgramClient;
pub use host::{KnownPeers, NodeDirectory, ProgramLimits, ProgramNodeOptions};
pub use move_report::MigrateReport;
pub use moving::MigrateOptions;
pub use node::ProgramNode;
pub(crate) use session::{ClientVisit, refuse, serve};
pub use snapshots::{CaptureOptions, CaptureReport};
pub use wire::{
    KeptGroups, ProgramEnd, ProgramId, ProgramInfo, ProgramPhase, ProgramSource, ProgramStart,
    SecondPlace,
};

#[cfg(test)]
mod tests;
