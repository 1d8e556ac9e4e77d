use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};

#[derive(Args)]
#[command(override_usage = "pagefork run [OPTIONS] FILE [ARGUMENTS]...")]
pub(crate) struct Run {
    /// Let the program see the directory HOST of this machine as GUEST
    #[arg(long = "dir", value_name = "HOST[::GUEST]", value_parser = directory)]
    pub(crate) directories: Vec<Directory>,

    /// Set an environment variable; without a value, pass this process's own
    #[arg(long = "env", value_name = "NAME[=VALUE]", value_parser = variable)]
    pub(crate) variables: Vec<(String, String)>,

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

    /// If the program traps, write what it was to FILE, as a WebAssembly core dump
    #[arg(long, value_name = "FILE")]
    pub(crate) core_dump: Option<PathBuf>,

    /// What to do about imported functions that nothing here defines
    #[arg(long, value_name = "ACTION", value_enum, default_value_t)]
    pub(crate) unknown_imports: UnknownImports,

    /// Tell the profiler `perf` the names of compiled functions
    #[arg(long, value_name = "FORMAT", value_enum)]
    pub(crate) profile: Option<Profile>,

    /// Keep compiled modules in this directory and not in `~/.cache/pagefork`
    #[arg(long = "cache", value_name = "DIR")]
    pub(crate) cache_directory: Option<PathBuf>,

    /// Compile the program, even if it was compiled before, and keep nothing
    #[arg(long, conflicts_with = "cache_directory")]
    pub(crate) no_cache: bool,

    // One list, because Clap ends its options only with the first value of a list.
    /// The program, a WebAssembly module, binary or text, or compiled; what follows are its arguments
    #[arg(value_name = "FILE", trailing_var_arg = true, required = true)]
    program: Vec<OsString>,
}

/// What happens to imported functions that nothing defines.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub(crate) enum UnknownImports {
    /// Refuse the program
    #[default]
    Refuse,
    /// Run it; a call of such a function traps
    Trap,
}

/// What `perf` is told about compiled code, and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Profile {
    /// Names, in /tmp/perf-PID.map, for `perf report`
    Perfmap,
    /// Names and code, in jit-PID.dump here or in $JITDUMPDIR, for `perf inject`
    Jitdump,
}

impl Run {
    /// The program: a WebAssembly module, binary or text, or compiled.
    pub(crate) fn file(&self) -> &Path {
        Path::new(&self.program[0])
    }

    /// What the program gets as its arguments.
    pub(crate) fn arguments(&self) -> &[OsString] {
        &self.program[1..]
    }
}

/// A directory that a program may see.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Directory {
    /// Where it is on this machine.
    pub(crate) host: PathBuf,
    /// What the program calls it.
    pub(crate) guest: String,
}

pub(super) fn directory(text: &str) -> Result<Directory, String> {
    let (host, guest) = text.split_once("::").unwrap_or((text, text));
    if host.is_empty() || guest.is_empty() {
        return Err("give the directory as HOST or as HOST::GUEST".to_owned());
    }
    Ok(Directory { host: host.into(), guest: guest.to_owned() })
}

pub(super) fn variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some(("", _)) => Err("a variable needs a name".to_owned()),
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => match std::env::var(text) {
            Ok(value) => Ok((text.to_owned(), value)),
            Err(_) => {
                Err(format!("this process has no variable {text}; give its value as {text}=VALUE"))
            }
        },
    }
}

pub(super) fn time(text: &str) -> Result<Duration, String> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let milliseconds = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60 * 1000,
        "h" => 60 * 60 * 1000,
        _ => return Err("give a time as a whole number and a unit: 500ms, 10s, 2m".to_owned()),
    };
    number
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(milliseconds))
        .map(Duration::from_millis)
        .ok_or_else(|| "this is no time; give one like 500ms, 10s or 2m".to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::{Command, Pagefork, with_default_command};
    use super::*;
    use clap::Parser;

    fn run(line: &str) -> Result<Run, String> {
        let arguments = line.split(' ').map(OsString::from);
        match Pagefork::try_parse_from(with_default_command(arguments)) {
            Ok(Pagefork { command: Command::Run(run) }) => Ok(run),
            Ok(_) => panic!("not parsed as run: {line}"),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn run_is_the_default() {
        for line in ["pagefork a.wasm --dir x", "pagefork run a.wasm --dir x"] {
            let run = run(line).expect("a command line");
            assert_eq!(run.file(), Path::new("a.wasm"));
            assert_eq!(run.arguments(), ["--dir", "x"], "what follows the file is the program's");
            assert_eq!(run.unknown_imports, UnknownImports::Refuse);
        }
        let run = run("pagefork --dir . --dir /srv::/data --env A=b=c --timeout 2m \
                       --unknown-imports trap --profile jitdump a.wasm")
        .expect("a line");
        assert_eq!(run.directories[0], Directory { host: ".".into(), guest: ".".to_owned() });
        assert_eq!(
            run.directories[1],
            Directory { host: "/srv".into(), guest: "/data".to_owned() }
        );
        assert_eq!(run.variables, [("A".to_owned(), "b=c".to_owned())]);
        assert_eq!(run.timeout, Some(Duration::from_secs(120)));
        assert_eq!(run.unknown_imports, UnknownImports::Trap);
        assert_eq!(run.profile, Some(Profile::Jitdump));
    }

    #[test]
    fn mistakes_are_explained() {
        for (line, expected) in [
            ("pagefork run", "FILE"),
            ("pagefork --timeout 5 a.wasm", "500ms, 10s, 2m"),
            ("pagefork --timeout 99999999999999999999s a.wasm", "no time"),
            ("pagefork --dir ::/x a.wasm", "HOST::GUEST"),
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
