//! Addresses beyond the end of memory fail with `Fault`, before anything has
//! happened; and no argument at all makes a function panic.

use pagefork_wasi::{Errno, GuestMemory, WasiCtx};

use crate::harness::*;

/// A call given a good address and a bad one in its place.
type Call = fn(&mut WasiCtx, &mut GuestMemory<'_>, u32) -> Result<(), Errno>;

/// Every function that takes addresses, once for each of them; the rest of
/// its arguments would let it succeed.
///
/// In memory: at 0x100 an iovec of 4 bytes at 0x200, at 0x300 the path `file`
/// and at 0x310 the path `new`, at 0x400 a subscription of a clock at 0.
const CALLS: &[(&str, Call)] = &[
    ("args_get", |c, m, a| c.args_get(m, a, 0x800)),
    ("args_get", |c, m, a| c.args_get(m, 0x800, a)),
    ("args_sizes_get", |c, m, a| c.args_sizes_get(m, a, 0x800)),
    ("args_sizes_get", |c, m, a| c.args_sizes_get(m, 0x800, a)),
    ("environ_get", |c, m, a| c.environ_get(m, a, 0x800)),
    ("environ_get", |c, m, a| c.environ_get(m, 0x800, a)),
    ("environ_sizes_get", |c, m, a| c.environ_sizes_get(m, a, 0x800)),
    ("environ_sizes_get", |c, m, a| c.environ_sizes_get(m, 0x800, a)),
    ("clock_res_get", |c, m, a| c.clock_res_get(m, 0, a)),
    ("clock_time_get", |c, m, a| c.clock_time_get(m, 0, 0, a)),
    ("fd_fdstat_get", |c, m, a| c.fd_fdstat_get(m, DIR, a)),
    ("fd_filestat_get", |c, m, a| c.fd_filestat_get(m, DIR, a)),
    ("fd_pread", |c, m, a| c.fd_pread(m, FILE, a, 1, 0, 0x800)),
    ("fd_pread", |c, m, a| c.fd_pread(m, FILE, 0x100, 1, 0, a)),
    ("fd_prestat_get", |c, m, a| c.fd_prestat_get(m, DIR, a)),
    ("fd_prestat_dir_name", |c, m, a| c.fd_prestat_dir_name(m, DIR, a, 4)),
    ("fd_pwrite", |c, m, a| c.fd_pwrite(m, FILE, a, 1, 0, 0x800)),
    ("fd_pwrite", |c, m, a| c.fd_pwrite(m, FILE, 0x100, 1, 0, a)),
    ("fd_read", |c, m, a| c.fd_read(m, FILE, a, 1, 0x800)),
    ("fd_read", |c, m, a| c.fd_read(m, FILE, 0x100, 1, a)),
    ("fd_readdir", |c, m, a| c.fd_readdir(m, DIR, a, 64, 0, 0x800)),
    ("fd_readdir", |c, m, a| c.fd_readdir(m, DIR, 0x800, 64, 0, a)),
    ("fd_seek", |c, m, a| c.fd_seek(m, FILE, 1, 0, a)),
    ("fd_tell", |c, m, a| c.fd_tell(m, FILE, a)),
    ("fd_write", |c, m, a| c.fd_write(m, FILE, a, 1, 0x800)),
    ("fd_write", |c, m, a| c.fd_write(m, FILE, 0x100, 1, a)),
    ("path_create_directory", |c, m, a| c.path_create_directory(m, DIR, a, 3)),
    ("path_filestat_get", |c, m, a| c.path_filestat_get(m, DIR, 0, a, 4, 0x800)),
    ("path_filestat_get", |c, m, a| c.path_filestat_get(m, DIR, 0, 0x300, 4, a)),
    ("path_filestat_set_times", |c, m, a| c.path_filestat_set_times(m, DIR, 0, a, 4, 0, 0, 5)),
    ("path_link", |c, m, a| c.path_link(m, DIR, 0, a, 4, DIR, 0x310, 3)),
    ("path_link", |c, m, a| c.path_link(m, DIR, 0, 0x300, 4, DIR, a, 3)),
    ("path_open", |c, m, a| c.path_open(m, DIR, 0, a, 3, CREAT, ALL, ALL, 0, 0x800)),
    ("path_open", |c, m, a| c.path_open(m, DIR, 0, 0x310, 3, CREAT, ALL, ALL, 0, a)),
    ("path_readlink", |c, m, a| c.path_readlink(m, DIR, a, 4, 0x800, 9, 0x900)),
    ("path_readlink", |c, m, a| c.path_readlink(m, DIR, 0x320, 4, a, 9, 0x900)),
    ("path_readlink", |c, m, a| c.path_readlink(m, DIR, 0x320, 4, 0x800, 9, a)),
    ("path_remove_directory", |c, m, a| c.path_remove_directory(m, DIR, a, 3)),
    ("path_rename", |c, m, a| c.path_rename(m, DIR, a, 4, DIR, 0x310, 3)),
    ("path_rename", |c, m, a| c.path_rename(m, DIR, 0x300, 4, DIR, a, 3)),
    ("path_symlink", |c, m, a| c.path_symlink(m, a, 4, DIR, 0x310, 3)),
    ("path_symlink", |c, m, a| c.path_symlink(m, 0x300, 4, DIR, a, 3)),
    ("path_unlink_file", |c, m, a| c.path_unlink_file(m, DIR, a, 4)),
    ("poll_oneoff", |c, m, a| c.poll_oneoff(m, a, 0x800, 1, 0x900)),
    ("poll_oneoff", |c, m, a| c.poll_oneoff(m, 0x400, a, 1, 0x900)),
    ("poll_oneoff", |c, m, a| c.poll_oneoff(m, 0x400, 0x800, 1, a)),
    ("random_get", |c, m, a| c.random_get(m, a, 16)),
];

const FILE: u32 = 4;

/// A guest with `file` open as descriptor 4, and memory as [`CALLS`] want it.
fn guest(dir: &TempDir) -> Guest {
    dir.write("file", "text");
    dir.symlink("file", "link");
    let mut builder = WasiCtx::builder();
    builder.args(["prog", "x"]).env("HOME", "/");
    builder.preopened_dir(dir.path(), "/dir", pagefork_wasi::Permissions::ReadWrite).unwrap();
    let mut guest = Guest::new(&builder);
    assert_eq!(guest.open(DIR, "file", writing()), Ok(FILE));
    guest.bytes = vec![0; 0x1_0000];
    guest.put(0x100, &[0x00, 0x02, 0, 0, 4, 0, 0, 0]);
    guest.put(0x200, b"data");
    guest.put(0x300, b"file");
    guest.put(0x310, b"new");
    guest.put(0x320, b"link");
    guest
}

#[test]
fn bad_addresses_fail_before_anything_happens() {
    let dir = TempDir::new();
    let mut guest = guest(&dir);
    let before = guest.bytes.clone();
    let descriptions = |guest: &Guest| -> Vec<_> {
        guest.ctx.descriptors().map(|(fd, description)| (fd, description.clone())).collect()
    };
    let descriptions_before = descriptions(&guest);
    let end = guest.bytes.len() as u32;
    for (name, call) in CALLS {
        for address in [end - 1, end, end + 1, 1 << 31, u32::MAX - 3, u32::MAX] {
            let result = guest.call(|ctx, memory| call(ctx, memory, address));
            assert_eq!(result, Err(Errno::Fault), "{name} at {address:#x}");
        }
        assert_eq!(guest.bytes, before, "{name}");
        assert_eq!(descriptions(&guest), descriptions_before, "{name}");
        assert_eq!(dir.read("file"), "text", "{name}");
        assert!(dir.has("link") && !dir.has("new"), "{name}");
    }
}

#[test]
fn the_same_calls_succeed_with_good_addresses() {
    for (name, call) in CALLS {
        let dir = TempDir::new();
        let mut guest = guest(&dir);
        // The address that the argument has elsewhere in the table.
        let good = match *name {
            name if name.starts_with("path_") => continue,
            "poll_oneoff" => 0x400,
            _ => 0x100,
        };
        let result = guest.call(|ctx, memory| call(ctx, memory, good));
        assert_eq!(result, Ok(()), "{name}");
    }
}

#[test]
fn an_iovec_beyond_memory_is_found() {
    let dir = TempDir::new();
    let mut guest = guest(&dir);
    let end = guest.bytes.len() as u32;
    for (address, size) in [(end - 3, 4), (end, 1), (u32::MAX, 1), (0, u32::MAX), (1, end)] {
        guest.put(0x108, &[address.to_le_bytes(), size.to_le_bytes()].concat());
        for result in [
            guest.call(|ctx, memory| ctx.fd_read(memory, FILE, 0x100, 2, 0x800)),
            guest.call(|ctx, memory| ctx.fd_write(memory, FILE, 0x100, 2, 0x800)),
            guest.call(|ctx, memory| ctx.fd_pread(memory, FILE, 0x100, 2, 0, 0x800)),
            guest.call(|ctx, memory| ctx.fd_pwrite(memory, FILE, 0x100, 2, 0, 0x800)),
        ] {
            assert_eq!(result, Err(Errno::Fault), "{size} bytes at {address:#x}");
        }
    }
    assert_eq!(dir.read("file"), "text");
    assert_eq!(guest.tell(FILE), Ok(0));
}

#[test]
fn memory_may_be_empty() {
    let dir = TempDir::new();
    let mut guest = guest(&dir);
    guest.bytes.clear();
    for (name, call) in CALLS {
        for address in [0, 1, u32::MAX] {
            let result = guest.call(|ctx, memory| call(ctx, memory, address));
            assert_eq!(result, Err(Errno::Fault), "{name} at {address:#x}");
        }
    }
}

/// A small generator with a fixed seed, so that a failure comes again.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn word(&mut self) -> u32 {
        let raw = self.next();
        match raw % 8 {
            0 => u32::MAX,
            1 => (raw >> 8) as u32,
            2 => 0xffff_ff00 | (raw >> 8) as u32,
            3..=4 => (raw >> 8) as u32 % 8,
            _ => (raw >> 8) as u32 % 0x1_0000,
        }
    }

    /// Never a size that would fill the disk.
    fn long(&mut self) -> u64 {
        let choices = [0, 1, 7, 4096, 1 << 62, 1 << 63, u64::MAX, u64::MAX - 1];
        choices[(self.next() % choices.len() as u64) as usize]
    }
}

#[test]
fn no_arguments_make_a_function_panic() {
    let dir = TempDir::new();
    let mut guest = guest(&dir);
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for round in 0..60_000 {
        if round % 500 == 0 {
            guest.ctx.reset();
            for byte in &mut guest.bytes {
                *byte = random.next() as u8;
            }
            guest.put(0, b"a/../file");
            guest.put(0x10, b"b/./../x/");
        }
        let r = &mut random;
        let [a, b, c, d, e, f, g] = std::array::from_fn(|_| r.word());
        let [x, y] = std::array::from_fn(|_| r.long());
        let rights = if r.next().is_multiple_of(2) { ALL } else { r.next() };
        let choice = r.next() % 44;
        let _ = guest.call(|ctx, m| match choice {
            0 => ctx.args_get(m, a, b),
            1 => ctx.args_sizes_get(m, a, b),
            2 => ctx.environ_get(m, a, b),
            3 => ctx.environ_sizes_get(m, a, b),
            4 => ctx.clock_res_get(m, a, b),
            5 => ctx.clock_time_get(m, a, x, b),
            6 => ctx.fd_advise(m, a, x, y, b),
            7 => ctx.fd_allocate(m, a, x.min(1 << 62), y),
            8 => ctx.fd_close(m, a),
            9 => ctx.fd_datasync(m, a),
            10 => ctx.fd_fdstat_get(m, a, b),
            11 => ctx.fd_fdstat_set_flags(m, a, b),
            12 => ctx.fd_fdstat_set_rights(m, a, x, y),
            13 => ctx.fd_filestat_get(m, a, b),
            14 => ctx.fd_filestat_set_size(m, a, x),
            15 => ctx.fd_filestat_set_times(m, a, x, y, b),
            16 => ctx.fd_pread(m, a, b, c, x, d),
            17 => ctx.fd_prestat_get(m, a, b),
            18 => ctx.fd_prestat_dir_name(m, a, b, c),
            19 => ctx.fd_pwrite(m, a, b, c % 64, x.min(4096), d),
            20 => ctx.fd_read(m, a, b, c, d),
            21 => ctx.fd_readdir(m, a, b, c, x, d),
            22 => ctx.fd_renumber(m, a, b),
            23 => ctx.fd_seek(m, a, x.cast_signed(), b, c),
            24 => ctx.fd_sync(m, a),
            25 => ctx.fd_tell(m, a, b),
            26 => ctx.fd_write(m, a, b, c % 64, d),
            27 => ctx.path_create_directory(m, a, b, c),
            28 => ctx.path_filestat_get(m, a, b, c, d, e),
            29 => ctx.path_filestat_set_times(m, a, b, c, d, x, y, e),
            30 => ctx.path_link(m, a, b, c, d, e, f, g),
            31 => ctx.path_open(m, a, b % 4, c, d, e % 32, rights, x, f % 64, g),
            32 => ctx.path_readlink(m, a, b, c, d, e, f),
            33 => ctx.path_remove_directory(m, a, b, c),
            34 => ctx.path_rename(m, a, b, c, d, e, f),
            35 => ctx.path_symlink(m, a, b, c, d, e),
            36 => ctx.path_unlink_file(m, a, b, c),
            37 => ctx.proc_raise(m, a),
            38 => ctx.random_get(m, a, b),
            39 => ctx.sched_yield(m),
            40 => ctx.sock_accept(m, a, b, c),
            41 => ctx.sock_recv(m, a, b, c, d, e, f),
            42 => ctx.sock_send(m, a, b, c, d, e),
            _ => ctx.sock_shutdown(m, a, b),
        });
    }
}

#[test]
fn random_subscriptions_do_not_panic() {
    let dir = TempDir::new();
    let mut guest = guest(&dir);
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    for _ in 0..5_000 {
        // The first is ready, so that none waits.
        for byte in &mut guest.bytes[48..1024] {
            *byte = if random.next().is_multiple_of(4) { random.next() as u8 } else { 0 };
        }
        guest.bytes[..48].fill(0);
        let count = random.next() as u32 % 20 + 1;
        let events = random.word();
        let _ = guest.call(|ctx, memory| ctx.poll_oneoff(memory, 0, events, count, 0x2000));
    }
}
