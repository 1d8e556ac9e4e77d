//! Functions on sockets: those that the guest was given, and the connections that it accepts
//! on them.

use std::sync::Arc;

use rustix::event::PollFlags;
use rustix::net::{Shutdown, SocketFlags, accept_with, shutdown};

use crate::base::abi::{self, FdFlags, FileType, ReceiveFlags, Rights, ShutdownFlags};
use crate::base::errno::{Errno, Result};
use crate::base::guest_memory::GuestMemory;
use crate::state::ctx::WasiCtx;
use crate::state::descriptor::{Description, Descriptor, DescriptorOrigin, Handle};
use crate::state::socket::{Socket, peek, receive, send};

impl WasiCtx {
    /// `sock_accept`: accepts a connection and writes its descriptor, the lowest free number
    /// that does not belong to a standard stream. The only flag is [`FdFlags::NONBLOCK`], for
    /// the connection. Whether this call waits is a flag of the listener.
    ///
    /// # Errors
    ///
    /// [`Errno::Badf`], [`Errno::Notsock`], [`Errno::Inval`] for a connection
    /// and for other flags, [`Errno::Notcapable`], [`Errno::Fault`],
    /// [`Errno::Again`] if there is none and the listener is in non-blocking mode,
    /// [`Errno::Mfile`] if the guest has as many descriptors as it may have, [`Errno::Intr`]
    /// if the embedder's check asks for it (see [`WasiCtx::set_interrupt_check`]), and host
    /// errors.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::io::{Read, Write};
    /// use std::net::{TcpListener, TcpStream};
    ///
    /// use pagefork_wasi::{GuestMemory, WasiCtx};
    ///
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let mut client = TcpStream::connect(listener.local_addr()?)?;
    /// client.write_all(b"hi")?;
    /// let mut ctx = WasiCtx::builder().preopened_socket(listener)?.build()?;
    ///
    /// // The listener is the descriptor 3. An iovec at 0 names two bytes at 16; results go to 8.
    /// let mut bytes = *b"\x10\0\0\0\x02\0\0\0..........";
    /// let memory = &mut GuestMemory::new(&mut bytes[..]);
    /// ctx.sock_accept(memory, 3, 0, 8)?;
    /// let connection = memory.read_u32(8)?;
    /// // The guest sends back what it receives, and then that nothing more comes.
    /// ctx.sock_recv(memory, connection, 0, 1, 0, 8, 12)?;
    /// ctx.sock_send(memory, connection, 0, 1, 0, 8)?;
    /// let sending = 2;
    /// ctx.sock_shutdown(memory, connection, sending)?;
    /// let mut answer = String::new();
    /// client.read_to_string(&mut answer)?;
    /// assert_eq!(answer, "hi");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn sock_accept(
        &mut self,
        memory: &mut GuestMemory<'_>,
        fd: u32,
        flags: u32,
        result: u32,
    ) -> Result {
        let listener = self.table.get(fd)?;
        let socket = listener.listener()?;
        listener.require(Rights::SOCK_ACCEPT)?;
        let flags = socket_flags(flags)?;
        memory.check(result, 4)?;
        let origin = match listener.description.origin {
            DescriptorOrigin::Listener { index } => DescriptorOrigin::Accepted { listener: index },
            _ => return Err(Errno::Notsock),
        };
        // A connection that gets no number would be lost.
        self.table.lowest_free()?;
        let blocking = listener.blocking(self.interrupt.and(memory.stops()));
        let accepted = blocking
            .until_ready(socket, PollFlags::IN, || accept_with(socket, SocketFlags::CLOEXEC))?;
        let rights = Rights::CONNECTION & listener.description.rights_inheriting;
        let filetype = FileType::SocketStream;
        let description = Description::new(origin, filetype, flags, rights, Rights::empty());
        let handle = Handle::Socket(Socket::Connection(Arc::new(accepted)));
        let accepted = self.table.insert(Descriptor { description, handle })?;
        memory.write_u32(result, accepted)
    }

    /// `sock_recv`: receives into buffers, and writes the number of bytes received and the
    /// flags, which are 0: a stream has no messages that could be cut off.
    ///
    /// `WAITALL` has no effect on a peek, as POSIX allows.
    ///
    /// # Errors
    ///
    /// [`Errno::Badf`], [`Errno::Notsock`], [`Errno::Notconn`] for a listener,
    /// [`Errno::Notcapable`], [`Errno::Inval`] for unknown flags,
    /// [`Errno::Fault`], [`Errno::Again`] in non-blocking mode,
    /// [`Errno::Intr`] if the embedder's check asks for it, and host errors.
    ///
    /// # Examples
    ///
    /// See [`WasiCtx::sock_accept`].
    pub fn sock_recv(
        &mut self,
        memory: &mut GuestMemory<'_>,
        fd: u32,
        iovs: u32,
        iovs_count: u32,
        flags: u32,
        size_result: u32,
        flags_result: u32,
    ) -> Result {
        let descriptor = self.table.get(fd)?;
        let socket = descriptor.connection()?;
        descriptor.require(Rights::FD_READ)?;
        let flags = abi::flags::<ReceiveFlags>(flags)?;
        memory.check(flags_result, 2)?;
        let buffers = memory.transfer(iovs, iovs_count, size_result)?;
        let blocking = descriptor.blocking(self.interrupt.and(memory.stops()));
        let size = if flags.contains(ReceiveFlags::PEEK) {
            peek(socket, memory, &buffers, blocking)?
        } else {
            receive(socket, memory, &buffers, flags.contains(ReceiveFlags::WAITALL), blocking)?
        };
        memory.write_bytes(flags_result, &[0; 2])?;
        memory.write_size(size_result, size)
    }

    /// `sock_send`: sends from buffers and writes the number of bytes taken: all of them, unless
    /// in non-blocking mode. There are no flags.
    ///
    /// # Errors
    ///
    /// As [`WasiCtx::sock_recv`]; [`Errno::Pipe`] if the peer no longer receives.
    ///
    /// # Examples
    ///
    /// See [`WasiCtx::sock_accept`].
    pub fn sock_send(
        &mut self,
        memory: &mut GuestMemory<'_>,
        fd: u32,
        iovs: u32,
        iovs_count: u32,
        flags: u32,
        result: u32,
    ) -> Result {
        let descriptor = self.table.get(fd)?;
        let socket = descriptor.connection()?;
        descriptor.require(Rights::FD_WRITE)?;
        if flags != 0 {
            return Err(Errno::Inval);
        }
        let buffers = memory.transfer(iovs, iovs_count, result)?;
        let blocking = descriptor.blocking(self.interrupt.and(memory.stops()));
        let size = send(socket, &mut memory.io_slices(&buffers)?, blocking)?;
        memory.write_size(result, size)
    }

    /// `sock_shutdown`: closes one or both directions.
    ///
    /// # Errors
    ///
    /// [`Errno::Badf`], [`Errno::Notsock`], [`Errno::Notconn`] for a listener, which other
    /// processes may share, [`Errno::Notcapable`], [`Errno::Inval`] for no or unknown
    /// directions, and host errors.
    ///
    /// # Examples
    ///
    /// See [`WasiCtx::sock_accept`].
    pub fn sock_shutdown(&mut self, _memory: &mut GuestMemory<'_>, fd: u32, how: u32) -> Result {
        let descriptor = self.table.get(fd)?;
        let socket = descriptor.connection()?;
        descriptor.require(Rights::SOCK_SHUTDOWN)?;
        let how = abi::flags::<ShutdownFlags>(how)?;
        let how = match (how.contains(ShutdownFlags::RD), how.contains(ShutdownFlags::WR)) {
            (true, true) => Shutdown::Both,
            (true, false) => Shutdown::Read,
            (false, true) => Shutdown::Write,
            (false, false) => return Err(Errno::Inval),
        };
        Ok(shutdown(socket, how)?)
    }
}

/// The flags that a socket can have.
pub(super) fn socket_flags(flags: u32) -> Result<FdFlags> {
    let flags = abi::flags::<FdFlags>(flags)?;
    if FdFlags::NONBLOCK.contains(flags) { Ok(flags) } else { Err(Errno::Inval) }
}
