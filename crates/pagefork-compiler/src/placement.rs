//! Where functions start. Processors take instructions from lines of 64 bytes, and an inner loop
//! that spans one line more than it has to takes up to half as long again. So a function starts at
//! that place in a line where its loops lie in the fewest lines, the inner ones counting most.
//!
//! What is said depends on the code of the function alone, so the same module is laid out the same
//! each time.

use std::collections::BTreeMap;

/// The bytes that a processor takes instructions from at once.
const LINE: u32 = 64;

/// Places in a line where functions can start, the best for those without loops first.
const STARTS: [u32; 4] = [0, 32, 16, 48];

/// Longer loops gain nothing.
const LOOP_MAX: u32 = 4 * LINE;

/// How much more a loop counts than one around it; as a power of two.
const DEPTH_SHIFT: u32 = 3;

/// Loops in more loops than this count the same.
const DEPTH_MAX: u32 = 6;

/// A loop in machine code, by the offset of its first byte and that behind its last.
type Loop = (u32, u32);

/// Where in a line a function of `size` bytes is to start; `None` if it does not matter. Its
/// basic blocks start at `blocks`, in order, and control goes along `edges` between their starts.
pub(crate) fn start_in_line(size: u32, blocks: &[u32], edges: &[(u32, u32)]) -> Option<u32> {
    let weighed = weighed(&loops(size, blocks, edges));
    (!weighed.is_empty()).then(|| best_start(&weighed))
}

/// The first place from `at` on that is `start` bytes into a line.
pub(crate) fn next_place(at: usize, start: u32) -> usize {
    let start = start as usize;
    at.saturating_sub(start).next_multiple_of(LINE as usize) + start
}

/// What edges backwards lead around, ordered by start.
fn loops(size: u32, blocks: &[u32], edges: &[(u32, u32)]) -> Vec<Loop> {
    let mut ends: BTreeMap<u32, u32> = BTreeMap::new();
    for &(from, to) in edges.iter().filter(|(from, to)| to <= from) {
        let next = blocks.partition_point(|start| *start <= from);
        let end = blocks.get(next).copied().unwrap_or(size);
        let known = ends.entry(to).or_default();
        *known = end.max(*known);
    }
    ends.into_iter().collect()
}

/// How much each loop that is short enough counts.
fn weighed(loops: &[Loop]) -> Vec<(Loop, u64)> {
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

/// The start for which the loops lie in the fewest lines more than they must.
fn best_start(loops: &[(Loop, u64)]) -> u32 {
    let cost = |at: &u32| -> u64 {
        let excess = |&((start, end), weight): &(Loop, u64)| {
            let lines = (at + end - 1) / LINE - (at + start) / LINE + 1;
            u64::from(lines - (end - start).div_ceil(LINE)) * weight
        };
        loops.iter().map(excess).sum()
    };
    STARTS.into_iter().min_by_key(cost).expect("there are some")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_loop_lies_in_one_line() {
        for offset in 0..500 {
            for size in 1..=LINE - 15 {
                let (end, whole) = (offset + size, offset + size + 20);
                let start =
                    start_in_line(whole, &[0, offset, end], &[(0, offset), (offset, offset)]);
                let first = start.unwrap() + offset;
                assert_eq!(first / LINE, (first + size - 1) / LINE, "{offset} {size}");
            }
        }
    }

    #[test]
    fn inner_loops_count_more() {
        // The outer loop lies in the fewest lines from 0 on, the inner one does from 32 on.
        let (blocks, edges) = ([0, 50, 70, 128], [(0, 50), (50, 50), (50, 70), (70, 0)]);
        assert_eq!(loops(140, &blocks, &edges), [(0, 128), (50, 70)]);
        assert_eq!(weighed(&[(0, 128), (50, 70)]), [((0, 128), 1), ((50, 70), 8)]);
        assert_eq!(start_in_line(140, &blocks, &edges), Some(32));
        // Without the inner one there is no reason to.
        assert_eq!(start_in_line(140, &blocks, &[(70, 0)]), Some(0));
    }

    #[test]
    fn code_without_loops_can_start_anywhere() {
        assert_eq!(start_in_line(100, &[0, 20, 40], &[(0, 20), (0, 40), (20, 40)]), None);
    }

    #[test]
    fn places_are_the_next_ones() {
        for at in 0..300 {
            for start in STARTS {
                let place = next_place(at, start);
                assert!(place >= at && place % LINE as usize == start as usize);
                assert!(place < at + LINE as usize || at < start as usize, "{at} {start}");
            }
        }
    }
}
