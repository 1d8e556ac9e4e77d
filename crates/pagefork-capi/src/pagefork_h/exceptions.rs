//! Tags, and exceptions that C throws and catches.

use pagefork::{Exception, Tag, Val};

use crate::base::border::{BorderError, exported, given};
use crate::base::c_box::CBox;
use crate::objects::fallible::{OutCBox, elements, fallible, make, places};
use crate::objects::object::{Object, wasm_ref_t, wasm_store_t};
use crate::objects::trap::TrapObject;
use crate::objects::types::wasm_externtype_t;
use crate::objects::value::{CValue, OwnedValues, pagefork_val_t};

/// The exception that an error is, if it is one.
fn exception_of(error: &wasm_ref_t) -> pagefork::Result<Option<&Exception>> {
    let error = error.trap()?.error.as_ref();
    Ok(error.and_then(|error| error.downcast_ref::<Exception>()))
}

fallible! {
    fn pagefork_tag_new(
        store: Option<&wasm_store_t>,
        ty: Option<&wasm_externtype_t>,
        out: OutCBox<'_, wasm_ref_t>,
    ) {
        make(out, || {
            let (store, ty) = (given(store, "store")?, given(ty, "type")?.func()?.clone());
            let tag = Tag::new(&mut store.0.context()?, ty)?;
            Ok(store.0.own(Object::Tag(tag)))
        })
    }

    fn pagefork_exception_new(
        tag: Option<&wasm_ref_t>,
        values: *const pagefork_val_t,
        count: usize,
        out: OutCBox<'_, wasm_ref_t>,
    ) {
        make(out, || {
            let object = given(tag, "tag")?;
            let (store, tag) = (object.store()?, object.tag()?);
            let (ty, values) = (tag.ty(&store.context()?), elements(values, count)?);
            if ty.params.len() != values.len() {
                let (what, expected, found) = ("values", ty.params.len(), values.len());
                return Err(BorderError::Count { what, expected, found }.into());
            }
            let payload = values.iter().zip(&ty.params).map(|(value, ty)| value.to_val(*ty, store));
            let payload: Vec<Val> = payload.collect::<pagefork::Result<_>>()?;
            let exception = Exception::new(&store.context()?, tag, &payload)?;
            Ok(store.own(Object::Trap(TrapObject::of(exception.into()))))
        })
    }

    fn pagefork_exception_values(
        error: Option<&wasm_ref_t>,
        out: *mut pagefork_val_t,
        count: usize,
    ) {
        let error = given(error, "error")?;
        let exception = given(exception_of(error)?, "exception that the error is")?;
        let (payload, store) = (exception.payload(), error.store()?);
        if payload.len() != count {
            let (what, expected) = ("places for values", payload.len());
            return Err(BorderError::Count { what, expected, found: count }.into());
        }
        let (places, mut own) = (places(out, count)?, OwnedValues(Vec::with_capacity(count)));
        for value in payload {
            own.0.push(pagefork_val_t::of_val(*value, store)?);
        }
        for (place, value) in places.iter_mut().zip(own.0.drain(..)) {
            place.write(value);
        }
        Ok(())
    }
}

exported! {
    fn pagefork_exception_tag(error: Option<&wasm_ref_t>) -> Option<CBox<wasm_ref_t>> {
        let error = given(error, "error")?;
        match exception_of(error)? {
            Some(exception) => Ok(Some(error.store()?.own(Object::Tag(*exception.tag())))),
            None => Ok(None),
        }
    }

    fn pagefork_extern_as_tag(object: Option<&wasm_ref_t>) -> *const wasm_ref_t {
        let object = object.filter(|object| matches!(object.object(), Object::Tag(_)));
        Ok(object.map_or(std::ptr::null(), std::ptr::from_ref))
    }

    fn pagefork_tag_type(tag: Option<&wasm_ref_t>) -> Option<Box<wasm_externtype_t>> {
        let tag = given(tag, "tag")?;
        let ty = tag.tag()?.ty(&tag.store()?.context()?);
        Ok(Some(Box::new(wasm_externtype_t::new(pagefork::ExternType::Func(ty)))))
    }
}
