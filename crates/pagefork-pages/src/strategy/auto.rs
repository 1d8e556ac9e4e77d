use super::config::{Choice, Reason, ResetKind};
use super::discard::Discard;
use super::reset::{ResetReport, Strategy};
use super::resident::Resident;
use super::stack::Stack;
use super::writers::Run;
use crate::os::error::PagesError;
use crate::os::faults::counts_faults_in_memory;
use crate::pages::slot_pages::SlotPages;

/// Slots with more memory than this, in bytes, may have huge pages until it is seen that
/// their runs are small.
pub(super) const SMALL_SLOT_MAX: u64 = 16 << 20;

/// Runs that write no more pages than this are small: what they would gain from huge pages is
/// less than what searching for small ones costs.
const SMALL_RUN_MAX: u64 = 512;

/// So many resets are looked at before anything is changed.
const WINDOW: u32 = 16;

/// So many windows pass before something that did not pay is tried again; twice as
/// many each time, up to the maximum.
const PATIENCE: u32 = 4;
const PATIENCE_MAX: u32 = 1024;

/// Runs that write fewer new pages than this are no reason to give keeping up: a search
/// for them costs little beside their faults.
const MANY_PAGES: u64 = 64;

/// At most so many new pages in a run are left to page faults to show: a page takes two if it
/// is read first.
const FEW_PAGES: u64 = 100;

/// Starts with `Scan`, and looks at the pages that are found. It chooses how they are found, or
/// that they are not looked for; which of them are kept is the restorer's matter.
///
/// ```text
///   Resident <------ faults show what is new ------ Scan --- many pages, none kept ---> Discard
///      '------------- most resets scan ---------------^ '------- after some time ----------'
/// ```
#[derive(Debug)]
pub(crate) struct Auto {
    restorer: Resident,
    counting: Counting,
    mode: ResetKind,
    reason: Reason,
    window: Window,
    /// Windows to wait before `Resident` is tried.
    wait: u32,
    patience: u32,
}

/// Whether page faults can show what is written: in slots without huge pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Counting {
    /// The slot is made without them.
    Always,
    /// It refuses them once its runs are seen to be small.
    IfRunsAreSmall,
    /// They cannot be refused.
    Never,
}

/// What the resets of a window came to.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    resets: u32,
    scans: u32,
    new: u64,
    discarded: u64,
    /// Of the run that wrote most.
    written: u64,
}

impl Auto {
    pub(super) fn new(restorer: Resident, counting: Counting) -> Self {
        Self {
            restorer,
            counting,
            mode: ResetKind::Scan,
            reason: Reason::Start,
            window: Window::default(),
            wait: 0,
            patience: PATIENCE,
        }
    }

    fn move_to(&mut self, mode: ResetKind, reason: Reason) {
        self.mode = mode;
        self.reason = reason;
    }

    /// Looks back at a full window.
    fn judge(&mut self, pages: &SlotPages) {
        let Window { resets, scans, new, discarded, .. } = std::mem::take(&mut self.window);
        let mean = |sum: u64| sum / u64::from(resets);
        let (new, discarded) = (mean(new), mean(discarded));
        let counts = self.counting != Counting::Never && pages.has_small_pages();
        match self.mode {
            ResetKind::Scan => {
                self.wait = self.wait.saturating_sub(1);
                if new >= MANY_PAGES && self.restorer.restorer().keeps_nothing() {
                    self.wait = self.be_patient();
                    let reason = Reason::OtherPagesEachTime { new, discarded };
                    self.move_to(ResetKind::Discard, reason);
                } else if counts && new == 0 && self.wait == 0 {
                    self.move_to(ResetKind::Resident, Reason::NothingNew { resets });
                } else if counts && new <= FEW_PAGES && self.wait == 0 && counts_faults_in_memory()
                {
                    self.move_to(ResetKind::Resident, Reason::FewNew { new });
                }
            }
            ResetKind::Resident => {
                if scans * 2 >= resets {
                    self.wait = self.be_patient();
                    self.move_to(ResetKind::Scan, Reason::ManyScans { scans, resets });
                } else if scans == 0 {
                    self.patience = PATIENCE;
                }
            }
            _ => {
                self.wait = self.wait.saturating_sub(1);
                if self.wait == 0 {
                    self.restorer.restorer().fade();
                    self.move_to(ResetKind::Scan, Reason::Retry);
                }
            }
        }
    }

    /// How long to wait for another try.
    fn be_patient(&mut self) -> u32 {
        let patience = self.patience;
        self.patience = (patience * 2).min(PATIENCE_MAX);
        patience
    }

    /// Whether huge pages are to be refused from now on: after a window in which all runs
    /// were small. A discard does not see how large they were.
    fn refuses(&self, pages: &SlotPages) -> bool {
        let may = self.counting == Counting::IfRunsAreSmall && !pages.has_small_pages();
        let seen = self.mode != ResetKind::Discard && self.window.resets + 1 == WINDOW;
        may && seen && self.window.written <= SMALL_RUN_MAX
    }
}

impl Strategy for Auto {
    fn begin(&mut self, pages: &SlotPages) {
        self.restorer.begin(pages);
    }

    fn reset(
        &mut self,
        pages: &mut SlotPages,
        run: &Run,
        stack: &mut Stack,
    ) -> Result<ResetReport, PagesError> {
        // Pages out of sight may have become private with a huge page around them. None is
        // private when all are discarded after huge pages were refused.
        let has_refused = self.refuses(pages) && pages.refuse_huge_pages();
        let report = if has_refused || self.mode == ResetKind::Discard {
            // A reset that fails changes no mode, and forgets no page: what a discard leaves
            // half-done, a discard completes.
            let report = Discard.reset(pages, run, stack)?;
            self.restorer.forget();
            if has_refused {
                pages.note_small_pages();
            }
            report
        } else if self.mode == ResetKind::Resident {
            self.restorer.reset_counting(pages, run, stack)?
        } else if self.restorer.counts() {
            // The first time, little is to be found in a slot that ran once.
            let report = self.restorer.reset_counting(pages, run, stack)?;
            self.restorer.stop_counting();
            report
        } else {
            self.restorer.scan(pages, stack)?
        };
        let window = &mut self.window;
        window.resets += 1;
        window.scans += u32::from(report.scanned);
        window.new += report.new;
        window.discarded += report.discarded;
        window.written = window.written.max(report.restored + report.discarded);
        if window.resets == WINDOW {
            self.judge(pages);
        }
        Ok(report)
    }

    fn look_at_stack(
        &mut self,
        pages: &mut SlotPages,
        stack: &mut Stack,
    ) -> Result<(), PagesError> {
        self.restorer.look_at_stack(pages, stack)
    }

    fn forget(&mut self) {
        self.restorer.forget();
    }

    fn choice(&self) -> Option<Choice> {
        Some(Choice { asked: ResetKind::Auto, used: self.mode, reason: self.reason })
    }
}
