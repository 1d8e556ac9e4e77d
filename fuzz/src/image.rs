//! Image files, streams and chains of them that may be anything.

use std::io::Cursor;
use std::sync::Arc;

use pagefork_image::{
    Attachment, ContentHash, FrameTarget, ImageChain, ImageDraft, ImageLimits, ImageReader,
    Manifest, PAGE_SIZE, PageRuns, ReceivedItem, SavedFrameWord, SavedInstance, SavedSuspension,
    SecretKey, StreamWriter, receive,
};

/// Bytes of what is read at once, whatever an image says that it covers.
const READ_MAX: u64 = 1 << 16;

/// Bytes of a header.
const HEADER: usize = 128;

/// Whatever bytes an image or a stream of images has, reading it is an error or an image that is in
/// order: its pages and groups can be read, it comes through a stream as it is, and its
/// squashed form has the same contents. Hashes are made right, so that it is not they that refuse.
pub fn image(data: &[u8]) {
    let Some((choice, data)) = data.split_first() else { return };
    match choice % 4 {
        0 => read(data.to_vec()),
        1 => read(altered(&base(choice & 4 != 0), data)),
        2 => stream(forged(data)),
        _ => stream(forged(&altered_items(data))),
    }
}

fn limits() -> ImageLimits {
    let data_size = 1 << 22;
    ImageLimits { manifest_size: 1 << 16, data_size, code_size: 1 << 16, ..Default::default() }
}

/// An image with something of everything.
fn base(has_holes: bool) -> Vec<u8> {
    let extents = vec![0..1 << 20, 1 << 20..2 << 20];
    let instance = SavedInstance { extents, ..SavedInstance::default() };
    let target = FrameTarget::Return { ordinal: 1, function: 2, call_site: 3 };
    let suspension = SavedSuspension {
        ordinal: 1,
        stack_owner: 2,
        stack: vec![0; 24],
        frames: vec![SavedFrameWord { place: 8, target }],
        ..SavedSuspension::default()
    };
    let manifest = Manifest {
        instances: vec![instance; 2],
        attachments: vec![Attachment { size: 3, ..Attachment::default() }],
        suspension: Some(suspension),
        ..Manifest::default()
    };
    let page = |byte| vec![byte; PAGE_SIZE as usize];
    let far = if has_holes { 1 << 20 } else { 3 * PAGE_SIZE };
    let pages = PageRuns::new(vec![vec![(0, page(1)), (far, page(2))], vec![(8192, page(3))]])
        .with_attachments(vec![b"abc".to_vec()]);
    let mut file = Cursor::new(Vec::new());
    ImageDraft::new(manifest, &pages)
        .sign_with(&[SecretKey::from_seed([1; 32])])
        .write(&mut file)
        .expect("it is in order");
    file.into_inner()
}

/// The bytes with changes where `data` says, three bytes each: where (16 bits) and what.
fn changed(mut bytes: Vec<u8>, data: &[u8]) -> Vec<u8> {
    for change in data.chunks_exact(3) {
        let place = usize::from(u16::from_le_bytes([change[0], change[1]]));
        if let Some(byte) = (!bytes.is_empty()).then(|| place % bytes.len()) {
            bytes[byte] = change[2];
        }
    }
    bytes
}

/// An image whose manifest is another one, with the right hashes and without signatures.
fn altered(base: &[u8], data: &[u8]) -> Vec<u8> {
    let word = |at: usize| u64::from_le_bytes(base[at..at + 8].try_into().expect("eight bytes"));
    let (manifest_size, signatures_size, data_start) =
        (word(16) as usize, word(24) as usize, word(40) as usize);
    let manifest = changed(base[HEADER..HEADER + manifest_size].to_vec(), data);
    let index = &base[HEADER + manifest_size + signatures_size..][..word(32) as usize];
    let mut bytes = base[..HEADER].to_vec();
    bytes[24..32].fill(0);
    bytes[64..96].copy_from_slice(ContentHash::of(&manifest).as_bytes());
    let checksum = ContentHash::of(&bytes[..96]);
    bytes[96..].copy_from_slice(checksum.as_bytes());
    bytes.extend_from_slice(&manifest);
    bytes.extend_from_slice(index);
    bytes.resize(data_start, 0);
    bytes.extend_from_slice(&base[data_start..]);
    bytes
}

/// The items of a stream, with changes.
fn altered_items(data: &[u8]) -> Vec<u8> {
    let base = base(true);
    let word = |at: usize| u64::from_le_bytes(base[at..at + 8].try_into().expect("eight bytes"));
    let head = (word(16) + word(24)) as usize;
    let mut items = vec![2];
    items.extend_from_slice(&base[16..32]);
    items.extend_from_slice(&base[HEADER..HEADER + head]);
    let (changes, parts) = data.split_at(data.len().min(6));
    let mut items = changed(items, changes);
    items.extend_from_slice(parts);
    items
}

/// A stream with these items and the right hash.
fn forged(items: &[u8]) -> Vec<u8> {
    let mut stream = b"\x93PFSTRM\n\x01\0\0\0".to_vec();
    stream.extend(zstd::encode_all(items, 1).expect("memory takes all"));
    let hash = ContentHash::of(&stream);
    stream.extend_from_slice(hash.as_bytes());
    stream
}

fn stream(bytes: Vec<u8>) {
    let Ok(items) = receive(&bytes[..], &limits(), || Ok(Cursor::new(Vec::new()))) else { return };
    for item in items {
        if let ReceivedItem::Image { hash, file, .. } = item {
            let image = ImageReader::open(Box::new(file.into_inner()), &limits());
            let image = image.expect("what was received is an image");
            assert_eq!(image.hash(), hash);
            image.verify().expect("what was received is right");
        }
    }
}

fn read(bytes: Vec<u8>) {
    let limits = limits();
    let Ok(image) = ImageReader::open(Box::new(bytes.clone()), &limits) else { return };
    let is_right = image.verify().is_ok();
    for index in 0..image.group_count() {
        let group = image.read_group(index);
        assert!(!is_right || group.is_ok(), "a group of an image that was verified");
        if let Ok(group) = group {
            let proof = image.proof(index).expect("it was read before");
            let manifest = image.manifest();
            let proved = proof.verify(manifest.root, manifest.data_size, index, &group);
            proved.expect("it was proved before");
        }
    }
    if is_right {
        let mut stream = StreamWriter::new(Vec::new(), 1).expect("memory takes all");
        stream.image(&image).expect("it was verified");
        let stream = stream.finish().expect("memory takes all");
        let items = receive(&stream[..], &limits, || Ok(Cursor::new(Vec::new())));
        let [ReceivedItem::Image { file, .. }] = &items.expect("it was sent")[..] else {
            panic!("one image was sent")
        };
        assert!(*file.get_ref() == bytes, "an image comes as it was sent");
    }
    let Ok(chain) = ImageChain::new(vec![Arc::new(image)], &limits) else { return };
    let count = chain.tip().manifest().instances.len();
    let mut squashed = Cursor::new(Vec::new());
    // What an image says that it covers is not what it has.
    let squashed = chain.squash().write(&mut squashed).map(|_| squashed.into_inner());
    let squashed = squashed.ok().map(|bytes| {
        let image = ImageReader::open(Box::new(bytes), &limits).expect("it was written");
        ImageChain::new(vec![Arc::new(image)], &limits).expect("it is a full image")
    });
    for instance in 0..count {
        assert!(chain.overlay(instance).is_empty(), "a full image differs from itself nowhere");
        for span in &chain.tip().manifest().instances[instance].spans {
            let size = span.size.min(READ_MAX) as usize;
            let (mut bytes, mut again) = (vec![0xcc; size], vec![0xdd; size]);
            chain.read(instance, span.start, &mut bytes).expect("the image has them");
            if let Some(squashed) = &squashed {
                squashed.read(instance, span.start, &mut again).expect("so has this one");
                assert!(bytes == again, "a squashed image has the same contents");
            }
        }
    }
}
