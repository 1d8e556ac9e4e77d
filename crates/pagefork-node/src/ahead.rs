//! States of a program that are sent ahead: each is what has changed since the one before.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pagefork_image::{
    ContentHash, ImageHead, ImageStore, SecretKey, StoredImage, StreamWriter, TrustedKeys,
    UnfinishedImage,
};
use pagefork_postcopy::FetchPlan;
use rustix::event::{EventfdFlags, eventfd};

use crate::base::{NodeError, NodeTimes, PageTimes};
use crate::channel::Channel;
use crate::fetch::{MemoryPeer, coming, fetch_code, fetch_image, here, own_store, reach};
use crate::identity::Protocol;
use crate::message::{self, Answer, Wish};
use crate::pace::Pace;
use crate::take::{PageSink, RemoteImage};

/// Between two looks whether a state is still wanted, and how fast it comes.
const LOOK: Duration = Duration::from_millis(20);

/// zstd's level: on one processor it compresses faster than most networks carry.
const LEVEL: i32 = 1;

/// Takes an image into `images` of which no ancestor need be there, with its code, and returns how many of its groups
/// did not travel: other images of the program are here where it has been before, or was started. That they are looked
/// for is said by `looks_here`. Nobody but the peer is asked; `is_left` says that nobody wants it any more.
///
/// # Errors
/// As of [`RemoteImage::open`] and [`fetch_image`].
pub(crate) fn fetch_first(
    peer: &MemoryPeer,
    own: &SecretKey,
    image: ContentHash,
    images: &ImageStore,
    signers: &TrustedKeys,
    (times, looks_here): (&PageTimes, bool),
    is_left: impl Fn() -> bool,
) -> Result<(StoredImage, u64), NodeError> {
    if let Some(found) = here(images, image, signers)? {
        return Ok((found, 0));
    }
    let name = image.to_string();
    // Nobody waits for what every instance touches, and it may be here.
    let plan = FetchPlan { certain: false, stride: false, ..FetchPlan::default() };
    // If the connection is lost, its program goes on where it is.
    let times = PageTimes { lost: Duration::ZERO, ..*times };
    let mut remote = match RemoteImage::open(peer, own, &name, signers, plan, times) {
        Ok(remote) => remote,
        // What is a delta comes whole.
        Err(NodeError::Refused { .. }) => {
            return fetch_image(peer, own, &name, images, signers, &times.node)
                .map(|found| (found, 0));
        }
        Err(error) => return Err(error),
    };
    // Until the image is here, nothing else spares it.
    let _code = fetch_code(peer, own, remote.head(), images, &times.node)?;
    if looks_here {
        remote.look_in(images);
    }
    let coming = Arc::new(FirstState::begin(images, remote.head())?);
    let fetch = remote.fetch_into(Arc::clone(&coming) as Arc<dyn PageSink>)?;
    // Who has all of it here, or sends zeros, gives nothing else for a while.
    let mut pace = Pace::new(times.node.idle.saturating_mul(3));
    let (mut seen, mut since) = (0, Instant::now());
    while !fetch.wait(LOOK) {
        if is_left() {
            return Err(NodeError::Stopped);
        }
        let (came, now) = (coming.came.load(Ordering::Relaxed), Instant::now());
        let slow = pace.took(came - seen, now - since);
        slow.map_err(NodeError::io(format!("get an image of node {}", peer.address)))?;
        (seen, since) = (came, now);
    }
    let report = fetch.join().map_err(|error| match error {
        NodeError::Lost { address, why, .. } => NodeError::Io {
            action: format!("get an image of node {address}"),
            error: io::Error::other(why),
        },
        error => error,
    })?;
    Ok((coming.finish()?, report.plan.here))
}

/// Where the first state of a program goes that is on its way here.
#[derive(Debug)]
struct FirstState {
    image: Mutex<Option<UnfinishedImage>>,
    /// Bytes that are here.
    came: AtomicU64,
    /// Nobody waits for a page.
    silent: OwnedFd,
}

impl FirstState {
    fn begin(images: &ImageStore, head: &Arc<ImageHead>) -> Result<Self, NodeError> {
        let silent = eventfd(0, EventfdFlags::CLOEXEC).map_err(io::Error::from);
        let silent = silent.map_err(NodeError::own("begin to fetch an image"))?;
        let image = images.begin_image(head).map_err(own_store)?;
        Ok(Self { image: Mutex::new(Some(image)), came: AtomicU64::new(0), silent })
    }

    fn finish(&self) -> Result<StoredImage, NodeError> {
        let image = self.lock().take().ok_or(NodeError::Stopped)?;
        image.finish().map_err(own_store)
    }

    fn lock(&self) -> MutexGuard<'_, Option<UnfinishedImage>> {
        self.image.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PageSink for FirstState {
    fn wanted(&self) -> BorrowedFd<'_> {
        self.silent.as_fd()
    }

    fn take_wanted(&self) -> Vec<u64> {
        Vec::new()
    }

    fn install(&self, group: u64, bytes: &[u8]) -> io::Result<()> {
        if let Some(image) = &mut *self.lock() {
            image.put(group, bytes).map_err(io::Error::other)?;
        }
        self.came.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn give_up(&self, _: &NodeError) {
        // Its file goes at once, also if the thread that fetches waits for its peer.
        drop(self.lock().take());
    }
}

/// Takes an image into `images` whose parent is there, with its code: nothing but what has changed
/// comes.
///
/// # Errors
/// As of [`fetch_image`](crate::fetch_image); `NotFound` if the parent is not here.
pub(crate) fn fetch_tip(
    peer: &MemoryPeer,
    own: &SecretKey,
    image: ContentHash,
    images: &ImageStore,
    signers: &TrustedKeys,
    times: &NodeTimes,
) -> Result<StoredImage, NodeError> {
    if let Some(image) = here(images, image, signers)? {
        return Ok(image);
    }
    let mut channel = reach(peer, own, Protocol::Images, times)?;
    let talk = || NodeError::io(format!("get an image of node {}", peer.address));
    let name = image.to_string();
    let asked = message::write_text(&mut channel, &name)
        .and_then(|()| Wish::Tip.write(&mut channel))
        .and_then(|()| channel.flush());
    asked.map_err(talk())?;
    match Answer::read(&mut channel).map_err(talk())? {
        Answer::Has(hash) if hash == image => {}
        Answer::Has(found) => return Err(NodeError::OtherImage { wanted: image, found }),
        Answer::Refuses(reason) => return Err(NodeError::Refused { name, reason }),
    }
    match images.import_signed(coming(channel, times), signers)?.pop() {
        Some(found) if found.hash() == image => Ok(found),
        Some(found) => Err(NodeError::OtherImage { wanted: image, found: found.hash() }),
        None => Err(NodeError::Malformed("a stream without an image")),
    }
}

/// Sends an image without its ancestors and its code.
pub(crate) fn send_tip(channel: &mut Channel, image: &StoredImage) -> Result<(), NodeError> {
    channel.lift_deadline();
    let mut stream = StreamWriter::new(&mut *channel, LEVEL)?;
    stream.image(image.chain().tip())?;
    stream.finish()?;
    channel.flush().map_err(NodeError::io("send an image"))
}
