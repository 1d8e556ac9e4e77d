//! Throwing and catching. Handlers are found by call site: a call from which an
//! exception can come back is a `try_call`, whose other end is the landing pad of
//! the innermost `try_table` around it. The pad gets the exception and asks the
//! runtime, clause by clause, whether it is the one. What no clause wants goes on
//! to the landing pad around, or is thrown again.

use cranelift_codegen::ir::{
    self, Block, BlockArg, BlockCall, ExceptionTable, ExceptionTableData, ExceptionTableItem,
    FuncRef, InstBuilder, SigRef, Value, types,
};
use pagefork_layout::link::Service;
use pagefork_layout::module::{HeapType, ValType};
use pagefork_layout::trap::TrapCode;
use wasmparser::{Catch, Operator, TryTable};

use super::{Symbol, Translator, ir_type};

/// Where exceptions go that leave a call in a `try_table`.
pub(super) struct LandingPad {
    /// Gets the exception as an absolute reference.
    block: Block,
    clauses: Vec<Catch>,
    /// Whether anything goes there.
    reached: bool,
}

/// Stands for every tag.
const ANY_TAG: u32 = u32::MAX;

impl Translator<'_> {
    pub(super) fn exception(&mut self, op: &Operator<'_>) -> bool {
        match op {
            Operator::Throw { tag_index } => {
                let info = self.module.info;
                let ty = &info.types[info.tags[*tag_index as usize] as usize];
                let payload = self.pop_many(ty.params.len());
                let tag = self.b.ins().iconst(types::I64, i64::from(*tag_index));
                self.store_cell(0, tag);
                for (value, cell) in payload.into_iter().zip(1..) {
                    self.store_cell(cell, value);
                }
                self.throw(Service::Throw);
                self.unreachable();
            }
            Operator::ThrowRef => {
                let exception = self.pop();
                let null = self.b.ins().icmp_imm_u(ir::condcodes::IntCC::Equal, exception, 0);
                self.trap_if(null, TrapCode::NullExceptionReference);
                self.throw_again(exception);
                self.unreachable();
            }
            _ => return false,
        }
        true
    }

    /// From here up to [`Self::end_try_table`], exceptions go to its clauses.
    pub(super) fn begin_try_table(&mut self, table: &TryTable) {
        let block = self.b.create_block();
        self.b.append_block_param(block, types::I64);
        self.b.set_cold_block(block);
        let clauses = table.catches.clone();
        self.landing_pads.push(LandingPad { block, clauses, reached: false });
    }

    /// Writes the landing pad of a `try_table` that was closed just now, with the
    /// operand stack `height` values high at its start. The current block is
    /// complete, and so is the landing pad afterwards.
    pub(super) fn end_try_table(&mut self, height: usize) {
        let pad = self.landing_pads.pop().expect("a try_table has a landing pad");
        if !pad.reached {
            return;
        }
        let above = self.stack.split_off(height);
        self.b.switch_to_block(pad.block);
        self.b.seal_block(pad.block);
        self.forget_addresses();
        let exception = self.b.block_params(pad.block)[0];
        let mut all_caught = false;
        for clause in &pad.clauses {
            let (tag, wanted, label) = match *clause {
                Catch::One { tag, label } => (Some(tag), false, label),
                Catch::OneRef { tag, label } => (Some(tag), true, label),
                Catch::All { label } => (None, false, label),
                Catch::AllRef { label } => (None, true, label),
            };
            self.clause(exception, tag, wanted, label);
            self.stack.truncate(height);
            if tag.is_none() {
                // What follows is never asked.
                all_caught = true;
                break;
            }
        }
        if !all_caught {
            match self.landing_pads.last_mut() {
                Some(outer) => {
                    outer.reached = true;
                    let block = outer.block;
                    self.b.ins().jump(block, &[BlockArg::Value(exception)]);
                }
                None => self.throw_again(exception),
            }
        }
        self.stack.extend(above);
    }

    /// Branches to `label` if the exception has this tag, or if any will do. The
    /// current block is the one in which it has another tag.
    fn clause(&mut self, exception: Value, tag: Option<u32>, wanted: bool, label: u32) {
        let number = self.b.ins().iconst(types::I64, i64::from(tag.unwrap_or(ANY_TAG)));
        let wants = self.b.ins().iconst(types::I64, i64::from(wanted));
        self.service(Service::Catch, &[exception, number, wants]);
        let caught = self.load_cell(0, types::I64);
        let other = tag.map(|tag| {
            let (same, other) = (self.b.create_block(), self.b.create_block());
            self.b.ins().brif(caught, same, &[], other, &[]);
            self.b.switch_to_block(same);
            self.b.seal_block(same);
            self.b.seal_block(other);
            let info = self.module.info;
            let ty = &info.types[info.tags[tag as usize] as usize];
            for (ty, cell) in ty.params.iter().zip(1..) {
                let value = self.load_cell(cell, ir_type(*ty));
                self.note_type(*ty);
                self.push(value);
            }
            other
        });
        if wanted {
            self.note_type(ValType::EXNREF);
            self.push(caught);
        }
        self.branch(label);
        if let Some(other) = other {
            self.b.switch_to_block(other);
        }
    }

    /// Throws this exception, from here on. The block ends.
    pub(crate) fn throw_again(&mut self, exception: Value) {
        self.store_cell(0, exception);
        self.throw(Service::Rethrow);
    }

    /// Throws what is in the cells. The block ends.
    fn throw(&mut self, service: Service) {
        let stub = self.symbol(Symbol::Throw);
        let service = self.b.ins().iconst(types::I64, i64::from(service as u32));
        self.call_function(stub, &[service]);
        self.b.ins().trap(ir::TrapCode::unwrap_user(TrapCode::Unreachable as u8));
    }

    /// Calls a function; returns what it returns in registers. Addresses are to be
    /// forgotten then.
    pub(crate) fn call_function(&mut self, callee: FuncRef, args: &[Value]) -> Vec<Value> {
        let signature = self.b.func.dfg.ext_funcs[callee].signature;
        match self.exception_table(signature) {
            None => {
                let call = self.b.ins().call(callee, args);
                self.b.inst_results(call).to_vec()
            }
            Some((table, next)) => {
                self.b.ins().try_call(callee, args, table);
                self.go_on_in(next)
            }
        }
    }

    /// Calls the code at an address; returns what it returns in registers.
    /// Addresses are to be forgotten then.
    pub(crate) fn call_code(
        &mut self,
        signature: SigRef,
        code: Value,
        args: &[Value],
    ) -> Vec<Value> {
        match self.exception_table(signature) {
            None => {
                let call = self.b.ins().call_indirect(signature, code, args);
                self.b.inst_results(call).to_vec()
            }
            Some((table, next)) => {
                self.b.ins().try_call_indirect(code, args, table);
                self.go_on_in(next)
            }
        }
    }

    /// Notes a type of which the function holds values. What is live across a
    /// `try_call` is in the frame, and in no register that a callee saves
    /// somewhere: so a function that holds references to exceptions makes no
    /// other calls, and the runtime finds them when it looks for what is in use.
    pub(super) fn note_type(&mut self, ty: ValType) {
        self.holds_exceptions |= matches!(ty, ValType::Ref(ty) if ty.heap == HeapType::Exn);
    }

    /// Whether a call at this place needs an exception table.
    pub(super) fn catches_here(&self) -> bool {
        self.holds_exceptions || !self.landing_pads.is_empty()
    }

    /// What a call that can throw needs, and the block in which a normal return
    /// goes on; `None` if it is a plain call.
    fn exception_table(&mut self, signature: SigRef) -> Option<(ExceptionTable, Block)> {
        if !self.catches_here() {
            return None;
        }
        let pad = self.landing_pads.last_mut().map(|pad| {
            pad.reached = true;
            pad.block
        });
        Some(self.new_exception_table(signature, pad))
    }

    /// An exception table with one handler, or none.
    pub(crate) fn new_exception_table(
        &mut self,
        signature: SigRef,
        pad: Option<Block>,
    ) -> (ExceptionTable, Block) {
        let next = self.b.create_block();
        let results: Vec<ir::Type> = self.b.func.dfg.signatures[signature]
            .returns
            .iter()
            .map(|result| result.value_type)
            .collect();
        for ty in &results {
            self.b.append_block_param(next, *ty);
        }
        let returned = (0..results.len() as u32).map(BlockArg::TryCallRet);
        let dfg = &mut self.b.func.dfg;
        let normal = BlockCall::new(next, returned, &mut dfg.value_lists);
        let handler = pad.map(|pad| {
            let call = BlockCall::new(pad, [BlockArg::TryCallExn(0)], &mut dfg.value_lists);
            ExceptionTableItem::Default(call)
        });
        let table = ExceptionTableData::new(signature, normal, handler);
        (dfg.exception_tables.push(table), next)
    }

    /// Goes on where a `try_call` returned normally; its results.
    pub(crate) fn go_on_in(&mut self, next: Block) -> Vec<Value> {
        self.b.switch_to_block(next);
        self.b.seal_block(next);
        self.b.block_params(next).to_vec()
    }
}
