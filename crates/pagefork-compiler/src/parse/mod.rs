//! From bytes to a description of the module and the bodies of its functions.

use std::collections::HashMap;

use pagefork_layout::code::DebugInfo;
use pagefork_layout::module::{
    ConstExpr, ConstOp, DataSegment, ElementSegment, ExportInfo, FuncType, GlobalType, HeapType,
    Import, IntWidth, Item, MemoryType, ModuleInfo, RefType, SegmentMode, TableType, ValType,
};
use wasmparser::{
    AbstractHeapType, CompositeInnerType, DataKind, ElementItems, ElementKind, ExternalKind,
    FuncToValidate, FunctionBody, KnownCustom, Name, Operator, Parser, Payload, RecGroup,
    TableInit, TypeRef, ValidPayload, Validator, ValidatorResources,
};

/// Validation alone.
mod validate;

pub use self::validate::validate;

use crate::base::error::CompileError;
use crate::base::options::Features;
use crate::base::progress::Progress;

/// A module whose sections are valid; its bodies are validated as they are
/// translated.
pub(crate) struct Parsed<'a> {
    pub(crate) info: ModuleInfo,
    /// For each of the module's own type indices, the canonical one.
    pub(crate) canonical_types: Vec<u32>,
    /// The functions the module defines, in order.
    pub(crate) bodies: Vec<DefinedBody<'a>>,
    /// The bytes of each data segment.
    pub(crate) data: Vec<&'a [u8]>,
    /// Debug information, without what only the compiler can say.
    pub(crate) debug: DebugInfo,
    /// Who wants to know how many of them are compiled.
    pub(crate) progress: Option<&'a Progress>,
}

/// A function body that is still to be validated.
pub(crate) struct DefinedBody<'a> {
    pub(crate) to_validate: FuncToValidate<ValidatorResources>,
    pub(crate) body: FunctionBody<'a>,
}

pub(crate) fn parse<'a>(wasm: &'a [u8], features: &Features) -> Result<Parsed<'a>, CompileError> {
    if Parser::is_component(wasm) {
        return Err(CompileError::NotAModule {
            what: "it is a component; components are not supported",
        });
    }
    let features = features.for_validation();
    let mut validator = Validator::new_with_features(features);
    let mut parser = Parser::new(0);
    // What is well-formed depends on the proposals too.
    parser.set_features(features);
    let mut sections = Sections::default();
    for payload in parser.parse_all(wasm) {
        let payload = payload?;
        if let ValidPayload::Func(to_validate, body) = validator.payload(&payload)? {
            sections.bodies.push(DefinedBody { to_validate, body });
            continue;
        }
        sections.section(payload)?;
    }
    let Sections { info, canonical_types, bodies, data, debug, .. } = sections;
    Ok(Parsed { info, canonical_types, bodies, data, debug, progress: None })
}

#[derive(Default)]
struct Sections<'a> {
    info: ModuleInfo,
    canonical_types: Vec<u32>,
    /// Canonical indices by type, where [`ITSELF`] stands for the type's own.
    canonical: HashMap<FuncType, u32>,
    bodies: Vec<DefinedBody<'a>>,
    data: Vec<&'a [u8]>,
    debug: DebugInfo,
}

/// In a type that is looked for, the index of that very type.
const ITSELF: u32 = u32::MAX;

impl<'a> Sections<'a> {
    /// Takes over one section, which the validator has accepted already.
    fn section(&mut self, payload: Payload<'a>) -> Result<(), CompileError> {
        match payload {
            Payload::TypeSection(types) => {
                for group in types.into_iter_with_offsets() {
                    let (offset, group) = group?;
                    self.function_type(group, offset)?;
                }
            }
            Payload::ImportSection(imports) => {
                for import in imports.into_imports() {
                    self.import(import?)?;
                }
            }
            Payload::FunctionSection(functions) => {
                for ty in functions {
                    self.info.functions.push(self.canonical_types[ty? as usize]);
                }
            }
            Payload::TableSection(tables) => {
                for table in tables {
                    let table = table?;
                    let init = match &table.init {
                        TableInit::RefNull => None,
                        TableInit::Expr(expr) => Some(const_expr(expr)?),
                    };
                    self.info.tables.push(self.table_type(&table.ty)?);
                    self.info.table_inits.push(init);
                }
            }
            Payload::MemorySection(memories) => {
                for memory in memories {
                    self.info.memories.push(memory_type(&memory?)?);
                }
            }
            Payload::TagSection(tags) => {
                for tag in tags {
                    self.info.tags.push(self.canonical_types[tag?.func_type_idx as usize]);
                }
            }
            Payload::GlobalSection(globals) => {
                for global in globals {
                    let global = global?;
                    self.info.globals.push(self.global_type(&global.ty)?);
                    self.info.global_inits.push(const_expr(&global.init_expr)?);
                }
            }
            Payload::ExportSection(exports) => {
                for export in exports {
                    let export = export?;
                    let item = match export.kind {
                        ExternalKind::Func => Item::Func(export.index),
                        ExternalKind::Table => Item::Table(export.index),
                        ExternalKind::Memory => Item::Memory(export.index),
                        ExternalKind::Global => Item::Global(export.index),
                        ExternalKind::Tag => Item::Tag(export.index),
                        _ => return Err(unsupported("an export of this kind", 0)),
                    };
                    self.info.exports.push(ExportInfo { name: export.name.to_owned(), item });
                }
            }
            Payload::StartSection { func, .. } => self.info.start = Some(func),
            Payload::ElementSection(elements) => {
                for element in elements {
                    self.element(element?)?;
                }
            }
            Payload::DataSection(segments) => {
                for segment in segments {
                    let segment = segment?;
                    let mode = match &segment.kind {
                        DataKind::Passive => SegmentMode::Passive,
                        DataKind::Active { memory_index, offset_expr } => SegmentMode::Active {
                            target: *memory_index,
                            offset: const_expr(offset_expr)?,
                        },
                    };
                    let start = self.info.data.last().map_or(0, |segment| segment.bytes.end);
                    let end = u64::from(start) + segment.data.len() as u64;
                    let Ok(end) = u32::try_from(end) else {
                        let limit = u32::MAX.into();
                        return Err(CompileError::TooLarge { what: "data", size: end, limit });
                    };
                    self.info.data.push(DataSegment { mode, bytes: start..end });
                    self.data.push(segment.data);
                }
            }
            Payload::CodeSectionStart { unchecked_range, .. } => {
                self.debug.code_start = u32::try_from(unchecked_range.start).unwrap_or(u32::MAX);
            }
            Payload::CustomSection(section) if section.name().starts_with(".debug_") => {
                self.debug.dwarf.push((section.name().to_owned(), section.data().into()));
            }
            Payload::CustomSection(section) => {
                if let KnownCustom::Name(names) = section.as_known() {
                    // Names serve backtraces only: what is malformed in them is
                    // left out, as the specification asks of custom sections.
                    for subsection in names {
                        let Ok(subsection) = subsection else { break };
                        self.names(subsection);
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Takes over one function type and gives it its canonical index.
    fn function_type(&mut self, group: RecGroup, offset: u64) -> Result<(), CompileError> {
        let garbage = || unsupported("garbage collection (a recursive group of types)", offset);
        let mut types = group.into_types();
        let (Some(ty), None) = (types.next(), types.next()) else { return Err(garbage()) };
        if !ty.is_final || !ty.supertype_idxs.is_empty() {
            return Err(unsupported("garbage collection (a type with subtypes)", offset));
        }
        if ty.composite_type.shared {
            return Err(unsupported("threads (a shared type)", offset));
        }
        let CompositeInnerType::Func(ty) = &ty.composite_type.inner else {
            return Err(unsupported("garbage collection (a type of structures or arrays)", offset));
        };
        let list = |types: &[wasmparser::ValType]| -> Result<Box<[ValType]>, CompileError> {
            types.iter().map(|ty| self.val_type(*ty)).collect()
        };
        let ty = FuncType { params: list(ty.params())?, results: list(ty.results())? };
        let next = self.canonical.len() as u32;
        let index = *self.canonical.entry(ty.clone()).or_insert_with(|| {
            self.info.types.push(ty.map_concrete(|ty| if ty == ITSELF { next } else { ty }));
            next
        });
        self.canonical_types.push(index);
        Ok(())
    }

    fn val_type(&self, ty: wasmparser::ValType) -> Result<ValType, CompileError> {
        val_type(&self.canonical_types, ty)
    }

    fn table_type(&self, ty: &wasmparser::TableType) -> Result<TableType, CompileError> {
        if ty.shared {
            return Err(unsupported("threads (a shared table)", 0));
        }
        Ok(TableType {
            element: ref_type(&self.canonical_types, &ty.element_type)?,
            minimum: ty.initial,
            maximum: ty.maximum,
            table64: ty.table64,
        })
    }

    fn global_type(&self, ty: &wasmparser::GlobalType) -> Result<GlobalType, CompileError> {
        if ty.shared {
            return Err(unsupported("threads (a shared global)", 0));
        }
        Ok(GlobalType { content: self.val_type(ty.content_type)?, mutable: ty.mutable })
    }

    fn import(&mut self, import: wasmparser::Import<'_>) -> Result<(), CompileError> {
        let item = match import.ty {
            TypeRef::Func(ty) => {
                self.info.functions.push(self.canonical_types[ty as usize]);
                self.info.imported_functions += 1;
                Item::Func(self.info.functions.len() as u32 - 1)
            }
            TypeRef::Table(ty) => {
                self.info.tables.push(self.table_type(&ty)?);
                self.info.imported_tables += 1;
                Item::Table(self.info.tables.len() as u32 - 1)
            }
            TypeRef::Memory(ty) => {
                self.info.memories.push(memory_type(&ty)?);
                self.info.imported_memories += 1;
                Item::Memory(self.info.memories.len() as u32 - 1)
            }
            TypeRef::Global(ty) => {
                self.info.globals.push(self.global_type(&ty)?);
                self.info.imported_globals += 1;
                Item::Global(self.info.globals.len() as u32 - 1)
            }
            TypeRef::Tag(ty) => {
                self.info.tags.push(self.canonical_types[ty.func_type_idx as usize]);
                self.info.imported_tags += 1;
                Item::Tag(self.info.tags.len() as u32 - 1)
            }
            _ => return Err(unsupported("an import of this kind", 0)),
        };
        let (module, name) = (import.module.to_owned(), import.name.to_owned());
        self.info.imports.push(Import { module, name, item });
        Ok(())
    }

    fn element(&mut self, segment: wasmparser::Element<'_>) -> Result<(), CompileError> {
        let mode = match &segment.kind {
            ElementKind::Passive => SegmentMode::Passive,
            ElementKind::Declared => SegmentMode::Declared,
            ElementKind::Active { table_index, offset_expr } => SegmentMode::Active {
                target: table_index.unwrap_or(0),
                offset: const_expr(offset_expr)?,
            },
        };
        let mut items = Vec::new();
        let element = match segment.items {
            ElementItems::Functions(functions) => {
                for function in functions {
                    items.push(ConstExpr::Func(function?));
                }
                RefType::FUNCREF
            }
            ElementItems::Expressions(ty, expressions) => {
                for expression in expressions {
                    items.push(const_expr(&expression?)?);
                }
                ref_type(&self.canonical_types, &ty)?
            }
        };
        self.info.elements.push(ElementSegment { mode, element, items: items.into() });
        Ok(())
    }

    fn names(&mut self, names: Name<'_>) {
        match names {
            Name::Module { name, .. } => self.info.name = Some(name.to_owned()),
            Name::Function(map) => {
                let mut names: Vec<(u32, String)> = map
                    .into_iter()
                    .map_while(Result::ok)
                    .map(|naming| (naming.index, naming.name.to_owned()))
                    .collect();
                names.sort_by_key(|(index, _)| *index);
                names.dedup_by_key(|(index, _)| *index);
                self.info.function_names = names;
            }
            _ => {}
        }
    }
}

/// A type as the layout knows it; `canonical` has the canonical index of each
/// function type known so far.
pub(crate) fn val_type(
    canonical: &[u32],
    ty: wasmparser::ValType,
) -> Result<ValType, CompileError> {
    Ok(match ty {
        wasmparser::ValType::I32 => ValType::I32,
        wasmparser::ValType::I64 => ValType::I64,
        wasmparser::ValType::F32 => ValType::F32,
        wasmparser::ValType::F64 => ValType::F64,
        wasmparser::ValType::V128 => ValType::V128,
        wasmparser::ValType::Ref(ty) => ValType::Ref(ref_type(canonical, &ty)?),
    })
}

pub(crate) fn unsupported(what: &str, offset: u64) -> CompileError {
    CompileError::Invalid { message: format!("{what} is not supported"), offset }
}

fn ref_type(canonical: &[u32], ty: &wasmparser::RefType) -> Result<RefType, CompileError> {
    Ok(RefType { nullable: ty.is_nullable(), heap: heap_type(canonical, ty.heap_type())? })
}

pub(crate) fn heap_type(
    canonical: &[u32],
    ty: wasmparser::HeapType,
) -> Result<HeapType, CompileError> {
    let ty = match ty {
        wasmparser::HeapType::Concrete(index) | wasmparser::HeapType::Exact(index) => {
            let index = index.as_module_index().expect("types are read as they are written");
            // A type may name itself, before it has an index.
            let index = canonical.get(index as usize).copied().unwrap_or(ITSELF);
            return Ok(HeapType::Concrete(index));
        }
        wasmparser::HeapType::Abstract { shared: true, .. } => {
            return Err(unsupported("threads (a shared reference)", 0));
        }
        wasmparser::HeapType::Abstract { ty, .. } => ty,
    };
    Ok(match ty {
        AbstractHeapType::Func => HeapType::Func,
        AbstractHeapType::NoFunc => HeapType::NoFunc,
        AbstractHeapType::Extern => HeapType::Extern,
        AbstractHeapType::NoExtern => HeapType::NoExtern,
        AbstractHeapType::Exn => HeapType::Exn,
        AbstractHeapType::NoExn => HeapType::NoExn,
        other => {
            let what = format!("garbage collection (a reference to {other:?})");
            return Err(unsupported(&what, 0));
        }
    })
}

fn memory_type(ty: &wasmparser::MemoryType) -> Result<MemoryType, CompileError> {
    if ty.shared {
        return Err(unsupported("threads (a shared memory)", 0));
    }
    Ok(MemoryType { minimum: ty.initial, maximum: ty.maximum, memory64: ty.memory64 })
}

fn const_expr(expr: &wasmparser::ConstExpr<'_>) -> Result<ConstExpr, CompileError> {
    let mut reader = expr.get_operators_reader();
    let mut first = None;
    // Arithmetic is kept as it is written: operands first.
    let mut steps = Vec::new();
    loop {
        let offset = reader.original_position();
        let value = match reader.read()? {
            Operator::I32Const { value } => ConstExpr::Bits(u128::from(value as u32)),
            Operator::I64Const { value } => ConstExpr::Bits(u128::from(value as u64)),
            Operator::F32Const { value } => ConstExpr::Bits(u128::from(value.bits())),
            Operator::F64Const { value } => ConstExpr::Bits(u128::from(value.bits())),
            Operator::V128Const { value } => ConstExpr::Bits(u128::from_le_bytes(*value.bytes())),
            Operator::RefNull { .. } => ConstExpr::Null,
            Operator::RefFunc { function_index } => ConstExpr::Func(function_index),
            Operator::GlobalGet { global_index } => ConstExpr::Global(global_index),
            Operator::End if steps.len() > 1 => return Ok(ConstExpr::Extended(steps.into())),
            Operator::End => return Ok(first.expect("validated: one value")),
            other => match arithmetic(&other) {
                Some(operation) => {
                    steps.push(operation);
                    continue;
                }
                None => {
                    let what = format!("garbage collection ({other:?} in a constant expression)");
                    return Err(unsupported(&what, offset));
                }
            },
        };
        match value {
            ConstExpr::Bits(bits) => steps.push(ConstOp::Bits(bits as u64)),
            ConstExpr::Global(index) => steps.push(ConstOp::Global(index)),
            // No arithmetic is done with these.
            ConstExpr::Null | ConstExpr::Func(_) | ConstExpr::Extended(_) => {}
        }
        first.get_or_insert(value);
    }
}

fn arithmetic(operator: &Operator<'_>) -> Option<ConstOp> {
    Some(match operator {
        Operator::I32Add => ConstOp::Add(IntWidth::W32),
        Operator::I32Sub => ConstOp::Sub(IntWidth::W32),
        Operator::I32Mul => ConstOp::Mul(IntWidth::W32),
        Operator::I64Add => ConstOp::Add(IntWidth::W64),
        Operator::I64Sub => ConstOp::Sub(IntWidth::W64),
        Operator::I64Mul => ConstOp::Mul(IntWidth::W64),
        _ => return None,
    })
}
