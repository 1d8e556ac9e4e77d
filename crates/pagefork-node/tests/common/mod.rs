//! Nodes that run programs, and a network between them that is cut.

#![allow(dead_code, reason = "not every test needs everything")]

/// Networks of datagrams.
pub(crate) mod datagrams;

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use pagefork::{Cache, Config, DeltaTracker, Engine, StrategyConfig};
use pagefork_image::{ImageStore, PublicKey, SecretKey, TrustedKeys};
use pagefork_node::{
    AttachStreams, KnownPeers, MemoryPeer, MemoryServer, NodeError, NodeTimes, PageTimes,
    ProgramClient, ProgramEnd, ProgramId, ProgramNode, ProgramNodeOptions, ProgramSource,
    ProgramStart, ServeOptions, attach_program,
};

pub(crate) fn key(seed: u8) -> SecretKey {
    SecretKey::from_seed([seed; 32])
}

/// The key of who starts programs.
pub(crate) const CLIENT: u8 = 100;

/// What programs have: `$read` reads up to 1,024 bytes to address 256 and gives their number,
/// `$print` prints bytes.
pub(crate) const BEGINNING: &str = r#"
    (import "wasi_snapshot_preview1" "fd_read"
        (func $fd_read (param i32 i32 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "fd_write"
        (func $fd_write (param i32 i32 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
    (import "wasi_snapshot_preview1" "fd_close" (func $close (param i32) (result i32)))
    (import "wasi_snapshot_preview1" "sock_accept" (func $accept (param i32 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "clock_time_get"
        (func $time (param i32 i64 i32) (result i32)))
    (import "wasi_snapshot_preview1" "path_create_directory"
        (func $make (param i32 i32 i32) (result i32)))
    (memory (export "memory") 1)
    (data (i32.const 0) "\00\01\00\00\00\04\00\00")
    (func $read (result i32)
        (drop (call $fd_read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)))
        (i32.load (i32.const 8)))
    (func $print (param $at i32) (param $size i32)
        (loop $again
            (i32.store (i32.const 32) (local.get $at))
            (i32.store (i32.const 36) (local.get $size))
            (drop (call $fd_write (i32.const 1) (i32.const 32) (i32.const 1) (i32.const 40)))
            (local.set $at (i32.add (local.get $at) (i32.load (i32.const 40))))
            (local.set $size (i32.sub (local.get $size) (i32.load (i32.const 40))))
            (br_if $again (local.get $size))))"#;

/// Prints what it reads, to the end, and exits with 7.
pub(crate) const ECHO: &str = r#"
    (func (export "_start") (local $size i32)
        (loop $again
            (local.set $size (call $read))
            (if (local.get $size)
                (then (call $print (i32.const 256) (local.get $size)) (br $again))))
        (call $exit (i32.const 7)))"#;

/// Fills 8 MiB with numbers, reads a byte, and prints their sum.
pub(crate) const SUMS: &str = r#"
    (func (export "_start") (local $at i32) (local $sum i64)
        (drop (memory.grow (i32.const 130)))
        (local.set $at (i32.const 65536))
        (loop $again
            (i64.store (local.get $at) (i64.mul (i64.extend_i32_u (local.get $at)) (i64.const 0x9e3779b97f4a7c15)))
            (local.set $at (i32.add (local.get $at) (i32.const 8)))
            (br_if $again (i32.lt_u (local.get $at) (i32.const 8454144))))
        (call $print (i32.const 1024) (i32.const 1))
        (drop (call $read))
        (local.set $at (i32.const 65536))
        (loop $again
            (local.set $sum (i64.add (local.get $sum) (i64.load (local.get $at))))
            (local.set $at (i32.add (local.get $at) (i32.const 8)))
            (br_if $again (i32.lt_u (local.get $at) (i32.const 8454144))))
        (i64.store (i32.const 4096) (local.get $sum))
        (call $print (i32.const 4096) (i32.const 8)))"#;

/// What it prints.
pub(crate) fn sum() -> Vec<u8> {
    let numbers = (65536_u64..8_454_144).step_by(8);
    let sum =
        numbers.fold(0_u64, |sum, at| sum.wrapping_add(at.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    [&[0][..], &sum.to_le_bytes()].concat()
}

/// The binary of a program.
pub(crate) fn program(rest: &str) -> Vec<u8> {
    wat::parse_str(format!("(module {BEGINNING}{rest})")).expect("it is valid")
}

pub(crate) fn start(name: &str, rest: &str) -> ProgramStart {
    ProgramStart::new(name, ProgramSource::Module(program(rest)))
}

/// What a node knows of others.
#[derive(Debug, Default)]
pub(crate) struct Peers(pub(crate) Mutex<Vec<(String, MemoryPeer)>>);

impl KnownPeers for Peers {
    fn may_run(&self, key: &PublicKey) -> bool {
        let known = self.0.lock().unwrap();
        *key == self::key(CLIENT).public() || known.iter().any(|(_, peer)| peer.key == *key)
    }

    fn named(&self, name: &str) -> Option<MemoryPeer> {
        let known = self.0.lock().unwrap();
        known.iter().find(|(other, _)| other == name).map(|(_, peer)| peer.clone())
    }

    fn with_key(&self, key: &PublicKey) -> Option<MemoryPeer> {
        let known = self.0.lock().unwrap();
        known.iter().find(|(_, peer)| peer.key == *key).map(|(_, peer)| peer.clone())
    }

    fn signers(&self) -> Result<TrustedKeys, String> {
        Ok(TrustedKeys::from_iter([key(3).public()]))
    }
}

/// A node that runs programs, in this process.
pub(crate) struct Node {
    pub(crate) path: PathBuf,
    pub(crate) images: ImageStore,
    pub(crate) peer: MemoryPeer,
    pub(crate) peers: Arc<Peers>,
    pub(crate) programs: ProgramNode,
}

impl Node {
    pub(crate) fn new(name: &str, seed: u8) -> Self {
        Self::with(name, seed, |_| ())
    }

    pub(crate) fn with(name: &str, seed: u8, set: impl FnOnce(&mut ProgramNodeOptions)) -> Self {
        Self::at(datagrams::PLACES[0], name, seed, set)
    }

    /// One that listens at `place`.
    pub(crate) fn at(
        place: &str,
        name: &str,
        seed: u8,
        set: impl FnOnce(&mut ProgramNodeOptions),
    ) -> Self {
        let transport = if place.starts_with("quic") { "quic-" } else { "" };
        let name = format!("{transport}{name}");
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("programs-{name}-{seed}"));
        let _ = fs::remove_dir_all(&path);
        let images = ImageStore::open(path.join("images")).unwrap();
        let peers = Arc::new(Peers::default());
        let mut config = Config::new();
        let deltas = DeltaTracker::Writes;
        config.strategies(StrategyConfig { deltas, ..StrategyConfig::default() });
        // Large programs are compiled once.
        config.cache(Cache::new(Path::new(env!("CARGO_TARGET_TMPDIR")).join("programs-code")));
        let engine = Engine::new(&config).unwrap();
        let known = Arc::clone(&peers) as Arc<dyn KnownPeers>;
        let mut options = ProgramNodeOptions::new(engine, images.clone(), key(seed), known, &path);
        options.image_key = key(3);
        set(&mut options);
        let programs = ProgramNode::new(options).unwrap();
        // Of those who ask it with little patience.
        let mut serve = ServeOptions::new(key(seed));
        let knows = Arc::clone(&peers);
        serve.access = Arc::new(move |key| knows.may_run(key));
        serve.programs = Some(programs.clone());
        let server = MemoryServer::bind(place, images.clone(), serve).unwrap();
        let peer = MemoryPeer { address: server.address().to_string(), key: key(seed).public() };
        thread::spawn(move || server.run());
        Self { path, images, peer, peers, programs }
    }

    pub(crate) fn client(&self) -> ProgramClient {
        ProgramClient::connect(&self.peer, &key(CLIENT), &NodeTimes::default()).unwrap()
    }

    pub(crate) fn start(&self, start: &ProgramStart) -> ProgramId {
        self.client().start(start).unwrap()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        for program in self.programs.programs() {
            let _ = self.programs.stop(&program.id.to_string(), Duration::from_secs(10));
        }
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// What a program has printed, and what has become of it.
pub(crate) struct Attached {
    pub(crate) end: Result<ProgramEnd, NodeError>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
}

pub(crate) fn attach(
    peer: &MemoryPeer,
    program: &str,
    input: impl Read + Send + 'static,
    times: &PageTimes,
) -> Attached {
    attach_among(peer, program, input, &[], times)
}

/// As [`attach`], among nodes between which the program may move.
pub(crate) fn attach_among(
    peer: &MemoryPeer,
    program: &str,
    input: impl Read + Send + 'static,
    nodes: &[MemoryPeer],
    times: &PageTimes,
) -> Attached {
    let mut stdout = Vec::new();
    let (end, stderr) = attach_to(peer, program, input, nodes, times, &mut stdout);
    Attached { end, stdout, stderr }
}

fn attach_to(
    peer: &MemoryPeer,
    program: &str,
    input: impl Read + Send + 'static,
    nodes: &[MemoryPeer],
    times: &PageTimes,
    stdout: &mut dyn Write,
) -> (Result<ProgramEnd, NodeError>, Vec<u8>) {
    let mut stderr = Vec::new();
    let streams = AttachStreams { input: Box::new(input), outputs: [stdout, &mut stderr] };
    let places = |key: &PublicKey| nodes.iter().find(|node| node.key == *key).cloned();
    (attach_program(peer, &key(CLIENT), program, streams, &places, times), stderr)
}

/// Attaches to a program of the first node that fills its memory and then prints a byte, and returns when
/// it has.
pub(crate) fn attach_filled(nodes: &[Node], program: &str) -> (Pipe, thread::JoinHandle<Attached>) {
    let all: Vec<_> = nodes.iter().map(|node| node.peer.clone()).collect();
    let (input, program) = (Pipe::default(), program.to_owned());
    let (reader, (first, is_filled)) = (input.clone(), mpsc::channel());
    let client = thread::spawn(move || {
        let mut printed = Printed { bytes: Vec::new(), first };
        let times = PageTimes::default();
        let (end, stderr) = attach_to(&all[0], &program, reader, &all, &times, &mut printed);
        Attached { end, stdout: printed.bytes, stderr }
    });
    is_filled.recv().expect("it fills its memory");
    (input, client)
}

/// Tells of each output.
struct Printed {
    bytes: Vec<u8>,
    first: mpsc::Sender<()>,
}

impl Write for Printed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes.extend(bytes);
        // Nobody listens any more after the first one.
        let _ = self.first.send(());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// An input that another thread writes, and that ends when it is closed.
#[derive(Clone, Default)]
pub(crate) struct Pipe(Arc<(Mutex<(Vec<u8>, bool)>, Condvar)>);

impl Pipe {
    pub(crate) fn put(&self, bytes: &[u8]) {
        self.0.0.lock().unwrap().0.extend(bytes);
        self.0.1.notify_all();
    }

    pub(crate) fn close(&self) {
        self.0.0.lock().unwrap().1 = true;
        self.0.1.notify_all();
    }
}

impl Read for Pipe {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let state = self.0.0.lock().unwrap();
        let mut state = self.0.1.wait_while(state, |state| state.0.is_empty() && !state.1).unwrap();
        let count = into.len().min(state.0.len());
        into[..count].copy_from_slice(&state.0[..count]);
        state.0.drain(..count);
        Ok(count)
    }
}

/// Carries bytes, and breaks connections when it is told to, or after so many bytes.
pub(crate) struct Relay {
    pub(crate) address: String,
    /// Connections of an older number break.
    current: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    /// Bytes that it has carried, both ways.
    pub(crate) carried: Arc<AtomicU64>,
}

impl Relay {
    /// `lives` says how many bytes each connection carries.
    pub(crate) fn new(to: &str, lives: impl FnMut() -> u64 + Send + 'static) -> Self {
        Self::with(to, false, lives)
    }

    /// As [`Self::new`]; or what it `stalls` carries nothing more, and does not break.
    pub(crate) fn with(
        to: &str,
        stalls: bool,
        mut lives: impl FnMut() -> u64 + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let current = Arc::new(AtomicU64::new(0));
        let (to, now) = (to.to_owned(), Arc::clone(&current));
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&is_over);
        let carried = Arc::<AtomicU64>::default();
        let carries = Arc::clone(&carried);
        thread::spawn(move || {
            for socket in listener.incoming() {
                let Ok(from) = socket else { return };
                if ends.load(Ordering::SeqCst) {
                    continue;
                }
                let Ok(onward) = TcpStream::connect(&to) else { continue };
                // What is small is not to wait for what was before; who is gone by now does not care.
                let _ = from.set_nodelay(true).and_then(|()| onward.set_nodelay(true));
                let left = Arc::new(AtomicU64::new(lives()));
                let number = now.load(Ordering::SeqCst);
                let ways =
                    [(from.try_clone().unwrap(), onward.try_clone().unwrap()), (onward, from)];
                for (from, onward) in ways {
                    let (now, left) = (Arc::clone(&now), Arc::clone(&left));
                    let carries = Arc::clone(&carries);
                    thread::spawn(move || {
                        let lives = || now.load(Ordering::SeqCst) == number;
                        carry(from, onward, &left, &carries, stalls, lives)
                    });
                }
            }
        });
        Self { address, current, is_over, carried }
    }

    /// Breaks all connections, and those that come.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
        self.break_all();
    }

    pub(crate) fn break_all(&self) {
        self.current.fetch_add(1, Ordering::SeqCst);
    }
}

fn carry(
    mut from: TcpStream,
    mut onward: TcpStream,
    left: &AtomicU64,
    carries: &AtomicU64,
    stalls: bool,
    lives: impl Fn() -> bool,
) {
    from.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    let mut bytes = [0; 4096];
    while lives() {
        match from.read(&mut bytes) {
            Ok(0) => break,
            // What comes after the break is lost, also if it was waited for before.
            Ok(_) if !lives() => break,
            Ok(count) => {
                let before = left.fetch_sub(count as u64, Ordering::SeqCst);
                if before < count as u64 || before > u64::MAX / 2 {
                    // What was read is lost on the way.
                    left.store(0, Ordering::SeqCst);
                    while stalls && lives() && !is_closed(&from) {
                        thread::sleep(Duration::from_millis(5));
                    }
                    break;
                }
                if onward.write_all(&bytes[..count]).is_err() {
                    break;
                }
                carries.fetch_add(count as u64, Ordering::SeqCst);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => break,
        }
    }
    let _ = (from.shutdown(Shutdown::Both), onward.shutdown(Shutdown::Both));
}

/// Whether who sends has closed its side, after all that it has sent.
fn is_closed(mut from: &TcpStream) -> bool {
    // What it sends is read and lost.
    matches!(from.read(&mut [0; 4096]), Ok(0))
}

/// Numbers that look random: the same each time.
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| (self.next() >> 32) as u8).collect()
    }
}
