//! What went wrong in other runtimes, and must not here: each test names the
//! incident.

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{frame_names, held, in_own_process, link, spawn, trap_code};
use pagefork::suspend::{self, CallProgress, Suspension};
use pagefork::{
    Caller, Config, Engine, Error, ErrorKind, Extern, ExternRef, Func, Instance, Memory,
    MemoryType, Module, PoolConfig, RefType, Store, Table, TableType, TrapCode, Val,
};

const WASM_PAGE: usize = 65536;

#[test]
fn cve_2026_34988_a_slot_that_had_grown_is_closed_beyond_a_smaller_successor() {
    in_own_process(
        "cve_2026_34988_a_slot_that_had_grown_is_closed_beyond_a_smaller_successor",
        || {
            let engine = Engine::default();
            let guest = |pages: u32, maximum: u32| {
                let wat = format!(
                    r#"(module (memory (export "memory") {pages} {maximum})
                        (func (export "grow") (param i32) (result i32)
                            (memory.grow (local.get 0)))
                        (func (export "load") (param i32) (result i32)
                            (i32.load8_u (local.get 0))))"#
                );
                spawn(&engine, &wat)
            };
            let mut places = Vec::new();
            for (start, grown, successor, maximum) in
                [(1, 50, 1, 65536), (0, 9, 0, 10), (7, 3, 2, 2), (1, 65535, 3, 3), (1, 1, 1, 2)]
            {
                for _ in 0..3 {
                    let (mut store, instance) = guest(start, 65536);
                    let grow = instance.get_typed_func::<u32, i32>(&mut store, "grow").unwrap();
                    assert_eq!(grow.call(&mut store, grown).unwrap(), start as i32);
                    let memory = instance.get_memory(&mut store, "memory").unwrap();
                    let end = memory.data_size(&store);
                    memory.write(&mut store, end - 6, b"secret").unwrap();
                    places.push(memory.data(&store).as_ptr().addr());
                    drop(store);

                    let (mut store, instance) = guest(successor, maximum);
                    let memory = instance.get_memory(&mut store, "memory").unwrap();
                    places.push(memory.data(&store).as_ptr().addr());
                    let load = instance.get_typed_func::<u32, i32>(&mut store, "load").unwrap();
                    let size = successor * WASM_PAGE as u32;
                    let last = ((start + grown) as u64 * WASM_PAGE as u64 - 1).max(size.into());
                    for beyond in [size, size + 4095, size + 4096, last as u32, u32::MAX] {
                        let error = load.call(&mut store, beyond).unwrap_err();
                        assert_eq!(trap_code(&error), TrapCode::MemoryOutOfBounds, "{beyond:#x}");
                    }
                    if maximum > successor {
                        let grow = instance.get_typed_func::<u32, i32>(&mut store, "grow").unwrap();
                        grow.call(&mut store, 1).unwrap();
                        assert!(memory.data(&store).iter().all(|byte| *byte == 0));
                    }
                }
            }
            let distinct: std::collections::HashSet<_> = places.iter().collect();
            assert!(distinct.len() < places.len(), "no address was used again: nothing is tested");
        },
    );
}

#[test]
fn cve_2022_39393_images_follow_each_other_in_every_order() {
    let engine = Engine::default();
    let data = |text: &str, at: usize| format!("(data (i32.const {at}) \"{text}\")");
    let bodies = [
        String::new(),
        data("first", 0),
        data("second", 100_000),
        data("wide", 0) + &data("wide", 150_000),
        data("zeros follow", 60_000),
    ];
    let modules = bodies.map(|body| {
        let wat = format!(
            r#"(module (memory (export "memory") 3) {body}
                (table (export "table") 9 funcref)
                (func $f) (elem (i32.const {}) func $f))"#,
            body.len() % 9
        );
        (Module::new(&engine, wat).unwrap(), body)
    });
    let expected = |body: &str| {
        let mut bytes = vec![0; 3 * WASM_PAGE];
        for segment in body.split("(data (i32.const ").skip(1) {
            let (at, text) = segment.split_once(") \"").unwrap();
            let (at, text) = (at.parse::<usize>().unwrap(), text.split('"').next().unwrap());
            bytes[at..at + text.len()].copy_from_slice(text.as_bytes());
        }
        bytes
    };
    for first in &modules {
        for second in &modules {
            for (module, body) in [first, second] {
                let mut store = Store::new(&engine, ());
                let instance = Instance::new(&mut store, module, &[]).unwrap();
                let memory = instance.get_memory(&mut store, "memory").unwrap();
                assert!(memory.data(&store) == expected(body), "{body:?}");
                let table = instance.get_table(&mut store, "table").unwrap();
                for index in 0..9 {
                    let element = table.get(&mut store, index).unwrap();
                    let is_function = element.funcref().unwrap().is_some();
                    assert_eq!(is_function, index == body.len() as u64 % 9);
                }
                memory.data_mut(&mut store).fill(0xee);
            }
        }
    }
}

#[test]
fn cve_2022_39392_a_maximum_of_zero_pages_is_guarded_like_any_other() {
    let engine = Engine::default();
    let code = r#"
        (func (export "load") (param i32) (result i64) (i64.load offset=0 (local.get 0)))
        (func (export "far") (param i32) (result i64) (i64.load offset=0xffffffff (local.get 0)))
        (func (export "store") (param i32) (i32.store8 offset=0 (local.get 0) (i32.const 1)))
        (func (export "grow") (param i32) (result i32) (memory.grow (local.get 0)))
        (func (export "fill") (param i32) (memory.fill (local.get 0) (i32.const 1) (i32.const 0)))"#;
    let own = format!("(module (memory 0 0) {code})");
    let imported = format!("(module (import \"host\" \"memory\" (memory 0 0)) {code})");
    for (wat, imports) in [(own, false), (imported, true)] {
        let module = Module::new(&engine, wat).unwrap();
        let mut store = Store::new(&engine, ());
        let mut given: Vec<Extern> = Vec::new();
        if imports {
            let ty = MemoryType::new(0, Some(0));
            given.push(Memory::new(&mut store, ty).unwrap().into());
        }
        let instance = Instance::new(&mut store, &module, &given).unwrap();
        for name in ["load", "far"] {
            let load = instance.get_typed_func::<u32, i64>(&mut store, name).unwrap();
            for index in [0, 1, 7, 4095, 4096, 65535, 65536, 0x7fff_ffff, 0x8000_0000, u32::MAX] {
                let error = load.call(&mut store, index).unwrap_err();
                assert_eq!(trap_code(&error), TrapCode::MemoryOutOfBounds, "{name} {index:#x}");
            }
        }
        let write = instance.get_typed_func::<u32, ()>(&mut store, "store").unwrap();
        assert!(write.call(&mut store, 0).is_err());
        let grow = instance.get_typed_func::<u32, i32>(&mut store, "grow").unwrap();
        assert_eq!(grow.call(&mut store, 0).unwrap(), 0);
        for delta in [1, 65536, u32::MAX] {
            assert_eq!(grow.call(&mut store, delta).unwrap(), -1);
        }
        let fill = instance.get_typed_func::<u32, ()>(&mut store, "fill").unwrap();
        fill.call(&mut store, 0).unwrap();
        assert_eq!(trap_code(&fill.call(&mut store, 1).unwrap_err()), TrapCode::MemoryOutOfBounds);
    }
}

#[test]
fn cve_2022_23636_a_spawn_that_failed_leaves_no_reference_to_a_successor() {
    let engine = Engine::default();
    let failing = Module::new(
        &engine,
        r#"(module
            (import "host" "ref" (global $ref externref))
            (import "host" "func" (global $func funcref))
            (global (export "external") (mut externref) (global.get $ref))
            (global (export "function") (mut funcref) (global.get $func))
            (table (export "externals") 4 externref)
            (table (export "functions") 4 funcref)
            (elem (table 0) (i32.const 0) externref (global.get $ref) (global.get $ref))
            (elem (table 1) (i32.const 0) funcref (global.get $func) (global.get $func))
            (elem (table 1) (i32.const 3) funcref (global.get $func) (global.get $func)))"#,
    )
    .unwrap();
    let empty = Module::new(
        &engine,
        r#"(module
            (global (export "external") (mut externref) (ref.null extern))
            (global (export "function") (mut funcref) (ref.null func))
            (table (export "externals") 4 externref)
            (table (export "functions") 4 funcref))"#,
    )
    .unwrap();
    let mut store = Store::new(&engine, ());
    let reference = ExternRef::new(&mut store, 7u8).unwrap();
    let function = Func::wrap(&mut store, || ());
    let mut global = |value: Val| {
        let ty = pagefork::GlobalType { content: value.ty(), mutable: false };
        Extern::from(pagefork::Global::new(&mut store, ty, value).unwrap())
    };
    let imports = [global(reference.into()), global(function.into())];
    for _ in 0..20 {
        let error = Instance::new(&mut store, &failing, &imports).unwrap_err();
        assert_eq!(trap_code(&error), TrapCode::TableOutOfBounds);
        let instance = Instance::new(&mut store, &empty, &[]).unwrap();
        for name in ["external", "function"] {
            let value = instance.get_global(&mut store, name).unwrap().get(&mut store);
            assert!(matches!(value, Val::ExternRef(None) | Val::FuncRef(None)), "{value:?}");
        }
        for name in ["externals", "functions"] {
            let table = instance.get_table(&mut store, name).unwrap();
            for index in 0..4 {
                let value = table.get(&mut store, index).unwrap();
                assert!(matches!(value, Val::ExternRef(None) | Val::FuncRef(None)), "{value:?}");
            }
        }
    }
    let value = reference.data(&store).unwrap();
    assert_eq!(value.downcast_ref(), Some(&7u8), "it was not dropped on the way");
}

/// Expressions whose operand in memory is narrower than the register that it is
/// read into: type of the result, width of the operand, expression on `$at`.
const NARROW_OPERANDS: [(&str, u32, &str); 24] = [
    ("f64", 8, "(f64.copysign (f64.load (local.get $at)) (f64.const -1))"),
    ("f64", 8, "(f64.copysign (f64.const -1) (f64.load (local.get $at)))"),
    ("f32", 4, "(f32.copysign (f32.const 1) (f32.load (local.get $at)))"),
    ("f64", 8, "(f64.add (f64.const 1) (f64.load (local.get $at)))"),
    ("f64", 8, "(f64.abs (f64.load (local.get $at)))"),
    ("f32", 4, "(f32.neg (f32.load (local.get $at)))"),
    ("f64", 8, "(f64.sqrt (f64.load (local.get $at)))"),
    ("f32", 4, "(f32.ceil (f32.load (local.get $at)))"),
    ("f64", 8, "(f64.min (f64.load (local.get $at)) (f64.const 1))"),
    ("f64", 4, "(f64.promote_f32 (f32.load (local.get $at)))"),
    ("f32", 8, "(f32.demote_f64 (f64.load (local.get $at)))"),
    ("f64", 4, "(f64.convert_i32_s (i32.load (local.get $at)))"),
    ("f64", 8, "(f64.convert_i64_u (i64.load (local.get $at)))"),
    ("i32", 1, "(i32.add (i32.const 1) (i32.load8_u (local.get $at)))"),
    ("i64", 2, "(i64.xor (i64.const 1) (i64.load16_s (local.get $at)))"),
    ("i32", 1, "(i32.popcnt (i32.load8_u (local.get $at)))"),
    ("i32", 2, "(i32.lt_u (i32.load16_u (local.get $at)) (i32.const 7))"),
    ("v128", 8, "(f64x2.promote_low_f32x4 (v128.load64_zero (local.get $at)))"),
    ("v128", 8, "(f64x2.convert_low_i32x4_s (v128.load64_zero (local.get $at)))"),
    ("v128", 8, "(i16x8.extend_low_i8x16_u (v128.load64_zero (local.get $at)))"),
    ("v128", 4, "(i32x4.add (v128.load32_zero (local.get $at)) (v128.const i64x2 1 1))"),
    ("v128", 4, "(f32x4.splat (f32.load (local.get $at)))"),
    ("v128", 1, "(i8x16.splat (i32.load8_u (local.get $at)))"),
    ("v128", 1, "(i8x16.replace_lane 3 (v128.const i64x2 0 0) (i32.load8_u (local.get $at)))"),
];

#[test]
fn cve_2026_24116_a_narrow_operand_at_the_last_byte_is_read_in_its_own_width() {
    let mut wat = r#"(module (memory 1) (data (i32.const 65520) "\01\02\03\04\05\06\07\08\01\02\03\04\05\06\07\08")"#.to_owned();
    for (number, (ty, _, expression)) in NARROW_OPERANDS.iter().enumerate() {
        wat +=
            &format!("(func (export \"{number}\") (param $at i32) (result {ty}) {expression})\n");
    }
    let (mut store, instance) = spawn(&Engine::default(), &(wat + ")"));
    for (number, (_, width, expression)) in NARROW_OPERANDS.iter().enumerate() {
        let function = instance.get_func(&mut store, &number.to_string()).unwrap();
        let mut run = |at: u32| {
            let mut result = [Val::I32(0)];
            let outcome = function.call(&mut store, &[Val::I32(at as i32)], &mut result);
            outcome.map(|()| format!("{:?}", result[0]))
        };
        // The bytes repeat: the result at the end is the one before.
        let last = 65536 - width;
        assert_eq!(run(last).unwrap(), run(last - 8).unwrap(), "{expression}");
        for at in last + 1..65536 + 20 {
            assert_eq!(
                trap_code(&run(at).unwrap_err()),
                TrapCode::MemoryOutOfBounds,
                "{expression}"
            );
        }
    }
}

#[test]
fn cve_2026_34944_and_2023_26489_computed_addresses_at_all_extremes() {
    // Shifts, sums and extensions that an address mode could swallow.
    let addresses: [(&str, fn(u32) -> u32); 10] = [
        ("(local.get 0)", |x| x),
        ("(i32.shl (local.get 0) (i32.const 2))", |x| x << 2),
        ("(i32.shl (local.get 0) (i32.const 3))", |x| x << 3),
        ("(i32.add (local.get 0) (i32.const -1))", |x| x.wrapping_sub(1)),
        ("(i32.add (local.get 0) (i32.const 0x7fffffff))", |x| x.wrapping_add(0x7fff_ffff)),
        ("(i32.add (local.get 0) (local.get 0))", |x| x.wrapping_add(x)),
        ("(i32.add (i32.shl (local.get 0) (i32.const 3)) (local.get 0))", |x| {
            (x << 3).wrapping_add(x)
        }),
        ("(i32.mul (local.get 0) (i32.const 8))", |x| x.wrapping_mul(8)),
        ("(i32.wrap_i64 (i64.extend_i32_s (local.get 0)))", |x| x),
        ("(i32.sub (i32.const 0) (local.get 0))", |x| x.wrapping_neg()),
    ];
    let offsets = [0u32, 1, 0x7fff_ffff, 0x8000_0000, 0xffff_fff8, 0xffff_ffff];
    let mut wat = "(module (memory 2)".to_owned();
    for (a, (address, _)) in addresses.iter().enumerate() {
        for offset in offsets {
            wat += &format!(
                "(func (export \"{a}+{offset}\") (param i32) (result i64)
                    (i64.load offset={offset} {address}))"
            );
        }
    }
    let (mut store, instance) = spawn(&Engine::default(), &(wat + ")"));
    let arguments = [
        0,
        1,
        2,
        0x3fff,
        0x4000,
        0x7fff,
        0x8000,
        0x1_fff7,
        0x1_fff8,
        0x1_fff9,
        0x2_0000,
        0x1fff_ffff,
        0x2000_0000,
        0x3fff_ffff,
        0x4000_0000,
        0x4000_0001,
        0x7fff_ffff,
        0x8000_0000,
        0x8000_0001,
        0xffff_0000,
        0xffff_fff8,
        0xffff_ffff,
    ];
    for (a, (address, compute)) in addresses.iter().enumerate() {
        for offset in offsets {
            let name = format!("{a}+{offset}");
            let load = instance.get_typed_func::<u32, i64>(&mut store, &name).unwrap();
            for argument in arguments {
                let place = u64::from(compute(argument)) + u64::from(offset);
                let found = load.call(&mut store, argument);
                let what = || format!("{address} offset={offset:#x} of {argument:#x}");
                if place + 8 <= 2 * WASM_PAGE as u64 {
                    assert_eq!(found.unwrap(), 0, "{}", what());
                } else {
                    let code = trap_code(&found.unwrap_err());
                    assert_eq!(code, TrapCode::MemoryOutOfBounds, "{}", what());
                }
            }
        }
    }
}

#[test]
fn ghsa_2hw9_interrupts_in_bulk_operations_leave_them_whole() {
    let (mut store, instance) = spawn(
        &Engine::default(),
        r#"(module (memory (export "memory") 4)
            (table (export "table") 600 externref)
            (func (export "run") (param $a externref) (param $b externref) (local $i i32)
                (loop $again
                    (memory.fill (i32.const 0) (local.get $i) (i32.const 131072))
                    (memory.copy (i32.const 131072) (i32.const 0) (i32.const 131072))
                    (table.fill (i32.const 0) (select (result externref)
                        (local.get $a) (local.get $b) (i32.and (local.get $i) (i32.const 1)))
                        (i32.const 600))
                    (local.set $i (i32.add (local.get $i) (i32.const 1)))
                    (br $again))))"#,
    );
    let run = instance.get_func(&mut store, "run").unwrap();
    let [a, b] = [1, 2].map(|number| ExternRef::new(&mut store, number).unwrap());
    let memory = instance.get_memory(&mut store, "memory").unwrap();
    let table = instance.get_table(&mut store, "table").unwrap();
    let handle = store.interrupt_handle().unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                handle.interrupt();
                std::thread::sleep(Duration::from_micros(300));
            }
        });
        for _ in 0..200 {
            let error = run.call(&mut store, &[a.into(), b.into()], &mut []).unwrap_err();
            assert_eq!(trap_code(&error), TrapCode::Interrupt);
            let bytes = memory.data(&store);
            for half in bytes.chunks(131072) {
                assert!(half.iter().all(|byte| *byte == half[0]), "half a bulk operation");
            }
            let first = describe(&table.get(&mut store, 0).unwrap());
            for index in 0..600 {
                assert_eq!(describe(&table.get(&mut store, index).unwrap()), first);
            }
        }
        done.store(true, Ordering::Relaxed);
    });
}

fn describe(value: &Val) -> String {
    format!("{value:?}")
}

#[test]
fn a_late_interrupt_hits_nobody() {
    let (mut store, instance) = spawn(
        &Engine::default(),
        r#"(module
            (func (export "short") (param i32) (result i32)
                (loop $l (br_if $l (local.tee 0 (i32.sub (local.get 0) (i32.const 1)))))
                (local.get 0))
            (func (export "forever") (loop $l (br $l))))"#,
    );
    let short = instance.get_typed_func::<i32, i32>(&mut store, "short").unwrap();
    let forever = instance.get_typed_func::<(), ()>(&mut store, "forever").unwrap();
    let handle = store.interrupt_handle().unwrap();
    // Before a call, however often.
    for _ in 0..1_000 {
        handle.interrupt();
        assert_eq!(short.call(&mut store, 10).unwrap(), 0);
        assert_eq!(short.call(&mut store, 10).unwrap(), 0);
    }
    // Around the end of a call: it ends one way or the other, and the interrupt is
    // gone once another one begins.
    let round = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut seen = 0;
            while seen < 2_000 {
                let now = round.load(Ordering::Acquire);
                if now != seen {
                    handle.interrupt();
                    // Answered with the next number, unless it was the last.
                    seen = now + 1;
                    round.store(seen, Ordering::Release);
                }
                std::thread::yield_now();
            }
        });
        for number in (1..2_000).step_by(2) {
            round.store(number, Ordering::Release);
            if let Err(error) = short.call(&mut store, (number % 97) as i32 * 10 + 1) {
                assert_eq!(trap_code(&error), TrapCode::Interrupt);
            }
            while round.load(Ordering::Acquire) == number {
                std::thread::yield_now();
            }
            assert_eq!(short.call(&mut store, 50).unwrap(), 0, "a late interrupt");
        }
    });
    // A timeout is over with its call.
    store.set_timeout(Some(Duration::from_millis(100))).unwrap();
    assert_eq!(short.call(&mut store, 10).unwrap(), 0);
    store.set_timeout(None).unwrap();
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(150) {
        assert_eq!(short.call(&mut store, 1_000).unwrap(), 0);
    }
    store.set_timeout(Some(Duration::from_millis(100))).unwrap();
    for _ in 0..3 {
        let error = forever.call(&mut store, ()).unwrap_err();
        assert_eq!(trap_code(&error), TrapCode::Interrupt);
        assert_eq!(short.call(&mut store, 10).unwrap(), 0);
    }
    // A handle outlives its store, whose address is another's by then.
    drop(store);
    let (mut store, instance) = spawn(
        &Engine::default(),
        r#"(module (memory (export "memory") 1) (func (export "f") (result i32) (i32.const 3)))"#,
    );
    handle.interrupt();
    let f = instance.get_typed_func::<(), i32>(&mut store, "f").unwrap();
    assert_eq!(f.call(&mut store, ()).unwrap(), 3);
}

#[test]
fn interrupts_reach_no_slot_that_is_gone() {
    let engine = Engine::default();
    let good = Module::new(&engine, "(module (memory 1))").unwrap();
    let bad = Module::new(&engine, r#"(module (memory 1) (data (i32.const -1) "x"))"#).unwrap();
    let done = AtomicBool::new(false);
    for _ in 0..20 {
        let mut store = Store::new(&engine, ());
        let handle = store.interrupt_handle().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    handle.interrupt();
                    // The lock is not fair.
                    std::thread::yield_now();
                }
            });
            for _ in 0..20 {
                Instance::new(&mut store, &bad, &[]).unwrap_err();
                Instance::new(&mut store, &good, &[]).unwrap();
            }
            drop(store);
            done.store(true, Ordering::Relaxed);
        });
        done.store(false, Ordering::Relaxed);
    }
}

/// Notes when it is dropped.
struct Witness<'a>(&'a AtomicU64);

impl Drop for Witness<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_panic_of_the_host_crosses_guest_frames_and_every_destructor_runs() {
    static DROPPED: AtomicU64 = AtomicU64::new(0);
    // Guest, host, guest, host: panics go through two entries.
    let (mut store, instance) = link(
        &Engine::default(),
        0u32,
        r#"(module (import "host" "again" (func $again (param i32)))
            (memory (export "memory") 1)
            (func $enter (export "enter") (param i32)
                (i32.store (i32.const 0) (local.get 0))
                (call $again (local.get 0))
                (i32.store (i32.const 4) (i32.const 1))))"#,
        |linker| {
            linker
                .func_wrap("host", "again", |mut caller: Caller<'_, u32>, depth: i32| {
                    let _witness = Witness(&DROPPED);
                    *caller.data_mut() += 1;
                    if depth == 0 {
                        std::panic::resume_unwind(Box::new(*caller.data()));
                    }
                    let enter = caller.get_export("enter").unwrap().into_func().unwrap();
                    enter.call(&mut caller, &[Val::I32(depth - 1)], &mut [])
                })
                .unwrap();
        },
    );
    let enter = instance.get_typed_func::<i32, ()>(&mut store, "enter").unwrap();
    let memory = instance.get_memory(&mut store, "memory").unwrap();
    for depth in [0, 1, 2, 30] {
        for _ in 0..10 {
            *store.data_mut() = 0;
            DROPPED.store(0, Ordering::Relaxed);
            let result = catch_unwind(AssertUnwindSafe(|| enter.call(&mut store, depth)));
            let calls = depth as u32 + 1;
            assert_eq!(result.unwrap_err().downcast_ref(), Some(&calls));
            assert_eq!(DROPPED.load(Ordering::Relaxed), u64::from(calls));
            assert_eq!(memory.data(&store)[4], 0, "no guest frame went on");
        }
    }
}

#[test]
fn a_panic_is_caught_between_guest_frames_and_the_outer_guest_goes_on() {
    let (mut store, instance) = link(
        &Engine::default(),
        (),
        r#"(module (import "host" "try" (func $try (result i32)))
            (import "host" "panic" (func $panic))
            (func (export "inner") (call $panic))
            (func (export "outer") (result i32) (i32.add (call $try) (i32.const 1))))"#,
        |linker| {
            linker
                .func_wrap("host", "try", |mut caller: Caller<'_, ()>| {
                    let inner = caller.get_export("inner").unwrap().into_func().unwrap();
                    let caught =
                        catch_unwind(AssertUnwindSafe(|| inner.call(&mut caller, &[], &mut [])));
                    caught.is_err() as i32 * 40
                })
                .unwrap();
            linker
                .func_wrap("host", "panic", || -> () { std::panic::resume_unwind(Box::new(())) })
                .unwrap();
        },
    );
    let outer = instance.get_typed_func::<(), i32>(&mut store, "outer").unwrap();
    for _ in 0..10 {
        assert_eq!(outer.call(&mut store, ()).unwrap(), 41);
    }
}

/// What a host function ends a program with.
#[derive(Debug)]
struct Exit(i32);

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "exit {}", self.0)
    }
}

impl std::error::Error for Exit {}

#[test]
fn an_error_of_the_host_reaches_the_embedder_with_all_frames() {
    let (mut store, instance) = link(
        &Engine::default(),
        (),
        r#"(module $program (import "host" "exit" (func $exit (param i32)))
            (func $leaf (param i32) (call $exit (local.get 0)))
            (func $middle (param i32) (call $leaf (local.get 0)))
            (func $main (export "main") (param i32) (call $middle (local.get 0))))"#,
        |linker| {
            linker
                .func_wrap("host", "exit", |code: i32| -> Result<(), Error> {
                    Err(Error::new(Exit(code)))
                })
                .unwrap();
        },
    );
    let main = instance.get_typed_func::<i32, ()>(&mut store, "main").unwrap();
    for code in [0, 3] {
        let error = main.call(&mut store, code).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Host);
        assert_eq!(error.downcast_ref::<Exit>().map(|exit| exit.0), Some(code));
        assert_eq!(frame_names(&error), ["leaf", "middle", "main"]);
    }
}

#[test]
fn backtraces_name_frames_through_traps_signals_tables_and_hosts() {
    let (mut store, instance) = link(
        &Engine::default(),
        (),
        r#"(module (import "host" "again" (func $again (param i32)))
            (memory 1)
            (table 1 funcref) (elem (i32.const 0) func $indirect)
            (type $how (func (param i32)))
            (func $divide (param i32)
                (drop (i32.div_u (i32.const 1) (i32.sub (local.get 0) (local.get 0)))))
            (func $load (drop (i32.load (i32.const -1))))
            (func $overflow (call $overflow))
            (func $convert (drop (i32.trunc_f32_s (f32.const nan))))
            (func $indirect (type $how)
                (if (i32.eq (local.get 0) (i32.const 1)) (then (call $divide (i32.const 3))))
                (if (i32.eq (local.get 0) (i32.const 2)) (then (call $load)))
                (if (i32.eq (local.get 0) (i32.const 3)) (then unreachable))
                (if (i32.eq (local.get 0) (i32.const 4)) (then (call $convert)))
                (if (i32.eq (local.get 0) (i32.const 5))
                    (then (memory.fill (i32.const -1) (i32.const 0) (i32.const 2))))
                (if (i32.ge_u (local.get 0) (i32.const 10))
                    (then (call $again (i32.sub (local.get 0) (i32.const 10)))))
                (if (i32.eq (local.get 0) (i32.const 6)) (then (call $overflow))))
            (func $main (export "main") (param i32)
                (call_indirect (type $how) (local.get 0) (i32.const 0))))"#,
        |linker| {
            linker
                .func_wrap("host", "again", |mut caller: Caller<'_, ()>, how: i32| {
                    let main = caller.get_export("main").unwrap().into_func().unwrap();
                    main.call(&mut caller, &[Val::I32(how)], &mut [])
                })
                .unwrap();
        },
    );
    let main = instance.get_typed_func::<i32, ()>(&mut store, "main").unwrap();
    let cases: [(i32, TrapCode, &[&str]); 7] = [
        (1, TrapCode::IntegerDivisionByZero, &["divide", "indirect", "main"]),
        (2, TrapCode::MemoryOutOfBounds, &["load", "indirect", "main"]),
        (3, TrapCode::Unreachable, &["indirect", "main"]),
        (4, TrapCode::BadConversionToInteger, &["convert", "indirect", "main"]),
        (5, TrapCode::MemoryOutOfBounds, &["indirect", "main"]),
        (12, TrapCode::MemoryOutOfBounds, &["load", "indirect", "main", "indirect", "main"]),
        (
            21,
            TrapCode::IntegerDivisionByZero,
            &["divide", "indirect", "main", "indirect", "main", "indirect", "main"],
        ),
    ];
    for (how, code, frames) in cases {
        let error = main.call(&mut store, how).unwrap_err();
        assert_eq!(trap_code(&error), code, "{how}");
        assert_eq!(frame_names(&error), frames, "{how}");
    }
    // Of very many frames the innermost are kept, and the others counted.
    let error = main.call(&mut store, 6).unwrap_err();
    assert_eq!(trap_code(&error), TrapCode::StackOverflow);
    let backtrace = error.backtrace().unwrap();
    assert!(frame_names(&error).iter().all(|name| name == "overflow"));
    assert!(backtrace.omitted_count() > 1_000, "{} omitted", backtrace.omitted_count());
    assert!(backtrace.to_string().contains("overflow"));
}

#[test]
fn cve_2024_47763_frames_of_other_instances_are_walked_too() {
    // There are no tail calls yet; what crosses instances is next to them.
    let engine = Engine::default();
    let mut store = Store::new(&engine, ());
    let library = Module::new(
        &engine,
        r#"(module $library (func $fail unreachable)
            (func $entry (export "entry") (param i32) (call $fail)))"#,
    )
    .unwrap();
    let program = Module::new(
        &engine,
        r#"(module $program (import "library" "entry" (func $entry (param i32)))
            (import "library" "table" (table 1 funcref))
            (func $direct (export "direct") (call $entry (i32.const 0)))
            (func $through (export "through")
                (call_indirect (param i32) (i32.const 1) (i32.const 0))))"#,
    )
    .unwrap();
    let library = Instance::new(&mut store, &library, &[]).unwrap();
    let entry = library.get_func(&mut store, "entry").unwrap();
    let ty = TableType::new(RefType::FUNCREF, 1, None);
    let table = Table::new(&mut store, ty, entry.into()).unwrap();
    let program = Instance::new(&mut store, &program, &[entry.into(), table.into()]).unwrap();
    for name in ["direct", "through"] {
        let function = program.get_typed_func::<(), ()>(&mut store, name).unwrap();
        for _ in 0..3 {
            let error = function.call(&mut store, ()).unwrap_err();
            assert_eq!(trap_code(&error), TrapCode::Unreachable);
            assert_eq!(frame_names(&error), ["fail", "entry", name]);
            let frames = error.backtrace().unwrap().frames();
            let modules: Vec<_> =
                frames.iter().map(|frame| frame.module().name().unwrap()).collect();
            assert_eq!(modules, ["library", "library", "program"]);
        }
    }
}

#[test]
fn cve_2026_27195_a_half_run_call_can_be_dropped_in_each_state() {
    let wat = r#"(module (import "host" "f" (func $f (result i32)))
        (memory (export "memory") 1)
        (func (export "run") (param i32) (result i32) (local $sum i32)
            (loop $again
                (local.set $sum (i32.add (local.get $sum) (call $f)))
                (br_if $again (local.tee 0 (i32.sub (local.get 0) (i32.const 1)))))
            (local.get $sum)))"#;
    in_own_process("cve_2026_27195_a_half_run_call_can_be_dropped_in_each_state", || {
        let engine = Engine::default();
        let new = || {
            link(&engine, (), wat, |linker| {
                linker.func_wrap("host", "f", || 5i32).unwrap();
            })
        };
        let round = || {
            let mut kinds = Vec::new();
            for stop_at in 1..12 {
                // Dropped while suspended.
                let (mut store, instance) = new();
                let run = instance.get_func(&mut store, "run").unwrap();
                let progress =
                    suspend::call(&mut store, &run, &[Val::I32(9)], Some(stop_at)).unwrap();
                assert!(matches!(progress, CallProgress::Suspended));
                kinds.push(suspend::suspension(&store).unwrap());
                drop(store);
                // Given up, and then used again.
                let (mut store, instance) = new();
                let run = instance.get_func(&mut store, "run").unwrap();
                suspend::call(&mut store, &run, &[Val::I32(9)], Some(stop_at)).unwrap();
                let error = run.call(&mut store, &[Val::I32(1)], &mut [Val::I32(0)]).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Usage, "suspended: {error:#}");
                suspend::abandon(&mut store);
                let mut result = [Val::I32(0)];
                run.call(&mut store, &[Val::I32(3)], &mut result).unwrap();
                assert_eq!(result[0].i32(), Some(15));
                // Resumed in part, then dropped.
                suspend::call(&mut store, &run, &[Val::I32(9)], Some(stop_at)).unwrap();
                suspend::resume(&mut store, Some(2)).unwrap();
                store.close();
            }
            assert!(kinds.contains(&Suspension::HostCall), "{kinds:?}");
            assert!(kinds.contains(&Suspension::Interrupt), "{kinds:?}");
        };
        round();
        let before = held();
        round();
        assert_eq!(held(), before);
    });
}

#[test]
fn freenet_3633_closing_a_store_gives_all_address_space_back() {
    in_own_process("freenet_3633_closing_a_store_gives_all_address_space_back", || {
        // Without the pool's own thread, which would count.
        let pool = PoolConfig { idle_max: None, heed_pressure: false, ..PoolConfig::default() };
        let engine = Engine::new(Config::new().pool(pool)).unwrap();
        let module = Module::new(
            &engine,
            r#"(module (memory 1 9) (data (i32.const 0) "x") (table 9 funcref)
                (func (export "grow") (drop (memory.grow (i32.const 3)))))"#,
        )
        .unwrap();
        let fill = || {
            let mut store = Store::new(&engine, "data");
            for _ in 0..5 {
                let instance = Instance::new(&mut store, &module, &[]).unwrap();
                let grow = instance.get_typed_func::<(), ()>(&mut store, "grow").unwrap();
                grow.call(&mut store, ()).unwrap();
                Memory::new(&mut store, MemoryType::new(1, None)).unwrap();
            }
            store
        };
        drop(fill());
        engine.purge_pool();
        let before = held();
        let store = fill();
        assert!(held().mapped > before.mapped + (10 << 30));
        store.close();
        assert_eq!(held(), before, "close");
        assert_eq!(fill().into_data(), "data");
        engine.purge_pool();
        assert_eq!(held(), before, "into_data");
        drop(fill());
        engine.purge_pool();
        assert_eq!(held(), before, "drop");
    });
}
