//! What the runtime does for guests: operations on whole ranges, growth, and
//! indirect calls across instances. Each checks all of its bounds, in 64 bits,
//! then lets the guest pay for what it does, and only then writes anything: a
//! length means nothing before it is checked, and costs nothing.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use pagefork_layout::link::Service;
use pagefork_layout::page::WASM_PAGE_SIZE;
use pagefork_layout::reference::{FuncRef, HOST_ORDINAL};
use pagefork_layout::trap::TrapCode;

use crate::base::cell::Cell;
use crate::base::error::Error;
use crate::run::limiter;
use crate::store::group::StoreGroup;

/// What growth answers that is not possible: -1, as 64 bits and in its lower 32.
const NO_GROWTH: u64 = u64::MAX;

/// Bytes that are written or copied for a unit of fuel.
const BYTES_PER_UNIT: u64 = 16;

/// Elements that are written or copied for a unit of fuel.
const ELEMENTS_PER_UNIT: u64 = 2;

/// Carries out the service `index` for the instance with this base.
///
/// # Errors
/// The guest ends.
///
/// # Safety
/// The store is exclusively the caller's, with the provenance of the whole, the base is that
/// of one of its instances, and `cells` has the arguments of the service, as compiled code of
/// that instance puts them.
pub(crate) unsafe fn call(
    store: *mut StoreGroup,
    base: usize,
    index: u32,
    cells: *mut Cell,
) -> Result<(), Stop> {
    let service = Service::from_index(index).expect("compiled code calls known services");
    // SAFETY: this function's contract is that of each of them.
    unsafe {
        match service {
            Service::MemoryGrow | Service::TableGrow => grow(store, base, service, cells)?,
            _ => operate(&mut *store, base, service, cells)?,
        }
        match (*store).has_lost_pages() {
            true => Err((*store).broken_by().into()),
            false => Ok(()),
        }
    }
}

/// Why a service ends the guest.
pub(crate) enum Stop {
    Trap(TrapCode),
    /// The embedder's limiter failed.
    Error(Error),
    /// It panicked.
    Panic(Box<dyn Any + Send>),
}

impl From<TrapCode> for Stop {
    fn from(code: TrapCode) -> Self {
        Self::Trap(code)
    }
}

/// Growth, for which the embedder's limiter is asked.
///
/// # Safety
/// As [`call`].
unsafe fn grow(
    store: *mut StoreGroup,
    base: usize,
    service: Service,
    cells: *mut Cell,
) -> Result<(), Stop> {
    // SAFETY: each service reads as many cells as it has arguments.
    let argument = |i: usize| unsafe { (*cells.add(i)).low };
    // SAFETY: by this function's contract the store is ours; the borrow ends before the limiter
    // is asked, and `base` is that of an instance of the store.
    let (inner, caller) = unsafe { (&*store, (*store).ordinal_of(base)) };
    let entity = match service {
        Service::MemoryGrow => inner.memory(caller, argument(0) as u32),
        _ => inner.table(caller, argument(0) as u32),
    };
    // A panic must not cross the guest's frames, which no unwinder knows.
    let grown = catch_unwind(AssertUnwindSafe(|| match service {
        // SAFETY: by this function's contract the store is ours.
        Service::MemoryGrow => unsafe { limiter::grow_memory(store, entity, argument(1)) },
        _ => {
            let word = inner.stored(entity, argument(1), caller);
            // SAFETY: by this function's contract the store is ours.
            unsafe { limiter::grow_table(store, entity, argument(2), word) }
        }
    }));
    let grown = grown.map_err(Stop::Panic)?.map_err(Stop::Error)?;
    // SAFETY: by this function's contract the store is ours.
    let inner = unsafe { &mut *store };
    if inner.is_broken() {
        return Err(inner.broken_by().into());
    }
    if matches!(service, Service::TableGrow) && grown.is_ok() {
        inner.pay_fuel(argument(2) / ELEMENTS_PER_UNIT)?;
    }
    // SAFETY: the first argument's cell takes the result.
    unsafe { cells.write(Cell::from_u64(grown.unwrap_or(NO_GROWTH))) };
    Ok(())
}

/// All services but growth.
///
/// # Safety
/// As [`call`].
unsafe fn operate(
    store: &mut StoreGroup,
    base: usize,
    service: Service,
    cells: *mut Cell,
) -> Result<(), TrapCode> {
    // SAFETY: by this function's contract `base` is that of an instance of the store.
    let caller = unsafe { store.ordinal_of(base) };
    // SAFETY: each service reads as many cells as it has arguments.
    let argument = |i: usize| unsafe { (*cells.add(i)).low };
    let number = |i: usize| argument(i) as u32;
    match service {
        Service::MemoryGrow | Service::TableGrow => unreachable!("growth is apart"),
        Service::MemoryFill => {
            let memory = store.memory(caller, number(0));
            let (destination, length) = (argument(1), argument(3));
            let to = store.memory_range(memory, destination, length)?;
            store.pay_fuel(length / BYTES_PER_UNIT)?;
            // SAFETY: the range is accessible.
            unsafe { to.write_bytes(argument(2) as u8, length as usize) };
        }
        Service::MemoryDiscard => {
            let memory = store.memory(caller, number(0));
            let (start, length) = (argument(1), argument(2));
            if !start.is_multiple_of(WASM_PAGE_SIZE) || !length.is_multiple_of(WASM_PAGE_SIZE) {
                return Err(TrapCode::MemoryOutOfBounds);
            }
            store.memory_range(memory, start, length)?;
            store.pay_fuel(length / BYTES_PER_UNIT)?;
            store.discard_memory(memory, start, length)?;
        }
        Service::MemoryCopy => {
            let to = store.memory(caller, number(0));
            let from = store.memory(caller, number(1));
            let (destination, source, length) = (argument(2), argument(3), argument(4));
            let from = store.memory_range(from, source, length)?;
            let to = store.memory_range(to, destination, length)?;
            store.pay_fuel(length / BYTES_PER_UNIT)?;
            // SAFETY: both ranges are accessible; they may overlap.
            unsafe { to.copy_from(from, length as usize) };
        }
        Service::MemoryInit => {
            let memory = store.memory(caller, number(0));
            let segment = number(1);
            let module = store.instance(caller).module.clone();
            let bytes = match is_dropped(store, caller, Segment::Data(segment)) {
                true => &[],
                false => module.data_segment(segment),
            };
            let (destination, source, length) = (argument(2), argument(3), argument(4));
            store.memory_range(memory, destination, length)?;
            check_segment(bytes, source, length).ok_or(TrapCode::MemoryOutOfBounds)?;
            store.pay_fuel(length / BYTES_PER_UNIT)?;
            store.memory_init(memory, bytes, destination, source, length)?;
        }
        Service::DataDrop => drop_segment(store, caller, Segment::Data(number(0))),
        Service::TableFill => {
            let table = store.table(caller, number(0));
            let (start, length) = (argument(1), argument(3));
            store.check_elements(table, start, length)?;
            store.pay_fuel(length / ELEMENTS_PER_UNIT)?;
            let word = store.stored(table, argument(2), caller);
            store.table_fill(table, start, word, length)?;
        }
        Service::TableCopy => {
            let to = store.table(caller, number(0));
            let from = store.table(caller, number(1));
            let (destination, source, length) = (argument(2), argument(3), argument(4));
            store.check_elements(from, source, length)?;
            store.check_elements(to, destination, length)?;
            store.pay_fuel(length / ELEMENTS_PER_UNIT)?;
            store.table_copy((to, from), destination, source, length)?;
        }
        Service::TableInit => {
            let table = store.table(caller, number(0));
            let segment = number(1);
            let module = store.instance(caller).module.clone();
            let elements = &module.info().elements[segment as usize];
            let (destination, source, length) = (argument(2), argument(3), argument(4));
            if is_dropped(store, caller, Segment::Element(segment)) {
                // As if it were empty.
                let fits = destination <= store.table_length(table) && source == 0 && length == 0;
                return if fits { Ok(()) } else { Err(TrapCode::TableOutOfBounds) };
            }
            store.check_elements(table, destination, length)?;
            check_segment(&elements.items, source, length).ok_or(TrapCode::TableOutOfBounds)?;
            store.pay_fuel(length / ELEMENTS_PER_UNIT)?;
            store.table_init(caller, table, elements, destination, source, length)?;
        }
        Service::ElementDrop => drop_segment(store, caller, Segment::Element(number(0))),
        Service::Resolve => {
            let function = FuncRef(argument(0)).absolute(caller);
            if function.is_null() {
                return Err(TrapCode::IndirectCallToNull);
            }
            let expected = store.instance(caller).module.type_id(number(1));
            let definition = store.definition(function);
            debug_assert!(
                definition.ordinal() == HOST_ORDINAL || definition.ordinal() < store.next_ordinal()
            );
            if store.function_type(definition).1 != expected {
                return Err(TrapCode::BadSignature);
            }
            store.set_resolved(definition);
        }
        Service::Throw | Service::Rethrow => unreachable!("guests do not come back from them"),
        // SAFETY: by this function's contract the cells are the caller's, with the arguments.
        Service::Catch => unsafe { store.catch(caller, cells) },
    }
    Ok(())
}

/// `None` if a segment has no such range.
fn check_segment<T>(segment: &[T], start: u64, length: u64) -> Option<()> {
    let end = start.checked_add(length)?;
    (end <= segment.len() as u64).then_some(())
}

#[derive(Clone, Copy)]
enum Segment {
    Element(u32),
    Data(u32),
}

fn dropped_byte(store: &StoreGroup, ordinal: u32, segment: Segment) -> *mut u8 {
    let instance = store.instance(ordinal);
    let (info, parts) = (instance.module.info(), &instance.module.layout().state_parts);
    let offset = match segment {
        Segment::Element(index) => parts.dropped_element(index),
        Segment::Data(index) => parts.dropped_data(info, index),
    };
    instance.at(offset.into())
}

fn is_dropped(store: &StoreGroup, ordinal: u32, segment: Segment) -> bool {
    // SAFETY: the byte is in the state zone.
    unsafe { dropped_byte(store, ordinal, segment).read() != 0 }
}

fn drop_segment(store: &mut StoreGroup, ordinal: u32, segment: Segment) {
    // SAFETY: the byte is in the state zone.
    unsafe { dropped_byte(store, ordinal, segment).write(1) };
}
