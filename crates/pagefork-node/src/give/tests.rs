//! What several connections of one peer depend on.

#![allow(clippy::single_range_in_vec_init)] // Extents of one range are meant.

use pagefork_image::{ImageDraft, Manifest, PageRuns, SavedCode, SavedInstance};
use pagefork_postcopy::{
    FrameDecoder, GroupRange, Hello, Message, PROTOCOL_VERSION, Priority, encode,
};

use super::*;

/// A store with an image that has no name: collection removes it unless somebody depends on it.
struct GivingStore {
    path: std::path::PathBuf,
    images: ImageStore,
    hash: ContentHash,
    leases: Leases,
    shown: ShownTokens,
}

impl GivingStore {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("pagefork-{name}-{}", std::process::id()));
        let images = ImageStore::open(&path).unwrap();
        let code = images.save_code(b"machine code").unwrap().hash();
        let code = SavedCode { hash: code, ..SavedCode::default() };
        let instance =
            SavedInstance { code, extents: vec![0..1 << 16], ..SavedInstance::default() };
        let manifest = Manifest { instances: vec![instance], ..Manifest::default() };
        let pages = PageRuns::new(vec![vec![(0, vec![7; 1 << 16])]]);
        let hash = images.save(ImageDraft::new(manifest, &pages)).unwrap().hash();
        Self { path, images, hash, leases: Leases::default(), shown: ShownTokens::default() }
    }

    /// A connection of the peer, greeted.
    fn connect(&self) -> PageGiver<'_> {
        let peer = PublicKey::from_bytes([2; 32]);
        let (kept, times) = ((&self.leases, &self.shown), NodeTimes::default());
        let mut giver = PageGiver::new(&self.images, kept, peer, PeerAccess::All, &times);
        let hello = Hello { version: PROTOCOL_VERSION, zstd: false, certain_groups: 0 };
        let said = said(&mut giver, &[Message::Hello(hello)]);
        assert!(matches!(said[..], [Message::Welcome(_)]), "{said:?}");
        giver
    }

    fn open(&self, image: u32) -> Message {
        Message::Open { image, name: self.hash.to_string(), token: Vec::new(), head: None }
    }

    /// Whether the image is there after a collection.
    fn is_spared(&self) -> bool {
        self.images.collect().unwrap();
        self.images.find(&self.hash.to_string()).is_ok()
    }
}

impl Drop for GivingStore {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// What a memory node says to messages that come in one flight.
fn said(giver: &mut PageGiver<'_>, messages: &[Message]) -> Vec<Message> {
    let bytes: Vec<u8> = messages.iter().flat_map(encode).collect();
    let mut to_do = VecDeque::from(giver.node.handle(MemoryInput::Received(&bytes), now()));
    let mut decoder = FrameDecoder::default();
    while let Some(output) = to_do.pop_front() {
        match output {
            MemoryOutput::Send { bytes, .. } => {
                decoder.push(&bytes);
                to_do.extend(giver.node.handle(MemoryInput::Taken(bytes.len()), now()));
            }
            MemoryOutput::Close(why) => panic!("{why}"),
            output => {
                let mut next = VecDeque::from(giver.carry_out(output));
                next.append(&mut to_do);
                to_do = next;
            }
        }
    }
    std::iter::from_fn(|| decoder.message().unwrap()).collect()
}

#[test]
fn what_one_connection_of_a_peer_gives_back_another_one_still_has() {
    let giving = GivingStore::new("two-connections");
    let [mut first, mut second] = [(); 2].map(|()| giving.connect());
    said(&mut first, &[giving.open(0)]);
    said(&mut second, &[giving.open(0)]);
    said(&mut first, &[Message::Close { image: 0 }]);
    drop(first);
    // The second one is lost, and may come back.
    drop(second);
    assert!(giving.is_spared(), "the lease of the second connection went with the first one");
    // Nobody gives that back: it ends by itself, as do those of all who were lost before.
    for _ in 0..10 {
        said(&mut giving.connect(), &[giving.open(0)]);
    }
    assert_eq!(giving.leases.connections(), 0, "leases of connections stay that are lost");
    assert!(giving.is_spared());
}

#[test]
fn who_gives_back_an_image_has_it_leased_no_more() {
    let giving = GivingStore::new("given-back");
    let mut giver = giving.connect();
    said(&mut giver, &[giving.open(0)]);
    assert_eq!(giving.leases.connections(), 1);
    said(&mut giver, &[Message::Close { image: 0 }]);
    assert!(!giving.is_spared(), "a lease stays that was given back");
}

#[test]
fn an_image_that_is_opened_anew_while_it_is_closed_stays_open_and_leased() {
    let giving = GivingStore::new("opened-anew");
    let mut giver = giving.connect();
    said(&mut giver, &[giving.open(0)]);
    let at_once = [giving.open(1), Message::Close { image: 0 }];
    said(&mut giver, &at_once);
    let groups = vec![GroupRange { first: 3, count: 1 }];
    let ask = Message::Ask { image: 1, priority: Priority::Urgent, groups };
    let given = said(&mut giver, &[ask]);
    assert!(matches!(given[..], [Message::Group { image: 1, group: 3, .. }]), "{given:?}");
    drop(giver);
    assert!(giving.is_spared(), "it has a lease by its new number");
}
