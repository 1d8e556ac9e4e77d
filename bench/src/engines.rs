//! The two engines, set up alike.

/// Pagefork, as its users would set it up.
pub(crate) mod pagefork {
    use pagefork::{CodeBounds, Config, Engine, GrowthKind, Store, StrategyConfig};

    /// An engine whose guests can be interrupted, or not.
    pub(crate) fn engine(interruptible: bool) -> Engine {
        let mut config = Config::new();
        config.interruption(interruptible);
        Engine::new(&config).expect("this machine runs guests")
    }

    /// One whose memories stay accessible as far as the last runs have grown them, where that is quicker.
    pub(crate) fn engine_that_keeps() -> Engine {
        let (growth, code) = (GrowthKind::Auto, CodeBounds::Dual);
        let mut config = Config::new();
        config.interruption(false);
        config.strategies(StrategyConfig { growth, code, ..StrategyConfig::default() });
        Engine::new(&config).expect("this machine runs guests")
    }

    /// A store in which nothing is interrupted.
    pub(crate) fn store<T: 'static>(engine: &Engine, data: T, _interruptible: bool) -> Store<T> {
        Store::new(engine, data)
    }
}

/// Wasmtime, as its users would set it up.
#[cfg(feature = "peer")]
pub(crate) mod wasmtime {
    use std::path::Path;

    use wasmtime::{Config, Engine, Module, Store};

    /// An engine whose guests can be interrupted by epochs, or not.
    pub(crate) fn engine(interruptible: bool) -> Engine {
        let mut config = Config::new();
        config.epoch_interruption(interruptible);
        Engine::new(&config).expect("this machine runs guests")
    }

    /// The same: it has no choice of how memories grow.
    pub(crate) fn engine_that_keeps() -> Engine {
        engine(false)
    }

    /// A module that such an engine has compiled and written.
    #[allow(unsafe_code, reason = "this program has written the file")]
    pub(crate) fn compiled(path: &Path) -> Module {
        // SAFETY: `Module::serialize` made the contents, and nothing has changed them.
        let module = unsafe { Module::deserialize_file(&engine(true), path) };
        module.expect("it was written")
    }

    /// A store whose deadline never comes.
    pub(crate) fn store<T: 'static>(engine: &Engine, data: T, interruptible: bool) -> Store<T> {
        let mut store = Store::new(engine, data);
        if interruptible {
            store.set_epoch_deadline(u64::MAX / 2);
        }
        store
    }
}
