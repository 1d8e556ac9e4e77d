//! Reading a stream of images: nothing of it counts before all of it was checked.

use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};

use crate::base::error::ImageError;
use crate::base::hash::ContentHash;
use crate::base::limits::{self, ImageLimits};
use crate::file::assemble::DataWriter;
use crate::file::header::ImageHeader;
use crate::file::manifest::Manifest;
use crate::file::signature::{self, PublicKey};
use crate::tree::{self, GROUP_SIZE};

use super::{STREAM_MAGIC, STREAM_VERSION, WINDOW_LOG, tag};

/// What a stream had.
///
/// [`StreamWriter`](crate::StreamWriter) has an example.
#[derive(Debug)]
pub enum ReceivedItem<F> {
    /// A code image.
    Code {
        /// The hash of its bytes.
        hash: ContentHash,
        /// The file with them.
        file: F,
    },
    /// An image.
    Image {
        /// Its identity.
        hash: ContentHash,
        /// The image that it is a delta of.
        parent: Option<ContentHash>,
        /// Whose signatures it has. Each was checked.
        signers: Vec<PublicKey>,
        /// The code images that its instances ran with, and its modules.
        codes: Vec<ContentHash>,
        /// The file that it is.
        file: F,
    },
}

/// Reads a stream that [`StreamWriter`](crate::StreamWriter) has written, to its end, and writes
/// each item into a file of its own, which `create` makes: empty ones, which are images and code
/// images as soon as this function returns and not before. It needs memory for some MiB, 64 bytes
/// for each 16 KiB of an image, and `limits` bound the rest. All is checked: each image's pages
/// against its manifest, and the stream as a whole.
///
/// # Errors
/// [`ImageError::NotAnImage`], [`ImageError::Version`] or [`ImageError::TooLarge`];
/// [`ImageError::Damaged`] if the stream was cut or altered, or goes on behind its end; what
/// `create` fails with; [`ImageError::Io`].
pub fn receive<F: Read + Write + Seek>(
    input: impl Read,
    limits: &ImageLimits,
    create: impl FnMut() -> Result<F, ImageError>,
) -> Result<Vec<ReceivedItem<F>>, ImageError> {
    let mut input = HashingReader { input: BufReader::new(input), hasher: blake3::Hasher::new() };
    let mut first = [0; STREAM_MAGIC.len() + 4];
    input.read_exact(&mut first).map_err(broken)?;
    let (magic, version) = first.split_at(STREAM_MAGIC.len());
    if magic != STREAM_MAGIC {
        return Err(ImageError::NotAnImage);
    }
    let found = u32::from_le_bytes(version.try_into().expect("four bytes"));
    if found != STREAM_VERSION {
        return Err(ImageError::Version { what: "stream", found, supported: STREAM_VERSION });
    }
    let mut decoder = zstd::Decoder::with_buffer(&mut input).map_err(broken)?.single_frame();
    decoder.window_log_max(WINDOW_LOG).map_err(broken)?;
    let mut receiver = Receiver {
        input: decoder,
        limits,
        create,
        items: Vec::new(),
        groups: Vec::new(),
        count: 0,
    };
    receiver.items()?;
    let Receiver { items, .. } = receiver;

    let expected = *input.hasher.finalize().as_bytes();
    let mut trailer = [0; ContentHash::SIZE];
    input.read_exact(&mut trailer).map_err(broken)?;
    if trailer != expected {
        return Err(ImageError::damaged("the stream was altered"));
    }
    match input.read(&mut [0]).map_err(broken)? {
        0 => Ok(items),
        _ => Err(ImageError::damaged("the stream goes on behind its end")),
    }
}

struct Receiver<'a, R, F, C> {
    /// What was compressed.
    input: R,
    limits: &'a ImageLimits,
    create: C,
    items: Vec<ReceivedItem<F>>,
    /// Of each image that has groups: the number of the first behind it, and the item.
    groups: Vec<ImageGroups>,
    /// Groups so far.
    count: u64,
}

/// Where the groups of an image lie.
struct ImageGroups {
    first: u64,
    end: u64,
    item: usize,
    data_start: u64,
    data_size: u64,
}

impl<R: Read, F: Read + Write + Seek, C: FnMut() -> Result<F, ImageError>> Receiver<'_, R, F, C> {
    fn items(&mut self) -> Result<(), ImageError> {
        loop {
            match self.byte()? {
                tag::END => break,
                tag::CODE => self.code()?,
                tag::IMAGE => self.image()?,
                _ => return Err(ImageError::damaged("the stream has an unknown item")),
            }
            let count = self.items.len() as u64;
            limits::check("a stream of images", count, self.limits.stream_items as u64)?;
        }
        // The frame ends here, and so do its checks.
        match self.input.read(&mut [0]).map_err(broken)? {
            0 => Ok(()),
            _ => Err(ImageError::damaged("the stream goes on behind its last item")),
        }
    }

    fn code(&mut self) -> Result<(), ImageError> {
        let hash = ContentHash::from_bytes(self.array()?);
        let size = u64::from_le_bytes(self.array()?);
        limits::check("a code image", size, self.limits.code_size)?;
        let mut file = (self.create)()?;
        let mut hasher = blake3::Hasher::new();
        let mut block = vec![0; (64 << 10).min(size as usize)];
        let mut left = size;
        while left > 0 {
            let length = left.min(block.len() as u64) as usize;
            let block = &mut block[..length];
            self.input.read_exact(block).map_err(broken)?;
            hasher.update(block);
            file.write_all(block).map_err(ImageError::io("write a code image"))?;
            left -= length as u64;
        }
        file.flush().map_err(ImageError::io("write a code image"))?;
        if hasher.finalize().as_bytes() != hash.as_bytes() {
            return Err(ImageError::damaged(format!("code image {hash} has another hash")));
        }
        self.items.push(ReceivedItem::Code { hash, file });
        Ok(())
    }

    fn image(&mut self) -> Result<(), ImageError> {
        let (manifest_size, signatures_size) =
            (u64::from_le_bytes(self.array()?), u64::from_le_bytes(self.array()?));
        let mut header = ImageHeader {
            manifest_size,
            signatures_size,
            data_size: 0,
            manifest_hash: ContentHash::default(),
        };
        header.check_limits(self.limits)?;
        let manifest_bytes = self.bytes(manifest_size)?;
        let signatures = self.bytes(signatures_size)?;
        let manifest = Manifest::decode(&manifest_bytes, self.limits)?;
        header.data_size = manifest.data_size;
        header.manifest_hash = ContentHash::of(&manifest_bytes);
        header.check_limits(self.limits)?;
        let signers = signature::check(&signatures, header.manifest_hash)?;

        let file = (self.create)()?;
        let mut data = DataWriter::new(file, header.data_start(), header.data_size);
        let first = self.count;
        let mut group = vec![0; GROUP_SIZE as usize];
        while data.next_size() > 0 {
            self.part(&mut data, &mut group, first, &header)?;
        }
        let tree = data.tree();
        if tree.root() != manifest.root {
            return Err(ImageError::damaged("its pages have another hash than its manifest says"));
        }
        let file = data.finish(&header, &manifest_bytes, &signatures, &tree)?;
        self.count = first + tree::group_count(header.data_size);
        if self.count > first {
            self.groups.push(ImageGroups {
                first,
                end: self.count,
                item: self.items.len(),
                data_start: header.data_start(),
                data_size: header.data_size,
            });
        }
        self.items.push(ReceivedItem::Image {
            hash: header.manifest_hash,
            parent: manifest.parent,
            signers,
            codes: manifest.kept_beside(),
            file,
        });
        Ok(())
    }

    /// Reads groups of an image whose first has number `first`.
    fn part(
        &mut self,
        data: &mut DataWriter<F>,
        group: &mut [u8],
        first: u64,
        header: &ImageHeader,
    ) -> Result<(), ImageError> {
        let too_many = || ImageError::damaged("the stream has more pages than its manifest");
        let left = tree::group_count(header.data_size) - data.next();
        match self.byte()? {
            tag::GROUP => {
                let group = &mut group[..data.next_size() as usize];
                self.input.read_exact(group).map_err(broken)?;
                data.push(group)
            }
            tag::ZEROS => {
                let count = u64::from(u32::from_le_bytes(self.array()?));
                if count == 0 || count > left {
                    return Err(too_many());
                }
                group.fill(0);
                (0..count).try_for_each(|_| data.push(&group[..data.next_size() as usize]))
            }
            tag::AS_BEFORE => {
                let from = u64::from_le_bytes(self.array()?);
                let count = u64::from(u32::from_le_bytes(self.array()?));
                if count == 0 || count > left {
                    return Err(too_many());
                }
                for number in (0..count).map(|index| from.saturating_add(index)) {
                    let group = &mut group[..data.next_size() as usize];
                    match number.checked_sub(first) {
                        Some(own) => data.read_back(own, group)?,
                        None => self.read_back(number, group)?,
                    }
                    data.push(group)?;
                }
                Ok(())
            }
            _ => Err(ImageError::damaged("the stream has an unknown part")),
        }
    }

    /// Reads a group of an image before.
    fn read_back(&mut self, number: u64, group: &mut [u8]) -> Result<(), ImageError> {
        let index = self.groups.partition_point(|groups| groups.end <= number);
        let groups = self.groups.get(index).ok_or_else(no_such_group)?;
        let own = number - groups.first;
        if tree::group_size(groups.data_size, own) != group.len() as u64 {
            return Err(no_such_group());
        }
        let (ReceivedItem::Image { file, .. } | ReceivedItem::Code { file, .. }) =
            &mut self.items[groups.item];
        let mut read = || {
            file.seek(SeekFrom::Start(groups.data_start + own * GROUP_SIZE))?;
            file.read_exact(group)
        };
        read().map_err(ImageError::io("read pages that were received"))
    }

    fn byte(&mut self) -> Result<u8, ImageError> {
        self.array().map(|[byte]| byte)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], ImageError> {
        let mut bytes = [0; N];
        self.input.read_exact(&mut bytes).map_err(broken)?;
        Ok(bytes)
    }

    /// As many bytes as are there; memory is taken as they come.
    fn bytes(&mut self, size: u64) -> Result<Vec<u8>, ImageError> {
        let mut bytes = Vec::new();
        let count = (&mut self.input).take(size).read_to_end(&mut bytes).map_err(broken)?;
        match count as u64 == size {
            true => Ok(bytes),
            false => Err(ImageError::damaged("the stream ends too early")),
        }
    }
}

/// That a stream names a group that it has not had.
fn no_such_group() -> ImageError {
    ImageError::damaged("the stream names pages that it has not had")
}

fn broken(error: io::Error) -> ImageError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => ImageError::damaged("the stream ends too early"),
        // Of the decoder, which names no other kind.
        io::ErrorKind::Other | io::ErrorKind::InvalidData => {
            ImageError::damaged(format!("the stream cannot be decompressed: {error}"))
        }
        _ => ImageError::Io { action: "read a stream of images".to_owned(), error },
    }
}

/// Hashes what is taken, and nothing that was only read ahead.
struct HashingReader<R> {
    input: BufReader<R>,
    hasher: blake3::Hasher,
}

impl<R: Read> Read for HashingReader<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.input.read(into)?;
        self.hasher.update(&into[..count]);
        Ok(count)
    }
}

impl<R: Read> BufRead for HashingReader<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.input.fill_buf()
    }

    fn consume(&mut self, count: usize) {
        self.hasher.update(&self.input.buffer()[..count]);
        self.input.consume(count);
    }
}
