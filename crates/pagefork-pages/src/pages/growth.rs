//! How memories grow, and how much of them stays accessible between runs.

use std::fmt;
use std::mem;
use std::time::{Duration, Instant};

use crate::os::features::HostFeatures;
use crate::os::limits::writable_counts;
use crate::os::page_faults::faults_at_touches;
use crate::pages::growth_file::grows_in_files;

/// How a memory becomes longer.
///
/// # Examples
///
/// ```
/// use pagefork_pages::{CodeBounds, GrowthKind, StrategyConfig};
///
/// // Memories stay accessible as far as runs have grown them, and code compares then.
/// let (growth, code) = (GrowthKind::Kept, CodeBounds::Dual);
/// let strategies = StrategyConfig { growth, code, ..StrategyConfig::default() }.check()?;
/// assert_eq!(strategies.config().growth, GrowthKind::Kept);
/// # Ok::<(), pagefork_pages::PagesError>(())
/// ```
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
    /// `Mprotect`. Only for code with [`CodeBounds::Checked`] or [`CodeBounds::Dual`].
    Checked {
        /// Bytes.
        accessible: Option<u64>,
    },
    /// As `Mprotect`, but a reset leaves accessible what the memory had grown to, so that
    /// growing as far again needs no system call. What no run has any more is made
    /// inaccessible within 16 runs. Only for code as for `Checked`, and best for
    /// [`CodeBounds::Dual`].
    Kept,
    /// As `Kept` where making pages inaccessible, and accessible as memories grow, takes more time
    /// than code that compares would lose, else as `Mprotect`; what that takes is measured now and
    /// then. It is much where several threads run guests, since it interrupts each of them, and
    /// where memories grow often. Only for code as for `Checked`, and best for
    /// [`CodeBounds::Dual`].
    Auto,
    /// What a memory grows by lies in a file in memory of its own, whose length is the bound
    /// (`ftruncate`); a reset empties it. Growth changes no map, and takes a descriptor for each
    /// memory that can grow, half of those at most that the process may have; beyond, and where that
    /// does not work, memories grow as by `Mprotect`: [`Slot::growth`](crate::Slot::growth) tells.
    /// What was grown is shared with processes that are forked, so such slots are refused there.
    Ftruncate,
    /// Pages are accessible from the start, and have no contents: the first touch of one is a signal
    /// (userfaultfd), whose handler gives it zeros if the memory has grown as far, and makes it a trap
    /// else. Growth makes no system call; a reset discards what was grown. Where no handler calls
    /// [`serve_fault`](crate::serve_fault), the kernel does not do it
    /// ([`faults_at_touches`](crate::faults_at_touches)), or memory that could be written counts against
    /// a limit though nobody touches it, memories grow as by `Mprotect`:
    /// [`Slot::growth`](crate::Slot::growth) tells. A process that is forked has no pages of these, so
    /// such slots are refused there.
    Fault,
}

impl GrowthKind {
    /// All of them; [`GrowthKind::Checked`] without a bound.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_pages::GrowthKind;
    ///
    /// // Those that a user can name.
    /// let named = |name: &str| GrowthKind::ALL.into_iter().find(|kind| kind.to_string() == name);
    /// assert_eq!(named("kept"), Some(GrowthKind::Kept));
    /// assert_eq!(named("none"), None);
    /// ```
    pub const ALL: [Self; 6] = [
        Self::Mprotect,
        Self::Ftruncate,
        Self::Fault,
        Self::Checked { accessible: None },
        Self::Kept,
        Self::Auto,
    ];

    /// Whether nothing beyond a memory's size can be accessed, at any time.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_pages::GrowthKind;
    ///
    /// assert!(GrowthKind::Mprotect.is_exact() && GrowthKind::Fault.is_exact());
    /// assert!(!GrowthKind::Kept.is_exact());
    /// ```
    pub fn is_exact(self) -> bool {
        matches!(self, Self::Mprotect | Self::Ftruncate | Self::Fault)
    }

    /// Why no memory of this process can grow so, if none can: then they grow as by `Mprotect`. What
    /// a single slot lacks, and whether somebody serves faults, [`Slot::growth`](crate::Slot::growth)
    /// says.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_pages::GrowthKind;
    ///
    /// assert_eq!(GrowthKind::Mprotect.lack(), None);
    /// if let Some(reason) = GrowthKind::Fault.lack() {
    ///     println!("memories do not grow by faults: {reason}");
    /// }
    /// ```
    pub fn lack(self) -> Option<GrowthReason> {
        match self {
            Self::Ftruncate => (!grows_in_files()).then_some(GrowthReason::NoFiles),
            Self::Fault => {
                let discards = HostFeatures::get().is_ok_and(|features| features.discard);
                if !discards || !faults_at_touches() {
                    return Some(GrowthReason::NoFaults);
                }
                // All that memories may become can be written.
                writable_counts().then_some(GrowthReason::WritableCounts)
            }
            Self::Mprotect | Self::Checked { .. } | Self::Kept | Self::Auto => None,
        }
    }
}

impl fmt::Display for GrowthKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mprotect => f.write_str("mprotect"),
            Self::Checked { accessible: None } => f.write_str("checked"),
            Self::Checked { accessible: Some(bytes) } => write!(f, "checked={bytes}"),
            Self::Kept => f.write_str("kept"),
            Self::Auto => f.write_str("auto"),
            Self::Ftruncate => f.write_str("ftruncate"),
            Self::Fault => f.write_str("fault"),
        }
    }
}

/// How a slot's memories grow, and why so.
///
/// # Examples
///
/// See [`Slot::growth`](crate::Slot::growth).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GrowthChoice {
    /// What was asked for.
    pub asked: GrowthKind,
    /// What is done; where memories differ, what is done for some of them instead.
    pub used: GrowthKind,
    /// Why.
    pub reason: GrowthReason,
}

impl fmt::Display for GrowthChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.asked == self.used {
            return write!(f, "{}: {}", self.used, self.reason);
        }
        write!(f, "{} (asked for: {}): {}", self.used, self.asked, self.reason)
    }
}

/// Why a slot's memories grow as they do.
///
/// # Examples
///
/// See [`Slot::growth`](crate::Slot::growth).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum GrowthReason {
    /// It was asked for.
    Asked,
    /// Files in memory are refused, or do not bound what is mapped.
    NoFiles,
    /// The process may not have files as long (RLIMIT_FSIZE).
    FileSize,
    /// Slots have half of all descriptors that the process may have (RLIMIT_NOFILE).
    Descriptors,
    /// Nobody serves touches of pages that have no contents, or the kernel does not tell of them, or
    /// discarding pages does nothing.
    NoFaults,
    /// Memory that could be written counts against a limit, though nobody touches it.
    WritableCounts,
}

impl fmt::Display for GrowthReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Asked => "asked for",
            Self::NoFiles => "memories cannot grow in files in memory here (memfd_create)",
            Self::FileSize => "files may not be as long as memories may grow (RLIMIT_FSIZE)",
            Self::Descriptors => {
                "half of the descriptors that this process may have are used (RLIMIT_NOFILE)"
            }
            Self::NoFaults => "touches of pages without contents are not served here (userfaultfd)",
            Self::WritableCounts => {
                "memory that could be written counts against a limit here (RLIMIT_DATA, \
                 vm.overcommit_memory)"
            }
        })
    }
}

/// What keeps code from using a memory beyond its size. [`GrowthKind`] has an example.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum CodeBounds {
    /// The pages beyond the size are inaccessible.
    #[default]
    Guarded,
    /// The code compares every access with the size.
    Checked,
    /// Functions have a body of either kind, and choose when they are called: the one that
    /// compares, while more is accessible than the memories have. Code is twice as long, and
    /// takes twice as long to compile.
    Dual,
}

/// Memory stays accessible up to the largest size of the last `RUNS` runs.
const RUNS: u32 = 8;

/// The share of a run's time that comparing accesses costs, inverted. Code that compares loses
/// 8 to 12 %, and it compares until the memory has grown as far as before.
const COMPARING: u32 = 24;

/// Number of runs, at least, until it is measured again what keeping spares; and they have taken
/// [`COMPARING`] times what measuring took, so that this does not outweigh what it is for.
const KEPT_RUNS: u32 = 256;

/// A call that makes pages accessible or inaccessible and takes longer is measured wrongly: the
/// thread was not running. One such call must not outweigh all runs; what it took beyond this
/// counts as a run's own time.
const CALL_MAX: Duration = Duration::from_micros(100);

/// So is a run that takes longer by this than what it would be kept for.
const RUNNING_MAX: Duration = Duration::from_millis(10);

/// How far a memory has been grown by the last runs, in bytes, and whether that much is to
/// stay accessible.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HighWater {
    kept: u64,
    /// How many runs in a row have had less, and the most that one of them had.
    short: u32,
    most: u64,
    phase: GrowthPhase,
    /// When the last run ended that had grown the memory.
    ended: Option<Instant>,
    /// How long growing has taken since then, where that is measured.
    growing: Duration,
    /// The time that runs may take for which it is kept.
    running_max: Duration,
}

#[derive(Clone, Copy, Debug)]
enum GrowthPhase {
    Always,
    /// The memory is shrunk and grown again, and what keeping it would spare of that is compared
    /// with the time of the runs, but for growing.
    Measuring {
        runs: u32,
        spared: Duration,
        running: Duration,
    },
    /// It is kept; `long` runs in a row took too long.
    Keeping {
        runs: u32,
        long: u32,
        running: Duration,
    },
}

impl GrowthPhase {
    const FIRST: Self =
        Self::Measuring { runs: 0, spared: Duration::ZERO, running: Duration::ZERO };
}

impl HighWater {
    pub(crate) fn new(growth: GrowthKind) -> Self {
        let phase =
            if growth == GrowthKind::Auto { GrowthPhase::FIRST } else { GrowthPhase::Always };
        let (growing, running_max) = (Duration::ZERO, Duration::ZERO);
        Self { kept: 0, short: 0, most: 0, phase, ended: None, growing, running_max }
    }

    /// Whether [`Self::note_growing`] and [`Self::note_shrinking`] are of use.
    #[inline]
    pub(crate) fn is_measuring(&self) -> bool {
        matches!(self.phase, GrowthPhase::Measuring { .. })
    }

    /// What stays accessible.
    pub(crate) fn kept(self) -> u64 {
        self.kept
    }

    /// Says how long a memory was when a run ended, and when that was, if it had grown.
    #[inline]
    pub(crate) fn note(&mut self, size: u64, ended: Option<Instant>) {
        if let Some(ended) = ended {
            // Without a run before it is not known how long this one took, so neither counts.
            let growing = mem::take(&mut self.growing);
            if let Some(before) = self.ended.replace(ended) {
                self.note_running((ended - before).saturating_sub(growing), growing);
            }
        }
        if self.is_measuring() {
            (self.kept, self.short, self.most) = (0, 0, 0);
            return;
        }
        self.short += 1;
        self.most = self.most.max(size);
        if size >= self.kept || self.short == RUNS {
            (self.kept, self.short, self.most) = (self.most, 0, 0);
        }
    }

    /// Says how long a run took, and how long it was growing the memory besides.
    fn note_running(&mut self, time: Duration, growing: Duration) {
        match &mut self.phase {
            GrowthPhase::Always => (),
            GrowthPhase::Measuring { runs, spared, running } => {
                // It may have waited in between: then there is no hurry. But however long growing
                // takes, a run that takes too long for that is not kept for it.
                *running += time.min(RUNNING_MAX + growing * COMPARING);
                *spared += growing;
                if *runs < RUNS {
                    return;
                }
                self.running_max = *spared * COMPARING / RUNS;
                let keeps = *running < *spared * COMPARING;
                self.phase = if keeps {
                    GrowthPhase::Keeping { runs: 0, long: 0, running: Duration::ZERO }
                } else {
                    GrowthPhase::FIRST
                };
            }
            GrowthPhase::Keeping { runs, long, running } => {
                *runs = runs.saturating_add(1);
                *running += time.min(self.running_max);
                *long = if time > self.running_max { *long + 1 } else { 0 };
                // As many runs have been measured.
                let paid = *running >= self.running_max * RUNS;
                if (*runs >= KEPT_RUNS && paid) || *long == RUNS {
                    self.phase = GrowthPhase::FIRST;
                }
            }
        }
    }

    /// Says how long it took to make pages accessible that the memory has grown by.
    pub(crate) fn note_growing(&mut self, time: Duration) {
        if self.is_measuring() {
            self.growing += time.min(CALL_MAX);
        }
    }

    /// Says how long it took to shrink the memory after a run.
    pub(crate) fn note_shrinking(&mut self, time: Duration) {
        if let GrowthPhase::Measuring { runs, spared, .. } = &mut self.phase {
            *runs += 1;
            *spared += time.min(CALL_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use pagefork_layout::page::PAGE_SIZE;

    use super::*;
    use crate::pages::slot_pages::{Setup, SlotPages};
    use crate::{Image, MemorySize, MemoryZone, SlotConfig};

    #[test]
    fn what_one_of_a_few_runs_needs_stays_and_what_none_needs_goes() {
        let mut high_water = HighWater::new(GrowthKind::Kept);
        let mut kept = |size| {
            high_water.note(size, None);
            high_water.kept()
        };
        assert_eq!([kept(3), kept(9), kept(3), kept(9)], [3, 9, 9, 9]);
        for _ in 1..RUNS {
            assert_eq!(kept(5), 9);
        }
        assert_eq!([kept(3), kept(3), kept(6)], [5, 5, 6], "the most that was needed");
        for _ in 1..RUNS {
            assert_eq!(kept(0), 6);
        }
        assert_eq!(kept(0), 0);
    }

    /// How many of `count` runs leave memory accessible.
    fn kept_of(high_water: &mut HighWater, count: u32, running: u64, shrinking: u64) -> u32 {
        kept_of_growing(high_water, count, running, shrinking, &[])
    }

    /// As [`kept_of`], of runs that grow the memory, each call taking as long as this: besides
    /// `running`, unless memory is accessible.
    fn kept_of_growing(
        high_water: &mut HighWater,
        count: u32,
        running: u64,
        shrinking: u64,
        growing: &[u64],
    ) -> u32 {
        let mut at = high_water.ended.unwrap_or_else(Instant::now);
        let mut kept = 0;
        for _ in 0..count {
            at += Duration::from_micros(running);
            if high_water.kept() == 0 {
                for call in growing.iter().copied().map(Duration::from_micros) {
                    at += call;
                    high_water.note_growing(call);
                }
            }
            high_water.note(5, Some(at));
            match high_water.kept() {
                0 => high_water.note_shrinking(Duration::from_micros(shrinking)),
                _ => kept += 1,
            }
        }
        kept
    }

    #[test]
    fn memory_stays_accessible_where_shrinking_it_costs_more_than_comparing() {
        let mut high_water = HighWater::new(GrowthKind::Auto);
        assert_eq!(kept_of(&mut high_water, 1000, 430, 8), 0, "alone");
        let contended = kept_of(&mut high_water, 10_000, 430, 34);
        assert!(contended > 9_500, "{contended}");
        // Measured again sooner or later.
        assert!(kept_of(&mut high_water, 1000, 430, 8) <= KEPT_RUNS + RUNS);
        assert_eq!(kept_of(&mut high_water, 1000, 430, 8), 0);
        assert!(kept_of(&mut high_water, 100, 100, 8) > 80, "a short run");
        assert!(kept_of(&mut high_water, 100, 3000, 8) < RUNS * 2, "runs that become long");
    }

    #[test]
    fn memory_stays_accessible_where_growing_it_takes_most_of_a_run() {
        let mut high_water = HighWater::new(GrowthKind::Auto);
        let kept = kept_of_growing(&mut high_water, 1000, 160, 40, &[5; 1000]);
        assert!(kept > 950, "{kept}");
        // Also if the rest is long, and shrinking takes no time.
        let mut high_water = HighWater::new(GrowthKind::Auto);
        let kept = kept_of_growing(&mut high_water, 1000, 30_000, 0, &[50; 1000]);
        assert!(kept > 950, "{kept}");
        // Growing is no part of what comparing makes longer.
        for (running, keeps) in [(9_400, true), (9_800, false)] {
            let mut high_water = HighWater::new(GrowthKind::Auto);
            let kept = kept_of_growing(&mut high_water, 1000, running, 0, &[4; 100]);
            assert_eq!(kept > 950, keeps, "{kept} of runs of {running} us");
        }
    }

    #[test]
    fn slots_say_how_long_growing_takes() {
        let zones = SlotConfig {
            stack: 1 << 16..1 << 17,
            link: 1 << 17..1 << 18,
            image_floor: 1 << 18,
            base: 1 << 20,
            memories: vec![MemoryZone { start: 1 << 20, reservation: 16 << 20, guard: 1 << 20 }],
            size: 32 << 20,
        };
        let image = Image::new("grows", 1 << 20..1 << 20, []).unwrap();
        let sizes = [MemorySize { initial: 0, maximum: 16 << 20 }];
        let setup = Setup { growth: GrowthKind::Auto, ..Setup::PLAIN };
        let mut pages = SlotPages::new(zones, setup, &image, &sizes).unwrap();
        // All that a run does is to grow.
        let keeps = (0..1000).any(|_| {
            (1..=4096).for_each(|count| pages.grow_memory(0, count * PAGE_SIZE).unwrap());
            pages.shrink_all().unwrap();
            pages.finish();
            pages.accessible(0) > 0
        });
        assert!(keeps);
    }

    #[test]
    fn measuring_takes_a_small_part_of_the_time_that_keeping_spares() {
        let mut high_water = HighWater::new(GrowthKind::Auto);
        // Where memory stays accessible a run takes a fiftieth.
        let kept = kept_of_growing(&mut high_water, 30_000, 100, 100, &[5; 1000]);
        let measured = Duration::from_micros(5_200) * (30_000 - kept);
        assert!(measured < Duration::from_micros(100) * kept / 15, "{measured:?}");
        // It is measured, though.
        assert!(30_000 - kept > 2 * RUNS, "{kept}");
    }

    #[test]
    fn memory_is_shrunk_where_runs_take_long_beside_growing() {
        let mut high_water = HighWater::new(GrowthKind::Auto);
        assert_eq!(kept_of_growing(&mut high_water, 1000, 430, 8, &[4, 5]), 0);
        assert_eq!(kept_of_growing(&mut high_water, 1000, 3000, 40, &[40, 40]), 0);
        // Much growing, and a run for which that is little.
        assert_eq!(kept_of_growing(&mut high_water, 1000, 200_000, 100, &[5; 1000]), 0);
        assert!(kept_of_growing(&mut high_water, 100, 1000, 8, &[5; 1000]) > 80);
        // Longer than what is kept for that much.
        assert!(kept_of_growing(&mut high_water, 100, 200_000, 8, &[5; 1000]) < RUNS * 2);
    }

    #[test]
    fn one_call_in_which_the_thread_was_not_running_keeps_no_memory_accessible() {
        let mut high_water = HighWater::new(GrowthKind::Auto);
        for _ in 0..100 {
            assert_eq!(kept_of_growing(&mut high_water, 1, 800, 8, &[4, 5_000]), 0);
            assert_eq!(kept_of_growing(&mut high_water, 2 * RUNS, 800, 8, &[4, 4]), 0);
        }
    }

    /// The first run of a slot began at a time that is not known.
    #[test]
    fn growing_counts_of_the_runs_alone_whose_time_does() {
        let mut high_water = HighWater::new(GrowthKind::Auto);
        assert_eq!(kept_of_growing(&mut high_water, 1, 0, 0, &[50; 100]), 0);
        assert_eq!(kept_of_growing(&mut high_water, 100, 430, 8, &[4]), 0);
    }
}
