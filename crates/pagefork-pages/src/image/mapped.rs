//! Images that lie in files which others made: a store's, or the embedder's.
//!
//! ```text
//!  slot     | tables, state | memory ....... | hole | memory ... |
//!           '--- held ------'--- span 0 -----'      '- span 1 ---'
//!  memory   | held          |                                        checked, then copied here
//!  file     ... | span 0 ......... | span 1 ..... | ...              mapped, not read
//! ```
//!
//! The pages of spans are mapped as the file has them, and nothing is read of them before a guest
//! does. What the host itself relies on it gives as *held* bytes: those lie in a file of the
//! process, which nothing can change once they have been checked.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use pagefork_layout::page::PAGE_SIZE;
use rustix::fs::FileType;

use super::{
    Image, SPAN_COUNT_MAX, Span, SpanPlace, check_extents, spans, within, writers_problem,
};
use crate::image::file::ImageFile;
use crate::os::error::{FileProblem, PagesError};
use crate::os::memfd::Write;
use crate::os::sys;

/// Pages of an image that lie together both in a slot and in a file.
///
/// # Examples
///
/// See [`Image::from_file_spans`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileSpan {
    /// Slot offsets, whole pages.
    pub slot: Range<u64>,
    /// Where in the file the first byte lies: a multiple of the page size.
    pub file_offset: u64,
}

impl Image {
    /// An image in a regular file, from byte `file_offset` of it on, covering
    /// the whole `extent` (slot offsets in bytes). The file must belong to this
    /// user or root and no other user may write it; what its owner does to it
    /// later shows in slots. That its bytes are right is for the caller to
    /// verify.
    ///
    /// # Errors
    /// [`PagesError::FileRefused`] says what is wrong with the file.
    ///
    /// # Panics
    /// If the extent is not whole pages in ascending order.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::fs;
    ///
    /// use pagefork_pages::Image;
    ///
    /// let path = std::env::temp_dir().join(format!("image-{}", std::process::id()));
    /// fs::write(&path, [[1; 4096], [2; 4096]].concat())?;
    /// let image = Image::from_file(fs::File::open(&path)?.into(), 4096, 0..4096)?;
    /// let mut bytes = [0; 2];
    /// image.read(0, &mut bytes)?;
    /// assert_eq!(bytes, [2, 2]);
    /// # fs::remove_file(&path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn from_file(
        file: OwnedFd,
        file_offset: u64,
        extent: Range<u64>,
    ) -> Result<Arc<Self>, PagesError> {
        if extent.is_empty() {
            check_file(file.as_fd(), file_offset, file_offset)?;
            return Self::from_file_spans(file, "file", vec![extent], &[], []);
        }
        let span = FileSpan { slot: extent.clone(), file_offset };
        Self::from_file_spans(file, "file", vec![extent], &[span], [])
    }

    /// As [`Image::from_file`], of several extents, with contents in several places of the file.
    /// `held` are bytes at slot offsets that are not in the file: the image has a copy of
    /// them, in pages of their own. All else in the extents is zero.
    ///
    /// Nothing of the file is read. A reset that restores pages in place reads them by a system
    /// call, once for all slots. To make a slot of a file that was cut short, to reset it or to
    /// look at its pages is an error; code that touches what is gone gets a SIGBUS.
    ///
    /// # Errors
    /// [`PagesError::FileRefused`] says what is wrong with the file or the spans, which are
    /// ascending, apart from each other and from the pages of held bytes, not empty, and at most
    /// [`SPAN_COUNT_MAX`] in each extent; [`PagesError::OutsideImage`] for what lies outside the
    /// extents; else as [`Image::new`].
    ///
    /// # Panics
    /// If the extents are not whole pages in ascending order, one behind the other.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::fs;
    ///
    /// use pagefork_pages::{FileSpan, Image};
    ///
    /// let path = std::env::temp_dir().join(format!("spans-{}", std::process::id()));
    /// fs::write(&path, [vec![1; 4096], vec![2; 4096]].concat())?;
    /// let file = fs::File::open(&path)?;
    /// let spans = [
    ///     FileSpan { slot: 4096..8192, file_offset: 4096 },
    ///     FileSpan { slot: 1 << 30..(1 << 30) + 4096, file_offset: 0 },
    /// ];
    /// let extents = vec![0..2 << 30];
    /// let image = Image::from_file_spans(file.into(), "name", extents, &spans, [(8, &b"held"[..])])?;
    /// let (mut held, mut far) = ([0; 5], [0; 2]);
    /// image.read(7, &mut held)?;
    /// image.read((1 << 30) - 1, &mut far)?;
    /// assert_eq!((&held, far), (b"\0held", [0, 1]));
    /// # fs::remove_file(&path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn from_file_spans<'a>(
        file: OwnedFd,
        name: &str,
        mut extents: Vec<Range<u64>>,
        in_file: &[FileSpan],
        held: impl IntoIterator<Item = (u64, &'a [u8])>,
    ) -> Result<Arc<Self>, PagesError> {
        check_extents(&extents);
        extents.retain(|extent| !extent.is_empty());
        let held: Vec<(u64, &[u8])> =
            held.into_iter().filter(|(_, bytes)| !bytes.is_empty()).collect();
        for &(offset, bytes) in &held {
            within(&extents, offset, bytes.len() as u64)?;
        }
        let held_spans = spans(&extents, &held);
        check_spans(&extents, in_file, &held_spans)?;
        for span in in_file {
            let length = span.slot.end - span.slot.start;
            check_file(file.as_fd(), span.file_offset, span.file_offset.saturating_add(length))?;
        }
        let mut all: Vec<Span> = Vec::with_capacity(in_file.len() + held_spans.len());
        for FileSpan { slot, file_offset } in in_file {
            let (slot, file_offset) = (slot.clone(), *file_offset);
            all.push(Span { slot, file_offset, origin: SpanPlace::File });
        }
        let mut image = Self::of_parts(extents, Vec::new(), None);
        if !in_file.is_empty() {
            image.file = Some(ImageFile::Foreign(file));
        }
        if let Some(last) = held_spans.last() {
            let size = last.file_offset + last.size();
            let write = |(offset, bytes): (u64, &'a [u8])| -> Write<'a> {
                let index = held_spans.partition_point(|span| span.slot.end <= offset);
                let span = &held_spans[index];
                (span.file_offset + (offset - span.slot.start), bytes)
            };
            let writes: Vec<Write<'_>> = held.into_iter().map(write).collect();
            let (file, start) = ImageFile::new(name, size, &writes)?;
            for span in held_spans {
                let file_offset = span.file_offset + start;
                all.push(Span { file_offset, origin: SpanPlace::Held, ..span });
            }
            image.held = Some(file);
        }
        all.sort_unstable_by_key(|span| span.slot.start);
        image.spans = all;
        Ok(Arc::new(image))
    }

    /// Looks whether a file that could be cut short still has all that the image, or the root of a
    /// branch, has in it. Pages beyond the end raise SIGBUS, those included that a slot had
    /// changed: so this is asked before the host touches pages of a slot.
    ///
    /// # Errors
    /// If it was cut short, or cannot be asked.
    pub(crate) fn check_length(&self) -> Result<(), PagesError> {
        let base = self.base();
        let Some(ImageFile::Foreign(file)) = &base.file else { return Ok(()) };
        let in_file = base.spans.iter().filter(|span| span.origin == SpanPlace::File);
        let needed = in_file.map(|span| span.file_offset + span.size()).max().unwrap_or(0);
        let size = sys::stat_image(file.as_fd())?.st_size as u64;
        match size < needed {
            true => Err(PagesError::FileRefused(FileProblem::TooShort { size, needed })),
            false => Ok(()),
        }
    }

    /// Whether slots map two files: one that others made, and one with what is held beside it.
    pub(crate) fn is_partly_held(&self) -> bool {
        let base = self.base();
        base.file.is_some() && base.held.is_some()
    }
}

/// # Errors
/// If spans of a file are not what [`Image::from_file_spans`] takes.
fn check_spans(
    extents: &[Range<u64>],
    spans: &[FileSpan],
    held: &[Span],
) -> Result<(), PagesError> {
    let refused = |why| Err(PagesError::FileRefused(FileProblem::Spans(why)));
    let mut end = 0;
    for FileSpan { slot, .. } in spans {
        let whole = slot.start.is_multiple_of(PAGE_SIZE) && slot.end.is_multiple_of(PAGE_SIZE);
        if !whole || slot.start >= slot.end {
            return refused("one is not whole pages");
        }
        if slot.start < end {
            return refused("one lies before the end of another");
        }
        end = slot.end;
        within(extents, slot.start, slot.end - slot.start)?;
        if held.iter().any(|held| held.slot.start < slot.end && slot.start < held.slot.end) {
            return refused("one has pages that are held");
        }
    }
    for extent in extents {
        let inside = spans.iter().filter(|span| extent.contains(&span.slot.start));
        if inside.count() > SPAN_COUNT_MAX {
            return refused("there are too many in an extent");
        }
    }
    Ok(())
}

/// Whether a file can be an image with contents at `file_offset..needed`.
fn check_file(file: BorrowedFd<'_>, file_offset: u64, needed: u64) -> Result<(), PagesError> {
    let problem = |problem| Err(PagesError::FileRefused(problem));
    if !file_offset.is_multiple_of(PAGE_SIZE) {
        return problem(FileProblem::Unaligned { offset: file_offset });
    }
    let stat = sys::stat_image(file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return problem(FileProblem::NotRegular);
    }
    if let Some(writers) = writers_problem(&stat) {
        return problem(writers);
    }
    let size = stat.st_size as u64;
    if size < needed {
        return problem(FileProblem::TooShort { size, needed });
    }
    Ok(())
}
