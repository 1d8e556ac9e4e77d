//! What makes intermediate values visible.

use wasm_encoder::{Function, Instruction, ValType};
use wasmparser::{FuncValidator, Operator, ValidatorResources};

use crate::features::FeatureSet;
use crate::random::Random;
use crate::rewrite::operations::{GROUPS, Group, Needs, SEVEN_BITS, Scalar};
use crate::value::{Value, interesting};

/// What makes intermediate values visible: a random program drops most of what it
/// computes, and a wrong value that is dropped is a difference that is not seen.
/// After an operator, a probe mixes the value on top of the stack into a global.
///
/// It also keeps it in a local, and sometimes computes something with such values,
/// so that each operator is executed on values of all kinds as often as any other.
pub(super) struct Probes {
    /// The global, an `i64`.
    pub(super) global: u32,
    /// Whether the bits of NaNs are the same in every engine.
    pub(super) deterministic: bool,
    /// What computations may use.
    pub(super) features: FeatureSet,
    /// How many of 8 values are looked at.
    pub(super) share: u64,
}

/// The locals that a function needs for its probes, in this order.
pub(super) const LOCALS: [ValType; 5] =
    [ValType::I32, ValType::I64, ValType::F32, ValType::F64, ValType::V128];

impl Probes {
    /// Looks at the value on top of the stack after `operator`, perhaps. `validator`
    /// knows the stack, and `locals` is the first of the locals for probes.
    pub(super) fn look(
        &self,
        to: &mut Function,
        random: &mut Random,
        validator: &FuncValidator<ValidatorResources>,
        operator: &Operator<'_>,
        locals: u32,
    ) {
        let shown_elsewhere = matches!(
            operator,
            Operator::LocalGet { .. }
                | Operator::LocalTee { .. }
                | Operator::GlobalGet { .. }
                | Operator::I32Const { .. }
                | Operator::I64Const { .. }
                | Operator::F32Const { .. }
                | Operator::F64Const { .. }
                | Operator::V128Const { .. }
        );
        if shown_elsewhere || !random.chance(self.share, 8) {
            return;
        }
        // Below the frame's height is what belongs to the block around.
        let Some(frame) = validator.get_control_frame(0) else { return };
        if validator.operand_stack_height() as usize <= frame.height {
            return;
        }
        use wasmparser::ValType as V;
        let Some(Some(ty)) = validator.get_operand_type(0) else { return };
        let ty = match ty {
            V::I32 => Scalar::I32,
            V::I64 => Scalar::I64,
            V::F32 => Scalar::F32,
            V::F64 => Scalar::F64,
            // Which lanes are floats is not known.
            V::V128 if self.deterministic => Scalar::V128,
            V::V128 | V::Ref(_) => return,
        };
        to.instruction(&Instruction::LocalTee(locals + ty as u32));
        self.mix(to, ty, locals);
        for _ in 0..random.below(4) {
            self.compute(to, random, locals);
        }
    }

    /// Computes something with values that were seen before.
    fn compute(&self, to: &mut Function, random: &mut Random, locals: u32) {
        // As often as it has operations, of those that may be.
        let allowed: Vec<&Group> = GROUPS.iter().filter(|group| self.allows(group)).collect();
        let count = allowed.iter().map(|group| group.instructions.len() as u64).sum();
        let mut number = random.below(count) as usize;
        let chosen = allowed.into_iter().find(|group| {
            let found = number < group.instructions.len();
            number -= if found { 0 } else { group.instructions.len() };
            found
        });
        let Some(group) = chosen else { return };
        for (i, ty) in group.params.iter().enumerate() {
            if random.chance(1, 4) {
                to.instruction(&constant(random, *ty));
            } else {
                to.instruction(&Instruction::LocalGet(locals + *ty as u32));
            }
            if group.needs == Needs::SevenBits && i == 1 {
                to.instruction(&SEVEN_BITS);
                to.instruction(&Instruction::V128And);
            }
        }
        if group.needs == Needs::Divisor {
            if group.result == Scalar::I32 {
                to.instruction(&Instruction::I32Const(i32::MAX));
                to.instruction(&Instruction::I32And);
                to.instruction(&Instruction::I32Const(1));
                to.instruction(&Instruction::I32Or);
            } else {
                to.instruction(&Instruction::I64Const(i64::MAX));
                to.instruction(&Instruction::I64And);
                to.instruction(&Instruction::I64Const(1));
                to.instruction(&Instruction::I64Or);
            }
        }
        to.instruction(&group.instructions[number]);
        to.instruction(&Instruction::LocalSet(locals + group.result as u32));
        self.mix(to, group.result, locals);
    }

    fn allows(&self, group: &Group) -> bool {
        match group.needs {
            Needs::Nothing | Needs::Divisor => true,
            Needs::SignExtension => self.features.has("sign-extension"),
            Needs::Saturating => self.features.has("saturating-float-to-int"),
            Needs::Deterministic => self.deterministic,
            Needs::Simd => self.features.has("simd"),
            Needs::SimdDeterministic => self.deterministic && self.features.has("simd"),
            Needs::Relaxed | Needs::SevenBits => {
                self.deterministic && self.features.has("relaxed-simd")
            }
        }
    }

    /// Takes the value in the local of type `ty` into the global.
    fn mix(&self, to: &mut Function, ty: Scalar, locals: u32) {
        use Instruction as I;
        let local = locals + ty as u32;
        match ty {
            Scalar::I32 => {
                to.instruction(&I::LocalGet(local));
                to.instruction(&I::I64ExtendI32U);
            }
            Scalar::I64 => {
                to.instruction(&I::LocalGet(local));
            }
            Scalar::F32 => {
                to.instruction(&I::LocalGet(local));
                to.instruction(&I::I32ReinterpretF32);
                to.instruction(&I::I64ExtendI32U);
                self.without_nan(to, local, &I::F32Eq);
            }
            Scalar::F64 => {
                to.instruction(&I::LocalGet(local));
                to.instruction(&I::I64ReinterpretF64);
                self.without_nan(to, local, &I::F64Eq);
            }
            Scalar::V128 => {
                to.instruction(&I::LocalGet(local));
                to.instruction(&I::I64x2ExtractLane(0));
                self.take(to);
                to.instruction(&I::LocalGet(local));
                to.instruction(&I::I64x2ExtractLane(1));
            }
        }
        self.take(to);
    }

    /// Makes the bits on the stack zero if the float in `local` is a NaN whose bits
    /// mean nothing.
    fn without_nan(&self, to: &mut Function, local: u32, equal: &Instruction<'_>) {
        if !self.deterministic {
            to.instruction(&Instruction::I64Const(0));
            to.instruction(&Instruction::LocalGet(local));
            to.instruction(&Instruction::LocalGet(local));
            to.instruction(equal);
            to.instruction(&Instruction::Select);
        }
    }

    /// Takes an `i64` into the global, in a way that depends on what came before.
    fn take(&self, to: &mut Function) {
        to.instruction(&Instruction::GlobalGet(self.global));
        to.instruction(&Instruction::I64Const(0x2545_f491_4f6c_dd1d));
        to.instruction(&Instruction::I64Mul);
        to.instruction(&Instruction::I64Add);
        to.instruction(&Instruction::GlobalSet(self.global));
    }
}

fn constant(random: &mut Random, ty: Scalar) -> Instruction<'static> {
    use wasmparser::ValType as V;
    let ty = match ty {
        Scalar::I32 => V::I32,
        Scalar::I64 => V::I64,
        Scalar::F32 => V::F32,
        Scalar::F64 => V::F64,
        Scalar::V128 => V::V128,
    };
    match interesting(random, ty, |_| Vec::new()) {
        Some(Value::I32(bits)) => Instruction::I32Const(bits as i32),
        Some(Value::I64(bits)) => Instruction::I64Const(bits as i64),
        Some(Value::F32(bits)) => Instruction::F32Const(f32::from_bits(bits).into()),
        Some(Value::F64(bits)) => Instruction::F64Const(f64::from_bits(bits).into()),
        Some(Value::V128(bits)) => Instruction::V128Const(bits as i128),
        other => panic!("{other:?} is no number"),
    }
}
