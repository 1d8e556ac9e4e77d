//! Programs move between nodes while they run: they compute the same, no byte of a stream is lost or
//! doubled, and there are never two of one.

mod common;

use std::fs;
use std::io::Cursor;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use common::datagrams::PLACES;
use common::{
    ECHO, Node, Numbers, Pipe, Relay, SUMS, attach_among, attach_filled, key, start, sum,
};
use pagefork_image::PublicKey;
use pagefork_node::{
    MemoryPeer, MigrateOptions, NodeDirectory, PageTimes, ProgramEnd, ProgramPhase, ProgramSource,
    ProgramStart, SecondPlace,
};
use pagefork_wasi::Permissions;

/// Nodes that know each other.
fn nodes(name: &str) -> [Node; 2] {
    nodes_at(PLACES[0], name)
}

fn nodes_at(place: &str, name: &str) -> [Node; 2] {
    let nodes = [1, 2].map(|seed| Node::at(place, name, seed, |_| ()));
    know(&nodes);
    nodes
}

fn know(nodes: &[Node]) {
    for node in nodes {
        let others = nodes.iter().filter(|other| other.peer.key != node.peer.key);
        let others = others.map(|other| (other.peer.key.to_string(), other.peer.clone()));
        *node.peers.0.lock().unwrap() = others.collect();
    }
}

fn peers(nodes: &[Node]) -> Vec<MemoryPeer> {
    nodes.iter().map(|node| node.peer.clone()).collect()
}

fn options(rounds: u8) -> MigrateOptions {
    MigrateOptions { rounds, patience: Duration::from_secs(20), second: None }
}

/// Moves a program back and forth so often.
fn shuttle(nodes: &[Node; 2], id: &str, count: usize, mut rounds: impl FnMut(usize) -> u8) {
    for hop in 0..count {
        let (from, to) = (&nodes[hop % 2], &nodes[(hop + 1) % 2]);
        let moved = from.client().migrate(id, to.peer.key, options(rounds(hop)));
        moved.unwrap_or_else(|error| panic!("hop {hop}: {error}"));
        assert_single(nodes, id);
    }
}

/// At most one of the nodes runs the program.
fn assert_single(nodes: &[Node], id: &str) {
    let runs = |node: &&Node| {
        let all = node.programs.programs();
        all.iter().any(|info| {
            info.id.to_string() == id
                && matches!(info.phase, ProgramPhase::Running | ProgramPhase::Moving { .. })
        })
    };
    assert!(nodes.iter().filter(runs).count() <= 1, "two owners");
}

/// Nobody needs what was handed over any more, so it has no name for long.
fn assert_names_go(nodes: &[Node]) {
    let begun = Instant::now();
    while nodes.iter().any(|node| !node.images.names().unwrap().is_empty()) {
        assert!(begun.elapsed() < Duration::from_secs(60), "names stay");
        thread::sleep(Duration::from_millis(20));
    }
}

/// A program has ended, and who has had it before knows: nothing is remembered of how it has come.
fn assert_arrivals_are_forgotten(nodes: &[Node]) {
    let arrivals = |node: &Node| {
        let names = fs::read_dir(node.path.join("moves")).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.contains("arriving")).count()
    };
    wait_for("how it has come is forgotten", || nodes.iter().all(|node| arrivals(node) == 0));
}

/// So often programs move here, and where there is time.
const HOPS: usize = 6;
const HOPS_OF_SOAK: usize = 50;

#[test]
fn a_program_that_talks_moves_and_no_byte_is_lost_or_doubled() {
    PLACES.into_iter().for_each(|place| talk(place, HOPS));
}

#[test]
#[ignore = "takes long"]
fn a_program_that_talks_moves_fifty_times() {
    PLACES.into_iter().for_each(|place| talk(place, HOPS_OF_SOAK));
}

fn talk(place: &str, hops: usize) {
    for rounds in [3, 0] {
        let nodes = nodes_at(place, &format!("talks-{rounds}"));
        let id = nodes[0].start(&start("echo", ECHO)).to_string();
        let (input, all, peer) = (Pipe::default(), peers(&nodes), nodes[0].peer.clone());
        let (reader, program) = (input.clone(), id.clone());
        let client = thread::spawn(move || {
            attach_among(&peer, &program, reader, &all, &PageTimes::default())
        });
        let writer = input.clone();
        let talks = thread::spawn(move || {
            let mut numbers = Numbers(7);
            let mut all = Vec::new();
            for _ in 0..60 * hops {
                let count = 1 + numbers.below(5000) as usize;
                let bytes = numbers.bytes(count);
                writer.put(&bytes);
                all.extend(bytes);
                thread::sleep(Duration::from_millis(numbers.below(6)));
            }
            all
        });
        shuttle(&nodes, &id, hops, |_| rounds);
        // The program runs on, and has all its pages.
        assert_names_go(&nodes);
        let sent = talks.join().unwrap();
        input.close();
        let found = client.join().unwrap();
        assert_eq!(found.end.unwrap(), ProgramEnd::Exited(7));
        assert!(found.stdout == sent, "{} of {} bytes", found.stdout.len(), sent.len());
        assert_arrivals_are_forgotten(&nodes);
    }
}

/// For each byte that it reads, fills 8 MiB with numbers some times, each made of the one before; prints
/// the last one.
const COMPUTE: &str = r#"
    (global $round (mut i32) (i32.const 0))
    (func $step (param $at i32) (param $word i64) (result i64)
        (local.set $word (i64.xor (local.get $word) (i64.shl (local.get $word) (i64.const 13))))
        (local.set $word (i64.xor (local.get $word) (i64.shr_u (local.get $word) (i64.const 7))))
        (local.set $word (i64.xor (local.get $word) (i64.shl (local.get $word) (i64.const 17))))
        (local.set $word (i64.add (local.get $word) (i64.load (local.get $at))))
        (i64.store (local.get $at) (local.get $word))
        (local.get $word))
    (func (export "_start") (local $at i32) (local $word i64) (local $end i32) (local $size i32)
        (drop (memory.grow (i32.const 130)))
        (local.set $word (i64.const 88172645463325252))
        (loop $input
        (local.set $size (call $read))
        (local.set $end (i32.add (local.get $end) (i32.mul (local.get $size) (i32.const ROUNDS))))
        (if (local.get $size) (then
        (loop $rounds
            (local.set $at (i32.const 65536))
            (loop $again
                (local.set $word (call $step (local.get $at) (local.get $word)))
                (local.set $at (i32.add (local.get $at) (i32.const 8)))
                (br_if $again (i32.lt_u (local.get $at) (i32.const 8454144))))
            (global.set $round (i32.add (global.get $round) (i32.const 1)))
            (br_if $rounds (i32.lt_u (global.get $round) (local.get $end))))
        (br $input))))
        (i64.store (i32.const 4096) (local.get $word))
        (call $print (i32.const 4096) (i32.const 8)))"#;

#[test]
fn a_program_that_computes_comes_to_the_same_at_other_nodes() {
    let text = COMPUTE.replace("ROUNDS", "40");
    check("computes", start("compute", &text), &"x".repeat(HOPS), HOPS);
}

#[test]
fn what_went_ahead_is_used_when_a_program_is_handed_over() {
    let nodes = nodes("ahead");
    let text = COMPUTE.replace("ROUNDS", "1");
    let id = nodes[0].client().start(&start("compute", &text)).unwrap().to_string();
    // Each has it once: the last changes of it need no network, no thread and no other slots.
    for (from, to) in [(0, 1), (1, 0)] {
        let moved = nodes[from].client().migrate(&id, nodes[to].peer.key, options(3)).unwrap();
        let counts = nodes[to].programs.arrival_counts();
        let states = u64::from(moved.rounds) - 1;
        assert!(states > 0, "{moved:?}");
        let done = (counts.programs, counts.at_once, counts.in_filled_slots);
        assert_eq!(done, (1, 1, 1), "{counts:?}");
        assert_eq!((counts.states_sent, counts.states_fetched), (states, 0), "{counts:?}");
    }
    nodes[0].client().stop(&id).unwrap();
}

/// The network between two nodes breaks, or stalls, after so many bytes, for the first connections.
fn broken_links(nodes: &[Node; 2], seed: u64, stalls: bool) {
    for (number, node) in nodes.iter().enumerate() {
        let other = &nodes[1 - number];
        let mut numbers = Numbers(seed * 2 + number as u64 + 1);
        let mut left = numbers.below(4);
        let relay = Relay::with(&other.peer.address, stalls, move || {
            let breaks = left > 0;
            left = left.saturating_sub(1);
            if breaks { 1 + numbers.below(40_000) } else { u64::MAX / 2 }
        });
        let peer = MemoryPeer { address: relay.address.clone(), ..other.peer.clone() };
        *node.peers.0.lock().unwrap() = vec![("other".to_owned(), peer)];
    }
}

#[test]
fn wherever_the_link_breaks_the_program_goes_on_at_one_node_and_nothing_is_lost() {
    break_links(25, nodes("breaks"), false);
}

#[test]
fn wherever_a_peer_stalls_the_program_goes_on_at_one_node_and_nothing_is_lost() {
    let nodes = [1, 2].map(|seed| {
        Node::with("stalls", seed, |options| {
            options.start.times.node.idle = Duration::from_millis(700);
            options.start.times.node.handshake = Duration::from_millis(700);
        })
    });
    know(&nodes);
    break_links(12, nodes, true);
}

#[test]
#[ignore = "takes long"]
fn links_break_five_hundred_times() {
    break_links(500, nodes("breaks"), false);
}

fn break_links(count: u64, nodes: [Node; 2], stalls: bool) {
    let id = nodes[0].start(&start("echo", ECHO)).to_string();
    let (input, all, peer) = (Pipe::default(), peers(&nodes), nodes[0].peer.clone());
    let (reader, program) = (input.clone(), id.clone());
    let client =
        thread::spawn(move || attach_among(&peer, &program, reader, &all, &PageTimes::default()));
    let (mut owner, mut moved, mut sent) = (0, 0, Vec::new());
    let mut numbers = Numbers(11);
    for seed in 0..count {
        let bytes = numbers.bytes(1 + seed as usize % 3000);
        input.put(&bytes);
        sent.extend(bytes);
        broken_links(&nodes, seed, stalls);
        let rounds = (seed % 3) as u8;
        let to = nodes[1 - owner].peer.key;
        match nodes[owner].client().migrate(&id, to, options(rounds)) {
            Ok(_) => {
                owner = 1 - owner;
                moved += 1;
            }
            Err(error) => {
                let program = nodes[owner].programs.programs();
                let phase = &program.iter().find(|info| info.id.to_string() == id).unwrap().phase;
                assert_eq!(*phase, ProgramPhase::Running, "seed {seed}: {error}");
            }
        }
        assert_single(&nodes, &id);
    }
    input.close();
    let found = client.join().unwrap();
    assert_eq!(found.end.unwrap(), ProgramEnd::Exited(7));
    assert!(found.stdout == sent, "{} of {} bytes", found.stdout.len(), sent.len());
    assert!(moved > 0 && moved < count, "{moved} of {count}");
    know(&nodes);
    assert_names_go(&nodes);
}

/// A program of others, that `cargo xtask guests` fetches or builds.
fn guest(name: &str) -> Option<Vec<u8>> {
    let directory = match std::env::var_os("PAGEFORK_GUESTS") {
        Some(directory) => PathBuf::from(directory),
        None => Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("guests"),
    };
    let path = directory.join(name);
    if path.exists() {
        return Some(std::fs::read(path).unwrap());
    }
    let reason = format!("there is no {}: run `cargo xtask guests`", path.display());
    assert!(std::env::var("CI").as_deref() != Ok("true"), "{reason}");
    println!("skipped: {reason}");
    None
}

/// Runs a program at one node, and moving between two: both come to the same. Before each hop it gets
/// a part of its input, so it has not ended before.
fn check(name: &str, mut start: ProgramStart, input: &str, hops: usize) {
    let alone = Node::new(name, 3);
    start.name = "guest".to_owned();
    let id = alone.start(&start).to_string();
    let reader = Cursor::new(input.to_owned());
    let expected = attach_among(&alone.peer, &id, reader, &[], &PageTimes::default());
    let end = expected.end.unwrap();
    assert!(matches!(end, ProgramEnd::Exited(_)), "{end:?}");
    assert!(expected.stdout.len() >= 8);

    let nodes = nodes(name);
    let id = nodes[0].start(&start).to_string();
    let (pipe, all, peer) = (Pipe::default(), peers(&nodes), nodes[0].peer.clone());
    let (reader, program) = (pipe.clone(), id.clone());
    let client =
        thread::spawn(move || attach_among(&peer, &program, reader, &all, &PageTimes::default()));
    let mut parts = input.as_bytes().chunks(input.len().div_ceil(hops));
    shuttle(&nodes, &id, hops, |hop| {
        pipe.put(parts.next().unwrap_or_default());
        [3, 0, 1][hop % 3]
    });
    parts.for_each(|part| pipe.put(part));
    pipe.close();
    let found = client.join().unwrap();
    assert_eq!(found.end.unwrap(), end);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (printed, rightly) = (found.stdout, expected.stdout);
    assert!(printed == rightly, "{} in place of {}", text(&printed), text(&rightly));
    assert_eq!(text(&found.stderr), text(&expected.stderr));
}

/// Computes for a while for each line that it reads, and prints now and then.
const PYTHON: &str = r#"
import json, random, re, sys
random.seed(5)
total, seen = 0, {}
for i in (i for line in sys.stdin for i in range(int(line), int(line) + 1500)):
    text = json.dumps({"n": i, "list": [random.random() for _ in range(40)], "s": "x" * (i % 40)})
    total += sum(map(int, re.findall(r"0\.(\d{3})", text)))
    seen[i] = json.loads(text)["list"][3]
    if i % 50 == 0: print(i, total, round(seen[i], 9), flush=True)
print(sum(seen.values()), sorted(seen.values())[:3])
raise SystemExit(7)
"#;

fn python(hops: usize) {
    let Some(module) = guest("python.wasm") else { return };
    let mut start = ProgramStart::new("python", ProgramSource::Module(module));
    start.arguments = ["python", "-c", PYTHON].map(|word| word.as_bytes().to_vec()).to_vec();
    let input: String = (0..hops).map(|line| format!("{:09}\n", 1500 * line)).collect();
    check("python", start, &input, hops);
}

#[test]
fn cpython_computes_the_same_while_it_moves() {
    python(4);
}

#[test]
#[ignore = "takes long"]
fn cpython_moves_fifty_times() {
    python(HOPS_OF_SOAK);
}

/// A database in a file of the session.
fn sqlite(name: &str, hops: usize) {
    let Some(module) = guest(&format!("{name}.wasm")) else { return };
    let mut start = ProgramStart::new("sqlite", ProgramSource::Module(module));
    start.sessions.push("/".to_owned());
    start.arguments = ["sql", "/data.db"].map(|word| word.as_bytes().to_vec()).to_vec();
    let mut script = String::from(
        "CREATE TABLE word (id INTEGER PRIMARY KEY, text TEXT, size INTEGER);\n\
         CREATE INDEX sizes ON word (size);\n",
    );
    for number in 0..80 * hops {
        script += &format!(
            "INSERT INTO word (text, size) VALUES ('{}', {});\n",
            "word".repeat(1 + number % 40),
            number % 97
        );
        if number % 7 == 0 {
            script += "UPDATE word SET text = text || size WHERE id % 11 = 3;\n";
        }
        if number % 10 == 0 {
            script += "SELECT count(*), sum(size), sum(length(text)) FROM word;\n";
        }
    }
    script += "PRAGMA integrity_check;\nSELECT id, size, length(text) FROM word WHERE size < 20;\n";
    check(name, start, &script, hops);
}

#[test]
fn a_database_in_a_file_of_the_session_moves_with_its_program() {
    sqlite("sqlite", 4);
}

/// The same with malloc on the page manager, which has a map of what is free in it.
#[test]
fn a_database_whose_memory_is_the_page_managers_moves_with_its_program() {
    const MAP: &[u8] = b"pageman_page_map";
    let module = guest("pageman_sqlite.wasm");
    assert!(module.is_none_or(|module| module.windows(MAP.len()).any(|name| name == MAP)));
    sqlite("pageman_sqlite", 4);
}

#[test]
#[ignore = "takes long"]
fn a_database_moves_fifty_times() {
    sqlite("sqlite", HOPS_OF_SOAK);
    sqlite("pageman_sqlite", HOPS_OF_SOAK);
}

/// Accepts a connection if there is one, and holds it until it has read a line; then it waits for the
/// end of its input.
const ACCEPTS: &str = r#"
    (func (export "_start") (local $size i32)
        (drop (call $read))
        (if (call $accept (i32.const 3) (i32.const 0) (i32.const 4096)) (then (call $exit (i32.const 3))))
        (drop (call $read))
        (drop (call $close (i32.load (i32.const 4096))))
        (drop (call $read))
        (call $exit (call $accept (i32.const 3) (i32.const 0) (i32.const 4096))))"#;

#[test]
fn listening_sockets_are_those_of_the_node_and_an_open_connection_is_waited_for_and_named() {
    let listener = || Arc::new(TcpListener::bind("127.0.0.1:0").unwrap());
    let listeners = [listener(), listener()];
    let node = |seed: u8| {
        let own = Arc::clone(&listeners[usize::from(seed) - 1]);
        Node::with("accepts", seed, move |options| options.listeners.push(own))
    };
    let nodes = [node(1), node(2)];
    know(&nodes);
    let mut accepts = start("accepts", ACCEPTS);
    accepts.sockets = true;
    let id = nodes[0].start(&accepts).to_string();
    let (input, all, peer) = (Pipe::default(), peers(&nodes), nodes[0].peer.clone());
    let (reader, program) = (input.clone(), id.clone());
    let client =
        thread::spawn(move || attach_among(&peer, &program, reader, &all, &PageTimes::default()));
    let move_on = |from: usize, patience| {
        let options = MigrateOptions { rounds: 1, patience, second: None };
        nodes[from].client().migrate(&id, nodes[1 - from].peer.key, options)
    };
    // It listens alone.
    move_on(0, Duration::from_secs(20)).unwrap();
    let _connection = TcpStream::connect(listeners[1].local_addr().unwrap()).unwrap();
    input.put(b"accept\n");
    let begun = Instant::now();
    loop {
        let refused = match move_on(1, Duration::from_millis(300)) {
            // It has not come to accept it yet.
            Ok(_) => move_on(0, Duration::from_secs(20)).unwrap().to_string(),
            Err(error) => error.to_string(),
        };
        if refused.contains("is a connection") {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{refused}");
    }
    // Once it is closed, the program moves: it is waited for.
    let closing = input.clone();
    thread::spawn(move || {
        thread::sleep(Duration::from_millis(200));
        closing.put(b"close\n");
    });
    move_on(1, Duration::from_secs(20)).unwrap();
    let _connection = TcpStream::connect(listeners[0].local_addr().unwrap()).unwrap();
    input.close();
    assert_eq!(client.join().unwrap().end.unwrap(), ProgramEnd::Exited(0));
}

#[test]
fn what_cannot_move_goes_on_where_it_is_and_says_why() {
    let nodes = nodes("cannot");
    let id = nodes[0].start(&start("echo", ECHO)).to_string();
    let to = nodes[1].peer.key;
    let refused = |options| {
        let error = nodes[0].client().migrate(&id, to, options).unwrap_err().to_string();
        let phase = nodes[0].programs.programs()[0].phase.clone();
        assert_eq!(phase, ProgramPhase::Running, "{error}");
        assert!(nodes[1].programs.programs().is_empty());
        error
    };
    // Neither knows where the other is.
    nodes[1].peers.0.lock().unwrap().clear();
    let why = refused(options(1));
    assert!(why.contains("no connection"), "{why}");
    know(&nodes);
    nodes[0].peers.0.lock().unwrap().clear();
    let why = refused(options(1));
    assert!(why.contains("is not known"), "{why}");
    know(&nodes);
    // Nobody is there.
    nodes[0].peers.0.lock().unwrap()[0].1.address = "127.0.0.1:1".to_owned();
    refused(options(1));
    know(&nodes);
    let own = nodes[0].client().migrate(&id, nodes[0].peer.key, options(1)).unwrap_err();
    assert!(own.to_string().contains("there already"), "{own}");

    // Who signs what is handed over is not trusted there: with states that go ahead, and without.
    let stranger = Node::with("stranger", 6, |options| options.image_key = key(9));
    let pair = [stranger, Node::new("trusts-others", 7)];
    know(&pair);
    let id = pair[0].start(&start("echo", ECHO)).to_string();
    for rounds in [0, 1] {
        let error = pair[0].client().migrate(&id, pair[1].peer.key, options(rounds)).unwrap_err();
        assert!(error.to_string().contains("has signed are not run here"), "{error}");
        assert_eq!(pair[0].programs.programs()[0].phase, ProgramPhase::Running);
    }

    // A directory that the other has not.
    let shared = Path::new(env!("CARGO_TARGET_TMPDIR")).join("moving-shared");
    std::fs::create_dir_all(&shared).unwrap();
    let has = Node::with("has", 4, |options| {
        let (guest, permissions) = ("/data".to_owned(), Permissions::ReadWrite);
        options.directories.push(NodeDirectory { host: shared, guest, permissions });
    });
    let pair = [has, Node::new("has-not", 5)];
    know(&pair);
    let mut asks = start("asks", ECHO);
    asks.directories.push("/data".to_owned());
    let id = pair[0].start(&asks).to_string();
    let error = pair[0].client().migrate(&id, pair[1].peer.key, options(1)).unwrap_err();
    assert!(error.to_string().contains("no directory"), "{error}");
    assert_eq!(pair[0].programs.programs()[0].phase, ProgramPhase::Running);
}

/// Nodes that fetch what their programs touch and nothing else, and do not wait long for a lost one.
fn lazy_nodes(name: &str) -> [Node; 3] {
    lazy_nodes_with(name, None)
}

/// The same nodes; `second` is the second place of what moves from any, unless something else is said.
fn lazy_nodes_with(name: &str, second: Option<PublicKey>) -> [Node; 3] {
    let nodes = [1, 2, 3].map(|seed| {
        Node::with(name, seed + 10, |options| {
            options.second = second;
            let plan = &mut options.start.plan;
            (plan.background, plan.stride) = (false, false);
            options.start.times.lost = Duration::from_millis(300);
        })
    });
    know(&nodes);
    nodes
}

/// Has a program that has filled its memory move without rounds over a link that can be cut. Its client
/// waits for it.
fn move_over(
    nodes: &[Node; 3],
    second: Option<SecondPlace>,
) -> (String, Pipe, Relay, thread::JoinHandle<common::Attached>) {
    let relay = Relay::new(&nodes[0].peer.address, || u64::MAX / 2);
    for (_, peer) in nodes[1].peers.0.lock().unwrap().iter_mut() {
        if peer.key == nodes[0].peer.key {
            peer.address.clone_from(&relay.address);
        }
    }
    let id = nodes[0].start(&start("sums", SUMS)).to_string();
    let (input, client) = attach_filled(nodes, &id);
    let options = MigrateOptions { second, ..options(0) };
    nodes[0].client().migrate(&id, nodes[1].peer.key, options).unwrap();
    (id, input, relay, client)
}

#[test]
fn with_a_second_place_of_its_pages_a_program_outlives_its_source() {
    let nodes = lazy_nodes("second");
    let second = Some(SecondPlace::Node(nodes[2].peer.key));
    outlives_its_source(&nodes, second);
}

#[test]
fn a_node_has_a_second_place_for_what_moves_from_it_unless_something_else_is_said() {
    let nodes = lazy_nodes_with("second-of-node", Some(key(13).public()));
    outlives_its_source(&nodes, None);
}

fn outlives_its_source(nodes: &[Node; 3], second: Option<SecondPlace>) {
    let (_, input, relay, client) = move_over(nodes, second);
    // What its node has not got is kept as long as that takes.
    thread::sleep(Duration::from_millis(700));
    for node in [&nodes[0], &nodes[2]] {
        assert_eq!(node.images.names().unwrap().len(), 1);
    }
    let kept = nodes[0].client().programs().unwrap()[0].kept.expect("it has a second place");
    assert!(kept.sent == kept.groups && kept.groups > 500, "{kept:?}");
    relay.end();
    input.close();
    let found = client.join().unwrap();
    assert_eq!(found.end.unwrap(), ProgramEnd::Exited(0));
    assert_eq!(found.stdout, sum());
    assert_names_go(nodes);
}

#[test]
fn without_a_second_place_a_lost_source_stops_the_program_in_time_and_the_error_names_a_page() {
    let nodes = lazy_nodes("single");
    let (_, input, relay, client) = move_over(&nodes, None);
    relay.end();
    input.close();
    let found = client.join().unwrap();
    let ProgramEnd::Failed(why) = found.end.unwrap() else { panic!("its pages are lost") };
    assert!(why.contains("page"), "{why}");
    assert_eq!(found.stdout, [0], "nothing wrong was printed");
}

#[test]
fn a_program_moves_on_before_all_of_it_has_come_and_what_others_need_is_not_collected() {
    let nodes = lazy_nodes("onward");
    let (id, input, _relay, client) = move_over(&nodes, None);
    // It has no name any more, and is leased.
    for name in nodes[0].images.names().unwrap().keys() {
        nodes[0].images.remove_name(name).unwrap();
    }
    nodes[0].images.collect().unwrap();
    nodes[1].client().migrate(&id, nodes[2].peer.key, options(0)).unwrap();
    nodes[2].client().migrate(&id, nodes[0].peer.key, options(2)).unwrap();
    input.close();
    let found = client.join().unwrap();
    assert_eq!(found.end.unwrap(), ProgramEnd::Exited(0));
    assert_eq!(found.stdout, sum());
}

#[test]
fn a_program_moves_on_after_its_source_is_lost_if_its_pages_are_at_a_second_place() {
    for rounds in [0, 1] {
        let nodes = lazy_nodes(&format!("onward-second-{rounds}"));
        let (id, input, relay, client) =
            move_over(&nodes, Some(SecondPlace::Node(nodes[2].peer.key)));
        relay.end();
        nodes[1].client().migrate(&id, nodes[2].peer.key, options(rounds)).unwrap();
        assert_single(&nodes, &id);
        input.close();
        let found = client.join().unwrap();
        assert_eq!(found.end.unwrap(), ProgramEnd::Exited(0));
        assert_eq!(found.stdout, sum());
    }
}

#[test]
fn a_program_whose_pages_are_lost_moves_nowhere_and_says_why() {
    for rounds in [0, 1] {
        let nodes = lazy_nodes(&format!("onward-lost-{rounds}"));
        let (id, input, relay, client) = move_over(&nodes, None);
        relay.end();
        let moved = nodes[1].client().migrate(&id, nodes[2].peer.key, options(rounds));
        let why = moved.unwrap_err().to_string();
        assert!(why.contains("page"), "{why}");
        assert!(nodes[2].programs.programs().is_empty(), "{why}");
        input.close();
        let found = client.join().unwrap();
        assert!(matches!(found.end.unwrap(), ProgramEnd::Failed(_)));
        assert_eq!(found.stdout, [0], "nothing wrong was printed");
    }
}

/// A program that was handed over to a node that cannot get its pages for now, and its client.
fn handed_over(name: &str) -> ([Node; 2], String, Pipe, thread::JoinHandle<common::Attached>) {
    let nodes = nodes(name);
    let id = nodes[0].start(&start("echo", ECHO)).to_string();
    let (input, all, peer) = (Pipe::default(), peers(&nodes), nodes[0].peer.clone());
    let (reader, program) = (input.clone(), id.clone());
    let client =
        thread::spawn(move || attach_among(&peer, &program, reader, &all, &PageTimes::default()));
    let relay = Relay::new(&nodes[0].peer.address, || 0);
    nodes[1].peers.0.lock().unwrap()[0].1.address = relay.address.clone();
    let options = MigrateOptions { rounds: 0, patience: Duration::from_secs(3), second: None };
    let error = nodes[0].client().migrate(&id, nodes[1].peer.key, options).unwrap_err();
    assert!(error.to_string().contains("has not answered yet"), "{error}");
    (nodes, id, input, client)
}

/// It runs nowhere, whatever is asked for but an operator's word.
fn assert_rests(nodes: &[Node; 2], id: &str) {
    let to = *nodes[1].peer.key.as_bytes();
    for _ in 0..20 {
        assert_eq!(nodes[0].programs.programs()[0].phase, ProgramPhase::HandedOver { to });
        assert!(nodes[1].programs.programs().is_empty());
        thread::sleep(Duration::from_millis(50));
    }
    let stop = nodes[0].client().stop(id).unwrap_err().to_string();
    assert!(stop.contains("reclaim it first"), "{stop}");
    let again = nodes[0].client().migrate(id, nodes[1].peer.key, options(1)).unwrap_err();
    assert!(again.to_string().contains("does not run here"), "{again}");
}

#[test]
fn what_was_handed_over_rests_until_its_target_has_it() {
    let (nodes, id, input, client) = handed_over("rests");
    input.put(b"some ");
    assert_rests(&nodes, &id);
    // Its target can reach its source again.
    know(&nodes);
    input.put(b"words");
    input.close();
    let found = client.join().unwrap();
    assert_eq!(
        (found.end.unwrap(), &found.stdout[..]),
        (ProgramEnd::Exited(7), &b"some words"[..])
    );
    assert_single(&nodes, &id);
}

#[test]
fn what_was_handed_over_goes_on_at_its_source_by_an_operators_word_and_then_not_at_its_target() {
    let (nodes, id, input, client) = handed_over("reclaimed");
    input.put(b"some ");
    assert_rests(&nodes, &id);
    nodes[0].client().reclaim(&id).unwrap();
    know(&nodes);
    let again = nodes[0].client().reclaim(&id).unwrap_err().to_string();
    assert!(again.contains("it is known whose it is"), "{again}");
    assert_names_go(&nodes);
    input.put(b"words");
    thread::sleep(Duration::from_millis(700));
    assert!(nodes[1].programs.programs().is_empty());
    // And it can be handed over anew.
    nodes[0].client().migrate(&id, nodes[1].peer.key, options(1)).unwrap();
    input.close();
    let found = client.join().unwrap();
    assert_eq!(
        (found.end.unwrap(), &found.stdout[..]),
        (ProgramEnd::Exited(7), &b"some words"[..])
    );
}

#[test]
fn what_has_changed_last_goes_along_with_the_hand_over_and_waits_for_no_store() {
    let nodes = nodes("along");
    let id = nodes[0].start(&start("sums", SUMS)).to_string();
    let (input, client) = attach_filled(&nodes, &id);
    let report = nodes[0].client().migrate(&id, nodes[1].peer.key, options(2)).unwrap();
    // What was filled went ahead, and the program rested for what it has written since: next to nothing.
    assert_eq!(report.rounds, 2, "{report}");
    assert!(report.ahead > 8 << 20 && report.changes < 256 << 10, "{report}");
    assert!(report.changes > 0 && report.pause() > report.capturing, "{report}");
    // Two states came ahead, and the third one is in memory.
    assert_eq!(nodes[1].images.images().unwrap().len(), 2);
    assert_eq!(nodes[1].images.names().unwrap().len(), 0);
    input.close();
    let found = client.join().unwrap();
    assert_eq!(found.end.unwrap(), ProgramEnd::Exited(0));
    assert_eq!(found.stdout, sum());
}

/// Fills 8 MiB with numbers, prints a byte, and sums them up again and again; traps if they are others. Counts how often.
const SUMS_ON: &str = r#"
    (func $sum (result i64) (local $at i32) (local $sum i64)
        (local.set $at (i32.const 65536))
        (loop $again
            (local.set $sum (i64.add (local.get $sum) (i64.load (local.get $at))))
            (local.set $at (i32.add (local.get $at) (i32.const 8)))
            (br_if $again (i32.lt_u (local.get $at) (i32.const 8454144))))
        (local.get $sum))
    (func (export "_start") (local $at i32) (local $first i64)
        (drop (memory.grow (i32.const 130)))
        (local.set $at (i32.const 65536))
        (loop $again
            (i64.store (local.get $at) (i64.mul (i64.extend_i32_u (local.get $at)) (i64.const 0x9e3779b97f4a7c15)))
            (local.set $at (i32.add (local.get $at) (i32.const 8)))
            (br_if $again (i32.lt_u (local.get $at) (i32.const 8454144))))
        (local.set $first (call $sum))
        (call $print (i32.const 1024) (i32.const 1))
        (loop $rounds
            (if (i64.ne (call $sum) (local.get $first)) (then unreachable))
            (i32.store (i32.const 4096) (i32.add (i32.load (i32.const 4096)) (i32.const 1)))
            (br $rounds)))"#;

#[test]
fn what_a_node_has_of_an_earlier_stay_does_not_travel_to_it_again() {
    let nodes = nodes("again");
    let id = nodes[0].start(&start("sums-on", SUMS_ON)).to_string();
    let (_input, client) = attach_filled(&nodes, &id);
    let here = |node: usize| nodes[node].programs.arrival_counts().groups_here;
    // Nobody has had it before; its source keeps what it has sent ahead.
    nodes[0].client().migrate(&id, nodes[1].peer.key, options(1)).unwrap();
    assert_eq!(here(1), 0);
    // All of 8 MiB in groups of 16 KiB, but the ends of it.
    for (from, to) in [(1, 0), (0, 1)] {
        nodes[from].client().migrate(&id, nodes[to].peer.key, options(1)).unwrap();
        assert!(here(to) >= 510, "{}", here(to));
    }
    nodes[1].client().stop(&id).unwrap();
    let found = client.join().unwrap();
    assert!(matches!(found.end.unwrap(), ProgramEnd::Stopped(_)));
}

/// The files that a node has begun and not finished.
fn unfinished(node: &Node) -> usize {
    std::fs::read_dir(node.images.path().join("unfinished")).unwrap().count()
}

fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < until, "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_first_state_whose_source_has_left_is_left_and_its_place_is_free() {
    // Whoever is silent is waited for for ever, and so is who is lost.
    let nodes = [1, 2].map(|seed| {
        Node::with("leaves", seed, |options| {
            options.start.times.node.idle = Duration::from_secs(3600);
            options.start.times.lost = Duration::from_secs(3600);
        })
    });
    know(&nodes);
    let pages = Relay::with(&nodes[0].peer.address, true, || 2 << 20);
    let steps = Relay::new(&nodes[1].peer.address, || u64::MAX / 2);
    let set = |node: usize, address: &str| {
        nodes[node].peers.0.lock().unwrap()[0].1.address = address.to_owned();
    };
    set(1, &pages.address);
    set(0, &steps.address);
    let id = nodes[0].start(&start("sums", SUMS)).to_string();
    let (input, client) = attach_filled(&nodes, &id);
    let failed = thread::scope(|scope| {
        let moves = scope.spawn(|| nodes[0].client().migrate(&id, nodes[1].peer.key, options(1)));
        wait_for("it does not begin", || unfinished(&nodes[1]) == 1);
        steps.end();
        moves.join().unwrap().unwrap_err().to_string()
    });
    assert!(failed.contains("talk to node") || failed.contains("lost"), "{failed}");
    wait_for("its file stays", || unfinished(&nodes[1]) == 0);
    // At once: its place is free, and it has what it needs.
    set(1, &nodes[0].peer.address);
    set(0, &nodes[1].peer.address);
    // Who was about to give it up may take a moment.
    let moves = || nodes[0].client().migrate(&id, nodes[1].peer.key, options(1)).is_ok();
    wait_for("its place is taken", moves);
    input.close();
    assert_eq!(client.join().unwrap().stdout, sum());
}

#[test]
fn a_program_that_moves_needs_no_token_and_none_that_is_for_other_images_is_shown() {
    let nodes =
        [1, 2].map(|seed| Node::with("token", seed, |options| options.start.token = vec![1; 64]));
    know(&nodes);
    let id = nodes[0].start(&start("sums", SUMS)).to_string();
    let (input, client) = attach_filled(&nodes, &id);
    nodes[0].client().migrate(&id, nodes[1].peer.key, options(1)).unwrap();
    input.close();
    assert_eq!(client.join().unwrap().stdout, sum());
}

/// Fills 100 MiB, prints a byte, and then writes a word in each of 900 pages, again and again. Prints how
/// many nanoseconds went by between two times, where it was more than two milliseconds.
const WRITES: &str = r#"
    (func (export "_start") (local $at i32) (local $round i64) (local $now i64) (local $gap i64)
        (drop (memory.grow (i32.const 1600)))
        (local.set $at (i32.const 65536))
        (loop $again
            (i64.store (local.get $at) (i64.mul (i64.extend_i32_u (local.get $at)) (i64.const 0x9e3779b97f4a7c15)))
            (local.set $at (i32.add (local.get $at) (i32.const 8)))
            (br_if $again (i32.lt_u (local.get $at) (i32.const 104857600))))
        (call $print (i32.const 1024) (i32.const 1))
        (drop (call $time (i32.const 0) (i64.const 0) (i32.const 4096)))
        (local.set $now (i64.load (i32.const 4096)))
        (loop $rounds
            (local.set $round (i64.add (local.get $round) (i64.const 1)))
            (local.set $at (i32.const 1048576))
            (loop $again
                (i64.store (local.get $at) (local.get $round))
                (local.set $at (i32.add (local.get $at) (i32.const 4096)))
                (br_if $again (i32.lt_u (local.get $at) (i32.const 4734976))))
            (drop (call $time (i32.const 0) (i64.const 0) (i32.const 4096)))
            (local.set $gap (i64.sub (i64.load (i32.const 4096)) (local.get $now)))
            (local.set $now (i64.load (i32.const 4096)))
            (if (i64.gt_u (local.get $gap) (i64.const 2000000)) (then
                (i64.store (i32.const 4104) (local.get $gap))
                (call $print (i32.const 4104) (i32.const 8))))
            (br $rounds)))"#;

#[test]
#[ignore = "takes long"]
fn how_long_a_program_rests_when_it_moves() {
    let said = Arc::new(Mutex::new(Vec::new()));
    let node = |seed| {
        let said = Arc::clone(&said);
        Node::with("rests-for", seed, move |options| {
            options.say = Arc::new(move |text| said.lock().unwrap().push(text.to_owned()));
        })
    };
    let nodes = [node(1), node(2)];
    know(&nodes);
    let id = nodes[0].start(&start("writes", WRITES)).to_string();
    let (_input, client) = attach_filled(&nodes, &id);
    for hop in 0..20 {
        let (from, to) = (&nodes[hop % 2], &nodes[(hop + 1) % 2]);
        from.client().migrate(&id, to.peer.key, options(5)).unwrap();
        assert_single(&nodes, &id);
        thread::sleep(Duration::from_millis(300));
    }
    nodes[0].client().stop(&id).unwrap();
    let found = client.join().unwrap();
    assert!(matches!(found.end.unwrap(), ProgramEnd::Stopped(_)));
    for text in &*said.lock().unwrap() {
        println!("{text}");
    }
    let gaps = found.stdout[1..].chunks(8).map(|gap| u64::from_le_bytes(gap.try_into().unwrap()));
    println!("gaps in ms: {:?}", gaps.map(|gap| gap as f64 / 1e6).collect::<Vec<_>>());
}
