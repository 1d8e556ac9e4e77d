use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{AbiParam, BlockArg, Inst, InstBuilder, Signature, Value, types};
use cranelift_codegen::isa::CallConv;
use pagefork_layout::code::descriptor;
use pagefork_layout::link::{self, Service, activation};
use pagefork_layout::module::FuncType;
use pagefork_layout::state::result_cells;
use pagefork_layout::trap::TrapCode;
use wasmparser::Operator;

use super::address::Region;
use super::{Symbol, Translator, ir_type, signature};

impl<'a> Translator<'a> {
    pub(super) fn call(&mut self, op: &Operator<'_>) -> bool {
        match op {
            Operator::Call { function_index } => {
                let ty = self.module.info.function_type(*function_index);
                let args = self.pop_many(ty.params.len());
                let callee = self.symbol(Symbol::Function(*function_index));
                let call = self.b.ins().call(callee, &args);
                self.take_results(call, ty);
            }
            Operator::CallIndirect { type_index, table_index } => {
                let ty = self.module.canonical_types[*type_index as usize];
                let index = self.pop();
                let place = self.element_place(*table_index, index);
                let reference = self.load_element(*table_index, place);
                self.call_reference(reference, ty);
            }
            _ => return false,
        }
        true
    }

    /// Calls a function reference: one of this instance through its descriptor,
    /// any other through the stub for foreign references.
    fn call_reference(&mut self, reference: Value, canonical_type: u32) {
        self.called_types.insert(canonical_type);
        let ty: &'a FuncType = &self.module.info.types[canonical_type as usize];
        let args = self.pop_many(ty.params.len());
        let (own, foreign, after) =
            (self.b.create_block(), self.b.create_block(), self.b.create_block());
        self.b.set_cold_block(foreign);
        let signature = signature(ty);
        for result in &signature.returns {
            self.b.append_block_param(after, result.value_type);
        }

        let ordinal = self.b.ins().ushr_imm_u(reference, 32);
        self.b.ins().brif(ordinal, foreign, &[], own, &[]);
        let here = self.b.current_block();

        self.b.switch_to_block(foreign);
        self.b.seal_block(foreign);
        let stub = self.symbol(Symbol::Foreign(canonical_type));
        let mut foreign_args = vec![reference];
        foreign_args.extend(&args);
        let call = self.b.ins().call(stub, &foreign_args);
        self.jump_with_results(call, after);

        self.continue_from(here, own);
        let code = self.own_code(reference, canonical_type);
        let signature = self.b.import_signature(signature);
        let call = self.b.ins().call_indirect(signature, code, &args);
        self.jump_with_results(call, after);

        self.forget_addresses();
        self.b.switch_to_block(after);
        self.b.seal_block(after);
        let in_registers = self.b.block_params(after).to_vec();
        self.push_results(in_registers, ty);
    }

    /// The code of a reference to this instance's own function, or to null, if
    /// it is of the right type; traps otherwise.
    fn own_code(&mut self, reference: Value, canonical_type: u32) -> Value {
        let descriptors = self.link_word(types::I64, link::DESCRIPTORS);
        let distance = self.b.ins().imul_imm_u(reference, i64::from(descriptor::SIZE));
        let entry = self.b.ins().iadd(descriptors, distance);
        let flags = self.flags(Region::Link);
        let actual = self.b.ins().load(types::I32, flags, entry, descriptor::TYPE as i32);
        let differs = self.b.ins().icmp_imm_u(IntCC::NotEqual, actual, i64::from(canonical_type));
        let (mismatch, matches) = (self.b.create_block(), self.b.create_block());
        self.b.set_cold_block(mismatch);
        self.b.ins().brif(differs, mismatch, &[], matches, &[]);
        let here = self.b.current_block();

        self.b.switch_to_block(mismatch);
        self.b.seal_block(mismatch);
        let null = self.b.ins().icmp_imm_u(IntCC::Equal, reference, 0);
        self.trap_if(null, TrapCode::IndirectCallToNull);
        self.trap(TrapCode::BadSignature);

        self.continue_from(here, matches);
        let flags = self.flags(Region::Link);
        let distance = self.b.ins().sload32(flags, entry, descriptor::CODE as i32);
        self.b.ins().iadd(descriptors, distance)
    }

    fn jump_with_results(&mut self, call: Inst, after: cranelift_codegen::ir::Block) {
        let results: Vec<BlockArg> =
            self.b.inst_results(call).iter().copied().map(BlockArg::Value).collect();
        self.b.ins().jump(after, &results);
    }

    /// Puts the results of a call just made on the stack.
    fn take_results(&mut self, call: Inst, ty: &FuncType) {
        self.forget_addresses();
        let in_registers = self.b.inst_results(call).to_vec();
        self.push_results(in_registers, ty);
    }

    fn push_results(&mut self, in_registers: Vec<Value>, ty: &FuncType) {
        let mut in_registers = in_registers.into_iter();
        for (ty, cell) in ty.results.iter().zip(result_cells(&ty.results)) {
            let value = match cell {
                Some(cell) => self.load_cell(cell, ir_type(*ty)),
                None => in_registers.next().expect("as many as the signature says"),
            };
            self.push(value);
        }
    }

    /// Asks a service of the runtime. Arguments narrower than 64 bits are
    /// zero-extended; its result, where it has one, is in cell 0.
    pub(super) fn service(&mut self, service: Service, args: &[Value]) {
        for (cell, value) in args.iter().enumerate() {
            self.store_cell(cell as u32, *value);
        }
        let index = self.b.ins().iconst(types::I64, i64::from(service as u32));
        self.host_call(index);
    }

    /// Calls the host function or service `index` with what is in the cells,
    /// which holds the results afterwards.
    pub(crate) fn host_call(&mut self, index: Value) {
        let thunk = self.activation_word(activation::HOST_CALL);
        let cells = self.cells_address();
        let mut signature = Signature::new(CallConv::SystemV);
        signature.params.extend([AbiParam::new(types::I64); 2]);
        let signature = self.b.import_signature(signature);
        self.b.ins().call_indirect(signature, thunk, &[index, cells]);
        self.forget_addresses();
    }
}
