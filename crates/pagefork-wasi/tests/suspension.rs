//! Every call of WASI that waits breaks off when the guest is to be suspended, and when it waits
//! for input that there is not yet: the guest is suspended before the call, nothing is consumed,
//! and the call is made again when the guest is resumed.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use pagefork::{
    CallProgress, Engine, Instance, Linker, Module, Store, SuspendedAt, Trap, TrapCode,
};
use pagefork_wasi::{
    Errno, GuestMemory, InputPipe, OutputKind, OutputPipe, Permissions, StdinKind, WasiCtx,
    WasiCtxBuilder, add_to_linker,
};

/// Each function makes one call that waits, and returns its error code. 3 is a listening socket,
/// 4 a directory with a FIFO in it. The results of calls go to 32.
const GUEST: &str = r#"(module
    (import "wasi_snapshot_preview1" "path_open"
        (func $path_open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "fd_read"
        (func $read (param i32 i32 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "fd_write"
        (func $write (param i32 i32 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "poll_oneoff"
        (func $poll (param i32 i32 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "sock_accept"
        (func $accept (param i32 i32 i32) (result i32)))
    (memory (export "memory") 64)
    (data (i32.const 16) "pipe")
    ;; An iovec of 16 bytes at 64, one of 1 MiB at 80.
    (data (i32.const 64) "\00\02\00\00\10\00\00\00")
    (data (i32.const 80) "\00\04\00\00\00\00\10\00")
    ;; A wait for the monotonic clock at 128, for ever; one for input at 192, in front of it.
    (data (i32.const 144) "\01\00\00\00\00\00\00\00\ff\ff\ff\ff\ff\ff\ff\7f")
    (data (i32.const 200) "\01")
    (func $open (param i64) (result i32)
        (call $path_open (i32.const 4) (i32.const 0) (i32.const 16) (i32.const 4)
            (i32.const 0) (local.get 0) (i64.const 0) (i32.const 0) (i32.const 32)))
    (func (export "sleep") (result i32)
        (call $poll (i32.const 128) (i32.const 256) (i32.const 1) (i32.const 32)))
    (func (export "poll input") (result i32)
        (call $poll (i32.const 192) (i32.const 256) (i32.const 1) (i32.const 32)))
    (func (export "read input") (result i32)
        (call $read (i32.const 0) (i32.const 64) (i32.const 1) (i32.const 32)))
    (func (export "accept") (result i32)
        (call $accept (i32.const 3) (i32.const 0) (i32.const 32)))
    (func (export "open fifo to write") (result i32) (call $open (i64.const 64)))
    (func (export "open fifo") (result i32) (call $open (i64.const 66)))
    (func (export "read fifo") (result i32)
        (call $read (i32.const 5) (i32.const 64) (i32.const 1) (i32.const 32)))
    (func (export "write fifo") (result i32)
        (call $write (i32.const 5) (i32.const 80) (i32.const 1) (i32.const 32)))
    ;; What a program does: read a line, then write it.
    (func (export "echo") (result i32)
        (drop (call $read (i32.const 0) (i32.const 64) (i32.const 1) (i32.const 68)))
        (call $write (i32.const 1) (i32.const 64) (i32.const 1) (i32.const 32))))"#;

struct World {
    store: Store<WasiCtx>,
    instance: Instance,
    directory: PathBuf,
    input: InputPipe,
    address: SocketAddr,
}

fn linked(ctx: WasiCtx) -> (Store<WasiCtx>, Instance) {
    let engine = Engine::default();
    let mut linker = Linker::new(&engine);
    add_to_linker(&mut linker, |ctx: &mut WasiCtx| ctx).unwrap();
    let mut store = Store::new(&engine, ctx);
    let module = Module::new(&engine, GUEST).unwrap();
    let instance = linker.instantiate(&mut store, &module).unwrap();
    (store, instance)
}

impl World {
    fn new(name: &str) -> Self {
        let name = format!("suspension-{}", name.replace(' ', "-"));
        let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).unwrap();
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mkfifoat(rustix::fs::CWD, directory.join("pipe"), mode).unwrap();

        let (input, stdin) = StdinKind::pipe();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut builder = WasiCtx::builder();
        builder.stdin(stdin).preopened_socket(listener).unwrap();
        builder.preopened_dir(&directory, "/", Permissions::ReadWrite).unwrap();
        let (store, instance) = linked(builder.build().unwrap());
        World { store, instance, directory, input, address }
    }

    fn call(&mut self, name: &str) -> CallProgress {
        let function = self.instance.get_func(&mut self.store, name).unwrap();
        function.call_suspendable(&mut self.store, &[]).unwrap()
    }

    /// Does something with the store, while another thread asks again and again that its guest be
    /// suspended: a request that comes before the call begins is forgotten.
    fn suspending<R>(&mut self, f: impl FnOnce(&mut World) -> R) -> R {
        let handle = self.store.interrupt_handle().unwrap();
        let (ended, wait) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            while wait.recv_timeout(Duration::from_millis(10)).is_err() {
                handle.suspend();
            }
        });
        let result = f(self);
        ended.send(()).unwrap();
        thread.join().unwrap();
        result
    }

    /// The call breaks off, and once more when it is made again.
    #[track_caller]
    fn breaks_off_twice(&mut self, name: &str) {
        self.is_suspended(|world| world.call(name), |_, at| at == SuspendedAt::BeforeHostCall);
        let resume = |world: &mut World| world.store.resume().unwrap();
        self.is_suspended(resume, |_, at| at == SuspendedAt::BeforeHostCall);
        assert_eq!(self.word(32), 0, "{name} has had an effect");
    }

    /// Calls or resumes the guest, and suspends it where it waits. The request may also reach it
    /// on its way there; then it goes on.
    #[track_caller]
    fn is_suspended(
        &mut self,
        go_on: impl FnOnce(&mut World) -> CallProgress,
        is_there: impl Fn(&mut World, SuspendedAt) -> bool,
    ) {
        let mut progress = self.suspending(go_on);
        loop {
            assert!(matches!(progress, CallProgress::Suspended), "{progress:?}");
            let at = self.store.suspended().unwrap().at();
            if is_there(self, at) {
                break;
            }
            progress = self.suspending(|world| world.store.resume().unwrap());
        }
    }

    /// Goes on to the end, which is a success.
    #[track_caller]
    fn finishes(&mut self) {
        succeeded(self.store.resume().unwrap());
    }

    /// How long the guest has waited, as its saved state has it.
    fn waited(&self) -> Option<Duration> {
        self.store.data().save().unwrap().waited()
    }

    fn bytes(&mut self, address: usize, size: usize) -> Vec<u8> {
        let memory = self.instance.get_memory(&mut self.store, "memory").unwrap();
        memory.data(&self.store)[address..address + size].to_vec()
    }

    fn word(&mut self, address: usize) -> u32 {
        u32::from_le_bytes(self.bytes(address, 4).try_into().unwrap())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

#[track_caller]
fn succeeded(progress: CallProgress) {
    let CallProgress::Finished(results) = progress else { panic!("it is suspended") };
    assert_eq!(results[0].i32(), Some(0));
}

#[test]
fn a_read_breaks_off_and_then_reads_all_that_was_written() {
    let mut world = World::new("read");
    world.breaks_off_twice("read input");
    world.input.write(b"hello");
    world.finishes();
    assert_eq!((world.word(32), world.bytes(0x200, 5)), (5, b"hello".to_vec()));
}

#[test]
fn polling_breaks_off_and_then_finds_what_has_happened() {
    let mut world = World::new("poll");
    world.breaks_off_twice("poll input");
    world.input.write(b"hello");
    world.finishes();
    assert_eq!(world.word(32), 1);
    // Nothing was read by that.
    succeeded(world.call("read input"));
    assert_eq!(world.bytes(0x200, 5), b"hello");
}

#[test]
fn a_sleep_breaks_off_and_can_be_given_up_or_answered() {
    let mut world = World::new("sleep");
    world.breaks_off_twice("sleep");
    assert!(world.waited() > Some(Duration::ZERO));
    world.store.data_mut().forget_wait();
    assert_eq!(world.waited(), None);
    succeeded(world.store.resume_with(Ok(&[pagefork::Val::I32(0)])).unwrap());
    world.breaks_off_twice("sleep");
    world.store.abandon();
    world.store.data_mut().forget_wait();
    world.breaks_off_twice("sleep");
    // Any other call shows that this one is not made again.
    succeeded(world.store.resume_with(Ok(&[pagefork::Val::I32(0)])).unwrap());
    assert!(world.waited() > Some(Duration::ZERO));
    world.input.write(b"x");
    succeeded(world.call("read input"));
    assert_eq!(world.waited(), None);
    // A timeout ends the wait, as ever.
    world.store.set_timeout(Some(Duration::from_millis(1))).unwrap();
    let function = world.instance.get_func(&mut world.store, "sleep").unwrap();
    let error = function.call_suspendable(&mut world.store, &[]).unwrap_err();
    assert_eq!(error.downcast_ref::<Trap>().map(Trap::code), Some(TrapCode::Interrupt));
}

#[test]
fn accepting_breaks_off_and_then_takes_the_connection() {
    let mut world = World::new("accept");
    world.breaks_off_twice("accept");
    let _client = TcpStream::connect(world.address).unwrap();
    world.finishes();
    assert_eq!(world.word(32), 5);
}

#[test]
fn reading_a_connection_breaks_off_and_then_reads_all() {
    let mut world = World::new("connection");
    let mut client = TcpStream::connect(world.address).unwrap();
    succeeded(world.call("accept"));
    let memory = world.instance.get_memory(&mut world.store, "memory").unwrap();
    memory.data_mut(&mut world.store)[32..36].fill(0);
    // The connection has the number that the FIFO has elsewhere.
    world.breaks_off_twice("read fifo");
    client.write_all(b"hello").unwrap();
    world.finishes();
    assert_eq!((world.word(32), world.bytes(0x200, 5)), (5, b"hello".to_vec()));
}

#[test]
fn opening_a_fifo_breaks_off_until_there_is_a_reader() {
    let mut world = World::new("open fifo");
    world.breaks_off_twice("open fifo to write");
    assert_eq!(world.store.data().descriptors().count(), 5);
    let path = world.directory.join("pipe");
    let reader = std::thread::spawn(move || File::open(path).unwrap());
    world.finishes();
    assert_eq!(world.word(32), 5);
    drop(reader.join().unwrap());
}

#[test]
fn reading_a_fifo_breaks_off_and_then_reads_all() {
    let mut world = World::new("read fifo");
    succeeded(world.call("open fifo"));
    world.store.data_mut().set_stdin(StdinKind::Null);
    let memory = world.instance.get_memory(&mut world.store, "memory").unwrap();
    memory.data_mut(&mut world.store)[32..36].fill(0);
    world.breaks_off_twice("read fifo");
    let mut writer = File::options().write(true).open(world.directory.join("pipe")).unwrap();
    writer.write_all(b"hello").unwrap();
    world.finishes();
    assert_eq!((world.word(32), world.bytes(0x200, 5)), (5, b"hello".to_vec()));
}

/// A write that has written something ends with that; one that has written nothing is put off.
#[test]
fn no_byte_of_a_write_that_breaks_off_is_lost_or_written_twice() {
    const PIPE: usize = 1 << 16;
    let mut world = World::new("write fifo");
    succeeded(world.call("open fifo"));
    let memory = world.instance.get_memory(&mut world.store, "memory").unwrap();
    for (index, byte) in
        memory.data_mut(&mut world.store)[0x400..][..1 << 20].iter_mut().enumerate()
    {
        *byte = (index / 7) as u8;
    }
    memory.data_mut(&mut world.store)[32..36].fill(0);
    world.is_suspended(
        |world| world.call("write fifo"),
        |world, at| {
            assert_ne!(at, SuspendedAt::BeforeHostCall);
            world.word(32) != 0
        },
    );
    world.finishes();
    assert_eq!(world.word(32) as usize, PIPE);

    memory.data_mut(&mut world.store)[32..36].fill(0);
    world.breaks_off_twice("write fifo");
    let mut reader = File::open(world.directory.join("pipe")).unwrap();
    let mut read = vec![0; PIPE];
    reader.read_exact(&mut read).unwrap();
    let expected = world.bytes(0x400, PIPE);
    assert!(read == expected);
    // All of the second write, in the same order.
    let rest = std::thread::spawn(move || {
        let mut read = vec![0; 1 << 20];
        reader.read_exact(&mut read).unwrap();
        read
    });
    world.finishes();
    assert_eq!(world.word(32), 1 << 20);
    let expected = world.bytes(0x400, 1 << 20);
    assert!(rest.join().unwrap() == expected);
}

/// Guests that were called otherwise wait on.
#[test]
fn a_guest_that_cannot_be_suspended_waits_on() {
    let mut world = World::new("plain");
    let read = world.instance.get_typed_func::<(), i32>(&mut world.store, "read input").unwrap();
    let input = world.input.clone();
    let written = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        input.write(b"late");
    });
    let result = world.suspending(|world| read.call(&mut world.store, ()).unwrap());
    written.join().unwrap();
    assert_eq!((result, world.bytes(0x200, 4)), (0, b"late".to_vec()));
}

/// A builder for a guest whose input there is not yet, and its output.
fn awaiting() -> (WasiCtxBuilder, OutputPipe) {
    let (output, stdout) = OutputKind::pipe();
    let mut builder = WasiCtx::builder();
    builder.stdin(StdinKind::Awaited).stdout(stdout);
    (builder, output)
}

#[test]
fn input_that_there_is_not_yet_needs_a_guest_that_can_be_suspended() {
    let (mut store, instance) = linked(awaiting().0.build().unwrap());
    for name in ["read input", "poll input"] {
        let call = instance.get_typed_func::<(), i32>(&mut store, name).unwrap();
        let error = call.call(&mut store, ()).unwrap_err().to_string();
        assert!(error.contains("suspend"), "{error}");
    }
}

#[test]
fn a_read_that_does_not_wait_goes_on_without_input() {
    const NONBLOCK: u32 = 4;
    let (mut store, instance) = linked(awaiting().0.build().unwrap());
    let memory = &mut GuestMemory::new(&mut [][..]);
    store.data_mut().fd_fdstat_set_flags(memory, 0, NONBLOCK).unwrap();
    let read = instance.get_func(&mut store, "read input").unwrap();
    let progress = read.call_suspendable(&mut store, &[]).unwrap();
    let CallProgress::Finished(results) = progress else { panic!("it is suspended") };
    assert_eq!(results[0].i32(), Some(i32::from(Errno::Again.code())));
}

#[test]
fn a_guest_that_waits_for_its_input_is_forked_and_each_fork_has_its_own() {
    let (builder, output) = awaiting();
    let (mut store, instance) = linked(builder.build().unwrap());
    let echo = instance.get_func(&mut store, "echo").unwrap();
    let progress = echo.call_suspendable(&mut store, &[]).unwrap();
    assert!(matches!(progress, CallProgress::Suspended));
    assert_eq!(store.suspended().unwrap().at(), SuspendedAt::BeforeHostCall);
    let state = store.data().save().unwrap();

    let mut outputs = Vec::new();
    let forks = store.fork(3, |number| {
        let (output, stdout) = OutputKind::pipe();
        outputs.push(output);
        let mut builder = WasiCtx::builder();
        builder.stdin(StdinKind::bytes(format!("fork {number}"))).stdout(stdout);
        builder.restore(&state).unwrap().ctx
    });
    for (number, mut fork) in forks.unwrap().into_iter().enumerate() {
        succeeded(fork.resume().unwrap());
        assert_eq!(outputs[number].take(), format!("fork {number}").as_bytes());
    }
    // The original still waits, and has its own, too.
    assert!(matches!(store.resume().unwrap(), CallProgress::Suspended));
    store.data_mut().set_stdin(StdinKind::bytes("original"));
    succeeded(store.resume().unwrap());
    assert_eq!(output.take(), b"original");
}
