//! Guests give memory back, by the instruction and by imports.

use pagefork::{
    Config, Discarded, Engine, Linker, Memory, MemoryType, Module, Result, Store, Trap, TrapCode,
};

const MODULE: &str = r#"(module
    (memory (export "memory") 200 300)
    (data (i32.const 65500) "of the image, over a page's end .........................")
    (func (export "discard") (param i32 i32) (memory.discard (local.get 0) (local.get 1)))
    (func (export "fill") (param i32 i32)
        (memory.fill (local.get 0) (i32.const 0xee) (local.get 1))))"#;

fn engine() -> Engine {
    Engine::new(Config::new().wasm_memory_control(true)).expect("the engine")
}

const PAGE: u32 = 65536;

/// The instruction makes whole wasm pages zero, wherever they lie, and traps on others, and on
/// those behind the memory.
#[test]
fn the_instruction_makes_pages_zero() -> Result<()> {
    let engine = engine();
    let module = Module::new(&engine, MODULE)?;
    let pre = Linker::<()>::new(&engine).instantiate_pre(&module)?;
    for run in 0..5 {
        let (mut store, instance) = pre.spawn(())?;
        let memory = instance.get_memory(&mut store, "memory").expect("it is exported");
        assert_eq!(&memory.data(&store)[65500..65512], b"of the image", "run {run}");
        let discard = instance.get_typed_func::<(u32, u32), ()>(&mut store, "discard")?;
        let fill = instance.get_typed_func::<(u32, u32), ()>(&mut store, "fill")?;
        fill.call(&mut store, (0, 200 * PAGE))?;
        discard.call(&mut store, (0, 100 * PAGE))?;
        let zero = |store: &Store<()>, from: u32, to: u32| {
            memory.data(store)[from as usize..to as usize].iter().all(|byte| *byte == 0)
        };
        assert!(zero(&store, 0, 100 * PAGE));
        assert_eq!(memory.data(&store)[100 * PAGE as usize], 0xee);
        discard.call(&mut store, (199 * PAGE, PAGE))?;
        assert!(zero(&store, 199 * PAGE, 200 * PAGE) && !zero(&store, 198 * PAGE, 199 * PAGE));
        discard.call(&mut store, (200 * PAGE, 0))?;
        for wrong in [(1, PAGE), (0, 1), (200 * PAGE, PAGE), (0, 201 * PAGE), (PAGE, u32::MAX)] {
            let error = discard.call(&mut store, wrong).expect_err("it traps");
            let code = error.downcast_ref::<Trap>().map(Trap::code);
            assert_eq!(code, Some(TrapCode::MemoryOutOfBounds), "{wrong:?}");
        }
    }
    Ok(())
}

/// The instruction is `0xFC 0x12` and the memory's index, as the proposal has it; of several memories it makes pages of
/// that one zero, and in one of 64 bits it takes addresses of 64 bits.
#[test]
fn the_instruction_names_its_memory_and_takes_its_addresses() -> Result<()> {
    const SEVERAL: &str = r#"(module
        (memory (export "first") 4)
        (memory (export "second") 4)
        (memory (export "wide") i64 4)
        (func (export "second discard") (param i32 i32)
            (memory.discard 1 (local.get 0) (local.get 1)))
        (func (export "wide discard") (param i64 i64)
            (memory.discard 2 (local.get 0) (local.get 1))))"#;
    let engine = engine();
    let bytes = wat::parse_str(SEVERAL).expect("a module");
    for memory in [1, 2] {
        assert!(bytes.windows(3).any(|three| three == [0xfc, 0x12, memory]), "memory {memory}");
    }
    let module = Module::new(&engine, bytes)?;
    let mut store = Store::new(&engine, ());
    let instance = Linker::<()>::new(&engine).instantiate(&mut store, &module)?;
    let memories = ["first", "second", "wide"]
        .map(|name| instance.get_memory(&mut store, name).expect("it is exported"));
    let second = instance.get_typed_func::<(u32, u32), ()>(&mut store, "second discard")?;
    let wide = instance.get_typed_func::<(u64, u64), ()>(&mut store, "wide discard")?;
    for memory in memories {
        memory.data_mut(&mut store).fill(7);
    }
    let page = u64::from(PAGE);
    second.call(&mut store, (PAGE, 2 * PAGE))?;
    wide.call(&mut store, (3 * page, page))?;
    let pages = |store: &Store<()>, memory: Memory| -> Vec<u8> {
        let pages = memory.data(store).chunks_exact(PAGE as usize);
        pages
            .map(|page| if page.iter().all(|byte| *byte == page[0]) { page[0] } else { 1 })
            .collect()
    };
    assert_eq!(pages(&store, memories[0]), [7, 7, 7, 7]);
    assert_eq!(pages(&store, memories[1]), [7, 0, 0, 7]);
    assert_eq!(pages(&store, memories[2]), [7, 7, 7, 0]);
    // What is above 32 bits is not cut off.
    for wrong in [(1 << 32, page), (0, (1 << 32) + page), (u64::MAX - page + 1, 2 * page)] {
        assert!(wide.call(&mut store, wrong).is_err(), "{wrong:?}");
    }
    assert_eq!(pages(&store, memories[2]), [7, 7, 7, 0]);
    Ok(())
}

#[test]
fn without_the_proposal_the_instruction_is_refused() {
    let error = Module::new(&Engine::default(), MODULE).expect_err("it is off");
    assert!(format!("{error:#}").contains("memory control"), "{error:#}");
}

/// What the imports say is what happened, and a range that is not there is an error.
#[test]
fn imports_say_what_became_of_pages() -> Result<()> {
    const IMPORTING: &str = r#"(module
        (import "pagefork" "memory_discard" (func $with (param i32 i32) (result i32)))
        (import "env" "__wbindgen_memory_discard" (func $without (param i32 i32)))
        (memory (export "memory") 200)
        (data (i32.const 0) "image")
        (func (export "with") (param i32 i32) (result i32)
            (call $with (local.get 0) (local.get 1)))
        (func (export "without") (param i32 i32) (call $without (local.get 0) (local.get 1))))"#;
    let engine = Engine::default();
    let module = Module::new(&engine, IMPORTING)?;
    let mut linker = Linker::<()>::new(&engine);
    linker.define_memory_discard()?;
    let mut store = Store::new(&engine, ());
    let instance = linker.instantiate(&mut store, &module)?;
    let memory = instance.get_memory(&mut store, "memory").expect("it is exported");
    let with = instance.get_typed_func::<(u32, u32), i32>(&mut store, "with")?;
    let without = instance.get_typed_func::<(u32, u32), ()>(&mut store, "without")?;
    memory.data_mut(&mut store).fill(7);
    assert_eq!(with.call(&mut store, (PAGE, 150 * PAGE))?, 0);
    assert_eq!(with.call(&mut store, (0, 16))?, -1);
    assert_eq!(memory.data(&store)[..16], [7; 16], "nothing was done");
    without.call(&mut store, (3, 10))?;
    assert_eq!(memory.data(&store)[..16], [7, 7, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 7, 7]);
    assert!(memory.data(&store)[PAGE as usize..151 * PAGE as usize].iter().all(|byte| *byte == 0));
    assert!(with.call(&mut store, (199 * PAGE, 2 * PAGE)).is_err());
    assert!(without.call(&mut store, (u32::MAX, 2)).is_err());
    Ok(())
}

#[test]
fn embedders_give_memory_back() -> Result<()> {
    let mut store = Store::new(&Engine::default(), ());
    let memory = Memory::new(&mut store, MemoryType::new(300, None))?;
    memory.data_mut(&mut store).fill(9);
    let length = 299 * u64::from(PAGE);
    assert_eq!(memory.discard(&mut store, 100, length)?, Some(Discarded::Released));
    let data = memory.data(&store);
    assert_eq!((data[99], data[100], data[100 + length as usize]), (9, 0, 9));
    assert!(data[100..100 + length as usize].iter().all(|byte| *byte == 0));
    Ok(())
}
