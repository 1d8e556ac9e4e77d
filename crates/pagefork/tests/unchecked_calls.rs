//! Calls on values without types mean the same as those on values with them, in both directions,
//! and what can be told apart without types is an error.

use pagefork::{
    Caller, Engine, Exception, ExnRef, ExternRef, Func, FuncType, Instance, Linker, Module, Result,
    Store, Tag, UsageError, Val, ValRaw, ValType,
};

/// Calls a function with these values, and reads its results.
fn call(store: &mut Store<()>, function: Func, values: &[Val]) -> Result<Vec<Val>> {
    let ty = function.ty(&*store);
    let mut raw = values.iter().map(|value| value.to_raw(&*store)).collect::<Result<Vec<_>>>()?;
    raw.resize(ty.params.len().max(ty.results.len()), ValRaw::u64(u64::MAX));
    // SAFETY: the callers' values are of the function's type.
    unsafe { function.call_unchecked(&mut *store, &raw mut raw[..])? };
    let results = raw.iter().zip(&ty.results);
    // SAFETY: the function has returned values of these types, made for this store.
    Ok(results.map(|(raw, ty)| unsafe { Val::from_raw(&*store, *raw, *ty) }).collect())
}

fn bits(values: &[Val]) -> String {
    format!("{values:?}")
}

const NUMBERS: [ValType; 5] =
    [ValType::I32, ValType::I64, ValType::F32, ValType::F64, ValType::V128];

fn numbers() -> Vec<Val> {
    vec![
        Val::I32(i32::MIN + 5),
        Val::I64(i64::MIN + 7),
        Val::F32(0xffa0_0001),
        Val::F64(0x7ff4_dead_beef_0001),
        Val::V128((0x1234 << 112) + 9),
    ]
}

/// Five values to and fro, and twenty, which are more than a host function keeps on the stack.
#[test]
fn values_of_every_number_type_pass_both_ways() -> Result<()> {
    for times in [0, 1, 3, 4] {
        let mut store = Store::new(&Engine::default(), ());
        let (types, values) = (NUMBERS.repeat(times), numbers().repeat(times));
        let ty = FuncType::new(types.clone(), types.iter().copied().rev());
        let reverse = |mut caller: Caller<'_, ()>, values: &mut [ValRaw]| {
            if let Some(pagefork::Extern::Func(inner)) = caller.get_export("inner") {
                // A call of the guest uses the guest's cells, not these values.
                inner.call(&mut caller, &[Val::I64(99), Val::V128(u128::MAX)], &mut [])?;
            }
            values.reverse();
            Ok(())
        };
        // SAFETY: the types of the results are those of the parameters, backwards.
        let reverse = unsafe { Func::new_unchecked(&mut store, ty.clone(), reverse) };
        let list: String = types.iter().map(|ty| format!(" {ty}")).collect();
        let back: String = types.iter().rev().map(|ty| format!(" {ty}")).collect();
        let gets: String = (0..types.len()).map(|i| format!("(local.get {i})")).collect();
        let module = format!(
            r#"(module
                (type $t (func (param{list}) (result{back})))
                (import "host" "reverse" (func $reverse (type $t)))
                (func (export "inner") (param i64 v128))
                (func (export "run") (type $t) (call $reverse {gets})))"#
        );
        let module = Module::new(store.engine(), module)?;
        let instance = Instance::new(&mut store, &module, &[reverse.into()])?;
        let run = instance.get_func(&mut store, "run").expect("an export");
        let expected: Vec<Val> = values.iter().copied().rev().collect();
        for function in [run, reverse] {
            let mut checked = vec![Val::I32(0); values.len()];
            function.call(&mut store, &values, &mut checked)?;
            assert_eq!(bits(&checked), bits(&expected), "{times}");
            assert_eq!(bits(&call(&mut store, function, &values)?), bits(&expected), "{times}");
        }
    }
    Ok(())
}

/// What lies behind a value in its cell is not part of it.
#[test]
fn narrow_values_may_have_anything_behind() -> Result<()> {
    let mut store = Store::new(&Engine::default(), ());
    let module = Module::new(
        store.engine(),
        r#"(module (func (export "widen") (param i32 f32) (result i64 f32)
            (i64.extend_i32_u (local.get 0)) (local.get 1)))"#,
    )?;
    let instance = Instance::new(&mut store, &module, &[])?;
    let widen = instance.get_func(&mut store, "widen").expect("an export");
    let mut values = [ValRaw::v128(u128::MAX << 32 | 7), ValRaw::v128(u128::MAX << 32 | 9)];
    // SAFETY: the first four bytes are an `i32` and an `f32`.
    unsafe { widen.call_unchecked(&mut store, &raw mut values[..])? };
    assert_eq!((values[0].get_v128(), values[1].get_v128()), (7, 9));
    Ok(())
}

/// References name what they should, whoever's place they come from.
#[test]
fn references_pass_both_ways() -> Result<()> {
    let mut store = Store::new(&Engine::default(), ());
    let tag = Tag::new(&mut store, FuncType::new([ValType::I32], []))?;
    let types = [ValType::FUNCREF, ValType::EXTERNREF, ValType::EXNREF];
    let echo = |mut caller: Caller<'_, ()>, values: &mut [ValRaw]| {
        // SAFETY: the first value is a reference to a function of this store.
        let function = unsafe { Func::from_raw(&caller, values[0].get_funcref()) };
        let function = function.expect("the guest's own function");
        assert_eq!(function.typed::<(), i32>(&caller)?.call(&mut caller, ())?, 5);
        assert_eq!(function.to_raw(&caller)?, values[0].get_funcref());
        Ok(())
    };
    let mut linker = Linker::new(store.engine());
    let ty = FuncType::new(types, types);
    // SAFETY: what it gets is of the types that it has to leave.
    unsafe { linker.func_new_unchecked("host", "echo", ty, echo)? };
    linker.define(&store, "host", "tag", tag)?;
    let module = Module::new(
        store.engine(),
        r#"(module
            (import "host" "echo" (func $echo (param funcref externref exnref)
                (result funcref externref exnref)))
            (import "host" "tag" (tag $tag (param i32)))
            (func $five (export "five") (result i32) (i32.const 5))
            (elem declare func $five)
            (func (export "run") (param funcref externref exnref)
                (result funcref externref exnref)
                (call $echo (local.get 0) (local.get 1) (local.get 2)))
            (func (export "own") (result funcref exnref) (local $e exnref)
                (block $caught (result exnref)
                    (try_table (catch_all_ref $caught) (throw $tag (i32.const 77)))
                    (unreachable))
                (local.set $e)
                (ref.func $five) (local.get $e)))"#,
    )?;
    // The second instance's references are not the first one's.
    linker.instantiate(&mut store, &module)?;
    let instance = linker.instantiate(&mut store, &module)?;
    let held = ExternRef::new(&mut store, 1234)?;
    let own = instance.get_func(&mut store, "own").expect("an export");
    let run = instance.get_func(&mut store, "run").expect("an export");
    for function in [run, linker.get(&mut store, "host", "echo")?.into_func().expect("one")] {
        let made = call(&mut store, own, &[])?;
        let given = [made[0], held.into(), made[1]];
        let results = call(&mut store, function, &given)?;
        let five = results[0].unwrap_funcref().expect("it is not null");
        assert_eq!(five.typed::<(), i32>(&store)?.call(&mut store, ())?, 5);
        let found = results[1].unwrap_externref().expect("it is not null").data(&store)?;
        assert_eq!(found.downcast_ref(), Some(&1234));
        let exception: &ExnRef = results[2].unwrap_exnref().expect("it is not null");
        let exception: Exception = exception.exception(&mut store)?;
        assert_eq!(bits(exception.payload()), bits(&[Val::I32(77)]));
    }
    let nulls = [Val::FuncRef(None), Val::ExternRef(None), Val::ExnRef(None)];
    for (null, ty) in nulls.iter().zip(types) {
        let raw = null.to_raw(&store)?;
        assert_eq!(raw.get_v128(), 0);
        // SAFETY: null is of each of these types.
        assert_eq!(bits(&[unsafe { Val::from_raw(&store, raw, ty) }]), bits(&[*null]));
    }
    Ok(())
}

#[test]
fn what_ends_a_call_and_what_was_given_wrongly_is_said() -> Result<()> {
    let engine = Engine::default();
    let (mut store, mut other) = (Store::new(&engine, ()), Store::new(&engine, ()));
    let ty = FuncType::new([ValType::I32], []);
    let fail = |_: Caller<'_, ()>, values: &mut [ValRaw]| match values[0].get_i32() {
        0 => Err(pagefork::Error::msg("this is the error")),
        1 => panic!("this is the panic"),
        _ => Ok(()),
    };
    // SAFETY: there are no results.
    let fail = unsafe { Func::new_unchecked(&mut store, ty, fail) };
    let module = Module::new(
        &engine,
        r#"(module (import "" "fail" (func $fail (param i32)))
            (func (export "run") (param i32) (call $fail (local.get 0))))"#,
    )?;
    let instance = Instance::new(&mut store, &module, &[fail.into()])?;
    let run = instance.get_func(&mut store, "run").expect("an export");
    let usage = |error: pagefork::Error| error.downcast_ref::<UsageError>().cloned();
    for function in [run, fail] {
        for _ in 0..2 {
            let error = call(&mut store, function, &[Val::I32(0)]).unwrap_err();
            assert!(error.to_string().contains("this is the error"), "{error}");
            let panicking = std::panic::AssertUnwindSafe(|| {
                let _ = call(&mut store, function, &[Val::I32(1)]);
            });
            let panic = std::panic::catch_unwind(panicking).unwrap_err();
            assert_eq!(panic.downcast_ref::<&str>(), Some(&"this is the panic"));
            assert!(call(&mut store, function, &[Val::I32(2)])?.is_empty());
        }
        // SAFETY: too few values are an error before anything is read.
        let error = unsafe { function.call_unchecked(&mut store, &mut []) }.unwrap_err();
        let expected = UsageError::ValueCount { what: "values", expected: 1, found: 0 };
        assert_eq!(format!("{:?}", usage(error)), format!("{:?}", Some(expected)));
        let mut values = [ValRaw::i32(2)];
        // SAFETY: the value is an `i32`.
        let error = unsafe { function.call_unchecked(&mut other, &raw mut values[..]) };
        assert!(matches!(usage(error.unwrap_err()), Some(UsageError::WrongStore { .. })));
        assert!(function.to_raw(&other).is_err());
        assert!(Val::from(function).to_raw(&other).is_err());
    }
    Ok(())
}
