use std::fs::File;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors that are kept for the admin address.
const RESERVED: usize = 8;

/// Lets the process have as many descriptors as it may: raises the soft limit to the hard one.
/// Each connection takes one. Gives the limit from then on, `None` if there is none.
///
/// # Errors
///
/// If the system refuses it; everything works with the limit as it was.
pub fn raise_descriptor_limit() -> io::Result<Option<u64>> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
    }
    Ok(limit.maximum)
}

/// Descriptors that are kept open for nothing, so that the admin address can have their places
/// when connections and programs have used up all others.
pub(crate) struct Reserve(Mutex<Vec<File>>);

impl Reserve {
    pub(crate) fn new() -> Reserve {
        let reserve = Reserve(Mutex::default());
        reserve.refill();
        reserve
    }

    /// Takes as many descriptors as there are to be, or as there can be now.
    pub(crate) fn refill(&self) {
        let mut kept = self.kept();
        while kept.len() < RESERVED
            && let Ok(file) = File::open("/dev/null")
        {
            kept.push(file);
        }
    }

    /// Gives one back if `error` says that there are no others.
    pub(crate) fn helps(&self, error: &io::Error) -> bool {
        let [none, none_at_all] = [rustix::io::Errno::MFILE, rustix::io::Errno::NFILE];
        let is_meant = [none, none_at_all]
            .iter()
            .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()));
        is_meant && self.kept().pop().is_some()
    }

    fn kept(&self) -> MutexGuard<'_, Vec<File>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
