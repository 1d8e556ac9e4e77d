//! Why a connection ends, and what to do about it.

use pagefork_image::ImageError;

/// Why a connection was ended, by this side or by its peer.
///
/// # Examples
///
/// ```
/// use pagefork_postcopy::{FrameDecoder, ProtocolError};
///
/// let mut decoder = FrameDecoder::default();
/// decoder.push(b"GET / HTTP/1.1");
/// assert!(matches!(decoder.message(), Err(ProtocolError::MessageTooLong { .. })));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// A peer of another version.
    #[error(
        "the peer speaks version {found} of the protocol, and this build version {supported}: use \
         the same release on both nodes"
    )]
    Version {
        /// The peer's.
        found: u32,
        /// Ours.
        supported: u32,
    },
    /// A message that is longer than any may be.
    #[error(
        "a message of {size} bytes was announced, and none has more than {limit}: the peer is no node, or damaged"
    )]
    MessageTooLong {
        /// Bytes that were announced.
        size: u32,
        /// Bytes that a message may have.
        limit: u32,
    },
    /// Bytes that are no message.
    #[error("the peer has sent what is no message: {0}")]
    Malformed(String),
    /// A message that is none where it stands.
    #[error("the peer has sent what it must not send here: {0}")]
    Unexpected(&'static str),
    /// More than the peer was allowed.
    #[error("the peer wants {what} beyond the limit of {limit}, which it was told")]
    Exceeded {
        /// What it wants too much of.
        what: &'static str,
        /// What it was told.
        limit: u64,
    },
    /// A group that is not the image's.
    #[error(
        "the peer has sent other bytes than those of group {group} of image {image}: do not use it as a source"
    )]
    WrongGroup {
        /// The image, by its hash in hexadecimal digits.
        image: String,
        /// The group.
        group: u64,
    },
    /// A head that is not the image's.
    #[error("the peer has sent a head that is not that of the image: {0}")]
    WrongHead(#[source] ImageError),
    /// No answer in time.
    #[error("the peer has not answered for {seconds} s: check the network, or raise the time")]
    Stalled {
        /// How long it was waited for.
        seconds: u64,
    },
    /// Nothing came for too long.
    #[error("nothing has come from the peer for {seconds} s")]
    Idle {
        /// How long nothing came.
        seconds: u64,
    },
    /// The peer has ended the connection, and says why.
    #[error("the peer has ended the connection: {0:?}")]
    PeerLeft(String),
}

/// Why a token is not accepted.
///
/// # Examples
///
/// ```
/// use pagefork_image::{PublicKey, TrustedKeys};
/// use pagefork_postcopy::{ImageToken, TokenError};
///
/// let peer = PublicKey::from_bytes([1; 32]);
/// let refused = ImageToken::check(b"short", &TrustedKeys::default(), &peer, 0).unwrap_err();
/// assert!(matches!(refused, TokenError::Malformed));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// No token at all.
    #[error("it is no token of this version")]
    Malformed,
    /// Signed by a key that is not trusted here, or by none.
    #[error("no key that is trusted here has signed the token")]
    Foreign,
    /// Made for another node.
    #[error("the token is for another node")]
    OtherHolder,
    /// Of a time that is over.
    #[error("the token has expired: ask for a new one")]
    Expired,
    /// For another image.
    #[error("the token is for another image")]
    OtherImage,
    /// Without the right that is needed.
    #[error("the token does not allow this")]
    NotAllowed,
}
