//! Programs that run at a node are captured by a command, and other commands go on from there.

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use common::users::{Serving, User, pass_without_rights};
use common::{assert_fails, command, file};

/// Nothing may take longer.
const LIMIT: Duration = Duration::from_secs(60);

/// Fills 4 MiB, says that it is ready, reads, and says what the sum of its memory is, as a response of HTTP.
/// It traps if that is wrong.
const PROGRAM: &str = r#"(module
    (import "wasi_snapshot_preview1" "fd_read"
        (func $fd_read (param i32 i32 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "fd_write"
        (func $fd_write (param i32 i32 i32 i32) (result i32)))
    (memory (export "memory") 80)
    (data (i32.const 0) "\00\01\00\00\00\04\00\00")
    (data (i32.const 16) "ready\0a")
    (data (i32.const 2048) "Content-Type: text/plain\0a\0athe sum is right\0a")
    (func $print (param i32 i32)
        (i32.store (i32.const 32) (local.get 0))
        (i32.store (i32.const 36) (local.get 1))
        (drop (call $fd_write (i32.const 1) (i32.const 32) (i32.const 1) (i32.const 40))))
    (func $sum (result i64) (local $at i32) (local $sum i64)
        (local.set $at (i32.const 65536))
        (loop $again
            (local.set $sum (i64.add (local.get $sum) (i64.load (local.get $at))))
            (local.set $at (i32.add (local.get $at) (i32.const 8)))
            (br_if $again (i32.lt_u (local.get $at) (i32.const 4259840))))
        (local.get $sum))
    (func (export "_start") (local $at i32) (local $sum i64)
        (local.set $at (i32.const 65536))
        (loop $again
            (i64.store (local.get $at) (i64.mul (i64.extend_i32_u (local.get $at)) (i64.const 0x9e3779b97f4a7c15)))
            (local.set $at (i32.add (local.get $at) (i32.const 8)))
            (br_if $again (i32.lt_u (local.get $at) (i32.const 4259840))))
        (local.set $sum (call $sum))
        (call $print (i32.const 16) (i32.const 6))
        (drop (call $fd_read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)))
        (if (i64.ne (call $sum) (local.get $sum)) (then unreachable))
        (call $print (i32.const 2048) (i32.const 43))))"#;

const PRINTED: &str = "Content-Type: text/plain\n\nthe sum is right\n";

/// A client that is attached to a program.
struct Client {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Client {
    /// Starts a program, and waits until it is ready.
    fn start(user: &User, words: &str) -> Self {
        let mut child = Command::new(command())
            .args(words.split(' '))
            .env("XDG_CONFIG_HOME", &user.config)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self { child, lines }
    }

    /// Lets it end. Returns its exit code, and what it has printed since it was ready.
    fn end(mut self) -> (Option<i32>, String) {
        drop(self.child.stdin.take());
        let mut rest = String::new();
        self.lines.read_to_string(&mut rest).unwrap();
        (self.child.wait().unwrap().code(), rest)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // It would try to reach a node again that is gone.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A node, and a user who may have programs run there, and images of it.
fn node_and_user(name: &str) -> (User, User, Serving) {
    let (node, user) = (User::new(&format!("{name}-node")), User::new(&format!("{name}-user")));
    let running = node.listen("run");
    let (address, signer) = (&running.address, &node.image_key);
    let trust = format!("node trust edge {} --address {address} --signer {signer}", node.node_key);
    user.does(&trust);
    node.does(&format!("node trust user {} --serve --run", user.node_key));
    node.does(&format!("node trust own {} --address {address}", node.node_key));
    (node, user, running)
}

#[test]
fn commands_go_on_from_what_a_program_at_a_node_was_and_it_runs_on() {
    let (node, user, _running) = node_and_user("captured");
    let module = file("captured-at-node.wat", PROGRAM);
    let client = Client::start(&user, &format!("node start --name sums edge {module}"));
    let captured = user.run("node snapshot --report -o half edge/sums", "");
    assert_eq!(captured.code, 0, "{}", captured.stderr);
    let hash = captured.stdout.trim_end();
    assert_eq!(hash.len(), 64, "{hash}");
    assert!(captured.stderr.contains("rested"), "{}", captured.stderr);
    assert!(user.does("node ps edge").contains("runs"));
    assert!(node.does("image --store STORE ls").contains("half"));

    for name in ["half", hash] {
        let ended = user.run(&format!("restore --store STORE edge/{name}"), "go");
        assert_eq!((ended.code, &ended.stdout[..]), (0, PRINTED), "{}", ended.stderr);
    }
    let ended = user.run("run --store STORE --from edge/half", "go");
    assert_eq!((ended.code, &ended.stdout[..]), (0, PRINTED), "{}", ended.stderr);
    let ended = user.run("fork --store STORE --from edge/half -n 5", "");
    assert_eq!((ended.code, ended.stdout), (0, PRINTED.repeat(5)), "{}", ended.stderr);
    let answer = serve_once(&user);
    // In chunks, or in one piece if the program ended before its first words were sent.
    assert!(answer.contains("the sum is right\n"), "{answer}");
    let ended = user.run("node start edge --from half", "go");
    assert_eq!((ended.code, &ended.stdout[..]), (0, PRINTED), "{}", ended.stderr);
    let ended = node.run("restore --store STORE half", "go");
    assert_eq!((ended.code, &ended.stdout[..]), (0, PRINTED), "{}", ended.stderr);

    for (words, complaint) in [
        ("node snapshot -o half edge/sums", "\"half\" is taken"),
        ("node snapshot -o ../x edge/sums", "no name"),
        ("node snapshot -o moving-x edge/sums", "programs that move"),
        ("node snapshot edge/none", "no program \"none\""),
        ("node snapshot nowhere/sums", "no node \"nowhere\""),
    ] {
        user.fails(words, complaint);
    }
    assert_eq!(client.end(), (Some(0), PRINTED.to_owned()));
    user.fails("node snapshot edge/sums", "no program \"sums\"");
    assert_fails("node snapshot", 2, &["PROGRAM"]);
}

/// The answer of `serve --from` to a request.
fn serve_once(user: &User) -> String {
    let mut child = Command::new(command())
        .args(["serve", "--addr", "127.0.0.1:0", "--from", "edge/half", "--store"])
        .arg(&user.store)
        .env("XDG_CONFIG_HOME", &user.config)
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("answers at http://") {
        line.clear();
        assert_ne!(stderr.read_line(&mut line).unwrap(), 0, "it does not serve");
    }
    let address = line.split("http://").nth(1).unwrap().split('/').next().unwrap().trim();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    answer
}

#[test]
fn who_may_not_have_programs_run_captures_none_and_who_may_not_have_images_gets_none() {
    let (node, user, _running) = node_and_user("captured-rights");
    let module = file("captured-rights.wat", PROGRAM);
    let client = Client::start(&user, &format!("node start --name sums edge {module}"));
    node.does(&format!("node trust user {} --serve", user.node_key));
    user.fails("node snapshot -o half edge/sums", "no connection with node");
    assert_eq!(node.does("image --store STORE ls").lines().count(), 1, "there is none");
    node.does(&format!("node trust user {} --run", user.node_key));
    user.does("node snapshot -o half edge/sums");
    user.fails("restore --store STORE edge/half", "edge/half");
    // Whose machine code runs is for who runs it to say.
    node.does(&format!("node trust user {} --serve --run", user.node_key));
    let stranger = User::new("captured-rights-stranger");
    let address = user.does("node ls");
    let address = address.split_whitespace().find(|word| word.starts_with("127.0.0.1:")).unwrap();
    stranger.does(&format!("node trust edge {} --address {address}", node.node_key));
    node.does(&format!("node trust stranger {} --serve", stranger.node_key));
    stranger.fails("restore --store STORE edge/half", "signatures is of a trusted key");
    assert_eq!(client.end(), (Some(0), PRINTED.to_owned()));
}

#[test]
fn users_without_rights_capture_what_runs_at_a_node_as_others_do() {
    let tests = [
        "commands_go_on_from_what_a_program_at_a_node_was_and_it_runs_on",
        "who_may_not_have_programs_run_captures_none_and_who_may_not_have_images_gets_none",
    ];
    pass_without_rights("node-snapshots", &tests);
}

#[test]
fn when_the_client_or_the_node_is_killed_there_is_a_whole_image_or_none() {
    let (node, user, mut running) = node_and_user("captured-killed");
    let module = file("captured-killed.wat", PROGRAM);
    let _client = Client::start(&user, &format!("node start --name sums edge {module}"));
    let captures = |number: u64| {
        let mut child = Command::new(command())
            .args(["node", "snapshot", "-o", &format!("at-{number}"), "edge/sums"])
            .env("XDG_CONFIG_HOME", &user.config)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        thread::sleep(Duration::from_millis(number * 5));
        child.kill().unwrap();
        child.wait().unwrap();
    };
    (0..8).for_each(captures);
    assert!(user.does("node ps edge").contains("runs"));
    // What a client has asked for is done to its end.
    let begun = Instant::now();
    user.does("node snapshot -o last edge/sums");
    let named = || {
        let list = node.does("image --store STORE ls");
        let names = list.split_whitespace().filter(|word| word.starts_with("at-"));
        names.map(str::to_owned).collect::<Vec<_>>()
    };
    let mut names = named();
    loop {
        thread::sleep(Duration::from_millis(500));
        let later = named();
        if std::mem::replace(&mut names, later.clone()) == later || begun.elapsed() > LIMIT {
            break;
        }
    }
    for name in names.iter().map(|name| &name[..]).chain(["last"]) {
        let ended = node.run(&format!("restore --store STORE {name}"), "go");
        assert_eq!((ended.code, &ended.stdout[..]), (0, PRINTED), "{name}: {}", ended.stderr);
    }
    // The node itself.
    let config = user.config.clone();
    let killed = thread::spawn(move || {
        let child = Command::new(command())
            .args(["node", "snapshot", "-o", "killed", "edge/sums"])
            .env("XDG_CONFIG_HOME", config)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        child.unwrap().code()
    });
    thread::sleep(Duration::from_millis(15));
    running.child.kill().unwrap();
    running.child.wait().unwrap();
    let code = killed.join().unwrap();
    let list = node.does("image --store STORE ls");
    if list.contains("killed") {
        let ended = node.run("restore --store STORE killed", "go");
        assert_eq!((ended.code, &ended.stdout[..]), (0, PRINTED), "{}", ended.stderr);
    } else {
        assert_ne!(code, Some(0), "it says that there is one");
    }
    node.does("image --store STORE gc");
    let left = fs::read_dir(node.store.join("unfinished")).unwrap().count();
    assert_eq!(left, 0, "nothing half-made stays");
}

/// A node whose store is on a disk of its own, of this size; `None` if there can be none.
fn on_a_disk(node: &User, size: &str) -> Option<Serving> {
    let own_mounts = ["--map-root-user", "--mount"];
    let mut mount = Command::new("unshare");
    mount.args(own_mounts).args(["mount", "-t", "tmpfs", "none", "/tmp"]);
    if !mount.status().is_ok_and(|status| status.success()) {
        println!("skipped: a process may have no mounts of its own here");
        return None;
    }
    fs::create_dir_all(&node.store).unwrap();
    let script = "mount -t tmpfs -o \"size=$2,mode=700\" none \"$1\" && exec \"$3\" node run \
                  --addr 127.0.0.1:0 --store \"$1\"";
    let mut child = Command::new("unshare")
        .args(own_mounts)
        .args(["sh", "-c", script, "sh"])
        .arg(&node.store)
        .arg(size)
        .arg(command())
        .env("XDG_CONFIG_HOME", &node.config)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let line = lines.next().unwrap().unwrap();
    let address = line.rsplit_once(' ').unwrap().1.to_owned();
    thread::spawn(move || lines.for_each(drop));
    Some(Serving { child, address })
}

#[test]
fn on_a_full_disk_there_is_no_image_and_the_program_runs_on() {
    let (node, user) = (User::new("captured-full-node"), User::new("captured-full-user"));
    node.does(&format!("node trust user {} --serve --run", user.node_key));
    // There is room for the image of one program, and not for that of two.
    let Some(running) = on_a_disk(&node, "7M") else { return };
    let (address, signer) = (&running.address, &node.image_key);
    let trust = format!("node trust edge {} --address {address} --signer {signer}", node.node_key);
    user.does(&trust);
    let module = file("captured-full.wat", PROGRAM);
    let client = Client::start(&user, &format!("node start --name sums edge {module}"));
    user.does("node snapshot -o first edge/sums");
    // Another one, since the same image would be there already.
    let different = PROGRAM.replace("0x9e3779b97f4a7c15", "0x9e3779b97f4a7c17");
    let module = file("captured-more.wat", different);
    let other = Client::start(&user, &format!("node start --name more edge {module}"));
    for _ in 0..3 {
        user.fails("node snapshot -o second edge/more", "No space left");
        user.fails("restore --store STORE edge/second", "no such image");
    }
    // What was there is whole, and both programs run.
    let ended = user.run("restore --store STORE edge/first", "go");
    assert_eq!((ended.code, &ended.stdout[..]), (0, PRINTED), "{}", ended.stderr);
    for client in [client, other] {
        assert_eq!(client.end(), (Some(0), PRINTED.to_owned()));
    }
}
