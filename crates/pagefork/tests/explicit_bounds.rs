//! Code with explicit bounds traps wherever other code does, and at nothing else,
//! although the bytes beyond a memory's size are accessible.

use std::fmt::Write;

use pagefork::{
    CodeBounds, Config, Engine, GrowthKind, Instance, Memory, Module, Result, Store,
    StrategyConfig, Trap, TrapCode,
};

const PAGE: u64 = 65536;

/// Two engines whose memories are accessible up to their maximum, one of which compares
/// only as long as they are shorter, and one that relies on guards.
fn engines() -> [Engine; 3] {
    let accessible = |code| {
        let growth = GrowthKind::Checked { accessible: None };
        let mut config = Config::new();
        config.strategies(StrategyConfig { growth, code, ..StrategyConfig::default() });
        config
    };
    [accessible(CodeBounds::Checked), accessible(CodeBounds::Dual), Config::new()]
        .map(|config| Engine::new(&config).unwrap())
}

/// Whether the byte of the process can be read and written.
fn accessible(address: usize) -> bool {
    let maps = pagefork_pages::procmaps::read().unwrap();
    let map = maps.into_iter().find(|map| map.range.contains(&(address as u64)));
    map.is_some_and(|map| map.read && map.write)
}

/// Where a memory ends.
fn end<T: 'static>(memory: &Memory, store: &Store<T>) -> usize {
    memory.data(store).as_ptr_range().end.addr()
}

fn outcome(result: Result<i64>) -> Option<i64> {
    match result {
        Ok(value) => Some(value),
        Err(error) => {
            let code = error.downcast_ref::<Trap>().map(Trap::code);
            assert_eq!(code, Some(TrapCode::MemoryOutOfBounds), "{error}");
            None
        }
    }
}

/// A function for each access and offset: it takes an index.
fn accesses(offsets: &[u64]) -> (String, usize) {
    let loads = [
        "i32.load",
        "i64.load",
        "i32.load8_u",
        "i32.load8_s",
        "i32.load16_u",
        "i32.load16_s",
        "i64.load8_u",
        "i64.load8_s",
        "i64.load16_u",
        "i64.load16_s",
        "i64.load32_u",
        "i64.load32_s",
    ];
    let float_loads = [("f32.load", "i32.reinterpret_f32"), ("f64.load", "i64.reinterpret_f64")];
    let vector_loads = [
        "v128.load",
        "v128.load8x8_s",
        "v128.load16x4_u",
        "v128.load32x2_s",
        "v128.load8_splat",
        "v128.load16_splat",
        "v128.load32_splat",
        "v128.load64_splat",
        "v128.load32_zero",
        "v128.load64_zero",
    ];
    let stores = [
        ("i32.store", "i32"),
        ("i64.store", "i64"),
        ("i32.store8", "i32"),
        ("i32.store16", "i32"),
        ("i64.store8", "i64"),
        ("i64.store16", "i64"),
        ("i64.store32", "i64"),
    ];
    let (mut text, mut count) = (String::new(), 0);
    let mut add = |body: String| {
        writeln!(text, r#"(func (export "f{count}") (param i32) (result i64) {body})"#).unwrap();
        count += 1;
    };
    for offset in offsets {
        let at = format!("offset={offset} (local.get 0)");
        for load in loads {
            let extend = if load.starts_with("i32") {
                "(i64.extend_i32_s "
            } else {
                "(i64.add (i64.const 0) "
            };
            add(format!("{extend} ({load} {at}))"));
        }
        for (load, cast) in float_loads {
            let extend =
                if load == "f32.load" { "(i64.extend_i32_s " } else { "(i64.add (i64.const 0) " };
            add(format!("{extend} ({cast} ({load} {at})))"));
        }
        for load in vector_loads {
            add(format!("(i64x2.extract_lane 0 ({load} {at}))"));
        }
        for lanes in [8, 16, 32, 64] {
            let zero = "(v128.const i64x2 7 7)";
            add(format!(
                "(i64x2.extract_lane 0 (v128.load{lanes}_lane offset={offset} 0 (local.get 0) {zero}))"
            ));
            add(format!(
                "(v128.store{lanes}_lane offset={offset} 0 (local.get 0) {zero}) (i64.const 1)"
            ));
        }
        for (store, ty) in stores {
            add(format!("({store} {at} ({ty}.const -2)) (i64.const 2)"));
        }
        add(format!("(f32.store {at} (f32.const 1)) (i64.const 3)"));
        add(format!("(f64.store {at} (f64.const 1)) (i64.const 3)"));
        add(format!("(v128.store {at} (v128.const i64x2 9 9)) (i64.const 3)"));
    }
    (text, count)
}

#[test]
fn every_access_traps_beyond_the_size_although_bytes_are_accessible() -> Result<()> {
    let offsets = [0, 1, 16, PAGE - 8, PAGE, 0x7fff_ffff, 0xffff_fff0, 0xffff_ffff];
    let (functions, count) = accesses(&offsets);
    // Own, further and imported memories.
    let text = |memories: &str| format!("(module {memories} {functions})");
    let own = text(r#"(memory (export "memory") 1 4)"#);
    let imported = text(r#"(import "host" "memory" (memory 1 4))"#);
    let mut outcomes = Vec::new();
    for engine in engines() {
        for text in [&own, &imported] {
            let module = Module::new(&engine, text.as_str())?;
            let mut store = Store::new(&engine, ());
            let host = Memory::new(&mut store, pagefork::MemoryType::new(1, Some(4)))?;
            let imports = if text == &own { vec![] } else { vec![host.into()] };
            let instance = Instance::new(&mut store, &module, &imports)?;
            let memory = instance.get_memory(&mut store, "memory").unwrap_or(host);
            assert_eq!(accessible(end(&memory, &store)), outcomes.len() < 4);

            let mut found = Vec::new();
            for pages in [1, 2, 4] {
                let now = memory.data_size(&store) as u64 / PAGE;
                memory.grow(&mut store, pages - now)?;
                let size = pages * PAGE;
                let near: Vec<u64> = [0, 1, 2, 3, 4, 7, 8, 15, 16, 17].to_vec();
                for number in 0..count {
                    let name = format!("f{number}");
                    let f = instance.get_typed_func::<i32, i64>(&mut store, &name)?;
                    let offset = offsets[number * offsets.len() / count];
                    // Around where the access ends with the memory, and extremes.
                    let edge = size.saturating_sub(offset);
                    let around = near.iter().flat_map(|d| [edge.saturating_sub(*d), edge + d]);
                    let ends = [0, 1, 0x7fff_ffff, 0x8000_0000, 0xffff_fff0, 0xffff_ffff];
                    for index in around.chain(ends) {
                        let index = index.min(u64::from(u32::MAX)) as u32 as i32;
                        found.push(outcome(f.call(&mut store, index)));
                    }
                }
                found.push(Some(checksum(memory.data(&store))));
            }
            outcomes.push(found);
        }
    }
    let guards = outcomes.last().expect("those of the last engine");
    assert!(guards.iter().any(Option::is_none) && guards.iter().any(Option::is_some));
    assert!(outcomes.iter().all(|outcomes| outcomes == guards));
    Ok(())
}

fn checksum(bytes: &[u8]) -> i64 {
    bytes.iter().fold(7, |sum: i64, byte| sum.wrapping_mul(31).wrapping_add(i64::from(*byte)))
}

#[test]
fn bulk_operations_trap_before_they_write() -> Result<()> {
    let mut functions = String::new();
    let constants = [1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 33, 63, 64];
    for length in constants {
        write!(
            functions,
            r#"(func (export "copy{length}") (param i32 i32 i32) (result i64)
                 (memory.copy (local.get 0) (local.get 1) (i32.const {length})) (i64.const 0))
               (func (export "fill{length}") (param i32 i32 i32) (result i64)
                 (memory.fill (local.get 0) (local.get 1) (i32.const {length})) (i64.const 0))"#
        )
        .unwrap();
    }
    let text = format!(
        r#"(module
          (memory (export "memory") 1 4)
          (data $d "0123456789abcdefghijklmnopqrstuvwxyz")
          (func (export "copy") (param i32 i32 i32) (result i64)
            (memory.copy (local.get 0) (local.get 1) (local.get 2)) (i64.const 0))
          (func (export "fill") (param i32 i32 i32) (result i64)
            (memory.fill (local.get 0) (local.get 1) (local.get 2)) (i64.const 0))
          (func (export "init") (param i32 i32 i32) (result i64)
            (memory.init $d (local.get 0) (local.get 1) (local.get 2)) (i64.const 0))
          {functions})"#
    );
    let mut outcomes = Vec::new();
    for engine in engines() {
        let module = Module::new(&engine, text.as_str())?;
        let mut store = Store::new(&engine, ());
        let instance = Instance::new(&mut store, &module, &[])?;
        let memory = instance.get_memory(&mut store, "memory").expect("an export");
        let mut found = Vec::new();
        for pages in [1, 3] {
            let now = memory.data_size(&store) as u64 / PAGE;
            memory.grow(&mut store, pages - now)?;
            for (at, byte) in memory.data_mut(&mut store).iter_mut().enumerate() {
                *byte = (at * 7 + at / 256) as u8 | 1;
            }
            let size = (pages * PAGE) as i64;
            let mut run = |name: &str, lengths: &[i64]| -> Result<()> {
                let f = instance.get_typed_func::<(i32, i32, i32), i64>(&mut store, name)?;
                for &length in lengths {
                    let edges = [
                        0,
                        size - length - 1,
                        size - length,
                        size - length + 1,
                        size,
                        size + 1,
                        -1,
                    ];
                    for to in edges {
                        for from in edges {
                            let args = (to as i32, from as i32, length as i32);
                            found.push(outcome(f.call(&mut store, args)));
                        }
                    }
                }
                found.push(Some(checksum(memory.data(&store))));
                Ok(())
            };
            let lengths: Vec<i64> = vec![
                0,
                1,
                2,
                3,
                5,
                8,
                9,
                16,
                17,
                32,
                33,
                64,
                65,
                128,
                129,
                4096,
                size,
                size + 1,
                -1,
            ];
            for name in ["copy", "fill", "init"] {
                run(name, &lengths)?;
            }
            for length in constants {
                for name in ["copy", "fill"] {
                    run(&format!("{name}{length}"), &[length])?;
                }
            }
            if outcomes.len() < 2 {
                let behind = end(&memory, &store);
                assert!(accessible(behind));
                // SAFETY: just found accessible, and only this thread uses the store.
                let behind = unsafe {
                    std::slice::from_raw_parts(
                        std::ptr::with_exposed_provenance::<u8>(behind),
                        PAGE as usize,
                    )
                };
                assert!(behind.iter().all(|&byte| byte == 0), "nothing was written there");
            }
        }
        outcomes.push(found);
    }
    assert!(outcomes[0].iter().any(Option::is_none) && outcomes[0].iter().any(Option::is_some));
    assert!(outcomes[0] == outcomes[1] && outcomes[1] == outcomes[2]);
    Ok(())
}

#[test]
fn traps_of_explicit_checks_have_backtraces_and_grown_memory_is_fresh() -> Result<()> {
    for engine in engines() {
        let module = Module::new(
            &engine,
            r#"(module
          (memory (export "memory") 1 3)
          (func $reads (param i32) (result i64) (i64.load (local.get 0)))
          (func (export "read") (param i32) (result i64) (call $reads (local.get 0)))
          (func (export "grow") (param i32) (result i32) (memory.grow (local.get 0))))"#,
        )?;
        let mut store = Store::new(&engine, ());
        let instance = Instance::new(&mut store, &module, &[])?;
        let read = instance.get_typed_func::<i32, i64>(&mut store, "read")?;
        let error = read.call(&mut store, 65529).unwrap_err();
        assert!(error.backtrace().expect("of a trap").to_string().contains("reads"));
        let grow = instance.get_typed_func::<i32, i32>(&mut store, "grow")?;
        assert_eq!(grow.call(&mut store, 1)?, 1);
        assert_eq!(read.call(&mut store, 65529)?, 0);
        assert!(read.call(&mut store, 2 * 65536 - 7).is_err());
    }
    Ok(())
}

/// Bodies of functions of an index, a number and an index: accesses that a comparison
/// made earlier does not cover, because it is not on every way there, or of another
/// index, or reaches less far.
const WAYS: [&str; 19] = [
    // The same place again, less far and farther; a memory that grows meanwhile.
    "(drop (i64.load offset=8 (local.get 0))) (i64.load offset=4 (local.get 0))",
    "(drop (i64.load offset=4 (local.get 0))) (i64.load offset=8 (local.get 0))",
    "(drop (i64.load offset=4 (local.get 0))) (drop (memory.grow (local.get 1)))
     (i64.load offset=65532 (local.get 0))",
    // Bytes written before the trap stay written.
    "(i32.store (local.get 0) (local.get 1)) (i64.store offset=4 (local.get 0) (i64.const -1))
     (i32.store offset=12 (local.get 0) (local.get 1)) (i64.load offset=2 (local.get 0))",
    // Another value of the same local; the same value of another local.
    "(drop (i64.load offset=9 (local.get 0)))
     (local.set 0 (i32.add (local.get 0) (local.get 1))) (i64.load offset=8 (local.get 0))",
    "(drop (i64.load offset=9 (local.get 0))) (local.set 2 (local.get 0))
     (i64.load offset=8 (local.get 2))",
    // One arm, each arm, and an arm that does not come back.
    "(if (local.get 1) (then (drop (i64.load offset=9 (local.get 0)))))
     (i64.load offset=8 (local.get 0))",
    "(if (local.get 1) (then (drop (i64.load offset=9 (local.get 0))))
       (else (drop (i64.load offset=3 (local.get 0)))))
     (i64.load offset=8 (local.get 0))",
    "(if (local.get 1) (then (drop (i64.load offset=9 (local.get 0)))
         (return (i64.load offset=8 (local.get 0)))))
     (i64.load offset=7 (local.get 0))",
    // Passed over by a branch, from one block and from two.
    "(block (br_if 0 (local.get 1)) (drop (i64.load offset=9 (local.get 0))))
     (i64.load offset=8 (local.get 0))",
    "(block $a (block $b (drop (i64.load offset=2 (local.get 2))) (br_if $a (local.get 1))
         (drop (i64.load offset=9 (local.get 0))) (br_if $a (i32.eqz (local.get 1))))
       (drop (i64.load offset=9 (local.get 2))))
     (i64.add (i64.load offset=8 (local.get 0)) (i64.load offset=8 (local.get 2)))",
    "(block $a (block $b
         (br_if $b (i32.eq (local.get 1) (i32.const 1)))
         (drop (i64.load offset=9 (local.get 0)))
         (br_if $a (i32.eq (local.get 1) (i32.const 2))))
       (drop (i64.load offset=9 (local.get 2))))
     (i64.add (i64.load offset=8 (local.get 0)) (i64.load offset=8 (local.get 2)))",
    "(block $a (loop (block $b
         (br_if $b (i32.eq (local.get 1) (i32.const 1)))
         (drop (i64.load offset=9 (local.get 0)))
         (br_if $a (i32.eq (local.get 1) (i32.const 2)))))
       (drop (i64.load offset=9 (local.get 2))))
     (i64.add (i64.load offset=8 (local.get 0)) (i64.load offset=8 (local.get 2)))",
    "(block $c (block $b (block $a
         (drop (i64.load offset=1 (local.get 0)))
         (br_table $a $b $c (local.get 1)))
       (drop (i64.load offset=9 (local.get 0))))
     (drop (i64.load offset=7 (local.get 0))))
     (i64.load offset=8 (local.get 0))",
    // A loop: what its end covers does not cover its start, and it can be left early.
    "(loop $l
       (drop (i64.load offset=3 (local.get 0)))
       (local.set 0 (i32.add (local.get 0) (i32.const 1)))
       (drop (i64.load offset=8 (local.get 0)))
       (br_if $l (local.tee 1 (i32.shr_u (local.get 1) (i32.const 1)))))
     (i64.load offset=7 (local.get 0))",
    "(block $out (loop $l
       (br_if $out (i32.eqz (local.get 1)))
       (drop (i64.load offset=9 (local.get 0)))
       (local.set 1 (i32.shr_u (local.get 1) (i32.const 1)))
       (br $l)))
     (i64.load offset=8 (local.get 0))",
    // What is thrown passes over what follows, and may come from any place.
    "(block $h (try_table (catch_all $h)
       (if (local.get 1) (then (throw $e)))
       (drop (i64.load offset=9 (local.get 0)))
       (if (i32.eqz (local.get 1)) (then (throw $e)))))
     (i64.load offset=8 (local.get 0))",
    "(block $h (try_table (catch_all $h)
       (drop (i64.load offset=1 (local.get 0)))
       (block (br_if 0 (i32.eqz (local.get 1))) (throw $e))
       (drop (i64.load offset=9 (local.get 0)))))
     (i64.load offset=8 (local.get 0))",
    // Another memory, and an index that is known.
    "(drop (i64.load $other offset=9 (local.get 0)))
     (drop (i64.load offset=65528 (i32.const 0))) (drop (i64.load $other (i32.const 65528)))
     (if (local.get 1) (then (drop (i64.load offset=65521 (i32.const 8)))))
     (i64.load offset=8 (local.get 0))",
];

#[test]
fn a_comparison_stands_for_later_ones_only_where_it_has_been_made() -> Result<()> {
    let mut functions = String::new();
    for (number, body) in WAYS.iter().enumerate() {
        write!(functions, r#"(func (export "f{number}") (param i32 i32 i32) (result i64) {body})"#)
            .unwrap();
    }
    let text = format!(
        r#"(module (tag $e) (memory (export "memory") 1 4) (memory $other 2 4) {functions})"#
    );
    let mut outcomes = Vec::new();
    for engine in engines() {
        let module = Module::new(&engine, text.as_str())?;
        let mut found = Vec::new();
        for number in 0..WAYS.len() {
            for index in (0..24).map(|near| PAGE as i32 - near).chain([0, -1, -12]) {
                for (way, other) in [(0, 0), (1, index), (2, index.wrapping_add(3)), (3, 9)] {
                    let mut store = Store::new(&engine, ());
                    let instance = Instance::new(&mut store, &module, &[])?;
                    let f = instance.get_typed_func::<(i32, i32, i32), i64>(
                        &mut store,
                        &format!("f{number}"),
                    )?;
                    found.push(outcome(f.call(&mut store, (index, way, other))));
                    let memory = instance.get_memory(&mut store, "memory").expect("an export");
                    found.push(Some(checksum(&memory.data(&store)[PAGE as usize - 64..])));
                }
            }
        }
        outcomes.push(found);
    }
    assert!(outcomes[0].iter().any(Option::is_none) && outcomes[0].iter().any(Option::is_some));
    assert!(outcomes[0] == outcomes[1] && outcomes[1] == outcomes[2]);
    Ok(())
}

/// What an earlier run had grown into stays accessible: until this run has grown as far,
/// whatever lies beyond its size is as if it were not there, in functions that are called
/// directly, through a table and by the host, and that were entered before and after.
#[test]
fn what_an_earlier_run_had_grown_into_is_out_of_bounds_again() -> Result<()> {
    let mut config = Config::new();
    config.strategies(StrategyConfig {
        growth: GrowthKind::Kept,
        code: CodeBounds::Dual,
        ..StrategyConfig::default()
    });
    let engine = Engine::new(&config)?;
    let text = r#"(module
      (import "host" "grow" (func $host (param i32)))
      (memory (export "memory") 1 9)
      (table 2 funcref) (elem (i32.const 0) $read $reads)
      (type $read (func (param i32) (result i64)))
      (func $read (export "read") (type $read) (i64.load8_u (local.get 0)))
      (func $reads (type $read) (call $read (local.get 0)))
      (func (export "reads") (type $read) (call $reads (local.get 0)))
      (func (export "through") (param i32 i32) (result i64)
        (call_indirect (type $read) (local.get 0) (local.get 1)))
      (func (export "tail") (param i32 i32) (result i64)
        (return_call_indirect (type $read) (local.get 0) (local.get 1)))
      (func (export "grow") (param i32) (result i32) (memory.grow (local.get 0)))
      ;; Reads before it grows, and after, in a frame that was there before.
      (func (export "both") (param i32 i32) (result i64)
        (drop (i64.load8_u (i32.const 65535)))
        (if (i32.and (local.get 1) (i32.const 1))
          (then (drop (memory.grow (i32.const 2))))
          (else (call $host (i32.const 2))))
        (i64.add (i64.load8_u (local.get 0)) (call $reads (local.get 0)))))"#;
    let module = Module::new(&engine, text)?;
    let mut linker = pagefork::Linker::new(&engine);
    linker.func_wrap("host", "grow", |mut caller: pagefork::Caller<'_, ()>, delta: i32| {
        let Some(pagefork::Extern::Memory(memory)) = caller.get_export("memory") else { panic!() };
        memory.grow(&mut caller, delta as u64).map(drop)
    })?;
    let pre = linker.instantiate_pre(&module)?;
    for grown in [0, 3, 3, 1, 0, 2, 8, 0, 0, 3] {
        let (mut store, instance) = pre.spawn(())?;
        let memory = instance.get_memory(&mut store, "memory").expect("an export");
        let mut pages = 1;
        for step in 0..3 {
            let size = (pages * PAGE) as i32;
            let mut found = Vec::new();
            for at in [size - 1, size, size + 1, size + 4095, 3 * PAGE as i32, 8 * PAGE as i32] {
                for name in ["read", "reads"] {
                    let read = instance.get_typed_func::<i32, i64>(&mut store, name)?;
                    found.push((at, outcome(read.call(&mut store, at))));
                }
                for (name, index) in [("through", 0), ("through", 1), ("tail", 0), ("tail", 1)] {
                    let read = instance.get_typed_func::<(i32, i32), i64>(&mut store, name)?;
                    found.push((at, outcome(read.call(&mut store, (at, index)))));
                }
            }
            for (at, found) in found {
                assert_eq!(found, (at < size).then_some(0), "{at:#x}, {pages} pages, {grown}");
            }
            match step {
                0 => {
                    let grow = instance.get_typed_func::<i32, i32>(&mut store, "grow")?;
                    assert_eq!(grow.call(&mut store, grown)?, 1);
                    pages += grown as u64;
                }
                _ if pages + 2 <= 9 => {
                    let both = instance.get_typed_func::<(i32, i32), i64>(&mut store, "both")?;
                    let last = ((pages + 2) * PAGE) as i32 - 1;
                    assert_eq!(outcome(both.call(&mut store, (last, step))), Some(0));
                    pages += 2;
                }
                _ => (),
            }
            assert_eq!(memory.data_size(&store) as u64, pages * PAGE);
            memory.data_mut(&mut store).iter_mut().rev().take(9000).for_each(|byte| *byte = 7);
            memory.data_mut(&mut store).fill(0);
        }
        memory.data_mut(&mut store).fill(9);
    }
    Ok(())
}

/// How much is accessible of another instance's memory, code cannot know: it compares, also
/// where it need not for its own memory.
#[test]
fn accesses_of_imported_memories_are_compared_in_either_body() -> Result<()> {
    let mut config = Config::new();
    config.strategies(StrategyConfig {
        growth: GrowthKind::Checked { accessible: Some(4 * PAGE) },
        code: CodeBounds::Dual,
        ..StrategyConfig::default()
    });
    let engine = Engine::new(&config)?;
    let text = r#"(module
      (import "host" "memory" (memory $other 1 4))
      (memory $own 4 4)
      (func (export "own") (param i32) (result i64) (i64.load8_u $own (local.get 0)))
      (func (export "load") (param i32) (result i64) (i64.load8_u $other (local.get 0)))
      (func (export "store") (param i32) (result i64)
        (i32.store8 $other (local.get 0) (i32.const 1)) (i64.const 0))
      (func (export "fill") (param i32) (result i64)
        (memory.fill $other (local.get 0) (i32.const 1) (i32.const 3)) (i64.const 0))
      (func (export "copy") (param i32) (result i64)
        (memory.copy $other $other (local.get 0) (i32.const 0) (i32.const 3)) (i64.const 0))
      (func (export "copy here") (param i32) (result i64)
        (memory.copy $own $other (i32.const 0) (local.get 0) (i32.const 3)) (i64.const 0)))"#;
    let module = Module::new(&engine, text)?;
    let mut store = Store::new(&engine, ());
    let host = Memory::new(&mut store, pagefork::MemoryType::new(1, Some(4)))?;
    let instance = Instance::new(&mut store, &module, &[host.into()])?;
    assert!(accessible(end(&host, &store)), "or there is nothing to show");
    for (name, at, expected) in [
        ("own", 4 * PAGE - 1, true),
        ("own", 4 * PAGE, false),
        ("load", PAGE - 1, true),
        ("load", PAGE, false),
        ("store", PAGE - 1, true),
        ("store", PAGE, false),
        ("fill", PAGE - 3, true),
        ("fill", PAGE - 2, false),
        ("copy", PAGE - 3, true),
        ("copy", PAGE - 2, false),
        ("copy here", PAGE - 3, true),
        ("copy here", PAGE - 2, false),
    ] {
        let access = instance.get_typed_func::<i32, i64>(&mut store, name)?;
        let found = outcome(access.call(&mut store, at as i32));
        assert_eq!(found.is_some(), expected, "{name} at {at:#x}");
    }
    Ok(())
}
