//! A connection over QUIC on which both sides speak whenever they want to.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use bytes::Bytes;
use pagefork_postcopy::Lane;

use crate::poll::{Arrived, again};

use super::channel::QuicChannel;
use super::link::QuicLink;

/// In which order lanes are sent on that could be.
const ORDER: [Lane; 4] = [Lane::Urgent, Lane::Control, Lane::Planned, Lane::Background];

/// Such a connection.
pub(crate) struct QuicDuplex {
    link: QuicLink,
    /// What is to be sent, by [`ORDER`]: each lane has a stream of its own.
    outbox: [VecDeque<Bytes>; 4],
    /// Bytes that were taken, and of which [`Self::send`] has not said so.
    taken: usize,
}

impl QuicDuplex {
    /// After the handshake.
    pub(crate) fn new(channel: QuicChannel) -> Self {
        Self { link: channel.into_link(), outbox: Default::default(), taken: 0 }
    }

    /// Takes more of the peer at once. What is sent has a limit of its own, and what overtakes its own streams.
    pub(crate) fn in_bulk(&mut self) {
        self.link.take_in_bulk();
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.link.lost().is_some()
    }

    pub(crate) fn sent(&self) -> u64 {
        self.link.sent()
    }

    pub(crate) fn received(&self) -> u64 {
        self.link.received()
    }

    pub(crate) fn push(&mut self, lane: Lane, message: Vec<u8>) {
        let queue = ORDER.iter().zip(&mut self.outbox).find(|(other, _)| **other == lane);
        if let Some((_, queue)) = queue
            && !message.is_empty()
        {
            queue.push_back(message.into());
        }
    }

    pub(crate) fn send(&mut self) -> io::Result<usize> {
        let mut taken = std::mem::take(&mut self.taken);
        loop {
            // What the peer says it has makes room.
            self.link.drive();
            if self.is_lost() {
                return Ok(taken + self.drop_unsent());
            }
            match self.write()? {
                0 => return Ok(taken),
                written => taken += written,
            }
        }
    }

    /// Gives the connection as much as it takes.
    fn write(&mut self) -> io::Result<usize> {
        let mut written = 0;
        for (lane, queue) in ORDER.iter().zip(&mut self.outbox) {
            while let Some(message) = queue.front_mut() {
                let count = self.link.write(*lane, message)?;
                written += count;
                match message.is_empty() {
                    true => queue.pop_front(),
                    false => break,
                };
            }
        }
        Ok(written)
    }

    fn drop_unsent(&mut self) -> usize {
        std::mem::take(&mut self.outbox).iter().flatten().map(Bytes::len).sum()
    }

    pub(crate) fn receive(&mut self) -> io::Result<Arrived> {
        self.link.drive();
        self.link.has_news = false;
        let mut arrived = Arrived::default();
        // How much there can be is bounded by what the peer was told.
        arrived.is_over = self.link.read(Lane::Control, usize::MAX, &mut arrived.bytes)?;
        for lane in [Lane::Urgent, Lane::Planned, Lane::Background] {
            let mut bytes = Vec::new();
            self.link.read(lane, usize::MAX, &mut bytes)?;
            if !bytes.is_empty() {
                arrived.others.push((lane, bytes));
            }
        }
        match self.link.lost() {
            Some(lost) if arrived.is_empty() && !arrived.is_over => Err(again(lost)),
            _ => Ok(arrived),
        }
    }

    /// Waits until the network gives or takes something, what has come among it where that `is_received`.
    ///
    /// # Errors
    /// If the system refuses.
    pub(crate) fn wait(
        &mut self,
        also: &[BorrowedFd<'_>],
        until: Option<Instant>,
        is_received: bool,
    ) -> io::Result<()> {
        // There may be room since it was sent last.
        let taken = self.write()?;
        self.taken += taken;
        match taken > 0 || (is_received && self.link.has_news) {
            true => Ok(()),
            false => self.link.wait(also, until),
        }
    }

    pub(crate) fn end(&mut self) -> io::Result<()> {
        let until = Instant::now() + self.link.patience();
        self.deliver(until)
    }

    pub(crate) fn end_and_drain(mut self, until: Instant) -> io::Result<()> {
        // The peer has what it was told when it says so, whatever it sends meanwhile.
        self.deliver(until)
    }

    /// Sends the rest, ends all streams, and waits until the peer has all.
    fn deliver(&mut self, until: Instant) -> io::Result<()> {
        let is_late = || Instant::now() >= until;
        self.send()?;
        while self.outbox.iter().any(|queue| !queue.is_empty()) && !is_late() {
            self.link.wait(&[], Some(until))?;
            self.send()?;
        }
        self.link.finish();
        self.link.drive();
        while !self.link.is_delivered() && !self.is_lost() && !is_late() {
            self.link.wait(&[], Some(until))?;
            self.link.drive();
        }
        Ok(())
    }
}
