//! Names that a process of a node has left behind.

use std::sync::Arc;
use std::time::Instant;

use pagefork::Engine;
use pagefork_image::{ImageDraft, ImageStore, Manifest, PageRuns, SecretKey, TrustedKeys};
use pagefork_postcopy::SourceRecord;

use super::*;
use crate::fetch::MemoryPeer;
use crate::programs::records::{LeavingRecord, MoveRecords};
use crate::programs::{KnownPeers, ProgramNodeOptions};

#[derive(Debug)]
struct Nobody;

impl KnownPeers for Nobody {
    fn may_run(&self, _: &PublicKey) -> bool {
        false
    }

    fn named(&self, _: &str) -> Option<MemoryPeer> {
        None
    }

    fn with_key(&self, _: &PublicKey) -> Option<MemoryPeer> {
        None
    }

    fn signers(&self) -> Result<TrustedKeys, String> {
        Ok(TrustedKeys::default())
    }
}

#[test]
fn a_node_that_is_started_anew_keeps_what_somebody_may_need_and_names_nothing_else() {
    let path = std::env::temp_dir().join(format!("pagefork-kept-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    let images = ImageStore::open(path.join("images")).unwrap();
    let (key, other) = (SecretKey::from_seed([1; 32]), SecretKey::from_seed([2; 32]).public());
    let own = key.public();
    let pages = PageRuns::default();
    let image = images.save(ImageDraft::new(Manifest::default(), &pages)).unwrap().hash();
    let mut options =
        ProgramNodeOptions::new(Engine::default(), images.clone(), key, Arc::new(Nobody), &path);
    options.records = path.join("moves");
    let token = Vec::new();
    let states = [
        (1, Some(SourceState::Offered), false),
        (2, Some(SourceState::Accepted), false),
        (3, Some(SourceState::GoesOn), false),
        (4, None, false),
        (5, Some(SourceState::HandedOver { image, token }), true),
        (6, Some(SourceState::Declined), true),
        // Its target has not said that it has all pages.
        (7, Some(SourceState::Taken), true),
    ];
    let mut left = vec![
        "mine".to_owned(),
        moving_name(&other, MigrationId([4; 16])),
        second_name(&own, &other, ProgramId([9; 16])),
    ];
    {
        let records = MoveRecords::open(&options.records).unwrap();
        for (number, state, is_left) in states {
            let migration = MigrationId([number; 16]);
            images.set_name(&moving_name(&own, migration), image).unwrap();
            if let Some(state) = state {
                let source = SourceRecord { migration, epoch: 1, state };
                let (program, name) = (ProgramId([number; 16]), "a".to_owned());
                let record = LeavingRecord { source, program, name, to: *other.as_bytes() };
                records.keep_leaving(&record).unwrap();
            }
            if is_left {
                left.push(moving_name(&own, migration));
            }
        }
    }
    left.iter().for_each(|name| images.set_name(name, image).unwrap());
    left.sort();
    let node = ProgramNode::new(options).unwrap();
    let names: Vec<String> = images.names().unwrap().into_keys().collect();
    assert_eq!(names, left);
    // Who may need it can have it.
    assert!(node.granted(&other).contains(&image));
    let begun = Instant::now();
    while begun.elapsed() < ASK_FIRST * 5 {
        thread::sleep(ASK_FIRST);
        assert_eq!(images.names().unwrap().len(), left.len(), "who does not answer may need it");
    }
    drop(node);
    std::fs::remove_dir_all(path).unwrap();
}
