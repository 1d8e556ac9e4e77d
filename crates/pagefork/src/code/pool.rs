//! What is kept for the next instance: slots of modules, and whole stores of what is
//! [spawned](crate::InstancePre::spawn).

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use pagefork_pages::{
    Key, LocalPool, Owner, PagesError, Park, Pool, PoolConfig, PoolCounters, Slot, Strategies,
};

use crate::code::engine::Engine;

/// What an engine's pool keeps.
pub(crate) enum Pooled {
    /// The slot of a module's instance, reset.
    Slot(Box<Slot>),
    /// A store whose instances are reset.
    Store(ParkedStore),
}

impl Park for Pooled {
    fn resident(&self) -> u64 {
        match self {
            Self::Slot(slot) => slot.resident(),
            Self::Store(store) => store.get().resident(),
        }
    }

    fn written(&self) -> u64 {
        match self {
            Self::Slot(slot) => slot.written(),
            Self::Store(store) => store.get().written(),
        }
    }

    fn discard(&mut self) -> Result<(), PagesError> {
        match self {
            Self::Slot(slot) => slot.discard(),
            Self::Store(store) => store.get_mut().discard(),
        }
    }
}

/// A store as the pool sees it: slots that wait for the next instance.
pub(crate) trait ParkedSlots {
    /// Bytes that the slots keep in memory.
    fn resident(&self) -> u64;

    /// Bytes that were written since the image was mapped.
    fn written(&self) -> u64;

    /// Gives the memory of the slots back.
    ///
    /// # Errors
    /// If the system refuses.
    fn discard(&mut self) -> Result<(), PagesError>;

    /// Whether the place where the store is parked is still open.
    fn is_wanted(&self) -> bool;
}

/// A store without the embedder's data.
pub(crate) struct ParkedStore {
    /// Invariant: from a box, and this value's alone.
    store: NonNull<dyn ParkedSlots>,
}

// SAFETY: by the contract of `new` the store is this value's alone, and can be used from any
// thread.
unsafe impl Send for ParkedStore {}

impl ParkedStore {
    /// # Safety
    /// `store` is from a box that is the caller's alone, and can be used and dropped on any
    /// thread.
    pub(crate) unsafe fn new(store: NonNull<dyn ParkedSlots>) -> Self {
        Self { store }
    }

    /// The box's pointer, which is the caller's from now on.
    pub(crate) fn into_inner(self) -> NonNull<dyn ParkedSlots> {
        let store = self.store;
        std::mem::forget(self);
        store
    }

    fn get(&self) -> &dyn ParkedSlots {
        // SAFETY: by the invariant of `store` it is valid.
        unsafe { self.store.as_ref() }
    }

    fn get_mut(&mut self) -> &mut dyn ParkedSlots {
        // SAFETY: by the invariant of `store` it is valid and this value's alone.
        unsafe { self.store.as_mut() }
    }
}

impl Drop for ParkedStore {
    fn drop(&mut self) {
        // SAFETY: by the invariant of `store` it is from a box.
        drop(unsafe { Box::from_raw(self.store.as_ptr()) });
    }
}

/// Parks a store, or drops it if its home is closed. What the store holds, its engine
/// included, may be gone afterwards.
pub(crate) fn park((pool, key): (LocalPool<Pooled>, Key), store: ParkedStore) {
    pool.put(key, Pooled::Store(store), |parked| match parked {
        // Closing a home sets its flag, then looks for what is parked. So the flag is read here.
        Pooled::Store(store) => store.get().is_wanted(),
        Pooled::Slot(_) => true,
    });
}

/// Where slots of one spawn plan, or spawned stores of one `InstancePre`, are parked.
pub(crate) struct Home {
    pool: Pool<Pooled>,
    key: Key,
    /// Tells owners of slots apart; no two homes of a process have the same.
    pub(crate) number: u64,
    /// Whether what is parked here will be taken again.
    open: AtomicBool,
}

impl Home {
    pub(crate) fn new(engine: &Engine) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let (pool, number) = (engine.pool().clone(), NEXT.fetch_add(1, Ordering::Relaxed));
        Self { key: pool.add_key(), number, open: AtomicBool::new(true), pool }
    }

    pub(crate) fn take(&self) -> Option<Pooled> {
        self.pool.take(self.key)
    }

    /// Resets and parks a slot, or drops it.
    pub(crate) fn park_slot(&self, mut slot: Slot) {
        if self.pool.keeps_nothing() || slot.reset().is_err() {
            return;
        }
        self.pool.put(self.key, Pooled::Slot(Box::new(slot)));
    }

    /// Where this thread parks a store that is at home here.
    pub(crate) fn local(&self) -> (LocalPool<Pooled>, Key) {
        (self.pool.local(), self.key)
    }

    /// Whether stores that are parked here will be taken again.
    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Ordering::SeqCst)
    }

    /// Drops what is parked, now and later.
    pub(crate) fn close(&self) {
        self.open.store(false, Ordering::SeqCst);
        self.pool.remove_key(self.key);
    }

    /// Whose bytes may be on the stack of a slot that this tenant used.
    pub(crate) fn owner(&self, tenant: u64) -> Owner {
        owner(self.number, tenant)
    }
}

/// Whose bytes may be on the stack of a slot.
pub(crate) fn owner(number: u64, tenant: u64) -> Owner {
    Owner(u128::from(number) << 64 | u128::from(tenant))
}

impl Engine {
    /// What the engine keeps for later instances, and how often that was of use.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use pagefork::{Engine, Linker, Module, PoolConfig};
    ///
    /// let engine = Engine::default();
    /// engine.set_pool(PoolConfig { kept_max: 8, idle_max: None, ..PoolConfig::default() });
    /// let module = Module::new(&engine, "(module (memory 1))")?;
    /// let pre = Linker::<()>::new(&engine).instantiate_pre(&module)?;
    /// for _ in 0..3 {
    ///     pre.spawn(())?;
    /// }
    /// // The second and the third found what the one before had left.
    /// let counters = engine.pool_counters();
    /// assert_eq!((counters.taken, counters.put, counters.parked), (2, 3, 1));
    /// assert_eq!(engine.trim_pool(Duration::from_secs(3600)), 0);
    /// assert_eq!(engine.purge_pool(), 1);
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn pool_counters(&self) -> PoolCounters {
        self.pool().counters()
    }

    /// Changes how much the engine keeps for later instances; what is beyond it now is
    /// given back.
    ///
    /// # Examples
    ///
    /// See [`Engine::pool_counters`].
    pub fn set_pool(&self, config: PoolConfig) {
        self.pool().set_config(config);
    }

    /// Gives the address space back of slots that have been idle for longer than this.
    /// Returns how many instances and stores that were.
    ///
    /// # Examples
    ///
    /// See [`Engine::pool_counters`].
    pub fn trim_pool(&self, idle: Duration) -> usize {
        self.pool().trim(idle)
    }

    /// Gives the address space back of all slots that are not in use. Returns how many
    /// instances and stores that were.
    ///
    /// # Examples
    ///
    /// See [`Engine::pool_counters`].
    pub fn purge_pool(&self) -> usize {
        self.pool().purge()
    }

    /// The strategies of slots where nothing else is said: what this machine can do of
    /// them, and why.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Config, Engine, ResetKind, StrategyConfig};
    ///
    /// let config = StrategyConfig { reset: ResetKind::Discard, ..StrategyConfig::default() };
    /// let engine = Engine::new(Config::new().strategies(config))?;
    /// assert_eq!(engine.strategies().config().reset, ResetKind::Discard);
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn strategies(&self) -> &Strategies {
        self.default_strategies()
    }
}
