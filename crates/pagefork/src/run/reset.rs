//! Stores as they were when their instances had just been made.

use std::sync::Arc;

use pagefork_pages::{MemorySize, Owner};

use crate::base::error::Result;
use crate::run::{freeze, instantiate, limiter};
use crate::store::group::StoreGroup;
use crate::store::group::{Entity, interrupt_word};
use crate::store::interrupt::Interrupts;
use crate::store::limits::StoreLimits;
use crate::store::turns::Turns;

impl StoreGroup {
    /// Makes the store of a spawned instance as it was before that started, for the
    /// next tenant. After an error it can only be dropped.
    pub(crate) fn reset_for_parking(&mut self) -> Result<()> {
        self.note_last_writer();
        // Only what was spawned stays: host functions that it needs come first.
        while self.instances.len() > self.origin_count().max(1) {
            self.remove_latest_instance();
        }
        let functions = match &self.origin {
            Some(origin) => origin.host_functions.len(),
            None => self.instances[0].imports.functions.len(),
        };
        self.host_functions.truncate(functions);
        self.epochs.forget(&self.interrupts);
        if self.is_hooked {
            self.set_call_hook(None);
        }
        let renewed = self.renew_interrupts();
        for index in 0..self.instances.len() {
            self.reset_slot(index)?;
        }
        self.set_broken(false);
        self.forget_run();
        self.references.clear();
        self.called.trim();
        self.values.trim();
        self.cells.trim();
        self.limits = StoreLimits::default();
        self.limiter = None;
        self.usage = match &self.origin {
            Some(origin) => origin.usage,
            None => instantiate::own_usage(self.instances[0].module.info()),
        };
        self.timeout = None;
        self.turns = Turns::default();
        self.activation.fuel = 0;
        self.update_due();
        if renewed {
            self.list_interrupt_words();
        }
        Ok(())
    }

    /// Makes every slot as the image of its instance's plan.
    fn reset_slots(&mut self) -> Result<()> {
        self.note_last_writer();
        self.set_broken(true);
        for index in 0..self.instances.len() {
            self.reset_slot(index)?;
        }
        self.set_broken(false);
        Ok(())
    }

    /// Makes a slot as the image of its instance's plan.
    fn reset_slot(&mut self, index: usize) -> Result<()> {
        let instance = &mut self.instances[index];
        if instance.filled_otherwise {
            let plan = &instance.plan;
            instance.slot.reset_to(&plan.image, &plan.memory_sizes, Owner(0))?;
            instance.filled_otherwise = false;
            self.watch_lost_pages(&self.instances[index]);
            self.note_absent_pages();
        } else {
            instance.slot.reset()?;
        }
        Ok(())
    }

    /// What the host's own tables and globals are full of is needed at the next reset.
    pub(crate) fn give_up_references(&mut self) {
        if self.instances.iter().all(|instance| instance.initial_word == 0) {
            self.references.clear();
        }
    }

    /// Forgets what the last run left in the activation.
    pub(crate) fn forget_run(&mut self) {
        self.suspended = None;
        self.resets += 1;
        self.forget_raised();
        self.activation.forget_run();
        self.update_due();
    }

    /// Handles for interrupts that still exist must not reach the next
    /// tenant, nor pages that are not mapped during a reset. Says whether there are any:
    /// then no words are listed.
    fn renew_interrupts(&mut self) -> bool {
        if Arc::strong_count(&self.interrupts) == 1 {
            self.interrupts.clear();
            return false;
        }
        self.interrupts.detach();
        self.interrupts = Arc::new(Interrupts::default());
        self.activation.due = self.interrupts.due();
        self.renew_due_of_imports();
        for instance in &self.instances {
            self.watch_lost_pages(instance);
        }
        true
    }

    /// Lets interrupts reach the guests of all instances.
    pub(crate) fn list_interrupt_words(&self) {
        // SAFETY: slots stay mapped until their words are removed or detached.
        unsafe { self.interrupts.list(self.instances.iter().map(interrupt_word)) };
    }

    /// Brings all instances back to where they started, and starts them again.
    ///
    /// # Safety
    /// `store` is exclusively the caller's, with the provenance of the whole store.
    pub(crate) unsafe fn reset(store: *mut Self) -> Result<()> {
        // SAFETY: by this function's contract the store is ours; this borrow ends before a
        // guest is entered.
        let inner = unsafe { &mut *store };
        inner.reset_slots()?;
        inner.forget_run();
        inner.give_up_references();
        let count = inner.instances.len() as u32;
        for ordinal in 1..=count {
            inner.write_link(ordinal);
        }
        inner.interrupts.show_again();
        inner.note_writer();
        let first = inner.origin_count() as u32 + 1;
        if let Some(origin) = inner.origin.clone() {
            freeze::thaw(inner, &origin);
        }
        // SAFETY: by this function's contract the store is ours, with all of its provenance.
        unsafe { limiter::allow_present(store)? };
        // SAFETY: by this function's contract the store is ours, with all of its provenance.
        unsafe {
            if let Some(origin) = (*store).origin.clone() {
                freeze::tell_restored(store, &origin)?;
            }
            for ordinal in first..=count {
                (*store).fill_with_initial_word(ordinal);
                instantiate::start(store, ordinal)?;
            }
        }
        Ok(())
    }

    /// What the host made is full of what it said.
    fn fill_with_initial_word(&mut self, ordinal: u32) {
        let instance = self.instance(ordinal);
        let (word, info) = (instance.initial_word, instance.module.info());
        let entity = Entity { ordinal, own_index: 0 };
        match (word, info.tables.first().map(|table| table.minimum)) {
            (0, _) => (),
            (_, Some(length)) => self.put_elements(entity, 0, (0..length).map(|_| word)),
            (_, None) => self.set_global_word(entity, word),
        }
    }

    /// The sizes that memories of an instance have now, to become their first ones.
    pub(crate) fn present_sizes(&self, ordinal: u32) -> Vec<MemorySize> {
        let slot = &self.instance(ordinal).slot;
        let size = |index| MemorySize {
            initial: slot.memory_size(index),
            maximum: slot.memory_max(index),
        };
        (0..slot.memory_count()).map(size).collect()
    }
}
