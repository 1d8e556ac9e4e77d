//! `pagefork serve` as a person and a service manager use it.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use common::{assert_fails, file, pagefork};

/// How long anything may take before a test gives up: much longer than it does.
const PATIENCE: Duration = Duration::from_secs(60);

/// Guests that are built from this repository.
const GUESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../guest/built");

/// A server in a process of its own.
struct Served {
    child: Child,
    stderr: BufReader<ChildStderr>,
    address: String,
    /// Empty if there is none.
    admin: String,
}

fn start(words: &str) -> Child {
    start_in("true", words)
}

/// Starts a server in a process that the shell has changed so.
fn start_in(change: &str, words: &str) -> Child {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let script = format!("{change} && exec \"$0\" serve --addr 127.0.0.1:0 {words}");
    Command::new("bash")
        .args(["-c", &script, env!("CARGO_BIN_EXE_pagefork")])
        .current_dir(root)
        .env("XDG_CACHE_HOME", Path::new(env!("CARGO_TARGET_TMPDIR")).join("caches"))
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn serve(words: &str) -> Served {
    serve_in("true", words)
}

fn serve_in(change: &str, words: &str) -> Served {
    let mut child = start_in(change, words);
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let admin = match words.contains("--admin") {
        true => address(&line_with(&mut stderr, " info its status is at http://")),
        false => String::new(),
    };
    let address = address(&line_with(&mut stderr, "answers at http://"));
    Served { child, stderr, address, admin }
}

/// Reads lines until one contains this.
fn line_with(lines: &mut impl BufRead, wanted: &str) -> String {
    let mut all = String::new();
    loop {
        let mut line = String::new();
        let count = lines.read_line(&mut line).unwrap();
        assert_ne!(count, 0, "no {wanted:?} in {all:?}");
        if line.contains(wanted) {
            return line;
        }
        all.push_str(&line);
    }
}

/// The address in the first URL of a line.
fn address(line: &str) -> String {
    line.split("http://").nth(1).unwrap().split('/').next().unwrap().to_owned()
}

fn connect(address: &str) -> BufReader<TcpStream> {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    BufReader::new(stream)
}

/// The whole answer to a request, on a connection that is closed afterwards.
fn get(address: &str, target: &str) -> String {
    let mut stream = connect(address);
    let request = format!("GET {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    stream.get_mut().write_all(request.as_bytes()).unwrap();
    let mut all = String::new();
    stream.read_to_string(&mut all).unwrap();
    all
}

/// The body of an answer, which comes in chunks if the server sends the head before it knows how long the body will be: that
/// the program is over is known a moment after its last words.
fn body(answer: &str) -> String {
    let (head, mut rest) = answer.split_once("\r\n\r\n").unwrap();
    if !head.contains("\r\ntransfer-encoding: chunked") {
        return rest.to_owned();
    }
    let mut body = String::new();
    loop {
        let (size, chunk) = rest.split_once("\r\n").unwrap();
        let (chunk, next) = chunk.split_at(usize::from_str_radix(size, 16).unwrap());
        body.push_str(chunk);
        rest = next.strip_prefix("\r\n").unwrap();
        if chunk.is_empty() {
            return body;
        }
    }
}

fn signal(child: &Child, name: &str) {
    let pid = child.id().to_string();
    assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
}

impl Served {
    fn signal(&self, name: &str) {
        signal(&self.child, name);
    }

    fn end(mut self) -> (i32, String) {
        let mut rest = String::new();
        self.stderr.read_to_string(&mut rest).unwrap();
        (self.child.wait().unwrap().code().unwrap(), rest)
    }
}

#[test]
fn a_program_answers_until_a_signal_ends_it() {
    let log = file("access.log", "");
    let mut server = serve(&format!(
        "--admin 127.0.0.1:0 --access-log {log} --log-format json guest/built/hello_cgi.wasm"
    ));
    let admin = server.admin.clone();
    let page = get(&server.address, "/a?b");
    assert!(page.starts_with("HTTP/1.1 200 OK\r\n") && page.contains("<dd>/a</dd>"), "{page}");
    assert!(get(&admin, "/metrics").contains("pagefork_requests_total{code=\"2xx\"} 1\n"));

    // A request under way when the signal comes: its program waits for the body.
    let mut running = connect(&server.address);
    let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nab";
    running.get_mut().write_all(head.as_bytes()).unwrap();
    while !get(&admin, "/metrics").contains("pagefork_handlers_busy 1\n") {
        std::thread::sleep(Duration::from_millis(5));
    }
    server.signal("-TERM");
    line_with(&mut server.stderr, "SIGTERM: no further requests are accepted");
    running.get_mut().write_all(b"cd").unwrap();
    let mut answer = String::new();
    running.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.contains("<dd>abcd</dd>"), "{answer}");
    let (code, said) = server.end();
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("stopped after 2 requests"), "{said}");
    let lines = std::fs::read_to_string(log).unwrap();
    assert_eq!(lines.lines().count(), 2, "{lines}");
    assert!(lines.starts_with("{\"time\":\"20") && lines.contains("\"uri\":\"/a?b\""), "{lines}");
}

#[test]
fn a_program_that_was_compiled_before_is_served() {
    let image = file("hello_cgi.pfc", "");
    let ended = pagefork(&format!("compile -o {image} {GUESTS}/hello_cgi.wasm"));
    assert_eq!((ended.code, &*ended.stderr), (0, ""));
    let server = serve(&image);
    let page = get(&server.address, "/a?b");
    assert!(page.starts_with("HTTP/1.1 200 OK\r\n") && page.contains("<dd>/a</dd>"), "{page}");
    server.signal("-TERM");
    assert_eq!(server.end().0, 0);
}

/// To compile a large program takes a while; this one never gets ready.
#[test]
fn a_signal_ends_a_server_that_does_not_serve_yet() {
    let module = r#"(module (func $spin (loop $again (br $again))) (start $spin)
        (memory (export "memory") 1) (func (export "_start")))"#;
    let mut child = start(&file("never_ready.wat", module));
    let heeds = |child: &Child| {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", child.id())).unwrap();
        let mut names =
            tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")));
        names.any(|name| name.is_ok_and(|name| name == "pagefork-signal\n"))
    };
    while !heeds(&child) {
        std::thread::sleep(Duration::from_millis(5));
    }
    signal(&child, "-TERM");
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1), "{said}");
    assert!(said.ends_with("Z info SIGTERM: stopped before it served anything\n"), "{said}");
}

#[test]
fn a_second_signal_interrupts_what_runs() {
    let spins = file(
        "spins.wat",
        "(module (memory (export \"memory\") 1) (func (export \"_start\") (loop (br 0))))",
    );
    let mut server = serve(&format!("--timeout 1h --grace 1h --admin 127.0.0.1:0 {spins}"));
    let admin = server.admin.clone();
    let mut running = connect(&server.address);
    running.get_mut().write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    while !get(&admin, "/metrics").contains("pagefork_handlers_busy 1\n") {
        std::thread::sleep(Duration::from_millis(5));
    }
    server.signal("-INT");
    line_with(&mut server.stderr, "SIGINT: no further");
    server.signal("-INT");
    let mut answer = String::new();
    running.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert_eq!(server.end().0, 0);
}

#[test]
fn a_signal_ends_it_also_if_nobody_reads_what_it_says() {
    let Served { mut child, stderr, address, .. } = serve("guest/built/hello_cgi.wasm");
    drop(stderr);
    assert!(get(&address, "/").starts_with("HTTP/1.1 200 OK\r\n"));
    signal(&child, "-TERM");
    let begun = Instant::now();
    let code = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status.code(),
            None if begun.elapsed() > PATIENCE => {
                child.kill().unwrap();
                panic!("it goes on");
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    assert_eq!(code, Some(0));
}

#[test]
fn options_reach_programs_and_limits_hold() {
    let server = serve("--body-max 10B --timeout 30s guest/built/form_cgi.wasm");
    assert_eq!(body(&get(&server.address, "/?a=b")), "a: b\n");
    let mut stream = connect(&server.address);
    let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\n";
    stream.get_mut().write_all(head.as_bytes()).unwrap();
    let mut line = String::new();
    stream.read_line(&mut line).unwrap();
    assert!(line.starts_with("HTTP/1.1 413 "), "{line}");
    server.signal("-TERM");
    assert_eq!(server.end().0, 0);
}

#[test]
fn what_cannot_be_served_is_explained() {
    let server = serve("guest/built/hello_cgi.wasm");
    let taken = &server.address;
    let hello = "guest/built/hello_cgi.wasm";
    assert_fails(
        &format!("serve --addr {taken} {hello}"),
        1,
        &["cannot listen at", "another port"],
    );
    assert_fails(&format!("serve --addr 192.0.2.1:80 {hello}"), 1, &["an address of this machine"]);
    assert_fails("serve guest/built/kernels.wasm", 1, &["no function `_start`", "wasm32-wasip1"]);
    assert_fails("serve nothing.wasm", 1, &["there is no file nothing.wasm"]);
    assert_fails(
        &format!("serve --memory-max 64KiB {hello}"),
        1,
        &["may have 65536", "allow more"],
    );
    assert_fails(
        &format!("serve --access-log /nowhere/x {hello}"),
        1,
        &["/nowhere/x", "directory"],
    );
    assert_fails("serve --addr 8080 x", 2, &["--addr"]);
    server.signal("-TERM");
    assert_eq!(server.end().0, 0);
}

#[test]
fn a_hangup_reopens_the_logs() {
    let (log, access) = (file("hangup.log", ""), file("hangup.access", ""));
    let hello = "guest/built/hello_cgi.wasm";
    let words =
        format!("--body-max 1B --keep-request-id --log {log} --access-log {access} {hello}");
    let mut server = serve(&words);
    let refuse = |id: &str| {
        let mut client = connect(&server.address);
        let head = format!("X-Request-Id: {id}\r\nConnection: close\r\nContent-Length: 9\r\n\r\n");
        let head = format!("POST / HTTP/1.1\r\nHost: a\r\n{head}");
        client.get_mut().write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        client.read_line(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    };
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let until_all_have = |id: &str| {
        let begun = Instant::now();
        while ![&log, &access].iter().all(|path| read(path).contains(id)) {
            assert!(begun.elapsed() < PATIENCE, "{id} is not in the logs");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    refuse("first");
    until_all_have("first");
    for path in [&log, &access] {
        std::fs::rename(path, format!("{path}.1")).unwrap();
    }
    signal(&server.child, "-HUP");
    line_with(&mut server.stderr, "SIGHUP: the logs are reopened");
    refuse("second");
    until_all_have("second");
    for path in [&log, &access] {
        assert!(!read(path).contains("first") && !read(&format!("{path}.1")).contains("second"));
    }
    server.signal("-TERM");
    assert_eq!(server.end().0, 0);
}

#[test]
fn the_limit_of_descriptors_is_raised() {
    let change = "ulimit -S -n 300 && ulimit -H -n 1000";
    let server = serve_in(change, "guest/built/hello_cgi.wasm");
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.child.id())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert_eq!(line.split_whitespace().nth(3), Some("1000"), "{line}");
    server.signal("-TERM");
    assert_eq!(server.end().0, 0);
}

#[test]
fn the_admin_address_answers_when_clients_have_all_other_descriptors() {
    let change = "ulimit -n 100";
    let mut server = serve_in(change, "--admin 127.0.0.1:0 guest/built/hello_cgi.wasm");
    let clients: Vec<_> = (0..200).map(|_| connect(&server.address)).collect();
    line_with(&mut server.stderr, "cannot accept connections for now");
    for _ in 0..20 {
        let metrics = get(&server.admin, "/metrics");
        assert!(metrics.starts_with("HTTP/1.1 200 OK"), "{metrics}");
        let resident =
            metrics.lines().find_map(|line| line.strip_prefix("pagefork_resident_bytes "));
        assert_ne!(resident, Some("0"), "what it reads needs no descriptor either");
    }
    assert!(get(&server.admin, "/readyz").starts_with("HTTP/1.1 200 OK"));
    drop(clients);
    assert!(get(&server.address, "/").starts_with("HTTP/1.1 200 OK"), "and then all is well");
    server.signal("-TERM");
    let (code, said) = server.end();
    assert_eq!(code, 0);
    assert!(!said.contains("cannot accept"), "it is not said over and over: {said}");
}

#[test]
fn the_admin_address_answers_while_the_program_is_not_ready() {
    let module = r#"(module (func $spin (loop $again (br $again))) (start $spin)
        (memory (export "memory") 1) (func (export "_start")))"#;
    let mut child = start(&format!("--admin 127.0.0.1:0 {}", file("not_ready_yet.wat", module)));
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let admin = address(&line_with(&mut stderr, "its status is at"));
    assert!(get(&admin, "/healthz").starts_with("HTTP/1.1 200 OK"));
    let ready = get(&admin, "/readyz");
    assert!(ready.starts_with("HTTP/1.1 503 ") && ready.ends_with("starting\n"), "{ready}");
    signal(&child, "-HUP");
    line_with(&mut stderr, "SIGHUP: the logs are reopened");
    signal(&child, "-TERM");
    line_with(&mut stderr, "SIGTERM: stopped before it served anything");
    assert_eq!(child.wait().unwrap().code(), Some(1));
}

/// Has a head ready, counts how often it was started, and echoes what it reads.
const ECHO: &str = r#"(module
    (import "wasi_snapshot_preview1" "fd_read"
        (func $read (param i32 i32 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "fd_write"
        (func $write (param i32 i32 i32 i32) (result i32)))
    (memory (export "memory") 1)
    (data (i32.const 0) "\00\01\00\00\00\10\00\00")
    (data (i32.const 64) "Content-Type: text/plain\0a\0a")
    (func $print (param i32 i32)
        (i32.store (i32.const 32) (local.get 0))
        (i32.store (i32.const 36) (local.get 1))
        (drop (call $write (i32.const 1) (i32.const 32) (i32.const 1) (i32.const 40))))
    (func (export "_start")
        (call $print (i32.const 64) (i32.const 26))
        (loop $more
            (drop (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)))
            (if (i32.load (i32.const 8)) (then
                (call $print (i32.const 256) (i32.load (i32.const 8)))
                (br $more))))))"#;

#[test]
fn a_started_program_finds_each_request_on_standard_input() {
    let echo = file("warm_echo.wat", ECHO);
    let server =
        serve(&format!("--warm --env MODE=warm --env SERVER_PORT=1 --admin 127.0.0.1:0 {echo}"));
    for round in 0..3 {
        let answer = get(&server.address, &format!("/a%20b?{round}"));
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        let body = body(&answer);
        let (size, rest) = body.split_once(':').unwrap();
        let (head, end) = rest.split_at(size.parse().unwrap());
        assert_eq!(end, ",", "there is no body");
        assert!(head.starts_with("CONTENT_LENGTH\x000\0SCGI\x001\0"), "{head:?}");
        let words: Vec<&str> = head.split('\0').collect();
        let value = |name: &str| {
            words.chunks(2).find(|pair| pair[0] == name).map(|pair| pair[1].to_owned())
        };
        assert_eq!(value("PATH_INFO").as_deref(), Some("/a b"));
        assert_eq!(value("QUERY_STRING"), Some(round.to_string()));
        assert_eq!(value("SERVER_PORT"), None, "what was set stays in the environment");
    }
    let mut stream = connect(&server.address);
    let request =
        "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello";
    stream.get_mut().write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let said = body(&answer);
    assert!(said.contains("CONTENT_LENGTH\x005\0") && said.ends_with(",hello"), "{answer:?}");
    let status = get(&server.admin, "/status.json");
    assert!(
        status.contains("(asked for: auto)") && !status.contains("\"growth\":null"),
        "{status}"
    );
    server.signal("-TERM");
    assert_eq!(server.end().0, 0);
}

/// Programs that use the helpers for guests answer whatever comes, started warm or not.
#[test]
fn programs_in_c_rust_and_go_answer_warm_and_fresh() {
    let fetched = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("guests");
    let fetched = std::env::var_os("PAGEFORK_GUESTS").map_or(fetched, Into::into);
    let go = fetched.join("primes.wasm");
    let mut programs = vec![format!("{GUESTS}/primes.wasm"), format!("{GUESTS}/sieve.wasm")];
    if go.exists() {
        programs.push(go.display().to_string());
    } else {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "run `cargo xtask guests`");
    }
    for program in programs {
        for (warm, mode) in [("--warm", "warm"), ("", "fresh")] {
            let server = serve(&format!("{warm} --env MODE={mode} {program}"));
            let check = |answer: &str, lines: [&str; 6]| {
                assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{program} {mode}: {answer}");
                let mode = format!("mode: {mode}");
                let said = body(answer);
                for line in lines.into_iter().chain([&*mode, "scgi: none", "answered: 1"]) {
                    assert!(said.contains(&format!("{line}\n")), "{program}, {line}: {answer}");
                }
            };
            for _ in 0..3 {
                let lines = ["method: GET", "path: /25", "query: a=b", "body: 0 bytes, sum 0"];
                let [method, path, query, body] = lines;
                let answer = get(&server.address, "/25?a=b");
                check(&answer, [method, path, query, body, "prime: 97 of 78498", "query: a=b"]);
            }
            let small = ("Content-Length: 3\r\n\r\nabc".to_owned(), "length: 3", 3, 294);
            let mut posts = vec![small];
            // Programs that are not forked read no more than a size that they are told.
            if mode == "warm" {
                // More than the server takes before it hands the request over.
                let large = "a".repeat(4 << 20);
                let chunks = format!("1\r\nb\r\n{:x}\r\n{large}\r\n0\r\n\r\n", large.len());
                let (size, sum) = (large.len() + 1, large.len() * 97 + 98);
                let chunked = format!("Transfer-Encoding: chunked\r\n\r\n{chunks}");
                posts.push((chunked, "length: none", size, sum));
            }
            for (post, length, size, sum) in posts {
                let mut stream = connect(&server.address);
                let head = "POST /78498 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n";
                stream.get_mut().write_all(format!("{head}{post}").as_bytes()).unwrap();
                let mut answer = String::new();
                stream.read_to_string(&mut answer).unwrap();
                let body = format!("body: {size} bytes, sum {sum}");
                let prime = "prime: 999983 of 78498";
                check(&answer, ["method: POST", "path: /78498", "query: ", length, &body, prime]);
            }
            server.signal("-TERM");
            assert_eq!(server.end().0, 0);
        }
    }
}

#[test]
fn a_program_that_never_reads_cannot_be_started_warm() {
    let ends = r#"(module (memory (export "memory") 1) (func (export "_start")))"#;
    let ends = file("warm_ends.wat", ends);
    assert_fails(
        &format!("serve --warm --addr 127.0.0.1:0 {ends}"),
        1,
        &["exit code 0 before it read its standard input"],
    );
}

#[test]
fn each_request_has_a_fresh_instance_by_each_strategy() {
    // It says how often it has run, and what it finds where its memory grows.
    let module = file(
        "served_by_strategy.wat",
        r#"(module
            (import "wasi_snapshot_preview1" "fd_write"
                (func $fd_write (param i32 i32 i32 i32) (result i32)))
            (memory (export "memory") 1)
            (data (i32.const 0) "\10\00\00\00\1c\00\00\00")
            (data (i32.const 16) "Content-Type: text/plain\0a\0a00")
            (func $count (param $digit i32) (param $seen i32)
                (i32.store8 (local.get $digit)
                    (i32.add (i32.load8_u (local.get $digit)) (i32.load8_u (local.get $seen))))
                (i32.store8 (local.get $seen) (i32.const 1)))
            (func (export "_start")
                (drop (memory.grow (i32.const 2)))
                (call $count (i32.const 42) (i32.const 1000))
                (call $count (i32.const 43) (i32.const 196607))
                (drop (call $fd_write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))))"#,
    );
    let resets = ["auto", "remap", "discard", "scan", "resident", "protect", "copy", "fault"];
    let growths = ["auto", "mprotect", "kept", "checked", "checked=64KiB", "ftruncate", "fault"];
    let options = resets.map(|reset| format!("--reset {reset}")).into_iter();
    for options in options.chain(growths.map(|growth| format!("--growth {growth}"))) {
        let server = serve(&format!("--concurrency 1 {options} {module}"));
        for _ in 0..4 {
            let answer = get(&server.address, "/");
            assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{options}: {answer}");
            assert_eq!(body(&answer), "00", "{options}: {answer}");
        }
        server.signal("-TERM");
        assert_eq!(server.end().0, 0);
    }
}

#[test]
fn a_strategy_that_cannot_be_had_is_a_warning() {
    let mut child = start_in("export PAGEFORK_COW=0", "--reset scan guest/built/hello_cgi.wasm");
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let said = line_with(&mut stderr, " warning instances are reset by copy (asked for: scan)");
    assert!(said.ends_with("copy-on-write is switched off\n"), "{said}");
    line_with(&mut stderr, "answers at http://");
    signal(&child, "-TERM");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
