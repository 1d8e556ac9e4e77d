//! The status page, its data, and the metrics: at an address of their own, which
//! is not for the public.

use std::convert::Infallible;
use std::fs::File;
use std::future::poll_fn;
use std::io;
use std::net::TcpListener;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;

use crate::http::front::Front;
use crate::observe::descriptors::Reserve;
use crate::observe::history;

/// Prometheus's text format.
mod prometheus;
/// What the status page polls.
mod json;

/// How long a connection may say nothing.
const IDLE_MAX: Duration = Duration::from_secs(30);

/// What is drawn: HTML, styles and script in one, which loads nothing else.
const PAGE: &str = include_str!("page.html");

/// Answers at a listener until the task is dropped.
pub(crate) async fn serve(front: Arc<Front>, name: String, listener: TcpListener) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return front.log.error(&format!("no status page: {error}")),
    };
    let name: Arc<str> = name.into();
    let reserve = Arc::new(Reserve::new());
    let _ = STATM.set(File::open("/proc/self/statm").ok());
    let sampled = Arc::clone(&front);
    tokio::spawn(async move {
        loop {
            sampled.history.add(&sampled.metrics, resident_bytes(), Instant::now());
            tokio::time::sleep(history::STEP).await;
        }
    });
    loop {
        reserve.refill();
        let Ok(stream) = accept(&listener, &reserve).await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let (front, name, reserve) = (Arc::clone(&front), Arc::clone(&name), Arc::clone(&reserve));
        tokio::spawn(async move {
            let service = service_fn(|request: Request<Incoming>| {
                let response = answer(&front, &name, &request);
                async move { Ok::<_, Infallible>(response) }
            });
            let mut builder = http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(IDLE_MAX);
            let _ = builder.serve_connection(TokioIo::new(stream), service).await;
            reserve.refill();
        });
    }
}

/// Accepts a connection, if need be in the place of a descriptor that was kept for it.
async fn accept(listener: &tokio::net::TcpListener, reserve: &Reserve) -> io::Result<TcpStream> {
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

fn answer(front: &Front, name: &str, request: &Request<Incoming>) -> Response<Whole> {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "Only GET is answered here.\n");
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    match request.uri().path() {
        "/" => {
            let mut response = whole("text/html; charset=utf-8", PAGE.into());
            let policy = "default-src 'none'; style-src 'unsafe-inline'; \
                          script-src 'unsafe-inline'; connect-src 'self'; img-src data:";
            response
                .headers_mut()
                .insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
            response
        }
        "/status.json" => whole("application/json", json::status(front, name)),
        "/metrics" => whole("text/plain; version=0.0.4; charset=utf-8", prometheus::metrics(front)),
        "/health" | "/healthz" => text(StatusCode::OK, "ok\n"),
        "/readyz" => match front.stage() {
            "serving" => text(StatusCode::OK, "ok\n"),
            stage => text(StatusCode::SERVICE_UNAVAILABLE, &format!("{stage}\n")),
        },
        _ => text(
            StatusCode::NOT_FOUND,
            "There are / (the status page), /status.json, /metrics, /healthz (whether the process \
             lives) and /readyz (whether requests are answered).\n",
        ),
    }
}

fn text(status: StatusCode, text: &str) -> Response<Whole> {
    let mut response = whole("text/plain; charset=utf-8", text.to_owned());
    *response.status_mut() = status;
    response
}

fn whole(ty: &'static str, text: String) -> Response<Whole> {
    let mut response = Response::new(Whole(text.into()));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(ty));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// A body that is there.
struct Whole(Bytes);

impl Body for Whole {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let bytes = std::mem::take(&mut self.0);
        std::task::Poll::Ready((!bytes.is_empty()).then(|| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.len() as u64)
    }
}

/// How much memory the process has; open, because there may be no descriptor to open it with.
static STATM: OnceLock<Option<File>> = OnceLock::new();

/// Bytes of memory that the process has now.
fn resident_bytes() -> u64 {
    let mut text = [0; 128];
    let read = STATM.get().and_then(|file| file.as_ref()?.read_at(&mut text, 0).ok());
    let text = str::from_utf8(&text[..read.unwrap_or_default()]).unwrap_or_default();
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or_default() * rustix::param::page_size() as u64
}
