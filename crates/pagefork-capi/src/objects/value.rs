//! Values of `wasm.h`, of a kind and 8 bytes, and of `pagefork.h`, of a kind and 16.

use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};

use pagefork::{ExnRef, Result, Val, ValRaw, ValType};

use crate::base::border::BorderError;
use crate::base::c_box::CBox;
use crate::base::c_vec::Element;
use crate::objects::object::{Object, wasm_ref_t};
use crate::objects::store::StoreRef;
use crate::objects::trap::TrapObject;
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

/// A value of `pagefork.h`, which owns its reference if it is one.
///
/// # Safety
/// As of [`wasm_val_t`].
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct pagefork_val_t {
    pub(crate) kind: u8,
    of: LongValueOf,
}

/// What a value is, by its kind.
#[derive(Clone, Copy)]
#[repr(C)]
union LongValueOf {
    i32: i32,
    i64: i64,
    f32: u32,
    f64: u64,
    v128: [u64; 2],
    reference: *mut wasm_ref_t,
}

const _: () = assert!(size_of::<wasm_val_t>() == 16 && size_of::<pagefork_val_t>() == 24);

/// What values of both headers have in common.
pub(crate) trait CValue: Copy + 'static {
    /// Whether a value may be a vector.
    const HAS_VECTORS: bool;

    /// Zero or null of this kind.
    fn zero(kind: u8) -> Self;

    /// Puts [`CValue::zero`] into a place, part by part: a value that is made elsewhere and copied is
    /// read in other parts than it was written in, which takes longer than the call of a function.
    fn put_zero(place: &mut MaybeUninit<Self>, kind: u8) -> &mut Self;

    /// The kind.
    fn kind(&self) -> u8;

    /// The number or vector, without its type.
    fn number(&self) -> ValRaw;

    /// The bits of a number.
    fn word(&self) -> u64;

    /// A number of this kind: of `word` as many bits count as it has.
    fn of_word(kind: u8, word: u64) -> Self;

    /// The number or vector of this kind in `raw`.
    fn of_number(kind: u8, raw: ValRaw) -> Self;

    /// As [`CValue::of_number`], of a place where it was just written: of a number not more bytes are read than
    /// were written at once, as a processor waits for a read of more.
    ///
    /// # Safety
    /// There is a value of this kind.
    unsafe fn of_place(kind: u8, place: *const ValRaw) -> Self;

    /// The value as one of type `ty` of this store.
    ///
    /// # Errors
    /// If it is none of that type.
    fn to_val(self, ty: ValType, store: &StoreRef) -> Result<Val>;

    /// A value of the store, for C, which owns it.
    ///
    /// # Errors
    /// If C has no such value.
    fn of_val(value: Val, store: &StoreRef) -> Result<Self>;

    /// Frees what the value owns; it is null after this.
    fn free(&mut self);
}

/// The bits of a word that a number of this kind has.
#[inline]
fn bits_of(kind: u8, word: u64) -> u64 {
    match kind {
        kind::I32 | kind::F32 => word & u64::from(u32::MAX),
        _ => word,
    }
}

/// The bits of a number of this kind. A program has just written as many bytes as the number has, and
/// a wider read would wait until they have reached the cache: so the compiler may not merge the two.
///
/// # Safety
/// There is a number of this kind.
#[inline]
unsafe fn read_word(kind: u8, number: *const u64) -> u64 {
    // SAFETY: by this function's contract.
    unsafe {
        match kind {
            kind::I32 | kind::F32 => number.cast::<u32>().read_volatile().into(),
            _ => number.read(),
        }
    }
}

/// Values that are freed at the end.
pub(crate) struct OwnedValues<V: CValue>(pub(crate) Vec<V>);

// SAFETY: the header says that references are given to another thread only while no other uses
// their store.
unsafe impl<V: CValue> Send for OwnedValues<V> {}

impl<V: CValue> Drop for OwnedValues<V> {
    fn drop(&mut self) {
        self.0.iter_mut().for_each(V::free);
    }
}

impl CValue for wasm_val_t {
    const HAS_VECTORS: bool = false;

    #[inline]
    fn zero(kind: u8) -> Self {
        Self::zero(kind)
    }

    #[inline(always)]
    fn put_zero(place: &mut MaybeUninit<Self>, kind: u8) -> &mut Self {
        let value = place.as_mut_ptr();
        // SAFETY: both parts are in the place, and all that there is of the value.
        unsafe {
            (&raw mut (*value).kind).write(kind);
            (&raw mut (*value).of.i64).write(0);
            &mut *value
        }
    }

    #[inline]
    fn kind(&self) -> u8 {
        self.kind
    }

    #[inline]
    fn word(&self) -> u64 {
        // SAFETY: by the type's contract, for a value of this kind.
        unsafe { read_word(self.kind, (&raw const self.of).cast()) }
    }

    #[inline]
    fn of_word(kind: u8, word: u64) -> Self {
        Self { kind, of: ValueOf { f64: bits_of(kind, word) } }
    }

    #[inline]
    fn number(&self) -> ValRaw {
        self.number()
    }

    #[inline]
    fn of_number(kind: u8, raw: ValRaw) -> Self {
        Self { kind, of: ValueOf { i64: raw.get_i64() } }
    }

    #[inline]
    unsafe fn of_place(kind: u8, place: *const ValRaw) -> Self {
        // SAFETY: by this function's contract.
        Self { kind, of: ValueOf { f64: unsafe { place.cast::<u64>().read() } } }
    }

    fn to_val(self, ty: ValType, store: &StoreRef) -> Result<Val> {
        self.to_val(ty, store)
    }

    fn of_val(value: Val, store: &StoreRef) -> Result<Self> {
        Self::of_val(value, store)
    }

    fn free(&mut self) {
        self.free();
    }
}

impl pagefork_val_t {
    /// What it is as a value of `wasm.h`, if it is no vector.
    fn short(self) -> wasm_val_t {
        // SAFETY: by the type's contract, for a value of this kind; references take 8 bytes.
        let of = unsafe {
            match self.kind {
                kind::I32 => ValueOf { i32: self.of.i32 },
                kind::F32 => ValueOf { f32: self.of.f32 },
                kind::V128 => ValueOf { i64: 0 },
                _ => ValueOf { i64: self.of.i64 },
            }
        };
        wasm_val_t { kind: self.kind, of }
    }

    fn long(value: wasm_val_t) -> Self {
        // SAFETY: all bytes of the values that are made here are initialised.
        let word = unsafe { value.of.f64 };
        Self { kind: value.kind, of: LongValueOf { v128: [word, 0] } }
    }
}

impl CValue for pagefork_val_t {
    const HAS_VECTORS: bool = true;

    #[inline]
    fn zero(kind: u8) -> Self {
        Self { kind, of: LongValueOf { v128: [0; 2] } }
    }

    #[inline(always)]
    fn put_zero(place: &mut MaybeUninit<Self>, kind: u8) -> &mut Self {
        let value = place.as_mut_ptr();
        // SAFETY: both parts are in the place, and all that there is of the value.
        unsafe {
            (&raw mut (*value).kind).write(kind);
            (&raw mut (*value).of.v128).write([0; 2]);
            &mut *value
        }
    }

    #[inline]
    fn kind(&self) -> u8 {
        self.kind
    }

    #[inline]
    fn word(&self) -> u64 {
        // SAFETY: by the type's contract, for a value of this kind.
        unsafe { read_word(self.kind, (&raw const self.of).cast()) }
    }

    #[inline]
    fn of_word(kind: u8, word: u64) -> Self {
        Self { kind, of: LongValueOf { f64: bits_of(kind, word) } }
    }

    #[inline]
    fn number(&self) -> ValRaw {
        if self.kind != kind::V128 {
            return self.short().number();
        }
        // SAFETY: by the type's contract, for a value of this kind.
        let [low, high] = unsafe { self.of.v128 };
        ValRaw::v128(u128::from(high) << 64 | u128::from(low))
    }

    #[inline]
    fn of_number(kind: u8, raw: ValRaw) -> Self {
        let bits = raw.get_v128();
        Self { kind, of: LongValueOf { v128: [bits as u64, (bits >> 64) as u64] } }
    }

    #[inline]
    unsafe fn of_place(kind: u8, place: *const ValRaw) -> Self {
        // SAFETY: by this function's contract. Volatile, since a compiler may read all bytes, and choose.
        unsafe {
            match kind {
                kind::V128 => Self::of_number(kind, place.read()),
                _ => {
                    let word = place.cast::<u64>().read_volatile();
                    Self { kind, of: LongValueOf { v128: [word, 0] } }
                }
            }
        }
    }

    fn to_val(self, ty: ValType, store: &StoreRef) -> Result<Val> {
        match (ty, self.kind) {
            (ValType::V128, kind::V128) => Ok(Val::V128(self.number().get_v128())),
            (ty, kind::EXTERNREF..) if kind_of(ty) == kind::EXNREF => {
                let held = self.short().exception(store)?;
                Ok(Val::ExnRef(held))
            }
            _ => self.short().to_val(ty, store),
        }
    }

    fn of_val(value: Val, store: &StoreRef) -> Result<Self> {
        match value {
            Val::V128(bits) => Ok(Self::of_number(kind::V128, ValRaw::v128(bits))),
            Val::ExnRef(None) => Ok(CValue::zero(kind::EXNREF)),
            Val::ExnRef(Some(held)) => {
                let exception = held.exception(&mut store.context()?)?;
                let object = store.own(Object::Trap(TrapObject::of_exception(exception, held)));
                Ok(Self::long(wasm_val_t::of_reference(kind::EXNREF, Some(object))))
            }
            value => Ok(Self::long(wasm_val_t::of_val(value, store)?)),
        }
    }

    fn free(&mut self) {
        if self.kind >= kind::EXTERNREF {
            self.short().free();
            *self = Self::zero(self.kind);
        }
    }
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

/// # Errors
/// If the object is of another store, or was deleted.
fn check_store(object: &wasm_ref_t, store: &StoreRef) -> Result<()> {
    match object.present()?.store() {
        Ok(other) if !ptr::eq(&**other, &**store) => {
            let what = "an object of one store was used with another store";
            Err(BorderError::Unfit(what.to_owned()).into())
        }
        _ => Ok(()),
    }
}

impl Element for wasm_val_t {
    fn copy(&self) -> Self {
        match self.reference() {
            Some(reference) => Self::of_reference(self.kind, reference.copy()),
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
    pub(crate) fn of_reference(kind: u8, reference: Option<CBox<wasm_ref_t>>) -> Self {
        let reference = reference.map_or(ptr::null_mut(), CBox::into_raw);
        Self { kind, of: ValueOf { reference } }
    }

    /// A reference that something else owns: not to be freed.
    pub(crate) fn lent(kind: u8, reference: &wasm_ref_t) -> Self {
        Self { kind, of: ValueOf { reference: ptr::from_ref(reference).cast_mut() } }
    }

    /// The reference that the value owned; it is null after this.
    pub(crate) fn take_reference(&mut self) -> Option<CBox<wasm_ref_t>> {
        if !self.is_reference() {
            return None;
        }
        // SAFETY: by the type's contract it owns its reference, which was given away for that.
        unsafe {
            let reference = std::mem::replace(&mut self.of.reference, ptr::null_mut());
            NonNull::new(reference).map(|reference| CBox::new(reference))
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

    /// The exception that a guest has given out by this reference; `None` for null.
    ///
    /// # Errors
    /// If the object is something else, or of another store.
    fn exception(&self, store: &StoreRef) -> Result<Option<ExnRef>> {
        let Some(reference) = self.reference() else { return Ok(None) };
        check_store(reference, store)?;
        match reference.trap()?.held {
            Some(held) => Ok(Some(held)),
            None => Err(BorderError::Unfit(
                "an exception that no guest has caught is no exnref: throw it".to_owned(),
            )
            .into()),
        }
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
                    format!("the value is {found}, expected {ty}, which wasm.h does not have: use pagefork.h")
                }
                _ => format!("type mismatch: the value is {found}, expected {ty}"),
            })
            .into());
        }
        let reference = self.reference();
        reference.map_or(Ok(()), |reference| check_store(reference, store))?;
        // SAFETY: by the type's contract, for a value of this kind.
        Ok(unsafe {
            match wanted {
                kind::I32 => Val::I32(self.of.i32),
                kind::I64 => Val::I64(self.of.i64),
                kind::F32 => Val::F32(self.of.f32),
                kind::F64 => Val::F64(self.of.f64),
                kind::FUNCREF => {
                    let func = reference
                        .map(|reference| Ok::<_, pagefork::Error>(*reference.bare_func()?));
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
