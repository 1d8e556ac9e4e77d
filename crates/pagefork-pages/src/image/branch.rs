//! Images that hold only the pages in which they differ from another.
//!
//! ```text
//!  root      file     | page | page | page | page | page |           mapped by slots
//!  branch    differs         | page |             | zero |           2 pages in host memory
//!  branch    differs         | page | page |      | zero |           1 page more; the table has 3
//! ```
//!
//! Slots map the file of the root, and copy what their image has otherwise. A branch knows its
//! root and all pages in which it differs from that, those of its ancestors included, so no
//! chain is walked. Pages are shared by all branches that have them.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use pagefork_layout::page::PAGE_SIZE;

use super::{Image, Span, check_extents, within};
use crate::image::read::PageReader;
use crate::os::error::PagesError;

/// A branch differs in at most this many pages from its root, unless it is of [`ImageForm::Changes`]. Each
/// slot has a copy of all of them, so an image with more is cheaper to map as a whole.
pub const BRANCH_PAGES_MAX: usize = 1024;

/// A branch has at most this many ancestors. They are held as long as it is, with pages that it
/// has otherwise.
pub const BRANCH_DEPTH_MAX: u32 = 32;

/// With at most this many pages in which it differs from its root, an image is a branch of
/// however small a root.
const FEW_PAGES: usize = 16;

/// How an image is held that is as another but for some pages.
/// [`Slot::snapshot`](crate::Slot::snapshot) has an example.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ImageForm {
    /// As a [branch](Image::branch), if the pages are few: cheap to make, and each slot has a copy
    /// of the pages.
    Branch,
    /// With a file of its own, which all slots map.
    Whole,
    /// As [`ImageForm::Branch`], also if the pages are many, up to half of what the root has: it costs
    /// what they do and no more, and each slot has a copy of all of them. Where it is known what was
    /// written, that counts as changed, and is not compared. For what goes on in one slot alone.
    Changes,
}

/// Whole pages that lie in bytes which others may hold, too.
/// [`Image::of_shared_changes`] has an example.
#[derive(Clone, Debug)]
pub struct HeldRun {
    /// Slot offset of the first page.
    pub offset: u64,
    /// What the pages lie in.
    pub bytes: Arc<Vec<u8>>,
    /// Which of the bytes they are.
    pub part: Range<usize>,
}

/// The bytes of a page. They lie at a multiple of 8.
#[repr(C, align(8))]
struct PageBytes([u8; PAGE_SIZE as usize]);

/// What makes an image a branch.
pub(super) struct Branch {
    parent: Arc<Image>,
    /// Invariant: it is no branch.
    root: Arc<Image>,
    /// Number of ancestors, at most [`BRANCH_DEPTH_MAX`].
    depth: u32,
    /// The pages that are not as the root has them, but for those of [`ImageForm::Changes`], which may be.
    /// Invariant: ascending, within the extents.
    differing: Vec<DifferingPage>,
    /// Slot offsets of the pages that are not as the parent has them, ascending.
    own: Vec<u64>,
}

/// A page that a branch has otherwise than its root.
#[derive(Clone)]
pub(crate) struct DifferingPage {
    /// Slot offset.
    pub(crate) page: u64,
    /// `None`: it is zero.
    contents: Option<PageContents>,
}

/// Where the bytes of a page lie.
#[derive(Clone)]
enum PageContents {
    Own(Arc<PageBytes>),
    /// From this index on. Invariant: there are as many, and their address is a multiple of 8.
    Shared(Arc<Vec<u8>>, usize),
}

impl DifferingPage {
    /// # Panics
    /// If it is not as many bytes as a page.
    fn new(page: u64, bytes: &[u8]) -> Self {
        let contents = (!is_zero(bytes)).then(|| {
            let bytes = bytes.try_into().expect("pages are of one size");
            PageContents::Own(Arc::new(PageBytes(bytes)))
        });
        Self { page, contents }
    }

    /// As [`Self::new`], of bytes that are held where they lie: those from index `at` on.
    fn shared(page: u64, all: &Arc<Vec<u8>>, at: usize) -> Self {
        let bytes = &all[at..at + PAGE_SIZE as usize];
        if !bytes.as_ptr().cast::<u64>().is_aligned() {
            return Self::new(page, bytes);
        }
        let contents = (!is_zero(bytes)).then(|| PageContents::Shared(Arc::clone(all), at));
        Self { page, contents }
    }

    /// Whether both are the same page with the same contents, as far as that shows without a look at them.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let is_same = match (&self.contents, &other.contents) {
            (None, None) => true,
            (Some(PageContents::Own(own)), Some(PageContents::Own(others))) => {
                Arc::ptr_eq(own, others)
            }
            (Some(PageContents::Shared(own, at)), Some(PageContents::Shared(others, of_other))) => {
                Arc::ptr_eq(own, others) && at == of_other
            }
            _ => false,
        };
        is_same && self.page == other.page
    }

    /// Its bytes, at a multiple of 8, which never change while the image lives; `None` if it is
    /// zero.
    pub(crate) fn bytes(&self) -> Option<&[u8; PAGE_SIZE as usize]> {
        self.contents.as_ref().map(|contents| match contents {
            PageContents::Own(bytes) => &bytes.0,
            PageContents::Shared(all, at) => {
                let bytes = all[*at..].first_chunk();
                bytes.expect("there are as many: the type's invariant")
            }
        })
    }
}

impl Image {
    /// An image that is as `parent` but for some pages, of which it alone holds the contents:
    /// a *branch*. `runs` are whole pages at slot offsets of whole pages; where they overlap, the
    /// later one holds. Those that are as the parent has them are left out, and nothing is held
    /// of pages that are zero. The extents hold those of the parent; what is new of them is zero
    /// where no run lies.
    ///
    /// The pages lie in ordinary memory of this process: a branch takes no descriptor and no
    /// map. Slots map the file of the [root](Image::root), and copy the pages in which the
    /// branch differs from that.
    ///
    /// The image becomes whole, with a file of its own and no parent, where that is cheaper for
    /// slots: if it differs in more than [`BRANCH_PAGES_MAX`] pages from its root, or in more
    /// than half as many as the root has in its file, but for a few; or if it had more than
    /// [`BRANCH_DEPTH_MAX`] ancestors. `name` is for its file then, as of [`Image::new`].
    ///
    /// # Errors
    /// [`PagesError::OutsideImage`] for a run outside the extents; an error of the parent's
    /// file, also when it was cut short; else the limit that was met.
    ///
    /// # Panics
    /// If the extents or runs are not whole pages, or extents are not ascending, one behind the
    /// other, or do not hold those of the parent.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use pagefork_pages::Image;
    ///
    /// let root = Image::new("example", 0..1 << 20, [(0, &[1; 1 << 20][..])])?;
    /// let branch = Image::branch(&root, "example", vec![0..1 << 20], [(4096, &[2; 4096][..])])?;
    /// let mut bytes = [0; 2];
    /// branch.read(4095, &mut bytes)?;
    /// assert_eq!(bytes, [1, 2]);
    /// assert!(Arc::ptr_eq(branch.parent().unwrap(), &root));
    /// assert!(Arc::ptr_eq(branch.root(), &root));
    /// assert_eq!((branch.depth(), branch.own_pages()), (1, &[4096][..]));
    /// assert_eq!((root.copied_pages(), branch.copied_pages()), (0, 1));
    /// assert_eq!((root.size(), branch.size()), (1 << 20, 4096));
    /// # Ok::<(), pagefork_pages::PagesError>(())
    /// ```
    pub fn branch<'a>(
        parent: &Arc<Self>,
        name: &str,
        extents: Vec<Range<u64>>,
        runs: impl IntoIterator<Item = (u64, &'a [u8])>,
    ) -> Result<Arc<Self>, PagesError> {
        let mut pages: Vec<(u64, &[u8])> = Vec::new();
        for (offset, bytes) in runs {
            let length = bytes.len() as u64;
            assert!(
                offset.is_multiple_of(PAGE_SIZE) && length.is_multiple_of(PAGE_SIZE),
                "runs of a branch are whole pages, not {length} bytes at {offset:#x}"
            );
            within(&extents, offset, length)?;
            let places = (offset..).step_by(PAGE_SIZE as usize);
            pages.extend(places.zip(bytes.chunks(PAGE_SIZE as usize)));
        }
        pages.sort_by_key(|(page, _)| *page);
        pages.dedup_by(|later, last| {
            let same = later.0 == last.0;
            if same {
                last.1 = later.1;
            }
            same
        });
        let mut reader = PageReader::new(parent)?;
        let mut changed = Vec::with_capacity(pages.len());
        for (page, bytes) in pages {
            if !reader.is_equal(page, bytes)? {
                changed.push((page, bytes));
            }
        }
        Self::of_changed(parent, name, extents, &changed, ImageForm::Branch)
    }

    /// As [`Image::branch`], of [`ImageForm::Changes`]: however many the pages are, up to half of what the
    /// root has, they are not compared with the parent, and held where they lie. It becomes whole where
    /// they are more, or there were too many ancestors.
    ///
    /// # Errors
    /// As of [`Image::branch`].
    ///
    /// # Panics
    /// As [`Image::branch`]; if the runs are not ascending and apart, or a part lies outside its bytes.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use pagefork_pages::{Image, HeldRun};
    ///
    /// let root = Image::new("example", 0..1 << 20, [(0, &[1; 1 << 20][..])])?;
    /// let bytes = Arc::new(vec![2; 3 * 4096]);
    /// let run = HeldRun { offset: 8192, bytes: Arc::clone(&bytes), part: 4096..3 * 4096 };
    /// let branch = Image::of_shared_changes(&root, "example", vec![0..1 << 20], &[run])?;
    /// assert_eq!(branch.own_pages(), &[8192, 12288][..]);
    /// assert_eq!(Arc::strong_count(&bytes), 3);
    /// # Ok::<(), pagefork_pages::PagesError>(())
    /// ```
    pub fn of_shared_changes(
        parent: &Arc<Self>,
        name: &str,
        extents: Vec<Range<u64>>,
        runs: &[HeldRun],
    ) -> Result<Arc<Self>, PagesError> {
        let mut changed: Vec<(u64, &[u8])> = Vec::new();
        let mut places = Vec::new();
        for HeldRun { offset, bytes, part } in runs {
            let run = &bytes[part.clone()];
            let length = run.len() as u64;
            assert!(
                offset.is_multiple_of(PAGE_SIZE) && length.is_multiple_of(PAGE_SIZE),
                "runs of a branch are whole pages, not {length} bytes at {offset:#x}"
            );
            assert!(
                changed.last().is_none_or(|(last, _)| last < offset),
                "runs are ascending and apart, and there is one at {offset:#x}"
            );
            within(&extents, *offset, length)?;
            let pages = (*offset..).step_by(PAGE_SIZE as usize);
            changed.extend(pages.zip(run.chunks(PAGE_SIZE as usize)));
            places.extend(part.clone().step_by(PAGE_SIZE as usize).map(|at| (bytes, at)));
        }
        let hold =
            |number: usize, page| DifferingPage::shared(page, places[number].0, places[number].1);
        Self::of_held(parent, name, extents, &changed, ImageForm::Changes, hold)
    }

    /// As [`Image::branch`], of pages that are ascending and not as the parent has them; of
    /// [`ImageForm::Changes`], and of more than [`BRANCH_PAGES_MAX`], some may be.
    pub(crate) fn of_changed(
        parent: &Arc<Self>,
        name: &str,
        extents: Vec<Range<u64>>,
        changed: &[(u64, &[u8])],
        form: ImageForm,
    ) -> Result<Arc<Self>, PagesError> {
        let hold = |number: usize, page| DifferingPage::new(page, changed[number].1);
        Self::of_held(parent, name, extents, changed, form, hold)
    }

    /// As [`Self::of_changed`]. Copies of pages go into `room`, if they need half of it or more, and no more
    /// than that: all of it is held as long as one of them.
    pub(crate) fn of_changed_in(
        parent: &Arc<Self>,
        name: &str,
        extents: Vec<Range<u64>>,
        changed: &[(u64, &[u8])],
        form: ImageForm,
        room: &mut Vec<u8>,
    ) -> Result<Arc<Self>, PagesError> {
        let size = changed.len() * PAGE_SIZE as usize;
        let fits = (room.capacity() / 2..=room.capacity()).contains(&size);
        if form != ImageForm::Changes || !fits {
            return Self::of_changed(parent, name, extents, changed, form);
        }
        let mut all = std::mem::take(room);
        all.clear();
        changed.iter().for_each(|(_, bytes)| all.extend_from_slice(bytes));
        let all = Arc::new(all);
        let hold =
            |number: usize, page| DifferingPage::shared(page, &all, number * PAGE_SIZE as usize);
        Self::of_held(parent, name, extents, changed, form, hold)
    }

    /// As [`Self::of_changed`]; `hold` is told the number of a page that is changed, and where it lies.
    fn of_held(
        parent: &Arc<Self>,
        name: &str,
        extents: Vec<Range<u64>>,
        changed: &[(u64, &[u8])],
        form: ImageForm,
        hold: impl Fn(usize, u64) -> DifferingPage,
    ) -> Result<Arc<Self>, PagesError> {
        check_extents(&extents);
        let held = |inner: &Range<u64>| {
            extents.iter().any(|outer| outer.start <= inner.start && inner.end <= outer.end)
        };
        assert!(
            parent.extents.iter().all(held),
            "a branch of {:#x?} does not lie in {extents:#x?}",
            parent.extents
        );
        let (root, old) = (parent.root(), parent.differing());
        let news = changed.iter().filter(|(page, _)| find(old, *page).is_none()).count();
        let depth = parent.depth() + 1;
        let is_whole = form == ImageForm::Whole;
        if is_whole || depth > BRANCH_DEPTH_MAX || !is_few(old.len() + news, root, form) {
            return whole(parent, name, extents, changed);
        }
        let mut reader = PageReader::new(root)?;
        let mut differing = Vec::with_capacity(old.len() + news);
        let mut rest = old.iter().peekable();
        for (number, &(page, bytes)) in changed.iter().enumerate() {
            while let Some(before) = rest.next_if(|before| before.page < page) {
                differing.push(before.clone());
            }
            // Only what the parent has otherwise can be again as in the root.
            let was_other = rest.next_if(|before| before.page == page).is_some();
            let is_looked_at = was_other && form != ImageForm::Changes;
            if !is_looked_at || !reader.is_equal(page, bytes)? {
                differing.push(hold(number, page));
            }
        }
        differing.extend(rest.cloned());
        let own = changed.iter().map(|(page, _)| *page).collect();
        let branch =
            Branch { parent: Arc::clone(parent), root: Arc::clone(root), depth, differing, own };
        let mut image = Self::of_parts(extents, Vec::new(), None);
        image.extents.retain(|extent| !extent.is_empty());
        image.branch = Some(branch);
        Ok(Arc::new(image))
    }

    /// The image that a branch was made of; `None` of an image that is no branch.
    /// [`Image::branch`] has an example.
    pub fn parent(&self) -> Option<&Arc<Self>> {
        self.branch.as_ref().map(|branch| &branch.parent)
    }

    /// The image whose file slots map: the first ancestor of a branch, or else the image itself.
    ///
    /// # Examples
    ///
    /// See [`Image::branch`].
    pub fn root(self: &Arc<Self>) -> &Arc<Self> {
        self.branch.as_ref().map_or(self, |branch| &branch.root)
    }

    /// Number of ancestors.
    ///
    /// # Examples
    ///
    /// See [`Image::branch`].
    pub fn depth(&self) -> u32 {
        self.branch.as_ref().map_or(0, |branch| branch.depth)
    }

    /// Slot offsets of the pages that a branch has otherwise than its parent, ascending; none of
    /// an image that is no branch.
    ///
    /// # Examples
    ///
    /// See [`Image::branch`].
    pub fn own_pages(&self) -> &[u64] {
        self.branch.as_ref().map_or(&[], |branch| &branch.own)
    }

    /// Bytes of contents that the image has for itself, in its file or, of a branch, in memory:
    /// what it takes besides its ancestors. Holes between spans are counted as far as they are
    /// mapped.
    ///
    /// # Examples
    ///
    /// See [`Image::branch`].
    pub fn size(&self) -> u64 {
        let Some(branch) = &self.branch else {
            return self.spans.iter().map(Span::size).sum();
        };
        let held = |page: &&u64| {
            find(&branch.differing, **page).is_some_and(|page| page.contents.is_some())
        };
        branch.own.iter().filter(held).count() as u64 * PAGE_SIZE
    }

    /// Number of pages that each slot of this image has a copy of: those in which a branch
    /// differs from its root.
    ///
    /// # Examples
    ///
    /// See [`Image::branch`].
    pub fn copied_pages(&self) -> usize {
        self.differing().len()
    }

    /// The pages in which a branch differs from its root, ascending.
    pub(crate) fn differing(&self) -> &[DifferingPage] {
        self.branch.as_ref().map_or(&[], |branch| &branch.differing)
    }

    /// The bytes from slot offset `offset` on, `length` of whole pages, where they lie in memory one behind the other,
    /// as [`Image::read`] gives them: of pages that a branch has otherwise than its root. `None`: they lie elsewhere,
    /// or apart.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use pagefork_pages::{HeldRun, Image};
    ///
    /// let root = Image::new("example", 0..1 << 20, [(0, &[1; 1 << 20][..])])?;
    /// let run = HeldRun { offset: 8192, bytes: Arc::new(vec![2; 3 * 4096]), part: 0..3 * 4096 };
    /// let zeros = HeldRun { offset: 40960, bytes: Arc::new(vec![0; 4096]), part: 0..4096 };
    /// let branch = Image::of_shared_changes(&root, "example", vec![0..1 << 20], &[run, zeros])?;
    /// assert_eq!(branch.held(8192, 3 * 4096), Some(&[2; 3 * 4096][..]));
    /// assert_eq!(branch.held(8192, 4 * 4096), None);
    /// assert_eq!(branch.held(40960, 4096), Some(&[0; 4096][..]));
    /// assert_eq!((branch.held(4096, 8192), root.held(8192, 4096)), (None, None));
    /// # Ok::<(), pagefork_pages::PagesError>(())
    /// ```
    pub fn held(&self, offset: u64, length: u64) -> Option<&[u8]> {
        let differing = self.differing();
        let first = differing.binary_search_by_key(&offset, |page| page.page).ok()?;
        let count = (length / PAGE_SIZE) as usize;
        let pages = differing.get(first..first.checked_add(count)?)?;
        if let [page] = pages {
            return Some(page.bytes().map_or(&ZEROS[..], |bytes| &bytes[..]));
        }
        let Some(PageContents::Shared(all, start)) = &pages.first()?.contents else { return None };
        let mut places =
            (offset..).step_by(PAGE_SIZE as usize).zip((*start..).step_by(PAGE_SIZE as usize));
        let follows = |page: &DifferingPage| {
            let (place, at) = places.next().expect("there is no last one");
            let Some(PageContents::Shared(own, own_at)) = &page.contents else { return false };
            page.page == place && Arc::ptr_eq(own, all) && *own_at == at
        };
        pages.iter().all(follows).then(|| &all[*start..*start + length as usize])
    }

    /// The page if a branch has it otherwise than its root.
    pub(crate) fn differing_page(&self, page: u64) -> Option<&DifferingPage> {
        find(self.differing(), page)
    }

    /// The image with the file: the root of a branch.
    pub(super) fn base(&self) -> &Self {
        self.branch.as_ref().map_or(self, |branch| &branch.root)
    }
}

/// Whether an image that differs in this many pages from `root` is to be a branch.
fn is_few(count: usize, root: &Image, form: ImageForm) -> bool {
    let half = root.size() / PAGE_SIZE / 2;
    let is_bounded = form == ImageForm::Changes || count <= BRANCH_PAGES_MAX;
    is_bounded && (count <= FEW_PAGES || count as u64 <= half)
}

/// An image as `parent` but for some pages, which are ascending, with a file of its own.
fn whole(
    parent: &Arc<Image>,
    name: &str,
    extents: Vec<Range<u64>>,
    changed: &[(u64, &[u8])],
) -> Result<Arc<Image>, PagesError> {
    let is_changed = |page: u64| changed.binary_search_by_key(&page, |(page, _)| *page).is_ok();
    let data = parent.data()?;
    let mut pages: Vec<(u64, &[u8])> = Vec::new();
    for (start, bytes) in &data {
        let places = (*start..).step_by(PAGE_SIZE as usize);
        let of_file = places.zip(bytes.chunks(PAGE_SIZE as usize));
        let holds = |page: u64| parent.differing_page(page).is_none() && !is_changed(page);
        pages.extend(of_file.filter(|(page, _)| holds(*page)));
    }
    let differing = parent.differing().iter().filter(|differing| !is_changed(differing.page));
    pages.extend(differing.filter_map(|differing| Some((differing.page, &differing.bytes()?[..]))));
    pages.extend(changed);
    pages.retain(|(_, bytes)| !is_zero(bytes));
    // Neighbours are written together.
    pages.sort_unstable_by_key(|(page, _)| *page);
    let mut image = Image::made_of(name, extents, pages)?;
    let own = changed.iter().map(|(page, _)| *page).collect();
    image.predecessor = Some((Arc::downgrade(parent), own));
    Ok(Arc::new(image))
}

/// Lays differing pages over bytes from slot offset `offset` on.
pub(super) fn lay_over(differing: &[DifferingPage], offset: u64, into: &mut [u8]) {
    let end = offset + into.len() as u64;
    let first = differing.partition_point(|differing| differing.page + PAGE_SIZE <= offset);
    for differing in differing[first..].iter().take_while(|differing| differing.page < end) {
        let page = differing.page;
        let common = page.max(offset)..(page + PAGE_SIZE).min(end);
        let to = &mut into[(common.start - offset) as usize..(common.end - offset) as usize];
        match differing.bytes() {
            Some(bytes) => {
                to.copy_from_slice(&bytes[(common.start - page) as usize..][..to.len()]);
            }
            None => to.fill(0),
        }
    }
}

fn find(differing: &[DifferingPage], page: u64) -> Option<&DifferingPage> {
    let found = differing.binary_search_by_key(&page, |differing| differing.page);
    found.ok().map(|index| &differing[index])
}

/// A page of zeros.
static ZEROS: [u8; PAGE_SIZE as usize] = [0; _];

/// Whether all bytes of a page are zero.
pub(super) fn is_zero(page: &[u8]) -> bool {
    page == &ZEROS[..]
}

impl fmt::Debug for Branch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Branch")
            .field("depth", &self.depth)
            .field("differing", &self.differing.len())
            .field("own", &self.own.len())
            .finish_non_exhaustive()
    }
}
