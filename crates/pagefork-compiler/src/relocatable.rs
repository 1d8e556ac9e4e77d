//! The proof that suspended frames can be moved: in the optimised IR of a
//! function, no value that is or derives from a host address is live across a
//! call. A guest is suspended inside calls only, so what is live in its frames
//! then means the same wherever the slot and the code lie.
//!
//! Host addresses enter a function through a few instructions (the pinned
//! register, addresses of code, of the stack) and as 64-bit words loaded from
//! the link zone and what it leads to. Everything computed from one is suspect,
//! but for the outcome of a comparison. Loading from a suspect address is fine.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};

use cranelift_codegen::entity::{EntitySet, SecondaryMap};
use cranelift_codegen::flowgraph::ControlFlowGraph;
use cranelift_codegen::ir::{Block, Function, Inst, Opcode, Value, types};

use crate::translate::address::Region;

/// A value that would be wrong after a move.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LiveAddress {
    value: Value,
    call: String,
}

impl std::fmt::Display for LiveAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "host address {} is live across the call `{}`", self.value, self.call)
    }
}

/// Checks one function after optimisation, whose first `addresses` parameters are
/// host addresses.
///
/// # Errors
/// The first value found that breaks the rule.
pub(crate) fn check(func: &Function, addresses: usize) -> Result<(), LiveAddress> {
    let Some(suspects) = suspects(func, addresses) else { return Ok(()) };
    let cfg = ControlFlowGraph::with_function(func);
    let live_in = live_in(func, &cfg, &suspects);
    for block in func.layout.blocks() {
        let mut live = live_out(&cfg, &live_in, block);
        for inst in func.layout.block_insts(block).rev() {
            // What a branch takes along is used after the call that it ends.
            use_branch_args(func, inst, &suspects, &mut live);
            for result in func.dfg.inst_results(inst) {
                live.remove(result);
            }
            if func.dfg.insts[inst].opcode().is_call()
                && let Some(value) = live.iter().min().copied()
            {
                return Err(LiveAddress { value, call: func.dfg.display_inst(inst).to_string() });
            }
            use_values(func, inst, &suspects, &mut live);
        }
    }
    Ok(())
}

/// All values that are or derive from a host address; `None` if there are none.
fn suspects(func: &Function, addresses: usize) -> Option<EntitySet<Value>> {
    let entry = func.layout.entry_block().expect("a function has code");
    let mut suspects = EntitySet::with_capacity(func.dfg.num_values());
    for param in &func.dfg.block_params(entry)[..addresses] {
        suspects.insert(*param);
    }
    let mut passed = EntitySet::with_capacity(func.dfg.num_blocks());
    // Values flow along block parameters too: repeat while one of a block that
    // has been passed is added.
    loop {
        let mut again = false;
        passed.clear();
        for block in func.layout.blocks() {
            passed.insert(block);
            for inst in func.layout.block_insts(block) {
                if is_source(func, inst) || derives(func, inst, &suspects) {
                    for result in func.dfg.inst_results(inst) {
                        suspects.insert(*result);
                    }
                }
                let data = &func.dfg.insts[inst];
                if !data.opcode().is_branch() && !data.opcode().is_call() {
                    continue;
                }
                let tables = &func.dfg.jump_tables;
                for call in data.branch_destination(tables, &func.dfg.exception_tables) {
                    let target = call.block(&func.dfg.value_lists);
                    let params = func.dfg.block_params(target);
                    for (arg, param) in call.args(&func.dfg.value_lists).zip(params) {
                        if arg.as_value().is_some_and(|arg| suspects.contains(arg)) {
                            again |= suspects.insert(*param) && passed.contains(target);
                        }
                    }
                }
            }
        }
        if !again {
            return (!suspects.is_empty()).then_some(suspects);
        }
    }
}

fn is_source(func: &Function, inst: Inst) -> bool {
    let data = &func.dfg.insts[inst];
    match data.opcode() {
        Opcode::GetPinnedReg
        | Opcode::GetFramePointer
        | Opcode::GetStackPointer
        | Opcode::GetReturnAddress
        | Opcode::SymbolValue
        | Opcode::TlsValue
        | Opcode::FuncAddr
        | Opcode::StackAddr => true,
        opcode if opcode.can_load() && !opcode.is_call() => {
            let region = data
                .memflags()
                .and_then(|flags| func.dfg.mem_flags[flags].alias_region())
                .map(|region| func.dfg.alias_regions[region].user_id);
            let wide = func
                .dfg
                .inst_results(inst)
                .iter()
                .any(|value| func.dfg.value_type(*value) == types::I64);
            wide && opcode == Opcode::Load && region == Some(Region::Link.id())
        }
        _ => false,
    }
}

/// Whether the results carry what a suspect operand carries.
fn derives(func: &Function, inst: Inst, suspects: &EntitySet<Value>) -> bool {
    let opcode = func.dfg.insts[inst].opcode();
    let hides =
        opcode.can_load() || opcode.is_call() || matches!(opcode, Opcode::Icmp | Opcode::Fcmp);
    !hides && func.dfg.inst_args(inst).iter().any(|arg| suspects.contains(*arg))
}

/// A set of values; few of all there are.
type Live = HashSet<Value, BuildHasherDefault<NumberHasher>>;

/// A set of values for each block.
type LiveSets = SecondaryMap<Block, Live>;

/// A hash of numbers that count up.
#[derive(Default)]
struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32(u32::from(*byte));
        }
    }

    fn write_u32(&mut self, number: u32) {
        // An odd constant near 2^64 divided by the golden ratio spreads them.
        self.0 = (self.0.rotate_left(5) ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// For each block, the suspects that are live at its start.
fn live_in(func: &Function, cfg: &ControlFlowGraph, suspects: &EntitySet<Value>) -> LiveSets {
    let mut live_in = LiveSets::new();
    let mut work: Vec<Block> = func.layout.blocks().collect();
    while let Some(block) = work.pop() {
        let mut live = live_out(cfg, &live_in, block);
        for inst in func.layout.block_insts(block).rev() {
            for result in func.dfg.inst_results(inst) {
                live.remove(result);
            }
            use_values(func, inst, suspects, &mut live);
        }
        for param in func.dfg.block_params(block) {
            live.remove(param);
        }
        if live != live_in[block] {
            live_in[block] = live;
            work.extend(cfg.pred_iter(block).map(|pred| pred.block));
        }
    }
    live_in
}

fn live_out(cfg: &ControlFlowGraph, live_in: &LiveSets, block: Block) -> Live {
    cfg.succ_iter(block).flat_map(|next| live_in[next].iter().copied()).collect()
}

fn use_values(func: &Function, inst: Inst, suspects: &EntitySet<Value>, live: &mut Live) {
    live.extend(func.dfg.inst_values(inst).filter(|value| suspects.contains(*value)));
}

fn use_branch_args(func: &Function, inst: Inst, suspects: &EntitySet<Value>, live: &mut Live) {
    let data = &func.dfg.insts[inst];
    if !data.opcode().is_call() || !data.opcode().is_terminator() {
        return;
    }
    for call in data.branch_destination(&func.dfg.jump_tables, &func.dfg.exception_tables) {
        let args = call.args(&func.dfg.value_lists).filter_map(|arg| arg.as_value());
        live.extend(args.filter(|arg| suspects.contains(*arg)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cranelift_codegen::cursor::{Cursor, FuncCursor};
    use cranelift_codegen::ir::{
        AbiParam, BlockArg, BlockCall, ExceptionTableData, ExceptionTableItem, InstBuilder,
        Signature,
    };
    use cranelift_codegen::isa::CallConv;

    /// A function that reads the base, calls, and then uses what `use_after`
    /// makes of it.
    fn function(reread: bool) -> Function {
        let mut func = Function::new();
        let block = func.dfg.make_block();
        let callee = Signature::new(CallConv::Tail);
        let callee = func.import_signature(callee);
        func.signature.returns.push(AbiParam::new(types::I64));
        let mut cursor = FuncCursor::new(&mut func);
        cursor.insert_block(block);
        let base = cursor.ins().get_pinned_reg(types::I64);
        let derived = cursor.ins().iadd(base, base);
        let target = cursor.ins().iconst(types::I64, 0);
        cursor.ins().call_indirect(callee, target, &[]);
        let after = if reread { cursor.ins().get_pinned_reg(types::I64) } else { derived };
        cursor.ins().return_(&[after]);
        func
    }

    #[test]
    fn an_address_kept_across_a_call_is_found() {
        let error = check(&function(false), 0).unwrap_err();
        assert!(error.to_string().contains("live across the call"), "{error}");
    }

    #[test]
    fn reading_the_base_again_is_accepted() {
        assert_eq!(check(&function(true), 0), Ok(()));
    }

    /// What a function does with the base that it read before a `try_call`.
    #[derive(Clone, Copy, PartialEq)]
    enum Use {
        Nowhere,
        /// Returned where the call returned.
        Normal,
        /// Returned from the landing pad.
        Landing,
        /// Taken along to the landing pad.
        Argument,
    }

    fn function_that_catches(used: Use) -> Function {
        let mut func = Function::new();
        let [block, normal, landing] = std::array::from_fn(|_| func.dfg.make_block());
        let argument = func.dfg.append_block_param(landing, types::I64);
        let callee = func.import_signature(Signature::new(CallConv::Tail));
        func.signature.returns.push(AbiParam::new(types::I64));
        let mut cursor = FuncCursor::new(&mut func);
        cursor.insert_block(block);
        let base = cursor.ins().get_pinned_reg(types::I64);
        let target = cursor.ins().iconst(types::I64, 0);
        let pool = &mut cursor.func.dfg.value_lists;
        let taken_along = match used {
            Use::Argument => BlockArg::Value(base),
            _ => BlockArg::TryCallExn(0),
        };
        let handler = ExceptionTableItem::Default(BlockCall::new(landing, [taken_along], pool));
        let table = ExceptionTableData::new(callee, BlockCall::new(normal, [], pool), [handler]);
        let table = cursor.func.dfg.exception_tables.push(table);
        cursor.ins().try_call_indirect(target, &[], table);
        for (block, here) in [(normal, Use::Normal), (landing, Use::Landing)] {
            cursor.insert_block(block);
            let again = cursor.ins().get_pinned_reg(types::I64);
            let result = match block {
                _ if used == here => base,
                block if block == landing && used == Use::Argument => argument,
                _ => again,
            };
            cursor.ins().return_(&[result]);
        }
        func
    }

    #[test]
    fn an_address_kept_across_a_call_that_throws_is_found() {
        for used in [Use::Normal, Use::Landing, Use::Argument] {
            let error = check(&function_that_catches(used), 0).unwrap_err();
            assert!(error.to_string().contains("live across the call"), "{error}");
        }
        assert_eq!(check(&function_that_catches(Use::Nowhere), 0), Ok(()));
    }
}
