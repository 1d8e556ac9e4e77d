//! Places that give what was asked for, something else, or nothing.

#![allow(clippy::single_range_in_vec_init)] // Extents of one range are meant.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Mutex;

use pagefork_image::{
    CollectReport, ContentHash, ImageDraft, ImageHead, ImageLimits, ImageReader, Manifest,
    PageRuns, ReadAt, SavedInstance,
};

use super::*;

/// An image file; images of different numbers differ in each group and in nothing else.
fn file(number: u32) -> Vec<u8> {
    let instance = SavedInstance { extents: vec![0..1 << 18], ..SavedInstance::default() };
    let manifest = Manifest { instances: vec![instance], ..Manifest::default() };
    let word = |n: u32| n.wrapping_mul(0x9e37_79b9).wrapping_add(number).to_le_bytes();
    let bytes = (0..1_u32 << 16).flat_map(word).collect();
    let pages = PageRuns::new(vec![vec![(0, bytes)]]);
    let mut file = io::Cursor::new(Vec::new());
    ImageDraft::new(manifest, &pages).write(&mut file).unwrap();
    file.into_inner()
}

fn read(file: &[u8]) -> Result<ImageReader, ImageError> {
    ImageReader::open(Box::new(file.to_vec()), &ImageLimits::default())
}

/// Gives this file, whatever it is asked for, or says for so many times that it cannot.
struct Liar {
    file: Vec<u8>,
    failures: Mutex<usize>,
}

impl ImageRepository for Liar {
    fn open_chain(&self, _: ContentHash) -> Result<ImageChain, ImageError> {
        let mut failures = self.failures.lock().unwrap();
        if *failures > 0 {
            *failures -= 1;
            let (action, error) = ("read it".to_owned(), io::ErrorKind::TimedOut.into());
            return Err(ImageError::Io { action, error });
        }
        ImageChain::new(vec![Arc::new(read(&self.file)?)], &ImageLimits::default())
    }

    fn images(&self) -> Result<Vec<ContentHash>, ImageError> {
        unreachable!()
    }

    fn put_image(&self, _: &ImageReader) -> Result<(), ImageError> {
        unreachable!()
    }

    fn open_code(&self, _: ContentHash) -> Result<Box<dyn ReadAt>, ImageError> {
        unreachable!()
    }

    fn put_code(&self, _: ContentHash, _: &dyn ReadAt) -> Result<(), ImageError> {
        unreachable!()
    }

    fn names(&self) -> Result<BTreeMap<String, ContentHash>, ImageError> {
        unreachable!()
    }

    fn set_name(&self, _: &str, _: ContentHash) -> Result<(), ImageError> {
        unreachable!()
    }

    fn remove_name(&self, _: &str) -> Result<bool, ImageError> {
        unreachable!()
    }

    fn collect(&self) -> Result<CollectReport, ImageError> {
        unreachable!()
    }
}

/// Puts pages into the image, and knows which came first.
#[derive(Debug)]
struct Sink(Arc<IncompleteImage>, Mutex<Vec<u64>>);

impl PageSink for Sink {
    fn wanted(&self) -> BorrowedFd<'_> {
        self.0.wanted_signal()
    }

    fn take_wanted(&self) -> Vec<u64> {
        // Somebody waits for this one, and nobody for others.
        let mut installed = self.1.lock().unwrap();
        if installed.is_empty() {
            installed.push(u64::MAX);
            return vec![7];
        }
        Vec::new()
    }

    fn install(&self, group: u64, bytes: &[u8]) -> io::Result<()> {
        self.1.lock().unwrap().push(group);
        self.0.install(group, bytes).map(drop).map_err(io::Error::other)
    }

    fn give_up(&self, _: &NodeError) {}
}

/// Asks for the image of number 1. Returns what came, in its order.
fn fetch(given: Vec<u8>, failures: usize) -> (Result<(), NodeError>, Vec<u64>) {
    let head = Arc::new(ImageHead::read(&read(&file(1)).unwrap()).unwrap());
    let image = IncompleteImage::new(head, Duration::from_secs(30)).unwrap();
    let sink = Sink(Arc::clone(&image), Mutex::default());
    let images = Arc::new(Liar { file: given, failures: Mutex::new(failures) });
    let place = ImagePlace { url: "file:///lies".to_owned(), images };
    let times = PageTimes { lost: Duration::from_millis(300), ..PageTimes::default() };
    let fetched = fetch_from_place(&place, &image, &sink, &times, true, &AtomicBool::new(false));
    if fetched.is_ok() {
        let mut bytes = vec![0; 1 << 18];
        image.read(0, &mut bytes).unwrap();
        let wanted = file(1);
        assert!(wanted.windows(bytes.len()).any(|window| window == bytes), "other bytes");
    }
    let mut came = sink.1.into_inner().unwrap();
    came.retain(|group| *group != u64::MAX);
    (fetched, came)
}

#[test]
fn what_somebody_waits_for_comes_first_and_the_rest_after_it() {
    let (fetched, came) = fetch(file(1), 0);
    fetched.unwrap();
    assert_eq!(came, [vec![7], (0..7).collect(), (8..16).collect()].concat());
    // A place that is not reached for a moment is asked again.
    fetch(file(1), 3).0.unwrap();
}

#[test]
fn another_image_is_none_of_the_one_that_was_asked_for() {
    let (fetched, came) = fetch(file(2), 0);
    let why = fetched.unwrap_err().to_string();
    assert!(why.contains("another image") && why.contains("file:///lies"), "{why}");
    assert_eq!(came, [0; 0], "nothing of it is installed");
}

#[test]
fn groups_that_the_tree_does_not_prove_are_not_installed() {
    let mut altered = file(1);
    let start = altered.len() - (1 << 18);
    altered[start..].iter_mut().step_by(16 << 10).for_each(|byte| *byte ^= 1);
    let (fetched, came) = fetch(altered, 0);
    let why = fetched.unwrap_err().to_string();
    assert!(why.contains("damaged") && why.contains("file:///lies"), "{why}");
    assert_eq!(came, [0; 0], "nothing of it is installed");
}

#[test]
fn what_is_cut_or_never_comes_is_given_up_in_time() {
    let whole = file(1);
    for size in [0, 50, 1000, whole.len() / 2, whole.len() - 1] {
        let (fetched, _) = fetch(whole[..size].to_vec(), 0);
        assert!(matches!(fetched, Err(NodeError::PlaceLost { .. })), "{size}: {fetched:?}");
    }
    let (fetched, came) = fetch(whole, usize::MAX);
    let why = fetched.unwrap_err().to_string();
    assert!(why.contains("timed out") && came.is_empty(), "{why}");
}
