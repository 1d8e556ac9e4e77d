//! The small functions around those of the module.

use cranelift_codegen::Context;
use cranelift_codegen::ir::{
    self, AbiParam, InstBuilder, Signature, UserExternalName, UserFuncName, Value, types,
};
use cranelift_codegen::isa::CallConv;
use cranelift_frontend::FunctionBuilder;
use pagefork_layout::link::{self, Service, activation, function_import};
use pagefork_layout::module::FuncType;
use pagefork_layout::state::result_cells;
use pagefork_layout::trap::TrapCode;

use crate::translate::{
    ModuleContext, Scratch, Symbol, Translator, bulk_signature, cross_signature, direct_signature,
    foreign_signature, ir_type, signature, throw_signature,
};

/// The function that stands for the import `index`.
pub(crate) fn import(
    module: ModuleContext<'_>,
    index: u32,
    context: &mut Context,
    scratch: &mut Scratch,
) {
    let ty = module.info.function_type(index);
    let canonical_type = module.info.functions[index as usize];
    build(module, signature(ty), context, scratch, |t, args| {
        if function_import::is_direct(ty) {
            let (results, otherwise) = t.call_directly(index, ty, args);
            t.b.ins().return_(&results);
            t.b.switch_to_block(otherwise);
        }
        let imports = t.link_word(types::I64, link::FUNCTION_IMPORTS);
        let record = index * function_import::SIZE;
        let code = t.host_word(imports, record + function_import::CODE);
        let base = t.host_word(imports, record + function_import::BASE);
        call_out(t, canonical_type, code, base, args);
    });
}

/// The function that calls a reference to another instance's or the host's
/// function of a canonical type: the reference comes before the arguments.
pub(crate) fn foreign(
    module: ModuleContext<'_>,
    canonical_type: u32,
    context: &mut Context,
    scratch: &mut Scratch,
) {
    let ty = &module.info.types[canonical_type as usize];
    build(module, foreign_signature(ty), context, scratch, |t, args| {
        t.store_cell(0, args[0]);
        let expected = t.b.ins().iconst(types::I64, i64::from(canonical_type));
        t.store_cell(1, expected);
        let service = t.b.ins().iconst(types::I64, i64::from(Service::Resolve as u32));
        t.host_call(service);
        let code = t.activation_word(activation::RESOLVED + function_import::CODE);
        let base = t.activation_word(activation::RESOLVED + function_import::BASE);
        call_out(t, canonical_type, code, base, &args[1..]);
    });
}

/// The function through which the host enters functions of a canonical type; its
/// only argument is the function's code. Arguments come, and results go, through
/// the cells; what it returns is the address of the store's activation, so that who has
/// entered need not read the header, a page that the guest may never have touched.
pub(crate) fn entry(
    module: ModuleContext<'_>,
    canonical_type: u32,
    context: &mut Context,
    scratch: &mut Scratch,
) {
    let ty = &module.info.types[canonical_type as usize];
    let mut own_signature = Signature::new(CallConv::SystemV);
    own_signature.params.push(AbiParam::new(types::I64));
    own_signature.returns.push(AbiParam::new(types::I64));
    build(module, own_signature, context, scratch, |t, code| {
        let params = ty.params.iter().zip(0..);
        let args: Vec<Value> = params.map(|(ty, i)| t.load_cell(i, ir_type(*ty))).collect();
        let callee = t.b.import_signature(signature(ty));
        let call = t.b.ins().call_indirect(callee, code[0], &args);
        t.forget_addresses();
        let mut in_registers = t.b.inst_results(call).to_vec().into_iter();
        for (i, cell) in result_cells(&ty.results).into_iter().enumerate() {
            // Results beyond the registers are in their cells already.
            if cell.is_none() {
                let value = in_registers.next().expect("as many as the signature says");
                t.store_cell(i as u32, value);
            }
        }
        let activation = t.link_word(types::I64, link::ACTIVATION);
        t.b.ins().return_(&[activation]);
    });
}

/// As [`entry`], for types whose values fit registers: they come after the code, and the result
/// goes after the activation.
pub(crate) fn direct_entry(
    module: ModuleContext<'_>,
    canonical_type: u32,
    context: &mut Context,
    scratch: &mut Scratch,
) {
    let ty = &module.info.types[canonical_type as usize];
    build(module, direct_signature(ty), context, scratch, |t, args| {
        let callee = t.b.import_signature(signature(ty));
        let call = t.b.ins().call_indirect(callee, args[0], &args[1..]);
        t.forget_addresses();
        let activation = t.link_word(types::I64, link::ACTIVATION);
        let results: Vec<Value> =
            [activation].into_iter().chain(t.b.inst_results(call).iter().copied()).collect();
        t.b.ins().return_(&results);
    });
}

/// The function that calls a function of another instance: its code and base come
/// before the arguments, which are absolute.
pub(crate) fn cross(
    module: ModuleContext<'_>,
    canonical_type: u32,
    context: &mut Context,
    scratch: &mut Scratch,
) {
    let ty = &module.info.types[canonical_type as usize];
    build(module, cross_signature(ty), context, scratch, |t, args| {
        call_guest(t, ty, args[0], args[1], &args[2..]);
    });
}

/// The function that asks a service of the runtime which does not return here.
pub(crate) fn throw(module: ModuleContext<'_>, context: &mut Context, scratch: &mut Scratch) {
    build(module, throw_signature(), context, scratch, |t, service| {
        t.host_call(service[0]);
        t.b.ins().trap(ir::TrapCode::unwrap_user(TrapCode::Unreachable as u8));
    });
}

/// The function that traps for one reason.
pub(crate) fn trap(
    module: ModuleContext<'_>,
    code: TrapCode,
    context: &mut Context,
    scratch: &mut Scratch,
) {
    build(module, Signature::new(CallConv::Tail), context, scratch, |t, _| {
        let thunk = t.activation_word(activation::TRAP);
        let mut callee = Signature::new(CallConv::SystemV);
        callee.params.push(AbiParam::new(types::I64));
        let callee = t.b.import_signature(callee);
        let number = t.b.ins().iconst(types::I64, code as i64);
        t.b.ins().call_indirect(callee, thunk, &[number]);
        t.b.ins().trap(ir::TrapCode::unwrap_user(code as u8));
    });
}

/// Calls what a [`function_import`] names, and returns its results.
fn call_out(t: &mut Translator<'_>, canonical_type: u32, code: Value, base: Value, args: &[Value]) {
    let ty = &t.module.info.types[canonical_type as usize];
    // Here a reference without an owner means this instance's; elsewhere not.
    let args: Vec<Value> = ty
        .params
        .iter()
        .zip(args)
        .map(|(ty, arg)| if ty.has_owner() { t.absolute(*arg) } else { *arg })
        .collect();
    let (host, guest) = (t.b.create_block(), t.b.create_block());
    t.b.ins().brif(base, guest, &[], host, &[]);
    t.b.seal_block(host);
    t.b.seal_block(guest);

    t.b.switch_to_block(host);
    for (i, arg) in args.iter().enumerate() {
        t.store_cell(i as u32, *arg);
    }
    t.host_call(code);
    let mut results = Vec::new();
    for (i, (ty, cell)) in ty.results.iter().zip(result_cells(&ty.results)).enumerate() {
        // Results beyond the registers stay in their cells.
        if cell.is_none() {
            results.push(t.load_cell(i as u32, ir_type(*ty)));
        }
    }
    t.b.ins().return_(&results);

    t.b.switch_to_block(guest);
    if t.module.catches {
        // A function that an exception can come back to saves all registers, which
        // calls of the host need not pay for.
        let stub = t.symbol(Symbol::Cross(canonical_type));
        let args: Vec<Value> = [code, base].into_iter().chain(args).collect();
        t.b.ins().return_call(stub, &args);
    } else {
        call_guest(t, ty, code, base, &args);
    }
}

/// Calls a function of another instance, and returns its results. The arguments
/// are absolute.
fn call_guest(t: &mut Translator<'_>, ty: &FuncType, code: Value, base: Value, args: &[Value]) {
    let own_ordinal = t.ordinal();
    t.b.ins().set_pinned_reg(base);
    let callee = t.b.import_signature(signature(ty));
    let in_registers = if t.module.catches {
        let pad = t.b.create_block();
        t.b.append_block_param(pad, types::I64);
        t.b.set_cold_block(pad);
        let (table, next) = t.new_exception_table(callee, Some(pad));
        t.b.ins().try_call_indirect(code, args, table);
        // Exceptions go on in this instance.
        t.b.switch_to_block(pad);
        let exception = t.b.block_params(pad)[0];
        let (activation, _) = t.callee_link();
        return_to(t, activation, own_ordinal);
        t.throw_again(exception);
        t.go_on_in(next)
    } else {
        let call = t.b.ins().call_indirect(callee, code, args);
        t.b.inst_results(call).to_vec()
    };
    let mut in_registers = in_registers.into_iter();
    let (activation, callee_ordinal) = t.callee_link();
    let mut results = Vec::new();
    for (ty, cell) in ty.results.iter().zip(result_cells(&ty.results)) {
        let mut value = match cell {
            Some(cell) => t.load_callee_cell(cell, ir_type(*ty)),
            None => in_registers.next().expect("as many as the signature says"),
        };
        if ty.has_owner() {
            value = t.with_owner(value, callee_ordinal);
        }
        results.push((value, cell));
    }
    return_to(t, activation, own_ordinal);
    let mut returned = Vec::new();
    for (value, cell) in results {
        match cell {
            Some(cell) => t.store_cell(cell, value),
            None => returned.push(value),
        }
    }
    t.b.ins().return_(&returned);
}

/// Goes on in the instance with this ordinal: in the stub's own.
fn return_to(t: &mut Translator<'_>, activation: Value, own_ordinal: Value) {
    let own_base = t.base_of(activation, own_ordinal);
    t.b.ins().set_pinned_reg(own_base);
    t.forget_addresses();
}

/// The function that copies within a memory.
pub(crate) fn copy(
    module: ModuleContext<'_>,
    memory: u32,
    context: &mut Context,
    scratch: &mut Scratch,
) {
    build(module, bulk_signature(), context, scratch, |t, args| t.copy_function(memory, args));
}

/// The function that fills bytes of a memory.
pub(crate) fn fill(
    module: ModuleContext<'_>,
    memory: u32,
    context: &mut Context,
    scratch: &mut Scratch,
) {
    build(module, bulk_signature(), context, scratch, |t, args| t.fill_function(memory, args));
}

/// Makes one function: `body` gets its arguments.
fn build(
    module: ModuleContext<'_>,
    signature: Signature,
    context: &mut Context,
    scratch: &mut Scratch,
    body: impl FnOnce(&mut Translator<'_>, &[Value]),
) {
    context.func.signature = signature;
    context.func.name = UserFuncName::User(UserExternalName::new(u32::MAX, 0));
    let builder = FunctionBuilder::new(&mut context.func, scratch.builder());
    let mut t = Translator::new(module, builder);
    let entry = t.b.current_block().expect("a block is open from the start");
    let args = t.b.block_params(entry).to_vec();
    body(&mut t, &args);
    t.b.seal_all_blocks();
    t.b.finalize(module.isa.frontend_config());
}
