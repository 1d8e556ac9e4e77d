//! A hook is told of every way between guests and the host, and its errors end what it was told of.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use pagefork::CallHook::{self, CallingHost, CallingWasm, ReturningFromHost, ReturningFromWasm};
use pagefork::{
    Caller, Engine, Func, Instance, Linker, Module, Result, Store, Trap, TrapCode, Val, bail,
};

const GUEST: &str = r#"(module
    (import "host" "add" (func $add (param i32 i64) (result i64)))
    (import "host" "many" (func $many (param i32) (result i32 f64 i64)))
    (import "host" "again" (func $again))
    (import "host" "fail" (func $fail))
    (type $add (func (param i32 i64) (result i64)))
    (table funcref (elem $add))
    (memory 1)
    (func (export "plain") (param i32 i64) (result i64)
        (i64.add (i64.extend_i32_u (local.get 0)) (local.get 1)))
    (func (export "add") (param i32 i64) (result i64) (call $add (local.get 0) (local.get 1)))
    (func (export "indirect") (param i32 i64) (result i64)
        (call_indirect (type $add) (local.get 0) (local.get 1) (i32.const 0)))
    (func (export "many") (result i32 f64 i64) (call $many (i32.const 3)))
    (func (export "again") (call $again))
    (func (export "fail") (call $fail))
    (func (export "trap") (unreachable))
    (func (export "grow") (drop (memory.grow (i32.const 1)))))"#;

#[derive(Default)]
struct State {
    told: Vec<CallHook>,
    /// At which turn the hook fails or panics.
    fail_at: Option<usize>,
    panics: bool,
    instance: Option<Instance>,
}

fn linker(engine: &Engine) -> (Linker<State>, Module) {
    let mut linker = Linker::new(engine);
    linker.func_wrap("host", "add", |a: i32, b: i64| i64::from(a) + b).unwrap();
    linker.func_wrap("host", "many", |a: i32| (a, f64::from(a) / 2.0, 7i64)).unwrap();
    linker
        .func_wrap("host", "again", |mut caller: Caller<'_, State>| -> Result<()> {
            let function = caller.get_export("plain").unwrap().into_func().unwrap();
            let plain = function.typed::<(i32, i64), i64>(&caller)?;
            assert_eq!(plain.call(&mut caller, (1, 2))?, 3);
            Ok(())
        })
        .unwrap();
    linker.func_wrap("host", "fail", || -> Result<()> { bail!("the host fails") }).unwrap();
    (linker, Module::new(engine, GUEST).unwrap())
}

fn hook(store: &mut Store<State>) {
    store.call_hook(|mut store, what| {
        let state = store.data_mut();
        state.told.push(what);
        if state.fail_at.is_some_and(|at| at == state.told.len()) {
            assert!(!state.panics, "the hook panics");
            bail!("the hook fails");
        }
        Ok(())
    });
}

fn store() -> (Store<State>, Instance) {
    let engine = Engine::default();
    let (linker, module) = linker(&engine);
    let mut store = Store::new(&engine, State::default());
    let instance = linker.instantiate(&mut store, &module).unwrap();
    hook(&mut store);
    (store, instance)
}

fn told(store: &mut Store<State>) -> Vec<CallHook> {
    std::mem::take(&mut store.data_mut().told)
}

const AROUND_HOST: [CallHook; 4] = [CallingWasm, CallingHost, ReturningFromHost, ReturningFromWasm];

#[test]
fn all_ways_are_told_and_values_come_through() -> Result<()> {
    let (mut store, instance) = store();
    let typed = |store: &mut Store<State>, name| {
        instance.get_typed_func::<(i32, i64), i64>(store, name).unwrap()
    };
    let plain = typed(&mut store, "plain");
    assert_eq!(plain.call(&mut store, (40, 2))?, 42);
    assert_eq!(told(&mut store), [CallingWasm, ReturningFromWasm]);
    for name in ["add", "indirect"] {
        let add = typed(&mut store, name);
        assert_eq!(add.call(&mut store, (40, 2))?, 42);
        assert_eq!(told(&mut store), AROUND_HOST);
        let mut results = [Val::I32(0)];
        add.func().call(&mut store, &[Val::I32(1), Val::I64(-2)], &mut results)?;
        assert_eq!((results[0].unwrap_i64(), told(&mut store)), (-1, AROUND_HOST.to_vec()));
    }
    let many = instance.get_typed_func::<(), (i32, f64, i64)>(&mut store, "many")?;
    assert_eq!(many.call(&mut store, ())?, (3, 1.5, 7));
    assert_eq!(told(&mut store), AROUND_HOST);
    let again = instance.get_typed_func::<(), ()>(&mut store, "again")?;
    again.call(&mut store, ())?;
    let [first, second, third, last] = AROUND_HOST;
    let nested = [first, second, CallingWasm, ReturningFromWasm, third, last];
    assert_eq!(told(&mut store), nested);
    // The runtime's own work is none of the host's.
    instance.get_typed_func::<(), ()>(&mut store, "grow")?.call(&mut store, ())?;
    assert_eq!(told(&mut store), [CallingWasm, ReturningFromWasm]);
    Ok(())
}

#[test]
fn ends_by_traps_and_errors_are_told_too() -> Result<()> {
    let (mut store, instance) = store();
    let trap = instance.get_typed_func::<(), ()>(&mut store, "trap")?;
    let error = trap.call(&mut store, ()).unwrap_err();
    assert_eq!(error.downcast_ref::<Trap>().unwrap().code(), TrapCode::Unreachable);
    assert_eq!(told(&mut store), [CallingWasm, ReturningFromWasm]);
    let fail = instance.get_typed_func::<(), ()>(&mut store, "fail")?;
    assert_eq!(fail.call(&mut store, ()).unwrap_err().to_string(), "the host fails");
    assert_eq!(told(&mut store), AROUND_HOST);
    Ok(())
}

#[test]
fn instances_that_are_made_later_and_their_start_functions_are_told() -> Result<()> {
    let (mut store, instance) = store();
    told(&mut store);
    let text = r#"(module (import "" "add" (func $add (param i32 i64) (result i64)))
        (import "" "host" (func $host))
        (func $start (drop (call $add (i32.const 1) (i64.const 2))) (call $host)) (start $start))"#;
    let module = Module::new(store.engine(), text)?;
    let add = instance.get_func(&mut store, "add").unwrap();
    let host = Func::wrap(&mut store, || ());
    Instance::new(&mut store, &module, &[add.into(), host.into()])?;
    let host = [CallingHost, ReturningFromHost];
    let all = [&[CallingWasm][..], &host, &host, &[ReturningFromWasm]].concat();
    assert_eq!(told(&mut store), all);
    Ok(())
}

#[test]
fn an_error_of_the_hook_ends_the_call_wherever_it_comes() -> Result<()> {
    let (mut store, instance) = store();
    let add = instance.get_typed_func::<(i32, i64), i64>(&mut store, "add")?;
    for (fail_at, expected) in [
        (1, &[CallingWasm][..]),
        (2, &[CallingWasm, CallingHost, ReturningFromWasm]),
        (3, &AROUND_HOST),
        (4, &AROUND_HOST),
    ] {
        for panics in [false, true] {
            *store.data_mut() = State { fail_at: Some(fail_at), panics, ..State::default() };
            let call = AssertUnwindSafe(|| add.call(&mut store, (1, 2)));
            match catch_unwind(call) {
                Ok(result) => {
                    assert!(!panics);
                    assert_eq!(result.unwrap_err().to_string(), "the hook fails");
                    assert_eq!(told(&mut store), expected, "{fail_at}");
                }
                Err(payload) => {
                    assert!(panics);
                    assert_eq!(payload.downcast_ref::<&str>(), Some(&"the hook panics"));
                }
            }
        }
    }
    *store.data_mut() = State::default();
    assert_eq!(add.call(&mut store, (1, 2))?, 3);
    assert_eq!(told(&mut store), AROUND_HOST, "it is told again");
    Ok(())
}

/// What the hook calls passes its values in the cells that the calls around it use.
#[test]
fn a_hook_can_call_guests_and_is_not_told_of_them() -> Result<()> {
    let (mut store, instance) = store();
    store.data_mut().instance = Some(instance);
    store.call_hook(|mut store, what| {
        store.data_mut().told.push(what);
        let instance = store.data().instance.unwrap();
        let plain = instance.get_typed_func::<(i32, i64), i64>(&mut store, "plain")?;
        assert_eq!(plain.call(&mut store, (1000, 1000))?, 2000);
        let many = instance.get_typed_func::<(), (i32, f64, i64)>(&mut store, "many")?;
        assert_eq!(many.call(&mut store, ())?, (3, 1.5, 7));
        Ok(())
    });
    let add = instance.get_typed_func::<(i32, i64), i64>(&mut store, "add")?;
    assert_eq!(add.call(&mut store, (40, 2))?, 42);
    assert_eq!(told(&mut store), AROUND_HOST);
    let many = instance.get_typed_func::<(), (i32, f64, i64)>(&mut store, "many")?;
    assert_eq!(many.call(&mut store, ())?, (3, 1.5, 7));
    Ok(())
}

#[test]
fn a_hook_stays_over_resets_and_goes_with_a_spawned_store() -> Result<()> {
    let engine = Engine::default();
    let (linker, module) = linker(&engine);
    let pre = linker.instantiate_pre(&module)?;
    for _ in 0..3 {
        let (mut store, instance) = pre.spawn(State::default())?;
        let add = instance.get_typed_func::<(i32, i64), i64>(&mut store, "add")?;
        assert_eq!(add.call(&mut store, (1, 2))?, 3);
        assert!(store.data().told.is_empty());
        let held = Arc::new(());
        let held_too = Arc::clone(&held);
        store.call_hook(move |mut store, what| {
            assert_eq!(*held_too, ());
            store.data_mut().told.push(what);
            Ok(())
        });
        assert_eq!(add.call(&mut store, (1, 2))?, 3);
        assert_eq!(told(&mut store), AROUND_HOST);
        store.reset(State::default())?;
        assert_eq!(add.call(&mut store, (1, 2))?, 3);
        assert_eq!(told(&mut store), AROUND_HOST);
        drop(store);
        assert_eq!(Arc::strong_count(&held), 1);
    }
    Ok(())
}
