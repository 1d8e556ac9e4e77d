//! The status page, its data, and the metrics: at an address of their own, which
//! is not for the public.

mod prometheus;
mod json;

use std::convert::Infallible;
use std::fs::File;
use std::future::{poll_fn, ready};
use std::io;
use std::net::TcpListener;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::{Duration, Instant};

use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;

use crate::handler::PoolGauges;
use crate::observe::descriptors::DescriptorReserve;
use crate::observe::history;
use crate::observe::telemetry::Telemetry;

/// A connection without a request is closed after this time.
const IDLE_MAX: Duration = Duration::from_secs(30);

/// The status page: HTML, styles and script in one, which loads nothing else.
const PAGE: &str = include_str!("page.html");

/// The state of a server at a moment, beside its telemetry.
pub(crate) struct ServerStatus {
    /// `starting`, `serving` or `stopping`.
    pub(crate) stage: &'static str,
    /// Requests that are handled.
    pub(crate) busy: usize,
    /// Requests that wait to be handled.
    pub(crate) queued: usize,
    pub(crate) pool: Option<PoolGauges>,
}

/// What the admin address shows.
pub(crate) struct AdminPages {
    pub(crate) telemetry: Arc<Telemetry>,
    /// What the status page calls the server's program.
    pub(crate) name: String,
    pub(crate) status: Box<dyn Fn() -> ServerStatus + Send + Sync>,
}

/// Answers at a listener until the task is dropped.
pub(crate) async fn serve(pages: AdminPages, listener: TcpListener) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return pages.telemetry.log.error(&format!("no status page: {error}")),
    };
    let reserve = Arc::new(DescriptorReserve::new());
    let _ = STATM.set(File::open("/proc/self/statm").ok());
    let sampled = Arc::clone(&pages.telemetry);
    tokio::spawn(async move {
        loop {
            sampled.history.add(&sampled.metrics, resident_bytes(), Instant::now());
            tokio::time::sleep(history::STEP).await;
        }
    });
    let pages = Arc::new(pages);
    loop {
        reserve.refill();
        let Ok(stream) = accept(&listener, &reserve).await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let (pages, reserve) = (Arc::clone(&pages), Arc::clone(&reserve));
        tokio::spawn(async move {
            let service = service_fn(|request: Request<Incoming>| {
                ready(Ok::<_, Infallible>(pages.answer(&request)))
            });
            let mut builder = http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(IDLE_MAX);
            let mut connection = builder.serve_connection(TokioIo::new(stream), service);
            let _ = poll_fn(|context| connection.poll_without_shutdown(context)).await;
            if let Ok(stream) = connection.into_parts().io.into_inner().into_std() {
                reserve.take_back(stream);
            }
        });
    }
}

/// Accepts a connection, if need be in the place of a descriptor that was kept for it.
async fn accept(
    listener: &tokio::net::TcpListener,
    reserve: &DescriptorReserve,
) -> io::Result<TcpStream> {
    poll_fn(|context| {
        loop {
            match listener.poll_accept(context) {
                // At once, before others take the place.
                Poll::Ready(Err(error)) if reserve.helps(&error) => {}
                accepted => return accepted.map_ok(|(stream, _)| stream),
            }
        }
    })
    .await
}

impl AdminPages {
    fn answer(&self, request: &Request<Incoming>) -> Response<String> {
        if request.method() != Method::GET && request.method() != Method::HEAD {
            let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "Only GET is answered here.\n");
            response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
            return response;
        }
        match request.uri().path() {
            "/" => {
                let mut response = page("text/html; charset=utf-8", PAGE.to_owned());
                let policy = "default-src 'none'; style-src 'unsafe-inline'; \
                              script-src 'unsafe-inline'; connect-src 'self'; img-src data:";
                response
                    .headers_mut()
                    .insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
                response
            }
            "/status.json" => page("application/json", json::status(self)),
            "/metrics" => {
                page("text/plain; version=0.0.4; charset=utf-8", prometheus::metrics(self))
            }
            "/health" | "/healthz" => text(StatusCode::OK, "ok\n"),
            "/readyz" => match (self.status)().stage {
                "serving" => text(StatusCode::OK, "ok\n"),
                stage => text(StatusCode::SERVICE_UNAVAILABLE, &format!("{stage}\n")),
            },
            _ => text(
                StatusCode::NOT_FOUND,
                "There are / (the status page), /status.json, /metrics, /healthz (whether the \
                 process lives) and /readyz (whether requests are answered).\n",
            ),
        }
    }
}

fn text(status: StatusCode, text: &str) -> Response<String> {
    let mut response = page("text/plain; charset=utf-8", text.to_owned());
    *response.status_mut() = status;
    response
}

fn page(ty: &'static str, text: String) -> Response<String> {
    let mut response = Response::new(text);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(ty));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// How much memory the process has. It stays open: later there may be no free descriptor.
static STATM: OnceLock<Option<File>> = OnceLock::new();

/// Bytes of memory that the process has now.
fn resident_bytes() -> u64 {
    let mut text = [0; 128];
    let read = STATM.get().and_then(|file| file.as_ref()?.read_at(&mut text, 0).ok());
    let text = str::from_utf8(&text[..read.unwrap_or_default()]).unwrap_or_default();
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or_default() * rustix::param::page_size() as u64
}
