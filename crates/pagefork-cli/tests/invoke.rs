//! Values on the command line: what is printed can be given, and means the same.

mod common;

use common::{assert_fails, file, pagefork};

/// A module with a function for each type that gives back what it is given.
fn identity(name: &str) -> String {
    let types = ["i32", "i64", "f32", "f64", "v128", "funcref", "externref", "exnref"];
    let functions = types
        .map(|ty| format!("(func (export \"{ty}\") (param {ty}) (result {ty}) (local.get 0))"));
    let text = format!(
        "(module (type $t (func)) {} (func $f)
        (func (export \"concrete\") (param (ref null $t)) (result (ref null $t)) (local.get 0))
        (func (export \"required\") (param (ref $t)))
        (func (export \"bits32\") (param f32) (result i32) (i32.reinterpret_f32 (local.get 0)))
        (func (export \"bits64\") (param f64) (result i64) (i64.reinterpret_f64 (local.get 0)))
        (func (export \"float32\") (param i32) (result f32) (f32.reinterpret_i32 (local.get 0)))
        (func (export \"float64\") (param i64) (result f64) (f64.reinterpret_i64 (local.get 0))))",
        functions.join("\n")
    );
    file(name, text)
}

#[track_caller]
fn prints(file: &str, function: &str, argument: &str, printed: &str) {
    let ended = pagefork(&format!("--invoke {function} {file} {argument}"));
    assert_eq!((ended.code, &*ended.stderr), (0, ""), "{function} {argument}");
    assert_eq!(ended.stdout, format!("{printed}\n"), "{function} {argument}");
}

#[test]
fn floats_are_decimal_or_hexadecimal_or_not_finite() {
    let file = identity("floats.wat");
    for (text, bits) in [
        ("1.5", 0x3fc0_0000_u32),
        ("-1.5", 0xbfc0_0000),
        ("-0", 0x8000_0000),
        ("1e10", 0x5015_02f9),
        ("0x1.8p0", 0x3fc0_0000),
        ("-0x1p-149", 0x8000_0001),
        // Halfway between two floats, and a bit more.
        ("0x1.0000010000000001p0", 0x3f80_0001),
        ("inf", 0x7f80_0000),
        ("-inf", 0xff80_0000),
        ("infinity", 0x7f80_0000),
        ("nan", 0x7fc0_0000),
        ("NaN", 0x7fc0_0000),
        ("-nan", 0xffc0_0000),
        ("nan:0x200001", 0x7fa0_0001),
    ] {
        prints(&file, "bits32", text, &(bits as i32).to_string());
    }
    prints(&file, "bits64", "0x1.8p0", &0x3ff8_0000_0000_0000_u64.to_string());
    prints(&file, "bits64", "nan:0x4", &0x7ff0_0000_0000_0004_u64.to_string());
    for wrong in ["", "x", "1e999", "0x", "nan:0x0", "1.5.5", "--1", "(;1;)1", "1_"] {
        let message = format!("{wrong:?} is no value of type f32");
        // An empty argument is lost between words.
        if !wrong.is_empty() {
            assert_fails(&format!("--invoke f32 {file} {wrong}"), 1, &[&message]);
        }
    }
}

#[test]
fn what_is_printed_can_be_read_back() {
    let file = identity("read_back.wat");
    for (function, bits) in [
        (
            "float32",
            ["1", "2147483647", "-1", "2143289344", "2141192193", "1078530011", "-8388608"],
        ),
        (
            "float64",
            [
                "1",
                "-1",
                "9218868437227405312",
                "9221120237041090560",
                "-9223372036854775808",
                "9218868437227405311",
                "4614256656552045848",
            ],
        ),
    ] {
        for bits in bits {
            let float = pagefork(&format!("--invoke {function} {file} {bits}")).stdout;
            let back = function.replace("float", "bits");
            prints(&file, &back, float.trim(), bits);
        }
    }
    for function in ["funcref", "externref", "exnref", "concrete"] {
        prints(&file, function, "null", "null");
        let none = [&*format!(
            "\"0\" is no value of type {}",
            if function == "concrete" { "(ref" } else { function }
        )];
        assert_fails(&format!("--invoke {function} {file} 0"), 1, &none);
    }
    assert_fails(&format!("--invoke required {file} null"), 1, &["(ref"]);
    let vector = "0x000102030405060708090a0b0c0d0e0f";
    prints(&file, "v128", vector, vector);
}
