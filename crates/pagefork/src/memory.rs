use std::marker::PhantomData;
use std::ptr;

use pagefork_layout::module::{Export, Item, MemoryType, ModuleInfo};
use pagefork_layout::page::WASM_PAGE_SIZE;
use pagefork_layout::trap::TrapCode;
use pagefork_pages::{Slot, View};

use crate::error::{LimitError, Result, UsageError};
use crate::group::Place;
use crate::instantiate::spawn_alone;
use crate::interrupt::Interruption;
use crate::limits;
use crate::module::Module;
use crate::store::{AsContext, AsContextMut, StoreContext, StoreContextMut, StoreId, StoreInner};

/// Largest number of wasm pages that the index type of a memory can address.
const fn pages_max(memory64: bool) -> u64 {
    if memory64 { 1 << 48 } else { 1 << 16 }
}

/// A linear memory of a store.
///
/// # Examples
///
/// ```
/// use pagefork::{Engine, Memory, MemoryType, Store};
///
/// let mut store = Store::new(&Engine::default(), ());
/// let memory = Memory::new(&mut store, MemoryType::new(1, Some(2)))?;
/// memory.write(&mut store, 65_530, b"abcdef")?;
/// assert!(memory.write(&mut store, 65_531, b"abcdef").is_err());
/// assert_eq!(memory.grow(&mut store, 1)?, 1);
/// memory.write(&mut store, 65_531, b"abcdef")?;
/// assert_eq!(&memory.data(&store)[65_530..65_534], b"aabc");
/// # Ok::<(), pagefork::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    store: StoreId,
    place: Place,
}

/// An access beyond the end of a memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{length} bytes at {offset} lie outside a memory of {size} bytes")]
pub struct MemoryAccessError {
    /// Where the access began.
    pub offset: u64,
    /// How many bytes it was of.
    pub length: u64,
    /// Bytes of the memory.
    pub size: u64,
}

impl Memory {
    /// Makes a memory of the host, which has a slot of its own.
    ///
    /// # Errors
    /// If the type is not possible, a limit of the store is met, or the system
    /// refuses address space.
    pub fn new(mut store: impl AsContextMut, ty: MemoryType) -> Result<Self> {
        let store = &mut store.as_context_mut().0.inner;
        let pages_max = pages_max(ty.memory64);
        let maximum = ty.maximum.unwrap_or(pages_max);
        if ty.minimum > maximum || maximum > pages_max {
            let what = format!("a memory of {} to {maximum} wasm pages", ty.minimum);
            return Err(UsageError::InvalidType(what).into());
        }
        let info = ModuleInfo {
            memories: vec![ty],
            exports: vec![Export { name: "memory".to_owned(), item: Item::Memory(0) }],
            ..ModuleInfo::default()
        };
        let module = Module::without_code(&store.engine, info)?;
        let ordinal = spawn_alone(store, &module)?;
        Ok(Self::from_place(store, Place { ordinal, own_index: 0 }))
    }

    pub(crate) fn from_place(store: &StoreInner, place: Place) -> Self {
        Self { store: store.id, place }
    }

    /// # Errors
    /// If the memory is of another store.
    pub(crate) fn place(&self, store: &StoreInner) -> Result<Place> {
        store.check(self.store, "memory").map(|()| self.place)
    }

    fn place_or_panic(&self, store: &StoreInner) -> Place {
        assert!(self.store == store.id, "a memory of one store was used with another store");
        self.place
    }

    /// The memory's type, with the present size as its minimum.
    ///
    /// # Panics
    /// If the memory is of another store.
    pub fn ty(&self, store: impl AsContext) -> MemoryType {
        let store = &store.as_context().0.inner;
        store.memory_type(self.place_or_panic(store))
    }

    /// The memory's bytes.
    ///
    /// # Panics
    /// If the memory is of another store.
    pub fn data<'a, T: 'static>(&self, store: impl Into<StoreContext<'a, T>>) -> &'a [u8] {
        let store = &store.into().0.inner;
        let (start, size) = store.memory_bytes(self.place_or_panic(store));
        // SAFETY: the bytes are mapped while the store is borrowed, and only
        // guests write them, which need the store mutably.
        unsafe { std::slice::from_raw_parts(start, size) }
    }

    /// The memory's bytes.
    ///
    /// # Panics
    /// If the memory is of another store.
    pub fn data_mut<'a, T: 'static>(
        &self,
        store: impl Into<StoreContextMut<'a, T>>,
    ) -> &'a mut [u8] {
        self.data_and_store_mut(store).0
    }

    /// The memory's bytes and the embedder's data.
    ///
    /// # Panics
    /// If the memory is of another store.
    pub fn data_and_store_mut<'a, T: 'static>(
        &self,
        store: impl Into<StoreContextMut<'a, T>>,
    ) -> (&'a mut [u8], &'a mut T) {
        let full = store.into().0;
        let place = self.place_or_panic(&full.inner);
        full.inner.note_writer();
        full.inner.note_view(place);
        let (start, size) = full.inner.memory_bytes(place);
        // SAFETY: the bytes are mapped while the store is borrowed, and they are
        // no part of the embedder's data.
        (unsafe { std::slice::from_raw_parts_mut(start, size) }, &mut full.data)
    }

    /// The memory's bytes for the current thread alone, and the embedder's data. Whoever
    /// writes a little this way, instead of through [`Memory::data_mut`], spares the store a
    /// search for what has been written when it is reset.
    ///
    /// # Panics
    /// If the memory is of another store.
    pub fn local_and_store_mut<'a, T: 'static>(
        &self,
        store: impl Into<StoreContextMut<'a, T>>,
    ) -> (LocalMemory<'a>, &'a mut T) {
        let full = store.into().0;
        let place = self.place_or_panic(&full.inner);
        full.inner.note_writer();
        let (start, size) = full.inner.memory_bytes(place);
        let slot = &raw mut full.inner.instance_mut(place.ordinal).slot;
        // SAFETY: the bytes are mapped while the store is borrowed, and they are
        // no part of the embedder's data.
        let bytes = unsafe { std::slice::from_raw_parts_mut(start, size) };
        let interruption = Interruption::of(&full.inner.interrupts);
        let memory = LocalMemory { bytes, slot, interruption, borrowed: PhantomData };
        (memory, &mut full.data)
    }

    /// Copies bytes out of the memory, from byte `offset` on.
    ///
    /// # Errors
    /// If they are not all within the memory; nothing is copied then.
    ///
    /// # Panics
    /// If the memory is of another store.
    pub fn read(
        &self,
        store: impl AsContext,
        offset: usize,
        into: &mut [u8],
    ) -> Result<(), MemoryAccessError> {
        let context = store.as_context();
        let data = self.data(context);
        let size = data.len() as u64;
        let bytes = data.get(offset..).and_then(|rest| rest.get(..into.len()));
        let error = MemoryAccessError { offset: offset as u64, length: into.len() as u64, size };
        into.copy_from_slice(bytes.ok_or(error)?);
        Ok(())
    }

    /// Copies bytes into the memory, from byte `offset` on.
    ///
    /// # Errors
    /// If they do not all fit into the memory; nothing is copied then.
    ///
    /// # Panics
    /// If the memory is of another store.
    pub fn write(
        &self,
        mut store: impl AsContextMut,
        offset: usize,
        from: &[u8],
    ) -> Result<(), MemoryAccessError> {
        let store = &mut store.as_context_mut().0.inner;
        let place = self.place_or_panic(store);
        let (offset, length) = (offset as u64, from.len() as u64);
        store.memory_init(place, from, offset, 0, length).map_err(|_| MemoryAccessError {
            offset,
            length,
            size: store.memory_bytes(place).1 as u64,
        })
    }

    /// The memory's size in wasm pages of 64 KiB.
    ///
    /// # Panics
    /// If the memory is of another store.
    pub fn size(&self, store: impl AsContext) -> u64 {
        self.data_size(store) as u64 / WASM_PAGE_SIZE
    }

    /// The memory's size in bytes.
    ///
    /// # Panics
    /// If the memory is of another store.
    pub fn data_size(&self, store: impl AsContext) -> usize {
        let store = &store.as_context().0.inner;
        store.memory_bytes(self.place_or_panic(store)).1
    }

    /// Makes the memory `delta` wasm pages larger; returns the size before.
    ///
    /// # Errors
    /// If that is beyond the memory's maximum, the room that its slot has, or the
    /// store's limit, or the system refuses memory.
    pub fn grow(&self, mut store: impl AsContextMut, delta: u64) -> Result<u64> {
        let store = &mut store.as_context_mut().0.inner;
        let place = self.place(store)?;
        store.grow_memory(place, delta)
    }
}

/// The bytes of a memory, for the current thread alone: see
/// [`Memory::local_and_store_mut`].
#[derive(Debug)]
pub struct LocalMemory<'a> {
    bytes: &'a mut [u8],
    /// The memory's slot, or null if the bytes are of no memory.
    slot: *mut Slot,
    interruption: Interruption<'a>,
    borrowed: PhantomData<&'a mut Slot>,
}

impl<'a> From<&'a mut [u8]> for LocalMemory<'a> {
    /// Bytes of no memory.
    fn from(bytes: &'a mut [u8]) -> Self {
        let interruption = Interruption::default();
        Self { bytes, slot: ptr::null_mut(), interruption, borrowed: PhantomData }
    }
}

impl<'a> LocalMemory<'a> {
    /// Tells when the guest is to be stopped whose memory it is: see
    /// [`Caller::interruption`](crate::Caller::interruption). Never, of bytes of no memory.
    pub fn interruption(&self) -> Interruption<'a> {
        self.interruption
    }

    /// All bytes.
    pub fn bytes(&self) -> &[u8] {
        self.bytes
    }

    /// All bytes, for whoever writes them in whatever way.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the slot is borrowed mutably as long as `self` is, and by nobody else.
        if let Some(slot) = unsafe { self.slot.as_mut() } {
            slot.note_view(View::UntilReset);
        }
        self.bytes
    }

    /// Copies bytes into the memory, from byte `offset` on.
    ///
    /// # Errors
    /// If they do not all fit into the memory; nothing is copied then.
    pub fn write(&mut self, offset: usize, from: &[u8]) -> Result<(), MemoryAccessError> {
        let size = self.bytes.len() as u64;
        let bytes = self.bytes.get_mut(offset..).and_then(|rest| rest.get_mut(..from.len()));
        let error = MemoryAccessError { offset: offset as u64, length: from.len() as u64, size };
        bytes.ok_or(error)?.copy_from_slice(from);
        Ok(())
    }
}

impl StoreInner {
    pub(crate) fn memory_type(&self, place: Place) -> MemoryType {
        let instance = self.instance(place.ordinal);
        let info = instance.module.info();
        let declared = &info.memories[(info.imported_memories + place.own_index) as usize];
        let size = instance.slot.memory_size(place.own_index as usize);
        MemoryType { minimum: size / WASM_PAGE_SIZE, ..*declared }
    }

    /// The first byte of a memory, and how many are accessible.
    pub(crate) fn memory_bytes(&self, place: Place) -> (*mut u8, usize) {
        let slot = &self.instance(place.ordinal).slot;
        let index = place.own_index as usize;
        (slot.memory(index), slot.memory_size(index) as usize)
    }

    /// Bytes that all memories have, or none if there is no limit.
    pub(crate) fn memory_total_if_limited(&self) -> u64 {
        if self.limits.memory_total == u64::MAX {
            return 0;
        }
        let slots = self.instances.iter().map(|instance| &instance.slot);
        slots.flat_map(|slot| (0..slot.memory_count()).map(|index| slot.memory_size(index))).sum()
    }

    /// Makes a memory `delta` wasm pages larger; returns the size before, in wasm
    /// pages. The only place where the size word of a memory is written.
    pub(crate) fn grow_memory(&mut self, place: Place, delta: u64) -> Result<u64> {
        self.note_writer();
        let (allowed, index) = (self.limits, place.own_index as usize);
        let total = self.memory_total_if_limited();
        let instance = self.instance_mut(place.ordinal);
        // No slot has room for more than the memory's declared maximum.
        let maximum = instance.slot.memory_max(index) / WASM_PAGE_SIZE;
        let old_pages = instance.slot.memory_size(index) / WASM_PAGE_SIZE;
        if delta == 0 {
            return Ok(old_pages);
        }
        let pages = old_pages.saturating_add(delta);
        if pages > maximum {
            let info = instance.module.info();
            let ty = &info.memories[(info.imported_memories + place.own_index) as usize];
            let source = limits::source_of(maximum, ty.maximum, pages_max(ty.memory64));
            limits::check_of(source, "wasm pages of a memory", pages, maximum)?;
        }
        let size = pages * WASM_PAGE_SIZE;
        limits::check("bytes of a memory", size, allowed.memory_size)?;
        let total = total.saturating_add(delta * WASM_PAGE_SIZE);
        limits::check(LimitError::MEMORY_TOTAL, total, allowed.memory_total)?;
        if let Err(error) = instance.slot.grow_memory(index, size) {
            if !instance.slot.is_whole() {
                // More is accessible than the memory has, and that cannot be changed.
                self.set_broken(true);
            }
            return Err(error.into());
        }
        let size_word = instance.module.layout().state_parts.memory_size(place.own_index);
        // SAFETY: the word is in the state zone.
        unsafe { instance.word(size_word).write(instance.slot.memory_size(index)) };
        instance.show_beyond();
        Ok(old_pages)
    }

    /// The bytes `offset..offset + length` of a memory.
    pub(crate) fn memory_range(
        &self,
        place: Place,
        offset: u64,
        length: u64,
    ) -> Result<*mut u8, TrapCode> {
        let (start, size) = self.memory_bytes(place);
        match offset.checked_add(length) {
            Some(end) if end <= size as u64 => Ok(start.wrapping_add(offset as usize)),
            _ => Err(TrapCode::MemoryOutOfBounds),
        }
    }

    /// `memory.fill`, all or nothing.
    pub(crate) fn memory_fill(
        &mut self,
        memory: Place,
        destination: u64,
        byte: u8,
        length: u64,
    ) -> Result<(), TrapCode> {
        let to = self.memory_range(memory, destination, length)?;
        // SAFETY: the range is accessible.
        unsafe { ptr::write_bytes(to, byte, length as usize) };
        Ok(())
    }

    /// `memory.copy`, all or nothing.
    pub(crate) fn memory_copy(
        &mut self,
        (to, from): (Place, Place),
        destination: u64,
        source: u64,
        length: u64,
    ) -> Result<(), TrapCode> {
        let from = self.memory_range(from, source, length)?;
        let to = self.memory_range(to, destination, length)?;
        // SAFETY: both ranges are accessible; they may overlap.
        unsafe { ptr::copy(from, to, length as usize) };
        Ok(())
    }

    /// `memory.init` from these bytes, all or nothing.
    pub(crate) fn memory_init(
        &mut self,
        memory: Place,
        bytes: &[u8],
        destination: u64,
        source: u64,
        length: u64,
    ) -> Result<(), TrapCode> {
        self.note_writer();
        let to = self.memory_range(memory, destination, length)?;
        let end = source.checked_add(length).filter(|end| *end <= bytes.len() as u64);
        let end = end.ok_or(TrapCode::MemoryOutOfBounds)?;
        let from = &bytes[source as usize..end as usize];
        // SAFETY: the range is accessible and no part of a module.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
        Ok(())
    }
}
