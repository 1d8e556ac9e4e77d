//! Snapshots that outlive their process: saved in a store of images, and loaded by another.

use std::any::Any;
use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use pagefork_compiler::file::CodeImageError;
use pagefork_image::{
    ContentHash, ImageChain, ImageDraft, ImageError, ImageStore, SavedHolder, SecretKey,
    StoredImage, TrustedKeys,
};
use pagefork_layout::reference::HOST_ORDINAL;
use pagefork_pages::IncompletePages;

use crate::api::linker::Linker;
use crate::api::snapshot::Snapshot;
use crate::api::store::Store;
use crate::api::stored::attachments::Attachments;
use crate::base::error::{Error, LinkError, Result, SnapshotError, UsageError};
use crate::code::engine::Engine;
use crate::code::module::Module;
use crate::run::contents::ExpectedSlots;
use crate::run::image_pages::{CapturedPages, ChainPages, ParentPages};
use crate::run::load::{self, Given};
use crate::run::save::{self, Naming};
use crate::run::{code_store, manifest};
use crate::store::frozen::{Frozen, SavedAs};
use crate::store::group::StoreId;
use crate::store::handle::Func;
use crate::store::host_func::{HostFunc, HostFuncNames};
use crate::store::record::{HostFuncRecord, InstanceOrigin, StoreRecord};

mod attachments;
#[cfg(test)]
mod fixture;
#[cfg(test)]
mod tests;

/// What is said when a snapshot is [saved](Snapshot::save): all of it is optional.
///
/// # Examples
///
/// See [`Snapshot::save`].
#[derive(Default)]
pub struct SaveOptions<'a> {
    naming: Naming<'a>,
    named: Vec<(Func, HostFuncNames)>,
    state: Vec<u8>,
    parent: Option<Arc<Frozen>>,
    signers: &'a [SecretKey],
    holders: Vec<SavedHolder>,
    modules: Vec<&'a [u8]>,
    attachments: Attachments<'a>,
}

impl<'a> SaveOptions<'a> {
    /// Nothing is said.
    ///
    /// # Examples
    ///
    /// See [`Snapshot::save`].
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes of the embedder's, which who loads the snapshot gets back by [`Snapshot::state`]: the
    /// state of WASI, for example.
    ///
    /// # Examples
    ///
    /// See [`Snapshot::save`].
    #[must_use]
    pub fn state(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.state = bytes.into();
        self
    }

    /// The names by which a linker is to know a function of the host that no linker has defined, as
    /// one that was made by [`Func::wrap`]. It is one of the store that the snapshot was taken of.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::image::ImageStore;
    /// use pagefork::{
    ///     Engine, Func, Instance, Linker, LoadOptions, Module, SaveOptions, Snapshot, Store,
    /// };
    ///
    /// # let directory = std::env::temp_dir().join(format!("pagefork-named-{}", std::process::id()));
    /// let images = ImageStore::open(&directory)?;
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module
    ///     (import "" "" (func $double (param i32) (result i32)))
    ///     (func (export "run") (result i32) (call $double (i32.const 21))))"#)?;
    /// let mut store = Store::new(&engine, ());
    /// let double = Func::wrap(&mut store, |x: i32| x * 2);
    /// Instance::new(&mut store, &module, &[double.into()])?;
    /// let options = SaveOptions::new().name_host_function(double, "host", "double");
    /// let image = store.snapshot()?.save(&images, options)?;
    ///
    /// let mut linker = Linker::new(&engine);
    /// linker.func_wrap("host", "double", |x: i32| x * 2)?;
    /// let options = LoadOptions::new().module(&module);
    /// let snapshot = Snapshot::load(&linker, &images, image, options)?;
    /// let (mut store, instance) = snapshot.instance_pre()?.spawn(())?;
    /// assert_eq!(instance.get_typed_func::<(), i32>(&mut store, "run")?.call(&mut store, ())?, 42);
    /// # std::fs::remove_dir_all(directory).unwrap();
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    #[must_use]
    pub fn name_host_function(mut self, function: Func, module: &str, name: &str) -> Self {
        self.named.push((function, HostFuncNames { module: module.into(), name: name.into() }));
        self
    }

    /// What is kept of each value of the host that guests hold a reference to: bytes, of which
    /// [`LoadOptions::references`] makes a value again.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::any::Any;
    /// use std::sync::Arc;
    ///
    /// use pagefork::image::ImageStore;
    /// use pagefork::{
    ///     Engine, ExternRef, Instance, Linker, LoadOptions, Module, Result, SaveOptions, Snapshot, Store,
    /// };
    ///
    /// # let directory = std::env::temp_dir().join(format!("pagefork-references-{}", std::process::id()));
    /// let images = ImageStore::open(&directory)?;
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module
    ///     (global (export "value") (mut externref) (ref.null extern)))"#)?;
    /// let mut store = Store::new(&engine, ());
    /// let instance = Instance::new(&mut store, &module, &[])?;
    /// let reference = ExternRef::new(&mut store, String::from("a value"))?;
    /// let global = instance.get_global(&mut store, "value").expect("it is exported");
    /// global.set(&mut store, reference.into())?;
    ///
    /// // All values of this host are strings, and are saved as such.
    /// let snapshot = store.snapshot_with(|value| {
    ///     let text = value.downcast_ref::<String>().expect("there are no others");
    ///     Ok(Arc::new(text.clone()))
    /// })?;
    /// let mut save = |value: &(dyn Any + Send + Sync)| -> Result<Vec<u8>> {
    ///     Ok(value.downcast_ref::<String>().expect("there are no others").clone().into_bytes())
    /// };
    /// let image = snapshot.save(&images, SaveOptions::new().references(&mut save))?;
    ///
    /// let mut load = |bytes: &[u8]| -> Result<Arc<dyn Any + Send + Sync>> {
    ///     Ok(Arc::new(String::from_utf8(bytes.to_vec())?))
    /// };
    /// let options = LoadOptions::new().references(&mut load);
    /// let snapshot = Snapshot::load(&Linker::new(&engine), &images, image, options)?;
    /// let (mut store, instance) = snapshot.instance_pre()?.spawn(())?;
    /// let global = instance.get_global(&mut store, "value").expect("it is exported");
    /// let value = *global.get(&mut store).unwrap_externref().expect("it is not null");
    /// assert_eq!(value.data(&store)?.downcast_ref(), Some(&"a value".to_owned()));
    /// # std::fs::remove_dir_all(directory).unwrap();
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    #[must_use]
    pub fn references(
        mut self,
        save: &'a mut (dyn FnMut(&(dyn Any + Send + Sync)) -> Result<Vec<u8>> + 'a),
    ) -> Self {
        self.naming.reference = Some(save);
        self
    }

    /// Has a module kept with the snapshot, in the binary format that it was compiled of: so who has no code for its
    /// processor [compiles](LoadOptions::compile) it. Of use where no guest is suspended. [`SnapshotError::NotItsModule`]
    /// is the error of [`Snapshot::save`] if none of the instances is of it.
    ///
    /// # Examples
    ///
    /// See [`LoadOptions::compile`].
    #[must_use]
    pub fn keep_module(mut self, bytes: &'a [u8]) -> Self {
        self.modules.push(bytes);
        self
    }

    /// Has only those pages saved in which the snapshot differs from another one, which was saved
    /// or loaded before, in the same store of images: a *delta*. Of what was spawned from that,
    /// and captured, no other page is read.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::image::ImageStore;
    /// use pagefork::{Engine, Instance, Linker, LoadOptions, Module, SaveOptions, Snapshot, Store};
    ///
    /// # let directory = std::env::temp_dir().join(format!("pagefork-delta-{}", std::process::id()));
    /// let images = ImageStore::open(&directory)?;
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module (memory (export "memory") 1))"#)?;
    /// let mut store = Store::new(&engine, ());
    /// let instance = Instance::new(&mut store, &module, &[])?;
    /// let memory = instance.get_memory(&mut store, "memory").expect("it is exported");
    /// let first = store.snapshot()?;
    /// first.save(&images, SaveOptions::new())?;
    ///
    /// memory.write(&mut store, 0, b"later")?;
    /// let second = store.snapshot()?;
    /// let image = second.save(&images, SaveOptions::new().delta_of(&first))?;
    /// assert!(second.stored_image().is_some_and(|stored| stored.hash() == image));
    ///
    /// // Handles of the store that was saved lead to what was loaded in its place.
    /// let options = LoadOptions::new().continues(&store);
    /// let loaded = Snapshot::load(&Linker::new(&engine), &images, image, options)?;
    /// let (mut other, _) = loaded.instance_pre()?.spawn(())?;
    /// let memory = other.counterpart(memory)?.into_memory().expect("it is one");
    /// assert_eq!(&memory.data(&other)[..5], b"later");
    /// # std::fs::remove_dir_all(directory).unwrap();
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    #[must_use]
    pub fn delta_of<T>(mut self, parent: &Snapshot<T>) -> Self {
        self.parent = Some(Arc::clone(parent.frozen()));
        self
    }

    /// Keys that sign what is saved. Where a guest is suspended, other processes take it from who
    /// has one of their trusted keys alone.
    ///
    /// # Examples
    ///
    /// See [`Snapshot::save`].
    #[must_use]
    pub fn sign_with(mut self, signers: &'a [SecretKey]) -> Self {
        self.signers = signers;
        self
    }

    /// Who else has the image, or will have it: where instances of it start while its pages come, and who gives them
    /// is lost, these can be asked. It is signed with the rest.
    ///
    /// # Examples
    ///
    /// See [`SavedHolder`].
    #[must_use]
    pub fn holders(mut self, holders: &[SavedHolder]) -> Self {
        self.holders = holders.to_vec();
        self
    }
}

/// What is given when a snapshot is [loaded](Snapshot::load): all of it is optional.
///
/// # Examples
///
/// See [`Snapshot::save`].
#[derive(Default)]
pub struct LoadOptions<'a> {
    modules: Vec<Module>,
    reference: Option<&'a mut ReadReference<'a>>,
    compile: Option<&'a mut Compile<'a>>,
    keys: TrustedKeys,
    continues: Option<StoreId>,
    over: Option<Arc<Frozen>>,
    slots: ExpectedSlots,
}

type Compile<'a> = dyn FnMut(&[u8]) -> Result<Module> + 'a;

type ReadReference<'a> = dyn FnMut(&[u8]) -> Result<Arc<dyn Any + Send + Sync>> + 'a;

impl<'a> LoadOptions<'a> {
    /// Nothing is given.
    ///
    /// # Examples
    ///
    /// See [`Snapshot::save`].
    pub fn new() -> Self {
        Self::default()
    }

    /// A module that is loaded already: instances of the same one use its code, and nothing is loaded
    /// for them.
    ///
    /// # Examples
    ///
    /// See [`SaveOptions::name_host_function`].
    #[must_use]
    pub fn module(mut self, module: &Module) -> Self {
        self.modules.push(module.clone());
        self
    }

    /// What makes a module of its bytes, for this machine. It is called for each module whose code the store has not,
    /// or not for this machine, and whose bytes it [has](SaveOptions::keep_module). Where no guest is suspended, what
    /// is made does, if it lays slots out as the code before did; frames go on in the very code alone that they were
    /// in, which is known by its hash.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::image::ImageStore;
    /// use pagefork::{Engine, Instance, Linker, LoadOptions, Module, SaveOptions, Snapshot, Store};
    ///
    /// # let directory = std::env::temp_dir().join(format!("pagefork-kept-module-{}", std::process::id()));
    /// let images = ImageStore::open(&directory)?;
    /// let wasm = wat::parse_str(r#"(module (func (export "answer") (result i32) (i32.const 42)))"#)?;
    /// let engine = Engine::default();
    /// let mut store = Store::new(&engine, ());
    /// Instance::new(&mut store, &Module::new(&engine, &wasm)?, &[])?;
    /// let image = store.snapshot()?.save(&images, SaveOptions::new().keep_module(&wasm))?;
    ///
    /// let mut compile = |bytes: &[u8]| Module::new(&engine, bytes);
    /// let options = LoadOptions::new().compile(&mut compile);
    /// let snapshot = Snapshot::<()>::load(&Linker::new(&engine), &images, image, options)?;
    /// let (mut store, instance) = snapshot.instance_pre()?.spawn(())?;
    /// assert_eq!(instance.get_typed_func::<(), i32>(&mut store, "answer")?.call(&mut store, ())?, 42);
    /// # std::fs::remove_dir_all(directory).unwrap();
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    #[must_use]
    pub fn compile(mut self, compile: &'a mut (dyn FnMut(&[u8]) -> Result<Module> + 'a)) -> Self {
        self.compile = Some(compile);
        self
    }

    /// The modules of a snapshot, as of [`LoadOptions::module`]: where another state of the same guests
    /// is loaded.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::image::ImageStore;
    /// use pagefork::{Engine, Instance, Linker, LoadOptions, Module, SaveOptions, Snapshot, Store};
    ///
    /// # let directory = std::env::temp_dir().join(format!("pagefork-modules-of-{}", std::process::id()));
    /// let images = ImageStore::open(&directory)?;
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module (memory (export "memory") 1))"#)?;
    /// let mut store = Store::new(&engine, ());
    /// let instance = Instance::new(&mut store, &module, &[])?;
    /// let first = store.snapshot()?.save(&images, SaveOptions::new())?;
    /// instance.get_memory(&mut store, "memory").unwrap().write(&mut store, 0, b"later")?;
    /// let second = store.snapshot()?.save(&images, SaveOptions::new())?;
    ///
    /// let linker = Linker::<()>::new(&engine);
    /// let first = Snapshot::load(&linker, &images, first, LoadOptions::new())?;
    /// let options = LoadOptions::new().modules_of(&first);
    /// let second = Snapshot::load(&linker, &images, second, options)?;
    /// # std::fs::remove_dir_all(directory).unwrap();
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    #[must_use]
    pub fn modules_of<T>(mut self, snapshot: &Snapshot<T>) -> Self {
        let modules = snapshot.frozen().instances.iter().map(|instance| &instance.module);
        self.modules.extend(modules.filter(|module| !module.is_of_host()).cloned());
        self
    }

    /// What was loaded of the parent of a delta: modules are taken from it, and of its ancestors nothing is
    /// read or copied anew, so that what it takes depends on what has changed since. What was loaded of
    /// another image gives its modules alone.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::image::ImageStore;
    /// use pagefork::{Engine, Instance, Linker, LoadOptions, Module, SaveOptions, Snapshot, Store};
    ///
    /// # let directory = std::env::temp_dir().join(format!("pagefork-over-{}", std::process::id()));
    /// let images = ImageStore::open(&directory)?;
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module (memory (export "memory") 1))"#)?;
    /// let mut store = Store::new(&engine, ());
    /// let instance = Instance::new(&mut store, &module, &[])?;
    /// let memory = instance.get_memory(&mut store, "memory").expect("it is exported");
    /// let first = store.snapshot()?;
    /// let parent = first.save(&images, SaveOptions::new())?;
    /// memory.write(&mut store, 0, b"later")?;
    /// let image = store.snapshot()?.save(&images, SaveOptions::new().delta_of(&first))?;
    ///
    /// let linker = Linker::<()>::new(&engine);
    /// let parent = Snapshot::load(&linker, &images, parent, LoadOptions::new())?;
    /// let options = LoadOptions::new().over(&parent);
    /// let loaded = Snapshot::load_stored(&linker, &images, images.load(image)?, options)?;
    /// let (mut other, instance) = loaded.instance_pre()?.spawn(())?;
    /// let memory = instance.get_memory(&mut other, "memory").expect("it is exported");
    /// assert_eq!(&memory.data(&other)[..5], b"later");
    /// # std::fs::remove_dir_all(directory).unwrap();
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    #[must_use]
    pub fn over<T>(mut self, parent: &Snapshot<T>) -> Self {
        self.over = Some(Arc::clone(parent.frozen()));
        self.modules_of(parent)
    }

    /// As [`LoadOptions::over`], of what goes on in one store alone, as what
    /// [`Store::snapshot_to_move`] has taken: what has changed is laid over the parent however much it is,
    /// and of an image in memory it is held there. Each store that is spawned has a copy of all of it.
    ///
    /// # Examples
    ///
    /// As of [`LoadOptions::over`].
    #[must_use]
    pub fn moved_over<T>(mut self, parent: &Snapshot<T>) -> Self {
        self.slots = ExpectedSlots::One;
        self.over(parent)
    }

    /// What takes the place of each value of the host that guests hold a reference to, from the bytes
    /// that [`SaveOptions::references`] has kept of it.
    ///
    /// # Examples
    ///
    /// See [`SaveOptions::references`].
    #[must_use]
    pub fn references(
        mut self,
        load: &'a mut (dyn FnMut(&[u8]) -> Result<Arc<dyn Any + Send + Sync>> + 'a),
    ) -> Self {
        self.reference = Some(load);
        self
    }

    /// Keys whose holders are trusted like those who install programs here: a snapshot of a suspended
    /// guest that one of them has signed is machine state, and can do all that this process can.
    ///
    /// # Examples
    ///
    /// See [`Snapshot::save`].
    #[must_use]
    pub fn trust(mut self, keys: TrustedKeys) -> Self {
        self.keys = keys;
        self
    }

    /// What is spawned goes on in the place of a store, whose handles lead to
    /// [counterparts](Store::counterpart) then. It is for the caller to know that the snapshot
    /// descends from that store: of another one, other things are found.
    ///
    /// # Examples
    ///
    /// See [`SaveOptions::delta_of`].
    #[must_use]
    pub fn continues<T: 'static>(mut self, store: &Store<T>) -> Self {
        self.continues = Some(store.inner().id);
        self
    }

    /// Whether the frames of an image are to be trusted.
    pub(super) fn trusts(&self, chain: &ImageChain) -> bool {
        chain.tip().check_trust(&self.keys).is_ok()
    }
}

/// Images of suspended guests that this process has saved. They are as trusted as the process.
static OWN_IMAGES: Mutex<Option<HashSet<ContentHash>>> = Mutex::new(None);

fn note_own(image: ContentHash) {
    let mut own = OWN_IMAGES.lock().unwrap_or_else(PoisonError::into_inner);
    own.get_or_insert_default().insert(image);
}

pub(super) fn is_own(image: ContentHash) -> bool {
    let own = OWN_IMAGES.lock().unwrap_or_else(PoisonError::into_inner);
    own.as_ref().is_some_and(|own| own.contains(&image))
}

impl<T: 'static> Snapshot<T> {
    /// Writes the snapshot to a store of images, with the code of its modules, from which this and
    /// other processes can [load](Snapshot::load) it. It is there when this function returns, and
    /// not before. What no name leads to, and nothing has loaded, is garbage there.
    ///
    /// Functions of the host are saved by the names that a linker has given them. What
    /// the embedder's data was is for the embedder to keep, in [`SaveOptions::state`] for example.
    ///
    /// # Errors
    /// [`SnapshotError`] if something of it means nothing outside this process; what hooks fail with;
    /// [`ImageError`](crate::image::ImageError) if it cannot be written.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::image::{ImageStore, SecretKey, TrustedKeys};
    /// use pagefork::{
    ///     CallProgress, Caller, Engine, Linker, LoadOptions, Module, Result, SaveOptions, Snapshot, Store,
    /// };
    ///
    /// fn linker(engine: &Engine) -> Result<Linker<Option<i32>>> {
    ///     let mut linker = Linker::new(engine);
    ///     let number = |mut caller: Caller<'_, Option<i32>>| -> Result<i32> {
    ///         caller.data().ok_or_else(|| caller.suspend_before())
    ///     };
    ///     linker.func_wrap("host", "number", number)?;
    ///     Ok(linker)
    /// }
    /// let directory = std::env::temp_dir().join(format!("pagefork-doc-{}", std::process::id()));
    /// let images = ImageStore::open(&directory)?;
    /// let key = SecretKey::from_seed([7; 32]); // Random bytes, in earnest.
    ///
    /// // A program waits for a number.
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module
    ///     (import "host" "number" (func $number (result i32)))
    ///     (func (export "run") (result i32) (i32.mul (i32.const 10) (call $number))))"#)?;
    /// let mut store = Store::new(&engine, None);
    /// let instance = linker(&engine)?.instantiate(&mut store, &module)?;
    /// instance.get_func(&mut store, "run").unwrap().call_suspendable(&mut store, &[])?;
    /// let options = SaveOptions::new().state("of the embedder").sign_with(std::slice::from_ref(&key));
    /// let image = store.snapshot()?.save(&images, options)?;
    ///
    /// // Another process, which trusts the key, has an engine of its own, and no module.
    /// let engine = Engine::default();
    /// let options = LoadOptions::new().trust(TrustedKeys::from_iter([key.public()]));
    /// let snapshot = Snapshot::load(&linker(&engine)?, &images, image, options)?;
    /// assert_eq!(snapshot.state(), b"of the embedder");
    /// let (mut store, _) = snapshot.instance_pre()?.spawn(Some(4))?;
    /// let CallProgress::Finished(results) = store.resume()? else { panic!("it has a number") };
    /// assert_eq!(results[0].i32(), Some(40));
    /// # std::fs::remove_dir_all(directory).unwrap();
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn save(&self, images: &ImageStore, options: SaveOptions<'_>) -> Result<ContentHash> {
        self.save_by(images, options, |draft, _| Ok(images.save(draft)?))
    }

    /// As [`Snapshot::save`], of what was said to be a [delta](SaveOptions::delta_of): writes it into
    /// memory, and nothing to a disk. Returns its bytes, of which `images` can
    /// [make](ImageStore::open_beside) an image again where it has what this is a delta of, and which
    /// it can [adopt](ImageStore::adopt).
    ///
    /// # Errors
    /// As of [`Snapshot::save`]; [`SnapshotError::NoDelta`] if it was not said what it is a delta of.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::image::{ImageStore, TrustedKeys, SecretKey};
    /// use pagefork::{Engine, Instance, Linker, LoadOptions, Module, SaveOptions, Snapshot, Store};
    ///
    /// # let directory = std::env::temp_dir().join(format!("pagefork-beside-{}", std::process::id()));
    /// let images = ImageStore::open(&directory)?;
    /// let keys = [SecretKey::from_seed([7; 32])]; // Random bytes, in earnest.
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module (memory (export "memory") 1))"#)?;
    /// let mut store = Store::new(&engine, ());
    /// let instance = Instance::new(&mut store, &module, &[])?;
    /// let memory = instance.get_memory(&mut store, "memory").expect("it is exported");
    /// let first = store.snapshot()?;
    /// let parent = images.load(first.save(&images, SaveOptions::new())?)?;
    ///
    /// memory.write(&mut store, 0, b"later")?;
    /// let options = SaveOptions::new().delta_of(&first).sign_with(&keys);
    /// let (_, bytes) = store.snapshot()?.save_beside(&images, options)?;
    ///
    /// let trusted = TrustedKeys::from_iter([keys[0].public()]);
    /// let delta = images.open_beside(bytes, &parent, &trusted)?;
    /// let loaded = Snapshot::load_stored(&Linker::new(&engine), &images, delta, LoadOptions::new())?;
    /// let (mut other, instance) = loaded.instance_pre()?.spawn(())?;
    /// let memory = instance.get_memory(&mut other, "memory").expect("it is exported");
    /// assert_eq!(&memory.data(&other)[..5], b"later");
    /// # std::fs::remove_dir_all(directory).unwrap();
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn save_beside(
        &self,
        images: &ImageStore,
        options: SaveOptions<'_>,
    ) -> Result<(ContentHash, Arc<Vec<u8>>)> {
        self.save_beside_in_parts(images, options, Vec::new(), &mut |_, _| ())
    }

    /// As [`Snapshot::save_beside`], and shows each part as soon as it is written into `room`, as of
    /// [`ImageStore::save_beside_in_parts`].
    ///
    /// # Errors
    /// As of [`Snapshot::save_beside`].
    ///
    /// # Examples
    ///
    /// See [`ImageStore::save_beside_in_parts`].
    pub fn save_beside_in_parts(
        &self,
        images: &ImageStore,
        options: SaveOptions<'_>,
        room: Vec<u8>,
        show: &mut dyn FnMut(u64, &[u8]),
    ) -> Result<(ContentHash, Arc<Vec<u8>>)> {
        let mut bytes = None;
        let hash = self.save_by(images, options, |draft, parent| {
            let parent =
                parent.ok_or(SnapshotError::NoDelta("nothing was said to be its parent"))?;
            let (stored, written) = images.save_beside_in_parts(draft, parent, room, show)?;
            bytes = Some(written);
            Ok(stored)
        })?;
        Ok((hash, bytes.expect("it was written")))
    }

    /// Saves it by `write`, which is told of the parent of a delta.
    fn save_by(
        &self,
        images: &ImageStore,
        options: SaveOptions<'_>,
        write: impl FnOnce(ImageDraft<'_>, Option<&StoredImage>) -> Result<StoredImage>,
    ) -> Result<ContentHash> {
        let SaveOptions {
            mut naming,
            named,
            state,
            parent,
            signers,
            holders,
            modules,
            attachments,
        } = options;
        let frozen = self.frozen();
        for (function, names) in named {
            let number = (function.store == frozen.store
                && function.definition.ordinal() == HOST_ORDINAL)
                .then(|| function.definition.index());
            let wrong = UsageError::WrongStore { what: "host function" };
            naming.functions.push((number.flatten().ok_or(wrong)?, names));
        }
        let record = save::record(frozen, &mut naming)?;
        code_store::save(images, frozen)?;
        // Held until the image is there, which collection sees then.
        let _kept = code_store::keep_modules(images, frozen, &modules)?;
        let mut manifest = manifest::manifest(&record, &code_store::processors(frozen));
        for (saved, instance) in manifest.instances.iter_mut().zip(&frozen.instances) {
            saved.extents = instance.image.extents().to_vec();
        }
        manifest.wasi = state;
        manifest.holders = holders;
        manifest.attachments = attachments.described()?;
        let attached = &attachments.bytes[..];
        let saved = match &parent {
            None => {
                let pages = CapturedPages { frozen, parent: None, attached };
                write(ImageDraft::new(manifest, &pages).sign_with(signers), None)?
            }
            Some(parent) => {
                let unsaved = || SnapshotError::NoDelta("that one was never saved");
                let stored = parent.stored.get().ok_or_else(unsaved)?;
                let chain = stored.chain();
                let before = &chain.tip().manifest().instances;
                let mut instances = Vec::new();
                for (saved, number) in manifest.instances.iter_mut().zip(0u32..) {
                    let of_parent = before.get(number as usize).filter(|before| {
                        let holds = |inner: &std::ops::Range<u64>| {
                            let mut outer = saved.extents.iter();
                            outer.any(|outer| outer.start <= inner.start && inner.end <= outer.end)
                        };
                        before.extents.iter().all(holds) && before.module == saved.module
                    });
                    saved.parent_instance = of_parent.map(|_| number);
                    instances.push(saved.parent_instance);
                }
                let of_store = match stored {
                    SavedAs::Stored(stored) => Some(stored),
                    SavedAs::Incomplete(_) => None,
                };
                let parent = Some(ParentPages { frozen: parent, chain, instances });
                let pages = CapturedPages { frozen, parent, attached };
                write(chain.delta(manifest, &pages)?.sign_with(signers), of_store)?
            }
        };
        let hash = saved.hash();
        if record.call.is_some() {
            note_own(hash);
        }
        // The first is as good as any other.
        let _ = frozen.stored.set(SavedAs::Stored(saved));
        Ok(hash)
    }

    /// A snapshot that was [saved](Snapshot::save). `linker` has what guests know of the host.
    ///
    /// Nothing of memories is read: slots map them from the file, and only what guests and resets
    /// touch is read. All that code relies on is checked, so a snapshot in which no guest is suspended
    /// needs no trust. One of a suspended guest has to be made by this process or signed by a
    /// [trusted key](LoadOptions::trust).
    ///
    /// The code of modules that are not [given](LoadOptions::module) is loaded from the store.
    ///
    /// # Errors
    /// [`ImageError`](crate::image::ImageError) if there is no such image, or it is damaged; [`SnapshotError`] if it is not to be
    /// trusted, or does not fit; [`LinkError`] if the linker has not defined a function of the host;
    /// what the hook fails with.
    ///
    /// # Examples
    ///
    /// See [`Snapshot::save`].
    pub fn load(
        linker: &Linker<T>,
        images: &ImageStore,
        image: ContentHash,
        options: LoadOptions<'_>,
    ) -> Result<Self> {
        let mut stored = images.load(image)?;
        let is_trusted = is_own(image) || options.trusts(stored.chain());
        let (chain, slots) = (stored.chain(), ExpectedSlots::Many);
        let pages = ChainPages { chain, incomplete: None, over: None, slots };
        if pages.is_to_be_squashed() {
            stored = images.load_whole(image)?;
        }
        load_chain(linker, images, SavedAs::Stored(stored), None, is_trusted, options)
    }

    /// As [`Snapshot::load`], of an image that is open already, also one that is
    /// [beside](ImageStore::open_beside) the store.
    ///
    /// # Errors
    /// As of [`Snapshot::load`].
    ///
    /// # Examples
    ///
    /// See [`Snapshot::save_beside`].
    pub fn load_stored(
        linker: &Linker<T>,
        images: &ImageStore,
        stored: StoredImage,
        options: LoadOptions<'_>,
    ) -> Result<Self> {
        let is_trusted = is_own(stored.hash()) || options.trusts(stored.chain());
        load_chain(linker, images, SavedAs::Stored(stored), None, is_trusted, options)
    }

    /// The bytes that were saved with a snapshot as the embedder's [state](SaveOptions::state); none of
    /// one that was neither saved nor loaded.
    ///
    /// # Examples
    ///
    /// See [`Snapshot::save`].
    pub fn state(&self) -> &[u8] {
        let saved = self.frozen().stored.get();
        saved.map_or(&[], |saved| &saved.chain().tip().manifest().wasi)
    }

    /// What a snapshot was saved as, or loaded from, in a store of images.
    ///
    /// # Examples
    ///
    /// See [`SaveOptions::delta_of`].
    pub fn stored_image(&self) -> Option<&StoredImage> {
        match self.frozen().stored.get()? {
            SavedAs::Stored(stored) => Some(stored),
            SavedAs::Incomplete(_) => None,
        }
    }
}

/// A snapshot that was saved as a chain of images, with the pages of the only one if they may be
/// absent.
///
/// # Errors
/// As of [`Snapshot::load`].
pub(super) fn load_chain<T: 'static>(
    linker: &Linker<T>,
    images: &ImageStore,
    saved: SavedAs,
    incomplete: Option<&Arc<IncompletePages>>,
    trusts_frames: bool,
    options: LoadOptions<'_>,
) -> Result<Snapshot<T>> {
    let chain = saved.chain();
    let record = manifest::record(chain.tip().manifest())?;
    if record.call.is_some() && !trusts_frames {
        return Err(SnapshotError::NotTrusted.into());
    }
    let engine = linker.engine();
    let given = Given {
        engine,
        modules: modules(engine, images, chain, &record, (&options.modules, options.compile))?,
        host_functions: host_functions(linker, &record)?,
        references: references(&record, options.reference)?,
        trusts_frames,
        continues: options.continues,
    };
    let over = options.over.as_deref().filter(|over| {
        let parent = over.stored.get().map(|saved| saved.chain().tip().hash());
        parent.is_some() && chain.tip().manifest().parent == parent
    });
    let pages = ChainPages { chain, incomplete, over, slots: options.slots };
    let frozen = load::load(&record, &pages, given)?;
    let _ = frozen.stored.set(saved);
    Ok(Snapshot::new(Arc::new(frozen)))
}

/// The module of each instance that is not one of the host's own.
fn modules(
    engine: &Engine,
    images: &ImageStore,
    chain: &ImageChain,
    record: &StoreRecord,
    (given, mut compile): (&[Module], Option<&mut Compile<'_>>),
) -> Result<Vec<Option<Module>>> {
    if !given.iter().all(|module| Engine::same(module.engine(), engine)) {
        return Err(UsageError::WrongEngine { what: "module" }.into());
    }
    let mut found: Vec<Module> = given.to_vec();
    let mut modules = Vec::with_capacity(record.instances.len());
    let manifest = chain.tip().manifest();
    for (instance, saved) in record.instances.iter().zip(&manifest.instances) {
        let InstanceOrigin::Module { name, module, code } = &instance.origin else {
            modules.push(None);
            continue;
        };
        // Without frames, other code of the same module does as well.
        let is_the_same = |known: &&Module| {
            known.code_hash() == *code || record.call.is_none() && known.module_hash() == *module
        };
        let known = match found.iter().find(is_the_same) {
            Some(known) => known.clone(),
            None => {
                let loaded = code_store::load(engine, images, *code).or_else(|error| {
                    let mut why = match is_about_code(&error) {
                        true => {
                            format!(
                                "{error:#} (it was made for {} processors)",
                                saved.code.processor
                            )
                        }
                        false => format!("{error:#}"),
                    };
                    let is_made = is_made_anew(&error) || code_store::is_foreign(saved, manifest);
                    if let Some(compile) = compile.as_mut().filter(|_| is_made) {
                        match code_store::compile(engine, images, *module, &mut **compile) {
                            Err(error) => why = format!("{why}; {error:#}"),
                            Ok(made) if is_the_same(&&made) => return Ok(made),
                            Ok(_) => {
                                why += "; a guest is suspended in it, and what its module compiles to here is \
                                        other code";
                            }
                        }
                    }
                    let name = if name.is_empty() { "an instance" } else { name };
                    let (module, hash) = (module.to_string(), code.to_string());
                    Err(Error::from(SnapshotError::NoCode { name: name.into(), module, hash, why }))
                })?;
                found.push(loaded.clone());
                loaded
            }
        };
        modules.push(Some(known));
    }
    Ok(modules)
}

/// Whether code is made anew in place of what could not be loaded for this reason: it is missing, or another compiler or
/// machine made it. What is damaged, or cannot be read, is to be noticed, and not replaced.
fn is_made_anew(error: &Error) -> bool {
    use CodeImageError::{OtherCompiler, OtherFormat, OtherMachine};
    let is_missing = |error: &ImageError| matches!(error, ImageError::NotFound { .. });
    let is_of_others = |error: &CodeImageError| {
        matches!(error, OtherFormat { .. } | OtherCompiler(_) | OtherMachine { .. })
    };
    error.downcast_ref().is_some_and(is_missing) || error.downcast_ref().is_some_and(is_of_others)
}

/// Whether the code is missing or not fit, and not something in the way of reading it.
fn is_about_code(error: &Error) -> bool {
    let is_missing = |error: &ImageError| matches!(error, ImageError::NotFound { .. });
    error.downcast_ref::<CodeImageError>().is_some() || error.downcast_ref().is_some_and(is_missing)
}

fn host_functions<T: 'static>(
    linker: &Linker<T>,
    record: &StoreRecord,
) -> Result<Vec<Arc<HostFunc>>> {
    let find = |record: &HostFuncRecord| {
        let HostFuncRecord { module, name, ty } = record;
        let missing = || LinkError::NotDefined { module: module.clone(), name: name.clone() };
        let found = linker.host_func(module, name).ok_or_else(missing)?;
        match ty {
            Some(saved) if *saved != *found.ty => Err(SnapshotError::OtherHostFunction {
                module: module.clone(),
                name: name.clone(),
                saved: saved.to_string(),
                found: found.ty.to_string(),
            }
            .into()),
            _ => Ok(found),
        }
    };
    record.host_functions.iter().map(find).collect()
}

fn references(
    record: &StoreRecord,
    mut read: Option<&mut ReadReference<'_>>,
) -> Result<Vec<Arc<dyn Any + Send + Sync>>> {
    let hook = "LoadOptions::references";
    let value = |bytes: &[u8]| match &mut read {
        Some(read) => read(bytes),
        None => Err(SnapshotError::NoHook { hook }.into()),
    };
    let bytes = record.references.iter().map(|reference| &reference.bytes[..]);
    bytes.map(value).collect()
}
