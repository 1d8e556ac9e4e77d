//! A directory of images: what comes in is verified, what is in use stays, and what is not goes.

#![allow(clippy::single_range_in_vec_init)] // Extents of one range are meant.

mod common;

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use common::*;
use pagefork_image::*;

struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Relaxed);
        let name = format!("pagefork-images-{}-{number}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    fn store(&self) -> ImageStore {
        ImageStore::open(self.0.join("store")).unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn save(store: &ImageStore, byte: u8) -> StoredImage {
    let pages = PageRuns::new(vec![vec![(0, vec![byte; 8192])]]);
    store.save(ImageDraft::new(manifest(&[1 << 20]), &pages)).unwrap()
}

fn save_delta(store: &ImageStore, parent: &StoredImage, byte: u8) -> StoredImage {
    let mut manifest = manifest(&[1 << 20]);
    manifest.instances[0].parent_instance = Some(0);
    let pages = PageRuns::new(vec![vec![(0, vec![byte; 4096])]]);
    store.save(parent.chain().delta(manifest, &pages).unwrap()).unwrap()
}

fn file_of(store: &ImageStore, image: &StoredImage) -> PathBuf {
    store.path().join("images").join(image.hash().to_string())
}

#[test]
fn what_is_saved_is_loaded_with_its_ancestors() {
    let scratch = Scratch::new();
    let store = scratch.store();
    let root = save(&store, 1);
    let middle = save_delta(&store, &root, 2);
    let tip = save_delta(&store, &middle, 3);
    let loaded = scratch.store().load(tip.hash()).unwrap();
    let hashes: Vec<_> = loaded.chain().images().iter().map(|image| image.hash()).collect();
    assert_eq!(hashes, [tip.hash(), middle.hash(), root.hash()]);
    let mut bytes = [0; 8192];
    loaded.chain().read(0, 0, &mut bytes).unwrap();
    assert_eq!((bytes[0], bytes[4096]), (3, 1));
    assert!(loaded.chain().root().file().is_some());

    let squashed = store.squash(tip.hash(), &[]).unwrap();
    assert_eq!(contents(squashed.chain(), 0), contents(loaded.chain(), 0));
    assert_eq!(squashed.chain().images().len(), 1);
    // The same image again is the one that is there.
    assert_eq!(save(&store, 1).hash(), root.hash());
    assert_eq!(store.images().unwrap().len(), 4);
}

#[test]
fn names_lead_to_images_that_are_there() {
    let scratch = Scratch::new();
    let store = scratch.store();
    let image = save(&store, 1);
    let other = save(&store, 2);
    let missing = ContentHash::of(b"none");
    assert!(matches!(store.set_name("a", missing), Err(ImageError::NotFound { .. })));
    for name in
        ["", ".", "..", ".a", "a/b", "a b", "ä", "-a", &"a".repeat(129), &missing.to_string()]
    {
        assert!(
            matches!(store.set_name(name, image.hash()), Err(ImageError::Invalid(_))),
            "{name}"
        );
    }
    store.set_name("a", image.hash()).unwrap();
    store.set_name("a", other.hash()).unwrap();
    store.set_name("v1.2_x-3", image.hash()).unwrap();
    assert_eq!(store.find("a").unwrap(), other.hash());
    let hash = image.hash().to_string();
    assert_eq!(store.find(&hash).unwrap(), image.hash());
    assert_eq!(store.find(&hash[..12]).unwrap(), image.hash());
    for text in [&hash[..3], "zzzz", "", &missing.to_string()] {
        assert!(store.find(text).is_err(), "{text}");
    }
    assert_eq!(store.names().unwrap().len(), 2);
    assert!(store.remove_name("a").unwrap());
    assert!(!store.remove_name("a").unwrap());
}

#[test]
fn collection_keeps_what_is_named_or_in_use_with_all_it_needs() {
    let scratch = Scratch::new();
    let store = scratch.store();
    let code = store.save_code(b"code").unwrap();
    let unused_code = store.save_code(b"other").unwrap();
    assert_eq!(code.hash(), manifest(&[1]).instances[0].code.hash);
    let [root, used, garbage] = [1, 2, 3].map(|byte| save(&store, byte));
    let middle = save_delta(&store, &root, 4);
    let named = save_delta(&store, &middle, 5);
    let child_of_garbage = save_delta(&store, &garbage, 6);
    store.set_name("named", named.hash()).unwrap();
    let expected = [garbage.hash(), child_of_garbage.hash()];
    let kept = [&root, &middle, &named].map(StoredImage::hash);
    drop((garbage, child_of_garbage, code, root, middle, named));
    let [root, middle, named] = kept;

    let report = store.collect().unwrap();
    assert_eq!(report.images.len(), 2);
    assert!(expected.iter().all(|hash| report.images.contains(hash)));
    assert_eq!(report.images[1], expected[0], "a parent goes after its child");
    assert_eq!(report.in_use, [used.hash()]);
    assert_eq!(report.code, [], "{} is open", unused_code.hash());
    drop((used, unused_code));
    let report = store.collect().unwrap();
    assert_eq!((report.images.len(), report.code.len()), (1, 1));
    assert_eq!(store.images().unwrap().len(), 3);
    assert_eq!(store.codes().unwrap(), [ContentHash::of(b"code")]);
    for hash in [root, middle, named] {
        store.verify(hash).unwrap();
    }

    // What somebody has of a chain keeps what that needs, after the name has gone, too.
    let reader = store.load(middle).unwrap().chain().tip().clone();
    store.remove_name("named").unwrap();
    let report = store.collect().unwrap();
    assert_eq!(report.images, [named]);
    assert_eq!(report.in_use.len(), 2);
    drop(reader);
    assert_eq!(store.collect().unwrap().images, [middle, root]);
    assert_eq!(store.codes().unwrap(), []);
}

#[test]
fn one_image_is_removed_if_nothing_needs_it() {
    let scratch = Scratch::new();
    let store = scratch.store();
    let root = save(&store, 1);
    let child = save_delta(&store, &root, 2);
    let hashes = [&root, &child].map(StoredImage::hash);
    drop((root, child));
    let [root, child] = hashes;
    let why = |hash| match store.remove(hash) {
        Err(ImageError::InUse { why, .. }) => why,
        other => panic!("{other:?}"),
    };
    assert!(why(root).contains("is a delta of it"));
    store.set_name("child", child).unwrap();
    assert!(why(child).contains("its name is child"));
    store.remove_name("child").unwrap();
    let open = store.load(child).unwrap();
    assert!(why(child).contains("has it open"));
    drop(open);
    store.remove(child).unwrap();
    store.remove(root).unwrap();
    assert!(matches!(store.remove(root), Err(ImageError::NotFound { .. })));
}

#[test]
fn a_delta_comes_in_only_after_its_parent() {
    let scratch = Scratch::new();
    let (store, other) = (scratch.store(), Scratch::new());
    let other = other.store();
    let root = save(&store, 1);
    let child = save_delta(&store, &root, 2);
    let bytes = |image| fs::read(file_of(&store, image)).unwrap();
    let refused = other.adopt(bytes(&child)).unwrap_err();
    assert!(matches!(refused, ImageError::NotFound { hash, .. } if hash == root.hash()));
    assert_eq!(other.images().unwrap(), []);
    other.adopt(bytes(&root)).unwrap();
    assert_eq!(other.adopt(bytes(&child)).unwrap().hash(), child.hash());
    assert_eq!(fs::read(file_of(&other, &child)).unwrap(), bytes(&child));
}

/// What comes in again brings its signatures, where nobody uses what is there.
#[test]
fn signatures_are_added_to_what_nobody_uses() {
    let scratch = Scratch::new();
    let store = scratch.store();
    let pages = PageRuns::new(vec![vec![(0, vec![1; 8192])]]);
    let signed = |keys: &[SecretKey]| {
        store.save(ImageDraft::new(manifest(&[1 << 20]), &pages).sign_with(keys))
    };
    let signers = |hash| store.load(hash).unwrap().chain().tip().signers().to_vec();
    let hash = signed(&[]).unwrap().hash();
    assert_eq!(signers(hash), []);
    assert_eq!(signed(&[key(1)]).unwrap().hash(), hash);
    signed(&[]).unwrap();
    assert_eq!(signers(hash), [key(1).public()]);
    store.sign(hash, &[key(2), key(1)]).unwrap();
    assert_eq!(signers(hash), [key(1).public(), key(2).public()]);
    let used = store.load(hash).unwrap();
    assert!(matches!(store.sign(hash, &[key(3)]), Err(ImageError::InUse { .. })));
    assert!(matches!(signed(&[key(3)]), Err(ImageError::InUse { .. })));
    signed(&[key(2)]).unwrap();
    used.chain().verify().unwrap();
    drop(used);
    let bytes = write(ImageDraft::new(manifest(&[1 << 20]), &pages).sign_with(&[key(3)])).1;
    store.adopt(bytes).unwrap();
    assert_eq!(signers(hash).len(), 3);
    store.verify(hash).unwrap();
    assert_eq!(store.images().unwrap().len(), 1);
    assert_eq!(fs::read_dir(store.path().join("unfinished")).unwrap().count(), 0);
}

/// A file that is as small as one with pages and a signature can be.
fn tiny() -> Vec<u8> {
    let page = (0..PAGE).map(|place| place as u8 | 1).collect();
    let pages = PageRuns::new(vec![vec![(0, page)]]);
    write(ImageDraft::new(manifest(&[4096]), &pages).sign_with(&[key(1)])).1
}

/// The bytes at each length below the whole, and with each byte altered.
fn damaged(bytes: &[u8]) -> impl Iterator<Item = Vec<u8>> + '_ {
    let cut = (0..bytes.len()).map(|length| bytes[..length].to_vec());
    let altered = (0..bytes.len()).map(|place| {
        let mut altered = bytes.to_vec();
        altered[place] ^= 1 << (place % 8);
        altered
    });
    cut.chain(altered)
}

#[test]
fn every_cut_and_every_altered_byte_is_refused_by_every_way_in() {
    let scratch = Scratch::new();
    let store = scratch.store();
    let image = tiny();
    assert_eq!(image.len(), 2 * PAGE);
    for bytes in damaged(&image) {
        // As a path that a user gives, and as an image of another store.
        let error = store.adopt(bytes.clone()).unwrap_err();
        assert!(!matches!(error, ImageError::Io { .. }), "{error}");
        if let Ok(reader) = open(bytes) {
            assert!(store.put_image(&reader).is_err());
        }
    }
    let code: Vec<u8> = (0..300).map(|place| (place * 7) as u8).collect();
    let hash = ContentHash::of(&code);
    for bytes in damaged(&code) {
        assert!(matches!(store.put_code(hash, &bytes), Err(ImageError::Damaged(_))));
    }
    assert_eq!((store.images().unwrap(), store.codes().unwrap()), (vec![], vec![]));
    assert_eq!(fs::read_dir(store.path().join("unfinished")).unwrap().count(), 0);
    store.put_code(hash, &code).unwrap();
    store.put_image(&open(image.clone()).unwrap()).unwrap();
    assert_eq!(fs::read(file_of(&store, &store.adopt(image.clone()).unwrap())).unwrap(), image);
}

/// What is saved says of itself what it is, also where who gives it is mistaken.
#[test]
fn what_changes_while_it_is_saved_is_saved_as_something_or_not_at_all() {
    struct Fickle(std::cell::Cell<u64>, u64);
    impl PageSource for Fickle {
        fn ranges(&self, _: usize) -> Result<Vec<std::ops::Range<u64>>, ImageError> {
            Ok(vec![0..40 * PAGE_SIZE])
        }
        fn read(&self, _: usize, offset: u64, into: &mut [u8]) -> Result<(), ImageError> {
            self.0.set(self.0.get() + 1);
            let changes = self.0.get() == self.1;
            for (place, byte) in into.iter_mut().enumerate() {
                *byte = (place as u64 + offset / PAGE_SIZE) as u8 ^ u8::from(changes) << 3;
            }
            Ok(())
        }
        fn read_attachment(&self, _: usize, _: u64, _: &mut [u8]) -> Result<(), ImageError> {
            unreachable!("it has none")
        }
    }
    let scratch = Scratch::new();
    let store = scratch.store();
    let save = |changes_at| {
        let source = Fickle(Default::default(), changes_at);
        let saved = store.save(ImageDraft::new(manifest(&[1 << 20]), &source));
        (saved.unwrap(), source.0.get())
    };
    let (right, reads) = save(0);
    for changes_at in 1..=reads {
        let (saved, _) = save(changes_at);
        saved.chain().verify().unwrap();
        let found = contents(saved.chain(), 0);
        let expected = contents(right.chain(), 0);
        let differ = expected.iter().filter(|(at, page)| found.get(at) != Some(page)).count();
        assert_eq!(differ > 0, saved.hash() != right.hash());
    }
}

#[test]
fn a_damaged_name_leads_to_no_image_and_what_it_named_stays() {
    let scratch = Scratch::new();
    let store = scratch.store();
    let (named, other) = (save(&store, 1).hash(), save(&store, 2).hash());
    let code = store.save_code(b"code").unwrap().hash();
    store.set_name("kept", named).unwrap();
    store.set_name("other", other).unwrap();
    let path = store.path().join("names/kept");
    let whole = fs::read(&path).unwrap();
    for bytes in damaged(&whole) {
        fs::write(&path, &bytes).unwrap();
        match store.find("kept") {
            Ok(hash) => assert!(matches!(store.load(hash), Err(ImageError::NotFound { .. }))),
            Err(error) => assert!(matches!(error, ImageError::StoreRefused { .. }), "{error}"),
        }
        let error = store.collect().unwrap_err();
        assert!(error.to_string().contains("kept"), "{error}");
    }
    store.verify(named).unwrap();
    store.verify_code(code).unwrap();
    fs::write(&path, whole).unwrap();
    assert_eq!(store.collect().unwrap().images, []);
    // It is mended by a name for something that is there.
    fs::write(&path, "").unwrap();
    store.set_name("kept", named).unwrap();
    store.collect().unwrap();
}

#[test]
fn a_file_that_was_damaged_in_the_store_is_noticed_by_who_verifies() {
    let scratch = Scratch::new();
    let store = scratch.store();
    let image = save(&store, 1);
    let path = file_of(&store, &image);
    let mut bytes = fs::read(&path).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::remove_file(&path).unwrap();
    fs::write(&path, &bytes).unwrap();
    store.load(image.hash()).unwrap();
    assert!(matches!(store.verify(image.hash()), Err(ImageError::Damaged(_))));
    assert!(matches!(store.squash(image.hash(), &[]), Err(ImageError::Damaged(_))));
    // Cut, it cannot be opened; it stays, and the collection says so.
    fs::write(&path, &bytes[..100]).unwrap();
    assert!(matches!(store.load(image.hash()), Err(ImageError::Damaged(_))));
    let report = store.collect().unwrap();
    assert_eq!((report.damaged.len(), report.images.len()), (1, 0));
    // An image under the name of another is refused.
    let other = save(&store, 2);
    fs::copy(file_of(&store, &other), &path).unwrap_or_else(|_| {
        fs::remove_file(&path).unwrap();
        fs::copy(file_of(&store, &other), &path).unwrap()
    });
    assert!(matches!(store.load(image.hash()), Err(ImageError::Damaged(_))));
}

#[test]
fn what_is_in_a_store_is_written_by_nobody() {
    let scratch = Scratch::new();
    let store = scratch.store();
    let image = save(&store, 1);
    let code = store.save_code(b"code").unwrap();
    assert!(fs::metadata(file_of(&store, &image)).unwrap().permissions().readonly());
    assert!(code.file().metadata().unwrap().permissions().readonly());
}

#[cfg(unix)]
#[test]
fn a_directory_that_others_can_write_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = Scratch::new();
    let store = scratch.store();
    let open = || ImageStore::open(store.path());
    for part in ["", "images", "code", "names", "unfinished"] {
        let path = store.path().join(part);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o770)).unwrap();
        assert!(matches!(open(), Err(ImageError::StoreRefused { .. })), "{part}");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    }
    open().unwrap();
    fs::remove_file(store.path().join("version")).unwrap();
    fs::write(store.path().join("version"), "2\n").unwrap();
    assert!(matches!(open(), Err(ImageError::Version { found: 2, .. })));
}

/// None of them is opened: pipes wait for a writer, devices have no end, links lead to what others
/// may write.
#[cfg(target_os = "linux")]
#[test]
fn what_is_no_file_of_the_store_is_refused_and_not_opened() {
    use std::os::unix::fs::symlink;
    let scratch = Scratch::new();
    let store = scratch.store();
    let image = save(&store, 1);
    let (hash, code) = (image.hash(), store.save_code(b"code").unwrap().hash());
    store.set_name("kept", hash).unwrap();
    drop(image);
    let copy = scratch.0.join("copy");
    let pipe = |path: &std::path::Path| {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    };
    let kinds: [(&str, &dyn Fn(&std::path::Path)); 5] = [
        ("a pipe", &pipe),
        ("a link", &|path| symlink(&copy, path).unwrap()),
        ("a dangling link", &|path| symlink("nowhere", path).unwrap()),
        ("a device", &|path| symlink("/dev/zero", path).unwrap()),
        ("a directory", &|path| fs::create_dir(path).unwrap()),
    ];
    let parts = [format!("images/{hash}"), format!("code/{code}"), "names/kept".into()];
    for part in parts.iter().map(String::as_str).chain(["version", "unfinished/left"]) {
        let path = store.path().join(part);
        let is_left = part == "unfinished/left";
        if is_left {
            fs::write(&path, "left behind").unwrap();
        }
        for (kind, put) in kinds {
            fs::rename(&path, &copy).unwrap();
            put(&path);
            let refused = |what: &str, result: Result<(), ImageError>| match result {
                Err(ImageError::StoreRefused { path: refused, why }) => {
                    assert_eq!(refused, path, "{what}: {why}");
                    assert!(why.contains("link, directory, pipe or device"), "{what}: {why}");
                }
                other => panic!("{what} with {kind} as {part}: {other:?}"),
            };
            match part.split('/').next() {
                Some("images") => {
                    refused("load", store.load(hash).map(drop));
                    refused("verify", store.verify(hash));
                    refused("collect", store.collect().map(drop));
                    refused("remove", store.remove(hash));
                }
                Some("code") => {
                    refused("load", store.load_code(code).map(drop));
                    refused("save", store.save_code(b"code").map(drop));
                    store.set_name("kept", hash).unwrap();
                }
                Some("names") => {
                    refused("find", store.find("kept").map(drop));
                    refused("collect", store.collect().map(drop));
                }
                Some("version") => refused("open", ImageStore::open(store.path()).map(drop)),
                _ => refused("collect", store.collect().map(drop)),
            }
            match kind {
                "a directory" => fs::remove_dir(&path).unwrap(),
                _ => fs::remove_file(&path).unwrap(),
            }
            fs::rename(&copy, &path).unwrap();
            store.verify(hash).unwrap();
        }
    }
    assert_eq!(store.collect().unwrap().images, []);
}

#[test]
fn what_was_made_of_a_delta_stays_as_long_as_that() {
    let scratch = Scratch::new();
    let store = scratch.store();
    let parent = save(&store, 1);
    let child = save_delta(&store, &parent, 2);
    let [parent, child] = [parent, child].map(|image| image.hash());
    assert_eq!(store.load_whole(parent).unwrap().hash(), parent);
    store.set_name("kept", child).unwrap();
    let full = store.load_whole(child).unwrap().hash();
    assert_eq!(store.load(full).unwrap().chain().images().len(), 1);
    let report = store.collect().unwrap();
    assert_eq!((report.images, report.in_use), (vec![], vec![]));
    assert_eq!(store.load_whole(child).unwrap().hash(), full);
    // What leads there can be lost, or damaged, and is written again.
    let path = store.path().join("whole").join(child.to_string());
    for bytes in damaged(&fs::read(&path).unwrap()) {
        fs::write(&path, bytes).unwrap();
        assert_eq!(store.load_whole(child).unwrap().hash(), full);
    }
    fs::write(&path, "").unwrap();
    assert_eq!(store.collect().unwrap().images, [full]);
    assert!(!path.exists());
    assert_eq!(store.load_whole(child).unwrap().hash(), full);
    store.remove(full).unwrap();
    assert_eq!(store.load_whole(child).unwrap().hash(), full);
    store.remove_name("kept").unwrap();
    assert_eq!(store.collect().unwrap().images.len(), 3);
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 0);
}

#[test]
fn nothing_is_collected_while_what_a_name_leads_to_is_damaged() {
    let scratch = Scratch::new();
    let store = scratch.store();
    let parent = save(&store, 1);
    let child = save_delta(&store, &parent, 2);
    store.set_name("kept", child.hash()).unwrap();
    let (path, hashes) = (file_of(&store, &child), [parent.hash(), child.hash()]);
    drop((parent, child));
    let whole = fs::read(&path).unwrap();
    let put = |bytes: &[u8]| {
        fs::remove_file(&path).unwrap();
        fs::write(&path, bytes).unwrap();
    };
    put(&whole[..whole.len() - 1]);
    let error = store.collect().unwrap_err();
    assert!(matches!(&error, ImageError::StoreRefused { path, .. } if path.ends_with("kept")));
    assert!(error.to_string().contains("damaged"), "{error}");
    // So it can be mended: its parent is there.
    store.adopt(whole).unwrap();
    assert_eq!(store.collect().unwrap().images, []);
    assert_eq!(store.images().unwrap().len(), hashes.len());
    store.verify(hashes[1]).unwrap();
}

#[cfg(feature = "transport")]
#[test]
fn streams_bring_all_or_nothing() {
    let scratch = Scratch::new();
    let (store, there) = (scratch.store(), Scratch::new());
    let there = there.store();
    store.save_code(b"code").unwrap();
    let root = save(&store, 1);
    let child = save_delta(&store, &root, 2);
    let stream = store.export(&[child.hash(), root.hash()], Vec::new(), 3).unwrap();
    for length in 0..stream.len() {
        assert!(there.import(&stream[..length]).is_err());
    }
    let mut altered = stream.clone();
    for place in 0..stream.len() {
        altered[place] ^= 0x10;
        assert!(there.import(&altered[..]).is_err(), "byte {place}");
        altered[place] ^= 0x10;
    }
    assert_eq!((there.images().unwrap(), there.codes().unwrap()), (vec![], vec![]));
    assert_eq!(fs::read_dir(there.path().join("unfinished")).unwrap().count(), 0);
    let received = there.import(&stream[..]).unwrap();
    let hashes: Vec<_> = received.iter().map(StoredImage::hash).collect();
    assert_eq!(hashes, [root.hash(), child.hash()]);
    assert_eq!(there.codes().unwrap(), [ContentHash::of(b"code")]);
    assert_eq!(contents(received[1].chain(), 0), contents(child.chain(), 0));
    there.import(&stream[..]).unwrap();

    // A delta alone needs its parent there.
    let mut alone = StreamWriter::new(Vec::new(), 3).unwrap();
    alone.image(child.chain().tip()).unwrap();
    let alone = alone.finish().unwrap();
    let empty = Scratch::new();
    let refused = empty.store().import(&alone[..]).unwrap_err();
    assert!(matches!(refused, ImageError::NotFound { hash, .. } if hash == root.hash()));
    assert_eq!(empty.store().images().unwrap(), []);
    assert_eq!(store.import(&alone[..]).unwrap().len(), 1);
}
