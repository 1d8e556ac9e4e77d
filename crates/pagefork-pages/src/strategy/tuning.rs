//! The numbers that strategies go by. All counts of pages and resets are in one place, so that
//! they can be compared; what a page costs is measured, within the bounds given here.

use pagefork_layout::page::PAGE_SIZE;

use crate::pages::restore::BLOCKS;

// How private pages are found: `auto`.

/// `Auto` looks back after this many resets, and the times that pages took to return are
/// evaluated as often.
pub(super) const WINDOW: u32 = 16;
/// A run is large, and costs of pages are worth measuring, from this many pages on.
pub(super) const MANY_PAGES: u64 = 64;
/// Page faults show what is new in runs that write at most this many new pages. A page takes
/// two faults if it is read first.
pub(super) const FEW_PAGES: u64 = 100;
/// Pages are protected if at most this many of them return in a run: many more than the mean must
/// not, or a search has to show them.
pub(super) const RETURNED_MAX: u64 = FEW_PAGES;
/// Slots with more bytes of memory than this may have huge pages until their runs are seen to
/// be small.
pub(super) const SMALL_SLOT_MAX: u64 = 16 << 20;
/// Runs that write at most this many pages are small: they gain less from huge pages than a
/// search for small pages costs.
pub(super) const SMALL_RUN_MAX: u64 = 512;
/// Windows until a mode that did not pay is tried again: twice as many each time, up to the
/// maximum.
pub(super) const RETRY: u32 = 4;
pub(super) const RETRY_MAX: u32 = 1024;

/// To discard all ends when it has cost more than a search in this many windows in a row.
pub(super) const DEAR_WINDOWS: u32 = 2;

// How long a page is kept: `returns` and `dirty_set`.

/// The choices: a page is evicted after this many resets that found it unchanged. Pages that
/// return later than the last of them count as pages that never return.
pub(super) const KEEP: [u8; 7] = [1, 2, 4, 8, 16, 32, 64];
pub(super) const KEEP_MAX: u8 = KEEP[KEEP.len() - 1];
/// A choice from here on keeps many pages.
pub(super) const KEEP_LONG: u8 = 8;
/// The choice until there is evidence.
pub(super) const KEEP_AT_FIRST: u8 = 3;
/// Pages must have been written this often before anything is concluded.
pub(super) const EVIDENCE: u32 = 64;
/// Counts are halved after this many resets, if there is twice the evidence.
pub(super) const FADE: u64 = 64;
/// A page that took a fault and was unchanged this often was perhaps only read.
pub(super) const DOUBT: u8 = 3;
/// Resets for which a page is kept that is perhaps not private, or that runs need unchanged.
pub(super) const KEEP_UNCHANGED: u8 = 128;
/// An unwritten page that returns within this many resets of its eviction is needed all the
/// time: code reads it, or writes there what is there already.
pub(super) const AT_ONCE: u64 = 2;

// How pages are restored and evicted: `dirty_set`.

/// Of a page in which this many blocks differed, all is copied the next times, without
/// comparing, this often.
pub(super) const DENSE: u32 = BLOCKS / 2;
pub(super) const COPIES: u8 = 3;
/// Calls to discard pages in one reset, at most, where they need not cover gaps that hold kept
/// pages.
pub(super) const DISCARDS_MAX: usize = 8;

/// Pages to be write-protected that lie at most this many bytes apart are protected by one walk over
/// the page map: it looks at some thirty pages in the time that a call takes.
pub(super) const PROTECT_GAP: u64 = 32 * PAGE_SIZE;
/// The same if all pages in between are protected: then the walk looks at nothing else, and at five
/// hundred pages in the time of a call.
pub(super) const PROTECTED_GAP: u64 = 256 * PAGE_SIZE;

/// Pages that a search for lifted protection does not know and that lie at most this many bytes apart
/// are looked at by one walk: it looks at some twenty in the time that a call takes.
pub(super) const UNKNOWN_GAP: u64 = 16 * PAGE_SIZE;

/// So many ranges of them are walked one by one, by two calls each; of more the gaps are walked, too.
pub(super) const UNKNOWN_RANGES_MAX: usize = 32;

// What a page costs, in nanoseconds.

/// A look at a page, as long as it is not measured, and the bounds of what is believed. This is
/// less than most machines need: what is thought too cheap is tried, and then measured, while what
/// is thought too costly would never be. Looks are timed at one reset in `LOOK_TIMED`.
pub(super) const LOOK: u32 = 60;
pub(super) const LOOK_MIN: u64 = 20;
pub(super) const LOOK_MAX: u64 = 2000;
pub(super) const LOOK_TIMED: u64 = 8;
/// In each window what was measured loses this part of its weight, so that what may have changed
/// is tried again in the end.
pub(super) const LOOK_FADES: u32 = 64;

/// A search for lifted protection, as long as it is not measured, and the bounds of what is believed.
pub(super) const SEARCH: u32 = 1000;
pub(super) const SEARCH_MIN: u64 = 500;
pub(super) const SEARCH_MAX: u64 = 10_000_000;
