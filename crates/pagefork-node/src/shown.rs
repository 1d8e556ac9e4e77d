//! Tokens that nodes have shown: while one counts, its image's code is given without it being shown again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use pagefork_image::{ContentHash, PublicKey};

/// Who has shown a token for what, and until when it counts.
#[derive(Debug, Default)]
pub(crate) struct ShownTokens(Mutex<BTreeMap<(PublicKey, ContentHash), Instant>>);

impl ShownTokens {
    /// A node has shown a token. It was checked, so nobody but who signs tokens makes this grow.
    pub(crate) fn keep(&self, peer: PublicKey, image: ContentHash, until: Instant) {
        let mut shown = self.current();
        let latest = shown.entry((peer, image)).or_insert(until);
        // The one that counts longest.
        *latest = (*latest).max(until);
    }

    /// The images for which a node has shown tokens that still count.
    pub(crate) fn images(&self, peer: &PublicKey) -> BTreeSet<ContentHash> {
        let shown = self.current();
        shown.keys().filter(|(of, _)| of == peer).map(|(_, image)| *image).collect()
    }

    /// Those that still count.
    fn current(&self) -> MutexGuard<'_, BTreeMap<(PublicKey, ContentHash), Instant>> {
        let mut shown = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        shown.retain(|_, until| now < *until);
        shown
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_token_counts_until_it_expires_and_for_its_node_alone() {
        let shown = ShownTokens::default();
        let [one, other] = [1, 2].map(|byte| PublicKey::from_bytes([byte; 32]));
        let [near, far, over] = [b"near", b"farr", b"over"].map(|name| ContentHash::of(name));
        let hour = Instant::now() + Duration::from_secs(3600);
        shown.keep(one, near, hour);
        // The end of another one does not end it, whichever was shown first.
        shown.keep(one, near, Instant::now());
        shown.keep(one, far, Instant::now());
        shown.keep(one, far, hour);
        shown.keep(one, over, Instant::now());
        assert_eq!(shown.images(&one), BTreeSet::from([near, far]));
        assert_eq!(shown.images(&other), BTreeSet::new());
    }
}
