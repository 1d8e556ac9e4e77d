//! One function body to Cranelift IR: a driver that validates each operator,
//! skips what cannot be reached, and hands the rest to the family it belongs to.

/// All addressing: where things of an instance are, seen from compiled code.
pub(crate) mod address;
/// Comparing accesses with the size of their memory.
mod bounds;
/// Two bodies for each function: one that compares, and one that need not.
mod bodies;
/// Blocks, branches and traps.
mod control;
/// Calls, and the services of the runtime.
mod calls;
/// Scalar arithmetic, comparisons and conversions.
mod numeric;
/// Loads, stores and bulk operations of memories.
mod memory;
/// Copies and fills within a memory.
mod bulk;
/// Exceptions: throwing, catching, and calls that they can come from.
mod exceptions;
/// Tables and references.
mod table;
/// Vector operators.
mod simd;
/// What guests pay for what they do.
mod fuel;

use std::collections::{BTreeSet, HashMap};

use cranelift_codegen::Context;
use cranelift_codegen::ir::{
    AbiParam, ExtFuncData, ExternalName, FuncRef, InstBuilder, Signature, SourceLoc, Type,
    UserExternalName, UserFuncName, Value, types,
};
use cranelift_codegen::isa::{CallConv, TargetIsa};
use cranelift_codegen::settings;
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext, Variable};
use pagefork_layout::module::{FuncType, ModuleInfo, ValType};
use pagefork_layout::slot::SlotLayout;
use pagefork_layout::state::result_cells;
use pagefork_layout::trap::TrapCode;
use wasmparser::{BlockType, FuncValidatorAllocations, Operator, OperatorsReader};

use self::address::Addressing;
pub(crate) use self::bodies::BodyKind;
use self::bounds::Covered;
use self::control::Control;
use self::exceptions::LandingPad;
use crate::base::effort::FunctionEffort;
use crate::base::error::CompileError;
use crate::base::options::CompileOptions;
use crate::parse::{DefinedBody, Parsed, heap_type, val_type};

/// What translation needs to know of the module.
#[derive(Clone, Copy)]
pub(crate) struct ModuleContext<'a> {
    pub(crate) info: &'a ModuleInfo,
    pub(crate) canonical_types: &'a [u32],
    pub(crate) layout: &'a SlotLayout,
    pub(crate) options: &'a CompileOptions,
    pub(crate) isa: &'a dyn TargetIsa,
    /// Whether it is noted where code comes from.
    pub(crate) sources: bool,
    /// Whether the machine multiplies and adds with one rounding.
    pub(crate) fused_multiply_add: bool,
    /// Whether a function of the module catches exceptions: known once they are
    /// all translated.
    pub(crate) catches: bool,
}

impl<'a> ModuleContext<'a> {
    pub(crate) fn new(
        parsed: &'a Parsed<'_>,
        layout: &'a SlotLayout,
        options: &'a CompileOptions,
        isa: &'a dyn TargetIsa,
    ) -> Self {
        let has_fma =
            |flag: &settings::Value| flag.name == "has_fma" && flag.as_bool() == Some(true);
        Self {
            info: &parsed.info,
            canonical_types: &parsed.canonical_types,
            layout,
            options,
            isa,
            sources: options.sources || !parsed.debug.dwarf.is_empty(),
            fused_multiply_add: isa.isa_flags().iter().any(has_fma),
            catches: false,
        }
    }
}

/// What code can refer to by name; linked when all code is made.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) enum Symbol {
    /// A function of the index space.
    Function(u32),
    /// Its other body.
    Checked(u32),
    /// The stub that calls a foreign reference of this canonical type.
    Foreign(u32),
    /// The stub that calls a function of this canonical type of another instance.
    Cross(u32),
    /// The stub that throws.
    Throw,
    /// The stub that traps for this reason.
    Trap(TrapCode),
    /// The function that copies within this memory.
    Copy(u32),
    /// The function that fills bytes of this memory.
    Fill(u32),
}

impl Symbol {
    fn to_name(self) -> UserExternalName {
        match self {
            Self::Function(index) => UserExternalName::new(0, index),
            Self::Foreign(ty) => UserExternalName::new(1, ty),
            Self::Trap(code) => UserExternalName::new(2, code as u32),
            Self::Cross(ty) => UserExternalName::new(3, ty),
            Self::Throw => UserExternalName::new(4, 0),
            Self::Copy(memory) => UserExternalName::new(5, memory),
            Self::Fill(memory) => UserExternalName::new(6, memory),
            Self::Checked(index) => UserExternalName::new(7, index),
        }
    }

    /// The symbol with this name; `None` if we gave no such name.
    pub(crate) fn from_name(name: &UserExternalName) -> Option<Self> {
        match name.namespace {
            0 => Some(Self::Function(name.index)),
            1 => Some(Self::Foreign(name.index)),
            2 => Some(Self::Trap(TrapCode::from_number(name.index.try_into().ok()?)?)),
            3 => Some(Self::Cross(name.index)),
            4 => Some(Self::Throw),
            5 => Some(Self::Copy(name.index)),
            6 => Some(Self::Fill(name.index)),
            7 => Some(Self::Checked(name.index)),
            _ => None,
        }
    }
}

/// Buffers that outlive one function.
#[derive(Default)]
pub(crate) struct Scratch {
    builder: FunctionBuilderContext,
    validator: FuncValidatorAllocations,
    /// Buffers of the register allocator.
    pub(crate) registers: regalloc2::Ctx,
}

impl Scratch {
    /// The buffers of the function builder.
    pub(crate) fn builder(&mut self) -> &mut FunctionBuilderContext {
        &mut self.builder
    }
}

/// Validates and translates one body into `context.func`. Returns the canonical
/// types of which it calls references.
pub(crate) fn translate(
    module: ModuleContext<'_>,
    body: &DefinedBody<'_>,
    kind: BodyKind,
    context: &mut Context,
    scratch: &mut Scratch,
    effort: &mut FunctionEffort<'_>,
) -> Result<BTreeSet<u32>, CompileError> {
    let index = body.to_validate.index;
    let allocations = std::mem::take(&mut scratch.validator);
    let to_validate = wasmparser::FuncToValidate {
        resources: body.to_validate.resources.clone(),
        index,
        ty: body.to_validate.ty,
        features: body.to_validate.features,
    };
    let mut validator = to_validate.into_validator(allocations);

    let ty = module.info.function_type(index);
    context.func.signature = signature(ty);
    context.func.name = UserFuncName::User(kind.symbol(index).to_name());
    let builder = FunctionBuilder::new(&mut context.func, &mut scratch.builder);
    let mut t = Translator::new(module, builder);
    t.body_kind = kind;
    t.enter_function(index, ty);

    let mut reader = body.body.get_binary_reader();
    for _ in 0..reader.read_var_u32()? {
        let offset = reader.original_position();
        let count = reader.read_var_u32()?;
        let ty = reader.read()?;
        validator.define_locals(offset, count, ty)?;
        t.declare_locals(count, val_type(module.canonical_types, ty)?);
    }
    reader.set_features(body.to_validate.features);
    let mut operators = OperatorsReader::new(reader);
    while !operators.eof() {
        let (operator, offset) = operators.read_with_offset()?;
        validator.op(offset, &operator)?;
        if module.sources {
            t.b.set_srcloc(SourceLoc::new(offset as u32));
        }
        t.operator(&operator, offset)?;
        effort.operator(&operator, offset, t.open_loops, t.b.func)?;
    }
    operators.finish()?;

    let Translator { mut b, called_types, .. } = t;
    b.seal_all_blocks();
    b.finalize(module.isa.frontend_config());
    scratch.validator = validator.into_allocations();
    Ok(called_types)
}

/// The IR type of a value.
pub(crate) fn ir_type(ty: ValType) -> Type {
    match ty {
        ValType::I32 => types::I32,
        ValType::F32 => types::F32,
        ValType::F64 => types::F64,
        ValType::V128 => types::I8X16,
        _ => types::I64,
    }
}

/// How a function of this type is called inside the store.
pub(crate) fn signature(ty: &FuncType) -> Signature {
    let mut signature = Signature::new(CallConv::Tail);
    signature.params.extend(ty.params.iter().map(|ty| AbiParam::new(ir_type(*ty))));
    let in_register = ty.results.iter().zip(result_cells(&ty.results));
    signature.returns.extend(
        in_register.filter(|(_, cell)| cell.is_none()).map(|(ty, _)| AbiParam::new(ir_type(*ty))),
    );
    signature
}

/// Turns the operators of one function, or the steps of a stub, into IR.
pub(crate) struct Translator<'a> {
    pub(crate) b: FunctionBuilder<'a>,
    pub(crate) module: ModuleContext<'a>,
    /// The operand stack; vectors are always of type `I8X16`.
    stack: Vec<Value>,
    control: Vec<Control>,
    /// How many of them are loops.
    open_loops: u32,
    /// Types of the function's results.
    results: &'a [ValType],
    /// Depth of blocks inside code that cannot be reached; such code is skipped.
    unreachable_depth: Option<u32>,
    locals: Vec<Variable>,
    /// What is known about addresses at this place.
    addressing: Addressing,
    symbols: HashMap<Symbol, FuncRef>,
    called_types: BTreeSet<u32>,
    /// The landing pads of the `try_table`s that are open.
    landing_pads: Vec<LandingPad>,
    /// Whether the function holds references to exceptions.
    holds_exceptions: bool,
    /// What the operators since the last payment cost.
    fuel_owed: i64,
    /// What comparisons with sizes of memories cover at this place.
    covered: Covered,
    /// Which body of the function this is.
    body_kind: BodyKind,
}

impl<'a> Translator<'a> {
    pub(crate) fn new(module: ModuleContext<'a>, mut b: FunctionBuilder<'a>) -> Self {
        let entry = b.create_block();
        b.append_block_params_for_function_params(entry);
        b.switch_to_block(entry);
        b.seal_block(entry);
        let addressing = Addressing::new(&mut b);
        Self {
            b,
            module,
            stack: Vec::new(),
            control: Vec::new(),
            open_loops: 0,
            results: &[],
            unreachable_depth: None,
            locals: Vec::new(),
            addressing,
            symbols: HashMap::new(),
            called_types: BTreeSet::new(),
            landing_pads: Vec::new(),
            holds_exceptions: false,
            fuel_owed: 0,
            covered: Covered::default(),
            body_kind: BodyKind::Only,
        }
    }

    /// Puts a value on the operand stack.
    pub(crate) fn push(&mut self, value: Value) {
        self.stack.push(value);
    }

    /// Takes the top value of the operand stack.
    pub(crate) fn pop(&mut self) -> Value {
        self.stack.pop().expect("validation keeps the operand stack balanced")
    }

    /// Takes two values: (lower, upper).
    pub(crate) fn pop2(&mut self) -> (Value, Value) {
        let upper = self.pop();
        (self.pop(), upper)
    }

    /// Takes three values: (lowest, middle, upper).
    fn pop3(&mut self) -> (Value, Value, Value) {
        let upper = self.pop();
        let (lowest, middle) = self.pop2();
        (lowest, middle, upper)
    }

    /// Takes `count` values, lowest first.
    fn pop_many(&mut self, count: usize) -> Vec<Value> {
        self.stack.split_off(self.stack.len() - count)
    }

    /// Takes a vector and views it as `ty`.
    pub(crate) fn pop_vector(&mut self, ty: Type) -> Value {
        let value = self.pop();
        self.view_vector(value, ty)
    }

    /// Puts a vector of any lane type on the operand stack.
    pub(crate) fn push_vector(&mut self, value: Value) {
        let value = self.view_vector(value, types::I8X16);
        self.push(value);
    }

    fn view_vector(&mut self, value: Value, ty: Type) -> Value {
        if self.b.func.dfg.value_type(value) == ty {
            value
        } else {
            self.b.ins().bitcast(ty, address::LITTLE_ENDIAN, value)
        }
    }

    /// What `symbol` is called by in this function.
    pub(crate) fn symbol(&mut self, symbol: Symbol) -> FuncRef {
        if let Some(known) = self.symbols.get(&symbol) {
            return *known;
        }
        let signature = match symbol {
            Symbol::Function(index) | Symbol::Checked(index) => {
                signature(self.module.info.function_type(index))
            }
            Symbol::Foreign(ty) => foreign_signature(&self.module.info.types[ty as usize]),
            Symbol::Cross(ty) => cross_signature(&self.module.info.types[ty as usize]),
            Symbol::Throw => throw_signature(),
            Symbol::Trap(_) => Signature::new(CallConv::Tail),
            Symbol::Copy(_) | Symbol::Fill(_) => bulk_signature(),
        };
        let signature = self.b.import_signature(signature);
        let name = self.b.func.declare_imported_user_function(symbol.to_name());
        let name = ExternalName::user(name);
        let data = ExtFuncData { name, signature, colocated: true, patchable: false };
        let function = self.b.import_function(data);
        self.symbols.insert(symbol, function);
        function
    }

    /// Refuses types that the validator knows and this compiler does not.
    fn check_types(&self, op: &Operator<'_>) -> Result<(), CompileError> {
        let canonical = self.module.canonical_types;
        match op {
            Operator::Block { blockty } | Operator::Loop { blockty } | Operator::If { blockty } => {
                match blockty {
                    BlockType::Type(ty) => val_type(canonical, *ty).map(drop),
                    _ => Ok(()),
                }
            }
            Operator::TryTable { try_table } => match try_table.ty {
                BlockType::Type(ty) => val_type(canonical, ty).map(drop),
                _ => Ok(()),
            },
            Operator::RefNull { hty } => heap_type(canonical, *hty).map(drop),
            _ => Ok(()),
        }
    }

    fn enter_function(&mut self, index: u32, ty: &'a FuncType) {
        self.results = &ty.results;
        let entry = self.b.current_block().expect("a block is open from the start");
        for (i, ty) in ty.params.iter().enumerate() {
            let value = self.b.block_params(entry)[i];
            let local = self.b.declare_var(ir_type(*ty));
            self.b.def_var(local, value);
            self.locals.push(local);
            self.note_type(*ty);
        }
        self.push_function_frame(ty);
        self.check_fuel();
        self.choose_body(index);
    }

    fn declare_locals(&mut self, count: u32, ty: ValType) {
        let zero = self.zero(ty);
        self.note_type(ty);
        for _ in 0..count {
            let local = self.b.declare_var(ir_type(ty));
            self.b.def_var(local, zero);
            self.locals.push(local);
        }
    }

    fn zero(&mut self, ty: ValType) -> Value {
        match ty {
            ValType::I32 => self.b.ins().iconst(types::I32, 0),
            ValType::F32 => self.b.ins().f32const(0.0),
            ValType::F64 => self.b.ins().f64const(0.0),
            ValType::V128 => {
                let zeros = self.b.func.dfg.constants.insert(vec![0; 16].into());
                self.b.ins().vconst(types::I8X16, zeros)
            }
            _ => self.b.ins().iconst(types::I64, 0),
        }
    }

    fn operator(&mut self, op: &Operator<'_>, offset: u64) -> Result<(), CompileError> {
        if self.skip_unreachable(op) {
            return Ok(());
        }
        self.check_types(op)?;
        self.meter(op);
        match op {
            Operator::Nop => {}
            Operator::Drop => drop(self.pop()),
            Operator::Select | Operator::TypedSelect { .. } => {
                let (yes, no, condition) = self.pop3();
                let value = self.b.ins().select(condition, yes, no);
                self.push(value);
            }
            Operator::LocalGet { local_index } => {
                let value = self.b.use_var(self.locals[*local_index as usize]);
                self.push(value);
            }
            Operator::LocalSet { local_index } => {
                let value = self.pop();
                self.b.def_var(self.locals[*local_index as usize], value);
            }
            Operator::LocalTee { local_index } => {
                let value = *self.stack.last().expect("validation keeps the stack balanced");
                self.b.def_var(self.locals[*local_index as usize], value);
            }
            Operator::GlobalGet { global_index } => {
                let value = self.global_get(*global_index);
                self.push(value);
            }
            Operator::GlobalSet { global_index } => {
                let value = self.pop();
                self.global_set(*global_index, value);
            }
            _ => {
                let known = self.control(op)
                    || self.call(op)
                    || self.exception(op)
                    || numeric::translate(self, op)
                    || self.memory(op)
                    || self.table(op)
                    || simd::translate(self, op);
                if !known {
                    return Err(crate::parse::unsupported(
                        &format!("garbage collection (the operator {op:?})"),
                        offset,
                    ));
                }
            }
        }
        Ok(())
    }
}

/// How a function of another instance is called: its code and base, then the
/// arguments.
pub(crate) fn cross_signature(ty: &FuncType) -> Signature {
    let mut signature = signature(ty);
    signature.params.splice(0..0, [AbiParam::new(types::I64); 2]);
    signature
}

/// How the stub is called that throws: with the service that it asks.
pub(crate) fn throw_signature() -> Signature {
    let mut signature = Signature::new(CallConv::Tail);
    signature.params.push(AbiParam::new(types::I64));
    signature
}

/// How the functions are called that copy and fill.
pub(crate) fn bulk_signature() -> Signature {
    let mut signature = Signature::new(CallConv::Tail);
    signature.params.extend([AbiParam::new(types::I32); 3]);
    signature
}

/// How functions are called whose values fit registers, from the host or at it: an address comes
/// before the arguments, and another result before the function's.
pub(crate) fn direct_signature(ty: &FuncType) -> Signature {
    let values = |list: &[ValType]| {
        let values = list.iter().map(|ty| AbiParam::new(ir_type(*ty)));
        [AbiParam::new(types::I64)].into_iter().chain(values).collect()
    };
    let mut signature = Signature::new(CallConv::SystemV);
    signature.params = values(&ty.params);
    signature.returns = values(&ty.results);
    signature
}

/// How a foreign reference is called: the reference, then the arguments.
pub(crate) fn foreign_signature(ty: &FuncType) -> Signature {
    let mut signature = signature(ty);
    signature.params.insert(0, AbiParam::new(types::I64));
    signature
}
