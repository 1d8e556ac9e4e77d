//! Listening, and stopping.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::sync::{Semaphore, mpsc, watch};

use crate::admin;
use crate::config::Config;
use crate::front::Front;
use crate::handler::Handler;
use crate::lane::Lane;
use crate::stall::{Broken, Impatient};

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
enum Stage {
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

impl Server {
    /// Listens, and answers requests from then on.
    ///
    /// # Errors
    ///
    /// [`StartError`].
    pub fn start(mut config: Config, handler: impl Handler) -> Result<Server, StartError> {
        let listen = |address: SocketAddr| {
            let listener = TcpListener::bind(address).and_then(|listener| {
                listener.set_nonblocking(true)?;
                let local = listener.local_addr()?;
                Ok((listener, local))
            });
            listener.map_err(|source| StartError::Listen { address, source })
        };
        let (listener, local) = listen(config.address)?;
        let admin = config.admin.map(listen).transpose()?;
        let front = Front::new(&mut config, Box::new(handler));
        let stop = StopHandle(watch::Sender::new(Stage::Serving));
        let shared = Arc::new(Shared { front, config, stage: stop.0.subscribe() });

        let mut shares = Vec::new();
        for _ in 0..shared.config.connection_threads.max(1) {
            shares.push(Share::new(&shared)?);
        }
        let runtime = runtime()?;
        shared.front.set_runtime(runtime.handle().clone());
        let lanes = shares.iter().map(|share| Arc::clone(&share.lane)).collect();
        if let Err(error) = shared.front.workers().start(lanes) {
            shared.end(shares);
            return Err(StartError::Runtime(error));
        }
        let admin_address = admin.as_ref().map(|(_, local)| *local);
        let thread = std::thread::Builder::new().name("pagefork-accept".to_owned());
        let (stopper, front) = (stop.clone(), Arc::clone(&shared.front));
        let main = thread
            .spawn(move || {
                let admin = admin.map(|(listener, _)| listener);
                runtime.block_on(serve(&shared, listener, admin, &shares, &stopper));
                runtime.shutdown_background();
                shared.end(shares)
            })
            .inspect_err(|_| front.workers().close())
            .map_err(StartError::Runtime)?;
        Ok(Server { local, admin: admin_address, stop, main })
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

    /// Waits until the server has stopped.
    pub fn wait(self) -> Summary {
        match self.main.join() {
            Ok(summary) => summary,
            Err(payload) => std::panic::resume_unwind(payload),
        }
    }
}

struct Shared {
    front: Arc<Front>,
    config: Config,
    stage: watch::Receiver<Stage>,
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
    lane: Arc<Lane>,
}

impl Share {
    fn new(shared: &Arc<Shared>) -> Result<Share, StartError> {
        let (streams, mut accepted) = mpsc::unbounded_channel::<Connection>();
        let (runtime, shared) = (runtime()?, Arc::clone(shared));
        let handle = runtime.handle().clone();
        let lane = Lane::new(runtime);
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

struct Connection {
    stream: TcpStream,
    remote: SocketAddr,
    /// Its place among those that there may be.
    permit: tokio::sync::OwnedSemaphorePermit,
}

fn runtime() -> Result<tokio::runtime::Runtime, StartError> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_io().enable_time().build().map_err(StartError::Runtime)
}

/// Accepts connections, and returns when the server has stopped.
async fn serve(
    shared: &Arc<Shared>,
    listener: TcpListener,
    admin: Option<TcpListener>,
    shares: &[Share],
    stop: &StopHandle,
) {
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
    let watching = admin.map(|listener| {
        tokio::spawn(admin::serve(Arc::clone(&shared.front), shared.config.name.clone(), listener))
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
    if let Some(watching) = watching {
        watching.abort();
    }
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

/// Accepts connections and deals them out.
async fn accept(
    shared: &Shared,
    listener: TcpListener,
    shares: &[mpsc::UnboundedSender<Connection>],
    free: &Arc<Semaphore>,
) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return shared.front.log.line(&format!("cannot accept: {error}")),
    };
    for share in shares.iter().cycle() {
        let Ok(permit) = Arc::clone(free).acquire_owned().await else { return };
        let (stream, remote) = loop {
            match listener.accept().await {
                Ok(accepted) => break accepted,
                Err(error) => {
                    // Most likely there are no descriptors; some may be closed soon.
                    shared.front.log.line(&format!("cannot accept a connection: {error}"));
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        };
        let Ok(stream) = stream.into_std() else { continue };
        let _ = share.send(Connection { stream, remote, permit });
    }
}

async fn serve_connection(shared: Arc<Shared>, connection: Connection) {
    let Connection { stream, remote, permit } = connection;
    let (front, config) = (&shared.front, &shared.config);
    let _ = stream.set_nodelay(true);
    let Ok(local) = stream.local_addr() else { return };
    let Ok(stream) = tokio::net::TcpStream::from_std(stream) else { return };
    front.metrics.connections.add(1);
    front.metrics.connections_total.add(1);

    let broken = Broken::default();
    let service = service_fn(|request: http::Request<Incoming>| {
        let answer = Arc::clone(front).answer(request, remote, local, broken.clone());
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(config.client_timeout)
        .max_buf_size(config.head_max.max(8192))
        .max_headers(config.fields_max);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(u32::try_from(config.head_max).unwrap_or(u32::MAX))
        .keep_alive_interval(config.client_timeout)
        .keep_alive_timeout(config.client_timeout);
    let stream = TokioIo::new(Impatient::new(stream, config.client_timeout, broken.clone()));
    let mut serving = pin!(builder.serve_connection(stream, service));
    let mut stage = shared.stage.clone();
    let mut stopping = pin!(async move {
        let _ = stage.wait_for(|stage| *stage >= Stage::Stopping).await;
    });
    let mut told = false;
    poll_fn(|context| {
        if !told && stopping.as_mut().poll(context).is_ready() {
            told = true;
            serving.as_mut().graceful_shutdown();
        }
        // What is wrong with a connection is its client's affair.
        serving.as_mut().poll(context).map(drop)
    })
    .await;
    front.metrics.connections.add(-1);
    drop(permit);
}
