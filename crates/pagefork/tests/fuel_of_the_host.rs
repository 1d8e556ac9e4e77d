//! Fuel for what the runtime and host functions do for guests: they pay for it
//! before it is done, and what does not exist costs nothing.

use pagefork::{
    Caller, Config, Engine, Error, Func, Instance, Linker, Module, Result, Store, Trap, TrapCode,
};

fn metered() -> Result<Engine> {
    Engine::new(Config::new().fuel(true))
}

fn trap_of<T>(result: Result<T>) -> TrapCode {
    let error = result.err().expect("it traps");
    error.downcast_ref::<Trap>().expect("a trap").code()
}

/// Modules whose export `f` does one operation on a range, the length of which is its
/// argument, in memories and tables of 32 or 64 bits.
fn operations(bits: u32) -> Vec<String> {
    let wide = if bits == 64 { "i64" } else { "" };
    let (zero, one) = (format!("(i{bits}.const 0)"), format!("(i{bits}.const 1)"));
    let length = match bits {
        64 => "(i64.extend_i32_s (local.get 0))",
        _ => "(local.get 0)",
    };
    let element = "(ref.null func)";
    [
        format!("(memory.fill {zero} (i32.const 1) {length})"),
        format!("(memory.fill {one} (i32.const 1) {length})"),
        format!("(memory.copy {zero} {one} {length})"),
        format!("(memory.copy $m $n {one} {zero} {length})"),
        format!("(memory.init $bytes {zero} (i32.const 0) (local.get 0))"),
        format!("(memory.init $bytes {one} (i32.const 1) (local.get 0))"),
        format!("(table.fill $t {zero} {element} {length})"),
        format!("(table.fill $t {one} {element} {length})"),
        format!("(table.copy $t $t {one} {zero} {length})"),
        format!("(table.copy $t $u {zero} {one} {length})"),
        format!("(table.init $t $items {zero} (i32.const 0) (local.get 0))"),
        format!("(drop (table.grow $t {element} {length}))"),
        format!("(drop (memory.grow $m {length}))"),
    ]
    .iter()
    .map(|operation| {
        format!(
            r#"(module
                (memory $m {wide} 1) (memory $n {wide} 1)
                (table $t {wide} 10 funcref) (table $u {wide} 10 funcref)
                (data $bytes "0123456789abcdef0123456789abcdef")
                (elem $items func $nothing $nothing $nothing $nothing)
                (func $nothing)
                (func (export "f") (param i32) {operation}))"#
        )
    })
    .collect()
}

#[test]
fn a_range_that_is_not_there_costs_nothing() -> Result<()> {
    let engine = metered()?;
    for text in [operations(32), operations(64)].concat() {
        let module = Module::new(&engine, &text)?;
        for length in [-1, i32::MIN, i32::MAX, -2, -16] {
            for fuel in [100, i64::MAX as u64, u64::MAX] {
                let mut store = Store::new(&engine, ());
                let instance = Instance::new(&mut store, &module, &[])?;
                let function = instance.get_typed_func::<i32, ()>(&mut store, "f")?;
                store.set_fuel(fuel)?;
                let fuel = store.fuel()?;
                let result = function.call(&mut store, length);
                let left = store.fuel()?;
                assert!(left <= fuel && left + 20 >= fuel, "{fuel} became {left}: {text}");
                if result.is_err() {
                    assert_ne!(trap_of(result), TrapCode::OutOfFuel, "{text}");
                }
            }
        }
    }
    Ok(())
}

#[test]
fn calls_that_fail_within_calls_do_not_refill_what_is_left() -> Result<()> {
    let engine = metered()?;
    for inner in [operations(32), operations(64)].concat() {
        let mut store = Store::new(&engine, ());
        let inner = Instance::new(&mut store, &Module::new(&engine, &inner)?, &[])?;
        let inner = inner.get_typed_func::<i32, ()>(&mut store, "f")?;
        let host = Func::wrap(&mut store, move |mut caller: Caller<'_, ()>| {
            for _ in 0..4 {
                let _: Result<(), Error> = inner.call(&mut caller, -1);
            }
        });
        let outer = r#"(module
            (import "host" "call" (func $call))
            (func (export "f") (param i32) (call $call) (local.set 0 (i32.const 5))))"#;
        let outer = Instance::new(&mut store, &Module::new(&engine, outer)?, &[host.into()])?;
        let outer = outer.get_typed_func::<i32, ()>(&mut store, "f")?;
        store.set_fuel(1000)?;
        outer.call(&mut store, 0)?;
        let left = store.fuel()?;
        assert!((800..1000).contains(&left), "{left} is left");
    }
    Ok(())
}

#[test]
fn a_guest_pays_before_the_runtime_works_for_it() -> Result<()> {
    let engine = metered()?;
    let text = r#"(module
        (memory (export "m") 16)
        (table 4000 funcref)
        (func (export "bytes") (memory.fill (i32.const 0) (i32.const 7) (i32.const 1000000)))
        (func (export "elements") (table.fill (i32.const 0) (ref.null func) (i32.const 4000))))"#;
    let mut store = Store::new(&engine, ());
    let instance = Instance::new(&mut store, &Module::new(&engine, text)?, &[])?;
    let memory = instance.get_memory(&mut store, "m").expect("it is exported");
    for (name, cost) in [("bytes", 1_000_000 / 16), ("elements", 2000)] {
        let function = instance.get_typed_func::<(), ()>(&mut store, name)?;
        for fuel in [0, 1, cost - 1] {
            store.set_fuel(fuel)?;
            assert_eq!(trap_of(function.call(&mut store, ())), TrapCode::OutOfFuel);
            assert_eq!(store.fuel()?, 0);
            assert_eq!(memory.data(&store)[0], 0, "nothing is done for nothing");
        }
        store.set_fuel(cost + 4)?;
        function.call(&mut store, ())?;
        assert_eq!(store.fuel()?, 0);
        memory.data_mut(&mut store)[0] = 0;
    }
    Ok(())
}

/// A store with fuel, and what became of a guest that calls the host in each of four
/// turns of a loop.
fn with_host<F>(fuel: u64, host: F) -> Result<(Store<Vec<u64>>, Result<()>)>
where
    F: Fn(Caller<'_, Vec<u64>>) -> Result<()> + Send + Sync + 'static,
{
    let engine = metered()?;
    let text = r#"(module
        (import "host" "call" (func $call))
        (func (export "f") (param i32)
            (loop $next
                (call $call)
                (br_if $next (local.tee 0 (i32.sub (local.get 0) (i32.const 1)))))))"#;
    let mut linker = Linker::new(&engine);
    linker.func_wrap("host", "call", host)?;
    let mut store = Store::new(&engine, Vec::new());
    let instance = linker.instantiate(&mut store, &Module::new(&engine, text)?)?;
    store.set_fuel(fuel)?;
    let function = instance.get_typed_func::<i32, ()>(&mut store, "f")?;
    let result = function.call(&mut store, 4);
    Ok((store, result))
}

#[test]
fn host_functions_see_what_their_callers_have_left() -> Result<()> {
    let (store, result) = with_host(1000, |mut caller| {
        let left = caller.fuel()?;
        assert_eq!(left, caller.as_context().fuel()?);
        assert_eq!(left, caller.as_context_mut().fuel()?);
        caller.data_mut().push(left);
        Ok(())
    })?;
    result?;
    // call; then get, const, sub, tee, br_if, call.
    assert_eq!(store.data(), &[999, 993, 987, 981]);
    assert_eq!(store.fuel()?, 976);
    Ok(())
}

#[test]
fn host_functions_charge_their_callers() -> Result<()> {
    let (store, result) = with_host(1000, |mut caller| caller.charge_fuel(100))?;
    result?;
    assert_eq!(store.fuel()?, 976 - 400);

    let (store, result) = with_host(300, |mut caller| {
        caller.data_mut().push(0);
        caller.as_context_mut().charge_fuel(100)
    })?;
    let frames = result.as_ref().unwrap_err().backtrace().expect("a guest ran").frames().len();
    assert_eq!((trap_of(result), frames), (TrapCode::OutOfFuel, 1));
    assert_eq!((store.data().len(), store.fuel()?), (3, 0));

    // A host function that keeps the error to itself does not keep the guest going.
    for units in [u64::MAX, i64::MAX as u64 + 1, i64::MAX as u64, 10_000] {
        let (store, result) = with_host(300, move |mut caller| {
            caller.data_mut().push(0);
            let _ = caller.charge_fuel(units);
            let _ = caller.charge_fuel(units);
            assert_eq!(caller.fuel()?, 0);
            Ok(())
        })?;
        assert_eq!(trap_of(result), TrapCode::OutOfFuel);
        assert_eq!((store.data().len(), store.fuel()?), (1, 0));
    }
    Ok(())
}

#[test]
fn host_functions_give_their_callers_more() -> Result<()> {
    for more in [1000, i64::MAX as u64, u64::MAX] {
        let (store, result) = with_host(2, move |mut caller| caller.set_fuel(more))?;
        result?;
        assert_eq!(store.fuel()?, more.min(i64::MAX as u64) - 5);
    }
    let (_, result) = with_host(1000, |mut caller| caller.as_context_mut().set_fuel(0))?;
    assert_eq!(trap_of(result), TrapCode::OutOfFuel);
    Ok(())
}
