//! Calls of guests whose pages are read-only or write-protected so that writes to them are noticed: what
//! the kernel writes into such pages comes there, and is in the next snapshot.

use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;

use pagefork::{
    Config, DeltaTracker, Engine, Instance, Linker, Memory, Module, Store, StrategyConfig,
};
use pagefork_wasi::{Permissions, WasiCtx, add_to_linker};

const SOCKET: i64 = 3;
const DIRECTORY: i64 = 4;
const FILE: i64 = 5;

/// Functions and their parameters; `l` is 64 bits wide.
const FUNCTIONS: [(&str, &str); 17] = [
    ("fd_read", "iiii"),
    ("fd_pread", "iiili"),
    ("random_get", "ii"),
    ("clock_time_get", "ili"),
    ("clock_res_get", "ii"),
    ("poll_oneoff", "iiii"),
    ("sock_recv", "iiiiii"),
    ("fd_readdir", "iiili"),
    ("fd_filestat_get", "ii"),
    ("path_filestat_get", "iiiii"),
    ("path_readlink", "iiiiii"),
    ("path_open", "iiiiillii"),
    ("args_get", "ii"),
    ("environ_sizes_get", "ii"),
    ("fd_prestat_dir_name", "iii"),
    ("fd_seek", "ilii"),
    ("fd_fdstat_get", "ii"),
];

/// Exports each function, and passes its arguments on.
fn program() -> String {
    let (mut imports, mut exports) = (String::new(), String::new());
    for (name, parameters) in FUNCTIONS {
        let types: String =
            parameters.chars().map(|ty| if ty == 'l' { "i64 " } else { "i32 " }).collect();
        let pass: String = (0..parameters.len()).map(|at| format!("(local.get {at})")).collect();
        imports += &format!(
            "(import \"wasi_snapshot_preview1\" \"{name}\" (func ${name} (param {types}) (result i32)))\n"
        );
        exports += &format!(
            "(func (export \"{name}\") (param {types}) (result i32) (call ${name} {pass}))\n"
        );
    }
    format!("(module {imports} (memory (export \"memory\") 16) {exports})")
}

struct Guest {
    tracker: DeltaTracker,
    store: Store<WasiCtx>,
    instance: Instance,
    memory: Memory,
}

impl Guest {
    fn call(&mut self, name: &str, arguments: &[i64]) -> i32 {
        let function = self.instance.get_func(&mut self.store, name).unwrap();
        let parameters = FUNCTIONS.iter().find(|(known, _)| *known == name).unwrap().1;
        let arguments: Vec<_> = parameters
            .chars()
            .zip(arguments)
            .map(|(ty, value)| match ty {
                'l' => pagefork::Val::I64(*value),
                _ => pagefork::Val::I32(*value as i32),
            })
            .collect();
        let mut result = [pagefork::Val::I32(-1)];
        function.call(&mut self.store, &arguments, &mut result).unwrap();
        result[0].unwrap_i32()
    }

    /// Puts words into memory as the guest would.
    fn put(&mut self, at: usize, words: &[u32]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.memory.write(&mut self.store, at, &bytes).unwrap();
    }

    /// Takes a snapshot, and asserts that it has the memory as it is.
    #[track_caller]
    fn snapshot(&mut self, what: &str) {
        let snapshot = self.store.snapshot().unwrap();
        let pre = snapshot.instance_pre().unwrap();
        let (mut other, instance) = pre.spawn(WasiCtx::builder().build().unwrap()).unwrap();
        let memory = instance.get_memory(&mut other, "memory").unwrap();
        assert!(memory.data(&other) == self.memory.data(&self.store), "{what}");
    }

    /// Whether the kernel may not write to a page of the memory.
    fn is_read_only(&self, at: usize) -> bool {
        let address = self.memory.data(&self.store).as_ptr().addr() + at;
        if self.tracker == DeltaTracker::Fault {
            const PROTECTED: u64 = 1 << 57;
            let mut entry = [0; 8];
            let file = fs::File::open("/proc/self/pagemap").unwrap();
            file.read_exact_at(&mut entry, (address / 4096 * 8) as u64).unwrap();
            return u64::from_ne_bytes(entry) & PROTECTED != 0;
        }
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let has = |line: &&str| {
            let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
            let number = |text| usize::from_str_radix(text, 16).unwrap();
            (number(start)..number(end)).contains(&address)
        };
        maps.lines().find(has).unwrap().split(' ').nth(1) == Some("r--p")
    }
}

#[test]
fn what_the_kernel_writes_for_calls_is_in_the_next_snapshot() {
    call_and_take(DeltaTracker::Protect);
    match pagefork::faults_at_writes() {
        true => call_and_take(DeltaTracker::Fault),
        false => eprintln!("NOT TESTED: this kernel raises no signals at writes"),
    }
}

fn call_and_take(tracker: DeltaTracker) {
    let directory =
        std::env::temp_dir().join(format!("wasi-protected-{tracker}-{}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    let content: Vec<u8> = (0..200_000u32).map(|at| (at % 251) as u8 + 1).collect();
    fs::write(directory.join("file"), &content).unwrap();
    std::os::unix::fs::symlink("file", directory.join("link")).unwrap();
    let strategies = StrategyConfig { deltas: tracker, ..StrategyConfig::default() };
    let engine = Engine::new(Config::new().strategies(strategies)).unwrap();
    let module = Module::new(&engine, program()).unwrap();
    let mut linker = Linker::new(&engine);
    add_to_linker(&mut linker, |ctx: &mut WasiCtx| ctx).unwrap();
    let (socket, mut peer) = UnixStream::pair().unwrap();
    let mut builder = WasiCtx::builder();
    builder.args(["one", "two"]).env("name", "value");
    builder.preopened_socket(socket).unwrap();
    builder.preopened_dir(&directory, "/", Permissions::ReadWrite).unwrap();
    let mut store = Store::new(&engine, builder.build().unwrap());
    let instance = linker.instantiate(&mut store, &module).unwrap();
    let memory = instance.get_memory(&mut store, "memory").unwrap();
    let mut guest = Guest { tracker, store, instance, memory };

    // Names, vectors of buffers, large and small ones, a subscription to the clock.
    memory.write(&mut guest.store, 16, b"filelink").unwrap();
    let (large, small) = (0x10000, 0x30000);
    guest.put(64, &[large, 100_000]);
    guest.put(80, &[small, 100]);
    guest.put(256, &[0; 12]);
    // Each tracker has private pages noticed.
    let result = 0xa0000;
    guest.put(large as usize, &[1]);
    guest.put(result as usize, &[1]);
    guest.snapshot("first");
    assert!(guest.is_read_only(0) && guest.is_read_only(large as usize));
    let open = [DIRECTORY, 0, 16, 4, 0, 1 << 1 | 1 << 2 | 1 << 5 | 1 << 21, 0, 0, 0x8000];
    assert_eq!(guest.call("path_open", &open), 0);
    guest.snapshot("path_open");

    for (call, arguments) in [
        ("fd_read", &[FILE, 64, 1, result][..]),
        ("fd_read", &[FILE, 80, 1, result]),
        ("fd_pread", &[FILE, 64, 1, 77, result]),
        ("fd_pread", &[FILE, 80, 1, 78, result]),
        ("sock_recv", &[SOCKET, 64, 1, 0, result, result + 0x3000]),
        ("sock_recv", &[SOCKET, 80, 1, 0, result, result + 0x3000]),
        ("random_get", &[0x50000, 50_000]),
        ("random_get", &[0x70000, 8]),
        ("clock_time_get", &[1, 0, result + 0x1000]),
        ("clock_res_get", &[1, result + 0x2000]),
        ("poll_oneoff", &[256, 0x72000, 1, result + 8]),
        ("fd_readdir", &[DIRECTORY, 0x74000, 5000, 0, result + 16]),
        ("fd_filestat_get", &[FILE, 0x76000]),
        ("path_filestat_get", &[DIRECTORY, 1, 20, 4, 0x78000]),
        ("path_readlink", &[DIRECTORY, 20, 4, 0x7a000, 5000, result + 24]),
        ("args_get", &[0x7c000, 0x7d000]),
        ("environ_sizes_get", &[result + 32, result + 36]),
        ("fd_prestat_dir_name", &[DIRECTORY, 0x7e000, 1]),
        ("fd_seek", &[FILE, 5, 0, result + 40]),
        ("fd_fdstat_get", &[FILE, 0x80000]),
    ] {
        peer.write_all(&content[..2000]).unwrap();
        let before = memory.data(&guest.store).to_vec();
        assert_eq!(guest.call(call, arguments), 0, "{call}");
        assert!(memory.data(&guest.store) != before, "{call} writes");
        guest.snapshot(call);
        assert!(guest.is_read_only(large as usize) && guest.is_read_only(result as usize));
    }
    let read = &memory.data(&guest.store)[large as usize..][20_000..100_000];
    assert!(read == &content[77 + 20_000..77 + 100_000], "behind what came by the socket");

    // Many more reads than ranges can be noted, between two snapshots.
    for page in 0..400 {
        guest.put(64, &[large + page * 1024, 1500]);
        assert_eq!(guest.call("fd_pread", &[FILE, 64, 1, i64::from(page), result]), 0);
    }
    guest.snapshot("many");
    // What a guest gives for a buffer may be nothing it has.
    guest.put(64, &[(16 << 16) - 5, 1500]);
    assert_eq!(guest.call("fd_pread", &[FILE, 64, 1, 0, result]), 21, "EFAULT");
    guest.snapshot("outside");
    fs::remove_dir_all(directory).unwrap();
}
