//! Sockets beyond the single function: numbers, waiting, polling, resetting.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pagefork_wasi::{BuildError, DescriptorOrigin, Errno, Permissions, Rights, SaveError, WasiCtx};

use crate::harness::*;

const SOCKET: u32 = 3;

/// A guest with a listening TCP socket as descriptor 3, and its address.
fn listening() -> (Guest, std::net::SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut builder = WasiCtx::builder();
    builder.preopened_socket(listener).unwrap();
    (Guest::new(&builder), address)
}

/// A guest with a connected socket as descriptor 3, and the other end.
fn connected() -> (Guest, UnixStream) {
    let (socket, peer) = UnixStream::pair().unwrap();
    let mut builder = WasiCtx::builder();
    builder.preopened_socket(socket).unwrap();
    (Guest::new(&builder), peer)
}

/// Does something in another thread, a little later.
fn later<R: Send + 'static>(f: impl FnOnce() -> R + Send + 'static) -> std::thread::JoinHandle<R> {
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(30));
        f()
    })
}

#[test]
fn sockets_come_first_in_their_order_and_hide_no_directory() {
    let dir = TempDir::new();
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(tcp.local_addr().unwrap()).unwrap();
    let unix = UnixListener::bind(dir.join("listener")).unwrap();
    let mut builder = WasiCtx::builder();
    builder.preopened_dir(dir.path(), "/first", Permissions::ReadWrite).unwrap();
    builder.preopened_socket(tcp).unwrap().preopened_socket(unix).unwrap();
    builder.preopened_dir(dir.path(), "/second", Permissions::ReadWrite).unwrap();
    builder.preopened_socket(client).unwrap();
    let mut guest = Guest::new(&builder);
    let origins: Vec<DescriptorOrigin> =
        guest.ctx.descriptors().skip(3).map(|(_, found)| found.origin.clone()).collect();
    assert_eq!(
        origins,
        [
            DescriptorOrigin::Listener { index: 0 },
            DescriptorOrigin::Listener { index: 1 },
            DescriptorOrigin::Connection { index: 2 },
            DescriptorOrigin::Preopen { index: 0 },
            DescriptorOrigin::Preopen { index: 1 },
        ]
    );
    // As C libraries look for directories: until the first bad descriptor,
    // passing over kinds that they do not know.
    let mut names = Vec::new();
    for fd in 3.. {
        match guest.call(|ctx, memory| ctx.fd_prestat_get(memory, fd, 64)) {
            Ok(()) if guest.bytes[64] == 0 => names.push((fd, guest.u32_at(68))),
            Ok(()) => {}
            Err(error) => {
                assert_eq!((fd, error), (8, Errno::Badf));
                break;
            }
        }
    }
    assert_eq!(names, [(6, 6), (7, 7)]);
    assert_eq!(guest.open(6, "listener", reading()), Err(Errno::Nxio));
}

#[test]
fn sockets_have_the_rights_of_sockets() {
    let (mut guest, address) = listening();
    let stat = guest.fdstat(SOCKET).unwrap();
    assert_eq!((stat.base, stat.inheriting), (Rights::LISTENER.bits(), Rights::CONNECTION.bits()));
    let _client = TcpStream::connect(address).unwrap();
    let fd = guest.accept(SOCKET, 0).unwrap();
    let stat = guest.fdstat(fd).unwrap();
    assert_eq!((stat.base, stat.inheriting), (Rights::CONNECTION.bits(), 0));
    // What a listener cannot pass on, its connections do not get.
    guest.set_rights(SOCKET, Rights::LISTENER.bits(), Rights::FD_READ.bits()).unwrap();
    let _client = TcpStream::connect(address).unwrap();
    let fd = guest.accept(SOCKET, 0).unwrap();
    assert_eq!(guest.fdstat(fd).unwrap().base, Rights::FD_READ.bits());
    assert_eq!(guest.write(fd, b"x"), Err(Errno::Badf));
}

#[test]
fn only_stream_sockets_are_passed_in() {
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let error = WasiCtx::builder().preopened_socket(udp).unwrap_err();
    assert!(matches!(error, BuildError::Socket { index: 0, .. }), "{error}");
    let file = std::fs::File::open("/dev/null").unwrap();
    let (_, peer) = connected();
    let mut builder = WasiCtx::builder();
    let error = builder.preopened_socket(peer).unwrap().preopened_socket(file).unwrap_err();
    assert!(matches!(error, BuildError::Socket { index: 1, .. }), "{error}");
}

#[test]
fn accepting_and_receiving_wait() {
    let (mut guest, address) = listening();
    let client = later(move || TcpStream::connect(address).unwrap());
    let fd = guest.accept(SOCKET, 0).unwrap();
    let mut client = client.join().unwrap();
    let client = later(move || {
        client.write_all(b"hello").unwrap();
        client
    });
    assert_eq!(guest.read(fd, 99).unwrap(), b"hello");
    drop(client.join().unwrap());
    assert_eq!(guest.read(fd, 99).unwrap(), b"");
}

#[test]
fn a_connection_for_which_there_is_no_descriptor_is_not_lost() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut builder = WasiCtx::builder();
    builder.preopened_socket(listener).unwrap().descriptors_max(5);
    let mut guest = Guest::new(&builder);
    let _first = TcpStream::connect(address).unwrap();
    let mut second = TcpStream::connect(address).unwrap();
    second.write_all(b"second").unwrap();
    assert_eq!(guest.accept(SOCKET, 0), Ok(4));
    assert_eq!(guest.accept(SOCKET, 0), Err(Errno::Mfile));
    guest.close(4).unwrap();
    assert_eq!(guest.accept(SOCKET, 0), Ok(4));
    assert_eq!(guest.read(4, 99).unwrap(), b"second");
}

#[test]
fn a_guest_that_waits_on_a_socket_can_be_called_back() {
    let (mut guest, address) = listening();
    let _client = TcpStream::connect(address).unwrap();
    let fd = guest.accept(SOCKET, 0).unwrap();
    let interrupted = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&interrupted);
    guest.ctx.set_interrupt_check(move || asked.load(Ordering::Relaxed));
    type Wait = fn(&mut Guest, u32) -> Result<(), Errno>;
    let waits: [Wait; 6] = [
        |guest, _| guest.accept(SOCKET, 0).map(drop),
        |guest, fd| guest.read(fd, 9).map(drop),
        |guest, fd| guest.recv(fd, &[9], 0).map(drop),
        |guest, fd| guest.recv(fd, &[9], PEEK).map(drop),
        // The peer does not receive, so sending stops when there is no more room.
        |guest, fd| loop {
            guest.write(fd, &[0; 100_000])?;
        },
        |guest, fd| guest.poll(&[descriptor(1, FD_READ, fd)]).map(drop),
    ];
    for wait in waits {
        interrupted.store(false, Ordering::Relaxed);
        let flag = Arc::clone(&interrupted);
        let thread = later(move || flag.store(true, Ordering::Relaxed));
        assert_eq!(wait(&mut guest, fd), Err(Errno::Intr));
        thread.join().unwrap();
    }
}

#[test]
fn all_is_waited_for_where_it_is_asked() {
    let (mut guest, mut peer) = connected();
    peer.write_all(b"abc").unwrap();
    assert_eq!(guest.recv(SOCKET, &[2, 6], PEEK | WAITALL).unwrap(), b"abc");
    let peer = later(move || {
        peer.write_all(b"de").unwrap();
        later(move || {
            peer.write_all(b"fghij").unwrap();
            peer
        })
    });
    assert_eq!(guest.recv(SOCKET, &[2, 6], WAITALL).unwrap(), b"abcdefgh");
    let peer = peer.join().unwrap().join().unwrap();
    assert_eq!(guest.recv(SOCKET, &[2], WAITALL).unwrap(), b"ij");
    // In non-blocking mode, it is what is there.
    guest.set_flags(SOCKET, NONBLOCK).unwrap();
    assert_eq!(guest.recv(SOCKET, &[2], WAITALL), Err(Errno::Again));
    (&peer).write_all(b"k").unwrap();
    assert_eq!(guest.recv(SOCKET, &[2], WAITALL).unwrap(), b"k");
}

#[test]
fn peeking_at_more_than_fits_is_shorter() {
    let (mut guest, peer) = connected();
    let bytes: Vec<u8> = (0..100_000).map(|index: u32| index as u8).collect();
    let expected = bytes.clone();
    let writer = std::thread::spawn(move || (&peer).write_all(&bytes).map(|()| peer).unwrap());
    let peeked = guest.recv(SOCKET, &[3, 100_000], PEEK).unwrap();
    assert!(!peeked.is_empty() && expected.starts_with(&peeked), "{}", peeked.len());
    assert_eq!(guest.recv(SOCKET, &[3, 99_997], WAITALL).unwrap(), expected);
    writer.join().unwrap();
}

#[test]
fn sending_takes_everything_unless_it_must_not_wait() {
    let (mut guest, mut peer) = connected();
    const SIZE: usize = 400_000;
    let bytes: Vec<u8> = (0..SIZE).map(|index| (index % 251) as u8).collect();
    let expected = bytes.clone();
    let reader = later(move || {
        let mut received = vec![0; SIZE];
        peer.read_exact(&mut received).unwrap();
        (peer, received)
    });
    assert_eq!(guest.write_v(SOCKET, &[&bytes[..7], &bytes[7..]]), Ok(SIZE as u32));
    let (peer, received) = reader.join().unwrap();
    assert!(received == expected);

    guest.set_flags(SOCKET, NONBLOCK).unwrap();
    let mut taken = 0;
    let full = loop {
        match guest.write(SOCKET, &bytes) {
            Ok(size) => taken += size as usize,
            Err(error) => break error,
        }
    };
    assert_eq!(full, Errno::Again);
    let mut received = vec![0; taken];
    (&peer).read_exact(&mut received).unwrap();
    assert!(guest.write(SOCKET, b"x").is_ok());
}

#[test]
fn listeners_and_connections_are_polled() {
    let (mut guest, address) = listening();
    let soon = clock(9, 20 * MILLISECOND);
    let wait = [descriptor(1, FD_READ, SOCKET), soon];
    assert_eq!(guest.poll(&wait).unwrap(), [event(9, 0)]);
    let mut client = TcpStream::connect(address).unwrap();
    assert_eq!(guest.poll(&wait[..1]).unwrap(), [event(1, FD_READ)]);
    let fd = guest.accept(SOCKET, 0).unwrap();

    let both = [descriptor(2, FD_READ, fd), descriptor(3, FD_WRITE, fd)];
    assert_eq!(guest.poll(&both).unwrap(), [event(3, FD_WRITE)]);
    assert_eq!(guest.poll(&[both[0], soon]).unwrap(), [event(9, 0)]);
    client.write_all(b"hello").unwrap();
    assert_eq!(guest.poll(&both[..1]).unwrap(), [Event { available: 5, ..event(2, FD_READ) }]);
    // The peer closes: what it sent is there, and that it has gone is told.
    drop(client);
    let hangup = Event { hangup: true, ..event(2, FD_READ) };
    let mut found = guest.poll(&both[..1]).unwrap();
    while !found[0].hangup {
        found = guest.poll(&both[..1]).unwrap();
    }
    assert_eq!(found, [Event { available: 5, ..hangup.clone() }]);
    assert_eq!(guest.read(fd, 99).unwrap(), b"hello");
    assert_eq!(guest.poll(&both[..1]).unwrap(), [hangup]);
    assert_eq!(guest.read(fd, 99).unwrap(), b"");
}

#[test]
fn a_socket_wakes_the_guest() {
    let (mut guest, mut peer) = connected();
    let peer = later(move || {
        peer.write_all(b"x").unwrap();
        peer
    });
    let events = guest.poll(&[descriptor(1, FD_READ, SOCKET)]).unwrap();
    assert_eq!(events, [Event { available: 1, ..event(1, FD_READ) }]);
    drop(peer.join().unwrap());
}

#[test]
fn a_socket_is_no_file() {
    let (mut guest, _peer) = connected();
    let dir = TempDir::new();
    assert_eq!(guest.seek(SOCKET, 0, 1), Err(Errno::Spipe));
    assert_eq!(guest.pread(SOCKET, 1, 0), Err(Errno::Spipe));
    assert_eq!(guest.pwrite(SOCKET, b"x", 0), Err(Errno::Spipe));
    assert_eq!(guest.open(SOCKET, "file", creating()), Err(Errno::Notdir));
    assert_eq!(guest.readdir(SOCKET, 99, 0), Err(Errno::Notdir));
    assert_eq!(guest.set_size(SOCKET, 0), Err(Errno::Inval));
    let stat = guest.stat(SOCKET).unwrap();
    assert_eq!((stat.filetype, stat.inode, stat.size), (6, 0, 0));
    drop(dir);
}

#[test]
fn a_socket_can_be_standard_input() {
    let (mut guest, mut peer) = connected();
    guest.renumber(SOCKET, 0).unwrap();
    peer.write_all(b"line\n").unwrap();
    assert_eq!(guest.read(0, 99).unwrap(), b"line\n");
    assert_eq!(guest.read(SOCKET, 99), Err(Errno::Badf));
    guest.close(0).unwrap();
    // What the embedder gave is the embedder's: the peer does not see the
    // close, and after a reset the guest has it again.
    guest.ctx.reset();
    peer.write_all(b"more").unwrap();
    assert_eq!(guest.read(SOCKET, 99).unwrap(), b"more");
}

#[test]
fn reset_closes_connections_and_keeps_the_listener() {
    let (mut guest, address) = listening();
    for _ in 0..3 {
        let mut client = TcpStream::connect(address).unwrap();
        assert_eq!(guest.accept(SOCKET, 0), Ok(4));
        guest.close(SOCKET).unwrap();
        guest.ctx.reset();
        assert_eq!(client.read(&mut [0; 9]).unwrap(), 0);
        assert_eq!(guest.read(4, 1), Err(Errno::Badf));
    }
}

#[test]
fn connections_are_refused_by_name_when_a_state_is_to_be_saved() {
    let (mut guest, address) = listening();
    assert_eq!(guest.ctx.check_saveable(), Ok(()));
    assert_eq!(guest.ctx.reopen(SOCKET), Ok(()));
    let mut client = TcpStream::connect(address).unwrap();
    let fd = guest.accept(SOCKET, 0).unwrap();
    let error = guest.ctx.check_saveable().unwrap_err();
    let origin = DescriptorOrigin::Accepted { listener: 0 };
    assert_eq!(error, SaveError::Connection { fd, origin });
    assert!(error.to_string().starts_with("descriptor 4 is a connection"), "{error}");
    assert_eq!(guest.ctx.reopen(fd), Err(Errno::Notrecoverable));
    // The old handle stays.
    client.write_all(b"x").unwrap();
    assert_eq!(guest.read(fd, 9).unwrap(), b"x");
    guest.close(fd).unwrap();
    assert_eq!(guest.ctx.check_saveable(), Ok(()));

    let (guest, _peer) = connected();
    let error = guest.ctx.check_saveable().unwrap_err();
    let origin = DescriptorOrigin::Connection { index: 0 };
    assert_eq!(error, SaveError::Connection { fd: 3, origin });
}
