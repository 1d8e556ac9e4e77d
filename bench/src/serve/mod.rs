//! HTTP servers that answer each request by a fresh instance of a CGI program, and
//! what that costs beyond the same front end with a native handler.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use http::{HeaderMap, HeaderValue, StatusCode, header};
use pagefork_serve::{
    Failure, Handler, Program, ProgramOptions, Request, ResponseWriter, Server, ServerConfig,
};
use pagefork_wasi::WasiCtxBuilder;

use crate::grid::{Grid, percentile};
use crate::measure::{Size, Unit};
use crate::programs::fetched;
use crate::report::Report;

mod client;
#[cfg(feature = "peer-wasi")]
mod peer;

use client::Load;

/// A program that answers requests.
struct Guest {
    name: &'static str,
    /// Its own arguments.
    arguments: &'static [&'static str],
    /// What is in each of its answers.
    expected: &'static str,
    /// How many times less time Pagefork should take beyond the native handler.
    goal: f64,
}

/// Reads the request as SCGI has it, where it is forked from, and ends with its answer.
const STARTED: &str = "import json, os, sys\n\
    stdin = sys.stdin.buffer\n\
    size = stdin.read(1)\n\
    while size[-1:] != b':': size += stdin.read(1)\n\
    words = stdin.read(int(size[:-1]) + 1).split(b'\\0')\n\
    variables = dict(zip(words[::2], words[1::2]))\n\
    answer = {'path': variables[b'PATH_INFO'].decode(), 'answer': 42}\n\
    print('Content-Type: application/json\\n\\n' + json.dumps(answer), flush=True)\n\
    os._exit(0)\n";

const GUESTS: [Guest; 4] = [
    Guest { name: "hello", arguments: &[], expected: "id=\"count\">1<", goal: 2.0 },
    Guest { name: "1 MiB written", arguments: &[], expected: "", goal: 1.5 },
    Guest {
        name: "QuickJS",
        arguments: &[
            "-e",
            "let text = ''; for (let i = 0; i < 100; i++) text += String.fromCharCode(97 + i % 26);
             print('Content-Type: text/plain\\n\\n' + text.toUpperCase())",
        ],
        expected: "XYZABC",
        goal: 1.5,
    },
    Guest { name: PYTHON, arguments: &["-c", STARTED], expected: "\"answer\": 42", goal: 1.0 },
];

/// A program that is started once, and forked for each request.
const PYTHON: &str = "Python, forked";

impl Guest {
    fn wasm(&self) -> Option<Vec<u8>> {
        match self.name {
            "hello" => Some(include_bytes!("../../../guest/built/hello_cgi.wasm").to_vec()),
            "QuickJS" => fetched("quickjs.wasm"),
            PYTHON => fetched("python.wasm"),
            _ => Some(include_bytes!("../../../guest/built/dirty_cgi.wasm").to_vec()),
        }
    }

    fn find(name: &str) -> &'static Self {
        GUESTS.iter().find(|guest| guest.name == name).expect("a guest of this name")
    }
}

/// What answers behind the front end.
const NATIVE: &str = "native handler";
const PAGEFORK: &str = "pagefork";
#[cfg(feature = "peer-wasi")]
const WASMTIME: &str = "wasmtime, tuned pool";

fn backends() -> Vec<&'static str> {
    vec![
        PAGEFORK,
        #[cfg(feature = "peer-wasi")]
        WASMTIME,
        NATIVE,
    ]
}

/// Measures servers, each a process of its own, by clients that send the next request
/// when they have the answer to the last.
///
/// # Panics
/// If an answer is not what the program should say.
pub fn run(size: Size) -> Report {
    let mut grid = Grid::new("requests that a fresh instance answers", 1, backends());
    grid.beside = 1;
    let connections: &[usize] = if size == Size::Small { &[1, 3] } else { &[1, 8, 64] };
    for guest in &GUESTS {
        // Compiling it takes longer than a test should.
        let is_small = !["QuickJS", PYTHON].contains(&guest.name);
        if size == Size::Small && !is_small || guest.wasm().is_none() {
            continue;
        }
        let servers = Running::start_all(guest, size);
        for &connections in connections {
            measure(&mut grid, guest, &servers, connections, size);
        }
    }
    Report::of_grid("serve", &grid)
}

fn measure(grid: &mut Grid, guest: &Guest, servers: &[Running], connections: usize, size: Size) {
    let (rounds, duration) = match size {
        Size::Small => (1, Duration::ZERO),
        Size::Large => (9, Duration::from_secs(1)),
    };
    let mut loads: Vec<Vec<(f64, Load)>> = servers.iter().map(|_| Vec::new()).collect();
    for round in 0..=rounds {
        for (server, loads) in servers.iter().zip(&mut loads) {
            let before = server.processor_time();
            let load = client::load(server.address, connections, duration, guest, server.name);
            // The first round warms up.
            if round > 0 || rounds == 1 {
                loads.push((server.processor_time() - before, load));
            }
        }
    }
    type Value = fn(&(f64, Load)) -> f64;
    let cells = |value: Value| -> Vec<(&str, Vec<f64>)> {
        let of = |loads: &Vec<(f64, Load)>| loads.iter().map(value).collect();
        servers.iter().zip(&loads).map(|(server, loads)| (server.name, of(loads))).collect()
    };
    let many =
        if connections == 1 { "1 connection" } else { &format!("{connections} connections") };
    let name = |what: &str| format!("{}, {many}: {what}", guest.name);
    let each: Value = |(time, load)| time / load.times.len() as f64;
    let native: Vec<f64> = loads.last().expect("a native one").iter().map(each).collect();
    let native = percentile(&native, 50).expect("rounds");
    grid.add(&name("CPU a request"), Unit::Nanoseconds, cells(each)).alone = true;
    let mut beyond = cells(each);
    beyond.pop();
    beyond.iter_mut().flat_map(|(_, cell)| cell).for_each(|time| *time -= native);
    grid.add(&name("CPU beyond the native handler"), Unit::Nanoseconds, beyond).goal(guest.goal);
    grid.add(&name("requests"), Unit::Rate, cells(|(_, load)| load.rate()));
    for (what, value) in [
        ("p50", (|(_, load)| load.quantile(0.5)) as Value),
        ("p99", |(_, load)| load.quantile(0.99)),
        ("p999", |(_, load)| load.quantile(0.999)),
    ] {
        grid.add(&name(what), Unit::Nanoseconds, cells(value));
    }
}

/// A server, in a process of its own or in this one.
struct Running {
    name: &'static str,
    address: SocketAddr,
    process: Process,
}

enum Process {
    Child(Child),
    /// As a test.
    Here(#[expect(dead_code, reason = "kept alive")] Server),
}

impl Running {
    fn start_all(guest: &Guest, size: Size) -> Vec<Self> {
        // The native handler's answers are as long as the program's.
        let mut length = 0;
        let start = |name| {
            let running = Self::start(name, guest, length, size);
            if name == PAGEFORK {
                length = client::once(running.address).len();
            }
            running
        };
        // The peer has nothing to fork.
        let runs = |name: &&str| guest.name != PYTHON || [PAGEFORK, NATIVE].contains(name);
        backends().into_iter().filter(runs).map(start).collect()
    }

    fn start(name: &'static str, guest: &Guest, length: usize, size: Size) -> Self {
        if size == Size::Small {
            let server = server(name, guest.name, length);
            return Self { name, address: server.address(), process: Process::Here(server) };
        }
        let program = std::env::current_exe().expect("this program is a file");
        let mut child = Command::new(program)
            .args(["--part", "serve", name, guest.name, &length.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program can be started");
        let mut line = String::new();
        let output = child.stdout.take().expect("it is piped");
        BufReader::new(output).read_line(&mut line).expect("it writes its address");
        let address = line.trim().parse().expect("an address");
        Self { name, address, process: Process::Child(child) }
    }

    /// What it has used, user and system, in nanoseconds; counted in hundredths of a
    /// second.
    fn processor_time(&self) -> f64 {
        let Process::Child(child) = &self.process else { return 0.0 };
        let path = format!("/proc/{}/stat", child.id());
        let text = std::fs::read_to_string(path).expect("the server lives");
        // Behind the name, which is in parentheses.
        let fields = text.rsplit(')').next().expect("fields").split_whitespace();
        let ticks = fields.skip(11).take(2).map(|ticks| ticks.parse::<f64>().expect("ticks"));
        ticks.sum::<f64>() * 1e7
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Process::Child(child) = &mut self.process {
            // It ends when its standard input does.
            drop(child.stdin.take());
            let _ = child.wait();
        }
    }
}

/// Serves until standard input ends: what a process does that [`run`] starts.
///
/// # Panics
/// If it cannot.
pub fn part(backend: &str, guest: &str, length: usize) {
    let server = server(backend, guest, length);
    println!("{}", server.address());
    std::io::stdout().flush().expect("standard output is open");
    let _ = std::io::stdin().lock().lines().count();
    server.stop_handle().stop();
    server.wait();
}

fn listening() -> ServerConfig {
    let mut config = ServerConfig::new("127.0.0.1:0".parse().expect("an address"));
    config.timeout = Duration::from_secs(30);
    config
}

fn server(backend: &str, guest: &str, length: usize) -> Server {
    let config = listening();
    let guest = Guest::find(guest);
    let started = match backend {
        NATIVE => Server::start(config, Native(vec![b'.'; length])),
        PAGEFORK => Server::start(config, program(guest)),
        #[cfg(feature = "peer-wasi")]
        WASMTIME => Server::start(
            config,
            peer::Program::new(&guest.wasm().expect("it is there"), guest.arguments),
        ),
        _ => panic!("there is no backend {backend:?}"),
    };
    started.expect("it can listen")
}

fn program(guest: &Guest) -> Program {
    let config = crate::sides::pagefork::config();
    if guest.name == PYTHON {
        return started(guest, &config);
    }
    cgi(config, &guest.wasm().expect("it is there"), guest.arguments)
}

/// A program that an instance answers each request with.
fn cgi(mut config: pagefork::Config, wasm: &[u8], arguments: &[&str]) -> Program {
    config.strategies(Program::strategies());
    let engine = pagefork::Engine::new(&config).expect("this machine runs guests");
    let module = pagefork::Module::new(&engine, wasm).expect("a valid module");
    let mut linker = pagefork::Linker::new(&engine);
    pagefork_wasi::add_to_linker(&mut linker, |context| context).expect("new names");
    linker.define_memory_discard().expect("a new name");
    let mut context = WasiCtxBuilder::new();
    context.arg("program").args(arguments.iter().map(|argument| argument.as_bytes()));
    let template = context.template().expect("arguments without zeros");
    Program::new(&linker, &module, template, ProgramOptions::default()).expect("it serves")
}

/// A server of such a program in this process, and a client of it: each call is a request, and returns how long
/// its answer is.
pub(crate) fn asked(wasm: &[u8], arguments: &[&str]) -> impl FnMut() -> u64 + use<> {
    let program = cgi(crate::sides::pagefork::config(), wasm, arguments);
    let server = Server::start(listening(), program).expect("it can listen");
    let mut connection = client::Connection::new(server.address());
    move || {
        let _is_kept = &server;
        connection.request().len() as u64
    }
}

fn started(guest: &Guest, config: &pagefork::Config) -> Program {
    let engine = pagefork::Engine::new(config).expect("this machine runs guests");
    let wasm = guest.wasm().expect("it is there");
    let module = pagefork::Module::new(&engine, wasm).expect("a valid module");
    let started = crate::fork::started(&module, guest.arguments);
    Program::started(started, ProgramOptions::default())
}

/// Always the same answer.
struct Native(Vec<u8>);

impl Handler for Native {
    fn handle(&self, _: Request, response: &ResponseWriter) -> Result<(), Failure> {
        let mut fields = HeaderMap::new();
        fields.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html"));
        response.start(StatusCode::OK, fields);
        // The other side may be gone, which is no failure.
        let _ = response.write(&self.0);
        Ok(())
    }
}
