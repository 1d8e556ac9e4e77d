//! Listening, and stopping.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, mpsc, oneshot, watch};

use crate::handler::Handler;
use crate::http::config::Config;
use crate::http::connections::{Connection, accept, serve_connection};
use crate::http::front::Front;
use crate::observe::admin;
use crate::threads::event_loop::EventLoop;

/// How long the last responses have to leave once requests were ended.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// How often the access log is written.
const FLUSH: Duration = Duration::from_millis(200);

/// A server that cannot start.
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
#[derive(Debug)]
pub struct Server {
    local: SocketAddr,
    admin: Option<SocketAddr>,
    stop: StopHandle,
    logs: LogHandle,
    /// The one that accepts.
    main: JoinHandle<Summary>,
}

/// What a server did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Requests that were answered.
    pub requests: u64,
    /// Requests that did not end when they were told to.
    pub left: u64,
}

/// Stops a server, from any thread.
#[derive(Clone, Debug)]
pub struct StopHandle(watch::Sender<Stage>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    Serving,
    Stopping,
    StoppingNow,
}

impl StopHandle {
    /// Has no further requests accepted, and the ones under way finished; those
    /// that take longer than the grace period are interrupted.
    pub fn stop(&self) {
        self.reach(Stage::Stopping);
    }

    /// Interrupts what is under way.
    pub fn stop_now(&self) {
        self.reach(Stage::StoppingNow);
    }

    fn reach(&self, stage: Stage) {
        self.0.send_if_modified(|now| {
            let later = stage > *now;
            *now = stage.max(*now);
            later
        });
    }
}

/// Reopens a server's logs, from any thread.
#[derive(Clone)]
pub struct LogHandle(Arc<Front>);

impl LogHandle {
    /// Goes on with the logs that are files in those that have their names now: after their
    /// files were renamed, in new ones.
    pub fn reopen(&self) {
        self.0.reopen_logs();
    }
}

impl fmt::Debug for LogHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LogHandle")
    }
}

/// A server that answers at its admin address, and cannot answer requests yet.
///
/// Dropped, it ends.
pub struct Starting {
    shared: Arc<Shared>,
    admin: Option<SocketAddr>,
    stop: StopHandle,
    begin: oneshot::Sender<Begin>,
    main: JoinHandle<Summary>,
}

/// What is there once requests can be answered.
struct Begin {
    listener: TcpListener,
    shares: Vec<Share>,
}

impl fmt::Debug for Starting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Starting").field("admin", &self.admin).finish_non_exhaustive()
    }
}

impl Starting {
    /// The address of the status page and the metrics.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin
    }

    /// What stops the server.
    pub fn stop_handle(&self) -> StopHandle {
        self.stop.clone()
    }

    /// What reopens the server's logs.
    pub fn log_handle(&self) -> LogHandle {
        LogHandle(Arc::clone(&self.shared.front))
    }

    /// Listens, and has requests answered by `handler` from then on.
    ///
    /// # Errors
    ///
    /// [`StartError`].
    pub fn serve(self, handler: impl Handler) -> Result<Server, StartError> {
        let Starting { shared, admin, stop, begin, main } = self;
        let (listener, local) = listen(shared.config.address)?;
        shared.front.set_handler(Box::new(handler));
        let mut shares = Vec::new();
        for _ in 0..shared.config.connection_threads.max(1) {
            shares.push(Share::new(&shared)?);
        }
        let lanes = shares.iter().map(|share| Arc::clone(&share.lane)).collect();
        if let Err(error) = shared.front.workers().start(lanes) {
            shared.end(shares);
            return Err(StartError::Runtime(error));
        }
        let logs = LogHandle(Arc::clone(&shared.front));
        if let Err(Begin { shares, .. }) = begin.send(Begin { listener, shares }) {
            shared.end(shares);
        }
        Ok(Server { local, admin, stop, logs, main })
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
    /// Answers at the admin address from then on, if there is one: so that it can be seen what
    /// is going on while the handler is being made, which may take long.
    ///
    /// # Errors
    ///
    /// [`StartError`].
    pub fn prepare(mut config: Config) -> Result<Starting, StartError> {
        let admin = config.admin.map(listen).transpose()?;
        let address = admin.as_ref().map(|(_, local)| *local);
        let front = Front::new(&mut config);
        let stop = StopHandle(watch::Sender::new(Stage::Serving));
        let shared = Arc::new(Shared { front, config, stage: stop.0.subscribe() });
        let runtime = runtime()?;
        shared.front.set_runtime(runtime.handle().clone());
        let (begin, begun) = oneshot::channel::<Begin>();
        let thread = std::thread::Builder::new().name("pagefork-accept".to_owned());
        let (shared_there, stopper) = (Arc::clone(&shared), stop.clone());
        let main = thread
            .spawn(move || {
                let shared = shared_there;
                let watching = admin.map(|(listener, _)| {
                    let (front, name) = (Arc::clone(&shared.front), shared.config.name.clone());
                    runtime.spawn(admin::serve(front, name, listener))
                });
                let shares = runtime.block_on(async {
                    let Begin { listener, shares } = begun.await.ok()?;
                    serve(&shared, listener, &shares, &stopper).await;
                    Some(shares)
                });
                watching.iter().for_each(tokio::task::JoinHandle::abort);
                runtime.shutdown_background();
                shared.end(shares.unwrap_or_default())
            })
            .map_err(StartError::Runtime)?;
        Ok(Starting { shared, admin: address, stop, begin, main })
    }

    /// Listens, and answers requests from then on.
    ///
    /// # Errors
    ///
    /// [`StartError`].
    pub fn start(config: Config, handler: impl Handler) -> Result<Server, StartError> {
        Server::prepare(config)?.serve(handler)
    }

    /// The address that the server listens at.
    pub fn address(&self) -> SocketAddr {
        self.local
    }

    /// The address of the status page and the metrics.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin
    }

    /// What stops the server.
    pub fn stop_handle(&self) -> StopHandle {
        self.stop.clone()
    }

    /// What reopens the server's logs.
    pub fn log_handle(&self) -> LogHandle {
        self.logs.clone()
    }

    /// Waits until the server has stopped.
    pub fn wait(self) -> Summary {
        match self.main.join() {
            Ok(summary) => summary,
            Err(payload) => std::panic::resume_unwind(payload),
        }
    }
}

pub(crate) struct Shared {
    pub(crate) front: Arc<Front>,
    pub(crate) config: Config,
    pub(crate) stage: watch::Receiver<Stage>,
}

impl Shared {
    /// Says what there was, when everything else has ended.
    fn end(&self, shares: Vec<Share>) -> Summary {
        let front = &self.front;
        for Share { streams, lane } in shares {
            drop(streams);
            // Who has left it may not come back.
            let _ = front.workers().take_over(&lane);
            lane.wait(LAST_WORDS);
        }
        front.workers().close();
        if let Some(access) = &front.access {
            access.flush();
        }
        let requests = front.metrics.statuses().map(|(_, count)| count).sum();
        let (busy, queued) = front.workers().busy_and_queued();
        Summary { requests, left: (busy + queued) as u64 }
    }
}

/// A share of the connections, and where to send more.
struct Share {
    streams: mpsc::UnboundedSender<Connection>,
    lane: Arc<EventLoop>,
}

impl Share {
    fn new(shared: &Arc<Shared>) -> Result<Share, StartError> {
        let (streams, mut accepted) = mpsc::unbounded_channel::<Connection>();
        let (runtime, shared) = (runtime()?, Arc::clone(shared));
        let handle = runtime.handle().clone();
        let lane = EventLoop::new(runtime);
        let closing = Arc::downgrade(&lane);
        handle.spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Some(connection) = accepted.recv().await {
                connections.spawn(serve_connection(Arc::clone(&shared), connection));
                while connections.try_join_next().is_some() {}
            }
            if let Some(lane) = closing.upgrade() {
                lane.close();
            }
        });
        Ok(Share { streams, lane })
    }
}

fn runtime() -> Result<tokio::runtime::Runtime, StartError> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_io().enable_time().build().map_err(StartError::Runtime)
}

/// Accepts connections, and returns when the server has stopped.
async fn serve(shared: &Arc<Shared>, listener: TcpListener, shares: &[Share], stop: &StopHandle) {
    let places = shared.config.connections_max.clamp(1, Semaphore::MAX_PERMITS);
    let free = Arc::new(Semaphore::new(places));
    let accepting = tokio::spawn({
        let (shared, free) = (Arc::clone(shared), Arc::clone(&free));
        let streams: Vec<_> = shares.iter().map(|share| share.streams.clone()).collect();
        async move { accept(&shared, listener, &streams, &free).await }
    });
    let flushing = tokio::spawn({
        let shared = Arc::clone(shared);
        async move {
            while let Some(access) = &shared.front.access {
                tokio::time::sleep(FLUSH).await;
                access.flush();
            }
        }
    });

    let mut stage = shared.stage.clone();
    let _ = stage.wait_for(|stage| *stage >= Stage::Stopping).await;
    accepting.abort();
    shared.front.stop();
    let all = u32::try_from(places).unwrap_or(u32::MAX);
    let all_closed = |within: Duration| {
        let free = Arc::clone(&free);
        async move { tokio::time::timeout(within, free.acquire_many(all)).await.is_ok() }
    };
    let now = async { stage.wait_for(|stage| *stage >= Stage::StoppingNow).await.is_ok() };
    if !either(all_closed(shared.config.grace), now).await {
        stop.stop_now();
    }
    shared.front.stop_now();
    let deadline = Instant::now() + LAST_WORDS;
    all_closed(LAST_WORDS).await;
    // Handlers whose clients are gone may still be on their way out.
    while shared.front.workers().busy_and_queued() != (0, 0) && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    flushing.abort();
}

/// What the first of two futures says that is done.
async fn either(a: impl Future<Output = bool>, b: impl Future<Output = bool>) -> bool {
    let (mut a, mut b) = (pin!(a), pin!(b));
    poll_fn(|context| match a.as_mut().poll(context) {
        Poll::Pending => b.as_mut().poll(context).map(|_| false),
        ready => ready,
    })
    .await
}
