//! Holders that an image names in its manifest: they are asked when its node is lost, if the image is accepted and this
//! process knows them, and nobody else is.

mod common;

use std::collections::BTreeMap;
use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use common::{Relay, key};
use pagefork::image::{
    CollectReport, ContentHash, ImageChain, ImageError, ImageReader, ImageRepository, ImageStore,
    ReadAt, SavedHolder, TrustedKeys, copy_image,
};
use pagefork::{
    Engine, Instance, Linker, LoadOptions, Module, Result, SaveOptions, Snapshot, Store,
};
use pagefork_node::{
    FoundImage, HolderCheck, ImagePlace, MemoryPeer, MemoryServer, NodeError, PageHolder,
    PageTimes, ServeOptions, StartOptions, start_image,
};
use pagefork_postcopy::FetchPlan;

/// Has something in each of its pages.
const PROGRAM: &str = r#"(module (memory 200)
    (data (i32.const 3000000) "n") (data (i32.const 12000000) "f")
    (func (export "fill") (local $at i32)
        (loop $again
            (i32.store (local.get $at) (i32.add (local.get $at) (i32.const 1)))
            (local.set $at (i32.add (local.get $at) (i32.const 4096)))
            (br_if $again (i32.lt_u (local.get $at) (i32.const 13000000)))))
    (func (export "near") (result i32) (i32.load8_u (i32.const 3000000)))
    (func (export "far") (result i32) (i32.load8_u (i32.const 12000000))))"#;

/// Who signs images, and whom runners trust.
const AUTHOR: u8 = 3;

/// The store of a node, which serves whoever knows it.
struct Holder {
    path: PathBuf,
    images: ImageStore,
    peer: MemoryPeer,
}

impl Holder {
    fn new(name: &str, seed: u8) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("holders-{name}"));
        let _ = std::fs::remove_dir_all(&path);
        let images = ImageStore::open(&path).unwrap();
        let mut options = ServeOptions::new(key(seed));
        options.access = Arc::new(|_| true);
        let server = MemoryServer::bind("127.0.0.1:0", images.clone(), options).unwrap();
        let peer = MemoryPeer { address: server.address().to_string(), key: key(seed).public() };
        std::thread::spawn(move || server.run());
        Self { path, images, peer }
    }

    /// Makes an image that names these holders.
    fn save(&self, signer: u8, holders: &[SavedHolder]) -> ContentHash {
        let engine = Engine::default();
        let mut store = Store::new(&engine, ());
        let module = Module::new(&engine, PROGRAM).unwrap();
        let instance = Instance::new(&mut store, &module, &[]).unwrap();
        let fill = instance.get_typed_func::<(), ()>(&mut store, "fill").unwrap();
        fill.call(&mut store, ()).unwrap();
        let signers = [key(signer)];
        let options = SaveOptions::new().sign_with(&signers).holders(holders);
        let image = store.snapshot().unwrap().save(&self.images, options).unwrap();
        self.images.set_name("named", image).unwrap();
        image
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

fn node(seed: u8) -> SavedHolder {
    SavedHolder::Node(key(seed).public())
}

/// What was said, whom the process knows, and of which holders it was asked where they are.
#[derive(Clone, Default)]
struct Told {
    said: Arc<Mutex<Vec<String>>>,
    known: Arc<Mutex<Vec<PageHolder>>>,
    looked_up: Arc<Mutex<Vec<SavedHolder>>>,
}

impl Told {
    /// How a process starts images that knows these holders. Nothing comes but what is touched.
    fn options(&self, known: Vec<PageHolder>) -> StartOptions {
        let (said, looked_up) = (Arc::clone(&self.said), Arc::clone(&self.looked_up));
        *self.known.lock().unwrap() = known;
        let known = Arc::clone(&self.known);
        let find = move |holder: &SavedHolder| {
            looked_up.lock().unwrap().push(holder.clone());
            let is_it = |known: &&PageHolder| match (known, holder) {
                (PageHolder::Node(peer), SavedHolder::Node(key)) => peer.key == *key,
                (PageHolder::Place(place), SavedHolder::Objects(url)) => place.url == *url,
                _ => false,
            };
            known
                .lock()
                .unwrap()
                .iter()
                .find(is_it)
                .cloned()
                .ok_or_else(|| "it is a stranger".to_owned())
        };
        let plan =
            FetchPlan { certain: false, stride: false, background: false, ..FetchPlan::default() };
        StartOptions {
            plan,
            times: PageTimes { lost: Duration::from_millis(300), ..PageTimes::default() },
            recall: false,
            keep: false,
            holders: Some(HolderCheck::new(find)),
            observe: Arc::new(move |event| said.lock().unwrap().push(format!("{event:?}"))),
            ..StartOptions::default()
        }
    }

    /// What was said of this kind.
    fn of(&self, kind: &str) -> Vec<String> {
        let said = self.said.lock().unwrap();
        said.iter().filter(|said| said.starts_with(kind)).cloned().collect()
    }
}

fn start(
    peer: &MemoryPeer,
    name: &str,
    images: &ImageStore,
    options: &StartOptions,
) -> Result<FoundImage, NodeError> {
    let signers = TrustedKeys::from_iter([key(AUTHOR).public()]);
    start_image(peer, &key(2), name, images, &signers, options)
}

/// A program of an image, and what its functions give.
struct Started {
    store: Store<()>,
    instance: Instance,
    found: FoundImage,
}

impl Started {
    /// `None` where this system does not tell of faults in absent pages.
    fn new(found: FoundImage, images: &ImageStore) -> Option<Self> {
        let FoundImage::Coming(coming) = &found else {
            println!("NOT TESTED: this system does not tell of faults in absent pages");
            return None;
        };
        let (engine, load) = (Engine::default(), LoadOptions::new());
        let linker = Linker::<()>::new(&engine);
        let snapshot = Snapshot::load_incomplete(&linker, coming.image(), images, load).unwrap();
        let (store, instance) = snapshot.instance_pre().unwrap().spawn(()).unwrap();
        Some(Self { store, instance, found })
    }

    fn call(&mut self, function: &str) -> Result<i32> {
        call(&mut self.store, &self.instance, function)
    }
}

fn call(store: &mut Store<()>, instance: &Instance, function: &str) -> Result<i32> {
    instance.get_typed_func::<(), i32>(&mut *store, function)?.call(store, ())
}

/// A peer behind a link that can be cut.
fn linked(holder: &Holder) -> (Relay, MemoryPeer) {
    let relay = Relay::new(&holder.peer.address, || u64::MAX / 2);
    let peer = MemoryPeer { address: relay.address.clone(), key: holder.peer.key };
    (relay, peer)
}

fn place(images: &ImageStore, url: &str) -> PageHolder {
    PageHolder::Place(ImagePlace { url: url.to_owned(), images: Arc::new(images.clone()) })
}

const URL: &str = "s3://bucket/images";

#[test]
fn who_is_known_is_asked_for_absent_pages_of_a_running_program_once_its_node_is_lost() {
    let (there, here) = (Holder::new("there", 11), Holder::new("here", 12));
    let (second, third) = (Holder::new("second", 13), Holder::new("third", 14));
    // The first one is the node that the image comes from, the second one this node itself.
    let holders = [node(11), node(2), node(13), SavedHolder::Objects(URL.into())];
    let image = there.save(AUTHOR, &holders);
    for images in [&second.images, &third.images] {
        copy_image(&there.images, images, image).unwrap();
    }
    let (to_first, first) = linked(&there);
    let (to_second, behind_link) = linked(&second);
    let known = vec![
        PageHolder::Node(first.clone()),
        PageHolder::Node(MemoryPeer { address: first.address.clone(), key: key(2).public() }),
        PageHolder::Node(behind_link),
        place(&third.images, URL),
    ];
    let told = Told::default();
    let found = start(&first, "named", &here.images, &told.options(known)).unwrap();
    let Some(mut started) = Started::new(found, &here.images) else { return };
    to_first.end();
    assert_eq!(started.call("near").unwrap(), i32::from(b'n'));
    assert_eq!(told.of("Elsewhere").len(), 1, "{:?}", told.said);
    // A node, and when that is lost as well, an object store.
    to_second.end();
    assert_eq!(started.call("far").unwrap(), i32::from(b'f'));
    let asked = told.of("Elsewhere");
    assert!(asked.len() == 2 && asked[1].contains(URL), "{asked:?}");
    assert_eq!(told.of("NotAsked"), [""; 0]);
}

#[test]
fn holders_that_were_said_to_the_process_are_asked_before_those_that_the_image_names() {
    let (there, here) = (Holder::new("order-there", 15), Holder::new("order-here", 16));
    let (said, named) = (Holder::new("order-said", 17), Holder::new("order-named", 18));
    let image = there.save(AUTHOR, &[node(18), node(17)]);
    for images in [&said.images, &named.images] {
        copy_image(&there.images, images, image).unwrap();
    }
    let (links, peers): (Vec<_>, Vec<_>) = [&there, &said, &named].map(linked).into_iter().unzip();
    let known = peers[1..].iter().cloned().map(PageHolder::Node).collect();
    let told = Told::default();
    let others = vec![PageHolder::Node(peers[1].clone())];
    let options = StartOptions { others, ..told.options(known) };
    let found = start(&peers[0], "named", &here.images, &options).unwrap();
    let Some(mut started) = Started::new(found, &here.images) else { return };
    links[0].end();
    assert_eq!(started.call("near").unwrap(), i32::from(b'n'));
    links[1].end();
    assert_eq!(started.call("far").unwrap(), i32::from(b'f'));
    let asked = told.of("Elsewhere");
    // Each once, though both the process and the image name one of them.
    assert_eq!(asked.len(), 2, "{asked:?}");
    for (asked, peer) in asked.iter().zip(&peers[1..]) {
        assert!(asked.contains(&peer.key.to_string()), "{asked}");
    }
}

#[test]
fn who_is_known_is_looked_up_when_somebody_is_to_be_asked() {
    let (there, here) = (Holder::new("later-there", 51), Holder::new("later-here", 52));
    let other = Holder::new("later-other", 53);
    let image = there.save(AUTHOR, &[node(53)]);
    copy_image(&there.images, &other.images, image).unwrap();
    let (link, peer) = linked(&there);
    let told = Told::default();
    let found = start(&peer, "named", &here.images, &told.options(Vec::new())).unwrap();
    let Some(mut started) = Started::new(found, &here.images) else { return };
    assert_eq!(*told.looked_up.lock().unwrap(), []);
    told.known.lock().unwrap().push(PageHolder::Node(other.peer.clone()));
    link.end();
    assert_eq!(started.call("far").unwrap(), i32::from(b'f'));
    assert_eq!(told.of("NotAsked"), [""; 0]);
}

#[test]
fn who_is_not_known_is_not_asked_and_that_is_said_once_all_others_are_lost() {
    let (there, here) = (Holder::new("strange-there", 21), Holder::new("strange-here", 22));
    let stranger = Holder::new("stranger", 23);
    let image = there.save(AUTHOR, &[node(23), SavedHolder::Objects(URL.into())]);
    copy_image(&there.images, &stranger.images, image).unwrap();
    let told = Told::default();
    for holders in [told.options(Vec::new()).holders, None] {
        let (link, peer) = linked(&there);
        let options = StartOptions { holders, ..told.options(Vec::new()) };
        let found = start(&peer, "named", &here.images, &options).unwrap();
        let Some(mut started) = Started::new(found, &here.images) else { return };
        link.end();
        started.call("far").unwrap_err();
        assert_eq!(told.of("Elsewhere"), [""; 0]);
        let unasked = told.of("NotAsked");
        assert_eq!(unasked.len(), 2, "{unasked:?}");
        assert!(unasked[0].contains(&key(23).public().to_string()) && unasked[1].contains(URL));
        let why = if options.holders.is_some() { "a stranger" } else { "asks nobody" };
        assert!(unasked.iter().all(|unasked| unasked.contains(why)), "{unasked:?}");
        assert_eq!(told.of("Lost").len(), 1);
        told.said.lock().unwrap().clear();
    }
}

#[test]
fn an_image_that_nobody_who_is_trusted_has_signed_has_nobody_looked_up_or_asked() {
    let (there, here) = (Holder::new("unsigned-there", 31), Holder::new("unsigned-here", 32));
    let other = Holder::new("unsigned-other", 33);
    let image = there.save(AUTHOR + 1, &[node(33)]);
    copy_image(&there.images, &other.images, image).unwrap();
    for name in ["named".to_owned(), image.to_string()] {
        // Its head alone comes as of pages; where it comes whole, too.
        for peer in [&there.peer, &other.peer] {
            let told = Told::default();
            let options = told.options(vec![PageHolder::Node(other.peer.clone())]);
            let Err(error) = start(peer, &name, &here.images, &options) else {
                panic!("it is not signed");
            };
            assert!(!error.to_string().is_empty());
            assert_eq!(*told.looked_up.lock().unwrap(), [], "{error}");
            assert_eq!(told.of(""), [""; 0], "{error}");
        }
    }
}

#[test]
fn who_is_named_is_asked_for_all_of_an_image_whose_node_gave_its_head_and_then_no_code() {
    let (there, here) = (Holder::new("head-there", 41), Holder::new("head-here", 42));
    let other = Holder::new("head-other", 43);
    let image = there.save(AUTHOR, &[node(43), node(44)]);
    copy_image(&there.images, &other.images, image).unwrap();
    for code in there.images.codes().unwrap() {
        std::fs::remove_file(there.path.join("code").join(code.to_string())).unwrap();
    }
    let told = Told::default();
    let options = told.options(vec![PageHolder::Node(other.peer.clone())]);
    let found = start(&there.peer, "named", &here.images, &options).unwrap();
    let Some(mut started) = Started::new(found, &here.images) else { return };
    assert_eq!(started.call("far").unwrap(), i32::from(b'f'));
    assert_eq!(told.of("Elsewhere").len(), 1, "{:?}", told.said);
    // Without that one, nobody gives it, and who was not asked is told.
    let told = Told::default();
    let fresh = Holder::new("head-fresh", 45);
    let Err(error) = start(&there.peer, "named", &fresh.images, &told.options(Vec::new())) else {
        panic!("nobody has its code");
    };
    assert!(!matches!(error, NodeError::Nowhere { .. }), "one was asked: {error}");
    assert_eq!(told.of("NotAsked").len(), 2, "{:?}", told.said);
}

/// A holder that is being asked and does not answer is waited for no longer than somebody needs the image.
#[test]
fn who_waits_is_told_at_once_when_nobody_needs_an_image_of_which_another_holder_is_being_asked() {
    for (number, stops) in [false, true].into_iter().enumerate() {
        let there = Holder::new(&format!("silent-there-{number}"), 61);
        let here = Holder::new(&format!("silent-here-{number}"), 62);
        there.save(AUTHOR, &[]);
        // It takes connections, and says nothing.
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = silent.local_addr().unwrap().to_string();
        let (link, peer) = linked(&there);
        let told = Told::default();
        let others = vec![PageHolder::Node(MemoryPeer { address, key: key(63).public() })];
        let mut options = StartOptions { others, ..told.options(Vec::new()) };
        options.times.patience = Duration::from_secs(60);
        options.times.node.handshake = Duration::from_secs(60);
        let found = start(&peer, "named", &here.images, &options).unwrap();
        let Some(started) = Started::new(found, &here.images) else { return };
        let Started { mut store, instance, found } = started;
        let FoundImage::Coming(coming) = found else { unreachable!() };
        link.end();
        let guest = thread::spawn(move || call(&mut store, &instance, "far").map_err(drop));
        let begun = Instant::now();
        while told.of("Elsewhere").is_empty() {
            assert!(begun.elapsed() < Duration::from_secs(30), "nobody else is asked");
            thread::sleep(Duration::from_millis(5));
        }
        // The thread that had the first one asked ends.
        thread::sleep(Duration::from_millis(300));
        assert!(!coming.is_finished(), "another one is being asked");
        let begun = Instant::now();
        match stops {
            true => drop(coming.stop()),
            false => drop(coming),
        }
        guest.join().unwrap().unwrap_err();
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
        assert_eq!(told.of("Lost"), [""; 0]);
    }
}

/// Has an image, and says of its code that it is larger than anybody takes.
struct Boasting(ImageStore);

struct BoastingBytes(Box<dyn ReadAt>);

impl ReadAt for BoastingBytes {
    fn size(&self) -> io::Result<u64> {
        Ok(u64::MAX / 2)
    }

    fn read_exact_at(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_exact_at(into, offset)
    }
}

impl ImageRepository for Boasting {
    fn open_chain(&self, hash: ContentHash) -> Result<ImageChain, ImageError> {
        self.0.open_chain(hash)
    }

    fn open_code(&self, hash: ContentHash) -> Result<Box<dyn ReadAt>, ImageError> {
        Ok(Box::new(BoastingBytes(self.0.open_code(hash)?)))
    }

    fn images(&self) -> Result<Vec<ContentHash>, ImageError> {
        unreachable!()
    }

    fn put_image(&self, _: &ImageReader) -> Result<(), ImageError> {
        unreachable!()
    }

    fn put_code(&self, _: ContentHash, _: &dyn ReadAt) -> Result<(), ImageError> {
        unreachable!()
    }

    fn names(&self) -> Result<BTreeMap<String, ContentHash>, ImageError> {
        unreachable!()
    }

    fn set_name(&self, _: &str, _: ContentHash) -> Result<(), ImageError> {
        unreachable!()
    }

    fn remove_name(&self, _: &str) -> Result<bool, ImageError> {
        unreachable!()
    }

    fn collect(&self) -> Result<CollectReport, ImageError> {
        unreachable!()
    }
}

#[test]
fn who_says_that_code_is_larger_than_it_is_has_the_next_holder_asked() {
    let (there, here) = (Holder::new("boasts-there", 64), Holder::new("boasts-here", 65));
    let image = there.save(AUTHOR, &[]);
    let images = Arc::new(Boasting(there.images.clone()));
    let boasting = PageHolder::Place(ImagePlace { url: URL.to_owned(), images });
    let others = vec![boasting, PageHolder::Node(there.peer.clone())];
    let told = Told::default();
    let options = StartOptions { others, ..told.options(Vec::new()) };
    let lost = MemoryPeer { address: "127.0.0.1:1".to_owned(), key: key(66).public() };
    start(&lost, &image.to_string(), &here.images, &options).unwrap();
    let asked = told.of("Elsewhere");
    assert!(asked.len() == 2 && asked[1].contains("a code image"), "{asked:?}");
}
