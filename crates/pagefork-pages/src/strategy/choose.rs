//! What of a configuration this machine can do.

use std::sync::OnceLock;

use crate::os::error::PagesError;
use crate::os::features::HostFeatures;
use crate::os::page_faults::{faults_at_touches, faults_in_messages};
use crate::os::pagemap::{Finder, Method};
use crate::os::write_fault;
use crate::os::write_watch::notes_writes;
use crate::pages::budget::Budget;
use crate::pages::growth::{GrowthKind, GrowthReason};
use crate::pages::slot_pages::{ImageService, Setup, SmallPages};
use crate::pages::zones::MemorySize;
use crate::strategy::auto::{Auto, HugePagePolicy};
use crate::strategy::config::{Choice, DeltaTracker, Reason, ResetKind, Strategies};
use crate::strategy::dirty_set::DirtySet;
use crate::strategy::protection::ProtectionUse;
use crate::strategy::reset::Strategy;
use crate::strategy::search::Search;
use crate::strategy::tuning::SMALL_SLOT_MAX;

/// What a slot is made with.
pub(crate) struct Made {
    pub(crate) setup: Setup,
    pub(crate) strategy: Strategy,
    pub(crate) choice: Choice,
}

impl Strategies {
    /// What this machine can do of it, and why: what [`Slot::strategy`](crate::Slot::strategy)
    /// says of a slot that has just been made with it.
    ///
    /// # Errors
    /// As of [`HostFeatures::get`].
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_pages::{ResetKind, StrategyConfig};
    ///
    /// let choice = StrategyConfig::default().check()?.choice()?;
    /// assert_eq!(choice.asked, ResetKind::Auto);
    /// println!("slots are reset by {choice}");
    /// # Ok::<(), pagefork_pages::PagesError>(())
    /// ```
    pub fn choice(&self) -> Result<Choice, PagesError> {
        Ok(self.choose(&HostFeatures::get()?).0)
    }

    /// The strategies of one slot.
    pub(crate) fn make(&self, sizes: &[MemorySize], budget: &Budget) -> Result<Made, PagesError> {
        self.make_with(&HostFeatures::get()?, sizes, budget)
    }

    fn make_with(
        &self,
        features: &HostFeatures,
        sizes: &[MemorySize],
        budget: &Budget,
    ) -> Result<Made, PagesError> {
        let (choice, method) = self.choose(features);
        let config = self.config();
        // Successive snapshots have the kernel note writes for themselves.
        let protection = match choice.used {
            _ if config.deltas != DeltaTracker::Off => ProtectionUse::Never,
            ResetKind::Protect => ProtectionUse::On,
            ResetKind::Auto if method != Some(Method::Read) => ProtectionUse::Off,
            _ => ProtectionUse::Never,
        };
        let search = |auto| {
            let method = method.expect("a strategy that searches is chosen only with a method");
            let finder = Finder::new(method)?;
            let dirty = DirtySet::new(finder, config.resident_max, budget, protection);
            Ok::<_, PagesError>(Strategy::Search(Search::new(dirty, choice.used, auto).into()))
        };
        let small = sizes.iter().map(|size| size.initial).sum::<u64>() <= SMALL_SLOT_MAX;
        let huge_pages = match features.small_pages {
            true if small => HugePagePolicy::Refused,
            true => HugePagePolicy::RefusedIfRunsAreSmall,
            false => HugePagePolicy::Allowed,
        };
        let strategy = match choice.used {
            ResetKind::Remap => Strategy::Remap,
            ResetKind::Discard | ResetKind::Fault => Strategy::Discard,
            // Where discarding does nothing, the page map proves nothing either.
            ResetKind::Copy if method.is_none() || !features.discard => Strategy::Compare,
            ResetKind::Scan | ResetKind::Resident | ResetKind::Protect | ResetKind::Copy => {
                search(None)?
            }
            ResetKind::Auto => search(Some(Auto::new(huge_pages)))?,
        };
        let growth_lack = match config.growth {
            GrowthKind::Fault => growth_lack(features),
            _ => None,
        };
        let setup = Setup {
            growth: if growth_lack.is_some() { GrowthKind::Mprotect } else { config.growth },
            growth_lack: growth_lack.map(|reason| (config.growth, reason)),
            copies_image: matches!(choice.used, ResetKind::Copy | ResetKind::Fault),
            image_service: (choice.used == ResetKind::Fault).then_some(ImageService {
                threads: if choice.reason == Reason::NoMessages { 0 } else { config.fault_threads },
                is_eager: config.fault_eager,
            }),
            restores: !matches!(choice.used, ResetKind::Remap | ResetKind::Discard),
            small_pages: match choice.used {
                ResetKind::Auto if huge_pages != HugePagePolicy::Refused => SmallPages::Unsure,
                ResetKind::Auto | ResetKind::Resident | ResetKind::Protect => {
                    match features.small_maps {
                        true => SmallPages::OfMaps,
                        false => SmallPages::Advised,
                    }
                }
                _ => SmallPages::Unsure,
            },
            discards: features.discard,
        };
        Ok(Made { setup, strategy, choice })
    }

    fn choose(&self, features: &HostFeatures) -> (Choice, Option<Method>) {
        use ResetKind::{Auto, Copy, Discard, Fault, Protect, Remap, Resident, Scan};
        let asked = self.config().reset;
        let copy_on_write = self.config().copy_on_write && !is_switched_off();
        // Of a copied image a page of zeros becomes the shared one where the kernel splits
        // a huge page.
        let zeros = asked == Copy || !copy_on_write;
        let method = features.search_method(zeros);
        let reads = match method {
            Some(Method::Read) => Reason::ReadsPageMap,
            _ => Reason::Asked,
        };
        let (used, reason) = match asked {
            Copy => (Copy, Reason::Asked),
            _ if !copy_on_write => (Copy, Reason::CopyOnWriteOff),
            Remap => (Remap, Reason::Asked),
            _ if !features.discard => (Remap, Reason::DiscardDoesNothing),
            Discard => (Discard, Reason::Asked),
            Fault if !write_fault::is_called() || !faults_at_touches() => {
                (Discard, Reason::NoFaults)
            }
            Fault if self.config().fault_threads > 0 && !faults_in_messages() => {
                (Fault, Reason::NoMessages)
            }
            Fault => (Fault, Reason::Asked),
            _ if method.is_none() => (Discard, Reason::NoPageMap),
            Resident | Protect if !features.small_pages => (Scan, Reason::HugePages),
            Protect if self.config().deltas != DeltaTracker::Off || !notes_writes() => {
                (Resident, Reason::NoWriteProtection)
            }
            Protect => (Protect, reads),
            Scan | Resident => (asked, reads),
            Auto => (Auto, reads),
        };
        (Choice { asked, used, reason }, method)
    }
}

/// Why memories cannot grow by [`GrowthKind::Fault`], if they cannot.
fn growth_lack(features: &HostFeatures) -> Option<GrowthReason> {
    match features.discard && write_fault::is_called() {
        true => GrowthKind::Fault.lack(),
        false => Some(GrowthReason::NoFaults),
    }
}

/// Whether copy-on-write is switched off for the whole process.
fn is_switched_off() -> bool {
    static BY_ENVIRONMENT: OnceLock<bool> = OnceLock::new();
    let by_environment = || std::env::var_os("PAGEFORK_COW").is_some_and(|value| value == "0");
    cfg!(feature = "no-cow") || *BY_ENVIRONMENT.get_or_init(by_environment)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::error::IllegalStrategies;
    use crate::pages::growth::CodeBounds;
    use crate::strategy::config::{STACK_KEPT_MAX, StrategyConfig};

    const ALL: HostFeatures = HostFeatures {
        discard: true,
        noexec_seal: true,
        scan: true,
        pagemap: true,
        small_pages: true,
        small_maps: true,
        merges: false,
    };

    #[cfg(not(feature = "no-cow"))]
    fn used(reset: ResetKind, features: HostFeatures) -> (ResetKind, Reason, Option<Method>) {
        let strategies = StrategyConfig { reset, ..Default::default() }.check().unwrap();
        let (choice, method) = strategies.choose(&features);
        assert_eq!(choice.asked, reset);
        (choice.used, choice.reason, method)
    }

    #[test]
    #[cfg(not(feature = "no-cow"))]
    fn what_is_missing_is_replaced_by_what_is_nearest() {
        use ResetKind::*;
        for kind in ResetKind::ALL {
            let zeros = kind == Copy;
            if kind == Fault {
                // No handler serves faults in this process.
                let scan = Method::Scan { zeros };
                assert_eq!(used(kind, ALL), (Discard, Reason::NoFaults, Some(scan)));
                continue;
            }
            assert_eq!(used(kind, ALL), (kind, Reason::Asked, Some(Method::Scan { zeros })));
            let no_scan = HostFeatures { scan: false, ..ALL };
            let reason = match kind {
                Scan | Resident | Protect | Auto => Reason::ReadsPageMap,
                _ => Reason::Asked,
            };
            assert_eq!(used(kind, no_scan), (kind, reason, Some(Method::Read)));
            let no_map = HostFeatures { scan: false, pagemap: false, ..ALL };
            let expected = match kind {
                Scan | Resident | Protect | Auto => (Discard, Reason::NoPageMap, None),
                _ => (kind, Reason::Asked, None),
            };
            assert_eq!(used(kind, no_map), expected);
            let no_discard = HostFeatures { discard: false, ..ALL };
            let expected = match kind {
                Copy | Remap => (kind, Reason::Asked),
                _ => (Remap, Reason::DiscardDoesNothing),
            };
            let (kind, reason, _) = used(kind, no_discard);
            assert_eq!((kind, reason), expected);
        }
        let huge = HostFeatures { small_pages: false, ..ALL };
        let scan = Method::Scan { zeros: false };
        assert_eq!(used(Resident, huge), (Scan, Reason::HugePages, Some(scan)));
        let merges = HostFeatures { merges: true, ..ALL };
        assert_eq!(used(Auto, merges).2, Some(Method::Scan { zeros: true }));
    }

    #[test]
    fn without_copy_on_write_everything_is_copied() {
        for reset in ResetKind::ALL {
            let config = StrategyConfig { reset, copy_on_write: false, ..Default::default() };
            let (choice, _) = config.check().unwrap().choose(&ALL);
            assert_eq!(choice.used, ResetKind::Copy);
            let explained = choice.to_string();
            assert_eq!(explained.contains("switched off"), reset != ResetKind::Copy, "{explained}");
        }
    }

    #[test]
    #[cfg(not(feature = "no-cow"))]
    fn advice_keeps_huge_pages_out_where_maps_do_not() {
        use crate::os::procmaps::{counted, refuses_huge_pages};
        use crate::pages::slot_pages::SlotPages;
        use crate::{Image, SlotConfig};
        let base = 1 << 20;
        let zones = SlotConfig {
            stack: 1 << 16..1 << 17,
            link: 1 << 17..1 << 18,
            image_floor: 1 << 18,
            base,
            memories: Vec::new(),
            size: 4 << 20,
        };
        let image = Image::new("small", base - 4096..base, [(base - 4096, &[1; 8][..])]).unwrap();
        let here = HostFeatures::get().unwrap();
        for reset in [ResetKind::Resident, ResetKind::Protect, ResetKind::Auto, ResetKind::Discard]
        {
            let strategies = StrategyConfig { reset, ..Default::default() }.check().unwrap();
            for small_maps in [here.small_maps, false] {
                let features = HostFeatures { small_maps, ..here };
                let made = strategies.make_with(&features, &[], &Budget::default()).unwrap();
                let pages = SlotPages::new(zones.clone(), made.setup, &image, &[]).unwrap();
                let small = reset != ResetKind::Discard;
                assert_eq!(pages.has_small_pages(), small, "{reset}, {features:?}");
                let maps = counted().unwrap();
                for place in [1 << 16, base - 4096] {
                    let refused = refuses_huge_pages(&maps, pages.start() + place as usize);
                    assert_eq!(refused, Some(small), "{reset}, {features:?}");
                }
            }
        }
    }

    #[test]
    fn where_nobody_serves_touches_memories_grow_otherwise() {
        let config = StrategyConfig { growth: GrowthKind::Fault, ..Default::default() };
        let strategies = config.check().unwrap();
        let made = strategies.make_with(&ALL, &[], &Budget::default()).unwrap();
        assert_eq!(made.setup.growth, GrowthKind::Mprotect);
        let lack = Some((GrowthKind::Fault, GrowthReason::NoFaults));
        assert_eq!(made.setup.growth_lack, lack);
    }

    #[test]
    fn memory_left_accessible_needs_code_that_checks() {
        let checked = GrowthKind::Checked { accessible: None };
        for code in [CodeBounds::Guarded, CodeBounds::Checked, CodeBounds::Dual] {
            for growth in [GrowthKind::Mprotect, checked, GrowthKind::Kept, GrowthKind::Auto] {
                let result = StrategyConfig { growth, code, ..Default::default() }.check();
                let legal = growth == GrowthKind::Mprotect || code != CodeBounds::Guarded;
                assert_eq!(result.is_ok(), legal);
                if let Err(error) = result {
                    let why = IllegalStrategies::CheckedWithoutBounds;
                    assert_eq!(error, PagesError::IllegalStrategies(why));
                }
            }
        }
        let stack_kept = STACK_KEPT_MAX + 4096;
        StrategyConfig { stack_kept, ..Default::default() }.check().unwrap_err();
    }
}
