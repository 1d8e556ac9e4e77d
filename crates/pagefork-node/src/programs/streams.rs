//! The standard streams of a program at a node.
//!
//! Each byte of a stream has a position. A program's input is kept until it has read it, and its
//! output until a client has said that it has it; so a client that comes back, or follows the
//! program to another node, says where it is and gets each byte once. What is kept travels with the
//! program, as a [`StreamsRecord`].

use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pagefork_wasi::{Errno, InputSource, OutputKind, OutputSink, Readable, StdinKind};
use serde::{Deserialize, Serialize};

/// Bytes of a stream that are kept: a program whose output nobody takes waits when it has written
/// so many, and who sends input waits when so many are unread.
pub(crate) const STREAM_BYTES: usize = 64 << 10;

/// What is kept of the streams of a program that does not run.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct StreamsRecord {
    input: KeptBytes,
    /// Nothing follows these bytes.
    input_ended: bool,
    outputs: [KeptBytes; 2],
}

/// Bytes of a stream.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
struct KeptBytes {
    /// The position of the first one.
    start: u64,
    bytes: VecDeque<u8>,
}

impl KeptBytes {
    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    /// Forgets those before a position. `false` if there are no such bytes.
    fn forget_before(&mut self, position: u64) -> bool {
        let is_good = position <= self.end();
        if is_good && position > self.start {
            self.bytes.drain(..(position - self.start) as usize);
            self.start = position;
        }
        is_good
    }
}

impl StreamsRecord {
    /// Whether nobody could have recorded this.
    pub(crate) fn is_excessive(&self) -> bool {
        let of_streams = self.outputs.iter().chain([&self.input]);
        of_streams
            .into_iter()
            .any(|kept| kept.bytes.len() > STREAM_BYTES || kept.start > u64::MAX / 2)
    }
}

/// What a client has sent does not belong there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WrongPosition;

/// The standard streams of a program: those of the program itself, which waits for them, and of the
/// client, which is told when there is something new.
#[derive(Debug, Default)]
pub(crate) struct ProgramStreams {
    state: Mutex<StreamsState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct StreamsState {
    record: StreamsRecord,
    /// The program is moving: what comes and goes now would not go with it.
    is_frozen: bool,
    /// Is raised when there is something for the client.
    client: Option<Arc<OwnedFd>>,
}

impl StreamsState {
    fn tell_client(&self) {
        if let Some(signal) = &self.client {
            // A signal that is full is raised.
            let _ = rustix::io::write(&**signal, &1_u64.to_ne_bytes());
        }
    }
}

impl ProgramStreams {
    /// Goes on where they were recorded.
    pub(crate) fn of_record(record: StreamsRecord) -> Arc<Self> {
        let state = StreamsState { record, ..StreamsState::default() };
        Arc::new(Self { state: Mutex::new(state), changed: Condvar::new() })
    }

    fn lock(&self) -> MutexGuard<'_, StreamsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The program's ends.
    pub(crate) fn kinds(self: &Arc<Self>) -> (StdinKind, OutputKind, OutputKind) {
        let output =
            |which| OutputKind::Sink(Arc::new(ProgramOutput { streams: Arc::clone(self), which }));
        let input = ProgramInput { streams: Arc::clone(self) };
        (StdinKind::Source(Arc::new(input)), output(0), output(1))
    }

    /// Has this client told of news, in place of another one.
    pub(crate) fn set_client(&self, signal: Option<Arc<OwnedFd>>) {
        let mut state = self.lock();
        // The one before is to look: it is not the client any more.
        state.tell_client();
        state.client = signal;
    }

    /// Raises the client's signal: something has happened to the program.
    pub(crate) fn tell_client(&self) {
        self.lock().tell_client();
    }

    /// What is kept. From now on nothing of it changes, until the streams are
    /// [thawed](Self::thaw). The program must not run.
    pub(crate) fn freeze(&self) -> StreamsRecord {
        let mut state = self.lock();
        state.is_frozen = true;
        state.record.clone()
    }

    /// The program goes on here.
    pub(crate) fn thaw(&self) {
        let mut state = self.lock();
        state.is_frozen = false;
        state.tell_client();
    }

    /// Whether the program is moving.
    pub(crate) fn is_frozen(&self) -> bool {
        self.lock().is_frozen
    }

    /// Up to where input has come, and up to where it may.
    pub(crate) fn input_positions(&self) -> (u64, u64) {
        let input = &self.lock().record.input;
        (input.end(), input.start + STREAM_BYTES as u64)
    }

    /// Takes input from its client, of which what is here already is not taken again. Nothing is
    /// taken while the program moves: `false`.
    pub(crate) fn take_input(
        &self,
        at: u64,
        bytes: &[u8],
        ends: bool,
    ) -> Result<bool, WrongPosition> {
        let mut state = self.lock();
        if state.is_frozen {
            return Ok(false);
        }
        let StreamsRecord { input, input_ended, .. } = &mut state.record;
        let known = input.end().checked_sub(at).ok_or(WrongPosition)?;
        let new = bytes.get(usize::try_from(known).unwrap_or(usize::MAX)..).unwrap_or_default();
        let has_room = input.bytes.len() + new.len() <= STREAM_BYTES;
        // Another client may have ended it, too.
        if !has_room || (*input_ended && !new.is_empty()) {
            return Err(WrongPosition);
        }
        input.bytes.extend(new);
        *input_ended |= ends;
        drop(state);
        self.changed.notify_all();
        Ok(true)
    }

    /// From where on output is kept.
    pub(crate) fn output_starts(&self) -> [u64; 2] {
        let outputs = &self.lock().record.outputs;
        [outputs[0].start, outputs[1].start]
    }

    /// The client has all output before these positions.
    pub(crate) fn forget_output(&self, before: [u64; 2]) -> Result<(), WrongPosition> {
        let mut state = self.lock();
        let is_frozen = state.is_frozen;
        for (kept, position) in state.record.outputs.iter_mut().zip(before) {
            // What is frozen is gone with the program; the client says there where it is.
            let is_good =
                if is_frozen { position <= kept.end() } else { kept.forget_before(position) };
            if !is_good {
                return Err(WrongPosition);
            }
        }
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    /// At most `size_max` bytes of an output from a position on.
    pub(crate) fn output_from(&self, which: usize, position: u64, size_max: usize) -> Vec<u8> {
        let state = self.lock();
        let kept = &state.record.outputs[which];
        let skipped = position.saturating_sub(kept.start);
        let skipped = usize::try_from(skipped).unwrap_or(usize::MAX).min(kept.bytes.len());
        kept.bytes.range(skipped..).take(size_max).copied().collect()
    }
}

/// A program's standard input.
#[derive(Debug)]
struct ProgramInput {
    streams: Arc<ProgramStreams>,
}

impl InputSource for ProgramInput {
    fn read(&self, into: &mut [u8]) -> Result<Option<usize>, Errno> {
        let mut state = self.streams.lock();
        let StreamsRecord { input, input_ended, .. } = &mut state.record;
        let count = input.bytes.len().min(into.len());
        for (target, byte) in into.iter_mut().zip(input.bytes.drain(..count)) {
            *target = byte;
        }
        input.start += count as u64;
        let nothing_yet = count == 0 && !into.is_empty() && !*input_ended;
        if count > 0 {
            // There is room for more.
            state.tell_client();
        }
        Ok((!nothing_yet).then_some(count))
    }

    fn wait(&self, timeout: Option<Duration>) -> Option<Readable> {
        let is_empty = |state: &mut StreamsState| {
            state.record.input.bytes.is_empty() && !state.record.input_ended
        };
        let state = self.streams.lock();
        let timeout = timeout.unwrap_or(Duration::MAX);
        let waited = self.streams.changed.wait_timeout_while(state, timeout, is_empty);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        let is_ready = !is_empty(&mut state);
        let StreamsRecord { input, input_ended, .. } = &state.record;
        let available = input.bytes.len() as u64;
        is_ready.then_some(Readable { available, hangup: *input_ended })
    }
}

/// A program's standard output or standard error.
#[derive(Debug)]
struct ProgramOutput {
    streams: Arc<ProgramStreams>,
    which: usize,
}

impl OutputSink for ProgramOutput {
    fn write(&self, slices: &[IoSlice<'_>]) -> Result<usize, Errno> {
        let mut state = self.streams.lock();
        let kept = &mut state.record.outputs[self.which].bytes;
        let before = kept.len();
        for slice in slices {
            let room = STREAM_BYTES.saturating_sub(kept.len());
            kept.extend(&slice[..slice.len().min(room)]);
        }
        let taken = kept.len() - before;
        state.tell_client();
        Ok(taken)
    }

    fn wait(&self, timeout: Option<Duration>) -> bool {
        let is_full =
            |state: &mut StreamsState| state.record.outputs[self.which].bytes.len() >= STREAM_BYTES;
        let state = self.streams.lock();
        let timeout = timeout.unwrap_or(Duration::MAX);
        let waited = self.streams.changed.wait_timeout_while(state, timeout, is_full);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        !is_full(&mut state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(streams: &Arc<ProgramStreams>) -> (ProgramInput, ProgramOutput) {
        let streams = || Arc::clone(streams);
        (ProgramInput { streams: streams() }, ProgramOutput { streams: streams(), which: 0 })
    }

    fn read(input: &ProgramInput) -> Option<Vec<u8>> {
        let mut into = [0; 8];
        let count = input.read(&mut into).unwrap()?;
        Some(into[..count].to_vec())
    }

    #[test]
    fn each_byte_is_read_once_however_often_it_is_sent() {
        let streams = Arc::new(ProgramStreams::default());
        let (input, _) = ends(&streams);
        assert_eq!(read(&input), None);
        assert_eq!(streams.take_input(0, b"abc", false), Ok(true));
        assert_eq!(streams.take_input(1, b"bcde", false), Ok(true));
        assert_eq!(streams.input_positions().0, 5);
        assert_eq!(read(&input).unwrap(), b"abcde");
        assert_eq!(streams.take_input(0, b"abcde", true), Ok(true));
        assert_eq!(read(&input).unwrap(), b"", "the end");
        assert_eq!(streams.take_input(6, b"f", false), Err(WrongPosition), "a gap");
        assert_eq!(streams.take_input(5, b"f", false), Err(WrongPosition), "it has ended");
        assert_eq!(streams.take_input(5, b"", true), Ok(true));
    }

    #[test]
    fn input_and_output_are_bounded() {
        let streams = Arc::new(ProgramStreams::default());
        let (_, output) = ends(&streams);
        let much = vec![7; STREAM_BYTES];
        assert_eq!(streams.take_input(0, &much, false), Ok(true));
        assert_eq!(streams.take_input(STREAM_BYTES as u64, b"x", false), Err(WrongPosition));
        assert_eq!(output.write(&[IoSlice::new(b"ab"), IoSlice::new(&much)]), Ok(STREAM_BYTES));
        assert!(!output.wait(Some(Duration::ZERO)));
        assert_eq!(streams.output_from(0, 1, 4), [b'b', 7, 7, 7]);
        assert_eq!(streams.forget_output([3, 1]), Err(WrongPosition));
        assert_eq!(streams.forget_output([3, 0]), Ok(()));
        assert!(output.wait(Some(Duration::ZERO)));
        assert_eq!(streams.output_starts(), [3, 0]);
    }

    #[test]
    fn what_is_recorded_of_a_program_that_moves_goes_on_elsewhere() {
        let streams = Arc::new(ProgramStreams::default());
        let (input, output) = ends(&streams);
        streams.take_input(0, b"0123456789", false).unwrap();
        assert_eq!(read(&input).unwrap(), b"01234567");
        output.write(&[IoSlice::new(b"out")]).unwrap();
        streams.forget_output([1, 0]).unwrap();
        let record = streams.freeze();
        assert_eq!(streams.take_input(10, b"late", false), Ok(false), "it would be lost");
        assert_eq!(streams.forget_output([2, 0]), Ok(()));

        let bytes = postcard::to_allocvec(&record).unwrap();
        let there = ProgramStreams::of_record(postcard::from_bytes(&bytes).unwrap());
        let (input, _) = ends(&there);
        assert_eq!(there.input_positions().0, 10);
        assert_eq!(read(&input).unwrap(), b"89");
        assert_eq!(there.output_from(0, 2, 9), b"t");

        streams.thaw();
        assert_eq!(streams.take_input(10, b"late", false), Ok(true));
    }
}
