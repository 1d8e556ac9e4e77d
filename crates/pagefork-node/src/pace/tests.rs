//! Who drips, by a clock of the tests' own.

use std::sync::atomic::{AtomicU64, Ordering};

use pagefork_image::{
    CollectReport, ImageDraft, ImageStore, Manifest, PageRuns, SavedCode, SavedInstance, copy_chain,
};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// Time that passes when it is told to.
#[derive(Clone, Default)]
struct OwnTime(Arc<AtomicU64>);

impl OwnTime {
    fn pass(&self, time: Duration) {
        self.0.fetch_add(time.as_millis() as u64, Ordering::SeqCst);
    }

    fn clock(&self) -> PaceClock {
        let time = Arc::clone(&self.0);
        Arc::new(move || Duration::from_millis(time.load(Ordering::SeqCst)))
    }
}

#[test]
fn a_standstill_counts_however_much_came_before_it() {
    let mut pace = Pace::new(10 * SECOND);
    // A GiB at once, and then nothing for long.
    pace.took(1 << 30, SECOND).unwrap();
    let why = pace.clone().took(1, 11 * SECOND).unwrap_err();
    assert_eq!(why.kind(), ErrorKind::TimedOut);
    assert!(why.to_string().contains("fewer than 16384 bytes a second"), "{why}");
    // At the least rate it goes on for ever, also in large parts that take long.
    for bytes in [LEAST_RATE, 100 * LEAST_RATE].repeat(50) {
        pace.took(bytes, time_of(bytes)).unwrap();
    }
    // And what was lost is made up for.
    pace.took(LEAST_RATE, 9 * SECOND).unwrap();
    pace.took(LEAST_RATE, 4 * SECOND).unwrap_err();
    let mut pace = Pace::new(10 * SECOND);
    pace.took(LEAST_RATE, 9 * SECOND).unwrap();
    pace.took(20 * LEAST_RATE, SECOND).unwrap();
    pace.took(1, 9 * SECOND).unwrap();
}

/// Gives a byte at a time, each after so long.
struct Dripping {
    time: OwnTime,
    pause: Duration,
    left: usize,
}

impl Read for Dripping {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.time.pass(self.pause);
        let count = into.len().min(1).min(self.left);
        self.left -= count;
        Ok(count)
    }
}

#[test]
fn a_stream_that_drips_is_left_in_time_though_it_is_never_silent() {
    let read = |pause| {
        let time = OwnTime::default();
        let input = Dripping { time: time.clone(), pause, left: 100_000 };
        let mut reader = PacedReader::new(input, Pace::new(60 * SECOND), time.clock());
        let read = reader.read_to_end(&mut Vec::new());
        (read, (time.clock())())
    };
    let (failed, after) = read(19 * SECOND);
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::TimedOut);
    assert!(after < 120 * SECOND, "it was read for {after:?}");
    assert_eq!(read(Duration::ZERO).0.unwrap(), 100_000);
}

/// A directory for a store.
struct PaceStore(std::path::PathBuf);

impl PaceStore {
    fn new(name: &str) -> (Self, ImageStore) {
        let name = format!("pagefork-pace-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&path);
        let images = ImageStore::open(&path).unwrap();
        (Self(path), images)
    }
}

impl Drop for PaceStore {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The images of a store, of which each read takes so long.
struct SlowImages {
    images: ImageStore,
    time: OwnTime,
    pause: Duration,
}

struct SlowBytes<R>(R, OwnTime, Duration);

impl<R: ReadAt> ReadAt for SlowBytes<R> {
    fn size(&self) -> io::Result<u64> {
        self.0.size()
    }

    fn read_exact_at(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        self.1.pass(self.2);
        self.0.read_exact_at(into, offset)
    }
}

impl ImageRepository for SlowImages {
    fn images(&self) -> Result<Vec<ContentHash>, ImageError> {
        self.images.images()
    }

    fn open_chain(&self, hash: ContentHash) -> Result<ImageChain, ImageError> {
        let limits = self.images.limits();
        let chain = self.images.load(hash)?.chain().clone();
        let images = chain.images().iter().map(|image| {
            let slow = SlowBytes(ImageBytes(Arc::clone(image)), self.time.clone(), self.pause);
            ImageReader::open(Box::new(slow), limits).map(Arc::new)
        });
        ImageChain::new(images.collect::<Result<_, _>>()?, limits)
    }

    fn put_image(&self, _: &ImageReader) -> Result<(), ImageError> {
        unreachable!()
    }

    fn open_code(&self, hash: ContentHash) -> Result<Box<dyn ReadAt>, ImageError> {
        let code = AnyBytes(self.images.open_code(hash)?);
        Ok(Box::new(SlowBytes(code, self.time.clone(), self.pause)))
    }

    fn put_code(&self, _: ContentHash, _: &dyn ReadAt) -> Result<(), ImageError> {
        unreachable!()
    }

    fn names(&self) -> Result<std::collections::BTreeMap<String, ContentHash>, ImageError> {
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

#[test]
fn an_image_that_drips_out_of_a_place_is_left_in_time_and_nothing_half_made_stays() {
    let (_there, there) = PaceStore::new("there");
    let instance = SavedInstance {
        extents: std::iter::once(0..16 << 20).collect(),
        code: SavedCode { hash: there.save_code(b"code").unwrap().hash(), ..<_>::default() },
        ..SavedInstance::default()
    };
    let manifest = Manifest { instances: vec![instance], ..Manifest::default() };
    let pages = PageRuns::new(vec![vec![(0, vec![7; 16 << 20])]]);
    let image = there.save(ImageDraft::new(manifest, &pages)).unwrap().hash();
    let copy = |pause: Duration, here: &ImageStore| {
        let time = OwnTime::default();
        let images = SlowImages { images: there.clone(), time: time.clone(), pause };
        let pace = Pace::new(15 * SECOND);
        let paced = PacedImages::new(&images, there.limits(), pace, time.clock());
        let copied = paced
            .open_chain(image)
            .and_then(|chain| copy_chain(&chain, |code| paced.open_code(code), here));
        (copied, (time.clock())())
    };
    let (_here, here) = PaceStore::new("here");
    // Each answer is in time.
    let (failed, after) = copy(14 * SECOND, &here);
    let why = failed.unwrap_err().to_string();
    assert!(why.contains("fewer than 16384 bytes a second"), "{why}");
    assert!(after < 120 * SECOND, "it was read for {after:?}");
    assert_eq!(here.images().unwrap(), []);
    // What is slow, and not too slow, comes, of however few bytes each answer is.
    copy(Duration::from_millis(990), &here).0.unwrap();
    here.verify(image).unwrap();
}

#[test]
fn what_a_client_has_begun_to_say_it_has_to_end() {
    let (began, slack) = (Instant::now(), 20 * SECOND);
    let part = Some(16 * LEAST_RATE);
    let at = |seconds: u32| began + seconds * SECOND;
    let mut pace = ClientPace::default();
    assert_eq!(pace.due(None, slack, at(0)), None);
    // However often a byte of it comes.
    for second in 1..30 {
        assert_eq!(pace.due(part, slack, at(second)), Some(at(1 + 20 + 16)));
    }
    // The next one has time of its own.
    pace.message();
    assert_eq!(pace.due(part, slack, at(30)), Some(at(30 + 20 + 16)));
    assert_eq!(pace.due(None, slack, at(31)), None);
    // Parts of a byte each are no faster than they are.
    for second in 40..50 {
        pace.part(1, at(second));
        let due = pace.due(None, slack, at(second)).unwrap();
        assert!((at(60)..at(60) + SECOND / 1000).contains(&due), "{second}");
    }
    pace.part(100 * LEAST_RATE, at(50));
    assert!(pace.due(None, slack, at(50)) >= Some(at(160)));
    pace.all_parts();
    assert_eq!(pace.due(None, slack, at(50)), None);
}
