//! A service that stalls in the middle of an upload: it is left in time, by an error that says so, and
//! nothing half-made stays.

#![allow(clippy::single_range_in_vec_init)] // Extents of one range are meant.

#[path = "common/stalling.rs"]
mod stalling;

use std::io::Cursor;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use pagefork_image::*;
use pagefork_objects::{ObjectImages, ObjectSettings};
use stalling::{Stall, Stalling};

/// No test waits longer for what is to end by itself.
const LIMIT: Duration = Duration::from_secs(60);

/// An image of three parts.
fn image() -> ImageReader {
    let instance = SavedInstance { extents: vec![0..1 << 26], ..SavedInstance::default() };
    let manifest = Manifest { instances: vec![instance], ..Manifest::default() };
    let bytes = (0..20 << 20).map(|at: u32| (at ^ (at >> 12)) as u8 | 1).collect();
    let mut file = Cursor::new(Vec::new());
    ImageDraft::new(manifest, &PageRuns::new(vec![vec![(0, bytes)]])).write(&mut file).unwrap();
    ImageReader::open(Box::new(file.into_inner()), &ImageLimits::default()).unwrap()
}

#[test]
fn an_upload_that_stalls_ends_with_its_deadline_and_leaves_nothing() {
    let service = Stalling::default();
    let timeout = Duration::from_secs(2);
    let settings = ObjectSettings { timeout, ..ObjectSettings::default() };
    let remote = ObjectImages::new(Arc::new(service.clone()), settings).unwrap();
    let image = Arc::new(image());
    for (stall, seen) in [
        (Stall::Beginning, &[][..]),
        (Stall::Part(0), &["abort"]),
        (Stall::Part(1), &["part", "abort"]),
        (Stall::Part(2), &["part", "part", "abort"]),
        (Stall::PartAndAbort(1), &["part"]),
        (Stall::Completing, &["part", "part", "part", "abort"]),
    ] {
        service.stall(Some(stall));
        let before = service.seen().len();
        let (sender, receiver) = mpsc::channel();
        let (putting, stored) = (remote.clone(), Arc::clone(&image));
        thread::spawn(move || sender.send(putting.put_image(&stored)));
        let outcome =
            receiver.recv_timeout(LIMIT).unwrap_or_else(|_| panic!("{stall:?}: it hangs"));
        let why = outcome.unwrap_err().to_string();
        // What was to be written, and how long the service has been waited for.
        let key = format!("write images/{}", image.hash());
        assert!(why.contains(&key), "{stall:?}: {why}");
        assert!(why.contains("it has not answered for 2s"), "{stall:?}: {why}");
        assert_eq!(service.seen()[before..], *seen, "{stall:?}");
        assert_eq!(remote.images().unwrap(), [], "{stall:?}: nothing half-made stays");
        assert!(remote.names().unwrap().is_empty());
    }
    // When it answers again, the same image goes there.
    service.stall(None);
    remote.put_image(&image).unwrap();
    remote.open_chain(image.hash()).unwrap().verify().unwrap();
}
