//! Nodes with images, and lines between them that carry no more than they may.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use super::users::{Serving, User};
use super::{Ended, file};

/// What both programs have: `$print` prints bytes, `$read` reads up to 1,024 to address 256.
pub(crate) const BEGINNING: &str = r#"
    (import "wasi_snapshot_preview1" "fd_read"
        (func $fd_read (param i32 i32 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "fd_write"
        (func $fd_write (param i32 i32 i32 i32) (result i32)))
    (memory (export "memory") 260)
    (data (i32.const 0) "\00\01\00\00\00\04\00\00")
    (data (i32.const 16) "ready\0a")
    (func $read (drop (call $fd_read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8))))
    (func $print (param i32 i32)
        (i32.store (i32.const 32) (local.get 0))
        (i32.store (i32.const 36) (local.get 1))
        (drop (call $fd_write (i32.const 1) (i32.const 32) (i32.const 1) (i32.const 40))))"#;

/// The file of a program.
pub(crate) fn program(name: &str, rest: &str) -> String {
    file(name, format!("(module {BEGINNING}{rest})"))
}

/// Fills 16 MiB with bytes that nothing compresses, says that it is ready, reads a line, and prints the
/// sum of all words.
pub(crate) const SUMMER: &str = r#"
    (func $fill (local $at i32) (local $word i64)
        (local.set $at (i32.const 65536))
        (local.set $word (i64.const 88172645463325252))
        (loop $again
            (local.set $word (i64.xor (local.get $word) (i64.shl (local.get $word) (i64.const 13))))
            (local.set $word (i64.xor (local.get $word) (i64.shr_u (local.get $word) (i64.const 7))))
            (local.set $word (i64.xor (local.get $word) (i64.shl (local.get $word) (i64.const 17))))
            (i64.store (local.get $at) (local.get $word))
            (local.set $at (i32.add (local.get $at) (i32.const 8)))
            (br_if $again (i32.lt_u (local.get $at) (i32.const 16842752)))))
    (func $sum (result i64) (local $at i32) (local $sum i64)
        (local.set $at (i32.const 65536))
        (loop $again
            (local.set $sum (i64.add (local.get $sum) (i64.load (local.get $at))))
            (local.set $at (i32.add (local.get $at) (i32.const 8)))
            (br_if $again (i32.lt_u (local.get $at) (i32.const 16842752))))
        (local.get $sum))
    (func $print_number (param $number i64) (local $at i32)
        (local.set $at (i32.const 200))
        (i32.store8 (i32.const 200) (i32.const 10))
        (loop $again
            (local.set $at (i32.sub (local.get $at) (i32.const 1)))
            (i32.store8 (local.get $at) (i32.add (i32.const 48)
                (i32.wrap_i64 (i64.rem_u (local.get $number) (i64.const 10)))))
            (local.set $number (i64.div_u (local.get $number) (i64.const 10)))
            (br_if $again (i64.ne (local.get $number) (i64.const 0))))
        (call $print (local.get $at) (i32.sub (i32.const 201) (local.get $at))))
    (func (export "_start")
        (call $fill)
        (call $read)
        (call $print (i32.const 16) (i32.const 6))
        (call $read)
        (call $print_number (call $sum)))"#;

/// What it prints, by the same steps.
pub(crate) fn sum_of_words() -> String {
    let (mut word, mut sum) = (88172645463325252_u64, 0_u64);
    for _ in 0..(16 << 20) / 8 {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        sum = sum.wrapping_add(word);
    }
    format!("{sum}\n")
}

/// Stands between two nodes, and passes no more than it may of what the first one gives.
pub(crate) struct Relay {
    pub(crate) address: String,
    pub(crate) given: Arc<Given>,
}

#[derive(Default)]
pub(crate) struct Given {
    pub(crate) bytes: AtomicU64,
    /// Bytes that may pass, and whether the line is cut.
    limits: Mutex<(u64, bool)>,
    changed: Condvar,
}

impl Relay {
    pub(crate) fn new(to: &str, limit: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let given = Arc::new(Given { limits: Mutex::new((limit, false)), ..Given::default() });
        let (to, shared) = (to.to_owned(), Arc::clone(&given));
        thread::spawn(move || {
            for socket in listener.incoming() {
                let socket = socket.unwrap();
                if shared.limits.lock().unwrap().1 {
                    continue;
                }
                let Ok(node) = TcpStream::connect(&to) else { continue };
                // What is small is not to wait for what was before.
                socket.set_nodelay(true).and_then(|()| node.set_nodelay(true)).unwrap();
                let (mut asked, mut asks) =
                    (node.try_clone().unwrap(), socket.try_clone().unwrap());
                thread::spawn(move || {
                    let _ = std::io::copy(&mut asks, &mut asked);
                    let _ = asked.shutdown(Shutdown::Write);
                });
                let shared = Arc::clone(&shared);
                thread::spawn(move || shared.pass(node, socket));
            }
        });
        Self { address, given }
    }

    pub(crate) fn limit(&self, limit: u64) {
        self.given.limits.lock().unwrap().0 = limit;
        self.given.changed.notify_all();
    }

    pub(crate) fn cut(&self) {
        self.given.limits.lock().unwrap().1 = true;
        self.given.changed.notify_all();
    }
}

impl Given {
    fn pass(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut block = [0; 16 << 10];
        loop {
            let mut limits = self.limits.lock().unwrap();
            while !limits.1 && self.bytes.load(Ordering::Relaxed) >= limits.0 {
                limits = self.changed.wait(limits).unwrap();
            }
            if limits.1 {
                let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
                return;
            }
            drop(limits);
            let Ok(count @ 1..) = from.read(&mut block) else { break };
            self.bytes.fetch_add(count as u64, Ordering::Relaxed);
            if to.write_all(&block[..count]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
    }
}

/// A program whose standard streams are held.
pub(crate) struct Started {
    pub(crate) child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Started {
    pub(crate) fn new(user: &User, words: &str) -> Self {
        Self::of(Command::new(super::command()), user, words)
    }

    /// Of a command that goes before, as `confined` makes one.
    pub(crate) fn of(mut command: Command, user: &User, words: &str) -> Self {
        let words = words.replace("STORE", &user.store.display().to_string());
        let mut child = command
            .args(words.split_whitespace())
            .env("XDG_CONFIG_HOME", &user.config)
            .env("TMPDIR", &user.config)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the command starts");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, output }
    }

    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("text");
        line
    }

    /// Gives it a line, and all else that it writes and how it ends.
    pub(crate) fn finish(mut self, line: &str) -> Ended {
        self.child.stdin.take().expect("a pipe").write_all(line.as_bytes()).expect("it reads");
        let (mut stdout, mut stderr) = (String::new(), String::new());
        self.output.read_to_string(&mut stdout).expect("text");
        self.child.stderr.take().expect("a pipe").read_to_string(&mut stderr).expect("text");
        let code = self.child.wait().expect("it ends").code().unwrap_or(-1);
        Ended { code, stdout, stderr }
    }
}

/// What runs another command as it would run elsewhere: the path of that follows.
pub(crate) fn confined_other(how: &str) -> Command {
    let mut command = Command::new("python3");
    // The file is not where every user can read it.
    command.args(["-c", include_str!("confined.py"), how]);
    command
}

/// The command as it would run elsewhere.
pub(crate) fn confined(how: &str) -> Command {
    let mut command = confined_other(how);
    command.arg(super::command());
    command
}

/// A node with the image `big`, another one, and what lies between them.
pub(crate) fn two_nodes(name: &str, limit: u64) -> (User, User, Serving, Relay) {
    two_nodes_of(name, SUMMER, limit)
}

/// The same, of which the image is of this program.
pub(crate) fn two_nodes_of(name: &str, rest: &str, limit: u64) -> (User, User, Serving, Relay) {
    let (maker, runner) =
        (User::new(&format!("{name}-maker")), User::new(&format!("{name}-runner")));
    let module = program(&format!("nodes-{name}.wat"), rest);
    maker.does(&format!("snapshot --store STORE -o big {module}"));
    let serving = maker.serve();
    let relay = Relay::new(&serving.address, limit);
    maker.does(&format!("node trust runner {} --serve", runner.node_key));
    let (key, address, signer) = (&maker.node_key, &relay.address, &maker.image_key);
    runner.does(&format!("node trust maker {key} --address {address} --signer {signer}"));
    (maker, runner, serving, relay)
}
