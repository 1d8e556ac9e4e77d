//! From a file to a compiled module.

use std::fs;
use std::io::{ErrorKind, Read};
use std::path::{Display, Path};
use std::sync::Arc;

use pagefork::{Config, Engine, Module, Progress};

use crate::arguments::is_stdin;
use crate::inspect::proposals;
use crate::progress::while_compiling;

/// An engine, and a bar that shows how far it is with compiling.
pub(crate) struct Loader {
    engine: Engine,
    progress: Arc<Progress>,
}

impl Loader {
    /// Makes the engine.
    ///
    /// # Errors
    /// If the machine lacks something.
    pub(crate) fn new(mut config: Config) -> Result<Loader, String> {
        let progress = Arc::new(Progress::new());
        config.progress(Arc::clone(&progress));
        let engine = Engine::new(&config).map_err(|error| format!("{error:#}"))?;
        Ok(Loader { engine, progress })
    }

    /// The engine of all modules that this loads.
    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Makes a module from a file that has one, compiled already or not.
    ///
    /// # Errors
    /// As [`read`] and [`Loader::compile`]; if a code image does not fit.
    pub(crate) fn load(&self, path: &Path) -> Result<Module, String> {
        if is_code_image(path) {
            let loaded = Module::from_code_image_file(&self.engine, path);
            return loaded.map_err(|error| format!("{error:#}"));
        }
        self.compile(path, &read(path)?)
    }

    /// Compiles a module that [`read`] gave from this path.
    ///
    /// # Errors
    /// If the module is refused, with advice.
    pub(crate) fn compile(&self, path: &Path, binary: &[u8]) -> Result<Module, String> {
        let compile = || Module::from_binary(&self.engine, binary);
        while_compiling(&self.progress, compile).map_err(|error| {
            let refused = format!("{}: {error:#}", shown(path));
            match error.downcast_ref::<pagefork::CompileError>() {
                Some(pagefork::CompileError::Invalid { .. }) => {
                    format!("{refused}\n{}", advice(binary))
                }
                _ => refused,
            }
        })
    }
}

/// A path as messages have it.
pub(crate) fn shown(path: &Path) -> Display<'_> {
    match is_stdin(path) {
        true => Path::new("standard input").display(),
        false => path.display(),
    }
}

/// Whether a file begins like a code image. One that cannot be read does not.
pub(crate) fn is_code_image(path: &Path) -> bool {
    let regular = !is_stdin(path) && fs::metadata(path).is_ok_and(|metadata| metadata.is_file());
    regular && matches!(Engine::detect_precompiled_file(path), Ok(Some(_)))
}

/// Reads a module from a file or from standard input and gives it in the binary format.
///
/// # Errors
/// If the file is refused, with advice.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, String> {
    let shown = shown(path);
    let mut bytes = Vec::new();
    if is_stdin(path) {
        let read = std::io::stdin().lock().read_to_end(&mut bytes);
        read.map_err(|error| format!("cannot read {shown}: {error}"))?;
        return to_binary(path, bytes);
    }
    let mut file = fs::File::open(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound if path.components().count() == 1 => format!(
            "there is no file {shown} here, and no command of that name: \
             `pagefork --help` lists the commands"
        ),
        ErrorKind::NotFound => format!("there is no file {shown}"),
        ErrorKind::PermissionDenied => {
            format!("{shown} may not be read by this user: `chmod +r {shown}` permits it")
        }
        _ => format!("cannot open {shown}: {error}"),
    })?;
    let metadata = file.metadata().map_err(|error| format!("cannot read {shown}: {error}"))?;
    if metadata.is_dir() {
        return Err(format!("{shown} is a directory: name the module in it"));
    }
    file.read_to_end(&mut bytes).map_err(|error| format!("cannot read {shown}: {error}"))?;
    to_binary(path, bytes)
}

fn to_binary(path: &Path, bytes: Vec<u8>) -> Result<Vec<u8>, String> {
    if bytes.starts_with(b"\0asm") {
        return match kind_of(&bytes) {
            Binary::Module => Ok(bytes),
            Binary::Component => Err(component(path)),
            Binary::CutShort => Err(format!(
                "{} ends within its first 8 bytes: it was not written completely, make it again",
                shown(path)
            )),
            Binary::Other(version) => Err(format!(
                "{} says that it is of version {version:#x} of WebAssembly's binary format, \
                 which is unknown here; modules are of version 0x1",
                shown(path)
            )),
        };
    }
    let text = match std::str::from_utf8(&bytes) {
        Ok(text) if !text.contains('\0') => text,
        _ => return Err(not_wasm(path, &bytes)),
    };
    let start = start_of_code(text);
    if !start.starts_with('(') {
        return Err(not_wasm(path, &bytes));
    }
    let second = start[1..].trim_start();
    if second.starts_with("component") {
        return Err(component(path));
    }
    wat::parse_str(text).map_err(|mut error| {
        error.set_path(Path::new(&shown(path).to_string()));
        let script =
            ["assert_", "invoke", "register"].iter().any(|word| text.contains(&format!("({word}")));
        let hint = if script { "\nA test script is run with `pagefork wast`." } else { "" };
        format!("malformed text of a module: {error}{hint}")
    })
}

/// The kind of a binary, by its first eight bytes.
enum Binary {
    Module,
    Component,
    CutShort,
    Other(u32),
}

fn kind_of(bytes: &[u8]) -> Binary {
    match bytes.get(4..8).map(|word| [word[0], word[1], word[2], word[3]]) {
        None => Binary::CutShort,
        Some([1, 0, 0, 0]) => Binary::Module,
        // The second half is the layer: 1 for components, of any version.
        Some([_, _, 1, 0]) => Binary::Component,
        Some(version) => Binary::Other(u32::from_le_bytes(version)),
    }
}

fn component(path: &Path) -> String {
    format!(
        "{} is a component; components are not supported, only core modules: compile the program \
         for wasm32-wasip1 instead of wasm32-wasip2, or take the modules out of it with \
         `wasm-tools component unbundle`",
        shown(path)
    )
}

fn not_wasm(path: &Path, bytes: &[u8]) -> String {
    const KNOWN: [(&[u8], &str); 7] = [
        (b"\x7fELF", "a program for Linux: compile it for wasm32-wasip1"),
        (b"\xcf\xfa\xed\xfe", "a program for macOS: compile it for wasm32-wasip1"),
        (b"MZ", "a program for Windows: compile it for wasm32-wasip1"),
        (b"\x1f\x8b", "compressed: unpack it with `gunzip`"),
        (b"\x28\xb5\x2f\xfd", "compressed: unpack it with `unzstd`"),
        (b"PK\x03\x04", "an archive: unpack it with `unzip`"),
        (b"!<arch>\n", "a static library: link it to a program"),
    ];
    let shown = shown(path);
    let is_code_image = Engine::detect_precompiled(bytes).is_some();
    if is_code_image && is_stdin(path) {
        return format!("{shown} is compiled already: give `pagefork run` the file's name");
    }
    if is_code_image {
        return format!("{shown} is compiled already: `pagefork run` runs it");
    }
    if bytes.is_empty() {
        return format!("{shown} is empty: it was not written completely, make it again");
    }
    match KNOWN.iter().find(|(start, _)| bytes.starts_with(start)) {
        Some((_, what)) => format!("{shown} is no WebAssembly module but {what}"),
        None => format!(
            "{shown} is no WebAssembly module: those begin with `\\0asm` in the binary format and \
             with `(` in the text format"
        ),
    }
}

/// The text without spaces and comments at its start.
fn start_of_code(text: &str) -> &str {
    let mut rest = text.trim_start();
    loop {
        rest = if let Some(comment) = rest.strip_prefix(";;") {
            comment.split_once('\n').map_or("", |(_, rest)| rest).trim_start()
        } else if let Some(comment) = rest.strip_prefix("(;") {
            // Comments may contain comments.
            let (mut depth, mut at) = (1, 0);
            while depth > 0 {
                let Some(next) = comment[at..].find([';', '(']) else { return "" };
                at += next;
                match comment.get(at..at + 2) {
                    Some(";)") => (depth, at) = (depth - 1, at + 2),
                    Some("(;") => (depth, at) = (depth + 1, at + 2),
                    _ => at += 1,
                }
            }
            comment[at..].trim_start()
        } else {
            return rest;
        };
    }
}

/// Advice about a module that was refused.
fn advice(binary: &[u8]) -> String {
    match proposals::needed(binary) {
        None => {
            "The module is valid under no proposal that is known here: the file is damaged, or \
                 the tool that made it is wrong. Make it again."
                .to_owned()
        }
        Some(needed) if needed.is_empty() => {
            "The module is valid WebAssembly, but this is not supported: build it without."
                .to_owned()
        }
        Some(needed) => format!(
            "The module is valid WebAssembly with these proposals: {}. What the message names is \
             not supported: build the module without it.",
            needed.join(", ")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(bytes: &[u8]) -> String {
        to_binary(Path::new("x"), bytes.to_vec()).expect_err("this is no module")
    }

    #[test]
    fn what_is_no_module_is_named() {
        for (bytes, expected) in [
            (&b""[..], "empty"),
            (b"\0asm\x01", "first 8 bytes"),
            (b"\0asm\x0d\0\x01\0", "component"),
            (b"\0asm\x02\0\0\0", "version 0x2"),
            (b" (; (; ;) ;) ( component $c)", "component"),
            (b"\x7fELF\x02\x01", "Linux"),
            (b"\x1f\x8b\x08", "gunzip"),
            (b"hello", "`(`"),
            (b"\xff\xfe", "`\\0asm`"),
            (b";; only a comment", "`(`"),
            (b"(; open", "`(`"),
            (b"(module (func", "x:1"),
            (b"(module) (assert_return (invoke \"x\"))", "pagefork wast"),
        ] {
            let message = refused(bytes);
            assert!(message.contains(expected), "{bytes:?}: {message}");
        }
    }

    #[test]
    fn text_with_comments_is_a_module() {
        for text in ["(module)", ";; one\n(; two (; three ;) ; ;)\n(module)", "(func)"] {
            let binary = to_binary(Path::new("x"), text.into()).expect(text);
            assert!(binary.starts_with(b"\0asm"));
        }
    }
}
