//! Types as C reads them: with the vectors, limits and further types that its functions lend.

use pagefork::{
    ExternType, FuncType, GlobalType, HeapType, MemoryType, Mutability, RefType, Result, TableType,
    ValType,
};

use crate::base::border::{BorderError, given};
use crate::base::c_vec::{CVec, Element, OwnedVec};

/// Kinds of values, as in both headers.
pub(crate) mod kind {
    /// `i32`.
    pub(crate) const I32: u8 = 0;
    /// `i64`.
    pub(crate) const I64: u8 = 1;
    /// `f32`.
    pub(crate) const F32: u8 = 2;
    /// `f64`.
    pub(crate) const F64: u8 = 3;
    /// `v128`, which only `pagefork.h` has.
    pub(crate) const V128: u8 = 4;
    /// References to anything of the host.
    pub(crate) const EXTERNREF: u8 = 128;
    /// References to functions.
    pub(crate) const FUNCREF: u8 = 129;
    /// References to exceptions, which only `pagefork.h` has.
    pub(crate) const EXNREF: u8 = 130;
}

/// Kinds of what is imported and exported, as in both headers.
pub(crate) mod extern_kind {
    /// A function.
    pub(crate) const FUNC: u8 = 0;
    /// A global.
    pub(crate) const GLOBAL: u8 = 1;
    /// A table.
    pub(crate) const TABLE: u8 = 2;
    /// A memory.
    pub(crate) const MEMORY: u8 = 3;
    /// A tag, which only `pagefork.h` has.
    pub(crate) const TAG: u8 = 4;
}

/// The kind of a type's values.
pub(crate) fn kind_of(ty: ValType) -> u8 {
    match ty {
        ValType::I32 => kind::I32,
        ValType::I64 => kind::I64,
        ValType::F32 => kind::F32,
        ValType::F64 => kind::F64,
        ValType::V128 => kind::V128,
        ValType::Ref(ty) => match ty.heap.top() {
            HeapType::Extern => kind::EXTERNREF,
            HeapType::Exn => kind::EXNREF,
            _ => kind::FUNCREF,
        },
    }
}

/// A type of values.
#[derive(Clone, Copy)]
pub(crate) struct wasm_valtype_t(pub(crate) ValType);

impl Element for wasm_valtype_t {
    fn copy(&self) -> Self {
        *self
    }
}

impl wasm_valtype_t {
    /// The type whose values are of this kind.
    ///
    /// # Errors
    /// If there is no such kind.
    pub(crate) fn of_kind(number: u8) -> Result<Self> {
        Ok(Self(match number {
            kind::I32 => ValType::I32,
            kind::I64 => ValType::I64,
            kind::F32 => ValType::F32,
            kind::F64 => ValType::F64,
            kind::V128 => ValType::V128,
            kind::EXTERNREF => ValType::EXTERNREF,
            kind::FUNCREF => ValType::FUNCREF,
            kind::EXNREF => ValType::EXNREF,
            _ => {
                let text = format!("there is no kind {number} of values");
                return Err(BorderError::Unfit(text).into());
            }
        }))
    }
}

/// A vector of types of values.
pub(crate) type wasm_valtype_vec_t = CVec<Option<Box<wasm_valtype_t>>>;

/// A minimum and a maximum; the largest number is no maximum.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct wasm_limits_t {
    min: u32,
    max: u32,
}

impl wasm_limits_t {
    /// What stands for no maximum.
    const NO_MAX: u32 = u32::MAX;

    fn new(minimum: u64, maximum: Option<u64>) -> Self {
        let narrow = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        Self { min: narrow(minimum), max: maximum.map_or(Self::NO_MAX, narrow) }
    }

    fn maximum(self) -> Option<u32> {
        (self.max != Self::NO_MAX).then_some(self.max)
    }
}

/// The type of what is imported and exported, whichever it is: C's pointers to the type of a
/// function and to that of an external lead to the same thing.
pub(crate) struct wasm_externtype_t {
    /// The type itself.
    pub(crate) ty: ExternType,
    view: TypeView,
}

/// What functions of C's lend of a type.
enum TypeView {
    Func {
        params: OwnedVec<Option<Box<wasm_valtype_t>>>,
        results: OwnedVec<Option<Box<wasm_valtype_t>>>,
    },
    Global(wasm_valtype_t),
    Table(wasm_valtype_t, wasm_limits_t),
    Memory(wasm_limits_t),
}

impl Element for wasm_externtype_t {
    fn copy(&self) -> Self {
        Self::new(self.ty.clone())
    }
}

/// Types of values, for C to read.
fn valtypes(types: &[ValType]) -> OwnedVec<Option<Box<wasm_valtype_t>>> {
    let types = types.iter().map(|ty| Some(Box::new(wasm_valtype_t(*ty)))).collect();
    // Without memory for a few words nothing goes on: a vector of Rust's would abort.
    CVec::new(types).unwrap_or(CVec::EMPTY).into()
}

/// The types in a vector of C's.
fn types_in(vec: &wasm_valtype_vec_t) -> Result<Box<[ValType]>> {
    let types = vec.elements()?.iter();
    types.map(|ty| Ok(given(ty.as_deref(), "type in a vector")?.0)).collect()
}

impl wasm_externtype_t {
    /// A type, ready to be read.
    pub(crate) fn new(ty: ExternType) -> Self {
        let view = match &ty {
            ExternType::Func(ty) | ExternType::Tag(ty) => {
                TypeView::Func { params: valtypes(&ty.params), results: valtypes(&ty.results) }
            }
            ExternType::Global(ty) => TypeView::Global(wasm_valtype_t(ty.content)),
            ExternType::Table(ty) => TypeView::Table(
                wasm_valtype_t(ValType::Ref(ty.element)),
                wasm_limits_t::new(ty.minimum, ty.maximum),
            ),
            ExternType::Memory(ty) => TypeView::Memory(wasm_limits_t::new(ty.minimum, ty.maximum)),
        };
        Self { ty, view }
    }

    /// The type of a function with these parameters and results.
    ///
    /// # Errors
    /// If a type in a vector is null.
    pub(crate) fn of_func(
        params: OwnedVec<Option<Box<wasm_valtype_t>>>,
        results: OwnedVec<Option<Box<wasm_valtype_t>>>,
    ) -> Result<Self> {
        let ty = FuncType { params: types_in(&params)?, results: types_in(&results)? };
        Ok(Self { ty: ExternType::Func(ty), view: TypeView::Func { params, results } })
    }

    /// The type of a global with such a value.
    ///
    /// # Errors
    /// If there is no such mutability.
    pub(crate) fn of_global(content: wasm_valtype_t, mutability: u8) -> Result<Self> {
        let mutability = match mutability {
            0 => Mutability::Const,
            1 => Mutability::Var,
            _ => {
                let text = format!("there is no mutability {mutability}");
                return Err(BorderError::Unfit(text).into());
            }
        };
        Ok(Self::new(ExternType::Global(GlobalType::new(content.0, mutability))))
    }

    /// The type of a table of such elements.
    ///
    /// # Errors
    /// If the elements are no references.
    pub(crate) fn of_table(element: wasm_valtype_t, limits: wasm_limits_t) -> Result<Self> {
        let element: RefType = match element.0 {
            ValType::Ref(ty) => ty,
            other => {
                let text = format!("elements of tables are references, not {other}");
                return Err(BorderError::Unfit(text).into());
            }
        };
        Ok(Self::new(TableType::new(element, limits.min, limits.maximum()).into()))
    }

    /// The type of a memory.
    pub(crate) fn of_memory(limits: wasm_limits_t) -> Self {
        Self::new(MemoryType::new(limits.min, limits.maximum()).into())
    }

    /// Which of the kinds it is of.
    pub(crate) fn kind(&self) -> u8 {
        match self.ty {
            ExternType::Func(_) => extern_kind::FUNC,
            ExternType::Global(_) => extern_kind::GLOBAL,
            ExternType::Table(_) => extern_kind::TABLE,
            ExternType::Memory(_) => extern_kind::MEMORY,
            ExternType::Tag(_) => extern_kind::TAG,
        }
    }

    fn kind_name(&self) -> &'static str {
        match self.ty {
            ExternType::Func(_) => "function type",
            ExternType::Global(_) => "global type",
            ExternType::Table(_) => "table type",
            ExternType::Memory(_) => "memory type",
            ExternType::Tag(_) => "tag type",
        }
    }

    fn wrong(&self, expected: &'static str) -> BorderError {
        BorderError::WrongKind { expected, found: self.kind_name() }
    }

    /// The type of the function.
    ///
    /// # Errors
    /// If it is another type.
    pub(crate) fn func(&self) -> Result<&FuncType> {
        match &self.ty {
            ExternType::Func(ty) => Ok(ty),
            _ => Err(self.wrong("function type").into()),
        }
    }

    /// The type of the global.
    ///
    /// # Errors
    /// If it is another type.
    pub(crate) fn global(&self) -> Result<GlobalType> {
        match &self.ty {
            ExternType::Global(ty) => Ok(*ty),
            _ => Err(self.wrong("global type").into()),
        }
    }

    /// The type of the table.
    ///
    /// # Errors
    /// If it is another type.
    pub(crate) fn table(&self) -> Result<TableType> {
        match &self.ty {
            ExternType::Table(ty) => Ok(*ty),
            _ => Err(self.wrong("table type").into()),
        }
    }

    /// The type of the memory.
    ///
    /// # Errors
    /// If it is another type.
    pub(crate) fn memory(&self) -> Result<MemoryType> {
        match &self.ty {
            ExternType::Memory(ty) => Ok(*ty),
            _ => Err(self.wrong("memory type").into()),
        }
    }

    /// The types of a function's or tag's parameters and results.
    ///
    /// # Errors
    /// If it is another type.
    pub(crate) fn params_and_results(&self) -> Result<(&wasm_valtype_vec_t, &wasm_valtype_vec_t)> {
        match &self.view {
            TypeView::Func { params, results } => Ok((params, results)),
            _ => Err(self.wrong("function type").into()),
        }
    }

    /// The type of a global's value, or a table's elements.
    ///
    /// # Errors
    /// If it is another type.
    pub(crate) fn content(&self) -> Result<&wasm_valtype_t> {
        match &self.view {
            TypeView::Global(content) | TypeView::Table(content, _) => Ok(content),
            _ => Err(self.wrong("global or table type").into()),
        }
    }

    /// The limits of a table or memory.
    ///
    /// # Errors
    /// If it is another type.
    pub(crate) fn limits(&self) -> Result<&wasm_limits_t> {
        match &self.view {
            TypeView::Table(_, limits) | TypeView::Memory(limits) => Ok(limits),
            _ => Err(self.wrong("table or memory type").into()),
        }
    }
}

/// A name or other bytes that a type owns.
type OwnedBytes = OwnedVec<u8>;

/// What a module needs.
pub(crate) struct wasm_importtype_t {
    /// First name.
    pub(crate) module: OwnedBytes,
    /// Second name.
    pub(crate) name: OwnedBytes,
    /// What it must be.
    pub(crate) ty: Box<wasm_externtype_t>,
}

/// What a module gives.
pub(crate) struct wasm_exporttype_t {
    /// Its name.
    pub(crate) name: OwnedBytes,
    /// What it is.
    pub(crate) ty: Box<wasm_externtype_t>,
}

fn copy_of(bytes: &OwnedBytes) -> OwnedBytes {
    bytes.copy().unwrap_or(CVec::EMPTY).into()
}

impl Element for wasm_importtype_t {
    fn copy(&self) -> Self {
        let ty = Box::new(self.ty.copy());
        Self { module: copy_of(&self.module), name: copy_of(&self.name), ty }
    }
}

impl Element for wasm_exporttype_t {
    fn copy(&self) -> Self {
        Self { name: copy_of(&self.name), ty: Box::new(self.ty.copy()) }
    }
}
