//! Accepting connections, and serving each.

use std::convert::Infallible;
use std::future::poll_fn;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::StatusCode;
use hyper::body::{Body as _, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::handler::failure::FailureKind;
use crate::http::server::{Shared, Stage};
use crate::http::stream::TimeoutStream;
use crate::http::talk::Talk;

/// How long nothing is accepted after that has failed.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// How long it is not said again that nothing can be accepted.
const SAY_AGAIN: Duration = Duration::from_secs(60);

pub(crate) struct Connection {
    stream: TcpStream,
    remote: SocketAddr,
    /// Its place among those that there may be.
    permit: OwnedSemaphorePermit,
}

/// Accepts connections and deals them out.
pub(crate) async fn accept(
    shared: &Shared,
    listener: TcpListener,
    shares: &[mpsc::UnboundedSender<Connection>],
    free: &Arc<Semaphore>,
) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return shared.front.log.error(&format!("cannot accept: {error}")),
    };
    let mut said: Option<Instant> = None;
    for share in shares.iter().cycle() {
        let Ok(permit) = Arc::clone(free).acquire_owned().await else { return };
        let (stream, remote) = loop {
            match listener.accept().await {
                Ok(accepted) => break accepted,
                Err(error) => {
                    // Most likely there are no descriptors; some may be closed soon.
                    if said.is_none_or(|said| said.elapsed() >= SAY_AGAIN) {
                        said = Some(Instant::now());
                        let text = format!("cannot accept connections for now: {error}");
                        shared.front.log.error(&text);
                    }
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                }
            }
        };
        let Ok(stream) = stream.into_std() else { continue };
        let _ = share.send(Connection { stream, remote, permit });
    }
}

pub(crate) async fn serve_connection(shared: Arc<Shared>, connection: Connection) {
    let Connection { stream, remote, permit } = connection;
    let (front, config) = (&shared.front, &shared.config);
    let _ = stream.set_nodelay(true);
    let Ok(local) = stream.local_addr() else { return };
    let Ok(stream) = tokio::net::TcpStream::from_std(stream) else { return };
    front.metrics.connections.add(1);
    front.metrics.connections_total.add(1);

    let talk = Talk::new(permit);
    let service = service_fn(|request: http::Request<Incoming>| {
        let turn = talk.begin(!request.body().is_end_stream());
        let answer = Arc::clone(front).answer(request, remote, local, turn);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(config.client_timeout)
        .max_buf_size(config.head_max.max(8192))
        .max_headers(config.fields_max);
    // Heads beyond `head_max` are answered by the front end, with an id; those beyond twice as
    // much by the library.
    let head_max = u32::try_from(config.head_max.saturating_mul(2)).unwrap_or(u32::MAX);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(head_max)
        .keep_alive_interval(config.client_timeout)
        .keep_alive_timeout(config.client_timeout);
    let impatient = TimeoutStream::new(stream, config.client_timeout, Arc::clone(&talk));
    let mut serving = pin!(builder.serve_connection(TokioIo::new(impatient), service));
    let mut stage = shared.stage.clone();
    let mut stopping = pin!(async move {
        let _ = stage.wait_for(|stage| *stage >= Stage::Stopping).await;
    });
    let mut told = false;
    let served = poll_fn(|context| {
        if !told && stopping.as_mut().poll(context).is_ready() {
            told = true;
            serving.as_mut().graceful_shutdown();
        }
        serving.as_mut().poll(context)
    })
    .await;
    if let Some((kind, detail)) = refusal(&talk, served.err()) {
        talk.set_last_words(front.refuse(kind, &detail, remote));
    }
    front.metrics.connections.add(-1);
}

/// What was wrong with a request that never reached the front end. What is wrong with a
/// connection otherwise is its client's affair.
fn refusal(
    talk: &Talk,
    error: Option<Box<dyn std::error::Error + Send + Sync>>,
) -> Option<(FailureKind, String)> {
    let error = error.as_ref().and_then(|error| error.downcast_ref::<hyper::Error>());
    let detail = error.map_or(String::new(), |error| error.to_string());
    let too_large =
        [StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, StatusCode::URI_TOO_LONG].map(Some);
    let kind = match (talk.refused(), error) {
        (status, _) if too_large.contains(&status) => FailureKind::HeadTooLarge,
        (Some(_), _) => FailureKind::BadRequest,
        (None, Some(error)) if error.is_parse_too_large() => FailureKind::HeadTooLarge,
        (None, Some(error)) if error.is_parse() => FailureKind::BadRequest,
        (None, Some(error)) if error.is_timeout() && talk.is_head_begun() => {
            FailureKind::HeadTimeout
        }
        _ => return None,
    };
    Some((kind, detail))
}
