//! Pages of a slot whose writes the kernel notes.

use std::ops::Range;
use std::sync::Arc;

use crate::os::error::PagesError;
use crate::os::sys::CallFailure;
use crate::os::write_watch::WriteWatch;
use crate::pages::map_budget::MapShare;

/// Pages of a slot whose writes the kernel notes. They stay registered until
/// [`Self::unregister`], or until other maps take their place.
#[derive(Debug)]
pub(crate) struct WatchedPages {
    watch: Arc<WriteWatch>,
    /// Addresses; ascending, apart. No others are registered.
    parts: Vec<Range<u64>>,
    /// Whether all of them are.
    is_complete: bool,
    /// Whether some of them are.
    is_begun: bool,
    /// Maps that are cut where a part begins or ends.
    _maps: MapShare,
}

impl WatchedPages {
    /// Registers these addresses: [`Self::is_complete`] says whether the kernel has. `None` where
    /// it cannot, or if too few maps are left.
    pub(crate) fn new(parts: Vec<Range<u64>>) -> Option<Self> {
        // The first part begins within a map, and memories end within one when they have grown.
        let maps = MapShare::take(1 + parts.len() as u64).ok()?;
        let watch = WriteWatch::of_this_process().ok()?;
        let (is_complete, is_begun) = (false, false);
        let mut watched = Self { watch, parts, is_complete, is_begun, _maps: maps };
        watched.is_complete = watched.register().is_ok();
        Some(watched)
    }

    /// Registers these addresses in place of others, which they contain. Whether they all are.
    pub(crate) fn reach(&mut self, parts: Vec<Range<u64>>) -> bool {
        if !self.is_complete || self.parts != parts {
            self.parts = parts;
            self.is_complete = self.register().is_ok();
        }
        self.is_complete
    }

    /// Whether all of the addresses are registered.
    pub(crate) fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Whether some of the addresses are registered, in this process.
    pub(crate) fn is_begun(&self) -> bool {
        self.is_begun && self.is_of_this_process()
    }

    /// Says that what was registered may be so no more, as where other maps have taken its place.
    pub(crate) fn note_replaced(&mut self) {
        (self.is_complete, self.is_begun) = (false, false);
    }

    /// Whether they are of this process, and not of one that this was forked from.
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.watch.is_of_this_process()
    }

    /// Write-protects the pages at addresses that are registered: from then on they count as
    /// unwritten, and the first write to each is a page fault of the thread that writes.
    pub(crate) fn protect(&self, addresses: Range<u64>) -> Result<(), CallFailure> {
        self.watch.protect(addresses)
    }

    fn register(&mut self) -> Result<(), PagesError> {
        for part in self.parts.iter().filter(|part| !part.is_empty()) {
            self.watch.register(part.clone())?;
            self.is_begun = true;
        }
        Ok(())
    }

    /// Has the kernel note nothing more.
    ///
    /// # Errors
    /// If the kernel does not end it. Some addresses may be registered still then, and others not: all
    /// count as if none were, so that they are registered anew before anything is asked of them.
    pub(crate) fn unregister(&mut self) -> Result<(), PagesError> {
        self.note_replaced();
        if self.is_of_this_process() {
            for part in self.parts.iter().filter(|part| !part.is_empty()) {
                self.watch.unregister(part.clone())?;
            }
        }
        Ok(())
    }
}
