//! What instances import of each other and of the host, matched with what their modules declare.

use pagefork_layout::module::{GlobalType, Item, MemoryType, TableType};
use pagefork_layout::page::WASM_PAGE_SIZE;
use pagefork_layout::reference::{FuncRef, HOST_ORDINAL};

use crate::code::matching::{global_matches, memory_matches, table_matches};
use crate::run::load::group::{Candidate, Group, Judged};
use crate::store::group::{Entity, Imports};
use crate::store::record::ImportsRecord;

/// What an instance imports, if that is of earlier instances and of the types that its module
/// declares.
pub(super) fn imports(group: &Group, ordinal: u32) -> Judged<Imports> {
    let Candidate { module, recorded_imports, .. } = &group.instances[ordinal as usize - 1];
    let info = module.info();
    let ImportsRecord { functions, tables, memories, globals, tags } = recorded_imports;
    let counts = [
        (functions.len(), info.imported_functions),
        (tables.len(), info.imported_tables),
        (memories.len(), info.imported_memories),
        (globals.len(), info.imported_globals),
        (tags.len(), info.imported_tags),
    ];
    if counts.iter().any(|(found, declared)| *found != *declared as usize) {
        return Err("imports another number of things than its module".to_owned());
    }
    for import in &info.imports {
        let matches =
            match import.item {
                Item::Func(index) => function_matches(group, ordinal, index),
                Item::Table(index) => earlier(group, ordinal, tables[index as usize]).is_some_and(
                    |(owner, own_index)| {
                        let declared = info.tables[index as usize];
                        let element = module.engine_ref_type(declared.element);
                        let wanted = TableType { element, ..declared };
                        table_type(owner, own_index).is_some_and(|ty| table_matches(&ty, &wanted))
                    },
                ),
                Item::Memory(index) => earlier(group, ordinal, memories[index as usize])
                    .is_some_and(|(owner, own_index)| {
                        let wanted = &info.memories[index as usize];
                        memory_type(owner, own_index).is_some_and(|ty| memory_matches(&ty, wanted))
                    }),
                Item::Global(index) => earlier(group, ordinal, globals[index as usize])
                    .is_some_and(|(owner, own_index)| {
                        let declared = info.globals[index as usize];
                        let content = module.engine_val_type(declared.content);
                        let wanted = GlobalType { content, ..declared };
                        global_type(owner, own_index).is_some_and(|ty| global_matches(ty, wanted))
                    }),
                Item::Tag(index) => earlier(group, ordinal, tags[index as usize]).is_some_and(
                    |(owner, own_index)| {
                        let (of, info) = (&owner.module, owner.module.info());
                        let tag = own_index.checked_add(info.imported_tags);
                        let tag = tag.filter(|tag| (*tag as usize) < info.tags.len());
                        tag.is_some_and(|tag| of.tag_type(tag) == module.tag_type(index))
                    },
                ),
            };
        if !matches {
            let (from, name) = (&import.module, &import.name);
            return Err(format!("imports something else than it may as {from:?} {name:?}"));
        }
    }
    let entities = |list: &[(u32, u32)]| {
        list.iter().map(|&(ordinal, own_index)| Entity { ordinal, own_index }).collect()
    };
    Ok(Imports {
        functions: functions.iter().map(|word| FuncRef(*word)).collect(),
        tables: entities(tables),
        memories: entities(memories),
        globals: entities(globals),
        tags: entities(tags),
    })
}

/// The instance of an entity that the instance `ordinal` imports, which was made before it.
fn earlier(group: &Group, ordinal: u32, entity: (u32, u32)) -> Option<(&Candidate, u32)> {
    let owner = group.candidate(entity.0).filter(|_| entity.0 < ordinal)?;
    Some((owner, entity.1))
}

fn function_matches(group: &Group, ordinal: u32, index: u32) -> bool {
    let Candidate { module, recorded_imports, .. } = &group.instances[ordinal as usize - 1];
    let function = FuncRef(recorded_imports.functions[index as usize]);
    let Some(of_index) = function.index() else { return false };
    let wanted = module.function_type_id(index);
    if function.ordinal() == HOST_ORDINAL {
        let host = group.host_functions.get(of_index as usize);
        return host.is_some_and(|host| host.type_id == wanted);
    }
    let Some((owner, of_index)) = earlier(group, ordinal, (function.ordinal(), of_index)) else {
        return false;
    };
    let info = owner.module.info();
    // Only what an instance defines itself: what it imports is somebody else's.
    let is_own = (info.imported_functions..info.functions.len() as u32).contains(&of_index);
    is_own
        && owner.module.function_type_id(of_index) == wanted
        && owner.module.code().entries[info.functions[of_index as usize] as usize].is_some()
}

fn table_type(owner: &Candidate, own_index: u32) -> Option<TableType> {
    let info = owner.module.info();
    let declared = info.tables.get(own_index.checked_add(info.imported_tables)? as usize)?;
    let minimum = *owner.table_lengths.get(own_index as usize)?;
    let element = owner.module.engine_ref_type(declared.element);
    Some(TableType { element, minimum, ..*declared })
}

fn memory_type(owner: &Candidate, own_index: u32) -> Option<MemoryType> {
    let info = owner.module.info();
    let declared = info.memories.get(own_index.checked_add(info.imported_memories)? as usize)?;
    let minimum = owner.sizes.get(own_index as usize)?.initial / WASM_PAGE_SIZE;
    Some(MemoryType { minimum, ..*declared })
}

fn global_type(owner: &Candidate, own_index: u32) -> Option<GlobalType> {
    let info = owner.module.info();
    let declared = info.globals.get(own_index.checked_add(info.imported_globals)? as usize)?;
    Some(GlobalType { content: owner.module.engine_val_type(declared.content), ..*declared })
}
