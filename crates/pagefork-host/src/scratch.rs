//! Pages and files that probes try things on.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::ptr;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};

/// Bytes of a page.
pub(crate) const PAGE: usize = 4096;

/// Every byte of an image.
pub(crate) const IMAGE_BYTE: u8 = 0x5a;

/// What was seen instead of what should be.
pub(crate) struct Seen(pub(crate) String);

/// Whether a feature works.
pub(crate) type Checked = Result<(), Seen>;

/// Says what was seen, unless a condition holds.
pub(crate) fn check(holds: bool, otherwise: &str) -> Checked {
    if holds { Ok(()) } else { Err(Seen(otherwise.to_owned())) }
}

/// Says that a call failed.
pub(crate) fn refused<E: Into<std::io::Error>>(what: &str) -> impl Fn(E) -> Seen {
    move |error| Seen(format!("{what}: {}", error.into()))
}

/// Pages to try things on. The first ones are a private map of an image of [`IMAGE_BYTE`]s,
/// the others are anonymous and zero. Dropping it unmaps them.
pub(crate) struct Pages {
    /// Invariant: `mapped` pages from here are mapped, by this value alone.
    start: usize,
    mapped: usize,
    /// Invariant: the first pages, as many as this, are readable and writable.
    accessible: usize,
    /// The image, sealed.
    pub(crate) image: File,
}

impl Pages {
    /// Pages of an image, then anonymous ones.
    pub(crate) fn new(of_image: usize, anonymous: usize) -> Result<Self, Seen> {
        let image = filled_file(of_image.max(1))?;
        seal(&image)?;
        let mut pages = Self::reserve(of_image + anonymous, image)?;
        pages.grow(of_image + anonymous)?;
        pages.map_image(of_image)?;
        Ok(pages)
    }

    /// The first page of an image again.
    pub(crate) fn of(image: &File) -> Result<Self, Seen> {
        let image = image.try_clone().map_err(refused("dup"))?;
        let mut pages = Self::reserve(1, image)?;
        pages.grow(1)?;
        pages.map_image(1)?;
        Ok(pages)
    }

    /// Maps the first pages of the image over the first pages.
    fn map_image(&mut self, count: usize) -> Checked {
        assert!(count <= self.accessible, "accessible pages");
        if count == 0 {
            return Ok(());
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        let at = ptr::with_exposed_provenance_mut(self.start);
        // SAFETY: the pages that the map replaces are this value's, by the invariant of `start`.
        let map = unsafe { rustix::mm::mmap(at, count * PAGE, access, flags, &self.image, 0) };
        map.map(drop).map_err(refused("mmap"))
    }

    /// `count` inaccessible pages.
    pub(crate) fn inaccessible(count: usize) -> Result<Self, Seen> {
        Self::reserve(count, filled_file(1)?)
    }

    fn reserve(count: usize, image: File) -> Result<Self, Seen> {
        let start = map_anywhere(count * PAGE, MapFlags::empty())?;
        Ok(Self { start, mapped: count, accessible: 0, image })
    }

    /// Makes the first `count` pages accessible.
    pub(crate) fn grow(&mut self, count: usize) -> Checked {
        assert!((self.accessible..=self.mapped).contains(&count), "pages that are mapped");
        let at = ptr::with_exposed_provenance_mut(self.address(self.accessible));
        let length = (count - self.accessible) * PAGE;
        let access = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: the pages are this value's, by the invariant of `start`.
        unsafe { rustix::mm::mprotect(at, length, access) }.map_err(refused("mprotect"))?;
        self.accessible = count;
        Ok(())
    }

    /// Discards what was written to all accessible pages.
    pub(crate) fn discard(&mut self) -> Checked {
        self.advise(rustix::mm::Advice::LinuxDontNeed).map_err(refused("madvise"))
    }

    /// Gives advice on all accessible pages.
    pub(crate) fn advise(&mut self, advice: rustix::mm::Advice) -> Result<(), Errno> {
        let at = ptr::with_exposed_provenance_mut(self.start);
        // SAFETY: the pages are this value's, by the invariant of `start`.
        unsafe { rustix::mm::madvise(at, self.accessible * PAGE, advice) }
    }

    /// How many pages are accessible.
    pub(crate) fn count(&self) -> usize {
        self.accessible
    }

    /// Address of a page.
    pub(crate) fn address(&self, page: usize) -> usize {
        self.start + page * PAGE
    }

    /// Addresses of all accessible pages.
    pub(crate) fn addresses(&self) -> Range<u64> {
        self.address(0) as u64..self.address(self.accessible) as u64
    }

    fn place(&self, page: usize) -> *mut u8 {
        assert!(page < self.accessible, "only accessible pages are touched");
        ptr::with_exposed_provenance_mut(self.address(page))
    }

    /// The first byte of a page.
    pub(crate) fn read(&self, page: usize) -> u8 {
        // SAFETY: `place` gives accessible pages alone, by the invariant of `accessible`.
        unsafe { self.place(page).read_volatile() }
    }

    /// Writes the first byte of a page.
    pub(crate) fn write(&mut self, page: usize, byte: u8) {
        // SAFETY: as in `read`; no other code uses the pages.
        unsafe { self.place(page).write_volatile(byte) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        unmap(self.start, self.mapped * PAGE);
    }
}

/// Maps inaccessible pages; the caller owns them.
pub(crate) fn map_anywhere(length: usize, flags: MapFlags) -> Result<usize, Seen> {
    let flags = flags | MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: without an address the kernel takes pages that are not used.
    let place =
        unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), length, ProtFlags::empty(), flags) };
    Ok(place.map_err(refused("mmap"))?.expose_provenance())
}

/// Unmaps pages that [`map_anywhere`] has mapped.
pub(crate) fn unmap(start: usize, length: usize) {
    // SAFETY: the callers own the pages, and use them no longer. A failure leaves them mapped.
    let _ = unsafe { rustix::mm::munmap(ptr::with_exposed_provenance_mut(start), length) };
}

/// A new memfd, and whether it can never be executed.
pub(crate) fn memfd() -> Result<(File, bool), Seen> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let create = |flags| rustix::fs::memfd_create("pagefork:probe", flags);
    match create(flags | MemfdFlags::NOEXEC_SEAL) {
        Ok(file) => Ok((file.into(), true)),
        // Kernels before 6.3 do not know the flag.
        Err(Errno::INVAL) => Ok((create(flags).map_err(refused("memfd_create"))?.into(), false)),
        Err(error) => Err(refused("memfd_create")(error)),
    }
}

/// A memfd with `pages` pages of [`IMAGE_BYTE`]s.
pub(crate) fn filled_file(pages: usize) -> Result<File, Seen> {
    let (file, _) = memfd()?;
    file.write_all_at(&vec![IMAGE_BYTE; pages * PAGE], 0).map_err(refused("pwrite"))?;
    Ok(file)
}

/// Makes the contents and the length of a memfd final.
pub(crate) fn seal(file: &File) -> Checked {
    let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(file, seals).map_err(refused("sealing a memfd"))?;
    let has = rustix::fs::fcntl_get_seals(file).map_err(refused("reading seals"))?;
    check(has.contains(seals), "a seal did not stay")
}
