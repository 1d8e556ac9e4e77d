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

/// The crate that carries Doug Lea's malloc, the file, and its digest.
const DLMALLOC: (&str, &str) = ("portable-dlmalloc", "1.2.1");
const DLMALLOC_FILE: &str = "malloc.c";
const DLMALLOC_SHA256: &str = "65985d475591230b5cfe537e67ce80a77cc80f5f8fba7f8068014f507d24cc25";

/// The library's own files, in `guest/pageman/src`.
const LIBRARY: &[&str] =
    &["tables.c", "manager.c", "calls.c", "statistics.c", "posix.c", "port_wasm.c"];

/// The example of the Rust crate that has its feature `discard`.
const DISCARDING: &str = "pageman_discarding";

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

/// The crate that carries QuickJS's sources, where in it they are, and their digest.
const QUICKJS: (&str, &str) = ("rquickjs-sys", "0.14.0");
const QUICKJS_FOLDER: &str = "quickjs";
const QUICKJS_SHA256: &str = "803008feaa913148933bc63f076a01767df1d17fc2acca32175c1d705550be0a";
const QUICKJS_SOURCES: [&str; 4] = ["quickjs.c", "libregexp.c", "libunicode.c", "dtoa.c"];

/// A program: its name, source, flags, and what others wrote of it.
struct Program {
    name: &'static str,
    source: &'static str,
    with: With,
    by: By,
    flags: &'static [&'static str],
    around: Around,
}

/// What of others a program is around. It is compiled once, without anything of the manager.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Around {
    Nothing,
    Sqlite,
    QuickJs,
}

/// What a program has for `mmap` and malloc.
#[derive(Clone, Copy, PartialEq, Debug)]
enum With {
    /// The manager, with Doug Lea's malloc on top of it.
    Malloc,
    /// The manager, with mimalloc on top of it.
    Mimalloc,
    /// The manager beside the C library's malloc.
    Manager,
    /// What the C library has in its place, if anything.
    Emulation,
}

/// What compiles a program.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum By {
    Zig,
    /// Debian's; without it the program is left out.
    Emscripten,
    /// Debian's, with WASI's own C library; without it the program is left out.
    Clang,
}

const fn program(
    name: &'static str,
    source: &'static str,
    with: With,
    flags: &'static [&'static str],
) -> Program {
    Program { name, source, with, by: By::Zig, flags, around: Around::Nothing }
}

const fn around(around: Around, name: &'static str, with: With) -> Program {
    let source = match around {
        Around::QuickJs => "guest/pageman/examples/js.c",
        _ => guests::SQLITE_DRIVER,
    };
    Program { around, ..program(name, source, with, &[]) }
}

/// A program whose malloc is compared with that of WASI's own C library, so it is built with that.
const fn compared(mut program: Program) -> Program {
    program.by = By::Clang;
    program
}

const SMALL_PAGES: &str = "-DPAGEMAN_PAGE_SHIFT=12";
const DISCARD: &str = "-DPAGEMAN_DISCARD_IMPORT";
const DISCARD_BINDGEN: &str = "-DPAGEMAN_DISCARD_BINDGEN";
const PAGE_MAP: &str = "-Wl,--export=pageman_page_map";
/// It does the same with blocks of malloc's.
const WITH_MALLOC: &str = "-DWITH_MALLOC";
const LIBRARY_ALONE: &str = "-mexec-model=reactor";
/// As much memory at first as emscripten gives.
const INITIAL_MEMORY: &str = "--initial-memory=16777216";
/// The same, and of it as much for the stack.
const AS_EMSCRIPTEN: [&str; 2] = ["-Wl,--initial-memory=16777216", "-Wl,-z,stack-size=5242880"];
const MALLOC_BENCH: &str = "guest/pageman/bench/malloc.c";
const REQUEST: &str = "guest/pageman/bench/request.c";
/// What the C library has in place of mmap.
const EMULATED: [&str; 2] = ["-D_WASI_EMULATED_MMAN", "-lwasi-emulated-mman"];
const EXAMPLE: &str = "-fno-strict-aliasing";

const PROGRAMS: &[Program] = &[
    program("pageman", "guest/pageman/test/program.c", With::Malloc, &["-DDLMALLOC"]),
    program(
        "pageman_4k",
        "guest/pageman/test/program.c",
        With::Malloc,
        &["-DDLMALLOC", SMALL_PAGES],
    ),
    program("pageman_mimalloc", "guest/pageman/test/program.c", With::Mimalloc, &[]),
    program("pageman_posix", "guest/pageman/test/posix.c", With::Manager, &[]),
    program(
        "pageman_give_back",
        "guest/pageman/test/give_back.c",
        With::Manager,
        &[DISCARD, PAGE_MAP],
    ),
    program(
        "pageman_bindgen",
        "guest/pageman/test/give_back.c",
        With::Manager,
        &[DISCARD_BINDGEN, PAGE_MAP],
    ),
    program(
        "pageman_bindgen_4k",
        "guest/pageman/test/give_back.c",
        With::Manager,
        &[DISCARD_BINDGEN, PAGE_MAP, SMALL_PAGES],
    ),
    program(
        "pageman_snapshots",
        "guest/pageman/test/snapshots.c",
        With::Manager,
        &[LIBRARY_ALONE, SMALL_PAGES, PAGE_MAP],
    ),
    program(
        "pageman_travels",
        "guest/pageman/test/snapshots.c",
        With::Malloc,
        &[LIBRARY_ALONE, SMALL_PAGES, PAGE_MAP, WITH_MALLOC],
    ),
    program(
        "pageman_travels_64k",
        "guest/pageman/test/snapshots.c",
        With::Malloc,
        &[LIBRARY_ALONE, PAGE_MAP, WITH_MALLOC],
    ),
    program(
        "pageman_calls",
        "guest/pageman/test/calls.c",
        With::Manager,
        &[
            LIBRARY_ALONE,
            SMALL_PAGES,
            DISCARD,
            PAGE_MAP,
            "-DPAGEMAN_OWNS_HEAP",
            "-Wl,-z,stack-size=65536",
            "-Wl,--max-memory=16777216",
        ],
    ),
    Program {
        by: By::Emscripten,
        ..program(
            "emscripten_calls",
            "guest/pageman/test/calls.c",
            With::Manager,
            &[
                "--no-entry",
                "-sSTANDALONE_WASM",
                "-sALLOW_MEMORY_GROWTH",
                "-sINITIAL_MEMORY=131072",
                "-sTOTAL_STACK=65536",
                "-sMAXIMUM_MEMORY=16MB",
                // The import by which memory is given back is not JavaScript's.
                "-sERROR_ON_UNDEFINED_SYMBOLS=0",
                "-Wno-undefined",
                SMALL_PAGES,
                DISCARD,
                PAGE_MAP,
                "-DPAGEMAN_OWNS_HEAP",
            ],
        )
    },
    // Examples, with the manager and without.
    program("pageman_words", "guest/pageman/examples/words.c", With::Manager, &[]),
    program("plain_words", "guest/pageman/examples/words.c", With::Emulation, &EMULATED),
    program("pageman_collector", "guest/pageman/examples/collector.c", With::Manager, &[EXAMPLE]),
    program(
        "plain_collector",
        "guest/pageman/examples/collector.c",
        With::Emulation,
        &[EXAMPLE, "-DEMULATED", EMULATED[0], EMULATED[1]],
    ),
    Program { flags: &[PAGE_MAP], ..around(Around::Sqlite, "pageman_sqlite", With::Malloc) },
    around(Around::QuickJs, "pageman_quickjs", With::Malloc),
    around(Around::QuickJs, "plain_quickjs", With::Emulation),
    // Benchmarks.
    program("pageman_bench", "guest/pageman/bench/bench.c", With::Manager, &[LIBRARY_ALONE]),
    program(
        "pageman_bench_16m",
        "guest/pageman/bench/bench.c",
        With::Malloc,
        &[LIBRARY_ALONE, AS_EMSCRIPTEN[0], AS_EMSCRIPTEN[1]],
    ),
    program(
        "pageman_bench_discard",
        "guest/pageman/bench/bench.c",
        With::Manager,
        &[LIBRARY_ALONE, DISCARD],
    ),
    program("pageman_request", REQUEST, With::Manager, &[]),
    program("pageman_request_discard", REQUEST, With::Manager, &[DISCARD]),
    program(
        "pageman_bench_4k",
        "guest/pageman/bench/bench.c",
        With::Manager,
        &[LIBRARY_ALONE, SMALL_PAGES],
    ),
    program(
        "emulated_bench",
        "guest/pageman/bench/bench.c",
        With::Emulation,
        &[LIBRARY_ALONE, EMULATED[0], EMULATED[1]],
    ),
    program(
        "emulated_bench_16m",
        "guest/pageman/bench/bench.c",
        With::Emulation,
        &[LIBRARY_ALONE, AS_EMSCRIPTEN[0], AS_EMSCRIPTEN[1], EMULATED[0], EMULATED[1]],
    ),
    Program {
        by: By::Emscripten,
        ..program(
            "emscripten_bench",
            "guest/pageman/bench/bench.c",
            With::Emulation,
            &["--no-entry", "-sSTANDALONE_WASM", "-sALLOW_MEMORY_GROWTH", "-sMAXIMUM_MEMORY=4GB"],
        )
    },
    compared(program("pageman_malloc", MALLOC_BENCH, With::Malloc, &[LIBRARY_ALONE])),
    compared(program("mimalloc_malloc", MALLOC_BENCH, With::Mimalloc, &[LIBRARY_ALONE])),
    compared(program("plain_malloc", MALLOC_BENCH, With::Emulation, &[LIBRARY_ALONE])),
    compared(around(Around::Sqlite, "compared_sqlite", With::Malloc)),
    compared(around(Around::Sqlite, "compared_sqlite_mimalloc", With::Mimalloc)),
    compared(around(Around::Sqlite, "compared_sqlite_plain", With::Emulation)),
    compared(around(Around::QuickJs, "compared_quickjs", With::Malloc)),
    compared(around(Around::QuickJs, "compared_quickjs_mimalloc", With::Mimalloc)),
    compared(around(Around::QuickJs, "compared_quickjs_plain", With::Emulation)),
];

/// Builds the programs by these compilers that are not there as they would be built now. Returns how many
/// there are.
pub(crate) fn build(host: &Host, directory: &Path, compilers: &[By]) -> Result<usize> {
    // What every program includes or is linked with.
    let root = host.root.join("guest/pageman");
    let common = sha256::hex(&host::read(&root.join("test/common.h"))?);
    let sources =
        format!("{} {} {common}", digest(&root.join("include"))?, digest(&root.join("src"))?);
    let mut count = 0;
    for program in PROGRAMS.iter().filter(|program| compilers.contains(&program.by)) {
        let Program { name, flags, with, by, around, .. } = program;
        let is_there = match by {
            By::Zig => true,
            By::Emscripten => host::exists("emcc", "--version"),
            By::Clang => clang().is_some(),
        };
        if !is_there {
            continue;
        }
        count += 1;
        let (guest, stamp) =
            (directory.join(format!("{name}.wasm")), directory.join(format!("{name}.txt")));
        let others = (MIMALLOC, MIMALLOC_SHA256, DLMALLOC, DLMALLOC_SHA256, guests::COMPILER);
        let source = sha256::hex(&host::read(&host.root.join(program.source))?);
        let around = match around {
            Around::Nothing => String::new(),
            Around::Sqlite => format!("{:?}", guests::SQLITE),
            Around::QuickJs => format!("{QUICKJS:?} {QUICKJS_SHA256}"),
        };
        let inputs = format!("{sources} {source} {with:?} {by:?} {flags:?} {others:?} {around}");
        let stamped = |wasm: &[u8]| format!("{inputs} made {}\n", sha256::hex(wasm));
        if let (Ok(wasm), Ok(made)) = (std::fs::read(&guest), std::fs::read_to_string(&stamp))
            && made == stamped(&wasm)
        {
            continue;
        }
        eprintln!("building {name}");
        let mut compiler = compiler(host, directory, program)?;
        compiler.arg("-o").arg(&guest);
        // The sources of others are here by now.
        host::check(&mut host::offline(compiler))?;
        host::write(&stamp, stamped(&host::read(&guest)?).as_bytes())?;
    }
    Ok(count)
}

/// Builds the programs whose malloc is compared with WASI's own.
pub(crate) fn build_compared(host: &Host) -> Result<usize> {
    if clang().is_none() {
        return Err("Debian's clang for WebAssembly is missing, or WASI's C library: \
                    apt-get install clang-19 lld-19 libclang-rt-19-dev-wasm32 wasi-libc"
            .to_owned());
    }
    host::create_directory(&host.guests())?;
    build(host, &host.guests(), &[By::Clang])
}

/// Builds all programs from the sources as they are now, so that no older ones are measured.
pub(crate) fn build_measured(host: &Host) -> Result {
    host::create_directory(&host.guests())?;
    build(host, &host.guests(), &[By::Zig, By::Emscripten])?;
    build_compared(host).map(drop)
}

/// Debian's compiler, if it is there with WASI's C library.
fn clang() -> Option<&'static str> {
    let library = Path::new("/usr/lib/wasm32-wasi/libc.a").exists();
    let names = ["clang", "clang-19"];
    names.into_iter().find(|name| library && host::exists(name, "--version"))
}

/// A compiler, for programs of WASI.
fn bare_compiler(host: &Host, by: By) -> Result<Command> {
    Ok(match by {
        By::Emscripten => host.command("emcc"),
        By::Zig => {
            let mut zig = guests::zig(host, &guests::compiler(host)?, "cc");
            zig.args(["-target", "wasm32-wasi"]);
            zig
        }
        By::Clang => {
            let mut clang = host.command(clang().ok_or("clang or wasi-libc is missing")?);
            clang.arg("--target=wasm32-wasi");
            clang
        }
    })
}

/// What compiles a program, but for where to.
fn compiler(host: &Host, directory: &Path, program: &Program) -> Result<Command> {
    let root = host.root.join("guest/pageman");
    let (headers, objects) = match (program.around, program.by) {
        (Around::Nothing, _) => (None, Vec::new()),
        (Around::Sqlite, By::Clang) => {
            let sources = guests::sqlite_sources(host, directory)?;
            let object = directory.join("sqlite/by-clang.o");
            let flags = guests::SQLITE_FLAGS;
            compile(host, By::Clang, flags, &sources.join("sqlite3.c"), &object)?;
            (Some(sources), vec![object])
        }
        (Around::Sqlite, _) => {
            let (headers, object) = guests::sqlite(host, directory)?;
            (Some(headers), vec![object])
        }
        (Around::QuickJs, by) => {
            let (headers, objects) = quickjs(host, directory, by)?;
            (Some(headers), objects)
        }
    };
    let mut command = bare_compiler(host, program.by)?;
    if program.by != By::Emscripten {
        command.arg("-Wl,--strip-debug");
    }
    command.args(["-std=gnu17", "-O2", "-flto"]).args(program.flags);
    if program.with != With::Emulation {
        command.arg("-I").arg(root.join("include"));
        command.args(LIBRARY.iter().map(|file| root.join("src").join(file)));
    }
    match program.with {
        // What the compiler says of others' sources is not ours to heed.
        With::Malloc => {
            let dlmalloc = dlmalloc(host, directory)?;
            command.arg("-w").arg("-I").arg(dlmalloc).arg(root.join("src/malloc_dlmalloc.c"));
        }
        With::Mimalloc => {
            let mimalloc = mimalloc(host, directory)?;
            command.args(["-w", "-DNDEBUG", "-DMI_SEGMENT_SHIFT=20"]);
            command.arg("-I").arg(mimalloc.join("include")).arg("-I").arg(mimalloc.join("src"));
            command.arg(root.join("src/malloc_mimalloc.c"));
        }
        With::Manager | With::Emulation => {
            command.args(["-Wall", "-Wextra", "-Werror"]);
        }
    }
    if let Some(headers) = headers {
        command.arg("-isystem").arg(headers);
    }
    command.arg(host.root.join(program.source)).args(objects);
    Ok(command)
}

/// Compiles a source of others, unless that was done by a compiler that does not remember it.
fn compile(host: &Host, by: By, flags: &[&str], source: &Path, object: &Path) -> Result {
    if by != By::Zig && object.exists() {
        return Ok(());
    }
    let mut command = bare_compiler(host, by)?;
    command.args(["-std=gnu17", "-O2", "-w", "-DNDEBUG"]).args(flags);
    command.arg("-c").arg(source).arg("-o").arg(object);
    host::check(&mut host::offline(command))
}

/// The folder of QuickJS's sources, and what they are compiled to.
fn quickjs(host: &Host, directory: &Path, by: By) -> Result<(PathBuf, Vec<PathBuf>)> {
    let asking = directory.join("quickjs");
    let sources = vendored(host, &asking, QUICKJS, QUICKJS_FOLDER, QUICKJS_SHA256)?;
    let beside = asking.join(format!("{by:?}"));
    if !beside.exists() {
        eprintln!("compiling QuickJS, which takes about a minute");
    }
    host::create_directory(&beside)?;
    let mut objects = Vec::new();
    for source in QUICKJS_SOURCES {
        let object = beside.join(source).with_extension("o");
        compile(host, by, &["-D_GNU_SOURCE"], &sources.join(source), &object)?;
        objects.push(object);
    }
    Ok((sources, objects))
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
    let mut flags = without_places(host, &folder)?;
    if target.contains("wasi") {
        // Whole pages between the program's data and the end of memory, which have one owner.
        flags.push_str(&["\u{1f}-Clink-arg=", INITIAL_MEMORY].concat());
    }
    let mut cargo = host.cargo();
    cargo.current_dir(&folder).env("CARGO_ENCODED_RUSTFLAGS", flags);
    cargo.args(["build", "--release", "--locked", "--target", target, "--example"]).arg(example);
    if example == DISCARDING {
        cargo.args(["--features", "discard"]);
    }
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
    vendored(host, &directory.join("mimalloc"), MIMALLOC, MIMALLOC_FOLDER, MIMALLOC_SHA256)
}

/// The folder of Doug Lea's malloc, fetched if it was not there.
fn dlmalloc(host: &Host, directory: &Path) -> Result<PathBuf> {
    let folder = guests::vendor(host, &directory.join("dlmalloc"), DLMALLOC)?;
    guests::verify(&folder.join(DLMALLOC_FILE), DLMALLOC_SHA256)?;
    Ok(folder)
}

/// A folder of a crate, which cargo fetches into `asking` unless it has, and whose files have this
/// digest.
fn vendored(
    host: &Host,
    asking: &Path,
    package: (&str, &str),
    folder: &str,
    sha256: &str,
) -> Result<PathBuf> {
    let folder = guests::vendor(host, asking, package)?.join(folder);
    let found = digest(&folder)?;
    if found == sha256 {
        return Ok(folder);
    }
    Err(format!(
        "{}'s {} has the digest {found}, not {sha256}; remove it to fetch it again",
        package.0,
        folder.display()
    ))
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
