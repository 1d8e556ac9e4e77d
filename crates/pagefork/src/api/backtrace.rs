//! Backtraces of guests that are in a host function.

use crate::api::instance::Instance;
use crate::api::store::AsContext;
use crate::base::frames::{Frame, WasmBacktrace};

impl Frame {
    /// The instance whose function it was; `None` if that is of another store, or is gone.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Engine, Instance, Module, Store};
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module (func (export "run") (unreachable)))"#)?;
    /// let mut store = Store::new(&engine, ());
    /// let instance = Instance::new(&mut store, &module, &[])?;
    /// let run = instance.get_typed_func::<(), ()>(&mut store, "run")?;
    /// let error = run.call(&mut store, ()).unwrap_err();
    /// let frame = &error.backtrace().expect("a guest ran").frames()[0];
    /// assert_eq!(frame.instance(&store), Some(instance));
    /// assert_eq!(frame.instance(&Store::new(&engine, ())), None);
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn instance(&self, store: impl AsContext) -> Option<Instance> {
        let store = &store.as_context().0.inner;
        let is_there = store.id.number() == self.store && self.instance < store.next_ordinal();
        is_there.then(|| Instance::from_ordinal(store, self.instance))
    }
}

impl WasmBacktrace {
    /// The frames of the store's guests that wait for host functions now, innermost first: for
    /// host functions that tell who called them. Empty where no guest is in one. In an asynchronous
    /// function these are the same before it has waited and after, when the guest is suspended.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Caller, Engine, Linker, Module, Store, WasmBacktrace};
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module
    ///     (import "host" "log" (func $log))
    ///     (func $work (call $log))
    ///     (func (export "run") (call $work)))"#)?;
    /// let mut linker = Linker::new(&engine);
    /// linker.func_wrap("host", "log", |mut caller: Caller<'_, Vec<String>>| {
    ///     let trace = WasmBacktrace::capture(&caller);
    ///     let name = trace.frames()[0].function_name().unwrap_or("?").to_owned();
    ///     caller.data_mut().push(name);
    /// })?;
    /// let mut store = Store::new(&engine, Vec::new());
    /// let instance = linker.instantiate(&mut store, &module)?;
    /// instance.get_typed_func::<(), ()>(&mut store, "run")?.call(&mut store, ())?;
    /// assert_eq!(*store.data(), ["work"]);
    /// assert!(WasmBacktrace::capture(&store).frames().is_empty());
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn capture(store: impl AsContext) -> Self {
        // SAFETY: who has the store while a guest is entered is in a host function that the
        // guest called.
        unsafe { Self::of_waiting(&store.as_context().0.inner) }
    }

    /// [`WasmBacktrace::capture`]: no configuration switches backtraces off.
    ///
    /// # Examples
    ///
    /// See [`WasmBacktrace::capture`].
    pub fn force_capture(store: impl AsContext) -> Self {
        Self::capture(store)
    }
}
