//! Random modules, and what the fuzz targets and the comparison with wasmtime do
//! with them.
//!
//! A case is made from a seed ([`generate`]), run in an engine ([`subject`]) that is
//! Pagefork ([`ours`]) or wasmtime ([`peer`]), and what two runs saw is compared.

mod c_library;
pub mod differential;
pub mod features;
pub mod generate;
mod image;
pub mod interface;
mod load;
pub mod ours;
mod page_manager;
pub mod peer;
mod postcopy;
pub mod random;
mod reset_slot;
mod rewrite;
#[path = "../../tests/tests/sequences/mod.rs"]
mod sequences;
pub mod subject;
pub mod value;
mod waiting;

use arbitrary::Unstructured;
use pagefork::{CodeBounds, GrowthKind, ResetKind, StrategyConfig};
use pagefork_compiler::{CompileOptions, compile as compile_module, initial_image};

pub use crate::c_library::c_library;
use crate::features::FeatureSet;
use crate::generate::Case;
pub use crate::image::image;
pub use crate::load::load;
use crate::ours::{Engines, Ours};
pub use crate::page_manager::{page_manager, page_manager_by_emscripten};
pub use crate::postcopy::postcopy;
use crate::random::Random;
pub use crate::reset_slot::reset_slot;
/// Whatever is done to stores whose guests may be suspended (they are captured, spawned, forked,
/// reset, grown, interrupted), each guest computes and leaves what one does that is never
/// disturbed.
pub use crate::sequences::run as sequences;
pub use crate::waiting::waiting;

/// Any bytes are compiled or refused; a valid module of the supported proposals
/// is compiled. Never a panic, and never a function that cannot be relocated.
pub fn compile(data: &[u8]) {
    let options = CompileOptions::default();
    let Some((choice, data)) = data.split_first() else {
        return;
    };
    if choice % 4 == 0 {
        let _ = compile_module(data, &options);
        return;
    }
    // What needs more address space than there is would be refused.
    let mut config =
        wasm_smith::Config { max_memory64_bytes: 1 << 33, ..wasm_smith::Config::default() };
    supported().apply(&mut config, &mut Random::new((*choice).into(), 0));
    let Ok(module) = wasm_smith::Module::new(config, &mut Unstructured::new(data)) else {
        return;
    };
    let compiled = compile_module(&module.to_bytes(), &options).expect("a valid module compiles");
    let globals = vec![Some(0); compiled.info.imported_globals as usize];
    initial_image(&compiled, compiled.code.behind(), &globals);
}

/// What a module computes does not depend on where it runs: two stores, with all
/// kinds of other slots around them, agree on every result, on every trap, and on
/// all of memory, tables and globals afterwards. Nor on how accesses beyond a memory
/// are found: in one of them by comparing, at least until its memories grow, in the other
/// by its guard.
pub fn run(data: &[u8]) {
    let Some(case) = Case::from_bytes(data, supported()) else {
        return;
    };
    let (engines, comparing) = (Engines::new(), Engines::for_seed(case.seed | 1));
    let observe = |ours: &mut Ours| subject::run(ours, &case);
    let mut neighbour = Ours::new(&engines, &case);
    let (mut first, mut second) = (Ours::new(&engines, &case), Ours::new(&comparing, &case));
    let seen = observe(&mut first);
    observe(&mut neighbour);
    let again = observe(&mut second);
    assert!(seen.refusal.is_none(), "a valid module compiles: {:?}", seen.refusal);
    assert_eq!(subject::difference(&seen, &again), None);
}

/// What a module computes does not depend on who was in its slots before, nor on how
/// they were reset: three stores, one after the other, agree on everything. Each slot is
/// as its image when it is handed out, after all that the random guests and the host did, and
/// again after it was overwritten all over.
pub fn reset_store(data: &[u8]) {
    let Some((choice, data)) = data.split_first() else {
        return;
    };
    let Some(case) = Case::from_bytes(data, supported()) else {
        return;
    };
    // Every accessible byte is looked at, so they are few.
    let checked = GrowthKind::Checked { accessible: Some(1 << 19) };
    let resets = ResetKind::ALL.len() as u8;
    let (reset, growth) = (choice % resets, choice / resets % 8);
    let (growth, code) = match growth {
        0 => (GrowthKind::Mprotect, CodeBounds::Guarded),
        1 => (checked, CodeBounds::Checked),
        2 => (checked, CodeBounds::Dual),
        3 => (GrowthKind::Kept, CodeBounds::Dual),
        4 => (GrowthKind::Auto, CodeBounds::Dual),
        5 => (GrowthKind::Ftruncate, CodeBounds::Guarded),
        6 => (GrowthKind::Fault, CodeBounds::Guarded),
        _ => (GrowthKind::Mprotect, CodeBounds::Dual),
    };
    let reset = ResetKind::ALL[reset as usize];
    let strategies = StrategyConfig { reset, growth, code, ..StrategyConfig::default() };
    let engines = Engines::that_reset(strategies);
    let observe = || subject::run(&mut Ours::new(&engines, &case), &case);
    let seen = observe();
    assert!(seen.refusal.is_none(), "a valid module compiles: {:?}", seen.refusal);
    for _ in 0..2 {
        assert_eq!(subject::difference(&seen, &observe()), None, "{reset}, {growth:?}, {code:?}");
    }
}

/// The proposals that Pagefork implements.
pub fn supported() -> FeatureSet {
    FeatureSet::version(3)
}
