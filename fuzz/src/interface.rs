//! What a module imports and exports.

use wasmparser::{
    ExternalKind, FuncType, GlobalType, MemoryType, Parser, Payload, TableType, TypeRef, ValType,
};

/// What a module asks for and offers, read by neither of the engines compared.
#[derive(Clone, Debug, Default)]
pub struct Interface {
    /// Its function types, by index.
    pub types: Vec<FuncType>,
    /// Its imports, in order.
    pub imports: Vec<Import>,
    /// Its exports, in order.
    pub exports: Vec<Export>,
}

/// An import of a module.
#[derive(Clone, Debug)]
pub struct Import {
    /// First name.
    pub module: String,
    /// Second name.
    pub name: String,
    /// What it must be.
    pub kind: Kind,
}

/// An export of a module.
#[derive(Clone, Debug)]
pub struct Export {
    /// Its name.
    pub name: String,
    /// What it is.
    pub kind: Kind,
    /// Its index among the entities of its kind.
    pub index: u32,
}

/// The type of an import or export.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A function of this type.
    Func(FuncType),
    /// A table.
    Table(TableType),
    /// A memory.
    Memory(MemoryType),
    /// A global.
    Global(GlobalType),
    /// A tag of exceptions.
    Tag(FuncType),
}

impl Interface {
    /// Reads a valid module.
    ///
    /// # Errors
    /// If the module is malformed, or has types that are no function types.
    pub fn read(wasm: &[u8]) -> wasmparser::Result<Self> {
        let mut this = Self::default();
        let (mut functions, mut tags) = (Vec::new(), Vec::new());
        let (mut tables, mut memories, mut globals) = (Vec::new(), Vec::new(), Vec::new());
        for payload in Parser::new(0).parse_all(wasm) {
            match payload? {
                Payload::TypeSection(section) => {
                    for ty in section.into_iter_err_on_gc_types() {
                        this.types.push(ty?);
                    }
                }
                Payload::ImportSection(section) => {
                    for import in section.into_imports() {
                        let import = import?;
                        let kind = match import.ty {
                            TypeRef::Func(ty) | TypeRef::FuncExact(ty) => {
                                functions.push(ty);
                                Kind::Func(this.types[ty as usize].clone())
                            }
                            TypeRef::Table(ty) => {
                                tables.push(ty);
                                Kind::Table(ty)
                            }
                            TypeRef::Memory(ty) => {
                                memories.push(ty);
                                Kind::Memory(ty)
                            }
                            TypeRef::Global(ty) => {
                                globals.push(ty);
                                Kind::Global(ty)
                            }
                            TypeRef::Tag(ty) => {
                                tags.push(ty.func_type_idx);
                                Kind::Tag(this.types[ty.func_type_idx as usize].clone())
                            }
                        };
                        let (module, name) = (import.module.to_owned(), import.name.to_owned());
                        this.imports.push(Import { module, name, kind });
                    }
                }
                Payload::FunctionSection(section) => {
                    for ty in section {
                        functions.push(ty?);
                    }
                }
                Payload::TableSection(section) => {
                    for table in section {
                        tables.push(table?.ty);
                    }
                }
                Payload::MemorySection(section) => {
                    for memory in section {
                        memories.push(memory?);
                    }
                }
                Payload::TagSection(section) => {
                    for tag in section {
                        tags.push(tag?.func_type_idx);
                    }
                }
                Payload::GlobalSection(section) => {
                    for global in section {
                        globals.push(global?.ty);
                    }
                }
                Payload::ExportSection(section) => {
                    for export in section {
                        let export = export?;
                        let i = export.index as usize;
                        let kind = match export.kind {
                            ExternalKind::Func | ExternalKind::FuncExact => {
                                Kind::Func(this.types[functions[i] as usize].clone())
                            }
                            ExternalKind::Table => Kind::Table(tables[i]),
                            ExternalKind::Memory => Kind::Memory(memories[i]),
                            ExternalKind::Global => Kind::Global(globals[i]),
                            ExternalKind::Tag => Kind::Tag(this.types[tags[i] as usize].clone()),
                        };
                        let (name, index) = (export.name.to_owned(), export.index);
                        this.exports.push(Export { name, kind, index });
                    }
                }
                _ => {}
            }
        }
        Ok(this)
    }

    /// How many functions are imported.
    pub fn imported_functions(&self) -> u32 {
        self.imports.iter().filter(|import| matches!(import.kind, Kind::Func(_))).count() as u32
    }
}

impl Kind {
    /// The types of values that it has to do with.
    pub fn types(&self) -> Vec<ValType> {
        match self {
            Self::Func(ty) | Self::Tag(ty) => {
                ty.params().iter().chain(ty.results()).copied().collect()
            }
            Self::Table(ty) => vec![ValType::Ref(ty.element_type)],
            Self::Global(ty) => vec![ty.content_type],
            Self::Memory(_) => Vec::new(),
        }
    }
}
