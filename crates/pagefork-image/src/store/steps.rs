//! The steps of writing into a store, at which tests stop.

use std::io;

/// What was just done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WriteStep {
    /// An empty file was made, and is locked.
    Begun,
    /// Some of its bytes were written.
    Writing,
    /// They are on the disk.
    Synced,
    /// It has its name.
    Named,
    /// Its name is on the disk.
    Recorded,
    /// A file was removed by a collection.
    Removed,
}

#[cfg(test)]
type StepHook = Box<dyn FnMut(WriteStep) -> io::Result<()>>;

#[cfg(test)]
thread_local! {
    static HOOK: std::cell::RefCell<Option<StepHook>> = const { std::cell::RefCell::new(None) };
}

/// Has `hook` called on this thread after each step; the error that it returns is that of the
/// step.
#[cfg(test)]
pub(super) fn on_step(hook: impl FnMut(WriteStep) -> io::Result<()> + 'static) {
    HOOK.set(Some(Box::new(hook)));
}

/// Has nothing called any more.
#[cfg(test)]
pub(super) fn on_no_step() {
    HOOK.set(None);
}

/// Says that a step was done.
///
/// # Errors
/// As the hook wants it.
pub(super) fn done(_step: WriteStep) -> io::Result<()> {
    #[cfg(test)]
    HOOK.with_borrow_mut(|hook| hook.as_mut().map_or(Ok(()), |hook| hook(_step)))?;
    Ok(())
}
