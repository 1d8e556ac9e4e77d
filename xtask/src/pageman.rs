//! Programs with the guest page manager, built from `guest/pageman` for the tests.

use std::path::{Path, PathBuf};

use crate::Result;
use crate::guests;
use crate::host::{self, Host};
use crate::sha256;

/// The crate that carries mimalloc's sources, where in it they are, and their digest: that of
/// each file's path, length and bytes, in the order of paths.
const MIMALLOC: (&str, &str) = ("libmimalloc-sys", "0.1.49");
const MIMALLOC_FOLDER: &str = "c_src/mimalloc/v2";
const MIMALLOC_SHA256: &str = "32f5cccf9b1442934bb5db8e49e73aba971e87f2d5665776944916f64024af56";

/// The library's own files, in `guest/pageman/src`.
const LIBRARY: &[&str] =
    &["tables.c", "manager.c", "calls.c", "statistics.c", "posix.c", "port_wasm.c"];

/// A program: its name, source and flags.
struct Program {
    name: &'static str,
    source: &'static str,
    /// Whether malloc is the one on top of the manager.
    malloc: bool,
    flags: &'static [&'static str],
}

const PROGRAMS: &[Program] = &[
    Program { name: "pageman", source: "test/program.c", malloc: true, flags: &[] },
    Program {
        name: "pageman_4k",
        source: "test/program.c",
        malloc: true,
        flags: &["-DPAGEMAN_PAGE_SHIFT=12"],
    },
];

/// Builds the programs that are not there as they would be built now. Returns how many
/// there are.
pub(crate) fn build(host: &Host, directory: &Path) -> Result<usize> {
    let root = host.root.join("guest/pageman");
    let sources = format!("{:?}", (MIMALLOC, MIMALLOC_SHA256, digest(&root)?));
    for program in PROGRAMS {
        let Program { name, flags, .. } = program;
        let (guest, stamp) =
            (directory.join(format!("{name}.wasm")), directory.join(format!("{name}.txt")));
        let inputs = format!("{sources} {flags:?} {:?}", guests::COMPILER);
        let stamped = |wasm: &[u8]| format!("{inputs} made {}\n", sha256::hex(wasm));
        if let (Ok(wasm), Ok(made)) = (std::fs::read(&guest), std::fs::read_to_string(&stamp))
            && made == stamped(&wasm)
        {
            continue;
        }
        let compiler = guests::compiler(host)?;
        let mut zig = guests::zig(host, &compiler, "cc");
        zig.args(["-target", "wasm32-wasi", "-std=gnu17", "-O2", "-Wl,--strip-debug"]);
        zig.args(*flags).arg("-I").arg(root.join("include"));
        if program.malloc {
            let mimalloc = mimalloc(host, directory)?;
            // What the compiler says of mimalloc is not ours to heed.
            zig.args(["-w", "-DNDEBUG", "-DMI_SEGMENT_SHIFT=20"]);
            zig.arg("-I").arg(mimalloc.join("include")).arg("-I").arg(mimalloc.join("src"));
            zig.arg(root.join("src/malloc_mimalloc.c"));
        } else {
            zig.args(["-Wall", "-Wextra", "-Werror"]);
        }
        zig.args(LIBRARY.iter().map(|file| root.join("src").join(file)));
        eprintln!("building {name}");
        host::check(zig.arg(root.join(program.source)).arg("-o").arg(&guest))?;
        host::write(&stamp, stamped(&host::read(&guest)?).as_bytes())?;
    }
    Ok(PROGRAMS.len())
}

/// Where mimalloc's sources are, fetched if they were not.
fn mimalloc(host: &Host, directory: &Path) -> Result<PathBuf> {
    let (package, _) = MIMALLOC;
    let folder = guests::vendor(host, &directory.join("mimalloc"), MIMALLOC)?.join(MIMALLOC_FOLDER);
    let found = digest(&folder)?;
    if found == MIMALLOC_SHA256 {
        Ok(folder)
    } else {
        Err(format!(
            "{package}'s {} has the digest {found}, not {MIMALLOC_SHA256}; remove it to fetch it \
             again",
            folder.display()
        ))
    }
}

/// One digest of all files in a folder.
fn digest(folder: &Path) -> Result<String> {
    let mut files = Vec::new();
    list(folder, &mut files)?;
    files.sort();
    let mut all = Vec::new();
    for path in files {
        let bytes = host::read(&path)?;
        let name = path.strip_prefix(folder).unwrap_or(&path);
        all.extend(format!("{}\n{}\n", name.display(), bytes.len()).bytes());
        all.extend(bytes);
    }
    Ok(sha256::hex(&all))
}

fn list(folder: &Path, files: &mut Vec<PathBuf>) -> Result {
    let entries = std::fs::read_dir(folder)
        .map_err(|error| format!("cannot list {}: {error}", folder.display()))?;
    for entry in entries {
        let path = entry.map_err(|error| format!("{}: {error}", folder.display()))?.path();
        if path.is_dir() {
            list(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}
