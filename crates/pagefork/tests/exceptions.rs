//! Exceptions: thrown and caught in one function, across functions, instances and
//! the host, with everything that they can carry.

use pagefork::{
    AsContextMut, Caller, Engine, Error, ErrorKind, Exception, ExnRef, Extern, ExternRef, Func,
    FuncType, Instance, Linker, Module, Result, Store, Tag, Trap, TrapCode, Val, ValType,
};

fn instantiate(text: &str) -> Result<(Store<()>, Instance)> {
    let engine = Engine::default();
    let module = Module::new(&engine, text)?;
    let mut store = Store::new(&engine, ());
    let instance = Instance::new(&mut store, &module, &[])?;
    Ok((store, instance))
}

/// Calls an export of type `i32 -> i32`.
fn run(mut store: impl AsContextMut, instance: Instance, name: &str, value: i32) -> Result<i32> {
    instance.get_typed_func::<i32, i32>(&mut store, name)?.call(&mut store, value)
}

fn trap_code(error: &Error) -> Option<TrapCode> {
    error.downcast_ref::<Trap>().map(Trap::code)
}

fn tag(store: &mut Store<()>, params: &[ValType]) -> Result<Tag> {
    Tag::new(store, FuncType { params: params.into(), results: [].into() })
}

#[test]
fn a_function_catches_what_it_throws() -> Result<()> {
    let (mut store, instance) = instantiate(
        r#"(module (tag $t (param i32))
            (func (export "run") (param i32) (result i32)
                (block $h (result i32)
                    (try_table (result i32) (catch $t $h)
                        (throw $t (i32.add (local.get 0) (i32.const 1)))))))"#,
    )?;
    for value in [0, 41, -1] {
        assert_eq!(run(&mut store, instance, "run", value)?, value.wrapping_add(1));
    }
    Ok(())
}

#[test]
fn clauses_are_asked_in_order_and_outward() -> Result<()> {
    let (mut store, instance) = instantiate(
        r#"(module (tag $a) (tag $b) (tag $c) (tag $d)
            (func $throw (param i32)
                (block $3 (block $2 (block $1 (block $0
                    (br_table $0 $1 $2 $3 (local.get 0)))
                    (throw $a)) (throw $b)) (throw $c)) (throw $d))
            (func (export "run") (param i32) (result i32)
                (local $before i32)
                (local.set $before (i32.const 100))
                (block $outer_all (block $outer_b (block $second_a (block $a (block $c
                    (try_table (catch $b $outer_b) (catch_all $outer_all)
                        (try_table (catch $a $a) (catch $a $second_a) (catch $c $c)
                            (local.set $before (i32.const 200))
                            (call $throw (local.get 0))
                            (local.set $before (i32.const 300)))))
                    (return (i32.add (local.get $before) (i32.const 3))))
                    (return (i32.add (local.get $before) (i32.const 1))))
                    (return (i32.const -1)))
                    (return (i32.add (local.get $before) (i32.const 2))))
                (i32.add (local.get $before) (i32.const 4))))"#,
    )?;
    for (thrown, expected) in [(0, 201), (1, 202), (2, 203), (3, 204)] {
        assert_eq!(run(&mut store, instance, "run", thrown)?, expected);
    }
    Ok(())
}

#[test]
fn what_nobody_catches_reaches_the_embedder() -> Result<()> {
    let (mut store, instance) = instantiate(
        r#"(module (tag $t (export "t") (param i32 i64)) (tag $other)
            (func $inner (param i32) (throw $t (local.get 0) (i64.const 7)))
            (func (export "run") (param i32) (result i32)
                (block $h (try_table (catch $other $h) (call $inner (local.get 0))))
                (i32.const 0)))"#,
    )?;
    let Some(Extern::Tag(t)) = instance.get_export(&mut store, "t") else { panic!("no tag") };
    for value in 0..10_000 {
        let error = run(&mut store, instance, "run", value).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Exception);
        let exception = error.downcast_ref::<Exception>().unwrap();
        assert_eq!(*exception.tag(), t);
        assert_eq!(exception.payload()[0].i32(), Some(value));
        assert_eq!(exception.payload()[1].i64(), Some(7));
        if value == 3 {
            assert_eq!(error.to_string(), "uncaught exception with I32(3), I64(7)");
            // Thrown anew by `run`, whose landing pad nothing of `inner` is left of.
            let frames = error.backtrace().unwrap().frames();
            assert_eq!(frames.len(), 1);
        }
    }
    Ok(())
}

#[test]
fn a_reference_to_an_exception_throws_it_again() -> Result<()> {
    let (mut store, instance) = instantiate(
        r#"(module (tag $t (param i32))
            (func $again (param exnref) (throw_ref (local.get 0)))
            (func (export "run") (param i32) (result i32)
                (local $e exnref)
                (block $first (result i32 exnref)
                    (try_table (result i32 exnref) (catch_ref $t $first)
                        (throw $t (local.get 0))))
                (local.set $e)
                (block $second (result exnref)
                    (try_table (result exnref) (catch_all_ref $second)
                        (call $again (local.get $e)) (ref.null exn)))
                (local.set $e)
                (block $third (result i32)
                    (try_table (result i32) (catch $t $third)
                        (call $again (local.get $e)) (i32.const 0)))
                (i32.add))
            (func (export "null") (param i32) (result i32)
                (block $h (try_table (catch_all $h) (throw_ref (ref.null exn))))
                (i32.const 1)))"#,
    )?;
    for value in 0..10_000 {
        assert_eq!(run(&mut store, instance, "run", value)?, 2 * value);
    }
    let error = run(&mut store, instance, "null", 0).unwrap_err();
    assert_eq!(trap_code(&error), Some(TrapCode::NullExceptionReference));
    Ok(())
}

#[test]
fn a_loop_that_throws_ten_thousand_times_needs_no_room() -> Result<()> {
    let (mut store, instance) = instantiate(
        r#"(module (tag $t (param i32))
            (func $f (param i32) (throw $t (local.get 0)))
            (func (export "run") (param $n i32) (result i32)
                (local $sum i32)
                (loop $again (result i32)
                    (block $h (result i32)
                        (try_table (result i32) (catch $t $h)
                            (call $f (local.get $n)) (i32.const 0)))
                    (local.set $sum (i32.add (local.get $sum)))
                    (local.tee $n (i32.sub (local.get $n) (i32.const 1)))
                    (br_if $again)
                    (local.get $sum))))"#,
    )?;
    assert_eq!(run(&mut store, instance, "run", 10_000)?, 50_005_000);
    Ok(())
}

/// Each level of the recursion catches and throws on, and has something of its own
/// to put right afterwards.
#[test]
fn deep_recursion_is_unwound_level_by_level() -> Result<()> {
    let (mut store, instance) = instantiate(
        r#"(module (tag $t (param i32)) (global $cleanups (mut i32) (i32.const 0))
            (func $down (param $n i32)
                (local $e exnref) (local $mine i32)
                (local.set $mine (i32.mul (local.get $n) (i32.const 3)))
                (if (i32.eqz (local.get $n)) (then (throw $t (i32.const 9))))
                (block $h (result exnref)
                    (try_table (result exnref) (catch_all_ref $h)
                        (call $down (i32.sub (local.get $n) (i32.const 1)))
                        (ref.null exn)))
                (local.set $e)
                (global.set $cleanups (i32.add (global.get $cleanups) (local.get $mine)))
                (throw_ref (local.get $e)))
            (func $plain (param $n i32)
                (if (i32.eqz (local.get $n)) (then (throw $t (i32.const 5))))
                (call $plain (i32.sub (local.get $n) (i32.const 1))))
            (func (export "run") (param i32) (result i32)
                (block $h (result i32)
                    (try_table (result i32) (catch $t $h)
                        (call $down (local.get 0)) (i32.const 0)))
                (i32.add (global.get $cleanups)))
            (func (export "plain") (param i32) (result i32)
                (block $h (result i32)
                    (try_table (result i32) (catch $t $h)
                        (call $plain (local.get 0)) (i32.const 0)))))"#,
    )?;
    assert_eq!(run(&mut store, instance, "run", 3000)?, 9 + 3 * (3000 * 3001 / 2));
    assert_eq!(run(&mut store, instance, "plain", 9000)?, 5);
    Ok(())
}

#[test]
fn traps_and_interrupts_are_nobodys_exceptions() -> Result<()> {
    let (mut store, instance) = instantiate(
        r#"(module (tag $t) (memory 1) (type $unary (func (param i32) (result i32)))
            (table 1 funcref)
            (func $endless (param i32) (result i32)
                (i32.add (call $endless (local.get 0)) (i32.const 1)))
            (func $forever (loop $l (br $l)))
            (func (export "memory") (param i32) (result i32)
                (block $h (try_table (catch_all $h) (drop (i32.load (i32.const -1)))))
                (i32.const 1))
            (func (export "unreachable") (param i32) (result i32)
                (block $h (try_table (catch_all $h) (unreachable))) (i32.const 1))
            (func (export "null") (param i32) (result i32)
                (block $h (try_table (catch_all $h)
                    (drop (call_indirect (type $unary) (i32.const 0) (i32.const 0)))))
                (i32.const 1))
            (func (export "stack") (param i32) (result i32)
                (block $h (try_table (catch_all $h) (drop (call $endless (i32.const 0)))))
                (i32.const 1))
            (func (export "loop") (param i32) (result i32)
                (block $h (try_table (catch_all $h) (call $forever)))
                (i32.const 1)))"#,
    )?;
    store.set_timeout(Some(std::time::Duration::from_millis(20)))?;
    for (name, code) in [
        ("memory", TrapCode::MemoryOutOfBounds),
        ("unreachable", TrapCode::Unreachable),
        ("null", TrapCode::IndirectCallToNull),
        ("stack", TrapCode::StackOverflow),
        ("loop", TrapCode::Interrupt),
    ] {
        let error = run(&mut store, instance, name, 0).unwrap_err();
        assert_eq!(trap_code(&error), Some(code), "{name}: {error:?}");
    }
    // What a function traps with has the frames of those that would catch.
    let error = run(&mut store, instance, "null", 0).unwrap_err();
    assert_eq!(error.backtrace().unwrap().frames().len(), 1);
    Ok(())
}

#[test]
fn the_start_function_can_throw() -> Result<()> {
    let engine = Engine::default();
    let module = Module::new(&engine, "(module (tag $t) (start 0) (func (throw $t)))")?;
    let mut store = Store::new(&engine, ());
    let error = Instance::new(&mut store, &module, &[]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exception);
    Ok(())
}

/// A payload with every type; `id` gives the values back through registers and
/// cells, since there are more than fit either.
const ALL_TYPES: &str = r#"(module
    (type $all (func (param i32 i64 f32 f64 v128 funcref externref exnref i32 i64)))
    (tag $t (export "t") (type $all))
    (func $throw (type $all)
        (throw $t (local.get 0) (local.get 1) (local.get 2) (local.get 3) (local.get 4)
            (local.get 5) (local.get 6) (local.get 7) (local.get 8) (local.get 9)))
    (func (export "catch") (param i32 i64 f32 f64 v128 funcref externref exnref i32 i64)
        (result i32 i64 f32 f64 v128 funcref externref exnref i32 i64)
        (block $h (result i32 i64 f32 f64 v128 funcref externref exnref i32 i64)
            (try_table (catch $t $h)
                (call $throw (local.get 0) (local.get 1) (local.get 2) (local.get 3)
                    (local.get 4) (local.get 5) (local.get 6) (local.get 7) (local.get 8)
                    (local.get 9)))
            (unreachable)))
    (func (export "throw") (type $all)
        (call $throw (local.get 0) (local.get 1) (local.get 2) (local.get 3)
            (local.get 4) (local.get 5) (local.get 6) (local.get 7) (local.get 8)
            (local.get 9)))
    (func $own (export "own") (param i32) (result i32) (i32.const 77))
    (func (export "make") (result exnref)
        (block $h (result exnref)
            (try_table (result exnref) (catch_all_ref $h)
                (throw $t (i32.const 5) (i64.const 0) (f32.const 0) (f64.const 0)
                    (v128.const i64x2 0 0) (ref.func $own) (ref.null extern)
                    (ref.null exn) (i32.const 0) (i64.const 0))))))"#;

#[test]
fn a_payload_is_unchanged_to_the_bit() -> Result<()> {
    let (mut store, instance) = instantiate(ALL_TYPES)?;
    let make = instance.get_typed_func::<(), Option<ExnRef>>(&mut store, "make")?;
    let inner = make.call(&mut store, ())?.unwrap();
    let own = instance.get_func(&mut store, "own").unwrap();
    let host = ExternRef::new(&mut store, "host value")?;
    let payload = [
        Val::I32(-5),
        Val::I64(i64::MIN),
        // Signalling NaNs with a payload of their own.
        Val::F32(0xffa1_2345),
        Val::F64(0x7ff4_0000_dead_beef),
        Val::V128(0x0123_4567_89ab_cdef_0011_2233_4455_6677),
        Val::FuncRef(Some(own)),
        Val::ExternRef(Some(host)),
        Val::ExnRef(Some(inner)),
        Val::I32(i32::MAX),
        Val::I64(-1),
    ];
    let check = |store: &mut Store<()>, values: &[Val]| -> Result<()> {
        for (value, expected) in values.iter().zip(&payload) {
            match (value, expected) {
                (Val::FuncRef(Some(function)), _) => {
                    assert_eq!(function.typed::<i32, i32>(&*store)?.call(&mut *store, 0)?, 77);
                }
                (Val::ExternRef(Some(reference)), _) => {
                    let text = reference.data(&*store)?.downcast_ref::<&str>();
                    assert_eq!(text, Some(&"host value"));
                }
                (Val::ExnRef(Some(reference)), _) => {
                    let exception = reference.exception(&mut *store)?;
                    assert_eq!(exception.payload()[0].i32(), Some(5));
                    let Val::FuncRef(Some(function)) = exception.payload()[5] else { panic!() };
                    assert_eq!(function.typed::<i32, i32>(&*store)?.call(&mut *store, 0)?, 77);
                }
                _ => assert_eq!(format!("{value:?}"), format!("{expected:?}")),
            }
        }
        Ok(())
    };
    let mut results = [Val::I32(0); 10];
    let catch = instance.get_func(&mut store, "catch").unwrap();
    catch.call(&mut store, &payload, &mut results)?;
    check(&mut store, &results)?;
    let throw = instance.get_func(&mut store, "throw").unwrap();
    let error = throw.call(&mut store, &payload, &mut []).unwrap_err();
    check(&mut store, error.downcast_ref::<Exception>().unwrap().payload())
}

/// A module that catches, one that passes through without any handler, and one
/// that throws, in all orders; and each hands references of its own on.
#[test]
fn exceptions_cross_instances_and_their_bases() -> Result<()> {
    let engine = Engine::default();
    let thrower = r#"(module (import "host" "t" (tag $t (param i32 funcref exnref)))
        (tag $private) (global $mine (mut i32) (i32.const 1000))
        (func $get (result i32) (global.get $mine)) (elem declare func $get)
        (func (export "f") (param i32) (result i32)
            (global.set $mine (i32.add (global.get $mine) (i32.const 1)))
            (if (i32.eq (local.get 0) (i32.const 1)) (then (throw $private)))
            (if (i32.eq (local.get 0) (i32.const 2))
                (then (throw $t (local.get 0) (ref.func $get) (ref.null exn))))
            (local.get 0)))"#;
    let passer = r#"(module (import "next" "f" (func $f (param i32) (result i32)))
        (global $mine (mut i32) (i32.const 2000))
        (func (export "f") (param i32) (result i32)
            (global.set $mine (i32.add (global.get $mine) (i32.const 1)))
            (i32.add (call $f (local.get 0)) (i32.const 10))))"#;
    // `all` catches what it does not know and throws it on, from another place.
    let catcher = r#"(module (import "next" "f" (func $f (param i32) (result i32)))
        (import "host" "t" (tag $t (param i32 funcref exnref)))
        (import "host" "t" (tag $alias (param i32 funcref exnref)))
        (tag $unrelated (param i32 funcref exnref))
        (type $get (func (result i32)))
        (table $table 4 funcref) (table $exceptions 4 exnref)
        (global $mine (mut i32) (i32.const 3000))
        (func (export "f") (param i32) (result i32)
            (local $r funcref) (local $e exnref)
            (global.set $mine (i32.add (global.get $mine) (i32.const 1)))
            (block $all (result exnref)
                (block $h (result i32 funcref exnref)
                    (try_table (catch $unrelated $h) (catch $alias $h) (catch_all_ref $all)
                        (return (i32.add (call $f (local.get 0)) (i32.const 100))))
                    (unreachable))
                (drop) (local.set $r) (drop)
                (table.set $table (i32.const 0) (local.get $r))
                (return (i32.add
                    (call_indirect $table (type $get) (i32.const 0))
                    (global.get $mine))))
            (local.set $e)
            (table.set $exceptions (i32.const 1) (local.get $e))
            (throw_ref (table.get $exceptions (i32.const 1)))))"#;
    let chain = |modules: &[&str]| -> Result<(Store<()>, Instance)> {
        let mut store = Store::new(&engine, ());
        let mut linker = Linker::new(&engine);
        linker.allow_shadowing(true);
        let params = [ValType::I32, ValType::FUNCREF, ValType::EXNREF];
        let t = tag(&mut store, &params)?;
        linker.define(&mut store, "host", "t", t)?;
        let mut last = None;
        for text in modules {
            let instance = linker.instantiate(&mut store, &Module::new(&engine, text)?)?;
            linker.instance(&mut store, "next", instance)?;
            last = Some(instance);
        }
        Ok((store, last.unwrap()))
    };
    let (a, b, c) = (thrower, passer, catcher);
    for (modules, plain, caught) in [
        (vec![a, c], 100, Some(1003 + 3003)),
        (vec![a, b, c], 110, Some(1003 + 3003)),
        (vec![a, b, b, c], 120, Some(1003 + 3003)),
        (vec![a, c, b], 110, Some(1003 + 3003 + 10)),
        (vec![a, b, c, b, c], 220, Some(1003 + 3003 + 10 + 100)),
        (vec![a, c, c], 200, Some(1003 + 3003 + 100)),
        (vec![a, b], 10, None),
    ] {
        let (mut store, last) = chain(&modules)?;
        assert_eq!(run(&mut store, last, "f", 0)?, plain);
        let error = run(&mut store, last, "f", 1).unwrap_err();
        assert!(error.downcast_ref::<Exception>().unwrap().payload().is_empty());
        match caught {
            Some(expected) => assert_eq!(run(&mut store, last, "f", 2)?, expected),
            None => assert!(run(&mut store, last, "f", 2).unwrap_err().is::<Exception>()),
        }
        // Every instance has its own base again.
        assert_eq!(run(&mut store, last, "f", 0)?, plain);
    }
    Ok(())
}

/// Calls in a `try_table` return what does not fit registers, too, and so do calls
/// across instances that exceptions can come back through.
#[test]
fn results_beyond_the_registers_come_through_calls_that_can_throw() -> Result<()> {
    let engine = Engine::default();
    let types = "i32 f64 i64 f32 i32 f64 i64 f32 i32 f64 i64 f32 i32 f64 i64 f32 i32 f64 i64 f32 \
                 i32 funcref v128";
    let mut values = String::new();
    for (i, ty) in types.split_whitespace().enumerate() {
        values += &match ty {
            "funcref" => "(ref.func $own)".to_owned(),
            "v128" => "(v128.const i64x2 1 2)".to_owned(),
            ty => format!("({ty}.const {i})"),
        };
    }
    let callee = format!(
        r#"(module (tag $t (export "t"))
            (func $own (export "own") (result i32) (i32.const 88))
            (func (export "f") (param i32) (result {types})
                (if (local.get 0) (then (throw $t)))
                {values}))"#
    );
    let caller = format!(
        r#"(module (import "callee" "f" (func $f (param i32) (result {types})))
            (import "callee" "t" (tag $t))
            (type $f (func (param i32) (result {types})))
            (table 1 funcref) (elem (i32.const 0) $f)
            (func $here (param i32) (result {types}) (call $f (local.get 0)))
            (func (export "run") (param i32 i32) (result {types})
                (block $h
                    (if (i32.eqz (local.get 1)) (then
                        (try_table (catch $t $h) (return (call $f (local.get 0))))))
                    (if (i32.eq (local.get 1) (i32.const 1)) (then
                        (try_table (catch $t $h) (return (call $here (local.get 0))))))
                    (try_table (catch $t $h)
                        (return (call_indirect (type $f) (local.get 0) (i32.const 0)))))
                (call $f (i32.const 0))))"#
    );
    let mut store = Store::new(&engine, ());
    let mut linker = Linker::new(&engine);
    let own = linker.instantiate(&mut store, &Module::new(&engine, callee)?)?;
    linker.instance(&mut store, "callee", own)?;
    let instance = linker.instantiate(&mut store, &Module::new(&engine, caller)?)?;
    let f = own.get_func(&mut store, "f").unwrap();
    let run = instance.get_func(&mut store, "run").unwrap();
    let mut expected = [Val::I32(0); 23];
    f.call(&mut store, &[Val::I32(0)], &mut expected)?;
    for (throws, how) in [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)] {
        let mut results = [Val::I32(0); 23];
        run.call(&mut store, &[Val::I32(throws), Val::I32(how)], &mut results)?;
        assert_eq!(format!("{results:?}"), format!("{expected:?}"), "{throws} {how}");
        let Val::FuncRef(Some(function)) = results[21] else { panic!("{:?}", results[21]) };
        assert_eq!(function.typed::<(), i32>(&store)?.call(&mut store, ())?, 88);
    }
    Ok(())
}

const THROUGH_THE_HOST: &str = r#"(module
    (import "host" "t" (tag $t (param i32)))
    (import "host" "call" (func $call (param i32)))
    (func (export "throw") (param i32) (result i32)
        (throw $t (i32.add (local.get 0) (i32.const 1))))
    (func (export "run") (param i32) (result i32)
        (block $h (result i32)
            (try_table (result i32) (catch $t $h) (call $call (local.get 0)) (i32.const -1)))))"#;

#[test]
fn host_functions_throw_and_pass_on() -> Result<()> {
    let engine = Engine::default();
    let module = Module::new(&engine, THROUGH_THE_HOST)?;
    let mut store = Store::new(&engine, ());
    let t = tag(&mut store, &[ValType::I32])?;
    let other = tag(&mut store, &[])?;
    let call = move |mut caller: Caller<'_, ()>, what: i32| -> Result<()> {
        let export = |caller: &mut Caller<'_, ()>, name| -> Result<_> {
            caller.get_export(name).unwrap().into_func().unwrap().typed::<i32, i32>(&*caller)
        };
        match what {
            0 => Ok(()),
            // Its own exception, also as somebody's error and with a context.
            1 => Err(Exception::new(&caller, &t, &[Val::I32(11)])?.into()),
            2 => Err(Error::from(Exception::new(&caller, &t, &[Val::I32(12)])?).context("why")),
            3 => Err(Exception::new(&caller, &other, &[])?.into()),
            // A guest's, which comes through this function.
            4 => export(&mut caller, "throw")?.call(&mut caller, 100).map(drop),
            // Through this function twice.
            5 => {
                let caught = export(&mut caller, "run")?.call(&mut caller, 4)?;
                export(&mut caller, "throw")?.call(&mut caller, caught).map(drop)
            }
            // An error that only has an exception for its cause is no exception.
            6 => {
                #[derive(Debug, thiserror::Error)]
                #[error("wrapped")]
                struct Wrapped(#[source] Exception);
                Err(Error::new(Wrapped(Exception::new(&caller, &t, &[Val::I32(1)])?)))
            }
            _ => panic!("a panic is no exception"),
        }
    };
    let call = Func::wrap(&mut store, call);
    let instance = Instance::new(&mut store, &module, &[t.into(), call.into()])?;
    for (what, expected) in [(0, -1), (1, 11), (2, 12), (4, 101), (5, 102)] {
        assert_eq!(run(&mut store, instance, "run", what)?, expected);
    }
    let error = run(&mut store, instance, "run", 3).unwrap_err();
    assert_eq!(*error.downcast_ref::<Exception>().unwrap().tag(), other);
    let error = run(&mut store, instance, "run", 6).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Host);
    let run_it = || run(&mut store, instance, "run", 7);
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(run_it)).is_err());
    assert_eq!(run(&mut store, instance, "run", 1)?, 11);
    Ok(())
}

#[test]
fn exceptions_of_the_host_are_checked() -> Result<()> {
    let engine = Engine::default();
    let mut store = Store::new(&engine, ());
    let t = tag(&mut store, &[ValType::I32, ValType::FUNCREF])?;
    let mut elsewhere = Store::new(&engine, ());
    let foreign = Func::wrap(&mut elsewhere, || ());
    let values = [Val::I32(1), Val::FuncRef(None)];
    assert!(Exception::new(&store, &t, &values).is_ok());
    for wrong in [
        &values[..1],
        &[Val::I64(1), Val::FuncRef(None)],
        &[Val::I32(1), Val::FuncRef(Some(foreign))],
    ] {
        assert_eq!(Exception::new(&store, &t, wrong).unwrap_err().kind(), ErrorKind::Usage);
    }
    assert_eq!(Exception::new(&elsewhere, &t, &values).unwrap_err().kind(), ErrorKind::Usage);
    Ok(())
}

#[test]
fn modules_that_catch_nothing_have_nothing_to_pay_for() -> Result<()> {
    let engine = Engine::default();
    let module = Module::new(
        &engine,
        r#"(module (import "" "f" (func $f)) (tag $t)
            (func (export "run") (call $f)) (func (throw $t)))"#,
    )?;
    let code = &module.compiled().code;
    assert!(code.handlers.is_empty());
    let cross = |range: &&pagefork_layout::code::CodeRange| {
        matches!(range.kind, pagefork_layout::code::CodeKind::Cross(_))
    };
    assert_eq!(code.functions.iter().filter(cross).count(), 0);
    let module = Module::new(&engine, "(module)")?;
    assert!(module.compiled().layout.exceptions.is_empty());
    Ok(())
}

#[test]
fn a_tail_call_leaves_the_try_table_that_it_stands_in() -> Result<()> {
    let (mut store, instance) = instantiate(
        r#"(module (tag $t (param i32)) (type $unary (func (param i32) (result i32)))
            (table funcref (elem $throw))
            (func $throw (type $unary) (throw $t (local.get 0)))
            (func $leave (param i32) (result i32)
                (block $h (result i32)
                    (try_table (result i32) (catch $t $h)
                        (return_call $throw (local.get 0))))
                (i32.add (i32.const 1000)))
            (func $leave_indirect (param i32) (result i32)
                (block $h (result i32)
                    (try_table (result i32) (catch $t $h)
                        (return_call_indirect (type $unary) (local.get 0) (i32.const 0))))
                (i32.add (i32.const 1000)))
            (func (export "run") (param i32) (result i32)
                (block $h (result i32)
                    (try_table (result i32) (catch $t $h) (call $leave (local.get 0))))
                (block $i (result i32)
                    (try_table (result i32) (catch $t $i) (call $leave_indirect (local.get 0))))
                (i32.mul)))"#,
    )?;
    assert_eq!(run(&mut store, instance, "run", 9)?, 81);
    Ok(())
}

/// References to functions of other instances are called through another stub than
/// imports; exceptions come back through it to the right base as well.
#[test]
fn exceptions_come_back_from_foreign_references() -> Result<()> {
    let engine = Engine::default();
    let thrower = r#"(module (tag $t (export "t") (param i32)) (global $mine i32 (i32.const 5))
        (func (export "f") (param i32) (result i32)
            (if (local.get 0) (then (throw $t (i32.add (local.get 0) (global.get $mine)))))
            (global.get $mine)))"#;
    let catcher = r#"(module (import "thrower" "t" (tag $t (param i32)))
        (type $unary (func (param i32) (result i32)))
        (table (export "table") 1 funcref) (global $mine (mut i32) (i32.const 700))
        (func (export "run") (param i32) (result i32)
            (block $h (result i32)
                (try_table (result i32) (catch $t $h)
                    (call_indirect (type $unary) (local.get 0) (i32.const 0))))
            (i32.add (global.get $mine))))"#;
    let mut store = Store::new(&engine, ());
    let mut linker = Linker::new(&engine);
    let other = linker.instantiate(&mut store, &Module::new(&engine, thrower)?)?;
    linker.instance(&mut store, "thrower", other)?;
    let instance = linker.instantiate(&mut store, &Module::new(&engine, catcher)?)?;
    let f = other.get_func(&mut store, "f");
    let table = instance.get_table(&mut store, "table").unwrap();
    table.set(&mut store, 0, Val::FuncRef(f))?;
    for (value, expected) in [(0, 705), (1, 706), (40, 745)] {
        assert_eq!(run(&mut store, instance, "run", value)?, expected);
    }
    Ok(())
}
