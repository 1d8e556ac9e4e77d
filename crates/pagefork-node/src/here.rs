//! What of an image that comes from another node is here already: groups of images that are like it.
//!
//! A group of a full image lies at a multiple of its size in its slot, so images of one program have the
//! same groups where they have the same pages. What stands for a group in the tree of the image that
//! comes is in the index of another one if it stands at the same place there; else it is computed.
//! Whatever is found counts only once the other node has said the same of its image, and the bytes
//! are proved as if they had come from there.

use std::collections::HashMap;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Instant;

use pagefork::IncompleteImage;
use pagefork_image::{
    ContentHash, GROUP_SIZE, ImageHead, ImageStore, Manifest, SavedSpan, StoredImage,
};
use rustix::event::{EventfdFlags, eventfd};

/// Of the images in the store, so many of those that came last are looked at.
const IMAGES_MAX: usize = 256;

/// So many of those that run the same code are used.
const USED_MAX: usize = 4;

/// Groups whose hashes are read at once.
const PIECE: u64 = 4096;

/// Hashes that are kept: of an image of 2 GiB, where two others have something for each group.
const HASHES_MAX: usize = 1 << 18;

/// Groups whose hashes are not in an index and are computed: 64 MiB, a fraction of a second.
const COMPUTED_MAX: usize = 4096;

/// Ranges of groups that two images may have in common: more are not looked at.
const RANGES_MAX: usize = 4096;

/// An image that may have groups of another one.
#[derive(Debug)]
enum LikeImage {
    /// It is in the store, which spares it as long as this is here.
    Stored(StoredImage),
    /// It comes from another node, too, as long as somebody needs it there.
    Coming { head: Arc<ImageHead>, image: Weak<IncompleteImage> },
}

/// A group of another image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct OwnGroup {
    image: usize,
    group: u64,
}

/// Groups of other images that groups of one may be like.
#[derive(Debug, Default)]
pub(crate) struct GroupsHere {
    images: Vec<LikeImage>,
    places: HashMap<(u64, ContentHash), OwnGroup>,
}

impl LikeImage {
    fn manifest(&self) -> &Manifest {
        match self {
            Self::Stored(image) => image.chain().tip().manifest(),
            Self::Coming { head, .. } => head.manifest(),
        }
    }

    fn is_stored(&self) -> bool {
        matches!(self, Self::Stored(_))
    }

    fn group_count(&self) -> u64 {
        match self {
            Self::Stored(image) => image.chain().tip().group_count(),
            Self::Coming { head, .. } => head.group_count(),
        }
    }

    /// What stands for groups in its tree, if that need not be computed.
    fn leaves(&self, groups: Range<u64>) -> Option<Vec<ContentHash>> {
        match self {
            Self::Stored(image) => image.chain().tip().leaves(groups).ok(),
            Self::Coming { .. } => None,
        }
    }

    /// The bytes of a group that are here and right.
    fn group(&self, group: u64) -> Option<Vec<u8>> {
        match self {
            Self::Stored(image) => image.chain().tip().read_group(group).ok(),
            Self::Coming { head, image } => {
                // Nothing is waited for.
                let image = image.upgrade().filter(|image| image.is_present(group))?;
                let mut bytes = vec![0; head.group_size(group) as usize];
                image.read(group * GROUP_SIZE, &mut bytes).ok()?;
                Some(bytes)
            }
        }
    }
}

impl GroupsHere {
    /// Looks for them in a store, and in images that come, as long as these are needed. What runs other code
    /// has little in common, and nobody has to be told of it.
    pub(crate) fn look(
        head: &ImageHead,
        images: &ImageStore,
        coming: Vec<Weak<IncompleteImage>>,
    ) -> Self {
        let (mut here, mut left) = (Self::default(), COMPUTED_MAX);
        let runs_the_same = |manifest: &Manifest| codes(manifest).eq(codes(head.manifest()));
        // What cannot be read is no more than not here.
        if let Ok(stored) = images.newest_full_images(IMAGES_MAX, runs_the_same) {
            for image in stored.take(USED_MAX) {
                here.look_in(head, LikeImage::Stored(image), &mut left);
            }
        }
        let coming = coming.into_iter().filter_map(|image| {
            let head = Arc::clone(image.upgrade()?.head());
            Some(LikeImage::Coming { head, image })
        });
        let coming = coming.filter(|image| match image {
            LikeImage::Coming { head: other, .. } => {
                other.hash() != head.hash() && runs_the_same(other.manifest())
            }
            LikeImage::Stored(_) => false,
        });
        for image in coming.take(USED_MAX) {
            here.look_in(head, image, &mut left);
        }
        here
    }

    fn look_in(&mut self, head: &ImageHead, image: LikeImage, left: &mut usize) {
        let number = self.images.len();
        for (groups, first) in common(head.manifest(), image.manifest()) {
            let end = groups.end.min(head.group_count());
            let count = end.saturating_sub(groups.start);
            let count = count.min(image.group_count().saturating_sub(first));
            // Of a group that is all there is, the hash says nothing of its place.
            let is_like =
                groups.start == first && head.group_count() > 1 && image.group_count() > 1;
            for piece in (0..count).step_by(PIECE as usize) {
                if self.places.len() >= HASHES_MAX {
                    break;
                }
                let piece = piece..count.min(piece + PIECE);
                let theirs = first + piece.start..first + piece.end;
                let leaves = if is_like { image.leaves(theirs) } else { None };
                for at in piece.clone() {
                    let (group, own) = (groups.start + at, first + at);
                    let leaf = match &leaves {
                        Some(leaves) => leaves.get((at - piece.start) as usize).copied(),
                        None if *left == 0 => None,
                        None => {
                            let bytes = image.group(own);
                            // What is not here yet of one that comes costs nothing.
                            *left -= usize::from(bytes.is_some() || image.is_stored());
                            bytes.and_then(|bytes| head.leaf(group, &bytes).ok())
                        }
                    };
                    if let Some(leaf) = leaf {
                        let place = OwnGroup { image: number, group: own };
                        self.places.entry((group, leaf)).or_insert(place);
                    }
                }
            }
        }
        self.images.push(image);
    }

    /// Groups, and what would stand for them.
    pub(crate) fn hashes(&self) -> Vec<(u64, ContentHash)> {
        let mut hashes: Vec<_> = self.places.keys().copied().collect();
        hashes.sort_unstable();
        hashes
    }

    /// The bytes that a group has if this stands for it; `None` if they are here no more, or damaged.
    pub(crate) fn read(&self, group: u64, hash: ContentHash) -> Option<Vec<u8>> {
        let place = self.places.get(&(group, hash))?;
        self.images.get(place.image)?.group(place.group)
    }
}

/// The code that an image's instances run.
fn codes(manifest: &Manifest) -> impl Iterator<Item = ContentHash> {
    manifest.instances.iter().map(|instance| instance.code.hash)
}

/// Groups of an image whose slots have in another one, from a group of that on, what they may be like.
fn common(wanted: &Manifest, other: &Manifest) -> Vec<(Range<u64>, u64)> {
    let mut common = Vec::new();
    for (wanted, other) in wanted.instances.iter().zip(&other.instances) {
        let mut others = other.spans.iter().peekable();
        for span in &wanted.spans {
            while others.next_if(|other| other.slot().end <= span.start).is_some() {}
            let overlapping = others.clone().take_while(|other| other.start < span.slot().end);
            for other in overlapping {
                if common.len() >= RANGES_MAX {
                    return common;
                }
                common.extend(of_spans(span, other));
            }
        }
    }
    common
}

/// The same of two spans that overlap.
fn of_spans(wanted: &SavedSpan, other: &SavedSpan) -> Option<(Range<u64>, u64)> {
    let start = wanted.start.max(other.start);
    let end = wanted.slot().end.min(other.slot().end);
    let place = |span: &SavedSpan| span.data_offset.checked_add(start - span.start);
    let (here, there) = (place(wanted)?, place(other)?);
    // Else their groups are cut otherwise.
    if here % GROUP_SIZE != there % GROUP_SIZE || start >= end {
        return None;
    }
    let last = here.checked_add(end - start)?.div_ceil(GROUP_SIZE);
    Some((here / GROUP_SIZE..last, there / GROUP_SIZE))
}

/// What was found, and the groups with what would stand for them, ascending.
type FoundHere = (GroupsHere, Vec<(u64, ContentHash)>);

/// A thread that looks, and what it has found.
#[derive(Debug)]
pub(crate) struct LookingHere {
    found: Receiver<FoundHere>,
    ready: Arc<OwnedFd>,
    pub(crate) began: Instant,
}

impl LookingHere {
    /// Begins to look; `None` if the system refuses a thread.
    pub(crate) fn begin(
        head: &Arc<ImageHead>,
        images: &ImageStore,
        coming: Vec<Weak<IncompleteImage>>,
    ) -> Option<Self> {
        let ready = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?);
        let (sender, found) = channel();
        let (signal, head, images) = (Arc::clone(&ready), Arc::clone(head), images.clone());
        let thread = thread::Builder::new().name("pagefork-here".to_owned());
        let looks = thread.spawn(move || {
            // Nobody may want to know any more.
            let here = GroupsHere::look(&head, &images, coming);
            let hashes = here.hashes();
            let _ = sender.send((here, hashes));
            // It cannot be full: nobody else writes it.
            let _ = rustix::io::write(&*signal, &1_u64.to_ne_bytes());
        });
        looks.ok().map(|_| Self { found, ready, began: Instant::now() })
    }

    /// What is ready for reading once all is found.
    pub(crate) fn ready(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }

    /// What was found, once that is all.
    pub(crate) fn found(&self) -> Option<FoundHere> {
        self.found.try_recv().ok()
    }
}

#[cfg(test)]
mod tests;
