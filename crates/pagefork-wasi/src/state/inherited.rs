//! Reading and writing the standard streams of this process, which other processes share.
//!
//! Whether such a descriptor blocks is a flag that holds for all processes that share it, so
//! it is not changed. Most descriptors can be used without waiting in one call alone. A
//! terminal, and a pipe on older kernels, is opened once more for that.

use std::io::{IoSlice, IoSliceMut, IsTerminal};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::PollFlags;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::{Errno as Host, ReadWriteFlags, preadv2, pwritev2, retry_on_intr, writev};
use rustix::net::{RecvFlags, recv};

use crate::base::errno::Result;
use crate::base::waiting::{Blocking, PART_SIZE, with_part, write_parts};
use crate::state::socket::send_part;

/// For `preadv2` and `pwritev2`: use and move the host's own offset.
pub(crate) const HOST_OFFSET: u64 = u64::MAX;

/// Bytes that a pipe with room takes without waiting.
const PIPE_BUF: usize = 4096;

/// Reads at most `into.len()` bytes, 0 at the end.
pub(crate) fn read(host: BorrowedFd<'_>, into: &mut [u8], blocking: Blocking<'_>) -> Result<usize> {
    let mut read_at_once =
        || preadv2(host, &mut [IoSliceMut::new(&mut *into)], HOST_OFFSET, ReadWriteFlags::NOWAIT);
    let access = match retry_on_intr(&mut read_at_once) {
        Err(error @ (Host::AGAIN | Host::OPNOTSUPP | Host::NOSYS)) => {
            HostAccess::of(host, OFlags::RDONLY, error)?
        }
        result => return Ok(result?),
    };
    match access {
        HostAccess::NoWait => blocking.until_ready(host, PollFlags::IN, read_at_once),
        HostAccess::Socket => blocking.until_ready(host, PollFlags::IN, || {
            Ok(recv(host, &mut *into, RecvFlags::DONTWAIT)?.0)
        }),
        HostAccess::Reopened(own) => {
            blocking.until_ready(own.as_fd(), PollFlags::IN, || rustix::io::read(&own, &mut *into))
        }
        HostAccess::Plain | HostAccess::SmallParts => {
            blocking.wait_for(host, PollFlags::IN)?;
            Ok(retry_on_intr(|| rustix::io::read(host, &mut *into))?)
        }
    }
}

/// Writes the slices, as [`Blocking::write_all`] does.
pub(crate) fn write(
    host: BorrowedFd<'_>,
    slices: &mut [IoSlice<'_>],
    blocking: Blocking<'_>,
) -> Result<usize> {
    let mut access = None;
    write_parts(slices, |part, total| {
        if total > 0 {
            blocking.stop.check_wait()?;
        }
        if access.is_none() {
            match retry_on_intr(|| write_without_waiting(host, part)) {
                Err(error @ (Host::AGAIN | Host::OPNOTSUPP | Host::NOSYS)) => {
                    access = Some(HostAccess::of(host, OFlags::WRONLY, error)?);
                }
                result => return Ok(result?),
            }
        }
        access.as_ref().map_or(Ok(0), |access| write_with(access, host, part, blocking))
    })
}

fn write_with(
    access: &HostAccess,
    host: BorrowedFd<'_>,
    part: &[IoSlice<'_>],
    blocking: Blocking<'_>,
) -> Result<usize> {
    let until_ready = |host, write: &dyn Fn() -> rustix::io::Result<usize>| {
        blocking.until_ready(host, PollFlags::OUT, write)
    };
    match access {
        HostAccess::NoWait => until_ready(host, &|| write_without_waiting(host, part)),
        HostAccess::Socket => until_ready(host, &|| send_part(host, part)),
        HostAccess::Reopened(own) => until_ready(own.as_fd(), &|| writev(own, part)),
        HostAccess::Plain | HostAccess::SmallParts => {
            blocking.wait_for(host, PollFlags::OUT)?;
            let size_max = if let HostAccess::Plain = access { PART_SIZE } else { PIPE_BUF };
            Ok(with_part(part, size_max, |part| retry_on_intr(|| writev(host, part)))?)
        }
    }
}

fn write_without_waiting(host: BorrowedFd<'_>, part: &[IoSlice<'_>]) -> rustix::io::Result<usize> {
    pwritev2(host, part, HOST_OFFSET, ReadWriteFlags::NOWAIT)
}

/// How to use a descriptor for which the first call without waiting failed.
enum HostAccess {
    /// By such calls: the descriptor is a pipe that is empty or full.
    NoWait,
    /// By calls of sockets, which can be told not to wait.
    Socket,
    /// Through a descriptor of our own that does not block.
    Reopened(OwnedFd),
    /// By calls that wait for a device alone: it is a file, or a device but no terminal.
    Plain,
    /// By calls that transfer so little that they do not wait once `poll` has reported room.
    SmallParts,
}

impl HostAccess {
    fn of(host: BorrowedFd<'_>, access: OFlags, error: Host) -> Result<HostAccess> {
        let mode = rustix::fs::fstat(host)?.st_mode;
        Ok(match FileType::from_raw_mode(mode) {
            FileType::Socket => HostAccess::Socket,
            FileType::Fifo if error == Host::AGAIN => HostAccess::NoWait,
            FileType::CharacterDevice if !host.is_terminal() => HostAccess::Plain,
            FileType::Fifo | FileType::CharacterDevice => {
                let path = format!("/proc/self/fd/{}", host.as_raw_fd());
                let flags = access | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
                // `/proc` may not be mounted, and the file may not be ours to open.
                let own = rustix::fs::open(path, flags, Mode::empty());
                own.map_or(HostAccess::SmallParts, HostAccess::Reopened)
            }
            _ => HostAccess::Plain,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, mpsc};
    use std::time::Duration;

    use super::*;
    use crate::base::waiting::{EngineStops, InterruptCheck};

    /// A check that asks to stop from the `count`th time on.
    fn stop_at(count: usize) -> InterruptCheck {
        let asked = Arc::new(AtomicUsize::new(0));
        InterruptCheck::new(move || asked.fetch_add(1, Ordering::Relaxed) + 1 >= count)
    }

    fn blocking(check: &InterruptCheck) -> Blocking<'_> {
        Blocking { waits: true, stop: check.and(EngineStops::default()) }
    }

    /// Runs `f` in a thread, and fails if it takes more than 20 seconds.
    fn in_time<R: Send + 'static>(f: impl FnOnce() -> R + Send + 'static) -> R {
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || sender.send(f()));
        receiver.recv_timeout(Duration::from_secs(20)).expect("it does not end")
    }

    #[test]
    fn a_large_write_to_a_file_can_be_stopped_between_its_parts() {
        let file = rustix::fs::memfd_create("out", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let bytes = vec![7; 40 << 20];
        let check = stop_at(2);
        let written = write(file.as_fd(), &mut [IoSlice::new(&bytes)], blocking(&check));
        assert_eq!(written, Ok(32 << 20));
    }

    #[test]
    fn a_large_write_to_a_full_pipe_can_be_stopped_in_every_way() {
        for small_parts in [false, true] {
            let written = in_time(move || {
                let (_reader, writer) = std::io::pipe().unwrap();
                let bytes = vec![7; 1 << 20];
                let check = stop_at(40);
                let (host, blocking) = (writer.as_fd(), blocking(&check));
                write_parts(&mut [IoSlice::new(&bytes)], |part, total| {
                    let access = match small_parts {
                        true => HostAccess::SmallParts,
                        false => HostAccess::of(host, OFlags::WRONLY, Host::OPNOTSUPP)?,
                    };
                    assert!(total <= 1 << 16);
                    write_with(&access, host, part, blocking)
                })
            });
            assert_eq!(written, Ok(1 << 16), "all that a pipe holds");
        }
    }

    #[test]
    fn a_pipe_without_reader_room_takes_all_in_the_end() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let read = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            let mut bytes = Vec::new();
            reader.read_to_end(&mut bytes).map(|_| bytes)
        });
        let bytes: Vec<u8> = (0..300_000).map(|at| at as u8).collect();
        let check = InterruptCheck::default();
        let written = write(writer.as_fd(), &mut [IoSlice::new(&bytes)], blocking(&check));
        assert_eq!(written, Ok(bytes.len()));
        drop(writer);
        assert!(read.join().unwrap().unwrap() == bytes);
    }
}
