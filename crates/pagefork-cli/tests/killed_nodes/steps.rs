//! What is killed, and when, is chosen: before each record of TLS, or datagram of QUIC, that two nodes send each
//! other while a program moves, one of them, or the line between them. Whatever a node writes to its disk, it does
//! between two of these.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;

use super::*;

/// What does not outlive a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Victim {
    Source,
    Target,
    Line,
}

/// Records that pass between two nodes, in both ways and over all their connections, and the one at which
/// something happens.
#[derive(Default)]
struct Records {
    state: Mutex<RecordState>,
    changed: Condvar,
}

#[derive(Default)]
struct RecordState {
    passed: u64,
    /// The number of the record before which all wait.
    stop_at: Option<u64>,
    is_reached: bool,
    /// Connections of an older number are cut.
    age: u64,
}

impl Records {
    fn state(&self) -> MutexGuard<'_, RecordState> {
        self.state.lock().unwrap()
    }

    /// Counts anew, up to this record.
    fn begin(&self, stop_at: Option<u64>) {
        let mut state = self.state();
        (state.passed, state.stop_at, state.is_reached) = (0, stop_at, false);
    }

    /// Lets all pass again; those that were there before are cut, if that is what is to be.
    fn go_on(&self, is_cut: bool) {
        let mut state = self.state();
        state.stop_at = None;
        state.age += u64::from(is_cut);
        self.changed.notify_all();
    }

    /// Waits until a record may pass. Returns whether it may.
    fn pass(&self, age: u64) -> bool {
        let mut state = self.state();
        state.passed += 1;
        if state.stop_at.is_some_and(|stop_at| state.passed >= stop_at) {
            state.is_reached = true;
        }
        let is_held = |state: &mut RecordState| {
            state.age == age && state.stop_at.is_some_and(|stop_at| state.passed >= stop_at)
        };
        let state = self.changed.wait_while(state, is_held).unwrap();
        state.age == age
    }

    /// A line to a node. Returns where it begins.
    fn line(self: &Arc<Self>, to: &str) -> String {
        match to.strip_prefix("quic://") {
            Some(to) => self.line_of_datagrams(to.parse().unwrap()),
            None => self.line_of_records(to),
        }
    }

    /// Each who connects has a way of its own, which is cut for good when it is too old.
    fn line_of_datagrams(self: &Arc<Self>, to: SocketAddr) -> String {
        let near = Arc::new(UdpSocket::bind("127.0.0.1:0").unwrap());
        let address = format!("quic://{}", near.local_addr().unwrap());
        let records = Arc::clone(self);
        thread::spawn(move || {
            let mut ways = HashMap::<SocketAddr, (u64, Arc<UdpSocket>)>::new();
            let mut bytes = vec![0; 1 << 16];
            while let Ok((count, from)) = near.recv_from(&mut bytes) {
                let (age, far) = ways.entry(from).or_insert_with(|| {
                    let far = Arc::new(UdpSocket::bind("127.0.0.1:0").unwrap());
                    far.connect(to).unwrap();
                    let age = records.state().age;
                    let (near, back, records) =
                        (Arc::clone(&near), Arc::clone(&far), Arc::clone(&records));
                    thread::spawn(move || {
                        let mut bytes = vec![0; 1 << 16];
                        loop {
                            // Nobody listens while a node is started anew.
                            let Ok(count) = back.recv(&mut bytes) else { continue };
                            if records.pass(age) {
                                let _ = near.send_to(&bytes[..count], from);
                            }
                        }
                    });
                    (age, far)
                });
                if records.pass(*age) {
                    let _ = far.send(&bytes[..count]);
                }
            }
        });
        address
    }

    fn line_of_records(self: &Arc<Self>, to: &str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (records, to) = (Arc::clone(self), to.to_owned());
        thread::spawn(move || {
            for socket in listener.incoming() {
                let socket = socket.unwrap();
                let Ok(node) = TcpStream::connect(&to) else { continue };
                socket.set_nodelay(true).and_then(|()| node.set_nodelay(true)).unwrap();
                let age = records.state().age;
                let ways =
                    [(socket.try_clone().unwrap(), node.try_clone().unwrap()), (node, socket)];
                for (from, onward) in ways {
                    let records = Arc::clone(&records);
                    thread::spawn(move || carry(&records, age, from, onward));
                }
            }
        });
        address
    }
}

/// Carries records, whose headers say how long they are.
fn carry(records: &Records, age: u64, mut from: TcpStream, mut onward: TcpStream) {
    let mut header = [0; 5];
    while from.read_exact(&mut header).is_ok() {
        let mut record = header.to_vec();
        record.resize(5 + usize::from(u16::from_be_bytes([header[3], header[4]])), 0);
        if from.read_exact(&mut record[5..]).is_err() || !records.pass(age) {
            break;
        }
        if onward.write_all(&record).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), onward.shutdown(Shutdown::Both));
}

/// Two nodes, and the lines between them.
struct Pair {
    nodes: [Mortal; 2],
    records: Arc<Records>,
    module: String,
    /// Programs so far.
    programs: u64,
    name: String,
}

/// What has become of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Stayed,
    Moved,
    Lost,
}

impl Pair {
    fn new(name: &str, is_quic: bool) -> Self {
        let nodes = ["a", "b"].map(|which| Mortal::new(&format!("{name}-{which}"), is_quic));
        let records = Arc::<Records>::default();
        let [a, b] = [0, 1].map(|which| records.line(&nodes[which].address));
        know(&nodes, [&b, &a]);
        let module = file(&format!("{name}.wat"), ECHO);
        Self { nodes, records, module, programs: 0, name: name.to_owned() }
    }

    /// Moves a program, and does away with `victim` before the record of this number passes. Returns what
    /// became of the program, and how many records have passed; `None` if there are fewer.
    fn migrate(&mut self, rounds: u32, victim: Victim, at: Option<u64>) -> Option<(Fate, u64)> {
        self.programs += 1;
        let program = format!("{}-{}", self.name, self.programs);
        let label = format!("{victim:?} at {at:?} of {rounds} rounds");
        let mut client = Client::start(&self.nodes[0], &program, &self.module);
        client.write("first\n");
        wait_until("the program runs", || client.printed() == "first\n");
        self.records.begin(at);
        // Nothing is in the way of the first one.
        let patience = if at.is_none() { "60s" } else { "4s" };
        let mut moving = Command::new(env!("CARGO_BIN_EXE_pagefork"))
            .args(["migrate", "--patience", patience, "--rounds", &rounds.to_string()])
            .args([&format!("own/{program}"), "other"])
            .env("XDG_CONFIG_HOME", &self.nodes[0].user.config)
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut is_over = false;
        wait_until(&format!("{label}: it comes there, or moves"), || {
            is_over = moving.try_wait().unwrap().is_some();
            is_over || self.records.state().is_reached
        });
        let (passed, is_reached) = {
            let state = self.records.state();
            (state.passed, state.is_reached)
        };
        if is_reached {
            match victim {
                Victim::Source => self.nodes[0].kill(),
                Victim::Target => self.nodes[1].kill(),
                Victim::Line => {}
            }
        }
        self.records.go_on(is_reached && victim == Victim::Line);
        self.nodes.iter_mut().for_each(Mortal::start);
        wait(&mut moving, "the command ends");
        let phases = settled(&self.nodes, &program);
        let owners = phases.iter().filter(|phase| runs(phase)).count();
        assert!(owners <= 1, "{label}: {phases:?}");
        client.write("second\n");
        drop(client.input.take());
        if owners == 0 {
            // It would try for long to reach a program that is no more.
            let _ = client.child.kill();
        }
        let code = wait(&mut client.child, "the client ends");
        client.reader.take().unwrap().join().unwrap();
        let printed = client.printed();
        let fate = match owners {
            1 => {
                assert_eq!((code, &printed[..]), (0, "first\nsecond\n"), "{label}: {phases:?}");
                if runs(&phases[0]) { Fate::Stayed } else { Fate::Moved }
            }
            _ => {
                assert!("first\nsecond\n".starts_with(&printed), "{label}: {printed:?}");
                assert!(victim != Victim::Line, "{label}: nothing was killed: {phases:?}");
                Fate::Lost
            }
        };
        (is_reached || at.is_none()).then_some((fate, passed))
    }
}

/// Every `stride`th record or datagram, from the first on.
fn walk(name: &str, rounds: u32, victim: Victim, is_quic: bool, stride: usize) {
    let mut pair = Pair::new(&format!("{name}-{victim:?}-{rounds}").to_lowercase(), is_quic);
    let (fate, count) = pair.migrate(rounds, victim, None).expect("nothing is in its way");
    assert_eq!(fate, Fate::Moved);
    assert!(count > 8, "{count} records");
    let mut fates = Vec::new();
    for at in (1..=count).step_by(stride) {
        // A run of fewer records than the first one is over before.
        let Some((fate, _)) = pair.migrate(rounds, victim, Some(at)) else { break };
        fates.push(fate);
    }
    println!("{victim:?}, {rounds} rounds, {count} records: {fates:?}");
    // Nothing was handed over yet: it ends with its node, and with nothing else.
    assert_eq!(fates[0] == Fate::Lost, victim == Victim::Source, "{fates:?}");
}

/// Every fourth record, and some datagrams; the soak has all records.
#[test]
fn whatever_ends_at_a_step_of_a_migration_there_is_one_of_a_program_at_most() {
    thread::scope(|scope| {
        for (victim, rounds) in [(Victim::Source, 1), (Victim::Target, 1), (Victim::Line, 0)] {
            scope.spawn(move || walk("killed-at", rounds, victim, false, 4));
        }
        scope.spawn(|| walk("killed-at-quic", 0, Victim::Source, true, 18));
    });
}

#[test]
#[ignore = "takes long"]
fn whatever_ends_at_each_step_of_a_migration_there_is_one_of_a_program_at_most() {
    for rounds in [0, 1, 2] {
        thread::scope(|scope| {
            for victim in [Victim::Source, Victim::Target, Victim::Line] {
                scope.spawn(move || walk("killed-each", rounds, victim, false, 1));
                scope.spawn(move || walk("killed-each-quic", rounds, victim, true, 8));
            }
        });
    }
}
