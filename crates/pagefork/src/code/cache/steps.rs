//! The steps of writing a cache entry, which tests make fail one by one.

use std::io;

/// What was just done for an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Nothing yet. If this fails, it is as on a file system that knows no files
    /// without names.
    Begun,
    /// Its file was made; it has no name, or none that anybody looks for.
    Made,
    /// Half of its bytes were written.
    HalfWritten,
    /// All of them were.
    Written,
    /// They are on the disk.
    Synced,
    /// It has its name.
    Named,
}

impl Step {
    /// All steps that an entry can fail at, in order.
    pub const ALL: [Self; 5] =
        [Self::Made, Self::HalfWritten, Self::Written, Self::Synced, Self::Named];
}

/// What to do after a step.
#[cfg(debug_assertions)]
type Hook = Box<dyn FnMut(Step) -> io::Result<()>>;

#[cfg(debug_assertions)]
thread_local! {
    static HOOK: std::cell::RefCell<Option<Hook>> = const { std::cell::RefCell::new(None) };
}

/// Has `hook` called on this thread after each step of writing an entry; the error
/// that it returns is that of the step.
#[cfg(debug_assertions)]
pub fn on_step(hook: impl FnMut(Step) -> io::Result<()> + 'static) {
    HOOK.set(Some(Box::new(hook)));
}

/// Says that a step was done.
///
/// # Errors
/// As the hook wants it.
pub(super) fn done(_step: Step) -> io::Result<()> {
    #[cfg(debug_assertions)]
    HOOK.with_borrow_mut(|hook| hook.as_mut().map_or(Ok(()), |hook| hook(_step)))?;
    Ok(())
}
