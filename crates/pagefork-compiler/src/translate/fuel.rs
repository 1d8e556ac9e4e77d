//! Metering: each operator that does something costs one unit. What a stretch of
//! straight code costs is known when it is compiled and is paid at its end, so
//! that every run of the same code pays the same; whether anything is left is
//! asked at function entries and loop headers only.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{InstBuilder, types};
use pagefork_layout::link::{self, activation};
use pagefork_layout::trap::TrapCode;
use wasmparser::Operator;

use super::Translator;
use super::address::AliasClass;

impl Translator<'_> {
    /// Notes what `op` costs, and pays where the straight code ends.
    pub(super) fn meter(&mut self, op: &Operator<'_>) {
        if !self.module.options.fuel {
            return;
        }
        self.fuel_owed += cost(op);
        if ends_straight_code(op) {
            self.pay_fuel();
        }
    }

    /// Traps if the fuel is used up.
    pub(super) fn check_fuel(&mut self) {
        if !self.module.options.fuel {
            return;
        }
        let activation = self.link_word(types::I64, link::ACTIVATION);
        let flags = self.flags(AliasClass::Link);
        let left = self.b.ins().load(types::I64, flags, activation, activation::FUEL as i32);
        let empty = self.b.ins().icmp_imm_s(IntCC::SignedLessThan, left, 0);
        self.trap_if(empty, TrapCode::OutOfFuel);
    }

    fn pay_fuel(&mut self) {
        let owed = std::mem::take(&mut self.fuel_owed);
        if owed == 0 {
            return;
        }
        let activation = self.link_word(types::I64, link::ACTIVATION);
        let flags = self.flags(AliasClass::Link);
        let left = self.b.ins().load(types::I64, flags, activation, activation::FUEL as i32);
        let left = self.b.ins().iadd_imm_s(left, -owed);
        self.b.ins().store(flags, left, activation, activation::FUEL as i32);
    }
}

/// What has no code of its own costs nothing.
fn cost(op: &Operator<'_>) -> i64 {
    match op {
        Operator::Nop
        | Operator::Drop
        | Operator::Block { .. }
        | Operator::Loop { .. }
        | Operator::TryTable { .. }
        | Operator::Unreachable
        | Operator::Return
        | Operator::Else
        | Operator::End => 0,
        _ => 1,
    }
}

/// Whether what follows `op` may run more or less often than what precedes it.
fn ends_straight_code(op: &Operator<'_>) -> bool {
    matches!(
        op,
        Operator::Loop { .. }
            | Operator::If { .. }
            | Operator::Else
            | Operator::End
            | Operator::Br { .. }
            | Operator::BrIf { .. }
            | Operator::BrTable { .. }
            | Operator::BrOnNull { .. }
            | Operator::BrOnNonNull { .. }
            | Operator::Return
            | Operator::Unreachable
            | Operator::TryTable { .. }
            | Operator::Throw { .. }
            | Operator::ThrowRef
            | Operator::Call { .. }
            | Operator::CallIndirect { .. }
            | Operator::CallRef { .. }
            | Operator::ReturnCall { .. }
            | Operator::ReturnCallIndirect { .. }
            | Operator::ReturnCallRef { .. }
    )
}
