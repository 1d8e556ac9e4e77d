//! Clients in closed loops.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use super::{Guest, NATIVE};

/// What clients saw.
pub(super) struct Load {
    /// How long each request took, in nanoseconds, ascending.
    pub(super) times: Vec<f64>,
    /// From the first request to the last answer.
    elapsed: f64,
}

impl Load {
    /// Requests a second.
    pub(super) fn rate(&self) -> f64 {
        self.times.len() as f64 * 1e9 / self.elapsed
    }

    /// The time that so large a part of the requests did not exceed.
    pub(super) fn quantile(&self, part: f64) -> f64 {
        let index = (self.times.len() as f64 * part) as usize;
        self.times[index.min(self.times.len() - 1)]
    }
}

/// Sends requests on this many connections: on each the next when the last is answered.
pub(super) fn load(
    address: SocketAddr,
    connections: usize,
    duration: Duration,
    guest: &Guest,
    backend: &str,
) -> Load {
    let ready = Barrier::new(connections);
    let one = || {
        let mut connection = Connection::new(address);
        let mut times = Vec::new();
        ready.wait();
        let start = Instant::now();
        loop {
            let begun = Instant::now();
            let body = connection.request();
            times.push(begun.elapsed().as_nanos() as f64);
            if backend != NATIVE {
                let text = String::from_utf8_lossy(body);
                assert!(text.contains(guest.expected), "{} answers {text:?}", guest.name);
            }
            if start.elapsed() >= duration {
                return (times, start.elapsed().as_nanos() as f64);
            }
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..connections).map(|_| scope.spawn(one)).collect();
        let mut all = Load { times: Vec::new(), elapsed: 0.0 };
        for thread in threads {
            let (times, elapsed) = thread.join().expect("all requests are answered");
            all.times.extend(times);
            all.elapsed = all.elapsed.max(elapsed);
        }
        all.times.sort_by(f64::total_cmp);
        all
    })
}

/// The body of one answer.
pub(super) fn once(address: SocketAddr) -> Vec<u8> {
    Connection::new(address).request().to_vec()
}

/// A connection that is kept.
pub(super) struct Connection {
    stream: BufReader<TcpStream>,
    line: String,
    body: Vec<u8>,
}

impl Connection {
    pub(super) fn new(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("the server listens");
        stream.set_nodelay(true).expect("it can be set");
        Self { stream: BufReader::new(stream), line: String::new(), body: Vec::new() }
    }

    /// Sends a request and reads the answer.
    pub(super) fn request(&mut self) -> &[u8] {
        const REQUEST: &[u8] = b"GET /a?b HTTP/1.1\r\nHost: localhost\r\n\r\n";
        self.stream.get_mut().write_all(REQUEST).expect("the server reads");
        assert!(self.next_line().starts_with("HTTP/1.1 200 "), "{}", self.line);
        let mut length = None;
        while !self.next_line().is_empty() {
            let (name, value) = self.line.trim_end().split_once(": ").expect("a field");
            if name.eq_ignore_ascii_case("content-length") {
                length = Some(value.parse().expect("a length"));
            }
        }
        self.body.clear();
        match length {
            Some(length) => self.read(length),
            // In chunks, each with its length before it and an empty line behind.
            None => loop {
                let length = usize::from_str_radix(self.next_line(), 16).expect("a length");
                self.read(length);
                assert_eq!(self.next_line(), "", "a chunk ends");
                if length == 0 {
                    break;
                }
            },
        }
        &self.body
    }

    fn next_line(&mut self) -> &str {
        self.line.clear();
        self.stream.read_line(&mut self.line).expect("the server answers");
        self.line.trim_end()
    }

    fn read(&mut self, length: usize) {
        let start = self.body.len();
        self.body.resize(start + length, 0);
        self.stream.read_exact(&mut self.body[start..]).expect("the server answers");
    }
}
