//! Images that earlier builds wrote: this one reads them, or says by name which version they are of.
//!
//! What this build writes is compared with what was kept, too, so that a change of the format is a
//! new version and nothing else. `KEEP=1 cargo test -p pagefork-image --test kept_images` writes the
//! files of a new version; those of old ones stay.

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::*;
use pagefork_image::*;

fn kept(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kept").join(name)
}

/// The kept file, after it was written if that was asked for and there is none.
fn file(name: &str, write: impl FnOnce() -> Vec<u8>) -> Vec<u8> {
    let path = kept(name);
    if std::env::var_os("KEEP").is_some() && !path.exists() {
        fs::write(&path, write()).unwrap();
    }
    fs::read(&path).unwrap()
}

#[test]
fn an_image_of_version_1_is_read_and_is_what_is_written_today() {
    let bytes = file("version-1.image", small);
    let image = open(bytes.clone()).unwrap();
    image.verify().unwrap();
    image.check_trust(&TrustedKeys::from_iter([key(1).public()])).unwrap();
    assert!(bytes == small(), "the format has changed: it needs a version of its own");
}

/// Version 1 is what builds read that know of no holders.
#[test]
fn an_image_whose_manifest_is_of_version_2_is_read_and_is_what_is_written_today() {
    let bytes = file("manifest-2.image", || small_of(holders()));
    let image = open(bytes.clone()).unwrap();
    image.verify().unwrap();
    assert_eq!(image.manifest().holders, holders());
    assert!(bytes == small_of(holders()), "the format has changed: it needs a version of its own");
    // The version stands first in the manifest, so that a build of before refuses it by that.
    let version = |bytes: &[u8]| u32::from_le_bytes(bytes[128..132].try_into().unwrap());
    assert_eq!((version(&small()), version(&bytes)), (1, 2));
}

#[cfg(feature = "transport")]
#[test]
fn a_stream_of_version_1_is_read() {
    let write = || {
        let mut stream = StreamWriter::new(Vec::new(), 3).unwrap();
        stream.code(ContentHash::of(b"code"), &b"code".to_vec()).unwrap();
        stream.image(&open(small()).unwrap()).unwrap();
        stream.image(&open(small()).unwrap()).unwrap();
        stream.finish().unwrap()
    };
    let stream = file("version-1.stream", write);
    let create = || Ok(std::io::Cursor::new(Vec::new()));
    let items = receive(&stream[..], &ImageLimits::default(), create).unwrap();
    let bytes = items.into_iter().map(|item| match item {
        ReceivedItem::Code { file, .. } | ReceivedItem::Image { file, .. } => file.into_inner(),
    });
    assert!(bytes.eq([b"code".to_vec(), small(), small()]));
}
