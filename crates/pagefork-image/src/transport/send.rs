//! Writing images as one stream.

use std::collections::HashMap;
use std::io::{self, Write};

use crate::base::bytes::{ReadAt, read_code};
use crate::base::error::ImageError;
use crate::base::hash::ContentHash;
use crate::file::plan;
use crate::file::reader::ImageReader;
use crate::tree::GROUP_SIZE;

use super::{STREAM_MAGIC, STREAM_VERSION, WINDOW_LOG, tag};

/// Groups that are remembered, so that they are written once: 48 MiB of memory at most. What
/// comes later is written each time.
const REMEMBERED_MAX: usize = 1 << 20;

/// Groups that one part can stand for.
const COUNT_MAX: u64 = u32::MAX as u64;

/// Writes images and code images into a stream that any pipe can carry. Each group is checked as it
/// is read, so nothing damaged is sent.
///
/// # Examples
///
/// ```
/// use pagefork_image::*;
///
/// let instance = SavedInstance { extents: vec![0..1 << 20], ..SavedInstance::default() };
/// let manifest = Manifest { instances: vec![instance], ..Manifest::default() };
/// let pages = PageRuns::new(vec![vec![(0, vec![7; 1 << 20])]]);
/// let mut file = std::io::Cursor::new(Vec::new());
/// ImageDraft::new(manifest, &pages).write(&mut file)?;
/// let limits = ImageLimits::default();
/// let image = ImageReader::open(Box::new(file.into_inner()), &limits)?;
///
/// let mut stream = StreamWriter::new(Vec::new(), StreamWriter::<Vec<u8>>::DEFAULT_LEVEL)?;
/// stream.image(&image)?;
/// let stream = stream.finish()?;
/// assert!(stream.len() < 1000);
///
/// let received = receive(&stream[..], &limits, || Ok(std::io::Cursor::new(Vec::new())))?;
/// let [ReceivedItem::Image { hash, file, .. }] = &received[..] else { panic!("one image was sent") };
/// assert_eq!(*hash, image.hash());
/// assert_eq!(file.get_ref().len() as u64, image.size());
/// # Ok::<(), ImageError>(())
/// ```
pub struct StreamWriter<W: Write> {
    out: zstd::Encoder<'static, HashingWriter<W>>,
    /// The number of the first group with these bytes.
    remembered: HashMap<ContentHash, u64>,
    /// Groups so far.
    count: u64,
    /// What was found and is not written yet.
    pending: PendingGroups,
}

/// Groups that one part can stand for.
enum PendingGroups {
    Nothing,
    Zeros { count: u64 },
    AsBefore { first: u64, count: u64 },
}

impl<W: Write> StreamWriter<W> {
    /// How hard to compress, where nothing else is known.
    pub const DEFAULT_LEVEL: i32 = 3;

    /// A stream into `out`. `level` is zstd's, from 1 to 22.
    ///
    /// # Errors
    /// If `out` refuses it.
    pub fn new(out: W, level: i32) -> Result<Self, ImageError> {
        let begin = || {
            let mut out = HashingWriter { out, hasher: blake3::Hasher::new() };
            out.write_all(&STREAM_MAGIC)?;
            out.write_all(&STREAM_VERSION.to_le_bytes())?;
            let mut out = zstd::Encoder::new(out, level)?;
            out.window_log(WINDOW_LOG)?;
            Ok(out)
        };
        let out = begin().map_err(failed())?;
        Ok(Self { out, remembered: HashMap::new(), count: 0, pending: PendingGroups::Nothing })
    }

    /// Writes a code image, of which `bytes` are all, and which is known by `hash`.
    ///
    /// # Errors
    /// [`ImageError::Damaged`] if its hash is another one; what reading and writing fail with.
    pub fn code(&mut self, hash: ContentHash, bytes: &dyn ReadAt) -> Result<(), ImageError> {
        let size = bytes.size().map_err(ImageError::io("ask for the size of a code image"))?;
        self.put(&[tag::CODE])?;
        self.put(hash.as_bytes())?;
        self.put(&size.to_le_bytes())?;
        let put = |part: &[u8]| self.out.write_all(part).map_err(failed());
        read_code(hash, bytes, put)
    }

    /// Writes an image. Its ancestors and its code are for the caller to write before it.
    ///
    /// # Errors
    /// [`ImageError::Damaged`] if a byte of it was altered; what reading and writing fail with.
    pub fn image(&mut self, image: &ImageReader) -> Result<(), ImageError> {
        let (manifest, signatures) = image.head()?;
        self.put(&[tag::IMAGE])?;
        self.put(&(manifest.len() as u64).to_le_bytes())?;
        self.put(&(signatures.len() as u64).to_le_bytes())?;
        self.put(&manifest)?;
        self.put(&signatures)?;
        for index in 0..image.group_count() {
            self.group(&image.read_group(index)?)?;
        }
        self.flush_pending()
    }

    fn group(&mut self, group: &[u8]) -> Result<(), ImageError> {
        let number = self.count;
        self.count += 1;
        if plan::is_zero(group) {
            if let PendingGroups::Zeros { count } = &mut self.pending
                && *count < COUNT_MAX
            {
                *count += 1;
                return Ok(());
            }
            self.flush_pending()?;
            self.pending = PendingGroups::Zeros { count: 1 };
            return Ok(());
        }
        let hash = ContentHash::of(group);
        let Some(&before) = self.remembered.get(&hash) else {
            // A short group is the last of its image, and equal to no whole one.
            if self.remembered.len() < REMEMBERED_MAX && group.len() as u64 == GROUP_SIZE {
                self.remembered.insert(hash, number);
            }
            self.flush_pending()?;
            self.put(&[tag::GROUP])?;
            return self.put(group);
        };
        if let PendingGroups::AsBefore { first, count } = &mut self.pending
            && *first + *count == before
            && *count < COUNT_MAX
        {
            *count += 1;
            return Ok(());
        }
        self.flush_pending()?;
        self.pending = PendingGroups::AsBefore { first: before, count: 1 };
        Ok(())
    }

    fn flush_pending(&mut self) -> Result<(), ImageError> {
        match std::mem::replace(&mut self.pending, PendingGroups::Nothing) {
            PendingGroups::Nothing => Ok(()),
            PendingGroups::Zeros { count } => {
                self.put(&[tag::ZEROS])?;
                self.put(&(count as u32).to_le_bytes())
            }
            PendingGroups::AsBefore { first, count } => {
                self.put(&[tag::AS_BEFORE])?;
                self.put(&first.to_le_bytes())?;
                self.put(&(count as u32).to_le_bytes())
            }
        }
    }

    /// Ends the stream. Without this, no reader accepts any of it.
    ///
    /// # Errors
    /// If `out` refuses it.
    pub fn finish(mut self) -> Result<W, ImageError> {
        self.put(&[tag::END])?;
        let end = || {
            let HashingWriter { mut out, hasher } = self.out.finish()?;
            out.write_all(hasher.finalize().as_bytes())?;
            out.flush()?;
            Ok(out)
        };
        end().map_err(failed())
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), ImageError> {
        self.out.write_all(bytes).map_err(failed())
    }
}

fn failed() -> impl FnOnce(io::Error) -> ImageError {
    ImageError::io("write a stream of images")
}

/// Hashes what is written.
struct HashingWriter<W> {
    out: W,
    hasher: blake3::Hasher,
}

impl<W: Write> Write for HashingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.out.write(bytes)?;
        self.hasher.update(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
