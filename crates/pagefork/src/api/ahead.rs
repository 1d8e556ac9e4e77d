//! Slots that are filled before it is known what exactly is spawned in them.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::api::instance::Instance;
use crate::api::pre::InstancePre;
use crate::api::store::Store;
use crate::base::error::Result;
use crate::run::ahead::FilledSlots;
use crate::store::interrupt::InterruptHandle;
use crate::store::limits::StoreLimits;

/// The slots of one store, filled with a snapshot before the store is spawned. Nothing runs in them: they
/// have no data, and no guest is told that it goes on. Dropped, they are given back.
///
/// # Examples
///
/// See [`InstancePre::fill_ahead`].
pub struct SlotsAhead(pub(super) FilledSlots);

/// What becomes of slots that were filled ahead.
///
/// # Examples
///
/// See [`InstancePre::fill_ahead`].
#[derive(Clone, Debug)]
pub struct SlotUses(Arc<AtomicU32>);

impl SlotUses {
    /// How many slots a store has been spawned in that were not filled anew for it.
    ///
    /// # Examples
    ///
    /// See [`InstancePre::fill_ahead`].
    pub fn in_place(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

impl SlotsAhead {
    /// What says later what has become of them.
    ///
    /// # Examples
    ///
    /// See [`InstancePre::fill_ahead`].
    pub fn uses(&self) -> SlotUses {
        SlotUses(Arc::clone(&self.0.in_place))
    }
}

impl fmt::Debug for SlotsAhead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlotsAhead").finish_non_exhaustive()
    }
}

impl<T: 'static> InstancePre<T> {
    /// Fills slots for one store with the snapshot, and takes those of `before` for it as far as they fit. A
    /// program that moves here is spawned in them when its last changes have come, for what those cost and no
    /// more: where the same files are mapped, and memories have the same sizes, the pages that the
    /// snapshot has otherwise are written, and nothing is mapped.
    ///
    /// # Errors
    /// [`UsageError::WrongSnapshot`](crate::UsageError) of what is made of a module and no snapshot;
    /// [`LimitError`](crate::LimitError) if a store with these limits may not have all of it; if the
    /// system refuses something. What was filled before is given back then.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Config, DeltaTracker, Engine, Linker, Module, StoreLimits, StrategyConfig};
    ///
    /// // Later snapshots are branches of the first one, so that both map the same files.
    /// let mut config = Config::new();
    /// config.strategies(StrategyConfig { deltas: DeltaTracker::Compare, ..StrategyConfig::default() });
    /// let engine = Engine::new(&config)?;
    /// let module = Module::new(&engine, r#"(module (memory (export "memory") 20))"#)?;
    /// let (mut store, instance) = Linker::new(&engine).instantiate_pre(&module)?.spawn(())?;
    /// let memory = instance.get_memory(&mut store, "memory").expect("it is exported");
    /// memory.data_mut(&mut store).fill(1);
    /// let ahead = store.snapshot()?.instance_pre()?;
    /// let limits = StoreLimits::new().memory_total(20 << 16);
    /// let slots = ahead.fill_ahead(&limits, None)?;
    ///
    /// memory.write(&mut store, 0, b"later")?;
    /// let later = store.snapshot()?.instance_pre()?;
    /// let uses = slots.uses();
    /// let (mut other, instance) = later.spawn_in(slots, 0, (), limits, |_| ())?;
    /// assert_eq!(uses.in_place(), 1);
    /// let memory = instance.get_memory(&mut other, "memory").expect("it is exported");
    /// assert_eq!(&memory.data(&other)[..6], b"later\x01");
    ///
    /// assert!(ahead.fill_ahead(&StoreLimits::new().memory_total(1 << 16), None).is_err());
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn fill_ahead(
        &self,
        limits: &StoreLimits,
        before: Option<SlotsAhead>,
    ) -> Result<SlotsAhead> {
        self.fill_slots(limits, before.map(|before| before.0)).map(SlotsAhead)
    }

    /// As [`InstancePre::spawn_limited`], in slots that were [filled ahead](InstancePre::fill_ahead) with this
    /// snapshot or another one: where they do not fit, in new ones.
    ///
    /// # Errors
    /// As of [`InstancePre::spawn_limited`]. The slots are given back then.
    ///
    /// # Panics
    /// As of [`InstancePre::spawn_limited`].
    ///
    /// # Examples
    ///
    /// See [`InstancePre::fill_ahead`].
    pub fn spawn_in(
        &self,
        slots: SlotsAhead,
        tenant: u64,
        data: T,
        limits: StoreLimits,
        watch: impl FnOnce(InterruptHandle),
    ) -> Result<(Store<T>, Instance)> {
        self.spawn_filled(slots.0, tenant, data, limits, watch)
    }
}
