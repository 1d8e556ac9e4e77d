//! Sockets: those that the guest was given, and the connections that it
//! accepts on them.
//!
//! The host's sockets never block. Whether the guest waits is its own flag,
//! kept in the descriptor's description, and where it waits, the embedder's
//! check is asked.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::PollFlags;
use rustix::net::{
    RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, SocketFlags, SocketType, accept_with,
    recv, sendmsg, shutdown, sockopt,
};

use crate::abi::{Errno, FdFlags, FileType, RiFlags, Rights, SdFlags};
use crate::ctx::WasiCtx;
use crate::descriptor::{Description, Descriptor, Handle, Origin};
use crate::guest_memory::{Buffer, GuestMemory};
use crate::waiting::{Blocking, Watch};

/// Size of the largest peek, bytes. Nothing is lost by a shorter one.
const PEEK_SIZE_MAX: usize = 1 << 16;

impl WasiCtx {
    /// `sock_accept`: accepts a connection and writes its descriptor, the
    /// lowest number that is free. The only flag is [`FdFlags::NONBLOCK`], for
    /// the connection; whether this call waits is a flag of the listener's.
    ///
    /// # Errors
    ///
    /// [`Errno::Badf`], [`Errno::Notsock`], [`Errno::Inval`] for a connection
    /// and for other flags, [`Errno::Notcapable`], [`Errno::Fault`],
    /// [`Errno::Again`] if there is none and the listener is in non-blocking
    /// mode, [`Errno::Intr`] if the embedder's check asks for it (see
    /// [`WasiCtx::set_interrupt_check`]), and host errors.
    pub fn sock_accept(
        &mut self,
        memory: &mut GuestMemory<'_>,
        fd: u32,
        flags: u32,
        result: u32,
    ) -> Result<(), Errno> {
        let listener = self.table.get(fd)?;
        let socket = listener.listener()?;
        listener.require(Rights::SOCK_ACCEPT)?;
        let flags = socket_flags(flags)?;
        memory.check(result, 4)?;
        let origin = match listener.description.origin {
            Origin::Listener { index } => Origin::Accepted { listener: index },
            _ => return Err(Errno::Notsock),
        };
        let watch = Watch::new(memory.interruption(), self.interrupt.as_ref());
        let blocking = listener.blocking(watch);
        let accepted = blocking
            .until_ready(socket, PollFlags::IN, || accept_with(socket, SocketFlags::CLOEXEC))?;
        let rights_base = Rights::CONNECTION & listener.description.rights_inheriting;
        let description = Description { flags, rights_base, ..Description::of_socket(origin) };
        let handle = Handle::Socket(Socket::Connection(Arc::new(accepted)));
        let accepted = self.table.insert(Descriptor { description, handle })?;
        memory.write_u32(result, accepted)
    }

    /// `sock_recv`: receives into buffers and writes how many bytes, and the
    /// flags of what was received, of which there are none: a stream has no
    /// messages that could be cut off.
    ///
    /// [`RiFlags::WAITALL`] has no effect on a peek, as POSIX allows.
    ///
    /// # Errors
    ///
    /// [`Errno::Badf`], [`Errno::Notsock`], [`Errno::Notconn`] for a listener,
    /// [`Errno::Notcapable`], [`Errno::Inval`] for unknown flags,
    /// [`Errno::Fault`], [`Errno::Again`] in non-blocking mode,
    /// [`Errno::Intr`] if the embedder's check asks for it, and host errors.
    #[allow(clippy::too_many_arguments)]
    pub fn sock_recv(
        &mut self,
        memory: &mut GuestMemory<'_>,
        fd: u32,
        iovs: u32,
        iovs_count: u32,
        flags: u32,
        size_result: u32,
        flags_result: u32,
    ) -> Result<(), Errno> {
        let descriptor = self.table.get(fd)?;
        let socket = descriptor.connection()?;
        descriptor.require(Rights::FD_READ)?;
        let flags = RiFlags::from_guest(flags)?;
        memory.check(flags_result, 2)?;
        let buffers = memory.transfer(iovs, iovs_count, size_result)?;
        let watch = Watch::new(memory.interruption(), self.interrupt.as_ref());
        let blocking = descriptor.blocking(watch);
        let size = if flags.contains(RiFlags::PEEK) {
            peek(socket, memory, &buffers, blocking)?
        } else {
            receive(socket, memory, &buffers, flags.contains(RiFlags::WAITALL), blocking)?
        };
        memory.write_u16(flags_result, 0)?;
        memory.write_size(size_result, size)
    }

    /// `sock_send`: sends from buffers and writes how many bytes were taken:
    /// all of them, unless in non-blocking mode. There are no flags.
    ///
    /// # Errors
    ///
    /// As [`WasiCtx::sock_recv`]; [`Errno::Pipe`] if nobody can receive any
    /// more.
    pub fn sock_send(
        &mut self,
        memory: &mut GuestMemory<'_>,
        fd: u32,
        iovs: u32,
        iovs_count: u32,
        flags: u32,
        result: u32,
    ) -> Result<(), Errno> {
        let descriptor = self.table.get(fd)?;
        let socket = descriptor.connection()?;
        descriptor.require(Rights::FD_WRITE)?;
        if flags != 0 {
            return Err(Errno::Inval);
        }
        let buffers = memory.transfer(iovs, iovs_count, result)?;
        let watch = Watch::new(memory.interruption(), self.interrupt.as_ref());
        let blocking = descriptor.blocking(watch);
        let size = send(socket, &mut memory.io_slices(&buffers)?, blocking)?;
        memory.write_size(result, size)
    }

    /// `sock_shutdown`: closes one or both directions.
    ///
    /// # Errors
    ///
    /// [`Errno::Badf`], [`Errno::Notsock`], [`Errno::Notconn`] for a listener,
    /// which others may share, [`Errno::Notcapable`], [`Errno::Inval`] for no
    /// or unknown directions, and host errors.
    pub fn sock_shutdown(
        &mut self,
        _memory: &mut GuestMemory<'_>,
        fd: u32,
        how: u32,
    ) -> Result<(), Errno> {
        let descriptor = self.table.get(fd)?;
        let socket = descriptor.connection()?;
        descriptor.require(Rights::SOCK_SHUTDOWN)?;
        let how = SdFlags::from_guest(how)?;
        let how = match (how.contains(SdFlags::RD), how.contains(SdFlags::WR)) {
            (true, true) => Shutdown::Both,
            (true, false) => Shutdown::Read,
            (false, true) => Shutdown::Write,
            (false, false) => return Err(Errno::Inval),
        };
        Ok(shutdown(socket, how)?)
    }
}

/// A socket of the host's that carries a byte stream. Clones share it.
#[derive(Clone, Debug)]
pub(crate) enum Socket {
    Listener(Arc<OwnedFd>),
    Connection(Arc<OwnedFd>),
}

impl Socket {
    /// Takes a socket, and makes it non-blocking.
    pub(crate) fn new(socket: OwnedFd) -> io::Result<Socket> {
        if sockopt::socket_type(&socket)? != SocketType::STREAM {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it carries no byte stream"));
        }
        let listening = sockopt::socket_acceptconn(&socket)?;
        rustix::io::ioctl_fionbio(&socket, true)?;
        let socket = Arc::new(socket);
        Ok(if listening { Socket::Listener(socket) } else { Socket::Connection(socket) })
    }

    /// The descriptor of a socket that the guest is given.
    pub(crate) fn descriptor(&self, index: u32) -> Descriptor {
        let description = Description::of_socket(match self {
            Socket::Listener(_) => Origin::Listener { index },
            Socket::Connection(_) => Origin::Connection { index },
        });
        Descriptor { description, handle: Handle::Socket(self.clone()) }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Listener(socket) | Socket::Connection(socket) => socket.as_fd(),
        }
    }
}

impl Description {
    fn of_socket(origin: Origin) -> Description {
        let (rights_base, rights_inheriting) = match origin {
            Origin::Listener { .. } => (Rights::LISTENER, Rights::CONNECTION),
            _ => (Rights::CONNECTION, Rights::NONE),
        };
        Description {
            origin,
            filetype: FileType::SocketStream,
            flags: FdFlags::NONE,
            rights_base,
            rights_inheriting,
            offset: 0,
        }
    }
}

impl Descriptor {
    fn connection(&self) -> Result<BorrowedFd<'_>, Errno> {
        match &self.handle {
            Handle::Socket(Socket::Connection(socket)) => Ok(socket.as_fd()),
            Handle::Socket(Socket::Listener(_)) => Err(Errno::Notconn),
            _ => Err(Errno::Notsock),
        }
    }

    fn listener(&self) -> Result<BorrowedFd<'_>, Errno> {
        match &self.handle {
            Handle::Socket(Socket::Listener(socket)) => Ok(socket.as_fd()),
            Handle::Socket(Socket::Connection(_)) => Err(Errno::Inval),
            _ => Err(Errno::Notsock),
        }
    }
}

/// The flags that a socket can have.
pub(crate) fn socket_flags(flags: u32) -> Result<FdFlags, Errno> {
    match FdFlags::from_guest(flags)? {
        flags @ (FdFlags::NONE | FdFlags::NONBLOCK) => Ok(flags),
        _ => Err(Errno::Inval),
    }
}

/// Receives into the buffers, one after the other: what is there, or with
/// `all` until they are full or the stream ends. Waits for the first byte at
/// least. An error after it is left for the next call to meet again.
pub(crate) fn receive(
    socket: BorrowedFd<'_>,
    memory: &mut GuestMemory<'_>,
    buffers: &[Buffer],
    all: bool,
    blocking: Blocking<'_>,
) -> Result<usize, Errno> {
    let mut total = 0;
    for buffer in buffers {
        let mut into = memory.bytes_mut(buffer.address, buffer.size)?;
        while !into.is_empty() {
            let blocking = if total == 0 || all { blocking } else { Blocking::Never };
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

/// Copies what is there into the buffers and leaves it there.
fn peek(
    socket: BorrowedFd<'_>,
    memory: &mut GuestMemory<'_>,
    buffers: &[Buffer],
    blocking: Blocking<'_>,
) -> Result<usize, Errno> {
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
) -> Result<usize, Errno> {
    // A broken pipe is an error for the guest, not a signal for the process.
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    blocking.write_all(socket, slices, |slices| {
        sendmsg(socket, slices, &mut SendAncillaryBuffer::default(), flags)
    })
}
