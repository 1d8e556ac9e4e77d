//! Bytes that were cut, altered or made to harm: refused, and never a wrong byte.

mod common;

use common::*;
use pagefork_image::*;

/// What an image that was accepted whole holds.
fn read_all(bytes: Vec<u8>) -> Result<ContentHash, ImageError> {
    let image = open(bytes)?;
    image.verify()?;
    Ok(image.hash())
}

#[test]
fn every_cut_is_noticed_when_an_image_is_opened() {
    [small(), small_of(holders())].into_iter().for_each(cuts_are_noticed);
}

fn cuts_are_noticed(bytes: Vec<u8>) {
    for length in 0..bytes.len() {
        let error = open(bytes[..length].to_vec()).unwrap_err();
        assert!(matches!(error, ImageError::Damaged(_)), "{length} bytes: {error}");
    }
    for more in [1, 4096, 16384] {
        let mut longer = bytes.clone();
        longer.resize(bytes.len() + more, 0);
        assert!(matches!(open(longer), Err(ImageError::Damaged(_))));
    }
}

#[test]
fn every_altered_byte_is_noticed() {
    let bytes = small_of(holders());
    let image = open(bytes.clone()).unwrap();
    let index_size = 32 * [6, 3, 2].iter().sum::<u64>();
    assert!(image.group_count() > 4, "the index has levels");
    let before_index = image.data_start() - PAGE_SIZE;
    assert!(index_size < PAGE_SIZE && before_index < 2 * PAGE_SIZE);
    for place in 0..bytes.len() {
        let bits = if (place as u64) < image.data_start() { 0..8 } else { 3..4 };
        for bit in bits {
            let mut altered = bytes.clone();
            altered[place] ^= 1 << bit;
            let Err(error) = read_all(altered) else { panic!("byte {place}, bit {bit}") };
            let expected = matches!(
                error,
                ImageError::Damaged(_)
                    | ImageError::NotAnImage
                    | ImageError::Version { .. }
                    | ImageError::TooLarge { .. }
            );
            assert!(expected, "byte {place}, bit {bit}: {error}");
        }
    }
}

#[test]
fn other_versions_are_refused_by_name() {
    let mut bytes = small();
    bytes[8] = 2;
    let error = open(bytes).unwrap_err();
    assert!(matches!(error, ImageError::Version { found: 2, supported: 1, .. }), "{error}");
    let error = of_manifest(|manifest| manifest[0] = 3).unwrap_err();
    let version = ImageError::Version { what: "manifest", found: 3, supported: 2 };
    assert_eq!(error.to_string(), version.to_string());
}

/// The head of an image without signatures whose manifest was changed, and that is known by the hash of that.
fn of_manifest(change: impl FnOnce(&mut Vec<u8>)) -> Result<ImageHead, ImageError> {
    let image = open(small_of(holders())).unwrap();
    let mut manifest = ImageHead::read(&image).unwrap().manifest_bytes().to_vec();
    change(&mut manifest);
    let hash = ContentHash::of(&manifest);
    ImageHead::decode(hash, manifest, Vec::new(), &ImageLimits::default())
}

#[test]
fn what_a_manifest_says_of_holders_is_bounded_and_stands_in_its_own_version() {
    assert_eq!(of_manifest(|_| ()).unwrap().manifest().holders, holders());
    // The holders are the last: a number, a kind and a key, a kind and a URL.
    let size = 1 + 1 + 32 + 1 + 1 + "s3://bucket/images".len();
    type Change = fn(&mut Vec<u8>, usize);
    let changes: [(Change, &str); 6] = [
        (|manifest, at| manifest.truncate(at), "cannot be read"),
        (|manifest, at| manifest.splice(at.., [0]).for_each(drop), "names none"),
        (|manifest, _| manifest.push(0), "behind its end"),
        // A build of before would ignore what it does not know, if it had not this version.
        (|manifest, _| manifest[0] = 1, "behind its end"),
        (|manifest, _| *manifest.last_mut().unwrap() = 0x1b, "characters"),
        (
            |manifest, at| {
                let keys = (0..17_u8).flat_map(|number| [&[0], &[number; 32][..]].concat());
                manifest.splice(at.., [17].into_iter().chain(keys)).for_each(drop);
            },
            "17 holders",
        ),
    ];
    for (change, complaint) in changes {
        let error = of_manifest(|manifest| change(manifest, manifest.len() - size)).unwrap_err();
        assert!(matches!(error, ImageError::Damaged(_)), "{error:?}");
        assert!(error.to_string().contains(complaint), "{error}");
    }
    // And none is written.
    let none = PageRuns::default();
    let holders = vec![SavedHolder::Objects("s3://user:secret@bucket/images".into())];
    let draft = ImageDraft::new(Manifest { holders, ..Manifest::default() }, &none);
    let error = draft.write(std::io::Cursor::new(Vec::new())).unwrap_err();
    assert!(matches!(error, ImageError::Invalid(_)) && !error.to_string().contains("secret"));
}

#[test]
fn a_signature_of_another_image_is_none_of_this_one() {
    let none = PageRuns::default();
    let sign =
        |manifest, keys: &[SecretKey]| write(ImageDraft::new(manifest, &none).sign_with(keys)).1;
    let (mine, other) = (sign(manifest(&[4096]), &[key(1)]), sign(manifest(&[8192]), &[key(1)]));
    let (image, foreign) = (open(mine.clone()).unwrap(), open(other.clone()).unwrap());
    // Both have their one signature right before the data's page, and no index.
    let last = |bytes: &[u8], image: &ImageReader| {
        let end = image.data_start() as usize;
        let padding = bytes[..end].iter().rev().take_while(|byte| **byte == 0).count();
        end - padding
    };
    let (to, from) = (last(&mine, &image), last(&other, &foreign));
    let mut forged = mine.clone();
    forged[to - 96..to].copy_from_slice(&other[from - 96..from]);
    let checksum = blake3::hash(&[&forged[..96], &forged[to - 96..to]].concat());
    forged[96..128].copy_from_slice(checksum.as_bytes());
    let error = open(forged).unwrap_err();
    assert!(error.to_string().contains("signatures is wrong"), "{error}");
}

/// What a manifest says is bounded before anything is made of it.
#[test]
fn sizes_are_refused_before_memory_is_taken_for_them() {
    let bytes = small();
    for (place, size) in [(16, 1 << 40), (24, 1 << 40), (48, !4095), (48, 1 << 62)] {
        let mut altered = bytes.clone();
        altered[place..place + 8].copy_from_slice(&u64::to_le_bytes(size));
        assert!(matches!(open(altered), Err(ImageError::TooLarge { .. })));
    }
    let limits = ImageLimits {
        manifest_size: u64::MAX,
        data_size: u64::MAX,
        signatures: usize::MAX,
        ..ImageLimits::default()
    };
    for (place, size) in [(16, u64::MAX), (24, u64::MAX), (48, u64::MAX), (16, 1 << 62)] {
        let mut altered = bytes.clone();
        altered[place..place + 8].copy_from_slice(&u64::to_le_bytes(size));
        assert!(ImageReader::open(Box::new(altered), &limits).is_err());
    }
}

/// Random bytes behind a right hash: whatever a manifest says, reading it is an error or a
/// manifest that is in order, and memory stays in proportion.
#[test]
fn manifests_of_random_bytes_are_refused_or_in_order() {
    let good = open(small()).unwrap();
    let bytes = small();
    let manifest_size = u64::from_le_bytes(bytes[16..24].try_into().unwrap()) as usize;
    let mut numbers = Numbers(11);
    let mut accepted = 0;
    for _ in 0..20_000 {
        let mut altered = bytes.clone();
        let manifest = &mut altered[128..128 + manifest_size];
        for _ in 0..1 + numbers.below(3) {
            let place = 4 + numbers.below(manifest_size as u64 - 4) as usize;
            manifest[place] = match numbers.below(3) {
                0 => 0xff,
                1 => 0x80,
                _ => numbers.below(256) as u8,
            };
        }
        let hash = blake3::hash(manifest);
        altered[64..96].copy_from_slice(hash.as_bytes());
        // Without signatures, so that what the manifest says is looked at.
        let signatures = 128 + manifest_size..128 + manifest_size + 96;
        let padding = altered[signatures.end..].to_vec();
        altered.truncate(signatures.start);
        altered.extend_from_slice(&padding[..good.data_start() as usize - signatures.end]);
        altered.resize(good.data_start() as usize, 0);
        altered.extend_from_slice(&bytes[good.data_start() as usize..]);
        altered[24..32].fill(0);
        let checksum = blake3::hash(&altered[..96]);
        altered[96..128].copy_from_slice(checksum.as_bytes());
        if let Ok(image) = open(altered) {
            accepted += 1;
            let _ = image.verify();
            let limits = ImageLimits::default();
            if let Ok(chain) = ImageChain::new(vec![image.clone()], &limits) {
                for instance in 0..image.manifest().instances.len() {
                    let _ = chain.read(instance, 0, &mut [0; 4096]);
                    let _ = chain.overlay(instance);
                }
            }
        }
    }
    assert!(accepted > 0, "some of what was altered is only words of the runtime");
}
