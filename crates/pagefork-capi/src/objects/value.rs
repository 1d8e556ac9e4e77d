//! Values of `wasm.h`: a kind, and 8 bytes.

use std::ptr;

use pagefork::{Result, Val, ValRaw, ValType};

use crate::base::border::BorderError;
use crate::base::c_vec::Element;
use crate::objects::object::{Object, wasm_ref_t};
use crate::objects::store::StoreRef;
use crate::objects::types::{kind, kind_of};

/// A value, which owns its reference if it is one.
///
/// # Safety
/// By the header's word the member of the union that belongs to the kind is initialised; a
/// reference is null or leads to an object.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct wasm_val_t {
    pub(crate) kind: u8,
    of: ValueOf,
}

/// What a value is, by its kind.
#[derive(Clone, Copy)]
#[repr(C)]
union ValueOf {
    i32: i32,
    i64: i64,
    f32: u32,
    f64: u64,
    reference: *mut wasm_ref_t,
}

/// The name of a kind, for messages.
pub(crate) fn kind_name(number: u8) -> String {
    match number {
        kind::I32 => "i32".to_owned(),
        kind::I64 => "i64".to_owned(),
        kind::F32 => "f32".to_owned(),
        kind::F64 => "f64".to_owned(),
        kind::V128 => "v128".to_owned(),
        kind::EXTERNREF => "externref".to_owned(),
        kind::FUNCREF => "funcref".to_owned(),
        kind::EXNREF => "exnref".to_owned(),
        other => format!("of kind {other}, which does not exist"),
    }
}

impl Element for wasm_val_t {
    fn copy(&self) -> Self {
        match self.reference() {
            Some(reference) => {
                let copy = Some(Box::new(reference.copy()));
                Self::of_reference(self.kind, copy)
            }
            None => *self,
        }
    }
}

impl wasm_val_t {
    /// Zero or null of this kind.
    #[inline]
    pub(crate) const fn zero(kind: u8) -> Self {
        Self { kind, of: ValueOf { i64: 0 } }
    }

    fn is_reference(&self) -> bool {
        self.kind >= kind::EXTERNREF
    }

    /// A reference that the value owns.
    pub(crate) fn of_reference(kind: u8, reference: Option<Box<wasm_ref_t>>) -> Self {
        let reference = reference.map_or(ptr::null_mut(), Box::into_raw);
        Self { kind, of: ValueOf { reference } }
    }

    /// A reference that something else owns: not to be freed.
    pub(crate) fn lent(kind: u8, reference: &wasm_ref_t) -> Self {
        Self { kind, of: ValueOf { reference: ptr::from_ref(reference).cast_mut() } }
    }

    /// The reference that the value owned; it is null after this.
    pub(crate) fn take_reference(&mut self) -> Option<Box<wasm_ref_t>> {
        if !self.is_reference() {
            return None;
        }
        // SAFETY: by the type's contract it owns its reference, which came from a box.
        unsafe {
            let reference = std::mem::replace(&mut self.of.reference, ptr::null_mut());
            (!reference.is_null()).then(|| Box::from_raw(reference))
        }
    }

    /// What it refers to, if it is a reference and not null.
    pub(crate) fn reference(&self) -> Option<&wasm_ref_t> {
        if !self.is_reference() {
            return None;
        }
        // SAFETY: by the type's contract, for a value of this kind.
        unsafe { self.of.reference.as_ref() }
    }

    /// Frees what the value owns; it is null after this.
    pub(crate) fn free(&mut self) {
        drop(self.take_reference());
    }

    /// A number without its type; of references, nothing.
    #[inline]
    pub(crate) fn number(&self) -> ValRaw {
        // SAFETY: by the type's contract, for a value of this kind.
        unsafe {
            match self.kind {
                kind::I32 => ValRaw::i32(self.of.i32),
                kind::I64 => ValRaw::i64(self.of.i64),
                kind::F32 => ValRaw::f32(self.of.f32),
                kind::F64 => ValRaw::f64(self.of.f64),
                _ => ValRaw::default(),
            }
        }
    }

    /// The number of this kind in `raw`.
    #[inline]
    pub(crate) fn of_number(kind: u8, raw: ValRaw) -> Self {
        Self { kind, of: ValueOf { i64: raw.get_i64() } }
    }

    /// The value as one of type `ty` of this store. A reference fits whichever kind it says.
    ///
    /// # Errors
    /// If it is none of that type.
    pub(crate) fn to_val(self, ty: ValType, store: &StoreRef) -> Result<Val> {
        let wanted = kind_of(ty);
        let is_fit = match wanted {
            kind::EXTERNREF | kind::FUNCREF => self.is_reference(),
            kind::V128 | kind::EXNREF => false,
            _ => wanted == self.kind,
        };
        if !is_fit {
            let (found, ty) = (kind_name(self.kind), ty.to_string());
            return Err(BorderError::Unfit(match wanted {
                kind::V128 | kind::EXNREF => {
                    format!("a value of wasm.h cannot be of type {ty}: use pagefork.h")
                }
                _ => format!("type mismatch: the value is {found}, expected {ty}"),
            })
            .into());
        }
        let reference = self.reference();
        if let Some(other) = reference.and_then(|reference| reference.store().ok())
            && !ptr::eq(&**other, &**store)
        {
            let what = "an object of one store was used with another store";
            return Err(BorderError::Unfit(what.to_owned()).into());
        }
        // SAFETY: by the type's contract, for a value of this kind.
        Ok(unsafe {
            match wanted {
                kind::I32 => Val::I32(self.of.i32),
                kind::I64 => Val::I64(self.of.i64),
                kind::F32 => Val::F32(self.of.f32),
                kind::F64 => Val::F64(self.of.f64),
                kind::FUNCREF => {
                    let func =
                        reference.map(|reference| Ok::<_, pagefork::Error>(*reference.func()?.0));
                    Val::FuncRef(func.transpose()?)
                }
                _ => Val::ExternRef(match reference {
                    Some(reference) => Some(store.reference(reference.object())?),
                    None => None,
                }),
            }
        })
    }

    /// A value of the store, for C, which owns it.
    ///
    /// # Errors
    /// If C has no such value.
    pub(crate) fn of_val(value: Val, store: &StoreRef) -> Result<Self> {
        Ok(match value {
            Val::I32(value) => Self { kind: kind::I32, of: ValueOf { i32: value } },
            Val::I64(value) => Self { kind: kind::I64, of: ValueOf { i64: value } },
            Val::F32(bits) => Self { kind: kind::F32, of: ValueOf { f32: bits } },
            Val::F64(bits) => Self { kind: kind::F64, of: ValueOf { f64: bits } },
            Val::FuncRef(None) => Self::zero(kind::FUNCREF),
            Val::FuncRef(Some(func)) => {
                Self::of_reference(kind::FUNCREF, Some(store.own_func(func)?))
            }
            Val::ExternRef(None) => Self::zero(kind::EXTERNREF),
            Val::ExternRef(Some(reference)) => {
                let object: Object = store.referred(&reference)?;
                Self::of_reference(kind::EXTERNREF, Some(store.own(object)))
            }
            other => {
                let ty = other.ty();
                let text = format!("wasm.h has no values of type {ty}: use pagefork.h");
                return Err(BorderError::Unfit(text).into());
            }
        })
    }
}
