//! Linear memories as embedders make, read and write them.

use std::marker::PhantomData;
use std::ops::Range;
use std::ptr;

use pagefork_layout::module::MemoryType;
use pagefork_layout::page::WASM_PAGE_SIZE;
use pagefork_pages::{AbsentPage, Discarded, ExternalWriter, Slot};

use crate::api::store::{AsContext, AsContextMut, StoreContext, StoreContextMut};
use crate::base::error::{MemoryAccessError, MemoryAccessProblem, Result, UsageError};
use crate::code::host_entity::HostEntity;
use crate::run::instantiate::spawn_alone;
use crate::run::limiter;
use crate::store::group::{Entity, StoreGroup, StoreId};
use crate::store::handle::entity_handle;
use crate::store::interrupt::Interruption;
use crate::store::memories::pages_max;

/// A linear memory of a store. Two are equal if they are the same memory.
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
///
/// // Or a copy, with a check instead of a panic.
/// let mut bytes = [0; 3];
/// memory.read(&store, 65_531, &mut bytes)?;
/// assert_eq!(&bytes, b"abc");
/// assert_eq!((memory.size(&store), memory.data_size(&store)), (2, 131_072));
/// assert_eq!(memory.ty(&store), MemoryType::new(2, Some(2)));
/// # Ok::<(), pagefork::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Memory {
    store: StoreId,
    entity: Entity,
}

entity_handle!(Memory, "memory");

impl Memory {
    /// Makes a memory of the host, which has a slot of its own.
    ///
    /// # Errors
    /// If the type is not possible, a limit of the store is met, or the system
    /// refuses address space.
    ///
    /// # Examples
    ///
    /// See [`Memory`].
    pub fn new(mut store: impl AsContextMut, ty: MemoryType) -> Result<Self> {
        let mut context = store.as_context_mut();
        let pages_max = pages_max(ty.memory64);
        let maximum = ty.maximum.unwrap_or(pages_max);
        if ty.minimum > maximum || maximum > pages_max {
            let what = format!("a memory of {} to {maximum} wasm pages", ty.minimum);
            return Err(UsageError::InvalidType(what).into());
        }
        let info = HostEntity::Memory(ty).info();
        // SAFETY: the store is borrowed, and the pointer is to the whole of it.
        let entity = unsafe { spawn_alone(context.as_ptr(), info)? };
        Ok(Self::from_entity(&context.0.inner, entity))
    }

    /// The memory's type, with the present size as its minimum.
    ///
    /// # Panics
    /// If the memory is of another store.
    ///
    /// # Examples
    ///
    /// See [`Memory`].
    pub fn ty(&self, store: impl AsContext) -> MemoryType {
        let store = &store.as_context().0.inner;
        store.memory_type(self.entity_or_panic(store))
    }

    /// The memory's bytes. Of an image that is [incomplete](crate::IncompleteImage) it waits for all
    /// of them.
    ///
    /// # Panics
    /// If the memory is of another store, or absent pages do not come: ask [`Memory::wait`] first.
    ///
    /// # Examples
    ///
    /// See [`Memory`].
    pub fn data<'a, T: 'static>(&self, store: impl Into<StoreContext<'a, T>>) -> &'a [u8] {
        let store = &store.into().0.inner;
        let (start, size) = bytes_here(store, self.entity_or_panic(store));
        // SAFETY: the bytes are mapped while the store is borrowed, and only
        // guests write them, which need the store mutably.
        unsafe { std::slice::from_raw_parts(start, size) }
    }

    /// The memory's bytes, as [`Memory::data`].
    ///
    /// # Panics
    /// As of [`Memory::data`].
    ///
    /// # Examples
    ///
    /// See [`Memory::data_and_store_mut`].
    pub fn data_mut<'a, T: 'static>(
        &self,
        store: impl Into<StoreContextMut<'a, T>>,
    ) -> &'a mut [u8] {
        self.data_and_store_mut(store).0
    }

    /// The memory's bytes, as [`Memory::data`], and the embedder's data.
    ///
    /// # Panics
    /// As of [`Memory::data`].
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Engine, Memory, MemoryType, Store};
    ///
    /// // The host's function needs the guest's bytes and what the host knows, both at once.
    /// let mut store = Store::new(&Engine::default(), 0);
    /// let memory = Memory::new(&mut store, MemoryType::new(1, None))?;
    /// memory.data_mut(&mut store)[..3].copy_from_slice(&[1, 2, 3]);
    /// let (bytes, sum) = memory.data_and_store_mut(&mut store);
    /// for byte in &mut bytes[..3] {
    ///     *sum += *byte;
    ///     *byte = 0;
    /// }
    /// assert_eq!((*store.data(), memory.data(&store)[1]), (6, 0));
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn data_and_store_mut<'a, T: 'static>(
        &self,
        store: impl Into<StoreContextMut<'a, T>>,
    ) -> (&'a mut [u8], &'a mut T) {
        let full = store.into().0;
        let entity = self.entity_or_panic(&full.inner);
        full.inner.note_writer();
        full.inner.note_view(entity);
        let (start, size) = bytes_here(&full.inner, entity);
        // SAFETY: the bytes are mapped while the store is borrowed, and they are
        // no part of the embedder's data.
        (unsafe { std::slice::from_raw_parts_mut(start, size) }, &mut full.data)
    }

    /// The memory's bytes for the current thread alone, and the embedder's data. Use
    /// this instead of [`Memory::data_mut`] to write a little: the store then needs no search for
    /// what was written when it is reset.
    ///
    /// # Panics
    /// If the memory is of another store.
    ///
    /// # Examples
    ///
    /// See [`LocalMemory`].
    pub fn local_and_store_mut<'a, T: 'static>(
        &self,
        store: impl Into<StoreContextMut<'a, T>>,
    ) -> (LocalMemory<'a>, &'a mut T) {
        let full = store.into().0;
        let entity = self.entity_or_panic(&full.inner);
        full.inner.note_writer();
        let (start, size) = full.inner.memory_bytes(entity);
        let slot = &raw mut full.inner.instance_mut(entity.ordinal).slot;
        // SAFETY: the bytes are mapped while the store is borrowed, and they are
        // no part of the embedder's data.
        let bytes = unsafe { std::slice::from_raw_parts_mut(start, size) };
        let interruption = Interruption::of(&full.inner.interrupts);
        let memory = LocalMemory { bytes, slot, interruption, borrowed: PhantomData };
        (memory, &mut full.data)
    }

    /// Waits until a range of the memory is here, which may be absent if it is that of an image that is
    /// [incomplete](crate::IncompleteImage): [`Memory::data`] does not wait any more then, nor do guests.
    /// Beyond the memory nothing is absent.
    ///
    /// # Errors
    /// [`AbsentPage`] names what did not come; if the memory
    /// is of another store.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Engine, Memory, MemoryType, Store};
    ///
    /// let mut store = Store::new(&Engine::default(), ());
    /// let memory = Memory::new(&mut store, MemoryType::new(1, None))?;
    /// memory.wait(&store, 0..65_536)?;
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn wait(&self, store: impl AsContext, range: Range<u64>) -> Result<()> {
        let store = &store.as_context().0.inner;
        Ok(store.wait_for(self.entity(store)?, range)?)
    }

    /// Copies bytes out of the memory, from byte `offset` on.
    ///
    /// # Errors
    /// If they are not all within the memory, or [did not come](Memory::wait); nothing is copied
    /// then. If the file of the instance's image was cut short: zeros were copied for what is gone,
    /// and the store has to be reset.
    ///
    /// # Panics
    /// If the memory is of another store.
    ///
    /// # Examples
    ///
    /// See [`Memory`].
    pub fn read(
        &self,
        store: impl AsContext,
        offset: usize,
        into: &mut [u8],
    ) -> Result<(), MemoryAccessError> {
        let store = &store.as_context().0.inner;
        let entity = self.entity_or_panic(store);
        let (start, size) = store.memory_bytes(entity);
        let (at, length) = (offset as u64, into.len() as u64);
        let outside = MemoryAccessError::outside(at, length, size as u64);
        let end = at.checked_add(length).filter(|end| *end <= size as u64).ok_or(outside)?;
        store.wait_for(entity, at..end).map_err(|absent| outside.or_absent(Some(absent)))?;
        // SAFETY: the range is accessible while the store is borrowed, its pages are here, and only
        // guests write them, which need the store mutably.
        let bytes = unsafe { std::slice::from_raw_parts(start.add(offset), into.len()) };
        into.copy_from_slice(bytes);
        outside.unless_whole(store)
    }

    /// Copies bytes into the memory, from byte `offset` on.
    ///
    /// # Errors
    /// If they do not all fit into the memory, or pages there [did not come](Memory::wait); nothing is
    /// copied then.
    ///
    /// # Panics
    /// If the memory is of another store.
    ///
    /// # Examples
    ///
    /// See [`Memory`].
    pub fn write(
        &self,
        mut store: impl AsContextMut,
        offset: usize,
        from: &[u8],
    ) -> Result<(), MemoryAccessError> {
        let store = &mut store.as_context_mut().0.inner;
        let entity = self.entity_or_panic(store);
        let (offset, length) = (offset as u64, from.len() as u64);
        let size = store.memory_bytes(entity).1 as u64;
        let outside = MemoryAccessError::outside(offset, length, size);
        let copied = store.memory_init(entity, from, offset, 0, length);
        copied.map_err(|_| outside.or_absent(store.activation.absent.take()))?;
        outside.unless_whole(store)
    }

    /// The memory's size in wasm pages of 64 KiB.
    ///
    /// # Panics
    /// If the memory is of another store.
    ///
    /// # Examples
    ///
    /// See [`Memory`].
    pub fn size(&self, store: impl AsContext) -> u64 {
        self.data_size(store) as u64 / WASM_PAGE_SIZE
    }

    /// The memory's size in bytes.
    ///
    /// # Panics
    /// If the memory is of another store.
    ///
    /// # Examples
    ///
    /// See [`Memory`].
    pub fn data_size(&self, store: impl AsContext) -> usize {
        let store = &store.as_context().0.inner;
        store.memory_bytes(self.entity_or_panic(store)).1
    }

    /// Makes the memory `delta` wasm pages larger; returns the size before.
    ///
    /// # Errors
    /// If that is beyond the memory's maximum, the room that its slot has, or the
    /// store's limit, if its limiter refuses it or fails, or the system refuses memory.
    ///
    /// # Examples
    ///
    /// See [`Memory`].
    pub fn grow(&self, mut store: impl AsContextMut, delta: u64) -> Result<u64> {
        let mut store = store.as_context_mut();
        let entity = self.entity(&store.0.inner)?;
        // SAFETY: the store is borrowed, and the pointer is to the whole of it.
        unsafe { limiter::grow_memory(store.as_ptr(), entity, delta)? }
    }
}

impl Memory {
    /// Makes `length` bytes from `start` on zero, because the guest has no more use for their
    /// contents, and gives their pages back to the system where that gains more than it costs:
    /// not pages of the module's image, nor a few pages, nor those that a pooled slot keeps for
    /// its next run. `None` if nothing would be given back: then nothing was done.
    ///
    /// # Errors
    /// If the memory is of another store, or does not reach that far.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Discarded, Engine, Memory, MemoryType, Store};
    ///
    /// let mut store = Store::new(&Engine::default(), ());
    /// let memory = Memory::new(&mut store, MemoryType::new(256, None))?;
    /// memory.write(&mut store, 8 << 20, b"large")?;
    /// assert_eq!(memory.discard(&mut store, 0, 16 << 20)?, Some(Discarded::Released));
    /// assert_eq!(memory.data(&store)[8 << 20], 0);
    /// assert_eq!(memory.discard(&mut store, 0, 100)?, None);
    /// assert!(memory.discard(&mut store, 16 << 20, 1).is_err());
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn discard(
        &self,
        mut store: impl AsContextMut,
        start: u64,
        length: u64,
    ) -> Result<Option<Discarded>> {
        let mut store = store.as_context_mut();
        let inner = &mut store.as_context_mut().0.inner;
        let entity = self.entity(inner)?;
        let size = inner.memory_bytes(entity).1 as u64;
        let outside = MemoryAccessError::outside(start, length, size);
        let failed = |inner: &mut StoreGroup| outside.or_absent(inner.activation.absent.take());
        if inner.memory_range(entity, start, length).is_err() {
            return Err(failed(inner).into());
        }
        if !inner.gains_by_discarding(entity, length) {
            return Ok(None);
        }
        let discarded = inner.discard_memory(entity, start, length);
        Ok(Some(discarded.map_err(|_| failed(inner))?))
    }
}

impl MemoryAccessError {
    /// # Errors
    /// As this, but that pages are gone, if some of the store were when its host code touched them.
    fn unless_whole(self, store: &StoreGroup) -> std::result::Result<(), Self> {
        match store.has_lost_pages() {
            true => Err(Self { problem: MemoryAccessProblem::Unreadable, ..self }),
            false => Ok(()),
        }
    }

    /// As this, but that a page did not come, if one did not.
    fn or_absent(self, absent: Option<AbsentPage>) -> Self {
        absent.map_or(self, |page| Self { problem: MemoryAccessProblem::Absent(page), ..self })
    }
}

/// The first byte of a memory, all of which is here, and how many there are.
///
/// # Panics
/// If absent pages do not come.
fn bytes_here(store: &StoreGroup, entity: Entity) -> (*mut u8, usize) {
    let (start, size) = store.memory_bytes(entity);
    store.wait_for(entity, 0..size as u64).unwrap_or_else(|absent| panic!("{absent}"));
    (start, size)
}

/// The bytes of a memory, for the current thread alone: see
/// [`Memory::local_and_store_mut`].
///
/// # Examples
///
/// ```
/// use pagefork::{Engine, Memory, MemoryType, Store};
///
/// let mut store = Store::new(&Engine::default(), 7);
/// let memory = Memory::new(&mut store, MemoryType::new(1, None))?;
/// let (mut local, data) = memory.local_and_store_mut(&mut store);
/// local.write(100, b"abc")?;
/// assert_eq!(&local.bytes()[100..103], b"abc");
/// assert_eq!((local.part(100..102)?, local.size()), (&b"ab"[..], 65_536));
/// local.wait(0..9)?;
/// local.part_mut(0..1)?[0] = 1;
/// assert_eq!(*data, 7);
///
/// // What writes to bytes of no memory can be tested without a store.
/// let mut buffer = [1; 4];
/// let mut local = pagefork::LocalMemory::from(&mut buffer[..]);
/// local.bytes_mut()[0] = 2;
/// assert!(!local.interruption().is_possible());
/// # Ok::<(), pagefork::Error>(())
/// ```
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
    ///
    /// # Examples
    ///
    /// See [`LocalMemory`].
    pub fn interruption(&self) -> Interruption<'a> {
        self.interruption
    }

    /// How many bytes it has.
    ///
    /// # Examples
    ///
    /// See [`LocalMemory`].
    pub fn size(&self) -> usize {
        self.bytes.len()
    }

    /// Waits until a range is here, as [`Memory::wait`].
    ///
    /// # Errors
    /// [`AbsentPage`] names what did not come.
    ///
    /// # Examples
    ///
    /// See [`LocalMemory`].
    pub fn wait(&self, range: Range<usize>) -> Result<(), AbsentPage> {
        // SAFETY: the slot is borrowed as long as `self` is.
        match unsafe { self.slot.as_ref() } {
            Some(slot) if slot.is_incomplete() || slot.is_bound() => {
                let start = self.bytes.as_ptr().addr();
                let end = range.end.min(self.bytes.len());
                slot.wait_at(start + range.start.min(end)..start + end)
            }
            _ => Ok(()),
        }
    }

    /// A range of the bytes, which [is waited for](LocalMemory::wait).
    ///
    /// # Errors
    /// If it does not lie within the memory, or did not come.
    ///
    /// # Examples
    ///
    /// See [`LocalMemory`].
    pub fn part(&self, range: Range<usize>) -> Result<&[u8], MemoryAccessError> {
        self.check(&range)?;
        Ok(&self.bytes[range])
    }

    /// As [`LocalMemory::part`], for reading and writing.
    ///
    /// # Errors
    /// As of [`LocalMemory::part`].
    ///
    /// # Examples
    ///
    /// See [`LocalMemory`].
    pub fn part_mut(&mut self, range: Range<usize>) -> Result<&mut [u8], MemoryAccessError> {
        self.check(&range)?;
        let start = self.bytes.as_ptr().addr();
        // SAFETY: the slot is borrowed mutably as long as `self` is.
        if let Some(slot) = unsafe { self.slot.as_mut() } {
            slot.note_external_write(start + range.start..start + range.end);
        }
        Ok(&mut self.bytes[range])
    }

    fn check(&self, range: &Range<usize>) -> Result<(), MemoryAccessError> {
        let (offset, size) = (range.start as u64, self.bytes.len() as u64);
        let length = (range.end as u64).saturating_sub(offset);
        let outside = MemoryAccessError::outside(offset, length, size);
        if range.start > range.end || range.end > self.bytes.len() {
            return Err(outside);
        }
        self.wait(range.clone()).map_err(|absent| outside.or_absent(Some(absent)))
    }

    /// All bytes. It waits for them.
    ///
    /// # Panics
    /// If absent pages do not come: ask [`LocalMemory::wait`] first.
    ///
    /// # Examples
    ///
    /// See [`LocalMemory`].
    pub fn bytes(&self) -> &[u8] {
        self.wait(0..self.bytes.len()).unwrap_or_else(|absent| panic!("{absent}"));
        self.bytes
    }

    /// All bytes, for reading and writing. It waits for them.
    ///
    /// # Panics
    /// As of [`LocalMemory::bytes`].
    ///
    /// # Examples
    ///
    /// See [`LocalMemory`].
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.wait(0..self.bytes.len()).unwrap_or_else(|absent| panic!("{absent}"));
        self.note_view();
        self.bytes
    }

    fn note_view(&mut self) {
        // SAFETY: the slot is borrowed mutably as long as `self` is.
        if let Some(slot) = unsafe { self.slot.as_mut() } {
            slot.note_external_writer(ExternalWriter::UntilReset);
        }
    }

    /// Copies bytes into the memory, from byte `offset` on.
    ///
    /// # Errors
    /// If they do not all fit into the memory, or pages there did not come; nothing is copied then.
    ///
    /// # Examples
    ///
    /// See [`LocalMemory`].
    pub fn write(&mut self, offset: usize, from: &[u8]) -> Result<(), MemoryAccessError> {
        let range = offset..offset.saturating_add(from.len());
        self.check(&range)?;
        self.bytes[range].copy_from_slice(from);
        Ok(())
    }
}
