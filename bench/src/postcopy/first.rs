//! How long it takes until a guest runs, and forks of an image that came from another node.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pagefork::image::{ImageStore, StoredImage, TrustedKeys};
use pagefork::{IncompleteImage, InstancePre, Linker, LoadOptions, Module, Snapshot};
use pagefork_node::{ComingImage, FoundImage, NodeTimes, StartOptions, fetch_image, start_image};
use pagefork_postcopy::PlanLayer;

use super::pages::{self, Pattern};
use super::parts::{self, Ready, Served, Way, here, key, milliseconds, received, there, trusted};
use super::peers;
use crate::engines;
use crate::image::programs as python;
use crate::programs::fetched;

/// Milliseconds from nothing but a process that has the code, and what has come by then.
pub(super) const COLUMNS: [&str; 3] = ["first instruction", "first answer", "wire MiB"];

/// The CPython of other benchmarks; other names are numbers of pages.
pub(super) const PYTHON: &str = "CPython";

/// Saves CPython as it waits for its input, if it was fetched, and has its code at hand. Returns whether
/// it was.
pub(super) fn prepare_python(directory: &Path) -> bool {
    let Some(wasm) = fetched("python.wasm") else { return false };
    let (_, image) = python::python(&wasm, python::SCRIPT, &there(directory));
    there(directory).set_name(PYTHON, image).expect("a good name");
    parts::have_code(directory, image);
    true
}

/// Starts a guest, and gives what it took.
///
/// # Panics
/// If its answer is wrong.
pub(super) fn run(way: Way, what: &str, served: Served, directory: &Path) -> [f64; COLUMNS.len()] {
    if what == PYTHON {
        return run_python(way, served, directory);
    }
    let pages: u32 = what.parse().expect("a number of pages");
    let module = parts::compiled(pages);
    let clock = Clock::start();
    match way {
        Way::Tls | Way::Quic => {
            let images = here(directory);
            let found = come(way, served, &parts::name(pages), &images, &trusted());
            let (pre, image) = incomplete(&found, &images, &module);
            let values = clock.answer(Ready::new(pre.spawn(()).expect("a slot")), pages);
            assert!(pages < 100_000 || !image.is_whole(), "it has not waited for all of it");
            values
        }
        Way::Pages => {
            let ready = parts::fresh(&module);
            let start = ready.start();
            let (faults, events) = peers::faults_of(start, pages).expect("userfaultfd");
            let patience = Duration::from_secs(1);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    peers::fetch_pages(served.pages, faults, events, start, 1, patience)
                        .expect("a page comes")
                });
                clock.answer(ready, pages)
            })
        }
        Way::Push => {
            let mut ready = parts::fresh(&module);
            peers::fetch_all(served.all, ready.pages(pages)).expect("all pages come");
            clock.answer(ready, pages)
        }
        Way::Copy => {
            let images = here(directory);
            let image = copied(served, &parts::name(pages), &images, &trusted());
            let load = LoadOptions::new().module(&module);
            let snapshot =
                Snapshot::<()>::load(&Linker::new(module.engine()), &images, image.hash(), load);
            let pre = snapshot.and_then(|snapshot| snapshot.instance_pre()).expect("it was saved");
            let values = clock.answer(Ready::new(pre.spawn(()).expect("a slot")), pages);
            let hash = image.hash();
            drop((pre, image));
            images.remove(hash).expect("nobody uses it any more");
            values
        }
    }
}

fn run_python(way: Way, served: Served, directory: &Path) -> [f64; COLUMNS.len()] {
    let engine = engines::pagefork::engine(true);
    let (images, linker) = (here(directory), python::linker(&engine));
    // Its code is in the store.
    let load = LoadOptions::new().trust(python::trusted());
    let clock = Clock::start();
    // Until it is dropped, pages come.
    let (snapshot, _coming, copied) = match way {
        Way::Tls | Way::Quic => {
            let coming = come(way, served, PYTHON, &images, &python::trusted());
            let snapshot = Snapshot::load_incomplete(&linker, coming.image(), &images, load);
            (snapshot, Some(coming), None)
        }
        Way::Copy => {
            let image = copied(served, PYTHON, &images, &python::trusted());
            let snapshot = Snapshot::load(&linker, &images, image.hash(), load);
            (snapshot, None, Some(image))
        }
        Way::Pages | Way::Push => panic!("who has only a memory has no frames of CPython"),
    };
    let snapshot = snapshot.expect("it was saved");
    let (mut store, _, output) = python::spawned(&snapshot, python::INPUT);
    let (first, wire) = (clock.began.elapsed(), received() - clock.wire);
    // Leaving by `proc_exit` is an error to the engine.
    drop(store.resume());
    let answered = clock.began.elapsed();
    assert_eq!(output.contents(), python::ANSWER);
    if let Some(image) = copied {
        let hash = image.hash();
        drop((store, snapshot, image));
        images.remove(hash).expect("nobody uses it any more");
    }
    [milliseconds(first), milliseconds(answered), wire]
}

/// Forks a second of an image that is here, and of the same that came from another node, when all of it
/// has come; 200 forks have touched it meanwhile.
///
/// # Panics
/// If a group has come twice, or a guest sees another byte.
pub(super) fn forks(way: Way, pages: u32, served: Served, directory: &Path) -> [f64; 2] {
    const TOUCHING: u32 = 200;
    let module = parts::compiled(pages);
    let images = here(directory);
    let coming = come(way, served, &parts::name(pages), &images, &trusted());
    let (pre, image) = incomplete(&coming, &images, &module);
    for _ in 0..TOUCHING {
        let mut ready = Ready::new(pre.spawn(()).expect("a slot"));
        let sum = ready.sum(Pattern::Random, pages, pages / 25);
        assert_eq!(sum, Pattern::Random.sum(pages, pages / 25));
    }
    let report = coming.join().expect("all pages come");
    assert!(image.is_whole());
    let remote = rate(&pre);
    let copied = copied(served, &parts::name(pages), &images, &trusted());
    let arrived = PlanLayer::ALL.map(|layer| report.plan.counts(layer).arrived);
    let groups = copied.chain().tip().manifest().data_size.div_ceil(16 << 10);
    assert_eq!(arrived.iter().sum::<u64>(), groups, "each group comes once");
    let load = LoadOptions::new().module(&module);
    let snapshot = Snapshot::load(&Linker::new(module.engine()), &images, copied.hash(), load);
    let local = snapshot.and_then(|snapshot| snapshot.instance_pre()).expect("it was saved");
    let rates = [remote, rate(&local)];
    let hash = copied.hash();
    drop((local, copied));
    images.remove(hash).expect("nobody uses it any more");
    rates
}

/// An image of another node, of which all is here.
pub(super) struct Resident {
    pre: InstancePre<()>,
    _coming: ComingImage,
}

impl Resident {
    pub(super) fn new(pages: u32, served: Served, directory: &Path) -> Self {
        let module = parts::compiled(pages);
        let images = here(directory);
        let coming = come(Way::Tls, served, &parts::name(pages), &images, &trusted());
        let (pre, image) = incomplete(&coming, &images, &module);
        image.wait_whole().expect("all pages come");
        Self { pre, _coming: coming }
    }

    /// Forks a second, each of which runs: for a second, so that nodes do it at the same time.
    pub(super) fn rate(&self) -> f64 {
        rate(&self.pre);
        let (began, mut forks) = (Instant::now(), 0);
        while began.elapsed() < Duration::from_secs(1) {
            rate(&self.pre);
            forks += FORKS;
        }
        f64::from(forks) / began.elapsed().as_secs_f64()
    }
}

/// Forks that are timed together.
const FORKS: u32 = 5000;

/// Forks a second, each of which runs.
fn rate(pre: &InstancePre<()>) -> f64 {
    let began = Instant::now();
    for _ in 0..FORKS {
        Ready::new(pre.spawn(()).expect("a slot")).begin();
    }
    f64::from(FORKS) / began.elapsed().as_secs_f64()
}

fn come(
    way: Way,
    served: Served,
    name: &str,
    images: &ImageStore,
    trusted: &TrustedKeys,
) -> ComingImage {
    let options = StartOptions { keep: false, recall: false, ..StartOptions::default() };
    match start_image(&served.peer(way), &key(2), name, images, trusted, &options) {
        Ok(FoundImage::Coming(coming)) => coming,
        other => panic!("the image does not come page by page: {other:?}"),
    }
}

fn copied(served: Served, name: &str, images: &ImageStore, trusted: &TrustedKeys) -> StoredImage {
    let times = NodeTimes::default();
    fetch_image(&served.peer(Way::Tls), &key(2), name, images, trusted, &times).expect("it comes")
}

fn incomplete(
    coming: &ComingImage,
    images: &ImageStore,
    module: &Module,
) -> (InstancePre<()>, Arc<IncompleteImage>) {
    let (linker, load) = (Linker::new(module.engine()), LoadOptions::new().module(module));
    let snapshot = Snapshot::<()>::load_incomplete(&linker, coming.image(), images, load);
    let pre = snapshot.and_then(|snapshot| snapshot.instance_pre()).expect("it was saved");
    (pre, Arc::clone(coming.image()))
}

/// Since when, and what had come by then.
struct Clock {
    began: Instant,
    wire: f64,
}

impl Clock {
    fn start() -> Self {
        Self { began: Instant::now(), wire: received() }
    }

    /// Runs a guest that has touched nothing, and then has it read its last page.
    fn answer(&self, mut ready: Ready, pages: u32) -> [f64; COLUMNS.len()] {
        ready.begin();
        let (first, wire) = (self.began.elapsed(), received() - self.wire);
        assert_eq!(ready.word(pages - 1), pages::first_word(pages - 1));
        [milliseconds(first), milliseconds(self.began.elapsed()), wire]
    }
}
