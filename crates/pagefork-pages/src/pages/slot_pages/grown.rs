//! Memories that grow in files of their own, or by pages that are served. What lies there is no page of
//! an image: resets do not find, restore or discard it page by page, but empty it at once.

use std::ops::Range;

use pagefork_layout::page::joined;

use super::{Condition, SlotPages};
use crate::os::error::{Absence, AbsentPage, PagesError};
use crate::os::pagemap::{Finder, Method};
use crate::os::sys::CallFailure;
use crate::pages::growth::{GrowthChoice, GrowthKind, GrowthReason};
use crate::pages::growth_file::GrowthFile;
use crate::pages::zones::MemorySize;

/// The files of a slot's memories.
#[derive(Debug, Default)]
pub(super) struct GrowthFiles {
    /// One place for each memory; none at all where memories grow otherwise.
    files: Vec<Option<GrowthFile>>,
    /// Why a memory that can grow has none.
    why_not: Option<GrowthReason>,
}

impl GrowthFiles {
    /// The file of a memory, if it grows in one.
    pub(super) fn of(&self, memory: usize) -> Option<&GrowthFile> {
        self.files.get(memory)?.as_ref()
    }

    pub(super) fn of_mut(&mut self, memory: usize) -> Option<&mut GrowthFile> {
        self.files.get_mut(memory)?.as_mut()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.files.iter().all(Option::is_none)
    }

    /// Makes the files that memories of these sizes need and have not, of those that can be made.
    pub(super) fn make(&mut self, growth: GrowthKind, sizes: &[MemorySize]) {
        self.why_not = None;
        if growth != GrowthKind::Ftruncate {
            return;
        }
        self.files.resize_with(sizes.len(), || None);
        for (file, size) in self.files.iter_mut().zip(sizes) {
            let longest = size.maximum - size.initial;
            file.take_if(|_| longest == 0);
            if file.is_none() && longest > 0 {
                match GrowthFile::new(longest) {
                    Ok(made) => *file = Some(made),
                    Err(why) => self.why_not = Some(why),
                }
            }
        }
    }
}

impl SlotPages {
    /// How memories grow, and why so.
    pub(crate) fn growth(&self) -> GrowthChoice {
        let used = self.setup.growth;
        if let Some((asked, reason)) = self.setup.growth_lack {
            return GrowthChoice { asked, used, reason };
        }
        match self.files.why_not {
            Some(reason) => GrowthChoice { asked: used, used: GrowthKind::Mprotect, reason },
            None => GrowthChoice { asked: used, used, reason: GrowthReason::Asked },
        }
    }

    /// Whether a reset empties at once what a memory has grown by.
    pub(super) fn is_emptied_at_once(&self, index: usize) -> bool {
        self.files.of(index).is_some() || self.grows_by_faults(index)
    }

    /// Whether the slot can be used in this process alone: what memories have grown by is shared with
    /// processes that are forked, or its pages are not served there.
    pub(crate) fn is_bound(&self) -> bool {
        !self.files.is_empty() || self.served.is_some()
    }

    /// # Errors
    /// [`AbsentPage`] if memories grow in files of another process.
    #[inline]
    pub(super) fn check_growth_process(&self) -> Result<(), AbsentPage> {
        match self.files.files.iter().flatten().all(GrowthFile::is_of_this_process) {
            true => Ok(()),
            false => Err(AbsentPage { group: 0, why: Absence::OfParent }),
        }
    }

    /// Slot offsets that a memory can grow by.
    pub(super) fn growth_range(&self, index: usize) -> Range<u64> {
        let (start, size) = (self.zones.memories[index].start, self.memories[index].size);
        start + size.initial..start + size.maximum
    }

    /// Maps the files, empty, where memories grow.
    pub(super) fn map_growth(&mut self) -> Result<(), CallFailure> {
        for index in 0..self.memories.len() {
            let range = self.growth_range(index);
            if let Some(file) = self.files.of_mut(index) {
                file.set_length(0)?;
                self.pages.map_shared(range.clone(), std::os::fd::AsFd::as_fd(file))?;
                // A huge page of a file in memory is mapped as a whole, also beyond the file's end.
                self.pages.refuse_huge_pages(range)?;
            }
        }
        Ok(())
    }

    /// Throws away what a memory of this size has grown by, where touches of it are served: from its
    /// initial size on, which it has by now.
    ///
    /// # Errors
    /// A part of it may be gone: the slot is filled anew by the next reset. Until then the memory is as
    /// long as it was, since no page beyond may have contents.
    pub(super) fn discard_grown(&mut self, index: usize, size: u64) -> Result<(), PagesError> {
        let start = self.zones.memories[index].start;
        let grown = start + self.memories[index].size.initial..start + size;
        if !grown.is_empty()
            && let Err(failure) = self.pages.discard(grown)
        {
            self.bounds.set_memory_size(index, size);
            self.condition = Condition::Unfilled;
            return Err(failure.into());
        }
        Ok(())
    }

    /// Bytes of a memory that can have pages which resets find: without what is emptied at once.
    pub(super) fn private_bytes(&self, index: usize, bytes: u64) -> u64 {
        match self.is_emptied_at_once(index) {
            true => bytes.min(self.memories[index].size.initial),
            false => bytes,
        }
    }

    /// Of what images hold, the pages that the slot has for itself, as of
    /// [`Self::image_parts`]: all but those of [`Self::grown`].
    pub(crate) fn private_image_parts(&self) -> impl Iterator<Item = Range<u64>> {
        let size = |index| self.private_bytes(index, self.bounds.memory_size(index));
        let parts = self.parts_up_to(size);
        parts.map(|part| part.start.max(self.zones.image_floor)..part.end)
    }

    /// Of what images hold, the pages that every slot with these sizes has, however far its
    /// memories have grown: each part ends where its memory did at first.
    pub(crate) fn initial_image_parts(&self) -> impl Iterator<Item = Range<u64>> {
        let parts = self.parts_up_to(|index| self.memory_initial(index));
        parts.map(|part| part.start.max(self.zones.image_floor)..part.end)
    }

    /// Slot offsets of what memories have grown by that is emptied at once, as far as it was touched:
    /// ascending, apart. Where the kernel does not tell what was touched of served pages, all of them.
    ///
    /// # Errors
    /// If the kernel does not tell though it has before.
    pub(crate) fn grown(&self, method: Option<Method>) -> Result<Vec<Range<u64>>, PagesError> {
        let mut grown = Vec::new();
        for index in 0..self.memories.len() {
            let start = self.growth_range(index).start;
            if let Some(file) = self.files.of(index) {
                let touched = file.touched()?;
                grown.extend(touched.iter().map(|part| start + part.start..start + part.end));
            } else if self.grows_by_faults(index) {
                let end = self.zones.memories[index].start + self.bounds.memory_size(index);
                match method {
                    _ if start == end => (),
                    None => grown.push(start..end),
                    Some(method) => {
                        let (at, mut found) = (self.pages.start() as u64, Vec::new());
                        Finder::new(method)?.find(at + start..at + end, &mut found)?;
                        let offsets = found.iter().map(|region| region.start - at..region.end - at);
                        grown.extend(offsets);
                    }
                }
            }
        }
        Ok(joined(grown))
    }

    /// Makes whole pages zero that lie in files, and gives them back; returns those of a range that
    /// do not, or could not be.
    pub(super) fn punch(&mut self, range: Range<u64>) -> (bool, Vec<Range<u64>>) {
        let (mut released, mut rest) = (false, Vec::new());
        let mut at = range.start;
        for index in 0..self.memories.len() {
            let growth = self.growth_range(index);
            let part = growth.start.max(at)..growth.end.min(range.end);
            let is_in_file = self.files.of(index).is_some() && !part.is_empty();
            if is_in_file && self.pages.punch(part.clone()).is_ok() {
                released = true;
                rest.push(at..part.start);
                at = part.end;
            }
        }
        rest.push(at..range.end);
        (released, rest)
    }
}
