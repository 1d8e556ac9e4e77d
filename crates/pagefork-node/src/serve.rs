//! The side of a memory node: it gives images of its store to those whom it knows.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use pagefork_image::{
    ContentHash, ImageError, ImageHead, ImageStore, PublicKey, SecretKey, StoredImage,
    StreamWriter, TrustedKeys,
};
use pagefork_postcopy::PeerAccess;
use rustls::ServerConfig;

use crate::address::NodeAddress;
use crate::ahead::send_tip;
use crate::base::{NodeError, NodeTimes};
use crate::channel::Channel;
use crate::duplex::Duplex;
use crate::give::PageGiver;
use crate::identity::{self, AgreedProtocol, Protocol};
use crate::leases::Leases;
use crate::listen::{Listener, UnknownPeer};
use crate::message::{self, Answer, Wish};
use crate::programs::{self, ClientVisit, ProgramNode};
use crate::shown::ShownTokens;
use crate::watched::watched;

/// zstd's level: on one processor it compresses faster than most networks carry.
const LEVEL: i32 = 1;

/// How a memory node serves. [`MemoryServer`] has an example.
pub struct ServeOptions {
    /// The key that it authenticates itself with.
    pub key: SecretKey,
    /// Who may have images. It is asked at each connection.
    pub access: Arc<dyn Fn(&PublicKey) -> bool + Send + Sync>,
    /// Who gives tokens that count here ([`ImageToken`](pagefork_postcopy::ImageToken)); nobody at first.
    /// If there is anybody, all who connect are let in as far as to show one.
    pub issuers: TrustedKeys,
    /// What is told of what happens, by the threads of connections.
    pub observe: Arc<dyn Fn(&ServeEvent) + Send + Sync>,
    /// What runs programs, if this node does. It knows who may use it.
    pub programs: Option<ProgramNode>,
    /// Connections at once, of people who are not known yet, too: others are closed. One that has ended counts until
    /// what was asked for over it is done.
    pub connections_max: usize,
    /// How long it waits for a peer.
    pub times: NodeTimes,
}

impl ServeOptions {
    /// With 64 connections and the usual times; nobody is let in or told anything.
    pub fn new(key: SecretKey) -> Self {
        Self {
            key,
            access: Arc::new(|_| false),
            issuers: TrustedKeys::default(),
            observe: Arc::new(|_| ()),
            programs: None,
            connections_max: 64,
            times: NodeTimes::default(),
        }
    }
}

impl fmt::Debug for ServeOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServeOptions").field("times", &self.times).finish_non_exhaustive()
    }
}

/// What happens at a memory node. [`MemoryServer`] has an example.
#[derive(Debug)]
#[non_exhaustive]
pub enum ServeEvent {
    /// A peer has an image now.
    Sent {
        /// Who.
        peer: PublicKey,
        /// The image.
        image: ContentHash,
    },
    /// A connection has failed.
    Failed {
        /// From where it came.
        address: SocketAddr,
        /// Why.
        error: NodeError,
    },
    /// A connection was closed, because there are too many.
    TooMany {
        /// From where it came.
        address: SocketAddr,
    },
    /// A connection could not be taken, such as for want of descriptors.
    NotAccepted(io::Error),
}

/// A memory node that listens.
///
/// # Examples
///
/// ```
/// use std::sync::Arc;
///
/// use pagefork_image::*;
/// use pagefork_node::{MemoryPeer, MemoryServer, NodeTimes, ServeOptions, fetch_image};
///
/// # let path = std::env::temp_dir().join(format!("pagefork-node-{}", std::process::id()));
/// let (here, there) = (ImageStore::open(path.join("a"))?, ImageStore::open(path.join("b"))?);
/// let [node, runner, author] = [1, 2, 3].map(|seed| SecretKey::from_seed([seed; 32]));
/// let pages = PageRuns::default();
/// let draft = ImageDraft::new(Manifest::default(), &pages).sign_with(&[author.clone()]);
/// there.set_name("counter", there.save(draft)?.hash())?;
///
/// let known = runner.public();
/// let mut options = ServeOptions::new(node.clone());
/// options.access = Arc::new(move |key| *key == known);
/// let server = MemoryServer::bind("127.0.0.1:0", there, options)?;
/// let peer = MemoryPeer { address: server.address().to_string(), key: node.public() };
/// std::thread::spawn(move || server.run());
///
/// let signers = TrustedKeys::from_iter([author.public()]);
/// let image = fetch_image(&peer, &runner, "counter", &here, &signers, &NodeTimes::default())?;
/// assert_eq!(here.images()?, [image.hash()]);
/// # std::fs::remove_dir_all(path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct MemoryServer {
    /// Where it listens, and the addresses: the first one is that of [`MemoryServer::bind`].
    listeners: Vec<(Listener, NodeAddress)>,
    shared: Arc<Shared>,
}

/// What the threads of connections have in common.
#[derive(Debug)]
struct Shared {
    images: ImageStore,
    options: ServeOptions,
    config: Arc<ServerConfig>,
    connections: AtomicUsize,
    /// Those of them of whom anybody can be one.
    strangers: AtomicUsize,
    leases: Leases,
    shown: ShownTokens,
}

impl MemoryServer {
    /// Listens at `address`, with port 0 at a free one: `HOST:PORT` for TLS over TCP, `quic://HOST:PORT`
    /// for QUIC.
    ///
    /// # Errors
    /// [`NodeError::Io`] if that is not possible.
    ///
    /// # Examples
    ///
    /// See [`MemoryServer`].
    pub fn bind(
        address: impl fmt::Display,
        images: ImageStore,
        options: ServeOptions,
    ) -> Result<Self, NodeError> {
        let (access, programs) = (Arc::clone(&options.access), options.programs.clone());
        let takes_tokens = !options.issuers.is_empty();
        let lets_in = move |key: &PublicKey| {
            takes_tokens
                || access(key)
                || programs.as_ref().is_some_and(|programs| programs.lets_in(key))
        };
        let config = identity::server_config(&options.key, Arc::new(lets_in));
        let config = config.map_err(io::Error::other);
        let config = Arc::new(config.map_err(NodeError::io("use this node's key"))?);
        let (connections, strangers) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let (leases, shown) = (Leases::default(), ShownTokens::default());
        let shared =
            Arc::new(Shared { images, options, config, connections, strangers, leases, shown });
        let mut server = Self { listeners: Vec::new(), shared };
        server.listen_at(address)?;
        Ok(server)
    }

    /// Listens at another address, too, such as for QUIC beside TLS over TCP. Returns where that is.
    ///
    /// # Errors
    /// As of [`MemoryServer::bind`].
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_image::{ImageStore, SecretKey};
    /// use pagefork_node::{MemoryServer, ServeOptions, Transport};
    ///
    /// # let path = std::env::temp_dir().join(format!("pagefork-listens-{}", std::process::id()));
    /// let options = ServeOptions::new(SecretKey::from_seed([1; 32]));
    /// let mut server = MemoryServer::bind("127.0.0.1:0", ImageStore::open(&path)?, options)?;
    /// let also = server.listen_at("quic://127.0.0.1:0")?;
    /// assert_eq!(server.address().transport, Transport::Tls);
    /// assert_eq!(also.transport, Transport::Quic);
    /// # std::fs::remove_dir_all(path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn listen_at(&mut self, address: impl fmt::Display) -> Result<NodeAddress, NodeError> {
        let address = address.to_string();
        let ServeOptions { key, connections_max, times, .. } = &self.shared.options;
        let listens = NodeAddress::resolve(&address).and_then(|place| {
            let config = &self.shared.config;
            let listener = Listener::bind(&place, key, config, *connections_max, times)?;
            let address = listener.address()?;
            Ok((listener, address))
        });
        let listens = listens.map_err(NodeError::io(format!("listen at {address}")))?;
        let address = listens.1;
        self.listeners.push(listens);
        Ok(address)
    }

    /// Where it listens: at first.
    ///
    /// # Examples
    ///
    /// See [`MemoryServer`].
    pub fn address(&self) -> NodeAddress {
        self.listeners[0].1
    }

    /// Serves, each connection on a thread of its own, for as long as the process lives: whatever
    /// happens to one of them ends no other.
    ///
    /// # Examples
    ///
    /// See [`MemoryServer`].
    pub fn run(&self) -> ! {
        thread::scope(|scope| {
            let (first, others) = self.listeners.split_first().expect("it is bound to one");
            scope.spawn(|| self.shared.leases.forget_as_they_end());
            for (listener, _) in others {
                scope.spawn(move || self.listen(listener));
            }
            self.listen(&first.0)
        })
    }

    fn listen(&self, listener: &Listener) -> ! {
        loop {
            match listener.accept() {
                Ok((caller, address)) => self.accept(caller, address),
                Err(error) => {
                    (self.shared.options.observe)(&ServeEvent::NotAccepted(error));
                    // What is wanting now is there again when other connections have ended.
                    thread::sleep(Duration::from_millis(100));
                }
            }
        }
    }

    fn accept(&self, caller: UnknownPeer, address: SocketAddr) {
        let observe = &self.shared.options.observe;
        let Some(place) = ServingPlace::take(&self.shared) else {
            return observe(&ServeEvent::TooMany { address });
        };
        let thread = thread::Builder::new().name("pagefork-node".to_owned());
        let started = thread.spawn(move || {
            let ServingPlace(shared) = &place;
            let event = match shared.answer(caller) {
                Ok(None) => return,
                Ok(Some((peer, image))) => ServeEvent::Sent { peer, image },
                Err(error) => ServeEvent::Failed { address, error },
            };
            (shared.options.observe)(&event);
        });
        if let Err(error) = started {
            observe(&ServeEvent::NotAccepted(error));
        }
    }
}

/// Sends the manifest and the signatures of an image.
fn send_head(channel: &mut Channel, image: &StoredImage) -> Result<(), NodeError> {
    let head = ImageHead::read(image.chain().tip())?;
    let mut send = || {
        for bytes in [head.manifest_bytes(), head.signature_bytes()] {
            message::write_blob(channel, bytes.len() as u64, |offset, into| {
                into.copy_from_slice(&bytes[offset as usize..][..into.len()]);
                Ok(())
            })?;
        }
        channel.flush()
    };
    send().map_err(NodeError::io("send the head of an image"))
}

fn other_version(peer: &PublicKey, agreed: AgreedProtocol) -> NodeError {
    let AgreedProtocol { protocol, version: found } = agreed;
    let (address, supported) = (peer.to_string(), protocol.version());
    NodeError::Version { address, protocol: protocol.name(), found, supported }
}

fn not_let_in(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, format!("it may not {what}"))
}

/// One of the connections that there may be at once.
struct ServingPlace(Arc<Shared>);

impl ServingPlace {
    fn take(shared: &Arc<Shared>) -> Option<Self> {
        // The count is right whoever fails: dropping takes it back.
        let place = Self(Arc::clone(shared));
        let before = shared.connections.fetch_add(1, Ordering::Relaxed);
        (before < shared.options.connections_max).then_some(place)
    }
}

impl Drop for ServingPlace {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One of the connections, a quarter of all, that there may be of those who may have nothing but by a token: anybody
/// can be one of them.
struct StrangersPlace<'a>(&'a Shared);

impl<'a> StrangersPlace<'a> {
    fn take(shared: &'a Shared) -> Option<Self> {
        let place = Self(shared);
        let before = shared.strangers.fetch_add(1, Ordering::Relaxed);
        (before < (shared.options.connections_max / 4).max(1)).then_some(place)
    }
}

impl Drop for StrangersPlace<'_> {
    fn drop(&mut self) {
        self.0.strangers.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Shared {
    /// Answers one connection. Returns who has been sent what.
    fn answer(&self, caller: UnknownPeer) -> Result<Option<(PublicKey, ContentHash)>, NodeError> {
        let times = &self.options.times;
        let strange = || NodeError::io("get to know who connects");
        // Before it is known who it is: what it is about to ask may have been asked before.
        let visit = self.options.programs.as_ref().map(ClientVisit::begin);
        let mut channel = caller.shake_hands(times).map_err(strange())?;
        let agreed = channel.protocol().map_err(strange())?;
        let protocol = agreed.protocol;
        let peer = channel.peer().ok_or(NodeError::Malformed("no key"))?;

        let talk = || NodeError::io(format!("talk to node {peer}"));
        if protocol == Protocol::Programs {
            // Who has none lets nobody in for them.
            let visit = visit.filter(|visit| visit.lets_in(&peer));
            let visit = visit.ok_or_else(|| talk()(not_let_in("run programs here")))?;
            let duplex = Duplex::new(channel).map_err(talk())?;
            if let Some(why) = agreed.complaint() {
                let _ = programs::refuse(duplex, &why, times);
                return Err(other_version(&peer, agreed));
            }
            programs::serve(visit, peer, duplex, times)?;
            return Ok(None);
        }
        drop(visit);
        // Who may not have all may have programs that move there. Pages of others come by a token that is shown on
        // the connection itself, as long as it counts; what comes whole, by one that was shown before.
        let only = (!(self.options.access)(&peer)).then(|| {
            let mut granted = self.granted(&peer);
            if protocol != Protocol::Pages {
                granted.extend(self.shown.images(&peer));
            }
            granted
        });
        let issuers = &self.options.issuers;
        let shows_token = protocol == Protocol::Pages && !issuers.is_empty();
        if only.as_ref().is_some_and(BTreeSet::is_empty) && !shows_token {
            return Err(talk()(not_let_in("have images of this node")));
        }
        if protocol == Protocol::Pages {
            let duplex = Duplex::new(channel).map_err(talk())?;
            let is_stranger = only.as_ref().is_some_and(BTreeSet::is_empty);
            let _place = match is_stranger {
                true => Some(StrangersPlace::take(self).ok_or_else(|| {
                    talk()(io::Error::other("too many who show tokens are connected"))
                })?),
                false => None,
            };
            let access = match only {
                None => PeerAccess::All,
                Some(images) => PeerAccess::Some { images, issuers: issuers.clone() },
            };
            let kept = (&self.leases, &self.shown);
            PageGiver::new(&self.images, kept, peer, access, times).serve(duplex)?;
            return Ok(None);
        }
        let name = message::read_text(&mut channel).map_err(talk())?;
        if let Some(why) = agreed.complaint() {
            // A refusal is the same in every version.
            let answer = Answer::Refuses(why);
            let said = answer.write(&mut channel).and_then(|()| channel.flush());
            // That is why, also if the peer does not say that it has heard it.
            let _ = said.and_then(|()| channel.end());
            return Err(other_version(&peer, agreed));
        }
        let found = self.images.find(&name);
        let found = found.and_then(|hash| match &only {
            Some(only) if !only.contains(&hash) => {
                Err(ImageError::NotFound { what: "image", hash })
            }
            _ => self.images.load(hash),
        });
        let answer = match &found {
            Ok(image) => Answer::Has(image.hash()),
            // Where the store lies, and what ails it, is for this side to know.
            Err(ImageError::Invalid(_) | ImageError::NotFound { .. }) => {
                Answer::Refuses("it has no such image".to_owned())
            }
            Err(_) => Answer::Refuses("it cannot read its store".to_owned()),
        };
        answer.write(&mut channel).and_then(|()| channel.flush()).map_err(talk())?;
        // As long as it is open, collection spares it.
        let image = match found {
            Ok(image) => image,
            Err(error) => {
                channel.end().map_err(talk())?;
                return Err(error.into());
            }
        };
        let mut wish = Wish::read(&mut channel).map_err(talk())?;
        if wish == Wish::Head {
            send_head(&mut channel, &image)?;
            wish = Wish::read(&mut channel).map_err(talk())?;
        }
        let sends_modules = wish == Wish::Modules;
        if sends_modules {
            self.send_modules(&mut channel, &image)?;
            wish = Wish::read(&mut channel).map_err(talk())?;
        }
        match wish {
            Wish::Head | Wish::Modules => {
                return Err(NodeError::Malformed("what was sent is wanted again"));
            }
            // Who said it early has not got all yet.
            Wish::Nothing if sends_modules => return channel.end().map(|()| None).map_err(talk()),
            Wish::Nothing => return Ok(None),
            Wish::Stream => self.send(&mut channel, peer, &image)?,
            Wish::Code => self.send_code(&mut channel, &image)?,
            Wish::Tip => send_tip(&mut channel, &image)?,
        }
        channel.end().map_err(talk())?;
        Ok(Some((peer, image.hash())))
    }

    /// The images that a peer may have, because a program that moves there is in them.
    fn granted(&self, peer: &PublicKey) -> BTreeSet<ContentHash> {
        let programs = self.options.programs.as_ref();
        programs.map(|programs| programs.granted(peer)).unwrap_or_default()
    }

    /// Sends the code images of an image, in the order in which its manifest names them.
    fn send_code(&self, channel: &mut Channel, image: &StoredImage) -> Result<(), NodeError> {
        channel.lift_deadline();
        for hash in image.chain().tip().manifest().codes() {
            let code = self.images.load_code(hash)?;
            let read = |offset, into: &mut [u8]| code.bytes().read_exact_at(into, offset);
            let sent = message::write_blob(channel, code.size(), read);
            sent.map_err(NodeError::io("send a code image"))?;
        }
        channel.flush().map_err(NodeError::io("send code images"))
    }

    /// Sends the modules of an image, in the order in which its manifest names them: nothing for one that was not kept.
    fn send_modules(&self, channel: &mut Channel, image: &StoredImage) -> Result<(), NodeError> {
        channel.lift_deadline();
        for hash in image.chain().tip().manifest().modules() {
            let sent = match self.images.load_code(hash) {
                Ok(module) => {
                    let read = |offset, into: &mut [u8]| module.bytes().read_exact_at(into, offset);
                    message::write_blob(channel, module.size(), read)
                }
                Err(ImageError::NotFound { .. }) => message::write_blob(channel, 0, |_, _| Ok(())),
                Err(error) => return Err(error.into()),
            };
            sent.map_err(NodeError::io("send a module"))?;
        }
        channel.flush().map_err(NodeError::io("send modules"))
    }

    fn send(
        &self,
        channel: &mut Channel,
        peer: PublicKey,
        image: &StoredImage,
    ) -> Result<(), NodeError> {
        channel.lift_deadline();
        let programs = self.options.programs.as_ref();
        match programs.and_then(|programs| programs.watching(peer, image.hash())) {
            None => drop(self.images.export(&[image.hash()], &mut *channel, LEVEL)?),
            Some(told) => {
                // It is handed over, and so a full one with all its code.
                let chain = watched(&self.images, image.chain(), &told)?;
                let mut stream = StreamWriter::new(&mut *channel, LEVEL)?;
                for code in chain.tip().manifest().codes() {
                    stream.code(code, self.images.load_code(code)?.bytes())?;
                }
                for part in chain.images().iter().rev() {
                    stream.image(part)?;
                }
                stream.finish()?;
            }
        }
        channel.flush().map_err(NodeError::io("send an image"))
    }
}

#[cfg(test)]
mod tests;
