//! What a connection's service and its byte stream tell each other past the HTTP library.
//!
//! The library between them answers malformed heads itself, without an id and uncounted. The
//! stream keeps such an answer back, and the connection ends with *last words* instead: an answer
//! that has an id and is counted.

use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::StatusCode;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;

use crate::handler::lock::lock;
use crate::observe::telemetry::Telemetry;

/// A client has this long to take the last words and to close its side.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Bytes that are read from a client after its last words. A connection that is closed with unread
/// bytes is reset, and then the client may not see them.
const UNREAD_MAX: u64 = 1 << 20;

/// A place among the connections that may be open at once, and its count in the metrics. It lasts
/// as long as the connection takes a descriptor.
pub(crate) struct ConnectionPlace {
    telemetry: Arc<Telemetry>,
    _permit: OwnedSemaphorePermit,
}

impl ConnectionPlace {
    pub(crate) fn take(telemetry: &Arc<Telemetry>, permit: OwnedSemaphorePermit) -> Self {
        telemetry.metrics.connections.add(1);
        telemetry.metrics.connections_total.add(1);
        ConnectionPlace { telemetry: Arc::clone(telemetry), _permit: permit }
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        self.telemetry.metrics.connections.sub(1);
    }
}

pub(crate) struct ConnectionState {
    /// Requests that have reached the service.
    begun: AtomicU64,
    /// Those of them whose response the library does not have completely.
    open: AtomicU64,
    /// Whether the connection ends with a reset. In HTTP/1.0 the end of the connection is the end
    /// of the response, so a response that breaks off would look whole.
    resets_on_close: AtomicBool,
    /// The status of the library's own answer; 0 if there is none.
    refused: AtomicU16,
    /// Whether part of a head has come.
    is_head_begun: AtomicBool,
    /// Whether some of the last request's body may not have come. Bytes that come may be part of
    /// it, even after the response.
    is_body_open: AtomicBool,
    last_words: Mutex<Vec<u8>>,
    _place: ConnectionPlace,
}

/// A request of a connection, until its response is complete.
pub(crate) struct RequestTurn(Arc<ConnectionState>);

impl RequestTurn {
    /// To be told when the request's body has come completely.
    pub(crate) fn body(&self) -> BodyEnd {
        let number = self.0.begun.load(Ordering::Relaxed);
        BodyEnd { connection: Arc::clone(&self.0), number }
    }

    /// Ends the connection with a reset.
    pub(crate) fn reset_on_close(&self) {
        self.0.resets_on_close.store(true, Ordering::Relaxed);
    }
}

/// The end of the body of the last request of a connection of HTTP/1.
pub(crate) struct BodyEnd {
    connection: Arc<ConnectionState>,
    /// How many requests there were with this one.
    number: u64,
}

impl BodyEnd {
    /// The body has come completely.
    pub(crate) fn reached(&self) {
        if self.connection.begun.load(Ordering::Relaxed) == self.number {
            self.connection.is_body_open.store(false, Ordering::Relaxed);
        }
    }
}

impl Drop for RequestTurn {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

// A connection is served by one thread at a time, so no order between these is needed.
impl ConnectionState {
    pub(crate) fn new(place: ConnectionPlace) -> Arc<ConnectionState> {
        Arc::new(ConnectionState {
            begun: AtomicU64::new(0),
            open: AtomicU64::new(0),
            resets_on_close: AtomicBool::new(false),
            refused: AtomicU16::new(0),
            is_head_begun: AtomicBool::new(false),
            is_body_open: AtomicBool::new(false),
            last_words: Mutex::default(),
            _place: place,
        })
    }

    /// A request has reached the service, perhaps with a body.
    pub(crate) fn begin(self: &Arc<Self>, has_body: bool) -> RequestTurn {
        self.begun.fetch_add(1, Ordering::Relaxed);
        self.open.fetch_add(1, Ordering::Relaxed);
        self.is_head_begun.store(false, Ordering::Relaxed);
        self.is_body_open.store(has_body, Ordering::Relaxed);
        RequestTurn(Arc::clone(self))
    }

    /// How many requests there were, if the library has all their responses.
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

    pub(crate) fn resets_on_close(&self) -> bool {
        self.resets_on_close.load(Ordering::Relaxed)
    }

    /// Sets what the client is sent when the library is done with the connection.
    pub(crate) fn set_last_words(&self, words: Vec<u8>) {
        *lock(&self.last_words) = words;
    }

    /// Sends the last words, if there are any.
    pub(crate) fn end(self: &Arc<Self>, stream: TcpStream) {
        let mut words = lock(&self.last_words);
        let words = std::mem::take(&mut *words);
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if words.is_empty() {
            return;
        }
        let connection = Arc::clone(self);
        runtime.spawn(async move {
            let _ = tokio::time::timeout(LAST_WORDS, say(stream, &words)).await;
            drop(connection);
        });
    }
}

/// Sends bytes, then the end, and waits for the other side's.
async fn say(mut stream: TcpStream, words: &[u8]) -> std::io::Result<()> {
    stream.write_all(words).await?;
    stream.shutdown().await?;
    tokio::io::copy(&mut stream.take(UNREAD_MAX), &mut tokio::io::sink()).await.map(drop)
}
