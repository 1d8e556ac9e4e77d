//! How much a store may use.

use crate::base::error::{LimitError, LimitSource};

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
/// store.set_limits(StoreLimits::default().memory_size(1 << 20));
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
}

impl Default for StoreLimits {
    fn default() -> Self {
        Self {
            memory_size: u64::MAX,
            memory_total: u64::MAX,
            table_elements: u64::MAX,
            instances: u64::MAX,
            memories: u64::MAX,
            tables: u64::MAX,
        }
    }
}

impl StoreLimits {
    /// No limits.
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes that each memory may have.
    #[must_use]
    pub fn memory_size(mut self, bytes: u64) -> Self {
        self.memory_size = bytes;
        self
    }

    /// Bytes that all memories may have together, those the host creates included.
    #[must_use]
    pub fn memory_total(mut self, bytes: u64) -> Self {
        self.memory_total = bytes;
        self
    }

    /// Elements that each table may have.
    #[must_use]
    pub fn table_elements(mut self, elements: u64) -> Self {
        self.table_elements = elements;
        self
    }

    /// How many instances there may be.
    #[must_use]
    pub fn instances(mut self, count: u64) -> Self {
        self.instances = count;
        self
    }

    /// How many memories there may be, those the host creates included.
    #[must_use]
    pub fn memories(mut self, count: u64) -> Self {
        self.memories = count;
        self
    }

    /// How many tables there may be, those the host creates included.
    #[must_use]
    pub fn tables(mut self, count: u64) -> Self {
        self.tables = count;
        self
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
