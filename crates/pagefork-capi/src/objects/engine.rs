//! Engines and their configuration.

use pagefork::{Config, Engine, Result};

/// A configuration.
pub(crate) struct wasm_config_t {
    /// What engines are made with.
    pub(crate) config: Config,
}

impl wasm_config_t {
    /// The configuration that C programs start with: frames of traps say where in the module
    /// they are, as `wasm.h` has functions for that.
    pub(crate) fn new() -> Self {
        let mut config = Config::new();
        config.sources(true);
        Self { config }
    }
}

/// An engine.
pub(crate) struct wasm_engine_t {
    /// The engine itself; what is made with it shares it.
    pub(crate) engine: Engine,
}

impl wasm_engine_t {
    /// An engine with this configuration.
    ///
    /// # Errors
    /// As [`Engine::new`].
    pub(crate) fn new(config: &wasm_config_t) -> Result<Self> {
        Ok(Self { engine: Engine::new(&config.config)? })
    }
}
