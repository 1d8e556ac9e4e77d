//! Rights, flags and structures of `wasi_snapshot_preview1`, as numbers.
//!
//! Every structure that a function writes consists of 64-bit words, so each is an array of
//! words here, which `GuestMemory::write_words` stores.

use bitflags::bitflags;
use serde::{Deserialize, Serialize};

use crate::base::errno::{Errno, Result};

bitflags! {
    /// What a descriptor may be used for, one bit a right.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_wasi::Rights;
    ///
    /// assert!(Rights::FILE.contains(Rights::FD_SEEK));
    /// assert!(!Rights::STREAM.contains(Rights::FD_SEEK));
    /// ```
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Rights: u64 {
        /// Call `fd_datasync`.
        const FD_DATASYNC = 1 << 0;
        /// Call `fd_read` and `sock_recv`; with [`Rights::FD_SEEK`], `fd_pread`.
        const FD_READ = 1 << 1;
        /// Call `fd_seek`; implies [`Rights::FD_TELL`].
        const FD_SEEK = 1 << 2;
        /// Call `fd_fdstat_set_flags`.
        const FD_FDSTAT_SET_FLAGS = 1 << 3;
        /// Call `fd_sync`.
        const FD_SYNC = 1 << 4;
        /// Call `fd_tell`, or `fd_seek` so that the offset stays.
        const FD_TELL = 1 << 5;
        /// Call `fd_write` and `sock_send`; with [`Rights::FD_SEEK`], `fd_pwrite`.
        const FD_WRITE = 1 << 6;
        /// Call `fd_advise`.
        const FD_ADVISE = 1 << 7;
        /// Call `fd_allocate`.
        const FD_ALLOCATE = 1 << 8;
        /// Call `path_create_directory`.
        const PATH_CREATE_DIRECTORY = 1 << 9;
        /// Call `path_open` with [`OFlags::CREAT`].
        const PATH_CREATE_FILE = 1 << 10;
        /// Be the source directory of `path_link`.
        const PATH_LINK_SOURCE = 1 << 11;
        /// Be the target directory of `path_link`.
        const PATH_LINK_TARGET = 1 << 12;
        /// Call `path_open`.
        const PATH_OPEN = 1 << 13;
        /// Call `fd_readdir`.
        const FD_READDIR = 1 << 14;
        /// Call `path_readlink`.
        const PATH_READLINK = 1 << 15;
        /// Be the source directory of `path_rename`.
        const PATH_RENAME_SOURCE = 1 << 16;
        /// Be the target directory of `path_rename`.
        const PATH_RENAME_TARGET = 1 << 17;
        /// Call `path_filestat_get`.
        const PATH_FILESTAT_GET = 1 << 18;
        /// Call `path_open` with [`OFlags::TRUNC`].
        const PATH_FILESTAT_SET_SIZE = 1 << 19;
        /// Call `path_filestat_set_times`.
        const PATH_FILESTAT_SET_TIMES = 1 << 20;
        /// Call `fd_filestat_get`.
        const FD_FILESTAT_GET = 1 << 21;
        /// Call `fd_filestat_set_size`.
        const FD_FILESTAT_SET_SIZE = 1 << 22;
        /// Call `fd_filestat_set_times`.
        const FD_FILESTAT_SET_TIMES = 1 << 23;
        /// Call `path_symlink`.
        const PATH_SYMLINK = 1 << 24;
        /// Call `path_remove_directory`.
        const PATH_REMOVE_DIRECTORY = 1 << 25;
        /// Call `path_unlink_file`.
        const PATH_UNLINK_FILE = 1 << 26;
        /// Be waited for in `poll_oneoff`.
        const POLL_FD_READWRITE = 1 << 27;
        /// Call `sock_shutdown`.
        const SOCK_SHUTDOWN = 1 << 28;
        /// Call `sock_accept`.
        const SOCK_ACCEPT = 1 << 29;

        /// Rights that a directory can have.
        const DIRECTORY = Self::FD_FDSTAT_SET_FLAGS.bits()
            | Self::FD_SYNC.bits() | Self::FD_DATASYNC.bits() | Self::FD_READDIR.bits()
            | Self::FD_FILESTAT_GET.bits() | Self::FD_FILESTAT_SET_TIMES.bits()
            | Self::POLL_FD_READWRITE.bits()
            | Self::PATH_CREATE_DIRECTORY.bits() | Self::PATH_CREATE_FILE.bits()
            | Self::PATH_LINK_SOURCE.bits() | Self::PATH_LINK_TARGET.bits()
            | Self::PATH_OPEN.bits() | Self::PATH_READLINK.bits()
            | Self::PATH_RENAME_SOURCE.bits() | Self::PATH_RENAME_TARGET.bits()
            | Self::PATH_FILESTAT_GET.bits() | Self::PATH_FILESTAT_SET_SIZE.bits()
            | Self::PATH_FILESTAT_SET_TIMES.bits() | Self::PATH_SYMLINK.bits()
            | Self::PATH_REMOVE_DIRECTORY.bits() | Self::PATH_UNLINK_FILE.bits();

        /// Rights that a stream can have: a terminal, a pipe, a device.
        ///
        /// Seek and tell are not among them, because C libraries recognise a terminal by a
        /// character device that lacks both.
        const STREAM = Self::FD_READ.bits() | Self::FD_WRITE.bits()
            | Self::FD_FDSTAT_SET_FLAGS.bits() | Self::FD_FILESTAT_GET.bits()
            | Self::FD_SYNC.bits() | Self::FD_DATASYNC.bits() | Self::POLL_FD_READWRITE.bits();

        /// Rights that a file with an offset can have.
        const FILE = Self::STREAM.bits() | Self::FD_SEEK.bits() | Self::FD_TELL.bits()
            | Self::FD_ADVISE.bits() | Self::FD_ALLOCATE.bits()
            | Self::FD_FILESTAT_SET_SIZE.bits() | Self::FD_FILESTAT_SET_TIMES.bits();

        /// Rights that a listening socket can have.
        const LISTENER = Self::FD_FDSTAT_SET_FLAGS.bits() | Self::FD_FILESTAT_GET.bits()
            | Self::POLL_FD_READWRITE.bits() | Self::SOCK_ACCEPT.bits();

        /// Rights that a connected socket can have.
        const CONNECTION = Self::FD_READ.bits() | Self::FD_WRITE.bits()
            | Self::FD_FDSTAT_SET_FLAGS.bits() | Self::FD_FILESTAT_GET.bits()
            | Self::POLL_FD_READWRITE.bits() | Self::SOCK_SHUTDOWN.bits();

        /// Rights for which a file is opened for writing.
        const MUTATE_FILE = Self::FD_WRITE.bits() | Self::FD_ALLOCATE.bits()
            | Self::FD_FILESTAT_SET_SIZE.bits();
    }
}

bitflags! {
    /// How reads and writes through a descriptor behave.
    ///
    /// # Examples
    ///
    /// See [`WasiCtx::fd_fdstat_get`](crate::WasiCtx::fd_fdstat_get).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct FdFlags: u16 {
        /// Every write goes to the end of the file.
        const APPEND = 1 << 0;
        /// Writes return once the data is on stable storage.
        const DSYNC = 1 << 1;
        /// Operations that would block fail with [`Errno::Again`].
        const NONBLOCK = 1 << 2;
        /// Reads see what `DSYNC` or `SYNC` promise for writes.
        const RSYNC = 1 << 3;
        /// Writes return once data and metadata are on stable storage.
        const SYNC = 1 << 4;
    }

    /// How `path_open` treats the file.
    #[derive(Clone, Copy)]
    pub(crate) struct OpenFlags: u16 {
        /// Create the file if it does not exist.
        const CREAT = 1 << 0;
        /// Fail unless it is a directory.
        const DIRECTORY = 1 << 1;
        /// Fail if it exists.
        const EXCL = 1 << 2;
        /// Truncate it to size 0.
        const TRUNC = 1 << 3;
    }

    /// How a path is resolved.
    #[derive(Clone, Copy)]
    pub(crate) struct LookupFlags: u16 {
        /// Follow a symbolic link that is the last component.
        const SYMLINK_FOLLOW = 1 << 0;
    }

    /// Which timestamps to set, and to what.
    #[derive(Clone, Copy)]
    pub(crate) struct TimeFlags: u16 {
        /// Set the access time to the given value.
        const ATIM = 1 << 0;
        /// Set the access time to now.
        const ATIM_NOW = 1 << 1;
        /// Set the modification time to the given value.
        const MTIM = 1 << 2;
        /// Set the modification time to now.
        const MTIM_NOW = 1 << 3;
    }

    /// How `sock_recv` receives.
    #[derive(Clone, Copy)]
    pub(crate) struct ReceiveFlags: u16 {
        /// Leave the data to be received again.
        const PEEK = 1 << 0;
        /// Wait until every buffer is full, or the stream ends.
        const WAITALL = 1 << 1;
    }

    /// Which directions of a connection `sock_shutdown` closes.
    #[derive(Clone, Copy)]
    pub(crate) struct ShutdownFlags: u16 {
        /// Receiving.
        const RD = 1 << 0;
        /// Sending.
        const WR = 1 << 1;
    }
}

/// Takes flags that a guest passed.
///
/// # Errors
///
/// [`Errno::Inval`] if a bit has no meaning.
pub(crate) fn flags<F: bitflags::Flags<Bits = u16>>(bits: u32) -> Result<F> {
    u16::try_from(bits).ok().and_then(F::from_bits).ok_or(Errno::Inval)
}

/// Type of a file, as the guest sees it. [`Description`](crate::Description) has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum FileType {
    /// A type that WASI has no number for, such as a pipe.
    Unknown = 0,
    /// Block device.
    BlockDevice = 1,
    /// Character device.
    CharacterDevice = 2,
    /// Directory.
    Directory = 3,
    /// Regular file.
    RegularFile = 4,
    /// Socket that carries datagrams.
    SocketDgram = 5,
    /// Socket that carries a byte stream.
    SocketStream = 6,
    /// Symbolic link.
    SymbolicLink = 7,
}

impl From<rustix::fs::FileType> for FileType {
    fn from(host: rustix::fs::FileType) -> Self {
        use rustix::fs::FileType as Host;
        match host {
            Host::RegularFile => FileType::RegularFile,
            Host::Directory => FileType::Directory,
            Host::Symlink => FileType::SymbolicLink,
            Host::CharacterDevice => FileType::CharacterDevice,
            Host::BlockDevice => FileType::BlockDevice,
            Host::Socket => FileType::SocketStream,
            _ => FileType::Unknown,
        }
    }
}

impl From<&rustix::fs::Stat> for FileType {
    fn from(stat: &rustix::fs::Stat) -> Self {
        rustix::fs::FileType::from_raw_mode(stat.st_mode).into()
    }
}

/// Size of an `iovec` or `ciovec`, bytes: `{ buf: u32, buf_len: u32 }`.
pub(crate) const IOVEC_SIZE: u32 = 8;

/// `fdstat`: what `fd_fdstat_get` writes.
///
/// ```text
/// 0         1    2       4        8                    16                         24
/// filetype  pad  flags   pad      rights_base          rights_inheriting
/// ```
pub(crate) fn fdstat(
    filetype: FileType,
    flags: FdFlags,
    rights_base: Rights,
    rights_inheriting: Rights,
) -> [u64; 3] {
    let head = filetype as u64 | u64::from(flags.bits()) << 16;
    [head, rights_base.bits(), rights_inheriting.bits()]
}

/// `filestat`: attributes of a file. Times are nanoseconds since 1970.
///
/// ```text
/// 0    8    16        17   24     32    40    48    56    64
/// dev  ino  filetype  pad  nlink  size  atim  mtim  ctim
/// ```
pub(crate) const FILESTAT_WORDS: u32 = 8;

/// `dirent`: the head of a directory entry. The name follows it, without a NUL.
///
/// ```text
/// 0     8    16       20    21   24
/// next  ino  namelen  type  pad  name...
/// ```
pub(crate) fn dirent(next: u64, inode: u64, name_size: u16, filetype: FileType) -> [u64; 3] {
    [next, inode, u64::from(name_size) | (filetype as u64) << 32]
}

/// Size of a `subscription`, bytes:
///
/// ```text
/// 0         8    9    16                                          48
/// userdata  tag  pad  clock: id u32, timeout u64 at 24, precision u64, flags u16 at 40
///                     fd_read, fd_write: fd u32
/// ```
pub(crate) const SUBSCRIPTION_SIZE: u32 = 48;

/// Size of an `event`, bytes:
///
/// ```text
/// 0         8      10    11   16      24     26   32
/// userdata  error  type  pad  nbytes  flags  pad
/// ```
pub(crate) const EVENT_SIZE: u32 = 32;

/// What a subscription or event of `poll_oneoff` is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum EventType {
    /// A clock has reached the timeout.
    Clock = 0,
    /// A descriptor has data to read.
    FdRead = 1,
    /// A descriptor accepts data.
    FdWrite = 2,
}

/// An `event`, as [`EVENT_SIZE`] draws it.
pub(crate) fn event(
    userdata: u64,
    event_type: EventType,
    error: Option<Errno>,
    available: u64,
    hangup: bool,
) -> [u64; 4] {
    let error = u64::from(error.map_or(0, Errno::code));
    [userdata, error | (event_type as u64) << 16, available, u64::from(hangup)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_flags_are_refused() {
        assert_eq!(flags::<FdFlags>(0x1f), Ok(FdFlags::all()));
        assert_eq!(flags::<FdFlags>(0x20), Err(Errno::Inval));
        assert_eq!(flags::<FdFlags>(0x1_0000), Err(Errno::Inval));
        assert_eq!(flags::<OpenFlags>(16).map(drop), Err(Errno::Inval));
        assert_eq!(flags::<LookupFlags>(2).map(drop), Err(Errno::Inval));
        assert_eq!(flags::<ReceiveFlags>(4).map(drop), Err(Errno::Inval));
        assert_eq!(flags::<ShutdownFlags>(4).map(drop), Err(Errno::Inval));
    }
}
