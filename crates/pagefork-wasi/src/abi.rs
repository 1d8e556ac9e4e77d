//! The numbers of `wasi_snapshot_preview1`: error codes, rights, flags, and
//! the layout of every structure that crosses the border.

use std::fmt;
use std::io;
use std::ops::{BitAnd, BitOr};

use rustix::io::Errno as Host;

/// Defines the error codes, each with its number and its meaning in words.
macro_rules! errnos {
    ($($name:ident = $code:literal, $text:literal;)*) => {
        /// Error code returned to the guest, by its number in
        /// `wasi_snapshot_preview1`. Success (0) is `Ok(())`, not a member.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum Errno {
            $(#[doc = $text] $name = $code,)*
        }

        impl Errno {
            /// Every member, in numerical order.
            pub const ALL: &[Errno] = &[$(Errno::$name),*];

            /// The meaning of the code in a few words.
            pub fn message(self) -> &'static str {
                match self {
                    $(Errno::$name => $text,)*
                }
            }
        }
    };
}

errnos! {
    TooBig = 1, "argument list too long";
    Acces = 2, "permission denied";
    Addrinuse = 3, "address in use";
    Addrnotavail = 4, "address not available";
    Afnosupport = 5, "address family not supported";
    Again = 6, "resource unavailable, or operation would block";
    Already = 7, "connection already in progress";
    Badf = 8, "bad file descriptor";
    Badmsg = 9, "bad message";
    Busy = 10, "device or resource busy";
    Canceled = 11, "operation canceled";
    Child = 12, "no child processes";
    Connaborted = 13, "connection aborted";
    Connrefused = 14, "connection refused";
    Connreset = 15, "connection reset";
    Deadlk = 16, "resource deadlock would occur";
    Destaddrreq = 17, "destination address required";
    Dom = 18, "mathematics argument out of domain of function";
    Dquot = 19, "disk quota exceeded";
    Exist = 20, "file exists";
    Fault = 21, "bad address";
    Fbig = 22, "file too large";
    Hostunreach = 23, "host is unreachable";
    Idrm = 24, "identifier removed";
    Ilseq = 25, "illegal byte sequence";
    Inprogress = 26, "operation in progress";
    Intr = 27, "interrupted function";
    Inval = 28, "invalid argument";
    Io = 29, "input/output error";
    Isconn = 30, "socket is connected";
    Isdir = 31, "is a directory";
    Loop = 32, "too many levels of symbolic links";
    Mfile = 33, "file descriptor value too large";
    Mlink = 34, "too many links";
    Msgsize = 35, "message too large";
    Multihop = 36, "multihop attempted";
    Nametoolong = 37, "file name too long";
    Netdown = 38, "network is down";
    Netreset = 39, "connection aborted by network";
    Netunreach = 40, "network unreachable";
    Nfile = 41, "too many files open in system";
    Nobufs = 42, "no buffer space available";
    Nodev = 43, "no such device";
    Noent = 44, "no such file or directory";
    Noexec = 45, "executable file format error";
    Nolck = 46, "no locks available";
    Nolink = 47, "link has been severed";
    Nomem = 48, "not enough space";
    Nomsg = 49, "no message of the desired type";
    Noprotoopt = 50, "protocol not available";
    Nospc = 51, "no space left on device";
    Nosys = 52, "function not supported";
    Notconn = 53, "the socket is not connected";
    Notdir = 54, "not a directory";
    Notempty = 55, "directory not empty";
    Notrecoverable = 56, "state not recoverable";
    Notsock = 57, "not a socket";
    Notsup = 58, "not supported, or operation not supported on socket";
    Notty = 59, "inappropriate I/O control operation";
    Nxio = 60, "no such device or address";
    Overflow = 61, "value too large to be stored in data type";
    Ownerdead = 62, "previous owner died";
    Perm = 63, "operation not permitted";
    Pipe = 64, "broken pipe";
    Proto = 65, "protocol error";
    Protonosupport = 66, "protocol not supported";
    Prototype = 67, "protocol wrong type for socket";
    Range = 68, "result too large";
    Rofs = 69, "read-only file system";
    Spipe = 70, "invalid seek";
    Srch = 71, "no such process";
    Stale = 72, "stale file handle";
    Timedout = 73, "connection timed out";
    Txtbsy = 74, "text file busy";
    Xdev = 75, "cross-device link";
    Notcapable = 76, "capabilities insufficient";
}

impl Errno {
    /// The number the guest sees.
    pub fn code(self) -> u16 {
        self as u16
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message())
    }
}

impl std::error::Error for Errno {}

impl From<Host> for Errno {
    fn from(error: Host) -> Self {
        match error {
            Host::TOOBIG => Errno::TooBig,
            Host::ACCESS => Errno::Acces,
            Host::ADDRINUSE => Errno::Addrinuse,
            Host::ADDRNOTAVAIL => Errno::Addrnotavail,
            Host::AFNOSUPPORT => Errno::Afnosupport,
            Host::AGAIN => Errno::Again,
            Host::ALREADY => Errno::Already,
            Host::BADF => Errno::Badf,
            Host::BADMSG => Errno::Badmsg,
            Host::BUSY => Errno::Busy,
            Host::CANCELED => Errno::Canceled,
            Host::CHILD => Errno::Child,
            Host::CONNABORTED => Errno::Connaborted,
            Host::CONNREFUSED => Errno::Connrefused,
            Host::CONNRESET => Errno::Connreset,
            Host::DEADLK => Errno::Deadlk,
            Host::DESTADDRREQ => Errno::Destaddrreq,
            Host::DOM => Errno::Dom,
            Host::DQUOT => Errno::Dquot,
            Host::EXIST => Errno::Exist,
            Host::FAULT => Errno::Fault,
            Host::FBIG => Errno::Fbig,
            Host::HOSTUNREACH => Errno::Hostunreach,
            Host::IDRM => Errno::Idrm,
            Host::ILSEQ => Errno::Ilseq,
            Host::INPROGRESS => Errno::Inprogress,
            Host::INTR => Errno::Intr,
            Host::INVAL => Errno::Inval,
            Host::ISCONN => Errno::Isconn,
            Host::ISDIR => Errno::Isdir,
            Host::LOOP => Errno::Loop,
            Host::MFILE => Errno::Mfile,
            Host::MLINK => Errno::Mlink,
            Host::MSGSIZE => Errno::Msgsize,
            Host::MULTIHOP => Errno::Multihop,
            Host::NAMETOOLONG => Errno::Nametoolong,
            Host::NETDOWN => Errno::Netdown,
            Host::NETRESET => Errno::Netreset,
            Host::NETUNREACH => Errno::Netunreach,
            Host::NFILE => Errno::Nfile,
            Host::NOBUFS => Errno::Nobufs,
            Host::NODEV => Errno::Nodev,
            Host::NOENT => Errno::Noent,
            Host::NOEXEC => Errno::Noexec,
            Host::NOLCK => Errno::Nolck,
            Host::NOLINK => Errno::Nolink,
            Host::NOMEM => Errno::Nomem,
            Host::NOMSG => Errno::Nomsg,
            Host::NOPROTOOPT => Errno::Noprotoopt,
            Host::NOSPC => Errno::Nospc,
            Host::NOSYS => Errno::Nosys,
            Host::NOTCONN => Errno::Notconn,
            Host::NOTDIR => Errno::Notdir,
            Host::NOTEMPTY => Errno::Notempty,
            Host::NOTRECOVERABLE => Errno::Notrecoverable,
            Host::NOTSOCK => Errno::Notsock,
            Host::OPNOTSUPP => Errno::Notsup,
            Host::NOTTY => Errno::Notty,
            Host::NXIO => Errno::Nxio,
            Host::OVERFLOW => Errno::Overflow,
            Host::OWNERDEAD => Errno::Ownerdead,
            Host::PERM => Errno::Perm,
            Host::PIPE => Errno::Pipe,
            Host::PROTO => Errno::Proto,
            Host::PROTONOSUPPORT => Errno::Protonosupport,
            Host::PROTOTYPE => Errno::Prototype,
            Host::RANGE => Errno::Range,
            Host::ROFS => Errno::Rofs,
            Host::SPIPE => Errno::Spipe,
            Host::SRCH => Errno::Srch,
            Host::STALE => Errno::Stale,
            Host::TIMEDOUT => Errno::Timedout,
            Host::TXTBSY => Errno::Txtbsy,
            Host::XDEV => Errno::Xdev,
            _ => Errno::Io,
        }
    }
}

impl From<io::Error> for Errno {
    /// An error without a host number was made by cap-std itself, which does
    /// so with `PermissionDenied` for one reason only: a path that leads out
    /// of its directory.
    fn from(error: io::Error) -> Self {
        if let Some(host) = Host::from_io_error(&error) {
            return host.into();
        }
        match error.kind() {
            io::ErrorKind::PermissionDenied => Errno::Perm,
            io::ErrorKind::InvalidInput => Errno::Inval,
            io::ErrorKind::NotFound => Errno::Noent,
            io::ErrorKind::Interrupted => Errno::Intr,
            _ => Errno::Io,
        }
    }
}

/// What a descriptor may be used for, one bit a right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rights(pub u64);

impl Rights {
    /// No right at all.
    pub const NONE: Rights = Rights(0);
    /// Call `fd_datasync`.
    pub const FD_DATASYNC: Rights = Rights(1 << 0);
    /// Call `fd_read` and `sock_recv`; with [`Rights::FD_SEEK`], `fd_pread`.
    pub const FD_READ: Rights = Rights(1 << 1);
    /// Call `fd_seek`; implies [`Rights::FD_TELL`].
    pub const FD_SEEK: Rights = Rights(1 << 2);
    /// Call `fd_fdstat_set_flags`.
    pub const FD_FDSTAT_SET_FLAGS: Rights = Rights(1 << 3);
    /// Call `fd_sync`.
    pub const FD_SYNC: Rights = Rights(1 << 4);
    /// Call `fd_tell`, or `fd_seek` so that the offset stays.
    pub const FD_TELL: Rights = Rights(1 << 5);
    /// Call `fd_write` and `sock_send`; with [`Rights::FD_SEEK`], `fd_pwrite`.
    pub const FD_WRITE: Rights = Rights(1 << 6);
    /// Call `fd_advise`.
    pub const FD_ADVISE: Rights = Rights(1 << 7);
    /// Call `fd_allocate`.
    pub const FD_ALLOCATE: Rights = Rights(1 << 8);
    /// Call `path_create_directory`.
    pub const PATH_CREATE_DIRECTORY: Rights = Rights(1 << 9);
    /// Call `path_open` with [`OFlags::CREAT`].
    pub const PATH_CREATE_FILE: Rights = Rights(1 << 10);
    /// Be the source directory of `path_link`.
    pub const PATH_LINK_SOURCE: Rights = Rights(1 << 11);
    /// Be the target directory of `path_link`.
    pub const PATH_LINK_TARGET: Rights = Rights(1 << 12);
    /// Call `path_open`.
    pub const PATH_OPEN: Rights = Rights(1 << 13);
    /// Call `fd_readdir`.
    pub const FD_READDIR: Rights = Rights(1 << 14);
    /// Call `path_readlink`.
    pub const PATH_READLINK: Rights = Rights(1 << 15);
    /// Be the source directory of `path_rename`.
    pub const PATH_RENAME_SOURCE: Rights = Rights(1 << 16);
    /// Be the target directory of `path_rename`.
    pub const PATH_RENAME_TARGET: Rights = Rights(1 << 17);
    /// Call `path_filestat_get`.
    pub const PATH_FILESTAT_GET: Rights = Rights(1 << 18);
    /// Call `path_open` with [`OFlags::TRUNC`].
    pub const PATH_FILESTAT_SET_SIZE: Rights = Rights(1 << 19);
    /// Call `path_filestat_set_times`.
    pub const PATH_FILESTAT_SET_TIMES: Rights = Rights(1 << 20);
    /// Call `fd_filestat_get`.
    pub const FD_FILESTAT_GET: Rights = Rights(1 << 21);
    /// Call `fd_filestat_set_size`.
    pub const FD_FILESTAT_SET_SIZE: Rights = Rights(1 << 22);
    /// Call `fd_filestat_set_times`.
    pub const FD_FILESTAT_SET_TIMES: Rights = Rights(1 << 23);
    /// Call `path_symlink`.
    pub const PATH_SYMLINK: Rights = Rights(1 << 24);
    /// Call `path_remove_directory`.
    pub const PATH_REMOVE_DIRECTORY: Rights = Rights(1 << 25);
    /// Call `path_unlink_file`.
    pub const PATH_UNLINK_FILE: Rights = Rights(1 << 26);
    /// Be waited for in `poll_oneoff`.
    pub const POLL_FD_READWRITE: Rights = Rights(1 << 27);
    /// Call `sock_shutdown`.
    pub const SOCK_SHUTDOWN: Rights = Rights(1 << 28);
    /// Call `sock_accept`.
    pub const SOCK_ACCEPT: Rights = Rights(1 << 29);

    /// Rights that mean something on a directory.
    pub const DIRECTORY: Rights = Rights(
        Self::FD_FDSTAT_SET_FLAGS.0
            | Self::FD_SYNC.0
            | Self::FD_DATASYNC.0
            | Self::FD_READDIR.0
            | Self::FD_FILESTAT_GET.0
            | Self::FD_FILESTAT_SET_TIMES.0
            | Self::POLL_FD_READWRITE.0
            | Self::PATH_CREATE_DIRECTORY.0
            | Self::PATH_CREATE_FILE.0
            | Self::PATH_LINK_SOURCE.0
            | Self::PATH_LINK_TARGET.0
            | Self::PATH_OPEN.0
            | Self::PATH_READLINK.0
            | Self::PATH_RENAME_SOURCE.0
            | Self::PATH_RENAME_TARGET.0
            | Self::PATH_FILESTAT_GET.0
            | Self::PATH_FILESTAT_SET_SIZE.0
            | Self::PATH_FILESTAT_SET_TIMES.0
            | Self::PATH_SYMLINK.0
            | Self::PATH_REMOVE_DIRECTORY.0
            | Self::PATH_UNLINK_FILE.0,
    );

    /// Rights that mean something on a file with an offset.
    pub const FILE: Rights = Rights(
        Self::FD_DATASYNC.0
            | Self::FD_READ.0
            | Self::FD_SEEK.0
            | Self::FD_FDSTAT_SET_FLAGS.0
            | Self::FD_SYNC.0
            | Self::FD_TELL.0
            | Self::FD_WRITE.0
            | Self::FD_ADVISE.0
            | Self::FD_ALLOCATE.0
            | Self::FD_FILESTAT_GET.0
            | Self::FD_FILESTAT_SET_SIZE.0
            | Self::FD_FILESTAT_SET_TIMES.0
            | Self::POLL_FD_READWRITE.0,
    );

    /// Rights that mean something on a stream: a terminal, a pipe, a device.
    ///
    /// Without seek and tell, because C libraries recognise a terminal by a
    /// character device that lacks both.
    pub const STREAM: Rights = Rights(
        Self::FD_READ.0
            | Self::FD_WRITE.0
            | Self::FD_FDSTAT_SET_FLAGS.0
            | Self::FD_FILESTAT_GET.0
            | Self::FD_SYNC.0
            | Self::FD_DATASYNC.0
            | Self::POLL_FD_READWRITE.0,
    );

    /// Rights that mean something on a connected socket.
    pub const CONNECTION: Rights = Rights(
        Self::FD_READ.0
            | Self::FD_WRITE.0
            | Self::FD_FDSTAT_SET_FLAGS.0
            | Self::FD_FILESTAT_GET.0
            | Self::POLL_FD_READWRITE.0
            | Self::SOCK_SHUTDOWN.0,
    );

    /// Rights that mean something on a listening socket.
    pub const LISTENER: Rights = Rights(
        Self::FD_FDSTAT_SET_FLAGS.0
            | Self::FD_FILESTAT_GET.0
            | Self::POLL_FD_READWRITE.0
            | Self::SOCK_ACCEPT.0,
    );

    /// Rights that ask for a file to be open for writing.
    pub const MUTATE_FILE: Rights =
        Rights(Self::FD_WRITE.0 | Self::FD_ALLOCATE.0 | Self::FD_FILESTAT_SET_SIZE.0);

    /// Whether every right of `other` is among these.
    pub fn contains(self, other: Rights) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether any right of `other` is among these.
    pub fn intersects(self, other: Rights) -> bool {
        self.0 & other.0 != 0
    }

    /// These rights less those of `other`.
    #[must_use]
    pub fn without(self, other: Rights) -> Rights {
        Rights(self.0 & !other.0)
    }
}

impl BitOr for Rights {
    type Output = Rights;

    fn bitor(self, other: Rights) -> Rights {
        Rights(self.0 | other.0)
    }
}

impl BitAnd for Rights {
    type Output = Rights;

    fn bitand(self, other: Rights) -> Rights {
        Rights(self.0 & other.0)
    }
}

/// Defines a set of flags that arrive as a number and are refused if a bit is
/// unknown.
macro_rules! flags {
    ($(#[$doc:meta])* $name:ident { $($(#[$flag_doc:meta])* $flag:ident = $bit:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct $name(u16);

        impl $name {
            /// No flag.
            pub const NONE: $name = $name(0);
            $($(#[$flag_doc])* pub const $flag: $name = $name(1 << $bit);)*
            const KNOWN: u16 = 0 $(| 1 << $bit)*;

            /// Takes the number a guest passed.
            ///
            /// # Errors
            ///
            /// [`Errno::Inval`] if a bit has no meaning.
            pub fn from_guest(bits: u32) -> Result<$name, Errno> {
                match u16::try_from(bits) {
                    Ok(bits) if bits & !Self::KNOWN == 0 => Ok($name(bits)),
                    _ => Err(Errno::Inval),
                }
            }

            /// The flags as a number.
            pub fn bits(self) -> u16 {
                self.0
            }

            /// Whether every flag of `other` is set.
            pub fn contains(self, other: $name) -> bool {
                self.0 & other.0 == other.0
            }

            /// Whether any flag of `other` is set.
            pub fn intersects(self, other: $name) -> bool {
                self.0 & other.0 != 0
            }
        }

        impl BitOr for $name {
            type Output = $name;

            fn bitor(self, other: $name) -> $name {
                $name(self.0 | other.0)
            }
        }
    };
}

flags! {
    /// How reads and writes through a descriptor behave.
    FdFlags {
        /// Every write goes to the end of the file.
        APPEND = 0;
        /// Writes return once the data is on stable storage.
        DSYNC = 1;
        /// Operations that would block fail with [`Errno::Again`].
        NONBLOCK = 2;
        /// Reads see what `DSYNC` or `SYNC` promise for writes.
        RSYNC = 3;
        /// Writes return once data and metadata are on stable storage.
        SYNC = 4;
    }
}

flags! {
    /// How `path_open` treats the file.
    OFlags {
        /// Create the file if it does not exist.
        CREAT = 0;
        /// Fail unless it is a directory.
        DIRECTORY = 1;
        /// Fail if it exists.
        EXCL = 2;
        /// Truncate it to size 0.
        TRUNC = 3;
    }
}

flags! {
    /// How a path is resolved.
    LookupFlags {
        /// Follow a symbolic link that is the last component.
        SYMLINK_FOLLOW = 0;
    }
}

flags! {
    /// Which timestamps to set, and to what.
    FstFlags {
        /// Set the access time to the given value.
        ATIM = 0;
        /// Set the access time to now.
        ATIM_NOW = 1;
        /// Set the modification time to the given value.
        MTIM = 2;
        /// Set the modification time to now.
        MTIM_NOW = 3;
    }
}

flags! {
    /// How `sock_recv` receives.
    RiFlags {
        /// Leave the data to be received again.
        PEEK = 0;
        /// Wait until every buffer is full, or the stream ends.
        WAITALL = 1;
    }
}

flags! {
    /// Which directions of a connection `sock_shutdown` closes.
    SdFlags {
        /// Receiving.
        RD = 0;
        /// Sending.
        WR = 1;
    }
}

flags! {
    /// How the timeout of a clock subscription is meant.
    SubclockFlags {
        /// The timeout is a point in time, not a duration.
        ABSTIME = 0;
    }
}

/// Type of a file, as the guest sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FileType {
    /// Something WASI has no word for, pipes among them.
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
        match host {
            rustix::fs::FileType::RegularFile => FileType::RegularFile,
            rustix::fs::FileType::Directory => FileType::Directory,
            rustix::fs::FileType::Symlink => FileType::SymbolicLink,
            rustix::fs::FileType::CharacterDevice => FileType::CharacterDevice,
            rustix::fs::FileType::BlockDevice => FileType::BlockDevice,
            rustix::fs::FileType::Socket => FileType::SocketStream,
            _ => FileType::Unknown,
        }
    }
}

/// Size of an `iovec` or `ciovec`, bytes: `{ buf: u32, buf_len: u32 }`.
pub const IOVEC_SIZE: u32 = 8;

/// `fdstat`: what `fd_fdstat_get` writes.
///
/// ```text
/// 0         1    2       4        8                    16                         24
/// filetype  pad  flags   pad      rights_base          rights_inheriting
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FdStat {
    /// Type of the open file.
    pub filetype: FileType,
    /// Flags in force.
    pub flags: FdFlags,
    /// Rights on the descriptor itself.
    pub rights_base: Rights,
    /// Rights that descriptors opened through it can have.
    pub rights_inheriting: Rights,
}

impl FdStat {
    /// Size in guest memory, bytes.
    pub const SIZE: usize = 24;

    /// The structure as it lies in guest memory.
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[0] = self.filetype as u8;
        bytes[2..4].copy_from_slice(&self.flags.bits().to_le_bytes());
        bytes[8..16].copy_from_slice(&self.rights_base.0.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.rights_inheriting.0.to_le_bytes());
        bytes
    }
}

/// `filestat`: attributes of a file. Times are nanoseconds since 1970.
///
/// ```text
/// 0    8    16        17   24     32    40    48    56    64
/// dev  ino  filetype  pad  nlink  size  atim  mtim  ctim
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStat {
    /// Device that holds the file.
    pub device: u64,
    /// Serial number of the file on its device.
    pub inode: u64,
    /// Type of the file.
    pub filetype: FileType,
    /// Count of hard links.
    pub link_count: u64,
    /// Size, bytes.
    pub size: u64,
    /// Last access.
    pub accessed_ns: u64,
    /// Last change of the data.
    pub modified_ns: u64,
    /// Last change of data or attributes.
    pub changed_ns: u64,
}

impl FileStat {
    /// Size in guest memory, bytes.
    pub const SIZE: usize = 64;

    /// The structure as it lies in guest memory.
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[0..8].copy_from_slice(&self.device.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.inode.to_le_bytes());
        bytes[16] = self.filetype as u8;
        bytes[24..32].copy_from_slice(&self.link_count.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.size.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.accessed_ns.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.modified_ns.to_le_bytes());
        bytes[56..64].copy_from_slice(&self.changed_ns.to_le_bytes());
        bytes
    }
}

/// `dirent`: head of a directory entry; the name follows it, unterminated.
///
/// ```text
/// 0     8    16       20    21   24
/// next  ino  namelen  type  pad  name...
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dirent {
    /// Cookie of the entry after this one.
    pub next: u64,
    /// Serial number of the file.
    pub inode: u64,
    /// Size of the name, bytes.
    pub name_size: u32,
    /// Type of the file.
    pub filetype: FileType,
}

impl Dirent {
    /// Size in guest memory, bytes, without the name.
    pub const SIZE: usize = 24;

    /// The structure as it lies in guest memory.
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[0..8].copy_from_slice(&self.next.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.inode.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.name_size.to_le_bytes());
        bytes[20] = self.filetype as u8;
        bytes
    }
}

/// Size of a `subscription`, bytes:
///
/// ```text
/// 0         8    9    16                                          48
/// userdata  tag  pad  clock: id u32, timeout u64 at 24, precision u64, flags u16 at 40
///                     fd_read, fd_write: fd u32
/// ```
pub const SUBSCRIPTION_SIZE: u32 = 48;

/// What a subscription or event of `poll_oneoff` is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EventType {
    /// A clock has reached the timeout.
    Clock = 0,
    /// A descriptor has data to read.
    FdRead = 1,
    /// A descriptor accepts data.
    FdWrite = 2,
}

/// `event`: what happened to a subscription.
///
/// ```text
/// 0         8      10    11   16      24     26   32
/// userdata  error  type  pad  nbytes  flags  pad
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Copied from the subscription.
    pub userdata: u64,
    /// What went wrong, if anything.
    pub error: Option<Errno>,
    /// Copied from the subscription.
    pub event_type: EventType,
    /// Bytes available to read or write, where known.
    pub available: u64,
    /// Whether the other end of the stream is closed.
    pub hangup: bool,
}

impl Event {
    /// Size in guest memory, bytes.
    pub const SIZE: usize = 32;

    /// The structure as it lies in guest memory.
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[0..8].copy_from_slice(&self.userdata.to_le_bytes());
        let error = self.error.map_or(0, Errno::code);
        bytes[8..10].copy_from_slice(&error.to_le_bytes());
        bytes[10] = self.event_type as u8;
        bytes[16..24].copy_from_slice(&self.available.to_le_bytes());
        bytes[24..26].copy_from_slice(&u16::from(self.hangup).to_le_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_codes_are_1_to_76_without_gap() {
        for (index, errno) in Errno::ALL.iter().enumerate() {
            assert_eq!(usize::from(errno.code()), index + 1);
        }
        assert_eq!(Errno::ALL.len(), 76);
    }

    #[test]
    fn host_errors_keep_their_meaning() {
        assert_eq!(Errno::from(Host::NOENT), Errno::Noent);
        assert_eq!(
            Errno::from(io::Error::from_raw_os_error(Host::ROFS.raw_os_error())),
            Errno::Rofs
        );
        let escape = io::Error::new(io::ErrorKind::PermissionDenied, "led outside");
        assert_eq!(Errno::from(escape), Errno::Perm);
    }

    #[test]
    fn unknown_flags_are_refused() {
        assert_eq!(FdFlags::from_guest(0x1f).map(FdFlags::bits), Ok(0x1f));
        assert_eq!(FdFlags::from_guest(0x20), Err(Errno::Inval));
        assert_eq!(FdFlags::from_guest(0x1_0000), Err(Errno::Inval));
        assert_eq!(OFlags::from_guest(16), Err(Errno::Inval));
        assert_eq!(LookupFlags::from_guest(2), Err(Errno::Inval));
        assert_eq!(RiFlags::from_guest(4), Err(Errno::Inval));
        assert_eq!(SdFlags::from_guest(4), Err(Errno::Inval));
    }
}
