//! Keys, signatures, and whose signature makes an image with live frames acceptable.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};

use crate::base::error::ImageError;
use crate::base::hash::{self, ContentHash};
use crate::file::manifest::Manifest;

/// Bytes of a public key and of a signature, which follows it in a file.
pub(crate) const SIZE: usize = 32 + 64;

/// What is signed begins with this, so that a signature of an image is one of nothing else.
const CONTEXT: &[u8] = b"Pagefork image, version 1: ";

/// An Ed25519 key that signs images.
///
/// # Examples
///
/// ```
/// use pagefork_image::SecretKey;
///
/// let key = SecretKey::from_seed([7; 32]); // Random bytes, in earnest.
/// assert_eq!(key.public(), SecretKey::from_seed([7; 32]).public());
/// assert_eq!(format!("{key:?}"), format!("SecretKey({})", key.public()));
/// ```
#[derive(Clone)]
pub struct SecretKey(SigningKey);

impl SecretKey {
    /// The key that 32 random bytes make. Who knows them can sign.
    pub fn from_seed(seed: [u8; 32]) -> Self {
        Self(SigningKey::from_bytes(&seed))
    }

    /// The bytes that it was made of.
    pub fn seed(&self) -> [u8; 32] {
        self.0.to_bytes()
    }

    /// The key that its signatures are checked with.
    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.verifying_key().to_bytes())
    }

    /// A signature as it stands in a file.
    pub(crate) fn sign(&self, image: ContentHash) -> [u8; SIZE] {
        let mut bytes = [0; SIZE];
        bytes[..32].copy_from_slice(&self.public().0);
        bytes[32..].copy_from_slice(&self.0.sign(&message(image)).to_bytes());
        bytes
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretKey({})", self.public())
    }
}

/// An Ed25519 key that signatures are checked with. It is displayed and parsed as 64 hexadecimal
/// digits.
///
/// # Examples
///
/// ```
/// use pagefork_image::{PublicKey, SecretKey};
///
/// let key = SecretKey::from_seed([7; 32]).public();
/// assert_eq!(key.to_string().parse::<PublicKey>()?, key);
/// # Ok::<(), pagefork_image::ImageError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey([u8; 32]);

impl PublicKey {
    /// A key that is known. Whether it is one shows when something is checked with it.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        ContentHash::from_bytes(self.0).fmt(f)
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({self})")
    }
}

impl FromStr for PublicKey {
    type Err = ImageError;

    /// # Errors
    /// [`ImageError::Invalid`] if `text` is other than 64 hexadecimal digits in lower case.
    fn from_str(text: &str) -> Result<Self, ImageError> {
        let invalid = || ImageError::Invalid(format!("{text:?} is no public key"));
        hash::parse_hex(text).map(Self).ok_or_else(invalid)
    }
}

/// Keys whose signature makes an image with live frames acceptable.
///
/// # Examples
///
/// ```
/// use pagefork_image::{SecretKey, TrustedKeys};
///
/// let key = SecretKey::from_seed([7; 32]).public();
/// assert!(TrustedKeys::from_iter([key]).contains(&key));
/// assert!(!TrustedKeys::default().contains(&key) && TrustedKeys::default().is_empty());
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TrustedKeys(BTreeSet<PublicKey>);

impl TrustedKeys {
    /// Whether a key is trusted.
    pub fn contains(&self, key: &PublicKey) -> bool {
        self.0.contains(key)
    }

    /// Whether no key is trusted.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<PublicKey> for TrustedKeys {
    fn from_iter<I: IntoIterator<Item = PublicKey>>(keys: I) -> Self {
        Self(keys.into_iter().collect())
    }
}

fn message(image: ContentHash) -> Vec<u8> {
    [CONTEXT, image.as_bytes()].concat()
}

/// The signatures of two files of one image, each key's once.
pub(crate) fn union(signatures: &[u8], others: &[u8]) -> Vec<u8> {
    let mut union = signatures.to_vec();
    for other in others.chunks(SIZE) {
        if !union.chunks(SIZE).any(|known| known[..32] == other[..32]) {
            union.extend_from_slice(other);
        }
    }
    union
}

/// Who has signed an image.
///
/// # Errors
/// [`ImageError::Damaged`] if one of the signatures is not right, or there are two of one key.
pub(crate) fn check(bytes: &[u8], image: ContentHash) -> Result<Vec<PublicKey>, ImageError> {
    let wrong = || ImageError::damaged("one of its signatures is wrong");
    let mut signers = Vec::new();
    for entry in bytes.chunks(SIZE) {
        let (key, signature) = entry.split_first_chunk::<32>().ok_or_else(wrong)?;
        let signature = Signature::from_slice(signature).map_err(|_| wrong())?;
        let verifying = VerifyingKey::from_bytes(key).map_err(|_| wrong())?;
        verifying.verify_strict(&message(image), &signature).map_err(|_| wrong())?;
        let key = PublicKey(*key);
        if signers.contains(&key) {
            return Err(ImageError::damaged("it has two signatures of one key"));
        }
        signers.push(key);
    }
    Ok(signers)
}

/// # Errors
/// [`ImageError::Untrusted`] for an image with live frames that none of `keys` has signed.
pub(crate) fn check_trust(
    manifest: &Manifest,
    image: ContentHash,
    signers: &[PublicKey],
    keys: &TrustedKeys,
) -> Result<(), ImageError> {
    if !manifest.has_live_frames() || signers.iter().any(|key| keys.contains(key)) {
        return Ok(());
    }
    Err(ImageError::Untrusted { image, signatures: signers.len() })
}
