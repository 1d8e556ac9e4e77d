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

use pagefork_layout::page::{self, PAGE_SIZE};
use rustix::fs::FileType;

use super::{
    Image, SPAN_COUNT_MAX, Span, SpanPlace, check_extents, spans, within, writers_problem,
};
use crate::image::file::ImageFile;
use crate::image::incomplete::IncompletePages;
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
        extents: Vec<Range<u64>>,
        in_file: &[FileSpan],
        held: impl IntoIterator<Item = (u64, &'a [u8])>,
    ) -> Result<Arc<Self>, PagesError> {
        Self::of_file_spans(ImageFile::Foreign(file), name, extents, in_file, held).map(Arc::new)
    }

    /// As [`Image::from_file_spans`], of pages that may be absent yet. `held` is here from the first.
    ///
    /// A slot can be made of it, be reset and used while they come. Code that touches a page which is
    /// absent gets a SIGBUS, and goes on once [`Slot::wait_for_fault`](crate::Slot::wait_for_fault)
    /// has said so in its handler. The host asks first: [`Slot::wait`](crate::Slot::wait). All
    /// that this crate itself reads of an image, it waits for.
    ///
    /// # Errors
    /// As of [`Image::from_file_spans`].
    ///
    /// # Panics
    /// As of [`Image::from_file_spans`].
    ///
    /// # Examples
    ///
    /// See [`IncompletePages`].
    pub fn from_incomplete<'a>(
        pages: &Arc<IncompletePages>,
        name: &str,
        extents: Vec<Range<u64>>,
        spans: &[FileSpan],
        held: impl IntoIterator<Item = (u64, &'a [u8])>,
    ) -> Result<Arc<Self>, PagesError> {
        let file = ImageFile::Incomplete(Arc::clone(pages));
        Self::of_file_spans(file, name, extents, spans, held).map(Arc::new)
    }

    /// As [`Self::from_file_spans`], not shared yet.
    fn of_file_spans<'a>(
        file: ImageFile,
        name: &str,
        mut extents: Vec<Range<u64>>,
        in_file: &[FileSpan],
        held: impl IntoIterator<Item = (u64, &'a [u8])>,
    ) -> Result<Self, PagesError> {
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
            let needed = span.file_offset.saturating_add(length);
            match &file {
                ImageFile::Incomplete(pages) => pages.check_span(span.file_offset, needed)?,
                _ => check_file(file.as_fd(), span.file_offset, needed)?,
            }
        }
        let mut all: Vec<Span> = Vec::with_capacity(in_file.len() + held_spans.len());
        for FileSpan { slot, file_offset } in in_file {
            let (slot, file_offset) = (slot.clone(), *file_offset);
            all.push(Span { slot, file_offset, origin: SpanPlace::File });
        }
        let mut image = Self::of_parts(extents, Vec::new(), None);
        if !in_file.is_empty() {
            image.file = Some(file);
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
        Ok(image)
    }

    /// An image as another, but that a range of it is what a file has at one place: all else of
    /// `replaced` is zero. A slot maps the pages `prefetch`, slot offsets in bytes, as soon as it is
    /// filled, and reads them from the disk if need be: others when they are touched. Kernels before
    /// 5.14 do not prefetch. All that the other image has elsewhere is copied.
    ///
    /// # Errors
    /// As of [`Image::from_file_spans`]; [`PagesError::FileRefused`] for pages to prefetch outside
    /// the span, or a span outside `replaced`.
    ///
    /// # Panics
    /// If `replaced` is not whole pages in ascending order.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::fs;
    ///
    /// use pagefork_pages::{FileSpan, Image};
    ///
    /// let path = std::env::temp_dir().join(format!("over-{}", std::process::id()));
    /// fs::write(&path, [7; 8192])?;
    /// let file = fs::File::open(&path)?;
    /// // State, and a memory with some data.
    /// let of = Image::new("example", 0..16384, [(0, &b"state"[..]), (4096, &[1; 12288][..])])?;
    /// let span = FileSpan { slot: 4096..12288, file_offset: 0 };
    /// let image = Image::over_file(&of, 4096..1 << 20, file.into(), span, [4096..8192])?;
    /// let (mut state, mut memory) = ([0; 5], [0; 1]);
    /// image.read(0, &mut state)?;
    /// image.read(4096, &mut memory)?;
    /// assert_eq!((&state, memory), (b"state", [7]));
    /// assert_eq!(image.extents(), [0..12288]);
    /// # fs::remove_file(&path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn over_file(
        of: &Self,
        replaced: Range<u64>,
        file: OwnedFd,
        span: FileSpan,
        prefetch: impl IntoIterator<Item = Range<u64>>,
    ) -> Result<Arc<Self>, PagesError> {
        check_extents(std::slice::from_ref(&replaced));
        let refused = |why| Err(PagesError::FileRefused(FileProblem::Spans(why)));
        if span.slot.start < replaced.start || span.slot.end > replaced.end {
            return refused("one lies outside what is replaced");
        }
        check_spans(std::slice::from_ref(&replaced), std::slice::from_ref(&span), &[])?;
        let prefetch: Vec<Range<u64>> = prefetch.into_iter().collect();
        let inside = |range: &Range<u64>| {
            span.slot.start <= range.start && range.start <= range.end && range.end <= span.slot.end
        };
        if !prefetch.iter().all(inside) {
            return refused("pages to prefetch are in none");
        }
        let prefetch = prefetch.into_iter().map(page::covering).collect();
        let outside = |range: &Range<u64>| {
            let below = range.start..range.end.min(replaced.start);
            let above = range.start.max(replaced.end)..range.end;
            [below, above].into_iter().filter(|part| part.start < part.end)
        };
        let mut held: Vec<(u64, Vec<u8>)> = Vec::new();
        for part in of.contents()?.iter().flat_map(outside) {
            let mut bytes = vec![0; (part.end - part.start) as usize];
            of.read(part.start, &mut bytes)?;
            held.push((part.start, bytes));
        }
        let mut extents: Vec<Range<u64>> = of.extents.iter().flat_map(outside).collect();
        extents.push(span.slot.clone());
        let extents = page::joined(extents);
        let held = held.iter().map(|(offset, bytes)| (*offset, &bytes[..]));
        let file = ImageFile::Foreign(file);
        let mut image = Self::of_file_spans(file, "held", extents, &[span], held)?;
        image.prefetch = prefetch;
        Ok(Arc::new(image))
    }

    /// Looks whether a file that could be cut short still has all that the image, or the root of a
    /// branch, has in it. Pages beyond the end raise SIGBUS, those included that a slot had
    /// changed.
    ///
    /// # Errors
    /// If it was cut short, or cannot be asked.
    #[inline]
    pub(crate) fn check_length(&self) -> Result<(), PagesError> {
        let base = self.base();
        match &base.file {
            Some(ImageFile::Foreign(file)) => base.ask_length(file),
            _ => Ok(()),
        }
    }

    /// # Errors
    /// If the file is shorter than the image needs, or cannot be asked.
    #[cold]
    fn ask_length(&self, file: &OwnedFd) -> Result<(), PagesError> {
        let in_file = self.spans.iter().filter(|span| span.origin == SpanPlace::File);
        let needed = in_file.map(|span| span.file_offset + span.size()).max().unwrap_or(0);
        let size = sys::stat_image(file.as_fd())?.st_size as u64;
        match size < needed {
            true => Err(PagesError::FileRefused(FileProblem::TooShort { size, needed })),
            false => Ok(()),
        }
    }

    /// Whether it lies in a file that could be cut short.
    #[inline]
    pub(crate) fn could_be_cut(&self) -> bool {
        matches!(self.base().file, Some(ImageFile::Foreign(_)))
    }

    /// What to say when a page was gone.
    #[cold]
    pub(crate) fn unreadable(&self) -> PagesError {
        let asked = match &self.base().file {
            Some(ImageFile::Foreign(file)) => self.base().ask_length(file),
            _ => Ok(()),
        };
        asked.err().unwrap_or(PagesError::FileRefused(FileProblem::Unreadable))
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
    // What is sealed nobody can write, whatever its mode says.
    if let Some(writers) = writers_problem(&stat)
        && !sys::is_sealed(file)?
    {
        return problem(writers);
    }
    let size = stat.st_size as u64;
    if size < needed {
        return problem(FileProblem::TooShort { size, needed });
    }
    Ok(())
}
