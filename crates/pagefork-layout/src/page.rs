//! Host pages and Wasm pages; bytes become page indices here and nowhere else.

use std::ops::Range;

/// Bytes of a host page. Other page sizes are refused when an engine starts.
pub const PAGE_SIZE: u64 = 4096;

/// Bytes of a *wasm page*, the unit of `memory.size` and `memory.grow`.
pub const WASM_PAGE_SIZE: u64 = 65536;

/// Rounds a number of bytes up to whole host pages.
///
/// # Panics
/// If the result does not fit 64 bits.
pub const fn round_up(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(PAGE_SIZE).expect("a size beyond 64 bits")
}

/// Rounds a number of bytes down to whole host pages.
pub const fn round_down(bytes: u64) -> u64 {
    bytes & !(PAGE_SIZE - 1)
}

/// The host pages that a byte range touches, as byte offsets: start rounded
/// down, end rounded up.
pub const fn covering(range: Range<u64>) -> Range<u64> {
    round_down(range.start)..round_up(range.end)
}

/// Ranges in order, none of which touches another.
pub fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.dedup_by(|next, last| {
        let joins = next.start <= last.end;
        if joins {
            last.end = last.end.max(next.end);
        }
        joins
    });
    ranges
}

/// The parts of `ranges` that are in none of `others`. Both are ascending and apart.
pub fn without(ranges: &[Range<u64>], others: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut rest = Vec::new();
    let mut others = others.iter().peekable();
    for range in ranges {
        let mut at = range.start;
        while let Some(other) = others.peek().filter(|other| other.start < range.end) {
            if at < other.start {
                rest.push(at..other.start);
            }
            at = at.max(other.end);
            if other.end > range.end {
                // It may reach into the next one.
                break;
            }
            others.next();
        }
        if at < range.end {
            rest.push(at..range.end);
        }
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_overlap_or_touch_are_joined() {
        assert_eq!(joined(vec![8..9, 2..4, 4..6, 1..3, 8..8]), [1..6, 8..9]);
        assert_eq!(joined(vec![]), []);
    }

    #[test]
    fn rounding_keeps_whole_pages_and_covers_the_rest() {
        assert_eq!(round_up(0), 0);
        assert_eq!(round_up(1), PAGE_SIZE);
        assert_eq!(round_up(PAGE_SIZE), PAGE_SIZE);
        assert_eq!(round_down(PAGE_SIZE + 1), PAGE_SIZE);
        assert_eq!(covering(1..PAGE_SIZE + 1), 0..2 * PAGE_SIZE);
    }

    #[test]
    fn what_is_left_of_ranges_is_what_no_other_has() {
        let set = |bits: u32| {
            let one = |at: u64| (bits >> at & 1 == 1).then_some(at..at + 1);
            joined((0..8).filter_map(one).collect())
        };
        for ranges in 0..256 {
            for others in 0..256 {
                let rest = without(&set(ranges), &set(others));
                assert_eq!(joined(rest), set(ranges & !others), "{ranges:b} without {others:b}");
            }
        }
    }
}
