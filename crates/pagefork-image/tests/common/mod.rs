//! Images for the tests of this crate.
#![allow(dead_code, clippy::single_range_in_vec_init)]

use std::collections::BTreeMap;
use std::io::Cursor;
use std::sync::Arc;

use pagefork_image::{
    Attachment, ContentHash, FrameTarget, ImageChain, ImageDraft, ImageError, ImageLimits,
    ImageReader, Manifest, PAGE_SIZE, PageRuns, SavedCode, SavedFrameWord, SavedHolder,
    SavedHostFunction, SavedInstance, SavedReference, SavedSuspension, SecretKey, WrittenImage,
};

pub(crate) const PAGE: usize = PAGE_SIZE as usize;

/// The same numbers in every run.
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % limit
    }

    /// A page that is not zero, of one of `kinds`.
    pub(crate) fn page(&mut self, kinds: u64) -> Vec<u8> {
        let mut numbers = Numbers(self.below(kinds) + 1);
        (0..PAGE).map(|_| numbers.below(256) as u8).collect()
    }
}

/// What an instance holds: pages by slot offset, zeros left out.
pub(crate) type Contents = BTreeMap<u64, Vec<u8>>;

pub(crate) fn runs(contents: &Contents) -> Vec<(u64, Vec<u8>)> {
    contents.iter().map(|(offset, page)| (*offset, page.clone())).collect()
}

/// A manifest with everything in it, for instances that cover these many bytes.
pub(crate) fn manifest(sizes: &[u64]) -> Manifest {
    let instance = |(index, size): (usize, &u64)| SavedInstance {
        name: format!("instance {index}"),
        module: ContentHash::of(b"module"),
        code: SavedCode { hash: ContentHash::of(b"code"), abi: 7, processor: "v3".into() },
        layout: vec![1, u64::MAX],
        memory_sizes: vec![*size],
        table_lengths: vec![3],
        exceptions: vec![9; 32],
        runtime: vec![1, 2, 3],
        extents: vec![0..*size],
        ..SavedInstance::default()
    };
    Manifest {
        instances: sizes.iter().enumerate().map(instance).collect(),
        main: sizes.len().min(1) as u32,
        host_functions: vec![SavedHostFunction { module: "env".into(), name: "log".into() }],
        host_references: vec![SavedReference { handle: 4, bytes: vec![5] }],
        fuel: -1,
        wasi: vec![6; 40],
        runtime: vec![8],
        ..Manifest::default()
    }
}

pub(crate) fn suspension() -> SavedSuspension {
    let place = |place, target| SavedFrameWord { place, target };
    SavedSuspension {
        ordinal: 1,
        stack_owner: 1,
        kind: 2,
        function: 1 << 32 | 5,
        host_function: Some(0),
        timeout_ns: Some(10),
        stack: vec![0; 48],
        frames: vec![
            place(48, FrameTarget::FramePointer(Some(16))),
            place(40, FrameTarget::Return { ordinal: 1, function: 4, call_site: 2 }),
            place(16, FrameTarget::FramePointer(None)),
            place(8, FrameTarget::ReturnToHost),
        ],
    }
}

pub(crate) fn key(number: u8) -> SecretKey {
    SecretKey::from_seed([number; 32])
}

/// A small image with two instances, attachments, a suspended guest and a signature.
pub(crate) fn small() -> Vec<u8> {
    small_of(Vec::new())
}

/// Who has an image.
pub(crate) fn holders() -> Vec<SavedHolder> {
    let store = SavedHolder::Objects("s3://bucket/images".into());
    vec![SavedHolder::Node(key(5).public()), store]
}

/// The same image, of which these are holders.
pub(crate) fn small_of(holders: Vec<SavedHolder>) -> Vec<u8> {
    let mut manifest = manifest(&[64 << 10, 16 << 10]);
    manifest.suspension = Some(suspension());
    manifest.holders = holders;
    let attachment =
        |name: &str, size| Attachment { name: name.into(), size, ..Attachment::default() };
    manifest.attachments = vec![attachment("a", 5), attachment("empty", 0)];
    let mut numbers = Numbers(3);
    let first = Contents::from([(0, numbers.page(9)), (15 * PAGE_SIZE, numbers.page(9))]);
    let second = Contents::from([(2 * PAGE_SIZE, numbers.page(9))]);
    let pages = PageRuns::new(vec![runs(&first), runs(&second)])
        .with_attachments(vec![b"hello".to_vec(), vec![]]);
    write(ImageDraft::new(manifest, &pages).sign_with(&[key(1)])).1
}

pub(crate) fn write(draft: ImageDraft<'_>) -> (WrittenImage, Vec<u8>) {
    let mut file = Cursor::new(Vec::new());
    let written = draft.write(&mut file).expect("memory takes all");
    (written, file.into_inner())
}

pub(crate) fn open(bytes: Vec<u8>) -> Result<Arc<ImageReader>, ImageError> {
    ImageReader::open(Box::new(bytes), &ImageLimits::default()).map(Arc::new)
}

/// A full image of these contents.
pub(crate) fn full(contents: &[Contents], sizes: &[u64]) -> ImageChain {
    let pages = PageRuns::new(contents.iter().map(runs).collect());
    let (_, bytes) = write(ImageDraft::new(manifest(sizes), &pages));
    ImageChain::new(vec![open(bytes).unwrap()], &ImageLimits::default()).unwrap()
}

/// A delta of `parent` in which instances have these contents; pages in `named` and not in
/// `contents` are zero.
pub(crate) fn delta(
    parent: &ImageChain,
    contents: &[Contents],
    named: &[Vec<u64>],
    sizes: &[u64],
) -> ImageChain {
    let mut manifest = manifest(sizes);
    let known = parent.tip().manifest().instances.len();
    for (index, instance) in manifest.instances.iter_mut().enumerate() {
        instance.parent_instance = (index < known).then_some(index as u32);
    }
    let zeros = vec![0; PAGE];
    let runs = contents.iter().zip(named).map(|(contents, named)| {
        let page = |offset: &u64| (*offset, contents.get(offset).unwrap_or(&zeros).clone());
        named.iter().map(page).collect()
    });
    let pages = PageRuns::new(runs.collect());
    let (_, bytes) = write(parent.delta(manifest, &pages).unwrap());
    let mut images = vec![open(bytes).unwrap()];
    images.extend_from_slice(parent.images());
    ImageChain::new(images, &ImageLimits::default()).unwrap()
}

/// All that an instance holds.
pub(crate) fn contents(chain: &ImageChain, instance: usize) -> Contents {
    let size = chain.tip().manifest().instances[instance].extents.last().map_or(0, |last| last.end);
    let mut bytes = vec![0xcc; size as usize];
    chain.read(instance, 0, &mut bytes).unwrap();
    let pages = (0..).step_by(PAGE).zip(bytes.chunks(PAGE));
    pages
        .filter(|(_, page)| page.iter().any(|byte| *byte != 0))
        .map(|(offset, page)| (offset, page.to_vec()))
        .collect()
}
