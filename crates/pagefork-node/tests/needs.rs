//! What a program needs of a node that is to have it, and the node has not, is refused while the program runs.

mod common;

use std::path::{Path, PathBuf};

use common::{BEGINNING, Node, attach_filled};
use pagefork_node::{
    MigrateOptions, NodeDirectory, ProgramEnd, ProgramPhase, ProgramSource, ProgramStart,
};
use pagefork_wasi::Permissions;

/// Opens `file` in its directory, prints a byte, and reads.
fn opener() -> Vec<u8> {
    let text = format!(
        r#"(module
    (import "wasi_snapshot_preview1" "path_open" (func $open
        (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
    {BEGINNING}
    (data (i32.const 2048) "file")
    (func (export "_start")
        (if (call $open (i32.const 3) (i32.const 0) (i32.const 2048) (i32.const 4) (i32.const 0)
                (i64.const 2) (i64.const 0) (i32.const 0) (i32.const 2056))
            (then unreachable))
        (call $print (i32.const 1024) (i32.const 1))
        (drop (call $read))
        (call $exit (i32.const 7))))"#
    );
    wat::parse_str(text).expect("it is valid")
}

fn directory(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("needs-{name}"));
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir(&path).unwrap();
    path
}

#[test]
fn open_files_and_memory_that_a_target_has_not_are_refused_while_the_program_runs() {
    let (full, empty) = (directory("full"), directory("empty"));
    std::fs::write(full.join("file"), "text").unwrap();
    let node = |name: &str, seed: u8, host: &PathBuf, memory: Option<u64>| {
        Node::with(name, seed, |options| {
            let (host, guest) = (host.clone(), "/data".to_owned());
            let permissions = Permissions::ReadWrite;
            options.directories.push(NodeDirectory { host, guest, permissions });
            options.limits.memory = memory.unwrap_or(options.limits.memory);
        })
    };
    let nodes = [
        node("needs", 81, &full, None),
        node("lacks", 82, &empty, None),
        node("small", 83, &full, Some(65_535)),
        node("has", 84, &full, None),
    ];
    for node in &nodes {
        let others = nodes.iter().filter(|other| other.peer.key != node.peer.key);
        let others = others.map(|other| (other.peer.key.to_string(), other.peer.clone()));
        *node.peers.0.lock().unwrap() = others.collect();
    }
    let mut start = ProgramStart::new("opener", ProgramSource::Module(opener()));
    start.directories.push("/data".to_owned());
    let id = nodes[0].start(&start).to_string();
    let (input, client) = attach_filled(&nodes, &id);
    let migrate = |target: usize, rounds: u8| {
        let options = MigrateOptions { rounds, ..MigrateOptions::default() };
        nodes[0].client().migrate(&id, nodes[target].peer.key, options)
    };
    for rounds in [0, 1] {
        for (target, complaint) in [(1, "file"), (2, "65536 bytes of memory")] {
            let error = migrate(target, rounds).unwrap_err().to_string();
            assert!(error.contains(complaint), "{error}");
            assert_eq!(nodes[0].programs.programs()[0].phase, ProgramPhase::Running, "{error}");
            assert!(nodes[target].programs.programs().is_empty(), "{error}");
        }
    }
    migrate(3, 0).unwrap();
    input.close();
    assert_eq!(client.join().unwrap().end.unwrap(), ProgramEnd::Exited(7));
}
