//! userfaultfd, with a thread that reads what is told, or a signal in the thread that takes a fault.
//!
//! # Safety
//! All ranges are of a [`Mapping`](super::Mapping), or of memory that the caller says so of, and any bytes are right there.

#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use rustix::mm::{UserfaultfdFlags, userfaultfd};

/// Of the kernel's `linux/userfaultfd.h`.
#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct Addresses {
    start: u64,
    length: u64,
}

#[repr(C)]
struct Register {
    addresses: Addresses,
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

#[repr(C)]
struct Zero {
    addresses: Addresses,
    mode: u64,
    zeroed: i64,
}

#[repr(C)]
struct Protect {
    addresses: Addresses,
    mode: u64,
}

const API: u64 = 0xaa;
/// Faults of the kernel for the process are not told: that needs no privilege.
const USER_MODE_ONLY: u32 = 1;
const EVENT_PAGEFAULT: u8 = 0x12;

const fn request<T>(number: u8) -> Opcode {
    opcode::read_write::<T>(API as u8, number)
}

/// Who learns of faults, and how writes to protected pages go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Delivery {
    /// Whoever reads [`Events`]; the thread that has touched the page waits.
    Messages,
    /// The thread that has touched the page, by SIGBUS.
    Signals,
    /// Nobody: the kernel lifts the protection, and remembers that it did.
    Kernel,
}

/// What faults are told of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    /// On pages that have no contents.
    Missing = 1,
    /// On writes to protected pages.
    Protected = 2,
}

/// Faults of ranges of addresses.
pub(crate) struct Userfault(OwnedFd);

/// # Errors
/// Why this system tells of no faults.
pub(crate) fn userfaults_are_told() -> io::Result<()> {
    Userfault::new(Delivery::Messages).map(|_| ())
}

impl Userfault {
    /// Nothing is registered yet.
    ///
    /// # Errors
    /// If this system does not do it so.
    pub(crate) fn new(delivery: Delivery) -> io::Result<Self> {
        const SIGBUS: u64 = 1 << 7;
        const PROTECT_UNPOPULATED: u64 = 1 << 13;
        const PROTECT_ASYNC: u64 = 1 << 15;
        let features = match delivery {
            Delivery::Messages => 0,
            Delivery::Signals => SIGBUS,
            Delivery::Kernel => PROTECT_UNPOPULATED | PROTECT_ASYNC,
        };
        let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::from_bits_retain(USER_MODE_ONLY);
        // SAFETY: of no address is anything told yet.
        let opened = Self(unsafe { userfaultfd(flags) }?);
        let mut api = Api { api: API, features, ioctls: 0 };
        opened.control::<{ request::<Api>(0x3f) }, _>(&mut api)?;
        Ok(opened)
    }

    /// Faults in a range are told of from now on.
    pub(crate) fn register(&self, range: Range<u64>, mode: Mode) -> io::Result<()> {
        let mut register = Register { addresses: range.into(), mode: mode as u64, ioctls: 0 };
        self.control::<{ request::<Register>(0) }, _>(&mut register)
    }

    /// Another handle, to wait by.
    pub(crate) fn events(&self) -> io::Result<Events> {
        Ok(Events(File::from(self.0.as_fd().try_clone_to_owned()?)))
    }

    /// Gives contents to whole pages that have none, and lets who waits for them go on. Async-signal-safe.
    pub(crate) fn copy(&self, address: u64, pages: &[u8]) -> io::Result<()> {
        let mut done = 0;
        while done < pages.len() {
            let rest = &pages[done..];
            let (source, length) = (rest.as_ptr() as u64, rest.len() as u64);
            let destination = address + done as u64;
            let mut copy = Copy { destination, source, length, mode: 0, copied: 0 };
            match self.control::<{ request::<Copy>(3) }, _>(&mut copy) {
                Ok(()) => done = pages.len(),
                // A part, because the maps of the process were changing: the rest comes next.
                Err(error) if error.raw_os_error() == Some(Errno::AGAIN.raw_os_error()) => {
                    done += usize::try_from(copy.copied).unwrap_or(0);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The same with zeros. Async-signal-safe.
    pub(crate) fn zero(&self, range: Range<u64>) -> io::Result<()> {
        let mut zero = Zero { addresses: range.into(), mode: 0, zeroed: 0 };
        self.control::<{ request::<Zero>(4) }, _>(&mut zero)
    }

    /// Protects pages against writes, or lets writes through and who waits to write go on. Async-signal-safe.
    pub(crate) fn protect(&self, range: Range<u64>, protected: bool) -> io::Result<()> {
        let mut protect = Protect { addresses: range.into(), mode: u64::from(protected) };
        self.control::<{ request::<Protect>(6) }, _>(&mut protect)
    }

    /// Makes the request of this number, whose structure `value` is.
    fn control<const REQUEST: Opcode, T>(&self, value: &mut T) -> io::Result<()> {
        // SAFETY: callers name the structure with the number. Requests reach registered pages alone, and
        // give contents only to those that have none.
        unsafe { ioctl(&self.0, Updater::<REQUEST, T>::new(value)) }?;
        Ok(())
    }
}

impl From<Range<u64>> for Addresses {
    fn from(range: Range<u64>) -> Self {
        Self { start: range.start, length: range.end - range.start }
    }
}

/// Faults as they happen.
pub(crate) struct Events(File);

impl Events {
    /// Waits for the next fault, and returns its address.
    pub(crate) fn next(&mut self) -> io::Result<u64> {
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
