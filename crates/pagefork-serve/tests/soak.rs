//! A server that has answered many requests, some of which trapped and some of which took
//! too long, is as it was.

mod common;

use std::io::{BufRead, Read};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Barrier, Mutex};
use std::time::Duration;

use common::{Client, Served, knows, program, serve};
use pagefork::{Engine, Linker, Module};
use pagefork_serve::{ForkGuest, Program, ProgramOptions, StartedProgram};
use pagefork_wasi::WasiCtxBuilder;

const PLAIN: &str = "Content-Type: text/plain\n\nhello";

/// Clients, a connection each.
const CLIENTS: u64 = 8;

/// One request of this many traps, and another takes too long.
const ONE_IN: u64 = 100;

/// What the process holds.
#[derive(Clone, Copy, Debug)]
struct Held {
    maps: usize,
    descriptors: usize,
    /// KiB.
    resident: u64,
}

fn held() -> Held {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    Held {
        maps: std::fs::read_to_string("/proc/self/maps").unwrap().lines().count(),
        descriptors: std::fs::read_dir("/proc/self/fd").unwrap().count(),
        resident: resident.trim().trim_end_matches(" kB").parse().unwrap(),
    }
}

/// What became of requests.
#[derive(Debug, Default)]
struct Outcomes {
    answered: AtomicU64,
    trapped: AtomicU64,
    timed_out: AtomicU64,
    /// Answered otherwise than they should be: ordinary ones that were starved.
    others: AtomicU64,
}

/// Sends a request; `None` if the connection broke off.
fn ask(client: &mut Client, body: char) -> Option<u16> {
    client.send(format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n{body}"));
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if client.stream.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let size = head
        .lines()
        .find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
    let mut rest = vec![0; size?];
    client.stream.read_exact(&mut rest).ok()?;
    head.split(' ').nth(1)?.parse().ok()
}

fn send_all(server: &Served, client: &mut Client, requests: u64, outcomes: &Outcomes) {
    for number in 0..requests {
        let (body, wanted, count) = match number % ONE_IN {
            7 => ('!', 500, &outcomes.trapped),
            50 => ('?', 504, &outcomes.timed_out),
            _ => ('.', 200, &outcomes.answered),
        };
        let status = ask(client, body);
        let count = if status == Some(wanted) { count } else { &outcomes.others };
        count.fetch_add(1, Ordering::Relaxed);
        if status.is_none() {
            *client = server.connect();
        }
    }
}

/// A program of which each request is answered by a fresh instance.
fn fresh() -> Program {
    let then = format!(
        r#"(drop (call $read))
        (if (i32.eq (i32.load8_u (i32.const 131072)) (i32.const 33)) (then (unreachable)))
        (if (i32.eq (i32.load8_u (i32.const 131072)) (i32.const 63))
            (then (loop $for_ever (br $for_ever))))
        (call $write (i32.const 1) (i32.const 65536) (i32.const {}))"#,
        PLAIN.len()
    );
    program(knows(PLAIN, &then), &WasiCtxBuilder::new(), ProgramOptions::default())
}

/// A program of which each request is answered by a fork: it reads all of its input, and does
/// what the last byte says.
fn forked() -> Program {
    let text = format!(
        r#"(module
        (import "wasi_snapshot_preview1" "fd_read"
            (func $read (param i32 i32 i32 i32) (result i32)))
        (import "wasi_snapshot_preview1" "fd_write"
            (func $write (param i32 i32 i32 i32) (result i32)))
        (memory (export "memory") 4)
        (data (i32.const 65536) "{PLAIN}")
        (func (export "_start") (local $last i32)
            (loop $more
                (i32.store (i32.const 0) (i32.const 131072))
                (i32.store (i32.const 4) (i32.const 4096))
                (drop (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)))
                (if (i32.load (i32.const 8)) (then
                    (local.set $last
                        (i32.load8_u (i32.add (i32.const 131071) (i32.load (i32.const 8)))))
                    (br $more))))
            (if (i32.eq (local.get $last) (i32.const 33)) (then unreachable))
            (if (i32.eq (local.get $last) (i32.const 63)) (then (loop (br 0))))
            (i32.store (i32.const 0) (i32.const 65536))
            (i32.store (i32.const 4) (i32.const {}))
            (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))))"#,
        PLAIN.len()
    );
    let engine = Engine::default();
    let module = Module::new(&engine, text.replace("\n\n", "\\0a\\0a")).unwrap();
    let mut linker: Linker<ForkGuest> = Linker::new(&engine);
    pagefork_wasi::add_to_linker(&mut linker, |guest| &mut guest.ctx).unwrap();
    let started = StartedProgram::start(&linker, &module, WasiCtxBuilder::new()).unwrap();
    Program::started(started, ProgramOptions::default())
}

/// `slack`: KiB of resident memory besides the twentieth that may be more.
fn soak(program: Program, requests: u64, slack: u64) {
    // What the process holds is one test's at a time.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock();
    // As the command does. Another test may have started threads.
    pagefork_host::limit_arenas();
    let server = serve(program, |config| {
        // Long enough for who waits for a processor, and not for ever for a million.
        let timeout = if requests > 100_000 { 20 } else { 200 };
        config.timeout = Duration::from_millis(timeout);
        config.log(Box::new(std::io::sink()));
        config.access_log(pagefork_serve::AccessFormat::Common, Box::new(std::io::sink()));
    });
    let (server, outcomes, barrier) =
        (&server, &Outcomes::default(), &Barrier::new(CLIENTS as usize + 1));
    let (before, after) = std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(move || {
                let mut client = server.connect();
                // Until every thread, buffer and slot is there.
                send_all(
                    server,
                    &mut client,
                    (requests / CLIENTS / 10).max(200),
                    &Outcomes::default(),
                );
                barrier.wait();
                barrier.wait();
                send_all(server, &mut client, requests / CLIENTS, outcomes);
                barrier.wait();
                barrier.wait();
            });
        }
        barrier.wait();
        let before = held();
        barrier.wait();
        barrier.wait();
        let after = held();
        barrier.wait();
        (before, after)
    });
    println!("{requests} requests: {outcomes:?}\nbefore {before:?}\nafter  {after:?}");
    let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
    assert!(count(&outcomes.trapped) > 0 && count(&outcomes.timed_out) > 0, "{outcomes:?}");
    let enough = requests * 9 / 10;
    assert!(count(&outcomes.answered) >= enough, "{outcomes:?}");
    // A connection that was broken off is another one now.
    assert!(after.descriptors <= before.descriptors + 2, "{before:?} {after:?}");
    // A thread or an arena of the allocator more is no leak: that would grow with requests.
    assert!(after.maps <= before.maps + 40, "{before:?} {after:?}");
    assert!(after.resident <= before.resident * 105 / 100 + slack, "{before:?} {after:?}");
}

#[test]
fn a_server_holds_no_more_after_some_thousand_requests() {
    soak(fresh(), 4_000, 4096);
}

#[test]
fn a_server_of_forks_holds_no_more_after_some_thousand_requests() {
    soak(forked(), 4_000, 4096);
}

/// `cargo xtask soak`.
#[test]
#[ignore = "takes minutes"]
fn a_server_holds_no_more_after_a_million_requests() {
    // An arena of the allocator more; a leak of a byte a request would be as much.
    soak(fresh(), 1_000_000, 1024);
}

/// `cargo xtask soak`.
#[test]
#[ignore = "takes minutes"]
fn a_server_of_forks_holds_no_more_after_a_million_requests() {
    soak(forked(), 1_000_000, 1024);
}
