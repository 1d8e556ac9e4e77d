//! Sockets.

use std::io::{Read, Write};
use std::net::Shutdown;

use super::*;

/// Descriptors that are no sockets.
const NOT_SOCKETS: [u32; 7] = [0, 1, 2, ROOT, FILE, SUB, POOR];
const NONBLOCK: u32 = 4;

mod sock_accept {
    use super::*;

    #[test]
    fn good() {
        let mut world = World::new();
        for flags in [0, NONBLOCK] {
            let mut client = UnixStream::connect(world.dir.join("listener")).unwrap();
            client.set_read_timeout(Some(PATIENCE)).unwrap();
            assert_eq!(call!(world.sock_accept(LISTENER, flags, OUT_2)), Ok(()));
            let fd = world.u32_at(OUT_2);
            assert_eq!(fd, POOR + 1);
            let stat = world.guest.fdstat(fd).unwrap();
            assert_eq!((stat.filetype, u32::from(stat.flags)), (6, flags));
            client.write_all(b"hello").unwrap();
            assert_eq!(world.guest.read(fd, 9).unwrap(), b"hello");
            assert_eq!(world.guest.write(fd, b"there"), Ok(5));
            world.guest.close(fd).unwrap();
            let mut received = String::new();
            client.read_to_string(&mut received).unwrap();
            assert_eq!(received, "there");
        }
    }

    #[test]
    fn bad() {
        let mut world = World::new();
        world.each(
            &[(Errno::Badf, &CLOSED), (Errno::Notsock, &NOT_SOCKETS), (Errno::Inval, &[SOCKET])],
            |ctx, memory, fd| ctx.sock_accept(memory, fd, 0, OUT),
        );
        let _client = UnixStream::connect(world.dir.join("listener")).unwrap();
        for flags in [1, 2, 8, 16, 5, 32, 1 << 16, u32::MAX] {
            assert_eq!(call!(world.sock_accept(LISTENER, flags, OUT)), Err(Errno::Inval));
        }
        world.faults(4, |ctx, memory, address| ctx.sock_accept(memory, LISTENER, 0, address));
        // The connection is still to be accepted.
        assert_eq!(call!(world.sock_accept(LISTENER, 0, OUT)), Ok(()));
        world.guest.set_flags(LISTENER, NONBLOCK).unwrap();
        assert_eq!(call!(world.sock_accept(LISTENER, 0, OUT)), Err(Errno::Again));
        world.guest.set_rights(LISTENER, 0, 0).unwrap();
        assert_eq!(call!(world.sock_accept(LISTENER, 0, OUT)), Err(Errno::Notcapable));
    }
}

const PEEK: u32 = 1;
const WAITALL: u32 = 2;

mod sock_recv {
    use super::*;

    #[test]
    fn good() {
        let mut world = World::new();
        world.peer.write_all(b"0123456789").unwrap();
        let (iovs, count) = world.iovs(&[(DATA, 3), (DATA, 0), (DATA + 3, 4)]);
        for (flags, expected) in
            [(PEEK, "0123456"), (PEEK | WAITALL, "0123456"), (WAITALL, "0123456"), (0, "789")]
        {
            world.guest.put(OUT, &[0xff; 8]);
            let received = call!(world.sock_recv(SOCKET, iovs, count, flags, OUT_2, OUT));
            assert_eq!(received, Ok(()));
            let size = world.u32_at(OUT_2);
            assert_eq!(world.guest.bytes_at(DATA, size), expected.as_bytes());
            // Nothing was cut off, and the flags have two bytes.
            assert_eq!((world.u16_at(OUT), world.u16_at(OUT + 2)), (0, 0xffff));
        }
        // Nothing to receive into, and nothing to come.
        for flags in [0, PEEK, WAITALL] {
            assert_eq!(call!(world.sock_recv(SOCKET, IOVS, 0, flags, OUT_2, OUT)), Ok(()));
            assert_eq!(world.u32_at(OUT_2), 0);
        }
        world.peer.write_all(b"end").unwrap();
        world.peer.shutdown(Shutdown::Write).unwrap();
        for expected in ["end", ""] {
            let received = call!(world.sock_recv(SOCKET, iovs, count, WAITALL, OUT_2, OUT));
            assert_eq!(received, Ok(()));
            let size = world.u32_at(OUT_2);
            assert_eq!(world.guest.bytes_at(DATA, size), expected.as_bytes());
        }
    }

    #[test]
    fn bad() {
        let mut world = World::new();
        let (iovs, count) = world.iovs(&[(DATA, 4)]);
        world.each(
            &[
                (Errno::Badf, &CLOSED),
                (Errno::Notsock, &NOT_SOCKETS),
                (Errno::Notconn, &[LISTENER]),
            ],
            |ctx, memory, fd| ctx.sock_recv(memory, fd, iovs, count, 0, OUT, OUT_2),
        );
        world.peer.write_all(b"0123456789").unwrap();
        for flags in [4, 7, 1 << 16, u32::MAX] {
            let received = call!(world.sock_recv(SOCKET, iovs, count, flags, OUT, OUT_2));
            assert_eq!(received, Err(Errno::Inval));
        }
        for flags in [0, PEEK, WAITALL] {
            world.faults(8, |ctx, memory, address| {
                ctx.sock_recv(memory, SOCKET, address, 1, flags, OUT, OUT_2)
            });
            world.faults(4, |ctx, memory, address| {
                ctx.sock_recv(memory, SOCKET, iovs, count, flags, address, OUT_2)
            });
            world.faults(2, |ctx, memory, address| {
                ctx.sock_recv(memory, SOCKET, iovs, count, flags, OUT, address)
            });
            let end = world.guest.bytes.len() as u32;
            world.iovs(&[(DATA, 4), (end - 3, 4)]);
            let received = call!(world.sock_recv(SOCKET, iovs, 2, flags, OUT, OUT_2));
            assert_eq!(received, Err(Errno::Fault));
            let received = call!(world.sock_recv(SOCKET, iovs, u32::MAX, flags, OUT, OUT_2));
            assert_eq!(received, Err(Errno::Fault));
        }
        // Nothing was lost.
        assert_eq!(world.guest.read(SOCKET, 99).unwrap(), b"0123456789");
        world.guest.set_flags(SOCKET, NONBLOCK).unwrap();
        for flags in [0, PEEK, WAITALL] {
            let received = call!(world.sock_recv(SOCKET, iovs, count, flags, OUT, OUT_2));
            assert_eq!(received, Err(Errno::Again));
        }
        world.guest.set_rights(SOCKET, 0, 0).unwrap();
        let received = call!(world.sock_recv(SOCKET, iovs, count, 0, OUT, OUT_2));
        assert_eq!(received, Err(Errno::Badf));
    }
}

mod sock_send {
    use super::*;

    #[test]
    fn good() {
        let mut world = World::new();
        world.put("0123456789");
        // The same bytes twice, and none.
        let (iovs, count) = world.iovs(&[(DATA, 4), (DATA, 0), (DATA, 10)]);
        assert_eq!(call!(world.sock_send(SOCKET, iovs, count, 0, OUT_2)), Ok(()));
        assert_eq!(world.u32_at(OUT_2), 14);
        assert_eq!(call!(world.sock_send(SOCKET, iovs, 0, 0, OUT_2)), Ok(()));
        assert_eq!(world.u32_at(OUT_2), 0);
        let mut received = [0; 14];
        world.peer.read_exact(&mut received).unwrap();
        assert_eq!(&received, b"01230123456789");
    }

    #[test]
    fn bad() {
        let mut world = World::new();
        let (iovs, count) = world.iovs(&[(DATA, 4)]);
        world.each(
            &[
                (Errno::Badf, &CLOSED),
                (Errno::Notsock, &NOT_SOCKETS),
                (Errno::Notconn, &[LISTENER]),
            ],
            |ctx, memory, fd| ctx.sock_send(memory, fd, iovs, count, 0, OUT),
        );
        for flags in [1, 1 << 16, u32::MAX] {
            let sent = call!(world.sock_send(SOCKET, iovs, count, flags, OUT));
            assert_eq!(sent, Err(Errno::Inval));
        }
        world.faults(8, |ctx, memory, address| ctx.sock_send(memory, SOCKET, address, 1, 0, OUT));
        world.faults(4, |ctx, memory, address| {
            ctx.sock_send(memory, SOCKET, iovs, count, 0, address)
        });
        let end = world.guest.bytes.len() as u32;
        world.iovs(&[(DATA, 4), (end, 1)]);
        assert_eq!(call!(world.sock_send(SOCKET, iovs, 2, 0, OUT)), Err(Errno::Fault));
        assert_eq!(call!(world.sock_send(SOCKET, iovs, u32::MAX, 0, OUT)), Err(Errno::Fault));
        world.peer.set_nonblocking(true).unwrap();
        let nothing = world.peer.read(&mut [0; 9]).unwrap_err();
        assert_eq!(nothing.kind(), std::io::ErrorKind::WouldBlock);
        // The peer no longer receives: that is an error, not a signal.
        world.peer.shutdown(Shutdown::Both).unwrap();
        assert_eq!(call!(world.sock_send(SOCKET, iovs, 1, 0, OUT)), Err(Errno::Pipe));
        world.guest.set_rights(SOCKET, 0, 0).unwrap();
        let sent = call!(world.sock_send(SOCKET, iovs, 1, 0, OUT));
        assert_eq!(sent, Err(Errno::Badf));
    }
}

mod sock_shutdown {
    use super::*;

    const RD: u32 = 1;
    const WR: u32 = 2;

    #[test]
    fn good() {
        let mut world = World::new();
        assert_eq!(world.guest.write(SOCKET, b"last"), Ok(4));
        assert_eq!(call!(world.sock_shutdown(SOCKET, WR)), Ok(()));
        let mut received = String::new();
        world.peer.read_to_string(&mut received).unwrap();
        assert_eq!(received, "last");
        assert_eq!(world.guest.write(SOCKET, b"x"), Err(Errno::Pipe));
        // The other direction is open, until it is closed too.
        world.peer.write_all(b"reply").unwrap();
        assert_eq!(world.guest.read(SOCKET, 99).unwrap(), b"reply");
        assert_eq!(call!(world.sock_shutdown(SOCKET, RD)), Ok(()));
        assert_eq!(world.guest.read(SOCKET, 99).unwrap(), b"");
        assert!(world.peer.write(b"x").is_err());
        assert_eq!(call!(world.sock_shutdown(SOCKET, RD | WR)), Ok(()));
    }

    #[test]
    fn bad() {
        let mut world = World::new();
        world.each(
            &[
                (Errno::Badf, &CLOSED),
                (Errno::Notsock, &NOT_SOCKETS),
                (Errno::Notconn, &[LISTENER]),
            ],
            |ctx, memory, fd| ctx.sock_shutdown(memory, fd, RD),
        );
        for how in [0, 4, 7, 1 << 16, u32::MAX] {
            assert_eq!(call!(world.sock_shutdown(SOCKET, how)), Err(Errno::Inval));
        }
        world.guest.set_rights(SOCKET, 0, 0).unwrap();
        assert_eq!(call!(world.sock_shutdown(SOCKET, RD)), Err(Errno::Notcapable));
        // The listener, which others may share, still listens.
        let _client = UnixStream::connect(world.dir.join("listener")).unwrap();
        assert_eq!(call!(world.sock_accept(LISTENER, 0, OUT)), Ok(()));
    }
}
