//! What a module declares: types, imports, exports, segments.

use std::fmt;

use crate::segments::DataSegments;

/// A WebAssembly value type.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
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
    /// Reference to a function, a host value or an exception.
    Ref(RefType),
}

/// The type of a reference.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RefType {
    /// Whether null is one of its values.
    pub nullable: bool,
    /// What it refers to.
    pub heap: HeapType,
}

/// What a reference refers to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum HeapType {
    /// Any function.
    Func,
    /// A function of this type. In what a module declares, the number is the
    /// canonical type index; in what the runtime hands out, the engine's number.
    Concrete(u32),
    /// No function: only null is of such a type.
    NoFunc,
    /// A host value.
    Extern,
    /// No host value.
    NoExtern,
    /// An exception.
    Exn,
    /// No exception.
    NoExn,
}

impl ValType {
    /// `funcref`: any function, or null.
    pub const FUNCREF: Self = Self::Ref(RefType::FUNCREF);
    /// `externref`: a host value, or null.
    pub const EXTERNREF: Self = Self::Ref(RefType::EXTERNREF);
    /// `exnref`: an exception, or null.
    pub const EXNREF: Self = Self::Ref(RefType::EXNREF);

    /// Whether values of this type are references.
    pub const fn is_ref(self) -> bool {
        matches!(self, Self::Ref(_))
    }

    /// Whether a value of this type can name its owner by the place it is in, so
    /// that it changes when it moves to a place of another owner.
    pub const fn has_owner(self) -> bool {
        matches!(self, Self::Ref(ty) if !matches!(ty.heap, HeapType::Extern | HeapType::NoExtern))
    }

    /// Whether every value of this type is one of `other`. Both must count
    /// concrete types in the same way.
    pub fn is_subtype(self, other: Self) -> bool {
        match (self, other) {
            (Self::Ref(a), Self::Ref(b)) => a.is_subtype(b),
            _ => self == other,
        }
    }

    /// The same type with its concrete type numbered by `number`.
    pub fn map_concrete(self, number: impl FnOnce(u32) -> u32) -> Self {
        match self {
            Self::Ref(RefType { nullable, heap: HeapType::Concrete(ty) }) => {
                Self::Ref(RefType { nullable, heap: HeapType::Concrete(number(ty)) })
            }
            other => other,
        }
    }
}

impl RefType {
    /// Any function, or null.
    pub const FUNCREF: Self = Self { nullable: true, heap: HeapType::Func };
    /// A host value, or null.
    pub const EXTERNREF: Self = Self { nullable: true, heap: HeapType::Extern };
    /// An exception, or null.
    pub const EXNREF: Self = Self { nullable: true, heap: HeapType::Exn };

    /// Whether every value of this type is one of `other`.
    pub fn is_subtype(self, other: Self) -> bool {
        (other.nullable || !self.nullable) && self.heap.is_subtype(other.heap)
    }
}

impl HeapType {
    /// The largest type of the same kind: functions, host values or exceptions.
    pub const fn top(self) -> Self {
        match self {
            Self::Func | Self::Concrete(_) | Self::NoFunc => Self::Func,
            Self::Extern | Self::NoExtern => Self::Extern,
            Self::Exn | Self::NoExn => Self::Exn,
        }
    }

    /// Whether everything of this type is of type `other`.
    pub fn is_subtype(self, other: Self) -> bool {
        let is_bottom = matches!(self, Self::NoFunc | Self::NoExtern | Self::NoExn);
        self == other || (self.top() == other.top() && (is_bottom || other == other.top()))
    }
}

impl fmt::Display for ValType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::I32 => f.write_str("i32"),
            Self::I64 => f.write_str("i64"),
            Self::F32 => f.write_str("f32"),
            Self::F64 => f.write_str("f64"),
            Self::V128 => f.write_str("v128"),
            Self::Ref(ty) => ty.fmt(f),
        }
    }
}

impl fmt::Display for RefType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.nullable, self.heap) {
            (true, HeapType::Func) => f.write_str("funcref"),
            (true, HeapType::Extern) => f.write_str("externref"),
            (true, HeapType::Exn) => f.write_str("exnref"),
            (true, heap) => write!(f, "(ref null {heap})"),
            (false, heap) => write!(f, "(ref {heap})"),
        }
    }
}

impl fmt::Display for HeapType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Func => f.write_str("func"),
            Self::Concrete(ty) => write!(f, "{ty}"),
            Self::NoFunc => f.write_str("nofunc"),
            Self::Extern => f.write_str("extern"),
            Self::NoExtern => f.write_str("noextern"),
            Self::Exn => f.write_str("exn"),
            Self::NoExn => f.write_str("noexn"),
        }
    }
}

/// The type of a function.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct FuncType {
    /// Types of the parameters, in order.
    pub params: Box<[ValType]>,
    /// Types of the results, in order.
    pub results: Box<[ValType]>,
}

impl FuncType {
    /// The same type with its concrete types numbered by `number`.
    pub fn map_concrete(&self, number: impl Fn(u32) -> u32) -> Self {
        let map = |types: &[ValType]| types.iter().map(|ty| ty.map_concrete(&number)).collect();
        Self { params: map(&self.params), results: map(&self.results) }
    }
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
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct GlobalType {
    /// Type of the value.
    pub content: ValType,
    /// Whether it can be written.
    pub mutable: bool,
}

/// The type of a table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct TableType {
    /// Type of the elements.
    pub element: RefType,
    /// Initial length, in elements.
    pub minimum: u64,
    /// Largest length, in elements, where the module gives one.
    pub maximum: Option<u64>,
    /// Whether elements are indexed by 64 bits.
    pub table64: bool,
}

/// The type of a memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct MemoryType {
    /// Initial size, in wasm pages.
    pub minimum: u64,
    /// Largest size, in wasm pages, where the module gives one.
    pub maximum: Option<u64>,
    /// Whether bytes are indexed by 64 bits.
    pub memory64: bool,
}

/// What an import must be, or an export is.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ExternType {
    /// A function.
    Func(FuncType),
    /// A global.
    Global(GlobalType),
    /// A table.
    Table(TableType),
    /// A memory.
    Memory(MemoryType),
    /// A tag of exceptions: the function type whose parameters they carry.
    Tag(FuncType),
}

/// One import of a module.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
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
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ExportInfo {
    /// Its name.
    pub name: String,
    /// What is exported.
    pub item: Item,
}

/// An entity by its index in the module's index space of its kind. An import
/// stands for the entity that it adds to that space.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Item {
    /// A function.
    Func(u32),
    /// A global.
    Global(u32),
    /// A table.
    Table(u32),
    /// A memory.
    Memory(u32),
    /// A tag of exceptions.
    Tag(u32),
}

/// A constant expression, evaluated when the image is made, or at spawn where it
/// needs an imported reference.
#[derive(Clone, PartialEq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ConstExpr {
    /// A number or vector: its bits, zero-extended.
    Bits(u128),
    /// `ref.null`.
    Null,
    /// `ref.func` of this function.
    Func(u32),
    /// The value of this global.
    Global(u32),
    /// Arithmetic on integers: steps of a stack machine that leave one number.
    Extended(Box<[ConstOp]>),
}

/// A step of an extended constant expression.
#[derive(Clone, Copy, PartialEq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ConstOp {
    /// Pushes a number: its bits, zero-extended.
    Bits(u64),
    /// Pushes the value of this global.
    Global(u32),
    /// Takes two numbers and pushes their sum.
    Add(IntWidth),
    /// Takes two numbers and pushes the lower less the upper.
    Sub(IntWidth),
    /// Takes two numbers and pushes their product.
    Mul(IntWidth),
}

/// Width of integers: results wrap around.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum IntWidth {
    /// 32 bits.
    W32,
    /// 64 bits.
    W64,
}

impl ConstExpr {
    /// The globals that the value depends on.
    pub fn globals(&self) -> impl Iterator<Item = u32> {
        let (one, many) = match self {
            Self::Global(index) => (Some(*index), &[][..]),
            Self::Extended(steps) => (None, &**steps),
            _ => (None, &[][..]),
        };
        let named = many.iter().filter_map(|step| match step {
            ConstOp::Global(index) => Some(*index),
            _ => None,
        });
        one.into_iter().chain(named)
    }
}

/// What the steps of an extended constant expression leave, where `global` gives
/// the bits of a global. `None` if it does not know one.
///
/// # Panics
/// If the steps are not those of a valid expression.
pub fn evaluate(steps: &[ConstOp], mut global: impl FnMut(u32) -> Option<u64>) -> Option<u64> {
    let mut stack = Vec::new();
    for step in steps {
        let mut binary = |width, operation: fn(u64, u64) -> u64| {
            let upper = stack.pop().expect("validated: two operands");
            let lower = stack.pop().expect("validated: two operands");
            let result = operation(lower, upper);
            match width {
                IntWidth::W32 => u64::from(result as u32),
                IntWidth::W64 => result,
            }
        };
        let value = match *step {
            ConstOp::Bits(bits) => bits,
            ConstOp::Global(index) => global(index)?,
            ConstOp::Add(width) => binary(width, u64::wrapping_add),
            ConstOp::Sub(width) => binary(width, u64::wrapping_sub),
            ConstOp::Mul(width) => binary(width, u64::wrapping_mul),
        };
        stack.push(value);
    }
    Some(stack.pop().expect("validated: one result"))
}

/// What happens to a segment at instantiation.
#[derive(Clone, PartialEq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
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
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ElementSegment {
    /// What happens to it.
    pub mode: SegmentMode,
    /// Type of its items.
    pub element: RefType,
    /// Its items.
    pub items: Box<[ConstExpr]>,
}

/// A data segment.
#[derive(Clone, PartialEq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct DataSegment {
    /// What happens to it.
    pub mode: SegmentMode,
    /// Where its bytes are among those of all segments, which lie in the
    /// [code image](crate::code::CodeImage::data).
    pub bytes: std::ops::Range<u32>,
}

/// Everything a module declares, apart from its function bodies.
///
/// Index spaces begin with the imports, as in the binary format.
#[derive(Clone, PartialEq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ModuleInfo {
    /// Distinct function types. `types[i]` is what the *canonical type index* `i`
    /// means; the module's own type indices are resolved by the compiler.
    pub types: Vec<FuncType>,
    /// Imports, in order.
    pub imports: Vec<Import>,
    /// Exports, in order.
    pub exports: Vec<ExportInfo>,
    /// Canonical type index of every function.
    #[cfg_attr(feature = "serde", serde(with = "crate::bytes::packed"))]
    pub functions: Vec<u32>,
    /// Canonical type index of every tag of exceptions.
    pub tags: Vec<u32>,
    /// Every table.
    pub tables: Vec<TableType>,
    /// What the tables that the module defines itself are full of at first: null
    /// where nothing is said.
    pub table_inits: Vec<Option<ConstExpr>>,
    /// Every memory.
    pub memories: Vec<MemoryType>,
    /// Every global.
    pub globals: Vec<GlobalType>,
    /// Initial values of the globals the module defines itself.
    pub global_inits: Vec<ConstExpr>,
    /// How many of `functions` are imported.
    pub imported_functions: u32,
    /// How many of `tags` are imported.
    pub imported_tags: u32,
    /// How many of `tables` are imported.
    pub imported_tables: u32,
    /// How many of `memories` are imported.
    pub imported_memories: u32,
    /// How many of `globals` are imported.
    pub imported_globals: u32,
    /// Element segments.
    pub elements: Vec<ElementSegment>,
    /// Data segments.
    pub data: DataSegments,
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
            Item::Tag(i) => ExternType::Tag(self.types[self.tags[i as usize] as usize].clone()),
        }
    }

    /// The name of function `index`, where the module gives one.
    pub fn function_name(&self, index: u32) -> Option<&str> {
        let at = self.function_names.binary_search_by_key(&index, |(i, _)| *i).ok()?;
        Some(&self.function_names[at].1)
    }
}
