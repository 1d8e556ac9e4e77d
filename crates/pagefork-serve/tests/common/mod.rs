//! A server in this process, and a client that shows what is on the wire.

#![allow(dead_code, reason = "not every test needs everything")]

/// Handlers in Rust.
pub(crate) mod handlers;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pagefork::{Engine, Linker, Module};
use pagefork_serve::{
    Failure, Handler, Program, ProgramOptions, Request, ResponseWriter, Server, ServerConfig,
    Summary,
};
use pagefork_wasi::WasiCtxBuilder;

/// How long anything may take before a test gives up: much longer than it does.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A log that a test reads.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

pub(crate) struct Served {
    server: Server,
    pub(crate) address: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) log: Log,
    pub(crate) access: Log,
}

/// Serves a handler, as `change` says.
pub(crate) fn serve(handler: impl Handler, change: impl FnOnce(&mut ServerConfig)) -> Served {
    let mut config = ServerConfig::new(SocketAddr::from(([127, 0, 0, 1], 0)));
    config.admin = Some(config.address);
    config.grace = PATIENCE;
    config.keep_request_ids = true;
    let (log, access) = (Log::default(), Log::default());
    config.log(Box::new(log.clone()));
    config.access_log(pagefork_serve::AccessFormat::Common, Box::new(access.clone()));
    change(&mut config);
    let server = Server::start(config, handler).unwrap();
    let (address, admin) = (server.address(), server.admin_address().unwrap());
    Served { server, address, admin, log, access }
}

/// Serves a program in text or binary.
pub(crate) fn serve_program(
    module: impl AsRef<[u8]>,
    change: impl FnOnce(&mut ServerConfig),
) -> Served {
    serve(program(module, &WasiCtxBuilder::new(), ProgramOptions::default()), change)
}

pub(crate) fn program(
    module: impl AsRef<[u8]>,
    world: &WasiCtxBuilder,
    options: ProgramOptions,
) -> Program {
    try_program(module, world, options).unwrap()
}

pub(crate) fn try_program(
    module: impl AsRef<[u8]>,
    world: &WasiCtxBuilder,
    options: ProgramOptions,
) -> Result<Program, pagefork_serve::CgiProgramError> {
    let engine = Engine::default();
    let module = Module::new(&engine, module).unwrap();
    let mut linker = Linker::new(&engine);
    pagefork_wasi::add_to_linker(&mut linker, |context| context).unwrap();
    Program::new(&linker, &module, world.template().unwrap(), options)
}

impl Served {
    pub(crate) fn connect(&self) -> Client {
        Client::new(self.address)
    }

    /// Asks with GET, on a connection of its own.
    pub(crate) fn get(&self, target: &str) -> Answer {
        self.connect().get(target)
    }

    pub(crate) fn log_handle(&self) -> pagefork_serve::LogHandle {
        self.server.log_handle()
    }

    pub(crate) fn stop_handle(&self) -> pagefork_serve::StopHandle {
        self.server.stop_handle()
    }

    pub(crate) fn stop(self) -> Summary {
        self.server.stop_handle().stop();
        self.server.wait()
    }

    pub(crate) fn wait(self) -> Summary {
        self.server.wait()
    }

    pub(crate) fn metrics(&self) -> String {
        Client::new(self.admin).get("/metrics").text()
    }

    /// A value among the metrics.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let metrics = self.metrics();
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in {metrics}")).parse().unwrap()
    }

    /// Waits until one of the metrics has this value.
    pub(crate) fn wait_for_metric(&self, name: &str, wanted: f64) {
        until(name, || self.metric(name) == wanted);
    }
}

/// Waits until something has come about.
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !done() {
        assert!(begun.elapsed() < PATIENCE, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A connection of HTTP/1.1.
pub(crate) struct Client {
    pub(crate) stream: BufReader<TcpStream>,
}

/// A response.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        field(&self.head, name)
    }
}

pub(crate) fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| {
        let (other, value) = line.split_once(':')?;
        other.eq_ignore_ascii_case(name).then_some(value.trim())
    })
}

impl Client {
    pub(crate) fn new(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Client { stream: BufReader::new(stream) }
    }

    pub(crate) fn get(&mut self, target: &str) -> Answer {
        self.send(format!("GET {target} HTTP/1.1\r\nHost: test\r\n\r\n"));
        self.answer()
    }

    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.get_mut().write_all(bytes.as_ref()).unwrap();
    }

    /// Sends part of a body in chunks.
    pub(crate) fn send_chunk(&mut self, bytes: &[u8]) {
        self.send([format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat());
    }

    pub(crate) fn head(&mut self) -> String {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            let count = self.stream.read_line(&mut head).unwrap();
            assert_ne!(count, 0, "the connection ended: {head:?}");
        }
        head
    }

    pub(crate) fn chunk(&mut self) -> Vec<u8> {
        let mut size = String::new();
        self.stream.read_line(&mut size).unwrap();
        let size = usize::from_str_radix(size.trim(), 16).unwrap();
        let mut bytes = vec![0; size + 2];
        self.stream.read_exact(&mut bytes).unwrap();
        bytes.truncate(size);
        bytes
    }

    pub(crate) fn answer(&mut self) -> Answer {
        let head = self.head();
        let body = self.body(&head);
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer { status, head, body }
    }

    fn body(&mut self, head: &str) -> Vec<u8> {
        let mut body = Vec::new();
        if field(head, "transfer-encoding").is_some() {
            loop {
                let chunk = self.chunk();
                if chunk.is_empty() {
                    return body;
                }
                body.extend(chunk);
            }
        }
        let size = field(head, "content-length").map_or(0, |size| size.parse().unwrap());
        body.resize(size, 0);
        self.stream.read_exact(&mut body).unwrap();
        body
    }

    /// Whether the server has closed the connection, or will.
    pub(crate) fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        self.stream.read_to_end(&mut rest).is_err() || rest.is_empty()
    }
}

/// A connection of HTTP/2 that sends what it is told, and answers pings.
pub(crate) struct RawHttp2(TcpStream);

impl RawHttp2 {
    /// The kinds of frames that tests send.
    pub(crate) const HEADERS: u8 = 1;
    pub(crate) const SETTINGS: u8 = 4;

    /// `GET http://test/`: three fields of the static table, and one with its name there.
    pub(crate) const GET: &[u8] = b"\x82\x84\x86\x41\x04test";

    const PING: u8 = 6;
    const ACKNOWLEDGED: u8 = 1;
    const HEAD_SIZE: usize = 9;

    /// Begins with these settings.
    pub(crate) fn new(address: SocketAddr, settings: &[u8]) -> RawHttp2 {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
        let answering = stream.try_clone().unwrap();
        std::thread::spawn(move || RawHttp2(answering).answer_pings());
        let mut client = RawHttp2(stream);
        client.send(Self::SETTINGS, 0, 0, settings).unwrap();
        client
    }

    pub(crate) fn send(
        &mut self,
        kind: u8,
        flags: u8,
        stream: u32,
        payload: &[u8],
    ) -> std::io::Result<()> {
        let size = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let head = [&size[1..], &[kind, flags], &stream.to_be_bytes()];
        self.0.write_all(&[&head.concat(), payload].concat())
    }

    /// Does so until the connection ends.
    fn answer_pings(mut self) -> std::io::Result<()> {
        loop {
            let mut head = [0; Self::HEAD_SIZE];
            self.0.read_exact(&mut head)?;
            let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
            self.0.read_exact(&mut payload)?;
            if (head[3], head[4]) == (Self::PING, 0) {
                self.send(Self::PING, Self::ACKNOWLEDGED, 0, &payload)?;
            }
        }
    }
}

impl Drop for RawHttp2 {
    fn drop(&mut self) {
        // The other thread has it too.
        let _ = self.0.shutdown(std::net::Shutdown::Both);
    }
}

/// A handler that is a closure.
pub(crate) struct By<F>(pub(crate) F);

impl<F> Handler for By<F>
where
    F: Fn(Request, &ResponseWriter) -> Result<(), Failure> + Send + Sync + 'static,
{
    fn handle(&self, request: Request, response: &ResponseWriter) -> Result<(), Failure> {
        (self.0)(request, response)
    }
}

/// The program with a start function that does this.
pub(crate) fn started_by(program: &str, start: &str) -> String {
    let function = format!("(start $start) (func $start {start}) (func (export \"_start\")");
    program.replace("(func (export \"_start\")", &function)
}

/// A CGI program that writes this and then does that.
pub(crate) fn writes(output: &str, then: &str) -> String {
    let size = output.len();
    let first = format!("(call $write (i32.const 1) (i32.const 65536) (i32.const {size}))");
    knows(output, &format!("{first} {then}"))
}

/// A CGI program that does this, and has these bytes at 65536.
pub(crate) fn knows(output: &str, then: &str) -> String {
    let data: String = output.bytes().map(|byte| format!("\\{byte:02x}")).collect();
    format!(
        r#"(module
        (import "wasi_snapshot_preview1" "fd_write"
            (func $fd_write (param i32 i32 i32 i32) (result i32)))
        (import "wasi_snapshot_preview1" "fd_read"
            (func $fd_read (param i32 i32 i32 i32) (result i32)))
        (import "wasi_snapshot_preview1" "poll_oneoff"
            (func $poll (param i32 i32 i32 i32) (result i32)))
        (import "wasi_snapshot_preview1" "environ_get" (func $environ_get (param i32 i32) (result i32)))
        (import "wasi_snapshot_preview1" "environ_sizes_get"
            (func $environ_sizes_get (param i32 i32) (result i32)))
        (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
        (memory (export "memory") 8)
        (data (i32.const 65536) "{data}")
        ;; Writes all of it.
        (func $write (param $fd i32) (param $at i32) (param $size i32)
            (loop $again
                (i32.store (i32.const 0) (local.get $at))
                (i32.store (i32.const 4) (local.get $size))
                (if (i32.eqz (local.get $size)) (then (return)))
                (if (call $fd_write (local.get $fd) (i32.const 0) (i32.const 1) (i32.const 8))
                    (then (return)))
                (local.set $at (i32.add (local.get $at) (i32.load (i32.const 8))))
                (local.set $size (i32.sub (local.get $size) (i32.load (i32.const 8))))
                (br $again)))
        ;; Reads at most 64 KiB to 131072; -1 if that fails.
        (func $read (result i32)
            (i32.store (i32.const 0) (i32.const 131072))
            (i32.store (i32.const 4) (i32.const 65536))
            (if (result i32)
                (call $fd_read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8))
                (then (i32.const -1))
                (else (i32.load (i32.const 8)))))
        (func (export "_start") (local $n i32)
            {then}))"#
    )
}

/// What a program does that writes the request's body.
pub(crate) const ECHO: &str = r#"
    (loop $more
        (local.set $n (call $read))
        (if (i32.gt_s (local.get $n) (i32.const 0)) (then
            (call $write (i32.const 1) (i32.const 131072) (local.get $n))
            (br $more))))"#;

/// What a program does that writes its variables, each with a NUL.
pub(crate) const ENVIRONMENT: &str = r#"
    (drop (call $environ_sizes_get (i32.const 16) (i32.const 20)))
    (drop (call $environ_get (i32.const 1024) (i32.const 131072)))
    (call $write (i32.const 1) (i32.const 131072) (i32.load (i32.const 20)))"#;

/// The head of a response with nothing remarkable.
pub(crate) const PLAIN: &str = "Content-Type: text/plain\n\n";
