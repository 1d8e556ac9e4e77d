//! The side of a running node that starts instances of an image before its pages are here.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use pagefork::IncompleteImage;
use pagefork_image::{
    ContentHash, ImageHead, ImageReader, ImageStore, Manifest, ReadAt, SavedHolder, SecretKey,
    StoredCode, StoredImage, TrustedKeys,
};
use pagefork_postcopy::FetchPlan;

use crate::base::{NodeError, PageTimes};
use crate::fetch::{
    self, HeadCheck, MemoryPeer, NeededModules, fetch_checked, fetch_code, fetch_modules,
};
use crate::guests::{GuestClock, ThreadClock, TimeSpent};
use crate::named::{AcceptedHead, HolderCheck, NamedHolders};
use crate::place::{PageHolder, fetch_from_place};
use crate::take::{FetchReport, PageFetch, PageSink, RemoteImage};

/// Between two looks whether pages that come from another node are still needed.
const LOOK: Duration = Duration::from_millis(20);

/// What happens to an image whose pages come while its instances run.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartEvent<'a> {
    /// All pages are here.
    Whole {
        /// The image.
        image: ContentHash,
        /// What it took.
        report: &'a FetchReport,
    },
    /// It is in the store now, and found there from now on.
    Kept {
        /// The image.
        image: ContentHash,
    },
    /// It could not be put into the store. Instances have all they need.
    NotKept {
        /// The image.
        image: ContentHash,
        /// Why not.
        error: &'a NodeError,
    },
    /// One that was asked does not give it, and another one that may have it is asked.
    Elsewhere {
        /// The image.
        image: ContentHash,
        /// Why not.
        error: &'a NodeError,
        /// The other one.
        holder: &'a PageHolder,
    },
    /// It names a holder that is not asked though all others are lost.
    NotAsked {
        /// The image.
        image: ContentHash,
        /// The holder.
        holder: &'a SavedHolder,
        /// Why it is not asked.
        why: &'a str,
    },
    /// Its other pages will not come: instances that touch them trap.
    Lost {
        /// The image.
        image: ContentHash,
        /// Why not.
        error: &'a NodeError,
    },
}

/// How [`start_image`] goes about it.
///
/// # Examples
///
/// ```
/// use std::sync::Arc;
///
/// use pagefork_node::{StartEvent, StartOptions};
///
/// let observe = Arc::new(|event: &StartEvent<'_>| eprintln!("{event:?}"));
/// let options = StartOptions { observe, ..StartOptions::default() };
/// assert!(options.plan.background);
/// ```
#[derive(Clone)]
pub struct StartOptions {
    /// What is asked for besides what guests wait for.
    pub plan: FetchPlan,
    /// How long pages are waited for.
    pub times: PageTimes,
    /// Other nodes, and object stores, that have the image or will have it: they are asked, one after
    /// the other, when the one before is lost or does not give what it should, also before anything has come of it, if
    /// the image is wanted by its hash or its head is here.
    /// Of what they give counts what the image's tree proves, so they need not be trusted.
    pub others: Vec<PageHolder>,
    /// Whom of the [holders](pagefork_image::Manifest::holders) that an image names this process asks, after `others`,
    /// where somebody who is trusted has signed the image: nobody, unless it is said. A
    /// [`ProgramNode`](crate::ProgramNode) asks the nodes and object stores that it knows.
    pub holders: Option<HolderCheck>,
    /// Whether modules whose code cannot run here are compiled when the image is
    /// [loaded](pagefork::LoadOptions::compile): then such an image is not refused if its modules are here, or the
    /// node that has the image has kept them.
    pub compiles: bool,
    /// Whether an image of which all is here is put into the store.
    pub keep: bool,
    /// Whether what instances touch is noted in the store, and asked for early the next time.
    pub recall: bool,
    /// Whether groups that other images of the store have as well, or that come to this process with
    /// others, are taken from there: whoever has the image is told hashes of them.
    pub look_here: bool,
    /// What is shown to the node that has the image, if it gives it by
    /// [tokens](pagefork_postcopy::ImageToken) alone; empty if nothing is.
    pub token: Vec<u8>,
    /// Is told what happens, on the thread that gets the pages: guests wait for it.
    pub observe: Arc<dyn Fn(&StartEvent<'_>) + Send + Sync>,
}

impl Default for StartOptions {
    /// Images are kept, what was touched is recalled, and nobody is told.
    fn default() -> Self {
        Self {
            plan: FetchPlan::default(),
            times: PageTimes::default(),
            others: Vec::new(),
            holders: None,
            compiles: false,
            keep: true,
            recall: true,
            look_here: true,
            token: Vec::new(),
            observe: Arc::new(|_| ()),
        }
    }
}

impl fmt::Debug for StartOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { plan, times, keep, recall, look_here, .. } = self;
        let mut shown = f.debug_struct("StartOptions");
        shown.field("plan", plan).field("times", times).field("keep", keep);
        shown.field("recall", recall).field("look_here", look_here);
        shown.finish_non_exhaustive()
    }
}

/// An image that [`start_image`] has found.
#[derive(Debug)]
pub enum FoundImage {
    /// All of it is in the store.
    Here(StoredImage),
    /// Its pages come while instances run.
    Coming(ComingImage),
}

/// An image whose pages come while instances run. Dropped, it stops: who waits for a page, or touches
/// one that is absent, traps. [`start_image`] has an example.
#[derive(Debug)]
pub struct ComingImage {
    sink: Arc<ImagePages>,
    fetch: PageFetch,
    head_time: TimeSpent,
    code_time: TimeSpent,
    guests: GuestClock,
    _over: OverWhenDropped,
}

/// Nobody needs the pages any more when this is dropped.
#[derive(Debug)]
struct OverWhenDropped(Arc<ImagePages>);

impl Drop for OverWhenDropped {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl ComingImage {
    /// What instances are made of, by
    /// [`Snapshot::load_incomplete`](pagefork::Snapshot::load_incomplete).
    ///
    /// # Examples
    ///
    /// See [`start_image`].
    pub fn image(&self) -> &Arc<IncompleteImage> {
        &self.sink.image
    }

    /// Counts what guests of it take, those of all who share it together.
    ///
    /// # Examples
    ///
    /// See [`GuestClock`].
    pub fn guests(&self) -> &GuestClock {
        &self.guests
    }

    /// What it took the thread that started it to connect and to get the head: what the manifest says.
    ///
    /// # Examples
    ///
    /// See [`start_image`].
    pub fn head_time(&self) -> TimeSpent {
        self.head_time
    }

    /// What it took that thread to have the code, before the first page was asked for.
    ///
    /// # Examples
    ///
    /// See [`start_image`].
    pub fn code_time(&self) -> TimeSpent {
        self.code_time
    }

    /// Whether nothing more comes, neither of the first node nor of another holder: all is here, and kept if it was to
    /// be, or it has failed.
    ///
    /// # Examples
    ///
    /// See [`start_image`].
    pub fn is_finished(&self) -> bool {
        // In this order: before the first one ends, it has another one asked.
        self.fetch.is_finished() && self.sink.waits().asking == 0
    }

    /// Whether pages are missing that will not come any more: who touches one traps.
    ///
    /// # Examples
    ///
    /// See [`ComingImages`](crate::ComingImages), which starts such an image anew.
    pub fn is_lost(&self) -> bool {
        self.sink.is_over.load(Ordering::Relaxed) && !self.image().is_whole()
    }

    /// Waits until nothing more comes of the first node. Another holder that is asked by then is left, as when it is
    /// dropped: whoever lets it bring the rest waits until it [is finished](Self::is_finished).
    ///
    /// # Errors
    /// As of [`PageFetch::join`].
    ///
    /// # Examples
    ///
    /// See [`start_image`].
    pub fn join(self) -> Result<FetchReport, NodeError> {
        self.fetch.join()
    }

    /// As [`ComingImage::stop`], and waits no longer than `limit`: `None` if it has not ended by then,
    /// such as because a node that is lost is being connected to.
    ///
    /// # Examples
    ///
    /// See [`start_image`].
    pub fn stop_within(self, limit: Duration) -> Option<FetchReport> {
        self.sink.end();
        self.fetch.stop_within(limit)
    }

    /// Stops it, and says what has come; see [`PageFetch::stop`].
    ///
    /// # Examples
    ///
    /// See [`start_image`].
    pub fn stop(self) -> FetchReport {
        self.sink.end();
        self.fetch.stop()
    }
}

/// Finds the image that `name` means at `peer`, a name or a hash, so that instances of it can start:
/// as soon as its head and its code are here, which `images` has or gets. The pages come meanwhile,
/// and then the image is kept in `images`, too.
///
/// It is fetched [whole](crate::fetch_image) first if it is a delta there, or if this system does not tell
/// of faults in absent pages.
///
/// # Errors
/// As of [`fetch_image`](crate::fetch_image) and [`RemoteImage::open`]; [`NodeError::CodeRefused`] before
/// code and pages come; [`NodeError::Nowhere`] if others were asked as well, with what came of each;
/// [`NodeError::OwnFailure`] if this node's store or system refuses something.
///
/// # Examples
///
/// ```
/// use std::sync::Arc;
///
/// use pagefork::image::{ImageStore, SecretKey, TrustedKeys};
/// use pagefork::{Engine, Instance, Linker, LoadOptions, Module, SaveOptions, Snapshot, Store};
/// use pagefork_node::*;
///
/// # let path = std::env::temp_dir().join(format!("pagefork-start-{}", std::process::id()));
/// let (here, there) = (ImageStore::open(path.join("a"))?, ImageStore::open(path.join("b"))?);
/// let [node, runner, author] = [1, 2, 3].map(|seed| SecretKey::from_seed([seed; 32]));
/// let engine = Engine::default();
/// let module = Module::new(&engine, r#"(module
///     (memory 100) (data (i32.const 6000000) "far")
///     (func (export "far") (result i32) (i32.load8_u (i32.const 6000000))))"#)?;
/// let mut store = Store::new(&engine, ());
/// Instance::new(&mut store, &module, &[])?;
/// let options = SaveOptions::new().sign_with(std::slice::from_ref(&author));
/// there.set_name("started", store.snapshot()?.save(&there, options)?)?;
/// let mut options = ServeOptions::new(node.clone());
/// options.access = Arc::new(|_| true);
/// let server = MemoryServer::bind("127.0.0.1:0", there, options)?;
/// let peer = MemoryPeer { address: server.address().to_string(), key: node.public() };
/// std::thread::spawn(move || server.run());
///
/// let keys = TrustedKeys::from_iter([author.public()]);
/// let options = StartOptions::default();
/// let found = start_image(&peer, &runner, "started", &here, &keys, &options)?;
/// let FoundImage::Coming(coming) = found else {
///     # return Ok(());
///     panic!("it was not here");
/// };
/// let (image, trust) = (coming.image(), LoadOptions::new().trust(keys.clone()));
/// let snapshot: Snapshot<()> =
///     Snapshot::load_incomplete(&Linker::new(&engine), image, &here, trust)?;
/// let (mut store, instance) = snapshot.instance_pre()?.spawn(())?;
/// let far = instance.get_typed_func::<(), i32>(&mut store, "far")?;
/// assert_eq!(far.call(&mut store, ())?, i32::from(b'f'));
///
/// // All of it comes, and the next time it is here.
/// coming.join()?;
/// let found = start_image(&peer, &runner, "started", &here, &keys, &options)?;
/// assert!(matches!(found, FoundImage::Here(_)));
/// # std::fs::remove_dir_all(path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn start_image(
    peer: &MemoryPeer,
    own: &SecretKey,
    name: &str,
    images: &ImageStore,
    signers: &TrustedKeys,
    options: &StartOptions,
) -> Result<FoundImage, NodeError> {
    let (coming, found, asked) = (Vec::new(), &AcceptedHead::default(), &[]);
    let source = ImageSource { peer, own, name, images, signers, options, coming, found, asked };
    match source.start() {
        Err(error) if error.is_of_peer() => source.start_elsewhere(error),
        started => started,
    }
}

/// Has what this system can do tried while the network is waited for: the first start of a process takes less
/// time by that.
fn try_system_meanwhile() {
    static BEGUN: AtomicBool = AtomicBool::new(false);
    if !BEGUN.swap(true, Ordering::Relaxed) {
        let thread = thread::Builder::new().name("pagefork-tries".to_owned());
        // Without a thread it is tried where it is needed.
        let _ = thread.spawn(IncompleteImage::prepare);
    }
}

/// An image at a memory node, and how instances of it start.
pub(crate) struct ImageSource<'a> {
    pub(crate) peer: &'a MemoryPeer,
    pub(crate) own: &'a SecretKey,
    pub(crate) name: &'a str,
    pub(crate) images: &'a ImageStore,
    pub(crate) signers: &'a TrustedKeys,
    pub(crate) options: &'a StartOptions,
    /// Images that come to this process, which may be like this one.
    pub(crate) coming: Vec<Weak<IncompleteImage>>,
    /// What the name means, once somebody who is trusted has signed that.
    pub(crate) found: &'a AcceptedHead,
    /// Who was asked before.
    pub(crate) asked: &'a [PageHolder],
}

/// An image of which the head is here.
pub(crate) struct OpenedImage {
    remote: RemoteImage,
    head_time: TimeSpent,
}

impl OpenedImage {
    pub(crate) fn hash(&self) -> ContentHash {
        self.remote.head().hash()
    }
}

impl ImageSource<'_> {
    pub(crate) fn start(&self) -> Result<FoundImage, NodeError> {
        match self.open(true)? {
            Some(opened) => self.go_on(opened),
            None => self.whole(),
        }
    }

    /// Gets the head, and, if `certain`, what the plan says of the groups that come with it. `None` of
    /// what is only to be had whole.
    pub(crate) fn open(&self, certain: bool) -> Result<Option<OpenedImage>, NodeError> {
        let Self { peer, own, name, signers, options, .. } = self;
        let plan = FetchPlan { certain: options.plan.certain && certain, ..options.plan.clone() };
        try_system_meanwhile();
        let clock = ThreadClock::start();
        match RemoteImage::open_by_token(
            peer,
            own,
            name,
            &options.token,
            signers,
            plan,
            options.times,
        ) {
            Ok(remote) => {
                self.accept(remote.head().hash(), remote.head().manifest());
                Ok(Some(OpenedImage { remote, head_time: clock.spent() }))
            }
            // A delta, or nothing: who gives images whole says which.
            Err(NodeError::Refused { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Gets all of it.
    pub(crate) fn whole(&self) -> Result<FoundImage, NodeError> {
        let Self { peer, own, name, images, signers, options, .. } = self;
        let times = &options.times.node;
        let image = fetch_checked(peer, own, name, images, signers, times, Some(self));
        image.map(FoundImage::Here)
    }

    /// Gets the code, and begins to get the pages, unless all is here.
    pub(crate) fn go_on(&self, opened: OpenedImage) -> Result<FoundImage, NodeError> {
        let Self { peer, own, images, signers, options, .. } = self;
        let StartOptions { plan, times, keep, recall, look_here, observe, .. } = options;
        let OpenedImage { mut remote, head_time } = opened;
        if let Some(image) = fetch::here(images, remote.head().hash(), signers)? {
            self.take_modules(remote.head(), true)?;
            return Ok(FoundImage::Here(image));
        }
        // Before anything else travels.
        let clock = ThreadClock::start();
        let mut code = self.take_modules(remote.head(), false)?;
        let mut code_time = clock.spent();
        let image = IncompleteImage::new(Arc::clone(remote.head()), times.patience);
        let action = NodeError::own("make room for the pages of an image");
        let image = image.map_err(|error| action(io::Error::other(error)))?;
        if !image.runs_incomplete() {
            // Its connection, and the lease of the image, would wait for nothing.
            drop((remote, image));
            return self.whole();
        }
        if *recall {
            // What cannot be read is no more than not known.
            remote.recall(images.touched(image.hash()).unwrap_or_default());
        }
        if *look_here {
            // While the code comes.
            remote.look_in_all(images, self.coming.clone());
        }
        // First, since nothing runs without it: pages would share the line with it.
        let clock = ThreadClock::start();
        code.extend(fetch_code(peer, own, remote.head(), images, &times.node)?);
        code_time.add(clock.spent());
        let others = VecDeque::from(options.others.clone());
        let holders = [self.asked, &[PageHolder::Node((*peer).clone())]].concat();
        let waits = Mutex::new(PageWaits { others, holders, ..PageWaits::default() });
        let sink = Arc::new_cyclic(|this| ImagePages {
            this: Weak::clone(this),
            image,
            images: keep.then(|| (*images).clone()),
            notes: recall.then(|| (*images).clone()),
            looks_in: look_here.then(|| (*images).clone()),
            observe: Arc::clone(observe),
            is_over: Arc::default(),
            own: (*own).clone(),
            signers: (*signers).clone(),
            plan: plan.clone(),
            times: *times,
            named: self.found.named(),
            _code: code,
            waits,
        });
        let fetch = remote.fetch_into(Arc::clone(&sink) as Arc<dyn PageSink>)?;
        let _over = OverWhenDropped(Arc::clone(&sink));
        let guests = GuestClock::new(&sink.image);
        Ok(FoundImage::Coming(ComingImage { sink, fetch, head_time, code_time, guests, _over }))
    }

    /// Somebody who is trusted has signed this.
    fn accept(&self, image: ContentHash, manifest: &Manifest) {
        self.found.accept(image, manifest, self.options.holders.as_ref(), &self.own.public());
    }

    /// What is needed to make code of, if the image's own cannot run here.
    ///
    /// # Errors
    /// [`NodeError::CodeRefused`], before anything else has travelled.
    fn take_modules(&self, head: &ImageHead, is_here: bool) -> Result<Vec<StoredCode>, NodeError> {
        let Self { peer, own, images, options, .. } = self;
        let needed = self.needed_modules(head.hash(), head.manifest(), is_here)?;
        fetch_modules(peer, own, head, images, &options.times.node, needed, self)
    }
}

impl HeadCheck for ImageSource<'_> {
    fn needed_modules(
        &self,
        image: ContentHash,
        manifest: &Manifest,
        is_here: bool,
    ) -> Result<NeededModules, NodeError> {
        self.accept(image, manifest);
        let modules = match self.options.compiles {
            true => IncompleteImage::modules_to_compile(manifest),
            // Whoever loads it says what is wrong with it.
            false if is_here => Ok(Vec::new()),
            false => IncompleteImage::check_code(manifest).map(|()| Vec::new()),
        };
        let modules = modules.map_err(|why| {
            let why = format!("{why:#}");
            NodeError::CodeRefused { image, why, module: None }
        })?;
        fetch::known(self.images, modules.into_iter())
    }

    fn refused(&self, image: ContentHash, manifest: &Manifest, module: ContentHash) -> NodeError {
        let code = IncompleteImage::check_code(manifest);
        let why = code.err().map_or_else(String::new, |why| format!("{why:#}; "));
        let why = format!("{why}module {module} is neither here nor kept where the image is");
        NodeError::CodeRefused { image, why, module: Some(module) }
    }
}

/// Where the pages go.
struct ImagePages {
    this: Weak<Self>,
    image: Arc<IncompleteImage>,
    /// Where it is kept once it is whole.
    images: Option<ImageStore>,
    /// Where is noted what was touched.
    notes: Option<ImageStore>,
    /// Where groups of other images are taken from.
    looks_in: Option<ImageStore>,
    observe: Arc<dyn Fn(&StartEvent<'_>) + Send + Sync>,
    /// Nobody needs it any more.
    is_over: Arc<AtomicBool>,
    own: SecretKey,
    signers: TrustedKeys,
    plan: FetchPlan,
    times: PageTimes,
    /// Whom the image names: they are asked after all others.
    named: NamedHolders,
    /// Code and modules: until the image is in the store nothing else has collection spare them.
    _code: Vec<StoredCode>,
    waits: Mutex<PageWaits>,
}

/// What somebody waits for, and who else is to be asked.
#[derive(Default)]
struct PageWaits {
    others: VecDeque<PageHolder>,
    /// Who was asked.
    holders: Vec<PageHolder>,
    /// Groups that a node was asked for because somebody waits for them, and that have not come.
    asked: BTreeSet<u64>,
    /// Of these, those that another one is to be asked for.
    again: Vec<u64>,
    /// How many threads have other holders asked.
    asking: usize,
}

/// A thread that has another holder asked, until it ends, in whichever way.
struct Asking(Arc<ImagePages>);

impl Asking {
    fn begin(sink: Arc<ImagePages>) -> Self {
        sink.waits().asking += 1;
        Self(sink)
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.waits().asking -= 1;
    }
}

impl ImagePages {
    fn waits(&self) -> MutexGuard<'_, PageWaits> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Nobody needs it any more: who waits for a page is told so at once, whoever is being asked.
    fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.image.give_up();
    }

    /// Asks another holder, now that one is lost. Returns whether there is one.
    fn ask_other(&self, why: &NodeError) -> bool {
        let Some(sink) = self.this.upgrade() else { return false };
        let (said, asked) = {
            let mut waits = self.waits();
            (waits.others.pop_front(), waits.holders.clone())
        };
        let Some(holder) = said.or_else(|| self.named.besides(&asked)) else { return false };
        {
            let mut waits = self.waits();
            waits.holders.push(holder.clone());
            waits.again = waits.asked.iter().copied().collect();
        }
        let image = self.image.hash();
        (self.observe)(&StartEvent::Elsewhere { image, error: why, holder: &holder });
        let thread = thread::Builder::new().name("pagefork-holder".to_owned());
        let asking = Asking::begin(sink);
        let asks = thread.spawn(move || {
            let sink = &asking.0;
            // A node that does not answer would be waited for.
            if sink.is_over() {
                return;
            }
            let peer = match holder {
                PageHolder::Node(peer) => peer,
                PageHolder::Place(place) => {
                    let ImagePages { image, plan, times, is_over, .. } = &**sink;
                    let background = plan.background;
                    match fetch_from_place(&place, image, &**sink, times, background, is_over) {
                        Ok(()) => {
                            let report = FetchReport::default();
                            sink.ended(&report);
                            sink.whole(&report);
                        }
                        Err(error) => sink.give_up(&error),
                    }
                    return;
                }
            };
            let ImagePages { own, signers, plan, times, .. } = &**sink;
            let name = image.to_string();
            // What is sent unasked comes before anybody can say that it is here.
            let certain = plan.certain && sink.present().is_empty();
            let plan = FetchPlan { certain, ..plan.clone() };
            let remote = RemoteImage::open(&peer, own, &name, signers, plan, *times);
            let pages = Arc::clone(sink) as Arc<dyn PageSink>;
            let looking = remote.map(|mut remote| {
                sink.looks_in.iter().for_each(|images| remote.look_in(images));
                remote
            });
            match looking.and_then(|remote| remote.fetch_into(pages)) {
                Ok(fetch) => {
                    while !fetch.is_finished() {
                        if sink.is_over() {
                            fetch.stop();
                            return;
                        }
                        thread::sleep(LOOK);
                    }
                }
                Err(error) => sink.give_up(&error),
            }
        });
        asks.is_ok()
    }
}

impl fmt::Debug for ImagePages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImagePages").field("image", &self.image).finish_non_exhaustive()
    }
}

impl PageSink for ImagePages {
    fn wanted(&self) -> BorrowedFd<'_> {
        self.image.wanted_signal()
    }

    fn take_wanted(&self) -> Vec<u64> {
        let mut wanted = self.image.take_wanted();
        let mut waits = self.waits();
        wanted.append(&mut waits.again);
        waits.asked.extend(&wanted);
        wanted
    }

    fn present(&self) -> Vec<Range<u64>> {
        between(&self.image.missing(), self.image.head().group_count())
    }

    fn install(&self, group: u64, bytes: &[u8]) -> io::Result<()> {
        self.install_timed(group, bytes).map(drop)
    }

    fn install_timed(&self, group: u64, bytes: &[u8]) -> io::Result<Instant> {
        let placed = self.image.install_timed(group, bytes).map_err(io::Error::other)?;
        self.waits().asked.remove(&group);
        // Another one that was asked has brought it.
        Ok(placed.unwrap_or_else(Instant::now))
    }

    fn ended(&self, report: &FetchReport) {
        let (Some(notes), image) = (&self.notes, self.image.hash()) else { return };
        let known = notes.touched(image).unwrap_or_default();
        let touched = joined(&known, &report.plan.recorded);
        if touched != known {
            // Without a note the next start is slower, and nothing else.
            let _ = notes.set_touched(image, &touched);
        }
    }

    fn whole(&self, report: &FetchReport) {
        // What was given up is not here, though it has come.
        if self.is_over() {
            return;
        }
        // Its last group may have come to where it could not be made final.
        if let Err(error) = self.image.wait_whole() {
            let error = io::Error::other(error);
            return self.give_up(&NodeError::own("make the pages of an image final")(error));
        }
        let image = self.image.hash();
        (self.observe)(&StartEvent::Whole { image, report });
        let Some(images) = &self.images else { return };
        let data =
            DataUntilOver { image: Arc::clone(&self.image), is_over: Arc::clone(&self.is_over) };
        let reader = ImageReader::of_head(self.image.head(), Box::new(data));
        match images.adopt_pages(&reader) {
            Ok(_) => (self.observe)(&StartEvent::Kept { image }),
            Err(_) if self.is_over() => {}
            Err(error) => (self.observe)(&StartEvent::NotKept { image, error: &error.into() }),
        }
    }

    fn give_up(&self, why: &NodeError) {
        let is_needed = !self.is_over.load(Ordering::Relaxed);
        if is_needed && !matches!(why, NodeError::Stopped) && self.ask_other(why) {
            return;
        }
        self.is_over.store(true, Ordering::Relaxed);
        // First, so that it stands before what becomes of the guests. Of what nobody needs, nothing is lost.
        if is_needed && !matches!(why, NodeError::Stopped) {
            let image = self.image.hash();
            let asked = self.waits().holders.clone();
            for (holder, why) in self.named.unasked(&asked) {
                let (holder, why) = (&holder, &why);
                (self.observe)(&StartEvent::NotAsked { image, holder, why });
            }
            (self.observe)(&StartEvent::Lost { image, error: why });
        }
        self.image.give_up();
    }
}

/// What lies between ranges that are ascending and apart, and around them, among so many groups.
fn between(missing: &[Range<u64>], groups: u64) -> Vec<Range<u64>> {
    let starts = [0].into_iter().chain(missing.iter().map(|range| range.end));
    let ends = missing.iter().map(|range| range.start).chain([groups]);
    starts.zip(ends).map(|(start, end)| start..end).filter(|range| !range.is_empty()).collect()
}

/// What is known to be touched, and behind it what was waited for all the same.
fn joined(known: &[Range<u64>], waited: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut seen: BTreeSet<u64> = known.iter().flat_map(|range| range.clone()).collect();
    let mut joined = known.to_vec();
    for group in waited.iter().flat_map(|range| range.clone()) {
        if seen.insert(group) {
            match joined.last_mut() {
                Some(last) if last.end == group => last.end += 1,
                _ => joined.push(group..group + 1),
            }
        }
    }
    joined
}

/// The data of an image, to be kept unless nobody needs it any more.
struct DataUntilOver {
    image: Arc<IncompleteImage>,
    is_over: Arc<AtomicBool>,
}

impl ReadAt for DataUntilOver {
    fn size(&self) -> io::Result<u64> {
        Ok(self.image.head().manifest().data_size)
    }

    fn read_exact_at(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        match self.is_over.load(Ordering::Relaxed) {
            true => Err(io::Error::other("nobody needs it any more")),
            false => self.image.read(offset, into).map_err(io::Error::other),
        }
    }
}

#[cfg(test)]
mod tests {
    use pagefork_image::{ImageDraft, ImageLimits, PageRuns, SavedInstance};

    use super::*;

    /// Where the pages of an image of four groups go, and what is said of it.
    #[allow(clippy::single_range_in_vec_init)] // Lists of one range are meant.
    fn pages() -> (Arc<ImagePages>, Arc<Mutex<Vec<String>>>) {
        let extents = [0..1 << 16].into();
        let instance = SavedInstance { extents, ..SavedInstance::default() };
        let manifest = Manifest { instances: vec![instance], ..Manifest::default() };
        let runs = PageRuns::new(vec![vec![(0, vec![7; 1 << 16])]]);
        let mut file = io::Cursor::new(Vec::new());
        ImageDraft::new(manifest, &runs).write(&mut file).unwrap();
        let limits = ImageLimits::default();
        let image = ImageReader::open(Box::new(file.into_inner()), &limits).unwrap();
        let head = Arc::new(ImageHead::read(&image).unwrap());
        let said = Arc::<Mutex<Vec<String>>>::default();
        let says = Arc::clone(&said);
        let pages = Arc::new_cyclic(|this| ImagePages {
            this: Weak::clone(this),
            image: IncompleteImage::new(head, Duration::from_secs(30)).unwrap(),
            images: None,
            notes: None,
            looks_in: None,
            observe: Arc::new(move |event| says.lock().unwrap().push(format!("{event:?}"))),
            is_over: Arc::default(),
            own: SecretKey::from_seed([2; 32]),
            signers: TrustedKeys::default(),
            plan: FetchPlan::default(),
            times: PageTimes::default(),
            named: NamedHolders::default(),
            _code: Vec::new(),
            waits: Mutex::default(),
        });
        (pages, said)
    }

    #[test]
    fn what_was_given_up_is_neither_whole_nor_lost() {
        let report = FetchReport::default();
        let (pages, said) = pages();
        pages.end();
        pages.whole(&report);
        pages.give_up(&NodeError::Refused { name: "any".into(), reason: "it is gone".into() });
        assert_eq!(*said.lock().unwrap(), [""; 0]);
        let (pages, said) = self::pages();
        (0..4).for_each(|group| pages.install(group, &[7; 1 << 14]).unwrap());
        pages.whole(&report);
        assert!(said.lock().unwrap()[0].starts_with("Whole"));
    }

    #[test]
    #[allow(clippy::single_range_in_vec_init)] // Lists of one range are meant.
    fn what_is_present_is_all_but_what_is_missing() {
        let (pages, _) = pages();
        assert_eq!(pages.present(), []);
        [0, 2].into_iter().for_each(|group| pages.install(group, &[7; 1 << 14]).unwrap());
        assert_eq!(pages.present(), [0..1, 2..3]);
        [1, 3].into_iter().for_each(|group| pages.install(group, &[7; 1 << 14]).unwrap());
        assert_eq!(pages.present(), [0..4].to_vec());
    }

    #[test]
    #[allow(clippy::single_range_in_vec_init)] // Lists of one range are meant.
    fn what_was_waited_for_goes_behind_what_was_known() {
        assert_eq!(joined(&[5..7, 0..1], &[0..2, 7..9, 6..7]), [5..7, 0..2, 7..9]);
        assert_eq!(joined(&[], &[3..4]), [3..4]);
        assert_eq!(joined(&[3..4], &[]), [3..4]);
    }
}
