//! Programs that others wrote for the standard C interface: fetched, and run with the library.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use crate::Result;
use crate::guests::verify;
use crate::host::{self, Host};

/// The crate of another engine that carries the example programs of the standard's repository, as it
/// runs them itself; and its digest.
const PACKAGE: (&str, &str) = ("wasmer-c-api", "7.4.2");
const SHA256: &str = "903ae0858d466b76a7863fb4d09b140051da54c7be4188bf44a8a391d98b56f4";

/// Where they lie in it, so many folders deep.
const FOLDER: &str = "tests/wasm-c-api/example";
const DEPTH: usize = 4;

/// The programs, and the last line that each prints.
const PROGRAMS: &[(&str, &str)] = &[
    ("callback", "Done."),
    ("finalize", "Done."),
    ("global", "Done."),
    ("hello", "Done."),
    ("hostref", "Done."),
    ("memory", "Done."),
    ("multi", "Done."),
    ("reflect", "Done."),
    ("serialize", "Done."),
    ("start", "Done."),
    ("table", "Done."),
    ("threads", "Waiting for thread: 9"),
    ("trap", "Done."),
];

fn folder(host: &Host) -> PathBuf {
    host.guests().join("wasm-c-api")
}

/// Fetches the programs, unless that was done.
pub(crate) fn fetch(host: &Host) -> Result {
    let (folder, (package, version)) = (folder(host), PACKAGE);
    let stamp = folder.join("package.txt");
    if fs::read_to_string(&stamp).is_ok_and(|made| made == SHA256) {
        return Ok(());
    }
    eprintln!("fetching {package} {version}");
    // What this shows of the crate it takes from its file. As a dependency it would bring an engine.
    let mut cargo = host.cargo();
    host::output(cargo.args(["info", "--quiet", &format!("{package}@{version}")])).map_err(
        |error| format!("{error}\n{package} comes from cargo's registry: is the network there?"),
    )?;
    let file = format!("{package}-{version}.crate");
    let file = find_crate(&file)?;
    verify(&file, SHA256)?;
    host::create_directory(&folder)?;
    let mut tar = host.command("tar");
    tar.args(["--extract", "--gzip", "--file"]).arg(&file).arg("--directory").arg(&folder);
    tar.arg(format!("--strip-components={DEPTH}")).arg(format!("{package}-{version}/{FOLDER}"));
    host::check(&mut tar)?;
    host::write(&stamp, SHA256.as_bytes())
}

/// The file of a crate that cargo has fetched.
fn find_crate(name: &str) -> Result<PathBuf> {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let own = || env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo"));
    let cache = home.or_else(own).ok_or("neither CARGO_HOME nor HOME is set")?;
    let cache = cache.join("registry/cache");
    let registries = fs::read_dir(&cache)
        .map_err(|error| format!("cannot list {}: {error}", cache.display()))?;
    let mut files = registries.flatten().map(|registry| registry.path().join(name));
    files
        .find(|file| file.is_file())
        .ok_or_else(|| format!("cargo has left no {name} in {}", cache.display()))
}

/// Compiles each program, unchanged, with the library that is installed in `prefix`, and runs it.
pub(crate) fn check(host: &Host, prefix: &Path, work: &Path) -> Result {
    let sources = folder(host);
    if !sources.is_dir() {
        let missing = format!("there is no {}: run `cargo xtask guests`", sources.display());
        if host.strict {
            return Err(missing);
        }
        println!("skipped: {missing}");
        return Ok(());
    }
    let lib = prefix.join("lib");
    host::create_directory(work)?;
    for (name, last) in PROGRAMS {
        let program = work.join(name);
        let mut cc = host.command("cc");
        // What the compiler says of them is not ours to heed.
        cc.arg("-w").arg("-I").arg(prefix.join("include"));
        cc.arg(sources.join(name).with_extension("c")).arg("-o").arg(&program);
        cc.arg("-L").arg(&lib).arg(format!("-Wl,-rpath,{}", lib.display()));
        host::check(cc.args(["-lpagefork", "-lpthread"]))?;
        // They open their guests in the present directory.
        let mut command = host.command(&program.to_string_lossy());
        let printed = host::output(command.current_dir(&sources))?;
        if printed.lines().last().map(str::trim_end) != Some(last) {
            return Err(format!("{name} of {} printed:\n{printed}", PACKAGE.0));
        }
    }
    println!("{} programs for other engines run unchanged", PROGRAMS.len());
    Ok(())
}
