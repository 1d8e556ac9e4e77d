//! Constants of scripts as values, and comparison of values with expected patterns.

use pagefork::{ExternRef, Store, Val};
use wast::WastArg;
use wast::WastRet;
use wast::core::{AbstractHeapType, HeapType, NanPattern, V128Pattern, WastArgCore, WastRetCore};

/// The value that a script passes to a function, or why there is no such value.
pub(crate) fn argument(store: &mut Store<()>, argument: &WastArg<'_>) -> Result<Val, String> {
    let WastArg::Core(argument) = argument else {
        return Err("components are not supported".to_owned());
    };
    match argument {
        WastArgCore::I32(value) => Ok(Val::I32(*value)),
        WastArgCore::I64(value) => Ok(Val::I64(*value)),
        WastArgCore::F32(value) => Ok(Val::F32(value.bits)),
        WastArgCore::F64(value) => Ok(Val::F64(value.bits)),
        WastArgCore::V128(value) => Ok(Val::V128(u128::from_le_bytes(value.to_le_bytes()))),
        WastArgCore::RefNull(HeapType::Concrete(_)) => Ok(Val::FuncRef(None)),
        WastArgCore::RefNull(HeapType::Abstract { shared: false, ty }) => match ty {
            AbstractHeapType::Func | AbstractHeapType::NoFunc => Ok(Val::FuncRef(None)),
            AbstractHeapType::Exn | AbstractHeapType::NoExn => Ok(Val::ExnRef(None)),
            AbstractHeapType::Extern | AbstractHeapType::NoExtern => Ok(Val::ExternRef(None)),
            other => Err(format!("null of type {other:?} is not supported")),
        },
        WastArgCore::RefExtern(number) => host_reference(store, *number),
        other => Err(format!("{other:?} is not supported")),
    }
}

/// Compares results with the expected ones.
pub(crate) fn compare(
    store: &Store<()>,
    actual: &[Val],
    expected: &[WastRet<'_>],
) -> Result<(), String> {
    if actual.len() != expected.len() {
        return Err(format!("{} results, expected {}", actual.len(), expected.len()));
    }
    for (index, (actual, expected)) in actual.iter().zip(expected).enumerate() {
        let WastRet::Core(expected) = expected else {
            return Err("components are not supported".to_owned());
        };
        if !matches(store, actual, expected) {
            return Err(format!(
                "result {index} is {}, expected {expected:?}",
                show(store, actual)
            ));
        }
    }
    Ok(())
}

fn matches(store: &Store<()>, actual: &Val, expected: &WastRetCore<'_>) -> bool {
    match (actual, expected) {
        (Val::I32(actual), WastRetCore::I32(expected)) => actual == expected,
        (Val::I64(actual), WastRetCore::I64(expected)) => actual == expected,
        (Val::F32(actual), WastRetCore::F32(expected)) => f32_matches(*actual, expected),
        (Val::F64(actual), WastRetCore::F64(expected)) => f64_matches(*actual, expected),
        (Val::V128(actual), WastRetCore::V128(expected)) => {
            vector_matches(actual.to_le_bytes(), expected)
        }
        (Val::FuncRef(None), WastRetCore::RefNull(ty)) => null_matches(ty, AbstractHeapType::Func),
        (Val::ExternRef(None), WastRetCore::RefNull(ty)) => {
            null_matches(ty, AbstractHeapType::Extern)
        }
        (Val::ExnRef(None), WastRetCore::RefNull(ty)) => null_matches(ty, AbstractHeapType::Exn),
        (Val::FuncRef(actual), WastRetCore::RefFunc(None)) => actual.is_some(),
        (Val::ExternRef(Some(actual)), WastRetCore::RefExtern(expected)) => {
            expected.is_none_or(|expected| host_number(store, actual) == Some(expected))
        }
        (actual, WastRetCore::Either(expected)) => {
            expected.iter().any(|expected| matches(store, actual, expected))
        }
        _ => false,
    }
}

fn null_matches(expected: &Option<HeapType<'_>>, actual: AbstractHeapType) -> bool {
    match expected {
        None => true,
        Some(HeapType::Concrete(_)) => actual == AbstractHeapType::Func,
        Some(HeapType::Abstract { shared: false, ty }) => match ty {
            AbstractHeapType::NoFunc => actual == AbstractHeapType::Func,
            AbstractHeapType::NoExtern => actual == AbstractHeapType::Extern,
            AbstractHeapType::NoExn => actual == AbstractHeapType::Exn,
            ty => *ty == actual,
        },
        Some(_) => false,
    }
}

fn f32_matches(actual: u32, expected: &NanPattern<wast::token::F32>) -> bool {
    match expected {
        // The sign of a NaN is not specified.
        NanPattern::CanonicalNan => actual & 0x7fff_ffff == 0x7fc0_0000,
        NanPattern::ArithmeticNan => actual & 0x7fc0_0000 == 0x7fc0_0000,
        NanPattern::Value(expected) => actual == expected.bits,
    }
}

fn f64_matches(actual: u64, expected: &NanPattern<wast::token::F64>) -> bool {
    match expected {
        NanPattern::CanonicalNan => actual & 0x7fff_ffff_ffff_ffff == 0x7ff8_0000_0000_0000,
        NanPattern::ArithmeticNan => actual & 0x7ff8_0000_0000_0000 == 0x7ff8_0000_0000_0000,
        NanPattern::Value(expected) => actual == expected.bits,
    }
}

fn vector_matches(actual: [u8; 16], expected: &V128Pattern) -> bool {
    fn lanes<const N: usize>(bytes: &[u8; 16]) -> impl Iterator<Item = [u8; N]> {
        bytes.chunks_exact(N).map(|lane| lane.try_into().expect("a chunk has the length asked for"))
    }
    match expected {
        V128Pattern::I8x16(expected) => lanes(&actual).map(i8::from_le_bytes).eq(*expected),
        V128Pattern::I16x8(expected) => lanes(&actual).map(i16::from_le_bytes).eq(*expected),
        V128Pattern::I32x4(expected) => lanes(&actual).map(i32::from_le_bytes).eq(*expected),
        V128Pattern::I64x2(expected) => lanes(&actual).map(i64::from_le_bytes).eq(*expected),
        V128Pattern::F32x4(expected) => lanes(&actual)
            .map(u32::from_le_bytes)
            .zip(expected)
            .all(|(lane, e)| f32_matches(lane, e)),
        V128Pattern::F64x2(expected) => lanes(&actual)
            .map(u64::from_le_bytes)
            .zip(expected)
            .all(|(lane, e)| f64_matches(lane, e)),
    }
}

/// A value for a message. Floats and vectors also show their bits.
fn show(store: &Store<()>, value: &Val) -> String {
    match value {
        Val::F32(bits) => format!("f32 {} ({bits:#010x})", f32::from_bits(*bits)),
        Val::F64(bits) => format!("f64 {} ({bits:#018x})", f64::from_bits(*bits)),
        Val::V128(bits) => format!("v128 {:#034x}", bits),
        Val::ExternRef(Some(reference)) => format!("externref {:?}", host_number(store, reference)),
        other => format!("{other:?}"),
    }
}

fn host_reference(store: &mut Store<()>, number: u32) -> Result<Val, String> {
    let reference = ExternRef::new(store, number).map_err(|error| error.to_string())?;
    Ok(Val::ExternRef(Some(reference)))
}

fn host_number(store: &Store<()>, reference: &ExternRef) -> Option<u32> {
    reference.data(store).ok()?.downcast_ref().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nan_patterns_ignore_only_what_they_may() {
        let canonical = NanPattern::CanonicalNan;
        let arithmetic = NanPattern::ArithmeticNan;
        assert!(f32_matches(0xffc0_0000, &canonical) && f32_matches(0x7fc0_0000, &canonical));
        assert!(!f32_matches(0x7fc0_0001, &canonical) && f32_matches(0x7fc0_0001, &arithmetic));
        assert!(!f32_matches(0x7fa0_0000, &arithmetic), "a signalling NaN");
        assert!(!f32_matches(0x7f80_0000, &arithmetic), "infinity");
        assert!(f64_matches(0xfff8_0000_0000_0000, &NanPattern::CanonicalNan));
        assert!(!f64_matches(0x7ff8_0000_0000_0001, &NanPattern::CanonicalNan));
        assert!(!f64_matches(0x7ff4_0000_0000_0000, &NanPattern::ArithmeticNan));
    }

    #[test]
    fn vectors_match_lane_by_lane() {
        let bytes: [u8; 16] = std::array::from_fn(|i| i as u8);
        let mut lanes: [i8; 16] = std::array::from_fn(|i| i as i8);
        assert!(vector_matches(bytes, &V128Pattern::I8x16(lanes)));
        lanes[15] = 0;
        assert!(!vector_matches(bytes, &V128Pattern::I8x16(lanes)));
    }
}
