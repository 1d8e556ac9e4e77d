//! What the host makes of its own: a memory, table, global or tag alone, as a module without code.

use pagefork_layout::module::{
    ConstExpr, ExportInfo, FuncType, GlobalType, HeapType, Item, MemoryType, ModuleInfo, RefType,
    TableType, ValType,
};
use serde::{Deserialize, Serialize};

/// Something that the host makes of its own, by its type.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum HostEntity {
    Memory(MemoryType),
    Table(TableType),
    Global(GlobalType),
    Tag(FuncType),
}

impl HostEntity {
    /// What a module with this declares; concrete types are the engine's. A global is zero or null.
    pub(crate) fn info(&self) -> ModuleInfo {
        let export = |name: &str, item| vec![ExportInfo { name: name.to_owned(), item }];
        let none = ModuleInfo::default();
        match self {
            Self::Memory(ty) => ModuleInfo {
                memories: vec![*ty],
                exports: export("memory", Item::Memory(0)),
                ..none
            },
            Self::Table(ty) => {
                ModuleInfo { tables: vec![*ty], exports: export("table", Item::Table(0)), ..none }
            }
            Self::Global(ty) => ModuleInfo {
                globals: vec![*ty],
                global_inits: vec![match ty.content.is_ref() {
                    true => ConstExpr::Null,
                    false => ConstExpr::Bits(0),
                }],
                exports: export("global", Item::Global(0)),
                ..none
            },
            Self::Tag(ty) => ModuleInfo {
                types: vec![ty.clone()],
                tags: vec![0],
                exports: export("tag", Item::Tag(0)),
                ..none
            },
        }
    }

    /// What a module that the host created is of; `None` of any other.
    pub(crate) fn of(info: &ModuleInfo) -> Option<Self> {
        let found = match (&*info.memories, &*info.tables, &*info.globals, &*info.tags) {
            ([ty], [], [], []) => Self::Memory(*ty),
            ([], [ty], [], []) => Self::Table(*ty),
            ([], [], [ty], []) => Self::Global(*ty),
            ([], [], [], [tag]) => Self::Tag(info.types.get(*tag as usize)?.clone()),
            _ => return None,
        };
        Some(found)
    }

    /// A type in it that names a type of the engine, which means nothing elsewhere.
    pub(crate) fn type_of_engine(&self) -> Option<ValType> {
        let is_concrete =
            |ty: &ValType| matches!(ty, ValType::Ref(RefType { heap: HeapType::Concrete(_), .. }));
        match self {
            Self::Memory(_) => None,
            Self::Table(ty) => Some(ValType::Ref(ty.element)).filter(is_concrete),
            Self::Global(ty) => Some(ty.content).filter(is_concrete),
            Self::Tag(ty) => ty.params.iter().chain(&ty.results).copied().find(is_concrete),
        }
    }
}

/// Whether no part of a type is one of the engine's numbers.
pub(crate) fn means_the_same_elsewhere(ty: &FuncType) -> bool {
    HostEntity::Tag(ty.clone()).type_of_engine().is_none()
}
