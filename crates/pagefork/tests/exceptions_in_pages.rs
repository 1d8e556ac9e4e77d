//! Exceptions lie in guests' pages: how much room they take, when it is free
//! again, and that they move with the guest.

use pagefork::suspend::{self, CallProgress, Zone};
use pagefork::{
    Caller, Config, Engine, ErrorKind, Exception, ExnRef, Func, FuncType, Global, GlobalType,
    Instance, Linker, Module, RefType, Result, Store, Table, TableType, Tag, Trap, TrapCode, Val,
    ValType,
};

/// Keeps references to exceptions in every place that can hold one, and throws
/// much more than a zone holds.
const KEEPER: &str = r#"(module
    (import "host" "table" (table $shared 8 exnref))
    (import "host" "global" (global $shared (mut exnref)))
    (import "host" "again" (func $again (param i32) (result i32)))
    (tag $t (export "t") (param i32)) (tag $nest (param exnref i32))
    (table $own 8 exnref)
    (global $own (mut exnref) (ref.null exn))
    (func $make (param i32) (result exnref)
        (block $h (result exnref)
            (try_table (result exnref) (catch_all_ref $h) (throw $t (local.get 0)))))
    (func $wrap (param exnref i32) (result exnref)
        (block $h (result exnref)
            (try_table (result exnref) (catch_all_ref $h)
                (throw $nest (local.get 0) (local.get 1)))))
    (func $value (param exnref) (result i32)
        (block $nest (result exnref i32)
            (block $t (result i32)
                (try_table (result i32) (catch $t $t) (catch $nest $nest)
                    (throw_ref (local.get 0))))
            (return))
        (drop) (return_call $value))
    (func $litter (export "litter") (param $n i32) (result i32)
        (loop $l
            (drop (call $wrap (call $make (i32.const -1)) (i32.const -2)))
            (br_if $l (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
        (i32.const 0))
    (func (export "run") (param $n i32) (result i32)
        (local $local exnref)
        (local.set $local (call $make (i32.const 1)))
        (global.set $own (call $make (i32.const 10)))
        (global.set $shared (call $make (i32.const 100)))
        (table.set $own (i32.const 7) (call $make (i32.const 1000)))
        (table.set $shared (i32.const 7)
            (call $wrap (call $wrap (call $make (i32.const 10000)) (i32.const 0)) (i32.const 0)))
        ;; An operand, across a call of the host that enters this instance again.
        (call $make (i32.const 100000))
        (call $again (local.get $n))
        (drop)
        (call $value)
        (i32.add (call $value (table.get $shared (i32.const 7))))
        (i32.add (call $value (table.get $own (i32.const 7))))
        (i32.add (call $value (global.get $shared)))
        (i32.add (call $value (global.get $own)))
        (i32.add (call $value (local.get $local))))
    (func (export "hoard") (param $n i32) (result i32)
        (loop $l
            (global.set $own (call $wrap (global.get $own) (local.get $n)))
            (br_if $l (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
        (i32.const 0))
    (func (export "forget") (global.set $own (ref.null exn)))
    (func (export "value") (param exnref) (result i32) (call $value (local.get 0)))
    (func (export "make") (param i32) (result exnref) (call $make (local.get 0))))"#;

fn keeper(engine: &Engine) -> Result<(Store<()>, Instance)> {
    let mut store = Store::new(engine, ());
    let mut linker = Linker::new(engine);
    let table =
        Table::new(&mut store, TableType::new(RefType::EXNREF, 8, None), Val::ExnRef(None))?;
    linker.define(&mut store, "host", "table", table)?;
    let ty = GlobalType { content: ValType::EXNREF, mutable: true };
    let global = Global::new(&mut store, ty, Val::ExnRef(None))?;
    linker.define(&mut store, "host", "global", global)?;
    linker.func_wrap("host", "again", |mut caller: Caller<'_, ()>, n: i32| -> Result<i32> {
        let litter = caller.get_export("litter").unwrap().into_func().unwrap();
        litter.typed::<i32, i32>(&caller)?.call(&mut caller, n)
    })?;
    let instance = linker.instantiate(&mut store, &Module::new(engine, KEEPER)?)?;
    Ok((store, instance))
}

#[test]
fn what_is_in_use_stays_and_what_is_not_makes_room() -> Result<()> {
    let (mut store, instance) = keeper(&Engine::default())?;
    let run = instance.get_typed_func::<i32, i32>(&mut store, "run")?;
    for n in [1, 100, 1000, 20_000] {
        assert_eq!(run.call(&mut store, n)?, 111_111);
    }
    Ok(())
}

/// Throws an exception that carries another, to which nothing else refers.
const CARRIER: &str = r#"(module
    (tag $light (param i32)) (tag $heavy (param i32 exnref))
    (func $value (param exnref) (result i32)
        (block $h (result i32)
            (try_table (catch $light $h) (throw_ref (local.get 0)))
            (unreachable)))
    (func $make (param i32) (result exnref) (local $made exnref)
        (block $h (result i32 exnref)
            (try_table (catch_ref $light $h) (throw $light (local.get 0)))
            (unreachable))
        (local.set $made) (drop)
        (local.get $made))
    (func $throw (param i32)
        (throw $heavy (i32.const 1) (call $make (local.get 0))))
    (func (export "run") (param $n i32) (result i32) (local $carried exnref) (local $sum i32)
        (loop $next
            ;; So that sometimes the one finds no room and sometimes the other.
            (if (i32.eqz (i32.rem_u (local.get $n) (i32.const 3)))
                (then (drop (call $make (i32.const 0)))))
            (block $h (result i32 exnref)
                (try_table (catch $heavy $h) (call $throw (local.get $n)))
                (unreachable))
            (local.set $carried) (drop)
            (local.set $sum
                (i32.add (local.get $sum) (call $value (local.get $carried))))
            (local.set $carried (ref.null exn))
            (br_if $next (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
        (local.get $sum)))"#;

#[test]
fn what_is_carried_is_in_use_while_its_carrier_is_made() -> Result<()> {
    let mut store = Store::new(&Engine::new(Config::new().exceptions_size(4096))?, ());
    let module = Module::new(store.engine(), CARRIER)?;
    let instance = Linker::new(store.engine()).instantiate(&mut store, &module)?;
    let run = instance.get_typed_func::<i32, i32>(&mut store, "run")?;
    assert_eq!(run.call(&mut store, 10_000)?, 10_000 * 10_001 / 2);
    Ok(())
}

#[test]
fn a_zone_full_of_exceptions_in_use_is_a_trap_until_they_are_not() -> Result<()> {
    let mut config = Config::new();
    for (size, room) in [(4096, 4096), (64 << 10, 64 << 10), (u64::MAX, 1 << 20)] {
        let engine = Engine::new(config.exceptions_size(size))?;
        let (mut store, instance) = keeper(&engine)?;
        let hoard = instance.get_typed_func::<i32, i32>(&mut store, "hoard")?;
        let forget = instance.get_typed_func::<(), ()>(&mut store, "forget")?;
        // Each takes a head and two cells; one unit is the zone's.
        let most = (room / 16 - 1) / 3;
        hoard.call(&mut store, most)?;
        for _ in 0..3 {
            let error = hoard.call(&mut store, 1).unwrap_err();
            let trap = error.downcast_ref::<Trap>().unwrap();
            assert_eq!(trap.code(), TrapCode::TooManyExceptions);
        }
        forget.call(&mut store, ())?;
        hoard.call(&mut store, most)?;
        assert!(hoard.call(&mut store, 1).is_err());
    }
    Ok(())
}

#[test]
fn what_the_host_refers_to_stays() -> Result<()> {
    let (mut store, instance) = keeper(&Engine::default())?;
    let make = instance.get_typed_func::<i32, Option<ExnRef>>(&mut store, "make")?;
    let value = instance.get_typed_func::<Option<ExnRef>, i32>(&mut store, "value")?;
    let litter = instance.get_typed_func::<i32, i32>(&mut store, "litter")?;
    let held = make.call(&mut store, 42)?;
    litter.call(&mut store, 10_000)?;
    assert_eq!(value.call(&mut store, held)?, 42);
    let exception = held.unwrap().exception(&mut store)?;
    assert_eq!(exception.payload()[0].i32(), Some(42));
    // It can be kept where guests keep theirs, and in other stores it is nothing.
    let ty = GlobalType { content: ValType::EXNREF, mutable: true };
    let global = Global::new(&mut store, ty, Val::ExnRef(held))?;
    let Val::ExnRef(again) = global.get(&mut store) else { panic!("another type") };
    assert_eq!(value.call(&mut store, again)?, 42);
    let (mut other, instance) = keeper(&Engine::default())?;
    let value = instance.get_typed_func::<Option<ExnRef>, i32>(&mut other, "value")?;
    assert_eq!(value.call(&mut other, held).unwrap_err().kind(), ErrorKind::Usage);
    Ok(())
}

/// Suspended in a `try_table`, while exceptions are caught, and with references to
/// them in frames: below the first handler of several instances.
const WANDERER: &str = r#"(module $wanderer
    (import "host" "step" (func $step (param i32) (result i32)))
    (import "host" "t" (tag $t (param i32 exnref)))
    (import "deep" "fall" (func $fall (param i32) (result i32)))
    (memory 1) (table $kept 16 exnref)
    (func $level (param $n i32) (result i32)
        (local $e exnref) (local $x i32) (local $f f64)
        (local.set $f (f64.convert_i32_s (local.get $n)))
        (if (i32.eqz (local.get $n)) (then (return (call $fall (call $step (i32.const 3))))))
        (block $all (result exnref)
            (block $one (result i32 exnref exnref)
                (try_table (catch_ref $t $one) (catch_all_ref $all)
                    (local.set $x (call $step (local.get $n)))
                    (local.set $f (f64.add (local.get $f) (f64.const 0.5)))
                    (return (call $level (i32.sub (local.get $n) (i32.const 1)))))
                (unreachable))
            (local.set $e) (drop)
            (table.set $kept (local.get $n) (local.get $e))
            (i32.add (call $step (local.get $x)))
            (local.set $x)
            (i32.store (i32.mul (local.get $n) (i32.const 8)) (local.get $x))
            (if (i32.and (local.get $n) (i32.const 1)) (then (throw_ref (local.get $e))))
            (throw $t (i32.add (local.get $x) (i32.trunc_f64_s (local.get $f)))
                (local.get $e)))
        (throw_ref))
    (func (export "run") (param i32) (result i32)
        (block $h (result i32 exnref)
            (try_table (catch $t $h)
                (return (call $level (local.get 0))))
            (unreachable))
        (drop)
        (i32.add (i32.load (i32.const 16)))))"#;

const DEEP: &str = r#"(module $deep
    (import "host" "step" (func $step (param i32) (result i32)))
    (import "host" "t" (tag $t (param i32 exnref)))
    (func (export "fall") (param i32) (result i32)
        (throw $t (call $step (local.get 0)) (ref.null exn))))"#;

fn wanderer(engine: &Engine, modules: &[Module; 2]) -> Result<(Store<i32>, Instance)> {
    let mut store = Store::new(engine, 0);
    let mut linker = Linker::new(engine);
    linker.func_wrap("host", "step", |mut caller: Caller<'_, i32>, x: i32| {
        *caller.data_mut() += 1;
        x.wrapping_mul(7) + 1
    })?;
    let params = [ValType::I32, ValType::EXNREF].into();
    let t = Tag::new(&mut store, FuncType { params, results: [].into() })?;
    linker.define(&mut store, "host", "t", t)?;
    linker.module(&mut store, "deep", &modules[1])?;
    let instance = linker.instantiate(&mut store, &modules[0])?;
    Ok((store, instance))
}

#[test]
fn a_guest_moved_at_any_point_catches_where_it_is() -> Result<()> {
    let engine = Engine::default();
    let modules = [Module::new(&engine, WANDERER)?, Module::new(&engine, DEEP)?];
    let params = [Val::I32(9)];
    let (mut store, instance) = wanderer(&engine, &modules)?;
    let run = instance.get_func(&mut store, "run").unwrap();
    let mut expected = [Val::I32(0)];
    run.call(&mut store, &params, &mut expected)?;
    let zones = |store: &Store<i32>| -> Vec<Vec<u8>> {
        let ordinals = 1..=suspend::instance_count(store);
        ordinals.map(|ordinal| suspend::zone_bytes(store, ordinal, Zone::Exceptions).1).collect()
    };
    let expected_zones = zones(&store);
    assert!(expected_zones.iter().flatten().any(|byte| *byte != 0), "exceptions leave a trace");

    let mut point = 0;
    loop {
        point += 1;
        let (mut store, instance) = wanderer(&engine, &modules)?;
        let run = instance.get_func(&mut store, "run").unwrap();
        let mut progress = suspend::call(&mut store, &run, &params, Some(point))?;
        if let CallProgress::Finished(_) = progress {
            break;
        }
        // Elsewhere at this point, and at each fifth from here.
        while let CallProgress::Suspended = progress {
            let mut target = Store::new(&engine, *store.data());
            suspend::copy_to(&store, &mut target, true)?;
            store.close();
            store = target;
            progress = suspend::resume(&mut store, Some(5))?;
        }
        let CallProgress::Finished(values) = progress else { unreachable!() };
        assert_eq!(values[0].i32(), expected[0].i32(), "point {point}");
        assert!(zones(&store) == expected_zones, "point {point}");
    }
    assert!(point > 30, "{point}");
    Ok(())
}

#[test]
fn an_exception_of_the_host_lies_with_its_tag() -> Result<()> {
    let engine = Engine::default();
    // The module that calls the host has no tags, so no room.
    let module = Module::new(
        &engine,
        r#"(module (import "" "f" (func $f))
            (func (export "run") (result i32)
                (block $h (try_table (catch_all $h) (call $f)) (return (i32.const 0)))
                (i32.const 1)))"#,
    )?;
    let mut store = Store::new(&engine, ());
    let tag = Tag::new(&mut store, FuncType { params: [ValType::I64].into(), results: [].into() })?;
    let f = Func::wrap(&mut store, move |caller: Caller<'_, ()>| -> Result<()> {
        Err(Exception::new(&caller, &tag, &[Val::I64(1)])?.into())
    });
    let instance = Instance::new(&mut store, &module, &[f.into()])?;
    let run = instance.get_typed_func::<(), i32>(&mut store, "run")?;
    for _ in 0..10_000 {
        assert_eq!(run.call(&mut store, ())?, 1);
    }
    Ok(())
}
