//! Handlers in Rust, and how they are served.

use std::io::Read;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use pagefork_serve::{Failure, Handler, Request, ResponseWriter, ServerConfig};

use super::{By, PATIENCE, Served};

/// With all connections on one thread, so that they get into each other's way if they can.
pub(crate) fn serve(handler: impl Handler, change: impl FnOnce(&mut ServerConfig)) -> Served {
    super::serve(handler, |config| {
        config.connection_threads = 1;
        change(config);
    })
}

pub(crate) fn hello(_: Request, response: &ResponseWriter) -> Result<(), Failure> {
    response.start(StatusCode::OK, HeaderMap::new());
    let _ = response.write(b"hello");
    Ok(())
}

/// Answers with the request's body, as it comes.
pub(crate) fn echo(mut request: Request, response: &ResponseWriter) -> Result<(), Failure> {
    response.start(StatusCode::OK, HeaderMap::new());
    let mut bytes = vec![0; 10_000];
    loop {
        match request.body.read(&mut bytes) {
            Ok(0) | Err(_) => return Ok(()),
            Ok(count) if response.write(&bytes[..count]).is_err() => return Ok(()),
            Ok(_) => {}
        }
    }
}

/// Takes all of the request's body, and answers with its size.
pub(crate) fn take(mut request: Request, response: &ResponseWriter) -> Result<(), Failure> {
    let mut bytes = Vec::new();
    if request.body.read_to_end(&mut bytes).is_ok() {
        response.start(StatusCode::OK, HeaderMap::new());
        let _ = response.write(bytes.len().to_string().as_bytes());
    }
    Ok(())
}

/// A handler that says when it has begun, and goes on when it is told to.
pub(crate) struct Gate {
    pub(crate) begun: Receiver<()>,
    pub(crate) go_on: Sender<()>,
}

pub(crate) fn gated(
    f: impl Fn(Request, &ResponseWriter) -> Result<(), Failure> + Send + Sync + 'static,
) -> (Gate, By<impl Fn(Request, &ResponseWriter) -> Result<(), Failure> + Send + Sync + 'static>) {
    let (begin, begun) = channel();
    let (go_on, told) = channel::<()>();
    let both = Mutex::new((begin, told));
    let handler = By(move |request: Request, response: &ResponseWriter| {
        if request.head.uri.path() == "/gate" {
            let both = both.lock().unwrap();
            both.0.send(()).unwrap();
            both.1.recv_timeout(PATIENCE).unwrap();
        }
        f(request, response)
    });
    (Gate { begun, go_on }, handler)
}

/// More bytes than a connection holds while its client does not read.
pub(crate) const FLOOD: usize = 64 << 20;

/// Answers with a flood, or with one byte.
pub(crate) fn flood(request: Request, response: &ResponseWriter) -> Result<(), Failure> {
    response.start(StatusCode::OK, HeaderMap::new());
    let size = if request.head.uri.path() == "/flood" { FLOOD } else { 1 };
    for part in vec![b'x'; size].chunks(FLOOD / 16) {
        // A client that has gone does not miss it.
        let _ = response.write(part);
    }
    Ok(())
}

/// One handler at a time, and no lookout that helps.
pub(crate) fn one_at_a_time(config: &mut ServerConfig) {
    config.concurrency = 1;
    config.patience = Duration::MAX / 2;
}
