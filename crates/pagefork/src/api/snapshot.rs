//! Snapshots of stores between calls.

use std::fmt;
use std::sync::Arc;

use pagefork_layout::module::HeapType;
use pagefork_pages::{Image, MemorySize, Owner};

use crate::api::store::Store;
use crate::base::error::{LimitError, Result, UsageError};
use crate::base::trace::span;
use crate::code::module::Module;
use crate::run::contents::make_image;
use crate::run::limiter;
use crate::store::group::{StoreGroup, StoreId};
use crate::store::host_func::HostFunc;
use crate::store::limits;

/// What the instances of a store were at some time: their memories, tables, globals and
/// all else that guests can see or change, as images that slots are filled from. What the
/// embedder's data was is the embedder's.
///
/// Cheap to clone: clones share the images. Host functions that guests refer to live as long
/// as the snapshot.
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
#[derive(Clone)]
pub struct Snapshot(Arc<SnapshotInner>);

struct SnapshotInner {
    instances: Vec<InstanceSnapshot>,
    /// The host functions that tables and globals refer to, each with its number in the
    /// store, which is all that a reference says of it.
    host_functions: Vec<(u32, Arc<HostFunc>)>,
    /// The store that it was taken of.
    store: StoreId,
    /// What its instance was spawned from.
    home: Option<u64>,
}

struct InstanceSnapshot {
    module: Module,
    image: Arc<Image>,
    sizes: Vec<MemorySize>,
    /// Of its longest table.
    table_elements: u64,
}

impl<T> Store<T> {
    /// What the store's instances are now. Neither they nor what [`Store::reset`] returns
    /// to change by it.
    ///
    /// # Errors
    /// [`UsageError::NoSnapshot`] if a guest of the store is suspended, or holds
    /// references to host values or exceptions; else if the system refuses memory.
    pub fn snapshot(&mut self) -> Result<Snapshot> {
        Snapshot::take(self.inner())
    }

    /// As [`Store::reset`], but to what the instances were when the snapshot was taken,
    /// of this store or of another one that was spawned from the same
    /// [`InstancePre`](crate::InstancePre). No start function runs.
    ///
    /// # Errors
    /// [`UsageError::WrongSnapshot`] if the store has other instances than the one that
    /// the snapshot is of, or a guest referred to a host function that this store does not
    /// have, [`LimitError`] if they had more then than the store may,
    /// and nothing has changed then; if the system or the store's limiter refuses something, as
    /// [`Store::reset`].
    pub fn reset_to(&mut self, snapshot: &Snapshot, data: T) -> Result<T> {
        span!(DEBUG, "reset");
        snapshot.check(self.inner())?;
        // SAFETY: the store is borrowed.
        snapshot.fill(unsafe { &mut *self.as_ptr() })?;
        let old = self.replace_data(data);
        // SAFETY: the store is borrowed, and the pointer is to the whole of it.
        match unsafe { limiter::allow_present(self.as_ptr()) } {
            Ok(()) => Ok(old),
            Err(error) => {
                self.replace_data(old);
                Err(error)
            }
        }
    }
}

impl Snapshot {
    fn take(store: &StoreGroup) -> Result<Self> {
        store.check_usable()?;
        let mut instances = Vec::with_capacity(store.instances.len());
        let mut host_functions = Vec::new();
        for ordinal in 1..store.next_ordinal() {
            check_contents(store, ordinal)?;
            store.each_host_function(ordinal, |index| host_functions.push(index));
            instances.push(InstanceSnapshot {
                module: store.instance(ordinal).module.clone(),
                image: make_image(store, ordinal)?,
                sizes: store.present_sizes(ordinal),
                table_elements: store.table_elements(ordinal),
            });
        }
        host_functions.sort_unstable();
        host_functions.dedup();
        let function = |index: u32| (index, Arc::clone(&store.host_functions()[index as usize]));
        let host_functions = host_functions.into_iter().map(function).collect();
        let home = store.home_number();
        Ok(Self(Arc::new(SnapshotInner { instances, host_functions, store: store.id, home })))
    }

    fn check(&self, store: &StoreGroup) -> Result<()> {
        let wrong = |why| Err(UsageError::WrongSnapshot(why).into());
        let SnapshotInner { instances, host_functions, store: id, home } = &*self.0;
        let same = |(own, other): (&crate::store::group::InstanceData, &InstanceSnapshot)| {
            Module::same(&own.module, &other.module)
        };
        if instances.len() != store.instances.len()
            || !store.instances.iter().zip(instances).all(same)
        {
            return wrong("it is of other instances");
        }
        // Of another store everything that is no instance must be the same by its place:
        // that is known of spawned ones alone.
        let same_home = home.is_some() && *home == store.home_number() && instances.len() == 1;
        if *id != store.id && !same_home {
            return wrong("it is of another store, not spawned from the same `InstancePre`");
        }
        let known = |(index, function): &(u32, Arc<HostFunc>)| {
            let own = store.host_functions().get(*index as usize);
            own.is_some_and(|own| Arc::ptr_eq(own, function))
        };
        if !host_functions.iter().all(known) {
            return wrong("its guest refers to a host function that this store does not have");
        }
        let (mut memory_total, limits) = (0u64, &store.limits);
        for instance in instances {
            limits::check("elements of a table", instance.table_elements, limits.table_elements)?;
            for size in &instance.sizes {
                limits::check("bytes of a memory", size.initial, limits.memory_size)?;
                memory_total = memory_total.saturating_add(size.initial);
            }
        }
        Ok(limits::check(LimitError::MEMORY_TOTAL, memory_total, limits.memory_total)?)
    }

    fn fill(&self, store: &mut StoreGroup) -> Result<()> {
        store.set_broken(true);
        for (instance, snapshot) in store.instances.iter_mut().zip(&self.0.instances) {
            // The owner stays the same: it is the same tenant of the same module.
            instance.filled_otherwise = true;
            instance.slot.reset_to(&snapshot.image, &snapshot.sizes, Owner(0))?;
        }
        store.set_broken(false);
        store.forget_run();
        store.give_up_references();
        for ordinal in 1..store.next_ordinal() {
            store.write_link(ordinal);
        }
        store.interrupts.show_again();
        Ok(())
    }
}

/// # Errors
/// If the instance holds what means nothing outside its store as it is now.
fn check_contents(store: &StoreGroup, ordinal: u32) -> Result<()> {
    let mut refused = None;
    store.each_reference(ordinal, |ty, word| match ty.heap.top() {
        _ if word == 0 => (),
        HeapType::Extern => refused = Some("a guest holds a reference to a value of the host"),
        HeapType::Exn => refused = Some("a guest holds an exception"),
        _ => (),
    });
    refused.map_or(Ok(()), |why| Err(UsageError::NoSnapshot(why).into()))
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.0.instances.len();
        f.debug_struct("Snapshot").field("instances", &count).finish_non_exhaustive()
    }
}
