//! The module `spectest` that scripts import from.

use pagefork::{
    Error, Func, FuncType, Global, GlobalType, Linker, Memory, MemoryType, RefType, Store, Table,
    TableType, Val, ValType,
};

/// Defines the module `spectest`, as the reference interpreter does. Its print functions print
/// nothing, which no script can observe.
pub(crate) fn define(linker: &mut Linker<()>, store: &mut Store<()>) -> Result<(), Error> {
    let prints: [(&str, &[ValType]); 7] = [
        ("print", &[]),
        ("print_i32", &[ValType::I32]),
        ("print_i64", &[ValType::I64]),
        ("print_f32", &[ValType::F32]),
        ("print_f64", &[ValType::F64]),
        ("print_i32_f32", &[ValType::I32, ValType::F32]),
        ("print_f64_f64", &[ValType::F64, ValType::F64]),
    ];
    for (name, params) in prints {
        let ty = FuncType { params: params.into(), results: [].into() };
        let print = Func::new(&mut *store, ty, |_, _, _| Ok(()));
        linker.define(&mut *store, "spectest", name, print)?;
    }

    let globals = [
        ("global_i32", Val::I32(666)),
        ("global_i64", Val::I64(666)),
        ("global_f32", Val::F32(666.6f32.to_bits())),
        ("global_f64", Val::F64(666.6f64.to_bits())),
    ];
    for (name, value) in globals {
        let ty = GlobalType { content: value.ty(), mutable: false };
        let global = Global::new(&mut *store, ty, value)?;
        linker.define(&mut *store, "spectest", name, global)?;
    }

    let ty = TableType::new(RefType::FUNCREF, 10, Some(20));
    let table = Table::new(&mut *store, ty, Val::FuncRef(None))?;
    linker.define(&mut *store, "spectest", "table", table)?;
    let memory = Memory::new(&mut *store, MemoryType::new(1, Some(2)))?;
    linker.define(&mut *store, "spectest", "memory", memory)?;
    Ok(())
}
