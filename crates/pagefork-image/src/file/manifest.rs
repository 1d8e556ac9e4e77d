//! The manifest of an image: what its pages are, and what the host kept beside them.

use std::collections::BTreeSet;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::base::error::ImageError;
use crate::base::hash::ContentHash;
use crate::base::limits::ImageLimits;
use crate::file::holder::SavedHolder;
use crate::file::shape;

/// Version of the form of a manifest that names no holders; the version stands before the manifest.
pub(crate) const MANIFEST_VERSION: u32 = 1;

/// Version of the form of a manifest that names holders: they stand behind all that version 1 has. Builds that do not
/// know it refuse it by its number.
pub(crate) const MANIFEST_VERSION_HOLDERS: u32 = 2;

/// What an image is: plain data. Its hash is the image's identity.
///
/// The runtime says what the words mean, and checks them; here only their shape is checked: that
/// pages lie where they can lie, and that numbers of instances are in range. What the writer
/// fills in, whoever makes a manifest leaves empty: `data_size`, `root`, the spans and zeroed
/// pages of instances, and the places of attachments. The crate's first page has an example.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Manifest {
    /// The image that this one is a delta of; `None` if it is a full one.
    pub parent: Option<ContentHash>,
    /// The instances, by ordinal less one.
    pub instances: Vec<SavedInstance>,
    /// Ordinal of the instance that spawning returns; 0 if there is none.
    pub main: u32,
    /// The host functions, by their numbers.
    pub host_functions: Vec<SavedHostFunction>,
    /// What stands for the host values that guests hold references to.
    pub host_references: Vec<SavedReference>,
    /// The suspended guest. An image with one has live frames: see
    /// [`ImageReader::check_trust`](crate::ImageReader::check_trust).
    pub suspension: Option<SavedSuspension>,
    /// Fuel that was left.
    pub fuel: i64,
    /// WASI's state, in its own form.
    #[serde(with = "byte_string")]
    pub wasi: Vec<u8>,
    /// Files of the guest's session, and what else is kept by name beside the pages.
    pub attachments: Vec<Attachment>,
    /// What else the runtime keeps, in a form of its own.
    #[serde(with = "byte_string")]
    pub runtime: Vec<u8>,
    /// Bytes of pages and attachments in the file. The writer fills it in.
    pub data_size: u64,
    /// The hash of these bytes, which is the root of the index. The writer fills it in.
    pub root: ContentHash,
    /// Who else has the image, or will have it. Whoever signs the image says so, too.
    // It stands behind all else, in a version of its own: images without holders are what they were.
    #[serde(skip)]
    pub holders: Vec<SavedHolder>,
}

/// An instance of an image. The first page of the crate has an example.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SavedInstance {
    /// The module's name, or what else tells people which instance this is.
    pub name: String,
    /// The hash of the module.
    pub module: ContentHash,
    /// The code that it ran with.
    pub code: SavedCode,
    /// What has to be the same in the slot that it is loaded into.
    pub layout: Vec<u64>,
    /// Bytes of its memories.
    pub memory_sizes: Vec<u64>,
    /// Elements of its tables.
    pub table_lengths: Vec<u64>,
    /// The part in use of the exceptions zone.
    #[serde(with = "byte_string")]
    pub exceptions: Vec<u8>,
    /// What else the runtime keeps of it, in a form of its own.
    #[serde(with = "byte_string")]
    pub runtime: Vec<u8>,
    /// The slot offsets that the image covers, in bytes: whole pages, ascending, apart, none empty.
    pub extents: Vec<Range<u64>>,
    /// In a delta: the number of the instance in the parent whose pages these are, but for those
    /// that are given here; `None` if it has none, so that all else is zero.
    pub parent_instance: Option<u32>,
    /// Pages that the file has: ascending, apart. The writer fills them in.
    pub spans: Vec<SavedSpan>,
    /// In a delta: pages that became zero, as slot offsets. The writer fills them in.
    pub zeroed: Vec<Range<u64>>,
}

/// The code that an instance ran with.
///
/// # Examples
///
/// ```
/// use pagefork_image::{ContentHash, SavedCode};
///
/// let code = SavedCode { hash: ContentHash::of(b"code"), abi: 3, processor: "x86-64-v3".into() };
/// assert_ne!(code, SavedCode::default());
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SavedCode {
    /// The hash of the code image, by which a store has it.
    pub hash: ContentHash,
    /// Version of what code and runtime agree on.
    pub abi: u32,
    /// The processors that the code was made for.
    pub processor: String,
}

/// Pages that lie together both in a slot and in the file.
///
/// # Examples
///
/// ```
/// use pagefork_image::SavedSpan;
///
/// let span = SavedSpan { start: 8192, size: 4096, data_offset: 0 };
/// assert_eq!(span.slot(), 8192..12288);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SavedSpan {
    /// Slot offset of the first byte: a multiple of the page size.
    pub start: u64,
    /// Bytes: whole pages.
    pub size: u64,
    /// Where they lie in the data of the file, which begin at
    /// [`ImageReader::data_start`](crate::ImageReader::data_start): a multiple of the page size.
    pub data_offset: u64,
}

impl SavedSpan {
    /// The slot offsets that it covers.
    pub fn slot(&self) -> Range<u64> {
        self.start..self.start + self.size
    }
}

/// A host function, by the name under which an embedder gives it.
///
/// # Examples
///
/// ```
/// use pagefork_image::SavedHostFunction;
///
/// let function = SavedHostFunction { module: "env".into(), name: "log".into() };
/// assert_eq!(function.name, "log");
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SavedHostFunction {
    /// Name of the module it is imported from.
    pub module: String,
    /// Its own name.
    pub name: String,
}

/// What the embedder keeps in place of a host value.
///
/// # Examples
///
/// ```
/// use pagefork_image::SavedReference;
///
/// let reference = SavedReference { handle: 3, bytes: b"file 7".to_vec() };
/// assert_eq!(reference.handle, 3);
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SavedReference {
    /// What guests hold.
    pub handle: u64,
    /// What the embedder makes the value of again.
    #[serde(with = "byte_string")]
    pub bytes: Vec<u8>,
}

/// A suspended guest.
///
/// # Examples
///
/// ```
/// use pagefork_image::{Manifest, SavedInstance, SavedSuspension};
///
/// let suspension = SavedSuspension { ordinal: 1, stack_owner: 1, ..Default::default() };
/// let instances = vec![SavedInstance::default()];
/// let manifest = Manifest { instances, suspension: Some(suspension), ..Manifest::default() };
/// assert!(manifest.has_live_frames());
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SavedSuspension {
    /// Ordinal of the instance whose save area holds the registers.
    pub ordinal: u32,
    /// Ordinal of the instance in whose slot the stack lies.
    pub stack_owner: u32,
    /// In what kind of place it was suspended, by the runtime's numbers.
    pub kind: u32,
    /// The function that the embedder called, as guests refer to it.
    pub function: u64,
    /// Number of the host function that is to be called before the guest goes on.
    pub host_function: Option<u32>,
    /// Nanoseconds that are left of the call's timeout.
    pub timeout_ns: Option<u64>,
    /// The part in use of the stack. Words that `frames` names are zero in it.
    #[serde(with = "byte_string")]
    pub stack: Vec<u8>,
    /// The words of the stack that are addresses.
    pub frames: Vec<SavedFrameWord>,
}

/// A word of a stack that was an address.
///
/// # Examples
///
/// ```
/// use pagefork_image::{FrameTarget, SavedFrameWord};
///
/// let word = SavedFrameWord { place: 16, target: FrameTarget::FramePointer(None) };
/// assert_eq!(word.place, 16);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SavedFrameWord {
    /// Where it lies: bytes below the top of the stack.
    pub place: u32,
    /// What it led to.
    pub target: FrameTarget,
}

/// What an address on a stack led to. [`SavedFrameWord`] has an example.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum FrameTarget {
    /// Another frame: bytes below the top of the stack; `None` at the end of the chain.
    FramePointer(Option<u32>),
    /// The instruction behind a call.
    Return {
        /// Ordinal of the first instance that has this code.
        ordinal: u32,
        /// Index of the function.
        function: u32,
        /// Number of the call site in the function.
        call_site: u32,
    },
    /// The host, which entered the guest.
    ReturnToHost,
}

/// Bytes that an image has by name beside the pages.
///
/// # Examples
///
/// ```
/// use pagefork_image::Attachment;
///
/// let file = Attachment { name: "tmp/a".into(), kind: 0, size: 5, data_offset: 0 };
/// assert_eq!(file.size, 5);
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Attachment {
    /// A path, or what else it is known by.
    pub name: String,
    /// What it is, by the runtime's numbers.
    pub kind: u32,
    /// Its bytes.
    pub size: u64,
    /// Where they lie in the data of the file: a multiple of the page size. The writer fills it in.
    pub data_offset: u64,
}

impl Manifest {
    /// Whether code of a suspended guest is to go on. Such an image is as powerful as native code.
    /// [`SavedSuspension`] has an example.
    pub fn has_live_frames(&self) -> bool {
        self.suspension.is_some()
    }

    /// The hashes of the code images that its instances ran with, each once: those that the host made have none.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_image::{ContentHash, Manifest, SavedCode, SavedInstance};
    ///
    /// let hash = ContentHash::of(b"machine code");
    /// let code = SavedCode { hash, ..SavedCode::default() };
    /// let instance = SavedInstance { code, ..SavedInstance::default() };
    /// let instances = vec![instance.clone(), SavedInstance::default(), instance];
    /// assert_eq!(Manifest { instances, ..Manifest::default() }.codes(), [hash]);
    /// ```
    pub fn codes(&self) -> Vec<ContentHash> {
        each_once(self.instances.iter().map(|instance| instance.code.hash))
    }

    /// The hashes of the modules of its instances, each once.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_image::{ContentHash, Manifest, SavedInstance};
    ///
    /// let module = ContentHash::of(b"(module)");
    /// let instance = SavedInstance { module, ..SavedInstance::default() };
    /// let manifest = Manifest { instances: vec![instance], ..Manifest::default() };
    /// assert_eq!(manifest.modules(), [module]);
    /// ```
    pub fn modules(&self) -> Vec<ContentHash> {
        each_once(self.instances.iter().map(|instance| instance.module))
    }

    /// What is kept and travels with it: its code images, and its modules, where they were kept.
    pub(crate) fn kept_beside(&self) -> Vec<ContentHash> {
        [self.codes(), self.modules()].concat()
    }

    /// The bytes that stand in a file.
    ///
    /// # Errors
    /// [`ImageError::Invalid`] if it cannot be written at all.
    pub(crate) fn encode(&self) -> Result<Vec<u8>, ImageError> {
        let unwritable =
            |error| ImageError::Invalid(format!("a manifest cannot be written: {error}"));
        let version = match self.holders.is_empty() {
            true => MANIFEST_VERSION,
            false => MANIFEST_VERSION_HOLDERS,
        };
        let bytes =
            postcard::to_extend(self, version.to_le_bytes().to_vec()).map_err(unwritable)?;
        match self.holders.is_empty() {
            true => Ok(bytes),
            false => postcard::to_extend(&self.holders, bytes).map_err(unwritable),
        }
    }

    /// Reads the bytes of a file, and checks their shape.
    ///
    /// # Errors
    /// If they are of another version, altered, or mean what cannot be.
    pub(crate) fn decode(bytes: &[u8], limits: &ImageLimits) -> Result<Self, ImageError> {
        let Some((version, rest)) = bytes.split_first_chunk() else {
            return Err(ImageError::damaged("its manifest is empty"));
        };
        let found = u32::from_le_bytes(*version);
        if ![MANIFEST_VERSION, MANIFEST_VERSION_HOLDERS].contains(&found) {
            let supported = MANIFEST_VERSION_HOLDERS;
            return Err(ImageError::Version { what: "manifest", found, supported });
        }
        let unreadable =
            |error| ImageError::damaged(format!("its manifest cannot be read: {error}"));
        let (mut manifest, mut behind) =
            postcard::take_from_bytes::<Self>(rest).map_err(unreadable)?;
        if found == MANIFEST_VERSION_HOLDERS {
            (manifest.holders, behind) = postcard::take_from_bytes(behind).map_err(unreadable)?;
            if manifest.holders.is_empty() {
                return Err(ImageError::damaged(
                    "its manifest is of a version for holders, and names none",
                ));
            }
        }
        if !behind.is_empty() {
            return Err(ImageError::damaged("its manifest goes on behind its end"));
        }
        shape::check(&manifest, limits)?;
        Ok(manifest)
    }
}

/// Hashes in their order, without those of nothing. Whoever made a manifest may be a stranger, and it may name very
/// many.
fn each_once(hashes: impl Iterator<Item = ContentHash>) -> Vec<ContentHash> {
    let mut seen = BTreeSet::new();
    hashes.filter(|hash| *hash != ContentHash::default() && seen.insert(*hash)).collect()
}

/// Bytes as one string of them, not as a list of numbers.
mod byte_string {
    use std::fmt;

    use serde::de::{Error, Visitor};
    use serde::{Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(bytes)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        struct ByteString;
        impl Visitor<'_> for ByteString {
            type Value = Vec<u8>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
                Ok(bytes.to_vec())
            }
        }
        from.deserialize_bytes(ByteString)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looked for one by one in those before them, so many would take hours.
    #[test]
    fn hashes_of_a_very_long_manifest_are_told_apart_at_once() {
        let hash = |number: u32| {
            let mut bytes = [0; ContentHash::SIZE];
            bytes[..4].copy_from_slice(&number.to_le_bytes());
            ContentHash::from_bytes(bytes)
        };
        // The first one is that of nothing; each other one comes twice, the second time in another order.
        let count = 1_000_000;
        let hashes = (0..count).chain((0..count).rev()).map(hash);
        assert!(each_once(hashes).into_iter().eq((1..count).map(hash)));
    }
}
