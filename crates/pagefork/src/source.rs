//! From byte offsets in modules to lines of source code, by the debug information
//! that a module carries.

use std::fmt;

use gimli::{EndianSlice, LittleEndian};

use crate::module::Module;

/// A place in source code.
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
            write!(f, "{function} ")?;
        }
        write!(f, "at {}", self.file.as_deref().unwrap_or("<unknown file>"))?;
        for number in [self.line, self.column].into_iter().flatten() {
            write!(f, ":{number}")?;
        }
        Ok(())
    }
}

/// The debug information of a module, ready to be asked.
pub(crate) struct Sources<'a> {
    context: addr2line::Context<EndianSlice<'a, LittleEndian>>,
    /// What addresses count from, as a byte offset in the module.
    start: u32,
}

impl<'a> Sources<'a> {
    /// `None` if the module has no debug information, or none that makes sense:
    /// it is for people only, so what is wrong with it is no error.
    pub(crate) fn of(module: &'a Module) -> Option<Self> {
        let info = module.info();
        if info.dwarf.is_empty() {
            return None;
        }
        let section = |id: gimli::SectionId| -> Result<_, gimli::Error> {
            let found = info.dwarf.iter().find(|(name, _)| name == id.name());
            Ok(EndianSlice::new(found.map_or(&[][..], |(_, bytes)| bytes), LittleEndian))
        };
        let dwarf = gimli::Dwarf::load(section).ok()?;
        let context = addr2line::Context::from_dwarf(dwarf).ok()?;
        Some(Self { context, start: info.code_start })
    }

    /// Where the instruction at this byte offset of the module comes from: the
    /// innermost inlined function first.
    pub(crate) fn locate(&self, offset: u32) -> Vec<SourceLocation> {
        let Some(address) = offset.checked_sub(self.start) else { return Vec::new() };
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
