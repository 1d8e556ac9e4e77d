//! The machine: paths, files of the checkout, and commands.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use crate::Result;

/// The repository and the machine it is checked out on.
pub(crate) struct Host {
    /// The workspace's root.
    pub(crate) root: PathBuf,
    /// Cargo's target directory.
    pub(crate) target: PathBuf,
    /// Whether a missing tool is an error (`CI=true`) or a skip.
    pub(crate) strict: bool,
}

impl Host {
    /// Finds the workspace this program was built from.
    pub(crate) fn find() -> Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .ok_or("xtask must lie in the workspace's root")?
            .to_owned();
        let target = match std::env::var_os("CARGO_TARGET_DIR") {
            Some(path) => std::env::current_dir()
                .map_err(|error| format!("no current directory: {error}"))?
                .join(path),
            None => root.join("target"),
        };
        let strict = std::env::var("CI").is_ok_and(|value| value == "true");
        Ok(Self { root, target, strict })
    }

    /// Where fetched and built guests lie.
    pub(crate) fn guests(&self) -> PathBuf {
        self.target.join("guests")
    }

    /// The repository's files, relative to its root, sorted: those in git and
    /// those that could be added.
    pub(crate) fn files(&self) -> Result<Vec<PathBuf>> {
        let listing = output(self.command("git").args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ]))?;
        let mut files: Vec<PathBuf> = listing
            .split('\0')
            .filter(|path| !path.is_empty())
            .map(PathBuf::from)
            .filter(|path| self.root.join(path).is_file())
            .collect();
        files.sort();
        files.dedup();
        Ok(files)
    }

    /// A command that runs in the workspace's root.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.root).stdin(Stdio::null());
        command
    }

    /// The cargo that runs this program, in the workspace's root.
    pub(crate) fn cargo(&self) -> Command {
        self.command(&std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()))
    }
}

/// Whether `program` starts at all with `argument`.
pub(crate) fn exists(program: &str, argument: &str) -> bool {
    Command::new(program)
        .arg(argument)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// The same command in a network of its own that has nothing but itself, so that whatever it needs of others
/// must be here already. Where the system refuses that (it takes root's rights) it runs as it is, which is said.
pub(crate) fn offline(command: Command) -> Command {
    const ALONE: [&str; 4] = ["--net", "sh", "-c", "ip link set lo up && exec \"$@\""];
    static IS_POSSIBLE: OnceLock<bool> = OnceLock::new();
    let is_possible = *IS_POSSIBLE.get_or_init(|| {
        let mut probe = Command::new("unshare");
        probe.args(ALONE).args(["sh", "true"]).stdin(Stdio::null()).stderr(Stdio::null());
        let is_possible = probe.status().is_ok_and(|status| status.success());
        if !is_possible {
            println!(
                "no network can be taken away here (`unshare --net`, `ip`): builds may use it"
            );
        }
        is_possible
    });
    if !is_possible {
        return command;
    }
    let mut around = Command::new("unshare");
    around.args(ALONE).arg("sh");
    within(around, &command)
}

/// `around`, given a command with what it is to have.
fn within(mut around: Command, command: &Command) -> Command {
    around.arg(command.get_program()).args(command.get_args()).stdin(Stdio::null());
    for (key, value) in command.get_envs() {
        match value {
            Some(value) => around.env(key, value),
            None => around.env_remove(key),
        };
    }
    if let Some(directory) = command.get_current_dir() {
        around.current_dir(directory);
    }
    around
}

/// Runs a command to its end; anything but success is an error.
pub(crate) fn check(command: &mut Command) -> Result {
    let status = status(command)?;
    if status.success() { Ok(()) } else { Err(format!("{} failed: {status}", shown(command))) }
}

/// Runs a command to its end.
pub(crate) fn status(command: &mut Command) -> Result<ExitStatus> {
    command.status().map_err(|error| format!("cannot run {}: {error}", shown(command)))
}

/// Runs a command and returns what it printed; anything but success is an error.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cannot run {}: {error}", shown(command)))?;
    if !output.status.success() {
        return Err(format!("{} failed: {}", shown(command), output.status));
    }
    String::from_utf8(output.stdout).map_err(|_| format!("{} printed no text", shown(command)))
}

/// The same command under `timeout`, which ends it and all its children; it then
/// exits with 124.
pub(crate) fn limited(command: Command, limit: Duration) -> Command {
    let mut timeout = Command::new("timeout");
    timeout.arg("--kill-after=10").arg(limit.as_secs().to_string());
    within(timeout, &command)
}

/// Reads a whole file.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
}

/// Writes a whole file, and the directories above it.
pub(crate) fn write(path: &Path, contents: &[u8]) -> Result {
    create_directory(path.parent().unwrap_or(Path::new(".")))?;
    std::fs::write(path, contents)
        .map_err(|error| format!("cannot write {}: {error}", path.display()))
}

/// Makes a directory and those above it.
pub(crate) fn create_directory(path: &Path) -> Result {
    std::fs::create_dir_all(path)
        .map_err(|error| format!("cannot make {}: {error}", path.display()))
}

/// A command as a person would type it.
fn shown(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy()];
    words.extend(command.get_args().map(|argument| argument.to_string_lossy()));
    format!("`{}`", words.join(" "))
}
