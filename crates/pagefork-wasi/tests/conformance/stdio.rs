//! Standard streams.

use pagefork_wasi::{Errno, OutputKind, StdinKind, WasiCtx};

use crate::harness::*;

#[test]
fn without_streams_input_is_empty_and_output_vanishes() {
    let mut guest = Guest::new(&WasiCtx::builder());
    assert_eq!(guest.read(0, 10).unwrap(), b"");
    assert_eq!(guest.write(1, b"hello"), Ok(5));
    assert_eq!(guest.write(2, b"hello"), Ok(5));
    assert_eq!(guest.write(0, b"hello"), Err(Errno::Badf));
    assert_eq!(guest.read(1, 10), Err(Errno::Badf));
    assert_eq!(guest.open(0, "x", reading()), Err(Errno::Notdir));
}

#[test]
fn input_from_bytes_is_read_once() {
    let mut builder = WasiCtx::builder();
    builder.stdin(StdinKind::bytes("hello"));
    let mut guest = Guest::new(&builder);
    assert_eq!(guest.read_v(0, &[0, 2, 2]).unwrap(), b"he");
    assert_eq!(guest.read(0, 10).unwrap(), b"llo");
    assert_eq!(guest.read(0, 10).unwrap(), b"");
    // Another guest of the same builder reads for itself.
    assert_eq!(Guest::new(&builder).read(0, 10).unwrap(), b"hello");
}

#[test]
fn pipes_carry_input_and_output() {
    let (input, stdin) = StdinKind::pipe();
    let (output, stdout) = OutputKind::pipe();
    let (errors, stderr) = OutputKind::pipe();
    let mut builder = WasiCtx::builder();
    builder.stdin(stdin).stdout(stdout).stderr(stderr);
    let mut guest = Guest::new(&builder);
    input.write(b"line\n");
    assert_eq!(guest.read(0, 3).unwrap(), b"lin");
    assert_eq!(guest.read(0, 30).unwrap(), b"e\n");
    guest.set_flags(0, NONBLOCK).unwrap();
    assert_eq!(guest.read(0, 30), Err(Errno::Again));
    input.close();
    assert_eq!(guest.read(0, 30).unwrap(), b"");
    assert_eq!(guest.write_v(1, &[b"out", b"put"]), Ok(6));
    assert_eq!(guest.write(2, b"error"), Ok(5));
    assert_eq!(output.take(), b"output");
    assert_eq!(errors.take(), b"error");
}

#[test]
fn streams_do_not_look_like_terminals() {
    let mut guest = Guest::new(WasiCtx::builder().stdin(StdinKind::bytes("x")));
    for fd in 0..3 {
        assert_eq!(guest.fdstat(fd).unwrap().filetype, 0);
    }
    // Nor do they claim to be positioned.
    assert_eq!(guest.fdstat(1).unwrap().base & (SEEK | TELL), 0);
}

#[test]
fn inherited_streams_are_those_of_the_process() {
    let mut builder = WasiCtx::builder();
    builder.inherit_stdio();
    let mut guest = Guest::new(&builder);
    assert_eq!(guest.write_v(1, &[b"", b""]), Ok(0));
    assert_eq!(guest.write(2, b""), Ok(0));
    assert_eq!(guest.read_v(0, &[]).unwrap(), b"");
    assert!(guest.stat(1).is_ok());
}
