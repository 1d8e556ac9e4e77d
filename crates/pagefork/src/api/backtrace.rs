//! Backtraces of guests that are in a host function.

use crate::api::store::AsContext;
use crate::base::frames::WasmBacktrace;

impl WasmBacktrace {
    /// The frames of the store's guests that wait for host functions now, innermost first: for
    /// host functions that tell who called them. Empty where no guest is in one.
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
        let store = &store.as_context().0.inner;
        let activation = &store.activation;
        if !activation.is_active() {
            return Self::default();
        }
        // SAFETY: who has the store while a guest is entered is in a host function that the
        // guest called, and during a host call `guest_sp` is the frame pointer of the thunk.
        unsafe { Self::from_frames(store, &[], activation.guest_sp, activation.host_sp) }
    }

    /// [`WasmBacktrace::capture`]: no configuration switches backtraces off.
    pub fn force_capture(store: impl AsContext) -> Self {
        Self::capture(store)
    }
}
