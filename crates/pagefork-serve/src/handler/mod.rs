//! What answers requests, and what it is given for that.

/// Requests that are not answered by their handler.
pub(crate) mod failure;
/// One request on its way, between a connection's task and a handler's thread.
pub(crate) mod exchange;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use http::{HeaderMap, HeaderValue, StatusCode};

use crate::handler::exchange::Exchange;
use crate::handler::failure::{Failure, GivenUp};
use crate::observe::log::Severity;

/// Answers requests, one a call, on a thread that it may block.
pub trait Handler: Send + Sync + 'static {
    /// Answers a request. The response ends when this returns; if it fails
    /// before any of the response was sent, the client gets one that says so.
    ///
    /// # Errors
    ///
    /// Why there is no response, or only the beginning of one.
    fn handle(&self, request: Request, response: &ResponseWriter) -> Result<(), Failure>;

    /// What the handler's instances use now, if it has a pool of them.
    fn pool(&self) -> Option<PoolGauges> {
        None
    }
}

/// What a pool of instances does and uses, for metrics and the status page.
#[derive(Clone, Copy, Debug, Default)]
pub struct PoolGauges {
    /// Instances that run.
    pub live: u64,
    /// Slots that wait for the next request.
    pub parked: u64,
    /// Bytes that parked slots keep in memory.
    pub resident_bytes: u64,
    /// Pages that instances had written when they were reset, in all; `None` if that
    /// is not counted.
    pub dirty_pages: Option<u64>,
    /// Spawns that found a parked slot.
    pub warm: u64,
    /// Spawns that had to make one.
    pub cold: u64,
    /// Parked slots that were given back to the system.
    pub trimmed: u64,
}

/// A request.
#[derive(Debug)]
pub struct Request {
    /// Method, target, version and header fields.
    pub head: Parts,
    /// Its body.
    pub body: BodyReader,
    /// Size of the body, where that is known: announced by the client, or since
    /// all of it is here.
    pub body_size: Option<u64>,
    /// What the request is called in logs and in its response.
    pub id: HeaderValue,
    /// Who sent it.
    pub remote: SocketAddr,
    /// The address that it was sent to.
    pub local: SocketAddr,
}

/// The body of a request, as its client sends it.
#[derive(Clone)]
pub struct BodyReader(pub(crate) Arc<Exchange>);

impl BodyReader {
    /// Reads without waiting: 0 at the end, `None` if there is nothing yet.
    ///
    /// # Errors
    ///
    /// If the request was given up.
    pub fn try_read(&self, into: &mut [u8]) -> Result<Option<usize>, GivenUp> {
        self.0.try_read(into).map_err(GivenUp)
    }

    /// Waits until [`BodyReader::try_read`] would find something or fail, for at
    /// most `timeout`. Gives how many bytes there are, and whether nothing comes
    /// after them; `None` if there still is nothing.
    pub fn wait(&self, timeout: Option<Duration>) -> Option<(usize, bool)> {
        self.0.wait_for_input(timeout)
    }
}

impl io::Read for BodyReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(count) = self.try_read(into).map_err(io::Error::other)? {
                return Ok(count);
            }
            self.wait(None);
        }
    }
}

impl fmt::Debug for BodyReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BodyReader")
    }
}

/// The head of a response.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
}

/// What a handler measures for the front end's metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Making a fresh instance.
    Spawn,
    /// Running it.
    Run,
}

/// Where the response goes. Clones write to the same.
#[derive(Clone)]
pub struct ResponseWriter(pub(crate) Arc<Exchange>);

impl ResponseWriter {
    /// Sets status and header fields, before any of the body is written. They
    /// are sent with the first part of the body, or a little later.
    ///
    /// A `Content-Length` is checked against what is written. Fields about the
    /// connection must not be among them.
    pub fn start(&self, status: StatusCode, headers: HeaderMap) {
        self.0.set_head(Head { status, headers });
    }

    /// Appends to the body. Waits while the client reads more slowly.
    ///
    /// # Errors
    ///
    /// If the request was given up.
    pub fn write(&self, bytes: &[u8]) -> Result<(), GivenUp> {
        self.0.write(bytes).map_err(GivenUp)
    }

    /// Has what was written sent without waiting for more.
    pub fn flush(&self) {
        self.0.flush();
    }

    /// Whether the request was given up: nobody waits for the response any more.
    pub fn is_given_up(&self) -> bool {
        self.0.cancelled().is_some()
    }

    /// Has `interrupt` called when the request is given up, and again until the
    /// handler returns or the guard is dropped: it may come before what it is to
    /// interrupt has begun.
    pub fn on_give_up(&self, interrupt: impl Fn() + Send + 'static) -> GiveUpGuard<'_> {
        self.0.set_interrupt(Some(Box::new(interrupt)));
        GiveUpGuard(self)
    }

    /// Tells the metrics how long something took.
    pub fn record(&self, phase: Phase, time: Duration) {
        let metrics = &self.0.front().metrics;
        match phase {
            Phase::Spawn => metrics.spawn.observe(time),
            Phase::Run => metrics.run.observe(time),
        }
    }

    /// Writes a record to the server's log, with the request's id before it.
    pub fn log(&self, severity: Severity, id: &HeaderValue, text: &str) {
        self.0.front().log.request(severity, id, text);
    }
}

impl fmt::Debug for ResponseWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ResponseWriter")
    }
}

/// While it lives, giving the request up calls what was given to
/// [`ResponseWriter::on_give_up`].
#[derive(Debug)]
pub struct GiveUpGuard<'a>(&'a ResponseWriter);

impl Drop for GiveUpGuard<'_> {
    fn drop(&mut self) {
        self.0.0.set_interrupt(None);
    }
}
