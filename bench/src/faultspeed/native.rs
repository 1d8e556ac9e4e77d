//! Ways that programs have without an engine.

use std::sync::Arc;

use super::{FILLED, GROWN, Memory, SNAPSHOT, mix, numbers, word_of};
use crate::kernel::{
    Access, Delivery, Handled, Mapping, Mode, PAGE, Readers, Serve, Userfault, handle_signals,
};
use crate::shapes::Pages;

/// Bytes of the snapshot, of that with what memory grows by, and of the mapping that has room for both.
const SHORT: usize = SNAPSHOT as usize * PAGE;
const LONG: usize = SHORT + GROWN as usize * PAGE;
const ROOM: usize = LONG.next_power_of_two();

/// A way to restore memory, and to make it longer.
pub(super) struct Way {
    pub(super) name: &'static str,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// All is accessible, and stays; the snapshot is copied over it.
    NoProtection,
    /// The mapping is made anew, and the snapshot copied into it.
    NewMapping,
    /// The mapping stays, and so do its pages; what memory may have is accessible.
    Reuse,
    /// The mapping stays, and its pages are given back; with `protect`, what memory may have is accessible.
    Discard { protect: bool },
    /// The mapping stays, its pages are given back, and the next touch of one is a fault that the program serves:
    /// it alone says how long memory is.
    Fault { served: Served, snapshot: Brought },
}

/// Who serves faults.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Served {
    /// So many threads that do nothing else, for all memories.
    ByThreads(usize),
    /// The thread that takes it, in its handler of SIGBUS.
    InThread,
}

/// When pages of the snapshot are brought.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Brought {
    AtOnce,
    WhenTouched,
    /// Zeros are, when they are touched: as it was published once.
    Never,
}

const fn fault(name: &'static str, served: Served, snapshot: Brought) -> Way {
    Way { name, kind: Kind::Fault { served, snapshot } }
}

/// All; those that do not do what they should are last.
pub(super) const WAYS: [Way; 11] = [
    Way { name: "no protection", kind: Kind::NoProtection },
    Way { name: "full new mapping", kind: Kind::NewMapping },
    Way { name: "reused mapping", kind: Kind::Reuse },
    Way { name: "reused, discarded, mprotect", kind: Kind::Discard { protect: true } },
    Way { name: "reused, discarded, no mprotect", kind: Kind::Discard { protect: false } },
    fault("userfaultfd, eager", Served::ByThreads(1), Brought::AtOnce),
    fault("userfaultfd, lazy", Served::ByThreads(1), Brought::WhenTouched),
    fault("userfaultfd, lazy, 2 handlers", Served::ByThreads(2), Brought::WhenTouched),
    fault("SIGBUS, eager", Served::InThread, Brought::AtOnce),
    fault("SIGBUS, lazy", Served::InThread, Brought::WhenTouched),
    fault("SIGBUS, lazy, never filled: WRONG", Served::InThread, Brought::Never),
];

impl Way {
    pub(super) fn needs_faults(&self) -> bool {
        matches!(self.kind, Kind::Fault { .. })
    }

    /// Whether memory has what it should.
    pub(super) fn is_right(&self) -> bool {
        !matches!(self.kind, Kind::Fault { snapshot: Brought::Never, .. })
    }

    /// What serves the faults of all memories of this way.
    pub(super) fn pager(&self, snapshot: &Arc<Vec<u8>>) -> Option<Pager> {
        let Kind::Fault { served, snapshot: brought } = self.kind else { return None };
        let (delivery, threads) = match served {
            Served::ByThreads(count) => (Delivery::Messages, count),
            Served::InThread => (Delivery::Signals, 0),
        };
        let faults = Arc::new(Userfault::new(delivery).expect("it was tried"));
        let known = if brought == Brought::Never { Arc::default() } else { Arc::clone(snapshot) };
        let server = Arc::new(Server { faults, snapshot: known });
        let serve: Arc<Serve> = {
            let server = Arc::clone(&server);
            Arc::new(move |address| server.bring(address))
        };
        let readers = (threads > 0).then(|| Readers::new(&server.faults, threads, &serve));
        Some(Pager { server, _readers: readers })
    }
}

/// Serves faults of memories.
struct Server {
    faults: Arc<Userfault>,
    snapshot: Arc<Vec<u8>>,
}

impl Server {
    /// Brings the page of an address of a mapping, each of which starts at a multiple of its size. Async-signal-safe,
    /// unless the kernel refuses.
    fn bring(&self, address: u64) {
        let page = address & !(PAGE as u64 - 1);
        let offset = page as usize % ROOM;
        let brought = match self.snapshot.get(offset..offset + PAGE) {
            Some(bytes) => self.faults.copy(page, bytes),
            None => self.faults.zero(page..page + PAGE as u64),
        };
        brought.expect("the page had no contents");
    }
}

/// A [`Server`], and the threads that it has.
pub(super) struct Pager {
    server: Arc<Server>,
    _readers: Option<Readers>,
}

/// Memory by one of the [`WAYS`].
pub(super) struct Native<'a> {
    kind: Kind,
    snapshot: &'a [u8],
    /// The thread that has the memory handles its faults.
    _handled: Option<Handled>,
    server: Option<&'a Server>,
    mapping: Mapping,
    length: usize,
}

impl<'a> Native<'a> {
    pub(super) fn new(way: &Way, pager: Option<&'a Pager>, snapshot: &'a [u8], huge: bool) -> Self {
        let access = match way.kind {
            Kind::NewMapping | Kind::Reuse | Kind::Discard { protect: true } => Access::None,
            _ => Access::Write,
        };
        let mapping = Mapping::new(ROOM, access, huge);
        let addresses = mapping.addresses();
        if let Some(pager) = pager {
            let registered = pager.server.faults.register(addresses.clone(), Mode::Missing);
            registered.expect("it was tried");
        }
        let in_thread = matches!(way.kind, Kind::Fault { served: Served::InThread, .. });
        let handled = pager.filter(|_| in_thread).map(|pager| {
            let server = Arc::clone(&pager.server);
            handle_signals(addresses, Box::new(move |address| server.bring(address)))
        });
        let server = pager.map(|pager| &*pager.server);
        Self { kind: way.kind, snapshot, _handled: handled, server, mapping, length: SHORT }
    }
}

impl Memory for Native<'_> {
    fn restore(&mut self) {
        let Self { mapping, .. } = self;
        match self.kind {
            Kind::NoProtection => mapping.fill(SHORT..self.length, 0),
            Kind::NewMapping => {
                mapping.map_anew(Access::None);
                mapping.protect(0..SHORT, Access::Write);
            }
            Kind::Reuse => {
                mapping.protect(SHORT..ROOM, Access::None);
                mapping.protect(0..SHORT, Access::Write);
            }
            Kind::Discard { protect } => {
                mapping.discard(0..self.length);
                if protect {
                    mapping.protect(SHORT..ROOM, Access::None);
                    mapping.protect(0..SHORT, Access::Write);
                }
            }
            Kind::Fault { snapshot, .. } => {
                mapping.discard(0..self.length);
                if snapshot == Brought::AtOnce {
                    let server = self.server.expect("it has one");
                    let copied = server.faults.copy(mapping.addresses().start, self.snapshot);
                    copied.expect("no page has contents");
                }
            }
        }
        if !matches!(self.kind, Kind::Fault { .. }) {
            mapping.write(0, self.snapshot);
        }
        self.length = SHORT;
    }

    fn grow(&mut self) {
        self.length = LONG;
        match self.kind {
            Kind::NewMapping | Kind::Discard { protect: true } => {
                self.mapping.protect(SHORT..LONG, Access::Write);
            }
            Kind::Reuse => {
                self.mapping.protect(SHORT..LONG, Access::Write);
                self.mapping.fill(SHORT..LONG, 0);
            }
            Kind::NoProtection | Kind::Discard { protect: false } | Kind::Fault { .. } => {}
        }
    }

    fn fill(&mut self, pages: Pages, byte: u8) {
        for page in numbers(pages) {
            let start = page as usize * PAGE;
            self.mapping.fill(start..start + PAGE, byte);
        }
    }

    fn read(&mut self, pages: Pages) -> u64 {
        numbers(pages).fold(0, |sum, page| mix(sum, self.mapping.word(word_of(page))))
    }

    fn bytes(&mut self) -> &[u8] {
        self.mapping.bytes(0..self.length)
    }
}

const _: () = assert!(FILLED <= SNAPSHOT && LONG <= ROOM);
