//! Fuel: guests pay for what they do, the same for the same work, and stop when
//! it is used up.

use pagefork::{
    AsContext, AsContextMut, Config, Engine, Instance, Module, Result, Store, Trap, TrapCode,
    UsageError,
};

const INITIAL: u64 = 1_000_000;

/// What a call of the export `f` with this argument costs, or how it fails.
fn cost(text: &str, argument: i32) -> Result<u64> {
    let engine = Engine::new(Config::new().fuel(true))?;
    let module = Module::new(&engine, text)?;
    let mut store = Store::new(&engine, ());
    store.set_fuel(INITIAL)?;
    let instance = Instance::new(&mut store, &module, &[])?;
    let function = instance.get_typed_func::<i32, ()>(&mut store, "f")?;
    function.call(&mut store, argument)?;
    Ok(INITIAL - store.fuel()?)
}

fn trap_of(result: Result<u64>) -> TrapCode {
    let error = result.expect_err("it traps");
    error.downcast_ref::<Trap>().expect("a trap").code()
}

#[test]
fn each_operator_that_does_something_costs_one() -> Result<()> {
    let straight = r#"(module (func (export "f") (param i32)
        nop
        (drop (i32.add (local.get 0) (i32.const 1)))
        (block (block))))"#;
    assert_eq!(cost(straight, 5)?, 3);

    // Both arms are paid for by who takes them.
    let either = r#"(module (func (export "f") (param i32)
        (if (local.get 0)
            (then (drop (i32.const 1)) (drop (i32.const 2)))
            (else (drop (i32.const 3))))))"#;
    assert_eq!((cost(either, 1)?, cost(either, 0)?), (4, 3));
    Ok(())
}

#[test]
fn loops_cost_what_their_turns_cost() -> Result<()> {
    let turns = r#"(module (func (export "f") (param i32)
        (loop $next
            (local.set 0 (i32.sub (local.get 0) (i32.const 1)))
            (br_if $next (local.get 0)))))"#;
    // get, const, sub, set, get, br_if.
    assert_eq!(cost(turns, 1)?, 6);
    assert_eq!(cost(turns, 1000)?, 6000);
    Ok(())
}

#[test]
fn calls_of_every_kind_are_paid_by_who_runs() -> Result<()> {
    let direct = r#"(module
        (func $work (param i32) (drop (local.get 0)) (drop (local.get 0)))
        (func (export "f") (param i32) (call $work (local.get 0)) (call $work (local.get 0))))"#;
    assert_eq!(cost(direct, 0)?, 2 * (2 + 2));

    let tail = r#"(module
        (func $count (export "f") (param i32)
            (if (i32.eqz (local.get 0)) (then return))
            (return_call $count (i32.sub (local.get 0) (i32.const 1)))))"#;
    // get, eqz, if; then get, const, sub, return_call.
    assert_eq!(cost(tail, 100)?, 100 * 7 + 3);

    let thrown = r#"(module
        (tag $stop)
        (func (export "f") (param i32)
            (block $caught
                (try_table (catch $stop $caught)
                    (drop (i32.const 1))
                    (throw $stop)))
            (drop (i32.const 2))))"#;
    assert_eq!(cost(thrown, 0)?, 3);
    Ok(())
}

#[test]
fn operations_on_ranges_cost_by_their_length() -> Result<()> {
    let fill = r#"(module (memory 1) (func (export "f") (param i32)
        (memory.fill (i32.const 0) (i32.const 1) (local.get 0))))"#;
    assert_eq!(cost(fill, 0)?, 4);
    assert_eq!(cost(fill, 16_000)?, 4 + 1000);
    Ok(())
}

#[test]
fn a_guest_without_fuel_stops_in_loops_and_in_recursion() -> Result<()> {
    let spin = r#"(module (func (export "f") (param i32) (loop (br 0))))"#;
    assert_eq!(trap_of(cost(spin, 0)), TrapCode::OutOfFuel);
    let recursion = r#"(module (func $f (export "f") (param i32)
        (return_call $f (local.get 0))))"#;
    assert_eq!(trap_of(cost(recursion, 0)), TrapCode::OutOfFuel);
    Ok(())
}

#[test]
fn without_fuel_nothing_starts_and_with_new_fuel_it_goes_on() -> Result<()> {
    let engine = Engine::new(Config::new().fuel(true))?;
    let text = r#"(module
        (func (export "f") (param i32)
            (loop $next
                (local.set 0 (i32.sub (local.get 0) (i32.const 1)))
                (br_if $next (local.get 0)))))"#;
    let mut store = Store::new(&engine, ());
    let instance = Instance::new(&mut store, &Module::new(&engine, text)?, &[])?;
    let function = instance.get_typed_func::<i32, ()>(&mut store, "f")?;
    assert_eq!(store.fuel()?, 0, "a new store has none");
    let error = function.call(&mut store, 10).unwrap_err();
    assert_eq!(error.downcast_ref::<Trap>().unwrap().code(), TrapCode::OutOfFuel);
    assert_eq!(store.fuel()?, 0);
    store.set_fuel(u64::MAX)?;
    function.call(&mut store, 10)?;
    assert_eq!(store.fuel()?, i64::MAX as u64 - 60);
    Ok(())
}

#[test]
fn an_engine_that_does_not_meter_says_so() {
    let mut store = Store::new(&Engine::default(), ());
    let mut context = store.as_context_mut();
    let errors = [
        context.set_fuel(1).unwrap_err(),
        context.charge_fuel(1).unwrap_err(),
        context.fuel().unwrap_err(),
        store.as_context().fuel().unwrap_err(),
        store.set_fuel(1).unwrap_err(),
        store.fuel().unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(error.downcast_ref(), Some(UsageError::NotMetered)), "{error}");
        assert!(error.to_string().contains("Config::fuel"), "{error}");
    }
}
