//! Reading images page by page, in place where that is possible.

use std::borrow::Cow;
use std::ops::Range;
use std::os::fd::AsFd;
use std::ptr;
use std::sync::Arc;

use pagefork_layout::page::{PAGE_SIZE, round_down, round_up};

use crate::image::branch::is_zero;
use crate::image::{Image, Source, Unsealed};
use crate::os::error::PagesError;
use crate::os::sys;

/// Reads pages of an image.
pub(crate) struct PageReader<'a> {
    image: &'a Image,
    /// Invariant: as `image` says.
    sources: Vec<Source>,
    /// Room for a page of a file that cannot be read in place.
    copied: Vec<u8>,
}

impl<'a> PageReader<'a> {
    /// # Errors
    /// The limit that was met.
    pub(crate) fn new(image: &'a Image) -> Result<Self, PagesError> {
        let sources = image.sources(Unsealed::Absent)?;
        Ok(Self { image, sources, copied: Vec::new() })
    }

    /// Whether the image has these bytes as the page at slot offset `page`. It has zeros where
    /// it does not reach.
    ///
    /// # Errors
    /// An error of the file, also when it was cut short.
    pub(crate) fn is_equal(&mut self, page: u64, bytes: &[u8]) -> Result<bool, PagesError> {
        Ok(match self.page(page)? {
            Some(own) => own == bytes,
            None => is_zero(bytes),
        })
    }

    /// The page at a slot offset; `None` if it is zero.
    fn page(&mut self, page: u64) -> Result<Option<&[u8]>, PagesError> {
        if let Some(differing) = self.image.differing_page(page) {
            return Ok(differing.bytes().map(|bytes| &bytes[..]));
        }
        let source = self.sources.iter().find(|source| source.slot.contains(&page));
        let Some(source) = source else { return Ok(None) };
        let Some(address) = source.address else {
            self.copied.resize(PAGE_SIZE as usize, 0);
            self.image.read_file(page, &mut self.copied)?;
            return Ok(Some(&self.copied));
        };
        if source.on_demand {
            self.image.wait(page..page + PAGE_SIZE)?;
        }
        let place = ptr::with_exposed_provenance(address + (page - source.slot.start) as usize);
        // SAFETY: the image is borrowed, so its bytes stay mapped; a file that is mapped for
        // reading is sealed, or nothing writes to pages of it that are here, so they never change.
        Ok(Some(unsafe { std::slice::from_raw_parts(place, PAGE_SIZE as usize) }))
    }
}

impl Image {
    /// Slot offsets at which the image may have other bytes than zeros: whole pages, ascending,
    /// apart. Nothing is read.
    ///
    /// # Errors
    /// If the system does not tell what of a file is a hole.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_pages::Image;
    ///
    /// let image = Image::new("example", 0..4 << 20, [(4096, &b"a"[..]), (3 << 20, &b"b"[..])])?;
    /// assert_eq!(image.contents()?, [4096..8192, 3 << 20..(3 << 20) + 4096]);
    /// # Ok::<(), pagefork_pages::PagesError>(())
    /// ```
    pub fn contents(&self) -> Result<Vec<Range<u64>>, PagesError> {
        let mut found: Vec<Range<u64>> = Vec::new();
        for (source, (slot, file, file_start)) in
            self.sources(Unsealed::Absent)?.iter().zip(self.maps())
        {
            // The position in a file of others is theirs; holes of an incomplete one mean nothing.
            if source.address.is_none() || source.on_demand {
                found.push(slot);
                continue;
            }
            let file_end = file_start + (slot.end - slot.start);
            let mut at = file_start;
            while let Some(data) = sys::find_data(file.as_fd(), at..file_end)? {
                let data = round_down(data.start)..round_up(data.end);
                at = data.end;
                found.push(
                    slot.start + (data.start - file_start)..slot.start + (data.end - file_start),
                );
            }
        }
        found.extend(self.differing().iter().map(|page| page.page..page.page + PAGE_SIZE));
        found.sort_unstable_by_key(|range| range.start);
        found.dedup_by(|next, last| {
            let joins = next.start <= last.end;
            if joins {
                last.end = last.end.max(next.end);
            }
            joins
        });
        Ok(found)
    }

    /// Slot offsets of the pages that can be otherwise than in `ancestor`, ascending, if the image
    /// is that or descends from it; `None` if that is not known. Of what descends from an image that
    /// became whole it is known as long as what that was made of is held.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_pages::Image;
    ///
    /// let root = Image::new("example", 0..1 << 20, [(0, &[1; 1 << 20][..])])?;
    /// let first = Image::branch(&root, "first", vec![0..1 << 20], [(4096, &[2; 4096][..])])?;
    /// let second = Image::branch(&first, "second", vec![0..1 << 20], [(0, &[3; 4096][..])])?;
    /// assert_eq!(second.changed_since(&root), Some(vec![0, 4096]));
    /// assert_eq!(second.changed_since(&first), Some(vec![0]));
    /// assert_eq!(root.changed_since(&first), None);
    /// # Ok::<(), pagefork_pages::PagesError>(())
    /// ```
    pub fn changed_since(self: &Arc<Self>, ancestor: &Arc<Self>) -> Option<Vec<u64>> {
        let (mut image, mut changed) = (Arc::clone(self), Vec::new());
        while !Arc::ptr_eq(&image, ancestor) {
            image = match (image.parent(), &image.predecessor) {
                (Some(parent), _) => {
                    changed.extend(image.own_pages());
                    Arc::clone(parent)
                }
                (None, Some((predecessor, own))) => {
                    changed.extend(own);
                    predecessor.upgrade()?
                }
                (None, None) => return None,
            };
        }
        changed.sort_unstable();
        changed.dedup();
        Some(changed)
    }

    /// What the file has, without holes as far as they are known: whole pages, with the slot
    /// offset of the first. Bytes of a file that cannot be read in place are a copy.
    ///
    /// # Errors
    /// The limit that was met; an error of the file, also when it was cut short.
    pub(super) fn data(&self) -> Result<Vec<(u64, Cow<'_, [u8]>)>, PagesError> {
        let mut data = Vec::new();
        let sources = self.sources(Unsealed::Absent)?;
        for (source, (slot, file, file_start)) in sources.iter().zip(self.maps()) {
            let Some(address) = source.address else {
                let mut bytes = vec![0; (slot.end - slot.start) as usize];
                self.read_file(slot.start, &mut bytes)?;
                data.push((slot.start, Cow::Owned(bytes)));
                continue;
            };
            if source.on_demand {
                self.wait(slot.clone())?;
            }
            let file_end = file_start + (slot.end - slot.start);
            let mut at = file_start;
            while let Some(found) = sys::find_data(file.as_fd(), at..file_end)? {
                let found = round_down(found.start)..round_up(found.end);
                at = found.end;
                let (offset, length) = (found.start - file_start, found.end - found.start);
                let place = ptr::with_exposed_provenance(address + offset as usize);
                // SAFETY: the image is borrowed, so its bytes stay mapped; a file that is mapped
                // for reading is sealed, so they never change.
                let bytes = unsafe { std::slice::from_raw_parts(place, length as usize) };
                data.push((slot.start + offset, Cow::Borrowed(bytes)));
            }
        }
        Ok(data)
    }
}
