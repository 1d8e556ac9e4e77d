//! Traps and their frames.

use std::fmt;
use std::sync::{Arc, OnceLock};

use pagefork::{Error, Exception, ExnRef, Frame, Result, WasmBacktrace};

use crate::base::c_box::CBox;
use crate::base::c_vec::Element;
use crate::objects::host_info::InfoPlace;
use crate::objects::object::{Object, wasm_ref_t};
use crate::objects::store::StoreRef;

/// Why a call ended, whoever ended it.
#[derive(Debug)]
pub(crate) struct TrapObject {
    /// What C has said; else the error says it.
    message: Option<Vec<u8>>,
    /// What the call ended with, if C did not make the trap.
    pub(crate) error: Option<Error>,
    /// Where the guest was, once that is known.
    backtrace: OnceLock<WasmBacktrace>,
    /// By what guests hold it, if it is an exception that one has given out.
    pub(crate) held: Option<ExnRef>,
    /// What C attached.
    pub(crate) info: InfoPlace,
}

/// A trap of C's on its way through guests.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.text())]
struct RaisedTrap(Arc<TrapObject>);

impl TrapObject {
    /// A trap that C makes, in the frames that wait for it, if they are known.
    pub(crate) fn new(message: &[u8], backtrace: Option<WasmBacktrace>) -> Arc<Self> {
        let message = message.strip_suffix(&[0]).unwrap_or(message);
        let place = OnceLock::new();
        if let Some(backtrace) = backtrace
            && !backtrace.frames().is_empty()
        {
            // It is new, so nobody has set it.
            let _ = place.set(backtrace);
        }
        let (message, info) = (Some(message.to_owned()), InfoPlace::default());
        Arc::new(Self { message, error: None, backtrace: place, held: None, info })
    }

    /// What a call ended with: the trap itself, if C made it.
    pub(crate) fn of(error: Error) -> Arc<Self> {
        if let Some(RaisedTrap(trap)) = error.downcast_ref() {
            // One that was made in a host function, or is a guest's own, knows its frames already.
            if trap.frames().is_empty()
                && let Some(backtrace) = error.backtrace()
            {
                // A thread that was faster has set the same.
                let _ = trap.backtrace.set(backtrace.clone());
            }
            return Arc::clone(trap);
        }
        Self::holding(error, None)
    }

    /// An exception that guests hold, too.
    pub(crate) fn of_exception(exception: Exception, held: ExnRef) -> Arc<Self> {
        Self::holding(exception.into(), Some(held))
    }

    fn holding(error: Error, held: Option<ExnRef>) -> Arc<Self> {
        let (backtrace, info) = (OnceLock::new(), InfoPlace::default());
        Arc::new(Self { message: None, error: Some(error), backtrace, held, info })
    }

    /// The error by which a host function that returned this trap fails.
    pub(crate) fn raise(trap: &Arc<Self>) -> Error {
        Error::new(RaisedTrap(Arc::clone(trap)))
    }

    /// Why the call ended.
    pub(crate) fn text(&self) -> String {
        match (&self.message, &self.error) {
            (Some(message), _) => String::from_utf8_lossy(message).into_owned(),
            (None, Some(error)) => format!("{error:#}"),
            (None, None) => String::new(),
        }
    }

    /// The message as bytes, with a zero behind.
    pub(crate) fn message(&self) -> Vec<u8> {
        let mut bytes = self.message.clone().unwrap_or_else(|| self.text().into_bytes());
        bytes.push(0);
        bytes
    }

    /// The guest's frames, innermost first.
    pub(crate) fn frames(&self) -> &[Frame] {
        let of_error = || self.error.as_ref().and_then(Error::backtrace);
        self.backtrace.get().or_else(of_error).map_or(&[], WasmBacktrace::frames)
    }
}

/// A frame of a trap.
pub(crate) struct wasm_frame_t {
    /// The instance, if it is there.
    pub(crate) instance: Option<CBox<wasm_ref_t>>,
    /// Index of the function in its module.
    pub(crate) func_index: u32,
    /// Bytes of the module into the function's body.
    pub(crate) func_offset: usize,
    /// Bytes into the module.
    pub(crate) module_offset: usize,
}

impl Element for wasm_frame_t {
    fn copy(&self) -> Self {
        let instance = self.instance.as_deref().and_then(wasm_ref_t::copy);
        let Self { func_index, func_offset, module_offset, .. } = *self;
        Self { instance, func_index, func_offset, module_offset }
    }
}

impl wasm_frame_t {
    /// A frame of a guest of this store.
    ///
    /// # Errors
    /// If the store may not be reached.
    pub(crate) fn new(store: Option<&StoreRef>, frame: &Frame) -> Result<Self> {
        let instance = match store {
            Some(store) => {
                let instance = frame.instance(&store.context()?);
                instance.map(|instance| store.own(Object::Instance(instance)))
            }
            None => None,
        };
        Ok(Self {
            instance,
            func_index: frame.function_index(),
            func_offset: frame.wasm_offset().unwrap_or(0) as usize,
            module_offset: frame.module_offset().unwrap_or(0) as usize,
        })
    }
}

impl fmt::Display for TrapObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text())
    }
}
