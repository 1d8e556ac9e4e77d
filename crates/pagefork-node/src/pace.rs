//! Who gives a byte at a time, and is never silent, is left all the same: what comes has a least rate.

use std::io::{self, ErrorKind, Read};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pagefork_image::{
    ContentHash, ImageChain, ImageError, ImageLimits, ImageReader, ImageRepository, ReadAt,
};

/// Bytes a second that come of another node, or an object store, at the very least: slower ones are left, since others
/// wait for what they give.
pub(crate) const LEAST_RATE: u64 = 16 << 10;

/// How long so many bytes may take.
pub(crate) fn time_of(bytes: u64) -> Duration {
    Duration::from_secs(bytes / LEAST_RATE)
        + Duration::from_nanos(bytes % LEAST_RATE * 1_000_000_000 / LEAST_RATE)
}

/// How far what comes is behind the least rate. What came quickly does not make up for a standstill later: nobody is
/// ever ahead by more than the slack.
#[derive(Clone, Debug)]
pub(crate) struct Pace {
    slack: Duration,
    left: Duration,
}

impl Pace {
    /// One that may be behind by this time.
    pub(crate) fn new(slack: Duration) -> Self {
        Self { slack, left: slack }
    }

    /// So many bytes have come, and were waited for so long.
    ///
    /// # Errors
    /// That they come too slowly.
    pub(crate) fn took(&mut self, bytes: u64, waited: Duration) -> io::Result<()> {
        let (slack, left) = (self.slack, self.left.saturating_add(time_of(bytes)));
        self.left = left.checked_sub(waited).ok_or_else(|| {
            let behind = slack.as_secs_f64();
            let why = format!(
                "it gives fewer than {LEAST_RATE} bytes a second, and is behind by more than {behind} s"
            );
            io::Error::new(ErrorKind::TimedOut, why)
        })?;
        self.left = self.left.min(slack);
        Ok(())
    }
}

/// What tells the time: since some moment.
pub(crate) type PaceClock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// The clock of this process.
pub(crate) fn clock() -> PaceClock {
    let began = Instant::now();
    Arc::new(move || began.elapsed())
}

/// What comes at a pace.
pub(crate) struct PacedReader<R> {
    input: R,
    pace: Pace,
    clock: PaceClock,
}

impl<R: Read> PacedReader<R> {
    pub(crate) fn new(input: R, pace: Pace, clock: PaceClock) -> Self {
        Self { input, pace, clock }
    }
}

impl<R: Read> Read for PacedReader<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let began = (self.clock)();
        let count = self.input.read(into)?;
        // What is there counts, also if nothing follows in time.
        match count {
            0 => Ok(0),
            _ => self.pace.took(count as u64, (self.clock)() - began).map(|()| count),
        }
    }
}

/// A place of images that is read at a pace, by who copies all of an image out of it: each question may take a
/// second, or as long as its answer may.
pub(crate) struct PacedImages<'a> {
    images: &'a dyn ImageRepository,
    limits: &'a ImageLimits,
    pace: Arc<Mutex<Pace>>,
    clock: PaceClock,
}

impl<'a> PacedImages<'a> {
    pub(crate) fn new(
        images: &'a dyn ImageRepository,
        limits: &'a ImageLimits,
        pace: Pace,
        clock: PaceClock,
    ) -> Self {
        Self { images, limits, pace: Arc::new(Mutex::new(pace)), clock }
    }

    /// An image with its ancestors. It is opened there first, which has no pace.
    ///
    /// # Errors
    /// As [`ImageRepository::open_chain`].
    pub(crate) fn open_chain(&self, hash: ContentHash) -> Result<ImageChain, ImageError> {
        let chain = self.images.open_chain(hash)?;
        let readers = chain.images().iter().map(|image| {
            let bytes = self.paced(ImageBytes(Arc::clone(image)));
            let reader = ImageReader::open(bytes, self.limits)?;
            // Whoever can write there may give something else each time.
            match reader.hash() == image.hash() {
                true => Ok(Arc::new(reader)),
                false => {
                    let why = "it is another image than it was a moment before";
                    Err(ImageError::Damaged(why.to_owned()))
                }
            }
        });
        ImageChain::new(readers.collect::<Result<_, _>>()?, self.limits)
    }

    /// A code image.
    ///
    /// # Errors
    /// As [`ImageRepository::open_code`].
    pub(crate) fn open_code(&self, hash: ContentHash) -> Result<Box<dyn ReadAt>, ImageError> {
        Ok(self.paced(AnyBytes(self.images.open_code(hash)?)))
    }

    fn paced(&self, bytes: impl ReadAt + 'static) -> Box<dyn ReadAt> {
        let (pace, clock) = (Arc::clone(&self.pace), Arc::clone(&self.clock));
        Box::new(PacedBytes { bytes, pace, clock })
    }
}

/// Bytes that are read at a pace.
struct PacedBytes<R> {
    bytes: R,
    pace: Arc<Mutex<Pace>>,
    clock: PaceClock,
}

impl<R: ReadAt> ReadAt for PacedBytes<R> {
    fn size(&self) -> io::Result<u64> {
        self.bytes.size()
    }

    fn read_exact_at(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        let began = (self.clock)();
        self.bytes.read_exact_at(into, offset)?;
        let waited = (self.clock)() - began;
        let mut pace = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
        // A question takes time, however little is asked for.
        pace.took((into.len() as u64).max(LEAST_RATE), waited)
    }
}

/// The bytes of an image's file.
struct ImageBytes(Arc<ImageReader>);

impl ReadAt for ImageBytes {
    fn size(&self) -> io::Result<u64> {
        Ok(self.0.size())
    }

    fn read_exact_at(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_raw(offset, into).map_err(|error| match error {
            ImageError::Io { error, .. } => error,
            other => io::Error::other(other),
        })
    }
}

/// Bytes that are known by no type.
struct AnyBytes(Box<dyn ReadAt>);

impl ReadAt for AnyBytes {
    fn size(&self) -> io::Result<u64> {
        self.0.size()
    }

    fn read_exact_at(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_exact_at(into, offset)
    }
}

/// What a client of programs has begun to say, and has not ended.
#[derive(Debug, Default)]
pub(crate) struct ClientPace {
    /// Since when there is a part of a message.
    message: Option<Instant>,
    /// Since when something comes by many messages, a module or the last changes of a program, and how many
    /// bytes of it there are.
    parts: Option<(Instant, u64)>,
}

impl ClientPace {
    /// All of a message has come.
    pub(crate) fn message(&mut self) {
        self.message = None;
    }

    /// So many bytes of a module or of changes have come.
    pub(crate) fn part(&mut self, bytes: u64, now: Instant) {
        let (since, before) = self.parts.unwrap_or((now, 0));
        self.parts = Some((since, before.saturating_add(bytes)));
    }

    /// All of it has come.
    pub(crate) fn all_parts(&mut self) {
        self.parts = None;
    }

    /// When it has to have said more, if it has begun to say something of which not all is here: a module, changes, or a message,
    /// of which `part` is how many bytes it has.
    pub(crate) fn due(
        &mut self,
        part: Option<u64>,
        slack: Duration,
        now: Instant,
    ) -> Option<Instant> {
        let since = *self.message.get_or_insert(now);
        if part.is_none() {
            self.message = None;
        }
        let message = part.map(|bytes| since + slack + time_of(bytes));
        let parts = self.parts.map(|(since, bytes)| since + slack + time_of(bytes));
        message.into_iter().chain(parts).min()
    }
}

#[cfg(test)]
mod tests;
