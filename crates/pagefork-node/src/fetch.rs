//! The side of a running node: it takes an image in before it goes on with what is in it.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pagefork_image::{
    ContentHash, ImageError, ImageHead, ImageStore, Manifest, PublicKey, SecretKey, StoredCode,
    StoredImage, TrustedKeys,
};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Connection};

use crate::address::Transport;
use crate::base::{NodeError, NodeTimes};
use crate::channel::Channel;
use crate::identity::{self, Protocol};
use crate::message::{self, Answer, Wish};
use crate::pace::{self, Pace, PacedReader};
use crate::quic::channel::QuicChannel;
use crate::tls::channel::{TimedSocket, TlsChannel};
use crate::tls::early;

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
/// came is not what it is said to be; [`NodeError::OwnFailure`] if `images` refuses it; [`NodeError::Malformed`] and [`NodeError::OtherImage`] if
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

/// What is to be said of an image before it travels.
pub(crate) trait HeadCheck {
    /// Modules without which it cannot run here; `is_here` says whether all of the image is here already. Somebody who
    /// is trusted has signed it.
    ///
    /// # Errors
    /// What is to be said against it.
    fn needed_modules(
        &self,
        image: ContentHash,
        manifest: &Manifest,
        is_here: bool,
    ) -> Result<NeededModules, NodeError>;

    /// That a module is missing which the node that has the image has not kept.
    fn refused(&self, image: ContentHash, manifest: &Manifest, module: ContentHash) -> NodeError;
}

/// Modules that an image needs.
#[derive(Debug, Default)]
pub(crate) struct NeededModules {
    /// What is here: collection spares it as long as this is kept.
    pub(crate) held: Vec<StoredCode>,
    /// What is still to come.
    pub(crate) missing: BTreeSet<ContentHash>,
}

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
    check: Option<&dyn HeadCheck>,
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
    let mut held = Vec::new();
    if let Some(check) = check {
        let mut agree = || match &here {
            Some(image) => {
                let manifest = image.chain().tip().manifest();
                let needed = check.needed_modules(wanted, manifest, true)?;
                take_modules(&mut channel, peer, (wanted, manifest), images, times, needed, check)
            }
            None => {
                let head = take_head(&mut channel, peer, wanted, images)?;
                // Whoever gives the image decides who has signed it: nothing is done in its name before.
                if !head.signers().iter().any(|signer| signers.contains(signer)) {
                    let signatures = head.signers().len();
                    return Err(ImageError::NotSigned { image: wanted, signatures }.into());
                }
                let manifest = head.manifest();
                let needed = check.needed_modules(wanted, manifest, false)?;
                take_modules(&mut channel, peer, (wanted, manifest), images, times, needed, check)
            }
        };
        match agree() {
            Ok(modules) => held = modules,
            Err(why) => {
                // Who does not hear it notices when the connection is gone.
                let _ = Wish::Nothing.write(&mut channel).and_then(|()| channel.flush());
                return Err(why);
            }
        }
    }
    let wish = if here.is_some() { Wish::Nothing } else { Wish::Stream };
    let said = wish.write(&mut channel).and_then(|()| channel.flush());
    said.map_err(NodeError::io(format!("ask node {}", peer.address)))?;
    let image = match here {
        Some(image) => Ok(image),
        None => receive(channel, peer, wanted, images, signers, times),
    };
    // The image that is here now has them spared.
    drop(held);
    image
}

fn take_head(
    channel: &mut Channel,
    peer: &MemoryPeer,
    image: ContentHash,
    images: &ImageStore,
) -> Result<ImageHead, NodeError> {
    let talk = || NodeError::io(format!("get the head of an image of node {}", peer.address));
    let asked = Wish::Head.write(channel).and_then(|()| channel.flush());
    asked.map_err(talk())?;
    let limits = images.limits();
    let manifest = message::read_blob(channel, limits.manifest_size).map_err(talk())?;
    let signatures_max = limits.signatures.saturating_mul(SIGNATURE_SIZE) as u64;
    let signatures = message::read_blob(channel, signatures_max).map_err(talk())?;
    Ok(ImageHead::decode(image, manifest, signatures, limits)?)
}

/// What comes of a node in several parts, none of which may trickle.
struct ComingParts<'a> {
    channel: &'a mut Channel,
    slack: Duration,
    until: Instant,
}

impl<'a> ComingParts<'a> {
    fn begin(channel: &'a mut Channel, times: &NodeTimes) -> Self {
        let slack = times.handshake;
        let until = Instant::now() + slack;
        channel.set_deadline(until);
        Self { channel, slack, until }
    }

    fn next(&mut self, size_max: u64) -> io::Result<Vec<u8>> {
        /// What comes by one deadline: at the least rate in four seconds.
        const PIECE: u64 = 64 << 10;
        let size = message::read_size(self.channel, size_max)?;
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < size {
            let piece = PIECE.min(size - bytes.len() as u64);
            bytes.extend(message::read_bytes(self.channel, piece)?);
            // What has come earns time, and not what is announced; nor more than it began with.
            let earned = self.until + pace::time_of(piece);
            self.until = earned.min(Instant::now() + self.slack);
            self.channel.set_deadline(self.until);
        }
        Ok(bytes)
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
    let config = config.map_err(NodeError::own("use this node's key"))?;
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
    let anything = ServerName::try_from("node.invalid").expect("it has the form of a name");
    let connection = ClientConnection::new(Arc::new(config), anything).map_err(io::Error::other);
    let mut connection = connection.map_err(NodeError::io("begin a connection"))?;
    let mut first = Vec::new();
    connection.write_tls(&mut first).map_err(NodeError::io("begin a connection"))?;
    let socket = connect_to_host(place, &first, deadline)?;
    let socket = TimedSocket::new(socket, deadline, times);
    let socket = socket.map_err(NodeError::io("set up a connection"))?;
    let mut channel = TlsChannel::new(Connection::Client(connection), socket);
    let strange = |error| NodeError::Handshake { address: peer.address.clone(), error };
    channel.shake_hands().map_err(strange)?;
    Ok(Channel::Tls(Box::new(channel)))
}

/// Takes the code images that an image needs into `images`, from the node that has the image, unless
/// they are here. Nothing of it counts but what has the hashes that `head` names; that it is signed
/// was checked when the head [was opened](crate::RemoteImage::open). Collection spares them as long as what is returned
/// is kept.
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
) -> Result<Vec<StoredCode>, NodeError> {
    let needed = head.manifest().codes();
    let NeededModules { mut held, mut missing } = known(images, needed.iter().copied())?;
    if missing.is_empty() {
        return Ok(held);
    }
    let mut channel = open_image(peer, own, head.hash(), times)?;
    let talk = || NodeError::io(format!("get code of node {}", peer.address));
    let said = Wish::Code.write(&mut channel).and_then(|()| channel.flush());
    said.map_err(talk())?;
    let mut parts = ComingParts::begin(&mut channel, times);
    for wanted in needed {
        let bytes = parts.next(images.limits().code_size).map_err(talk())?;
        match ContentHash::of(&bytes) {
            found if found != wanted => return Err(NodeError::OtherImage { wanted, found }),
            _ if missing.remove(&wanted) => held.push(images.save_code(&bytes).map_err(own_store)?),
            _ => {}
        }
    }
    Ok(held)
}

/// What a store has of what is kept beside images.
pub(crate) fn known(
    images: &ImageStore,
    hashes: impl Iterator<Item = ContentHash>,
) -> Result<NeededModules, NodeError> {
    let mut known = NeededModules::default();
    for hash in hashes {
        match images.load_code(hash) {
            Ok(code) => known.held.push(code),
            Err(ImageError::NotFound { .. }) => {
                known.missing.insert(hash);
            }
            Err(error) => return Err(own_store(error)),
        }
    }
    Ok(known)
}

/// Takes the modules that an image needs into `images`, from the node that has the image, as far as it has kept them.
/// Nothing counts but what has the hashes that `head` names, and whoever is trusted has signed that.
///
/// # Errors
/// As of [`fetch_image`]; what is said of one that it has not kept.
pub(crate) fn fetch_modules(
    peer: &MemoryPeer,
    own: &SecretKey,
    head: &ImageHead,
    images: &ImageStore,
    times: &NodeTimes,
    needed: NeededModules,
    check: &dyn HeadCheck,
) -> Result<Vec<StoredCode>, NodeError> {
    if needed.missing.is_empty() {
        return Ok(needed.held);
    }
    let mut channel = open_image(peer, own, head.hash(), times)?;
    let image = (head.hash(), head.manifest());
    let held = take_modules(&mut channel, peer, image, images, times, needed, check)?;
    // This side has all of it, whether the other one hears that or not. It ends the connection once it has heard it.
    let said = Wish::Nothing.write(&mut channel).and_then(|()| channel.flush());
    let _ = said.and_then(|()| channel.read(&mut [0]));
    Ok(held)
}

/// As [`fetch_modules`], by a connection on which something else is asked for afterwards.
fn take_modules(
    channel: &mut Channel,
    peer: &MemoryPeer,
    (image, manifest): (ContentHash, &Manifest),
    images: &ImageStore,
    times: &NodeTimes,
    needed: NeededModules,
    check: &dyn HeadCheck,
) -> Result<Vec<StoredCode>, NodeError> {
    let NeededModules { mut held, mut missing } = needed;
    if missing.is_empty() {
        return Ok(held);
    }
    let talk = || NodeError::io(format!("get modules of node {}", peer.address));
    let said = Wish::Modules.write(channel).and_then(|()| channel.flush());
    said.map_err(talk())?;
    let mut parts = ComingParts::begin(channel, times);
    for wanted in manifest.modules() {
        let bytes = parts.next(images.limits().code_size).map_err(talk())?;
        match ContentHash::of(&bytes) {
            _ if bytes.is_empty() => {}
            found if found != wanted => return Err(NodeError::OtherImage { wanted, found }),
            _ if missing.remove(&wanted) => held.push(images.save_code(&bytes).map_err(own_store)?),
            _ => {}
        }
    }
    channel.set_deadline(Instant::now() + times.handshake);
    match missing.first() {
        Some(module) => Err(check.refused(image, manifest, *module)),
        None => Ok(held),
    }
}

/// That the store of this node refuses something, which no other node can help.
pub(crate) fn own_store(error: ImageError) -> NodeError {
    NodeError::OwnFailure(Box::new(error.into()))
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

/// Connects with the first of a host's addresses that takes the connection, and says something.
fn connect_to_host(address: &str, first: &[u8], deadline: Instant) -> Result<TcpStream, NodeError> {
    let action = || format!("reach node {address}");
    let mut failed = io::Error::new(ErrorKind::NotFound, "the host has no address");
    for place in address.to_socket_addrs().map_err(NodeError::io(action()))? {
        match early::connect_saying(place, first, deadline) {
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
        Err(error) => return Err(own_store(error)),
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
            Err(error) => return Err(own_store(error)),
        }
    }
    Ok(Some(image))
}

fn receive(
    channel: Channel,
    peer: &MemoryPeer,
    wanted: ContentHash,
    images: &ImageStore,
    signers: &TrustedKeys,
    times: &NodeTimes,
) -> Result<StoredImage, NodeError> {
    let mut stream = NotedReader { input: coming(channel, times), failed: None };
    let mut received = match images.import_signed(&mut stream, signers) {
        Ok(received) => received,
        Err(error) => {
            return Err(match (stream.failed, error) {
                (Some(error), _) => {
                    NodeError::io(format!("get an image of node {}", peer.address))(error)
                }
                // The stream came, and the system did not let it in.
                (None, error @ ImageError::Io { .. }) => own_store(error),
                (None, error) => error.into(),
            });
        }
    };
    let last = received.pop().ok_or(NodeError::Malformed("a stream without an image"))?;
    match last.hash() {
        hash if hash == wanted => Ok(last),
        found => Err(NodeError::OtherImage { wanted, found }),
    }
}

/// A stream of an image: silence ends it, and so does who gives a byte at a time. Of zeros nothing travels, however
/// many there are to be read at the other side: so it may be behind for longer than it may be silent.
pub(crate) fn coming(mut channel: Channel, times: &NodeTimes) -> PacedReader<Channel> {
    channel.lift_deadline();
    PacedReader::new(channel, Pace::new(times.idle.saturating_mul(3)), pace::clock())
}

/// Notes why nothing more came, which is another thing than what is wrong with what came.
struct NotedReader<R> {
    input: R,
    failed: Option<io::Error>,
}

impl<R: Read> Read for NotedReader<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.input.read(into).map_err(|error| {
            let again = io::Error::new(error.kind(), error.to_string());
            self.failed = Some(error);
            again
        })
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
