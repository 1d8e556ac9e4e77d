//! Imports given by an embedder, matched with what a module declares.

use pagefork_layout::module::{ExternType, GlobalType, Item, TableType};

use crate::api::instance::{Extern, Instance};
use crate::base::error::{LinkError, Result};
use crate::code::matching::{global_matches, memory_matches, table_matches};
use crate::code::module::Module;
use crate::run::instantiate::{self, check_engine};
use crate::store::group::{Imports, StoreGroup};

/// See [`Instance::new`].
///
/// # Safety
/// `store` is exclusively the caller's, with the provenance of the whole store.
pub(crate) unsafe fn instantiate(
    store: *mut StoreGroup,
    module: &Module,
    imports: &[Extern],
) -> Result<Instance> {
    // SAFETY: by this function's contract the store is ours; this borrow ends before a guest
    // is entered.
    let inner = unsafe { &mut *store };
    check_engine(inner, module)?;
    inner.check_usable()?;
    let imports = match_imports(inner, module, imports)?;
    // SAFETY: by this function's contract, which is the same.
    unsafe {
        let ordinal = instantiate::instantiate(store, module, imports, None)?;
        Ok(Instance::from_ordinal(&*store, ordinal))
    }
}

/// # Errors
/// If an import is not of the type that the module declares.
pub(crate) fn match_imports(
    store: &StoreGroup,
    module: &Module,
    given: &[Extern],
) -> Result<Imports> {
    let info = module.info();
    if given.len() != info.imports.len() {
        let (expected, found) = (info.imports.len(), given.len());
        return Err(LinkError::ImportCount { expected, found }.into());
    }
    let mut functions = Vec::new();
    let (mut globals, mut tables) = (Vec::new(), Vec::new());
    let (mut memories, mut tags) = (Vec::new(), Vec::new());
    for (import, given) in info.imports.iter().zip(given) {
        let matches = match (import.item, given) {
            (Item::Func(index), Extern::Func(function)) => {
                let definition = function.reference(store)?;
                functions.push(definition);
                store.function_type(definition).1 == module.function_type_id(index)
            }
            (Item::Global(index), Extern::Global(global)) => {
                let entity = global.entity(store)?;
                globals.push(entity);
                let declared = info.globals[index as usize];
                let content = module.engine_val_type(declared.content);
                global_matches(store.global_type(entity), GlobalType { content, ..declared })
            }
            (Item::Table(index), Extern::Table(table)) => {
                let entity = table.entity(store)?;
                tables.push(entity);
                let declared = info.tables[index as usize];
                let element = module.engine_ref_type(declared.element);
                table_matches(&store.table_type(entity), &TableType { element, ..declared })
            }
            (Item::Memory(index), Extern::Memory(memory)) => {
                let entity = memory.entity(store)?;
                memories.push(entity);
                memory_matches(&store.memory_type(entity), &info.memories[index as usize])
            }
            (Item::Tag(index), Extern::Tag(tag)) => {
                let entity = tag.entity(store)?;
                tags.push(entity);
                store.tag_type(entity) == module.tag_type(index)
            }
            _ => false,
        };
        if !matches {
            return Err(LinkError::IncompatibleImport {
                module: import.module.clone(),
                name: import.name.clone(),
                expected: describe(&module.item_type(import.item)),
                found: describe(&type_of(store, given)?),
            }
            .into());
        }
    }
    Ok(Imports {
        functions: functions.into(),
        globals: globals.into(),
        tables: tables.into(),
        memories: memories.into(),
        tags: tags.into(),
    })
}

/// # Errors
/// If it is of another store.
fn type_of(store: &StoreGroup, value: &Extern) -> Result<ExternType> {
    Ok(match value {
        Extern::Func(function) => {
            ExternType::Func(store.function_type(function.reference(store)?).0.clone())
        }
        Extern::Global(global) => ExternType::Global(store.global_type(global.entity(store)?)),
        Extern::Table(table) => ExternType::Table(store.table_type(table.entity(store)?)),
        Extern::Memory(memory) => ExternType::Memory(store.memory_type(memory.entity(store)?)),
        Extern::Tag(tag) => ExternType::Tag(store.tag_type(tag.entity(store)?).clone()),
    })
}

/// A type for a message, as in the text format.
pub(crate) fn describe(ty: &ExternType) -> String {
    fn limits(minimum: u64, maximum: Option<u64>) -> String {
        maximum.map_or(minimum.to_string(), |maximum| format!("{minimum} {maximum}"))
    }
    match ty {
        ExternType::Func(ty) => format!("func {ty}"),
        ExternType::Global(GlobalType { content, mutable: false }) => format!("global {content}"),
        ExternType::Global(GlobalType { content, mutable: true }) => {
            format!("global (mut {content})")
        }
        ExternType::Table(ty) => {
            let index = if ty.table64 { "i64 " } else { "" };
            format!("table {index}{} {}", limits(ty.minimum, ty.maximum), ty.element)
        }
        ExternType::Memory(ty) => {
            let index = if ty.memory64 { "i64 " } else { "" };
            format!("memory {index}{}", limits(ty.minimum, ty.maximum))
        }
        ExternType::Tag(ty) => format!("tag {ty}"),
    }
}
