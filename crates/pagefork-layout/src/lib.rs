//! The contract between Pagefork's compiler and its runtime: where everything
//! of an instance lies, relative to its *base*, and what compiled code and host
//! code call each other with.
//!
//! Nothing here does I/O, allocates address space or knows Cranelift; the crate
//! depends on nothing but, on request, serde. Read it in this order:

#![forbid(unsafe_code)]

/// Host pages and Wasm pages; bytes become page indices here and nowhere else.
pub mod page;
/// What a module declares: types, imports, exports, segments.
pub mod module;
/// Types by their constructors and accessors, as embedders make and read them.
pub mod types;
/// Function references and host references, as 64-bit words.
pub mod reference;
/// Exceptions, byte by byte, and references to them.
pub mod exception;
/// The zones of a slot and their places.
pub mod slot;
/// The state zone, byte by byte.
pub mod state;
/// The link zone and the host-side structures that compiled code reads.
pub mod link;
/// Reasons for which a guest traps.
pub mod trap;
/// Lists that are read where they lie.
pub mod packed;
/// The data segments of a module.
pub mod segments;
/// Compiled code: text, descriptors, trap table, call sites.
pub mod code;
/// Text out of modules, for people.
pub mod text;
/// A module's initial image: the bytes that tables, state and memory start with.
pub mod image;

/// Serialises bytes as what they are, not as a sequence of numbers.
#[cfg(feature = "serde")]
pub mod bytes;

/// Version of everything in this crate that slots have and compiled code relies on. It stands
/// in every slot's header, and so in saved images, and in every code image.
pub const ABI_VERSION: u32 = 6;

/// Bytes of a *cell*: the unit in which globals, arguments and results are
/// stored, wide enough for a `v128` and aligned for it.
pub const CELL_SIZE: u32 = 16;
