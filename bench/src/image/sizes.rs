//! How large snapshots are, and how long it takes to make them: as files, sent, of many sessions of
//! one program; beside the peer's core dump, and beside the whole memory, which is what Faasm keeps.

use std::hint::black_box;
use std::path::Path;

use pagefork::image::{ImageStore, SecretKey, StreamWriter};
use pagefork::{CallProgress, LoadOptions, SaveOptions};

use super::programs;
use crate::measure::{Effort, Row, Size, Work, compare};
use crate::programs::fetched;

const SESSIONS: usize = 100;

/// Adds up what it reads, line by line.
const SCRIPT: &str = "import json, re\n\
    lines = []\n\
    while True:\n    line = input()\n    lines.append(json.dumps([line, len(lines)]))\n";

pub(super) fn run(directory: &Path, size: Size, rows: &mut Vec<Row>) {
    let Some(wasm) = fetched("python.wasm") else { return };
    let path = directory.join("sessions");
    let images = ImageStore::open(&path).expect("a directory of ours");
    let (module, image) = programs::python(&wasm, SCRIPT, &images);
    let linker = programs::linker(module.engine());
    let options = LoadOptions::new().module(&module);
    let first = programs::load(&linker, &images, image, options);

    // What a snapshot of it has, and what it takes to make one.
    let (mut store, instance, _) = programs::spawned(&first, "");
    let memory = instance.get_memory(&mut store, "memory").expect("it is exported");
    let file = file_size(&path, &image.to_string());
    let whole = memory.data_size(&store);
    let number = std::cell::Cell::new(0u64);
    let mut save = || {
        // Otherwise than the last one, so that it has to be written.
        number.set(number.get() + 1);
        let options = SaveOptions::new().state(number.get().to_le_bytes());
        let snapshot = store.snapshot().expect("it can be captured");
        u64::from(snapshot.save(&images, options.sign_with(&[key()])).is_ok())
    };
    let effort = Effort::long(size).on_the_wall();

    #[cfg(feature = "peer")]
    let dump = Dumped::new(&wasm);
    #[cfg(feature = "peer")]
    let dump_size = Some(dump.make().len());
    #[cfg(not(feature = "peer"))]
    let dump_size = None;
    #[cfg(feature = "peer")]
    let mut theirs = || u64::from(!dump.make().is_empty());
    #[cfg(feature = "peer")]
    let peer: Option<Work<'_>> = Some(&mut theirs);
    #[cfg(not(feature = "peer"))]
    let peer: Option<Work<'_>> = None;
    rows.push(Row::bytes(
        "CPython at its read: image file (the peer's core dump)",
        file,
        dump_size,
    ));
    let name = "capturing and saving it, brought to the disk (a core dump, in memory)";
    rows.push(compare(name, effort, 1, &mut save, peer));

    rows.push(Row::bytes("the same: whole memory, as Faasm keeps it", whole, None));
    let mut copy = || u64::from(black_box(memory.data(&store).to_vec()).len() == whole);
    rows.push(compare("copying the whole memory", effort, 1, &mut copy, None));
    let tip = first.stored_image().expect("it was loaded").chain().tip();
    let sent = || {
        let mut stream = StreamWriter::new(Vec::new(), StreamWriter::<Vec<u8>>::DEFAULT_LEVEL)
            .expect("memory takes it");
        stream.image(tip).expect("memory takes it");
        stream.finish().expect("memory takes it")
    };
    rows.push(Row::bytes("the same: image, sent (zstd), without its code", sent().len(), None));
    let mut ours = || u64::from(!sent().is_empty());
    rows.push(compare("verifying and compressing it", effort, 1, &mut ours, None));
    images.collect().expect("it is ours");

    // Sessions, each after a line of its own.
    let (mut whole_files, mut deltas) = (0, 0);
    let mut full_sessions = Vec::new();
    for session in 0..SESSIONS {
        let (mut store, _, _) =
            programs::spawned(&first, &format!("the line of session {session}\n"));
        store.data_mut().ctx.suspend_before("fd_read", 1);
        let progress = store.resume().expect("it reads on");
        assert!(matches!(progress, CallProgress::Suspended), "it reads again");
        let snapshot = store.snapshot().expect("it can be captured");
        for is_delta in [false, true] {
            let key = [key()];
            let options = SaveOptions::new().sign_with(&key);
            let options = if is_delta { options.delta_of(&first) } else { options };
            let saved = snapshot.save(&images, options).expect("there is room");
            let size = file_size(&path, &saved.to_string());
            if is_delta {
                deltas += size;
            } else {
                whole_files += size;
                full_sessions.push(images.load(saved).expect("it was saved"));
            }
        }
    }
    let mut stream = StreamWriter::new(Vec::new(), StreamWriter::<Vec<u8>>::DEFAULT_LEVEL)
        .expect("memory takes it");
    full_sessions
        .iter()
        .for_each(|session| stream.image(session.chain().tip()).expect("memory takes it"));
    let sent = stream.finish().expect("memory takes it").len();
    let dumps = dump_size.map(|dump| dump * SESSIONS);
    let name = format!("{SESSIONS} sessions of it: image files (the peer: {SESSIONS} core dumps)");
    rows.push(Row::bytes(&name, whole_files, dumps));
    rows.push(Row::bytes(&format!("{SESSIONS} sessions: deltas of the first"), deltas, dumps));
    let name = format!("{SESSIONS} sessions: whole images in one stream, sent (zstd)");
    rows.push(Row::bytes(&name, sent, dumps));
    let name = format!("{SESSIONS} sessions: whole memories, as Faasm keeps them");
    rows.push(Row::bytes(&name, whole * SESSIONS, None));
    requests(&wasm, &path, &images, rows);
}

/// Has 8 MiB of its own, reads how many pages of it to write, and writes them.
const WRITER: &str = "import os\n\
    buffer = bytearray(b'x') * (8 << 20)\n\
    for page in range(int(input())): buffer[page * 4096] = page & 255\n\
    os.write(1, b'written')\n";

/// Deltas after one request, which are in proportion to what it wrote.
fn requests(wasm: &[u8], path: &Path, images: &ImageStore, rows: &mut Vec<Row>) {
    let (module, image) = programs::python(wasm, WRITER, images);
    let linker = programs::linker(module.engine());
    let first = programs::load(&linker, images, image, LoadOptions::new().module(&module));
    for count in [0, 1, 10, 100, 1000] {
        let (mut store, _, _) = programs::spawned(&first, &format!("{count}\n"));
        store.data_mut().ctx.suspend_before("fd_write", 0);
        let progress = store.resume().expect("it writes");
        assert!(matches!(progress, CallProgress::Suspended), "it writes to its output");
        let snapshot = store.snapshot().expect("it can be captured");
        let key = [key()];
        let options = SaveOptions::new().sign_with(&key).delta_of(&first);
        let saved = snapshot.save(images, options).expect("there is room");
        let name = format!("CPython after a request that wrote {count} pages of its own: delta");
        rows.push(Row::bytes(&name, file_size(path, &saved.to_string()), None));
    }
}

fn key() -> SecretKey {
    programs::key()
}

fn file_size(store: &Path, image: &str) -> usize {
    let file = std::fs::metadata(store.join("images").join(image)).expect("it was saved");
    usize::try_from(file.len()).expect("it fits this process")
}

/// The peer's program at its first read, of which core dumps can be made.
#[cfg(feature = "peer")]
struct Dumped {
    store: std::cell::RefCell<wasmtime::Store<crate::process::Process>>,
    error: wasmtime::Error,
}

#[cfg(feature = "peer")]
impl Dumped {
    fn new(wasm: &[u8]) -> Self {
        let mut config = wasmtime::Config::new();
        config.coredump_on_trap(true);
        let engine = wasmtime::Engine::new(&config).expect("this machine runs guests");
        let module = wasmtime::Module::new(&engine, wasm).expect("a valid module");
        let args = ["python", "-c", SCRIPT].map(str::to_owned).to_vec();
        let mut process = crate::process::Process::new(args, Vec::new());
        process.ends_at_read = true;
        let runner = crate::programs::wasmtime_side::Runner::of(module, false);
        let (store, error) = runner.run_to_its_error(process);
        Self { store: store.into(), error: error.expect("it ends at its read") }
    }

    /// Makes a core dump.
    fn make(&self) -> Vec<u8> {
        let dump = self.error.downcast_ref::<wasmtime::WasmCoreDump>();
        dump.expect("it ended at its read").serialize(&mut *self.store.borrow_mut(), "python")
    }
}
