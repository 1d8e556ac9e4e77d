//! Pagefork.

use pagefork::{
    Cache, CodeBounds, Config, Engine, Export, Extern, ExternType, GrowthKind, Instance,
    InstancePre, Linker, Module as Compiled, PoolConfig, ResetKind, Store, StrategyConfig,
    TypedExport, Val, ValType,
};

use super::{Held, Requests, Side, Worker};
use crate::shapes::Pages;

/// An engine as it is when nothing is set, but for a cache of compiled code.
pub(crate) fn engine() -> Engine {
    Engine::new(&config()).expect("this machine runs guests")
}

/// The settings of [`engine`].
pub(crate) fn config() -> Config {
    let mut config = Config::new();
    config.cache(Cache::new(std::env::temp_dir().join("pagefork-bench-cache")));
    config
}

/// An engine with other strategies.
pub(crate) fn engine_with(strategies: StrategyConfig) -> Engine {
    let mut config = config();
    config.strategies(strategies);
    Engine::new(&config).expect("the parts go together")
}

/// An engine without room in its pool: each instance is mapped and unmapped.
pub(crate) fn engine_that_keeps_nothing() -> Engine {
    let mut config = config();
    config.pool(PoolConfig { kept_max: 0, ..PoolConfig::default() });
    Engine::new(&config).expect("this machine runs guests")
}

/// One way to reset slots with one that memories grow, and the code that goes with it.
pub(crate) fn strategies(reset: ResetKind, growth: GrowthKind) -> StrategyConfig {
    let code = match growth {
        _ if growth.is_exact() => CodeBounds::Guarded,
        GrowthKind::Checked { .. } => CodeBounds::Checked,
        _ => CodeBounds::Dual,
    };
    StrategyConfig { reset, growth, code, ..StrategyConfig::default() }
}

/// Each way to reset slots with its name: by faults also with threads that serve them, and with all pages copied
/// at each reset.
pub(crate) fn resets() -> impl Iterator<Item = (String, StrategyConfig)> {
    let usual = StrategyConfig::default();
    let kinds = ResetKind::ALL.into_iter().map(move |reset| {
        let name = reset.to_string();
        (name, StrategyConfig { reset, ..usual })
    });
    let fault = StrategyConfig { reset: ResetKind::Fault, ..usual };
    let served = [("1 handler", 1, false), ("2 handlers", 2, false), ("eager", 0, true)];
    kinds.chain(served.into_iter().map(move |(name, fault_threads, fault_eager)| {
        let name = format!("{}, {name}", fault.reset);
        (name, StrategyConfig { fault_threads, fault_eager, ..fault })
    }))
}

/// Each way to reset slots, and each further way that memories grow, with its name.
pub(crate) fn all_strategies() -> impl Iterator<Item = (String, StrategyConfig)> {
    let usual = StrategyConfig::default();
    let growths = GrowthKind::ALL.into_iter().filter(move |growth| *growth != usual.growth);
    resets().chain(growths.map(move |growth| {
        (format!("{}, growth {growth}", usual.reset), strategies(usual.reset, growth))
    }))
}

/// A linked module.
#[derive(Clone)]
pub(crate) struct Module {
    linker: Linker<()>,
    module: Compiled,
    pre: InstancePre<()>,
    /// Quicker than by name.
    run: TypedExport<(u32, u32, u32), i64>,
}

impl Module {
    /// Compiles and links; imported functions return zeros.
    pub(crate) fn new(engine: &Engine, wasm: &[u8]) -> Self {
        Self::try_new(engine, wasm).expect("a valid module, and room for its code")
    }

    /// The same, if there is room.
    pub(crate) fn try_new(engine: &Engine, wasm: &[u8]) -> pagefork::Result<Self> {
        let module = Compiled::new(engine, wasm)?;
        let mut linker = Linker::new(engine);
        for import in module.imports() {
            let ExternType::Func(ty) = import.ty() else {
                panic!("{} is no function", import.name())
            };
            let zeros: Vec<Val> = ty
                .results
                .iter()
                .map(|ty| match ty {
                    ValType::I32 => Val::I32(0),
                    ValType::I64 => Val::I64(0),
                    other => panic!("a result of type {other:?}"),
                })
                .collect();
            let function = move |_: pagefork::Caller<'_, ()>, _: &[Val], results: &mut [Val]| {
                results.clone_from_slice(&zeros);
                Ok(())
            };
            linker.func_new(import.module(), import.name(), ty, function).expect("a new name");
        }
        let (pre, run) = (linker.instantiate_pre(&module)?, module.get_typed_export("run")?);
        Ok(Self { linker, module, pre, run })
    }

    /// The same with another way of resetting slots.
    pub(crate) fn with_strategies(&self, strategies: StrategyConfig) -> Self {
        Self {
            linker: self.linker.clone(),
            module: self.module.clone(),
            pre: self.pre.with_strategies(strategies).expect("every kind goes with guards"),
            run: self.run,
        }
    }

    fn call(&self, store: &mut Store<()>, instance: Instance, pages: Pages) -> u64 {
        let run = instance.get_typed_export(&*store, &self.run).expect("run");
        run.call(store, (pages.first, pages.count, pages.step)).expect("run does not trap") as u64
    }
}

impl Side for Module {
    fn request(&self, pages: Pages) -> u64 {
        let (mut store, instance) = self.pre.spawn(()).expect("a slot");
        self.call(&mut store, instance, pages)
    }

    fn request_by_linker(&self, pages: Pages) -> u64 {
        let mut store = Store::new(self.module.engine(), ());
        let instance = self.linker.instantiate(&mut store, &self.module).expect("a slot");
        self.call(&mut store, instance, pages)
    }

    fn hold(&self, pages: Pages) -> Result<(Held, u64), String> {
        let (mut store, instance) = self.pre.spawn(()).map_err(|error| error.to_string())?;
        let result = self.call(&mut store, instance, pages);
        Ok((Held::Pagefork(store), result))
    }

    fn purge(&self) {
        self.module.engine().purge_pool();
    }
}

/// Each request has an instance of its own.
impl Worker for Module {
    fn requests(&self) -> Requests<'_> {
        Box::new(|pages| self.request(pages))
    }
}

/// All requests of a thread have one instance, whose store is reset after each.
pub(crate) struct Reset(pub(crate) Module);

impl Worker for Reset {
    fn requests(&self) -> Requests<'_> {
        let (mut store, instance) = self.0.pre.spawn(()).expect("a slot");
        Box::new(move |pages| {
            let result = self.0.call(&mut store, instance, pages);
            store.reset(()).expect("the kernel gives pages back");
            result
        })
    }
}

/// All requests of a thread have one instance, and the host makes its memory and exported globals
/// as they were: it gives back what the memory has, and writes its segments again. Tables and other globals stay
/// written.
pub(crate) struct ByHand(pub(crate) Module);

impl Worker for ByHand {
    fn requests(&self) -> Requests<'_> {
        let (mut store, instance) = self.0.pre.spawn(()).expect("a slot");
        let exports: Vec<_> = instance.exports(&mut store).map(Export::into_extern).collect();
        let mut globals = Vec::new();
        for global in exports.into_iter().filter_map(Extern::into_global) {
            if global.ty(&store).mutable {
                globals.push((global, global.get(&mut store)));
            }
        }
        let memory = instance.get_memory(&mut store, "memory").expect("a memory");
        let mut segments = memory.data(&store).to_vec();
        segments.truncate(segments.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1));
        Box::new(move |pages| {
            let result = self.0.call(&mut store, instance, pages);
            for (global, value) in &globals {
                global.set(&mut store, *value).expect("the value that it had");
            }
            let size = memory.data_size(&store) as u64;
            let discarded = memory.discard(&mut store, 0, size).expect("all of it");
            let bytes = memory.data_mut(&mut store);
            if discarded.is_none() {
                bytes[segments.len()..].fill(0);
            }
            bytes[..segments.len()].copy_from_slice(&segments);
            result
        })
    }
}
