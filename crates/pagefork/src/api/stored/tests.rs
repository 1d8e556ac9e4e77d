//! What is recorded is what was; what is changed of it is refused, or harmless.

use std::sync::Arc;

use pagefork_image::{ImageStore, SecretKey, TrustedKeys};
use pagefork_layout::exception::{UNIT, block, zone};
use pagefork_layout::module::{GlobalType, HeapType, Item, MemoryType, RefType, ValType};
use pagefork_layout::reference::{FuncRef, HOST_ORDINAL};
use pagefork_layout::slot::SlotLayout;
use pagefork_layout::state::{self, save};
use pagefork_pages::{DeltaTracker, StrategyConfig};

use super::fixture::*;
use super::{LoadOptions, SaveOptions};
use crate::api::instance::Instance;
use crate::api::linker::Linker;
use crate::api::snapshot::Snapshot;
use crate::api::store::Store;
use crate::base::error::SnapshotError;
use crate::code::config::Config;
use crate::code::engine::Engine;
use crate::code::host_entity::HostEntity;
use crate::code::module::Module;
use crate::store::record::{
    CallRecord, FrameRecordWord, ImportsRecord, InstanceOrigin, StoreRecord,
};
use crate::store::value::Val;

/// Ordinals in the fixture: a memory and a global of the host, the library, and what imports it.
const OF_HOST: u32 = 1;
const GLOBAL: u32 = 2;
const LIBRARY: u32 = 3;
const MAIN: u32 = 4;

fn layout(fixture: &Fixture, ordinal: u32) -> SlotLayout {
    fixture.snapshot.frozen().instances[ordinal as usize - 1].module.layout().clone()
}

/// Where an element lies of a table that the main module defines: offset from the base.
fn element(fixture: &Fixture, table: u32, index: u64) -> i64 {
    layout(fixture, MAIN).table_element(table, index)
}

fn global(fixture: &Fixture, index: u32) -> i64 {
    layout(fixture, MAIN).state_parts.global(index).into()
}

/// The number of a function of the main module by its export.
fn exported(fixture: &Fixture, name: &str) -> u32 {
    match fixture.modules[1].export(name) {
        Some(Item::Func(index)) => index,
        other => panic!("{name}: {other:?}"),
    }
}

#[test]
fn what_was_recorded_goes_on_as_the_original() {
    for suspended in [false, true] {
        let fixture = Fixture::new(suspended);
        let (record, pages) = (fixture.record(), fixture.pages());
        let pre = fixture.load(&record, &pages, suspended).unwrap();
        for _ in 0..3 {
            let (mut store, instance) = pre.spawn(100).unwrap();
            store.set_fuel(1 << 40).unwrap();
            assert_eq!(finish(&mut store, instance, suspended).unwrap(), ANSWER, "{suspended}");
            let global = instance.get_global(&mut store, "value").unwrap();
            let Val::ExternRef(Some(value)) = global.get(&mut store) else { panic!() };
            let text = value.data(&store).unwrap().downcast_ref::<String>();
            assert_eq!(text.map(String::as_str), Some("a value"));
        }
    }
}

#[test]
fn what_is_made_of_a_record_is_recorded_as_the_same() {
    for suspended in [false, true] {
        let fixture = Fixture::new(suspended);
        let record = fixture.record();
        let pre = fixture.load(&record, &fixture.pages(), suspended).unwrap();
        let (mut store, _) = pre.spawn(0).unwrap();
        let again = store
            .snapshot_with(|value| {
                let text = value.downcast_ref::<String>().expect("there are no others");
                Ok(std::sync::Arc::new(text.clone()))
            })
            .unwrap();
        let fixture = Fixture { snapshot: again, ..fixture };
        let again = fixture.record();
        assert!(again == record, "{suspended}: {again:#?} {record:#?}");
    }
}

#[test]
fn frames_are_taken_from_who_is_trusted_alone() {
    let fixture = Fixture::new(true);
    let error = fixture.load(&fixture.record(), &fixture.pages(), false).map(|_| ()).unwrap_err();
    assert_eq!(error.downcast_ref(), Some(&SnapshotError::NotTrusted));
}

#[test]
fn headers_that_are_not_what_the_module_says_are_refused() {
    let fixture = Fixture::new(false);
    for (offset, name) in [
        (state::LINK_OFFSET, "the link zone"),
        (state::CELLS_OFFSET, "the cells"),
        (state::ABI_OFFSET, "the ABI"),
    ] {
        for ordinal in [OF_HOST, GLOBAL, LIBRARY, MAIN] {
            for byte in 0..4 {
                let why = fixture.refused(|_, pages| {
                    pages.change(ordinal, i64::from(offset) + byte, &[0x5a]);
                });
                assert!(
                    why.contains(name) && why.contains(&format!("instance {ordinal} ")),
                    "{why}"
                );
            }
        }
    }
}

#[test]
fn sizes_and_lengths_that_cannot_be_are_refused() {
    let fixture = Fixture::new(false);
    let parts = layout(&fixture, MAIN).state_parts;
    // What the state says is not what is recorded.
    for size in [0, 65_536, 2 * 65_536 + 1, u64::MAX] {
        let why = fixture.refused(|_, pages| {
            pages.change_word(MAIN, parts.memory_size(0).into(), size);
        });
        assert!(why.contains("memory 0"), "{why}");
    }
    for (table, length) in [(0, 8), (0, u64::MAX), (1, 3), (2, 1)] {
        let why = fixture.refused(|_, pages| {
            pages.change_word(MAIN, parts.table_length(table).into(), length);
        });
        assert!(why.contains(&format!("table {table}")), "{why}");
    }
    // Both say what cannot be: beyond the maximum, below what the module begins with, half pages.
    for size in [5 * 65_536, 0, 65_536 + 4096, !65_535] {
        let why = fixture.refused(|record, pages| {
            record.instances[MAIN as usize - 1].memory_sizes[0] = size;
            pages.change_word(MAIN, parts.memory_size(0).into(), size);
        });
        assert!(why.contains("a memory of a size"), "{why}");
    }
    for (table, length) in [(0, 3), (0, 21), (1, 1), (0, u64::MAX)] {
        let why = fixture.refused(|record, pages| {
            record.instances[MAIN as usize - 1].table_lengths[table as usize] = length;
            pages.change_word(MAIN, parts.table_length(table).into(), length);
        });
        assert!(why.contains("a table of a length"), "{why}");
    }
    let why = fixture.refused(|record, _| {
        record.instances[MAIN as usize - 1].memory_sizes.pop();
    });
    assert!(why.contains("number of memories"), "{why}");
    let why =
        fixture.refused(|record, _| record.instances[MAIN as usize - 1].table_lengths.push(0));
    assert!(why.contains("a table of a length"), "{why}");
}

#[test]
fn segments_are_dropped_or_not() {
    let fixture = Fixture::new(false);
    let dropped = i64::from(layout(&fixture, MAIN).state_parts.dropped);
    for segment in 0..3 {
        for byte in [2, 0x80, 0xff] {
            let why = fixture.refused(|_, pages| pages.change(MAIN, dropped + segment, &[byte]));
            assert!(why.contains("segment"), "{why}");
        }
    }
}

/// A reference to a function in a place of the main module, and why it is refused.
fn refused_function(fixture: &Fixture, place: i64, word: u64) -> String {
    fixture.refused(|_, pages| pages.change_word(MAIN, place, word))
}

#[test]
fn references_to_functions_that_are_not_there_are_refused() {
    let fixture = Fixture::new(false);
    let functions = fixture.modules[1].info().functions.len() as u32;
    let words = [
        FuncRef::new(0, functions),
        FuncRef::new(0, u32::MAX - 1),
        FuncRef::new(MAIN, 3),
        FuncRef::new(LIBRARY, 9),
        FuncRef::new(OF_HOST, 0),
        FuncRef::new(MAIN + 1, 0),
        FuncRef::new(HOST_ORDINAL - 1, 0),
        FuncRef::new(HOST_ORDINAL, 2),
        FuncRef::new(HOST_ORDINAL, u32::MAX - 1),
        // Null with something in it.
        FuncRef(1 << 32),
        FuncRef(u64::from(HOST_ORDINAL) << 32),
    ];
    for word in words {
        for place in [element(&fixture, 0, 0), element(&fixture, 0, 6), global(&fixture, 0)] {
            let why = refused_function(&fixture, place, word.0);
            assert!(why.contains("refers to a function"), "{word:x?}: {why}");
        }
    }
    // In another instance the same function is named otherwise.
    let table = layout(&fixture, LIBRARY).table_element(0, 0);
    let why = fixture.refused(|_, pages| {
        pages.change_word(LIBRARY, table, FuncRef::new(LIBRARY, 0).0);
    });
    assert!(why.contains("of its own"), "{why}");
}

#[test]
fn references_to_functions_of_another_type_are_refused() {
    let fixture = Fixture::new(false);
    let run = exported(&fixture, "run");
    for place in [element(&fixture, 1, 0), global(&fixture, 1)] {
        for word in [FuncRef::new(0, run), FuncRef::new(HOST_ORDINAL, 0), FuncRef::new(LIBRARY, 0)]
        {
            let why = refused_function(&fixture, place, word.0);
            assert!(why.contains("another type"), "{word:x?}: {why}");
        }
    }
    let why = refused_function(&fixture, global(&fixture, 1), 0);
    assert!(why.contains("null"), "{why}");
}

/// They have no entry, so that the host could not call what it finds.
#[test]
fn references_to_functions_that_no_reference_can_name_are_refused() {
    let fixture = Fixture::new(false);
    let info = fixture.modules[0].info();
    let hidden = info.functions.len() as u32 - 1;
    assert!(fixture.modules[0].code().entries[info.functions[hidden as usize] as usize].is_none());
    let word = FuncRef::new(LIBRARY, hidden);
    let why = refused_function(&fixture, element(&fixture, 0, 0), word.0);
    assert!(why.contains("nothing can refer to"), "{why}");
}

#[test]
fn handles_of_host_values_that_are_not_there_are_refused() {
    let fixture = Fixture::new(false);
    let handle = fixture.record().references[0].handle;
    for word in [handle + 1, handle | 1 << 32, handle << 32, u64::MAX] {
        for place in [element(&fixture, 2, 0), global(&fixture, 2)] {
            let why = refused_function(&fixture, place, word);
            assert!(why.contains("value of the host"), "{word:#x}: {why}");
        }
    }
    let why = fixture.refused(|record, _| record.references.clear());
    assert!(why.contains("value of the host"), "{why}");
    for handle in [0, 1 << 32, u64::from(u32::MAX), 1 << 21] {
        let why = fixture.refused(|record, _| {
            let mut other = record.references[0].clone();
            other.handle = handle;
            record.references.push(other);
        });
        assert!(why.contains("number"), "{handle:#x}: {why}");
    }
    let why = fixture.refused(|record, _| record.references.push(record.references[0].clone()));
    assert!(why.contains("one number"), "{why}");
}

#[test]
fn references_to_exceptions_that_are_not_there_are_refused() {
    let fixture = Fixture::new(false);
    let mut present = [0; 8];
    let frozen = fixture.snapshot.frozen();
    let image = &frozen.instances[MAIN as usize - 1].image;
    let base = layout(&fixture, MAIN).base;
    let place = element(&fixture, 3, 0);
    image.read(base.checked_add_signed(place).unwrap(), &mut present).unwrap();
    let present = u64::from_le_bytes(present);
    assert_ne!(present, 0, "the fixture keeps one");
    for word in [
        present + 1,
        present + (1 << 16),
        present | u64::from(LIBRARY) << 32,
        present | u64::from(MAIN) << 32,
        present | 99 << 32,
        present & 0xffff,
        u64::MAX,
    ] {
        let why = refused_function(&fixture, place, word);
        assert!(why.contains("refers to an exception"), "{word:#x}: {why}");
    }
}

#[test]
fn zones_of_exceptions_are_checked_block_by_block() {
    let fixture = Fixture::new(false);
    let zone_of = |record: &StoreRecord| record.instances[MAIN as usize - 1].exceptions.clone();
    let bytes = zone_of(&fixture.record());
    assert!(bytes.len() as u64 >= 4 * UNIT, "the fixture keeps one");
    let refused = |change: &dyn Fn(&mut Vec<u8>)| {
        fixture.refused(|record, _| change(&mut record.instances[MAIN as usize - 1].exceptions))
    };
    let put = |at: u32, value: &[u8]| {
        refused(&|zone: &mut Vec<u8>| zone[at as usize..][..value.len()].copy_from_slice(value))
    };
    let first = UNIT as u32;
    for end in [0u32, 1, 3, 5, 1 << 16, u32::MAX] {
        assert!(put(zone::END, &end.to_le_bytes()).contains("exceptions"), "{end}");
    }
    assert!(put(zone::CURSOR, &2u32.to_le_bytes()).contains("looks for room"));
    for units in [0u16, 1, 2, 4, u16::MAX] {
        let why = put(first + block::UNITS, &units.to_le_bytes());
        assert!(why.contains("exception"), "{units}: {why}");
    }
    assert!(put(first + block::STAMP, &[0, 0]).contains("refers to an exception"));
    assert!(put(first + block::FLAGS, &[4]).contains("unknown flags"));
    // Whoever catches it would free it under the reference.
    assert!(put(first + block::FLAGS, &[0]).contains("refers to an exception"));
    for ordinal in [MAIN, OF_HOST, 99, u32::MAX] {
        let why = put(first + block::TAG_ORDINAL, &ordinal.to_le_bytes());
        assert!(why.contains("tag"), "{ordinal}: {why}");
    }
    for index in [1u32, 7, u32::MAX] {
        let why = put(first + block::TAG_INDEX, &index.to_le_bytes());
        assert!(why.contains("tag"), "{index}: {why}");
    }
    // A tag with another payload.
    let why = refused(&|zone: &mut Vec<u8>| {
        zone[(first + block::TAG_ORDINAL) as usize..][..8].copy_from_slice(&[0; 8]);
    });
    assert!(why.contains("another payload"), "{why}");
    // The function in the payload.
    let payload = 3 * first;
    for word in [FuncRef::new(0, 999), FuncRef::new(MAIN, 3), FuncRef::new(HOST_ORDINAL, 7)] {
        let why = put(payload, &word.0.to_le_bytes());
        assert!(why.contains("refers to a function"), "{why}");
    }
    for length in [0, 1, 15, 16, 17, bytes.len() - 16, bytes.len() + 16, bytes.len() + 1] {
        let why = refused(&|zone: &mut Vec<u8>| zone.resize(length, 0));
        assert!(why.contains("exception"), "{length}: {why}");
    }
    let why = fixture.refused(|record, _| record.instances[0].exceptions = vec![0; 16]);
    assert!(why.contains("no room"), "{why}");
}

#[test]
fn imports_that_an_instance_may_not_have_are_refused() {
    let fixture = Fixture::new(false);
    let main = MAIN as usize - 1;
    let refused = |change: &dyn Fn(&mut ImportsRecord)| {
        fixture.refused(|record, _| change(&mut record.instances[main].imports))
    };
    for function in [
        FuncRef::new(HOST_ORDINAL, 1),
        FuncRef::new(HOST_ORDINAL, 2),
        FuncRef::new(LIBRARY, 0),
        FuncRef::new(LIBRARY, 77),
        FuncRef::new(MAIN, exported(&fixture, "run")),
        FuncRef::new(0, 0),
        FuncRef::NULL,
        FuncRef(u64::MAX),
    ] {
        // The first one takes a number and gives one; so does `twice`, which has the same type.
        if function == FuncRef::new(LIBRARY, 0) {
            continue;
        }
        let why = refused(&|imports| imports.functions[0] = function.0);
        assert!(why.contains("imports something else"), "{function:x?}: {why}");
    }
    let entities = [(0, 0), (MAIN, 0), (99, 0), (LIBRARY, 1), (LIBRARY, u32::MAX), (GLOBAL, 0)];
    for entity in entities {
        let why = refused(&|imports| imports.tables[0] = entity);
        assert!(why.contains("imports something else"), "table {entity:?}: {why}");
        let why = refused(&|imports| imports.tags[0] = entity);
        assert!(why.contains("imports something else"), "tag {entity:?}: {why}");
        let why = refused(&|imports| imports.memories[0] = entity);
        assert!(why.contains("imports something else"), "memory {entity:?}: {why}");
        let why = refused(&|imports| imports.globals[0] = entity);
        assert!(why.contains("imports something else"), "global {entity:?}: {why}");
    }
    // The memory has no maximum, where one is wanted.
    let why = refused(&|imports| imports.memories[0] = (OF_HOST, 0));
    assert!(why.contains("imports something else"), "{why}");
    let lists: [&dyn Fn(&mut ImportsRecord); 4] = [
        &|imports| imports.functions.truncate(1),
        &|imports| imports.tables.push((LIBRARY, 0)),
        &|imports| imports.memories.clear(),
        &|imports| imports.globals.clear(),
    ];
    for change in lists {
        let why = refused(change);
        assert!(why.contains("another number of things"), "{why}");
    }
}

#[test]
fn layouts_and_instances_that_do_not_fit_are_refused() {
    let fixture = Fixture::new(false);
    let words = fixture.record().instances[MAIN as usize - 1].layout.len();
    for word in 0..words {
        let why =
            fixture.refused(|record, _| record.instances[MAIN as usize - 1].layout[word] ^= 8);
        assert!(why.contains("laid out otherwise"), "{why}");
    }
    for main in [0, 1, LIBRARY, MAIN + 1, u32::MAX] {
        let why = fixture.refused(|record, _| record.main = main);
        assert!(why.contains("returned"), "{main}: {why}");
    }
    let host = |entity| {
        fixture.refused(|record, _| record.instances[0].origin = InstanceOrigin::Host(entity))
    };
    let memory = |minimum, maximum| HostEntity::Memory(MemoryType::new(minimum, maximum));
    for entity in [memory(2, Some(1)), memory(1 << 20, None), memory(0, Some(1 << 20))] {
        let why = host(entity);
        assert!(why.contains("cannot be"), "{why}");
    }
    let concrete = RefType { nullable: true, heap: HeapType::Concrete(0) };
    let ty = GlobalType { content: ValType::Ref(concrete), mutable: true };
    assert!(host(HostEntity::Global(ty)).contains("cannot be"));
}

#[test]
fn registers_are_saved_where_a_guest_is_suspended_and_nowhere_else() {
    let fixture = Fixture::new(true);
    for ordinal in [OF_HOST, LIBRARY, MAIN] {
        let area = i64::from(layout(&fixture, ordinal).state_parts.save_area);
        for field in [save::KIND, save::SP, save::FP] {
            let why = fixture.refused(|_, pages| {
                pages.change(ordinal, area + i64::from(field), &[0x39]);
            });
            assert!(why.contains("registers") || why.contains("has saved"), "{ordinal}: {why}");
        }
    }
    let idle = Fixture::new(false);
    let area = i64::from(layout(&idle, MAIN).state_parts.save_area);
    let why = idle.refused(|_, pages| pages.change(MAIN, area + i64::from(save::CELLS), &[1]));
    assert!(why.contains("no guest is suspended"), "{why}");
}

/// The suspended guest of a record that was changed.
fn refused_call(fixture: &Fixture, change: impl FnOnce(&mut CallRecord)) -> String {
    fixture.refused(|record, _| change(record.call.as_mut().expect("a guest is suspended")))
}

#[test]
fn suspended_guests_in_places_that_are_not_there_are_refused() {
    let fixture = Fixture::new(true);
    for ordinal in [0, 99, u32::MAX, LIBRARY] {
        assert!(!refused_call(&fixture, |call| call.ordinal = ordinal).is_empty());
    }
    for ordinal in [0, 99, u32::MAX] {
        assert!(refused_call(&fixture, |call| call.stack_owner = ordinal).contains("stack"));
    }
    for kind in [0, 2, 3, u32::MAX] {
        let why = refused_call(&fixture, |call| call.kind = kind);
        assert!(why.contains("waits in nothing") || why.contains("cannot"), "{kind}: {why}");
    }
    for function in [0, FuncRef::new(HOST_ORDINAL, 0).0, FuncRef::new(MAIN, 999).0, 7, u64::MAX] {
        let why = refused_call(&fixture, |call| call.function = function);
        assert!(why.contains("entered by a function"), "{function:#x}: {why}");
    }
    for index in [2, u32::MAX] {
        let why = refused_call(&fixture, |call| call.host_function = Some(index));
        assert!(why.contains("function of the host"), "{why}");
    }
}

#[test]
fn return_addresses_that_are_no_call_sites_are_refused() {
    let fixture = Fixture::new(true);
    let frames = fixture.record().call.unwrap().frames;
    let returns =
        frames.iter().position(|frame| matches!(frame.word, FrameRecordWord::Return { .. }));
    let at = returns.expect("a guest's function called the host");
    let FrameRecordWord::Return { ordinal, piece, call_site } = frames[at].word else {
        unreachable!()
    };
    let others = [
        (ordinal, piece, call_site + 99),
        (ordinal, piece, u32::MAX),
        (ordinal, u32::MAX, call_site),
        (0, piece, call_site),
        (99, piece, call_site),
        (u32::MAX, piece, call_site),
        (OF_HOST, 0, 0),
    ];
    for (ordinal, piece, call_site) in others {
        let word = FrameRecordWord::Return { ordinal, piece, call_site };
        let why = refused_call(&fixture, |call| call.frames[at].word = word);
        assert!(why.contains("nothing was called"), "{word:?}: {why}");
    }
    let why = refused_call(&fixture, |call| call.frames[at].word = FrameRecordWord::ReturnToHost);
    assert!(why.contains("does not end"), "{why}");
}

#[test]
fn frame_pointers_that_do_not_rise_within_the_stack_are_refused() {
    let fixture = Fixture::new(true);
    let call = fixture.record().call.unwrap();
    let size = call.stack.len() as u32;
    let first = call.frames[0].place;
    for to in [first, first + 16, first - 8, 0, 8, 1, size, u32::MAX, u32::MAX - 7] {
        let word = FrameRecordWord::FramePointer(Some(to));
        let why = refused_call(&fixture, |call| call.frames[0].word = word);
        assert!(why.contains("rise") || why.contains("end"), "{to}: {why}");
    }
    let why =
        refused_call(&fixture, |call| call.frames[0].word = FrameRecordWord::FramePointer(None));
    assert!(why.contains("end"), "{why}");
    for place in [first + 8, first - 8, 0, 8, size + 8, u32::MAX, first + 1] {
        let why = refused_call(&fixture, |call| call.frames[0].place = place);
        assert!(why.contains("frame pointer"), "{place}: {why}");
    }
    for frames in 0..call.frames.len() {
        let why = refused_call(&fixture, |call| call.frames.truncate(frames));
        assert!(!why.is_empty(), "{frames}");
    }
    let why = refused_call(&fixture, |call| {
        call.frames.remove(1);
    });
    assert!(!why.is_empty());
}

#[test]
fn stacks_that_do_not_fit_are_refused() {
    let fixture = Fixture::new(true);
    let size = fixture.record().call.unwrap().stack.len();
    for length in [0, 8, 16, size - 8, size + 8, size + 1, 64 << 20] {
        let why = refused_call(&fixture, |call| call.stack.resize(length, 0));
        assert!(why.contains("stack") || why.contains("saved"), "{length}: {why}");
    }
}

/// Not all that was changed is wrong: what is accepted must run, or trap, and nothing else.
#[test]
fn every_byte_of_the_state_can_be_flipped() {
    let fixture = Fixture::new(false);
    let layouts = [LIBRARY, MAIN].map(|ordinal| (ordinal, layout(&fixture, ordinal)));
    let mut accepted = 0;
    for (ordinal, layout) in layouts {
        let lowest = layout.table_ends.iter().zip(&layout.table_capacities);
        let lowest = lowest.map(|(end, _)| i64::from(*end) - 8 * 7).min().unwrap();
        for offset in lowest..0 {
            let mut pages = fixture.pages();
            let mut byte = [0];
            let base = layout.base.checked_add_signed(offset).unwrap();
            let frozen = fixture.snapshot.frozen();
            if frozen.instances[ordinal as usize - 1].image.read(base, &mut byte).is_err() {
                continue;
            }
            pages.change(ordinal, offset, &[byte[0] ^ 1 << (offset & 7)]);
            let Ok(pre) = fixture.load(&fixture.record(), &pages, true) else { continue };
            accepted += 1;
            let (mut store, instance) = pre.spawn(100).unwrap();
            store.set_fuel(1 << 20).unwrap();
            let _ = finish(&mut store, instance, false);
        }
    }
    assert!(accepted > 100, "{accepted}");
}

#[test]
fn what_is_loaded_over_its_parent_is_the_same_and_shares_what_that_has() {
    let name = format!("pagefork-load-over-{}", std::process::id());
    let directory = std::env::temp_dir().join(name);
    let images = ImageStore::open(&directory).unwrap();
    let engine = Engine::default();
    let text = r#"(module (memory (export "memory") 40) (global (export "count") (mut i64) (i64.const 1)))"#;
    let module = Module::new(&engine, text).unwrap();
    let mut store = Store::new(&engine, ());
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    let memory = instance.get_memory(&mut store, "memory").unwrap();
    let count = instance.get_global(&mut store, "count").unwrap();
    for page in 0..600 {
        memory.write(&mut store, page * 4096, &[page as u8 | 1; 4096]).unwrap();
    }
    let first = store.snapshot().unwrap();
    let parent = first.save(&images, SaveOptions::new()).unwrap();
    memory.write(&mut store, 5 * 4096 + 7, b"later").unwrap();
    memory.write(&mut store, 6 * 4096, &[0; 4096]).unwrap();
    memory.write(&mut store, 630 * 4096, b"new").unwrap();
    count.set(&mut store, Val::I64(2)).unwrap();
    let expected = memory.data(&store).to_vec();
    let delta = store.snapshot().unwrap();
    let delta = delta.save(&images, SaveOptions::new().delta_of(&first)).unwrap();

    let linker = Linker::<()>::new(&engine);
    let load = |options| {
        let stored = images.load(delta).unwrap();
        Snapshot::load_stored(&linker, &images, stored, options).unwrap()
    };
    let plain = load(LoadOptions::new());
    let parent = Snapshot::load(&linker, &images, parent, LoadOptions::new()).unwrap();
    let over = load(LoadOptions::new().over(&parent));
    // That is not its parent.
    let beside = load(LoadOptions::new().over(&plain));
    let image = |snapshot: &Snapshot<()>| Arc::clone(&snapshot.frozen().instances[0].image);
    let is_over = |snapshot, parent| {
        image(snapshot).parent().is_some_and(|found| Arc::ptr_eq(found, &image(parent)))
    };
    assert!(is_over(&over, &parent) && !is_over(&beside, &plain));
    // As few as are otherwise, the state among them.
    assert!((3..=5).contains(&image(&over).own_pages().len()), "{:?}", image(&over).own_pages());
    for loaded in [plain, over, beside] {
        let (mut store, instance) = loaded.instance_pre().unwrap().spawn(()).unwrap();
        let memory = instance.get_memory(&mut store, "memory").unwrap();
        assert!(memory.data(&store) == expected);
        let count = instance.get_global(&mut store, "count").unwrap();
        assert!(matches!(count.get(&mut store), Val::I64(2)));
    }
    std::fs::remove_dir_all(directory).unwrap();
}

/// What moves is a branch of the state before, at both sides, however many pages are otherwise in all: else
/// all of the memory would be copied while its guest rests. Its pages stay where they have come to.
#[test]
fn what_moves_is_laid_over_the_state_before_however_much_has_changed() {
    let name = format!("pagefork-moved-over-{}", std::process::id());
    let directory = std::env::temp_dir().join(name);
    let images = ImageStore::open(&directory).unwrap();
    let mut config = Config::new();
    let deltas = DeltaTracker::Writes;
    config.strategies(StrategyConfig { deltas, ..StrategyConfig::default() });
    let engine = Engine::new(&config).unwrap();
    let module = Module::new(&engine, r#"(module (memory (export "memory") 250))"#).unwrap();
    let mut store = Store::new(&engine, ());
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    let memory = instance.get_memory(&mut store, "memory").unwrap();
    let write = |store: &mut Store<()>, pages: std::ops::Range<usize>, byte: u8| {
        for page in pages {
            memory.write(&mut *store, page * 4096, &[byte; 4096]).unwrap();
        }
    };
    write(&mut store, 0..4000, 1);
    let first = store.snapshot().unwrap();
    let keys = [SecretKey::from_seed([7; 32])];
    let full = first.save(&images, SaveOptions::new().sign_with(&keys)).unwrap();
    write(&mut store, 0..900, 2);
    let second = store.snapshot().unwrap();
    let parent = second.save(&images, SaveOptions::new().delta_of(&first).sign_with(&keys));
    let parent = images.load(parent.unwrap()).unwrap();
    write(&mut store, 1000..1900, 3);
    let last = store.snapshot_to_move().unwrap();
    let expected = memory.data(&store).to_vec();
    let image = |snapshot: &Snapshot<()>| Arc::clone(&snapshot.frozen().instances[0].image);
    let is_over = |snapshot, parent| {
        image(snapshot).parent().is_some_and(|found| Arc::ptr_eq(found, &image(parent)))
    };
    assert!(is_over(&last, &second), "the source copies all");
    assert!((900..905).contains(&image(&last).own_pages().len()));
    let save = SaveOptions::new().delta_of(&second).sign_with(&keys);
    let (_, bytes) = last.save_beside(&images, save).unwrap();

    let linker = Linker::<()>::new(&engine);
    let full = Snapshot::load(&linker, &images, full, LoadOptions::new()).unwrap();
    let options = LoadOptions::new().over(&full);
    let ahead = Snapshot::load_stored(&linker, &images, parent.clone(), options).unwrap();
    assert!(is_over(&ahead, &full));
    let keys = TrustedKeys::from_iter([keys[0].public()]);
    let delta = images.open_beside(Arc::clone(&bytes), &parent, &keys).unwrap();
    let holders = Arc::strong_count(&bytes);
    let options = LoadOptions::new().moved_over(&ahead);
    let moved = Snapshot::load_stored(&linker, &images, delta, options).unwrap();
    assert!(is_over(&moved, &ahead), "the target copies all");
    // Also of the pages below the memory, those alone that are otherwise.
    let own = image(&moved).own_pages().len();
    assert!((900..905).contains(&own), "{own} pages");
    assert!(Arc::strong_count(&bytes) >= holders + 900, "pages are held where they have come to");
    let (mut store, instance) = moved.instance_pre().unwrap().spawn(()).unwrap();
    let memory = instance.get_memory(&mut store, "memory").unwrap();
    assert!(memory.data(&store) == expected);
    // It goes on from there, and on.
    memory.write(&mut store, 1001 * 4096, b"more").unwrap();
    let next = store.snapshot().unwrap();
    let (mut store, instance) = next.instance_pre().unwrap().spawn(()).unwrap();
    let memory = instance.get_memory(&mut store, "memory").unwrap();
    assert_eq!(&memory.data(&store)[1001 * 4096..][..6], b"more\x03\x03");
    assert!(memory.data(&store)[1002 * 4096..] == expected[1002 * 4096..]);
    std::fs::remove_dir_all(directory).unwrap();
}
