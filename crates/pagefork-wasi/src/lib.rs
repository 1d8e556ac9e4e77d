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

mod base;
mod state;
mod calls;
mod link;

pub use base::abi::{FdFlags, FileType, Rights};
pub use base::errno::Errno;
pub use base::guest_memory::{Buffer, GuestMemory};
pub use calls::process::Exit;
pub use link::linker::{NoMemory, add_to_linker};
pub use link::program::{InitializeError, ProgramKind, initialize};
pub use state::build_error::BuildError;
pub use state::builder::{WasiCtxBuilder, WasiTemplate};
pub use state::ctx::{Unsaveable, WasiCtx};
pub use state::descriptor::{Description, DescriptorOrigin};
pub use state::grants::Permissions;
pub use state::path::OpenMode;
pub use state::stdio::{
    InputPipe, InputReader, InputSource, OutputKind, OutputPipe, OutputSink, Readable, StdinKind,
};
pub use state::strings::Environment;
