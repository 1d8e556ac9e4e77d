//! Arguments of `pagefork run`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::common::{EnvironmentArguments, ProgramArguments, UnknownImports, time};
use super::strategies::StrategyArguments;

#[derive(Args)]
#[command(override_usage = "pagefork run [OPTIONS] FILE [ARGUMENTS]...")]
pub(crate) struct RunArguments {
    #[command(flatten)]
    pub(crate) environment: EnvironmentArguments,

    /// Offer the exports of the module FILE as those of a module NAME: a library is instantiated
    /// once, a command anew for each call
    #[arg(long = "preload", value_name = "NAME=FILE", value_parser = preload)]
    pub(crate) preloads: Vec<(String, PathBuf)>,

    /// Listen at HOST:PORT and pass the socket to the program, as descriptor 3 and on
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) tcplisten: Vec<String>,

    /// Pass on the sockets that this process was given (`LISTEN_FDS`), before others
    #[arg(long)]
    pub(crate) listenfd: bool,

    /// Call this exported function with ARGUMENTS, and print its results
    #[arg(long, value_name = "FUNCTION")]
    pub(crate) invoke: Option<String>,

    /// End the program with a trap when it has run this long: 500ms, 10s, 2m
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) timeout: Option<Duration>,

    /// End the program with a trap when it has done this much: an operator costs 1
    #[arg(long, value_name = "UNITS")]
    pub(crate) fuel: Option<u64>,

    /// Let the same program compute the same on every machine: NaNs, relaxed vectors
    #[arg(long)]
    pub(crate) deterministic: bool,

    /// If the program traps, write its state to FILE, as a WebAssembly core dump
    #[arg(long, value_name = "FILE")]
    pub(crate) core_dump: Option<PathBuf>,

    /// What to do about imported functions that neither the command nor a preloaded module defines
    #[arg(long, value_name = "ACTION", value_enum, default_value_t)]
    pub(crate) unknown_imports: UnknownImports,

    /// Tell the profiler `perf` the names of compiled functions
    #[arg(long, value_name = "FORMAT", value_enum)]
    pub(crate) profile: Option<ProfileFormat>,

    /// Say at the end, on standard error, how instances are reset and memories grow, and why
    #[arg(long)]
    pub(crate) say_strategies: bool,

    #[command(flatten)]
    pub(crate) strategies: StrategyArguments,

    #[command(flatten)]
    pub(crate) program: ProgramArguments,
}

/// How `perf` learns about compiled code.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum ProfileFormat {
    /// Names, in /tmp/perf-PID.map, for `perf report`
    Perfmap,
    /// Names and code, in jit-PID.dump here or in $JITDUMPDIR, for `perf inject`
    Jitdump,
}

fn preload(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((name, file)) if !file.is_empty() => Ok((name.to_owned(), file.into())),
        _ => Err("give the module as NAME=FILE".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::path::Path;

    use pagefork_wasi::Permissions;

    use super::super::common::DirectoryArgument;
    use super::super::{CliCommand, Pagefork, with_default_command};
    use super::*;
    use clap::Parser;

    fn run(line: &str) -> Result<RunArguments, String> {
        let arguments = line.split(' ').map(OsString::from);
        match Pagefork::try_parse_from(with_default_command(arguments)) {
            Ok(Pagefork { command: CliCommand::Run(run) }) => Ok(run),
            Ok(_) => panic!("not parsed as run: {line}"),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn run_is_the_default() {
        for line in ["pagefork a.wasm --dir x", "pagefork run a.wasm --dir x"] {
            let run = run(line).expect("a command line");
            assert_eq!(run.program.file(), Path::new("a.wasm"));
            assert_eq!(
                run.program.arguments(),
                ["--dir", "x"],
                "what follows the file is the program's"
            );
            assert_eq!(run.unknown_imports, UnknownImports::Refuse);
        }
        let run = run("pagefork --dir . --dir /srv::/data --dir a:ro --dir /a::/b:ro --dir a::b:RO:rw --dir a::b:c/d --preload env=lib=1.wasm --env A=b=c --timeout 2m \
                       --unknown-imports trap --profile jitdump a.wasm")
        .expect("a line");
        let directory = |host: &str, guest: &str, permissions| {
            let (host, guest) = (host.into(), guest.to_owned());
            DirectoryArgument { host, guest, permissions }
        };
        let all = Permissions::ReadWrite;
        assert_eq!(run.environment.directories[0], directory(".", ".", all));
        assert_eq!(run.environment.directories[1], directory("/srv", "/data", all));
        assert_eq!(run.environment.directories[2], directory("a:ro", "a:ro", all));
        assert_eq!(run.environment.directories[3], directory("/a", "/b", Permissions::ReadOnly));
        assert_eq!(run.environment.directories[4], directory("a", "b:RO", all));
        assert_eq!(run.environment.directories[5], directory("a", "b:c/d", all));
        assert_eq!(run.preloads, [("env".to_owned(), "lib=1.wasm".into())]);
        assert_eq!(run.environment.variables, [("A".to_owned(), "b=c".to_owned())]);
        assert_eq!(run.timeout, Some(Duration::from_secs(120)));
        assert_eq!(run.unknown_imports, UnknownImports::Trap);
        assert_eq!(run.profile, Some(ProfileFormat::Jitdump));
    }

    #[test]
    fn mistakes_are_explained() {
        for (line, expected) in [
            ("pagefork run", "FILE"),
            ("pagefork --timeout 5 a.wasm", "500ms, 10s, 2m"),
            ("pagefork --timeout 99999999999999999999s a.wasm", "no time"),
            ("pagefork --dir ::/x a.wasm", "HOST::GUEST"),
            ("pagefork --dir a::/b:RO a.wasm", "`RO` is neither `ro` nor `rw`"),
            ("pagefork --dir a::/b:readonly a.wasm", "a::/b:readonly:rw"),
            ("pagefork --dir a::/b: a.wasm", "`` is neither"),
            ("pagefork --dir a:::ro a.wasm", "HOST::GUEST"),
            ("pagefork --preload x a.wasm", "NAME=FILE"),
            ("pagefork --env =x a.wasm", "needs a name"),
            ("pagefork --frob a.wasm", "--frob"),
            ("pagefork --fuel lots a.wasm", "--fuel"),
            ("pagefork --unknown-imports ignore a.wasm", "[possible values: refuse, trap]"),
            ("pagefork --profile vtune a.wasm", "[possible values: perfmap, jitdump]"),
        ] {
            let message = run(line).map(|_| ()).expect_err(line);
            assert!(message.contains(expected), "{line}: {message}");
        }
    }
}
