//! userfaultfd: what happens at page faults in ranges that are registered, with the structures and
//! numbers of `linux/userfaultfd.h`.
//!
//! # Safety
//!
//! Requests reach the pages that were registered and no others. None of them changes who may access
//! a page; [`Userfaultfd::copy`] and [`Userfaultfd::zero`] alone give one contents, and only one that
//! has none.

use std::ffi::c_void;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::ioctl::{Opcode, opcode};
use rustix::mm::UserfaultfdFlags;

use crate::os::error::Call;
use crate::os::sys::{CallFailure, attempt, attempt_or_pretend, last_error};

/// Faults of the kernel itself are not served: so no privilege is needed.
const USER_MODE_ONLY: u32 = 1;

/// The event of a message that says that a page was touched, and its flag for writes.
const EVENT_TOUCH: u8 = 0x12;
const TOUCH_WRITE: u64 = 1;

const API_VERSION: u64 = 0xaa;

/// What a userfaultfd does besides the least.
pub(crate) mod feature {
    /// Pages of files in memory.
    pub(crate) const MISSING_SHARED: u64 = 1 << 5;
    /// A fault is a SIGBUS in the thread that takes it, and no message to another.
    pub(crate) const SIGBUS: u64 = 1 << 7;
    /// Pages that have nothing yet can be write-protected.
    pub(crate) const PROTECT_UNPOPULATED: u64 = 1 << 13;
    /// Pages can be refused for good.
    pub(crate) const POISON: u64 = 1 << 14;
    /// Write protection is lifted by the kernel, which remembers that it did.
    pub(crate) const PROTECT_ASYNC: u64 = 1 << 15;
}

/// What pages are registered for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RegisterMode {
    /// Faults in pages that have no contents, nor does the file that they are of.
    Missing,
    /// Writes to pages that are write-protected.
    Protected,
}

/// The kernel's `struct uffdio_api`.
#[repr(C)]
struct UffdioApi {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// The kernel's `struct uffdio_range`.
#[repr(C)]
struct UffdioRange {
    start: u64,
    length: u64,
}

/// The kernel's `struct uffdio_register`.
#[repr(C)]
struct UffdioRegister {
    range: UffdioRange,
    mode: u64,
    ioctls: u64,
}

/// The kernel's `struct uffdio_copy`.
#[repr(C)]
struct UffdioCopy {
    to: u64,
    from: u64,
    length: u64,
    mode: u64,
    /// Bytes that were copied, or an error below zero.
    copied: i64,
}

/// The kernel's `struct uffdio_zeropage`.
#[repr(C)]
struct UffdioZeropage {
    range: UffdioRange,
    mode: u64,
    /// Bytes that were made zero, or an error below zero.
    zeroed: i64,
}

/// The kernel's `struct uffdio_poison`.
#[repr(C)]
struct UffdioPoison {
    range: UffdioRange,
    mode: u64,
    /// Bytes that are refused now, or an error below zero.
    updated: i64,
}

/// The kernel's `struct uffdio_writeprotect`.
#[repr(C)]
struct UffdioWriteProtect {
    range: UffdioRange,
    mode: u64,
}

/// The kernel's `struct uffd_msg`, of a page that was touched.
#[repr(C)]
struct UffdMessage {
    event: u8,
    reserved: [u8; 7],
    flags: u64,
    address: u64,
    rest: u64,
}

/// That a thread has touched a page without contents, and waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FaultMessage {
    pub(crate) address: u64,
    pub(crate) is_write: bool,
}

const START: Opcode = opcode::read_write::<UffdioApi>(0xaa, 0x3f);
const REGISTER: Opcode = opcode::read_write::<UffdioRegister>(0xaa, 0x00);
const UNREGISTER: Opcode = opcode::read::<UffdioRange>(0xaa, 0x01);
const WAKE: Opcode = opcode::read::<UffdioRange>(0xaa, 0x02);
const COPY: Opcode = opcode::read_write::<UffdioCopy>(0xaa, 0x03);
const ZERO: Opcode = opcode::read_write::<UffdioZeropage>(0xaa, 0x04);
const WRITE_PROTECT: Opcode = opcode::read_write::<UffdioWriteProtect>(0xaa, 0x06);
const POISON: Opcode = opcode::read_write::<UffdioPoison>(0xaa, 0x08);

// The numbers contain the sizes of the structures.
const _: () = assert!(START == 0xc018_aa3f && REGISTER == 0xc020_aa00 && UNREGISTER == 0x8010_aa01);
const _: () =
    assert!(WAKE == 0x8010_aa02 && POISON == 0xc020_aa08 && size_of::<UffdMessage>() == 32);
const _: () = assert!(COPY == 0xc028_aa03 && ZERO == 0xc020_aa04 && WRITE_PROTECT == 0xc018_aa06);

/// An open userfaultfd.
#[derive(Debug)]
pub(crate) struct Userfaultfd {
    file: OwnedFd,
    /// What its requests are made for, in errors: to register and the like, and to undo that.
    calls: [Call; 2],
}

impl Userfaultfd {
    /// Opens one with these features.
    ///
    /// # Errors
    /// If the system does not allow it, or has not all of them.
    pub(crate) fn open(features: u64, calls: [Call; 2]) -> Result<Self, CallFailure> {
        Self::open_with(UserfaultfdFlags::empty(), features, calls)
    }

    /// Opens one by which whoever takes a fault waits, and [messages](Self::next_message) tell of it; what cannot
    /// be had can be [refused](Self::refuse).
    ///
    /// # Errors
    /// As [`Self::open`].
    pub(crate) fn open_for_messages(calls: [Call; 2]) -> Result<Self, CallFailure> {
        Self::open_with(UserfaultfdFlags::NONBLOCK, feature::POISON, calls)
    }

    fn open_with(
        flags: UserfaultfdFlags,
        features: u64,
        calls: [Call; 2],
    ) -> Result<Self, CallFailure> {
        let of_users = UserfaultfdFlags::from_bits_retain(USER_MODE_ONLY);
        let flags = flags | UserfaultfdFlags::CLOEXEC | of_users;
        let file = attempt(calls[0], 0, || {
            // SAFETY: nothing happens to any page before one is registered.
            unsafe { rustix::mm::userfaultfd(flags) }
        })?;
        let opened = Self { file, calls };
        let mut api = UffdioApi { api: API_VERSION, features, ioctls: 0 };
        opened.control(calls[0], START, &mut api)?;
        match api.features & features == features {
            true => Ok(opened),
            false => Err(CallFailure { call: calls[0], errno: Errno::INVAL, requested: 0 }),
        }
    }

    /// Registers pages at addresses, some of which may be registered already.
    pub(crate) fn register(
        &self,
        addresses: Range<u64>,
        mode: RegisterMode,
    ) -> Result<(), CallFailure> {
        let mode = match mode {
            RegisterMode::Missing => 1 << 0,
            RegisterMode::Protected => 1 << 1,
        };
        let range = UffdioRange::of(addresses);
        let mut register = UffdioRegister { range, mode, ioctls: 0 };
        self.control(self.calls[0], REGISTER, &mut register)
    }

    /// Undoes [`Self::register`], and lifts write protection.
    pub(crate) fn unregister(&self, addresses: Range<u64>) -> Result<(), CallFailure> {
        self.control(self.calls[1], UNREGISTER, &mut UffdioRange::of(addresses))
    }

    /// Write-protects the pages at addresses that are registered with [`RegisterMode::Protected`].
    pub(crate) fn write_protect(&self, addresses: Range<u64>) -> Result<(), CallFailure> {
        const PROTECT: u64 = 1 << 0;
        let mut protect = UffdioWriteProtect { range: UffdioRange::of(addresses), mode: PROTECT };
        self.control(self.calls[0], WRITE_PROTECT, &mut protect)
    }

    /// Undoes [`Self::write_protect`].
    pub(crate) fn lift_protection(&self, addresses: Range<u64>) -> Result<(), CallFailure> {
        let mut protect = UffdioWriteProtect { range: UffdioRange::of(addresses), mode: 0 };
        self.control(self.calls[1], WRITE_PROTECT, &mut protect)
    }

    /// Gives contents to whole pages at an address that have none. Returns how many bytes were
    /// copied: fewer where one of the pages, not the first, has contents.
    ///
    /// # Errors
    /// `EEXIST` if the first page has contents, and they stay.
    pub(crate) fn copy(&self, address: u64, bytes: &[u8]) -> Result<u64, CallFailure> {
        let from = bytes.as_ptr().expose_provenance();
        self.copy_from(self.calls[0], address, from, bytes.len() as u64)
    }

    /// As [`Self::copy`], of `length` bytes at the address `from`: of what is not readable there none
    /// is copied, and that is an error. Async-signal-safe.
    pub(crate) fn copy_from(
        &self,
        call: Call,
        address: u64,
        from: usize,
        length: u64,
    ) -> Result<u64, CallFailure> {
        let from = from as u64;
        let mut copy = UffdioCopy { to: address, from, length, mode: 0, copied: 0 };
        match self.control(call, COPY, &mut copy) {
            Ok(()) => Ok(length),
            Err(failure) if failure.errno == Errno::AGAIN && copy.copied > 0 => {
                Ok(copy.copied as u64)
            }
            Err(failure) => Err(failure),
        }
    }

    /// Has whole pages that have no contents be the kernel's page of zeros, each until it is written.
    /// Returns how many bytes were, as [`Self::copy`] does. Async-signal-safe.
    ///
    /// # Errors
    /// `EEXIST` if the first page has contents, and they stay.
    pub(crate) fn zero(&self, call: Call, addresses: Range<u64>) -> Result<u64, CallFailure> {
        let range = UffdioRange::of(addresses.clone());
        let mut zero = UffdioZeropage { range, mode: 0, zeroed: 0 };
        match self.control(call, ZERO, &mut zero) {
            Ok(()) => Ok(addresses.end - addresses.start),
            Err(failure) if failure.errno == Errno::AGAIN && zero.zeroed > 0 => {
                Ok(zero.zeroed as u64)
            }
            Err(failure) => Err(failure),
        }
    }

    /// Has touches of whole pages that have no contents be refused from now on, also those that wait: each is
    /// a SIGBUS in the thread that touches, with the code of memory that is broken. A discard undoes it.
    ///
    /// # Errors
    /// `EEXIST` if a page has contents, and they stay; `ENOENT` if none are registered there.
    pub(crate) fn refuse(&self, addresses: Range<u64>) -> Result<(), CallFailure> {
        let range = UffdioRange::of(addresses);
        let mut poison = UffdioPoison { range, mode: 0, updated: 0 };
        self.control(self.calls[0], POISON, &mut poison)
    }

    /// The next fault that somebody waits at, if there is one that nobody was told of.
    pub(crate) fn next_message(&self) -> Result<Option<FaultMessage>, Errno> {
        let mut bytes = [0; size_of::<UffdMessage>()];
        match rustix::io::retry_on_intr(|| rustix::io::read(&self.file, &mut bytes)) {
            Ok(_) => {}
            Err(Errno::AGAIN) => return Ok(None),
            Err(errno) => return Err(errno),
        }
        // SAFETY: the structure has no padding, and any bytes are a value of it.
        let message: UffdMessage = unsafe { std::mem::transmute(bytes) };
        let touch =
            FaultMessage { address: message.address, is_write: message.flags & TOUCH_WRITE != 0 };
        Ok((message.event == EVENT_TOUCH).then_some(touch))
    }

    /// Has those go on that wait at faults in a range: they touch their pages again.
    pub(crate) fn wake(&self, addresses: Range<u64>) {
        let mut range = UffdioRange::of(addresses);
        // SAFETY: the structure is that of the request, which has no way to fail for whole pages of the
        // address space.
        unsafe { libc::ioctl(self.file.as_raw_fd(), WAKE as libc::Ioctl, &raw mut range) };
    }

    /// Makes a request whose structure `value` is.
    fn control<T>(&self, call: Call, request: Opcode, value: &mut T) -> Result<(), CallFailure> {
        let value: *mut T = value;
        attempt_or_pretend(call, 0, Some(()), || {
            let (file, request) = (self.file.as_raw_fd(), request as libc::Ioctl);
            // SAFETY: callers pass the structure of the request, as its number says.
            match unsafe { libc::ioctl(file, request, value.cast::<c_void>()) } {
                0.. => Ok(()),
                _ => Err(last_error()),
            }
        })
    }
}

impl AsFd for Userfaultfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl UffdioRange {
    fn of(addresses: Range<u64>) -> Self {
        Self { start: addresses.start, length: addresses.end - addresses.start }
    }
}
