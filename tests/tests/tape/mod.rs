//! A standard input that a copy of a program reads on where the program had got to.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use pagefork_wasi::{Errno, InputSource, Readable};

/// A text, and how far it was read.
#[derive(Debug)]
pub(crate) struct Tape {
    pub(crate) bytes: Arc<[u8]>,
    at: Mutex<usize>,
}

impl Tape {
    pub(crate) fn new(bytes: impl Into<Arc<[u8]>>, at: usize) -> Arc<Self> {
        Arc::new(Self { bytes: bytes.into(), at: Mutex::new(at) })
    }

    pub(crate) fn at(&self) -> usize {
        *self.at.lock().expect("nothing panics")
    }
}

impl InputSource for Tape {
    fn read(&self, into: &mut [u8]) -> Result<Option<usize>, Errno> {
        let mut at = self.at.lock().expect("nothing panics");
        // In small parts, so that there is input left most of the time.
        let rest = &self.bytes[*at..];
        let count = rest.len().min(into.len()).min(64);
        into[..count].copy_from_slice(&rest[..count]);
        *at += count;
        Ok(Some(count))
    }

    fn wait(&self, _: Option<Duration>) -> Option<Readable> {
        Some(Readable { available: 1, hangup: false })
    }
}
