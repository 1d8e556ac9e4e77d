//! Memories that grow in files of their own. What lies there is private to no slot and no page of an
//! image: it is not found, restored or discarded page by page, but emptied at once.

use std::ops::Range;

use super::SlotPages;
use crate::os::error::{Absence, AbsentPage, PagesError};
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
        let asked = self.setup.growth;
        match self.files.why_not {
            Some(reason) => GrowthChoice { asked, used: GrowthKind::Mprotect, reason },
            None => GrowthChoice { asked, used: asked, reason: GrowthReason::Asked },
        }
    }

    /// Whether the slot can be used in this process alone: what memories have grown by is shared with
    /// processes that are forked, or its pages are not served there.
    pub(crate) fn is_bound(&self) -> bool {
        !self.files.is_empty() || self.setup.serves_image
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

    /// Slot offsets where a memory grows in its file.
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
                self.pages.map_shared(range, std::os::fd::AsFd::as_fd(file))?;
            }
        }
        Ok(())
    }

    /// Bytes of a memory that can have private pages: without what lies in its file.
    pub(super) fn private_bytes(&self, index: usize, bytes: u64) -> u64 {
        match self.files.of(index) {
            Some(_) => bytes.min(self.memories[index].size.initial),
            None => bytes,
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

    /// Slot offsets of what memories have in files, as far as it was touched: ascending, apart.
    ///
    /// # Errors
    /// If the kernel does not tell.
    pub(crate) fn grown(&self) -> Result<Vec<Range<u64>>, PagesError> {
        let mut grown = Vec::new();
        for index in 0..self.memories.len() {
            if let Some(file) = self.files.of(index) {
                let start = self.growth_range(index).start;
                let touched = file.touched()?;
                grown.extend(touched.iter().map(|part| start + part.start..start + part.end));
            }
        }
        Ok(grown)
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
