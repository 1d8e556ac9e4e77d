//! Capturing stores, suspended guests included, and making others as they were.
//!
//! # Safety
//!
//! As in `group`; a suspended guest's frames lie as in `suspend`.

use std::any::Any;
use std::ptr;
use std::sync::{Arc, OnceLock};

use pagefork_layout::exception::UNIT;
use pagefork_layout::module::{HeapType, Item, ModuleInfo};
use pagefork_layout::reference::{FuncRef, HOST_ORDINAL};
use pagefork_layout::state::save;
use pagefork_pages::{CodeBounds, GrowthKind, Strategies};

use crate::base::error::{Result, UsageError};
use crate::code::module::SpawnPlan;
use crate::run::ahead::{FilledSlots, SlotSupply};
use crate::run::contents::{CapturedFor, make_image};
use crate::run::limiter;
use crate::run::suspend::{call_beside, chain, saved};
use crate::store::frozen::{Frozen, FrozenCall, FrozenInstance};
use crate::store::group::{StoreGroup, StoreId};
use crate::store::limits::Usage;
use crate::store::suspended::{Copied, FrameWord, FrameWordKind, Suspended};

/// A function of this name, without parameters and results, is called in what was restored.
pub(crate) const AFTER_RESTORE: &str = "pagefork_after_restore";

/// What stands for a host value in the stores that are spawned: the embedder's to say.
pub(crate) type SaveReference<'a> =
    dyn FnMut(&(dyn Any + Send + Sync)) -> Result<Arc<dyn Any + Send + Sync>> + 'a;

/// What a store is now. The store stays as it is, but for what slots know of their last snapshots.
///
/// # Errors
/// [`UsageError::NoSnapshot`] if it holds what means nothing in another store; what `save` fails
/// with; if the system refuses memory.
pub(crate) fn freeze(
    store: &mut StoreGroup,
    save: Option<&mut SaveReference<'_>>,
    mut captured_for: CapturedFor,
) -> Result<Frozen> {
    store.check_whole()?;
    if store.suspended.as_ref().is_some_and(|suspended| suspended.of_task) {
        return Err(UsageError::NoSnapshot("a guest waits in an asynchronous call").into());
    }
    let references = match save {
        Some(save) => store.references.map(save)?,
        None => {
            check_references(store)?;
            Default::default()
        }
    };
    let call =
        store.suspended.as_ref().map(|suspended| freeze_call(store, suspended)).transpose()?;
    let mut referred = Vec::new();
    let mut instances = Vec::with_capacity(store.instances.len());
    for ordinal in 1..store.next_ordinal() {
        store.each_host_function(ordinal, |index| referred.push(index));
        let is_suspended = |call: &FrozenCall| call.suspended.ordinal == ordinal;
        let is_suspended = call.as_ref().is_some_and(is_suspended);
        let image = make_image(store, ordinal, is_suspended, &mut captured_for)?;
        let instance = store.instance(ordinal);
        let sizes = store.present_sizes(ordinal);
        let plan = SpawnPlan {
            image: Arc::clone(&image),
            steps: Vec::new(),
            memory_sizes: sizes.clone(),
            home: None,
        };
        instances.push(FrozenInstance {
            module: instance.module.clone(),
            imports: instance.imports.clone(),
            image,
            sizes,
            plan: Arc::new(plan),
            exceptions: store.exceptions_in_use(ordinal),
            table_lengths: store.table_lengths(ordinal),
        });
    }
    referred.sort_unstable();
    referred.dedup();
    let mut told: Vec<FuncRef> = Vec::new();
    for function in (1..store.next_ordinal()).filter_map(|ordinal| after_restore(store, ordinal)) {
        // Several instances can export the same one.
        if !told.contains(&function) {
            told.push(function);
        }
    }
    Ok(Frozen {
        after_restore: told,
        main: main_instance(store, call.as_ref()),
        instances,
        host_functions: store.host_functions().to_vec(),
        referred,
        references,
        usage: store.usage,
        fuel: store.activation.fuel,
        call,
        store: store.id,
        home: store.home_number(),
        stored: OnceLock::new(),
    })
}

/// The function that an instance exports to be told that it goes on elsewhere.
fn after_restore(store: &StoreGroup, ordinal: u32) -> Option<FuncRef> {
    let module = &store.instance(ordinal).module;
    let Some(Item::Func(index)) = module.export(AFTER_RESTORE) else { return None };
    let function = store.function(ordinal, index);
    let ty = store.function_type(function).0;
    let fits = ty.params.is_empty() && ty.results.is_empty();
    (fits && function.ordinal() != HOST_ORDINAL).then_some(function)
}

/// # Errors
/// If guests hold references to host values, or may: frames cannot be searched for them.
fn check_references(store: &StoreGroup) -> Result<()> {
    let refused = |why| Err(UsageError::NoSnapshot(why).into());
    if store.suspended.is_some() && !store.references.is_empty() {
        return refused(
            "the suspended guest may hold references to values of the host: \
             use `snapshot_with`, which saves them",
        );
    }
    let mut found = false;
    for ordinal in 1..store.next_ordinal() {
        store.each_reference(ordinal, |ty, word| {
            found |= word != 0 && ty.heap.top() == HeapType::Extern;
        });
    }
    match found {
        true => refused(
            "a guest holds a reference to a value of the host: use `snapshot_with`, which saves it",
        ),
        false => Ok(()),
    }
}

/// # Errors
/// If the chain of frames is broken.
fn freeze_call(store: &StoreGroup, suspended: &Suspended) -> Result<FrozenCall> {
    let owner = store.instance(suspended.stack_owner);
    let size = saved(store.instance(suspended.ordinal), save::SP) as usize;
    let top = owner.slot.stack_top();
    let end = owner.module.layout().stack.end;
    let frame_pointer = |word: &FrameWord| match word.kind {
        FrameWordKind::FramePointer(Some(to)) => Some(((end - word.offset) as u32, to as u32)),
        _ => None,
    };
    let words = chain(store, suspended)?;
    let frame_pointers = words.iter().filter_map(|(word, _)| frame_pointer(word)).collect();
    let frame_words = words.iter().map(|(word, _)| ((end - word.offset) as u32, word.kind));
    let frame_words = frame_words.collect();
    // SAFETY: the part in use is in the stack zone, and no guest is entered.
    let stack = unsafe { std::slice::from_raw_parts(top.wrapping_sub(size), size) };
    let (suspended, stack) = (suspended.clone(), stack.into());
    Ok(FrozenCall { suspended, stack, frame_pointers, frame_words })
}

/// The instance whose function was called; else the one that was made last and has code.
fn main_instance(store: &StoreGroup, call: Option<&FrozenCall>) -> u32 {
    let called = call.map(|call| call.suspended.function.ordinal());
    called
        .unwrap_or_else(|| find_main(store.instances.iter().map(|instance| instance.module.info())))
}

/// Of instances whose modules declare this, by ordinal, the one that spawning returns if no guest is
/// suspended; 0 if there are none.
pub(crate) fn find_main<'a>(
    instances: impl ExactSizeIterator<Item = &'a ModuleInfo> + DoubleEndedIterator,
) -> u32 {
    let last = instances.len() as u32;
    let mut numbered = (1..=last).rev().zip(instances.rev());
    numbered.find(|(_, info)| !info.functions.is_empty()).map_or(last, |(ordinal, _)| ordinal)
}

/// Fills an empty store; slots that are filled already are taken as far as they fit.
///
/// # Errors
/// If the store may not have all of it, or the system refuses something: the store is empty then.
///
/// # Safety
/// `store` is exclusively the caller's, with the provenance of the whole store, and its data are
/// of the type that the host functions were made for.
pub(crate) unsafe fn spawn(
    store: *mut StoreGroup,
    frozen: &Arc<Frozen>,
    strategies: Option<&Strategies>,
    filled: Option<FilledSlots>,
) -> Result<()> {
    // SAFETY: by this function's contract the store is ours; this borrow ends here.
    let inner = unsafe { &*store };
    // Guests hold handles of references, which the store's own must not be taken for.
    if !inner.instances.is_empty()
        || !inner.host_functions.is_empty()
        || !inner.references.is_empty()
    {
        return Err(UsageError::TargetNotEmpty.into());
    }
    let fuel = inner.activation.fuel;
    // SAFETY: by this function's contract the store is ours.
    let result = unsafe { try_spawn(store, frozen, strategies, filled) };
    if result.is_err() {
        // SAFETY: by this function's contract the store is ours.
        let inner = unsafe { &mut *store };
        while !inner.instances.is_empty() {
            inner.remove_latest_instance();
        }
        inner.host_functions.clear();
        inner.references.clear();
        (inner.usage, inner.origin, inner.copied) = (Usage::default(), None, None);
        (inner.suspended, inner.activation.fuel) = (None, fuel);
        // Host functions that guests have called already can have handles of what is gone.
        inner.id = StoreId::next();
        inner.update_due();
    }
    result
}

/// # Safety
/// As of [`spawn`].
unsafe fn try_spawn(
    store: *mut StoreGroup,
    frozen: &Arc<Frozen>,
    strategies: Option<&Strategies>,
    filled: Option<FilledSlots>,
) -> Result<()> {
    // SAFETY: by this function's contract the store is ours; this borrow ends before the
    // embedder's limiter is asked.
    let inner = unsafe { &mut *store };
    frozen.check_limits(&inner.limits)?;
    let strategies =
        strategies_for(frozen, strategies.unwrap_or(inner.engine.default_strategies()))?;
    inner.host_functions.extend(frozen.host_functions.iter().cloned());
    let mut supply = SlotSupply::new(filled);
    for instance in &frozen.instances {
        let mut slot = supply.slot(&inner.engine, instance, &strategies)?;
        slot.hand_to(inner.owner.unwrap_or_else(|| instance.plan.owner()));
        let (module, imports) = (instance.module.clone(), instance.imports.clone());
        let ordinal = inner.add_instance(module, slot, imports, Arc::clone(&instance.plan));
        inner.instance_mut(ordinal).own_strategies = true;
    }
    inner.usage = frozen.usage;
    inner.origin = Some(Arc::clone(frozen));
    inner.copied = Some(Copied {
        source: frozen.store,
        instances: frozen.instances.len() as u32,
        host_functions: frozen.host_functions.len() as u32,
    });
    thaw(inner, frozen);
    // SAFETY: by this function's contract the store is ours.
    unsafe {
        limiter::allow_present(store)?;
        tell_restored(store, frozen)
    }
}

/// Calls what guests export to be told that they go on elsewhere.
///
/// # Errors
/// What ends the call.
///
/// # Panics
/// If a host function panics that it calls.
///
/// # Safety
/// As of [`spawn`]; the store is as the captured one was, and no guest of it is entered.
pub(crate) unsafe fn tell_restored(store: *mut StoreGroup, frozen: &Frozen) -> Result<()> {
    for function in &frozen.after_restore {
        // SAFETY: by this function's contract the store is ours; the functions are those of its
        // instances and take no arguments.
        unsafe {
            let target = (*store).target(*function);
            call_beside(store, &target)?;
        }
    }
    Ok(())
}

/// A body of a function that relies on guards must never go on where more of a memory is accessible
/// than it has: functions choose their bodies when they are entered, and these were.
pub(crate) fn strategies_for(frozen: &Frozen, strategies: &Strategies) -> Result<Strategies> {
    let mut config = strategies.config();
    if frozen.call.is_some() && config.code == CodeBounds::Dual && !config.growth.is_exact() {
        config.growth = GrowthKind::Mprotect;
    }
    Ok(config.check()?)
}

/// Does what is left to do in a store whose slots are as the images.
pub(crate) fn thaw(store: &mut StoreGroup, frozen: &Frozen) {
    store.note_writer();
    for (ordinal, instance) in (1..).zip(&frozen.instances) {
        store.put_exceptions(ordinal, &instance.exceptions);
    }
    if let Some(call) = &frozen.call {
        let top = store.instance(call.suspended.stack_owner).slot.stack_top();
        let (at, size) = (top.wrapping_sub(call.stack.len()), call.stack.len());
        // SAFETY: what was in use of a stack zone fits into one of the same size, which no guest
        // uses; the words are in it.
        unsafe {
            ptr::copy_nonoverlapping(call.stack.as_ptr(), at, size);
            for (word, to) in &call.frame_pointers {
                let to = top.expose_provenance() - *to as usize;
                top.wrapping_sub(*word as usize).cast::<usize>().write(to);
            }
        }
        store.suspended = Some(call.suspended.clone());
    }
    // What was made later may have references to others besides.
    if store.references.is_empty() {
        store.references.replace_by(&frozen.references);
    }
    store.activation.fuel = frozen.fuel;
    store.update_due();
}

impl StoreGroup {
    /// The part in use of an instance's exceptions zone.
    fn exceptions_in_use(&self, ordinal: u32) -> Box<[u8]> {
        let zone = &self.instance(ordinal).module.layout().exceptions;
        if zone.is_empty() {
            return Box::default();
        }
        let (start, units) = self.exceptions(ordinal).in_use();
        let size = (u64::from(units) * UNIT) as usize;
        // SAFETY: the zone is accessible in full, and not written while the store is borrowed.
        unsafe { std::slice::from_raw_parts(start, size) }.into()
    }

    /// Fills an exceptions zone that is all zeros.
    fn put_exceptions(&self, ordinal: u32, bytes: &[u8]) {
        if !bytes.is_empty() {
            let (start, _) = self.exceptions(ordinal).in_use();
            // SAFETY: the zone is accessible in full, and as large as that which the bytes are of.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), start, bytes.len()) };
        }
    }
}
