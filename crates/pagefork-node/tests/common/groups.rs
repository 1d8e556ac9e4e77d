//! What keeps the groups that come.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};

use pagefork_node::{NodeError, PageSink};
use rustix::event::{EventfdFlags, eventfd};

/// Keeps what comes, which nobody waits for.
#[derive(Debug)]
pub(crate) struct Groups {
    found: Mutex<BTreeMap<u64, Vec<u8>>>,
    wanted: OwnedFd,
}

impl Groups {
    pub(crate) fn new() -> Arc<Self> {
        let wanted = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        Arc::new(Self { found: Mutex::default(), wanted })
    }

    /// What has come.
    pub(crate) fn found(&self) -> MutexGuard<'_, BTreeMap<u64, Vec<u8>>> {
        self.found.lock().unwrap()
    }
}

impl PageSink for Groups {
    fn wanted(&self) -> BorrowedFd<'_> {
        self.wanted.as_fd()
    }

    fn take_wanted(&self) -> Vec<u64> {
        Vec::new()
    }

    fn install(&self, group: u64, bytes: &[u8]) -> io::Result<()> {
        assert!(self.found().insert(group, bytes.to_vec()).is_none(), "it came twice");
        Ok(())
    }

    fn give_up(&self, _: &NodeError) {}
}
