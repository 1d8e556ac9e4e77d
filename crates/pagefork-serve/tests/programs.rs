//! Programs in WebAssembly: what they are told, what they answer, and what
//! becomes of those that go wrong.

mod common;

use std::time::Duration;

use common::{
    ECHO, ENVIRONMENT, PATIENCE, PLAIN, knows, program, serve, serve_program, started_by,
    try_program, until, writes,
};
use pagefork_serve::cgi::VariableOptions;
use pagefork_serve::{CgiProgramError, ProgramOptions};
use pagefork_wasi::WasiCtxBuilder;

#[test]
fn each_request_has_a_fresh_instance() {
    let counts = writes(
        PLAIN,
        r#"(i32.store8 (i32.const 70000) (i32.add (i32.const 49) (i32.load8_u (i32.const 70000))))
           (call $write (i32.const 1) (i32.const 70000) (i32.const 1))"#,
    );
    let server = serve_program(counts, |_| {});
    let mut client = server.connect();
    for _ in 0..50 {
        assert_eq!(client.get("/").text(), "1");
    }
    assert!(server.metric("pagefork_spawns_total{slot=\"warm\"}") > 0.0);
    assert_eq!(server.metric("pagefork_spawn_seconds_count"), 50.0);
}

/// The variables of a request, as its program sees them.
fn variables(request: &str, options: VariableOptions) -> Vec<String> {
    let mut world = WasiCtxBuilder::new();
    world.env("OWN", "mine").env("SERVER_SOFTWARE", "mine");
    let fixed = vec!["OWN".to_owned(), "SERVER_SOFTWARE".to_owned()];
    let options = ProgramOptions { variables: options, fixed, ..ProgramOptions::default() };
    let server = serve(program(writes(PLAIN, ENVIRONMENT), &world, options), |_| {});
    let mut client = server.connect();
    client.send(request);
    let text = client.answer().text();
    text.split_terminator('\0').map(str::to_owned).collect()
}

#[test]
fn a_program_finds_the_request_in_its_variables() {
    let found = variables(
        "POST /a%20b/c?d=%20e HTTP/1.1\r\nHost: example.test:99\r\nContent-Type: text/x\r\n\
         Content-Length: 2\r\nUser-Agent: me\r\nCookie: a=1\r\nCookie: b=2\r\nX-Two: 1\r\nX-Two: 2\r\n\
         X-Request-Id: id-7\r\n\r\nhi",
        VariableOptions::default(),
    );
    for variable in [
        "OWN=mine",
        "GATEWAY_INTERFACE=CGI/1.1",
        "SERVER_SOFTWARE=mine",
        "SERVER_PROTOCOL=HTTP/1.1",
        "REQUEST_METHOD=POST",
        "SCRIPT_NAME=",
        "PATH_INFO=/a b/c",
        "QUERY_STRING=d=%20e",
        "REQUEST_URI=/a%20b/c?d=%20e",
        "SERVER_NAME=example.test",
        "SERVER_ADDR=127.0.0.1",
        "REMOTE_ADDR=127.0.0.1",
        "CONTENT_TYPE=text/x",
        "CONTENT_LENGTH=2",
        "HTTP_HOST=example.test:99",
        "HTTP_USER_AGENT=me",
        "HTTP_COOKIE=a=1; b=2",
        "HTTP_X_TWO=1, 2",
        "HTTP_X_REQUEST_ID=id-7",
    ] {
        let count = found.iter().filter(|other| *other == variable).count();
        assert_eq!(count, 1, "{variable} in {found:#?}");
    }
    let named = |name: &str| found.iter().filter(|other| other.starts_with(name)).count();
    assert_eq!(named("SERVER_SOFTWARE="), 1, "what is set for the program stays");
    assert_eq!((named("SERVER_PORT="), named("REMOTE_PORT=")), (1, 1));
    assert_eq!((named("HTTP_CONTENT_"), named("AUTH_TYPE")), (0, 0));
}

#[test]
fn a_program_does_not_see_what_is_not_for_it() {
    let request = "GET / HTTP/1.1\r\nHost: a\r\nProxy: http://evil\r\nAuthorization: Basic x\r\n\
                   Proxy-Authorization: y\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\n\
                   Keep-Alive: 5\r\nTE: trailers\r\nX_Under: 1\r\n\r\n";
    let found = variables(request, VariableOptions::default());
    let seen: Vec<_> = found.iter().filter(|other| other.starts_with("HTTP_")).collect();
    assert!(
        seen.iter().all(|variable| ["HTTP_HOST=a", "HTTP_X_REQUEST_ID="]
            .iter()
            .any(|known| variable.starts_with(known))),
        "{seen:?}"
    );
    assert!(!found.iter().any(|variable| variable.starts_with("CONTENT_")), "{found:?}");
    let found = variables(request, VariableOptions { authorization: true });
    assert!(found.contains(&"HTTP_AUTHORIZATION=Basic x".to_owned()));
}

#[test]
fn a_path_that_no_variable_can_hold_is_refused() {
    let server = serve_program(writes(PLAIN, ""), |_| {});
    for path in ["/a%00b", "/a%zz", "/a%"] {
        assert_eq!(server.get(path).status, 400, "{path}");
    }
    let mut client = server.connect();
    client.send("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.answer().status, 200);
}

#[test]
fn output_is_a_response() {
    for (output, status, fields, body) in [
        ("Content-Type: a/b\n\nbody", 200, &[("content-type", "a/b")][..], "body"),
        ("Content-Type: a/b\r\n\r\nbody", 200, &[], "body"),
        ("Status: 404 Gone Fishing\nContent-Type: a/b\n\nno", 404, &[], "no"),
        ("Status: 204\n\n", 204, &[], ""),
        ("Location: http://other/x\n\n", 302, &[("location", "http://other/x")], ""),
        ("Status: 303 See Other\nLocation: /x\n\n", 303, &[("location", "/x")], ""),
        ("Location: /x\nContent-Type: a/b\n\nx", 302, &[("location", "/x")], "x"),
        ("Content-Type: a/b\nSet-Cookie: a\nX-A:  b \n\n", 200, &[("x-a", "b")], ""),
        ("Content-Type: a/b\nContent-Length: 2\n\nhi", 200, &[("content-length", "2")], "hi"),
        ("Content-Type: a/b\nConnection: close\nTransfer-Encoding: x\n\nhi", 200, &[], "hi"),
        ("Content-Type: a/b\nX-Request-Id: forged\n\nhi", 200, &[], "hi"),
    ] {
        let server = serve_program(writes(output, ""), |_| {});
        let mut client = server.connect();
        let answer = client.get("/");
        assert_eq!((answer.status, answer.text().as_str()), (status, body), "{output:?}");
        for (name, value) in fields {
            assert_eq!(answer.field(name), Some(*value), "{output:?}");
        }
        assert_ne!(answer.field("x-request-id"), Some("forged"));
        assert_eq!(client.get("/").status, status, "the connection is of use");
    }
}

#[test]
fn malformed_output_is_not_passed_on() {
    for (output, reason) in [
        ("", "wrote nothing"),
        ("Content-Type: a/b\n", "without an empty line"),
        ("hello, world\n\n", "no colon"),
        ("X-A: b\n\n", "neither"),
        ("HTTP/1.1 200 OK\n\n", "non-parsed headers"),
        ("Content-Type: a\rX-Injected: b\n\n", "value of a field"),
        ("Status: 200 OK\rX: y\n\n", "value of a field"),
        ("Status: 1000\n\n", "three digits"),
        ("Content-Type: a\nContent-Length: 5\n\nhi", "announced 5 bytes and wrote 2"),
        ("Content-Type: a\nContent-Length: +5\n\nhello", "no number"),
        ("Location: /a b\n\n", "redirected to"),
        ("Location: /a\n\nbody", "has no body"),
    ] {
        let server = serve_program(writes(output, ""), |config| config.patience = PATIENCE);
        let answer = server.get("/");
        assert_eq!(answer.status, 502, "{output:?}");
        assert!(!answer.head.contains("injected"), "{}", answer.head);
        assert!(server.log.text().contains(reason), "{output:?}: {}", server.log.text());
    }
}

#[test]
fn a_redirect_to_a_path_of_the_program_is_followed_here() {
    // Redirects unless the path is short.
    let program = writes(
        "",
        &format!(
            r#"(drop (call $environ_sizes_get (i32.const 16) (i32.const 20)))
            (drop (call $environ_get (i32.const 1024) (i32.const 131072)))
            ;; The tenth variable is the path.
            (local.set $n (i32.load (i32.const 1048)))
            (if (i32.eq (i32.load8_u offset=11 (local.get $n)) (i32.const {a})) (then
                (call $write (i32.const 1) (i32.const 65600) (i32.const 16))
                (return)))
            (if (i32.eq (i32.load8_u offset=11 (local.get $n)) (i32.const {l})) (then
                (call $write (i32.const 1) (i32.const 65700) (i32.const 16))
                (return)))
            (call $write (i32.const 1) (i32.const 65800) (i32.const 26))
            {ENVIRONMENT}"#,
            a = i32::from(b'a'),
            l = i32::from(b'l'),
        ),
    );
    let data = format!(
        "(data (i32.const 65600) \"Location: /b?c\\0a\\0a\") (data (i32.const 65700) \
         \"Location: /loop\\0a\\0a\") (data (i32.const 65800) \"{}\") (func (export \"_start\")",
        PLAIN.replace('\n', "\\0a")
    );
    let program = program
        .replace("(func (export \"_start\")", &data)
        .replace("65700) (i32.const 16)", "65700) (i32.const 17)");
    let server = serve_program(program, |_| {});
    let mut client = server.connect();
    client.send("POST /a HTTP/1.1\r\nHost: a\r\nContent-Type: x/y\r\nContent-Length: 3\r\n\r\nabc");
    let answer = client.answer();
    assert_eq!(answer.status, 200, "{}", server.log.text());
    let text = answer.text();
    for variable in ["REQUEST_METHOD=GET\0", "PATH_INFO=/b\0", "QUERY_STRING=c\0"] {
        assert!(text.contains(variable), "{variable}: {text:?}");
    }
    assert!(!text.contains("CONTENT_LENGTH"));
    assert_eq!(server.get("/loop").status, 502);
    assert!(server.log.text().contains("redirected the request 10 times"));
}

#[test]
fn a_redirected_request_has_no_body() {
    // Redirects what is posted, and echoes otherwise. The fourth variable is the method.
    let then = format!(
        r#"(drop (call $environ_sizes_get (i32.const 16) (i32.const 20)))
        (drop (call $environ_get (i32.const 1024) (i32.const 131072)))
        (local.set $n (i32.load (i32.const 1036)))
        (if (i32.eq (i32.load8_u offset=15 (local.get $n)) (i32.const {p})) (then
            (call $write (i32.const 1) (i32.const 65536) (i32.const 14))
            (return)))
        (call $write (i32.const 1) (i32.const 65550) (i32.const {size}))
        {ECHO}"#,
        p = i32::from(b'P'),
        size = PLAIN.len(),
    );
    let server = serve_program(knows(&format!("Location: /a\n\n{PLAIN}"), &then), |_| {});
    // Also if there is more to come.
    for size in [3, 10] {
        let mut client = server.connect();
        let head = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\r\n");
        client.send(head + "abc");
        let answer = client.answer();
        assert_eq!((answer.status, answer.text().as_str()), (200, ""), "{}", server.log.text());
    }
}

#[test]
fn a_program_may_write_much_at_once() {
    const SIZE: usize = 64 << 20;
    // With something remarkable at the end.
    let then = format!(
        "(drop (memory.grow (i32.const 1024)))
        (i32.store8 (i32.const {}) (i32.const 33))
        (call $write (i32.const 1) (i32.const 65536) (i32.const {SIZE}))",
        65536 + SIZE - 1
    );
    let server = serve_program(knows(PLAIN, &then), |_| {});
    let answer = server.get("/");
    assert_eq!((answer.status, answer.body.len()), (200, SIZE - PLAIN.len()));
    let (last, rest) = answer.body.split_last().unwrap();
    assert!(*last == b'!' && rest.iter().all(|byte| *byte == 0));

    let server = serve_program(knows("", &then), |_| {});
    assert_eq!(server.get("/").status, 502);
    assert!(server.log.text().contains("its head is longer"), "{}", server.log.text());
}

#[test]
fn bodies_stream_through_a_program() {
    let server = serve_program(writes(PLAIN, ECHO), |_| {});
    let mut client = server.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    client.send_chunk(b"first");
    client.head();
    assert_eq!(client.chunk(), b"first", "before the rest is sent");
    client.send_chunk(b"second");
    assert_eq!(client.chunk(), b"second");
    client.send("0\r\n\r\n");
    assert!(client.chunk().is_empty());
}

#[test]
fn a_trap_is_answered_and_logged_and_harms_no_other_request() {
    // Traps if the body begins with an exclamation mark, before there is any output.
    let then = format!(
        r#"(local.set $n (call $read))
        (if (i32.eq (i32.load8_u (i32.const 131072)) (i32.const 33)) (then (unreachable)))
        (call $write (i32.const 1) (i32.const 65536) (i32.const {}))
        (call $write (i32.const 1) (i32.const 131072) (local.get $n))
        {ECHO}"#,
        PLAIN.len()
    );
    let server = serve_program(knows(PLAIN, &then), |_| {});
    let mut other = server.connect();
    other.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nab");
    server.wait_for_metric("pagefork_handlers_busy", 1.0);
    for index in 0..20 {
        let mut client = server.connect();
        client.send(format!(
            "POST / HTTP/1.1\r\nHost: a\r\nX-Request-Id: t{index}\r\nContent-Length: 1\r\n\r\n!"
        ));
        let answer = client.answer();
        assert_eq!(answer.status, 500);
        assert!(answer.text().contains(&format!("request id: t{index}")));
        assert!(!answer.text().contains("unreachable"), "the client learns no more");
    }
    let log = server.log.text();
    assert!(log.contains("[t19] trap: ") && log.contains("unreachable"), "{log}");
    assert!(log.contains("wasm backtrace, innermost first"), "{log}");
    other.send("cd");
    assert_eq!(other.answer().text(), "abcd");
    assert_eq!(server.metric("pagefork_failures_total{kind=\"trap\"}"), 20.0);
}

#[test]
fn a_program_that_takes_too_long_is_stopped() {
    // A subscription to the clock, for a long time.
    let sleeps = r#"(i64.store (i32.const 224) (i64.const 3600000000000))
        (i32.store (i32.const 216) (i32.const 1))
        (drop (call $poll (i32.const 200) (i32.const 300) (i32.const 1) (i32.const 400)))"#;
    for then in ["(loop $for_ever (br $for_ever))", sleeps] {
        let server = serve_program(writes(PLAIN, then), |config| {
            config.timeout = Duration::from_millis(50);
            config.concurrency = 1;
        });
        for _ in 0..3 {
            let mut client = server.connect();
            client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
            let mut all = Vec::new();
            let _ = std::io::Read::read_to_end(&mut client.stream, &mut all);
            let text = String::from_utf8_lossy(&all);
            // The head had been written, so only the end is missing.
            assert!(text.starts_with("HTTP/1.1 504") || !text.ends_with("0\r\n\r\n"), "{text}");
            server.wait_for_metric("pagefork_handlers_busy", 0.0);
        }
        assert_eq!(server.metric("pagefork_failures_total{kind=\"timeout\"}"), 3.0);
    }
    let server = serve_program(writes("", "(loop $for_ever (br $for_ever))"), |config| {
        config.timeout = Duration::from_millis(50);
    });
    assert_eq!(server.get("/").status, 504);
}

/// More of them than there are handlers: the first wait for the other end of a FIFO, some of
/// them to open it, and are stopped; the rest get their turn.
#[test]
fn programs_that_wait_for_a_fifo_do_not_stop_the_server() {
    let directory = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("fifo");
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(&directory).unwrap();
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mkfifoat(rustix::fs::CWD, directory.join("pipe"), mode).unwrap();
    let mut world = WasiCtxBuilder::new();
    let permissions = pagefork_wasi::Permissions::ReadWrite;
    world.preopened_dir(&directory, "/", permissions).unwrap();
    // `rights` says whether it is opened to read (2) or to write (64); what is read or written
    // then are some bytes.
    let opens = |rights: u32| {
        let then = format!(
            r#"(i32.store (i32.const 200) (i32.const 0x65706970))
               (drop (call $path_open (i32.const 3) (i32.const 0) (i32.const 200) (i32.const 4)
                   (i32.const 0) (i64.const {rights}) (i64.const 0) (i32.const 0) (i32.const 208)))
               (i32.store (i32.const 216) (i32.const 1024)) (i32.store (i32.const 220) (i32.const 9))
               (drop (call $fd_read (i32.load (i32.const 208)) (i32.const 216) (i32.const 1)
                   (i32.const 224)))"#
        );
        let open = r#"(module (import "wasi_snapshot_preview1" "path_open" (func $path_open
            (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))"#;
        writes("", &then).replace("(module", open)
    };
    for rights in [2, 64] {
        let program = program(opens(rights), &world, ProgramOptions::default());
        let server = serve(program, |config| {
            config.timeout = Duration::from_millis(200);
            config.concurrency = 4;
        });
        std::thread::scope(|scope| {
            for _ in 0..12 {
                scope.spawn(|| assert_eq!(server.get("/").status, 504, "{rights}"));
            }
        });
        server.wait_for_metric("pagefork_handlers_busy", 0.0);
        assert_eq!(server.metric("pagefork_failures_total{kind=\"timeout\"}"), 12.0);
    }
}

#[test]
fn a_program_whose_client_is_gone_is_stopped() {
    let spins = writes("", "(loop $for_ever (br $for_ever))");
    let waits = writes("", "(drop (call $read)) (drop (call $read))");
    let floods = writes(
        PLAIN,
        "(loop $for_ever (call $write (i32.const 1) (i32.const 0) (i32.const 65536)) (br $for_ever))",
    );
    for program in [spins, waits, floods] {
        let server = serve_program(program, |config| {
            config.concurrency = 1;
            config.timeout = PATIENCE * 10;
            config.client_timeout = PATIENCE * 10;
        });
        let mut client = server.connect();
        client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n");
        server.wait_for_metric("pagefork_handlers_busy", 1.0);
        drop(client);
        server.wait_for_metric("pagefork_handlers_busy", 0.0);
        server.wait_for_metric("pagefork_slots{state=\"live\"}", 0.0);
    }
}

#[test]
fn memory_is_limited() {
    // Writes what memory.grow says: 255 for -1.
    let grows = r#"(i32.store8 (i32.const 16) (i32.and (i32.const 127) (memory.grow (i32.const 100))))
        (call $write (i32.const 1) (i32.const 16) (i32.const 1))"#;
    let limited = ProgramOptions { memory_max: 1 << 20, ..ProgramOptions::default() };
    for (options, said) in [(ProgramOptions::default(), 8), (limited.clone(), 127)] {
        let server = serve(program(writes(PLAIN, grows), &WasiCtxBuilder::new(), options), |_| {});
        for _ in 0..3 {
            assert_eq!(server.get("/").body, [said]);
        }
    }
    let tiny = ProgramOptions { memory_max: 65536, ..limited };
    let error = try_program(writes(PLAIN, ""), &WasiCtxBuilder::new(), tiny).unwrap_err();
    assert!(matches!(error, CgiProgramError::Memory { limit: 65536, .. }), "{error}");
}

#[test]
fn a_start_function_is_held_to_the_limits() {
    // Loops if there is a body.
    let loops = r#"(if (i32.gt_s (call $read) (i32.const 0)) (then
        (loop $for_ever (br $for_ever))))"#;
    let server = serve_program(started_by(&writes(PLAIN, ""), loops), |config| {
        config.timeout = Duration::from_millis(50);
        config.concurrency = 1;
    });
    for _ in 0..3 {
        let mut client = server.connect();
        client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx");
        assert_eq!(client.answer().status, 504);
        server.wait_for_metric("pagefork_handlers_busy", 0.0);
    }
    assert_eq!(server.metric("pagefork_failures_total{kind=\"timeout\"}"), 3.0);

    let grows = "(i32.store (i32.const 16) (memory.grow (i32.const 100)))";
    let tells = "(call $write (i32.const 1) (i32.const 16) (i32.const 4))";
    let limited = ProgramOptions { memory_max: 1 << 20, ..ProgramOptions::default() };
    for (options, said) in [(ProgramOptions::default(), 8), (limited, -1)] {
        let grows = started_by(&writes(PLAIN, tells), grows);
        let server = serve(program(grows, &WasiCtxBuilder::new(), options), |_| {});
        assert_eq!(server.get("/").body, i32::to_le_bytes(said));
    }
}

#[test]
fn memories_share_a_limit() {
    // The first has 8 pages.
    let both = |second: u32, then: &str| {
        let second = format!("(memory $second {second}) (data (i32.const 65536)");
        writes(PLAIN, then).replacen("(data (i32.const 65536)", &second, 1)
    };
    let limited = ProgramOptions { memory_max: 1 << 20, ..ProgramOptions::default() };
    let grows = r#"(i32.store8 (i32.const 16) (memory.grow $second (i32.const 3)))
        (i32.store8 (i32.const 17) (memory.grow (i32.const 4)))
        (i32.store8 (i32.const 18) (memory.grow $second (i32.const 1)))
        (i32.store8 (i32.const 19) (memory.grow (i32.const 1)))
        (i32.store8 (i32.const 20) (memory.grow $second (i32.const 1)))
        (call $write (i32.const 1) (i32.const 16) (i32.const 5))"#;
    let made = program(both(1, grows), &WasiCtxBuilder::new(), limited.clone());
    let server = serve(made, |_| {});
    for _ in 0..3 {
        assert_eq!(server.get("/").body, [1, 8, 255, 255, 255]);
    }
    let error = try_program(both(9, ""), &WasiCtxBuilder::new(), limited).unwrap_err();
    assert!(matches!(error, CgiProgramError::Memory { size, .. } if size == 17 << 16), "{error}");
}

#[test]
fn what_is_no_program_is_refused() {
    let refused = |module: &str| {
        try_program(module, &WasiCtxBuilder::new(), ProgramOptions::default()).unwrap_err()
    };
    let error = refused("(module (func (export \"run\")))");
    assert!(error.to_string().contains("no function `_start`"), "{error}");
    assert!(matches!(error, CgiProgramError::NoStart));
    let error = refused("(module (func $s unreachable) (start $s) (func (export \"_start\")))");
    assert!(error.to_string().contains("cannot be started"), "{error}");
}

/// Each byte is looked at for the log: a gigabyte at once would hold a thread for seconds beyond
/// its time limit.
#[test]
fn one_call_takes_a_part_of_what_is_written_to_standard_error() {
    let buffer = |index: u32| {
        let at = index * 8;
        format!("(i32.store (i32.const {at}) (i32.const 0))")
            + &format!("(i32.store (i32.const {}) (i32.const 500000))", at + 4)
    };
    let then: String = (0..4).map(buffer).collect::<String>()
        + "(drop (call $fd_write (i32.const 2) (i32.const 0) (i32.const 4) (i32.const 64)))"
        + "(if (i32.eqz (i32.load (i32.const 64))) (then unreachable))"
        + "(if (i32.gt_u (i32.load (i32.const 64)) (i32.const 0x100000)) (then unreachable))"
        + &format!("(call $write (i32.const 1) (i32.const 65536) (i32.const {}))", PLAIN.len());
    let server = serve_program(knows(PLAIN, &then), |_| {});
    assert_eq!(server.get("/").status, 200);
}

#[test]
fn exit_codes_and_standard_error_are_logged() {
    let then =
        "(call $write (i32.const 2) (i32.const 65536) (i32.const 26)) (call $exit (i32.const 3))";
    let server = serve_program(writes(PLAIN, then), |_| {});
    let mut client = server.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\nX-Request-Id: e\r\n\r\n");
    assert_eq!(client.answer().status, 200);
    until("the log", || server.log.text().contains("[e] the program exited with code 3"));
    assert!(server.log.text().contains("[e] stderr: Content-Type: text/plain"));

    let server = serve_program(writes("", "(call $exit (i32.const 4))"), |_| {});
    assert_eq!(server.get("/").status, 502);
    assert!(server.log.text().contains("exited with code 4; it wrote nothing"));
}
