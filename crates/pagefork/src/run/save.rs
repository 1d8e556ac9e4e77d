//! Captured stores as plain data: what is kept of them outside this process.

use std::any::Any;

use pagefork_layout::reference::FuncRef;
use pagefork_layout::slot::SlotLayout;

use crate::base::error::{Result, SnapshotError};
use crate::code::host_entity::{HostEntity, means_the_same_elsewhere};
use crate::code::module::Module;
use crate::store::frozen::{Frozen, FrozenCall, FrozenInstance};
use crate::store::group::{Entity, Imports};
use crate::store::host_func::HostFuncNames;
use crate::store::record::{
    CallRecord, FrameRecord, FrameRecordWord, HostFuncRecord, ImportsRecord, InstanceOrigin,
    InstanceRecord, ReferenceRecord, StoreRecord,
};
use crate::store::suspended::FrameWordKind;

/// References to values of the host have numbers below this in what is saved, so that what reads
/// it has a bound.
pub(crate) const REFERENCES_MAX: u32 = 1 << 20;

/// What the embedder says of a value of the host that guests hold a reference to.
pub(crate) type RecordReference<'a> = dyn FnMut(&(dyn Any + Send + Sync)) -> Result<Vec<u8>> + 'a;

/// What of a store the embedder has to say before it is plain data.
#[derive(Default)]
pub(crate) struct Naming<'a> {
    /// Names of functions of the host that no linker has defined, by their numbers.
    pub(crate) functions: Vec<(u32, HostFuncNames)>,
    pub(crate) reference: Option<&'a mut RecordReference<'a>>,
}

/// All of a captured store but its pages.
///
/// # Errors
/// [`SnapshotError`] if something of it means nothing outside this process; what the embedder's
/// hook fails with.
pub(crate) fn record(frozen: &Frozen, naming: &mut Naming<'_>) -> Result<StoreRecord> {
    let instances = frozen.instances.iter().map(record_instance).collect::<Result<_>>()?;
    let mut references = Vec::new();
    for (handle, value) in frozen.references.iter() {
        let hook = "SaveOptions::references";
        let save = naming.reference.as_mut().ok_or(SnapshotError::NoHook { hook })?;
        let number = handle as u32;
        if number > REFERENCES_MAX {
            return Err(SnapshotError::ReferenceNumber(number).into());
        }
        references.push(ReferenceRecord { handle, bytes: save(value)? });
    }
    Ok(StoreRecord {
        instances,
        main: frozen.main,
        host_functions: record_host_functions(frozen, &naming.functions)?,
        references,
        fuel: frozen.fuel,
        call: frozen.call.as_ref().map(|call| record_call(frozen, call)),
    })
}

fn record_host_functions(
    frozen: &Frozen,
    named: &[(u32, HostFuncNames)],
) -> Result<Vec<HostFuncRecord>> {
    let mut records = Vec::with_capacity(frozen.host_functions.len());
    for (number, function) in frozen.host_functions.iter().enumerate() {
        let by_embedder = named.iter().find(|(named, _)| *named as usize == number);
        let names = by_embedder.map(|(_, names)| names).or_else(|| function.names.get());
        let unnamed = || SnapshotError::UnnamedHostFunction { number, ty: function.ty.to_string() };
        let HostFuncNames { module, name } = names.ok_or_else(unnamed)?;
        let ty = means_the_same_elsewhere(&function.ty).then(|| (*function.ty).clone());
        // Frames may be about to call it, and nothing else says then that it is the same.
        if ty.is_none() && frozen.call.is_some() {
            let what = "a function of the host that a suspended guest knows";
            return Err(SnapshotError::TypeOfEngine { what, ty: function.ty.to_string() }.into());
        }
        records.push(HostFuncRecord { module: (**module).into(), name: (**name).into(), ty });
    }
    Ok(records)
}

fn record_instance(instance: &FrozenInstance) -> Result<InstanceRecord> {
    let module = &instance.module;
    Ok(InstanceRecord {
        origin: record_origin(module)?,
        layout: layout_words(module.layout()),
        memory_sizes: instance.sizes.iter().map(|size| size.initial).collect(),
        table_lengths: instance.table_lengths.clone(),
        imports: record_imports(&instance.imports),
        exceptions: instance.exceptions.to_vec(),
    })
}

fn record_origin(module: &Module) -> Result<InstanceOrigin> {
    if !module.is_of_host() {
        return Ok(InstanceOrigin::Module {
            name: module.name().unwrap_or_default().to_owned(),
            module: module.module_hash(),
            code: module.code_hash(),
        });
    }
    let entity = HostEntity::of(module.info()).expect("the host makes one entity a module");
    match entity.type_of_engine() {
        Some(ty) => {
            let what = "a table, global or tag that the host made";
            Err(SnapshotError::TypeOfEngine { what, ty: ty.to_string() }.into())
        }
        None => Ok(InstanceOrigin::Host(entity)),
    }
}

fn record_imports(imports: &Imports) -> ImportsRecord {
    let entities = |entities: &[Entity]| {
        entities.iter().map(|entity| (entity.ordinal, entity.own_index)).collect()
    };
    ImportsRecord {
        functions: imports.functions.iter().map(|function| function.0).collect(),
        tables: entities(&imports.tables),
        memories: entities(&imports.memories),
        globals: entities(&imports.globals),
        tags: entities(&imports.tags),
    }
}

fn record_call(frozen: &Frozen, call: &FrozenCall) -> CallRecord {
    let suspended = &call.suspended;
    let mut stack = call.stack.to_vec();
    let mut frames = Vec::with_capacity(call.frame_words.len());
    for (place, kind) in &call.frame_words {
        let at = stack.len() - *place as usize;
        stack[at..at + 8].fill(0);
        frames.push(FrameRecord { place: *place, word: record_word(frozen, kind) });
    }
    CallRecord {
        ordinal: suspended.ordinal,
        stack_owner: suspended.stack_owner,
        kind: suspended.kind as u32,
        function: suspended.function.0,
        host_function: suspended.host_function,
        rest_ns: suspended.rest.map(|rest| u64::try_from(rest.as_nanos()).unwrap_or(u64::MAX)),
        stack,
        frames,
    }
}

fn record_word(frozen: &Frozen, kind: &FrameWordKind) -> FrameRecordWord {
    match *kind {
        FrameWordKind::FramePointer(to) => FrameRecordWord::FramePointer(to.map(|to| to as u32)),
        FrameWordKind::ReturnToHost => FrameRecordWord::ReturnToHost,
        FrameWordKind::ReturnAddress { ordinal, offset } => {
            let module = &frozen.instances[ordinal as usize - 1].module;
            let (code, call_sites) = (module.code(), module.call_sites());
            // A call can be the last instruction of a piece.
            let after = code.functions.partition_point(|piece| piece.start < offset);
            let piece = after.checked_sub(1).expect("a call lies in a piece of code");
            let start = code.functions[piece].start;
            let first = call_sites.partition_point(|site| *site <= start);
            let site = call_sites.partition_point(|site| *site < offset);
            let (piece, call_site) = (piece as u32, (site - first) as u32);
            FrameRecordWord::Return { ordinal, piece, call_site }
        }
    }
}

/// What slots are laid out by, as numbers: where two engines have the same for a module, pages mean
/// the same.
pub(crate) fn layout_words(layout: &SlotLayout) -> Vec<u64> {
    let SlotLayout { stack, link, exceptions, tables, state, base, size, .. } = layout;
    let (parts, signed) = (&layout.state_parts, |offset: i32| i64::from(offset) as u64);
    let mut words: Vec<u64> = [stack, link, exceptions, tables, state]
        .iter()
        .flat_map(|zone| [zone.start, zone.end])
        .collect();
    words.extend([*base, *size, layout.image_start]);
    words.extend([parts.memory_sizes, parts.table_lengths, parts.globals].map(signed));
    words.extend([parts.dropped, parts.save_area].map(signed));
    words.extend([parts.save_size, parts.size, layout.link_parts.cell_count].map(u64::from));
    words.push(layout.memories.len() as u64);
    words.extend(
        layout.memories.iter().flat_map(|memory| [memory.offset, memory.reservation, memory.guard]),
    );
    words.push(layout.table_ends.len() as u64);
    words.extend(layout.table_ends.iter().map(|end| signed(*end)));
    words.extend(&layout.table_capacities);
    words
}

/// The base of a slot with such a layout.
pub(crate) fn base_of_layout(words: &[u64]) -> Option<u64> {
    // Behind both ends of five zones.
    words.get(10).copied()
}

/// The definition behind function `index` of an instance's index space, if there is such a
/// function.
pub(crate) fn definition(
    imports: &Imports,
    functions: usize,
    ordinal: u32,
    index: u32,
) -> Option<FuncRef> {
    let imported = imports.functions.get(index as usize).copied();
    imported.or_else(|| ((index as usize) < functions).then(|| FuncRef::new(ordinal, index)))
}
