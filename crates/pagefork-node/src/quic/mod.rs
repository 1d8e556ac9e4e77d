//! QUIC over UDP: a connection has a stream for each lane, and what is lost of one delays no other.
//!
//! The protocol itself is the state machine of `quinn-proto`, and the socket is `quinn-udp`'s. The thread
//! that has a connection drives it: it takes datagrams, says what time it is, and sends what is to be sent,
//! whenever it reads, writes or waits. A node that connects has a socket for each connection. At a node
//! that listens one thread takes all datagrams and gives each to the connection that it belongs to.
//!
//! ```text
//!    channel   duplex     reading that waits; both sides at any time
//!          \   /
//!           link          a connection, driven by its thread
//!            |
//!         listener        who connects; whose each datagram is
//!          /   \
//!      config   socket    limits; datagrams
//! ```

/// Reads and writes that end in time.
pub(crate) mod channel;
/// Both sides speak whenever they want to.
pub(crate) mod duplex;
/// A connection, driven by its thread.
mod link;
/// Who connects, and whose each datagram is.
pub(crate) mod listener;
/// What peers may do.
mod config;
/// A socket of UDP.
mod socket;
