//! Delay and loss between two nodes: the kernels of small machines have no queue that does it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::socket::sockopt;

/// What the network between two nodes does to what they send.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Trouble {
    /// One way.
    pub(super) delay: Duration,
    /// Of a thousand datagrams.
    pub(super) lost: u32,
    /// Every so many datagrams one comes later than those behind it; none if zero.
    pub(super) reordered: u32,
}

impl Trouble {
    pub(super) fn is_none(&self) -> bool {
        self.delay.is_zero() && self.lost == 0 && self.reordered == 0
    }
}

/// Passes a stream on, both ways. Who connects waits a round trip for what the other end says, as
/// for a connection over such a network.
///
/// What a connection brings along with its handshake (TCP Fast Open) has waited for nothing by then.
pub(super) fn stream(ip: IpAddr, to: SocketAddr, trouble: Trouble) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind((ip, 0))?;
    // Where the system of the other end does not let it, they shake hands first.
    let _ = nix::sys::socket::setsockopt(&listener, TcpFastOpen, &64);
    let address = listener.local_addr()?;
    thread::spawn(move || {
        let mut early = early_connections();
        for connection in listener.incoming() {
            let Ok(near) = connection else { continue };
            // In a namespace only this relay is connected to so, by one at a time; elsewhere a test may take a delay less, by one at a time.
            let is_early = std::mem::replace(&mut early, early_connections()) != early;
            thread::spawn(move || {
                if !is_early {
                    thread::sleep(2 * trouble.delay);
                }
                let far = TcpStream::connect(to)?;
                near.set_nodelay(true)?;
                far.set_nodelay(true)?;
                let (near_too, far_too) = (near.try_clone()?, far.try_clone()?);
                thread::spawn(move || pass(near_too, far_too, trouble.delay));
                pass(far, near, trouble.delay)
            });
        }
    });
    Ok(address)
}

/// How many connections of a listener may bring bytes along.
#[derive(Clone)]
struct TcpFastOpen;

nix::setsockopt_impl!(
    TcpFastOpen,
    libc::IPPROTO_TCP,
    libc::TCP_FASTOPEN,
    usize,
    nix::sys::socket::sockopt::SetUsize
);

/// How many connections of this network have brought bytes along, as the system counts.
fn early_connections() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/net/netstat").ok()?;
    let mut lines = text.lines().filter(|line| line.starts_with("TcpExt:"));
    let (names, numbers) = (lines.next()?, lines.next()?);
    let at = names.split(' ').position(|name| name == "TCPFastOpenPassive")?;
    numbers.split(' ').nth(at)?.parse().ok()
}

fn pass(mut from: TcpStream, mut to: TcpStream, delay: Duration) -> io::Result<()> {
    // As many bytes as a network with this delay holds.
    let (sender, receiver) = mpsc::sync_channel::<(Instant, Vec<u8>)>(4096);
    let end = from.try_clone()?;
    thread::spawn(move || {
        for (due, bytes) in receiver {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
        let _ = end.shutdown(Shutdown::Read);
    });
    let mut part = vec![0; 64 << 10];
    while let Ok(size @ 1..) = from.read(&mut part) {
        if sender.send((Instant::now() + delay, part[..size].to_vec())).is_err() {
            break;
        }
    }
    Ok(())
}

/// Datagrams on their way, the next one first.
type Way = (Mutex<BinaryHeap<Reverse<(Instant, u64, SocketAddr, Vec<u8>)>>>, Condvar);

/// Passes datagrams on, of one peer at a time, and the answers back.
pub(super) fn datagrams(ip: IpAddr, to: SocketAddr, trouble: Trouble) -> io::Result<SocketAddr> {
    let [near, far] = [roomy(ip)?, roomy(ip)?].map(Arc::new);
    let address = near.local_addr()?;
    let peer = Arc::new(Mutex::new(None));
    let there = Arc::clone(&peer);
    let up = move |from| {
        *there.lock().expect("nobody panics") = Some(from);
        Some(to)
    };
    pass_datagrams(Arc::clone(&near), Arc::clone(&far), trouble, up);
    pass_datagrams(far, near, trouble, move |_| *peer.lock().expect("nobody panics"));
    Ok(address)
}

/// A socket that keeps what comes while its thread does not run: what is lost here is chosen.
fn roomy(ip: IpAddr) -> io::Result<UdpSocket> {
    const KEPT: usize = 16 << 20;
    let socket = UdpSocket::bind((ip, 0))?;
    // Without rights, as much as anybody may.
    let _ = nix::sys::socket::setsockopt(&socket, sockopt::RcvBuf, &KEPT);
    let _ = nix::sys::socket::setsockopt(&socket, sockopt::RcvBufForce, &KEPT);
    Ok(socket)
}

fn pass_datagrams(
    from: Arc<UdpSocket>,
    to: Arc<UdpSocket>,
    trouble: Trouble,
    target: impl Fn(SocketAddr) -> Option<SocketAddr> + Send + 'static,
) {
    let way: Arc<Way> = Arc::default();
    let sent = Arc::clone(&way);
    thread::spawn(move || {
        let mut datagram = vec![0; 1 << 16];
        let (mut count, mut numbers) = (0_u64, 1_u64);
        while let Ok((size, source)) = from.recv_from(&mut datagram) {
            count += 1;
            numbers = numbers.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let Some(target) = target(source) else { continue };
            if (numbers >> 33) % 1000 < u64::from(trouble.lost) {
                continue;
            }
            let late = trouble.reordered > 0 && count.is_multiple_of(u64::from(trouble.reordered));
            let due = Instant::now() + trouble.delay * if late { 2 } else { 1 };
            let (datagrams, came) = &*sent;
            let entry = Reverse((due, count, target, datagram[..size].to_vec()));
            datagrams.lock().expect("nobody panics").push(entry);
            came.notify_one();
        }
    });
    thread::spawn(move || {
        let (datagrams, came) = &*way;
        loop {
            let mut waiting = datagrams.lock().expect("nobody panics");
            let due = loop {
                let now = Instant::now();
                match waiting.peek().map(|Reverse(next)| next.0) {
                    Some(due) if due <= now => break waiting.pop(),
                    Some(due) => {
                        waiting = came.wait_timeout(waiting, due - now).expect("nobody panics").0
                    }
                    None => waiting = came.wait(waiting).expect("nobody panics"),
                }
            };
            drop(waiting);
            if let Some(Reverse((_, _, target, datagram))) = due {
                let _ = to.send_to(&datagram, target);
            }
        }
    });
}
