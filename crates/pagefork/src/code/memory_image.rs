//! Contents of memories that the embedder has in files of its own.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use pagefork_layout::module::Item;
use pagefork_pages::{FileSpan, Image};

use crate::base::error::{Result, UsageError};
use crate::code::engine::Engine;
use crate::code::module::{Module, PLANS_MAX, SpawnPlan, memory_sizes};
use crate::code::pool::Home;

/// What a memory of a module is to start with: a part of a file of the embedder's, which instances
/// map copy-on-write. [`Module::with_memory_image`] has an example.
///
/// Nothing of the file is read before guests or resets touch it, but for what is
/// [prefetched](Self::prefetch). The file must belong to this user or root, and no other user may
/// write it, or it is a memfd that is sealed against writing and shrinking. What its owner does to
/// it later shows in instances. If it is cut short, a guest that touches what is gone
/// [traps](crate::TrapCode::ImageUnreadable), and resets and spawns are errors.
#[derive(Debug)]
pub struct MemoryImage {
    file: OwnedFd,
    offset: u64,
    length: u64,
    prefetch: Vec<Range<u64>>,
}

impl MemoryImage {
    /// `length` bytes of a file from byte `offset` on, both multiples of 4,096.
    ///
    /// # Examples
    ///
    /// See [`Module::with_memory_image`].
    pub fn new(file: impl Into<OwnedFd>, offset: u64, length: u64) -> Self {
        Self { file: file.into(), offset, length, prefetch: Vec::new() }
    }

    /// Has the pages of these ranges, which are bytes of the memory, mapped as soon as a slot is
    /// filled, and read from the disk if need be: those that instances are known to touch, which
    /// then take no page fault each. Kernels before 5.14 do not prefetch. Where copy-on-write is
    /// switched off, all is copied anyway.
    ///
    /// # Examples
    ///
    /// See [`Module::with_memory_image`].
    #[must_use]
    pub fn prefetch(mut self, ranges: impl IntoIterator<Item = Range<u64>>) -> Self {
        self.prefetch.extend(ranges);
        self
    }
}

impl Module {
    /// The same module, whose instances start with an image of the embedder's in the memory that it
    /// exports by a name. The image takes the place of all contents of that memory, data segments
    /// included; behind it the memory is zero. All else is as the module says: sizes, globals,
    /// tables, other memories, and the start function, which runs in each instance. Snapshots of
    /// instances are as of any others.
    ///
    /// # Errors
    /// [`UsageError::NoMemoryImage`] if the module does not export a memory of its own by that name,
    /// or one that is shorter at first than the image, or has an image already;
    /// [`PagesError::FileRefused`](crate::PagesError::FileRefused) if the file is too short, not a
    /// regular one, or others may write it, if offset or length is no multiple of 4,096, or pages to
    /// prefetch lie outside.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::fs::File;
    /// use pagefork::{Engine, Linker, MemoryImage, Module};
    ///
    /// let path = std::env::temp_dir().join(format!("pagefork-memory-{}", std::process::id()));
    /// let mut bytes = vec![0; 3 * 4096];
    /// bytes[4096..4101].copy_from_slice(b"hello");
    /// std::fs::write(&path, &bytes)?;
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module (memory (export "memory") 1)
    ///     (func (export "get") (param i32) (result i32) (i32.load8_u (local.get 0))))"#)?;
    /// // Two pages from the second on, of which the first is known to be needed.
    /// let image = MemoryImage::new(File::open(&path)?, 4096, 2 * 4096).prefetch([0..4096]);
    /// let module = module.with_memory_image("memory", image)?;
    /// let pre = Linker::new(&engine).instantiate_pre(&module)?;
    /// for _ in 0..2 {
    ///     let (mut store, instance) = pre.spawn(())?;
    ///     let get = instance.get_typed_func::<i32, i32>(&mut store, "get")?;
    ///     assert_eq!(get.call(&mut store, 1)?, i32::from(b'e'));
    /// }
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn with_memory_image(&self, memory: &str, image: MemoryImage) -> Result<Self> {
        let no_image = |why| Err(UsageError::NoMemoryImage { memory: memory.into(), why }.into());
        let (info, layout) = (self.info(), self.layout());
        let Some(Item::Memory(index)) = self.export(memory) else {
            return no_image("the module exports no memory by that name");
        };
        let Some(own) = index.checked_sub(info.imported_memories) else {
            return no_image("it is imported");
        };
        if self.placed_image().is_some() {
            return no_image("a memory of the module has one already");
        }
        let size = memory_sizes(info, layout)[own as usize].initial;
        if image.length > size {
            return no_image("the image is longer than the memory is at first");
        }
        let start = layout.base + layout.memories[own as usize].offset;
        let MemoryImage { file, offset, length, prefetch } = image;
        let in_slot =
            |range: Range<u64>| start.saturating_add(range.start)..start.saturating_add(range.end);
        let placed = PlacedImage {
            replaced: start..start + size,
            span: FileSpan { slot: start..start + length, file_offset: offset },
            prefetch: prefetch.into_iter().map(in_slot).collect(),
            file,
            plans: Mutex::default(),
        };
        // What is wrong with the file is an error here, and not only of each spawn.
        let nothing = Image::new("nothing", start..start, [])?;
        placed.lay_over(&nothing)?;
        Ok(self.with_placed_image(placed))
    }
}

/// An image of the embedder's in its place in slots of a module.
pub(super) struct PlacedImage {
    file: OwnedFd,
    /// Slot offsets of the memory, as long as it is at first.
    replaced: Range<u64>,
    span: FileSpan,
    /// Slot offsets.
    prefetch: Vec<Range<u64>>,
    /// Plans of the module, and what was made of them.
    plans: Mutex<Vec<(Arc<SpawnPlan>, Arc<SpawnPlan>)>>,
}

impl PlacedImage {
    /// How instances start that start by `plan`, but with the image.
    pub(super) fn place(&self, engine: &Engine, plan: Arc<SpawnPlan>) -> Result<Arc<SpawnPlan>> {
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, made)) = plans.iter().find(|(of, _)| Arc::ptr_eq(of, &plan)) {
            return Ok(Arc::clone(made));
        }
        let made = Arc::new(SpawnPlan {
            image: self.lay_over(&plan.image)?,
            steps: plan.steps.clone(),
            memory_sizes: plan.memory_sizes.clone(),
            home: Some(Home::new(engine)),
        });
        if plans.len() >= PLANS_MAX {
            plans.clear();
        }
        plans.push((plan, Arc::clone(&made)));
        Ok(made)
    }

    fn lay_over(&self, of: &Image) -> Result<Arc<Image>> {
        let file = self.file.try_clone()?;
        let (replaced, span) = (self.replaced.clone(), self.span.clone());
        Ok(Image::over_file(of, replaced, file, span, self.prefetch.iter().cloned())?)
    }
}
