//! What calls with values need to know of a function's type, which its store keeps.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, Ordering};

use pagefork::{Func, FuncType, Result, ValType};

use crate::objects::store::StoreCell;
use crate::objects::types::kind_of;

/// What calls of functions of a type need.
pub(crate) struct FuncShape {
    ty: FuncType,
    /// Kinds of the parameters.
    pub(crate) params: Box<[u8]>,
    /// Kinds of the results.
    pub(crate) results: Box<[u8]>,
    /// Whether all values are numbers.
    is_numeric: bool,
    /// Whether all values are numbers or vectors.
    is_plain: bool,
}

impl FuncShape {
    /// The type.
    pub(crate) fn ty(&self) -> &FuncType {
        &self.ty
    }

    /// What calls of functions of this type need.
    pub(super) fn new(ty: FuncType) -> Self {
        let is_number = |ty: &ValType| ty.is_num();
        let is_numeric = ty.params.iter().chain(&ty.results).all(is_number);
        let is_plain = !ty.params.iter().chain(&ty.results).any(|ty| ty.as_ref().is_some());
        let kinds = |types: &[ValType]| types.iter().map(|ty| kind_of(*ty)).collect();
        Self { params: kinds(&ty.params), results: kinds(&ty.results), is_numeric, is_plain, ty }
    }
}

impl FuncShape {
    /// Whether values pass as they are, in a header that has vectors or has none.
    #[inline]
    pub(crate) fn passes_as_is(&self, has_vectors: bool) -> bool {
        if has_vectors { self.is_plain } else { self.is_numeric }
    }
}

/// A [`FuncShape`] of a store: there as long as the store.
#[derive(Clone, Copy)]
pub(crate) struct Shape(NonNull<FuncShape>);

impl Shape {
    /// A shape that is the store's, which keeps it as long as it is there.
    pub(super) fn of(shape: &FuncShape) -> Self {
        Self(NonNull::from(shape))
    }

    /// What it says.
    ///
    /// # Safety
    /// Its store is there.
    pub(super) unsafe fn get<'a>(self) -> &'a FuncShape {
        // SAFETY: by this function's contract.
        unsafe { self.0.as_ref() }
    }
}

// SAFETY: what a shape says never changes, and is there as long as the store of its function.
unsafe impl Send for Shape {}

// SAFETY: what a shape says never changes, and is there as long as the store of its function.
unsafe impl Sync for Shape {}

/// A [`Shape`] that is looked up when a call needs it first: null until then.
#[derive(Default)]
pub(crate) struct LazyShape(AtomicPtr<FuncShape>);

impl Clone for LazyShape {
    fn clone(&self) -> Self {
        Self(AtomicPtr::new(self.0.load(Ordering::Acquire)))
    }
}

impl LazyShape {
    /// What calls of the function need.
    ///
    /// # Errors
    /// If the store may not be reached.
    #[inline]
    pub(crate) fn get(&self, func: &Func, store: &StoreCell) -> Result<Shape> {
        match NonNull::new(self.0.load(Ordering::Acquire)) {
            Some(shape) => Ok(Shape(shape)),
            None => self.find(func, store),
        }
    }

    #[cold]
    fn find(&self, func: &Func, store: &StoreCell) -> Result<Shape> {
        let ty = func.ty(&store.context()?);
        let shape = store.shape(ty);
        self.0.store(shape.0.as_ptr(), Ordering::Release);
        Ok(shape)
    }
}
