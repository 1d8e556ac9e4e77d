//! Types by their constructors and accessors, as embedders make and read them.

use crate::module::{
    ExternType, FuncType, GlobalType, HeapType, MemoryType, RefType, TableType, ValType,
};

/// Whether a global can be written.
///
/// # Examples
///
/// See [`GlobalType::new`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mutability {
    /// It keeps its first value.
    Const,
    /// It can be written.
    Var,
}

impl Mutability {
    /// Whether it is [`Mutability::Const`].
    pub const fn is_const(&self) -> bool {
        matches!(self, Self::Const)
    }

    /// Whether it is [`Mutability::Var`].
    pub const fn is_var(&self) -> bool {
        matches!(self, Self::Var)
    }
}

impl ValType {
    /// `nullfuncref`: null alone, as a function.
    pub const NULLFUNCREF: Self = Self::Ref(RefType::NULLFUNCREF);
    /// `nullexternref`: null alone, as a host value.
    pub const NULLEXTERNREF: Self = Self::Ref(RefType::NULLEXTERNREF);
    /// `nullexnref`: null alone, as an exception.
    pub const NULLEXNREF: Self = Self::Ref(RefType::NULLEXNREF);

    /// Whether it is an integer or a float; vectors are neither.
    pub const fn is_num(&self) -> bool {
        matches!(self, Self::I32 | Self::I64 | Self::F32 | Self::F64)
    }

    /// Whether it is `i32`.
    pub const fn is_i32(&self) -> bool {
        matches!(self, Self::I32)
    }

    /// Whether it is `i64`.
    pub const fn is_i64(&self) -> bool {
        matches!(self, Self::I64)
    }

    /// Whether it is `f32`.
    pub const fn is_f32(&self) -> bool {
        matches!(self, Self::F32)
    }

    /// Whether it is `f64`.
    pub const fn is_f64(&self) -> bool {
        matches!(self, Self::F64)
    }

    /// Whether it is `v128`.
    pub const fn is_v128(&self) -> bool {
        matches!(self, Self::V128)
    }

    /// Whether it is `funcref`, and no type within it.
    pub const fn is_funcref(&self) -> bool {
        matches!(self, Self::Ref(RefType { nullable: true, heap: HeapType::Func }))
    }

    /// Whether it is `externref`, and no type within it.
    pub const fn is_externref(&self) -> bool {
        matches!(self, Self::Ref(RefType { nullable: true, heap: HeapType::Extern }))
    }

    /// The type of the reference, if it is one.
    pub const fn as_ref(&self) -> Option<&RefType> {
        if let Self::Ref(ty) = self { Some(ty) } else { None }
    }

    /// The type of the reference.
    ///
    /// # Panics
    /// If it is no reference.
    pub const fn unwrap_ref(&self) -> &RefType {
        self.as_ref().expect("a reference type")
    }

    /// Whether every value of this type is one of `other`: [`ValType::is_subtype`].
    pub fn matches(&self, other: &Self) -> bool {
        self.is_subtype(*other)
    }
}

impl RefType {
    /// Null alone, as a function.
    pub const NULLFUNCREF: Self = Self { nullable: true, heap: HeapType::NoFunc };
    /// Null alone, as a host value.
    pub const NULLEXTERNREF: Self = Self { nullable: true, heap: HeapType::NoExtern };
    /// Null alone, as an exception.
    pub const NULLEXNREF: Self = Self { nullable: true, heap: HeapType::NoExn };

    /// References to `heap`, and null if it is `nullable`.
    pub const fn new(nullable: bool, heap: HeapType) -> Self {
        Self { nullable, heap }
    }

    /// Whether null is one of its values.
    pub const fn is_nullable(&self) -> bool {
        self.nullable
    }

    /// What it refers to.
    pub const fn heap_type(&self) -> &HeapType {
        &self.heap
    }

    /// Whether every value of this type is one of `other`: [`RefType::is_subtype`].
    pub fn matches(&self, other: &Self) -> bool {
        self.is_subtype(*other)
    }
}

impl HeapType {
    /// Whether it is `func`.
    pub const fn is_func(&self) -> bool {
        matches!(self, Self::Func)
    }

    /// Whether it is `nofunc`.
    pub const fn is_no_func(&self) -> bool {
        matches!(self, Self::NoFunc)
    }

    /// Whether it is `extern`.
    pub const fn is_extern(&self) -> bool {
        matches!(self, Self::Extern)
    }

    /// Whether it is `exn`.
    pub const fn is_exn(&self) -> bool {
        matches!(self, Self::Exn)
    }

    /// Whether it is `noexn`.
    pub const fn is_no_exn(&self) -> bool {
        matches!(self, Self::NoExn)
    }

    /// Whether it is a function type by its number.
    pub const fn is_concrete(&self) -> bool {
        matches!(self, Self::Concrete(_))
    }

    /// Whether it is none of a function type by its number.
    pub const fn is_abstract(&self) -> bool {
        !self.is_concrete()
    }

    /// Whether it is the largest type of its kind.
    pub fn is_top(&self) -> bool {
        *self == self.top()
    }

    /// The smallest type of the same kind, which only null has.
    pub const fn bottom(self) -> Self {
        match self {
            Self::Func | Self::Concrete(_) | Self::NoFunc => Self::NoFunc,
            Self::Extern | Self::NoExtern => Self::NoExtern,
            Self::Exn | Self::NoExn => Self::NoExn,
        }
    }

    /// Whether it is the smallest type of its kind.
    pub fn is_bottom(&self) -> bool {
        *self == self.bottom()
    }

    /// Whether everything of this type is of type `other`: [`HeapType::is_subtype`].
    pub fn matches(&self, other: &Self) -> bool {
        self.is_subtype(*other)
    }
}

impl FuncType {
    /// The type of functions with these parameters and results.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_layout::module::{FuncType, ValType};
    ///
    /// let ty = FuncType::new([ValType::I32, ValType::F64], []);
    /// assert_eq!((ty.param(1), ty.result(0)), (Some(ValType::F64), None));
    /// assert!(ty.params().eq([ValType::I32, ValType::F64]));
    /// ```
    pub fn new(
        params: impl IntoIterator<Item = ValType>,
        results: impl IntoIterator<Item = ValType>,
    ) -> Self {
        Self { params: params.into_iter().collect(), results: results.into_iter().collect() }
    }

    /// The type of parameter `index`, if there are as many.
    pub fn param(&self, index: usize) -> Option<ValType> {
        self.params.get(index).copied()
    }

    /// The types of the parameters, in order.
    pub fn params(&self) -> impl ExactSizeIterator<Item = ValType> + '_ {
        self.params.iter().copied()
    }

    /// The type of result `index`, if there are as many.
    pub fn result(&self, index: usize) -> Option<ValType> {
        self.results.get(index).copied()
    }

    /// The types of the results, in order.
    pub fn results(&self) -> impl ExactSizeIterator<Item = ValType> + '_ {
        self.results.iter().copied()
    }

    /// Whether a function of this type is one of `other`: if they are equal, since function
    /// types have no subtypes here.
    pub fn matches(&self, other: &Self) -> bool {
        self == other
    }
}

impl GlobalType {
    /// The type of globals with values of type `content`.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_layout::module::{GlobalType, ValType};
    /// use pagefork_layout::types::Mutability;
    ///
    /// let ty = GlobalType::new(ValType::I64, Mutability::Var);
    /// assert!(ty.content().is_i64() && ty.mutability().is_var());
    /// ```
    pub const fn new(content: ValType, mutability: Mutability) -> Self {
        Self { content, mutable: mutability.is_var() }
    }

    /// The type of the value.
    pub const fn content(&self) -> &ValType {
        &self.content
    }

    /// Whether it can be written.
    pub const fn mutability(&self) -> Mutability {
        if self.mutable { Mutability::Var } else { Mutability::Const }
    }
}

impl TableType {
    /// A table that is indexed by 32 bits; sizes are in elements.
    pub const fn new(element: RefType, minimum: u32, maximum: Option<u32>) -> Self {
        let (minimum, maximum) = (minimum as u64, widened(maximum));
        Self { element, minimum, maximum, table64: false }
    }

    /// A table that is indexed by 64 bits; sizes are in elements.
    pub const fn new64(element: RefType, minimum: u64, maximum: Option<u64>) -> Self {
        Self { element, minimum, maximum, table64: true }
    }

    /// Whether elements are indexed by 64 bits.
    pub const fn is_64(&self) -> bool {
        self.table64
    }

    /// The type of the elements.
    pub const fn element(&self) -> &RefType {
        &self.element
    }

    /// The initial length, in elements.
    pub const fn minimum(&self) -> u64 {
        self.minimum
    }

    /// The largest length, in elements, if there is one.
    pub const fn maximum(&self) -> Option<u64> {
        self.maximum
    }
}

impl MemoryType {
    /// A memory that is indexed by 32 bits; sizes are in wasm pages.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_layout::module::{ExternType, MemoryType};
    ///
    /// let ty = MemoryType::new(1, Some(2));
    /// assert_eq!((ty.minimum(), ty.maximum(), ty.is_64()), (1, Some(2), false));
    /// assert_eq!(ExternType::from(ty).unwrap_memory(), &ty);
    /// ```
    pub const fn new(minimum: u32, maximum: Option<u32>) -> Self {
        Self { minimum: minimum as u64, maximum: widened(maximum), memory64: false }
    }

    /// A memory that is indexed by 64 bits; sizes are in wasm pages.
    pub const fn new64(minimum: u64, maximum: Option<u64>) -> Self {
        Self { minimum, maximum, memory64: true }
    }

    /// Whether bytes are indexed by 64 bits.
    pub const fn is_64(&self) -> bool {
        self.memory64
    }

    /// The initial size, in wasm pages.
    pub const fn minimum(&self) -> u64 {
        self.minimum
    }

    /// The largest size, in wasm pages, if there is one.
    pub const fn maximum(&self) -> Option<u64> {
        self.maximum
    }
}

const fn widened(number: Option<u32>) -> Option<u64> {
    match number {
        Some(number) => Some(number as u64),
        None => None,
    }
}

macro_rules! extern_types {
    ($($variant:ident($ty:ty), $get:ident, $unwrap:ident, $what:literal;)*) => {
        impl ExternType {
            $(
                #[doc = concat!("The type, if it is that of a ", $what, ".")]
                pub const fn $get(&self) -> Option<&$ty> {
                    if let Self::$variant(ty) = self { Some(ty) } else { None }
                }

                #[doc = concat!("The type, which is that of a ", $what, ".")]
                ///
                /// # Panics
                #[doc = concat!("If it is not that of a ", $what, ".")]
                pub const fn $unwrap(&self) -> &$ty {
                    self.$get().expect(concat!("the type of a ", $what))
                }
            )*
        }
    };
}

extern_types! {
    Func(FuncType), func, unwrap_func, "function";
    Global(GlobalType), global, unwrap_global, "global";
    Table(TableType), table, unwrap_table, "table";
    Memory(MemoryType), memory, unwrap_memory, "memory";
    Tag(FuncType), tag, unwrap_tag, "tag";
}

macro_rules! conversions {
    ($($from:ty => $to:ident::$variant:ident;)*) => {$(
        impl From<$from> for $to {
            fn from(ty: $from) -> Self {
                Self::$variant(ty)
            }
        }
    )*};
}

conversions! {
    RefType => ValType::Ref;
    FuncType => ExternType::Func;
    GlobalType => ExternType::Global;
    TableType => ExternType::Table;
    MemoryType => ExternType::Memory;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_say_what_they_were_made_of() {
        let memory = MemoryType::new64(1, Some(1 << 40));
        assert!(memory.is_64() && !MemoryType::new(1, None).is_64());
        assert_eq!((memory.minimum(), memory.maximum()), (1, Some(1 << 40)));
        let table = TableType::new(RefType::FUNCREF, u32::MAX, Some(u32::MAX));
        assert_eq!((table.minimum(), table.maximum()), ((1 << 32) - 1, Some((1 << 32) - 1)));
        assert!(!table.is_64() && TableType::new64(RefType::FUNCREF, 0, None).is_64());
        assert_eq!(*table.element(), RefType::new(true, HeapType::Func));
        for mutability in [Mutability::Const, Mutability::Var] {
            let ty = GlobalType::new(ValType::V128, mutability);
            assert_eq!((ty.mutability(), *ty.content()), (mutability, ValType::V128));
        }
    }

    #[test]
    fn the_bottom_of_each_kind_matches_all_of_it_and_the_top_is_matched() {
        use HeapType::*;
        for heap in [Func, Concrete(3), NoFunc, Extern, NoExtern, Exn, NoExn] {
            assert!(heap.bottom().matches(&heap) && heap.matches(&heap.top()));
            assert_eq!(heap.is_top(), heap == heap.top());
            assert!(heap.bottom().is_bottom() && !heap.top().is_bottom());
            assert_eq!(heap.is_abstract(), heap != Concrete(3));
        }
        assert!(ValType::NULLFUNCREF.matches(&ValType::FUNCREF));
        assert!(!ValType::FUNCREF.matches(&ValType::NULLFUNCREF));
        assert!(!ValType::NULLEXNREF.matches(&ValType::EXTERNREF));
    }

    #[test]
    fn only_numbers_are_numbers() {
        let numbers = [ValType::I32, ValType::I64, ValType::F32, ValType::F64];
        assert!(numbers.iter().all(ValType::is_num));
        let others = [ValType::V128, ValType::FUNCREF, ValType::NULLEXTERNREF];
        assert!(!others.iter().any(ValType::is_num));
        assert!(ValType::FUNCREF.is_funcref() && !ValType::NULLFUNCREF.is_funcref());
        assert!(ValType::EXTERNREF.is_externref() && ValType::I32.as_ref().is_none());
    }

    #[test]
    fn the_type_of_an_import_is_of_one_kind() {
        let all = [
            ExternType::from(FuncType::default()),
            GlobalType::new(ValType::I32, Mutability::Const).into(),
            TableType::new(RefType::EXTERNREF, 0, None).into(),
            MemoryType::new(0, None).into(),
            ExternType::Tag(FuncType::default()),
        ];
        for (at, ty) in all.iter().enumerate() {
            let kinds = [
                ty.func().is_some(),
                ty.global().is_some(),
                ty.table().is_some(),
                ty.memory().is_some(),
                ty.tag().is_some(),
            ];
            assert_eq!(kinds.iter().position(|is| *is), Some(at), "{ty:?}");
            assert_eq!(kinds.iter().filter(|is| **is).count(), 1, "{ty:?}");
        }
    }

    #[test]
    #[should_panic(expected = "the type of a memory")]
    fn unwrapping_another_kind_of_type_panics() {
        ExternType::from(FuncType::default()).unwrap_memory();
    }
}
