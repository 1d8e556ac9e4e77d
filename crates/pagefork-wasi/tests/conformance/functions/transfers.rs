//! Reading and writing.

use std::io::{Read, Write};

use super::*;

/// A transfer of a descriptor: at its offset, or for `fd_pread` and
/// `fd_pwrite` at offset 0.
type Transfer = fn(&mut WasiCtx, &mut GuestMemory<'_>, u32, u32, u32, u32) -> Result<(), Errno>;

/// What all four say to bad iovecs and bad results, before anything has
/// happened.
fn addresses_are_checked(transfer: Transfer) {
    let mut world = World::new();
    let end = world.guest.bytes.len() as u32;
    world.iovs(&[(DATA, 4)]);
    world.faults(8, |ctx, memory, address| transfer(ctx, memory, FILE, address, 1, OUT));
    world.faults(4, |ctx, memory, address| transfer(ctx, memory, FILE, IOVS, 1, address));
    for (address, size) in
        [(end - 3, 4), (end, 1), (u32::MAX, 1), (1, u32::MAX), (u32::MAX, u32::MAX), (end + 1, 0)]
    {
        // The first would do.
        let (iovs, count) = world.iovs(&[(DATA, 4), (address, size)]);
        let result = world.guest.call(|ctx, memory| transfer(ctx, memory, FILE, iovs, count, OUT));
        assert_eq!(result, Err(Errno::Fault), "{size} bytes at {address:#x}");
    }
    // Counts whose size does not fit into memory, or into 32 bits.
    for count in [1 << 16, 1 << 29, u32::MAX / 8 + 2, u32::MAX] {
        let result = world.guest.call(|ctx, memory| transfer(ctx, memory, FILE, IOVS, count, OUT));
        assert_eq!(result, Err(Errno::Fault), "{count} iovecs");
    }
    assert_eq!(world.guest.tell(FILE), Ok(0));
    assert_eq!(world.file(), "0123456789");
    assert_eq!(world.u32_at(OUT), 0);
}

/// Checks that nothing to transfer is a success of size 0.
fn nothing_is_transferred(transfer: Transfer) {
    let mut world = World::new();
    let end = world.guest.bytes.len() as u32;
    for iovs in [&[][..], &[(DATA, 0)], &[(end, 0), (0, 0)]] {
        world.guest.put(OUT, &[0xff; 4]);
        let (iovs, count) = world.iovs(iovs);
        let result = world.guest.call(|ctx, memory| transfer(ctx, memory, FILE, iovs, count, OUT));
        assert_eq!((result, world.u32_at(OUT)), (Ok(()), 0));
    }
    assert_eq!(world.guest.tell(FILE), Ok(0));
    assert_eq!(world.file(), "0123456789");
}

mod fd_read {
    use super::*;

    #[test]
    fn good() {
        let mut world = World::new();
        nothing_is_transferred(WasiCtx::fd_read);
        // Into two buffers that overlap: each byte is where the last put it.
        let (iovs, count) = world.iovs(&[(DATA, 4), (DATA + 2, 4)]);
        assert_eq!(call!(world.fd_read(FILE, iovs, count, OUT_2)), Ok(()));
        assert_eq!((world.u32_at(OUT_2), world.guest.bytes_at(DATA, 6)), (8, &b"014567"[..]));
        assert_eq!(world.guest.tell(FILE), Ok(8));
        // Over the iovecs themselves, which were read before.
        let (iovs, count) = world.iovs(&[(IOVS, 1), (DATA, 4)]);
        assert_eq!(call!(world.fd_read(FILE, iovs, count, OUT)), Ok(()));
        assert_eq!((world.u32_at(OUT), world.guest.bytes_at(DATA, 1)), (2, &b"9"[..]));
        // At the end.
        let (iovs, count) = world.iovs(&[(DATA, 4)]);
        assert_eq!(call!(world.fd_read(FILE, iovs, count, OUT)), Ok(()));
        assert_eq!(world.u32_at(OUT), 0);
        // The largest buffer there can be: all of memory.
        world.guest.seek(FILE, 0, 0).unwrap();
        let size = world.guest.bytes.len() as u32;
        let (iovs, count) = world.iovs(&[(0, size)]);
        assert_eq!(call!(world.fd_read(FILE, iovs, count, OUT)), Ok(()));
        assert_eq!((world.u32_at(OUT), world.guest.bytes_at(0, 10)), (10, &b"0123456789"[..]));
        // A socket gives what is there.
        world.peer.write_all(b"hello").unwrap();
        assert_eq!(world.guest.read_v(SOCKET, &[2, 2, 9]).unwrap(), b"hello");
        assert_eq!(world.guest.read(0, 9).unwrap(), b"");
    }

    #[test]
    fn bad() {
        addresses_are_checked(WasiCtx::fd_read);
        let mut world = World::new();
        let (iovs, count) = world.iovs(&[(DATA, 4)]);
        world.each(
            &[
                (Errno::Badf, &CLOSED),
                (Errno::Badf, &[ROOT, SUB]),
                (Errno::Badf, &[1, 2, POOR, LISTENER]),
            ],
            |ctx, memory, fd| ctx.fd_read(memory, fd, iovs, count, OUT),
        );
        world.guest.set_flags(SOCKET, 4).unwrap();
        assert_eq!(call!(world.fd_read(SOCKET, iovs, count, OUT)), Err(Errno::Again));
    }
}

mod fd_pread {
    use super::*;

    const AT_START: Transfer =
        |ctx, memory, fd, iovs, count, result| ctx.fd_pread(memory, fd, iovs, count, 0, result);

    #[test]
    fn good() {
        nothing_is_transferred(AT_START);
        let mut world = World::new();
        let (iovs, count) = world.iovs(&[(DATA, 2), (DATA + 2, 0), (DATA + 2, 9)]);
        for (offset, expected) in
            [(0, "0123456789"), (6, "6789"), (9, "9"), (10, ""), (1 << 40, "")]
        {
            assert_eq!(call!(world.fd_pread(FILE, iovs, count, offset, OUT_2)), Ok(()));
            let size = world.u32_at(OUT_2);
            assert_eq!(world.guest.bytes_at(DATA, size), expected.as_bytes(), "{offset}");
        }
        assert_eq!(world.guest.tell(FILE), Ok(0));
    }

    #[test]
    fn bad() {
        addresses_are_checked(AT_START);
        let mut world = World::new();
        let (iovs, count) = world.iovs(&[(DATA, 4)]);
        world.each(
            &[
                (Errno::Badf, &CLOSED),
                (Errno::Badf, &[ROOT, SUB]),
                (Errno::Spipe, &[0, 1, 2, SOCKET, LISTENER]),
                (Errno::Badf, &[POOR]),
            ],
            |ctx, memory, fd| ctx.fd_pread(memory, fd, iovs, count, 0, OUT),
        );
        for offset in [(1 << 63) - 1, 1 << 63, u64::MAX - 3, u64::MAX] {
            let result = call!(world.fd_pread(FILE, iovs, count, offset, OUT));
            assert_eq!(result, Err(Errno::Inval));
        }
    }
}

mod fd_write {
    use super::*;

    #[test]
    fn good() {
        nothing_is_transferred(WasiCtx::fd_write);
        let mut world = World::new();
        world.put("abcd");
        // The same bytes twice, and a part of them.
        let (iovs, count) = world.iovs(&[(DATA, 4), (DATA, 4), (DATA + 1, 1)]);
        assert_eq!(call!(world.fd_write(FILE, iovs, count, OUT_2)), Ok(()));
        assert_eq!((world.u32_at(OUT_2), world.file()), (9, "abcdabcdb9".into()));
        // The size may go where the data is.
        let (iovs, count) = world.iovs(&[(DATA, 4)]);
        assert_eq!(call!(world.fd_write(FILE, iovs, count, DATA)), Ok(()));
        assert_eq!((world.u32_at(DATA), world.file()), (4, "abcdabcdbabcd".into()));
        for fd in [1, 2] {
            assert_eq!(call!(world.fd_write(fd, iovs, count, OUT)), Ok(()));
            assert_eq!(world.u32_at(OUT), 4);
        }
        assert_eq!(world.guest.write_v(SOCKET, &[b"hel", b"", b"lo"]), Ok(5));
        let mut received = [0; 5];
        world.peer.read_exact(&mut received).unwrap();
        assert_eq!(&received, b"hello");
    }

    #[test]
    fn bad() {
        addresses_are_checked(WasiCtx::fd_write);
        let mut world = World::new();
        let (iovs, count) = world.iovs(&[(DATA, 4)]);
        world.each(
            &[
                (Errno::Badf, &CLOSED),
                (Errno::Badf, &[ROOT, SUB]),
                (Errno::Badf, &[0, POOR, LISTENER]),
            ],
            |ctx, memory, fd| ctx.fd_write(memory, fd, iovs, count, OUT),
        );
        // Beyond the largest offset.
        world.guest.seek(FILE, i64::MAX, 0).unwrap();
        let result = call!(world.fd_write(FILE, iovs, count, OUT));
        assert!(matches!(result, Err(Errno::Fbig | Errno::Inval)), "{result:?}");
        // The peer no longer receives: that is an error, not a signal.
        let World { guest, peer, .. } = &mut world;
        peer.shutdown(std::net::Shutdown::Both).unwrap();
        assert_eq!(guest.write(SOCKET, b"x"), Err(Errno::Pipe));
    }
}

mod fd_pwrite {
    use super::*;

    const AT_START: Transfer =
        |ctx, memory, fd, iovs, count, result| ctx.fd_pwrite(memory, fd, iovs, count, 0, result);

    #[test]
    fn good() {
        nothing_is_transferred(AT_START);
        let mut world = World::new();
        world.put("ab");
        let (iovs, count) = world.iovs(&[(DATA, 1), (DATA + 1, 1)]);
        for (offset, contents) in [(0, "ab23456789"), (9, "ab2345678ab"), (12, "ab2345678ab\0ab")] {
            assert_eq!(call!(world.fd_pwrite(FILE, iovs, count, offset, OUT_2)), Ok(()));
            assert_eq!((world.u32_at(OUT_2), world.file()), (2, contents.into()));
        }
        assert_eq!(world.guest.tell(FILE), Ok(0));
    }

    #[test]
    fn bad() {
        addresses_are_checked(AT_START);
        let mut world = World::new();
        let (iovs, count) = world.iovs(&[(DATA, 4)]);
        world.each(
            &[
                (Errno::Badf, &CLOSED),
                (Errno::Badf, &[ROOT, SUB]),
                (Errno::Spipe, &[0, 1, 2, SOCKET, LISTENER]),
                (Errno::Badf, &[POOR]),
            ],
            |ctx, memory, fd| ctx.fd_pwrite(memory, fd, iovs, count, 0, OUT),
        );
        for offset in [1 << 63, u64::MAX] {
            let result = call!(world.fd_pwrite(FILE, iovs, count, offset, OUT));
            assert_eq!(result, Err(Errno::Inval));
        }
        assert_eq!(world.file(), "0123456789");
    }
}

mod fd_readdir {
    use super::*;

    #[test]
    fn good() {
        let mut world = World::new();
        let whole = world.guest.readdir(ROOT, 4096, 0).unwrap();
        let entries = Guest::entries(&whole);
        let names: Vec<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
        assert_eq!(names, [".", "..", "dangling", "file", "link", "loop", "sub"]);
        let types: Vec<u8> = entries.iter().map(|entry| entry.filetype).collect();
        assert_eq!(types, [3, 3, 7, 4, 7, 7, 3]);
        // From each entry on, and from beyond the last.
        for (index, entry) in entries.iter().enumerate() {
            let rest = world.guest.readdir(ROOT, 4096, entry.next).unwrap();
            assert_eq!(Guest::entries(&rest), entries[index + 1..]);
        }
        for cookie in [8, 1 << 32, u64::MAX] {
            assert_eq!(world.guest.readdir(ROOT, 4096, cookie).unwrap(), b"");
        }
        // No room at all, be it at the very end of memory.
        let end = world.guest.bytes.len() as u32;
        assert_eq!(call!(world.fd_readdir(ROOT, end, 0, 0, OUT_2)), Ok(()));
        assert_eq!(world.u32_at(OUT_2), 0);
    }

    #[test]
    fn bad() {
        let mut world = World::new();
        world.each(
            &[(Errno::Badf, &CLOSED), (Errno::Notdir, &[0, 1, 2, FILE, POOR, SOCKET, LISTENER])],
            |ctx, memory, fd| ctx.fd_readdir(memory, fd, DATA, 99, 0, OUT),
        );
        world.faults(64, |ctx, memory, address| ctx.fd_readdir(memory, ROOT, address, 64, 0, OUT));
        world.faults(4, |ctx, memory, address| ctx.fd_readdir(memory, ROOT, DATA, 64, 0, address));
        assert_eq!(call!(world.fd_readdir(ROOT, 1, u32::MAX, 0, OUT)), Err(Errno::Fault));
        assert_eq!(world.u64_at(DATA), 0);
        world.guest.set_rights(SUB, 0, 0).unwrap();
        assert_eq!(world.guest.readdir(SUB, 64, 0), Err(Errno::Notcapable));
    }
}
