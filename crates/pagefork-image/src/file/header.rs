//! The first bytes of an image, which say where everything else lies.

use pagefork_layout::page;

use crate::base::error::ImageError;
use crate::base::hash::ContentHash;
use crate::base::limits::{self, ImageLimits};
use crate::file::signature;
use crate::tree;

/// The first bytes of an image. The first one is in no text, and the last two are changed by
/// programs that take it for one.
pub(crate) const MAGIC: [u8; 8] = *b"\x93PFIMG\r\n";

/// Version of everything around the manifest, and of the index and the data.
pub(crate) const FORMAT_VERSION: u32 = 1;

/// Where parts of an image lie. All but the manifest's hash and the sizes of manifest, signatures
/// and data follows from these, and must be as it follows.
///
/// ```text
///    0  magic                      32  bytes of the index
///    8  version (4), zero (4)      40  where the data start
///   16  bytes of the manifest      48  bytes of the data
///   24  bytes of the signatures    56  zero
///   64  hash of the manifest
///   96  hash of the 96 bytes before and of the signatures
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ImageHeader {
    pub(crate) manifest_size: u64,
    pub(crate) signatures_size: u64,
    pub(crate) data_size: u64,
    pub(crate) manifest_hash: ContentHash,
}

impl ImageHeader {
    /// Bytes of a header. The manifest follows.
    pub(crate) const SIZE: u64 = 128;

    /// Bytes that [`ImageHeader::checksum`] covers.
    const CHECKED: usize = 96;

    pub(crate) fn signatures_start(&self) -> u64 {
        Self::SIZE + self.manifest_size
    }

    pub(crate) fn index_start(&self) -> u64 {
        self.signatures_start() + self.signatures_size
    }

    pub(crate) fn index_size(&self) -> u64 {
        tree::index_size(self.data_size)
    }

    pub(crate) fn index_end(&self) -> u64 {
        self.index_start() + self.index_size()
    }

    /// A multiple of the page size.
    pub(crate) fn data_start(&self) -> u64 {
        page::round_up(self.index_end())
    }

    pub(crate) fn file_size(&self) -> u64 {
        self.data_start() + self.data_size
    }

    pub(crate) fn encode(&self, signatures: &[u8]) -> [u8; Self::SIZE as usize] {
        let mut bytes = [0; Self::SIZE as usize];
        bytes[0..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        let words = [
            self.manifest_size,
            self.signatures_size,
            self.index_size(),
            self.data_start(),
            self.data_size,
        ];
        for (place, word) in bytes[16..56].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes[64..96].copy_from_slice(self.manifest_hash.as_bytes());
        let checksum = Self::checksum(&bytes[..Self::CHECKED], signatures);
        bytes[Self::CHECKED..].copy_from_slice(checksum.as_bytes());
        bytes
    }

    /// # Errors
    /// [`ImageError::TooLarge`] if there is more than `limits` allow.
    pub(crate) fn check_limits(&self, limits: &ImageLimits) -> Result<(), ImageError> {
        limits::check("a manifest", self.manifest_size, limits.manifest_size)?;
        let signatures_max = (limits.signatures as u64).saturating_mul(signature::SIZE as u64);
        limits::check("bytes of signatures", self.signatures_size, signatures_max)?;
        limits::check("data", self.data_size, limits.data_size)?;
        // Then no sum of these exceeds 64 bits.
        let sizes = [self.manifest_size, self.signatures_size, self.data_size];
        limits::check("an image", sizes.map(|size| size / 4).iter().sum(), u64::MAX >> 3)
    }

    fn checksum(checked: &[u8], signatures: &[u8]) -> ContentHash {
        let mut hasher = blake3::Hasher::new();
        hasher.update(checked).update(signatures);
        ContentHash::from_bytes(*hasher.finalize().as_bytes())
    }

    /// Reads a header, of which [`ImageHeader::check`] has to see the rest.
    ///
    /// # Errors
    /// If the bytes are no header of this version, or say what is too large.
    pub(crate) fn decode(
        bytes: &[u8; Self::SIZE as usize],
        limits: &ImageLimits,
    ) -> Result<Self, ImageError> {
        if bytes[..8] != MAGIC {
            return Err(ImageError::NotAnImage);
        }
        let word = |at: usize| {
            let word = bytes[at..at + 8].try_into();
            u64::from_le_bytes(word.expect("eight bytes"))
        };
        let version = word(8);
        if version != u64::from(FORMAT_VERSION) {
            let found = version as u32;
            return Err(match version >> 32 {
                0 => ImageError::Version { what: "image", found, supported: FORMAT_VERSION },
                _ => ImageError::damaged("its header has bits that are not in use"),
            });
        }
        let mut manifest_hash = [0; ContentHash::SIZE];
        manifest_hash.copy_from_slice(&bytes[64..96]);
        let header = Self {
            manifest_size: word(16),
            signatures_size: word(24),
            data_size: word(48),
            manifest_hash: ContentHash::from_bytes(manifest_hash),
        };
        header.check_limits(limits)?;
        if !header.data_size.is_multiple_of(page::PAGE_SIZE)
            || (word(32), word(40), word(56)) != (header.index_size(), header.data_start(), 0)
        {
            return Err(ImageError::damaged("the words of its header contradict each other"));
        }
        Ok(header)
    }

    /// Checks what [`ImageHeader::decode`] cannot see.
    ///
    /// # Errors
    /// [`ImageError::Damaged`] if header or signatures were altered.
    pub(crate) fn check(
        bytes: &[u8; Self::SIZE as usize],
        signatures: &[u8],
    ) -> Result<(), ImageError> {
        let checksum = Self::checksum(&bytes[..Self::CHECKED], signatures);
        match bytes[Self::CHECKED..] == checksum.as_bytes()[..] {
            true => Ok(()),
            false => Err(ImageError::damaged("its header or its signatures were altered")),
        }
    }
}
