//! The machine code of a module, mapped.

use std::borrow::Cow;
use std::os::fd::BorrowedFd;

use pagefork_pages::{CodeFile, CodePages, PagesError};

use crate::base::error::SystemError;

/// Machine code of a module where it can run, and what lies behind it. The code cannot
/// be written. It is unmapped when this is dropped, so none of it may run then.
#[derive(Debug)]
pub(crate) struct CodeMemory {
    /// Address of the first byte.
    start: usize,
    /// Bytes of code.
    code: usize,
    place: CodePlace,
}

#[derive(Debug)]
enum CodePlace {
    /// A copy, in pages beside those of other modules, and a copy of what lies behind
    /// the code.
    Copied(CodePages, Box<[u8]>),
    /// Mapped from a file with all that belongs to it.
    Mapped(CodeFile),
}

impl CodeMemory {
    /// A copy of `text`, the first `code` bytes of it executable.
    ///
    /// # Errors
    /// If the system has no memory for it or does not let it be executed.
    pub(crate) fn new(text: &[u8], code: usize) -> Result<Self, SystemError> {
        let (code, rest) = text.split_at(code);
        let failed = |source| SystemError::CodeMemory { size: code.len(), source };
        let pages = CodePages::new(code).map_err(failed)?;
        let start = pages.start().expose_provenance();
        Ok(Self { start, code: code.len(), place: CodePlace::Copied(pages, rest.into()) })
    }

    /// Whether code may be mapped from one more file: each takes maps of its own.
    pub(crate) fn can_map() -> bool {
        CodeFile::has_room()
    }

    /// Maps code that lies in a file, without copying it: `size` bytes from byte
    /// `offset` on, a multiple of the page size, the first `code` bytes executable:
    /// all, or whole pages.
    ///
    /// # Errors
    /// If the system has no memory for it or does not let the file be executed.
    ///
    /// # Safety
    /// The file has the bytes, and they never change.
    pub(crate) unsafe fn map(
        file: BorrowedFd<'_>,
        offset: u64,
        size: usize,
        code: usize,
    ) -> Result<Self, SystemError> {
        if size == 0 {
            return Self::new(&[], 0);
        }
        let failed = |source: PagesError| SystemError::CodeMemory { size, source };
        // SAFETY: by this function's contract the file has these bytes, and they never change.
        let mapped = unsafe { CodeFile::map(file, offset, size, code) }.map_err(failed)?;
        let start = mapped.start().expose_provenance();
        Ok(Self { start, code, place: CodePlace::Mapped(mapped) })
    }

    /// Address of the first byte.
    pub(crate) fn start(&self) -> usize {
        self.start
    }

    /// The code.
    pub(crate) fn text(&self) -> &[u8] {
        match &self.place {
            CodePlace::Copied(pages, _) => pages.bytes(),
            CodePlace::Mapped(file) => &file.bytes()[..self.code],
        }
    }

    /// What lies behind the code, and is not executable.
    pub(crate) fn behind(&self) -> &[u8] {
        match &self.place {
            CodePlace::Copied(_, rest) => rest,
            CodePlace::Mapped(file) => &file.bytes()[self.code..],
        }
    }

    /// The code, and what lies behind it.
    pub(crate) fn whole(&self) -> Cow<'_, [u8]> {
        match &self.place {
            CodePlace::Copied(pages, rest) if rest.is_empty() => pages.bytes().into(),
            CodePlace::Copied(pages, rest) => [pages.bytes(), rest].concat().into(),
            CodePlace::Mapped(file) => file.bytes().into(),
        }
    }

    /// Offset of the instruction at address `pc`, if it is in this code.
    pub(crate) fn offset_of(&self, pc: usize) -> Option<u32> {
        let offset = pc.wrapping_sub(self.start);
        // Texts are smaller than 4 GiB: the compiler's distances have 32 bits.
        (offset < self.code).then_some(offset as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_never_writable_and_what_lies_behind_never_executable() {
        // mov eax, 42; ret
        let text = [0xb8, 42, 0, 0, 0, 0xc3, 7, 7];
        let code = CodeMemory::new(&text, 6).unwrap();
        let start = code.start();
        // SAFETY: the bytes above are a function of this type.
        let function: extern "C" fn() -> u32 = unsafe { std::mem::transmute(start) };
        assert_eq!(function(), 42);
        let map_of = |address: usize| {
            let address = address as u64;
            let maps = pagefork_pages::procmaps::read().unwrap();
            maps.into_iter().find(|map| map.range.contains(&address)).unwrap()
        };
        let map = map_of(start);
        assert!(map.read && map.execute && !map.write);
        assert!(!map_of(code.behind().as_ptr().addr()).execute);
        assert_eq!((code.offset_of(start + 5), code.offset_of(start + 6)), (Some(5), None));
        assert_eq!((code.text(), code.behind()), (&text[..6], &text[6..]));
        assert_eq!(*code.whole(), text);
    }

    #[test]
    fn no_code_is_no_mapping() {
        let code = CodeMemory::new(&[], 0).unwrap();
        assert_eq!(code.offset_of(code.start()), None);
        assert!(code.text().is_empty() && code.behind().is_empty());
    }
}
