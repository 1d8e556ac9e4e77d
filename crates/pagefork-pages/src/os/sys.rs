//! The system calls: those on files, and [`attempt`], which makes every one. Each call is made
//! at most once, except where a signal interrupts it, and reports its failure as a
//! [`CallFailure`].

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, SeekFrom, Stat};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::os::error::Call;

/// A system call that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CallFailure {
    pub(crate) call: Call,
    pub(crate) errno: Errno,
    /// Bytes it asked for, where that means something.
    pub(crate) requested: u64,
}

/// Seals of an image: its bytes and its length are final, and so are the seals.
pub(crate) const IMAGE_SEALS: SealFlags =
    SealFlags::WRITE.union(SealFlags::GROW).union(SealFlags::SHRINK).union(SealFlags::SEAL);

/// Seals of a memfd that images share: as those of an image, but who has already
/// mapped it for writing goes on to have it so.
pub(crate) const ARENA_SEALS: SealFlags =
    SealFlags::FUTURE_WRITE.union(SealFlags::GROW).union(SealFlags::SHRINK);

/// Makes an empty memfd that can be sealed. `executable` leaves out the flag
/// that forbids running it, which kernels before 6.3 do not know.
pub(crate) fn create_image(name: &str, executable: bool) -> Result<OwnedFd, CallFailure> {
    let mut flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    if !executable {
        flags |= MemfdFlags::NOEXEC_SEAL;
    }
    attempt(Call::CreateImage, 0, || rustix::fs::memfd_create(name, flags))
}

/// Sets the length of a memfd; the bytes read as zero.
pub(crate) fn resize_image(file: BorrowedFd<'_>, length: u64) -> Result<(), CallFailure> {
    attempt(Call::ResizeImage, length, || {
        check_file_size(length)?;
        rustix::fs::ftruncate(file, length)
    })
}

/// # Errors
/// If files may not be as long: then the kernel would also raise a signal, which ends processes.
fn check_file_size(length: u64) -> Result<(), Errno> {
    match getrlimit(Resource::Fsize).current {
        Some(limit) if limit < length => Err(Errno::FBIG),
        _ => Ok(()),
    }
}

/// Sets the length of a file that a memory grows in: what is beyond is gone, and what is new
/// reads as zero.
pub(crate) fn set_growth(file: BorrowedFd<'_>, length: u64) -> Result<(), CallFailure> {
    attempt_or_pretend(Call::GrowFile, length, Some(()), || {
        check_file_size(length)?;
        rustix::io::retry_on_intr(|| rustix::fs::ftruncate(file, length))
    })
}

/// Writes all of `bytes`.
pub(crate) fn write_image(
    file: BorrowedFd<'_>,
    mut bytes: &[u8],
    mut offset: u64,
) -> Result<(), CallFailure> {
    while !bytes.is_empty() {
        let length = bytes.len();
        let written = attempt(Call::WriteImage, length as u64, || {
            rustix::io::retry_on_intr(|| rustix::io::pwrite(file, bytes, offset))
        })?;
        bytes = &bytes[written..];
        offset += written as u64;
    }
    Ok(())
}

/// Writes all of several pieces one behind the other.
pub(crate) fn write_image_pieces(
    file: BorrowedFd<'_>,
    pieces: &[&[u8]],
    mut offset: u64,
) -> Result<(), CallFailure> {
    /// The most that the kernel takes in one call.
    const PIECES_MAX: usize = 1024;
    for pieces in pieces.chunks(PIECES_MAX) {
        let length: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
        let slices: Vec<IoSlice<'_>> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
        let mut written = attempt(Call::WriteImage, length, || {
            rustix::io::retry_on_intr(|| rustix::io::pwritev(file, &slices, offset))
        })?;
        for piece in pieces {
            // A call may write a part, as where a limit is met: then the rest shows the error.
            let (of_piece, at) = (written.min(piece.len()), offset);
            written -= of_piece;
            offset += piece.len() as u64;
            write_image(file, &piece[of_piece..], at + of_piece as u64)?;
        }
    }
    Ok(())
}

/// Reads until `into` is full or the file ends; returns the bytes read.
pub(crate) fn read_image(
    file: BorrowedFd<'_>,
    into: &mut [u8],
    offset: u64,
) -> Result<usize, CallFailure> {
    let mut done = 0;
    while done < into.len() {
        let rest = &mut into[done..];
        let count = attempt(Call::ReadImage, 0, || {
            rustix::io::retry_on_intr(|| rustix::io::pread(file, &mut *rest, offset + done as u64))
        })?;
        if count == 0 {
            break;
        }
        done += count;
    }
    Ok(done)
}

/// The first part of a range of a file that is no hole, or nothing.
pub(crate) fn find_data(
    file: BorrowedFd<'_>,
    range: Range<u64>,
) -> Result<Option<Range<u64>>, CallFailure> {
    let seek = |to| attempt(Call::FindData, 0, || rustix::fs::seek(file, to));
    if range.is_empty() {
        return Ok(None);
    }
    let start = match seek(SeekFrom::Data(range.start)) {
        // There are only holes.
        Err(CallFailure { errno: Errno::NXIO, .. }) => return Ok(None),
        found => found?,
    };
    if start >= range.end {
        return Ok(None);
    }
    let end = seek(SeekFrom::Hole(start))?;
    Ok(Some(start..end.min(range.end)))
}

/// Takes the memory for a part of a memfd, which still reads as zero.
pub(crate) fn allocate_image(
    file: BorrowedFd<'_>,
    offset: u64,
    length: u64,
) -> Result<(), CallFailure> {
    attempt(Call::AllocateImage, length, || {
        let flags = FallocateFlags::empty();
        rustix::io::retry_on_intr(|| rustix::fs::fallocate(file, flags, offset, length))
    })
}

/// Adds seals to a memfd and returns those that it then has.
pub(crate) fn seal_image(file: BorrowedFd<'_>, seals: SealFlags) -> Result<SealFlags, CallFailure> {
    attempt_or_pretend(Call::SealImage, 0, Some(()), || add_seals(file, seals))?;
    attempt_or_pretend(Call::SealImage, 0, Some(seals), || rustix::fs::fcntl_get_seals(file))
}

/// The kernel holds pages for a moment to move them or to write them out, waits for itself for a tenth
/// of a second or two, and then says that the file is busy. Nobody else has the file yet, so it is
/// asked again: for a second, because a map that can write would make it busy for good.
fn add_seals(file: BorrowedFd<'_>, seals: SealFlags) -> Result<(), Errno> {
    const TRIES: u32 = 8;
    let mut tried = 1;
    loop {
        match rustix::fs::fcntl_add_seals(file, seals) {
            Err(Errno::BUSY) if tried < TRIES => tried += 1,
            answer => return answer,
        }
    }
}

/// Whether nothing can write to a file any more, or cut it; not for a file that has no seals.
pub(crate) fn is_sealed(file: BorrowedFd<'_>) -> Result<bool, CallFailure> {
    match attempt(Call::SealImage, 0, || rustix::fs::fcntl_get_seals(file)) {
        Ok(seals) => Ok(seals.contains(SealFlags::WRITE | SealFlags::SHRINK)),
        Err(CallFailure { errno: Errno::INVAL, .. }) => Ok(false),
        Err(failure) => Err(failure),
    }
}

/// Attributes of a file.
pub(crate) fn stat_image(file: BorrowedFd<'_>) -> Result<Stat, CallFailure> {
    attempt(Call::StatImage, 0, || rustix::fs::fstat(file))
}

/// Whether all memory of the process takes part in merging equal pages.
pub(crate) fn merges_pages() -> bool {
    const PR_GET_MEMORY_MERGE: libc::c_int = 68;
    const NONE: libc::c_ulong = 0;
    // SAFETY: the call only tells. Kernels that do not know it merge only what they are
    // asked to.
    unsafe { libc::prctl(PR_GET_MEMORY_MERGE, NONE, NONE, NONE, NONE) == 1 }
}

/// How many page faults the current thread has taken: without and with input.
pub(crate) fn count_faults() -> Result<(i64, i64), CallFailure> {
    attempt(Call::CountFaults, 0, || {
        let mut usage = MaybeUninit::<libc::rusage>::uninit();
        // SAFETY: the call fills the structure, and says whether it did.
        let usage = unsafe {
            if libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) != 0 {
                return Err(last_error());
            }
            usage.assume_init()
        };
        Ok((usage.ru_minflt, usage.ru_majflt))
    })
}

/// What the C library says of its call that has just failed.
pub(crate) fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)
}

/// Makes a call, unless a test has decided otherwise.
pub(crate) fn attempt<R>(
    call: Call,
    requested: u64,
    make: impl FnOnce() -> Result<R, Errno>,
) -> Result<R, CallFailure> {
    attempt_or_pretend(call, requested, None, make)
}

/// As [`attempt`], for a call that tests can also pretend: then it yields `pretended`.
pub(crate) fn attempt_or_pretend<R>(
    call: Call,
    requested: u64,
    pretended: Option<R>,
    make: impl FnOnce() -> Result<R, Errno>,
) -> Result<R, CallFailure> {
    #[cfg(debug_assertions)]
    let make = || match (crate::os::inject::verdict(call), pretended) {
        (crate::os::inject::Injection::Fail(code), _) => Err(Errno::from_raw_os_error(code)),
        (crate::os::inject::Injection::Pretend, Some(result)) => Ok(result),
        _ => make(),
    };
    #[cfg(not(debug_assertions))]
    let _ = pretended;
    make().map_err(|errno| CallFailure { call, errno, requested })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_file_whose_pages_are_held_for_a_moment_is_sealed() {
        use std::io::Read;
        use std::os::fd::AsRawFd;

        let file = create_image("held", true).unwrap();
        write_image(file.as_fd(), &[7; 4096], 0).unwrap();
        let (mut reader, writer) = std::io::pipe().unwrap();
        let (from, to) = (file.as_fd().as_raw_fd(), writer.as_fd().as_raw_fd());
        let mut at = 0;
        // SAFETY: the place of the offset is ours.
        let held = unsafe { libc::splice(from, &mut at, to, std::ptr::null_mut(), 4096, 0) };
        assert_eq!(held, 4096, "the pipe has the page itself");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Longer than the kernel waits.
                std::thread::sleep(std::time::Duration::from_millis(300));
                reader.read_exact(&mut [0; 4096]).unwrap();
            });
            assert_eq!(seal_image(file.as_fd(), IMAGE_SEALS), Ok(IMAGE_SEALS));
        });
    }

    #[test]
    fn pieces_lie_one_behind_the_other_however_many_there_are() {
        let file = create_image("pieces", true).unwrap();
        let bytes: Vec<u8> = (0..9000u32).map(|at| (at % 251) as u8).collect();
        for length in [1, 3, 5000] {
            let pieces: Vec<&[u8]> = bytes.chunks(length).collect();
            resize_image(file.as_fd(), 0).unwrap();
            write_image_pieces(file.as_fd(), &pieces, 77).unwrap();
            let mut found = vec![0; bytes.len() + 77 + 1];
            assert_eq!(read_image(file.as_fd(), &mut found, 0).unwrap(), bytes.len() + 77);
            assert!(found[77..][..bytes.len()] == bytes, "pieces of {length}");
        }
    }

    #[test]
    fn data_is_found_between_holes() {
        let file = create_image("holes", true).unwrap();
        resize_image(file.as_fd(), 1 << 20).unwrap();
        for page in [3, 4, 9] {
            write_image(file.as_fd(), b"data", page << 12).unwrap();
        }
        let find = |pages: Range<u64>| {
            let found = find_data(file.as_fd(), pages.start << 12..pages.end << 12).unwrap();
            found.map(|found| found.start >> 12..found.end >> 12)
        };
        assert_eq!(
            [find(0..256), find(4..256), find(5..256)],
            [Some(3..5), Some(4..5), Some(9..10)]
        );
        assert_eq!(
            [find(0..4), find(5..9), find(10..256), find(7..7)],
            [Some(3..4), None, None, None]
        );
    }
}
