//! The two nodes, each a process of its own when it is measured.

use std::fs::{self, File};
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use pagefork::image::{ContentHash, ImageStore, SecretKey, TrustedKeys};
use pagefork::{
    Instance, Linker, LoadOptions, Memory, Module, SaveOptions, Snapshot, Store, TypedFunc,
};
use pagefork_node::{
    FoundImage, MemoryPeer, MemoryServer, NodeAddress, NodeTimes, ServeOptions, StartOptions,
    Transport, fetch_image, start_image,
};
use pagefork_wasi::{ProgramState, WasiCtx};

use super::layers::Without;
use super::pages::{PAGE, Pattern, check, check_page, fill, mask, module};
use super::peers::{self, thread_cpu};
use super::relay::{self, Trouble};
use crate::engines;

/// How pages come to who runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    /// As they are needed, and ahead: Pagefork, over TLS on TCP.
    Tls,
    /// The same over QUIC.
    Quic,
    /// One at a time, by datagrams that have the address.
    Pages,
    /// All pushed into memory before the start.
    Push,
    /// The image copied, kept, and then started from.
    Copy,
}

impl Way {
    pub(super) const ALL: [Self; 5] = [Self::Tls, Self::Quic, Self::Pages, Self::Push, Self::Copy];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Tls => "Pagefork, TLS",
            Self::Quic => "Pagefork, QUIC",
            Self::Pages => "a page at a time",
            Self::Push => "pushed",
            Self::Copy => "copied first",
        }
    }

    pub(super) fn of_name(name: &str) -> Self {
        Self::ALL.into_iter().find(|way| way.name() == name).expect("a way")
    }
}

/// Where the memory node listens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Served {
    tls: NodeAddress,
    quic: NodeAddress,
    pub(super) pages: SocketAddr,
    pub(super) all: SocketAddr,
}

impl Served {
    pub(super) fn words(self) -> [String; 4] {
        let Self { tls, quic, pages, all } = self;
        [tls.to_string(), quic.to_string(), pages.to_string(), all.to_string()]
    }

    pub(super) fn of_words(words: &[&str]) -> Self {
        let node = |index: usize| words[index].parse().expect("an address");
        let socket = |index: usize| words[index].parse().expect("an address");
        Self { tls: node(0), quic: node(1), pages: socket(2), all: socket(3) }
    }

    /// The memory node.
    pub(super) fn peer(self, way: Way) -> MemoryPeer {
        let address = if way == Way::Quic { self.quic } else { self.tls };
        MemoryPeer { address: address.to_string(), key: key(1).public() }
    }
}

/// What one run is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) way: Way,
    pub(super) pattern: Pattern,
    pub(super) pages: u32,
    /// How many of them are touched.
    pub(super) touched: u32,
    /// How long a datagram is waited for.
    pub(super) timeout: Duration,
    /// The layer of the plan that is left out.
    pub(super) without: Without,
}

impl Run {
    pub(super) fn words(&self) -> [String; 6] {
        let timeout = self.timeout.as_millis().to_string();
        let names = [self.way.name(), self.pattern.name(), self.without.name()];
        let [way, pattern, without] = names.map(str::to_owned);
        [way, pattern, self.pages.to_string(), self.touched.to_string(), timeout, without]
    }

    pub(super) fn of_words(words: &[&str]) -> Self {
        Self {
            way: Way::of_name(words[0]),
            pattern: Pattern::of_name(words[1]),
            pages: words[2].parse().expect("a number"),
            touched: words[3].parse().expect("a number"),
            timeout: Duration::from_millis(words[4].parse().expect("a number")),
            without: Without::of_name(words[5]),
        }
    }
}

/// What a run took, in milliseconds or as it is said.
pub(super) const COLUMNS: [&str; 19] = [
    "init",
    "toucher",
    "its CPU",
    "network",
    "server",
    "handle",
    "IO",
    "told",
    "unseen",
    "waits",
    "CPU here",
    "CPU there",
    "all here",
    "wire MiB",
    // What each part takes of a processor, in a table of its own.
    "init CPU",
    "network CPU",
    "server CPU",
    "handle CPU",
    "IO CPU",
];

/// Of the columns those of which the first table has a part's time as it passes.
pub(super) const WALL_COLUMNS: std::ops::Range<usize> = 0..14;

/// A value for each of [`COLUMNS`]; not a number where nobody knows.
pub(super) type Values = [f64; COLUMNS.len()];

pub(super) fn key(seed: u8) -> SecretKey {
    SecretKey::from_seed([seed; 32])
}

pub(super) fn name(pages: u32) -> String {
    format!("pages-{pages}")
}

pub(super) fn there(directory: &Path) -> ImageStore {
    ImageStore::open(directory.join("there")).expect("a directory of ours")
}

pub(super) fn here(directory: &Path) -> ImageStore {
    ImageStore::open(directory.join("here")).expect("a directory of ours")
}

/// Signs what is saved here, and is trusted.
pub(super) fn trusted() -> TrustedKeys {
    TrustedKeys::from_iter([key(3).public()])
}

/// The module whose memory has so many pages.
pub(super) fn compiled(pages: u32) -> Module {
    Module::new(&engines::pagefork::engine(true), module(pages)).expect("a valid module")
}

/// Makes an image of so many pages, and a file of the same bytes.
pub(super) fn prepare(directory: &Path, pages: u32) {
    let module = compiled(pages);
    let mut store = Store::new(module.engine(), ());
    let instance = Instance::new(&mut store, &module, &[]).expect("a slot");
    let memory = instance.get_memory(&mut store, "memory").expect("it is there");
    let mut file = File::create(directory.join(name(pages))).expect("a directory of ours");
    for (page, bytes) in (0..pages).zip(memory.data_mut(&mut store).chunks_exact_mut(PAGE)) {
        fill(page, pages, bytes);
        file.write_all(bytes).expect("there is room");
    }
    let images = there(directory);
    let signers = [key(3)];
    // As a program's, so that the command goes on from it, too.
    let ctx = WasiCtx::builder().build().expect("it has nothing");
    let wasi = ctx.save().expect("nothing is open");
    let state = ProgramState { wasi, written: Vec::new() }.to_bytes().expect("it can be written");
    let options = SaveOptions::new().state(state).sign_with(&signers);
    let image = store.snapshot().and_then(|snapshot| snapshot.save(&images, options));
    let image = image.expect("there is room");
    images.set_name(&name(pages), image).expect("a good name");
    have_code(directory, image);
}

/// Has the code of an image where it is started.
pub(super) fn have_code(directory: &Path, image: ContentHash) {
    let images = there(directory);
    let stored = images.load(image).expect("it was saved");
    for instance in &stored.chain().tip().manifest().instances {
        let code = images.load_code(instance.code.hash).expect("it was saved");
        let mut bytes = vec![0; code.size() as usize];
        code.bytes().read_exact_at(&mut bytes, 0).expect("it is there");
        here(directory).save_code(&bytes).expect("there is room");
    }
}

/// Serves what was prepared, in every way.
pub(super) fn serve(ip: IpAddr, directory: &Path, pages: u32, trouble: Trouble) -> Served {
    let mut options = ServeOptions::new(key(1));
    options.access = Arc::new(|_| true);
    let at = |transport| NodeAddress { transport, socket: SocketAddr::from((ip, 0)) };
    let mut server =
        MemoryServer::bind(at(Transport::Tls), there(directory), options).expect("a free port");
    let mut tls = server.address();
    let mut quic = server.listen_at(at(Transport::Quic)).expect("a free port");
    thread::spawn(move || server.run());
    let file = Arc::new(File::open(directory.join(name(pages))).expect("it was prepared"));
    let mut pages = peers::serve_pages(ip, Arc::clone(&file)).expect("a free port");
    let mut all = peers::serve_all(ip, file).expect("a free port");
    if !trouble.is_none() {
        for stream in [&mut tls.socket, &mut all] {
            *stream = relay::stream(ip, *stream, trouble).expect("a free port");
        }
        for datagrams in [&mut quic.socket, &mut pages] {
            *datagrams = relay::datagrams(ip, *datagrams, trouble).expect("a free port");
        }
    }
    Served { tls, quic, pages, all }
}

/// A guest that is ready to touch its pages.
pub(super) struct Ready {
    instance: Instance,
    store: Store<()>,
    memory: Memory,
    touch: TypedFunc<(i32, i32, i32, i32), i64>,
}

impl Ready {
    pub(super) fn new((mut store, instance): (Store<()>, Instance)) -> Self {
        let memory = instance.get_memory(&mut store, "memory").expect("it is there");
        let touch = instance.get_typed_func(&mut store, "touch").expect("it is there");
        Self { instance, store, memory, touch }
    }

    /// Runs it, without that it touches anything.
    pub(super) fn begin(&mut self) {
        let begin = self.instance.get_typed_func::<(), ()>(&mut self.store, "begin");
        begin.and_then(|begin| begin.call(&mut self.store, ())).expect("it returns");
    }

    /// The word that a page begins with.
    pub(super) fn word(&mut self, page: u32) -> i64 {
        let word = self.instance.get_typed_func::<i32, i64>(&mut self.store, "word");
        word.and_then(|word| word.call(&mut self.store, page as i32)).expect("the page comes")
    }

    /// Touches so many of all pages.
    pub(super) fn sum(&mut self, pattern: Pattern, all: u32, touched: u32) -> i64 {
        let arguments = (pattern.number(), all as i32, touched as i32, mask(all) as i32);
        self.touch.call(&mut self.store, arguments).expect("all pages come")
    }

    /// Where its memory begins.
    pub(super) fn start(&self) -> u64 {
        self.memory.data(&self.store).as_ptr() as u64
    }

    /// The pages of its memory, to be written.
    pub(super) fn pages(&mut self, pages: u32) -> &mut [u8] {
        &mut self.memory.data_mut(&mut self.store)[..pages as usize * PAGE]
    }

    /// Touches pages, and gives how long that took, and of a processor.
    fn touch(&mut self, run: &Run) -> (Duration, Duration) {
        let (began, cpu) = (Instant::now(), thread_cpu());
        let sum = self.sum(run.pattern, run.pages, run.touched);
        let took = (began.elapsed(), thread_cpu() - cpu);
        assert_eq!(sum, run.pattern.sum(run.pages, run.touched), "{run:?}");
        took
    }

    fn check(&self, run: &Run) {
        check(self.memory.data(&self.store), run.pages);
    }

    /// Checks the pages that were touched: others may never come.
    fn check_touched(&self, run: &Run) {
        let mut found = [0; PAGE];
        for page in run.pattern.order(run.pages, run.touched) {
            let read = self.memory.read(&self.store, page as usize * PAGE, &mut found);
            read.expect("it was touched");
            check_page(page, &found, run.pages);
        }
    }
}

/// Touches all pages as they come, and gives what it took.
///
/// # Panics
/// If a byte is wrong.
pub(super) fn run(run: &Run, served: Served, directory: &Path) -> Values {
    let module = compiled(run.pages);
    match run.way {
        Way::Tls | Way::Quic => {
            if run.pattern == Pattern::Replayed {
                on_demand(run, served, directory, &module);
            } else {
                let _ = fs::remove_dir_all(directory.join("here/touched"));
            }
            on_demand(run, served, directory, &module)
        }
        Way::Pages => a_page_at_a_time(run, served, &module),
        Way::Push => pushed(run, served, &module),
        Way::Copy => copied(run, served, directory, &module),
    }
}

fn on_demand(run: &Run, served: Served, directory: &Path, module: &Module) -> Values {
    let images = here(directory);
    let (peer, trusted) = (served.peer(run.way), trusted());
    let recall = run.pattern == Pattern::Replayed && run.without != Without::Recorded;
    let plan = run.without.plan();
    let options = StartOptions { keep: false, recall, plan, ..StartOptions::default() };
    let linker = Linker::new(module.engine());
    let (began, before_wire, init) = (Instant::now(), received(), process_cpu());
    let found = start_image(&peer, &key(2), &name(run.pages), &images, &trusted, &options);
    let FoundImage::Coming(coming) = found.expect("it is there") else {
        panic!("the image came whole");
    };
    let load = LoadOptions::new().module(module);
    let snapshot = Snapshot::<()>::load_incomplete(&linker, coming.image(), &images, load);
    let pre = snapshot.and_then(|snapshot| snapshot.instance_pre()).expect("it was saved");
    let mut ready = Ready::new(pre.spawn(()).expect("a slot"));
    let first = began.elapsed();
    let (before, spent) = (coming.image().residency(), process_cpu());
    let init = spent - init;
    let (toucher, own) = ready.touch(run);
    let (residency, spent) = (coming.image().residency(), process_cpu() - spent);
    let image = Arc::clone(coming.image());
    let (whole, wire, report);
    if run.without.plan().background {
        report = coming.join().expect("all pages come");
        (whole, wire) = (began.elapsed(), received() - before_wire);
        assert!(image.is_whole());
        ready.check(run);
    } else {
        // What nobody has touched is not asked for.
        (whole, wire) = (began.elapsed(), received() - before_wire);
        ready.check_touched(run);
        report = coming.stop();
    }
    // The guest's clock says how long it has waited, and what remains of that beside the parts that the thread that
    // fetches has counted is until one of the two knows of the other.
    let waited = residency.waited - before.waited;
    let waits = report.waits;
    let told = waits.rest_of(waited);
    let parts = [waits.network, waits.server, waits.handle, waits.install, told];
    // What it takes of a processor in a wait is in the parts of that.
    let own = own.saturating_sub(residency.waiting_cpu - before.waiting_cpu);
    // Less than nothing if two parts were the same time.
    let rest = milliseconds(toucher) - milliseconds(own + parts.iter().sum::<Duration>());
    let [network, server, handle, io, told] = parts.map(milliseconds);
    [
        milliseconds(first),
        milliseconds(toucher),
        milliseconds(own),
        network,
        server,
        handle,
        io,
        told,
        rest,
        (residency.waits - before.waits) as f64,
        milliseconds(spent),
        f64::NAN,
        milliseconds(whole),
        wire,
        milliseconds(init),
        milliseconds(report.cpu.network),
        milliseconds(report.cpu.server),
        milliseconds(report.cpu.handle),
        milliseconds(report.cpu.install),
    ]
}

fn a_page_at_a_time(run: &Run, served: Served, module: &Module) -> Values {
    let (began, wire, init) = (Instant::now(), received(), process_cpu());
    let mut ready = fresh(module);
    let start = ready.start();
    let (faults, events) = peers::faults_of(start, run.pages).expect("userfaultfd");
    let first = began.elapsed();
    let spent = process_cpu();
    let init = spent - init;
    let (toucher, own, times) = thread::scope(|scope| {
        let handler = scope.spawn(move || {
            peers::fetch_pages(served.pages, faults, events, start, run.pages, run.timeout)
        });
        let (toucher, own) = ready.touch(run);
        (toucher, own, handler.join().expect("it ends").expect("all pages come"))
    });
    let spent = process_cpu() - spent;
    let whole = began.elapsed();
    let wire = received() - wire;
    ready.check(run);
    let parts = [times.network, times.server, times.handle, times.io];
    let rest = toucher.saturating_sub(own + parts.iter().sum::<Duration>());
    let [network, server, handle, io] = parts.map(milliseconds);
    [
        milliseconds(first),
        milliseconds(toucher),
        milliseconds(own),
        network,
        server,
        handle,
        io,
        // It is in the rest.
        0.0,
        milliseconds(rest),
        f64::from(run.pages),
        milliseconds(spent),
        f64::NAN,
        milliseconds(whole),
        wire,
        milliseconds(init),
        milliseconds(times.cpu.network),
        milliseconds(times.cpu.server),
        milliseconds(times.cpu.handle),
        milliseconds(times.cpu.io),
    ]
}

fn pushed(run: &Run, served: Served, module: &Module) -> Values {
    let (began, wire, spent) = (Instant::now(), received(), process_cpu());
    let mut ready = fresh(module);
    peers::fetch_all(served.all, ready.pages(run.pages)).expect("all pages come");
    all_before(run, &mut ready, began, wire, spent)
}

fn copied(run: &Run, served: Served, directory: &Path, module: &Module) -> Values {
    let images = here(directory);
    let (peer, trusted) = (served.peer(run.way), trusted());
    let linker = Linker::new(module.engine());
    let (began, wire, spent) = (Instant::now(), received(), process_cpu());
    let times = NodeTimes::default();
    let image = fetch_image(&peer, &key(2), &name(run.pages), &images, &trusted, &times);
    let image = image.expect("it comes");
    let load = LoadOptions::new().module(module);
    let snapshot = Snapshot::<()>::load(&linker, &images, image.hash(), load);
    let pre = snapshot.and_then(|snapshot| snapshot.instance_pre()).expect("it was saved");
    let mut ready = Ready::new(pre.spawn(()).expect("a slot"));
    let values = all_before(run, &mut ready, began, wire, spent);
    drop((ready, pre));
    let hash = image.hash();
    drop(image);
    images.remove(hash).expect("nobody uses it any more");
    values
}

/// All pages are here, and are touched.
fn all_before(run: &Run, ready: &mut Ready, began: Instant, wire: f64, spent: Duration) -> Values {
    let first = began.elapsed();
    let init = process_cpu() - spent;
    let (toucher, own) = ready.touch(run);
    let spent = process_cpu() - spent;
    let whole = began.elapsed();
    let wire = received() - wire;
    ready.check(run);
    let rest = milliseconds(toucher.saturating_sub(own));
    let (first, toucher, own) = (milliseconds(first), milliseconds(toucher), milliseconds(own));
    let (spent, whole) = (milliseconds(spent), milliseconds(whole));
    let none = f64::NAN;
    let init = milliseconds(init);
    let parts = [first, toucher, own, 0.0, 0.0, 0.0, 0.0, 0.0, rest, 0.0, spent, none, whole, wire];
    let cpu = [init, none, none, none, none];
    std::array::from_fn(|column| parts.iter().chain(&cpu).nth(column).copied().unwrap_or(none))
}

pub(super) fn fresh(module: &Module) -> Ready {
    let mut store = Store::new(module.engine(), ());
    let instance = Instance::new(&mut store, module, &[]).expect("a slot");
    Ready::new((store, instance))
}

pub(super) fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// What all threads have taken of processors.
pub(super) fn process_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// MiB that have come over the line of this namespace; not a number where there is none.
pub(super) fn received() -> f64 {
    let devices = fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default();
    let line = devices.lines().find_map(|device| device.trim_start().strip_prefix("line:"));
    let count = line.and_then(|numbers| numbers.split_whitespace().next()?.parse::<f64>().ok());
    count.map_or(f64::NAN, |count| count / (1 << 20) as f64)
}
