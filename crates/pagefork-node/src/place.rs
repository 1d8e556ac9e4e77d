//! Places that keep images and are no nodes: object stores. What has been put there is asked for when
//! a node is lost.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pagefork::IncompleteImage;
use pagefork_image::{ImageChain, ImageError, ImageRepository, SavedHolder};
use rustix::event::{PollFd, PollFlags};

use crate::base::{NodeError, PageTimes};
use crate::fetch::MemoryPeer;
use crate::poll::wait_for;
use crate::take::PageSink;

/// Between two looks whether pages are still needed, and between two attempts.
const LOOK: Duration = Duration::from_millis(20);

/// A place that keeps images and is no node: an object store, mostly. Of what it gives, nothing is
/// believed that the image's tree does not prove. Who opens it has limited what its answers may take:
/// an answer that never comes is waited for as long.
///
/// # Examples
///
/// ```
/// use std::sync::Arc;
///
/// use pagefork_image::ImageStore;
/// use pagefork_node::ImagePlace;
///
/// # let path = std::env::temp_dir().join(format!("pagefork-place-{}", std::process::id()));
/// let images = Arc::new(ImageStore::open(&path)?);
/// let place = ImagePlace { url: "file:///images".to_owned(), images };
/// assert_eq!(place.to_string(), "the object store file:///images");
/// # std::fs::remove_dir_all(path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct ImagePlace {
    /// What nodes call it: the same at all that use it, and without anything secret.
    pub url: String,
    /// What is there.
    pub images: Arc<dyn ImageRepository + Send + Sync>,
}

impl fmt::Display for ImagePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the object store {}", self.url)
    }
}

impl fmt::Debug for ImagePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImagePlace").field("url", &self.url).finish_non_exhaustive()
    }
}

/// Who may have the pages of an image. [`ImagePlace`] has an example of one.
#[derive(Clone, Debug)]
pub enum PageHolder {
    /// A node.
    Node(MemoryPeer),
    /// An object store.
    Place(ImagePlace),
}

impl PageHolder {
    /// Whether another one is the same node, wherever that is, or the same object store.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Node(node), Self::Node(other)) => node.key == other.key,
            (Self::Place(place), Self::Place(other)) => place.url == other.url,
            _ => false,
        }
    }

    /// Whether an image means it by this name.
    pub(crate) fn is_named(&self, named: &SavedHolder) -> bool {
        match (self, named) {
            (Self::Node(node), SavedHolder::Node(key)) => node.key == *key,
            (Self::Place(place), SavedHolder::Objects(url)) => place.url == *url,
            _ => false,
        }
    }
}

impl fmt::Display for PageHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(peer) => write!(f, "node {}", peer.address),
            Self::Place(place) => place.fmt(f),
        }
    }
}

/// Gets pages out of a place into `sink`, first those that somebody waits for; the others only if they
/// come in the `background`. Returns when all are here.
///
/// # Errors
/// Why they do not come: the place has not got them, or gave nothing for too long.
pub(crate) fn fetch_from_place(
    place: &ImagePlace,
    image: &IncompleteImage,
    sink: &dyn PageSink,
    times: &PageTimes,
    background: bool,
    is_over: &AtomicBool,
) -> Result<(), NodeError> {
    let mut chain = None;
    let mut failing_since: Option<Instant> = None;
    let mut wanted = VecDeque::new();
    let mut next = 0;
    while !image.is_whole() {
        if is_over.load(Ordering::Relaxed) {
            return Err(NodeError::Stopped);
        }
        wanted.extend(sink.take_wanted());
        wanted.retain(|group| !image.is_present(*group));
        while background && next < image.head().group_count() && image.is_present(next) {
            next += 1;
        }
        let rest = Some(next).filter(|next| background && *next < image.head().group_count());
        let Some(group) = wanted.front().copied().or(rest) else {
            let counts = image.residency();
            if counts.present == counts.groups {
                // Nothing is left to come, but whoever brought the last of it could not make it final.
                let action = NodeError::own("make the pages of an image final");
                image.wait_whole().map_err(|error| action(std::io::Error::other(error)))?;
                continue;
            }
            let mut signals = [PollFd::from_borrowed_fd(sink.wanted(), PollFlags::IN)];
            let waited = wait_for(&mut signals, Some(Instant::now() + LOOK));
            waited.map_err(NodeError::io("wait for who needs pages"))?;
            continue;
        };
        let asked = Instant::now();
        match read(place, image, &mut chain, group) {
            Ok(bytes) => {
                failing_since = None;
                sink.install(group, &bytes).map_err(NodeError::io("put pages in their place"))?;
            }
            Err(error) => {
                let since = *failing_since.get_or_insert(asked);
                if !matches!(error, ImageError::Io { .. }) || since.elapsed() >= times.lost {
                    let (image, place) = (image.hash(), place.to_string());
                    return Err(NodeError::PlaceLost { image, place, why: error.to_string() });
                }
                chain = None;
                std::thread::sleep(LOOK);
            }
        }
    }
    Ok(())
}

/// Reads a group, and proves it by the tree of the image that is wanted.
fn read(
    place: &ImagePlace,
    image: &IncompleteImage,
    chain: &mut Option<ImageChain>,
    group: u64,
) -> Result<Vec<u8>, ImageError> {
    if chain.is_none() {
        *chain = Some(place.images.open_chain(image.hash())?);
    }
    let tip = chain.as_ref().expect("it was just opened").tip();
    let (found, wanted) = (tip.manifest(), image.head().manifest());
    if tip.hash() != image.hash()
        || (found.root, found.data_size) != (wanted.root, wanted.data_size)
    {
        return Err(ImageError::Damaged(format!("it has another image as {}", image.hash())));
    }
    // It is proved against the root that was just compared.
    tip.read_group(group)
}

#[cfg(test)]
mod tests;
