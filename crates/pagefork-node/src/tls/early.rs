//! Connections over TCP whose first bytes go along with TCP's own handshake ([RFC 7413]), where both systems agree:
//! that is a round trip less.
//!
//! What goes early is the first message of a TLS handshake and nothing else. The network can have it arrive
//! twice, or somebody say it again in the name of an address that was theirs once: then a handshake begins that
//! nobody ends.
//!
//! Two options of sockets are set by nix's macro, since this crate has no `unsafe` of its own.
//!
//! [RFC 7413]: https://www.rfc-editor.org/rfc/rfc7413

use std::io::{self, ErrorKind, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{SetBool, SetUsize};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use socket2::{Domain, Protocol, Socket, Type};

use crate::poll::wait_for;

/// How many connections of a listener may bring bytes along.
#[derive(Clone)]
struct TcpFastOpen;

/// Whether a connection may bring bytes along.
#[derive(Clone)]
struct TcpFastOpenConnect;

nix::setsockopt_impl!(
    TcpFastOpenConnect,
    libc::IPPROTO_TCP,
    libc::TCP_FASTOPEN_CONNECT,
    bool,
    SetBool
);
nix::setsockopt_impl!(TcpFastOpen, libc::IPPROTO_TCP, libc::TCP_FASTOPEN, usize, SetUsize);

/// Has at most `count` connections at once bring bytes along whose handshake is not over, where the system lets
/// them (`net.ipv4.tcp_fastopen`). The system does not check again that they are where they say: so they are not
/// to take the places of all others.
pub(crate) fn accept_early(listener: &TcpListener, count: usize) {
    // Where it does not, and of more, they come a round trip later.
    let _ = setsockopt(listener, TcpFastOpen, &count);
}

/// Connects, and says `first`.
///
/// # Errors
/// If nobody takes the connection until `deadline`.
pub(crate) fn connect_saying(
    place: SocketAddr,
    first: &[u8],
    deadline: Instant,
) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(place), Type::STREAM, Some(Protocol::TCP))?;
    // Where the system refuses, or does not know the other one, it shakes hands first.
    let _ = setsockopt(&socket, TcpFastOpenConnect, &true);
    // Bytes are handed to the system once. A call that waited, and was interrupted, would not say whether it has
    // taken them, nor that nobody has taken the connection.
    socket.set_nonblocking(true)?;
    let mut socket = match socket.connect(&place.into()) {
        Ok(()) => TcpStream::from(socket),
        Err(error) if is_under_way(&error) => {
            let socket = TcpStream::from(socket);
            wait_until_connected(&socket, deadline)?;
            socket
        }
        Err(error) => return Err(error),
    };
    // Where the system knows the other one, it has done nothing before there is something to be said.
    let count = match socket.write(first) {
        Ok(count) => count,
        Err(error) if is_under_way(&error) => 0,
        Err(error) => return Err(error),
    };
    wait_until_connected(&socket, deadline)?;
    socket.set_nonblocking(false)?;
    socket.set_write_timeout(Some(time_left(deadline)?))?;
    socket.write_all(&first[count..])?;
    Ok(socket)
}

/// Whether a connection is being made, and nothing else is wrong.
fn is_under_way(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    errno == Some(Errno::INPROGRESS) || errno == Some(Errno::AGAIN)
}

fn wait_until_connected(socket: &TcpStream, deadline: Instant) -> io::Result<()> {
    loop {
        let mut ready = [PollFd::new(socket, PollFlags::OUT)];
        wait_for(&mut ready, Some(deadline))?;
        if !ready[0].revents().is_empty() {
            return socket.take_error()?.map_or(Ok(()), Err);
        }
        time_left(deadline)?;
    }
}

fn time_left(deadline: Instant) -> io::Result<Duration> {
    match deadline.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(ErrorKind::TimedOut.into()),
        left => Ok(left),
    }
}
