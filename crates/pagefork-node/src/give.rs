//! The side of a memory node that gives pages of its images as they are asked for.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use pagefork::IncompleteImage;
use pagefork_image::{ContentHash, GroupProof, ImageHead, ImageStore, PublicKey, StoredImage};
use pagefork_postcopy::{
    MemoryInput, MemoryNode, MemoryOutput, Moment, PeerAccess, ProtocolError, ServeLimits,
    ServedImage,
};

use crate::base::{NodeError, NodeTimes};
use crate::duplex::Duplex;
use crate::leases::{LeaseHolder, Leases};
use crate::shown::ShownTokens;
use crate::times::thread_cpu;

/// Bytes that are read and not yet taken by the network. What a guest waits for overtakes those that
/// are read; those that are being read it does not.
const BYTES_IN_FLIGHT: usize = 64 << 10;

/// What a connection needs to give pages.
pub(crate) struct PageGiver<'a> {
    images: &'a ImageStore,
    leases: &'a Leases,
    peer: PublicKey,
    node: MemoryNode,
    /// What the peer has open.
    open: BTreeMap<ContentHash, StoredImage>,
    /// Groups that are to be read, in order: no more than may be in flight. Nothing else is ever left for later, so a
    /// peer that asks for more than is done for it waits, and fills no memory.
    reads: VecDeque<MemoryOutput>,
    /// Who has leased what this connection has.
    holder: LeaseHolder,
    shown: &'a ShownTokens,
    /// What its thread had taken of a processor when it read last.
    cpu: Duration,
    /// How long a peer that is left may take to hear why.
    idle: Duration,
}

/// What comes after something was done for a peer.
enum Pass {
    /// There is more to do.
    GoesOn,
    /// Nothing is to be done until something comes, or it is time.
    Waits,
    /// The peer has ended the connection, and has had all.
    IsOver,
    /// The peer is to be left.
    Leaves(ProtocolError),
}

impl<'a> PageGiver<'a> {
    pub(crate) fn new(
        images: &'a ImageStore,
        (leases, shown): (&'a Leases, &'a ShownTokens),
        peer: PublicKey,
        access: PeerAccess,
        times: &NodeTimes,
    ) -> Self {
        let limits = ServeLimits { bytes_in_flight: BYTES_IN_FLIGHT, ..ServeLimits::default() };
        let node = MemoryNode::new(peer, access, limits, now());
        let (open, holder) = (BTreeMap::new(), leases.holder(peer));
        let (cpu, idle) = (thread_cpu(), times.idle);
        let reads = VecDeque::new();
        Self { images, leases, peer, node, open, reads, holder, shown, cpu, idle }
    }

    /// Answers until the peer has ended the connection.
    ///
    /// # Errors
    /// If it is lost, or the peer is left.
    pub(crate) fn serve(mut self, mut duplex: Duplex) -> Result<(), NodeError> {
        let peer = self.peer;
        let talk = || NodeError::io(format!("talk to node {peer}"));
        loop {
            match self.pass(&mut duplex).map_err(talk())? {
                Pass::GoesOn => {}
                Pass::Waits => duplex.wait(&[], self.node.deadline()).map_err(talk())?,
                Pass::IsOver => return Ok(()),
                Pass::Leaves(why) => {
                    let until = Instant::now() + self.idle;
                    duplex.end_and_drain(until).map_err(talk())?;
                    return Err(why.into());
                }
            }
        }
    }

    /// Takes what has come, does what follows, reads a group, and sends. Between any two groups it is looked whether a
    /// guest waits for another one.
    fn pass(&mut self, duplex: &mut Duplex) -> io::Result<Pass> {
        let arrived = duplex.receive()?;
        let input = match arrived.bytes.is_empty() {
            true => MemoryInput::Tick,
            false => MemoryInput::Received(&arrived.bytes),
        };
        let outputs = self.node.handle(input, now());
        if let Some(why) = self.do_all(outputs, duplex).or_else(|| self.read_next(duplex)) {
            return Ok(Pass::Leaves(why));
        }
        let mut is_idle = self.reads.is_empty();
        let taken = duplex.send()?;
        if taken > 0 {
            let outputs = self.node.handle(MemoryInput::Taken(taken), now());
            is_idle &= outputs.is_empty();
            if let Some(why) = self.do_all(outputs, duplex) {
                return Ok(Pass::Leaves(why));
            }
        }
        Ok(match (is_idle, arrived.is_over) {
            (false, _) => Pass::GoesOn,
            (true, false) => Pass::Waits,
            (true, true) => Pass::IsOver,
        })
    }

    /// Does all of this, and what follows from it, but read groups: these are read later, one at a time. All else is
    /// done before more is received, however many groups are asked for: a peer that opens images without end has
    /// nothing waiting here but what came at once. Gives why the peer is to be left, if it is.
    fn do_all(&mut self, outputs: Vec<MemoryOutput>, duplex: &mut Duplex) -> Option<ProtocolError> {
        let mut to_do = VecDeque::from(outputs);
        while let Some(output) = to_do.pop_front() {
            match output {
                MemoryOutput::Send { lane, bytes } => duplex.push(lane, bytes),
                MemoryOutput::Close(why) => return Some(why),
                MemoryOutput::Read { .. } => self.reads.push_back(output),
                output => {
                    let next = self.carry_out(output);
                    next.into_iter().rev().for_each(|output| to_do.push_front(output));
                }
            }
        }
        None
    }

    /// Reads the group that is next, if there is one. What follows from it goes before the others: a guest may wait
    /// for it.
    fn read_next(&mut self, duplex: &mut Duplex) -> Option<ProtocolError> {
        let read = self.reads.pop_front()?;
        let outputs = self.carry_out(read);
        let mut others = std::mem::take(&mut self.reads);
        let left = self.do_all(outputs, duplex);
        self.reads.append(&mut others);
        left
    }

    fn carry_out(&mut self, output: MemoryOutput) -> Vec<MemoryOutput> {
        match output {
            MemoryOutput::Resolve { image, name } => {
                let found = self.resolve(image, &name);
                self.node.handle(MemoryInput::Resolved { image, found }, now())
            }
            MemoryOutput::Read { image, hash, group } => {
                let found = self.read(hash, group);
                let before = std::mem::replace(&mut self.cpu, thread_cpu());
                let cpu = self.cpu.saturating_sub(before);
                self.node.handle(MemoryInput::Read { image, group, found, cpu }, now())
            }
            MemoryOutput::Shown { hash, until } => {
                self.shown.keep(self.peer, hash, until);
                Vec::new()
            }
            MemoryOutput::Leased { hash, until } => {
                if let Some(image) = self.open.get(&hash) {
                    self.leases.keep(self.holder, image, until);
                }
                Vec::new()
            }
            // It may have been opened by another number in the same breath.
            MemoryOutput::Released { hash } if self.node.has_open(hash) => Vec::new(),
            MemoryOutput::Released { hash } => {
                self.open.remove(&hash);
                self.leases.end(self.holder, hash);
                Vec::new()
            }
            MemoryOutput::Send { .. } | MemoryOutput::Close(_) => Vec::new(),
        }
    }

    /// Deltas are not given page by page: of those the whole image is to be fetched.
    fn resolve(&mut self, image: u32, name: &str) -> Option<ServedImage> {
        let hash = self.images.find(name).ok().filter(|hash| self.node.may_have(image, *hash))?;
        let image = self.images.load(hash).ok()?;
        let tip = image.chain().tip();
        if tip.manifest().parent.is_some() {
            return None;
        }
        let head = Arc::new(ImageHead::read(tip).ok()?);
        self.open.insert(image.hash(), image);
        // Nothing goes on without the first ones; others have been of use before.
        let mut certain = IncompleteImage::first_groups(head.manifest());
        certain.extend(self.images.touched(head.hash()).unwrap_or_default());
        Some(ServedImage { head, certain })
    }

    fn read(&self, hash: ContentHash, group: u64) -> Option<(Vec<u8>, GroupProof)> {
        self.open.get(&hash)?.chain().tip().read_proved_group(group).ok()
    }
}

impl Drop for PageGiver<'_> {
    /// Its connection is over.
    fn drop(&mut self) {
        self.leases.part(self.holder);
    }
}

/// The time by both clocks.
pub(crate) fn now() -> Moment {
    let unix_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    Moment { at: Instant::now(), unix_s }
}

#[cfg(test)]
mod tests;
