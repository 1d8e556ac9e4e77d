//! Images as one compressed stream, for pipes and networks: pages of zeros are left out, and what
//! occurs more than once stands in it once.
//!
//! ```text
//!   "\x93PFSTRM\n" | version (4) | one zstd frame: items, end | BLAKE3 of all before (32)
//!
//!   item   1  code image   hash (32), size (8), bytes
//!          2  image        bytes of manifest (8), of signatures (8), both, then groups:
//!                            0  zeros        how many groups (4)
//!                            1  a group      its bytes
//!                            2  as before    number of the first group (8), how many (4)
//!   end    0
//! ```
//!
//! Groups are counted from the first of the stream, those of zeros included. Numbers are little-
//! endian.

/// Writing streams.
pub(crate) mod send;
/// Reading streams.
pub(crate) mod receive;

/// The first bytes of a stream.
const STREAM_MAGIC: [u8; 8] = *b"\x93PFSTRM\n";

/// Version of streams.
const STREAM_VERSION: u32 = 1;

/// What an item or a part of one is.
mod tag {
    pub(super) const END: u8 = 0;
    pub(super) const CODE: u8 = 1;
    pub(super) const IMAGE: u8 = 2;
    pub(super) const ZEROS: u8 = 0;
    pub(super) const GROUP: u8 = 1;
    pub(super) const AS_BEFORE: u8 = 2;
}

/// Memory that a reader needs for what it has read last: 8 MiB, as a power of two.
const WINDOW_LOG: u32 = 23;
