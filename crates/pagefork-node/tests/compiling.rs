//! Images whose code is for other machines, and images of which the node is lost before anything came.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pagefork::image::{
    CollectReport, ContentHash, ImageChain, ImageDraft, ImageError, ImageReader, ImageRepository,
    ImageStore, PageRuns, ReadAt, SavedCode, SecretKey, TrustedKeys,
};
use pagefork::{
    Engine, Linker, LoadOptions, Memory, MemoryType, Module, Result, SaveOptions, Snapshot, Store,
};
use pagefork_node::{
    FoundImage, ImagePlace, MemoryPeer, MemoryServer, NodeError, PageHolder, PageTimes,
    ServeOptions, StartOptions, start_image,
};

/// Has a memory of its own, and one that the host made, whose bytes are far apart.
const PROGRAM: &str = r#"(module
    (import "host" "memory" (memory $host 100))
    (memory $own 100)
    (data (memory $own) (i32.const 6000000) "f")
    (func (export "fill") (i32.store8 $host (i32.const 5000000) (i32.const 7)))
    (func (export "far") (result i32)
        (i32.add (i32.load8_u $own (i32.const 6000000)) (i32.load8_u $host (i32.const 5000000)))))"#;

fn binary() -> Vec<u8> {
    wat::parse_str(PROGRAM).unwrap()
}

fn key(seed: u8) -> SecretKey {
    SecretKey::from_seed([seed; 32])
}

/// The store of a node, which serves whoever knows it.
struct Holder {
    path: PathBuf,
    images: ImageStore,
    peer: MemoryPeer,
}

impl Holder {
    fn new(name: &str) -> Self {
        Self::at("127.0.0.1:0", name)
    }

    fn at(address: &str, name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("compiling-{name}"));
        let _ = std::fs::remove_dir_all(&path);
        let images = ImageStore::open(&path).unwrap();
        let mut options = ServeOptions::new(key(1));
        options.access = Arc::new(|_| true);
        let server = MemoryServer::bind(address, images.clone(), options).unwrap();
        let peer = MemoryPeer { address: server.address().to_string(), key: key(1).public() };
        std::thread::spawn(move || server.run());
        Self { path, images, peer }
    }

    fn codes(&self) -> usize {
        self.images.codes().unwrap().len()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

fn save(images: &ImageStore, keeps_module: bool) -> ContentHash {
    save_module(images, &binary(), keeps_module)
}

fn save_module(images: &ImageStore, binary: &[u8], keeps_module: bool) -> ContentHash {
    let engine = Engine::default();
    let mut store = Store::new(&engine, ());
    let memory = Memory::new(&mut store, MemoryType::new(100, None)).unwrap();
    let mut linker = Linker::new(&engine);
    linker.define(&mut store, "host", "memory", memory).unwrap();
    let module = Module::new(&engine, binary).unwrap();
    let instance = linker.instantiate(&mut store, &module).unwrap();
    let fill = instance.get_typed_func::<(), ()>(&mut store, "fill").unwrap();
    fill.call(&mut store, ()).unwrap();
    let signers = [key(3)];
    let mut options = SaveOptions::new().sign_with(&signers);
    if keeps_module {
        options = options.keep_module(binary);
    }
    let image = store.snapshot().unwrap().save(images, options).unwrap();
    images.set_name("own", image).unwrap();
    image
}

/// The same image, as if better processors had made its code.
fn of_other_machines(images: &ImageStore) -> ContentHash {
    let image = images.load(images.find("own").unwrap()).unwrap();
    let mut manifest = image.chain().tip().manifest().clone();
    let foreign = images.save_code(b"machine code of another machine").unwrap().hash();
    let mut runs: Vec<Vec<(u64, Vec<u8>)>> = Vec::new();
    for (number, instance) in manifest.instances.iter_mut().enumerate() {
        let spans = instance.spans.iter().map(|span| {
            let mut bytes = vec![0; span.size as usize];
            image.chain().read(number, span.start, &mut bytes).unwrap();
            (span.start, bytes)
        });
        runs.push(spans.collect());
        if !instance.code.processor.is_empty() {
            let processor = "x86-64-v9".to_owned();
            instance.code = SavedCode { hash: foreign, processor, ..instance.code.clone() };
        }
    }
    let pages = PageRuns::new(runs);
    let draft = ImageDraft::new(manifest, &pages).sign_with(&[key(3)]);
    let hash = images.save(draft).unwrap().hash();
    images.set_name("other", hash).unwrap();
    hash
}

fn start_at(
    peer: &MemoryPeer,
    name: &str,
    images: &ImageStore,
    options: &StartOptions,
) -> Result<FoundImage, NodeError> {
    let signers = TrustedKeys::from_iter([key(3).public()]);
    start_image(peer, &key(2), name, images, &signers, options)
}

/// What a program of an image computes, and how often something was compiled for it.
fn far(found: &FoundImage, images: &ImageStore) -> Result<(i32, usize)> {
    let engine = Engine::default();
    let compiled = AtomicUsize::new(0);
    let mut compile = |bytes: &[u8]| {
        compiled.fetch_add(1, Ordering::SeqCst);
        Module::new(&engine, bytes)
    };
    far_by(found, images, &engine, &mut compile)
        .map(|result| (result, compiled.load(Ordering::SeqCst)))
}

fn far_by(
    found: &FoundImage,
    images: &ImageStore,
    engine: &Engine,
    compile: &mut dyn FnMut(&[u8]) -> Result<Module>,
) -> Result<i32> {
    let (linker, options) = (Linker::<()>::new(engine), LoadOptions::new().compile(compile));
    let snapshot = match found {
        FoundImage::Here(image) => Snapshot::load(&linker, images, image.hash(), options),
        FoundImage::Coming(coming) => {
            Snapshot::load_incomplete(&linker, coming.image(), images, options)
        }
    };
    let (mut store, instance) = snapshot?.instance_pre()?.spawn(())?;
    instance.get_typed_func::<(), i32>(&mut store, "far")?.call(&mut store, ())
}

/// What `far` gives.
const FAR: i32 = b'f' as i32 + 7;

fn whole(found: FoundImage) {
    if let FoundImage::Coming(coming) = found {
        coming.join().unwrap();
    }
}

#[test]
fn an_image_in_which_nothing_runs_goes_on_in_code_made_of_its_module() {
    let (there, here) = (Holder::new("module-there"), Holder::new("module-here"));
    save(&there.images, true);
    of_other_machines(&there.images);
    let compiles = StartOptions { compiles: true, ..StartOptions::default() };
    // Once it comes, and once it is here.
    for _ in 0..2 {
        let found = start_at(&there.peer, "other", &here.images, &compiles).unwrap();
        assert_eq!(far(&found, &here.images).unwrap(), (FAR, 1));
        whole(found);
    }
    here.images.set_name("mine", here.images.images().unwrap()[0]).unwrap();
    here.images.collect().unwrap();
    assert!(here.images.load_code(ContentHash::of(&binary())).is_ok(), "it needs its module");
    // Its own code needs nothing of that, though one of its instances is the host's and has none.
    let found = start_at(&there.peer, "own", &here.images, &compiles).unwrap();
    assert_eq!(far(&found, &here.images).unwrap(), (FAR, 0));
    whole(found);
}

#[test]
fn code_that_cannot_be_made_is_refused_before_anything_travels() {
    let (there, here) = (Holder::new("refused-there"), Holder::new("refused-here"));
    save(&there.images, false);
    of_other_machines(&there.images);
    for (compiles, complaint) in [(true, "neither here nor kept"), (false, "its module would do")] {
        let options = StartOptions { compiles, ..StartOptions::default() };
        let error = start_at(&there.peer, "other", &here.images, &options).unwrap_err();
        assert!(matches!(error, NodeError::CodeRefused { .. }), "{error:?}");
        assert!(error.to_string().contains(complaint), "{error}");
        assert!(here.images.images().unwrap().is_empty());
        assert_eq!(here.codes(), 0);
    }
}

#[test]
fn what_is_compiled_has_to_be_the_module_of_the_image() {
    let there = Holder::new("wrong-module");
    save(&there.images, true);
    let other = there.images.load(of_other_machines(&there.images)).unwrap();
    let found = FoundImage::Here(other);
    let engine = Engine::default();
    let mut compile = |_: &[u8]| Module::new(&engine, "(module)");
    let error = far_by(&found, &there.images, &engine, &mut compile).unwrap_err();
    assert!(format!("{error:#}").contains("another module was made of its bytes"), "{error:#}");
    let elsewhere = Engine::default();
    let mut compile = |bytes: &[u8]| Module::new(&elsewhere, bytes);
    assert!(far_by(&found, &there.images, &engine, &mut compile).is_err(), "of another engine");
    let mut compile = |_: &[u8]| Err(io::Error::other("no compiler").into());
    let error = far_by(&found, &there.images, &engine, &mut compile).unwrap_err();
    assert!(format!("{error:#}").contains("no compiler"), "{error:#}");
    // Nothing is kept for a module that is none of it.
    let mut store = Store::new(&engine, ());
    pagefork::Instance::new(&mut store, &Module::new(&engine, "(module)").unwrap(), &[]).unwrap();
    let binary = binary();
    let options = SaveOptions::new().keep_module(&binary);
    let error = store.snapshot().unwrap().save(&there.images, options).unwrap_err();
    assert!(error.to_string().contains("no instance of the snapshot is of module"), "{error}");
}

/// Nobody listens there.
fn lost() -> MemoryPeer {
    MemoryPeer { address: "127.0.0.1:1".to_owned(), key: key(9).public() }
}

/// The image of [`of_other_machines`] with a delta on it, signed by this key.
fn delta(images: &ImageStore, signer: &SecretKey) -> ContentHash {
    let parent = images.load(of_other_machines(images)).unwrap();
    let mut manifest = parent.chain().tip().manifest().clone();
    // Signatures are not in the hash.
    manifest.wasi = signer.public().as_bytes().to_vec();
    let pages = PageRuns::new(vec![Vec::new(); manifest.instances.len()]);
    let draft = parent.chain().delta(manifest, &pages).unwrap();
    let hash = images.save(draft.sign_with(std::slice::from_ref(signer))).unwrap().hash();
    images.set_name("delta", hash).unwrap();
    hash
}

#[test]
fn modules_come_under_a_trusted_signature_or_not_at_all() {
    let (there, here) = (Holder::new("strange-there"), Holder::new("strange-here"));
    save(&there.images, true);
    let compiles = StartOptions { compiles: true, ..StartOptions::default() };
    delta(&there.images, &key(8));
    let error = start_at(&there.peer, "delta", &here.images, &compiles).unwrap_err();
    assert!(error.to_string().contains("none of its 1 signatures"), "{error}");
    assert_eq!(here.codes(), 0, "a stranger has filled the store");
    // Of who is trusted they come, though the image comes whole.
    delta(&there.images, &key(3));
    let found = start_at(&there.peer, "delta", &here.images, &compiles).unwrap();
    assert!(matches!(found, FoundImage::Here(_)));
    assert!(here.images.load_code(ContentHash::of(&binary())).is_ok());
    // And again, if the image is here and they are not.
    let module = here.path.join("code").join(ContentHash::of(&binary()).to_string());
    std::fs::remove_file(&module).unwrap();
    drop(start_at(&there.peer, "delta", &here.images, &compiles).unwrap());
    assert!(module.exists());
}

/// A module of some MiB comes from a node, whatever it is reached by.
#[test]
fn modules_come_to_their_end() {
    for address in ["127.0.0.1:0", "quic://127.0.0.1:0"] {
        let (there, here) = (Holder::at(address, "large-there"), Holder::new("large-here"));
        // A section of its own, with a name of four bytes.
        let mut large = binary();
        large.extend_from_slice(&[0, 0x85, 0x80, 0x80, 0x02, 4]);
        large.extend_from_slice(b"much");
        large.resize(large.len() + (4 << 20), 7);
        save_module(&there.images, &large, true);
        of_other_machines(&there.images);
        let compiles = StartOptions { compiles: true, ..StartOptions::default() };
        let found = start_at(&there.peer, "other", &here.images, &compiles).unwrap();
        assert_eq!(far(&found, &here.images).unwrap(), (FAR, 1));
        whole(found);
    }
}

#[test]
fn code_of_an_image_that_comes_is_spared_though_the_image_is_not_kept() {
    let (there, here) = (Holder::new("spared-there"), Holder::new("spared-here"));
    save(&there.images, true);
    of_other_machines(&there.images);
    let options = StartOptions { compiles: true, keep: false, ..StartOptions::default() };
    let found = start_at(&there.peer, "other", &here.images, &options).unwrap();
    here.images.collect().unwrap();
    assert_eq!(far(&found, &here.images).unwrap(), (FAR, 1));
}

#[test]
fn code_that_is_damaged_is_noticed_and_not_made_anew() {
    let there = Holder::new("damaged");
    let image = there.images.load(save(&there.images, true)).unwrap();
    let code = image.chain().tip().manifest().codes()[0];
    let path = there.path.join("code").join(code.to_string());
    let bytes = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    let error = far(&FoundImage::Here(image), &there.images).unwrap_err();
    assert!(format!("{error:#}").contains("damaged"), "{error:#}");
    // What is not there at all is made.
    std::fs::remove_file(&path).unwrap();
    let image = there.images.load(there.images.find("own").unwrap()).unwrap();
    assert_eq!(far(&FoundImage::Here(image), &there.images).unwrap(), (FAR, 1));
}

/// The same image without its signatures, which its hash does not cover, at another holder.
fn unsigned_copy(of: &ImageStore, image: ContentHash, to: &ImageStore) {
    let image = of.load(image).unwrap();
    let mut runs: Vec<Vec<(u64, Vec<u8>)>> = Vec::new();
    let mut manifest = image.chain().tip().manifest().clone();
    for (number, instance) in manifest.instances.iter_mut().enumerate() {
        let spans = instance.spans.iter().map(|span| {
            let mut bytes = vec![0; span.size as usize];
            image.chain().read(number, span.start, &mut bytes).unwrap();
            (span.start, bytes)
        });
        runs.push(spans.collect());
    }
    let copy = to.save(ImageDraft::new(manifest, &PageRuns::new(runs))).unwrap();
    assert_eq!(copy.hash(), image.hash());
    to.set_name("own", copy.hash()).unwrap();
}

#[test]
fn who_does_not_give_what_it_should_has_the_next_one_asked_and_all_of_them_told() {
    let (good, bad) = (Holder::new("next-good"), Holder::new("next-bad"));
    let image = save(&good.images, true);
    unsigned_copy(&good.images, image, &bad.images);
    let name = image.to_string();
    let place = |images: &ImageStore, url: &str| {
        PageHolder::Place(ImagePlace { url: url.to_owned(), images: Arc::new(images.clone()) })
    };
    let strangers =
        [PageHolder::Node(bad.peer.clone()), place(&bad.images, "file:///without-signatures")];
    // A holder that has the image and not its code.
    let codeless = Holder::new("next-codeless");
    pagefork::image::copy_image(&good.images, &codeless.images, image).unwrap();
    for code in codeless.images.codes().unwrap() {
        std::fs::remove_file(codeless.path.join("code").join(code.to_string())).unwrap();
    }
    let codeless = place(&codeless.images, "file:///without-code");
    let others: Vec<_> = strangers.into_iter().chain([codeless]).collect();
    let here = Holder::new("next-nobody");
    let options = StartOptions { others: others.clone(), ..StartOptions::default() };
    let error = start_at(&lost(), &name, &here.images, &options).unwrap_err().to_string();
    for said in [
        "node 127.0.0.1:1: cannot reach",
        &format!("node {}: image {image} comes with", bad.peer.address),
        "without-signatures: image",
        "without-code: the object store",
        "it has not got the image's code",
    ] {
        assert!(error.contains(said), "{said:?} is not told: {error}");
    }
    let here = Holder::new("next-here");
    let others = others[..2].iter().cloned().chain([PageHolder::Node(good.peer.clone())]).collect();
    let options = StartOptions { others, ..StartOptions::default() };
    let found = start_at(&lost(), &name, &here.images, &options).unwrap();
    assert_eq!(far(&found, &here.images).unwrap(), (FAR, 0));
    whole(found);
}

/// A place whose answers come, each in time, and together not before next year.
struct Dripping {
    images: ImageStore,
    path: PathBuf,
}

struct DrippingBytes(Vec<u8>);

impl ReadAt for DrippingBytes {
    fn size(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }

    fn read_exact_at(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        // It may take a second, however few they are.
        std::thread::sleep(Duration::from_millis(1100));
        self.0.read_exact_at(into, offset)
    }
}

impl ImageRepository for Dripping {
    fn open_chain(&self, hash: ContentHash) -> Result<ImageChain, ImageError> {
        let bytes = std::fs::read(self.path.join("images").join(hash.to_string())).unwrap();
        let image = ImageReader::open(Box::new(DrippingBytes(bytes)), self.images.limits())?;
        ImageChain::new(vec![Arc::new(image)], self.images.limits())
    }

    fn open_code(&self, hash: ContentHash) -> Result<Box<dyn ReadAt>, ImageError> {
        self.images.open_code(hash)
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
fn an_object_store_that_drips_has_the_next_holder_asked() {
    let (there, here) = (Holder::new("drips-there"), Holder::new("drips-here"));
    let image = save(&there.images, true);
    let images = Dripping { images: there.images.clone(), path: there.path.clone() };
    let place = ImagePlace { url: "file:///drips".to_owned(), images: Arc::new(images) };
    let others = vec![PageHolder::Place(place), PageHolder::Node(lost())];
    // It may be behind by this.
    let behind = Duration::from_millis(50);
    let times = PageTimes { lost: behind, patience: behind, ..PageTimes::default() };
    let options = StartOptions { others, times, ..StartOptions::default() };
    let error = start_at(&lost(), &image.to_string(), &here.images, &options).unwrap_err();
    let NodeError::Nowhere { tried, .. } = &error else { panic!("{error:?}") };
    assert_eq!(tried.len(), 3, "{error}");
    let (holder, why) = (&tried[1].0, tried[1].1.to_string());
    assert!(holder.contains("file:///drips"), "{error}");
    assert!(why.contains("fewer than 16384 bytes a second"), "{error}");
    assert!(here.images.images().unwrap().is_empty(), "nothing half-made stays");
}

#[test]
fn failures_of_the_own_store_have_nobody_else_asked() {
    let there = Holder::new("own-there");
    let image = save(&there.images, true);
    let here = Holder::new("own-here");
    for code in there.images.codes().unwrap() {
        // What is no file there is not replaced.
        std::fs::create_dir(here.path.join("code").join(code.to_string())).unwrap();
    }
    let url = "file:///images".to_owned();
    let place = PageHolder::Place(ImagePlace { url, images: Arc::new(there.images.clone()) });
    let options = StartOptions { others: vec![place.clone(), place], ..StartOptions::default() };
    let error = start_at(&lost(), &image.to_string(), &here.images, &options).unwrap_err();
    assert!(matches!(error, NodeError::OwnFailure(_)), "{error:?}");
}

#[test]
fn another_holder_gives_an_image_that_is_wanted_by_its_hash_when_its_node_is_lost() {
    let there = Holder::new("holder-there");
    let image = save(&there.images, true);
    let url = "file:///images".to_owned();
    let place = ImagePlace { url, images: Arc::new(there.images.clone()) };
    let empty = Holder::new("holder-empty");
    for (number, holder) in
        [PageHolder::Node(there.peer.clone()), PageHolder::Place(place)].into_iter().enumerate()
    {
        let here = Holder::new(&format!("holder-here-{number}"));
        let said = Arc::<Mutex<Vec<String>>>::default();
        let says = Arc::clone(&said);
        let options = StartOptions {
            // The first of the others has it not.
            others: vec![PageHolder::Node(empty.peer.clone()), holder],
            observe: Arc::new(move |event| says.lock().unwrap().push(format!("{event:?}"))),
            ..StartOptions::default()
        };
        let found = start_at(&lost(), &image.to_string(), &here.images, &options).unwrap();
        assert_eq!(far(&found, &here.images).unwrap(), (FAR, 0));
        whole(found);
        here.images.verify(image).unwrap();
        let said: Vec<_> = said.lock().unwrap().drain(..).collect();
        let asked: Vec<_> = said.iter().filter(|said| said.contains("Elsewhere")).collect();
        assert_eq!(asked.len(), 2, "{said:?}");
        // Each says why the one before it does not give it.
        assert!(asked[0].contains("reach node") && asked[1].contains("no such image"), "{said:?}");
        // A name means something at the node alone that has it.
        let error = start_at(&lost(), "own", &here.images, &options).unwrap_err();
        assert!(matches!(error, NodeError::Io { .. }), "{error:?}");
    }
}

#[test]
fn what_another_holder_gives_has_to_be_signed_by_who_is_trusted() {
    let there = Holder::new("unsigned-there");
    let image = save(&there.images, true);
    let here = Holder::new("unsigned-here");
    let url = "file:///images".to_owned();
    let place = ImagePlace { url, images: Arc::new(there.images.clone()) };
    let options =
        StartOptions { others: vec![PageHolder::Place(place)], ..StartOptions::default() };
    let (name, nobody) = (image.to_string(), TrustedKeys::default());
    let started = start_image(&lost(), &key(2), &name, &here.images, &nobody, &options);
    let error = started.unwrap_err();
    assert!(error.to_string().contains("sign"), "{error}");
    assert!(here.images.images().unwrap().is_empty());
    assert_eq!(here.codes(), 0);
}
