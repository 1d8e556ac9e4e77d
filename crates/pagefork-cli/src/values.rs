//! Values on the command line, and in the output of `--invoke`.

use pagefork::{Val, ValType};
use wast::parser::{Parse, ParseBuffer};
use wast::token::{F32, F64};

/// Reads a value of type `ty` from the command line: numbers as in WebAssembly text, and
/// `null` for a reference.
pub(crate) fn parse(text: &str, ty: ValType) -> Result<Val, String> {
    let value = match ty {
        ValType::I32 => integer(text, 32).map(|value| Val::I32(value as i32)),
        ValType::I64 => integer(text, 64).map(|value| Val::I64(value as i64)),
        ValType::F32 => token(text).map(|F32 { bits, .. }| Val::F32(bits)),
        ValType::F64 => token(text).map(|F64 { bits, .. }| Val::F64(bits)),
        ValType::V128 => integer(text, 128).map(|value| Val::V128(value as u128)),
        ValType::Ref(_) => match Val::default_for_ty(&ty) {
            Some(null) => (text == "null").then_some(null),
            None => {
                return Err(format!("a value of type {ty} cannot be given on the command line"));
            }
        },
    };
    value.ok_or_else(|| format!("{text:?} is no value of type {ty}"))
}

/// A value as `--invoke` prints it. [`parse`] reads all but references that are not null.
pub(crate) fn show(value: &Val) -> String {
    match value {
        Val::I32(value) => value.to_string(),
        Val::I64(value) => value.to_string(),
        Val::F32(bits) => {
            let payload = bits & 0x7f_ffff;
            float(f32::from_bits(*bits), payload.into(), 0x40_0000)
        }
        Val::F64(bits) => {
            let payload = bits & 0xf_ffff_ffff_ffff;
            float(f64::from_bits(*bits), payload, 0x8_0000_0000_0000)
        }
        Val::V128(value) => format!("{:#034x}", value),
        Val::FuncRef(None) | Val::ExternRef(None) | Val::ExnRef(None) => "null".to_owned(),
        Val::FuncRef(Some(_)) => "a function".to_owned(),
        _ => "a reference".to_owned(),
    }
}

/// The shortest decimal number that means the same float; of a NaN the payload, unless it is
/// the canonical one.
fn float(value: impl Into<f64> + ToString + Copy, payload: u64, canonical: u64) -> String {
    let wide: f64 = value.into();
    if !wide.is_nan() {
        return value.to_string();
    }
    let sign = if wide.is_sign_negative() { "-" } else { "" };
    match payload == canonical {
        true => format!("{sign}nan"),
        false => format!("{sign}nan:{payload:#x}"),
    }
}

/// A float of WebAssembly text, or an infinity or NaN as other programs print them.
fn token<T: for<'a> Parse<'a>>(text: &str) -> Option<T> {
    let lower = text.to_ascii_lowercase();
    let text = match lower.trim_start_matches(['-', '+']) {
        "nan" | "inf" => &lower,
        "infinity" => lower.strip_suffix("inity")?,
        _ => text,
    };
    // Nothing but one token: no spaces, comments or parentheses.
    if !text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-._:".contains(&byte)) {
        return None;
    }
    let buffer = ParseBuffer::new(text).ok()?;
    wast::parser::parse(&buffer).ok()
}

/// An integer of `bits` bits, signed or unsigned, decimal or with `0x`.
fn integer(text: &str, bits: u32) -> Option<i128> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text),
    };
    let number = match digits.strip_prefix("0x") {
        Some(digits) => u128::from_str_radix(digits, 16).ok()?,
        None => digits.parse::<u128>().ok()?,
    };
    let limit = 1u128.checked_shl(bits).map_or(u128::MAX, |limit| limit - 1);
    let limit = if sign < 0 { 1 << (bits - 1) } else { limit };
    // Truncating keeps the bits of the number, with either sign.
    (number <= limit).then(|| (number as i128).wrapping_mul(sign))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_signed_or_unsigned() {
        let parsed = |text| parse(text, ValType::I32).map(|value| show(&value));
        assert_eq!(parsed("-2147483648").as_deref(), Ok("-2147483648"));
        assert_eq!(parsed("0xffffffff").as_deref(), Ok("-1"));
        assert_eq!(parsed("4294967295").as_deref(), Ok("-1"));
        assert!(parsed("4294967296").is_err() && parsed("-2147483649").is_err());
        assert!(parsed("").is_err() && parsed("--1").is_err() && parsed("1.5").is_err());
        let wide = parse("0xffffffffffffffffffffffffffffffff", ValType::V128);
        assert_eq!(wide.map(|value| show(&value)), Ok(format!("0x{}", "f".repeat(32))));
    }
}
