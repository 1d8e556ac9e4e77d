//! What of the embedder's decides how much a store may use.

use crate::base::error::{Error, Result};
use crate::store::group::StoreGroup;

/// Decides how much the instances of a store may use: see
/// [`Store::limiter`](crate::Store::limiter). [`StoreLimits`](crate::StoreLimits) is one.
///
/// It is asked for every memory and table, those that the host creates included: when it is
/// made, from size 0, when it grows, and when the store is reset, from size 0 again. What the
/// store's own limits or the room of a slot forbid is refused in any case.
///
/// # Examples
///
/// ```
/// use pagefork::{Engine, Error, Memory, MemoryType, ResourceLimiter, Result, Store};
///
/// /// Bytes that are left for all memories.
/// struct Account(usize);
///
/// impl ResourceLimiter for Account {
///     fn memory_growing(&mut self, current: usize, desired: usize, _: Option<usize>) -> Result<bool> {
///         let left = self.0.checked_sub(desired - current);
///         self.0 = left.unwrap_or(self.0);
///         Ok(left.is_some())
///     }
///
///     fn table_growing(&mut self, _: usize, desired: usize, _: Option<usize>) -> Result<bool> {
///         Ok(desired <= 1000)
///     }
///
///     // Growth that was allowed and then fails ends the guest.
///     fn memory_grow_failed(&mut self, error: Error) -> Result<()> {
///         Err(error.context("the account is wrong now"))
///     }
///
///     fn table_grow_failed(&mut self, error: Error) -> Result<()> {
///         Err(error)
///     }
///
///     fn instances(&self) -> usize {
///         10
///     }
///
///     fn memories(&self) -> usize {
///         1
///     }
///
///     fn tables(&self) -> usize {
///         2
///     }
/// }
///
/// let mut store = Store::new(&Engine::default(), Account(5 << 16));
/// store.limiter(|account| account);
/// let memory = Memory::new(&mut store, MemoryType::new(2, None))?;
/// assert_eq!(memory.grow(&mut store, 2)?, 2);
/// assert!(memory.grow(&mut store, 2).is_err());
/// assert_eq!(store.data().0, 1 << 16);
/// assert!(Memory::new(&mut store, MemoryType::new(1, None)).is_err(), "there is one already");
/// # Ok::<(), pagefork::Error>(())
/// ```
pub trait ResourceLimiter: Send {
    /// Whether a memory may grow from `current` bytes to `desired`, multiples of 64 KiB, at most
    /// what `usize` can hold. `maximum` is what its type declares; growth beyond it fails even if
    /// it is allowed here.
    ///
    /// After `Ok(false)` `memory.grow` answers -1, and what the embedder called is an error.
    ///
    /// # Errors
    /// Ends the guest, as the error of a host function does.
    ///
    /// # Examples
    ///
    /// See [`ResourceLimiter`].
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> Result<bool>;

    /// Takes note that a memory could not grow although [`ResourceLimiter::memory_growing`] has
    /// just allowed it. The error is a [`LimitError`](crate::LimitError), or a message where the
    /// system refused memory.
    ///
    /// # Errors
    /// Ends the guest; by default there is none, and `memory.grow` answers -1.
    ///
    /// # Examples
    ///
    /// See [`ResourceLimiter`].
    fn memory_grow_failed(&mut self, error: Error) -> Result<()> {
        let _ = error;
        Ok(())
    }

    /// Whether a table may grow from `current` elements to `desired`; as
    /// [`ResourceLimiter::memory_growing`].
    ///
    /// # Errors
    /// Ends the guest.
    ///
    /// # Examples
    ///
    /// See [`ResourceLimiter`].
    fn table_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> Result<bool>;

    /// Takes note that a table could not grow; as [`ResourceLimiter::memory_grow_failed`].
    ///
    /// # Errors
    /// Ends the guest; by default there is none.
    ///
    /// # Examples
    ///
    /// See [`ResourceLimiter`].
    fn table_grow_failed(&mut self, error: Error) -> Result<()> {
        let _ = error;
        Ok(())
    }

    /// How many instances there may be: by default 10,000. Each memory, table, global and tag
    /// that the host creates counts as one.
    ///
    /// # Examples
    ///
    /// See [`ResourceLimiter`].
    fn instances(&self) -> usize {
        COUNT
    }

    /// How many tables there may be, those the host creates included: by default 10,000.
    ///
    /// # Examples
    ///
    /// See [`ResourceLimiter`].
    fn tables(&self) -> usize {
        COUNT
    }

    /// How many memories there may be, those the host creates included: by default 10,000.
    ///
    /// # Examples
    ///
    /// See [`ResourceLimiter`].
    fn memories(&self) -> usize {
        COUNT
    }
}

const COUNT: usize = 10_000;

/// Finds the limiter in the embedder's data, and hands it to a question.
///
/// # Safety
/// Called with a store whose data has the type that the closure was made for, exclusively the
/// caller's, with the provenance of the whole store.
pub(crate) type AskLimiter =
    dyn Fn(*mut StoreGroup, &mut dyn FnMut(&mut dyn ResourceLimiter)) + Send + Sync;
