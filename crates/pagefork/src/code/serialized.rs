//! Compiled modules as bytes.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use pagefork_compiler::CpuLevel;
use pagefork_compiler::file::{self, Expected, MAGIC};

use crate::base::error::{Result, SystemError};
use crate::code::code_file;
use crate::code::engine::Engine;
use crate::code::module::Module;

/// What bytes are that an engine compiled.
///
/// # Examples
///
/// ```
/// use pagefork::{Engine, Precompiled};
///
/// let bytes = Engine::default().precompile_module(b"(module)")?;
/// assert_eq!(Engine::detect_precompiled(&bytes), Some(Precompiled::Module));
/// assert_eq!(Engine::detect_precompiled(b"\0asm\x01\0\0\0"), None);
/// # Ok::<(), pagefork::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Precompiled {
    /// A core module.
    Module,
}

impl Engine {
    /// Whether these bytes, or the eight at their start, are meant to be a module that was
    /// compiled: a *code image*. Nothing else of them is looked at.
    ///
    /// # Examples
    ///
    /// See [`Precompiled`].
    pub fn detect_precompiled(bytes: &[u8]) -> Option<Precompiled> {
        file::is_code_image(bytes).then_some(Precompiled::Module)
    }

    /// As [`Engine::detect_precompiled`], of a file.
    ///
    /// # Errors
    /// If it cannot be read.
    ///
    /// # Examples
    ///
    /// See [`Module::deserialize_file`].
    pub fn detect_precompiled_file(path: impl AsRef<Path>) -> Result<Option<Precompiled>> {
        let path = path.as_ref();
        let mut start = Vec::new();
        File::open(path)
            .and_then(|file| file.take(MAGIC.len() as u64).read_to_end(&mut start))
            .map_err(|source| SystemError::File { path: path.to_owned(), source })?;
        Ok(Self::detect_precompiled(&start))
    }
}

impl Module {
    /// The compiled module as a *code image*: bytes from which engines of this version with
    /// the same settings make it again without compiling, on processors that can do as much.
    ///
    /// # Errors
    /// Never, as yet.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Engine, Module};
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module $m (func (export "run")))"#)?;
    /// let bytes = module.serialize()?;
    /// // SAFETY: the bytes come from `serialize` and were not changed.
    /// let same = unsafe { Module::deserialize(&engine, &bytes)? };
    /// assert_eq!(same.name(), Some("m"));
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn serialize(&self) -> Result<Vec<u8>> {
        Ok(self.code_image())
    }

    pub(crate) fn code_image(&self) -> Vec<u8> {
        let mut image = self.code_image_head();
        image.extend_from_slice(&self.whole_text());
        image
    }

    /// The module of a code image: see [`Module::serialize`]. Its code is copied.
    ///
    /// # Errors
    /// [`CodeImageError`](crate::CodeImageError) if the bytes are none or damaged, or were
    /// made by another version, with other settings or for a better processor; if the code cannot be
    /// mapped.
    ///
    /// # Safety
    /// The bytes are what [`Module::serialize`], [`Module::write_code_image_file`] or
    /// [`Engine::precompile_module`] made, here or elsewhere: they are machine code, and can do
    /// all that this process can. Checks find damage, not malice.
    ///
    /// # Examples
    ///
    /// See [`Module::serialize`].
    pub unsafe fn deserialize(engine: &Engine, bytes: impl AsRef<[u8]>) -> Result<Self> {
        let options = &engine.config().compile;
        let expected = Expected { options, machine: CpuLevel::of_this_machine()?, key: None };
        let contents = file::read(&mut bytes.as_ref(), &expected, true)?;
        Self::from_compiled(engine, contents.module, contents.key)
    }

    /// As [`Module::deserialize`], of a file, whoever may write to it. A file that is
    /// trusted because the system says so is loaded by [`Module::from_code_image_file`],
    /// which is safe.
    ///
    /// # Errors
    /// If the file cannot be read; else as [`Module::deserialize`].
    ///
    /// # Safety
    /// As of [`Module::deserialize`]. The file may change afterwards.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Engine, Module, Precompiled};
    ///
    /// let engine = Engine::default();
    /// let path = std::env::temp_dir().join(format!("precompiled-{}", std::process::id()));
    /// std::fs::write(&path, engine.precompile_module(b"(module $m)")?)?;
    /// assert_eq!(Engine::detect_precompiled_file(&path)?, Some(Precompiled::Module));
    /// // SAFETY: `precompile_module` made the contents, and nothing has changed them.
    /// let module = unsafe { Module::deserialize_file(&engine, &path)? };
    /// assert_eq!(module.name(), Some("m"));
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub unsafe fn deserialize_file(engine: &Engine, path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let open = || {
            let file = File::open(path);
            file.map_err(|source| SystemError::File { path: path.to_owned(), source })
        };
        // SAFETY: nothing is mapped.
        let load = |file| unsafe { code_file::load(engine, &file, None, false) };
        let module = open().map_err(Into::into).and_then(load);
        module.map_err(|error: crate::base::error::Error| error.about(path.display()))
    }
}
