//! userfaultfd as programs use it that have a thread for faults: what the peer needs of it.

#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};

use rustix::ioctl::{Updater, ioctl, opcode};
use rustix::mm::{UserfaultfdFlags, userfaultfd};

/// Of the kernel's `linux/userfaultfd.h`.
#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct Register {
    start: u64,
    length: u64,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct Copy {
    destination: u64,
    source: u64,
    length: u64,
    mode: u64,
    copied: i64,
}

const API: u64 = 0xaa;
const MODE_MISSING: u64 = 1;
/// Faults of the kernel for the process are not told: that needs no privilege.
const USER_MODE_ONLY: u32 = 1;
const EVENT_PAGEFAULT: u8 = 0x12;

/// Faults of a range of addresses.
pub(super) struct Faults(OwnedFd);

/// # Errors
/// Why this system tells of no faults.
pub(super) fn are_told() -> io::Result<()> {
    descriptor().map(|_| ())
}

fn descriptor() -> io::Result<OwnedFd> {
    let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::from_bits_retain(USER_MODE_ONLY);
    // SAFETY: of no address is anything told yet.
    let descriptor = unsafe { userfaultfd(flags) }?;
    let mut api = Api { api: API, features: 0, ioctls: 0 };
    // SAFETY: the number is the one of this structure.
    unsafe {
        ioctl(&descriptor, Updater::<{ opcode::read_write::<Api>(0xaa, 0x3f) }, Api>::new(&mut api))
    }?;
    Ok(descriptor)
}

impl Faults {
    /// Tells of faults on pages that are missing from now on.
    pub(super) fn of(start: u64, length: u64) -> io::Result<Self> {
        let descriptor = descriptor()?;
        let mut register = Register { start, length, mode: MODE_MISSING, ioctls: 0 };
        // SAFETY: the number is the one of this structure. Who has the memory reads nothing that the
        // peer does not bring.
        unsafe {
            ioctl(
                &descriptor,
                Updater::<{ opcode::read_write::<Register>(0xaa, 0) }, Register>::new(
                    &mut register,
                ),
            )
        }?;
        Ok(Self(descriptor))
    }

    /// Another handle, to wait by.
    pub(super) fn events(&self) -> io::Result<Events> {
        Ok(Events(File::from(self.0.as_fd().try_clone_to_owned()?)))
    }

    /// Puts a page in its place.
    pub(super) fn copy(&self, address: u64, page: &[u8]) -> io::Result<()> {
        let (source, length) = (page.as_ptr() as u64, page.len() as u64);
        let mut copy = Copy { destination: address, source, length, mode: 0, copied: 0 };
        // SAFETY: the number is the one of this structure, and the page is as long as it says. The
        // kernel writes only to registered addresses that nothing was at.
        unsafe {
            ioctl(&self.0, Updater::<{ opcode::read_write::<Copy>(0xaa, 3) }, Copy>::new(&mut copy))
        }?;
        Ok(())
    }
}

/// Faults as they happen.
pub(super) struct Events(File);

impl Events {
    /// Waits for the next fault, and returns its address.
    pub(super) fn next(&mut self) -> io::Result<u64> {
        loop {
            let mut message = [0; 32];
            self.0.read_exact(&mut message)?;
            if message[0] == EVENT_PAGEFAULT {
                let address = message[16..24].try_into().expect("eight bytes");
                return Ok(u64::from_ne_bytes(address));
            }
        }
    }
}
