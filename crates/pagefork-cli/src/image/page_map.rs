//! Pages of an image, drawn: a character for a page, or for as many as fit a few lines.

use std::ops::Range;

use pagefork::image::{ImageChain, ImageError, OverlayContents, PAGE_SIZE};

use crate::show;

/// Characters of a line.
const COLUMNS: u64 = 64;

/// Lines of a map at most.
const LINES_MAX: u64 = 32;

/// What is drawn for pages, by how much it says: where a character stands for many pages, the one
/// that says most is drawn.
const GLYPHS: [(char, &str); 5] = [
    (' ', "nothing"),
    ('.', "zeros"),
    ('o', "of an ancestor"),
    ('z', "zeros here, other bytes in an ancestor"),
    ('#', "in this file"),
];

const NOTHING: u8 = 0;
const ZEROS: u8 = 1;
const OF_ANCESTOR: u8 = 2;
const ZEROED: u8 = 3;
const OWN: u8 = 4;

/// Which pages an instance has, and from where.
pub(super) fn contents(chain: &ImageChain, instance: usize) -> Result<String, ImageError> {
    let saved = &chain.tip().manifest().instances[instance];
    let Some(extent) = saved.extents.first().zip(saved.extents.last()) else {
        return Ok(String::new());
    };
    let mut map = PageMap::new(extent.0.start..extent.1.end);
    for extent in &saved.extents {
        map.mark(extent, ZEROS);
    }
    if let Some(root) = chain.root_instance(instance) {
        let level = if chain.images().len() == 1 { OWN } else { OF_ANCESTOR };
        for span in &chain.root().manifest().instances[root].spans {
            map.mark(&span.slot(), level);
        }
    }
    for run in chain.overlay(instance) {
        let level = match run.contents {
            OverlayContents::Zero => ZEROED,
            OverlayContents::Data { image: 0, .. } => OWN,
            OverlayContents::Data { .. } => OF_ANCESTOR,
        };
        map.mark(&run.slot, level);
    }
    Ok(map.draw())
}

/// Which pages of an instance differ.
pub(super) fn differences(
    chain: &ImageChain,
    other: &ImageChain,
    instance: usize,
    differing: &[Range<u64>],
) -> String {
    let extents = |chain: &ImageChain| {
        let extents = &chain.tip().manifest().instances[instance].extents;
        extents.first().zip(extents.last()).map(|(first, last)| first.start..last.end)
    };
    let both = [extents(chain), extents(other)];
    let Some(all) = both
        .into_iter()
        .flatten()
        .reduce(|one, other| one.start.min(other.start)..one.end.max(other.end))
    else {
        return String::new();
    };
    if differing.is_empty() {
        return String::new();
    }
    let mut map = PageMap::new(all.clone());
    map.mark(&all, ZEROS);
    for range in differing {
        map.mark(range, OWN);
    }
    map.draw_with(|level| match level {
        OWN => Some(('#', "differ")),
        ZEROS => Some(('.', "equal")),
        _ => None,
    })
}

/// A picture of a range of slot offsets.
struct PageMap {
    range: Range<u64>,
    /// Pages that a character stands for.
    pages: u64,
    levels: Vec<u8>,
}

impl PageMap {
    fn new(range: Range<u64>) -> Self {
        let count = (range.end - range.start) / PAGE_SIZE;
        let pages = count.div_ceil(COLUMNS * LINES_MAX).next_power_of_two();
        Self { range, pages, levels: vec![NOTHING; count.div_ceil(pages) as usize] }
    }

    fn mark(&mut self, range: &Range<u64>, level: u8) {
        let start = (range.start.max(self.range.start) - self.range.start) / PAGE_SIZE;
        let end =
            (range.end.min(self.range.end).max(self.range.start) - self.range.start) / PAGE_SIZE;
        if start < end {
            let places = (start / self.pages) as usize..end.div_ceil(self.pages) as usize;
            // Alone, a page shows what it is last; with others, what says most.
            for place in &mut self.levels[places] {
                *place = if self.pages == 1 { level } else { level.max(*place) };
            }
        }
    }

    fn draw(&self) -> String {
        self.draw_with(|level| GLYPHS.get(usize::from(level)).copied())
    }

    fn draw_with(&self, glyph: impl Fn(u8) -> Option<(char, &'static str)>) -> String {
        let mut text = String::new();
        let step = COLUMNS * self.pages * PAGE_SIZE;
        let starts = (self.range.start..).step_by(usize::try_from(step).unwrap_or(usize::MAX));
        let draw = |level: &u8| glyph(*level).map_or(' ', |(glyph, _)| glyph);
        let mut last = None;
        for (start, line) in starts.zip(self.levels.chunks(COLUMNS as usize)) {
            // Lines that are all alike are drawn once.
            let is_even =
                line.len() == COLUMNS as usize && line.iter().all(|level| *level == line[0]);
            match last.replace(is_even.then_some(line[0])) {
                Some(Some(before)) if is_even && before == line[0] => {
                    if !text.ends_with("*\n") {
                        text += "  *\n";
                    }
                }
                _ => {
                    let line: String = line.iter().map(draw).collect();
                    text += &format!("  {start:>12x} |{line}|\n");
                }
            }
        }
        let used = (NOTHING + 1..=OWN).filter(|level| self.levels.contains(level));
        let legend: Vec<String> =
            used.filter_map(&glyph).map(|(glyph, meaning)| format!("{glyph} {meaning}")).collect();
        let scale = show::size(self.pages * PAGE_SIZE);
        text + &format!("  each character is {scale}: {}\n", legend.join(", "))
    }
}
