//! Sockets of the host, which carry a byte stream and never block.
//!
//! Whether the guest waits is a flag of its own descriptor.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::PollFlags;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, SocketType, recv, sendmsg, sockopt};

use crate::base::errno::Result;
use crate::base::guest_memory::{Buffer, GuestMemory};
use crate::base::waiting::Blocking;

/// Size of the largest peek, bytes. A shorter one loses nothing.
const PEEK_SIZE_MAX: usize = 1 << 16;

/// A socket that carries a byte stream. Clones share it.
#[derive(Clone, Debug)]
pub(crate) enum Socket {
    Listener(Arc<OwnedFd>),
    Connection(Arc<OwnedFd>),
}

impl Socket {
    /// Takes a socket and makes it non-blocking.
    pub(crate) fn new(socket: OwnedFd) -> io::Result<Socket> {
        if sockopt::socket_type(&socket)? != SocketType::STREAM {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it carries no byte stream"));
        }
        let listening = sockopt::socket_acceptconn(&socket)?;
        rustix::io::ioctl_fionbio(&socket, true)?;
        let socket = Arc::new(socket);
        Ok(if listening { Socket::Listener(socket) } else { Socket::Connection(socket) })
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Listener(socket) | Socket::Connection(socket) => socket.as_fd(),
        }
    }
}

/// Receives into the buffers, one after the other: the bytes that are there, or with `all`
/// until they are full or the stream ends. Waits for the first byte at least. An error after
/// it is not reported: the next call finds it again.
pub(crate) fn receive(
    socket: BorrowedFd<'_>,
    memory: &mut GuestMemory<'_>,
    buffers: &[Buffer],
    all: bool,
    blocking: Blocking<'_>,
) -> Result<usize> {
    let mut total = 0;
    for buffer in buffers {
        let mut into = memory.bytes_mut(buffer.address, buffer.size)?;
        while !into.is_empty() {
            let blocking = Blocking { waits: blocking.waits && (total == 0 || all), ..blocking };
            let received = blocking.until_ready(socket, PollFlags::IN, || {
                Ok(recv(socket, &mut *into, RecvFlags::DONTWAIT)?.0)
            });
            match received {
                Ok(0) => return Ok(total),
                Ok(size) => {
                    total += size;
                    into = &mut into[size..];
                }
                Err(_) if total > 0 => return Ok(total),
                Err(error) => return Err(error),
            }
        }
    }
    Ok(total)
}

/// Copies received bytes into the buffers without taking them from the stream.
pub(crate) fn peek(
    socket: BorrowedFd<'_>,
    memory: &mut GuestMemory<'_>,
    buffers: &[Buffer],
    blocking: Blocking<'_>,
) -> Result<usize> {
    let room: usize = buffers.iter().map(|buffer| buffer.size as usize).sum();
    if room == 0 {
        return Ok(0);
    }
    let mut bytes = vec![0; room.min(PEEK_SIZE_MAX)];
    let size = blocking.until_ready(socket, PollFlags::IN, || {
        Ok(recv(socket, &mut bytes[..], RecvFlags::DONTWAIT | RecvFlags::PEEK)?.0)
    })?;
    let mut rest = &bytes[..size];
    for buffer in buffers {
        let (part, later) = rest.split_at(rest.len().min(buffer.size as usize));
        memory.write_bytes(buffer.address, part)?;
        rest = later;
    }
    Ok(size)
}

/// Sends the slices, as [`Blocking::write_all`] does.
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    slices: &mut [IoSlice<'_>],
    blocking: Blocking<'_>,
) -> Result<usize> {
    blocking.write_all(socket, slices, |part| send_part(socket, part))
}

/// Sends without waiting. A broken pipe is an error for the guest, not a signal for the process.
pub(crate) fn send_part(socket: BorrowedFd<'_>, part: &[IoSlice<'_>]) -> rustix::io::Result<usize> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    sendmsg(socket, part, &mut SendAncillaryBuffer::default(), flags)
}
