//! One slot after the other through random runs, growth, threads, advice and failing calls: what
//! a reset leaves is the image, byte by byte. The seeds are the same each time;
//! `STORM_SEEDS=FROM..TO` chooses others.
#![cfg(not(feature = "no-cow"))]

mod common;
#[path = "common/matrix.rs"]
mod matrix;

use std::ops::Range;
use std::sync::Arc;

use common::*;
use matrix::*;
use pagefork_layout::module::MemoryType;
use pagefork_pages::inject::{fail_all, fail_from, fail_nth, half_way};
use pagefork_pages::{Call, CodeBounds, GrowthKind, Image, Owner, ResetKind, Slot, StrategyConfig};

const SEEDS: Range<u64> = 0..150;

/// Resets of one slot.
const ROUNDS: u64 = 60;

fn seeds() -> Range<u64> {
    let chosen = std::env::var("STORM_SEEDS").ok();
    let parts = chosen.as_deref().and_then(|range| range.split_once(".."));
    parts.map_or(SEEDS, |(from, to)| from.parse().unwrap()..to.parse().unwrap())
}

fn cases() -> Vec<Case> {
    let base = layout().base;
    let nothing = Image::new("nothing", base..base, []).unwrap();
    let (dense, _) = dense_image(&layout(), 0x42, 2 * MIB);
    let two = layout_of(&[MemoryType::new(0, None); 2]);
    let bytes = pattern(9, 5000);
    let starts: Vec<u64> = two.memories.iter().map(|part| two.base + part.offset).collect();
    let extents = starts.iter().map(|start| *start..*start + 2 * PAGE).collect();
    let parts = starts.iter().map(|start| (*start, &bytes[..]));
    let several = Image::with_extents("several", extents, parts).unwrap();
    vec![
        Case::new("dense", layout(), dense, (2 * MIB, 4 * MIB)),
        Case::new("large", layout(), nothing, (17 * MIB, 22 * MIB)),
        Case::new("two", two, several, (WASM_PAGE, 6 * WASM_PAGE)),
    ]
}

fn random_config(random: &mut Random) -> StrategyConfig {
    let growth = *random.of(&[
        GrowthKind::Mprotect,
        GrowthKind::Checked { accessible: None },
        GrowthKind::Checked { accessible: Some(3 * WASM_PAGE) },
        GrowthKind::Kept,
        GrowthKind::Auto,
        GrowthKind::Ftruncate,
        GrowthKind::Fault,
    ]);
    let reset = *random.of(&[
        ResetKind::Auto,
        ResetKind::Auto,
        ResetKind::Resident,
        ResetKind::Protect,
        ResetKind::Scan,
        ResetKind::Discard,
        ResetKind::Remap,
        ResetKind::Copy,
        ResetKind::Fault,
    ]);
    let resident_max = *random.of(&[u64::MAX, u64::MAX, 30 * PAGE, 2 * PAGE]);
    let code = CodeBounds::Checked;
    let (fault_threads, fault_eager) = (random.below(3) as u32, random.below(4) == 0);
    let config = StrategyConfig { reset, growth, code, resident_max, ..StrategyConfig::default() };
    StrategyConfig { fault_threads, fault_eager, ..config }
}

struct Storm<'a> {
    case: &'a Case,
    slot: Slot,
    random: Random,
    /// Pages that many runs write.
    favourites: Vec<u64>,
    /// An image for which the slot has no room.
    misfit: &'a Arc<Image>,
}

impl Storm<'_> {
    /// Grows memories and writes to them, as a guest would: most runs a little, some much.
    fn run(&mut self) {
        let Self { case, slot, random, favourites, .. } = self;
        slot.enter();
        write(slot, case.layout.link.start, &[1]);
        write(slot, case.layout.stack.end - 64, &[3]);
        let is_large = random.below(6) == 0;
        for (index, size) in case.sizes.iter().enumerate() {
            let more = (size.maximum - size.initial) / PAGE;
            let grown = size.initial + random.below(more + 1) * PAGE;
            let to = *random.of(&[size.initial, size.maximum, size.initial + PAGE, grown]);
            slot.grow_memory(index, to).unwrap();
            let counts = if is_large { [0, 70, 300, 700] } else { [0, 1, 2, 5] };
            let pages = to / PAGE;
            for _ in 0..*random.of(&counts) {
                let page = match random.below(8) {
                    0..4 => *random.of(favourites) % pages,
                    4 => random.below(pages),
                    _ if is_large => random.below(pages),
                    _ => pages - 1 - random.below(pages.min(6)),
                };
                write(slot, case.memory(index) + page * PAGE + 1 + random.below(4000), &[7]);
            }
            if is_large && random.below(3) == 0 {
                let advice = *random.of(&[libc::MADV_COLLAPSE, libc::MADV_PAGEOUT]);
                let length = slot.memory_accessible(index) as usize;
                // SAFETY: neither advice changes what the pages hold; the kernel may refuse.
                unsafe { libc::madvise(slot.memory(index).cast(), length, advice) };
            }
        }
    }

    /// Resets while calls of the system fail, and does after that what embedders may do.
    fn reset_badly(&mut self) {
        let Self { case, slot, random, misfit, .. } = self;
        let code = *random.of(&[libc::ENOMEM, libc::EINVAL]);
        let call = *random.of(&[Call::Protect, Call::Discard]);
        let nth = random.below(5);
        let reset = |slot: &mut Slot| slot.reset_for(OWNER).map(drop);
        let result = match random.below(4) {
            0 => fail_nth(nth, code, || reset(slot)).value,
            1 => fail_from(nth, code, || reset(slot)).value,
            2 => fail_all(call, code, || reset(slot)),
            _ => half_way(|| fail_all(call, code, || reset(slot))),
        };
        if result.is_ok() {
            return;
        }
        let sizes = &case.sizes;
        match random.below(4) {
            0 => assert!(slot.reset_to(misfit, sizes, OWNER).is_err(), "it does not fit"),
            // Whether these succeed depends on which call failed.
            1 => drop(fail_nth(nth, code, || slot.reset_to(&case.image, sizes, OWNER)).value),
            2 => drop(fail_nth(0, code, || reset(slot)).value),
            _ => {}
        }
    }
}

#[test]
fn whatever_runs_and_failures_come_before_a_reset_leaves_the_image() {
    let cases = cases();
    let misfit = dense_image(&layout(), 1, 30 * MIB).0;
    for seed in seeds() {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for _ in 0..9 {
            random.below(2);
        }
        let case = random.of(&cases);
        let config = random_config(&mut random);
        let strategies = config.check().unwrap();
        let most = case.sizes[0].maximum / PAGE;
        let favourites = (0..6).map(|_| random.below(most)).collect();
        let slot = case.spawn(&strategies);
        let mut storm = Storm { case, slot, random, favourites, misfit: &misfit };
        for round in 0..ROUNDS {
            let what =
                format!("STORM_SEEDS={seed}..{}, {}, {config:?}, {round}", seed + 1, case.name);
            match storm.random.below(12) {
                0 => std::thread::scope(|scope| scope.spawn(|| storm.run()).join().unwrap()),
                _ => storm.run(),
            }
            if storm.random.below(5) == 0 {
                storm.reset_badly();
            }
            storm.slot.reset_for(Owner(1)).unwrap();
            if storm.random.below(25) == 0 {
                let _ = storm.slot.discard();
            }
            if storm.random.below(7) == 0 || round + 1 == ROUNDS {
                case.assert_fresh(&storm.slot, &strategies, &what);
                storm.slot.enter();
                case.assert_growth_is_zero(&mut storm.slot, &what);
                storm.slot.reset_for(OWNER).unwrap();
            }
        }
    }
}
