//! States of a program that are sent ahead: each is what has changed since the one before.

use std::io::Write;
use std::sync::Arc;

use pagefork_image::{ContentHash, ImageStore, SecretKey, StoredImage, StreamWriter, TrustedKeys};
use pagefork_postcopy::FetchPlan;

use crate::base::{NodeError, NodeTimes};
use crate::channel::Channel;
use crate::fetch::{MemoryPeer, coming, fetch_image, here, reach};
use crate::identity::Protocol;
use crate::message::{self, Answer, Wish};
use crate::start::{FoundImage, StartOptions, start_image};

/// zstd's level: on one processor it compresses faster than most networks carry.
const LEVEL: i32 = 1;

/// Takes an image into `images` of which no ancestor need be there, with its code, and returns how many of its groups
/// did not travel: other images of the program are here where it has been before, or was started.
///
/// # Errors
/// As of [`start_image`] and [`fetch_image`](crate::fetch_image).
pub(crate) fn fetch_first(
    peer: &MemoryPeer,
    own: &SecretKey,
    image: ContentHash,
    images: &ImageStore,
    signers: &TrustedKeys,
    start: &StartOptions,
) -> Result<(StoredImage, u64), NodeError> {
    let name = image.to_string();
    let options = StartOptions {
        // Nobody waits for what every instance touches, and it may be here.
        plan: FetchPlan { certain: false, background: true, ..start.plan.clone() },
        others: Vec::new(),
        keep: true,
        recall: false,
        observe: Arc::new(|_| ()),
        ..start.clone()
    };
    let spared = match start_image(peer, own, &name, images, signers, &options)? {
        FoundImage::Here(image) => return Ok((image, 0)),
        FoundImage::Coming(coming) => coming.join()?.plan.here,
    };
    let found = match here(images, image, signers)? {
        Some(found) => found,
        // It could not be kept, or was collected since: that fails again, and says why, or does not.
        None => fetch_image(peer, own, &name, images, signers, &start.times.node)?,
    };
    Ok((found, spared))
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
