//! Directories, modules and child processes.

use std::ffi::{CString, OsStr};
use std::ops::Deref;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU64, Ordering};

use pagefork::{Cache, CacheStats, Config, Engine, Instance, Module, Store};

/// Its function `run` returns 42.
pub(crate) const MODULE: &str = r#"(module $answer
    (memory 1) (data (i32.const 8) "\2a")
    (func (export "run") (result i32) (i32.load (i32.const 8))))"#;

/// A module whose function `run` returns this number.
pub(crate) fn numbered(number: i32) -> String {
    format!(r#"(module (func (export "run") (result i32) (i32.const {number})))"#)
}

pub(crate) fn run(module: &Module) -> i32 {
    let mut store = Store::new(module.engine(), ());
    let instance = Instance::new(&mut store, module, &[]).unwrap();
    instance.get_typed_func::<(), i32>(&mut store, "run").unwrap().call(&mut store, ()).unwrap()
}

/// Hits, misses, entries written, entries damaged, errors.
pub(crate) fn counts(stats: &CacheStats) -> [u64; 5] {
    assert_eq!(stats.refused, None);
    [stats.hits, stats.misses, stats.written, stats.damaged, stats.errors]
}

pub(crate) fn engine(cache: &Cache) -> Engine {
    Engine::new(Config::new().cache(cache.clone())).unwrap()
}

/// The module as a process that starts now gets it, and what its cache did.
pub(crate) fn cached(directory: &Path, text: &str) -> (Module, CacheStats) {
    let cache = Cache::new(directory);
    let module = Module::new(&engine(&cache), text).unwrap();
    (module, cache.stats())
}

/// A directory that is removed when dropped.
pub(crate) struct Directory(PathBuf);

impl Deref for Directory {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl AsRef<Path> for Directory {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl AsRef<OsStr> for Directory {
    fn as_ref(&self) -> &OsStr {
        self.0.as_os_str()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let path = CString::new(self.0.as_os_str().as_bytes()).unwrap();
        // SAFETY: the string lives through the call; only tests mount here.
        unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// An empty directory that nobody else can write.
pub(crate) fn private_directory(name: &str) -> Directory {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("cache-{name}-{}-{number}", std::process::id());
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut builder = std::fs::DirBuilder::new();
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700).create(&path).unwrap();
    Directory(path)
}

/// The files of a directory, in order of their names.
pub(crate) fn files(directory: &Path) -> Vec<PathBuf> {
    let all = std::fs::read_dir(directory).unwrap();
    let mut paths: Vec<PathBuf> = all.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

/// The entries of a cache: nothing else lies beside them.
pub(crate) fn entries(directory: &Path) -> Vec<PathBuf> {
    let files = files(directory);
    for file in &files {
        assert_eq!(file.file_name().unwrap().len(), 64, "{file:?}");
    }
    files
}

pub(crate) fn is_root() -> bool {
    // SAFETY: asks for a number.
    unsafe { libc::geteuid() == 0 }
}

/// What a child does, by this variable; see `processes::child`.
pub(crate) const ROLE: &str = "PAGEFORK_TEST_ROLE";
/// The directory of its cache.
pub(crate) const DIRECTORY: &str = "PAGEFORK_TEST_DIRECTORY";

/// This test program again, in another role.
pub(crate) fn child(role: &str, directory: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "processes::child", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .env(DIRECTORY, directory)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap()
}

/// Gives this thread mounts of its own, and `directory` a file system in memory.
/// Returns `false` where that is not permitted.
pub(crate) fn mount_tmpfs(directory: &Path, flags: libc::c_ulong, options: &str) -> bool {
    let target = CString::new(directory.as_os_str().as_bytes()).unwrap();
    let options = CString::new(options).unwrap();
    // SAFETY: the strings live through the calls, which change this thread's mounts.
    unsafe {
        libc::unshare(libc::CLONE_NEWNS) == 0
            && libc::mount(
                std::ptr::null(),
                c"/".as_ptr(),
                std::ptr::null(),
                libc::MS_REC | libc::MS_PRIVATE,
                std::ptr::null(),
            ) == 0
            && libc::mount(
                c"tmpfs".as_ptr(),
                target.as_ptr(),
                c"tmpfs".as_ptr(),
                flags,
                options.as_ptr().cast(),
            ) == 0
    }
}

/// Makes a mount of [`mount_tmpfs`] read-only.
pub(crate) fn make_read_only(directory: &Path) {
    let target = CString::new(directory.as_os_str().as_bytes()).unwrap();
    let flags = libc::MS_REMOUNT | libc::MS_RDONLY;
    // SAFETY: the string lives through the call, which changes a mount of this thread.
    let result = unsafe {
        let none = std::ptr::null();
        libc::mount(none, target.as_ptr(), none, flags, none.cast())
    };
    assert_eq!(result, 0);
}
