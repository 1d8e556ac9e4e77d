//! The byte stream of a connection: with timeouts that the HTTP library does not have, and
//! without its answers to malformed heads.

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

use crate::http::connection_state::ConnectionState;

/// The first bytes of a connection of HTTP/2.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A connection on which a write that waits for too long is an error, and so is a read before
/// the protocol is known: after that, the HTTP library has timeouts for reads.
pub(crate) struct TimeoutStream {
    /// There until it is dropped.
    stream: Option<TcpStream>,
    time_max: Duration,
    /// The timeout of the write that waits.
    waiting: Option<Pin<Box<Sleep>>>,
    /// Until the protocol is known.
    sniff: Option<ProtocolSniff>,
    speaks_http2: bool,
    connection: Arc<ConnectionState>,
    /// How many requests there were at the last flush, if the library had all their responses.
    /// Bytes that are written before there are more requests are the library's own answer.
    quiet: Option<u64>,
}

/// Tells HTTP/2 from HTTP/1 by the first bytes.
struct ProtocolSniff {
    /// How many bytes of [`PREFACE`] have come, and nothing else.
    received: usize,
    /// Whether all of it has come.
    is_preface: bool,
    end: Pin<Box<Sleep>>,
}

impl ProtocolSniff {
    /// Whether the protocol is still unknown.
    fn is_undecided(&mut self, bytes: &[u8]) -> bool {
        let rest = &PREFACE[self.received..];
        self.received += bytes.len();
        self.is_preface = bytes.starts_with(rest);
        bytes.len() < rest.len() && rest.starts_with(bytes)
    }
}

impl TimeoutStream {
    pub(crate) fn new(
        stream: TcpStream,
        time_max: Duration,
        connection: Arc<ConnectionState>,
    ) -> TimeoutStream {
        let end = Box::pin(tokio::time::sleep(time_max));
        let sniff = Some(ProtocolSniff { received: 0, is_preface: false, end });
        TimeoutStream {
            stream: Some(stream),
            time_max,
            waiting: None,
            sniff,
            speaks_http2: false,
            connection,
            quiet: Some(0),
        }
    }

    fn stream(&mut self) -> Pin<&mut TcpStream> {
        Pin::new(self.stream.as_mut().expect("it is not dropped"))
    }

    /// Whether no request is under way, and no part of a response.
    fn is_quiet(&self) -> bool {
        self.quiet.is_some() && self.quiet == self.connection.quiet()
    }

    /// Whether bytes are the HTTP library's own answer to a malformed head, which is not sent.
    /// In HTTP/2 there is none.
    fn is_refusal(&mut self, bytes: &[u8]) -> bool {
        if self.connection.refused().is_some() {
            return true;
        }
        if self.sniff.is_some() || self.speaks_http2 || !self.is_quiet() {
            return false;
        }
        let status = bytes.strip_prefix(b"HTTP/1.").and_then(|rest| rest.get(2..5));
        let status = status.and_then(|status| StatusCode::from_bytes(status).ok());
        status.inspect(|status| self.connection.refuse(*status)).is_some()
    }

    /// Adds the timeout to a write.
    fn time_out<R>(
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
        if self.connection.resets_on_close() {
            let _ = stream.set_zero_linger();
        }
        self.connection.end(stream);
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
        if let Some(sniff) = &mut self.sniff {
            if polled.is_pending() {
                let ended = sniff.end.as_mut().poll(context);
                return ended.map(|()| Err(io::ErrorKind::TimedOut.into()));
            }
            if !sniff.is_undecided(received) {
                self.speaks_http2 = sniff.is_preface;
                self.sniff = None;
            }
        }
        // Empty lines before a head are no part of it. In HTTP/2 bytes are frames, not heads.
        let is_of_head = received.iter().any(|byte| !b"\r\n".contains(byte));
        if is_of_head && self.sniff.is_none() && !self.speaks_http2 && self.is_quiet() {
            self.connection.note_head();
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
        self.time_out(context, polled)
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
        self.time_out(context, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.as_ref().is_some_and(|stream| stream.is_write_vectored())
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The library flushes when it has written all that it had.
        self.quiet = self.connection.quiet();
        self.stream().poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.connection.refused().is_some() {
            // The last words are still to be sent.
            return Poll::Ready(Ok(()));
        }
        self.stream().poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the protocol is unknown of a client that has sent these parts.
    fn is_unknown(parts: &[&[u8]]) -> bool {
        let end = Box::pin(tokio::time::sleep(Duration::ZERO));
        let mut sniff = ProtocolSniff { received: 0, is_preface: false, end };
        parts.iter().all(|part| sniff.is_undecided(part))
    }

    #[test]
    fn a_sniff_ends_when_the_protocol_is_known() {
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
