//! The module `spectest` that scripts import from.

use pagefork::{
    Engine, Error, FuncType, Global, GlobalType, Linker, Memory, MemoryType, RefType, Store, Table,
    TableType, Val, ValType,
};

/// A linker with the functions of the module `spectest`, which belong to no store: they print
/// nothing, which no script can observe.
///
/// # Errors
/// Never, since every name is free.
///
/// # Examples
///
/// ```
/// use pagefork::Engine;
///
/// let engine = Engine::default();
/// let linker = pagefork_wast::linker(&engine)?;
/// let mut store = pagefork::Store::new(&engine, ());
/// assert!(linker.get(&mut store, "spectest", "print_i32").is_ok());
/// # Ok::<(), pagefork::Error>(())
/// ```
pub fn linker(engine: &Engine) -> Result<Linker<()>, Error> {
    let prints: [(&str, &[ValType]); 7] = [
        ("print", &[]),
        ("print_i32", &[ValType::I32]),
        ("print_i64", &[ValType::I64]),
        ("print_f32", &[ValType::F32]),
        ("print_f64", &[ValType::F64]),
        ("print_i32_f32", &[ValType::I32, ValType::F32]),
        ("print_f64_f64", &[ValType::F64, ValType::F64]),
    ];
    let mut linker = Linker::new(engine);
    for (name, params) in prints {
        let ty = FuncType { params: params.into(), results: [].into() };
        linker.func_new("spectest", name, ty, |_, _, _| Ok(()))?;
    }
    Ok(linker)
}

/// Defines what else is in the module `spectest`, as the reference interpreter does.
pub(crate) fn define(linker: &mut Linker<()>, store: &mut Store<()>) -> Result<(), Error> {
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
