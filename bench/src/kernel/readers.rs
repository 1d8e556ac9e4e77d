//! Threads that serve faults.

use std::sync::Arc;
use std::thread::{self, JoinHandle};

use super::{Access, Mapping, Mode, PAGE, Userfault};

/// What is done about a fault at an address.
pub(crate) type Serve = dyn Fn(u64) + Send + Sync;

/// Threads that read what a userfaultfd tells, and do nothing else. They end when this goes.
pub(crate) struct Readers {
    /// A thread that serves a fault of it ends.
    end: Mapping,
    threads: Vec<JoinHandle<()>>,
}

impl Readers {
    /// # Panics
    /// If the system has no userfaultfd after all.
    pub(crate) fn new(faults: &Arc<Userfault>, count: usize, serve: &Arc<Serve>) -> Self {
        let end = Mapping::new((count * PAGE).next_power_of_two(), Access::Write, false);
        let last = end.addresses();
        faults.register(last.clone(), Mode::Missing).expect("it was tried");
        let read = |_| {
            let (faults, serve, last) = (Arc::clone(faults), Arc::clone(serve), last.clone());
            let mut events = faults.events().expect("a descriptor");
            thread::spawn(move || {
                loop {
                    let address = events.next().expect("it stays open");
                    if last.contains(&address) {
                        faults.zero(address..address + PAGE as u64).expect("it had no contents");
                        return;
                    }
                    serve(address);
                }
            })
        };
        let threads = (0..count).map(read).collect();
        Self { end, threads }
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        for (index, _) in self.threads.iter().enumerate() {
            self.end.word(index * PAGE);
        }
        self.threads.drain(..).for_each(|thread| thread.join().expect("it has served all"));
    }
}
