//! Failures: why a request has no complete response from its handler.

use http::StatusCode;

/// Why a request has no complete response from its handler.
///
/// # Examples
///
/// ```
/// use pagefork_serve::{Failure, FailureKind};
///
/// let failure = Failure::new(FailureKind::BadResponse, "it announced 5 bytes and wrote 3");
/// // The client is told the kind, the log is told the detail.
/// assert_eq!(failure.kind().status(), 502);
/// assert_eq!(failure.detail(), "it announced 5 bytes and wrote 3");
/// ```
#[derive(Clone, Debug)]
pub struct Failure {
    kind: FailureKind,
    detail: String,
}

/// The kinds of [`Failure`], as the metrics count them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// The handler's program trapped, or the handler panicked.
    Trap,
    /// The handler took too long.
    Timeout,
    /// The handler ended without a response.
    NoResponse,
    /// The handler's response is malformed.
    BadResponse,
    /// The handler could not be started.
    Spawn,
    /// Too many requests are waiting.
    QueueFull,
    /// The request waited too long for other requests to end.
    QueueTimeout,
    /// The request's body is larger than is allowed.
    BodyTooLarge,
    /// The client took too long to send the body.
    BodyTimeout,
    /// The client took too long to send the head.
    HeadTimeout,
    /// The request's head is larger than is allowed.
    HeadTooLarge,
    /// The request is malformed.
    BadRequest,
    /// The server does not implement what the request asks for.
    NotImplemented,
    /// The client went away.
    ClientGone,
    /// The server is stopping.
    Stopping,
}

/// How much a record of the log matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// Something is wrong here: with the program, the server or the machine.
    Error,
    /// The server enforces a limit, or something may be wrong.
    Warning,
    /// All is well, or something is wrong with a client.
    Info,
}

/// Of each kind: its name in metrics, the status and the text that clients get, and how much it
/// matters to the people who run the server.
const KINDS: [(FailureKind, &str, u16, Severity, &str); 15] = {
    use FailureKind::*;
    use Severity::{Error, Info, Warning};
    [
        (Trap, "trap", 500, Error, "The program failed."),
        (Timeout, "timeout", 504, Error, "The program took too long."),
        (NoResponse, "no_response", 502, Error, "The program ended without a response."),
        (BadResponse, "bad_response", 502, Error, "The program gave a malformed response."),
        (Spawn, "spawn", 500, Error, "The program could not be started."),
        (QueueFull, "queue_full", 503, Warning, "Too many requests are waiting. Try again."),
        (QueueTimeout, "queue_timeout", 503, Warning, "Too many requests are waiting. Try again."),
        (BodyTooLarge, "body_too_large", 413, Info, "The request's body is too large."),
        (BodyTimeout, "body_timeout", 408, Info, "The request's body took too long to arrive."),
        (HeadTimeout, "head_timeout", 408, Info, "The request's head took too long to arrive."),
        (HeadTooLarge, "head_too_large", 431, Info, "The request's head is too large."),
        (BadRequest, "bad_request", 400, Info, "The request is malformed."),
        (NotImplemented, "not_implemented", 501, Info, "This server does not do that."),
        (ClientGone, "client_gone", 400, Info, "The connection was lost."),
        (Stopping, "stopping", 503, Warning, "The server is stopping. Try again."),
    ]
};

impl FailureKind {
    /// All of them.
    pub const ALL: [FailureKind; KINDS.len()] = {
        let mut all = [Self::Trap; KINDS.len()];
        let mut index = 0;
        while index < all.len() {
            all[index] = KINDS[index].0;
            assert!(all[index] as usize == index, "a kind's row is at its number");
            index += 1;
        }
        all
    };

    /// The name in metrics and logs.
    pub fn name(self) -> &'static str {
        KINDS[self as usize].1
    }

    /// The status of the response that says so.
    pub fn status(self) -> StatusCode {
        StatusCode::from_u16(KINDS[self as usize].2).expect("the table has three digits")
    }

    pub(crate) fn severity(self) -> Severity {
        KINDS[self as usize].3
    }

    /// What the client is told.
    pub fn message(self) -> &'static str {
        KINDS[self as usize].4
    }
}

impl Severity {
    /// The word in a record.
    pub fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Info => "info",
        }
    }
}

impl Failure {
    /// A failure, and what the log says about it.
    pub fn new(kind: FailureKind, detail: impl Into<String>) -> Failure {
        Failure { kind, detail: detail.into() }
    }

    /// Its kind, which decides what the client is told.
    pub fn kind(&self) -> FailureKind {
        self.kind
    }

    /// What the log says about it and the client is not told; may be empty.
    pub fn detail(&self) -> &str {
        &self.detail
    }
}

/// Why a request was given up while it was under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the request was given up: {}", .0.name())]
pub struct GivenUp(pub(crate) FailureKind);
