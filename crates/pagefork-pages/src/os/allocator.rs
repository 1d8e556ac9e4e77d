//! The allocator of the process: that of the C library.

/// Has the allocator keep as many arenas as there are processors, at most; it would keep eight
/// times as many, and what each of them has once needed stays with it. For programs that
/// allocate on more threads than can run at once; before those are started. Nothing changes
/// where the allocator is not glibc's.
///
/// # Source
/// mallopt(3), `M_ARENA_MAX`.
pub fn limit_arenas() {
    #[cfg(target_env = "gnu")]
    if let Ok(count) = std::thread::available_parallelism() {
        let count = i32::try_from(count.get()).unwrap_or(i32::MAX);
        // SAFETY: it takes two numbers, and locks what it changes.
        unsafe { libc::mallopt(libc::M_ARENA_MAX, count) };
    }
}
