//! What guests take is counted for all that run, and what they wait for counts once.
#![allow(clippy::single_range_in_vec_init)] // Extents of one range are meant.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use pagefork::IncompleteImage;
use pagefork_image::{
    ImageDraft, ImageHead, ImageStore, Manifest, PageRuns, SavedCode, SavedInstance,
};
use pagefork_node::{GuestClock, GuestTimes};

/// Bytes of a group.
const GROUP: u64 = 16 << 10;

/// An image of eight groups, none of which is here.
fn image(name: &str) -> Arc<IncompleteImage> {
    let path = std::env::temp_dir().join(format!("pagefork-{name}-{}", std::process::id()));
    let images = ImageStore::open(&path).unwrap();
    let code = SavedCode { hash: images.save_code(b"code").unwrap().hash(), ..<_>::default() };
    let extents = vec![0..8 * GROUP];
    let instance = SavedInstance { extents, code, ..SavedInstance::default() };
    let manifest = Manifest { instances: vec![instance], ..Manifest::default() };
    let pages = PageRuns::new(vec![vec![(0, vec![7; 8 * GROUP as usize])]]);
    let saved = images.save(ImageDraft::new(manifest, &pages)).unwrap();
    let head = Arc::new(ImageHead::read(saved.chain().tip()).unwrap());
    std::fs::remove_dir_all(path).unwrap();
    IncompleteImage::new(head, Duration::from_secs(20)).unwrap()
}

/// Nobody brings groups any more when this is dropped, so that a test that fails ends.
struct EndWhenDropped<'a>(&'a AtomicBool);

impl Drop for EndWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn what_waits_during_runs_counts_once_however_many_run_and_what_waits_before_does_not() {
    let image = image("guest-clock");
    let clock = GuestClock::new(&image);
    let read = |groups: std::ops::Range<u64>| {
        let mut bytes = vec![0; ((groups.end - groups.start) * GROUP) as usize];
        image.read(groups.start * GROUP, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 7));
    };
    let (is_over, both) = (AtomicBool::new(false), Barrier::new(2));
    thread::scope(|scope| {
        let _over = EndWhenDropped(&is_over);
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                for group in image.take_wanted() {
                    image.install(group, &[7; GROUP as usize]).unwrap();
                }
                thread::yield_now();
            }
        });
        read(0..1);
        let before = image.residency().blocked;
        assert!(!before.is_zero());
        assert_eq!(clock.times(), GuestTimes::default());
        // One that waits for several groups, and another one at the same time.
        thread::scope(|scope| {
            for groups in [1..5, 5..6] {
                scope.spawn(|| {
                    clock.run(|| {
                        both.wait();
                        read(groups);
                    });
                });
            }
        });
        let times = clock.times();
        assert_eq!(times.runs, 2);
        assert_eq!(times.blocked, image.residency().blocked - before);
        assert!(!times.blocked.is_zero() && times.blocked <= times.spent.wall, "{times:?}");
        assert!(!times.spent.cpu.is_zero() && times.spent.cpu <= times.spent.wall, "{times:?}");
        // Outside of a run, and in one that panics.
        read(6..7);
        assert_eq!(clock.times(), times);
        let panics = || {
            clock.run(|| {
                read(7..8);
                std::panic::resume_unwind(Box::new(()));
            })
        };
        catch_unwind(AssertUnwindSafe(panics)).unwrap_err();
        let after = clock.times();
        assert!(after.runs == 3 && after.blocked > times.blocked, "{after:?}");
        assert!(after.blocked <= after.spent.wall, "{after:?}");
    });
}
