//! The configuration of a server.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use crate::observe::log::{AccessFormat, LogOutput};

/// Where a server listens, and the limits of requests.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use pagefork_serve::ServerConfig;
///
/// let mut config = ServerConfig::new(([127, 0, 0, 1], 8080).into());
/// config.admin = Some(([127, 0, 0, 1], 9090).into());
/// config.timeout = Duration::from_secs(5);
/// config.body_max = 1 << 20;
/// ```
pub struct ServerConfig {
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
    /// How long the beginning of a response may wait for more of it, so that both are sent
    /// together. A handler that takes this long is slow: other requests do not wait for it.
    pub patience: Duration,
    /// Bytes that a request's body may have.
    pub body_max: u64,
    /// Bytes that the head of a request may have.
    pub head_max: usize,
    /// Header fields that a request may have.
    pub fields_max: usize,
    /// How long requests may go on once the server was told to stop.
    pub grace: Duration,
    /// Whether a request keeps the `X-Request-Id` that it brings as its id, if that has at most
    /// 128 letters, digits and `-_.:+/=@`. For servers behind a proxy that sets the field.
    pub keep_request_ids: bool,
    /// The name of the program on the status page.
    pub name: String,
    pub(super) log: Option<LogOutput>,
    pub(super) access_log: Option<(AccessFormat, LogOutput)>,
}

impl ServerConfig {
    /// The defaults: at most 64 requests at once and 1024 that wait, of 16 MiB
    /// each; 30 seconds for each of the times, 10 to stop. The log goes to
    /// standard error, and there is no access log.
    ///
    /// # Examples
    ///
    /// See [`ServerConfig`].
    pub fn new(address: SocketAddr) -> ServerConfig {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        ServerConfig {
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

    /// Sets the output of the log: failures with their causes, and standard error of programs.
    ///
    /// # Examples
    ///
    /// See [`LogOutput`].
    pub fn log(&mut self, output: impl Into<LogOutput>) -> &mut ServerConfig {
        self.log = Some(output.into());
        self
    }

    /// Sets the output of the access log. It is written a few times a second.
    ///
    /// # Examples
    ///
    /// See [`LogOutput`].
    pub fn access_log(
        &mut self,
        format: AccessFormat,
        output: impl Into<LogOutput>,
    ) -> &mut ServerConfig {
        self.access_log = Some((format, output.into()));
        self
    }
}

impl fmt::Debug for ServerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerConfig").field("address", &self.address).finish_non_exhaustive()
    }
}
