//! Engines: what modules are compiled with and stores belong to.

use std::sync::{Arc, Weak};

use pagefork_compiler::Bounds;
use pagefork_layout::page::PAGE_SIZE;
use pagefork_pages::{Budget, CodeBounds, Pool, Strategies, StrategyConfig};

use crate::base::error::{Result, SystemError};
use crate::code::config::Config;
use crate::code::epochs::EpochClock;
use crate::code::pool::Pooled;
use crate::code::types::{TypeUses, Types};

/// What modules are compiled with and stores belong to. Cheap to clone: clones
/// are the same engine.
///
/// In a process that was forked an engine and the stores of the thread that forked go on to
/// work, time limits included, provided that no other thread was in a call of this crate at
/// that moment: what it had locked stays locked there.
///
/// # Examples
///
/// ```
/// use pagefork::{Config, Engine};
///
/// let engine = Engine::new(Config::new().stack_size(256 << 10).wasm_simd(false))?;
/// assert!(Engine::same(&engine, &engine.clone()));
/// # Ok::<(), pagefork::Error>(())
/// ```
#[derive(Clone)]
pub struct Engine(Arc<EngineInner>);

struct EngineInner {
    config: Config,
    types: Arc<Types>,
    strategies: Strategies,
    budget: Budget,
    pool: Pool<Pooled>,
    epochs: Arc<EpochClock>,
}

/// An engine that may be gone: what a thread keeps that outlives it.
///
/// # Examples
///
/// ```
/// use pagefork::Engine;
///
/// let engine = Engine::default();
/// let weak = engine.weak();
/// assert!(Engine::same(&engine, &weak.upgrade().expect("it is there")));
/// drop(engine);
/// assert!(weak.upgrade().is_none());
/// ```
#[derive(Clone, Debug)]
pub struct EngineWeak(Weak<EngineInner>);

impl EngineWeak {
    /// The engine, unless it is gone with all that belonged to it.
    ///
    /// # Examples
    ///
    /// See [`EngineWeak`].
    pub fn upgrade(&self) -> Option<Engine> {
        self.0.upgrade().map(Engine)
    }
}

impl Engine {
    /// An engine with this configuration.
    ///
    /// # Errors
    /// If the machine or process lacks what is needed, or strategies do not go together.
    pub(crate) fn with_config(config: &Config) -> Result<Self> {
        let page_size = rustix::param::page_size() as u64;
        if page_size != PAGE_SIZE {
            return Err(SystemError::PageSize(page_size).into());
        }
        if has_shadow_stack() {
            return Err(SystemError::ShadowStack.into());
        }
        config.profile.open()?;
        let strategies = config.strategies.check()?;
        let (budget, pool) = (config.budget(), Pool::new(config.pool));
        let (mut config, types, epochs) = (config.clone(), Arc::default(), Arc::default());
        config.compile.bounds = match config.strategies.code {
            CodeBounds::Guarded => Bounds::Guarded,
            CodeBounds::Checked => Bounds::Checked,
            CodeBounds::Dual => Bounds::Dual,
        };
        Ok(Self(Arc::new(EngineInner { config, types, strategies, budget, pool, epochs })))
    }

    /// # Errors
    /// If the parts do not go together, or not with this engine's code.
    pub(crate) fn check_strategies(&self, config: StrategyConfig) -> Result<Strategies> {
        let code = self.0.config.strategies.code;
        Ok(StrategyConfig { code, ..config }.check()?)
    }

    pub(crate) fn default_strategies(&self) -> &Strategies {
        &self.0.strategies
    }

    pub(crate) fn budget(&self) -> &Budget {
        &self.0.budget
    }

    pub(crate) fn pool(&self) -> &Pool<Pooled> {
        &self.0.pool
    }

    pub(crate) fn epochs(&self) -> &Arc<EpochClock> {
        &self.0.epochs
    }

    /// The engine for those who do not keep it alive.
    ///
    /// # Examples
    ///
    /// See [`EngineWeak`].
    pub fn weak(&self) -> EngineWeak {
        EngineWeak(Arc::downgrade(&self.0))
    }

    /// The engine's configuration.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Config, Engine, PoolConfig};
    ///
    /// let pool = PoolConfig { kept_max: 8, ..PoolConfig::default() };
    /// let engine = Engine::new(Config::new().pool(pool))?;
    /// assert_eq!(engine.config().pool_config().kept_max, 8);
    /// // Another engine with one difference.
    /// let other = Engine::new(engine.config().clone().fuel(true))?;
    /// assert_eq!(other.config().pool_config(), pool);
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn config(&self) -> &Config {
        &self.0.config
    }

    /// Whether both are the same engine.
    ///
    /// # Examples
    ///
    /// See [`Engine`].
    pub fn same(a: &Self, b: &Self) -> bool {
        Arc::ptr_eq(&a.0, &b.0)
    }

    /// For what uses function types of this engine.
    pub(crate) fn type_uses(&self) -> TypeUses {
        TypeUses::new(&self.0.types)
    }

    /// How many function types are known, of all that lives: for tests.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub fn type_count(&self) -> usize {
        self.0.types.count()
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("config", &self.0.config).finish_non_exhaustive()
    }
}

/// Whether the processor checks this thread's returns against a second stack.
fn has_shadow_stack() -> bool {
    const ARCH_SHSTK_STATUS: libc::c_long = 0x5005;
    const SHADOW_STACK: u64 = 1;
    let mut status = 0u64;
    // SAFETY: writes the status word, or fails where the kernel knows nothing.
    let failed = unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_SHSTK_STATUS, &mut status) };
    failed == 0 && status & SHADOW_STACK != 0
}
