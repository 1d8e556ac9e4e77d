//! Arguments, environment, exit.

use pagefork_wasi::{BuildError, Errno, Exit, Permissions, WasiCtx};

use crate::harness::*;

#[test]
fn arguments_and_environment_are_passed() {
    let mut builder = WasiCtx::builder();
    builder.args(["prog", "", "two words"]).arg(b"\xff".to_vec());
    builder.env("HOME", "/").env("EMPTY", "").env("X", "a=b").env("HOME", "/home");
    let mut guest = Guest::new(&builder);
    assert_eq!(guest.strings(false).unwrap(), [&b"prog"[..], b"", b"two words", b"\xff"]);
    assert_eq!(guest.strings(true).unwrap(), [&b"HOME=/home"[..], b"EMPTY=", b"X=a=b"]);
    let mut bare = Guest::new(&WasiCtx::builder());
    assert_eq!(bare.strings(false).unwrap(), Vec::<Vec<u8>>::new());
    assert_eq!(bare.strings(true).unwrap(), Vec::<Vec<u8>>::new());
}

#[test]
fn strings_fill_memory_to_its_last_byte() {
    let mut builder = WasiCtx::builder();
    builder.args(["ab", "c"]);
    let mut guest = Guest::new(&builder);
    guest.bytes.truncate(64);
    let get = |guest: &mut Guest, addresses, buffer| {
        guest.call(|ctx, memory| ctx.args_get(memory, addresses, buffer))
    };
    assert_eq!(get(&mut guest, 0, 59), Ok(()));
    assert_eq!(guest.bytes_at(59, 5), b"ab\0c\0");
    guest.bytes.fill(7);
    assert_eq!(get(&mut guest, 0, 60), Err(Errno::Fault));
    assert_eq!(get(&mut guest, 57, 0), Err(Errno::Fault));
    assert!(guest.bytes.iter().all(|&byte| byte == 7));
}

#[test]
fn what_cannot_be_a_c_string_is_refused() {
    let mut builder = WasiCtx::builder();
    builder.args(["fine", "not\0fine"]);
    assert!(matches!(builder.build(), Err(BuildError::Argument { index: 1 })));
    for (name, value) in [("", "x"), ("a=b", "x"), ("a\0", "x"), ("a", "x\0")] {
        let mut builder = WasiCtx::builder();
        builder.env(name, value);
        assert!(matches!(builder.build(), Err(BuildError::Variable { .. })), "{name:?}");
    }
}

#[test]
fn a_directory_that_cannot_be_preopened_is_named() {
    let dir = TempDir::new();
    dir.write("file", "");
    let mut builder = WasiCtx::builder();
    for name in ["none", "file"] {
        let error =
            builder.preopened_dir(dir.join(name), "/x", Permissions::ReadWrite).unwrap_err();
        assert!(error.to_string().contains(name), "{error}");
    }
    let error = builder.preopened_dir(dir.path(), "", Permissions::ReadWrite).unwrap_err();
    assert!(matches!(error, BuildError::GuestPath { .. }));
}

#[test]
fn exit_carries_its_code() {
    let mut guest = Guest::new(&WasiCtx::builder());
    assert_eq!(guest.ctx.proc_exit(3), Exit(3));
    assert_eq!(guest.ctx.proc_exit(u32::MAX), Exit(-1));
    assert_eq!(Exit(3).to_string(), "the program exited with code 3");
}
