//! Answers a request, as a CGI program, after it has written to each page of a
//! mebibyte: to measure what that costs.

use std::hint::black_box;
use std::io::{self, Write};

/// Bytes that are written to.
const SIZE: usize = 1 << 20;

/// Bytes between two of them: each host page gets one.
const STEP: usize = 4096;

static mut BUFFER: [u8; SIZE] = [0; SIZE];

fn main() -> io::Result<()> {
    // SAFETY: the program has one thread, and this is the only reference.
    let buffer = unsafe { &mut *(&raw mut BUFFER) };
    let mut sum = 0;
    for place in black_box(&mut *buffer).iter_mut().step_by(STEP) {
        sum += u32::from(*place);
        *place = place.wrapping_add(1);
    }
    // In a fresh instance, every one of them was 0.
    let text = format!("Content-Type: text/plain\r\n\r\n{sum} of {} were dirty\n", SIZE / STEP);
    io::stdout().write_all(text.as_bytes())
}
