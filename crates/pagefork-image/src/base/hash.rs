//! Hashes that stand for contents.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::base::error::ImageError;

/// The BLAKE3 hash of some contents, which stands for them. It is displayed and parsed as 64
/// hexadecimal digits.
///
/// # Examples
///
/// ```
/// use pagefork_image::ContentHash;
///
/// let hash = ContentHash::of(b"contents");
/// assert_eq!(hash.to_string().len(), 64);
/// assert_eq!(hash.to_string().parse::<ContentHash>()?, hash);
/// assert!("c0ffee".parse::<ContentHash>().is_err());
/// # Ok::<(), pagefork_image::ImageError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct ContentHash([u8; Self::SIZE]);

impl ContentHash {
    /// Bytes of a hash.
    pub const SIZE: usize = 32;

    /// The hash of `contents`.
    pub fn of(contents: &[u8]) -> Self {
        Self(*blake3::hash(contents).as_bytes())
    }

    /// A hash that is known.
    pub fn from_bytes(bytes: [u8; Self::SIZE]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8; Self::SIZE] {
        &self.0
    }
}

impl fmt::Display for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ContentHash({self})")
    }
}

impl FromStr for ContentHash {
    type Err = ImageError;

    /// # Errors
    /// [`ImageError::Invalid`] if `text` is other than 64 hexadecimal digits in lower case.
    fn from_str(text: &str) -> Result<Self, ImageError> {
        let invalid = || {
            ImageError::Invalid(format!("{text:?} is no hash: 64 of the digits 0-9a-f are needed"))
        };
        parse_hex(text).map(Self).ok_or_else(invalid)
    }
}

/// 32 bytes from hexadecimal digits in lower case, so that there is one text for each value.
pub(crate) fn parse_hex(text: &str) -> Option<[u8; 32]> {
    let is_digit = |digit: u8| digit.is_ascii_digit() || (b'a'..=b'f').contains(&digit);
    if text.len() != 64 || !text.bytes().all(is_digit) {
        return None;
    }
    let mut bytes = [0; 32];
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * index..2 * index + 2)?, 16).ok()?;
    }
    Some(bytes)
}
