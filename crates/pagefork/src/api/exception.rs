//! Exceptions as embedders make and read them.

use crate::api::store::{AsContext, AsContextMut};
use crate::base::error::{Result, UsageError};
pub(crate) use crate::store::exception::{Exception, ExnRef};
use crate::store::handle::Tag;
use crate::store::value::Val;

impl Exception {
    /// An exception for a host function to throw.
    ///
    /// # Errors
    /// If the tag or a value is of another store, or the values are not of the
    /// types that exceptions with this tag carry.
    ///
    /// # Examples
    ///
    /// See [`Exception`](crate::Exception).
    pub fn new(store: impl AsContext, tag: &Tag, payload: &[Val]) -> Result<Self> {
        let store = &store.as_context().0.inner;
        let types = &store.tag_type(tag.entity(store)?).params;
        if payload.len() != types.len() {
            let (what, expected, found) = ("values of a payload", types.len(), payload.len());
            return Err(UsageError::ValueCount { what, expected, found }.into());
        }
        for (i, (value, ty)) in payload.iter().zip(types).enumerate() {
            value.check_type(store, *ty, || format!("value {i} of a payload"))?;
        }
        Ok(Self { tag: *tag, payload: payload.into() })
    }

    /// Its tag.
    ///
    /// # Examples
    ///
    /// See [`Exception`](crate::Exception).
    pub fn tag(&self) -> &Tag {
        &self.tag
    }

    /// What it carries.
    ///
    /// # Examples
    ///
    /// See [`Exception`](crate::Exception).
    pub fn payload(&self) -> &[Val] {
        &self.payload
    }
}

impl ExnRef {
    /// What it refers to.
    ///
    /// # Errors
    /// If the reference is of another store.
    ///
    /// # Examples
    ///
    /// See [`ExnRef`](crate::ExnRef).
    pub fn exception(&self, mut store: impl AsContextMut) -> Result<Exception> {
        let store = &store.as_context_mut().0.inner;
        Ok(store.exception_value(self.reference(store)?))
    }
}
