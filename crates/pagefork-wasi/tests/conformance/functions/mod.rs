//! Each function by its name: in a module called like it, a test `good` of
//! calls that succeed and a test `bad` of calls that fail, each with the error
//! that a host is to give. That no function lacks either is tested too.

mod descriptors;
mod paths;
mod sockets;
mod system;
mod transfers;

use std::os::unix::net::{UnixListener, UnixStream};

use pagefork_wasi::{Errno, GuestMemory, Permissions, WasiCtx};

use crate::harness::{Guest, TempDir, directory, reading, writing};
use crate::imports::IMPORTS;

/// A connected socket, whose other end is [`World::peer`].
const SOCKET: u32 = 3;
/// A listening socket.
const LISTENER: u32 = 4;
/// The directory that holds everything.
const ROOT: u32 = 5;
/// `file`, which contains `0123456789`, for reading and writing.
const FILE: u32 = 6;
/// `sub`, an empty directory.
const SUB: u32 = 7;
/// `file` again, without any right.
const POOR: u32 = 8;
/// Numbers of no descriptor.
const CLOSED: [u32; 4] = [9, 1024, 0x8000_0000, u32::MAX];

/// Addresses for results, one of them not aligned.
const OUT: u32 = 0x2000;
const OUT_2: u32 = 0x2101;
/// Where buffers are.
const DATA: u32 = 0x3000;
/// Where iovecs are.
const IOVS: u32 = 0x4000;

/// How long to wait for what takes no time.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(120);

/// A guest that has one of everything.
struct World {
    dir: TempDir,
    guest: Guest,
    peer: UnixStream,
}

impl World {
    fn new() -> World {
        let dir = TempDir::new();
        dir.mkdir("root/sub");
        dir.write("root/file", "0123456789");
        dir.symlink("file", "root/link");
        dir.symlink("nowhere", "root/dangling");
        dir.symlink("loop", "root/loop");
        let (socket, peer) = UnixStream::pair().unwrap();
        // What should end and does not is a failure, not a test that hangs.
        peer.set_read_timeout(Some(PATIENCE)).unwrap();
        let listener = UnixListener::bind(dir.join("listener")).unwrap();
        let mut builder = WasiCtx::builder();
        builder.args(["prog", "x"]).env("HOME", "/");
        builder.preopened_dir(dir.join("root"), "/root", Permissions::ReadWrite).unwrap();
        builder.preopened_socket(socket).unwrap().preopened_socket(listener).unwrap();
        let mut guest = Guest::new(&builder);
        assert_eq!(guest.open(ROOT, "file", writing()), Ok(FILE));
        assert_eq!(guest.open(ROOT, "sub", directory()), Ok(SUB));
        assert_eq!(guest.open(ROOT, "file", reading()), Ok(POOR));
        guest.set_rights(POOR, 0, 0).unwrap();
        World { dir, guest, peer }
    }

    /// The contents of `file`.
    fn file(&self) -> String {
        self.dir.read("root/file")
    }

    /// Puts a path or a buffer into memory: its address and size.
    fn put(&mut self, bytes: impl AsRef<[u8]>) -> (u32, u32) {
        self.guest.put(DATA, bytes.as_ref())
    }

    /// An array of iovecs: its address and count.
    fn iovs(&mut self, iovs: &[(u32, u32)]) -> (u32, u32) {
        for (index, (address, size)) in iovs.iter().enumerate() {
            let bytes = [address.to_le_bytes(), size.to_le_bytes()].concat();
            self.guest.put(IOVS + index as u32 * 8, &bytes);
        }
        (IOVS, iovs.len() as u32)
    }

    /// Checks that a call fails with `Fault` at each address where `size`
    /// bytes do not fit.
    fn faults(
        &mut self,
        size: u32,
        call: impl Fn(&mut WasiCtx, &mut GuestMemory<'_>, u32) -> Result<(), Errno>,
    ) {
        let end = self.guest.bytes.len() as u32;
        let addresses = [end - size + 1, end - 1, end, 1 << 31, u32::MAX - size + 1, u32::MAX];
        // Where one byte is enough, it lies within memory.
        for address in addresses.into_iter().filter(|&address| size > 1 || address >= end) {
            let result = self.guest.call(|ctx, memory| call(ctx, memory, address));
            assert_eq!(result, Err(Errno::Fault), "at {address:#x}");
        }
    }

    /// Checks what a call says of each descriptor.
    fn each(
        &mut self,
        expected: &[(Errno, &[u32])],
        call: impl Fn(&mut WasiCtx, &mut GuestMemory<'_>, u32) -> Result<(), Errno>,
    ) {
        for (errno, fds) in expected {
            for &fd in *fds {
                let result = self.guest.call(|ctx, memory| call(ctx, memory, fd));
                assert_eq!(result, Err(*errno), "descriptor {fd}");
            }
        }
    }

    fn u16_at(&self, address: u32) -> u16 {
        u16::from_le_bytes(self.guest.bytes_at(address, 2).try_into().unwrap())
    }

    fn u32_at(&self, address: u32) -> u32 {
        self.guest.u32_at(address)
    }

    fn u64_at(&self, address: u32) -> u64 {
        self.guest.u64_at(address)
    }
}

/// Calls a function with a world's state and memory.
macro_rules! call {
    ($world:ident.$function:ident($($argument:expr),* $(,)?)) => {
        $world.guest.call(|ctx, memory| ctx.$function(memory, $($argument),*))
    };
}
use call;

#[test]
fn every_function_has_a_good_and_a_bad_test() {
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--list", "--format", "terse"])
        .output()
        .unwrap();
    let list = String::from_utf8(output.stdout).unwrap();
    let tests: Vec<&str> = list.lines().filter_map(|line| line.strip_suffix(": test")).collect();
    assert!(tests.contains(&"functions::every_function_has_a_good_and_a_bad_test"), "{list}");
    assert_eq!(IMPORTS.len(), 46);
    let mut found = 0;
    for (function, ..) in IMPORTS {
        for kind in ["good", "bad"] {
            let name = format!("::{function}::{kind}");
            let count = tests
                .iter()
                .filter(|test| test.starts_with("functions::") && test.ends_with(&name))
                .count();
            assert_eq!(count, 1, "tests called {name}");
            found += 1;
        }
    }
    // And no module is called like a function that does not exist.
    let named = tests.iter().filter(|test| test.ends_with("::good") || test.ends_with("::bad"));
    assert_eq!(named.count(), found);
}
