use std::collections::HashMap;

use pagefork_layout::module::{
    ConstExpr, DataSegment, ElementSegment, Export, FuncType, GlobalType, Import, Item, MemoryType,
    ModuleInfo, SegmentMode, TableType, ValType,
};
use wasmparser::{
    DataKind, ElementItems, ElementKind, ExternalKind, FuncToValidate, FunctionBody, KnownCustom,
    Name, Operator, Parser, Payload, TableInit, TypeRef, ValidPayload, Validator,
    ValidatorResources,
};

use crate::{CompileError, Features};

/// A module whose sections are valid; its bodies are validated as they are
/// translated.
pub(crate) struct Parsed<'a> {
    pub(crate) info: ModuleInfo,
    /// For each of the module's own type indices, the canonical one.
    pub(crate) canonical_types: Vec<u32>,
    /// The functions the module defines, in order.
    pub(crate) bodies: Vec<Body<'a>>,
}

/// A function body that is still to be validated.
pub(crate) struct Body<'a> {
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
            sections.bodies.push(Body { to_validate, body });
            continue;
        }
        sections.section(payload)?;
    }
    let Sections { info, canonical_types, bodies, .. } = sections;
    Ok(Parsed { info, canonical_types, bodies })
}

#[derive(Default)]
struct Sections<'a> {
    info: ModuleInfo,
    canonical_types: Vec<u32>,
    canonical: HashMap<FuncType, u32>,
    bodies: Vec<Body<'a>>,
}

impl<'a> Sections<'a> {
    /// Takes over one section, which the validator has accepted already.
    fn section(&mut self, payload: Payload<'a>) -> Result<(), CompileError> {
        match payload {
            Payload::TypeSection(types) => {
                for ty in types.into_iter_err_on_gc_types() {
                    let ty = func_type(&ty?)?;
                    let next = self.canonical.len() as u32;
                    let index = *self.canonical.entry(ty.clone()).or_insert_with(|| {
                        self.info.types.push(ty);
                        next
                    });
                    self.canonical_types.push(index);
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
                    if !matches!(table.init, TableInit::RefNull) {
                        return Err(unsupported("a table with an initialiser", 0));
                    }
                    self.info.tables.push(table_type(&table.ty)?);
                }
            }
            Payload::MemorySection(memories) => {
                for memory in memories {
                    self.info.memories.push(memory_type(&memory?));
                }
            }
            Payload::GlobalSection(globals) => {
                for global in globals {
                    let global = global?;
                    self.info.globals.push(global_type(&global.ty)?);
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
                        _ => return Err(unsupported("an export of this kind", 0)),
                    };
                    self.info.exports.push(Export { name: export.name.to_owned(), item });
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
                    self.info.data.push(DataSegment { mode, bytes: segment.data.into() });
                }
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

    fn import(&mut self, import: wasmparser::Import<'_>) -> Result<(), CompileError> {
        let info = &mut self.info;
        let item = match import.ty {
            TypeRef::Func(ty) => {
                info.functions.push(self.canonical_types[ty as usize]);
                info.imported_functions += 1;
                Item::Func(info.functions.len() as u32 - 1)
            }
            TypeRef::Table(ty) => {
                info.tables.push(table_type(&ty)?);
                info.imported_tables += 1;
                Item::Table(info.tables.len() as u32 - 1)
            }
            TypeRef::Memory(ty) => {
                info.memories.push(memory_type(&ty));
                info.imported_memories += 1;
                Item::Memory(info.memories.len() as u32 - 1)
            }
            TypeRef::Global(ty) => {
                info.globals.push(global_type(&ty)?);
                info.imported_globals += 1;
                Item::Global(info.globals.len() as u32 - 1)
            }
            _ => return Err(unsupported("an import of this kind", 0)),
        };
        let (module, name) = (import.module.to_owned(), import.name.to_owned());
        info.imports.push(Import { module, name, item });
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
                ValType::FuncRef
            }
            ElementItems::Expressions(ty, expressions) => {
                for expression in expressions {
                    items.push(const_expr(&expression?)?);
                }
                ref_type(&ty)?
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

pub(crate) fn val_type(ty: wasmparser::ValType) -> Result<ValType, CompileError> {
    Ok(match ty {
        wasmparser::ValType::I32 => ValType::I32,
        wasmparser::ValType::I64 => ValType::I64,
        wasmparser::ValType::F32 => ValType::F32,
        wasmparser::ValType::F64 => ValType::F64,
        wasmparser::ValType::V128 => ValType::V128,
        wasmparser::ValType::Ref(ty) => ref_type(&ty)?,
    })
}

pub(crate) fn unsupported(what: &str, offset: u64) -> CompileError {
    CompileError::Invalid { message: format!("{what} is not supported"), offset }
}

fn ref_type(ty: &wasmparser::RefType) -> Result<ValType, CompileError> {
    if *ty == wasmparser::RefType::FUNCREF {
        Ok(ValType::FuncRef)
    } else if *ty == wasmparser::RefType::EXTERNREF {
        Ok(ValType::ExternRef)
    } else {
        Err(unsupported(&format!("the type {ty}"), 0))
    }
}

fn func_type(ty: &wasmparser::FuncType) -> Result<FuncType, CompileError> {
    let list = |types: &[wasmparser::ValType]| -> Result<Box<[ValType]>, CompileError> {
        types.iter().map(|ty| val_type(*ty)).collect()
    };
    Ok(FuncType { params: list(ty.params())?, results: list(ty.results())? })
}

fn table_type(ty: &wasmparser::TableType) -> Result<TableType, CompileError> {
    let clamp = |length: u64| length.min(u64::from(u32::MAX)) as u32;
    Ok(TableType {
        element: ref_type(&ty.element_type)?,
        minimum: clamp(ty.initial),
        maximum: ty.maximum.map(clamp),
    })
}

fn memory_type(ty: &wasmparser::MemoryType) -> MemoryType {
    MemoryType { minimum: ty.initial, maximum: ty.maximum }
}

fn global_type(ty: &wasmparser::GlobalType) -> Result<GlobalType, CompileError> {
    Ok(GlobalType { content: val_type(ty.content_type)?, mutable: ty.mutable })
}

fn const_expr(expr: &wasmparser::ConstExpr<'_>) -> Result<ConstExpr, CompileError> {
    let mut reader = expr.get_operators_reader();
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
        other => return Err(unsupported(&format!("{other:?} in a constant expression"), offset)),
    };
    match reader.read()? {
        Operator::End => Ok(value),
        _ => Err(unsupported("an extended constant expression", offset)),
    }
}
