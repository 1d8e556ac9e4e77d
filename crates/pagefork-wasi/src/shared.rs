//! Reading and writing descriptors that this process shares with others: its standard
//! streams.
//!
//! Whether such a descriptor blocks is a flag that holds for all who share it, so it is not
//! changed. Most can be asked not to wait for one call alone; a terminal, and a pipe on older
//! kernels, is opened once more for it.

use std::io::{IoSlice, IoSliceMut, IsTerminal};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::PollFlags;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::{Errno as Host, ReadWriteFlags, preadv2, pwritev2, retry_on_intr};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, sendmsg};

use crate::abi::Errno;
use crate::waiting::Blocking;

/// For `preadv2` and `pwritev2`: use, and move, the host's own offset.
const HOST_OFFSET: u64 = u64::MAX;

/// Reads at most `into.len()` bytes, 0 at the end.
pub(crate) fn read(
    host: BorrowedFd<'_>,
    into: &mut [u8],
    blocking: Blocking<'_>,
) -> Result<usize, Errno> {
    let at_once = |into: &mut [u8]| {
        let mut buffers = [IoSliceMut::new(into)];
        preadv2(host, &mut buffers, HOST_OFFSET, ReadWriteFlags::NOWAIT)
    };
    match retry_on_intr(|| at_once(into)) {
        Err(Host::AGAIN | Host::OPNOTSUPP | Host::NOSYS) => {}
        result => return Ok(result?),
    }
    match Way::of(host, OFlags::RDONLY)? {
        Way::Socket => blocking.until_ready(host, PollFlags::IN, || {
            Ok(recv(host, &mut *into, RecvFlags::DONTWAIT)?.0)
        }),
        Way::Own(own) => {
            let own = own.as_fd();
            blocking.until_ready(own, PollFlags::IN, || rustix::io::read(own, &mut *into))
        }
        Way::Plain => {
            blocking.wait_for(host, PollFlags::IN)?;
            Ok(retry_on_intr(|| rustix::io::read(host, &mut *into))?)
        }
    }
}

/// Writes the slices, as [`Blocking::write_all`] does.
pub(crate) fn write(
    host: BorrowedFd<'_>,
    mut slices: &mut [IoSlice<'_>],
    blocking: Blocking<'_>,
) -> Result<usize, Errno> {
    let at_once = || pwritev2(host, slices, HOST_OFFSET, ReadWriteFlags::NOWAIT);
    let written = match retry_on_intr(at_once) {
        Err(Host::AGAIN | Host::OPNOTSUPP | Host::NOSYS) => 0,
        written => written?,
    };
    IoSlice::advance_slices(&mut slices, written);
    if slices.is_empty() {
        return Ok(written);
    }
    let rest = match Way::of(host, OFlags::WRONLY)? {
        Way::Socket => {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            blocking.write_all(host, slices, |slices| {
                sendmsg(host, slices, &mut SendAncillaryBuffer::default(), flags)
            })
        }
        Way::Own(own) => {
            let own = own.as_fd();
            blocking.write_all(own, slices, |slices| rustix::io::writev(own, slices))
        }
        Way::Plain => blocking
            .wait_for(host, PollFlags::OUT)
            .and_then(|()| Ok(retry_on_intr(|| rustix::io::writev(host, slices))?)),
    };
    match rest {
        Ok(rest) => Ok(written + rest),
        // It is left for the next call to meet again.
        Err(_) if written > 0 => Ok(written),
        Err(error) => Err(error),
    }
}

/// How a descriptor is used that cannot be asked, or that has nothing to do at once.
enum Way {
    /// By calls of sockets, which can be asked not to wait.
    Socket,
    /// Through a descriptor of our own that does not block.
    Own(OwnedFd),
    /// As it is: a file, which waits for its device alone, or a device that is no terminal.
    Plain,
}

impl Way {
    fn of(host: BorrowedFd<'_>, access: OFlags) -> Result<Way, Errno> {
        let mode = rustix::fs::fstat(host)?.st_mode;
        Ok(match FileType::from_raw_mode(mode) {
            FileType::Socket => Way::Socket,
            FileType::CharacterDevice if !host.is_terminal() => Way::Plain,
            FileType::Fifo | FileType::CharacterDevice => {
                let path = format!("/proc/self/fd/{}", host.as_raw_fd());
                let flags = access | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
                // Without that file system, or the right to open it, as it is.
                rustix::fs::open(path, flags, Mode::empty()).map_or(Way::Plain, Way::Own)
            }
            _ => Way::Plain,
        })
    }
}
