//! Clients that do what none should do.

use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use pagefork::Engine;
use pagefork_image::{ImageStore, PublicKey, SecretKey, TrustedKeys};
use pagefork_postcopy::{Lane, MigrationMessage, MigrationStep, SourceState};

use super::client::NodeLink;
use super::program::{AfterRest, NodeProgram, ReadyProgram};
use super::streams::{ProgramStreams, STREAM_BYTES};
use super::wire::{
    ClientRequest, Inbox, NodeReply, PART, ProgramEnd, ProgramId, ProgramPhase, ProgramSource,
    ProgramStart, encode,
};
use super::{KnownPeers, MigrateOptions, ProgramNode, ProgramNodeOptions};
use crate::address::Transport;
use crate::base::NodeTimes;
use crate::channel::Channel;
use crate::duplex::Duplex;
use crate::fetch::MemoryPeer;
use crate::serve::{MemoryServer, ServeOptions};
use crate::strangers::{AnyPeer, TRANSPORTS, free, stranger};

const IDLE: Duration = Duration::from_millis(1500);

fn times() -> NodeTimes {
    NodeTimes { idle: IDLE, ..NodeTimes::default() }
}

pub(super) fn node(name: &str, transport: Transport) -> (ProgramNode, MemoryPeer) {
    node_with(name, transport, times())
}

fn node_with(name: &str, transport: Transport, times: NodeTimes) -> (ProgramNode, MemoryPeer) {
    let (node, peer) = node_of(name, transport, times, Arc::new(AnyPeer));
    let _ = std::fs::remove_dir_all(&node.options().place);
    (node, peer)
}

fn node_of(
    name: &str,
    transport: Transport,
    times: NodeTimes,
    peers: Arc<dyn KnownPeers>,
) -> (ProgramNode, MemoryPeer) {
    node_for(name, transport, times, peers, ServeOptions::new(SecretKey::from_seed([1; 32])))
}

fn node_for(
    name: &str,
    transport: Transport,
    times: NodeTimes,
    peers: Arc<dyn KnownPeers>,
    mut serve: ServeOptions,
) -> (ProgramNode, MemoryPeer) {
    let name = format!("pagefork-hostile-{name}-{transport:?}-{}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let _ = std::fs::remove_dir_all(&path);
    let images = ImageStore::open(path.join("images")).unwrap();
    let key = serve.key.clone();
    let engine = Engine::default();
    let options = ProgramNodeOptions::new(engine, images.clone(), key.clone(), peers, &path);
    let node = ProgramNode::new(options).unwrap();
    serve.programs = Some(node.clone());
    serve.times = times;
    let server = MemoryServer::bind(free(transport), images, serve).unwrap();
    let peer = MemoryPeer { address: server.address().to_string(), key: key.public() };
    thread::spawn(move || server.run());
    (node, peer)
}

fn link(peer: &MemoryPeer) -> NodeLink {
    NodeLink::connect(peer, &SecretKey::from_seed([2; 32]), &times()).unwrap()
}

/// Waits for an answer, or the end.
fn next(link: &mut NodeLink) -> Option<NodeReply> {
    loop {
        match link.turn() {
            Ok(Some(reply)) => return Some(reply),
            Ok(None) => link.duplex.wait(&[], Some(link.due())).unwrap(),
            Err(_) => return None,
        }
    }
}

/// Whether the node ends the connection before anything else.
fn is_left(link: &mut NodeLink) -> bool {
    while let Some(reply) = next(link) {
        if !matches!(reply, NodeReply::Input { .. } | NodeReply::Output { .. }) {
            return false;
        }
    }
    true
}

/// A program that waits for input.
pub(super) fn waiting() -> ProgramStart {
    let module = wat::parse_str(
        r#"(module
        (import "wasi_snapshot_preview1" "fd_read"
            (func $read (param i32 i32 i32 i32) (result i32)))
        (memory (export "memory") 1)
        (data (i32.const 0) "\10\00\00\00\01\00\00\00")
        (func (export "_start")
            (drop (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)))))"#,
    );
    ProgramStart::new("waiting", ProgramSource::Module(module.unwrap()))
}

/// A program that does nothing for an hour.
fn sleeping() -> ProgramStart {
    let module = wat::parse_str(
        r#"(module
        (import "wasi_snapshot_preview1" "poll_oneoff"
            (func $poll (param i32 i32 i32 i32) (result i32)))
        (memory (export "memory") 1)
        (data (i32.const 16) "\01")
        (func (export "_start")
            (i64.store (i32.const 24) (i64.const 3600000000000))
            (drop (call $poll (i32.const 0) (i32.const 64) (i32.const 1) (i32.const 128)))))"#,
    );
    ProgramStart::new("waiting", ProgramSource::Module(module.unwrap()))
}

fn attached(peer: &MemoryPeer, client: u8) -> NodeLink {
    attached_to(peer, "waiting", client)
}

fn attached_to(peer: &MemoryPeer, program: &str, client: u8) -> NodeLink {
    let mut link = link(peer);
    let program = program.to_owned();
    link.push(&ClientRequest::Attach { program, client: [client; 16], outputs: None });
    assert!(matches!(next(&mut link), Some(NodeReply::Attached { .. })));
    link
}

#[test]
fn who_sends_what_does_not_belong_there_is_left_and_the_program_goes_on() {
    TRANSPORTS.into_iter().for_each(nonsense);
}

fn nonsense(transport: Transport) {
    let (node, peer) = node("nonsense", transport);
    node.start(&sleeping()).unwrap();
    let input = |at, size: usize| ClientRequest::Input { at, bytes: vec![7; size], ends: false };
    let module = ProgramStart::new("a", ProgramSource::Module(Vec::new()));
    let attach =
        |outputs| ClientRequest::Attach { program: "waiting".to_owned(), client: [1; 16], outputs };
    let cases: Vec<(bool, Vec<ClientRequest>)> = vec![
        (true, vec![input(1, 1)]),
        (true, vec![input(0, STREAM_BYTES), input(STREAM_BYTES as u64, STREAM_BYTES)]),
        (true, vec![ClientRequest::Took { outputs: [1, 0] }]),
        (true, vec![attach(None)]),
        (false, vec![attach(Some([1, 0]))]),
        (false, vec![input(0, 1)]),
        (false, vec![ClientRequest::Took { outputs: [0, 0] }]),
        (false, vec![ClientRequest::Module(vec![1])]),
        (false, vec![ClientRequest::Start(module.clone(), 4), ClientRequest::Module(vec![1; 5])]),
        (false, vec![ClientRequest::Start(module, 4), ClientRequest::List]),
    ];
    for (number, (is_attached, requests)) in cases.into_iter().enumerate() {
        // Another client each time: what the one before has sent stays.
        let mut link = if is_attached { attached(&peer, number as u8) } else { link(&peer) };
        requests.iter().for_each(|request| link.push(request));
        assert!(is_left(&mut link), "case {number}");
        while node.programs()[0].is_attached {
            thread::sleep(Duration::from_millis(1));
        }
    }
    assert_eq!(node.programs()[0].phase, super::ProgramPhase::Running);
    node.stop("waiting", Duration::from_secs(60)).unwrap();
}

#[test]
fn bytes_that_mean_nothing_end_a_connection() {
    TRANSPORTS.into_iter().for_each(bytes);
}

fn bytes(transport: Transport) {
    let (_node, peer) = node("bytes", transport);
    for bytes in [&[255; 8][..], &[1, 0, 0, 0, 77], &[0, 0, 0, 0]] {
        let mut link = link(&peer);
        link.duplex.push(Lane::Control, bytes.to_vec());
        assert!(is_left(&mut link));
    }
}

#[test]
fn who_is_silent_is_left_in_time_and_gives_its_program_back() {
    TRANSPORTS.into_iter().for_each(silent);
}

fn silent(transport: Transport) {
    let (node, peer) = node("silent", transport);
    node.start(&waiting()).unwrap();
    let link = attached(&peer, 1);
    assert!(node.programs()[0].is_attached);
    let begun = Instant::now();
    while node.programs()[0].is_attached {
        assert!(begun.elapsed() < Duration::from_secs(60), "it is believed to be there for ever");
        thread::sleep(Duration::from_millis(10));
    }
    drop(link);
    // One that says nothing at all, not even who it is.
    let socket = match transport {
        Transport::Tls => Some(TcpStream::connect(&peer.address).unwrap()),
        Transport::Quic => None,
    };
    let mut link = attached(&peer, 2);
    link.push(&ClientRequest::Input { at: 0, bytes: vec![1], ends: true });
    loop {
        match next(&mut link) {
            Some(NodeReply::Ended(end)) => break assert_eq!(end, ProgramEnd::Exited(0)),
            Some(_) => {}
            None => panic!("it was left"),
        }
    }
    drop(socket);
}

#[test]
fn a_client_that_reads_nothing_holds_no_more_than_it_may() {
    TRANSPORTS.into_iter().for_each(deaf);
}

fn deaf(transport: Transport) {
    let (node, peer) = node("deaf", transport);
    for _ in 0..20 {
        node.start(&waiting()).unwrap();
    }
    let mut link = link(&peer);
    // Their answers would take 200 MiB.
    for _ in 0..100_000 {
        link.push(&ClientRequest::List);
    }
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(300) {
        // It is sent, and nothing is received.
        let _ = link.turn_out();
        thread::sleep(Duration::from_millis(1));
    }
    let resident = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = resident.split(' ').nth(1).unwrap().parse().unwrap();
    assert!(pages < 1 << 16, "{pages} pages are resident");
    for info in node.programs() {
        node.stop(&info.id.to_string(), Duration::from_secs(60)).unwrap();
    }
}

/// Has a module sent that is larger than any node takes, and than the network holds.
fn push_too_much(link: &mut NodeLink) {
    let module = ProgramStart::new("a", ProgramSource::Module(Vec::new()));
    link.push(&ClientRequest::Start(module, u64::MAX));
    for _ in 0..TOO_MUCH / PART {
        link.push(&ClientRequest::Module(vec![0; PART]));
    }
}

/// Bytes of such a module.
const TOO_MUCH: usize = 32 << 20;

#[test]
fn who_is_refused_while_it_sends_hears_why_even_if_the_peer_has_left() {
    TRANSPORTS.into_iter().for_each(refused);
}

fn refused(transport: Transport) {
    let key = SecretKey::from_seed([1; 32]);
    let (is_full, full) = mpsc::channel();
    let (refuses, has_refused) = mpsc::channel();
    let full = Mutex::new(full);
    let peer = stranger(transport, &key, move |channel| {
        let mut duplex = Duplex::new(channel).unwrap();
        full.lock().unwrap().recv().unwrap();
        // Over QUIC it can answer what it has heard of.
        while duplex.receive().unwrap().is_empty() {
            duplex.wait(&[], None).unwrap();
        }
        duplex.push(Lane::Control, encode(&NodeReply::Refused("it is too large".to_owned())));
        match transport {
            // What was not read makes the system reset the connection.
            Transport::Tls => drop(duplex.send().unwrap()),
            // What is lost is sent again only as long as the connection is there.
            Transport::Quic => {
                refuses.send(()).unwrap();
                let until = Instant::now() + Duration::from_secs(60);
                return duplex.end_and_drain(until).unwrap();
            }
        }
        drop(duplex);
        refuses.send(()).unwrap();
    });
    let mut link = link(&peer);
    push_too_much(&mut link);
    link.turn_out().unwrap();
    is_full.send(()).unwrap();
    let begun = Instant::now();
    while has_refused.recv_timeout(Duration::from_millis(1)).is_err() {
        assert!(begun.elapsed() < Duration::from_secs(60), "the peer has not refused");
        // What a network loses is sent again only by who has the connection.
        if transport == Transport::Quic {
            link.turn_out().unwrap();
        }
    }
    let refused = NodeReply::Refused("it is too large".to_owned());
    assert_eq!(next(&mut link), Some(refused));
    assert_eq!(next(&mut link), None);
}

#[test]
fn a_node_that_refuses_takes_what_was_on_its_way() {
    let (_node, peer) = node_with("drains", Transport::Tls, NodeTimes::default());
    let mut link = link(&peer);
    push_too_much(&mut link);
    // Were the connection reset, the refusal might be lost with it.
    let begun = Instant::now();
    while link.duplex.sent() < TOO_MUCH as u64 {
        link.turn_out().unwrap();
        assert!(begun.elapsed() < Duration::from_secs(60), "{} bytes", link.duplex.sent());
        thread::sleep(Duration::from_millis(1));
    }
    assert!(matches!(next(&mut link), Some(NodeReply::Refused(_))));
}

/// A program that prints bytes for ever.
pub(super) fn talking() -> ProgramStart {
    let module = wat::parse_str(
        r#"(module
        (import "wasi_snapshot_preview1" "fd_write"
            (func $write (param i32 i32 i32 i32) (result i32)))
        (memory (export "memory") 1)
        (data (i32.const 0) "\10\00\00\00\01\00\00\00")
        (func (export "_start") (loop $again
            (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))
            (br $again))))"#,
    );
    ProgramStart::new("talking", ProgramSource::Module(module.unwrap()))
}

#[test]
fn a_program_that_rests_goes_on_by_nobodys_job_but_who_decides_that() {
    let (node, _) = node("rests", Transport::Tls);
    node.start(&talking()).unwrap();
    let program = node.find("talking").unwrap();
    let patience = Duration::from_secs(60);
    program.at_rest(patience, |_| (AfterRest::Rests, ())).unwrap();
    let printed = || {
        let mut at = program.streams.output_starts();
        loop {
            let bytes = program.streams.output_from(0, at[0], PART);
            if bytes.is_empty() {
                break;
            }
            at[0] += bytes.len() as u64;
        }
        // There is room for more.
        program.streams.forget_output(at).unwrap();
        at[0]
    };
    let before = printed();
    let rests = || {
        thread::sleep(Duration::from_millis(30));
        assert_eq!(printed(), before, "it has gone on");
    };
    rests();
    // What only looks at it.
    program.at_rest(patience, |_| (AfterRest::AsBefore, ())).unwrap();
    rests();
    // What was given up before it began, and begins later.
    let (started, has_started) = mpsc::channel();
    let (ends, may_end) = mpsc::channel();
    let long = move |_: &mut ReadyProgram| {
        started.send(()).unwrap();
        may_end.recv().unwrap();
        (AfterRest::AsBefore, ())
    };
    let other = Arc::clone(&program);
    let waits = thread::spawn(move || other.at_rest(patience, long).unwrap());
    has_started.recv().unwrap();
    let given_up = program.at_rest(Duration::ZERO, |_| (AfterRest::GoesOn, ()));
    assert!(given_up.unwrap_err().contains("did not come to rest"));
    ends.send(()).unwrap();
    waits.join().unwrap();
    rests();
    // Who decides it.
    program.at_rest(patience, |_| (AfterRest::GoesOn, ())).unwrap();
    let begun = Instant::now();
    while printed() == before {
        assert!(begun.elapsed() < Duration::from_secs(60), "it does not go on");
        thread::sleep(Duration::from_millis(1));
    }
    node.stop("talking", patience).unwrap();
}

#[test]
fn what_a_client_asks_about_makes_no_answer_too_long() {
    for transport in TRANSPORTS {
        let (_node, peer) = node("long", transport);
        let mut link = link(&peer);
        // Shown, each of them takes five bytes.
        let program = "\u{1}".repeat(250_000);
        let requests = [
            ClientRequest::Attach { program: program.clone(), client: [1; 16], outputs: None },
            ClientRequest::Stop { program: program.clone() },
            ClientRequest::Reclaim { program },
        ];
        for request in requests {
            link.push(&request);
            assert!(matches!(next(&mut link), Some(NodeReply::Refused(_))), "{transport:?}");
        }
        link.push(&ClientRequest::List);
        assert_eq!(next(&mut link), Some(NodeReply::Done), "it is served on");
    }
}

/// Has a program rest, so that who stops it waits, until what is returned is called.
fn have_rest(program: Arc<NodeProgram>) -> impl FnOnce() {
    let (started, has_started) = mpsc::channel();
    let (ends, may_end) = mpsc::channel();
    let long = move |_: &mut ReadyProgram| {
        started.send(()).unwrap();
        may_end.recv().unwrap();
        (AfterRest::GoesOn, ())
    };
    let rests = thread::spawn(move || program.at_rest(Duration::from_secs(60), long).unwrap());
    has_started.recv().unwrap();
    move || {
        ends.send(()).unwrap();
        rests.join().unwrap();
    }
}

#[test]
fn what_waits_for_something_that_is_being_done_stays_with_the_client() {
    for transport in TRANSPORTS {
        let (node, peer) = node("waits", transport);
        node.start(&talking()).unwrap();
        let go_on = have_rest(node.find("talking").unwrap());
        let mut link = link(&peer);
        link.push(&ClientRequest::Stop { program: "talking".to_owned() });
        for _ in 0..(128 << 20) / PART {
            let program = "a".repeat(PART);
            link.push(&ClientRequest::Attach { program, client: [1; 16], outputs: None });
        }
        let (begun, mut sent) = (Instant::now(), 0);
        // Until nothing is taken for a while.
        let mut taken_at = begun;
        while taken_at.elapsed() < Duration::from_millis(300) {
            link.turn_out().unwrap();
            if link.duplex.sent() > sent {
                (sent, taken_at) = (link.duplex.sent(), Instant::now());
            }
            assert!(sent < 64 << 20, "{transport:?}: {sent} bytes are with the node");
            thread::sleep(Duration::from_millis(1));
        }
        go_on();
        assert_eq!(next(&mut link), Some(NodeReply::Done), "it has stopped");
    }
}

#[test]
fn a_peer_that_only_says_that_it_is_there_is_waited_for_no_longer_than_any() {
    for transport in TRANSPORTS {
        let peer = stranger(transport, &SecretKey::from_seed([1; 32]), |channel| {
            let mut duplex = Duplex::new(channel).unwrap();
            let many = encode(&NodeReply::KeepAlive).repeat(10_000);
            while !duplex.is_lost() {
                duplex.push(Lane::Control, many.clone());
                while duplex.send().is_ok_and(|taken| taken == 0) && !duplex.is_lost() {
                    if duplex.receive().is_err() || duplex.wait(&[], None).is_err() {
                        return;
                    }
                }
            }
        });
        let mut link = link(&peer);
        let until = Instant::now() + Duration::from_millis(300);
        link.ask_until(&ClientRequest::List, "nothing", until).unwrap_err();
        assert!(Instant::now() >= until, "{transport:?}: it was left before");
    }
}

/// Knows one other node, which may run programs.
#[derive(Debug)]
struct Knows(MemoryPeer);

impl KnownPeers for Knows {
    fn may_run(&self, _: &PublicKey) -> bool {
        true
    }

    fn named(&self, _: &str) -> Option<MemoryPeer> {
        None
    }

    fn with_key(&self, key: &PublicKey) -> Option<MemoryPeer> {
        Some(self.0.clone()).filter(|peer| peer.key == *key)
    }

    fn signers(&self) -> Result<TrustedKeys, String> {
        Ok(TrustedKeys::default())
    }
}

/// Answers a node that moves a program here: would take it, and says this when it is handed over.
fn answer(channel: Channel, handed_over: impl Fn() -> MigrationStep) {
    let (mut duplex, mut inbox) = (Duplex::new(channel).unwrap(), Inbox::default());
    while let Ok(arrived) = duplex.receive() {
        inbox.push(&arrived.bytes);
        while let Ok(Some(request)) = inbox.next::<ClientRequest>() {
            let ClientRequest::Move { message, .. } = request else { continue };
            let step = match message.step {
                MigrationStep::Offer { .. } => MigrationStep::Accept,
                MigrationStep::HandOver { .. } => handed_over(),
                _ => continue,
            };
            let answer = MigrationMessage { step, ..message };
            duplex.push(Lane::Control, encode(&NodeReply::Steps(vec![answer])));
        }
        if arrived.is_over || duplex.send().is_err() || duplex.wait(&[], None).is_err() {
            return;
        }
    }
}

#[test]
fn why_a_target_declines_a_program_fits_what_all_clients_are_told() {
    let declined = || MigrationStep::Declined { text: "\u{1}".repeat(250_000) };
    let target = stranger(Transport::Tls, &SecretKey::from_seed([3; 32]), move |channel| {
        answer(channel, declined);
    });
    let to = target.key;
    let peers = Arc::new(Knows(target));
    let (node, peer) = node_of("declined", Transport::Tls, times(), peers.clone());
    node.start(&talking()).unwrap();
    let options = MigrateOptions { rounds: 0, ..MigrateOptions::default() };
    let said = node.migrate("talking", to, options).unwrap_err();
    assert!(said.contains("the target has declined it"), "{said}");
    let mut link = link(&peer);
    link.push(&ClientRequest::List);
    let Some(NodeReply::Program(program)) = next(&mut link) else { panic!("no program") };
    assert!(matches!(program.phase, ProgramPhase::Declined { .. }), "{:?}", program.phase);
    // Another process of the node knows of it, and can have it go on.
    let ProgramNodeOptions { engine, key, image_key, place, .. } = node.options().clone();
    let copy = place.with_extension("copy");
    let copied = Command::new("cp").arg("-r").arg(&place).arg(&copy).status().unwrap();
    assert!(copied.success());
    let images = ImageStore::open(copy.join("images")).unwrap();
    let mut options = ProgramNodeOptions::new(engine, images.clone(), key, peers, &copy);
    options.image_key = image_key;
    let again = ProgramNode::new(options).unwrap();
    assert!(matches!(again.programs()[0].phase, ProgramPhase::Declined { .. }));
    // That it goes on is written, and what was noted before cannot be removed.
    let declined = || again.records().read_all(&|_| ()).unwrap().leaving.remove(0).0;
    let id = ProgramId(declined().source.migration.0);
    let note = again.options().records.join(format!("{id}.leaving-note"));
    std::fs::create_dir(&note).unwrap();
    again.reclaim("talking").unwrap_err();
    assert_eq!(declined().source.state, SourceState::Declined, "the next process loses it");
    std::fs::remove_dir(&note).unwrap();
    let (name, image) = images.names().unwrap().pop_first().unwrap();
    images.remove_name(&name).unwrap();
    std::fs::rename(copy.join("images"), copy.join("elsewhere")).unwrap();
    again.reclaim("talking").unwrap_err();
    assert!(matches!(again.programs()[0].phase, ProgramPhase::Declined { .. }), "it is not lost");
    std::fs::rename(copy.join("elsewhere"), copy.join("images")).unwrap();
    images.set_name(&name, image).unwrap();
    again.reclaim("talking").unwrap();
    assert_eq!(again.programs()[0].phase, ProgramPhase::Running);
    again.stop("talking", Duration::from_secs(60)).unwrap();
    std::fs::remove_dir_all(copy).unwrap();
    node.reclaim("talking").unwrap();
    node.stop("talking", Duration::from_secs(60)).unwrap();
    std::fs::remove_dir_all(&node.options().place).unwrap();
}

#[test]
fn a_program_that_was_taken_is_its_targets_though_that_cannot_be_recorded() {
    let records = Arc::new(Mutex::new(PathBuf::new()));
    let source = Arc::clone(&records);
    let target = stranger(Transport::Tls, &SecretKey::from_seed([3; 32]), move |channel| {
        answer(channel, || {
            let records = source.lock().unwrap();
            // It may be handed over again.
            let _ = std::fs::rename(&*records, records.with_extension("elsewhere"));
            MigrationStep::Taken
        });
    });
    let to = target.key;
    let (node, _) = node_of("unrecorded", Transport::Tls, times(), Arc::new(Knows(target)));
    records.lock().unwrap().clone_from(&node.options().records);
    node.start(&talking()).unwrap();
    let options = MigrateOptions { rounds: 0, ..MigrateOptions::default() };
    node.migrate("talking", to, options).unwrap();
    assert!(matches!(node.programs()[0].phase, ProgramPhase::Moved { .. }));
    node.reclaim("talking").unwrap_err();
    std::fs::remove_dir_all(&node.options().place).unwrap();
}

#[test]
fn a_program_that_was_told_to_stop_is_handed_over_to_nobody() {
    let (node, _) = node("stopped", Transport::Tls);
    node.start(&talking()).unwrap();
    let program = node.find("talking").unwrap();
    let to = SecretKey::from_seed([3; 32]).public();
    program.at_rest(Duration::from_secs(60), |_| (AfterRest::Rests, ())).unwrap();
    program.hand_over(to).unwrap();
    assert!(matches!(program.phase(), ProgramPhase::HandedOver { .. }));
    program.set_phase(ProgramPhase::Moving { to: *to.as_bytes() });
    program.stop("it is a test", Duration::from_secs(60));
    program.hand_over(to).unwrap_err();
    assert!(matches!(program.phase(), ProgramPhase::Ended(ProgramEnd::Stopped(_))));
}

#[test]
fn a_connection_counts_until_all_is_done_that_was_asked_for_over_it() {
    let mut serve = ServeOptions::new(SecretKey::from_seed([1; 32]));
    serve.connections_max = 1;
    let (node, peer) = node_for("counts", Transport::Tls, times(), Arc::new(AnyPeer), serve);
    node.start(&talking()).unwrap();
    let go_on = have_rest(node.find("talking").unwrap());
    let mut link = attached_to(&peer, "talking", 1);
    link.push(&ClientRequest::Stop { program: "talking".to_owned() });
    link.turn_out().unwrap();
    link.duplex.end().unwrap();
    drop(link);
    let until = |what: &str, is_so: &dyn Fn() -> bool| {
        let begun = Instant::now();
        while !is_so() {
            assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
            thread::sleep(Duration::from_millis(1));
        }
    };
    until("it is believed to be there", &|| !node.programs()[0].is_attached);
    let has_place = || {
        let connected = NodeLink::connect(&peer, &SecretKey::from_seed([2; 32]), &times());
        connected.and_then(|mut link| link.ask(&ClientRequest::Hello, "it is a test")).is_ok()
    };
    for _ in 0..20 {
        assert_eq!(node.records().remembered().connections(), 1, "the program is being stopped");
        assert!(!has_place(), "its place is another's");
        thread::sleep(Duration::from_millis(10));
    }
    go_on();
    until("it counts for ever", &|| node.records().remembered().connections() == 0);
    until("its place is nobody's", &has_place);
}

#[test]
fn a_program_that_is_parked_runs_when_it_may_and_not_before() {
    let (node, _) = node("parked", Transport::Tls);
    let park = || {
        let streams = Arc::<ProgramStreams>::default();
        let ready = node.host().ready(&talking(), &streams).unwrap();
        let (key, phase) = (node.options().key.public(), ProgramPhase::Running);
        let id = ProgramId([7; 16]);
        let program = NodeProgram::new(id, "talking".to_owned(), key, streams, phase);
        let parked = program.park(ready, Arc::new(|_: &str| ()), |_| ()).unwrap();
        (program, parked)
    };
    let has_printed = |program: &NodeProgram| !program.streams.output_from(0, 0, PART).is_empty();
    let (program, parked) = park();
    thread::sleep(Duration::from_millis(30));
    drop(parked);
    assert!(!has_printed(&program));
    assert_eq!(Arc::strong_count(&program), 1, "its thread is gone");

    let (program, parked) = park();
    parked.run();
    let begun = Instant::now();
    while !has_printed(&program) {
        assert!(begun.elapsed() < Duration::from_secs(60), "it does not run");
        thread::sleep(Duration::from_millis(1));
    }
    assert!(program.stop("it is a test", Duration::from_secs(60)));
}

/// It is let in, and never silent.
#[test]
fn a_client_that_says_a_message_a_byte_at_a_time_is_left() {
    for transport in TRANSPORTS {
        let (_node, peer) = node("drips", transport);
        let mut link = link(&peer);
        let message = encode(&ClientRequest::LastChanges { at: 0, bytes: vec![7; 1000] });
        let mut left = false;
        // Eight seconds: more than the time in which a message of 1,000 bytes has to come.
        for byte in message.into_iter().take(400) {
            link.duplex.push(Lane::Control, vec![byte]);
            let until = Instant::now() + Duration::from_millis(20);
            while !left && Instant::now() < until {
                left = link.turn().is_err() || link.duplex.wait(&[], Some(until)).is_err();
            }
            if left {
                break;
            }
        }
        assert!(left, "{transport:?}: it was heard to its end");
    }
}
