//! Nodes: they know each other by their keys, and start programs from each other's images.
//!
//! A *memory node* serves its store of images over TLS 1.3 on TCP, or QUIC. Who connects to it is known by an
//! Ed25519 key, as is the memory node itself; there are no certificates. An image comes whole, with
//! its ancestors and code, as one stream of `pagefork-image`, and nothing of it counts before all
//! was verified. Or programs start as soon as its head and code are here ([`start_image`]), and each
//! page counts when it was proved. When a node is lost others are asked, or object stores
//! ([`ImagePlace`]).
//!
//! A node can run programs, too, for clients that may use it ([`ProgramNode`]): they are started,
//! listed and stopped, and their standard streams go to who attaches.
//!
//! 1. Who has no key that is let in gets nothing, not even an answer.
//! 2. An image is taken in only with a trusted signature: machine code comes with it. Whom one
//!    fetches from is another question than whose code one runs.
//! 3. Every wait for a peer has a limit.
//!
//! ```text
//!            start        programs go on before the pages are here
//!    serve  /     \       who connects is served images, pages by `give`, and
//!    |  \ programs |      programs that run here, for clients
//!    |   \  |      |
//!    |    fetch   take    the other side: images whole; pages as they are needed,
//!    |      |      |     from object stores by `place` when nodes are lost, and
//!    |      |      |     from images that are here by `here`
//!    |      |      |
//!    |  message   duplex  what they say, and both at any time
//!   listen  |     /
//!     \  channel          a connection, with limits of time
//!      \  /   \
//!      tls     quic       what carries the bytes
//!        \    /
//!        identity         keys as TLS has them
//!           |
//!         base            errors, limits of time
//! ```
//!
//! [`MemoryServer`] has an example of both sides.

#![forbid(unsafe_code)]

/// Images that several starts share while their pages come.
pub(crate) mod coming;
/// The side of a running node that starts before the pages are here.
pub(crate) mod start;
/// Places that keep images and are no nodes.
pub(crate) mod place;
/// The side of a running node that takes images in.
pub(crate) mod fetch;
/// The side of a memory node.
pub(crate) mod serve;
/// Programs that a node runs for clients.
pub(crate) mod programs;
/// States of a program that are sent ahead.
pub(crate) mod ahead;
/// The side of a running node that gets pages as they are needed.
pub(crate) mod take;
/// Tokens that were shown.
pub(crate) mod shown;
/// Groups that need not come, since other images have them.
pub(crate) mod here;
/// The side of a memory node that gives pages as they are asked for.
pub(crate) mod give;
/// A connection on which both sides speak whenever they want to.
pub(crate) mod duplex;
/// Other holders of an image, once the first one does not give it.
mod elsewhere;
/// Holders that images name.
pub(crate) mod named;
/// Images that peers depend on.
pub(crate) mod leases;
/// Images of which somebody wants to know how far they were read.
pub(crate) mod watched;
/// Who connects.
mod listen;
/// Nodes of tests that do what none should.
#[cfg(test)]
pub(crate) mod strangers;
/// Whether memory is short.
pub(crate) mod pressure;
/// What guests take while their pages come.
mod guests;
/// Where the time goes.
pub(crate) mod times;
/// What the two say to each other.
pub(crate) mod message;
/// A connection, with limits of time.
pub(crate) mod channel;
/// TLS over TCP.
pub(crate) mod tls;
/// QUIC.
pub(crate) mod quic;
/// What is to be sent, in order.
pub(crate) mod outbox;
/// Waiting for descriptors.
pub(crate) mod poll;
/// What comes has a least rate.
pub(crate) mod pace;
/// Keys as TLS has them.
pub(crate) mod identity;
/// Where nodes are.
pub(crate) mod address;
/// Errors, limits of time.
pub(crate) mod base;

pub use crate::address::{NodeAddress, Transport};
pub use crate::base::{NodeError, NodeTimes, PageTimes};
pub use crate::coming::{ComingImages, SharedImage};
pub use crate::fetch::{MemoryPeer, fetch_code, fetch_image};
pub use crate::guests::{GuestClock, GuestTimes, ThreadClock, TimeSpent};
pub use crate::named::HolderCheck;
pub use crate::place::{ImagePlace, PageHolder};
pub use crate::programs::{
    ArrivalCounts, AttachStreams, CaptureOptions, CaptureReport, KeptGroups, KnownPeers,
    MigrateOptions, MigrateReport, NodeDirectory, ProgramClient, ProgramEnd, ProgramId,
    ProgramInfo, ProgramLimits, ProgramNode, ProgramNodeOptions, ProgramPhase, ProgramSource,
    ProgramStart, SecondPlace, attach_program,
};
pub use crate::serve::{MemoryServer, ServeEvent, ServeOptions};
pub use crate::start::{ComingImage, FoundImage, StartEvent, StartOptions, start_image};
pub use crate::take::{FetchReport, PageFetch, PageSink, RemoteImage};
pub use crate::times::{FetchMoment, FetchTimes, WaitTimes};
