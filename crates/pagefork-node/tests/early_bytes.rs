//! Who connects over TLS brings the first bytes along with TCP's own handshake, where both systems agree.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use pagefork_image::{ImageStore, SecretKey, TrustedKeys};
use pagefork_node::{MemoryPeer, MemoryServer, NodeError, NodeTimes, ServeOptions, fetch_image};

/// Set in processes that have a network of their own.
const OWN_NETWORK: &str = "PAGEFORK_OWN_NETWORK";

/// Connections in a row. The first one learns what others bring along to be let in early.
const CONNECTIONS: u64 = 3;

#[test]
fn from_the_second_connection_on_the_first_bytes_come_with_tcps_handshake() {
    const NAME: &str = "from_the_second_connection_on_the_first_bytes_come_with_tcps_handshake";
    if std::env::var_os(OWN_NETWORK).is_some() {
        let node = ListeningNode::new();
        for _ in 0..CONNECTIONS {
            node.assert_refuses();
        }
        return println!("early: {}", counted("TCPFastOpenPassive"));
    }
    // What the system of who listens says: 1 is for those who connect alone, 2 for those who listen.
    for (setting, expected) in [("3", CONNECTIONS - 1), ("1", 0)] {
        match in_own_network(setting, NAME) {
            Ok(early) => assert_eq!(early, expected, "net.ipv4.tcp_fastopen={setting}"),
            Err(why) => return eprintln!("NOT TESTED: no network of its own: {why}"),
        }
    }
}

/// A system that takes bytes along says nothing of a host that does not answer.
#[test]
fn a_host_that_is_silent_is_out_of_reach_also_where_bytes_went_along() {
    const NAME: &str = "a_host_that_is_silent_is_out_of_reach_also_where_bytes_went_along";
    if std::env::var_os(OWN_NETWORK).is_some() {
        let node = ListeningNode::new();
        for _ in 0..CONNECTIONS {
            node.assert_refuses();
        }
        let lost = "qdisc add dev lo root tbf rate 1kbit burst 1b limit 1b";
        let tc = Command::new("tc").args(lost.split(' ')).status();
        if !tc.is_ok_and(|status| status.success()) {
            return println!("early: 0");
        }
        let NodeError::Io { action, error } = node.connect(Duration::from_secs(1)) else {
            panic!("it is said that it was there")
        };
        assert!(action.contains("reach node"), "{action}");
        assert_eq!(error.kind(), std::io::ErrorKind::TimedOut, "{error}");
        return println!("early: 1");
    }
    match in_own_network("3", NAME) {
        Ok(1) => (),
        Ok(_) => eprintln!("NOT TESTED: this system has no tc"),
        Err(why) => eprintln!("NOT TESTED: no network of its own: {why}"),
    }
}

/// Runs a test where only its process sends anything. Returns what it has counted.
fn in_own_network(setting: &str, name: &str) -> Result<u64, String> {
    let script = "ip link set lo up && echo \"$1\" > /proc/sys/net/ipv4/tcp_fastopen && echo ready && \
                  exec \"$0\" --exact --nocapture \"$2\"";
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--net", "sh", "-c", script]);
    command.arg(std::env::current_exe().unwrap()).args([setting, name]).env(OWN_NETWORK, "1");
    let output = command.output().map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stdout);
    if !said.contains("ready") {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let count = said.split("early: ").nth(1).and_then(|rest| rest.split_whitespace().next());
    Ok(count.and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("{output:?}")))
}

/// A node that has nothing.
struct ListeningNode {
    path: PathBuf,
    here: ImageStore,
    peer: MemoryPeer,
    own: SecretKey,
}

impl ListeningNode {
    fn new() -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let path = path.join(format!("early-bytes-{}", std::process::id()));
        let open = |name: &str| ImageStore::open(path.join(name)).unwrap();
        let (here, there) = (open("here"), open("there"));
        let [node, own] = [1, 2].map(|seed| SecretKey::from_seed([seed; 32]));
        let mut options = ServeOptions::new(node.clone());
        options.access = Arc::new(|_| true);
        let server = MemoryServer::bind("127.0.0.1:0", there, options).unwrap();
        let peer = MemoryPeer { address: server.address().to_string(), key: node.public() };
        thread::spawn(move || server.run());
        Self { path, here, peer, own }
    }

    /// Connects, and asks for what it has not.
    fn connect(&self, handshake: Duration) -> NodeError {
        let times = NodeTimes { handshake, ..NodeTimes::default() };
        let Self { here, peer, own, .. } = self;
        fetch_image(peer, own, "none", here, &TrustedKeys::default(), &times).unwrap_err()
    }

    fn assert_refuses(&self) {
        let refused = self.connect(Duration::from_secs(20));
        assert!(matches!(refused, NodeError::Refused { .. }), "{refused}");
    }
}

impl Drop for ListeningNode {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// What the system has counted in this network: names in one line, numbers in the next.
fn counted(name: &str) -> u64 {
    let text = fs::read_to_string("/proc/self/net/netstat").unwrap();
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(' ').collect()).collect();
    let all = lines.chunks(2).flat_map(|pair| pair[0].iter().zip(&pair[1]));
    let (_, count) = { all }.find(|(found, _)| **found == name).unwrap();
    count.parse().unwrap()
}
