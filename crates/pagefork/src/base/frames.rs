//! Backtraces of guests: what is shown of the frames that were running.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use pagefork_debuginfo::{SourceLocation, demangle};
use pagefork_layout::text::OneLine;

/// At most this many frames are kept, the innermost ones; the others are counted.
const FRAMES_MAX: usize = 64;

/// At most this many places in source code are shown of all frames.
const LOCATIONS_MAX: usize = 128;

/// What a frame shows of its module.
pub(crate) trait FrameSource: Any + Send + Sync {
    /// The module's name.
    fn module_name(&self) -> Option<&str>;

    /// The name of the function with this index.
    fn function_name(&self, function: u32) -> Option<&str>;

    /// The offset in the module that is noted for this offset in the text.
    fn wasm_offset(&self, text_offset: u32) -> Option<u32>;

    /// The source code at this offset in the text, the innermost inlined function first.
    fn locate(&self, text_offset: u32) -> Vec<SourceLocation>;

    /// Whether the module has more debug information than is read.
    fn is_cut_short(&self) -> bool;
}

/// The functions of the guest that were running, innermost first, across all
/// entries into the store.
///
/// # Examples
///
/// ```
/// use pagefork::{Engine, Instance, Module, Store};
///
/// let engine = Engine::default();
/// let module = Module::new(&engine, r#"(module
///     (func $inner (unreachable))
///     (func $outer (export "run") (call $inner)))"#)?;
/// let mut store = Store::new(&engine, ());
/// let instance = Instance::new(&mut store, &module, &[])?;
/// let run = instance.get_typed_func::<(), ()>(&mut store, "run")?;
/// let error = run.call(&mut store, ()).unwrap_err();
/// let backtrace = error.backtrace().expect("a guest ran");
/// let names: Vec<_> = backtrace.frames().iter().map(|frame| frame.function_name()).collect();
/// assert_eq!(names, [Some("inner"), Some("outer")]);
/// assert_eq!(backtrace.omitted_count(), 0);
/// # Ok::<(), pagefork::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct WasmBacktrace {
    frames: Vec<Frame>,
    omitted: usize,
}

/// A function of the guest that was running.
///
/// # Examples
///
/// ```
/// use pagefork::{Engine, Instance, Module, Store};
///
/// let engine = Engine::default();
/// let module = Module::new(&engine, r#"(module $m (func $f (export "run") (unreachable)))"#)?;
/// let mut store = Store::new(&engine, ());
/// let instance = Instance::new(&mut store, &module, &[])?;
/// let run = instance.get_typed_func::<(), ()>(&mut store, "run")?;
/// let error = run.call(&mut store, ()).unwrap_err();
/// let frame = &error.backtrace().expect("a guest ran").frames()[0];
/// assert_eq!((frame.module().name(), frame.function_index()), (Some("m"), 0));
/// assert!(frame.to_string().starts_with("m!f (function 0"));
/// // The module has no debug information.
/// assert!(frame.source_locations().is_empty() && frame.wasm_offset().is_none());
/// println!("{} bytes into the function's code", frame.code_offset());
/// # Ok::<(), pagefork::Error>(())
/// ```
#[derive(Clone)]
pub struct Frame {
    pub(crate) source: Arc<dyn FrameSource>,
    /// The store's number.
    pub(crate) store: u64,
    /// Ordinal of its instance in the store.
    pub(crate) instance: u32,
    pub(crate) function: u32,
    /// Bytes of machine code into the function.
    pub(crate) offset: u32,
    /// Offsets in the text of the function, and of what the source is noted for.
    pub(crate) noted: (u32, u32),
}

impl Frame {
    /// The function's index in its module, imports included.
    ///
    /// # Examples
    ///
    /// See [`Frame`].
    pub fn function_index(&self) -> u32 {
        self.function
    }

    /// The function's name, where the module has one for it, as it is there: of code in
    /// Rust or C++ it may be mangled, and it may have any characters. Displayed, a frame
    /// names it as the source does, in one line: see [`OneLine`].
    ///
    /// # Examples
    ///
    /// See [`WasmBacktrace`].
    pub fn function_name(&self) -> Option<&str> {
        self.source.function_name(self.function)
    }

    /// How many bytes of the module's code section into the function's body it
    /// was, if that was noted: it is for modules with debug information, and with
    /// [`Config::sources`](crate::Config::sources).
    ///
    /// # Examples
    ///
    /// See [`Frame`].
    pub fn wasm_offset(&self) -> Option<u32> {
        let (body, at) =
            (self.source.wasm_offset(self.noted.0)?, self.source.wasm_offset(self.noted.1)?);
        Some(at.saturating_sub(body))
    }

    /// How many bytes of the module into it was, if that was noted: see
    /// [`Frame::wasm_offset`].
    ///
    /// # Examples
    ///
    /// See [`Config::sources`](crate::Config::sources).
    pub fn module_offset(&self) -> Option<u32> {
        self.source.wasm_offset(self.noted.1)
    }

    /// Where in the source code it was, by the debug information in the module:
    /// the innermost inlined function first. Empty without debug information. Of what
    /// is inlined into each other, the 32 outermost levels are told apart.
    ///
    /// # Examples
    ///
    /// See [`Frame`].
    pub fn source_locations(&self) -> Vec<SourceLocation> {
        self.source.locate(self.noted.1)
    }

    /// How many bytes of machine code into the function it was.
    ///
    /// # Examples
    ///
    /// See [`Frame`].
    pub fn code_offset(&self) -> u32 {
        self.offset
    }
}

impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let module = self.source.module_name().unwrap_or("<unnamed module>");
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
    /// Adds a frame further out, or counts it.
    pub(crate) fn push(&mut self, frame: impl FnOnce() -> Frame) {
        match self.frames.len() {
            FRAMES_MAX => self.omitted += 1,
            _ => self.frames.push(frame()),
        }
    }

    /// The frames, innermost first.
    ///
    /// # Examples
    ///
    /// See [`WasmBacktrace`].
    pub fn frames(&self) -> &[Frame] {
        &self.frames
    }

    /// How many further frames there were, beyond the outermost of
    /// [`WasmBacktrace::frames`].
    ///
    /// # Examples
    ///
    /// See [`WasmBacktrace`].
    pub fn omitted_count(&self) -> usize {
        self.omitted
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
            partial |= frame.source.is_cut_short();
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
