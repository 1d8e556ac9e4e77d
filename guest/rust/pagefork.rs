//! Helpers for programs in Rust that are started once and then forked, as `pagefork serve --warm`
//! and `pagefork fork` do. Copy the file, or name it by `#[path]`; it needs Rust 1.82.
//!
//! ```ignore
//! mod pagefork;
//!
//! fn main() {
//!     let tables = build_tables();                 // Once, when the server starts.
//!     if pagefork::snapshot() != 0 {               // Each fork goes on from here.
//!         match pagefork::Head::read() {
//!             Ok(head) => head.set_environment(),
//!             Err(error) => panic!("{error}"),
//!         }
//!     }
//!     println!("Content-Type: text/plain\r\n\r\n{:?}", std::env::var("PATH_INFO"));
//!     pagefork::end(0)
//! }
//! ```
//!
//! Such a program is a plain CGI program too: where it is not forked, the number is 0, and its
//! variables are in the environment from the start.

use std::ffi::OsString;
use std::fmt;
use std::io::{self, Read, Write};
#[cfg(unix)]
use std::os::unix::ffi::OsStringExt;
#[cfg(target_os = "wasi")]
use std::os::wasi::ffi::OsStringExt;

/// Most bytes that the head of a request may have.
pub const HEAD_MAX: usize = 1 << 20;

/// Says that the program is to be captured here, unless that was at an earlier read of standard
/// input. Returns the fork's number, from 1; 0 in a program that is run and not forked.
///
/// A module imports `pagefork.snapshot` if it calls this function, and does not otherwise.
/// WebAssembly has no optional imports: a module that has the import starts only where that is
/// defined, as by all commands of `pagefork` that run programs. Native programs get 0. A program
/// that only calls [`Head::read`] needs no import and is captured there.
pub fn snapshot() -> u32 {
    #[cfg(target_arch = "wasm32")]
    {
        #[link(wasm_import_module = "pagefork")]
        // SAFETY: `snapshot` has this type, and touches no memory of the program.
        unsafe extern "C" {
            #[link_name = "snapshot"]
            safe fn imported_snapshot() -> u32;
        }
        imported_snapshot()
    }
    #[cfg(not(target_arch = "wasm32"))]
    0
}

/// The response is complete: writes what is buffered of standard output and ends the program,
/// without dropping anything. What a fork does not write to on its way out need not be copied and
/// restored. If the output cannot be written, a code of 0 becomes 1.
pub fn end(code: i32) -> ! {
    let failed = io::stdout().flush().is_err();
    std::process::exit(if failed && code == 0 { 1 } else { code })
}

/// Why the head of a request cannot be read.
#[derive(Debug)]
#[non_exhaustive]
pub enum HeadError {
    /// Standard input ends within the head, or has nothing.
    CutShort,
    /// Standard input cannot be read.
    Unreadable(io::Error),
    /// The head does not begin with its size in decimal and a colon.
    NoSize,
    /// The head has more than [`HEAD_MAX`] bytes.
    TooLong,
    /// The head does not end with a comma.
    NoComma,
    /// The head is not names and values that each end with a NUL, or not those of SCGI.
    NoVariables,
}

impl fmt::Display for HeadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::CutShort => "standard input ends within the head of the request",
            Self::Unreadable(error) => return write!(f, "standard input cannot be read: {error}"),
            Self::NoSize => "standard input does not begin with the size of a request's head",
            Self::TooLong => "the head of the request is too long",
            Self::NoComma => "the head of the request does not end with a comma",
            Self::NoVariables => "the head of the request does not hold the variables of SCGI",
        };
        f.write_str(text)
    }
}

impl std::error::Error for HeadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Unreadable(error) => Some(error),
            _ => None,
        }
    }
}

/// The head of a request: its variables, in order.
#[derive(Clone, Debug)]
pub struct Head {
    variables: Vec<(OsString, OsString)>,
}

impl Head {
    /// Reads a head from standard input. The body comes next there: `CONTENT_LENGTH` bytes, or all
    /// that there are if that is empty.
    ///
    /// A program that has not been captured before is captured here, when it first reads.
    ///
    /// # Errors
    /// [`HeadError`].
    pub fn read() -> Result<Self, HeadError> {
        Self::read_from(&mut io::stdin().lock())
    }

    /// Reads a head and not a byte more, one by one up to its size: the input should have a
    /// buffer.
    ///
    /// # Errors
    /// [`HeadError`].
    pub fn read_from(input: &mut impl Read) -> Result<Self, HeadError> {
        let size = read_size(input)?;
        let mut head = vec![0; size + 1];
        input.read_exact(&mut head).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => HeadError::CutShort,
            _ => HeadError::Unreadable(error),
        })?;
        if head.pop() != Some(b',') {
            return Err(HeadError::NoComma);
        }
        let variables = variables(&head).ok_or(HeadError::NoVariables)?;
        let own = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
        let variables = variables.into_iter().map(|(name, value)| (own(name), own(value)));
        Ok(Self { variables: variables.collect() })
    }

    /// The variables as they came, `CONTENT_LENGTH` and `SCGI` among them.
    #[allow(dead_code, reason = "programs need not call all")]
    pub fn variables(&self) -> &[(OsString, OsString)] {
        &self.variables
    }

    /// Makes the variables those of the environment. `SCGI` is no variable of CGI and is unset,
    /// and so is `CONTENT_LENGTH` if the size of the body is not known.
    pub fn set_environment(&self) {
        // Editions before 2024 have them as safe functions.
        #[allow(unused_unsafe)]
        for (name, value) in &self.variables {
            if name == "SCGI" || name == "CONTENT_LENGTH" && value.is_empty() {
                // SAFETY: WASI preview 1 has no threads, so nothing else reads the environment.
                unsafe { std::env::remove_var(name) };
            } else {
                // SAFETY: WASI preview 1 has no threads, so nothing else reads the environment.
                unsafe { std::env::set_var(name, value) };
            }
        }
    }
}

/// The size of a head, in bytes.
fn read_size(input: &mut impl Read) -> Result<usize, HeadError> {
    let mut size = None;
    loop {
        let mut byte = [0];
        input.read_exact(&mut byte).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => HeadError::CutShort,
            _ => HeadError::Unreadable(error),
        })?;
        let digit = match (byte[0], size) {
            (b':', Some(size)) => return Ok(size),
            // Digits do not begin with a zero.
            (_, Some(0)) => return Err(HeadError::NoSize),
            (digit @ b'0'..=b'9', _) => usize::from(digit - b'0'),
            _ => return Err(HeadError::NoSize),
        };
        let larger = size.unwrap_or(0) * 10 + digit;
        if larger > HEAD_MAX {
            return Err(HeadError::TooLong);
        }
        size = Some(larger);
    }
}

/// Names and values, if they are those of SCGI.
fn variables(head: &[u8]) -> Option<Vec<(&[u8], &[u8])>> {
    let words: Vec<&[u8]> = head.strip_suffix(b"\0")?.split(|byte| *byte == 0).collect();
    if words.len() % 2 != 0 {
        return None;
    }
    let pairs: Vec<_> = words.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
    let (first, others) = pairs.split_first()?;
    // The size of the body comes first, and once.
    let is_size = first.1.len() <= 19 && first.1.iter().all(u8::is_ascii_digit);
    let is_name = |name: &[u8]| !name.is_empty() && !name.contains(&b'=');
    let fits = first.0 == b"CONTENT_LENGTH"
        && is_size
        && others.iter().all(|(name, _)| is_name(name) && *name != b"CONTENT_LENGTH")
        && others.contains(&(b"SCGI".as_slice(), b"1".as_slice()));
    fits.then_some(pairs)
}
