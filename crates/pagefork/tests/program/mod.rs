//! A program of two linked instances that uses most of what there is, and can be suspended at
//! hundreds of points.
#![allow(unreachable_pub, reason = "a module of a test has no crate around it")]

use pagefork::suspend::{self, CallProgress, Zone};
use pagefork::{Caller, Engine, Instance, Linker, Module, Result, Store, Val};

/// Host functions get and give every type; the state is in a memory, a table and
/// globals; calls go through tables, other instances and recursion; many values
/// are live across calls, floats and vectors among them.
const MAIN: &str = r#"(module $main
    (import "host" "step" (func $step (param i32 i64 f64) (result i32 f64 i64)))
    (import "library" "mix" (func $mix (param i32 f32) (result i32 f32)))
    (import "library" "table" (table $shared 4 funcref))
    (import "library" "memory" (memory 1))
    (type $unary (func (param i32) (result i32)))
    (table $own 3 5 funcref)
    (elem (table $own) (i32.const 0) func $double $recurse)
    (elem (table $shared) (i32.const 2) func $double)
    (global $g (mut i64) (i64.const 1))
    (global $v (mut v128) (v128.const i32x4 1 2 3 4))
    (data (i32.const 100) "some bytes")
    (func $double (param i32) (result i32)
        (local $i i32) (local $f f64) (local $w v128)
        (local.set $f (f64.convert_i32_s (local.get 0)))
        (local.set $w (global.get $v))
        (loop $l
            (local.set $w (i32x4.add (local.get $w) (i32x4.splat (local.get $i))))
            (local.set $f (f64.add (local.get $f) (f64.const 0.5)))
            (local.set $i (i32.add (local.get $i) (i32.const 1)))
            (br_if $l (i32.lt_u (local.get $i) (i32.const 7))))
        (global.set $v (local.get $w))
        (i32.add (i32.mul (local.get 0) (i32.const 2))
            (i32.trunc_sat_f64_s (local.get $f))))
    (func $recurse (param $n i32) (result i32)
        (local $x i32) (local $y f64) (local $z i64) (local $m f32)
        (if (i32.eqz (local.get $n)) (then (return (i32.const 1))))
        (call $step (local.get $n) (global.get $g) (f64.const 1.25))
        (local.set $z) (local.set $y) (local.set $x)
        (call $mix (local.get $x) (f32.demote_f64 (local.get $y)))
        (local.set $m) (local.set $x)
        (global.set $g (i64.add (global.get $g) (local.get $z)))
        (i32.store (i32.mul (local.get $n) (i32.const 8)) (local.get $x))
        (drop (memory.grow (i32.eq (local.get $n) (i32.const 3))))
        (drop (table.grow $own (ref.func $double) (i32.eq (local.get $n) (i32.const 2))))
        (i32.add
            (i32.add (local.get $x) (i32.trunc_sat_f32_s (local.get $m)))
            (i32.add
                (call_indirect $own (type $unary) (local.get $n) (i32.const 0))
                (i32.add
                    (call_indirect $shared (type $unary) (local.get $n)
                        (i32.and (local.get $n) (i32.const 2)))
                    (call_indirect $own (type $unary)
                        (i32.sub (local.get $n) (i32.const 1)) (i32.const 1))))))
    (func (export "run") (param i32) (result i32 i64 v128)
        (call $recurse (local.get 0)) (global.get $g) (global.get $v)))"#;

const LIBRARY: &str = r#"(module $library
    (import "host" "step" (func $step (param i32 i64 f64) (result i32 f64 i64)))
    (memory (export "memory") 1 5)
    (table (export "table") 4 funcref)
    (elem (i32.const 0) $triple)
    (func $triple (param i32) (result i32) (i32.mul (local.get 0) (i32.const 3)))
    (func (export "mix") (param i32 f32) (result i32 f32)
        (local $a i32) (local $b f64)
        (call $step (local.get 0) (i64.const 9) (f64.promote_f32 (local.get 1)))
        (drop) (local.set $b) (local.set $a)
        (i32.xor (local.get $a) (i32.load (i32.const 100)))
        (f32.add (local.get 1) (f32.demote_f64 (local.get $b)))))"#;

/// The program, linked.
pub fn start(engine: &Engine, modules: &(Module, Module)) -> Result<(Store<u64>, Instance)> {
    let mut store = Store::new(engine, 0);
    let mut linker = Linker::new(engine);
    linker.func_wrap("host", "step", |mut caller: Caller<'_, u64>, x: i32, y: i64, z: f64| {
        *caller.data_mut() += 1;
        (x.wrapping_mul(31), z * 1.5, y ^ i64::from(x))
    })?;
    linker.module(&mut store, "library", &modules.1)?;
    let instance = linker.instantiate(&mut store, &modules.0)?;
    Ok((store, instance))
}

/// Its modules.
pub fn compile(engine: &Engine) -> Result<(Module, Module)> {
    Ok((Module::new(engine, MAIN)?, Module::new(engine, LIBRARY)?))
}

/// Values as text.
pub fn shown(values: &[Val]) -> String {
    format!("{values:?}")
}

/// What it is called with.
pub const PARAM: [Val; 1] = [Val::I32(6)];

/// The result of the undisturbed run, and the guest's memory after it.
pub fn undisturbed(engine: &Engine, modules: &(Module, Module)) -> Result<(String, Vec<u8>)> {
    let (mut store, instance) = start(engine, modules)?;
    let run = instance.get_func(&mut store, "run").unwrap();
    let mut results = [Val::I32(0); 3];
    run.call(&mut store, &PARAM, &mut results)?;
    Ok((shown(&results), suspend::zone_bytes(&store, 1, Zone::Memory(0)).1))
}

/// How often the guest can be suspended.
pub fn count_points(engine: &Engine, modules: &(Module, Module)) -> Result<u64> {
    let (mut store, instance) = start(engine, modules)?;
    let run = instance.get_func(&mut store, "run").unwrap();
    let mut count = 0;
    let mut progress = suspend::call(&mut store, &run, &PARAM, Some(1))?;
    while let CallProgress::Suspended = progress {
        count += 1;
        progress = suspend::resume(&mut store, Some(1))?;
    }
    let CallProgress::Finished(values) = progress else { unreachable!() };
    assert_eq!(shown(&values), undisturbed(engine, modules)?.0);
    Ok(count)
}
