//! Programs that run at a node are captured while they do: others go on from there, and they run on.

mod common;

use std::io::Cursor;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use common::datagrams::PLACES;
use common::{
    Attached, CLIENT, ECHO, Node, Numbers, Pipe, Relay, SUMS, attach, attach_among, attach_filled,
    key, start, sum,
};
use pagefork_node::{
    CaptureOptions, CaptureReport, MemoryPeer, MigrateOptions, NodeError, NodeTimes, PageTimes,
    ProgramClient, ProgramEnd, ProgramPhase, ProgramSource, ProgramStart,
};

fn named(name: &str) -> CaptureOptions {
    CaptureOptions {
        name: Some(name.to_owned()),
        patience: Duration::from_secs(20),
        ..<_>::default()
    }
}

fn refused(outcome: Result<CaptureReport, NodeError>) -> String {
    match outcome.unwrap_err() {
        NodeError::NotDone { reason, .. } => reason,
        other => panic!("{other:?}"),
    }
}

/// Starts what is in an image, and has it run to its end.
fn go_on(node: &Node, image: &str, input: &'static str) -> (ProgramEnd, Vec<u8>) {
    let start = ProgramStart::new("again", ProgramSource::Image(image.to_owned()));
    let id = node.start(&start).to_string();
    let found = attach(&node.peer, &id, Cursor::new(input), &PageTimes::default());
    (found.end.unwrap(), found.stdout)
}

/// Makes nodes known to each other, by names.
fn know(nodes: &[(&str, &Node)]) {
    for (own, node) in nodes {
        let others = nodes.iter().filter(|(name, _)| name != own);
        let others = others.map(|(name, other)| ((*name).to_owned(), other.peer.clone()));
        *node.peers.0.lock().unwrap() = others.collect();
    }
}

/// A client that has a program's streams, and sends what is put into the pipe.
fn attached(nodes: &[&Node], id: &str) -> (Pipe, thread::JoinHandle<Attached>) {
    let (input, peer, program) = (Pipe::default(), nodes[0].peer.clone(), id.to_owned());
    let all: Vec<MemoryPeer> = nodes.iter().map(|node| node.peer.clone()).collect();
    let reader = input.clone();
    let client =
        thread::spawn(move || attach_among(&peer, &program, reader, &all, &PageTimes::default()));
    (input, client)
}

#[test]
fn others_go_on_from_what_a_program_was_and_it_runs_on() {
    PLACES.into_iter().for_each(captured);
}

fn captured(place: &str) {
    let nodes = [1, 2].map(|seed| Node::at(place, "captured", seed + 40, |_| ()));
    know(&[("one", &nodes[0]), ("two", &nodes[1])]);
    let id = nodes[0].start(&start("sums", SUMS)).to_string();
    let (input, client) = attached(&[&nodes[0]], &id);
    // Wherever it is: while it fills its memory, and when it waits for its input.
    let mut images = Vec::new();
    for number in 0..6 {
        let name = format!("at-{number}");
        let report = nodes[0].client().snapshot("sums", &named(&name)).unwrap();
        assert_eq!(nodes[0].images.find(&name).unwrap(), report.image);
        assert!(report.size > 0 && report.rested > Duration::ZERO, "{report:?}");
        images.push(name);
        thread::sleep(Duration::from_millis(3 << number));
    }
    let unnamed = CaptureOptions::default();
    let last = nodes[0].programs.snapshot(&id, &unnamed).unwrap().image.to_string();
    assert_eq!(nodes[0].programs.programs()[0].phase, ProgramPhase::Running);
    images.push(last);
    // What it had printed by then is its own; what it prints later, each prints for itself.
    let expected = sum();
    for (number, image) in images.iter().enumerate() {
        let (node, name) = match number % 2 {
            0 => (&nodes[0], image.clone()),
            _ => (&nodes[1], format!("one/{image}")),
        };
        let (end, printed) = go_on(node, &name, "");
        assert_eq!(end, ProgramEnd::Exited(0), "{name}");
        assert!(printed == expected || printed == expected[1..], "{name}: {printed:?}");
    }
    input.close();
    let found = client.join().unwrap();
    assert_eq!((found.end.unwrap(), found.stdout), (ProgramEnd::Exited(0), expected));
}

#[test]
fn what_a_client_has_sent_and_the_program_has_not_read_stays_with_the_program() {
    let node = Node::new("captured-input", 43);
    let id = node.start(&start("echo", ECHO)).to_string();
    let (input, client) = attached(&[&node], &id);
    let (mut numbers, mut sent) = (Numbers(21), Vec::new());
    for number in 0..20 {
        let count = 1 + numbers.below(5000) as usize;
        let bytes = numbers.bytes(count);
        input.put(&bytes);
        sent.extend(bytes);
        node.client().snapshot(&id, &named(&format!("at-{number}"))).unwrap();
    }
    input.close();
    let found = client.join().unwrap();
    assert_eq!(found.end.unwrap(), ProgramEnd::Exited(7));
    assert!(found.stdout == sent, "{} of {} bytes", found.stdout.len(), sent.len());
    // It may have read some that it had not printed.
    for number in 0..20 {
        let (end, printed) = go_on(&node, &format!("at-{number}"), "hello");
        assert_eq!(end, ProgramEnd::Exited(7));
        assert!(printed.ends_with(b"hello") && printed.len() <= 1024 + 5, "{}", printed.len());
    }
}

/// Accepts a connection, and holds it until its input ends.
const HOLDS: &str = r#"
    (func (export "_start")
        (drop (call $read))
        (if (call $accept (i32.const 3) (i32.const 0) (i32.const 4096)) (then (call $exit (i32.const 3))))
        (call $print (i32.const 1024) (i32.const 1))
        (drop (call $read))
        (drop (call $close (i32.load (i32.const 4096))))
        (drop (call $read)))"#;

#[test]
fn what_cannot_be_captured_is_refused_by_name_and_runs_on() {
    let listener = Arc::new(TcpListener::bind("127.0.0.1:0").unwrap());
    let address = listener.local_addr().unwrap();
    let node = Node::with("uncaptured", 44, |options| options.listeners.push(listener));
    let mut client = node.client();
    assert!(refused(client.snapshot("none", &named("a"))).contains("no program \"none\""));
    node.start(&start("echo", ECHO));
    node.start(&start("double", ECHO));
    node.start(&start("double", ECHO));
    let why = refused(client.snapshot("double", &named("a")));
    assert!(why.contains("name one by its number"), "{why}");
    for (name, complaint) in [
        ("../a", "no name"),
        ("", "no name"),
        ("moving-a", "programs that move"),
        ("kept-a", "programs that move"),
    ] {
        let why = refused(client.snapshot("echo", &named(name)));
        assert!(why.contains(complaint), "{name:?}: {why}");
    }
    assert_eq!(node.images.images().unwrap(), []);
    let first = client.snapshot("echo", &named("a")).unwrap().image;
    let why = refused(client.snapshot("echo", &named("a")));
    assert!(why.contains("\"a\" is taken") && why.contains(&first.to_string()), "{why}");
    assert_eq!(node.images.images().unwrap(), [first], "nothing was made for nothing");

    // An open connection is waited for, and then named.
    let mut holds = start("holds", HOLDS);
    holds.sockets = true;
    let id = node.start(&holds).to_string();
    let (input, holder) = attached(&[&node], &id);
    let _connection = TcpStream::connect(address).unwrap();
    input.put(b"accept\n");
    let mut options = named("b");
    options.patience = Duration::from_millis(300);
    let begun = Instant::now();
    loop {
        let why = match client.snapshot(&id, &options) {
            // It has not come to accept it yet.
            Ok(_) => node.images.remove_name("b").unwrap().to_string(),
            Err(error) => error.to_string(),
        };
        if why.contains("is a connection") {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{why}");
    }
    assert!(!node.images.names().unwrap().contains_key("b"));
    let closing = input.clone();
    thread::spawn(move || {
        thread::sleep(Duration::from_millis(200));
        closing.put(b"close\n");
    });
    client.snapshot(&id, &named("b")).unwrap();
    input.close();
    assert_eq!(holder.join().unwrap().end.unwrap(), ProgramEnd::Exited(0));

    // One that has ended.
    client.stop("echo").unwrap();
    let why = refused(client.snapshot("echo", &named("c")));
    assert!(why.contains("it has ended"), "{why}");
}

#[test]
fn a_program_that_ends_meanwhile_is_captured_whole_or_not_at_all() {
    let node = Node::new("captured-ends", 45);
    let (mut captured, mut missed) = (0, 0);
    for number in 0..40 {
        let id = node.start(&start("echo", ECHO)).to_string();
        let peer = node.peer.clone();
        let program = id.clone();
        let ends = thread::spawn(move || {
            thread::sleep(Duration::from_micros(number * 150));
            let mut client =
                ProgramClient::connect(&peer, &key(CLIENT), &NodeTimes::default()).unwrap();
            client.stop(&program).unwrap();
        });
        let name = format!("at-{number}");
        match node.client().snapshot(&id, &named(&name)) {
            Ok(_) => {
                captured += 1;
                assert_eq!(go_on(&node, &name, "x"), (ProgramEnd::Exited(7), b"x".to_vec()));
            }
            Err(error) => {
                missed += 1;
                assert!(error.to_string().contains("it has ended"), "{error}");
                assert!(!node.images.names().unwrap().contains_key(&name));
            }
        }
        ends.join().unwrap();
        let _ = node.client().stop(&id);
    }
    assert_eq!(captured + missed, 40);
    let left = std::fs::read_dir(node.images.path().join("unfinished")).unwrap().count();
    assert_eq!(left, 0, "nothing half-made stays");
}

#[test]
fn when_the_client_is_gone_there_is_a_whole_image_or_none_and_the_program_runs_on() {
    let node = Node::new("captured-gone", 46);
    let id = node.start(&start("sums", SUMS)).to_string();
    let (input, client) = attached(&[&node], &id);
    let mut numbers = Numbers(5);
    for number in 0..12 {
        let bytes = 200 + numbers.below(4_000);
        let relay = Relay::new(&node.peer.address, move || bytes);
        let peer = MemoryPeer { address: relay.address.clone(), ..node.peer.clone() };
        let asks = ProgramClient::connect(&peer, &key(CLIENT), &NodeTimes::default())
            .and_then(|mut client| client.snapshot(&id, &named(&format!("at-{number}"))));
        drop(asks);
        relay.end();
    }
    // What was asked for and not heard of is done to its end.
    let begun = Instant::now();
    let mut known = usize::MAX;
    let unfinished = || std::fs::read_dir(node.images.path().join("unfinished")).unwrap().count();
    while begun.elapsed() < Duration::from_secs(60) {
        thread::sleep(Duration::from_millis(300));
        let names = node.images.names().unwrap().len();
        if std::mem::replace(&mut known, names) == names && unfinished() == 0 {
            break;
        }
    }
    for name in node.images.names().unwrap().keys() {
        let (end, printed) = go_on(&node, name, "");
        assert!(end == ProgramEnd::Exited(0) && sum().ends_with(&printed[..]), "{printed:?}");
        assert!(printed.len() >= 8);
    }
    assert_eq!(unfinished(), 0, "nothing half-made stays");
    input.close();
    let found = client.join().unwrap();
    assert_eq!((found.end.unwrap(), found.stdout), (ProgramEnd::Exited(0), sum()));
}

/// Nodes that fetch what their programs touch and nothing else.
fn lazy_nodes(name: &str, seed: u8) -> [Node; 2] {
    let nodes = [seed, seed + 1].map(|seed| {
        Node::with(name, seed, |options| {
            let plan = &mut options.start.plan;
            (plan.background, plan.stride) = (false, false);
            options.start.times.lost = Duration::from_millis(300);
        })
    });
    know(&[("one", &nodes[0]), ("two", &nodes[1])]);
    nodes
}

/// A program that has filled its memory, and has moved before it, from the first node to the second.
fn partly_resident(nodes: &[Node; 2]) -> (String, Pipe, Relay, thread::JoinHandle<Attached>) {
    let relay = Relay::new(&nodes[0].peer.address, || u64::MAX / 2);
    nodes[1].peers.0.lock().unwrap()[0].1.address.clone_from(&relay.address);
    let id = nodes[0].start(&start("sums", SUMS)).to_string();
    let (input, client) = attach_filled(nodes, &id);
    let options = MigrateOptions { rounds: 0, ..MigrateOptions::default() };
    nodes[0].client().migrate(&id, nodes[1].peer.key, options).unwrap();
    (id, input, relay, client)
}

#[test]
fn a_partly_resident_program_is_captured_whole_and_forked() {
    let nodes = lazy_nodes("captured-partly", 50);
    let (id, input, relay, client) = partly_resident(&nodes);
    nodes[1].client().snapshot(&id, &named("whole")).unwrap();
    // What it was made of is not needed any more, neither by others nor by itself.
    relay.end();
    for _ in 0..3 {
        let (end, printed) = go_on(&nodes[1], "whole", "");
        assert_eq!(end, ProgramEnd::Exited(0));
        assert!(printed == sum() || printed == sum()[1..], "{printed:?}");
    }
    let (end, printed) = go_on(&nodes[0], "two/whole", "");
    assert!(end == ProgramEnd::Exited(0) && sum().ends_with(&printed[..]), "{printed:?}");
    input.close();
    let found = client.join().unwrap();
    assert_eq!((found.end.unwrap(), found.stdout), (ProgramEnd::Exited(0), sum()));
}

#[test]
fn what_is_captured_of_a_program_comes_whole_though_the_program_ends() {
    let nodes = lazy_nodes("captured-partly-ends", 52);
    let (id, _input, _relay, client) = partly_resident(&nodes);
    let program = id.clone();
    let mut captures =
        ProgramClient::connect(&nodes[1].peer, &key(CLIENT), &NodeTimes::default()).unwrap();
    let captures = thread::spawn(move || captures.snapshot(&program, &named("whole")));
    thread::sleep(Duration::from_millis(30));
    nodes[1].client().stop(&id).unwrap();
    drop(client);
    match captures.join().unwrap() {
        Ok(_) => {
            let (end, printed) = go_on(&nodes[1], "whole", "");
            assert!(end == ProgramEnd::Exited(0) && sum().ends_with(&printed[..]), "{printed:?}");
        }
        Err(error) => {
            let why = error.to_string();
            assert!(why.contains("it has ended") || why.contains("no program"), "{why}");
            assert_eq!(nodes[1].images.names().unwrap().len(), 0);
        }
    }
}

#[test]
fn a_program_whose_pages_are_lost_is_not_captured_and_says_why() {
    let nodes = lazy_nodes("captured-lost", 54);
    let (id, input, relay, client) = partly_resident(&nodes);
    relay.end();
    let why = refused(nodes[1].client().snapshot(&id, &named("whole")));
    assert!(why.contains("given up") || why.contains("page"), "{why}");
    assert!(nodes[1].images.names().unwrap().is_empty());
    assert_eq!(nodes[1].images.images().unwrap(), [], "nothing half-made stays");
    input.close();
    let found = client.join().unwrap();
    assert!(matches!(found.end.unwrap(), ProgramEnd::Failed(_)));
}

#[test]
fn who_captures_and_who_moves_a_program_do_not_get_in_each_others_way() {
    let nodes = [1, 2].map(|seed| Node::new("captured-moves", seed + 55));
    know(&[("one", &nodes[0]), ("two", &nodes[1])]);
    let id = nodes[0].start(&start("echo", ECHO)).to_string();
    let (input, client) = attached(&[&nodes[0], &nodes[1]], &id);
    let captures: Vec<_> = nodes
        .iter()
        .enumerate()
        .map(|(number, node)| {
            let (programs, id) = (node.programs.clone(), id.clone());
            thread::spawn(move || {
                let mut outcomes = Vec::new();
                for count in 0..60 {
                    let options = CaptureOptions {
                        name: Some(format!("at-{number}-{count}")),
                        // Some give up before the program rests.
                        patience: Duration::from_micros(count * count * 20),
                        ..CaptureOptions::default()
                    };
                    outcomes.push(programs.snapshot(&id, &options));
                    thread::sleep(Duration::from_millis(4));
                }
                outcomes
            })
        })
        .collect();
    let mut sent = Vec::new();
    let mut numbers = Numbers(9);
    for hop in 0..8 {
        let count = 1 + numbers.below(3000) as usize;
        let bytes = numbers.bytes(count);
        input.put(&bytes);
        sent.extend(bytes);
        let (from, to) = (&nodes[hop % 2], &nodes[(hop + 1) % 2]);
        let rounds = [2, 0][hop / 2 % 2];
        let options = MigrateOptions {
            rounds,
            patience: Duration::from_secs(20),
            ..MigrateOptions::default()
        };
        from.client().migrate(&id, to.peer.key, options).unwrap();
        let running = nodes.iter().filter(|node| {
            let programs = node.programs.programs();
            programs
                .iter()
                .any(|info| info.id.to_string() == id && info.phase == ProgramPhase::Running)
        });
        assert!(running.count() <= 1, "two owners");
    }
    let outcomes: Vec<_> = captures.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    for why in outcomes.iter().filter_map(|outcome| outcome.as_ref().err()) {
        let known = ["it did not come to rest", "another node", "no program", "has ended"];
        assert!(known.iter().any(|known| why.contains(known)), "{why}");
    }
    input.close();
    let found = client.join().unwrap();
    assert_eq!(found.end.unwrap(), ProgramEnd::Exited(7));
    assert!(found.stdout == sent, "{} of {} bytes", found.stdout.len(), sent.len());
}

#[test]
fn who_may_not_run_programs_captures_none() {
    let node = Node::new("captured-strangers", 58);
    node.start(&start("echo", ECHO));
    let connect = ProgramClient::connect(&node.peer, &key(59), &NodeTimes::default());
    let error = connect.map(drop).unwrap_err();
    assert!(matches!(error, NodeError::Handshake { .. }), "{error:?}");
}

#[test]
fn no_patience_is_too_long() {
    let nodes = [1, 2].map(|seed| Node::new("captured-patience", seed + 60));
    know(&[("one", &nodes[0]), ("two", &nodes[1])]);
    let id = nodes[0].start(&start("echo", ECHO)).to_string();
    let patience = Duration::MAX;
    let options = CaptureOptions { patience, ..CaptureOptions::default() };
    nodes[0].client().snapshot(&id, &options).unwrap();
    let options = MigrateOptions { patience, ..MigrateOptions::default() };
    nodes[0].client().migrate(&id, nodes[1].peer.key, options).unwrap();
    assert_eq!(nodes[1].programs.programs()[0].phase, ProgramPhase::Running);
}
