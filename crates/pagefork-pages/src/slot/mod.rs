//! A slot: the address space of one instance.

use std::ops::Range;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use pagefork_layout::page::PAGE_SIZE;

use crate::image::Image;
use crate::os::error::{AbsentPage, PagesError};
use crate::pages::bounds::SlotBounds;
use crate::pages::budget::Budget;
use crate::pages::slot_pages::{Setup, SlotPages};
use crate::pages::zones::{MemorySize, SlotConfig};
use crate::slot::deltas::Deltas;
use crate::strategy::choose::Made;
use crate::strategy::config::{Choice, DeltaTracker, Strategies};
use crate::strategy::report::ResetReport;
use crate::strategy::reset::Strategy;
use crate::strategy::stack::{Owner, Stack};
use crate::strategy::writers::{ExternalWriter, Writers};

/// What a slot has otherwise than its image, and images of it.
mod snapshot;
/// What a slot knows of its last snapshot.
mod deltas;
/// Writes by others than the code in a slot.
mod written;
/// How a slot is made as another image.
mod refill;
/// How a slot grows.
mod growth;
/// What tests do to slots and ask of them.
#[cfg(any(debug_assertions, feature = "testing"))]
mod audit;

/// Fewer bytes are not worth the call that gives them back.
const DISCARD_MIN: u64 = 64 << 10;
/// Fewer bytes are not worth the page faults of the next run, where a slot keeps its pages.
const DISCARD_KEPT_MIN: u64 = 4 << 20;

/// What became of pages whose contents matter no more. [`Slot::discard_memory`] has an example.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Discarded {
    /// They take no memory any more, or some of them do not.
    Released,
    /// They were written with zeros.
    Zeroed,
}

/// The address space of one instance, filled from an image.
///
/// ```text
///  0       stack   link   tables   image                base          + size         end
///  | guard | stack | link | room   | contents, state    | memory 0    | guard        |
///  |-none--|--anonymous read-write-|--copy on write (image)--|-anon-rw-|----none------|
/// ```
///
/// Four maps: the guard behind and the guard of the next slot are one, and five where
/// the kernel cannot join what a memory had grown by with the guard. Each
/// further memory lies behind the guard of the one before it, and costs two more,
/// or three where the image reaches into it. Pages
/// count as memory only once they are touched (`MAP_NORESERVE`). Transparent
/// huge pages are left as the system has them, except by strategies that count
/// page faults.
///
/// The pointers are to raw pages: do not read or write through them beyond what is
/// accessible, nor after the slot is dropped, which unmaps it.
///
/// # Examples
///
/// ```
/// use pagefork_pages::{Image, MemorySize, MemoryZone, Owner, Slot, SlotConfig};
///
/// let base = 1 << 20;
/// let config = SlotConfig {
///     stack: 64 << 10..128 << 10,
///     link: 128 << 10..132 << 10,
///     image_floor: 256 << 10,
///     base,
///     memories: vec![MemoryZone { start: base, reservation: 1 << 20, guard: 1 << 20 }],
///     size: 4 << 20,
/// };
/// // A page of state below the memory, and the first page of the memory.
/// let image = Image::new("example", base - 4096..base + 4096, [(base, &b"hello"[..])])?;
/// let size = MemorySize { initial: 64 << 10, maximum: 1 << 20 };
/// let mut slot = Slot::new(config, &image, &[size])?;
/// assert_eq!((slot.memory_count(), slot.memory(0)), (1, slot.base()));
/// assert_eq!(slot.image().extents(), image.extents());
/// // Each zone lies where the configuration says.
/// let offset = |place: *mut u8| place.addr() - slot.start().addr();
/// assert_eq!((offset(slot.stack_top()), offset(slot.link())), (128 << 10, 128 << 10));
///
/// // Code runs in it.
/// slot.enter();
/// // SAFETY: the memory is accessible, and no other code uses it.
/// unsafe { slot.memory(0).write(b'j') };
/// slot.grow_memory(0, 128 << 10)?;
/// assert_eq!(slot.memory_accessible(0), 128 << 10);
///
/// // Afterwards it is as before, for another owner.
/// slot.reset_for(Owner(7))?;
/// assert_eq!((slot.memory_size(0), slot.memory_max(0)), (64 << 10, 1 << 20));
/// // SAFETY: the base is accessible again, and no other code uses it.
/// assert_eq!(unsafe { slot.base().read() }, b'h');
///
/// // Of images in files: whether pages are gone, and who is to know.
/// let broken = std::sync::atomic::AtomicU32::new(0);
/// // SAFETY: the word is valid until the slot is dropped, before it.
/// unsafe { slot.note_lost_pages_in(&raw const broken, 1) };
/// assert!(!slot.has_lost_pages());
/// # drop(slot);
/// # Ok::<(), pagefork_pages::PagesError>(())
/// ```
#[derive(Debug)]
pub struct Slot {
    /// Of this and of the strategy the kernel may watch pages, which are still there when they go.
    deltas: Deltas,
    strategy: Strategy,
    pages: SlotPages,
    choice: Choice,
    writers: Writers,
    stack: Stack,
    /// Bytes outside the stack that were private after the last reset.
    resident: u64,
    /// Pages that it gave back or restored.
    written: u64,
    /// Pages that the last snapshot looked at.
    compared: u64,
    /// No page is private but copies, unless somebody was announced as a [writer](Writers) since.
    is_fresh: bool,
}

impl Slot {
    /// Reserves a slot and fills it: the image copy-on-write, zeros elsewhere, of
    /// each memory as much accessible as `sizes` says at its place. It is reset by
    /// discarding pages, and its memories grow by `mprotect`.
    ///
    /// # Errors
    /// [`PagesError::ImageMisfit`] and [`PagesError::MemorySize`] for an image or
    /// a size that this slot cannot have; else the limit that was met. Nothing
    /// stays behind.
    ///
    /// # Panics
    /// If the zones do not follow each other in whole pages, or there are not as
    /// many sizes as memories.
    ///
    /// # Examples
    ///
    /// See [`Slot`].
    pub fn new(
        config: impl Into<SlotConfig>,
        image: &Arc<Image>,
        sizes: &[MemorySize],
    ) -> Result<Self, PagesError> {
        let (setup, strategy, choice) = (Setup::PLAIN, Strategy::Discard, Choice::PLAIN);
        let plain = Made { setup, strategy, choice };
        let zones = config.into();
        zones.check();
        Self::make(zones, image, sizes, plain, Stack::default(), DeltaTracker::Off)
    }

    /// As [`Slot::new`], reset and grown as `strategies` say, or by what is nearest
    /// to that on this machine: [`Slot::strategy`] tells.
    ///
    /// # Errors
    /// As of [`Slot::new`].
    ///
    /// # Panics
    /// As of [`Slot::new`].
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_pages::{
    ///     ExternalWriter, Image, MemorySize, MemoryZone, Owner, ResetKind, Slot, SlotConfig,
    ///     StrategyConfig,
    /// };
    ///
    /// # let (stack, link, base) = (1 << 16..1 << 17, 1 << 17..1 << 18, 1 << 20);
    /// # let memories = vec![MemoryZone { start: base, reservation: 1 << 20, guard: 1 << 20 }];
    /// # let config = SlotConfig { stack, link, image_floor: 1 << 18, base, memories, size: 4 << 20 };
    /// let image = Image::new("example", base..base, [])?;
    /// let size = MemorySize { initial: 65_536, maximum: 1 << 20 };
    /// let asked = StrategyConfig { reset: ResetKind::Remap, ..StrategyConfig::default() };
    /// let mut slot = Slot::with_strategies(config, &image, &[size], &asked.check()?)?;
    /// let choice = slot.strategy();
    /// assert_eq!((choice.asked, choice.used), (ResetKind::Remap, ResetKind::Remap));
    /// println!("by {}: {:?}", choice.used, choice.reason);
    ///
    /// // The kernel has written to it, for a guest that read a file.
    /// slot.note_external_writer(ExternalWriter::UntilReset);
    /// let report = slot.reset()?;
    /// slot.hand_to(Owner(1));
    /// assert_eq!(report.by, ResetKind::Remap);
    /// assert!(slot.is_whole());
    /// # Ok::<(), pagefork_pages::PagesError>(())
    /// ```
    pub fn with_strategies(
        config: impl Into<SlotConfig>,
        image: &Arc<Image>,
        sizes: &[MemorySize],
        strategies: &Strategies,
    ) -> Result<Self, PagesError> {
        Self::within(config, image, sizes, strategies, &Budget::new(u64::MAX))
    }

    /// As [`Slot::with_strategies`]; what it keeps between runs is of a budget that slots
    /// share.
    ///
    /// # Errors
    /// As of [`Slot::new`].
    ///
    /// # Panics
    /// As of [`Slot::new`].
    ///
    /// # Examples
    ///
    /// See [`Budget`].
    pub fn within(
        config: impl Into<SlotConfig>,
        image: &Arc<Image>,
        sizes: &[MemorySize],
        strategies: &Strategies,
        budget: &Budget,
    ) -> Result<Self, PagesError> {
        let zones = config.into();
        zones.check();
        let stack = Stack::new(strategies, &zones);
        let deltas = strategies.config().deltas;
        Self::make(zones, image, sizes, strategies.make(sizes, budget)?, stack, deltas)
    }

    fn make(
        zones: SlotConfig,
        image: &Arc<Image>,
        sizes: &[MemorySize],
        Made { setup, mut strategy, choice }: Made,
        stack: Stack,
        deltas: DeltaTracker,
    ) -> Result<Self, PagesError> {
        let pages = SlotPages::new(zones, setup, image, sizes)?;
        strategy.begin(&pages);
        let (deltas, writers) = (Deltas::new(deltas), Writers::default());
        let resident = pages.copied_size();
        let (written, compared, is_fresh) = (0, 0, true);
        Ok(Self {
            deltas,
            pages,
            strategy,
            choice,
            writers,
            stack,
            resident,
            written,
            compared,
            is_fresh,
        })
    }

    /// Address of the slot's first byte, which is guard.
    ///
    /// # Examples
    ///
    /// See [`Slot`].
    #[inline]
    pub fn start(&self) -> *mut u8 {
        ptr::with_exposed_provenance_mut(self.pages.start())
    }

    /// Address of the first byte of the first memory.
    ///
    /// # Examples
    ///
    /// See [`Slot`].
    #[inline]
    pub fn base(&self) -> *mut u8 {
        self.place(self.pages.zones().base)
    }

    /// How many memories there are.
    ///
    /// # Examples
    ///
    /// See [`Slot`].
    pub fn memory_count(&self) -> usize {
        self.pages.memory_count()
    }

    /// Address of the first byte of memory `index`.
    ///
    /// # Panics
    /// If there is no such memory; so do all functions that take an index.
    ///
    /// # Examples
    ///
    /// See [`Slot`].
    pub fn memory(&self, index: usize) -> *mut u8 {
        self.place(self.pages.zones().memories[index].start)
    }

    /// Address of the link zone. Guests cannot reach it, and it is to be written before each
    /// run: a reset leaves it as it is, or zero.
    ///
    /// # Examples
    ///
    /// See [`Slot`].
    #[inline]
    pub fn link(&self) -> *mut u8 {
        self.place(self.pages.zones().link.start)
    }

    /// Address where the stack zone ends: the stack grows down from here.
    ///
    /// # Examples
    ///
    /// See [`Slot`].
    #[inline]
    pub fn stack_top(&self) -> *mut u8 {
        self.place(self.pages.zones().stack.end)
    }

    #[inline]
    fn place(&self, offset: u64) -> *mut u8 {
        self.start().wrapping_add(offset as usize)
    }

    /// Size of memory `index` in bytes, as its code sees it.
    ///
    /// # Examples
    ///
    /// See [`Slot`].
    #[inline]
    pub fn memory_size(&self, index: usize) -> u64 {
        self.pages.bounds().memory_size(index)
    }

    /// Bytes of memory `index` that are accessible: more than it has where
    /// [growth](crate::GrowthKind) leaves them so.
    ///
    /// # Examples
    ///
    /// See [`Slot`].
    #[inline]
    pub fn memory_accessible(&self, index: usize) -> u64 {
        self.pages.accessible(index)
    }

    /// Bytes that memory `index` can grow to.
    ///
    /// # Examples
    ///
    /// See [`Slot`].
    pub fn memory_max(&self, index: usize) -> u64 {
        self.pages.memory_max(index)
    }

    /// What the slot was filled from and a reset returns to.
    ///
    /// # Examples
    ///
    /// See [`Slot`].
    pub fn image(&self) -> &Arc<Image> {
        self.pages.image()
    }

    /// Where everything lies, to share with a signal handler.
    ///
    /// # Examples
    ///
    /// See [`SlotBounds`].
    pub fn bounds(&self) -> SlotBounds {
        self.pages.bounds().clone()
    }

    /// Makes memory `index` `new_size` bytes long; what is new reads as zero.
    ///
    /// # Errors
    /// [`PagesError::MemorySize`] if that is less than now, more than the
    /// maximum, or not whole pages; [`PagesError::ResetIncomplete`] after a reset
    /// that failed; else the limit that was met. The memory is as before then.
    ///
    /// # Examples
    ///
    /// See [`Slot`].
    pub fn grow_memory(&mut self, index: usize, new_size: u64) -> Result<(), PagesError> {
        self.is_fresh = false;
        self.pages.grow_memory(index, new_size)
    }

    /// Makes a range of memory `index` zero, because its code has no more use for the contents,
    /// and gives the pages back where that gains something: not where pages belong to an image,
    /// and not if the range is small, or if the slot's strategy keeps pages for the next run and
    /// the range is not large. No map changes, and a reset returns to the image as ever.
    ///
    /// # Errors
    /// [`PagesError::MemorySize`] if the range ends beyond the memory's size;
    /// [`PagesError::PageAbsent`] if pages of it do not come;
    /// [`PagesError::ResetIncomplete`] after a reset that failed.
    ///
    /// # Panics
    /// If the range ends before it starts.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_pages::{Discarded, Image, MemorySize, MemoryZone, Slot, SlotConfig};
    ///
    /// # let (stack, link, base) = (1 << 16..1 << 17, 1 << 17..1 << 18, 1 << 20);
    /// # let memories = vec![MemoryZone { start: base, reservation: 1 << 20, guard: 1 << 20 }];
    /// # let config = SlotConfig { stack, link, image_floor: 1 << 18, base, memories, size: 4 << 20 };
    /// let image = Image::new("example", base..base, [])?;
    /// let size = MemorySize { initial: 262_144, maximum: 1 << 20 };
    /// let mut slot = Slot::new(config, &image, &[size])?;
    /// slot.enter();
    /// // SAFETY: the memory is accessible, and no other code uses it.
    /// unsafe { slot.memory(0).write_bytes(7, 262_144) };
    /// assert_eq!(slot.discard_memory(0, 65_536..262_144)?, Discarded::Released);
    /// // SAFETY: as above.
    /// assert_eq!(unsafe { (slot.memory(0).read(), slot.memory(0).add(65_536).read()) }, (7, 0));
    /// # Ok::<(), pagefork_pages::PagesError>(())
    /// ```
    pub fn discard_memory(
        &mut self,
        index: usize,
        range: Range<u64>,
    ) -> Result<Discarded, PagesError> {
        self.pages.check_process()?;
        let offsets = self.part_of(index, &range)?;
        self.is_fresh = false;
        // It may be another thread than that of the code.
        self.writers.enter();
        self.pages.wait(offsets.clone())?;
        self.deltas.note_write(&self.pages, offsets.clone());
        if !self.gains_by_discarding(range.end - range.start) {
            // SAFETY: `part_of` says that it is accessible, and the slot is borrowed.
            unsafe { self.pages.clear(offsets) };
            return Ok(Discarded::Zeroed);
        }
        // SAFETY: `part_of` says that it is accessible, and the slot is borrowed.
        let released = unsafe { self.pages.make_zero(offsets) };
        Ok(if released { Discarded::Released } else { Discarded::Zeroed })
    }

    /// Waits until what the image has in a range of memory `index` is here: before the host, or the
    /// kernel for it, reads or writes there. Of an image that is not
    /// [incomplete](crate::IncompletePages), all is. What of the range lies beyond the memory
    /// counts for nothing.
    ///
    /// # Errors
    /// [`AbsentPage`] names what did not come.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use pagefork_pages::{
    ///     FileSpan, Image, IncompletePages, MemorySize, MemoryZone, PagesError, Slot, SlotConfig,
    /// };
    ///
    /// # if !pagefork_pages::serves_absent_pages() { return Ok(()) }
    /// # let (stack, link, base) = (1 << 16..1 << 17, 1 << 17..1 << 18, 1 << 20);
    /// # let memories = vec![MemoryZone { start: base, reservation: 1 << 20, guard: 1 << 20 }];
    /// # let config = SlotConfig { stack, link, image_floor: 1 << 18, base, memories, size: 4 << 20 };
    /// let pages = IncompletePages::new("example", 32 << 10, Duration::from_millis(1))?;
    /// let span = FileSpan { slot: base..base + (32 << 10), file_offset: 0 };
    /// let extent = span.slot.clone();
    /// let image = Image::from_incomplete(&pages, "example", vec![extent], &[span], [])?;
    /// let size = MemorySize { initial: 64 << 10, maximum: 1 << 20 };
    /// let slot = Slot::new(config, &image, &[size])?;
    /// pages.install(0, &[7; 16 << 10])?;
    /// slot.wait(0, 0..16 << 10)?;
    /// // SAFETY: the memory is accessible, its first pages are here, and no other code uses it.
    /// assert_eq!(unsafe { slot.memory(0).read() }, 7);
    /// assert_eq!(slot.wait(0, 0..1 << 20).unwrap_err().group, 1);
    /// # Ok::<(), PagesError>(())
    /// ```
    pub fn wait(&self, index: usize, range: Range<u64>) -> Result<(), AbsentPage> {
        let zone = &self.pages.zones().memories[index];
        let at = |offset: u64| zone.start + offset.min(zone.reservation);
        self.pages.wait(at(range.start)..at(range.end))
    }

    /// As [`Slot::wait`], of all that the slot has at these addresses.
    ///
    /// # Errors
    /// As of [`Slot::wait`].
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_pages::{Image, MemorySize, MemoryZone, Slot, SlotConfig};
    ///
    /// # let (stack, link, base) = (1 << 16..1 << 17, 1 << 17..1 << 18, 1 << 20);
    /// # let memories = vec![MemoryZone { start: base, reservation: 1 << 20, guard: 1 << 20 }];
    /// # let config = SlotConfig { stack, link, image_floor: 1 << 18, base, memories, size: 4 << 20 };
    /// let image = Image::new("example", base..base, [])?;
    /// let size = MemorySize { initial: 64 << 10, maximum: 1 << 20 };
    /// let slot = Slot::new(config, &image, &[size])?;
    /// slot.wait_at(slot.bounds().slot())?;
    /// slot.wait_at(0..8)?;
    /// # Ok::<(), pagefork_pages::PagesError>(())
    /// ```
    pub fn wait_at(&self, addresses: Range<usize>) -> Result<(), AbsentPage> {
        let offset = |address: usize| address.saturating_sub(self.pages.start()) as u64;
        self.pages.wait(offset(addresses.start)..offset(addresses.end))
    }

    /// Whether pages of the slot's image, or of the root of that, are absent yet:
    /// [`IncompletePages`](crate::IncompletePages).
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_pages::{Image, MemorySize, MemoryZone, Slot, SlotConfig};
    ///
    /// # let (stack, link, base) = (1 << 16..1 << 17, 1 << 17..1 << 18, 1 << 20);
    /// # let memories = vec![MemoryZone { start: base, reservation: 1 << 20, guard: 1 << 20 }];
    /// # let config = SlotConfig { stack, link, image_floor: 1 << 18, base, memories, size: 4 << 20 };
    /// let image = Image::new("example", base..base, [])?;
    /// let size = MemorySize { initial: 64 << 10, maximum: 1 << 20 };
    /// assert!(!Slot::new(config, &image, &[size])?.is_incomplete());
    /// # Ok::<(), pagefork_pages::PagesError>(())
    /// ```
    pub fn is_incomplete(&self) -> bool {
        self.pages.image().is_incomplete()
    }

    /// Whether the slot can be used in this process: before code runs in it.
    ///
    /// # Errors
    /// [`AbsentPage`] in a process that was forked while pages of the slot's image were absent. It has
    /// no maps of that image, and other threads may have mapped something in their place. All else that
    /// uses the slot's pages returns this error, too, and dropping the slot keeps its address space.
    /// So it is in a forked process if memories of the slot [grow in files](Slot::is_bound), which the
    /// parent's slot goes on to use.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_pages::{Image, MemorySize, MemoryZone, Slot, SlotConfig};
    ///
    /// # let (stack, link, base) = (1 << 16..1 << 17, 1 << 17..1 << 18, 1 << 20);
    /// # let memories = vec![MemoryZone { start: base, reservation: 1 << 20, guard: 1 << 20 }];
    /// # let config = SlotConfig { stack, link, image_floor: 1 << 18, base, memories, size: 4 << 20 };
    /// let image = Image::new("example", base..base, [])?;
    /// let size = MemorySize { initial: 64 << 10, maximum: 1 << 20 };
    /// let slot = Slot::new(config, &image, &[size])?;
    /// slot.check_process()?;
    /// # Ok::<(), pagefork_pages::PagesError>(())
    /// ```
    pub fn check_process(&self) -> Result<(), AbsentPage> {
        self.pages.check_process()
    }

    /// What a handler of SIGBUS does about a touch of an absent page: waits until it is here, so
    /// that the instruction can be made again. `None`: at this address nothing is absent, so that
    /// the signal has another reason. Async-signal-safe; it must not be called where host code was
    /// interrupted, which may hold locks.
    ///
    /// # Errors
    /// [`AbsentPage`] if it does not come.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_pages::{Image, MemorySize, MemoryZone, Slot, SlotConfig};
    ///
    /// # let (stack, link, base) = (1 << 16..1 << 17, 1 << 17..1 << 18, 1 << 20);
    /// # let memories = vec![MemoryZone { start: base, reservation: 1 << 20, guard: 1 << 20 }];
    /// # let config = SlotConfig { stack, link, image_floor: 1 << 18, base, memories, size: 4 << 20 };
    /// let image = Image::new("example", base..base, [])?;
    /// let size = MemorySize { initial: 64 << 10, maximum: 1 << 20 };
    /// let slot = Slot::new(config, &image, &[size])?;
    /// assert_eq!(slot.wait_for_fault(slot.base().addr()), None);
    /// # Ok::<(), pagefork_pages::PagesError>(())
    /// ```
    pub fn wait_for_fault(&self, address: usize) -> Option<Result<(), AbsentPage>> {
        let offset = address.checked_sub(self.pages.start())? as u64;
        self.pages.image().wait_for_fault(offset)
    }

    /// Whether giving so many bytes back gains more than it costs: the call, and page faults of
    /// this run or, where the slot keeps pages, of the next.
    /// [`Slot::discard_memory`] has an example.
    pub fn gains_by_discarding(&self, length: u64) -> bool {
        let least = if self.strategy.keeps_pages() { DISCARD_KEPT_MIN } else { DISCARD_MIN };
        length >= least
    }

    /// Slot offsets of a range of a memory.
    fn part_of(&self, index: usize, range: &Range<u64>) -> Result<Range<u64>, PagesError> {
        assert!(range.start <= range.end, "a range ends before it starts");
        if !self.is_whole() {
            return Err(PagesError::ResetIncomplete);
        }
        let current = self.memory_size(index);
        if range.end > current {
            let (requested, maximum) = (range.end, self.memory_max(index));
            return Err(PagesError::MemorySize { requested, current, maximum });
        }
        let start = self.pages.zones().memories[index].start;
        Ok(start + range.start..start + range.end)
    }

    /// How the slot is reset, and why so.
    ///
    /// # Examples
    ///
    /// See [`Slot::with_strategies`].
    pub fn strategy(&self) -> Choice {
        self.strategy.choice(&self.pages).unwrap_or(self.choice)
    }

    /// How the next [`Slot::snapshot`] finds what was written since the last one: what was asked
    /// for, or what this machine can do of it. As long as pages of the image are absent, all that is private is compared,
    /// and so is it where the kernel refused to track anything after the last snapshot, too few maps were left for
    /// it, or all counts as written. Where the kernel refuses to track single parts, those are compared.
    ///
    /// # Errors
    /// As of [`HostFeatures::get`](crate::HostFeatures::get).
    ///
    /// # Examples
    ///
    /// See [`Slot::compared`].
    pub fn delta_tracker(&self) -> Result<DeltaTracker, PagesError> {
        self.deltas.tracker(&self.pages)
    }

    /// Whether the slot can be handed out: not after a reset that failed half-way.
    ///
    /// # Examples
    ///
    /// See [`Slot::with_strategies`].
    pub fn is_whole(&self) -> bool {
        self.pages.is_whole()
    }

    /// Whether a page of the image's file was gone when somebody touched it, and zeros are in its
    /// place: the file was cut short, or the disk cannot give it. The slot must not be used then
    /// before a reset has filled it anew. See [`stand_in`](crate::stand_in).
    ///
    /// # Examples
    ///
    /// See [`Slot`].
    #[inline]
    pub fn has_lost_pages(&self) -> bool {
        self.pages.has_lost_pages()
    }

    /// Has these bits set in a word when [pages are lost](Self::has_lost_pages), also by a signal
    /// handler; a null pointer takes it back. To be said again when the slot was made as another
    /// image.
    ///
    /// # Examples
    ///
    /// See [`Slot`].
    ///
    /// # Safety
    /// The word is valid until another is given or the slot is dropped.
    pub unsafe fn note_lost_pages_in(&self, word: *const AtomicU32, bits: u32) {
        if let Some(watch) = self.pages.file_watch() {
            // SAFETY: by this function's contract.
            unsafe { watch.note_in(word, bits) };
        }
    }

    /// Says that code is about to run in the slot on the current thread. Strategies
    /// `Resident` and `Auto` rely on it: a run that is not
    /// announced may have written anything, so the next reset searches. But if a run is announced
    /// and another thread writes too, unannounced, that goes unnoticed. So announce every write
    /// to the slot, since it was made, here or by [`Slot::note_external_writer`], except to the
    /// link zone, which is to be written before each run.
    ///
    /// # Examples
    ///
    /// See [`Slot`].
    #[inline]
    pub fn enter(&mut self) {
        self.writers.enter();
    }

    /// Announces a writer whose writes show in no page fault of the thread that runs the code:
    /// another thread, another process, or the kernel, even on behalf of this thread.
    ///
    /// # Examples
    ///
    /// See [`Slot::with_strategies`].
    pub fn note_external_writer(&mut self, writer: ExternalWriter) {
        self.writers.note_external(writer);
        self.deltas.expose(writer);
    }

    /// Returns every page to what [`Slot::new`] made: the image, zeros elsewhere,
    /// memories of their initial sizes. By strategies that restore pages in place, the
    /// link zone and a few pages of the stack may keep what the owner left there:
    /// [`Slot::hand_to`] clears them when there is another owner.
    ///
    /// # Errors
    /// The limit that was met; [`PagesError::Unsupported`] by a slot of
    /// [`Slot::new`] where the kernel only pretends to discard. The slot either is
    /// as before, or not whole, and then can only be reset again or dropped:
    /// [`Slot::is_whole`].
    ///
    /// # Examples
    ///
    /// See [`Slot::with_strategies`].
    pub fn reset(&mut self) -> Result<ResetReport, PagesError> {
        self.is_fresh = false;
        let Self { deltas, pages, strategy, writers, stack, .. } = self;
        pages.check_process()?;
        deltas.end()?;
        let report = strategy.reset(pages, writers, stack);
        if let Ok(report) = &report {
            writers.note_reset();
            let private = report.private.unwrap_or(0) - report.discarded;
            self.resident = (private * PAGE_SIZE).max(pages.copied_size());
            self.written = report.restored + report.discarded;
        }
        report
    }

    /// Pages of the slot that the last [`Slot::snapshot`] read.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_pages::{
    ///     DeltaTracker, Image, ImageForm, MemorySize, MemoryZone, Slot, SlotConfig, StrategyConfig,
    /// };
    ///
    /// # let (stack, link, base) = (1 << 16..1 << 17, 1 << 17..1 << 18, 1 << 20);
    /// # let memories = vec![MemoryZone { start: base, reservation: 1 << 20, guard: 1 << 20 }];
    /// # let config = SlotConfig { stack, link, image_floor: 1 << 18, base, memories, size: 4 << 20 };
    /// let image = Image::new("example", base..base, [])?;
    /// let size = MemorySize { initial: 256 << 10, maximum: 1 << 20 };
    /// let strategies = StrategyConfig { deltas: DeltaTracker::Writes, ..StrategyConfig::default() };
    /// let mut slot = Slot::with_strategies(config, &image, &[size], &strategies.check()?)?;
    /// slot.enter();
    /// // SAFETY: the memory is accessible, and no other code uses it.
    /// unsafe { slot.memory(0).write_bytes(7, 256 << 10) };
    /// let first = slot.snapshot("first", &[], ImageForm::Whole)?;
    ///
    /// // SAFETY: as above.
    /// unsafe { slot.memory(0).write(8) };
    /// let second = slot.snapshot("second", &[], ImageForm::Whole)?;
    /// assert_eq!(second.changed_since(&first), Some(vec![base]));
    /// let all = if slot.delta_tracker()? == DeltaTracker::Writes { 1 } else { 64 };
    /// assert_eq!(slot.compared(), all);
    /// # Ok::<(), pagefork_pages::PagesError>(())
    /// ```
    pub fn compared(&self) -> u64 {
        self.compared
    }

    /// Pages that the last reset put back in place, or discarded where it knew them to be
    /// private: about as many as had been written.
    ///
    /// # Examples
    ///
    /// See [`Slot::discard`].
    #[inline]
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Bytes that the slot keeps in memory since its last reset, as far as its strategy
    /// knows.
    ///
    /// # Examples
    ///
    /// See [`Slot::discard`].
    #[inline]
    pub fn resident(&self) -> u64 {
        self.resident + self.stack.kept_count() * PAGE_SIZE
    }

    /// Gives back the memory that a slot keeps which has been reset, and leaves its
    /// contents as they are. What was copied from an image stays.
    ///
    /// # Errors
    /// As of [`Slot::reset`].
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_pages::{
    ///     Image, MemorySize, MemoryZone, ResetKind, Slot, SlotConfig, StrategyConfig,
    /// };
    ///
    /// # let (stack, link, base) = (1 << 16..1 << 17, 1 << 17..1 << 18, 1 << 20);
    /// # let memories = vec![MemoryZone { start: base, reservation: 1 << 20, guard: 1 << 20 }];
    /// # let config = SlotConfig { stack, link, image_floor: 1 << 18, base, memories, size: 4 << 20 };
    /// let image = Image::new("example", base..base + 4096, [(base, &b"hello"[..])])?;
    /// let size = MemorySize { initial: 64 << 10, maximum: 1 << 20 };
    /// let strategies = StrategyConfig { reset: ResetKind::Scan, ..StrategyConfig::default() }.check()?;
    /// let mut slot = Slot::with_strategies(config, &image, &[size], &strategies)?;
    /// slot.enter();
    /// // SAFETY: the memory is accessible, and no other code uses it.
    /// unsafe { slot.memory(0).write(b'j') };
    /// slot.reset()?;
    /// println!("{} pages were written; {} bytes are kept", slot.written(), slot.resident());
    ///
    /// // The next run takes its page faults again.
    /// let kept = slot.resident();
    /// slot.discard()?;
    /// assert!(slot.resident() <= kept);
    /// // SAFETY: the memory is accessible, and no other code uses it.
    /// assert_eq!(unsafe { slot.memory(0).read() }, b'h');
    /// # Ok::<(), pagefork_pages::PagesError>(())
    /// ```
    pub fn discard(&mut self) -> Result<(), PagesError> {
        let Self { deltas, pages, strategy, stack, .. } = self;
        pages.check_process()?;
        pages.begin_look()?;
        deltas.end()?;
        let discarded = match pages.is_whole() {
            true => pages.discard_kept(),
            false => Ok(None),
        };
        pages.end_look()?;
        if let Some(fresh) = discarded? {
            strategy.forget(&fresh, pages);
            stack.forget(&fresh);
            self.resident = pages.copied_size();
        }
        Ok(())
    }

    /// [`Slot::reset`], then [`Slot::hand_to`].
    ///
    /// # Errors
    /// As of [`Slot::reset`].
    ///
    /// # Examples
    ///
    /// See [`Slot`].
    pub fn reset_for(&mut self, owner: Owner) -> Result<ResetReport, PagesError> {
        let report = self.reset()?;
        self.hand_to(owner);
        Ok(report)
    }

    /// Hands a slot that has just been reset or made to an owner. The stack keeps
    /// no byte of another one.
    ///
    /// # Panics
    /// If the slot is not whole.
    ///
    /// # Examples
    ///
    /// See [`Slot::with_strategies`].
    #[inline]
    pub fn hand_to(&mut self, owner: Owner) {
        let Self { pages, strategy, stack, .. } = self;
        if stack.hides_from(owner) && strategy.look_at_stack(pages, stack).is_err() {
            stack.clear_all(pages);
        }
        stack.hand_to(owner, pages);
    }
}

// A slot moves between threads; its addresses mean the same in each.
const _: () = {
    const fn sendable<T: Send + Sync>() {}
    sendable::<Slot>();
    sendable::<SlotBounds>();
    sendable::<Image>();
};
