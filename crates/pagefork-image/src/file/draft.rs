//! What is to be written, and from where.

use std::io::{Seek, Write};
use std::ops::Range;

use pagefork_layout::page::PAGE_SIZE;

use crate::base::error::ImageError;
use crate::base::hash::ContentHash;
use crate::base::limits::ImageLimits;
use crate::file::assemble::DataWriter;
use crate::file::header::ImageHeader;
use crate::file::manifest::Manifest;
use crate::file::plan::{self, RangeList};
use crate::file::shape;
use crate::file::signature::{self, SecretKey};
use crate::tree::{self, GROUP_SIZE};

/// Where the contents of an image come from. They are read up to twice, each time in order, so
/// they must not change meanwhile.
pub trait PageSource {
    /// The slot offsets of instance number `instance`, from 0, at which it may have anything but
    /// zeros; for a delta, at which it may differ from its parent. Whole pages, ascending, apart,
    /// within its extents.
    ///
    /// # Errors
    /// What the source fails with: see [`ImageError::source_failed`].
    fn ranges(&self, instance: usize) -> Result<Vec<Range<u64>>, ImageError>;

    /// Fills `into`, of whole pages, with the contents of an instance from slot offset `offset` on.
    ///
    /// # Errors
    /// What the source fails with: see [`ImageError::source_failed`].
    fn read(&self, instance: usize, offset: u64, into: &mut [u8]) -> Result<(), ImageError>;

    /// The contents of an instance from slot offset `offset` on, `length` bytes of whole pages, where they lie in
    /// memory, one behind the other: as [`PageSource::read`] gives them. `None`: they are read.
    fn held(&self, instance: usize, offset: u64, length: u64) -> Option<&[u8]> {
        let _ = (instance, offset, length);
        None
    }

    /// Whether a delta has all pages of the [ranges](PageSource::ranges) of an instance, also those that
    /// are as its parent has them: to look at the parent would cost more than they do.
    fn has_all(&self, instance: usize) -> bool {
        let _ = instance;
        false
    }

    /// Fills `into` with the bytes of attachment number `index`, from 0, from `offset` on.
    ///
    /// # Errors
    /// What the source fails with: see [`ImageError::source_failed`].
    fn read_attachment(
        &self,
        index: usize,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), ImageError> {
        let _ = (offset, into);
        Err(ImageError::Invalid(format!("there are no contents for attachment {index}")))
    }
}

/// Contents in memory: runs of whole pages of each instance.
///
/// # Examples
///
/// ```
/// use pagefork_image::{PageRuns, PageSource};
///
/// let runs = PageRuns::new(vec![vec![(4096, vec![1; 4096])]]).with_attachments(vec![vec![2; 3]]);
/// let mut bytes = vec![0; 8192];
/// runs.read(0, 0, &mut bytes)?;
/// assert_eq!((bytes[4095], bytes[4096]), (0, 1));
/// # Ok::<(), pagefork_image::ImageError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct PageRuns {
    instances: Vec<Vec<(u64, Vec<u8>)>>,
    attachments: Vec<Vec<u8>>,
}

impl PageRuns {
    /// For each instance its runs: slot offset and bytes.
    ///
    /// # Panics
    /// If the runs of an instance are not whole pages, ascending and apart.
    pub fn new(instances: Vec<Vec<(u64, Vec<u8>)>>) -> Self {
        for runs in &instances {
            let runs: Vec<_> =
                runs.iter().map(|(start, bytes)| *start..*start + bytes.len() as u64).collect();
            assert!(shape::are_pages(&runs), "runs are ascending whole pages, not {runs:?}");
        }
        Self { instances, attachments: Vec::new() }
    }

    /// The same with the contents of attachments.
    pub fn with_attachments(self, attachments: Vec<Vec<u8>>) -> Self {
        Self { attachments, ..self }
    }
}

impl PageSource for PageRuns {
    fn ranges(&self, instance: usize) -> Result<Vec<Range<u64>>, ImageError> {
        let runs = self.instances.get(instance).into_iter().flatten();
        Ok(runs.map(|(start, bytes)| *start..*start + bytes.len() as u64).collect())
    }

    fn read(&self, instance: usize, offset: u64, into: &mut [u8]) -> Result<(), ImageError> {
        into.fill(0);
        let wanted = offset..offset + into.len() as u64;
        for (start, bytes) in self.instances.get(instance).into_iter().flatten() {
            let part = wanted.start.max(*start)..wanted.end.min(*start + bytes.len() as u64);
            if part.start < part.end {
                let to = (part.start - offset) as usize..(part.end - offset) as usize;
                let from = (part.start - start) as usize..(part.end - start) as usize;
                into[to].copy_from_slice(&bytes[from]);
            }
        }
        Ok(())
    }

    fn held(&self, instance: usize, offset: u64, length: u64) -> Option<&[u8]> {
        let runs = self.instances.get(instance)?;
        let behind = runs.partition_point(|(start, _)| *start <= offset);
        let (start, bytes) = runs.get(behind.checked_sub(1)?)?;
        let first = usize::try_from(offset - start).ok()?;
        bytes.get(first..first.checked_add(usize::try_from(length).ok()?)?)
    }

    fn read_attachment(
        &self,
        index: usize,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), ImageError> {
        let bytes = self.attachments.get(index).and_then(|bytes| {
            let start = usize::try_from(offset).ok()?;
            bytes.get(start..start.checked_add(into.len())?)
        });
        let missing = || ImageError::Invalid(format!("attachment {index} is shorter than it says"));
        into.copy_from_slice(bytes.ok_or_else(missing)?);
        Ok(())
    }
}

/// An image that is to be written: a full one, or, made by
/// [`ImageChain::delta`](crate::ImageChain::delta), one that has only what differs from another.
///
/// # Examples
///
/// ```
/// use pagefork_image::{ImageDraft, Manifest, PageRuns, SavedInstance, SecretKey};
///
/// let instance = SavedInstance { extents: vec![0..1 << 20], ..SavedInstance::default() };
/// let manifest = Manifest { instances: vec![instance], ..Manifest::default() };
/// // Zeros are left out, of whole pages.
/// let pages = PageRuns::new(vec![vec![(0, vec![0; 8192]), (16384, vec![7; 4096])]]);
/// let key = SecretKey::from_seed([7; 32]); // Random bytes, in earnest.
/// let mut file = std::io::Cursor::new(Vec::new());
/// let written = ImageDraft::new(manifest, &pages).sign_with(&[key]).write(&mut file)?;
/// assert_eq!(written.manifest.data_size, 4096);
/// assert_eq!(written.size, file.into_inner().len() as u64);
/// # Ok::<(), pagefork_image::ImageError>(())
/// ```
pub struct ImageDraft<'a> {
    manifest: Manifest,
    source: &'a dyn PageSource,
    /// What a delta is compared with. It has zeros wherever it has nothing.
    parent: Option<&'a dyn PageSource>,
    signers: Vec<SecretKey>,
    limits: ImageLimits,
}

/// What was written.
///
/// [`ImageDraft`] has an example.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct WrittenImage {
    /// The image's identity.
    pub hash: ContentHash,
    /// The manifest with all that the writer filled in.
    pub manifest: Manifest,
    /// Bytes of the file. Holes are counted.
    pub size: u64,
}

impl<'a> ImageDraft<'a> {
    /// A full image.
    pub fn new(manifest: Manifest, source: &'a dyn PageSource) -> Self {
        let manifest = Manifest { parent: None, ..manifest };
        let (parent, signers, limits) = (None, Vec::new(), ImageLimits::default());
        Self { manifest, source, parent, signers, limits }
    }

    /// What differs from `parent`, which `manifest` names.
    pub(crate) fn with_parent(
        manifest: Manifest,
        source: &'a dyn PageSource,
        parent: &'a dyn PageSource,
    ) -> Self {
        let (parent, signers, limits) = (Some(parent), Vec::new(), ImageLimits::default());
        Self { manifest, source, parent, signers, limits }
    }

    /// Has the image signed by these keys.
    #[must_use]
    pub fn sign_with(self, keys: &[SecretKey]) -> Self {
        Self { signers: keys.to_vec(), ..self }
    }

    /// Has other limits than the default ones: nothing is written that they would not let be read.
    #[must_use]
    pub fn with_limits(self, limits: &ImageLimits) -> Self {
        Self { limits: limits.clone(), ..self }
    }

    /// Writes the image into `out`, which is empty and a file or what can be one: where groups of
    /// pages are zero, nothing is written.
    ///
    /// # Errors
    /// [`ImageError::Invalid`] for a manifest or ranges that cannot be; [`ImageError::TooLarge`];
    /// what the source or `out` fails with.
    pub fn write(self, out: impl Write + Seek) -> Result<WrittenImage, ImageError> {
        self.write_but(out, |_, _| Vec::new())
    }

    /// The same, but for groups in ranges of the file that the caller fills: `but` gives them,
    /// ascending, for the manifest with all places in it, and where the data begin.
    ///
    /// # Errors
    /// As [`ImageDraft::write`].
    pub(crate) fn write_but(
        mut self,
        out: impl Write + Seek,
        but: impl FnOnce(&Manifest, u64) -> Vec<Range<u64>>,
    ) -> Result<WrittenImage, ImageError> {
        self.find_pages()?;
        plan::place(&mut self.manifest)?;
        self.manifest.root = ContentHash::default();
        let invalid = |error| match error {
            ImageError::Damaged(what) => ImageError::Invalid(format!("no image can be so: {what}")),
            other => other,
        };
        shape::check(&self.manifest, &self.limits).map_err(invalid)?;
        let mut header = ImageHeader {
            // The root takes the same room whatever it is.
            manifest_size: self.manifest.encode()?.len() as u64,
            signatures_size: (self.signers.len() * signature::SIZE) as u64,
            data_size: self.manifest.data_size,
            manifest_hash: ContentHash::default(),
        };
        header.check_limits(&self.limits)?;
        let left_out = but(&self.manifest, header.data_start());
        let mut data = DataWriter::new(out, header.data_start(), header.data_size);
        data.leave_out(left_out);
        self.write_data(&mut data)?;
        let tree = data.tree();
        self.manifest.root = tree.root();
        let manifest = self.manifest.encode()?;
        header.manifest_hash = ContentHash::of(&manifest);
        let sign = |key: &SecretKey| key.sign(header.manifest_hash);
        let signatures: Vec<u8> = self.signers.iter().flat_map(sign).collect();
        signature::check(&signatures, header.manifest_hash).map_err(invalid)?;
        drop(data.finish(&header, &manifest, &signatures, &tree)?);
        let (hash, size) = (header.manifest_hash, header.file_size());
        Ok(WrittenImage { hash, manifest: self.manifest, size })
    }

    /// Finds the pages that the file has to have.
    fn find_pages(&mut self) -> Result<(), ImageError> {
        for (index, instance) in self.manifest.instances.iter_mut().enumerate() {
            let ranges = self.source.ranges(index)?;
            if !shape::are_pages(&ranges) || !shape::lie_in(&ranges, &instance.extents) {
                return Err(ImageError::Invalid(format!(
                    "the contents of instance {index} are not ascending whole pages of it"
                )));
            }
            let (mut pages, mut zeroed) = (RangeList::default(), RangeList::default());
            let extents = &instance.extents;
            let starts_extent =
                |place| extents.binary_search_by_key(&place, |extent| extent.start).is_ok();
            let read = |offset, into: &mut [u8]| self.source.read(index, offset, into);
            let parent = self.parent.zip(instance.parent_instance);
            let compared = parent.filter(|_| !self.source.has_all(index));
            let held = |offset| self.source.held(index, offset, PAGE_SIZE);
            let mut old = [0; PAGE_SIZE as usize];
            plan::each_page(&ranges, held, read, |offset, page| {
                let range = offset..offset + PAGE_SIZE;
                if let Some((parent, number)) = compared {
                    parent.read(number as usize, offset, &mut old)?;
                    if page == old {
                        return Ok(());
                    }
                }
                match (plan::is_zero(page), parent) {
                    (false, _) if starts_extent(offset) => pages.0.push(range),
                    (false, _) => pages.push(range),
                    (true, Some(_)) if starts_extent(offset) => zeroed.0.push(range),
                    (true, Some(_)) => zeroed.push(range),
                    (true, None) => {}
                }
                Ok(())
            })?;
            instance.zeroed = zeroed.0;
            instance.spans = match self.parent {
                None => plan::spans(&instance.extents, &pages.0),
                Some(_) => plan::dense_spans(&pages.0),
            };
        }
        Ok(())
    }

    /// Writes all groups, each with the parts of spans and attachments that lie in it.
    fn write_data(&self, data: &mut DataWriter<impl Write + Seek>) -> Result<(), ImageError> {
        let parts = self.parts();
        let mut first = 0;
        let mut group = vec![0; GROUP_SIZE as usize];
        while data.next_size() > 0 {
            let start = data.next() * GROUP_SIZE;
            let end = start + data.next_size();
            let group = &mut group[..(end - start) as usize];
            while parts.get(first).is_some_and(|part| part.data.end <= start) {
                first += 1;
            }
            if let Some(held) = parts.get(first).and_then(|part| self.held_group(part, start..end))
            {
                data.push(held)?;
                continue;
            }
            group.fill(0);
            for part in parts[first..].iter().take_while(|part| part.data.start < end) {
                let common = part.data.start.max(start)..part.data.end.min(end);
                let into = (common.start - start) as usize..(common.end - start) as usize;
                let (into, skipped) = (&mut group[into], common.start - part.data.start);
                match part.origin {
                    RunOrigin::Pages { instance, start } => {
                        self.fill(instance, start + skipped, into)?;
                    }
                    RunOrigin::Attachment(index) => {
                        self.source.read_attachment(index, skipped, into)?;
                    }
                }
            }
            data.push(group)?;
        }
        debug_assert_eq!(tree::group_count(self.manifest.data_size), data.next());
        Ok(())
    }

    /// A group of the data where it lies in memory, if that is known and the part has all of it: it need not be
    /// copied.
    fn held_group(&self, part: &DataPart, group: Range<u64>) -> Option<&[u8]> {
        let RunOrigin::Pages { instance, start } = part.origin else { return None };
        if group.start < part.data.start || part.data.end < group.end {
            return None;
        }
        self.source.held(instance, start + (group.start - part.data.start), group.end - group.start)
    }

    /// Fills `into` with whole pages of an instance. To read them takes calls of the system, so what lies in memory is
    /// copied from there.
    fn fill(&self, instance: usize, offset: u64, into: &mut [u8]) -> Result<(), ImageError> {
        let held = |at: u64| self.source.held(instance, at, PAGE_SIZE);
        let mut filled = 0;
        while filled < into.len()
            && let Some(page) = held(offset + filled as u64)
        {
            into[filled..filled + page.len()].copy_from_slice(page);
            filled += page.len();
        }
        match filled == into.len() {
            true => Ok(()),
            false => self.source.read(instance, offset + filled as u64, &mut into[filled..]),
        }
    }

    /// All that has bytes in the data, in order.
    fn parts(&self) -> Vec<DataPart> {
        let instances = self.manifest.instances.iter().enumerate();
        let of_pages = instances.flat_map(|(instance, saved)| {
            saved.spans.iter().map(move |span| DataPart {
                data: span.data_offset..span.data_offset + span.size,
                origin: RunOrigin::Pages { instance, start: span.start },
            })
        });
        let attachments = self.manifest.attachments.iter().enumerate();
        let of_attachments = attachments.map(|(index, saved)| DataPart {
            data: saved.data_offset..saved.data_offset + saved.size,
            origin: RunOrigin::Attachment(index),
        });
        of_pages.chain(of_attachments).collect()
    }
}

/// Bytes of the data, and where they come from.
struct DataPart {
    data: Range<u64>,
    origin: RunOrigin,
}

enum RunOrigin {
    /// An instance, from this slot offset on.
    Pages { instance: usize, start: u64 },
    /// The attachment with this number, from its start on.
    Attachment(usize),
}
