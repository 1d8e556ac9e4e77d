//! Connections whose clients do not take what they are sent, or do not say what they speak;
//! and those whose responses break off.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;

/// What a connection of HTTP/2 begins with.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A connection on which a write that waits for too long is an error, and so is a read
/// that begins it: whoever speaks a protocol looks after reads once it is known which.
pub(crate) struct Impatient {
    stream: TcpStream,
    time_max: Duration,
    waiting: Option<Pin<Box<Sleep>>>,
    /// Until it is known what the client speaks.
    greeting: Option<Greeting>,
    broken: Broken,
}

/// Whether a connection is to end with a reset: where its end is that of a response too,
/// one that breaks off would look whole.
#[derive(Clone, Default)]
pub(crate) struct Broken(Arc<AtomicBool>);

impl Broken {
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

struct Greeting {
    /// So much of [`PREFACE`] has come, and nothing else.
    received: usize,
    end: Pin<Box<Sleep>>,
}

impl Greeting {
    /// Whether it is unknown still what the client speaks.
    fn goes_on(&mut self, bytes: &[u8]) -> bool {
        let rest = &PREFACE[self.received..];
        self.received += bytes.len();
        bytes.len() < rest.len() && rest.starts_with(bytes)
    }
}

impl Impatient {
    pub(crate) fn new(stream: TcpStream, time_max: Duration, broken: Broken) -> Impatient {
        let end = Box::pin(tokio::time::sleep(time_max));
        let greeting = Some(Greeting { received: 0, end });
        Impatient { stream, time_max, waiting: None, greeting, broken }
    }

    fn watch<R>(
        &mut self,
        context: &mut Context<'_>,
        polled: Poll<io::Result<R>>,
    ) -> Poll<io::Result<R>> {
        if polled.is_ready() {
            self.waiting = None;
            return polled;
        }
        let time_max = self.time_max;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(tokio::time::sleep(time_max)));
        match waiting.as_mut().poll(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
        }
    }
}

impl Drop for Impatient {
    fn drop(&mut self) {
        if self.broken.0.load(Ordering::Relaxed) {
            let _ = self.stream.set_zero_linger();
        }
    }
}

impl AsyncRead for Impatient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, into);
        let Some(greeting) = &mut self.greeting else { return polled };
        if polled.is_pending() {
            let ended = greeting.end.as_mut().poll(context);
            return ended.map(|()| Err(io::ErrorKind::TimedOut.into()));
        }
        if !greeting.goes_on(&into.filled()[before..]) {
            self.greeting = None;
        }
        polled
    }
}

impl AsyncWrite for Impatient {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch(context, polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.watch(context, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether it is unknown what a client speaks that has sent these parts.
    fn is_unknown(parts: &[&[u8]]) -> bool {
        let mut greeting =
            Greeting { received: 0, end: Box::pin(tokio::time::sleep(Duration::ZERO)) };
        parts.iter().all(|part| greeting.goes_on(part))
    }

    #[test]
    fn a_greeting_ends_when_it_is_known_what_is_spoken() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let _entered = runtime.enter();
        for count in 0..PREFACE.len() {
            let (begun, rest) = PREFACE.split_at(count);
            assert!(is_unknown(&[begun]) && is_unknown(&[begun, b""]));
            assert!(!is_unknown(&[begun, rest]) && !is_unknown(&[begun, b"x"]));
            assert!(!is_unknown(&[begun, rest, b"more"]));
        }
        assert!(!is_unknown(&[b"GET / HTTP/1.1"]));
    }
}
