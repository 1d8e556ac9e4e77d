//! Absent pages of a store's images: who waits for them, and what a store with such pages does
//! otherwise than one that has all.

use std::ops::Range;

use pagefork_pages::{AbsentPage, Slot};

use crate::base::error::{Result, UsageError};
use crate::base::trap::Trap;
use crate::store::frame::BulkThunks;
use crate::store::group::{Entity, InstanceData, StoreGroup};
use crate::store::interrupt::Due;
use crate::store::thread;

/// Whether pages of a store may be absent.
pub(crate) struct StoreAbsence {
    /// Whether an instance may have an image with absent pages. Invariant: if one has, this is so.
    pub(crate) is_possible: bool,
    /// Whether an instance may be unusable in processes that are forked. Invariant: if one is, this is
    /// so; and if pages may be absent.
    is_bound: bool,
    thunks: BulkThunks,
}

impl StoreAbsence {
    pub(crate) fn none(thunks: BulkThunks) -> Self {
        Self { is_possible: false, is_bound: false, thunks }
    }

    /// Whether something is to be asked before a guest runs.
    pub(crate) fn is_asked(&self) -> bool {
        self.is_bound
    }
}

impl StoreGroup {
    /// Notes whether instances have images with absent pages: after a slot was filled, and once they
    /// may have come.
    pub(crate) fn note_absent_pages(&mut self) {
        let mut slots = self.instances.iter().map(|instance| &instance.slot);
        self.absence.is_possible = slots.clone().any(Slot::is_incomplete);
        self.absence.is_bound = self.absence.is_possible || slots.any(Slot::is_bound);
        let BulkThunks { plain, waiting } = self.absence.thunks;
        let used = if self.absence.is_possible { waiting } else { plain };
        [self.activation.memory_move, self.activation.memory_set] = used;
        self.activation.touched.set((0, 0));
        self.interrupts.set_due(Due::AbsentPages, self.absence.is_bound);
    }

    /// As [`Self::note_absent_pages`], of an instance that was added.
    pub(crate) fn note_absent_pages_of(&mut self, ordinal: u32) {
        let slot = &self.instance(ordinal).slot;
        if slot.is_incomplete() || slot.is_bound() {
            self.note_absent_pages();
        }
    }

    /// What comes before a guest runs: once all pages are here, nothing is asked any more.
    ///
    /// # Errors
    /// The trap `PageAbsent` in a process that was forked while pages were absent, or that shares what
    /// memories have grown by with the one that it was forked from.
    #[inline]
    pub(crate) fn check_absent_pages(&mut self) -> Result<()> {
        match self.absence.is_bound {
            true => self.look_at_absent_pages(),
            false => Ok(()),
        }
    }

    #[cold]
    fn look_at_absent_pages(&mut self) -> Result<()> {
        self.note_absent_pages();
        self.torn().map_or(Ok(()), |absent| Err(Trap::of_absent(absent).into()))
    }

    /// What every entry begins with: the thread that enters is known, and ready.
    ///
    /// # Errors
    /// As of [`Self::check_absent_pages`] and [`thread::check_stack`].
    #[inline]
    pub(crate) fn begin_run(&mut self) -> Result<()> {
        self.note_writer();
        self.check_absent_pages()?;
        thread::check_stack()
    }

    /// As [`Self::torn`], which the activation has then for a trap.
    pub(crate) fn is_torn(&self) -> bool {
        let torn = self.torn();
        if torn.is_some() {
            self.activation.absent.set(torn);
        }
        torn.is_some()
    }

    /// Why no guest may run, if the process was forked while pages were absent: other threads may
    /// have mapped something where those were. Or what memories have grown by is its parent's.
    fn torn(&self) -> Option<AbsentPage> {
        if !self.absence.is_bound {
            return None;
        }
        self.instances.iter().find_map(|instance| instance.slot.check_process().err())
    }

    /// # Errors
    /// [`UsageError::AbsentPages`] if guests of the store would block a thread on which others wait.
    #[inline]
    pub(crate) fn check_may_block(&mut self) -> Result<()> {
        if !self.absence.is_possible || self.turns.runner.is_some() {
            return Ok(());
        }
        self.note_absent_pages();
        match self.absence.is_possible {
            true => Err(UsageError::AbsentPages.into()),
            false => Ok(()),
        }
    }

    /// Waits until pages at an address are here, where the image of the slot there may have absent
    /// ones. `false`: they did not come, and the activation says which.
    pub(crate) fn wait_at(&mut self, address: usize, length: usize) -> bool {
        if !self.absence.is_bound {
            return true;
        }
        if self.is_torn() {
            return false;
        }
        let end = address + length;
        let there = |instance: &&InstanceData| instance.bounds.slot().contains(&address);
        let instance = self.instances.iter().find(there);
        let absent = instance.and_then(|instance| instance.slot.wait_at(address..end).err());
        let is_here = absent.is_none();
        self.activation.absent.set(absent);
        is_here
    }

    /// Waits until pages of a memory are here.
    ///
    /// # Errors
    /// [`AbsentPage`] names what did not come, or why the store cannot be used in a forked process.
    pub(crate) fn wait_for(&self, entity: Entity, range: Range<u64>) -> Result<(), AbsentPage> {
        if !self.absence.is_bound {
            return Ok(());
        }
        if let Some(absent) = self.torn() {
            return Err(absent);
        }
        self.instance(entity.ordinal).slot.wait(entity.own_index as usize, range)
    }
}
