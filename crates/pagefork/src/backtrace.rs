use std::fmt;

use pagefork_layout::code::CodeKind;
use pagefork_layout::text::OneLine;

use crate::demangle::demangle;
use crate::enter::{self, EntryFrame};
use crate::module::Module;
use crate::source::SourceLocation;
use crate::store::StoreInner;

/// At most this many frames are kept, the innermost ones; the others are counted.
const FRAMES_MAX: usize = 64;

/// At most this many places in source code are shown of all frames.
const LOCATIONS_MAX: usize = 128;

/// The functions of the guest that were running, innermost first, across all
/// entries into the store.
#[derive(Clone, Default)]
pub struct WasmBacktrace {
    frames: Vec<Frame>,
    omitted: usize,
}

/// A function of the guest that was running.
#[derive(Clone)]
pub struct Frame {
    module: Module,
    instance: u32,
    function: u32,
    offset: u32,
    /// Offsets in the text of the function, and of what the source is noted for.
    noted: (u32, u32),
}

impl Frame {
    /// The function's module.
    pub fn module(&self) -> &Module {
        &self.module
    }

    /// The function's index in its module, imports included.
    pub fn function_index(&self) -> u32 {
        self.function
    }

    /// The function's name, where the module has one for it, as it is there: of code in
    /// Rust or C++ it may be mangled, and it may have any characters. Displayed, a frame
    /// names it as the source does, in one line: see [`OneLine`].
    pub fn function_name(&self) -> Option<&str> {
        self.module.info().function_name(self.function)
    }

    /// How many bytes of the module's code section into the function's body it
    /// was, if that was noted: it is for modules with debug information, and with
    /// [`Config::sources`](crate::Config::sources).
    pub fn wasm_offset(&self) -> Option<u32> {
        let debug = self.module.debug()?;
        let (body, at) = (debug.source_at(self.noted.0)?, debug.source_at(self.noted.1)?);
        Some(at.saturating_sub(body))
    }

    /// Where in the source code it was, by the debug information in the module:
    /// the innermost inlined function first. Empty without debug information. Of what
    /// is inlined into each other, the 32 outermost levels are told apart.
    pub fn source_locations(&self) -> Vec<SourceLocation> {
        let sources = self.module.sources();
        sources.map_or_else(Vec::new, |(debug, sources)| sources.locate(debug, self.noted.1))
    }

    /// Ordinal of its instance in the store.
    pub(crate) fn instance(&self) -> u32 {
        self.instance
    }

    /// How many bytes of machine code into the function it was.
    pub fn code_offset(&self) -> u32 {
        self.offset
    }
}

impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let module = self.module.name().unwrap_or("<unnamed module>");
        let function = self.function_name().map_or("<unnamed function>".into(), demangle);
        write!(f, "{}!{}", OneLine(module), OneLine(&function))?;
        write!(f, " (function {}, code offset {:#x})", self.function, self.offset)
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl WasmBacktrace {
    /// The frames, innermost first.
    pub fn frames(&self) -> &[Frame] {
        &self.frames
    }

    /// How many further frames there were, beyond the outermost of
    /// [`WasmBacktrace::frames`].
    pub fn omitted_count(&self) -> usize {
        self.omitted
    }

    /// The frames of these instructions, then those from the frame pointer `frame`
    /// up, and on in the entries around this one.
    ///
    /// # Safety
    /// `frame` is a frame pointer of a guest of `store` that does not run now, or
    /// 0, and `entry` its innermost entry frame, or 0.
    pub(crate) unsafe fn capture(
        store: &StoreInner,
        instructions: &[usize],
        frame: usize,
        entry: usize,
    ) -> Self {
        let mut trace = Self::default();
        for pc in instructions {
            trace.push(store, *pc);
        }
        let (mut frame, mut entry) = (frame, entry);
        loop {
            while frame != 0 {
                // SAFETY: frame pointers are kept in every frame: the caller's,
                // then the return address.
                let (next, return_address) =
                    unsafe { *std::ptr::with_exposed_provenance::<(usize, usize)>(frame) };
                // A call's instruction ends where its return address begins.
                trace.push_call(store, return_address);
                frame = next;
            }
            if entry == 0 {
                return trace;
            }
            // SAFETY: entries that have not been left are intact, as the caller
            // promises of the innermost, and each leads to the one around it.
            let around = unsafe { &*std::ptr::with_exposed_provenance::<EntryFrame>(entry) };
            if around.outer_host_sp == 0 {
                return trace;
            }
            frame = around.outer_guest_sp;
            entry = around.outer_host_sp;
        }
    }

    /// Adds the frame of the call that returns to this address.
    fn push_call(&mut self, store: &StoreInner, return_address: usize) {
        self.push_at(store, return_address - 1, 1);
    }

    /// Adds the frame of the instruction at `pc`.
    fn push(&mut self, store: &StoreInner, pc: usize) {
        self.push_at(store, pc, 0);
    }

    /// Adds the frame of the instruction at `pc`, whose source is noted `ahead`
    /// bytes behind it.
    fn push_at(&mut self, store: &StoreInner, pc: usize, ahead: u32) {
        let Some((instance, offset)) = store.code_at(pc) else {
            debug_assert!(pc == 0 || enter::thunks().contains(pc), "unknown code in a frame");
            return;
        };
        let module = &instance.module;
        let Some(range) = module.code().range_at(offset) else { return };
        let (CodeKind::Function(function) | CodeKind::Comparing(function)) = range.kind else {
            return;
        };
        if function < module.info().imported_functions {
            return;
        }
        if self.frames.len() == FRAMES_MAX {
            self.omitted += 1;
            return;
        }
        self.frames.push(Frame {
            module: module.clone(),
            instance: store.ordinal_of_instance(instance),
            function,
            offset: offset - range.start,
            noted: (range.start, offset + ahead),
        });
    }
}

impl fmt::Display for WasmBacktrace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("wasm backtrace, innermost first:")?;
        let (mut shown, mut partial) = (0, false);
        for (number, frame) in self.frames.iter().enumerate() {
            write!(f, "\n  {number:>3}: {frame}")?;
            if shown == LOCATIONS_MAX {
                continue;
            }
            for location in frame.source_locations().iter().take(LOCATIONS_MAX - shown) {
                write!(f, "\n       {location}")?;
                shown += 1;
            }
            partial |= frame.module.sources().is_some_and(|(_, sources)| sources.is_exhausted());
        }
        if shown == LOCATIONS_MAX {
            f.write_str("\n  ... places in source code beyond these are left out")?;
        }
        if partial {
            f.write_str("\n  ... debug information beyond what is read is left out")?;
        }
        match self.omitted {
            0 => Ok(()),
            omitted => write!(f, "\n  ... and {omitted} more"),
        }
    }
}

impl fmt::Debug for WasmBacktrace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
