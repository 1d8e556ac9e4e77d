//! Images that peers depend on.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use pagefork_image::{ContentHash, PublicKey, StoredImage};

/// A peer has so many images leased at most, each of which takes descriptors: of more, those that end first are over.
const OF_A_PEER_MAX: usize = 256;

/// Images that peers depend on, each until a moment, whatever becomes of their connections:
/// collection spares them as long as they are here.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    all: Mutex<BTreeMap<PublicKey, PeerLeases>>,
    changed: Condvar,
    connections: AtomicU64,
}

/// A connection of a peer. Each has leases of its own, so what one of them gives back the others keep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LeaseHolder {
    peer: PublicKey,
    connection: u64,
}

type PeerLeases = BTreeMap<ContentHash, LeasedImage>;

/// An image is open once, however often it is leased: descriptors of the process are few.
#[derive(Debug)]
struct LeasedImage {
    image: StoredImage,
    /// By the connections that are there.
    until: BTreeMap<u64, Instant>,
    /// Of all connections that are lost together: nobody gives theirs back.
    parted: Option<Instant>,
}

impl LeasedImage {
    fn last(&self) -> Option<Instant> {
        self.until.values().copied().max().max(self.parted)
    }

    fn forget_until(&mut self, now: Instant) {
        self.until.retain(|_, until| *until > now);
        self.parted = self.parted.filter(|until| *until > now);
    }

    fn next_end(&self) -> Option<Instant> {
        self.until.values().copied().chain(self.parted).min()
    }
}

impl Leases {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<PublicKey, PeerLeases>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more connection of a peer.
    pub(crate) fn holder(&self, peer: PublicKey) -> LeaseHolder {
        LeaseHolder { peer, connection: self.connections.fetch_add(1, Ordering::Relaxed) }
    }

    pub(crate) fn keep(&self, holder: LeaseHolder, image: &StoredImage, until: Instant) {
        let LeaseHolder { peer, connection } = holder;
        let mut all = self.lock();
        // Whoever has it leased already has it open.
        let open = all.values().find_map(|leases| leases.get(&image.hash()));
        let open = open.map_or_else(|| image.clone(), |leased| leased.image.clone());
        let of_peer = all.entry(peer).or_default();
        let leased = of_peer.entry(image.hash()).or_insert_with(|| LeasedImage {
            image: open,
            until: BTreeMap::new(),
            parted: None,
        });
        leased.until.insert(connection, until);
        if of_peer.len() > OF_A_PEER_MAX
            && let Some(first) = of_peer.iter().min_by_key(|(_, leased)| leased.last())
        {
            let first = *first.0;
            of_peer.remove(&first);
        }
        self.changed.notify_one();
    }

    /// The lease of this connection is over, if it had one.
    pub(crate) fn end(&self, holder: LeaseHolder, image: ContentHash) {
        self.change(holder, |hash, leased| {
            if *hash == image {
                leased.until.remove(&holder.connection);
            }
        });
    }

    /// The connection is lost, and what it had not given back stays leased for as long as it was to be.
    pub(crate) fn part(&self, holder: LeaseHolder) {
        self.change(holder, |_, leased| {
            leased.parted = leased.parted.max(leased.until.remove(&holder.connection));
        });
    }

    fn change(&self, holder: LeaseHolder, mut of: impl FnMut(&ContentHash, &mut LeasedImage)) {
        let mut all = self.lock();
        let Some(of_peer) = all.get_mut(&holder.peer) else { return };
        of_peer.retain(|hash, leased| {
            of(hash, leased);
            leased.last().is_some()
        });
        if of_peer.is_empty() {
            all.remove(&holder.peer);
        }
    }

    /// Leases of connections that are there.
    #[cfg(test)]
    pub(crate) fn connections(&self) -> usize {
        self.lock().values().flat_map(BTreeMap::values).map(|leased| leased.until.len()).sum()
    }

    /// Forgets each when it is over, whether anybody connects or not.
    pub(crate) fn forget_as_they_end(&self) -> ! {
        let mut all = self.lock();
        loop {
            let now = Instant::now();
            all.retain(|_, of_peer| {
                of_peer.retain(|_, leased| {
                    leased.forget_until(now);
                    leased.last().is_some()
                });
                !of_peer.is_empty()
            });
            let next =
                all.values().flat_map(BTreeMap::values).filter_map(LeasedImage::next_end).min();
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

    /// Files of this process that are this one.
    fn descriptors(of: ContentHash) -> usize {
        let all = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        let paths = all.filter_map(|entry| std::fs::read_link(entry.path()).ok());
        paths.filter(|path| path.ends_with(of.to_string())).count()
    }

    /// An image that is like no other with another number.
    fn saved_image(images: &ImageStore, number: usize) -> StoredImage {
        let manifest = Manifest { wasi: number.to_le_bytes().to_vec(), ..Manifest::default() };
        images.save(ImageDraft::new(manifest, &PageRuns::default())).unwrap()
    }

    #[test]
    fn an_image_is_open_once_however_many_connections_and_peers_have_leased_it() {
        let path = std::env::temp_dir().join(format!("pagefork-leased-{}", std::process::id()));
        let images = ImageStore::open(&path).unwrap();
        let hash = saved_image(&images, 1).hash();
        let (leases, until) = (Leases::default(), Instant::now() + Duration::from_secs(1000));
        let [one, other] = [2, 3].map(|seed| SecretKey::from_seed([seed; 32]).public());
        let mut holders = Vec::new();
        for number in 0..100 {
            let holder = leases.holder(if number % 2 == 0 { one } else { other });
            leases.keep(holder, &images.load(hash).unwrap(), until);
            holders.push(holder);
        }
        assert_eq!(descriptors(hash), 1);
        // All but two are lost, of which nothing is left but the longest.
        holders[..98].iter().for_each(|holder| leases.part(*holder));
        assert!(leases.lock().values().flat_map(BTreeMap::values).all(|of| of.until.len() == 1));
        holders[98..].iter().for_each(|holder| leases.end(*holder, hash));
        images.collect().unwrap();
        assert!(images.find(&hash.to_string()).is_ok(), "what others had was given back with it");
        drop(leases);
        images.collect().unwrap();
        assert!(images.find(&hash.to_string()).is_err(), "nobody needs it");
        std::fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn a_peer_has_so_many_images_leased_and_no_more() {
        let path =
            std::env::temp_dir().join(format!("pagefork-leased-many-{}", std::process::id()));
        let images = ImageStore::open(&path).unwrap();
        let leases = Leases::default();
        let begun = Instant::now() + Duration::from_secs(1000);
        let peer = SecretKey::from_seed([2; 32]).public();
        for number in 0..=OF_A_PEER_MAX {
            let image = saved_image(&images, number);
            leases.keep(leases.holder(peer), &image, begun + Duration::from_secs(number as u64));
        }
        images.collect().unwrap();
        assert_eq!(images.images().unwrap().len(), OF_A_PEER_MAX);
        std::fs::remove_dir_all(path).unwrap();
    }

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
