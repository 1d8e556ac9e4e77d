//! Blocks, branches and traps.

use std::collections::HashMap;

use cranelift_codegen::ir::{
    self, Block, BlockArg, BlockCall, InstBuilder, JumpTableData, Signature, Value, types,
};
use cranelift_codegen::isa::CallConv;
use pagefork_layout::link::{self, activation};
use pagefork_layout::module::{FuncType, ValType};
use pagefork_layout::state::result_cells;
use pagefork_layout::trap::TrapCode;
use wasmparser::{BlockType, BrTable, Operator};

use super::{Symbol, Translator, ir_type};
use crate::parse::val_type;

/// A structured block that is open.
pub(super) struct Control {
    kind: ControlKind,
    /// Where a branch to it goes.
    target: Block,
    /// How many values a branch takes along.
    arity: usize,
    /// Where its end is; for a loop there is no such block.
    after: Option<Block>,
    /// How many values its end leaves.
    result_count: usize,
    /// Height of the operand stack below its parameters.
    height: usize,
    /// Whether anything jumps to `after`.
    after_reached: bool,
    /// How many comparisons of bounds cover its start.
    covered_before: usize,
    /// How many cover all branches to it, and all code since the first of them.
    covered_after: Option<usize>,
    /// How many cover all code since its start that lies in blocks inside it.
    covered_least: usize,
}

enum ControlKind {
    Function,
    Block,
    Loop,
    TryTable,
    /// The other arm, and the parameters it starts with; taken by `else`.
    If(Option<(Block, Vec<Value>)>),
}

fn block_args(values: &[Value]) -> Vec<BlockArg> {
    values.iter().copied().map(BlockArg::Value).collect()
}

impl Translator<'_> {
    /// Opens the outermost block, whose end returns.
    pub(super) fn push_function_frame(&mut self, ty: &FuncType) {
        let after = self.block_with(&ty.results);
        let arity = ty.results.len();
        self.control.push(Control {
            kind: ControlKind::Function,
            target: after,
            arity,
            after: Some(after),
            result_count: arity,
            height: 0,
            after_reached: false,
            covered_before: self.covered.len(),
            covered_after: None,
            covered_least: usize::MAX,
        });
    }

    /// Passes over what cannot be reached, but for the operators that end it.
    pub(super) fn skip_unreachable(&mut self, op: &Operator<'_>) -> bool {
        let Some(depth) = &mut self.unreachable_depth else { return false };
        match op {
            Operator::Block { .. }
            | Operator::Loop { .. }
            | Operator::If { .. }
            | Operator::TryTable { .. } => *depth += 1,
            Operator::End if *depth > 0 => *depth -= 1,
            Operator::Else if *depth == 0 => return false,
            Operator::End => return false,
            _ => {}
        }
        true
    }

    pub(super) fn control(&mut self, op: &Operator<'_>) -> bool {
        match op {
            Operator::Block { blockty } => {
                let (params, results) = self.block_type(*blockty);
                let after = self.block_with(&results);
                self.push_control(
                    ControlKind::Block,
                    after,
                    results.len(),
                    Some(after),
                    &params,
                    &results,
                );
            }
            Operator::TryTable { try_table } => {
                let (params, results) = self.block_type(try_table.ty);
                let (after, arity) = (self.block_with(&results), results.len());
                self.push_control(
                    ControlKind::TryTable,
                    after,
                    arity,
                    Some(after),
                    &params,
                    &results,
                );
                self.begin_try_table(try_table);
            }
            Operator::Loop { blockty } => {
                let (params, results) = self.block_type(*blockty);
                self.open_loops += 1;
                let header = self.block_with(&params);
                let values = self.pop_many(params.len());
                self.b.ins().jump(header, &block_args(&values));
                self.b.switch_to_block(header);
                self.stack.extend_from_slice(self.b.block_params(header));
                self.push_control(ControlKind::Loop, header, params.len(), None, &params, &results);
                self.check_fuel();
                self.interruption_point();
            }
            Operator::If { blockty } => {
                let (params, results) = self.block_type(*blockty);
                let condition = self.pop();
                let after = self.block_with(&results);
                let (then, other) = (self.b.create_block(), self.b.create_block());
                self.b.ins().brif(condition, then, &[], other, &[]);
                let values = self.stack[self.stack.len() - params.len()..].to_vec();
                self.push_control(
                    ControlKind::If(Some((other, values))),
                    after,
                    results.len(),
                    Some(after),
                    &params,
                    &results,
                );
                self.b.seal_block(other);
                self.b.seal_block(then);
                self.b.switch_to_block(then);
            }
            Operator::Else => self.start_else(),
            Operator::End => self.end(),
            Operator::Br { relative_depth } => {
                self.branch(*relative_depth);
                self.unreachable();
            }
            Operator::BrIf { relative_depth } => {
                let condition = self.pop();
                let (target, values) = self.branch_target(*relative_depth);
                let next = self.b.create_block();
                self.b.ins().brif(condition, target, &block_args(&values), next, &[]);
                self.open_block(next);
            }
            Operator::BrOnNull { relative_depth } => {
                let reference = self.pop();
                let (target, values) = self.branch_target(*relative_depth);
                let next = self.b.create_block();
                self.b.ins().brif(reference, next, &[], target, &block_args(&values));
                self.open_block(next);
                self.push(reference);
            }
            Operator::BrOnNonNull { relative_depth } => {
                // The reference is the last of the values a branch takes along.
                let (target, values) = self.branch_target(*relative_depth);
                let reference = self.pop();
                let next = self.b.create_block();
                self.b.ins().brif(reference, target, &block_args(&values), next, &[]);
                self.open_block(next);
            }
            Operator::BrTable { targets } => {
                let index = self.pop();
                self.br_table(index, targets);
                self.unreachable();
            }
            Operator::Return => {
                self.branch(self.control.len() as u32 - 1);
                self.unreachable();
            }
            Operator::Unreachable => {
                self.trap(TrapCode::Unreachable);
                self.unreachable();
            }
            _ => return false,
        }
        true
    }

    /// Traps if `condition` is not zero: a branch to a cold call of the stub, so
    /// that no signal is raised.
    pub(crate) fn trap_if(&mut self, condition: Value, code: TrapCode) {
        let (cold, next) = (self.b.create_block(), self.b.create_block());
        self.b.set_cold_block(cold);
        self.b.ins().brif(condition, cold, &[], next, &[]);
        self.open_block(cold);
        self.trap(code);
        self.open_block(next);
    }

    /// Traps. The block ends here.
    pub(crate) fn trap(&mut self, code: TrapCode) {
        let stub = self.symbol(Symbol::Trap(code));
        self.b.ins().call(stub, &[]);
        self.b.ins().trap(ir::TrapCode::unwrap_user(code as u8));
    }

    /// Tests whether an interrupt is wanted. The call preserves every register, so that the
    /// test costs hot loops a compare and a branch.
    pub(super) fn interruption_point(&mut self) {
        if !self.module.options.interruptible {
            return;
        }
        let wanted = self.link_word(types::I32, link::INTERRUPT);
        let (cold, next) = (self.b.create_block(), self.b.create_block());
        self.b.set_cold_block(cold);
        self.b.ins().brif(wanted, cold, &[], next, &[]);
        self.open_block(cold);
        let thunk = self.activation_word(activation::INTERRUPT);
        let signature = self.b.import_signature(Signature::new(CallConv::PreserveAll));
        self.b.ins().call_indirect(signature, thunk, &[]);
        self.forget_addresses();
        self.b.ins().jump(next, &[]);
        self.open_block(next);
    }

    /// Goes on in a block to which all branches have been made.
    pub(super) fn open_block(&mut self, block: Block) {
        self.b.switch_to_block(block);
        self.b.seal_block(block);
    }

    fn push_control(
        &mut self,
        kind: ControlKind,
        target: Block,
        arity: usize,
        after: Option<Block>,
        params: &[ValType],
        results: &[ValType],
    ) {
        self.control.push(Control {
            kind,
            target,
            arity,
            after,
            result_count: results.len(),
            height: self.stack.len() - params.len(),
            after_reached: false,
            covered_before: self.covered.len(),
            covered_after: None,
            covered_least: usize::MAX,
        });
    }

    fn block_type(&self, ty: BlockType) -> (Vec<ValType>, Vec<ValType>) {
        match ty {
            BlockType::Empty => (vec![], vec![]),
            BlockType::Type(ty) => {
                let ty = val_type(self.module.canonical_types, ty);
                (vec![], vec![ty.expect("a type that is not supported has no values")])
            }
            BlockType::FuncType(index) => {
                let canonical = self.module.canonical_types[index as usize];
                let ty = &self.module.info.types[canonical as usize];
                (ty.params.to_vec(), ty.results.to_vec())
            }
        }
    }

    fn block_with(&mut self, params: &[ValType]) -> Block {
        let block = self.b.create_block();
        for ty in params {
            self.note_type(*ty);
            self.b.append_block_param(block, ir_type(*ty));
        }
        block
    }

    /// The block that a branch goes to, and the values it takes along, which
    /// stay on the stack.
    fn branch_target(&mut self, depth: u32) -> (Block, Vec<Value>) {
        let index = self.control.len() - 1 - depth as usize;
        let control = &mut self.control[index];
        control.after_reached |= control.after == Some(control.target);
        let covered = control.covered_after.unwrap_or(usize::MAX).min(self.covered.len());
        control.covered_after = Some(covered);
        let values = self.stack[self.stack.len() - control.arity..].to_vec();
        (control.target, values)
    }

    /// Branches out of `depth` blocks. Out of all of them is a return: if thousands of branches led
    /// to one block that returns, its parameters would make the register allocator quadratic.
    pub(super) fn branch(&mut self, depth: u32) {
        if depth as usize == self.control.len() - 1 {
            return self.return_values();
        }
        let (target, values) = self.branch_target(depth);
        self.b.ins().jump(target, &block_args(&values));
    }

    /// Branches to the target that `index` chooses. What a target gets, of values and locals, is
    /// told once, in a block of its own, if several entries lead there.
    fn br_table(&mut self, index: Value, targets: &BrTable<'_>) {
        let mut depths: Vec<u32> =
            targets.targets().map(|depth| depth.expect("validated just before")).collect();
        depths.push(targets.default());
        let mut entries: HashMap<u32, u32> = HashMap::new();
        depths.iter().for_each(|depth| *entries.entry(*depth).or_default() += 1);
        let mut shared: HashMap<u32, Block> = HashMap::new();
        // In the order in which they are first named, so that the same code comes of it each time.
        let mut ways = Vec::new();
        let mut calls: Vec<BlockCall> = Vec::with_capacity(depths.len());
        for depth in depths {
            let (block, args) = if entries[&depth] == 1 {
                let (target, values) = self.branch_target(depth);
                (target, block_args(&values))
            } else {
                let block = *shared.entry(depth).or_insert_with(|| {
                    ways.push((self.b.create_block(), depth));
                    ways[ways.len() - 1].0
                });
                (block, Vec::new())
            };
            calls.push(BlockCall::new(block, args, &mut self.b.func.dfg.value_lists));
        }
        let default = calls.pop().expect("that of the default");
        let table = self.b.create_jump_table(JumpTableData::new(default, &calls));
        self.b.ins().br_table(index, table);
        for (block, depth) in ways {
            self.open_block(block);
            self.branch(depth);
        }
    }

    pub(super) fn unreachable(&mut self) {
        self.unreachable_depth = Some(0);
    }

    /// Says that of the comparisons of bounds only the first `length` cover what follows,
    /// and only the first `least` have covered all before it in the innermost block.
    fn uncover(&mut self, length: usize, least: usize) {
        self.covered.truncate(length);
        if let Some(around) = self.control.last_mut() {
            around.covered_least = around.covered_least.min(least);
            around.covered_after = around.covered_after.map(|covered| covered.min(least));
        }
    }

    fn start_else(&mut self) {
        if self.unreachable_depth.is_none() {
            self.branch(0);
        }
        let covered = self.control.last().expect("else belongs to an if").covered_before;
        self.uncover(covered, covered);
        let control = self.control.last_mut().expect("else belongs to an if");
        let ControlKind::If(other) = &mut control.kind else {
            unreachable!("else belongs to an if")
        };
        let (other, params) = other.take().expect("an if has one else");
        self.stack.truncate(control.height);
        self.stack.extend(params);
        self.b.switch_to_block(other);
        self.unreachable_depth = None;
    }

    fn end(&mut self) {
        let reachable = self.unreachable_depth.is_none();
        if let ControlKind::If(other @ Some(_)) =
            &mut self.control.last_mut().expect("end belongs to a block").kind
        {
            // An `if` without `else` passes its parameters on.
            let (other, params) = other.take().expect("matched just now");
            if reachable {
                self.branch(0);
            }
            let control = self.control.last_mut().expect("still open");
            control.after_reached = true;
            control.covered_after = Some(control.covered_before);
            let after = control.target;
            self.b.switch_to_block(other);
            self.b.ins().jump(after, &block_args(&params));
        } else if reachable && !matches!(self.control.last(), Some(Control { after: None, .. })) {
            // A jump even where the function ends. A value that is computed for the return alone
            // then lies in another block than the loads before it, so none is folded into it, and
            // a trap is at the load's own place in the source.
            let (target, values) = self.branch_target(0);
            self.b.ins().jump(target, &block_args(&values));
        }

        let control = self.control.pop().expect("end belongs to a block");
        let covered = match control.kind {
            // Only the last operator in it leads here.
            ControlKind::Loop => {
                self.open_loops -= 1;
                usize::MAX
            }
            // From any place in it exceptions come to where they are caught.
            ControlKind::TryTable => control.covered_before,
            _ => control.covered_after.unwrap_or(usize::MAX),
        };
        self.uncover(covered, covered.min(control.covered_least));
        if let ControlKind::TryTable = control.kind {
            self.end_try_table(control.height);
        }
        match control.after {
            None => {
                self.b.seal_block(control.target);
                debug_assert!(
                    !reachable || self.stack.len() == control.height + control.result_count
                );
            }
            Some(after) if control.after_reached => {
                self.b.seal_block(after);
                self.b.switch_to_block(after);
                self.stack.truncate(control.height);
                self.stack.extend_from_slice(self.b.block_params(after));
                self.unreachable_depth = None;
                if let ControlKind::Function = control.kind {
                    self.return_values();
                }
            }
            Some(_) => self.unreachable_depth = Some(0),
        }
        if control.after.is_none() && !reachable {
            self.stack.truncate(control.height);
        }
    }

    /// Returns what is on the stack: the first results in registers, the others
    /// in cells.
    fn return_values(&mut self) {
        let values = self.stack[self.stack.len() - self.results.len()..].to_vec();
        let mut in_registers = Vec::new();
        for (value, cell) in values.into_iter().zip(result_cells(self.results)) {
            match cell {
                Some(cell) => self.store_cell(cell, value),
                None => in_registers.push(value),
            }
        }
        self.b.ins().return_(&in_registers);
    }
}
