//! Waiting.

use std::time::{Duration, Instant};

use pagefork_wasi::{Errno, StdinKind, WasiCtx};

use crate::harness::*;

#[test]
fn clocks_sleep_as_long_as_asked() {
    let mut guest = Guest::new(&WasiCtx::builder());
    for id in [0, 1] {
        let start = Instant::now();
        let events = guest.poll(&[clock_subscription(42, id, 30 * MILLISECOND, 0)]).unwrap();
        assert_eq!(events, [event(42, 0)]);
        assert!(start.elapsed() >= Duration::from_millis(30));

        let until = guest.time(id).unwrap() + 30 * MILLISECOND;
        let events = guest.poll(&[clock_subscription(43, id, until, 1)]).unwrap();
        assert_eq!(events, [event(43, 0)]);
        assert!(guest.time(id).unwrap() >= until);
        // In the past.
        assert_eq!(guest.poll(&[clock_subscription(44, id, 1, 1)]).unwrap(), [event(44, 0)]);
    }
}

#[test]
fn the_first_of_several_clocks_wakes() {
    let mut guest = Guest::new(&WasiCtx::builder());
    let events = guest
        .poll(&[
            clock_subscription(1, 1, u64::MAX, 0),
            clock_subscription(2, 1, 20 * MILLISECOND, 0),
            clock_subscription(3, 0, 3_600_000 * MILLISECOND, 0),
        ])
        .unwrap();
    assert_eq!(events, [event(2, 0)]);
}

#[test]
fn files_are_always_ready() {
    let dir = TempDir::new();
    dir.write("file", "12345");
    let mut guest = Guest::with_dir(&dir);
    let fd = guest.open(DIR, "file", writing()).unwrap();
    guest.read(fd, 2).unwrap();
    let events = guest
        .poll(&[
            clock_subscription(1, 1, u64::MAX, 0),
            descriptor(2, FD_READ, fd),
            descriptor(3, FD_WRITE, fd),
            descriptor(4, FD_READ, DIR),
        ])
        .unwrap();
    assert_eq!(
        events,
        [Event { available: 3, ..event(2, FD_READ) }, event(3, FD_WRITE), event(4, FD_READ)]
    );
}

#[test]
fn bad_descriptors_and_clocks_are_events() {
    let dir = TempDir::new();
    dir.write("file", "");
    let mut guest = Guest::with_dir(&dir);
    let no_right = guest.open(DIR, "file", reading()).unwrap();
    guest.set_rights(no_right, READ, 0).unwrap();
    let events = guest
        .poll(&[
            descriptor(1, FD_READ, 99),
            descriptor(2, FD_WRITE, u32::MAX),
            descriptor(3, FD_READ, no_right),
            descriptor(4, FD_WRITE, 0),
            clock_subscription(5, 2, 1, 0),
            clock_subscription(6, 77, 1, 0),
            clock_subscription(7, 1, u64::MAX, 0),
        ])
        .unwrap();
    let seen: Vec<_> = events.iter().map(|event| (event.userdata, event.error)).collect();
    let (badf, notcapable) = (Errno::Badf.code(), Errno::Notcapable.code());
    let notsup = Errno::Notsup.code();
    assert_eq!(seen, [(1, badf), (2, badf), (3, notcapable), (4, badf), (5, notsup), (6, notsup)]);
}

#[test]
fn malformed_subscriptions_are_refused() {
    let mut guest = Guest::new(&WasiCtx::builder());
    assert_eq!(guest.poll(&[]), Err(Errno::Inval));
    assert_eq!(guest.poll(&[descriptor(1, 3, 0)]), Err(Errno::Inval));
    assert_eq!(guest.poll(&[clock_subscription(1, 1, 1, 2)]), Err(Errno::Inval));
    let poll = |guest: &mut Guest, count| {
        guest.call(|ctx, memory| ctx.poll_oneoff(memory, 0, 0, count, 0))
    };
    assert_eq!(poll(&mut guest, u32::MAX), Err(Errno::Inval));
    assert_eq!(poll(&mut guest, 1 << 16), Err(Errno::Fault));
}

#[test]
fn memory_streams_are_ready_when_they_have_something_to_say() {
    let mut guest = Guest::new(WasiCtx::builder().stdin(StdinKind::bytes("abc")));
    let both = [descriptor(1, FD_READ, 0), descriptor(2, FD_WRITE, 1)];
    let events = guest.poll(&both).unwrap();
    assert_eq!(events, [Event { available: 3, ..event(1, FD_READ) }, event(2, FD_WRITE)]);
    guest.read(0, 10).unwrap();
    assert_eq!(guest.poll(&both[..1]).unwrap(), [event(1, FD_READ)]);
}

#[test]
fn an_input_pipe_wakes_the_guest() {
    let (input, stdin) = StdinKind::pipe();
    let mut guest = Guest::new(WasiCtx::builder().stdin(stdin));
    let wait = [descriptor(1, FD_READ, 0), clock_subscription(2, 1, 20 * MILLISECOND, 0)];
    assert_eq!(guest.poll(&wait).unwrap(), [event(2, 0)]);
    let writer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        input.write(b"abc");
        input
    });
    let events = guest.poll(&wait[..1]).unwrap();
    assert_eq!(events, [Event { available: 3, ..event(1, FD_READ) }]);
    guest.read(0, 10).unwrap();
    drop(writer.join().unwrap());
    assert_eq!(guest.poll(&wait[..1]).unwrap(), [Event { hangup: true, ..event(1, FD_READ) }]);
}

#[test]
fn host_pipes_and_input_pipes_are_waited_for_together() {
    let dir = TempDir::new();
    dir.fifo("pipe");
    let (input, stdin) = StdinKind::pipe();
    let mut builder = WasiCtx::builder();
    builder.stdin(stdin);
    builder.preopened_dir(dir.path(), "/", pagefork_wasi::Permissions::ReadWrite).unwrap();
    let mut guest = Guest::new(&builder);
    let fd = guest.open(DIR, "pipe", writing()).unwrap();
    let wait = [descriptor(1, FD_READ, fd), descriptor(2, FD_READ, 0)];

    let timeout = [wait[0], wait[1], clock_subscription(3, 1, 30 * MILLISECOND, 0)];
    assert_eq!(guest.poll(&timeout).unwrap(), [event(3, 0)]);
    guest.write(fd, b"12").unwrap();
    assert_eq!(guest.poll(&wait).unwrap(), [Event { available: 2, ..event(1, FD_READ) }]);
    guest.read(fd, 2).unwrap();
    input.write(b"x");
    assert_eq!(guest.poll(&wait).unwrap(), [Event { available: 1, ..event(2, FD_READ) }]);
}

#[test]
fn a_guest_that_waits_can_be_called_back() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    let (_input, stdin) = StdinKind::pipe();
    let mut guest = Guest::new(WasiCtx::builder().stdin(stdin));
    let interrupted = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&interrupted);
    guest.ctx.set_interrupt_check(move || asked.load(Ordering::Relaxed));

    // A wait that ends by itself is not disturbed.
    let start = Instant::now();
    assert_eq!(
        guest.poll(&[clock_subscription(1, 1, 50 * MILLISECOND, 0)]).unwrap(),
        [event(1, 0)]
    );
    assert!(start.elapsed() >= Duration::from_millis(50));

    type Wait = fn(&mut Guest) -> Result<(), Errno>;
    let waits: [Wait; 3] = [
        |guest| guest.poll(&[clock_subscription(1, 1, u64::MAX, 0)]).map(drop),
        |guest| guest.poll(&[descriptor(1, FD_READ, 0)]).map(drop),
        |guest| guest.read(0, 1).map(drop),
    ];
    for wait in waits {
        interrupted.store(false, Ordering::Relaxed);
        let flag = Arc::clone(&interrupted);
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(30));
            flag.store(true, Ordering::Relaxed);
        });
        assert_eq!(wait(&mut guest), Err(Errno::Intr));
        thread.join().unwrap();
    }
}
