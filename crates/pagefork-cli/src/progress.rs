//! The progress of compiling, on a terminal.

use std::io::IsTerminal;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use pagefork::Progress;

/// For shorter waits there is no bar.
const PATIENCE: Duration = Duration::from_secs(1);

/// How often the bar moves.
const PERIOD: Duration = Duration::from_millis(100);

/// Compiles; if it takes long and a person is watching, shows how far it is.
pub(crate) fn while_compiling<R>(progress: &Progress, compile: impl FnOnce() -> R) -> R {
    if !std::io::stderr().is_terminal() {
        return compile();
    }
    let (finished, wait) = mpsc::channel();
    thread::scope(|scope| {
        // Without a thread to spare there is no bar.
        let _ = thread::Builder::new().spawn_scoped(scope, move || show(progress, &wait));
        let result = compile();
        drop::<mpsc::Sender<()>>(finished);
        result
    })
}

/// Shows a bar until the other end of `wait` is gone.
fn show(progress: &Progress, wait: &Receiver<()>) {
    if wait.recv_timeout(PATIENCE) != Err(RecvTimeoutError::Timeout) {
        return;
    }
    let style = ProgressStyle::with_template("compiling {bar:32} {pos} of {len} functions")
        .expect("the template is right");
    let bar = ProgressBar::new(progress.total()).with_style(style);
    loop {
        bar.set_length(progress.total());
        bar.set_position(progress.done());
        if wait.recv_timeout(PERIOD) != Err(RecvTimeoutError::Timeout) {
            bar.finish_and_clear();
            return;
        }
    }
}
