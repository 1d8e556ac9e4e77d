//! What a store was at some time, so that others can begin as it was: images of its instances,
//! and what the host kept about them.

use std::sync::{Arc, OnceLock};

use pagefork_image::{ImageChain, StoredImage};
use pagefork_layout::reference::FuncRef;
use pagefork_pages::{Image, MemorySize};

use crate::base::error::{LimitError, LimitSource, Result};
use crate::code::module::{Module, SpawnPlan};
use crate::store::group::{Imports, StoreId};
use crate::store::host_func::HostFunc;
use crate::store::limits::{self, StoreLimits, Usage};
use crate::store::references::References;
use crate::store::suspended::{FrameWordKind, Suspended};

/// What a store was at some time.
pub(crate) struct Frozen {
    /// By ordinal, less one.
    pub(crate) instances: Vec<FrozenInstance>,
    /// All of the store's, by their numbers: tables, globals and frames hold those.
    pub(crate) host_functions: Vec<Arc<HostFunc>>,
    /// The numbers of those that tables and globals refer to, ascending.
    pub(crate) referred: Vec<u32>,
    /// The host values that guests hold references to.
    pub(crate) references: References,
    pub(crate) usage: Usage,
    /// Fuel that was left.
    pub(crate) fuel: i64,
    /// The suspended guest.
    pub(crate) call: Option<FrozenCall>,
    /// What is called in each store that is spawned.
    pub(crate) after_restore: Vec<FuncRef>,
    /// Ordinal of the instance that spawning returns; 0 if there is none.
    pub(crate) main: u32,
    /// The store that it was taken of.
    pub(crate) store: StoreId,
    /// What the instances of that store were spawned from.
    pub(crate) home: Option<u64>,
    /// What it was saved as, or loaded from. As long as this is held, the files stay.
    pub(crate) stored: OnceLock<SavedAs>,
}

/// What a captured store was saved as, or loaded from.
pub(crate) enum SavedAs {
    Stored(StoredImage),
    /// An image whose pages come later.
    Incomplete(ImageChain),
}

impl SavedAs {
    pub(crate) fn chain(&self) -> &ImageChain {
        match self {
            Self::Stored(stored) => stored.chain(),
            Self::Incomplete(chain) => chain,
        }
    }
}

/// What an instance was.
pub(crate) struct FrozenInstance {
    pub(crate) module: Module,
    pub(crate) imports: Imports,
    pub(crate) image: Arc<Image>,
    pub(crate) sizes: Vec<MemorySize>,
    /// What instances start as that are spawned from it.
    pub(crate) plan: Arc<SpawnPlan>,
    /// The part in use of the exceptions zone, which no image has.
    pub(crate) exceptions: Box<[u8]>,
    /// Of the tables that its module defines, in elements.
    pub(crate) table_lengths: Vec<u64>,
}

/// A suspended guest. Its registers are in the image of its instance.
pub(crate) struct FrozenCall {
    pub(crate) suspended: Suspended,
    /// The part in use of the stack.
    pub(crate) stack: Box<[u8]>,
    /// The words of it that are addresses of the stack: their places, and what they point to, both
    /// as distances below the top. All other addresses are of code, which stays where it is.
    pub(crate) frame_pointers: Box<[(u32, u32)]>,
    /// All words of it that are addresses, innermost first: their places, as distances below the
    /// top, and what they are.
    pub(crate) frame_words: Box<[(u32, FrameWordKind)]>,
}

impl Frozen {
    /// # Errors
    /// If a store with these limits may not have all of it.
    pub(crate) fn check_limits(&self, limits: &StoreLimits) -> Result<()> {
        self.usage.check(limits)?;
        let mut memory_total = 0u64;
        for instance in &self.instances {
            let longest = instance.table_lengths.iter().copied().max().unwrap_or(0);
            limits::check("elements of a table", longest, limits.table_elements)?;
            for (size, place) in instance.sizes.iter().zip(&instance.module.layout().memories) {
                let what = "bytes of a memory";
                limits::check(what, size.initial, limits.memory_size)?;
                limits::check_of(LimitSource::Slot, what, size.initial, place.reservation)?;
                memory_total = memory_total.saturating_add(size.initial);
            }
        }
        Ok(limits::check(LimitError::MEMORY_TOTAL, memory_total, limits.memory_total)?)
    }
}
