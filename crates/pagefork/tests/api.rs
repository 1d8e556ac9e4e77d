//! Modules, instances and their parts, as an embedder uses them.

use pagefork::{
    Engine, Extern, ExternType, Func, FuncType, Global, GlobalType, HeapType, Instance, Linker,
    Memory, MemoryType, Module, RefType, Result, Store, Table, TableType, UsageError, Val, ValType,
};

fn instance(store: &mut Store<()>, wat: &str) -> Instance {
    let module = Module::new(store.engine(), wat).unwrap();
    Linker::new(store.engine()).instantiate(store, &module).unwrap()
}

fn store() -> Store<()> {
    Store::new(&Engine::default(), ())
}

#[test]
fn typed_and_untyped_calls_agree() {
    let mut store = store();
    let instance = instance(
        &mut store,
        r#"(module (func (export "mix") (param i32 i64 f32 f64) (result f64 i32 i64)
            (f64.add (local.get 3) (f64.promote_f32 (local.get 2)))
            (i32.sub (local.get 0) (i32.const 1))
            (i64.mul (local.get 1) (i64.const -2))))"#,
    );
    let mix = instance
        .get_typed_func::<(i32, i64, f32, f64), (f64, i32, i64)>(&mut store, "mix")
        .unwrap();
    assert_eq!(mix.call(&mut store, (0, 21, 0.5, 0.25)).unwrap(), (0.75, -1, -42));
    let params = [Val::from(i32::MIN), Val::from(-1i64), Val::from(1f32), Val::from(2f64)];
    let mut results = [Val::I32(0); 3];
    mix.func().call(&mut store, &params, &mut results).unwrap();
    assert_eq!(results[0].f64(), Some(3.0));
    assert_eq!(results[1].i32(), Some(i32::MAX));
    assert_eq!(results[2].i64(), Some(2));
}

#[test]
fn many_parameters_and_results_of_each_type_arrive() {
    let types = ["i32", "i64", "f32", "f64", "v128", "externref", "funcref"];
    let names: Vec<&str> = (0..35).map(|i| types[i % types.len()]).collect();
    let gets: String = (0..35).map(|i| format!("(local.get {i})")).collect();
    let list = names.join(" ");
    let mut store = store();
    let wat = format!(r#"(module (func (export "same") (param {list}) (result {list}) {gets}))"#);
    let instance = instance(&mut store, &wat);
    let same = instance.get_func(&mut store, "same").unwrap();
    let reference = pagefork::ExternRef::new(&mut store, "value").unwrap();
    let params: Vec<Val> = (0..35)
        .map(|i| match i % 7 {
            0 => Val::I32(-i),
            1 => Val::I64(i64::from(i) << 40),
            2 => Val::F32((i as f32).to_bits()),
            3 => Val::F64((f64::from(i)).to_bits()),
            4 => Val::V128(u128::MAX - i as u128),
            5 => Val::ExternRef(Some(reference)),
            _ => Val::FuncRef(Some(same)),
        })
        .collect();
    let mut results = vec![Val::I32(0); 35];
    same.call(&mut store, &params, &mut results).unwrap();
    for (param, result) in params.iter().zip(&results) {
        assert_eq!(format!("{param:?}"), format!("{result:?}"));
    }
    let Val::ExternRef(Some(reference)) = results[5] else { panic!() };
    assert_eq!(reference.data(&store).unwrap().downcast_ref(), Some(&"value"));
}

#[test]
fn wrong_values_are_refused_before_the_call() {
    let mut store = store();
    let wat = r#"(module (global (export "calls") (mut i32) (i32.const 0))
        (func (export "f") (param i32) (global.set 0 (i32.const 1))))"#;
    let instance = instance(&mut store, wat);
    let f = instance.get_func(&mut store, "f").unwrap();
    for params in [&[][..], &[Val::I64(0)], &[Val::I32(0), Val::I32(0)]] {
        let error = f.call(&mut store, params, &mut []).unwrap_err();
        assert!(error.is::<UsageError>(), "{error}");
    }
    assert!(f.call(&mut store, &[Val::I32(0)], &mut [Val::I32(0)]).is_err());
    let calls = instance.get_global(&mut store, "calls").unwrap();
    assert_eq!(calls.get(&mut store).i32(), Some(0));
    assert!(f.typed::<i64, ()>(&store).unwrap_err().to_string().contains("(i32) -> ()"));
    assert!(instance.get_typed_func::<(), ()>(&mut store, "g").is_err());
}

#[test]
fn memory_is_shared_with_the_guest() -> Result<()> {
    let mut store = store();
    let instance = instance(
        &mut store,
        r#"(module (memory (export "memory") 1 3)
            (data (i32.const 8) "hello")
            (func (export "load") (param i32) (result i32) (i32.load8_u (local.get 0)))
            (func (export "size") (result i32) (memory.size))
            (func (export "grow") (param i32) (result i32) (memory.grow (local.get 0))))"#,
    );
    let memory = instance.get_memory(&mut store, "memory").unwrap();
    assert_eq!(&memory.data(&store)[8..13], b"hello");
    memory.write(&mut store, 65535, b"x")?;
    assert!(memory.write(&mut store, 65535, b"xy").is_err());
    let mut buffer = [0; 2];
    assert!(memory.read(&store, usize::MAX, &mut buffer).is_err());
    let load = instance.get_typed_func::<i32, i32>(&mut store, "load")?;
    assert_eq!(load.call(&mut store, 65535)?, i32::from(b'x'));

    assert_eq!(memory.grow(&mut store, 1)?, 1);
    let size = instance.get_typed_func::<(), i32>(&mut store, "size")?;
    assert_eq!(size.call(&mut store, ())?, 2);
    let grow = instance.get_typed_func::<i32, i32>(&mut store, "grow")?;
    assert_eq!(grow.call(&mut store, 1)?, 2);
    assert_eq!(grow.call(&mut store, 1)?, -1);
    assert!(memory.grow(&mut store, 1).is_err());
    assert_eq!((memory.size(&store), memory.data_size(&store)), (3, 3 << 16));
    memory.data_mut(&mut store)[3 * 65536 - 1] = 7;
    assert_eq!(load.call(&mut store, 3 * 65536 - 1)?, 7);
    Ok(())
}

#[test]
fn globals_and_tables_are_shared_with_the_guest() -> Result<()> {
    let mut store = store();
    let instance = instance(
        &mut store,
        r#"(module
            (global (export "g") (mut i64) (i64.const 5))
            (global (export "c") v128 (v128.const i64x2 1 2))
            (table (export "t") 2 10 funcref)
            (elem (i32.const 1) $nine)
            (func $nine (export "nine") (result i32) (i32.const 9))
            (func (export "g+1") (global.set 0 (i64.add (global.get 0) (i64.const 1))))
            (func (export "call") (param i32) (result i32)
                (call_indirect (result i32) (local.get 0))))"#,
    );
    let g = instance.get_global(&mut store, "g").unwrap();
    g.set(&mut store, Val::I64(41))?;
    instance.get_typed_func::<(), ()>(&mut store, "g+1")?.call(&mut store, ())?;
    assert_eq!(g.get(&mut store).i64(), Some(42));
    assert!(g.set(&mut store, Val::I32(0)).is_err());
    let c = instance.get_global(&mut store, "c").unwrap();
    assert_eq!(c.get(&mut store).v128(), Some(1 | 2 << 64));
    assert!(c.set(&mut store, Val::V128(0)).unwrap_err().is::<UsageError>());

    let table = instance.get_table(&mut store, "t").unwrap();
    let call = instance.get_typed_func::<i32, i32>(&mut store, "call")?;
    assert_eq!(call.call(&mut store, 1)?, 9);
    let host = Func::wrap(&mut store, || 77i32);
    assert_eq!(table.grow(&mut store, 2, host.into())?, 2);
    assert_eq!(call.call(&mut store, 3)?, 77);
    let nine = table.get(&mut store, 1).unwrap();
    table.set(&mut store, 0, nine)?;
    assert_eq!(call.call(&mut store, 0)?, 9);
    assert!(table.get(&mut store, 4).is_none());
    assert!(table.set(&mut store, 4, nine).is_err());
    assert!(table.grow(&mut store, 7, nine).is_err());
    assert_eq!(table.size(&store), 4);
    Ok(())
}

#[test]
fn things_of_the_host_can_be_imported() -> Result<()> {
    let mut store = store();
    let wat = r#"(module
        (import "h" "m" (memory 1 2))
        (import "h" "t" (table 3 funcref))
        (import "h" "g" (global $g (mut i32)))
        (import "h" "r" (global $r funcref))
        (import "h" "e" (global $e externref))
        (elem (i32.const 0) $own)
        (data (i32.const 0) "\07")
        (global (export "e2") externref (global.get $e))
        (func $own (result i32) (i32.load8_u (i32.const 0)))
        (func (export "run") (result i32)
            (table.set (i32.const 2) (global.get $r))
            (global.set $g (i32.add (global.get $g) (call_indirect (result i32) (i32.const 0))))
            (i32.add (global.get $g) (call_indirect (result i32) (i32.const 2)))))"#;
    let module = Module::new(store.engine(), wat)?;
    let memory = Memory::new(&mut store, MemoryType::new(1, Some(2)))?;
    let ty = TableType::new(RefType::FUNCREF, 3, None);
    let table = Table::new(&mut store, ty, Val::FuncRef(None))?;
    let ty = GlobalType { content: ValType::I32, mutable: true };
    let g = Global::new(&mut store, ty, Val::I32(10))?;
    let function = Func::wrap(&mut store, || 1000i32);
    let ty = GlobalType { content: ValType::FUNCREF, mutable: false };
    let r = Global::new(&mut store, ty, function.into())?;
    let reference = pagefork::ExternRef::new(&mut store, 5u8)?;
    let ty = GlobalType { content: ValType::EXTERNREF, mutable: false };
    let e = Global::new(&mut store, ty, reference.into())?;
    let imports: [Extern; 5] = [memory.into(), table.into(), g.into(), r.into(), e.into()];
    let instance = Instance::new(&mut store, &module, &imports)?;
    let run = instance.get_typed_func::<(), i32>(&mut store, "run")?;
    assert_eq!(run.call(&mut store, ())?, 10 + 7 + 1000);
    memory.data_mut(&mut store)[0] = 1;
    assert_eq!(run.call(&mut store, ())?, 17 + 1 + 1000);
    assert_eq!(g.get(&mut store).i32(), Some(18));
    let e2 = instance.get_global(&mut store, "e2").unwrap().get(&mut store);
    let Val::ExternRef(Some(e2)) = e2 else { panic!() };
    assert_eq!(e2.data(&store)?.downcast_ref(), Some(&5u8));
    let own = table.get(&mut store, 0).unwrap();
    let Val::FuncRef(Some(own)) = own else { panic!() };
    assert_eq!(own.typed::<(), i32>(&store)?.call(&mut store, ())?, 1);
    Ok(())
}

#[test]
fn modules_list_their_imports_and_exports() -> Result<()> {
    let engine = Engine::default();
    let module = Module::new(
        &engine,
        r#"(module $name (import "a" "b" (func (param f32))) (memory (export "m") 1))"#,
    )?;
    assert_eq!(module.name(), Some("name"));
    let import = module.imports().next().unwrap();
    assert_eq!((import.module(), import.name()), ("a", "b"));
    let ty = FuncType { params: [ValType::F32].into(), results: [].into() };
    assert_eq!(import.ty(), ExternType::Func(ty));
    assert_eq!(module.exports().map(|export| export.name()).collect::<Vec<_>>(), ["m"]);
    let memory = ExternType::Memory(MemoryType::new(1, None));
    assert_eq!(module.get_export("m"), Some(memory));
    assert_eq!(module.get_export("n"), None);
    Ok(())
}

#[test]
fn handles_of_another_store_are_refused() -> Result<()> {
    let engine = Engine::default();
    let (mut ours, mut theirs) = (Store::new(&engine, ()), Store::new(&engine, ()));
    let f = Func::wrap(&mut ours, || ());
    let wrong = |error: pagefork::Error| {
        matches!(error.downcast_ref(), Some(UsageError::WrongStore { .. }))
    };
    assert!(wrong(f.call(&mut theirs, &[], &mut []).unwrap_err()));
    assert!(wrong(f.typed::<(), ()>(&ours)?.call(&mut theirs, ()).unwrap_err()));
    let module = Module::new(&engine, r#"(module (import "" "" (func)))"#)?;
    assert!(wrong(Instance::new(&mut theirs, &module, &[f.into()]).unwrap_err()));
    let g = Func::wrap(&mut theirs, |_: Option<Func>| ());
    assert!(wrong(g.call(&mut theirs, &[f.into()], &mut []).unwrap_err()));
    let other = Module::new(&Engine::default(), "(module)")?;
    let error = Instance::new(&mut theirs, &other, &[]).unwrap_err();
    assert!(matches!(error.downcast_ref(), Some(UsageError::WrongEngine { .. })));
    Ok(())
}

#[test]
fn malformed_and_invalid_modules_are_refused() {
    let engine = Engine::default();
    for wat in ["(module", "(module (func (result i32)))", "(module (func (br 3)))"] {
        let error = Module::new(&engine, wat).unwrap_err();
        assert_eq!(error.kind(), pagefork::ErrorKind::Compile, "{error}");
    }
    for bytes in [&b""[..], b"\0asm", b"\0asm\x0d\0\x01\0", b"\0asm\x01\0\0\0\x01\xff"] {
        assert!(Module::from_binary(&engine, bytes).is_err());
    }
}

#[test]
fn values_are_unwrapped_as_what_they_are() {
    assert_eq!((Val::I32(-1).unwrap_i32(), Val::I64(2).unwrap_i64()), (-1, 2));
    assert_eq!((Val::from(0.5f32).unwrap_f32(), Val::from(1.5f64).unwrap_f64()), (0.5, 1.5));
    assert_eq!(Val::V128(7).unwrap_v128(), 7);
    assert!(Val::null_func_ref().unwrap_funcref().is_none());
    assert!(Val::null_extern_ref().unwrap_externref().is_none());
    assert!(Val::null_ref(&HeapType::NoExn).unwrap_exnref().is_none());
    assert!(Val::I32(1).i64().is_none() && Val::I32(1).funcref().is_none());
    for ty in [ValType::I32, ValType::V128, ValType::EXNREF, ValType::FUNCREF] {
        assert_eq!(Val::default_for_ty(&ty).unwrap().ty(), ty);
    }
    let never_null = ValType::Ref(RefType::new(false, HeapType::Func));
    assert!(Val::default_for_ty(&never_null).is_none());
}

#[test]
#[should_panic(expected = "a value of type i64")]
fn unwrapping_a_value_as_another_type_panics() {
    Val::I32(1).unwrap_i64();
}
