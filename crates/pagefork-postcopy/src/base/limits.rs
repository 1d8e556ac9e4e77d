//! How much a peer may ask, and how long it may take.

use std::time::Duration;

use pagefork_image::ImageLimits;

/// Bytes that a message may have, on either side. A group of 16 KiB with its proof is the longest.
pub const MESSAGE_SIZE_MAX: u32 = 32 << 10;

/// Bytes of the text of a [`Message::Farewell`](crate::Message::Farewell) that travel: enough for whatever goes wrong,
/// and far less than a message may have.
pub const FAREWELL_MAX: usize = 1 << 10;

/// What a memory node lets one peer ask. A peer that asks for more, though it was told, is left.
///
/// # Examples
///
/// ```
/// use pagefork_postcopy::ServeLimits;
///
/// let limits = ServeLimits { requests: 64, ..ServeLimits::default() };
/// assert_eq!(limits.images, 64);
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServeLimits {
    /// Groups that were asked for and not answered: 1,024 by default. No message names more, and so many at most are
    /// asked for again before they are answered.
    pub requests: u32,
    /// Bytes that are read and not yet taken by the network: 4 MiB by default. Beyond that,
    /// requests wait; a peer that lets twice as much wait is left.
    pub bytes_in_flight: usize,
    /// Images that are open at once, those that are being looked for included: 64 by default.
    pub images: u32,
    /// Hashes of groups that the peer may have said it has, and not taken back: 65,536 by default, 32
    /// bytes each.
    pub known_groups: u32,
    /// After this time in which nothing comes, or nothing is taken, the peer is left: 60 s by
    /// default.
    pub idle: Duration,
    /// How long an image that was opened is spared by collection, and by each renewal: 5 minutes by
    /// default.
    pub lease: Duration,
}

impl Default for ServeLimits {
    fn default() -> Self {
        Self {
            requests: 1024,
            bytes_in_flight: 4 << 20,
            images: 64,
            known_groups: 1 << 16,
            idle: Duration::from_secs(60),
            lease: Duration::from_secs(300),
        }
    }
}

/// What a running node asks of one peer at once, and takes from it.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use pagefork_postcopy::FetchLimits;
///
/// let answer_timeout = Duration::from_secs(2);
/// let limits = FetchLimits { answer_timeout, ..FetchLimits::default() };
/// assert_eq!(limits.requests, 256);
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FetchLimits {
    /// Groups that are asked for and not answered, of one peer: 256 by default, which are 4 MiB. A
    /// peer may allow fewer.
    pub requests: u32,
    /// Of these, how many are kept for groups that a guest waits for: 16 by default.
    pub urgent_requests: u32,
    /// Groups that a peer may send with an image that was opened, unasked: 64 by default.
    pub certain_groups: u32,
    /// How large an image may be.
    pub image: ImageLimits,
    /// A peer that owes an answer and gives none for this long is left: 20 s by default.
    pub answer_timeout: Duration,
}

impl Default for FetchLimits {
    fn default() -> Self {
        Self {
            requests: 256,
            urgent_requests: 16,
            certain_groups: 64,
            image: ImageLimits::default(),
            answer_timeout: Duration::from_secs(20),
        }
    }
}
