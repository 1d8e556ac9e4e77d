//! A connection over TLS on which both sides speak whenever they want to, served by one thread.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustls::{ConnectionCommon, SideData, StreamOwned};

use crate::channel::TimedSocket;

/// Bytes that TLS has at once. Less than that waits behind what was given to it before: what is
/// urgent overtakes the rest until there.
const BATCH: usize = 64 << 10;

/// Such a connection. No call of it waits but [`Duplex::wait`].
pub(crate) struct Duplex<C> {
    connection: C,
    socket: TcpStream,
    /// What is to be sent and TLS has not got yet.
    queued: VecDeque<u8>,
    /// Bytes that TLS has got and the network has not taken.
    in_tls: usize,
    /// Why the connection is lost. What the peer has said before is given out first.
    lost: Option<io::Error>,
    /// Bytes on the network after the handshake.
    pub(crate) sent: u64,
    pub(crate) received: u64,
}

/// What has come.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) bytes: Vec<u8>,
    /// Whether the peer has ended its side.
    pub(crate) is_over: bool,
}

impl<C, D> Duplex<C>
where
    C: DerefMut + Deref<Target = ConnectionCommon<D>>,
    D: SideData,
{
    /// After the handshake.
    ///
    /// # Errors
    /// If the system refuses.
    pub(crate) fn new(channel: StreamOwned<C, TimedSocket>) -> io::Result<Self> {
        let (connection, socket) = channel.into_parts();
        let socket = socket.into_inner();
        socket.set_nonblocking(true)?;
        let queued = VecDeque::new();
        Ok(Self { connection, socket, queued, in_tls: 0, lost: None, sent: 0, received: 0 })
    }

    /// Has bytes sent, behind those before.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.queued.extend(bytes);
    }

    /// Sends what the network takes. Returns how many of the bytes that were pushed are gone: taken by
    /// it, or dropped, because the connection is lost. [`Duplex::receive`] says so, after what the
    /// peer has said: it may have refused what was being sent.
    ///
    /// # Errors
    /// If TLS refuses.
    pub(crate) fn send(&mut self) -> io::Result<usize> {
        let mut taken = 0;
        while self.lost.is_none() {
            while self.connection.wants_write() {
                match self.connection.write_tls(&mut self.socket) {
                    Ok(count) => self.sent += count as u64,
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(taken),
                    Err(error) => {
                        self.lost = Some(error);
                        return Ok(taken + self.drop_queued());
                    }
                }
            }
            taken += std::mem::take(&mut self.in_tls);
            let (part, _) = self.queued.as_slices();
            if part.is_empty() {
                return Ok(taken);
            }
            self.in_tls = self.connection.writer().write(&part[..part.len().min(BATCH)])?;
            self.queued.drain(..self.in_tls);
        }
        Ok(self.drop_queued())
    }

    /// Drops what is to be sent. Returns its size.
    fn drop_queued(&mut self) -> usize {
        let size = self.queued.len() + std::mem::take(&mut self.in_tls);
        self.queued.clear();
        size
    }

    /// Takes what has come, if anything has.
    ///
    /// # Errors
    /// If the connection is lost, or was cut: then its end was not said.
    pub(crate) fn receive(&mut self) -> io::Result<Arrived> {
        let mut arrived = Arrived { bytes: Vec::new(), is_over: false };
        while arrived.bytes.len() < BATCH && !arrived.is_over {
            let has_more = match self.connection.read_tls(&mut self.socket) {
                Ok(count) => {
                    self.received += count as u64;
                    true
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => true,
                Err(error) if error.kind() == ErrorKind::WouldBlock => false,
                Err(error) => {
                    self.lost.get_or_insert(error);
                    false
                }
            };
            if let Err(error) = self.connection.process_new_packets() {
                // The peer is told why, if that is possible.
                let _ = self.connection.write_tls(&mut self.socket);
                return Err(io::Error::new(ErrorKind::InvalidData, error));
            }
            let is_cut = match self.take_plaintext(&mut arrived.bytes) {
                Ok(is_over) => {
                    arrived.is_over = is_over;
                    false
                }
                Err(error) => {
                    self.lost.get_or_insert(error);
                    true
                }
            };
            if !has_more || is_cut {
                break;
            }
        }
        // It is known once more the next time.
        match &self.lost {
            Some(lost) if arrived.bytes.is_empty() && !arrived.is_over => Err(again(lost)),
            _ => Ok(arrived),
        }
    }

    /// Returns whether nothing follows.
    fn take_plaintext(&mut self, into: &mut Vec<u8>) -> io::Result<bool> {
        loop {
            let start = into.len();
            into.resize(start + (16 << 10), 0);
            let read = self.connection.reader().read(&mut into[start..]);
            into.truncate(start + read.as_ref().map_or(0, |count| *count));
            match read {
                Ok(0) => return Ok(true),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits until the network gives or takes something, one of the other descriptors is ready for
    /// reading, or the time has come.
    ///
    /// # Errors
    /// If the system refuses.
    pub(crate) fn wait(&self, also: &[BorrowedFd<'_>], until: Option<Instant>) -> io::Result<()> {
        let mut flags = PollFlags::IN;
        if self.connection.wants_write() || !self.queued.is_empty() {
            flags |= PollFlags::OUT;
        }
        let socket = self.socket.as_fd();
        let mut all = vec![PollFd::from_borrowed_fd(socket, flags)];
        all.extend(also.iter().map(|other| PollFd::from_borrowed_fd(*other, PollFlags::IN)));
        wait_for(&mut all, until)
    }

    /// Sends the rest and says that nothing follows, for a second at most.
    ///
    /// # Errors
    /// If TLS refuses.
    pub(crate) fn end(&mut self) -> io::Result<()> {
        let until = Instant::now() + Duration::from_secs(1);
        self.send()?;
        while !self.queued.is_empty() && Instant::now() < until {
            self.wait(&[], Some(until))?;
            self.send()?;
        }
        self.connection.send_close_notify();
        self.send().map(drop)
    }

    /// As [`Duplex::end`], towards a peer that may be sending: takes what comes and throws it away,
    /// until nothing follows or that time has come. A socket that is closed before all was read resets
    /// its connection, and what the peer was told last may never arrive.
    ///
    /// # Errors
    /// If TLS refuses.
    pub(crate) fn end_and_drain(mut self, until: Instant) -> io::Result<()> {
        self.end()?;
        let _ = self.socket.shutdown(Shutdown::Write);
        let mut waste = [0; 16 << 10];
        while Instant::now() < until {
            match self.socket.read(&mut waste) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let mut all = [PollFd::new(&self.socket, PollFlags::IN)];
                    wait_for(&mut all, Some(until))?;
                }
                // It is gone.
                Err(_) => break,
            }
        }
        Ok(())
    }
}

/// An error that says the same.
fn again(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}

/// Waits until one of these is ready, or the time has come.
pub(crate) fn wait_for(all: &mut [PollFd<'_>], until: Option<Instant>) -> io::Result<()> {
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    // A millisecond more, so that the time has come when it ends.
    let left = left.map(|left| {
        let left = left + Duration::from_millis(1);
        Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) }
    });
    match poll(all, left.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
