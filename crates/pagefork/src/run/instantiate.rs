//! Making instances, in the order that the specification gives: imports are
//! matched, the slot is mapped from its image, segments for imported tables and
//! memories are applied, the start function runs.

use std::sync::Arc;

use pagefork_compiler::SpawnStep;
use pagefork_layout::module::{ModuleInfo, SegmentMode, ValType};
use pagefork_layout::reference::{FuncRef, HOST_ORDINAL};
use pagefork_pages::{Slot, Strategies};

use crate::base::cell::Cell;
use crate::base::error::{LimitError, LimitSource, Result, UsageError};
use crate::base::trace::span;
use crate::base::trap::{Trap, TrapCode};
use crate::code::engine::Engine;
use crate::code::module::{Module, SpawnPlan};
use crate::code::pool::{self, Home, Pooled};
use crate::run::enter::{self, CallOutcome};
#[cfg(feature = "testing")]
use crate::run::poison;
use crate::run::{freeze, limiter, suspend};
use crate::store::group::{Entity, Imports, StoreGroup};
use crate::store::handle::{CallTarget, Func};
use crate::store::limits::{self, Usage};

/// An instance that is not started yet.
pub(crate) struct NewInstance {
    pub(crate) ordinal: u32,
    is_started: bool,
}

/// Makes an instance with imports that are known to be right, in a slot with these
/// strategies, or the engine's, and starts it. Returns its ordinal.
///
/// # Safety
/// `store` is exclusively the caller's, with the provenance of the whole store.
pub(crate) unsafe fn instantiate(
    store: *mut StoreGroup,
    module: &Module,
    imports: Imports,
    strategies: Option<&Strategies>,
) -> Result<u32> {
    span!(DEBUG, "instantiate", module = module.name());
    // SAFETY: by this function's contract, which is that of both.
    unsafe {
        let made = make(store, module, imports, strategies)?;
        call_start(store, &made)?;
        Ok(made.ordinal)
    }
}

/// As [`instantiate`], but for starting it: that is the next thing to do.
///
/// # Safety
/// As [`instantiate`].
pub(crate) unsafe fn make(
    store: *mut StoreGroup,
    module: &Module,
    imports: Imports,
    strategies: Option<&Strategies>,
) -> Result<NewInstance> {
    // SAFETY: by this function's contract the store is ours; this borrow ends here.
    let inner = unsafe { &*store };
    inner.check_usable()?;
    let usage = inner.usage;
    // SAFETY: by this function's contract, which is the same.
    let ordinal = unsafe { spawn(store, module, imports, strategies)? };
    // SAFETY: by this function's contract the store is ours; this borrow ends before a guest
    // is entered.
    let inner = unsafe { &mut *store };
    let plan = Arc::clone(&inner.instance(ordinal).plan);
    let mut known_outside = false;
    if let Err(code) = apply_steps(inner, ordinal, &plan.steps, &mut known_outside) {
        if !known_outside {
            inner.usage = usage;
            inner.remove_latest_instance();
        }
        return Err(Trap::without_backtrace(code).into());
    }
    // From here on the instance stays, even after an error: what it runs can make its functions
    // known.
    Ok(NewInstance { ordinal, is_started: false })
}

impl NewInstance {
    /// What goes on where it was captured.
    pub(crate) fn started(ordinal: u32) -> Self {
        Self { ordinal, is_started: true }
    }

    /// Its start function, if it has one that is to be called.
    #[inline]
    pub(crate) fn start(&self, store: &StoreGroup) -> Option<CallTarget> {
        if self.is_started {
            return None;
        }
        let start = store.instance(self.ordinal).module.info().start?;
        let function = Func::from_reference(store, store.function(self.ordinal, start));
        Some(function.expect("a definition is not null").entry(store))
    }
}

/// Takes the slot of a store that was parked over for a tenant, and audits it if that is
/// wanted: before anybody has a handle, as at any reset. Who has one that interrupts may
/// write to the link zone at any time.
///
/// # Errors
/// If the system refuses something.
pub(crate) fn take_over_parked(store: &mut StoreGroup, tenant: u64) -> Result<()> {
    #[cfg(feature = "testing")]
    if store.engine.config().poison {
        for instance in &mut store.instances {
            poison::poison_and_reset(&mut instance.slot)?;
        }
    }
    let number = store.home_number().unwrap_or(0);
    let owner = pool::owner(number, tenant);
    for instance in &mut store.instances {
        instance.slot.hand_to(owner);
    }
    // Also of slots that are added.
    store.owner = Some(owner);
    Ok(())
}

/// Makes what is in a store that was parked as new: the one instance, or what was captured, of
/// which the instance `main` is returned. Starting it is the next thing to do.
///
/// # Safety
/// As [`instantiate`].
pub(crate) unsafe fn make_again(store: *mut StoreGroup, main: u32) -> Result<NewInstance> {
    // SAFETY: by this function's contract the store is ours; this borrow ends before a guest
    // is entered.
    let inner = unsafe { &mut *store };
    inner.write_link(1);
    if let Some(origin) = inner.origin.clone() {
        for ordinal in 2..inner.next_ordinal() {
            inner.write_link(ordinal);
        }
        freeze::thaw(inner, &origin);
        // SAFETY: by this function's contract, which is the same.
        unsafe { freeze::tell_restored(store, &origin)? };
        return Ok(NewInstance::started(main));
    }
    fill(inner, 1)
}

/// Does what is left to do for an instance whose slot is as its image.
///
/// # Safety
/// As [`instantiate`].
pub(crate) unsafe fn start(store: *mut StoreGroup, ordinal: u32) -> Result<()> {
    // SAFETY: by this function's contract the store is ours; its borrow ends before a guest is
    // entered.
    unsafe {
        let made = fill(&mut *store, ordinal)?;
        call_start(store, &made)
    }
}

/// Does what is left to do for an instance whose slot is as its image, but for starting it.
fn fill(store: &mut StoreGroup, ordinal: u32) -> Result<NewInstance> {
    let instance = store.instance(ordinal);
    if !instance.plan.steps.is_empty() {
        let plan = Arc::clone(&instance.plan);
        apply_steps(store, ordinal, &plan.steps, &mut false).map_err(Trap::without_backtrace)?;
    }
    Ok(NewInstance { ordinal, is_started: false })
}

/// What a module imports that imports `count` host functions, the first of a store.
pub(crate) fn host_imports(count: usize) -> Imports {
    let functions = (0..count as u32).map(|index| FuncRef::new(HOST_ORDINAL, index)).collect();
    Imports { functions, ..Imports::default() }
}

/// # Errors
/// If the module is of another engine than the store.
pub(crate) fn check_engine(store: &StoreGroup, module: &Module) -> Result<()> {
    match Engine::same(&store.engine, module.engine()) {
        true => Ok(()),
        false => Err(UsageError::WrongEngine { what: "module" }.into()),
    }
}

/// Makes an instance of a module without code, and gives the first place that it defines.
///
/// # Errors
/// If a limit is met or the system refuses address space.
///
/// # Safety
/// As [`instantiate`].
pub(crate) unsafe fn spawn_alone(store: *mut StoreGroup, info: ModuleInfo) -> Result<Entity> {
    // SAFETY: this function's contract is that of `spawn`.
    let ordinal = unsafe {
        let module = Module::without_code(&(*store).engine, info)?;
        spawn(store, &module, Imports::default(), None)?
    };
    Ok(Entity { ordinal, own_index: 0 })
}

/// Maps the slot and makes the instance part of the store.
///
/// # Safety
/// As [`instantiate`].
unsafe fn spawn(
    whole: *mut StoreGroup,
    module: &Module,
    imports: Imports,
    strategies: Option<&Strategies>,
) -> Result<u32> {
    // SAFETY: by this function's contract the store is ours; this borrow ends before the
    // embedder's limiter is asked.
    let store = unsafe { &mut *whole };
    store.check_whole()?;
    let (before, own) = (store.usage, own_usage(module.info()));
    let usage = Usage {
        instances: before.instances + own.instances,
        memories: before.memories + own.memories,
        tables: before.tables + own.tables,
    };
    usage.check(&store.limits)?;
    let plan = module.spawn_plan(|global| {
        let entity = imports.globals[global as usize];
        let ty = store.global_type(entity).content;
        (!ty.is_ref()).then(|| store.global_cell(entity).u128())
    })?;
    check_sizes(store, module, &plan, store.memory_total_if_limited())?;
    // SAFETY: by this function's contract, which is the same.
    unsafe { limiter::allow_new(whole, module.info(), &usage)? };
    // SAFETY: by this function's contract the store is ours.
    let store = unsafe { &mut *whole };
    let own_way = || store.engine.default_strategies();
    let parked = plan.home.as_ref().filter(|_| strategies.is_none()).and_then(Home::take);
    let mut slot = match parked {
        Some(Pooled::Slot(slot)) => *slot,
        _ => {
            let strategies = strategies.unwrap_or_else(own_way);
            let (layout, budget) = (module.layout(), store.engine.budget());
            Slot::within(layout, &plan.image, &plan.memory_sizes, strategies, budget)?
        }
    };
    #[cfg(feature = "testing")]
    if store.engine.config().poison {
        poison::poison_and_reset(&mut slot)?;
    }
    slot.hand_to(store.owner.unwrap_or_else(|| plan.owner()));
    let ordinal = store.add_instance(module.clone(), slot, imports, plan);
    store.instance_mut(ordinal).own_strategies = strategies.is_some();
    store.usage = usage;
    Ok(ordinal)
}

/// # Errors
/// If the tables or memories that an instance starts with are beyond the store's limits,
/// where other memories already have `memory_total` bytes, or beyond what its slot has room for.
fn check_sizes(
    store: &StoreGroup,
    module: &Module,
    plan: &SpawnPlan,
    mut memory_total: u64,
) -> Result<()> {
    let (info, layout, limits) = (module.info(), module.layout(), &store.limits);
    let tables = &info.tables[info.imported_tables as usize..];
    for (table, capacity) in tables.iter().zip(&layout.table_capacities) {
        limits::check("elements of a table", table.minimum, limits.table_elements)?;
        let what = "elements of a table";
        limits::check_of(LimitSource::Slot, what, table.minimum, *capacity)?;
    }
    for (size, entity) in plan.memory_sizes.iter().zip(&layout.memories) {
        limits::check("bytes of a memory", size.initial, limits.memory_size)?;
        let what = "bytes of a memory";
        limits::check_of(LimitSource::Slot, what, size.initial, entity.reservation)?;
        memory_total = memory_total.saturating_add(size.initial);
    }
    Ok(limits::check(LimitError::MEMORY_TOTAL, memory_total, limits.memory_total)?)
}

/// # Errors
/// If the one instance that a store has, or none, starts with more than the store's limits.
pub(crate) fn check_limits(store: &StoreGroup) -> Result<()> {
    store.usage.check(&store.limits)?;
    let mut instances = store.instances.iter();
    instances.try_for_each(|instance| check_sizes(store, &instance.module, &instance.plan, 0))
}

impl StoreGroup {
    /// Takes the latest instance back, with its part of what the store has. Nothing may refer to
    /// it.
    pub(crate) fn forget_latest_instance(&mut self) {
        let latest = self.instances.last().expect("there is an instance");
        let own = own_usage(latest.module.info());
        self.usage.instances -= own.instances;
        self.usage.memories -= own.memories;
        self.usage.tables -= own.tables;
        self.remove_latest_instance();
    }
}

pub(crate) fn own_usage(info: &ModuleInfo) -> Usage {
    Usage {
        instances: 1,
        memories: info.memories.len() as u64 - u64::from(info.imported_memories),
        tables: info.tables.len() as u64 - u64::from(info.imported_tables),
    }
}

/// Does what concerns other instances. `known_outside` is set once another
/// instance may refer to this one.
fn apply_steps(
    store: &mut StoreGroup,
    ordinal: u32,
    steps: &[SpawnStep],
    known_outside: &mut bool,
) -> Result<(), TrapCode> {
    if !steps.is_empty() {
        store.note_writer();
    }
    for step in steps {
        let module = store.instance(ordinal).module.clone();
        let info = module.info();
        match *step {
            SpawnStep::Global { global } => {
                let own_index = global - info.imported_globals;
                let entity = Entity { ordinal, own_index };
                let ty = info.globals[global as usize].content;
                let word = store.constant(ordinal, &info.global_inits[own_index as usize], ty);
                store.set_global_word(entity, word);
            }
            SpawnStep::Table { table } => {
                let entity = store.table(ordinal, table);
                let ty = info.tables[table as usize];
                let init = info.table_inits[entity.own_index as usize].as_ref();
                let init = init.expect("the step is about an initial value");
                let word = store.constant(ordinal, init, ValType::Ref(ty.element));
                store.table_fill(entity, 0, store.stored(entity, word, ordinal), ty.minimum)?;
            }
            SpawnStep::Elements { segment, offset } => {
                let elements = &info.elements[segment as usize];
                let SegmentMode::Active { target, .. } = &elements.mode else {
                    unreachable!("only active segments are applied at spawn")
                };
                let table = store.table(ordinal, *target);
                let count = elements.items.len() as u64;
                store.table_init(ordinal, table, elements, offset, 0, count)?;
                *known_outside |= table.ordinal != ordinal
                    && ValType::Ref(elements.element).has_owner()
                    && count > 0;
            }
            SpawnStep::Data { segment, offset } => {
                let data = info.data.get(segment as usize).map(|data| data.mode);
                let Some(SegmentMode::Active { target, .. }) = data else {
                    unreachable!("only active segments are applied at spawn")
                };
                let memory = store.memory(ordinal, target);
                let bytes = module.data_segment(segment);
                store.memory_init(memory, bytes, offset, 0, bytes.len() as u64)?;
            }
            SpawnStep::Trap(code) => return Err(code),
        }
    }
    Ok(())
}

/// Runs the start function of an instance that was just made.
///
/// # Safety
/// As [`instantiate`].
pub(crate) unsafe fn call_start(store: *mut StoreGroup, made: &NewInstance) -> Result<()> {
    // SAFETY: by this function's contract the store is ours; its borrow ends here.
    match &made.start(unsafe { &*store }) {
        None => Ok(()),
        // SAFETY: a start function takes no arguments; what is made again beside a suspended guest
        // starts when nothing is entered.
        Some(CallTarget::Guest(target)) => match unsafe {
            match (*store).suspended.is_some() {
                true => suspend::call_beside(store, target)?,
                false => enter::call(store, target)?,
            }
        } {
            CallOutcome::Finished => Ok(()),
            CallOutcome::Suspended => Err(UsageError::Suspended.into()),
        },
        Some(CallTarget::Host(index)) => {
            let mut no_cells: [Cell; 0] = [];
            // SAFETY: by this function's contract the store is ours; the function takes no
            // arguments and has no results.
            unsafe {
                let base = (*store).instance(made.ordinal).base();
                let host = (*store).host_function_ptr(*index);
                ((*host).call)(store, no_cells.as_mut_ptr(), base)
            }
        }
    }
}
