//! Vector operators whose results the specification leaves open within limits:
//! what this machine does fastest, or, in the deterministic mode, the same on
//! every machine.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{F32X4, F64X2, I8X16, I16X8, I32X4};
use cranelift_codegen::ir::{ConstantData, InstBuilder, Type, Value};
use wasmparser::Operator;

use super::{Translator, binary, pop_vectors, unary};

/// Translates `op` if it is a relaxed vector operator.
pub(super) fn translate(t: &mut Translator<'_>, op: &Operator<'_>) -> bool {
    use Operator as O;
    let exact = |t: &mut Translator<'_>, op: &O<'_>| {
        let known = super::translate(t, op);
        assert!(known, "an operator of the vector proposal");
    };
    let fixed = t.module.options.deterministic;
    match *op {
        O::I8x16RelaxedSwizzle if fixed => exact(t, &O::I8x16Swizzle),
        O::I8x16RelaxedSwizzle => binary(t, I8X16, |i, x, y| i.x86_pshufb(x, y)),
        O::I32x4RelaxedTruncF32x4S if fixed => exact(t, &O::I32x4TruncSatF32x4S),
        O::I32x4RelaxedTruncF32x4S => unary(t, F32X4, |i, x| i.x86_cvtt2dq(I32X4, x)),
        O::I32x4RelaxedTruncF32x4U => exact(t, &O::I32x4TruncSatF32x4U),
        O::I32x4RelaxedTruncF64x2SZero => exact(t, &O::I32x4TruncSatF64x2SZero),
        O::I32x4RelaxedTruncF64x2UZero => exact(t, &O::I32x4TruncSatF64x2UZero),
        O::F32x4RelaxedMadd => multiply_add(t, F32X4, false),
        O::F32x4RelaxedNmadd => multiply_add(t, F32X4, true),
        O::F64x2RelaxedMadd => multiply_add(t, F64X2, false),
        O::F64x2RelaxedNmadd => multiply_add(t, F64X2, true),
        O::I8x16RelaxedLaneselect
        | O::I16x8RelaxedLaneselect
        | O::I32x4RelaxedLaneselect
        | O::I64x2RelaxedLaneselect => exact(t, &O::V128Bitselect),
        O::F32x4RelaxedMin => exact(t, if fixed { &O::F32x4Min } else { &O::F32x4PMin }),
        O::F32x4RelaxedMax => exact(t, if fixed { &O::F32x4Max } else { &O::F32x4PMax }),
        O::F64x2RelaxedMin => exact(t, if fixed { &O::F64x2Min } else { &O::F64x2PMin }),
        O::F64x2RelaxedMax => exact(t, if fixed { &O::F64x2Max } else { &O::F64x2PMax }),
        O::I16x8RelaxedQ15mulrS if fixed => exact(t, &O::I16x8Q15MulrSatS),
        O::I16x8RelaxedQ15mulrS => binary(t, I16X8, |i, x, y| i.x86_pmulhrsw(x, y)),
        O::I16x8RelaxedDotI8x16I7x16S => {
            let value = dot_product(t);
            t.push_vector(value);
        }
        O::I32x4RelaxedDotI8x16I7x16AddS => {
            let addend = t.pop_vector(I32X4);
            let products = dot_product(t);
            let low = t.b.ins().swiden_low(products);
            let high = t.b.ins().swiden_high(products);
            let sums = t.b.ins().iadd_pairwise(low, high);
            let value = t.b.ins().iadd(sums, addend);
            t.push_vector(value);
        }
        _ => return false,
    }
    true
}

/// `x * y + z`, or `-(x * y) + z`: rounded once where the machine can, twice in
/// the deterministic mode, because every machine can.
fn multiply_add(t: &mut Translator<'_>, ty: Type, negate: bool) {
    let z = t.pop_vector(ty);
    let (mut x, y) = pop_vectors(t, ty);
    if negate {
        x = t.b.ins().fneg(x);
    }
    let value = if !t.module.options.deterministic && t.module.fused_multiply_add {
        t.b.ins().fma(x, y, z)
    } else {
        let product = t.b.ins().fmul(x, y);
        t.b.ins().fadd(product, z)
    };
    t.push_vector(value);
}

/// Sums of two neighbouring products each, 16 bits wide.
fn dot_product(t: &mut Translator<'_>) -> Value {
    let (x, y) = pop_vectors(t, I8X16);
    if !t.module.options.deterministic {
        // Its second operand is unsigned: the one of 7 bits.
        return t.b.ins().x86_pmaddubsw(x, y);
    }
    let (x_low, x_high) = (t.b.ins().swiden_low(x), t.b.ins().swiden_high(x));
    let (y_low, y_high) = (t.b.ins().swiden_low(y), t.b.ins().swiden_high(y));
    let (low, high) = (t.b.ins().imul(x_low, y_low), t.b.ins().imul(x_high, y_high));
    let sums = t.b.ins().iadd_pairwise(low, high);
    // The sums saturate. Only twice -128 * -128 is too large, and nothing else
    // wraps around to the least number.
    let least = t.b.func.dfg.constants.insert(ConstantData::from(&[0, 0x80].repeat(8)[..]));
    let least = t.b.ins().vconst(I16X8, least);
    let wrapped = t.b.ins().icmp(IntCC::Equal, sums, least);
    t.b.ins().bxor(sums, wrapped)
}
