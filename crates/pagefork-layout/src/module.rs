use std::fmt;

/// A WebAssembly value type.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ValType {
    /// 32-bit integer.
    I32,
    /// 64-bit integer.
    I64,
    /// 32-bit float.
    F32,
    /// 64-bit float.
    F64,
    /// 128-bit vector.
    V128,
    /// Reference to a function, or null.
    FuncRef,
    /// Reference to a host value, or null.
    ExternRef,
}

impl ValType {
    /// Whether values of this type are references.
    pub const fn is_ref(self) -> bool {
        matches!(self, Self::FuncRef | Self::ExternRef)
    }

    /// Whether a value of this type can name its owner by the place it is in, so
    /// that it changes when it moves to a place of another owner.
    pub const fn has_owner(self) -> bool {
        matches!(self, Self::FuncRef)
    }
}

impl fmt::Display for ValType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::V128 => "v128",
            Self::FuncRef => "funcref",
            Self::ExternRef => "externref",
        })
    }
}

/// The type of a function.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct FuncType {
    /// Types of the parameters, in order.
    pub params: Box<[ValType]>,
    /// Types of the results, in order.
    pub results: Box<[ValType]>,
}

impl fmt::Display for FuncType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |types: &[ValType]| {
            types.iter().map(|ty| ty.to_string()).collect::<Vec<_>>().join(", ")
        };
        write!(f, "({}) -> ({})", list(&self.params), list(&self.results))
    }
}

/// The type of a global.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct GlobalType {
    /// Type of the value.
    pub content: ValType,
    /// Whether it can be written.
    pub mutable: bool,
}

/// The type of a table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TableType {
    /// Type of the elements.
    pub element: ValType,
    /// Initial length, in elements.
    pub minimum: u32,
    /// Largest length, in elements, where the module gives one.
    pub maximum: Option<u32>,
}

/// The type of a memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MemoryType {
    /// Initial size, in wasm pages.
    pub minimum: u64,
    /// Largest size, in wasm pages, where the module gives one.
    pub maximum: Option<u64>,
}

/// What an import must be, or an export is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ExternType {
    /// A function.
    Func(FuncType),
    /// A global.
    Global(GlobalType),
    /// A table.
    Table(TableType),
    /// A memory.
    Memory(MemoryType),
}

/// One import of a module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Import {
    /// First name: the module imported from.
    pub module: String,
    /// Second name.
    pub name: String,
    /// What it must be.
    pub item: Item,
}

/// One export of a module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Export {
    /// Its name.
    pub name: String,
    /// What is exported.
    pub item: Item,
}

/// An entity by its index in the module's index space of its kind. An import
/// stands for the entity that it adds to that space.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Item {
    /// A function.
    Func(u32),
    /// A global.
    Global(u32),
    /// A table.
    Table(u32),
    /// A memory.
    Memory(u32),
}

/// A constant expression, evaluated when the image is made, or at spawn where it
/// needs an imported reference.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum ConstExpr {
    /// A number or vector: its bits, zero-extended.
    Bits(u128),
    /// `ref.null`.
    Null,
    /// `ref.func` of this function.
    Func(u32),
    /// The value of this global.
    Global(u32),
}

/// What happens to a segment at instantiation.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum SegmentMode {
    /// Copied into the table or memory `target` at `offset`, then dropped.
    Active {
        /// Index of the table or memory.
        target: u32,
        /// Where to copy it, in elements or bytes.
        offset: ConstExpr,
    },
    /// Kept for `table.init` or `memory.init`.
    Passive,
    /// An element segment that only declares functions as referenced: dropped.
    Declared,
}

/// An element segment.
#[derive(Clone, PartialEq, Debug)]
pub struct ElementSegment {
    /// What happens to it.
    pub mode: SegmentMode,
    /// Type of its items.
    pub element: ValType,
    /// Its items.
    pub items: Box<[ConstExpr]>,
}

/// A data segment.
#[derive(Clone, PartialEq, Debug)]
pub struct DataSegment {
    /// What happens to it.
    pub mode: SegmentMode,
    /// Its bytes.
    pub bytes: Box<[u8]>,
}

/// Everything a module declares, apart from its function bodies.
///
/// Index spaces begin with the imports, as in the binary format.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ModuleInfo {
    /// Distinct function types. `types[i]` is what the *canonical type index* `i`
    /// means; the module's own type indices are resolved by the compiler.
    pub types: Vec<FuncType>,
    /// Imports, in order.
    pub imports: Vec<Import>,
    /// Exports, in order.
    pub exports: Vec<Export>,
    /// Canonical type index of every function.
    pub functions: Vec<u32>,
    /// Every table.
    pub tables: Vec<TableType>,
    /// Every memory.
    pub memories: Vec<MemoryType>,
    /// Every global.
    pub globals: Vec<GlobalType>,
    /// Initial values of the globals the module defines itself.
    pub global_inits: Vec<ConstExpr>,
    /// How many of `functions` are imported.
    pub imported_functions: u32,
    /// How many of `tables` are imported.
    pub imported_tables: u32,
    /// How many of `memories` are imported.
    pub imported_memories: u32,
    /// How many of `globals` are imported.
    pub imported_globals: u32,
    /// Element segments.
    pub elements: Vec<ElementSegment>,
    /// Data segments.
    pub data: Vec<DataSegment>,
    /// The start function.
    pub start: Option<u32>,
    /// The module's name, from the name section.
    pub name: Option<String>,
    /// Names of functions, from the name section: (index, name), ascending.
    pub function_names: Vec<(u32, String)>,
}

impl ModuleInfo {
    /// The type of function `index`.
    ///
    /// # Panics
    /// If there is no such function.
    pub fn function_type(&self, index: u32) -> &FuncType {
        &self.types[self.functions[index as usize] as usize]
    }

    /// The type of `item`.
    ///
    /// # Panics
    /// If there is no such item.
    pub fn item_type(&self, item: Item) -> ExternType {
        match item {
            Item::Func(i) => ExternType::Func(self.function_type(i).clone()),
            Item::Global(i) => ExternType::Global(self.globals[i as usize]),
            Item::Table(i) => ExternType::Table(self.tables[i as usize]),
            Item::Memory(i) => ExternType::Memory(self.memories[i as usize]),
        }
    }

    /// The name of function `index`, where the module gives one.
    pub fn function_name(&self, index: u32) -> Option<&str> {
        let at = self.function_names.binary_search_by_key(&index, |(i, _)| *i).ok()?;
        Some(&self.function_names[at].1)
    }
}
