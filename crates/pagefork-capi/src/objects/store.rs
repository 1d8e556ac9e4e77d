//! Stores as C's objects share them, and how they are reached while their guests run.
//!
//! # Safety
//!
//! A cell has one store, and `is_open` says whether any function of C's may reach it, or, before it is in the
//! cell, while it is used as a whole and while a call waits that has it, host functions alone. The store and each
//! host function have exposed its address, from which contexts are made: a host function writes nothing
//! for that, as whether one runs is seen from the guest that has called it. Each function of the library
//! makes one context at a time, and uses none that it made before a call of C's. A store and its objects are used by one thread
//! at a time, as the headers say.

use std::any::Any;
use std::cell::{Cell, RefCell, UnsafeCell};
use std::collections::HashMap;
use std::ffi::c_void;
use std::mem::{self, ManuallyDrop, MaybeUninit};
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use pagefork::{
    AsContextMut, CallOrigin, Caller, Engine, Error, Extern, ExternRef, ForeignData, Func,
    FuncType, Instance, Module, Result, RunningGuest, Store, StoreContextMut, UsageError,
};

use pagefork_wasi::{OutputPipe, WasiCtx};

use crate::base::border::BorderError;
use crate::base::c_box::CBox;
use crate::base::places::Places;
use crate::objects::callback::{pagefork_caller_t, raised};
use crate::objects::host_info::{HostInfo, InfoPlace};
use crate::objects::object::{Object, wasm_ref_t, wasm_store_t};
use crate::objects::saved_program::SavedProgram;
use crate::objects::shape::{FuncShape, LazyShape, Shape};

/// The data of every store of the library.
pub(crate) struct HostData {
    /// The cell that the store is in: it is there as long as the store.
    cell: NonNull<StoreCell>,
    /// What WASI programs have; made when one asks first, if C does not say.
    /// Apart, as it is large, and most stores have none.
    wasi: ManuallyDrop<Option<Box<HostWasi>>>,
}

/// What WASI programs have.
struct HostWasi {
    /// What they see.
    ctx: WasiCtx,
    /// What they write to the standard streams that C reads: output, errors.
    outputs: [Option<OutputPipe>; 2],
    /// What they go on from, whose place has the files of their session: it goes last.
    _program: Option<Arc<SavedProgram>>,
}

impl HostData {
    /// What WASI programs see.
    pub(crate) fn wasi(&mut self) -> &mut WasiCtx {
        let wasi = self.wasi.get_or_insert_with(|| {
            let ctx = WasiCtx::builder().build().expect("a state without anything can be built");
            Box::new(HostWasi { ctx, outputs: [None, None], _program: None })
        });
        &mut wasi.ctx
    }

    /// What programs write to a standard stream, 0 or 1, if C reads it.
    pub(crate) fn output(&self, index: usize) -> Option<&OutputPipe> {
        self.wasi.as_ref()?.outputs.get(index)?.as_ref()
    }

    /// What WASI programs see, if one has asked or C has said it.
    pub(crate) fn present_wasi(&self) -> Option<&WasiCtx> {
        self.wasi.as_ref().map(|wasi| &wasi.ctx)
    }

    /// Has WASI programs see something else: what `program` had, if they go on from there.
    pub(crate) fn set_wasi(
        &mut self,
        ctx: WasiCtx,
        outputs: [Option<OutputPipe>; 2],
        program: Option<Arc<SavedProgram>>,
    ) {
        *self.wasi = Some(Box::new(HostWasi { ctx, outputs, _program: program }));
    }
}

impl ForeignData for HostData {
    /// The store is not in its cell yet while its start functions run, and can be reached all the same.
    fn handle(&self, store: usize) -> *const c_void {
        // SAFETY: the cell is there as long as the store.
        let cell = unsafe { self.cell.as_ref() };
        cell.address.set(store);
        ptr::from_ref(cell.handle()).cast()
    }

    unsafe fn error(returned: NonNull<c_void>) -> Error {
        // SAFETY: by this function's contract it is what a function on cells gives away: by the header's word an
        // error.
        let error = unsafe { CBox::<wasm_ref_t>::new(returned.cast()) };
        raised(&error)
    }
}

impl Drop for HostData {
    /// It goes with the store, unless the store is in its cell and has other data now, or goes on with those
    /// that it has.
    fn drop(&mut self) {
        // SAFETY: the cell is there as long as the store.
        let cell = unsafe { self.cell.as_ref() };
        if !cell.is_filled.get() {
            cell.address.set(0);
        }
        if let Some(wasi) = self.wasi.take() {
            drop_wasi(wasi);
        }
    }
}

/// Apart, as most stores have none.
#[cold]
fn drop_wasi(wasi: Box<HostWasi>) {
    drop(wasi);
}

// SAFETY: the headers say that a store and its objects are used by one thread at a time, and with
// them what their cell has.
unsafe impl Send for HostData {}

// SAFETY: the pointer is followed by the thread that uses the store, which is one at a time.
unsafe impl Sync for HostData {}

/// A call of a host function that does not come straight from a guest that runs: the embedder has made it, or
/// the guest waits meanwhile.
#[derive(Clone, Copy)]
struct OtherCall {
    origin: CallOrigin,
    /// The guest that runs around it.
    around: Option<RunningGuest>,
}

/// A store, and what the library keeps about it.
pub(crate) struct StoreCell {
    /// How many objects there are.
    count: Cell<usize>,
    /// Whether the store may be reached now by others than its host functions.
    is_open: Cell<bool>,
    /// The store's address, exposed by whoever may reach it; 0 if there is no store.
    address: Cell<usize>,
    /// The innermost host function that no running guest has called, if one runs.
    other_call: Cell<Option<OtherCall>>,
    store: UnsafeCell<Option<Store<HostData>>>,
    is_filled: Cell<bool>,
    /// What C attached to what is in the store.
    infos: RefCell<HashMap<Object, HostInfo>>,
    shapes: RefCell<HashMap<FuncType, Box<FuncShape>>>,
    /// What guests were given, so that the same object is the same reference.
    known: RefCell<HashMap<Object, ExternRef>>,
    /// From this many references on, those are given up that no guest holds.
    known_max: Cell<usize>,
    /// An instance of which nothing is known but one object, so that it goes with this.
    unknown: Cell<Option<Instance>>,
    /// What C attached to the store itself.
    data: InfoPlace,
    /// Whether anything was put into the tables, or attached to the store: then there is more to do when it goes.
    has_more: Cell<bool>,
    /// What C's pointers to the store lead to: not one of those that are counted.
    handle: MaybeUninit<ManuallyDrop<wasm_store_t>>,
    /// Where C's objects lie, the first few without memory of their own. What C has deleted is seen there until
    /// the store goes, or something else is in its place.
    places: Places,
}

/// From this many references on it may pay to look for those that no guest holds.
const KNOWN_MIN: usize = 256;

/// One of those that keep a store alive.
pub(crate) struct StoreRef(NonNull<StoreCell>);

// SAFETY: a cell is used by one thread at a time, as the headers say, and with it who counts.
unsafe impl Send for StoreRef {}

// SAFETY: a cell is used by one thread at a time, as the headers say, and with it who counts.
unsafe impl Sync for StoreRef {}

impl Clone for StoreRef {
    #[inline]
    fn clone(&self) -> Self {
        // One thread at a time: no other counts meanwhile.
        self.count.set(self.count.get() + 1);
        Self(self.0)
    }
}

impl Deref for StoreRef {
    type Target = StoreCell;

    #[inline]
    fn deref(&self) -> &StoreCell {
        // SAFETY: the cell is freed when there is no reference any more.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for StoreRef {
    #[inline]
    fn drop(&mut self) {
        let left = self.count.get() - 1;
        self.count.set(left);
        if left == 0 {
            // SAFETY: this was the last reference.
            unsafe { StoreCell::release(self.0) };
        }
    }
}

impl StoreRef {
    /// As dropping it, without a look whether a guest is entered.
    ///
    /// # Safety
    /// No call into the store's guests is around this.
    #[inline]
    pub(crate) unsafe fn drop_unentered(self) {
        let cell = self.0;
        let left = self.count.get() - 1;
        self.count.set(left);
        mem::forget(self);
        if left == 0 {
            // SAFETY: this was the last reference; by this function's contract no guest is entered.
            unsafe { StoreCell::release_unentered(cell) };
        }
    }

    /// A new store.
    pub(crate) fn new(engine: &Engine) -> Self {
        let cell = Self::empty();
        let store = Store::new(engine, cell.data());
        cell.fill(store);
        cell
    }

    /// A cell for a store that is being made.
    #[inline]
    pub(crate) fn empty() -> Self {
        match SPARE.try_with(Cell::take).ok().flatten() {
            Some(spare) => Self(spare.into_cell()),
            None => Self(StoreCell::new()),
        }
    }

    /// What the store in this cell has for its data, or will have once it is made or reset. No host function
    /// of it runs.
    pub(crate) fn data(&self) -> HostData {
        HostData { cell: self.0, wasi: ManuallyDrop::new(None) }
    }

    /// An object of this store, for C.
    pub(crate) fn own(&self, object: Object) -> CBox<wasm_ref_t> {
        wasm_ref_t::new(self, object)
    }

    /// This reference, for C.
    #[inline]
    pub(crate) fn into_handle(self) -> CBox<wasm_store_t> {
        let handle = NonNull::from(self.handle());
        // It is the handle's owner who has it from here on.
        mem::forget(self);
        // SAFETY: who deletes it takes the reference.
        unsafe { CBox::new(handle) }
    }

    /// Puts something for C into one of the store's places, where it stays. Always inline: the value is
    /// made there.
    #[inline(always)]
    pub(crate) fn place<T>(&self, value: T) -> NonNull<T> {
        let place = self.places.take();
        // SAFETY: nothing else uses it, and it is large enough.
        unsafe { place.write(value) };
        place
    }

    /// Gives a place back, or frees the box of what has no store.
    ///
    /// # Safety
    /// It was given by [`StoreRef::place`] of this store, or is from a box if there is none; what was in it
    /// is gone, but that C may look there at what is left.
    #[inline]
    pub(crate) unsafe fn give_place_back<T>(store: Option<&Self>, place: NonNull<T>) {
        match store {
            // SAFETY: by this function's contract.
            Some(store) => unsafe { store.places.give_back(place) },
            // SAFETY: by this function's contract it is from a box.
            None => drop(unsafe { Box::from_raw(place.cast::<MaybeUninit<T>>().as_ptr()) }),
        }
    }

    /// A function of this store, for C.
    pub(crate) fn own_func(&self, func: Func) -> Result<CBox<wasm_ref_t>> {
        Ok(self.own(self.func_object(func)))
    }

    /// Something that is exported, for C.
    pub(crate) fn own_extern(&self, external: Extern) -> Result<CBox<wasm_ref_t>> {
        Ok(self.own(match external {
            Extern::Func(func) => self.func_object(func),
            Extern::Global(global) => Object::Global(global),
            Extern::Table(table) => Object::Table(table),
            Extern::Memory(memory) => Object::Memory(memory),
            Extern::Tag(tag) => Object::Tag(tag),
        }))
    }
}

thread_local! {
    /// A cell that this thread has freed, so that a store after the other needs no memory for one.
    static SPARE: Cell<Option<SpareCell>> = const { Cell::new(None) };
}

/// A cell without a store, which nothing leads to: as a new one.
struct SpareCell(NonNull<StoreCell>);

impl SpareCell {
    #[inline]
    fn into_cell(self) -> NonNull<StoreCell> {
        let cell = self.0;
        mem::forget(self);
        cell
    }
}

impl Drop for SpareCell {
    #[cold]
    fn drop(&mut self) {
        // SAFETY: it was leaked from a box, and nothing leads to it.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// A cell with room for more entries is not kept.
const SPARE_MAX: usize = 64;

impl StoreCell {
    #[cold]
    fn new() -> NonNull<Self> {
        let cell = Box::leak(Box::new(Self {
            count: Cell::new(1),
            is_open: Cell::new(false),
            address: Cell::new(0),
            other_call: Cell::new(None),
            store: UnsafeCell::new(None),
            is_filled: Cell::new(false),
            infos: RefCell::default(),
            shapes: RefCell::default(),
            known: RefCell::default(),
            known_max: Cell::new(KNOWN_MIN),
            unknown: Cell::new(None),
            data: InfoPlace::default(),
            has_more: Cell::new(false),
            handle: MaybeUninit::uninit(),
            places: Places::new(),
        }));
        let mut pointer = NonNull::from(cell);
        // SAFETY: it was leaked just now. All that leads to it comes of this pointer.
        unsafe {
            let handle = wasm_store_t(StoreRef(pointer));
            pointer.as_mut().handle.write(ManuallyDrop::new(handle));
            pointer.as_ref().places.settle();
        }
        pointer
    }

    /// What C's pointers to the store lead to.
    #[inline]
    pub(crate) fn handle(&self) -> &wasm_store_t {
        // SAFETY: it was written when the cell was made.
        unsafe { self.handle.assume_init_ref() }
    }

    /// Puts the store into its cell, which has none.
    #[inline]
    pub(crate) fn fill(&self, mut store: Store<HostData>) {
        self.address.set(store.as_context_mut().expose());
        // SAFETY: nothing has borrowed what is in the cell: that is nothing.
        unsafe { self.store.get().write(Some(store)) };
        self.is_filled.set(true);
        self.is_open.set(true);
    }

    /// What C attached to the store itself, or null.
    pub(crate) fn attached(&self) -> *mut c_void {
        self.data.get()
    }

    /// Attaches something to the store itself; what was attached is finalized.
    pub(crate) fn attach(&self, info: HostInfo) {
        self.has_more.set(true);
        self.data.set(info);
    }

    /// Makes the store's own context anew, after the store itself was borrowed.
    fn renew_context(&self) {
        // SAFETY: no context is in use; the store stays where it is, and is not borrowed itself
        // as long as this one is used.
        let store = unsafe { (*self.store.get()).as_mut() };
        if let Some(store) = store {
            self.address.set(store.as_context_mut().expose());
        }
        self.is_open.set(self.is_filled.get());
    }

    /// The store's engine.
    ///
    /// # Errors
    /// If the store may not be reached.
    pub(crate) fn engine(&self) -> Result<Engine> {
        Ok(self.any_context()?.engine().clone())
    }

    /// # Errors
    /// If the module is of another engine, or the store may not be reached.
    pub(crate) fn check_engine(&self, module: &Module) -> Result<()> {
        match Engine::same(self.any_context()?.engine(), module.engine()) {
            true => Ok(()),
            false => Err(UsageError::WrongEngine { what: "module" }.into()),
        }
    }

    /// The store, as whoever runs now may reach it, to use what C has objects of.
    ///
    /// # Errors
    /// If it may not be reached, or its last reset has failed, so that its objects lead to nothing.
    #[inline]
    pub(crate) fn context(&self) -> Result<StoreContextMut<'_, HostData>> {
        let context = self.any_context()?;
        context.check_reset()?;
        Ok(context)
    }

    /// The store, as whoever runs now may reach it, whether its last reset has failed or not.
    ///
    /// # Errors
    /// If it may not be reached.
    #[inline]
    pub(crate) fn any_context(&self) -> Result<StoreContextMut<'_, HostData>> {
        if !self.is_open.get() && !self.is_running() {
            return Err(busy());
        }
        // SAFETY: whoever may reach the store now has exposed its address; functions of the library
        // make one context at a time.
        Ok(unsafe { StoreContextMut::from_exposed(self.address.get()) })
    }

    /// The guest of the store that runs, if one does.
    fn running(&self) -> Option<RunningGuest> {
        let address = self.address.get();
        // SAFETY: there is a store, whose data take the address away when they go.
        (address != 0)
            .then(|| unsafe { StoreContextMut::<HostData>::running_at(address) })
            .flatten()
    }

    /// Whether a guest or host function of the store runs.
    #[cold]
    fn is_running(&self) -> bool {
        self.other_call.get().is_some() || self.running().is_some()
    }

    /// The instance whose function has called the host function that runs now, if one runs.
    ///
    /// # Errors
    /// If the store may not be reached.
    pub(crate) fn caller(&self) -> Result<Option<Instance>> {
        let context = self.context()?;
        let running = context.running();
        let origin = match self.other_call.get() {
            Some(call) if call.around == running => Some(call.origin),
            _ => running.map(|guest| guest.origin()),
        };
        Ok(context.instance_at(origin.unwrap_or_default()))
    }

    /// Says that nothing is known of an instance but the object that it becomes: its module imports
    /// nothing, so that no guest but itself has seen anything of it.
    pub(crate) fn note_unknown(&self, instance: Instance) {
        self.has_more.set(true);
        self.unknown.set(Some(instance));
    }

    /// Says that something is known of an instance.
    pub(crate) fn note_known(&self, instance: &Instance) {
        if self.unknown.get().as_ref() == Some(instance) {
            self.unknown.set(None);
        }
    }

    /// Frees an instance whose object goes, if that was all that was known of it.
    #[inline]
    pub(crate) fn remove_if_unknown(&self, instance: &Instance) {
        if self.unknown.get().as_ref() == Some(instance) {
            self.remove_unknown(instance);
        }
    }

    #[cold]
    #[inline(never)]
    fn remove_unknown(&self, instance: &Instance) {
        self.unknown.set(None);
        let Ok(mut context) = self.context() else { return };
        // SAFETY: no object was made of anything in it, none but this of the instance, and it
        // imports nothing by which others could have seen its functions.
        if unsafe { context.remove_latest_instance(instance) } {
            let info = self.infos.borrow_mut().remove(&Object::Instance(*instance));
            drop(info);
        }
    }

    /// Whether a guest or host function of the store runs, or a call has it.
    pub(crate) fn is_entered(&self) -> bool {
        self.is_filled.get() && (!self.is_open.get() || self.is_running())
    }

    /// Uses the store itself, which nothing else does meanwhile.
    ///
    /// # Errors
    /// If a guest runs or waits.
    pub(crate) fn with_store<R>(
        &self,
        function: impl FnOnce(&mut Store<HostData>) -> Result<R>,
    ) -> Result<R> {
        if !self.is_filled.get() || self.is_entered() {
            return Err(BorderError::Busy("one of its guests runs or waits").into());
        }
        /// Brings the context back, also after a panic.
        struct Renew<'a>(&'a StoreCell);

        impl Drop for Renew<'_> {
            fn drop(&mut self) {
                self.0.renew_context();
            }
        }

        self.is_open.set(false);
        let _renew = Renew(self);
        // SAFETY: no context is in use, and none can be made until this one is given back.
        match unsafe { (*self.store.get()).as_mut() } {
            Some(store) => function(store),
            None => Err(busy()),
        }
    }

    /// Lends the store to a call that may wait: nothing else can reach it until
    /// [`StoreCell::end_call`], but for the host functions that run on the call's way.
    ///
    /// # Errors
    /// If a guest runs or waits.
    pub(crate) fn lend_to_call(&self) -> Result<StoreContextMut<'static, HostData>> {
        if !self.is_filled.get() || self.is_entered() {
            return Err(BorderError::Busy("one of its guests runs or waits").into());
        }
        self.is_open.set(false);
        // SAFETY: the store is there, as was just seen, and used by nothing else until its own context is
        // made anew.
        Ok(unsafe { StoreContextMut::from_exposed(self.address.get()) })
    }

    /// The call has gone that the store was lent to.
    pub(crate) fn end_call(&self) {
        self.renew_context();
    }

    /// The cell of the store whose host function has this caller, by whom it can be reached from here on.
    #[inline(always)]
    fn of_caller<'a>(caller: &mut Caller<'_, HostData>) -> &'a Self {
        // SAFETY: a store's cell is there as long as the store, and a call keeps its store alive.
        let cell = unsafe { caller.data().cell.as_ref() };
        let address = caller.as_context_mut().expose();
        // It is another one only in a start function, when the store is not in its cell yet.
        if cell.address.get() != address {
            cell.address.set(address);
        }
        cell
    }

    /// Runs a host function of C's that no running guest has called.
    ///
    /// # Errors
    /// What C has said that it fails with.
    pub(crate) fn in_host_function<R>(
        caller: &mut Caller<'_, HostData>,
        function: impl FnOnce(&StoreCell) -> R,
    ) -> Result<R> {
        /// Forgets the call, also after a panic.
        struct Ended<'a>(&'a StoreCell, Option<OtherCall>);

        impl Drop for Ended<'_> {
            fn drop(&mut self) {
                self.0.other_call.set(self.1);
            }
        }

        let (cell, origin) = (Self::of_caller(caller), caller.origin());
        let mut context = caller.as_context_mut();
        // What the function around has failed with is its own.
        let (around, raised_around) = (context.running(), context.take_raised());
        let _ended = Ended(cell, cell.other_call.replace(Some(OtherCall { origin, around })));
        let result = function(cell);
        let raised = cell.take_raised();
        if let Some(error) = raised_around
            && let Ok(mut context) = cell.any_context()
        {
            drop(context.raise(error));
        }
        raised.map_or(Ok(result), Err)
    }

    /// Runs a host function of C's that is given who has called it, with this environment.
    ///
    /// # Errors
    /// What C has said that it fails with, if no running guest has called it. Of one that such a guest has
    /// called it is known where that goes on.
    #[inline(always)]
    pub(crate) fn with_caller<R>(
        caller: &mut Caller<'_, HostData>,
        env: *mut c_void,
        function: impl FnOnce(&StoreCell, &pagefork_caller_t) -> R,
    ) -> Result<R> {
        let cell = Self::of_caller(caller);
        // Its own: one that it calls meanwhile, through a guest, is given another.
        let call = |cell: &StoreCell| function(cell, &pagefork_caller_t::new(env, cell.handle()));
        match caller.is_direct() {
            true => Ok(call(cell)),
            false => Self::in_host_function(caller, call),
        }
    }

    /// Has the C function that runs now fail when it returns.
    ///
    /// # Errors
    /// If none runs.
    pub(crate) fn raise(&self, error: Error) -> Result<()> {
        if !self.is_running() {
            return Err(BorderError::Unfit("no function of the host runs".to_owned()).into());
        }
        // Finalizers of C's may run where the error before goes, and use the store.
        let before = self.any_context()?.raise(error);
        drop(before);
        Ok(())
    }

    /// What the C function that has returned fails with, if it has said so.
    pub(crate) fn take_raised(&self) -> Option<Error> {
        self.any_context().ok()?.take_raised()
    }

    /// The last object is gone: frees the store, or leaves that to who has entered it.
    ///
    /// # Safety
    /// There is no reference to the cell but of those that have entered its guests.
    unsafe fn release(cell: NonNull<Self>) {
        // SAFETY: by this function's contract the cell is there.
        let this = unsafe { cell.as_ref() };
        if this.is_entered() {
            // `KeptStore` finds that nothing has it any more.
            return;
        }
        // SAFETY: by this function's contract, and nobody has entered it.
        unsafe { Self::release_unentered(cell) };
    }

    /// Frees the store.
    ///
    /// # Safety
    /// There is no reference to the cell, and none of its guests is entered.
    #[inline]
    unsafe fn release_unentered(cell: NonNull<Self>) {
        // SAFETY: by this function's contract the cell is there.
        let this = unsafe { cell.as_ref() };
        debug_assert!(!this.is_entered(), "no guest of the store runs");
        this.is_open.set(false);
        this.address.set(0);
        // SAFETY: nothing uses the store any more.
        unsafe {
            this.is_filled.set(false);
            drop((*this.store.get()).take());
        }
        if this.has_more.get() || this.places.has_further() {
            // SAFETY: by this function's contract, and the store is gone.
            return unsafe { Self::release_more(cell) };
        }
        // SAFETY: by this function's contract nothing leads to the cell, which is as a new one but for the count.
        unsafe { Self::keep_spare(cell) };
    }

    /// Frees what the library has kept about a store that is gone.
    ///
    /// # Safety
    /// As of [`StoreCell::release`]; there is no store any more.
    #[cold]
    #[inline(never)]
    unsafe fn release_more(mut cell: NonNull<Self>) {
        // SAFETY: by this function's contract there is no other reference.
        let this = unsafe { cell.as_mut() };
        // What was attached to the store's things is finalized before what was to the store.
        drop(mem::take(this.infos.get_mut()));
        this.data.take();
        this.places.free_further();
        let (shapes, known) = (this.shapes.get_mut(), this.known.get_mut());
        if shapes.capacity() > SPARE_MAX || known.capacity() > SPARE_MAX {
            // It is not kept.
            return drop(SpareCell(cell));
        }
        shapes.clear();
        known.clear();
        this.known_max.set(KNOWN_MIN);
        this.unknown.set(None);
        this.has_more.set(false);
        // SAFETY: by this function's contract nothing leads to the cell, which is as a new one but for the count.
        unsafe { Self::keep_spare(cell) };
    }

    /// Keeps the cell for a store that comes, which finds it as a new one.
    ///
    /// # Safety
    /// Nothing leads to it, and it is as a new one but for the count.
    #[inline]
    unsafe fn keep_spare(cell: NonNull<Self>) {
        // SAFETY: by this function's contract.
        unsafe { cell.as_ref() }.count.set(1);
        let spare = SpareCell(cell);
        // One that is kept already goes; a thread that ends keeps none.
        let _ = SPARE.try_with(|place| drop(place.replace(Some(spare))));
    }

    /// What C attached to something of the store, or null.
    pub(crate) fn info(&self, object: &Object) -> *mut c_void {
        self.infos.borrow().get(object).map_or(ptr::null_mut(), HostInfo::data)
    }

    /// Attaches something; what was attached is finalized.
    pub(crate) fn set_info(&self, object: Object, info: HostInfo) {
        self.has_more.set(true);
        // The finalizer may attach something, too.
        let old = self.infos.borrow_mut().insert(object, info);
        drop(old);
    }

    /// What is in the store is what it was in the beginning: nothing is attached to it.
    pub(crate) fn forget_infos(&self) {
        drop(self.infos.take());
    }

    /// What calls of functions of this type need.
    pub(crate) fn shape(&self, ty: FuncType) -> Shape {
        let mut shapes = self.shapes.borrow_mut();
        if let Some(shape) = shapes.get(&ty) {
            return Shape::of(shape);
        }
        self.has_more.set(true);
        let shape = Box::new(FuncShape::new(ty.clone()));
        let place = Shape::of(&shape);
        shapes.insert(ty, shape);
        place
    }

    /// What a shape says, which is one of this store's.
    #[inline]
    pub(crate) fn shape_of(&self, shape: Shape) -> &FuncShape {
        // SAFETY: shapes are made by their stores alone, which free them when they go.
        unsafe { shape.get() }
    }

    /// The type of functions of this shape.
    pub(crate) fn func_type(&self, shape: Shape) -> &FuncType {
        self.shape_of(shape).ty()
    }

    /// A function as an object.
    pub(crate) fn func_object(&self, func: Func) -> Object {
        Object::Func(func, LazyShape::default())
    }

    /// The reference by which guests hold this object: the same one each time.
    ///
    /// # Errors
    /// If the store may not be reached, or holds too many values.
    pub(crate) fn reference(&self, object: &Object) -> Result<ExternRef> {
        if let Object::Instance(instance) = object {
            self.note_known(instance);
        }
        if let Some(known) = self.known.borrow().get(object)
            && known.data(&self.context()?).is_ok()
        {
            return Ok(*known);
        }
        self.has_more.set(true);
        if self.context()?.reference_count() >= self.known_max.get() {
            let left = self.collect()?;
            self.known_max.set((left * 2).max(KNOWN_MIN));
        }
        let reference = ExternRef::new(&mut self.context()?, KnownObject(object.clone()))?;
        self.known.borrow_mut().insert(object.clone(), reference);
        Ok(reference)
    }

    /// Gives up the references that no guest holds; returns how many are left.
    ///
    /// # Errors
    /// If the store may not be reached.
    pub(crate) fn collect(&self) -> Result<usize> {
        self.context()?.collect_references();
        let context = self.context()?;
        let is_gone = |reference: &ExternRef| reference.data(&context).is_err();
        let gone = self.known.borrow_mut().extract_if(|_, reference| is_gone(reference)).collect();
        let left = context.reference_count();
        // Finalizers of C's may run here, and use the store.
        drop::<Vec<(Object, ExternRef)>>(gone);
        Ok(left)
    }

    /// The object that guests hold by this reference.
    pub(crate) fn referred(&self, reference: &ExternRef) -> Result<Object> {
        let context = self.context()?;
        KnownObject::of_value(reference.data(&context)?).cloned()
    }

    /// After a reset no reference means anything any more.
    pub(crate) fn forget_references(&self) {
        drop(self.known.take());
    }
}

/// An object that guests hold references to. It does not keep the store alive, which has it.
pub(crate) struct KnownObject(Object);

impl KnownObject {
    /// What guests of any store may hold.
    pub(crate) fn value_of(object: Object) -> Arc<dyn Any + Send + Sync> {
        Arc::new(Self(object))
    }

    /// The object that guests hold.
    ///
    /// # Errors
    /// If it is something else.
    pub(crate) fn of_value(value: &(dyn Any + Send + Sync)) -> Result<&Object> {
        match value.downcast_ref() {
            Some(Self(object)) => Ok(object),
            None => Err(BorderError::Unfit("a host reference that C did not make".into()).into()),
        }
    }
}

/// A store during a call of C's, which may delete all objects of it, the one included by which
/// the call was made.
pub(crate) struct KeptStore(ManuallyDrop<StoreRef>);

impl StoreRef {
    /// Has the store live as long as what this returns.
    #[inline]
    pub(crate) fn keep(&self) -> KeptStore {
        KeptStore(ManuallyDrop::new(Self(self.0)))
    }
}

impl Deref for KeptStore {
    type Target = StoreRef;

    #[inline]
    fn deref(&self) -> &StoreRef {
        &self.0
    }
}

impl Drop for KeptStore {
    #[inline]
    fn drop(&mut self) {
        if self.0.count.get() == 0 {
            free_kept(&self.0);
        }
    }
}

#[cold]
fn free_kept(store: &StoreRef) {
    if !store.is_entered() {
        // SAFETY: no object of the store is left, and this was the outermost call.
        unsafe { StoreCell::release(store.0) };
    }
}

#[cold]
fn busy() -> pagefork::Error {
    BorderError::Busy("a call of it waits, or it is being made").into()
}

/// Objects are shared by stores and threads.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<Arc<KnownObject>>();
};
