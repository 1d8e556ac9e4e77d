//! The allocator of the process: that of the C library.

/// Has the allocator keep as many arenas as there are processors, at most; it would keep eight
/// times as many, and what each of them has once needed stays with it. For programs that
/// allocate on more threads than can run at once; before those are started.
///
/// Returns how many, or `None` where the allocator is not glibc's or does not obey.
///
/// # Source
/// mallopt(3), `M_ARENA_MAX`.
pub fn limit_arenas() -> Option<usize> {
    #[cfg(target_env = "gnu")]
    {
        let count = std::thread::available_parallelism().ok()?.get();
        // SAFETY: it takes two numbers, and locks what it changes.
        let obeys = unsafe { libc::mallopt(libc::M_ARENA_MAX, count.try_into().ok()?) };
        (obeys == 1).then_some(count)
    }
    #[cfg(not(target_env = "gnu"))]
    None
}
