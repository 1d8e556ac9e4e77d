//! Any bytes are compiled or refused; a valid module of the supported proposals
//! is compiled. Never a panic, and never a function that cannot be relocated.

#![no_main]

use arbitrary::Unstructured;
use libfuzzer_sys::fuzz_target;
use pagefork_compiler::{CompileOptions, compile, initial_image};

fuzz_target!(|data: &[u8]| {
    let options = CompileOptions::default();
    let Some((choice, data)) = data.split_first() else { return };
    if choice % 4 == 0 {
        let _ = compile(data, &options);
        return;
    }
    let mut input = Unstructured::new(data);
    let Ok(module) = wasm_smith::Module::new(supported(), &mut input) else { return };
    let wasm = module.to_bytes();
    let compiled = compile(&wasm, &options).expect("a valid module compiles");
    let globals = vec![Some(0); compiled.info.imported_globals as usize];
    initial_image(&compiled.info, &compiled.layout, &globals);
});

/// Modules of WebAssembly 2.0 with SIMD.
fn supported() -> wasm_smith::Config {
    wasm_smith::Config {
        bulk_memory_enabled: true,
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
