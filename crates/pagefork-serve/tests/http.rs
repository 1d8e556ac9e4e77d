//! The front end: bodies in both directions as they come, limits, and requests
//! that do not harm each other.

mod common;

use std::collections::HashSet;
use std::io::Read;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::handlers::*;
use common::{By, Client, PATIENCE, Served, until};
use http::{HeaderMap, StatusCode};
use pagefork_serve::{Failure, FailureKind, Request, ResponseWriter};

#[test]
fn one_connection_carries_many_requests() {
    let server = serve(By(hello), |config| config.patience = PATIENCE);
    let mut client = server.connect();
    for _ in 0..100 {
        let answer = client.get("/");
        assert_eq!((answer.status, answer.text().as_str()), (200, "hello"));
        assert_eq!(answer.field("content-length"), Some("5"));
        assert!(answer.field("date").is_some());
    }
    assert_eq!(server.metric("pagefork_connections_total"), 1.0);
    client.send("HEAD / HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.0\r\n\r\n");
    let head = client.head();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert_eq!(client.answer().text(), "hello", "a HEAD has no body");
    assert!(client.is_closed(), "HTTP/1.0 closes");
    assert_eq!(server.stop().requests, 102);
}

#[test]
fn a_response_is_sent_while_it_is_written() {
    let (step, steps) = channel::<()>();
    let steps = Mutex::new(steps);
    let server = serve(
        By(move |_, response: &ResponseWriter| {
            response.start(StatusCode::OK, HeaderMap::new());
            for part in ["one", "two", "three"] {
                response.write(part.as_bytes()).unwrap();
                steps.lock().unwrap().recv_timeout(PATIENCE).unwrap();
            }
            Ok(())
        }),
        |_| {},
    );
    let mut client = server.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let head = client.head();
    assert!(head.contains("chunked"), "{head}");
    for part in ["one", "two", "three"] {
        // The handler goes on only when this part is here.
        assert_eq!(client.chunk(), part.as_bytes());
        step.send(()).unwrap();
    }
    assert!(client.chunk().is_empty());
}

#[test]
fn a_request_is_read_while_it_is_sent() {
    let server = serve(By(echo), |_| {});
    let mut client = server.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    client.send_chunk(b"first");
    client.head();
    assert_eq!(client.chunk(), b"first");
    for part in [&b"second"[..], b"third"] {
        client.send_chunk(part);
        assert_eq!(client.chunk(), part);
    }
    client.send("0\r\n\r\n");
    assert!(client.chunk().is_empty());
}

#[test]
fn bodies_may_be_larger_than_any_buffer() {
    let server = serve(By(echo), |config| config.body_max = 64 << 20);
    let body: Vec<u8> = (0..20u32 << 20).map(|at| (at ^ (at >> 11)) as u8).collect();
    let mut client = server.connect();
    let mut sender =
        Client { stream: std::io::BufReader::new(client.stream.get_ref().try_clone().unwrap()) };
    let sent = body.clone();
    let sending = std::thread::spawn(move || {
        sender.send(format!("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", sent.len()));
        sender.send(&sent);
    });
    let answer = client.answer();
    sending.join().unwrap();
    assert!(answer.body == body, "{} bytes of {}", answer.body.len(), body.len());
    assert_eq!(server.metric("pagefork_received_bytes_total"), body.len() as f64);
}

#[test]
fn a_client_that_does_not_read_stops_the_handler_and_not_the_others() {
    let written = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = std::sync::Arc::clone(&written);
    let server = serve(
        By(move |request: Request, response: &ResponseWriter| {
            response.start(StatusCode::OK, HeaderMap::new());
            if request.head.uri.path() != "/flood" {
                return Ok(());
            }
            while response.write(&[b'x'; 65536]).is_ok() {
                count.fetch_add(65536, std::sync::atomic::Ordering::Relaxed);
            }
            Ok(())
        }),
        |config| config.concurrency = 2,
    );
    let mut flooded = server.connect();
    flooded.send("GET /flood HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut last = 0;
    until("the flood to stand", || {
        std::thread::sleep(std::time::Duration::from_millis(50));
        let now = written.load(std::sync::atomic::Ordering::Relaxed);
        let stands = now == last && now > 0;
        last = now;
        stands
    });
    assert_eq!(server.get("/").status, 200);
    drop(flooded);
    server.wait_for_metric("pagefork_handlers_busy", 0.0);
    server.wait_for_metric("pagefork_failures_total{kind=\"client_gone\"}", 1.0);
}

#[test]
fn bodies_beyond_the_limit_are_refused() {
    let server = serve(By(echo), |config| config.body_max = 1000);
    let mut client = server.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1001\r\n\r\n");
    assert_eq!(client.answer().status, 413);

    let (gate, handler) = gated(echo);
    let server = serve(handler, |config| config.body_max = 1000);
    let mut client = server.connect();
    client.send("POST /gate HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    client.send_chunk(&[b'x'; 1000]);
    gate.begun.recv_timeout(PATIENCE).unwrap();
    client.send_chunk(b"y");
    assert_eq!(client.answer().status, 413);
    gate.go_on.send(()).unwrap();
    assert_eq!(server.metric("pagefork_failures_total{kind=\"body_too_large\"}"), 1.0);
}

#[test]
fn requests_beyond_the_limits_wait_or_are_refused() {
    let (gate, handler) = gated(hello);
    let server = serve(handler, |config| (config.concurrency, config.queue) = (1, 1));
    let mut first = server.connect();
    first.send("GET /gate HTTP/1.1\r\nHost: a\r\n\r\n");
    gate.begun.recv_timeout(PATIENCE).unwrap();
    let mut second = server.connect();
    second.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    server.wait_for_metric("pagefork_requests_queued", 1.0);

    let refused = server.get("/");
    assert_eq!(refused.status, 503);
    assert_eq!(refused.field("retry-after"), Some("1"));
    assert!(refused.text().contains(refused.field("x-request-id").unwrap()));

    gate.go_on.send(()).unwrap();
    assert_eq!((first.answer().status, second.answer().status), (200, 200));
    assert_eq!(server.get("/").status, 200);
    assert_eq!(server.metric("pagefork_failures_total{kind=\"queue_full\"}"), 1.0);
}

#[test]
fn a_request_does_not_wait_for_one_that_takes_long() {
    // More that take long than there are processors, and then one that does not.
    let (gate, handler) = gated(hello);
    let server = serve(handler, |config| config.concurrency = 64);
    let processors = std::thread::available_parallelism().unwrap().get();
    let mut long: Vec<_> = (0..processors + 2).map(|_| server.connect()).collect();
    for client in &mut long {
        client.send("GET /gate HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    gate.begun.recv_timeout(PATIENCE).unwrap();
    assert_eq!(server.get("/").status, 200);
    for _ in &long {
        gate.go_on.send(()).unwrap();
    }
    for client in &mut long {
        assert_eq!(client.answer().status, 200);
    }
}

#[test]
fn who_serves_a_connection_handles_its_requests() {
    let threads = Arc::new(Mutex::new(HashSet::new()));
    let seen = Arc::clone(&threads);
    let server = serve(
        By(move |request: Request, response: &ResponseWriter| {
            seen.lock().unwrap().insert(std::thread::current().id());
            hello(request, response)
        }),
        // Nothing takes long.
        |config| config.patience = Duration::MAX / 2,
    );
    for _ in 0..3 {
        let mut client = server.connect();
        for _ in 0..10 {
            assert_eq!(client.get("/").status, 200);
        }
    }
    assert_eq!(threads.lock().unwrap().len(), 1);
}

#[test]
fn who_waits_for_a_client_leaves_the_connections_to_another_thread() {
    // Its time would not show it.
    let server = serve(By(flood), |config| config.patience = Duration::MAX / 2);
    let mut flooded = server.connect();
    flooded.send("GET /flood HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(server.get("/").text(), "x");
    assert_eq!(flooded.answer().body.len(), FLOOD);
}

#[test]
fn what_is_flushed_is_sent_by_another_thread() {
    let (go_on, told) = channel::<()>();
    let told = Mutex::new(told);
    let server = serve(
        By(move |_, response: &ResponseWriter| {
            response.start(StatusCode::OK, HeaderMap::new());
            response.write(b"one").unwrap();
            response.flush();
            told.lock().unwrap().recv_timeout(PATIENCE).unwrap();
            Ok(())
        }),
        |config| config.patience = Duration::MAX / 2,
    );
    let mut client = server.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    client.head();
    assert_eq!(client.chunk(), b"one");
    go_on.send(()).unwrap();
    assert!(client.chunk().is_empty());
}

#[test]
fn who_waits_is_handled_before_whoever_comes_later() {
    let order = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&order);
    let (gate, handler) = gated(move |request, response| {
        seen.lock().unwrap().push(request.head.uri.path().to_owned());
        hello(request, response)
    });
    let server = common::serve(handler, |config| {
        config.connection_threads = 2;
        config.concurrency = 1;
        config.patience = Duration::MAX / 2;
    });
    // The next request of a connection follows the last without a pause.
    let mut busy = server.connect();
    busy.send("GET /gate HTTP/1.1\r\nHost: a\r\n\r\n");
    busy.send("GET /later HTTP/1.1\r\nHost: a\r\n\r\n".repeat(3));
    gate.begun.recv_timeout(PATIENCE).unwrap();
    let mut waiting = server.connect();
    waiting.send("GET /waits HTTP/1.1\r\nHost: a\r\n\r\n");
    server.wait_for_metric("pagefork_requests_queued", 1.0);
    gate.go_on.send(()).unwrap();
    assert_eq!(waiting.answer().status, 200);
    for _ in 0..4 {
        assert_eq!(busy.answer().status, 200);
    }
    assert_eq!(*order.lock().unwrap(), ["/gate", "/waits", "/later", "/later", "/later"]);
}

#[test]
fn who_waits_is_handled_when_a_thread_that_lost_its_connections_is_done() {
    let server = serve(By(flood), one_at_a_time);
    let mut flooded = server.connect();
    flooded.send("GET /flood HTTP/1.1\r\nHost: a\r\n\r\n");
    server.wait_for_metric("pagefork_handlers_busy", 1.0);
    let mut waiting = server.connect();
    waiting.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    server.wait_for_metric("pagefork_requests_queued", 1.0);
    assert_eq!(flooded.answer().body.len(), FLOOD);
    assert_eq!(waiting.answer().text(), "x");
}

/// How many requests are handled by other threads after one that took long.
const HANDED_OVER: usize = 32;

#[test]
fn what_waits_is_left_to_who_serves_connections() {
    let threads = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&threads);
    let server = serve(
        By(move |request: Request, response: &ResponseWriter| {
            seen.lock().unwrap().push(std::thread::current().id());
            flood(request, response)
        }),
        one_at_a_time,
    );
    let mut flooded = server.connect();
    flooded.send("GET /flood HTTP/1.1\r\nHost: a\r\n\r\n");
    server.wait_for_metric("pagefork_handlers_busy", 1.0);
    let mut waiting: Vec<_> = (0..50).map(|_| server.connect()).collect();
    for client in &mut waiting {
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    server.wait_for_metric("pagefork_requests_queued", 50.0);
    assert_eq!(flooded.answer().body.len(), FLOOD);
    for client in &mut waiting {
        assert_eq!(client.answer().text(), "x");
    }
    let threads = threads.lock().unwrap();
    // After the flood, which lost its connections, 32 are handed over.
    let (handed_over, rest) = threads[1..].split_at(HANDED_OVER);
    assert!(handed_over.iter().all(|thread| *thread == threads[0]));
    assert!(rest.iter().all(|thread| *thread == rest[0] && *thread != threads[0]));
}

#[test]
fn what_is_flushed_is_sent_also_if_the_request_had_to_wait() {
    let (go_on, told) = channel::<()>();
    let told = Mutex::new(told);
    let server = serve(
        By(move |request: Request, response: &ResponseWriter| {
            if request.head.method == http::Method::POST {
                return echo(request, response);
            }
            response.start(StatusCode::OK, HeaderMap::new());
            response.write(b"one").unwrap();
            response.flush();
            told.lock().unwrap().recv_timeout(PATIENCE).unwrap();
            Ok(())
        }),
        one_at_a_time,
    );
    let mut first = server.connect();
    first.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n");
    server.wait_for_metric("pagefork_handlers_busy", 1.0);
    let mut second = server.connect();
    second.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    server.wait_for_metric("pagefork_requests_queued", 1.0);
    first.send("x");
    assert_eq!(first.answer().text(), "x");
    second.head();
    assert_eq!(second.chunk(), b"one");
    go_on.send(()).unwrap();
    assert!(second.chunk().is_empty());
}

#[test]
fn after_a_handler_that_computes_for_long_requests_are_handed_over() {
    let threads = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&threads);
    // So long that nothing else takes half of it.
    let patience = Duration::from_millis(400);
    let server = serve(
        By(move |request: Request, response: &ResponseWriter| {
            seen.lock().unwrap().push(std::thread::current().id());
            let begun = processor_time();
            while request.head.uri.path() == "/long" && processor_time() - begun < patience / 2 {
                std::hint::spin_loop();
            }
            hello(request, response)
        }),
        |config| config.patience = patience,
    );
    let mut client = server.connect();
    assert_eq!(client.get("/long").status, 200);
    server.wait_for_metric("pagefork_handlers_busy", 0.0);
    threads.lock().unwrap().clear();
    for _ in 0..=HANDED_OVER {
        assert_eq!(client.get("/").status, 200);
    }
    let threads = threads.lock().unwrap();
    let leader = threads[HANDED_OVER];
    assert!(!threads[..HANDED_OVER].contains(&leader), "{threads:?}");
}

/// How much the thread has computed.
fn processor_time() -> Duration {
    rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime).try_into().unwrap()
}

#[test]
fn a_request_that_waits_for_too_long_is_refused() {
    let (gate, handler) = gated(hello);
    let server = serve(handler, |config| {
        config.concurrency = 1;
        config.timeout = std::time::Duration::from_millis(200);
        config.queue_timeout = std::time::Duration::from_millis(50);
    });
    let mut first = server.connect();
    first.send("GET /gate HTTP/1.1\r\nHost: a\r\n\r\n");
    gate.begun.recv_timeout(PATIENCE).unwrap();
    let mut second = server.connect();
    second.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(second.answer().status, 503);
    assert_eq!(first.answer().status, 504, "also if the handler does not notice");
    gate.go_on.send(()).unwrap();
    server.wait_for_metric("pagefork_handlers_busy", 0.0);
}

#[test]
fn a_client_that_pauses_for_too_long_is_refused() {
    let server = serve(By(echo), |config| {
        config.client_timeout = std::time::Duration::from_millis(50);
    });
    let mut client = server.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n12345");
    let mut rest = Vec::new();
    // Part of the answer was sent before the pause, or none.
    let _ = client.stream.read_to_end(&mut rest);
    server.wait_for_metric("pagefork_failures_total{kind=\"body_timeout\"}", 1.0);
    server.wait_for_metric("pagefork_handlers_busy", 0.0);
    assert!(!rest.ends_with(b"0\r\n\r\n"), "an unfinished response must not look whole");

    let mut silent = server.connect();
    silent.send("GET / HTTP/1.1\r\nHos");
    let _ = silent.stream.read_to_end(&mut rest);
    server.wait_for_metric("pagefork_connections", 0.0);
}

#[test]
fn a_handler_learns_that_its_client_is_gone() {
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    let server = serve(
        By(move |_, response: &ResponseWriter| {
            let (interrupt, interrupted) = channel();
            let guard = response.on_give_up(move || {
                let _ = interrupt.send(());
            });
            tell.lock().unwrap().send("begun").unwrap();
            interrupted.recv_timeout(PATIENCE).unwrap();
            assert!(response.is_given_up());
            drop(guard);
            tell.lock().unwrap().send("gone").unwrap();
            Ok(())
        }),
        |config| config.concurrency = 1,
    );
    for _ in 0..3 {
        let mut client = server.connect();
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(told.recv_timeout(PATIENCE).unwrap(), "begun");
        drop(client);
        assert_eq!(told.recv_timeout(PATIENCE).unwrap(), "gone");
    }
    server.wait_for_metric("pagefork_requests_in_flight", 0.0);
    until("the access log", || server.access.text().matches(" 499 0 ").count() == 3);
}

#[test]
fn a_handler_that_panics_or_fails_harms_no_other_request() {
    let (gate, handler) =
        gated(|request: Request, response: &ResponseWriter| match request.head.uri.path() {
            "/panic" => panic!("on purpose"),
            "/late" => {
                response.start(StatusCode::OK, HeaderMap::new());
                response.write(&[b'x'; 100_000]).unwrap();
                response.flush();
                Err(Failure::new(FailureKind::Trap, "later"))
            }
            "/none" => Ok(()),
            _ => hello(request, response),
        });
    let server = serve(handler, |_| {});
    let mut other = server.connect();
    other.send("GET /gate HTTP/1.1\r\nHost: a\r\n\r\n");
    gate.begun.recv_timeout(PATIENCE).unwrap();

    let mut client = server.connect();
    client.send("GET /panic HTTP/1.1\r\nHost: a\r\nX-Request-Id: abc-1\r\n\r\n");
    let answer = client.answer();
    assert_eq!(answer.status, 500);
    assert!(answer.text().contains("abc-1") && !answer.text().contains("on purpose"));
    assert!(server.log.text().contains("[abc-1] trap: the handler panicked: on purpose"));
    assert_eq!(server.get("/none").status, 502);

    let mut late = server.connect();
    late.send("GET /late HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let mut all = Vec::new();
    let _ = late.stream.read_to_end(&mut all);
    assert!(!all.ends_with(b"0\r\n\r\n"), "an unfinished response must not look whole");

    gate.go_on.send(()).unwrap();
    assert_eq!(other.answer().text(), "hello");
}

/// Of HTTP/1.0 the end of a connection is that of a response.
#[test]
fn a_response_that_breaks_off_does_not_look_whole() {
    let (go_on, told) = channel::<()>();
    let told = Mutex::new(told);
    let handler = By(move |_: Request, response: &ResponseWriter| {
        response.start(StatusCode::OK, HeaderMap::new());
        response.write(b"half").unwrap();
        response.flush();
        told.lock().unwrap().recv_timeout(PATIENCE).unwrap();
        Err(Failure::new(FailureKind::Trap, "half-way"))
    });
    let server = serve(handler, |_| {});
    let mut client = server.connect();
    client.send("GET / HTTP/1.0\r\n\r\n");
    client.head();
    go_on.send(()).unwrap();
    let end = client.stream.read_to_end(&mut Vec::new()).unwrap_err();
    assert_eq!(end.kind(), std::io::ErrorKind::ConnectionReset);
}

#[test]
fn malformed_requests_are_refused() {
    let server = serve(By(hello), |config| config.fields_max = 20);
    for (request, status) in [
        ("BAD\r\n\r\n".to_owned(), 400),
        (format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(30)), 431),
        (format!("GET / HTTP/1.1\r\na: {}\r\n\r\n", "b".repeat(100_000)), 431),
        ("CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), 501),
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), 400),
        ("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n".to_owned(), 400),
        ("GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n".to_owned(), 400),
    ] {
        let mut client = server.connect();
        // The server may close before all of it is sent.
        let _ = std::io::Write::write_all(client.stream.get_mut(), request.as_bytes());
        let head = client.head();
        assert!(head.contains(&format!(" {status} ")), "{head}");
    }
    assert_eq!(server.get("/").status, 200);
}

#[test]
fn a_promised_length_is_kept() {
    let server = serve(
        By(|request: Request, response: &ResponseWriter| {
            let mut headers = HeaderMap::new();
            headers.insert("content-length", http::HeaderValue::from_static("5"));
            response.start(StatusCode::OK, headers);
            let _ = response.write(&request.head.uri.path().as_bytes()[1..]);
            Ok(())
        }),
        |config| config.patience = PATIENCE,
    );
    assert_eq!(server.get("/exact").text(), "exact");
    assert_eq!(server.get("/less").status, 502);
    assert_eq!(server.get("/longer").status, 502);
    assert!(server.log.text().contains("it announced 5 bytes and wrote 4"));
    let mut client = server.connect();
    client.send("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(client.head().contains("content-length: 5"));
}

#[test]
fn a_handler_may_go_on_when_its_response_is_complete() {
    let (go_on, told) = channel::<()>();
    let told = Mutex::new(told);
    let server = serve(
        By(move |request: Request, response: &ResponseWriter| {
            let mut headers = HeaderMap::new();
            headers.insert("content-length", http::HeaderValue::from_static("2"));
            let status = match request.head.uri.path() {
                "/nothing" => StatusCode::NO_CONTENT,
                _ => StatusCode::OK,
            };
            if status == StatusCode::NO_CONTENT {
                headers.clear();
            }
            response.start(status, headers);
            response.write(b"ok").unwrap();
            response.flush();
            told.lock().unwrap().recv_timeout(PATIENCE).unwrap();
            assert!(!response.is_given_up());
            Ok(())
        }),
        |_| {},
    );
    let mut client = server.connect();
    for request in ["GET /", "HEAD /", "GET /nothing"] {
        client.send(format!("{request} HTTP/1.1\r\nHost: a\r\n\r\n"));
        let head = client.head();
        if request == "GET /" {
            let mut body = [0; 2];
            client.stream.read_exact(&mut body).unwrap();
            assert_eq!(&body, b"ok");
        }
        assert!(head.starts_with("HTTP/1.1 20"), "{head}");
        // On the same connection, so that the server is done with that answer.
        client.send("BAD\r\n\r\n");
        assert!(client.head().contains(" 400 "));
        go_on.send(()).unwrap();
        client = server.connect();
    }
    server.wait_for_metric("pagefork_handlers_busy", 0.0);
    assert_eq!(server.metric("pagefork_failures_total{kind=\"client_gone\"}"), 0.0);
    assert!(server.log.text().lines().all(|line| line.contains(" bad_request: ")));
}

#[test]
fn requests_under_way_are_finished_when_the_server_stops() {
    let (gate, handler) = gated(hello);
    let server = serve(handler, |_| {});
    let mut idle = server.connect();
    assert_eq!(idle.get("/").status, 200);
    let mut running = server.connect();
    running.send("GET /gate HTTP/1.1\r\nHost: a\r\n\r\n");
    gate.begun.recv_timeout(PATIENCE).unwrap();
    let address = server.address;
    server.stop_handle().stop();
    assert!(idle.is_closed());
    until("the listener to close", || std::net::TcpStream::connect(address).is_err());
    gate.go_on.send(()).unwrap();
    assert_eq!(running.answer().text(), "hello");
    assert!(running.is_closed());
    let summary = server.wait();
    assert_eq!((summary.requests, summary.left), (2, 0));
}

#[test]
fn requests_under_way_are_interrupted_when_the_server_must_stop() {
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    let server = serve(
        By(move |_, response: &ResponseWriter| {
            tell.lock().unwrap().send(()).unwrap();
            until("the end", || response.is_given_up());
            Ok(())
        }),
        |_| {},
    );
    let mut running = server.connect();
    running.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    told.recv_timeout(PATIENCE).unwrap();
    server.stop_handle().stop_now();
    assert_eq!(running.answer().status, 503);
    assert_eq!(server.wait().left, 0);
}

/// The responses to requests that are sent at once on one connection of HTTP/2.
fn ask_http2(
    server: &Served,
    requests: Vec<http::Request<String>>,
) -> Vec<http::Response<Vec<u8>>> {
    use hyper_util::rt::{TokioExecutor, TokioIo};
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build().unwrap();
    runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(server.address).await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
                .await
                .unwrap();
        tokio::spawn(connection);
        let asked: Vec<_> =
            requests.into_iter().map(|request| sender.send_request(request)).collect();
        let mut responses = Vec::new();
        for response in asked {
            let (head, mut body) = response.await.unwrap().into_parts();
            let mut bytes = Vec::new();
            while let Some(frame) = std::future::poll_fn(|context| {
                use http_body::Body;
                std::pin::Pin::new(&mut body).poll_frame(context)
            })
            .await
            {
                bytes.extend(frame.unwrap().into_data().unwrap());
            }
            responses.push(http::Response::from_parts(head, bytes));
        }
        responses
    })
}

#[test]
fn http2_is_spoken_to_those_who_begin_with_it() {
    let server = serve(By(echo), |_| {});
    let requests = ["one", "two"]
        .map(|body| http::Request::post("http://test/x").body(body.to_owned()).unwrap());
    let responses = ask_http2(&server, requests.into());
    for (response, body) in responses.iter().zip(["one", "two"]) {
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.version(), http::Version::HTTP_2);
        assert_eq!(response.body(), body.as_bytes());
    }
    until("the access log", || server.access.text().contains("\"POST /x HTTP/2.0\" 200 3 "));
}

/// Answers with a status and a size that the target says, and a body all the same.
fn with_status(request: Request, response: &ResponseWriter) -> Result<(), Failure> {
    let mut words = request.head.uri.path().split('/').skip(1);
    let status = words.next().unwrap().parse().unwrap();
    let mut headers = HeaderMap::new();
    if let Some(size) = words.next().filter(|size| !size.is_empty()) {
        headers.insert("content-length", size.parse().unwrap());
    }
    response.start(status, headers);
    let _ = response.write(b"hello");
    if words.next().is_some() {
        response.flush();
        let _ = response.write(b"hello");
    }
    Ok(())
}

/// What [`with_status`] is asked for, and the size that is said.
const BODILESS: [(&str, Option<&str>); 8] = [
    ("/204", None),
    ("/204/5", None),
    ("/204//flush", None),
    ("/204/5/flush", None),
    ("/304", None),
    ("/304/7", Some("7")),
    ("/304//flush", None),
    ("/304/7/flush", Some("7")),
];

#[test]
fn responses_without_a_body_end_with_their_head() {
    let server = serve(By(with_status), |_| {});
    let mut client = server.connect();
    for (target, size) in BODILESS {
        client.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
        let head = client.head();
        let status = &target[1..4];
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{target}: {head}");
        let said = common::field(&head, "content-length");
        assert!(said.is_none() || said == size, "{target}: {head}");
        assert!(!head.contains("transfer-encoding"), "{target}: {head}");
    }
    assert_eq!(client.get("/200").text(), "hello", "nothing is left over");
    until("the access log", || server.access.text().lines().count() > BODILESS.len());
    assert_eq!(server.access.text().matches("04 0 ").count(), BODILESS.len());
}

#[test]
fn responses_without_a_body_have_none_in_http2() {
    let server = serve(By(with_status), |_| {});
    let requests = BODILESS.map(|(target, _)| {
        http::Request::get(format!("http://test{target}")).body(String::new()).unwrap()
    });
    let responses = ask_http2(&server, requests.into());
    for ((target, size), response) in BODILESS.into_iter().zip(responses) {
        assert_eq!(response.status().as_str(), &target[1..4]);
        let said = response.headers().get("content-length");
        assert_eq!(said.map(|said| said.to_str().unwrap()), size, "{target}");
        assert_eq!(response.body(), b"", "{target}");
    }
}

#[test]
fn the_host_is_what_the_target_says() {
    let server = serve(
        By(|request: Request, response: &ResponseWriter| {
            response.start(StatusCode::OK, HeaderMap::new());
            for host in request.head.headers.get_all("host") {
                let _ = response.write(host.as_bytes());
            }
            Ok(())
        }),
        |_| {},
    );
    for (head, host) in [
        ("GET / HTTP/1.1\r\nHost: a:80", "a:80"),
        ("GET http://target/ HTTP/1.1\r\nHost: other", "target"),
        ("GET http://me:secret@target:81/ HTTP/1.1\r\nHost: other", "target:81"),
        ("GET http://target/ HTTP/1.0", "target"),
        ("GET / HTTP/1.0", ""),
    ] {
        let mut client = server.connect();
        client.send(format!("{head}\r\n\r\n"));
        assert_eq!(client.answer().text(), host, "{head}");
    }
    let alone = http::Request::get("http://test:82/").body(String::new()).unwrap();
    let both = http::Request::get("http://test/").header("host", "other");
    let responses = ask_http2(&server, vec![alone, both.body(String::new()).unwrap()]);
    let hosts: Vec<_> = responses.iter().map(http::Response::body).collect();
    assert_eq!(hosts, [b"test:82", &b"test"[..]]);
}

#[test]
fn requests_keep_their_identities_and_are_logged() {
    let server = serve(By(hello), |_| {});
    let mut client = server.connect();
    client.send("GET /a?b HTTP/1.1\r\nHost: a\r\nX-Request-Id: mine/1\r\n\r\n");
    assert_eq!(client.answer().field("x-request-id"), Some("mine/1"));
    client.send("GET / HTTP/1.1\r\nHost: a\r\nX-Request-Id: not \"mine\"\r\n\r\n");
    let fresh = client.answer().field("x-request-id").unwrap().to_owned();
    assert_eq!(fresh.len(), 16);
    until("the access log", || server.access.text().lines().count() == 2);
    let log = server.access.text();
    let first = log.lines().next().unwrap();
    assert!(first.starts_with("127.0.0.1 - - ["), "{first}");
    assert!(
        first.contains("\"GET /a?b HTTP/1.1\" 200 5 0.") && first.ends_with(" mine/1 -"),
        "{first}"
    );
    assert!(log.ends_with(&format!("{fresh} -\n")));
}
