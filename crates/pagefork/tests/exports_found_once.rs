//! An export that was found in a module is the same in each of its instances, and in no other's.

use pagefork::{
    Caller, Engine, Extern, Func, Instance, Linker, Module, Result, Store, TypedExport, UsageError,
};

/// Exports of each kind, a host function that it imports among them.
const TEXT: &str = r#"(module
    (import "host" "ten" (func $ten (param i32) (result i32)))
    (func (export "own") (param i32) (result i32) (i32.add (global.get $count) (local.get 0)))
    (export "ten" (func $ten))
    (global $count (export "count") (mut i32) (i32.const 5))
    (memory (export "memory") 2)
    (table (export "table") 3 funcref)
    (tag (export "tag") (param i64)))"#;

fn usage<T>(result: Result<T>) -> UsageError {
    let error = result.err().expect("it fails");
    error.downcast_ref::<UsageError>().unwrap_or_else(|| panic!("{error}")).clone()
}

#[test]
fn an_export_is_found_in_every_instance() -> Result<()> {
    let engine = Engine::default();
    let module = Module::new(&engine, TEXT)?;
    let mut linker = Linker::new(&engine);
    linker.func_wrap("host", "ten", |caller: Caller<'_, i32>, x: i32| caller.data() + 10 * x)?;
    let own = module.get_typed_export::<i32, i32>("own")?;
    let ten = module.get_typed_export::<i32, i32>("ten")?;
    let index = |name| module.get_export_index(name).expect("an export");
    let pre = linker.instantiate_pre(&module.clone())?;
    for data in 0..3 {
        let (mut store, first) = pre.spawn(data)?;
        let second = linker.instantiate(&mut store, &module)?;
        for (number, instance) in [first, second].into_iter().enumerate() {
            let count = instance.get_module_export(&mut store, &index("count"));
            let count = count.and_then(Extern::into_global).expect("a global");
            assert_eq!(count.get(&mut store).i32(), Some(5));
            count.set(&mut store, (100 * number as i32).into())?;
        }
        for (number, instance) in [first, second].into_iter().enumerate() {
            let own = instance.get_typed_export(&store, &own)?;
            assert_eq!(own.call(&mut store, 7)?, 100 * number as i32 + 7);
            let ten = instance.get_typed_export(&store, &ten)?;
            assert_eq!(ten.call(&mut store, 7)?, 70 + data);
            let memory = instance.get_module_export(&mut store, &index("memory"));
            assert_eq!(memory.and_then(Extern::into_memory).expect("a memory").size(&store), 2);
            let table = instance.get_module_export(&mut store, &index("table"));
            assert_eq!(table.and_then(Extern::into_table).expect("a table").size(&store), 3);
            let tag = instance.get_module_export(&mut store, &index("tag"));
            assert!(tag.and_then(Extern::into_tag).is_some());
            let ten = instance.get_module_export(&mut store, &index("ten"));
            let ten = ten.and_then(Extern::into_func).expect("a function");
            assert_eq!(ten.typed::<i32, i32>(&store)?.call(&mut store, 1)?, 10 + data);
        }
    }
    Ok(())
}

/// A function that one instance imports and exports is called in the instance that defines it.
#[test]
fn what_is_exported_again_is_found_where_it_is_defined() -> Result<()> {
    let engine = Engine::default();
    let library = Module::new(
        &engine,
        r#"(module (global $g (export "g") (mut i32) (i32.const 1))
            (func (export "get") (result i32) (global.get $g)))"#,
    )?;
    let middle = Module::new(
        &engine,
        r#"(module (import "" "get" (func $get (result i32))) (func) (export "get" (func $get)))"#,
    )?;
    let get = middle.get_typed_export::<(), i32>("get")?;
    let mut store = Store::new(&engine, ());
    let library = Instance::new(&mut store, &library, &[])?;
    let import = library.get_export(&mut store, "get").expect("an export");
    let middle = Instance::new(&mut store, &middle, &[import])?;
    let global = library.get_global(&mut store, "g").expect("an export");
    global.set(&mut store, 44.into())?;
    let found = middle.get_typed_export(&store, &get)?;
    assert_eq!(found.call(&mut store, ())?, 44);
    let defined = library.get_func(&mut store, "get").expect("an export");
    assert_eq!(found.func().to_raw(&store)?, defined.to_raw(&store)?);
    Ok(())
}

#[test]
fn instances_of_other_modules_do_not_have_it() -> Result<()> {
    let engine = Engine::default();
    let text = r#"(module (func (export "run") (result i32) (i32.const 1)))"#;
    let (gone, run): (_, TypedExport<(), i32>) = {
        let module = Module::new(&engine, text)?;
        (module.get_export_index("run").expect("an export"), module.get_typed_export("run")?)
    };
    // The same text, perhaps where the first module was.
    let module = Module::new(&engine, text)?;
    let mut store = Store::new(&engine, ());
    let instance = Instance::new(&mut store, &module, &[])?;
    assert!(instance.get_module_export(&mut store, &gone).is_none());
    let error = usage(instance.get_typed_export(&store, &run));
    assert_eq!(error, UsageError::WrongModule { what: "export" });
    let own = module.get_typed_export::<(), i32>("run")?;
    assert_eq!(instance.get_typed_export(&store, &own)?.call(&mut store, ())?, 1);
    let other = Store::new(&engine, ());
    assert!(matches!(
        usage(instance.get_typed_export(&other, &own)),
        UsageError::WrongStore { .. }
    ));
    Ok(())
}

#[test]
fn what_is_not_such_a_function_is_not_found() -> Result<()> {
    let module = Module::new(&Engine::default(), TEXT)?;
    assert!(module.get_export_index("nothing").is_none());
    for name in ["nothing", "memory"] {
        let error = usage(module.get_typed_export::<i32, i32>(name));
        assert_eq!(error, UsageError::NoExport { kind: "function", name: name.to_owned() });
    }
    let error = module.get_typed_export::<(i32, i32), i32>("own").unwrap_err();
    let shown = error.to_string();
    assert!(shown.contains("\"own\"") && shown.contains("(i32, i32) ->"), "{shown}");
    Ok(())
}

/// A host function finds what its caller exports.
#[test]
fn callers_have_exports_of_their_modules_alone() -> Result<()> {
    let engine = Engine::default();
    let text = r#"(module (import "" "f" (func $f (result i32)))
        (memory (export "memory") 3)
        (func (export "run") (result i32) (call $f)))"#;
    let (first, second) = (Module::new(&engine, text)?, Module::new(&engine, text)?);
    let memory = first.get_export_index("memory").expect("an export");
    let mut store = Store::new(&engine, ());
    let f = Func::wrap(&mut store, move |mut caller: Caller<'_, ()>| {
        let found = caller.get_module_export(&memory).and_then(Extern::into_memory);
        found.map_or(-1, |memory| memory.size(&caller) as i32)
    });
    assert_eq!(f.typed::<(), i32>(&store)?.call(&mut store, ())?, -1);
    for (module, expected) in [(first, 3), (second, -1)] {
        let instance = Instance::new(&mut store, &module, &[f.into()])?;
        let run = instance.get_typed_func::<(), i32>(&mut store, "run")?;
        assert_eq!(run.call(&mut store, ())?, expected);
    }
    Ok(())
}
