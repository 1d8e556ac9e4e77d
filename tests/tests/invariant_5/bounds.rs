//! Accesses at all the extremes: they work within a memory or table, and trap
//! outside.

use pagefork::{Engine, Instance, Store, TrapCode, Val};

use crate::accesses::{Access, bits, loads, stores};
use crate::common::{spawn, trap_code};

const WASM_PAGE: u64 = 65536;

/// A memory of `pages`, up to `maximum`, and a function for each access and each
/// offset, named by both.
fn accessors(accesses: &[Access], pages: u64, maximum: u64, offsets: &[u64]) -> String {
    let mut wat = format!("(module (memory (export \"memory\") {pages} {maximum})\n");
    for (number, access) in accesses.iter().enumerate() {
        for offset in offsets {
            wat += &access.function(&format!("{number}+{offset}"), *offset);
        }
    }
    wat + ")"
}

/// Makes access `number` at `index` plus `offset`; the bits loaded, 0 of a store.
fn run(
    store: &mut Store<()>,
    instance: Instance,
    number: usize,
    index: u64,
    offset: u64,
) -> Result<u128, TrapCode> {
    let function = instance.get_func(&mut *store, &format!("{number}+{offset}")).unwrap();
    let mut results = vec![Val::I32(0); function.ty(&*store).results.len()];
    let index = u32::try_from(index).unwrap() as i32;
    match function.call(&mut *store, &[Val::I32(index)], &mut results) {
        Ok(()) => Ok(results.first().map_or(0, bits)),
        Err(error) => Err(trap_code(&error)),
    }
}

/// Each access, at each offset, with indices around all that can go wrong: it
/// works if all its bytes are within the memory, and traps otherwise.
fn probe_all_extremes(pages: u64, maximum: u64, accesses: &[Access]) {
    let size = pages * WASM_PAGE;
    let offsets = [0, 1, 15, 0xffff, 0x1_0000, 0x7fff_ffff, 0x8000_0000, 0xffff_fff0, 0xffff_ffff];
    let wat = accessors(accesses, pages, maximum, &offsets);
    let (mut store, instance) = spawn(&Engine::default(), &wat);
    let memory = instance.get_memory(&mut store, "memory").unwrap();
    if pages > 0 {
        let tail: Vec<u8> = (0..32u8).map(|i| i.wrapping_mul(7) ^ 0x81).collect();
        memory.write(&mut store, size as usize - 32, &tail).unwrap();
    }
    for (number, access) in accesses.iter().enumerate() {
        let width = access.width;
        for offset in offsets {
            // Addresses of the first byte: around the end, and the extremes.
            let ends = (0..=17).flat_map(|d| [(size + 1).checked_sub(d), Some(size + d)]);
            let addresses = ends
                .chain([width, width + 1].map(|back| size.checked_sub(back)))
                .chain([Some(0), Some(offset), Some(offset + 0xffff_ffff)])
                .chain([Some(offset + 0x8000_0000), Some(offset + 0x7fff_ffff)])
                .flatten();
            for address in addresses {
                let Some(index) = address.checked_sub(offset).filter(|i| *i <= 0xffff_ffff) else {
                    continue;
                };
                let what = || format!("{} of {index:#x} + {offset:#x}", access.name);
                let inside = address + width <= size;
                let bytes = inside.then(|| {
                    let all = memory.data(&store);
                    all[address as usize..][..width as usize].to_vec()
                });
                let found = run(&mut store, instance, number, index, offset);
                match bytes {
                    None => assert_eq!(found, Err(TrapCode::MemoryOutOfBounds), "{}", what()),
                    Some(_) if access.stores => {
                        assert_eq!(found, Ok(0), "{}", what());
                        let start = address as usize;
                        let written = &memory.data(&store)[start..start + width as usize];
                        assert!(written.iter().all(|byte| *byte == 0xff), "{}", what());
                    }
                    Some(bytes) => assert_eq!(found, Ok(access.value(&bytes)), "{}", what()),
                }
            }
        }
    }
}

#[test]
fn every_load_traps_outside_an_empty_memory() {
    probe_all_extremes(0, 0, &loads());
}

#[test]
fn every_load_reads_the_last_bytes_of_a_page_and_traps_beyond() {
    probe_all_extremes(1, 1, &loads());
}

#[test]
fn every_load_reads_the_last_bytes_of_a_memory_that_could_grow_and_traps_beyond() {
    probe_all_extremes(3, 65536, &loads());
}

#[test]
fn every_store_traps_outside_an_empty_memory() {
    probe_all_extremes(0, 65536, &stores());
}

#[test]
fn every_store_writes_the_last_bytes_of_a_page_and_traps_beyond() {
    probe_all_extremes(1, 1, &stores());
}

#[test]
fn every_access_ends_at_four_gigabytes() {
    let mut all = loads();
    all.extend(stores());
    probe_all_extremes(65536, 65536, &all);
}

#[test]
fn a_store_that_traps_half_way_writes_nothing() {
    let wat = accessors(&stores(), 1, 1, &[0]);
    let (mut store, instance) = spawn(&Engine::default(), &wat);
    let memory = instance.get_memory(&mut store, "memory").unwrap();
    for (number, access) in stores().iter().enumerate() {
        for inside in 1..access.width {
            let found = run(&mut store, instance, number, WASM_PAGE - inside, 0);
            assert_eq!(found, Err(TrapCode::MemoryOutOfBounds), "{}", access.name);
            let tail = &memory.data(&store)[WASM_PAGE as usize - 16..];
            assert_eq!(tail, [0; 16], "{}, {inside} bytes inside", access.name);
        }
    }
}

#[test]
fn bulk_operations_trap_at_every_extreme() {
    let (mut store, instance) = spawn(
        &Engine::default(),
        r#"(module (memory 1 1) (data $d "0123456789")
            (func (export "fill") (param i32 i32 i32)
                (memory.fill (local.get 0) (local.get 1) (local.get 2)))
            (func (export "copy") (param i32 i32 i32)
                (memory.copy (local.get 0) (local.get 1) (local.get 2)))
            (func (export "init") (param i32 i32 i32)
                (memory.init $d (local.get 0) (local.get 1) (local.get 2))))"#,
    );
    let extremes = [0, 1, 9, 10, 11, 0xfffe, 0xffff, 0x1_0000, 0x1_0001, 0x8000_0000, u32::MAX];
    for name in ["fill", "copy", "init"] {
        let function = instance.get_typed_func::<(u32, u32, u32), ()>(&mut store, name).unwrap();
        for a in extremes {
            for b in extremes {
                for length in extremes {
                    let fits = |start: u32, size: u64| u64::from(start) + u64::from(length) <= size;
                    let source = match name {
                        "fill" => true,
                        "copy" => fits(b, WASM_PAGE),
                        _ => fits(b, 10),
                    };
                    let expected = fits(a, WASM_PAGE) && source;
                    let found = function.call(&mut store, (a, b, length));
                    assert_eq!(found.is_ok(), expected, "{name} {a:#x} {b:#x} {length:#x}");
                    if let Err(error) = found {
                        assert_eq!(trap_code(&error), TrapCode::MemoryOutOfBounds);
                    }
                }
            }
        }
    }
}

#[test]
fn table_accesses_trap_at_every_extreme() {
    let (mut store, instance) = spawn(
        &Engine::default(),
        r#"(module (table 10 20 funcref) (elem (i32.const 0) func $f) (func $f)
            (func (export "get") (param i32) (drop (table.get (local.get 0))))
            (func (export "set") (param i32) (table.set (local.get 0) (ref.func $f)))
            (func (export "call") (param i32) (call_indirect (local.get 0))))"#,
    );
    for name in ["get", "set", "call"] {
        let function = instance.get_typed_func::<u32, ()>(&mut store, name).unwrap();
        function.call(&mut store, 0).unwrap();
        for index in [10, 11, 19, 20, 65535, 65536, 0x1fff_ffff, 0x7fff_ffff, u32::MAX] {
            let error = function.call(&mut store, index).unwrap_err();
            assert_eq!(trap_code(&error), TrapCode::TableOutOfBounds, "{name} {index:#x}");
        }
    }
}
