//! The transport form: the same images, once each group, and nothing of a damaged stream.

#![cfg(feature = "transport")]

mod common;

use std::io::{Cursor, Read};

use common::*;
use pagefork_image::*;

fn level() -> i32 {
    StreamWriter::<Vec<u8>>::DEFAULT_LEVEL
}

fn stream(images: &[&ImageReader]) -> Vec<u8> {
    let mut stream = StreamWriter::new(Vec::new(), level()).unwrap();
    for image in images {
        stream.image(image).unwrap();
    }
    stream.finish().unwrap()
}

fn received(stream: impl Read) -> Result<Vec<ReceivedItem<Cursor<Vec<u8>>>>, ImageError> {
    receive(stream, &ImageLimits::default(), || Ok(Cursor::new(Vec::new())))
}

fn files(items: Vec<ReceivedItem<Cursor<Vec<u8>>>>) -> Vec<Vec<u8>> {
    let file = |item: ReceivedItem<Cursor<Vec<u8>>>| match item {
        ReceivedItem::Code { file, .. } | ReceivedItem::Image { file, .. } => file.into_inner(),
    };
    items.into_iter().map(file).collect()
}

/// Images that share groups, with holes, in several instances, and code.
fn images() -> Vec<Vec<u8>> {
    let mut numbers = Numbers(21);
    let mut images = vec![small(), write(ImageDraft::new(manifest(&[]), &PageRuns::default())).1];
    for _ in 0..4 {
        let mut contents = vec![Contents::new(), Contents::new()];
        for contents in &mut contents {
            for _ in 0..numbers.below(200) {
                contents.insert(numbers.below(512) * PAGE_SIZE, numbers.page(3));
            }
        }
        let pages = PageRuns::new(contents.iter().map(runs).collect());
        images.push(write(ImageDraft::new(manifest(&[2 << 20, 2 << 20]), &pages)).1);
    }
    images
}

#[test]
fn images_come_out_as_they_went_in() {
    let images = images();
    let opened: Vec<_> = images.iter().map(|bytes| open(bytes.clone()).unwrap()).collect();
    let code = vec![0x90; 100_000];
    let mut stream = StreamWriter::new(Vec::new(), level()).unwrap();
    stream.code(ContentHash::of(&code), &code).unwrap();
    for image in &opened {
        stream.image(image).unwrap();
    }
    let stream = stream.finish().unwrap();
    let mut found = files(received(&stream[..]).unwrap());
    assert_eq!(found.remove(0), code);
    assert_eq!(found, images);
    // Whatever pieces it comes in.
    struct Bytewise<'a>(&'a [u8]);
    impl Read for Bytewise<'_> {
        fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
            let length = into.len().min(1);
            self.0.read(&mut into[..length])
        }
    }
    assert_eq!(files(received(Bytewise(&stream)).unwrap())[1..], images);
}

#[test]
fn a_group_stands_in_a_stream_once() {
    let mut numbers = Numbers(22);
    let groups: Vec<u8> = (0..64 * PAGE).map(|_| numbers.below(256) as u8).collect();
    let pages = PageRuns::new(vec![vec![(0, groups.clone()), (1 << 20, groups.clone())]]);
    let one = open(write(ImageDraft::new(manifest(&[8 << 20]), &pages)).1).unwrap();
    let first = stream(&[&one]);
    assert!(first.len() < groups.len() + groups.len() / 8, "{} bytes", first.len());
    // A hundred sessions that differ in a page each.
    let mut sessions = Vec::new();
    for session in 0..100 {
        let mut own = groups.clone();
        own[5 * PAGE..][..8].copy_from_slice(&u64::to_le_bytes(session));
        let pages = PageRuns::new(vec![vec![(0, own)]]);
        sessions.push(open(write(ImageDraft::new(manifest(&[8 << 20]), &pages)).1).unwrap());
    }
    let all = stream(&sessions.iter().map(|image| &**image).collect::<Vec<_>>());
    let limit = groups.len() + 100 * (GROUP_SIZE as usize + 1024);
    assert!(all.len() < limit, "{} bytes of {limit}", all.len());
    let found = files(received(&all[..]).unwrap());
    assert!(found.iter().zip(&sessions).all(|(bytes, image)| bytes.len() as u64 == image.size()));
}

#[test]
fn every_cut_and_every_altered_byte_of_a_stream_is_noticed() {
    let image = open(small()).unwrap();
    let mut whole = StreamWriter::new(Vec::new(), level()).unwrap();
    whole.code(ContentHash::of(b"code"), &b"code".to_vec()).unwrap();
    whole.image(&image).unwrap();
    whole.image(&image).unwrap();
    let whole = whole.finish().unwrap();
    assert_eq!(received(&whole[..]).unwrap().len(), 3);
    for length in 0..whole.len() {
        assert!(received(&whole[..length]).is_err(), "{length} of {} bytes", whole.len());
    }
    for place in 0..whole.len() {
        let is_inside = (256..whole.len() - 256).contains(&place);
        for bit in if is_inside { 3..4 } else { 0..8 } {
            let mut altered = whole.clone();
            altered[place] ^= 1 << bit;
            assert!(received(&altered[..]).is_err(), "byte {place}, bit {bit}");
        }
    }
    let longer = [&whole[..], &[0]].concat();
    assert!(matches!(received(&longer[..]), Err(ImageError::Damaged(_))));
    let twice = [&whole[..], &whole[..]].concat();
    assert!(matches!(received(&twice[..]), Err(ImageError::Damaged(_))));
}

/// A stream with these items, right but for what they say.
fn forged(items: &[u8]) -> Vec<u8> {
    let mut stream = b"\x93PFSTRM\n\x01\0\0\0".to_vec();
    stream.extend(zstd::encode_all(items, 3).unwrap());
    let hash = blake3::hash(&stream);
    stream.extend_from_slice(hash.as_bytes());
    stream
}

fn refused(items: &[u8]) -> String {
    received(&forged(items)[..]).expect_err("it is wrong").to_string()
}

#[test]
fn hostile_streams_with_right_hashes_are_refused() {
    assert_eq!(received(&forged(&[0])[..]).unwrap().len(), 0);
    assert!(refused(&[]).contains("too early"));
    assert!(refused(&[9]).contains("unknown item"));
    assert!(refused(&[0, 0]).contains("behind its last item"));

    let bytes = small();
    let image = open(bytes.clone()).unwrap();
    let size = |place: usize| u64::from_le_bytes(bytes[place..place + 8].try_into().unwrap());
    let (manifest, signatures) = (size(16) as usize, size(24) as usize);
    let mut item = vec![2];
    item.extend_from_slice(&bytes[16..32]);
    item.extend_from_slice(&bytes[128..128 + manifest + signatures]);
    let with = |parts: &[&[u8]]| [&item[..], &parts.concat()].concat();
    let count = image.group_count() as u32;
    let zeros = |count: u32| [&[0][..], &count.to_le_bytes()].concat();
    let before =
        |first: u64, count: u32| [&[2][..], &first.to_le_bytes(), &count.to_le_bytes()].concat();
    assert!(refused(&with(&[&zeros(count)])).contains("another hash"));
    assert!(refused(&with(&[&zeros(count + 1)])).contains("more pages"));
    assert!(refused(&with(&[&zeros(u32::MAX)])).contains("more pages"));
    assert!(refused(&with(&[&zeros(0)])).contains("more pages"));
    assert!(refused(&with(&[&before(0, 0)])).contains("more pages"));
    for first in [0, 1, u64::MAX - 1, u64::MAX] {
        assert!(refused(&with(&[&before(first, 1)])).contains("has not had"), "{first}");
    }
    assert!(refused(&with(&[&zeros(1), &before(0, count - 1)])).contains("another hash"));
    assert!(refused(&with(&[&[7]])).contains("unknown part"));

    let huge = |place: usize| {
        let mut huge = item.clone();
        huge[place..place + 8].fill(0xff);
        refused(&huge)
    };
    assert!(huge(1).contains("exceeds the limit"));
    assert!(huge(9).contains("exceeds the limit"));
    let code = |size: u64| [&[1][..], &[0; 32], &size.to_le_bytes(), b"code"].concat();
    assert!(refused(&code(u64::MAX)).contains("exceeds the limit"));
    assert!(refused(&code(1 << 29)).contains("too early"));
    assert!(refused(&[&code(4)[..], &[0]].concat()).contains("another hash"));
    let many = ImageLimits { stream_items: 1, ..ImageLimits::default() };
    let items = [&[1][..], ContentHash::of(b"").as_bytes(), &[0; 8]].concat().repeat(2);
    let result = receive(&forged(&items)[..], &many, || Ok(Cursor::new(Vec::new())));
    assert!(matches!(result, Err(ImageError::TooLarge { .. })));
}

#[test]
fn a_damaged_image_is_not_sent() {
    let mut bytes = small();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    let image = open(bytes).unwrap();
    let mut stream = StreamWriter::new(Vec::new(), level()).unwrap();
    assert!(matches!(stream.image(&image), Err(ImageError::Damaged(_))));
    let mut stream = StreamWriter::new(Vec::new(), level()).unwrap();
    assert!(stream.code(ContentHash::of(b"code"), &b"other".to_vec()).is_err());
}
