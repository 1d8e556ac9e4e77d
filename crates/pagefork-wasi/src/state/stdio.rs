//! Where standard input comes from and where output goes.

use std::collections::VecDeque;
use std::fmt;
use std::io::{IoSlice, IsTerminal};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::base::abi::FileType;
use crate::base::errno::{Errno, Result};
use crate::base::waiting::Blocking;
use crate::state::inherited;

/// Where a guest's standard input comes from.
///
/// # Examples
///
/// ```
/// use pagefork_wasi::{StdinKind, WasiCtx};
///
/// let (input, stdin) = StdinKind::pipe();
/// let ctx = WasiCtx::builder().stdin(stdin).build()?;
/// input.write(b"first line\n");
/// # Ok::<(), pagefork_wasi::BuildError>(())
/// ```
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
    /// An implementation of the embedder, or the one made by [`StdinKind::pipe`].
    Source(Arc<dyn InputSource>),
    /// There is none yet. A guest that would wait for it is suspended before its call, which is
    /// made again when the guest is [resumed](pagefork::Store::resume): with what
    /// [`WasiCtx::set_stdin`] has set by then, or the state that the guest was restored with.
    ///
    /// A call that does not wait, because the descriptor is in non-blocking mode or something
    /// else has happened that is polled for, goes on. A guest that cannot be
    /// [suspended](pagefork::Caller::can_suspend) ends with an error that says so; a method of
    /// [`WasiCtx`] that is called by other code fails with [`Errno::Again`].
    ///
    /// [`WasiCtx`]: crate::WasiCtx
    /// [`WasiCtx::set_stdin`]: crate::WasiCtx::set_stdin
    Awaited,
}

/// A standard input that the embedder implements.
///
/// # Examples
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// use pagefork_wasi::{Errno, InputSource, Readable, StdinKind, WasiCtx};
///
/// /// Zeros without end.
/// #[derive(Debug)]
/// struct Zeros;
///
/// impl InputSource for Zeros {
///     fn read(&self, into: &mut [u8]) -> Result<Option<usize>, Errno> {
///         into.fill(0);
///         Ok(Some(into.len()))
///     }
///
///     fn wait(&self, _timeout: Option<Duration>) -> Option<Readable> {
///         Some(Readable { available: 4096, hangup: false })
///     }
/// }
///
/// let ctx = WasiCtx::builder().stdin(StdinKind::Source(Arc::new(Zeros))).build()?;
/// # Ok::<(), pagefork_wasi::BuildError>(())
/// ```
pub trait InputSource: fmt::Debug + Send + Sync {
    /// Reads at most `into.len()` bytes without waiting. Returns 0 at the end, and `None` if
    /// there are no bytes yet.
    ///
    /// # Errors
    ///
    /// The error with which the guest's read fails.
    ///
    /// # Examples
    ///
    /// See [`InputSource`].
    fn read(&self, into: &mut [u8]) -> Result<Option<usize>>;

    /// Waits until a read would return bytes, the end or an error, for at most `timeout`.
    /// Returns `None` if it still would not.
    ///
    /// # Examples
    ///
    /// See [`InputSource`].
    fn wait(&self, timeout: Option<Duration>) -> Option<Readable>;
}

impl StdinKind {
    /// Standard input with these bytes, then the end.
    ///
    /// # Examples
    ///
    /// See [`WasiCtxBuilder::stdin`](crate::WasiCtxBuilder::stdin).
    pub fn bytes(bytes: impl Into<Vec<u8>>) -> StdinKind {
        StdinKind::Bytes(bytes.into().into())
    }

    /// Standard input that the embedder writes, and the pipe into which to write it.
    ///
    /// # Examples
    ///
    /// See [`StdinKind`].
    pub fn pipe() -> (InputPipe, StdinKind) {
        let shared = Arc::new(InputShared::default());
        (InputPipe(Arc::new(CloseOnDrop(Arc::clone(&shared)))), StdinKind::Source(shared))
    }

    pub(crate) fn filetype(&self) -> FileType {
        match self {
            StdinKind::Inherit => host_filetype(rustix::stdio::stdin()),
            _ => FileType::Unknown,
        }
    }

    /// How many bytes a read would return without waiting, if that is known. `offset` is as
    /// for [`Self::read`].
    pub(crate) fn available(&self, offset: u64) -> Option<u64> {
        match self {
            StdinKind::Null | StdinKind::Awaited => Some(0),
            StdinKind::Inherit => None,
            StdinKind::Bytes(bytes) => Some(unread(bytes, offset).len() as u64),
            StdinKind::Source(source) => Some(source.wait(Some(Duration::ZERO))?.available),
        }
    }

    /// Reads at most `into.len()` bytes, 0 at the end. `offset` is how many of
    /// [`StdinKind::Bytes`] have been read, and is advanced.
    pub(crate) fn read(
        &self,
        into: &mut [u8],
        offset: &mut u64,
        blocking: Blocking<'_>,
    ) -> Result<usize> {
        match self {
            StdinKind::Null => Ok(0),
            StdinKind::Awaited if into.is_empty() => Ok(0),
            StdinKind::Awaited if !blocking.waits => Err(Errno::Again),
            StdinKind::Awaited => {
                blocking.stop.check()?;
                Err(blocking.stop.put_off())
            }
            StdinKind::Inherit => inherited::read(rustix::stdio::stdin(), into, blocking),
            StdinKind::Bytes(bytes) => {
                let rest = unread(bytes, *offset);
                let count = rest.len().min(into.len());
                into[..count].copy_from_slice(&rest[..count]);
                *offset += count as u64;
                Ok(count)
            }
            StdinKind::Source(source) => loop {
                if let Some(count) = source.read(into)? {
                    return Ok(count);
                }
                blocking.wait_until(|timeout| Ok(source.wait(timeout).is_some()))?;
            },
        }
    }
}

/// Where a guest's standard output or standard error goes.
///
/// # Examples
///
/// ```
/// use pagefork_wasi::{OutputKind, OutputPipe, WasiCtx};
///
/// let output = OutputPipe::new(1 << 20);
/// let mut builder = WasiCtx::builder();
/// builder.stdout(OutputKind::Pipe(output.clone())).stderr(OutputKind::Inherit);
/// let ctx = builder.build()?;
/// // Run a guest, then:
/// assert_eq!(output.take(), b"");
/// # Ok::<(), pagefork_wasi::BuildError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub enum OutputKind {
    /// It is discarded: every write succeeds.
    #[default]
    Null,
    /// The standard output of this process for standard output, its standard
    /// error for standard error. Writes are not buffered.
    Inherit,
    /// A buffer that the embedder reads.
    Pipe(OutputPipe),
    /// An implementation of the embedder.
    Sink(Arc<dyn OutputSink>),
}

/// A standard output or error that the embedder implements.
///
/// # Examples
///
/// ```
/// use std::io::IoSlice;
/// use std::sync::Arc;
///
/// use pagefork_wasi::{Errno, OutputKind, OutputSink, WasiCtx};
///
/// /// Prints each write with a prefix.
/// #[derive(Debug)]
/// struct Prefixed;
///
/// impl OutputSink for Prefixed {
///     fn write(&self, slices: &[IoSlice<'_>]) -> Result<usize, Errno> {
///         let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.to_vec()).collect();
///         print!("guest: {}", String::from_utf8_lossy(&bytes));
///         Ok(bytes.len())
///     }
/// }
///
/// let ctx = WasiCtx::builder().stdout(OutputKind::Sink(Arc::new(Prefixed))).build()?;
/// # Ok::<(), pagefork_wasi::BuildError>(())
/// ```
pub trait OutputSink: fmt::Debug + Send + Sync {
    /// Takes the slices, or the first part of them, and returns the number of bytes taken. It
    /// may wait for room, but then it must itself stop waiting when the guest is interrupted. One
    /// that is [waited for](Self::wait) takes what it has room for.
    ///
    /// # Errors
    ///
    /// The error with which the guest's write fails.
    ///
    /// # Examples
    ///
    /// See [`OutputSink`].
    fn write(&self, slices: &[IoSlice<'_>]) -> Result<usize>;

    /// Waits until a write would take bytes or fail, for at most `timeout`. Returns whether it
    /// would. A guest that waits for room so can be suspended meanwhile; its write is made again.
    /// If this is not implemented, there always is room.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::io::IoSlice;
    /// use std::sync::Mutex;
    /// use std::time::Duration;
    ///
    /// use pagefork_wasi::{Errno, OutputSink};
    ///
    /// /// Has room for eight bytes.
    /// #[derive(Debug, Default)]
    /// struct Few(Mutex<Vec<u8>>);
    ///
    /// impl OutputSink for Few {
    ///     fn write(&self, slices: &[IoSlice<'_>]) -> Result<usize, Errno> {
    ///         let mut held = self.0.lock().unwrap();
    ///         let room = 8 - held.len();
    ///         let taken = slices.iter().flat_map(|slice| slice.iter().copied()).take(room);
    ///         let before = held.len();
    ///         held.extend(taken.collect::<Vec<u8>>());
    ///         Ok(held.len() - before)
    ///     }
    ///
    ///     fn wait(&self, timeout: Option<Duration>) -> bool {
    ///         // Somebody empties it; a condition variable would tell when.
    ///         std::thread::sleep(timeout.unwrap_or_default());
    ///         self.0.lock().unwrap().len() < 8
    ///     }
    /// }
    ///
    /// let few = Few::default();
    /// assert!(few.wait(Some(Duration::ZERO)));
    /// assert_eq!(few.write(&[IoSlice::new(b"more than eight")]), Ok(8));
    /// assert!(!few.wait(Some(Duration::ZERO)));
    /// ```
    fn wait(&self, timeout: Option<Duration>) -> bool {
        let _ = timeout;
        true
    }
}

impl OutputKind {
    /// Output that is kept in memory, and the pipe from which to read it.
    ///
    /// # Examples
    ///
    /// See [`WasiCtxBuilder::stdout`](crate::WasiCtxBuilder::stdout).
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
    ) -> Result<usize> {
        match self {
            OutputKind::Null => Ok(slices.iter().map(|slice| slice.len()).sum()),
            OutputKind::Inherit => inherited::write(stream.host(), slices, blocking),
            OutputKind::Pipe(pipe) => pipe.write(slices),
            OutputKind::Sink(sink) => {
                blocking.wait_until(|timeout| Ok(sink.wait(timeout)))?;
                sink.write(slices)
            }
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

/// The embedder's end of a guest's standard input, made by [`StdinKind::pipe`]. When the last
/// clone is dropped, it is closed.
///
/// # Examples
///
/// ```
/// use pagefork_wasi::{GuestMemory, StdinKind, WasiCtx};
///
/// let (input, stdin) = StdinKind::pipe();
/// let mut ctx = WasiCtx::builder().stdin(stdin).build()?;
/// input.write(b"hi");
/// input.close();
///
/// // A guest reads by an iovec at 0: eight bytes at 16.
/// let mut bytes = [0; 24];
/// (bytes[0], bytes[4]) = (16, 8);
/// let mut memory = GuestMemory::new(&mut bytes[..]);
/// ctx.fd_read(&mut memory, 0, 0, 1, 8)?;
/// assert_eq!((memory.read_u32(8)?, memory.bytes(16, 2)?), (2, &b"hi"[..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct InputPipe(Arc<CloseOnDrop>);

impl InputPipe {
    /// Appends bytes for the guest to read. Never blocks.
    ///
    /// # Examples
    ///
    /// See [`InputPipe`].
    pub fn write(&self, bytes: &[u8]) {
        let shared = &self.0.0;
        shared.lock().bytes.extend(bytes);
        shared.changed.notify_all();
    }

    /// Ends the input: once the guest has read the bytes that were written, it reads the end.
    ///
    /// # Examples
    ///
    /// See [`InputPipe`].
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
    /// No code that can panic runs while the state is half changed, so a poisoned lock is
    /// harmless.
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

/// The bytes that can be read without waiting. [`InputSource`] has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Readable {
    /// Their number. A guest that asks for more gets only these.
    pub available: u64,
    /// Whether the end follows them.
    pub hangup: bool,
}

/// The guest's end of an [`InputPipe`].
impl InputSource for InputShared {
    fn read(&self, into: &mut [u8]) -> Result<Option<usize>> {
        let mut state = self.lock();
        let count = state.bytes.len().min(into.len());
        for (target, byte) in into.iter_mut().zip(state.bytes.drain(..count)) {
            *target = byte;
        }
        let nothing_yet = count == 0 && !into.is_empty() && !state.closed;
        Ok((!nothing_yet).then_some(count))
    }

    fn wait(&self, timeout: Option<Duration>) -> Option<Readable> {
        let empty = |state: &mut InputState| state.bytes.is_empty() && !state.closed;
        let state = self.lock();
        let timeout = timeout.unwrap_or(Duration::MAX);
        let waited = self.changed.wait_timeout_while(state, timeout, empty);
        let state = waited.unwrap_or_else(PoisonError::into_inner).0;
        let ready = !state.bytes.is_empty() || state.closed;
        ready.then(|| Readable { available: state.bytes.len() as u64, hangup: state.closed })
    }
}

/// Output of a guest, kept in memory. Clones share the bytes.
///
/// The bytes have left the guest: resetting it does not take them back.
///
/// # Examples
///
/// ```
/// use pagefork_wasi::{Errno, GuestMemory, OutputKind, OutputPipe, WasiCtx};
///
/// let output = OutputPipe::new(3);
/// let mut ctx = WasiCtx::builder().stdout(OutputKind::Pipe(output.clone())).build()?;
///
/// // A guest writes by an iovec at 0: two bytes at 16. The second time there is room for one.
/// let mut bytes = *b"\x10\0\0\0\x02\0\0\0........hi";
/// let mut memory = GuestMemory::new(&mut bytes[..]);
/// ctx.fd_write(&mut memory, 1, 0, 1, 8)?;
/// ctx.fd_write(&mut memory, 1, 0, 1, 8)?;
/// assert_eq!(ctx.fd_write(&mut memory, 1, 0, 1, 8), Err(Errno::Nospc));
/// assert_eq!((output.take(), output.contents()), (b"hih".to_vec(), Vec::new()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct OutputPipe(Arc<OutputShared>);

#[derive(Debug)]
struct OutputShared {
    bytes: Mutex<Vec<u8>>,
    size_max: usize,
}

impl OutputPipe {
    /// An empty buffer. Once it holds `size_max` bytes, the guest's writes fail with
    /// [`Errno::Nospc`].
    ///
    /// # Examples
    ///
    /// See [`OutputPipe`].
    pub fn new(size_max: usize) -> OutputPipe {
        OutputPipe(Arc::new(OutputShared { bytes: Mutex::default(), size_max }))
    }

    /// A copy of the bytes in the buffer.
    ///
    /// # Examples
    ///
    /// See [`OutputPipe`].
    pub fn contents(&self) -> Vec<u8> {
        self.lock().clone()
    }

    /// Takes the bytes out of the buffer, which is empty then.
    ///
    /// # Examples
    ///
    /// See [`OutputPipe`].
    pub fn take(&self) -> Vec<u8> {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, slices: &[IoSlice<'_>]) -> Result<usize> {
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

/// The rest of `bytes` after `offset` bytes were read.
pub(crate) fn unread(bytes: &[u8], offset: u64) -> &[u8] {
    let offset = usize::try_from(offset).unwrap_or(usize::MAX);
    bytes.get(offset..).unwrap_or(&[])
}

/// Tells a terminal from anything else. Guests ask for nothing more of a standard stream, and
/// other types would reveal what the host has connected.
fn host_filetype(host: BorrowedFd<'_>) -> FileType {
    if host.is_terminal() { FileType::CharacterDevice } else { FileType::Unknown }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::waiting::{EngineStops, InterruptCheck};

    fn blocking(waits: bool) -> Blocking<'static> {
        let check: &InterruptCheck = Box::leak(Box::default());
        Blocking { waits, stop: check.and(EngineStops::default()) }
    }

    #[test]
    fn an_input_pipe_ends_when_its_last_writer_is_dropped() {
        let (writer, kind) = StdinKind::pipe();
        let StdinKind::Source(reader) = &kind else { panic!("not a source: {kind:?}") };
        let mut into = [0; 4];
        assert_eq!(kind.read(&mut into, &mut 0, blocking(false)), Err(Errno::Again));
        assert_eq!(reader.wait(Some(Duration::ZERO)), None);
        writer.write(b"abcdef");
        assert_eq!(kind.read(&mut into, &mut 0, blocking(false)), Ok(4));
        assert_eq!(&into, b"abcd");
        drop(writer.clone());
        assert_eq!(kind.read(&mut into, &mut 0, blocking(false)), Ok(2));
        assert_eq!(kind.read(&mut into, &mut 0, blocking(false)), Err(Errno::Again));
        drop(writer);
        assert_eq!(kind.read(&mut into, &mut 0, blocking(true)), Ok(0));
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

    /// Has room once somebody has waited for it.
    #[derive(Debug, Default)]
    struct LateRoom(Mutex<bool>);

    impl OutputSink for LateRoom {
        fn write(&self, slices: &[IoSlice<'_>]) -> Result<usize, Errno> {
            assert!(*self.0.lock().unwrap(), "nothing is written where there is no room");
            Ok(slices.iter().map(|slice| slice.len()).sum())
        }

        fn wait(&self, timeout: Option<Duration>) -> bool {
            *self.0.lock().unwrap() |= timeout != Some(Duration::ZERO);
            *self.0.lock().unwrap()
        }
    }

    #[test]
    fn a_sink_without_room_is_waited_for() {
        let kind = OutputKind::Sink(Arc::new(LateRoom::default()));
        let mut slices = [IoSlice::new(b"abc")];
        let mut write = |waits| kind.write(OutputStream::Stdout, &mut slices, blocking(waits));
        assert_eq!(write(false), Err(Errno::Again));
        assert_eq!(write(true), Ok(3));
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
