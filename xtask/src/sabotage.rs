//! Sabotage patches: each breaks an invariant on purpose, and a test must notice.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::Result;
use crate::host::{self, Host};

/// A patch of `tests/sabotage` and what it must lead to. Its header is
///
/// ```text
/// Invariant: 5
/// Test: -p pagefork-tests --test invariant_5_nothing_outside a_fault_of_the_host
/// Message: (optional) words that the failing test must print
/// ```
pub(crate) struct Patch {
    /// The file's name.
    pub(crate) name: String,
    /// Which invariant it breaks.
    pub(crate) invariant: u32,
    /// Arguments of `cargo test`.
    pub(crate) test: Vec<String>,
    /// What the failing test must print.
    pub(crate) message: Option<String>,
    /// The files it changes.
    pub(crate) files: BTreeSet<PathBuf>,
    path: PathBuf,
}

/// A test that takes longer than this under sabotage hangs, which is no proper
/// way to fail.
const TEST_TIME_MAX: Duration = Duration::from_secs(180);

/// Every patch of `tests/sabotage`, in the order of their names.
pub(crate) fn patches(root: &Path) -> Result<Vec<Patch>> {
    let directory = root.join("tests/sabotage");
    if !directory.is_dir() {
        return Ok(Vec::new());
    }
    let mut patches = Vec::new();
    for path in entries(&directory)? {
        if path.extension() == Some(OsStr::new("patch")) {
            let text = String::from_utf8(host::read(&path)?)
                .map_err(|_| format!("{} is not UTF-8", path.display()))?;
            patches.push(parse(&path, &text)?);
        }
    }
    patches.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(patches)
}

/// Which patches are tried.
#[derive(Clone, Copy)]
pub(crate) enum Selection<'a> {
    All,
    /// Of those that break the same invariant the first: what CI has time for.
    /// None that unit tests notice, see [`Patch::arguments`].
    FirstOfEach,
    /// Those whose names contain this.
    Named(&'a str),
}

/// Applies each patch to a copy of the repository and requires that its test
/// then fails.
pub(crate) fn run(host: &Host, selection: Selection<'_>) -> Result {
    let mut patches = patches(&host.root)?;
    select(&mut patches, selection);
    if let Selection::Named(name) = selection
        && patches.is_empty()
    {
        return Err(format!("no patch in tests/sabotage has a name with {name:?} in it"));
    }
    // Neighbours that change the same crate share its rebuild.
    patches.sort_by(|a, b| (&a.files, &a.name).cmp(&(&b.files, &b.name)));

    let copy = Copy::make(host)?;
    let mut failures = Vec::new();
    for patch in &patches {
        let start = Instant::now();
        let result = copy.apply(patch).and_then(|()| copy.test_fails(patch));
        copy.restore(&patch.files)?;
        let seconds = start.elapsed().as_secs_f64();
        match result {
            Ok(how) => {
                println!("{}: invariant {}: {how}, {seconds:.0} s", patch.name, patch.invariant)
            }
            Err(message) => {
                eprintln!("{}: {message}", patch.name);
                failures.push(patch.name.as_str());
            }
        }
    }
    if failures.is_empty() {
        println!("sabotage: {} patches, each noticed by its test", patches.len());
        Ok(())
    } else {
        Err(format!("sabotage was not noticed as it should be: {}", failures.join(", ")))
    }
}

fn select(patches: &mut Vec<Patch>, selection: Selection<'_>) {
    let mut seen = BTreeSet::new();
    patches.retain(|patch| match selection {
        Selection::All => true,
        Selection::FirstOfEach => !patch.is_of_unit_test() && seen.insert(patch.invariant),
        Selection::Named(name) => patch.name.contains(name),
    });
}

fn parse(path: &Path, text: &str) -> Result<Patch> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut fields = BTreeMap::new();
    for line in
        text.lines().take_while(|line| !line.starts_with("diff ") && !line.starts_with("--- "))
    {
        if let Some((key, value)) = line.split_once(": ") {
            fields.insert(key, value.trim());
        }
    }
    let field = |key: &str| {
        fields
            .get(key)
            .copied()
            .ok_or(format!("{name}: there is no line `{key}: ...` above the patch"))
    };
    let invariant = field("Invariant")?
        .parse()
        .map_err(|_| format!("{name}: `Invariant:` takes the number of an invariant"))?;
    let test = field("Test")?.split_whitespace().map(str::to_owned).collect();
    let message = fields.get("Message").map(|message| (*message).to_owned());
    let files: BTreeSet<PathBuf> = text
        .lines()
        .filter_map(|line| line.strip_prefix("+++ b/"))
        .map(|file| PathBuf::from(file.split('\t').next().unwrap_or(file)))
        .collect();
    if files.is_empty() {
        return Err(format!("{name}: no line `+++ b/FILE` says what it changes"));
    }
    Ok(Patch { name, invariant, test, message, files, path: path.to_owned() })
}

/// A copy of the repository with a target directory of its own.
///
/// Cargo decides by modification times and by paths relative to the workspace
/// whether a crate is fresh. So copying both the sources and what is already
/// built, with their times, makes the copy as fresh as the original: Cranelift
/// is not built again. From then on every write to the copy, the undoing of a
/// patch included, is newer than what was built from it. The target directory
/// cannot be shared: the original would take sabotaged crates for its own.
struct Copy<'a> {
    host: &'a Host,
    tree: PathBuf,
    target: PathBuf,
}

impl<'a> Copy<'a> {
    fn make(host: &'a Host) -> Result<Self> {
        let tree = host.target.join("sabotage/tree");
        let target = host.target.join("sabotage/target");
        let seeded = host.target.join("sabotage/seeded");
        let copy = Self { host, tree, target };
        if !seeded.exists() {
            for directory in [&copy.tree, &copy.target] {
                if directory.exists() {
                    fs::remove_dir_all(directory).map_err(|error| {
                        format!("cannot remove {}: {error}", directory.display())
                    })?;
                }
            }
            for file in host.files()? {
                copy_with_times(&host.root.join(&file), &copy.tree.join(&file))?;
            }
            copy.copy_built()?;
            host::write(&seeded, b"")?;
        }
        copy.sync()?;
        Ok(copy)
    }

    /// Copies libraries, build scripts and fingerprints; programs, which are
    /// large, are linked again when needed.
    fn copy_built(&self) -> Result {
        for part in ["deps", "build", ".fingerprint"] {
            let mut directories = vec![PathBuf::from("debug").join(part)];
            while let Some(directory) = directories.pop() {
                let source = self.host.target.join(&directory);
                if !source.is_dir() {
                    continue;
                }
                for path in entries(&source)? {
                    let name = directory.join(path.file_name().unwrap_or_default());
                    let program = part == "deps" && path.extension().is_none();
                    if path.is_dir() {
                        directories.push(name);
                    } else if !program {
                        copy_with_times(&path, &self.target.join(name))?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Makes the copy's sources equal to the repository's.
    fn sync(&self) -> Result {
        let files: BTreeSet<PathBuf> = self.host.files()?.into_iter().collect();
        let mut directories = vec![PathBuf::new()];
        while let Some(directory) = directories.pop() {
            for path in entries(&self.tree.join(&directory))? {
                let name = directory.join(path.file_name().unwrap_or_default());
                if path.is_dir() {
                    directories.push(name);
                } else if !files.contains(&name) {
                    fs::remove_file(&path)
                        .map_err(|error| format!("cannot remove {}: {error}", path.display()))?;
                }
            }
        }
        self.restore(&files)
    }

    /// Makes these files equal to the repository's again; those that differ get
    /// the time of now, so that cargo notices.
    fn restore(&self, files: &BTreeSet<PathBuf>) -> Result {
        for file in files {
            let (source, target) = (self.host.root.join(file), self.tree.join(file));
            if !source.exists() {
                // A patch made it.
                fs::remove_file(&target).ok();
                continue;
            }
            let contents = host::read(&source)?;
            if fs::read(&target).ok().as_ref() != Some(&contents) {
                host::write(&target, &contents)?;
            }
        }
        Ok(())
    }

    fn apply(&self, patch: &Patch) -> Result {
        // The ceiling hides the repository around the copy: inside one, git
        // would take the paths for its own and skip them silently.
        let mut git = self.host.command("git");
        git.current_dir(&self.tree)
            .env("GIT_CEILING_DIRECTORIES", self.tree.parent().unwrap_or(&self.tree));
        git.args(["apply", "-p1"]).arg(&patch.path);
        host::check(&mut git).map_err(|error| {
            format!("{error}\nthe patch must be made anew for the code as it is now")
        })
    }

    /// Runs the patch's test; says how it failed, or why that is not enough.
    fn test_fails(&self, patch: &Patch) -> Result<String> {
        let mut build = self.cargo();
        build.args(["test", "--quiet", "--no-run", "--locked"]).args(patch.arguments());
        host::check(&mut build).map_err(|error| {
            format!("{error}\na sabotaged tree must still build, or its test proves nothing")
        })?;

        let mut test = self.cargo();
        test.args(["test", "--no-fail-fast", "--locked"]).args(patch.arguments());
        let output = host::limited(test, TEST_TIME_MAX)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .output()
            .map_err(|error| format!("cannot run cargo test: {error}"))?;
        let printed = [output.stdout, output.stderr].concat();
        judge(patch, output.status.code(), &String::from_utf8_lossy(&printed))
    }

    fn cargo(&self) -> std::process::Command {
        let mut cargo = self.host.cargo();
        cargo.current_dir(&self.tree).env("CARGO_TARGET_DIR", &self.target);
        cargo.env("PAGEFORK_GUESTS", self.host.guests());
        // The same crates are built again and again here, whatever CI has for the rest.
        cargo.env("CARGO_INCREMENTAL", "1");
        cargo
    }
}

impl Patch {
    /// Arguments of `cargo test`: the whole workspace in place of its package, because for one package
    /// alone what it depends on has fewer features, so that Cranelift is built again. Unit tests
    /// have to do with that: of the whole workspace they would be all.
    fn arguments(&self) -> Vec<&str> {
        let mut arguments: Vec<&str> = self.test.iter().map(String::as_str).collect();
        if let (false, Some(at)) =
            (self.is_of_unit_test(), arguments.iter().position(|a| *a == "-p"))
        {
            arguments.splice(at..(at + 2).min(arguments.len()), ["--workspace"]);
        }
        arguments
    }

    fn is_of_unit_test(&self) -> bool {
        self.test.iter().any(|argument| argument == "--lib")
    }

    /// The name, or part of a name, that selects the test, if there is one.
    pub(crate) fn test_name(&self) -> Option<&str> {
        let end = self.test.iter().position(|argument| argument == "--").unwrap_or(self.test.len());
        let (name, before) = self.test[..end].split_last()?;
        (!name.starts_with('-') && !takes_value(before.last())).then_some(name)
    }
}

fn takes_value(flag: Option<&String>) -> bool {
    flag.is_some_and(|flag| ["-p", "--package", "--test", "--features"].contains(&flag.as_str()))
}

/// Whether a run of `cargo test` was the failure that was asked for.
fn judge(patch: &Patch, code: Option<i32>, printed: &str) -> Result<String> {
    let run: u32 = printed
        .lines()
        .filter_map(|line| line.strip_prefix("running ")?.split(' ').next()?.parse::<u32>().ok())
        .sum();
    if code == Some(124) {
        return Err(format!(
            "its test hung for {} s; it must fail instead",
            TEST_TIME_MAX.as_secs()
        ));
    }
    if run == 0 {
        return Err(format!("`cargo test {}` ran no test:\n{printed}", patch.test.join(" ")));
    }
    if code == Some(0) {
        return Err(format!("its test passed: `cargo test {}`", patch.test.join(" ")));
    }
    if let Some(message) = patch.message.as_deref().filter(|message| !printed.contains(message)) {
        return Err(format!("its test failed, but did not print {message:?}:\n{printed}"));
    }
    if printed.contains("test result: FAILED") {
        Ok("its test failed".to_owned())
    } else if printed.contains("(signal: ") {
        Ok("its test was killed".to_owned())
    } else {
        Err(format!("its test neither passed nor failed:\n{printed}"))
    }
}

fn entries(directory: &Path) -> Result<Vec<PathBuf>> {
    let list = || fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect();
    let list: std::io::Result<Vec<PathBuf>> = list();
    list.map_err(|error| format!("cannot list {}: {error}", directory.display()))
}

fn copy_with_times(source: &Path, target: &Path) -> Result {
    host::create_directory(target.parent().unwrap_or(Path::new(".")))?;
    let copy = || {
        // Permissions come along; the time does not.
        fs::copy(source, target)?;
        let modified = fs::metadata(source)?.modified()?;
        fs::OpenOptions::new().write(true).open(target)?.set_modified(modified)
    };
    let copied: std::io::Result<()> = copy();
    copied.map_err(|error| {
        format!("cannot copy {} to {}: {error}", source.display(), target.display())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_patches_that_break_the_same_the_first_is_taken() {
        let named = |name: &str| Patch { name: name.to_owned(), ..patch("one") };
        let all = || vec![named("a"), named("b"), Patch { invariant: 6, ..named("c") }];
        let names = |selection| {
            let mut patches = all();
            select(&mut patches, selection);
            patches.into_iter().map(|patch| patch.name).collect::<Vec<_>>()
        };
        assert_eq!(names(Selection::All), ["a", "b", "c"]);
        assert_eq!(names(Selection::FirstOfEach), ["a", "c"]);
        assert_eq!(names(Selection::Named("b")), ["b"]);
    }

    fn patch(test: &str) -> Patch {
        let text =
            format!("Invariant: 5\nTest: {test}\nMessage: escaped\n\n--- a/x.rs\n+++ b/x.rs\n");
        parse(Path::new("tests/sabotage/x.patch"), &text).expect("a complete header")
    }

    #[test]
    fn a_header_says_what_must_fail() {
        let patch = patch("-p pagefork-tests --test spec a::b");
        assert_eq!((patch.invariant, patch.message.as_deref()), (5, Some("escaped")));
        assert_eq!(patch.test_name(), Some("a::b"));
        assert_eq!(self::patch("-p pagefork-pages").test_name(), None);
        assert_eq!(self::patch("-p pagefork-pages b -- --nocapture").test_name(), Some("b"));
        assert!(parse(Path::new("x.patch"), "Invariant: 5\n+++ b/x.rs\n").is_err());
    }

    #[test]
    fn only_a_real_failure_counts() {
        let patch = patch("a");
        let failed = "running 1 test\nescaped\ntest result: FAILED. 0 passed";
        assert!(judge(&patch, Some(101), failed).is_ok());
        assert!(judge(&patch, Some(101), "running 1 test\nescaped\n(signal: 11, SIGSEGV)").is_ok());
        assert!(
            judge(&patch, Some(0), "running 1 test\nescaped\ntest result: ok").is_err(),
            "passed"
        );
        assert!(judge(&patch, Some(101), "error: could not compile").is_err(), "does not build");
        assert!(judge(&patch, Some(101), "running 0 tests\nescaped").is_err(), "runs nothing");
        assert!(
            judge(&patch, Some(101), "running 1 test\ntest result: FAILED").is_err(),
            "other message"
        );
        assert!(judge(&patch, Some(124), failed).is_err(), "hangs");
    }
}
