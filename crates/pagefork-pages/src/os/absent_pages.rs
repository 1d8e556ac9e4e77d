//! Pages of a file that are not here yet: userfaultfd, by which a touch of one is a SIGBUS in the
//! thread that touches it, and not a page of zeros.

use std::os::fd::AsFd;
use std::ptr;

use pagefork_layout::page::PAGE_SIZE;
use rustix::io::Errno;

use crate::os::error::{Call, PagesError};
use crate::os::features::Tried;
use crate::os::reservation::Reservation;
use crate::os::sys::{CallFailure, attempt};
use crate::os::userfaultfd::{RegisterMode, Userfaultfd, feature};
use crate::os::{memfd, sys};

/// What maps of incomplete images are registered with.
pub(crate) fn open() -> Result<Userfaultfd, CallFailure> {
    let features = feature::MISSING_SHARED | feature::SIGBUS;
    Userfaultfd::open(features, [Call::ServeFaults, Call::UnserveFaults])
}

/// Whether slots can be made of images of which pages are absent, so that instances run while they
/// come. Where they cannot, as where a filter forbids userfaultfd, such an image is fetched whole
/// first. It is tried once a process.
///
/// # Examples
///
/// ```
/// println!("instances run before their pages are here: {}", pagefork_pages::serves_absent_pages());
/// ```
pub fn serves_absent_pages() -> bool {
    static SERVES: Tried<bool> = Tried::new();
    // What a limit was in the way of can work later.
    SERVES.get(|| if probe().unwrap_or(false) { Ok(true) } else { Err(()) }).is_ok()
}

/// Tries it on pages of a file: that what is absent is not read as zeros, that it can be given
/// contents through a map that was made before others were forbidden, and that nobody can change
/// it then.
fn probe() -> Result<bool, PagesError> {
    const BYTE: u8 = 0x5a;
    let faults = open()?;
    let (file, _) = memfd::create("probe")?;
    sys::resize_image(file.as_fd(), 2 * PAGE_SIZE)?;
    let mut alias = Reservation::new(2 * PAGE_SIZE, PAGE_SIZE)?;
    alias.map_window(0..2 * PAGE_SIZE, file.as_fd(), 0)?;
    faults.register(alias.start() as u64..alias.end() as u64, RegisterMode::Missing)?;
    memfd::seal_but_for_maps(&file)?;
    let mut slot = Reservation::new(2 * PAGE_SIZE, PAGE_SIZE)?;
    slot.map_inaccessible(0..2 * PAGE_SIZE, file.as_fd(), 0)?;
    faults.register(slot.start() as u64..slot.end() as u64, RegisterMode::Missing)?;
    slot.commit(0..2 * PAGE_SIZE)?;
    // The kernel reads it, which is an error here, where code would get a signal.
    let refused = is_refused(slot.start())? && is_refused(alias.start())?;
    let copied = faults.copy(alias.start() as u64, &[BYTE; PAGE_SIZE as usize])?;
    let place = ptr::with_exposed_provenance::<u8>(slot.start());
    // SAFETY: the page is accessible, and was given contents, if the kernel says the truth; else it
    // would be a page of zeros, or refused, which was asked above.
    let found = refused && !is_refused(slot.start())? && unsafe { place.read_volatile() } == BYTE;
    alias.map_view(0..PAGE_SIZE, file.as_fd(), 0)?;
    let written = sys::write_image(file.as_fd(), &[0], 0).is_ok();
    Ok(found && copied == PAGE_SIZE && !written && is_refused(slot.start() + PAGE_SIZE as usize)?)
}

/// Whether the kernel cannot read the page at an address.
pub(crate) fn is_refused(address: usize) -> Result<bool, PagesError> {
    let (file, _) = memfd::create("probe")?;
    let written = attempt(Call::WriteImage, 1, || {
        use std::os::fd::AsRawFd;
        let place = ptr::with_exposed_provenance(address);
        // SAFETY: the kernel reads the byte, or says that it cannot.
        match unsafe { libc::write(file.as_raw_fd(), place, 1) } {
            0.. => Ok(()),
            _ => Err(sys::last_error()),
        }
    });
    match written {
        Ok(()) => Ok(false),
        Err(failure) if failure.errno == Errno::FAULT => Ok(true),
        Err(failure) => Err(failure.into()),
    }
}

/// Whether the kernel cannot write to the page at an address, whose first byte becomes 0 else.
pub(crate) fn refuses_write(address: usize) -> Result<bool, PagesError> {
    let (file, _) = memfd::create("probe")?;
    sys::resize_image(file.as_fd(), 1)?;
    let read = attempt(Call::ReadImage, 1, || {
        use std::os::fd::AsRawFd;
        let place = ptr::with_exposed_provenance_mut(address);
        // SAFETY: the caller owns the page; the kernel writes the byte, or says that it cannot.
        match unsafe { libc::pread(file.as_raw_fd(), place, 1, 0) } {
            0.. => Ok(()),
            _ => Err(sys::last_error()),
        }
    });
    match read {
        Ok(()) => Ok(false),
        Err(failure) if failure.errno == Errno::FAULT => Ok(true),
        Err(failure) => Err(failure.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(debug_assertions)]
    #[test]
    fn what_does_not_tell_of_absent_pages_is_not_used() {
        use crate::os::inject::{fail_all, pretend};
        if !serves_absent_pages() {
            eprintln!("NOT TESTED: this kernel has no userfaultfd for this user");
            return;
        }
        assert_eq!(probe(), Ok(true));
        let fails = |outcome: Result<bool, PagesError>| assert!(!matches!(outcome, Ok(true)));
        fails(fail_all(Call::ServeFaults, libc::EPERM, probe));
        fails(fail_all(Call::SealImage, libc::EINVAL, probe));
        // A request that reports success and does nothing: absent pages are zeros then.
        fails(pretend(Call::ServeFaults, probe));
        fails(pretend(Call::SealImage, probe));
        // That it was refused once is not for ever.
        assert!(serves_absent_pages());
    }
}
