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

/// How much a record of the log matters. [`record`](crate::record) has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// Something is wrong here: with the program, the server or the machine.
    Error,
    /// The server enforces a limit, or something may be wrong.
    Warning,
    /// All is well, or something is wrong with a client.
    Info,
}

/// Defines the kinds of failures, each with its name in metrics, the status and the text that
/// clients get, and how much it matters to the people who run the server.
macro_rules! kinds {
    ($($(#[$doc:meta])*
    $kind:ident, $name:literal, $status:literal, $severity:ident, $text:literal;)*) => {
        /// The kinds of [`Failure`], as the metrics count them.
        ///
        /// # Examples
        ///
        /// ```
        /// use pagefork_serve::FailureKind;
        ///
        /// let kind = FailureKind::Timeout;
        /// assert_eq!((kind.name(), kind.status().as_u16()), ("timeout", 504));
        /// assert_eq!(kind.message(), "The program took too long.");
        /// assert!(FailureKind::ALL.contains(&kind));
        /// ```
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum FailureKind {
            $($(#[$doc])* $kind,)*
        }

        impl FailureKind {
            /// All of them.
            pub const ALL: [FailureKind; [$($name),*].len()] = [$(Self::$kind),*];

            fn row(self) -> (&'static str, u16, Severity, &'static str) {
                match self {
                    $(Self::$kind => ($name, $status, Severity::$severity, $text),)*
                }
            }
        }
    };
}

kinds! {
    /// The handler's program trapped, or the handler panicked.
    Trap, "trap", 500, Error, "The program failed.";
    /// The handler took too long.
    Timeout, "timeout", 504, Error, "The program took too long.";
    /// The handler ended without a response.
    NoResponse, "no_response", 502, Error, "The program ended without a response.";
    /// The handler's response is malformed.
    BadResponse, "bad_response", 502, Error, "The program gave a malformed response.";
    /// The handler could not be started.
    Spawn, "spawn", 500, Error, "The program could not be started.";
    /// Too many requests are waiting.
    QueueFull, "queue_full", 503, Warning, "Too many requests are waiting. Try again.";
    /// The request waited too long for other requests to end.
    QueueTimeout, "queue_timeout", 503, Warning, "Too many requests are waiting. Try again.";
    /// The request's body is larger than is allowed.
    BodyTooLarge, "body_too_large", 413, Info, "The request's body is too large.";
    /// The client took too long to send the body.
    BodyTimeout, "body_timeout", 408, Info, "The request's body took too long to arrive.";
    /// The client took too long to send the head.
    HeadTimeout, "head_timeout", 408, Info, "The request's head took too long to arrive.";
    /// The request's head is larger than is allowed.
    HeadTooLarge, "head_too_large", 431, Info, "The request's head is too large.";
    /// The request is malformed.
    BadRequest, "bad_request", 400, Info, "The request is malformed.";
    /// The server does not implement what the request asks for.
    NotImplemented, "not_implemented", 501, Info, "This server does not do that.";
    /// The client went away.
    ClientGone, "client_gone", 400, Info, "The connection was lost.";
    /// The server is stopping.
    Stopping, "stopping", 503, Warning, "The server is stopping. Try again.";
}

impl FailureKind {
    /// The name in metrics and logs.
    ///
    /// # Examples
    ///
    /// See [`FailureKind`].
    pub fn name(self) -> &'static str {
        self.row().0
    }

    /// The status of the response that says so.
    ///
    /// # Examples
    ///
    /// See [`FailureKind`].
    pub fn status(self) -> StatusCode {
        StatusCode::from_u16(self.row().1).expect("the table has three digits")
    }

    pub(crate) fn severity(self) -> Severity {
        self.row().2
    }

    /// What the client is told.
    ///
    /// # Examples
    ///
    /// See [`FailureKind`].
    pub fn message(self) -> &'static str {
        self.row().3
    }
}

impl Severity {
    /// The word in a record.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_serve::Severity;
    ///
    /// let all = [Severity::Error, Severity::Warning, Severity::Info];
    /// assert_eq!(all.map(Severity::name), ["error", "warning", "info"]);
    /// ```
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
    ///
    /// # Examples
    ///
    /// See [`Failure`].
    pub fn new(kind: FailureKind, detail: impl Into<String>) -> Failure {
        Failure { kind, detail: detail.into() }
    }

    /// Its kind, which decides what the client is told.
    ///
    /// # Examples
    ///
    /// See [`Failure`].
    pub fn kind(&self) -> FailureKind {
        self.kind
    }

    /// What the log says about it and the client is not told; may be empty.
    ///
    /// # Examples
    ///
    /// See [`Failure`].
    pub fn detail(&self) -> &str {
        &self.detail
    }
}

/// Why a request was given up while it was under way.
///
/// # Examples
///
/// ```
/// use pagefork_serve::{GivenUp, ResponseWriter};
///
/// /// What a handler does that has parts to send: it ends when the client has gone.
/// fn send(response: &ResponseWriter, parts: &[&[u8]]) -> Result<(), GivenUp> {
///     parts.iter().try_for_each(|part| response.write(part))
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the request was given up: {}", .0.name())]
pub struct GivenUp(pub(crate) FailureKind);
