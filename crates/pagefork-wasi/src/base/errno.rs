//! Error codes of `wasi_snapshot_preview1`, and the host error that each stands for.

use std::io;

use rustix::io::Errno as Host;

/// A result whose error is an [`Errno`] unless it says otherwise.
///
/// # Examples
///
/// ```
/// use pagefork_wasi::{Errno, GuestMemory, Result};
///
/// /// Writes the same number at two addresses.
/// fn write_twice(memory: &mut GuestMemory<'_>, addresses: [u32; 2], value: u32) -> Result {
///     addresses.into_iter().try_for_each(|address| memory.write_u32(address, value))
/// }
///
/// let mut bytes = [0; 8];
/// let memory = &mut GuestMemory::new(&mut bytes[..]);
/// write_twice(memory, [0, 4], 7)?;
/// assert_eq!(write_twice(memory, [0, 8], 7), Err(Errno::Fault));
/// # Ok::<(), Errno>(())
/// ```
pub type Result<T = (), E = Errno> = std::result::Result<T, E>;

/// Defines the error codes: number, host error, meaning.
macro_rules! errnos {
    ($($name:ident = $code:literal $(from $host:ident)?, $text:literal;)*) => {
        /// An error code that a function returns to the guest. Success is `Ok(())`.
        ///
        /// # Examples
        ///
        /// ```
        /// use pagefork_wasi::Errno;
        ///
        /// assert_eq!(Errno::Noent.code(), 44);
        /// assert_eq!(Errno::Noent.message(), "no such file or directory");
        /// let missing = std::fs::File::open("/no/such/file").unwrap_err();
        /// assert_eq!(Errno::from(missing), Errno::Noent);
        /// ```
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
        #[repr(u16)]
        pub enum Errno {
            $(#[doc = $text] #[error($text)] $name = $code,)*
        }

        impl Errno {
            /// Every code, in numerical order.
            pub const ALL: &[Errno] = &[$(Errno::$name),*];

            /// The meaning of the code in a few words.
            ///
            /// # Examples
            ///
            /// See [`Errno`].
            pub fn message(self) -> &'static str {
                match self {
                    $(Errno::$name => $text,)*
                }
            }
        }

        impl From<Host> for Errno {
            /// A host error without a code of its own becomes [`Errno::Io`].
            fn from(error: Host) -> Self {
                match error {
                    $($(Host::$host => Errno::$name,)?)*
                    _ => Errno::Io,
                }
            }
        }
    };
}

errnos! {
    TooBig = 1 from TOOBIG, "argument list too long";
    Acces = 2 from ACCESS, "permission denied";
    Addrinuse = 3 from ADDRINUSE, "address in use";
    Addrnotavail = 4 from ADDRNOTAVAIL, "address not available";
    Afnosupport = 5 from AFNOSUPPORT, "address family not supported";
    Again = 6 from AGAIN, "resource unavailable, or operation would block";
    Already = 7 from ALREADY, "connection already in progress";
    Badf = 8 from BADF, "bad file descriptor";
    Badmsg = 9 from BADMSG, "bad message";
    Busy = 10 from BUSY, "device or resource busy";
    Canceled = 11 from CANCELED, "operation canceled";
    Child = 12 from CHILD, "no child processes";
    Connaborted = 13 from CONNABORTED, "connection aborted";
    Connrefused = 14 from CONNREFUSED, "connection refused";
    Connreset = 15 from CONNRESET, "connection reset";
    Deadlk = 16 from DEADLK, "resource deadlock would occur";
    Destaddrreq = 17 from DESTADDRREQ, "destination address required";
    Dom = 18 from DOM, "mathematics argument out of domain of function";
    Dquot = 19 from DQUOT, "disk quota exceeded";
    Exist = 20 from EXIST, "file exists";
    Fault = 21 from FAULT, "bad address";
    Fbig = 22 from FBIG, "file too large";
    Hostunreach = 23 from HOSTUNREACH, "host is unreachable";
    Idrm = 24 from IDRM, "identifier removed";
    Ilseq = 25 from ILSEQ, "illegal byte sequence";
    Inprogress = 26 from INPROGRESS, "operation in progress";
    Intr = 27 from INTR, "interrupted function";
    Inval = 28 from INVAL, "invalid argument";
    Io = 29 from IO, "input/output error";
    Isconn = 30 from ISCONN, "socket is connected";
    Isdir = 31 from ISDIR, "is a directory";
    Loop = 32 from LOOP, "too many levels of symbolic links";
    Mfile = 33 from MFILE, "file descriptor value too large";
    Mlink = 34 from MLINK, "too many links";
    Msgsize = 35 from MSGSIZE, "message too large";
    Multihop = 36 from MULTIHOP, "multihop attempted";
    Nametoolong = 37 from NAMETOOLONG, "file name too long";
    Netdown = 38 from NETDOWN, "network is down";
    Netreset = 39 from NETRESET, "connection aborted by network";
    Netunreach = 40 from NETUNREACH, "network unreachable";
    Nfile = 41 from NFILE, "too many files open in system";
    Nobufs = 42 from NOBUFS, "no buffer space available";
    Nodev = 43 from NODEV, "no such device";
    Noent = 44 from NOENT, "no such file or directory";
    Noexec = 45 from NOEXEC, "executable file format error";
    Nolck = 46 from NOLCK, "no locks available";
    Nolink = 47 from NOLINK, "link has been severed";
    Nomem = 48 from NOMEM, "not enough space";
    Nomsg = 49 from NOMSG, "no message of the desired type";
    Noprotoopt = 50 from NOPROTOOPT, "protocol not available";
    Nospc = 51 from NOSPC, "no space left on device";
    Nosys = 52 from NOSYS, "function not supported";
    Notconn = 53 from NOTCONN, "the socket is not connected";
    Notdir = 54 from NOTDIR, "not a directory";
    Notempty = 55 from NOTEMPTY, "directory not empty";
    Notrecoverable = 56 from NOTRECOVERABLE, "state not recoverable";
    Notsock = 57 from NOTSOCK, "not a socket";
    Notsup = 58 from OPNOTSUPP, "not supported, or operation not supported on socket";
    Notty = 59 from NOTTY, "inappropriate I/O control operation";
    Nxio = 60 from NXIO, "no such device or address";
    Overflow = 61 from OVERFLOW, "value too large to be stored in data type";
    Ownerdead = 62 from OWNERDEAD, "previous owner died";
    Perm = 63 from PERM, "operation not permitted";
    Pipe = 64 from PIPE, "broken pipe";
    Proto = 65 from PROTO, "protocol error";
    Protonosupport = 66 from PROTONOSUPPORT, "protocol not supported";
    Prototype = 67 from PROTOTYPE, "protocol wrong type for socket";
    Range = 68 from RANGE, "result too large";
    Rofs = 69 from ROFS, "read-only file system";
    Spipe = 70 from SPIPE, "invalid seek";
    Srch = 71 from SRCH, "no such process";
    Stale = 72 from STALE, "stale file handle";
    Timedout = 73 from TIMEDOUT, "connection timed out";
    Txtbsy = 74 from TXTBSY, "text file busy";
    Xdev = 75 from XDEV, "cross-device link";
    Notcapable = 76, "capabilities insufficient";
}

impl Errno {
    /// The number that the guest sees.
    ///
    /// # Examples
    ///
    /// See [`Errno`].
    pub fn code(self) -> u16 {
        self as u16
    }
}

impl From<io::Error> for Errno {
    /// An error without a host number comes from cap-std, which uses `PermissionDenied` only
    /// for a path that leads out of its directory.
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
}
