//! A connection over TLS on which both sides speak whenever they want to, served by one thread.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use pagefork_postcopy::Lane;
use rustix::event::{PollFd, PollFlags};
use rustls::Connection;
use socket2::SockRef;

use crate::outbox::Outbox;
use crate::poll::{Arrived, again, wait_for};

use super::channel::TlsChannel;

/// Bytes of a record of TLS, at most.
const RECORD: usize = 16 << 10;

/// Bytes that TLS has at once: a record. What is waited for overtakes all that is not there yet.
const BATCH: usize = RECORD;

/// Bytes that TLS has at once where nothing is to be overtaken: many records go by one call of the system, and the
/// kernel has few parts of them, of which it has no more than ten on their way at first.
const BULK: usize = 256 << 10;

/// Bytes that are received at once.
const RECEIVED: usize = 64 << 10;

/// Bytes that the kernel takes and has not sent yet: so that the rest stays where it can be
/// overtaken. What the network has on its way is not limited.
const UNSENT: u32 = 64 << 10;

/// Such a connection.
pub(crate) struct TlsDuplex {
    connection: Connection,
    socket: TcpStream,
    /// What is to be sent and TLS has not got yet.
    outbox: Outbox,
    /// Bytes that TLS has got and the network has not taken.
    in_tls: usize,
    /// Bytes that it gets at once.
    batch: usize,
    /// What has come last, and how much of it TLS has got.
    incoming: Vec<u8>,
    given: usize,
    /// Why the connection is lost. What the peer has said before is given out first.
    lost: Option<io::Error>,
    /// Bytes on the network after the handshake.
    pub(crate) sent: u64,
    pub(crate) received: u64,
}

impl TlsDuplex {
    /// After the handshake.
    ///
    /// # Errors
    /// If the system refuses.
    pub(crate) fn new(channel: TlsChannel) -> io::Result<Self> {
        let (connection, socket) = channel.into_parts();
        socket.set_nonblocking(true)?;
        SockRef::from(&socket).set_tcp_notsent_lowat(UNSENT)?;
        let (outbox, incoming) = (Outbox::default(), Vec::new());
        let (in_tls, batch, given, lost, sent, received) = (0, BATCH, 0, None, 0, 0);
        Ok(Self {
            connection,
            socket,
            outbox,
            in_tls,
            batch,
            incoming,
            given,
            lost,
            sent,
            received,
        })
    }

    /// Nothing that is sent overtakes what was pushed before, so that more is sent at once.
    pub(crate) fn in_bulk(&mut self) {
        // The kernel sends it when it can, whatever this thread does; where it refuses, it is told again.
        let _ = SockRef::from(&self.socket).set_tcp_notsent_lowat(2 * BULK as u32);
        self.batch = BULK;
        // Else TLS takes less. What it has is bounded here.
        self.connection.set_buffer_limit(None);
    }

    /// Whether the connection is known to be lost, though the peer may have said more before.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.is_some()
    }

    /// Has a message sent, behind those of the same lane.
    pub(crate) fn push(&mut self, lane: Lane, message: Vec<u8>) {
        self.outbox.push(lane, message);
    }

    /// Sends what the network takes. Returns how many of the bytes that were pushed are gone: taken by
    /// it, or dropped, because the connection is lost. [`Self::receive`] says so, after what the
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
                        return Ok(taken + self.drop_unsent());
                    }
                }
            }
            taken += std::mem::take(&mut self.in_tls);
            while self.in_tls < self.batch {
                match self.make_record()? {
                    0 => break,
                    size => self.in_tls += size,
                }
            }
            if self.in_tls == 0 {
                return Ok(taken);
            }
        }
        Ok(self.drop_unsent())
    }

    /// Gives TLS a record, of which it has less than it takes. Returns its size: nothing if all is sent.
    fn make_record(&mut self) -> io::Result<usize> {
        let next = self.outbox.next();
        if next.len() >= RECORD {
            self.connection.writer().write_all(&next[..RECORD])?;
            self.outbox.advance(RECORD);
            return Ok(RECORD);
        }
        // Small messages share a record: TLS makes one of each write.
        let mut record = Vec::new();
        while record.len() < RECORD {
            let next = self.outbox.next();
            if next.is_empty() {
                break;
            }
            let part = &next[..next.len().min(RECORD - record.len())];
            record.extend_from_slice(part);
            let size = part.len();
            self.outbox.advance(size);
        }
        self.connection.writer().write_all(&record)?;
        Ok(record.len())
    }

    /// Drops what is to be sent. Returns its size.
    fn drop_unsent(&mut self) -> usize {
        std::mem::take(&mut self.outbox).size() + std::mem::take(&mut self.in_tls)
    }

    /// Takes what has come, if anything has.
    ///
    /// # Errors
    /// If the connection is lost, or was cut: then its end was not said.
    pub(crate) fn receive(&mut self) -> io::Result<Arrived> {
        let mut arrived = Arrived::default();
        // What was read is given out: the socket would not say that it is there.
        while (arrived.bytes.len() < RECEIVED || self.given < self.incoming.len())
            && !arrived.is_over
        {
            let has_more = self.take_ciphertext();
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

    /// Gives TLS a part of what has come. Returns whether there may be more.
    fn take_ciphertext(&mut self) -> bool {
        if self.given == self.incoming.len() {
            // TLS alone would ask the system for each few KiB.
            self.incoming.resize(RECEIVED, 0);
            let read = self.socket.read(&mut self.incoming);
            self.incoming.truncate(read.as_ref().map_or(0, |count| *count));
            self.given = 0;
            match read {
                Ok(count) => self.received += count as u64,
                Err(error) if error.kind() == ErrorKind::Interrupted => return true,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                Err(error) => {
                    self.lost.get_or_insert(error);
                    return false;
                }
            }
        }
        // Nothing is what it takes for the end.
        match self.connection.read_tls(&mut &self.incoming[self.given..]) {
            Ok(count) => {
                self.given += count;
                true
            }
            Err(error) => {
                self.lost.get_or_insert(error);
                false
            }
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

    /// Waits until the network takes something, or gives something where that `is_received`, one of the
    /// other descriptors is ready for reading, or the time has come.
    ///
    /// # Errors
    /// If the system refuses.
    pub(crate) fn wait(
        &self,
        also: &[BorrowedFd<'_>],
        until: Option<Instant>,
        is_received: bool,
    ) -> io::Result<()> {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, is_received);
        flags.set(PollFlags::OUT, self.connection.wants_write() || !self.outbox.is_empty());
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
        self.send_all(until)?;
        self.connection.send_close_notify();
        self.send_all(until)
    }

    /// Sends what there is, and what TLS has of it.
    fn send_all(&mut self, until: Instant) -> io::Result<()> {
        self.send()?;
        while (!self.outbox.is_empty() || self.connection.wants_write()) && Instant::now() < until {
            self.wait(&[], Some(until), true)?;
            self.send()?;
        }
        Ok(())
    }

    /// As [`Self::end`], towards a peer that may be sending: takes what comes and throws it away,
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
