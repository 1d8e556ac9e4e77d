//! Reading bytes at any place, from files and memory.

use std::fs::File;
use std::io;
use std::sync::Arc;

use crate::base::error::ImageError;
use crate::base::hash::ContentHash;

/// Bytes that can be read at any place, by any number of threads.
///
/// # Examples
///
/// ```
/// use pagefork_image::ReadAt;
///
/// let mut middle = [0; 3];
/// ReadAt::read_exact_at(&b"abcdef".to_vec(), &mut middle, 2)?;
/// assert_eq!(&middle, b"cde");
/// # Ok::<(), std::io::Error>(())
/// ```
pub trait ReadAt: Send + Sync {
    /// Number of bytes there are.
    ///
    /// # Errors
    /// Of the system.
    fn size(&self) -> io::Result<u64>;

    /// Fills `into` with the bytes from `offset` on.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] if there are fewer; those of the system.
    fn read_exact_at(&self, into: &mut [u8], offset: u64) -> io::Result<()>;

    /// The file that these are the bytes of from its start, if they are of one.
    fn file(&self) -> Option<&File> {
        None
    }

    /// The bytes, if they are in memory and can be held there.
    fn shared(&self) -> Option<&Arc<Vec<u8>>> {
        None
    }
}

impl ReadAt for Vec<u8> {
    fn size(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }

    fn read_exact_at(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        let start = usize::try_from(offset).ok();
        let end = start.and_then(|start| start.checked_add(into.len()));
        let bytes = start.zip(end).and_then(|(start, end)| self.get(start..end));
        into.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

impl ReadAt for Arc<Vec<u8>> {
    fn size(&self) -> io::Result<u64> {
        (**self).size()
    }

    fn read_exact_at(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        (**self).read_exact_at(into, offset)
    }

    fn shared(&self) -> Option<&Arc<Vec<u8>>> {
        Some(self)
    }
}

/// The bytes of a file.
///
/// # Examples
///
/// ```
/// use pagefork_image::{FileBytes, ReadAt};
///
/// let path = std::env::temp_dir().join(format!("pagefork-file-bytes-{}", std::process::id()));
/// std::fs::write(&path, b"abcdef")?;
/// let bytes = FileBytes::new(std::fs::File::open(&path)?);
/// let mut middle = [0; 3];
/// bytes.read_exact_at(&mut middle, 2)?;
/// assert_eq!(&middle, b"cde");
/// assert_eq!(bytes.size()?, 6);
/// std::fs::remove_file(&path)?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct FileBytes {
    file: File,
    /// Held while the file's own position is used, where it cannot be read without.
    #[cfg(not(any(unix, windows)))]
    position: std::sync::Mutex<()>,
}

impl FileBytes {
    /// The bytes of `file`, from its start, wherever its position is.
    pub fn new(file: File) -> Self {
        Self {
            file,
            #[cfg(not(any(unix, windows)))]
            position: std::sync::Mutex::new(()),
        }
    }
}

impl ReadAt for FileBytes {
    fn size(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    #[cfg(unix)]
    fn read_exact_at(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(&self.file, into, offset)
    }

    #[cfg(windows)]
    fn read_exact_at(&self, mut into: &mut [u8], mut offset: u64) -> io::Result<()> {
        while !into.is_empty() {
            match std::os::windows::fs::FileExt::seek_read(&self.file, into, offset) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => {
                    into = &mut into[count..];
                    offset += count as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    #[cfg(not(any(unix, windows)))]
    fn read_exact_at(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        use std::io::{Read, Seek, SeekFrom};
        let _held = self.position.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        (&self.file).seek(SeekFrom::Start(offset))?;
        (&self.file).read_exact(into)
    }

    fn file(&self) -> Option<&File> {
        Some(&self.file)
    }
}

/// Reads a part of an image.
///
/// # Errors
/// [`ImageError::Damaged`] if it ends before.
pub(crate) fn read_part(
    bytes: &dyn ReadAt,
    into: &mut [u8],
    offset: u64,
    what: &'static str,
) -> Result<(), ImageError> {
    bytes.read_exact_at(into, offset).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => ImageError::damaged(format!("it ends within its {what}")),
        _ => ImageError::Io { action: format!("read the {what} of an image"), error },
    })
}

/// Reads all of a code image, gives its parts to `each`, and checks it as a whole.
///
/// # Errors
/// [`ImageError::Damaged`] if its hash is another one, after all parts were given; what reading
/// and `each` fail with.
///
/// # Examples
///
/// ```
/// use pagefork_image::{ContentHash, read_code};
///
/// let (code, mut copy) = (b"code".to_vec(), Vec::new());
/// read_code(ContentHash::of(&code), &code, |part| {
///     copy.extend_from_slice(part);
///     Ok(())
/// })?;
/// assert_eq!(copy, code);
/// # Ok::<(), pagefork_image::ImageError>(())
/// ```
pub fn read_code(
    hash: ContentHash,
    bytes: &dyn ReadAt,
    mut each: impl FnMut(&[u8]) -> Result<(), ImageError>,
) -> Result<(), ImageError> {
    let size = bytes.size().map_err(ImageError::io("ask for the size of a code image"))?;
    let mut hasher = blake3::Hasher::new();
    let mut block = vec![0; 64 << 10];
    let mut at = 0;
    while at < size {
        let length = (size - at).min(block.len() as u64) as usize;
        let block = &mut block[..length];
        bytes.read_exact_at(block, at).map_err(ImageError::io("read a code image"))?;
        hasher.update(block);
        each(block)?;
        at += length as u64;
    }
    match hasher.finalize().as_bytes() == hash.as_bytes() {
        true => Ok(()),
        false => Err(ImageError::damaged(format!("code image {hash} has another hash"))),
    }
}
