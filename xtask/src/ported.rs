//! wasmtime's own examples for core modules, ported by `docs/from_wasmtime.sed` and a few changed lines,
//! built and run. They are not part of this repository: a checkout of wasmtime's has them.

use std::fs;
use std::path::Path;

use crate::Result;
use crate::host::{self, Host};

/// Those whose code means the same here. Left out are `anyref`, whose values are collected; `mpk`, which asks for
/// protection keys; and what components have.
const NAMES: [&str; 19] = [
    "coredump",
    "epochs",
    "externref",
    "fast_compilation",
    "fast_execution",
    "fast_instantiation",
    "fuel",
    "gcd",
    "hello",
    "interrupt",
    "linking",
    "memory",
    "multi",
    "multimemory",
    "pre_compile",
    "run_pre_compiled",
    "serialize",
    "threads",
    "wasip1",
];

/// What is changed by hand: the example, how often, and what is put in place of what.
const CHANGES: [(&str, usize, &str, &str); 4] = [
    // A core dump is made from an error and its store, not a part of every error.
    ("coredump", 1, "let dump = err\n", "let dump = WasmCoreDump::capture(&store, &err)\n"),
    ("coredump", 1, "        .downcast_ref::<WasmCoreDump>()\n", ""),
    // Each external reference has data.
    ("externref", 2, "            .expect(\"should have host data\")\n", ""),
    // There is no file that says where a cache is.
    ("fast_compilation", 1, "Some(Cache::from_file(None)?)", "Cache::new(\"cache\")"),
];

/// Lines that may be changed in an example.
const CHANGED_MAX: usize = 5;

/// What runs them instead, to be compared with.
const PEER: &str = "wasmtime = { version = \"=48.0.0\", features = [\"winch\"] }\nwasmtime-wasi = { version = \"=48.0.0\", features = [\"p1\"] }\n";

/// Under wasmtime it wants a build without an operating system, for which the example before it compiles.
const FOR_ANOTHER_BUILD: &str = "run_pre_compiled";

/// Runs the examples of a checkout, and compares what they print with what they print under wasmtime itself, if
/// that is asked for: its build takes minutes.
pub(crate) fn run(host: &Host, examples: &Path, with_peer: bool) -> Result {
    let ours = format!(
        "pagefork = {{ path = {:?} }}\npagefork-wasi = {{ path = {:?} }}\n",
        host.root.join("crates/pagefork"),
        host.root.join("crates/pagefork-wasi")
    );
    let place = host.target.join("ported");
    let port = |text: &Path, name: &str| ported(host, text, name);
    let printed = build_and_run(host, examples, &place.join("pagefork"), &ours, &port)?;
    if !with_peer {
        return Ok(());
    }
    let original =
        |text: &Path, _: &str| fs::read_to_string(text).map_err(|error| error.to_string());
    let expected = build_and_run(host, examples, &place.join("wasmtime"), PEER, &original)?;
    let differs = |index: &usize| {
        NAMES[*index] != FOR_ANOTHER_BUILD && alike(&printed[*index]) != alike(&expected[*index])
    };
    match (0..NAMES.len()).find(differs) {
        None => Ok(()),
        Some(index) => Err(format!(
            "{} prints\n{}\nand under wasmtime\n{}",
            NAMES[index], printed[index], expected[index]
        )),
    }
}

/// Numbers of threads and of fuel differ from run to run and between engines, and so do the order of threads and
/// the words of errors.
fn alike(text: &str) -> Vec<String> {
    let has_error = |line: &&str| line.starts_with("Error: ");
    let mut lines: Vec<String> = text
        .lines()
        .take_while(|line| !has_error(line))
        .map(|line| line.chars().filter(|letter| !letter.is_ascii_digit()).collect())
        .collect();
    lines.sort();
    lines.push(text.lines().any(|line| has_error(&line)).to_string());
    lines
}

/// An example as it runs here.
fn ported(host: &Host, example: &Path, name: &str) -> Result<String> {
    let mut sed = host.command("sed");
    let mut text = host::output(sed.arg("-f").arg("docs/from_wasmtime.sed").arg(example))?;
    let mut changed = 0;
    for (of, times, from, to) in CHANGES.iter().filter(|(of, ..)| *of == name) {
        if text.matches(from).count() != *times {
            return Err(format!(
                "{of} does not have {from:?} {times} times: is it of wasmtime 48?"
            ));
        }
        (text, changed) = (text.replace(from, to), changed + times);
    }
    match changed <= CHANGED_MAX {
        true => Ok(text),
        false => Err(format!("{name} needs {changed} changed lines")),
    }
}

/// Builds all examples with these dependencies, and runs them. Returns what each prints.
fn build_and_run(
    host: &Host,
    examples: &Path,
    place: &Path,
    dependencies: &str,
    port: &dyn Fn(&Path, &str) -> Result<String>,
) -> Result<Vec<String>> {
    let failed = |error: std::io::Error| format!("{}: {error}", place.display());
    let (sources, guests) = (place.join("examples"), place.join("target/wasm32-wasip1/debug"));
    for directory in [&sources, &guests] {
        fs::create_dir_all(directory).map_err(failed)?;
    }
    let manifest = "[package]\nname = \"ported\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[lib]\npath = \"lib.rs\"\n\n\
                    [workspace]\n\n[dev-dependencies]\n";
    fs::write(place.join("Cargo.toml"), format!("{manifest}{dependencies}")).map_err(failed)?;
    fs::write(place.join("lib.rs"), "").map_err(failed)?;
    fs::copy(host.root.join("Cargo.lock"), place.join("Cargo.lock")).map_err(failed)?;
    let guest = host.root.join("guest/built/hello_cgi.wasm");
    fs::copy(guest, guests.join("wasi.wasm")).map_err(failed)?;
    for name in NAMES {
        let in_place =
            [format!("{name}.rs"), format!("{name}/main.rs")].map(|path| examples.join(path));
        let text = in_place.iter().find(|path| path.is_file());
        let text = text.ok_or_else(|| format!("{} has no example {name:?}", examples.display()))?;
        fs::write(sources.join(name).with_extension("rs"), port(text, name)?).map_err(failed)?;
    }
    for entry in
        fs::read_dir(examples).map_err(|error| format!("{}: {error}", examples.display()))?
    {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|extension| extension == "wat") {
            fs::copy(&path, sources.join(path.file_name().unwrap_or_default())).map_err(failed)?;
        }
    }
    let target = host.target.join("ported/target");
    let mut cargo = host.cargo();
    cargo.args(["build", "--quiet", "--examples"]).env("CARGO_TARGET_DIR", &target);
    host::check(cargo.env("RUSTFLAGS", "-Awarnings").current_dir(place))?;
    NAMES
        .iter()
        .map(|name| {
            let mut run = host.command(&target.join("debug/examples").join(name).to_string_lossy());
            let ended =
                run.current_dir(place).env("RUST_BACKTRACE", "0").output().map_err(failed)?;
            let text = [ended.stdout, ended.stderr].concat();
            let text = String::from_utf8_lossy(&text).into_owned();
            let last = text.trim_end().lines().last().unwrap_or_default();
            println!("{name}: {}, {last}", ended.status);
            Ok(text)
        })
        .collect()
}
