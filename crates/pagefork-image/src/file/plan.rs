//! Which pages a file has, and where: zeros are left out, and what lies near is joined.

use std::ops::Range;

use pagefork_layout::page::{self, PAGE_SIZE};

use crate::base::error::ImageError;
use crate::file::manifest::{Manifest, SavedSpan};
use crate::tree::GROUP_SIZE;

/// A full image has at most this many spans in each extent: each costs a slot two kernel maps.
/// Of more, the nearest are joined, with zeros between them.
pub const SPANS_PER_EXTENT_MAX: usize = 4;

/// Spans with at most this many bytes of zeros between them are joined. In the file such zeros are
/// a hole, and a slot has one map in place of three.
const JOINED_GAP: u64 = 1 << 20;

/// Bytes that are looked at together.
const BLOCK: usize = 256 << 10;

/// Whether all bytes are zero.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    const ZEROS: [u8; PAGE_SIZE as usize] = [0; _];
    bytes.chunks(ZEROS.len()).all(|chunk| chunk == &ZEROS[..chunk.len()])
}

/// Ascending ranges, where neighbours are one.
#[derive(Default)]
pub(crate) struct RangeList(pub(crate) Vec<Range<u64>>);

impl RangeList {
    /// Adds a range that starts at or behind the end of the last one.
    pub(crate) fn push(&mut self, range: Range<u64>) {
        match self.0.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => self.0.push(range),
        }
    }
}

/// Calls `each` with each page's offset and bytes, of ranges of whole pages. Those that `held` has are not read; from
/// one on that it has not, a block is read, whatever of that it has.
///
/// # Errors
/// What `read` fails with.
pub(crate) fn each_page<'a>(
    ranges: &[Range<u64>],
    held: impl Fn(u64) -> Option<&'a [u8]>,
    mut read: impl FnMut(u64, &mut [u8]) -> Result<(), ImageError>,
    mut each: impl FnMut(u64, &[u8]) -> Result<(), ImageError>,
) -> Result<(), ImageError> {
    let mut block = Vec::new();
    for range in ranges {
        let mut at = range.start;
        while at < range.end {
            if let Some(page) = held(at) {
                each(at, page)?;
                at += PAGE_SIZE;
                continue;
            }
            block.resize(BLOCK, 0);
            let length = (range.end - at).min(BLOCK as u64) as usize;
            let bytes = &mut block[..length];
            read(at, bytes)?;
            let places = (at..).step_by(PAGE_SIZE as usize);
            for (place, bytes) in places.zip(bytes.chunks(PAGE_SIZE as usize)) {
                each(place, bytes)?;
            }
            at += length as u64;
        }
    }
    Ok(())
}

/// The spans of a full image for pages that are not zero, which are ascending and each in one of
/// the extents.
pub(crate) fn spans(extents: &[Range<u64>], pages: &[Range<u64>]) -> Vec<SavedSpan> {
    let mut spans = Vec::new();
    let mut rest = pages;
    for extent in extents {
        let count = rest.partition_point(|range| range.start < extent.end);
        let (inside, behind) = rest.split_at(count);
        rest = behind;
        for range in join(inside) {
            let (start, size) = (range.start, range.end - range.start);
            spans.push(SavedSpan { start, size, data_offset: 0 });
        }
    }
    spans
}

/// The spans of a delta: its pages and nothing else.
pub(crate) fn dense_spans(pages: &[Range<u64>]) -> Vec<SavedSpan> {
    let span = |range: &Range<u64>| {
        let (start, size) = (range.start, range.end - range.start);
        SavedSpan { start, size, data_offset: 0 }
    };
    pages.iter().map(span).collect()
}

/// Joins ranges over all gaps but the widest ones.
fn join(ranges: &[Range<u64>]) -> Vec<Range<u64>> {
    let (Some(first), Some(last)) = (ranges.first(), ranges.last()) else { return Vec::new() };
    let mut gaps: Vec<Range<u64>> = ranges.windows(2).map(|two| two[0].end..two[1].start).collect();
    gaps.retain(|gap| gap.end - gap.start > JOINED_GAP);
    gaps.sort_by_key(|gap| std::cmp::Reverse(gap.end - gap.start));
    gaps.truncate(SPANS_PER_EXTENT_MAX - 1);
    gaps.sort_by_key(|gap| gap.start);
    let starts = std::iter::once(first.start).chain(gaps.iter().map(|gap| gap.end));
    let ends = gaps.iter().map(|gap| gap.start).chain([last.end]);
    starts.zip(ends).map(|(start, end)| start..end).collect()
}

/// Gives spans and attachments their places in the data, and the data their size. In a full image
/// groups begin at multiples of their size in the slot, so that two images of one program have
/// the same groups where they have the same pages; a delta is dense.
///
/// # Errors
/// [`ImageError::Invalid`] if there is more than 64 bits can count.
pub(crate) fn place(manifest: &mut Manifest) -> Result<(), ImageError> {
    let too_much = || ImageError::Invalid("an image cannot have that many bytes".to_owned());
    let is_delta = manifest.parent.is_some();
    let mut end = 0u64;
    let spans = manifest.instances.iter_mut().flat_map(|instance| &mut instance.spans);
    for span in spans {
        if !is_delta {
            let skipped = (span.start % GROUP_SIZE).wrapping_sub(end) % GROUP_SIZE;
            end = end.checked_add(skipped).ok_or_else(too_much)?;
        }
        span.data_offset = end;
        end = end.checked_add(span.size).ok_or_else(too_much)?;
    }
    for attachment in &mut manifest.attachments {
        attachment.data_offset = end;
        let size = attachment.size.checked_next_multiple_of(PAGE_SIZE).ok_or_else(too_much)?;
        end = end.checked_add(size).ok_or_else(too_much)?;
    }
    debug_assert_eq!(end, page::round_down(end), "all of it is whole pages");
    manifest.data_size = end;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn joined(ranges: &[Range<u64>]) -> Vec<Range<u64>> {
        spans(&[0..1000 * MIB], ranges).iter().map(SavedSpan::slot).collect()
    }

    #[test]
    fn near_pages_are_joined_and_far_ones_are_not() {
        assert_eq!(joined(&[]), []);
        let near = [4096..8192, MIB..MIB + 4096];
        assert_eq!(joined(&near), [4096..MIB + 4096]);
        let far = [0..4096, 4 * MIB..5 * MIB];
        assert_eq!(joined(&far), far);
    }

    #[test]
    fn of_many_only_the_widest_gaps_stay() {
        let gaps = [9, 2, 7, 3, 8, 4];
        let starts = gaps.iter().scan(0, |at, gap| {
            *at += gap * MIB + 4096;
            Some(*at)
        });
        let pages: Vec<_> = std::iter::once(0).chain(starts).map(|at| at..at + 4096).collect();
        let joined = joined(&pages);
        assert_eq!(joined.len(), SPANS_PER_EXTENT_MAX);
        let left = joined.windows(2).map(|two| (two[1].start - two[0].end) / MIB);
        assert_eq!(left.collect::<Vec<_>>(), [9, 7, 8]);
    }

    #[test]
    fn each_extent_has_spans_of_its_own() {
        let extents = [0..MIB, MIB..2 * MIB];
        let found = spans(&extents, &[MIB - 4096..MIB, MIB..MIB + 4096]);
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn groups_of_full_images_lie_in_files_as_in_slots() {
        let span = |start, size| SavedSpan { start, size, data_offset: 0 };
        let instance = crate::file::manifest::SavedInstance {
            spans: vec![span(4096, 4096), span(3 * MIB + 8192, 4096), span(9 * MIB, 4096)],
            ..Default::default()
        };
        let mut manifest = Manifest { instances: vec![instance], ..Manifest::default() };
        place(&mut manifest).unwrap();
        let offsets: Vec<u64> =
            manifest.instances[0].spans.iter().map(|span| span.data_offset).collect();
        assert_eq!(offsets, [4096, 8192, 16384]);
        manifest.parent = Some(Default::default());
        place(&mut manifest).unwrap();
        let spans = &manifest.instances[0].spans;
        assert!(spans.iter().map(|span| span.data_offset).eq([0, 4096, 8192]));
    }
}
