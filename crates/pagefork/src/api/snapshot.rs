//! Snapshots of stores: between calls, or with a suspended guest.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use pagefork_pages::Owner;

use crate::api::instance::{Extern, Instance};
use crate::api::pre::InstancePre;
use crate::api::store::{Invariant, Store};
use crate::base::error::{Result, UsageError};
use crate::base::trace::span;
use crate::code::module::Module;
use crate::run::contents::CapturedFor;
use crate::run::freeze::{self, SaveReference};
use crate::run::limiter;
use crate::store::frozen::{Frozen, FrozenInstance};
use crate::store::group::{InstanceData, StoreGroup};
use crate::store::host_func::HostFunc;

/// What the instances of a store were at some time: their memories, tables, globals and
/// all else that guests can see or change, as images that slots are filled from. If a guest was
/// suspended, so are the guests of all that is made of it. What the embedder's data was is the
/// embedder's.
///
/// The store can be [reset to](Store::reset_to) it, others [spawned](Snapshot::instance_pre)
/// from it: a program that has been started once begins a million times where it had got to.
///
/// Cheap to clone: clones share the images. The store's host functions live as long as the
/// snapshot.
///
/// # Examples
///
/// ```
/// use pagefork::{Engine, Linker, Module};
///
/// let engine = Engine::default();
/// let module = Module::new(&engine, r#"(module
///     (global $count (mut i32) (i32.const 0))
///     (func (export "next") (result i32)
///         (global.set $count (i32.add (global.get $count) (i32.const 1)))
///         (global.get $count)))"#)?;
/// let (mut store, instance) = Linker::new(&engine).instantiate_pre(&module)?.spawn(())?;
/// let next = instance.get_typed_func::<(), i32>(&mut store, "next")?;
/// next.call(&mut store, ())?;
/// let after_one = store.snapshot()?;
/// next.call(&mut store, ())?;
/// store.reset_to(&after_one, ())?;
/// assert_eq!(next.call(&mut store, ())?, 2);
/// store.reset(())?;
/// assert_eq!(next.call(&mut store, ())?, 1);
/// # Ok::<(), pagefork::Error>(())
/// ```
pub struct Snapshot<T> {
    frozen: Arc<Frozen>,
    /// The host functions were made for such data.
    data: Invariant<T>,
}

impl<T> Clone for Snapshot<T> {
    fn clone(&self) -> Self {
        Self::new(Arc::clone(&self.frozen))
    }
}

impl<T: 'static> Store<T> {
    /// What the store's instances are now, and where a suspended guest is. Neither they nor what
    /// [`Store::reset`] returns to change by it.
    ///
    /// # Errors
    /// [`UsageError::NoSnapshot`] if a guest holds a reference to a value of the host, or may hold
    /// one, because it is suspended in a store that has such references: use
    /// [`Store::snapshot_with`]; if a guest waits in an asynchronous call. Else if the system
    /// refuses memory.
    ///
    /// # Examples
    ///
    /// See [`Snapshot`].
    pub fn snapshot(&mut self) -> Result<Snapshot<T>> {
        Snapshot::take(self, None, CapturedFor::Spawns)
    }

    /// As [`Store::snapshot`], of what goes on in one other place alone: if a snapshot was taken before,
    /// and the engine [tracks](crate::DeltaTracker) what is written, it costs what was written since,
    /// however much that is, up to half of what there is. Each store that is spawned from it has a copy
    /// of all of that.
    ///
    /// # Errors
    /// As of [`Store::snapshot`].
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Config, DeltaTracker, Engine, Linker, Module, StrategyConfig};
    ///
    /// let mut config = Config::new();
    /// config.strategies(StrategyConfig { deltas: DeltaTracker::Writes, ..StrategyConfig::default() });
    /// let engine = Engine::new(&config)?;
    /// let module = Module::new(&engine, r#"(module (memory (export "memory") 200))"#)?;
    /// let (mut store, instance) = Linker::new(&engine).instantiate_pre(&module)?.spawn(())?;
    /// let memory = instance.get_memory(&mut store, "memory").expect("it is exported");
    /// memory.data_mut(&mut store).fill(1);
    /// let ahead = store.snapshot()?;
    /// memory.write(&mut store, 0, b"later")?;
    /// let moved = store.snapshot_to_move()?;
    /// let (mut other, instance) = moved.instance_pre()?.spawn(())?;
    /// let memory = instance.get_memory(&mut other, "memory").expect("it is exported");
    /// assert_eq!(&memory.data(&other)[..6], b"later\x01");
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn snapshot_to_move(&mut self) -> Result<Snapshot<T>> {
        self.snapshot_to_move_in(Vec::new())
    }

    /// As [`Store::snapshot_to_move`], which takes its copies of pages into `room`, whose contents are
    /// dropped, if that has room for them and not much more: memory that was asked for and touched before, while
    /// guests ran, costs no time now.
    ///
    /// # Errors
    /// As of [`Store::snapshot`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use pagefork::{Config, DeltaTracker, Engine, Linker, Module, StrategyConfig};
    /// # let mut config = Config::new();
    /// # config.strategies(StrategyConfig { deltas: DeltaTracker::Writes, ..StrategyConfig::default() });
    /// # let engine = Engine::new(&config)?;
    /// # let module = Module::new(&engine, r#"(module (memory (export "memory") 200))"#)?;
    /// # let (mut store, instance) = Linker::new(&engine).instantiate_pre(&module)?.spawn(())?;
    /// # let memory = instance.get_memory(&mut store, "memory").expect("it is exported");
    /// # memory.data_mut(&mut store).fill(1);
    /// let ahead = store.snapshot()?;
    /// let room = vec![1; 1 << 20]; // Zeros might not be touched.
    /// memory.write(&mut store, 0, b"later")?;
    /// let moved = store.snapshot_to_move_in(room)?;
    /// # let (mut other, instance) = moved.instance_pre()?.spawn(())?;
    /// # let memory = instance.get_memory(&mut other, "memory").expect("it is exported");
    /// # assert_eq!(&memory.data(&other)[..6], b"later\x01");
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn snapshot_to_move_in(&mut self, room: Vec<u8>) -> Result<Snapshot<T>> {
        Snapshot::take(self, None, CapturedFor::Move(room))
    }

    /// As [`Store::snapshot`], of a store whose guests hold references to values of the host:
    /// `save` says for each value that the store has given out a reference to what takes its place
    /// in the stores that are spawned.
    ///
    /// # Errors
    /// What `save` fails with; else as [`Store::snapshot`].
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::Arc;
    /// use pagefork::{Engine, ExternRef, Instance, Module, Store, Val};
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module
    ///     (global (export "value") (mut externref) (ref.null extern)))"#)?;
    /// let mut store = Store::new(&engine, ());
    /// let instance = Instance::new(&mut store, &module, &[])?;
    /// let global = instance.get_global(&mut store, "value").expect("it is exported");
    /// let reference = ExternRef::new(&mut store, String::from("a value"))?;
    /// global.set(&mut store, Val::ExternRef(Some(reference)))?;
    ///
    /// let snapshot = store.snapshot_with(|value| {
    ///     let text = value.downcast_ref::<String>().expect("there are no others");
    ///     Ok(Arc::new(format!("{text}, saved")))
    /// })?;
    /// let (mut other, instance) = snapshot.instance_pre()?.spawn(())?;
    /// let global = instance.get_global(&mut other, "value").expect("it is exported");
    /// let Val::ExternRef(Some(reference)) = global.get(&mut other) else { panic!("it is set") };
    /// assert_eq!(reference.data(&other)?.downcast_ref(), Some(&"a value, saved".to_owned()));
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn snapshot_with(
        &mut self,
        mut save: impl FnMut(&(dyn Any + Send + Sync)) -> Result<Arc<dyn Any + Send + Sync>>,
    ) -> Result<Snapshot<T>> {
        Snapshot::take(self, Some(&mut save), CapturedFor::Spawns)
    }

    /// As [`Store::reset`], but to what the instances were when the snapshot was taken,
    /// of this store, of the one that it was spawned as, or of another one that was spawned from
    /// the same [`InstancePre`]. No start function runs; a guest that was suspended is again.
    ///
    /// # Errors
    /// [`UsageError::WrongSnapshot`] if the store has other instances than the one that
    /// the snapshot is of, or a guest referred to a host function that this store does not
    /// have, [`LimitError`](crate::LimitError) if they had more then than the store may,
    /// and nothing has changed then; if the system or the store's limiter refuses something, as
    /// [`Store::reset`].
    ///
    /// # Examples
    ///
    /// See [`Snapshot`].
    pub fn reset_to(&mut self, snapshot: &Snapshot<T>, data: T) -> Result<T> {
        span!(DEBUG, "reset");
        snapshot.check(self.inner())?;
        // SAFETY: the store is borrowed.
        snapshot.fill(unsafe { &mut *self.as_ptr() })?;
        let old = self.replace_data(data);
        let store = self.as_ptr();
        // SAFETY: the store is borrowed, and the pointer is to the whole of it.
        let told = unsafe {
            limiter::allow_present(store)
                .and_then(|()| freeze::tell_restored(store, &snapshot.frozen))
        };
        match told {
            Ok(()) => Ok(old),
            Err(error) => {
                self.replace_data(old);
                Err(error)
            }
        }
    }

    /// As many stores that go on from where this one is, each with data of its own: `data` is
    /// given their numbers, from 0. This store stays as it is.
    ///
    /// # Errors
    /// As [`Store::snapshot`] and [`InstancePre::spawn`]: then there is none of them.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{CallProgress, Caller, Engine, Linker, Module, Result, Store};
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module
    ///     (import "host" "number" (func $number (result i32)))
    ///     (func (export "run") (result i32) (i32.mul (i32.const 10) (call $number))))"#)?;
    /// let mut linker = Linker::new(&engine);
    /// let number = |mut caller: Caller<'_, Option<i32>>| -> Result<i32> {
    ///     caller.data().ok_or_else(|| caller.suspend_before())
    /// };
    /// linker.func_wrap("host", "number", number)?;
    /// let mut store = Store::new(&engine, None);
    /// let run = linker.instantiate(&mut store, &module)?.get_func(&mut store, "run").unwrap();
    /// run.call_suspendable(&mut store, &[])?;
    ///
    /// // Each goes on from inside `run`, with the number that it has.
    /// for (number, mut fork) in (0..).zip(store.fork(3, |number| Some(number as i32))?) {
    ///     let CallProgress::Finished(results) = fork.resume()? else { panic!("it has a number") };
    ///     assert_eq!(results[0].i32(), Some(10 * number));
    /// }
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn fork(&mut self, count: usize, mut data: impl FnMut(usize) -> T) -> Result<Vec<Self>> {
        let pre = self.snapshot()?.instance_pre()?;
        (0..count).map(|number| Ok(pre.spawn(data(number))?.0)).collect()
    }

    /// What in this store, which was [spawned](Snapshot::instance_pre) from a snapshot, corresponds
    /// to something of the store that the snapshot was taken of.
    ///
    /// # Errors
    /// [`UsageError::WrongStore`] if this store was not spawned from a snapshot of that one, or that
    /// was made after the snapshot.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Engine, Memory, MemoryType, Store};
    ///
    /// let mut store = Store::new(&Engine::default(), ());
    /// let memory = Memory::new(&mut store, MemoryType::new(1, None))?;
    /// memory.write(&mut store, 0, b"some bytes")?;
    /// let mut fork = store.fork(1, |_| ())?.remove(0);
    /// let memory = fork.counterpart(memory)?.into_memory().expect("it is one");
    /// assert_eq!(&memory.data(&fork)[..10], b"some bytes");
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn counterpart(&mut self, of: impl Into<Extern>) -> Result<Extern> {
        of.into().counterpart(self.inner())
    }

    /// As [`Store::counterpart`], of an instance.
    ///
    /// # Errors
    /// As [`Store::counterpart`].
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Engine, Instance, Module, Store};
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module (memory (export "memory") 1))"#)?;
    /// let mut store = Store::new(&engine, ());
    /// let instances = [Instance::new(&mut store, &module, &[])?, Instance::new(&mut store, &module, &[])?];
    /// let first = instances[0].get_memory(&mut store, "memory").expect("it is exported");
    /// first.write(&mut store, 0, b"first")?;
    ///
    /// let mut fork = store.fork(1, |_| ())?.remove(0);
    /// let first = fork.counterpart_instance(instances[0])?;
    /// let memory = first.get_memory(&mut fork, "memory").expect("it is exported");
    /// assert_eq!(&memory.data(&fork)[..5], b"first");
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn counterpart_instance(&mut self, of: Instance) -> Result<Instance> {
        of.counterpart(self.inner())
    }
}

impl<T> Snapshot<T> {
    pub(crate) fn new(frozen: Arc<Frozen>) -> Self {
        Self { frozen, data: std::marker::PhantomData }
    }

    pub(crate) fn frozen(&self) -> &Arc<Frozen> {
        &self.frozen
    }
}

impl<T: 'static> Snapshot<T> {
    fn take(
        store: &mut Store<T>,
        save: Option<&mut SaveReference<'_>>,
        captured_for: CapturedFor,
    ) -> Result<Self> {
        // SAFETY: the store is borrowed.
        let store = unsafe { &mut *store.as_ptr() };
        Ok(Self::new(Arc::new(freeze::freeze(store, save, captured_for)?)))
    }

    /// What spawns stores that begin as the snapshot is, whole: all instances of it, and a guest
    /// that was suspended. No start function runs. The instance that spawning returns is the one
    /// whose function was called, or else the one that was made last;
    /// [`Store::counterpart`] finds the others.
    ///
    /// Guests hold copies of all that they had, their random number generators among it. What they
    /// get from the host is new. A function `pagefork_after_restore` without parameters and
    /// results that an instance exports is called whenever it was restored: here, by
    /// [`Store::reset`] of a spawned store, which returns to the snapshot, and by
    /// [`Store::reset_to`]. It can call host functions, but those can call no guests.
    ///
    /// # Errors
    /// [`UsageError::WrongSnapshot`] if it is of a store without instances.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Engine, Instance, Module, Store};
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module
    ///     (global $x (mut i32) (i32.const 0))
    ///     (func $start (global.set $x (i32.const 40)))
    ///     (start $start)
    ///     (func (export "next") (result i32)
    ///         (global.set $x (i32.add (global.get $x) (i32.const 1))) (global.get $x)))"#)?;
    /// let mut store = Store::new(&engine, ());
    /// let instance = Instance::new(&mut store, &module, &[])?;
    /// instance.get_typed_func::<(), i32>(&mut store, "next")?.call(&mut store, ())?;
    ///
    /// let pre = store.snapshot()?.instance_pre()?;
    /// for _ in 0..3 {
    ///     let (mut store, instance) = pre.spawn(())?;
    ///     let next = instance.get_typed_func::<(), i32>(&mut store, "next")?;
    ///     assert_eq!(next.call(&mut store, ())?, 42);
    /// }
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn instance_pre(&self) -> Result<InstancePre<T>> {
        match self.frozen.main {
            0 => Err(UsageError::WrongSnapshot("there is no instance in it").into()),
            _ => Ok(InstancePre::of_frozen(Arc::clone(&self.frozen))),
        }
    }

    fn check(&self, store: &StoreGroup) -> Result<()> {
        let wrong = |why| Err(UsageError::WrongSnapshot(why).into());
        let frozen = &*self.frozen;
        let same = |(own, other): (&InstanceData, &FrozenInstance)| {
            Module::same(&own.module, &other.module)
        };
        if frozen.instances.len() != store.instances.len()
            || !store.instances.iter().zip(&frozen.instances).all(same)
        {
            return wrong("it is of other instances");
        }
        // Of another store everything that is no instance must be the same by its place:
        // that is known of spawned ones alone.
        let same_home = frozen.home.is_some()
            && frozen.home == store.home_number()
            && frozen.instances.len() == store.origin_count().max(1);
        let is_origin = |origin| Arc::ptr_eq(origin, &self.frozen);
        let is_spawned = store.origin.as_ref().is_some_and(is_origin);
        if frozen.store != store.id && !same_home && !is_spawned {
            return wrong("it is of another store, not spawned from the same `InstancePre`");
        }
        let known = |index: u32, function: &Arc<HostFunc>| {
            let own = store.host_functions().get(index as usize);
            own.is_some_and(|own| Arc::ptr_eq(own, function))
        };
        let mut all = (0..).zip(&frozen.host_functions);
        // Frames may hold the number of any.
        let needed = |index| frozen.call.is_some() || frozen.referred.binary_search(&index).is_ok();
        if !all.all(|(index, function)| !needed(index) || known(index, function)) {
            return wrong("its guest refers to a host function that this store does not have");
        }
        frozen.check_limits(&store.limits)
    }

    fn fill(&self, store: &mut StoreGroup) -> Result<()> {
        store.set_broken(true);
        for (instance, frozen) in store.instances.iter_mut().zip(&self.frozen.instances) {
            // The owner stays the same: it is the same tenant of the same module.
            instance.filled_otherwise = true;
            instance.slot.reset_to(&frozen.image, &frozen.sizes, Owner(0))?;
        }
        store.note_absent_pages();
        store.set_broken(false);
        store.forget_run();
        match self.frozen.references.is_empty() {
            true => store.give_up_references(),
            false => store.references.clear(),
        }
        for ordinal in 1..store.next_ordinal() {
            store.write_link(ordinal);
        }
        store.interrupts.show_again();
        freeze::thaw(store, &self.frozen);
        Ok(())
    }
}

impl<T> fmt::Debug for Snapshot<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot")
            .field("instances", &self.frozen.instances.len())
            .field("is_suspended", &self.frozen.call.is_some())
            .finish_non_exhaustive()
    }
}
