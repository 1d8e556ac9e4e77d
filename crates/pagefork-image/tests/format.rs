//! What is written is read again, and nothing is read that need not be.

#![allow(clippy::single_range_in_vec_init)] // Extents of one range are meant.

mod common;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use common::*;
use pagefork_image::*;

#[test]
fn all_of_a_manifest_is_read_again() {
    let image = open(small()).unwrap();
    let found = image.manifest();
    let mut expected = manifest(&[64 << 10, 16 << 10]);
    expected.suspension = Some(suspension());
    expected.attachments.clone_from(&found.attachments);
    (expected.data_size, expected.root) = (found.data_size, found.root);
    for (expected, found) in expected.instances.iter_mut().zip(&found.instances) {
        expected.spans.clone_from(&found.spans);
    }
    assert_eq!(*found, expected);
    assert_eq!(image.signers(), [key(1).public()]);
    let mut hello = [0; 5];
    image.read_attachment(0, 0, &mut hello).unwrap();
    assert_eq!(&hello, b"hello");
    assert!(image.read_attachment(0, 1, &mut hello).is_err());
    assert!(image.read_attachment(2, 0, &mut []).is_err());
    image.verify().unwrap();
}

#[test]
fn images_without_anything_in_them_exist() {
    let (written, bytes) = write(ImageDraft::new(Manifest::default(), &PageRuns::default()));
    let image = open(bytes).unwrap();
    image.verify().unwrap();
    assert_eq!((image.hash(), image.group_count()), (written.hash, 0));
    assert!(image.read_group(0).is_err());
    assert_eq!(image.manifest().root, ContentHash::of(b""));
}

#[test]
fn the_root_is_the_ordinary_hash_of_the_data() {
    let bytes = small();
    let image = open(bytes.clone()).unwrap();
    let data = &bytes[image.data_start() as usize..];
    assert_eq!(data.len() as u64, image.manifest().data_size);
    assert_eq!(ContentHash::of(data), image.manifest().root);
}

/// Contents of any kind, checked byte by byte, with spans as slots map them.
#[test]
fn pages_lie_aligned_in_few_spans_without_zeros() {
    let mut numbers = Numbers(1);
    for round in 0..40 {
        let size = (1 + numbers.below(40)) << 20;
        let count = numbers.below(60);
        let mut expected = Contents::new();
        for _ in 0..count {
            expected.insert(numbers.below(size / PAGE_SIZE) * PAGE_SIZE, numbers.page(5));
        }
        let chain = full(std::slice::from_ref(&expected), &[size]);
        chain.verify().unwrap();
        assert_eq!(contents(&chain, 0), expected, "round {round}");
        let image = chain.tip();
        let spans = &image.manifest().instances[0].spans;
        assert!(spans.len() <= SPANS_PER_EXTENT_MAX);
        assert!(image.data_start().is_multiple_of(PAGE_SIZE));
        for span in spans {
            assert_eq!(span.start % GROUP_SIZE, span.data_offset % GROUP_SIZE);
            assert!(expected.contains_key(&span.start), "a span begins with a page");
            assert!(expected.contains_key(&(span.slot().end - PAGE_SIZE)), "and ends with one");
        }
    }
}

#[test]
fn the_same_contents_make_the_same_image_whatever_the_source_names() {
    let mut numbers = Numbers(2);
    let some = Contents::from([(0, numbers.page(5)), (9 * PAGE_SIZE, numbers.page(5))]);
    let dense = PageRuns::new(vec![runs(&some)]);
    let mut all = vec![0; 20 * PAGE];
    for (offset, page) in &some {
        all[*offset as usize..][..PAGE].copy_from_slice(page);
    }
    let whole = PageRuns::new(vec![vec![(0, all)]]);
    let write = |pages| write(ImageDraft::new(manifest(&[1 << 20]), pages)).1;
    assert_eq!(write(&dense), write(&whole));
}

#[test]
fn extents_side_by_side_have_spans_of_their_own() {
    let mut manifest = manifest(&[0]);
    manifest.instances[0].extents = vec![0..8192, 8192..16384];
    let pages = PageRuns::new(vec![vec![(4096, vec![1; 8192])]]);
    let refused = ImageDraft::new(manifest.clone(), &pages).write(io::Cursor::new(Vec::new()));
    assert!(matches!(refused, Err(ImageError::Invalid(_))), "a range lies in one extent");
    let pages = PageRuns::new(vec![vec![(4096, vec![1; 4096]), (8192, vec![1; 4096])]]);
    let (written, _) = write(ImageDraft::new(manifest, &pages));
    assert_eq!(written.manifest.instances[0].spans.len(), 2);
}

/// Bytes that count what is read of them.
struct Counted {
    bytes: Vec<u8>,
    read: Arc<AtomicU64>,
}

impl ReadAt for Counted {
    fn size(&self) -> io::Result<u64> {
        ReadAt::size(&self.bytes)
    }

    fn read_exact_at(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        self.read.fetch_add(into.len() as u64, Relaxed);
        ReadAt::read_exact_at(&self.bytes, into, offset)
    }
}

#[test]
fn opening_reads_as_much_of_a_large_image_as_of_a_small_one() {
    let opened = |size: u64| {
        let pages = PageRuns::new(vec![vec![(0, vec![1; size as usize])]]);
        let (_, bytes) = write(ImageDraft::new(manifest(&[1 << 30]), &pages));
        let read = Arc::new(AtomicU64::new(0));
        let bytes = Counted { bytes, read: Arc::clone(&read) };
        let image = ImageReader::open(Box::new(bytes), &ImageLimits::default()).unwrap();
        let to_open = read.load(Relaxed);
        image.read_group(3).unwrap();
        (to_open, read.load(Relaxed) - to_open)
    };
    let (small, large) = (opened(1 << 20), opened(64 << 20));
    // Numbers in the manifest have other lengths, and what is left of the last page before the
    // data has.
    assert!(large.0 < small.0 + PAGE_SIZE, "{} and {} bytes", small.0, large.0);
    assert!(large.1 <= GROUP_SIZE + 12 * 32, "a group came with {} bytes", large.1);
}

#[test]
fn groups_are_proved_alone_and_a_wrong_one_is_noticed() {
    let size = 37 * GROUP_SIZE + PAGE_SIZE;
    let bytes = (0..size).map(|at| (at / 4096) as u8 + 1).collect();
    let pages = PageRuns::new(vec![vec![(0, bytes)]]);
    let (_, bytes) = write(ImageDraft::new(manifest(&[1 << 20]), &pages));
    let image = open(bytes.clone()).unwrap();
    let data_start = image.data_start() as usize;
    for index in 0..image.group_count() {
        let group = image.read_group(index).unwrap();
        let place = data_start + (index * GROUP_SIZE) as usize;
        assert_eq!(group, bytes[place..place + group.len()]);

        let mut altered = bytes.clone();
        altered[place + 17] ^= 4;
        let altered = open(altered).unwrap();
        assert!(matches!(altered.read_group(index), Err(ImageError::Damaged(_))));
        altered.read_group((index + 1) % image.group_count()).unwrap();
        assert!(matches!(altered.verify(), Err(ImageError::Damaged(_))));
    }
}

#[test]
fn drafts_that_cannot_be_are_refused() {
    let refused = |manifest: Manifest, pages: &PageRuns| {
        let result = ImageDraft::new(manifest, pages).write(io::Cursor::new(Vec::new()));
        assert!(matches!(result, Err(ImageError::Invalid(_))), "{result:?}");
    };
    let none = PageRuns::default();
    let mut wrong = manifest(&[8192]);
    wrong.main = 2;
    refused(wrong, &none);
    let mut wrong = manifest(&[8192]);
    wrong.instances[0].extents = vec![4096..4096];
    refused(wrong, &none);
    refused(manifest(&[8192]), &PageRuns::new(vec![vec![(8192, vec![1; 4096])]]));
    let mut wrong = manifest(&[8192]);
    wrong.attachments = vec![Attachment { size: 1, ..Attachment::default() }];
    refused(wrong.clone(), &none);
    wrong.attachments[0].size = u64::MAX;
    refused(wrong, &none);

    let draft = ImageDraft::new(manifest(&[8192]), &none).sign_with(&[key(1), key(1)]);
    assert!(matches!(draft.write(io::Cursor::new(Vec::new())), Err(ImageError::Invalid(_))));
    let pages = PageRuns::new(vec![vec![(0, vec![1; 8192])]]);
    let limits = ImageLimits { data_size: 4096, ..ImageLimits::default() };
    let draft = ImageDraft::new(manifest(&[8192]), &pages).with_limits(&limits);
    let refused = draft.write(io::Cursor::new(Vec::new()));
    assert!(matches!(refused, Err(ImageError::TooLarge { .. })));
}

/// Pages of which some lie in memory, where no others lie between them.
struct PartlyHeld<'a> {
    runs: &'a PageRuns,
    is_held: fn(u64) -> bool,
    read: AtomicU64,
}

impl PageSource for PartlyHeld<'_> {
    fn ranges(&self, instance: usize) -> Result<Vec<std::ops::Range<u64>>, ImageError> {
        self.runs.ranges(instance)
    }

    fn has_all(&self, _: usize) -> bool {
        true
    }

    fn read(&self, instance: usize, offset: u64, into: &mut [u8]) -> Result<(), ImageError> {
        self.read.fetch_add(into.len() as u64, Relaxed);
        self.runs.read(instance, offset, into)
    }

    fn held(&self, instance: usize, offset: u64, length: u64) -> Option<&[u8]> {
        let mut pages = (offset..offset + length).step_by(PAGE);
        let are_held = pages.all(|at| (self.is_held)(at / PAGE_SIZE));
        are_held.then(|| self.runs.held(instance, offset, length))?
    }

    fn read_attachment(&self, at: usize, offset: u64, into: &mut [u8]) -> Result<(), ImageError> {
        self.runs.read_attachment(at, offset, into)
    }
}

#[test]
fn pages_that_lie_in_memory_are_not_read_and_written_as_those_that_are() {
    let mut numbers = Numbers(5);
    let mut run = |start: u64, pages: &[bool]| {
        let page = |is_zero: &bool| if *is_zero { vec![0; PAGE] } else { numbers.page(300) };
        (start * PAGE_SIZE, pages.iter().flat_map(page).collect::<Vec<u8>>())
    };
    let some_zero: Vec<bool> = (0..30).map(|page| page % 11 == 3).collect();
    let pages = PageRuns::new(vec![
        vec![run(1, &[false; 41]), run(50, &[false]), run(52, &some_zero), run(90, &[false; 3])],
        vec![run(0, &[false; 8])],
    ]);
    let pages = pages.with_attachments(vec![vec![9; 5000]]);
    let sizes = [100 * PAGE_SIZE, 8 * PAGE_SIZE];
    let nothing = PageRuns::new(vec![vec![], vec![]]);
    let parent = open(write(ImageDraft::new(manifest(&sizes), &nothing)).1).unwrap();
    let parent = ImageChain::new(vec![parent], &ImageLimits::default()).unwrap();
    let mut full = manifest(&sizes);
    full.attachments = vec![Attachment { size: 5000, ..Attachment::default() }];
    let mut changed = full.clone();
    for (instance, number) in changed.instances.iter_mut().zip(0..) {
        instance.parent_instance = Some(number);
    }
    let written = |source: &dyn PageSource, is_delta: bool| match is_delta {
        true => write(parent.delta(changed.clone(), source).unwrap()).1,
        false => write(ImageDraft::new(full.clone(), source)).1,
    };
    let held: [(fn(u64) -> bool, bool); 5] = [
        (|_| false, false),
        (|_| true, true),
        (|page| page % 2 == 0, false),
        (|page| page % 7 != 0, false),
        (|page| page < 60, false),
    ];
    for is_delta in [false, true] {
        let mut first = None;
        for (is_held, are_all) in held {
            let source = PartlyHeld { runs: &pages, is_held, read: AtomicU64::new(0) };
            let bytes = written(&source, is_delta);
            // Of a full image, groups have zeros between runs.
            let read = source.read.into_inner();
            assert!(!(are_all && is_delta) || read == 0, "{read} bytes were read");
            assert!(*first.get_or_insert_with(|| bytes.clone()) == bytes, "of a delta: {is_delta}");
        }
    }
}

#[test]
fn a_source_that_fails_and_a_full_target_are_errors() {
    struct Failing;
    impl PageSource for Failing {
        fn ranges(&self, _: usize) -> Result<Vec<std::ops::Range<u64>>, ImageError> {
            Ok(vec![0..4096])
        }

        fn read(&self, _: usize, _: u64, _: &mut [u8]) -> Result<(), ImageError> {
            Err(ImageError::source_failed("the page is gone"))
        }
    }
    let result = ImageDraft::new(manifest(&[8192]), &Failing).write(io::Cursor::new(Vec::new()));
    assert!(matches!(result, Err(ImageError::Source(_))));

    let pages = PageRuns::new(vec![vec![(0, vec![1; 8192])]]);
    for room in [0, 100, 128, 4096, 12287] {
        let mut target = vec![0; room];
        let target = io::Cursor::new(&mut target[..]);
        let result = ImageDraft::new(manifest(&[8192]), &pages).write(target);
        assert!(matches!(result, Err(ImageError::Io { .. })), "{room} bytes: {result:?}");
    }
}

#[test]
fn live_frames_need_a_trusted_key() {
    let mut manifest = manifest(&[4096]);
    let none = PageRuns::default();
    let trusted = TrustedKeys::from_iter([key(1).public(), key(3).public()]);
    let image = |manifest: &Manifest, keys: &[SecretKey]| {
        open(write(ImageDraft::new(manifest.clone(), &none).sign_with(keys)).1).unwrap()
    };
    image(&manifest, &[]).check_trust(&trusted).unwrap();
    manifest.suspension = Some(suspension());
    for keys in [vec![], vec![key(2)]] {
        let refused = image(&manifest, &keys).check_trust(&trusted).unwrap_err();
        assert!(
            matches!(refused, ImageError::Untrusted { signatures, .. } if signatures == keys.len())
        );
    }
    image(&manifest, &[key(3)]).check_trust(&trusted).unwrap();
    let both = image(&manifest, &[key(2), key(1)]);
    both.check_trust(&trusted).unwrap();
    assert!(both.check_trust(&TrustedKeys::default()).is_err());
    assert_eq!(both.hash(), image(&manifest, &[]).hash(), "signatures are no part of what it is");
}
