//! What an error says when it is displayed alone: what failed, whose limit it was, and what
//! was perhaps meant.

use pagefork::{
    Engine, Instance, LimitError, LimitSource, LinkError, Linker, Memory, MemoryType, Module,
    RefType, Result, Store, StoreLimits, Table, TableType, Val,
};

/// The text of an error alone, which must contain these parts.
#[track_caller]
fn assert_says<T>(result: Result<T>, parts: &[&str]) {
    let text = result.err().expect("an error").to_string();
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
}

#[test]
fn a_bare_error_says_what_failed() -> Result<()> {
    let engine = Engine::default();
    let path = std::env::temp_dir().join(format!("pagefork-text-{}.wat", std::process::id()));
    std::fs::write(&path, "(module (func (result i32)))")?;
    let name = path.to_str().expect("it is text");
    assert_says(Module::from_file(&engine, &path), &[name, "type mismatch", "offset"]);
    std::fs::remove_file(&path)?;
    assert_says(Module::from_file(&engine, &path), &[name, "No such file"]);
    assert_says(Module::from_code_image_file(&engine, &path), &[name, "No such file"]);

    let mut store = Store::new(&engine, ());
    let module = Module::new(&engine, r#"(module (func (export "f") (param i64)))"#)?;
    let instance = Instance::new(&mut store, &module, &[])?;
    assert_says(instance.get_typed_func::<i32, ()>(&mut store, "f"), &["\"f\"", "i64", "i32"]);
    assert_says(instance.get_typed_func::<i32, ()>(&mut store, "g"), &["\"g\""]);
    Ok(())
}

#[test]
fn growth_says_whose_limit_it_met() -> Result<()> {
    let engine = Engine::default();
    let mut store = Store::new(&engine, ());
    let source = |error: pagefork::Error| {
        let limit = error.downcast_ref::<LimitError>().expect("a limit").source_of_limit;
        (limit, error.to_string().contains("store"))
    };
    let declared = Memory::new(&mut store, MemoryType::new(1, Some(2)))?;
    let free = Memory::new(&mut store, MemoryType::new(1, None))?;
    let table =
        Table::new(&mut store, TableType::new(RefType::FUNCREF, 1, Some(2)), Val::FuncRef(None))?;
    let open =
        Table::new(&mut store, TableType::new(RefType::FUNCREF, 1, None), Val::FuncRef(None))?;
    let grow = |store: &mut Store<()>, memory: Memory, by| memory.grow(store, by).unwrap_err();
    let lengthen = |store: &mut Store<()>, table: Table, by| {
        table.grow(store, by, Val::FuncRef(None)).unwrap_err()
    };
    assert_eq!(source(grow(&mut store, declared, 2)), (LimitSource::Declared, false));
    assert_eq!(source(grow(&mut store, free, 1 << 16)), (LimitSource::Index, false));
    assert_eq!(source(lengthen(&mut store, table, 2)), (LimitSource::Declared, false));
    assert_eq!(source(lengthen(&mut store, open, 1 << 20)), (LimitSource::Slot, false));
    store.set_limits(StoreLimits::new().memory_size(1 << 16).table_elements(1));
    assert_eq!(source(grow(&mut store, declared, 1)), (LimitSource::Store, true));
    assert_eq!(source(lengthen(&mut store, table, 1)), (LimitSource::Store, true));
    Ok(())
}

#[test]
fn a_near_miss_of_an_imports_name_is_suggested() -> Result<()> {
    let engine = Engine::default();
    let mut linker: Linker<()> = Linker::new(&engine);
    linker.func_wrap("env", "print_line", || ())?.func_wrap("host", "abort", || ())?;
    let similar = |module: &str, name: &str| {
        let text = format!(r#"(module (import "{module}" "{name}" (func)))"#);
        let module = Module::new(&engine, text).unwrap();
        let error = linker.instantiate_pre(&module).err().unwrap();
        let Some(LinkError::UnknownImport { similar, .. }) = error.downcast_ref() else {
            panic!("{error:?}");
        };
        let suggested = error.to_string().contains("did you mean");
        assert_eq!(suggested, similar.is_some(), "{error}");
        similar.clone()
    };
    let pair = |module: &str, name: &str| Some((module.to_owned(), name.to_owned()));
    assert_eq!(similar("env", "printLine"), pair("env", "print_line"));
    assert_eq!(similar("env", "abort"), pair("host", "abort"));
    assert_eq!(similar("wasi_snapshot_preview1", "fd_write"), None);
    Ok(())
}

#[test]
fn shared_memory_is_refused_as_such() {
    let module = Module::new(&Engine::default(), "(module (memory 1 2 shared))");
    assert_says(module, &["shared memories (threads) are not supported"]);
}
