//! Programs and libraries as the command runs them: servers on sockets that
//! are passed in, and reactors.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// Accepts a connection on descriptor 3, and sends back what it receives until
/// the other end is done. Its exit code is 0 if all went well.
const ECHO: &str = r#"(module
    (import "wasi_snapshot_preview1" "sock_accept"
        (func $accept (param i32 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "fd_read"
        (func $read (param i32 i32 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "sock_send"
        (func $send (param i32 i32 i32 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
    (memory (export "memory") 1)
    (func $check (param $error i32)
        (if (local.get $error) (then (call $exit (local.get $error)))))
    (func (export "_start")
        (call $check (call $accept (i32.const 3) (i32.const 0) (i32.const 8)))
        (loop $again
            ;; An iovec at 16: 1024 bytes at 1024.
            (i32.store (i32.const 16) (i32.const 1024))
            (i32.store (i32.const 20) (i32.const 1024))
            (call $check (call $read
                (i32.load (i32.const 8)) (i32.const 16) (i32.const 1) (i32.const 20)))
            (if (i32.load (i32.const 20))
                (then
                    (call $check (call $send
                        (i32.load (i32.const 8)) (i32.const 16) (i32.const 1)
                        (i32.const 0) (i32.const 24)))
                    (br $again))))))"#;

fn file(name: &str, text: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, text).expect("the directory can be written");
    path
}

/// Sends a line and returns what comes back until the end.
fn echo(mut stream: TcpStream) -> String {
    stream.write_all(b"hello there\n").expect("the program receives");
    stream.shutdown(Shutdown::Write).expect("it is connected");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("the program sends text");
    text
}

#[test]
fn a_server_accepts_where_the_command_listens() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_pagefork"))
        .args(["run", "--tcplisten", "127.0.0.1:0"])
        .arg(file("echo.wat", ECHO))
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts");
    let mut stderr = BufReader::new(child.stderr.take().expect("a pipe"));
    let mut line = String::new();
    stderr.read_line(&mut line).expect("text");
    let address = line.trim().strip_prefix("pagefork: listening on ").expect("its address");
    assert_eq!(echo(TcpStream::connect(address).expect("it listens")), "hello there\n");
    assert!(child.wait().expect("it ends").success());
}

#[test]
fn a_server_accepts_on_a_socket_that_was_passed_on() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    // As systemd does it: the socket is descriptor 3.
    let child = Command::new("sh")
        .args(["-c", r#"exec 3<&0; LISTEN_FDS=1 exec "$@""#, "sh"])
        .args([env!("CARGO_BIN_EXE_pagefork"), "run", "--listenfd"])
        .arg(file("echo-passed-on.wat", ECHO))
        .stdin(Stdio::from(OwnedFd::from(listener)))
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts");
    let text = TcpStream::connect(address).map(echo);
    let ended = child.wait_with_output().expect("it ends");
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{errors}");
    assert_eq!(text.expect("it listens"), "hello there\n");
}

#[test]
fn sockets_that_cannot_be_had_are_explained() {
    let echo = file("echo-nowhere.wat", ECHO);
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("it is bound").to_string();
    let run = |options: &[&str]| {
        let ended = pagefork(options, &echo);
        assert_eq!(ended.status.code(), Some(1));
        String::from_utf8(ended.stderr).expect("text")
    };
    assert!(run(&["--listenfd"]).contains("LISTEN_FDS"));
    assert!(run(&["--tcplisten", "nowhere"]).contains("HOST:PORT"));
    assert!(run(&["--tcplisten", &address]).contains(&address));
}

fn pagefork(options: &[&str], file: &PathBuf) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pagefork"))
        .arg("run")
        .args(options)
        .arg(file)
        .env_remove("LISTEN_FDS")
        .stdin(Stdio::null())
        .output()
        .expect("the command starts")
}

/// Counts the calls of `_initialize` as 10 and those of `_start` as 1.
fn counting(exports: &str) -> String {
    format!(
        r#"(module
            (global $calls (mut i32) (i32.const 0))
            (func $start (global.set $calls (i32.add (global.get $calls) (i32.const 1))))
            (func $initialize (global.set $calls (i32.add (global.get $calls) (i32.const 10))))
            (func (export "calls") (result i32) (global.get $calls))
            {exports})"#
    )
}

#[test]
fn a_reactor_is_initialized_before_its_function_is_called() {
    let initialize = r#"(export "_initialize" (func $initialize))"#;
    let start = r#"(export "_start" (func $start))"#;
    for (name, exports, printed) in
        [("reactor", initialize, "10\n"), ("command", start, "0\n"), ("plain", "", "0\n")]
    {
        let path = file(&format!("{name}.wat"), &counting(exports));
        let ended = pagefork(&["--invoke", "calls"], &path);
        assert_eq!(String::from_utf8_lossy(&ended.stderr), "", "{name}");
        assert_eq!(String::from_utf8_lossy(&ended.stdout), printed, "{name}");
    }
    // Without a function to call there is nothing to run.
    let ended = pagefork(&[], &file("reactor-alone.wat", &counting(initialize)));
    assert_eq!(ended.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&ended.stderr).contains("--invoke"));
    let both = file("both.wat", &counting(&format!("{initialize} {start}")));
    let ended = pagefork(&[], &both);
    assert_eq!(ended.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&ended.stderr).contains("both"));
}
