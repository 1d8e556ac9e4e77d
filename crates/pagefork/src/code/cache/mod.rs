//! A cache of compiled modules on disk, shared by processes.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pagefork_compiler::CompiledModule;
use pagefork_compiler::file::{self, CodeImageError, CodeKey};
use pagefork_pages::{FileProblem, PagesError};

use self::directory::{CacheDirectory, FoundEntry};
use crate::base::error::{Error, Result};
use crate::code::code_file;
use crate::code::engine::Engine;
use crate::code::module::Module;

mod directory;
#[cfg_attr(
    not(debug_assertions),
    expect(dead_code, unreachable_pub, reason = "only tests name steps")
)]
mod steps;

#[cfg(debug_assertions)]
pub use steps::{Step, on_step};

/// Bytes that a cache holds by default.
const SIZE_LIMIT: u64 = 1 << 30;

/// A directory of compiled modules: what one process has compiled, later ones
/// map. Give it to an engine with [`Config::cache`](crate::Config::cache). Cheap
/// to clone: clones are the same cache.
///
/// Entries are found by a hash of the module, the compiler's version, its options
/// and the processor's level. Each is verified every time it is loaded, and
/// belongs to this user or root, and no other user can write to it. Nothing that
/// goes wrong with a cache is an error: modules are compiled then as without it,
/// and [`Cache::stats`] tells.
///
/// # Examples
///
/// ```
/// use pagefork::{Cache, Config, Engine, Module};
///
/// let cache = Cache::new(std::env::temp_dir().join(format!("cache-{}", std::process::id())));
/// cache.set_size_limit(64 << 20);
/// let engine = Engine::new(Config::new().cache(cache.clone()))?;
/// Module::new(&engine, "(module)")?;
/// Module::new(&engine, "(module)")?;
/// assert_eq!((cache.stats().misses, cache.stats().hits), (1, 1));
/// println!("compiled modules are in {}", cache.directory().display());
/// # std::fs::remove_dir_all(cache.directory())?;
/// # Ok::<(), pagefork::Error>(())
/// ```
#[derive(Clone)]
pub struct Cache(Arc<CacheInner>);

struct CacheInner {
    path: PathBuf,
    directory: Result<CacheDirectory, CacheRefusal>,
    size_limit: AtomicU64,
    stats: Mutex<CacheStats>,
}

/// What a cache has done since it was made, in this process.
///
/// # Examples
///
/// ```
/// use pagefork::Cache;
///
/// let stats = Cache::new("/proc/no/such/directory").stats();
/// assert_eq!(stats.hits, 0);
/// assert!(stats.refused.is_some());
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct CacheStats {
    /// Modules that were loaded and not compiled.
    pub hits: u64,
    /// Modules that were compiled.
    pub misses: u64,
    /// Entries that were written.
    pub written: u64,
    /// Entries that were not trusted, because they were damaged, another user's, or no files. They are removed.
    pub damaged: u64,
    /// What else went wrong: a full disk, a missing permission.
    pub errors: u64,
    /// What last went wrong, damaged entries included.
    pub last_error: Option<String>,
    /// Why the directory is not used at all.
    pub refused: Option<CacheRefusal>,
}

/// Why a directory is not used as a cache.
///
/// # Examples
///
/// ```
/// use pagefork::{Cache, CacheRefusal};
///
/// let refused = Cache::new("/proc/no/such/directory").stats().refused;
/// assert!(matches!(refused, Some(CacheRefusal::Unusable { .. })));
/// ```
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CacheRefusal {
    /// There is no default directory.
    #[error("neither XDG_CACHE_HOME nor HOME is set to an absolute path")]
    NoHome,
    /// Another user owns it, or can write to it.
    #[error("the directory {path:?} is not private: {problem}")]
    NotPrivate {
        /// Which directory.
        path: PathBuf,
        /// Who else can write it.
        problem: FileProblem,
    },
    /// It cannot be made or opened.
    #[error("the directory {path:?} cannot be used: {message}")]
    Unusable {
        /// Which directory.
        path: PathBuf,
        /// Why.
        message: String,
    },
}

impl Cache {
    /// The cache in this directory, which is made if it is not there, for this
    /// user alone.
    ///
    /// # Examples
    ///
    /// See [`Cache`].
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        let path = directory.into();
        let directory = CacheDirectory::open(&path);
        Self::with(path, directory)
    }

    /// The cache in `$XDG_CACHE_HOME/pagefork` or, without that variable, in
    /// `~/.cache/pagefork`.
    ///
    /// # Examples
    ///
    /// Not run as a test, because it makes a directory in the home of the user.
    ///
    /// ```no_run
    /// use pagefork::{Cache, Config, Engine};
    ///
    /// let cache = Cache::in_default_directory();
    /// if let Some(why) = cache.stats().refused {
    ///     eprintln!("modules are compiled each time: {why}");
    /// }
    /// let engine = Engine::new(Config::new().cache(cache))?;
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn in_default_directory() -> Self {
        let variable = |name| std::env::var_os(name).map(PathBuf::from);
        let absolute = |name| variable(name).filter(|path| path.is_absolute());
        let home = || absolute("HOME").map(|home| home.join(".cache"));
        match absolute("XDG_CACHE_HOME").or_else(home) {
            Some(caches) => Self::new(caches.join("pagefork")),
            None => Self::with(PathBuf::new(), Err(CacheRefusal::NoHome)),
        }
    }

    fn with(path: PathBuf, directory: Result<CacheDirectory, CacheRefusal>) -> Self {
        let refused = directory.as_ref().err().cloned();
        let stats = Mutex::new(CacheStats { refused, ..CacheStats::default() });
        Self(Arc::new(CacheInner { path, directory, size_limit: SIZE_LIMIT.into(), stats }))
    }

    /// Sets how many bytes the entries may take together: 1 GiB by default. Those
    /// that were not used for longest make room for new ones, except while modules
    /// made from them live.
    ///
    /// # Examples
    ///
    /// See [`Cache`].
    pub fn set_size_limit(&self, bytes: u64) {
        self.0.size_limit.store(bytes, Relaxed);
    }

    /// Its directory; empty if there is no default directory.
    ///
    /// # Examples
    ///
    /// See [`Cache`].
    pub fn directory(&self) -> &Path {
        &self.0.path
    }

    /// What happened so far.
    ///
    /// # Examples
    ///
    /// See [`Cache`].
    pub fn stats(&self) -> CacheStats {
        self.counts().clone()
    }

    /// The module with these bytes, from the cache if it is there.
    pub(crate) fn module(&self, engine: &Engine, bytes: &[u8]) -> Result<Module> {
        let options = &engine.config().compile;
        let key = CodeKey::new(bytes, options)?;
        if let Some(module) = self.load(engine, key) {
            self.counts().hits += 1;
            return Ok(module);
        }
        let compiled = engine.compile(bytes)?;
        self.counts().misses += 1;
        self.store(engine, &compiled, key);
        // What other processes will map is what this one runs.
        match self.load(engine, key) {
            Some(module) => Ok(module),
            None if engine.config().cache_round_trip => {
                Err(Error::msg(format!("not to be had from the cache: {:?}", self.stats())))
            }
            None => Module::from_compiled(engine, compiled, key),
        }
    }

    fn load(&self, engine: &Engine, key: CodeKey) -> Option<Module> {
        let directory = self.0.directory.as_ref().ok()?;
        let (name, failed) = (key.to_string(), |error: &dyn fmt::Display| self.failed(error));
        let entry = match directory.find(&name) {
            Ok(FoundEntry::Entry(entry)) => entry,
            Ok(FoundEntry::Nothing) => return None,
            Ok(FoundEntry::Strange(problem)) => {
                self.damaged(directory, &name, &problem);
                return None;
            }
            Err(error) => return failed(&error),
        };
        // SAFETY: no process writes to an entry: it got its name when it was complete, and the
        // directory, which is private by `CacheDirectory::open`, is the cache's alone.
        let loaded = unsafe { code_file::load(engine, &entry, Some(key), true) };
        match loaded {
            Ok(module) => {
                directory.used(&entry);
                Some(module)
            }
            Err(error) if error.is::<CodeImageError>() => {
                // Unless another process has replaced it already.
                if directory.is_entry(&name, &entry) {
                    self.damaged(directory, &name, &error);
                }
                None
            }
            Err(error) => failed(&error),
        }
    }

    fn store(&self, engine: &Engine, module: &CompiledModule, key: CodeKey) {
        let Ok(directory) = &self.0.directory else { return };
        let text = &module.code.text;
        let head = file::head(module, text, &engine.config().compile, key);
        let limit = self.0.size_limit.load(Relaxed);
        match directory.add(&key.to_string(), &[&head, text], limit) {
            Ok(true) => self.counts().written += 1,
            Ok(false) => {}
            Err(error) => drop(self.failed::<()>(&error)),
        }
    }

    fn damaged(&self, directory: &CacheDirectory, name: &str, problem: &dyn fmt::Display) {
        self.note(|stats| &mut stats.damaged, format!("entry {name}: {problem:#}"));
        if let Err(error) = directory.remove(name) {
            self.failed::<()>(&error);
        }
    }

    fn failed<T>(&self, error: &dyn fmt::Display) -> Option<T> {
        self.note(|stats| &mut stats.errors, format!("{error:#}"));
        None
    }

    fn note(&self, count: impl FnOnce(&mut CacheStats) -> &mut u64, error: String) {
        let mut stats = self.counts();
        *count(&mut stats) += 1;
        stats.last_error = Some(error);
    }

    fn counts(&self) -> MutexGuard<'_, CacheStats> {
        self.0.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cache").field(&self.0.path).finish()
    }
}

impl CacheRefusal {
    fn new(path: &Path, error: &PagesError) -> Self {
        let path = path.to_owned();
        match error {
            PagesError::FileRefused(problem) => Self::NotPrivate { path, problem: *problem },
            other => Self::Unusable { path, message: other.to_string() },
        }
    }
}
