//! `pagefork node`: two users on one machine, each with a store, keys and nodes that they know.

mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use common::{Ended, file, pagefork_as};

/// Prints that it is ready, reads a line, and prints it.
const READER: &str = r#"(module
    (import "wasi_snapshot_preview1" "fd_read"
        (func $read (param i32 i32 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "fd_write"
        (func $write (param i32 i32 i32 i32) (result i32)))
    (memory (export "memory") 1)
    (data (i32.const 0) "\00\01\00\00\00\04\00\00")
    (data (i32.const 16) "ready\0a")
    (func $print (param i32 i32)
        (i32.store (i32.const 32) (local.get 0))
        (i32.store (i32.const 36) (local.get 1))
        (drop (call $write (i32.const 1) (i32.const 32) (i32.const 1) (i32.const 40))))
    (func (export "_start")
        (call $print (i32.const 16) (i32.const 6))
        (drop (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)))
        (call $print (i32.const 256) (i32.load (i32.const 8)))))"#;

/// A user, with directories of their own.
struct User {
    config: PathBuf,
    store: PathBuf,
    node_key: String,
    image_key: String,
}

impl User {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("nodes-{name}"));
        let _ = fs::remove_dir_all(&path);
        let (config, store) = (path.join("config"), path.join("store"));
        let init = pagefork_as("node init", "", &config);
        assert_eq!(init.code, 0, "{}", init.stderr);
        let again = pagefork_as("node init", "", &config);
        assert_eq!(again.stdout, init.stdout, "keys are made once");
        let key = |kind| {
            let mut lines = init.stdout.lines();
            lines.find_map(|line| line.strip_prefix(kind)).expect("it is printed").to_owned()
        };
        let (node_key, image_key) = (key("node key "), key("image key "));
        assert_ne!(node_key, image_key);
        Self { config, store, node_key, image_key }
    }

    /// Runs a command, in which STORE stands for the user's store.
    fn run(&self, words: &str, input: &str) -> Ended {
        let words = words.replace("STORE", &self.store.display().to_string());
        pagefork_as(&words, input, &self.config)
    }

    #[track_caller]
    fn does(&self, words: &str) -> String {
        let ended = self.run(words, "");
        assert_eq!(ended.code, 0, "{words}: {}", ended.stderr);
        ended.stdout
    }

    #[track_caller]
    fn fails(&self, words: &str, complaint: &str) {
        let ended = self.run(words, "");
        assert_eq!(ended.code, 1, "{words}: {}", ended.stderr);
        assert!(ended.stderr.contains(complaint), "{words}: {}", ended.stderr);
    }

    fn serve(&self) -> Serving {
        let mut child = Command::new(env!("CARGO_BIN_EXE_pagefork"))
            .args(["node", "serve", "--addr", "127.0.0.1:0", "--store"])
            .arg(&self.store)
            .env("XDG_CONFIG_HOME", &self.config)
            .stderr(Stdio::piped())
            .spawn()
            .expect("the command starts");
        let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        let line = lines.next().expect("a line").expect("text");
        let (_, address) = line.rsplit_once(' ').expect("it ends with the address");
        let address = address.to_owned();
        // It must not wait for a reader.
        std::thread::spawn(move || lines.for_each(drop));
        Serving { child, address }
    }
}

/// A memory node, which ends with the test.
struct Serving {
    child: Child,
    address: String,
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_program_goes_on_at_another_node_once_each_trusts_what_it_has_to() {
    let (maker, runner) = (User::new("maker"), User::new("runner"));
    let module = file("nodes-reader.wat", READER);
    maker.does(&format!("snapshot --store STORE -o ready {module}"));
    let serving = maker.serve();
    let address = &serving.address;
    let restore = "restore --store STORE maker/ready";

    runner.fails(restore, "no node \"maker\" is known");
    runner.does(&format!("node trust maker {} --serve", maker.node_key));
    runner.fails(restore, "nothing is fetched from node maker");
    // Fetching from it is one thing, running what it has signed another, and both need its consent.
    runner.does(&format!("node trust maker {} --address {address}", maker.node_key));
    runner.fails(restore, "must trust the other's key");
    maker.does(&format!("node trust runner {} --address 127.0.0.1:1", runner.node_key));
    runner.fails(restore, "must trust the other's key");
    maker.does(&format!("node trust runner {} --serve", runner.node_key));
    runner.fails(restore, "none of its 1 signatures is of a trusted key");
    assert_eq!(runner.does("image --store STORE ls").lines().count(), 1, "nothing came");
    let signer = &maker.image_key;
    let trust =
        format!("node trust maker {} --address {address} --signer {signer}", maker.node_key);
    runner.does(&trust);

    let ended = runner.run(restore, "hello");
    assert_eq!((ended.code, &ended.stdout[..]), (0, "hello"), "{}", ended.stderr);
    let ended = runner.run("run --store STORE --from maker/ready", "again");
    assert_eq!((ended.code, &ended.stdout[..]), (0, "again"), "{}", ended.stderr);
    let ended = runner.run("fork --store STORE --from maker/ready -n 3", "");
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    for number in 1..=3 {
        assert!(ended.stdout.contains(&number.to_string()), "{}", ended.stdout);
    }
    runner.fails("restore --store STORE maker/other", "it has no such image");

    let list = runner.does("node ls");
    assert!(list.contains(address) && list.contains(&maker.node_key), "{list}");
    maker.does("node forget runner");
    runner.fails(restore, "must trust the other's key");
    maker.fails("node forget runner", "no node \"runner\" is known");
}

#[test]
fn what_is_wrong_about_a_node_is_said_before_anything_changes() {
    let user = User::new("careful");
    let key = &user.node_key;
    user.fails(&format!("node trust a/b {key} --serve"), "can be no name");
    user.fails(&format!("node trust a {key} --address here"), "give HOST:PORT");
    let ended = user.run(&format!("node trust a {key}"), "");
    assert_eq!(ended.code, 2, "{}", ended.stderr);
    let ended = user.run("node trust a 12 --serve", "");
    assert_eq!(ended.code, 2, "{}", ended.stderr);
    assert_eq!(user.does("node ls").lines().count(), 1);
    fs::write(user.config.join("pagefork/nodes"), "a b c\n").unwrap();
    user.fails("node ls", "line 1");
    user.fails("node serve --addr 127.0.0.1:0 --store STORE", "line 1");
}
