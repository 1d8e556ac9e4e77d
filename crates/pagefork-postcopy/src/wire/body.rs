//! The contents of a group as they travel: nothing for zeros and for what the other side has,
//! compressed where that pays.

use pagefork_image::ContentHash;
use serde::{Deserialize, Serialize};

use crate::base::error::ProtocolError;
use crate::wire::message::byte_string;

/// The contents of a group in a message. [`BodyEncoder`] has an example.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum GroupBody {
    /// All bytes are zero.
    Zeros,
    /// The bytes.
    Plain(#[serde(with = "byte_string")] Vec<u8>),
    /// The bytes as a frame of zstd.
    Zstd(#[serde(with = "byte_string")] Vec<u8>),
    /// Bytes that the other side has said it has, by what stands for them in the image's tree.
    Known(ContentHash),
}

impl GroupBody {
    /// The bytes, of which there are `size`; `None` if the other side has to look them up.
    ///
    /// # Errors
    /// [`ProtocolError::Malformed`] if they cannot be decompressed, or are more.
    pub fn decode(self, size: usize) -> Result<Option<Vec<u8>>, ProtocolError> {
        match self {
            Self::Zeros => Ok(Some(vec![0; size])),
            Self::Plain(bytes) => Ok(Some(bytes)),
            Self::Zstd(bytes) => decompress(&bytes, size).map(Some),
            Self::Known(_) => Ok(None),
        }
    }
}

/// Makes bodies of groups, and finds out whether compressing pays. After groups in a row that did
/// not become smaller by an eighth, it tries only one of many.
///
/// # Examples
///
/// ```
/// use pagefork_postcopy::{BodyEncoder, GroupBody};
///
/// let mut encoder = BodyEncoder::new(true);
/// assert_eq!(encoder.encode(&[0; 16384]), GroupBody::Zeros);
/// let sevens = encoder.encode(&[7; 16384]);
/// assert_eq!(sevens.decode(16384)?, Some(vec![7; 16384]));
/// # Ok::<(), pagefork_postcopy::ProtocolError>(())
/// ```
#[derive(Debug)]
pub struct BodyEncoder {
    compress: bool,
    /// Groups in a row that did not become smaller.
    failed: u32,
    /// Groups that are not tried.
    skip: u32,
}

impl BodyEncoder {
    /// After this many groups that did not become smaller, compressing is given up for a while.
    const FAILED_MAX: u32 = 8;
    /// For this many groups.
    const SKIPPED: u32 = 64;

    /// One for a peer that can decompress, or not.
    pub fn new(compress: bool) -> Self {
        Self { compress: compress && CAN_COMPRESS, failed: 0, skip: 0 }
    }

    /// The body of a group with these bytes.
    pub fn encode(&mut self, bytes: &[u8]) -> GroupBody {
        if bytes.iter().all(|byte| *byte == 0) {
            return GroupBody::Zeros;
        }
        if !self.compress || self.skip > 0 {
            self.skip = self.skip.saturating_sub(1);
            return GroupBody::Plain(bytes.to_vec());
        }
        match compress(bytes).filter(|packed| packed.len() <= bytes.len() / 8 * 7) {
            Some(packed) => {
                self.failed = 0;
                GroupBody::Zstd(packed)
            }
            None => {
                self.failed += 1;
                if self.failed >= Self::FAILED_MAX {
                    // The next one that is tried decides about the next many.
                    (self.failed, self.skip) = (Self::FAILED_MAX - 1, Self::SKIPPED);
                }
                GroupBody::Plain(bytes.to_vec())
            }
        }
    }
}

/// Whether this build can compress and decompress.
pub(crate) const CAN_COMPRESS: bool = cfg!(feature = "compression");

/// The quickest level that still finds what repeats far apart.
#[cfg(feature = "compression")]
const LEVEL: i32 = 1;

#[cfg(feature = "compression")]
fn compress(bytes: &[u8]) -> Option<Vec<u8>> {
    zstd::bulk::compress(bytes, LEVEL).ok()
}

#[cfg(not(feature = "compression"))]
fn compress(_: &[u8]) -> Option<Vec<u8>> {
    None
}

#[cfg(feature = "compression")]
fn decompress(bytes: &[u8], size: usize) -> Result<Vec<u8>, ProtocolError> {
    let malformed =
        |error| ProtocolError::Malformed(format!("a group cannot be decompressed: {error}"));
    zstd::bulk::decompress(bytes, size).map_err(malformed)
}

#[cfg(not(feature = "compression"))]
fn decompress(_: &[u8], _: usize) -> Result<Vec<u8>, ProtocolError> {
    Err(ProtocolError::Unexpected("a compressed group, though this build decompresses none"))
}

#[cfg(all(test, feature = "compression"))]
mod tests {
    use super::*;

    /// Bytes that nothing compresses: other ones for each number.
    fn noise(number: u64) -> Vec<u8> {
        let mut word = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let next = std::iter::repeat_with(|| {
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
            word.to_le_bytes()
        });
        next.take(2048).flatten().collect()
    }

    /// Whether a group that compresses well is tried.
    fn tries(encoder: &mut BodyEncoder) -> bool {
        match encoder.encode(&[7; 16384]) {
            GroupBody::Zstd(packed) => packed.len() < 100,
            GroupBody::Plain(bytes) => bytes != [7; 16384],
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn compressing_rests_after_groups_that_did_not_become_smaller_and_is_tried_again() {
        let mut encoder = BodyEncoder::new(true);
        for number in 1..u64::from(BodyEncoder::FAILED_MAX) {
            assert_eq!(encoder.encode(&noise(number)), GroupBody::Plain(noise(number)));
        }
        assert!(tries(&mut encoder), "too few have failed");
        for number in 0..u64::from(BodyEncoder::FAILED_MAX) {
            assert_eq!(encoder.encode(&noise(number)), GroupBody::Plain(noise(number)));
        }
        // Zeros are told from others all the same, and use up none of the rest.
        assert_eq!(encoder.encode(&[0; 16384]), GroupBody::Zeros);
        for skipped in 0..BodyEncoder::SKIPPED {
            assert!(!tries(&mut encoder), "{skipped}");
        }
        assert!(tries(&mut encoder), "it rests for ever");
        // One that fails then decides about the next many.
        for number in 0..u64::from(BodyEncoder::FAILED_MAX) {
            encoder.encode(&noise(number));
        }
        for _ in 0..BodyEncoder::SKIPPED {
            assert!(!tries(&mut encoder));
        }
        assert_eq!(encoder.encode(&noise(9)), GroupBody::Plain(noise(9)));
        assert!(!tries(&mut encoder), "it is tried for all again");
    }

    #[test]
    fn a_peer_that_decompresses_nothing_gets_nothing_compressed() {
        assert!(!tries(&mut BodyEncoder::new(false)));
    }
}
