//! Copying an image: all its bytes from first to last, checked on the way.

use crate::base::error::ImageError;
use crate::base::hash::ContentHash;
use crate::file::header::ImageHeader;
use crate::file::reader::ImageReader;
use crate::tree::{self, ChainingValue, GROUP_SIZE, GroupTree};

/// Bytes of a part of the data.
const PART_SIZE: u64 = 64 * GROUP_SIZE;

/// All bytes of an image in order, as [`ImageReader::parts`] gives them: first all that stands before
/// the data, then the data, up to 1 MiB at a time. The last part comes only if all of them are the
/// image, whatever happened to its file meanwhile.
///
/// # Examples
///
/// ```
/// # use pagefork_image::*;
/// # let mut file = std::io::Cursor::new(Vec::new());
/// # ImageDraft::new(Manifest::default(), &PageRuns::default()).write(&mut file)?;
/// # let bytes = file.into_inner();
/// let image = ImageReader::open(Box::new(bytes.clone()), &ImageLimits::default())?;
/// let mut copy = Vec::new();
/// for part in image.parts() {
///     copy.extend(part?);
/// }
/// assert_eq!(copy, bytes);
/// # Ok::<(), ImageError>(())
/// ```
pub struct ImageParts<'a> {
    image: &'a ImageReader,
    /// Where the next part begins in the file; `None` behind the last one or an error.
    next: Option<u64>,
    /// Of the groups so far.
    leaves: Vec<ChainingValue>,
    /// The index as it was read.
    index: Vec<u8>,
}

impl<'a> ImageParts<'a> {
    pub(crate) fn new(image: &'a ImageReader) -> Self {
        Self { image, next: Some(0), leaves: Vec::new(), index: Vec::new() }
    }

    /// What stands before the data.
    fn head(&mut self) -> Result<Vec<u8>, ImageError> {
        let header = self.image.header();
        let mut bytes = vec![0; header.data_start() as usize];
        self.image.read_raw(0, &mut bytes)?;
        let part = |start: u64, end: u64| &bytes[start as usize..end as usize];
        let signatures = part(header.signatures_start(), header.index_start());
        let manifest = part(ImageHeader::SIZE, header.signatures_start());
        if bytes[..ImageHeader::SIZE as usize] != header.encode(signatures)
            || ContentHash::of(manifest) != self.image.hash()
            || part(header.index_end(), header.data_start()).iter().any(|byte| *byte != 0)
        {
            return Err(ImageError::damaged("it was altered while it was read"));
        }
        self.index = part(header.index_start(), header.index_end()).to_vec();
        Ok(bytes)
    }

    /// Data from a place in the file on.
    fn data(&mut self, at: u64) -> Result<Vec<u8>, ImageError> {
        let size = self.image.manifest().data_size;
        let mut bytes = vec![0; PART_SIZE.min(self.image.size() - at) as usize];
        self.image.read_raw(at, &mut bytes)?;
        for group in bytes.chunks(GROUP_SIZE as usize) {
            self.leaves.push(tree::hash_group(size, self.leaves.len() as u64, group));
        }
        Ok(bytes)
    }

    fn check_tree(&mut self) -> Result<(), ImageError> {
        let manifest = self.image.manifest();
        let tree = GroupTree::new(manifest.data_size, std::mem::take(&mut self.leaves));
        if tree.root() != manifest.root {
            return Err(ImageError::damaged("its pages have another hash than its manifest says"));
        }
        match self.index == tree.index() {
            true => Ok(()),
            false => Err(ImageError::damaged("its index has other hashes than its pages")),
        }
    }
}

impl Iterator for ImageParts<'_> {
    type Item = Result<Vec<u8>, ImageError>;

    fn next(&mut self) -> Option<Self::Item> {
        let at = self.next.take()?;
        let mut read = || {
            let bytes = if at == 0 { self.head()? } else { self.data(at)? };
            let end = at + bytes.len() as u64;
            match end < self.image.size() {
                true => self.next = Some(end),
                false => self.check_tree()?,
            }
            Ok(bytes)
        };
        Some(read())
    }
}
