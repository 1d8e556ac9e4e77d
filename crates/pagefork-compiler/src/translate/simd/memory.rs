//! Loads and stores of vectors and their lanes.

use cranelift_codegen::ir::immediates::Offset32;
use cranelift_codegen::ir::types::{I8X16, I16X8, I32X4, I64X2};
use cranelift_codegen::ir::{InstBuilder, MemFlagsData, Type, Value};
use cranelift_frontend::FuncInstBuilder;
use wasmparser::{MemArg, Operator};

use super::Translator;

/// Translates `op` if it loads or stores a vector or lanes of one.
pub(super) fn translate(t: &mut Translator<'_>, op: &Operator<'_>) -> bool {
    use Operator as O;
    match op {
        O::V128Load { memarg } => load(t, memarg, 16, |i, f, a, o| i.load(I8X16, f, a, o)),
        O::V128Store { memarg } => store(t, memarg),

        O::V128Load8x8S { memarg } => load(t, memarg, 8, |i, f, a, o| i.sload8x8(f, a, o)),
        O::V128Load8x8U { memarg } => load(t, memarg, 8, |i, f, a, o| i.uload8x8(f, a, o)),
        O::V128Load16x4S { memarg } => load(t, memarg, 8, |i, f, a, o| i.sload16x4(f, a, o)),
        O::V128Load16x4U { memarg } => load(t, memarg, 8, |i, f, a, o| i.uload16x4(f, a, o)),
        O::V128Load32x2S { memarg } => load(t, memarg, 8, |i, f, a, o| i.sload32x2(f, a, o)),
        O::V128Load32x2U { memarg } => load(t, memarg, 8, |i, f, a, o| i.uload32x2(f, a, o)),

        O::V128Load8Splat { memarg } => load_splat(t, memarg, I8X16),
        O::V128Load16Splat { memarg } => load_splat(t, memarg, I16X8),
        O::V128Load32Splat { memarg } => load_splat(t, memarg, I32X4),
        O::V128Load64Splat { memarg } => load_splat(t, memarg, I64X2),
        O::V128Load32Zero { memarg } => load_zero(t, memarg, I32X4),
        O::V128Load64Zero { memarg } => load_zero(t, memarg, I64X2),

        O::V128Load8Lane { memarg, lane } => load_lane(t, memarg, I8X16, *lane),
        O::V128Load16Lane { memarg, lane } => load_lane(t, memarg, I16X8, *lane),
        O::V128Load32Lane { memarg, lane } => load_lane(t, memarg, I32X4, *lane),
        O::V128Load64Lane { memarg, lane } => load_lane(t, memarg, I64X2, *lane),
        O::V128Store8Lane { memarg, lane } => store_lane(t, memarg, I8X16, *lane),
        O::V128Store16Lane { memarg, lane } => store_lane(t, memarg, I16X8, *lane),
        O::V128Store32Lane { memarg, lane } => store_lane(t, memarg, I32X4, *lane),
        O::V128Store64Lane { memarg, lane } => store_lane(t, memarg, I64X2, *lane),

        _ => return false,
    }
    true
}

/// Loads `size` bytes by one instruction that makes a whole vector of them.
fn load(
    t: &mut Translator<'_>,
    memarg: &MemArg,
    size: u8,
    make: impl FnOnce(FuncInstBuilder<'_, '_>, MemFlagsData, Value, Offset32) -> Value,
) {
    let index = t.pop();
    let (flags, address, offset) = t.address(memarg, index, size);
    let value = make(t.b.ins(), flags, address, offset);
    t.push_vector(value);
}

fn store(t: &mut Translator<'_>, memarg: &MemArg) {
    let value = t.pop_vector(I8X16);
    let index = t.pop();
    let (flags, address, offset) = t.address(memarg, index, 16);
    t.b.ins().store(flags, value, address, offset);
}

fn load_splat(t: &mut Translator<'_>, memarg: &MemArg, ty: Type) {
    let index = t.pop();
    let lane = load_scalar(t, memarg, index, ty.lane_type());
    let value = t.b.ins().splat(ty, lane);
    t.push_vector(value);
}

fn load_zero(t: &mut Translator<'_>, memarg: &MemArg, ty: Type) {
    let index = t.pop();
    let lane = load_scalar(t, memarg, index, ty.lane_type());
    let value = t.b.ins().scalar_to_vector(ty, lane);
    t.push_vector(value);
}

fn load_lane(t: &mut Translator<'_>, memarg: &MemArg, ty: Type, number: u8) {
    let vector = t.pop_vector(ty);
    let index = t.pop();
    let lane = load_scalar(t, memarg, index, ty.lane_type());
    let value = t.b.ins().insertlane(vector, lane, number);
    t.push_vector(value);
}

fn store_lane(t: &mut Translator<'_>, memarg: &MemArg, ty: Type, number: u8) {
    let vector = t.pop_vector(ty);
    let index = t.pop();
    let lane = t.b.ins().extractlane(vector, number);
    let (flags, address, offset) = t.address(memarg, index, ty.lane_type().bytes() as u8);
    t.b.ins().store(flags, lane, address, offset);
}

fn load_scalar(t: &mut Translator<'_>, memarg: &MemArg, index: Value, ty: Type) -> Value {
    let (flags, address, offset) = t.address(memarg, index, ty.bytes() as u8);
    t.b.ins().load(ty, flags, address, offset)
}
