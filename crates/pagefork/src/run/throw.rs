//! Exceptions that guests and the host throw. They lie in the zones of the
//! instances that threw them; handlers are found by the return addresses on the
//! guest's stack, so nothing about handlers lies anywhere in it.
//!
//! # Safety
//!
//! As in `exception_zone`; frames are walked as in `backtrace`.

use std::ptr;

use pagefork_layout::exception::{ExceptionRef, block};
use pagefork_layout::link::Service;
use pagefork_layout::module::ValType;
use pagefork_layout::trap::TrapCode;

use crate::base::cell::Cell;
use crate::base::error::{Error, ErrorKind, Result};
use crate::store::activation::Activation;
use crate::store::exception::Exception;
use crate::store::frame::Landing;
use crate::store::group::{Entity, InstanceData, StoreGroup};
use crate::store::handle::Tag;
use crate::store::value::Val;

/// What becomes of an exception.
pub(crate) enum Thrown {
    /// It is caught here.
    Caught(Landing),
    /// No handler catches it before the guest's innermost entry.
    Uncaught(Exception),
    /// It could not be made.
    Trap(TrapCode),
}

/// Throws for a guest: the service `service`, with its arguments in `cells`.
///
/// # Safety
/// The activation's store is valid and its guest, the instance with the ordinal
/// `caller`, waits in the service's host call; `cells` has its arguments.
pub(crate) unsafe fn throw(
    activation: &Activation,
    store: &mut StoreGroup,
    caller: u32,
    service: Service,
    cells: *const Cell,
) -> Thrown {
    // SAFETY: by this function's contract the guest waits in a host call: `guest_sp` is the
    // frame pointer of its thunk.
    let landing = unsafe { find_landing(store, activation.guest_sp) };
    // SAFETY: both services have an argument.
    let first = unsafe { (*cells).low };
    if service == Service::Rethrow {
        let reference = ExceptionRef(first).absolute(caller);
        return match landing {
            Some(landing) => Thrown::Caught(Landing { exception: reference.0, ..landing }),
            None => {
                let exception = store.exception_value(reference);
                store.release_exception(reference);
                Thrown::Uncaught(exception)
            }
        };
    }
    let tag = store.tag(caller, first as u32);
    let types: Box<[ValType]> = store.tag_type(tag).params.clone();
    // SAFETY: the payload follows, a cell a value.
    let values = types.iter().enumerate().map(|(i, ty)| (*ty, unsafe { cells.add(1 + i).read() }));
    let Some(landing) = landing else {
        let payload = values.map(|(ty, cell)| Val::from_cell(cell, ty, store, caller)).collect();
        return Thrown::Uncaught(Exception { tag: Tag::from_entity(store, tag), payload });
    };
    let values: Vec<Cell> = values
        .map(|(ty, cell)| match ty {
            ValType::V128 => cell,
            // Compiled code writes no more of the cell.
            _ => Cell::from_u64(cell.low),
        })
        .collect();
    // SAFETY: by this function's contract the guest waits; it lands where `find_landing` says,
    // and what lies below that frame is over.
    unsafe { land(activation, store, caller, tag, &values, landing) }
}

/// Throws the exception that is the error of a host function, if it is one and
/// a handler catches it.
///
/// # Safety
/// The activation's store is valid, and its guest waits in the host call.
pub(crate) unsafe fn throw_error(
    activation: &Activation,
    store: &mut StoreGroup,
    error: Error,
) -> Result<Thrown, Error> {
    let exception = match error.downcast_ref::<Exception>() {
        // No guest of a broken store goes on, not even to catch something.
        Some(exception) if error.kind() == ErrorKind::Exception && !store.is_broken() => exception,
        _ => return Err(error),
    };
    // SAFETY: by this function's contract the guest waits in a host call: `guest_sp` is the
    // frame pointer of its thunk.
    let Some(landing) = (unsafe { find_landing(store, activation.guest_sp) }) else {
        return Err(error);
    };
    // It lies with its tag: the caller need not have room for exceptions.
    let tag = exception.tag.entity(store)?;
    let cells = exception.payload.iter().map(|value| value.to_cell(store, tag.ordinal));
    let cells: Vec<Cell> = cells.collect::<Result<_>>()?;
    // SAFETY: by this function's contract the guest waits; it lands where `find_landing` says.
    Ok(unsafe { land(activation, store, tag.ordinal, tag, &cells, landing) })
}

/// Makes an exception and lands with it.
///
/// # Safety
/// The guest of the activation's store is about to land there.
unsafe fn land(
    activation: &Activation,
    store: &mut StoreGroup,
    ordinal: u32,
    tag: Entity,
    values: &[Cell],
    landing: Landing,
) -> Thrown {
    let stack = landing.sp..activation.stack_top;
    // SAFETY: from there on the stack stays in use.
    let made = unsafe { store.allocate_exception(ordinal, tag, values, stack) };
    let Some(reference) = made else { return Thrown::Trap(TrapCode::TooManyExceptions) };
    let zone = store.exceptions(ordinal);
    for (i, cell) in values.iter().enumerate() {
        // SAFETY: the payload is in the zone.
        unsafe { zone.payload(reference.unit().into(), i).write(*cell) };
    }
    Thrown::Caught(Landing { exception: reference.0, ..landing })
}

/// Where an exception goes on that is thrown below the frame pointer `frame`;
/// `None` if that is not in this entry.
///
/// # Safety
/// `frame` is a frame pointer of a guest of `store` that does not run now.
unsafe fn find_landing(store: &StoreGroup, mut frame: usize) -> Option<Landing> {
    let mut latest: Option<&InstanceData> = None;
    loop {
        // SAFETY: frame pointers are kept in every frame: the caller's, then the
        // return address.
        let (outer, return_address) =
            unsafe { *ptr::with_exposed_provenance::<(usize, usize)>(frame) };
        if outer == 0 {
            return None;
        }
        let in_latest = |instance: &&InstanceData| {
            instance.module.code_memory().offset_of(return_address).is_some()
        };
        let instance = match latest.filter(in_latest) {
            Some(instance) => instance,
            None => store.code_at(return_address)?.0,
        };
        let code = instance.module.code_memory();
        let handler = code
            .offset_of(return_address)
            .and_then(|offset| instance.module.code().handler_at(offset));
        if let Some(handler) = handler {
            return Some(Landing {
                sp: outer - handler.frame_size as usize,
                fp: outer,
                pc: code.start() + handler.landing as usize,
                exception: 0,
            });
        }
        latest = Some(instance);
        frame = outer;
    }
}

impl StoreGroup {
    /// The service [`Service::Catch`].
    ///
    /// # Safety
    /// `cells` are those of the instance `caller`, and have the arguments.
    pub(crate) unsafe fn catch(&mut self, caller: u32, cells: *mut Cell) {
        // SAFETY: the service has three arguments.
        let [exception, tag, wanted] = std::array::from_fn(|i| unsafe { (*cells.add(i)).low });
        let reference = ExceptionRef(exception).absolute(caller);
        let (zone, unit) = (self.exceptions(reference.ordinal()), reference.unit().into());
        let head = zone.exception(reference);
        let any = tag == u64::from(u32::MAX);
        let mut answer = ExceptionRef::NULL;
        if any || self.tag(caller, tag as u32) == self.tag_of(reference) {
            if !any {
                let types = &self.tag_type(self.tag_of(reference)).params;
                for (i, ty) in types.iter().enumerate() {
                    // SAFETY: the payload is in the zone, and instances with tags
                    // have cells for their payloads behind the first.
                    unsafe {
                        let mut cell = zone.payload(unit, i).read();
                        if ty.has_owner() {
                            let word = ExceptionRef(cell.low).absolute(reference.ordinal());
                            cell.low = word.relative(caller).0;
                        }
                        cells.add(1 + i).write(cell);
                    }
                }
            }
            answer = reference.relative(caller);
            if wanted != 0 {
                zone.flag(unit, block::REFERENCED);
            } else if head.flags == 0 {
                zone.free(unit);
            }
        }
        // SAFETY: the first argument's cell takes the result.
        unsafe { cells.write(Cell::from_u64(answer.0)) };
    }

    fn tag_of(&self, reference: ExceptionRef) -> Entity {
        let tag = self.exceptions(reference.ordinal()).exception(reference).tag;
        match tag.ordinal {
            0 => Entity { ordinal: reference.ordinal(), ..tag },
            _ => tag,
        }
    }

    /// An exception as a value of the host.
    pub(crate) fn exception_value(&self, reference: ExceptionRef) -> Exception {
        let zone = self.exceptions(reference.ordinal());
        let tag = self.tag_of(reference);
        let types = self.tag_type(tag).params.iter().enumerate();
        let payload = types.map(|(i, ty)| {
            // SAFETY: the payload is in the zone.
            let cell = unsafe { zone.payload(reference.unit().into(), i).read() };
            Val::from_cell(cell, *ty, self, reference.ordinal())
        });
        Exception { tag: Tag::from_entity(self, tag), payload: payload.collect() }
    }

    /// Frees an exception that no handler will catch, if there is no reference to it.
    fn release_exception(&mut self, reference: ExceptionRef) {
        let zone = self.exceptions(reference.ordinal());
        if zone.exception(reference).flags == 0 {
            zone.free(reference.unit().into());
        }
    }
}
