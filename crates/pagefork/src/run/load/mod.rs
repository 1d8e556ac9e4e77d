//! Captured stores made of plain data and pages again: checked completely before anything of it is
//! believed.
//!
//! What compiled code and the runtime rely on lies below the base of each slot (header, sizes,
//! lengths, references, what is dropped) and in the [record](StoreRecord). All of that is read
//! here, once, compared with what the modules declare, and kept in memory of this process, so
//! that what was checked is what is used. Memories can hold any bytes, and are not read.
//!
//! Frames are machine state, and no check can tell good ones from bad ones: they are taken only from
//! who is trusted, and checked then all the same, so that mistakes are errors.

use std::any::Any;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use pagefork_layout::page::PAGE_SIZE;
use pagefork_layout::reference::{FuncRef, HOST_ORDINAL};
use pagefork_pages::{Image, MemorySize};

use crate::base::error::{Result, SnapshotError};
use crate::code::engine::Engine;
use crate::code::host_entity::HostEntity;
use crate::code::module::{Module, SpawnPlan, memory_sizes};
use crate::run::freeze::{AFTER_RESTORE, find_main};
use crate::run::load::group::{Candidate, Group};
use crate::run::load::zones::BelowBase;
use crate::run::save::{REFERENCES_MAX, layout_words};
use crate::store::frozen::{Frozen, FrozenInstance};
use crate::store::group::{Imports, StoreId};
use crate::store::host_func::HostFunc;
use crate::store::limits::Usage;
use crate::store::record::{InstanceOrigin, InstanceRecord, StoreRecord};
use crate::store::references::References;

/// The bytes of a slot below its base, as they are to be.
mod zones;
/// The instances that are looked at, and what references mean among them.
mod group;
/// Words that code relies on: the state, tables and globals.
mod state;
/// The blocks of exceptions zones.
mod exceptions;
/// What instances import of each other.
mod links;
/// The stack of a suspended guest.
mod frames;

/// The pages of a snapshot that is loaded.
pub(crate) trait StoredPages {
    /// Slot offsets that the image of an instance covers.
    fn extents(&self, instance: usize) -> Vec<Range<u64>>;

    /// Reads whole pages within the extents, from slot offset `offset` on.
    ///
    /// # Errors
    /// If they cannot be read.
    fn read(&self, instance: usize, offset: u64, into: &mut [u8]) -> Result<()>;

    /// An image with `held` below `base`, and from there on what is stored.
    ///
    /// # Errors
    /// If the places of pages are impossible, or the system refuses something.
    fn image(
        &self,
        instance: usize,
        name: &str,
        base: u64,
        held: &[(u64, &[u8])],
    ) -> Result<Arc<Image>>;
}

/// What is given for what a record can only name.
pub(crate) struct Given<'a> {
    pub(crate) engine: &'a Engine,
    /// The module of each instance that is not one of the host's own.
    pub(crate) modules: Vec<Option<Module>>,
    /// By their numbers.
    pub(crate) host_functions: Vec<Arc<HostFunc>>,
    /// A value for each reference.
    pub(crate) references: Vec<Arc<dyn Any + Send + Sync>>,
    /// Whether frames are taken from who has made this.
    pub(crate) trusts_frames: bool,
    /// The store whose handles lead to counterparts in what is spawned.
    pub(crate) continues: Option<StoreId>,
}

/// What is recorded, as something that stores are spawned from.
///
/// # Errors
/// [`SnapshotError`] if something of it cannot be believed; if the system refuses something.
pub(crate) fn load(
    record: &StoreRecord,
    pages: &dyn StoredPages,
    given: Given<'_>,
) -> Result<Frozen> {
    if record.call.is_some() && !given.trusts_frames {
        return Err(SnapshotError::NotTrusted.into());
    }
    let wrong = SnapshotError::inconsistent;
    let handles = record.references.iter().map(|reference| reference.handle);
    let values = handles.zip(given.references).collect();
    let references = References::of_handles(values, REFERENCES_MAX)
        .ok_or_else(|| wrong("two references to values of the host have one number, or none"))?;
    let mut group =
        Group { instances: Vec::new(), host_functions: given.host_functions, references };
    for (index, (instance, module)) in record.instances.iter().zip(given.modules).enumerate() {
        let candidate = candidate(index, instance, module, given.engine, pages)?;
        group.instances.push(candidate);
    }
    group.check().map_err(SnapshotError::Inconsistent)?;
    let suspended_in = record.call.as_ref().map(|call| call.ordinal);
    group.check_save_areas(suspended_in).map_err(SnapshotError::Inconsistent)?;
    let call = match &record.call {
        Some(call) => Some(frames::call(&group, call).map_err(SnapshotError::Inconsistent)?),
        None => None,
    };
    let main = record.main;
    let function_of_main = call.as_ref().map(|call| call.suspended.function.ordinal());
    let is_main = match function_of_main {
        Some(ordinal) => main == ordinal,
        None => main == find_main(group.instances.iter().map(|instance| instance.module.info())),
    };
    if !is_main {
        return Err(wrong("another instance is to be returned than would be").into());
    }

    let after_restore = after_restore(&group);
    let mut referred = Vec::new();
    group.each_host_function(|index| referred.push(index));
    referred.sort_unstable();
    referred.dedup();
    let mut usage = Usage::default();
    let mut instances = Vec::with_capacity(group.instances.len());
    for (index, candidate) in group.instances.into_iter().enumerate() {
        let own = crate::run::instantiate::own_usage(candidate.module.info());
        usage.instances += own.instances;
        usage.memories += own.memories;
        usage.tables += own.tables;
        instances.push(frozen_instance(index, candidate, pages)?);
    }
    Ok(Frozen {
        instances,
        host_functions: group.host_functions,
        referred,
        references: group.references,
        usage,
        fuel: record.fuel,
        call,
        after_restore,
        main,
        store: given.continues.unwrap_or_else(StoreId::next),
        home: None,
        stored: OnceLock::new(),
    })
}

/// What an instance claims to be, as far as it can be judged alone.
fn candidate(
    index: usize,
    record: &InstanceRecord,
    module: Option<Module>,
    engine: &Engine,
    pages: &dyn StoredPages,
) -> Result<Candidate> {
    let number = index + 1;
    let wrong = |what: &str| SnapshotError::Inconsistent(format!("instance {number} {what}"));
    let module = match (&record.origin, module) {
        (InstanceOrigin::Module { .. }, Some(module)) => module,
        (InstanceOrigin::Module { .. }, None) => return Err(wrong("has no module").into()),
        (InstanceOrigin::Host(entity), _) => {
            host_module(engine, entity).map_err(|what| wrong(&what))?
        }
    };
    let (info, layout) = (module.info(), module.layout());
    if layout_words(layout) != record.layout {
        let name = match &record.origin {
            InstanceOrigin::Module { name, .. } if !name.is_empty() => {
                format!("the module {name:?}")
            }
            _ => format!("instance {number}"),
        };
        return Err(SnapshotError::OtherLayout(name).into());
    }
    let sizes = memory_sizes(info, layout);
    if sizes.len() != record.memory_sizes.len() {
        return Err(wrong("has another number of memories than its module").into());
    }
    let present = |(size, bytes): (&MemorySize, &u64)| {
        let whole = bytes.is_multiple_of(pagefork_layout::page::WASM_PAGE_SIZE);
        let fits = whole && (size.initial..=size.maximum).contains(bytes);
        fits.then_some(MemorySize { initial: *bytes, ..*size })
    };
    let sizes: Option<Vec<MemorySize>> =
        sizes.iter().zip(&record.memory_sizes).map(present).collect();
    let sizes = sizes.ok_or_else(|| wrong("has a memory of a size that it cannot have"))?;
    let own_tables = &info.tables[info.imported_tables as usize..];
    let lengths = &record.table_lengths;
    let fits =
        |((table, capacity), length): ((&pagefork_layout::module::TableType, &u64), &u64)| {
            (table.minimum..=*capacity).contains(length)
        };
    if lengths.len() != own_tables.len()
        || !own_tables.iter().zip(&layout.table_capacities).zip(lengths).all(fits)
    {
        return Err(wrong("has a table of a length that it cannot have").into());
    }
    let extents = pages.extents(index);
    let places = extents.iter().flat_map(|extent| [extent.start, extent.end]);
    if !places.clone().is_sorted() || !places.clone().all(|at| at.is_multiple_of(PAGE_SIZE)) {
        return Err(wrong("has pages at impossible places").into());
    }
    let below = BelowBase::read(layout, &extents, |offset, into| pages.read(index, offset, into))?
        .ok_or_else(|| wrong("has pages where none can be"))?;
    Ok(Candidate {
        imports: Imports::default(),
        recorded_imports: record.imports.clone(),
        sizes,
        table_lengths: lengths.clone(),
        below,
        exceptions: record.exceptions.clone(),
        module,
    })
}

/// A module for something of the host's own.
fn host_module(engine: &Engine, entity: &HostEntity) -> Result<Module, String> {
    let possible = match entity {
        HostEntity::Memory(ty) => {
            let max = crate::store::memories::pages_max(ty.memory64);
            ty.maximum.unwrap_or(max) <= max && ty.minimum <= ty.maximum.unwrap_or(max)
        }
        HostEntity::Table(ty) => ty.maximum.is_none_or(|maximum| ty.minimum <= maximum),
        HostEntity::Global(_) => true,
        HostEntity::Tag(ty) => ty.results.is_empty(),
    };
    if !possible || entity.type_of_engine().is_some() {
        return Err("is of a type that cannot be".to_owned());
    }
    Module::without_code(engine, entity.info())
        .map_err(|error| format!("cannot be made: {error:#}"))
}

fn frozen_instance(
    index: usize,
    candidate: Candidate,
    pages: &dyn StoredPages,
) -> Result<FrozenInstance> {
    let Candidate { module, imports, sizes, table_lengths, below, exceptions, .. } = candidate;
    let name = module.name().unwrap_or("snapshot");
    let held = below.pages();
    let image = pages.image(index, name, module.layout().base, &held)?;
    let plan = SpawnPlan {
        image: Arc::clone(&image),
        steps: Vec::new(),
        memory_sizes: sizes.clone(),
        home: None,
    };
    Ok(FrozenInstance {
        imports,
        image,
        sizes,
        plan: Arc::new(plan),
        exceptions: exceptions.into(),
        table_lengths,
        module,
    })
}

/// What instances export to be told that they go on elsewhere.
fn after_restore(group: &Group) -> Vec<FuncRef> {
    let mut told: Vec<FuncRef> = Vec::new();
    for (instance, ordinal) in group.instances.iter().zip(1..) {
        let Some(pagefork_layout::module::Item::Func(index)) =
            instance.module.export(AFTER_RESTORE)
        else {
            continue;
        };
        let Some(function) = group.definition(ordinal, index) else { continue };
        let Some(function_index) = function.index() else { continue };
        if function.ordinal() == HOST_ORDINAL {
            continue;
        }
        let module = &group.instances[function.ordinal() as usize - 1].module;
        let ty = module.function_type(function_index);
        if ty.params.is_empty() && ty.results.is_empty() && !told.contains(&function) {
            told.push(function);
        }
    }
    told
}
