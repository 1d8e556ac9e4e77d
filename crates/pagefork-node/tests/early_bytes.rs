//! Who connects over TLS brings the first bytes along with TCP's own handshake, where both systems agree.

use std::fs;
use std::path::Path;
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
    if std::env::var_os(OWN_NETWORK).is_some() {
        return println!("early: {}", connect());
    }
    // What the system of who listens says: 1 is for those who connect alone, 2 for those who listen.
    for (setting, expected) in [("3", CONNECTIONS - 1), ("1", 0)] {
        match in_own_network(setting) {
            Ok(early) => assert_eq!(early, expected, "net.ipv4.tcp_fastopen={setting}"),
            Err(why) => return eprintln!("NOT TESTED: no network of its own: {why}"),
        }
    }
}

/// Runs this test where only its process sends anything. Returns what it has counted.
fn in_own_network(setting: &str) -> Result<u64, String> {
    let script = "ip link set lo up && echo \"$1\" > /proc/sys/net/ipv4/tcp_fastopen && echo ready && \
                  exec \"$0\" --exact --nocapture \
                  from_the_second_connection_on_the_first_bytes_come_with_tcps_handshake";
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--net", "sh", "-c", script]);
    command.arg(std::env::current_exe().unwrap()).arg(setting).env(OWN_NETWORK, "1");
    let output = command.output().map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stdout);
    if !said.contains("ready") {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let count = said.split("early: ").nth(1).and_then(|rest| rest.split_whitespace().next());
    Ok(count.and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("{output:?}")))
}

/// Connects some times. Returns how many of the connections have brought bytes along.
fn connect() -> u64 {
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
    let times = NodeTimes { handshake: Duration::from_secs(20), ..NodeTimes::default() };
    for _ in 0..CONNECTIONS {
        let keys = TrustedKeys::default();
        let refused = fetch_image(&peer, &own, "none", &here, &keys, &times).unwrap_err();
        assert!(matches!(refused, NodeError::Refused { .. }), "{refused}");
    }
    fs::remove_dir_all(path).unwrap();
    counted("TCPFastOpenPassive")
}

/// What the system has counted in this network: names in one line, numbers in the next.
fn counted(name: &str) -> u64 {
    let text = fs::read_to_string("/proc/self/net/netstat").unwrap();
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(' ').collect()).collect();
    let all = lines.chunks(2).flat_map(|pair| pair[0].iter().zip(&pair[1]));
    let (_, count) = { all }.find(|(found, _)| **found == name).unwrap();
    count.parse().unwrap()
}
