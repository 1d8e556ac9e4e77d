//! The deterministic mode: no result depends on the machine.

use pagefork::{Config, Engine, Instance, Module, Result, Store};

/// What the export `f` returns, as bits, with and without the mode.
fn results(text: &str) -> Result<[u128; 2]> {
    let mut results = [0; 2];
    for (result, on) in results.iter_mut().zip([true, false]) {
        let engine = Engine::new(Config::new().deterministic(on))?;
        let module = Module::new(&engine, text)?;
        let mut store = Store::new(&engine, ());
        let instance = Instance::new(&mut store, &module, &[])?;
        *result = instance.get_typed_func::<(), u128>(&mut store, "f")?.call(&mut store, ())?;
    }
    Ok(results)
}

/// A vector of this one 32-bit number.
fn lanes(bits: u32) -> u128 {
    (0..4).fold(0, |all, lane| all | u128::from(bits) << (32 * lane))
}

#[test]
fn arithmetic_makes_the_canonical_nan_and_no_other() -> Result<()> {
    // Zero divided by itself is a negative NaN on x86; a NaN with a payload keeps
    // it in an addition.
    for operands in ["(f32.const 0) (f32.const 0)", "(f32.const nan:0x200001) (f32.const 1)"] {
        let text = format!(
            r#"(module (func (export "f") (result v128) (f32x4.splat (f32.div {operands}))))"#
        );
        let [fixed, free] = results(&text)?;
        assert_eq!(fixed, lanes(0x7fc0_0000));
        assert_ne!(free, fixed, "the mode changes nothing here: the test shows nothing");
    }
    Ok(())
}

#[test]
fn moving_and_negating_keeps_every_bit_of_a_nan() -> Result<()> {
    let text = r#"(module (func (export "f") (result v128)
        (f32x4.splat (f32.neg (f32.const nan:0x200001)))))"#;
    assert_eq!(results(text)?, [lanes(0xffa0_0001); 2]);
    Ok(())
}

#[test]
fn a_relaxed_multiplication_and_addition_rounds_twice() -> Result<()> {
    // 16777217 does not fit an f32: rounded once, the difference is seen.
    let text = r#"(module (func (export "f") (result v128)
        (f32x4.relaxed_madd
            (f32x4.splat (f32.const 4097))
            (f32x4.splat (f32.const 4097))
            (f32x4.splat (f32.const -16785408)))))"#;
    let [fixed, free] = results(text)?;
    assert_eq!(fixed, lanes(0f32.to_bits()));
    assert!(free == fixed || free == lanes(1f32.to_bits()), "{free:x}");
    Ok(())
}

#[test]
fn relaxed_dot_products_are_of_signed_bytes_and_saturate() -> Result<()> {
    let least = "(v128.const i8x16 -128 -128 -128 -128 -128 1 2 3 4 5 6 7 8 9 10 11)";
    let text = format!(
        r#"(module
            (func (export "f") (result v128)
                (i16x8.relaxed_dot_i8x16_i7x16_s {least} {least}))
            (func (export "g") (result v128)
                (i32x4.relaxed_dot_i8x16_i7x16_add_s {least} {least} (v128.const i32x4 1 0 0 0))))"#
    );
    let products = results(&text)?[0];
    assert_eq!(products.to_le_bytes()[..6], [0xff, 0x7f, 0xff, 0x7f, 0x01, 0x40]);
    let text = text.replace("\"f\"", "\"\"").replace("\"g\"", "\"f\"");
    let sums = results(&text)?[0];
    assert_eq!(sums.to_le_bytes()[..4], (2 * 0x7fffu32 + 1).to_le_bytes());
    Ok(())
}

#[test]
fn relaxed_operators_do_what_the_exact_ones_do() -> Result<()> {
    let cases = [
        (
            "i8x16.relaxed_swizzle",
            "i8x16.swizzle",
            "(v128.const i8x16 1 2 3 4 5 6 7 8 9 10 11 12 \
          13 14 15 16) (v128.const i8x16 0 15 16 17 127 -128 -1 1 2 3 4 5 6 7 8 9)",
        ),
        (
            "i32x4.relaxed_trunc_f32x4_s",
            "i32x4.trunc_sat_f32x4_s",
            "(v128.const f32x4 nan 3e9 -3e9 1.5)",
        ),
        (
            "f32x4.relaxed_min",
            "f32x4.min",
            "(v128.const f32x4 0 nan 1 2) (v128.const f32x4 -0 1 nan 3)",
        ),
        ("f64x2.relaxed_max", "f64x2.max", "(v128.const f64x2 0 nan) (v128.const f64x2 -0 1)"),
        (
            "i16x8.relaxed_q15mulr_s",
            "i16x8.q15mulr_sat_s",
            "(v128.const i16x8 -32768 -32768 1 2 3 4 5 6) (v128.const i16x8 -32768 1 1 2 3 4 5 6)",
        ),
    ];
    for (relaxed, exact, operands) in cases {
        let module = |operator: &str| {
            format!(r#"(module (func (export "f") (result v128) ({operator} {operands})))"#)
        };
        assert_eq!(results(&module(relaxed))?[0], results(&module(exact))?[0], "{relaxed}");
    }
    Ok(())
}
