//! Making engines: the first one of a process installs signal handlers.

use crate::base::error::Result;
use crate::code::config::Config;
use crate::code::engine::Engine;
use crate::run::signals;

impl Engine {
    /// An engine with this configuration. The first one of a process installs
    /// handlers for SIGSEGV, SIGBUS, SIGILL and SIGFPE, which pass on signals that no
    /// guest raised.
    ///
    /// The embedder's own signal handlers must be installed with `SA_ONSTACK`, or
    /// they run on guests' stacks: then a signal ends the process where a guest has used its
    /// stack up. [`handlers_on_guest_stacks`](crate::handlers_on_guest_stacks) finds them.
    ///
    /// # Errors
    /// If the machine or process lacks what is needed: 4 KiB pages, signal
    /// handlers, returns that no hardware checks; if strategies do not go together.
    ///
    /// # Examples
    ///
    /// See [`Engine`].
    pub fn new(config: &Config) -> Result<Self> {
        let engine = Self::with_config(config)?;
        signals::install()?;
        Ok(engine)
    }
}

impl Default for Engine {
    /// An engine with the default configuration.
    ///
    /// # Panics
    /// If the machine or process lacks what is needed; see [`Engine::new`].
    fn default() -> Self {
        Self::new(&Config::default()).expect("this machine can run guests")
    }
}
