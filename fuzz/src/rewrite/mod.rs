//! What the generator leaves out, added to its modules: an export of the fuel,
//! functions in tables and calls that find them, handlers that catch what is thrown,
//! and typed function references, which it only makes together with the types of
//! garbage collection.

mod handlers;
mod operations;
mod probes;

use wasm_encoder::reencode::{Error, Reencode, RoundtripReencoder, utils};
use wasm_encoder::{
    BlockType, CodeSection, ConstExpr, DataCountSection, DataSection, ElementSection, Elements,
    ExportKind, ExportSection, Function, FunctionSection, GlobalSection, GlobalType, HeapType,
    ImportSection, Instruction, MemorySection, Module, RefType, StartSection, TableSection,
    TableType, TagSection, TypeSection, ValType,
};
use wasmparser::{
    FuncToValidate, FuncType, Operator, Parser, Payload, TypeRef, ValidPayload, Validator,
    ValidatorResources, WasmFeatures,
};

use crate::features::FeatureSet;
use crate::generate::{FUEL, PROBES};
use crate::random::Random;
use crate::rewrite::handlers::BlockTypes;
use crate::rewrite::probes::Probes;

type Result<T = ()> = std::result::Result<T, Error>;

/// How many functions get their typed companions at most.
const COMPANIONS_MAX: usize = 4;
/// How many elements of each table are functions, and called at most.
const ELEMENTS_CALLED: u64 = 8;
/// Length of the companions' tables.
const TABLE_LENGTH: u64 = 4;

/// What a module gets.
pub(crate) struct Additions {
    /// The global that is its fuel.
    pub(crate) fuel: u32,
    /// What it may use.
    pub(crate) features: FeatureSet,
    /// Whether the bits of NaNs are the same in every engine.
    pub(crate) deterministic: bool,
}

/// The module with an export of its fuel, functions in its tables, indirect calls
/// that find them, and what else was asked for.
///
/// # Errors
/// If the module is malformed.
pub(crate) fn add(wasm: &[u8], additions: &Additions, random: &mut Random) -> Result<Vec<u8>> {
    let known = Known::read(wasm)?;
    let mut companions: Vec<Companion> = Vec::new();
    for (i, ty) in
        known.functions.iter().enumerate().filter(|_| additions.features.has("function-references"))
    {
        if companions.len() < COMPANIONS_MAX && !companions.iter().any(|known| known.ty == *ty) {
            let number = companions.len() as u32;
            companions.push(Companion {
                ty: *ty,
                target: i as u32,
                table: known.tables.len() as u32 + number,
                global: known.globals + number,
                function: known.functions.len() as u32 + number,
            });
        }
    }
    let blocks =
        BlockTypes { first: (known.types.len() + companions.len()) as u32, types: Vec::new() };
    let probes = Probes {
        global: known.globals + companions.len() as u32,
        deterministic: additions.deterministic,
        features: additions.features,
        share: *random.pick(&[0, 1, 2, 4]).unwrap_or(&0),
    };
    let mut calls = Calls {
        known: &known,
        companions: &companions,
        random,
        additions,
        blocks,
        probes: &probes,
        validators: validators(wasm)?.into_iter(),
        local: None,
    };
    let mut sections = Sections::read(wasm, &mut calls)?;
    let blocks = calls.blocks;
    sections.exports.export(FUEL, ExportKind::Global, additions.fuel);
    for (i, ty) in known.tables.iter().enumerate() {
        if ty.element_type == wasmparser::RefType::FUNCREF && random.chance(3, 4) {
            fill(i as u32, ty, known.functions.len() as u64, &mut sections, random);
        }
    }
    for (number, companion) in companions.iter().enumerate() {
        companion.add(number, &known, additions.features.has("tail-call"), &mut sections);
    }
    let ty = GlobalType { val_type: ValType::I64, mutable: true, shared: false };
    sections.globals.global(ty, &ConstExpr::i64_const(0));
    sections.exports.export(PROBES, ExportKind::Global, probes.global);
    for (params, results) in blocks.types {
        sections.types.ty().function(params, results);
    }
    Ok(sections.finish())
}

/// What validates each body, and so knows the types on its stack.
fn validators(wasm: &[u8]) -> Result<Vec<FuncToValidate<ValidatorResources>>> {
    let mut validator = Validator::new_with_features(WasmFeatures::all());
    let mut validators = Vec::new();
    for payload in Parser::new(0).parse_all(wasm) {
        if let ValidPayload::Func(function, _) = validator.payload(&payload?)? {
            validators.push(function);
        }
    }
    Ok(validators)
}

/// Has the first elements of a table filled with functions at the start.
fn fill(
    index: u32,
    ty: &wasmparser::TableType,
    functions: u64,
    sections: &mut Sections,
    random: &mut Random,
) {
    let count = ty.initial.min(ELEMENTS_CALLED);
    if functions == 0 || count == 0 {
        return;
    }
    let elements: Vec<u32> = (0..count).map(|_| random.below(functions) as u32).collect();
    let offset = if ty.table64 { ConstExpr::i64_const(0) } else { ConstExpr::i32_const(0) };
    // The encoding of 1.0, where it will do.
    let table = (index > 0).then_some(index);
    sections.elements.active(table, &offset, Elements::Functions(elements.into()));
}

/// What a module has, by index.
#[derive(Default)]
struct Known {
    types: Vec<FuncType>,
    /// Type index of each function.
    functions: Vec<u32>,
    /// How many of them are imported.
    imported: usize,
    tables: Vec<wasmparser::TableType>,
    globals: u32,
    /// Type index of each tag.
    tags: Vec<u32>,
}

impl Known {
    fn read(wasm: &[u8]) -> Result<Self> {
        let mut known = Self::default();
        for payload in Parser::new(0).parse_all(wasm) {
            match payload? {
                Payload::TypeSection(section) => {
                    for ty in section.into_iter_err_on_gc_types() {
                        known.types.push(ty?);
                    }
                }
                Payload::ImportSection(section) => {
                    for import in section.into_imports() {
                        match import?.ty {
                            TypeRef::Func(ty) | TypeRef::FuncExact(ty) => {
                                known.functions.push(ty);
                                known.imported += 1;
                            }
                            TypeRef::Table(ty) => known.tables.push(ty),
                            TypeRef::Global(_) => known.globals += 1,
                            TypeRef::Tag(ty) => known.tags.push(ty.func_type_idx),
                            TypeRef::Memory(_) => {}
                        }
                    }
                }
                Payload::FunctionSection(section) => {
                    for ty in section {
                        known.functions.push(ty?);
                    }
                }
                Payload::TableSection(section) => {
                    for table in section {
                        known.tables.push(table?.ty);
                    }
                }
                Payload::TagSection(section) => {
                    for tag in section {
                        known.tags.push(tag?.func_type_idx);
                    }
                }
                Payload::GlobalSection(section) => known.globals += section.count(),
                _ => {}
            }
        }
        Ok(known)
    }
}

/// What a function type gets: a table and a global of references to functions of
/// that type, and a function that calls its last parameter.
struct Companion {
    ty: u32,
    /// The function that table and global hold at first.
    target: u32,
    table: u32,
    global: u32,
    function: u32,
}

impl Companion {
    fn reference(&self, nullable: bool) -> RefType {
        RefType { nullable, heap_type: HeapType::Concrete(self.ty) }
    }

    fn add(&self, number: usize, known: &Known, tail_calls: bool, sections: &mut Sections) {
        let nullable = number.is_multiple_of(2);
        let ty = TableType {
            element_type: self.reference(nullable),
            table64: false,
            minimum: TABLE_LENGTH,
            maximum: Some(2 * TABLE_LENGTH),
            shared: false,
        };
        sections.tables.table_with_init(ty, &ConstExpr::ref_func(self.target));
        let ty = GlobalType {
            val_type: ValType::Ref(self.reference(nullable)),
            mutable: true,
            shared: false,
        };
        sections.globals.global(ty, &ConstExpr::ref_func(self.target));

        let called = &known.types[self.ty as usize];
        let count = called.params().len() as u32;
        let value = |ty: &wasmparser::ValType| RoundtripReencoder.val_type(*ty).expect("a type");
        let mut params: Vec<ValType> = called.params().iter().map(value).collect();
        params.push(ValType::Ref(self.reference(!nullable)));
        sections.types.ty().function(params, called.results().iter().map(value));
        sections.functions.function((known.types.len() + number) as u32);
        let mut body = Function::new([]);
        for i in 0..=count {
            body.instruction(&Instruction::LocalGet(i));
        }
        body.instruction(&match tail_calls {
            true => Instruction::ReturnCallRef(self.ty),
            false => Instruction::CallRef(self.ty),
        });
        body.instruction(&Instruction::End);
        sections.code.function(&body);

        for (name, kind, index) in [
            ("table", ExportKind::Table, self.table),
            ("global", ExportKind::Global, self.global),
            ("function", ExportKind::Func, self.function),
        ] {
            sections.exports.export(&format!("typed {name} {number}"), kind, index);
        }
    }
}

/// Changes calls as function bodies pass through.
struct Calls<'a> {
    known: &'a Known,
    companions: &'a [Companion],
    random: &'a mut Random,
    additions: &'a Additions,
    /// What handlers need.
    blocks: BlockTypes,
    probes: &'a Probes,
    /// Those of the bodies to come.
    validators: std::vec::IntoIter<FuncToValidate<ValidatorResources>>,
    /// The local of the present body that holds references, and its companion.
    local: Option<(u32, usize)>,
}

impl Reencode for Calls<'_> {
    type Error = std::convert::Infallible;

    fn parse_function_body(
        &mut self,
        code: &mut CodeSection,
        body: wasmparser::FunctionBody<'_>,
    ) -> Result {
        let validator = self.validators.next().expect("each body has its validator");
        let mut validator = validator.into_validator(Default::default());
        validator.read_locals(&mut body.get_binary_reader())?;
        let mut locals = Vec::new();
        let mut count = 0;
        for pair in body.get_locals_reader()? {
            let (repeated, ty) = pair?;
            locals.push((repeated, self.val_type(ty)?));
            count += repeated;
        }
        let index = self.known.imported + code.len() as usize;
        let params = self.known.types[self.known.functions[index] as usize].params().len() as u32;
        let probed = params + count;
        locals.extend(probes::LOCALS.map(|ty| (1, ty)));
        count += probes::LOCALS.len() as u32;
        self.local = None;
        if let Some(number) = self.random.pick(&[0, 1, 2, 3]).copied()
            && let Some(companion) = self.companions.get(number)
        {
            locals.push((1, ValType::Ref(companion.reference(true))));
            self.local = Some((params + count, number));
        }
        let mut function = Function::new(locals);
        if let Some(tag) = self.tag(3) {
            handlers::throw_at_times(&mut function, self.random, self.additions.fuel, tag);
        }
        let mut reader = body.get_operators_reader()?;
        while !reader.eof() {
            let (operator, offset) = reader.clone().read_with_offset()?;
            validator.op(offset, &operator)?;
            match operator {
                Operator::Call { function_index } => {
                    self.guarded_call(&mut function, function_index);
                    reader.read()?;
                }
                Operator::ReturnCall { function_index } => {
                    self.call(&mut function, function_index, true);
                    reader.read()?;
                }
                Operator::CallIndirect { table_index, .. }
                | Operator::ReturnCallIndirect { table_index, .. } => {
                    self.limit_index(&mut function, table_index);
                    function.instruction(&utils::parse_instruction(self, &mut reader)?);
                }
                Operator::I16x8RelaxedDotI8x16I7x16S => {
                    function.instruction(&operations::SEVEN_BITS);
                    function.instruction(&Instruction::V128And);
                    function.instruction(&utils::parse_instruction(self, &mut reader)?);
                }
                // In the deterministic profile the former round twice, and in
                // wasmtime once, in any configuration; the last one's operand
                // is out of reach. So something else of the same type.
                Operator::I32x4RelaxedDotI8x16I7x16AddS
                | Operator::F32x4RelaxedMadd
                | Operator::F32x4RelaxedNmadd
                | Operator::F64x2RelaxedMadd
                | Operator::F64x2RelaxedNmadd => {
                    function.instruction(&Instruction::I32x4RelaxedLaneselect);
                    reader.read()?;
                }
                _ => {
                    function.instruction(&utils::parse_instruction(self, &mut reader)?);
                }
            }
            if !reader.eof() {
                self.probes.look(&mut function, self.random, &validator, &operator, probed);
            }
        }
        code.function(&function);
        Ok(())
    }
}

impl<'a> Calls<'a> {
    /// A tag, in `share` of 8 cases.
    fn tag(&mut self, share: u64) -> Option<(u32, &'a [wasmparser::ValType])> {
        if !self.additions.features.has("exceptions") || !self.random.chance(share, 8) {
            return None;
        }
        let tags: Vec<u32> = (0..self.known.tags.len() as u32).collect();
        let tag = *self.random.pick(&tags)?;
        let known: &'a Known = self.known;
        Some((tag, known.types[known.tags[tag as usize] as usize].params()))
    }

    /// A call of a function of the same type, in some way, with or without a
    /// handler.
    fn guarded_call(&mut self, to: &mut Function, callee: u32) {
        let ty = self.known.functions[callee as usize];
        let Some(tag) = self.tag(4) else {
            return self.call(to, callee, false);
        };
        let mut blocks = std::mem::take(&mut self.blocks);
        // What is drawn for the handler does not move what is drawn for the call.
        let mut random = Random::new(self.random.next(), 0);
        let known: &'a Known = self.known;
        let ty = (ty, &known.types[ty as usize]);
        handlers::guard(to, &mut blocks, &mut random, ty, tag, |to| self.call(to, callee, false));
        self.blocks = blocks;
    }

    fn types_call(&mut self) -> bool {
        !self.companions.is_empty() && self.random.chance(2, 3)
    }

    /// Mostly makes the index on the stack one of an element that is a function.
    fn limit_index(&mut self, to: &mut Function, table: u32) {
        if self.random.chance(1, 8) {
            return;
        }
        let limit = self.random.between(1, ELEMENTS_CALLED);
        if self.known.tables[table as usize].table64 {
            to.instruction(&Instruction::I64Const(limit as i64));
            to.instruction(&Instruction::I64RemU);
        } else {
            to.instruction(&Instruction::I32Const(limit as i32));
            to.instruction(&Instruction::I32RemU);
        }
    }

    /// A call of a function of the same type as `callee`.
    fn call(&mut self, to: &mut Function, callee: u32, tail: bool) {
        if !self.types_call() {
            to.instruction(&match tail {
                true => Instruction::ReturnCall(callee),
                false => Instruction::Call(callee),
            });
            return;
        }
        let ty = self.known.functions[callee as usize];
        let call = if tail { Instruction::ReturnCallRef(ty) } else { Instruction::CallRef(ty) };
        let companion = self.companions.iter().position(|companion| companion.ty == ty);
        let reference = RefType { nullable: false, heap_type: HeapType::Concrete(ty) };
        match (self.random.below(8), companion) {
            (0, _) => {
                to.instruction(&Instruction::Block(BlockType::Result(ValType::Ref(reference))));
                to.instruction(&Instruction::RefFunc(callee));
                to.instruction(&Instruction::BrOnNonNull(0));
                to.instruction(&Instruction::Unreachable);
                to.instruction(&Instruction::End);
            }
            (1, Some(_))
                if let Some((local, number)) = self.local
                    && self.companions[number].ty == ty =>
            {
                to.instruction(&Instruction::RefFunc(callee));
                to.instruction(&Instruction::LocalTee(local));
                to.instruction(&Instruction::RefAsNonNull);
            }
            (2, Some(_))
                if let Some((local, number)) = self.local
                    && self.companions[number].ty == ty =>
            {
                to.instruction(&Instruction::LocalGet(local));
            }
            (3, Some(number)) => {
                to.instruction(&Instruction::GlobalGet(self.companions[number].global));
            }
            (4, Some(number)) => {
                let global = self.companions[number].global;
                to.instruction(&Instruction::RefFunc(callee));
                to.instruction(&Instruction::GlobalSet(global));
                to.instruction(&Instruction::GlobalGet(global));
            }
            (5, Some(number)) => {
                let table = self.companions[number].table;
                // Now and then beyond its end.
                let index = self.random.below(TABLE_LENGTH * 16).saturating_sub(TABLE_LENGTH * 15);
                to.instruction(&Instruction::I32Const(index as i32));
                to.instruction(&Instruction::TableGet(table));
            }
            (6, Some(number)) if !tail => {
                to.instruction(&Instruction::RefFunc(callee));
                to.instruction(&Instruction::Call(self.companions[number].function));
                return;
            }
            _ => {
                to.instruction(&Instruction::RefFunc(callee));
            }
        }
        to.instruction(&call);
    }
}

/// A module's sections, each of which can be added to.
#[derive(Default)]
struct Sections {
    types: TypeSection,
    imports: ImportSection,
    functions: FunctionSection,
    tables: TableSection,
    memories: MemorySection,
    tags: TagSection,
    globals: GlobalSection,
    exports: ExportSection,
    start: Option<u32>,
    elements: ElementSection,
    data_count: Option<u32>,
    code: CodeSection,
    data: DataSection,
}

impl Sections {
    fn read(
        wasm: &[u8],
        with: &mut impl Reencode<Error = std::convert::Infallible>,
    ) -> Result<Self> {
        let mut this = Self::default();
        for payload in Parser::new(0).parse_all(wasm) {
            match payload? {
                Payload::TypeSection(section) => {
                    with.parse_type_section(&mut this.types, section)?
                }
                Payload::ImportSection(section) => {
                    with.parse_import_section(&mut this.imports, section)?;
                }
                Payload::FunctionSection(section) => {
                    with.parse_function_section(&mut this.functions, section)?;
                }
                Payload::TableSection(section) => {
                    with.parse_table_section(&mut this.tables, section)?;
                }
                Payload::MemorySection(section) => {
                    with.parse_memory_section(&mut this.memories, section)?;
                }
                Payload::TagSection(section) => with.parse_tag_section(&mut this.tags, section)?,
                Payload::GlobalSection(section) => {
                    with.parse_global_section(&mut this.globals, section)?;
                }
                Payload::ExportSection(section) => {
                    with.parse_export_section(&mut this.exports, section)?;
                }
                Payload::StartSection { func, .. } => this.start = Some(func),
                Payload::ElementSection(section) => {
                    with.parse_element_section(&mut this.elements, section)?;
                }
                Payload::DataCountSection { count, .. } => this.data_count = Some(count),
                Payload::CodeSectionEntry(body) => {
                    with.parse_function_body(&mut this.code, body)?
                }
                Payload::DataSection(section) => {
                    with.parse_data_section(&mut this.data, section)?
                }
                _ => {}
            }
        }
        Ok(this)
    }

    fn finish(&self) -> Vec<u8> {
        let mut module = Module::new();
        macro_rules! sections {
            ($($section:expr,)*) => {$(
                if $section.len() > 0 {
                    module.section(&$section);
                }
            )*};
        }
        sections! {
            self.types, self.imports, self.functions, self.tables, self.memories, self.tags,
            self.globals, self.exports,
        }
        if let Some(function_index) = self.start {
            module.section(&StartSection { function_index });
        }
        sections! { self.elements, }
        if let Some(count) = self.data_count {
            module.section(&DataCountSection { count });
        }
        sections! { self.code, self.data, }
        module.finish()
    }
}
