//! WASI preview 1 (`wasi_snapshot_preview1`) for Pagefork, with state that
//! can be saved, restored and reset.
//!
//! 1. Every function is a method of [`WasiCtx`] that takes a [`GuestMemory`] and the guest's
//!    arguments, and returns `Ok(())` or an [`Errno`]. [`add_to_linker`] defines them as imports
//!    of modules.
//! 2. Every argument of a guest is checked. None makes a function panic. Addresses for results
//!    are checked first, so a call that fails with [`Errno::Fault`] has changed nothing.
//! 3. A guest reaches the directories that it was given and no other file: paths resolve
//!    beneath a directory handle, by cap-std. An absolute path, `..` above the directory, or a
//!    symbolic link that leads out fails with [`Errno::Perm`].
//! 4. The state is plain data: a descriptor is a [`Description`] and a handle that can be opened
//!    from it again. Offsets stand in the description, not in the host's file. Random numbers have no
//!    state, unless the embedder gives others than the host's. [`WasiCtx::save`] makes a
//!    [`WasiState`] of it, and [`WasiCtxBuilder::restore`] a state of that.
//!
//! All 46 functions exist. `proc_raise` is not supported, as in other hosts. A guest opens no
//! sockets: the embedder passes them in, and the guest accepts connections on them. Paths and
//! names are bytes, as on Linux, and need not be UTF-8.
//!
//! A module is a command, whose `_start` is called once, or a reactor, which is initialized once
//! and then called any number of times. [`initialize`] tells which, and initializes a reactor.
//!
//! ```
//! use pagefork_wasi::{GuestMemory, OutputKind, WasiCtx};
//!
//! let (output, stdout) = OutputKind::pipe();
//! let mut ctx = WasiCtx::builder().arg("greet").stdout(stdout).build()?;
//!
//! // A guest writes "hi" by an iovec at 8 and the bytes at 0.
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
pub use base::errno::{Errno, Result};
pub use base::guest_memory::{Buffer, GuestMemory};
pub use calls::process::Exit;
pub use link::linker::{NoMemory, add_to_linker};
pub use link::program::{InitializeError, ProgramKind, initialize};
pub use state::archive::SessionArchive;
pub use state::build_error::BuildError;
pub use state::builder::{WasiCtxBuilder, WasiTemplate};
pub use state::ctx::WasiCtx;
pub use state::descriptor::{Description, DescriptorOrigin};
pub use state::grants::Permissions;
pub use state::identity::FileChange;
pub use state::path::OpenMode;
pub use state::program_state::{ProgramState, ProgramStateError};
pub use state::restore::{
    ChangedFile, FileDecision, FilePolicy, RestoreError, RestoreNotice, RestoredCtx,
};
pub use state::save::SaveError;
pub use state::saved::WasiState;
pub use state::session::OwnDir;
pub use state::sources::{HostMonotonicClock, HostWallClock};
pub use state::stdio::{
    InputPipe, InputSource, OutputKind, OutputPipe, OutputSink, Readable, StdinKind,
};
pub use state::strings::Environment;
pub use state::tree::{SessionError, SessionLimits};
