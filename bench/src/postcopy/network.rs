//! Two network namespaces with a line between them.

use std::ffi::OsStr;
use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;

/// The line between two nodes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    pub(super) mtu: u32,
    /// As `tc` understands it; `None` is as fast as the machine.
    pub(super) rate: Option<&'static str>,
}

/// Two namespaces, removed at the end.
pub(super) struct Namespaces {
    names: [String; 2],
}

impl Namespaces {
    /// # Errors
    /// What is missing here: rights, `ip`, or the kernel's part.
    pub(super) fn new(line: Line) -> Result<Self, String> {
        let id = std::process::id();
        let names = ["a", "b"].map(|side| format!("pfbench{id}{side}"));
        // From here on they are removed, whatever fails.
        let namespaces = Self { names };
        let [a, b] = &namespaces.names;
        let mtu = line.mtu.to_string();
        for name in [a, b] {
            ip(&["netns", "add", name])?;
            ip(&["-n", name, "link", "set", "lo", "up"])?;
        }
        ip(&[
            "-n", a, "link", "add", "line", "mtu", &mtu, "type", "veth", "peer", "name", "line",
            "mtu", &mtu, "netns", b,
        ])?;
        for (side, name) in [a, b].into_iter().enumerate() {
            ip(&["-n", name, "addr", "add", &format!("{}/24", Self::ip(side)), "dev", "line"])?;
            ip(&["-n", name, "link", "set", "line", "up"])?;
            if let Some(rate) = line.rate {
                let shaped = [
                    "-n", name, "qdisc", "add", "dev", "line", "root", "tbf", "rate", rate,
                    "burst", "256kb", "latency", "50ms",
                ];
                run("tc", &shaped)?;
            }
        }
        Ok(namespaces)
    }

    pub(super) fn ip(side: usize) -> IpAddr {
        Ipv4Addr::new(10, 97, 84, side as u8 + 1).into()
    }

    /// A command that runs in one of them.
    pub(super) fn command(&self, side: usize, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[side]]).arg(program);
        command
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.names {
            // One that was not made cannot be removed.
            let _ = ip(&["netns", "del", name]);
        }
    }
}

fn ip(arguments: &[&str]) -> Result<(), String> {
    run("ip", arguments)
}

fn run(program: &str, arguments: &[&str]) -> Result<(), String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.map_err(|error| format!("cannot run {program}: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(format!("{program} {}: {}", arguments.join(" "), said.trim()))
        }
    }
}
