//! Vector operators.

use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::types::{F32X4, F64X2, I8X16, I16X8, I32, I32X4, I64X2};
use cranelift_codegen::ir::{InstBuilder, MemFlagsData, Type, Value};
use cranelift_frontend::FuncInstBuilder;
use wasmparser::Operator;

use super::Translator;
use super::numeric::push_bool;

/// Conversions between lane types: narrowing, extending, floats and integers.
mod convert;
/// Constants, and what moves whole lanes: splats, shuffles, extraction, replacement.
mod lanes;
/// Loads and stores of vectors and of their lanes.
mod memory;
/// What may differ between machines.
mod relaxed;

/// Translates `op` if it is a vector operator; `false` if it is none.
pub(crate) fn translate(t: &mut Translator<'_>, op: &Operator<'_>) -> bool {
    memory::translate(t, op)
        || lanes::translate(t, op)
        || compare(t, op)
        || integer(t, op)
        || float(t, op)
        || convert::translate(t, op)
        || relaxed::translate(t, op)
}

fn compare(t: &mut Translator<'_>, op: &Operator<'_>) -> bool {
    use Operator as O;
    match *op {
        O::I8x16Eq => icmp(t, I8X16, IntCC::Equal),
        O::I8x16Ne => icmp(t, I8X16, IntCC::NotEqual),
        O::I8x16LtS => icmp(t, I8X16, IntCC::SignedLessThan),
        O::I8x16LtU => icmp(t, I8X16, IntCC::UnsignedLessThan),
        O::I8x16GtS => icmp(t, I8X16, IntCC::SignedGreaterThan),
        O::I8x16GtU => icmp(t, I8X16, IntCC::UnsignedGreaterThan),
        O::I8x16LeS => icmp(t, I8X16, IntCC::SignedLessThanOrEqual),
        O::I8x16LeU => icmp(t, I8X16, IntCC::UnsignedLessThanOrEqual),
        O::I8x16GeS => icmp(t, I8X16, IntCC::SignedGreaterThanOrEqual),
        O::I8x16GeU => icmp(t, I8X16, IntCC::UnsignedGreaterThanOrEqual),

        O::I16x8Eq => icmp(t, I16X8, IntCC::Equal),
        O::I16x8Ne => icmp(t, I16X8, IntCC::NotEqual),
        O::I16x8LtS => icmp(t, I16X8, IntCC::SignedLessThan),
        O::I16x8LtU => icmp(t, I16X8, IntCC::UnsignedLessThan),
        O::I16x8GtS => icmp(t, I16X8, IntCC::SignedGreaterThan),
        O::I16x8GtU => icmp(t, I16X8, IntCC::UnsignedGreaterThan),
        O::I16x8LeS => icmp(t, I16X8, IntCC::SignedLessThanOrEqual),
        O::I16x8LeU => icmp(t, I16X8, IntCC::UnsignedLessThanOrEqual),
        O::I16x8GeS => icmp(t, I16X8, IntCC::SignedGreaterThanOrEqual),
        O::I16x8GeU => icmp(t, I16X8, IntCC::UnsignedGreaterThanOrEqual),

        O::I32x4Eq => icmp(t, I32X4, IntCC::Equal),
        O::I32x4Ne => icmp(t, I32X4, IntCC::NotEqual),
        O::I32x4LtS => icmp(t, I32X4, IntCC::SignedLessThan),
        O::I32x4LtU => icmp(t, I32X4, IntCC::UnsignedLessThan),
        O::I32x4GtS => icmp(t, I32X4, IntCC::SignedGreaterThan),
        O::I32x4GtU => icmp(t, I32X4, IntCC::UnsignedGreaterThan),
        O::I32x4LeS => icmp(t, I32X4, IntCC::SignedLessThanOrEqual),
        O::I32x4LeU => icmp(t, I32X4, IntCC::UnsignedLessThanOrEqual),
        O::I32x4GeS => icmp(t, I32X4, IntCC::SignedGreaterThanOrEqual),
        O::I32x4GeU => icmp(t, I32X4, IntCC::UnsignedGreaterThanOrEqual),

        O::I64x2Eq => icmp(t, I64X2, IntCC::Equal),
        O::I64x2Ne => icmp(t, I64X2, IntCC::NotEqual),
        O::I64x2LtS => icmp(t, I64X2, IntCC::SignedLessThan),
        O::I64x2GtS => icmp(t, I64X2, IntCC::SignedGreaterThan),
        O::I64x2LeS => icmp(t, I64X2, IntCC::SignedLessThanOrEqual),
        O::I64x2GeS => icmp(t, I64X2, IntCC::SignedGreaterThanOrEqual),

        O::F32x4Eq => fcmp(t, F32X4, FloatCC::Equal),
        O::F32x4Ne => fcmp(t, F32X4, FloatCC::NotEqual),
        O::F32x4Lt => fcmp(t, F32X4, FloatCC::LessThan),
        O::F32x4Gt => fcmp(t, F32X4, FloatCC::GreaterThan),
        O::F32x4Le => fcmp(t, F32X4, FloatCC::LessThanOrEqual),
        O::F32x4Ge => fcmp(t, F32X4, FloatCC::GreaterThanOrEqual),

        O::F64x2Eq => fcmp(t, F64X2, FloatCC::Equal),
        O::F64x2Ne => fcmp(t, F64X2, FloatCC::NotEqual),
        O::F64x2Lt => fcmp(t, F64X2, FloatCC::LessThan),
        O::F64x2Gt => fcmp(t, F64X2, FloatCC::GreaterThan),
        O::F64x2Le => fcmp(t, F64X2, FloatCC::LessThanOrEqual),
        O::F64x2Ge => fcmp(t, F64X2, FloatCC::GreaterThanOrEqual),

        _ => return false,
    }
    true
}

fn integer(t: &mut Translator<'_>, op: &Operator<'_>) -> bool {
    use Operator as O;
    match *op {
        // Bits.
        O::V128Not => unary(t, I8X16, |i, x| i.bnot(x)),
        O::V128And => binary(t, I8X16, |i, x, y| i.band(x, y)),
        O::V128AndNot => binary(t, I8X16, |i, x, y| i.band_not(x, y)),
        O::V128Or => binary(t, I8X16, |i, x, y| i.bor(x, y)),
        O::V128Xor => binary(t, I8X16, |i, x, y| i.bxor(x, y)),
        O::V128Bitselect => bitselect(t),

        // Tests of all lanes.
        O::V128AnyTrue => test(t, I8X16, |i, x| i.vany_true(x)),
        O::I8x16AllTrue => test(t, I8X16, |i, x| i.vall_true(x)),
        O::I16x8AllTrue => test(t, I16X8, |i, x| i.vall_true(x)),
        O::I32x4AllTrue => test(t, I32X4, |i, x| i.vall_true(x)),
        O::I64x2AllTrue => test(t, I64X2, |i, x| i.vall_true(x)),
        O::I8x16Bitmask => bitmask(t, I8X16),
        O::I16x8Bitmask => bitmask(t, I16X8),
        O::I32x4Bitmask => bitmask(t, I32X4),
        O::I64x2Bitmask => bitmask(t, I64X2),

        // Shifts. The count is taken modulo the width of a lane, here and there.
        O::I8x16Shl => shift(t, I8X16, |i, x, n| i.ishl(x, n)),
        O::I8x16ShrS => shift(t, I8X16, |i, x, n| i.sshr(x, n)),
        O::I8x16ShrU => shift(t, I8X16, |i, x, n| i.ushr(x, n)),
        O::I16x8Shl => shift(t, I16X8, |i, x, n| i.ishl(x, n)),
        O::I16x8ShrS => shift(t, I16X8, |i, x, n| i.sshr(x, n)),
        O::I16x8ShrU => shift(t, I16X8, |i, x, n| i.ushr(x, n)),
        O::I32x4Shl => shift(t, I32X4, |i, x, n| i.ishl(x, n)),
        O::I32x4ShrS => shift(t, I32X4, |i, x, n| i.sshr(x, n)),
        O::I32x4ShrU => shift(t, I32X4, |i, x, n| i.ushr(x, n)),
        O::I64x2Shl => shift(t, I64X2, |i, x, n| i.ishl(x, n)),
        O::I64x2ShrS => shift(t, I64X2, |i, x, n| i.sshr(x, n)),
        O::I64x2ShrU => shift(t, I64X2, |i, x, n| i.ushr(x, n)),

        // i8x16 arithmetic.
        O::I8x16Abs => unary(t, I8X16, |i, x| i.iabs(x)),
        O::I8x16Neg => unary(t, I8X16, |i, x| i.ineg(x)),
        O::I8x16Popcnt => unary(t, I8X16, |i, x| i.popcnt(x)),
        O::I8x16Add => binary(t, I8X16, |i, x, y| i.iadd(x, y)),
        O::I8x16AddSatS => binary(t, I8X16, |i, x, y| i.sadd_sat(x, y)),
        O::I8x16AddSatU => binary(t, I8X16, |i, x, y| i.uadd_sat(x, y)),
        O::I8x16Sub => binary(t, I8X16, |i, x, y| i.isub(x, y)),
        O::I8x16SubSatS => binary(t, I8X16, |i, x, y| i.ssub_sat(x, y)),
        O::I8x16SubSatU => binary(t, I8X16, |i, x, y| i.usub_sat(x, y)),
        O::I8x16MinS => binary(t, I8X16, |i, x, y| i.smin(x, y)),
        O::I8x16MinU => binary(t, I8X16, |i, x, y| i.umin(x, y)),
        O::I8x16MaxS => binary(t, I8X16, |i, x, y| i.smax(x, y)),
        O::I8x16MaxU => binary(t, I8X16, |i, x, y| i.umax(x, y)),
        O::I8x16AvgrU => binary(t, I8X16, |i, x, y| i.avg_round(x, y)),

        // i16x8 arithmetic.
        O::I16x8Abs => unary(t, I16X8, |i, x| i.iabs(x)),
        O::I16x8Neg => unary(t, I16X8, |i, x| i.ineg(x)),
        O::I16x8Add => binary(t, I16X8, |i, x, y| i.iadd(x, y)),
        O::I16x8AddSatS => binary(t, I16X8, |i, x, y| i.sadd_sat(x, y)),
        O::I16x8AddSatU => binary(t, I16X8, |i, x, y| i.uadd_sat(x, y)),
        O::I16x8Sub => binary(t, I16X8, |i, x, y| i.isub(x, y)),
        O::I16x8SubSatS => binary(t, I16X8, |i, x, y| i.ssub_sat(x, y)),
        O::I16x8SubSatU => binary(t, I16X8, |i, x, y| i.usub_sat(x, y)),
        O::I16x8Mul => binary(t, I16X8, |i, x, y| i.imul(x, y)),
        O::I16x8Q15MulrSatS => binary(t, I16X8, |i, x, y| i.sqmul_round_sat(x, y)),
        O::I16x8MinS => binary(t, I16X8, |i, x, y| i.smin(x, y)),
        O::I16x8MinU => binary(t, I16X8, |i, x, y| i.umin(x, y)),
        O::I16x8MaxS => binary(t, I16X8, |i, x, y| i.smax(x, y)),
        O::I16x8MaxU => binary(t, I16X8, |i, x, y| i.umax(x, y)),
        O::I16x8AvgrU => binary(t, I16X8, |i, x, y| i.avg_round(x, y)),

        // i32x4 arithmetic.
        O::I32x4Abs => unary(t, I32X4, |i, x| i.iabs(x)),
        O::I32x4Neg => unary(t, I32X4, |i, x| i.ineg(x)),
        O::I32x4Add => binary(t, I32X4, |i, x, y| i.iadd(x, y)),
        O::I32x4Sub => binary(t, I32X4, |i, x, y| i.isub(x, y)),
        O::I32x4Mul => binary(t, I32X4, |i, x, y| i.imul(x, y)),
        O::I32x4MinS => binary(t, I32X4, |i, x, y| i.smin(x, y)),
        O::I32x4MinU => binary(t, I32X4, |i, x, y| i.umin(x, y)),
        O::I32x4MaxS => binary(t, I32X4, |i, x, y| i.smax(x, y)),
        O::I32x4MaxU => binary(t, I32X4, |i, x, y| i.umax(x, y)),

        // i64x2 arithmetic.
        O::I64x2Abs => unary(t, I64X2, |i, x| i.iabs(x)),
        O::I64x2Neg => unary(t, I64X2, |i, x| i.ineg(x)),
        O::I64x2Add => binary(t, I64X2, |i, x, y| i.iadd(x, y)),
        O::I64x2Sub => binary(t, I64X2, |i, x, y| i.isub(x, y)),
        O::I64x2Mul => binary(t, I64X2, |i, x, y| i.imul(x, y)),

        _ => return false,
    }
    true
}

fn float(t: &mut Translator<'_>, op: &Operator<'_>) -> bool {
    use Operator as O;
    match *op {
        O::F32x4Abs => unary(t, F32X4, |i, x| i.fabs(x)),
        O::F32x4Neg => unary(t, F32X4, |i, x| i.fneg(x)),
        O::F32x4Ceil => unary(t, F32X4, |i, x| i.ceil(x)),
        O::F32x4Floor => unary(t, F32X4, |i, x| i.floor(x)),
        O::F32x4Trunc => unary(t, F32X4, |i, x| i.trunc(x)),
        O::F32x4Nearest => unary(t, F32X4, |i, x| i.nearest(x)),
        O::F32x4Sqrt => unary(t, F32X4, |i, x| i.sqrt(x)),
        O::F32x4Add => binary(t, F32X4, |i, x, y| i.fadd(x, y)),
        O::F32x4Sub => binary(t, F32X4, |i, x, y| i.fsub(x, y)),
        O::F32x4Mul => binary(t, F32X4, |i, x, y| i.fmul(x, y)),
        O::F32x4Div => binary(t, F32X4, |i, x, y| i.fdiv(x, y)),
        O::F32x4Min => binary(t, F32X4, |i, x, y| i.fmin(x, y)),
        O::F32x4Max => binary(t, F32X4, |i, x, y| i.fmax(x, y)),
        O::F32x4PMin => pseudo_min(t, F32X4),
        O::F32x4PMax => pseudo_max(t, F32X4),

        O::F64x2Abs => unary(t, F64X2, |i, x| i.fabs(x)),
        O::F64x2Neg => unary(t, F64X2, |i, x| i.fneg(x)),
        O::F64x2Ceil => unary(t, F64X2, |i, x| i.ceil(x)),
        O::F64x2Floor => unary(t, F64X2, |i, x| i.floor(x)),
        O::F64x2Trunc => unary(t, F64X2, |i, x| i.trunc(x)),
        O::F64x2Nearest => unary(t, F64X2, |i, x| i.nearest(x)),
        O::F64x2Sqrt => unary(t, F64X2, |i, x| i.sqrt(x)),
        O::F64x2Add => binary(t, F64X2, |i, x, y| i.fadd(x, y)),
        O::F64x2Sub => binary(t, F64X2, |i, x, y| i.fsub(x, y)),
        O::F64x2Mul => binary(t, F64X2, |i, x, y| i.fmul(x, y)),
        O::F64x2Div => binary(t, F64X2, |i, x, y| i.fdiv(x, y)),
        O::F64x2Min => binary(t, F64X2, |i, x, y| i.fmin(x, y)),
        O::F64x2Max => binary(t, F64X2, |i, x, y| i.fmax(x, y)),
        O::F64x2PMin => pseudo_min(t, F64X2),
        O::F64x2PMax => pseudo_max(t, F64X2),

        _ => return false,
    }
    true
}

/// Vector to vector.
fn unary(
    t: &mut Translator<'_>,
    ty: Type,
    make: impl FnOnce(FuncInstBuilder<'_, '_>, Value) -> Value,
) {
    let x = t.pop_vector(ty);
    let value = make(t.b.ins(), x);
    t.push_vector(value);
}

/// Two vectors to one.
fn binary(
    t: &mut Translator<'_>,
    ty: Type,
    make: impl FnOnce(FuncInstBuilder<'_, '_>, Value, Value) -> Value,
) {
    let (x, y) = pop_vectors(t, ty);
    let value = make(t.b.ins(), x, y);
    t.push_vector(value);
}

/// Two vectors of the same type: what was pushed first, then what was last.
fn pop_vectors(t: &mut Translator<'_>, ty: Type) -> (Value, Value) {
    let y = t.pop_vector(ty);
    let x = t.pop_vector(ty);
    (x, y)
}

fn icmp(t: &mut Translator<'_>, ty: Type, condition: IntCC) {
    binary(t, ty, |i, x, y| i.icmp(condition, x, y));
}

fn fcmp(t: &mut Translator<'_>, ty: Type, condition: FloatCC) {
    binary(t, ty, |i, x, y| i.fcmp(condition, x, y));
}

fn bitselect(t: &mut Translator<'_>) {
    let mask = t.pop_vector(I8X16);
    let (ones, zeros) = pop_vectors(t, I8X16);
    let value = t.b.ins().bitselect(mask, ones, zeros);
    t.push_vector(value);
}

/// Vector to condition.
fn test(
    t: &mut Translator<'_>,
    ty: Type,
    make: impl FnOnce(FuncInstBuilder<'_, '_>, Value) -> Value,
) {
    let x = t.pop_vector(ty);
    let holds = make(t.b.ins(), x);
    push_bool(t, holds);
}

fn bitmask(t: &mut Translator<'_>, ty: Type) {
    let x = t.pop_vector(ty);
    let value = t.b.ins().vhigh_bits(I32, x);
    t.push(value);
}

/// Vector and scalar count to vector.
fn shift(
    t: &mut Translator<'_>,
    ty: Type,
    make: impl FnOnce(FuncInstBuilder<'_, '_>, Value, Value) -> Value,
) {
    let count = t.pop();
    let x = t.pop_vector(ty);
    let value = make(t.b.ins(), x, count);
    t.push_vector(value);
}

/// `y < x ? y : x` in each lane: `x` where one of them is not a number.
fn pseudo_min(t: &mut Translator<'_>, ty: Type) {
    let (x, y) = pop_vectors(t, ty);
    let less = t.b.ins().fcmp(FloatCC::LessThan, y, x);
    push_lanes_where(t, ty, less, y, x);
}

/// `x < y ? y : x` in each lane: `x` where one of them is not a number.
fn pseudo_max(t: &mut Translator<'_>, ty: Type) {
    let (x, y) = pop_vectors(t, ty);
    let less = t.b.ins().fcmp(FloatCC::LessThan, x, y);
    push_lanes_where(t, ty, less, y, x);
}

/// Pushes the lanes of `yes` where the comparison `holds`, else those of `no`.
/// Selecting in the type of the operands lets x86's own `min` and `max` match.
fn push_lanes_where(t: &mut Translator<'_>, ty: Type, holds: Value, yes: Value, no: Value) {
    let mask = t.b.ins().bitcast(ty, MemFlagsData::new(), holds);
    let value = t.b.ins().bitselect(mask, yes, no);
    t.push_vector(value);
}
