//! Functions of C's that guests call with nothing of Rust's in between, and what such functions fail with.
//!
//! What they are given as their caller lies beside the records of an instance's imports, and is there as
//! long as the instance. Records may be written anew while such a function runs; its caller stays.

use std::ffi::c_void;
use std::mem::offset_of;
use std::ptr::{self, NonNull};

use pagefork_layout::link::function_import::INTS_MAX;
use pagefork_layout::reference::{FuncRef, HOST_ORDINAL};

use crate::base::error::Error;
use crate::store::group::StoreGroup;
use crate::store::interrupt::Due;

/// How guests call a function of C's.
pub(crate) struct ForeignCall {
    /// Its address. It takes the address of a [`ForeignCaller`], then the arguments.
    pub(crate) function: usize,
    /// What it was made with.
    pub(crate) env: usize,
    /// What stores with such functions say of their data.
    pub(crate) data: &'static ForeignFns,
    /// If it takes the address of cells for its arguments, the bits of each that count: none of those that it
    /// does not have.
    pub(crate) cells: Option<Box<[u64; INTS_MAX]>>,
}

/// What the data of a store with functions of C's do for these, by their type.
pub(crate) struct ForeignFns {
    /// What such functions know a store by, which is at this address.
    ///
    /// # Safety
    /// To be called with the address of a store whose data are of the type, and there.
    pub(crate) handle: unsafe fn(usize) -> usize,
    /// The error that a function on cells has returned.
    ///
    /// # Safety
    /// To be called once with what such a function of such a store has returned, while nothing has borrowed the
    /// store.
    pub(crate) error: unsafe fn(NonNull<c_void>) -> Error,
}

/// What a function of C's is given as its caller, and what is to be known of it where it is called.
#[repr(C)]
#[derive(Default, Debug)]
pub(crate) struct ForeignCaller {
    env: usize,
    store: usize,
    /// Address of the bits that count of each argument, if the function takes cells. C's functions do not see it.
    bits: usize,
}

impl ForeignCaller {
    /// Where thunks find the address of the bits.
    pub(crate) const BITS: usize = offset_of!(Self, bits);

    pub(super) fn expose(&self) -> usize {
        (&raw const *self).expose_provenance()
    }
}

/// What a host function that has not returned yet fails with.
pub(crate) struct Raised {
    /// The entry whose guest has called it: 0 if the embedder has.
    host_sp: usize,
    error: Error,
}

impl StoreGroup {
    /// How guests call this function, if it is one of C's.
    fn foreign(&self, function: FuncRef) -> Option<&ForeignCall> {
        let index = function.index().filter(|_| function.ordinal() == HOST_ORDINAL)?;
        self.host_functions[index as usize].direct.as_ref()?.foreign.as_ref()
    }

    /// A caller for each of these functions; none at all if none of them is C's.
    pub(super) fn foreign_callers(&mut self, functions: &[FuncRef]) -> Box<[ForeignCaller]> {
        let Some(any) = functions.iter().find_map(|function| self.foreign(*function)) else {
            return Box::default();
        };
        let data = any.data;
        let store = self.handle_for_foreign(data);
        // Earlier callers have what the data said then: they may have been replaced without a word.
        self.foreign_handle = match self.foreign_data.replace(data) {
            None => Some(store),
            Some(_) => self.foreign_handle.filter(|known| *known == store),
        };
        let caller = |function: &FuncRef| match self.foreign(*function) {
            Some(foreign) => {
                // The function is there as long as its store, and with it the bits.
                let bits =
                    foreign.cells.as_deref().map_or(0, |bits| bits.as_ptr().expose_provenance());
                ForeignCaller { env: foreign.env, store, bits }
            }
            None => ForeignCaller { store, ..Default::default() },
        };
        functions.iter().map(caller).collect()
    }

    /// The error that a function of C's on cells has returned; `None` of 0.
    ///
    /// # Safety
    /// The store is valid, and has called such a function; nothing has borrowed it. What is not 0 was returned by
    /// that, and is given here once.
    pub(crate) unsafe fn error_of_foreign(this: *const Self, returned: usize) -> Option<Error> {
        let returned = NonNull::new(ptr::with_exposed_provenance_mut(returned))?;
        // SAFETY: by this function's contract; the borrow ends with this statement.
        let data = unsafe { (*this).foreign_data }.expect("a store has data of the type by now");
        // SAFETY: by this function's contract; the store's functions are all for data of one type.
        Some(unsafe { (data.error)(returned) })
    }

    /// Has functions of C's know the store by what its data say now.
    #[inline]
    pub(crate) fn renew_foreign_callers(&mut self) {
        if let Some(data) = self.foreign_data {
            let store = self.handle_for_foreign(data);
            if self.foreign_handle != Some(store) {
                self.give_foreign_callers(store);
            }
        }
    }

    /// Apart: data that come one after the other mostly say the same.
    #[inline(never)]
    fn give_foreign_callers(&mut self, store: usize) {
        self.foreign_handle = Some(store);
        let instances = self.instances.iter_mut();
        let callers = instances.flat_map(|instance| instance.foreign_callers.iter_mut());
        callers.for_each(|caller| caller.store = store);
    }

    #[inline]
    fn handle_for_foreign(&self, data: &ForeignFns) -> usize {
        // SAFETY: functions for other data are in no store's list; who has a store with its functions has
        // put its data there.
        unsafe { (data.handle)((&raw const *self).addr()) }
    }

    /// Has the host function that runs now fail when it returns; gives what it would have failed with,
    /// which is dropped once the store is not borrowed.
    pub(crate) fn raise(&mut self, error: Error) -> Option<Error> {
        let (host_sp, before) = (self.activation.host_sp, self.take_raised());
        self.raised.push(Raised { host_sp, error });
        self.interrupts.set_due(Due::Raised, true);
        before
    }

    /// What the host function fails with that has returned, or is about to.
    pub(crate) fn take_raised(&mut self) -> Option<Error> {
        // What those around fail with is theirs.
        let raised = self.raised.pop_if(|last| last.host_sp == self.activation.host_sp)?;
        self.interrupts.set_due(Due::Raised, !self.raised.is_empty());
        Some(raised.error)
    }

    /// No host function runs any more.
    pub(crate) fn forget_raised(&mut self) {
        self.raised.clear();
        self.interrupts.set_due(Due::Raised, false);
    }
}
