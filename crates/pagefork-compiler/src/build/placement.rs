//! Chooses where functions start. Processors fetch instructions in lines of 64 bytes, and an inner
//! loop that spans one line more than it has to takes up to half as long again. So a function with
//! short loops starts at a place in a line where its loops lie in as few lines as can be.
//!
//! The choice depends on the code of the module alone, so the same module is laid out the same
//! each time.

use std::collections::BTreeMap;

/// Bytes that a processor fetches instructions from at once.
const LINE: u32 = 64;

/// Where in a line functions can start.
const STEP: u32 = 16;

/// Functions without short loops start at multiples of this many bytes.
const USUAL: u32 = 32;

/// Longer loops gain too little.
const LOOP_MAX: u32 = 4 * LINE;

/// How much more a loop counts than one around it; as a power of two.
const DEPTH_SHIFT: u32 = 3;

/// Loops in more loops than this count the same.
const DEPTH_MAX: u32 = 6;

/// A loop in machine code, by the offset of its first byte and that behind its last.
type CodeLoop = (u32, u32);

/// The places in a line where a function may start: bit `i` is that `i * STEP` bytes into it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Starts(u32);

impl Starts {
    /// For a function of `size` bytes whose basic blocks start at `blocks`, in order, with control
    /// flow along `edges` between their starts.
    pub(crate) fn new(size: u32, blocks: &[u32], edges: &[(u32, u32)]) -> Self {
        let loops = weighed(&loops(size, blocks, edges));
        let places = (0..LINE).step_by(STEP as usize);
        if loops.is_empty() {
            return Self::at(places.filter(|at| at % USUAL == 0));
        }
        let least = places.clone().map(|at| excess(&loops, at)).min();
        Self::at(places.filter(|at| Some(excess(&loops, *at)) == least))
    }

    fn at(places: impl Iterator<Item = u32>) -> Self {
        Self(places.fold(0, |bits, at| bits | 1 << (at / STEP)))
    }

    /// The first place from `offset` on.
    pub(crate) fn next(self, offset: usize) -> usize {
        let mut places = (offset.next_multiple_of(STEP as usize)..).step_by(STEP as usize);
        let allowed = |place: &usize| self.0 >> (*place as u32 % LINE / STEP) & 1 != 0;
        places.find(allowed).expect("some place of each line is allowed")
    }
}

/// The loops that edges backwards close, ordered by start.
fn loops(size: u32, blocks: &[u32], edges: &[(u32, u32)]) -> Vec<CodeLoop> {
    let mut entered_from: BTreeMap<u32, u32> = BTreeMap::new();
    for &(from, to) in edges {
        let first = entered_from.entry(to).or_insert(from);
        *first = from.min(*first);
    }
    // Cold code behind a function goes back to where it came from: no loop, as the cold block is
    // entered from before what would be the loop's start.
    let closes = |from: u32, to: u32| {
        to == from || (to < from && entered_from.get(&from).is_some_and(|first| *first >= to))
    };
    let mut ends: BTreeMap<u32, u32> = BTreeMap::new();
    for &(from, to) in edges.iter().filter(|(from, to)| closes(*from, *to)) {
        let next = blocks.partition_point(|start| *start <= from);
        let end = blocks.get(next).copied().unwrap_or(size);
        let known = ends.entry(to).or_default();
        *known = end.max(*known);
    }
    ends.into_iter().collect()
}

/// The loops that are short enough, and how much each counts.
fn weighed(loops: &[CodeLoop]) -> Vec<(CodeLoop, u64)> {
    let mut around: Vec<u32> = Vec::new();
    let mut weighed = Vec::new();
    for &(start, end) in loops {
        while around.last().is_some_and(|outer_end| *outer_end < end) {
            around.pop();
        }
        let depth = (around.len() as u32).min(DEPTH_MAX);
        around.push(end);
        if end - start <= LOOP_MAX {
            weighed.push(((start, end), 1 << (depth * DEPTH_SHIFT)));
        }
    }
    weighed
}

/// In how many lines more than they must loops lie in a function that starts at `at`.
fn excess(loops: &[(CodeLoop, u64)], at: u32) -> u64 {
    let excess = |&((start, end), weight): &(CodeLoop, u64)| {
        let lines = (at + end - 1) / LINE - (at + start) / LINE + 1;
        u64::from(lines - (end - start).div_ceil(LINE)) * weight
    };
    loops.iter().map(excess).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start_of(size: u32, blocks: &[u32], edges: &[(u32, u32)]) -> u32 {
        Starts::new(size, blocks, edges).next(0) as u32
    }

    #[test]
    fn a_short_loop_lies_in_one_line() {
        for offset in 0..500 {
            for size in 1..=LINE - 15 {
                let (end, whole) = (offset + size, offset + size + 20);
                let edges = [(0, offset), (offset, offset)];
                let starts = Starts::new(whole, &[0, offset, end], &edges);
                for from in (0..LINE as usize).step_by(7) {
                    let first = starts.next(from) as u32 + offset;
                    assert_eq!(first / LINE, (first + size - 1) / LINE, "{offset} {size}");
                }
            }
        }
    }

    #[test]
    fn inner_loops_count_more() {
        // The outer loop lies in the fewest lines from 0 on, the inner one does from 16 on.
        let (blocks, edges) = ([0, 50, 70, 128], [(0, 50), (50, 50), (50, 70), (70, 0)]);
        assert_eq!(loops(140, &blocks, &edges), [(0, 128), (50, 70)]);
        assert_eq!(weighed(&[(0, 128), (50, 70)]), [((0, 128), 1), ((50, 70), 8)]);
        assert_eq!(start_of(140, &blocks, &edges), 16);
        // Without the inner one there is no reason to.
        assert_eq!(start_of(140, &blocks, &[(0, 50), (50, 70), (70, 0)]), 0);
    }

    #[test]
    fn code_without_short_loops_can_start_anywhere() {
        let any = Starts::at([0, USUAL].into_iter());
        assert_eq!(Starts::new(100, &[0, 20, 40], &[(0, 20), (0, 40), (20, 40)]), any);
        let long = LOOP_MAX + 10;
        assert_eq!(Starts::new(long + 9, &[0, 5, long], &[(0, 5), (5, 5), (5, long)]), any);
    }

    #[test]
    fn cold_code_is_no_loop() {
        // The block at 90 is entered from that at 10 and goes back to what follows it.
        let edges = [(0, 10), (10, 20), (10, 90), (20, 10), (20, 40), (90, 20)];
        assert_eq!(loops(99, &[0, 10, 20, 40, 90], &edges), [(10, 40)]);
    }

    #[test]
    fn starts_are_the_next_ones() {
        for offset in 0..300 {
            for bits in 1..16 {
                let place = Starts(bits).next(offset);
                assert!((offset..offset + LINE as usize + 15).contains(&place));
                assert!(bits >> (place % LINE as usize / 16) & 1 != 0 && place.is_multiple_of(16));
            }
        }
    }
}
