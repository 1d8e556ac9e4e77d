//! Who else has an image, as its manifest says.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::base::error::ImageError;
use crate::file::signature::PublicKey;

/// Holders that a manifest can name: whoever is to ask them has to have a bound.
const HOLDERS_MAX: usize = 16;

/// Bytes of a URL.
const URL_MAX: usize = 1024;

/// Who else has an image, or will have it. It is a claim of who has signed the image: what reads it decides by itself
/// whom it asks, and where that is.
///
/// # Examples
///
/// ```
/// use pagefork_image::*;
///
/// let node = SecretKey::from_seed([7; 32]).public();
/// let holders = vec![SavedHolder::Node(node), SavedHolder::Objects("s3://bucket/images".into())];
/// let mut file = std::io::Cursor::new(Vec::new());
/// let manifest = Manifest { holders, ..Manifest::default() };
/// ImageDraft::new(manifest, &PageRuns::default()).write(&mut file)?;
///
/// let image = ImageReader::open(Box::new(file.into_inner()), &ImageLimits::default())?;
/// assert_eq!(image.manifest().holders[0].to_string(), format!("node {node}"));
/// # Ok::<(), ImageError>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum SavedHolder {
    /// The node with this key. Where it is, whoever knows it knows.
    Node(#[serde(with = "key_bytes")] PublicKey),
    /// The object store at this URL, which has nothing secret in it.
    Objects(String),
}

impl fmt::Display for SavedHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(key) => write!(f, "node {key}"),
            Self::Objects(url) => write!(f, "the object store {url}"),
        }
    }
}

/// Checks what a manifest can say of holders: 16 at most, each once, with URLs of 1,024 bytes at most, letters, digits
/// and `-._~:/@%+=,`, that have no user or password in them and do not end with a slash.
///
/// # Errors
/// [`ImageError::Invalid`] if it cannot say so.
///
/// # Examples
///
/// ```
/// use pagefork_image::{SavedHolder, check_holders};
///
/// let store = |url: &str| SavedHolder::Objects(url.to_owned());
/// assert!(check_holders(&[store("s3://bucket/images")]).is_ok());
/// assert!(check_holders(&[store("s3://user:password@bucket/images")]).is_err());
/// ```
pub fn check_holders(holders: &[SavedHolder]) -> Result<(), ImageError> {
    wrong_of(holders).map_or(Ok(()), |wrong| Err(ImageError::Invalid(wrong)))
}

/// What is wrong with what a manifest says of holders.
pub(crate) fn wrong_of(holders: &[SavedHolder]) -> Option<String> {
    if holders.len() > HOLDERS_MAX {
        let count = holders.len();
        return Some(format!("{count} holders of an image are named, more than {HOLDERS_MAX}"));
    }
    let mut seen = BTreeSet::new();
    for holder in holders {
        if let SavedHolder::Objects(url) = holder
            && let Some(wrong) = wrong_of_url(url)
        {
            return Some(format!("the URL of a holder {wrong}"));
        }
        if !seen.insert(holder) {
            return Some(format!("{holder} is named twice as a holder of an image"));
        }
    }
    None
}

fn wrong_of_url(url: &str) -> Option<String> {
    if url.len() > URL_MAX {
        return Some(format!("has {} bytes, more than {URL_MAX}", url.len()));
    }
    // It is shown on terminals, in lines that people copy, and written to logs. Queries can have secrets in them.
    let may_be = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:/@%+=,".contains(&byte);
    if !url.bytes().all(may_be) {
        return Some(
            "has characters that are not letters, digits or one of -._~:/@%+=,".to_owned(),
        );
    }
    // Others get to see it, so it is not shown here either.
    let Some((_, rest)) = url.split_once("://") else {
        return Some("is none: it has no ://".to_owned());
    };
    let authority = rest.split('/').next().unwrap_or_default();
    if authority.contains('@') {
        return Some("has a user or a password in it".to_owned());
    }
    // One place has one URL.
    rest.ends_with('/').then(|| "ends with a slash".to_owned())
}

/// Keys as their bytes.
mod key_bytes {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::file::signature::PublicKey;

    pub(super) fn serialize<S: Serializer>(key: &PublicKey, to: S) -> Result<S::Ok, S::Error> {
        key.as_bytes().serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PublicKey, D::Error> {
        <[u8; 32]>::deserialize(from).map(PublicKey::from_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holders_are_few_each_is_named_once_and_their_urls_are_short_and_without_secrets() {
        let node = |number: usize| SavedHolder::Node(PublicKey::from_bytes([number as u8; 32]));
        let store = |url: &str| SavedHolder::Objects(url.to_owned());
        let url_of = |size: usize| format!("s3://bucket/{}", "a".repeat(size - 12));
        let all: Vec<_> = (0..HOLDERS_MAX).map(node).collect();
        check_holders(&all).unwrap();
        check_holders(&[store(&url_of(URL_MAX)), store("file:///srv/a@b")]).unwrap();
        for (holders, complaint) in [
            ((0..=HOLDERS_MAX).map(node).collect(), "17 holders"),
            (vec![node(1), store("s3://a/b"), node(1)], "named twice"),
            (vec![store("s3://a/b"), store("s3://a/b")], "named twice"),
            (vec![store(&url_of(URL_MAX + 1))], "1025 bytes"),
            (vec![store("")], "is none"),
            (vec![store("bucket")], "is none"),
            (vec![store("s3://a b")], "characters"),
            (vec![store("s3://a/\x1b[2J")], "characters"),
            (vec![store("s3://b\u{fc}cket/a")], "characters"),
            (vec![store("s3://user:secret@a/b")], "a password"),
            (vec![store("s3://key@a")], "a password"),
            (vec![store("s3:/user:secret@a/b")], "is none"),
            (vec![store("s3://a/b?sig=secret")], "characters"),
            (vec![store("s3://a/$(secret)")], "characters"),
            (vec![store("s3://a/b/")], "a slash"),
        ] {
            let error = check_holders(&holders).unwrap_err().to_string();
            assert!(error.contains(complaint) && !error.contains("secret"), "{error}");
        }
    }
}
