//! What programs do that know nothing of post-copy as it is here: they ask for a page at a time by
//! datagrams that have its address, or get all pages pushed before they start.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::pages::PAGE;
use crate::kernel::{Delivery, Events, Mode, Userfault};

/// A question has the page's address, an answer also how long it has taken the server, and what the server
/// has taken of a processor since the answer before.
const HEADER: usize = 24;
const QUESTION: usize = 16;

/// How long a page is asked for.
const LOST: Duration = Duration::from_secs(10);

/// Gives pages to who asks for them by datagrams.
pub(super) fn serve_pages(ip: IpAddr, file: Arc<File>) -> io::Result<SocketAddr> {
    let socket = UdpSocket::bind((ip, 0))?;
    let address = socket.local_addr()?;
    thread::spawn(move || {
        let mut answer = [0; HEADER + PAGE];
        let mut cpu = thread_cpu();
        while let Ok((size, from)) = socket.recv_from(&mut answer[..QUESTION]) {
            let began = Instant::now();
            let Some(offset) = answer[..size].first_chunk() else { continue };
            let offset = u64::from_le_bytes(*offset);
            if file.read_exact_at(&mut answer[HEADER..], offset).is_ok() {
                let took = began.elapsed().as_nanos() as u64;
                let before = std::mem::replace(&mut cpu, thread_cpu());
                let spent = (cpu - before).as_nanos() as u64;
                answer[8..16].copy_from_slice(&took.to_le_bytes());
                answer[16..HEADER].copy_from_slice(&spent.to_le_bytes());
                let _ = socket.send_to(&answer, from);
            }
        }
    });
    Ok(address)
}

/// Sends all bytes of a file to who connects.
pub(super) fn serve_all(ip: IpAddr, file: Arc<File>) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind((ip, 0))?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for connection in listener.incoming() {
            let (Ok(mut connection), mut at) = (connection, 0) else { continue };
            let mut part = vec![0; 1 << 20];
            while let Ok(size @ 1..) = file.read_at(&mut part, at) {
                if connection.write_all(&part[..size]).is_err() {
                    break;
                }
                at += size as u64;
            }
        }
    });
    Ok(address)
}

/// Where the time of the peer's handler went, in all.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct HandlerTimes {
    pub(super) network: Duration,
    pub(super) server: Duration,
    /// Putting pages in their places.
    pub(super) io: Duration,
    /// The rest, from the news of a fault on.
    pub(super) handle: Duration,
    pub(super) cpu: HandlerCpu,
}

/// What the same has taken of a processor.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct HandlerCpu {
    /// Sending and receiving.
    pub(super) network: Duration,
    /// The server's thread, from each answer to the next.
    pub(super) server: Duration,
    pub(super) io: Duration,
    /// The rest, the news of faults among it.
    pub(super) handle: Duration,
}

/// Tells of faults on pages that are missing from an address on.
pub(super) fn faults_of(start: u64, pages: u32) -> io::Result<(Userfault, Events)> {
    let faults = Userfault::new(Delivery::Messages)?;
    faults.register(start..start + u64::from(pages) * PAGE as u64, Mode::Missing)?;
    let events = faults.events()?;
    Ok((faults, events))
}

/// Brings pages one at a time until so many have come. When it fails nobody is told of faults any more,
/// and who touches a page finds zeros.
pub(super) fn fetch_pages(
    server: SocketAddr,
    faults: Userfault,
    mut events: Events,
    start: u64,
    pages: u32,
    timeout: Duration,
) -> io::Result<HandlerTimes> {
    let socket = UdpSocket::bind(if server.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" })?;
    socket.connect(server)?;
    socket.set_read_timeout(Some(timeout))?;
    let mut times = HandlerTimes::default();
    let begun = thread_cpu();
    for _ in 0..pages {
        let address = events.next()? & !(PAGE as u64 - 1);
        let began = Instant::now();
        let offset = address - start;
        let question = [offset.to_le_bytes(), [0; 8]].concat();
        let mut answer = [0; HEADER + PAGE];
        let cpu_asked = thread_cpu();
        let asked = Instant::now();
        'lost: loop {
            if asked.elapsed() > LOST {
                return Err(io::ErrorKind::TimedOut.into());
            }
            socket.send(&question)?;
            loop {
                match socket.recv(&mut answer) {
                    // One that was asked for twice may come twice.
                    Ok(size) if size == answer.len() && answer[..8] == question[..8] => break 'lost,
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error),
                }
            }
        }
        let came = Instant::now();
        let cpu_came = thread_cpu();
        let told = |at: usize| {
            let nanoseconds = answer[at..].first_chunk().expect("eight bytes");
            Duration::from_nanos(u64::from_le_bytes(*nanoseconds))
        };
        let server = told(8);
        times.server += server;
        times.network += (came - asked).saturating_sub(server);
        let copying = Instant::now();
        faults.copy(address, &answer[HEADER..])?;
        let done = Instant::now();
        times.io += done - copying;
        times.handle += (asked - began) + (copying - came);
        times.cpu.network += cpu_came - cpu_asked;
        times.cpu.server += told(16);
        times.cpu.io += thread_cpu() - cpu_came;
    }
    times.cpu.handle = thread_cpu() - begun - times.cpu.network - times.cpu.io;
    Ok(times)
}

/// Gets all pages into memory.
pub(super) fn fetch_all(server: SocketAddr, into: &mut [u8]) -> io::Result<()> {
    TcpStream::connect(server)?.read_exact(into)
}

/// What this thread has taken of a processor.
pub(super) fn thread_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
