use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::StatusCode;
use tokio::io::AsyncWrite;
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;

/// How long a client has to take the last words and to close its side.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Bytes that are read of a client that was told its last words: a connection that is closed
/// with unread bytes is reset, and the client may not see them then.
const UNREAD_MAX: usize = 1 << 20;

/// What a connection's service knows and its stream wants to know, and the other way round.
/// The HTTP library between them answers malformed heads itself; what the stream can tell
/// from this is replaced by an answer that has an id and is counted.
pub(crate) struct Talk {
    /// Requests that have reached the service.
    begun: AtomicU64,
    /// Those of them whose response the library does not have completely.
    open: AtomicU64,
    /// Whether the connection is to end with a reset: where its end is that of a response too,
    /// one that breaks off would look whole.
    is_broken: AtomicBool,
    /// The status of the library's own answer; 0 if there is none.
    refused: AtomicU16,
    /// Whether a head has begun to come that is not complete.
    is_head_begun: AtomicBool,
    /// Whether the last request has a body that is not known to have come completely: what comes
    /// may be a part of it, even after the response.
    is_body_open: AtomicBool,
    last_words: Mutex<Vec<u8>>,
    /// The connection's place among those that there may be.
    _permit: OwnedSemaphorePermit,
}

/// A request of a connection, until its response is complete.
pub(crate) struct Turn(Arc<Talk>);

impl Turn {
    /// What is to know when the request's body has come completely.
    pub(crate) fn body(&self) -> BodyEnd {
        let number = self.0.begun.load(Ordering::Relaxed);
        BodyEnd { talk: Arc::clone(&self.0), number }
    }

    /// Has the connection end with a reset.
    pub(crate) fn break_off(&self) {
        self.0.is_broken.store(true, Ordering::Relaxed);
    }
}

/// The end of the body of the last request of a connection of HTTP/1.
pub(crate) struct BodyEnd {
    talk: Arc<Talk>,
    /// How many requests there were with this one.
    number: u64,
}

impl BodyEnd {
    /// The body has come completely.
    pub(crate) fn reached(&self) {
        if self.talk.begun.load(Ordering::Relaxed) == self.number {
            self.talk.is_body_open.store(false, Ordering::Relaxed);
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

// A connection is served by one thread at a time, so no order between these is needed.
impl Talk {
    pub(crate) fn new(permit: OwnedSemaphorePermit) -> Arc<Talk> {
        Arc::new(Talk {
            begun: AtomicU64::new(0),
            open: AtomicU64::new(0),
            is_broken: AtomicBool::new(false),
            refused: AtomicU16::new(0),
            is_head_begun: AtomicBool::new(false),
            is_body_open: AtomicBool::new(false),
            last_words: Mutex::default(),
            _permit: permit,
        })
    }

    /// A request has reached the service, and perhaps a body is to follow it.
    pub(crate) fn begin(self: &Arc<Self>, has_body: bool) -> Turn {
        self.begun.fetch_add(1, Ordering::Relaxed);
        self.open.fetch_add(1, Ordering::Relaxed);
        self.is_head_begun.store(false, Ordering::Relaxed);
        self.is_body_open.store(has_body, Ordering::Relaxed);
        Turn(Arc::clone(self))
    }

    /// How many requests there were, if the library has all responses to them.
    pub(crate) fn quiet(&self) -> Option<u64> {
        let open = self.open.load(Ordering::Relaxed);
        (open == 0).then(|| self.begun.load(Ordering::Relaxed))
    }

    /// Bytes have come that are no part of a request under way.
    pub(crate) fn note_head(&self) {
        if !self.is_body_open.load(Ordering::Relaxed) {
            self.is_head_begun.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn is_head_begun(&self) -> bool {
        self.is_head_begun.load(Ordering::Relaxed)
    }

    pub(crate) fn refuse(&self, status: StatusCode) {
        self.refused.store(status.as_u16(), Ordering::Relaxed);
    }

    /// The status of the library's own answer, which was not sent.
    pub(crate) fn refused(&self) -> Option<StatusCode> {
        StatusCode::from_u16(self.refused.load(Ordering::Relaxed)).ok()
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.is_broken.load(Ordering::Relaxed)
    }

    /// Sets what the client is sent when the library is done with the connection.
    pub(crate) fn set_last_words(&self, words: Vec<u8>) {
        *self.last_words.lock().unwrap_or_else(PoisonError::into_inner) = words;
    }

    /// Sends the last words, if there are any.
    pub(crate) fn end(self: &Arc<Self>, stream: TcpStream) {
        let mut words = self.last_words.lock().unwrap_or_else(PoisonError::into_inner);
        let words = std::mem::take(&mut *words);
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if words.is_empty() {
            return;
        }
        let talk = Arc::clone(self);
        runtime.spawn(async move {
            let _ = tokio::time::timeout(LAST_WORDS, say(stream, &words)).await;
            drop(talk);
        });
    }
}

/// Sends bytes, then the end, and waits for the other side's.
async fn say(mut stream: TcpStream, mut words: &[u8]) -> std::io::Result<()> {
    while !words.is_empty() {
        stream.writable().await?;
        match stream.try_write(words) {
            Ok(count) => words = &words[count..],
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    std::future::poll_fn(|context| Pin::new(&mut stream).poll_shutdown(context)).await?;
    let (mut unread, mut bytes) = (0, vec![0; 16 * 1024]);
    while unread < UNREAD_MAX {
        stream.readable().await?;
        match stream.try_read(&mut bytes) {
            Ok(0) => break,
            Ok(count) => unread += count,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
