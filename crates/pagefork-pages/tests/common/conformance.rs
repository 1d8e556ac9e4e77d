//! What is done to slots between resets, and that by any strategy they are as fresh ones
//! afterwards, byte by byte and map by map.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]

use std::ops::Range;

use pagefork_pages::{ExternalWriter, Slot};

use super::common::*;
use super::matrix::*;

/// What is done to a slot between two resets.
pub const MUTATIONS: [(&str, fn(&Case, &mut Slot, &mut Random)); 9] = [
    ("nothing", |_, _, _| ()),
    ("stores in every zone", stores),
    ("whole pages", whole_pages),
    ("pages equal to the image again", equal_again),
    ("growth", growth),
    ("everything", everything),
    ("another thread", another_thread),
    ("huge pages", huge_pages),
    ("disjoint runs", disjoint_runs),
];

/// `rounds` times each mutation, alone and with others, on each strategy and image.
#[track_caller]
pub fn conformance(cases: &[Case], rounds: u64) {
    for case in cases {
        for strategies in all_strategies() {
            let config = strategies.config();
            let mut slot = case.spawn(&strategies);
            let service = (config.fault_threads, config.fault_eager);
            let what = format!("{} {} {service:?} {:?}", case.name, config.reset, config.growth);
            case.assert_fresh(&slot, &strategies, &what);
            case.assert_bounded(&slot, &strategies, &what);
            let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ config.reset as u64);
            for round in 0..rounds * MUTATIONS.len() as u64 {
                let (name, mutate) = MUTATIONS[round as usize % MUTATIONS.len()];
                let (also, mutate_also) = *random.of(&MUTATIONS);
                let what = format!("{what}, round {round}: {name}, {also}");
                slot.enter();
                mutate(case, &mut slot, &mut random);
                if round >= MUTATIONS.len() as u64 {
                    mutate_also(case, &mut slot, &mut random);
                }
                if random.below(2) == 0 {
                    look(case, &mut slot, &mut random, &what);
                }
                slot.reset_for(OWNER).unwrap();
                case.assert_fresh(&slot, &strategies, &what);
                case.assert_bounded(&slot, &strategies, &what);
                if random.below(4) == 0 {
                    slot.enter();
                    case.assert_growth_is_zero(&mut slot, &what);
                    slot.reset_for(OWNER).unwrap();
                    case.assert_fresh(&slot, &strategies, &what);
                }
            }
            let fresh = fresh_attributes(case, &strategies, &slot);
            assert_eq!(lasting_attributes(&slot), fresh, "{what}");
        }
    }
}

/// Asks for changed pages, now and then for an image of the slot, and compares them with what
/// the slot has.
#[track_caller]
fn look(case: &Case, slot: &mut Slot, random: &mut Random, what: &str) {
    let changed = slot.changed_pages().unwrap();
    let snapshot = (random.below(4) == 0)
        .then(|| slot.snapshot(case.name, &[], pagefork_pages::ImageForm::Branch).unwrap());
    // To read all pages could hide what depends on which were touched.
    if random.below(2) == 0 {
        assert_eq!(changed, case.changed_pages(slot), "{what}");
    }
    if let Some(snapshot) = snapshot {
        case.assert_snapshot(slot, &snapshot, what);
    }
}

/// A place in any zone: half of them in the small ones.
fn place(case: &Case, slot: &Slot, random: &mut Random) -> u64 {
    let layout = &case.layout;
    let zones: [Range<u64>; 4] = [
        layout.stack.clone(),
        layout.link.start..layout.tables.start,
        layout.tables.start..layout.image_start,
        layout.image_start..layout.base,
    ];
    let zone = if random.below(2) == 0 {
        random.of(&zones).clone()
    } else {
        random.of(&case.parts(slot)).clone()
    };
    let zone = if zone.is_empty() { layout.stack.clone() } else { zone };
    zone.start + random.below(zone.end - zone.start)
}

pub fn stores(case: &Case, slot: &mut Slot, random: &mut Random) {
    for _ in 0..1 + random.below(30) {
        let at = place(case, slot, random);
        write(slot, at, &[random.below(256) as u8]);
    }
}

pub fn whole_pages(case: &Case, slot: &mut Slot, random: &mut Random) {
    for _ in 0..1 + random.below(4) {
        let part = random.of(&case.parts(slot)).clone();
        let first = part.start + random.below((part.end - part.start) / PAGE) * PAGE;
        let length = (1 + random.below(90)) * PAGE;
        let length = length.min(part.end - first);
        let bytes = pattern(random.below(256) as u8, length);
        write(slot, first, &bytes);
    }
}

pub fn equal_again(case: &Case, slot: &mut Slot, random: &mut Random) {
    for _ in 0..1 + random.below(8) {
        let page = place(case, slot, random) / PAGE * PAGE;
        let before = read(slot, page..page + PAGE);
        write(slot, page, &pattern(3, PAGE));
        write(slot, page, &before);
    }
}

pub fn growth(case: &Case, slot: &mut Slot, random: &mut Random) {
    for (index, size) in case.sizes.iter().enumerate() {
        let now = slot.memory_size(index);
        let wanted = now + random.below((size.maximum - now) / PAGE + 1) * PAGE;
        slot.grow_memory(index, wanted).unwrap();
        let part = case.memory(index) + now..case.memory(index) + wanted;
        if random.below(2) == 0 {
            write(slot, part.start, &pattern(7, part.end - part.start));
        } else if !part.is_empty() {
            write(slot, part.end - 1, &[1]);
        }
    }
}

pub fn everything(case: &Case, slot: &mut Slot, random: &mut Random) {
    for part in case.parts(slot) {
        write(slot, part.start, &pattern(random.below(256) as u8, part.end - part.start));
    }
}

/// A view of the host, used elsewhere, as its contract says.
pub fn another_thread(case: &Case, slot: &mut Slot, random: &mut Random) {
    slot.note_external_writer(ExternalWriter::UntilReset);
    let slot: &mut Slot = slot;
    std::thread::scope(|scope| {
        let writes = move || {
            stores(case, slot, random);
            whole_pages(case, slot, random);
        };
        scope.spawn(writes).join().unwrap();
    });
}

/// Makes huge pages of all that is written, where that is possible.
pub fn huge_pages(case: &Case, slot: &mut Slot, random: &mut Random) {
    stores(case, slot, random);
    for index in 0..slot.memory_count() {
        collapse(slot, case.memory(index), slot.memory_size(index));
    }
    stores(case, slot, random);
}

/// Whether a huge page was made.
fn collapse(slot: &Slot, start: u64, size: u64) -> bool {
    let place = slot.start().wrapping_add(start as usize);
    // SAFETY: this keeps the contents of pages.
    unsafe { libc::madvise(place.cast(), size as usize, libc::MADV_COLLAPSE) == 0 }
}

pub fn disjoint_runs(case: &Case, slot: &mut Slot, _: &mut Random) {
    for index in 0..slot.memory_count() {
        let pages = (slot.memory_size(index) / PAGE).min(2000);
        for page in (0..pages).step_by(2) {
            write(slot, case.memory(index) + page * PAGE + 9, &[0xee]);
        }
    }
}
