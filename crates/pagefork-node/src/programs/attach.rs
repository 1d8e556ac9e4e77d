//! A client that has the standard streams of a program: wherever this is, each byte comes once.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use pagefork_image::{PublicKey, SecretKey};
use rustix::event::{EventfdFlags, eventfd};

use crate::base::{NodeError, PageTimes};
use crate::fetch::MemoryPeer;

use super::client::NodeLink;
use super::host::random;
use super::streams::STREAM_BYTES;
use super::wire::{ClientId, ClientRequest, NodeReply, PART, ProgramEnd, nonsense};

/// Between two attempts to reach a node again.
const RETRY: Duration = Duration::from_millis(100);

/// What a program's standard streams are connected with. [`ProgramNode`](crate::ProgramNode) has an
/// example.
pub struct AttachStreams<'a> {
    /// Its input. It is read by a thread of its own, which ends with the input.
    pub input: Box<dyn Read + Send>,
    /// Its standard output and standard error. Output that could not be written was not taken.
    pub outputs: [&'a mut dyn Write; 2],
}

impl std::fmt::Debug for AttachStreams<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AttachStreams").finish_non_exhaustive()
    }
}

/// Connects standard streams with those of a program at `peer`, by its name or number, until it has
/// ended. A connection that is lost is made again, as long as `times` say. If the program moves, it is
/// followed: `places` says where the node with a key is.
///
/// # Errors
/// [`NodeError::NotDone`] if there is no such program, or another client has its streams;
/// [`NodeError::Output`] if an output cannot be written; [`NodeError::Parted`] if the node stays
/// away; [`NodeError::Elsewhere`] if the program is at a node of which `places` does not know. Else as of [`ProgramClient::connect`](crate::ProgramClient::connect).
///
/// # Examples
///
/// See [`ProgramNode`](crate::ProgramNode).
pub fn attach_program(
    peer: &MemoryPeer,
    own: &SecretKey,
    program: &str,
    streams: AttachStreams<'_>,
    places: &dyn Fn(&PublicKey) -> Option<MemoryPeer>,
    times: &PageTimes,
) -> Result<ProgramEnd, NodeError> {
    let here = NodeError::io("connect standard streams");
    let input = InputQueue::of(streams.input).map_err(here)?;
    let client = random()
        .map_err(|error| NodeError::io("connect standard streams")(io::Error::other(error)))?;
    let mut attached = AttachedStreams {
        own,
        times,
        client,
        program: program.to_owned(),
        input,
        outputs: streams.outputs,
        has: None,
        unsure: VecDeque::new(),
        unsure_from: None,
        ended_at: None,
        target: None,
    };
    let mut lost_since: Option<Instant> = None;
    let mut peer = peer.clone();
    loop {
        let error = match attached.talk(&peer, &mut lost_since) {
            Ok(AttachOutcome::Ended(end)) => return Ok(end),
            Ok(AttachOutcome::Moved(to)) => {
                let elsewhere =
                    || NodeError::Elsewhere { program: attached.program.clone(), node: to };
                peer = places(&to).ok_or_else(elsewhere)?;
                attached.target = None;
                continue;
            }
            Err(error) => error,
        };
        // What was never there is not waited for. Of two nodes, one has the program, or will.
        let is_lost = match &error {
            NodeError::Io { .. } | NodeError::Handshake { .. } => true,
            NodeError::NotDone { .. } => attached.target.is_some(),
            _ => false,
        };
        if !is_lost || attached.has.is_none() {
            return Err(error);
        }
        if let Some(other) = attached.target.and_then(|to| places(&to)) {
            let before = std::mem::replace(&mut peer, other);
            attached.target = Some(before.key);
        }
        let since = *lost_since.get_or_insert_with(Instant::now);
        if since.elapsed() >= times.lost {
            let (program, seconds) = (attached.program.clone(), times.lost.as_secs());
            return Err(NodeError::Parted { program, seconds, why: error.to_string() });
        }
        thread::sleep(RETRY);
    }
}

struct AttachedStreams<'a, 'o> {
    own: &'a SecretKey,
    times: &'a PageTimes,
    client: ClientId,
    program: String,
    input: Arc<InputQueue>,
    outputs: [&'o mut dyn Write; 2],
    /// How far the outputs are written; none before it was attached for the first time.
    has: Option<[u64; 2]>,
    /// Input that was read, and of which it is not known that the program's node has it.
    unsure: VecDeque<u8>,
    /// The position of the first of these bytes; none before it is known.
    unsure_from: Option<u64>,
    /// Input ends there.
    ended_at: Option<u64>,
    /// Another node that may have the program, if this one is lost.
    target: Option<PublicKey>,
}

/// Why a node has nothing more to say of a program.
enum AttachOutcome {
    Ended(ProgramEnd),
    Moved(PublicKey),
}

impl AttachedStreams<'_, '_> {
    /// Connects, and carries bytes until the program has ended.
    fn talk(
        &mut self,
        peer: &MemoryPeer,
        lost_since: &mut Option<Instant>,
    ) -> Result<AttachOutcome, NodeError> {
        let mut link = NodeLink::connect(peer, self.own, &self.times.node)?;
        link.push(&ClientRequest::Hello);
        let (program, client, outputs) = (self.program.clone(), self.client, self.has);
        link.push(&ClientRequest::Attach { program, client, outputs });
        // Up to where input was sent on this connection, and up to where it may be.
        let (mut sent, mut until) = (None, 0);
        let (mut took, mut is_ended_sent) = (false, false);
        loop {
            while let Some(reply) = link.turn().map_err(link.talk())? {
                match reply {
                    NodeReply::Done => {}
                    NodeReply::Refused(reason) => {
                        return Err(NodeError::NotDone { name: self.program.clone(), reason });
                    }
                    NodeReply::Attached { program, outputs } => {
                        // By its number it is found wherever it goes.
                        self.program = program.to_string();
                        let has = *self.has.get_or_insert(outputs);
                        if has != outputs {
                            return Err(NodeError::Malformed("outputs from other places"));
                        }
                        *lost_since = None;
                    }
                    NodeReply::Input { received, until: room, lacks } => {
                        let is_good = self.received(received) && room >= until;
                        if !is_good {
                            return Err(link.talk()(nonsense("word of input that was not sent")));
                        }
                        until = room;
                        if sent.is_none() || lacks {
                            sent = Some(received);
                            is_ended_sent = false;
                        }
                    }
                    // The node could not hear that it was taken, and sends it again: to another client, if
                    // this one does not come back.
                    NodeReply::Output { .. } if link.duplex.is_lost() => {
                        return Err(link.talk()(io::ErrorKind::UnexpectedEof.into()));
                    }
                    NodeReply::Output { which, at, bytes } => {
                        self.write(which, at, &bytes)?;
                        took = true;
                    }
                    NodeReply::Ended(end) => {
                        let outputs = self.has.unwrap_or_default();
                        link.push(&ClientRequest::Took { outputs });
                        // A node that does not hear it keeps the program for a while.
                        let _ = link.duplex.end();
                        return Ok(AttachOutcome::Ended(end));
                    }
                    NodeReply::Moving(to) => self.target = Some(PublicKey::from_bytes(to)),
                    NodeReply::Moved(to) => {
                        return Ok(AttachOutcome::Moved(PublicKey::from_bytes(to)));
                    }
                    _ => return Err(NodeError::Malformed("an answer to something else")),
                }
            }
            if took {
                took = false;
                link.push(&ClientRequest::Took { outputs: self.has.unwrap_or_default() });
            }
            if let Some(sent) = &mut sent {
                self.send(&mut link, sent, until, &mut is_ended_sent);
            }
            link.turn_out().map_err(link.talk())?;
            link.duplex
                .wait(&[self.input.signal.as_fd()], Some(link.due()))
                .map_err(link.talk())?;
            self.input.lower();
        }
    }

    /// The node has input up to there. `false` if that cannot be.
    fn received(&mut self, position: u64) -> bool {
        let from = *self.unsure_from.get_or_insert(position);
        let Some(known) = position.checked_sub(from) else {
            // It has less than it had.
            return false;
        };
        if known > self.unsure.len() as u64 {
            return false;
        }
        self.unsure.drain(..known as usize);
        self.unsure_from = Some(position);
        true
    }

    /// Sends input that is there and for which there is room.
    fn send(&mut self, link: &mut NodeLink, sent: &mut u64, until: u64, is_ended_sent: &mut bool) {
        let from = self.unsure_from.unwrap_or_default();
        loop {
            // What is unsure is bounded by the room at the node.
            let room = STREAM_BYTES.saturating_sub(self.unsure.len());
            let (bytes, ends) = self.input.take(room);
            self.unsure.extend(bytes);
            let end = from + self.unsure.len() as u64;
            if ends {
                self.ended_at = Some(end);
            }
            let last = end.min(until);
            let size = last.saturating_sub(*sent).min(PART as u64) as usize;
            let at = *sent;
            let ends = self.ended_at == Some(at + size as u64);
            if size == 0 && (!ends || *is_ended_sent) {
                return;
            }
            let skipped = at.saturating_sub(from) as usize;
            let bytes = self.unsure.range(skipped..skipped + size).copied().collect();
            *sent += size as u64;
            *is_ended_sent |= ends;
            link.push(&ClientRequest::Input { at, bytes, ends });
        }
    }

    fn write(&mut self, which: u8, at: u64, bytes: &[u8]) -> Result<(), NodeError> {
        let which = usize::from(which);
        let has = self.has.as_mut().and_then(|has| has.get_mut(which));
        let Some(has) = has.filter(|has| **has == at) else {
            return Err(NodeError::Malformed("output that does not follow what came before"));
        };
        let output = &mut self.outputs[which];
        let written = output.write_all(bytes).and_then(|()| output.flush());
        written.map_err(NodeError::Output)?;
        *has += bytes.len() as u64;
        Ok(())
    }
}

/// Input that was read and not yet sent.
#[derive(Debug)]
struct InputQueue {
    state: Mutex<InputQueueState>,
    /// There is room.
    taken: Condvar,
    /// There are bytes.
    signal: OwnedFd,
}

#[derive(Debug, Default)]
struct InputQueueState {
    bytes: VecDeque<u8>,
    is_over: bool,
    /// Nobody takes any more.
    is_left: bool,
}

impl InputQueue {
    /// Reads on a thread of its own.
    fn of(mut input: Box<dyn Read + Send>) -> io::Result<Arc<Self>> {
        let signal = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let state = Mutex::default();
        let queue = Arc::new(Self { state, taken: Condvar::new(), signal });
        let filled = Arc::downgrade(&queue);
        thread::Builder::new().name("pagefork-input".to_owned()).spawn(move || {
            let mut bytes = vec![0; PART];
            loop {
                let count = match input.read(&mut bytes) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    // For a program, input that cannot be read has ended.
                    Err(_) => 0,
                    Ok(count) => count,
                };
                let Some(queue) = filled.upgrade() else { return };
                if !queue.put(&bytes[..count]) {
                    return;
                }
            }
        })?;
        Ok(queue)
    }

    fn lock(&self) -> MutexGuard<'_, InputQueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts bytes behind the others, or the end. Returns whether more is to come.
    fn put(&self, bytes: &[u8]) -> bool {
        let is_full = |state: &mut InputQueueState| state.bytes.len() >= PART && !state.is_left;
        let state = self.taken.wait_while(self.lock(), is_full);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        state.bytes.extend(bytes);
        state.is_over |= bytes.is_empty();
        let _ = rustix::io::write(&self.signal, &1_u64.to_ne_bytes());
        !state.is_over && !state.is_left
    }

    /// At most `size_max` bytes, and whether nothing follows.
    fn take(&self, size_max: usize) -> (Vec<u8>, bool) {
        let mut state = self.lock();
        let count = size_max.min(state.bytes.len());
        let bytes = state.bytes.drain(..count).collect();
        self.taken.notify_one();
        (bytes, state.is_over && state.bytes.is_empty())
    }

    fn lower(&self) {
        let _ = rustix::io::read(&self.signal, &mut [0; 8]);
    }
}

impl Drop for AttachedStreams<'_, '_> {
    fn drop(&mut self) {
        self.input.lock().is_left = true;
        self.input.taken.notify_all();
    }
}
