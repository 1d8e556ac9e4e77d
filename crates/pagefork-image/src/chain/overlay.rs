//! Ranges that are laid one over the other.

use std::collections::BTreeMap;
use std::ops::Range;

/// Pages of an instance that are not as in the full image at the end of its chain.
/// [`ImageChain::overlay`](crate::ImageChain::overlay) gives them.
///
/// # Examples
///
/// ```
/// use pagefork_image::{OverlayContents, OverlayRun};
///
/// let run = OverlayRun { slot: 4096..8192, contents: OverlayContents::Zero };
/// assert_eq!(run.slot.end - run.slot.start, 4096);
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OverlayRun {
    /// Slot offsets: whole pages.
    pub slot: Range<u64>,
    /// What they are.
    pub contents: OverlayContents,
}

/// What pages of an [`OverlayRun`] are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OverlayContents {
    /// Zeros.
    Zero,
    /// Bytes of a file.
    Data {
        /// Which of [`ImageChain::images`](crate::ImageChain::images) has them.
        image: usize,
        /// Where they lie in its data.
        data_offset: u64,
    },
}

impl OverlayContents {
    /// The contents of what begins `bytes` later.
    fn advanced(self, bytes: u64) -> Self {
        match self {
            Self::Zero => Self::Zero,
            Self::Data { image, data_offset } => {
                Self::Data { image, data_offset: data_offset + bytes }
            }
        }
    }
}

/// Runs by their starts: apart, none empty.
#[derive(Default)]
pub(crate) struct Overlay(BTreeMap<u64, (u64, OverlayContents)>);

impl Overlay {
    /// Lays a range over what there is.
    pub(crate) fn put(&mut self, range: Range<u64>, contents: OverlayContents) {
        if range.is_empty() {
            return;
        }
        let reaching = self.0.range(..range.start).next_back();
        if let Some((&start, &(end, old))) = reaching.filter(|(_, (end, _))| *end > range.start) {
            self.0.insert(start, (range.start, old));
            if end > range.end {
                self.0.insert(range.end, (end, old.advanced(range.end - start)));
            }
        }
        while let Some((&start, &(end, old))) = self.0.range(range.clone()).next() {
            self.0.remove(&start);
            if end > range.end {
                self.0.insert(range.end, (end, old.advanced(range.end - start)));
            }
        }
        self.0.insert(range.start, (range.end, contents));
    }

    /// All runs, ascending.
    pub(crate) fn into_runs(self) -> Vec<OverlayRun> {
        let run = |(start, (end, contents))| OverlayRun { slot: start..end, contents };
        self.0.into_iter().map(run).collect()
    }

    /// All that is in any of some ranges: ascending, apart. Ranges that only touch stay as they
    /// are, because they can lie in different extents.
    pub(crate) fn union(ranges: impl IntoIterator<Item = Vec<Range<u64>>>) -> Vec<Range<u64>> {
        let mut all: Vec<Range<u64>> = ranges.into_iter().flatten().collect();
        all.sort_unstable_by_key(|range| range.start);
        let mut union: Vec<Range<u64>> = Vec::new();
        for next in all {
            match union.last_mut() {
                Some(last) if next.start < last.end => last.end = last.end.max(next.end),
                _ => union.push(next),
            }
        }
        union
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_holds_and_the_rest_stays() {
        let data = |data_offset| OverlayContents::Data { image: 1, data_offset };
        let mut overlay = Overlay::default();
        overlay.put(10..50, data(100));
        overlay.put(20..30, OverlayContents::Zero);
        overlay.put(45..60, data(500));
        overlay.put(0..12, data(0));
        let runs = overlay.into_runs();
        let expected = [
            (0..12, data(0)),
            (12..20, data(102)),
            (20..30, OverlayContents::Zero),
            (30..45, data(120)),
            (45..60, data(500)),
        ];
        let expected = expected.map(|(slot, contents)| OverlayRun { slot, contents });
        assert_eq!(runs, expected);
    }

    /// Against a list of what holds at each place.
    #[test]
    fn any_order_of_ranges_is_as_the_model_says() {
        let mut seed = 7u64;
        let mut random = move |below: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % below
        };
        for _ in 0..300 {
            let (mut overlay, mut model) = (Overlay::default(), [None; 64]);
            for step in 0..random(20) {
                let start = random(64);
                let range = start..start + random(64 - start + 1);
                let contents = match random(3) {
                    0 => OverlayContents::Zero,
                    _ => OverlayContents::Data { image: 0, data_offset: step * 1000 },
                };
                overlay.put(range.clone(), contents);
                for at in range {
                    model[at as usize] = Some(contents.advanced(at - start));
                }
            }
            let mut found = [None; 64];
            for run in overlay.into_runs() {
                for at in run.slot.clone() {
                    assert!(found[at as usize].is_none(), "runs overlap");
                    found[at as usize] = Some(run.contents.advanced(at - run.slot.start));
                }
            }
            assert_eq!(found, model);
        }
    }
}
