//! Conversions between vectors of different lanes.

use cranelift_codegen::ir::types::{F32X4, F64X2, I8X16, I16X8, I32X4, I64X2};
use cranelift_codegen::ir::{ConstantData, InstBuilder, Type, Value};
use wasmparser::Operator;

use super::{Translator, binary, pop_vectors, unary};

/// Translates `op` if its result has lanes of another type than its operands.
pub(super) fn translate(t: &mut Translator<'_>, op: &Operator<'_>) -> bool {
    use Operator as O;
    match *op {
        // Narrowing, saturated.
        O::I8x16NarrowI16x8S => binary(t, I16X8, |i, x, y| i.snarrow(x, y)),
        O::I8x16NarrowI16x8U => binary(t, I16X8, |i, x, y| i.unarrow(x, y)),
        O::I16x8NarrowI32x4S => binary(t, I32X4, |i, x, y| i.snarrow(x, y)),
        O::I16x8NarrowI32x4U => binary(t, I32X4, |i, x, y| i.unarrow(x, y)),

        // Extending one half.
        O::I16x8ExtendLowI8x16S => widen(t, I8X16, Half::LowS),
        O::I16x8ExtendHighI8x16S => widen(t, I8X16, Half::HighS),
        O::I16x8ExtendLowI8x16U => widen(t, I8X16, Half::LowU),
        O::I16x8ExtendHighI8x16U => widen(t, I8X16, Half::HighU),
        O::I32x4ExtendLowI16x8S => widen(t, I16X8, Half::LowS),
        O::I32x4ExtendHighI16x8S => widen(t, I16X8, Half::HighS),
        O::I32x4ExtendLowI16x8U => widen(t, I16X8, Half::LowU),
        O::I32x4ExtendHighI16x8U => widen(t, I16X8, Half::HighU),
        O::I64x2ExtendLowI32x4S => widen(t, I32X4, Half::LowS),
        O::I64x2ExtendHighI32x4S => widen(t, I32X4, Half::HighS),
        O::I64x2ExtendLowI32x4U => widen(t, I32X4, Half::LowU),
        O::I64x2ExtendHighI32x4U => widen(t, I32X4, Half::HighU),

        // Products of one half, which cannot overflow.
        O::I16x8ExtMulLowI8x16S => widen_and_multiply(t, I8X16, Half::LowS),
        O::I16x8ExtMulHighI8x16S => widen_and_multiply(t, I8X16, Half::HighS),
        O::I16x8ExtMulLowI8x16U => widen_and_multiply(t, I8X16, Half::LowU),
        O::I16x8ExtMulHighI8x16U => widen_and_multiply(t, I8X16, Half::HighU),
        O::I32x4ExtMulLowI16x8S => widen_and_multiply(t, I16X8, Half::LowS),
        O::I32x4ExtMulHighI16x8S => widen_and_multiply(t, I16X8, Half::HighS),
        O::I32x4ExtMulLowI16x8U => widen_and_multiply(t, I16X8, Half::LowU),
        O::I32x4ExtMulHighI16x8U => widen_and_multiply(t, I16X8, Half::HighU),
        O::I64x2ExtMulLowI32x4S => widen_and_multiply(t, I32X4, Half::LowS),
        O::I64x2ExtMulHighI32x4S => widen_and_multiply(t, I32X4, Half::HighS),
        O::I64x2ExtMulLowI32x4U => widen_and_multiply(t, I32X4, Half::LowU),
        O::I64x2ExtMulHighI32x4U => widen_and_multiply(t, I32X4, Half::HighU),

        // Sums of neighbours.
        O::I16x8ExtAddPairwiseI8x16S => add_pairs(t, I8X16, [Half::LowS, Half::HighS]),
        O::I16x8ExtAddPairwiseI8x16U => add_pairs(t, I8X16, [Half::LowU, Half::HighU]),
        O::I32x4ExtAddPairwiseI16x8S => add_pairs(t, I16X8, [Half::LowS, Half::HighS]),
        O::I32x4ExtAddPairwiseI16x8U => add_pairs(t, I16X8, [Half::LowU, Half::HighU]),
        O::I32x4DotI16x8S => dot_product(t),

        // Float to integer, saturated.
        O::I32x4TruncSatF32x4S => unary(t, F32X4, |i, x| i.fcvt_to_sint_sat(I32X4, x)),
        O::I32x4TruncSatF32x4U => unary(t, F32X4, |i, x| i.fcvt_to_uint_sat(I32X4, x)),
        O::I32x4TruncSatF64x2SZero => truncate_f64_signed(t),
        O::I32x4TruncSatF64x2UZero => truncate_f64_unsigned(t),

        // Integer to float, and between floats.
        O::F32x4ConvertI32x4S => unary(t, I32X4, |i, x| i.fcvt_from_sint(F32X4, x)),
        O::F32x4ConvertI32x4U => unary(t, I32X4, |i, x| i.fcvt_from_uint(F32X4, x)),
        O::F64x2ConvertLowI32x4S => {
            let x = pop_half(t, I32X4, Half::LowS);
            let value = t.b.ins().fcvt_from_sint(F64X2, x);
            t.push_vector(value);
        }
        O::F64x2ConvertLowI32x4U => {
            let x = pop_half(t, I32X4, Half::LowU);
            let value = t.b.ins().fcvt_from_uint(F64X2, x);
            t.push_vector(value);
        }
        O::F32x4DemoteF64x2Zero => unary(t, F64X2, |i, x| i.fvdemote(x)),
        O::F64x2PromoteLowF32x4 => unary(t, F32X4, |i, x| i.fvpromote_low(x)),

        _ => return false,
    }
    true
}

/// Which half of a vector's lanes is extended to twice the width, and how.
#[derive(Clone, Copy)]
enum Half {
    LowS,
    HighS,
    LowU,
    HighU,
}

impl Half {
    fn of(self, t: &mut Translator<'_>, vector: Value) -> Value {
        match self {
            Self::LowS => t.b.ins().swiden_low(vector),
            Self::HighS => t.b.ins().swiden_high(vector),
            Self::LowU => t.b.ins().uwiden_low(vector),
            Self::HighU => t.b.ins().uwiden_high(vector),
        }
    }
}

fn pop_half(t: &mut Translator<'_>, ty: Type, half: Half) -> Value {
    let x = t.pop_vector(ty);
    half.of(t, x)
}

fn widen(t: &mut Translator<'_>, ty: Type, half: Half) {
    let value = pop_half(t, ty, half);
    t.push_vector(value);
}

fn widen_and_multiply(t: &mut Translator<'_>, ty: Type, half: Half) {
    let y = pop_half(t, ty, half);
    let x = pop_half(t, ty, half);
    let value = t.b.ins().imul(x, y);
    t.push_vector(value);
}

fn add_pairs(t: &mut Translator<'_>, ty: Type, halves: [Half; 2]) {
    let x = t.pop_vector(ty);
    let [low, high] = halves.map(|half| half.of(t, x));
    let value = t.b.ins().iadd_pairwise(low, high);
    t.push_vector(value);
}

fn dot_product(t: &mut Translator<'_>) {
    let (x, y) = pop_vectors(t, I16X8);
    let [low, high] = [Half::LowS, Half::HighS].map(|half| {
        let (x, y) = (half.of(t, x), half.of(t, y));
        t.b.ins().imul(x, y)
    });
    let value = t.b.ins().iadd_pairwise(low, high);
    t.push_vector(value);
}

/// Cranelift lowers exactly this combination for x86, not its parts.
fn truncate_f64_signed(t: &mut Translator<'_>) {
    let x = t.pop_vector(F64X2);
    let wide = t.b.ins().fcvt_to_sint_sat(I64X2, x);
    let zero = zero(t);
    let value = t.b.ins().snarrow(wide, zero);
    t.push_vector(value);
}

/// Cranelift lowers exactly this combination for x86, not its parts.
fn truncate_f64_unsigned(t: &mut Translator<'_>) {
    let x = t.pop_vector(F64X2);
    let wide = t.b.ins().fcvt_to_uint_sat(I64X2, x);
    let zero = zero(t);
    let value = t.b.ins().uunarrow(wide, zero);
    t.push_vector(value);
}

fn zero(t: &mut Translator<'_>) -> Value {
    let data = t.b.func.dfg.constants.insert(ConstantData::from(&[0; 16][..]));
    t.b.ins().vconst(I64X2, data)
}
