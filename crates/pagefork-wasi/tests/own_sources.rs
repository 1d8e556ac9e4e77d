//! Clocks and random numbers of the embedder's own are all that a guest sees of either.

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pagefork_wasi::{Errno, GuestMemory, HostMonotonicClock, HostWallClock, WasiCtx};

const REALTIME: u32 = 0;
const MONOTONIC: u32 = 1;
const SECOND: u64 = 1_000_000_000;

/// Ticks once for each look, in seconds.
#[derive(Clone, Default)]
struct Ticks(Arc<AtomicU64>);

impl Ticks {
    fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}

impl HostWallClock for Ticks {
    fn resolution(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn now(&self) -> Duration {
        Duration::from_secs(self.next())
    }
}

impl HostMonotonicClock for Ticks {
    fn resolution(&self) -> u64 {
        SECOND
    }

    fn now(&self) -> u64 {
        self.next() * SECOND
    }
}

fn word(ctx: &mut WasiCtx, call: impl FnOnce(&mut WasiCtx, &mut GuestMemory<'_>)) -> u64 {
    let mut bytes = [0; 8];
    call(ctx, &mut GuestMemory::new(&mut bytes[..]));
    u64::from_le_bytes(bytes)
}

fn time(ctx: &mut WasiCtx, clock: u32) -> u64 {
    word(ctx, |ctx, memory| ctx.clock_time_get(memory, clock, 0, 0).unwrap())
}

fn resolution(ctx: &mut WasiCtx, clock: u32) -> u64 {
    word(ctx, |ctx, memory| ctx.clock_res_get(memory, clock, 0).unwrap())
}

#[test]
fn each_own_clock_stands_for_one_of_the_hosts() {
    let (wall, monotonic) = (Ticks::default(), Ticks::default());
    monotonic.0.store(100, Ordering::Relaxed);
    let mut builder = WasiCtx::builder();
    let mut ctx = builder.wall_clock(wall.clone()).build().unwrap();
    assert_eq!((time(&mut ctx, REALTIME), time(&mut ctx, REALTIME)), (0, SECOND));
    assert_eq!(resolution(&mut ctx, REALTIME), SECOND);
    assert!(resolution(&mut ctx, MONOTONIC) < SECOND);
    let mut ctx = builder.monotonic_clock(monotonic).build().unwrap();
    assert_eq!((time(&mut ctx, MONOTONIC), time(&mut ctx, REALTIME)), (100 * SECOND, 2 * SECOND));
    assert_eq!(resolution(&mut ctx, MONOTONIC), SECOND);
    // Times of the processor stay, and clocks that do not exist.
    assert!(time(&mut ctx, 3) > 0);
    let mut bytes = [0; 8];
    let unknown = ctx.clock_time_get(&mut GuestMemory::new(&mut bytes[..]), 4, 0, 0);
    assert_eq!(unknown, Err(Errno::Inval));
    // What is built from a template has them too.
    let template = builder.template().unwrap();
    let (stdin, output) = (Default::default(), || Default::default());
    let mut ctx = template.context(template.environment(), stdin, output(), output());
    assert_eq!(time(&mut ctx, REALTIME), 3 * SECOND);
}

#[test]
fn a_time_beyond_what_nanoseconds_can_count_is_the_last() {
    struct Late;
    impl HostWallClock for Late {
        fn resolution(&self) -> Duration {
            Duration::MAX
        }
        fn now(&self) -> Duration {
            Duration::MAX
        }
    }
    let mut ctx = WasiCtx::builder().wall_clock(Late).build().unwrap();
    assert_eq!((time(&mut ctx, REALTIME), resolution(&mut ctx, REALTIME)), (u64::MAX, u64::MAX));
}

/// Waits for one clock; returns how long that took.
fn wait(ctx: &mut WasiCtx, clock: u32, timeout_ns: u64, absolute: bool) -> Duration {
    let mut bytes = [0u8; 256];
    let mut memory = GuestMemory::new(&mut bytes[..]);
    memory.write_u32(16, clock).unwrap();
    for (half, at) in [(timeout_ns as u32, 24), ((timeout_ns >> 32) as u32, 28)] {
        memory.write_u32(at, half).unwrap();
    }
    memory.write_u32(40, absolute.into()).unwrap();
    let start = Instant::now();
    ctx.poll_oneoff(&mut memory, 0, 64, 1, 128).unwrap();
    start.elapsed()
}

#[test]
fn waits_until_a_time_end_by_the_own_clock() {
    let ticks = Ticks::default();
    // Long ago, by the host's clock.
    ticks.0.store(1000, Ordering::Relaxed);
    let mut builder = WasiCtx::builder();
    let mut ctx = builder.wall_clock(ticks.clone()).monotonic_clock(ticks).build().unwrap();
    for clock in [REALTIME, MONOTONIC] {
        // Past already, but centuries ahead if the own clock were not asked.
        wait(&mut ctx, clock, 900 * SECOND, true);
        let now = time(&mut ctx, clock);
        let waited = wait(&mut ctx, clock, now + SECOND + 20_000_000, true);
        assert!(waited >= Duration::from_millis(20), "{waited:?}");
        // A duration is one of the host's.
        let waited = wait(&mut ctx, clock, 20_000_000, false);
        assert!(waited >= Duration::from_millis(20), "{waited:?}");
    }
}

#[test]
fn own_random_bytes_fill_what_is_asked_for_and_nothing_else() {
    let count = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&count);
    let mut builder = WasiCtx::builder();
    builder.secure_random(move |buffer| {
        counted.fetch_add(buffer.len() as u64, Ordering::Relaxed);
        buffer.fill(7);
    });
    let mut ctx = builder.build().unwrap();
    let mut bytes = vec![1; 3 << 20];
    let size = (5 << 19) + 3;
    ctx.random_get(&mut GuestMemory::new(&mut bytes[..]), 1, size).unwrap();
    let end = 1 + size as usize;
    assert!(bytes[0] == 1 && bytes[1..end].iter().all(|byte| *byte == 7));
    assert!(bytes[end..].iter().all(|byte| *byte == 1));
    assert_eq!(count.load(Ordering::Relaxed), size.into());
    let outside = ctx.random_get(&mut GuestMemory::new(&mut bytes[..]), 3 << 20, 1);
    assert_eq!(outside, Err(Errno::Fault));
    assert_eq!(count.load(Ordering::Relaxed), size.into());
}

/// The strings of a state, as a guest reads them.
fn strings(
    ctx: &mut WasiCtx,
    sizes: fn(&mut WasiCtx, &mut GuestMemory<'_>, u32, u32) -> Result<(), Errno>,
    get: fn(&mut WasiCtx, &mut GuestMemory<'_>, u32, u32) -> Result<(), Errno>,
) -> Vec<String> {
    let mut bytes = vec![0; 1 << 20];
    let mut memory = GuestMemory::new(&mut bytes[..]);
    sizes(ctx, &mut memory, 0, 4).unwrap();
    get(ctx, &mut memory, 8, 1 << 16).unwrap();
    let size = u32::from_le_bytes(bytes[4..8].try_into().unwrap()) as usize;
    let text = &bytes[1 << 16..][..size];
    let parts = text.split(|byte| *byte == 0).map(|part| String::from_utf8_lossy(part).into());
    let mut parts: Vec<String> = parts.collect();
    parts.pop();
    parts
}

#[test]
#[expect(clippy::needless_borrows_for_generic_args, reason = "lists by reference are tested")]
fn arguments_and_variables_of_any_kind_of_list_arrive() {
    let mut builder = WasiCtx::builder();
    builder.args(&["a", "b"]).args([String::from("c")]).args(vec![b"d".to_vec()]);
    builder.envs(&[("A", "1"), ("B", "2")]).envs([("B".to_owned(), b"3")]);
    let mut ctx = builder.build().unwrap();
    let args = strings(&mut ctx, WasiCtx::args_sizes_get, WasiCtx::args_get);
    assert_eq!(args, ["a", "b", "c", "d"]);
    let variables = strings(&mut ctx, WasiCtx::environ_sizes_get, WasiCtx::environ_get);
    assert_eq!(variables, ["A=1", "B=3"]);
    let mut ctx = WasiCtx::builder().inherit_args().build().unwrap();
    let args = strings(&mut ctx, WasiCtx::args_sizes_get, WasiCtx::args_get);
    assert_eq!(args, std::env::args().collect::<Vec<_>>());
}

/// Says to this test that it runs in the process whose streams and variables are inherited.
const CHILD: &str = "PAGEFORK_TEST_INHERITS";

/// Writes bytes to a descriptor, as a guest does.
fn write(ctx: &mut WasiCtx, fd: u32, bytes: &[u8]) -> u32 {
    let mut places = [0; 64];
    let mut memory = GuestMemory::new(&mut places[..]);
    memory.write_u32(0, 32).unwrap();
    memory.write_u32(4, bytes.len() as u32).unwrap();
    memory.write_bytes(32, bytes).unwrap();
    ctx.fd_write(&mut memory, fd, 0, 1, 8).unwrap();
    u32::from_le_bytes(places[8..12].try_into().unwrap())
}

/// Reads up to 32 bytes from a descriptor, as a guest does.
fn read(ctx: &mut WasiCtx, fd: u32) -> Vec<u8> {
    let mut places = [0; 64];
    let mut memory = GuestMemory::new(&mut places[..]);
    memory.write_u32(0, 32).unwrap();
    memory.write_u32(4, 32).unwrap();
    ctx.fd_read(&mut memory, fd, 0, 1, 8).unwrap();
    let size = u32::from_le_bytes(places[8..12].try_into().unwrap());
    places[32..][..size as usize].to_vec()
}

#[test]
fn inherited_streams_and_variables_are_those_of_the_process() {
    if std::env::var_os(CHILD).is_some() {
        let mut builder = WasiCtx::builder();
        let mut ctx = builder.inherit_env().inherit_stdio().build().unwrap();
        let variables = strings(&mut ctx, WasiCtx::environ_sizes_get, WasiCtx::environ_get);
        let mut expected: Vec<String> =
            std::env::vars().map(|(name, value)| format!("{name}={value}")).collect();
        let mut found = variables.clone();
        expected.sort();
        found.sort();
        assert_eq!(found, expected);
        assert!(variables.contains(&"PAGEFORK_TEST_EMPTY=".to_owned()));
        let input = read(&mut ctx, 0);
        assert_eq!(write(&mut ctx, 1, &[b"out of the guest: ", &input[..]].concat()), 24);
        assert_eq!(write(&mut ctx, 2, &[b"errs of the guest: ", &input[..]].concat()), 25);
        assert_eq!(read(&mut ctx, 0), b"", "the end");
        return;
    }
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["inherited_streams_and_variables_are_those_of_the_process", "--exact"])
        .arg("--nocapture")
        .env(CHILD, "1")
        .env("PAGEFORK_TEST_EMPTY", "")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"a line").unwrap();
    let output = child.wait_with_output().unwrap();
    let texts = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert!(output.status.success(), "{texts:?}");
    assert!(texts[0].contains("out of the guest: a line"), "{texts:?}");
    assert!(texts[1].contains("errs of the guest: a line"), "{texts:?}");
    assert!(!texts[0].contains("errs of") && !texts[1].contains("out of"), "{texts:?}");
}
