//! What can have happened to a page before a run, and what a run does to it.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]

use pagefork_pages::Slot;

use super::common::*;
use super::matrix::*;
use super::swap::page_out;

/// What is done to a page of the first memory.
pub type State = fn(&Case, &mut Slot, u64);

/// Their names, and how pages come there.
pub const STATES: [(&str, State); 9] = [
    ("absent", |_, _, _| ()),
    ("read", |case, slot, page| drop(read(slot, at(case, page)..at(case, page) + 1))),
    ("written", |case, slot, page| poke(slot, at(case, page), 0xa1)),
    ("written as it was", |case, slot, page| {
        let same = read(slot, at(case, page)..at(case, page) + 1);
        write(slot, at(case, page), &same);
    }),
    ("swapped", |case, slot, page| page_out(slot, &(at(case, page)..at(case, page + 1)))),
    ("cold", |case, slot, page| {
        let place = slot.start().wrapping_add(at(case, page) as usize);
        // SAFETY: this keeps the contents of pages.
        unsafe { libc::madvise(place.cast(), PAGE as usize, libc::MADV_COLD) };
    }),
    ("written, then swapped", |case, slot, page| {
        poke(slot, at(case, page), 0xa2);
        page_out(slot, &(at(case, page)..at(case, page + 1)));
    }),
    ("made zero", |_, slot, page| {
        slot.discard_memory(0, page * PAGE..(page + 1) * PAGE).unwrap();
    }),
    ("written by the kernel", |case, slot, page| {
        let place = slot.start().wrapping_add(at(case, page) as usize);
        slot.note_external_write(place.addr()..place.addr() + 64);
        slot.wait_at(place.addr()..place.addr() + 64).unwrap();
        // SAFETY: the call writes to pages of the slot, which this thread alone uses.
        assert_eq!(unsafe { libc::getrandom(place.cast(), 64, 0) }, 64);
    }),
];

/// Where a page of the first memory is: its slot offset.
pub fn at(case: &Case, page: u64) -> u64 {
    case.memory(0) + page * PAGE
}

/// Has pages be in every state, and, but in each third round, in another after it: one that is a further one in each
/// round. Each of `firsts` is the first of [`PAGES`] pages.
pub fn every_state(case: &Case, slot: &mut Slot, round: u64, firsts: &[u64]) {
    for first in firsts {
        for (index, (_, change)) in STATES.iter().enumerate() {
            let page = first + index as u64 * APART;
            change(case, slot, page);
            let then = (index + round as usize) % STATES.len();
            if !round.is_multiple_of(3) {
                STATES[then].1(case, slot, page);
            }
        }
    }
}

/// From one page to the next that [`every_state`] changes.
const APART: u64 = 3;
/// Pages between the first and the last that [`every_state`] changes.
pub const PAGES: u64 = STATES.len() as u64 * APART;
