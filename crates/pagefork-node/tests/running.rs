//! Programs run at a node for clients, which get each byte of their streams once.

mod common;

use std::io::Cursor;
use std::thread;
use std::time::Duration;

use common::datagrams::{Datagrams, PLACES};
use common::{Attached, CLIENT, ECHO, Node, Numbers, Pipe, Relay, attach, key, program, start};
use pagefork::{Config, Engine, Linker, Module};
use pagefork_image::SecretKey;
use pagefork_node::{
    MemoryPeer, NodeDirectory, NodeError, NodeTimes, PageTimes, ProgramClient, ProgramEnd,
    ProgramPhase, ProgramSource, ProgramStart,
};
use pagefork_wasi::{Permissions, ProgramState, StdinKind, WasiCtx};

/// Runs for ever.
const SPIN: &str = r#"(func (export "_start") (loop (br 0)))"#;

/// Prints "0123456789" for ever.
const TALK: &str = r#"(data (i32.const 2048) "0123456789")
    (func (export "_start") (loop $again (call $print (i32.const 2048) (i32.const 10)) (br $again)))"#;

fn refused<T: std::fmt::Debug>(outcome: Result<T, NodeError>) -> String {
    match outcome.unwrap_err() {
        NodeError::NotDone { reason, .. } => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_program_has_the_streams_of_its_client_and_ends_with_an_exit_code() {
    PLACES.into_iter().for_each(streams);
}

fn streams(place: &str) {
    let node = Node::at(place, "streams", 1, |_| ());
    let id = node.start(&start("echo", ECHO));
    let [info] = &node.client().programs().unwrap()[..] else { panic!("there is one") };
    assert_eq!((info.id, &info.name[..], &info.phase), (id, "echo", &ProgramPhase::Running));
    let bytes = Numbers(1).bytes(1 << 20);
    let Attached { end, stdout, stderr } =
        attach(&node.peer, "echo", Cursor::new(bytes.clone()), &PageTimes::default());
    assert_eq!(end.unwrap(), ProgramEnd::Exited(7));
    assert!(stdout == bytes && stderr.is_empty());
    forgotten(&node);
}

/// Waits until the node knows of no program: its client has all of it.
fn forgotten(node: &Node) {
    while !node.programs.programs().is_empty() {
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn however_often_the_connection_breaks_no_byte_is_lost_or_doubled() {
    let node = Node::new("breaks", 1);
    let id = node.start(&start("echo", ECHO));
    let bytes = Numbers(2).bytes(1 << 20);
    // Some connections end within the handshake.
    let mut numbers = Numbers(3);
    let relay = Relay::new(&node.peer.address, move || 500 + numbers.below(200_000));
    let peer = MemoryPeer { address: relay.address.clone(), ..node.peer.clone() };
    let times = PageTimes { lost: Duration::from_secs(60), ..PageTimes::default() };
    // The first one holds.
    let found = loop {
        let found = attach(&peer, &id.to_string(), Cursor::new(bytes.clone()), &times);
        match &found.end {
            // Nothing was read or written yet.
            Err(NodeError::Io { .. } | NodeError::Handshake { .. }) => {
                assert!(found.stdout.is_empty());
            }
            _ => break found,
        }
    };
    assert_eq!(found.end.unwrap(), ProgramEnd::Exited(7));
    assert!(found.stdout == bytes, "{} of {} bytes", found.stdout.len(), bytes.len());
}

#[test]
fn streams_come_right_over_a_network_that_loses_doubles_and_changes_datagrams() {
    let node = Node::at(PLACES[1], "bad", 1, |_| ());
    let id = node.start(&start("echo", ECHO));
    let bytes = Numbers(4).bytes(1 << 20);
    let network = Datagrams::bad(&node.peer.address, 20);
    let peer = MemoryPeer { address: network.address, ..node.peer.clone() };
    let input = Cursor::new(bytes.clone());
    let found = attach(&peer, &id.to_string(), input, &PageTimes::default());
    assert_eq!(found.end.unwrap(), ProgramEnd::Exited(7));
    assert!(found.stdout == bytes, "{} of {} bytes", found.stdout.len(), bytes.len());
}

#[test]
fn a_program_goes_on_without_its_client_and_waits_when_nobody_takes_what_it_prints() {
    let node = Node::new("alone", 1);
    let text = r#"
        (global $left (mut i32) (i32.const 20000))
        (data (i32.const 2048) "0123456789")
        (func (export "_start") (loop $again
            (call $print (i32.const 2048) (i32.const 10))
            (global.set $left (i32.sub (global.get $left) (i32.const 1)))
            (br_if $again (global.get $left))))"#;
    let id = node.start(&start("talker", text)).to_string();
    thread::sleep(Duration::from_millis(50));
    assert_eq!(node.client().programs().unwrap()[0].phase, ProgramPhase::Running, "it waits");
    let found = attach(&node.peer, &id, Cursor::new(""), &PageTimes::default());
    assert_eq!(found.end.unwrap(), ProgramEnd::Exited(0));
    assert_eq!(found.stdout, b"0123456789".repeat(20_000));
}

#[test]
fn what_a_client_has_not_taken_comes_to_the_next_one() {
    let node = Node::new("next", 1);
    let id = node.start(&start("echo", ECHO)).to_string();
    let input = Pipe::default();
    input.put(b"first ");
    let relay = Relay::new(&node.peer.address, || u64::MAX / 2);
    let peer = MemoryPeer { address: relay.address.clone(), ..node.peer.clone() };
    let times = PageTimes { lost: Duration::ZERO, ..PageTimes::default() };
    let (program, reader) = (id.clone(), input.clone());
    let first = thread::spawn(move || attach(&peer, &program, reader, &times));
    let is_attached = || node.programs.programs()[0].is_attached;
    while !is_attached() {
        thread::sleep(Duration::from_millis(1));
    }
    let other = attach(&node.peer, &id, Cursor::new(""), &PageTimes::default());
    assert!(refused(other.end).contains("another client"));
    relay.break_all();
    let first = first.join().unwrap();
    assert!(matches!(first.end, Err(NodeError::Parted { .. })), "{:?}", first.end);
    while is_attached() {
        thread::sleep(Duration::from_millis(1));
    }
    let second = attach(&node.peer, &id, Cursor::new("second"), &PageTimes::default());
    assert_eq!(second.end.unwrap(), ProgramEnd::Exited(7));
    let all = [first.stdout, second.stdout].map(|bytes| String::from_utf8(bytes).unwrap());
    // What the first one had sent and the network lost is lost with it, and what it had just taken
    // without the node's knowledge comes again.
    match [&all[0][..], &all[1][..]] {
        ["", "first second" | "second"] | ["first ", "second" | "first second"] => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn programs_stop_wherever_they_are() {
    PLACES.into_iter().for_each(stop);
}

fn stop(place: &str) {
    let node = Node::at(place, "stop", 1, |_| ());
    let mut client = node.client();
    for (name, text) in [("spin", SPIN), ("talk", TALK), ("echo", ECHO)] {
        let id = client.start(&start(name, text)).unwrap();
        thread::sleep(Duration::from_millis(20));
        client.stop(name).unwrap();
        let is_it = |info: &pagefork_node::ProgramInfo| info.id == id;
        let info = client.programs().unwrap().into_iter().find(is_it).unwrap();
        assert!(matches!(info.phase, ProgramPhase::Ended(ProgramEnd::Stopped(_))), "{info:?}");
        let found = attach(&node.peer, name, Cursor::new(""), &PageTimes::default());
        assert!(matches!(found.end.unwrap(), ProgramEnd::Stopped(_)));
        forgotten(&node);
        assert!(refused(client.stop(name)).contains("no program"));
    }
    let mut limited = start("limited", SPIN);
    limited.timeout = Some(Duration::from_millis(20));
    client.start(&limited).unwrap();
    let found = attach(&node.peer, "limited", Cursor::new(""), &PageTimes::default());
    let ProgramEnd::Stopped(why) = found.end.unwrap() else { panic!("its time was up") };
    assert!(why.contains("as long as it may"), "{why}");
    client.start(&start("trap", r#"(func (export "_start") unreachable)"#)).unwrap();
    let found = attach(&node.peer, "trap", Cursor::new(""), &PageTimes::default());
    let ProgramEnd::Failed(why) = found.end.unwrap() else { panic!("it traps") };
    assert!(why.contains("unreachable"), "{why}");
}

#[test]
fn what_cannot_run_is_refused_and_takes_no_place() {
    let node = Node::with("refused", 1, |options| {
        options.limits.programs = 2;
        options.limits.module_size = 100_000;
    });
    let mut client = node.client();
    let engine = Engine::new(&Config::new()).unwrap();
    let compiled = Module::from_binary(&engine, &program(ECHO)).unwrap().serialize().unwrap();
    let module = |bytes| ProgramStart::new("other", ProgramSource::Module(bytes));
    let unknown = wat::parse_str(r#"(module (import "host" "x" (func)))"#).unwrap();
    for (bytes, complaint) in [
        (b"nonsense".to_vec(), "refused"),
        (compiled, "refused"),
        (unknown, "\"host\" \"x\""),
        (wat::parse_str("(module)").unwrap(), "_start"),
        (Vec::new(), "empty"),
    ] {
        let why = refused(client.start(&module(bytes)));
        assert!(why.contains(complaint), "{complaint}: {why}");
    }
    let image = |name: &str| ProgramStart::new("other", ProgramSource::Image(name.to_owned()));
    assert!(refused(client.start(&image("none"))).contains("none"));
    assert!(refused(client.start(&image("elsewhere/none"))).contains("elsewhere"));
    let mut asks = start("asks", ECHO);
    asks.directories.push("/etc".to_owned());
    assert!(refused(client.start(&asks)).contains("no directory \"/etc\""));
    let mut asks = start("asks", ECHO);
    asks.variables.push(b"=x".to_vec());
    assert!(refused(client.start(&asks)).contains("name=value"));
    assert!(refused(client.start(&start("../x", ECHO))).contains("no name"));
    assert!(node.programs.programs().is_empty());

    client.start(&start("a", SPIN)).unwrap();
    client.start(&start("a", SPIN)).unwrap();
    assert!(refused(client.start(&start("b", SPIN))).contains("2 programs already"));
    assert!(refused(client.stop("a")).contains("2 programs are called"));
    let large = refused(client.start(&module(vec![0; 100_001])));
    assert!(large.contains("larger"), "{large}");
    for info in node.programs.programs() {
        node.programs.stop(&info.id.to_string(), Duration::from_secs(60)).unwrap();
    }
    node.start(&start("b", SPIN));
}

#[test]
fn strangers_run_nothing() {
    PLACES.into_iter().for_each(strangers);
}

fn strangers(place: &str) {
    let node = Node::at(place, "strangers", 1, |_| ());
    let connect = |own: &SecretKey, peer: &MemoryPeer| {
        ProgramClient::connect(peer, own, &NodeTimes::default()).map(|_| ()).unwrap_err()
    };
    let error = connect(&key(50), &node.peer);
    assert!(matches!(error, NodeError::Handshake { .. }), "{error:?}");
    let other = MemoryPeer { key: key(51).public(), ..node.peer.clone() };
    let error = connect(&key(CLIENT), &other);
    assert!(matches!(error, NodeError::Handshake { .. }), "{error:?}");
}

#[test]
fn a_program_gets_the_directories_that_it_asks_for_and_no_more_than_the_node_allows() {
    let shared = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("programs-shared");
    std::fs::create_dir_all(&shared).unwrap();
    let node = Node::with("directories", 1, |options| {
        let permissions = Permissions::ReadOnly;
        let guest = "/data".to_owned();
        options.directories.push(NodeDirectory { host: shared.clone(), guest, permissions });
    });
    // Exits with what making a file in each of two directories comes to.
    let make = r#"(data (i32.const 2048) "new")
        (func (export "_start")
            (call $exit (i32.add
                (i32.mul (i32.const 100) (call $make (i32.const 3) (i32.const 2048) (i32.const 3)))
                (call $make (i32.const 4) (i32.const 2048) (i32.const 3)))))"#;
    let mut start = start("maker", make);
    start.directories.push("/data".to_owned());
    start.sessions.push("/session".to_owned());
    node.start(&start);
    let found = attach(&node.peer, "maker", Cursor::new(""), &PageTimes::default());
    let ProgramEnd::Exited(code) = found.end.unwrap() else { panic!("it exits") };
    assert!(code >= 100 && code % 100 == 0, "{code}: only the session's own is written");
    assert_eq!(std::fs::read_dir(&shared).unwrap().count(), 0);
    let left = std::fs::read_dir(&node.path).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = left.filter(|name| name != "images" && name != "moves").collect();
    assert!(left.is_empty(), "{left:?}");
}

/// An image of a program that waits for its input.
fn captured(node: &Node) {
    let engine = Engine::new(&Config::new()).unwrap();
    let module = Module::from_binary(&engine, &program(ECHO)).unwrap();
    let mut linker = Linker::new(&engine);
    pagefork_wasi::add_to_linker(&mut linker, |ctx: &mut WasiCtx| ctx).unwrap();
    let ctx = WasiCtx::builder().stdin(StdinKind::Awaited).build().unwrap();
    let mut store = pagefork::Store::new(&engine, ctx);
    let instance = linker.instantiate(&mut store, &module).unwrap();
    let start = instance.get_func(&mut store, "_start").unwrap();
    start.call_suspendable(&mut store, &[]).unwrap();
    let state = ProgramState { wasi: store.data().save().unwrap(), written: Vec::new() };
    let keys = [key(3)];
    let options = pagefork::SaveOptions::new().state(state.to_bytes().unwrap()).sign_with(&keys);
    let image = store.snapshot().unwrap().save(&node.images, options).unwrap();
    node.images.set_name("waiting", image).unwrap();
}

#[test]
fn programs_go_on_from_images_of_the_node_and_of_others() {
    let (one, two) = (Node::new("images", 1), Node::new("images", 2));
    captured(&one);
    for (node, name) in [(&one, "waiting"), (&two, "one/waiting")] {
        two.peers.0.lock().unwrap().push(("one".to_owned(), one.peer.clone()));
        one.peers.0.lock().unwrap().push(("two".to_owned(), two.peer.clone()));
        let mut start = ProgramStart::new("echo", ProgramSource::Image(name.to_owned()));
        node.start(&start);
        let found = attach(&node.peer, "echo", Cursor::new("hello"), &PageTimes::default());
        assert_eq!((found.end.unwrap(), &found.stdout[..]), (ProgramEnd::Exited(7), &b"hello"[..]));
        start.arguments.push(b"more".to_vec());
        assert!(refused(node.client().start(&start)).contains("leave them out"));
    }
}
