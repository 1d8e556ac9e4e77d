//! Functions of C's that guests call with nothing of Rust's in between, and what such functions fail with.
//!
//! What they are given as their caller lies beside the records of an instance's imports, and is there as
//! long as the instance. Records may be written anew while such a function runs; its caller stays.

use pagefork_layout::reference::{FuncRef, HOST_ORDINAL};

use crate::base::error::Error;
use crate::store::group::StoreGroup;
use crate::store::interrupt::Due;

/// How guests call a function of C's.
#[derive(Clone, Copy)]
pub(crate) struct ForeignCall {
    /// Its address. It takes the address of a [`ForeignCaller`], then the arguments.
    pub(crate) function: usize,
    /// What it was made with.
    pub(crate) env: usize,
    /// What such functions know a store by, which is at this address.
    ///
    /// # Safety
    /// To be called with the address of a store whose data are those that the function was made for, and there.
    pub(crate) handle: unsafe fn(usize) -> usize,
}

/// What a function of C's is given as its caller.
#[repr(C)]
#[derive(Default, Debug)]
pub(crate) struct ForeignCaller {
    env: usize,
    store: usize,
}

impl ForeignCaller {
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
    fn foreign(&self, function: FuncRef) -> Option<ForeignCall> {
        let index = function.index().filter(|_| function.ordinal() == HOST_ORDINAL)?;
        self.host_functions[index as usize].direct.as_ref()?.foreign
    }

    /// A caller for each of these functions; none at all if none of them is C's.
    pub(super) fn foreign_callers(&mut self, functions: &[FuncRef]) -> Box<[ForeignCaller]> {
        let Some(any) = functions.iter().find_map(|function| self.foreign(*function)) else {
            return Box::default();
        };
        self.foreign_handle = Some(any.handle);
        let store = self.handle_for_foreign(any.handle);
        let env = |function: &FuncRef| self.foreign(*function).map_or(0, |foreign| foreign.env);
        functions.iter().map(|function| ForeignCaller { env: env(function), store }).collect()
    }

    /// Has functions of C's know the store by what its data say now.
    #[inline]
    pub(crate) fn renew_foreign_callers(&mut self) {
        if let Some(handle) = self.foreign_handle {
            let store = self.handle_for_foreign(handle);
            let instances = self.instances.iter_mut();
            let callers = instances.flat_map(|instance| instance.foreign_callers.iter_mut());
            callers.for_each(|caller| caller.store = store);
        }
    }

    #[inline]
    fn handle_for_foreign(&self, handle: unsafe fn(usize) -> usize) -> usize {
        // SAFETY: functions for other data are in no store's list; who has a store with its functions has
        // put its data there.
        unsafe { handle((&raw const *self).addr()) }
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
