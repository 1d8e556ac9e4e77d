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
use tokio::sync::{Semaphore, mpsc};

use crate::handler::failure::FailureKind;
use crate::http::answer::answer;
use crate::http::connection_state::{ConnectionPlace, ConnectionState};
use crate::http::front::{Front, Stage};
use crate::http::stream::TimeoutStream;

/// After a failure the next connection is accepted this much later.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// A failure to accept is logged this often at most.
const SAY_AGAIN: Duration = Duration::from_secs(60);

pub(crate) struct Connection {
    stream: TcpStream,
    remote: SocketAddr,
    place: ConnectionPlace,
}

/// Accepts connections and deals them out to event loops.
pub(crate) async fn accept(
    front: &Front,
    listener: TcpListener,
    event_loops: &[mpsc::UnboundedSender<Connection>],
) {
    let places = front.config.connections_max.clamp(1, Semaphore::MAX_PERMITS);
    let free = Arc::new(Semaphore::new(places));
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return front.telemetry.log.error(&format!("cannot accept: {error}")),
    };
    let mut said: Option<Instant> = None;
    for event_loop in event_loops.iter().cycle() {
        let Ok(permit) = Arc::clone(&free).acquire_owned().await else { return };
        let (stream, remote) = loop {
            match listener.accept().await {
                Ok(accepted) => break accepted,
                Err(error) => {
                    // Most likely there are no descriptors; some may be closed soon.
                    if said.is_none_or(|said| said.elapsed() >= SAY_AGAIN) {
                        said = Some(Instant::now());
                        let text = format!("cannot accept connections for now: {error}");
                        front.telemetry.log.error(&text);
                    }
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                }
            }
        };
        let Ok(stream) = stream.into_std() else { continue };
        let place = ConnectionPlace::take(&front.telemetry, permit);
        let _ = event_loop.send(Connection { stream, remote, place });
    }
}

/// Serves a connection until it ends.
pub(crate) async fn serve_connection(front: Arc<Front>, connection: Connection) {
    let Connection { stream, remote, place } = connection;
    let config = &front.config;
    let _ = stream.set_nodelay(true);
    let Ok(local) = stream.local_addr() else { return };
    let Ok(stream) = tokio::net::TcpStream::from_std(stream) else { return };
    let connection = ConnectionState::new(place);
    let service = service_fn(|request: http::Request<Incoming>| {
        let turn = connection.begin(!request.body().is_end_stream());
        let answer = answer(Arc::clone(&front), request, remote, local, turn);
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
    let impatient = TimeoutStream::new(stream, config.client_timeout, Arc::clone(&connection));
    let mut serving = pin!(builder.serve_connection(TokioIo::new(impatient), service));
    let mut stopping = pin!(front.wait_for(Stage::Stopping));
    let mut told = false;
    let served = poll_fn(|context| {
        if !told && stopping.as_mut().poll(context).is_ready() {
            told = true;
            serving.as_mut().graceful_shutdown();
        }
        serving.as_mut().poll(context)
    })
    .await;
    if let Some((kind, detail)) = refusal(&connection, served.err()) {
        connection.set_last_words(front.refuse(kind, &detail, remote));
    }
}

/// Why the HTTP library refused a request, if it did. Any other error of a connection concerns
/// its client alone.
fn refusal(
    connection: &ConnectionState,
    error: Option<Box<dyn std::error::Error + Send + Sync>>,
) -> Option<(FailureKind, String)> {
    let error = error.as_ref().and_then(|error| error.downcast_ref::<hyper::Error>());
    let detail = error.map_or(String::new(), |error| error.to_string());
    let too_large =
        [StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, StatusCode::URI_TOO_LONG].map(Some);
    let kind = match (connection.refused(), error) {
        (status, _) if too_large.contains(&status) => FailureKind::HeadTooLarge,
        (Some(_), _) => FailureKind::BadRequest,
        (None, Some(error)) if error.is_parse_too_large() => FailureKind::HeadTooLarge,
        (None, Some(error)) if error.is_parse() => FailureKind::BadRequest,
        (None, Some(error)) if error.is_timeout() && connection.is_head_begun() => {
            FailureKind::HeadTimeout
        }
        _ => return None,
    };
    Some((kind, detail))
}
