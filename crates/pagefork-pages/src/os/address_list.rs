//! Addresses of slots that handlers of signals look up, without a lock.
//!
//! ```text
//!  first -> [ slot | slot | none | slot ]    entries stay for ever, and are used again
//! ```

use std::ops::Range;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering, fence};

use crate::os::lock::lock;

/// Addresses of slots, each with what a handler does there.
#[derive(Debug)]
pub(crate) struct AddressList<T: 'static> {
    first: AtomicPtr<AddressEntry<T>>,
    /// Entries without addresses.
    free: Mutex<Vec<&'static AddressEntry<T>>>,
}

/// Addresses of a slot, or none.
#[derive(Debug)]
pub(crate) struct AddressEntry<T: 'static> {
    /// Odd while the rest changes: a handler asks for none then that it could find.
    version: AtomicU32,
    start: AtomicUsize,
    end: AtomicUsize,
    next: *const Self,
    /// What a handler needs.
    pub(crate) of_handler: T,
}

// SAFETY: `next` never changes, and points to an entry that stays for ever.
unsafe impl<T: Sync> Sync for AddressEntry<T> {}

impl<T: Default> AddressList<T> {
    pub(crate) const fn new() -> Self {
        Self { first: AtomicPtr::new(ptr::null_mut()), free: Mutex::new(Vec::new()) }
    }

    /// The entry that has an address. For handlers of signals, raised by who uses the slot there.
    pub(crate) fn find(&self, address: usize) -> Option<&'static AddressEntry<T>> {
        // SAFETY: entries are never freed.
        let entry = |entry: *const AddressEntry<T>| unsafe { entry.as_ref() };
        let first: Option<&'static _> = entry(self.first.load(Ordering::Acquire));
        let mut entries = std::iter::successors(first, |last| entry(last.next));
        entries.find(|entry| entry.has(address))
    }

    /// Adds addresses, once `fill` has said what a handler needs.
    pub(crate) fn add(
        &self,
        addresses: Range<usize>,
        fill: impl FnOnce(&T),
    ) -> &'static AddressEntry<T> {
        let mut free = lock(&self.free);
        let entry = free.pop().unwrap_or_else(|| self.add_entry());
        drop(free);
        entry.set(addresses, fill);
        entry
    }

    /// A new entry, at the head of the list. The caller holds the lock of the free ones.
    fn add_entry(&self) -> &'static AddressEntry<T> {
        let new: &'static _ = Box::leak(Box::new(AddressEntry {
            version: AtomicU32::new(0),
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            next: self.first.load(Ordering::Relaxed),
            of_handler: T::default(),
        }));
        self.first.store(ptr::from_ref(new).cast_mut(), Ordering::Release);
        new
    }

    /// Removes the addresses of an entry, and has `clear` forget what its handler needed.
    pub(crate) fn remove(&self, entry: &'static AddressEntry<T>, clear: impl FnOnce(&T)) {
        entry.set(0..0, clear);
        lock(&self.free).push(entry);
    }
}

impl<T> AddressEntry<T> {
    fn has(&self, address: usize) -> bool {
        let version = self.version.load(Ordering::Acquire);
        let addresses = self.start.load(Ordering::Relaxed)..self.end.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        let is_settled =
            version.is_multiple_of(2) && version == self.version.load(Ordering::Relaxed);
        // An entry that changes is not that of a slot which is in use.
        is_settled && addresses.contains(&address)
    }

    fn set(&self, addresses: Range<usize>, change: impl FnOnce(&T)) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        self.start.store(addresses.start, Ordering::Relaxed);
        self.end.store(addresses.end, Ordering::Relaxed);
        change(&self.of_handler);
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }
}
