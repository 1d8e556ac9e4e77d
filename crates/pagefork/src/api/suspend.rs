//! Suspended guests: stopped inside a host call or at an interruption point, so
//! that they are nothing but pages, and continued later, possibly elsewhere.
//!
//! Internal: what snapshots and forks are made of, and what the tests use that
//! show that a guest does not depend on where it lies.
//!
//! # Safety
//!
//! A suspended guest's frames lie in the stack zone of the slot whose instance
//! was entered first, from its stack pointer up to the zone's end; the pointer
//! lies in the save area of the instance that was suspended, as a distance below
//! that end. Neither is written before the guest is resumed or given up.

use std::ops::Range;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use pagefork_layout::slot::SlotLayout;
use pagefork_layout::state::save;
pub use pagefork_layout::state::save::Suspension;
use pagefork_pages::{ExternalWriter, Slot};

use crate::api::func::Caller;
use crate::api::instance::Instance;
use crate::api::linker::Linker;
use crate::api::store::{AsContext, AsContextMut, Store, StoreContext};
pub use crate::api::suspendable::CallProgress;
use crate::api::suspendable::resume_until;
use crate::base::error::{Result, UsageError};
use crate::code::engine::Engine;
use crate::code::module::Module;
use crate::run::enter;
use crate::run::suspend::chain;
use crate::run::suspend::copy_stack;
use crate::run::suspend::copy_zones;
use crate::run::suspend::saved;
use crate::run::suspend::{self as run, Suspends};
use crate::store::group::StoreGroup;
use crate::store::handle::Func;
use crate::store::suspended::Copied;
pub use crate::store::suspended::{FrameWord, FrameWordKind};
use crate::store::value::Val;

/// Calls a guest's function, and suspends it at the `stop_at`th point where that
/// is possible, counted from 1: returns from host functions and interruption
/// points. It is suspended earlier if a host function [asks](request) for it.
///
/// # Errors
/// As [`Func::call_suspendable`].
pub fn call(
    mut store: impl AsContextMut,
    function: &Func,
    params: &[Val],
    stop_at: Option<u64>,
) -> Result<CallProgress> {
    function.call_until(store.as_context_mut(), params, stops(stop_at))
}

/// Continues the suspended guest of a store, up to the `stop_at`th point from
/// here.
///
/// # Errors
/// As [`Store::resume`].
pub fn resume(mut store: impl AsContextMut, stop_at: Option<u64>) -> Result<CallProgress> {
    resume_until(store.as_context_mut(), None, stops(stop_at))
}

fn stops(stop_at: Option<u64>) -> Suspends {
    stop_at.filter(|count| *count > 0).map_or(Suspends::Ends, Suspends::EndsAt)
}

/// Gives a suspended guest up: its frames are forgotten.
pub fn abandon(mut store: impl AsContextMut) {
    run::abandon(&mut store.as_context_mut().0.inner);
}

/// Asks, from a host function, that its caller be suspended when it returns.
///
/// # Errors
/// As [`Caller::suspend_after`].
pub fn request<T: 'static>(caller: &mut Caller<'_, T>) -> Result<()> {
    caller.suspend_after()
}

/// What the guest of a store is suspended in; `None` if it is not.
pub fn suspension(store: impl AsContext) -> Option<Suspension> {
    store.as_context().0.inner.suspended.as_ref().map(|suspended| suspended.kind)
}

/// How many instances a store has; they are numbered from 1. Memories, tables and
/// globals that the host made are instances, too.
pub fn instance_count(store: impl AsContext) -> u32 {
    store.as_context().0.inner.instances.len() as u32
}

/// The instance with this number.
///
/// # Panics
/// If there is none, or the last reset of the store has failed.
pub fn instance(store: impl AsContext, ordinal: u32) -> Instance {
    let inner = &store.as_context().0.inner;
    assert_whole(inner);
    assert!((1..inner.next_ordinal()).contains(&ordinal), "there is no such instance");
    Instance::from_ordinal(inner, ordinal)
}

/// A part of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Zone {
    /// The part in use of the stack, where the guest is suspended; else nothing.
    Stack,
    /// The link zone.
    Link,
    /// The exceptions zone.
    Exceptions,
    /// Room to grow and contents of tables.
    Tables,
    /// The state zone, in whole pages; it may begin with contents of tables.
    State,
    /// The accessible part of the memory that has this number among those that
    /// the module defines; nothing if it has none of that number.
    Memory(u32),
}

/// Where a slot lies.
#[derive(Clone, Debug)]
pub struct SlotView {
    /// Address of the slot's first byte.
    pub start: usize,
    /// Address of the first byte of the first memory.
    pub base: usize,
    /// Address of the first byte of the code.
    pub code: usize,
    /// Where its zones are.
    pub layout: SlotLayout,
}

/// The slot of the instance with this number.
///
/// # Panics
/// If there is none.
pub fn slot(store: impl AsContext, ordinal: u32) -> SlotView {
    let instance = store.as_context().0.inner.instance(ordinal);
    SlotView {
        start: instance.slot.start().expose_provenance(),
        base: instance.base(),
        code: instance.module.code_memory().start(),
        layout: instance.module.layout().clone(),
    }
}

/// The bytes of a zone of the instance with this number, and the slot offset of
/// the first of them.
///
/// # Panics
/// If there is no such instance, the last reset of the store has failed, or absent pages do not come.
pub fn zone_bytes(store: impl AsContext, ordinal: u32, zone: Zone) -> (u64, Vec<u8>) {
    let store = store.as_context();
    if zone != Zone::Link {
        let (offset, bytes) = self::zone(store, ordinal, zone);
        return (offset, bytes.to_vec());
    }
    let (offset, words, size) = zone_range(&store.0.inner, ordinal, zone);
    // SAFETY: the words are in the link zone, which is mapped, aligned and of whole words.
    // Other threads write one of them, the interrupt word, and they do so atomically.
    let word = |at| unsafe { AtomicU32::from_ptr(words.wrapping_add(at).cast()) };
    let words = (0..size).step_by(4).map(|at| word(at).load(Ordering::Relaxed));
    (offset, words.flat_map(u32::to_ne_bytes).collect())
}

/// As [`zone_bytes`], without a copy.
///
/// # Panics
/// As [`zone_bytes`]; of the link zone, because other threads write to it when they
/// interrupt.
pub fn zone<'a, T: 'static>(
    store: impl Into<StoreContext<'a, T>>,
    ordinal: u32,
    zone: Zone,
) -> (u64, &'a [u8]) {
    assert!(zone != Zone::Link, "other threads write to the link zone");
    let (offset, start, size) = zone_range(&store.into().0.inner, ordinal, zone);
    // SAFETY: `zone_range` gives a part of the slot that is mapped; no zone but the link is
    // written while the store is borrowed.
    (offset, unsafe { std::slice::from_raw_parts(start, size) })
}

/// Where a zone lies: its slot offset, the address of its first byte, and its size. All of
/// it is readable, as the store is whole.
///
/// # Panics
/// As [`zone_bytes`].
fn zone_range(inner: &StoreGroup, ordinal: u32, zone: Zone) -> (u64, *mut u8, usize) {
    assert_whole(inner);
    let instance = inner.instance(ordinal);
    let layout = instance.module.layout();
    let range = match zone {
        Zone::Stack => match &inner.suspended {
            Some(suspended) if suspended.stack_owner == ordinal => {
                let size = saved(inner.instance(suspended.ordinal), save::SP);
                layout.stack.end - size..layout.stack.end
            }
            _ => layout.stack.end..layout.stack.end,
        },
        Zone::Link => layout.link.clone(),
        Zone::Exceptions => layout.exceptions.clone(),
        Zone::Tables => layout.tables.clone(),
        Zone::State => layout.state.clone(),
        Zone::Memory(own) => match layout.memories.get(own as usize) {
            Some(memory) => {
                let start = layout.base + memory.offset;
                start..start + instance.slot.memory_size(own as usize)
            }
            None => layout.base..layout.base,
        },
    };
    let start = instance.slot.start().wrapping_add(range.start as usize);
    let addresses = start.addr()..start.addr() + (range.end - range.start) as usize;
    instance.slot.wait_at(addresses).unwrap_or_else(|absent| panic!("{absent}"));
    (range.start, start, (range.end - range.start) as usize)
}

/// Pages of a store whose reset has failed may not be mapped.
fn assert_whole(store: &StoreGroup) {
    assert!(!store.is_broken(), "{}", UsageError::ResetIncomplete);
}

/// Where the instructions between host and guest lie: host addresses that are the
/// same for every store.
pub fn thunks() -> Range<usize> {
    let thunks = enter::thunks();
    thunks.start..thunks.end
}

/// Overwrites bytes from `offset`, a slot offset, of the stack on which a store's
/// guest is suspended.
///
/// # Panics
/// If no guest is suspended, or the bytes are not in the part of the stack in use.
///
/// # Safety
/// The guest never reads these bytes.
pub unsafe fn overwrite_stack(mut store: impl AsContextMut, offset: u64, bytes: &[u8]) {
    let inner = &mut store.as_context_mut().0.inner;
    inner.note_writer();
    let suspended = inner.suspended.as_ref().expect("a guest is suspended");
    let owner = inner.instance(suspended.stack_owner);
    let top = owner.module.layout().stack.end;
    let in_use = top - saved(inner.instance(suspended.ordinal), save::SP)..top;
    let end = offset + bytes.len() as u64;
    assert!(in_use.start <= offset && end <= in_use.end, "the bytes are in the stack in use");
    let place = owner.slot.start().wrapping_add(offset as usize);
    // SAFETY: the bytes are in the stack zone, and nothing else uses it while the
    // store is borrowed; by this function's contract the guest never reads them.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len()) };
}

/// All words of the suspended guest's stack that are addresses, innermost first:
/// the chain of its frames.
///
/// # Errors
/// If the guest is not suspended, or its chain of frames is broken.
pub fn frame_words(store: impl AsContext) -> Result<Vec<FrameWord>> {
    let inner = &store.as_context().0.inner;
    let suspended = inner.suspended.as_ref().ok_or(UsageError::NotSuspended)?;
    Ok(chain(inner, suspended)?.into_iter().map(|(word, _)| word).collect())
}

/// Copies everything in `source`, a suspended guest included, into `target`, which
/// must be empty: the instances get other slots, and, with `other_code`, other
/// addresses for their code. Handles for the copies are had from [`instance`].
///
/// # Errors
/// If `target` is not empty or of another engine, a guest of either store runs,
/// the last reset of `source` has failed, the chain of frames is broken, or the system refuses address space. `target` is
/// empty then.
pub fn copy_to<T: 'static>(
    source: &Store<T>,
    target: &mut Store<T>,
    other_code: bool,
) -> Result<()> {
    let source = &source.as_context().0.inner;
    let target = &mut target.as_context_mut().0.inner;
    if !target.instances.is_empty() || !target.host_functions().is_empty() {
        return Err(UsageError::TargetNotEmpty.into());
    }
    if !Engine::same(&source.engine, &target.engine) {
        return Err(UsageError::WrongEngine { what: "store" }.into());
    }
    if source.activation.is_active() || target.activation.is_active() {
        return Err(UsageError::Nested.into());
    }
    source.check_whole()?;
    // What can fail comes first.
    let words = match &source.suspended {
        Some(suspended) => chain(source, suspended)?,
        None => Vec::new(),
    };
    let mut copies: Vec<(usize, Module)> = Vec::new();
    let mut slots = Vec::new();
    for instance in &source.instances {
        let code = instance.module.code_memory().start();
        let known = copies.iter().find(|(of, _)| *of == code && other_code);
        let module = match known {
            Some((_, copy)) if Module::same(copy, &instance.module) => copy.clone(),
            _ if other_code => {
                let copy = instance.module.clone_code()?;
                copies.push((code, copy.clone()));
                copy
            }
            _ => instance.module.clone(),
        };
        let sizes = source.present_sizes(source.ordinal_of_instance(instance));
        // The copies are read by the host.
        instance.slot.wait_at(instance.slot.bounds().slot())?;
        let mut slot = Slot::new(module.layout(), instance.slot.image(), &sizes)?;
        // It is about to be filled behind its back.
        slot.note_external_writer(ExternalWriter::UntilReset);
        slots.push((module, slot));
    }

    for function in source.host_functions() {
        target.add_host_function(Arc::clone(function));
    }
    for ((module, slot), instance) in slots.into_iter().zip(&source.instances) {
        let (imports, plan) = (instance.imports.clone(), Arc::clone(&instance.plan));
        let ordinal = target.add_instance(module, slot, imports, plan);
        let copy = target.instance_mut(ordinal);
        copy.filled_otherwise = true;
        copy.initial_word = instance.initial_word;
        copy_zones(instance, target.instance(ordinal));
    }
    target.copied = Some(Copied {
        source: source.id,
        instances: source.instances.len() as u32,
        host_functions: source.host_functions().len() as u32,
    });
    target.references = source.references.clone();
    target.limits = source.limits;
    target.usage = source.usage;
    target.suspended = source.suspended.clone();
    target.update_due();
    if let Some(suspended) = &source.suspended {
        copy_stack(source, target, suspended, &words);
    }
    Ok(())
}

/// The instance of `target`, a [copy](copy_to) of `source`, that corresponds to
/// one of `source`.
///
/// # Errors
/// If the instance is not of `source`, `target` is no copy of it, or the instance was made
/// after the copy.
pub fn instance_in_copy<T: 'static>(
    instance: Instance,
    source: &Store<T>,
    target: &Store<T>,
) -> Result<Instance> {
    let (source, target) = (&source.as_context().0.inner, &target.as_context().0.inner);
    let ordinal = Copied::of_store(target, source.id)?.instance(instance.ordinal(source)?)?;
    Ok(Instance::from_ordinal(target, ordinal))
}

/// A linker that defines in `target`, a [copy](copy_to) of `source`, what
/// `linker` defines in `source`.
///
/// # Errors
/// If `target` is no copy of `source`, or something that `linker` defines belongs to
/// neither `source` nor any store, or was made after the copy.
pub fn linker_in_copy<T: 'static>(
    linker: &Linker<T>,
    source: &Store<T>,
    target: &Store<T>,
) -> Result<Linker<T>> {
    let (source, target) = (&source.as_context().0.inner, &target.as_context().0.inner);
    Copied::of_store(target, source.id)?;
    linker.map_externs(|value| value.counterpart(target))
}
