//! Epochs as embedders use them: a clock of the engine's that the embedder drives.

use crate::api::store::{Store, StoreContextMut};
use crate::base::error::Result;
use crate::code::engine::Engine;
use crate::store::epoch::UpdateDeadline;
use crate::store::group::StoreGroup;

impl Engine {
    /// Goes on to the next epoch. Guests trap, or their stores' callbacks are asked, where the
    /// epoch is a store's [deadline](Store::set_epoch_deadline).
    ///
    /// Any thread may call it, a signal handler too. It is an atomic addition, and, if a store
    /// of this engine has a deadline that has not come, a system call, which wakes a thread of
    /// this crate. That thread interrupts the guests whose deadlines have come, so it takes as
    /// long as the system takes to run it. Guests pay nothing for epochs: they test
    /// what they test for interrupts anyway, at function entries and loops.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Engine, Instance, Module, Store, Trap, TrapCode};
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module (func (export "spin") (loop (br 0))))"#)?;
    /// let mut store = Store::new(&engine, ());
    /// let instance = Instance::new(&mut store, &module, &[])?;
    /// let spin = instance.get_typed_func::<(), ()>(&mut store, "spin")?;
    ///
    /// store.set_epoch_deadline(2);
    /// let clock = engine.weak();
    /// let ticker = std::thread::spawn(move || {
    ///     for _ in 0..2 {
    ///         std::thread::sleep(std::time::Duration::from_millis(1));
    ///         if let Some(engine) = clock.upgrade() {
    ///             engine.increment_epoch();
    ///         }
    ///     }
    /// });
    /// let error = spin.call(&mut store, ()).unwrap_err();
    /// assert_eq!(error.downcast_ref::<Trap>().expect("a trap").code(), TrapCode::Interrupt);
    /// ticker.join().expect("it ends");
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn increment_epoch(&self) {
        self.epochs().advance();
    }
}

impl<T> Store<T> {
    /// Sets the store's deadline to so many epochs of its engine from now: see
    /// [`Engine::increment_epoch`]. A guest that runs when it has come, or is called afterwards,
    /// traps with [`TrapCode::Interrupt`](crate::TrapCode) at its next function entry or loop,
    /// or what [`Store::epoch_deadline_callback`] has set is asked. It stays until another one
    /// is set, also after a reset; without one, which is the default, epochs do nothing. A guest
    /// that waits for an [asynchronous](crate::Linker::func_wrap_async) host function traps at once;
    /// others that wait can ask [`Caller::interruption`](crate::Caller::interruption).
    ///
    /// To set it takes a lock of the process; calls cost nothing more. Where the thread that
    /// watches deadlines cannot be started, the next call is an error. In a process that was
    /// forked by the C library deadlines hold on; after a bare system call they must be set again.
    ///
    /// # Panics
    /// If the engine's code cannot be interrupted: see
    /// [`Config::interruption`](crate::Config::interruption).
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Engine, Instance, Module, Store};
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module (func (export "run")))"#)?;
    /// let mut store = Store::new(&engine, ());
    /// let instance = Instance::new(&mut store, &module, &[])?;
    /// let run = instance.get_typed_func::<(), ()>(&mut store, "run")?;
    /// store.set_epoch_deadline(1);
    /// run.call(&mut store, ())?;
    /// engine.increment_epoch();
    /// // Whoever watches the clock notices it a moment later.
    /// while run.call(&mut store, ()).is_ok() {}
    /// store.set_epoch_deadline(1);
    /// run.call(&mut store, ())?;
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn set_epoch_deadline(&mut self, ticks_beyond_current: u64) {
        self.inner_mut().set_epoch_deadline(ticks_beyond_current);
    }

    /// Has guests trap at the deadline, as they do if nothing is said.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Engine, Instance, Module, Store, UpdateDeadline};
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module (func (export "spin") (loop (br 0))))"#)?;
    /// let mut store = Store::new(&engine, ());
    /// let instance = Instance::new(&mut store, &module, &[])?;
    /// let spin = instance.get_typed_func::<(), ()>(&mut store, "spin")?;
    /// // With this callback the guest would never end.
    /// store.epoch_deadline_callback(|_| Ok(UpdateDeadline::Continue(1)));
    /// store.epoch_deadline_trap();
    /// store.set_epoch_deadline(1);
    /// engine.increment_epoch();
    /// assert!(spin.call(&mut store, ()).is_err());
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn epoch_deadline_trap(&mut self) {
        self.inner_mut().set_epoch_callback(None);
    }

    /// Has guests that were called with `call_async` let the executor poll others at the deadline, which then is
    /// so many epochs later: a [callback](Store::epoch_deadline_callback) that says
    /// [`UpdateDeadline::Yield`]. Guests that were called otherwise fail at it.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::future::Future;
    /// use std::task::{Context, Waker};
    /// use pagefork::{Engine, Instance, Module, Store};
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module (func (export "spin") (loop (br 0))))"#)?;
    /// let mut store = Store::new(&engine, ());
    /// let instance = Instance::new(&mut store, &module, &[])?;
    /// store.epoch_deadline_async_yield_and_update(1);
    /// store.set_epoch_deadline(1);
    /// engine.increment_epoch();
    /// let spin = instance.get_typed_func::<(), ()>(&mut store, "spin")?;
    /// let mut call = Box::pin(spin.call_async(&mut store, ()));
    /// let mut context = Context::from_waker(Waker::noop());
    /// for _ in 0..3 {
    ///     assert!(call.as_mut().poll(&mut context).is_pending());
    ///     engine.increment_epoch();
    /// }
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn epoch_deadline_async_yield_and_update(&mut self, delta: u64) {
        let callback = move |_: *mut StoreGroup| Ok(UpdateDeadline::Yield(delta));
        self.inner_mut().set_epoch_callback(Some(Box::new(callback)));
    }

    /// Has guests wait at the deadline while `callback` says what becomes of them. It
    /// can use the store, and call guests of it; they come to the deadline too, if the callback
    /// does not set another one first, and trap.
    ///
    /// An error that it returns ends the guest, as that of a host function.
    ///
    /// # Examples
    ///
    /// See [`UpdateDeadline`].
    pub fn epoch_deadline_callback(
        &mut self,
        mut callback: impl FnMut(StoreContextMut<'_, T>) -> Result<UpdateDeadline>
        + Send
        + Sync
        + 'static,
    ) {
        let callback = move |store: *mut StoreGroup| {
            // SAFETY: `EpochCallback` says that it is a whole store with a `T`, exclusively ours.
            callback(StoreContextMut(unsafe { &mut *store.cast() }))
        };
        self.inner_mut().set_epoch_callback(Some(Box::new(callback)));
    }

    fn inner_mut(&mut self) -> &mut StoreGroup {
        // SAFETY: the store is borrowed.
        unsafe { &mut *self.as_ptr() }
    }
}

impl<T> StoreContextMut<'_, T> {
    /// Sets the store's deadline: see [`Store::set_epoch_deadline`].
    ///
    /// # Panics
    /// As [`Store::set_epoch_deadline`].
    ///
    /// # Examples
    ///
    /// See [`Store::set_epoch_deadline`].
    pub fn set_epoch_deadline(&mut self, ticks_beyond_current: u64) {
        self.0.inner.set_epoch_deadline(ticks_beyond_current);
    }
}
