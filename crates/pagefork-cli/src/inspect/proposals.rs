//! The WebAssembly proposals that a module needs.

use wasmparser::{Validator, WasmFeatures};

/// Proposals with their names, the later ones last.
const PROPOSALS: [(&str, WasmFeatures); 21] = [
    ("mutable-global", WasmFeatures::MUTABLE_GLOBAL),
    ("sign-extension-ops", WasmFeatures::SIGN_EXTENSION),
    ("nontrapping-float-to-int-conversions", WasmFeatures::SATURATING_FLOAT_TO_INT),
    ("multi-value", WasmFeatures::MULTI_VALUE),
    ("bulk-memory-operations", WasmFeatures::BULK_MEMORY),
    ("reference-types", WasmFeatures::REFERENCE_TYPES),
    ("simd", WasmFeatures::SIMD),
    ("extended-const", WasmFeatures::EXTENDED_CONST),
    ("tail-call", WasmFeatures::TAIL_CALL),
    ("multi-memory", WasmFeatures::MULTI_MEMORY),
    ("memory64", WasmFeatures::MEMORY64),
    ("relaxed-simd", WasmFeatures::RELAXED_SIMD),
    ("function-references", WasmFeatures::FUNCTION_REFERENCES),
    ("exception-handling", WasmFeatures::EXCEPTIONS),
    ("legacy-exception-handling", WasmFeatures::LEGACY_EXCEPTIONS),
    ("gc", WasmFeatures::GC),
    ("threads", WasmFeatures::THREADS),
    ("custom-page-sizes", WasmFeatures::CUSTOM_PAGE_SIZES),
    ("wide-arithmetic", WasmFeatures::WIDE_ARITHMETIC),
    ("stack-switching", WasmFeatures::STACK_SWITCHING),
    ("shared-everything-threads", WasmFeatures::SHARED_EVERYTHING_THREADS),
];

/// The proposals that a module needs: those without which it is not valid. `None`
/// if it is not valid with all of them.
pub(crate) fn needed(binary: &[u8]) -> Option<Vec<&'static str>> {
    if !is_valid_without(binary, &[]) {
        return None;
    }
    let mut needed = Vec::new();
    collect(binary, &PROPOSALS, &mut needed);
    Some(needed)
}

/// Most modules need few proposals, so whole groups are left out at once first.
fn collect(binary: &[u8], group: &[(&'static str, WasmFeatures)], needed: &mut Vec<&'static str>) {
    if is_valid_without(binary, group) {
        return;
    }
    match group {
        [(name, _)] => needed.push(name),
        _ => {
            let (early, late) = group.split_at(group.len() / 2);
            collect(binary, early, needed);
            collect(binary, late, needed);
        }
    }
}

fn is_valid_without(binary: &[u8], group: &[(&str, WasmFeatures)]) -> bool {
    let mut features = WasmFeatures::all();
    for (_, feature) in group {
        features.remove(*feature);
    }
    Validator::new_with_features(features).validate_all(binary).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needed_by(text: &str) -> Vec<&'static str> {
        needed(&wat::parse_str(text).expect(text)).expect(text)
    }

    #[test]
    fn a_module_needs_what_it_uses() {
        for (text, expected) in [
            (
                "(module (memory 1) (func (export \"f\") (param i32) (result i32) local.get 0))",
                &[][..],
            ),
            ("(func (result i32 i32) i32.const 1 i32.const 2)", &["multi-value"]),
            ("(func (result i32) i32.const 1 i32.extend8_s)", &["sign-extension-ops"]),
            (
                "(memory 1) (func (memory.fill (i32.const 0) (i32.const 0) (i32.const 0)))",
                &["bulk-memory-operations"],
            ),
            ("(func (param v128))", &["simd"]),
            ("(func (param externref))", &["reference-types"]),
            ("(global i32 (i32.add (i32.const 1) (i32.const 2)))", &["extended-const"]),
            ("(func $f (return_call $f))", &["tail-call"]),
            ("(memory 1) (memory 1)", &["multi-memory"]),
            ("(memory i64 1)", &["memory64"]),
            ("(tag) (func (throw 0))", &["exception-handling"]),
            (
                "(memory 1 1 shared) (func (result i32) (i32.atomic.load (i32.const 0)))",
                &["threads"],
            ),
            (
                "(import \"a\" \"b\" (global (mut i32))) (func (result i64) (i64.trunc_sat_f32_s (f32.const 1)))",
                &["mutable-global", "nontrapping-float-to-int-conversions"],
            ),
        ] {
            assert_eq!(needed_by(text), expected, "{text}");
        }
    }

    #[test]
    fn what_is_not_valid_needs_nothing() {
        assert_eq!(needed(b"\0asm\x01\0\0\0\xff"), None);
    }
}
