//! The side of a running node: it takes an image in before it goes on with what is in it.

use std::io::{self, ErrorKind, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Instant;

use pagefork_image::{
    ContentHash, ImageError, ImageHead, ImageStore, PublicKey, SecretKey, StoredImage, TrustedKeys,
};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Connection};

use crate::address::Transport;
use crate::base::{NodeError, NodeTimes};
use crate::channel::Channel;
use crate::identity::{self, Protocol};
use crate::message::{self, Answer, Wish};
use crate::quic::channel::QuicChannel;
use crate::tls::channel::{TimedSocket, TlsChannel};

/// Bytes of a signature with its key.
const SIGNATURE_SIZE: usize = 96;

/// A memory node, as one that connects to it knows it. [`MemoryServer`](crate::MemoryServer) has an
/// example.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryPeer {
    /// Where it is, and by what it is reached there: `HOST:PORT` for TLS over TCP, `quic://HOST:PORT`
    /// for QUIC. [`Transport::of`] says which.
    pub address: String,
    /// The key that it authenticates itself with.
    pub key: PublicKey,
}

/// Takes the image that `name` means at `peer` into `images`, with its ancestors and code, unless
/// they are here: a name, a hash, or the first digits of one. It is spared by collection as long
/// as what is returned is kept. `own` is the key that this node has at the peer.
///
/// # Errors
/// [`NodeError::Io`] if the peer cannot be reached or is silent for too long;
/// [`NodeError::Handshake`] if one of the two does not know the other; [`NodeError::Refused`] if
/// it has no such image; [`NodeError::Image`] if none of `signers` has signed the image, or what
/// came is not what it is said to be; [`NodeError::Malformed`] and [`NodeError::OtherImage`] if
/// the peer talks nonsense. What the store has then that it had not before is signed and without a
/// name, so that collection removes it.
///
/// # Examples
///
/// See [`MemoryServer`](crate::MemoryServer).
pub fn fetch_image(
    peer: &MemoryPeer,
    own: &SecretKey,
    name: &str,
    images: &ImageStore,
    signers: &TrustedKeys,
    times: &NodeTimes,
) -> Result<StoredImage, NodeError> {
    fetch_checked(peer, own, name, images, signers, times, None)
}

/// What is to be said against an image before it travels.
pub(crate) type HeadCheck<'a> = &'a dyn Fn(&ImageHead) -> Result<(), NodeError>;

/// The same, but for an image against which something is to be said: then its head has come and nothing
/// else.
///
/// # Errors
/// As of [`fetch_image`]; what the check says.
pub(crate) fn fetch_checked(
    peer: &MemoryPeer,
    own: &SecretKey,
    name: &str,
    images: &ImageStore,
    signers: &TrustedKeys,
    times: &NodeTimes,
    check: Option<HeadCheck<'_>>,
) -> Result<StoredImage, NodeError> {
    let mut channel = reach(peer, own, Protocol::Images, times)?;
    let strange = |error| NodeError::Handshake { address: peer.address.clone(), error };
    let sent = message::write_text(&mut channel, name).and_then(|()| channel.flush());
    sent.map_err(strange)?;
    // A memory node that does not know us says so only here: its side of the handshake ends last.
    let wanted = match Answer::read(&mut channel) {
        Ok(Answer::Has(hash)) => hash,
        Ok(Answer::Refuses(reason)) => {
            return Err(NodeError::Refused { name: name.to_owned(), reason });
        }
        Err(error) => return Err(answer_error(peer, error)),
    };
    if let Some(asked) = name.parse().ok().filter(|asked: &ContentHash| *asked != wanted) {
        return Err(NodeError::OtherImage { wanted: asked, found: wanted });
    }
    let here = here(images, wanted, signers)?;
    if let Some(check) = check.filter(|_| here.is_none()) {
        let talk = || NodeError::io(format!("get the head of an image of node {}", peer.address));
        let asked = Wish::Head.write(&mut channel).and_then(|()| channel.flush());
        asked.map_err(talk())?;
        let limits = images.limits();
        let manifest = message::read_blob(&mut channel, limits.manifest_size).map_err(talk())?;
        let signatures_max = limits.signatures.saturating_mul(SIGNATURE_SIZE) as u64;
        let signatures = message::read_blob(&mut channel, signatures_max).map_err(talk())?;
        if let Err(why) = check(&ImageHead::decode(wanted, manifest, signatures, limits)?) {
            // Who does not hear it notices when the connection is gone.
            let _ = Wish::Nothing.write(&mut channel).and_then(|()| channel.flush());
            return Err(why);
        }
    }
    let wish = if here.is_some() { Wish::Nothing } else { Wish::Stream };
    let said = wish.write(&mut channel).and_then(|()| channel.flush());
    said.map_err(NodeError::io(format!("ask node {}", peer.address)))?;
    match here {
        Some(image) => Ok(image),
        None => receive(channel, wanted, images, signers),
    }
}

/// Connects to a memory node: both sides know each other then.
pub(crate) fn reach(
    peer: &MemoryPeer,
    own: &SecretKey,
    protocol: Protocol,
    times: &NodeTimes,
) -> Result<Channel, NodeError> {
    let deadline = Instant::now() + times.handshake;
    let config = identity::client_config(own, peer.key, protocol).map_err(io::Error::other);
    let config = config.map_err(NodeError::io("use this node's key"))?;
    let channel = match Transport::of(&peer.address) {
        (Transport::Tls, place) => reach_by_tls(peer, place, config, deadline, times)?,
        (Transport::Quic, place) => {
            let reached = QuicChannel::connect(place, config, protocol, deadline, times);
            Channel::Quic(Box::new(reached.map_err(|error| match error.kind() {
                // Nobody is there, as far as is known.
                ErrorKind::TimedOut | ErrorKind::ConnectionRefused | ErrorKind::NotFound => {
                    NodeError::Io { action: format!("reach node {}", peer.address), error }
                }
                _ => NodeError::Handshake { address: peer.address.clone(), error },
            })?))
        }
    };
    let strange = |error| NodeError::Handshake { address: peer.address.clone(), error };
    let agreed = channel.protocol().map_err(strange)?;
    if agreed.protocol != protocol {
        return Err(NodeError::Malformed("another protocol than was asked for"));
    }
    match agreed.version == protocol.version() {
        true => Ok(channel),
        // A node of before: it would take for nonsense what it does not know.
        false => Err(NodeError::Version {
            address: peer.address.clone(),
            protocol: protocol.name(),
            found: agreed.version,
            supported: protocol.version(),
        }),
    }
}

fn reach_by_tls(
    peer: &MemoryPeer,
    place: &str,
    config: ClientConfig,
    deadline: Instant,
    times: &NodeTimes,
) -> Result<Channel, NodeError> {
    let socket = connect(place, deadline)?;
    let anything = ServerName::try_from("node.invalid").expect("it has the form of a name");
    let connection = ClientConnection::new(Arc::new(config), anything).map_err(io::Error::other);
    let connection = connection.map_err(NodeError::io("begin a connection"))?;
    let socket = TimedSocket::new(socket, deadline, times);
    let socket = socket.map_err(NodeError::io("set up a connection"))?;
    let mut channel = TlsChannel::new(Connection::Client(connection), socket);
    let strange = |error| NodeError::Handshake { address: peer.address.clone(), error };
    channel.shake_hands().map_err(strange)?;
    Ok(Channel::Tls(Box::new(channel)))
}

/// Takes the code images that an image needs into `images`, from the node that has the image, unless
/// they are here. Nothing of it counts but what has the hashes that `head` names; that it is signed
/// was checked when the head [was opened](crate::RemoteImage::open).
///
/// # Errors
/// As of [`fetch_image`].
///
/// # Examples
///
/// See [`RemoteImage`](crate::RemoteImage).
pub fn fetch_code(
    peer: &MemoryPeer,
    own: &SecretKey,
    head: &ImageHead,
    images: &ImageStore,
    times: &NodeTimes,
) -> Result<(), NodeError> {
    let needed = head.manifest().codes();
    let mut missing = Vec::new();
    for hash in &needed {
        match images.load_code(*hash) {
            Ok(_) => {}
            Err(ImageError::NotFound { .. }) => missing.push(*hash),
            Err(error) => return Err(error.into()),
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    let mut channel = open_image(peer, own, head.hash(), times)?;
    let talk = || NodeError::io(format!("get code of node {}", peer.address));
    let said = Wish::Code.write(&mut channel).and_then(|()| channel.flush());
    said.map_err(talk())?;
    channel.lift_deadline();
    for wanted in needed {
        let bytes = message::read_blob(&mut channel, images.limits().code_size).map_err(talk())?;
        match ContentHash::of(&bytes) {
            found if found != wanted => return Err(NodeError::OtherImage { wanted, found }),
            _ if missing.contains(&wanted) => drop(images.save_code(&bytes)?),
            _ => {}
        }
    }
    Ok(())
}

/// Takes these modules of an image into `images`, from the node that has the image, as far as it has kept them. Nothing
/// counts but what has the hashes that `head` names. Returns those that it has not kept.
///
/// # Errors
/// As of [`fetch_image`].
pub(crate) fn fetch_modules(
    peer: &MemoryPeer,
    own: &SecretKey,
    head: &ImageHead,
    images: &ImageStore,
    times: &NodeTimes,
    mut missing: Vec<ContentHash>,
) -> Result<Vec<ContentHash>, NodeError> {
    let mut channel = open_image(peer, own, head.hash(), times)?;
    let talk = || NodeError::io(format!("get modules of node {}", peer.address));
    let said = Wish::Modules.write(&mut channel).and_then(|()| Wish::Nothing.write(&mut channel));
    said.and_then(|()| channel.flush()).map_err(talk())?;
    channel.lift_deadline();
    for wanted in head.manifest().modules() {
        let bytes = message::read_blob(&mut channel, images.limits().code_size).map_err(talk())?;
        match ContentHash::of(&bytes) {
            _ if bytes.is_empty() => {}
            found if found != wanted => return Err(NodeError::OtherImage { wanted, found }),
            _ if missing.contains(&wanted) => {
                images.save_code(&bytes)?;
                missing.retain(|hash| *hash != wanted);
            }
            _ => {}
        }
    }
    Ok(missing)
}

/// Connects to a node that has an image, and names it: what is wanted of it is still to be said.
fn open_image(
    peer: &MemoryPeer,
    own: &SecretKey,
    image: ContentHash,
    times: &NodeTimes,
) -> Result<Channel, NodeError> {
    let mut channel = reach(peer, own, Protocol::Images, times)?;
    let talk = || NodeError::io(format!("ask node {}", peer.address));
    let name = image.to_string();
    let sent = message::write_text(&mut channel, &name).and_then(|()| channel.flush());
    sent.map_err(talk())?;
    match Answer::read(&mut channel).map_err(|error| answer_error(peer, error))? {
        Answer::Has(hash) if hash == image => Ok(channel),
        Answer::Has(found) => Err(NodeError::OtherImage { wanted: image, found }),
        Answer::Refuses(reason) => Err(NodeError::Refused { name, reason }),
    }
}

fn connect(address: &str, deadline: Instant) -> Result<TcpStream, NodeError> {
    let action = || format!("reach node {address}");
    let mut failed = io::Error::new(ErrorKind::NotFound, "the host has no address");
    for place in address.to_socket_addrs().map_err(NodeError::io(action()))? {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            failed = ErrorKind::TimedOut.into();
            break;
        }
        match TcpStream::connect_timeout(&place, left) {
            Ok(socket) => return Ok(socket),
            Err(error) => failed = error,
        }
    }
    Err(NodeError::Io { action: action(), error: failed })
}

/// The image with its code, if both are here.
pub(crate) fn here(
    images: &ImageStore,
    hash: ContentHash,
    signers: &TrustedKeys,
) -> Result<Option<StoredImage>, NodeError> {
    let image = match images.load(hash) {
        Ok(image) => image,
        Err(ImageError::NotFound { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let tip = image.chain().tip();
    // Whoever says what a name means would else choose among all that is here.
    if !tip.signers().iter().any(|signer| signers.contains(signer)) {
        return Err(ImageError::NotSigned { image: hash, signatures: tip.signers().len() }.into());
    }
    for code in tip.manifest().codes() {
        match images.load_code(code) {
            Ok(_) => {}
            Err(ImageError::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Some(image))
}

fn receive(
    mut channel: Channel,
    wanted: ContentHash,
    images: &ImageStore,
    signers: &TrustedKeys,
) -> Result<StoredImage, NodeError> {
    channel.lift_deadline();
    let mut received = images.import_signed(channel, signers)?;
    let last = received.pop().ok_or(NodeError::Malformed("a stream without an image"))?;
    match last.hash() {
        hash if hash == wanted => Ok(last),
        found => Err(NodeError::OtherImage { wanted, found }),
    }
}

fn answer_error(peer: &MemoryPeer, error: io::Error) -> NodeError {
    match error.kind() {
        ErrorKind::TimedOut => {
            NodeError::Io { action: format!("get an answer of node {}", peer.address), error }
        }
        _ => NodeError::Handshake { address: peer.address.clone(), error },
    }
}

#[cfg(test)]
mod tests;

/// Nodes of other versions.
#[cfg(test)]
mod versions;
