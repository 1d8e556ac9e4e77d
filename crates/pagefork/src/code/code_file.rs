//! Compiled modules in files.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use pagefork_compiler::CpuLevel;
use pagefork_compiler::file::{self, CodeKey, Expected};
use pagefork_pages::{FileProblem, PagesError, check_writers};

use crate::base::error::{Result, SystemError};
use crate::code::code_memory::CodeMemory;
use crate::code::engine::Engine;
use crate::code::module::Module;

impl Module {
    /// Writes the module as a code image to a file that can then be given to
    /// [`Module::from_code_image_file`]. It is written beside `path` and renamed,
    /// so no process sees half of it. Its permissions are those of executables.
    ///
    /// # Errors
    /// If the file cannot be written.
    ///
    /// # Examples
    ///
    /// See [`Module::from_code_image_file`].
    pub fn write_code_image_file(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let failed = |source| SystemError::WriteFile { path: path.to_owned(), source };
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}", std::process::id()));
        let new = Remove(path.with_file_name(name));
        // Left over from a process of this number, if it is there.
        let _ = std::fs::remove_file(&new.0);
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o777 & !0o022)
            .open(&new.0)
            .map_err(failed)?;
        file.write_all(&self.code_image_head()).map_err(failed)?;
        file.write_all(&self.whole_text()).map_err(failed)?;
        file.sync_all().map_err(failed)?;
        std::fs::rename(&new.0, path).map_err(failed)?;
        Ok(())
    }

    /// Loads a module from a code image that an engine with the same settings has
    /// made: nothing is compiled.
    ///
    /// A code image is machine code and can do all that this process can; no
    /// check can tell a good one from a bad one. So it is trusted like an
    /// executable and must be marked as one (`chmod +x`), belong to this user or
    /// root, and no other user may be able to write to it.
    ///
    /// The code is copied before it is verified, so that nothing which becomes of the
    /// file later matters. Where this process cannot write the file (it is root's and
    /// the process is not, or it is on a read-only file system), the code is mapped
    /// instead, and processes share its memory. While the module lives, root must
    /// then not change such a file, as it must not change that of a running program;
    /// replacing it by another is fine.
    ///
    /// # Errors
    /// If the file cannot be read, is not to be trusted, is damaged, or was made
    /// by another version, with other settings or for a better processor:
    /// [`CodeImageError`](crate::CodeImageError), [`SystemError`], [`PagesError`].
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Engine, Module};
    ///
    /// let path = std::env::temp_dir().join(format!("code-image-{}", std::process::id()));
    /// let module = Module::new(&Engine::default(), r#"(module $m (func (export "run")))"#)?;
    /// module.write_code_image_file(&path)?;
    /// // Another process does it with an engine of its own.
    /// let same = Module::from_code_image_file(&Engine::default(), &path)?;
    /// assert_eq!(same.name(), Some("m"));
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn from_code_image_file(engine: &Engine, path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let load = |file: File| {
            let writable = is_writable(&file)
                .map_err(|source| SystemError::File { path: path.to_owned(), source })?;
            // SAFETY: it is mapped only if the kernel does not let this process write it,
            // and root, who could, is trusted not to.
            unsafe { load(engine, &file, None, !writable) }
        };
        open(path).and_then(load).map_err(|error| error.about(path.display()))
    }

    pub(crate) fn code_image_head(&self) -> Vec<u8> {
        let options = &self.engine().config().compile;
        file::head(self.compiled(), &self.whole_text(), options, self.code_key())
    }
}

/// Opens a file that may be run.
fn open(path: &Path) -> Result<File> {
    let failed = |source| SystemError::File { path: path.to_owned(), source };
    // Do not wait for a writer if it is a pipe.
    let flags = libc::O_NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(PagesError::FileRefused(FileProblem::NotRegular).into());
    }
    check_writers(file.as_fd())?;
    if metadata.permissions().mode() & 0o111 == 0 {
        return Err(SystemError::NotExecutable { path: path.to_owned() }.into());
    }
    Ok(file)
}

/// Whether safe code of this process can write a file that was [opened](open) here. Its
/// owner can, even if its mode forbids it now.
fn is_writable(file: &File) -> io::Result<bool> {
    let user = rustix::process::geteuid();
    let by_permission = user.is_root() || file.metadata()?.uid() == user.as_raw();
    let flags = rustix::fs::fstatvfs(file)?.f_flag;
    Ok(by_permission && !flags.contains(rustix::fs::StatVfsMountFlags::RDONLY))
}

/// Loads a module from a code image, which is verified. The code is mapped if `map` says so
/// and there is room for one more map, else copied.
///
/// # Safety
/// - With `map`, the file is not written to while the module lives.
pub(crate) unsafe fn load(
    engine: &Engine,
    file: &File,
    key: Option<CodeKey>,
    map: bool,
) -> Result<Module> {
    let options = &engine.config().compile;
    let expected = Expected { options, machine: CpuLevel::of_this_machine()?, key };
    // Many modules together take less when they are copied.
    let map = map && CodeMemory::can_map();
    let contents = file::read(&mut &*file, &expected, !map)?;
    if !map {
        return Module::from_compiled(engine, contents.module, contents.key);
    }
    let (start, end) = (contents.text.start, contents.text.end);
    let code = contents.module.code.code_end as usize;
    // SAFETY: the file was just read up to `end`, and by this function's contract nothing
    // writes to it.
    let mapped = unsafe { CodeMemory::map(file.as_fd(), start, (end - start) as usize, code) };
    if let Ok(memory) = mapped {
        return Ok(Module::from_parts(engine, contents.module, memory, contents.key));
    }
    // A file system from which nothing may be executed.
    let mut file = file;
    file.rewind().map_err(file::CodeImageError::from)?;
    let contents = file::read(&mut file, &expected, true)?;
    Module::from_compiled(engine, contents.module, contents.key)
}

/// Loads a module from a code image whose bytes are known to be right. Nothing is hashed, and the
/// code is mapped; where it cannot be, it is copied and verified.
///
/// # Safety
/// The file is not written to while the module lives.
pub(crate) unsafe fn load_known(engine: &Engine, file: &File) -> Result<Module> {
    if CodeMemory::can_map() {
        let options = &engine.config().compile;
        let expected = Expected { options, machine: CpuLevel::of_this_machine()?, key: None };
        let size = file.metadata().map_err(file::CodeImageError::from)?.len();
        let read_at = |into: &mut [u8], offset| file.read_exact_at(into, offset);
        let contents = file::read_known(read_at, size, &expected)?;
        let (start, end) = (contents.text.start, contents.text.end);
        let code = contents.module.code.code_end as usize;
        // SAFETY: the file has bytes up to `end`, and by this function's contract nothing writes
        // to it.
        let mapped = unsafe { CodeMemory::map(file.as_fd(), start, (end - start) as usize, code) };
        if let Ok(memory) = mapped {
            return Ok(Module::from_parts(engine, contents.module, memory, contents.key));
        }
    }
    // Too many maps, or a file system from which nothing may be executed.
    let mut from_start = file;
    from_start.rewind().map_err(file::CodeImageError::from)?;
    // SAFETY: nothing is mapped.
    unsafe { load(engine, file, None, false) }
}

/// Removes a file when dropped, if it is still there.
struct Remove(PathBuf);

impl Drop for Remove {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
