//! The side of a memory node that gives pages of its images as they are asked for.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use pagefork::IncompleteImage;
use pagefork_image::{ContentHash, GroupProof, ImageHead, ImageStore, PublicKey, StoredImage};
use pagefork_postcopy::{
    MemoryInput, MemoryNode, MemoryOutput, Moment, PeerAccess, ServeLimits, ServedImage,
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
    /// Who has leased what this connection has.
    holder: LeaseHolder,
    shown: &'a ShownTokens,
    /// What its thread had taken of a processor when it read last.
    cpu: Duration,
    /// How long a peer that is left may take to hear why.
    idle: Duration,
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
        Self { images, leases, peer, node, open, holder, shown, cpu, idle }
    }

    /// Answers until the peer has ended the connection.
    ///
    /// # Errors
    /// If it is lost, or the peer is left.
    pub(crate) fn serve(mut self, mut duplex: Duplex) -> Result<(), NodeError> {
        let peer = self.peer;
        let talk = || NodeError::io(format!("talk to node {peer}"));
        let mut to_do = VecDeque::new();
        loop {
            // Between any two groups it is looked whether a guest waits for another one.
            let arrived = duplex.receive().map_err(talk())?;
            let input = match arrived.bytes.is_empty() {
                true => MemoryInput::Tick,
                false => MemoryInput::Received(&arrived.bytes),
            };
            to_do.extend(self.node.handle(input, now()));
            let mut has_read = false;
            while !has_read && let Some(output) = to_do.pop_front() {
                match output {
                    MemoryOutput::Send { lane, bytes } => duplex.push(lane, bytes),
                    MemoryOutput::Close(why) => {
                        let until = Instant::now() + self.idle;
                        duplex.end_and_drain(until).map_err(talk())?;
                        return Err(why.into());
                    }
                    output => {
                        has_read = matches!(output, MemoryOutput::Read { .. });
                        let mut next = VecDeque::from(self.carry_out(output));
                        // What was read goes before what is to be read.
                        next.append(&mut to_do);
                        to_do = next;
                    }
                }
            }
            let taken = duplex.send().map_err(talk())?;
            if taken > 0 {
                to_do.extend(self.node.handle(MemoryInput::Taken(taken), now()));
            }
            if to_do.is_empty() {
                if arrived.is_over {
                    return Ok(());
                }
                duplex.wait(&[], self.node.deadline()).map_err(talk())?;
            }
        }
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
            // Nodes hand programs over by connections of their own.
            MemoryOutput::Migration(_) | MemoryOutput::Send { .. } | MemoryOutput::Close(_) => {
                Vec::new()
            }
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
