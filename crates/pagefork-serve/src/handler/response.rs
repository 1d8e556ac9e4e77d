//! A response as its handler writes it.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderValue, StatusCode};

use crate::handler::Phase;
use crate::handler::exchange::{Exchange, ResponseHead};
use crate::handler::failure::{GivenUp, Severity};

/// Where a handler writes its response. Clones write to the same response.
///
/// # Examples
///
/// ```
/// use std::time::Instant;
///
/// use http::{HeaderMap, StatusCode};
/// use pagefork_serve::{Failure, Handler, Phase, Request, ResponseWriter, Severity};
///
/// struct Counter;
///
/// impl Handler for Counter {
///     fn handle(&self, request: Request, response: &ResponseWriter) -> Result<(), Failure> {
///         let begun = Instant::now();
///         let guard = response.on_give_up(|| { /* stop the work */ });
///         response.start(StatusCode::OK, HeaderMap::new());
///         for number in 0..3 {
///             if response.write(number.to_string().as_bytes()).is_err() {
///                 break;
///             }
///             // The client sees each number at once.
///             response.flush();
///         }
///         drop(guard);
///         response.record(Phase::Run, begun.elapsed());
///         if !response.is_given_up() {
///             response.log(Severity::Info, &request.id, "counted to 3");
///         }
///         Ok(())
///     }
/// }
/// # use std::io::{Read, Write};
/// # let config = pagefork_serve::ServerConfig::new(([127, 0, 0, 1], 0).into());
/// # let server = pagefork_serve::Server::start(config, Counter)?;
/// # let mut client = std::net::TcpStream::connect(server.address())?;
/// # client.write_all(b"GET / HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")?;
/// # let mut answer = String::new();
/// # client.read_to_string(&mut answer)?;
/// # assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.contains('2'), "{answer}");
/// # server.stop_handle().stop();
/// # server.wait();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ResponseWriter(pub(crate) Arc<Exchange>);

impl ResponseWriter {
    /// Sets status and header fields, before any of the body is written. They
    /// are sent with the first part of the body, or a little later.
    ///
    /// A `Content-Length` is checked against what is written. Fields about the
    /// connection must not be among them.
    ///
    /// # Examples
    ///
    /// See [`ResponseWriter`].
    pub fn start(&self, status: StatusCode, headers: HeaderMap) {
        self.0.set_head(ResponseHead { status, headers });
    }

    /// Appends to the body. Waits while the client reads more slowly.
    ///
    /// # Errors
    ///
    /// If the request was given up.
    ///
    /// # Examples
    ///
    /// See [`ResponseWriter`].
    pub fn write(&self, bytes: &[u8]) -> Result<(), GivenUp> {
        self.0.write(bytes).map_err(GivenUp)
    }

    /// Sends what was written without waiting for more.
    ///
    /// # Examples
    ///
    /// See [`ResponseWriter`].
    pub fn flush(&self) {
        self.0.flush();
    }

    /// Whether the request was given up: the response is not sent any more.
    ///
    /// # Examples
    ///
    /// See [`ResponseWriter`].
    pub fn is_given_up(&self) -> bool {
        self.0.cancelled().is_some()
    }

    /// Calls `interrupt` when the request is given up, and again until the handler returns or
    /// the guard is dropped: the first call may come before the work that it should interrupt
    /// has begun.
    ///
    /// # Examples
    ///
    /// See [`ResponseWriter`].
    pub fn on_give_up(&self, interrupt: impl Fn() + Send + 'static) -> GiveUpGuard<'_> {
        self.0.set_interrupt(Some(Box::new(interrupt)));
        GiveUpGuard(self)
    }

    /// Tells the metrics how long a phase took.
    ///
    /// # Examples
    ///
    /// See [`ResponseWriter`].
    pub fn record(&self, phase: Phase, time: Duration) {
        self.0.host().record(phase, time);
    }

    /// Writes a record to the server's log, with the request's id before it.
    ///
    /// # Examples
    ///
    /// See [`ResponseWriter`].
    pub fn log(&self, severity: Severity, id: &HeaderValue, text: &str) {
        self.0.host().log(severity, id, text);
    }
}

/// While it lives, giving the request up calls the closure that was given to
/// [`ResponseWriter::on_give_up`]. [`ResponseWriter`] has an example.
#[derive(Debug)]
pub struct GiveUpGuard<'a>(&'a ResponseWriter);

impl Drop for GiveUpGuard<'_> {
    fn drop(&mut self) {
        self.0.0.set_interrupt(None);
    }
}

/// The number that a field holds.
pub(crate) fn number(value: &HeaderValue) -> Option<u64> {
    // `parse` would take a sign.
    let digits = value.to_str().ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    digits?.parse().ok()
}
