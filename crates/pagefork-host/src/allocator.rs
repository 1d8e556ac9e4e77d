//! Settings of the process's allocator, which is that of the C library.

/// Limits the allocator to one arena for each processor. By default glibc makes up to eight
/// times as many, and each keeps the most memory that it ever needed. For programs that
/// allocate on more threads than can run at once; call it before those threads start. It does
/// nothing where the allocator is not glibc's.
///
/// ```
/// pagefork_host::limit_arenas();
/// ```
///
/// # Source
/// mallopt(3), `M_ARENA_MAX`.
pub fn limit_arenas() {
    #[cfg(target_env = "gnu")]
    if let Ok(count) = std::thread::available_parallelism() {
        let count = i32::try_from(count.get()).unwrap_or(i32::MAX);
        // SAFETY: `mallopt` takes two numbers, and locks what it changes.
        unsafe { libc::mallopt(libc::M_ARENA_MAX, count) };
    }
}
