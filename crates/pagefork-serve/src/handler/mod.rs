//! Handlers: what answers requests, and what is known about a request while it is answered.

pub(crate) mod lock;
pub(crate) mod failure;
pub(crate) mod exchange;
pub(crate) mod request;
pub(crate) mod response;

use crate::handler::failure::Failure;
use crate::handler::request::Request;
use crate::handler::response::ResponseWriter;
use pagefork::{Choice, GrowthChoice};

/// Answers requests, one a call, on a thread that it may block.
///
/// # Examples
///
/// ```
/// use std::io::{Read, Write};
///
/// use http::{HeaderMap, StatusCode};
/// use pagefork_serve::{Failure, Handler, Request, ResponseWriter, Server, ServerConfig};
///
/// struct Greeter;
///
/// impl Handler for Greeter {
///     fn handle(&self, request: Request, response: &ResponseWriter) -> Result<(), Failure> {
///         response.start(StatusCode::OK, HeaderMap::new());
///         let text = format!("hello, {}", &request.head.uri.path()[1..]);
///         // A write fails when the client has gone: there is nothing left to do then.
///         let _ = response.write(text.as_bytes());
///         Ok(())
///     }
/// }
///
/// let server = Server::start(ServerConfig::new(([127, 0, 0, 1], 0).into()), Greeter)?;
/// let mut client = std::net::TcpStream::connect(server.address())?;
/// client.write_all(b"GET /world HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")?;
/// let mut answer = String::new();
/// client.read_to_string(&mut answer)?;
/// assert!(answer.ends_with("\r\n\r\nhello, world"));
/// server.stop_handle().stop();
/// assert_eq!(server.wait().requests, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Handler: Send + Sync + 'static {
    /// Answers a request. The response ends when this returns. If it fails before any of the
    /// response was sent, the client gets one that says so.
    ///
    /// # Errors
    ///
    /// Why there is no response, or only the beginning of one.
    ///
    /// # Examples
    ///
    /// See [`Handler`].
    fn handle(&self, request: Request, response: &ResponseWriter) -> Result<(), Failure>;

    /// What the handler's instances use now, if it has a pool of them.
    ///
    /// # Examples
    ///
    /// See [`PoolGauges`].
    fn pool(&self) -> Option<PoolGauges> {
        None
    }
}

/// What a pool of instances does and uses, for metrics and the status page.
///
/// # Examples
///
/// ```
/// use pagefork_serve::{Failure, Handler, PoolGauges, Request, ResponseWriter};
///
/// struct Pooled;
///
/// impl Handler for Pooled {
/// #   fn handle(&self, _: Request, _: &ResponseWriter) -> Result<(), Failure> {
/// #       Ok(())
/// #   }
///     // Besides `handle`:
///     fn pool(&self) -> Option<PoolGauges> {
///         Some(PoolGauges { live: 1, parked: 3, ..PoolGauges::default() })
///     }
/// }
///
/// assert_eq!(Pooled.pool().map(|pool| pool.live + pool.parked), Some(4));
/// ```
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
    /// How the instance of a request is reset, and why; `None` before there was one.
    pub strategy: Option<Choice>,
    /// How its memories grow, and why.
    pub growth: Option<GrowthChoice>,
}

/// What a handler measures for the server's metrics. [`ResponseWriter`] has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Making a fresh instance.
    Spawn,
    /// Running it.
    Run,
}
