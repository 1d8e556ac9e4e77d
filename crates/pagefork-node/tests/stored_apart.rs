//! Pages of programs that move before them lie in an object store, too: when the source is lost, they come
//! from there, as they were or not at all.

#![allow(clippy::single_range_in_vec_init)] // Extents of one range are meant.

mod common;

#[path = "../../pagefork-objects/tests/common/stalling.rs"]
mod stalling;

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use common::{Attached, Node, Pipe, Relay, SUMS, attach_filled, start, sum};
use pagefork_image::{
    ContentHash, ImageDraft, ImageLimits, ImageReader, ImageRepository, Manifest, PageRuns,
    SavedInstance,
};
use pagefork_node::{
    ImagePlace, KeptGroups, MigrateOptions, MigrateReport, ProgramEnd, ProgramPhase, SecondPlace,
};
use pagefork_objects::object_store::ObjectStoreExt;
use pagefork_objects::object_store::memory::InMemory;
use pagefork_objects::object_store::path::Path;
use pagefork_objects::object_store::throttle::{ThrottleConfig, ThrottledStore};
use pagefork_objects::{ObjectImages, ObjectSettings};
use stalling::{Stall, Stalling};

const URL: &str = "memory:///apart";

/// How long the object store is waited for: an answer that comes at once comes within it.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Longer than any test waits.
const FOR_EVER: Duration = Duration::from_secs(3600);

/// Two nodes, between which there is a link that can be cut, and an object store.
struct Apart {
    nodes: [Node; 2],
    relay: Relay,
    service: Arc<ThrottledStore<InMemory>>,
    images: ObjectImages,
    said: Arc<Mutex<Vec<String>>>,
    input: Pipe,
    client: Option<thread::JoinHandle<Attached>>,
    id: String,
}

impl Apart {
    /// A program that has filled its memory, and of which the rest comes as it is `lazy`.
    fn new(name: &str, is_lazy: bool) -> Self {
        Self::with(name, is_lazy, true)
    }

    /// As [`Self::new`]; or only the source has the object store.
    fn with(name: &str, is_lazy: bool, is_known: bool) -> Self {
        let service = Arc::new(ThrottledStore::new(InMemory::new(), ThrottleConfig::default()));
        let timeout = TIMEOUT;
        let settings = ObjectSettings { timeout, ..ObjectSettings::default() };
        let images = ObjectImages::new(service.clone(), settings).unwrap();
        let apart = Self::in_place(name, is_lazy, is_known, images);
        Self { service, ..apart }
    }

    /// As [`Self::with`], with these images in place of those of its own service.
    fn in_place(name: &str, is_lazy: bool, is_known: bool, images: ObjectImages) -> Self {
        let service = Arc::new(ThrottledStore::new(InMemory::new(), ThrottleConfig::default()));
        let said = Arc::<Mutex<Vec<String>>>::default();
        let nodes = [1, 2].map(|seed| {
            let (images, said) = (images.clone(), said.clone());
            Node::with(name, seed + 20, move |options| {
                if seed == 1 || is_known {
                    let images = Arc::new(images);
                    options.places.push(ImagePlace { url: URL.to_owned(), images });
                }
                let plan = &mut options.start.plan;
                if is_lazy {
                    (plan.background, plan.stride) = (false, false);
                }
                options.start.times.lost = Duration::from_millis(300);
                options.start.observe = Arc::new(move |event| {
                    said.lock().unwrap().push(format!("{event:?}"));
                });
            })
        });
        let relay = Relay::new(&nodes[0].peer.address, || u64::MAX / 2);
        for (node, other) in [(0, 1), (1, 0)] {
            let peer = nodes[other].peer.clone();
            *nodes[node].peers.0.lock().unwrap() = vec![("other".to_owned(), peer)];
        }
        nodes[1].peers.0.lock().unwrap()[0].1.address.clone_from(&relay.address);
        let id = nodes[0].start(&start("sums", SUMS)).to_string();
        let (input, client) = attach_filled(&nodes, &id);
        Self { nodes, relay, service, images, said, input, client: Some(client), id }
    }

    fn migrate(&self, url: &str) -> Result<MigrateReport, String> {
        self.migrate_to(Some(SecondPlace::Objects(url.to_owned())))
    }

    fn migrate_to(&self, second: Option<SecondPlace>) -> Result<MigrateReport, String> {
        let options = MigrateOptions { rounds: 0, patience: Duration::from_secs(20), second };
        let moved = self.nodes[0].client().migrate(&self.id, self.nodes[1].peer.key, options);
        moved.map_err(|error| error.to_string())
    }

    /// Has the program read its memory, and end.
    fn end(&mut self) -> (ProgramEnd, Vec<u8>) {
        self.input.close();
        self.join()
    }

    fn join(&mut self) -> (ProgramEnd, Vec<u8>) {
        let found = self.client.take().unwrap().join().unwrap();
        (found.end.unwrap(), found.stdout)
    }

    /// Loses the source, and what is done to the store makes the program fail.
    fn fails(self, what: &str, harm: impl FnOnce(&Self, ContentHash)) {
        let image = self.moved();
        harm(&self, image);
        self.relay.end();
        self.input.close();
        self.assert_failed(what);
    }

    /// As [`Self::fails`], when some pages have come from the store.
    fn fails_midway(self, what: &str, harm: impl FnOnce(&Self, ContentHash)) {
        let image = self.moved();
        // All of them would take half a minute.
        self.answers_after(Duration::from_millis(5));
        self.relay.end();
        self.input.close();
        let begun = Instant::now();
        while !self.said.lock().unwrap().iter().any(|said| said.contains("Elsewhere")) {
            assert!(begun.elapsed() < Duration::from_secs(60), "{what}: it is not asked");
            thread::sleep(Duration::from_millis(20));
        }
        thread::sleep(Duration::from_millis(300));
        harm(&self, image);
        self.assert_failed(what);
    }

    fn moved(&self) -> ContentHash {
        assert!(self.migrate(URL).unwrap().is_kept);
        *self.images.names().unwrap().values().next().unwrap()
    }

    fn assert_failed(mut self, what: &str) {
        let (end, printed) = self.join();
        let ProgramEnd::Failed(why) = end else { panic!("{what}: its pages are lost") };
        assert!(why.contains("page"), "{what}: {why}");
        assert_eq!(printed, [0], "{what}: nothing wrong was printed");
        let said = self.said.lock().unwrap().join("\n");
        assert!(said.contains("PlaceLost") && said.contains(URL), "{what}: {said}");
    }

    /// Has all answers to reads come as late.
    fn answers_after(&self, time: Duration) {
        self.service.config_mut(|config| config.wait_get_per_call = time);
    }
}

#[test]
fn how_far_a_second_place_is_is_told_while_pages_go_there_and_at_the_end() {
    let mut apart = Apart::new("apart-told", true);
    apart.service.config_mut(|config| config.wait_put_per_call = Duration::from_millis(100));
    let (node, target, id) = (&apart.nodes[0], apart.nodes[1].peer.key, &apart.id);
    let kept = || {
        let programs = node.client().programs().unwrap();
        programs.into_iter().find(|program| program.id.to_string() == *id)?.kept
    };
    let (seen, report) = thread::scope(|scope| {
        let second = Some(SecondPlace::Objects(URL.to_owned()));
        let options = MigrateOptions { rounds: 0, patience: Duration::from_secs(20), second };
        let moving = scope.spawn(|| node.client().migrate(id, target, options));
        let mut seen: Vec<KeptGroups> = Vec::new();
        while !moving.is_finished() {
            seen.extend(kept());
            thread::sleep(Duration::from_millis(1));
        }
        (seen, moving.join().unwrap().unwrap())
    });
    let all = report.kept.expect("it has a second place");
    assert!(report.is_kept && all.sent == all.groups && all.groups > 500, "{all:?}");
    assert_eq!(kept(), Some(all));
    assert!(seen.iter().any(|kept| 0 < kept.sent && kept.sent < kept.groups), "{seen:?}");
    assert!(seen.iter().is_sorted_by_key(|kept| kept.sent), "{seen:?}");
    assert!(seen.iter().all(|kept| kept.groups == all.groups));
    assert_eq!(apart.end(), (ProgramEnd::Exited(0), sum()));
}

#[test]
fn with_an_object_store_as_the_second_place_a_program_outlives_its_source() {
    for is_lazy in [true, false] {
        let mut apart = Apart::new(&format!("apart-{is_lazy}"), is_lazy);
        apart.migrate(URL).unwrap();
        if is_lazy {
            // What its node has not got is kept as long as that takes.
            thread::sleep(Duration::from_millis(700));
            assert_eq!(apart.images.names().unwrap().len(), 1);
        }
        apart.relay.end();
        assert_eq!(apart.end(), (ProgramEnd::Exited(0), sum()));
        let begun = Instant::now();
        while !apart.images.names().unwrap().is_empty() {
            assert!(begun.elapsed() < Duration::from_secs(60), "names stay");
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The object of an image.
fn key(image: ContentHash) -> Path {
    Path::from(format!("images/{image}"))
}

impl Apart {
    fn waits<T>(answer: impl Future<Output = pagefork_objects::object_store::Result<T>>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(answer).unwrap()
    }

    fn loses(&self, image: ContentHash) {
        Self::waits(self.service.delete(&key(image)));
    }

    fn replaces(&self, image: ContentHash, change: impl FnOnce(&mut Vec<u8>)) {
        let key = key(image);
        let found = Self::waits(async { self.service.get(&key).await?.bytes().await });
        let mut bytes = found.to_vec();
        change(&mut bytes);
        Self::waits(self.service.put(&key, bytes.into()));
    }

    fn alters(&self, image: ContentHash) {
        self.replaces(image, |bytes| {
            let middle = bytes.len() / 2;
            // In each group of the second half.
            bytes[middle..].iter_mut().step_by(4096).for_each(|byte| *byte ^= 1);
        });
    }
}

#[test]
fn an_object_store_that_loses_alters_or_withholds_pages_is_named_and_nothing_wrong_is_read() {
    Apart::new("apart-loses", true).fails("loses", Apart::loses);
    Apart::new("apart-alters", true).fails("alters", Apart::alters);
    Apart::new("apart-cuts", true).fails("cuts", |apart, image| {
        apart.replaces(image, |bytes| bytes.truncate(bytes.len() / 2));
    });
    Apart::new("apart-other", true).fails("gives another image", |apart, image| {
        let mut file = std::io::Cursor::new(Vec::new());
        let other = Manifest::default();
        ImageDraft::new(other, &PageRuns::default()).write(&mut file).unwrap();
        apart.replaces(image, |bytes| *bytes = file.into_inner());
    });
    Apart::new("apart-stalls", true).fails("stalls", |apart, _| apart.answers_after(FOR_EVER));
}

#[test]
fn an_object_store_that_loses_alters_or_withholds_pages_midway_is_named_all_the_same() {
    Apart::new("midway-loses", true).fails_midway("loses", Apart::loses);
    Apart::new("midway-alters", true).fails_midway("alters", Apart::alters);
    Apart::new("midway-cuts", true).fails_midway("cuts", |apart, image| {
        apart.replaces(image, |bytes| bytes.truncate(1000));
    });
    Apart::new("midway-stalls", true)
        .fails_midway("stalls", |apart, _| apart.answers_after(FOR_EVER));
}

#[test]
fn the_first_object_store_of_a_node_is_the_second_place_unless_something_else_is_said() {
    let mut apart = Apart::new("apart-first", true);
    assert!(apart.migrate_to(None).unwrap().is_kept);
    assert_eq!(apart.images.images().unwrap().len(), 1);
    apart.relay.end();
    assert_eq!(apart.end(), (ProgramEnd::Exited(0), sum()));

    let mut apart = Apart::new("apart-nowhere", true);
    assert!(!apart.migrate_to(Some(SecondPlace::Nowhere)).unwrap().is_kept);
    assert_eq!(apart.images.images().unwrap(), []);
    assert_eq!(apart.end(), (ProgramEnd::Exited(0), sum()));
}

#[test]
fn a_target_without_the_object_store_is_refused_before_the_program_rests() {
    let mut apart = Apart::with("apart-unequal", true, false);
    for second in [None, Some(SecondPlace::Objects(URL.to_owned()))] {
        let why = apart.migrate_to(second).unwrap_err();
        assert!(why.contains("was not started with the object store"), "{why}");
        let key = apart.nodes[1].peer.key.to_string();
        assert!(why.contains(&key), "the target says so: {why}");
        assert_eq!(apart.nodes[0].programs.programs()[0].phase, ProgramPhase::Running);
    }
    assert_eq!(apart.images.images().unwrap(), []);
    apart.migrate_to(Some(SecondPlace::Nowhere)).unwrap();
    assert_eq!(apart.end(), (ProgramEnd::Exited(0), sum()));
}

#[test]
fn an_object_store_that_does_not_take_pages_is_named_and_the_program_is_at_its_target() {
    let mut apart = Apart::new("apart-takes-none", true);
    apart.service.config_mut(|config| config.wait_put_per_call = FOR_EVER);
    let why = apart.migrate(URL).unwrap_err();
    assert!(why.contains("it is at its target") && why.contains(URL), "{why}");
    assert!(why.contains("not answered"), "{why}");
    assert_eq!(apart.images.images().unwrap(), [], "nothing half-made stays");
    assert!(apart.images.names().unwrap().is_empty());
    assert_eq!(apart.end(), (ProgramEnd::Exited(0), sum()));
}

#[test]
fn an_object_store_that_stalls_in_the_middle_of_an_upload_is_named_and_the_program_goes_on() {
    for stall in [Stall::Part(1), Stall::PartAndAbort(1), Stall::Completing] {
        let service = Stalling::default();
        service.stall(Some(stall));
        let timeout = TIMEOUT;
        let settings = ObjectSettings { timeout, ..ObjectSettings::default() };
        let images = ObjectImages::new(Arc::new(service.clone()), settings).unwrap();
        let name = format!("apart-{}", format!("{stall:?}").replace(['(', ')'], "-"));
        let mut apart = Apart::in_place(&name, true, true, images.clone());
        let why = apart.migrate(URL).unwrap_err();
        assert!(why.contains("it is at its target") && why.contains(URL), "{stall:?}: {why}");
        assert!(why.contains("write images/"), "{stall:?}: {why}");
        assert!(why.contains("not answered for 2s"), "{stall:?}: {why}");
        assert!(service.seen().contains(&"part"), "{stall:?}: it was in the middle");
        assert_eq!(images.images().unwrap(), [], "{stall:?}: nothing half-made stays");
        assert!(images.names().unwrap().is_empty());
        assert_eq!(apart.end(), (ProgramEnd::Exited(0), sum()), "{stall:?}");
    }
}

#[test]
fn an_object_store_that_a_node_was_not_started_with_is_refused_and_the_program_goes_on() {
    let mut apart = Apart::new("apart-unknown", true);
    for url in ["memory:///other", "file:///etc", "", "s3://"] {
        let why = apart.migrate(url).unwrap_err();
        assert!(why.contains("was not started with the object store"), "{why}");
        assert_eq!(apart.nodes[0].programs.programs()[0].phase, ProgramPhase::Running);
    }
    assert_eq!(apart.end(), (ProgramEnd::Exited(0), sum()));
}

#[test]
fn what_has_no_name_in_the_object_stores_of_a_node_is_collected() {
    let settings = ObjectSettings { grace: Duration::ZERO, ..ObjectSettings::default() };
    let images = ObjectImages::new(Arc::new(InMemory::new()), settings).unwrap();
    let put = |number: u64| {
        let instance = SavedInstance { extents: vec![0..number << 16], ..SavedInstance::default() };
        let manifest = Manifest { instances: vec![instance], ..Manifest::default() };
        let mut file = std::io::Cursor::new(Vec::new());
        ImageDraft::new(manifest, &PageRuns::new(vec![vec![]])).write(&mut file).unwrap();
        let bytes = Box::new(file.into_inner());
        let image = ImageReader::open(bytes, &ImageLimits::default()).unwrap();
        images.put_image(&image).unwrap();
        image.hash()
    };
    let [named, unnamed] = [1, 2].map(put);
    images.set_name("kept-by-somebody", named).unwrap();
    let begun = Instant::now();
    // A collection condemns it, and a later one removes it.
    while images.images().unwrap() != [named] {
        assert!(begun.elapsed() < Duration::from_secs(60), "{unnamed} stays");
        let place = ImagePlace { url: URL.to_owned(), images: Arc::new(images.clone()) };
        let _node = Node::with("apart-collects", 29, |options| options.places.push(place));
        thread::sleep(Duration::from_millis(100));
    }
}
