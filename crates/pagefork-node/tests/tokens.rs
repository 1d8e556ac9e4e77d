//! Nodes that are not let in for all images have those for which they show a token, as long as it counts.

#![allow(clippy::single_range_in_vec_init)] // Extents of one range are meant.

#[path = "common/datagrams.rs"]
mod datagrams;
#[path = "common/groups.rs"]
mod groups;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use datagrams::PLACES;
use groups::Groups;
use pagefork_image::{
    ContentHash, ImageDraft, ImageStore, Manifest, PageRuns, SavedCode, SavedInstance, SecretKey,
    TrustedKeys,
};
use pagefork_node::{
    MemoryPeer, MemoryServer, NodeError, PageTimes, RemoteImage, ServeOptions, fetch_code,
    fetch_image,
};
use pagefork_postcopy::{FetchPlan, ImageToken, TokenRights, TokenSubject};

const GROUPS: u64 = 20;

/// Keys of the memory node, who fetches, who made the images, and somebody else.
const NODE: u8 = 1;
const RUNNER: u8 = 2;
const AUTHOR: u8 = 3;
const STRANGER: u8 = 4;

fn key(seed: u8) -> SecretKey {
    SecretKey::from_seed([seed; 32])
}

/// A memory node that takes tokens that it has made itself, and knows nobody; with two images.
struct Pair {
    here: ImageStore,
    peer: MemoryPeer,
    image: ContentHash,
}

impl Pair {
    fn new(name: &str, place: &str) -> Self {
        let transport = if place.starts_with("quic") { "quic" } else { "tls" };
        let path =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("tokens-{name}-{transport}"));
        let _ = fs::remove_dir_all(&path);
        let there = ImageStore::open(path.join("there")).unwrap();
        let code = there.save_code(b"machine code").unwrap().hash();
        let save = |name: &str, byte: u8| {
            let instance = SavedInstance {
                extents: vec![0..GROUPS << 14],
                code: SavedCode { hash: code, ..SavedCode::default() },
                ..SavedInstance::default()
            };
            let manifest = Manifest { instances: vec![instance], ..Manifest::default() };
            let pages = PageRuns::new(vec![vec![(0, vec![byte; (GROUPS << 14) as usize])]]);
            let draft = ImageDraft::new(manifest, &pages).sign_with(&[key(AUTHOR)]);
            let image = there.save(draft).unwrap().hash();
            there.set_name(name, image).unwrap();
            image
        };
        let image = save("counter", 7);
        save("other", 8);
        let mut options = ServeOptions::new(key(NODE));
        options.issuers = TrustedKeys::from_iter([key(NODE).public()]);
        let server = MemoryServer::bind(place, there, options).unwrap();
        let peer = MemoryPeer { address: server.address().to_string(), key: key(NODE).public() };
        thread::spawn(move || server.run());
        Self { here: ImageStore::open(path.join("here")).unwrap(), peer, image }
    }

    fn token(&self) -> ImageToken {
        ImageToken {
            subject: TokenSubject::Image(self.image),
            rights: TokenRights { lease: true, take_over: false },
            holder: key(RUNNER).public(),
            expires_unix_s: unix_s() + 3600,
        }
    }

    fn open(&self, name: &str, token: &[u8], plan: FetchPlan) -> Result<RemoteImage, NodeError> {
        let (signers, times) = (signers(), PageTimes::default());
        RemoteImage::open_by_token(&self.peer, &key(RUNNER), name, token, &signers, plan, times)
    }

    /// Why the image does not come by a token.
    fn refused(&self, name: &str, token: &[u8]) -> String {
        match self.open(name, token, FetchPlan::default()).map(drop) {
            Err(error @ NodeError::NotAllowed { .. }) => error.to_string(),
            other => panic!("{other:?}"),
        }
    }
}

fn signers() -> TrustedKeys {
    TrustedKeys::from_iter([key(AUTHOR).public()])
}

fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

#[test]
fn a_token_gives_its_image_with_its_code_and_nothing_else() {
    for place in PLACES {
        let pair = Pair::new("gives", place);
        let (token, times) = (pair.token().sign(&key(NODE)), PageTimes::default().node);
        let whole = |name: &str| {
            fetch_image(&pair.peer, &key(RUNNER), name, &pair.here, &signers(), &times)
        };
        assert!(whole("counter").is_err(), "it was shown nothing");
        let image = pair.open("counter", &token, FetchPlan::default()).unwrap();
        assert_eq!(image.head().hash(), pair.image);
        fetch_code(&pair.peer, &key(RUNNER), image.head(), &pair.here, &times).unwrap();
        let groups = Groups::new();
        image.fetch_into(groups.clone()).unwrap().join().unwrap();
        let found = groups.found();
        assert!(found.len() as u64 == GROUPS && found.values().flatten().all(|byte| *byte == 7));
        // Whole, too, by whatever name, and the other one in no way.
        assert_eq!(whole("counter").unwrap().hash(), pair.image);
        assert!(whole("other").is_err());
        assert!(pair.refused("other", &token).contains("none of that image"));
        // Another node has nothing of it.
        let (signers, plan, times) = (signers(), FetchPlan::default(), PageTimes::default());
        let other = RemoteImage::open_by_token(
            &pair.peer,
            &key(STRANGER),
            "counter",
            &token,
            &signers,
            plan,
            times,
        );
        assert!(matches!(other, Err(NodeError::NotAllowed { .. })), "{other:?}");
        let code =
            fetch_image(&pair.peer, &key(STRANGER), "counter", &pair.here, &signers, &times.node);
        assert!(code.is_err());
    }
}

#[test]
fn tokens_that_do_not_do_are_refused_by_an_error_that_says_why() {
    for place in PLACES {
        let pair = Pair::new("refused", place);
        let with = |change: fn(&mut ImageToken), issuer: u8| {
            let mut token = pair.token();
            change(&mut token);
            pair.refused("counter", &token.sign(&key(issuer)))
        };
        let expired = with(|token| token.expires_unix_s = unix_s() - 1, NODE);
        assert!(expired.contains("expired") && expired.contains("counter"), "{expired}");
        let foreign = with(|_| {}, STRANGER);
        assert!(foreign.contains("takes tokens of"), "{foreign}");
        let of_another = with(|token| token.holder = key(STRANGER).public(), NODE);
        assert!(of_another.contains("for this node"), "{of_another}");
        let other_image =
            with(|token| token.subject = TokenSubject::Image(ContentHash::of(b"other")), NODE);
        assert!(other_image.contains("none of that image"), "{other_image}");
        let mut altered = pair.token().sign(&key(NODE));
        altered[40] ^= 1;
        pair.refused("counter", &altered);
        assert!(pair.refused("counter", b"").contains("needs a token"));
        // What is not there is told apart from what one may not have by nobody.
        let missing = pair.refused("missing", &pair.token().sign(&key(NODE)));
        assert_eq!(
            missing.replace("missing", "other"),
            pair.refused("other", &pair.token().sign(&key(NODE)))
        );
    }
}

#[test]
fn an_image_ends_with_its_token_and_so_does_its_code() {
    for place in PLACES {
        let pair = Pair::new("ends", place);
        let mut token = pair.token();
        token.expires_unix_s = unix_s() + 2;
        let plan = FetchPlan { certain: false, background: false, ..FetchPlan::default() };
        let image = pair.open("counter", &token.sign(&key(NODE)), plan).unwrap();
        let head = Arc::clone(image.head());
        // That it was shown is no reason to have pages without it, beyond its end or with other rights.
        assert!(pair.refused("counter", b"").contains("needs a token"));
        let fetch = image.fetch_into(Groups::new()).unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        while !fetch.is_finished() {
            assert!(Instant::now() < until, "it goes on");
            thread::sleep(Duration::from_millis(10));
        }
        let ended = fetch.join().unwrap_err();
        assert!(matches!(ended, NodeError::NotAllowed { .. }), "{ended:?}");
        assert!(unix_s() >= token.expires_unix_s);
        let times = PageTimes::default().node;
        assert!(fetch_code(&pair.peer, &key(RUNNER), &head, &pair.here, &times).is_err());
    }
}

/// Who may have nothing takes a quarter of the connections at most, and none for long by talking.
#[test]
fn strangers_leave_room_for_those_who_are_known() {
    for place in PLACES {
        let pair = Pair::new("strangers", place);
        let (token, plan) = (pair.token().sign(&key(NODE)), FetchPlan::default());
        let plan = FetchPlan { certain: false, background: false, ..plan };
        let all: Vec<_> =
            (0..16).map(|_| pair.open("counter", &token, plan.clone()).unwrap()).collect();
        assert!(pair.open("counter", &token, plan.clone()).is_err(), "there are too many");
        drop(all);
        // They are gone when the node has seen that.
        let until = Instant::now() + Duration::from_secs(60);
        while pair.open("counter", &token, plan.clone()).is_err() {
            assert!(Instant::now() < until, "there is no room any more");
        }
    }
}
