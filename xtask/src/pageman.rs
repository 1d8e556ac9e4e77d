//! Programs with the guest page manager, built from `guest/pageman` for the tests.

use std::path::{Path, PathBuf};
use std::process::Command;

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

/// The files that examples of the Rust crate are made of, beside their own.
pub(crate) const CRATE: &[&str] = &[
    "guest/pageman/rust/Cargo.toml",
    "guest/pageman/rust/Cargo.lock",
    "guest/pageman/rust/build.rs",
    "guest/pageman/rust/src/lib.rs",
    "guest/pageman/include/pageman.h",
    "guest/pageman/src/internal.h",
    "guest/pageman/src/tables.c",
    "guest/pageman/src/manager.c",
    "guest/pageman/src/calls.c",
    "guest/pageman/src/statistics.c",
    "guest/pageman/src/port_wasm.c",
];

/// A program: its name, source and flags.
struct Program {
    name: &'static str,
    source: &'static str,
    with: With,
    flags: &'static [&'static str],
}

/// What a program has for `mmap`.
#[derive(Clone, Copy, PartialEq, Debug)]
enum With {
    /// The manager, with malloc on top of it.
    Malloc,
    /// The manager beside the C library's malloc.
    Manager,
    /// What the C library has in its place.
    Emulation,
    /// What emscripten's has; without emscripten the program is left out.
    Emscripten,
}

const PROGRAMS: &[Program] = &[
    Program { name: "pageman", source: "test/program.c", with: With::Malloc, flags: &[] },
    Program {
        name: "pageman_4k",
        source: "test/program.c",
        with: With::Malloc,
        flags: &["-DPAGEMAN_PAGE_SHIFT=12"],
    },
    Program {
        name: "pageman_give_back",
        source: "test/give_back.c",
        with: With::Manager,
        flags: &["-DPAGEMAN_DISCARD_IMPORT", "-Wl,--export=pageman_page_map"],
    },
    Program {
        name: "pageman_snapshots",
        source: "test/snapshots.c",
        with: With::Manager,
        flags: &[
            "-mexec-model=reactor",
            "-DPAGEMAN_PAGE_SHIFT=12",
            "-Wl,--export=pageman_page_map",
        ],
    },
    Program {
        name: "pageman_bench",
        source: "bench/bench.c",
        with: With::Manager,
        flags: &["-mexec-model=reactor"],
    },
    Program {
        name: "pageman_bench_4k",
        source: "bench/bench.c",
        with: With::Manager,
        flags: &["-mexec-model=reactor", "-DPAGEMAN_PAGE_SHIFT=12"],
    },
    Program {
        name: "emulated_bench",
        source: "bench/bench.c",
        with: With::Emulation,
        flags: &["-mexec-model=reactor", "-D_WASI_EMULATED_MMAN", "-lwasi-emulated-mman"],
    },
    Program {
        name: "emscripten_bench",
        source: "bench/bench.c",
        with: With::Emscripten,
        flags: &[
            "--no-entry",
            "-sSTANDALONE_WASM",
            "-sALLOW_MEMORY_GROWTH",
            "-sMAXIMUM_MEMORY=4GB",
        ],
    },
];

/// Builds the programs that are not there as they would be built now. Returns how many
/// there are.
pub(crate) fn build(host: &Host, directory: &Path) -> Result<usize> {
    let sources = digest(&host.root.join("guest/pageman"))?;
    let mut count = 0;
    for program in PROGRAMS {
        let Program { name, flags, with, .. } = program;
        if *with == With::Emscripten && !host::exists("emcc", "--version") {
            continue;
        }
        count += 1;
        let (guest, stamp) =
            (directory.join(format!("{name}.wasm")), directory.join(format!("{name}.txt")));
        let others = (MIMALLOC, MIMALLOC_SHA256, guests::COMPILER);
        let inputs = format!("{sources} {with:?} {flags:?} {others:?}");
        let stamped = |wasm: &[u8]| format!("{inputs} made {}\n", sha256::hex(wasm));
        if let (Ok(wasm), Ok(made)) = (std::fs::read(&guest), std::fs::read_to_string(&stamp))
            && made == stamped(&wasm)
        {
            continue;
        }
        eprintln!("building {name}");
        host::check(compiler(host, directory, program)?.arg("-o").arg(&guest))?;
        host::write(&stamp, stamped(&host::read(&guest)?).as_bytes())?;
    }
    Ok(count)
}

/// What compiles a program, but for where to.
fn compiler(host: &Host, directory: &Path, program: &Program) -> Result<Command> {
    let root = host.root.join("guest/pageman");
    let mut command = match program.with {
        With::Emscripten => host.command("emcc"),
        _ => {
            let mut zig = guests::zig(host, &guests::compiler(host)?, "cc");
            zig.args(["-target", "wasm32-wasi", "-Wl,--strip-debug"]);
            zig
        }
    };
    command.args(["-std=gnu17", "-O2", "-flto"]).args(program.flags);
    if matches!(program.with, With::Malloc | With::Manager) {
        command.arg("-I").arg(root.join("include"));
        command.args(LIBRARY.iter().map(|file| root.join("src").join(file)));
    }
    if program.with == With::Malloc {
        let mimalloc = mimalloc(host, directory)?;
        // What the compiler says of mimalloc is not ours to heed.
        command.args(["-w", "-DNDEBUG", "-DMI_SEGMENT_SHIFT=20"]);
        command.arg("-I").arg(mimalloc.join("include")).arg("-I").arg(mimalloc.join("src"));
        command.arg(root.join("src/malloc_mimalloc.c"));
    } else {
        command.args(["-Wall", "-Wextra", "-Werror"]);
    }
    command.arg(root.join(program.source));
    Ok(command)
}

/// Builds an example of the Rust crate.
pub(crate) fn build_example(
    host: &Host,
    compiler: &Path,
    source: &str,
    target: &str,
    output: &Path,
) -> Result {
    let example = Path::new(source).file_stem().unwrap_or_default();
    let directory = host.guests().join("pageman-rust");
    let folder = host.root.join("guest/pageman/rust");
    let mut cargo = host.cargo();
    cargo.current_dir(&folder).env("CARGO_ENCODED_RUSTFLAGS", without_places(host, &folder)?);
    cargo.args(["build", "--release", "--locked", "--target", target, "--example"]).arg(example);
    cargo.env("CARGO_TARGET_DIR", &directory);
    // The crate's C sources are compiled by the same compiler as other guests.
    let cache = host.guests().join("zig-cache");
    cargo.env("PAGEMAN_CC", "python3 -m ziglang cc").env("PYTHONPATH", compiler);
    cargo.env("ZIG_GLOBAL_CACHE_DIR", &cache).env("ZIG_LOCAL_CACHE_DIR", &cache);
    host::check(&mut cargo)?;
    let built = directory.join(target).join("release/examples").join(example);
    host::write(output, &host::read(&built.with_extension("wasm"))?)
}

/// What makes rustc name sources of dependencies by their crates alone: no directory of a machine
/// belongs into a committed file.
fn without_places(host: &Host, folder: &Path) -> Result<String> {
    let mut cargo = host.cargo();
    cargo.current_dir(folder).args(["metadata", "--format-version", "1", "--locked"]);
    let metadata = host::output(&mut cargo)?;
    let manifests = metadata.split("\"manifest_path\":\"").skip(1);
    let manifests = manifests.filter_map(|rest| rest.split('"').next());
    let sources = manifests.filter_map(|manifest| Path::new(manifest).parent()?.parent());
    let mut sources: Vec<&Path> = sources.filter(|path| !path.starts_with(&host.root)).collect();
    sources.dedup();
    let remapped = sources.iter().map(|path| format!("--remap-path-prefix={}/=", path.display()));
    Ok(remapped.collect::<Vec<_>>().join("\u{1f}"))
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
