//! Descriptors.

use super::*;
use crate::harness::{ALL, READ as RIGHT_READ, SEEK, TELL, WRITE as RIGHT_WRITE};

const SET: u32 = 0;
const CURRENT: u32 = 1;
const END: u32 = 2;
/// Offsets that the host, whose offsets are signed, cannot have.
const BEYOND: [u64; 3] = [1 << 63, (1 << 63) + 1, u64::MAX];

/// What a function that needs an offset says of descriptors.
const NEEDS_A_FILE: &[(Errno, &[u32])] = &[
    (Errno::Badf, &CLOSED),
    (Errno::Badf, &[ROOT, SUB]),
    (Errno::Spipe, &[0, 1, 2, SOCKET, LISTENER]),
    (Errno::Notcapable, &[POOR]),
];

mod fd_advise {
    use super::*;

    #[test]
    fn good() {
        let mut world = World::new();
        for advice in 0..6 {
            for (offset, size) in [(0, 0), (3, 4), (1 << 40, 1), ((1 << 63) - 1, (1 << 63) - 1)] {
                assert_eq!(call!(world.fd_advise(FILE, offset, size, advice)), Ok(()));
            }
        }
        assert_eq!(world.file(), "0123456789");
    }

    #[test]
    fn bad() {
        let mut world = World::new();
        world.each(NEEDS_A_FILE, |ctx, memory, fd| ctx.fd_advise(memory, fd, 0, 1, 0));
        for advice in [6, 255, u32::MAX] {
            assert_eq!(call!(world.fd_advise(FILE, 0, 1, advice)), Err(Errno::Inval));
        }
        for beyond in BEYOND {
            assert_eq!(call!(world.fd_advise(FILE, beyond, 1, 0)), Err(Errno::Inval));
            assert_eq!(call!(world.fd_advise(FILE, 0, beyond, 0)), Err(Errno::Inval));
        }
    }
}

mod fd_allocate {
    use super::*;

    #[test]
    fn good() {
        let mut world = World::new();
        assert_eq!(call!(world.fd_allocate(FILE, 2, 3)), Ok(()));
        assert_eq!(world.file(), "0123456789");
        assert_eq!(call!(world.fd_allocate(FILE, 8, 4)), Ok(()));
        assert_eq!(world.file(), "0123456789\0\0");
    }

    #[test]
    fn bad() {
        let mut world = World::new();
        world.each(NEEDS_A_FILE, |ctx, memory, fd| ctx.fd_allocate(memory, fd, 0, 1));
        assert_eq!(call!(world.fd_allocate(FILE, 0, 0)), Err(Errno::Inval));
        for beyond in BEYOND {
            assert_eq!(call!(world.fd_allocate(FILE, beyond, 1)), Err(Errno::Inval));
            assert_eq!(call!(world.fd_allocate(FILE, 1, beyond)), Err(Errno::Inval));
        }
        // Each is an offset, but not their sum.
        let sum = call!(world.fd_allocate(FILE, (1 << 63) - 1, (1 << 63) - 1));
        assert_eq!(sum, Err(Errno::Fbig));
        assert_eq!(world.file(), "0123456789");
    }
}

mod fd_close {
    use super::*;

    #[test]
    fn good() {
        let mut world = World::new();
        for fd in 0..=POOR {
            assert_eq!(call!(world.fd_close(fd)), Ok(()), "descriptor {fd}");
            assert_eq!(call!(world.fd_fdstat_get(fd, OUT)), Err(Errno::Badf));
        }
        assert_eq!(world.guest.ctx.descriptors().count(), 0);
    }

    #[test]
    fn bad() {
        let mut world = World::new();
        world.each(&[(Errno::Badf, &CLOSED)], |ctx, memory, fd| ctx.fd_close(memory, fd));
        assert_eq!(call!(world.fd_close(FILE)), Ok(()));
        assert_eq!(call!(world.fd_close(FILE)), Err(Errno::Badf));
        // Closing needs no right.
        assert_eq!(call!(world.fd_close(POOR)), Ok(()));
    }
}

/// What `fd_sync` and `fd_datasync` have in common.
fn synchronising(call: impl Fn(&mut WasiCtx, &mut GuestMemory<'_>, u32) -> Result<(), Errno>) {
    let mut world = World::new();
    for fd in [FILE, ROOT, SUB] {
        assert_eq!(world.guest.call(|ctx, memory| call(ctx, memory, fd)), Ok(()));
    }
}

fn not_synchronising(call: impl Fn(&mut WasiCtx, &mut GuestMemory<'_>, u32) -> Result<(), Errno>) {
    let mut world = World::new();
    world.each(
        &[
            (Errno::Badf, &CLOSED),
            (Errno::Inval, &[0, 1, 2]),
            (Errno::Notcapable, &[POOR, SOCKET, LISTENER]),
        ],
        call,
    );
}

mod fd_datasync {
    use super::*;

    #[test]
    fn good() {
        synchronising(WasiCtx::fd_datasync);
    }

    #[test]
    fn bad() {
        not_synchronising(WasiCtx::fd_datasync);
    }
}

mod fd_sync {
    use super::*;

    #[test]
    fn good() {
        synchronising(WasiCtx::fd_sync);
    }

    #[test]
    fn bad() {
        not_synchronising(WasiCtx::fd_sync);
    }
}

mod fd_fdstat_get {
    use super::*;

    #[test]
    fn good() {
        let mut world = World::new();
        for (fd, filetype) in
            [(0, 0), (1, 0), (2, 0), (SOCKET, 6), (LISTENER, 6), (ROOT, 3), (FILE, 4), (POOR, 4)]
        {
            world.guest.put(OUT_2, &[0xff; 32]);
            assert_eq!(call!(world.fd_fdstat_get(fd, OUT_2)), Ok(()));
            assert_eq!(world.guest.bytes[OUT_2 as usize], filetype, "descriptor {fd}");
            assert_eq!(world.u16_at(OUT_2 + 2), 0);
            // Padding tells nothing, and nothing beyond is touched.
            assert_eq!(world.guest.bytes[OUT_2 as usize + 1], 0);
            assert_eq!(world.u32_at(OUT_2 + 4), 0);
            assert_eq!(world.u64_at(OUT_2 + 24), u64::MAX);
        }
        assert_eq!(world.u64_at(OUT_2 + 8), 0);
        call!(world.fd_fdstat_get(FILE, OUT)).unwrap();
        assert_ne!(world.u64_at(OUT + 8), 0);
    }

    #[test]
    fn bad() {
        let mut world = World::new();
        world.each(&[(Errno::Badf, &CLOSED)], |ctx, memory, fd| ctx.fd_fdstat_get(memory, fd, OUT));
        world.faults(24, |ctx, memory, address| ctx.fd_fdstat_get(memory, FILE, address));
    }
}

mod fd_fdstat_set_flags {
    use super::*;

    #[test]
    fn good() {
        let mut world = World::new();
        for flags in 0..32 {
            assert_eq!(call!(world.fd_fdstat_set_flags(FILE, flags)), Ok(()));
            assert_eq!(u32::from(world.guest.fdstat(FILE).unwrap().flags), flags);
        }
        for fd in [0, SOCKET, LISTENER] {
            for flags in [4, 0] {
                assert_eq!(call!(world.fd_fdstat_set_flags(fd, flags)), Ok(()));
                assert_eq!(u32::from(world.guest.fdstat(fd).unwrap().flags), flags);
            }
        }
    }

    #[test]
    fn bad() {
        let mut world = World::new();
        world.each(&[(Errno::Badf, &CLOSED), (Errno::Notcapable, &[POOR])], |ctx, memory, fd| {
            ctx.fd_fdstat_set_flags(memory, fd, 0)
        });
        for flags in [32, 0xffff, 0x1_0000, u32::MAX] {
            assert_eq!(call!(world.fd_fdstat_set_flags(FILE, flags)), Err(Errno::Inval));
        }
        // A socket neither appends nor synchronises.
        for flags in [1, 2, 8, 16, 5] {
            assert_eq!(call!(world.fd_fdstat_set_flags(SOCKET, flags)), Err(Errno::Inval));
        }
        assert_eq!(world.guest.fdstat(FILE).unwrap().flags, 0);
        assert_eq!(world.guest.fdstat(SOCKET).unwrap().flags, 0);
    }
}

mod fd_fdstat_set_rights {
    use super::*;

    #[test]
    fn good() {
        let mut world = World::new();
        assert_eq!(call!(world.fd_fdstat_set_rights(FILE, RIGHT_READ | SEEK, 0)), Ok(()));
        let stat = world.guest.fdstat(FILE).unwrap();
        assert_eq!((stat.base, stat.inheriting), (RIGHT_READ | SEEK, 0));
        assert_eq!(world.guest.write(FILE, b"x"), Err(Errno::Badf));
        assert_eq!(world.guest.read(FILE, 2).unwrap(), b"01");
        // What one has, one may keep; and one may give up all.
        assert_eq!(call!(world.fd_fdstat_set_rights(FILE, RIGHT_READ | SEEK, 0)), Ok(()));
        assert_eq!(call!(world.fd_fdstat_set_rights(FILE, 0, 0)), Ok(()));
        assert_eq!(world.guest.read(FILE, 1), Err(Errno::Badf));
    }

    #[test]
    fn bad() {
        let mut world = World::new();
        world.each(&[(Errno::Badf, &CLOSED)], |ctx, memory, fd| {
            ctx.fd_fdstat_set_rights(memory, fd, 0, 0)
        });
        // Never more rights, not even unknown ones.
        for rights in [RIGHT_READ, RIGHT_WRITE, ALL, 1 << 30, 1 << 63, u64::MAX] {
            let gained = call!(world.fd_fdstat_set_rights(POOR, rights, 0));
            assert_eq!(gained, Err(Errno::Notcapable));
            let gained = call!(world.fd_fdstat_set_rights(POOR, 0, rights));
            assert_eq!(gained, Err(Errno::Notcapable));
        }
        assert_eq!(world.guest.fdstat(POOR).unwrap().base, 0);
    }
}

mod fd_filestat_get {
    use super::*;

    #[test]
    fn good() {
        let mut world = World::new();
        for (fd, filetype) in [(0, 0), (1, 0), (SOCKET, 6), (LISTENER, 6), (ROOT, 3), (FILE, 4)] {
            world.guest.put(OUT_2, &[0xff; 72]);
            assert_eq!(call!(world.fd_filestat_get(fd, OUT_2)), Ok(()));
            assert_eq!(world.guest.bytes[OUT_2 as usize + 16], filetype, "descriptor {fd}");
            assert_eq!(world.guest.bytes_at(OUT_2 + 17, 7), [0; 7]);
            assert_eq!(world.u64_at(OUT_2 + 64), u64::MAX);
        }
        assert_eq!((world.u64_at(OUT_2 + 24), world.u64_at(OUT_2 + 32)), (1, 10));
    }

    #[test]
    fn bad() {
        let mut world = World::new();
        world.each(&[(Errno::Badf, &CLOSED), (Errno::Notcapable, &[POOR])], |ctx, memory, fd| {
            ctx.fd_filestat_get(memory, fd, OUT)
        });
        world.faults(64, |ctx, memory, address| ctx.fd_filestat_get(memory, FILE, address));
    }
}

mod fd_filestat_set_size {
    use super::*;

    #[test]
    fn good() {
        let mut world = World::new();
        for (size, contents) in [(10, "0123456789"), (3, "012"), (5, "012\0\0"), (0, "")] {
            assert_eq!(call!(world.fd_filestat_set_size(FILE, size)), Ok(()));
            assert_eq!(world.file(), contents);
        }
    }

    #[test]
    fn bad() {
        let mut world = World::new();
        world.each(
            &[
                (Errno::Badf, &CLOSED),
                (Errno::Badf, &[ROOT, SUB]),
                (Errno::Inval, &[0, 1, 2, SOCKET, LISTENER, POOR]),
            ],
            |ctx, memory, fd| ctx.fd_filestat_set_size(memory, fd, 0),
        );
        for beyond in BEYOND {
            assert_eq!(call!(world.fd_filestat_set_size(FILE, beyond)), Err(Errno::Inval));
        }
        assert_eq!(world.file(), "0123456789");
    }
}

mod fd_filestat_set_times {
    use super::*;

    #[test]
    fn good() {
        let mut world = World::new();
        for fd in [FILE, SUB, ROOT] {
            assert_eq!(call!(world.fd_filestat_set_times(fd, 11, 12, 1 | 4)), Ok(()));
            // Neither is to be set.
            assert_eq!(call!(world.fd_filestat_set_times(fd, 13, 14, 0)), Ok(()));
            let stat = world.guest.stat(fd).unwrap();
            assert_eq!((stat.atim, stat.mtim), (11, 12));
            assert_eq!(call!(world.fd_filestat_set_times(fd, 13, 14, 2 | 8)), Ok(()));
            assert!(world.guest.stat(fd).unwrap().mtim > 1_000_000_000_000_000_000);
        }
    }

    #[test]
    fn bad() {
        let mut world = World::new();
        world.each(
            &[(Errno::Badf, &CLOSED), (Errno::Notcapable, &[0, 1, 2, SOCKET, LISTENER, POOR])],
            |ctx, memory, fd| ctx.fd_filestat_set_times(memory, fd, 1, 1, 1),
        );
        let before = world.guest.stat(FILE).unwrap();
        // Two settings at once, and unknown ones.
        for flags in [1 | 2, 4 | 8, 15, 16, 0x1_0001, u32::MAX] {
            let result = call!(world.fd_filestat_set_times(FILE, 1, 1, flags));
            assert_eq!(result, Err(Errno::Inval), "{flags}");
        }
        assert_eq!(world.guest.stat(FILE).unwrap(), before);
    }
}

mod fd_prestat_get {
    use super::*;

    #[test]
    fn good() {
        let mut world = World::new();
        // Kind, and the size of the name.
        for (fd, prestat) in [(ROOT, [0, 5]), (SOCKET, [1, 0]), (LISTENER, [1, 0])] {
            world.guest.put(OUT_2, &[0xff; 12]);
            assert_eq!(call!(world.fd_prestat_get(fd, OUT_2)), Ok(()));
            assert_eq!([world.u32_at(OUT_2), world.u32_at(OUT_2 + 4)], prestat);
            assert_eq!(world.u32_at(OUT_2 + 8), u32::MAX);
        }
    }

    #[test]
    fn bad() {
        let mut world = World::new();
        world.each(
            &[(Errno::Badf, &CLOSED), (Errno::Badf, &[0, 1, 2, FILE, SUB, POOR])],
            |ctx, memory, fd| ctx.fd_prestat_get(memory, fd, OUT),
        );
        world.faults(8, |ctx, memory, address| ctx.fd_prestat_get(memory, ROOT, address));
        world.faults(8, |ctx, memory, address| ctx.fd_prestat_get(memory, SOCKET, address));
    }
}

mod fd_prestat_dir_name {
    use super::*;

    #[test]
    fn good() {
        let mut world = World::new();
        // No NUL follows, and what room there is beyond is left alone.
        for size in [5, 6, u32::MAX] {
            world.guest.put(OUT_2, b"########");
            assert_eq!(call!(world.fd_prestat_dir_name(ROOT, OUT_2, size)), Ok(()));
            assert_eq!(world.guest.bytes_at(OUT_2, 8), b"/root###");
        }
        let end = world.guest.bytes.len() as u32;
        assert_eq!(call!(world.fd_prestat_dir_name(ROOT, end - 5, 5)), Ok(()));
        // A socket has no name.
        assert_eq!(call!(world.fd_prestat_dir_name(SOCKET, end, 0)), Ok(()));
    }

    #[test]
    fn bad() {
        let mut world = World::new();
        world.each(
            &[(Errno::Badf, &CLOSED), (Errno::Badf, &[0, 1, 2, FILE, SUB, POOR])],
            |ctx, memory, fd| ctx.fd_prestat_dir_name(memory, fd, OUT, 99),
        );
        for size in 0..5 {
            let result = call!(world.fd_prestat_dir_name(ROOT, OUT, size));
            assert_eq!(result, Err(Errno::Nametoolong));
        }
        assert_eq!(world.u32_at(OUT), 0);
        world.faults(5, |ctx, memory, address| ctx.fd_prestat_dir_name(memory, ROOT, address, 5));
    }
}

mod fd_renumber {
    use super::*;

    #[test]
    fn good() {
        let mut world = World::new();
        assert_eq!(call!(world.fd_renumber(FILE, FILE)), Ok(()));
        assert_eq!(call!(world.fd_renumber(FILE, 0)), Ok(()));
        assert_eq!(world.guest.read(0, 4).unwrap(), b"0123");
        assert_eq!(world.guest.read(FILE, 4), Err(Errno::Badf));
        assert_eq!(call!(world.fd_renumber(LISTENER, POOR)), Ok(()));
        assert_eq!(world.guest.fdstat(POOR).unwrap().filetype, 6);
        // Back again is not possible: the number is free.
        assert_eq!(call!(world.fd_renumber(POOR, LISTENER)), Err(Errno::Badf));
    }

    #[test]
    fn bad() {
        let mut world = World::new();
        world.each(&[(Errno::Badf, &CLOSED)], |ctx, memory, fd| {
            assert_eq!(ctx.fd_renumber(memory, fd, fd), Err(Errno::Badf));
            assert_eq!(ctx.fd_renumber(memory, FILE, fd), Err(Errno::Badf));
            ctx.fd_renumber(memory, fd, FILE)
        });
        assert_eq!(world.guest.read(FILE, 1).unwrap(), b"0");
    }
}

mod fd_seek {
    use super::*;

    #[test]
    fn good() {
        let mut world = World::new();
        for (delta, whence, offset) in [
            (4, SET, 4),
            (0, CURRENT, 4),
            (-4, CURRENT, 0),
            (0, END, 10),
            (-10, END, 0),
            (90, END, 100),
            (i64::MAX, SET, i64::MAX as u64),
        ] {
            assert_eq!(call!(world.fd_seek(FILE, delta, whence, OUT_2)), Ok(()));
            assert_eq!(world.u64_at(OUT_2), offset);
            assert_eq!(world.guest.tell(FILE), Ok(offset));
        }
    }

    #[test]
    fn bad() {
        let mut world = World::new();
        world.each(NEEDS_A_FILE, |ctx, memory, fd| ctx.fd_seek(memory, fd, 1, SET, OUT));
        world.guest.seek(FILE, 3, SET).unwrap();
        for whence in [3, 255, u32::MAX] {
            assert_eq!(call!(world.fd_seek(FILE, 0, whence, OUT)), Err(Errno::Inval));
        }
        for (delta, whence) in [
            (-1, SET),
            (i64::MIN, SET),
            (-4, CURRENT),
            (i64::MIN, CURRENT),
            (i64::MAX, CURRENT),
            (-11, END),
            (i64::MAX, END),
        ] {
            let result = call!(world.fd_seek(FILE, delta, whence, OUT));
            assert_eq!(result, Err(Errno::Inval), "{delta} from {whence}");
        }
        world.faults(8, |ctx, memory, address| ctx.fd_seek(memory, FILE, 5, SET, address));
        assert_eq!(world.guest.tell(FILE), Ok(3));
        assert_eq!(world.u64_at(OUT), 0);
    }
}

mod fd_tell {
    use super::*;

    #[test]
    fn good() {
        let mut world = World::new();
        for offset in [0, 7, 1 << 40] {
            world.guest.seek(FILE, offset, SET).unwrap();
            assert_eq!(call!(world.fd_tell(FILE, OUT_2)), Ok(()));
            assert_eq!(world.u64_at(OUT_2), offset as u64);
        }
        world.guest.set_rights(FILE, TELL, 0).unwrap();
        assert_eq!(call!(world.fd_tell(FILE, OUT_2)), Ok(()));
    }

    #[test]
    fn bad() {
        let mut world = World::new();
        world.each(NEEDS_A_FILE, |ctx, memory, fd| ctx.fd_tell(memory, fd, OUT));
        world.faults(8, |ctx, memory, address| ctx.fd_tell(memory, FILE, address));
    }
}
