//! A memfd that many images share, each in pages of its own.
//!
//! ```text
//!  file     | image | image | image |          not used yet               | 64 MiB
//!  window                           |---- shared, read-write: `put` ------|
//!                                   ^ used
//! ```
//!
//! It is as long as it will ever be, and mapped for writing once, before it is
//! sealed: F_SEAL_FUTURE_WRITE then forbids all other ways to write (new maps,
//! `write`, punching holes), and F_SEAL_GROW and F_SEAL_SHRINK other lengths. An
//! image is written through the map, whose part of it is unmapped before anybody
//! sees the image. From then on no process can write those pages, as if the whole
//! file were sealed; which it is when it is full. A forked process does not get the
//! map, since it would go on to have all of it.
//!
//! Pages of images that are gone cannot be given back one by one: an arena lives
//! as long as one of its images does, or while it takes the next image and is not
//! used much.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock};

use pagefork_layout::page::{self, PAGE_SIZE};
use rustix::process::{Resource, getrlimit};

use crate::os::error::{Feature, PagesError};
use crate::os::fork::this_process;
use crate::os::lock::lock;
use crate::os::memfd::{self, Write, adjacent};
use crate::os::reservation::Reservation;
use crate::os::sys;

/// Bytes of an arena; only what is used of it takes memory.
pub(crate) const ARENA_SIZE: u64 = 64 << 20;

pub(crate) struct SharedFile {
    file: OwnedFd,
    /// All of it for reading, mapped when it is first needed: one map for all of
    /// its images.
    view: OnceLock<Reservation>,
}

/// More of an arena than this is not kept when all its images are gone.
const KEPT_MAX: u64 = ARENA_SIZE / 4;

/// The arena that takes the next image.
static OPEN: Mutex<Option<OpenFile>> = Mutex::new(None);

/// The arena of an image.
pub(crate) struct SharedPart(Arc<SharedFile>);

impl SharedPart {
    pub(crate) fn arena(&self) -> &SharedFile {
        &self.0
    }
}

impl Drop for SharedPart {
    fn drop(&mut self) {
        // Ours, and that of the arena that takes the next image. If others are dropped
        // at the same time all of them may miss it, and the next image is laid there.
        if Arc::strong_count(&self.0) != 2 {
            return;
        }
        let mut place = lock(&OPEN);
        let is_done = |open: &mut OpenFile| {
            open.used > KEPT_MAX
                && Arc::ptr_eq(&open.arena, &self.0)
                && Arc::strong_count(&self.0) == 2
        };
        drop(place.take_if(is_done));
    }
}

impl SharedFile {
    /// Lays `writes` into `size` bytes of an arena, whole pages and not none, and
    /// returns where those begin. `None` if this machine or the limits of this
    /// process do not let arenas be.
    pub(crate) fn place(
        size: u64,
        writes: &[Write<'_>],
    ) -> Result<Option<(SharedPart, u64)>, PagesError> {
        let mut place = lock(&OPEN);
        // It is away from its place until all has succeeded: what failed, or even
        // panicked, may have left bytes.
        let open = place.take().and_then(|open| open.with_room(size));
        let mut open = match open {
            Some(open) => open,
            None => match OpenFile::new()? {
                Some(open) => open,
                None => return Ok(None),
            },
        };
        match open.put(size, writes) {
            Ok(start) => {
                let part = SharedPart(Arc::clone(&open.arena));
                *place = Some(open);
                Ok(Some((part, start)))
            }
            Err(error) => {
                open.close();
                Err(error)
            }
        }
    }

    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Address of its first byte, mapped for reading.
    pub(crate) fn view(&self) -> Result<usize, PagesError> {
        memfd::view(&self.view, self.file.as_fd(), ARENA_SIZE)
    }
}

/// An arena with room.
struct OpenFile {
    arena: Arc<SharedFile>,
    window: WriteWindow,
    /// Bytes in use. Invariant: the window is what lies behind them, all zero.
    used: u64,
}

/// The part of an arena that is mapped for writing: at least a page, because only
/// unmapping a part of a map can be seen to have succeeded.
struct WriteWindow {
    /// `None` while it is dropped.
    pages: Option<Reservation>,
    /// The process that has it.
    process: u64,
}

impl OpenFile {
    fn new() -> Result<Option<Self>, PagesError> {
        // Going beyond would raise a signal.
        if getrlimit(Resource::Fsize).current.is_some_and(|limit| limit < ARENA_SIZE) {
            return Ok(None);
        }
        let (file, _) = memfd::create("images")?;
        sys::resize_image(file.as_fd(), ARENA_SIZE)?;
        let mut pages = Reservation::new(ARENA_SIZE, PAGE_SIZE)?;
        pages.map_window(0..ARENA_SIZE, file.as_fd(), 0)?;
        let window = WriteWindow { pages: Some(pages), process: this_process() };
        match sys::seal_image(file.as_fd(), sys::ARENA_SEALS).map_err(PagesError::from) {
            Ok(seals) if seals.contains(sys::ARENA_SEALS) => {}
            // Kernels before 5.1, and what stands in for kernels.
            Ok(_) | Err(PagesError::Unsupported { feature: Feature::Seals, .. }) => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        }
        let arena = Arc::new(SharedFile { file, view: OnceLock::new() });
        Ok(Some(Self { arena, window, used: 0 }))
    }

    /// Itself, if it is of this process and has room; closed if it has not.
    fn with_room(self, size: u64) -> Option<Self> {
        let own = self.window.process == this_process();
        if own && size < ARENA_SIZE - self.used {
            return Some(self);
        }
        if own {
            self.close();
        }
        None
    }

    fn put(&mut self, size: u64, writes: &[Write<'_>]) -> Result<u64, PagesError> {
        let pages = self.window.pages();
        // Where there is no memory, this is an error; writing to the map would
        // raise SIGBUS.
        for (offset, pieces) in adjacent(writes) {
            let size: usize = pieces.iter().map(|piece| piece.len()).sum();
            let covered = page::covering(offset..offset + size as u64);
            let length = covered.end - covered.start;
            sys::allocate_image(self.arena.file.as_fd(), self.used + covered.start, length)?;
        }
        for &(offset, bytes) in writes {
            pages.write(offset, bytes);
        }
        pages.release_head(size)?;
        let start = self.used;
        self.used += size;
        Ok(start)
    }

    /// Makes all of it final.
    fn close(self) {
        let Self { arena, window, .. } = self;
        drop(window);
        // Without this the seals forbid everything but what we have just unmapped.
        let _ = sys::seal_image(arena.file.as_fd(), sys::IMAGE_SEALS);
    }
}

impl WriteWindow {
    fn pages(&mut self) -> &mut Reservation {
        self.pages.as_mut().expect("only dropping takes it")
    }
}

impl Drop for WriteWindow {
    fn drop(&mut self) {
        if self.process != this_process() {
            // By now something else may lie at its addresses.
            std::mem::forget(self.pages.take());
        }
    }
}
