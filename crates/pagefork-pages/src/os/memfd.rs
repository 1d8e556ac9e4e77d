//! Files in memory: made, sealed, and mapped for reading.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use pagefork_layout::page::PAGE_SIZE;
use rustix::io::Errno;

use crate::os::error::{Feature, PagesError};
use crate::os::reservation::Reservation;
use crate::os::sys;

/// Something to write: the byte offset in the image's file, and the bytes.
pub(crate) type Write<'a> = (u64, &'a [u8]);

/// Where each group begins of writes that follow on each other without a gap, and its pieces.
pub(crate) fn adjacent<'a>(
    writes: &'a [Write<'a>],
) -> impl Iterator<Item = (u64, Vec<&'a [u8]>)> + 'a {
    let follows = |before: &Write<'_>, next: &Write<'_>| before.0 + before.1.len() as u64 == next.0;
    let group = |group: &[Write<'a>]| (group[0].0, group.iter().map(|write| write.1).collect());
    writes.chunk_by(follows).map(group)
}

/// Address of the first `size` bytes of a file that cannot be cut, mapped once for all
/// readers.
pub(crate) fn view(
    place: &OnceLock<Reservation>,
    file: BorrowedFd<'_>,
    size: u64,
) -> Result<usize, PagesError> {
    map_once(place, size, |pages| Ok(pages.map_view(0..size, file, 0)?))
}

/// Address of pages that are made once.
pub(crate) fn map_once(
    place: &OnceLock<Reservation>,
    size: u64,
    fill: impl FnOnce(&mut Reservation) -> Result<(), PagesError>,
) -> Result<usize, PagesError> {
    if let Some(pages) = place.get() {
        return Ok(pages.start());
    }
    let mut pages = Reservation::new(size, PAGE_SIZE)?;
    fill(&mut pages)?;
    Ok(place.get_or_init(|| pages).start())
}

/// A new memfd, and whether it can never be executed.
pub(crate) fn create(name: &str) -> Result<(OwnedFd, bool), PagesError> {
    // The kernel takes 249 bytes without a NUL; names come from modules.
    const LENGTH_MAX: usize = 200;
    let name: String = name.chars().map(|c| if c == '\0' { ' ' } else { c }).collect();
    let name = format!("pagefork:{}", &name[..name.floor_char_boundary(LENGTH_MAX)]);
    match sys::create_image(&name, false) {
        Ok(file) => Ok((file, true)),
        // Kernels before 6.3 do not know the flag.
        Err(failure) if failure.errno == Errno::INVAL => {
            Ok((sys::create_image(&name, true)?, false))
        }
        Err(failure) => Err(failure.into()),
    }
}

/// Makes the length of a memfd final, and its contents but for those that write through maps which
/// there are.
pub(crate) fn seal_but_for_maps(file: &OwnedFd) -> Result<(), PagesError> {
    if sys::seal_image(file.as_fd(), sys::ARENA_SEALS)?.contains(sys::ARENA_SEALS) {
        return Ok(());
    }
    Err(PagesError::Unsupported { feature: Feature::Seals, detail: "a seal did not stay" })
}

/// Makes the contents and the length of a memfd final.
pub(crate) fn seal(file: &OwnedFd) -> Result<(), PagesError> {
    if sys::seal_image(file.as_fd(), sys::IMAGE_SEALS)?.contains(sys::IMAGE_SEALS) {
        return Ok(());
    }
    Err(PagesError::Unsupported { feature: Feature::Seals, detail: "a seal did not stay" })
}
