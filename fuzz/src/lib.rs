//! What the fuzz targets do with their input. Each panics when a property fails.

use arbitrary::Unstructured;
use pagefork::{Engine, Extern, Instance, Module, Store, Trap, Val};
use pagefork_compiler::{CompileOptions, compile as compile_module, initial_image};

/// Any bytes are compiled or refused; a valid module of the supported proposals
/// is compiled. Never a panic, and never a function that cannot be relocated.
pub fn compile(data: &[u8]) {
    let options = CompileOptions::default();
    let Some((choice, data)) = data.split_first() else { return };
    if choice % 4 == 0 {
        let _ = compile_module(data, &options);
        return;
    }
    let Some(wasm) = module(data, supported()) else { return };
    let compiled = compile_module(&wasm, &options).expect("a valid module compiles");
    let globals = vec![Some(0); compiled.info.imported_globals as usize];
    initial_image(&compiled.info, &compiled.layout, &globals);
}

/// What a module computes does not depend on where it runs: two instances, with
/// all kinds of other slots around them, agree on every result, on every trap,
/// and on all of memory and globals afterwards.
pub fn run(data: &[u8]) {
    let config = wasm_smith::Config {
        max_imports: 0,
        min_funcs: 1,
        min_exports: 1,
        export_everything: true,
        max_memory32_bytes: 1 << 20,
        max_table_elements: 1000,
        // The bits of a NaN are not specified, so they may differ.
        canonicalize_nans: true,
        // Random code traps soon: half of the modules only do what cannot.
        disallow_traps: data.first().is_some_and(|byte| byte % 2 == 0),
        ..supported()
    };
    let mut input = Unstructured::new(data);
    let Ok(mut module) = wasm_smith::Module::new(config, &mut input) else { return };
    // Loops must end: every function and loop takes one off a global.
    if module.ensure_termination(1000).is_err() {
        return;
    }
    let engine = Engine::default();
    let module = Module::new(&engine, module.to_bytes()).expect("a valid module compiles");
    let _neighbour = spawn(&engine, &module);
    let (first, second) = (observe(&engine, &module), observe(&engine, &module));
    assert_eq!(first, second);
}

fn spawn(engine: &Engine, module: &Module) -> Option<(Store<()>, Instance)> {
    let mut store = Store::new(engine, ());
    let instance = Instance::new(&mut store, module, &[]).ok()?;
    Some((store, instance))
}

/// Calls every exported function in turn; what came of each, then of memory and
/// globals.
fn observe(engine: &Engine, module: &Module) -> Option<Vec<String>> {
    let (mut store, instance) = spawn(engine, module)?;
    let mut seen = Vec::new();
    let exports: Vec<Extern> =
        instance.exports(&mut store).map(|export| export.into_extern()).collect();
    for export in &exports {
        let Extern::Func(function) = export else { continue };
        let ty = function.ty(&store);
        let params: Vec<Val> = ty.params.iter().map(|ty| Val::default_for(*ty)).collect();
        let mut results: Vec<Val> = ty.results.iter().map(|ty| Val::default_for(*ty)).collect();
        match function.call(&mut store, &params, &mut results) {
            Ok(()) => seen.push(format!("{:?}", results.iter().map(bits).collect::<Vec<_>>())),
            Err(error) => {
                let trap = error.downcast_ref::<Trap>().expect("only traps end these functions");
                seen.push(trap.to_string());
            }
        }
    }
    for export in &exports {
        match export {
            Extern::Memory(memory) => {
                let sum = memory.data(&store).iter().fold(0u64, |sum, byte| {
                    sum.rotate_left(5).wrapping_mul(31).wrapping_add(u64::from(*byte))
                });
                seen.push(format!("{} {sum:x}", memory.size(&store)));
            }
            Extern::Global(global) => seen.push(format!("{:?}", bits(&global.get(&mut store)))),
            _ => {}
        }
    }
    Some(seen)
}

/// A value as bits; of references only whether they are null.
fn bits(value: &Val) -> String {
    match value {
        Val::FuncRef(reference) => format!("func {}", reference.is_some()),
        Val::ExternRef(reference) => format!("extern {}", reference.is_some()),
        number => format!("{number:?}"),
    }
}

fn module(data: &[u8], config: wasm_smith::Config) -> Option<Vec<u8>> {
    let mut input = Unstructured::new(data);
    Some(wasm_smith::Module::new(config, &mut input).ok()?.to_bytes())
}

/// Modules of WebAssembly 2.0 with SIMD.
fn supported() -> wasm_smith::Config {
    wasm_smith::Config {
        bulk_memory_enabled: true,
        compact_imports_enabled: false,
        custom_page_sizes_enabled: false,
        exceptions_enabled: false,
        extended_const_enabled: false,
        gc_enabled: false,
        max_memories: 1,
        memory64_enabled: false,
        multi_value_enabled: true,
        reference_types_enabled: true,
        relaxed_simd_enabled: false,
        saturating_float_to_int_enabled: true,
        shared_everything_threads_enabled: false,
        sign_extension_ops_enabled: true,
        simd_enabled: true,
        tail_call_enabled: false,
        threads_enabled: false,
        wide_arithmetic_enabled: false,
        ..wasm_smith::Config::default()
    }
}
