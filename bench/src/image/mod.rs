//! Snapshots as files: from the shell to an answer, in a process that is up, large ones beside small
//! ones, and how large they are.

pub(crate) mod programs;
mod sizes;

pub use programs::part;

use std::path::{Path, PathBuf};

use pagefork::image::{ContentHash, ImageStore};
use pagefork::{Instance, Linker, LoadOptions, Module, SaveOptions, Snapshot, Store};

use crate::engines;
use crate::measure::{Effort, Row, Size, compare};
use crate::report::Report;

/// Times what loads snapshots, and says what these take on a disk.
///
/// # Panics
/// If something cannot be written, or comes back as something else.
pub fn run(size: Size) -> Report {
    let scratch = Scratch::new();
    let mut rows = Vec::new();
    if size == Size::Large {
        programs::run(&scratch.0, size, &mut rows);
        sizes::run(&scratch.0, size, &mut rows);
    }
    let mut report = Report { text: String::new(), samples: String::new(), plot: None };
    let note = large_and_small(&scratch.0, size, &mut rows);
    let of_rows = Report::of_rows("image", &rows);
    report.text += &of_rows.text;
    report.samples += &of_rows.samples;
    report.text += &format!("\n{note}\n");
    report
}

/// A directory on a disk, removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("pagefork-bench-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a directory of ours");
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A memory of so many MiB, all of it in use, whose image is saved.
struct Filled {
    module: Module,
    linker: Linker<()>,
    images: ImageStore,
    image: ContentHash,
    /// What was captured.
    snapshot: Snapshot<()>,
}

impl Filled {
    fn new(directory: &Path, mebibytes: u32) -> Self {
        let engine = engines::pagefork::engine(true);
        let pages = 16 * mebibytes;
        let text = format!(
            r#"(module (memory {pages})
                (func (export "fill")
                    (memory.fill (i32.const 0) (i32.const 7) (i32.const {bytes})))
                (func (export "last") (result i32) (i32.load8_u (i32.const {last}))))"#,
            bytes = mebibytes << 20,
            last = (mebibytes << 20) - 1,
        );
        let module = Module::new(&engine, text).expect("a valid module");
        let mut store = Store::new(&engine, ());
        let instance = Instance::new(&mut store, &module, &[]).expect("a slot");
        let fill = instance.get_typed_func::<(), ()>(&mut store, "fill").expect("it is there");
        fill.call(&mut store, ()).expect("it returns");
        let snapshot = store.snapshot().expect("it can be captured");
        let images = ImageStore::open(directory.join("filled")).expect("a directory of ours");
        let image = snapshot.save(&images, SaveOptions::new()).expect("there is room");
        images.set_name(&format!("filled-{mebibytes}"), image).expect("a good name");
        Self { linker: Linker::new(&engine), module, images, image, snapshot }
    }

    fn load(&self) -> Snapshot<()> {
        let options = LoadOptions::new().module(&self.module);
        Snapshot::load(&self.linker, &self.images, self.image, options).expect("it was saved")
    }
}

/// What depends on an image's size, and what does not.
fn large_and_small(directory: &Path, size: Size, rows: &mut Vec<Row>) -> String {
    let sizes = if size == Size::Small { [1, 4] } else { [10, 1024] };
    let all = sizes.map(|mebibytes| (mebibytes, Filled::new(directory, mebibytes)));
    let mut medians = Vec::new();
    for (mebibytes, filled) in &all {
        let mut ours = || u64::from(filled.load().stored_image().is_some());
        let name = format!("opening an image of {mebibytes} MiB, its module loaded");
        let row = compare(&name, Effort::short(size).on_the_wall(), 1, &mut ours, None);
        medians.push(row.median());
        rows.push(row);
    }
    for (mebibytes, filled) in &all {
        let mut ours = || {
            let pre = filled.load().instance_pre().expect("it has an instance");
            u64::from(pre.spawn(()).is_ok())
        };
        let name = format!("opening an image of {mebibytes} MiB and spawning from it");
        rows.push(compare(&name, Effort::short(size).on_the_wall(), 1, &mut ours, None));
    }
    for (mebibytes, filled) in &all {
        let sources = [("memory", filled.snapshot.clone()), ("a file", filled.load())];
        for (source, snapshot) in sources {
            let pre = snapshot.instance_pre().expect("it has an instance");
            let mut ours = || {
                let (mut store, instance) = pre.spawn(()).expect("a slot");
                let last = instance.get_typed_func::<(), i32>(&mut store, "last");
                last.and_then(|last| last.call(&mut store, ())).expect("it returns") as u64
            };
            let name = format!(
                "spawning from {source}, {mebibytes} MiB, warm slot, and reading a byte of it"
            );
            rows.push(compare(&name, Effort::short(size), 7, &mut ours, None));
        }
    }
    let (before, large) = (bytes_read(), &all[1].1);
    let pre = large.load().instance_pre().expect("it has an instance");
    let stores: Vec<_> = (0..10).map(|_| pre.spawn(()).expect("a slot")).collect();
    let (calls, disk) = bytes_read();
    drop(stores);
    format!(
        "Opening {} MiB takes {:.2} times as long as {} MiB. Opening it once and spawning from it 10 \
         times, this process read {} bytes by calls (what describes the image), and {} from the disk.",
        sizes[1],
        medians[1] / medians[0],
        sizes[0],
        calls - before.0,
        disk - before.1,
    )
}

/// What this process has read by calls, and what of it came from disks.
fn bytes_read() -> (u64, u64) {
    let text = std::fs::read_to_string("/proc/self/io").expect("the kernel counts");
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.trim().parse().ok()).expect("a number")
    };
    (field("rchar:"), field("read_bytes:"))
}
