//! What can go wrong between nodes, and how long they wait.

use std::io;
use std::time::Duration;

use pagefork_image::{ContentHash, ImageError, PublicKey};
use pagefork_postcopy::ProtocolError;

/// Why a node could not serve, or an image could not be fetched. [`fetch_image`](crate::fetch_image)
/// says when.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// The system or the network refused something.
    #[error("cannot {action}: {error}")]
    Io {
        /// What was tried.
        action: String,
        /// Why it failed.
        #[source]
        error: io::Error,
    },
    /// The two do not know each other.
    #[error(
        "no connection with node {address}: {error}; each of the two must trust the other's key, \
         as `pagefork node init` prints it"
    )]
    Handshake {
        /// Of the peer.
        address: String,
        /// What TLS says.
        #[source]
        error: io::Error,
    },
    /// The peer speaks another version of a protocol.
    #[error(
        "node {address} speaks version {found} of {protocol}, and this side version {supported}: \
         update what is older"
    )]
    Version {
        /// Of the peer.
        address: String,
        /// The protocol.
        protocol: &'static str,
        /// The peer's version.
        found: u32,
        /// The version of this side.
        supported: u32,
    },
    /// The peer has said no.
    #[error("the node does not give {name:?}: {reason}")]
    Refused {
        /// What was asked for.
        name: String,
        /// What the peer says.
        reason: String,
    },
    /// The peer lets this node have an image only by a token, and none that it takes was shown.
    #[error("the node does not give {name:?}: {why}")]
    NotAllowed {
        /// What was asked for.
        name: String,
        /// What is wrong with the token, and what to do.
        why: &'static str,
    },
    /// The peer has sent what it must not send.
    #[error("the node has sent what does not belong there: {0}; do not use it as a source")]
    Malformed(&'static str),
    /// Another image than the one that was asked for, or that the peer has announced.
    #[error("the node has given image {found} in place of {wanted}: do not use it as a source")]
    OtherImage {
        /// What it was to be.
        wanted: ContentHash,
        /// What it is.
        found: ContentHash,
    },
    /// A peer does not keep to the protocol of pages.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    /// Nobody has the rest of an image's pages any more.
    #[error(
        "node {address} could not be reached again for {seconds} s: {why}; what is absent of image \
         {image} is lost to its instances"
    )]
    Lost {
        /// The image.
        image: ContentHash,
        /// Of the peer.
        address: String,
        /// How long it was tried.
        seconds: u64,
        /// What came of the last attempt.
        why: String,
    },
    /// An object store does not give the rest of an image's pages.
    #[error(
        "{place} does not give the pages of image {image}: {why}; what is absent of it is lost to its \
         instances"
    )]
    PlaceLost {
        /// The image.
        image: ContentHash,
        /// What does not give it.
        place: String,
        /// What came of the last attempt.
        why: String,
    },
    /// The code of an image cannot run on this machine.
    #[error("image {image} cannot run here, and is not fetched: {why}")]
    CodeRefused {
        /// The image.
        image: ContentHash,
        /// Why not, and what to do.
        why: String,
        /// The module that code could be made of, and that who was asked has not kept.
        module: Option<ContentHash>,
    },
    /// None of several that may have an image gives it.
    #[error("nobody gives image {image}{}", told(tried))]
    Nowhere {
        /// The image.
        image: ContentHash,
        /// Who was asked, in this order, and what came of it.
        tried: Vec<(String, NodeError)>,
    },
    /// This node itself has failed, such as its store: it is not for want of who has an image.
    #[error(transparent)]
    OwnFailure(Box<NodeError>),
    /// The fetch was stopped by this side.
    #[error("the pages are not fetched any more: this node has stopped it")]
    Stopped,
    /// A node does not do what it was asked for.
    #[error("{name}: {reason}")]
    NotDone {
        /// What it was about.
        name: String,
        /// What the node says.
        reason: String,
    },
    /// Output of a program could not be written where it goes to.
    #[error("cannot write the output of a program: {0}; it goes on, and waits for who attaches")]
    Output(#[source] io::Error),
    /// A program has moved to a node that is not known.
    #[error("program {program} is at node {node} by now, and where that is is not known here")]
    Elsewhere {
        /// The program.
        program: String,
        /// The key of the node.
        node: PublicKey,
    },
    /// The node of a program could not be reached again.
    #[error(
        "the node that runs program {program} could not be reached again for {seconds} s: {why}; \
         if it is there, the program goes on"
    )]
    Parted {
        /// The program.
        program: String,
        /// How long it was tried.
        seconds: u64,
        /// What came of the last attempt.
        why: String,
    },
    /// The image is not accepted, or could not be read or kept.
    #[error(transparent)]
    Image(#[from] ImageError),
}

impl NodeError {
    /// Whether it is about who was asked, so that another holder may do what this one does not.
    pub(crate) fn is_of_peer(&self) -> bool {
        match self {
            Self::Io { .. }
            | Self::Handshake { .. }
            | Self::Version { .. }
            | Self::Refused { .. }
            | Self::NotAllowed { .. }
            | Self::Malformed(_)
            | Self::OtherImage { .. }
            | Self::Protocol(_)
            | Self::Lost { .. }
            | Self::PlaceLost { .. }
            | Self::Nowhere { .. } => true,
            Self::CodeRefused { module, .. } => module.is_some(),
            // Of what it has sent: failures of this node's store say so.
            Self::Image(error) => matches!(
                error,
                ImageError::Damaged(_)
                    | ImageError::NotAnImage
                    | ImageError::Version { .. }
                    | ImageError::NotSigned { .. }
                    | ImageError::NotFound { .. }
                    | ImageError::TooLarge { .. }
            ),
            Self::OwnFailure(_)
            | Self::Stopped
            | Self::NotDone { .. }
            | Self::Output(_)
            | Self::Elsewhere { .. }
            | Self::Parted { .. } => false,
        }
    }

    /// Makes an error of this node's system one that says what was tried.
    pub(crate) fn own(action: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let action = action.into();
        move |error| Self::OwnFailure(Box::new(Self::Io { action, error }))
    }

    /// Makes an error of the system one that says what was tried.
    pub(crate) fn io(action: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let action = action.into();
        move |error| Self::Io { action, error }
    }
}

/// Who was asked, and what came of it.
fn told(tried: &[(String, NodeError)]) -> String {
    tried.iter().map(|(holder, error)| format!("; {holder}: {error}")).collect()
}

/// How long a node waits for a peer.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use pagefork_node::NodeTimes;
///
/// let times = NodeTimes { idle: Duration::from_secs(2), ..NodeTimes::default() };
/// assert_eq!(times.handshake, Duration::from_secs(10));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeTimes {
    /// Until a connection is there, both sides are known, and what is wanted is said: 10 s by
    /// default, for all of it together.
    pub handshake: Duration,
    /// Without a byte from the peer, or a byte that it takes: 20 s by default.
    pub idle: Duration,
}

impl Default for NodeTimes {
    fn default() -> Self {
        Self { handshake: Duration::from_secs(10), idle: Duration::from_secs(20) }
    }
}

/// How long pages are waited for.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use pagefork_node::PageTimes;
///
/// let times = PageTimes { lost: Duration::from_secs(60), ..PageTimes::default() };
/// assert_eq!(times.patience, Duration::from_secs(30));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageTimes {
    /// As of whole images.
    pub node: NodeTimes,
    /// How long a guest waits for a page: 30 s by default.
    pub patience: Duration,
    /// How long a node that is lost is tried to be reached again: 15 s by default. If somebody has waited for a page
    /// of it by then, that counts as well, as half of the time at most.
    pub lost: Duration,
}

impl Default for PageTimes {
    fn default() -> Self {
        Self {
            node: NodeTimes::default(),
            patience: Duration::from_secs(30),
            lost: Duration::from_secs(15),
        }
    }
}
