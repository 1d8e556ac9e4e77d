//! How a slot becomes equal to its image again, and how its memories grow.
//!
//! ```text
//!             finds what was written by      gives back by          system calls of a warm reset
//!  Remap      -                              fresh maps             several
//!  Discard    -                              MADV_DONTNEED          1
//!  Scan       PAGEMAP_SCAN                   copying in place       1
//!  Resident   page faults counted, or Scan   copying in place       1, cheaper
//!  Copy       PAGEMAP_SCAN; no copy-on-write copying in place       1
//!  Auto       one of Scan, Resident, Discard
//! ```
//!
//! Strategies that copy in place keep pages private, so a later run takes no fault
//! on them; [`Restorer`] says which are kept. What a kernel lacks is replaced by
//! what is nearest: [`Slot::strategy`](crate::Slot::strategy) tells what and why.

use std::fmt;
use std::sync::Arc;

use crate::error::{IllegalStrategies, PagesError};
use crate::image::Image;
use crate::slot::MemorySize;
use crate::slot_pages::SlotPages;

/// What is asked for, and what of it this machine can do.
mod choose;
/// What a strategy may know about a run: who entered, who else can write.
mod run;
/// Whether the current thread has taken a page fault.
mod faults;
/// The pages of the stack that outlive a reset.
mod stack;
/// How much of a memory stays accessible, and whether any of it does.
mod reach;
/// For how long it pays to keep pages.
mod returns;
/// Private pages that are kept, restored and let go.
mod restorer;

/// Chooses between others by what it sees.
mod auto;
/// No copy-on-write: what differs from the image is copied.
mod copy;
/// The kernel throws written pages away.
mod discard;
/// Fresh maps each time.
mod remap;
/// Restores in place, and searches only if page faults were counted.
mod resident;
/// Restores in place what the kernel finds.
mod scan;

pub use choose::{Choice, Reason, Strategies};
pub use faults::counts_faults_in_memory;
pub use run::View;
pub use stack::{Owner, STACK_KEPT_MAX};

pub(crate) use choose::Made;
pub(crate) use discard::Discard;
pub(crate) use reach::Reach;
pub(crate) use run::Run;
pub(crate) use stack::Stack;

/// How a slot becomes equal to its image again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum ResetKind {
    /// New maps every time: slow, and right even where nothing else works.
    Remap,
    /// The kernel throws the written pages away (`MADV_DONTNEED`).
    Discard,
    /// The kernel says which pages are private (PAGEMAP_SCAN), and those are
    /// restored in place.
    Scan,
    /// As `Scan`, but without the scan if no page fault was counted since the last
    /// reset. It relies on [`Slot::enter`](crate::Slot::enter) and
    /// [`Slot::note_view`](crate::Slot::note_view), and keeps huge pages out.
    Resident,
    /// No copy-on-write: the image is copied in, and what differs is restored. For
    /// tiny images, and where copy-on-write is switched off.
    Copy,
    /// Starts with `Scan` and moves between the others by what it sees.
    #[default]
    Auto,
}

impl ResetKind {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Remap, Self::Discard, Self::Scan, Self::Resident, Self::Copy, Self::Auto];
}

impl fmt::Display for ResetKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Remap => "remap",
            Self::Discard => "discard",
            Self::Scan => "scan",
            Self::Resident => "resident",
            Self::Copy => "copy",
            Self::Auto => "auto",
        })
    }
}

/// How a memory becomes longer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum GrowthKind {
    /// Pages are made accessible when the memory grows, and inaccessible when it is
    /// reset.
    #[default]
    Mprotect,
    /// Pages are accessible from the start: as many bytes as this of each memory
    /// (without a part of a page, or all that it may become with `None`), and its initial size
    /// at least. Up to there growth needs no system call; beyond, it is as
    /// `Mprotect`. Only for code with [`CodeBounds::Explicit`] or [`CodeBounds::Both`].
    Checked {
        /// Bytes.
        accessible: Option<u64>,
    },
    /// As `Mprotect`, but a reset leaves accessible what the memory had grown to, so that
    /// growing as far again needs no system call. What no run has any more is made
    /// inaccessible within 16 runs. Only for code as for `Checked`, and best for
    /// [`CodeBounds::Both`].
    Kept,
    /// As `Kept` where making pages inaccessible takes more time than code that compares
    /// would lose, else as `Mprotect`; what that takes is measured now and then. It is
    /// much where several threads run guests, since it interrupts each of them. Only for
    /// code as for `Checked`, and best for [`CodeBounds::Both`].
    Auto,
}

/// What keeps code from using a memory beyond its size.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum CodeBounds {
    /// That the pages are inaccessible.
    #[default]
    Guards,
    /// Comparing every access with the size.
    Explicit,
    /// Functions have a body of either kind, and choose between them when they are called:
    /// accesses are compared while more is accessible than the memories have. Code is
    /// twice as long, and takes twice as long to compile.
    Both,
}

/// What is asked of a slot's strategies. Sizes are in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StrategyConfig {
    /// How it is reset.
    pub reset: ResetKind,
    /// How its memories grow.
    pub growth: GrowthKind,
    /// What code relies on that runs in it.
    pub code: CodeBounds,
    /// Whether images may be mapped copy-on-write. The feature `no-cow` of this
    /// crate and the environment variable `PAGEFORK_COW=0` switch it off too.
    pub copy_on_write: bool,
    /// At most so much of a slot is restored in place and stays in memory, whatever the
    /// [`Budget`](crate::Budget) has; what is beyond is discarded.
    pub resident_max: u64,
    /// At most so much of the stack stays in memory, at most [`STACK_KEPT_MAX`]; what it
    /// shares with the link zone is cleared instead if that is less than a page.
    pub stack_kept: u64,
    /// Whether the stack is cleared at each reset and not only for a new owner.
    pub clear_stack: bool,
}

impl Default for StrategyConfig {
    fn default() -> Self {
        Self {
            reset: ResetKind::default(),
            growth: GrowthKind::default(),
            code: CodeBounds::default(),
            copy_on_write: true,
            resident_max: u64::MAX,
            stack_kept: 32 << 10,
            clear_stack: false,
        }
    }
}

impl StrategyConfig {
    /// Checks that all of it goes together.
    ///
    /// # Errors
    /// [`PagesError::IllegalStrategies`].
    pub fn check(self) -> Result<Strategies, PagesError> {
        if self.growth != GrowthKind::Mprotect && self.code == CodeBounds::Guards {
            return Err(PagesError::IllegalStrategies(IllegalStrategies::CheckedWithoutBounds));
        }
        if self.stack_kept > STACK_KEPT_MAX {
            let (bytes, max) = (self.stack_kept, STACK_KEPT_MAX);
            return Err(PagesError::IllegalStrategies(IllegalStrategies::StackKept { bytes, max }));
        }
        Ok(Strategies::of(self))
    }
}

/// What a reset did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ResetReport {
    /// How it was done.
    pub by: ResetKind,
    /// Whether the kernel was asked which pages are private.
    pub scanned: bool,
    /// Private pages there were outside the stack, where that is known.
    pub private: Option<u64>,
    /// Pages that no earlier run had made private.
    pub new: u64,
    /// Pages whose contents were put back in place.
    pub restored: u64,
    /// Private pages that were discarded, where that is known.
    pub discarded: u64,
}

impl ResetReport {
    /// Of a strategy that looks at no page.
    fn blind(by: ResetKind) -> Self {
        Self { by, scanned: false, private: None, new: 0, restored: 0, discarded: 0 }
    }
}

/// A way to make a slot equal to its image again.
pub(crate) trait Strategy: fmt::Debug + Send + Sync {
    /// Makes every page but kept ones of the stack as the image, and memories as
    /// long as at first. After an error the slot is as before, or not whole.
    fn reset(
        &mut self,
        pages: &mut SlotPages,
        run: &Run,
        stack: &mut Stack,
    ) -> Result<ResetReport, PagesError>;

    /// Says that the slot has just been made on the current thread, and nothing written to it
    /// since.
    fn begin(&mut self, _: &SlotPages) {}

    /// Has [`Stack`] know every page of the stack that is private, after a reset that left
    /// it unseen: which strategies do that ask the kernel no other way.
    ///
    /// # Errors
    /// If the kernel does not say; nothing has changed then.
    fn look_at_stack(&mut self, _: &mut SlotPages, _: &mut Stack) -> Result<(), PagesError> {
        Ok(())
    }

    /// Says that all pages are fresh: whatever was known of them is wrong.
    fn forget(&mut self) {}

    /// What it chose, if it chooses.
    fn choice(&self) -> Option<Choice> {
        None
    }
}

/// Fills a slot anew, from another image or its own.
pub(crate) fn refill(
    pages: &mut SlotPages,
    strategy: &mut dyn Strategy,
    stack: &mut Stack,
    from: Option<(&Arc<Image>, &[MemorySize])>,
) -> Result<ResetReport, PagesError> {
    let filled = match from {
        Some((image, sizes)) => pages.refill(image, sizes),
        None => pages.refill_same(),
    };
    // Also after an error, if pages may have gone. After another one those of a slot that is
    // half reset are where they were.
    if pages.is_unfilled() || filled.is_ok() {
        strategy.forget();
        stack.forget();
    }
    filled.map(|()| ResetReport::blind(ResetKind::Remap))
}
