//! Asking the embedder's limiter before something is made or grows.
//!
//! # Safety
//!
//! The limiter is part of the embedder's data. So all functions here take the store by a pointer
//! with the provenance of the whole, which is exclusively the caller's.

use std::sync::Arc;

use pagefork_layout::module::{MemoryType, ModuleInfo, TableType};
use pagefork_layout::page::WASM_PAGE_SIZE;

use crate::base::error::{Error, LimitError, LimitSource, Result};
use crate::store::group::{Entity, StoreGroup};
use crate::store::limiter::ResourceLimiter;
use crate::store::limits::{StoreLimits, Usage};

/// What a growth comes to: the size before, or why there is none, which a guest sees as -1.
pub(crate) type Growth = Result<u64>;

/// The limiter's answer; `None` if there is no limiter.
///
/// # Safety
/// As of this module.
unsafe fn ask<R>(
    store: *mut StoreGroup,
    question: impl FnOnce(&mut dyn ResourceLimiter) -> R,
) -> Option<R> {
    // SAFETY: by this function's contract the store is ours; the borrow ends here.
    let limiter = Arc::clone(unsafe { (*store).limiter.as_ref()? });
    let (mut question, mut answer) = (Some(question), None);
    // The store's limiter was made for the type of its data.
    limiter(store, &mut |limiter| {
        answer = question.take().map(|question| question(limiter));
    });
    answer
}

/// Asks for an instance that is to be made: how many there are then is `usage`.
///
/// # Errors
/// If the limiter does not allow it, or fails.
///
/// # Safety
/// As of this module.
pub(crate) unsafe fn allow_new(
    store: *mut StoreGroup,
    info: &ModuleInfo,
    usage: &Usage,
) -> Result<()> {
    let memories = &info.memories[info.imported_memories as usize..];
    let tables = &info.tables[info.imported_tables as usize..];
    // SAFETY: this function's contract is that of `ask`.
    let answer = unsafe {
        ask(store, |limiter| {
            check_counts(limiter, usage)?;
            memories.iter().try_for_each(|ty| allow_memory(limiter, ty))?;
            tables.iter().try_for_each(|ty| allow_table(limiter, ty))
        })
    };
    answer.unwrap_or(Ok(()))
}

/// Asks for all that the store has, as if it were made anew.
///
/// # Errors
/// If the limiter does not allow it, or fails.
///
/// # Safety
/// As of this module.
pub(crate) unsafe fn allow_present(store: *mut StoreGroup) -> Result<()> {
    // SAFETY: by this function's contract the store is ours; the embedder's data, which the
    // limiter is part of, lies beside what is borrowed here.
    let inner = unsafe { &*store };
    let ask_for_all = |limiter: &mut dyn ResourceLimiter| {
        check_counts(limiter, &inner.usage)?;
        for ordinal in 1..inner.next_ordinal() {
            let layout = inner.instance(ordinal).module.layout();
            let entities = |count| (0..count as u32).map(|own_index| Entity { ordinal, own_index });
            for memory in entities(layout.memories.len()) {
                allow_memory(limiter, &inner.memory_type(memory))?;
            }
            for table in entities(layout.table_capacities.len()) {
                allow_table(limiter, &inner.table_type(table))?;
            }
        }
        Ok(())
    };
    // SAFETY: this function's contract is that of `ask`.
    unsafe { ask(store, ask_for_all) }.unwrap_or(Ok(()))
}

fn check_counts(limiter: &dyn ResourceLimiter, usage: &Usage) -> Result<()> {
    let allowed = StoreLimits::new()
        .instances(limiter.instances())
        .tables(limiter.tables())
        .memories(limiter.memories());
    Ok(usage.check(&allowed)?)
}

fn allow_memory(limiter: &mut dyn ResourceLimiter, ty: &MemoryType) -> Result<()> {
    let size = bytes(ty.minimum);
    match limiter.memory_growing(0, size, ty.maximum.map(bytes))? {
        true => Ok(()),
        false => Err(refused(MEMORY, 0, size)),
    }
}

fn allow_table(limiter: &mut dyn ResourceLimiter, ty: &TableType) -> Result<()> {
    let length = ty.minimum as usize;
    match limiter.table_growing(0, length, table_maximum(ty))? {
        true => Ok(()),
        false => Err(refused(TABLE, 0, length)),
    }
}

/// Lets a memory grow by `delta` wasm pages, if the limiter allows it.
///
/// # Errors
/// If the limiter fails, or growths that fail are to trap: the guest ends then.
///
/// # Safety
/// As of this module.
pub(crate) unsafe fn grow_memory(
    store: *mut StoreGroup,
    memory: Entity,
    delta: u64,
) -> Result<Growth> {
    // SAFETY: by this function's contract the store is ours; the borrow ends before the
    // limiter is asked.
    let ty = unsafe { (*store).memory_type(memory) };
    let (current, desired) = (bytes(ty.minimum), bytes(ty.minimum.saturating_add(delta)));
    // SAFETY: the store is ours; the limiter is not asked meanwhile.
    let grow = || unsafe { (*store).grow_memory(memory, delta) };
    // SAFETY: this function's contract is that of `ask`.
    unsafe {
        let maximum = ty.maximum.map(bytes);
        let growing =
            |limiter: &mut dyn ResourceLimiter| limiter.memory_growing(current, desired, maximum);
        if delta > 0 && !ask(store, growing).unwrap_or(Ok(true))? {
            return Ok(Err(refused(MEMORY, current, desired)));
        }
        note_failure(store, grow(), |limiter, error| limiter.memory_grow_failed(error))
    }
}

/// Lets a table grow by `delta` elements that are all `word`, as it is stored there, if the
/// limiter allows it.
///
/// # Errors
/// As [`grow_memory`].
///
/// # Safety
/// As of this module.
pub(crate) unsafe fn grow_table(
    store: *mut StoreGroup,
    table: Entity,
    delta: u64,
    word: u64,
) -> Result<Growth> {
    // SAFETY: by this function's contract the store is ours; the borrow ends before the
    // limiter is asked.
    let ty = unsafe { (*store).table_type(table) };
    let (current, desired) = (ty.minimum as usize, ty.minimum.saturating_add(delta) as usize);
    // SAFETY: the store is ours; the limiter is not asked meanwhile.
    let grow = || unsafe { (*store).table_grow(table, delta, word) };
    // SAFETY: this function's contract is that of `ask`.
    unsafe {
        let maximum = table_maximum(&ty);
        let growing =
            |limiter: &mut dyn ResourceLimiter| limiter.table_growing(current, desired, maximum);
        if delta > 0 && !ask(store, growing).unwrap_or(Ok(true))? {
            return Ok(Err(refused(TABLE, current, desired)));
        }
        let grown = grow().map_err(Error::from);
        note_failure(store, grown, |limiter, error| limiter.table_grow_failed(error))
    }
}

/// Tells the limiter of a growth that has failed.
///
/// # Errors
/// If the limiter fails by it, or growths that fail are to trap.
///
/// # Safety
/// As of this module.
unsafe fn note_failure(
    store: *mut StoreGroup,
    growth: Growth,
    note: impl FnOnce(&mut dyn ResourceLimiter, Error) -> Result<()>,
) -> Result<Growth> {
    let error = match growth {
        Ok(old) => return Ok(Ok(old)),
        Err(error) => error,
    };
    // The embedder, who may have asked for the growth, gets the error itself.
    let copy = match error.downcast_ref::<LimitError>() {
        Some(limit) => limit.clone().into(),
        None => Error::msg(format!("{error:#}")),
    };
    // SAFETY: this function's contract is that of `ask`.
    unsafe { ask(store, |limiter| note(limiter, copy)) }.unwrap_or(Ok(()))?;
    // SAFETY: by this function's contract the store is ours.
    match unsafe { (*store).limits.trap_on_grow_failure } {
        true => Err(StoreLimits::forced(error)),
        false => Ok(Err(error)),
    }
}

const MEMORY: &str = "bytes of a memory";
const TABLE: &str = "elements of a table";

#[cold]
fn refused(what: &'static str, current: usize, desired: usize) -> Error {
    let (requested, limit) = (desired as u64, current as u64);
    LimitError { what, requested, limit, source_of_limit: LimitSource::Limiter }.into()
}

/// Bytes of so many wasm pages; all that can be addressed, if there are more.
fn bytes(pages: u64) -> usize {
    pages.saturating_mul(WASM_PAGE_SIZE).min(u64::MAX - WASM_PAGE_SIZE + 1) as usize
}

fn table_maximum(ty: &TableType) -> Option<usize> {
    let numbered = if ty.table64 { usize::MAX } else { u32::MAX as usize };
    Some(ty.maximum.map_or(numbered, |maximum| maximum as usize))
}
