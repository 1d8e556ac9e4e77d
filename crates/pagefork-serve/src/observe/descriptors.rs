//! The limit of descriptors, and descriptors that are kept for the admin address.

use std::fs::File;
use std::io;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::sync::Mutex;

use rustix::io::{Errno, dup3};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::handler::lock::lock;

/// Descriptors that are kept for the admin address.
const RESERVED: usize = 8;

/// Raises the soft limit of descriptors to the hard one: each connection takes one. Gives the
/// new limit, `None` if there is none.
///
/// # Errors
///
/// If the system refuses it; everything works with the limit as it was.
///
/// # Examples
///
/// ```
/// let limit = pagefork_serve::raise_descriptor_limit()?;
/// assert!(limit.is_none_or(|limit| limit > 0));
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn raise_descriptor_limit() -> io::Result<Option<u64>> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
    }
    Ok(limit.maximum)
}

/// Descriptors that stay open for nothing. The admin address takes their places when connections
/// and programs have used up all others, and gives them back without ever freeing them.
pub(crate) struct DescriptorReserve {
    /// A file that holds a place; itself none of the places.
    null: Option<File>,
    kept: Mutex<Vec<OwnedFd>>,
}

impl DescriptorReserve {
    pub(crate) fn new() -> DescriptorReserve {
        let null = File::open("/dev/null").ok();
        let reserve = DescriptorReserve { null, kept: Mutex::default() };
        reserve.refill();
        reserve
    }

    /// Takes descriptors until the reserve is full or there are no more.
    pub(crate) fn refill(&self) {
        let mut kept = lock(&self.kept);
        while kept.len() < RESERVED
            && let Some(Ok(copy)) = self.null.as_ref().map(File::try_clone)
        {
            kept.push(copy.into());
        }
    }

    /// Frees a descriptor if `error` says that there are no others.
    pub(crate) fn helps(&self, error: &io::Error) -> bool {
        let exhausted = [Errno::MFILE, Errno::NFILE].map(|errno| Some(errno.raw_os_error()));
        exhausted.contains(&error.raw_os_error()) && lock(&self.kept).pop().is_some()
    }

    /// Closes a connection, and keeps its descriptor if the reserve is not full: another thread
    /// could open a file between closing the one and opening another.
    pub(crate) fn take_back(&self, stream: TcpStream) {
        let mut kept = lock(&self.kept);
        let mut descriptor = OwnedFd::from(stream);
        if kept.len() < RESERVED
            && let Some(null) = &self.null
            && dup3(null, &mut descriptor, rustix::io::DupFlags::CLOEXEC).is_ok()
        {
            kept.push(descriptor);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpListener;
    use std::os::fd::AsRawFd;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    use super::*;

    #[test]
    fn a_descriptor_that_comes_back_is_never_free_for_others() {
        let reserve = DescriptorReserve::new();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        // The descriptor, below the number of its round: so each value occurs once.
        let (watched, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let thief = scope.spawn(|| {
                let mut caught = false;
                while !stop.load(Ordering::SeqCst) {
                    let before = watched.load(Ordering::SeqCst);
                    let number = File::open("/dev/null").unwrap().as_raw_fd();
                    let is_same = before == watched.load(Ordering::SeqCst);
                    caught |= is_same && number as u32 == before as u32;
                }
                caught
            });
            for round in 1..3000 {
                let exhausted = io::Error::from(Errno::MFILE);
                assert!(reserve.helps(&exhausted));
                let mut client = TcpStream::connect(address).unwrap();
                let stream = listener.accept().unwrap().0;
                watched.store(round << 32 | stream.as_raw_fd() as u64, Ordering::SeqCst);
                reserve.take_back(stream);
                assert_eq!(lock(&reserve.kept).len(), RESERVED);
                assert_eq!(client.read(&mut [0; 1]).unwrap(), 0, "the connection is closed");
                watched.store(0, Ordering::SeqCst);
            }
            stop.store(true, Ordering::SeqCst);
            assert!(!thief.join().unwrap());
        });
    }
}
