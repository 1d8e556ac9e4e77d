//! Pages of captured stores on their way into images, and of images on their way into slots.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use pagefork_image::{ImageChain, ImageError, OverlayContents, OverlayRun, PageSource, ReadAt};
use pagefork_layout::page::{PAGE_SIZE, joined};
use pagefork_pages::{BRANCH_PAGES_MAX, FileSpan, HeldRun, Image, IncompletePages};

use crate::base::error::{Error, Result, SnapshotError};
use crate::run::contents::ExpectedSlots;
use crate::run::load::StoredPages;
use crate::store::frozen::Frozen;

/// The pages of a captured store, for the writer of an image.
pub(crate) struct CapturedPages<'a> {
    pub(crate) frozen: &'a Frozen,
    /// What it is to be a delta of: with the number of the instance that each is compared with.
    pub(crate) parent: Option<ParentPages<'a>>,
    /// The bytes of attachments, in their order.
    pub(crate) attached: &'a [&'a dyn ReadAt],
}

/// What an image is a delta of.
pub(crate) struct ParentPages<'a> {
    pub(crate) frozen: &'a Frozen,
    pub(crate) chain: &'a ImageChain,
    /// By instance.
    pub(crate) instances: Vec<Option<u32>>,
}

impl PageSource for CapturedPages<'_> {
    fn ranges(&self, instance: usize) -> Result<Vec<Range<u64>>, ImageError> {
        let image = &self.frozen.instances[instance].image;
        let failed = |error| ImageError::source_failed(Error::from(error));
        let Some(parent) = &self.parent else { return image.contents().map_err(failed) };
        let Some(number) = parent.instances[instance] else {
            return image.contents().map_err(failed);
        };
        let before = &parent.frozen.instances[number as usize].image;
        if let Some(changed) = changed_between(before, image) {
            return Ok(joined(changed.into_iter().map(|page| page..page + PAGE_SIZE).collect()));
        }
        // What either has is compared.
        let mut ranges = image.contents().map_err(failed)?;
        ranges.extend(parent.chain.ranges(number as usize)?);
        Ok(joined(ranges))
    }

    /// What was captured of the parent's own slot says which pages are otherwise: it has compared them.
    fn has_all(&self, instance: usize) -> bool {
        let Some(parent) = &self.parent else { return false };
        let Some(number) = parent.instances[instance] else { return false };
        let before = &parent.frozen.instances[number as usize].image;
        self.frozen.instances[instance].image.changed_since(before).is_some()
    }

    fn read(&self, instance: usize, offset: u64, into: &mut [u8]) -> Result<(), ImageError> {
        let read = self.frozen.instances[instance].image.read(offset, into);
        read.map_err(|error| ImageError::source_failed(Error::from(error)))
    }

    fn held(&self, instance: usize, offset: u64, length: u64) -> Option<&[u8]> {
        self.frozen.instances[instance].image.held(offset, length)
    }

    fn read_attachment(
        &self,
        index: usize,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), ImageError> {
        let read = self.attached[index].read_exact_at(into, offset);
        read.map_err(ImageError::source_failed)
    }
}

/// Slot offsets of the pages in which two images can differ that descend from one; `None` if they do
/// not, as far as is known.
fn changed_between(before: &Arc<Image>, image: &Arc<Image>) -> Option<Vec<u64>> {
    let mut ancestor = before;
    loop {
        if let Some(mut changed) = image.changed_since(ancestor) {
            changed.extend(before.changed_since(ancestor)?);
            return Some(changed);
        }
        ancestor = ancestor.parent()?;
    }
}

/// The pages of an image with its ancestors. Those of the full image at the end are mapped, and
/// those in which the others differ from it are copied.
pub(crate) struct ChainPages<'a> {
    pub(crate) chain: &'a ImageChain,
    /// The pages of a full image that may be absent.
    pub(crate) incomplete: Option<&'a Arc<IncompletePages>>,
    /// What was loaded of the parent of the image.
    pub(crate) over: Option<&'a Frozen>,
    /// What is laid over that.
    pub(crate) slots: ExpectedSlots,
}

impl ChainPages<'_> {
    /// Whether an image is to be made whole before it is mapped: in more pages than a slot should
    /// have copies of it differs from the full image at the end of its chain.
    pub(crate) fn is_to_be_squashed(&self) -> bool {
        (0..self.chain.tip().manifest().instances.len()).any(|instance| {
            let runs = self.chain.overlay(instance);
            let bytes: u64 = runs.iter().map(|run| run.slot.end - run.slot.start).sum();
            bytes / PAGE_SIZE > BRANCH_PAGES_MAX as u64
        })
    }
}

impl ChainPages<'_> {
    /// What differs from an image that was made of the parent, laid over that; `None` if there is none, or
    /// the instance does not come from one of it.
    fn image_over_parent(
        &self,
        instance: usize,
        name: &str,
        base: u64,
        held: &[(u64, &[u8])],
    ) -> Result<Option<Arc<Image>>> {
        let Some(over) = self.over else { return Ok(None) };
        let saved = &self.chain.tip().manifest().instances[instance];
        let number = saved.parent_instance.map(|number| number as usize);
        let Some(parent) = number.and_then(|number| over.instances.get(number)) else {
            return Ok(None);
        };
        let (parent, extents) = (&parent.image, self.extents(instance));
        let holds = |inner: &Range<u64>| {
            extents.iter().any(|outer| outer.start <= inner.start && inner.end <= outer.end)
        };
        if !parent.extents().iter().all(holds) {
            return Ok(None);
        }
        let mut runs: Vec<HeldRun> = Vec::new();
        let own = |(offset, bytes): (u64, Vec<u8>)| HeldRun {
            offset,
            part: 0..bytes.len(),
            bytes: Arc::new(bytes),
        };
        // Below the base lies what was checked, and zeros.
        for extent in extents.iter().filter(|extent| extent.start < base) {
            let below = extent.start..extent.end.min(base);
            let mut bytes = vec![0; (below.end - below.start) as usize];
            for (offset, page) in held.iter().filter(|(offset, _)| below.contains(offset)) {
                bytes[(offset - below.start) as usize..][..page.len()].copy_from_slice(page);
            }
            let mut before = vec![0; bytes.len()];
            parent.read(below.start, &mut before)?;
            runs.extend(differing(below.start, bytes, &before));
        }
        for span in &saved.spans {
            let (slot, data_offset) = (span.slot(), span.data_offset);
            let start = slot.start.max(base);
            if start >= slot.end {
                continue;
            }
            let in_data = data_offset + (start - slot.start);
            match self.chain.tip().shared_data(in_data, slot.end - start) {
                Some((bytes, part)) => {
                    runs.push(HeldRun { offset: start, bytes: Arc::clone(bytes), part });
                }
                None => {
                    let contents = OverlayContents::Data { image: 0, data_offset };
                    let run = OverlayRun { slot, contents };
                    runs.extend(self.read_above(&run, base)?.map(own));
                }
            }
        }
        for slot in saved.zeroed.iter().cloned() {
            let run = OverlayRun { slot, contents: OverlayContents::Zero };
            runs.extend(self.read_above(&run, base)?.map(own));
        }
        runs.sort_unstable_by_key(|run| run.offset);
        let extents = extents.clone();
        Ok(Some(match self.slots {
            ExpectedSlots::One => Image::of_shared_changes(parent, name, extents, &runs)?,
            ExpectedSlots::Many => {
                let runs = runs.iter().map(|run| (run.offset, &run.bytes[run.part.clone()]));
                Image::branch(parent, name, extents, runs)?
            }
        }))
    }

    /// The part of a run that lies above the base, if there is one.
    fn read_above(&self, run: &OverlayRun, base: u64) -> Result<Option<(u64, Vec<u8>)>> {
        let start = run.slot.start.max(base);
        if start >= run.slot.end {
            return Ok(None);
        }
        let mut bytes = vec![0; (run.slot.end - run.slot.start) as usize];
        self.chain.read_run(run, &mut bytes)?;
        bytes.drain(..(start - run.slot.start) as usize);
        Ok(Some((start, bytes)))
    }
}

/// The pages from a slot offset on that are not as they were before: what is as it was is no change, which
/// each slot would have a copy of.
fn differing(start: u64, bytes: Vec<u8>, before: &[u8]) -> Vec<HeldRun> {
    const PAGE: usize = PAGE_SIZE as usize;
    let bytes = Arc::new(bytes);
    let mut runs: Vec<HeldRun> = Vec::new();
    for (at, (page, old)) in (0..).step_by(PAGE).zip(bytes.chunks(PAGE).zip(before.chunks(PAGE))) {
        if page == old {
            continue;
        }
        match runs.last_mut() {
            Some(last) if last.part.end == at => last.part.end += page.len(),
            _ => {
                let part = at..at + page.len();
                runs.push(HeldRun { offset: start + at as u64, bytes: Arc::clone(&bytes), part });
            }
        }
    }
    runs
}

impl StoredPages for ChainPages<'_> {
    fn extents(&self, instance: usize) -> Vec<Range<u64>> {
        self.chain.tip().manifest().instances[instance].extents.clone()
    }

    fn read(&self, instance: usize, offset: u64, into: &mut [u8]) -> Result<()> {
        Ok(self.chain.read(instance, offset, into)?)
    }

    fn image(
        &self,
        instance: usize,
        name: &str,
        base: u64,
        held: &[(u64, &[u8])],
    ) -> Result<Arc<Image>> {
        if let Some(image) = self.image_over_parent(instance, name, base, held)? {
            return Ok(image);
        }
        let (root, extents) = (self.chain.root(), self.extents(instance));
        let in_root = self.chain.root_instance(instance);
        let saved = in_root.map(|number| &root.manifest().instances[number].spans[..]);
        // What is absent has a file of its own.
        let data_start = self.incomplete.map_or_else(|| root.data_start(), |_| 0);
        let mut spans = Vec::new();
        for span in saved.unwrap_or_default() {
            let slot = span.slot();
            let start = slot.start.max(base);
            if start < slot.end {
                let file_offset = data_start + span.data_offset + (start - slot.start);
                spans.push(FileSpan { slot: start..slot.end, file_offset });
            }
        }
        let held = held.iter().copied();
        let image = match (self.incomplete, root.file()) {
            _ if spans.is_empty() => Image::with_extents(name, extents.clone(), held)?,
            (Some(pages), _) => Image::from_incomplete(pages, name, extents.clone(), &spans, held)?,
            (None, Some(file)) => {
                let file: OwnedFd = file.try_clone()?.into();
                Image::from_file_spans(file, name, extents.clone(), &spans, held)?
            }
            (None, None) => {
                let why = "its pages are in no file that can be mapped";
                return Err(SnapshotError::inconsistent(why).into());
            }
        };
        let mut runs: Vec<(u64, Vec<u8>)> = Vec::new();
        for run in self.chain.overlay(instance) {
            runs.extend(self.read_above(&run, base)?);
        }
        if runs.is_empty() {
            return Ok(image);
        }
        let runs = runs.iter().map(|(offset, bytes)| (*offset, &bytes[..]));
        Ok(Image::branch(&image, name, extents, runs)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_are_as_before_are_no_changes() {
        let before = vec![1; 8 * PAGE_SIZE as usize];
        let mut bytes = before.clone();
        assert!(differing(1 << 16, bytes.clone(), &before).is_empty());
        for page in [1, 2, 5] {
            bytes[page * PAGE_SIZE as usize + 9] = 2;
        }
        let runs = differing(1 << 16, bytes.clone(), &before);
        let found: Vec<_> = runs
            .iter()
            .map(|run| ((run.offset - (1 << 16)) / PAGE_SIZE, run.part.len() as u64 / PAGE_SIZE))
            .collect();
        assert_eq!(found, [(1, 2), (5, 1)]);
        assert!(runs.iter().all(|run| {
            let start = (run.offset - (1 << 16)) as usize;
            run.bytes[run.part.clone()] == bytes[start..start + run.part.len()]
        }));
    }

    #[test]
    fn images_that_descend_from_one_are_compared_where_either_has_changed() {
        let whole = 0..1 << 20;
        let extents = || vec![whole.clone()];
        let page = |page: u64, byte: u8| (page * PAGE_SIZE, vec![byte; PAGE_SIZE as usize]);
        let branch = |of: &Arc<Image>, (offset, bytes): (u64, Vec<u8>)| {
            Image::branch(of, "branch", extents(), [(offset, &bytes[..])]).unwrap()
        };
        let root = Image::new("root", whole.clone(), [(0, &[1; 1 << 20][..])]).unwrap();
        let [first, second] = [branch(&root, page(3, 2)), branch(&root, page(5, 2))];
        let third = branch(&second, page(9, 4));
        let changed = |before, image| {
            changed_between(before, image)
                .map(|pages| pages.into_iter().map(|page| page / PAGE_SIZE).collect::<Vec<_>>())
        };
        assert_eq!(changed(&root, &root), Some(vec![]));
        assert_eq!(changed(&root, &third), Some(vec![5, 9]));
        assert_eq!(changed(&first, &third), Some(vec![5, 9, 3]));
        assert_eq!(changed(&third, &second), Some(vec![9]));
        let other = Image::new("other", whole, [(0, &[1; 4096][..])]).unwrap();
        assert_eq!(changed(&other, &third), None);
    }
}
