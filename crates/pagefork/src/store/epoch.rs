//! Deadlines of stores, in epochs of their engines.

use std::sync::Arc;

use crate::base::error::Result;
use crate::code::epochs::EpochClock;
use crate::store::group::StoreGroup;
use crate::store::interrupt::{EpochWatch, Interrupts, watch_deadlines};

/// What becomes of a guest whose store's deadline has come: see
/// [`Store::epoch_deadline_callback`](crate::Store::epoch_deadline_callback).
///
/// # Examples
///
/// ```
/// use pagefork::{Engine, Instance, Module, Store, UpdateDeadline};
///
/// let engine = Engine::default();
/// let module = Module::new(&engine, r#"(module (func (export "spin") (loop (br 0))))"#)?;
/// let mut store = Store::new(&engine, 0);
/// let instance = Instance::new(&mut store, &module, &[])?;
/// store.set_epoch_deadline(0);
/// store.epoch_deadline_callback(|mut store| {
///     *store.data_mut() += 1;
///     Ok(match *store.data() {
///         1..=4 => UpdateDeadline::Continue(0),
///         _ => UpdateDeadline::Interrupt,
///     })
/// });
/// let spin = instance.get_typed_func::<(), ()>(&mut store, "spin")?;
/// assert!(spin.call(&mut store, ()).is_err());
/// assert_eq!(*store.data(), 5);
/// # Ok::<(), pagefork::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum UpdateDeadline {
    /// It goes on, and the next deadline is so many epochs from now.
    Continue(u64),
    /// It lets the executor poll others first, as at the end of a
    /// [turn](crate::Store::set_yield_interval), and the next deadline is so many epochs from now. For guests that were
    /// called with `call_async`; others fail.
    Yield(u64),
    /// It traps, as if there were no callback.
    Interrupt,
}

/// What is called where a guest has come to a deadline.
///
/// # Safety
/// Called with a store whose data has the type that the closure was made for, exclusively the
/// caller's, with the provenance of the whole store.
pub(crate) type EpochCallback = dyn FnMut(*mut StoreGroup) -> Result<UpdateDeadline> + Send + Sync;

/// The deadline of a store, and what happens then: a trap, if there is no callback.
#[derive(Default)]
pub(crate) struct StoreEpochs {
    watch: Option<EpochWatch>,
    pub(crate) callback: Option<Box<EpochCallback>>,
}

impl StoreGroup {
    /// Sees that the store's deadline in epochs is watched.
    ///
    /// # Errors
    /// If it cannot be.
    pub(crate) fn check_watched(&self) -> Result<()> {
        match self.epochs.is_unwatched() {
            true => Ok(watch_deadlines()?),
            false => Ok(()),
        }
    }
}

impl StoreEpochs {
    /// Sets the deadline to so many epochs from now.
    pub(crate) fn set_deadline(
        &mut self,
        epochs: &Arc<EpochClock>,
        interrupts: &Arc<Interrupts>,
        ticks: u64,
    ) {
        let deadline = epochs.now().saturating_add(ticks);
        // The old one goes first: it takes what it has requested back.
        self.watch = None;
        self.watch = Some(EpochWatch::new(epochs, deadline, interrupts));
    }

    /// Sets what happens at the deadline.
    pub(crate) fn set_callback(
        &mut self,
        callback: Option<Box<EpochCallback>>,
        interrupts: &Interrupts,
    ) {
        interrupts.set_epoch_traps(callback.is_none());
        self.callback = callback;
    }

    /// Forgets the deadline and what happens then.
    pub(crate) fn forget(&mut self, interrupts: &Interrupts) {
        if self.callback.is_some() {
            self.set_callback(None, interrupts);
        }
        self.watch = None;
    }

    /// Whether a deadline is set that nothing looks at, because no thread could be started.
    pub(crate) fn is_unwatched(&self) -> bool {
        self.watch.as_ref().is_some_and(|watch| !watch.is_watched())
    }
}
