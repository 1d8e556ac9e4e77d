//! Groups that other images of a node have as well do not travel to it.

#![allow(clippy::single_range_in_vec_init)] // Extents of one range are meant.

#[path = "common/datagrams.rs"]
mod datagrams;
#[path = "common/groups.rs"]
mod groups;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use datagrams::PLACES;
use groups::Groups;
use pagefork_image::{
    ContentHash, ImageDraft, ImageStore, Manifest, PageRuns, SavedInstance, SecretKey, TrustedKeys,
};
use pagefork_node::{
    FetchReport, MemoryPeer, MemoryServer, PageTimes, RemoteImage, ServeOptions, fetch_image,
};
use pagefork_postcopy::FetchPlan;

const GROUP: usize = 16 << 10;
const GROUPS: usize = 512;

fn key(seed: u8) -> SecretKey {
    SecretKey::from_seed([seed; 32])
}

/// Nothing of it compresses.
fn contents() -> Vec<u8> {
    let words = (0..(GROUPS * GROUP / 4) as u32).map(|n| n.wrapping_mul(0x9e37_79b9) ^ (n >> 7));
    words.flat_map(u32::to_le_bytes).collect()
}

/// A memory node with the images `first` and `second`, of which few groups differ, and a store with the
/// first one.
struct Pair {
    here: ImageStore,
    first: ContentHash,
    peer: MemoryPeer,
    second: Vec<u8>,
}

/// Groups of the second image that the first one has not.
const CHANGED: [usize; 3] = [0, 200, 511];

impl Pair {
    fn new(name: &str, place: &str) -> Self {
        let transport = if place.starts_with("quic") { "quic" } else { "tls" };
        let name = format!("here-{name}-{transport}");
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = fs::remove_dir_all(&path);
        let there = ImageStore::open(path.join("there")).unwrap();
        let save = |name: &str, bytes: Vec<u8>| {
            let extents = vec![0..bytes.len() as u64];
            let instance = SavedInstance { extents, ..SavedInstance::default() };
            let manifest = Manifest { instances: vec![instance], ..Manifest::default() };
            let pages = PageRuns::new(vec![vec![(0, bytes)]]);
            let draft = ImageDraft::new(manifest, &pages).sign_with(&[key(3)]);
            let image = there.save(draft).unwrap().hash();
            there.set_name(name, image).unwrap();
            image
        };
        let mut second = contents();
        CHANGED.iter().for_each(|group| second[group * GROUP] ^= 1);
        let first = save("first", contents());
        save("second", second.clone());
        let mut options = ServeOptions::new(key(1));
        options.access = Arc::new(|_| true);
        let server = MemoryServer::bind(place, there, options).unwrap();
        let peer = MemoryPeer { address: server.address().to_string(), key: key(1).public() };
        thread::spawn(move || server.run());
        let here = ImageStore::open(path.join("here")).unwrap();
        let pair = Self { here, first, peer, second };
        let times = PageTimes::default().node;
        fetch_image(&pair.peer, &key(2), "first", &pair.here, &signers(), &times).unwrap();
        pair
    }

    /// Gets the second image, and checks it.
    fn fetch(&self, looks: bool) -> FetchReport {
        let plan = FetchPlan { certain: false, ..FetchPlan::default() };
        let times = PageTimes::default();
        let image = RemoteImage::open(&self.peer, &key(2), "second", &signers(), plan, times);
        let mut image = image.unwrap();
        if looks {
            image.look_in(&self.here);
        }
        let groups = Groups::new();
        let report = image.fetch_into(groups.clone()).unwrap().join().unwrap();
        let groups = groups.found();
        assert!(groups.values().flatten().eq(self.second.iter()));
        report
    }
}

fn signers() -> TrustedKeys {
    TrustedKeys::from_iter([key(3).public()])
}

#[test]
fn of_an_image_that_is_like_one_in_the_store_only_what_differs_travels() {
    for place in PLACES {
        let pair = Pair::new("like", place);
        let report = pair.fetch(true);
        assert_eq!(report.plan.here, (GROUPS - CHANGED.len()) as u64);
        // Three groups; of the others a hash, and a proof of nine.
        let all = (GROUPS * GROUP) as u64;
        assert!(report.received < all / 4, "{} bytes of {all}", report.received);
        assert!(report.sent < all / 8, "{} bytes", report.sent);
        let report = pair.fetch(false);
        assert_eq!(report.plan.here, 0);
        assert!(report.received > all, "who does not look has all come");
    }
}

#[test]
fn a_group_of_the_store_that_is_damaged_is_fetched() {
    for place in PLACES {
        let pair = Pair::new("damaged", place);
        let file = pair.here.path().join("images").join(pair.first.to_string());
        let start = pair.here.load(pair.first).unwrap().chain().tip().data_start() as usize;
        let mut bytes = fs::read(&file).unwrap();
        let damaged = [7, 8, 300, 510];
        damaged.iter().for_each(|group| bytes[start + group * GROUP + 99] ^= 0x10);
        fs::write(&file, bytes).unwrap();
        let report = pair.fetch(true);
        assert_eq!(report.plan.here, (GROUPS - CHANGED.len() - damaged.len()) as u64);
        assert_eq!(report.connections, 1, "nobody is left for that");
    }
}
