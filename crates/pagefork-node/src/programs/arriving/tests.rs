//! Programs that are on their way: their slots are filled ahead, and given back when they do not come.

use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use pagefork::{Engine, SaveOptions};
use pagefork_image::{ImageStore, SecretKey, TrustedKeys};
use pagefork_postcopy::MigrationStep;

use super::*;
use crate::address::Transport;
use crate::programs::program::AfterRest;
use crate::programs::session::ClientVisit;
use crate::programs::tests::waiting;
use crate::programs::{KnownPeers, ProgramLimits};
use crate::serve::{MemoryServer, ServeOptions};
use crate::strangers::free;

/// The key of who has the program, and signs.
fn key() -> SecretKey {
    SecretKey::from_seed([1; 32])
}

/// Knows one other node.
#[derive(Debug, Default)]
struct OnePeer(Mutex<Option<MemoryPeer>>);

impl KnownPeers for OnePeer {
    fn may_run(&self, _: &PublicKey) -> bool {
        true
    }

    fn named(&self, _: &str) -> Option<MemoryPeer> {
        None
    }

    fn with_key(&self, _: &PublicKey) -> Option<MemoryPeer> {
        self.0.lock().unwrap().clone()
    }

    fn signers(&self) -> Result<TrustedKeys, String> {
        Ok(TrustedKeys::from_iter([key().public()]))
    }
}

/// A program that waits for input at one node, and is on its way to the other.
struct OnItsWay {
    path: PathBuf,
    source: ProgramNode,
    target: ProgramNode,
    offer: MoveOffer,
}

impl Drop for OnItsWay {
    fn drop(&mut self) {
        let _ = self.source.stop("waiting", Duration::from_secs(60));
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

impl OnItsWay {
    fn new(name: &str, limits: ProgramLimits) -> Self {
        let name = format!("pagefork-arriving-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&path);
        let node = |what: &str, key: SecretKey, peers: OnePeer, limits| {
            let path = path.join(what);
            let images = ImageStore::open(path.join("images")).unwrap();
            let engine = Engine::default();
            let mut options = ProgramNodeOptions::new(engine, images, key, Arc::new(peers), &path);
            options.limits = limits;
            ProgramNode::new(options).unwrap()
        };
        let source = node("source", key(), OnePeer::default(), ProgramLimits::default());
        let mut serve = ServeOptions::new(key());
        serve.access = Arc::new(|_| true);
        let images = source.options().images.clone();
        let server = MemoryServer::bind(free(Transport::Tls), images, serve).unwrap();
        let peer = MemoryPeer { address: server.address().to_string(), key: key().public() };
        thread::spawn(move || server.run());
        let peers = OnePeer(Mutex::new(Some(peer)));
        let target = node("target", SecretKey::from_seed([2; 32]), peers, limits);
        let offer = MoveOffer {
            program: source.start(&waiting()).unwrap(),
            name: "waiting".to_owned(),
            directories: Vec::new(),
            has_sockets: false,
            signer: *key().public().as_bytes(),
            second: None,
            needs: None,
        };
        Self { path, source, target, offer }
    }

    /// A state of the program, in the store of its node.
    fn state(&self) -> ContentHash {
        self.captured().stored_image().unwrap().hash()
    }

    fn captured(&self) -> Snapshot<NodeGuest> {
        let program = self.source.find("waiting").unwrap();
        let patience = Duration::from_secs(60);
        let snapshot =
            program.at_rest(patience, |ready| (AfterRest::GoesOn, ready.store.snapshot()));
        let signed =
            SaveOptions::new().sign_with(std::slice::from_ref(&self.source.options().image_key));
        let snapshot = snapshot.unwrap().unwrap();
        snapshot.save(&self.source.options().images, signed).unwrap();
        snapshot
    }

    /// What has changed since a state, in no store, and the image that it makes.
    fn changes(&self, since: &Snapshot<NodeGuest>) -> (ContentHash, Vec<u8>) {
        let program = self.source.find("waiting").unwrap();
        let patience = Duration::from_secs(60);
        let snapshot =
            program.at_rest(patience, |ready| (AfterRest::GoesOn, ready.store.snapshot()));
        let ProgramNodeOptions { images, image_key, .. } = self.source.options();
        let signed = SaveOptions::new().sign_with(std::slice::from_ref(image_key));
        let saved = snapshot.unwrap().unwrap().save_beside(images, signed.delta_of(since));
        let (image, bytes) = saved.unwrap();
        (image, bytes.to_vec())
    }

    /// Has the target do what follows from a step.
    fn step(&self, migration: u8, step: MigrationStep) -> MigrationStep {
        self.step_with(migration, step, None)
    }

    /// As [`Self::step`], with what has come before it.
    fn step_with(
        &self,
        migration: u8,
        step: MigrationStep,
        changes: Option<Vec<u8>>,
    ) -> MigrationStep {
        let changes = changes.map(|bytes| (bytes, ComingGroups::default()));
        let migration = MigrationId([migration; 16]);
        let message = MigrationMessage { migration, epoch: 0, step };
        let (steps, _) = super::step(&self.target, key().public(), &self.offer, message, changes);
        steps.unwrap().pop().map_or(MigrationStep::Withdraw, |message| message.step)
    }

    /// Offers it and sends a state ahead.
    fn send_ahead(&self, migration: u8) -> MigrationStep {
        self.offer(migration);
        self.step(migration, MigrationStep::Ahead { image: self.state(), token: Vec::new() })
    }

    fn offer(&self, migration: u8) {
        let offer = MigrationStep::Offer { instance: "waiting".to_owned() };
        assert_eq!(self.step(migration, offer), MigrationStep::Accept);
    }

    fn left(&self, migration: u8) {
        self.target.arrivals().left(&self.target, key().public(), MigrationId([migration; 16]));
    }

    /// What the target has on the disk of it.
    fn record(&self, migration: u8) -> Option<ArrivingRecord> {
        let kept = self.target.records().arriving(MigrationId([migration; 16])).unwrap();
        kept.map(|(record, _)| record)
    }

    /// Programs that are on their way, and those of them that have slots.
    fn count(&self) -> (usize, usize) {
        self.target.arrivals().count()
    }
}

#[test]
fn slots_are_filled_ahead_and_given_back_when_their_program_does_not_come() {
    // There is room for one.
    let limits = ProgramLimits { programs: 1, ..ProgramLimits::default() };
    let way = OnItsWay::new("back", limits);
    let is_ready = || way.target.arrivals().is_ready(MigrationId([1; 16]));
    assert!(!is_ready());
    way.offer(1);
    assert!(!is_ready(), "its last changes would be those of nothing");
    assert!(matches!(way.send_ahead(1), MigrationStep::AheadHere { .. }));
    assert_eq!(way.count(), (1, 1));
    assert!(is_ready());
    // Another state takes the same ones.
    let step = MigrationStep::Ahead { image: way.state(), token: Vec::new() };
    assert!(matches!(way.step(1, step), MigrationStep::AheadHere { .. }));
    assert_eq!(way.count(), (1, 1));
    way.step(1, MigrationStep::Withdraw);
    assert_eq!(way.count(), (0, 0), "it was withdrawn");

    assert!(matches!(way.send_ahead(2), MigrationStep::AheadHere { .. }));
    assert!(way.record(2).is_some());
    way.left(2);
    assert_eq!(way.count(), (0, 0), "its source is gone");
    assert!(way.record(2).is_none(), "nothing is left of it");

    // While it is worked on, what says so cannot wait.
    assert!(matches!(way.send_ahead(3), MigrationStep::AheadHere { .. }));
    let arriving = Arc::clone(&way.target.arrivals().lock()[&MigrationId([3; 16])]);
    let is_worked_on = arriving.lock();
    assert!(
        !way.target.arrivals().is_ready(MigrationId([3; 16])),
        "that would have to be waited for"
    );
    way.left(3);
    drop(is_worked_on);
    assert_eq!(way.count(), (1, 1));
    let step = MigrationStep::Ahead { image: way.state(), token: Vec::new() };
    assert!(matches!(way.step(3, step), MigrationStep::AheadHere { .. }));
    assert_eq!(way.count(), (0, 0), "its source has gone meanwhile");
    assert!(way.record(3).is_none());
    // A step that has waited for the lock does not go on in what was forgotten, which holds nothing.
    let arrivals = way.target.arrivals();
    assert!(arriving.lock().is_gone && arriving.lock().slots.is_none());
    assert!(arriving.lock().place.is_none());
    assert!(matches!(way.send_ahead(3), MigrationStep::AheadHere { .. }));
    let message = MigrationMessage {
        migration: MigrationId([3; 16]),
        epoch: 0,
        step: MigrationStep::Withdraw,
    };
    let stale = step_of(&way.target, &arriving, key().public(), &message, &mut None);
    assert!(stale.is_none());
    // Nor does it take the one that followed with it.
    arrivals.forget(MigrationId([3; 16]), &arriving, &mut arriving.lock());
    assert_eq!(way.count(), (1, 1));
    way.step(3, MigrationStep::Withdraw);

    // Something else is handed over than what is there, or nothing that is.
    assert!(matches!(way.send_ahead(4), MigrationStep::AheadHere { .. }));
    let image = ContentHash::of(b"nothing");
    let declined = way.step(4, MigrationStep::HandOver { image, token: Vec::new() });
    assert!(matches!(declined, MigrationStep::Declined { .. }), "{declined:?}");
    assert_eq!(way.count(), (0, 0), "it was declined");
    assert!(matches!(way.send_ahead(5), MigrationStep::AheadHere { .. }), "there is room");
}

#[test]
fn what_was_decided_stays_recorded_though_its_source_is_gone() {
    let way = OnItsWay::new("decided", ProgramLimits::default());
    assert!(matches!(way.send_ahead(1), MigrationStep::AheadHere { .. }));
    let arriving = Arc::clone(&way.target.arrivals().lock()[&MigrationId([1; 16])]);
    arriving.is_left.store(true, Ordering::SeqCst);
    let image = way.state();
    // It is no image of a program that moves.
    let declined = way.step(1, MigrationStep::HandOver { image, token: Vec::new() });
    assert!(matches!(declined, MigrationStep::Declined { .. }), "{declined:?}");
    way.left(1);
    assert_eq!(way.count(), (0, 0));
    assert_eq!(way.record(1).unwrap().target.state, TargetState::Declined, "it may be asked again");
}

impl OnItsWay {
    /// Hands over what is none, which is declined.
    fn decline(&self, migration: u8) -> Result<Vec<MigrationMessage>, String> {
        let image = ContentHash::of(b"nothing");
        self.try_step(migration, MigrationStep::HandOver { image, token: Vec::new() })
    }

    fn try_step(
        &self,
        migration: u8,
        step: MigrationStep,
    ) -> Result<Vec<MigrationMessage>, String> {
        let migration = MigrationId([migration; 16]);
        let message = MigrationMessage { migration, epoch: 0, step };
        super::step(&self.target, key().public(), &self.offer, message, None).0
    }

    fn connect(&self) -> ClientVisit {
        let mut visit = ClientVisit::begin(&self.target);
        visit.name(key().public());
        visit
    }

    fn known(&self, by: PublicKey, migration: u8) {
        super::known(&self.target, by, MigrationId([migration; 16])).unwrap();
    }
}

#[test]
fn what_became_of_programs_is_remembered_until_their_source_knows_and_of_so_many_at_most() {
    let limits = ProgramLimits { remembered: 2, ..ProgramLimits::default() };
    let way = OnItsWay::new("remembered", limits);
    let (older, connection) = (way.connect(), way.connect());
    for migration in 1..3 {
        way.decline(migration).unwrap();
    }
    let offer = MigrationStep::Offer { instance: "waiting".to_owned() };
    let refused = way.try_step(3, offer).unwrap_err();
    assert!(refused.contains("of 2 programs"), "{refused}");
    // What was accepted before, when there was room.
    (3..5).for_each(|migration| drop(way.decline(migration).unwrap()));
    let refused = way.decline(5).unwrap_err();
    assert!(refused.contains("of 4 programs"), "{refused}");
    way.decline(2).expect("it is remembered, and may be asked for again");
    assert!(way.record(5).is_none());

    way.known(SecretKey::from_seed([9; 32]).public(), 1);
    drop(connection);
    assert!(way.record(1).is_some(), "another node has said so");
    let connection = way.connect();
    way.known(key().public(), 1);
    drop(connection);
    assert!(way.record(1).is_some(), "an older connection may have it handed over again");
    drop(older);
    assert!(way.record(1).is_none() && way.record(2).is_some());
    way.decline(5).expect("there is room");
}

#[test]
fn a_record_of_a_program_that_is_here_stays_until_it_is_over_though_its_source_knows() {
    let way = OnItsWay::new("over", ProgramLimits::default());
    way.decline(1).unwrap();
    let mut record = way.record(1).unwrap();
    record.target.state = TargetState::Own;
    way.target.records().keep_arriving(&record).unwrap();
    let connection = way.connect();
    way.known(key().public(), 1);
    drop(connection);
    // What was noted and is brought to the disk later changes nothing of that.
    way.target.records().change_arriving(MigrationId([1; 16]), |_| ()).unwrap();
    assert!(way.record(1).unwrap().is_known);
    way.target.over(MigrationId([1; 16])).unwrap();
    assert!(way.record(1).is_none());
}

#[test]
fn a_program_that_was_handed_over_as_often_as_numbers_go_is_declined() {
    let way = OnItsWay::new("epoch", ProgramLimits::default());
    let (migration, image) = (MigrationId([1; 16]), way.state());
    let step = MigrationStep::HandOver { image, token: Vec::new() };
    let message = MigrationMessage { migration, epoch: u64::MAX, step };
    let (steps, _) = super::step(&way.target, key().public(), &way.offer, message, None);
    let MigrationStep::Declined { text } = &steps.unwrap()[0].step else { panic!("it is taken") };
    assert!(text.contains("as often as it can be"), "{text}");
}

#[test]
fn a_program_whose_name_is_none_is_refused() {
    let mut way = OnItsWay::new("name", ProgramLimits::default());
    way.offer.name = "\u{1}".repeat(1000);
    let offer = MigrationStep::Offer { instance: "waiting".to_owned() };
    let handed_over = MigrationStep::HandOver { image: way.state(), token: Vec::new() };
    for step in [offer, handed_over] {
        let why = way.try_step(1, step).unwrap_err();
        assert!(why.contains("can be no name"), "{why}");
    }
    assert!(way.record(1).is_none(), "it is remembered");
}

#[test]
fn a_program_that_is_known_by_its_record_alone_has_no_slots_until_it_has_a_place() {
    let limits = ProgramLimits { programs: 2, ..ProgramLimits::default() };
    let way = OnItsWay::new("record", limits);
    assert!(matches!(way.send_ahead(1), MigrationStep::AheadHere { .. }));
    let record = way.record(1).unwrap();
    way.left(1);
    // As another process of the node would have left it.
    way.target.records().keep_arriving(&record).unwrap();
    assert!(matches!(way.send_ahead(2), MigrationStep::AheadHere { .. }));
    let refused = way.step(1, MigrationStep::Ahead { image: way.state(), token: Vec::new() });
    assert!(matches!(refused, MigrationStep::Refuse { .. }), "{refused:?}");
    assert_eq!(way.count().1, 1, "the place is of the other one");
}

#[test]
fn a_program_for_whose_pages_there_is_no_room_is_refused_while_it_runs() {
    let limits = ProgramLimits { memory: 1 << 12, ..ProgramLimits::default() };
    let way = OnItsWay::new("room", limits);
    let refused = way.send_ahead(1);
    let MigrationStep::Refuse { text } = &refused else { panic!("{refused:?}") };
    assert!(text.contains("no room for its pages") && text.contains("memories"), "{text}");
    way.step(1, MigrationStep::Withdraw);
    assert_eq!(way.count(), (0, 0));
}

#[test]
fn a_state_that_comes_before_it_is_said_to_be_there_is_not_fetched_and_verified() {
    let way = OnItsWay::new("pushed", ProgramLimits::default());
    let ahead = |image| MigrationStep::Ahead { image, token: Vec::new() };
    let first = way.captured();
    let begin = |migration| {
        way.offer(migration);
        let image = first.stored_image().unwrap().hash();
        assert!(matches!(way.step(migration, ahead(image)), MigrationStep::AheadHere { .. }));
    };
    // Its node has it in no store.
    begin(1);
    let (image, bytes) = way.changes(&first);
    let here = way.step_with(1, ahead(image), Some(bytes.clone()));
    assert_eq!(here, MigrationStep::AheadHere { image });
    assert!(way.target.options().images.load(image).is_ok(), "it is kept for the next one");
    way.step(1, MigrationStep::Withdraw);

    // Damaged, or another one: it is refused, and the program goes on where it is.
    for at in [40, bytes.len() / 2, bytes.len() - 1] {
        begin(2);
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        let refused = way.step_with(2, ahead(image), Some(damaged));
        assert!(matches!(refused, MigrationStep::Refuse { .. }), "byte {at}: {refused:?}");
        way.step(2, MigrationStep::Withdraw);
    }
    begin(3);
    let refused = way.step_with(3, ahead(ContentHash::of(b"other")), Some(bytes));
    assert!(matches!(refused, MigrationStep::Refuse { .. }), "{refused:?}");
    way.step(3, MigrationStep::Withdraw);
    assert_eq!(way.count(), (0, 0));
}

#[test]
fn last_changes_are_whole_when_their_first_bytes_have_come_and_bounded() {
    let mut changes = LastChanges::default();
    assert!(changes.put(4, b"data"));
    assert!(changes.put(10, b"later"));
    assert!(std::mem::take(&mut changes).whole().is_none(), "the first bytes have not come");
    assert!(changes.put(4, b"data") && changes.put(10, b"later") && changes.put(0, b"head"));
    assert!(!changes.put(4, b"more"), "those at 0 are the last");
    assert_eq!(changes.whole().unwrap().0, b"headdata\0\0later");

    let mut changes = LastChanges::default();
    let max = LAST_CHANGES_MAX as u64;
    assert!(!changes.put(max, &[0]) && !changes.put(u64::MAX, &[0; 2]));
    assert!(changes.bytes.is_empty() && changes.put(max - 1, &[7]));
    assert_eq!(changes.bytes.len(), LAST_CHANGES_MAX);
}
