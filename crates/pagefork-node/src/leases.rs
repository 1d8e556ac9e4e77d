//! Images that peers depend on.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use pagefork_image::{ContentHash, PublicKey, StoredImage};

/// A peer has so many at most: of more, those that end first are over.
const OF_A_PEER_MAX: usize = 1024;

/// Images that peers depend on, each until a moment, whatever becomes of their connections:
/// collection spares them as long as they are here.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    all: Mutex<BTreeMap<(LeaseHolder, ContentHash), LeasedImage>>,
    changed: Condvar,
    connections: AtomicU64,
}

/// A connection of a peer. Each has leases of its own, so what one of them gives back the others keep.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct LeaseHolder {
    peer: PublicKey,
    connection: u64,
}

#[derive(Debug)]
struct LeasedImage {
    _image: StoredImage,
    until: Instant,
}

impl Leases {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<(LeaseHolder, ContentHash), LeasedImage>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more connection of a peer.
    pub(crate) fn holder(&self, peer: PublicKey) -> LeaseHolder {
        LeaseHolder { peer, connection: self.connections.fetch_add(1, Ordering::Relaxed) }
    }

    pub(crate) fn keep(&self, holder: LeaseHolder, image: &StoredImage, until: Instant) {
        let lease = LeasedImage { _image: image.clone(), until };
        let mut all = self.lock();
        all.insert((holder, image.hash()), lease);
        let of_peer = || all.iter().filter(|((of, _), _)| of.peer == holder.peer);
        if of_peer().count() > OF_A_PEER_MAX
            && let Some(first) = of_peer().min_by_key(|(_, lease)| lease.until).map(|(key, _)| *key)
        {
            all.remove(&first);
        }
        self.changed.notify_one();
    }

    /// The lease of this connection is over, if it had one.
    pub(crate) fn end(&self, holder: LeaseHolder, image: ContentHash) {
        self.lock().remove(&(holder, image));
    }

    /// Forgets each when it is over, whether anybody connects or not.
    pub(crate) fn forget_as_they_end(&self) -> ! {
        let mut all = self.lock();
        loop {
            let now = Instant::now();
            all.retain(|_, lease| lease.until > now);
            let next = all.values().map(|lease| lease.until).min();
            all = match next {
                Some(until) => {
                    let waited = self.changed.wait_timeout(all, until - now);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(all).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;
    use std::time::Duration;

    use pagefork_image::{
        ImageDraft, ImageStore, Manifest, PageRuns, SavedCode, SavedInstance, SecretKey,
    };

    use super::*;

    #[test]
    fn an_image_is_spared_until_its_last_lease_is_over_though_nobody_connects() {
        let path = std::env::temp_dir().join(format!("pagefork-leases-{}", std::process::id()));
        let images = ImageStore::open(&path).unwrap();
        let key = SecretKey::from_seed([1; 32]);
        let code = images.save_code(b"machine code").unwrap().hash();
        let instance = SavedInstance {
            code: SavedCode { hash: code, ..SavedCode::default() },
            ..SavedInstance::default()
        };
        let manifest = Manifest { instances: vec![instance], ..Manifest::default() };
        let pages = PageRuns::new(vec![Vec::new()]);
        let saved =
            images.save(ImageDraft::new(manifest, &pages).sign_with(std::slice::from_ref(&key)));
        let hash = saved.unwrap().hash();
        let leases = Arc::new(Leases::default());
        let ending = Arc::clone(&leases);
        thread::spawn(move || ending.forget_as_they_end());
        {
            let image = images.load(hash).unwrap();
            let [first, second] =
                [2, 3].map(|seed| leases.holder(SecretKey::from_seed([seed; 32]).public()));
            leases.keep(first, &image, Instant::now() + Duration::from_secs(1000));
            leases.keep(second, &image, Instant::now() + Duration::from_millis(20));
            // Its own lease is renewed, and then given back.
            leases.keep(first, &image, Instant::now() + Duration::from_secs(2000));
            drop(image);
            images.collect().unwrap();
            assert!(images.find(&hash.to_string()).is_ok(), "it is leased");
            leases.end(first, hash);
        }
        let begun = Instant::now();
        while !leases.lock().is_empty() {
            assert!(begun.elapsed() < Duration::from_secs(60), "its lease does not end");
            thread::sleep(Duration::from_millis(5));
        }
        images.collect().unwrap();
        assert!(images.find(&hash.to_string()).is_err(), "nobody needs it");
        std::fs::remove_dir_all(path).unwrap();
    }
}
