//! A limit of memory for processes, by cgroup.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// A cgroup of its own, which is removed when this is dropped.
pub(super) struct MemoryLimit(PathBuf);

impl MemoryLimit {
    /// # Errors
    /// Why there is none here: no cgroups of memory, or no right to make one.
    pub(super) fn new(bytes: u64) -> Result<Self, String> {
        let groups = fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
        let own = |kind: &str| {
            groups.lines().find_map(|line| {
                let (head, path) = line.rsplit_once(':')?;
                let (_, controllers) = head.split_once(':')?;
                (controllers == kind).then(|| path.trim_start_matches('/').to_owned())
            })
        };
        // The second version has one tree for all, the first a tree for memory.
        let (base, limit) = match own("memory") {
            Some(path) => (Path::new("/sys/fs/cgroup/memory").join(path), "memory.limit_in_bytes"),
            None => {
                let path = own("").ok_or("this process is in no cgroup")?;
                (Path::new("/sys/fs/cgroup").join(path), "memory.max")
            }
        };
        let path = base.join(format!("pagefork-bench-{}", std::process::id()));
        let failed = |error| format!("{}: {error}", path.display());
        fs::create_dir(&path).map_err(failed)?;
        let made = Self(path.clone());
        fs::write(path.join(limit), bytes.to_string()).map_err(failed)?;
        Ok(made)
    }

    /// The same command, in the cgroup.
    pub(super) fn command(&self, of: &Command) -> Command {
        let mut command = Command::new("sh");
        let script = "echo $$ > \"$1/cgroup.procs\" && shift && exec \"$@\"";
        command.args(["-c", script, "sh"]).arg(&self.0).arg(of.get_program()).args(of.get_args());
        command
    }
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        // Processes that have ended leave it a moment later.
        let begun = Instant::now();
        while fs::remove_dir(&self.0).is_err() && begun.elapsed() < Duration::from_secs(2) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
