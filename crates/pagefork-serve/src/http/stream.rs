//! Connections whose clients do not take what they are sent, or do not say what they speak;
//! those whose responses break off, and those whose requests the HTTP library refuses.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::StatusCode;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;

use crate::http::talk::Talk;

/// What a connection of HTTP/2 begins with.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A connection on which a write that waits for too long is an error, and so is a read
/// that begins it: whoever speaks a protocol looks after reads once it is known which.
pub(crate) struct TimeoutStream {
    /// There until it is dropped.
    stream: Option<TcpStream>,
    time_max: Duration,
    waiting: Option<Pin<Box<Sleep>>>,
    /// Until it is known what the client speaks.
    greeting: Option<ProtocolSniff>,
    speaks_http2: bool,
    talk: Arc<Talk>,
    /// How many requests there were when everything had been sent that there was to send.
    /// What is written before there are more, nobody but the HTTP library has said.
    quiet: Option<u64>,
}

struct ProtocolSniff {
    /// So much of [`PREFACE`] has come, and nothing else.
    received: usize,
    /// Whether all of it has come.
    is_preface: bool,
    end: Pin<Box<Sleep>>,
}

impl ProtocolSniff {
    /// Whether it is unknown still what the client speaks.
    fn goes_on(&mut self, bytes: &[u8]) -> bool {
        let rest = &PREFACE[self.received..];
        self.received += bytes.len();
        self.is_preface = bytes.starts_with(rest);
        bytes.len() < rest.len() && rest.starts_with(bytes)
    }
}

impl TimeoutStream {
    pub(crate) fn new(stream: TcpStream, time_max: Duration, talk: Arc<Talk>) -> TimeoutStream {
        let end = Box::pin(tokio::time::sleep(time_max));
        let greeting = Some(ProtocolSniff { received: 0, is_preface: false, end });
        TimeoutStream {
            stream: Some(stream),
            time_max,
            waiting: None,
            greeting,
            speaks_http2: false,
            talk,
            quiet: Some(0),
        }
    }

    fn stream(&mut self) -> Pin<&mut TcpStream> {
        Pin::new(self.stream.as_mut().expect("it is not dropped"))
    }

    /// Whether no request is under way, and no part of a response.
    fn is_quiet(&self) -> bool {
        self.quiet.is_some() && self.quiet == self.talk.quiet()
    }

    /// Keeps the HTTP library's own answer to a malformed head back. In HTTP/2 it writes
    /// what it likes.
    fn is_refusal(&mut self, bytes: &[u8]) -> bool {
        if self.talk.refused().is_some() {
            return true;
        }
        if self.greeting.is_some() || self.speaks_http2 || !self.is_quiet() {
            return false;
        }
        let status = bytes.strip_prefix(b"HTTP/1.").and_then(|rest| rest.get(2..5));
        let status = status.and_then(|status| StatusCode::from_bytes(status).ok());
        status.inspect(|status| self.talk.refuse(*status)).is_some()
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

impl Drop for TimeoutStream {
    fn drop(&mut self) {
        let Some(stream) = self.stream.take() else { return };
        if self.talk.is_broken() {
            let _ = stream.set_zero_linger();
        }
        self.talk.end(stream);
    }
}

impl AsyncRead for TimeoutStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let polled = self.stream().poll_read(context, into);
        let received = &into.filled()[before..];
        if let Some(greeting) = &mut self.greeting {
            if polled.is_pending() {
                let ended = greeting.end.as_mut().poll(context);
                return ended.map(|()| Err(io::ErrorKind::TimedOut.into()));
            }
            if !greeting.goes_on(received) {
                self.speaks_http2 = greeting.is_preface;
                self.greeting = None;
            }
        }
        // Empty lines before a head are no part of it. In HTTP/2 what comes is frames, not heads.
        let is_of_head = received.iter().any(|byte| !b"\r\n".contains(byte));
        if is_of_head && self.greeting.is_none() && !self.speaks_http2 && self.is_quiet() {
            self.talk.note_head();
        }
        polled
    }
}

impl AsyncWrite for TimeoutStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.is_refusal(bytes) {
            return Poll::Ready(Ok(bytes.len()));
        }
        let polled = self.stream().poll_write(context, bytes);
        self.watch(context, polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.is_refusal(slices.first().map_or(&[], |slice| slice)) {
            return Poll::Ready(Ok(slices.iter().map(|slice| slice.len()).sum()));
        }
        let polled = self.stream().poll_write_vectored(context, slices);
        self.watch(context, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.as_ref().is_some_and(|stream| stream.is_write_vectored())
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The library does so when it has written all that it had.
        self.quiet = self.talk.quiet();
        self.stream().poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.talk.refused().is_some() {
            // The last words are still to be sent.
            return Poll::Ready(Ok(()));
        }
        self.stream().poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether it is unknown what a client speaks that has sent these parts.
    fn is_unknown(parts: &[&[u8]]) -> bool {
        let end = Box::pin(tokio::time::sleep(Duration::ZERO));
        let mut greeting = ProtocolSniff { received: 0, is_preface: false, end };
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
