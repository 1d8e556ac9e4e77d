//! The guest's memory. Its methods check every address and size that a guest passes.

use std::cell::Cell;
use std::ffi::OsStr;
use std::io::IoSlice;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use pagefork::{AbsentPage, LocalMemory};

use crate::base::abi::IOVEC_SIZE;
use crate::base::errno::{Errno, Result};
use crate::base::waiting::EngineStops;

/// Size of the longest path that the host takes, bytes, its NUL included.
const PATH_SIZE_MAX: u32 = 4096;

/// Count of buffers used by one read or write. The others are left for the next call, as after
/// any short transfer.
const IOVECS_MAX: usize = 1024;

/// Largest count of buffers in one call, empty ones included. No serious program passes more,
/// and to look at half a billion takes seconds during which the guest cannot be stopped.
const IOVECS_COUNT_MAX: u32 = 1 << 16;

/// Buffers of at most this size, bytes, are filled outside guest memory and copied. That costs
/// less than a search for the pages that the kernel has written.
const SMALL_SIZE: usize = 1024;

/// Size of the largest transfer, bytes: what Linux moves in one system call.
const TRANSFER_SIZE_MAX: u32 = 0x7fff_f000;

/// The bytes of a guest's memory, borrowed for one call.
///
/// No address and no size makes a method panic: out of bounds is [`Errno::Fault`].
///
/// # Examples
///
/// ```
/// use pagefork_wasi::{Errno, GuestMemory};
///
/// let mut bytes = [0; 16];
/// let mut memory = GuestMemory::new(&mut bytes[..]);
/// memory.write_u32(4, 7)?;
/// assert_eq!(memory.read_u32(4), Ok(7));
/// assert_eq!(memory.read_u32(14), Err(Errno::Fault));
///
/// // What a call would write to is checked before it does anything.
/// assert_eq!(memory.check(8, 9), Err(Errno::Fault));
/// assert_eq!(memory.check_array(0, u32::MAX, 48), Err(Errno::Fault));
/// memory.write_bytes(8, b"a/file")?;
/// memory.bytes_mut(8, 1)?[0] = b'b';
/// assert_eq!(memory.bytes(8, 6)?, b"b/file");
/// assert_eq!(memory.path(8, 6)?, std::path::Path::new("b/file"));
/// assert_eq!(memory.write_size(0, 1 << 32), Err(Errno::Overflow));
/// # Ok::<(), Errno>(())
/// ```
#[derive(Debug)]
pub struct GuestMemory<'a> {
    memory: LocalMemory<'a>,
    can_suspend: bool,
    /// The first page that did not come.
    absent: Cell<Option<AbsentPage>>,
}

/// A buffer within guest memory, as [`GuestMemory::iovecs`] returns it.
///
/// # Examples
///
/// ```
/// use pagefork_wasi::{Buffer, Errno, GuestMemory};
///
/// let mut bytes = *b"abcd\x01\0\0\0\x02\0\0\0";
/// let memory = GuestMemory::new(&mut bytes[..]);
/// // The iovec at 4 names the two bytes at 1.
/// let buffers = memory.iovecs(4, 1)?;
/// assert_eq!(buffers, [Buffer { address: 1, size: 2 }]);
/// assert_eq!(&*memory.io_slices(&buffers)?[0], b"bc");
/// // For a call that writes its result at 9, where there is no room for one.
/// assert_eq!(memory.transfer(4, 1, 9), Err(Errno::Fault));
/// # Ok::<(), pagefork_wasi::Errno>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Address of the first byte.
    pub address: u32,
    /// Size in bytes.
    pub size: u32,
}

impl<'a> GuestMemory<'a> {
    /// A memory, or bytes of which the first is at address 0.
    ///
    /// # Examples
    ///
    /// See [`GuestMemory`].
    pub fn new(memory: impl Into<LocalMemory<'a>>) -> Self {
        Self::of_caller(memory.into(), false)
    }

    /// The memory of a guest for a call before which it can be suspended, or cannot.
    pub(crate) fn of_caller(memory: LocalMemory<'a>, can_suspend: bool) -> Self {
        GuestMemory { memory, can_suspend, absent: Cell::new(None) }
    }

    /// The first page of the guest's image that did not come: the guest cannot go on then.
    pub(crate) fn absent(&self) -> Option<AbsentPage> {
        self.absent.get()
    }

    /// Tells when the guest must stop.
    pub(crate) fn stops(&self) -> EngineStops<'a> {
        EngineStops { interruption: self.memory.interruption(), can_suspend: self.can_suspend }
    }

    /// Checks that `size` bytes at `address` lie within the memory.
    ///
    /// # Errors
    ///
    /// [`Errno::Fault`] if they do not.
    ///
    /// # Examples
    ///
    /// See [`GuestMemory`].
    pub fn check(&self, address: u32, size: usize) -> Result {
        self.range(address, size).map(drop)
    }

    /// Checks an array of `count` elements of `size` bytes each.
    ///
    /// # Errors
    ///
    /// [`Errno::Fault`] if it does not lie within the memory.
    ///
    /// # Examples
    ///
    /// See [`GuestMemory`].
    pub fn check_array(&self, address: u32, count: u32, size: u32) -> Result {
        let total = u64::from(count) * u64::from(size);
        self.check(address, usize::try_from(total).map_err(|_| Errno::Fault)?)
    }

    /// The bytes at an address.
    ///
    /// # Errors
    ///
    /// [`Errno::Fault`] if out of bounds.
    ///
    /// # Examples
    ///
    /// See [`GuestMemory`].
    pub fn bytes(&self, address: u32, size: u32) -> Result<&[u8]> {
        let range = self.range(address, size as usize)?;
        self.memory.part(range).map_err(|_| Errno::Fault)
    }

    /// The bytes at an address, to be written.
    ///
    /// # Errors
    ///
    /// [`Errno::Fault`] if out of bounds.
    ///
    /// # Examples
    ///
    /// See [`GuestMemory`].
    pub fn bytes_mut(&mut self, address: u32, size: u32) -> Result<&mut [u8]> {
        let range = self.range(address, size as usize)?;
        self.memory.part_mut(range).map_err(|_| Errno::Fault)
    }

    /// Calls `fill`, which writes the first bytes of a buffer and returns how many. A small
    /// buffer is filled outside guest memory and copied: then the kernel has written no page
    /// of the guest, and a reset need not search for it.
    ///
    /// # Errors
    ///
    /// [`Errno::Fault`] if out of bounds, before `fill` is called; else those of `fill`.
    pub(crate) fn fill(
        &mut self,
        Buffer { address, size }: Buffer,
        fill: impl FnOnce(&mut [u8]) -> Result<usize>,
    ) -> Result<usize> {
        self.check(address, size as usize)?;
        let mut small = [0; SMALL_SIZE];
        match small.get_mut(..size as usize) {
            Some(small) => {
                let count = fill(small)?;
                self.write_bytes(address, &small[..count])?;
                Ok(count)
            }
            None => fill(self.bytes_mut(address, size)?),
        }
    }

    /// Copies bytes to an address.
    ///
    /// # Errors
    ///
    /// [`Errno::Fault`] if out of bounds; then nothing was written.
    ///
    /// # Examples
    ///
    /// See [`GuestMemory`].
    pub fn write_bytes(&mut self, address: u32, bytes: &[u8]) -> Result {
        let range = self.range(address, bytes.len())?;
        self.memory.write(range.start, bytes).map_err(|_| Errno::Fault)
    }

    /// Copies 64-bit words to an address, little-endian.
    ///
    /// # Errors
    ///
    /// [`Errno::Fault`] if out of bounds; then nothing was written.
    pub(crate) fn write_words<const N: usize>(&mut self, address: u32, words: [u64; N]) -> Result {
        self.write_bytes(address, words.map(u64::to_le_bytes).as_flattened())
    }

    /// Reads four bytes, little-endian.
    ///
    /// # Errors
    ///
    /// [`Errno::Fault`] if out of bounds.
    ///
    /// # Examples
    ///
    /// See [`GuestMemory`].
    pub fn read_u32(&self, address: u32) -> Result<u32> {
        let (bytes, _) = self.bytes(address, 4)?.as_chunks();
        Ok(u32::from_le_bytes(bytes[0]))
    }

    /// Writes four bytes, little-endian.
    ///
    /// # Errors
    ///
    /// [`Errno::Fault`] if out of bounds.
    ///
    /// # Examples
    ///
    /// See [`GuestMemory`].
    pub fn write_u32(&mut self, address: u32, value: u32) -> Result {
        self.write_bytes(address, &value.to_le_bytes())
    }

    /// Reads 64-bit words, little-endian.
    ///
    /// # Errors
    ///
    /// [`Errno::Fault`] if out of bounds.
    pub(crate) fn read_words<const N: usize>(&self, address: u32) -> Result<[u64; N]> {
        let mut words = [[0; 8]; N];
        words.as_flattened_mut().copy_from_slice(self.bytes(address, 8 * N as u32)?);
        Ok(words.map(u64::from_le_bytes))
    }

    /// The path at an address, copied out.
    ///
    /// # Errors
    ///
    /// [`Errno::Fault`] if out of bounds, [`Errno::Noent`] if empty,
    /// [`Errno::Nametoolong`] if no host path can be as long, and
    /// [`Errno::Inval`] if it contains a NUL.
    ///
    /// # Examples
    ///
    /// See [`GuestMemory`].
    pub fn path(&self, address: u32, size: u32) -> Result<PathBuf> {
        let bytes = self.bytes(address, size)?;
        if bytes.is_empty() {
            return Err(Errno::Noent);
        }
        if size >= PATH_SIZE_MAX {
            return Err(Errno::Nametoolong);
        }
        if bytes.contains(&0) {
            return Err(Errno::Inval);
        }
        Ok(PathBuf::from(OsStr::from_bytes(bytes)))
    }

    /// The buffers that an array of `iovec` or `ciovec` names, without empty ones, at most as
    /// many and as large as one system call takes.
    ///
    /// # Errors
    ///
    /// [`Errno::Fault`] if the array, or a buffer that would be used, is out of bounds, and
    /// [`Errno::Inval`] for more than 65536 buffers.
    ///
    /// # Examples
    ///
    /// See [`Buffer`].
    pub fn iovecs(&self, address: u32, count: u32) -> Result<Vec<Buffer>> {
        self.check_array(address, count, IOVEC_SIZE)?;
        if count > IOVECS_COUNT_MAX {
            return Err(Errno::Inval);
        }
        let mut buffers = Vec::with_capacity(IOVECS_MAX.min(count as usize));
        let mut room = TRANSFER_SIZE_MAX;
        for index in 0..count {
            if buffers.len() == IOVECS_MAX || room == 0 {
                break;
            }
            // In bounds, hence below 4 GiB: the whole array was checked.
            let element = address + index * IOVEC_SIZE;
            let buffer =
                Buffer { address: self.read_u32(element)?, size: self.read_u32(element + 4)? };
            self.check(buffer.address, buffer.size as usize)?;
            let size = buffer.size.min(room);
            if size > 0 {
                room -= size;
                buffers.push(Buffer { size, ..buffer });
            }
        }
        Ok(buffers)
    }

    /// The buffers of a read or write, after a check of the address at which its size will be
    /// written.
    ///
    /// # Errors
    ///
    /// As [`GuestMemory::iovecs`], and [`Errno::Fault`] if `result` is out of bounds.
    ///
    /// # Examples
    ///
    /// See [`Buffer`].
    pub fn transfer(&self, iovs: u32, count: u32, result: u32) -> Result<Vec<Buffer>> {
        self.check(result, 4)?;
        self.iovecs(iovs, count)
    }

    /// Writes a size or a count, four bytes.
    ///
    /// # Errors
    ///
    /// [`Errno::Overflow`] if it exceeds 32 bits, [`Errno::Fault`] if out of
    /// bounds.
    ///
    /// # Examples
    ///
    /// See [`GuestMemory`].
    pub fn write_size(&mut self, address: u32, size: usize) -> Result {
        self.write_u32(address, u32::try_from(size).map_err(|_| Errno::Overflow)?)
    }

    /// The contents of buffers, for a write in one system call.
    ///
    /// # Errors
    ///
    /// [`Errno::Fault`] if a buffer is out of bounds.
    ///
    /// # Examples
    ///
    /// See [`Buffer`].
    pub fn io_slices(&self, buffers: &[Buffer]) -> Result<Vec<IoSlice<'_>>> {
        let slice = |buffer: &Buffer| Ok(IoSlice::new(self.bytes(buffer.address, buffer.size)?));
        buffers.iter().map(slice).collect()
    }

    /// Where bytes lie. They are here then, also for the kernel.
    fn range(&self, address: u32, size: usize) -> Result<std::ops::Range<usize>> {
        let start = address as usize;
        let end = start.checked_add(size).filter(|end| *end <= self.memory.size());
        let range = start..end.ok_or(Errno::Fault)?;
        self.memory.wait(range.clone()).map_err(|absent| {
            self.absent.set(Some(absent));
            Errno::Fault
        })?;
        Ok(range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_access_is_checked_at_its_last_byte() {
        let mut bytes = [0; 16];
        let mut memory = GuestMemory::new(&mut bytes[..]);
        assert_eq!(memory.write_words(8, [7]), Ok(()));
        assert_eq!(memory.read_words(8), Ok([7]));
        assert_eq!(memory.write_words(9, [7]), Err(Errno::Fault));
        assert_eq!(memory.read_words::<1>(9), Err(Errno::Fault));
        assert_eq!(memory.read_u32(u32::MAX), Err(Errno::Fault));
        assert_eq!(memory.check(16, 0), Ok(()));
        assert_eq!(memory.check(17, 0), Err(Errno::Fault));
        assert_eq!(memory.check(1, usize::MAX), Err(Errno::Fault));
        assert_eq!(memory.check_array(0, u32::MAX, 48), Err(Errno::Fault));
        assert_eq!(memory.bytes(0, u32::MAX), Err(Errno::Fault));
    }

    #[test]
    fn iovecs_skip_empty_buffers_and_check_the_rest() {
        let mut bytes = [0; 64];
        let mut memory = GuestMemory::new(&mut bytes[..]);
        for (index, word) in [60, 4, 9, 0, 0, 2].into_iter().enumerate() {
            memory.write_u32(index as u32 * 4, word).unwrap();
        }
        let buffers = memory.iovecs(0, 3).unwrap();
        assert_eq!(buffers, [Buffer { address: 60, size: 4 }, Buffer { address: 0, size: 2 }]);
        assert_eq!(memory.iovecs(0, 0), Ok(vec![]));
        assert_eq!(memory.iovecs(0, 9), Err(Errno::Fault));
        assert_eq!(memory.iovecs(0, u32::MAX), Err(Errno::Fault));
        memory.write_u32(4, 5).unwrap();
        assert_eq!(memory.iovecs(0, 1), Err(Errno::Fault));
    }

    #[test]
    fn more_buffers_than_a_program_has_are_not_looked_at() {
        let mut bytes = vec![0; 1 << 20];
        let memory = GuestMemory::new(&mut bytes[..]);
        assert_eq!(memory.iovecs(0, IOVECS_COUNT_MAX), Ok(vec![]));
        assert_eq!(memory.iovecs(0, IOVECS_COUNT_MAX + 1), Err(Errno::Inval));
    }

    #[test]
    fn overlapping_buffers_cannot_exceed_one_transfer() {
        let mut bytes = vec![0; 1 << 20];
        let count = 1024;
        let mut memory = GuestMemory::new(&mut bytes[..]);
        for index in 0..count + 10 {
            memory.write_u32(index * 8, 0).unwrap();
            memory.write_u32(index * 8 + 4, 1 << 20).unwrap();
        }
        let buffers = memory.iovecs(0, count + 10).unwrap();
        assert_eq!(buffers.len(), 1024);
        assert!(buffers.iter().map(|b| u64::from(b.size)).sum::<u64>() <= 1 << 30);
    }

    #[test]
    fn paths_are_refused_before_the_host_sees_them() {
        let mut bytes = vec![b'a'; 8192];
        bytes[8] = 0;
        let memory = GuestMemory::new(&mut bytes[..]);
        assert_eq!(memory.path(0, 8), Ok(PathBuf::from("aaaaaaaa")));
        assert_eq!(memory.path(0, 9), Err(Errno::Inval));
        assert_eq!(memory.path(0, 0), Err(Errno::Noent));
        assert_eq!(memory.path(16, 4096), Err(Errno::Nametoolong));
        assert_eq!(memory.path(8000, 4096), Err(Errno::Fault));
    }
}
