//! Programs that others wrote are started once, and forked from where they read standard input.

#[allow(dead_code, reason = "other tests use the rest")]
mod guests;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use guests::{fetched, repository, scratch};
use pagefork::{CallProgress, Engine, Linker, Module, Store, suspend};
use pagefork_serve::{ForkGuest, ForkStreams, StartedProgram, add_fork_to_linker};
use pagefork_wasi::{Exit, OutputKind, OutputPipe, Permissions, StdinKind, WasiCtxBuilder};

fn started(module: &Module, args: &[&str], directory: Option<&Path>) -> StartedProgram {
    let mut linker: Linker<ForkGuest> = Linker::new(module.engine());
    pagefork_wasi::add_to_linker(&mut linker, |guest| &mut guest.ctx).expect("names are free");
    add_fork_to_linker(&mut linker).expect("the name is free");
    let mut builder = WasiCtxBuilder::new();
    builder.arg("guest").args(args).stderr(OutputKind::Inherit);
    if let Some(directory) = directory {
        builder.preopened_dir(directory, "/app", Permissions::ReadOnly).expect("a directory");
    }
    StartedProgram::start(&linker, module, builder).expect("it reads its input")
}

fn fork(program: &StartedProgram, number: u32, input: &[u8]) -> (Store<ForkGuest>, OutputPipe) {
    let (output, stdout) = OutputKind::pipe();
    let streams =
        ForkStreams { stdin: StdinKind::bytes(input), stdout, stderr: OutputKind::Inherit };
    (program.fork(number, streams).expect("it is spawned"), output)
}

/// Runs a fork to its end; its exit code.
fn finish(store: &mut Store<ForkGuest>) -> i32 {
    match store.resume() {
        Ok(CallProgress::Finished(_)) => 0,
        Ok(CallProgress::Suspended) => panic!("nothing suspends it"),
        Err(error) => match error.downcast_ref::<Exit>() {
            Some(exit) => exit.0,
            None => panic!("the guest failed: {error:?}"),
        },
    }
}

fn text(output: &OutputPipe) -> String {
    String::from_utf8(output.contents()).expect("text")
}

/// Bytes of this process's memory that are resident and not shared with files.
fn resident() -> u64 {
    let rollup = fs::read_to_string("/proc/self/smaps_rollup").expect("proc is mounted");
    let line = rollup.lines().find(|line| line.starts_with("Private_Dirty:")).expect("a line");
    line.split_whitespace().nth(1).and_then(|size| size.parse::<u64>().ok()).expect("a size") << 10
}

#[test]
fn a_thousand_forks_of_one_python_are_alive_at_once() {
    const COUNT: u32 = 1000;
    let Some(module) = fetched("python.wasm") else { return };
    // Its own tear-down would write to all objects that there are.
    let script = "import json, os, re, sys\n\
                  words = [str(i) for i in range(50000)]\n\
                  number = int(input())\n\
                  text = json.dumps({'n': number, 'list': [number] * 3})\n\
                  print(re.sub(r'\\s', '', text), words[number], flush=True)\n\
                  os._exit(0)\n";
    let program = started(&module, &["-c", script], None);
    let before = resident();
    let mut forks: Vec<_> = (1..=COUNT)
        .map(|number| fork(&program, number, format!("{number}\n").as_bytes()))
        .collect();
    for (number, (store, output)) in (1..).zip(&mut forks) {
        assert_eq!(finish(store), 0);
        let expected =
            format!("{{\"n\":{number},\"list\":[{number},{number},{number}]}} {number}\n");
        assert_eq!(text(output), expected);
    }
    let each = (resident() - before) / u64::from(COUNT);
    println!("{} KiB a fork", each >> 10);
    assert!(each < 1 << 20, "{each} bytes a fork");
}

/// A CGI script runs unchanged, and each request has generators and variables of its own.
#[test]
fn a_python_script_answers_requests_unchanged() {
    let Some(module) = fetched("python.wasm") else { return };
    let app = scratch("started-python");
    fs::copy(repository().join("guest/python/pagefork_cgi.py"), app.join("pagefork_cgi.py"))
        .expect("it is there");
    let script = "import json, os, random, sys, uuid\n\
                  print('Content-Type: application/json\\n')\n\
                  if os.environ['PATH_INFO'] == '/exit': sys.exit(3)\n\
                  if os.environ['PATH_INFO'] == '/raise': raise ValueError('as asked')\n\
                  print(json.dumps({'path': os.environ['PATH_INFO'], 'name': __name__,\n\
                  \u{20}   'argv': sys.argv, 'random': random.random(), 'uuid': str(uuid.uuid4()),\n\
                  \u{20}   'body': sys.stdin.read(), 'length': os.environ.get('CONTENT_LENGTH')}))\n";
    fs::write(app.join("script.py"), script).expect("a new file");
    let args = ["/app/pagefork_cgi.py", "/app/script.py", "more"];
    let program = started(&module, &args, Some(&app));
    let request = |path: &str, length: &str, body: &str| {
        let head = format!("CONTENT_LENGTH\0{length}\0SCGI\x001\0PATH_INFO\0{path}\0");
        let input = format!("{}:{head},{body}", head.len());
        let (mut store, output) = fork(&program, 1, input.as_bytes());
        (finish(&mut store), text(&output))
    };
    let mut seen = BTreeMap::new();
    for (path, length, body) in [
        ("/a", "0", ""),
        ("/b", "5", "hello and what is not of the body"),
        ("/c", "", "to the end"),
    ] {
        let (code, answer) = request(path, length, body);
        assert_eq!(code, 0, "{answer}");
        let (head, json) = answer.split_once("\n\n").expect("a head");
        assert_eq!(head, "Content-Type: application/json");
        let value = |name: &str| {
            let rest = json.split(&format!("\"{name}\": ")).nth(1).expect("a value");
            rest.split([',', '}']).next().expect("text").to_owned()
        };
        assert_eq!(value("path"), format!("{path:?}"));
        assert_eq!(value("name"), "\"__main__\"");
        assert!(json.contains("\"argv\": [\"/app/script.py\", \"more\"]"), "{json}");
        let expected = match length {
            "" => ("\"to the end\"", "null".to_owned()),
            "5" => ("\"hello\"", "\"5\"".to_owned()),
            _ => ("\"\"", format!("\"{length}\"")),
        };
        if length == "0" {
            assert_eq!(value("length"), expected.1);
        } else {
            assert_eq!((&*value("body"), value("length")), (expected.0, expected.1));
        }
        for name in ["random", "uuid"] {
            assert!(seen.insert(value(name), path).is_none(), "{name} twice: {seen:?}");
        }
    }
    assert_eq!(request("/exit", "0", "").0, 3);
    assert_eq!(request("/raise", "0", "").0, 1);
}

#[test]
fn quickjs_waits_where_it_reads() {
    if let Some(module) = fetched("quickjs.wasm") {
        let script = "const table = [...Array(1000).keys()]; \
                      const n = Number(std.in.getline()); console.log(n * 2, table[n]);";
        let program = started(&module, &["--std", "-e", script], None);
        for number in 1..=20 {
            let (mut store, output) = fork(&program, number, format!("{number}\n").as_bytes());
            assert_eq!(finish(&mut store), 0);
            assert_eq!(text(&output), format!("{} {number}\n", number * 2));
        }
    }
}

/// Reads eight bytes, and has them in frames all over its stack.
const DEEP: &str = r#"(module
    (import "wasi_snapshot_preview1" "fd_read"
        (func $read (param i32 i32 i32 i32) (result i32)))
    (memory (export "memory") 1)
    (data (i32.const 0) "\10\00\00\00\08\00\00\00")
    (func $deep (param i32 i64) (result i64)
        (if (result i64) (i32.eqz (local.get 0))
            (then (local.get 1))
            (else (i64.add (local.get 1)
                (call $deep (i32.sub (local.get 0) (i32.const 1)) (local.get 1))))))
    (func (export "_start")
        (drop (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)))
        (drop (call $deep (i32.const 300) (i64.load (i32.const 16))))))"#;

#[test]
fn a_fork_finds_no_byte_of_an_earlier_one_on_its_stack() {
    let engine = Engine::default();
    let program = started(&Module::new(&engine, DEEP).expect("a module"), &[], None);
    let secrets: Vec<[u8; 8]> =
        (0..20u64).map(|n| (0xa5c3_9b71_0000_002d | n << 24).to_le_bytes()).collect();
    for (number, secret) in secrets.iter().enumerate() {
        let (mut store, _) = fork(&program, number as u32, secret);
        let slot = suspend::slot(&store, 1);
        let stack = slot.layout.stack.clone();
        let find = |store: &Store<ForkGuest>, secret: &[u8; 8]| {
            assert_eq!(suspend::slot(store, 1).start, slot.start);
            let start = slot.start + stack.start as usize;
            let start: *const u8 = std::ptr::with_exposed_provenance(start);
            // SAFETY: the stack zone is accessible, and no guest runs.
            let bytes =
                unsafe { std::slice::from_raw_parts(start, (stack.end - stack.start) as usize) };
            bytes.windows(8).filter(|window| window == secret).count()
        };
        for earlier in &secrets[..number] {
            assert_eq!(find(&store, earlier), 0, "fork {number}");
        }
        assert_eq!(finish(&mut store), 0);
        assert!(find(&store, secret) > 100, "it was there");
    }
}
