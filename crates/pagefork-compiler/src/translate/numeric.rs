//! Scalar arithmetic, comparisons and conversions.

use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::immediates::{Ieee32, Ieee64};
use cranelift_codegen::ir::types::{F32, F64, I8, I16, I32, I64};
use cranelift_codegen::ir::{InstBuilder, InstructionData, MemFlagsData, Opcode, Type, Value};
use cranelift_frontend::FuncInstBuilder;
use pagefork_layout::trap::TrapCode;
use wasmparser::Operator;

use super::Translator;

/// Translates `op` if it is a scalar numeric operator; `false` if it is none.
pub(crate) fn translate(t: &mut Translator<'_>, op: &Operator<'_>) -> bool {
    use Operator as O;
    match *op {
        // Constants. Cranelift wants narrow integers zero-extended.
        O::I32Const { value } => constant(t, |i| i.iconst(I32, i64::from(value.cast_unsigned()))),
        O::I64Const { value } => constant(t, |i| i.iconst(I64, value)),
        O::F32Const { value } => constant(t, |i| i.f32const(Ieee32::with_bits(value.bits()))),
        O::F64Const { value } => constant(t, |i| i.f64const(Ieee64::with_bits(value.bits()))),

        // Integer comparisons.
        O::I32Eqz | O::I64Eqz => eqz(t),
        O::I32Eq | O::I64Eq => icmp(t, IntCC::Equal),
        O::I32Ne | O::I64Ne => icmp(t, IntCC::NotEqual),
        O::I32LtS | O::I64LtS => icmp(t, IntCC::SignedLessThan),
        O::I32LtU | O::I64LtU => icmp(t, IntCC::UnsignedLessThan),
        O::I32GtS | O::I64GtS => icmp(t, IntCC::SignedGreaterThan),
        O::I32GtU | O::I64GtU => icmp(t, IntCC::UnsignedGreaterThan),
        O::I32LeS | O::I64LeS => icmp(t, IntCC::SignedLessThanOrEqual),
        O::I32LeU | O::I64LeU => icmp(t, IntCC::UnsignedLessThanOrEqual),
        O::I32GeS | O::I64GeS => icmp(t, IntCC::SignedGreaterThanOrEqual),
        O::I32GeU | O::I64GeU => icmp(t, IntCC::UnsignedGreaterThanOrEqual),

        // Float comparisons.
        O::F32Eq | O::F64Eq => fcmp(t, FloatCC::Equal),
        O::F32Ne | O::F64Ne => fcmp(t, FloatCC::NotEqual),
        O::F32Lt | O::F64Lt => fcmp(t, FloatCC::LessThan),
        O::F32Gt | O::F64Gt => fcmp(t, FloatCC::GreaterThan),
        O::F32Le | O::F64Le => fcmp(t, FloatCC::LessThanOrEqual),
        O::F32Ge | O::F64Ge => fcmp(t, FloatCC::GreaterThanOrEqual),

        // Integer arithmetic.
        O::I32Clz | O::I64Clz => unary(t, |i, x| i.clz(x)),
        O::I32Ctz | O::I64Ctz => unary(t, |i, x| i.ctz(x)),
        O::I32Popcnt | O::I64Popcnt => unary(t, |i, x| i.popcnt(x)),
        O::I32Add | O::I64Add => binary(t, |i, x, y| i.iadd(x, y)),
        O::I32Sub | O::I64Sub => binary(t, |i, x, y| i.isub(x, y)),
        O::I32Mul | O::I64Mul => binary(t, |i, x, y| i.imul(x, y)),
        O::I32DivS | O::I64DivS => signed_division(t),
        O::I32DivU | O::I64DivU => division(t, |i, x, y| i.udiv(x, y)),
        // Cranelift's remainder of the least integer by -1 is 0, as it should be.
        O::I32RemS | O::I64RemS => division(t, |i, x, y| i.srem(x, y)),
        O::I32RemU | O::I64RemU => division(t, |i, x, y| i.urem(x, y)),
        O::I32And | O::I64And => binary(t, |i, x, y| i.band(x, y)),
        O::I32Or | O::I64Or => binary(t, |i, x, y| i.bor(x, y)),
        O::I32Xor | O::I64Xor => binary(t, |i, x, y| i.bxor(x, y)),
        O::I32Shl | O::I64Shl => binary(t, |i, x, y| i.ishl(x, y)),
        O::I32ShrS | O::I64ShrS => binary(t, |i, x, y| i.sshr(x, y)),
        O::I32ShrU | O::I64ShrU => binary(t, |i, x, y| i.ushr(x, y)),
        O::I32Rotl | O::I64Rotl => binary(t, |i, x, y| i.rotl(x, y)),
        O::I32Rotr | O::I64Rotr => binary(t, |i, x, y| i.rotr(x, y)),

        // Float arithmetic.
        O::F32Abs | O::F64Abs => unary(t, |i, x| i.fabs(x)),
        O::F32Neg | O::F64Neg => unary(t, |i, x| i.fneg(x)),
        O::F32Ceil | O::F64Ceil => unary(t, |i, x| i.ceil(x)),
        O::F32Floor | O::F64Floor => unary(t, |i, x| i.floor(x)),
        O::F32Trunc | O::F64Trunc => unary(t, |i, x| i.trunc(x)),
        O::F32Nearest | O::F64Nearest => unary(t, |i, x| i.nearest(x)),
        O::F32Sqrt | O::F64Sqrt => unary(t, |i, x| i.sqrt(x)),
        O::F32Add | O::F64Add => binary(t, |i, x, y| i.fadd(x, y)),
        O::F32Sub | O::F64Sub => binary(t, |i, x, y| i.fsub(x, y)),
        O::F32Mul | O::F64Mul => binary(t, |i, x, y| i.fmul(x, y)),
        O::F32Div | O::F64Div => binary(t, |i, x, y| i.fdiv(x, y)),
        O::F32Min | O::F64Min => binary(t, |i, x, y| i.fmin(x, y)),
        O::F32Max | O::F64Max => binary(t, |i, x, y| i.fmax(x, y)),
        O::F32Copysign | O::F64Copysign => binary(t, |i, x, y| i.fcopysign(x, y)),

        // Integer widths.
        O::I32WrapI64 => unary(t, |i, x| i.ireduce(I32, x)),
        O::I64ExtendI32S => unary(t, |i, x| i.sextend(I64, x)),
        O::I64ExtendI32U => unary(t, |i, x| i.uextend(I64, x)),
        O::I32Extend8S => sign_extend(t, I8, I32),
        O::I32Extend16S => sign_extend(t, I16, I32),
        O::I64Extend8S => sign_extend(t, I8, I64),
        O::I64Extend16S => sign_extend(t, I16, I64),
        O::I64Extend32S => sign_extend(t, I32, I64),

        // Float to integer. These trap by themselves, with Cranelift's own codes.
        O::I32TruncF32S | O::I32TruncF64S => unary(t, |i, x| i.fcvt_to_sint(I32, x)),
        O::I32TruncF32U | O::I32TruncF64U => unary(t, |i, x| i.fcvt_to_uint(I32, x)),
        O::I64TruncF32S | O::I64TruncF64S => unary(t, |i, x| i.fcvt_to_sint(I64, x)),
        O::I64TruncF32U | O::I64TruncF64U => unary(t, |i, x| i.fcvt_to_uint(I64, x)),
        O::I32TruncSatF32S | O::I32TruncSatF64S => unary(t, |i, x| i.fcvt_to_sint_sat(I32, x)),
        O::I32TruncSatF32U | O::I32TruncSatF64U => unary(t, |i, x| i.fcvt_to_uint_sat(I32, x)),
        O::I64TruncSatF32S | O::I64TruncSatF64S => unary(t, |i, x| i.fcvt_to_sint_sat(I64, x)),
        O::I64TruncSatF32U | O::I64TruncSatF64U => unary(t, |i, x| i.fcvt_to_uint_sat(I64, x)),

        // Integer to float, and between floats.
        O::F32ConvertI32S | O::F32ConvertI64S => unary(t, |i, x| i.fcvt_from_sint(F32, x)),
        O::F32ConvertI32U | O::F32ConvertI64U => unary(t, |i, x| i.fcvt_from_uint(F32, x)),
        O::F64ConvertI32S | O::F64ConvertI64S => unary(t, |i, x| i.fcvt_from_sint(F64, x)),
        O::F64ConvertI32U | O::F64ConvertI64U => unary(t, |i, x| i.fcvt_from_uint(F64, x)),
        O::F32DemoteF64 => unary(t, |i, x| i.fdemote(F32, x)),
        O::F64PromoteF32 => unary(t, |i, x| i.fpromote(F64, x)),

        // The same bits as another type.
        O::I32ReinterpretF32 => unary(t, |i, x| i.bitcast(I32, MemFlagsData::new(), x)),
        O::I64ReinterpretF64 => unary(t, |i, x| i.bitcast(I64, MemFlagsData::new(), x)),
        O::F32ReinterpretI32 => unary(t, |i, x| i.bitcast(F32, MemFlagsData::new(), x)),
        O::F64ReinterpretI64 => unary(t, |i, x| i.bitcast(F64, MemFlagsData::new(), x)),

        _ => return false,
    }
    true
}

fn constant(t: &mut Translator<'_>, make: impl FnOnce(FuncInstBuilder<'_, '_>) -> Value) {
    let value = make(t.b.ins());
    t.push(value);
}

fn unary(t: &mut Translator<'_>, make: impl FnOnce(FuncInstBuilder<'_, '_>, Value) -> Value) {
    let x = t.pop();
    let value = make(t.b.ins(), x);
    t.push(value);
}

fn binary(
    t: &mut Translator<'_>,
    make: impl FnOnce(FuncInstBuilder<'_, '_>, Value, Value) -> Value,
) {
    let (x, y) = t.pop2();
    let value = make(t.b.ins(), x, y);
    t.push(value);
}

fn eqz(t: &mut Translator<'_>) {
    let x = t.pop();
    let holds = t.b.ins().icmp_imm_s(IntCC::Equal, x, 0);
    push_bool(t, holds);
}

fn icmp(t: &mut Translator<'_>, condition: IntCC) {
    let (x, y) = t.pop2();
    let holds = t.b.ins().icmp(condition, x, y);
    push_bool(t, holds);
}

fn fcmp(t: &mut Translator<'_>, condition: FloatCC) {
    let (x, y) = t.pop2();
    let holds = t.b.ins().fcmp(condition, x, y);
    push_bool(t, holds);
}

/// Pushes a condition, which Cranelift has in 8 bits, as an `i32`.
pub(super) fn push_bool(t: &mut Translator<'_>, holds: Value) {
    let value = t.b.ins().uextend(I32, holds);
    t.push(value);
}

fn sign_extend(t: &mut Translator<'_>, from: Type, to: Type) {
    let x = t.pop();
    let low = t.b.ins().ireduce(from, x);
    let value = t.b.ins().sextend(to, low);
    t.push(value);
}

/// A division or remainder whose only trap is a divisor of zero.
fn division(
    t: &mut Translator<'_>,
    make: impl FnOnce(FuncInstBuilder<'_, '_>, Value, Value) -> Value,
) {
    let (x, y) = t.pop2();
    trap_if_zero(t, y);
    let value = make(t.b.ins(), x, y);
    t.push(value);
}

fn signed_division(t: &mut Translator<'_>) {
    let (x, y) = t.pop2();
    trap_if_zero(t, y);
    trap_if_quotient_overflows(t, x, y);
    let value = t.b.ins().sdiv(x, y);
    t.push(value);
}

fn trap_if_zero(t: &mut Translator<'_>, divisor: Value) {
    if known_constant(t, divisor).is_none_or(|divisor| divisor == 0) {
        let zero = t.b.ins().icmp_imm_s(IntCC::Equal, divisor, 0);
        t.trap_if(zero, TrapCode::IntegerDivisionByZero);
    }
}

/// The least integer divided by -1 is the only quotient that does not fit.
fn trap_if_quotient_overflows(t: &mut Translator<'_>, dividend: Value, divisor: Value) {
    let least = match t.b.func.dfg.value_type(dividend) {
        I32 => i64::from(i32::MIN),
        _ => i64::MIN,
    };
    if known_constant(t, divisor).is_some_and(|divisor| divisor != -1)
        || known_constant(t, dividend).is_some_and(|dividend| dividend != least)
    {
        return;
    }
    let is_least = t.b.ins().icmp_imm_s(IntCC::Equal, dividend, least);
    let is_minus_one = t.b.ins().icmp_imm_s(IntCC::Equal, divisor, -1);
    let overflows = t.b.ins().band(is_least, is_minus_one);
    t.trap_if(overflows, TrapCode::IntegerOverflow);
}

/// The value, sign-extended, if it is an integer constant.
pub(super) fn known_constant(t: &Translator<'_>, value: Value) -> Option<i64> {
    let dfg = &t.b.func.dfg;
    match dfg.insts[dfg.value_def(value).inst()?] {
        InstructionData::UnaryImm { opcode: Opcode::Iconst, imm } => {
            Some(imm.sign_extend_from_width(dfg.value_type(value).bits()).bits())
        }
        _ => None,
    }
}
