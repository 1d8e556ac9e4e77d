//! Hooks of stores with the embedder's data.

use crate::api::store::{Store, StoreContextMut};
use crate::base::error::Result;
use crate::store::call_hook::CallHook;
use crate::store::group::StoreGroup;

impl<T> Store<T> {
    /// Has `hook` told whenever a guest of the store is entered or left from now on: calls of
    /// guests, start functions and calls within host functions too, and the host functions that
    /// guests call. Host functions that the embedder calls itself are not told.
    ///
    /// An error before a call is the error of the call; one after it is so instead of its result
    /// or its own error. What the hook calls in the store is not told.
    ///
    /// Stores without a hook pay nothing for it. With one, guests call host functions with
    /// arguments in memory, and calls take several times as long. A spawned store loses its hook
    /// when it is dropped.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{CallHook, Engine, Linker, Module, Store};
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module
    ///     (import "host" "work" (func $work))
    ///     (func (export "run") (call $work)))"#)?;
    /// let mut linker = Linker::new(&engine);
    /// linker.func_wrap("host", "work", || ())?;
    /// let mut store = Store::new(&engine, Vec::new());
    /// store.call_hook(|mut store, hook| {
    ///     store.data_mut().push(hook);
    ///     Ok(())
    /// });
    /// let instance = linker.instantiate(&mut store, &module)?;
    /// instance.get_typed_func::<(), ()>(&mut store, "run")?.call(&mut store, ())?;
    /// use CallHook::*;
    /// assert_eq!(*store.data(), [CallingWasm, CallingHost, ReturningFromHost, ReturningFromWasm]);
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn call_hook(
        &mut self,
        mut hook: impl FnMut(StoreContextMut<'_, T>, CallHook) -> Result<()> + Send + Sync + 'static,
    ) {
        let hook = move |store: *mut StoreGroup, what: CallHook| {
            // SAFETY: `HookCallback` says that it is a whole store with a `T`, exclusively ours.
            hook(StoreContextMut(unsafe { &mut *store.cast() }), what)
        };
        // SAFETY: the store is borrowed.
        unsafe { (*self.as_ptr()).set_call_hook(Some(Box::new(hook))) };
    }
}
