//! Arguments, environment, clocks, waiting, the end.

use super::*;

/// A getter of sizes or of strings.
type Get = fn(&mut WasiCtx, &mut GuestMemory<'_>, u32, u32) -> Result<(), Errno>;

/// Checks that sizes are written, at any two addresses.
fn sizes_are(get: Get, count: u32, size: u32) {
    let mut world = World::new();
    assert_eq!(world.guest.call(|ctx, memory| get(ctx, memory, OUT, OUT_2)), Ok(()));
    assert_eq!((world.u32_at(OUT), world.u32_at(OUT_2)), (count, size));
    // The last four bytes of memory are good, and so is one place for both.
    let end = world.guest.bytes.len() as u32 - 4;
    assert_eq!(world.guest.call(|ctx, memory| get(ctx, memory, end, end)), Ok(()));
    assert_eq!(world.u32_at(end), size);
}

/// Checks that addresses and strings are written.
fn strings_are(get: Get, addresses: &[u32], strings: &[u8]) {
    let mut world = World::new();
    // The addresses at a place that is not aligned.
    assert_eq!(world.guest.call(|ctx, memory| get(ctx, memory, OUT_2, DATA)), Ok(()));
    for (index, address) in (0..).zip(addresses) {
        assert_eq!(world.u32_at(OUT_2 + index * 4), DATA + address);
    }
    assert_eq!(world.guest.bytes_at(DATA, strings.len() as u32), strings);
    // Nothing beyond.
    assert_eq!(world.guest.bytes_at(DATA + strings.len() as u32, 64), [0; 64]);
    assert_eq!(world.u32_at(OUT_2 + addresses.len() as u32 * 4), 0);
    // The two may overlap.
    assert_eq!(world.guest.call(|ctx, memory| get(ctx, memory, DATA, DATA)), Ok(()));
}

/// Checks that two results of these sizes are refused where they do not fit,
/// and that then nothing is written.
fn both_results_are_checked(get: Get, sizes: (u32, u32)) {
    let mut world = World::new();
    let before = world.guest.bytes.clone();
    world.faults(sizes.0, |ctx, memory, address| get(ctx, memory, address, OUT));
    world.faults(sizes.1, |ctx, memory, address| get(ctx, memory, OUT, address));
    assert!(world.guest.bytes == before);
}

mod args_get {
    use super::*;

    #[test]
    fn good() {
        strings_are(WasiCtx::args_get, &[0, 5], b"prog\0x\0");
    }

    #[test]
    fn bad() {
        both_results_are_checked(WasiCtx::args_get, (8, 7));
    }
}

mod args_sizes_get {
    use super::*;

    #[test]
    fn good() {
        sizes_are(WasiCtx::args_sizes_get, 2, 7);
    }

    #[test]
    fn bad() {
        both_results_are_checked(WasiCtx::args_sizes_get, (4, 4));
    }
}

mod environ_get {
    use super::*;

    #[test]
    fn good() {
        strings_are(WasiCtx::environ_get, &[0], b"HOME=/\0");
    }

    #[test]
    fn bad() {
        both_results_are_checked(WasiCtx::environ_get, (4, 7));
    }
}

mod environ_sizes_get {
    use super::*;

    #[test]
    fn good() {
        sizes_are(WasiCtx::environ_sizes_get, 1, 7);
    }

    #[test]
    fn bad() {
        both_results_are_checked(WasiCtx::environ_sizes_get, (4, 4));
    }
}

const UNKNOWN_CLOCKS: [u32; 4] = [4, 5, 0x8000_0000, u32::MAX];

mod clock_res_get {
    use super::*;

    #[test]
    fn good() {
        let mut world = World::new();
        for clock in 0..4 {
            assert_eq!(call!(world.clock_res_get(clock, OUT_2)), Ok(()));
            assert!((1..=1_000_000_000).contains(&world.u64_at(OUT_2)), "clock {clock}");
        }
    }

    #[test]
    fn bad() {
        let mut world = World::new();
        for clock in UNKNOWN_CLOCKS {
            assert_eq!(call!(world.clock_res_get(clock, OUT)), Err(Errno::Inval));
        }
        assert_eq!(world.u64_at(OUT), 0);
        world.faults(8, |ctx, memory, address| ctx.clock_res_get(memory, 1, address));
    }
}

mod clock_time_get {
    use super::*;

    #[test]
    fn good() {
        let mut world = World::new();
        for clock in 0..4 {
            let mut last = 0;
            // Any precision will do.
            for precision in [0, 1, 1_000_000_000, u64::MAX] {
                assert_eq!(call!(world.clock_time_get(clock, precision, OUT_2)), Ok(()));
                let now = world.u64_at(OUT_2);
                // The wall clock may be set back while the test runs.
                assert!(now > 0 && (now >= last || clock == 0), "clock {clock}");
                last = now;
            }
        }
    }

    #[test]
    fn bad() {
        let mut world = World::new();
        for clock in UNKNOWN_CLOCKS {
            assert_eq!(call!(world.clock_time_get(clock, 0, OUT)), Err(Errno::Inval));
        }
        assert_eq!(world.u64_at(OUT), 0);
        world.faults(8, |ctx, memory, address| ctx.clock_time_get(memory, 0, 0, address));
    }
}

mod random_get {
    use super::*;

    #[test]
    fn good() {
        let mut world = World::new();
        assert_eq!(call!(world.random_get(OUT_2, 64)), Ok(()));
        assert_ne!(world.guest.bytes_at(OUT_2, 32), world.guest.bytes_at(OUT_2 + 32, 32));
        assert_eq!(world.guest.bytes_at(OUT_2 + 64, 16), [0; 16]);
        // Nothing, be it at the very end.
        let end = world.guest.bytes.len() as u32;
        assert_eq!(call!(world.random_get(end, 0)), Ok(()));
        // More than the kernel fills at once, up to the last byte.
        assert_eq!(call!(world.random_get(end - 300_000, 300_000)), Ok(()));
        assert_ne!(world.guest.bytes_at(end - 32, 32), [0; 32]);
    }

    #[test]
    fn bad() {
        let mut world = World::new();
        let before = world.guest.bytes.clone();
        world.faults(16, |ctx, memory, address| ctx.random_get(memory, address, 16));
        assert_eq!(call!(world.random_get(1, u32::MAX)), Err(Errno::Fault));
        assert_eq!(call!(world.random_get(u32::MAX, u32::MAX)), Err(Errno::Fault));
        let beyond = world.guest.bytes.len() as u32 + 1;
        assert_eq!(call!(world.random_get(beyond, 0)), Err(Errno::Fault));
        assert!(world.guest.bytes == before);
    }
}

mod sched_yield {
    use super::*;

    #[test]
    fn good() {
        let mut world = World::new();
        assert_eq!(call!(world.sched_yield()), Ok(()));
    }

    /// It takes nothing that could be bad, not even memory.
    #[test]
    fn bad() {
        let mut world = World::new();
        world.guest.bytes.clear();
        assert_eq!(call!(world.sched_yield()), Ok(()));
    }
}

mod proc_exit {
    use super::*;

    #[test]
    fn good() {
        let mut world = World::new();
        for code in [0, 1, 42, 125] {
            assert_eq!(world.guest.ctx.proc_exit(code).0, code as i32);
        }
    }

    /// No code is refused; what a shell makes of it is the embedder's affair.
    #[test]
    fn bad() {
        let mut world = World::new();
        assert_eq!(world.guest.ctx.proc_exit(256).0, 256);
        assert_eq!(world.guest.ctx.proc_exit(u32::MAX).0, -1);
        assert_eq!(world.guest.ctx.proc_exit(0x8000_0000).0, i32::MIN);
    }
}

mod proc_raise {
    use super::*;

    /// No signal can be raised: the function exists, and the process lives on.
    #[test]
    fn good() {
        let mut world = World::new();
        for signal in 0..32 {
            assert_eq!(call!(world.proc_raise(signal)), Err(Errno::Nosys));
        }
    }

    #[test]
    fn bad() {
        let mut world = World::new();
        for signal in [32, 255, u32::MAX] {
            assert_eq!(call!(world.proc_raise(signal)), Err(Errno::Nosys));
        }
    }
}

mod poll_oneoff {
    use super::*;

    use crate::harness::{FD_READ as READ, FD_WRITE as WRITE, clock_subscription, descriptor};

    const CLOCK: u8 = 0;

    /// The events: user data, error, type.
    fn poll(world: &mut World, subscriptions: &[[u8; 48]]) -> Result<Vec<(u64, u16, u8)>, Errno> {
        world.guest.poll(subscriptions).map(|events| {
            events.iter().map(|event| (event.userdata, event.error, event.event_type)).collect()
        })
    }

    #[test]
    fn good() {
        let mut world = World::new();
        let soon = [
            clock_subscription(u64::MAX, 1, 1, 0),
            clock_subscription(2, 0, u64::MAX, 0),
            clock_subscription(3, 0, 1, 1),
        ];
        let events = poll(&mut world, &soon).unwrap();
        assert!(events.contains(&(3, 0, CLOCK)) && !events.contains(&(2, 0, CLOCK)), "{events:?}");
        let ready: Vec<[u8; 48]> = [(READ, FILE), (WRITE, FILE), (READ, 0), (WRITE, 1), (WRITE, 3)]
            .into_iter()
            .map(|(tag, fd)| descriptor(u64::from(fd), tag, fd))
            .collect();
        assert_eq!(
            poll(&mut world, &ready).unwrap(),
            [(6, 0, READ), (6, 0, WRITE), (0, 0, READ), (1, 0, WRITE), (3, 0, WRITE)]
        );
        // Subscriptions, events and their count may lie in one place, not
        // aligned: what is asked is read before anything is written.
        let place = OUT_2;
        for (index, subscription) in (0..).zip(&ready) {
            world.guest.put(place + index * 48, subscription);
        }
        assert_eq!(call!(world.poll_oneoff(place, place + 8, 5, place)), Ok(()));
        assert_eq!(world.u32_at(place), 5);
        assert_eq!(world.u64_at(place + 8 + 32), u64::from(FILE));
    }

    #[test]
    fn bad() {
        let mut world = World::new();
        world.guest.put(DATA, &clock_subscription(1, 1, 0, 0));
        world.faults(48, |ctx, memory, address| ctx.poll_oneoff(memory, address, OUT, 1, OUT_2));
        world.faults(32, |ctx, memory, address| ctx.poll_oneoff(memory, DATA, address, 1, OUT_2));
        world.faults(4, |ctx, memory, address| ctx.poll_oneoff(memory, DATA, OUT, 1, address));
        assert_eq!(call!(world.poll_oneoff(DATA, OUT, 0, OUT_2)), Err(Errno::Inval));
        for count in [(1 << 16) + 1, u32::MAX / 48 + 1, u32::MAX] {
            assert_eq!(call!(world.poll_oneoff(DATA, OUT, count, OUT_2)), Err(Errno::Inval));
        }
        assert_eq!(call!(world.poll_oneoff(DATA, OUT, 1 << 16, OUT_2)), Err(Errno::Fault));
        // Unknown types and flags make no subscription, be it the last.
        let good = clock_subscription(1, 1, 0, 0);
        for malformed in [
            descriptor(2, 3, 0),
            descriptor(2, 255, 0),
            clock_subscription(2, 0, 0, 2),
            clock_subscription(2, 0, 0, u16::MAX),
        ] {
            assert_eq!(poll(&mut world, &[good, malformed]), Err(Errno::Inval));
        }
        // What is wrong with a clock or a descriptor is told in its event.
        for (tag, subject, errno) in [
            (CLOCK, 2, Errno::Notsup),
            (CLOCK, 3, Errno::Notsup),
            (CLOCK, u32::MAX, Errno::Notsup),
            (READ, CLOSED[0], Errno::Badf),
            (WRITE, u32::MAX, Errno::Badf),
            (READ, POOR, Errno::Notcapable),
            (WRITE, POOR, Errno::Notcapable),
            (READ, 1, Errno::Badf),
            (WRITE, 0, Errno::Badf),
            (WRITE, LISTENER, Errno::Badf),
        ] {
            let events = poll(&mut world, &[descriptor(9, tag, subject)]);
            assert_eq!(events, Ok(vec![(9, errno.code(), tag)]), "{tag} {subject}");
        }
    }
}
