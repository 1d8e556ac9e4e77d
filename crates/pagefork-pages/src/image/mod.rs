//! Immutable page contents: sealed memfds and verified files.

/// Machine code: in pages that many modules share, or mapped from files.
pub(crate) mod code;
/// Images that hold only the pages in which they differ from another.
pub(crate) mod branch;
/// Reading images page by page.
pub(crate) mod read;
/// Images that lie in files which others made.
pub(crate) mod mapped;
/// Copies of the pages of a file that could be cut short.
mod on_demand;
/// Which groups of pages of an incomplete image are here.
pub(crate) mod residency;
/// The pages of an image that runs before all of it is here.
pub(crate) mod incomplete;
/// The files that images lie in: one each, or many in one.
pub(crate) mod file;
/// A memfd that many images share.
mod shared;

use std::fmt;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, OnceLock, Weak};

use pagefork_layout::page::{self, PAGE_SIZE};
use rustix::fs::Stat;

use crate::image::branch::Branch;
use crate::image::file::ImageFile;
use crate::image::incomplete::IncompletePages;
use crate::image::on_demand::PageCopies;
use crate::os::error::{AbsentPage, FileProblem, PagesError};
use crate::os::memfd::Write;
use crate::os::sys;

/// Holes of more than this many bytes between runs are left out of an image:
/// there a slot has anonymous pages. A hole that is mapped costs a page of the
/// memfd for each page that is read, a hole left out costs two kernel maps.
pub const SPAN_GAP: u64 = 1 << 20;

/// An image has at most this many spans in each extent; of more, the nearest are
/// joined. So no module can use up the maps of its process.
pub const SPAN_COUNT_MAX: usize = 4;

/// Immutable page contents that slots are filled from.
///
/// ```text
///  slot offsets   extent.start                                        extent.end
///                 | span 0 (tables, state, data) | hole > 1 MiB | span 1 | hole |
///                 '--copy on write---------------'--anonymous---'-c.o.w.-'-anon-'
///  file           | span 0                       | span 1 |
/// ```
///
/// Where memories lie apart, an image has an extent for each: what lies between
/// extents is never mapped.
///
/// The bytes lie in a sealed memfd, which nothing can write or cut, or in a
/// [file](Image::from_file_spans) that no other user may write. An image of nothing but zeros has no file. The first
/// [`OWN_FILES_MAX`](crate::OWN_FILES_MAX) images of a process (of large ones,
/// [`OWN_FILES_LARGE_MAX`](crate::OWN_FILES_LARGE_MAX)) have a memfd each. Further
/// ones lie one behind another in memfds of 64 MiB, in whole pages, which are just
/// as final: so descriptors and maps stay few however many images there are. The
/// pages of such an image are given back when all images in its memfd are gone.
///
/// An image can also be a *branch* of another one ([`Image::branch`]): then it holds only
/// the pages in which the two differ.
///
/// # Examples
///
/// ```
/// use pagefork_pages::Image;
///
/// let image = Image::new("example", 0..8192, [(4096, &b"abc"[..])])?;
/// assert_eq!(image.extents(), [0..8192]);
/// let mut bytes = [0xff; 4];
/// image.read(4095, &mut bytes)?;
/// assert_eq!(bytes, *b"\0abc");
/// # Ok::<(), pagefork_pages::PagesError>(())
/// ```
pub struct Image {
    /// Invariant: ascending, apart, of whole pages, none empty.
    extents: Vec<Range<u64>>,
    /// Invariant: ascending, apart, each within one extent, of whole pages, none
    /// empty; the file that it lies in covers each. A branch has none of its own.
    spans: Vec<Span>,
    /// `None` if no span lies in it.
    file: Option<ImageFile>,
    /// Of an image in a file that others made: what the host checked of it, in memory. `None` if
    /// no span lies in it.
    held: Option<ImageFile>,
    /// Of an image that has a parent.
    branch: Option<Branch>,
    /// Of an image that was made whole: what it was made of, and slot offsets of the pages in which
    /// it can be otherwise, ascending.
    predecessor: Option<(Weak<Self>, Box<[u64]>)>,
    /// Slot offsets of pages that a slot maps at once: whole pages, within the spans of a file.
    prefetch: Vec<Range<u64>>,
    /// Copies of the pages of a file that could be cut, one span behind the other; made when they
    /// are first asked for.
    copies: OnceLock<PageCopies>,
}

/// Where the host can read what an image has for a range of slot offsets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Source {
    /// Whole pages.
    pub(crate) slot: Range<u64>,
    /// Address of the bytes, good as long as the image; `None` where reading them
    /// could raise SIGBUS, because the file can be cut short.
    pub(crate) address: Option<usize>,
    /// Whether the bytes of a page are there only once it was [fetched](Image::fetch).
    pub(crate) on_demand: bool,
}

/// How an image is read whose file could be cut short.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unsealed {
    /// It has no address.
    Absent,
    /// Pages are copied when they are fetched, once for all slots.
    OnDemand,
    /// All pages are copied now, once for all slots.
    Copied,
}

/// Pages of an image that lie together both in the slot and in a file.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Span {
    slot: Range<u64>,
    file_offset: u64,
    origin: SpanPlace,
}

impl Span {
    /// Bytes.
    fn size(&self) -> u64 {
        self.slot.end - self.slot.start
    }
}

/// Which of an image's files a span lies in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SpanPlace {
    File,
    /// The one with what the host has checked.
    Held,
}

impl Image {
    /// An image of `runs` in a sealed memfd; all else in `extent` is zero. The
    /// extent and the runs' places are slot offsets in bytes, the extent's of
    /// whole pages. Where runs overlap, the later one holds. `name` shows in
    /// `/proc/self/maps` while the image has a memfd of its own.
    ///
    /// # Errors
    /// [`PagesError::OutsideImage`] for a run outside the extent;
    /// [`PagesError::Unsupported`] without memfd or seals; else the limit that
    /// was met.
    ///
    /// # Panics
    /// If the extent is not whole pages in ascending order.
    ///
    /// # Examples
    ///
    /// See [`Image`].
    pub fn new<'a>(
        name: &str,
        extent: Range<u64>,
        runs: impl IntoIterator<Item = (u64, &'a [u8])>,
    ) -> Result<Arc<Self>, PagesError> {
        Self::with_extents(name, vec![extent], runs)
    }

    /// As [`Image::new`], with several extents.
    ///
    /// # Errors
    /// As [`Image::new`]; a run must lie within one extent.
    ///
    /// # Panics
    /// If the extents are not whole pages in ascending order, one behind the
    /// other.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_pages::Image;
    ///
    /// // Two memories far apart, of which only the second has contents.
    /// let extents = vec![0..4096, 1 << 30..(1 << 30) + 8192];
    /// let image = Image::with_extents("example", extents, [((1 << 30) + 5, &b"abc"[..])])?;
    /// let mut bytes = [0xff; 3];
    /// image.read(1 << 30, &mut bytes)?;
    /// assert_eq!(bytes, [0; 3]);
    /// assert!(image.read(4096, &mut bytes).is_err(), "it lies between the two");
    /// # Ok::<(), pagefork_pages::PagesError>(())
    /// ```
    pub fn with_extents<'a>(
        name: &str,
        extents: Vec<Range<u64>>,
        runs: impl IntoIterator<Item = (u64, &'a [u8])>,
    ) -> Result<Arc<Self>, PagesError> {
        Self::made_of(name, extents, runs).map(Arc::new)
    }

    /// As [`Self::with_extents`], not shared yet.
    fn made_of<'a>(
        name: &str,
        mut extents: Vec<Range<u64>>,
        runs: impl IntoIterator<Item = (u64, &'a [u8])>,
    ) -> Result<Self, PagesError> {
        check_extents(&extents);
        extents.retain(|extent| !extent.is_empty());
        let runs: Vec<(u64, &[u8])> =
            runs.into_iter().filter(|(_, bytes)| !bytes.is_empty()).collect();
        for &(offset, bytes) in &runs {
            within(&extents, offset, bytes.len() as u64)?;
        }
        let mut spans = spans(&extents, &runs);
        let Some(last) = spans.last() else {
            return Ok(Self::of_parts(extents, spans, None));
        };

        let size = last.file_offset + last.size();
        let write = |(offset, bytes): (u64, &'a [u8])| {
            let index = spans.partition_point(|span| span.slot.end <= offset);
            let span = &spans[index];
            (span.file_offset + (offset - span.slot.start), bytes)
        };
        let writes: Vec<Write<'_>> = runs.into_iter().map(write).collect();
        let (file, start) = ImageFile::new(name, size, &writes)?;
        for span in &mut spans {
            span.file_offset += start;
        }
        Ok(Self::of_parts(extents, spans, Some(file)))
    }

    fn of_parts(extents: Vec<Range<u64>>, spans: Vec<Span>, file: Option<ImageFile>) -> Self {
        let (held, branch, predecessor, copies) = (None, None, None, OnceLock::new());
        let prefetch = Vec::new();
        Self { extents, spans, file, held, branch, predecessor, prefetch, copies }
    }

    /// The slot offsets that the image covers, in bytes: whole pages, ascending,
    /// none empty.
    ///
    /// # Examples
    ///
    /// See [`Image`].
    pub fn extents(&self) -> &[Range<u64>] {
        &self.extents
    }

    /// Reads bytes from slot offset `offset` on, as a fresh slot has them.
    ///
    /// # Errors
    /// [`PagesError::OutsideImage`] if they are not all in one extent; an error
    /// of the file, also when it was cut short.
    ///
    /// # Examples
    ///
    /// See [`Image`].
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), PagesError> {
        within(&self.extents, offset, into.len() as u64)?;
        into.fill(0);
        self.read_file(offset, into)?;
        branch::lay_over(self.differing(), offset, into);
        Ok(())
    }

    /// Reads what the file has from slot offset `offset` on, and leaves alone what it has not.
    fn read_file(&self, offset: u64, into: &mut [u8]) -> Result<(), PagesError> {
        let wanted = offset..offset + into.len() as u64;
        for (slot, file, file_offset) in self.maps() {
            let part = slot.start.max(wanted.start)..slot.end.min(wanted.end);
            if part.is_empty() {
                continue;
            }
            let place = file_offset + (part.start - slot.start);
            let part = (part.start - offset) as usize..(part.end - offset) as usize;
            let needed = place + part.len() as u64;
            if let Some(pages) = file.incomplete() {
                pages.wait(place..needed)?;
            }
            let count = sys::read_image(file.as_fd(), &mut into[part.clone()], place)?;
            if count < part.len() {
                let size = place + count as u64;
                return Err(PagesError::FileRefused(FileProblem::TooShort { size, needed }));
            }
        }
        Ok(())
    }

    /// What to map where: slot offsets, file, and byte offset in the file. Of a branch, what
    /// its root has.
    pub(crate) fn maps(&self) -> impl Iterator<Item = (Range<u64>, &ImageFile, u64)> {
        let base = self.base();
        base.spans.iter().map(|span| (span.slot.clone(), base.file_of(span), span.file_offset))
    }

    /// Whether pages of it, or of the root of a branch, are absent.
    pub(crate) fn is_incomplete(&self) -> bool {
        self.base().file.as_ref().is_some_and(|file| file.incomplete().is_some())
    }

    /// # Errors
    /// [`AbsentPage`] in a process that was forked before all pages were here: slots of the image have
    /// no pages there, and neither does the host.
    #[inline]
    pub(crate) fn check_process(&self) -> Result<(), AbsentPage> {
        match self.base().file.as_ref().and_then(ImageFile::incomplete) {
            Some(pages) => pages.check_process(),
            None => Ok(()),
        }
    }

    /// The parts of a range of slot offsets that can be absent: where they lie among the pages of
    /// an incomplete image. Async-signal-safe.
    pub(crate) fn absent_parts(
        &self,
        range: Range<u64>,
    ) -> impl Iterator<Item = (&Arc<IncompletePages>, Range<u64>)> {
        self.maps().filter_map(move |(slot, file, file_offset)| {
            let part = slot.start.max(range.start)..slot.end.min(range.end);
            let pages = file.incomplete().filter(|_| !part.is_empty())?;
            let at = |offset: u64| file_offset + (offset - slot.start);
            Some((pages, at(part.start)..at(part.end)))
        })
    }

    /// As [`Slot::wait_for_fault`](crate::Slot::wait_for_fault), at a slot offset.
    pub(crate) fn wait_for_fault(&self, offset: u64) -> Option<Result<(), AbsentPage>> {
        if let Some((pages, part)) = self.absent_parts(offset..offset + 1).next() {
            return Some(pages.wait_in_handler(part.start));
        }
        // It may have become whole after the fault.
        let mut files = self.maps().filter(|(slot, ..)| slot.contains(&offset));
        files.any(|(_, file, _)| matches!(file, ImageFile::Incomplete(_))).then_some(Ok(()))
    }

    /// Waits until what the image, or the root of a branch, has at these slot offsets is here.
    ///
    /// # Errors
    /// [`AbsentPage`] names what did not come.
    pub(crate) fn wait(&self, range: Range<u64>) -> Result<(), AbsentPage> {
        self.absent_parts(range).try_for_each(|(pages, part)| pages.wait(part))
    }

    /// What slots map at once of the file: whole pages.
    pub(crate) fn prefetched(&self) -> &[Range<u64>] {
        &self.base().prefetch
    }

    /// The file that a span of this image lies in.
    fn file_of(&self, span: &Span) -> &ImageFile {
        let file = match span.origin {
            SpanPlace::File => &self.file,
            SpanPlace::Held => &self.held,
        };
        file.as_ref().expect("a span lies in a file that the image has")
    }
}

impl Image {
    /// Where the host can read the spans of the image, or of a branch's root, ascending. The
    /// first call for an image makes the map or the copy that all slots share; images in one
    /// file share the map too.
    ///
    /// # Errors
    /// The limit that was met; a file that was cut short.
    pub(crate) fn sources(&self, unsealed: Unsealed) -> Result<Vec<Source>, PagesError> {
        let base = self.base();
        let copies = match unsealed {
            Unsealed::Absent => None,
            Unsealed::OnDemand | Unsealed::Copied => base.page_copies()?,
        };
        let mut sources = Vec::with_capacity(base.spans.len());
        let mut copied = 0;
        for span in &base.spans {
            let slot = span.slot.clone();
            let file = base.file_of(span);
            if let Some(address) = file.address(span.file_offset)? {
                let on_demand = file.incomplete().is_some();
                sources.push(Source { slot, address: Some(address), on_demand });
                continue;
            }
            let address = copies.map(|copies| copies.start() + copied as usize);
            copied += span.size();
            sources.push(Source { slot, address, on_demand: true });
        }
        if unsealed == Unsealed::Copied {
            let on_demand = sources.iter_mut().filter(|source| source.on_demand);
            for source in on_demand {
                base.wait(source.slot.clone())?;
                for page in source.slot.clone().step_by(PAGE_SIZE as usize) {
                    base.fetch(page)?;
                }
                source.on_demand = false;
            }
        }
        Ok(sources)
    }

    /// Room for copies of the pages of a file that could be cut; `None` if the image has no such
    /// file.
    fn page_copies(&self) -> Result<Option<&PageCopies>, PagesError> {
        if let Some(copies) = self.copies.get() {
            return Ok(Some(copies));
        }
        let size = self.unsealed_spans().map(Span::size).sum();
        if size == 0 {
            return Ok(None);
        }
        let copies = PageCopies::new(size)?;
        Ok(Some(self.copies.get_or_init(|| copies)))
    }

    /// The spans in a file that could be cut.
    fn unsealed_spans(&self) -> impl Iterator<Item = &Span> {
        self.spans.iter().filter(|span| matches!(self.file_of(span), ImageFile::Foreign(_)))
    }

    /// Has the bytes of a page, at its slot offset, be where its [`Source`] says, which is to be
    /// copied on demand, or may be absent. Of a branch, those of its root.
    ///
    /// # Errors
    /// An error of the file, also when it was cut short; [`PagesError::PageAbsent`].
    pub(crate) fn fetch(&self, page: u64) -> Result<(), PagesError> {
        let base = self.base();
        base.wait(page..page + PAGE_SIZE)?;
        let mut before = 0;
        for span in base.unsealed_spans() {
            if span.slot.contains(&page) {
                let copies = base.page_copies()?.expect("there is room for each such span");
                let offset = before + (page - span.slot.start);
                return copies.fetch(offset, |bytes| base.read_file(page, bytes));
            }
            before += span.size();
        }
        Ok(())
    }
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Image")
            .field("extents", &self.extents)
            .field("spans", &self.spans)
            .field("branch", &self.branch)
            .finish_non_exhaustive()
    }
}

fn check_extents(extents: &[Range<u64>]) {
    let places = extents.iter().flat_map(|extent| [extent.start, extent.end]);
    assert!(
        places.clone().is_sorted() && places.clone().all(|place| place.is_multiple_of(PAGE_SIZE)),
        "extents are whole pages one behind the other, not {extents:#x?}"
    );
}

fn within(extents: &[Range<u64>], offset: u64, length: u64) -> Result<(), PagesError> {
    let extent = extents.iter().rev().find(|extent| extent.start <= offset);
    let end = offset.checked_add(length);
    match (extent.or(extents.first()), end) {
        (Some(extent), Some(end)) if offset >= extent.start && end <= extent.end => Ok(()),
        (extent, _) => {
            let extent = extent.cloned().unwrap_or_default();
            Err(PagesError::OutsideImage { offset, length, extent })
        }
    }
}

/// The pages that runs touch, with small holes between them included. Each run
/// lies within one of the extents, and so does each span.
fn spans(extents: &[Range<u64>], runs: &[(u64, &[u8])]) -> Vec<Span> {
    let cover =
        |&(offset, bytes): &(u64, &[u8])| page::covering(offset..offset + bytes.len() as u64);
    let mut pages: Vec<Range<u64>> = runs.iter().map(cover).collect();
    pages.sort_by_key(|range| range.start);

    let mut file_offset = 0;
    let mut spans = Vec::new();
    for extent in extents {
        let inside = pages.iter().filter(|range| extent.contains(&range.start));
        for slot in join(inside.cloned()) {
            let size = slot.end - slot.start;
            spans.push(Span { slot, file_offset, origin: SpanPlace::File });
            file_offset += size;
        }
    }
    spans
}

/// Ascending ranges with small holes between them included, and joined to few.
fn join(pages: impl Iterator<Item = Range<u64>>) -> Vec<Range<u64>> {
    let mut joined: Vec<Range<u64>> = Vec::new();
    for next in pages {
        match joined.last_mut() {
            Some(last) if next.start <= last.end.saturating_add(SPAN_GAP) => {
                last.end = last.end.max(next.end);
            }
            _ => joined.push(next),
        }
    }
    // Only the widest holes stay.
    let mut holes: Vec<usize> = (1..joined.len()).collect();
    holes.sort_by_key(|&index| std::cmp::Reverse(joined[index].start - joined[index - 1].end));
    holes.truncate(SPAN_COUNT_MAX - 1);
    holes.sort_unstable();
    let starts = std::iter::once(0).chain(holes.iter().copied());
    let ends = holes.iter().copied().chain(std::iter::once(joined.len()));

    let part = |(start, end): (usize, usize)| {
        Some(joined.get(start)?.start..joined.get(end.checked_sub(1)?)?.end)
    };
    starts.zip(ends).filter_map(part).collect()
}

/// Whether only this user and root can write a file or directory.
///
/// # Examples
///
/// ```
/// use std::os::fd::AsFd;
///
/// use pagefork_pages::{FileProblem, PagesError, check_writers};
///
/// let null = std::fs::File::open("/dev/null")?;
/// let found = check_writers(null.as_fd());
/// let refused = matches!(
///     found,
///     Err(PagesError::FileRefused(
///         FileProblem::WritableByOthers { .. } | FileProblem::ForeignOwner { .. }
///     ))
/// );
/// assert!(refused, "all users write to it");
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// [`PagesError::FileRefused`] says who else can.
pub fn check_writers(file: BorrowedFd<'_>) -> Result<(), PagesError> {
    match writers_problem(&sys::stat_image(file)?) {
        Some(problem) => Err(PagesError::FileRefused(problem)),
        None => Ok(()),
    }
}

/// Who can write a file or directory besides this user and root.
fn writers_problem(stat: &Stat) -> Option<FileProblem> {
    let user = rustix::process::geteuid().as_raw();
    if stat.st_uid != user && stat.st_uid != 0 {
        return Some(FileProblem::ForeignOwner { owner: stat.st_uid, user });
    }
    let mode = stat.st_mode & 0o7777;
    (mode & 0o022 != 0).then_some(FileProblem::WritableByOthers { mode })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// One extent without bounds.
    const ALL: Range<u64> = 0..u64::MAX;

    fn slots(runs: &[(u64, &[u8])]) -> Vec<Range<u64>> {
        spans(std::slice::from_ref(&ALL), runs).into_iter().map(|span| span.slot).collect()
    }

    #[test]
    fn near_runs_share_a_span_and_far_runs_have_their_own() {
        let near = MIB + PAGE_SIZE;
        assert_eq!(slots(&[(0, b"a"), (near, b"b")]), vec![0..near + PAGE_SIZE; 1]);
        let far = near + PAGE_SIZE;
        assert_eq!(slots(&[(0, b"a"), (far, b"b")]), [0..PAGE_SIZE, far..far + PAGE_SIZE]);
        assert_eq!(slots(&[(far, b"b"), (0, b"a")]).len(), 2, "in any order");
        assert!(slots(&[]).is_empty());
    }

    #[test]
    fn spans_lie_densely_in_the_file() {
        let spans = spans(std::slice::from_ref(&ALL), &[(5 * MIB - 1, b"ab"), (0, b"c")]);
        assert_eq!(spans[0], Span { slot: 0..PAGE_SIZE, file_offset: 0, origin: SpanPlace::File });
        let slot = 5 * MIB - PAGE_SIZE..5 * MIB + PAGE_SIZE;
        assert_eq!(spans[1], Span { slot, file_offset: PAGE_SIZE, origin: SpanPlace::File });
    }

    #[test]
    fn of_many_spans_the_nearest_are_joined() {
        let gaps = [10, 2, 20, 3, 30, 4];
        let mut runs: Vec<(u64, &[u8])> = vec![(0, b"x")];
        for gap in gaps {
            runs.push((runs.last().unwrap().0 + gap * MIB, b"x"));
        }
        let slots = slots(&runs);
        assert_eq!(slots.len(), SPAN_COUNT_MAX);
        let starts: Vec<u64> = slots.iter().map(|slot| slot.start / MIB).collect();
        assert_eq!(starts, [0, 10, 32, 65]);
        assert!(slots.is_sorted_by(|a, b| a.end < b.start));
        for (offset, _) in runs {
            assert!(slots.iter().any(|slot| slot.contains(&offset)));
        }
    }

    #[test]
    fn no_span_crosses_from_one_extent_to_the_next() {
        let page = PAGE_SIZE;
        let extents = [0..2 * page, 2 * page..4 * page, 6 * page..99 * MIB];
        let runs: [(u64, &[u8]); 4] =
            [(page, b"a"), (2 * page, b"b"), (3 * page, b"c"), (6 * page, b"d")];
        let slots: Vec<_> = spans(&extents, &runs).into_iter().map(|span| span.slot).collect();
        assert_eq!(slots, [page..2 * page, 2 * page..4 * page, 6 * page..7 * page]);

        // The limit holds in each extent, and never joins two.
        let extents = [0..50 * MIB, 50 * MIB..100 * MIB];
        let runs: Vec<(u64, &[u8])> = (0..50).map(|i| (2 * i * MIB, &b"x"[..])).collect();
        let spans = spans(&extents, &runs);
        for extent in &extents {
            let inside = spans.iter().filter(|span| extent.contains(&span.slot.start));
            assert!(inside.clone().all(|span| span.slot.end <= extent.end));
            assert_eq!(inside.count(), SPAN_COUNT_MAX);
        }
        for (offset, _) in runs {
            assert!(spans.iter().any(|span| span.slot.contains(&offset)));
        }
    }

    #[test]
    fn an_image_of_several_extents_reads_in_each_and_not_across() {
        let extents = vec![0..PAGE_SIZE, PAGE_SIZE..PAGE_SIZE, MIB..MIB + PAGE_SIZE];
        let runs: [(u64, &[u8]); 2] = [(PAGE_SIZE - 1, b"a"), (MIB, b"b")];
        let image = Image::with_extents("several", extents, runs).unwrap();
        assert_eq!(image.extents(), [0..PAGE_SIZE, MIB..MIB + PAGE_SIZE]);
        let mut two = [0; 2];
        image.read(PAGE_SIZE - 2, &mut two).unwrap();
        assert_eq!(&two, b"\0a");
        image.read(MIB, &mut two).unwrap();
        assert_eq!(&two, b"b\0");
        for offset in [PAGE_SIZE - 1, PAGE_SIZE, MIB - 1, MIB + PAGE_SIZE - 1] {
            let error = image.read(offset, &mut two).unwrap_err();
            assert!(matches!(error, PagesError::OutsideImage { .. }), "{offset:#x}");
        }
        let across: [(u64, &[u8]); 1] = [(MIB - 1, b"xy")];
        let error = Image::with_extents("across", image.extents().to_vec(), across).unwrap_err();
        assert!(matches!(error, PagesError::OutsideImage { .. }), "{error}");
    }

    #[test]
    fn an_image_reads_as_given_and_zero_between() {
        let runs: [(u64, &[u8]); 4] =
            [(0x2ffe, b"abcd"), (0x3001, b"X"), (0x2000 + 8 * MIB, b"far"), (0x4000, b"")];
        let image = Image::new("read\0me", 0x2000..0x2000 + 9 * MIB, runs).unwrap();
        let mut all = vec![0xff; 9 * MIB as usize];
        image.read(0x2000, &mut all).unwrap();
        let mut expected = vec![0; all.len()];
        expected[0xffe..0x1002].copy_from_slice(b"abcX");
        expected[8 * MIB as usize..][..3].copy_from_slice(b"far");
        assert!(all == expected);
        assert_eq!(image.extents(), std::slice::from_ref(&(0x2000..0x2000 + 9 * MIB)));

        let mut four = [0; 4];
        image.read(0x2ffe, &mut four).unwrap();
        assert_eq!(&four, b"abcX");
        for offset in [0x1fff, 0x2000 + 9 * MIB - 3, u64::MAX] {
            let error = image.read(offset, &mut four).unwrap_err();
            assert!(matches!(error, PagesError::OutsideImage { .. }));
        }
    }

    #[test]
    fn an_image_of_zeros_needs_no_descriptor() {
        let image = Image::new("zeros", 0..MIB, [(0u64, &b""[..])]).unwrap();
        assert!(image.file.is_none());
        let mut byte = [1];
        image.read(MIB - 1, &mut byte).unwrap();
        assert_eq!(byte, [0]);
        Image::new("nothing", 0x1000..0x1000, []).unwrap();
    }

    #[test]
    fn a_run_outside_the_extent_is_refused() {
        for offset in [0, 0xfff, 0x1ffd, 0x2000, u64::MAX - 1] {
            let error = Image::new("outside", 0x1000..0x2000, [(offset, &b"1234"[..])]);
            let error = error.unwrap_err();
            assert!(matches!(error, PagesError::OutsideImage { .. }), "{error}");
        }
    }

    #[test]
    fn long_names_are_cut_at_a_character() {
        for name in ["ä".repeat(300), "x".repeat(300), "\n%s\0".repeat(99)] {
            Image::new(&name, 0..PAGE_SIZE, [(0, &b"x"[..])]).unwrap();
        }
    }
}
