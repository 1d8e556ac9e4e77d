//! Images in an object store: in memory, and in a directory.

#![allow(clippy::single_range_in_vec_init)] // Extents of one range are meant.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pagefork_image::*;
use pagefork_objects::object_store::local::LocalFileSystem;
use pagefork_objects::object_store::memory::InMemory;
use pagefork_objects::object_store::path::Path;
use pagefork_objects::object_store::throttle::{ThrottleConfig, ThrottledStore};
use pagefork_objects::object_store::{ObjectStore, ObjectStoreExt};
use pagefork_objects::{ObjectImages, ObjectSettings, ObjectUrl};

/// A directory with a store of images in it, and one for objects.
struct Scratch {
    path: PathBuf,
    local: ImageStore,
}

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("pagefork-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(path.join("objects")).unwrap();
        let local = ImageStore::open(path.join("local")).unwrap();
        Self { path, local }
    }

    fn save(&self, byte: u8, parent: Option<&StoredImage>) -> StoredImage {
        let code = SavedCode { hash: ContentHash::of(b"code"), ..SavedCode::default() };
        let mut instance =
            SavedInstance { extents: vec![0..1 << 26], code, ..SavedInstance::default() };
        instance.parent_instance = parent.map(|_| 0);
        let manifest = Manifest { instances: vec![instance], ..Manifest::default() };
        let pages = PageRuns::new(vec![vec![(0, vec![byte; 8192])]]);
        let draft = match parent {
            Some(parent) => parent.chain().delta(manifest, &pages).unwrap(),
            None => ImageDraft::new(manifest, &pages),
        };
        self.local.save(draft).unwrap()
    }

    /// Waits until what is written has a later time than what was written before. The clock that
    /// files are stamped by stands still for some milliseconds, and longer on a busy machine; that of
    /// objects in memory does not.
    fn let_time_pass(&self) {
        const STEP: Duration = Duration::from_millis(2);
        let stamp = || {
            let path = self.path.join("clock");
            fs::write(&path, "").unwrap();
            fs::metadata(path).unwrap().modified().unwrap()
        };
        let begun = stamp();
        std::thread::sleep(STEP);
        while stamp() < begun + STEP {
            std::thread::sleep(STEP);
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Each kind of object store that can be had here.
fn each(name: &str, settings: &ObjectSettings, test: impl Fn(&Scratch, &ObjectImages)) {
    let scratch = Scratch::new(name);
    test(&scratch, &ObjectImages::new(Arc::new(InMemory::new()), settings.clone()).unwrap());
    let directory = LocalFileSystem::new_with_prefix(scratch.path.join("objects")).unwrap();
    test(&scratch, &ObjectImages::new(Arc::new(directory), settings.clone()).unwrap());
}

/// No time has to pass between the steps of a collection.
fn impatient() -> ObjectSettings {
    ObjectSettings { grace: Duration::ZERO, ..ObjectSettings::default() }
}

#[test]
fn images_go_to_an_object_store_and_come_back() {
    each("objects-copy", &ObjectSettings::default(), |scratch, remote| {
        scratch.local.save_code(b"code").unwrap();
        let root = scratch.save(1, None);
        let tip = scratch.save(2, Some(&root));
        copy_image(&scratch.local, remote, tip.hash()).unwrap();
        copy_image(&scratch.local, remote, tip.hash()).unwrap();
        assert_eq!(remote.images().unwrap().len(), 2);
        remote.set_name("tip", tip.hash()).unwrap();
        assert_eq!(remote.names().unwrap()["tip"], tip.hash());

        let chain = remote.open_chain(tip.hash()).unwrap();
        let mut bytes = [0; 8192];
        chain.read(0, 0, &mut bytes).unwrap();
        assert_eq!((bytes[0], bytes[8191]), (2, 2));
        chain.verify().unwrap();
        let group = chain.tip().read_group(0).unwrap();
        chain
            .tip()
            .proof(0)
            .unwrap()
            .verify(chain.tip().manifest().root, chain.tip().manifest().data_size, 0, &group)
            .unwrap();

        let back = ImageStore::open(scratch.path.join("back")).unwrap();
        copy_image(remote, &back, tip.hash()).unwrap();
        back.verify(tip.hash()).unwrap();
        back.verify_code(ContentHash::of(b"code")).unwrap();
        let file = |store: &ImageStore| store.path().join("images").join(tip.hash().to_string());
        assert_eq!(fs::read(file(&back)).unwrap(), fs::read(file(&scratch.local)).unwrap());
        fs::remove_dir_all(back.path()).unwrap();
        assert!(remote.remove_name("tip").unwrap());
        assert!(!remote.remove_name("tip").unwrap());
    });
}

#[test]
fn large_images_go_in_parts() {
    each("objects-parts", &ObjectSettings::default(), |scratch, remote| {
        let extents = vec![0..1 << 26];
        let instance = SavedInstance { extents, ..SavedInstance::default() };
        let manifest = Manifest { instances: vec![instance], ..Manifest::default() };
        let bytes = (0..20 << 20).map(|at: u32| (at ^ (at >> 12)) as u8 | 1).collect();
        let pages = PageRuns::new(vec![vec![(0, bytes)]]);
        let image = scratch.local.save(ImageDraft::new(manifest, &pages)).unwrap();
        copy_image(&scratch.local, remote, image.hash()).unwrap();
        remote.open_chain(image.hash()).unwrap().verify().unwrap();
    });
}

#[test]
fn what_is_missing_or_wrong_is_refused() {
    each("objects-refused", &ObjectSettings::default(), |scratch, remote| {
        let root = scratch.save(1, None);
        let tip = scratch.save(2, Some(&root));
        let refused = remote.put_image(tip.chain().tip()).unwrap_err();
        assert!(matches!(refused, ImageError::NotFound { hash, .. } if hash == root.hash()));
        let missing = ContentHash::of(b"missing");
        assert!(matches!(remote.open_chain(missing), Err(ImageError::NotFound { .. })));
        assert!(matches!(remote.open_code(missing), Err(ImageError::NotFound { .. })));
        assert!(matches!(remote.set_name("a", missing), Err(ImageError::NotFound { .. })));
        assert!(matches!(remote.set_name("../a", missing), Err(ImageError::Invalid(_))));
        let wrong = remote.put_code(missing, &b"other".to_vec()).unwrap_err();
        assert!(matches!(wrong, ImageError::Damaged(_)));
        assert_eq!(remote.images().unwrap(), []);

        let path = scratch.local.path().join("images").join(root.hash().to_string());
        let mut bytes = fs::read(path).unwrap();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        let damaged = ImageReader::open(Box::new(bytes), &ImageLimits::default()).unwrap();
        assert!(matches!(remote.put_image(&damaged), Err(ImageError::Damaged(_))));
        assert_eq!(remote.images().unwrap(), []);
    });
}

#[test]
fn a_damaged_object_is_noticed() {
    let scratch = Scratch::new("objects-damaged");
    let image = scratch.save(1, None);
    let memory = Arc::new(InMemory::new());
    let store: Arc<dyn ObjectStore> = memory.clone();
    let remote = ObjectImages::new(store, ObjectSettings::default()).unwrap();
    copy_image(&scratch.local, &remote, image.hash()).unwrap();
    let key = Path::from(format!("images/{}", image.hash()));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let get = async { memory.get(&key).await?.bytes().await };
    let mut bytes = runtime.block_on(get).unwrap().to_vec();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    runtime.block_on(memory.put(&key, bytes.clone().into())).unwrap();
    let chain = remote.open_chain(image.hash()).unwrap();
    assert!(matches!(chain.tip().read_group(0), Err(ImageError::Damaged(_))));
    // Another image, each byte of which is right.
    let other = scratch.save(2, None).hash();
    let path = scratch.local.path().join("images").join(other.to_string());
    runtime.block_on(memory.put(&key, fs::read(path).unwrap().into())).unwrap();
    let refused = remote.open_chain(image.hash()).unwrap_err();
    assert!(refused.to_string().contains("another one"), "{refused}");
    runtime.block_on(memory.put(&key, bytes.clone().into())).unwrap();
    let back = ImageStore::open(scratch.path.join("back")).unwrap();
    let refused = copy_image(&remote, &back, image.hash()).unwrap_err();
    assert!(matches!(refused, ImageError::Damaged(_)));
    assert_eq!(back.images().unwrap(), []);
    bytes.truncate(100);
    runtime.block_on(memory.put(&key, bytes.into())).unwrap();
    assert!(matches!(remote.open_chain(image.hash()), Err(ImageError::Damaged(_))));
    assert_eq!(remote.collect().unwrap().damaged.len(), 1);
}

/// One of the places that are tried, of `size` bytes: all of what describes an image, and some of
/// its pages, which are all alike.
fn places(size: usize, step: usize) -> impl Iterator<Item = usize> {
    let head = size.min(PAGE_SIZE as usize / 4);
    (0..head).chain((head..size).step_by(step))
}

/// Every way out of an object store into a directory, and every way in.
fn damaged_objects(step: usize) {
    let scratch = Scratch::new(&format!("objects-each-{step}"));
    let image = scratch.save(1, None).hash();
    let code = scratch.local.save_code(b"code").unwrap().hash();
    let memory = Arc::new(InMemory::new());
    let store: Arc<dyn ObjectStore> = memory.clone();
    let remote = ObjectImages::new(store, ObjectSettings::default()).unwrap();
    copy_image(&scratch.local, &remote, image).unwrap();
    remote.set_name("kept", image).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let put = |key: &str, bytes: Vec<u8>| {
        runtime.block_on(memory.put(&Path::from(key), bytes.into())).unwrap();
    };
    let get = |key: &str| {
        let get = async { memory.get(&Path::from(key)).await?.bytes().await };
        runtime.block_on(get).unwrap().to_vec()
    };
    let damage = |key: &str, test: &dyn Fn(Vec<u8>)| {
        let whole = get(key);
        for place in places(whole.len(), step) {
            let cut = whole[..place].to_vec();
            let mut altered = whole.clone();
            altered[place] ^= 1 << (place % 8);
            for bytes in [cut, altered] {
                put(key, bytes.clone());
                test(bytes);
            }
        }
        put(key, whole);
    };
    let back = ImageStore::open(scratch.path.join("back")).unwrap();
    let elsewhere: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let elsewhere = ObjectImages::new(elsewhere, ObjectSettings::default()).unwrap();
    damage(&format!("code/{code}"), &|bytes| {
        let found = remote.open_code(code).unwrap();
        assert!(matches!(back.put_code(code, &*found), Err(ImageError::Damaged(_))));
        assert!(matches!(elsewhere.put_code(code, &bytes), Err(ImageError::Damaged(_))));
    });
    assert!(back.load_code(code).is_err() && elsewhere.open_code(code).is_err());
    damage(&format!("images/{image}"), &|bytes| {
        let error = copy_image(&remote, &back, image).unwrap_err();
        assert!(!matches!(error, ImageError::NotFound { .. }), "{error}");
        if let Ok(reader) = ImageReader::open(Box::new(bytes), &ImageLimits::default()) {
            assert!(elsewhere.put_image(&reader).is_err());
        }
    });
    damage("names/kept", &|bytes| match remote.names() {
        // Without its line end it is as clear.
        Ok(names) if names["kept"] == image => {
            assert!(bytes.starts_with(image.to_string().as_bytes()))
        }
        Ok(names) => {
            assert!(remote.open_chain(names["kept"]).is_err());
            assert!(remote.collect().unwrap_err().to_string().contains("kept"));
        }
        Err(error) => assert!(error.to_string().contains("kept"), "{error}"),
    });
    for store in [&back as &dyn ImageRepository, &elsewhere] {
        assert_eq!(store.images().unwrap(), []);
        copy_image(&remote, store, image).unwrap();
    }
}

#[test]
fn nothing_damaged_comes_from_an_object_store_or_into_one() {
    damaged_objects(257);
}

#[test]
#[ignore = "long: a part of `cargo xtask soak`"]
fn no_damaged_byte_at_all_comes_from_an_object_store_or_into_one() {
    damaged_objects(1);
}

#[test]
fn collection_takes_two_steps_and_nothing_that_is_used() {
    each("objects-collect", &impatient(), |scratch, remote| {
        scratch.local.save_code(b"code").unwrap();
        let root = scratch.save(1, None);
        let tip = scratch.save(2, Some(&root));
        let (other, garbage) = (scratch.save(3, None), scratch.save(4, None));
        for image in [&tip, &other, &garbage] {
            copy_image(&scratch.local, remote, image.hash()).unwrap();
        }
        remote.set_name("tip", tip.hash()).unwrap();
        let used = remote.open_chain(other.hash()).unwrap();

        let first = remote.collect().unwrap();
        assert_eq!((first.images, first.in_use), (vec![], vec![other.hash()]));
        let second = remote.collect().unwrap();
        assert_eq!((second.images, second.code), (vec![garbage.hash()], vec![]));
        drop(used);
        remote.remove_name("tip").unwrap();
        remote.collect().unwrap();
        // From half of the time on that lies between the steps, it may be removed at any moment.
        assert!(matches!(remote.set_name("tip", tip.hash()), Err(ImageError::InUse { .. })));
        assert!(matches!(remote.open_chain(tip.hash()), Err(ImageError::InUse { .. })));
        let last = remote.collect().unwrap();
        assert_eq!((last.images.len(), last.code.len()), (3, 1));
        let place = |hash| last.images.iter().position(|image| *image == hash);
        assert!(place(tip.hash()) < place(root.hash()), "a child goes before its parent");
        assert_eq!(remote.images().unwrap(), []);
        copy_image(&scratch.local, remote, tip.hash()).unwrap();
        remote.open_chain(tip.hash()).unwrap().verify().unwrap();
        // For the next kind of store.
        remote.collect().unwrap();
        remote.collect().unwrap();
    });
}

#[test]
fn what_was_put_in_lately_or_condemned_lately_stays() {
    each("objects-grace", &ObjectSettings::default(), |scratch, remote| {
        let image = scratch.save(1, None);
        copy_image(&scratch.local, remote, image.hash()).unwrap();
        for _ in 0..3 {
            assert_eq!(remote.collect().unwrap().images, []);
        }
        remote.open_chain(image.hash()).unwrap();
    });
}

#[test]
fn a_lease_ends_with_its_time_and_is_renewed_by_who_reads() {
    // Leases that last no time are renewed by each read, and found ended by each collection.
    let lease = Duration::ZERO;
    each("objects-lease", &ObjectSettings { lease, ..impatient() }, |scratch, remote| {
        let image = scratch.save(1, None);
        copy_image(&scratch.local, remote, image.hash()).unwrap();
        let chain = remote.open_chain(image.hash()).unwrap();
        scratch.let_time_pass();
        remote.collect().unwrap();
        chain.verify().unwrap();
        scratch.let_time_pass();
        assert_eq!(remote.collect().unwrap().images, [image.hash()]);
        // Who still has it gets an error, and no bytes.
        assert!(matches!(chain.verify(), Err(ImageError::Io { .. })));
    });
}

#[test]
fn it_works_within_another_runtime_too() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        each("objects-runtime", &ObjectSettings::default(), |scratch, remote| {
            let image = scratch.save(1, None);
            copy_image(&scratch.local, remote, image.hash()).unwrap();
            remote.open_chain(image.hash()).unwrap();
        });
    });
}

/// Longer than any test waits.
const FOR_EVER: Duration = Duration::from_secs(3600);

#[test]
fn a_service_that_does_not_answer_is_left_in_time() {
    let service = ThrottledStore::new(InMemory::new(), ThrottleConfig::default());
    let service = Arc::new(service);
    let timeout = Duration::from_secs(1);
    let settings = ObjectSettings { timeout, ..ObjectSettings::default() };
    let scratch = Scratch::new("objects-silent");
    let image = scratch.save(1, None).hash();
    let remote = ObjectImages::new(service.clone(), settings).unwrap();
    copy_image(&scratch.local, &remote, image).unwrap();
    let chain = remote.open_chain(image).unwrap();
    service.config_mut(|config| {
        config.wait_get_per_call = FOR_EVER;
        config.wait_put_per_call = FOR_EVER;
        config.wait_list_per_call = FOR_EVER;
    });
    let silent = |error: ImageError| {
        assert!(error.to_string().contains("it has not answered for 1s"), "{error}");
    };
    silent(chain.tip().read_group(0).unwrap_err());
    silent(remote.open_chain(image).unwrap_err());
    silent(remote.images().unwrap_err());
    silent(remote.check().unwrap_err());
    silent(remote.set_name("a", image).unwrap_err());
}

/// An image that cannot be read any further than 12 MiB.
struct Interrupted(Vec<u8>);

impl ReadAt for Interrupted {
    fn size(&self) -> std::io::Result<u64> {
        self.0.size()
    }

    fn read_exact_at(&self, into: &mut [u8], offset: u64) -> std::io::Result<()> {
        match offset > 12 << 20 {
            true => Err(std::io::ErrorKind::BrokenPipe.into()),
            false => self.0.read_exact_at(into, offset),
        }
    }
}

#[test]
fn of_an_image_that_comes_only_half_nothing_stays() {
    let instance = SavedInstance { extents: vec![0..1 << 26], ..SavedInstance::default() };
    let manifest = Manifest { instances: vec![instance], ..Manifest::default() };
    let pages = PageRuns::new(vec![vec![(0, vec![7; 20 << 20])]]);
    let mut file = std::io::Cursor::new(Vec::new());
    ImageDraft::new(manifest, &pages).write(&mut file).unwrap();
    let bytes = Interrupted(file.into_inner());
    let image = ImageReader::open(Box::new(bytes), &ImageLimits::default()).unwrap();
    let scratch = Scratch::new("objects-half");
    let url = format!("file://{}/objects", scratch.path.display()).parse().unwrap();
    let remote = ObjectImages::at(&url, ObjectSettings::default()).unwrap();
    let refused = remote.put_image(&image).unwrap_err();
    assert!(refused.to_string().contains("broken pipe"), "{refused}");
    let files = fs::read_dir(scratch.path.join("objects/images"));
    let left: Vec<_> = files.unwrap().map(|file| file.unwrap().file_name()).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn urls_say_where_an_object_store_is_and_nothing_else() {
    let parse = |text: &str| text.parse::<ObjectUrl>();
    for (text, shown) in [
        ("file:///srv/pages", "file:///srv/pages"),
        ("file:///srv/pages//", "file:///srv/pages"),
        ("file:/srv/a/../pages", "file:///srv/pages"),
        ("file://localhost/srv/pages", "file:///srv/pages"),
        ("file:///srv/with space", "file:///srv/with%20space"),
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/pages/", "s3://bucket/pages"),
    ] {
        assert_eq!(parse(text).unwrap().to_string(), shown);
    }
    for (text, why) in [
        ("", "cannot be an object store"),
        ("/srv/pages", "cannot be an object store"),
        ("file:///", "no directory"),
        ("file://host/srv", "another machine"),
        ("s3://", "bucket"),
        ("memory:///", "no other process"),
        ("ftp://host/pages", "file:///DIRECTORY"),
        ("file:///srv?x=y", "`?`"),
        ("s3://bucket/a#b", "`#`"),
        ("s3://who:secret@bucket/a", "user or password"),
    ] {
        let error = parse(text).unwrap_err().to_string();
        assert!(error.contains(why) && !error.contains("secret"), "{text}: {error}");
    }
}

#[test]
fn an_object_store_is_tried_out_before_it_is_relied_on() {
    let scratch = Scratch::new("objects-url");
    let at = |path: &str| {
        let url: ObjectUrl = format!("file://{}/{path}", scratch.path.display()).parse().unwrap();
        ObjectImages::at(&url, ObjectSettings::default()).map_err(|error| error.to_string())
    };
    let images = at("objects").unwrap();
    images.check().unwrap();
    let image = scratch.save(1, None).hash();
    copy_image(&scratch.local, &images, image).unwrap();
    assert_eq!(at("objects").unwrap().images().unwrap(), [image], "others find it there");
    assert!(scratch.path.join("objects/images").join(image.to_string()).is_file());
    let missing = at("nowhere").unwrap_err();
    assert!(missing.contains("nowhere") && missing.contains("No such file"), "{missing}");
    assert!(!scratch.path.join("nowhere").exists(), "none is made");
    fs::write(scratch.path.join("file"), "").unwrap();
    let file = at("file").unwrap_err();
    assert!(file.contains("not a directory"), "{file}");
    // Nobody may write there, whatever rights they have.
    let unwritable =
        ObjectImages::at(&"file:///proc/self".parse().unwrap(), ObjectSettings::default());
    let refused = unwritable.unwrap().check().unwrap_err().to_string();
    assert!(refused.contains("clock"), "{refused}");
    #[cfg(not(feature = "s3"))]
    {
        let url = "s3://bucket/pages".parse().unwrap();
        let refused = ObjectImages::at(&url, ObjectSettings::default()).unwrap_err().to_string();
        assert!(refused.contains("feature `s3`"), "{refused}");
    }
}
