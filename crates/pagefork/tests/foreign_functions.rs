//! Functions of C's know the store by what its data say.

use std::ffi::c_void;
use std::ptr::{self, NonNull};

use pagefork::{
    Engine, Error, ForeignData, ForeignFunction, FuncType, Linker, Module, Result, Store, ValRaw,
    ValType,
};

/// What functions of C's know a store by.
struct Known(usize);

impl ForeignData for Known {
    fn handle(&self, _: usize) -> *const c_void {
        ptr::without_provenance(self.0)
    }

    unsafe fn error(_: NonNull<c_void>) -> Error {
        unreachable!("the function does not fail")
    }
}

#[repr(C)]
struct Called {
    env: *mut c_void,
    store: usize,
}

/// Tells by what it knows the store of its guest.
unsafe extern "C" fn known(called: *const Called, cells: *mut ValRaw) -> *mut c_void {
    // SAFETY: guests give their caller and a cell for the result.
    unsafe { *cells = ValRaw::i64((*called).store as i64) };
    ptr::null_mut()
}

/// Reset with data that say what the last ones said, after others were put there without a word between the
/// making of two instances: both are told.
#[test]
fn what_data_say_reaches_all_instances_however_they_were_replaced() -> Result<()> {
    let engine = Engine::default();
    let text = r#"(module (import "host" "known" (func $known (result i64)))
        (func (export "run") (result i64) (call $known)))"#;
    let module = Module::new(&engine, text)?;
    let mut linker = Linker::new(&engine);
    // SAFETY: it is such a function, leaves an `i64`, and does not unwind; guests alone call it here.
    unsafe {
        let foreign = ForeignFunction::<Known>::on_cells(known as *const (), ptr::null_mut());
        let ty = FuncType::new([], [ValType::I64]);
        let rust = |_: pagefork::Caller<'_, Known>, _: &mut [ValRaw]| unreachable!();
        linker.func_new_foreign("host", "known", ty, rust, foreign)?;
    }
    let mut store = Store::new(&engine, Known(1));
    let first = linker.instantiate(&mut store, &module)?;
    *store.data_mut() = Known(2);
    let second = linker.instantiate(&mut store, &module)?;
    for data in [2, 3, 3, 2] {
        store.reset(Known(data))?;
        for instance in [first, second] {
            let run = instance.get_typed_func::<(), i64>(&mut store, "run")?;
            assert_eq!(run.call(&mut store, ())?, data as i64);
        }
    }
    Ok(())
}
