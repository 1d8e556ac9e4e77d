//! LAYOUT.md's table of zones is what the kernel maps for a live instance.

use std::fs;
use std::path::Path;

use pagefork::{Engine, Instance, Module, Store};
use pagefork_compiler::{CompileOptions, compile};
use pagefork_pages::procmaps;

/// A row of the table: zone, protection, kernel map.
struct Zone {
    name: String,
    protection: String,
    map: String,
}

/// The rows of the table whose first column is headed so.
fn documented_zones(head: &str) -> Vec<Zone> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../LAYOUT.md");
    let text = fs::read_to_string(path).unwrap();
    let table = text.split(&format!("| {head} |")).nth(1).expect("LAYOUT.md has the table");
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        Zone { name: cells[1].into(), protection: cells[3].into(), map: cells[4].into() }
    })
    .collect()
}

#[test]
fn the_documented_zones_are_the_kernels_maps() {
    let wasm = wat::parse_str(
        r#"(module (memory (export "memory") 2) (data (i32.const 0) "image")
            (tag) (table 10 funcref) (elem (i32.const 0) 0) (func))"#,
    )
    .unwrap();
    let layout = compile(&wasm, &CompileOptions::default()).unwrap().layout;

    // What the table says, a map a line: neighbours that share a map are one.
    let zones = documented_zones("zone");
    let ends = [
        layout.stack.start,
        layout.stack.end,
        layout.link.end,
        layout.exceptions.end,
        layout.image_start,
        layout.base,
        layout.base + 4096,
        layout.base + 2 * 65536,
        layout.size,
    ];
    assert_eq!(zones.len(), ends.len(), "the table has a row for each zone");
    let mut expected: Vec<(u64, bool, String)> = Vec::new();
    for (zone, end) in zones.iter().zip(ends) {
        let writable = match zone.protection.as_str() {
            "none" => false,
            "read-write" => true,
            other => panic!("{}: what is the protection {other:?}?", zone.name),
        };
        if zone.map.starts_with("the same") {
            expected.last_mut().unwrap().0 = end;
        } else {
            expected.push((end, writable, zone.map.clone()));
        }
    }
    assert_eq!(expected.len(), 5, "four maps, and the guard shared with the neighbour below");

    let engine = Engine::default();
    let module = Module::new(&engine, &wasm).unwrap();
    let mut store = Store::new(&engine, ());
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    let memory = instance.get_memory(&mut store, "memory").unwrap();
    let base = memory.data(&store).as_ptr() as u64;
    let start = base - layout.base;

    let maps = procmaps::read().unwrap();
    let mut at = start;
    for (end, writable, what) in expected {
        let map = maps.iter().find(|map| map.range.contains(&at)).expect("a map");
        assert_eq!((map.read, map.write, map.execute), (writable, writable, false), "{what}");
        if writable {
            assert_eq!(map.range, at..start + end, "{what}");
            let of_image = map.name.contains("pagefork");
            assert_eq!(of_image, what.contains("image"), "{what}: {}", map.name);
        } else {
            assert!(map.range.end >= start + end, "{what}");
        }
        at = start + end;
    }
}

#[test]
fn the_documented_parts_of_further_memories_are_the_kernels_maps() {
    let wasm = wat::parse_str(
        r#"(module (memory (export "memory") 1) (memory 2) (memory i64 2 5) (memory 2)
            (data (memory 1) (i32.const 0) "image") (data (memory 2) (i64.const 0) "image"))"#,
    )
    .unwrap();
    let layout = compile(&wasm, &CompileOptions::default()).unwrap().layout;
    let [contents, rest, beyond] = &documented_zones("part of a further memory")[..] else {
        panic!("a further memory has three parts")
    };
    for (zone, protection) in [(contents, "read-write"), (rest, "read-write"), (beyond, "none")] {
        assert_eq!(zone.protection, protection, "{}", zone.name);
    }

    let engine = Engine::default();
    let module = Module::new(&engine, &wasm).unwrap();
    let mut store = Store::new(&engine, ());
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    let memory = instance.get_memory(&mut store, "memory").unwrap();
    let base = memory.data(&store).as_ptr() as u64;
    let maps = procmaps::read().unwrap();
    for (place, image) in layout.memories.iter().skip(1).zip([true, true, false]) {
        let start = base + place.offset;
        let map = |at| maps.iter().find(|map| map.range.contains(&at)).expect("a map");
        let mut at = start;
        if image {
            let of_image = map(at);
            assert_eq!(of_image.range, start..start + 4096, "{}", contents.name);
            assert!(of_image.write && of_image.name.contains("pagefork"), "{}", contents.map);
            at += 4096;
        }
        let anonymous = map(at);
        assert_eq!(anonymous.range, at..start + 2 * 65536, "{}", rest.name);
        assert!(anonymous.write && anonymous.name.is_empty(), "{}", rest.map);
        let guard = map(start + 2 * 65536);
        assert!(!guard.read && !guard.write, "{}", beyond.name);
        assert!(guard.range.end >= base + place.end(), "{}", beyond.map);
    }
}
