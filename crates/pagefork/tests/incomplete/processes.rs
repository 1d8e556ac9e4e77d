//! Forked processes, and signals that are no guest's.

use std::process::{Command, ExitStatus};

use super::*;

const MARK: &str = "PAGEFORK_INCOMPLETE";

/// Runs a test in a process of its own, where no other test's thread is in a call.
fn in_own_process(name: &str, body: impl FnOnce()) -> ExitStatus {
    if std::env::var_os(MARK).is_some() {
        body();
        std::process::exit(0);
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([name, "--exact", "--nocapture", "--test-threads=1"]).env(MARK, "1");
    command.status().unwrap()
}

/// A guest calls a function of the host, and then loads from its memory.
const CALLS: &str = r#"(module
    (import "host" "call" (func $call (param i32)))
    (memory (export "memory") 32)
    (func (export "run") (param i32) (result i32)
        (call $call (local.get 0))
        (i32.load (local.get 0))))"#;

/// A store of which nothing of the memory is here, and a snapshot of it.
fn spawn(
    name: &str,
    call: impl Fn(Caller<'_, ()>, i32) + Send + Sync + 'static,
) -> Option<(Arc<IncompleteImage>, InstancePre<()>, Store<()>, TypedFunc<i32, i32>)> {
    let directory = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
    let images = ImageStore::open(&directory).unwrap();
    let engine = Engine::default();
    let module = Module::new(&engine, CALLS).unwrap();
    let mut linker = Linker::new(&engine);
    linker.func_wrap("host", "call", call).unwrap();
    let mut store = Store::new(&engine, ());
    let instance = linker.instantiate(&mut store, &module).unwrap();
    let memory = instance.get_memory(&mut store, "memory").unwrap();
    memory.data_mut(&mut store).fill(1);
    let hash = store.snapshot().unwrap().save(&images, SaveOptions::new()).unwrap();
    let stored = images.load(hash).unwrap();
    let tip = stored.chain().tip();
    let head = Arc::new(ImageHead::read(tip).unwrap());
    let image = IncompleteImage::new(head, PATIENCE).unwrap();
    if !image.runs_incomplete() {
        println!("NOT TESTED: this system does not tell of faults in absent pages");
        return None;
    }
    for group in 0..2 {
        image.install(group, &tip.read_group(group).unwrap()).unwrap();
    }
    let options = LoadOptions::new().module(&module);
    let snapshot = Snapshot::load_incomplete(&linker, &image, &images, options).unwrap();
    let pre = snapshot.instance_pre().unwrap();
    let (mut store, instance) = pre.spawn(()).unwrap();
    let run = instance.get_typed_func(&mut store, "run").unwrap();
    fs::remove_dir_all(directory).unwrap();
    Some((image, pre, store, run))
}

/// The process in which a guest goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Side {
    Parent,
    Child,
}

fn fork() -> (Side, libc::pid_t) {
    // SAFETY: no other thread of this process is in a call of Pagefork's, nor of the allocator's.
    match unsafe { libc::fork() } {
        0 => (Side::Child, 0),
        child => (Side::Parent, child),
    }
}

fn assert_forked(error: &Error) {
    let trap = error.downcast_ref::<Trap>().expect("it is a trap");
    assert_eq!(trap.absent_page().map(|page| page.why), Some(Absence::Forked), "{error}");
}

/// Its guests lack pages, and others may have mapped something there.
#[test]
fn no_guest_runs_in_a_process_that_was_forked_while_pages_were_absent() {
    static SIDE: std::sync::Mutex<Option<(Side, libc::pid_t)>> = std::sync::Mutex::new(None);
    let name = "processes::no_guest_runs_in_a_process_that_was_forked_while_pages_were_absent";
    let status = in_own_process(name, || {
        let call = |_: Caller<'_, ()>, at: i32| {
            if at == 0 {
                *SIDE.lock().unwrap() = Some(fork());
            }
        };
        let Some((image, pre, mut store, run)) = spawn("incomplete-forked", call) else { return };
        assert_eq!(run.call(&mut store, 4).unwrap(), 0x0101_0101);
        // Within a call, and before one.
        let outcome = run.call(&mut store, 0);
        let (side, child) = SIDE.lock().unwrap().expect("it was forked");
        if side == Side::Child {
            assert_forked(&outcome.unwrap_err());
            assert_forked(&run.call(&mut store, 4).unwrap_err());
            let memory = pre.spawn(()).map(|_| ());
            assert!(memory.is_err(), "nothing is spawned");
            store.reset(()).unwrap_err();
            drop((store, pre));
            assert!(image.install(9, &[0; 16 << 10]).is_err());
            return;
        }
        assert_eq!(outcome.unwrap(), 0x0101_0101);
        let mut status = 0;
        // SAFETY: waits for a child of this process.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "the child ended otherwise");
        store.reset(()).unwrap();
        assert_eq!(run.call(&mut store, 8).unwrap(), 0x0101_0101);
    });
    assert!(status.success(), "{status}");
}

/// Host code may hold locks that who brings pages needs. So its own touch of an absent page waits
/// for nothing: it is what it would be without Pagefork.
#[test]
fn host_code_does_not_wait_in_a_signal_handler() {
    use std::os::unix::process::ExitStatusExt;
    let name = "processes::host_code_does_not_wait_in_a_signal_handler";
    let status = in_own_process(name, || {
        // SAFETY: it ends the process, should it wait.
        unsafe { libc::alarm(30) };
        let call = |caller: Caller<'_, ()>, at: i32| {
            let place = suspend::slot(&caller, 1).base + at as usize;
            // SAFETY: it ends the process, if the page is absent.
            let _ = unsafe { std::ptr::with_exposed_provenance::<u8>(place).read_volatile() };
        };
        let Some((_, _, mut store, run)) = spawn("incomplete-host-touch", call) else {
            // SAFETY: it ends the process.
            unsafe { libc::raise(libc::SIGBUS) };
            return;
        };
        assert_eq!(run.call(&mut store, 4).unwrap(), 0x0101_0101);
        let _ = run.call(&mut store, 30 << 16);
    });
    assert_eq!(status.signal(), Some(libc::SIGBUS), "{status}");
}
