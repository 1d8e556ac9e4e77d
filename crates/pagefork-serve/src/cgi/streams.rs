//! The standard streams of a CGI program.

use std::io::IoSlice;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pagefork_wasi::{Errno, InputSource, OutputSink, Readable};

use crate::cgi::CgiOutput;
use crate::handler::failure::Severity;
use crate::handler::lock::lock;
use crate::handler::request::{BodyReader, Request};
use crate::handler::response::ResponseWriter;

/// Longest line of standard error, in bytes; longer ones are split.
const LINE_MAX: usize = 4096;

/// Bytes of standard error that one call takes at most: between calls, a program can be stopped.
const TAKEN_MAX: usize = 1 << 20;

/// Lines of standard error that reach the log for each request.
const LINES_MAX: usize = 1000;

/// The head of a request, if the program reads that, and its body as standard input.
#[derive(Debug)]
pub(super) struct RequestStdin {
    head: Vec<u8>,
    /// Bytes of the head that were read.
    read: AtomicUsize,
    /// `None` if there is none.
    body: Option<BodyReader>,
}

impl RequestStdin {
    pub(super) fn new(head: Vec<u8>, body: Option<BodyReader>) -> Self {
        Self { head, read: AtomicUsize::new(0), body }
    }

    fn rest(&self) -> &[u8] {
        &self.head[self.read.load(Ordering::Relaxed)..]
    }
}

impl InputSource for RequestStdin {
    fn read(&self, into: &mut [u8]) -> Result<Option<usize>, Errno> {
        // A guest reads from one thread at a time.
        let rest = self.rest();
        if !rest.is_empty() {
            let count = rest.len().min(into.len());
            into[..count].copy_from_slice(&rest[..count]);
            self.read.fetch_add(count, Ordering::Relaxed);
            return Ok(Some(count));
        }
        match &self.body {
            Some(body) => body.try_read(into).map_err(|_| Errno::Io),
            None => Ok(Some(0)),
        }
    }

    fn wait(&self, timeout: Option<Duration>) -> Option<Readable> {
        let rest = self.rest();
        if !rest.is_empty() {
            return Some(Readable { available: rest.len() as u64, hangup: false });
        }
        let Some(body) = &self.body else {
            return Some(Readable { available: 0, hangup: true });
        };
        let (available, hangup) = body.wait(timeout)?;
        Some(Readable { available: available as u64, hangup })
    }
}

/// Standard output.
#[derive(Debug)]
pub(super) struct CgiStdout(pub(super) Mutex<CgiOutput>);

impl OutputSink for CgiStdout {
    fn write(&self, slices: &[IoSlice<'_>]) -> Result<usize, Errno> {
        let mut output = lock(&self.0);
        let mut written = 0;
        for slice in slices {
            output.write(slice).map_err(|_| Errno::Io)?;
            written += slice.len();
        }
        Ok(written)
    }
}

/// Standard error, as lines of the server's log.
#[derive(Debug)]
pub(super) struct StderrLines {
    id: http::HeaderValue,
    response: ResponseWriter,
    state: Mutex<StderrState>,
}

#[derive(Debug, Default)]
struct StderrState {
    line: Vec<u8>,
    count: usize,
}

impl StderrLines {
    pub(super) fn new(request: &Request, response: &ResponseWriter) -> StderrLines {
        let (id, response) = (request.id.clone(), response.clone());
        StderrLines { id, response, state: Mutex::default() }
    }

    fn write_line(&self, state: &mut StderrState) {
        state.count += 1;
        if state.count <= LINES_MAX {
            let text = String::from_utf8_lossy(&state.line);
            self.response.log(Severity::Info, &self.id, &format!("stderr: {text}"));
        } else if state.count == LINES_MAX + 1 {
            let text = "stderr: (what follows is left out)";
            self.response.log(Severity::Info, &self.id, text);
        }
        state.line.clear();
    }
}

impl OutputSink for StderrLines {
    fn write(&self, slices: &[IoSlice<'_>]) -> Result<usize, Errno> {
        let mut state = lock(&self.state);
        let mut taken = 0;
        for byte in slices.iter().flat_map(|slice| slice.iter()).take(TAKEN_MAX) {
            taken += 1;
            if *byte == b'\n' || state.line.len() == LINE_MAX {
                self.write_line(&mut state);
            }
            if *byte != b'\n' {
                state.line.push(*byte);
            }
        }
        Ok(taken)
    }
}

impl Drop for StderrLines {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let mut state = std::mem::take(state);
        if !state.line.is_empty() {
            self.write_line(&mut state);
        }
    }
}
