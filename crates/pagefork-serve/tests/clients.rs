//! Clients that say, send or take nothing, or next to nothing; and threads that wait for
//! them.

mod common;

use std::io::Read;
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::Duration;

use common::handlers::*;
use common::{By, PATIENCE, RawHttp2, until};
use http::{HeaderMap, StatusCode};
use pagefork_serve::{Request, ResponseWriter};

/// How long clients may do nothing: other tests take the processors for a while.
const TIMEOUT: Duration = Duration::from_secs(2);

#[test]
fn a_client_that_says_nothing_is_not_waited_for() {
    let (gate, handler) = gated(hello);
    let server = serve(handler, |config| {
        config.client_timeout = TIMEOUT;
        config.connections_max = 4;
    });
    let mut first = server.connect();
    first.send("GET /gate HTTP/1.1\r\nHost: a\r\n\r\n");
    gate.begun.recv_timeout(PATIENCE).unwrap();
    let beginnings = ["", "PRI * HT", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r"];
    let silent = beginnings.map(|beginning| {
        let mut client = server.connect();
        client.send(beginning);
        client
    });
    server.wait_for_metric("pagefork_connections_total", 4.0);
    server.wait_for_metric("pagefork_connections", 1.0);
    assert!(silent.into_iter().all(|mut client| client.is_closed()));
    // There was no place for it before.
    assert_eq!(server.get("/").text(), "hello");
    gate.go_on.send(()).unwrap();
    assert_eq!(first.answer().text(), "hello", "who has said something is not hurried");
}

#[test]
fn a_client_may_say_bit_by_bit_what_it_speaks() {
    let server = serve(By(hello), |_| {});
    for method in ["P", "PR", "PRI", "PRISM"] {
        let mut client = server.connect();
        for byte in format!("{method} / HTTP/1.1\r\nHost: a\r\n\r\n").bytes() {
            client.send([byte]);
        }
        assert_eq!(client.answer().text(), "hello");
        assert_eq!(client.get("/").text(), "hello");
    }
}

#[test]
fn a_client_of_http2_that_takes_nothing_holds_no_handler() {
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    let server = serve(
        By(move |request: Request, response: &ResponseWriter| {
            if request.head.version != http::Version::HTTP_2 {
                return hello(request, response);
            }
            response.start(StatusCode::OK, HeaderMap::new());
            while response.write(&[b'x'; 65536]).is_ok() {}
            tell.lock().unwrap().send(()).unwrap();
            Ok(())
        }),
        |config| {
            config.concurrency = 1;
            config.client_timeout = TIMEOUT;
        },
    );
    // The size of a window in the beginning, which nothing makes larger.
    let mut client = RawHttp2::new(server.address, &[0, 4, 0, 0, 0, 0]);
    // The ends of the head and of the request.
    client.send(RawHttp2::HEADERS, 4 | 1, 1, RawHttp2::GET).unwrap();
    told.recv_timeout(PATIENCE).unwrap();
    server.wait_for_metric("pagefork_handlers_busy", 0.0);
    assert_eq!(server.get("/").text(), "hello");
}

#[test]
fn a_client_that_sends_byte_after_byte_is_refused() {
    let server = serve(By(take), |config| {
        config.concurrency = 1;
        config.client_timeout = TIMEOUT;
    });
    let mut client = server.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n");
    until("an end of that", || {
        // Once it has ended, nothing can be sent.
        let _ = std::io::Write::write_all(client.stream.get_mut(), b"x");
        server.metric("pagefork_failures_total{kind=\"body_timeout\"}") == 1.0
    });
    server.wait_for_metric("pagefork_handlers_busy", 0.0);
    until("the access log", || server.access.text().contains(" 408 "));
    assert_eq!(server.get("/").text(), "0");
}

#[test]
fn a_client_that_pauses_now_and_then_is_served() {
    let server = serve(By(take), |config| config.client_timeout = TIMEOUT);
    let mut client = server.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    // For longer in all than it may pause.
    for _ in 0..5 {
        client.send_chunk(&[b'x'; 100_000]);
        std::thread::sleep(TIMEOUT / 4);
    }
    client.send("0\r\n\r\n");
    assert_eq!(client.answer().text(), "500000");
}

#[test]
fn a_handler_that_writes_much_at_once_waits_like_others() {
    let server = serve(
        By(|_, response: &ResponseWriter| {
            response.start(StatusCode::OK, HeaderMap::new());
            response.write(&vec![b'x'; FLOOD]).unwrap();
            Ok(())
        }),
        |_| {},
    );
    let mut client = server.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    client.head();
    let mut received = 0;
    loop {
        let part = client.chunk().len();
        assert!(part <= 1 << 20, "{part} bytes were kept");
        received += part;
        if part == 0 {
            break;
        }
    }
    assert_eq!(received, FLOOD);
}

#[test]
fn threads_of_one_handler_may_wait_at_once() {
    let server = serve(
        By(|mut request: Request, response: &ResponseWriter| {
            response.start(StatusCode::OK, HeaderMap::new());
            if request.head.uri.path() != "/flood" {
                return hello(request, response);
            }
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| response.write(&[b'x'; FLOOD / 4]).unwrap());
                }
                let _ = request.body.read(&mut [0]);
                response.write(&[b'x'; FLOOD / 4]).unwrap();
            });
            Ok(())
        }),
        |config| config.concurrency = 1,
    );
    for _ in 0..3 {
        let mut client = server.connect();
        client.send("POST /flood HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n");
        client.head();
        client.send("x");
        let mut received = 0;
        while received < FLOOD {
            received += client.chunk().len();
        }
        assert!(client.chunk().is_empty());
        server.wait_for_metric("pagefork_handlers_busy", 0.0);
        assert_eq!(server.get("/").text(), "hello");
    }
}

#[test]
fn who_waits_beside_others_leaves_the_connections_to_another_thread() {
    let server = serve(
        By(|_, response: &ResponseWriter| {
            response.start(StatusCode::OK, HeaderMap::new());
            std::thread::scope(|scope| {
                scope.spawn(|| response.write(&[b'x'; FLOOD / 2]).unwrap());
                // So that the other one waits first.
                std::thread::sleep(Duration::from_millis(50));
                response.write(&[b'x'; FLOOD / 2]).unwrap();
            });
            Ok(())
        }),
        one_at_a_time,
    );
    assert_eq!(server.get("/").body.len(), FLOOD);
}

#[test]
fn a_thread_that_a_handler_leaves_behind_takes_no_place() {
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    let server = serve(
        By(move |mut request: Request, response: &ResponseWriter| {
            let (path, other) = (request.head.uri.path().to_owned(), response.clone());
            let tell = tell.lock().unwrap().clone();
            std::thread::spawn(move || {
                let _ = match &*path {
                    "/reads" => request.body.read(&mut [0]).map(drop).map_err(drop),
                    "/writes" => other.write(&vec![b'x'; FLOOD]).map_err(drop),
                    _ => Ok(()),
                };
                tell.send(()).unwrap();
            });
            // So that it waits.
            std::thread::sleep(Duration::from_millis(50));
            response.start(StatusCode::OK, HeaderMap::new());
            let _ = response.write(b"hello");
            Ok(())
        }),
        |config| config.concurrency = 1,
    );
    for path in ["/reads", "/writes"] {
        let mut client = server.connect();
        client.send(format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n"));
        client.head();
        drop(client);
        told.recv_timeout(PATIENCE).unwrap();
        server.wait_for_metric("pagefork_handlers_busy", 0.0);
        assert_eq!(server.get("/").text(), "hello");
        told.recv_timeout(PATIENCE).unwrap();
    }
    assert_eq!(server.stop().left, 0);
}

#[test]
fn requests_that_were_left_take_no_place_in_the_queue() {
    let (gate, handler) = gated(hello);
    let server = serve(handler, |config| (config.concurrency, config.queue) = (1, 2));
    let mut first = server.connect();
    first.send("GET /gate HTTP/1.1\r\nHost: a\r\n\r\n");
    gate.begun.recv_timeout(PATIENCE).unwrap();
    let leaving = [(); 2].map(|()| {
        let mut client = server.connect();
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        client
    });
    server.wait_for_metric("pagefork_requests_queued", 2.0);
    drop(leaving);
    server.wait_for_metric("pagefork_requests_in_flight", 1.0);
    let mut second = server.connect();
    second.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    server.wait_for_metric("pagefork_requests_queued", 1.0);
    gate.go_on.send(()).unwrap();
    assert_eq!((first.answer().status, second.answer().status), (200, 200));
    assert_eq!(server.metric("pagefork_failures_total{kind=\"queue_full\"}"), 0.0);
}
