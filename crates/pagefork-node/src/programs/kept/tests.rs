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
        // Its record was damaged.
        moving_name(&own, MigrationId([8; 16])),
    ];
    {
        let records = MoveRecords::open(&options.records).unwrap();
        for (number, state, is_left) in states {
            let migration = MigrationId([number; 16]);
            images.set_name(&moving_name(&own, migration), image).unwrap();
            if let Some(state) = state {
                let source = SourceRecord { migration, epoch: 1, state };
                let (program, name) = (ProgramId([number; 16]), "a".to_owned());
                let (to, is_over) = (*other.as_bytes(), false);
                let record = LeavingRecord { source, program, name, to, is_over };
                records.keep_leaving(&record).unwrap();
            }
            if is_left {
                left.push(moving_name(&own, migration));
            }
        }
    }
    let damaged = options.records.join(format!("{}.leaving", ProgramId([8; 16])));
    std::fs::write(damaged, [3, 1, 2]).unwrap();
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

#[test]
fn a_node_keeps_so_much_for_another_one_and_nothing_for_whom_it_cannot_ask() {
    let path = std::env::temp_dir().join(format!("pagefork-kept-room-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    let images = ImageStore::open(path.join("images")).unwrap();
    let [key, from, other] = [1, 2, 3].map(|byte| SecretKey::from_seed([byte; 32]));
    let (from, other) = (from.public(), other.public());
    let pages = PageRuns::default();
    let image = images.save(ImageDraft::new(Manifest::default(), &pages)).unwrap().hash();
    let mut options =
        ProgramNodeOptions::new(Engine::default(), images.clone(), key, Arc::new(Nobody), &path);
    options.limits.kept = 2;
    let node = ProgramNode::new(options).unwrap();
    let refused = node.keep_for(from, ProgramId([1; 16]), other, image).unwrap_err();
    assert!(refused.contains("is not known here"), "{refused}");

    let room = |from, program| {
        let name = format!("kept-{program}");
        let program = ProgramId([program; 16]);
        make_room(&node, from, KeptImage { name, image, holder: other, program })
    };
    let first = room(from, 1).unwrap();
    let second = room(from, 2).unwrap();
    let refused = room(from, 3).unwrap_err();
    assert!(refused.contains("2 images"), "{refused}");
    room(other, 4).expect("of another node");
    drop(first);
    second.fill().unwrap();
    room(from, 3).expect("what did not come takes no room");
    // Nobody can say that its pages are not needed.
    for from in [from, other] {
        let refused = room(from, 2).unwrap_err();
        assert!(refused.contains("may need"), "{refused}");
    }
    assert_eq!(images.names().unwrap().len(), 1);

    // Something else has taken its room meanwhile, which its end leaves alone.
    let late = room(from, 5).unwrap();
    let_go(&node, &late.kept);
    let instead = room(other, 5).unwrap();
    assert!(late.fill().unwrap_err().contains("meanwhile"));
    assert_eq!(images.names().unwrap().len(), 1);
    instead.fill().unwrap();
    assert_eq!(images.names().unwrap().len(), 2);
    drop(node);
    std::fs::remove_dir_all(path).unwrap();
}

#[test]
fn a_holder_is_asked_of_all_that_is_due_at_once() {
    let all = KeptImages::default();
    let holders = [1, 2].map(|byte| PublicKey::from_bytes([byte; 32]));
    let now = Instant::now();
    for (name, holder, ask_at) in [
        ("a", holders[0], Some(now - Duration::from_secs(2))),
        ("b", holders[1], Some(now - Duration::from_secs(3))),
        ("c", holders[0], Some(now)),
        ("d", holders[0], Some(now + Duration::from_secs(3600))),
        ("e", holders[1], None),
    ] {
        let (image, program) = (ContentHash::of(b"image"), ProgramId([1; 16]));
        let kept = Arc::new(KeptImage { name: name.to_owned(), image, holder, program });
        let entry = KeptEntry { kept, from: None, ask_at, pause: ASK_FIRST };
        all.lock().entries.insert(name.to_owned(), entry);
    }
    let due = || all.due().iter().map(|kept| kept.name.clone()).collect::<Vec<_>>();
    assert_eq!(due(), ["b"], "the first of all");
    let asked = Arc::clone(&all.lock().entries["b"].kept);
    all.asked(&asked);
    assert_eq!(due(), ["a", "c"]);
    all.lock().entries.retain(|_, entry| entry.ask_at.is_none());
    all.lock().has_thread = true;
    assert!(due().is_empty() && !all.lock().has_thread, "another thread asks of what follows");
}
