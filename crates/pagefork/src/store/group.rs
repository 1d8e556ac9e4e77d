//! A store without the embedder's data: the group of slots that its instances
//! live in, and what the host keeps about them.
//!
//! # Safety
//!
//! Raw words of slots are read and written through the functions here. What makes
//! that sound: a slot in `instances` is mapped, its zones below the base are
//! readable and writable in full, and code that holds `&mut StoreGroup`, or runs as
//! a host call of the store's guest, has exclusive access to all of it.

use std::cell::Cell as StdCell;
use std::num::NonZeroU64;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};
use std::time::Duration;

use pagefork_layout::link;
use pagefork_layout::module::FuncType;
use pagefork_layout::reference::{FuncRef, HOST_ORDINAL};
use pagefork_layout::state;
use pagefork_layout::state::save::Suspension;
use pagefork_layout::trap::TrapCode;
use pagefork_pages::{ExternalWriter, Owner, Slot, SlotBounds};

use crate::base::cell::Cell;
use crate::base::error::{Error, Result, UsageError};
use crate::base::trap::Trap;
use crate::code::engine::Engine;
use crate::code::module::{Module, SpawnPlan};
use crate::code::pool::Home;
use crate::code::types::TypeId;
use crate::store::absent::StoreAbsence;
use crate::store::activation::Activation;
use crate::store::buffers::Buffers;
use crate::store::call_hook::HookCallback;
use crate::store::called::CalledFunctions;
use crate::store::epoch::{EpochCallback, StoreEpochs};
use crate::store::foreign::{ForeignCaller, ForeignFns, Raised};
use crate::store::frame::{DirectThunks, Target, Thunks};
use crate::store::frozen::Frozen;
use crate::store::function_import::FunctionImport;
use crate::store::host_func::HostFunc;
use crate::store::interrupt::{AtEnd, Deadline, Due, InterruptHandle, Interrupts};
use crate::store::limiter::AskLimiter;
use crate::store::limits::{StoreLimits, Usage};
use crate::store::pending::PendingCall;
use crate::store::references::References;
use crate::store::suspended::{Copied, Suspended};
use crate::store::thread;
use crate::store::turns::Turns;
use crate::store::value::Val;

/// Tells stores apart: no two of a process are the same.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct StoreId(NonZeroU64);

impl StoreId {
    /// Threads take numbers by the block, so that they do not wait for each other.
    pub(crate) fn next() -> Self {
        const BLOCK: u64 = 1 << 16;
        static BLOCKS: AtomicU64 = AtomicU64::new(0);
        thread_local! {
            static NEXT: StdCell<u64> = const { StdCell::new(0) };
        }
        let mut id = NEXT.get();
        if id.is_multiple_of(BLOCK) {
            // No number is a multiple, and so none is 0.
            id = BLOCKS.fetch_add(1, Ordering::Relaxed) * BLOCK + 1;
        }
        NEXT.set(id + 1);
        Self(NonZeroU64::new(id).expect("there are no 2^64 stores"))
    }

    /// The number that only this store has.
    pub(crate) fn number(self) -> u64 {
        self.0.get()
    }
}

/// Invariant of the representation: it starts with the activation.
#[repr(C)]
pub(crate) struct StoreGroup {
    pub(crate) activation: Activation,
    pub(super) direct_thunks: DirectThunks,
    /// Whether nothing of the host may be in registers after direct host calls.
    pub(super) clears_registers: bool,
    pub(crate) id: StoreId,
    pub(crate) engine: Engine,
    /// By ordinal, less one.
    pub(crate) instances: Vec<InstanceData>,
    /// The base of each instance by ordinal; entry 0 is unused.
    bases: Vec<usize>,
    pub(crate) host_functions: Vec<Arc<HostFunc>>,
    /// How functions of C's know the store, if instances have been given some.
    pub(super) foreign_data: Option<&'static ForeignFns>,
    /// What they know it by now, if all callers of its instances have the same.
    pub(super) foreign_handle: Option<usize>,
    /// What host functions fail with that have not returned yet, the outermost first.
    pub(super) raised: Vec<Raised>,
    pub(crate) references: References,
    pub(crate) interrupts: Arc<Interrupts>,
    pub(crate) limits: StoreLimits,
    pub(crate) epochs: StoreEpochs,
    /// Absent while it runs.
    pub(crate) call_hook: Option<Box<HookCallback>>,
    /// Whether there is one.
    pub(crate) is_hooked: bool,
    /// Who is asked besides.
    pub(crate) limiter: Option<Arc<AskLimiter>>,
    pub(crate) usage: Usage,
    pub(crate) timeout: Option<Duration>,
    pub(crate) suspended: Option<Suspended>,
    /// The host function that the guest waits for, until the task that has called takes it.
    pub(crate) pending: Option<Box<dyn PendingCall>>,
    pub(crate) turns: Turns,
    pub(crate) absence: StoreAbsence,
    /// The store that it was copied from, if it was.
    pub(crate) copied: Option<Copied>,
    /// What its first instances were spawned as, if that is not how their modules start.
    pub(crate) origin: Option<Arc<Frozen>>,
    pub(crate) called: CalledFunctions,
    /// For the values of untyped host functions.
    pub(crate) values: Buffers<Val>,
    /// For values on their way to host functions.
    pub(crate) cells: Buffers<Cell>,
    /// Where the store is parked when it is dropped.
    pub(crate) home: Option<Arc<Home>>,
    /// Whose bytes may be on the stacks of its slots, if that is not the module's.
    pub(crate) owner: Option<Owner>,
    /// After a reset that has failed half-way: who the store was. It has another
    /// identity meanwhile, so that no handle leads to what may not be mapped.
    pub(crate) broken: Option<StoreId>,
    /// How often it has been reset: references to exceptions from before mean nothing.
    pub(crate) resets: u64,
}

// SAFETY: the raw pointers of the activation are used only while the store is
// entered, by the thread that entered it; addresses of slots and code are valid
// on every thread; host functions and host values are `Send` and `Sync`.
unsafe impl Send for StoreGroup {}

// SAFETY: of the fields only the activation and the functions that were called are not `Sync` by
// themselves. The latter are read through `&mut` alone. What is read of the activation
// through `&StoreGroup` are plain words, which are written only through `&mut StoreGroup`
// or while a guest runs, when its entry holds the `&mut`; what is parked in it, which may
// not be `Sync`, is taken through `&mut` alone. The pages of slots are written through `&mut`
// or by guests, too, but for the interrupt words, which are atomic.
unsafe impl Sync for StoreGroup {}

/// The fields that are `Sync` by themselves, all but the activation.
const _: () = {
    const fn sync<T: Sync>() {}
    sync::<(StoreId, Engine, Vec<InstanceData>, Vec<usize>, Vec<Arc<HostFunc>>, References)>();
    sync::<(Arc<Interrupts>, StoreLimits, Usage, Option<Duration>, Option<Suspended>)>();
    sync::<(StoreEpochs, Option<Box<HookCallback>>, Option<Arc<AskLimiter>>, Turns)>();
    sync::<(
        Option<Copied>,
        Buffers<Val>,
        Buffers<Cell>,
        Option<Arc<Home>>,
        Option<Owner>,
        Option<StoreId>,
        u64,
    )>();
    sync::<(Option<Arc<Frozen>>, Vec<Raised>)>();
};

/// What the host keeps about an instance.
pub(crate) struct InstanceData {
    pub(crate) module: Module,
    pub(crate) slot: Slot,
    pub(crate) bounds: SlotBounds,
    /// What its imports are: definitions, never imports of another instance.
    pub(crate) imports: Imports,
    /// What the link zone points to.
    pub(super) function_imports: Box<[FunctionImport]>,
    /// What functions of C's among them are given as their caller.
    pub(super) foreign_callers: Box<[ForeignCaller]>,
    /// What it starts as.
    pub(crate) plan: Arc<SpawnPlan>,
    /// Whether the slot was last filled from something else.
    pub(crate) filled_otherwise: bool,
    /// Whether it is reset otherwise than the engine's slots.
    pub(crate) own_strategies: bool,
    /// Of a global or table that the host made: the reference that it is full of.
    pub(crate) initial_word: u64,
}

/// What an instance imports, each list in the order of its index space.
#[derive(Clone, Default)]
pub(crate) struct Imports {
    pub(crate) functions: Box<[FuncRef]>,
    pub(crate) tables: Box<[Entity]>,
    pub(crate) memories: Box<[Entity]>,
    pub(crate) globals: Box<[Entity]>,
    pub(crate) tags: Box<[Entity]>,
}

/// A table, memory, global or tag: the instance that defines it, and its number among
/// those that this instance defines itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(C)]
pub(crate) struct Entity {
    pub(crate) ordinal: u32,
    pub(crate) own_index: u32,
}

const _: () = assert!(std::mem::offset_of!(StoreGroup, activation) == 0);

impl InstanceData {
    pub(crate) fn base(&self) -> usize {
        self.slot.base().expose_provenance()
    }

    /// Address of the byte at `offset` from the base.
    pub(crate) fn at(&self, offset: i64) -> *mut u8 {
        self.slot.base().wrapping_offset(offset as isize)
    }

    /// Address of a word of the state zone.
    pub(crate) fn word(&self, offset: i32) -> *mut u64 {
        self.at(offset.into()).cast()
    }
}

impl InstanceData {
    /// Parks the slot for the next instance of the module, or drops it.
    fn park(self) {
        self.forget_watch();
        let Self { slot, plan, filled_otherwise, own_strategies, .. } = self;
        if let Some(home) = &plan.home
            && !filled_otherwise
            && !own_strategies
        {
            home.park_slot(slot);
        }
    }
}

impl StoreGroup {
    pub(crate) fn new(engine: &Engine, thunks: &Thunks) -> Self {
        let interrupts = Arc::<Interrupts>::default();
        Self {
            activation: Activation::new(thunks, interrupts.due()),
            direct_thunks: thunks.direct,
            clears_registers: false,
            id: StoreId::next(),
            engine: engine.clone(),
            instances: Vec::new(),
            bases: vec![0],
            host_functions: Vec::new(),
            foreign_data: None,
            foreign_handle: None,
            raised: Vec::new(),
            references: References::default(),
            interrupts,
            limits: StoreLimits::default(),
            epochs: StoreEpochs::default(),
            call_hook: None,
            is_hooked: false,
            limiter: None,
            usage: Usage::default(),
            timeout: None,
            suspended: None,
            pending: None,
            turns: Turns::default(),
            absence: StoreAbsence::none(thunks.bulk),
            copied: None,
            origin: None,
            called: CalledFunctions::default(),
            values: Buffers::default(),
            cells: Buffers::default(),
            home: None,
            owner: None,
            broken: None,
            resets: 0,
        }
    }

    /// The instance with this ordinal.
    pub(crate) fn instance(&self, ordinal: u32) -> &InstanceData {
        &self.instances[ordinal as usize - 1]
    }

    pub(crate) fn instance_mut(&mut self, ordinal: u32) -> &mut InstanceData {
        &mut self.instances[ordinal as usize - 1]
    }

    /// The ordinal that the next instance gets.
    pub(crate) fn next_ordinal(&self) -> u32 {
        self.bases.len() as u32
    }

    /// The ordinal of the instance with this base, 0 for none.
    ///
    /// # Safety
    /// `base` is that of an instance of this store, or 0.
    pub(crate) unsafe fn ordinal_of(&self, base: usize) -> u32 {
        if base == 0 {
            return 0;
        }
        let base = ptr::with_exposed_provenance::<u8>(base);
        // SAFETY: both words are in the instance's slot.
        unsafe {
            let link = base.byte_offset(state::LINK_OFFSET as isize).cast::<i32>().read();
            base.offset(link as isize + link::ORDINAL as isize).cast::<u32>().read()
        }
    }

    /// The instance whose code is at `pc`, and the offset in its text.
    /// Async-signal-safe.
    pub(crate) fn code_at(&self, pc: usize) -> Option<(&InstanceData, u32)> {
        self.instances
            .iter()
            .find_map(|instance| Some((instance, instance.module.code_memory().offset_of(pc)?)))
    }

    /// The ordinal of one of the store's instances.
    pub(crate) fn ordinal_of_instance(&self, instance: &InstanceData) -> u32 {
        let at = self.instances.iter().position(|other| std::ptr::eq(other, instance));
        at.expect("an instance of this store") as u32 + 1
    }

    /// Adds an instance: from here on it can be referred to. Its link zone is
    /// written, its other zones are as the slot has them.
    ///
    /// # Panics
    /// If the instances that it imports from are not of this store.
    pub(crate) fn add_instance(
        &mut self,
        module: Module,
        slot: Slot,
        imports: Imports,
        plan: Arc<SpawnPlan>,
    ) -> u32 {
        let ordinal = self.next_ordinal();
        let bounds = slot.bounds();
        let base = slot.base().expose_provenance();
        let foreign_callers = self.foreign_callers(&imports.functions);
        let function_imports = self.function_imports(&imports.functions, &foreign_callers);
        let mut instance = InstanceData {
            module,
            slot,
            bounds,
            imports,
            function_imports,
            foreign_callers,
            plan,
            filled_otherwise: false,
            own_strategies: false,
            initial_word: 0,
        };
        // The new slot has to learn who writes to it.
        self.activation.writer = 0;
        if self.activation.is_active() {
            // A host function may be called on one thread and make instances on another; the
            // guest that goes on then does not say so.
            instance.slot.note_external_writer(ExternalWriter::UntilReset);
        }
        self.change_instances(|store| {
            if store.instances.is_empty() {
                // Most stores have one instance.
                store.instances.reserve_exact(1);
            }
            store.instances.push(instance);
            store.bases.push(base);
        });
        self.write_link(ordinal);
        self.note_absent_pages_of(ordinal);
        // SAFETY: the slot stays mapped until the word is removed or detached.
        unsafe { self.interrupts.add(interrupt_word(self.instance(ordinal))) };
        self.watch_lost_pages(self.instance(ordinal));
        ordinal
    }

    /// Takes the latest instance back. Nothing may refer to it.
    pub(crate) fn remove_latest_instance(&mut self) {
        let instance = self.instances.last().expect("there is an instance");
        self.interrupts.remove(interrupt_word(instance));
        let mut latest = None;
        self.change_instances(|store| {
            latest = store.instances.pop();
            store.bases.pop();
        });
        if let Some(instance) = latest {
            instance.park();
        }
    }

    /// Parks all slots that can be used again, and drops the others.
    pub(crate) fn park_slots(&mut self) {
        self.note_last_writer();
        self.interrupts.detach();
        self.bases.truncate(1);
        let mut instances = Vec::new();
        self.change_instances(|store| instances = std::mem::take(&mut store.instances));
        for instance in instances {
            instance.park();
        }
    }

    fn change_instances(&mut self, change: impl FnOnce(&mut Self)) {
        self.activation.changing.store(true, Ordering::Relaxed);
        // The handler runs on this thread, if at all.
        compiler_fence(Ordering::SeqCst);
        change(self);
        self.called.clear();
        self.activation.bases = self.bases.as_ptr();
        compiler_fence(Ordering::SeqCst);
        self.activation.changing.store(false, Ordering::Relaxed);
    }

    /// Says that this thread is about to write to slots of the store.
    #[inline]
    pub(crate) fn note_writer(&mut self) {
        if self.activation.writer != thread::number() {
            self.note_writer_anew();
        }
    }

    #[cold]
    fn note_writer_anew(&mut self) {
        for instance in &mut self.instances {
            instance.slot.enter();
        }
        self.activation.writer = thread::number();
    }

    /// Says, of a store whose slots are about to be reset, that this thread has written to them if none
    /// has said so since they were handed out. Then its page faults show that nothing was written, and
    /// what else was all the same; a slot that no thread has announced to write to is searched.
    #[inline]
    pub(crate) fn note_last_writer(&mut self) {
        if self.activation.writer == 0 {
            self.note_writer_anew();
        }
    }

    /// Says that the embedder can write to a memory by ways that are not counted, until
    /// the store is reset.
    pub(crate) fn note_view(&mut self, memory: Entity) {
        self.instance_mut(memory.ordinal).slot.note_external_writer(ExternalWriter::UntilReset);
    }

    /// Writes every word of an instance's link zone but the interrupt word.
    pub(crate) fn write_link(&mut self, ordinal: u32) {
        let activation = (&raw mut self.activation).expose_provenance() as u64;
        let instance = self.instance(ordinal);
        let (module, slot) = (&instance.module, &instance.slot);
        let layout = &module.layout().link_parts;
        let put = |offset: u32, value: u64| {
            // SAFETY: the offset is one of the layout's own for this module.
            unsafe { slot.link().byte_add(offset as usize).cast::<u64>().write(value) };
        };
        let imports = instance.function_imports.as_ptr().expose_provenance();
        let descriptors = module.code_memory().start() + module.code().descriptors as usize;
        put(link::ACTIVATION, activation);
        put(link::FUNCTION_IMPORTS, imports as u64);
        put(link::ORDINAL, ordinal.into());
        put(link::DESCRIPTORS, descriptors as u64);
        instance.show_beyond();
        for (entity, index) in instance.imports.memories.iter().zip(0..) {
            let owner = self.instance(entity.ordinal);
            let size = owner.word(owner.module.layout().state_parts.memory_size(entity.own_index));
            let record = layout.memory(index);
            let start = owner.slot.memory(entity.own_index as usize);
            put(record + link::memory_import::BASE, start.expose_provenance() as u64);
            put(record + link::memory_import::SIZE_WORD, size.expose_provenance() as u64);
        }
        for (entity, index) in instance.imports.tables.iter().zip(0..) {
            let owner = self.instance(entity.ordinal);
            let parts = owner.module.layout();
            let end = owner.at(parts.table_ends[entity.own_index as usize].into());
            let length = owner.word(parts.state_parts.table_length(entity.own_index));
            let record = layout.table(index);
            put(record + link::table_import::END, end.expose_provenance() as u64);
            put(record + link::table_import::LENGTH_WORD, length.expose_provenance() as u64);
            put(record + link::table_import::OWNER, entity.ordinal.into());
        }
        for (entity, index) in instance.imports.globals.iter().zip(0..) {
            let owner = self.instance(entity.ordinal);
            let cell = owner.word(owner.module.layout().state_parts.global(entity.own_index));
            let record = layout.global(index);
            put(record + link::global_import::CELL, cell.expose_provenance() as u64);
            put(record + link::global_import::OWNER, entity.ordinal.into());
        }
    }

    /// Where an indirect call across instances finds what it must call.
    pub(crate) fn set_resolved(&mut self, function: FuncRef) {
        let FunctionImport { code, base, .. } = self.function_import(function, None);
        self.activation.resolved = [code, base];
    }

    /// The definition behind function `index` of an instance's index space.
    pub(crate) fn function(&self, ordinal: u32, index: u32) -> FuncRef {
        let imports = &self.instance(ordinal).imports.functions;
        imports.get(index as usize).copied().unwrap_or(FuncRef::new(ordinal, index))
    }

    /// The definition behind an absolute reference that is not null.
    pub(crate) fn definition(&self, function: FuncRef) -> FuncRef {
        match (function.ordinal(), function.index()) {
            (HOST_ORDINAL, _) | (_, None) => function,
            (ordinal, Some(index)) => self.function(ordinal, index),
        }
    }

    pub(crate) fn table(&self, ordinal: u32, index: u32) -> Entity {
        let instance = self.instance(ordinal);
        entity(ordinal, index, &instance.imports.tables)
    }

    pub(crate) fn memory(&self, ordinal: u32, index: u32) -> Entity {
        let instance = self.instance(ordinal);
        entity(ordinal, index, &instance.imports.memories)
    }

    pub(crate) fn tag(&self, ordinal: u32, index: u32) -> Entity {
        let instance = self.instance(ordinal);
        entity(ordinal, index, &instance.imports.tags)
    }

    pub(crate) fn global(&self, ordinal: u32, index: u32) -> Entity {
        let instance = self.instance(ordinal);
        entity(ordinal, index, &instance.imports.globals)
    }

    /// The type of the definition `function`, and its number in the engine.
    pub(crate) fn function_type(&self, function: FuncRef) -> (&FuncType, TypeId) {
        let index = function.index().expect("a definition is not null");
        if function.ordinal() == HOST_ORDINAL {
            let host = &self.host_functions[index as usize];
            return (&*host.ty, host.type_id);
        }
        let module = &self.instance(function.ordinal()).module;
        (module.function_type(index), module.function_type_id(index))
    }

    /// How to enter the definition `function`, which is a guest's. Always inline: what is found is written
    /// to where it stays, and copied no more.
    #[inline(always)]
    pub(crate) fn target(&self, function: FuncRef) -> Target {
        let index = function.index().expect("a definition is not null");
        let instance = self.instance(function.ordinal());
        let code = instance.module.code();
        let ty = instance.module.info().functions[index as usize];
        let entry = code.entries[ty as usize];
        let entry = entry.expect("functions that can be known outside have an entry stub");
        let start = instance.module.code_memory().start();
        Target {
            base: instance.base(),
            ordinal: function.ordinal(),
            stack_top: instance.slot.stack_top().expose_provenance(),
            cells: instance.word(instance.module.layout().cell(0)).expose_provenance(),
            entry: start + entry as usize,
            direct_entry: code.direct_entries[ty as usize].map_or(0, |at| start + at as usize),
            code: instance.module.function_code(index),
        }
    }

    /// Makes a host function known to the store's guests.
    pub(crate) fn add_host_function(&mut self, function: Arc<HostFunc>) -> FuncRef {
        self.host_functions.push(function);
        FuncRef::new(HOST_ORDINAL, self.host_functions.len() as u32 - 1)
    }

    /// The host function `index`: valid as long as the store, also when functions are added.
    pub(crate) fn host_function_ptr(&self, index: u32) -> *const HostFunc {
        Arc::as_ptr(&self.host_functions[index as usize])
    }

    pub(crate) fn host_functions(&self) -> &[Arc<HostFunc>] {
        &self.host_functions
    }

    /// # Errors
    /// If the store is suspended or broken.
    pub(crate) fn check_usable(&self) -> Result<()> {
        match self.suspended.is_some() {
            true => Err(UsageError::Suspended.into()),
            false => self.check_whole(),
        }
    }

    /// What an entry does when it cannot just enter; the deadline stands until it
    /// is dropped.
    #[cold]
    pub(crate) fn prepare_entry(&mut self) -> Result<Option<Deadline>> {
        self.check_usable()?;
        self.check_absent_pages()?;
        if self.activation.is_active() {
            return Ok(None);
        }
        self.begin_outermost()
    }

    /// What a call of a host function by the embedder begins with: its waits end when
    /// the time is up, as those of a guest's calls do.
    pub(crate) fn begin_host_call(&mut self) -> Result<Option<Deadline>> {
        match self.activation.is_active() {
            true => Ok(None),
            false => self.begin_outermost(),
        }
    }

    /// Forgets interrupts that were meant for an earlier call, and sets the time
    /// of this one.
    pub(crate) fn begin_outermost(&mut self) -> Result<Option<Deadline>> {
        self.interrupts.clear();
        self.check_watched()?;
        self.begin_timeout(self.timeout)
    }

    /// # Errors
    /// If nothing can watch the time.
    pub(crate) fn begin_timeout(&self, timeout: Option<Duration>) -> Result<Option<Deadline>> {
        match timeout {
            Some(timeout) => Ok(Deadline::after(timeout, &self.interrupts, AtEnd::Interrupt)?),
            None => Ok(None),
        }
    }

    /// Says whether the next outermost entry has more to do than to enter: the store has a
    /// timeout or a hook, is suspended or broken, its deadline is not watched yet, or its guests
    /// must find registers cleared.
    pub(crate) fn update_due(&mut self) {
        let prepares = self.timeout.is_some()
            || self.suspended.is_some()
            || self.broken.is_some()
            || self.epochs.is_unwatched()
            || self.is_hooked
            || self.clears_registers;
        self.interrupts.set_due(Due::Preparation, prepares);
        self.interrupts.set_due(Due::AbsentPages, self.absence.is_asked());
    }

    /// Counts a point at which the guest could be suspended; whether it is to be.
    ///
    /// # Safety
    /// The guest is in a host call or at an interruption point.
    pub(crate) unsafe fn may_suspend(&mut self) -> bool {
        let activation = &mut self.activation;
        let counted = match activation.suspend_countdown {
            0 => false,
            left => {
                activation.suspend_countdown = left - 1;
                left == 1
            }
        };
        // Only a call that may end suspended can be meant by a request from outside.
        if self.interrupts.take_suspension_request() && activation.ends_suspended {
            activation.suspend_requested = true;
            self.interrupts.set_due(Due::Suspension, true);
        }
        // SAFETY: the guest is entered.
        if unsafe { activation.is_nested() } {
            // What was asked for comes once the host functions in between have returned.
            return false;
        }
        std::mem::take(&mut activation.suspend_requested) || counted
    }

    /// Notes that the guest is suspended in the instance with this base; returns
    /// where its registers are to be saved.
    ///
    /// # Safety
    /// `base` is that of an instance of this store.
    pub(crate) unsafe fn note_suspension(&mut self, base: usize, kind: Suspension) -> *mut u8 {
        // SAFETY: by this function's contract `base` is that of an instance of this store.
        let ordinal = unsafe { self.ordinal_of(base) };
        let mut suspended = Suspended::new(ordinal, self.activation.stack_owner, kind);
        suspended.of_task = !self.activation.ends_suspended;
        self.suspended = Some(suspended);
        self.update_due();
        let instance = self.instance(ordinal);
        instance.at(instance.module.layout().state_parts.save_area.into())
    }

    /// # Errors
    /// If the engine's code cannot be interrupted.
    pub(crate) fn interrupt_handle(&self) -> Result<InterruptHandle> {
        self.check_interruptible()?;
        Ok(InterruptHandle::new(&self.interrupts))
    }

    /// # Errors
    /// If the engine's code cannot be interrupted.
    pub(crate) fn check_interruptible(&self) -> Result<()> {
        match self.engine.config().compile.interruptible {
            true => Ok(()),
            false => Err(UsageError::NotInterruptible.into()),
        }
    }

    /// # Errors
    /// If the engine's code pays no fuel.
    pub(crate) fn check_metered(&self) -> Result<()> {
        match self.engine.config().compile.fuel {
            true => Ok(()),
            false => Err(UsageError::NotMetered.into()),
        }
    }

    /// Lets the guest pay for something that the runtime does for it.
    ///
    /// # Errors
    /// If it has not as much: then nothing is left, and it stops at its next function
    /// entry or loop, even if the error is ignored.
    pub(crate) fn pay_fuel(&mut self, units: u64) -> Result<(), TrapCode> {
        if !self.engine.config().compile.fuel {
            return Ok(());
        }
        let fuel = &mut self.activation.fuel;
        // Never far below zero: compiled code subtracts without a look at overflows.
        match i64::try_from(units).ok().map(|units| fuel.saturating_sub(units)) {
            Some(left) if left >= 0 => {
                *fuel = left;
                Ok(())
            }
            _ => {
                *fuel = (*fuel).min(-1);
                Err(TrapCode::OutOfFuel)
            }
        }
    }

    /// See [`Store::fuel`](crate::Store::fuel).
    pub(crate) fn fuel(&self) -> Result<u64> {
        self.check_metered()?;
        Ok(u64::try_from(self.activation.fuel).unwrap_or(0))
    }

    /// See [`Store::set_fuel`](crate::Store::set_fuel).
    pub(crate) fn set_fuel(&mut self, fuel: u64) -> Result<()> {
        self.check_metered()?;
        self.activation.fuel = i64::try_from(fuel).unwrap_or(i64::MAX);
        Ok(())
    }

    /// See [`Store::charge_fuel`](crate::Store::charge_fuel).
    pub(crate) fn charge_fuel(&mut self, units: u64) -> Result<()> {
        self.check_metered()?;
        self.pay_fuel(units).map_err(|code| Trap::without_backtrace(code).into())
    }

    /// # Errors
    /// If `id` is another store's.
    #[inline]
    pub(crate) fn check(&self, id: StoreId, what: &'static str) -> Result<(), Error> {
        match id == self.id {
            true => Ok(()),
            false => Err(self.not_of_store(id, what)),
        }
    }

    /// # Panics
    /// If `id` is another store's.
    #[inline]
    pub(crate) fn assert_own(&self, id: StoreId, what: &'static str) {
        if let Err(error) = self.check(id, what) {
            panic!("{error}");
        }
    }

    /// # Errors
    /// If the last reset has failed.
    #[inline]
    pub(crate) fn check_reset(&self) -> Result<(), Error> {
        match self.broken {
            None => Ok(()),
            Some(id) => Err(self.not_of_store(id, "store")),
        }
    }

    /// Why something is not of this store.
    #[cold]
    #[inline(never)]
    fn not_of_store(&self, id: StoreId, what: &'static str) -> Error {
        match self.broken == Some(id) {
            true => UsageError::ResetIncomplete.into(),
            false => UsageError::WrongStore { what }.into(),
        }
    }

    /// See [`Store::set_epoch_deadline`](crate::Store::set_epoch_deadline).
    ///
    /// # Panics
    /// If the engine's code cannot be interrupted.
    pub(crate) fn set_epoch_deadline(&mut self, ticks: u64) {
        if let Err(error) = self.check_interruptible() {
            panic!("{error}");
        }
        self.epochs.set_deadline(self.engine.epochs(), &self.interrupts, ticks);
        self.update_due();
    }

    pub(crate) fn set_epoch_callback(&mut self, callback: Option<Box<EpochCallback>>) {
        self.turns.yield_at_deadlines = callback.is_some();
        self.epochs.set_callback(callback, &self.interrupts);
    }

    /// How many instances were not made one by one, but are what the store was spawned as.
    pub(crate) fn origin_count(&self) -> usize {
        self.origin.as_ref().map_or(0, |origin| origin.instances.len())
    }

    /// What the store was spawned from, if it was.
    pub(crate) fn home_number(&self) -> Option<u64> {
        self.home.as_ref().map(|home| home.number)
    }

    /// Says that a reset begins, or has succeeded.
    pub(crate) fn set_broken(&mut self, broken: bool) {
        match (broken, self.broken) {
            (true, None) => {
                self.broken = Some(std::mem::replace(&mut self.id, StoreId::next()));
                // Their pages may not be mapped meanwhile.
                self.interrupts.detach();
                self.suspended = None;
            }
            (false, Some(id)) => {
                self.id = id;
                self.broken = None;
                self.list_interrupt_words();
            }
            _ => (),
        }
        if !broken {
            self.interrupts.set_due(Due::LostPages, false);
        }
        self.interrupts.set_due(Due::Broken, self.broken.is_some());
        self.update_due();
    }
}

impl Drop for StoreGroup {
    fn drop(&mut self) {
        // Before the slots go.
        self.interrupts.detach();
        self.instances.iter().for_each(InstanceData::forget_watch);
    }
}

fn entity(ordinal: u32, index: u32, imports: &[Entity]) -> Entity {
    let own_index = || index - imports.len() as u32;
    let import = imports.get(index as usize).copied();
    import.unwrap_or_else(|| Entity { ordinal, own_index: own_index() })
}

impl InstanceData {
    /// Tells compiled code whether more is accessible of the instance's memories than they
    /// have: to be said when the link zone was written, and when a memory has grown.
    pub(crate) fn show_beyond(&self) {
        let (slot, info) = (&self.slot, self.module.info());
        // Accesses of 64-bit memories are compared in any case.
        let own = info.memories.iter().skip(info.imported_memories as usize).zip(0..);
        let any = own
            .filter(|(memory, _)| !memory.memory64)
            .any(|(_, index)| slot.memory_accessible(index) > slot.memory_size(index));
        let word = slot.link().wrapping_add(link::ACCESSIBLE_PAST_SIZE as usize).cast::<u32>();
        // SAFETY: the word is in the link zone, aligned, and only the
        // store's owner writes it.
        unsafe { word.write(any.into()) };
    }
}

pub(crate) fn interrupt_word(instance: &InstanceData) -> usize {
    instance.slot.link().expose_provenance() + link::INTERRUPT as usize
}
