//! Clocks and random numbers.

use std::time::{SystemTime, UNIX_EPOCH};

use pagefork_wasi::{Errno, WasiCtx};

use crate::harness::*;

#[test]
fn the_clocks_run() {
    let mut guest = Guest::new(&WasiCtx::builder());
    let host = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let real = guest.time(0).unwrap();
    assert!(real >= host && real - host < 60_000_000_000, "{real} is not now");
    for clock in 1..4 {
        let first = guest.time(clock).unwrap();
        let mut second = first;
        while second == first {
            second = guest.time(clock).unwrap();
            assert!(second >= first);
        }
    }
    for clock in 0..4 {
        guest.call(|ctx, memory| ctx.clock_res_get(memory, clock, 64)).unwrap();
        assert!((1..=100_000_000).contains(&guest.u64_at(64)));
    }
    for clock in [4, u32::MAX] {
        assert_eq!(guest.time(clock), Err(Errno::Inval));
        let resolution = guest.call(|ctx, memory| ctx.clock_res_get(memory, clock, 64));
        assert_eq!(resolution, Err(Errno::Inval));
    }
}

#[test]
fn random_bytes_fill_exactly_the_buffer() {
    let mut guest = Guest::new(&WasiCtx::builder());
    let mut fill = |size| guest.call(|ctx, memory| ctx.random_get(memory, 1000, size));
    assert_eq!(fill(0), Ok(()));
    assert_eq!(fill(10_000), Ok(()));
    assert_eq!(fill(u32::MAX), Err(Errno::Fault));
    assert!(guest.bytes[..1000].iter().all(|&byte| byte == 0));
    assert!(guest.bytes[11_000..].iter().all(|&byte| byte == 0));
    let mut seen = [false; 256];
    for &byte in &guest.bytes[1000..11_000] {
        seen[usize::from(byte)] = true;
    }
    assert!(seen.iter().all(|&seen| seen));
}
