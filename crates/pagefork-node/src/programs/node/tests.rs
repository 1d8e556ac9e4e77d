//! What a node knows of programs that have come and gone, also when it is started anew.

use std::path::Path;

use pagefork::Engine;
use pagefork_image::{ImageStore, SecretKey};
use pagefork_postcopy::{SourceRecord, TargetRecord};

use super::*;
use crate::programs::tests;
use crate::strangers::AnyPeer;

const PROGRAM: ProgramId = ProgramId([7; 16]);
const TO: [u8; 32] = [2; 32];
const FROM: [u8; 32] = [3; 32];
const CAME: MigrationId = MigrationId([9; 16]);

fn node(path: &Path) -> ProgramNode {
    let images = ImageStore::open(path.join("images")).unwrap();
    let (engine, key) = (Engine::default(), SecretKey::from_seed([1; 32]));
    ProgramNode::new(ProgramNodeOptions::new(engine, images, key, Arc::new(AnyPeer), path)).unwrap()
}

/// A node whose process before has had a program leave, after so many hand-overs each, and come once.
fn started(name: &str, left: &[u64], came: u64) -> (std::path::PathBuf, ProgramNode) {
    let path = std::env::temp_dir().join(format!("pagefork-anew-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    {
        let records = MoveRecords::open(&path.join("moves")).unwrap();
        for epoch in left {
            let migration = MigrationId([*epoch as u8; 16]);
            let source = SourceRecord { migration, epoch: *epoch, state: SourceState::Taken };
            let (program, name, is_over) = (PROGRAM, "a".to_owned(), false);
            let record = LeavingRecord { source, program, name, to: TO, is_over };
            records.keep_leaving(&record).unwrap();
        }
        let target = TargetRecord { migration: CAME, epoch: came, state: TargetState::Own };
        let (program, name, is_known, is_over) = (PROGRAM, "a".to_owned(), false, false);
        let record = ArrivingRecord { target, program, name, from: FROM, is_known, is_over };
        records.keep_arriving(&record).unwrap();
    }
    let node = node(&path);
    (path, node)
}

fn phases(node: &ProgramNode) -> Vec<ProgramPhase> {
    node.programs().into_iter().map(|program| program.phase).collect()
}

#[test]
fn a_program_that_came_back_and_is_forgotten_is_not_said_to_be_where_it_was_before() {
    let (path, node_before) = started("back", &[1, 3], 4);
    assert!(matches!(phases(&node_before)[..], [ProgramPhase::Lost(_)]));
    node_before.stop(&PROGRAM.to_string(), Duration::from_secs(60)).unwrap();
    assert!(phases(&node_before).is_empty());
    drop(node_before);
    let node_after = node(&path);
    assert!(phases(&node_after).is_empty(), "{:?}", phases(&node_after));
    let remembered = node_after.records().arriving(CAME).unwrap();
    assert!(remembered.unwrap().0.is_over, "its source may ask for it yet");
    arriving::known(&node_after, PublicKey::from_bytes(FROM), CAME).unwrap();
    assert!(node_after.records().arriving(CAME).unwrap().is_none());
    drop(node_after);
    assert!(phases(&node(&path)).is_empty());
    std::fs::remove_dir_all(path).unwrap();
}

#[test]
fn a_program_that_came_and_has_left_since_is_where_it_went() {
    let (path, node) = started("gone", &[1, 6], 4);
    assert_eq!(phases(&node), [ProgramPhase::Moved { to: TO }]);
    assert!(node.records().arriving(CAME).unwrap().unwrap().0.is_over);
    node.stop(&PROGRAM.to_string(), Duration::from_secs(60)).unwrap();
    drop(node);
    assert!(phases(&self::node(&path)).is_empty(), "nobody wants to know where it is");
    std::fs::remove_dir_all(path).unwrap();
}

#[test]
fn a_move_that_fails_leaves_nothing_behind() {
    let path = std::env::temp_dir().join(format!("pagefork-not-moved-{}", std::process::id()));
    let node = node(&path);
    node.start(&tests::talking()).unwrap();
    for _ in 0..3 {
        let to = PublicKey::from_bytes(TO);
        node.migrate("talking", to, MigrateOptions::default()).unwrap_err();
        assert!(node.moves().leaving.is_empty(), "each has a descriptor");
    }
    node.stop("talking", std::time::Duration::from_secs(60)).unwrap();
    std::fs::remove_dir_all(path).unwrap();
}

#[test]
fn so_many_programs_that_came_and_are_over_are_known_as_may_be() {
    let path = std::env::temp_dir().join(format!("pagefork-over-{}", std::process::id()));
    let node = node(&path);
    let limit = node.options().limits.ended;
    for number in 0..2 * limit as u8 {
        let id = ProgramId([number; 16]);
        let place = node.place_of_arrival(id, 0).unwrap();
        let (owner, streams) = (PublicKey::from_bytes(FROM), Arc::default());
        let phase = ProgramPhase::Moved { to: TO };
        place.fill(&NodeProgram::new(id, "a".to_owned(), owner, streams, phase));
    }
    assert_eq!(node.programs().len(), limit);
    std::fs::remove_dir_all(path).unwrap();
}
