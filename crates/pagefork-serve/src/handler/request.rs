//! A request as its handler gets it.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use http::request::Parts;

use crate::handler::exchange::Exchange;
use crate::handler::failure::GivenUp;

/// A request. [`Handler`](crate::Handler) and [`BodyReader`] have examples.
#[derive(Debug)]
pub struct Request {
    /// Method, target, version and header fields.
    pub head: Parts,
    /// Its body.
    pub body: BodyReader,
    /// Size of the body, where that is known: the client announced it, or all of the body
    /// is here.
    pub body_size: Option<u64>,
    /// The name of the request in logs and in its response.
    pub id: HeaderValue,
    /// The client's address.
    pub remote: SocketAddr,
    /// The address that the request was sent to.
    pub local: SocketAddr,
}

/// The body of a request, as its client sends it. Reading waits for the client.
///
/// # Examples
///
/// ```
/// use std::io::Read;
///
/// use pagefork_serve::{Failure, FailureKind, Request};
///
/// /// All of a request's body, as a handler reads it.
/// fn text(mut request: Request) -> Result<String, Failure> {
///     let mut text = String::new();
///     match request.body.read_to_string(&mut text) {
///         Ok(_) => Ok(text),
///         Err(error) => Err(Failure::new(FailureKind::BadRequest, error.to_string())),
///     }
/// }
/// ```
#[derive(Clone, Debug)]
pub struct BodyReader(pub(crate) Arc<Exchange>);

impl BodyReader {
    /// Reads without waiting: 0 at the end, `None` if there is nothing yet.
    ///
    /// # Errors
    ///
    /// If the request was given up.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use pagefork_serve::{BodyReader, GivenUp};
    ///
    /// /// What of the body has come so far, and whether more comes, as a handler asks that has
    /// /// other work to do meanwhile.
    /// fn arrived(body: &BodyReader) -> Result<(Vec<u8>, bool), GivenUp> {
    ///     let (mut all, mut part) = (Vec::new(), [0; 4096]);
    ///     while body.wait(Some(Duration::from_millis(10))).is_some() {
    ///         match body.try_read(&mut part)? {
    ///             Some(0) => return Ok((all, false)),
    ///             Some(count) => all.extend_from_slice(&part[..count]),
    ///             None => break,
    ///         }
    ///     }
    ///     Ok((all, true))
    /// }
    /// ```
    pub fn try_read(&self, into: &mut [u8]) -> Result<Option<usize>, GivenUp> {
        self.0.try_read(into).map_err(GivenUp)
    }

    /// Waits until [`BodyReader::try_read`] would find something or fail, for at
    /// most `timeout`. Gives how many bytes there are, and whether nothing comes
    /// after them; `None` if there still is nothing.
    ///
    /// # Examples
    ///
    /// See [`BodyReader::try_read`].
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
