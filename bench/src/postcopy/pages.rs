//! What is in the pages that are touched, and who touches them in which order.

use std::collections::HashSet;

use pagefork::image::GROUP_SIZE;

/// Bytes of a page.
pub(super) const PAGE: usize = 4096;

/// The order in which a guest touches all pages of its memory once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pattern {
    /// One after the other.
    InOrder,
    /// Each 17 pages behind the last one, around the end.
    Strided,
    /// In an order that looks random.
    Random,
    /// Where the next page is stands in the last one.
    Chase,
    /// As [`Pattern::Random`], and it was touched so before.
    Replayed,
}

impl Pattern {
    pub(super) const ALL: [Self; 5] =
        [Self::InOrder, Self::Strided, Self::Random, Self::Chase, Self::Replayed];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::InOrder => "in order",
            Self::Strided => "strided",
            Self::Random => "random",
            Self::Chase => "chase",
            Self::Replayed => "replayed",
        }
    }

    pub(super) fn of_name(name: &str) -> Self {
        let found = Self::ALL.into_iter().find(|pattern| pattern.name() == name);
        found.expect("a pattern")
    }

    /// Its number for the guest.
    pub(super) fn number(self) -> i32 {
        match self {
            Self::InOrder => 0,
            Self::Strided => 1,
            Self::Random | Self::Replayed => 2,
            Self::Chase => 3,
        }
    }

    /// The pages that are touched, so many of all, in their order.
    pub(super) fn order(self, pages: u32, touched: u32) -> impl Iterator<Item = u32> {
        let next = move |at: &u32| {
            Some(match self {
                Self::InOrder => at + 1,
                Self::Strided => (at + 17) % pages,
                Self::Random | Self::Replayed => step(*at, pages, 1664525, 1013904223),
                Self::Chase => step(*at, pages, 22695477, 1),
            })
        };
        std::iter::successors(Some(0), next).take(touched as usize)
    }

    /// What the guest computes of them.
    pub(super) fn sum(self, pages: u32, touched: u32) -> i64 {
        let add = |sum: i64, page| sum.wrapping_mul(31).wrapping_add(first_word(page));
        self.order(pages, touched).fold(0, add)
    }

    /// In how many groups they are: what has to come, at least.
    pub(super) fn groups(self, pages: u32, touched: u32) -> usize {
        let group = |page| page / (GROUP_SIZE as usize / PAGE) as u32;
        self.order(pages, touched).map(group).collect::<HashSet<u32>>().len()
    }
}

/// The page behind `at` in an order of all of `pages`: a generator of full period, of whose numbers
/// those are left out that are no pages.
fn step(mut at: u32, pages: u32, factor: u32, term: u32) -> u32 {
    loop {
        at = at.wrapping_mul(factor).wrapping_add(term) & mask(pages);
        if at < pages {
            return at;
        }
    }
}

pub(super) fn mask(pages: u32) -> u32 {
    pages.next_power_of_two() - 1
}

/// A word of a page, but for the one that says where the next page is. Nothing compresses them.
fn word(page: u32, index: usize) -> u64 {
    let mut word = (u64::from(page) << 9 | index as u64).wrapping_add(0x9e37_79b9_7f4a_7c15);
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

/// The word that a page begins with.
pub(super) fn first_word(page: u32) -> i64 {
    word(page, 0) as i64
}

/// The bytes of a page of so many.
pub(super) fn fill(page: u32, pages: u32, into: &mut [u8]) {
    for (index, bytes) in into.chunks_exact_mut(8).enumerate() {
        let word = match index {
            1 => u64::from(step(page, pages, 22695477, 1)),
            index => word(page, index),
        };
        bytes.copy_from_slice(&word.to_le_bytes());
    }
}

/// # Panics
/// If a memory has other bytes than it should have.
pub(super) fn check(memory: &[u8], pages: u32) {
    for (page, found) in (0..pages).zip(memory.chunks_exact(PAGE)) {
        check_page(page, found, pages);
    }
}

/// # Panics
/// If one page has other bytes than it should have.
pub(super) fn check_page(page: u32, found: &[u8], pages: u32) {
    let mut expected = [0; PAGE];
    fill(page, pages, &mut expected);
    assert!(found == expected, "page {page} of {pages} is wrong");
}

/// The module whose memory has so many pages.
pub(super) fn module(pages: u32) -> String {
    let wasm_pages = pages.div_ceil(16);
    format!(
        r#"(module (memory (export "memory") {wasm_pages})
            (func (export "begin"))
            (func (export "word") (param $page i32) (result i64)
                (i64.load (i32.shl (local.get $page) (i32.const 12))))
            (func (export "touch") (param $pattern i32) (param $pages i32)
                (param $left i32) (param $mask i32)
                (result i64)
                (local $at i32) (local $address i32) (local $sum i64)
                (loop $again
                    (local.set $address (i32.shl (local.get $at) (i32.const 12)))
                    (local.set $sum (i64.add (i64.mul (local.get $sum) (i64.const 31))
                        (i64.load (local.get $address))))
                    (if (i32.eqz (local.get $pattern))
                        (then (local.set $at (i32.add (local.get $at) (i32.const 1)))))
                    (if (i32.eq (local.get $pattern) (i32.const 1))
                        (then (local.set $at (i32.rem_u
                            (i32.add (local.get $at) (i32.const 17)) (local.get $pages)))))
                    (if (i32.eq (local.get $pattern) (i32.const 2))
                        (then (loop $step
                            (local.set $at (i32.and (local.get $mask) (i32.add
                                (i32.mul (local.get $at) (i32.const 1664525))
                                (i32.const 1013904223))))
                            (br_if $step (i32.ge_u (local.get $at) (local.get $pages))))))
                    (if (i32.eq (local.get $pattern) (i32.const 3))
                        (then (local.set $at (i32.load offset=8 (local.get $address)))))
                    (local.set $left (i32.sub (local.get $left) (i32.const 1)))
                    (br_if $again (local.get $left)))
                (local.get $sum)))"#
    )
}
