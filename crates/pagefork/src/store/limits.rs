//! How much a store may use.

use crate::base::error::{Error, LimitError, LimitSource, Result};
use crate::store::limiter::ResourceLimiter;

/// How much a store may use. Nothing is limited unless it is said here, apart
/// from what modules and slots limit themselves.
///
/// Growth beyond a limit makes `memory.grow` and `table.grow` answer -1;
/// creating something beyond it is an error.
///
/// # Examples
///
/// ```
/// use pagefork::{Engine, Memory, MemoryType, Store, StoreLimits};
///
/// let mut store = Store::new(&Engine::default(), ());
/// let limits = StoreLimits::new().memory_size(1 << 20).memory_total(2 << 20).memories(2);
/// store.set_limits(limits.instances(10).tables(4).table_elements(10_000));
/// let memory = Memory::new(&mut store, MemoryType::new(16, None))?;
/// assert!(memory.grow(&mut store, 1).is_err());
/// # Ok::<(), pagefork::Error>(())
/// ```
///
/// They can also be a part of the store's data, and change from within host functions:
///
/// ```
/// use pagefork::{Engine, Memory, MemoryType, Store, StoreLimits, StoreLimitsBuilder};
///
/// let limits = StoreLimitsBuilder::new().memory_size(1 << 20).build();
/// let mut store = Store::new(&Engine::default(), limits);
/// store.limiter(|limits| limits);
/// let memory = Memory::new(&mut store, MemoryType::new(16, None))?;
/// assert!(memory.grow(&mut store, 1).is_err());
/// # Ok::<(), pagefork::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoreLimits {
    pub(crate) memory_size: u64,
    pub(crate) memory_total: u64,
    pub(crate) table_elements: u64,
    pub(crate) instances: u64,
    pub(crate) memories: u64,
    pub(crate) tables: u64,
    pub(crate) trap_on_grow_failure: bool,
    /// As a limiter: bytes of all memories, and those of the last growth.
    used: (u64, u64),
}

/// [`StoreLimits`] are their own builder.
///
/// # Examples
///
/// See [`StoreLimits`].
pub type StoreLimitsBuilder = StoreLimits;

impl Default for StoreLimits {
    fn default() -> Self {
        Self {
            memory_size: u64::MAX,
            memory_total: u64::MAX,
            table_elements: u64::MAX,
            instances: u64::MAX,
            memories: u64::MAX,
            tables: u64::MAX,
            trap_on_grow_failure: false,
            used: (0, 0),
        }
    }
}

macro_rules! limits {
    ($($(#[$doc:meta])* $name:ident: $unit:ident;)*) => {$(
        $(#[$doc])*
        ///
        /// # Examples
        ///
        /// See [`StoreLimits`].
        #[must_use]
        pub fn $name(mut self, $unit: usize) -> Self {
            self.$name = $unit as u64;
            self
        }
    )*};
}

impl StoreLimits {
    /// No limits.
    ///
    /// # Examples
    ///
    /// See [`StoreLimits`].
    pub fn new() -> Self {
        Self::default()
    }

    limits! {
        /// Bytes that each memory may have.
        memory_size: bytes;
        /// Bytes that all memories may have together, those the host creates included.
        memory_total: bytes;
        /// Elements that each table may have.
        table_elements: elements;
        /// How many instances there may be.
        instances: count;
        /// How many memories there may be, those the host creates included.
        memories: count;
        /// How many tables there may be, those the host creates included.
        tables: count;
    }

    /// Whether growth that fails, for whatever reason, ends the guest, with a backtrace of who
    /// asked for it, and does not answer -1 as the specification wants it. Off by default.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Engine, Instance, Module, Store, StoreLimits};
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module (memory 1) (func (export "grow") (result i32)
    ///     (memory.grow (i32.const 1))))"#)?;
    /// let mut store = Store::new(&engine, ());
    /// let instance = Instance::new(&mut store, &module, &[])?;
    /// let grow = instance.get_typed_func::<(), i32>(&mut store, "grow")?;
    /// let limits = StoreLimits::new().memory_size(1 << 16);
    /// store.set_limits(limits);
    /// assert_eq!(grow.call(&mut store, ())?, -1);
    /// store.set_limits(limits.trap_on_grow_failure(true));
    /// assert!(grow.call(&mut store, ()).is_err());
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    #[must_use]
    pub fn trap_on_grow_failure(mut self, trap: bool) -> Self {
        self.trap_on_grow_failure = trap;
        self
    }

    /// These limits.
    ///
    /// # Examples
    ///
    /// See [`StoreLimits`].
    #[must_use]
    pub fn build(self) -> Self {
        self
    }

    /// The error of a growth that ends the guest.
    pub(crate) fn forced(error: Error) -> Error {
        error.context("growth that fails is to end the guest")
    }

    fn answer(&self, checked: Result<(), LimitError>) -> Result<bool> {
        match checked {
            Err(error) if self.trap_on_grow_failure => Err(Self::forced(error.into())),
            checked => Ok(checked.is_ok()),
        }
    }
}

/// `memory_total` counts from when the limits were made.
impl ResourceLimiter for StoreLimits {
    fn memory_growing(&mut self, current: usize, desired: usize, _: Option<usize>) -> Result<bool> {
        let (desired, more) = (desired as u64, (desired - current) as u64);
        let total = self.used.0.saturating_add(more);
        let checked = check("bytes of a memory", desired, self.memory_size)
            .and_then(|()| check(LimitError::MEMORY_TOTAL, total, self.memory_total));
        if checked.is_ok() {
            self.used = (total, more);
        }
        self.answer(checked)
    }

    fn memory_grow_failed(&mut self, error: Error) -> Result<()> {
        let (total, more) = self.used;
        self.used = (total - more, 0);
        match self.trap_on_grow_failure {
            true => Err(Self::forced(error)),
            false => Ok(()),
        }
    }

    fn table_growing(&mut self, _: usize, desired: usize, _: Option<usize>) -> Result<bool> {
        self.answer(check("elements of a table", desired as u64, self.table_elements))
    }

    fn table_grow_failed(&mut self, error: Error) -> Result<()> {
        match self.trap_on_grow_failure {
            true => Err(Self::forced(error)),
            false => Ok(()),
        }
    }

    fn instances(&self) -> usize {
        self.instances as usize
    }

    fn tables(&self) -> usize {
        self.tables as usize
    }

    fn memories(&self) -> usize {
        self.memories as usize
    }
}

/// How much a store uses of what is counted.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Usage {
    pub(crate) instances: u64,
    pub(crate) memories: u64,
    pub(crate) tables: u64,
}

impl Usage {
    /// # Errors
    /// If `self` is beyond the limits.
    pub(crate) fn check(&self, limits: &StoreLimits) -> Result<(), LimitError> {
        check("instances", self.instances, limits.instances)?;
        check("memories", self.memories, limits.memories)?;
        check("tables", self.tables, limits.tables)
    }
}

/// # Errors
/// If `requested` is beyond `limit`, which the store has.
pub(crate) fn check(what: &'static str, requested: u64, limit: u64) -> Result<(), LimitError> {
    check_of(LimitSource::Store, what, requested, limit)
}

/// # Errors
/// If `requested` is beyond `limit`.
pub(crate) fn check_of(
    source_of_limit: LimitSource,
    what: &'static str,
    requested: u64,
    limit: u64,
) -> Result<(), LimitError> {
    match requested <= limit {
        true => Ok(()),
        false => Err(LimitError { what, requested, limit, source_of_limit }),
    }
}

/// What says that a memory or table can have no more than `limit`, which is the room of its
/// slot, its declared maximum or what its index type can number, whichever is least.
pub(crate) fn source_of(limit: u64, declared: Option<u64>, numbered: u64) -> LimitSource {
    match declared {
        Some(maximum) if maximum <= limit => LimitSource::Declared,
        _ if numbered <= limit => LimitSource::Index,
        _ => LimitSource::Slot,
    }
}
