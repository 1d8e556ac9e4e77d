//! The project's own commands, run as `cargo xtask COMMAND`.

#![forbid(unsafe_code)]

mod c_programs;
mod capi;
mod capi_compat;
mod ci;
mod differential;
mod guests;
mod host;
mod package;
mod pageman;
mod ported;
mod s3;
mod sabotage;
mod soak;
mod sha256;
mod tidy;

use std::process::ExitCode;

use crate::sabotage::Selection;

const USAGE: &str = "\
usage: cargo xtask COMMAND

  ci                 every check; with CI=true a missing tool is an error
  tidy               check the repository's own rules
  sabotage [NAME]    break invariants on purpose; the named tests must fail
  soak               tests that are too long for CI: all pairs of strategies, all sabotage
  s3                 images in an object store that speaks S3's protocol, with a service that is fetched
  bench [NAME...]    measure, with wasmtime beside (its build takes minutes)
  differential [...] random modules in Pagefork and wasmtime; `--help` tells more
  ported DIRECTORY   build and run wasmtime's examples, which a checkout of it has there, as ported by
                     docs/from_wasmtime.sed; `--peer` compares with wasmtime
  guests             fetch third-party guests, build SQLite and Go's; prints where they are
  guests --compared  build what `bench pageman` compares malloc by, which takes Debian's clang and wasi-libc
  guests --rebuild   rebuild guest/built from guest/*
  capi --prefix DIR  install the C library; `--profile dev` builds it as tests do
  capi --check       install it, and build and run the examples as a new user would
  man                man pages and shell completions, in target/package
  package            these, a static binary, and a Debian package of all
";

/// What a command returns: an error is a sentence that says what to do.
type Result<T = ()> = std::result::Result<T, String>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = host::Host::find().and_then(|host| match *arguments.as_slice() {
        ["ci"] => ci::run(&host),
        ["tidy"] => tidy::run(&host),
        ["sabotage"] => sabotage::run(&host, Selection::All),
        ["sabotage", name] => sabotage::run(&host, Selection::Named(name)),
        ["soak"] => soak::run(&host),
        ["s3"] => s3::run(&host),
        ["bench", ref names @ ..] => bench(&host, names),
        ["differential", ref arguments @ ..] => differential::run(&host, arguments),
        ["ported", examples] => ported::run(&host, examples.as_ref(), false),
        ["ported", examples, "--peer"] => ported::run(&host, examples.as_ref(), true),
        ["guests"] => guests::fetch(&host).map(|_| println!("{}", host.guests().display())),
        ["guests", "--compared"] => {
            pageman::build_compared(&host).map(|count| println!("{count} programs"))
        }
        ["guests", "--rebuild"] => guests::rebuild(&host),
        ["capi", "--check"] => capi::check(&host),
        ["capi", "--prefix", prefix] => capi::install(&host, prefix.as_ref(), "release"),
        ["capi", "--prefix", prefix, "--profile", profile] => {
            capi::install(&host, prefix.as_ref(), profile)
        }
        ["man"] => package::man(&host).map(|directory| println!("{}", directory.display())),
        ["package"] => package::package(&host),
        _ => Err(USAGE.to_owned()),
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{}", message.trim_end());
            ExitCode::FAILURE
        }
    }
}

/// Measures with the peer in the same run. Serving needs its WASI, which is built with
/// more of the peer, so that is a run of its own.
fn bench(host: &host::Host, arguments: &[&str]) -> Result {
    let (mut options, mut names) = (Vec::new(), Vec::new());
    let mut rest = arguments.iter();
    while let Some(&argument) = rest.next() {
        match argument {
            "--plots" | "--threads" | "--redraw" => {
                options.push(argument);
                options.extend(rest.next());
            }
            _ if argument.starts_with("--") => options.push(argument),
            _ => names.push(argument),
        }
    }
    let (serve, others): (Vec<&str>, Vec<&str>) =
        names.iter().copied().partition(|name| *name == "serve");
    let run = |features: &str, names: &[&str]| {
        let mut cargo = host.cargo();
        cargo.args(["run", "--release", "--locked", "--manifest-path", "bench/Cargo.toml"]);
        cargo.args(["--features", features, "--"]).args(&options).args(names);
        cargo.env("PAGEFORK_GUESTS", host.guests());
        cargo.env("PAGEFORK_COMMAND", host.target.join("release/pagefork"));
        host::check(&mut cargo)
    };
    if names.is_empty() || others.contains(&"first") {
        // What it measures from the shell.
        let mut cargo = host.cargo();
        cargo.args(["build", "--release", "--locked", "--package", "pagefork-cli"]);
        host::check(&mut cargo)?;
    }
    if names.is_empty() || others.contains(&"pageman") {
        match pageman::build_measured(host) {
            // Half a table is not recorded.
            Err(error) if options.contains(&"--record") => return Err(error),
            Err(error) => eprintln!("rows of `pageman` are left out: {error}"),
            Ok(()) => {}
        }
    }
    if names.is_empty() || !others.is_empty() {
        run("peer", &others)?;
    }
    if names.is_empty() || !serve.is_empty() {
        run("peer-wasi", &["serve"])?;
    }
    Ok(())
}
