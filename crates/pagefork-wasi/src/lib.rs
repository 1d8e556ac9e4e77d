//! WASI preview 1 (`wasi_snapshot_preview1`) for Pagefork, with state that
//! can be saved, restored and reset.
//!
//! 1. The core is independent of the engine: every function is a method of
//!    [`WasiCtx`] that takes a [`GuestMemory`] and the guest's arguments, and
//!    returns `Ok(())` or an [`Errno`]. [`add_to_linker`] is all the glue.
//! 2. Whatever a guest passes is an allegation. No argument makes a function
//!    panic; addresses that results go to are checked before anything
//!    happens, so a call that fails with [`Errno::Fault`] did nothing.
//! 3. A guest reaches the directories it was given and nothing else: paths
//!    resolve beneath a directory handle, by cap-std, and an absolute path,
//!    `..` above the directory, or a symbolic link that leads out, fails with
//!    [`Errno::Perm`].
//! 4. The state is plain data: a descriptor is a [`Description`] and a handle
//!    that can be opened from it again. Offsets are kept here, never in the
//!    host's file. Clocks and random numbers have no state at all.
//!
//! All 46 functions exist; `proc_raise` is unsupported, as in other hosts.
//! Sockets are those that the embedder passes in, and the connections that are
//! accepted on them: a guest opens none itself. Paths and names are bytes, as
//! on Linux; they need not be UTF-8.
//!
//! A module is a command, whose `_start` is called once, or a reactor, which is
//! set up and then called as often as one likes; [`initialize`] tells which,
//! and sets it up.
//!
//! ```
//! use pagefork_wasi::{GuestMemory, OutputKind, WasiCtx};
//!
//! let (output, stdout) = OutputKind::pipe();
//! let mut ctx = WasiCtx::builder().arg("greet").stdout(stdout).build()?;
//!
//! // What a guest does to write "hi": an iovec at 8, the bytes at 0.
//! let mut bytes = [0; 32];
//! bytes[..2].copy_from_slice(b"hi");
//! let mut memory = GuestMemory::new(&mut bytes[..]);
//! memory.write_u32(8, 0)?;
//! memory.write_u32(12, 2)?;
//! ctx.fd_write(&mut memory, 1, 8, 1, 16)?;
//!
//! assert_eq!(output.contents(), b"hi");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

/// Numbers and layouts of the interface.
mod abi;
/// The guest's memory, checked.
mod guest_memory;
/// State and its builder.
mod ctx;
/// Arguments and variables, packed.
mod strings;
/// How calls wait, and what ends their waits.
mod waiting;
/// Reading and writing what other processes use too.
mod shared;
/// Where the standard streams lead.
mod stdio;
/// The descriptor table.
mod descriptor;
/// Functions on descriptors and paths.
mod fs;
/// Clocks.
mod clock;
/// Random numbers.
mod random;
/// Waiting.
mod poll;
/// Arguments, environment, exit.
mod process;
/// Sockets that were passed in.
mod sock;
/// Sockets that were passed to this process.
mod listen_fds;
/// The functions as imports of a module.
mod link;
/// Commands and reactors.
mod program;
pub use abi::{
    Dirent, Errno, Event, EventType, FdFlags, FdStat, FileStat, FileType, FstFlags, IOVEC_SIZE,
    LookupFlags, OFlags, RiFlags, Rights, SUBSCRIPTION_SIZE, SdFlags, SubclockFlags,
};
pub use ctx::{BuildError, Permissions, Unsaveable, WasiCtx, WasiCtxBuilder, WasiTemplate};
pub use descriptor::{Description, OpenMode, Origin};
pub use guest_memory::{Buffer, GuestMemory};
pub use link::{NoMemory, add_to_linker};
pub use process::Exit;
pub use program::{ProgramError, ProgramKind, initialize};
pub use stdio::{
    InputPipe, InputReader, InputSource, OutputKind, OutputPipe, OutputSink, Readable, StdinKind,
};
pub use strings::Environment;
