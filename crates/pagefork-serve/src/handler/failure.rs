//! Requests that are not answered by their handler.

use http::StatusCode;

use crate::observe::log::Severity;

/// Why a request has no response of its handler's.
#[derive(Clone, Debug)]
pub struct Failure {
    kind: FailureKind,
    /// What the log is told and the client is not.
    detail: String,
}

/// The kinds of [`Failure`], as the metrics count them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// The handler's program trapped, or the handler panicked.
    Trap,
    /// It took too long.
    Timeout,
    /// It ended without a response.
    NoResponse,
    /// What it answered is malformed.
    BadResponse,
    /// It could not be started.
    Spawn,
    /// Too many requests are waiting.
    QueueFull,
    /// The request waited too long for others to end.
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
    /// Nothing here does what the request asks for.
    NotImplemented,
    /// The client went away.
    ClientGone,
    /// The server is stopping.
    Stopping,
}

impl FailureKind {
    /// All of them.
    pub const ALL: [FailureKind; 15] = [
        Self::Trap,
        Self::Timeout,
        Self::NoResponse,
        Self::BadResponse,
        Self::Spawn,
        Self::QueueFull,
        Self::QueueTimeout,
        Self::BodyTooLarge,
        Self::BodyTimeout,
        Self::HeadTimeout,
        Self::HeadTooLarge,
        Self::BadRequest,
        Self::NotImplemented,
        Self::ClientGone,
        Self::Stopping,
    ];

    /// The name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Trap => "trap",
            Self::Timeout => "timeout",
            Self::NoResponse => "no_response",
            Self::BadResponse => "bad_response",
            Self::Spawn => "spawn",
            Self::QueueFull => "queue_full",
            Self::QueueTimeout => "queue_timeout",
            Self::BodyTooLarge => "body_too_large",
            Self::BodyTimeout => "body_timeout",
            Self::HeadTimeout => "head_timeout",
            Self::HeadTooLarge => "head_too_large",
            Self::BadRequest => "bad_request",
            Self::NotImplemented => "not_implemented",
            Self::ClientGone => "client_gone",
            Self::Stopping => "stopping",
        }
    }

    /// The status of the response that says so.
    pub fn status(self) -> StatusCode {
        match self {
            Self::Trap | Self::Spawn => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Timeout => StatusCode::GATEWAY_TIMEOUT,
            Self::NoResponse | Self::BadResponse => StatusCode::BAD_GATEWAY,
            Self::QueueFull | Self::QueueTimeout | Self::Stopping => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::BodyTimeout | Self::HeadTimeout => StatusCode::REQUEST_TIMEOUT,
            Self::HeadTooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::BadRequest | Self::ClientGone => StatusCode::BAD_REQUEST,
            Self::NotImplemented => StatusCode::NOT_IMPLEMENTED,
        }
    }

    /// What the client is told.
    pub fn message(self) -> &'static str {
        match self {
            Self::Trap => "The program failed.",
            Self::Timeout => "The program took too long.",
            Self::NoResponse => "The program ended without a response.",
            Self::BadResponse => "The program gave a malformed response.",
            Self::Spawn => "The program could not be started.",
            Self::QueueFull | Self::QueueTimeout => "Too many requests are waiting. Try again.",
            Self::BodyTooLarge => "The request's body is too large.",
            Self::BodyTimeout => "The request's body took too long to arrive.",
            Self::HeadTimeout => "The request's head took too long to arrive.",
            Self::HeadTooLarge => "The request's head is too large.",
            Self::BadRequest => "The request is malformed.",
            Self::NotImplemented => "This server does not do that.",
            Self::ClientGone => "The connection was lost.",
            Self::Stopping => "The server is stopping. Try again.",
        }
    }

    /// How much it matters to who runs the server.
    pub(crate) fn severity(self) -> Severity {
        match self {
            Self::Trap | Self::Timeout | Self::NoResponse | Self::BadResponse | Self::Spawn => {
                Severity::Error
            }
            Self::QueueFull | Self::QueueTimeout | Self::Stopping => Severity::Warning,
            Self::BodyTooLarge
            | Self::BodyTimeout
            | Self::HeadTimeout
            | Self::HeadTooLarge
            | Self::BadRequest
            | Self::NotImplemented
            | Self::ClientGone => Severity::Info,
        }
    }

    /// Whether trying again later may help.
    pub(crate) fn is_passing(self) -> bool {
        matches!(self, Self::QueueFull | Self::QueueTimeout | Self::Stopping)
    }
}

impl Failure {
    /// A failure, and what the log is to say of it.
    pub fn new(kind: FailureKind, detail: impl Into<String>) -> Failure {
        Failure { kind, detail: detail.into() }
    }

    /// What kind it is of.
    pub fn kind(&self) -> FailureKind {
        self.kind
    }

    /// What the log is to say of it; may be empty.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    pub(crate) fn no_response() -> Failure {
        Failure::new(FailureKind::NoResponse, "it wrote no head of a response")
    }
}

/// Why a request was given up while it was under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the request was given up: {}", FailureKind::from(*.0).name())]
pub struct GivenUp(pub(crate) Cancelled);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cancelled {
    Timeout,
    QueueTimeout,
    BodyTooLarge,
    BodyTimeout,
    BodyBroken,
    ClientGone,
    Stopping,
}

impl From<Cancelled> for FailureKind {
    fn from(cancelled: Cancelled) -> FailureKind {
        match cancelled {
            Cancelled::Timeout => FailureKind::Timeout,
            Cancelled::QueueTimeout => FailureKind::QueueTimeout,
            Cancelled::BodyTooLarge => FailureKind::BodyTooLarge,
            Cancelled::BodyTimeout => FailureKind::BodyTimeout,
            Cancelled::BodyBroken => FailureKind::BadRequest,
            Cancelled::ClientGone => FailureKind::ClientGone,
            Cancelled::Stopping => FailureKind::Stopping,
        }
    }
}

impl From<Cancelled> for Failure {
    fn from(cancelled: Cancelled) -> Failure {
        Failure::new(cancelled.into(), String::new())
    }
}
