//! What an imported function is bound to, where compiled code and shims find it.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use pagefork_layout::link;
use pagefork_layout::reference::{FuncRef, HOST_ORDINAL};

use crate::store::activation::Activation;
use crate::store::call_hook::HOOKED;
use crate::store::foreign::ForeignCaller;
use crate::store::group::StoreGroup;

/// See [`link::function_import`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct FunctionImport {
    pub(super) code: usize,
    pub(super) base: usize,
    thunk: usize,
    shim: usize,
    closure: usize,
    activation: usize,
    due: usize,
}

impl FunctionImport {
    /// What the shim calls.
    #[inline]
    pub(crate) fn closure<F>(&self) -> *const F {
        ptr::with_exposed_provenance(self.closure)
    }

    /// The host function's index.
    pub(crate) fn host_function(&self) -> u32 {
        self.code as u32 & !HOOKED
    }

    /// The activation of the store.
    #[inline]
    pub(crate) fn activation(&self) -> *mut Activation {
        ptr::with_exposed_provenance_mut(self.activation)
    }

    /// What is due in the store: bits of its [`Interrupts`].
    #[inline]
    pub(crate) fn due(&self) -> *const AtomicU32 {
        ptr::with_exposed_provenance(self.due)
    }
}

const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<FunctionImport>() == link::function_import::SIZE as usize);
    assert!(offset_of!(FunctionImport, code) == link::function_import::CODE as usize);
    assert!(offset_of!(FunctionImport, base) == link::function_import::BASE as usize);
    assert!(offset_of!(FunctionImport, thunk) == link::function_import::THUNK as usize);
    assert!(offset_of!(FunctionImport, shim) == link::function_import::SHIM as usize);
    assert!(offset_of!(FunctionImport, closure) == link::function_import::CLOSURE as usize);
    assert!(offset_of!(FunctionImport, activation) == link::function_import::ACTIVATION as usize);
    assert!(offset_of!(FunctionImport, due) == link::function_import::DUE as usize);
};

impl StoreGroup {
    /// How these functions are called from an instance that is not their own, which has a caller for each
    /// if functions of C's are among them.
    pub(super) fn function_imports(
        &self,
        functions: &[FuncRef],
        callers: &[ForeignCaller],
    ) -> Box<[FunctionImport]> {
        let record = |(index, function): (usize, &FuncRef)| {
            self.function_import(*function, callers.get(index))
        };
        functions.iter().enumerate().map(record).collect()
    }

    /// How a function is called from an instance that is not its own, with this caller if it is C's.
    pub(crate) fn function_import(
        &self,
        function: FuncRef,
        caller: Option<&ForeignCaller>,
    ) -> FunctionImport {
        let index = function.index().expect("a definition is not null");
        let activation = (&raw const self.activation).expose_provenance();
        let due = self.activation.due.expose_provenance();
        let (thunk, shim, closure) = (0, 0, 0);
        if function.ordinal() != HOST_ORDINAL {
            let instance = self.instance(function.ordinal());
            let (code, base) = (instance.module.function_code(index), instance.base());
            return FunctionImport { code, base, thunk, shim, closure, activation, due };
        }
        let (code, base) = (index as usize, 0);
        if self.is_hooked {
            let code = code | HOOKED as usize;
            return FunctionImport { code, base, thunk, shim, closure, activation, due };
        }
        let host = &self.host_functions[code];
        let Some(direct) = &host.direct else {
            return FunctionImport { code, base, thunk, shim, closure, activation, due };
        };
        // Where a guest may be suspended, a call may have to be made later: the shim keeps its arguments.
        if let (Some(foreign), Some(caller), false) =
            (&direct.foreign, caller, self.clears_registers)
        {
            let thunks = match (&foreign.cells, &*host.ty.params) {
                (None, _) => &self.direct_thunks.foreign,
                (Some(_), [] | [_]) => &self.direct_thunks.cell,
                (Some(_), _) => &self.direct_thunks.cells,
            };
            let (thunk, shim) = (thunks.of(&host.ty.results), foreign.function);
            let closure = caller.expose();
            return FunctionImport { code, base, thunk, shim, closure, activation, due };
        }
        let thunks = match self.clears_registers {
            true => &self.direct_thunks.all,
            false => &self.direct_thunks.result,
        };
        let thunk = thunks.of(&host.ty.results);
        let closure = Arc::as_ptr(&direct.closure).expose_provenance();
        let shim = match self.clears_registers {
            true => direct.keeping_shim,
            false => direct.shim,
        };
        FunctionImport { code, base, thunk, shim, closure, activation, due }
    }

    /// Has direct host calls clear registers from now on: at an interruption point at which
    /// the guest is suspended, registers become bytes of its pages.
    pub(crate) fn clear_registers(&mut self) {
        if std::mem::replace(&mut self.clears_registers, true) {
            return;
        }
        self.renew_function_imports();
        self.update_due();
    }

    /// Writes again how the functions are called that instances import.
    pub(crate) fn renew_function_imports(&mut self) {
        for index in 0..self.instances.len() {
            let instance = &self.instances[index];
            let records =
                self.function_imports(&instance.imports.functions, &instance.foreign_callers);
            self.instances[index].function_imports.copy_from_slice(&records);
        }
    }

    /// Has the records of imports lead to what is due now.
    pub(crate) fn renew_due_of_imports(&mut self) {
        let due = self.activation.due.expose_provenance();
        let instances = self.instances.iter_mut();
        let records = instances.flat_map(|instance| instance.function_imports.iter_mut());
        records.for_each(|record| record.due = due);
    }
}
