//! WebAssembly values, and the cells that hold them.

use pagefork_layout::exception::ExceptionRef;
use pagefork_layout::module::{HeapType, RefType, ValType};
use pagefork_layout::reference::FuncRef;

use crate::base::cell::Cell;
use crate::base::error::{Result, UsageError};
use crate::store::exception::ExnRef;
use crate::store::group::StoreGroup;
use crate::store::handle::Func;
use crate::store::references::ExternRef;

/// A WebAssembly value. Floats are kept as their bits, so that no NaN changes.
///
/// # Examples
///
/// ```
/// use pagefork::{HeapType, Val, ValType};
///
/// let value = Val::from(1.5f32);
/// assert_eq!((value.ty(), value.f32(), value.i32()), (ValType::F32, Some(1.5), None));
/// assert_eq!(value.unwrap_f32(), 1.5);
/// assert_eq!(Val::default_for_ty(&ValType::I64).and_then(|zero| zero.i64()), Some(0));
///
/// assert!(Val::null_func_ref().unwrap_funcref().is_none());
/// assert!(Val::null_extern_ref().externref().is_some(), "it is one, and null");
/// assert_eq!(Val::null_ref(&HeapType::Exn).ty(), ValType::EXNREF);
/// assert_eq!(Val::from(1u128 << 100).v128(), Some(1 << 100));
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Val {
    /// 32-bit integer.
    I32(i32),
    /// 64-bit integer.
    I64(i64),
    /// 32-bit float: its bits.
    F32(u32),
    /// 64-bit float: its bits.
    F64(u64),
    /// 128-bit vector, little endian.
    V128(u128),
    /// Reference to a function, or null.
    FuncRef(Option<Func>),
    /// Reference to a host value, or null.
    ExternRef(Option<ExternRef>),
    /// Reference to an exception, or null.
    ExnRef(Option<ExnRef>),
}

impl Val {
    /// The value's type; of a reference, the largest one of its kind.
    ///
    /// # Examples
    ///
    /// See [`Val`].
    pub const fn ty(&self) -> ValType {
        match self {
            Self::I32(_) => ValType::I32,
            Self::I64(_) => ValType::I64,
            Self::F32(_) => ValType::F32,
            Self::F64(_) => ValType::F64,
            Self::V128(_) => ValType::V128,
            Self::FuncRef(_) => ValType::FUNCREF,
            Self::ExternRef(_) => ValType::EXTERNREF,
            Self::ExnRef(_) => ValType::EXNREF,
        }
    }

    /// Zero, or null, of type `ty`; `None` for references that cannot be null.
    ///
    /// # Examples
    ///
    /// See [`Val`].
    pub const fn default_for_ty(ty: &ValType) -> Option<Self> {
        Some(match *ty {
            ValType::I32 => Self::I32(0),
            ValType::I64 => Self::I64(0),
            ValType::F32 => Self::F32(0),
            ValType::F64 => Self::F64(0),
            ValType::V128 => Self::V128(0),
            ValType::Ref(RefType { nullable: false, .. }) => return None,
            ValType::Ref(ty) => Self::null_ref(&ty.heap),
        })
    }

    /// The null function.
    ///
    /// # Examples
    ///
    /// See [`Val`].
    pub const fn null_func_ref() -> Self {
        Self::FuncRef(None)
    }

    /// The null host value.
    ///
    /// # Examples
    ///
    /// See [`Val`].
    pub const fn null_extern_ref() -> Self {
        Self::ExternRef(None)
    }

    /// The null of this kind of reference.
    ///
    /// # Examples
    ///
    /// See [`Val`].
    pub const fn null_ref(heap: &HeapType) -> Self {
        match heap.top() {
            HeapType::Extern => Self::ExternRef(None),
            HeapType::Exn => Self::ExnRef(None),
            _ => Self::FuncRef(None),
        }
    }

    /// The value as it lies in a place of `store` that belongs to the instance
    /// `owner`.
    pub(crate) fn to_cell(self, store: &StoreGroup, owner: u32) -> Result<Cell> {
        Ok(match self {
            Self::I32(value) => Cell::from_u64(value as u32 as u64),
            Self::I64(value) => Cell::from_u64(value as u64),
            Self::F32(bits) => Cell::from_u64(bits.into()),
            Self::F64(bits) => Cell::from_u64(bits),
            Self::V128(bits) => Cell::from_u128(bits),
            Self::FuncRef(None) | Self::ExternRef(None) | Self::ExnRef(None) => Cell::default(),
            Self::FuncRef(Some(function)) => {
                Cell::from_u64(function.reference(store)?.relative(owner).0)
            }
            Self::ExternRef(Some(reference)) => Cell::from_u64(reference.handle(store)?),
            Self::ExnRef(Some(reference)) => {
                Cell::from_u64(reference.reference(store)?.relative(owner).0)
            }
        })
    }

    /// What a cell means as a value of type `ty`, in a place of `store` that
    /// belongs to the instance `owner`.
    #[inline]
    pub(crate) fn from_cell(cell: Cell, ty: ValType, store: &StoreGroup, owner: u32) -> Self {
        match ty {
            ValType::I32 => Self::I32(cell.low as i32),
            ValType::I64 => Self::I64(cell.low as i64),
            ValType::F32 => Self::F32(cell.low as u32),
            ValType::F64 => Self::F64(cell.low),
            ValType::V128 => Self::V128(cell.u128()),
            ValType::Ref(ty) => Self::from_reference(cell, ty, store, owner),
        }
    }

    /// The result of this type that is in one of two registers. A vector or reference, which none
    /// holds, is 0 or null.
    #[inline(always)]
    pub(crate) fn from_register(ty: ValType, int: u64, float: f64) -> Self {
        match ty {
            ValType::I32 => Self::I32(int as i32),
            ValType::I64 => Self::I64(int as i64),
            ValType::F32 => Self::F32(float.to_bits() as u32),
            ValType::F64 => Self::F64(float.to_bits()),
            ValType::V128 => Self::V128(0),
            ValType::Ref(ty) => Self::null_ref(&ty.heap),
        }
    }

    #[inline(never)]
    fn from_reference(cell: Cell, ty: RefType, store: &StoreGroup, owner: u32) -> Self {
        match ty.heap.top() {
            HeapType::Extern => Self::ExternRef(ExternRef::from_handle(store, cell.low)),
            HeapType::Exn => {
                let reference = ExceptionRef(cell.low).absolute(owner);
                Self::ExnRef(ExnRef::from_reference(store, reference))
            }
            _ => Self::FuncRef(Func::from_reference(store, FuncRef(cell.low).absolute(owner))),
        }
    }

    /// # Errors
    /// If the value is not of type `ty`, or of another store; `what` says which
    /// value it is.
    pub(crate) fn check_type(
        &self,
        store: &StoreGroup,
        ty: ValType,
        what: impl Fn() -> String,
    ) -> Result<()> {
        let null = |heap| ValType::Ref(RefType { nullable: true, heap });
        let non_null = |heap| ValType::Ref(RefType { nullable: false, heap });
        let own = match self {
            Self::FuncRef(Some(function)) => {
                let (_, id) = store.function_type(function.reference(store)?);
                non_null(HeapType::Concrete(id.0))
            }
            Self::FuncRef(None) => null(HeapType::NoFunc),
            Self::ExternRef(Some(_)) => non_null(HeapType::Extern),
            Self::ExternRef(None) => null(HeapType::NoExtern),
            Self::ExnRef(Some(_)) => non_null(HeapType::Exn),
            Self::ExnRef(None) => null(HeapType::NoExn),
            number => number.ty(),
        };
        if own.is_subtype(ty) {
            return Ok(());
        }
        let (expected, found) = (ty.to_string(), self.ty().to_string());
        Err(UsageError::TypeMismatch { what: what(), expected, found }.into())
    }
}

macro_rules! accessors {
    ($($variant:ident($value:ident) $get:ident $unwrap:ident $ty:ty, $name:literal => $read:expr;)*) => {
        impl Val {
            $(
                #[doc = concat!("The value, if it is of type `", $name, "`.")]
                ///
                /// # Examples
                ///
                /// See [`Val`].
                pub const fn $get(&self) -> Option<$ty> {
                    if let Self::$variant($value) = self { Some($read) } else { None }
                }

                #[doc = concat!("The value, which is of type `", $name, "`.")]
                ///
                /// # Panics
                #[doc = concat!("If it is not of type `", $name, "`.")]
                ///
                /// # Examples
                ///
                /// See [`Val`].
                pub const fn $unwrap(&self) -> $ty {
                    self.$get().expect(concat!("a value of type ", $name))
                }
            )*
        }
    };
}

accessors! {
    I32(value) i32 unwrap_i32 i32, "i32" => *value;
    I64(value) i64 unwrap_i64 i64, "i64" => *value;
    F32(bits) f32 unwrap_f32 f32, "f32" => f32::from_bits(*bits);
    F64(bits) f64 unwrap_f64 f64, "f64" => f64::from_bits(*bits);
    V128(bits) v128 unwrap_v128 u128, "v128" => *bits;
    FuncRef(function) funcref unwrap_funcref Option<&Func>, "funcref" => function.as_ref();
    ExternRef(value) externref unwrap_externref Option<&ExternRef>, "externref" => value.as_ref();
    ExnRef(exception) exnref unwrap_exnref Option<&ExnRef>, "exnref" => exception.as_ref();
}

macro_rules! from_primitives {
    ($($ty:ty: $value:ident => $val:expr;)*) => {$(
        impl From<$ty> for Val {
            fn from($value: $ty) -> Self {
                $val
            }
        }
    )*};
}

from_primitives! {
    i32: value => Val::I32(value);
    u32: value => Val::I32(value as i32);
    i64: value => Val::I64(value);
    u64: value => Val::I64(value as i64);
    f32: value => Val::F32(value.to_bits());
    f64: value => Val::F64(value.to_bits());
    u128: value => Val::V128(value);
    Func: value => Val::FuncRef(Some(value));
    Option<Func>: value => Val::FuncRef(value);
    ExternRef: value => Val::ExternRef(Some(value));
    Option<ExternRef>: value => Val::ExternRef(value);
    ExnRef: value => Val::ExnRef(Some(value));
    Option<ExnRef>: value => Val::ExnRef(value);
}
