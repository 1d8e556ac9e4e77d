//! Calls, and the services of the runtime.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{AbiParam, Block, BlockArg, InstBuilder, Signature, Value, types};
use cranelift_codegen::isa::CallConv;
use pagefork_layout::code::descriptor;
use pagefork_layout::link::{self, Service, activation, function_import};
use pagefork_layout::module::FuncType;
use pagefork_layout::state::result_cells;
use pagefork_layout::trap::TrapCode;
use wasmparser::Operator;

use super::address::AliasClass;
use super::{Symbol, Translator, direct_signature, ir_type, signature};

/// What a call through a reference calls.
struct Callee {
    reference: Value,
    /// The canonical type that the call expects.
    ty: u32,
    /// Whether validation has found the reference to be of that type.
    typed: bool,
}

impl<'a> Translator<'a> {
    pub(super) fn call(&mut self, op: &Operator<'_>) -> bool {
        match op {
            Operator::Call { function_index } => {
                let ty = self.module.info.function_type(*function_index);
                let args = self.pop_many(ty.params.len());
                let imported = *function_index < self.module.info.imported_functions;
                let in_registers = match imported {
                    true => self.call_import(*function_index, ty, &args),
                    false => {
                        let callee = self.symbol(self.callee(*function_index));
                        self.call_function(callee, &args)
                    }
                };
                self.forget_addresses();
                self.push_results(in_registers, ty);
            }
            Operator::ReturnCall { function_index } => {
                let ty = self.module.info.function_type(*function_index);
                let args = self.pop_many(ty.params.len());
                let callee = self.symbol(self.callee(*function_index));
                self.b.ins().return_call(callee, &args);
                self.unreachable();
            }
            Operator::CallIndirect { type_index, table_index } => {
                let callee = self.table_callee(*type_index, *table_index);
                self.call_reference(&callee);
            }
            Operator::ReturnCallIndirect { type_index, table_index } => {
                let callee = self.table_callee(*type_index, *table_index);
                self.return_call_reference(&callee);
            }
            Operator::CallRef { type_index } => {
                let callee = self.typed_callee(*type_index);
                self.call_reference(&callee);
            }
            Operator::ReturnCallRef { type_index } => {
                let callee = self.typed_callee(*type_index);
                self.return_call_reference(&callee);
            }
            _ => return false,
        }
        true
    }

    /// Calls an import: directly, if the host has a thunk for that, else through its stub.
    fn call_import(&mut self, index: u32, ty: &FuncType, args: &[Value]) -> Vec<Value> {
        let stub = self.symbol(self.callee(index));
        // Where an exception is caught, Cranelift would rely on registers that the thunk, a
        // System V function, saves; but when an exception is thrown it does not return.
        if !function_import::is_direct(ty) || self.catches_here() {
            return self.call_function(stub, args);
        }
        let after = self.b.create_block();
        for result in &ty.results {
            self.b.append_block_param(after, ir_type(*result));
        }
        let (results, otherwise) = self.call_directly(index, ty, args);
        self.jump_with(results, after);

        self.open_block(otherwise);
        let results = self.call_function(stub, args);
        self.jump_with(results, after);

        self.open_block(after);
        self.b.block_params(after).to_vec()
    }

    /// Calls an import directly, if the host has a thunk for that: its results, and the block
    /// for when it has none.
    pub(crate) fn call_directly(
        &mut self,
        index: u32,
        ty: &FuncType,
        args: &[Value],
    ) -> (Vec<Value>, Block) {
        let (direct, otherwise) = (self.b.create_block(), self.b.create_block());
        self.b.set_cold_block(otherwise);
        let record = index * function_import::SIZE;
        let imports = self.link_word(types::I64, link::FUNCTION_IMPORTS);
        let thunk = self.host_word(imports, record + function_import::THUNK);
        self.b.ins().brif(thunk, direct, &[], otherwise, &[]);

        self.open_block(direct);
        let record = self.b.ins().iadd_imm_s(imports, i64::from(record));
        let signature = self.b.import_signature(direct_signature(ty));
        let args: Vec<Value> = [record].into_iter().chain(args.iter().copied()).collect();
        let call = self.b.ins().call_indirect(signature, thunk, &args);
        (self.b.inst_results(call)[1..].to_vec(), otherwise)
    }

    /// What an indirect call through a table calls.
    fn table_callee(&mut self, type_index: u32, table: u32) -> Callee {
        let index = self.pop();
        let place = self.element_place(table, index);
        let reference = self.load_element(table, place);
        let ty = self.module.canonical_types[type_index as usize];
        Callee { reference, ty, typed: false }
    }

    /// What a call of a typed reference calls; traps if it is null.
    fn typed_callee(&mut self, type_index: u32) -> Callee {
        let reference = self.pop();
        let null = self.b.ins().icmp_imm_u(IntCC::Equal, reference, 0);
        self.trap_if(null, TrapCode::NullFunctionReference);
        let ty = self.module.canonical_types[type_index as usize];
        Callee { reference, ty, typed: true }
    }

    /// Calls a function reference: one of this instance through its descriptor,
    /// any other through the stub for foreign references.
    fn call_reference(&mut self, callee: &Callee) {
        let (reference, canonical_type) = (callee.reference, callee.ty);
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

        self.open_block(foreign);
        let stub = self.symbol(Symbol::Foreign(canonical_type));
        let mut foreign_args = vec![reference];
        foreign_args.extend(&args);
        let results = self.call_function(stub, &foreign_args);
        self.jump_with(results, after);

        self.open_block(own);
        let code = self.own_code(callee);
        let signature = self.b.import_signature(signature);
        let results = self.call_code(signature, code, &args);
        self.jump_with(results, after);

        self.open_block(after);
        self.forget_addresses();
        let in_registers = self.b.block_params(after).to_vec();
        self.push_results(in_registers, ty);
    }

    /// Calls a function reference and returns what it returns.
    fn return_call_reference(&mut self, callee: &Callee) {
        let (reference, canonical_type) = (callee.reference, callee.ty);
        self.called_types.insert(canonical_type);
        let ty: &'a FuncType = &self.module.info.types[canonical_type as usize];
        let args = self.pop_many(ty.params.len());
        let (own, foreign) = (self.b.create_block(), self.b.create_block());
        self.b.set_cold_block(foreign);
        let ordinal = self.b.ins().ushr_imm_u(reference, 32);
        self.b.ins().brif(ordinal, foreign, &[], own, &[]);

        self.open_block(foreign);
        let stub = self.symbol(Symbol::Foreign(canonical_type));
        let mut foreign_args = vec![reference];
        foreign_args.extend(&args);
        self.b.ins().return_call(stub, &foreign_args);

        self.open_block(own);
        let code = self.own_code(callee);
        let signature = self.b.import_signature(signature(ty));
        self.b.ins().return_call_indirect(signature, code, &args);
        self.unreachable();
    }

    /// The code of a reference to this instance's own function, or to null, if
    /// it is of the right type; traps otherwise.
    fn own_code(&mut self, callee: &Callee) -> Value {
        let reference = callee.reference;
        let descriptors = self.link_word(types::I64, link::DESCRIPTORS);
        let distance = self.b.ins().imul_imm_u(reference, i64::from(descriptor::SIZE));
        let entry = self.b.ins().iadd(descriptors, distance);
        if !callee.typed {
            self.check_own_type(entry, callee);
        }
        let flags = self.flags(AliasClass::Link);
        let field = self.descriptor_distance() + descriptor::CODE;
        let distance = self.b.ins().sload32(flags, entry, field as i32);
        self.b.ins().iadd(descriptors, distance)
    }

    /// Traps if the function with this descriptor is not of the type expected.
    fn check_own_type(&mut self, entry: Value, callee: &Callee) {
        let flags = self.flags(AliasClass::Link);
        let actual = self.b.ins().load(types::I32, flags, entry, descriptor::TYPE as i32);
        let differs = self.b.ins().icmp_imm_u(IntCC::NotEqual, actual, i64::from(callee.ty));
        let (mismatch, matches) = (self.b.create_block(), self.b.create_block());
        self.b.set_cold_block(mismatch);
        self.b.ins().brif(differs, mismatch, &[], matches, &[]);

        self.open_block(mismatch);
        let null = self.b.ins().icmp_imm_u(IntCC::Equal, callee.reference, 0);
        self.trap_if(null, TrapCode::IndirectCallToNull);
        self.trap(TrapCode::BadSignature);

        self.open_block(matches);
    }

    fn jump_with(&mut self, results: Vec<Value>, after: Block) {
        let results: Vec<BlockArg> = results.into_iter().map(BlockArg::Value).collect();
        self.b.ins().jump(after, &results);
    }

    /// Puts the results of a call on the stack.
    fn push_results(&mut self, in_registers: Vec<Value>, ty: &FuncType) {
        let mut in_registers = in_registers.into_iter();
        for (ty, cell) in ty.results.iter().zip(result_cells(&ty.results)) {
            self.note_type(*ty);
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
