//! A program that was started once, captured where it reads its input, and started again from
//! there, beside starting it from the beginning.

mod ruby;

use pagefork::{CallProgress, Linker, Module, PoolConfig, Store, Val};
use pagefork_serve::{ForkGuest, ForkStreams, StartedProgram, add_fork_to_linker};
use pagefork_wasi::{OutputKind, StdinKind, WasiCtxBuilder};

use crate::engines;
use crate::measure::{Effort, Row, Size, Work, compare};
use crate::process::Process;
use crate::programs::{self, fetched};

/// What is forked: ends with its answer, not with a tear-down of all objects.
const SCRIPT: &str = "import json, os, re\n\
    digits = re.compile('[0-9]+')\n\
    line = input()\n\
    print(json.dumps({'n': int(digits.search(line)[0]) * 6}), flush=True)\n\
    os._exit(0)\n";

/// The same with Python's own tear-down.
const SCRIPT_THAT_ENDS: &str = "import json, re\n\
    digits = re.compile('[0-9]+')\n\
    line = input()\n\
    print(json.dumps({'n': int(digits.search(line)[0]) * 6}))\n";

/// Times CPython from its start and from its first read, and snapshots of what has written some
/// pages.
pub fn run(size: Size) -> Vec<Row> {
    let mut rows = Vec::new();
    if size == Size::Large
        && let Some(wasm) = fetched("python.wasm")
    {
        python(&wasm, size, &mut rows);
    }
    if size == Size::Large
        && let Some(wasm) = fetched("quickjs.wasm")
    {
        quickjs(&wasm, size, &mut rows);
    }
    if size == Size::Large
        && let Some(wasm) = fetched("ruby.wasm")
    {
        let module = Module::new(&engines::pagefork::engine(true), wasm).expect("a valid module");
        let check = |output: Vec<u8>| u64::from(output == b"42\n");
        let mut ours = || check(ruby::from_its_start(&module));
        let name = "Ruby: from its start to its answer";
        rows.push(compare(name, Effort::long(size), 1, &mut ours, None));
        let program = ruby::Started::new(&module);
        let mut ours = || check(program.answer());
        let name = "a fork of Ruby, warm slot: to its answer";
        rows.push(compare(name, Effort::short(size), 1, &mut ours, None));
    }
    if size == Size::Large
        && let Some(wasm) = fetched("primes.wasm")
    {
        go(&wasm, size, &mut rows);
    }
    snapshots(size, &mut rows);
    rows
}

fn python(wasm: &[u8], size: Size, rows: &mut Vec<Row>) {
    let process = |script: &str| {
        let args = ["python", "-c", script].map(str::to_owned).to_vec();
        Process::new(args, b"7\n".to_vec())
    };
    let check = |output: &[u8]| u64::from(output == b"{\"n\": 42}\n");
    #[cfg(feature = "peer")]
    let theirs = programs::wasmtime_side::Runner::new(wasm, true);
    #[cfg(feature = "peer")]
    let mut peer = || check(&theirs.run(process(SCRIPT)).output);
    macro_rules! peer {
        () => {{
            #[cfg(feature = "peer")]
            let peer: Option<Work<'_>> = Some(&mut peer);
            #[cfg(not(feature = "peer"))]
            let peer: Option<Work<'_>> = None;
            peer
        }};
    }
    let cold = programs::pagefork_side::Runner::new(wasm, true);
    let mut ours = || check(&cold.run(process(SCRIPT)).output);
    let name = "CPython with json and re: from its start to its answer";
    rows.push(compare(name, Effort::long(size), 1, &mut ours, peer!()));

    let engine = engines::pagefork::engine(true);
    let module = Module::new(&engine, wasm).expect("a valid module");
    let [program, ends] =
        [SCRIPT, SCRIPT_THAT_ENDS].map(|script| started(&module, &["-c", script]));
    let fork = |program: &StartedProgram| {
        let (output, stdout) = OutputKind::pipe();
        let stdin = StdinKind::bytes("7\n");
        let streams = ForkStreams { stdin, stdout, stderr: OutputKind::Null };
        (program.fork(1, streams).expect("a slot"), output)
    };
    let answer = |program: &StartedProgram| {
        let (mut store, output) = fork(program);
        // Leaving by `proc_exit` is an error to the engine.
        drop(store.resume());
        check(&output.contents())
    };
    for (kept, slot) in [(0, "new slot"), (8, "warm slot")] {
        engine.set_pool(PoolConfig { kept_max: kept, idle_max: None, ..PoolConfig::default() });
        engine.purge_pool();
        let name = format!("a fork of CPython, {slot}: to the read");
        let mut ours = || u64::from(fork(&program).0.suspended().is_some());
        rows.push(compare(&name, Effort::short(size), 1, &mut ours, None));
        let name = format!("a fork of CPython, {slot}: to its answer (the peer from its start)");
        let mut ours = || answer(&program);
        rows.push(compare(&name, Effort::short(size), 1, &mut ours, peer!()));
    }
    let name = "a fork of CPython, warm slot: to its answer, with Python's own tear-down";
    let mut ours = || answer(&ends);
    rows.push(compare(name, Effort::short(size), 1, &mut ours, None));
}

/// A program, at its first read.
pub(crate) fn started(module: &Module, arguments: &[&str]) -> StartedProgram {
    let mut linker: Linker<ForkGuest> = Linker::new(module.engine());
    pagefork_wasi::add_to_linker(&mut linker, |guest| &mut guest.ctx).expect("names are free");
    add_fork_to_linker(&mut linker).expect("the name is free");
    let mut builder = WasiCtxBuilder::new();
    builder.arg("program").args(arguments);
    StartedProgram::start(&linker, module, builder).expect("it reads its input")
}

fn quickjs(wasm: &[u8], size: Size, rows: &mut Vec<Row>) {
    let script = "const words = [...Array(1000).keys()].map(String); \
        const n = Number(std.in.getline()); console.log(words[n * 6]); std.exit(0);";
    let arguments = ["--std", "-e", script];
    let check = |output: &[u8]| u64::from(output == b"42\n");
    let process = || {
        let words = ["qjs"].into_iter().chain(arguments).map(str::to_owned).collect();
        Process::new(words, b"7\n".to_vec())
    };
    #[cfg(feature = "peer")]
    let theirs = programs::wasmtime_side::Runner::new(wasm, true);
    #[cfg(feature = "peer")]
    let mut theirs = || check(&theirs.run(process()).output);
    #[cfg(feature = "peer")]
    let peer: Option<Work<'_>> = Some(&mut theirs);
    #[cfg(not(feature = "peer"))]
    let peer: Option<Work<'_>> = None;
    let cold = programs::pagefork_side::Runner::new(wasm, true);
    let mut ours = || check(&cold.run(process()).output);
    let name = "QuickJS: from its start to its answer";
    rows.push(compare(name, Effort::short(size), 1, &mut ours, peer));

    let engine = engines::pagefork::engine(true);
    let module = Module::new(&engine, wasm).expect("a valid module");
    let program = started(&module, &arguments);
    let mut ours = || {
        let (output, stdout) = OutputKind::pipe();
        let stdin = StdinKind::bytes("7\n");
        let streams = ForkStreams { stdin, stdout, stderr: OutputKind::Null };
        // Leaving by `proc_exit` is an error to the engine.
        drop(program.fork(1, streams).expect("a slot").resume());
        check(&output.contents())
    };
    let name = "a fork of QuickJS, warm slot: to its answer";
    rows.push(compare(name, Effort::short(size), 1, &mut ours, None));
}

/// A Go program that makes a table of primes when it starts, and answers a request of CGI.
fn go(wasm: &[u8], size: Size, rows: &mut Vec<Row>) {
    let check = |output: &[u8]| {
        let answer = b"prime: 19 of 78498\n";
        u64::from(output.windows(answer.len()).any(|bytes| bytes == answer))
    };
    let module = Module::new(&engines::pagefork::engine(true), wasm).expect("a valid module");
    let variables =
        [("REQUEST_METHOD", "GET"), ("SERVER_PROTOCOL", "HTTP/1.1"), ("PATH_INFO", "/8")];
    let variables = [&variables[..], &[("REQUEST_URI", "/8"), ("HTTP_HOST", "localhost")]].concat();
    let mut linker: Linker<ForkGuest> = Linker::new(module.engine());
    pagefork_wasi::add_to_linker(&mut linker, |guest| &mut guest.ctx).expect("names are free");
    add_fork_to_linker(&mut linker).expect("the name is free");
    let pre = linker.instantiate_pre(&module).expect("all is linked");
    let mut ours = || {
        let (output, stdout) = OutputKind::pipe();
        let mut builder = WasiCtxBuilder::new();
        builder.arg("program").envs(&variables).stdout(stdout);
        let guest = ForkGuest { ctx: builder.build().expect("a context"), number: None };
        let (mut store, instance) = pre.spawn(guest).expect("a slot");
        let start = instance.get_typed_func::<(), ()>(&mut store, "_start").expect("a program");
        // Leaving by `proc_exit` is an error to the engine.
        drop(start.call(&mut store, ()));
        check(&output.contents())
    };
    let name = "Go with a table of primes: from its start to its answer";
    rows.push(compare(name, Effort::long(size), 1, &mut ours, None));

    let program = started(&module, &[]);
    let all = [("CONTENT_LENGTH", "0"), ("SCGI", "1")].into_iter().chain(variables.iter().copied());
    let head: String = all.map(|(name, value)| format!("{name}\0{value}\0")).collect();
    let request = format!("{}:{head},", head.len());
    let mut ours = || {
        let (output, stdout) = OutputKind::pipe();
        let stdin = StdinKind::bytes(request.as_str());
        let streams = ForkStreams { stdin, stdout, stderr: OutputKind::Null };
        drop(program.fork(1, streams).expect("a slot").resume());
        check(&output.contents())
    };
    let name = "a fork of that Go program, warm slot: to its answer";
    rows.push(compare(name, Effort::short(size), 1, &mut ours, None));
}

/// Times snapshots of a guest of 10 MiB: of all of it, and of a fork that has written some pages.
fn snapshots(size: Size, rows: &mut Vec<Row>) {
    const MIB: u32 = 1 << 20;
    let engine = engines::pagefork::engine(true);
    let text = r#"(module
        (import "host" "pause" (func $pause))
        (memory (export "memory") 256)
        (func $write (param $pages i32) (param $step i32) (local $at i32)
            (loop $l
                (i32.store (local.get $at) (i32.add (local.get $pages) (i32.load (local.get $at))))
                (local.set $at (i32.add (local.get $at) (local.get $step)))
                (br_if $l (local.tee $pages (i32.sub (local.get $pages) (i32.const 1))))))
        (func (export "fill") (call $write (i32.const 2560) (i32.const 4096)))
        (func (export "write") (param i32) (call $write (local.get 0) (i32.const 8192))
            (call $pause)))"#;
    let module = Module::new(&engine, text).expect("a valid module");
    let mut linker = Linker::new(&engine);
    let pause = |mut caller: pagefork::Caller<'_, ()>| caller.suspend_after();
    linker.func_wrap("host", "pause", pause).expect("a new name");
    let mut store = Store::new(&engine, ());
    let instance = linker.instantiate(&mut store, &module).expect("all is linked");
    let fill = instance.get_typed_func::<(), ()>(&mut store, "fill").expect("it is there");
    fill.call(&mut store, ()).expect("it returns");
    let mut ours = || u64::from(store.snapshot().is_ok());
    let name = format!("snapshot of {} MiB", 2560 * 4096 / MIB);
    rows.push(compare(&name, Effort::short(size), 1, &mut ours, None));

    let pre = store.snapshot().and_then(|snapshot| snapshot.instance_pre()).expect("a snapshot");
    for pages in [1, 10, 100, 1000] {
        let (mut store, instance) = pre.spawn(()).expect("a slot");
        let write = instance.get_func(&mut store, "write").expect("it is there");
        let progress = write.call_suspendable(&mut store, &[Val::I32(pages)]).expect("it runs");
        assert!(matches!(progress, CallProgress::Suspended), "it pauses");
        let mut ours = || u64::from(store.snapshot().is_ok());
        let name = format!("snapshot of a fork of it that has written {pages} pages");
        rows.push(compare(&name, Effort::short(size), 1, &mut ours, None));
        let pre = store.snapshot().and_then(|snapshot| snapshot.instance_pre());
        let pre = pre.expect("a snapshot");
        let mut ours = || u64::from(pre.spawn(()).is_ok());
        let name = format!("spawning from that, warm slot: {pages} pages");
        rows.push(compare(&name, Effort::short(size), 1, &mut ours, None));
    }
}
