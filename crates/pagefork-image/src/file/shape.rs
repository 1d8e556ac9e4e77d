//! Checks of a manifest: that its pages and attachments lie where they can lie.

use std::ops::Range;

use pagefork_layout::page::PAGE_SIZE;

use crate::base::error::ImageError;
use crate::base::limits::{self, ImageLimits};
use crate::file::holder;
use crate::file::manifest::{Manifest, SavedInstance};
use crate::file::plan::SPANS_PER_EXTENT_MAX;
use crate::tree::GROUP_SIZE;

/// # Errors
/// [`ImageError::Damaged`] if the manifest's pages are not in one order, overlap, lie outside of
/// extents or data, or if it names instances that it has not.
pub(crate) fn check(manifest: &Manifest, limits: &ImageLimits) -> Result<(), ImageError> {
    limits::check("data", manifest.data_size, limits.data_size)?;
    let count = manifest.instances.len() as u64;
    let ordinals = manifest.suspension.iter().flat_map(|at| [at.ordinal, at.stack_owner]);
    if u64::from(manifest.main) > count
        || ordinals.into_iter().any(|ordinal| ordinal == 0 || u64::from(ordinal) > count)
    {
        return Err(ImageError::damaged("it names an instance that it has not"));
    }
    if let Some(wrong) = holder::wrong_of(&manifest.holders) {
        return Err(ImageError::damaged(wrong));
    }
    let mut placer = Placer { end: 0 };
    for instance in &manifest.instances {
        check_instance(instance, manifest.parent.is_some())?;
        for span in &instance.spans {
            placer.take(span.data_offset, span.size)?;
        }
    }
    for attachment in &manifest.attachments {
        placer.take(attachment.data_offset, attachment.size)?;
    }
    match placer.end == manifest.data_size {
        true => Ok(()),
        false => Err(ImageError::damaged("its data have another size than all of its parts")),
    }
}

/// Walks through the data, in which parts follow each other with less than a group between them.
struct Placer {
    end: u64,
}

impl Placer {
    fn take(&mut self, start: u64, size: u64) -> Result<(), ImageError> {
        let end = start.checked_add(size).and_then(|end| end.checked_next_multiple_of(PAGE_SIZE));
        match end {
            Some(end)
                if start >= self.end
                    && start - self.end < GROUP_SIZE
                    && start.is_multiple_of(PAGE_SIZE) =>
            {
                self.end = end;
                Ok(())
            }
            _ => Err(ImageError::damaged("its data are in no order")),
        }
    }
}

fn check_instance(instance: &SavedInstance, is_delta: bool) -> Result<(), ImageError> {
    let wrong = |what: &str| Err(ImageError::damaged(what.to_owned()));
    if !are_pages(&instance.extents) || !are_pages(&instance.zeroed) {
        return wrong("ranges of an instance are not ascending whole pages");
    }
    let spans = || instance.spans.iter().map(|span| (span.start, span.size));
    if spans().any(|(start, size)| start.checked_add(size).is_none()) {
        return wrong("a span of an instance has no end");
    }
    let spans: Vec<Range<u64>> = spans().map(|(start, size)| start..start + size).collect();
    if !are_pages(&spans) || !lie_in(&spans, &instance.extents) {
        return wrong("spans of an instance are not ascending whole pages of it");
    }
    if !lie_in(&instance.zeroed, &instance.extents) || overlap(&spans, &instance.zeroed) {
        return wrong("zeroed pages of an instance are not its own");
    }
    if is_delta {
        return Ok(());
    }
    if instance.parent_instance.is_some() || !instance.zeroed.is_empty() {
        return wrong("an instance of a full image has a parent");
    }
    let count = |extent: &Range<u64>| {
        let first = spans.partition_point(|span| span.start < extent.start);
        spans[first..].iter().take_while(|span| span.start < extent.end).count()
    };
    match instance.extents.iter().all(|extent| count(extent) <= SPANS_PER_EXTENT_MAX) {
        true => Ok(()),
        false => wrong("an instance of a full image has too many spans"),
    }
}

/// Whether the ranges are whole pages, ascending and apart, none empty.
pub(crate) fn are_pages(ranges: &[Range<u64>]) -> bool {
    let is_page = |place: &u64| place.is_multiple_of(PAGE_SIZE);
    ranges
        .iter()
        .all(|range| range.start < range.end && is_page(&range.start) && is_page(&range.end))
        && ranges.is_sorted_by(|range, next| range.end <= next.start)
}

/// Whether each range lies in one of `outer`, which are ascending and apart.
pub(crate) fn lie_in(ranges: &[Range<u64>], outer: &[Range<u64>]) -> bool {
    ranges.iter().all(|range| {
        let index = outer.partition_point(|outer| outer.end < range.end);
        outer.get(index).is_some_and(|outer| outer.start <= range.start && range.end <= outer.end)
    })
}

/// Whether any of two lists have a byte in common, both of which are ascending and apart.
fn overlap(ranges: &[Range<u64>], others: &[Range<u64>]) -> bool {
    others.iter().any(|other| {
        let index = ranges.partition_point(|range| range.end <= other.start);
        ranges.get(index).is_some_and(|range| range.start < other.end)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::hash::ContentHash;
    use crate::file::manifest::{Attachment, SavedSpan, SavedSuspension};

    fn span(start: u64, size: u64, data_offset: u64) -> SavedSpan {
        SavedSpan { start, size, data_offset }
    }

    fn manifest(spans: Vec<SavedSpan>, data_size: u64) -> Manifest {
        let extents = vec![0..1 << 20, 2 << 20..3 << 20];
        let instance = SavedInstance { extents, spans, ..SavedInstance::default() };
        Manifest { instances: vec![instance], data_size, ..Manifest::default() }
    }

    fn is_good(manifest: &Manifest) -> bool {
        check(manifest, &ImageLimits::default()).is_ok()
    }

    #[test]
    fn pages_in_order_are_accepted() {
        assert!(is_good(&Manifest::default()));
        assert!(is_good(&manifest(
            vec![span(4096, 8192, 4096), span(2 << 20, 4096, 16384)],
            20480
        )));
        let mut delta = manifest(vec![span(4096, 4096, 0)], 4096);
        delta.parent = Some(ContentHash::default());
        delta.instances[0].parent_instance = Some(0);
        delta.instances[0].zeroed = vec![0..4096, 8192..12288];
        assert!(is_good(&delta));
        let attachment = |data_offset| Attachment { size: 1, data_offset, ..Attachment::default() };
        delta.attachments = vec![attachment(4096), attachment(8192)];
        delta.data_size = 12288;
        assert!(is_good(&delta));
    }

    #[test]
    fn what_lies_elsewhere_or_in_another_order_is_refused() {
        let spans = [
            vec![span(1, 4096, 0)],
            vec![span(0, 4095, 0)],
            vec![span(0, 0, 0)],
            vec![span(0, 4096, 1)],
            vec![span(1 << 20, 4096, 0)],
            vec![span((1 << 20) - 4096, 8192, 0)],
            vec![span(u64::MAX - 4095, 4096, 0)],
            vec![span(0, u64::MAX - 4095, 4096)],
            vec![span(0, 4096, u64::MAX - 4095)],
            vec![span(0, 4096, GROUP_SIZE)],
            vec![span(4096, 4096, 0), span(0, 4096, 4096)],
            vec![span(0, 8192, 0), span(4096, 4096, 8192)],
            vec![span(0, 4096, 4096), span(8192, 4096, 0)],
            vec![span(0, 4096, 0), span(8192, 4096, 0)],
            (0..5).map(|index| span(index * 8192, 4096, index * 4096)).collect(),
        ];
        for spans in spans {
            for size in [0, 4096, 8192, 12288, 20480] {
                assert!(!is_good(&manifest(spans.clone(), size)), "{spans:?} in {size}");
            }
        }
        assert!(!is_good(&manifest(vec![], 4096)));
    }

    #[test]
    fn a_full_image_derives_from_nothing() {
        let mut full = manifest(vec![], 0);
        full.instances[0].parent_instance = Some(0);
        assert!(!is_good(&full));
        full.instances[0].parent_instance = None;
        full.instances[0].zeroed = vec![0..4096];
        assert!(!is_good(&full));
    }

    #[test]
    fn zeroed_pages_are_pages_of_the_instance_without_contents() {
        for zeroed in [vec![0..1], vec![4096..8192], vec![(1 << 20)..(2 << 20)], vec![8192..8192]] {
            let mut delta = manifest(vec![span(4096, 4096, 0)], 4096);
            delta.parent = Some(ContentHash::default());
            delta.instances[0].zeroed = zeroed.clone();
            assert!(!is_good(&delta), "{zeroed:?}");
        }
    }

    #[test]
    fn instances_that_are_not_there_are_refused() {
        let mut manifest = manifest(vec![], 0);
        manifest.main = 2;
        assert!(!is_good(&manifest));
        manifest.main = 1;
        assert!(is_good(&manifest));
        for (ordinal, stack_owner) in [(0, 1), (1, 0), (2, 1), (1, 2)] {
            let suspension = SavedSuspension { ordinal, stack_owner, ..SavedSuspension::default() };
            manifest.suspension = Some(suspension);
            assert!(!is_good(&manifest));
        }
    }
}
