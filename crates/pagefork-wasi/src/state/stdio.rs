//! Where standard input comes from and where output goes.

use std::collections::VecDeque;
use std::fmt;
use std::io::{IoSlice, IsTerminal};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::base::abi::FileType;
use crate::base::errno::Errno;
use crate::base::waiting::Blocking;
use crate::state::inherited;

/// Where a guest's standard input comes from.
#[derive(Clone, Debug, Default)]
pub enum StdinKind {
    /// Nothing: every read is at the end.
    #[default]
    Null,
    /// The standard input of this process. Reads bypass the buffer of
    /// [`std::io::stdin`].
    Inherit,
    /// These bytes, then the end.
    Bytes(Arc<[u8]>),
    /// What the embedder writes into an [`InputPipe`]; made by
    /// [`StdinKind::pipe`].
    Pipe(InputReader),
    /// What an implementation of the embedder's gives.
    Source(Arc<dyn InputSource>),
}

/// A standard input that the embedder implements.
pub trait InputSource: fmt::Debug + Send + Sync {
    /// Reads at most `into.len()` bytes without waiting: 0 at the end, `None`
    /// if there is nothing yet.
    ///
    /// # Errors
    ///
    /// What the guest's read is to fail with.
    fn read(&self, into: &mut [u8]) -> Result<Option<usize>, Errno>;

    /// Waits until a read would find something, the end or an error, for at
    /// most `timeout`; `None` if there still is nothing.
    fn wait(&self, timeout: Option<Duration>) -> Option<Readable>;
}

impl StdinKind {
    /// Standard input with these bytes.
    pub fn bytes(bytes: impl Into<Vec<u8>>) -> StdinKind {
        StdinKind::Bytes(bytes.into().into())
    }

    /// Standard input fed by the embedder, and the end to feed it by.
    pub fn pipe() -> (InputPipe, StdinKind) {
        let shared = Arc::new(InputShared::default());
        let reader = StdinKind::Pipe(InputReader(Arc::clone(&shared)));
        (InputPipe(Arc::new(CloseOnDrop(shared))), reader)
    }

    pub(crate) fn filetype(&self) -> FileType {
        match self {
            StdinKind::Inherit => host_filetype(rustix::stdio::stdin()),
            _ => FileType::Unknown,
        }
    }

    /// How many bytes a read would find at once, if that is known. `offset` is as for
    /// [`Self::read`].
    pub(crate) fn available(&self, offset: u64) -> Option<u64> {
        let available =
            |source: &dyn InputSource| Some(source.wait(Some(Duration::ZERO))?.available);
        match self {
            StdinKind::Null => Some(0),
            StdinKind::Inherit => None,
            StdinKind::Bytes(bytes) => Some(unread(bytes, offset).len() as u64),
            StdinKind::Pipe(reader) => available(reader),
            StdinKind::Source(source) => available(&**source),
        }
    }

    /// Reads at most `into.len()` bytes, 0 at the end. `offset` is how much of
    /// [`StdinKind::Bytes`] has been read, and is advanced.
    pub(crate) fn read(
        &self,
        into: &mut [u8],
        offset: &mut u64,
        blocking: Blocking<'_>,
    ) -> Result<usize, Errno> {
        match self {
            StdinKind::Null => Ok(0),
            StdinKind::Inherit => inherited::read(rustix::stdio::stdin(), into, blocking),
            StdinKind::Bytes(bytes) => {
                let rest = unread(bytes, *offset);
                let count = rest.len().min(into.len());
                into[..count].copy_from_slice(&rest[..count]);
                *offset += count as u64;
                Ok(count)
            }
            StdinKind::Pipe(reader) => read_source(reader, into, blocking),
            StdinKind::Source(source) => read_source(&**source, into, blocking),
        }
    }
}

fn read_source(
    source: &dyn InputSource,
    into: &mut [u8],
    blocking: Blocking<'_>,
) -> Result<usize, Errno> {
    loop {
        if let Some(count) = source.read(into)? {
            return Ok(count);
        }
        blocking.wait_until(|timeout| Ok(source.wait(timeout).is_some()))?;
    }
}

/// Where a guest's standard output or standard error goes.
#[derive(Clone, Debug, Default)]
pub enum OutputKind {
    /// Nowhere: every write succeeds.
    #[default]
    Null,
    /// The standard output of this process for standard output, its standard
    /// error for standard error. Writes are not buffered.
    Inherit,
    /// A buffer that the embedder reads.
    Pipe(OutputPipe),
    /// What an implementation of the embedder's takes.
    Sink(Arc<dyn OutputSink>),
}

/// A standard output or error that the embedder implements.
pub trait OutputSink: fmt::Debug + Send + Sync {
    /// Takes the slices, or the first part of them, and says how many bytes
    /// that was. May wait for room: then it is up to it to stop waiting when
    /// the guest is interrupted.
    ///
    /// # Errors
    ///
    /// What the guest's write is to fail with.
    fn write(&self, slices: &[IoSlice<'_>]) -> Result<usize, Errno>;
}

impl OutputKind {
    /// Output kept in memory, and the end to read it by.
    pub fn pipe() -> (OutputPipe, OutputKind) {
        let pipe = OutputPipe::new(usize::MAX);
        (pipe.clone(), OutputKind::Pipe(pipe))
    }

    pub(crate) fn filetype(&self, stream: OutputStream) -> FileType {
        match self {
            OutputKind::Inherit => host_filetype(stream.host()),
            _ => FileType::Unknown,
        }
    }

    /// Writes the slices, or the first part of them.
    pub(crate) fn write(
        &self,
        stream: OutputStream,
        slices: &mut [IoSlice<'_>],
        blocking: Blocking<'_>,
    ) -> Result<usize, Errno> {
        match self {
            OutputKind::Null => Ok(slices.iter().map(|slice| slice.len()).sum()),
            OutputKind::Inherit => inherited::write(stream.host(), slices, blocking),
            OutputKind::Pipe(pipe) => pipe.write(slices),
            OutputKind::Sink(sink) => sink.write(slices),
        }
    }
}

/// One of the two outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutputStream {
    Stdout,
    Stderr,
}

impl OutputStream {
    /// The descriptor of this process.
    pub(crate) fn host(self) -> BorrowedFd<'static> {
        match self {
            OutputStream::Stdout => rustix::stdio::stdout(),
            OutputStream::Stderr => rustix::stdio::stderr(),
        }
    }
}

/// The embedder's end of a guest's standard input. Dropping the last clone
/// closes it.
#[derive(Clone, Debug)]
pub struct InputPipe(Arc<CloseOnDrop>);

impl InputPipe {
    /// Appends bytes for the guest to read. Never blocks.
    pub fn write(&self, bytes: &[u8]) {
        let shared = &self.0.0;
        shared.lock().bytes.extend(bytes);
        shared.changed.notify_all();
    }

    /// Ends the input: once the guest has read what was written, its reads
    /// are at the end.
    pub fn close(&self) {
        self.0.0.close();
    }
}

#[derive(Debug)]
struct CloseOnDrop(Arc<InputShared>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}

#[derive(Debug, Default)]
struct InputShared {
    state: Mutex<InputState>,
    changed: Condvar,
}

impl InputShared {
    /// A writer that panicked cannot have left the queue half changed.
    fn lock(&self) -> MutexGuard<'_, InputState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }
}

#[derive(Debug, Default)]
struct InputState {
    bytes: VecDeque<u8>,
    closed: bool,
}

/// The guest's end of an [`InputPipe`].
#[derive(Clone, Debug)]
pub struct InputReader(Arc<InputShared>);

/// What can be read without waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Readable {
    /// Bytes that are there. A guest that asks for more gets these.
    pub available: u64,
    /// Whether nothing comes after them.
    pub hangup: bool,
}

impl InputSource for InputReader {
    fn read(&self, into: &mut [u8]) -> Result<Option<usize>, Errno> {
        let mut state = self.0.lock();
        let count = state.bytes.len().min(into.len());
        for (place, byte) in into.iter_mut().zip(state.bytes.drain(..count)) {
            *place = byte;
        }
        let nothing_yet = count == 0 && !into.is_empty() && !state.closed;
        Ok((!nothing_yet).then_some(count))
    }

    fn wait(&self, timeout: Option<Duration>) -> Option<Readable> {
        let empty = |state: &mut InputState| state.bytes.is_empty() && !state.closed;
        let state = self.0.lock();
        let state = match timeout {
            Some(timeout) => {
                let waited = self.0.changed.wait_timeout_while(state, timeout, empty);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
            None => {
                let waited = self.0.changed.wait_while(state, empty);
                waited.unwrap_or_else(PoisonError::into_inner)
            }
        };
        let ready = !state.bytes.is_empty() || state.closed;
        ready.then(|| Readable { available: state.bytes.len() as u64, hangup: state.closed })
    }
}

/// Output of a guest, kept in memory. Clones share the bytes.
///
/// The bytes have left the guest: resetting it does not take them back.
#[derive(Clone, Debug)]
pub struct OutputPipe(Arc<OutputShared>);

#[derive(Debug)]
struct OutputShared {
    bytes: Mutex<Vec<u8>>,
    size_max: usize,
}

impl OutputPipe {
    /// An empty buffer; once it holds `size_max` bytes, the guest's writes
    /// fail with [`Errno::Nospc`].
    pub fn new(size_max: usize) -> OutputPipe {
        OutputPipe(Arc::new(OutputShared { bytes: Mutex::default(), size_max }))
    }

    /// A copy of what is in the buffer.
    pub fn contents(&self) -> Vec<u8> {
        self.lock().clone()
    }

    /// Takes what is in the buffer and leaves it empty.
    pub fn take(&self) -> Vec<u8> {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, slices: &[IoSlice<'_>]) -> Result<usize, Errno> {
        let mut bytes = self.lock();
        let mut written = 0;
        for slice in slices {
            let count = slice.len().min(self.0.size_max.saturating_sub(bytes.len()));
            bytes.extend_from_slice(&slice[..count]);
            written += count;
            if count < slice.len() {
                break;
            }
        }
        if written == 0 && slices.iter().any(|slice| !slice.is_empty()) {
            return Err(Errno::Nospc);
        }
        Ok(written)
    }
}

/// What of `bytes` is left after `offset` bytes were read.
pub(crate) fn unread(bytes: &[u8], offset: u64) -> &[u8] {
    let offset = usize::try_from(offset).unwrap_or(usize::MAX);
    bytes.get(offset..).unwrap_or(&[])
}

/// Only a terminal is told apart, because guests ask for nothing else of a
/// standard stream, and what else it is is the host's affair.
fn host_filetype(host: BorrowedFd<'_>) -> FileType {
    if host.is_terminal() { FileType::CharacterDevice } else { FileType::Unknown }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::waiting::InterruptCheck;
    use pagefork::Interruption;

    fn blocking(waits: bool) -> Blocking<'static> {
        let check: &InterruptCheck = Box::leak(Box::default());
        Blocking { waits, stop: check.and(Interruption::NEVER) }
    }

    #[test]
    fn an_input_pipe_ends_when_its_last_writer_is_dropped() {
        let (writer, kind) = StdinKind::pipe();
        let StdinKind::Pipe(reader) = kind else { panic!("not a pipe: {kind:?}") };
        let mut into = [0; 4];
        assert_eq!(read_source(&reader, &mut into, blocking(false)), Err(Errno::Again));
        assert_eq!(reader.wait(Some(Duration::ZERO)), None);
        writer.write(b"abcdef");
        assert_eq!(read_source(&reader, &mut into, blocking(false)), Ok(4));
        assert_eq!(&into, b"abcd");
        drop(writer.clone());
        assert_eq!(read_source(&reader, &mut into, blocking(false)), Ok(2));
        assert_eq!(read_source(&reader, &mut into, blocking(false)), Err(Errno::Again));
        drop(writer);
        assert_eq!(read_source(&reader, &mut into, blocking(true)), Ok(0));
        assert_eq!(reader.wait(None), Some(Readable { available: 0, hangup: true }));
    }

    #[test]
    fn a_reader_waits_for_the_writer() {
        let (writer, kind) = StdinKind::pipe();
        let reading = std::thread::spawn(move || {
            let mut into = [0; 4];
            let count = kind.read(&mut into, &mut 0, blocking(true)).unwrap();
            into[..count].to_vec()
        });
        std::thread::sleep(Duration::from_millis(20));
        writer.write(b"hi");
        assert_eq!(reading.join().unwrap(), b"hi");
    }

    /// Every second look finds something.
    #[derive(Debug, Default)]
    struct Hesitant(Mutex<bool>);

    impl InputSource for Hesitant {
        fn read(&self, into: &mut [u8]) -> Result<Option<usize>, Errno> {
            into[0] = b'x';
            Ok(self.0.lock().unwrap().then_some(1))
        }

        fn wait(&self, timeout: Option<Duration>) -> Option<Readable> {
            *self.0.lock().unwrap() |= timeout != Some(Duration::ZERO);
            self.0.lock().unwrap().then_some(Readable { available: 1, hangup: false })
        }
    }

    #[test]
    fn a_source_is_waited_for() {
        let kind = StdinKind::Source(Arc::new(Hesitant::default()));
        let mut into = [0; 4];
        assert_eq!(kind.read(&mut into, &mut 0, blocking(false)), Err(Errno::Again));
        assert_eq!(kind.read(&mut into, &mut 0, blocking(true)), Ok(1));
        assert_eq!(into[0], b'x');
    }

    #[derive(Debug)]
    struct OneByte;

    impl OutputSink for OneByte {
        fn write(&self, slices: &[IoSlice<'_>]) -> Result<usize, Errno> {
            Ok(slices.iter().map(|slice| slice.len()).sum::<usize>().min(1))
        }
    }

    #[test]
    fn a_sink_says_how_much_it_takes() {
        let kind = OutputKind::Sink(Arc::new(OneByte));
        assert_eq!(
            kind.write(OutputStream::Stdout, &mut [IoSlice::new(b"abc")], blocking(true)),
            Ok(1)
        );
    }

    #[test]
    fn an_output_pipe_is_full_at_its_size() {
        let pipe = OutputPipe::new(5);
        let kind = OutputKind::Pipe(pipe.clone());
        let mut slices = [IoSlice::new(b"abc"), IoSlice::new(b"def")];
        assert_eq!(kind.write(OutputStream::Stdout, &mut slices, blocking(true)), Ok(5));
        assert_eq!(
            kind.write(OutputStream::Stdout, &mut slices, blocking(true)),
            Err(Errno::Nospc)
        );
        assert_eq!(pipe.take(), b"abcde");
        assert_eq!(pipe.contents(), b"");
        assert_eq!(kind.write(OutputStream::Stdout, &mut slices, blocking(true)), Ok(5));
    }
}
