//! From byte offsets in modules to lines of source code, by the debug information
//! that a module carries.

use std::fmt;

use gimli::{EndianSlice, LittleEndian};

use pagefork_layout::code::DebugInfo;
use pagefork_layout::text::OneLine;

use crate::module::Module;

/// A place in source code. The fields are as the module has them, which may be with any
/// characters; displayed, they are parts of one line: see [`OneLine`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct SourceLocation {
    /// The function, as the source names it; inlined ones are named here only.
    pub function: Option<String>,
    /// The file's path, as the compiler saw it.
    pub file: Option<String>,
    /// The line, from 1.
    pub line: Option<u32>,
    /// The column, from 1.
    pub column: Option<u32>,
}

impl fmt::Display for SourceLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(function) = &self.function {
            write!(f, "{} ", OneLine(function))?;
        }
        write!(f, "at {}", OneLine(self.file.as_deref().unwrap_or("<unknown file>")))?;
        for number in [self.line, self.column].into_iter().flatten() {
            write!(f, ":{number}")?;
        }
        Ok(())
    }
}

/// The debug information of a module, ready to be asked.
pub(crate) struct Sources<'a> {
    context: addr2line::Context<EndianSlice<'a, LittleEndian>>,
    debug: &'a DebugInfo,
}

impl<'a> Sources<'a> {
    /// `None` if the module has no debug information, or none that makes sense:
    /// it is for people only, so what is wrong with it is no error.
    pub(crate) fn of(module: &'a Module) -> Option<Self> {
        let debug = module.debug().filter(|debug| !debug.dwarf.is_empty())?;
        let section = |id: gimli::SectionId| -> Result<_, gimli::Error> {
            let found = debug.dwarf.iter().find(|(name, _)| name == id.name());
            Ok(EndianSlice::new(found.map_or(&[][..], |(_, bytes)| bytes), LittleEndian))
        };
        let dwarf = gimli::Dwarf::load(section).ok()?;
        let context = addr2line::Context::from_dwarf(dwarf).ok()?;
        Some(Self { context, debug })
    }

    /// Where what is at this offset in the text comes from: the innermost inlined
    /// function first.
    pub(crate) fn locate(&self, offset: u32) -> Vec<SourceLocation> {
        let source = self.debug.source_at(offset);
        let address = source.and_then(|source| source.checked_sub(self.debug.code_start));
        let Some(address) = address else { return Vec::new() };
        let Ok(mut frames) = self.context.find_frames(address.into()).skip_all_loads() else {
            return Vec::new();
        };
        let mut locations = Vec::new();
        while let Ok(Some(frame)) = frames.next() {
            let location = frame.location.as_ref();
            let function = frame.function.as_ref();
            locations.push(SourceLocation {
                function: function.and_then(|name| Some(name.demangle().ok()?.into_owned())),
                file: location.and_then(|location| location.file).map(str::to_owned),
                line: location.and_then(|location| location.line),
                column: location.and_then(|location| location.column).filter(|column| *column > 0),
            });
        }
        locations
    }
}
