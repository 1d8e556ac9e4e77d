//! Calls that are put off because there is no input yet, and how long they wait when they are
//! made again.

use pagefork_wasi::{Errno, StdinKind, WasiCtx};

use crate::harness::*;
use crate::saved::restored;
use crate::saved_hostile::Parts;

const MONOTONIC: u32 = 1;

/// Longer than anybody waits, nanoseconds.
const YEARS: u64 = 30 * 365 * 24 * 3600 * 1_000_000_000;

fn awaiting() -> Guest {
    Guest::new(WasiCtx::builder().stdin(StdinKind::Awaited))
}

#[test]
fn a_read_of_input_that_is_not_there_ends_and_consumes_nothing() {
    let mut guest = awaiting();
    assert_eq!(guest.read(0, 9), Err(Errno::Again));
    assert_eq!(guest.read(0, 0).unwrap(), b"");
    assert_eq!(guest.read_v(0, &[]).unwrap(), b"");
    guest.set_flags(0, NONBLOCK).unwrap();
    assert_eq!(guest.read(0, 9), Err(Errno::Again));
    guest.ctx.set_stdin(StdinKind::bytes("input"));
    assert_eq!(guest.read(0, 2).unwrap(), b"in");
    // Each begins at its start.
    guest.ctx.set_stdin(StdinKind::bytes("more"));
    assert_eq!(guest.read(0, 9).unwrap(), b"more");
    assert_eq!(guest.read(0, 9).unwrap(), b"");
    guest.close(0).unwrap();
    guest.ctx.set_stdin(StdinKind::bytes("input"));
    assert_eq!(guest.read(0, 9), Err(Errno::Badf));
}

#[test]
fn polling_for_it_reports_what_else_has_happened_and_waits_for_nothing() {
    let mut guest = awaiting();
    let input = descriptor(1, FD_READ, 0);
    assert_eq!(guest.poll(&[input]), Err(Errno::Again));
    assert_eq!(guest.poll(&[input, clock(2, YEARS)]), Err(Errno::Again));
    assert_eq!(guest.poll(&[input, clock(2, 0)]).unwrap(), [event(2, 0)]);
    assert_eq!(guest.poll(&[input, descriptor(3, FD_WRITE, 1)]).unwrap(), [event(3, FD_WRITE)]);
    assert_eq!(guest.poll(&[clock(2, MILLISECOND)]).unwrap(), [event(2, 0)]);
    guest.ctx.set_stdin(StdinKind::bytes("input"));
    let ready = Event { available: 5, ..event(1, FD_READ) };
    assert_eq!(guest.poll(&[input, clock(2, YEARS)]).unwrap(), [ready]);
}

#[test]
fn a_call_that_is_made_again_waits_for_the_rest_of_its_time() {
    let mut guest = awaiting();
    let waits = [descriptor(1, FD_READ, 0), clock(2, YEARS)];
    assert_eq!(guest.poll(&waits), Err(Errno::Again));
    let (arguments, first) = Parts::of(&guest).put_off_poll.unwrap();
    // What it waits again adds to that.
    assert_eq!(guest.poll(&waits), Err(Errno::Again));
    let (again, second) = Parts::of(&guest).put_off_poll.unwrap();
    assert_eq!(again, arguments);
    assert!(first < second && second < YEARS, "{first} {second}");

    // As if it had waited nearly all of it.
    let mut parts = Parts::of(&guest);
    parts.put_off_poll = Some((arguments, YEARS - MILLISECOND));
    let mut copy = restored(WasiCtx::builder().stdin(StdinKind::pipe().1), &parts.state());
    let (_input, stdin) = StdinKind::pipe();
    copy.ctx.set_stdin(stdin);
    assert_eq!(copy.poll(&waits).unwrap(), [event(2, 0)]);
    // The next one is another call, which waits for all of its time.
    assert_eq!(Parts::of(&copy).put_off_poll, None);
    copy.ctx.set_stdin(StdinKind::Awaited);
    assert_eq!(copy.poll(&waits), Err(Errno::Again));
    assert!(Parts::of(&copy).put_off_poll.unwrap().1 < YEARS / 2);
}

#[test]
fn only_the_same_call_waits_for_the_rest() {
    let mut parts = {
        let mut guest = awaiting();
        let waits = [descriptor(1, FD_READ, 0), clock(2, YEARS)];
        assert_eq!(guest.poll(&waits), Err(Errno::Again));
        Parts::of(&guest)
    };
    let (arguments, _) = parts.put_off_poll.unwrap();
    parts.put_off_poll = Some((arguments, u64::MAX));
    let mut builder = WasiCtx::builder();
    builder.stdin(StdinKind::Awaited);
    let input = descriptor(1, FD_READ, 0);
    // Other arguments.
    let mut copy = restored(&builder, &parts.state());
    assert_eq!(copy.poll(&[input, clock(2, YEARS), input]), Err(Errno::Again));
    // A time by the clock, which is as far away as it was.
    let mut copy = restored(&builder, &parts.state());
    let until = copy.time(MONOTONIC).unwrap() + YEARS;
    let absolute = clock_subscription(2, MONOTONIC, until, 1);
    assert_eq!(copy.poll(&[input, absolute]), Err(Errno::Again));
    // The embedder has answered the call, or begins anew.
    for forget in [WasiCtx::forget_wait, WasiCtx::reset] {
        let mut copy = restored(&builder, &parts.state());
        forget(&mut copy.ctx);
        assert_eq!(copy.poll(&[input, clock(2, YEARS)]), Err(Errno::Again));
    }
    // And the same call, for which a saved state cannot have waited too long.
    let mut copy = restored(&builder, &parts.state());
    assert_eq!(copy.poll(&[input, clock(2, YEARS)]).unwrap(), [event(2, 0)]);
}

#[test]
fn an_embedders_own_interrupt_is_no_reason_to_make_a_call_again() {
    let mut guest = Guest::new(WasiCtx::builder().stdin(StdinKind::pipe().1));
    guest.ctx.set_interrupt_check(|| true);
    assert_eq!(guest.poll(&[clock(2, YEARS)]), Err(Errno::Intr));
    assert_eq!(Parts::of(&guest).put_off_poll, None);
    guest.ctx.set_stdin(StdinKind::Awaited);
    assert_eq!(guest.read(0, 1), Err(Errno::Intr));
    assert_eq!(guest.poll(&[descriptor(1, FD_READ, 0)]), Err(Errno::Intr));
}
