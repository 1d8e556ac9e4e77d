//! Wasmtime.

use wasmtime::{
    Cache, CacheConfig, Config, Enabled, Engine, ExternType, InstanceAllocationStrategy,
    InstancePre, Linker, Module as Compiled, ModuleExport, Mutability, PoolingAllocationConfig,
    Store, Val,
};

use super::{Held, Requests, Side, Worker};
use crate::shapes::Pages;

/// How wasmtime gets its instances.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Setting {
    /// Mapped when they are made.
    OnDemand,
    /// From a pool, whose settings are as they are.
    Pool,
    /// From a pool that keeps 2 MiB of each memory and table, and asks the kernel
    /// what was written.
    Tuned,
    /// The same, but it keeps 64 MiB.
    KeepsAll,
}

impl Setting {
    /// What is usual.
    pub(crate) const ALL: [Self; 3] = [Self::OnDemand, Self::Pool, Self::Tuned];

    /// The column.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::OnDemand => "wasmtime, on demand",
            Self::Pool => "wasmtime, pool",
            Self::Tuned => "wasmtime, tuned pool",
            Self::KeepsAll => "wasmtime, pool that keeps 64 MiB",
        }
    }

    /// An engine for this many instances at a time.
    pub(crate) fn engine(self, live_max: u32) -> Engine {
        Engine::new(&self.config(live_max)).expect("this machine runs guests")
    }

    /// What it is configured with. It keeps compiled code in a cache, because the
    /// settings differ in nothing that is compiled.
    pub(crate) fn config(self, live_max: u32) -> Config {
        let mut cache = CacheConfig::new();
        cache.with_directory(std::env::temp_dir().join("pagefork-bench-wasmtime"));
        let mut config = Config::new();
        config.cache(Some(Cache::new(cache).expect("a directory")));
        if self != Self::OnDemand {
            let mut pool = PoolingAllocationConfig::new();
            pool.total_core_instances(live_max).total_memories(live_max).total_tables(live_max);
            if let Self::Tuned | Self::KeepsAll = self {
                let kept = if self == Self::Tuned { 2 << 20 } else { 64 << 20 };
                pool.linear_memory_keep_resident(kept).table_keep_resident(2 << 20);
                pool.pagemap_scan(Enabled::Auto).max_unused_warm_slots(live_max);
            }
            config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
        }
        config
    }
}

/// A linked module.
pub(crate) struct Module {
    linker: Linker<()>,
    module: Compiled,
    pre: InstancePre<()>,
    /// Quicker than by name.
    run: ModuleExport,
}

impl Module {
    /// Compiles and links; imported functions return zeros.
    pub(crate) fn new(engine: &Engine, wasm: &[u8]) -> Self {
        let module = Compiled::new(engine, wasm).expect("a valid module");
        let mut linker = Linker::new(engine);
        for import in module.imports() {
            let ExternType::Func(ty) = import.ty() else {
                panic!("{} is no function", import.name())
            };
            let zeros: Vec<Val> = ty
                .results()
                .map(|ty| Val::default_for_ty(&ty).expect("results are numbers"))
                .collect();
            let function = move |_: wasmtime::Caller<'_, ()>, _: &[Val], results: &mut [Val]| {
                results.copy_from_slice(&zeros);
                Ok(())
            };
            linker.func_new(import.module(), import.name(), ty, function).expect("a new name");
        }
        let pre = linker.instantiate_pre(&module).expect("all is linked");
        let run = module.get_export_index("run").expect("run");
        Self { linker, module, pre, run }
    }

    fn call(&self, store: &mut Store<()>, instance: wasmtime::Instance, pages: Pages) -> u64 {
        let run = instance.get_module_export(&mut *store, &self.run);
        let run = run.and_then(wasmtime::Extern::into_func).expect("run is a function");
        let run = run.typed::<(u32, u32, u32), i64>(&*store).expect("run has this type");
        run.call(store, (pages.first, pages.count, pages.step)).expect("run does not trap") as u64
    }
}

impl Side for Module {
    fn request(&self, pages: Pages) -> u64 {
        let mut store = Store::new(self.pre.module().engine(), ());
        let instance = self.pre.instantiate(&mut store).expect("a slot");
        self.call(&mut store, instance, pages)
    }

    fn request_by_linker(&self, pages: Pages) -> u64 {
        let mut store = Store::new(self.module.engine(), ());
        let instance = self.linker.instantiate(&mut store, &self.module).expect("a slot");
        self.call(&mut store, instance, pages)
    }

    fn hold(&self, pages: Pages) -> Result<(Held, u64), String> {
        let mut store = Store::new(self.pre.module().engine(), ());
        let instance = self.pre.instantiate(&mut store).map_err(|error| format!("{error:#}"))?;
        let result = self.call(&mut store, instance, pages);
        Ok((Held::Wasmtime(store), result))
    }
}

/// Each request has an instance of its own.
impl Worker for Module {
    fn requests(&self) -> Requests<'_> {
        Box::new(|pages| self.request(pages))
    }
}

/// What users do who keep an instance: they have the kernel throw the written
/// pages of its memory away, which brings the image back, and write the
/// exported globals as they were. Tables and other globals stay written.
pub(crate) struct Kept(pub(crate) Module);

impl Worker for Kept {
    fn requests(&self) -> Requests<'_> {
        let pre = &self.0.pre;
        let mut store = Store::new(pre.module().engine(), ());
        let instance = pre.instantiate(&mut store).expect("a slot");
        let exports: Vec<_> =
            instance.exports(&mut store).map(wasmtime::Export::into_extern).collect();
        let mut globals = Vec::new();
        for global in exports.into_iter().filter_map(wasmtime::Extern::into_global) {
            if global.ty(&store).mutability() == Mutability::Var {
                globals.push((global, global.get(&mut store)));
            }
        }
        let run = instance.get_typed_func::<(u32, u32, u32), i64>(&mut store, "run").expect("run");
        let memory = instance.get_memory(&mut store, "memory").expect("a memory");
        Box::new(move |pages| {
            let result = run.call(&mut store, (pages.first, pages.count, pages.step));
            for (global, value) in &globals {
                global.set(&mut store, *value).expect("the value that it had");
            }
            discard(memory.data_mut(&mut store));
            result.expect("run does not trap") as u64
        })
    }
}

/// Throws away what was written of a mapped memory.
#[allow(unsafe_code)]
fn discard(memory: &mut [u8]) {
    let (start, length) = (memory.as_mut_ptr().cast(), memory.len());
    // SAFETY: the slice is all of a private mapping that starts at a page, borrowed
    // for writing, and any bytes are right in it.
    unsafe { rustix::mm::madvise(start, length, rustix::mm::Advice::LinuxDontNeed) }
        .expect("the kernel discards pages");
}
