//! Pagefork.

use pagefork::{
    Cache, Config, Engine, ExternType, Instance, InstancePre, Linker, Module as Compiled,
    ResetKind, Store, StrategyConfig, TypedExport, Val, ValType,
};

use super::{Held, Side};
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

/// A linked module.
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
    pub(crate) fn with_reset(&self, reset: ResetKind) -> Self {
        let strategies = StrategyConfig { reset, ..StrategyConfig::default() };
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

    fn reused(&self) -> Box<dyn FnMut(Pages) -> u64 + '_> {
        let (mut store, instance) = self.pre.spawn(()).expect("a slot");
        let run = instance.get_typed_export(&store, &self.run).expect("run");
        Box::new(move |pages| {
            let result = run.call(&mut store, (pages.first, pages.count, pages.step));
            store.reset(()).expect("the kernel gives pages back");
            result.expect("run does not trap") as u64
        })
    }
}
