//! Tokens: which node may have which image, until when, signed by who decides that.

use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};
use pagefork_image::{ContentHash, PublicKey, SecretKey, TrustedKeys};
use serde::{Deserialize, Serialize};

use crate::base::error::TokenError;

/// What is signed begins with this, so that a signature of a token is one of nothing else.
const CONTEXT: &[u8] = b"Pagefork token, version 1: ";

/// Bytes of the issuer's key and the signature, which stand before what is signed.
const SIGNED_BY: usize = 32 + 64;

/// What a node is allowed to have, and until when.
///
/// # Examples
///
/// ```
/// use pagefork_image::{ContentHash, SecretKey, TrustedKeys};
/// use pagefork_postcopy::{ImageToken, TokenError, TokenRights, TokenSubject};
///
/// let issuer = SecretKey::from_seed([7; 32]); // Random bytes, in earnest.
/// let node = SecretKey::from_seed([8; 32]).public();
/// let token = ImageToken {
///     subject: TokenSubject::Image(ContentHash::of(b"manifest")),
///     rights: TokenRights { lease: true, take_over: false },
///     holder: node,
///     expires_unix_s: 1_800_000_000,
/// };
/// let bytes = token.sign(&issuer);
///
/// let trusted = TrustedKeys::from_iter([issuer.public()]);
/// assert_eq!(ImageToken::check(&bytes, &trusted, &node, 1_700_000_000)?, token);
/// let late = ImageToken::check(&bytes, &trusted, &node, 1_800_000_000);
/// assert_eq!(late, Err(TokenError::Expired));
/// # Ok::<(), TokenError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ImageToken {
    /// What it is for.
    pub subject: TokenSubject,
    /// What may be done besides asking for the image's head and groups.
    pub rights: TokenRights,
    /// The node that may use it, by the key that its connections are authenticated with.
    pub holder: PublicKey,
    /// From this second on it is worth nothing.
    pub expires_unix_s: u64,
}

/// What a token is for. [`ImageToken`] has an example.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum TokenSubject {
    /// One image.
    Image(ContentHash),
    /// What a name leads to when it is opened.
    Name(String),
}

/// What may be done besides asking for groups. [`ImageToken`] has an example.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct TokenRights {
    /// The image is spared by collection as long as its leases are renewed.
    pub lease: bool,
    /// The instance that the image is of may be taken over.
    pub take_over: bool,
}

/// What is signed.
#[derive(Serialize, Deserialize)]
struct TokenBody {
    subject: TokenSubject,
    rights: TokenRights,
    holder: [u8; 32],
    expires_unix_s: u64,
}

impl ImageToken {
    /// Its bytes, signed by `issuer`.
    pub fn sign(&self, issuer: &SecretKey) -> Vec<u8> {
        let body = TokenBody {
            subject: self.subject.clone(),
            rights: self.rights,
            holder: *self.holder.as_bytes(),
            expires_unix_s: self.expires_unix_s,
        };
        let body = postcard::to_extend(&body, Vec::new()).expect("memory takes all tokens");
        let key = SigningKey::from_bytes(&issuer.seed());
        let signature = key.sign(&[CONTEXT, &body].concat());
        [&issuer.public().as_bytes()[..], &signature.to_bytes(), &body].concat()
    }

    /// The token that these bytes are, if one of `issuers` has made it for `holder` and it has not
    /// expired.
    ///
    /// # Errors
    /// [`TokenError`], the first of its reasons that holds.
    pub fn check(
        bytes: &[u8],
        issuers: &TrustedKeys,
        holder: &PublicKey,
        unix_s: u64,
    ) -> Result<Self, TokenError> {
        let (signed_by, body) = bytes.split_at_checked(SIGNED_BY).ok_or(TokenError::Malformed)?;
        let (issuer, signature) =
            signed_by.split_first_chunk::<32>().ok_or(TokenError::Malformed)?;
        let (parsed, behind) =
            postcard::take_from_bytes::<TokenBody>(body).map_err(|_| TokenError::Malformed)?;
        if !behind.is_empty() {
            return Err(TokenError::Malformed);
        }
        if !issuers.contains(&PublicKey::from_bytes(*issuer)) {
            return Err(TokenError::Foreign);
        }
        let signature = Signature::from_slice(signature).map_err(|_| TokenError::Malformed)?;
        let key = VerifyingKey::from_bytes(issuer).map_err(|_| TokenError::Foreign)?;
        let is_signed = key.verify_strict(&[CONTEXT, body].concat(), &signature).is_ok();
        match parsed {
            _ if !is_signed => Err(TokenError::Foreign),
            body if body.holder != *holder.as_bytes() => Err(TokenError::OtherHolder),
            body if body.expires_unix_s <= unix_s => Err(TokenError::Expired),
            TokenBody { subject, rights, expires_unix_s, .. } => {
                Ok(Self { subject, rights, holder: *holder, expires_unix_s })
            }
        }
    }

    /// Whether it is for the image that `name` has led to.
    ///
    /// # Errors
    /// [`TokenError::OtherImage`].
    pub(crate) fn check_subject(&self, name: &str, image: ContentHash) -> Result<(), TokenError> {
        let is_right = match &self.subject {
            TokenSubject::Image(hash) => *hash == image,
            TokenSubject::Name(allowed) => allowed == name,
        };
        if is_right { Ok(()) } else { Err(TokenError::OtherImage) }
    }
}
