//! Reading an image: what stands before the data at once, all else when it is asked for.

use std::fmt;
use std::fs::File;
use std::io::{self, Seek, Write};
use std::ops::Range;
use std::sync::Arc;

use pagefork_layout::page;

use crate::base::bytes::{ReadAt, read_part};
use crate::base::error::ImageError;
use crate::base::hash::ContentHash;
use crate::base::limits::ImageLimits;
use crate::file::assemble::DataWriter;
use crate::file::head::ImageHead;
use crate::file::header::ImageHeader;
use crate::file::manifest::{Manifest, SavedSpan};
use crate::file::parts::ImageParts;
use crate::file::signature::{self, PublicKey, TrustedKeys};
use crate::tree::{self, ComingGroups, GROUP_SIZE, GroupProof};

/// An image that was opened: its header, manifest and signatures are read and checked, and nothing
/// else, so opening costs the same however large the image is. The first page of the crate has an
/// example.
///
/// Pages are believed as they are, once they have been verified: when they came into a
/// store, or by [`ImageReader::verify`].
pub struct ImageReader {
    bytes: Box<dyn ReadAt>,
    header: ImageHeader,
    manifest: Manifest,
    signers: Vec<PublicKey>,
}

impl ImageReader {
    /// Opens the image that `bytes` are.
    ///
    /// # Errors
    /// [`ImageError::NotAnImage`], [`ImageError::Version`] or [`ImageError::TooLarge`];
    /// [`ImageError::Damaged`] if the file has another length than it says, or a byte before the
    /// index was altered; [`ImageError::Io`].
    pub fn open(bytes: Box<dyn ReadAt>, limits: &ImageLimits) -> Result<Self, ImageError> {
        let size = bytes.size().map_err(ImageError::io("ask for the size of an image"))?;
        let mut first = [0; ImageHeader::SIZE as usize];
        read_part(&*bytes, &mut first, 0, "header")?;
        let header = ImageHeader::decode(&first, limits)?;
        if size != header.file_size() {
            let file_size = header.file_size();
            return Err(ImageError::damaged(format!(
                "it has {size} bytes, and its header says {file_size}"
            )));
        }
        let mut head = vec![0; (header.manifest_size + header.signatures_size) as usize];
        read_part(&*bytes, &mut head, ImageHeader::SIZE, "manifest")?;
        let (manifest, signatures) = head.split_at(header.manifest_size as usize);
        if ContentHash::of(manifest) != header.manifest_hash {
            return Err(ImageError::damaged("its manifest was altered"));
        }
        ImageHeader::check(&first, signatures)?;
        let mut padding = vec![0; (header.data_start() - header.index_end()) as usize];
        read_part(&*bytes, &mut padding, header.index_end(), "index")?;
        if padding.iter().any(|byte| *byte != 0) {
            return Err(ImageError::damaged("there are bytes between its index and its data"));
        }
        let signers = signature::check(signatures, header.manifest_hash)?;
        let manifest = Manifest::decode(manifest, limits)?;
        if manifest.data_size != header.data_size {
            return Err(ImageError::damaged("its header and its manifest differ in its size"));
        }
        Ok(Self { bytes, header, manifest, signers })
    }

    /// The image that a head is of, whose data are read from `data`, from its first byte on. It has
    /// no index, so no group of it can be proved.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_image::*;
    ///
    /// let instance = SavedInstance { extents: vec![0..1 << 20], ..SavedInstance::default() };
    /// let manifest = Manifest { instances: vec![instance], ..Manifest::default() };
    /// let pages = PageRuns::new(vec![vec![(0, vec![7; 4096])]]);
    /// let mut file = std::io::Cursor::new(Vec::new());
    /// ImageDraft::new(manifest, &pages).write(&mut file)?;
    /// let limits = ImageLimits::default();
    /// let head = ImageHead::read(&ImageReader::open(Box::new(file.into_inner()), &limits)?)?;
    ///
    /// let image = ImageReader::of_head(&head, Box::new(vec![7; 4096]));
    /// assert_eq!(image.hash(), head.hash());
    /// assert_eq!(ImageHead::read(&image)?, head);
    /// let chain = ImageChain::new(vec![image.into()], &limits)?;
    /// let mut bytes = [0; 2];
    /// chain.read(0, 4095, &mut bytes)?;
    /// assert_eq!(bytes, [7, 0]);
    /// # Ok::<(), ImageError>(())
    /// ```
    pub fn of_head(head: &ImageHead, data: Box<dyn ReadAt>) -> Self {
        let header = head.header();
        let (manifest, signers) = (head.manifest().clone(), head.signers().to_vec());
        let before = [head.manifest_bytes(), head.signature_bytes()].concat();
        let bytes = HeadAndData { header: header.clone(), head: before, data };
        Self { bytes: Box::new(bytes), header, manifest, signers }
    }

    /// The image's identity: the hash of its manifest, which has that of all pages.
    pub fn hash(&self) -> ContentHash {
        self.header.manifest_hash
    }

    /// What the image is.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Bytes of the file. Holes are counted.
    pub fn size(&self) -> u64 {
        self.header.file_size()
    }

    /// Where the data begin in the file: a multiple of the page size.
    pub fn data_start(&self) -> u64 {
        self.header.data_start()
    }

    /// The file that the image is, if it was opened from one. A page that a [`SavedSpan`] has at
    /// `data_offset` lies in it at `data_start() + data_offset`.
    pub fn file(&self) -> Option<&File> {
        self.bytes.file()
    }

    /// Whose signatures the image has. Each was checked.
    pub fn signers(&self) -> &[PublicKey] {
        &self.signers
    }

    /// Whether the image needs no trust, or one of `keys` has signed it. An image that this
    /// process has made itself is as trusted as the process.
    ///
    /// # Errors
    /// [`ImageError::Untrusted`] for an image with live frames that none of them has signed.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_image::*;
    ///
    /// let suspension = SavedSuspension { ordinal: 1, stack_owner: 1, ..Default::default() };
    /// let instances = vec![SavedInstance::default()];
    /// let manifest = Manifest { instances, suspension: Some(suspension), ..Manifest::default() };
    /// let key = SecretKey::from_seed([7; 32]); // Random bytes, in earnest.
    /// let mut file = std::io::Cursor::new(Vec::new());
    /// let pages = PageRuns::default();
    /// ImageDraft::new(manifest, &pages).sign_with(&[key.clone()]).write(&mut file)?;
    ///
    /// let image = ImageReader::open(Box::new(file.into_inner()), &ImageLimits::default())?;
    /// image.check_trust(&TrustedKeys::from_iter([key.public()]))?;
    /// let refused = image.check_trust(&TrustedKeys::default()).unwrap_err();
    /// assert!(matches!(refused, ImageError::Untrusted { signatures: 1, .. }));
    /// # Ok::<(), ImageError>(())
    /// ```
    pub fn check_trust(&self, keys: &TrustedKeys) -> Result<(), ImageError> {
        signature::check_trust(&self.manifest, self.hash(), &self.signers, keys)
    }

    /// Reads all of the image and checks it, the index included.
    ///
    /// # Errors
    /// [`ImageError::Damaged`] if any byte was altered; [`ImageError::Io`].
    pub fn verify(&self) -> Result<(), ImageError> {
        self.parts().try_for_each(|part| part.map(drop))
    }

    /// As [`ImageReader::verify`], of an image whose bytes were all given to `coming`, which need not be hashed
    /// again if they came in order.
    ///
    /// # Errors
    /// As of [`ImageReader::verify`].
    pub(crate) fn verify_hashed(&self, coming: &ComingGroups) -> Result<(), ImageError> {
        let Some(tree) = coming.tree(self.header.data_start(), self.header.data_size) else {
            return self.verify();
        };
        if tree.root() != self.manifest.root {
            return Err(ImageError::damaged("its pages have another hash than its manifest says"));
        }
        let mut index = vec![0; (self.header.index_end() - self.header.index_start()) as usize];
        read_part(&*self.bytes, &mut index, self.header.index_start(), "index")?;
        match index == tree.index() {
            true => Ok(()),
            false => Err(ImageError::damaged("its index was altered")),
        }
    }

    /// All bytes of the file in order, checked on the way, to be copied. [`ImageParts`] has an example.
    pub fn parts(&self) -> ImageParts<'_> {
        ImageParts::new(self)
    }

    pub(crate) fn header(&self) -> &ImageHeader {
        &self.header
    }

    /// Number of groups that the data are.
    pub fn group_count(&self) -> u64 {
        tree::group_count(self.header.data_size)
    }

    /// Reads a group, from 0, and checks it alone.
    ///
    /// # Errors
    /// [`ImageError::Damaged`] if it or its part of the index was altered; [`ImageError::Invalid`]
    /// if there is no such group; [`ImageError::Io`].
    pub fn read_group(&self, index: u64) -> Result<Vec<u8>, ImageError> {
        self.read_proved_group(index).map(|(bytes, _)| bytes)
    }

    /// Reads a group, and what proves it, which is checked.
    ///
    /// # Errors
    /// As of [`ImageReader::read_group`].
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_image::*;
    ///
    /// let instance = SavedInstance { extents: vec![0..1 << 20], ..SavedInstance::default() };
    /// let manifest = Manifest { instances: vec![instance], ..Manifest::default() };
    /// let pages = PageRuns::new(vec![vec![(0, vec![7; 4096])]]);
    /// let mut file = std::io::Cursor::new(Vec::new());
    /// ImageDraft::new(manifest, &pages).write(&mut file)?;
    /// let image = ImageReader::open(Box::new(file.into_inner()), &ImageLimits::default())?;
    ///
    /// let (bytes, proof) = image.read_proved_group(0)?;
    /// ImageHead::read(&image)?.verify_group(0, &bytes, &proof)?;
    /// # Ok::<(), ImageError>(())
    /// ```
    pub fn read_proved_group(&self, index: u64) -> Result<(Vec<u8>, GroupProof), ImageError> {
        let bytes = self.read_group_unchecked(index)?;
        let proof = self.proof(index)?;
        proof.verify(self.manifest.root, self.header.data_size, index, &bytes)?;
        Ok((bytes, proof))
    }

    /// A group whose bytes may be wrong.
    pub(crate) fn read_group_unchecked(&self, index: u64) -> Result<Vec<u8>, ImageError> {
        self.check_group(index)?;
        let mut bytes = vec![0; tree::group_size(self.header.data_size, index) as usize];
        self.read_data(index * GROUP_SIZE, &mut bytes)?;
        Ok(bytes)
    }

    /// What proves a group to those who know the manifest. [`GroupProof`] has an example.
    ///
    /// # Errors
    /// [`ImageError::Invalid`] if there is no such group; [`ImageError::Io`].
    pub fn proof(&self, index: u64) -> Result<GroupProof, ImageError> {
        self.check_group(index)?;
        let neighbour = |place: u64| {
            let mut hash = [0; ContentHash::SIZE];
            let place = self.header.index_start() + place;
            read_part(&*self.bytes, &mut hash, place, "index").map(|()| hash)
        };
        let places = GroupProof::places(self.header.data_size, index);
        Ok(GroupProof { neighbours: places.map(neighbour).collect::<Result<_, _>>()? })
    }

    /// What stands for groups in the tree, as the index has it, which is not checked. [`ImageHead::leaf`]
    /// has an example.
    ///
    /// # Errors
    /// [`ImageError::Invalid`] if there are no such groups; [`ImageError::Io`].
    pub fn leaves(&self, groups: Range<u64>) -> Result<Vec<ContentHash>, ImageError> {
        if groups.is_empty() {
            return Ok(Vec::new());
        }
        self.check_group(groups.end - 1)?;
        if self.group_count() == 1 {
            // There is no index: the group is all there is.
            return Ok(vec![self.manifest.root]);
        }
        let size = ContentHash::SIZE as u64;
        let mut bytes = vec![0; ((groups.end - groups.start) * size) as usize];
        let place = self.header.index_start() + groups.start * size;
        read_part(&*self.bytes, &mut bytes, place, "index")?;
        let leaves = bytes.as_chunks::<{ ContentHash::SIZE }>().0;
        Ok(leaves.iter().map(|leaf| ContentHash::from_bytes(*leaf)).collect())
    }

    fn check_group(&self, index: u64) -> Result<(), ImageError> {
        let count = self.group_count();
        match index < count {
            true => Ok(()),
            false => Err(ImageError::Invalid(format!("there are {count} groups, and no {index}"))),
        }
    }

    /// Reads bytes of attachment number `index`, from 0.
    ///
    /// # Errors
    /// [`ImageError::Invalid`] if there are none; [`ImageError::Io`].
    pub fn read_attachment(
        &self,
        index: usize,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), ImageError> {
        let attachment = self.manifest.attachments.get(index);
        let end = offset.checked_add(into.len() as u64);
        match (attachment, end) {
            (Some(attachment), Some(end)) if end <= attachment.size => {
                self.read_data(attachment.data_offset + offset, into)
            }
            _ => Err(ImageError::Invalid(format!("attachment {index} has no such bytes"))),
        }
    }

    /// Reads bytes of the file, wherever they belong: nothing of them is checked.
    ///
    /// # Errors
    /// [`ImageError::Damaged`] if it ends before; [`ImageError::Io`].
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_image::*;
    ///
    /// let mut file = std::io::Cursor::new(Vec::new());
    /// ImageDraft::new(Manifest::default(), &PageRuns::default()).write(&mut file)?;
    /// let image = ImageReader::open(Box::new(file.into_inner()), &ImageLimits::default())?;
    /// let mut first = [0; 4];
    /// image.read_raw(0, &mut first)?;
    /// assert_eq!(&first[1..], b"PFI");
    /// # Ok::<(), ImageError>(())
    /// ```
    pub fn read_raw(&self, offset: u64, into: &mut [u8]) -> Result<(), ImageError> {
        read_part(&*self.bytes, into, offset, "bytes")
    }

    /// Where bytes of the data lie, which are believed, if the image is in memory and has them: what holds
    /// them, and which of it they are.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use pagefork_image::*;
    ///
    /// let instance = SavedInstance { extents: vec![0..1 << 20], ..SavedInstance::default() };
    /// let manifest = Manifest { instances: vec![instance], ..Manifest::default() };
    /// let pages = PageRuns::new(vec![vec![(0, vec![7; 4096])]]);
    /// let mut file = std::io::Cursor::new(Vec::new());
    /// ImageDraft::new(manifest, &pages).write(&mut file)?;
    /// let file = Arc::new(file.into_inner());
    /// let image = ImageReader::open(Box::new(Arc::clone(&file)), &ImageLimits::default())?;
    /// let (bytes, part) = image.shared_data(0, 4096).expect("it is in memory");
    /// assert_eq!(&bytes[part], [7; 4096]);
    /// assert!(image.shared_data(1, 4096).is_none());
    /// # Ok::<(), ImageError>(())
    /// ```
    pub fn shared_data(&self, offset: u64, size: u64) -> Option<(&Arc<Vec<u8>>, Range<usize>)> {
        let bytes = self.bytes.shared()?;
        let start = self.header.data_start().checked_add(offset)?;
        let part = usize::try_from(start).ok()?..usize::try_from(start.checked_add(size)?).ok()?;
        (part.end <= bytes.len()).then_some((bytes, part))
    }

    /// Reads bytes of the data, which are believed.
    pub(crate) fn read_data(&self, offset: u64, into: &mut [u8]) -> Result<(), ImageError> {
        read_part(&*self.bytes, into, self.header.data_start() + offset, "pages")
    }

    /// Lays what the file itself has of an instance over bytes from slot offset `offset` on.
    pub(crate) fn lay_over(
        &self,
        instance: usize,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), ImageError> {
        let Some(saved) = self.manifest.instances.get(instance) else { return Ok(()) };
        let wanted = offset..offset + into.len() as u64;
        let place =
            |part: &Range<u64>| (part.start - offset) as usize..(part.end - offset) as usize;
        let first = saved.spans.partition_point(|span| span.slot().end <= wanted.start);
        for span in saved.spans[first..].iter().take_while(|span| span.start < wanted.end) {
            let part = common(&span.slot(), &wanted);
            self.read_data(span_place(span, part.start), &mut into[place(&part)])?;
        }
        let first = saved.zeroed.partition_point(|range| range.end <= wanted.start);
        for range in saved.zeroed[first..].iter().take_while(|range| range.start < wanted.end) {
            into[place(&common(range, &wanted))].fill(0);
        }
        Ok(())
    }

    /// Writes the image with these signatures in place of its own, into `out`, which is empty.
    ///
    /// # Errors
    /// [`ImageError::Damaged`] if its data were altered; what reading and writing fail with.
    pub(crate) fn write_signed(
        &self,
        signatures: &[u8],
        out: impl Write + Seek,
    ) -> Result<(), ImageError> {
        let signatures_size = signatures.len() as u64;
        let header = ImageHeader { signatures_size, ..self.header.clone() };
        let mut data = DataWriter::new(out, header.data_start(), header.data_size);
        for index in 0..self.group_count() {
            data.push(&self.read_group_unchecked(index)?)?;
        }
        let tree = data.tree();
        if tree.root() != self.manifest.root {
            return Err(ImageError::damaged("its pages have another hash than its manifest says"));
        }
        let (manifest, _) = self.head()?;
        data.finish(&header, &manifest, signatures, &tree).map(drop)
    }

    /// The manifest and the signatures as they stand in the file.
    pub(crate) fn head(&self) -> Result<(Vec<u8>, Vec<u8>), ImageError> {
        let mut manifest = vec![0; self.header.manifest_size as usize];
        read_part(&*self.bytes, &mut manifest, ImageHeader::SIZE, "manifest")?;
        let mut signatures = vec![0; self.header.signatures_size as usize];
        let start = self.header.signatures_start();
        read_part(&*self.bytes, &mut signatures, start, "signatures")?;
        Ok((manifest, signatures))
    }
}

/// The bytes of an image whose head and data lie apart, without what is between them.
struct HeadAndData {
    header: ImageHeader,
    head: Vec<u8>,
    data: Box<dyn ReadAt>,
}

impl ReadAt for HeadAndData {
    fn size(&self) -> io::Result<u64> {
        Ok(self.header.file_size())
    }

    fn read_exact_at(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        match offset.checked_sub(self.header.data_start()) {
            Some(offset) => self.data.read_exact_at(into, offset),
            None => match offset.checked_sub(ImageHeader::SIZE) {
                Some(offset) => self.head.read_exact_at(into, offset),
                None => Err(io::ErrorKind::UnexpectedEof.into()),
            },
        }
    }
}

/// What two ranges have in common, which is not empty.
pub(crate) fn common(range: &Range<u64>, other: &Range<u64>) -> Range<u64> {
    range.start.max(other.start)..range.end.min(other.end)
}

/// Where in the data a slot offset in a span lies.
pub(crate) fn span_place(span: &SavedSpan, offset: u64) -> u64 {
    debug_assert!(page::round_down(span.start) == span.start && span.slot().contains(&offset));
    span.data_offset + (offset - span.start)
}

impl fmt::Debug for ImageReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImageReader")
            .field("hash", &self.hash())
            .field("signers", &self.signers)
            .finish_non_exhaustive()
    }
}
