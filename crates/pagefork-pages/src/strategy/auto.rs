use std::time::Instant;

use super::resident::Resident;
use super::{Choice, Discard, Reason, ResetKind, ResetReport, Run, Stack, Strategy};
use crate::error::PagesError;
use crate::slot_pages::SlotPages;

/// Slots with more memory than this, in bytes, keep their huge pages, so nothing
/// can be concluded there from counting faults.
pub(super) const RESIDENT_SLOT_MAX: u64 = 16 << 20;

/// So many resets are looked at before anything is changed.
const WINDOW: u32 = 16;

/// So many windows pass before something that did not pay is tried again; twice as
/// many each time, up to the maximum.
const PATIENCE: u32 = 4;
const PATIENCE_MAX: u32 = 1024;

/// Runs that write fewer new pages than this are no reason to give keeping up.
const MANY_PAGES: u64 = 64;

/// Starts with `Scan`, and looks at the pages that are found and the time it takes.
///
/// ```text
///   Resident <---- no scan would have been needed ---- Scan --- other pages each time ---> Discard
///      '-------- scans needed, or slower ----------------^ '------- after some time ----------'
/// ```
#[derive(Debug)]
pub(crate) struct Auto {
    restorer: Resident,
    /// Whether `Resident` is possible.
    counts: bool,
    mode: ResetKind,
    reason: Reason,
    window: Window,
    /// Windows to wait before `Resident` is tried.
    wait: u32,
    patience: u32,
    /// Mean of the last window by scanning, in nanoseconds.
    scan_time: u64,
}

/// What the resets of a window came to.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    resets: u32,
    scans: u32,
    new: u64,
    discarded: u64,
    /// Nanoseconds.
    time: u64,
}

impl Auto {
    pub(crate) fn new(restorer: Resident, counts: bool) -> Self {
        Self {
            restorer,
            counts,
            mode: ResetKind::Scan,
            reason: Reason::Start,
            window: Window::default(),
            wait: 0,
            patience: PATIENCE,
            scan_time: 0,
        }
    }

    fn move_to(&mut self, mode: ResetKind, reason: Reason) {
        self.mode = mode;
        self.reason = reason;
    }

    /// Looks back at a full window.
    fn judge(&mut self) {
        let Window { resets, scans, new, discarded, time } = std::mem::take(&mut self.window);
        let mean = |sum: u64| sum / u64::from(resets);
        let (new, discarded, time) = (mean(new), mean(discarded), mean(time));
        match self.mode {
            ResetKind::Scan => {
                self.scan_time = time;
                self.wait = self.wait.saturating_sub(1);
                if new >= MANY_PAGES && discarded * 4 >= new * 3 {
                    self.wait = self.be_patient();
                    let reason = Reason::OtherPagesEachTime { new, discarded };
                    self.move_to(ResetKind::Discard, reason);
                } else if self.counts && new == 0 && self.wait == 0 {
                    self.move_to(ResetKind::Resident, Reason::NothingNew { resets });
                }
            }
            ResetKind::Resident => {
                let slower = time > self.scan_time;
                if scans * 2 >= resets {
                    self.wait = self.be_patient();
                    self.move_to(ResetKind::Scan, Reason::ManyScans { scans, resets });
                } else if scans > 0 && slower {
                    self.wait = self.be_patient();
                    let (counting, scanning) = (time, self.scan_time);
                    self.move_to(ResetKind::Scan, Reason::Slower { counting, scanning });
                } else if scans == 0 {
                    self.patience = PATIENCE;
                }
            }
            _ => {
                self.wait = self.wait.saturating_sub(1);
                if self.wait == 0 {
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
}

impl Strategy for Auto {
    fn reset(
        &mut self,
        pages: &mut SlotPages,
        run: &Run,
        stack: &mut Stack,
    ) -> Result<ResetReport, PagesError> {
        let start = Instant::now();
        let report = match self.mode {
            ResetKind::Scan => self.restorer.scan(pages, stack)?,
            ResetKind::Resident => self.restorer.reset_counting(pages, run, stack)?,
            // A reset that fails changes no mode: what a discard leaves half-done, a
            // discard completes.
            _ => {
                self.restorer.forget();
                Discard.reset(pages, run, stack)?
            }
        };
        let window = &mut self.window;
        window.resets += 1;
        window.scans += u32::from(report.scanned);
        window.new += report.new;
        window.discarded += report.discarded;
        window.time += u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        if window.resets == WINDOW {
            self.judge();
        }
        Ok(report)
    }

    fn forget(&mut self) {
        self.restorer.forget();
    }

    fn choice(&self) -> Option<Choice> {
        Some(Choice { asked: ResetKind::Auto, used: self.mode, reason: self.reason })
    }
}
