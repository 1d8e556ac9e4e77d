//! Both sides of a connection.

/// Of a memory node, one for each peer.
pub(crate) mod memory;
/// What a memory node has been asked for and has not sent.
pub(crate) mod backlog;
/// Of a running node, one for all peers.
pub(crate) mod running;
/// What a running node knows of one of its connections.
pub(crate) mod link;
/// What a running node knows of one of its images.
pub(crate) mod fetch;
/// What a running node does with answers.
pub(crate) mod answers;
