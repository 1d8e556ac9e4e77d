//! The proof that suspended frames can be moved: in the optimised IR of a
//! function, no value that is or derives from a host address is live across a
//! call. A guest is suspended inside calls only, so what is live in its frames
//! then means the same wherever the slot and the code lie.
//!
//! Host addresses enter a function through a few instructions (the pinned
//! register, addresses of code, of the stack) and as 64-bit words loaded from
//! the link zone and what it leads to. Everything computed from one is suspect,
//! but for the outcome of a comparison. Loading from a suspect address is fine.
//!
//! Cost: a few steps for each instruction, operand and edge, however long values live. Each place
//! has an *epoch*, which is another one after every call, and where paths with different epochs
//! meet: what a static single assignment form would name a variable that every call assigns. A
//! value dominates its uses, so no call lies between it and a use exactly if both have one epoch.

use cranelift_codegen::entity::packed_option::PackedOption;
use cranelift_codegen::entity::{EntitySet, SecondaryMap};
use cranelift_codegen::flowgraph::ControlFlowGraph;
use cranelift_codegen::ir::{Block, Function, Inst, Opcode, Value, types};
use cranelift_codegen::traversals::Dfs;

use crate::translate::address::AliasClass;

/// A value that would be wrong after a move.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LiveAddress {
    value: Value,
    user: String,
}

impl std::fmt::Display for LiveAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "host address {} is live across a call: `{}` uses it", self.value, self.user)
    }
}

/// Checks one function after optimisation, whose first `addresses` parameters are
/// host addresses.
///
/// # Errors
/// The first value found that breaks the rule.
pub(crate) fn check(func: &Function, addresses: usize) -> Result<(), LiveAddress> {
    let Some(suspects) = suspects(func, addresses) else { return Ok(()) };
    let epochs = Epochs::new(func);
    let mut made: SecondaryMap<Value, Epoch> = SecondaryMap::with_capacity(func.dfg.num_values());
    for &block in &epochs.order {
        let mut now = epochs.at_start[block];
        for &param in func.dfg.block_params(block) {
            made[param] = now;
        }
        for inst in func.layout.block_insts(block) {
            let check = |value: Value, now: Epoch| match suspects.contains(value)
                && made[value] != now
            {
                true => Err(LiveAddress { value, user: func.dfg.display_inst(inst).to_string() }),
                false => Ok(()),
            };
            let data = &func.dfg.insts[inst];
            func.dfg.inst_values(inst).try_for_each(|value| check(value, now))?;
            if data.opcode().is_call() {
                now = Epoch::After(inst);
                // What a call that ends a block takes along is used after it.
                for call in
                    data.branch_destination(&func.dfg.jump_tables, &func.dfg.exception_tables)
                {
                    let mut args = call.args(&func.dfg.value_lists);
                    args.try_for_each(|arg| arg.as_value().map_or(Ok(()), |arg| check(arg, now)))?;
                }
            }
            for &result in func.dfg.inst_results(inst) {
                made[result] = now;
            }
        }
    }
    Ok(())
}

/// Names the calls that were the last on the way to a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Epoch {
    /// There was none since the function was entered.
    #[default]
    Entry,
    After(Inst),
    /// Ways with different ones meet at the start of this block.
    Met(Block),
}

/// The epoch of each block.
struct Epochs {
    /// The blocks that can be reached, each after all that lead to it but for loops.
    order: Vec<Block>,
    at_start: SecondaryMap<Block, Epoch>,
}

impl Epochs {
    fn new(func: &Function) -> Self {
        let cfg = ControlFlowGraph::with_function(func);
        let mut order: Vec<Block> = Dfs::new().post_order_iter(func).collect();
        order.reverse();
        let mut position: SecondaryMap<Block, u32> = SecondaryMap::new();
        for (&block, number) in order.iter().zip(1..) {
            position[block] = number;
        }
        let mut last_call: SecondaryMap<Block, PackedOption<Inst>> = SecondaryMap::new();
        for &block in &order {
            let mut calls = func.layout.block_insts(block).rev();
            let call = calls.find(|inst| func.dfg.insts[*inst].opcode().is_call());
            last_call[block] = call.into();
        }
        let calls = loops_with_calls(&cfg, &order, &position, &last_call);

        let mut at_start: SecondaryMap<Block, Epoch> = SecondaryMap::new();
        let mut at_end: SecondaryMap<Block, Epoch> = SecondaryMap::new();
        for &block in &order {
            let earlier = |pred: &Block| (1..position[block]).contains(&position[*pred]);
            let mut before =
                cfg.pred_iter(block).map(|pred| pred.block).filter(earlier).map(|b| at_end[b]);
            let first = before.next().unwrap_or_default();
            let differ = calls.contains(block) || before.any(|other| other != first);
            at_start[block] = if differ { Epoch::Met(block) } else { first };
            at_end[block] = last_call[block].expand().map_or(at_start[block], Epoch::After);
        }
        Self { order, at_start }
    }
}

/// The blocks at which loops start that contain a call. Inner loops are looked at first; all
/// blocks of one then count as a single one, so that each is looked at once.
fn loops_with_calls(
    cfg: &ControlFlowGraph,
    order: &[Block],
    position: &SecondaryMap<Block, u32>,
    last_call: &SecondaryMap<Block, PackedOption<Inst>>,
) -> EntitySet<Block> {
    let mut with_calls = EntitySet::new();
    // The start of the loop that a block was found to be in; for the start of a loop within
    // others, that of one of those.
    let mut around: SecondaryMap<Block, PackedOption<Block>> = SecondaryMap::new();
    let mut work = Vec::new();
    for &start in order.iter().rev() {
        let preds = |block| cfg.pred_iter(block).map(|pred| pred.block);
        work.extend(preds(start).filter(|pred| position[*pred] >= position[start]));
        if work.is_empty() {
            continue;
        }
        let mut call = last_call[start].is_some();
        while let Some(block) = work.pop() {
            let block = outermost(&mut around, block);
            if block != start && position[block] != 0 {
                around[block] = start.into();
                call |= last_call[block].is_some() || with_calls.contains(block);
                work.extend(preds(block));
            }
        }
        if call {
            with_calls.insert(start);
        }
    }
    with_calls
}

/// The start of the outermost loop around a block that is known so far; the block itself if it
/// is in none.
fn outermost(around: &mut SecondaryMap<Block, PackedOption<Block>>, mut block: Block) -> Block {
    while let Some(next) = around[block].expand() {
        // The ways are made shorter as they are gone.
        if let Some(further) = around[next].expand() {
            around[block] = further.into();
        }
        block = next;
    }
    block
}

/// All values that are or derive from a host address; `None` if there are none.
fn suspects(func: &Function, addresses: usize) -> Option<EntitySet<Value>> {
    let entry = func.layout.entry_block().expect("a function has code");
    let mut flow = Flow::default();
    let mut found = func.dfg.block_params(entry)[..addresses].to_vec();
    for block in func.layout.blocks() {
        for inst in func.layout.block_insts(block) {
            let results = func.dfg.inst_results(inst);
            if is_source(func, inst) {
                found.extend(results);
            } else if !hides(func, inst) {
                for &result in results {
                    func.dfg.inst_args(inst).iter().for_each(|arg| flow.add(*arg, result));
                }
            }
            let data = &func.dfg.insts[inst];
            if !data.opcode().is_branch() && !data.opcode().is_call() {
                continue;
            }
            for call in data.branch_destination(&func.dfg.jump_tables, &func.dfg.exception_tables) {
                let params = func.dfg.block_params(call.block(&func.dfg.value_lists));
                for (arg, param) in call.args(&func.dfg.value_lists).zip(params) {
                    if let Some(arg) = arg.as_value() {
                        flow.add(arg, *param);
                    }
                }
            }
        }
    }
    let mut suspects = EntitySet::with_capacity(func.dfg.num_values());
    while let Some(value) = found.pop() {
        if suspects.insert(value) {
            found.extend(flow.from(value));
        }
    }
    (!suspects.is_empty()).then_some(suspects)
}

/// Which values carry what others carry.
#[derive(Default)]
struct Flow {
    /// For each value its last edge; edges are counted from 1.
    last: SecondaryMap<Value, u32>,
    /// Where each edge leads to, and the edge before it of the same value.
    edges: Vec<(Value, u32)>,
}

impl Flow {
    fn add(&mut self, from: Value, to: Value) {
        self.edges.push((to, self.last[from]));
        self.last[from] = self.edges.len() as u32;
    }

    fn from(&self, value: Value) -> impl Iterator<Item = Value> {
        let edge = |number: u32| number.checked_sub(1).map(|index| self.edges[index as usize]);
        std::iter::successors(edge(self.last[value]), move |(_, before)| edge(*before))
            .map(|(to, _)| to)
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
            wide && opcode == Opcode::Load && region == Some(AliasClass::Link.id())
        }
        _ => false,
    }
}

/// Whether the results do not carry what the operands carry.
fn hides(func: &Function, inst: Inst) -> bool {
    let opcode = func.dfg.insts[inst].opcode();
    opcode.can_load() || opcode.is_call() || matches!(opcode, Opcode::Icmp | Opcode::Fcmp)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cranelift_codegen::cursor::{Cursor, FuncCursor};
    use cranelift_codegen::ir::{
        AbiParam, AliasRegionData, BlockArg, BlockCall, ExceptionTableData, ExceptionTableItem,
        InstBuilder, MemFlagsData, Signature,
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
        assert!(error.to_string().contains("live across a call"), "{error}");
    }

    #[test]
    fn reading_the_base_again_is_accepted() {
        assert_eq!(check(&function(true), 0), Ok(()));
    }

    /// What is used after a direct call of the host, of what led to it.
    #[derive(Clone, Copy, PartialEq, Debug)]
    enum Leads {
        Records,
        Record,
        Thunk,
        Result,
    }

    /// A function that calls the host as imports are called directly: by the thunk in a record,
    /// whose address is an argument.
    fn function_that_calls_directly(used: Leads) -> Function {
        let mut func = Function::new();
        let block = func.dfg.make_block();
        let mut callee = Signature::new(CallConv::SystemV);
        callee.params.push(AbiParam::new(types::I64));
        callee.returns.extend([AbiParam::new(types::I64); 2]);
        let callee = func.import_signature(callee);
        func.signature.returns.push(AbiParam::new(types::I64));
        let description = "the link zone".into();
        let region = AliasRegionData { user_id: AliasClass::Link.id(), description };
        let region = func.dfg.alias_regions.insert(region);
        let flags = MemFlagsData::trusted().with_alias_region(Some(region));
        let mut cursor = FuncCursor::new(&mut func);
        cursor.insert_block(block);
        let base = cursor.ins().get_pinned_reg(types::I64);
        let records = cursor.ins().load(types::I64, flags, base, 16);
        let thunk = cursor.ins().load(types::I64, flags, records, 80);
        let record = cursor.ins().iadd(records, records);
        let call = cursor.ins().call_indirect(callee, thunk, &[record]);
        let result = cursor.func.dfg.inst_results(call)[1];
        cursor.ins().return_(&[match used {
            Leads::Records => records,
            Leads::Record => record,
            Leads::Thunk => thunk,
            Leads::Result => result,
        }]);
        func
    }

    #[test]
    fn what_leads_to_a_direct_call_is_not_used_after_it() {
        for used in [Leads::Records, Leads::Record, Leads::Thunk] {
            let error = check(&function_that_calls_directly(used), 0).unwrap_err();
            assert!(error.to_string().contains("live across a call"), "{used:?}: {error}");
        }
        assert_eq!(check(&function_that_calls_directly(Leads::Result), 0), Ok(()));
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
            assert!(error.to_string().contains("live across a call"), "{error}");
        }
        assert_eq!(check(&function_that_catches(Use::Nowhere), 0), Ok(()));
    }

    /// Nested loops. The base is read at the start of loop number `read` and used at that of loop
    /// number `used`, no farther outside; at the end of loop number `call`, if there is one, a call
    /// is made. Before all loops is -1.
    fn nested_loops(depth: i32, read: i32, used: i32, call: i32) -> Function {
        let mut func = Function::new();
        let callee = func.import_signature(Signature::new(CallConv::Tail));
        let [entry, last] = std::array::from_fn(|_| func.dfg.make_block());
        let loops: Vec<[Block; 2]> =
            (0..depth).map(|_| std::array::from_fn(|_| func.dfg.make_block())).collect();
        let mut cursor = FuncCursor::new(&mut func);
        let mut base = None;
        for number in -1..depth {
            cursor.insert_block(if number < 0 { entry } else { loops[number as usize][0] });
            if number == read {
                base = Some(cursor.ins().get_pinned_reg(types::I64));
            }
            if number == used {
                let flags = cranelift_codegen::ir::MemFlagsData::trusted();
                cursor.ins().load(types::I32, flags, base.unwrap(), 0);
            }
            let inner = loops.get((number + 1) as usize).map(|inner| inner[0]);
            cursor.ins().jump(inner.unwrap_or_else(|| loops[number as usize][1]), &[]);
        }
        for number in (0..depth).rev() {
            let [start, end] = loops[number as usize];
            cursor.insert_block(end);
            let target = cursor.ins().iconst(types::I64, 0);
            if number == call {
                cursor.ins().call_indirect(callee, target, &[]);
            }
            let outside = if number == 0 { last } else { loops[number as usize - 1][1] };
            cursor.ins().brif(target, start, &[], outside, &[]);
        }
        cursor.insert_block(last);
        cursor.ins().return_(&[]);
        func
    }

    #[test]
    fn a_call_in_a_loop_comes_before_all_that_is_in_it() {
        for depth in 1..5 {
            for read in -1..depth {
                for used in read..depth {
                    for call in 0..=depth {
                        let accepted = check(&nested_loops(depth, read, used, call), 0).is_ok();
                        // Each turn of the loop in which it is read reads it again.
                        let outlived = call < depth && call > read && used > read;
                        assert_eq!(accepted, !outlived, "{depth} {read} {used} {call}");
                    }
                }
            }
        }
    }
}
