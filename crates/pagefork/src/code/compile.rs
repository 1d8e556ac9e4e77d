//! Modules from WebAssembly, where the compiler is built in.

use std::borrow::Cow;
use std::path::Path;

use pagefork_compiler::file::{self, CodeKey};
use pagefork_compiler::{CompileError, CompiledModule};

use crate::base::error::{Result, SystemError};
use crate::base::trace::span;
use crate::code::config::Config;
use crate::code::engine::Engine;
use crate::code::module::Module;

impl Module {
    /// Compiles a module from its binary format, or, with the feature `wat`, its
    /// text format.
    ///
    /// # Errors
    /// If it is malformed or invalid, uses a proposal that the engine has switched
    /// off or does not know, or its code cannot be mapped. Failures of
    /// the engine's [cache](crate::Config::cache) are not errors.
    ///
    /// # Examples
    ///
    /// See [`Module`].
    pub fn new(engine: &Engine, bytes: impl AsRef<[u8]>) -> Result<Self> {
        Self::from_binary(engine, &to_binary(bytes.as_ref())?)
    }

    /// Compiles a module from its binary format.
    ///
    /// # Errors
    /// As [`Module::new`]; the text format is malformed here.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Engine, Module};
    ///
    /// let engine = Engine::default();
    /// // The smallest module: its magic number and version.
    /// assert_eq!(Module::from_binary(&engine, b"\0asm\x01\0\0\0")?.exports().len(), 0);
    /// assert!(Module::from_binary(&engine, b"(module)").is_err());
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn from_binary(engine: &Engine, bytes: &[u8]) -> Result<Self> {
        match &engine.config().cache {
            Some(cache) => cache.module(engine, bytes),
            None => {
                let options = &engine.config().compile;
                let key = CodeKey::new(bytes, options)?;
                Self::from_compiled(engine, engine.compile(bytes)?, key)
            }
        }
    }

    /// Compiles a module from a file, in the binary or, with the feature `wat`,
    /// the text format.
    ///
    /// # Errors
    /// If the file cannot be read; else as [`Module::new`].
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Engine, Module};
    ///
    /// let path = std::env::temp_dir().join(format!("module-{}.wat", std::process::id()));
    /// std::fs::write(&path, "(module $greeter)")?;
    /// let engine = Engine::default();
    /// assert_eq!(Module::from_file(&engine, &path)?.name(), Some("greeter"));
    /// # std::fs::remove_file(&path)?;
    /// // The error names the file.
    /// let error = Module::from_file(&engine, "no/such.wasm").err().expect("there is none");
    /// assert!(error.to_string().contains("no/such.wasm"));
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn from_file(engine: &Engine, path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let bytes = std::fs::read(path)
            .map_err(|source| SystemError::File { path: path.to_owned(), source })?;
        Self::new(engine, bytes).map_err(|error| error.about(path.display()))
    }
}

impl Module {
    /// Whether a module in its binary format is valid for `engine`, with the proposals that
    /// are on; nothing is compiled.
    ///
    /// # Errors
    /// If it is not, and why. What is valid can still be too large or too costly for
    /// [`Module::new`].
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Config, Engine, Module};
    ///
    /// let wasm = wat::parse_str("(module (func (param v128)))").expect("well-formed");
    /// Module::validate(&Engine::default(), &wasm)?;
    /// let without_vectors = Engine::new(Config::new().wasm_simd(false))?;
    /// assert!(Module::validate(&without_vectors, &wasm).is_err());
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn validate(engine: &Engine, binary: &[u8]) -> Result<()> {
        Ok(pagefork_compiler::validate(binary, &engine.config().compile)?)
    }
}

impl Engine {
    /// Compiles a module, as [`Module::new`] does, to bytes for [`Module::deserialize`]. The
    /// engine's cache is not used.
    ///
    /// # Errors
    /// As [`Module::new`].
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Engine, Module};
    ///
    /// let engine = Engine::default();
    /// let bytes = engine.precompile_module(b"(module $m)")?;
    /// // SAFETY: `precompile_module` made the bytes, and nothing has changed them.
    /// let module = unsafe { Module::deserialize(&engine, &bytes)? };
    /// assert_eq!(module.name(), Some("m"));
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn precompile_module(&self, bytes: &[u8]) -> Result<Vec<u8>> {
        let bytes = &*to_binary(bytes)?;
        let options = &self.config().compile;
        let key = CodeKey::new(bytes, options)?;
        let module = self.compile(bytes)?;
        let text = &module.code.text;
        let mut image = file::head(&module, text, options, key);
        image.extend_from_slice(text);
        Ok(image)
    }

    /// Compiles a module from its binary format, and counts its functions in the
    /// [progress](Config::progress), if there is one.
    pub(crate) fn compile(&self, bytes: &[u8]) -> Result<CompiledModule, CompileError> {
        span!(DEBUG, "compile", bytes = bytes.len());
        let Config { compile, progress, .. } = self.config();
        match progress {
            None => pagefork_compiler::compile(bytes, compile),
            Some(progress) => pagefork_compiler::compile_with_progress(bytes, compile, progress),
        }
    }
}

/// The binary format of what may be text.
fn to_binary(bytes: &[u8]) -> Result<Cow<'_, [u8]>> {
    #[cfg(feature = "wat")]
    if !bytes.starts_with(b"\0asm") {
        use crate::base::error::TextError;
        if std::str::from_utf8(bytes).is_err() {
            let what = "neither binary, which begins with `\\0asm`, nor text";
            return Err(CompileError::NotAModule { what }.into());
        }
        return wat::parse_bytes(bytes).map_err(|error| TextError::new(error).into());
    }
    Ok(Cow::Borrowed(bytes))
}
