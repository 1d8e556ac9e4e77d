//! `pagefork image`: what is in a store of images, in text, and what goes in and out.

#![allow(clippy::single_range_in_vec_init)] // Extents of one range are meant.

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{assert_fails, pagefork, pagefork_as};
use pagefork::image::{
    ImageDraft, ImageStore, Manifest, PageRuns, SavedHostFunction, SavedInstance, StoredImage,
};

/// A store for a test, which the command is told of.
struct TestStore {
    path: PathBuf,
    store: ImageStore,
}

impl TestStore {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("images-{name}"));
        let _ = fs::remove_dir_all(&path);
        let store = ImageStore::open(path.join("store")).expect("a directory of ours");
        Self { path, store }
    }

    fn save(&self, byte: u8, parent: Option<&StoredImage>) -> StoredImage {
        let mut instance = SavedInstance {
            name: "it's\u{1b}[2J".into(),
            extents: vec![0..1 << 20],
            memory_sizes: vec![1 << 20],
            ..SavedInstance::default()
        };
        instance.parent_instance = parent.map(|_| 0);
        let function = SavedHostFunction { module: "env".into(), name: "log".into() };
        let host_functions = vec![function];
        let manifest =
            Manifest { instances: vec![instance], host_functions, ..Manifest::default() };
        let pages = PageRuns::new(vec![vec![(8192, vec![byte; 4096])]]);
        let draft = match parent {
            Some(parent) => parent.chain().delta(manifest, &pages).expect("it fits"),
            None => ImageDraft::new(manifest, &pages),
        };
        self.store.save(draft).expect("it is saved")
    }

    /// Runs a command, which is to end well, and gives what it prints.
    fn run(&self, words: &str) -> String {
        let ended = pagefork(&format!("image --store {} {words}", self.store.path().display()));
        assert_eq!(ended.code, 0, "{words}: {}", ended.stderr);
        ended.stdout
    }

    fn fails(&self, words: &str, messages: &[&str]) {
        assert_fails(
            &format!("image --store {} {words}", self.store.path().display()),
            1,
            messages,
        );
    }

    fn file(&self, name: &str) -> String {
        self.path.join(name).display().to_string()
    }
}

#[test]
fn images_are_listed_inspected_and_compared() {
    let test = TestStore::new("listed");
    let root = test.save(1, None);
    let child = test.save(2, Some(&root));
    test.store.set_name("first", root.hash()).unwrap();
    let list = test.run("ls");
    assert_eq!(list.lines().count(), 3, "{list}");
    assert!(list.contains("first") && list.contains("delta of "), "{list}");

    let report = test.run("inspect first");
    for part in [&root.hash().to_string()[..], "env log", "it's\\u{1b}[2J", "memories: 1 MiB"] {
        assert!(report.contains(part), "no {part:?} in:\n{report}");
    }
    let map = format!("0 |..#{}|", ".".repeat(61));
    assert!(report.contains(&map), "no {map} in:\n{report}");
    assert!(report.contains("each character is 4 KiB: . zeros, # in this file"), "{report}");

    let report = test.run(&format!("diff first {}", child.hash()));
    assert!(report.contains("instance 1: 1 page differ"), "{report}");
    assert!(report.contains("|..#"), "{report}");
    assert!(test.run("diff first first").contains("0 pages differ"));
    test.fails("inspect second", &["the store has no image \"second\""]);
}

#[test]
fn names_come_and_go_and_what_has_none_is_collected() {
    let test = TestStore::new("collected");
    let (root, child) = {
        let root = test.save(1, None);
        (root.hash(), test.save(2, Some(&root)).hash())
    };
    test.run(&format!("name {child} a"));
    test.run("name a b");
    test.run("rm b");
    assert!(test.run("gc").contains("0 images"));
    let squashed = test.run("squash a");
    test.run("inspect a");
    assert_eq!(test.store.find("a").unwrap().to_string(), squashed.trim_end());
    assert!(test.run("gc").contains("2 images"));
    assert!(!test.store.images().unwrap().contains(&root));
    test.run(&format!("rm {}", squashed.trim_end()));
    assert!(test.run("gc").contains("1 image "));
    test.fails("name none a", &["the store has no image"]);
}

#[test]
fn images_are_pushed_and_pulled() {
    let (test, there) = (TestStore::new("pushed"), TestStore::new("pulled"));
    let root = test.save(1, None);
    let child = test.save(2, Some(&root));
    let file = test.file("stream");
    test.run(&format!("push {} -o {file}", child.hash()));
    let pulled = there.run(&format!("pull {file} --name here"));
    assert_eq!(pulled, format!("{}\n{}\n", root.hash(), child.hash()));
    assert_eq!(there.store.find("here").unwrap(), child.hash());
    there.run("verify");
    // An image file comes in, too.
    let image = test.store.path().join("images").join(root.hash().to_string());
    there.run(&format!("pull {} --name root", image.display()));

    let mut bytes = fs::read(&file).unwrap();
    bytes[100] ^= 1;
    fs::write(&file, bytes).unwrap();
    let empty = TestStore::new("empty");
    empty.fails(&format!("pull {file}"), &["damaged"]);
    assert_eq!(empty.store.images().unwrap(), []);
    empty.fails("pull none", &["cannot read none"]);
}

#[test]
fn what_was_damaged_is_named_by_verify() {
    let test = TestStore::new("damaged");
    let image = test.save(1, None);
    let path = test.store.path().join("images").join(image.hash().to_string());
    let mut bytes = fs::read(&path).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::remove_file(&path).unwrap();
    fs::write(&path, bytes).unwrap();
    test.fails("verify", &[&image.hash().to_string(), "is damaged"]);
}

#[test]
fn the_users_key_signs_and_keys_of_others_are_trusted() {
    let test = TestStore::new("key");
    let config = test.path.join("config");
    let run = |words: &str| {
        let words = format!("image --store {} {words}", test.store.path().display());
        let ended = pagefork_as(&words, "", &config);
        (ended.code, ended.stdout + &ended.stderr)
    };
    let (code, public) = run("key");
    assert_eq!((code, public.trim_end().len()), (0, 64));
    assert_eq!(run("key").1, public);
    let image = test.save(1, None);
    let hash = image.hash();
    let (code, said) = run(&format!("sign {hash}"));
    assert!(code == 1 && said.contains("is in use"), "{said}");
    drop(image);
    assert_eq!(run(&format!("sign {hash}")).0, 0);
    assert!(run(&format!("inspect {hash}")).1.contains(public.trim_end()));
    let other = "07".repeat(32);
    for _ in 0..2 {
        assert_eq!(run(&format!("key --trust {other}")), (0, String::new()));
    }
    let trusted = fs::read_to_string(config.join("pagefork/trusted-keys")).unwrap();
    assert_eq!(trusted.trim(), other);
    let (code, said) = run("key --trust 07");
    assert!(code == 2 && said.contains("is no public key"), "{said}");
}
