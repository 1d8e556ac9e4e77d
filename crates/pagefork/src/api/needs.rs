//! What a store needs of a machine that it is to go on at.

use crate::api::store::Store;
use crate::run::code_store;

impl<T> Store<T> {
    /// Bytes of all memories of the store's instances, as they are now: what
    /// [`StoreLimits::memory_total`](crate::StoreLimits::memory_total) limits.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Engine, Instance, Module, Store};
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, "(module (memory 3))")?;
    /// let mut store = Store::new(&engine, ());
    /// Instance::new(&mut store, &module, &[])?;
    /// assert_eq!(store.memory_total(), 3 << 16);
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn memory_total(&self) -> u64 {
        self.full().inner.memory_total()
    }

    /// The processors that the code of the store's instances was made for, in words as
    /// [images](crate::image::SavedCode::processor) have them: each once.
    /// [`IncompleteImage::check_code`](crate::IncompleteImage::check_code) says whether it runs on a machine.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Engine, Instance, Module, Store};
    ///
    /// let engine = Engine::default();
    /// let mut store = Store::new(&engine, ());
    /// assert!(store.processors().is_empty());
    /// Instance::new(&mut store, &Module::new(&engine, "(module)")?, &[])?;
    /// assert!(store.processors()[0].starts_with("x86-64-v"));
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn processors(&self) -> Vec<String> {
        let modules = self.full().inner.instances.iter().map(|instance| &instance.module);
        let mut all: Vec<String> = modules.filter_map(code_store::processor).collect();
        all.sort();
        all.dedup();
        all
    }
}
