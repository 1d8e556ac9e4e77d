//! `Auto` chooses how written pages are found.

use crate::os::faults::counts_faults_in_memory;
use crate::pages::slot_pages::SlotPages;
use crate::strategy::config::{Choice, Reason, ResetKind};
use crate::strategy::dirty_set::DirtySet;
use crate::strategy::report::ResetReport;
use crate::strategy::tuning::{FEW_PAGES, MANY_PAGES, RETRY, RETRY_MAX, SMALL_RUN_MAX, WINDOW};

/// Starts with `Scan`, and chooses after each window of resets how written pages are found, or
/// that they are not looked for. Which pages are kept is the matter of [`DirtySet`].
///
/// ```text
///   Resident <------ faults show what is new ------ Scan --- many pages, none kept ---> Discard
///      '------------- most resets scan ---------------^ '------- after some time ----------'
/// ```
#[derive(Debug)]
pub(crate) struct Auto {
    huge_pages: HugePagePolicy,
    mode: ResetKind,
    reason: Reason,
    window: Window,
    /// Windows to wait before a mode is tried that did not pay.
    wait: u32,
    /// How long to wait the next time.
    retry: u32,
}

/// Whether huge pages are kept out of the slot, so that page faults can show what is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum HugePagePolicy {
    /// The slot is made without them.
    Refused,
    /// They are refused once its runs are seen to be small.
    RefusedIfRunsAreSmall,
    /// They cannot be refused.
    Allowed,
}

/// Sums over the resets of a window.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    resets: u32,
    scans: u32,
    new: u64,
    discarded: u64,
    /// Pages that the largest run has written.
    written_max: u64,
}

impl Auto {
    pub(super) fn new(huge_pages: HugePagePolicy) -> Self {
        Self {
            huge_pages,
            mode: ResetKind::Scan,
            reason: Reason::Start,
            window: Window::default(),
            wait: 0,
            retry: RETRY,
        }
    }

    pub(super) fn mode(&self) -> ResetKind {
        self.mode
    }

    pub(super) fn choice(&self) -> Choice {
        Choice { asked: ResetKind::Auto, used: self.mode, reason: self.reason }
    }

    /// Whether huge pages are to be refused from now on: after a window in which all runs were
    /// small. A discard does not see how large they were.
    pub(super) fn refuses_huge_pages(&self, pages: &SlotPages) -> bool {
        let may = self.huge_pages == HugePagePolicy::RefusedIfRunsAreSmall;
        let seen = self.mode != ResetKind::Discard && self.window.resets + 1 == WINDOW;
        may && !pages.has_small_pages() && seen && self.window.written_max <= SMALL_RUN_MAX
    }

    /// Notes a reset, and chooses anew at the end of a window.
    pub(super) fn note(&mut self, report: &ResetReport, pages: &SlotPages, dirty: &mut DirtySet) {
        let window = &mut self.window;
        window.resets += 1;
        window.scans += u32::from(report.scanned);
        window.new += report.new;
        window.discarded += report.discarded;
        window.written_max = window.written_max.max(report.restored + report.discarded);
        if window.resets == WINDOW {
            self.choose(pages, dirty);
        }
    }

    fn choose(&mut self, pages: &SlotPages, dirty: &mut DirtySet) {
        use ResetKind::{Discard, Resident, Scan};
        let Window { resets, scans, new, discarded, .. } = std::mem::take(&mut self.window);
        let mean = |sum: u64| sum / u64::from(resets);
        let (new, discarded) = (mean(new), mean(discarded));
        let may_count = self.huge_pages != HugePagePolicy::Allowed && pages.has_small_pages();
        if self.mode != Resident {
            self.wait = self.wait.saturating_sub(1);
        }
        let (mode, reason) = match self.mode {
            // A discard takes the copies that a slot of a branch has, and they are made again.
            Scan if new >= MANY_PAGES && dirty.keeps_nothing() && !pages.has_copies() => {
                (Discard, Reason::OtherPagesEachTime { new, discarded })
            }
            Scan if !may_count || self.wait > 0 => return,
            Scan if new == 0 => (Resident, Reason::NothingNew { resets }),
            Scan if new <= FEW_PAGES && counts_faults_in_memory() => {
                (Resident, Reason::FewNew { new })
            }
            Resident if scans * 2 >= resets => (Scan, Reason::ManyScans { scans, resets }),
            Resident if scans == 0 => {
                self.retry = RETRY;
                return;
            }
            Discard if self.wait == 0 => {
                dirty.fade();
                (Scan, Reason::Retry)
            }
            _ => return,
        };
        // `Discard`, and `Resident` after it had to scan, wait longer each time.
        if mode == Discard || self.mode == Resident {
            self.wait = self.retry;
            self.retry = (self.retry * 2).min(RETRY_MAX);
        }
        (self.mode, self.reason) = (mode, reason);
    }
}
