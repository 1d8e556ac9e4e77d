//! CPython as it waits for its input, in an image: from the shell to its answer, and in a process
//! that is up; beside starting it.

use std::path::Path;
use std::process::{Command, Stdio};

use pagefork::image::{ContentHash, ImageStore, SecretKey, TrustedKeys};
use pagefork::{
    Cache, CallProgress, Config, Engine, Instance, Linker, LoadOptions, Module, Snapshot, Store,
};
use pagefork_serve::{ForkGuest, add_fork_to_linker};
use pagefork_wasi::ProgramState;
use pagefork_wasi::{OutputKind, OutputPipe, StdinKind, WasiCtxBuilder};

use crate::engines;
use crate::fork;
use crate::measure::{Effort, Row, Size, Work, compare};
use crate::process::Process;
use crate::programs::{self, fetched};

/// Answers a line, and ends.
pub(crate) const SCRIPT: &str = "import json, os, re\n\
    digits = re.compile('[0-9]+')\n\
    line = input()\n\
    print(json.dumps({'n': int(digits.search(line)[0]) * 6}), flush=True)\n\
    os._exit(0)\n";

pub(crate) const INPUT: &str = "7\n";
pub(crate) const ANSWER: &[u8] = b"{\"n\": 42}\n";

/// Signs what is saved here, and is trusted.
pub(crate) fn key() -> SecretKey {
    SecretKey::from_seed([0x2f; 32])
}

pub(crate) fn trusted() -> TrustedKeys {
    TrustedKeys::from_iter([key().public()])
}

/// CPython at its first read, saved in a store.
pub(crate) fn python(wasm: &[u8], script: &str, images: &ImageStore) -> (Module, ContentHash) {
    let module = Module::new(&engines::pagefork::engine(true), wasm).expect("a valid module");
    let program = fork::started(&module, &["-c", script]);
    let image = program.save(images, &[key()]).expect("there is room");
    (module, image)
}

pub(crate) fn linker(engine: &Engine) -> Linker<ForkGuest> {
    let mut linker = Linker::new(engine);
    pagefork_wasi::add_to_linker(&mut linker, |guest: &mut ForkGuest| &mut guest.ctx)
        .and_then(|()| add_fork_to_linker(&mut linker))
        .expect("names are free");
    linker
}

/// An engine that keeps what it compiles.
fn cached(directory: &Path) -> Engine {
    let mut config = Config::new();
    config.cache(Cache::new(directory.join("cache")));
    Engine::new(&config).expect("this machine runs guests")
}

/// A store of a snapshot, with its input.
pub(crate) fn spawned(
    snapshot: &Snapshot<ForkGuest>,
    input: &str,
) -> (Store<ForkGuest>, Instance, OutputPipe) {
    let state = ProgramState::from_bytes(snapshot.state()).expect("it was saved");
    let (output, stdout) = OutputKind::pipe();
    let mut builder = WasiCtxBuilder::new();
    builder.stdin(StdinKind::bytes(input)).stdout(stdout);
    let ctx = builder.restore(&state.wasi).expect("nothing is open").ctx;
    let pre = snapshot.instance_pre().expect("it has an instance");
    let (store, instance) = pre.spawn(ForkGuest { ctx, number: Some(1) }).expect("a slot");
    (store, instance, output)
}

pub(super) fn run(directory: &Path, size: Size, rows: &mut Vec<Row>) {
    let Some(wasm) = fetched("python.wasm") else { return };
    let store = directory.join("python");
    let images = ImageStore::open(&store).expect("a directory of ours");
    let (module, image) = python(&wasm, SCRIPT, &images);
    images.set_name("python", image).expect("a good name");
    std::fs::write(directory.join("python.wasm"), &wasm).expect("there is room");
    drop(Module::new(&cached(directory), &wasm).expect("a valid module"));
    #[cfg(feature = "peer")]
    {
        let peer = wasmtime::Module::new(&engines::wasmtime::engine(true), &wasm);
        let code = peer.and_then(|module| module.serialize()).expect("a valid module");
        std::fs::write(directory.join("python.cwasm"), code).expect("there is room");
    }

    let in_a_process = |words: &[&str]| {
        let program = std::env::current_exe().expect("this program is a file");
        let mut command = Command::new(program);
        command.args(["--part", "image"]).args(words).arg(directory);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("this program can be started");
        let input = child.stdin.take().expect("it is piped");
        // One that does nothing may have ended.
        let _ = std::io::Write::write_all(&mut { input }, INPUT.as_bytes());
        let output = child.wait_with_output().expect("it ends");
        u64::from(output.stdout == ANSWER)
    };
    let many = Effort { samples: 31, sample_ns: 0.0, ..Effort::long(size).on_the_wall() };
    #[cfg(feature = "peer")]
    let mut theirs = || in_a_process(&["start-peer"]);
    macro_rules! peer {
        () => {{
            #[cfg(feature = "peer")]
            let peer: Option<Work<'_>> = Some(&mut theirs);
            #[cfg(not(feature = "peer"))]
            let peer: Option<Work<'_>> = None;
            peer
        }};
    }
    let mut ours = || in_a_process(&["start"]);
    let name =
        "CPython in a new process, from its start to its answer (cached; the peer's code mapped)";
    rows.push(compare(name, many, 1, &mut ours, peer!()));
    let mut ours = || in_a_process(&["restore"]);
    let name = "CPython in a new process, from an image to its answer (the peer from its start)";
    rows.push(compare(name, many, 1, &mut ours, peer!()));
    let mut ours = || in_a_process(&["nothing"]);
    let name = "a new process that does nothing";
    rows.push(compare(name, many, 0, &mut ours, None));

    let short = Effort::short(size).on_the_wall();
    let linker = linker(module.engine());
    let mut ours = || {
        let snapshot = load(&linker, &images, image, LoadOptions::new().module(&module));
        u64::from(spawned(&snapshot, INPUT).0.suspended().is_some())
    };
    let name = "loading it in a process that has its code, to the read";
    rows.push(compare(name, short, 1, &mut ours, None));
    let mut ours = || {
        let snapshot = load(&linker, &images, image, LoadOptions::new().module(&module));
        let (mut store, _, output) = spawned(&snapshot, INPUT);
        // Leaving by `proc_exit` is an error to the engine.
        drop(store.resume());
        u64::from(output.contents() == ANSWER)
    };
    let name = "loading it in a process that has its code, to its answer";
    rows.push(compare(name, short, 1, &mut ours, None));
    let mut ours = || {
        let snapshot = load(&linker, &images, image, LoadOptions::new());
        u64::from(spawned(&snapshot, INPUT).0.suspended().is_some())
    };
    let name = "loading it with its code, to the read";
    rows.push(compare(name, short, 1, &mut ours, None));
}

pub(super) fn load(
    linker: &Linker<ForkGuest>,
    images: &ImageStore,
    image: ContentHash,
    options: LoadOptions<'_>,
) -> Snapshot<ForkGuest> {
    Snapshot::load(linker, images, image, options.trust(trusted())).expect("it was saved")
}

/// What a process of its own does.
///
/// # Panics
/// If it cannot.
pub fn part(what: &str, directory: &str) {
    let directory = Path::new(directory);
    let process = || {
        let args = ["python", "-c", SCRIPT].map(str::to_owned).to_vec();
        Process::new(args, INPUT.as_bytes().to_vec())
    };
    let print = |bytes: &[u8]| {
        std::io::Write::write_all(&mut std::io::stdout(), bytes).expect("somebody reads");
    };
    match what {
        // As `pagefork restore` does it.
        "restore" => {
            let images = ImageStore::open(directory.join("python")).expect("it was made");
            let image = images.find("python").expect("it has a name");
            let linker = linker(&Engine::default());
            let mut builder = WasiCtxBuilder::new();
            builder.inherit_stdio();
            let snapshot = load(&linker, &images, image, LoadOptions::new());
            let state = ProgramState::from_bytes(snapshot.state()).expect("it was saved");
            let ctx = builder.restore(&state.wasi).expect("nothing is open").ctx;
            let pre = snapshot.instance_pre().expect("it has an instance");
            let spawned = pre.spawn(ForkGuest { ctx, number: Some(0) });
            let (mut store, _) = spawned.expect("a slot");
            assert!(!matches!(store.resume(), Ok(CallProgress::Suspended)), "it has its input");
        }
        "start" => {
            let wasm = std::fs::read(directory.join("python.wasm")).expect("it was written");
            let module = Module::new(&cached(directory), wasm).expect("it is in the cache");
            let runner = programs::pagefork_side::Runner::of(module, true);
            print(&runner.run(process()).output);
        }
        #[cfg(feature = "peer")]
        "start-peer" => {
            let runner = programs::wasmtime_side::Runner::of(
                engines::wasmtime::compiled(&directory.join("python.cwasm")),
                true,
            );
            print(&runner.run(process()).output);
        }
        "nothing" => {}
        _ => panic!("there is no part {what}"),
    }
}
