//! Several memories, and memories and tables that are indexed by 64 bits, seen
//! by the embedder; and memories that start with a file of the embedder's.

#[path = "memories/images.rs"]
mod images;

use pagefork::suspend::{self, CallProgress, Zone};
use pagefork::{
    Config, Engine, ErrorKind, Extern, ExternType, Func, Instance, LimitError, LinkError, Memory,
    MemoryType, Module, RefType, Result, Store, StoreLimits, Table, TableType, Trap, TrapCode, Val,
};

const WASM_PAGE: usize = 65536;

fn memory64(minimum: u64, maximum: Option<u64>) -> MemoryType {
    MemoryType::new64(minimum, maximum)
}

fn instance(store: &mut Store<()>, wat: &str, imports: &[Extern]) -> Result<Instance> {
    let module = Module::new(store.engine(), wat)?;
    Instance::new(store, &module, imports)
}

/// Four memories of both widths, each with contents of its own.
const FOUR: &str = r#"(module
    (memory (export "a") 1 4) (memory (export "b") i64 2 4)
    (memory (export "c") 0 4) (memory (export "d") 1 4)
    (data (memory 0) (i32.const 0) "a") (data (memory 1) (i64.const 0x1ffff) "b")
    (data (memory 3) (i32.const 5) "d")
    (func (export "grow b") (param i64) (result i64) (memory.grow 1 (local.get 0)))
    (func (export "grow c") (param i32) (result i32) (memory.grow 2 (local.get 0)))
    (func (export "load b") (param i64) (result i32) (i32.load8_u 1 (local.get 0))))"#;

#[test]
fn each_memory_has_its_own_bytes_size_and_type() -> Result<()> {
    let mut store = Store::new(&Engine::default(), ());
    let four = instance(&mut store, FOUR, &[])?;
    let names = ["a", "b", "c", "d"];
    let memories = names.map(|name| four.get_memory(&mut store, name).unwrap());
    assert_eq!(memories.map(|memory| memory.size(&store)), [1, 2, 0, 1]);
    let wide = memories.map(|memory| memory.ty(&store).memory64);
    assert_eq!(wide, [false, true, false, false]);
    for (memory, (at, byte)) in memories.iter().zip([(0, b'a'), (0x1ffff, b'b'), (0, 0), (5, b'd')])
    {
        let data = memory.data(&store);
        assert_eq!(data.get(at).copied().unwrap_or(0), byte);
        let others = data.iter().enumerate().filter(|(place, _)| *place != at);
        assert!(others.clone().all(|(_, byte)| *byte == 0));
    }

    // Growth from either side, one memory at a time.
    assert_eq!(memories[2].grow(&mut store, 2)?, 0);
    assert_eq!(memories.map(|memory| memory.size(&store)), [1, 2, 2, 1]);
    let grow = four.get_typed_func::<u64, i64>(&mut store, "grow b")?;
    assert_eq!(grow.call(&mut store, 1)?, 2);
    assert_eq!(grow.call(&mut store, 2)?, -1);
    assert_eq!(memories.map(|memory| memory.size(&store)), [1, 3, 2, 1]);
    assert!(memories[1].grow(&mut store, 2).unwrap_err().is::<LimitError>());
    assert!(memories[3].grow(&mut store, u64::MAX).unwrap_err().is::<LimitError>());
    memories[1].write(&mut store, 3 * WASM_PAGE - 1, b"!")?;
    assert!(memories[1].write(&mut store, 3 * WASM_PAGE, b"!").is_err());
    let load = four.get_typed_func::<u64, i32>(&mut store, "load b")?;
    assert_eq!(load.call(&mut store, 3 * WASM_PAGE as u64 - 1)?, i32::from(b'!'));
    assert_eq!(memories[2].data(&store).len(), 2 * WASM_PAGE);
    assert!(memories[2].data(&store).iter().all(|byte| *byte == 0));
    Ok(())
}

#[test]
fn the_host_makes_memories_and_tables_of_64_bits() -> Result<()> {
    let mut store = Store::new(&Engine::default(), ());
    let memory = Memory::new(&mut store, memory64(1, Some(3)))?;
    assert_eq!(memory.ty(&store), memory64(1, Some(3)));
    let ty = TableType::new64(RefType::EXTERNREF, 2, Some(4));
    let table = Table::new(&mut store, ty, Val::ExternRef(None))?;
    assert_eq!(table.ty(&store), ty);
    let user = instance(
        &mut store,
        r#"(module (import "" "m" (memory i64 1 3)) (import "" "t" (table i64 1 externref))
            (func (export "store") (param i64) (i64.store (local.get 0) (i64.const -1)))
            (func (export "grow") (result i64 i64)
                (memory.grow (i64.const 1)) (table.grow (ref.null extern) (i64.const 1)))
            (func (export "size") (result i64 i64) (memory.size) (table.size)))"#,
        &[memory.into(), table.into()],
    )?;
    let write = user.get_typed_func::<u64, ()>(&mut store, "store")?;
    write.call(&mut store, WASM_PAGE as u64 - 8)?;
    assert_eq!(memory.data(&store)[WASM_PAGE - 9..][..2], [0, 0xff]);
    for beyond in [WASM_PAGE as u64 - 7, 1 << 32, u64::MAX - 7, u64::MAX] {
        let error = write.call(&mut store, beyond).unwrap_err();
        let trap = error.downcast_ref::<Trap>().unwrap();
        assert_eq!(trap.code(), TrapCode::MemoryOutOfBounds, "{beyond:#x}");
    }
    let grow = user.get_typed_func::<(), (i64, i64)>(&mut store, "grow")?;
    assert_eq!(grow.call(&mut store, ())?, (1, 2));
    assert_eq!((memory.size(&store), table.size(&store)), (2, 3));
    memory.grow(&mut store, 1)?;
    table.grow(&mut store, 1, Val::ExternRef(None))?;
    assert_eq!(grow.call(&mut store, ())?, (-1, -1));
    let size = user.get_typed_func::<(), (i64, i64)>(&mut store, "size")?;
    assert_eq!(size.call(&mut store, ())?, (3, 4));
    Ok(())
}

#[test]
fn impossible_types_are_refused() {
    let mut store = Store::new(&Engine::default(), ());
    let pages_max = 1 << 48;
    for ty in [
        memory64(2, Some(1)),
        memory64(0, Some(pages_max + 1)),
        memory64(u64::MAX, None),
        MemoryType::new(0, Some(65537)),
        MemoryType::new(65537, None),
    ] {
        let error = Memory::new(&mut store, ty).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
    }
    // Possible, but for the machine's address space.
    for minimum in [1 << 30, pages_max] {
        let error = Memory::new(&mut store, memory64(minimum, None)).unwrap_err();
        assert!(error.is::<LimitError>(), "{error}");
        let wat = format!(
            r#"(module (memory 1) (memory i64 {minimum}) (data (memory 1) (i64.const -9) "x"))"#
        );
        let error = instance(&mut store, &wat, &[]).unwrap_err();
        assert!(error.is::<LimitError>(), "{error}");
    }
    assert_eq!(suspend::instance_count(&store), 0);
}

#[test]
fn widths_of_imports_must_agree() -> Result<()> {
    let mut store = Store::new(&Engine::default(), ());
    let element = RefType::FUNCREF;
    for (wide, index, other) in [(true, "i64", ""), (false, "", "i64")] {
        let ty = MemoryType { memory64: wide, ..MemoryType::new(1, None) };
        let memory: Extern = Memory::new(&mut store, ty)?.into();
        let ty = TableType { table64: wide, ..TableType::new(element, 1, None) };
        let table: Extern = Table::new(&mut store, ty, Val::FuncRef(None))?.into();
        let wat = |index| {
            format!(
                r#"(module (import "" "m" (memory {index} 1))
                    (import "" "t" (table {index} 1 funcref)))"#
            )
        };
        instance(&mut store, &wat(index), &[memory, table])?;
        let error = instance(&mut store, &wat(other), &[memory, table]).unwrap_err();
        assert!(error.is::<LinkError>(), "{error}");
        let wat = format!(r#"(module (import "" "t" (table {other} 1 funcref)))"#);
        let error = instance(&mut store, &wat, &[table]).unwrap_err();
        assert!(error.is::<LinkError>(), "{error}");
    }
    Ok(())
}

#[test]
fn further_memories_are_shared_by_their_importers() -> Result<()> {
    let mut store = Store::new(&Engine::default(), ());
    let four = instance(&mut store, FOUR, &[])?;
    let imports = ["d", "b", "c"].map(|name| four.get_export(&mut store, name).unwrap());
    let user = instance(
        &mut store,
        r#"(module (import "" "d" (memory 1)) (import "" "b" (memory i64 1))
            (import "" "c" (memory 0)) (memory (export "own") 1)
            (data (memory 1) (i64.const 3) "B") (data (memory 0) (i32.const 6) "D")
            (func (export "d") (param i32) (result i32) (i32.load8_u 0 (local.get 0)))
            (func (export "b") (param i64) (result i32) (i32.load8_u 1 (local.get 0)))
            (func (export "c") (param i32) (result i32) (i32.load8_u 2 (local.get 0)))
            (func (export "gather")
                (memory.copy 3 0 (i32.const 0) (i32.const 5) (i32.const 2))
                (memory.copy 3 1 (i32.const 2) (i64.const 3) (i32.const 1))))"#,
        &imports,
    )?;
    let d = user.get_typed_func::<u32, i32>(&mut store, "d")?;
    assert_eq!([d.call(&mut store, 5)?, d.call(&mut store, 6)?], [b'd', b'D'].map(i32::from));
    user.get_typed_func::<(), ()>(&mut store, "gather")?.call(&mut store, ())?;
    let own = user.get_memory(&mut store, "own").unwrap();
    assert_eq!(&own.data(&store)[..4], b"dDB\0");
    let c = user.get_typed_func::<u32, i32>(&mut store, "c")?;
    assert!(c.call(&mut store, 0).is_err());
    let grow = four.get_typed_func::<u32, i32>(&mut store, "grow c")?;
    assert_eq!(grow.call(&mut store, 1)?, 0);
    assert_eq!(c.call(&mut store, 65535)?, 0);
    for beyond in [65536, 1 << 31, u32::MAX] {
        assert!(c.call(&mut store, beyond).is_err());
        assert!(d.call(&mut store, beyond).is_err());
    }
    Ok(())
}

#[test]
fn each_memory_is_limited_by_the_store() -> Result<()> {
    let engine = Engine::default();
    let module = Module::new(&engine, FOUR)?;
    let limits = StoreLimits::new();
    for (limits, fits) in [
        (limits.memories(4), true),
        (limits.memories(3), false),
        (limits.memory_size(2 << 16), true),
        (limits.memory_size((2 << 16) - 1), false),
    ] {
        let mut store = Store::new(&engine, ());
        store.set_limits(limits);
        let result = Instance::new(&mut store, &module, &[]);
        assert_eq!(result.is_ok(), fits, "{limits:?}");
    }
    let mut store = Store::new(&engine, ());
    store.set_limits(limits.memory_size(3 << 16));
    let four = Instance::new(&mut store, &module, &[])?;
    let grow = four.get_typed_func::<u64, i64>(&mut store, "grow b")?;
    assert_eq!([grow.call(&mut store, 2)?, grow.call(&mut store, 1)?], [-1, 2]);
    let grow = four.get_typed_func::<u32, i32>(&mut store, "grow c")?;
    assert_eq!([grow.call(&mut store, 4)?, grow.call(&mut store, 3)?], [-1, 0]);
    Ok(())
}

#[test]
fn a_memory_of_64_bits_grows_as_far_as_the_engine_reserves() -> Result<()> {
    let engine = Engine::new(Config::new().memory64_size(3 << 16))?;
    let mut store = Store::new(&engine, ());
    for (minimum, maximum, reached) in
        [(0, None, 3), (1, Some(2), 2), (1, Some(9), 3), (5, None, 5), (5, Some(9), 5)]
    {
        let memory = Memory::new(&mut store, memory64(minimum, maximum))?;
        assert_eq!(memory.ty(&store).maximum, maximum);
        while memory.grow(&mut store, 1).is_ok() {}
        assert_eq!(memory.size(&store), reached, "{minimum} {maximum:?}");
        memory.write(&mut store, reached as usize * WASM_PAGE - 1, b"x")?;
    }
    // Memories of 32 bits are not meant.
    let memory = Memory::new(&mut store, MemoryType::new(1, None))?;
    memory.grow(&mut store, 65535)?;
    Ok(())
}

#[test]
fn a_memory_larger_than_four_gigabytes() -> Result<()> {
    let mut store = Store::new(&Engine::default(), ());
    let pages = 65536 + 1;
    let guest = instance(
        &mut store,
        &format!(
            r#"(module (memory (export "memory") i64 {pages})
                (func (export "store") (param i64 i32) (i32.store (local.get 0) (local.get 1)))
                (func (export "copy") (param i64 i64 i64)
                    (memory.copy (local.get 0) (local.get 1) (local.get 2)))
                (func (export "size") (result i64) (memory.size)))"#
        ),
        &[],
    )?;
    let memory = guest.get_memory(&mut store, "memory").unwrap();
    assert_eq!(memory.data_size(&store), pages * WASM_PAGE);
    let write = guest.get_typed_func::<(u64, u32), ()>(&mut store, "store")?;
    let last = (pages * WASM_PAGE - 4) as u64;
    write.call(&mut store, (last, 0x6465_6667))?;
    write.call(&mut store, ((1 << 32) - 2, 0x7879_7a7b))?;
    let mut found = [0; 4];
    memory.read(&store, last as usize, &mut found)?;
    assert_eq!(&found, b"gfed");
    memory.read(&store, (1 << 32) - 2, &mut found)?;
    assert_eq!(&found, b"{zyx");
    memory.read(&store, 0, &mut found)?;
    assert_eq!(found, [0; 4], "no index is cut to 32 bits");
    assert!(write.call(&mut store, (last + 1, 1)).is_err());
    let copy = guest.get_typed_func::<(u64, u64, u64), ()>(&mut store, "copy")?;
    copy.call(&mut store, (16, last, 4))?;
    memory.read(&store, 16, &mut found)?;
    assert_eq!(&found, b"gfed");
    assert!(copy.call(&mut store, (0, 1, last + 4)).is_err());
    let size = guest.get_typed_func::<(), u64>(&mut store, "size")?;
    assert_eq!(size.call(&mut store, ())?, pages as u64);
    Ok(())
}

#[test]
fn a_moved_guest_has_all_its_memories() -> Result<()> {
    let engine = Engine::default();
    let wat = r#"(module (import "" "f" (func $f))
        (memory 1 3) (memory i64 1 3) (memory 1 3)
        (data (memory 1) (i64.const 9) "start")
        (func (export "run") (result i64)
            (i32.store8 0 (i32.const 70) (i32.const 1))
            (i64.store8 1 (i64.const 70) (i64.const 2))
            (drop (memory.grow 1 (i64.const 2)))
            (i64.store8 1 (i64.const 0x2ffff) (i64.const 3))
            (i32.store8 2 (i32.const 0xffff) (i32.const 4))
            (call $f)
            (drop (memory.grow 2 (i32.const 1)))
            (i64.add (i64.load8_u 1 (i64.const 9)) (i64.add
                (i64.add (i64.load8_u 0 (i32.const 70)) (i64.load8_u 1 (i64.const 70)))
                (i64.add (i64.load8_u 1 (i64.const 0x2ffff))
                    (i64.load8_u 2 (i32.const 0xffff)))))))"#;
    let module = Module::new(&engine, wat)?;
    for stop_at in 1.. {
        let mut source = Store::new(&engine, ());
        let host = Func::wrap(&mut source, || ());
        let guest = Instance::new(&mut source, &module, &[host.into()])?;
        let run = guest.get_func(&mut source, "run").unwrap();
        let progress = suspend::call(&mut source, &run, &[], Some(stop_at))?;
        let CallProgress::Suspended = progress else {
            assert!(stop_at > 1, "it can be suspended");
            return Ok(());
        };
        let mut target = Store::new(&engine, ());
        suspend::copy_to(&source, &mut target, true)?;
        for own in 0..3 {
            let bytes = suspend::zone_bytes(&source, 1, Zone::Memory(own)).1;
            assert!(!bytes.is_empty());
            assert!(suspend::zone_bytes(&target, 1, Zone::Memory(own)).1 == bytes);
        }
        drop(source);
        let CallProgress::Finished(results) = suspend::resume(&mut target, None)? else {
            panic!("it runs to its end");
        };
        let expected = i64::from(b's') + 1 + 2 + 3 + 4;
        assert_eq!(results[0].i64(), Some(expected), "stopped at {stop_at}");
    }
    unreachable!()
}

#[test]
fn modules_say_what_their_memories_are() -> Result<()> {
    let engine = Engine::default();
    let module = Module::new(&engine, FOUR)?;
    let types = ["a", "b", "c", "d"].map(|name| module.get_export(name).unwrap());
    let expected = [
        MemoryType::new(1, Some(4)),
        memory64(2, Some(4)),
        MemoryType::new(0, Some(4)),
        MemoryType::new(1, Some(4)),
    ];
    assert_eq!(types, expected.map(ExternType::Memory));
    Ok(())
}

#[test]
fn the_proposals_can_be_switched_off() -> Result<()> {
    let cases: [(fn(&mut Config, bool) -> &mut Config, &str); 4] = [
        (Config::wasm_memory64, "(module (memory i64 1))"),
        (Config::wasm_memory64, "(module (table i64 1 funcref))"),
        (Config::wasm_multi_memory, "(module (memory 1) (memory 1))"),
        (Config::wasm_multi_memory, r#"(module (import "" "" (memory 1)) (memory 1))"#),
    ];
    for (switch, wat) in cases {
        Module::new(&Engine::default(), wat)?;
        let engine = Engine::new(switch(&mut Config::new(), false))?;
        let error = Module::new(&engine, wat).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Compile, "{error}");
    }
    Ok(())
}
