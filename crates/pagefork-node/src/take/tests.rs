//! Memory nodes that have the right key and lie, or say nothing.

#![allow(clippy::single_range_in_vec_init)] // Extents of one range are meant.

use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use pagefork_image::{
    ImageDraft, ImageLimits, ImageReader, Manifest, PageRuns, SavedInstance, TrustedKeys,
};
use pagefork_postcopy::{
    MemoryInput, MemoryNode, MemoryOutput, PeerAccess, PlanLayer, ServeLimits, ServedImage,
};

use super::*;
use crate::address::Transport;
use crate::strangers::{TRANSPORTS, stranger};

/// The group that somebody waits for.
const WAITED: u64 = 7;

/// What a memory node does that does not do as it should.
#[derive(Clone, Copy, PartialEq)]
enum Lie {
    /// Nothing: it does as it should.
    Nothing,
    /// It changes a bit of each group that is asked for.
    Bytes,
    /// It gives another group.
    Other,
    /// It opens the image and says nothing more.
    Silence,
    /// What it sends is no message.
    Nonsense,
    /// It leaves right behind a group, once, and does as it should after that.
    Leaves,
    /// It ends the connection right behind the last of the groups that it is asked for.
    Ends,
    /// It gives one group by each connection, and never the one that somebody waits for.
    Starves,
}

fn image() -> ImageReader {
    let instance = SavedInstance { extents: vec![0..1 << 20], ..SavedInstance::default() };
    let manifest = Manifest { instances: vec![instance], ..Manifest::default() };
    let bytes = (0..1_u32 << 18).flat_map(|n| n.wrapping_mul(0x9e37_79b9).to_le_bytes()).collect();
    let pages = PageRuns::new(vec![vec![(0, bytes)]]);
    let mut file = io::Cursor::new(Vec::new());
    let author = SecretKey::from_seed([3; 32]);
    ImageDraft::new(manifest, &pages).sign_with(&[author]).write(&mut file).unwrap();
    ImageReader::open(Box::new(file.into_inner()), &ImageLimits::default()).unwrap()
}

fn liar(transport: Transport, lie: Lie) -> MemoryPeer {
    let has_left = AtomicBool::new(false);
    stranger(transport, &SecretKey::from_seed([1; 32]), move |channel| {
        let leaves = lie == Lie::Leaves && !has_left.load(Ordering::Relaxed);
        let lie = if lie == Lie::Leaves && !leaves { Lie::Nothing } else { lie };
        let _ = answer(Duplex::new(channel).unwrap(), lie, &has_left);
    })
}

fn answer(mut duplex: Duplex, lie: Lie, has_left: &AtomicBool) -> Option<()> {
    let image = image();
    let peer = SecretKey::from_seed([2; 32]).public();
    let mut node = MemoryNode::new(peer, PeerAccess::All, ServeLimits::default(), now());
    let mut reads = 0;
    loop {
        let arrived = duplex.receive().ok()?;
        let mut to_do = VecDeque::from(node.handle(MemoryInput::Received(&arrived.bytes), now()));
        while let Some(output) = to_do.pop_front() {
            match output {
                MemoryOutput::Send { lane, bytes } => duplex.push(lane, bytes),
                MemoryOutput::Resolve { image: number, .. } => {
                    let head = Arc::new(ImageHead::read(&image).unwrap());
                    let found = Some(ServedImage { head, certain: Vec::new() });
                    to_do
                        .extend(node.handle(MemoryInput::Resolved { image: number, found }, now()));
                }
                MemoryOutput::Read { image: number, group, .. } => {
                    let wrong = if lie == Lie::Other { group ^ 1 } else { group };
                    let mut bytes = image.read_group(wrong).unwrap();
                    bytes[5] ^= u8::from(lie == Lie::Bytes);
                    let found = Some((bytes, image.proof(wrong).unwrap()));
                    match lie {
                        Lie::Silence => {}
                        Lie::Starves if group == WAITED || reads > 0 => {}
                        Lie::Nonsense => duplex.push(Lane::Control, vec![0xff; 64]),
                        _ => {
                            let cpu = Duration::ZERO;
                            let read = MemoryInput::Read { image: number, group, found, cpu };
                            to_do.extend(node.handle(read, now()));
                            reads += 1;
                            if lie == Lie::Leaves && !has_left.swap(true, Ordering::Relaxed) {
                                // What is no message has it say farewell.
                                let nonsense = MemoryInput::Received(&[0xff; 64]);
                                to_do.extend(node.handle(nonsense, now()));
                            }
                        }
                    }
                }
                _ => {}
            }
        }
        let ends_after = match lie {
            Lie::Ends => image.group_count(),
            Lie::Starves => 1,
            _ => u64::MAX,
        };
        if reads == ends_after {
            duplex.end().ok()?;
            return None;
        }
        duplex.send().ok()?;
        if arrived.is_over {
            return None;
        }
        duplex.wait(&[], None).ok()?;
    }
}

/// Wants a group, and takes none.
#[derive(Debug)]
struct Wants(Mutex<Vec<u64>>, OwnedFd, Mutex<bool>);

impl PageSink for Wants {
    fn wanted(&self) -> BorrowedFd<'_> {
        self.1.as_fd()
    }

    fn take_wanted(&self) -> Vec<u64> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    fn install(&self, group: u64, _: &[u8]) -> io::Result<()> {
        panic!("group {group} is not to be trusted")
    }

    fn give_up(&self, _: &NodeError) {
        *self.2.lock().unwrap() = true;
    }
}

#[test]
fn nothing_of_who_lies_is_installed_and_silence_ends_in_time() {
    TRANSPORTS.into_iter().for_each(lie);
}

fn lie(transport: Transport) {
    let signers = TrustedKeys::from_iter([SecretKey::from_seed([3; 32]).public()]);
    let own = SecretKey::from_seed([2; 32]);
    let node = NodeTimes { idle: Duration::from_secs(1), ..NodeTimes::default() };
    let times = PageTimes { node, lost: Duration::from_millis(300), ..PageTimes::default() };
    for lie in [Lie::Bytes, Lie::Other, Lie::Silence, Lie::Nonsense] {
        let plan = FetchPlan { background: false, ..FetchPlan::default() };
        let image =
            RemoteImage::open(&liar(transport, lie), &own, "any", &signers, plan, times).unwrap();
        let signal = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let wants = Arc::new(Wants(Mutex::new(vec![7]), signal, Mutex::new(false)));
        let error = image.fetch_into(wants.clone()).unwrap().join().unwrap_err();
        match lie {
            Lie::Silence => assert!(matches!(error, NodeError::Lost { .. }), "{error}"),
            _ => assert!(matches!(error, NodeError::Protocol(_)), "{error}"),
        }
        assert!(*wants.2.lock().unwrap(), "who waits is told");
    }
}

/// Wants two groups at a time; who wants the next two begins to wait while these are put in their places.
#[derive(Debug)]
struct Pairs(Mutex<Vec<u64>>, OwnedFd);

impl PageSink for Pairs {
    fn wanted(&self) -> BorrowedFd<'_> {
        self.1.as_fd()
    }

    fn take_wanted(&self) -> Vec<u64> {
        let _ = rustix::io::read(&self.1, &mut [0; 8]);
        std::mem::take(&mut self.0.lock().unwrap())
    }

    fn install(&self, group: u64, _: &[u8]) -> io::Result<()> {
        if group.is_multiple_of(2) && group + 2 < 64 {
            self.0.lock().unwrap().extend([group + 2, group + 3]);
            rustix::io::write(&self.1, &1_u64.to_ne_bytes()).unwrap();
        }
        Ok(())
    }

    fn give_up(&self, why: &NodeError) {
        panic!("{why}")
    }
}

#[test]
fn who_begins_to_wait_while_groups_are_put_in_their_places_is_asked_for_at_once() {
    for transport in TRANSPORTS {
        let signers = TrustedKeys::from_iter([SecretKey::from_seed([3; 32]).public()]);
        let own = SecretKey::from_seed([2; 32]);
        // Nothing else is said meanwhile: a third of it goes by before this side says that it is there.
        let node = NodeTimes { idle: Duration::from_secs(120), ..NodeTimes::default() };
        let times = PageTimes { node, ..PageTimes::default() };
        let plan = FetchPlan { background: false, stride: false, ..FetchPlan::default() };
        let peer = liar(transport, Lie::Nothing);
        let image = RemoteImage::open(&peer, &own, "any", &signers, plan, times).unwrap();
        let signal = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let pairs = Arc::new(Pairs(Mutex::new(vec![0, 1]), signal));
        let fetch = image.fetch_into(pairs).unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || drop(sender.send(fetch.join())));
        let fetched = receiver.recv_timeout(Duration::from_secs(60));
        fetched.expect("a group that is waited for is not asked for").unwrap();
    }
}

/// Wants a group, which is in its place at once: who waits for it has gone on long before this side does.
#[derive(Debug)]
struct GoneOn(Mutex<Vec<u64>>, OwnedFd, Instant);

impl PageSink for GoneOn {
    fn wanted(&self) -> BorrowedFd<'_> {
        self.1.as_fd()
    }

    fn take_wanted(&self) -> Vec<u64> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    fn install(&self, group: u64, _: &[u8]) -> io::Result<()> {
        panic!("it is to be known when group {group} was in its place")
    }

    fn install_timed(&self, _: u64, _: &[u8]) -> io::Result<Instant> {
        Ok(self.2)
    }

    fn give_up(&self, why: &NodeError) {
        panic!("{why}")
    }
}

#[test]
fn what_follows_when_a_group_is_in_its_place_is_no_part_of_a_wait() {
    let signers = TrustedKeys::from_iter([SecretKey::from_seed([3; 32]).public()]);
    let own = SecretKey::from_seed([2; 32]);
    let (plan, times) = (FetchPlan::default(), PageTimes::default());
    let peer = liar(Transport::Tls, Lie::Nothing);
    let image = RemoteImage::open(&peer, &own, "any", &signers, plan, times).unwrap();
    let signal = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    let sink = GoneOn(Mutex::new(vec![7]), signal, Instant::now());
    let waits = image.fetch_into(Arc::new(sink)).unwrap().join().unwrap().waits;
    assert_eq!((waits.groups, waits.install), (1, Duration::ZERO));
    assert_eq!(waits.rest_of(waits.sum() + Duration::from_micros(5)), Duration::from_micros(5));
}

/// Waits for a group, and counts what else comes.
#[derive(Debug)]
struct Starved(Mutex<Vec<u64>>, OwnedFd, Mutex<usize>);

impl PageSink for Starved {
    fn wanted(&self) -> BorrowedFd<'_> {
        self.1.as_fd()
    }

    fn take_wanted(&self) -> Vec<u64> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    fn install(&self, _: u64, _: &[u8]) -> io::Result<()> {
        *self.2.lock().unwrap() += 1;
        Ok(())
    }

    fn give_up(&self, _: &NodeError) {}
}

#[test]
fn who_gives_all_but_what_somebody_waits_for_and_leaves_each_time_is_lost() {
    for transport in TRANSPORTS {
        let signers = TrustedKeys::from_iter([SecretKey::from_seed([3; 32]).public()]);
        let own = SecretKey::from_seed([2; 32]);
        let times = PageTimes { lost: Duration::from_secs(1), ..PageTimes::default() };
        let (peer, plan) = (liar(transport, Lie::Starves), FetchPlan::default());
        let image = RemoteImage::open(&peer, &own, "any", &signers, plan, times).unwrap();
        let signal = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let starved = Arc::new(Starved(Mutex::new(vec![WAITED]), signal, Mutex::new(0)));
        let error = image.fetch_into(starved.clone()).unwrap().join().unwrap_err();
        assert!(matches!(error, NodeError::Lost { .. }), "{error}");
        let came = *starved.2.lock().unwrap();
        assert!((1..32).contains(&came), "{came} groups came before it was left");
    }
}

/// Wants nothing, has some groups already, and notes what comes.
#[derive(Debug)]
struct Notes(Mutex<Vec<u64>>, OwnedFd, Vec<Range<u64>>);

impl Notes {
    fn new(present: Vec<Range<u64>>) -> Arc<Self> {
        let signal = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        Arc::new(Self(Mutex::new(Vec::new()), signal, present))
    }
}

impl PageSink for Notes {
    fn wanted(&self) -> BorrowedFd<'_> {
        self.1.as_fd()
    }

    fn take_wanted(&self) -> Vec<u64> {
        Vec::new()
    }

    fn present(&self) -> Vec<Range<u64>> {
        self.2.clone()
    }

    fn install(&self, group: u64, _: &[u8]) -> io::Result<()> {
        self.0.lock().unwrap().push(group);
        Ok(())
    }

    fn give_up(&self, why: &NodeError) {
        panic!("{why}")
    }
}

#[test]
fn what_is_in_its_place_already_is_not_asked_for() {
    let signers = TrustedKeys::from_iter([SecretKey::from_seed([3; 32]).public()]);
    let own = SecretKey::from_seed([2; 32]);
    // Also if that is all.
    for (present, rest) in [(vec![0..3, 5..60], vec![3, 4, 60, 61, 62, 63]), (vec![0..64], vec![])]
    {
        let (peer, plan) = (liar(Transport::Tls, Lie::Nothing), FetchPlan::default());
        let times = PageTimes::default();
        let image = RemoteImage::open(&peer, &own, "any", &signers, plan, times).unwrap();
        let notes = Notes::new(present);
        image.fetch_into(notes.clone()).unwrap().join().unwrap();
        let mut groups = std::mem::take(&mut *notes.0.lock().unwrap());
        groups.sort_unstable();
        assert_eq!(groups, rest);
    }
}

#[test]
fn what_came_before_a_connection_ended_is_put_in_its_place() {
    for transport in TRANSPORTS {
        let signers = TrustedKeys::from_iter([SecretKey::from_seed([3; 32]).public()]);
        let own = SecretKey::from_seed([2; 32]);
        let (peer, plan) = (liar(transport, Lie::Leaves), FetchPlan::default());
        let times = PageTimes::default();
        let image = RemoteImage::open(&peer, &own, "any", &signers, plan, times).unwrap();
        let notes = Notes::new(Vec::new());
        let report = image.fetch_into(notes.clone()).unwrap().join().unwrap();
        assert_eq!(report.connections, 2);
        let mut groups = std::mem::take(&mut *notes.0.lock().unwrap());
        groups.sort_unstable();
        assert!(groups.into_iter().eq(0..64));
    }
}

#[test]
fn what_a_peer_has_said_is_here_is_read_though_it_has_ended_the_connection() {
    // By QUIC the end of a stream may come before what is said on others.
    let transport = Transport::Tls;
    let path = std::env::temp_dir().join(format!("pagefork-ended-{}", std::process::id()));
    let images = ImageStore::open(&path).unwrap();
    let bytes = (0..64).flat_map(|group| image().read_group(group).unwrap()).collect();
    let instance = SavedInstance { extents: vec![0..1 << 20], ..SavedInstance::default() };
    let manifest = Manifest { instances: vec![instance], ..Manifest::default() };
    let pages = PageRuns::new(vec![vec![(0, bytes)]]);
    let author = SecretKey::from_seed([3; 32]);
    images
        .save(ImageDraft::new(manifest, &pages).sign_with(std::slice::from_ref(&author)))
        .unwrap();
    let (signers, own) = (TrustedKeys::from_iter([author.public()]), SecretKey::from_seed([2; 32]));
    let (plan, times) = (FetchPlan::default(), PageTimes::default());
    let peer = liar(transport, Lie::Ends);
    let mut image = RemoteImage::open(&peer, &own, "any", &signers, plan, times).unwrap();
    image.look_in(&images);
    let notes = Notes::new(Vec::new());
    let report = image.fetch_into(notes.clone()).unwrap().join().unwrap();
    assert_eq!(notes.0.lock().unwrap().len(), 64);
    assert_eq!((report.plan.here, report.connections), (64, 1), "it was asked once");
    std::fs::remove_dir_all(path).unwrap();
}

/// Memory is short at each look: as soon as what was asked for before is here, the background has one group under
/// way at a time.
#[test]
fn the_background_is_one_group_while_memory_is_short() {
    let path = std::env::temp_dir().join(format!("pagefork-short-{}", std::process::id()));
    let signers = TrustedKeys::from_iter([SecretKey::from_seed([3; 32]).public()]);
    let own = SecretKey::from_seed([2; 32]);
    // A quarter of the image at once, however far the peer seems.
    let plan = FetchPlan { background_window: 16, ..FetchPlan::default() };
    let times = PageTimes::default();
    let peer = liar(Transport::Tls, Lie::Nothing);
    let image = RemoteImage::open(&peer, &own, "any", &signers, plan, times).unwrap();
    let mut taker = image.taker;
    taker.tell(RunningInput::Begin { image: IMAGE, recorded: Vec::new(), looks_here: false });
    let background = |taker: &Taker| {
        let report = taker.node.report(IMAGE).expect("it is open");
        report.counts(PlanLayer::Background)
    };
    let before = background(&taker).asked;
    assert!((2..=16).contains(&before), "{before} groups were asked for before");
    loop {
        taker.pressure = MemoryPressure::short(&path);
        taker.turn().unwrap();
        if taker.whole.is_some() {
            break;
        }
        let counts = background(&taker);
        let under_way = counts.asked - counts.arrived;
        assert!(under_way <= 1 || counts.asked == before, "{under_way} groups are under way");
        taker.wait(&[], None).unwrap();
    }
    std::fs::remove_file(path).unwrap();
}
