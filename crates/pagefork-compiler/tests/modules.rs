//! What is accepted, what is refused and how, and what instances start with.

use pagefork_compiler::{
    CompileError, CompileOptions, CompiledModule, Features, SpawnStep, compile, initial_image,
};
use pagefork_layout::code::CodeKind;
use pagefork_layout::reference::FuncRef;
use pagefork_layout::trap::TrapCode;

fn compiled(wat: &str) -> CompiledModule {
    compile(&wat::parse_str(wat).unwrap(), &CompileOptions::default()).unwrap()
}

fn refused(wat: &str, features: Features) -> CompileError {
    let options = CompileOptions { features, ..CompileOptions::default() };
    compile(&wat::parse_str(wat).unwrap(), &options).unwrap_err()
}

/// The byte at an offset from the base, as an instance starts.
fn initial_bytes(module: &CompiledModule, at: i64, count: usize) -> Vec<u8> {
    let globals = vec![Some(0); module.info.imported_globals as usize];
    let image = initial_image(module, module.code.behind(), &globals).image;
    let byte = |at: i64| {
        let run = image
            .runs
            .iter()
            .find(|(start, run)| (*start..*start + run.len() as i64).contains(&at));
        run.map_or(0, |(start, run)| run[(at - start) as usize])
    };
    (at..at + count as i64).map(byte).collect()
}

#[test]
fn what_is_not_supported_is_refused_by_name_and_offset() {
    for (wat, name) in [
        ("(module (memory 1 1 shared))", "shared memories (threads) are not supported"),
        (
            r#"(module (import "env" "memory" (memory 1 2 shared)))"#,
            "shared memories (threads) are not supported",
        ),
        ("(module (type (struct)))", "garbage collection"),
    ] {
        let error = refused(wat, Features::default());
        let message = error.to_string();
        assert!(matches!(error, CompileError::Invalid { .. }), "{message}");
        assert!(message.contains(name), "{wat}: {message}");
        assert!(message.contains("byte offset 0x"), "{message}");
    }
}

#[test]
fn exceptions_as_they_were_first_proposed_are_refused_by_name() {
    // A function `try catch_all end`, for which there is no text any more.
    let sections: [&[u8]; 4] = [
        b"\0asm\x01\0\0\0",
        &[1, 4, 1, 0x60, 0, 0],
        &[3, 2, 1, 0],
        &[10, 8, 1, 6, 0, 0x06, 0x40, 0x19, 0x0b, 0x0b],
    ];
    let message = compile(&sections.concat(), &CompileOptions::default()).unwrap_err().to_string();
    assert!(message.contains("legacy_exceptions"), "{message}");
}

#[test]
fn what_came_after_2_0_is_refused_by_name_where_only_that_is_on() {
    for (wat, name) in [
        ("(module (func return_call 0))", "tail calls"),
        ("(module (memory 1) (memory 1))", "multiple memories"),
        ("(module (memory i64 1))", "memory64"),
        ("(module (table i64 1 funcref))", "memory64"),
        ("(module (tag))", "exceptions"),
        (
            "(module (func (drop (i8x16.relaxed_swizzle (v128.const i64x2 0 0) (v128.const i64x2 0 0)))))",
            "relaxed SIMD",
        ),
        (
            "(module (global i32 (i32.add (i32.const 1) (i32.const 2))))",
            "constant expression required",
        ),
    ] {
        compiled(wat);
        let error = refused(wat, Features::WASM_2);
        let message = error.to_string();
        assert!(matches!(error, CompileError::Invalid { .. }), "{message}");
        assert!(message.contains(name), "{wat}: {message}");
        assert!(message.contains("byte offset 0x"), "{message}");
    }
}

#[test]
fn each_proposal_has_a_switch() {
    for (wat, name, set) in [
        (
            "(module (func (drop (v128.const i64x2 0 0))))",
            "SIMD",
            (|f| f.simd = false) as fn(&mut Features),
        ),
        ("(module (func (drop (i32.extend8_s (i32.const 1)))))", "sign extension", |f| {
            f.sign_extension = false
        }),
        ("(module (func (result i32 i32) (i32.const 1) (i32.const 2)))", "multi-value", |f| {
            f.multi_value = false
        }),
        ("(module (func (drop (i32.trunc_sat_f32_s (f32.const 1)))))", "saturating float", |f| {
            f.saturating_float_to_int = false
        }),
        (
            "(module (memory 1) (func (memory.fill (i32.const 0) (i32.const 0) (i32.const 0))))",
            "bulk memory",
            |f| f.bulk_memory = false,
        ),
        ("(module (func (param externref)))", "reference types", |f| f.reference_types = false),
        ("(module (global (export \"g\") (mut i32) (i32.const 0)))", "mutable global", |f| {
            f.mutable_global = false
        }),
    ] {
        compiled(wat);
        let mut features = Features::default();
        set(&mut features);
        let message = refused(wat, features).to_string();
        assert!(message.to_lowercase().contains(&name.to_lowercase()), "{name}: {message}");
    }
}

#[test]
fn a_component_is_refused_as_such() {
    let error = compile(b"\0asm\x0d\0\x01\0", &CompileOptions::default()).unwrap_err();
    assert!(error.to_string().contains("component"), "{error}");
}

#[test]
fn tables_globals_and_data_are_in_the_image() {
    let module = compiled(
        r#"(module
            (memory 1) (data (i32.const 3) "abc")
            (global (mut i32) (i32.const 7))
            (table 4 funcref) (elem (i32.const 1) $f)
            (func $f))"#,
    );
    assert_eq!(initial_bytes(&module, 2, 5), *b"\0abc\0");
    let global = module.layout.state_parts.global(0).into();
    assert_eq!(initial_bytes(&module, global, 8), 7u64.to_le_bytes());
    let element = module.layout.table_element(0, 1);
    assert_eq!(initial_bytes(&module, element, 8), FuncRef::new(0, 0).0.to_le_bytes());
    let size = module.layout.state_parts.memory_size(0).into();
    assert_eq!(initial_bytes(&module, size, 8), 65536u64.to_le_bytes());
    let dropped = module.layout.state_parts.dropped_data(&module.info, 0).into();
    assert_eq!(initial_bytes(&module, dropped, 1), [1]);
}

#[test]
fn data_of_each_memory_is_at_its_place() {
    let module = compiled(
        r#"(module (memory 1) (memory i64 2) (memory 1)
            (data (memory 2) (i32.const 65533) "two")
            (data (memory 1) (i64.const 0x10000) "one")
            (data (memory 0) (i32.const 0) "zero"))"#,
    );
    for (memory, byte, data) in [(0, 0, "zero"), (1, 0x10000, "one"), (2, 65533, "two")] {
        let at = module.layout.memory_byte(memory, byte);
        assert_eq!(initial_bytes(&module, at, data.len()), data.as_bytes());
        let size = module.layout.state_parts.memory_size(memory).into();
        let pages = module.info.memories[memory as usize].minimum;
        assert_eq!(initial_bytes(&module, size, 8), (pages << 16).to_le_bytes());
    }
    // A segment that does not fit its memory ends the instantiation.
    for offset in ["0x1ffff", "-1", "0x8000000000000000"] {
        let data = format!(r#"(data (memory 1) (i64.const {offset}) "xy")"#);
        let module = compiled(&format!("(module (memory 3) (memory i64 2) {data})"));
        let start = initial_image(&module, module.code.behind(), &[]);
        assert_eq!(start.steps, [SpawnStep::Trap(TrapCode::MemoryOutOfBounds)]);
    }
}

#[test]
fn a_later_data_segment_overwrites_an_earlier_one_with_zeros_too() {
    let module = compiled(
        r#"(module (memory 1) (data (i32.const 0) "abcd") (data (i32.const 1) "\00\00"))"#,
    );
    assert_eq!(initial_bytes(&module, 0, 4), *b"a\0\0d");
}

#[test]
fn what_concerns_other_instances_is_left_for_spawn_in_order() {
    let module = compiled(
        r#"(module
            (import "m" "table" (table 1 funcref))
            (import "m" "memory" (memory 1))
            (import "m" "reference" (global funcref))
            (global funcref (global.get 0))
            (table $own 1 funcref)
            (elem (table 0) (i32.const 5) func 0)
            (elem (table $own) (i32.const 0) funcref (global.get 0))
            (data (i32.const 9) "x")
            (func))"#,
    );
    let steps = initial_image(&module, module.code.behind(), &[None]).steps;
    let expected = [
        SpawnStep::Global { global: 1 },
        SpawnStep::Elements { segment: 0, offset: 5 },
        SpawnStep::Elements { segment: 1, offset: 0 },
        SpawnStep::Data { segment: 0, offset: 9 },
    ];
    assert_eq!(steps, expected);
}

#[test]
fn a_segment_that_does_not_fit_traps_and_stops_what_follows() {
    let module = compiled(
        r#"(module (memory 1)
            (data (i32.const 0) "a") (data (i32.const 65535) "bc") (data (i32.const 1) "d"))"#,
    );
    let steps = initial_image(&module, module.code.behind(), &[]).steps;
    assert_eq!(steps, [SpawnStep::Trap(TrapCode::MemoryOutOfBounds)]);
    assert_eq!(initial_bytes(&module, 0, 2), *b"a\0");
}

#[test]
fn functions_with_loops_lie_close_together() {
    let function = |i: usize| {
        let before = "(i32.store (local.get 0) (i32.const 1))".repeat(i % 9);
        format!("(func (param i32) {before} (loop (br_if 0 (i32.load offset={i} (local.get 0)))))")
    };
    let text: String = (0..200).map(function).collect();
    let code = compiled(&format!("(module (memory 1) {text})")).code;
    let code_size: u32 = code.functions.iter().map(|range| range.size).sum();
    let between = code.descriptors - code_size;
    assert!(between < 28 * code.functions.len() as u32, "{between} bytes between functions");
}

#[test]
fn code_is_the_same_each_time_and_lies_in_order() {
    let wat = r#"(module (import "a" "b" (func $b (param i32) (result i32)))
        (func (export "c") (param i32) (result i32) (i32.div_s (call $b (local.get 0)) (local.get 0)))
        (func (export "d") (result f64) (f64.const 1)))"#;
    let (first, second) = (compiled(wat), compiled(wat));
    assert_eq!(first, second);
    let ranges = &first.code.functions;
    assert!(ranges.windows(2).all(|pair| pair[0].start + pair[0].size <= pair[1].start));
    let (code, behind) = (&first.code, first.code.behind());
    assert!(code.traps(behind).iter().is_sorted() && !code.traps(behind).is_empty());
    assert!(code.call_sites(behind).iter().is_sorted() && !code.call_sites(behind).is_empty());
    for index in 0..3 {
        let code = first.code.function_code(&first.code.text, index);
        assert_eq!(first.code.range_at(code).unwrap().kind, CodeKind::Function(index));
    }
}

#[test]
fn truncated_and_mutated_modules_are_refused_or_compiled_but_never_panic() {
    let wasm = wat::parse_str(
        r#"(module (memory 1) (table 3 funcref) (elem (i32.const 0) 0 1)
            (type $t (func (param i32 f64) (result i64)))
            (global $g (mut i32) (i32.const 1))
            (func (type $t) (block (result i64) (loop (br_if 0 (local.get 0))) (i64.const 3)))
            (func (param i32) (result i64)
                (global.set $g (i32.load8_u offset=3 (local.get 0)))
                (call_indirect (type $t) (local.get 0) (f64.const 2) (local.get 0)))
            (data (i32.const 5) "hello"))"#,
    )
    .unwrap();
    let options = CompileOptions::default();
    for length in 0..wasm.len() {
        // Cut between two sections it may be a module still.
        let _ = compile(&wasm[..length], &options);
    }
    // A linear congruential generator: the mutations are the same every time.
    let mut random = 12345u64;
    for _ in 0..3000 {
        let mut mutated = wasm.clone();
        for _ in 0..3 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let at = (random >> 33) as usize % mutated.len();
            mutated[at] = (random >> 24) as u8;
        }
        let _ = compile(&mutated, &options);
    }
}
