//! The log, the access log, and what becomes of them.

mod common;

use std::io::{ErrorKind, Write};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::handlers::hello;
use common::{By, Log, PLAIN, Served, knows, serve, serve_program, until, writes};
use http::{HeaderMap, StatusCode};
use pagefork_serve::{AccessFormat, Failure, FailureKind, LogOutput, Request, ResponseWriter};

/// The records about a request.
fn records(server: &Served, id: &str) -> Vec<String> {
    let text = server.log.text();
    text.lines().filter(|line| line.contains(&format!("[{id}]"))).map(str::to_owned).collect()
}

/// Asks with an id of its own; waits until the request is over.
fn ask(server: &Served, id: &str, target: &str) -> u16 {
    let mut client = server.connect();
    client.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\nX-Request-Id: {id}\r\n\r\n"));
    let status = client.answer().status;
    server.wait_for_metric("pagefork_requests_in_flight", 0.0);
    status
}

#[track_caller]
fn assert_one_record(server: &Served, id: &str, severity: &str, kind: &str) {
    until("the record", || !records(server, id).is_empty());
    server.wait_for_metric("pagefork_handlers_busy", 0.0);
    let records = records(server, id);
    assert_eq!(records.len(), 1, "{records:?}");
    let (time, rest) = records[0].split_once(' ').unwrap();
    assert!(time.len() == 24 && time.starts_with("20") && time.ends_with('Z'), "{time}");
    assert!(rest.starts_with(&format!("{severity} [{id}] {kind}: ")), "{rest}");
    let counter = format!("pagefork_failures_total{{kind=\"{kind}\"}}");
    assert_eq!(server.metric(&counter), 1.0);
}

#[test]
fn a_failure_of_a_program_is_one_record() {
    for (id, program, severity, kind, status) in [
        ("a", knows("", "unreachable"), "error", "trap", 500),
        ("b", knows("", ""), "error", "no_response", 502),
        ("c", writes("Content-Length: 1\n\nab", ""), "error", "bad_response", 502),
        ("d", knows("", "(loop (br 0))"), "error", "timeout", 504),
    ] {
        let timeout = if id == "d" { Duration::from_millis(50) } else { Duration::from_secs(60) };
        let server = serve_program(program, |config| config.timeout = timeout);
        assert_eq!(ask(&server, id, "/"), status, "{}", server.log.text());
        assert_one_record(&server, id, severity, kind);
    }
}

#[test]
fn names_of_functions_are_one_line_and_command_nothing() {
    let text = knows("", "(call $f)").replace(
        "(func (export \"_start\")",
        "(func $f (@name \"two\\0alines\\1b[31m\\c2\\9b1m\") unreachable) (func (export \"_start\")",
    );
    let server = serve_program(text, |_| {});
    assert_eq!(ask(&server, "x", "/"), 500);
    assert_one_record(&server, "x", "error", "trap");
    let log = server.log.text();
    assert!(log.contains("lines") && log.contains("unreachable"), "{log}");
    let mangled = knows("", "(call $f)").replace(
        "(func (export \"_start\")",
        "(func $f (@name \"_ZN4core9panicking5panic17h0123456789abcdefE\") unreachable)
        (func (export \"_start\")",
    );
    let rust = serve_program(mangled, |_| {});
    assert_eq!(ask(&rust, "y", "/"), 500);
    assert!(rust.log.text().contains("!core::panicking::panic (function"), "{}", rust.log.text());
    let unfit = |c: char| c.is_control() && c != '\n';
    assert!(!log.contains(unfit) && log.lines().count() == 1, "{log:?}");
}

#[test]
fn a_response_that_breaks_off_is_one_record_and_marked() {
    let served = |timeout| {
        let program = By(|mut request: Request, response: &ResponseWriter| {
            let mut headers = HeaderMap::new();
            if request.head.uri.path() == "/short" {
                headers.insert("content-length", "100".parse().unwrap());
            }
            response.start(StatusCode::OK, headers);
            let _ = response.write(b"beginning");
            response.flush();
            // Which comes when the client has the head.
            let _ = std::io::Read::read(&mut request.body, &mut [0]);
            match request.head.uri.path() {
                "/fails" => Err(Failure::new(FailureKind::Trap, "two\nlines")),
                "/late" => {
                    while !response.is_given_up() {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    Ok(())
                }
                _ => Ok(()),
            }
        });
        serve(program, |config| config.timeout = timeout)
    };
    let (patient, hasty) = (served(Duration::from_secs(60)), served(Duration::from_millis(100)));
    for (server, id, target, kind) in [
        (&patient, "a", "/fails", "trap"),
        (&patient, "b", "/short", "bad_response"),
        (&hasty, "c", "/late", "timeout"),
    ] {
        let mut client = server.connect();
        client.send(format!(
            "POST {target} HTTP/1.1\r\nHost: a\r\nX-Request-Id: {id}\r\nContent-Length: 1\r\n\r\n"
        ));
        client.head();
        client.send("x");
        let mut rest = Vec::new();
        let _ = std::io::Read::read_to_end(&mut client.stream, &mut rest);
        assert_one_record(server, id, "error", kind);
        assert!(records(server, id)[0].contains("after 9 bytes of the body"));
        let mark = format!(" {id} broken:{kind}\n");
        until("the mark", || server.access.text().contains(&mark));
    }
    // A client that leaves in the middle.
    let server = patient;
    let mut client = server.connect();
    client.send("POST /late HTTP/1.1\r\nHost: a\r\nX-Request-Id: d\r\nContent-Length: 1\r\n\r\nx");
    client.head();
    drop(client);
    until("the mark", || server.access.text().contains(" d broken:client_gone\n"));
    assert_one_record(&server, "d", "info", "client_gone");
}

#[test]
fn json_marks_broken_responses_too() {
    let access = Log::default();
    let server = serve(
        By(|mut request: Request, response: &ResponseWriter| {
            if request.head.method == "POST" {
                response.start(StatusCode::OK, HeaderMap::new());
                let _ = response.write(b"x");
                response.flush();
                let _ = std::io::Read::read(&mut request.body, &mut [0]);
            }
            Err(Failure::new(FailureKind::Trap, "it traps"))
        }),
        |config| {
            config.access_log(AccessFormat::Json, Box::new(access.clone()));
        },
    );
    let mut client = server.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n");
    client.head();
    client.send("x");
    until("the line", || access.text().contains("\"failure\":\"trap\",\"broken\":true}\n"));
    assert_eq!(ask(&server, "b", "/"), 500);
    let end = "\"id\":\"b\",\"failure\":\"trap\",\"broken\":false}\n";
    until("the line", || access.text().contains(end));
}

/// A failure after all of a response was sent is no less one.
#[test]
fn a_handler_that_fails_after_its_response_is_one_record() {
    let server = serve(
        By(|_, response: &ResponseWriter| {
            let mut headers = HeaderMap::new();
            headers.insert("content-length", "2".parse().unwrap());
            response.start(StatusCode::OK, headers);
            let _ = response.write(b"ab");
            response.flush();
            std::thread::sleep(Duration::from_millis(20));
            Err(Failure::new(FailureKind::Trap, "late"))
        }),
        |_| {},
    );
    assert_eq!(ask(&server, "a", "/"), 200);
    assert_one_record(&server, "a", "error", "trap");
    until("the line", || server.access.text().contains(" a -\n"));
}

/// An output that fails as its test says.
#[derive(Clone, Default)]
struct Disk {
    state: Arc<AtomicU8>,
    written: Arc<Mutex<Vec<u8>>>,
}

impl Disk {
    const WELL: u8 = 0;
    const FULL: u8 = 1;
    const BROKEN: u8 = 2;

    fn lines(&self) -> usize {
        self.written.lock().unwrap().iter().filter(|byte| **byte == b'\n').count()
    }
}

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self.state.load(Ordering::SeqCst) {
            Disk::WELL => self.written.lock().unwrap().write(bytes),
            Disk::FULL => Err(ErrorKind::StorageFull.into()),
            _ => Err(ErrorKind::PermissionDenied.into()),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn an_access_log_that_cannot_be_written_is_said_once_and_loses_nothing_at_once() {
    let disk = Disk::default();
    let server = serve(By(hello), |config| {
        config.access_log(AccessFormat::Common, Box::new(disk.clone()));
    });
    let said = || server.log.text().lines().filter(|line| line.contains("access log")).count();
    server.get("/");
    until("the line", || disk.lines() == 1);
    assert_eq!(said(), 0);
    for (state, times) in [(Disk::FULL, 1), (Disk::BROKEN, 2)] {
        disk.state.store(state, Ordering::SeqCst);
        for _ in 0..5 {
            server.get("/");
        }
        until("the record", || said() == times);
    }
    assert!(server.log.text().contains(" error the access log cannot be written: "));
    disk.state.store(Disk::WELL, Ordering::SeqCst);
    until("the lines", || disk.lines() == 11);
    until("the record", || said() == 3);
    assert!(server.log.text().contains("written again; 0 lines are lost"));
}

#[test]
fn reopened_logs_go_on_in_new_files() {
    let directory = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (log, access) = (directory.join("reopened.log"), directory.join("reopened.access"));
    let old = |path: &std::path::Path| path.with_extension("old");
    for path in [&log, &access] {
        let _ = std::fs::remove_file(path);
    }
    let fails = |_: Request, _: &ResponseWriter| Err(Failure::new(FailureKind::Trap, "fails"));
    let server = serve(By(fails), |config| {
        config.log(LogOutput::file(&log).unwrap());
        config.access_log(AccessFormat::Common, LogOutput::file(&access).unwrap());
    });
    let read = |path: &std::path::Path| std::fs::read_to_string(path).unwrap_or_default();
    for (id, times) in [("first", 1), ("second", 2)] {
        if times == 2 {
            for path in [&log, &access] {
                std::fs::rename(path, old(path)).unwrap();
            }
            server.log_handle().reopen();
        }
        assert_eq!(ask(&server, id, "/"), 500);
        until("the line", || read(&access).contains(&format!(" {id} trap\n")));
        assert!(read(&log).contains(&format!("[{id}] trap: fails")));
    }
    for path in [&log, &access] {
        assert!(read(&old(path)).contains("first") && !read(&old(path)).contains("second"));
        assert!(read(path).contains("second") && !read(path).contains("first"));
    }
    // One that cannot be opened goes on where it was.
    std::fs::remove_file(&access).unwrap();
    std::fs::create_dir_all(&access).unwrap();
    server.log_handle().reopen();
    until("the record", || read(&log).contains("the access log goes on in its old file"));
    std::fs::remove_dir(&access).unwrap();
}

#[test]
fn the_ids_that_requests_bring_are_kept_only_if_that_is_asked_for() {
    let server = serve(By(hello), |config| config.keep_request_ids = false);
    let mut client = server.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\nX-Request-Id: mine\r\n\r\n");
    let id = client.answer().field("x-request-id").unwrap().to_owned();
    assert!(id.len() == 16 && id != "mine", "{id}");
    let server = serve_program(writes(PLAIN, common::ENVIRONMENT), |config| {
        config.keep_request_ids = true;
    });
    let mut client = server.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\nX-Request-Id: mine\r\n\r\n");
    let answer = client.answer();
    assert_eq!(answer.field("x-request-id"), Some("mine"));
    assert!(answer.text().contains("HTTP_X_REQUEST_ID=mine\0"), "{}", answer.text());
}
