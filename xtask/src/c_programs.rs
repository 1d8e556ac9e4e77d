//! Programs that others wrote for the standard C interface: fetched, and run with the library; and the
//! header that they are written for.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use crate::Result;
use crate::capi::{CRATE, INTERFACE, SANITIZER_OPTIONS, SANITIZERS};
use crate::guests::verify;
use crate::host::{self, Host};

/// The crate of another engine that carries the example programs of the standard's repository, as it
/// runs them itself; and its digest.
const PACKAGE: (&str, &str) = ("wasmer-c-api", "7.4.2");
const SHA256: &str = "903ae0858d466b76a7863fb4d09b140051da54c7be4188bf44a8a391d98b56f4";

/// Where they lie in it, so many folders deep.
const FOLDER: &str = "tests/wasm-c-api/example";
const DEPTH: usize = 4;

/// The standard's header in it, so many folders deep.
const HEADER: &str = "tests/wasm-c-api/include/wasm.h";
const HEADER_DEPTH: usize = 3;

/// What says that all was fetched: the digest, and what was taken of the crate.
const STAMP: &str = "programs and header";

/// The programs, and what each prints when it is done.
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
    let (stamp, stamped) = (folder.join("package.txt"), format!("{SHA256} {STAMP}"));
    if fs::read_to_string(&stamp).is_ok_and(|made| made == stamped) {
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
    for (depth, what) in [(DEPTH, FOLDER), (HEADER_DEPTH, HEADER)] {
        let mut tar = host.command("tar");
        tar.args(["--extract", "--gzip", "--file"]).arg(&file).arg("--directory").arg(&folder);
        tar.arg(format!("--strip-components={depth}")).arg(format!("{package}-{version}/{what}"));
        host::check(&mut tar)?;
    }
    host::write(&stamp, stamped.as_bytes())
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

/// Compiles each program, unchanged, with the library that is installed in `prefix`, and runs it: as it is,
/// and with sanitizers, which find neither an error nor a leak.
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
    check_header(host, &sources.join("include"), &prefix.join("include"), work)?;
    let ways = PROGRAMS.iter().flat_map(|program| [(program, false), (program, true)]);
    for ((name, last), is_watched) in ways {
        let program = work.join(name);
        let mut cc = host.command("cc");
        // What the compiler says of them is not ours to heed.
        cc.arg("-w").arg("-I").arg(prefix.join("include"));
        cc.arg(sources.join(name).with_extension("c")).arg("-o").arg(&program);
        cc.arg("-L").arg(&lib).arg(format!("-Wl,-rpath,{}", lib.display()));
        if is_watched {
            cc.args(SANITIZERS);
        }
        host::check(cc.args(["-lpagefork", "-lpthread"]))?;
        // They open their guests in the present directory.
        let mut command = host.command(&program.to_string_lossy());
        command.env("ASAN_OPTIONS", SANITIZER_OPTIONS);
        let printed = host::output(command.current_dir(&sources))?;
        // Threads of theirs may have something to say behind it.
        if !printed.lines().any(|line| line.trim_end() == *last) {
            return Err(format!("{name} of {} printed:\n{printed}", PACKAGE.0));
        }
    }
    println!("{} programs for other engines run unchanged, and with sanitizers", PROGRAMS.len());
    Ok(())
}

/// Every function that the standard's header declares is declared by ours, and every one that ours declares is
/// the standard's, with the same prototype: C refuses to declare a function twice that is not.
fn check_header(host: &Host, standard: &Path, own: &Path, work: &Path) -> Result {
    let names = |include: &Path| -> Result<BTreeSet<String>> {
        let mut cc = host.command("cc");
        cc.args(["-std=c11", "-E", "-P"]).arg(include.join("wasm.h"));
        let text = host::output(&mut cc)?;
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && !"_(".contains(c));
        // Inline functions call others, which are declared, too.
        let names = words.filter_map(|word| word.split_once('(')).map(|(name, _)| name);
        Ok(names.filter(|name| name.starts_with("wasm_")).map(str::to_owned).collect())
    };
    let (standard_names, own_names) = (names(standard)?, names(own)?);
    if standard_names != own_names || own_names.len() < 280 {
        let other: Vec<_> = standard_names.symmetric_difference(&own_names).collect();
        return Err(format!(
            "wasm.h and the standard's do not declare the same functions: {other:?}"
        ));
    }
    let kept = host.root.join(CRATE).join("abi").join(INTERFACE).join("pagefork.h");
    let kept = String::from_utf8_lossy(&host::read(&kept)?).into_owned();
    let is_prototype = |line: &&str| line.contains("wasm_") && line.ends_with(");");
    let is_standard = |line: &&str| {
        let name = line.split('(').next().unwrap_or_default();
        let name = name.rsplit([' ', '*']).next().unwrap_or_default();
        !line.starts_with("typedef") && standard_names.contains(name)
    };
    let again: Vec<&str> = kept.lines().filter(is_prototype).filter(is_standard).collect();
    if again.len() < 250 {
        return Err(format!("only {} prototypes of wasm.h are compared", again.len()));
    }
    let source = work.join("standard.c");
    // This copy of the header copies types that are not const, ours those that are, too: that serves all callers.
    let like_standard = |line: &&str| match line.contains("type_copy(") {
        true => line.replace("(const ", "("),
        false => (*line).to_owned(),
    };
    let text = again.iter().map(like_standard).collect::<Vec<_>>().join("\n");
    let text = format!("#include \"wasm.h\"\n{text}\n");
    host::write(&source, text.as_bytes())?;
    let mut cc = host.command("cc");
    cc.args(["-std=c11", "-fsyntax-only", "-I"]).arg(standard).arg(&source);
    host::check(&mut cc)?;
    println!("{} prototypes of wasm.h are the standard's", again.len());
    Ok(())
}
