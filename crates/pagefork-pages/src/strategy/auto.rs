//! `Auto` chooses how written pages are found.

use std::time::Instant;

use crate::os::faults::counts_faults_in_memory;
use crate::pages::slot_pages::SlotPages;
use crate::strategy::blind::{BlindCosts, Compared};
use crate::strategy::config::{Choice, Reason, ResetKind};
use crate::strategy::dirty_set::DirtySet;
use crate::strategy::report::ResetReport;
use crate::strategy::tuning::{
    DEAR_WINDOWS, FEW_PAGES, MANY_PAGES, RETRY, RETRY_MAX, RETURNED_MAX, SMALL_RUN_MAX, WINDOW,
};

/// Starts with `Scan`, and chooses after each window of resets how written pages are found, or
/// that they are not looked for. Which pages are kept is the matter of [`DirtySet`].
///
/// As long as it is `Resident`, pages that runs write seldom are kept under write protection where
/// that costs least: [`DirtySet::costs`].
///
/// ```text
///   Resident <------ faults show what is new ------ Scan --- many pages, none kept ---> Discard
///      '------------- most resets scan ---------------^ '------- after some time ----------'
/// ```
///
/// Where a search reads the page map, `Discard` is tried for a window if runs write something
/// new that page faults do not show, less and less often, and stays as long as it costs less: [`BlindCosts`].
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
    /// The same for pages to be kept under protection.
    protect_wait: u32,
    protect_retry: u32,
    blind: BlindCosts,
    /// Whether this window tries to discard all.
    is_trial: bool,
    /// Windows to wait before that is tried again, and how long to wait the next time.
    trial_wait: u32,
    trial_retry: u32,
    /// Windows in a row in which to discard all has cost more than a search.
    dear: u32,
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
    /// Protected pages that took a fault.
    returned: u64,
    /// Resets that searched for nothing but lifted protection, and the pages that these have found.
    lifted: u32,
    lifted_pages: u64,
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
            protect_wait: 0,
            protect_retry: RETRY,
            blind: BlindCosts::default(),
            is_trial: false,
            trial_wait: 0,
            trial_retry: RETRY,
            dear: 0,
        }
    }

    pub(super) fn mode(&self) -> ResetKind {
        self.mode
    }

    pub(super) fn choice(&self, dirty: &DirtySet) -> Choice {
        let (mut used, mut reason) = (self.mode, self.reason);
        if dirty.protected_count() > 0 {
            used = ResetKind::Protect;
            reason = dirty.why_protected();
        }
        Choice { asked: ResetKind::Auto, used, reason }
    }

    /// Whether huge pages are to be refused from now on: after a window in which all runs were
    /// small. A discard does not see how large they were.
    pub(super) fn refuses_huge_pages(&self, pages: &SlotPages) -> bool {
        let may = self.huge_pages == HugePagePolicy::RefusedIfRunsAreSmall;
        let seen = self.mode != ResetKind::Discard && self.window.resets + 1 == WINDOW;
        may && !pages.has_small_pages() && seen && self.window.written_max <= SMALL_RUN_MAX
    }

    /// Whether resets are timed, so that ways that look for what was written and those that do not can
    /// be compared.
    pub(super) fn compares(&self, dirty: &DirtySet) -> bool {
        self.mode != ResetKind::Resident && dirty.reads_page_map()
    }

    /// Notes a reset, which began then if it is timed, and chooses anew at the end of a window.
    #[inline]
    pub(super) fn note(
        &mut self,
        report: &ResetReport,
        pages: &SlotPages,
        dirty: &mut DirtySet,
        begun: Option<Instant>,
    ) {
        if let Some(begun) = begun {
            self.blind.note(self.mode == ResetKind::Discard, begun);
        }
        let window = &mut self.window;
        window.resets += 1;
        // A search for few pages whose protection was lifted is what protection costs.
        let is_expected = report.lifted && report.new + report.returned <= RETURNED_MAX;
        window.scans += u32::from(report.scanned && !is_expected);
        if report.lifted {
            window.lifted += 1;
            window.lifted_pages += report.new + report.returned;
        }
        window.new += report.new;
        window.returned += report.returned;
        window.discarded += report.discarded;
        window.written_max = window.written_max.max(report.restored + report.discarded);
        if window.resets == WINDOW {
            let window = std::mem::take(&mut self.window);
            if dirty.reads_page_map() {
                self.blind.end_window(self.mode == ResetKind::Discard);
            }
            if !self.protects_too_much(window, dirty) {
                self.choose(window, pages, dirty);
            }
            // A search of all pages walks over protected ones, so they pay where faults show what was
            // written, or a search for nothing but lifted protection does.
            let are_found = self.mode == ResetKind::Resident && self.shows_few_new(dirty, pages);
            dirty.protect_from_now_on(are_found && self.protect_wait == 0);
        }
    }

    /// Whether few pages that runs wrote for the first time are found without a search of all pages.
    fn shows_few_new(&mut self, dirty: &DirtySet, pages: &SlotPages) -> bool {
        if counts_faults_in_memory() {
            return true;
        }
        if self.protect_wait > 0 {
            return false;
        }
        let can_find = dirty.could_find_lifted(pages);
        if !can_find {
            // What the system refuses is asked for less and less often.
            self.wait_to_protect();
        }
        can_find
    }

    /// Has pages that were protected be kept as others for some time, twice as long each time.
    fn wait_to_protect(&mut self) {
        self.protect_wait = self.protect_retry;
        self.protect_retry = (self.protect_retry * 2).min(RETRY_MAX);
    }

    /// Whether most resets had to search because protected pages returned, more than faults can
    /// show, or the search for them takes longer than it saves: then these are kept for some time as
    /// others.
    fn protects_too_much(&mut self, window: Window, dirty: &DirtySet) -> bool {
        let Window { resets, scans, new, returned, .. } = window;
        self.protect_wait = self.protect_wait.saturating_sub(1);
        let pays = counts_faults_in_memory()
            || window.lifted == 0
            || dirty.search_pays(window.lifted, window.lifted_pages);
        let too_much = scans * 2 >= resets && returned > new || !pays;
        if too_much {
            self.wait_to_protect();
        } else if scans == 0 && returned > 0 {
            self.protect_retry = RETRY;
        }
        too_much
    }

    /// Tries to discard all, or ends such a try, where the page map is read to find what was written,
    /// finds something new, and that is not worth keeping.
    fn choose_blind(
        &mut self,
        finds_new: bool,
        pages: &SlotPages,
        dirty: &mut DirtySet,
    ) -> Option<(ResetKind, Reason)> {
        if std::mem::take(&mut self.is_trial) {
            let compared = self.blind.compared();
            let reason = compared.map_or(Reason::Retry, |compared| Reason::Compared {
                search_ns: compared.search_ns,
                discard_ns: compared.discard_ns,
            });
            if compared.is_some_and(|compared| compared.discards()) {
                self.wait_longer();
                return Some((ResetKind::Discard, reason));
            }
            self.wait_to_try();
            return Some((ResetKind::Scan, reason));
        }
        if !dirty.reads_page_map() {
            return None;
        }
        let is_dear = self.mode == ResetKind::Discard && self.searches_cost_less();
        self.dear = if is_dear { self.dear + 1 } else { 0 };
        // One may be a large run among small ones.
        if self.dear == DEAR_WINDOWS {
            // What is known is of other runs.
            self.wait_to_try();
            (self.wait, self.retry) = (0, RETRY);
            dirty.forget_returns();
            return Some((ResetKind::Scan, Reason::Retry));
        }
        if self.mode != ResetKind::Scan {
            return None;
        }
        self.trial_wait = self.trial_wait.saturating_sub(1);
        // A discard takes the copies that a slot of a branch has, and they are made again.
        // What is worth keeping costs no faults once it is kept.
        let may = self.trial_wait == 0 && !pages.has_copies() && dirty.keeps_nothing();
        self.is_trial = may && finds_new && self.blind.knows_search();
        self.is_trial.then_some((ResetKind::Discard, Reason::Retry))
    }

    /// Whether to read the page map costs less than to discard all, as measured.
    fn searches_cost_less(&self) -> bool {
        self.blind.compared().is_some_and(Compared::searches)
    }

    /// Has the next try to discard all wait, longer each time.
    fn wait_to_try(&mut self) {
        self.trial_wait = self.trial_retry;
        self.trial_retry = (self.trial_retry * 2).min(RETRY_MAX);
    }

    /// Has the next try of a mode that did not pay wait, longer each time.
    fn wait_longer(&mut self) {
        self.wait = self.retry;
        self.retry = (self.retry * 2).min(RETRY_MAX);
    }

    fn choose(&mut self, window: Window, pages: &SlotPages, dirty: &mut DirtySet) {
        use ResetKind::{Discard, Resident, Scan};
        let Window { resets, scans, new, discarded, .. } = window;
        let mean = |sum: u64| sum / u64::from(resets);
        let (new, discarded) = (mean(new), mean(discarded));
        let may_count = self.huge_pages != HugePagePolicy::Allowed && pages.has_small_pages();
        let is_shown = may_count && new <= FEW_PAGES && counts_faults_in_memory();
        if let Some(chosen) = self.choose_blind(new > 0 && !is_shown, pages, dirty) {
            (self.mode, self.reason) = chosen;
            return;
        }
        if self.mode != Resident {
            self.wait = self.wait.saturating_sub(1);
        }
        let is_ready = self.mode == Scan && may_count && self.wait == 0;
        let shows_few =
            is_ready && (1..=FEW_PAGES).contains(&new) && self.shows_few_new(dirty, pages);
        let (mode, reason) = match self.mode {
            // A discard takes the copies that a slot of a branch has, and they are made again.
            Scan if new >= MANY_PAGES
                && dirty.keeps_nothing()
                && !pages.has_copies()
                && !(dirty.reads_page_map() && self.searches_cost_less()) =>
            {
                (Discard, Reason::OtherPagesEachTime { new, discarded })
            }
            Scan if !may_count || self.wait > 0 => return,
            Scan if new == 0 => (Resident, Reason::NothingNew { resets }),
            Scan if shows_few => (Resident, Reason::FewNew { new }),
            Resident if scans * 2 >= resets => (Scan, Reason::ManyScans { scans, resets }),
            Resident if scans == 0 => {
                self.retry = RETRY;
                return;
            }
            Discard if self.wait == 0 => {
                self.trial_retry = RETRY;
                dirty.fade();
                (Scan, Reason::Retry)
            }
            _ => return,
        };
        // `Discard`, and `Resident` after it had to scan, wait longer each time.
        if mode == Discard || self.mode == Resident {
            self.wait_longer();
        }
        (self.mode, self.reason) = (mode, reason);
    }
}
