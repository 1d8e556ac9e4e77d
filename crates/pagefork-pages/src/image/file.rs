//! The files that hold the bytes of images. The first images of a process have a
//! sealed memfd each; further ones share, so that the number of images is not
//! bounded by the number of descriptors.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::process::{Resource, getrlimit};

use crate::image::incomplete::IncompletePages;
use crate::image::shared::{ARENA_SIZE, SharedFile, SharedPart};
use crate::os::error::PagesError;
use crate::os::memfd::{self, Write, adjacent, seal, view};
use crate::os::reservation::Reservation;
use crate::os::sys;

/// This many images of a process have a memfd of their own; further ones share.
pub const OWN_FILES_MAX: usize = 128;

/// Images of [`LARGE_IMAGE`] bytes and more have one of their own up to this number.
pub const OWN_FILES_LARGE_MAX: usize = 256;

/// Images of at least this many bytes are large.
pub const LARGE_IMAGE: u64 = 1 << 20;

/// Larger images never share: few of them would fit together.
const SHARED_IMAGE_MAX: u64 = ARENA_SIZE / 4;

/// The file in which an image lies.
pub(crate) enum ImageFile {
    /// A sealed memfd of its own.
    Own(Own),
    /// A part of a memfd that images share.
    Shared(SharedPart),
    /// A file of the embedder.
    Foreign(OwnedFd),
    /// A memfd that is filled while slots map it.
    Incomplete(Arc<IncompletePages>),
}

impl ImageFile {
    /// A file with `writes` in `size` bytes, whole pages and not none; all else in
    /// it is zero. Returns also the byte offset in it from which those offsets
    /// count. No process can change the bytes when this returns.
    pub(crate) fn new(
        name: &str,
        size: u64,
        writes: &[Write<'_>],
    ) -> Result<(Self, u64), PagesError> {
        let max = match size {
            0..LARGE_IMAGE => OWN_FILES_MAX,
            LARGE_IMAGE..=SHARED_IMAGE_MAX => OWN_FILES_LARGE_MAX,
            _ => usize::MAX,
        };
        if let Some(counted) = OwnFileCount::below(max) {
            return Ok((Self::Own(Own::new(name, size, writes, counted)?), 0));
        }
        if let Some((part, start)) = SharedFile::place(size, writes)? {
            return Ok((Self::Shared(part), start));
        }
        let counted =
            OwnFileCount::below(usize::MAX).expect("there are fewer descriptors than that");
        Ok((Self::Own(Own::new(name, size, writes, counted)?), 0))
    }

    /// Its pages, unless all are here.
    pub(crate) fn incomplete(&self) -> Option<&Arc<IncompletePages>> {
        match self {
            Self::Incomplete(pages) if !pages.is_whole() => Some(pages),
            _ => None,
        }
    }

    /// Address of its byte `offset`, which is mapped for reading together with the rest of the
    /// image. `None` for a file that can be cut, since reading it then raises SIGBUS.
    pub(crate) fn address(&self, offset: u64) -> Result<Option<usize>, PagesError> {
        let start = match self {
            Self::Own(own) => own.view()?,
            Self::Shared(part) => part.arena().view()?,
            Self::Foreign(_) => return Ok(None),
            Self::Incomplete(pages) => return Ok(Some(pages.address(offset))),
        };
        Ok(Some(start + offset as usize))
    }
}

impl AsFd for ImageFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Own(own) => own.file.as_fd(),
            Self::Shared(part) => part.arena().file(),
            Self::Foreign(file) => file.as_fd(),
            Self::Incomplete(pages) => pages.as_fd(),
        }
    }
}

/// A sealed memfd with one image in it.
pub(crate) struct Own {
    file: OwnedFd,
    size: u64,
    /// All of it for reading, mapped when it is first needed.
    view: OnceLock<Reservation>,
    _counted: OwnFileCount,
}

impl Own {
    fn new(
        name: &str,
        size: u64,
        writes: &[Write<'_>],
        counted: OwnFileCount,
    ) -> Result<Self, PagesError> {
        // Asked first, because going beyond would also raise a signal.
        if let Some(limit) = getrlimit(Resource::Fsize).current
            && size > limit
        {
            return Err(PagesError::FileSizeLimit { requested: size, limit });
        }
        let (file, _) = memfd::create(name)?;
        sys::resize_image(file.as_fd(), size)?;
        for (offset, pieces) in adjacent(writes) {
            sys::write_image_pieces(file.as_fd(), &pieces, offset)?;
        }
        seal(&file)?;
        Ok(Self { file, size, view: OnceLock::new(), _counted: counted })
    }

    fn view(&self) -> Result<usize, PagesError> {
        view(&self.view, self.file.as_fd(), self.size)
    }
}

/// One of the images with a memfd of their own.
struct OwnFileCount;

static OWN_FILES: AtomicUsize = AtomicUsize::new(0);

impl OwnFileCount {
    /// One more, if there are fewer than `max`.
    fn below(max: usize) -> Option<Self> {
        let one_more = |count: usize| (count < max).then_some(count + 1);
        OWN_FILES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        Some(Self)
    }
}

impl Drop for OwnFileCount {
    fn drop(&mut self) {
        OWN_FILES.fetch_sub(1, Ordering::Relaxed);
    }
}
