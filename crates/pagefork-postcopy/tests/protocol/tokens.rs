//! Tokens: what they are for, and what they are not.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use pagefork_image::{ContentHash, ImageHead, ImageReader, PublicKey, SecretKey, TrustedKeys};
use pagefork_postcopy::{
    ConnectionId, EndReason, FetchLimits, FetchPlan, Hello, HolderLoss, ImageToken, MemoryInput,
    MemoryNode, MemoryOutput, Message, Moment, PROTOCOL_VERSION, PeerAccess, RunningInput,
    RunningNode, RunningOutput, ServeLimits, ServedImage, TokenError, TokenRights, TokenSubject,
    encode,
};

use crate::network::{Faults, Network, PEER, image, start};

const MINUTE: Duration = Duration::from_secs(60);

fn issuer() -> SecretKey {
    SecretKey::from_seed([9; 32])
}

fn network() -> Network {
    let mut network = Network::new(image(10, 1), 1, Faults::none());
    network.access = PeerAccess::Some {
        images: BTreeSet::new(),
        issuers: TrustedKeys::from_iter([issuer().public()]),
    };
    network
}

fn token(network: &Network) -> ImageToken {
    ImageToken {
        subject: TokenSubject::Image(network.image.hash()),
        rights: TokenRights { lease: true, take_over: false },
        holder: PublicKey::from_bytes(PEER),
        expires_unix_s: start().unix_s + 600,
    }
}

/// Why a peer with this token does not get the image; `None` if it does.
fn refused(mut network: Network, token: Vec<u8>) -> Option<EndReason> {
    network.open(FetchPlan::default());
    network.connect(token);
    if network.run(MINUTE, Network::is_whole) {
        return None;
    }
    assert!(network.groups.is_empty());
    assert!(network.leases.is_empty());
    network.seen.iter().find_map(|seen| match seen {
        RunningOutput::HolderLost { why: HolderLoss::Ended(why), .. } => Some(*why),
        _ => None,
    })
}

#[test]
fn a_token_gives_its_image_and_nothing_else() {
    let of = |change: fn(&mut ImageToken)| {
        let network = network();
        let mut token = token(&network);
        change(&mut token);
        let token = token.sign(&issuer());
        refused(network, token)
    };
    assert_eq!(of(|_| {}), None);
    assert_eq!(of(|token| token.subject = TokenSubject::Name("counter".into())), None);
    let no = Some(EndReason::NotAllowed);
    assert_eq!(of(|token| token.subject = TokenSubject::Name("other".into())), no);
    assert_eq!(of(|token| token.subject = TokenSubject::Image(ContentHash::of(b"other"))), no);
    assert_eq!(of(|token| token.holder = PublicKey::from_bytes([2; 32])), no);
    assert_eq!(of(|token| token.expires_unix_s = start().unix_s), Some(EndReason::Expired));
    assert_eq!(of(|token| token.expires_unix_s = u64::MAX), None);
}

#[test]
fn what_a_peer_may_have_without_a_token_it_has_and_else_it_needs_one() {
    let mut some = network();
    let images = BTreeSet::from([some.image.hash()]);
    let issuers = TrustedKeys::from_iter([issuer().public()]);
    some.access = PeerAccess::Some { images, issuers: issuers.clone() };
    assert_eq!(refused(some, Vec::new()), None);
    for token_of in [None, Some(issuer())] {
        let mut other = network();
        let images = BTreeSet::from([ContentHash::of(b"other")]);
        other.access = PeerAccess::Some { images, issuers: issuers.clone() };
        let shown = token_of.as_ref().map(|issuer| token(&other).sign(issuer));
        let why = refused(other, shown.unwrap_or_default());
        // It is not told that there is one.
        assert_eq!(why, token_of.is_none().then_some(EndReason::NotFound));
    }
}

/// Anybody can be it: what it says does not keep its connection, nor is anything of it kept.
#[test]
fn who_may_have_nothing_does_not_stay_by_talking() {
    let idle = ServeLimits::default().idle.as_secs();
    for is_known in [false, true] {
        let images = is_known.then(|| ContentHash::of(b"image")).into_iter().collect();
        let access = PeerAccess::Some { images, issuers: TrustedKeys::default() };
        let begun = start();
        let at = |s| Moment { at: begun.at + Duration::from_secs(s), unix_s: begun.unix_s + s };
        let mut node =
            MemoryNode::new(PublicKey::from_bytes(PEER), access, ServeLimits::default(), begun);
        let mut runner = RunningNode::new(FetchLimits::default());
        let connection = ConnectionId(1);
        let mut said = runner.handle(RunningInput::Connected { connection }, begun);
        let ended = (0..6 * idle).step_by(5).find(|s| {
            let mut closes = false;
            for output in std::mem::take(&mut said) {
                let RunningOutput::Send { bytes, .. } = output else { continue };
                for output in node.handle(MemoryInput::Received(&bytes), at(*s)) {
                    match output {
                        MemoryOutput::Send { lane, bytes } => {
                            node.handle(MemoryInput::Taken(bytes.len()), at(*s));
                            let bytes = &bytes;
                            let received = RunningInput::Received { connection, lane, bytes };
                            said.extend(runner.handle(received, at(*s)));
                        }
                        MemoryOutput::Close(_) => closes = true,
                        _ => {}
                    }
                }
            }
            said.extend(runner.handle(RunningInput::Tick, at(*s)));
            let ticked = node.handle(MemoryInput::Tick, at(*s));
            closes || ticked.iter().any(|output| matches!(output, MemoryOutput::Close(_)))
        });
        assert_eq!(ended, (!is_known).then_some(idle));
    }
}

#[test]
fn foreign_altered_and_missing_tokens_are_refused() {
    let no = Some(EndReason::NotAllowed);
    let foreign = token(&network()).sign(&SecretKey::from_seed([8; 32]));
    assert_eq!(refused(network(), foreign), no);
    assert_eq!(refused(network(), Vec::new()), no);
    let right = token(&network()).sign(&issuer());
    let issuers = TrustedKeys::from_iter([issuer().public()]);
    let holder = PublicKey::from_bytes(PEER);
    for at in 0..right.len() {
        for bit in 0..8 {
            let mut token = right.clone();
            token[at] ^= 1 << bit;
            assert!(ImageToken::check(&token, &issuers, &holder, 0).is_err(), "byte {at}");
        }
        assert!(ImageToken::check(&right[..at], &issuers, &holder, 0).is_err(), "{at} bytes");
    }
    let longer = [&right[..], &[0]].concat();
    assert_eq!(ImageToken::check(&longer, &issuers, &holder, 0), Err(TokenError::Malformed));
    assert!(ImageToken::check(&right, &issuers, &holder, 0).is_ok());
}

#[test]
fn whether_an_image_exists_is_told_to_nobody_who_may_not_have_it() {
    let mut missing = network();
    let token = token(&missing).sign(&issuer());
    let (name, hash, plan) = ("missing".to_owned(), None, FetchPlan::default());
    let image = crate::network::KEY;
    missing.tell(pagefork_postcopy::RunningInput::Open { image, name, hash, plan });
    missing.connect(token);
    missing.run(MINUTE, |_| false);
    let is_refused = |seen: &RunningOutput| {
        let why = HolderLoss::Ended(EndReason::NotAllowed);
        matches!(seen, RunningOutput::HolderLost { why: found, .. } if *found == why)
    };
    assert!(missing.seen.iter().any(is_refused));
}

#[test]
fn an_image_ends_with_its_token_and_has_a_lease_only_with_the_right() {
    for lease in [false, true] {
        let mut network = network();
        let mut token = token(&network);
        token.rights.lease = lease;
        network.open(FetchPlan { background: false, ..FetchPlan::default() });
        network.connect(token.sign(&issuer()));
        network.run(Duration::from_secs(590), |_| false);
        assert_eq!(!network.leases.is_empty(), lease);
        let ended = |network: &Network| {
            network.seen.iter().any(|seen| {
                let why = HolderLoss::Ended(EndReason::Expired);
                matches!(seen, RunningOutput::HolderLost { why: found, .. } if *found == why)
            })
        };
        assert!(!ended(&network));
        assert!(network.run(Duration::from_secs(20), ended));
        assert!(network.leases.is_empty());
    }
}

/// What a memory node has found for a peer is let go when the peer has it open no more, whatever it may do with
/// it, and not before: it has no more open than the node allows.
#[test]
fn what_a_peer_has_open_no_more_is_let_go_whether_it_had_a_lease_or_not() {
    for lease in [false, true] {
        let network = network();
        let mut token = token(&network);
        token.rights.lease = lease;
        let (token, limits) = (token.sign(&issuer()), ServeLimits::default());
        let (peer, access) = (PublicKey::from_bytes(PEER), network.access.clone());
        let mut node = MemoryNode::new(peer, access, limits, network.now);
        // What is let go when it hears this, where what it looks for is this image.
        let mut hears = |message: &Message, found: &ImageReader| {
            let mut let_go = Vec::new();
            let received = encode(message);
            let mut outputs =
                VecDeque::from(node.handle(MemoryInput::Received(&received), network.now));
            while let Some(output) = outputs.pop_front() {
                match output {
                    MemoryOutput::Resolve { image, .. } => {
                        let head = Arc::new(ImageHead::read(found).unwrap());
                        let found = Some(ServedImage { head, certain: Vec::new() });
                        let resolved = MemoryInput::Resolved { image, found };
                        outputs.extend(node.handle(resolved, network.now));
                    }
                    MemoryOutput::Released { hash } => let_go.push(hash),
                    MemoryOutput::Close(why) => panic!("{why}"),
                    _ => {}
                }
            }
            let_go
        };
        let open = |image| {
            let (name, token) = ("counter".to_owned(), token.clone());
            Message::Open { image, name, token, head: None }
        };
        let hello = Hello { version: PROTOCOL_VERSION, zstd: false, certain_groups: 4 };
        let (own, other, none) = (&network.image, image(10, 2), Vec::new());
        assert_eq!(hears(&Message::Hello(hello), own), none);
        assert_eq!(hears(&open(0), own), none);
        assert_eq!(hears(&open(1), own), none);
        assert_eq!(hears(&Message::Close { image: 0 }, own), none, "it has it open");
        assert_eq!(hears(&Message::Close { image: 1 }, own), [own.hash()]);
        assert_eq!(hears(&Message::Close { image: 1 }, own), none);
        // What was found, and is not what the token is for.
        assert_eq!(hears(&open(2), &other), [other.hash()]);
    }
}
