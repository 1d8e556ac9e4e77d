//! The guest page manager, `guest/pageman`: its calls do what the host kernel's do, and programs
//! with it get what it promises.

#[allow(dead_code, reason = "other tests use the rest")]
mod guests;

use std::path::PathBuf;
use std::process::Command;

use pagefork::suspend::{self, CallProgress};
use pagefork::{Func, Instance, Linker, Store, Val};
use pagefork_wasi::{OutputKind, WasiCtx, WasiCtxBuilder};

use guests::{Invocation, built, fetched, host_program, repository, scratch};

/// Sizes of pages as powers of two: the smallest and the largest.
const PAGE_SHIFTS: [u32; 2] = [12, 16];

/// Compiles a test of `guest/pageman/test` for the host. `None` is a printed skip.
fn native(test: &str, page_shift: u32, flags: &[&str]) -> Option<PathBuf> {
    let compiler = host_program("cc")?;
    let root = repository().join("guest/pageman");
    let program = scratch(&format!("pageman-{test}-{page_shift}-{}", flags.len())).join(test);
    let library = ["tables.c", "manager.c", "calls.c", "statistics.c", "posix.c", "port_native.c"];
    let mut command = Command::new(compiler);
    command.args(["-std=gnu17", "-O2", "-g", "-Wall", "-Wextra", "-Werror"]).args(flags);
    command.arg(format!("-DPAGEMAN_PAGE_SHIFT={page_shift}"));
    command.arg("-I").arg(root.join("include")).arg("-I").arg(root.join("src"));
    command.arg(root.join("test").join(test).with_extension("c"));
    command.args(library.map(|file| root.join("src").join(file))).arg("-o").arg(&program);
    let output = command.output().expect("the compiler starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(program)
}

/// Runs it with these arguments; it must succeed.
fn run(program: PathBuf, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().expect("the test starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
    print!("{}", String::from_utf8_lossy(&output.stdout));
}

fn like_the_kernel(operations: &str, seed: &str) {
    for shift in PAGE_SHIFTS {
        let Some(program) = native("kernel", shift, &[]) else { return };
        run(program, &[operations, seed]);
    }
}

/// Random sequences of mmap, munmap, mprotect, mremap, madvise, msync, mincore and sbrk have the
/// errors and contents that they have in Linux, and all that is derived from the tables of pages
/// is right after each.
#[test]
fn random_calls_do_what_the_kernels_do() {
    like_the_kernel("50000", "1");
}

#[test]
#[ignore = "takes minutes"]
fn a_million_random_calls_do_what_the_kernels_do() {
    like_the_kernel("1000000", "2");
}

#[test]
fn random_calls_have_no_undefined_behaviour() {
    const SANITIZERS: [&str; 2] = ["-fsanitize=address,undefined", "-fno-sanitize-recover"];
    let Some(program) = native("kernel", 12, &SANITIZERS) else { return };
    run(program, &["3000", "3"]);
}

/// What the summaries find is what a look at every page finds, in tables of several levels.
#[test]
fn runs_of_pages_are_found() {
    for shift in PAGE_SHIFTS {
        let Some(program) = native("runs", shift, &[]) else { return };
        run(program, &["3000"]);
    }
}

/// A long run like a collector's leaves no less of memory in use, and no shorter free run, than
/// is published of a like manager.
#[test]
fn memory_is_not_fragmented() {
    let Some(program) = native("fragmentation", 16, &[]) else { return };
    run(program, &["100000"]);
}

/// A program whose malloc stands on the manager: what `munmap` freed malloc can have and back,
/// zeros where they are promised, files, `sbrk`, foreign memory, and all of 4 GiB.
fn program(name: &str) {
    let Some(guest) = fetched(&format!("{name}.wasm")) else { return };
    let directory = scratch(name);
    let args = vec!["5000", "/", "all"];
    let outcome = Invocation { args, stdin: "", directory: Some(&directory) }.guest(&guest);
    assert_eq!(outcome.code, 0);
    assert!(outcome.stdout.ends_with("all is as promised\n"), "{}", outcome.stdout);
}

#[test]
fn a_program_with_malloc_on_the_manager() {
    program("pageman");
}

/// In Rust, with the manager as global allocator and pages beside it.
#[test]
fn a_program_in_rust() {
    let outcome = Invocation::default().guest(&built("pageman_mixed.wasm"));
    assert_eq!((outcome.code, outcome.stdout.as_str()), (0, "all is as promised\n"));
}

/// The same without WASI: the module imports nothing.
#[test]
fn a_module_in_rust_without_imports() {
    let module = built("pageman_exported.wasm");
    assert_eq!(module.imports().count(), 0);
    let mut store = Store::new(module.engine(), ());
    let instance = Instance::new(&mut store, &module, &[]).expect("it needs nothing");
    let work = instance.get_typed_func::<u32, u32>(&mut store, "work").expect("it is exported");
    for count in [1, 1_000, 300_000, 7] {
        assert_eq!(work.call(&mut store, count).expect("it does not trap"), 1, "{count}");
    }
}

/// A program that has freed most of its memory gives it back: what is resident is what it uses
/// and some more. The page map that it exports tells which pages are free, and of those that it
/// calls zero all bytes are.
#[test]
fn a_program_gives_memory_back_and_its_page_map_is_true() {
    let Some(guest) = fetched("pageman_give_back.wasm") else { return };
    let engine = guest.engine();
    let (stdout, output) = OutputKind::pipe();
    let context = WasiCtxBuilder::new().stdout(output).build().expect("a context");
    let mut store = Store::new(engine, context);
    let mut linker: Linker<WasiCtx> = Linker::new(engine);
    pagefork_wasi::add_to_linker(&mut linker, |context| context).expect("every name is free");
    linker.define_memory_discard().expect("every name is free");
    let instance = linker.instantiate(&mut store, &guest).expect("it is all there");
    let start = instance.get_typed_func::<(), ()>(&mut store, "_start").expect("a command");
    start.call(&mut store, ()).expect("it does not trap");
    println!("{}", stdout.contents().escape_ascii());

    let memory = instance.get_memory(&mut store, "memory").expect("it is exported");
    let map = instance.get_global(&mut store, "pageman_page_map").expect("it is exported");
    let Val::I32(map) = map.get(&mut store) else { panic!("an address") };
    let bytes = memory.data(&store);
    let word = |at: usize| {
        let four = bytes[at..at + 4].try_into().expect("four bytes");
        u32::from_le_bytes(four) as usize
    };
    let map = map as usize;
    assert_eq!((word(map), word(map + 4)), (0x4d47_4150, 0x0410_0001));
    assert_eq!(word(map + 8) % 2, 0, "no change is under way");
    let (pages, states) = (word(map + 12), word(map + 16));
    assert!(pages <= bytes.len() >> 16);
    let state = |page: usize| bytes[states + page / 2] >> (page % 2 * 4) & 15;
    let zero = |page: &usize| matches!(state(*page), 0 | 2);
    let used = (0..pages).filter(|page| state(*page) > 4).count();
    assert_eq!(used, 64 * 16, "pages of 64 KiB in use");
    let resident = resident(bytes);
    println!("{} MiB of {} resident, {} used", resident >> 20, bytes.len() >> 20, used >> 4);
    assert!(resident * 10 <= (used << 16) * 11, "{resident} bytes for {used} pages");
    for page in (0..pages).filter(zero) {
        assert!(bytes[page << 16..(page + 1) << 16].iter().all(|byte| *byte == 0), "{page}");
    }
}

/// A program of which snapshots are made, and what its host sees of it.
struct Mapping {
    store: Store<WasiCtx>,
}

impl Mapping {
    fn start() -> Option<Self> {
        let guest = fetched("pageman_snapshots.wasm")?;
        let mut linker: Linker<WasiCtx> = Linker::new(guest.engine());
        pagefork_wasi::add_to_linker(&mut linker, |context| context).expect("every name is free");
        let mut store = Store::new(guest.engine(), context());
        let instance = linker.instantiate(&mut store, &guest).expect("it is all there");
        let start = instance.get_typed_func::<(), ()>(&mut store, "_initialize");
        start.and_then(|start| start.call(&mut store, ())).expect("a library");
        Some(Self { store })
    }

    /// What was spawned from a snapshot of it as it is now.
    fn copy(&mut self) -> Self {
        let pre = self.store.snapshot().and_then(|snapshot| snapshot.instance_pre());
        let (store, _) = pre.and_then(|pre| pre.spawn(context())).expect("a slot");
        Self { store }
    }

    /// Does so many random calls.
    fn turn(&mut self, calls: i32) -> u32 {
        let turn = self.exported("turn").typed::<i32, u32>(&self.store).expect("its type");
        turn.call(&mut self.store, calls).expect("it does not trap")
    }

    /// Has it look at all that it has mapped; how many pages are free and dirty.
    fn verify(&mut self) -> usize {
        let verify = self.exported("verify").typed::<(), u32>(&self.store).expect("its type");
        verify.call(&mut self.store, ()).expect("it does not trap") as usize
    }

    fn exported(&mut self, name: &str) -> Func {
        let instance = suspend::instance(&self.store, 1);
        instance.get_func(&mut self.store, name).expect("it is exported")
    }

    fn memory(&mut self) -> &[u8] {
        let instance = suspend::instance(&self.store, 1);
        let memory = instance.get_memory(&mut self.store, "memory").expect("it is exported");
        memory.data(&self.store)
    }

    fn pages_in_use(&mut self) -> usize {
        let is_used = |page: &&[u8]| page.iter().any(|byte| *byte != 0);
        self.memory().chunks(4 << 10).filter(is_used).count()
    }

    /// Whether it is in the middle of a change.
    fn is_changing(&mut self) -> bool {
        let instance = suspend::instance(&self.store, 1);
        let map = instance.get_global(&mut self.store, "pageman_page_map").expect("its address");
        let map = map.get(&mut self.store).unwrap_i32() as usize;
        self.memory()[map + 8] % 2 == 1
    }
}

fn context() -> WasiCtx {
    WasiCtxBuilder::new().build().expect("a context")
}

/// What a program has freed is left out of its snapshots; it goes on from them with all that it has
/// mapped, and its manager knows that what is free is zero. The program itself keeps its bytes.
#[test]
fn snapshots_leave_free_pages_out() {
    let Some(mut program) = Mapping::start() else { return };
    let mut left_out = 0;
    for _ in 0..20 {
        program.turn(100);
        let dirty = program.verify();
        let before = program.pages_in_use();
        let mut copy = program.copy();
        assert_eq!(before - copy.pages_in_use(), dirty, "what was free and dirty");
        assert_eq!(program.pages_in_use(), before, "the original has it all");
        assert_eq!(copy.verify(), 0, "nothing is dirty");
        assert_eq!(copy.turn(50), program.copy().turn(50));
        copy.verify();
        left_out += dirty;
    }
    assert!(left_out > 500, "{left_out} pages were left out");
}

/// A snapshot in the middle of the manager's work leaves nothing out that it counts on.
#[test]
fn snapshots_in_the_middle_of_a_change_have_all() {
    let Some(mut program) = Mapping::start() else { return };
    program.turn(300);
    let turn = program.exported("turn");
    let mut copies = Vec::new();
    let mut progress = suspend::call(&mut program.store, &turn, &[Val::I32(60)], Some(1));
    let digest = loop {
        match progress.expect("it does not trap") {
            CallProgress::Finished(results) => break results[0].unwrap_i32(),
            CallProgress::Suspended => {
                if program.is_changing() {
                    copies.push(program.copy());
                }
            }
        }
        progress = suspend::resume(&mut program.store, Some(19));
    };
    program.verify();
    assert!(copies.len() > 20, "only {} copies", copies.len());
    for mut copy in copies {
        let CallProgress::Finished(results) = suspend::resume(&mut copy.store, None).unwrap()
        else {
            panic!("nothing stops it")
        };
        assert_eq!(results[0].unwrap_i32(), digest);
        copy.verify();
    }
}

/// How many of these bytes are resident, as the kernel counts pages.
fn resident(bytes: &[u8]) -> usize {
    let mut pages = vec![0u8; bytes.len() / 4096];
    let start = bytes.as_ptr().cast_mut().cast();
    // SAFETY: the bytes are whole pages, and `pages` has a byte for each of them.
    let done = unsafe { libc::mincore(start, bytes.len(), pages.as_mut_ptr()) };
    assert_eq!(done, 0, "the bytes are mapped");
    pages.iter().filter(|page| **page & 1 == 1).count() * 4096
}

#[test]
fn a_program_with_small_pages() {
    program("pageman_4k");
}
