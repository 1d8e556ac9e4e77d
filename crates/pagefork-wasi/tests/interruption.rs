//! Timeouts and interrupts of the store reach a guest in every call of WASI that waits: the
//! wait ends and the guest traps, even if it ignores the error and then exits.

use std::net::TcpListener;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use pagefork::{Caller, Engine, Func, Instance, Linker, Module, Store, Trap, TrapCode, Val};
use pagefork_wasi::{InputPipe, Permissions, StdinKind, WasiCtx, add_to_linker};

/// Far more than a wait takes that is ended.
const PATIENCE: Duration = Duration::from_secs(30);

/// After each call the guest goes on as if nothing had happened: it leaves a mark, and exits
/// with code 0. 3 is a listening socket, 4 a directory with a FIFO in it.
const GUEST: &str = r#"(module
    (import "wasi_snapshot_preview1" "path_open"
        (func $path_open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "fd_read"
        (func $read (param i32 i32 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "fd_write"
        (func $write (param i32 i32 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "fd_fdstat_set_flags"
        (func $set_flags (param i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "poll_oneoff"
        (func $poll (param i32 i32 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "sock_accept"
        (func $accept (param i32 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
    (memory (export "memory") 1024)
    (global $mark (export "mark") (mut i32) (i32.const 0))
    (data (i32.const 16) "pipe")
    ;; An iovec of 4 bytes at 64, one of 1 MiB at 80.
    (data (i32.const 64) "\00\02\00\00\04\00\00\00")
    (data (i32.const 80) "\00\04\00\00\00\00\10\00")
    ;; A wait for the monotonic clock at 128, for ever; one for input at 192.
    (data (i32.const 144) "\01\00\00\00\00\00\00\00\ff\ff\ff\ff\ff\ff\ff\7f")
    (data (i32.const 200) "\01")
    (func $end (param i32)
        (global.set $mark (i32.add (i32.const 1) (local.get 0)))
        (call $exit (i32.const 0)))
    (func $open (param i64)
        (drop (call $path_open (i32.const 4) (i32.const 0) (i32.const 16) (i32.const 4)
            (i32.const 0) (local.get 0) (i64.const 0) (i32.const 0) (i32.const 32))))
    (func (export "sleep")
        (call $end (call $poll (i32.const 128) (i32.const 256) (i32.const 1) (i32.const 32))))
    (func (export "poll input")
        (call $end (call $poll (i32.const 192) (i32.const 256) (i32.const 1) (i32.const 32))))
    (func (export "read input")
        (call $end (call $read (i32.const 0) (i32.const 64) (i32.const 1) (i32.const 32))))
    (func (export "accept")
        (call $end (call $accept (i32.const 3) (i32.const 0) (i32.const 32))))
    (func (export "open fifo to write")
        (call $open (i64.const 64))
        (call $end (i32.const 0)))
    (func (export "read fifo")
        (call $open (i64.const 2))
        (call $end (call $read (i32.load (i32.const 32)) (i32.const 64) (i32.const 1)
            (i32.const 32))))
    (func (export "write fifo")
        (call $open (i64.const 66))
        (call $end (call $write (i32.load (i32.const 32)) (i32.const 80) (i32.const 1)
            (i32.const 36)))))"#;

struct World {
    store: Store<WasiCtx>,
    instance: Instance,
    directory: PathBuf,
    _input: InputPipe,
}

impl World {
    fn new(name: &str) -> Self {
        let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name.replace(' ', "-"));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).unwrap();
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mkfifoat(rustix::fs::CWD, directory.join("pipe"), mode).unwrap();

        let (input, stdin) = StdinKind::pipe();
        let mut builder = WasiCtx::builder();
        builder.stdin(stdin);
        builder.preopened_socket(TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
        builder.preopened_dir(&directory, "/", Permissions::ReadWrite).unwrap();
        let engine = Engine::default();
        let mut linker = Linker::new(&engine);
        add_to_linker(&mut linker, |ctx: &mut WasiCtx| ctx).unwrap();
        let mut store = Store::new(&engine, builder.build().unwrap());
        let module = Module::new(&engine, GUEST).unwrap();
        let instance = linker.instantiate(&mut store, &module).unwrap();
        World { store, instance, directory, _input: input }
    }

    #[track_caller]
    fn is_stopped_in(&mut self, name: &str) {
        let start = Instant::now();
        let function = self.instance.get_typed_func::<(), ()>(&mut self.store, name).unwrap();
        let error = function.call(&mut self.store, ()).unwrap_err();
        let code = error.downcast_ref::<Trap>().map(Trap::code);
        assert_eq!(code, Some(TrapCode::Interrupt), "{name}: {error:?}");
        assert!(start.elapsed() < PATIENCE, "{name}");
        let mark = self.instance.get_export(&mut self.store, "mark").unwrap();
        let mark = mark.into_global().unwrap().get(&mut self.store);
        assert!(matches!(mark, Val::I32(0)), "{name} went on: {mark:?}");
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

const WAITS: [&str; 7] = [
    "sleep",
    "poll input",
    "read input",
    "accept",
    "open fifo to write",
    "read fifo",
    "write fifo",
];

#[test]
fn a_timeout_ends_every_wait_and_the_guest() {
    for name in WAITS {
        let mut world = World::new(&format!("timeout {name}"));
        world.store.set_timeout(Some(Duration::from_millis(30))).unwrap();
        world.is_stopped_in(name);
        // The next call has its own time.
        world.is_stopped_in(name);
    }
}

#[test]
fn an_interrupt_ends_every_wait_and_the_guest() {
    for name in WAITS {
        let mut world = World::new(&format!("interrupt {name}"));
        let handle = world.store.interrupt_handle().unwrap();
        let (ended, wait) = std::sync::mpsc::channel::<()>();
        // One that comes before the call begins is forgotten.
        let thread = std::thread::spawn(move || {
            while wait.recv_timeout(Duration::from_millis(30)).is_err() {
                handle.interrupt();
            }
        });
        world.is_stopped_in(name);
        ended.send(()).unwrap();
        thread.join().unwrap();
    }
}

/// The interrupt comes when the guest has begun to exit.
#[test]
fn a_guest_that_is_to_be_stopped_cannot_exit_as_if_it_were_not() {
    let engine = Engine::default();
    let mut linker = Linker::new(&engine);
    add_to_linker(&mut linker, |ctx: &mut WasiCtx| ctx).unwrap();
    let mut store = Store::new(&engine, WasiCtx::builder().build().unwrap());
    let exit = linker.get(&mut store, "wasi_snapshot_preview1", "proc_exit").unwrap();
    let exit = exit.into_func().unwrap();
    let late = Func::wrap(&mut store, move |mut caller: Caller<'_, WasiCtx>| {
        caller.interrupt_handle()?.interrupt();
        exit.call(&mut caller, &[Val::I32(0)], &mut [])
    });
    let module = r#"(module (import "" "" (func)) (func $start (call 0)) (start $start))"#;
    let module = Module::new(&engine, module).unwrap();
    let error = Instance::new(&mut store, &module, &[late.into()]).unwrap_err();
    let code = error.downcast_ref::<Trap>().map(Trap::code);
    assert_eq!(code, Some(TrapCode::Interrupt), "{error:?}");
}
