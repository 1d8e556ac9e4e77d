//! Tables.

use pagefork::{RefType, Result, Table, Val, ValType};

use crate::base::border::{BorderError, exported, given};
use crate::base::c_box::CBox;
use crate::objects::object::{Object, wasm_ref_t, wasm_store_t};
use crate::objects::store::StoreRef;
use crate::objects::types::{kind_of, wasm_externtype_t};
use crate::objects::value::wasm_val_t;

/// What is null, if it is.
const TABLE: &str = "table";

/// A reference that C lends, or null, as an element of a table.
fn element(reference: Option<&wasm_ref_t>, ty: RefType, store: &StoreRef) -> Result<Val> {
    let ty = ValType::Ref(ty);
    let kind = kind_of(ty);
    let Some(reference) = reference else {
        return wasm_val_t::zero(kind).to_val(ty, store);
    };
    wasm_val_t::lent(kind, reference).to_val(ty, store)
}

exported! {
    fn wasm_table_new(
        store: Option<&wasm_store_t>,
        ty: Option<&wasm_externtype_t>,
        init: Option<&wasm_ref_t>,
    ) -> Option<CBox<wasm_ref_t>> {
        let (store, ty) = (given(store, "store")?, given(ty, "type")?.table()?);
        let element = element(init, ty.element, &store.0)?;
        let table = Table::new(&mut store.0.context()?, ty, element)?;
        Ok(store.own(Object::Table(table)))
    }

    fn wasm_table_type(table: Option<&wasm_ref_t>) -> Option<Box<wasm_externtype_t>> {
        let table = given(table, TABLE)?;
        table.table()?;
        Ok(Some(Box::new(table.external_type()?)))
    }

    fn wasm_table_get(table: Option<&wasm_ref_t>, index: u32) -> Option<CBox<wasm_ref_t>> {
        let table = given(table, TABLE)?;
        let (store, own) = (table.store()?, table.table()?);
        let element = own.get(&mut store.context()?, index.into());
        let element = element.ok_or_else(|| {
            let text = format!("element {index} is beyond the end of the table");
            BorderError::Unfit(text)
        })?;
        let mut value = wasm_val_t::of_val(element, store)?;
        Ok(value.take_reference())
    }

    fn wasm_table_set(
        table: Option<&wasm_ref_t>,
        index: u32,
        reference: Option<&wasm_ref_t>,
    ) -> bool {
        let table = given(table, TABLE)?;
        let (store, own) = (table.store()?, table.table()?);
        let ty = own.ty(&store.context()?).element;
        let element = element(reference, ty, store)?;
        own.set(&mut store.context()?, index.into(), element).map(|()| true)
    }

    fn wasm_table_size(table: Option<&wasm_ref_t>) -> u32 {
        let table = given(table, TABLE)?;
        let size = table.table()?.size(&table.store()?.context()?);
        Ok(u32::try_from(size).unwrap_or(u32::MAX))
    }

    fn wasm_table_grow(
        table: Option<&wasm_ref_t>,
        delta: u32,
        init: Option<&wasm_ref_t>,
    ) -> bool {
        let table = given(table, TABLE)?;
        let (store, own) = (table.store()?, table.table()?);
        let ty = own.ty(&store.context()?).element;
        let element = element(init, ty, store)?;
        own.grow(&mut store.context()?, delta.into(), element).map(|_| true)
    }
}
