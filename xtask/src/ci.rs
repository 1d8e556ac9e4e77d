//! The steps of continuous integration.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::host::{self, Host};
use crate::sabotage::Selection;
use crate::{Result, capi, guests, sabotage, tidy};

/// One check.
struct Step {
    name: &'static str,
    run: fn(&Host) -> Result<Outcome>,
}

/// How a step ended, when it did not fail.
enum Outcome {
    /// Passed, with a remark for the summary.
    Passed(String),
    /// Not run, and why.
    Skipped(String),
}

const STEPS: &[Step] = &[
    Step { name: "tidy", run: |host| tidy::run(host).map(|()| passed()) },
    Step { name: "fmt", run: fmt },
    Step { name: "build", run: build },
    Step { name: "clippy", run: clippy },
    Step { name: "doc", run: doc },
    Step { name: "images", run: without_compiler },
    Step { name: "tracing", run: tracing },
    Step { name: "guests", run: fetch_guests },
    Step { name: "test", run: test },
    Step { name: "portable", run: portable },
    Step { name: "capi", run: c_library },
    Step { name: "sabotage", run: sabotage },
    Step { name: "bench", run: bench },
];

/// A step that runs longer than this hangs: the whole of CI takes less.
const STEP_TIME_MAX: Duration = Duration::from_secs(25 * 60);

/// Runs every step, prints each with its time, and fails if any failed. A failed
/// step does not stop the ones after it, unless it is the build.
pub(crate) fn run(host: &Host) -> Result {
    let start = Instant::now();
    let mut lines = Vec::new();
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    let mut built = true;
    for step in STEPS {
        println!("\n=== {} ===", step.name);
        let step_start = Instant::now();
        let result = if built {
            (step.run)(host)
        } else {
            Ok(Outcome::Skipped("the build failed".to_owned()))
        };
        let (word, remark) = match result {
            Ok(Outcome::Passed(remark)) => {
                passed += 1;
                ("passed", remark)
            }
            Ok(Outcome::Skipped(reason)) => {
                skipped += 1;
                ("skipped", reason)
            }
            Err(message) => {
                failed += 1;
                built &= step.name != "build";
                eprintln!("{message}");
                ("FAILED", message.lines().next().unwrap_or_default().to_owned())
            }
        };
        let seconds = step_start.elapsed().as_secs_f64();
        let line = format!("{:<10} {word:<8} {seconds:>7.1} s  {remark}", step.name);
        println!("--- {line}");
        lines.push(line);
    }
    println!("\n=== summary, {:.0} s ===", start.elapsed().as_secs_f64());
    for line in &lines {
        println!("{line}");
    }
    println!("steps: {passed} passed, {failed} failed, {skipped} skipped");
    if failed == 0 { Ok(()) } else { Err(format!("{failed} of {} steps failed", STEPS.len())) }
}

fn passed() -> Outcome {
    Outcome::Passed(String::new())
}

fn fmt(host: &Host) -> Result<Outcome> {
    if !host::exists("cargo-fmt", "--version") {
        return missing(host, "rustfmt is missing: `rustup component add rustfmt`");
    }
    host::check(host.cargo().args(["fmt", "--all", "--check"]))?;
    Ok(passed())
}

fn clippy(host: &Host) -> Result<Outcome> {
    if !host::exists("cargo-clippy", "--version") {
        return missing(host, "clippy is missing: `rustup component add clippy`");
    }
    let mut cargo = host.cargo();
    cargo.args(["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"]);
    host::check(&mut limited(host, cargo))?;
    Ok(passed())
}

/// Links in the documentation lead somewhere, and every public item has some.
fn doc(host: &Host) -> Result<Outcome> {
    let mut cargo = host.cargo();
    cargo.args(["doc", "--workspace", "--no-deps", "--locked"]);
    cargo.env("RUSTDOCFLAGS", "-D warnings");
    host::check(&mut limited(host, cargo))?;
    Ok(passed())
}

/// Builds everything the tests need, so that the test step's time is the tests'.
fn build(host: &Host) -> Result<Outcome> {
    let mut cargo = host.cargo();
    cargo.args(["test", "--workspace", "--no-run", "--locked"]);
    host::check(&mut limited(host, cargo))?;
    let tree =
        host::output(host.cargo().args(["tree", "--workspace", "--prefix", "none", "--locked"]))?;
    let packages: BTreeSet<_> = tree
        .lines()
        .map(|line| line.split_whitespace().take(2).collect::<Vec<_>>())
        .filter(|package| !package.is_empty())
        .collect();
    Ok(Outcome::Passed(format!("{} packages in the workspace's build", packages.len())))
}

/// The spans of the feature `tracing`, which is off elsewhere. All of the workspace is named, so
/// that what it depends on has the features that it was built with, and is not built again.
fn tracing(host: &Host) -> Result<Outcome> {
    const TEST: [&str; 7] =
        ["test", "--workspace", "--features", "pagefork/tracing", "--test", "spans", "--locked"];
    host::check(host.cargo().args(TEST))?;
    Ok(passed())
}

/// A build of the runtime without its compiler has no Cranelift in it, and runs code images.
fn without_compiler(host: &Host) -> Result<Outcome> {
    const BUILD: [&str; 4] = ["-p", "pagefork", "--no-default-features", "--locked"];
    let tree = ["tree", "--edges", "normal,build"];
    let tree = host::output(host.cargo().args(tree).args(BUILD))?;
    if let Some(line) = tree.lines().find(|line| line.contains("cranelift")) {
        return Err(format!("without the feature `compiler` there is still {line}"));
    }

    let (text, image) = (host.target.join("tmp/add.wat"), host.target.join("tmp/add.image"));
    let add = "(module (func (export \"add\") (param i32 i32) (result i32)
        (i32.add (local.get 0) (local.get 1))))";
    std::fs::write(&text, add).map_err(|error| format!("{}: {error}", text.display()))?;
    let command = host.target.join("debug/pagefork");
    let mut compile = host.command(&command.to_string_lossy());
    host::check(compile.arg("compile").arg(&text).arg("-o").arg(&image))?;
    let run = ["run", "--quiet", "--example", "code_image"];
    let run = host::output(host.cargo().args(run).args(BUILD).arg("--").arg(&image))?;
    match run.trim() {
        "2 + 3 = 5" => Ok(passed()),
        other => Err(format!("the code image gave {other:?}")),
    }
}

fn sabotage(host: &Host) -> Result<Outcome> {
    sabotage::run(host, Selection::FirstOfEach).map(|()| passed())
}

/// The format of images, and the protocol of post-copy, on a system without memory maps, locks of
/// files and 64-bit addresses: WASI, in the command that was just built.
fn portable(host: &Host) -> Result<Outcome> {
    const TARGET: &str = "wasm32-wasip1";
    const TEST: [&str; 7] = [
        "test",
        "--locked",
        "-ppagefork-image",
        "-ppagefork-postcopy",
        "--no-default-features",
        "--target",
        TARGET,
    ];
    const TESTS: [&str; 4] =
        ["--test=format", "--test=deltas", "--test=kept_images", "--test=protocol"];
    let mut rustc = host.command("rustc");
    let library = host::output(rustc.args(["--print", "target-libdir", "--target", TARGET]))?;
    if !Path::new(library.trim()).is_dir() {
        return Ok(Outcome::Skipped(format!("no {TARGET}: `rustup target add {TARGET}`")));
    }
    let command = host.target.join("debug/pagefork");
    let kept = host.root.join("crates/pagefork-image");
    let runner = format!("{} run --dir {}", command.display(), kept.display());
    let mut cargo = host.cargo();
    cargo.args(TEST).args(TESTS).env("CARGO_TARGET_WASM32_WASIP1_RUNNER", runner);
    host::check(&mut limited(host, cargo))?;
    Ok(passed())
}

/// The C library as a new user finds it.
fn c_library(host: &Host) -> Result<Outcome> {
    for tool in ["cc", "c++", "make", "cmake", "pkg-config"] {
        if !host::exists(tool, "--version") {
            return missing(host, &format!("{tool} is missing"));
        }
    }
    capi::check(host)?;
    Ok(passed())
}

fn fetch_guests(host: &Host) -> Result<Outcome> {
    match guests::fetch(host) {
        Ok(count) => Ok(Outcome::Passed(format!("{count} guests in {}", host.guests().display()))),
        Err(message) => missing(host, &message),
    }
}

fn test(host: &Host) -> Result<Outcome> {
    let mut cargo = host.cargo();
    cargo
        .args(["test", "--workspace", "--locked", "--offline", "--no-fail-fast"])
        .env("PAGEFORK_GUESTS", host.guests());
    host::check(&mut limited(host, cargo))?;
    Ok(passed())
}

/// The benchmarks at their smallest size: a cargo workspace of its own.
fn bench(host: &Host) -> Result<Outcome> {
    let mut cargo = host.cargo();
    cargo.args(["test", "--locked", "--manifest-path", "bench/Cargo.toml"]);
    cargo.env("PAGEFORK_GUESTS", host.guests());
    // One target directory: what both workspaces depend on is built once.
    cargo.env("CARGO_TARGET_DIR", &host.target);
    // The tests have built it; without it a row is left out.
    let command = host.target.join("debug/pagefork");
    if command.exists() {
        cargo.env("PAGEFORK_COMMAND", command);
    }
    host::check(&mut limited(host, cargo))?;
    Ok(passed())
}

/// What a missing tool means here.
fn missing(host: &Host, message: &str) -> Result<Outcome> {
    if host.strict {
        Err(message.to_owned())
    } else {
        println!("skipped: {message}");
        Ok(Outcome::Skipped(message.lines().next().unwrap_or_default().to_owned()))
    }
}

/// The same command, ended with all its children when it takes too long for CI.
/// A person at a terminal has Ctrl-C instead.
fn limited(host: &Host, command: Command) -> Command {
    if host.strict { host::limited(command, STEP_TIME_MAX) } else { command }
}
