//! The side of a running node: it opens an image by its head, and gets pages as they are needed.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use pagefork::IncompleteImage;
use pagefork_image::{ContentHash, ImageError, ImageHead, ImageStore, SecretKey, TrustedKeys};
use pagefork_postcopy::{
    ConnectionId, EndReason, FetchLimits, FetchPlan, HolderLoss, ImageKey, Lane, PlanReport,
    ProtocolError, RunningInput, RunningNode, RunningOutput,
};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};

use crate::base::{NodeError, NodeTimes, PageTimes};
use crate::duplex::Duplex;
use crate::fetch::{MemoryPeer, reach};
use crate::give::now;
use crate::here::{GroupsHere, LookingHere};
use crate::identity::Protocol;
use crate::poll::{wait_at_most, wait_for};
use crate::pressure::MemoryPressure;
use crate::times::{FetchMoment, FetchTimes, Timeline, WaitTimes, thread_cpu};

/// Pages that are being fetched.
mod page_fetch;

use self::page_fetch::Ended;
pub use self::page_fetch::PageFetch;

/// Each of these fetches one image.
const IMAGE: ImageKey = ImageKey(1);

/// Between two attempts to reach a node again.
const RETRY: Duration = Duration::from_millis(200);

/// The background goes on without what is here, if that is not known after this time.
const LOOK_MAX: Duration = Duration::from_secs(1);

/// Where pages go. [`RemoteImage`] has an example.
pub trait PageSink: Send + Sync + fmt::Debug {
    /// A descriptor that is ready for reading when somebody waits for a group, until
    /// [`PageSink::take_wanted`] is called.
    fn wanted(&self) -> BorrowedFd<'_>;

    /// The groups that somebody has begun to wait for since the last call.
    fn take_wanted(&self) -> Vec<u64>;

    /// The groups that are in their places already, of whomever: nobody is asked for them. By default none are.
    fn present(&self) -> Vec<Range<u64>> {
        Vec::new()
    }

    /// Puts a group, which was proved, in its place.
    ///
    /// # Errors
    /// Why that is not possible: the rest is given up then.
    fn install(&self, group: u64, bytes: &[u8]) -> io::Result<()>;

    /// As [`PageSink::install`], and says when the group was in its place, as long as nobody who waits for it could
    /// go on: what comes behind that is no part of a wait. By default it is when `install` returns.
    ///
    /// # Errors
    /// As of [`PageSink::install`].
    fn install_timed(&self, group: u64, bytes: &[u8]) -> io::Result<Instant> {
        self.install(group, bytes)?;
        Ok(Instant::now())
    }

    /// Nothing more comes, for whatever reason: what came of it.
    fn ended(&self, report: &FetchReport) {
        let _ = report;
    }

    /// All groups were installed.
    fn whole(&self, report: &FetchReport) {
        let _ = report;
    }

    /// Nobody has what is absent any more, and why.
    fn give_up(&self, why: &NodeError);
}

/// What came of fetching pages.
///
/// # Examples
///
/// ```
/// use pagefork_node::FetchReport;
/// use pagefork_postcopy::PlanLayer;
///
/// let report = FetchReport::default();
/// assert_eq!((report.received, report.plan.counts(PlanLayer::Fault).asked), (0, 0));
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FetchReport {
    /// What each layer of the plan came to.
    pub plan: PlanReport,
    /// Bytes that this side has sent, as the network had them, handshakes not counted.
    pub sent: u64,
    /// Bytes that have come.
    pub received: u64,
    /// How often it has connected.
    pub connections: u64,
    /// Where the time of those went who waited for groups.
    pub waits: WaitTimes,
    /// What the thread that fetches has taken of a processor.
    pub cpu: FetchTimes,
    /// How far it was when.
    pub timeline: Vec<FetchMoment>,
}

/// An image at a memory node, of which the head is here.
///
/// # Examples
///
/// ```
/// use std::collections::BTreeMap;
/// use std::io;
/// use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
/// use std::sync::{Arc, Mutex};
///
/// use pagefork_image::*;
/// use pagefork_node::*;
/// use pagefork_postcopy::FetchPlan;
/// use rustix::event::{EventfdFlags, eventfd};
///
/// /// Keeps what comes.
/// #[derive(Debug)]
/// struct Groups(Mutex<BTreeMap<u64, Vec<u8>>>, OwnedFd);
///
/// impl PageSink for Groups {
///     fn wanted(&self) -> BorrowedFd<'_> {
///         self.1.as_fd()
///     }
///     fn take_wanted(&self) -> Vec<u64> {
///         Vec::new()
///     }
///     fn install(&self, group: u64, bytes: &[u8]) -> io::Result<()> {
///         self.0.lock().unwrap().insert(group, bytes.to_vec());
///         Ok(())
///     }
///     fn give_up(&self, _: &NodeError) {}
/// }
///
/// # let path = std::env::temp_dir().join(format!("pagefork-remote-{}", std::process::id()));
/// let (here, there) = (ImageStore::open(path.join("a"))?, ImageStore::open(path.join("b"))?);
/// let [node, runner, author] = [1, 2, 3].map(|seed| SecretKey::from_seed([seed; 32]));
/// # let instance = SavedInstance { extents: vec![0..1 << 16], ..SavedInstance::default() };
/// # let code = SavedCode { hash: there.save_code(b"code")?.hash(), ..SavedCode::default() };
/// # let instance = SavedInstance { code, ..instance };
/// # let manifest = Manifest { instances: vec![instance], ..Manifest::default() };
/// # let pages = PageRuns::new(vec![vec![(0, vec![7; 1 << 16])]]);
/// let draft = ImageDraft::new(manifest, &pages).sign_with(&[author.clone()]);
/// there.set_name("counter", there.save(draft)?.hash())?;
/// let mut options = ServeOptions::new(node.clone());
/// options.access = Arc::new(|_| true);
/// let server = MemoryServer::bind("127.0.0.1:0", there, options)?;
/// let peer = MemoryPeer { address: server.address().to_string(), key: node.public() };
/// std::thread::spawn(move || server.run());
///
/// let signers = TrustedKeys::from_iter([author.public()]);
/// let (plan, times) = (FetchPlan::default(), PageTimes::default());
/// let image = RemoteImage::open(&peer, &runner, "counter", &signers, plan, times)?;
/// assert_eq!(image.head().group_count(), 4);
/// fetch_code(&peer, &runner, image.head(), &here, &times.node)?;
/// let groups = Arc::new(Groups(Mutex::default(), eventfd(0, EventfdFlags::empty())?));
/// let fetch = image.fetch_into(groups.clone())?;
/// // Programs run meanwhile.
/// fetch.join()?;
/// assert_eq!(groups.0.lock().unwrap()[&3], [7; 16384]);
/// # std::fs::remove_dir_all(path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct RemoteImage {
    taker: Taker,
    head: Arc<ImageHead>,
    /// Groups that came with it.
    early: Vec<(u64, Vec<u8>)>,
    /// Groups that earlier runs have touched.
    recalled: Vec<Range<u64>>,
    /// What looks for groups that are here already.
    looking: Option<LookingHere>,
}

/// What fetches one image.
struct Taker {
    peer: MemoryPeer,
    own: SecretKey,
    name: String,
    /// What is shown to the peer; empty if nothing is.
    token: Vec<u8>,
    times: PageTimes,
    node: RunningNode,
    /// The connection, unless it is lost.
    duplex: Option<Duplex>,
    connection: ConnectionId,
    /// Whether memory is short.
    pressure: MemoryPressure,
    /// What the plan came to, once all is here.
    whole: Option<PlanReport>,
    /// Bytes of connections that are over.
    sent: u64,
    received: u64,
    /// What is to be done.
    to_do: VecDeque<RunningOutput>,
    /// Groups that somebody waits for, and since when that is known here.
    waited: BTreeMap<u64, Instant>,
    /// When something has come last.
    came: Instant,
    waits: WaitTimes,
    cpu: FetchTimes,
    timeline: Timeline,
    /// Groups that were installed.
    groups: u64,
    /// What looks for groups that are here.
    looking: Option<LookingHere>,
    /// What it has found.
    here: GroupsHere,
    /// Groups that are to be read there.
    to_look_up: VecDeque<(u64, ContentHash)>,
    /// What has ended the connection, behind all that came by it.
    failed: Option<LinkFailure>,
    /// Whether that takes too long.
    is_late: bool,
}

impl fmt::Debug for Taker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Taker").field("peer", &self.peer).finish_non_exhaustive()
    }
}

/// What happens to the image that is fetched.
#[derive(Debug)]
enum Event {
    Opened(Arc<ImageHead>),
    Group(u64, Vec<u8>, Duration),
    /// A group may be here, if this stands for it.
    LookUp(u64, ContentHash),
    /// The peer has it no more, or never had.
    Ended(HolderLoss),
}

/// Why nothing comes over a connection any more.
#[derive(Debug)]
enum LinkFailure {
    /// It is lost, and another one may do.
    Lost(NodeError),
    /// The peer is no source.
    Final(NodeError),
}

impl From<LinkFailure> for NodeError {
    fn from(failure: LinkFailure) -> Self {
        match failure {
            LinkFailure::Lost(error) | LinkFailure::Final(error) => error,
        }
    }
}

impl RemoteImage {
    /// Opens the image that `name` means at `peer`, a name or a hash: its head comes, and none of its
    /// pages has to. `own` is the key that this node has at the peer.
    ///
    /// # Errors
    /// As of [`fetch_image`](crate::fetch_image); [`NodeError::Refused`] also of a delta, which is
    /// only to be had whole; [`NodeError::Protocol`] if the peer does not keep to the protocol.
    ///
    /// # Examples
    ///
    /// See [`RemoteImage`].
    pub fn open(
        peer: &MemoryPeer,
        own: &SecretKey,
        name: &str,
        signers: &TrustedKeys,
        plan: FetchPlan,
        times: PageTimes,
    ) -> Result<Self, NodeError> {
        Self::open_by_token(peer, own, name, &[], signers, plan, times)
    }

    /// The same, of a peer that lets this node have the image because it shows a
    /// [token](pagefork_postcopy::ImageToken); an empty one is none.
    ///
    /// # Errors
    /// As of [`RemoteImage::open`]; [`NodeError::NotAllowed`] if the token does not do.
    ///
    /// # Examples
    ///
    /// See [`StartOptions::token`](crate::StartOptions::token), which has it shown.
    pub fn open_by_token(
        peer: &MemoryPeer,
        own: &SecretKey,
        name: &str,
        token: &[u8],
        signers: &TrustedKeys,
        plan: FetchPlan,
        times: PageTimes,
    ) -> Result<Self, NodeError> {
        let limits = FetchLimits::default();
        let certain_groups = if plan.certain { limits.certain_groups } else { 0 };
        let limits = FetchLimits { answer_timeout: times.node.idle, certain_groups, ..limits };
        let mut taker = Taker {
            peer: peer.clone(),
            own: own.clone(),
            name: name.to_owned(),
            token: token.to_vec(),
            times,
            node: RunningNode::new(limits),
            duplex: None,
            connection: ConnectionId(0),
            pressure: MemoryPressure::new(),
            whole: None,
            sent: 0,
            received: 0,
            to_do: VecDeque::new(),
            waited: BTreeMap::new(),
            came: Instant::now(),
            waits: WaitTimes::default(),
            cpu: FetchTimes::default(),
            timeline: Timeline::new(Instant::now()),
            groups: 0,
            looking: None,
            here: GroupsHere::default(),
            to_look_up: VecDeque::new(),
            failed: None,
            is_late: false,
        };
        let (name, hash) = (name.to_owned(), name.parse().ok());
        // What is needed before pages comes first.
        let plan = FetchPlan { held: true, ..plan };
        taker.tell(RunningInput::Open { image: IMAGE, name, hash, plan });
        taker.connect(times.node)?;
        let until = Instant::now() + times.node.handshake;
        let (mut head, mut early) = (None, Vec::new());
        let head = loop {
            for event in taker.turn().map_err(|failure| taker.unknown(failure))? {
                match event {
                    Event::Opened(opened) => head = Some(opened),
                    Event::Group(group, bytes, _) => early.push((group, bytes)),
                    // Nothing was said to be.
                    Event::LookUp(..) => {}
                    Event::Ended(why) => return Err(taker.refused(why)),
                }
            }
            match head.take() {
                Some(head) => break head,
                None if Instant::now() >= until => {
                    let seconds = times.node.handshake.as_secs();
                    return Err(ProtocolError::Stalled { seconds }.into());
                }
                None => taker.wait(&[], Some(until))?,
            }
        };
        // Machine code comes with it.
        if !head.signers().iter().any(|signer| signers.contains(signer)) {
            let (image, signatures) = (head.hash(), head.signers().len());
            return Err(ImageError::NotSigned { image, signatures }.into());
        }
        Ok(Self { taker, head, early, recalled: Vec::new(), looking: None })
    }

    /// Manifest and signatures.
    ///
    /// # Examples
    ///
    /// See [`RemoteImage`].
    pub fn head(&self) -> &Arc<ImageHead> {
        &self.head
    }

    /// Has the groups asked for early that earlier runs have touched, in this order, unless the plan
    /// has others.
    ///
    /// # Examples
    ///
    /// See [`StartOptions::recall`](crate::StartOptions::recall), which does it.
    pub fn recall(&mut self, groups: Vec<Range<u64>>) {
        self.recalled = groups;
    }

    /// Has groups that other images of a store have as well not travel. They are looked for on a thread of
    /// its own, among the 256 images that came last: in four that run the same code. The peer is told hashes
    /// of their groups, by which it can find out what is in them if it can guess it. What nobody needs yet is asked for when that is done, or after
    /// a second.
    ///
    /// # Examples
    ///
    /// See [`StartOptions::look_here`](crate::StartOptions::look_here), which does it.
    pub fn look_in(&mut self, images: &ImageStore) {
        self.look_in_all(images, Vec::new());
    }

    /// The same, also in images that come from other nodes.
    pub(crate) fn look_in_all(&mut self, images: &ImageStore, coming: Vec<Weak<IncompleteImage>>) {
        // Without a thread all travels.
        self.looking = LookingHere::begin(&self.head, images, coming);
    }

    /// Gets the pages into `sink`, on a thread of its own: first those that somebody waits for.
    ///
    /// # Errors
    /// [`NodeError::Io`] if the system refuses a thread.
    ///
    /// # Examples
    ///
    /// See [`RemoteImage`].
    pub fn fetch_into(self, sink: Arc<dyn PageSink>) -> Result<PageFetch, NodeError> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let action = || NodeError::io("begin to fetch pages");
        let stop = eventfd(0, flags).map_err(|error| action()(error.into()))?;
        let stop = Arc::new(stop);
        let (stops, builder) = (Arc::clone(&stop), thread::Builder::new());
        let ended: Arc<Ended> = Arc::default();
        let ends = Arc::clone(&ended);
        let pages = Arc::clone(&sink);
        let thread = builder.name("pagefork-pages".to_owned()).spawn(move || {
            let Self { mut taker, head, early, recalled, looking } = self;
            let looks_here = looking.is_some();
            taker.looking = looking;
            for groups in pages.present() {
                taker.tell(RunningInput::Given { image: IMAGE, groups });
            }
            taker.tell(RunningInput::Begin { image: IMAGE, recorded: recalled, looks_here });
            let fetched = taker.fetch(&head, early, &*pages, stops.as_fd());
            let report = taker.report();
            pages.ended(&report);
            match &fetched {
                Ok(()) => pages.whole(&report),
                Err(error) => pages.give_up(error),
            }
            ends.set();
            (report, fetched)
        });
        Ok(PageFetch { thread: Some(thread.map_err(action())?), ended, stop, sink })
    }
}

impl Taker {
    /// Gets all pages, those first that came with the head.
    fn fetch(
        &mut self,
        head: &ImageHead,
        early: Vec<(u64, Vec<u8>)>,
        sink: &dyn PageSink,
        stop: BorrowedFd<'_>,
    ) -> Result<(), NodeError> {
        self.timeline = Timeline::new(Instant::now());
        for (group, bytes) in &early {
            self.install(head, sink, *group, bytes, Duration::ZERO)?;
        }
        let (mut lost_since, mut has_given) = (None, false);
        // An image can be whole with its head.
        while self.whole.is_none() {
            self.need(sink);
            self.say_what_is_here();
            match self.turn() {
                Ok(events) => {
                    for event in events {
                        match event {
                            Event::Opened(_) => {}
                            Event::Group(group, bytes, spent) => {
                                // While those before it were put in their places, guests went on.
                                if is_ready(sink.wanted())? {
                                    self.need(sink);
                                }
                                self.install(head, sink, group, &bytes, spent)?;
                                has_given = true;
                            }
                            Event::LookUp(group, hash) => self.to_look_up.push_back((group, hash)),
                            Event::Ended(why) => return Err(self.refused(why)),
                        }
                    }
                }
                Err(LinkFailure::Final(error)) => return Err(error),
                Err(LinkFailure::Lost(error)) => {
                    self.forget_present(sink);
                    // Who gives anything but what somebody waits for, and leaves, would never be given up.
                    if std::mem::take(&mut has_given) && !self.owes_since(lost_since) {
                        lost_since = None;
                    }
                    let since = *lost_since.get_or_insert_with(|| self.gives_nothing_since());
                    self.lose();
                    self.reach_again(head.hash(), since, stop, error)?;
                    continue;
                }
            }
            if self.whole.is_some() {
                break;
            }
            self.look_one_up();
            // Who has begun to wait meanwhile is asked for first: nobody else would wake this thread.
            if self.to_do.is_empty() && self.to_look_up.is_empty() {
                let looking = self.looking.take();
                let ready = looking.as_ref().map(LookingHere::ready);
                let signals: Vec<_> = [sink.wanted(), stop].into_iter().chain(ready).collect();
                // The background goes on without what is not found in time.
                let until = looking.as_ref().filter(|_| !self.is_late);
                let waited = self.wait(&signals, until.map(|looking| looking.began + LOOK_MAX));
                self.looking = looking;
                waited?;
            }
            if is_raised(stop) {
                return Err(NodeError::Stopped);
            }
        }
        Ok(())
    }

    /// Says what is here, as soon as that is known, or that nothing is, if it takes too long: the
    /// background waits for it.
    fn say_what_is_here(&mut self) {
        let Some(looking) = &self.looking else { return };
        match looking.found() {
            Some((here, groups)) => {
                (self.here, self.looking) = (here, None);
                self.tell(RunningInput::Here { image: IMAGE, groups });
            }
            None if !self.is_late && looking.began.elapsed() >= LOOK_MAX => {
                self.is_late = true;
                self.tell(RunningInput::Here { image: IMAGE, groups: Vec::new() });
            }
            None => {}
        }
    }

    /// Reads one of the groups that may be here, those first that are waited for: between two of them is
    /// time to see who has begun to wait, and what has come.
    fn look_one_up(&mut self) {
        let is_waited_for = |(group, _): &(u64, _)| self.waited.contains_key(group);
        let at = self.to_look_up.iter().position(is_waited_for).unwrap_or(0);
        if let Some((group, hash)) = self.to_look_up.remove(at) {
            let bytes = self.here.read(group, hash);
            self.tell(RunningInput::LookedUp { image: IMAGE, group, bytes });
        }
    }

    /// Asks for what somebody has begun to wait for.
    fn need(&mut self, sink: &dyn PageSink) {
        let deadline = Instant::now() + self.times.patience;
        for group in sink.take_wanted() {
            self.waited.entry(group).or_insert_with(Instant::now);
            self.tell(RunningInput::Need { image: IMAGE, group, deadline });
        }
    }

    /// Nobody waits for what others have put in its place.
    fn forget_present(&mut self, sink: &dyn PageSink) {
        for groups in sink.present() {
            self.waited.retain(|group, _| !groups.contains(group));
        }
    }

    /// Whether somebody has waited for a group ever since a moment, or for longer.
    fn owes_since(&self, moment: Option<Instant>) -> bool {
        moment.is_some_and(|moment| self.waited.values().any(|asked| *asked <= moment))
    }

    /// Since when a node that is lost now is of no use: from the moment on since which somebody has waited for a group of
    /// it. The line may be all that is to blame, so half of the time is left in which the node is tried again.
    fn gives_nothing_since(&self) -> Instant {
        let now = Instant::now();
        let earliest = now.checked_sub(self.times.lost / 2).unwrap_or(now);
        self.waited.values().min().map_or(now, |asked| (*asked).max(earliest))
    }

    /// Puts a group in its place, of which the memory node says how long it had it.
    fn install(
        &mut self,
        head: &ImageHead,
        sink: &dyn PageSink,
        group: u64,
        bytes: &[u8],
        spent: Duration,
    ) -> Result<(), NodeError> {
        let (began, cpu) = (Instant::now(), thread_cpu());
        let action = || format!("put group {group} of image {} in its place", head.hash());
        let placed = sink.install_timed(group, bytes).map_err(NodeError::io(action()))?;
        let ended = Instant::now();
        self.cpu.install += thread_cpu() - cpu;
        self.groups += 1;
        if let Some(asked) = self.waited.remove(&group) {
            // It may have come before anything waited.
            let came = self.came.max(asked);
            let server = spent.min(came - asked);
            self.waits.groups += 1;
            self.waits.server += server;
            self.waits.network += came - asked - server;
            self.waits.handle += began.saturating_duration_since(came);
            // Who has waited may run before this thread does.
            self.waits.install += placed.saturating_duration_since(began);
        }
        self.timeline.note(ended, self.groups, self.waits.groups);
        Ok(())
    }

    fn tell(&mut self, input: RunningInput<'_>) {
        self.to_do.extend(self.node.handle(input, now()));
    }

    fn talk(&self) -> impl FnOnce(io::Error) -> NodeError + use<> {
        NodeError::io(format!("talk to node {}", self.peer.address))
    }

    fn connect(&mut self, times: NodeTimes) -> Result<(), NodeError> {
        let channel = reach(&self.peer, &self.own, Protocol::Pages, &times)?;
        self.duplex = Some(Duplex::new(channel).map_err(self.talk())?);
        // No other one has had this number.
        self.connection = ConnectionId(self.connection.0 + 1);
        let connection = self.connection;
        self.tell(RunningInput::Connected { connection });
        let token = self.token.clone();
        self.tell(RunningInput::AddHolder { image: IMAGE, connection, token });
        Ok(())
    }

    /// Takes what has come, and says what is to be said. What came before a connection ended counts.
    ///
    /// # Errors
    /// What ends the connection.
    fn turn(&mut self) -> Result<Vec<Event>, LinkFailure> {
        let mut events = Vec::new();
        if let Some(failure) = self.failed.take() {
            // What is here is read before anybody is asked again.
            return self.carry_out_after(failure, events);
        }
        match self.exchange(&mut events) {
            // It may have failed before what was read meanwhile was given out.
            Err(failure) => self.carry_out_after(failure, events),
            Ok(()) => Ok(events),
        }
    }

    /// Does what is to be done although the connection has failed, which counts once nothing is left.
    fn carry_out_after(
        &mut self,
        failure: LinkFailure,
        mut events: Vec<Event>,
    ) -> Result<Vec<Event>, LinkFailure> {
        let ended = self.carry_out(&mut events);
        if events.is_empty() && self.to_look_up.is_empty() && self.whole.is_none() {
            return Err(failure);
        }
        self.failed = Some(ended.err().unwrap_or(failure));
        Ok(events)
    }

    fn exchange(&mut self, events: &mut Vec<Event>) -> Result<(), LinkFailure> {
        let connection = self.connection;
        let lost = |taker: &Self, error| LinkFailure::Lost(taker.talk()(error));
        let cpu = thread_cpu();
        let arrived = match self.duplex.as_mut().map(Duplex::receive) {
            Some(Ok(arrived)) => {
                if !arrived.is_empty() {
                    self.came = Instant::now();
                }
                arrived
            }
            Some(Err(error)) => return Err(lost(self, error)),
            None => return Err(lost(self, io::ErrorKind::NotConnected.into())),
        };
        let received_cpu = thread_cpu();
        self.cpu.network += received_cpu - cpu;
        if self.pressure.is_short(Instant::now()) {
            self.tell(RunningInput::MemoryPressure);
        }
        let (bytes, lane) = (&arrived.bytes[..], Lane::Control);
        self.tell(RunningInput::Received { connection, lane, bytes });
        for (lane, bytes) in &arrived.others {
            self.tell(RunningInput::Received { connection, lane: *lane, bytes });
        }
        self.carry_out(events)?;
        let handled_cpu = thread_cpu();
        self.cpu.handle += handled_cpu - received_cpu;
        let sent = self.duplex.as_mut().map_or(Ok(0), Duplex::send);
        self.cpu.network += thread_cpu() - handled_cpu;
        match sent {
            Err(error) => Err(lost(self, error)),
            Ok(_) if arrived.is_over => Err(lost(self, io::ErrorKind::UnexpectedEof.into())),
            Ok(_) => Ok(()),
        }
    }

    /// Does what is to be done.
    ///
    /// # Errors
    /// What ends the connection.
    fn carry_out(&mut self, events: &mut Vec<Event>) -> Result<(), LinkFailure> {
        let connection = self.connection;
        while let Some(output) = self.to_do.pop_front() {
            match output {
                RunningOutput::Send { connection: to, bytes } if to == connection => {
                    if let Some(duplex) = &mut self.duplex {
                        duplex.push(Lane::Control, bytes);
                    }
                }
                RunningOutput::Opened { head, .. } => events.push(Event::Opened(head)),
                RunningOutput::Group { group, bytes, spent, cpu, .. } => {
                    self.cpu.server += cpu;
                    events.push(Event::Group(group, bytes, spent));
                }
                RunningOutput::Whole { report, .. } => self.whole = Some(report),
                RunningOutput::LookUp { group, hash, .. } => {
                    events.push(Event::LookUp(group, hash));
                }
                RunningOutput::HolderLost { why, .. } if why != HolderLoss::Disconnected => {
                    events.push(Event::Ended(why));
                }
                RunningOutput::Close { connection: of, why } if of == connection => {
                    self.leave();
                    return Err(match why {
                        ProtocolError::Stalled { .. }
                        | ProtocolError::Idle { .. }
                        | ProtocolError::PeerLeft(_) => LinkFailure::Lost(why.into()),
                        why => LinkFailure::Final(why.into()),
                    });
                }
                // Who waited too long is told by the sink.
                RunningOutput::Overdue { .. }
                | RunningOutput::Stranded { .. }
                | RunningOutput::Migration { .. }
                | RunningOutput::HolderLost { .. }
                | RunningOutput::Send { .. }
                | RunningOutput::Close { .. } => {}
            }
        }
        Ok(())
    }

    fn wait(&mut self, also: &[BorrowedFd<'_>], until: Option<Instant>) -> Result<(), NodeError> {
        if self.failed.is_some() {
            return Ok(());
        }
        let due = match (self.node.deadline(), until) {
            (Some(due), Some(until)) => Some(due.min(until)),
            (due, until) => due.or(until),
        };
        let waited = self.duplex.as_mut().map_or(Ok(()), |duplex| duplex.wait(also, due));
        waited.map_err(self.talk())
    }

    /// Ends it.
    fn report(&mut self) -> FetchReport {
        self.leave();
        FetchReport {
            plan: self
                .whole
                .take()
                .or_else(|| self.node.report(IMAGE).cloned())
                .unwrap_or_default(),
            sent: self.sent,
            received: self.received,
            connections: self.connection.0,
            waits: self.waits,
            cpu: self.cpu,
            timeline: self.timeline.end(Instant::now(), self.groups, self.waits.groups),
        }
    }

    fn drop_duplex(&mut self) {
        if let Some(duplex) = self.duplex.take() {
            self.sent += duplex.sent();
            self.received += duplex.received();
        }
    }

    /// The connection is no more.
    fn lose(&mut self) {
        self.drop_duplex();
        self.tell(RunningInput::Disconnected { connection: self.connection });
    }

    /// Says that nothing follows.
    fn leave(&mut self) {
        if let Some(duplex) = &mut self.duplex {
            // Who does not hear it notices when the connection is gone.
            let _ = duplex.end();
        }
        self.drop_duplex();
    }

    /// Connects again, as long as that makes sense.
    ///
    /// # Errors
    /// [`NodeError::Lost`] when the time is up.
    fn reach_again(
        &mut self,
        image: ContentHash,
        since: Instant,
        stop: BorrowedFd<'_>,
        mut why: NodeError,
    ) -> Result<(), NodeError> {
        loop {
            let left = self.times.lost.saturating_sub(since.elapsed());
            if left.is_zero() {
                let (address, seconds) = (self.peer.address.clone(), self.times.lost.as_secs());
                return Err(NodeError::Lost { image, address, seconds, why: why.to_string() });
            }
            let mut stops = [PollFd::from_borrowed_fd(stop, PollFlags::IN)];
            wait_for(&mut stops, Some(Instant::now() + RETRY)).map_err(self.talk())?;
            if is_raised(stop) {
                return Err(NodeError::Stopped);
            }
            let times = self.times.node;
            match self.connect(NodeTimes { handshake: times.handshake.min(left), ..times }) {
                Ok(()) => return Ok(()),
                Err(error) => why = error,
            }
        }
    }

    /// What a failure is before anything has come: a peer that does not know us says so only then,
    /// as its side of the handshake ends last.
    fn unknown(&self, failure: LinkFailure) -> NodeError {
        match failure {
            LinkFailure::Lost(NodeError::Io { error, .. }) => {
                NodeError::Handshake { address: self.peer.address.clone(), error }
            }
            other => other.into(),
        }
    }

    fn refused(&self, why: HolderLoss) -> NodeError {
        let name = self.name.clone();
        let has_token = !self.token.is_empty();
        match why {
            HolderLoss::Ended(EndReason::NotAllowed) if has_token => {
                let why = "the token is none of that image, for this node, by one whom that node takes \
                           tokens of: `pagefork node grant` makes one";
                return NodeError::NotAllowed { name, why };
            }
            HolderLoss::Ended(EndReason::NotAllowed) => {
                let why = "this node needs a token for it, by `pagefork node grant` there";
                return NodeError::NotAllowed { name, why };
            }
            HolderLoss::Ended(EndReason::Expired) if has_token => {
                let why = "the token has expired: ask for a new one";
                return NodeError::NotAllowed { name, why };
            }
            _ => {}
        }
        let reason = match why {
            HolderLoss::Ended(_) => "it has no such image, or not as pages",
            HolderLoss::OtherImage => "what it has under this name is another image",
            HolderLoss::GroupFailed => "it cannot read its own image",
            HolderLoss::Disconnected => "the connection is lost",
        };
        NodeError::Refused { name, reason: reason.to_owned() }
    }
}

impl Drop for Taker {
    fn drop(&mut self) {
        self.leave();
    }
}

fn is_ready(signal: BorrowedFd<'_>) -> Result<bool, NodeError> {
    let mut polled = [PollFd::new(&signal, PollFlags::IN)];
    wait_at_most(&mut polled, Some(Instant::now())).map_err(NodeError::io("look who waits"))?;
    Ok(!polled[0].revents().is_empty())
}

fn is_raised(signal: BorrowedFd<'_>) -> bool {
    // Without having been raised it would have to wait.
    rustix::io::read(signal, &mut [0; 8]).is_ok()
}

#[cfg(test)]
mod tests;
