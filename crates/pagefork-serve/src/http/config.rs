//! What a server is told before it starts.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use crate::observe::log::{AccessFormat, Output};

/// Where a server listens, and what it holds requests to.
pub struct Config {
    /// The address to listen at; with port 0 the system chooses one.
    pub address: SocketAddr,
    /// The address of the status page and the metrics, if there are to be any.
    pub admin: Option<SocketAddr>,
    /// Threads that serve connections.
    pub connection_threads: usize,
    /// Connections at once; more wait to be accepted.
    pub connections_max: usize,
    /// Requests that are handled at once.
    pub concurrency: usize,
    /// Requests that wait beyond those; more are refused with 503.
    pub queue: usize,
    /// How long a handler may take, without the time that it waits for its
    /// client.
    pub timeout: Duration,
    /// How long a request may wait to be handled.
    pub queue_timeout: Duration,
    /// How long a client may pause: while it sends a head or a body, and while it
    /// receives.
    pub client_timeout: Duration,
    /// How long the beginning of a response may wait for more of it, so that both
    /// are sent together; and a request for processors that others use.
    pub patience: Duration,
    /// Bytes that a request's body may have.
    pub body_max: u64,
    /// Bytes that the head of a request may have.
    pub head_max: usize,
    /// Header fields that a request may have.
    pub fields_max: usize,
    /// How long requests may go on once the server was told to stop.
    pub grace: Duration,
    /// Whether the `X-Request-Id` that a client sends is its request's id, if it has at most
    /// 128 letters, digits and `-_.:+/=@`. For servers behind a proxy that sets the field.
    pub keep_request_ids: bool,
    /// What the status page calls that which is served.
    pub name: String,
    log: Option<Output>,
    access_log: Option<(AccessFormat, Output)>,
}

impl Config {
    /// The defaults: at most 64 requests at once and 1024 that wait, of 16 MiB
    /// each; 30 seconds for each of the times, 10 to stop. The log goes to
    /// standard error, and there is no access log.
    pub fn new(address: SocketAddr) -> Config {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Config {
            address,
            admin: None,
            connection_threads: processors,
            connections_max: 8192,
            concurrency: 64,
            queue: 1024,
            timeout: Duration::from_secs(30),
            queue_timeout: Duration::from_secs(30),
            client_timeout: Duration::from_secs(30),
            patience: Duration::from_millis(2),
            body_max: 16 << 20,
            head_max: 64 << 10,
            fields_max: 100,
            grace: Duration::from_secs(10),
            keep_request_ids: false,
            name: String::new(),
            log: None,
            access_log: None,
        }
    }

    /// Sets where the log goes: failures with their causes, and what programs
    /// write to standard error.
    pub fn log(&mut self, output: impl Into<Output>) -> &mut Config {
        self.log = Some(output.into());
        self
    }

    /// Sets where the access log goes. It is written a few times a second.
    pub fn access_log(&mut self, format: AccessFormat, output: impl Into<Output>) -> &mut Config {
        self.access_log = Some((format, output.into()));
        self
    }

    pub(crate) fn take_log(&mut self) -> Output {
        self.log.take().unwrap_or_else(|| Box::new(std::io::stderr()).into())
    }

    pub(crate) fn take_access_log(&mut self) -> Option<(AccessFormat, Output)> {
        self.access_log.take()
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config").field("address", &self.address).finish_non_exhaustive()
    }
}
