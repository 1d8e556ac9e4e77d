//! Two network namespaces with a line between them, and what is gone when this process is.

use std::ffi::OsStr;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The line between two nodes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    pub(super) mtu: u32,
    /// Bits a second, as `tc` understands it; `None` is as fast as the machine.
    pub(super) rate: Option<&'static str>,
}

/// Two namespaces without names: they go with the processes that hold them, and these with this one.
pub(super) struct Namespaces {
    holders: [Held; 2],
}

impl Namespaces {
    /// # Errors
    /// What is missing here: rights, `unshare`, `nsenter`, `ip`, `tc`, or the kernel's part.
    pub(super) fn new(line: Line) -> Result<Self, String> {
        let holder = || {
            let mut holder = Held::new("unshare", &["--net", "sh", "-c", "echo && exec cat"])?;
            // Only what runs in the namespace says a line.
            let said = holder.0.stdout.as_mut().map(|output| output.read_exact(&mut [0]));
            match said {
                Some(Ok(())) => Ok(holder),
                _ => Err("no network namespace can be made".to_owned()),
            }
        };
        let namespaces = Self { holders: [holder()?, holder()?] };
        let (mtu, far) = (line.mtu.to_string(), namespaces.holders[1].0.id().to_string());
        let ends = ["mtu", &mtu, "type", "veth", "peer", "name", "line", "mtu", &mtu];
        let link = [&["link", "add", "line"][..], &ends, &["netns", &far]].concat();
        namespaces.run(0, "ip", &link)?;
        for side in [0, 1] {
            let address = format!("{}/24", Self::ip(side));
            namespaces.run(side, "ip", &["addr", "add", &address, "dev", "line"])?;
            for device in ["lo", "line"] {
                namespaces.run(side, "ip", &["link", "set", device, "up"])?;
            }
            if let Some(rate) = line.rate {
                let shaped = ["qdisc", "add", "dev", "line", "root", "tbf", "rate", rate];
                let queue = ["burst", "256kb", "latency", "50ms"];
                namespaces.run(side, "tc", &[&shaped[..], &queue].concat())?;
            }
        }
        Ok(namespaces)
    }

    /// Has connections to one side bring bytes along with TCP's handshake.
    ///
    /// # Errors
    /// If the system does not let it.
    pub(super) fn take_early_bytes(&self, side: usize) -> Result<(), String> {
        self.run(side, "sh", &["-c", "echo 3 > /proc/sys/net/ipv4/tcp_fastopen"])
    }

    pub(super) fn ip(side: usize) -> IpAddr {
        Ipv4Addr::new(10, 97, 84, side as u8 + 1).into()
    }

    /// A command that runs in one of them.
    pub(super) fn command(&self, side: usize, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.holders[side].0.id())).arg(program);
        command
    }

    fn run(&self, side: usize, program: &str, arguments: &[&str]) -> Result<(), String> {
        let output = self.command(side, program).args(arguments).output();
        let output = output.map_err(|error| format!("cannot run nsenter: {error}"))?;
        let said = String::from_utf8_lossy(&output.stderr);
        match output.status.success() {
            true => Ok(()),
            false => Err(format!("{program} {}: {}", arguments.join(" "), said.trim())),
        }
    }
}

/// A process that ends when its input does, which it has from this one: however this one ends.
struct Held(Child);

impl Held {
    fn new(program: &str, arguments: &[&str]) -> Result<Self, String> {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let child = command.spawn().map_err(|error| format!("cannot run {program}: {error}"))?;
        Ok(Self(child))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// A directory on a disk. A process of its own removes it when this one has ended or is done with it.
pub(super) struct Scratch {
    path: PathBuf,
    _remover: Held,
}

impl Scratch {
    pub(super) fn new() -> Self {
        // Tests run as threads of one process, and a directory is of one of them.
        let name = format!("pagefork-postcopy-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a directory of ours");
        // Who interrupts this process by a key interrupts all of its group.
        let script = "trap '' INT TERM HUP; cat; rm -rf -- \"$1\"";
        let remover = Held::new("sh", &["-c", script, "sh", &path.to_string_lossy()]);
        Self { path, _remover: remover.expect("there is a shell") }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}
