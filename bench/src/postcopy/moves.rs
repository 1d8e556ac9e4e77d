//! A program that moves back and forth between two nodes: how long it rests, and for what.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use pagefork::image::{GROUP_SIZE, ImageStore, PublicKey, TrustedKeys};
use pagefork::{Config, DeltaTracker, Engine, StrategyConfig};
use pagefork_node::{
    KnownPeers, MemoryPeer, MemoryServer, MigrateOptions, NodeTimes, ProgramClient, ProgramNode,
    ProgramNodeOptions, ProgramPhase, ProgramSource, ProgramStart, ServeOptions, Transport,
};

use crate::measure::Size;
use crate::report::Report;

use super::network::Scratch;
use super::pages::PAGE;
use super::parts::{key, milliseconds, trusted};
use super::table::Table;

/// Of a move; times are milliseconds.
const COLUMNS: [&str; 10] = [
    "pause",
    "capturing",
    "saving",
    "sending",
    "taking",
    "pages changed",
    "MiB ahead",
    "MiB of it here",
    "rounds sent",
    "all of it",
];

/// How often a program writes the same pages before it goes on to others: longer than it takes to send
/// what it has written.
const TURNS: u32 = 60_000;

/// A program, and how it moves.
#[derive(Clone, Copy, Debug)]
struct Moves {
    /// Pages that it has filled.
    pages: u32,
    /// Pages that it writes again and again.
    changed: u32,
    /// After so many others it comes back to the same ones.
    places: u32,
    rounds: u8,
    transport: Transport,
    count: usize,
}

/// How long programs rest that move, over the loopback device, in this process.
///
/// # Panics
/// If a byte is wrong, or a part fails.
pub fn moves(size: Size) -> Report {
    let keys = &["program", "pages written", "by", "rounds"];
    let mut table = Table::new("moves", keys, &COLUMNS);
    let (pages, count) = match size {
        Size::Large => ((100 << 20) / PAGE as u32, 10),
        Size::Small => (256, 1),
    };
    let scratch = Scratch::new();
    for transport in [Transport::Tls, Transport::Quic] {
        for (rounds, places) in [(5, 1), (5, 8), (0, 1)] {
            let changed = (pages / 10).min(900);
            let moves = Moves { pages, changed, places, rounds, transport, count };
            for values in moves.run(scratch.path()) {
                table.add(moves.keys(), &values);
            }
        }
    }
    let text = table.markdown(&[], |_, _| Vec::new());
    Report { text, samples: table.raw(), plot: None }
}

impl Moves {
    fn keys(&self) -> Vec<String> {
        let transport = match self.transport {
            Transport::Tls => "TLS",
            Transport::Quic => "QUIC",
        };
        let mib = u64::from(self.pages) * PAGE as u64 >> 20;
        let written = match self.places {
            1 => "the same ones",
            _ => "others now and then",
        };
        [&format!("{mib} MiB"), written, transport, &self.rounds.to_string()]
            .map(str::to_owned)
            .to_vec()
    }

    /// Moves it so often.
    ///
    /// # Panics
    /// If it does not move, or has found a wrong byte: it looks all the time.
    fn run(&self, directory: &Path) -> Vec<[f64; COLUMNS.len()]> {
        let nodes = [1, 2].map(|seed| Node::new(directory, seed, self.transport));
        for (node, other) in [(0, 1), (1, 0)] {
            *nodes[node].peers.0.lock().expect("nobody panics") = Some(nodes[other].peer.clone());
        }
        let module = wat::parse_str(self.program()).expect("it is valid");
        let start = ProgramStart::new("writes", ProgramSource::Module(module));
        let id = nodes[0].client().start(&start).expect("it starts").to_string();
        let mut found = Vec::new();
        // The first time all is cold: compiled at one node, and nothing mapped at the other.
        for hop in 0..=self.count {
            thread::sleep(Duration::from_millis(300 + u64::from(self.pages) / 20));
            let (from, to) = (&nodes[hop % 2], &nodes[(hop + 1) % 2]);
            let (began, before) = (Instant::now(), to.programs.arrival_counts());
            let options = MigrateOptions { rounds: self.rounds, ..MigrateOptions::default() };
            let moved = from.client().migrate(&id, to.peer.key, options).expect("it moves");
            let all = milliseconds(began.elapsed());
            let here = to.programs.arrival_counts().groups_here - before.groups_here;
            let times = [moved.pause(), moved.capturing, moved.saving, moved.sending, moved.taking];
            let [pause, capturing, saving, sending, taking] = times.map(milliseconds);
            let changed = moved.changes as f64 / PAGE as f64;
            let ahead = moved.ahead as f64 / (1 << 20) as f64;
            let here = (here * GROUP_SIZE) as f64 / (1 << 20) as f64;
            let rounds = f64::from(moved.rounds);
            if hop > 0 {
                found.push([
                    pause, capturing, saving, sending, taking, changed, ahead, here, rounds, all,
                ]);
            }
        }
        thread::sleep(Duration::from_millis(300));
        let last = &nodes[(self.count + 1) % 2];
        let programs = last.client().programs().expect("it answers");
        assert!(programs.iter().any(|info| info.phase == ProgramPhase::Running), "{programs:?}");
        last.client().stop(&id).expect("it stops");
        found
    }

    /// Fills its memory; then it writes a word in each of the changed pages, each time what the word before
    /// leads to, and looks at one of the pages that it does not change. It traps when anything is wrong.
    fn program(&self) -> String {
        // What each place has been written lies in the first page.
        let (size, changed) = (self.pages as usize * PAGE, self.changed as usize * PAGE);
        let filled = PAGE + self.places as usize * changed;
        format!(
            r#"(module (memory (export "memory") {wasm_pages})
            (func $word (param $at i32) (result i64)
                (i64.mul (i64.extend_i32_u (local.get $at)) (i64.const 0x9e3779b97f4a7c15)))
            (func (export "_start") (local $at i32) (local $end i32) (local $round i64) (local $page i32)
                (local $place i32) (local $turn i32)
                (local.set $at (i32.const {filled}))
                (loop $again
                    (i64.store (local.get $at) (call $word (local.get $at)))
                    (local.set $at (i32.add (local.get $at) (i32.const 8)))
                    (br_if $again (i32.lt_u (local.get $at) (i32.const {size}))))
                (local.set $page (i32.const {filled}))
                (loop $rounds
                    (local.set $at (i32.add (i32.const {PAGE})
                        (i32.mul (local.get $place) (i32.const {changed}))))
                    (local.set $end (i32.add (local.get $at) (i32.const {changed})))
                    (local.set $round (i64.load (i32.shl (local.get $place) (i32.const 3))))
                    (loop $again
                        (if (i64.ne (i64.load (local.get $at)) (local.get $round))
                            (then unreachable))
                        (i64.store (local.get $at) (i64.add (local.get $round) (i64.const 1)))
                        (local.set $at (i32.add (local.get $at) (i32.const {PAGE})))
                        (br_if $again (i32.lt_u (local.get $at) (local.get $end))))
                    (i64.store (i32.shl (local.get $place) (i32.const 3))
                        (i64.add (local.get $round) (i64.const 1)))
                    (local.set $turn (i32.add (local.get $turn) (i32.const 1)))
                    (if (i32.eq (local.get $turn) (i32.const {TURNS}))
                        (then
                            (local.set $turn (i32.const 0))
                            (local.set $place (i32.rem_u
                                (i32.add (local.get $place) (i32.const 1)) (i32.const {places})))))
                    (local.set $at (local.get $page))
                    (local.set $page (i32.add (local.get $page) (i32.const {PAGE})))
                    (loop $again
                        (if (i64.ne (i64.load (local.get $at)) (call $word (local.get $at)))
                            (then unreachable))
                        (local.set $at (i32.add (local.get $at) (i32.const 8)))
                        (br_if $again (i32.lt_u (local.get $at) (local.get $page))))
                    (if (i32.ge_u (local.get $page) (i32.const {size}))
                        (then (local.set $page (i32.const {filled}))))
                    (br $rounds))))"#,
            wasm_pages = self.pages.div_ceil(16),
            places = self.places,
        )
    }
}

/// The other node.
#[derive(Debug, Default)]
struct Other(Mutex<Option<MemoryPeer>>);

impl KnownPeers for Other {
    fn may_run(&self, _: &PublicKey) -> bool {
        true
    }

    fn named(&self, _: &str) -> Option<MemoryPeer> {
        None
    }

    fn with_key(&self, key: &PublicKey) -> Option<MemoryPeer> {
        let known = self.0.lock().expect("nobody panics");
        known.clone().filter(|peer| peer.key == *key)
    }

    fn signers(&self) -> Result<TrustedKeys, String> {
        Ok(trusted())
    }
}

/// A node of this process.
struct Node {
    peer: MemoryPeer,
    peers: Arc<Other>,
    programs: ProgramNode,
}

impl Node {
    fn new(directory: &Path, seed: u8, transport: Transport) -> Self {
        let path = directory.join(format!("node-{seed}"));
        let _ = fs::remove_dir_all(&path);
        let images = ImageStore::open(path.join("images")).expect("a directory of ours");
        let mut config = Config::new();
        // As `pagefork node run` has it.
        let deltas = DeltaTracker::Writes;
        config.strategies(StrategyConfig { deltas, ..StrategyConfig::default() });
        let engine = Engine::new(&config).expect("the usual one");
        let peers = Arc::<Other>::default();
        let known = Arc::clone(&peers) as Arc<dyn KnownPeers>;
        let mut options = ProgramNodeOptions::new(engine, images.clone(), key(seed), known, &path);
        options.image_key = key(3);
        let mut serve = ServeOptions::new(key(seed));
        serve.access = Arc::new(|_| true);
        let programs = ProgramNode::new(options).expect("a directory of ours");
        serve.programs = Some(programs.clone());
        let place = match transport {
            Transport::Tls => "127.0.0.1:0",
            Transport::Quic => "quic://127.0.0.1:0",
        };
        let server = MemoryServer::bind(place, images, serve).expect("a free port");
        let peer = MemoryPeer { address: server.address().to_string(), key: key(seed).public() };
        thread::spawn(move || server.run());
        Self { peer, peers, programs }
    }

    fn client(&self) -> ProgramClient {
        let client = ProgramClient::connect(&self.peer, &key(9), &NodeTimes::default());
        client.expect("it is there")
    }
}
