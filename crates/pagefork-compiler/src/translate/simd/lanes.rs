//! Operators that take vectors apart, put them together or rearrange their lanes.

use cranelift_codegen::ir::types::{F32X4, F64X2, I8, I8X16, I16, I16X8, I32, I32X4, I64X2};
use cranelift_codegen::ir::{ConstantData, InstBuilder, Type, Value};
use wasmparser::Operator;

use super::{Translator, binary, pop_vectors};

/// Translates `op` if it makes a vector from lanes or takes lanes out of one.
pub(super) fn translate(t: &mut Translator<'_>, op: &Operator<'_>) -> bool {
    use Operator as O;
    match *op {
        O::V128Const { value } => constant(t, value.bytes()),
        O::I8x16Shuffle { ref lanes } => shuffle(t, lanes),
        O::I8x16Swizzle => binary(t, I8X16, |i, x, y| i.swizzle(x, y)),

        O::I8x16Splat => splat(t, I8X16),
        O::I16x8Splat => splat(t, I16X8),
        O::I32x4Splat => splat(t, I32X4),
        O::I64x2Splat => splat(t, I64X2),
        O::F32x4Splat => splat(t, F32X4),
        O::F64x2Splat => splat(t, F64X2),

        O::I8x16ExtractLaneS { lane } => extract_signed(t, I8X16, lane),
        O::I8x16ExtractLaneU { lane } => extract_unsigned(t, I8X16, lane),
        O::I16x8ExtractLaneS { lane } => extract_signed(t, I16X8, lane),
        O::I16x8ExtractLaneU { lane } => extract_unsigned(t, I16X8, lane),
        O::I32x4ExtractLane { lane } => extract(t, I32X4, lane),
        O::I64x2ExtractLane { lane } => extract(t, I64X2, lane),
        O::F32x4ExtractLane { lane } => extract(t, F32X4, lane),
        O::F64x2ExtractLane { lane } => extract(t, F64X2, lane),

        O::I8x16ReplaceLane { lane } => replace(t, I8X16, lane),
        O::I16x8ReplaceLane { lane } => replace(t, I16X8, lane),
        O::I32x4ReplaceLane { lane } => replace(t, I32X4, lane),
        O::I64x2ReplaceLane { lane } => replace(t, I64X2, lane),
        O::F32x4ReplaceLane { lane } => replace(t, F32X4, lane),
        O::F64x2ReplaceLane { lane } => replace(t, F64X2, lane),

        _ => return false,
    }
    true
}

fn constant(t: &mut Translator<'_>, bytes: &[u8; 16]) {
    let data = t.b.func.dfg.constants.insert(ConstantData::from(&bytes[..]));
    let value = t.b.ins().vconst(I8X16, data);
    t.push_vector(value);
}

fn shuffle(t: &mut Translator<'_>, lanes: &[u8; 16]) {
    let (x, y) = pop_vectors(t, I8X16);
    let lanes = t.b.func.dfg.immediates.push(ConstantData::from(&lanes[..]));
    let value = t.b.ins().shuffle(x, y, lanes);
    t.push_vector(value);
}

fn splat(t: &mut Translator<'_>, ty: Type) {
    let lane = pop_lane(t, ty);
    let value = t.b.ins().splat(ty, lane);
    t.push_vector(value);
}

fn replace(t: &mut Translator<'_>, ty: Type, number: u8) {
    let lane = pop_lane(t, ty);
    let vector = t.pop_vector(ty);
    let value = t.b.ins().insertlane(vector, lane, number);
    t.push_vector(value);
}

/// A lane for a vector of type `ty`: lanes narrower than an `i32` travel as one.
fn pop_lane(t: &mut Translator<'_>, ty: Type) -> Value {
    let lane = t.pop();
    match ty.lane_type() {
        narrow @ (I8 | I16) => t.b.ins().ireduce(narrow, lane),
        _ => lane,
    }
}

fn extract(t: &mut Translator<'_>, ty: Type, number: u8) {
    let vector = t.pop_vector(ty);
    let lane = t.b.ins().extractlane(vector, number);
    t.push(lane);
}

fn extract_signed(t: &mut Translator<'_>, ty: Type, number: u8) {
    let vector = t.pop_vector(ty);
    let lane = t.b.ins().extractlane(vector, number);
    let value = t.b.ins().sextend(I32, lane);
    t.push(value);
}

fn extract_unsigned(t: &mut Translator<'_>, ty: Type, number: u8) {
    let vector = t.pop_vector(ty);
    let lane = t.b.ins().extractlane(vector, number);
    let value = t.b.ins().uextend(I32, lane);
    t.push(value);
}
