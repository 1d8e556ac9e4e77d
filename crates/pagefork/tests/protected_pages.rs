//! Pages that are read-only or write-protected between snapshots: whoever writes to them goes on, and
//! what was written is in the next snapshot; what is refused for another reason is a trap, or its
//! handler's.

mod child;

use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::{AtomicUsize, Ordering};

use pagefork::{
    Config, DeltaTracker, Engine, Global, Instance, InstancePre, Linker, Memory, Module, Store,
    StrategyConfig, Table, Trap, TrapCode, Val,
};

use child::in_child;

const PROGRAM: &str = r#"(module
    (memory (export "memory") 8 64) (memory (export "second") 2 8)
    (table (export "table") 600 700 externref)
    (global (export "global") (mut i64) (i64.const 0))
    (data (i32.const 70000) "seventy") (data $passive "passive")
    (func (export "put") (param i32 i64) (i64.store (local.get 0) (local.get 1)))
    (func (export "put_second") (param i32 i64) (i64.store 1 (local.get 0) (local.get 1)))
    (func (export "vector") (param i32 i64)
        (v128.store (local.get 0) (i64x2.splat (local.get 1))))
    (func (export "fill") (param i32 i64)
        (memory.fill (local.get 0) (i32.wrap_i64 (local.get 1)) (i32.const 9000)))
    (func (export "copy") (param i32 i64)
        (memory.copy (local.get 0) (i32.wrap_i64 (local.get 1)) (i32.const 9000)))
    (func (export "init") (param i32 i64)
        (memory.init $passive (local.get 0) (i32.const 0) (i32.const 7)))
    (func (export "set") (param i32 i64) (global.set 0 (local.get 1)))
    (func (export "grow") (param i32 i64) (drop (memory.grow (local.get 0))))
    (func (export "table_grow") (param i32 i64)
        (drop (table.grow (ref.null extern) (local.get 0))))
    (func $deep (export "deep") (param i32 i64)
        (i64.store (local.get 0) (local.get 1))
        (call $deep (i32.add (local.get 0) (i32.const 1)) (local.get 1))))"#;

/// Trackers that notice writes by signals.
const TRACKERS: [DeltaTracker; 2] = [DeltaTracker::Protect, DeltaTracker::Fault];

struct Guest {
    tracker: DeltaTracker,
    store: Store<()>,
    instance: Instance,
    memory: Memory,
    second: Memory,
    table: Table,
    global: Global,
}

fn pre(deltas: DeltaTracker) -> InstancePre<()> {
    let strategies = StrategyConfig { deltas, ..StrategyConfig::default() };
    let engine = Engine::new(Config::new().strategies(strategies)).unwrap();
    let module = Module::new(&engine, PROGRAM).unwrap();
    Linker::new(&engine).instantiate_pre(&module).unwrap()
}

impl Guest {
    fn of(tracker: DeltaTracker, (mut store, instance): (Store<()>, Instance)) -> Self {
        let memory = instance.get_memory(&mut store, "memory").unwrap();
        let second = instance.get_memory(&mut store, "second").unwrap();
        let table = instance.get_table(&mut store, "table").unwrap();
        let global = instance.get_global(&mut store, "global").unwrap();
        Self { tracker, store, instance, memory, second, table, global }
    }

    fn spawn(tracker: DeltaTracker) -> Self {
        Self::of(tracker, pre(tracker).spawn(()).unwrap())
    }

    /// Makes two pages private, so that each tracker has them noticed.
    fn touch(&mut self) {
        self.call("put", 8, 1).unwrap();
        self.call("put", 70008, 1).unwrap();
    }

    fn call(&mut self, name: &str, at: i32, value: i64) -> Result<(), TrapCode> {
        let function =
            self.instance.get_typed_func::<(i32, i64), ()>(&mut self.store, name).unwrap();
        let called = function.call(&mut self.store, (at, value));
        called.map_err(|error| error.downcast_ref::<Trap>().unwrap().code())
    }

    /// What a snapshot has to have.
    fn contents(&mut self) -> (Vec<u8>, Vec<u8>, u64, i64) {
        let global = self.global.get(&mut self.store).unwrap_i64();
        let table = self.table.size(&self.store);
        let bytes = |memory: &Memory| memory.data(&self.store).to_vec();
        (bytes(&self.memory), bytes(&self.second), table, global)
    }

    #[track_caller]
    fn snapshot(&mut self, what: &str) {
        let snapshot = self.store.snapshot().unwrap();
        let mut other = Self::of(self.tracker, snapshot.instance_pre().unwrap().spawn(()).unwrap());
        assert!(other.contents() == self.contents(), "{what}");
    }

    /// Whether the next write to a page raises a signal.
    fn is_read_only(&self, at: usize) -> bool {
        let address = self.memory.data(&self.store).as_ptr().addr() + at;
        match self.tracker {
            DeltaTracker::Fault => is_write_protected(address),
            _ => access(address) == "r--p",
        }
    }
}

/// The kernel's letters for what may be done at an address.
fn access(address: usize) -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let has = |line: &&str| {
        let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let number = |text| usize::from_str_radix(text, 16).unwrap();
        (number(start)..number(end)).contains(&address)
    };
    maps.lines().find(has).unwrap().split(' ').nth(1).unwrap().to_owned()
}

/// Whether the kernel's page table says that writes to a page are noticed.
fn is_write_protected(address: usize) -> bool {
    const PROTECTED: u64 = 1 << 57;
    let mut entry = [0; 8];
    let file = std::fs::File::open("/proc/self/pagemap").unwrap();
    file.read_exact_at(&mut entry, (address / 4096 * 8) as u64).unwrap();
    u64::from_ne_bytes(entry) & PROTECTED != 0
}

/// Trackers that work here.
fn trackers() -> impl Iterator<Item = DeltaTracker> {
    TRACKERS.into_iter().filter(|tracker| {
        let works = *tracker != DeltaTracker::Fault || pagefork_pages::faults_at_writes();
        if !works {
            eprintln!("NOT TESTED: this kernel raises no signals at writes");
        }
        works
    })
}

#[test]
fn whoever_writes_goes_on_and_the_next_snapshot_has_it() {
    trackers().for_each(write_and_take);
}

fn write_and_take(tracker: DeltaTracker) {
    let mut guest = Guest::spawn(tracker);
    guest.touch();
    guest.snapshot("first");
    for (name, at, value) in [
        ("put", 8, 7),
        // Over the border of two pages, and of a page that is private already.
        ("put", 0x1ffc, -1),
        ("put", 70000, 1),
        ("put_second", 4096, 9),
        ("vector", 0x3ff8, 77),
        ("fill", 0x5001, 3),
        ("copy", 0x9001, 0x5005),
        ("init", 0xd123, 0),
        ("set", 0, 5),
        ("grow", 3, 0),
        ("put", 10 << 16, 5),
        ("table_grow", 50, 0),
    ] {
        assert!(guest.is_read_only(8) && guest.is_read_only(70000), "before {name}");
        guest.call(name, at, value).unwrap();
        guest.snapshot(name);
    }

    // By the host, and by another thread's.
    let memory = guest.memory;
    memory.write(&mut guest.store, 0x20000 - 3, b"memory").unwrap();
    guest.snapshot("write");
    let (mut local, ()) = memory.local_and_store_mut(&mut guest.store);
    local.write(0x21000 - 3, b"memory").unwrap();
    guest.snapshot("local write");
    let (mut local, ()) = memory.local_and_store_mut(&mut guest.store);
    local.part_mut(0x23000..0x25001).unwrap().fill(9);
    guest.snapshot("part");
    assert!(guest.is_read_only(0x23000));
    guest.global.set(&mut guest.store, Val::I64(99)).unwrap();
    guest.snapshot("global");
    guest.table.grow(&mut guest.store, 20, Val::null_extern_ref()).unwrap();
    guest.snapshot("table");
    memory.grow(&mut guest.store, 2).unwrap();
    guest.snapshot("growth");
    memory.discard(&mut guest.store, 0, 8 << 16).unwrap();
    guest.snapshot("discard");
    let mut guest = std::thread::spawn(move || {
        guest.call("put", 0x6000, 6).unwrap();
        guest.memory.write(&mut guest.store, 0x7000, b"memory").unwrap();
        guest
    })
    .join()
    .unwrap();
    guest.snapshot("thread");
    assert!(guest.is_read_only(8));

    // A view of all may be written by whoever has it: nothing is read-only from then on.
    memory.data_mut(&mut guest.store)[5] = 8;
    assert!(!guest.is_read_only(8));
    guest.snapshot("view");
    assert!(!guest.is_read_only(8));
    memory.data_mut(&mut guest.store)[0x9000] = 8;
    guest.snapshot("second view");
}

#[test]
fn traps_are_traps_where_pages_are_read_only() {
    trackers().for_each(trap_where_pages_are_read_only);
}

fn trap_where_pages_are_read_only(tracker: DeltaTracker) {
    let mut guest = Guest::spawn(tracker);
    guest.touch();
    guest.snapshot("first");
    for (name, at, value, code) in [
        ("put", 8 << 16, 7, TrapCode::MemoryOutOfBounds),
        ("put", -1, 7, TrapCode::MemoryOutOfBounds),
        ("fill", (8 << 16) - 5, 7, TrapCode::MemoryOutOfBounds),
        ("deep", 0, 7, TrapCode::StackOverflow),
    ] {
        assert_eq!(guest.call(name, at, value), Err(code), "{name} at {at}");
        guest.snapshot(name);
    }
    // The memory's last bytes are its own.
    guest.call("put", (8 << 16) - 8, 7).unwrap();
    guest.snapshot("last");
}

#[test]
fn nothing_is_read_only_after_a_reset_nor_in_the_next_instance() {
    trackers().for_each(reset_and_spawn);
}

fn reset_and_spawn(tracker: DeltaTracker) {
    let pre = pre(tracker);
    for round in 0..3 {
        let mut guest = Guest::of(tracker, pre.spawn(()).unwrap());
        assert!(!guest.is_read_only(8) && !guest.is_read_only(70000), "{round}");
        guest.touch();
        guest.snapshot("first");
        assert!(guest.is_read_only(8) && guest.is_read_only(70000), "{round}");
        guest.call("put", 70000, 7).unwrap();
        guest.store.reset(()).unwrap();
        assert!(!guest.is_read_only(8) && !guest.is_read_only(70000), "{round}");
        assert_eq!(guest.memory.data(&guest.store)[70000..70007], *b"seventy");
        guest.snapshot("after a reset");
    }
}

/// A page of the embedder's that is read-only.
fn own_page() -> usize {
    // SAFETY: a new map.
    let page = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ, flags, -1, 0)
    };
    assert_ne!(page, libc::MAP_FAILED);
    page.expose_provenance()
}

fn write_at(address: usize) {
    // SAFETY: none; a handler makes the page writable, or the process ends here.
    unsafe { std::ptr::with_exposed_provenance_mut::<u8>(address).write_volatile(1) };
}

/// Faults that the embedder's handler has seen.
static SEEN: AtomicUsize = AtomicUsize::new(0);

/// Makes pages writable, as embedders do that notice writes to pages of their own.
extern "C" fn make_writable(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    SEEN.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the kernel gives a valid structure; a page of this process is made writable, or the
    // process ends.
    unsafe {
        let page = std::ptr::with_exposed_provenance_mut((*info).si_addr().addr() & !4095);
        if libc::mprotect(page, 4096, libc::PROT_READ | libc::PROT_WRITE) != 0 {
            libc::_exit(99);
        }
    }
}

#[test]
fn an_embedder_that_notices_writes_in_the_same_way_gets_its_own() {
    let name = "an_embedder_that_notices_writes_in_the_same_way_gets_its_own";
    let status = in_child(name, || {
        // SAFETY: the structure is filled in; the handler is async-signal-safe.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = make_writable as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            assert_eq!(libc::sigaction(libc::SIGSEGV, &action, std::ptr::null_mut()), 0);
        }
        let mut guest = Guest::spawn(DeltaTracker::Protect);
        guest.snapshot("first");
        for round in 0..3 {
            guest.call("put", 8, round).unwrap();
            assert_eq!(SEEN.load(Ordering::Relaxed), round as usize);
            let page = own_page();
            write_at(page);
            write_at(page);
            assert_eq!(SEEN.load(Ordering::Relaxed), round as usize + 1);
            guest.snapshot("next");
        }
    });
    assert_eq!(status.code(), Some(0));
}

#[test]
fn other_refused_writes_end_the_process() {
    let status = in_child("other_refused_writes_end_the_process", || {
        let mut guest = Guest::spawn(DeltaTracker::Protect);
        guest.snapshot("first");
        guest.call("put", 8, 1).unwrap();
        write_at(own_page());
    });
    assert_eq!(status.signal(), Some(libc::SIGSEGV));
}
