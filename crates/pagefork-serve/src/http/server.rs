//! Servers: starting, listening and stopping.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot, watch};

use crate::handler::Handler;
use crate::http::config::ServerConfig;
use crate::http::connections::{Connection, accept, serve_connection};
use crate::http::front::{Front, Stage, reach};
use crate::observe::admin::{self, AdminPages};
use crate::threads::event_loop::EventLoop;

/// The last responses have this long to leave once requests were interrupted.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// The access log is written this often.
const FLUSH: Duration = Duration::from_millis(200);

/// While a server stops, it looks this often whether all connections have ended.
const LOOK: Duration = Duration::from_millis(5);

/// A server that cannot start.
///
/// # Examples
///
/// ```
/// use pagefork_serve::{Server, ServerConfig, StartError};
///
/// let taken = std::net::TcpListener::bind("127.0.0.1:0")?;
/// let mut config = ServerConfig::new(([127, 0, 0, 1], 0).into());
/// config.admin = Some(taken.local_addr()?);
/// let error = Server::prepare(config).err().expect("a process listens there");
/// assert!(matches!(error, StartError::Listen { address, .. } if address == taken.local_addr()?));
/// assert!(error.to_string().contains("another process listens there"));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The address cannot be listened at.
    #[error("cannot listen at {address}: {source}; {}", advice(.source))]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// The system gives no thread or no descriptor.
    #[error("cannot start a thread that serves connections: {0}")]
    Runtime(io::Error),
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "another process listens there: stop it, or choose another port (0 takes a free one)"
        }
        io::ErrorKind::AddrNotAvailable => {
            "give an address of this machine, such as 127.0.0.1 or 0.0.0.0"
        }
        io::ErrorKind::PermissionDenied => {
            "ports below 1024 are for privileged processes: choose a higher one"
        }
        _ => "choose another address",
    }
}

/// A server that runs.
///
/// # Examples
///
/// ```
/// use http::{HeaderMap, StatusCode};
/// use pagefork_serve::{
///     Failure, Handler, Request, ResponseWriter, Server, ServerConfig, Summary,
/// };
///
/// struct Empty;
///
/// impl Handler for Empty {
///     fn handle(&self, _: Request, response: &ResponseWriter) -> Result<(), Failure> {
///         response.start(StatusCode::NO_CONTENT, HeaderMap::new());
///         Ok(())
///     }
/// }
///
/// let mut config = ServerConfig::new(([127, 0, 0, 1], 0).into());
/// config.admin = Some(([127, 0, 0, 1], 0).into());
/// let server = Server::start(config, Empty)?;
/// assert_ne!(Some(server.address()), server.admin_address());
/// // On another thread, for instance when a signal comes:
/// let stop = server.stop_handle();
/// std::thread::spawn(move || stop.stop());
/// assert_eq!(server.wait(), Summary { requests: 0, left: 0 });
/// # Ok::<(), pagefork_serve::StartError>(())
/// ```
#[derive(Debug)]
pub struct Server {
    local: SocketAddr,
    admin: Option<SocketAddr>,
    front: Arc<Front>,
    /// The thread that accepts.
    main: JoinHandle<Summary>,
}

/// What a server did: [`Server`] has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Requests that were answered.
    pub requests: u64,
    /// Requests that did not end when they were interrupted.
    pub left: u64,
}

/// Stops a server, from any thread.
///
/// # Examples
///
/// ```
/// use pagefork_serve::{Server, ServerConfig};
/// # use pagefork_serve::{Failure, Handler, Request, ResponseWriter};
/// # struct Site;
/// # impl Handler for Site {
/// #     fn handle(&self, _: Request, _: &ResponseWriter) -> Result<(), Failure> {
/// #         Ok(())
/// #     }
/// # }
///
/// let config = ServerConfig::new(([127, 0, 0, 1], 0).into());
/// let server = Server::start(config, Site)?;
/// let stop = server.stop_handle();
/// // At the first signal requests under way may end, at the second they are interrupted.
/// stop.stop();
/// stop.stop_now();
/// assert_eq!(server.wait().left, 0);
/// # Ok::<(), pagefork_serve::StartError>(())
/// ```
#[derive(Clone, Debug)]
pub struct StopHandle(watch::Sender<Stage>);

impl StopHandle {
    /// Accepts no further requests, and lets those under way finish; those that take longer
    /// than the grace period are interrupted.
    ///
    /// # Examples
    ///
    /// See [`StopHandle`].
    pub fn stop(&self) {
        reach(&self.0, Stage::Stopping);
    }

    /// Interrupts requests under way.
    ///
    /// # Examples
    ///
    /// See [`StopHandle`].
    pub fn stop_now(&self) {
        reach(&self.0, Stage::StoppingNow);
    }
}

/// Reopens a server's logs, from any thread.
///
/// # Examples
///
/// ```
/// use pagefork_serve::{LogOutput, Server, ServerConfig};
///
/// # let path = std::env::temp_dir().join(format!("pagefork-{}.log", std::process::id()));
/// let mut config = ServerConfig::new(([127, 0, 0, 1], 0).into());
/// config.log(LogOutput::file(&path)?);
/// let starting = Server::prepare(config)?;
/// // Rotates the log.
/// let old = path.with_extension("log.1");
/// std::fs::rename(&path, &old)?;
/// starting.log_handle().reopen();
/// assert!(path.exists() && old.exists());
/// # std::fs::remove_file(path)?;
/// # std::fs::remove_file(old)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct LogHandle(Arc<Front>);

impl LogHandle {
    /// Opens the logs that are files again by their names: after their files were renamed, the
    /// logs go on in new ones.
    ///
    /// # Examples
    ///
    /// See [`LogHandle`].
    pub fn reopen(&self) {
        self.0.telemetry.reopen_logs();
    }
}

/// A server that answers at its admin address, and cannot answer requests yet:
/// [`Server::prepare`] has an example.
///
/// Dropped, it ends.
pub struct Starting {
    front: Arc<Front>,
    admin: Option<SocketAddr>,
    begin: oneshot::Sender<Listening>,
    main: JoinHandle<Summary>,
}

/// What is there once requests can be answered.
struct Listening {
    listener: TcpListener,
    loops: Vec<ConnectionLoop>,
}

impl fmt::Debug for Starting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Starting").field("admin", &self.admin).finish_non_exhaustive()
    }
}

impl Starting {
    /// The address of the status page and the metrics.
    ///
    /// # Examples
    ///
    /// See [`Server::prepare`].
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin
    }

    /// Stops the server.
    ///
    /// # Examples
    ///
    /// See [`Server::prepare`].
    pub fn stop_handle(&self) -> StopHandle {
        StopHandle(self.front.stage.clone())
    }

    /// Reopens the server's logs.
    ///
    /// # Examples
    ///
    /// See [`LogHandle`].
    pub fn log_handle(&self) -> LogHandle {
        LogHandle(Arc::clone(&self.front))
    }

    /// Listens, and answers requests by `handler` from then on.
    ///
    /// # Errors
    ///
    /// [`StartError`].
    ///
    /// # Examples
    ///
    /// See [`Server::prepare`].
    pub fn serve(self, handler: impl Handler) -> Result<Server, StartError> {
        let Starting { front, admin, begin, main } = self;
        let (listener, local) = listen(front.config.address)?;
        front.set_handler(Arc::new(handler));
        let mut loops = Vec::new();
        for _ in 0..front.config.connection_threads.max(1) {
            loops.push(ConnectionLoop::new(&front)?);
        }
        let event_loops = loops.iter().map(|own| Arc::clone(&own.event_loop)).collect();
        if let Err(error) = front.workers.drive_all(event_loops) {
            end(&front, loops);
            return Err(StartError::Runtime(error));
        }
        if let Err(Listening { loops, .. }) = begin.send(Listening { listener, loops }) {
            end(&front, loops);
        }
        Ok(Server { local, admin, front, main })
    }
}

fn listen(address: SocketAddr) -> Result<(TcpListener, SocketAddr), StartError> {
    let listener = TcpListener::bind(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        let local = listener.local_addr()?;
        Ok((listener, local))
    });
    listener.map_err(|source| StartError::Listen { address, source })
}

impl Server {
    /// Answers at the admin address from then on, if there is one: so that people can see the
    /// server's state while the handler is being made, which may take long.
    ///
    /// # Errors
    ///
    /// [`StartError`].
    ///
    /// # Examples
    ///
    /// ```
    /// use std::io::{Read, Write};
    ///
    /// use pagefork_serve::{Server, ServerConfig};
    /// # use pagefork_serve::{Failure, Handler, Request, ResponseWriter};
    /// # struct Site;
    /// # impl Handler for Site {
    /// #     fn handle(&self, _: Request, _: &ResponseWriter) -> Result<(), Failure> {
    /// #         Ok(())
    /// #     }
    /// # }
    ///
    /// let mut config = ServerConfig::new(([127, 0, 0, 1], 0).into());
    /// config.admin = Some(([127, 0, 0, 1], 0).into());
    /// let starting = Server::prepare(config)?;
    /// let admin = starting.admin_address().expect("it was asked for");
    /// let mut client = std::net::TcpStream::connect(admin)?;
    /// client.write_all(b"GET /readyz HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")?;
    /// let mut answer = String::new();
    /// client.read_to_string(&mut answer)?;
    /// assert!(answer.starts_with("HTTP/1.1 503 ") && answer.ends_with("starting\n"));
    ///
    /// // Then the handler is there.
    /// let stop = starting.stop_handle();
    /// let server = starting.serve(Site)?;
    /// stop.stop();
    /// assert_eq!(server.wait().requests, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn prepare(config: ServerConfig) -> Result<Starting, StartError> {
        let admin = config.admin.map(listen).transpose()?;
        let address = admin.as_ref().map(|(_, local)| *local);
        let runtime = runtime()?;
        let front = Front::new(config, runtime.handle().clone());
        let (begin, begun) = oneshot::channel::<Listening>();
        let thread = std::thread::Builder::new().name("pagefork-accept".to_owned());
        let served = Arc::clone(&front);
        let main = thread.spawn(move || {
            let front = served;
            let pages = admin.map(|(listener, _)| {
                let (telemetry, status) = (Arc::clone(&front.telemetry), Arc::clone(&front));
                let status = Box::new(move || status.status());
                let pages = AdminPages { telemetry, name: front.config.name.clone(), status };
                runtime.spawn(admin::serve(pages, listener))
            });
            let loops = runtime.block_on(async {
                let Listening { listener, loops } = begun.await.ok()?;
                serve(&front, listener, &loops).await;
                Some(loops)
            });
            pages.iter().for_each(tokio::task::JoinHandle::abort);
            runtime.shutdown_background();
            end(&front, loops.unwrap_or_default())
        });
        let main = main.map_err(StartError::Runtime)?;
        Ok(Starting { front, admin: address, begin, main })
    }

    /// Listens, and answers requests by `handler` from then on.
    ///
    /// # Errors
    ///
    /// [`StartError`].
    ///
    /// # Examples
    ///
    /// See [`Server`].
    pub fn start(config: ServerConfig, handler: impl Handler) -> Result<Server, StartError> {
        Server::prepare(config)?.serve(handler)
    }

    /// The address that the server listens at.
    ///
    /// # Examples
    ///
    /// See [`Server`].
    pub fn address(&self) -> SocketAddr {
        self.local
    }

    /// The address of the status page and the metrics.
    ///
    /// # Examples
    ///
    /// See [`Server`].
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin
    }

    /// Stops the server.
    ///
    /// # Examples
    ///
    /// See [`Server`].
    pub fn stop_handle(&self) -> StopHandle {
        StopHandle(self.front.stage.clone())
    }

    /// Reopens the server's logs.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_serve::{LogOutput, Server, ServerConfig};
    /// # use pagefork_serve::{Failure, Handler, Request, ResponseWriter};
    /// # struct Site;
    /// # impl Handler for Site {
    /// #     fn handle(&self, _: Request, _: &ResponseWriter) -> Result<(), Failure> {
    /// #         Ok(())
    /// #     }
    /// # }
    ///
    /// # let path = std::env::temp_dir().join(format!("pagefork-running-{}.log", std::process::id()));
    /// let mut config = ServerConfig::new(([127, 0, 0, 1], 0).into());
    /// config.log(LogOutput::file(&path)?);
    /// let server = Server::start(config, Site)?;
    /// // Something else has moved the log away.
    /// std::fs::remove_file(&path)?;
    /// server.log_handle().reopen();
    /// assert!(path.exists());
    /// server.stop_handle().stop();
    /// server.wait();
    /// # std::fs::remove_file(path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn log_handle(&self) -> LogHandle {
        LogHandle(Arc::clone(&self.front))
    }

    /// Waits until the server has stopped.
    ///
    /// # Examples
    ///
    /// See [`Server`].
    pub fn wait(self) -> Summary {
        match self.main.join() {
            Ok(summary) => summary,
            Err(payload) => std::panic::resume_unwind(payload),
        }
    }
}

/// Ends the threads and logs of a server, when everything else has ended.
fn end(front: &Front, loops: Vec<ConnectionLoop>) -> Summary {
    for ConnectionLoop { streams, event_loop } in loops {
        drop(streams);
        // The thread that has left it may not come back.
        let _ = front.workers.take_over(&event_loop);
        event_loop.wait(LAST_WORDS);
    }
    front.workers.close();
    front.telemetry.flush();
    let requests = front.telemetry.metrics.statuses().map(|(_, count)| count).sum();
    let (busy, queued) = front.workers.busy_and_queued();
    Summary { requests, left: (busy + queued) as u64 }
}

/// An event loop, and the channel by which it gets connections.
struct ConnectionLoop {
    streams: mpsc::UnboundedSender<Connection>,
    event_loop: Arc<EventLoop>,
}

impl ConnectionLoop {
    fn new(front: &Arc<Front>) -> Result<ConnectionLoop, StartError> {
        let (streams, mut accepted) = mpsc::unbounded_channel::<Connection>();
        let (runtime, front) = (runtime()?, Arc::clone(front));
        let handle = runtime.handle().clone();
        let event_loop = EventLoop::new(runtime);
        let closing = Arc::downgrade(&event_loop);
        handle.spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Some(connection) = accepted.recv().await {
                connections.spawn(serve_connection(Arc::clone(&front), connection));
                while connections.try_join_next().is_some() {}
            }
            if let Some(event_loop) = closing.upgrade() {
                event_loop.close();
            }
        });
        Ok(ConnectionLoop { streams, event_loop })
    }
}

fn runtime() -> Result<tokio::runtime::Runtime, StartError> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_io().enable_time().build().map_err(StartError::Runtime)
}

/// Accepts connections, and returns when the server has stopped.
async fn serve(front: &Arc<Front>, listener: TcpListener, loops: &[ConnectionLoop]) {
    let accepting = tokio::spawn({
        let front = Arc::clone(front);
        let streams: Vec<_> = loops.iter().map(|own| own.streams.clone()).collect();
        async move { accept(&front, listener, &streams).await }
    });
    let flushing = tokio::spawn({
        let front = Arc::clone(front);
        async move {
            loop {
                tokio::time::sleep(FLUSH).await;
                front.telemetry.flush();
            }
        }
    });
    front.wait_for(Stage::Stopping).await;
    accepting.abort();
    let connections = &front.telemetry.metrics.connections;
    wait(front.config.grace, || connections.get() == 0 || front.is_at(Stage::StoppingNow)).await;
    reach(&front.stage, Stage::StoppingNow);
    // Handlers whose clients are gone may still be on their way out.
    let has_ended = || connections.get() == 0 && front.workers.busy_and_queued() == (0, 0);
    wait(LAST_WORDS, has_ended).await;
    flushing.abort();
}

/// Waits until something is done, for at most this long.
async fn wait(time_max: Duration, is_done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_done() && begun.elapsed() < time_max {
        tokio::time::sleep(LOOK).await;
    }
}
