//! How a slot is to be reset and to grow, and what of it was chosen.

use std::fmt;

use pagefork_layout::page::PAGE_SIZE;

use crate::os::error::{IllegalStrategies, PagesError};
use crate::pages::growth::{CodeBounds, GrowthKind};

/// At most this many threads serve the faults of slots that are reset by [`ResetKind::Fault`].
pub const FAULT_THREADS_MAX: u32 = 256;

/// At most this many bytes of a stack are kept.
pub const STACK_KEPT_MAX: u64 = 64 * PAGE_SIZE;

/// How a slot becomes equal to its image again.
///
/// # Examples
///
/// ```
/// use pagefork_pages::ResetKind;
///
/// // Those that a user can name.
/// let named = |name: &str| ResetKind::ALL.into_iter().find(|kind| kind.to_string() == name);
/// assert_eq!(named("scan"), Some(ResetKind::Scan));
/// assert_eq!(named("none"), None);
/// ```
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
    /// [`Slot::note_external_writer`](crate::Slot::note_external_writer), and keeps huge pages out.
    Resident,
    /// As `Resident`, but pages that runs write seldom stay private under write protection
    /// (userfaultfd with WP_ASYNC; kernel 6.7): later resets do not look at them, and the next
    /// write to one takes a page fault that copies nothing. What runs share in memory is not given
    /// back, within half of the [`Budget`](crate::Budget).
    Protect,
    /// No copy-on-write: the image is copied in, and what differs is restored. For
    /// tiny images, and where copy-on-write is switched off.
    Copy,
    /// No copy-on-write: the kernel throws written pages away, and a touch of one that has no contents
    /// is a SIGBUS in the thread that touches it (userfaultfd), whose handler copies it from the image,
    /// more of them at once where pages are touched in a row ([`serve_fault`](crate::serve_fault)).
    /// [Threads](StrategyConfig::fault_threads) can copy instead, or
    /// [all be copied at a reset](StrategyConfig::fault_eager).
    /// Such slots are refused in processes that are forked; who has the kernel read or write in them
    /// waits for the pages before ([`Slot::wait`](crate::Slot::wait)). Where no handler calls that
    /// function, or the kernel may not do it ([`faults_at_touches`](crate::faults_at_touches)), it is as
    /// `Discard`. It is there to be compared: `Auto` does not choose it.
    Fault,
    /// Starts with `Scan` and moves between the others by what it sees.
    #[default]
    Auto,
}

impl ResetKind {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Remap,
        Self::Discard,
        Self::Scan,
        Self::Resident,
        Self::Protect,
        Self::Copy,
        Self::Fault,
        Self::Auto,
    ];
}

impl fmt::Display for ResetKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Remap => "remap",
            Self::Discard => "discard",
            Self::Scan => "scan",
            Self::Resident => "resident",
            Self::Protect => "protect",
            Self::Copy => "copy",
            Self::Fault => "fault",
            Self::Auto => "auto",
        })
    }
}

/// How [`Slot::snapshot`](crate::Slot::snapshot) finds what was written since the last snapshot of a
/// slot that runs on.
///
/// The snapshot is a branch of the last one then, and has the pages that differ from that. What is
/// spawned from it has copies of them. Each tracker finds the same.
///
/// # Examples
///
/// ```
/// use pagefork_pages::DeltaTracker;
///
/// // Those that a user can name.
/// let named = |name: &str| DeltaTracker::ALL.into_iter().find(|one| one.to_string() == name);
/// assert_eq!(named("writes"), Some(DeltaTracker::Writes));
/// assert_eq!(named("none"), None);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum DeltaTracker {
    /// Not at all: each snapshot has what is otherwise than in the image that the slot was filled
    /// from.
    #[default]
    Off,
    /// Pages that are private, and those that were, are compared with the last snapshot. It costs
    /// guests nothing, and a snapshot a look at each page that was written since the slot was
    /// filled.
    Compare,
    /// The kernel notes which pages are written (userfaultfd with WP_ASYNC, read by PAGEMAP_SCAN;
    /// kernel 6.7), and no others are read. Guests pay a page fault for the first write to a page
    /// after each snapshot. Where the kernel cannot or may not, it is as `Compare`.
    Writes,
    /// Pages are read-only after each snapshot, and a handler of SIGSEGV notes which are written
    /// ([`lift_protection`](crate::lift_protection)): no others are read. It needs nothing of the
    /// kernel, and guests pay a signal for the first write to a page; after some dozens, to larger and
    /// larger groups of pages. While no handler calls that function, where what can be written counts
    /// against a limit ([`protects_writes`](crate::protects_writes)), while pages of the image are
    /// absent, and after
    /// [`Slot::note_external_writer`](crate::Slot::note_external_writer) until the next reset it is as
    /// `Compare`.
    Protect,
    /// Pages that are private are write-protected after each snapshot (userfaultfd; kernel 5.19), and
    /// a handler of SIGBUS notes which are written ([`serve_fault`](crate::serve_fault)): no others
    /// are read, but for those that have become private since. Guests pay a signal for the first
    /// write to a page, and where they write one page after the other, for the first of a row. No map
    /// is cut, and no limit of writable memory matters. While no handler calls that function, where
    /// the kernel cannot or may not ([`faults_at_writes`](crate::faults_at_writes)), of images that
    /// lie in files or of which pages are absent, and after
    /// [`Slot::note_external_writer`](crate::Slot::note_external_writer) until the next reset it is as
    /// `Compare`.
    Fault,
}

impl DeltaTracker {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Off, Self::Compare, Self::Writes, Self::Protect, Self::Fault];
}

impl fmt::Display for DeltaTracker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "off",
            Self::Compare => "compare",
            Self::Writes => "writes",
            Self::Protect => "protect",
            Self::Fault => "fault",
        })
    }
}

/// What is asked of a slot's strategies. Sizes are in bytes.
///
/// # Examples
///
/// ```
/// use pagefork_pages::{CodeBounds, GrowthKind, PagesError, ResetKind, StrategyConfig};
///
/// let growth = GrowthKind::Kept;
/// let config = StrategyConfig { reset: ResetKind::Scan, growth, ..StrategyConfig::default() };
/// // Code that relies on inaccessible pages alone cannot run in such slots.
/// assert!(matches!(config.check(), Err(PagesError::IllegalStrategies(_))));
/// let strategies = StrategyConfig { code: CodeBounds::Dual, ..config }.check()?;
/// assert_eq!(strategies.config().growth, growth);
/// # Ok::<(), pagefork_pages::PagesError>(())
/// ```
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
    /// At most this many bytes of a slot are restored in place and stay in memory, even if the
    /// [`Budget`](crate::Budget) has more. What exceeds it is discarded.
    pub resident_max: u64,
    /// At most this many bytes of the stack stay in memory, up to [`STACK_KEPT_MAX`]; what it
    /// shares with the link zone is cleared instead if that is less than a page.
    pub stack_kept: u64,
    /// Whether the stack is cleared at each reset and not only for a new owner.
    pub clear_stack: bool,
    /// How successive snapshots of one run find what was written in between.
    pub deltas: DeltaTracker,
    /// How many threads copy pages of images by [`ResetKind::Fault`] while those wait that touch them,
    /// up to [`FAULT_THREADS_MAX`]. They do it for all slots of the process that are to have as many,
    /// and end with the last of these. With 0, and where they cannot be told of touches
    /// ([`faults_in_messages`](crate::faults_in_messages)), each thread copies what it touches, in its handler of
    /// SIGBUS. What memories grow by [`GrowthKind::Fault`] comes so in any case, since what is not
    /// theirs is a trap.
    pub fault_threads: u32,
    /// Whether all pages of the image are copied when a slot is filled or reset by
    /// [`ResetKind::Fault`], so that code takes no fault unless pages were given back meanwhile.
    pub fault_eager: bool,
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
            deltas: DeltaTracker::default(),
            fault_threads: 0,
            fault_eager: false,
        }
    }
}

impl StrategyConfig {
    /// Checks that all of it goes together.
    ///
    /// # Errors
    /// [`PagesError::IllegalStrategies`].
    ///
    /// # Examples
    ///
    /// See [`StrategyConfig`].
    pub fn check(self) -> Result<Strategies, PagesError> {
        if !self.growth.is_exact() && self.code == CodeBounds::Guarded {
            return Err(PagesError::IllegalStrategies(IllegalStrategies::CheckedWithoutBounds));
        }
        if self.stack_kept > STACK_KEPT_MAX {
            let (bytes, max) = (self.stack_kept, STACK_KEPT_MAX);
            return Err(PagesError::IllegalStrategies(IllegalStrategies::StackKept { bytes, max }));
        }
        if self.fault_threads > FAULT_THREADS_MAX {
            let (threads, max) = (self.fault_threads, FAULT_THREADS_MAX);
            return Err(PagesError::IllegalStrategies(IllegalStrategies::FaultThreads {
                threads,
                max,
            }));
        }
        Ok(Strategies(self))
    }
}

/// Strategies that go together: a checked [`StrategyConfig`].
///
/// # Examples
///
/// See [`StrategyConfig`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Strategies(StrategyConfig);

/// How a slot is reset, and why so.
///
/// # Examples
///
/// See [`Strategies::choice`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Choice {
    /// What was asked for.
    pub asked: ResetKind,
    /// What is done.
    pub used: ResetKind,
    /// Why.
    pub reason: Reason,
}

/// Why a slot is reset as it is.
///
/// # Examples
///
/// See [`Slot::with_strategies`](crate::Slot::with_strategies).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Reason {
    /// It was asked for.
    Asked,
    /// Copy-on-write is switched off.
    CopyOnWriteOff,
    /// `MADV_DONTNEED` reports success and does nothing.
    DiscardDoesNothing,
    /// PAGEMAP_SCAN is missing: `/proc/self/pagemap` is read instead, which costs
    /// more.
    ReadsPageMap,
    /// Nothing tells private pages from others.
    NoPageMap,
    /// Huge pages cannot be kept out, and they take writes without a fault.
    HugePages,
    /// Pages cannot be kept under write protection.
    NoWriteProtection,
    /// The slot's pages cannot be: the kernel or a limit has refused it, pages of its image are absent,
    /// or somebody may write to it at any time.
    ProtectionRefused,
    /// No handler serves faults, or the kernel tells of none.
    NoFaults,
    /// Threads cannot be told of touches: who touches a page copies it.
    NoMessages,
    /// It is what `Auto` starts with.
    Start,
    /// The last resets found nothing that was not known.
    NothingNew {
        /// Resets that were looked at.
        resets: u32,
    },
    /// Most scans had to be made after all.
    ManyScans {
        /// Scans in the last resets.
        scans: u32,
        /// Resets that were looked at.
        resets: u32,
    },
    /// The last resets found few pages that were not known: their page faults show them.
    /// Mean of those resets.
    FewNew {
        /// Pages that became private.
        new: u64,
    },
    /// Runs write many pages, each other ones: keeping them gains nothing. Means of
    /// the last resets.
    OtherPagesEachTime {
        /// Pages that became private.
        new: u64,
        /// Pages that were let go again.
        discarded: u64,
    },
    /// Pages that runs write seldom are kept under write protection, since a look at them at each
    /// reset costs more than a page fault at their next write, and that less than to discard them.
    SeldomWritten {
        /// Pages that are kept so.
        pages: u64,
        /// A look at a page, as measured, in nanoseconds.
        look_ns: u32,
        /// To protect a page and to write to it again, as measured, in nanoseconds.
        fault_ns: u32,
    },
    /// As [`Self::SeldomWritten`], where the pages that were written are found by a search for those
    /// that are protected no more.
    SeldomWrittenSearched {
        /// Pages that are kept so.
        pages: u64,
        /// A look at a page, as measured, in nanoseconds.
        look_ns: u32,
        /// To protect a page and to write to it again, as measured, in nanoseconds.
        fault_ns: u32,
        /// The search after a run that took page faults, as measured, in nanoseconds.
        search_ns: u32,
    },
    /// Where the page map is read to find what was written, that was compared with discarding all
    /// pages: what a reset and a run's page faults take, as measured.
    Compared {
        /// If written pages are found and restored, in nanoseconds.
        search_ns: u64,
        /// If all pages are discarded, in nanoseconds.
        discard_ns: u64,
    },
    /// Another try after some time, or the first one.
    Retry,
}

impl Choice {
    /// Of a slot that was made without a choice.
    pub(crate) const PLAIN: Self =
        Self { asked: ResetKind::Discard, used: ResetKind::Discard, reason: Reason::Asked };
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.asked == self.used {
            return write!(f, "{}: {}", self.used, self.reason);
        }
        write!(f, "{} (asked for: {}): {}", self.used, self.asked, self.reason)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Asked => f.write_str("asked for"),
            Self::CopyOnWriteOff => f.write_str("copy-on-write is switched off"),
            Self::DiscardDoesNothing => f.write_str("MADV_DONTNEED does nothing here"),
            Self::ReadsPageMap => {
                f.write_str("PAGEMAP_SCAN is missing, so /proc/self/pagemap is read")
            }
            Self::NoPageMap => {
                f.write_str("neither PAGEMAP_SCAN nor /proc/self/pagemap tells private pages")
            }
            Self::HugePages => f.write_str("huge pages cannot be kept out of a slot here"),
            Self::NoWriteProtection => {
                f.write_str("the kernel does not note writes to protected pages here")
            }
            Self::ProtectionRefused => {
                f.write_str("pages of this slot cannot be kept under write protection")
            }
            Self::NoFaults => {
                f.write_str("touches of pages without contents are not served here (userfaultfd)")
            }
            Self::NoMessages => f.write_str(
                "threads cannot be told of touches here (userfaultfd, Linux 6.6), so who touches a page copies it",
            ),
            Self::Start => f.write_str("what it starts with"),
            Self::NothingNew { resets } => {
                write!(f, "the last {resets} scans found no page that was not known")
            }
            Self::ManyScans { scans, resets } => {
                write!(f, "{scans} of the last {resets} resets had to scan")
            }
            Self::FewNew { new } => {
                write!(f, "a run writes {new} new pages, which its page faults show")
            }
            Self::OtherPagesEachTime { new, discarded } => {
                write!(f, "a run writes {new} new pages, and {discarded} were kept in vain")
            }
            Self::SeldomWritten { pages, look_ns, fault_ns } => write!(
                f,
                "{pages} pages are written seldom: to look at one at each reset takes {look_ns} ns, \
                 its page fault when it is written {fault_ns} ns"
            ),
            Self::SeldomWrittenSearched { pages, look_ns, fault_ns, search_ns } => write!(
                f,
                "{pages} pages are written seldom: to look at one at each reset takes {look_ns} ns, \
                 its page fault when it is written {fault_ns} ns, and to find such pages {search_ns} ns"
            ),
            Self::Compared { search_ns, discard_ns } => write!(
                f,
                "a reset and a run's page faults take {search_ns} ns if the page map is read, \
                 {discard_ns} ns if all pages are discarded"
            ),
            Self::Retry => f.write_str("another try after some time"),
        }
    }
}

impl Strategies {
    /// What was checked.
    ///
    /// # Examples
    ///
    /// See [`StrategyConfig`].
    pub fn config(&self) -> StrategyConfig {
        self.0
    }
}
