//! Arguments and variables as they will lie in the guest: one after the other, each followed
//! by a NUL.

use crate::state::build_error::BuildError;

/// Environment variables of a guest, in a few allocations.
///
/// # Examples
///
/// ```
/// let mut environment = pagefork_wasi::Environment::new();
/// assert!(environment.is_empty());
/// environment.reserve(2, 40);
/// environment.push(b"REQUEST_METHOD", b"GET")?;
/// environment.push_parts(b"SCRIPT", &[b"/cgi", b"/", b"greet"])?;
/// assert!(environment.push(b"A=B", b"").is_err());
/// assert_eq!(environment.len(), 2);
/// # Ok::<(), pagefork_wasi::BuildError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Environment(pub(crate) Strings);

impl Environment {
    /// No variables.
    ///
    /// # Examples
    ///
    /// See [`Environment`].
    pub fn new() -> Environment {
        Environment::default()
    }

    /// Reserves memory for `count` more variables of `size` bytes in all.
    ///
    /// # Examples
    ///
    /// See [`Environment`].
    pub fn reserve(&mut self, count: usize, size: usize) {
        self.0.starts.reserve(count);
        // An equals sign and a NUL each.
        self.0.bytes.reserve(size + 2 * count);
    }

    /// Appends a variable. An earlier one of the same name is not removed, and most guests use
    /// the first.
    ///
    /// # Errors
    ///
    /// [`BuildError::Variable`] if a part cannot be a C string, or the name is empty or contains
    /// `=`.
    ///
    /// # Examples
    ///
    /// See [`Environment`].
    pub fn push(&mut self, name: &[u8], value: &[u8]) -> Result<(), BuildError> {
        self.push_parts(name, &[value])
    }

    /// Appends a variable whose value consists of parts, as [`Environment::push`] does.
    ///
    /// # Errors
    ///
    /// As [`Environment::push`].
    ///
    /// # Examples
    ///
    /// See [`Environment`].
    pub fn push_parts(&mut self, name: &[u8], value: &[&[u8]]) -> Result<(), BuildError> {
        let no_name = name.is_empty() || name.iter().any(|byte| matches!(byte, b'=' | 0));
        if no_name || value.iter().any(|part| part.contains(&0)) {
            let name = String::from_utf8_lossy(name).into_owned();
            return Err(BuildError::Variable { name });
        }
        self.0.start();
        self.0.bytes.extend_from_slice(name);
        self.0.bytes.push(b'=');
        for part in value {
            self.0.bytes.extend_from_slice(part);
        }
        self.0.bytes.push(0);
        Ok(())
    }

    /// The count of variables.
    ///
    /// # Examples
    ///
    /// See [`Environment`].
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no variables.
    ///
    /// # Examples
    ///
    /// See [`Environment`].
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// C strings in one buffer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Strings {
    /// Each followed by a NUL, and without one inside.
    bytes: Vec<u8>,
    /// Where in `bytes` each begins.
    starts: Vec<usize>,
}

impl Strings {
    /// Appends a string, which contains no NUL.
    pub(crate) fn push(&mut self, string: &[u8]) {
        self.start();
        self.bytes.extend_from_slice(string);
        self.bytes.push(0);
    }

    pub(crate) fn len(&self) -> usize {
        self.starts.len()
    }

    /// All strings, each with its NUL.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Each string, without its NUL.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let ends = self.starts.iter().skip(1).copied().chain([self.bytes.len()]);
        self.starts.iter().zip(ends).map(|(&start, end)| &self.bytes[start..end - 1])
    }

    pub(crate) fn starts(&self) -> &[usize] {
        &self.starts
    }

    fn start(&mut self) {
        self.starts.push(self.bytes.len());
    }
}
