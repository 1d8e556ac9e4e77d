//! Core dumps in the format of WebAssembly's tool conventions: a module whose
//! custom sections describe modules, instances and frames, and whose memories and
//! globals hold what the instances' held.

use std::collections::{HashMap, HashSet};

use pagefork_layout::module::{GlobalType, HeapType, MemoryType, ValType};
use pagefork_layout::page::{PAGE_SIZE, WASM_PAGE_SIZE};
use wasm_encoder::{
    ConstExpr, CoreDumpInstancesSection, CoreDumpModulesSection, CoreDumpSection,
    CoreDumpStackSection, CoreDumpValue, DataSection, GlobalSection, MemorySection,
};

use crate::base::frames::WasmBacktrace;
use crate::store::group::{Entity, InstanceData, StoreGroup};

/// See [`Store::core_dump`](crate::Store::core_dump).
pub(crate) fn write(store: &StoreGroup, name: &str, backtrace: &WasmBacktrace) -> Vec<u8> {
    let mut contents = Contents::default();
    let mut modules = CoreDumpModulesSection::new();
    let mut instances = CoreDumpInstancesSection::new();
    for (ordinal, instance) in present(store) {
        let (module, info) = (&instance.module, instance.module.info());
        modules.module(module.name().unwrap_or(""));
        let memories: Vec<u32> = (0..info.memories.len() as u32)
            .map(|index| contents.memory(store, store.memory(ordinal, index)))
            .collect();
        let globals: Vec<u32> = (0..info.globals.len() as u32)
            .map(|index| contents.global(store, store.global(ordinal, index)))
            .collect();
        instances.instance(ordinal - 1, memories, globals);
    }

    let mut stack = CoreDumpStackSection::new("main");
    for frame in backtrace.frames() {
        let offset = frame.wasm_offset().unwrap_or(0);
        let no_values = || std::iter::empty::<CoreDumpValue>();
        let instance = frame.instance - 1;
        stack.frame(instance, frame.function_index(), offset, no_values(), no_values());
    }

    let mut dump = wasm_encoder::Module::new();
    dump.section(&CoreDumpSection::new(name));
    dump.section(&modules);
    dump.section(&contents.memories);
    dump.section(&contents.globals);
    dump.section(&instances);
    dump.section(&stack);
    dump.section(&contents.data);
    dump.finish()
}

/// The instances with their ordinals; none after a reset that has failed, when pages may not be
/// mapped.
fn present(store: &StoreGroup) -> impl Iterator<Item = (u32, &InstanceData)> {
    let instances = if store.is_broken() { &[][..] } else { &store.instances };
    (1..).zip(instances)
}

/// The memories of the store's instances, each once.
pub(crate) fn memories(store: &StoreGroup) -> Vec<Entity> {
    each_once(present(store).flat_map(|(ordinal, instance)| {
        let count = instance.module.info().memories.len() as u32;
        (0..count).map(move |index| store.memory(ordinal, index))
    }))
}

/// The globals of the store's instances, each once.
pub(crate) fn globals(store: &StoreGroup) -> Vec<Entity> {
    each_once(present(store).flat_map(|(ordinal, instance)| {
        let count = instance.module.info().globals.len() as u32;
        (0..count).map(move |index| store.global(ordinal, index))
    }))
}

fn each_once(entities: impl Iterator<Item = Entity>) -> Vec<Entity> {
    let mut seen = HashSet::new();
    entities.filter(|entity| seen.insert(*entity)).collect()
}

/// The memories and globals of a dump; what several instances share is there once.
#[derive(Default)]
struct Contents {
    memories: MemorySection,
    globals: GlobalSection,
    data: DataSection,
    known_memories: HashMap<(u32, u32), u32>,
    known_globals: HashMap<(u32, u32), u32>,
}

impl Contents {
    fn memory(&mut self, store: &StoreGroup, entity: Entity) -> u32 {
        let next = self.known_memories.len() as u32;
        let known = *self.known_memories.entry((entity.ordinal, entity.own_index)).or_insert(next);
        if known != next {
            return known;
        }
        let MemoryType { minimum, maximum, memory64 } = store.memory_type(entity);
        self.memories.memory(wasm_encoder::MemoryType {
            minimum,
            maximum,
            memory64,
            shared: false,
            page_size_log2: None,
        });
        let (start, size) = store.memory_bytes(entity);
        // What does not come is not in the dump.
        let size = store.wait_for(entity, 0..size as u64).map_or(0, |()| size);
        // SAFETY: the bytes are accessible, and no guest runs while the store is
        // borrowed.
        let bytes = unsafe { std::slice::from_raw_parts(start.cast_const(), size) };
        for (offset, run) in runs(bytes) {
            let offset = match memory64 {
                true => ConstExpr::i64_const(offset as i64),
                false => ConstExpr::i32_const(offset as u32 as i32),
            };
            self.data.active(next, &offset, run.iter().copied());
        }
        next
    }

    fn global(&mut self, store: &StoreGroup, entity: Entity) -> u32 {
        let next = self.known_globals.len() as u32;
        let known = *self.known_globals.entry((entity.ordinal, entity.own_index)).or_insert(next);
        if known != next {
            return known;
        }
        let GlobalType { content, mutable } = store.global_type(entity);
        let cell = store.global_cell(entity);
        use wasm_encoder::{HeapType as Heap, ValType as Val};
        const EXN: Heap = Heap::Abstract { shared: false, ty: wasm_encoder::AbstractHeapType::Exn };
        let (val_type, value) = match content {
            ValType::I32 => (Val::I32, ConstExpr::i32_const(cell.low as i32)),
            ValType::I64 => (Val::I64, ConstExpr::i64_const(cell.low as i64)),
            ValType::F32 => {
                (Val::F32, ConstExpr::f32_const(f32::from_bits(cell.low as u32).into()))
            }
            ValType::F64 => (Val::F64, ConstExpr::f64_const(f64::from_bits(cell.low).into())),
            ValType::V128 => (Val::V128, ConstExpr::v128_const(cell.u128() as i128)),
            // References mean nothing outside the store.
            ValType::Ref(ty) => match ty.heap.top() {
                HeapType::Extern => (Val::EXTERNREF, ConstExpr::ref_null(Heap::EXTERN)),
                HeapType::Exn => (Val::EXNREF, ConstExpr::ref_null(EXN)),
                _ => (Val::FUNCREF, ConstExpr::ref_null(Heap::FUNC)),
            },
        };
        let ty = wasm_encoder::GlobalType { val_type, mutable, shared: false };
        self.globals.global(ty, &value);
        next
    }
}

/// Runs of host pages that are not all zero: offset and bytes, a wasm page long
/// at most.
fn runs(bytes: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let is_zero = |page: &[u8]| page.iter().all(|byte| *byte == 0);
    (0..).step_by(WASM_PAGE_SIZE as usize).zip(bytes.chunks(WASM_PAGE_SIZE as usize)).filter_map(
        move |(start, chunk)| {
            let pages = || chunk.chunks(PAGE_SIZE as usize);
            let first = pages().position(|page| !is_zero(page))?;
            let end = pages().rposition(|page| !is_zero(page))? + 1;
            let range = first * PAGE_SIZE as usize..end * PAGE_SIZE as usize;
            Some((start + range.start, &chunk[range]))
        },
    )
}
