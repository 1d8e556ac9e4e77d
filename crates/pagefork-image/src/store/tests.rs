//! Tests that stop a store in the middle of what it does: errors at each step, and processes that
//! are killed there.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use crate::base::error::ImageError;
use crate::base::hash::ContentHash;
use crate::file::draft::{ImageDraft, PageRuns};
use crate::file::manifest::{Manifest, SavedCode, SavedInstance};
use crate::file::signature::{SecretKey, TrustedKeys};
use crate::tree::ComingGroups;

use super::repository::copy_image;
use super::steps::{self, WriteStep};
use super::{ImageStore, StoredImage};

/// A directory that goes at the end of a test.
struct TestDirectory(PathBuf);

impl TestDirectory {
    fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("pagefork-store-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn store(&self) -> ImageStore {
        ImageStore::open(self.0.join("store")).unwrap()
    }
}

impl Drop for TestDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn manifest() -> Manifest {
    let code = SavedCode { hash: ContentHash::of(b"code"), ..SavedCode::default() };
    let extents = Vec::from([0..1 << 20]);
    let instance = SavedInstance { extents, code, ..SavedInstance::default() };
    Manifest { instances: vec![instance], ..Manifest::default() }
}

fn pages(number: u8) -> PageRuns {
    PageRuns::new(vec![vec![(0, vec![number; 8192]), (65536, vec![1; 4096])]])
}

fn save(store: &ImageStore, number: u8) -> Result<StoredImage, ImageError> {
    store.save(ImageDraft::new(manifest(), &pages(number)))
}

fn save_delta(
    store: &ImageStore,
    parent: &StoredImage,
    number: u8,
) -> Result<StoredImage, ImageError> {
    let mut manifest = manifest();
    manifest.instances[0].parent_instance = Some(0);
    let pages = pages(number);
    store.save(parent.chain().delta(manifest, &pages)?)
}

/// Everything that is in a store can be read, and nothing lacks what it needs.
fn check_whole(store: &ImageStore) {
    for hash in store.images().unwrap() {
        store.verify(hash).unwrap();
    }
    for hash in store.codes().unwrap() {
        store.verify_code(hash).unwrap();
    }
    for hash in store.names().unwrap().into_values() {
        store.verify(hash).unwrap();
    }
    assert_eq!(store.collect().unwrap().damaged, []);
    assert_eq!(store.directory.list_unfinished().unwrap(), Vec::<PathBuf>::new());
}

const STEPS: [WriteStep; 5] = [
    WriteStep::Begun,
    WriteStep::Writing,
    WriteStep::Synced,
    WriteStep::Named,
    WriteStep::Recorded,
];

#[test]
fn an_error_at_any_step_leaves_the_store_whole() {
    for step in STEPS {
        for skipped in 0..3 {
            let scratch = TestDirectory::new();
            let store = scratch.store();
            let parent = save(&store, 1).unwrap();
            store.set_name("parent", parent.hash()).unwrap();
            let mut left = skipped;
            steps::on_step(move |done| {
                left -= i32::from(done == step && left >= 0);
                match done == step && left < 0 {
                    true => Err(io::ErrorKind::StorageFull.into()),
                    false => Ok(()),
                }
            });
            let results = [
                save(&store, 2).map(drop),
                save_delta(&store, &parent, 3).map(drop),
                store.save_code(b"code").map(drop),
                store
                    .adopt(
                        fs::read(store.directory.file(super::Kind::Image, parent.hash())).unwrap(),
                    )
                    .map(drop),
                store.set_name("second", parent.hash()),
                #[cfg(feature = "transport")]
                store.import(&store.export(&[parent.hash()], Vec::new(), 1).unwrap()[..]).map(drop),
            ];
            steps::on_no_step();
            assert!(results.iter().any(Result::is_err), "{step:?} was never reached");
            check_whole(&store);
            store.verify(parent.hash()).unwrap();
            let after = save_delta(&store, &parent, 3).unwrap();
            after.chain().verify().unwrap();
        }
    }
}

/// What a process does that is killed: everything that writes. It says each step, and waits.
fn act(path: &Path) {
    let store = ImageStore::open(path).unwrap();
    let mut count = 0;
    steps::on_step(move |step| {
        count += 1;
        println!("step {count} {step:?}");
        io::stdout().flush()?;
        let mut line = String::new();
        io::stdin().read_line(&mut line)?;
        Ok(())
    });
    let parent = store.load(store.find("parent").unwrap()).unwrap();
    store.save_code(b"code").unwrap();
    let child = save_delta(&store, &parent, 2).unwrap();
    store.set_name("child", child.hash()).unwrap();
    store.squash(child.hash(), &[]).unwrap();
    drop(save(&store, 9).unwrap());
    store.collect().unwrap();
    println!("end");
}

/// Run in a process of its own by the next test.
#[test]
fn acting_process() {
    if let Ok(path) = std::env::var("PAGEFORK_IMAGE_STORE") {
        act(Path::new(&path));
    }
}

#[test]
fn a_process_killed_at_any_step_leaves_the_store_whole() {
    let mut killed_at = 0;
    loop {
        killed_at += 1;
        let scratch = TestDirectory::new();
        let store = scratch.store();
        let parent = save(&store, 1).unwrap();
        store.set_name("parent", parent.hash()).unwrap();
        let name = "store::tests::acting_process";
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture", "--test-threads", "1"])
            .env("PAGEFORK_IMAGE_STORE", store.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        let mut steps_seen = 0;
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            let line = line.unwrap();
            if line.contains("step ") {
                steps_seen += 1;
                if steps_seen == killed_at {
                    break;
                }
                writeln!(input).unwrap();
            } else if line.contains("end") && !line.contains("test") {
                break;
            }
        }
        let is_over = steps_seen < killed_at;
        child.kill().unwrap();
        child.wait().unwrap();
        // Who goes on with the parent does so.
        save_delta(&store, &parent, 7).unwrap().chain().verify().unwrap();
        check_whole(&store);
        if is_over {
            assert!(killed_at > 20, "{killed_at} steps were seen");
            break;
        }
    }
}

#[test]
fn images_are_listed_by_when_they_came_and_each_file_is_looked_at_once() {
    let directory = TestDirectory::new();
    let store = directory.store();
    let second = |at: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 + at);
    let save = |fuel: i64, at: u64| {
        let manifest = Manifest { fuel, ..Manifest::default() };
        let image = store.save(ImageDraft::new(manifest, &PageRuns::default())).unwrap().hash();
        let file = store.path().join("images").join(image.to_string());
        fs::File::open(file).unwrap().set_modified(second(at)).unwrap();
        image
    };
    let mut images: Vec<ContentHash> = (0..4).map(|at| save(at, at as u64)).collect();
    let newest = |store: &ImageStore, count| -> Vec<ContentHash> {
        let found = store.newest_full_images(count, |_| true).unwrap();
        found.map(|image| image.hash()).collect()
    };
    assert_eq!(newest(&store, 8), [images[3], images[2], images[1], images[0]]);
    assert_eq!(newest(&store, 2), [images[3], images[2]]);
    images.push(save(4, 1_000));
    // Files never change, so nobody asks again.
    assert_eq!(save(0, 2_000), images[0]);
    assert_eq!(newest(&store, 2), [images[4], images[3]]);
    assert_eq!(newest(&directory.store(), 2), [images[0], images[4]]);
}

#[test]
fn a_delta_that_was_hashed_as_it_came_is_verified_all_the_same() {
    let directory = TestDirectory::new();
    let store = directory.store();
    let instance = SavedInstance { extents: vec![0..1 << 20], ..SavedInstance::default() };
    let manifest = Manifest { instances: vec![instance], ..Manifest::default() };
    let keys = [SecretKey::from_seed([7; 32])];
    let trusted = TrustedKeys::from_iter([keys[0].public()]);
    let first = store.save(ImageDraft::new(manifest.clone(), &PageRuns::new(vec![vec![]])));
    let first = first.unwrap();
    let pages = PageRuns::new(vec![vec![(0, vec![7; 200_704])]]);
    let draft = first.chain().delta(manifest, &pages).unwrap().sign_with(&keys);
    let mut parts = Vec::new();
    let mut show = |at: u64, part: &[u8]| parts.push((at, part.to_vec()));
    let (delta, bytes) = store.save_beside_in_parts(draft, &first, Vec::new(), &mut show).unwrap();
    // As it comes, with a byte of the file changed on its way.
    let opened = |changed: Option<usize>| {
        let mut bytes = bytes.to_vec();
        let mut coming = ComingGroups::default();
        if let Some(changed) = changed {
            bytes[changed] ^= 1;
        }
        for (at, part) in &parts {
            coming.take(*at, &bytes[*at as usize..][..part.len()]);
        }
        assert!(coming.tree(delta.chain().tip().data_start(), 200_704).is_some());
        store.open_beside_hashed(Arc::new(bytes), &first, &trusted, &coming).map(|it| it.hash())
    };
    assert_eq!(opened(None).unwrap(), delta.hash());
    let data_start = delta.chain().tip().data_start() as usize;
    let header = delta.chain().tip().header();
    let index = header.index_start() as usize..header.index_end() as usize;
    for changed in [data_start, bytes.len() - 1, index.start, index.end - 1, 200] {
        let error = opened(Some(changed)).unwrap_err();
        assert!(matches!(error, ImageError::Damaged { .. }), "{changed}: {error}");
    }
}

#[test]
fn a_module_that_was_kept_stays_and_travels_with_the_images_that_name_it() {
    let scratch = TestDirectory::new();
    let store = scratch.store();
    let (module, strange) = (ContentHash::of(b"(module)"), ContentHash::of(b"strange"));
    let mut manifest = manifest();
    manifest.instances[0].module = module;
    let key = SecretKey::from_seed([3; 32]);
    let pages = pages(1);
    let draft = ImageDraft::new(manifest, &pages).sign_with(std::slice::from_ref(&key));
    let image = store.save(draft).unwrap().hash();
    store.set_name("image", image).unwrap();
    for bytes in [&b"code"[..], b"(module)", b"strange"] {
        drop(store.save_code(bytes).unwrap());
    }
    assert_eq!(store.collect().unwrap().code, [strange]);
    let stream = store.export(&[image], Vec::new(), 1).unwrap();
    let (imported, copied) = (TestDirectory::new(), TestDirectory::new());
    let signers = TrustedKeys::from_iter([key.public()]);
    imported.store().import_signed(&stream[..], &signers).unwrap();
    copy_image(&store, &copied.store(), image).unwrap();
    for there in [&imported, &copied] {
        assert_eq!(there.store().codes().unwrap(), store.codes().unwrap());
        there.store().verify_code(module).unwrap();
    }
    store.remove_name("image").unwrap();
    assert_eq!(store.collect().unwrap().code.len(), 2);
}
