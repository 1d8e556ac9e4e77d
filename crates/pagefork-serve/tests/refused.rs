//! Requests that the HTTP library refuses are answered with an id, counted and logged, as all
//! others are.

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use common::handlers::{hello, take};
use common::{Answer, By, Client, Served, serve, until};

/// What is answered to these bytes, on a connection of its own, until it is closed.
fn answer(server: &Served, bytes: &[u8]) -> Answer {
    let mut client = server.connect();
    // The server may have enough before it has all.
    let _ = client.stream.get_mut().write_all(bytes);
    let answer = client.answer();
    assert!(client.is_closed(), "{bytes:?}");
    answer
}

#[track_caller]
fn assert_refused(server: &Served, answer: &Answer, status: u16, kind: &str) {
    assert_eq!(answer.status, status, "{answer:?}");
    let id = answer.field("x-request-id").expect("an id").to_owned();
    assert!(answer.text().contains(&format!("request id: {id}\n")), "{}", answer.text());
    assert!(answer.head.contains("date: ") && answer.head.contains("connection: close"));
    let start = format!(" info [{id}] {kind}: ");
    until("the record", || server.log.text().contains(&start));
    let line = format!("\"-\" {status} {} 0.000000 {id} {kind}\n", answer.body.len());
    until("the line", || server.access.text().contains(&line));
    assert_eq!(server.log.text().matches(&id).count(), 1);
}

fn count(server: &Served, kind: &str) -> f64 {
    server.metric(&format!("pagefork_failures_total{{kind=\"{kind}\"}}"))
}

#[test]
fn malformed_heads_are_answered_with_an_id() {
    let server = serve(By(hello), |_| {});
    let malformed: [&[u8]; 7] = [
        b"\0\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"GET / HTTP/3.7\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n",
    ];
    for (index, bytes) in malformed.iter().enumerate() {
        assert_refused(&server, &answer(&server, bytes), 400, "bad_request");
        assert_eq!(count(&server, "bad_request"), (index + 1) as f64);
    }
    assert_eq!(server.metric("pagefork_requests_total{code=\"4xx\"}"), 7.0);
    assert_eq!(server.metric("pagefork_requests_in_flight"), 0.0);
}

#[test]
fn heads_beyond_the_limit_are_answered_with_an_id() {
    let server = serve(By(hello), |config| config.head_max = 8192);
    let long = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "x".repeat(200_000));
    let many = format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "X: y\r\n".repeat(200));
    for (index, head) in [long, many].iter().enumerate() {
        assert_refused(&server, &answer(&server, head.as_bytes()), 431, "head_too_large");
        assert_eq!(count(&server, "head_too_large"), (index + 1) as f64);
    }
}

/// What comes after requests that were answered is refused no less.
#[test]
fn a_malformed_head_after_others_leaves_their_responses_as_they_are() {
    let server = serve(
        By(|request: pagefork_serve::Request, response: &pagefork_serve::ResponseWriter| {
            let mut headers = http::HeaderMap::new();
            let body = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n";
            if request.head.uri.path() == "/sized" {
                headers.insert("content-length", body.len().into());
            }
            response.start(http::StatusCode::OK, headers);
            // As the library would say it; in parts, so that it is sent so.
            for part in body.chunks(9) {
                let _ = response.write(part);
                if request.head.uri.path() != "/whole" {
                    response.flush();
                }
            }
            Ok(())
        }),
        |_| {},
    );
    let mut client = server.connect();
    for target in ["/whole", "/sized", "/chunked", "/whole"] {
        let text = client.get(target).text();
        assert!(text.starts_with("HTTP/1.1 400 ") && text.ends_with("\r\n\r\n"), "{text}");
    }
    client.send("nonsense\r\n\r\n");
    let last = client.answer();
    assert!(client.is_closed());
    assert_refused(&server, &last, 400, "bad_request");

    // All at once: the responses come before the refusal.
    let mut client = server.connect();
    let one = "GET /sized HTTP/1.1\r\nHost: a\r\n\r\n";
    client.send(format!("{one}{one}nonsense\r\n\r\n"));
    assert_eq!((client.answer().status, client.answer().status), (200, 200));
    assert_eq!(client.answer().status, 400);
    until("both are counted", || count(&server, "bad_request") == 2.0);
}

#[test]
fn a_head_that_does_not_end_is_answered_with_an_id_and_silence_is_not() {
    let server = serve(By(hello), |config| config.client_timeout = Duration::from_secs(2));
    let mut slow = server.connect();
    slow.send("GET / HTTP/1.1\r\nHost");
    let answer = slow.answer();
    assert!(slow.is_closed());
    assert_refused(&server, &answer, 408, "head_timeout");

    let mut idle = server.connect();
    assert_eq!(idle.get("/").status, 200);
    let mut rest = Vec::new();
    idle.stream.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty(), "an idle connection is closed and nothing else");
    assert_eq!(count(&server, "head_timeout"), 1.0);
}

/// What comes on a connection without a request under way need not be a head: it may be the
/// body of a request that was answered without it, or an empty line after it.
#[test]
fn a_connection_that_is_quiet_after_a_body_is_closed_and_nothing_else() {
    let server = serve(By(hello), |config| config.client_timeout = Duration::from_secs(2));
    for (head, late) in [
        (
            "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n",
            "12345",
        ),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n", "12345"),
        ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", "\r\n"),
    ] {
        let mut stream = TcpStream::connect(server.address).unwrap();
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"hello") {
            let mut part = [0; 1024];
            let count = stream.read(&mut part).unwrap();
            assert_ne!(count, 0, "{head}");
            answer.extend_from_slice(&part[..count]);
        }
        let _ = stream.write_all(late.as_bytes());
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        assert_eq!(String::from_utf8_lossy(&rest), "", "{head}");
    }
    assert_eq!(count(&server, "head_timeout"), 0.0);
    assert_eq!(server.log.text(), "");
}

/// Such a client has gone; no request of its has failed.
#[test]
fn a_client_of_http2_that_falls_silent_is_not_refused() {
    let server = serve(By(hello), |config| config.client_timeout = Duration::from_secs(2));
    let mut stream = TcpStream::connect(server.address).unwrap();
    // In parts, the first of which does not tell the protocol.
    for part in [&b"PRI"[..], b" * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\0\0\0\x04\0\0\0\0\0"] {
        stream.write_all(part).unwrap();
        std::thread::sleep(Duration::from_millis(20));
    }
    let _ = stream.read_to_end(&mut Vec::new());
    server.wait_for_metric("pagefork_connections", 0.0);
    assert_eq!(count(&server, "head_timeout"), 0.0);
    assert_eq!(server.log.text(), "");
}

/// Its connection takes a descriptor and a place until it has read the answer and closed.
#[test]
fn a_refused_client_counts_as_a_connection_until_it_has_gone() {
    let server = serve(By(hello), |_| {});
    let mut client = server.connect();
    client.send("nonsense\r\n\r\n");
    assert_eq!(client.answer().status, 400);
    assert_eq!(server.metric("pagefork_connections"), 1.0);
    drop(client);
    server.wait_for_metric("pagefork_connections", 0.0);
}

#[test]
fn a_client_that_leaves_within_a_head_is_not_refused() {
    let server = serve(By(hello), |_| {});
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.write_all(b"GET / HT").unwrap();
    stream.shutdown(Shutdown::Both).unwrap();
    server.wait_for_metric("pagefork_connections_total", 1.0);
    server.wait_for_metric("pagefork_connections", 0.0);
    assert_eq!(server.log.text(), "");
}

/// The library's own answer has no id; the front end's comes before.
#[test]
fn heads_of_http2_beyond_the_limit_are_answered_with_an_id() {
    let server = serve(By(hello), |config| config.head_max = 8192);
    let stream = TcpStream::connect(server.address).unwrap();
    stream.set_nonblocking(true).unwrap();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build().unwrap();
    let head = runtime.block_on(async {
        let stream = tokio::net::TcpStream::from_std(stream).unwrap();
        let io = hyper_util::rt::TokioIo::new(stream);
        let executor = hyper_util::rt::TokioExecutor::new();
        let (mut send, connection) =
            hyper::client::conn::http2::handshake(executor, io).await.unwrap();
        tokio::spawn(connection);
        let request = http::Request::get("http://test/").header("x", "x".repeat(10_000));
        let request = request.body(String::new()).unwrap();
        send.send_request(request).await.unwrap().into_parts().0
    });
    assert_eq!(head.status, 431);
    let id = head.headers["x-request-id"].to_str().unwrap().to_owned();
    until("the record", || server.log.text().contains(&format!("[{id}] head_too_large: ")));
    assert_eq!(count(&server, "head_too_large"), 1.0);
}

#[test]
fn the_admin_address_says_whether_requests_are_answered() {
    let mut config = pagefork_serve::ServerConfig::new(([127, 0, 0, 1], 0).into());
    config.admin = Some(config.address);
    let starting = pagefork_serve::Server::prepare(config).unwrap();
    let admin = starting.admin_address().unwrap();
    let mut client = Client::new(admin);
    assert_eq!((client.get("/healthz").status, client.get("/readyz").status), (200, 503));
    assert_eq!(client.get("/readyz").text(), "starting\n");
    assert_eq!(client.get("/metrics").status, 200);
    assert!(client.get("/status.json").text().contains("\"pool\":null"));
    let server = starting.serve(By(take)).unwrap();
    assert_eq!((client.get("/healthz").status, client.get("/readyz").status), (200, 200));

    // A request under way keeps it alive, and not ready.
    let mut under_way = Client::new(server.address());
    under_way.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n");
    until("it is handled", || {
        let metrics = client.get("/metrics").text();
        metrics.contains("pagefork_handlers_busy 1\n")
    });
    server.stop_handle().stop();
    until("it stops", || client.get("/readyz").status == 503);
    assert_eq!(client.get("/readyz").text(), "stopping\n");
    assert_eq!(client.get("/healthz").status, 200);
    server.stop_handle().stop_now();
    server.wait();
}
