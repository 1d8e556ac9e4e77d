use std::time::{Duration, Instant};

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

/// One reset in so many is timed: asking for the time twice costs as much as
/// restoring a page.
const TIMED: u32 = 8;

/// Of fewer times nothing is concluded.
const TIMES_MIN: u32 = 8;

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
    /// Of resets by scanning.
    scan_time: Times,
    /// Of resets by counting, since they are made that way.
    count_time: Times,
}

/// What the resets of a window came to.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    resets: u32,
    scans: u32,
    new: u64,
    discarded: u64,
}

/// How long resets took, those long ago with less weight.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    /// Nanoseconds.
    sum: u64,
    count: u32,
}

impl Times {
    fn add(&mut self, time: Duration) {
        const COUNT_MAX: u32 = 32;
        if self.count == COUNT_MAX {
            self.sum /= 2;
            self.count /= 2;
        }
        let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.sum = self.sum.saturating_add(time);
        self.count += 1;
    }

    /// Nanoseconds, if there are enough.
    fn mean(&self) -> Option<u64> {
        (self.count >= TIMES_MIN).then(|| self.sum / u64::from(self.count))
    }
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
            scan_time: Times::default(),
            count_time: Times::default(),
        }
    }

    fn move_to(&mut self, mode: ResetKind, reason: Reason) {
        self.mode = mode;
        self.reason = reason;
    }

    /// Looks back at a full window.
    fn judge(&mut self) {
        let Window { resets, scans, new, discarded } = std::mem::take(&mut self.window);
        let mean = |sum: u64| sum / u64::from(resets);
        let (new, discarded) = (mean(new), mean(discarded));
        match self.mode {
            ResetKind::Scan => {
                self.wait = self.wait.saturating_sub(1);
                if new >= MANY_PAGES && discarded * 4 >= new * 3 {
                    self.wait = self.be_patient();
                    let reason = Reason::OtherPagesEachTime { new, discarded };
                    self.move_to(ResetKind::Discard, reason);
                } else if self.counts && new == 0 && self.wait == 0 {
                    self.count_time = Times::default();
                    self.move_to(ResetKind::Resident, Reason::NothingNew { resets });
                }
            }
            ResetKind::Resident => {
                let times = self.count_time.mean().zip(self.scan_time.mean());
                if scans * 2 >= resets {
                    self.wait = self.be_patient();
                    self.move_to(ResetKind::Scan, Reason::ManyScans { scans, resets });
                } else if let Some((counting, scanning)) = times
                    && scans > 0
                    && counting > scanning
                {
                    self.wait = self.be_patient();
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
    fn begin(&mut self, pages: &SlotPages) {
        self.restorer.begin(pages);
    }

    fn reset(
        &mut self,
        pages: &mut SlotPages,
        run: &Run,
        stack: &mut Stack,
    ) -> Result<ResetReport, PagesError> {
        let timed = self.window.resets.is_multiple_of(TIMED).then(Instant::now);
        let report = match self.mode {
            // The first time, little is to be found in a slot that ran once.
            ResetKind::Scan if self.restorer.counts() => {
                let report = self.restorer.reset_counting(pages, run, stack)?;
                self.restorer.stop_counting();
                report
            }
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
        if let Some(start) = timed {
            match self.mode {
                ResetKind::Scan => self.scan_time.add(start.elapsed()),
                ResetKind::Resident => self.count_time.add(start.elapsed()),
                _ => {}
            }
        }
        if window.resets == WINDOW {
            self.judge();
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
