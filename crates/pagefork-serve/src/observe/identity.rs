//! The ids of requests: unpredictable, or brought by the request.

use std::sync::atomic::{AtomicU64, Ordering};

use http::{HeaderMap, HeaderName, HeaderValue};

/// The field that carries the id.
pub(crate) const FIELD: HeaderName = HeaderName::from_static("x-request-id");

/// Bytes that an id from outside may have.
const SIZE_MAX: usize = 128;

/// Gives each request its id.
pub(crate) struct Identities {
    /// Whether ids that requests bring are kept.
    keep: bool,
    seed: u64,
    count: AtomicU64,
}

impl Identities {
    pub(crate) fn new(keep: bool) -> Identities {
        let mut seed = [0; 8];
        // Without randomness ids still differ from each other.
        if rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty()).is_err() {
            seed = u64::from(std::process::id()).to_le_bytes();
        }
        Identities { keep, seed: u64::from_le_bytes(seed), count: AtomicU64::new(0) }
    }

    /// The id that a request brings, if it is kept and harmless, or else a new one.
    pub(crate) fn of(&self, headers: &HeaderMap) -> HeaderValue {
        match headers.get(FIELD) {
            Some(brought) if self.keep && is_fit(brought.as_bytes()) => brought.clone(),
            _ => self.fresh(),
        }
    }

    /// A new one.
    pub(crate) fn fresh(&self) -> HeaderValue {
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        // Different for each count, because every step can be undone.
        let mut word = self.seed.wrapping_add(count.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^= word >> 31;
        let mut text = [0; 16];
        for (index, digit) in text.iter_mut().enumerate() {
            *digit = b"0123456789abcdef"[(word >> (60 - 4 * index)) as usize & 15];
        }
        HeaderValue::from_bytes(&text).expect("digits are allowed in fields")
    }
}

/// Whether a text can go into logs and into other programs' variables without harm.
fn is_fit(text: &[u8]) -> bool {
    let fit = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:+/=@".contains(byte);
    !text.is_empty() && text.len() <= SIZE_MAX && text.iter().all(fit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fresh_identities_differ() {
        let identities = Identities::new(false);
        let mut all: Vec<_> = (0..1000).map(|_| identities.fresh().as_bytes().to_vec()).collect();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 1000);
        assert!(all.iter().all(|text| text.len() == 16 && is_fit(text)));
    }

    #[test]
    fn an_identity_from_outside_is_kept_if_it_is_harmless() {
        let identities = Identities::new(true);
        let of = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(FIELD, HeaderValue::from_bytes(text.as_bytes()).unwrap());
            identities.of(&headers)
        };
        assert_eq!(of("a-b_c.D:1+/=@"), "a-b_c.D:1+/=@");
        for bad in ["", "a b", "a\"b", "\u{e9}", &"x".repeat(129)] {
            assert_ne!(of(bad), bad);
        }
    }
}
